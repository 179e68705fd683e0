//! What is to be sent: replies, in order, without copying what they carry.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;

use super::pool::Pool;
use super::wire::Head;

/// A part of a reply.
pub enum Part {
    Head(Head),
    /// Bytes of a buffer, which goes to the pool when they are sent.
    Body {
        buffer: Vec<u8>,
        range: Range<usize>,
    },
}

impl Part {
    /// All of a buffer.
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
    pub fn head(&mut self, head: Head) {
        self.push(Part::Head(head));
    }

    pub fn body(&mut self, buffer: Vec<u8>, range: Range<usize>) {
        self.push(Part::Body { buffer, range });
    }

    pub fn message(&mut self, buffer: Vec<u8>) {
        self.push(Part::message(buffer));
    }

    pub fn push(&mut self, part: Part) {
        self.bytes += part.bytes().len();
        self.parts.push_back(part);
    }

    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub fn parts(&self) -> usize {
        self.parts.len()
    }

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
