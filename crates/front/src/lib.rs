//! Front ends of a device: how programs reach it.
//!
//! - [`window`]: the device's half of the CXL.mem window. The programs' half is `osier-client`.
//! - [`nbd`]: the device as a network block device.
//! - [`dashboard`]: what a device does, as a page, as JSON and as metrics.

pub mod dashboard;
pub mod nbd;
pub mod window;
