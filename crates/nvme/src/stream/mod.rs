//! What sessions over a stream of bytes have in common, whatever protocol they speak: bytes that are not understood
//! yet, what is to be sent, and buffers that are used again.

mod input;
mod outbox;
mod planted;
mod pool;
#[cfg(test)]
pub(crate) mod testing;

use std::io::{IoSlice, IoSliceMut};

pub use input::Input;
pub use outbox::{HEAD_BYTES_MAX, Head, Outbox, Part};
pub use pool::Pool;

/// A session, as whoever moves its bytes sees it: a state machine that knows of no socket.
pub trait Duplex {
    /// Where the next bytes of the other side go, in order; no room at all where the session has enough for now.
    fn space(&mut self) -> [IoSliceMut<'_>; 2];
    /// So many bytes were put into [`Duplex::space`].
    fn filled(&mut self, bytes: usize);
    /// The other side sends no more.
    fn input_ended(&mut self);
    /// Fills `slices` with what is to be sent first; how many of them.
    fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize;
    /// Whether something is to be sent.
    fn has_output(&self) -> bool;
    /// So many bytes were sent.
    fn sent(&mut self, bytes: usize);
}
