//! One run of a workload or a trace against a device, in virtual time, and its report.
//!
//! - [`drive`] runs sources against a [`Target`] and measures;
//! - [`Histogram`] and [`Latencies`] say how long requests took, and why;
//! - [`Series`] says what happened over time, in bounded memory.
//!
//! Invariants:
//! - the latency of a request begins when it arrives, whether or not the device had room for it then; the parts of a
//!   latency add up to it;
//! - a run that was stopped, or whose trace ended with an error, has no result;
//! - the same device, sources and limits give the same figures, to the bit.

pub mod counters;
mod driver;
pub mod histogram;
mod json;
mod lanes;
pub mod latency;
mod present;
pub mod report;
pub mod series;
mod simulate;
mod since;

#[cfg(test)]
mod tests;

pub use driver::{DriveError, End, Io, Limits, Measured, OUTCOMES, Progress, Target, WarmUp, Watch, drive};
pub use histogram::Histogram;
pub use latency::Latencies;
pub use report::RunReport;
pub use series::Series;
pub use simulate::{FillMethod, Load, MakePolicy, Options, Precondition, SimulateError, simulate, simulate_with};
