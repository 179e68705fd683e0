//! NVMe/TCP: the stream of one connection, which is one queue. Sans-IO.
//!
//! ```text
//! bytes ──> Session ── Request (a command and its data) ──> whoever carries it out
//! bytes <── Session <── Response (a completion and its data) ──┘
//! ```
//!
//! [`pdu`] knows what the messages (PDUs) look like, [`Session`] what they mean. What a command means, and whose queue
//! this is, is no business of theirs ([`crate::fabrics`]).
//!
//! Sections are those of the NVMe over TCP Transport Specification 1.0; where its text was not at hand, values are
//! those of Linux's `include/linux/nvme-tcp.h` and SPDK's `include/spdk/nvmf_spec.h`.

pub mod pdu;
mod session;
#[cfg(test)]
mod testing;

pub use session::{End, Limits, Request, Response, Session};
