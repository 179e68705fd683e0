//! Front ends of a device: how programs reach it.
//!
//! - [`window`]: the device's half of the CXL.mem window. The programs' half is `osier-client`.
//! - [`nbd`]: the device as a network block device.
//! - [`nvme_tcp`]: the device as an NVMe subsystem over TCP.
//! - [`vhost_user_blk`]: the device as a disk of virtual machines.
//! - [`fuse`]: the device as a file system.
//! - [`dashboard`]: what a device does, as a page, as JSON and as metrics.
//!
//! [`nbd`], [`nvme_tcp`] and [`vhost_user_blk`] serve anything that is a [`volume::Volume`]; [`DeviceExport`] is a device.

pub mod dashboard;
mod device;
pub mod fuse;
mod line;
mod listen;
#[cfg(test)]
#[path = "../tests/common/memory.rs"]
mod memory;
pub mod nbd;
pub mod nvme_tcp;
mod sys;
pub mod tls;
pub mod vhost_user_blk;
pub mod volume;
pub mod window;

pub use device::DeviceExport;
pub use listen::ListenError;
