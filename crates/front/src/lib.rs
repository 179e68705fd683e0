//! Front ends of a device: how programs reach it.
//!
//! - [`window`]: the device's half of the CXL.mem window. The programs' half is `osier-client`.
//! - [`nbd`]: the device as a network block device.
//! - [`nvme_tcp`]: the device as an NVMe subsystem over TCP.
//!
//! The last two serve anything that is a [`volume::Volume`]; [`DeviceExport`] is a device.

mod device;
mod listen;
#[cfg(test)]
#[path = "../tests/nbd/memory.rs"]
mod memory;
pub mod nbd;
pub mod nvme_tcp;
mod sys;
pub mod volume;
pub mod window;

pub use device::DeviceExport;
pub use listen::ListenError;
