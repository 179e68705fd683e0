//! What is to be sent: replies, in order, without copying what they carry.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use super::pool::Pool;

/// The longest fixed part of a message.
pub const HEAD_BYTES_MAX: usize = 44;

/// The fixed part of a message.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    length: u8,
}

impl Head {
    /// Nothing yet.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "an empty one is only ever begun")]
    pub fn new() -> Head {
        Head { bytes: [0; HEAD_BYTES_MAX], length: 0 }
    }

    /// With more bytes at its end.
    ///
    /// # Panics
    /// When they are more than [`HEAD_BYTES_MAX`].
    #[must_use]
    pub fn with(mut self, part: &[u8]) -> Head {
        let from = usize::from(self.length);
        self.bytes[from..from + part.len()].copy_from_slice(part);
        self.length += part.len() as u8;
        self
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// A part of a reply.
pub enum Part {
    /// Its fixed part.
    Head(Head),
    /// Bytes of a buffer, which goes to the pool when they are sent.
    Body {
        /// The buffer.
        buffer: Vec<u8>,
        /// Where in it they are.
        range: Range<usize>,
    },
}

impl Part {
    /// All of a buffer.
    #[must_use]
    pub fn message(buffer: Vec<u8>) -> Part {
        let range = 0..buffer.len();
        Part::Body { buffer, range }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Part::Head(head) => head.bytes(),
            Part::Body { buffer, range } => &buffer[range.clone()],
        }
    }
}

/// Parts that are not sent yet.
#[derive(Default)]
pub struct Outbox {
    parts: VecDeque<Part>,
    /// Bytes of the first part that are sent.
    sent: usize,
    /// Of all parts, sent or not.
    bytes: usize,
}

impl Outbox {
    /// Adds a fixed part.
    pub fn head(&mut self, head: Head) {
        self.push(Part::Head(head));
    }

    /// Adds a part of a buffer.
    pub fn body(&mut self, buffer: Vec<u8>, range: Range<usize>) {
        self.push(Part::Body { buffer, range });
    }

    /// Adds all of a buffer.
    pub fn message(&mut self, buffer: Vec<u8>) {
        self.push(Part::message(buffer));
    }

    /// Adds a part.
    pub fn push(&mut self, part: Part) {
        self.bytes += part.bytes().len();
        self.parts.push_back(part);
    }

    /// Whether everything is sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Parts that are not sent.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Bytes of those parts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills `slices` with what is to be sent first; how many of them.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut skipped = self.sent;
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&self.parts) {
            *slice = IoSlice::new(&part.bytes()[skipped..]);
            skipped = 0;
            count += 1;
        }
        count
    }

    /// So many bytes have gone.
    pub fn sent(&mut self, bytes: usize, pool: &mut Pool) {
        self.sent += bytes;
        while let Some(part) = self.parts.front() {
            let length = part.bytes().len();
            if self.sent < length {
                return;
            }
            self.sent -= length;
            self.bytes -= length;
            if let Some(Part::Body { buffer, .. }) = self.parts.pop_front() {
                pool.give(buffer);
            }
        }
    }

    /// Forgets everything: nobody reads it any more.
    pub fn clear(&mut self) {
        *self = Outbox::default();
    }
}
