//! Front ends of a device: how programs reach it.
//!
//! - [`window`]: the device's half of the CXL.mem window. The programs' half is `osier-client`.
//! - [`nbd`]: the device as a network block device.
//! - [`fuse`]: the device as a file system.

pub mod fuse;
pub mod nbd;
pub mod window;
