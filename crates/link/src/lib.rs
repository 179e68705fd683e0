//! The link between host and device: PCIe generations 1 to 6 and CXL.mem, transaction by transaction.
//! Pure: no I/O, no clock, no threads; every point in time comes in as an argument.
//!
//! Each transaction is counted twice, exactly, in both directions, by what it was for:
//!
//! - *payload bytes*: the data of the packets, in whole dwords. Hardware counters show this, and papers report it.
//! - *wire bytes*: payload with headers, framing, checksums, flow control and what a flit left empty.
//!
//! Where to start:
//!
//! - [`LinkConfig`]: every parameter, for a profile (`docs/link.md`);
//! - [`Transaction`]: what can cross the link, and [`nvme`]: what an NVMe command is made of;
//! - [`Link`]: when a transaction is due, with queueing in each direction;
//! - [`Traffic`]: what crossed.
//!
//! The rules are those of the PCI Express Base Specification 6.x and the Compute Express Link Specification 3.x;
//! section numbers in comments refer to these two.
#![forbid(unsafe_code)]

pub mod config;
pub mod nvme;
pub mod traffic;
pub mod transaction;

mod flit;
mod link;
mod planted;
mod slots;
mod time;
mod timeline;
mod tlp;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use config::{ConfigError, CxlFlit, LinkConfig};
pub use link::{Due, Link, Prepared, PreparedAll};
pub use slots::CxlMessage;
pub use time::Time;
pub use traffic::{Count, Direction, Kind, Traffic};
pub use transaction::{Access, Transaction};
