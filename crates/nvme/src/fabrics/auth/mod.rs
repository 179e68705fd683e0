//! In-band authentication: DH-HMAC-CHAP ("NVMe In-band Authentication", "DH-HMAC-CHAP Protocol").
//!
//! ```text
//! host ── Negotiate ──► ── Challenge ──► ── Reply ──► ── Success1 ──► [── Success2 ──►]
//!           send          receive          send         receive          send
//! ```
//!
//! The host sends its messages by Authentication Send commands, and takes the controller's by Authentication Receive
//! commands. An [`Exchange`] is the controller's side, of one queue.
//!
//! Invariants:
//! 1. A queue is authenticated only when the host has answered a challenge that was made for this transaction with its
//!    own secret; and where it has challenged the controller, when it has said that it is content.
//! 2. Whatever is wrong ends the transaction by a failure with the standard's reason, and then the connection.
//! 3. Secrets and what is made of them are compared in constant time, never shown, and wiped.
//! 4. Randomness is what the caller gives.
//!
//! The specification's text was not at hand: the layouts, their names and the order of what is hashed are those of
//! Linux (`include/linux/nvme.h`, `drivers/nvme/host/auth.c`), with which this is tested.

mod dh;
mod exchange;
mod groups;
mod hash;
mod planted;
mod secret;

pub use exchange::{Exchange, MESSAGE_BYTES_MAX, RANDOM_BYTES};
pub use secret::{HOSTS_MAX, Hosts, HostsError, Secret, Secrets};
