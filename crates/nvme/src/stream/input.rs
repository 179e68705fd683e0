//! Bytes of a client that are not understood yet.

/// A buffer of fixed size, filled at its end and emptied at its front.
pub struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Bytes of the stream, staged or still to come, that belong to something refused.
    skipped: u64,
}

impl Input {
    /// A buffer of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Input {
        Input { bytes: vec![0; bytes], start: 0, end: 0, skipped: 0 }
    }

    /// Whether nothing is there.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// What is there.
    #[must_use]
    pub fn staged(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Lets go of the first bytes.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn consume(&mut self, bytes: usize) {
        self.start += bytes;
        assert!(self.start <= self.end);
    }

    /// The next bytes, if there are so many.
    pub fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let taken = *self.staged().first_chunk()?;
        self.consume(N);
        Some(taken)
    }

    /// Lets go of the next bytes, whether they are there yet or not.
    pub fn skip_more(&mut self, bytes: u64) {
        self.skipped += bytes;
        self.skip();
    }

    /// Whether bytes that are still to come are let go.
    #[must_use]
    pub fn is_skipping(&self) -> bool {
        self.skipped > 0
    }

    /// Lets go of what is there of the bytes to be skipped.
    pub fn skip(&mut self) {
        let there = self.skipped.min((self.end - self.start) as u64);
        self.skipped -= there;
        self.start += there as usize;
    }

    /// Room for more.
    pub fn free(&mut self) -> &mut [u8] {
        // What is not understood yet is the front of one message, so it is short, or seldom.
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }

    /// So many bytes were put into [`Input::free`].
    ///
    /// # Panics
    /// When it has less room.
    pub fn filled(&mut self, bytes: usize) {
        self.end += bytes;
        assert!(self.end <= self.bytes.len());
    }
}
