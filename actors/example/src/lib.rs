//! An actor to copy. It masks every byte with a key word (exclusive or), which its own inverse undoes.
//!
//! It has one of everything that an actor can have: a parameter, both directions, a state that survives a yield, a
//! message in the log, and tests that run without a host. It protects nothing: `aes256-gcm-siv` does.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `word` | string of 1 to 32 bytes, required | what to mask with |

// In a module there is no standard library. Natively, where the tests run, there is.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_sdk::params::refuse;
use osier_actor_sdk::{Actor, Chunk, Failure, Level, Params, Progress, host};

const WORD_MAX: usize = 32;

/// Everything that the actor remembers. It is one static in linear memory: when the actor moves, it moves along.
#[derive(Debug)]
pub struct Mask {
    word: [u8; WORD_MAX],
    word_length: usize,
    /// Bytes of the unit that are done.
    done: usize,
}

impl Mask {
    /// What the module starts as. It is a constant expression, for there is no start function.
    pub const fn new() -> Mask {
        Mask { word: [0; WORD_MAX], word_length: 0, done: 0 }
    }

    /// Masking is its own inverse, so both directions come here.
    fn work(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        // A unit is begun: whatever was suspended before is void.
        if !chunk.resumed {
            self.done = 0;
        }
        // Work on `budget` bytes and no more, so that the actor can be moved soon.
        let end = chunk.input.len().min(self.done.saturating_add(chunk.budget));
        let input = chunk.input.get(self.done..end).ok_or(Failure::Other)?;
        let output = chunk.output.get_mut(self.done..end).ok_or(Failure::NoRoom)?;
        let word = &self.word[..self.word_length];
        // The place in the word follows from the place in the unit, so how the unit is cut changes nothing.
        let mut key = word.iter().cycle().skip(self.done % word.len().max(1));
        for (to, from) in output.iter_mut().zip(input) {
            *to = from ^ key.next().copied().unwrap_or(0);
        }
        self.done = end;
        if end < chunk.input.len() {
            return Ok(Progress::Yielded(end));
        }
        Ok(Progress::Done(end))
    }
}

impl Default for Mask {
    fn default() -> Self {
        Self::new()
    }
}

impl Actor for Mask {
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        // A key that is misspelt must not be ignored.
        params.only(&["word"])?;
        let word = params.text("word")?.ok_or_else(|| refuse("word", b"is missing: say what to mask with"))?;
        self.word_length = match word.copy_to(&mut self.word) {
            Some(length) if length > 0 => length,
            _ => return Err(refuse("word", b"has to have 1 to 32 bytes")),
        };
        host::log(Level::Debug, &[b"the mask is ready"]);
        Ok(())
    }

    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(chunk)
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(chunk)
    }
}

// The type, what it starts as, and what the module exports. Leave out `resume` if the actor never yields.
osier_actor_sdk::export!(Mask: Mask::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    #[test]
    fn masks_and_unmasks_in_steps_of_any_size() {
        let input: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
        let expected: Vec<u8> = input.iter().zip(b"osier".iter().cycle()).map(|(a, b)| a ^ b).collect();
        for budget in [1, 7, 4096] {
            let host = Host::with_params("word = \"osier\"\n");
            let mut actor = Mask::new();
            host.init(&mut actor).unwrap();
            let masked = host.write(&mut actor, Unit::default(), &input, budget).unwrap();
            assert_eq!(masked, expected);
            assert_eq!(host.read(&mut actor, Unit::default(), &masked, budget).unwrap(), input);
        }
    }

    #[test]
    fn bad_parameters_are_refused_by_name() {
        for (text, says) in [("", "`word` is missing"), ("word = \"\"\n", "1 to 32"), ("wort = \"x\"\n", "`wort`")] {
            let host = Host::with_params(text);
            assert_eq!(host.init(&mut Mask::new()), Err(Failure::Configuration));
            assert!(host.errors()[0].contains(says));
        }
    }
}
