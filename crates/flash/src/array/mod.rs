//! The NAND array in virtual time: what it looks like, when its operations end, and how they fail.
//!
//! - [`Shape`]: channel, chip, die, plane, block, page, and the order in which a stripe visits them;
//! - [`ArrayTiming`]: durations and what the parts can do;
//! - [`Array`]: queues and occupancy of dies and channels, to the nanosecond;
//! - [`ErrorParams`]: bit errors, read retries, bad blocks.

mod calendar;
mod engine;
mod errors;
#[cfg(test)]
mod reference_tests;
mod shape;
mod timing;

pub use engine::{Array, Class, Finished, Job, JobKind, ReadTime};
pub use errors::{ErrorParams, RberPoint, RetryStep};
pub(crate) use errors::{ReadErrors, Wear};
pub(crate) use shape::Divisor;
pub use shape::{Level, Order, Shape};
pub use timing::{ArrayTiming, Suspend};

/// A value of the array's or the FTL's configuration that cannot work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value}: {reason}")]
pub struct ConfigError {
    /// The key, with its section, as a profile spells it.
    pub key: &'static str,
    /// What was given.
    pub value: String,
    /// Why it cannot work, and what would.
    pub reason: String,
}

impl ConfigError {
    pub(crate) fn new(key: &'static str, value: impl ToString, reason: impl Into<String>) -> ConfigError {
        ConfigError { key, value: value.to_string(), reason: reason.into() }
    }

    /// Refuses a value outside of a range.
    pub(crate) fn range(key: &'static str, value: u64, min: u64, max: u64) -> Result<(), ConfigError> {
        if value < min || value > max {
            return Err(ConfigError::new(key, value, format!("choose a value from {min} to {max}")));
        }
        Ok(())
    }
}
