//! Line by line through a unit, resumable.
//!
//! A unit is cut at block borders, so its first and its last line may be parts of records. Nothing here knows
//! which: a part is not one JSON object, and what is done with it is what is done with any malformed line.

use crate::{CodecError, Step};

/// What to do with a line that is not one JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Malformed {
    /// Put it through as it is: a reader who joins units then finds the records at their borders whole.
    #[default]
    Keep,
    /// Leave it out.
    Drop,
    /// Fail with [`CodecError::Malformed`].
    Fail,
}

/// What became of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// What is in the sink is the line to put out.
    Written,
    /// The line goes out as it came.
    Unchanged,
    /// There is nothing to put out.
    Dropped,
    /// The line is not one JSON object.
    Malformed,
}

/// The output of one line, bounded by the room that is left.
#[derive(Debug)]
pub struct Sink<'a> {
    room: &'a mut [u8],
    used: usize,
}

impl Sink<'_> {
    /// Adds bytes.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`].
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), CodecError> {
        let to = self.room.get_mut(self.used..).and_then(|rest| rest.get_mut(..bytes.len()));
        to.ok_or(CodecError::NoRoom)?.copy_from_slice(bytes);
        self.used += bytes.len();
        Ok(())
    }

    /// Adds one byte.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`].
    #[inline]
    pub fn put_byte(&mut self, byte: u8) -> Result<(), CodecError> {
        *self.room.get_mut(self.used).ok_or(CodecError::NoRoom)? = byte;
        self.used += 1;
        Ok(())
    }
}

/// How far the lines of a unit are worked on.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    read: usize,
    written: usize,
}

impl Lines {
    /// At the first line.
    pub const fn new() -> Lines {
        Lines { read: 0, written: 0 }
    }

    /// Works on the lines that begin in the next `budget` bytes. `newline(input, from)` finds the next newline at or
    /// behind `from`, or the end; `work` does one line, given without its newline.
    ///
    /// # Errors
    /// Those of `work`; [`CodecError::Malformed`] if `policy` says so.
    pub fn step(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        budget: usize,
        policy: Malformed,
        newline: impl Fn(&[u8], usize) -> usize,
        mut work: impl FnMut(&[u8], &mut Sink<'_>) -> Result<Verdict, CodecError>,
    ) -> Result<Step, CodecError> {
        let stop = self.read.saturating_add(budget.max(1));
        while self.read < input.len() {
            if self.read >= stop {
                return Ok(Step::Yielded(self.read));
            }
            let end = newline(input, self.read).clamp(self.read, input.len());
            let next = (end + 1).min(input.len());
            let mut sink = Sink { room: &mut output[self.written..], used: 0 };
            let unchanged = match work(&input[self.read..end], &mut sink)? {
                Verdict::Written => false,
                Verdict::Unchanged => true,
                Verdict::Dropped => {
                    self.read = next;
                    continue;
                }
                Verdict::Malformed => match policy {
                    Malformed::Keep => true,
                    Malformed::Fail => return Err(CodecError::Malformed),
                    Malformed::Drop => {
                        self.read = next;
                        continue;
                    }
                },
            };
            if unchanged {
                sink.used = 0;
                sink.put(&input[self.read..next])?;
            } else if next > end {
                sink.put_byte(b'\n')?;
            }
            self.written += sink.used;
            self.read = next;
        }
        Ok(Step::Done(self.written))
    }
}

/// Finds a newline without a host's help.
pub fn newline(input: &[u8], from: usize) -> usize {
    input[from..].iter().position(|byte| *byte == b'\n').map_or(input.len(), |at| from + at)
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// Runs a line codec over a whole input in steps of `budget`.
    pub fn run(
        input: &[u8],
        capacity: usize,
        budget: usize,
        policy: Malformed,
        mut work: impl FnMut(&[u8], &mut Sink<'_>) -> Result<Verdict, CodecError>,
    ) -> Result<Vec<u8>, CodecError> {
        let mut output = vec![0; capacity];
        let mut lines = Lines::new();
        let mut before = 0;
        loop {
            match lines.step(input, &mut output, budget, policy, newline, &mut work)? {
                Step::Done(length) => return Ok(output[..length].to_vec()),
                Step::Yielded(consumed) => {
                    assert!(consumed > before && consumed < input.len());
                    before = consumed;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shout(line: &[u8], sink: &mut Sink<'_>) -> Result<Verdict, CodecError> {
        match line {
            b"drop" => Ok(Verdict::Dropped),
            b"bad" => Ok(Verdict::Malformed),
            b"same" => Ok(Verdict::Unchanged),
            _ => {
                sink.put(b"[")?;
                sink.put(line)?;
                sink.put_byte(b']')?;
                Ok(Verdict::Written)
            }
        }
    }

    #[test]
    fn verdicts_policies_and_borders() {
        let input = b"one\ndrop\nsame\n\nbad\nlast";
        for budget in [1, 4, 9, 1000] {
            let run = |policy| testing::run(input, 64, budget, policy, shout);
            assert_eq!(run(Malformed::Keep).unwrap(), b"[one]\nsame\n[]\nbad\n[last]");
            assert_eq!(run(Malformed::Drop).unwrap(), b"[one]\nsame\n[]\n[last]");
            assert_eq!(run(Malformed::Fail), Err(CodecError::Malformed));
        }
        assert_eq!(testing::run(input, 24, 5, Malformed::Keep, shout).unwrap().len(), 24);
        assert_eq!(testing::run(input, 23, 5, Malformed::Keep, shout), Err(CodecError::NoRoom));
        assert_eq!(testing::run(b"bad", 2, 5, Malformed::Keep, shout), Err(CodecError::NoRoom));
    }
}
