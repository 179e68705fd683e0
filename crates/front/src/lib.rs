//! Front ends of a device: how programs reach it.
//!
//! - [`window`]: the device's half of the CXL.mem window. The programs' half is `osier-client`.

pub mod window;
