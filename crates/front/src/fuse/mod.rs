//! A file system on a device, mounted by FUSE.
//!
//! | layer | what it does | where |
//! | --- | --- | --- |
//! | disk | a device's queues as blocks, from any thread | `disk.rs` |
//! | file system | names, data, transactions; knows of no kernel | `osier-fs` |
//! | adapter | the kernel's requests as operations | `adapter.rs` |
//! | mount | threads, the clock, the end | `mount.rs` |
//!
//! The kernel is the file system's only client, so it may keep what it has been told until it changes it itself: names,
//! attributes and pages. It collects writes (write-back cache) and gives them at fsync, close, or when it likes.

mod adapter;
mod disk;
mod mount;

pub use adapter::now;
pub use disk::{DeviceDisk, DiskError};
pub use mount::{Mount, MountConfig, take_out};
