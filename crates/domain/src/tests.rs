//! Two domains over two first-in first-out pipes, with everything drawn from a seed: which requests, which
//! stages skip or fail or yield, how long chunks take, when actors move, when checkpoints are damaged, who
//! dies. The oracle is a plain loop over the stages.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

use crate::message::{Descriptor, Kind, Message, Opcode, Request};
use crate::migrate::{CHECKPOINT_BYTES, GLOBALS_MAX, OwnerRecord, OwnerState, Resolution};
use crate::*;

struct Rng(u64);
impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

struct CellRecord {
    word: Cell<u64>,
    bytes: RefCell<[u8; CHECKPOINT_BYTES]>,
}

impl OwnerRecord for CellRecord {
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

/// An actor's memory: a running hash a stream, as a stateful actor has, and the progress of the unit it yielded in.
#[derive(Clone, Default)]
struct Memory {
    hash: [u64; STREAMS_MAX],
    progress: u32,
    globals: [u64; GLOBALS_MAX],
}

const UNIT_BYTES: u32 = 4096;

/// What both domains share: the "PMR".
struct Shared {
    records: Vec<CellRecord>,
    memory: Vec<Memory>,
    /// State committed by sequence, as the shared-state calls keep it.
    versions: BTreeMap<(u16, usize, u64), u64>,
    /// A slot's units: what each stage did to it.
    units: BTreeMap<u16, Vec<Vec<u64>>>,
    failed: BTreeMap<u16, Status>,
    rng: Rng,
    served_by: Vec<Option<Side>>,
    flaws: Flaws,
    lanes: usize,
    /// A checkpoint was published in this poll, and the message that says so lies in the domain.
    unsent: bool,
}

/// Planted defects, to show that the checks can fail.
#[derive(Clone, Copy, Default)]
struct Flaws {
    forget_globals: bool,
}

struct TestEnv<'a> {
    side: Side,
    shared: &'a mut Shared,
}

fn mix(a: u64, b: u64) -> u64 {
    (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

impl Env for TestEnv<'_> {
    type Record = CellRecord;

    fn record(&self, actor: ActorId) -> &CellRecord {
        &self.shared.records[usize::from(actor.0)]
    }

    fn run(&mut self, call: &Call) -> Outcome {
        let index = usize::from(call.actor.0);
        let state = OwnerState::decode(self.shared.records[index].load()).expect("an owner word");
        assert_eq!((state.owner, state.phase), (self.side, Phase::Active), "served without ownership");
        self.shared.served_by[index] = Some(self.side);
        let memory = &mut self.shared.memory[index];
        assert_eq!(memory.progress > 0, call.resume, "resumed where nothing had been begun, or begun twice");
        assert_eq!(memory.globals[0], memory.hash[0], "globals did not travel with the actor");
        let left = UNIT_BYTES - memory.progress;
        if call.budget_bytes < left {
            memory.progress += call.budget_bytes;
            return Outcome::Yielded { bytes: call.budget_bytes };
        }
        memory.progress = 0;
        let unit = &mut self.shared.units.get_mut(&call.slot.0).expect("a filled slot")[usize::from(call.unit)];
        if unit.last() == Some(&u64::from(u32::MAX)) {
            return Outcome::Failed(Status::ACTOR_TRAPPED);
        }
        if call.direction == Direction::Forward {
            let stream = usize::from(call.stream.0);
            let content = unit.iter().fold(call.sequence, |a, b| mix(a, *b));
            memory.hash[stream] = mix(memory.hash[stream], content);
            memory.globals[0] = memory.hash[0];
            unit.push(memory.hash[stream]);
            self.shared.versions.insert((call.actor.0, stream, call.sequence), memory.hash[stream]);
        } else {
            unit.push(u64::from(call.actor.0));
        }
        Outcome::Done { bytes: left }
    }

    fn chunk_bytes(&mut self, _: ActorId, _: Direction) -> u32 {
        1000 + self.shared.rng.below(8000) as u32
    }

    fn charge(&mut self, now: Nanos, _: ActorId, _: Direction, _: u32) -> Nanos {
        match self.side {
            Side::Host => now,
            Side::Device => Nanos(now.0 + self.shared.rng.below(40)),
        }
    }

    fn lanes(&self) -> usize {
        1 + self.shared.lanes % 4
    }

    fn drain_max_ns(&self) -> u64 {
        25
    }

    fn allowed_at(&mut self, now: Nanos, _: ActorId) -> Nanos {
        now
    }

    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX] {
        std::mem::take(&mut self.shared.memory[usize::from(actor.0)].globals)
    }

    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]) {
        if !self.shared.flaws.forget_globals {
            self.shared.memory[usize::from(actor.0)].globals = *globals;
        }
    }

    fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]) {
        let mut memory = Memory::default();
        for (stream, gate) in gates.iter().enumerate() {
            let range = (actor.0, stream, 0)..=(actor.0, stream, *gate);
            memory.hash[stream] = self.shared.versions.range(range).next_back().map_or(0, |(_, hash)| *hash);
        }
        memory.globals[0] = memory.hash[0];
        self.shared.memory[usize::from(actor.0)] = memory;
    }

    fn next_tag(&mut self, request: &Request) -> Option<Tag> {
        (request.visited == 0).then_some(Tag(1))
    }

    fn deliver(&mut self, _: &Request) -> Result<u32, Status> {
        Ok(UNIT_BYTES)
    }

    fn at(&mut self, step: Step, actor: Option<ActorId>) {
        match step {
            Step::Ready => self.shared.unsent = true,
            Step::StageBegins => assert!(!self.shared.unsent, "{actor:?} ran while a checkpoint waited to be sent"),
            _ => {}
        }
    }

    fn note_failure(&mut self, request: &Request) {
        self.shared.failed.insert(request.descriptor.slot.0, request.status);
    }
}

/// The whole device: two domains, two pipes, a store that commits in order.
struct Bench {
    domains: [Domain; 2],
    pipes: [VecDeque<[u64; 8]>; 2],
    shared: Shared,
    now: Nanos,
    cursors: [u64; STREAMS_MAX],
    inflight: BTreeMap<(StreamId, u64), Request>,
    delivered: Vec<Request>,
    stages: u16,
    stored: BTreeMap<(StreamId, u64), Vec<Vec<u64>>>,
    resolutions: Vec<Resolution>,
}

const WRITES: StreamId = StreamId(0);
const READS: StreamId = StreamId(1);

fn plan(stages: u16) -> Plan {
    Plan::new(vec![Pipeline { tag: Tag(1), stages: (0..stages).map(ActorId).collect(), query: 0 }])
}

impl Bench {
    fn new(seed: u64, stages: u16) -> Bench {
        let mut rng = Rng(seed);
        let owners: Vec<Side> = (0..stages).map(|_| if rng.one_in(2) { Side::Host } else { Side::Device }).collect();
        let record = |owner: &Side| CellRecord {
            word: Cell::new(OwnerState::first(*owner).encode()),
            bytes: RefCell::new([0; CHECKPOINT_BYTES]),
        };
        let shared = Shared {
            records: owners.iter().map(record).collect(),
            memory: vec![Memory::default(); usize::from(stages)],
            versions: BTreeMap::new(),
            units: BTreeMap::new(),
            failed: BTreeMap::new(),
            served_by: vec![None; usize::from(stages)],
            rng,
            flaws: Flaws::default(),
            lanes: seed as usize,
            unsent: false,
        };
        let domain = |side| Domain::new(side, plan(stages), &owners, &[0; STREAMS_MAX]);
        Bench {
            domains: [domain(Side::Host), domain(Side::Device)],
            pipes: Default::default(),
            shared,
            now: Nanos(0),
            cursors: [0; STREAMS_MAX],
            inflight: BTreeMap::new(),
            delivered: Vec::new(),
            stages,
            stored: BTreeMap::new(),
            resolutions: Vec::new(),
        }
    }

    fn request(&mut self, stream: StreamId, sequence: u64) -> Request {
        let used: Vec<u16> = self.inflight.values().map(|r| r.descriptor.slot.0).collect();
        let slot = (0..).find(|s| !used.contains(s)).expect("a free slot");
        let skip = if self.shared.rng.one_in(8) { self.shared.rng.below(1 << self.stages) as u16 } else { 0 };
        Request {
            descriptor: Descriptor {
                opcode: if stream == READS { Opcode::Read } else { Opcode::Write },
                unit_blocks: 1,
                flags: skip,
                tag: Tag(1),
                slot: SlotId(slot),
                units: 1 + self.shared.rng.below(3) as u16,
                blocks: 1,
                slba: sequence,
                output_bytes: 0,
                state_handle: 0,
            },
            stream,
            sequence,
            visited: 0,
            status: Status::SUCCESS,
            fetched: false,
            output: 0,
        }
    }

    fn content(request: &Request) -> Vec<Vec<u64>> {
        let poisoned = request.sequence % 97 == 96 && request.stream == WRITES;
        let unit = |u| if poisoned { vec![u64::from(u32::MAX)] } else { vec![request.sequence * 10 + u] };
        (0..u64::from(request.descriptor.units)).map(unit).collect()
    }

    fn fill(&mut self, request: &Request) {
        self.shared.units.insert(request.descriptor.slot.0, Bench::content(request));
        self.shared.failed.remove(&request.descriptor.slot.0);
    }

    fn submit(&mut self, request: Request) {
        self.fill(&request);
        self.inflight.insert((request.stream, request.sequence), request);
        let Bench { domains, shared, .. } = self;
        domains[0].submit(request, &mut TestEnv { side: Side::Host, shared });
    }

    fn move_actor(&mut self, actor: ActorId) -> bool {
        let Bench { domains, shared, .. } = self;
        [Side::Host, Side::Device]
            .into_iter()
            .any(|side| domains[side as usize].begin_move(actor, &mut TestEnv { side, shared }).is_ok())
    }

    /// One turn of one domain: some of its messages in, a poll, all of its messages out.
    fn turn(&mut self, side: Side) {
        let index = side as usize;
        let Bench { domains, shared, pipes, .. } = self;
        let heard = shared.rng.below(4);
        for _ in 0..heard {
            let Some(words) = pipes[index].pop_front() else { break };
            let message = Message::decode(&words).expect("a message");
            assert_eq!(message.encode(), words, "a message survives its encoding");
            domains[index].receive(message, &mut TestEnv { side, shared });
        }
        shared.unsent = false;
        domains[index].poll(self.now, &mut TestEnv { side, shared });
        while let Some(message) = domains[index].take_outgoing() {
            pipes[1 - index].push_back(message.encode());
        }
        match side {
            Side::Device => self.store(),
            Side::Host => self.take_completions(),
        }
    }

    fn store(&mut self) {
        while let Some(request) = self.domains[1].take_store() {
            if request.stream == WRITES {
                let cursor = &mut self.cursors[0];
                assert!(request.sequence > *cursor, "a request reached the store twice or out of order");
                *cursor = request.sequence;
                let units = self.shared.units[&request.descriptor.slot.0].clone();
                self.stored.insert((request.stream, request.sequence), units);
            }
            let Bench { domains, shared, .. } = self;
            domains[1].stored(request, &mut TestEnv { side: Side::Device, shared });
        }
    }

    fn take_completions(&mut self) {
        while let Some(request) = self.domains[0].take_completion() {
            let known = self.inflight.remove(&(request.stream, request.sequence));
            assert!(known.is_some(), "completed twice or never submitted: {request:?}");
            if request.stream == READS {
                let expected: Vec<u64> =
                    (0..self.stages).rev().filter(|s| !request.descriptor.skips(*s as u8)).map(u64::from).collect();
                for unit in &self.shared.units[&request.descriptor.slot.0] {
                    assert_eq!(unit[1..], expected[..], "inverse stages of {request:?}");
                }
            }
            self.delivered.push(request);
        }
    }

    /// A domain dies at a point of no progress of its own; the other lives on; everything is recovered.
    fn kill(&mut self, dead: Side) {
        let alive = [dead != Side::Host, dead != Side::Device];
        for pipe in &mut self.pipes {
            pipe.clear();
        }
        let defaults = vec![Side::Host; usize::from(self.stages)];
        let delivered = self.delivered.iter().filter(|r| r.stream == WRITES).count() as u64;
        let delivered_reads = self.delivered.iter().filter(|r| r.stream == READS).count() as u64;
        // A failed request never reaches the store, so that the cursor alone may lie before what was delivered.
        let mut gates = [0; STREAMS_MAX];
        gates[0] = self.cursors[0].max(delivered);
        for side in [dead, dead.other()] {
            let Bench { domains, shared, .. } = self;
            if side == dead {
                domains[side as usize] = Domain::new(side, plan(self.stages), &defaults, &gates);
                domains[side as usize].set_delivered(WRITES, delivered);
                domains[side as usize].set_delivered(READS, delivered_reads);
            }
            let result = domains[side as usize].recover(alive, &defaults, &gates, &mut TestEnv { side, shared });
            self.resolutions.extend(result);
        }
        self.replay(gates[0]);
    }

    fn replay(&mut self, cursor: u64) {
        let inflight: Vec<Request> = self.inflight.values().copied().collect();
        for mut request in inflight {
            let failed = self.shared.failed.get(&request.descriptor.slot.0).copied();
            if request.stream == WRITES && request.sequence <= cursor {
                request.status = failed.unwrap_or(Status::SUCCESS);
                let Bench { domains, shared, .. } = self;
                let message = Message { kind: Kind::Complete(request) };
                domains[0].receive(message, &mut TestEnv { side: Side::Host, shared });
            } else {
                self.submit(request);
            }
        }
        self.take_completions();
    }
}

/// The oracle: the same requests through the stages one by one.
fn expected(bench: &Bench, count: u64) -> BTreeMap<(StreamId, u64), Vec<Vec<u64>>> {
    let mut hashes = vec![0u64; usize::from(bench.stages)];
    let mut out = BTreeMap::new();
    for request in bench.delivered.iter().filter(|r| r.stream == WRITES) {
        let mut units = Bench::content(request);
        let poisoned = units[0][0] == u64::from(u32::MAX);
        for (stage, hash) in hashes.iter_mut().enumerate() {
            for unit in &mut units {
                if !request.descriptor.skips(stage as u8) && !poisoned {
                    let content = unit.iter().fold(request.sequence, |a, b| mix(a, *b));
                    *hash = mix(*hash, content);
                    unit.push(*hash);
                }
            }
        }
        if !poisoned || request.descriptor.flags.count_ones() == u32::from(bench.stages) {
            out.insert((WRITES, request.sequence), units);
        }
    }
    assert_eq!(bench.delivered.iter().filter(|r| r.stream == WRITES).count() as u64, count);
    out
}

struct Story {
    moves: u64,
    kills: u64,
    damages: u64,
    resolutions: Vec<Resolution>,
}

/// One seed: writes and reads in bursts while actors move, and perhaps domains die and checkpoints rot.
fn story(seed: u64, with_kills: bool, with_damage: bool, flaws: Flaws) -> Story {
    let mut rng = Rng(seed ^ 0x5eed);
    let stages = 1 + rng.below(4) as u16;
    let depth = [1, 8, 32][rng.below(3) as usize];
    let mut bench = Bench::new(seed, stages);
    bench.shared.flaws = flaws;
    let total = 60 + rng.below(120);
    let mut next = [1u64, 1u64];
    let mut story = Story { moves: 0, kills: 0, damages: 0, resolutions: Vec::new() };
    // A turn advances time, so that every chunk ends and the story has an end.
    for turn in 0..1_000_000u64 {
        assert!(turn < 999_999, "seed {seed}: no progress");
        bench.now.0 += 1 + rng.below(20);
        for (queue, stream) in [WRITES, READS].into_iter().enumerate() {
            let inflight = bench.inflight.keys().filter(|k| k.0 == stream).count() as u64;
            if next[queue] <= total && inflight < depth && rng.one_in(2) {
                let request = bench.request(stream, next[queue]);
                bench.submit(request);
                next[queue] += 1;
            }
        }
        if rng.one_in(6) {
            story.moves += u64::from(bench.move_actor(ActorId(rng.below(u64::from(stages)) as u16)));
        }
        if with_damage && rng.one_in(9) {
            let record = &bench.shared.records[rng.below(u64::from(stages)) as usize];
            record.bytes.borrow_mut()[rng.below(CHECKPOINT_BYTES as u64) as usize] ^= 1 << rng.below(8);
            story.damages += 1;
        }
        if with_kills && rng.one_in(60) {
            bench.kill(if rng.one_in(2) { Side::Host } else { Side::Device });
            story.kills += 1;
        }
        bench.turn(if rng.one_in(2) { Side::Host } else { Side::Device });
        if next == [total + 1, total + 1] && bench.inflight.is_empty() {
            break;
        }
    }
    for stream in [WRITES, READS] {
        let sequences: Vec<u64> = bench.delivered.iter().filter(|r| r.stream == stream).map(|r| r.sequence).collect();
        assert_eq!(sequences, (1..=total).collect::<Vec<_>>(), "seed {seed}: lost, repeated or out of order");
    }
    assert_eq!(bench.stored, expected(&bench, total), "seed {seed}: bytes differ from a run without migration");
    story.resolutions = bench.resolutions;
    story
}

#[test]
fn migrations_in_bursts_lose_repeat_and_reorder_nothing() {
    let moves: u64 = (0..400).map(|seed| story(seed, false, false, Flaws::default()).moves).sum();
    assert!(moves > 10_000, "only {moves} migrations were tried");
}

#[test]
fn damaged_checkpoints_are_refused_and_nothing_is_lost() {
    let damages: u64 = (0..200).map(|seed| story(seed, false, true, Flaws::default()).damages).sum();
    assert!(damages > 1_000);
}

#[test]
fn a_dead_domain_is_recovered_by_the_rules() {
    let stories: Vec<Story> = (0..400).map(|seed| story(seed, true, false, Flaws::default())).collect();
    assert!(stories.iter().map(|s| s.kills).sum::<u64>() > 500);
    let seen = |f: fn(&Resolution) -> bool| stories.iter().flat_map(|s| &s.resolutions).any(f);
    assert!(seen(|r| matches!(r, Resolution::RolledBack(_))), "no roll-back was seen");
    assert!(seen(|r| matches!(r, Resolution::RolledForward(_))), "no roll-forward was seen");
}

#[test]
fn a_planted_defect_is_found() {
    let flaws = Flaws { forget_globals: true };
    let found = (0..20).any(|seed| std::panic::catch_unwind(|| story(seed, false, false, flaws)).is_err());
    assert!(found, "an actor that loses its globals on the way was not noticed");
}

#[test]
fn recovery_decides_as_the_design_says() {
    let ready = OwnerState { generation: 7, owner: Side::Host, phase: Phase::Ready { to: Side::Device } };
    let cases = [
        ([true, false], Resolution::RolledBack(Side::Host)),
        ([false, true], Resolution::RolledForward(Side::Device)),
        ([false, false], Resolution::RolledBack(Side::Host)),
    ];
    for (alive, expected) in cases {
        let record = CellRecord { word: Cell::new(ready.encode()), bytes: RefCell::new([0; CHECKPOINT_BYTES]) };
        assert_eq!(migrate::resolve(&record, alive, Side::Device), expected);
        assert_eq!(migrate::resolve(&record, alive, Side::Device), Resolution::Kept(expected.owner()), "idempotent");
    }
}

#[test]
fn every_owner_word_reads_back_and_nothing_else_does() {
    for generation in [0, 1, u64::from(u32::MAX), (1 << 56) - 1] {
        for owner in [Side::Host, Side::Device] {
            for phase in [Phase::Active, Phase::Ready { to: owner.other() }] {
                let state = OwnerState { generation, owner, phase };
                assert_eq!(OwnerState::decode(state.encode()), Some(state));
            }
        }
    }
    assert_eq!(OwnerState::decode(0), None);
    assert_eq!(OwnerState::decode(u64::MAX), None);
}

#[test]
fn a_checkpoint_with_any_bit_flipped_is_refused() {
    let mut bench = Bench::new(1, 2);
    let request = bench.request(WRITES, 9);
    let current = Some(migrate::Partial { request, unit: 2, resume: true });
    let checkpoint =
        Checkpoint { actor: ActorId(1), generation: 5, globals: [1, 2, 3, 4], gates: [8; STREAMS_MAX], current };
    let bytes = checkpoint.encode();
    assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint));
    for bit in 0..CHECKPOINT_BYTES * 8 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Checkpoint::decode(&damaged), Err(migrate::CheckpointError::Damaged), "bit {bit}");
    }
}
