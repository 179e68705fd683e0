//! A device as an NVMe subsystem over TCP: what `docs/nvme-tcp.md` promises.
//!
//! ```text
//! socket ─► tcp::Session (pure: bytes ◄► commands) ─► fabrics::Target (pure: whose queue it is, what commands mean)
//!                                                 └─► Blocks (commands ◄► operations) ─► Volume (the device)
//! ```
//!
//! The first two are `osier_nvme`'s. `server` moves bytes between sockets and sessions: one thread a connection, which
//! is one queue. What connections share is the target, behind one lock that nobody holds while it waits.

mod blocks;
mod connection;
mod server;

pub use osier_nvme::fabrics::auth::Hosts;
pub use server::{Config, ServeError, Server};
