//! Random work is recorded and replayed: nothing may differ. Damage, nondeterminism and a sink that takes no more are
//! found and said.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use osier_flash::{Lba, MediaError, MediaOp, MediaOpKind, MediaResult, Nanos};

use super::input::{self, Digest, Input, KINDS, Op};
use super::*;
use crate::core::tests::bench::{Draw, params, small_profile};
use crate::core::{CommandId, DeviceParams, Planted, UnitMeta, WriteMeta};
use crate::predict::Crossing;
use crate::profile::{Engine, Profile};

/// Random runs in the test of the property; each has several lives.
const SEEDS: u32 = 120;
const LOGICAL_BLOCKS: u64 = 260;
const BUFFER_BYTES: usize = 320 << 10;
/// Room for blocks in the sink that runs full.
const SINK_BLOCKS: usize = 3;
/// Far more than the core of these tests takes.
const MEMORY_BYTES_MAX: u64 = 64 << 20;
/// Recordings in which records are changed.
const HOSTILE: u64 = 4_000;

/// A file in memory, which may take so many blocks only.
#[derive(Clone)]
pub(super) struct Shelf {
    pub(super) bytes: Rc<RefCell<Vec<u8>>>,
    left: Rc<RefCell<usize>>,
}

impl Shelf {
    pub(super) fn new(blocks: usize) -> Shelf {
        Shelf { bytes: Rc::default(), left: Rc::new(RefCell::new(blocks)) }
    }
}

impl Sink for Shelf {
    fn block(&mut self, block: Vec<u8>, urgency: Urgency) -> Result<(), String> {
        let mut left = self.left.borrow_mut();
        match (*left, urgency) {
            (0, Urgency::Now | Urgency::MayWait) => return Err("the shelf is full".to_owned()),
            (0, Urgency::Last) => {}
            _ => *left -= 1,
        }
        self.bytes.borrow_mut().extend_from_slice(&block);
        Ok(())
    }
}

/// Replays a file; the lives, or why not.
pub(super) fn replay(bytes: &[u8], bug: Option<Planted>) -> Result<Vec<Life>, ReplayError> {
    let mut replay = Replay::new(MEMORY_BYTES_MAX);
    if let Some(bug) = bug {
        replay.plant(bug);
    }
    let (mut from, mut at) = (bytes, 0);
    loop {
        let before = from.len();
        match read_block(&mut from, at)? {
            Next::Block(header, records) => replay.block(at, &header, &records)?,
            Next::Torn(_) | Next::End => break,
        }
        at += (before - from.len()) as u64;
    }
    replay.finish();
    Ok(replay.lives().to_vec())
}

/// A device, its media, and what is done to both.
struct World {
    profile: Profile,
    params: DeviceParams,
    origin: Origin,
    shelf: Shelf,
    device: Recorded<Vec<u8>>,
    media: Vec<u8>,
    taken: Vec<MediaOp>,
    now: Nanos,
    draw: Draw,
    number: u64,
    sequences: [u64; 4],
    last_written: Option<(UnitMeta, Vec<u8>)>,
}

/// What a world is to be like.
#[derive(Clone, Copy, Debug)]
struct Habits {
    protected: bool,
    with_data: bool,
    /// Of so many answers of the media one is wrong; 0 for none.
    faults_in: u64,
}

impl World {
    fn new(seed: u64, habits: Habits, shelf: Shelf) -> World {
        let text = Profile::built_in_text("smartssd").expect("built in");
        let text = text.replace("over_provisioning_permille = 70", "over_provisioning_permille = 100");
        let text = text.replace("pmr_persistent = true", &format!("pmr_persistent = {}", habits.protected));
        let text = text.replace("pmr_persistent = false", &format!("pmr_persistent = {}", habits.protected));
        let origin = Origin {
            profile_name: "smartssd".to_owned(),
            profile_text: text,
            rate_divisor: 2,
            thermal_time_scale: 1000,
            life: 0,
        };
        let profile = Profile::parse("smartssd", &origin.profile_text).expect("a profile").scaled(2, 1000);
        let small = small_profile(habits.protected);
        let params = DeviceParams { with_data: habits.with_data, ..params(&small, LOGICAL_BLOCKS) };
        let media = vec![0; params.geometry.media_bytes() as usize];
        let tape = Tape::new(0, Box::new(shelf.clone()));
        let device = Recorded::create(&profile, params, vec![0; BUFFER_BYTES], &origin, tape).expect("made");
        World {
            profile,
            params,
            origin,
            shelf,
            device,
            media,
            taken: Vec::new(),
            now: Nanos(1_000),
            draw: Draw::new(seed),
            number: 0,
            sequences: [0; 4],
            last_written: None,
        }
    }

    fn unit(&mut self) -> (UnitMeta, Vec<u8>) {
        let blocks = 1 + self.draw.below(4) as u16;
        // Beyond the end now and then.
        let slba = Lba(self.draw.below(LOGICAL_BLOCKS + 1));
        let raw_bytes = u32::from(blocks) * 4096;
        let stored_bytes = match self.draw.below(8) {
            0 => self.draw.below(6) as u32,
            1 => raw_bytes,
            _ => self.draw.below(u64::from(raw_bytes)) as u32,
        };
        let length = if self.params.with_data { stored_bytes } else { 0 };
        let payload = (0..length).map(|_| self.draw.next() as u8).collect();
        (UnitMeta { slba, blocks, raw_bytes, stored_bytes, tag: self.draw.below(3) as u32 }, payload)
    }

    fn write(&mut self) {
        let stream = self.draw.below(4) as u16;
        let again = self.draw.one_in(10);
        let sequence = &mut self.sequences[usize::from(stream)];
        *sequence += u64::from(!again);
        let meta = WriteMeta {
            stream,
            stream_sequence: *sequence,
            fua: self.draw.one_in(12),
            crossing: if self.draw.one_in(2) { Crossing::Raw } else { Crossing::Stored },
        };
        let id = CommandId(self.number);
        if self.draw.one_in(9) {
            let (slba, blocks) = (Lba(self.draw.below(LOGICAL_BLOCKS)), 1 + self.draw.below(9) as u32);
            return self.device.submit_trim(self.now, id, meta, slba, blocks);
        }
        let units: Vec<_> = (0..1 + self.draw.below(3)).map(|_| self.unit()).collect();
        let payloads: Vec<&[u8]> = units.iter().map(|(_, payload)| payload.as_slice()).collect();
        let metas: Vec<UnitMeta> = units.iter().map(|(meta, _)| *meta).collect();
        self.device.submit_write(self.now, id, meta, &metas, &payloads);
        self.last_written = units.last().cloned();
    }

    fn step(&mut self, habits: Habits) {
        self.number += 1;
        self.now = self.now.saturating_add(self.draw.below(40_000));
        match self.draw.below(12) {
            0..=3 => self.write(),
            4 => {
                let (slba, blocks) = (Lba(self.draw.below(LOGICAL_BLOCKS)), 1 + self.draw.below(20) as u32);
                self.device.submit_read(self.now, CommandId(self.number), slba, blocks, Crossing::Raw);
            }
            5 if self.draw.one_in(3) => self.device.submit_flush(self.now, CommandId(self.number)),
            6 => {
                let (now, bytes) = (self.now, self.draw.below(9_000) as u32);
                let engine = Engine::ALL[self.draw.below(4) as usize];
                // A look that is elided, and one that is not.
                let _ = self.device.compute(now).speed_permille();
                let due = self.device.compute(now).run(now, Some(1), engine, bytes);
                let later = due.unwrap_or(now);
                let _ = self.device.compute(now).run(later, None, engine, 100);
                let _ = self.device.compute(now).go_on(later, Some(0), engine, 50);
            }
            7 => _ = self.device.sample(self.now),
            8 if self.draw.one_in(40) => self.device.set_temperature_millicelsius(101_000),
            _ => {
                let next = self.device.next_event().filter(|_| self.draw.one_in(3));
                self.now = next.unwrap_or(self.now).max(self.now);
                self.device.poll(self.now, &mut Vec::new());
            }
        }
        while let Some(op) = self.device.next_op() {
            self.taken.push(op);
        }
        if !self.taken.is_empty() && self.draw.below(4) > 0 {
            let op = self.taken.swap_remove(self.draw.below(self.taken.len() as u64) as usize);
            let result = self.perform(op.kind, habits);
            self.device.media_done(self.now, op.id, result);
        }
    }

    fn perform(&mut self, kind: MediaOpKind, habits: Habits) -> MediaResult {
        let fails = habits.faults_in > 0 && self.draw.one_in(habits.faults_in);
        match kind {
            MediaOpKind::Read { .. } if !self.params.with_data => MediaResult::Read(Box::default()),
            MediaOpKind::Read { .. } if fails && self.draw.one_in(2) => MediaResult::Failed(MediaError::Io),
            MediaOpKind::Read { address, bytes } => {
                let mut found = self.media[address as usize..][..bytes as usize].to_vec();
                if fails {
                    let rotten = self.draw.below(u64::from(bytes)) as usize;
                    found[rotten] ^= 1 << self.draw.below(8);
                }
                MediaResult::Read(found.into())
            }
            MediaOpKind::Program { address, data, .. } => {
                if let Some(data) = &data {
                    self.media[address as usize..][..data.len()].copy_from_slice(data);
                }
                MediaResult::Programmed(data)
            }
            MediaOpKind::Erase { .. } if fails && self.draw.one_in(9) => MediaResult::Failed(MediaError::Io),
            MediaOpKind::Erase { address, bytes } => {
                self.media[address as usize..][..bytes as usize].fill(0xff);
                MediaResult::Erased
            }
            MediaOpKind::Sync => MediaResult::Synced,
        }
    }

    /// The process dies, with a page half programmed, and comes up again.
    fn die(&mut self) {
        for op in std::mem::take(&mut self.taken) {
            if let MediaOpKind::Program { address, data: Some(data), .. } = op.kind {
                let done = self.draw.below(data.len() as u64 + 1) as usize;
                self.media[address as usize..][..done].copy_from_slice(&data[..done]);
            }
        }
        self.origin.life += 1;
        let spare = Tape::new(0, Box::new(Shelf::new(usize::MAX)));
        let fresh = Recorded::create(&self.profile, self.params, vec![0; BUFFER_BYTES], &self.origin, spare);
        let dead = std::mem::replace(&mut self.device, fresh.expect("made"));
        let buffer = dead.into_buffer();
        let tape = Tape::new(self.origin.life, Box::new(self.shelf.clone()));
        let media = &self.media;
        let mut read = |address: u64, into: &mut [u8]| {
            into.copy_from_slice(&media[address as usize..][..into.len()]);
            Ok(())
        };
        let recovered = Recorded::recover(&self.profile, self.params, buffer, &mut read, &self.origin, tape);
        self.device = recovered.expect("the device comes up again").0;
        self.now = self.now.saturating_add(1_000_000);
    }
}

/// A run of several lives; the file.
fn recorded(seed: u64, habits: Habits, steps: u64, bug: Option<Planted>) -> (Vec<u8>, crate::DeviceStats) {
    let mut world = World::new(seed, habits, Shelf::new(usize::MAX));
    if let Some(bug) = bug {
        world.device.plant(bug);
    }
    let lives = if habits.with_data { 3 } else { 1 };
    for life in 0..lives {
        (0..steps).for_each(|_| world.step(habits));
        if life + 1 < lives {
            world.die();
        }
    }
    world.device.end_recording();
    let bytes = world.shelf.bytes.borrow().clone();
    (bytes, world.device.stats())
}

const PLAIN: Habits = Habits { protected: false, with_data: true, faults_in: 0 };

proptest! {
    #![proptest_config(ProptestConfig { cases: SEEDS, ..ProptestConfig::default() })]

    #[test]
    fn random_inputs_replay_to_the_same_outputs(
        seed: u64,
        protected: bool,
        with_data in prop::bool::weighted(0.85),
        faults_in in prop_oneof![Just(0_u64), Just(6), Just(60)],
    ) {
        let habits = Habits { protected, with_data, faults_in };
        let (bytes, stats) = recorded(seed, habits, 700, None);
        let lives = replay(&bytes, None);
        prop_assert!(lives.is_ok(), "{habits:?}: {}", lives.unwrap_err());
        let lives = lives.unwrap();
        let last = lives.last().expect("a life");
        prop_assert_eq!(last.statistics, Some(Figures::Device(stats)));
        prop_assert_eq!(&last.ending, &Ending::InOrder);
        prop_assert!(lives[..lives.len() - 1].iter().all(|life| life.ending == Ending::Open));
    }
}

#[test]
fn a_run_meets_what_is_hard_to_replay() {
    let mut found = std::collections::BTreeMap::new();
    let mut damaged = 0;
    for seed in 0..6 {
        let (bytes, _) = recorded(seed, Habits { faults_in: 4, ..PLAIN }, 4_000, None);
        for life in replay(&bytes, None).unwrap() {
            if let Some(Figures::Device(stats)) = life.statistics {
                damaged += stats.flash.damaged_relocated;
            }
            for (kind, count) in life.kinds {
                *found.entry(kind).or_insert(0) += count;
            }
        }
    }
    // Those from 64 on are a window's.
    for kind in KINDS.iter().filter(|kind| kind.code < 64 && kind.name != "Stopped") {
        assert!(found.get(kind.name).is_some_and(|count| *count > 0), "no run had a {}: {found:?}", kind.name);
    }
    assert!(damaged > 0, "nothing damaged was collected");
}

#[test]
fn no_payload_is_in_a_recording() {
    let mut world = World::new(5, PLAIN, Shelf::new(usize::MAX));
    let mut written = Vec::new();
    for _ in 0..2_000 {
        world.step(PLAIN);
        written.extend(world.last_written.take().filter(|(_, payload)| payload.len() >= 64));
    }
    world.die();
    (0..500).for_each(|_| world.step(PLAIN));
    world.device.end_recording();
    let bytes = world.shelf.bytes.borrow();
    let windows: std::collections::BTreeSet<&[u8]> = bytes.windows(16).collect();
    assert!(written.len() > 300);
    for (_, payload) in &written {
        assert!(payload.chunks_exact(16).all(|part| !windows.contains(part)));
    }
    // The check can fail: of a medium that has rotted the bytes are recorded.
    let (rotten, _) = recorded(5, Habits { faults_in: 4, ..PLAIN }, 2_000, None);
    let bytes_kept = replay(&rotten, None).unwrap().iter().any(|life| life.kinds.contains_key("MediaReadBytes"));
    assert!(bytes_kept);
}

#[test]
fn a_core_with_state_of_others_is_found_out() {
    let bug = Some(Planted::SharedState);
    let (bytes, _) = recorded(7, PLAIN, 400, bug);
    let Err(ReplayError::Differs(difference)) = replay(&bytes, bug) else { panic!("it replays the same") };
    assert_eq!(difference.life, 0);
    assert!(difference.what.contains("due") || difference.what.contains("commands ended"), "{difference}");
    // Any other core than the recorded one is found too, at the first output that shows it.
    let (bytes, _) = recorded(7, PLAIN, 400, None);
    assert!(matches!(replay(&bytes, bug), Err(ReplayError::Differs(_))));
    assert!(replay(&bytes, None).is_ok());
}

#[test]
fn a_flipped_bit_anywhere_is_found() {
    let (mut bytes, _) = recorded(3, PLAIN, 60, None);
    let mut draw = Draw::new(1);
    for _ in 0..60 {
        let (at, bit) = (draw.below(bytes.len() as u64) as usize, 1 << draw.below(8));
        bytes[at] ^= bit;
        let outcome = replay(&bytes, None);
        // A block that says that it is longer than the file looks like one that was never finished, in the last one.
        let is_cut = outcome.as_ref().is_ok_and(|lives| lives.last().is_none_or(|life| life.ending == Ending::Open));
        assert!(matches!(outcome, Err(ReplayError::Recording(_))) || is_cut, "byte {at}: {outcome:?}");
        bytes[at] ^= bit;
    }
    assert!(replay(&bytes, None).is_ok());
}

/// A block whose length is wrong, with another one behind it, was not being written when its writer died.
#[test]
fn a_wrong_length_of_a_block_that_is_not_the_last_is_damage() {
    let (bytes, _) = recorded(9, PLAIN, 8_000, None);
    let mut begins = Vec::new();
    let mut from = bytes.as_slice();
    loop {
        begins.push(bytes.len() - from.len());
        if !matches!(read_block(&mut from, 0).unwrap(), Next::Block(..)) {
            break;
        }
    }
    let end = begins.pop().unwrap();
    assert_eq!(end, bytes.len());
    let last = begins.pop().unwrap();
    assert!(begins.len() > 4);
    let with_length = |at: usize, length: u32| {
        let mut bytes = bytes.clone();
        bytes[at + 32..at + 36].copy_from_slice(&length.to_le_bytes());
        replay(&bytes, None)
    };
    for &at in &begins {
        for length in [0, 1, (end - at) as u32, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 1] {
            let error = with_length(at, length).unwrap_err();
            assert!(matches!(error, ReplayError::Recording(RecordingError::Damaged { .. })), "{error}");
        }
    }
    // Of the last one nobody can tell.
    assert_eq!(with_length(last, BLOCK_BYTES_MAX).unwrap().last().unwrap().ending, Ending::Open);
}

/// The records of a recording's last life, each in the bytes that it has.
pub(super) fn records_of(bytes: &[u8]) -> Vec<(Nanos, Input, Vec<u8>)> {
    let (mut from, mut records) = (bytes, Vec::new());
    let mut before = Nanos(0);
    while let Next::Block(header, block) = read_block(&mut from, 0).unwrap() {
        if header.number == 0 {
            records.clear();
            before = Nanos(0);
        }
        let mut reader = super::wire::Reader::new(&block);
        while !reader.is_empty() {
            let (now, input, check) = input::take(&mut reader, before).unwrap();
            let mut record = Vec::new();
            input::put(&mut record, before, now, &input, &Digest::new());
            if let Some(check) = check {
                let fields = record.len() - 4;
                record[fields..].copy_from_slice(&check.to_le_bytes());
            }
            before = now;
            records.push((now, input, record));
        }
    }
    records
}

/// Blocks that fit their checksums do not make the core take an answer of the media that it did not ask for.
#[test]
fn an_answer_of_the_media_that_nobody_asked_for_is_damage() {
    let habits = Habits { faults_in: 4, ..PLAIN };
    let mut world = World::new(5, habits, Shelf::new(usize::MAX));
    (0..2_000).for_each(|_| world.step(habits));
    world.device.end_recording();
    let records = records_of(&world.shelf.bytes.borrow());
    let find = |fits: &dyn Fn(&Input) -> bool| records.iter().position(|(_, input, _)| fits(input)).unwrap();
    let programmed = find(&|input| matches!(input, Input::MediaProgrammed { .. }));
    let read = find(&|input| matches!(input, Input::MediaRead { .. }));
    let bytes_read = find(&|input| matches!(input, Input::MediaReadBytes { .. }));
    let op_of = |at: usize| match &records[at].1 {
        Input::MediaProgrammed { op } | Input::MediaRead { op } | Input::MediaReadBytes { op, .. } => *op,
        other => panic!("{other:?}"),
    };
    let never: Op = osier_flash::OpId(u64::MAX).into();
    let none = super::wire::Blob(Vec::new());
    for (at, wrong) in [
        (programmed, Input::MediaProgrammed { op: never }),
        (programmed, Input::MediaFailed { op: never, error: MediaError::Io }),
        (programmed, Input::MediaErased { op: op_of(programmed) }),
        (programmed, Input::MediaRead { op: op_of(programmed) }),
        (read, Input::MediaProgrammed { op: op_of(read) }),
        (read, Input::MediaSynced { op: op_of(read) }),
        (bytes_read, Input::MediaReadBytes { op: op_of(bytes_read), bytes: none }),
        // Once more.
        (programmed + 1, Input::MediaProgrammed { op: op_of(programmed) }),
    ] {
        let mut block: Vec<u8> = records[..at].iter().flat_map(|(_, _, bytes)| bytes.clone()).collect();
        input::put(&mut block, records[at - 1].0, records[at - 1].0, &wrong, &Digest::new());
        let header = BlockHeader { life: 0, number: 0, first_input: 0, bytes: block.len() as u32 };
        let error = replay(&[&header.encode(&block)[..], &block].concat(), None).unwrap_err();
        assert!(matches!(error, ReplayError::Recording(RecordingError::Damaged { .. })), "{wrong:?}: {error}");
    }
}

/// The file of one life that has these records.
pub(super) fn file_of(records: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    let (mut number, mut first_input) = (0, 0);
    // Blocks of any number of records are sound.
    for records in records.chunks(500) {
        let block = records.concat();
        let header = BlockHeader { life: 0, number, first_input, bytes: block.len() as u32 };
        file.extend_from_slice(&header.encode(&block));
        file.extend_from_slice(&block);
        (number, first_input) = (number + 1, first_input + records.len() as u64);
    }
    file
}

/// A number as records have it, of any size; small and extreme ones are likely.
fn any_number(draw: &mut Draw) -> Vec<u8> {
    use super::wire::Wire as _;
    let number = match draw.below(5) {
        0 => draw.below(4),
        1 => u64::MAX >> draw.below(64),
        2 => 1 << draw.below(64),
        _ => draw.next() >> draw.below(64),
    };
    let mut bytes = Vec::new();
    number.put(&mut bytes);
    bytes
}

/// Changes a record: a byte of it, a number in it, its place, or how often it comes.
fn mutate(records: &mut Vec<Vec<u8>>, draw: &mut Draw) {
    // The first ones say what the core is made with.
    let range = if draw.one_in(3) { 12.min(records.len()) } else { records.len() };
    let at = draw.below(range as u64) as usize;
    let other = draw.below(records.len() as u64) as usize;
    match draw.below(8) {
        0 => records.swap(at, other),
        1 => drop(records.remove(at)),
        2 => {
            let copies = vec![records[at].clone(); 1 + draw.below(200) as usize];
            records.splice(other..other, copies);
        }
        3 => {
            let place = draw.below(records[at].len() as u64) as usize;
            records[at][place] = draw.next() as u8;
        }
        _ => {
            // Where a number begins, and where the next one does.
            let record = &mut records[at];
            let from = 1 + draw.below(record.len() as u64) as usize;
            let from = from.min(record.len() - 1);
            let length = record[from..].iter().position(|byte| byte & 0x80 == 0).map_or(1, |last| last + 1);
            let _ = record.splice(from..from + length, any_number(draw));
        }
    }
}

/// Replays so many changed recordings, none of which may panic; how many are refused, and how many differ.
pub(super) fn replay_mutants(sources: &[Vec<Vec<u8>>], count: u64) -> (u64, u64) {
    let (mut refused, mut differing, mut panics) = (0, 0, Vec::new());
    for seed in 0..count {
        let mut draw = Draw::new(seed);
        let mut records = sources[draw.below(sources.len() as u64) as usize].clone();
        (0..1 + draw.below(4)).for_each(|_| mutate(&mut records, &mut draw));
        match std::panic::catch_unwind(|| replay(&file_of(&records), None)) {
            Ok(Err(ReplayError::Memory { .. } | ReplayError::Recording(_))) => refused += 1,
            Ok(Err(ReplayError::Differs(_))) => differing += 1,
            Ok(Ok(_)) => {}
            Err(_) => panics.push(seed),
        }
    }
    assert!(panics.is_empty(), "{} replays panic, those of the seeds {panics:?}", panics.len());
    (refused, differing)
}

/// Whatever is in blocks that fit their checksums, a replay ends in order, and the core is not its end.
#[test]
fn changed_records_are_refused_or_replayed() {
    let mut sources = Vec::new();
    for seed in 0..8 {
        let habits = Habits { with_data: seed % 4 > 0, faults_in: 6 * (seed % 2), protected: seed % 3 == 0 };
        let mut world = World::new(seed, habits, Shelf::new(usize::MAX));
        (0..300).for_each(|_| world.step(habits));
        if habits.with_data && seed > 3 {
            // A life that begins with what another one has left.
            world.die();
            (0..200).for_each(|_| world.step(habits));
        }
        world.device.end_recording();
        let bytes = world.shelf.bytes.borrow().clone();
        sources.push(records_of(&bytes).into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>());
        let unchanged = replay(&file_of(&sources[seed as usize]), None);
        assert!(unchanged.is_ok(), "seed {seed}: {}", unchanged.unwrap_err());
    }
    let (refused, differing) = replay_mutants(&sources, HOSTILE);
    assert!(refused > 1_000 && differing > 1_000, "{refused} {differing}");
}

/// A few bytes can name much memory: none of it is taken.
#[test]
fn a_recording_that_asks_for_more_memory_than_its_device_has_is_refused_by_name() {
    let (bytes, _) = recorded(3, PLAIN, 60, None);
    let (first_life, _) = recorded(3, Habits { with_data: false, ..PLAIN }, 60, None);
    let sound = records_of(&first_life);
    let make = |change: &dyn Fn(&mut DeviceParams, &mut u64)| {
        let mut records: Vec<Vec<u8>> = sound.iter().map(|(_, _, bytes)| bytes.clone()).collect();
        let mut configure = sound[0].1.clone();
        let Input::Configure { params, buffer_bytes, .. } = &mut configure else { panic!("{configure:?}") };
        change(params, buffer_bytes);
        records[0].clear();
        input::put(&mut records[0], Nanos(0), Nanos(0), &configure, &Digest::new());
        replay(&file_of(&records), None)
    };
    assert!(make(&|_, _| {}).is_ok());
    let says = |change: &dyn Fn(&mut DeviceParams, &mut u64)| make(change).unwrap_err().to_string();
    assert!(says(&|_, buffer| *buffer = 1 << 39).contains("a write buffer of 549755813888 bytes"));
    let large = says(&|params, _| {
        (params.geometry.blocks_per_plane, params.geometry.pages_per_block) = (65_536, 4_096);
        params.geometry.dies_per_channel *= 16;
    });
    assert!(large.contains("where the recorded profile has"), "{large}");
    assert!(says(&|params, _| params.geometry.channels = u32::MAX).contains("a core that cannot be"));
    let thin = says(&|params, _| (params.thin, params.logical_blocks) = (true, u64::from(u32::MAX) - 1));
    assert!(thin.contains("bytes of memory for its map") && thin.contains("--memory"), "{thin}");

    // Of a core that keeps bytes.
    let made = records_of(&bytes);
    let begin = made.iter().position(|(_, input, _)| matches!(input, Input::Begin {})).unwrap();
    let Some(Input::Write { meta, units, .. }) = made
        .iter()
        .map(|(_, input, _)| input.clone())
        .find(|input| matches!(input, Input::Write { units, .. } if units[0].stored_bytes > 4_000))
    else {
        panic!("no write")
    };
    let with = |writes: u64, units: Vec<input::Unit>| {
        let mut records: Vec<Vec<u8>> = made[..=begin].iter().map(|(_, _, bytes)| bytes.clone()).collect();
        for id in 0..writes {
            let mut record = Vec::new();
            let write = Input::Write { id, meta, units: units.clone() };
            input::put(&mut record, Nanos(0), Nanos(0), &write, &Digest::new());
            records.push(record);
        }
        replay(&file_of(&records), None)
    };
    // One that the core refuses by its length is a sound record, however long.
    let long = input::Unit { stored_bytes: 16 << 20, ..units[0].clone() };
    let lives = with(1, vec![long; 2_000]).unwrap();
    assert_eq!(lives[0].kinds["Write"], 1);
    let error = with(20_000, vec![units[0].clone()]).unwrap_err();
    assert!(matches!(error, ReplayError::Memory { bytes_max: MEMORY_BYTES_MAX, .. }), "{error}");
}

#[test]
fn a_recording_that_was_cut_anywhere_replays_as_far_as_it_goes() {
    let (bytes, _) = recorded(4, PLAIN, 60, None);
    let whole = replay(&bytes, None).unwrap();
    let inputs = |lives: &[Life]| lives.iter().map(|life| life.inputs).sum::<u64>();
    for cut in (0..bytes.len()).step_by(331) {
        let lives = replay(&bytes[..cut], None).unwrap();
        assert!(inputs(&lives) < inputs(&whole));
        assert!(lives.iter().all(|life| life.ending == Ending::Open));
    }
}

#[test]
fn blocks_that_are_missing_or_swapped_are_found() {
    let (bytes, _) = recorded(9, PLAIN, 8_000, None);
    let mut blocks = Vec::new();
    let mut from = bytes.as_slice();
    while let Next::Block(header, records) = read_block(&mut from, 0).unwrap() {
        blocks.push([&header.encode(&records)[..], &records].concat());
    }
    assert!(blocks.len() > 5);
    let mut fewer = blocks.clone();
    fewer.remove(2);
    blocks.swap(3, 4);
    for blocks in [fewer, blocks] {
        let error = replay(&blocks.concat(), None).unwrap_err();
        assert!(error.to_string().contains("follows where"), "{error}");
    }
}

#[test]
fn a_sink_that_takes_no_more_ends_the_recording_and_not_the_run() {
    let shelf = Shelf::new(SINK_BLOCKS);
    let mut world = World::new(2, PLAIN, shelf.clone());
    (0..12_000).for_each(|_| world.step(PLAIN));
    assert!(!world.device.is_recorded());
    let lives = replay(&shelf.bytes.borrow(), None).unwrap();
    assert_eq!(lives[0].ending, Ending::Stopped("the shelf is full".to_owned()));
    assert!(lives[0].inputs > 1_000);
    // The device has gone on, and another run of the same seed without a limit comes to the same figures.
    let mut free = World::new(2, PLAIN, Shelf::new(usize::MAX));
    (0..12_000).for_each(|_| free.step(PLAIN));
    assert_eq!(world.device.stats(), free.device.stats());
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    let error = |bytes: &[u8]| replay(bytes, None).unwrap_err().to_string();
    assert!(error(b"this is a text that somebody took for a recording").contains("no recording"));
    let (mut bytes, _) = recorded(1, PLAIN, 20, None);
    bytes[8] = 9;
    assert!(error(&bytes).contains("version 9"));
    assert!(replay(&[], None).unwrap().is_empty());
}

#[test]
fn the_manual_lists_every_kind_of_record() {
    let manual = include_str!("../../../../docs/formats-recording.md");
    for kind in KINDS {
        let fields = kind.fields.join(", ");
        let fields = if fields.is_empty() { "none".to_owned() } else { fields };
        let checked = if kind.checked { "yes" } else { "" };
        let row = format!("| {} | {} | {fields} | {checked} | {} |", kind.code, kind.name, kind.what);
        assert!(manual.contains(&row), "docs/formats-recording.md lacks: {row}");
    }
}
