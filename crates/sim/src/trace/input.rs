//! Bytes from the caller's reader, cut into lines or records without copying them.

use std::io::{ErrorKind, Read, Result};
use std::ops::Range;

use memchr::memchr;

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 256 << 10;
/// The longest line. Those of every format here are under 200 bytes; blkparse adds the name of a command.
pub const LINE_BYTES_MAX: usize = 4096;

/// What has been read and not yet been handed on lies in `buffer[start..end]`.
#[derive(Debug)]
pub(super) struct Input<R> {
    source: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    ended: bool,
}

/// A line, as a range of [`Input::bytes`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// Without its end (`\n` or `\r\n`).
    Whole(Range<usize>),
    /// More than [`LINE_BYTES_MAX`], and gone.
    TooLong,
}

impl<R: Read> Input<R> {
    pub(super) fn new(source: R) -> Self {
        Input { source, buffer: vec![0; BUFFER_BYTES], start: 0, end: 0, ended: false }
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The beginning of what is left, as much as fits; all of it if the second is true.
    pub(super) fn peek(&mut self) -> Result<(&[u8], bool)> {
        while !self.ended && self.end - self.start < BUFFER_BYTES {
            self.fill()?;
        }
        Ok((&self.buffer[self.start..self.end], self.ended))
    }

    pub(super) fn line(&mut self) -> Result<Option<Line>> {
        let mut searched = 0;
        let mut too_long = false;
        loop {
            if let Some(length) = memchr(b'\n', &self.buffer[self.start + searched..self.end]) {
                let line = self.take(searched + length);
                self.start += 1;
                return Ok(Some(self.checked(line, too_long)));
            }
            searched = self.end - self.start;
            if self.ended {
                if searched == 0 && !too_long {
                    return Ok(None);
                }
                let line = self.take(searched);
                return Ok(Some(self.checked(line, too_long)));
            }
            if searched > LINE_BYTES_MAX {
                too_long = true;
                self.take(searched);
                searched = 0;
            }
            self.fill()?;
        }
    }

    /// A record of this many bytes; fewer if the input ends within it.
    #[inline]
    pub(super) fn record(&mut self, bytes: usize) -> Result<Option<Range<usize>>> {
        while self.end - self.start < bytes && !self.ended {
            self.fill()?;
        }
        let length = bytes.min(self.end - self.start);
        Ok((length > 0).then(|| self.take(length)))
    }

    fn take(&mut self, bytes: usize) -> Range<usize> {
        let range = self.start..self.start + bytes;
        self.start = range.end;
        range
    }

    fn checked(&self, mut line: Range<usize>, too_long: bool) -> Line {
        if too_long || line.len() > LINE_BYTES_MAX {
            return Line::TooLong;
        }
        if self.buffer[line.clone()].ends_with(b"\r") {
            line.end -= 1;
        }
        Line::Whole(line)
    }

    /// Reads more behind what is there. A source that is interrupted is asked again.
    fn fill(&mut self) -> Result<()> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Ok(read) => {
                    self.end += read;
                    self.ended = read == 0;
                    return Ok(());
                }
                Err(cause) if cause.kind() == ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives one byte at a time, with an interruption before each.
    struct Slow<'a>(&'a [u8], bool);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(ErrorKind::Interrupted.into());
            }
            let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
            into[0] = *first;
            self.0 = rest;
            Ok(1)
        }
    }

    fn lines(source: impl Read) -> Vec<String> {
        let mut input = Input::new(source);
        let mut lines = Vec::new();
        while let Some(line) = input.line().unwrap() {
            lines.push(match line {
                Line::Whole(range) => String::from_utf8_lossy(input.bytes(range)).into_owned(),
                Line::TooLong => "too long".to_owned(),
            });
        }
        lines
    }

    #[test]
    fn lines_are_the_same_however_the_bytes_come() {
        let long = "x".repeat(LINE_BYTES_MAX);
        let text = format!("a\r\n\nb\n{long}\n{long}x\nc\n{}\nend", "y".repeat(3 * BUFFER_BYTES));
        let expected = ["a", "", "b", &long, "too long", "c", "too long", "end"];
        assert_eq!(lines(text.as_bytes()), expected);
        assert_eq!(lines(Slow(text.as_bytes(), false)), expected);
        assert_eq!(lines(&b""[..]), [""; 0]);
        assert_eq!(lines(&b"a\n"[..]), ["a"]);
        assert_eq!(lines("z".repeat(BUFFER_BYTES).as_bytes()), ["too long"]);
    }

    #[test]
    fn records_are_whole_but_for_the_last() {
        let bytes: Vec<u8> = (0..=255).cycle().take(BUFFER_BYTES + 7).collect();
        for slow in [false, true] {
            let source: Box<dyn Read> = if slow { Box::new(Slow(&bytes, false)) } else { Box::new(&bytes[..]) };
            let mut input = Input::new(source);
            assert_eq!(input.peek().unwrap(), (&bytes[..BUFFER_BYTES], false));
            let mut all = Vec::new();
            while let Some(range) = input.record(24).unwrap() {
                assert!(range.len() == 24 || all.len() + range.len() == bytes.len());
                all.extend_from_slice(input.bytes(range));
            }
            assert_eq!(all, bytes);
        }
    }
}
