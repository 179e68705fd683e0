//! A device as a network block device (NBD): what `docs/nbd.md` promises.
//!
//! ```text
//! socket ─► Session (pure: bytes ◄► requests) ─► Bytes (byte ranges ◄► whole blocks) ─► Volume (the device)
//! ```
//!
//! `wire` knows what messages look like, `session` what they mean, `bytes` cuts any range of bytes
//! into operations on a [`Volume`](crate::volume::Volume), and [`server`] moves bytes between sockets and sessions: one
//! thread a connection.

mod bytes;
mod connection;
mod lock;
mod planted;
pub mod server;
mod session;
mod slab;
mod span;
#[cfg(test)]
mod testing;
mod wire;

pub use server::{Config, ServeError, Server};
pub use session::Limits;
