//! Where actors run: samples in, one placement decision an epoch out. Pure.
//!
//! An *epoch* is one call of [`Policy::decide`]: the driver takes a [`Sample`] of the host, of the
//! device and of every actor (every [`SchedulerParams::epoch_ms`]), the policy answers with a
//! [`Decision`]: which actors to move, and how far to limit the rate at which requests are let in.
//!
//! Invariants of this crate:
//!
//! 1. A policy sees samples and nothing else: no clock, no file, no hidden channel. The same samples
//!    give the same decisions, so that a recorded run can be replayed with another policy.
//! 2. A decision never names an actor that the sample does not hold, that is pinned, or that is
//!    already where it is sent ([`Decision::check`]).
//! 3. Nothing here is a float: every quantity is an integer with its unit in its name.
//!
//! Where to start reading: [`Sample`], then [`Wio`], the default policy (WIO, arXiv 2604.02442,
//! sections 3.5, 5.7 and 5.8).

#![forbid(unsafe_code)]

mod average;
mod decision;
mod greedy;
mod policy;
mod record;
mod replay;
mod sample;
mod simple;
mod wio;
mod wire;

pub use osier_domain::{ACTORS_MAX, ActorId, Nanos, Side};

pub use decision::{Decision, DecisionError, Move, Moves, RATE_UNLIMITED_PERMILLE, Reason};
pub use greedy::GreedyCost;
pub use osier_device::SchedulerParams;
pub use policy::{DEFAULT_POLICY, POLICIES, Policy, PolicyInfo, UnknownPolicy, policy};
pub use record::{
    Header, LineError, MALFORMED_MAX, RECORD_FORMAT, RECORD_VERSION, Recorded, Recording, RecordingError,
    encode_header, encode_sample,
};
pub use replay::{ActorTimes, LogEntry, ReplayError, ReplayReport, TimedMove, replay};
pub use sample::{ActorView, Class, DeviceSample, HostSample, Sample, SampleError};
pub use simple::{Pinned, Threshold};
pub use wio::Wio;

#[cfg(test)]
mod testing;
