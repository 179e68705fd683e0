//! A device as a network block device (NBD): what `docs/nbd.md` promises.
//!
//! ```text
//! socket ─► Session (pure: bytes ◄► requests) ─► Bytes (byte ranges ◄► whole blocks) ─► Volume (the device)
//! ```
//!
//! `wire` knows what messages look like, `session` what they mean, `bytes` cuts any range of bytes
//! into operations on a [`Volume`](volume::Volume), and [`server`] moves bytes between sockets and sessions: one thread
//! a connection.

mod bytes;
mod connection;
mod device;
mod lock;
#[cfg(test)]
#[path = "../../tests/nbd/memory.rs"]
mod memory;
mod outbox;
mod planted;
mod pool;
pub mod server;
mod session;
mod slab;
mod span;
mod sys;
#[cfg(test)]
mod testing;
pub mod volume;
mod wire;

pub use device::DeviceExport;
pub use server::{Config, ServeError, Server};
pub use session::Limits;
pub use volume::{Export, Volume};
