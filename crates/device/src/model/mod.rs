//! The whole device in virtual time: link, DRAM cache and page-mapped flash in one state machine.
//!
//! [`command`] is what comes in and goes out, with every nanosecond of a latency put to its cause.

pub mod command;

pub use command::{Causes, Command, Completed, Met, Op, Outcome};
