//! Recordings: every input of the core in order with its time stamp, so that a run in real time can be replayed in
//! virtual time and compared bit for bit (`docs/formats-recording.md`).
//!
//! - [`Recorded`] is a [`Device`](crate::Device) whose inputs go to a [`Tape`], and in blocks to a [`Sink`];
//! - [`RecordedWindow`] is the same of a [`Window`](crate::window::Window);
//! - [`Replay`] gives them to a core again, and stops at the first output that differs;
//! - the table of inputs is in `input`: a new kind is a line there.
//!
//! Invariants:
//! 1. What is recorded decides everything that the core does: a replay reads no file, no clock and no medium.
//! 2. No payload is recorded that fits its checksum: the core looks at payloads by length and checksum alone, so
//!    others that agree in both (`stand_in`) have the same effect.
//! 3. Recording changes nothing that the core does, and never waits while the device serves: the sink takes a block or
//!    refuses it, and then the recording ends and says so.

mod block;
mod bounds;
mod input;
mod replay;
mod stand_in;
mod tape;
#[cfg(test)]
mod tests;
mod window;
mod window_replay;
#[cfg(test)]
mod window_tests;
mod wire;

pub use block::{BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockHeader, MAGIC, Next, RecordingError, VERSION, read_block};
pub use replay::{Difference, Ending, Figures, Life, Replay, ReplayError, meaning};
pub use tape::{Origin, Recorded, Sink, Tape, Urgency, stopped_block};
pub use window::{RecordedWindow, WindowOrigin};
