//! The shared region and the actors: a native runner of four kinds of stage.
//!
//! | stage | on a write | on a read |
//! | --- | --- | --- |
//! | compress | LZ4, or the bytes themselves if they do not shrink | the inverse |
//! | scramble | a key stream from the first block's address, in place of encryption | the same again |
//! | seal | appends a CRC-32C | checks and takes it off |
//! | tally | appends its running hash over the stream, with stream, sequence and unit | takes it off and notes it |
//!
//! Every stage keeps its progress in its memory, which moves with it, and a count of its chunks in a
//! global, which moves by the checkpoint: a resume that goes wrong shows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use osier_device::{Device, Engine, Status};
use osier_domain::arena::{Buffer, Layout, UNIT_BYTES, UNITS_OFFSET, Unit};
use osier_domain::message::Request;
use osier_domain::migrate::{CHECKPOINT_BYTES, GLOBALS_MAX, OwnerRecord};
use osier_domain::{
    ActorId, Call, Direction, Env, Outcome, OwnerState, Phase, Pipeline, Plan, STREAMS_MAX, Side, Step, StreamId, Tag,
};

use super::Flaw;
use crate::{Nanos, Rng};

/// Blocks of a unit.
pub(super) const UNIT_BLOCKS: u8 = 4;
/// Blocks of the largest request.
pub(super) const REQUEST_BLOCKS_MAX: u32 = 12;
/// Requests in flight.
pub(super) const SLOTS: u16 = 24;
/// A logical block.
pub(super) const BLOCK: usize = 4096;
/// Content that the seal stage fails on, at the start of a unit.
pub(super) const POISON: [u8; 8] = *b"\0poison\0";
/// What the tally appends.
const TALLY_BYTES: usize = 24;

/// Pipeline of all four stages.
pub(super) const FULL: Tag = Tag(1);
/// Pipeline of a seal alone.
pub(super) const SEAL: Tag = Tag(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StageKind {
    Compress,
    Scramble,
    Seal,
    Tally,
}

const STAGES: [StageKind; 5] =
    [StageKind::Compress, StageKind::Scramble, StageKind::Seal, StageKind::Tally, StageKind::Seal];

pub(super) fn plan() -> Plan {
    let pipeline =
        |tag, actors: std::ops::Range<u16>| Pipeline { tag, stages: actors.map(ActorId).collect(), query: 0 };
    Plan::new(vec![pipeline(FULL, 0..4), pipeline(SEAL, 4..5)])
}

/// How many actors there are.
pub(super) const ACTORS: usize = STAGES.len();

/// An owner record over plain cells.
pub(super) struct Record {
    word: Cell<u64>,
    bytes: RefCell<[u8; CHECKPOINT_BYTES]>,
}

impl Record {
    fn new(owner: Side) -> Record {
        Record { word: Cell::new(OwnerState::first(owner).encode()), bytes: RefCell::new([0; CHECKPOINT_BYTES]) }
    }
}

impl OwnerRecord for Record {
    fn load(&self) -> u64 {
        self.word.get()
    }

    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        let same = self.word.get() == current;
        if same {
            self.word.set(new);
        }
        same
    }

    fn write_checkpoint(&self, bytes: &[u8; CHECKPOINT_BYTES]) {
        *self.bytes.borrow_mut() = *bytes;
    }

    fn read_checkpoint(&self) -> [u8; CHECKPOINT_BYTES] {
        *self.bytes.borrow()
    }
}

/// An actor's linear memory.
#[derive(Clone, Default)]
struct Memory {
    /// Input bytes of the present unit worked on, and a checksum over them.
    progress: u32,
    seen: u32,
    /// Of the tally: the running hash of each stream.
    hash: [u64; STREAMS_MAX],
    chunks: u64,
}

/// A tally that a read took off: whose unit it was, and the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) stream: StreamId,
    pub(super) sequence: u64,
    pub(super) unit: u16,
    pub(super) hash: u64,
}

/// What both domains see, and what deaths leave.
pub(super) struct Shared {
    pub(super) arena: Vec<u8>,
    pub(super) layout: Layout,
    records: Vec<Record>,
    memories: Vec<Memory>,
    /// State that the tally committed, by sequence: its shared-state calls.
    versions: BTreeMap<(StreamId, u64), u64>,
    /// Requests that failed, by slot.
    pub(super) failed: BTreeMap<u16, Status>,
    /// What reads took off since this was last emptied.
    pub(super) tallies: Vec<Tally>,
    pub(super) rng: Rng,
    pub(super) flaw: Option<Flaw>,
    /// The death that is planned: which side, at which step.
    pub(super) doom: Option<(Side, Step)>,
    /// The planned death has come.
    pub(super) doomed: Option<Step>,
    pub(super) moved_mid_request: u64,
    pub(super) broken: Option<String>,
}

/// Thrown through a domain's code to end it at a step. What it wrote to the shared region stays.
pub(super) struct Killed;

impl Shared {
    pub(super) fn new(owners: &[Side], rng: Rng, flaw: Option<Flaw>) -> Shared {
        let layout = Layout { slots: SLOTS, request_blocks_max: REQUEST_BLOCKS_MAX, unit_blocks: UNIT_BLOCKS };
        let bytes = usize::try_from(layout.arena_bytes()).expect("a small arena");
        Shared {
            arena: vec![0; bytes],
            layout,
            records: owners.iter().map(|owner| Record::new(*owner)).collect(),
            memories: vec![Memory::default(); owners.len()],
            versions: BTreeMap::new(),
            failed: BTreeMap::new(),
            tallies: Vec::new(),
            rng,
            flaw,
            doom: None,
            doomed: None,
            moved_mid_request: 0,
            broken: None,
        }
    }

    /// The domain of this side passes a step; if that is the planned one, it dies here.
    pub(super) fn pass(&mut self, side: Side, step: Step) {
        if self.doom == Some((side, step)) {
            self.doom = None;
            self.doomed = Some(step);
            std::panic::resume_unwind(Box::new(Killed));
        }
    }

    fn slot_at(&self, slot: u16, offset: u32) -> usize {
        usize::try_from(self.layout.slot_offset(slot)).expect("a small arena") + offset as usize
    }

    /// Bytes of a slot, from an offset in it.
    pub(super) fn slot(&self, slot: u16, offset: u32, len: usize) -> &[u8] {
        let from = self.slot_at(slot, offset);
        &self.arena[from..from + len]
    }

    /// The same to write to.
    pub(super) fn slot_mut(&mut self, slot: u16, offset: u32, len: usize) -> &mut [u8] {
        let from = self.slot_at(slot, offset);
        &mut self.arena[from..from + len]
    }

    /// A row of a slot's unit table.
    pub(super) fn unit(&self, slot: u16, index: u16) -> Unit {
        let row = self.slot(slot, UNITS_OFFSET + u32::from(index) * UNIT_BYTES, UNIT_BYTES as usize);
        Unit::decode(row.try_into().expect("one row")).expect("a row that was written here")
    }

    pub(super) fn set_unit(&mut self, slot: u16, index: u16, unit: &Unit) {
        let offset = UNITS_OFFSET + u32::from(index) * UNIT_BYTES;
        self.slot_mut(slot, offset, UNIT_BYTES as usize).copy_from_slice(&unit.encode());
    }

    /// The present bytes of a unit.
    pub(super) fn content(&self, slot: u16, index: u16) -> &[u8] {
        let unit = self.unit(slot, index);
        let offset = self.layout.unit_offset(unit.buffer, index, unit.request_block);
        self.slot(slot, offset, unit.bytes as usize)
    }

    fn note(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }
}

/// What a domain works with: the shared region, its own globals, and on the device the core.
pub(super) struct Sandbox<'a> {
    pub(super) side: Side,
    pub(super) shared: &'a mut Shared,
    /// The mutable globals of this side's twins.
    pub(super) globals: &'a mut [[u64; GLOBALS_MAX]; ACTORS],
    pub(super) device: Option<&'a mut Device<Vec<u8>>>,
    pub(super) now: Nanos,
}

impl Env for Sandbox<'_> {
    type Record = Record;

    fn record(&self, actor: ActorId) -> &Record {
        &self.shared.records[usize::from(actor.0)]
    }

    fn run(&mut self, call: &Call) -> Outcome {
        let index = usize::from(call.actor.0);
        let owner = OwnerState::decode(self.shared.records[index].load());
        if owner.is_none_or(|state| (state.owner, state.phase) != (self.side, Phase::Active)) {
            self.shared.note(format!("{:?} was run on the {} while its record says {owner:?}", call.actor, self.side));
        }
        let unit = self.shared.unit(call.slot.0, call.unit);
        if Tag(unit.tag) != call.tag && call.direction == Direction::Inverse {
            return Outcome::Done { bytes: 0 };
        }
        let input = self.shared.content(call.slot.0, call.unit).to_vec();
        if let Some(outcome) = self.chunk(call, index, &input) {
            return outcome;
        }
        match self.transform(STAGES[index], call, &unit, &input) {
            Ok(output) => {
                self.put_out(call, unit, &output);
                Outcome::Done { bytes: unit.bytes }
            }
            Err(status) => Outcome::Failed(status),
        }
    }

    fn chunk_bytes(&mut self, actor: ActorId, _direction: Direction) -> u32 {
        let random = 500 + u32::try_from(self.shared.rng.below(30_000)).expect("small");
        match &mut self.device {
            Some(device) => device.compute(self.now).chunk_bytes(engine(actor)).min(random),
            None => random,
        }
    }

    fn charge(&mut self, now: Nanos, actor: ActorId, _direction: Direction, bytes: u32) -> Nanos {
        match &mut self.device {
            Some(device) => {
                device.compute(now).run(now, None, engine(actor), bytes).unwrap_or(Nanos(now.0 + 1_000_000))
            }
            None => now,
        }
    }

    fn drain_max_ns(&self) -> u64 {
        50_000
    }

    fn allowed_at(&mut self, now: Nanos, _actor: ActorId) -> Nanos {
        now
    }

    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX] {
        std::mem::take(&mut self.globals[usize::from(actor.0)])
    }

    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]) {
        if self.shared.flaw != Some(Flaw::ForgetGlobals) {
            self.globals[usize::from(actor.0)] = *globals;
        }
    }

    fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]) {
        let index = usize::from(actor.0);
        if self.shared.flaw == Some(Flaw::KeepTornState) {
            let memory = &mut self.shared.memories[index];
            (memory.progress, memory.seen) = (0, 0);
            self.globals[index][0] = memory.chunks;
            return;
        }
        let mut memory = Memory::default();
        for (stream, gate) in (0..).map(StreamId).zip(gates) {
            let committed = self.shared.versions.range((stream, 0)..=(stream, *gate)).next_back();
            memory.hash[usize::from(stream.0)] = committed.map_or(0, |(_, hash)| *hash);
        }
        self.shared.memories[index] = memory;
        self.globals[index] = [0; GLOBALS_MAX];
    }

    fn next_tag(&mut self, request: &Request) -> Option<Tag> {
        let slot = request.descriptor.slot.0;
        let mut next = None;
        for index in 0..request.descriptor.units {
            let mut unit = self.shared.unit(slot, index);
            // The group that has just been through its stages is decoded.
            if request.visited > 0 && Tag(unit.tag) == request.descriptor.tag {
                unit.tag = Tag::NONE.0;
                self.shared.set_unit(slot, index, &unit);
            }
            if unit.tag != Tag::NONE.0 {
                next = next.or(Some(Tag(unit.tag)));
            }
        }
        next
    }

    fn deliver(&mut self, request: &Request) -> Result<u32, Status> {
        let slot = request.descriptor.slot.0;
        for index in 0..request.descriptor.units {
            let unit = self.shared.unit(slot, index);
            let content = self.shared.content(slot, index).to_vec();
            let from = usize::from(unit.skip_blocks) * BLOCK;
            let len = usize::from(unit.blocks) * BLOCK;
            let wanted = content.get(from..from + len).ok_or(Status::INTEGRITY)?;
            let offset = self.shared.layout.unit_offset(Buffer::Raw, 0, unit.request_block);
            self.shared.slot_mut(slot, offset, len).copy_from_slice(wanted);
        }
        Ok(request.descriptor.blocks * BLOCK as u32)
    }

    fn note_failure(&mut self, request: &Request) {
        self.shared.failed.insert(request.descriptor.slot.0, request.status);
    }

    fn adopted(&mut self, _actor: ActorId, mid_request: bool, _awaited: bool) {
        self.shared.moved_mid_request += u64::from(mid_request);
    }

    fn at(&mut self, step: Step, _actor: Option<ActorId>) {
        self.shared.pass(self.side, step);
    }
}

impl Sandbox<'_> {
    /// Takes the next part of the input in. `None` when that was the last.
    fn chunk(&mut self, call: &Call, index: usize, input: &[u8]) -> Option<Outcome> {
        let memory = &mut self.shared.memories[index];
        let mut fault = None;
        if (memory.progress > 0) != call.resume {
            fault = Some("was resumed where nothing had begun, or begun where it should be resumed");
        }
        if memory.chunks != self.globals[index][0] {
            fault = Some("has globals that do not belong to its memory");
        }
        memory.chunks += 1;
        self.globals[index][0] += 1;
        let from = (memory.progress as usize).min(input.len());
        let to = (from + call.budget_bytes as usize).min(input.len());
        memory.seen = crc32c::crc32c_append(memory.seen, &input[from..to]);
        memory.progress = u32::try_from(to).expect("a unit");
        let done = to == input.len();
        if done {
            if memory.seen != crc32c::crc32c(input) {
                fault = Some("did not see its input once and in order");
            }
            (memory.progress, memory.seen) = (0, 0);
        }
        if let Some(fault) = fault {
            self.shared.note(format!("{:?} on the {} {fault}", call.actor, self.side));
        }
        let bytes = u32::try_from(to - from).expect("a unit");
        (!done).then_some(Outcome::Yielded { bytes })
    }

    fn transform(&mut self, kind: StageKind, call: &Call, unit: &Unit, input: &[u8]) -> Result<Vec<u8>, Status> {
        match (kind, call.direction) {
            (StageKind::Compress, Direction::Forward) => Ok(compress(input)),
            (StageKind::Compress, Direction::Inverse) => decompress(input, unit.raw_bytes).ok_or(Status::INTEGRITY),
            (StageKind::Scramble, _) => Ok(scramble(input, unit.slba)),
            (StageKind::Seal, Direction::Forward) if is_poisoned(self.shared, call) => Err(Status::ACTOR_TRAPPED),
            (StageKind::Seal, Direction::Forward) => Ok([input, &crc32c::crc32c(input).to_le_bytes()].concat()),
            (StageKind::Seal, Direction::Inverse) => {
                let (body, seal) = input.split_last_chunk::<4>().ok_or(Status::INTEGRITY)?;
                if crc32c::crc32c(body) == u32::from_le_bytes(*seal) {
                    Ok(body.to_vec())
                } else {
                    Err(Status::INTEGRITY)
                }
            }
            (StageKind::Tally, Direction::Forward) => Ok(self.tally(call, input)),
            (StageKind::Tally, Direction::Inverse) => {
                let (body, tail) = input.split_last_chunk::<TALLY_BYTES>().ok_or(Status::INTEGRITY)?;
                self.shared.tallies.push(tally_of(tail));
                Ok(body.to_vec())
            }
        }
    }

    fn tally(&mut self, call: &Call, input: &[u8]) -> Vec<u8> {
        let stream = usize::from(call.stream.0);
        let memory = &mut self.shared.memories[usize::from(call.actor.0)];
        let hash = tally_hash(memory.hash[stream], input);
        memory.hash[stream] = hash;
        self.shared.versions.insert((call.stream, call.sequence), hash);
        let mut output = input.to_vec();
        output.extend_from_slice(&hash.to_le_bytes());
        output.extend_from_slice(&call.sequence.to_le_bytes());
        output.extend_from_slice(&call.stream.0.to_le_bytes());
        output.extend_from_slice(&call.unit.to_le_bytes());
        output.extend_from_slice(&[0; 4]);
        output
    }

    fn put_out(&mut self, call: &Call, mut unit: Unit, output: &[u8]) {
        let slot = call.slot.0;
        unit.buffer = unit.buffer.next();
        unit.bytes = u32::try_from(output.len()).expect("a unit");
        let offset = self.shared.layout.unit_offset(unit.buffer, call.unit, unit.request_block);
        self.shared.slot_mut(slot, offset, output.len()).copy_from_slice(output);
        self.shared.set_unit(slot, call.unit, &unit);
        if self.shared.flaw == Some(Flaw::FlipBit) && self.shared.rng.one_in(50) {
            let at = u32::try_from(self.shared.rng.below(output.len() as u64)).expect("a unit");
            self.shared.slot_mut(slot, offset + at, 1)[0] ^= 1;
        }
    }
}

/// The tally after one more unit.
pub(super) fn tally_hash(before: u64, input: &[u8]) -> u64 {
    mix(before, u64::from(crc32c::crc32c(input)) | (input.len() as u64) << 32)
}

/// What the tally of a stream sees of a unit: all stages before it, as [`plan`] has them, less those
/// that are left out.
pub(super) fn before_tally(raw: &[u8], slba: u64, skipped: u8) -> Vec<u8> {
    let mut bytes = raw.to_vec();
    if skipped & 1 == 0 {
        bytes = compress(&bytes);
    }
    if skipped & 2 == 0 {
        bytes = scramble(&bytes, slba);
    }
    let seal = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&seal.to_le_bytes());
    bytes
}

fn tally_of(tail: &[u8; TALLY_BYTES]) -> Tally {
    let u16_at = |at: usize| u16::from_le_bytes([tail[at], tail[at + 1]]);
    let u64_at = |at: usize| u64::from_le_bytes(tail[at..at + 8].try_into().expect("eight bytes"));
    Tally { hash: u64_at(0), sequence: u64_at(8), stream: StreamId(u16_at(16)), unit: u16_at(18) }
}

/// Whether the client meant this request to fail. Looked up in the client's bytes, because the stages
/// before have made them unreadable.
fn is_poisoned(shared: &Shared, call: &Call) -> bool {
    let unit = shared.unit(call.slot.0, call.unit);
    let offset = shared.layout.unit_offset(Buffer::Raw, call.unit, unit.request_block);
    shared.slot(call.slot.0, offset, POISON.len()) == POISON
}

fn compress(input: &[u8]) -> Vec<u8> {
    let packed = lz4_flex::block::compress(input);
    if packed.len() < input.len() { [&[1], packed.as_slice()].concat() } else { [&[0], input].concat() }
}

fn decompress(input: &[u8], raw_bytes: u32) -> Option<Vec<u8>> {
    let (kind, body) = input.split_first()?;
    match kind {
        0 => Some(body.to_vec()),
        1 => lz4_flex::block::decompress(body, raw_bytes as usize).ok(),
        _ => None,
    }
}

fn scramble(input: &[u8], slba: u64) -> Vec<u8> {
    let mut keys = Rng::new(slba ^ 0x6b65_7973);
    let mut output = input.to_vec();
    for chunk in output.chunks_mut(8) {
        for (byte, key) in chunk.iter_mut().zip(keys.next().to_le_bytes()) {
            *byte ^= key;
        }
    }
    output
}

fn engine(actor: ActorId) -> Engine {
    match STAGES[usize::from(actor.0)] {
        StageKind::Compress => Engine::Lz4,
        StageKind::Scramble => Engine::Aes,
        StageKind::Seal => Engine::Crc32c,
        StageKind::Tally => Engine::Wasm,
    }
}

fn mix(a: u64, b: u64) -> u64 {
    (a ^ b).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}
