//! Shared state of an actor: what outlives its linear memory.
//!
//! One object an actor lies in the shared region; for each stream it holds a ring of versions, each made
//! by the request of one sequence. A version counts from the moment that its request is committed: after a
//! death the newest one at or below the stream's gate is taken and later ones are dropped, so that a replay
//! begins from what the last committed request left.
//!
//! | offset in a stream's part | content |
//! | --- | --- |
//! | 0 | u64: the place of the next version |
//! | 64 + i * 320 | version i: sequence u64, length u32, CRC-32C u32, 256 bytes, padding |
//!
//! The CRC covers sequence, length and the bytes. A version torn by a kill has a wrong one and is not there.
//!
//! Invariant: a version at or below the gate is never overwritten while it is the newest such one. Each
//! request in flight puts at most one version, and the ring has more places than there are slots.

use std::io;
use std::sync::atomic::Ordering;

use osier_domain::STREAMS_MAX;
use osier_domain::arena::Layout;

use crate::abi::STATE_BYTES_MAX;
use crate::segment::{MACHINE_PAGE_BYTES, Mapping, Segment};

/// The fewest versions that are kept for a stream.
const VERSIONS_MIN: u32 = 64;
/// The most.
const VERSIONS_MAX: u32 = 1024;
const HEAD_BYTES: u64 = 64;
const VERSION_BYTES: u64 = 320;
const FIELD_BYTES: usize = 16;
const _: () = assert!(FIELD_BYTES + STATE_BYTES_MAX <= VERSION_BYTES as usize);

/// The shared state of one actor.
#[derive(Debug)]
pub struct StateRing {
    mapping: Mapping,
    versions: u32,
}

/// What a place of the ring holds.
struct Version {
    sequence: u64,
    length: usize,
    bytes: [u8; STATE_BYTES_MAX],
}

impl StateRing {
    /// Versions a stream for an arena of this many slots; `None` if there are too many slots for a ring.
    fn versions(layout: &Layout) -> Option<u32> {
        let versions = (u32::from(layout.slots) + 2).max(VERSIONS_MIN);
        (versions <= VERSIONS_MAX).then_some(versions)
    }

    /// Bytes of the object that one actor's state needs. `None`: an arena of that many slots cannot be used
    /// with actors that keep state.
    pub fn object_bytes(layout: &Layout) -> Option<u64> {
        let stream = HEAD_BYTES + u64::from(StateRing::versions(layout)?) * VERSION_BYTES;
        Some((stream * STREAMS_MAX as u64).next_multiple_of(MACHINE_PAGE_BYTES))
    }

    /// The state that lies in `segment`; a segment of zeros is one without versions.
    ///
    /// # Errors
    /// What mapping says.
    ///
    /// # Panics
    /// If the segment has another length than [`StateRing::object_bytes`] says.
    pub fn new(segment: &Segment, layout: &Layout) -> io::Result<StateRing> {
        assert_eq!(Some(segment.bytes()), StateRing::object_bytes(layout), "bytes of a shared state's segment");
        let versions = StateRing::versions(layout).unwrap_or(VERSIONS_MAX);
        Ok(StateRing { mapping: Mapping::new(segment)?, versions })
    }

    /// The newest version at or below `sequence`, into `out`; its length, 0 if there is none. `None` if it
    /// does not fit.
    pub fn get(&self, stream: u16, sequence: u64, out: &mut [u8]) -> Option<usize> {
        let head = self.head(stream);
        // Bounded by the ring.
        for back in 1..=self.versions {
            match self.read(stream, self.before(head, back)) {
                Some(version) if version.sequence <= sequence => {
                    out.get_mut(..version.length)?.copy_from_slice(&version.bytes[..version.length]);
                    return Some(version.length);
                }
                Some(_) => {}
                None => return Some(0),
            }
        }
        Some(0)
    }

    /// Sets the version of `sequence`, replacing one that it put before.
    ///
    /// # Panics
    /// If `bytes` are more than [`STATE_BYTES_MAX`].
    pub fn put(&self, stream: u16, sequence: u64, bytes: &[u8]) {
        assert!(bytes.len() <= STATE_BYTES_MAX);
        let head = self.head(stream);
        let newest = self.before(head, 1);
        let again = self.read(stream, newest).is_some_and(|v| v.sequence == sequence);
        let place = if again { newest } else { head };
        let at = self.offset(stream, place);
        let mut field = [0u8; FIELD_BYTES];
        // No CRC first: between here and the end of this function the place holds no version.
        self.mapping.write(at, &field);
        self.mapping.write(at + FIELD_BYTES as u64, bytes);
        field[0..8].copy_from_slice(&sequence.to_le_bytes());
        field[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&field[..12]), bytes);
        field[12..16].copy_from_slice(&crc.to_le_bytes());
        self.mapping.write(at, &field);
        if !again {
            self.set_head(stream, (head + 1) % self.versions);
        }
    }

    /// Drops the version that the request of `sequence` put, if it did: the request failed.
    pub fn discard(&self, stream: u16, sequence: u64) {
        let newest = self.before(self.head(stream), 1);
        if self.read(stream, newest).is_some_and(|v| v.sequence == sequence) {
            self.mapping.zero(self.offset(stream, newest), FIELD_BYTES);
            self.set_head(stream, newest);
        }
    }

    /// Drops, for each stream, what is above its gate, and what a kill tore.
    pub fn roll_back(&self, gates: &[u64; STREAMS_MAX]) {
        for (stream, gate) in (0u16..).zip(gates) {
            let mut best: Option<(u32, u64)> = None;
            for place in 0..self.versions {
                match self.read(stream, place) {
                    Some(v) if v.sequence <= *gate => {
                        if best.is_none_or(|(_, sequence)| v.sequence > sequence) {
                            best = Some((place, v.sequence));
                        }
                    }
                    _ => self.mapping.zero(self.offset(stream, place), FIELD_BYTES),
                }
            }
            self.set_head(stream, best.map_or(0, |(place, _)| (place + 1) % self.versions));
        }
    }

    fn stream(&self, stream: u16) -> u64 {
        assert!(usize::from(stream) < STREAMS_MAX, "stream {stream}");
        u64::from(stream) * (HEAD_BYTES + u64::from(self.versions) * VERSION_BYTES)
    }

    fn offset(&self, stream: u16, place: u32) -> u64 {
        self.stream(stream) + HEAD_BYTES + u64::from(place) * VERSION_BYTES
    }

    /// The place that lies `back` places, 1 to the ring's length, before `place`.
    fn before(&self, place: u32, back: u32) -> u32 {
        (place + self.versions - back) % self.versions
    }

    fn head(&self, stream: u16) -> u32 {
        // What another process left there is a place of the ring, whatever it says.
        let head = self.mapping.word64(self.stream(stream)).load(Ordering::Acquire);
        (head % u64::from(self.versions)) as u32
    }

    fn set_head(&self, stream: u16, head: u32) {
        assert!(head < self.versions);
        self.mapping.word64(self.stream(stream)).store(u64::from(head), Ordering::Release);
    }

    fn read(&self, stream: u16, place: u32) -> Option<Version> {
        let at = self.offset(stream, place);
        let mut field = [0u8; FIELD_BYTES];
        self.mapping.read(at, &mut field);
        let word = |i: usize| u32::from_le_bytes([field[i], field[i + 1], field[i + 2], field[i + 3]]);
        let length = word(8) as usize;
        let mut version =
            Version { sequence: u64::from(word(0)) | u64::from(word(4)) << 32, length, bytes: [0; STATE_BYTES_MAX] };
        let bytes = version.bytes.get_mut(..length)?;
        self.mapping.read(at + FIELD_BYTES as u64, bytes);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&field[..12]), bytes);
        (version.sequence > 0 && crc == word(12)).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { slots: 8, request_blocks_max: 4, unit_blocks: 1 };

    fn ring() -> (Segment, StateRing) {
        let segment = Segment::anonymous(c"state", StateRing::object_bytes(&LAYOUT).unwrap()).unwrap();
        let ring = StateRing::new(&segment, &LAYOUT).unwrap();
        (segment, ring)
    }

    fn get(ring: &StateRing, stream: u16, sequence: u64) -> Vec<u8> {
        let mut out = [0u8; STATE_BYTES_MAX];
        let length = ring.get(stream, sequence, &mut out).unwrap();
        out[..length].to_vec()
    }

    #[test]
    fn the_newest_version_at_or_below_is_seen_by_both_sides() {
        let (segment, here) = ring();
        let there = StateRing::new(&segment, &LAYOUT).unwrap();
        assert_eq!(get(&here, 3, 9), b"");
        here.put(3, 1, b"one");
        there.put(3, 2, b"two");
        here.put(3, 2, b"two again");
        assert_eq!(get(&there, 3, 2), b"two again");
        assert_eq!(get(&there, 3, 1), b"one");
        assert_eq!(get(&there, 4, 2), b"");
        assert_eq!(here.get(3, 2, &mut [0; 2]), None);
        here.discard(3, 1);
        assert_eq!(get(&there, 3, 2), b"two again", "only the newest can be discarded");
        here.discard(3, 2);
        assert_eq!(get(&there, 3, 2), b"one");
    }

    /// A small generator: every run of a test is the same, and a failure prints the seed.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % bound
        }
    }

    /// Against a plain map: puts, failures and deaths at random, never more in flight than slots.
    #[test]
    fn agrees_with_a_map_over_random_requests_and_deaths() {
        for seed in 0..40 {
            let (_segment, ring) = ring();
            let mut random = Random(seed);
            let mut model: std::collections::BTreeMap<u64, Vec<u8>> = std::collections::BTreeMap::new();
            let (mut gate, mut next) = (0u64, 1u64);
            for step in 0..2000 {
                match random.below(20) {
                    0 => {
                        // A death: everything above the gate is replayed; the last put may be torn.
                        if random.below(2) == 0 {
                            let head = ring.head(2);
                            ring.mapping.write(ring.offset(2, head), &[0xee; 30]);
                        }
                        let mut gates = [0; STREAMS_MAX];
                        gates[2] = gate;
                        ring.roll_back(&gates);
                        model.retain(|sequence, _| *sequence <= gate);
                        next = gate + 1;
                    }
                    1..=8 => gate += u64::from(gate + 1 < next),
                    _ if next - gate <= u64::from(LAYOUT.slots) => {
                        let sequence = next;
                        next += 1;
                        let newest = model.range(..=sequence).next_back().map_or(&[][..], |(_, v)| v);
                        assert_eq!(get(&ring, 2, sequence), newest, "seed {seed} step {step}");
                        for _ in 0..random.below(3) {
                            let bytes = vec![random.below(256) as u8; random.below(257) as usize];
                            ring.put(2, sequence, &bytes);
                            model.insert(sequence, bytes);
                        }
                        if random.below(10) == 0 {
                            ring.discard(2, sequence);
                            model.remove(&sequence);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    #[test]
    fn a_torn_version_is_not_there() {
        let (_segment, ring) = ring();
        ring.put(0, 1, b"one");
        ring.put(0, 2, b"two");
        ring.mapping.write(ring.offset(0, 1) + 17, b"X");
        ring.roll_back(&[2; STREAMS_MAX]);
        assert_eq!(get(&ring, 0, 2), b"one");
    }

    #[test]
    fn too_many_slots_for_state_are_known_beforehand() {
        assert!(StateRing::object_bytes(&Layout { slots: 1022, ..LAYOUT }).is_some());
        assert!(StateRing::object_bytes(&Layout { slots: 1023, ..LAYOUT }).is_none());
    }
}
