//! Synthetic workloads: requests made of a description.
//!
//! A [`Workload`] has jobs that run at the same time, each a tenant of its own; a job has phases that follow each
//! other; a phase says where its requests go, what they do, how large they are and when they come.
//! `docs/workloads.md` explains each key, with an example of each pattern.
//!
//! - [`Workload::jobs`] gives a [`Job`] each, which a driver paces by itself;
//! - [`Merged`] runs all jobs into one, by the time of arrival.
//!
//! Invariants:
//! - the same description gives the same requests on every machine. What needs a logarithm or a power takes those of
//!   `libm` in their portable form, and beside them only the operations that IEEE 754 defines to the bit;
//! - parts draw from generators of their own: another mix of reads and writes does not move an address;
//! - no request leaves the range of its phase, and no table grows with that range.

mod config;
mod draw;
mod job;
mod merge;
mod overrides;
mod pattern;
mod permutation;

pub use config::{
    Arrivals, Block, JobDescription, Mix, Pattern, Phase, SLOTS_MAX, Workload, WorkloadError, ZIPF_SLOTS_MAX,
};
pub use job::Job;
pub use merge::{Merged, NeedsServiceTime};
pub use permutation::Permutation;
