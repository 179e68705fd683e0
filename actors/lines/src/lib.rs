//! What the built-in actors that work line by line have in common: three parameters and how a unit ends.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `when` | `read` (default), `write` | in which direction the actor works; in the other one units go through as they are |
//! | `malformed` | `keep` (default), `drop`, `fail` | what to do with a line that is not one JSON object |
//! | `pad` | `newline`, `zero`, `none` | what fills the unit up to the length that it had; by default `newline` on reads, so that blocks stay where they are, and `none` on writes |
//!
//! On a write with `none` the actor is lossy: what it leaves out is not stored.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::records::{Lines, Malformed, Sink, Verdict};
use osier_actor_codecs::{CodecError, Step};
use osier_actor_sdk::{Chunk, Direction, Failure, Level, Params, Progress, host};

/// The parameters that every actor of this kind knows.
pub const PARAMS: [&str; 3] = ["when", "malformed", "pad"];

/// A line-wise stage without what it does with a line.
#[derive(Debug, Clone)]
pub struct LineStage {
    when: Direction,
    malformed: Malformed,
    pad: Option<u8>,
    lines: Lines,
}

impl Default for LineStage {
    fn default() -> Self {
        Self::new()
    }
}

impl LineStage {
    /// A stage with the default parameters.
    pub const fn new() -> LineStage {
        LineStage { when: Direction::Inverse, malformed: Malformed::Keep, pad: Some(b'\n'), lines: Lines::new() }
    }

    /// Reads [`PARAMS`], and refuses what is neither among them nor in `own`.
    ///
    /// # Errors
    /// [`Failure::Configuration`].
    pub fn init(&mut self, params: &Params<'_>, own: &[&str]) -> Result<(), Failure> {
        const KNOWN_MAX: usize = 8;
        let mut known = [""; KNOWN_MAX];
        for (slot, name) in known.iter_mut().zip(PARAMS.iter().chain(own)) {
            *slot = name;
        }
        params.only(&known[..PARAMS.len() + own.len()])?;
        self.when = params.word("when", &[("read", Direction::Inverse), ("write", Direction::Forward)])?;
        let policies = [("keep", Malformed::Keep), ("drop", Malformed::Drop), ("fail", Malformed::Fail)];
        self.malformed = params.word("malformed", &policies)?;
        self.pad = match self.when {
            Direction::Inverse => params.word("pad", &[("newline", Some(b'\n')), ("zero", Some(0)), ("none", None)])?,
            Direction::Forward => params.word("pad", &[("none", None), ("newline", Some(b'\n')), ("zero", Some(0))])?,
        };
        Ok(())
    }

    /// One chunk in `direction`; `work` does one line.
    ///
    /// # Errors
    /// [`Failure::NoRoom`] when the lines grow beyond what the unit may have, [`Failure::Malformed`].
    pub fn chunk(
        &mut self,
        direction: Direction,
        chunk: Chunk<'_>,
        work: impl FnMut(&[u8], &mut Sink<'_>) -> Result<Verdict, CodecError>,
    ) -> Result<Progress, Failure> {
        if direction != self.when {
            return pass(chunk);
        }
        if !chunk.resumed {
            self.lines = Lines::new();
        }
        let step = self.lines.step(chunk.input, chunk.output, chunk.budget, self.malformed, host::newline, work);
        match step {
            Ok(Step::Yielded(consumed)) => Ok(Progress::Yielded(consumed)),
            Ok(Step::Done(written)) => self.finish(direction, chunk, written),
            Err(error) => Err(self.explain(error)),
        }
    }

    fn finish(&self, direction: Direction, chunk: Chunk<'_>, written: usize) -> Result<Progress, Failure> {
        let length = chunk.input.len();
        if let Some(byte) = self.pad {
            if written > length {
                return Err(self.explain(CodecError::NoRoom));
            }
            chunk.output.get_mut(written..length).ok_or(Failure::NoRoom)?.fill(byte);
            return Ok(Progress::Done(length));
        }
        if written == 0 && direction == Direction::Forward {
            // An extent is not empty.
            *chunk.output.first_mut().ok_or(Failure::NoRoom)? = b'\n';
            return Ok(Progress::Done(1));
        }
        Ok(Progress::Done(written))
    }

    fn explain(&self, error: CodecError) -> Failure {
        match error {
            CodecError::Malformed => {
                host::log(Level::Error, &[b"a line is not one JSON object, and `malformed` is `fail`"]);
                Failure::Malformed
            }
            CodecError::NoRoom => {
                host::log(Level::Error, &[b"the lines became longer than the unit has room for"]);
                Failure::NoRoom
            }
        }
    }
}

/// Puts a unit through as it is.
///
/// # Errors
/// [`Failure::NoRoom`].
pub fn pass(chunk: Chunk<'_>) -> Result<Progress, Failure> {
    chunk.output.get_mut(..chunk.input.len()).ok_or(Failure::NoRoom)?.copy_from_slice(chunk.input);
    Ok(Progress::Done(chunk.input.len()))
}
