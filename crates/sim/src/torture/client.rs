//! The clients: what they ask, and whether the answers are right.
//!
//! A stream is a queue through one pipeline. Three streams write, each to blocks of its own; one trims
//! and flushes, and keeps off blocks that are being written; one reads anywhere. So the versions of a
//! block have one order, and a read's answer can be checked against those that may be the newest.

use std::collections::BTreeMap;

use osier_device::Status;
use osier_domain::arena::{Buffer, REQUEST_OFFSET, SLOT_FREE, SLOT_SUBMITTED, STATE_OFFSET, Unit};
use osier_domain::message::{FLAG_FUA, Request};
use osier_domain::{Descriptor, Kind, Message, Opcode, SlotId, StreamId, Tag};

use super::actors::{
    BLOCK, FULL, POISON, REQUEST_BLOCKS_MAX, SEAL, SLOTS, Shared, Tally, UNIT_BLOCKS, before_tally, tally_hash,
};
use crate::Rng;

/// The streams: three that write, one that trims and flushes, one that reads.
pub(super) const STREAMS: u16 = 5;
const WRITERS: u16 = 3;
const TRIMS: StreamId = StreamId(3);
const READS: StreamId = StreamId(4);
/// Blocks that one writing stream has.
const REGION_BLOCKS: u64 = 160;
/// Blocks that the clients use.
pub(super) const BLOCKS: u64 = REGION_BLOCKS * WRITERS as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Zero,
    Write { stream: StreamId, sequence: u64, index: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    InFlight,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug)]
struct Version {
    source: Source,
    /// The request that makes it so.
    by: (StreamId, u64),
    state: State,
}

struct InFlight {
    request: Request,
    /// Of a read: for each block the newest version that was done when it began.
    oldest: Vec<usize>,
}

pub(super) struct Client {
    rng: Rng,
    /// Requests of each stream to come in all.
    total: u64,
    next: [u64; STREAMS as usize],
    done: [u64; STREAMS as usize],
    in_flight: BTreeMap<(StreamId, u64), InFlight>,
    /// Every version of every block, oldest first.
    blocks: Vec<Vec<Version>>,
    /// What the tally of the first stream should have put out: by sequence, for each unit.
    tallies: BTreeMap<u64, Vec<u64>>,
    tally: u64,
    seen_tallies: Vec<Tally>,
    /// Of the last phase: the first block that was not asked for yet.
    last_reads_from: Option<u64>,
    pub(super) failed: u64,
    /// Requests that the device refused.
    pub(super) refused: u64,
    pub(super) blocks_compared: u64,
}

impl Client {
    pub(super) fn new(total: u64, rng: Rng) -> Client {
        let zero = Version { source: Source::Zero, by: (READS, 0), state: State::Done };
        Client {
            rng,
            total,
            next: [1; STREAMS as usize],
            done: [0; STREAMS as usize],
            in_flight: BTreeMap::new(),
            blocks: vec![vec![zero]; usize::try_from(BLOCKS).expect("few")],
            tallies: BTreeMap::new(),
            tally: 0,
            seen_tallies: Vec::new(),
            last_reads_from: None,
            failed: 0,
            refused: 0,
            blocks_compared: 0,
        }
    }

    /// The last sequence of a stream that the client was told of.
    pub(super) fn delivered(&self, stream: u16) -> u64 {
        self.done[usize::from(stream)]
    }

    /// Requests that completed.
    pub(super) fn completed(&self) -> u64 {
        self.done.iter().sum()
    }

    /// Whether everything that was asked was answered, and nothing more is to be asked.
    pub(super) fn is_idle(&self) -> bool {
        let asked = match self.last_reads_from {
            Some(from) => from >= BLOCKS,
            None => self.next.iter().all(|next| *next > self.total),
        };
        asked && self.in_flight.is_empty()
    }

    /// From now on every block is read once.
    pub(super) fn begin_last_reads(&mut self) {
        assert!(self.in_flight.is_empty(), "only when all is quiet");
        self.last_reads_from = Some(0);
    }

    /// Puts the next request of some stream into a slot, if one is to be made now.
    pub(super) fn draw(&mut self, shared: &mut Shared) -> Option<Request> {
        let slot = (0..SLOTS).find(|slot| state(shared, *slot) == SLOT_FREE)?;
        let request = match self.last_reads_from {
            Some(from) => self.last_read(slot, from)?,
            None => self.any(slot)?,
        };
        self.next[usize::from(request.stream.0)] += 1;
        let oldest = self.enter(&request);
        self.in_flight.insert((request.stream, request.sequence), InFlight { request, oldest });
        if is_write(&request) {
            for index in 0..request.descriptor.blocks {
                let offset = shared.layout.unit_offset(Buffer::Raw, 0, index);
                let content = content(request.stream, request.sequence, index);
                shared.slot_mut(slot, offset, BLOCK).copy_from_slice(&content);
            }
        }
        shared.failed.remove(&slot);
        fill(shared, &request);
        Some(request)
    }

    fn any(&mut self, slot: u16) -> Option<Request> {
        let stream = StreamId(u16::try_from(self.rng.below(u64::from(STREAMS))).expect("few"));
        if self.next[usize::from(stream.0)] > self.total {
            return None;
        }
        let blocks = self.rng.between(1, u64::from(REQUEST_BLOCKS_MAX));
        let (first, room) = match stream {
            TRIMS | READS => (0, BLOCKS),
            writer => (u64::from(writer.0) * REGION_BLOCKS, REGION_BLOCKS),
        };
        let slba = first + self.rng.below(room - blocks + 1);
        let mut request = self.request(stream, slot, slba, u32::try_from(blocks).expect("few"));
        let descriptor = &mut request.descriptor;
        match stream {
            READS => descriptor.opcode = Opcode::Read,
            TRIMS if self.rng.one_in(4) => (descriptor.opcode, descriptor.blocks) = (Opcode::Flush, 0),
            TRIMS => descriptor.opcode = Opcode::Trim,
            StreamId(2) => descriptor.opcode = Opcode::Passthrough,
            StreamId(1) => descriptor.tag = SEAL,
            _ => {
                descriptor.tag = FULL;
                // Compress and scramble may be left out.
                descriptor.flags = u16::try_from(self.rng.below(4)).expect("few");
            }
        }
        if is_write(&request) && self.rng.one_in(12) {
            request.descriptor.flags |= FLAG_FUA;
        }
        let meets = |other: &InFlight| overlap(&other.request.descriptor, &request.descriptor);
        let changes = |other: &InFlight| other.request.stream != READS;
        let writers = self.in_flight.values().filter(|other| changes(other) && other.request.stream != stream);
        // Commands in flight have no order, so a client that wants one waits.
        if request.stream != READS && writers.into_iter().any(meets) { None } else { Some(request) }
    }

    fn last_read(&mut self, slot: u16, from: u64) -> Option<Request> {
        let blocks = u64::from(REQUEST_BLOCKS_MAX).min(BLOCKS - from);
        if blocks == 0 {
            return None;
        }
        self.last_reads_from = Some(from + blocks);
        let mut request = self.request(READS, slot, from, u32::try_from(blocks).expect("few"));
        request.descriptor.opcode = Opcode::Read;
        Some(request)
    }

    fn request(&self, stream: StreamId, slot: u16, slba: u64, blocks: u32) -> Request {
        let descriptor = Descriptor {
            opcode: Opcode::Write,
            unit_blocks: UNIT_BLOCKS,
            flags: 0,
            tag: Tag::NONE,
            slot: SlotId(slot),
            units: 0,
            blocks,
            slba,
            output_bytes: 0,
            state_handle: 0,
        };
        let sequence = self.next[usize::from(stream.0)];
        Request { descriptor, stream, sequence, visited: 0, status: Status::SUCCESS, fetched: false, output: 0 }
    }

    /// Notes what a request will change, or, of a read, what it may see.
    fn enter(&mut self, request: &Request) -> Vec<usize> {
        let descriptor = &request.descriptor;
        let range = blocks_of(descriptor);
        match descriptor.opcode {
            Opcode::Flush => Vec::new(),
            Opcode::Read => {
                let newest_done = |versions: &Vec<Version>| {
                    versions.iter().rposition(|version| version.state == State::Done).expect("the first is done")
                };
                self.blocks[range].iter().map(newest_done).collect()
            }
            _ => {
                let by = (request.stream, request.sequence);
                for (index, versions) in (0..).zip(&mut self.blocks[range]) {
                    let source = match descriptor.opcode {
                        Opcode::Trim => Source::Zero,
                        _ => Source::Write { stream: by.0, sequence: by.1, index },
                    };
                    versions.push(Version { source, by, state: State::InFlight });
                }
                Vec::new()
            }
        }
    }

    /// Takes a completion, checks it, and frees its slot.
    pub(super) fn complete(&mut self, request: &Request, shared: &mut Shared) -> Result<(), String> {
        let key = (request.stream, request.sequence);
        let done = &mut self.done[usize::from(request.stream.0)];
        if request.sequence != *done + 1 {
            return Err(format!("stream {} completed {} after {done}", request.stream.0, request.sequence));
        }
        *done += 1;
        let Some(asked) = self.in_flight.remove(&key) else {
            return Err(format!("{key:?} completed and was never asked for, or twice"));
        };
        let state = self.judge(&asked.request, request.status)?;
        match asked.request.descriptor.opcode {
            Opcode::Read => self.check_read(&asked, shared)?,
            Opcode::Flush => {}
            _ => self.settle(&asked.request, state),
        }
        self.seen_tallies.append(&mut shared.tallies);
        set_state(shared, asked.request.descriptor.slot.0, SLOT_FREE);
        Ok(())
    }

    /// Whether a request may end so, and what that makes of its versions.
    fn judge(&mut self, request: &Request, status: Status) -> Result<State, String> {
        let poisoned = is_poisoned(request);
        let changes = matches!(request.descriptor.opcode, Opcode::Write | Opcode::Passthrough | Opcode::Trim);
        match status {
            Status::SUCCESS if !poisoned => Ok(State::Done),
            Status::ACTOR_TRAPPED if poisoned => {
                self.failed += 1;
                Ok(State::Failed)
            }
            // Overwriting parts of extents keeps their other parts alive, so the flash may be full; and a
            // request that failed in a death may be known as no more than not committed.
            Status::CAPACITY_EXCEEDED | Status::INTERNAL_ERROR if changes => {
                self.refused += 1;
                Ok(State::Failed)
            }
            _ => Err(format!("{request:?} ended with {status}, poisoned: {poisoned}")),
        }
    }

    fn settle(&mut self, request: &Request, state: State) {
        for versions in &mut self.blocks[blocks_of(&request.descriptor)] {
            for version in versions.iter_mut().filter(|version| version.by == (request.stream, request.sequence)) {
                version.state = state;
            }
        }
        // The tally has seen it even if the store then refused it.
        if !is_poisoned(request) && request.descriptor.tag == FULL {
            let skipped = request.descriptor.stored_tag().skipped();
            let outputs = (0..request.descriptor.blocks).step_by(usize::from(UNIT_BLOCKS)).map(|first| {
                let last = (first + u32::from(UNIT_BLOCKS)).min(request.descriptor.blocks);
                let raw: Vec<u8> =
                    (first..last).flat_map(|index| content(request.stream, request.sequence, index)).collect();
                let slba = request.descriptor.slba + u64::from(first);
                self.tally = tally_hash(self.tally, &before_tally(&raw, slba, skipped));
                self.tally
            });
            self.tallies.insert(request.sequence, outputs.collect());
        }
    }

    fn check_read(&mut self, asked: &InFlight, shared: &Shared) -> Result<(), String> {
        let descriptor = &asked.request.descriptor;
        let range = blocks_of(descriptor);
        for ((index, versions), oldest) in (0..).zip(&self.blocks[range]).zip(&asked.oldest) {
            let offset = shared.layout.unit_offset(Buffer::Raw, 0, index);
            let found = shared.slot(descriptor.slot.0, offset, BLOCK);
            let may_be = versions[*oldest..].iter().filter(|version| version.state != State::Failed);
            self.blocks_compared += 1;
            if !may_be.clone().any(|version| holds(version.source, found)) {
                let was = versions[..*oldest].iter().rev().find(|version| holds(version.source, found));
                return Err(format!(
                    "block {} reads as {}; it may be one of {:?}",
                    descriptor.slba + u64::from(index),
                    was.map_or_else(|| "nothing that was ever written".to_owned(), |old| format!("the old {old:?}")),
                    may_be.map(|version| version.by).collect::<Vec<_>>()
                ));
            }
        }
        Ok(())
    }

    /// Compares what the tally put out with what it would have without moves and deaths.
    pub(super) fn check_tallies(&self) -> Result<u64, String> {
        for tally in &self.seen_tallies {
            let expected = self.tallies.get(&tally.sequence).and_then(|units| units.get(usize::from(tally.unit)));
            if tally.stream != StreamId(0) || expected != Some(&tally.hash) {
                return Err(format!("the stateful actor put out {tally:?}, without moves it would be {expected:?}"));
            }
        }
        Ok(self.seen_tallies.len() as u64)
    }
}

/// Writes a request and its unit table into its slot, as the client's library does; the bytes are
/// there already. A replay does the same again.
pub(super) fn fill(shared: &mut Shared, request: &Request) -> Request {
    let mut request = Request { visited: 0, fetched: false, status: Status::SUCCESS, ..*request };
    let slot = request.descriptor.slot.0;
    request.descriptor.units = 0;
    if is_write(&request) {
        let descriptor = &mut request.descriptor;
        for first in (0..descriptor.blocks).step_by(usize::from(UNIT_BLOCKS)) {
            let blocks = (descriptor.blocks - first).min(u32::from(UNIT_BLOCKS));
            let bytes = blocks * BLOCK as u32;
            let unit = Unit {
                slba: descriptor.slba + u64::from(first),
                version: 0,
                bytes,
                raw_bytes: bytes,
                tag: descriptor.stored_tag().0,
                request_block: first,
                skip_blocks: 0,
                blocks: u16::try_from(blocks).expect("few"),
                buffer: Buffer::Raw,
            };
            shared.set_unit(slot, descriptor.units, &unit);
            descriptor.units += 1;
        }
    }
    let words = Message { kind: Kind::Request(request) }.encode();
    for (index, word) in (0..).zip(words) {
        shared.slot_mut(slot, REQUEST_OFFSET + 8 * index, 8).copy_from_slice(&word.to_le_bytes());
    }
    set_state(shared, slot, SLOT_SUBMITTED);
    request
}

/// The requests that lie in slots, by stream and sequence: what a recovery has to go by.
pub(super) fn submitted(shared: &Shared) -> Vec<Request> {
    let mut requests: Vec<Request> = (0..SLOTS)
        .filter(|slot| state(shared, *slot) == SLOT_SUBMITTED)
        .map(|slot| {
            let words: [u64; 8] = std::array::from_fn(|index| {
                let offset = REQUEST_OFFSET + 8 * u32::try_from(index).expect("eight");
                u64::from_le_bytes(shared.slot(slot, offset, 8).try_into().expect("eight bytes"))
            });
            match Message::decode(&words).map(|message| message.kind) {
                Some(Kind::Request(request)) => request,
                other => panic!("slot {slot} is said to hold a request and holds {other:?}"),
            }
        })
        .collect();
    requests.sort_by_key(|request| (request.stream, request.sequence));
    requests
}

/// Whether a request puts the client's bytes on blocks.
pub(super) fn is_write(request: &Request) -> bool {
    matches!(request.descriptor.opcode, Opcode::Write | Opcode::Passthrough)
}

fn state(shared: &Shared, slot: u16) -> u64 {
    u64::from_le_bytes(shared.slot(slot, STATE_OFFSET, 8).try_into().expect("eight bytes"))
}

fn set_state(shared: &mut Shared, slot: u16, state: u64) {
    shared.slot_mut(slot, STATE_OFFSET, 8).copy_from_slice(&state.to_le_bytes());
}

fn blocks_of(descriptor: &Descriptor) -> std::ops::Range<usize> {
    let first = usize::try_from(descriptor.slba).expect("few");
    first..first + descriptor.blocks as usize
}

fn overlap(a: &Descriptor, b: &Descriptor) -> bool {
    let (a, b) = (blocks_of(a), blocks_of(b));
    a.start < b.end && b.start < a.end
}

fn is_poisoned(request: &Request) -> bool {
    let through_a_seal = request.descriptor.opcode == Opcode::Write;
    through_a_seal && poison(request.stream, request.sequence)
}

fn poison(stream: StreamId, sequence: u64) -> bool {
    stream.0 < 2 && sequence % 23 == 22
}

/// A block as the client wrote it. Two in three compress.
fn content(stream: StreamId, sequence: u64, index: u32) -> Vec<u8> {
    let stamp = u64::from(stream.0) << 56 | sequence << 16 | u64::from(index);
    let mut rng = Rng::new(stamp);
    let repeat = if sequence.is_multiple_of(3) { BLOCK } else { 96 };
    let mut block = vec![0; BLOCK];
    let (unique, rest) = block.split_at_mut(repeat);
    for word in unique.as_chunks_mut::<8>().0 {
        *word = rng.next().to_le_bytes();
    }
    for again in rest.chunks_mut(repeat) {
        again.copy_from_slice(&unique[..again.len()]);
    }
    block[8..16].copy_from_slice(&stamp.to_le_bytes());
    if index == 0 && poison(stream, sequence) {
        block[..POISON.len()].copy_from_slice(&POISON);
    }
    block
}

fn holds(source: Source, found: &[u8]) -> bool {
    match source {
        Source::Zero => found.iter().all(|byte| *byte == 0),
        // The stamp tells almost all wrong ones apart without making the whole block.
        Source::Write { stream, sequence, index } => {
            let stamp = u64::from(stream.0) << 56 | sequence << 16 | u64::from(index);
            found[8..16] == stamp.to_le_bytes() && found == content(stream, sequence, index)
        }
    }
}
