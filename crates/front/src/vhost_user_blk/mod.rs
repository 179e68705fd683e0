//! A device as a disk of virtual machines: the back end of a virtio block device over the vhost-user protocol.
//!
//! - `config`: what a driver learns of the disk; pure;
//! - `request`: a chain of descriptors in the guest's memory as a request;
//! - `inflight`: what is under way, in memory that outlives this process;
//! - `ring`: a virtqueue, in a thread and with a volume of its own;
//! - `backend`: the front end's messages; `server`: where it connects.
//!
//! Sources: Virtual I/O Device 1.2, 2.7 (split virtqueues) and 5.2 (block device); the QEMU project's
//! `docs/interop/vhost-user.rst`.

mod backend;
mod config;
mod inflight;
mod request;
mod ring;
mod server;

pub use server::{Config, QUEUES_MAX, ServeError, Server};

#[cfg(test)]
mod tests;
