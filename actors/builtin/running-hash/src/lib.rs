//! Appends to every unit that is written the running hash of its stream and the unit's number in it: 16 bytes.
//!
//! It is the actor that a move must not disturb. It keeps where each stream stands twice: in the shared state, which is
//! committed with each request, and in its linear memory, which moves with it. At every unit it compares the two, so a
//! move or a recovery that lost or repeated a request, or left memory behind, fails the request instead of going on.
//!
//! | case | meaning |
//! | --- | --- |
//! | memory knows nothing of the stream | it was made afresh; the state is taken |
//! | both the same | the usual case |
//! | memory is at a later unit | the request that took it there failed or is replayed; the state is taken |
//! | anything else | memory was lost or mixed up; the request fails as an integrity error |
//!
//! On a read the trailer is stripped; its shape is checked, for the hash itself needs the units before. Takes no
//! parameters.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::hash::{POSITION_BYTES, Position, STRIPE_BYTES, TRAILER_BYTES, Xxh64, strip};
use osier_actor_sdk::host::{self, STREAMS_MAX};
use osier_actor_sdk::{Actor, Chunk, Failure, Level, Progress};

/// The actor.
#[derive(Debug)]
pub struct RunningHash {
    /// Where each stream stands; `units` is 0 for one that is not known.
    memory: [Position; STREAMS_MAX],
    /// Before the unit that is being worked on.
    base: Position,
    hash: Xxh64,
    done: usize,
}

impl Default for RunningHash {
    fn default() -> Self {
        Self::new()
    }
}

const NOWHERE: Position = Position { hash: 0, units: 0, sequence: 0 };

impl RunningHash {
    /// The actor with an empty memory.
    pub const fn new() -> RunningHash {
        RunningHash { memory: [NOWHERE; STREAMS_MAX], base: NOWHERE, hash: Xxh64::new(0), done: 0 }
    }

    fn begin(&mut self) -> Result<(), Failure> {
        let remembered = *self.memory.get(host::stream()).ok_or(Failure::Other)?;
        let committed = read_state()?;
        if remembered != NOWHERE && remembered != committed && remembered.units <= committed.units {
            host::log(Level::Error, &[b"the running hash in linear memory is not the one in the shared state"]);
            return Err(Failure::Integrity);
        }
        self.base = committed;
        self.hash = Xxh64::new(committed.hash);
        self.done = 0;
        Ok(())
    }

    /// Copies and hashes the next `budget` bytes, in whole stripes; true when the rest of the unit is all that is left.
    fn advance(&mut self, input: &[u8], output: &mut [u8], budget: usize) -> Result<bool, Failure> {
        let wanted = budget.next_multiple_of(STRIPE_BYTES).min(input.len() - self.done);
        let end = self.done + wanted - wanted % STRIPE_BYTES;
        let piece = &input[self.done..end];
        output.get_mut(self.done..end).ok_or(Failure::NoRoom)?.copy_from_slice(piece);
        self.hash.update(piece);
        self.done = end;
        Ok(input.len() - end < STRIPE_BYTES)
    }
}

fn read_state() -> Result<Position, Failure> {
    let mut room = [0; POSITION_BYTES];
    match host::state_get(&mut room)? {
        0 => Ok(NOWHERE),
        length => Position::decode(room.get(..length).ok_or(Failure::Integrity)?).ok_or(Failure::Integrity),
    }
}

impl Actor for RunningHash {
    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        if !chunk.resumed {
            self.begin()?;
        }
        if !self.advance(chunk.input, chunk.output, chunk.budget.min(1 << 20))? {
            return Ok(Progress::Yielded(self.done));
        }
        let rest = &chunk.input[self.done..];
        let (length, end) = (chunk.input.len(), chunk.input.len() + TRAILER_BYTES);
        let next =
            Position { hash: self.hash.clone().finish(rest), units: self.base.units + 1, sequence: host::sequence() };
        let output = chunk.output.get_mut(self.done..end).ok_or(Failure::NoRoom)?;
        output[..rest.len()].copy_from_slice(rest);
        output[length - self.done..].copy_from_slice(&next.trailer());
        host::state_put(&next.encode())?;
        *self.memory.get_mut(host::stream()).ok_or(Failure::Other)? = next;
        Ok(Progress::Done(end))
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let length = strip(chunk.input).ok_or(Failure::Malformed)?;
        chunk.output.get_mut(..length).ok_or(Failure::NoRoom)?.copy_from_slice(&chunk.input[..length]);
        Ok(Progress::Done(length))
    }
}

osier_actor_sdk::export!(RunningHash: RunningHash::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    fn unit(stream: usize, sequence: u64, index: u32) -> Unit {
        Unit { stream, sequence, unit: index, units: 4, ..Unit::default() }
    }

    fn bytes(sequence: u64, index: u32) -> Vec<u8> {
        (0..4096u64).map(|i| ((i * sequence + u64::from(index)) >> 3) as u8).collect()
    }

    /// What a stream of requests of four units each puts out, in steps of `budget`.
    fn stream(host: &Host, actor: &mut RunningHash, sequences: core::ops::Range<u64>, budget: usize) -> Vec<Vec<u8>> {
        let write = |(sequence, index)| host.write(actor, unit(3, sequence, index), &bytes(sequence, index), budget);
        sequences
            .flat_map(|sequence| (0..4).map(move |index| (sequence, index)))
            .map(write)
            .map(Result::unwrap)
            .collect()
    }

    #[test]
    fn the_trailer_is_the_chained_hash() {
        let (host, mut actor) = (Host::default(), RunningHash::new());
        let (mut hash, mut count) = (0, 0u64);
        for (out, number) in stream(&host, &mut actor, 1..5, 1000).iter().zip(0..) {
            let content = bytes(number / 4 + 1, (number % 4) as u32);
            hash = Xxh64::new(hash).finish(&content);
            count += 1;
            assert_eq!(out[..4096], content);
            assert_eq!(out[4096..4104], hash.to_le_bytes());
            assert_eq!(out[4104..], count.to_le_bytes());
            assert_eq!(host.read(&mut actor, unit(9, 1, 0), out, 100).unwrap(), content);
        }
    }

    #[test]
    fn steps_and_a_fresh_memory_do_not_change_it() {
        let host = Host::default();
        let expected = stream(&host, &mut RunningHash::new(), 1..7, usize::MAX);
        for budget in [1, 33, 4095, 5000] {
            let (host, mut actor) = (Host::default(), RunningHash::new());
            let mut out = stream(&host, &mut actor, 1..4, budget);
            out.extend(stream(&host, &mut RunningHash::new(), 4..7, budget));
            assert_eq!(out, expected);
        }
    }

    #[test]
    fn a_replay_goes_on_from_the_committed_state() {
        let host = Host::default();
        let expected = stream(&host, &mut RunningHash::new(), 1..7, 4096);
        let (host, mut actor) = (Host::default(), RunningHash::new());
        stream(&host, &mut actor, 1..6, 4096);
        host.roll_back(3, 2);
        assert_eq!(stream(&host, &mut actor, 3..7, 4096), expected[8..]);
    }

    #[test]
    fn memory_that_was_left_behind_is_found() {
        let (host, mut actor) = (Host::default(), RunningHash::new());
        stream(&host, &mut actor, 1..3, 4096);
        let mut behind = RunningHash { memory: actor.memory, ..RunningHash::new() };
        stream(&host, &mut actor, 3..4, 4096);
        assert_eq!(host.write(&mut behind, unit(3, 4, 0), &bytes(4, 0), 100), Err(Failure::Integrity));
        assert!(host.errors()[0].contains("not the one in the shared state"));
        let mut mixed_up = RunningHash { memory: actor.memory, ..RunningHash::new() };
        mixed_up.memory[3].hash ^= 1;
        assert_eq!(host.write(&mut mixed_up, unit(3, 4, 0), &bytes(4, 0), 100), Err(Failure::Integrity));
    }

    #[test]
    fn streams_do_not_mix_and_bad_shapes_are_refused() {
        let (host, mut actor) = (Host::default(), RunningHash::new());
        let one = host.write(&mut actor, unit(0, 1, 0), &bytes(1, 0), 100).unwrap();
        let two = host.write(&mut actor, unit(1, 1, 0), &bytes(1, 0), 100).unwrap();
        assert_eq!(one, two);
        for bad in [&[0u8; 100][..], &[1; 16], &[1; 3]] {
            assert_eq!(host.read(&mut actor, unit(2, 1, 0), bad, 100), Err(Failure::Malformed));
        }
    }
}
