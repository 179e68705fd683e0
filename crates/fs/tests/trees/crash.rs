//! The power is cut at every write: what a file system is at its next mount.
//!
//! A recorder keeps every block that is written, and every flush. A cut keeps all that was written before the last
//! flush that had ended, and of what came later any choice, in any order, block by block. After each cut the file
//! system must mount, be in order, be what it was after some operation, and that no earlier than the last one that was
//! made persistent, in the log or in the store; and every block of a file must hold what some operation since then had
//! written there.

use std::io;
use std::sync::{Arc, Mutex};

use osier_fs::{Blocks, FileSystem, MemoryBlocks, NewNode, ROOT, S_IFREG, WriteEffects, check};

use crate::model::{BLOCK, Model};
use crate::operations::{Pair, read_all};
use crate::{BLOCKS, Random, time};

/// Cuts of one history, about.
const CUTS_OF_A_HISTORY: usize = 300;

/// What was asked of the blocks.
enum Event {
    Write(u64, Vec<u8>),
    Flush,
}

/// Blocks that remember what was asked of them.
struct Recorder {
    inner: MemoryBlocks,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    fn push(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }

    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

impl Blocks for Recorder {
    fn blocks(&self) -> u64 {
        self.inner.blocks()
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.inner.read(block, bytes)
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        for (index, part) in bytes.chunks(BLOCK).enumerate() {
            self.push(Event::Write(block + index as u64, part.to_vec()));
        }
        self.inner.write(block, bytes)
    }

    fn zero(&self, block: u64, blocks: u64) -> io::Result<()> {
        (block..block + blocks).for_each(|block| self.push(Event::Write(block, vec![0; BLOCK])));
        self.inner.zero(block, blocks)
    }

    fn deallocate(&self, block: u64, blocks: u64) -> io::Result<()> {
        // Bytes that nobody must see, from this moment on or never.
        (block..block + blocks).for_each(|block| self.push(Event::Write(block, vec![0xDB; BLOCK])));
        self.inner.deallocate(block, blocks)
    }

    fn flush(&self) -> io::Result<()> {
        self.push(Event::Flush);
        self.inner.flush()
    }
}

/// The model after an operation, how many events there were by then, and what of it was persistent.
struct Moment {
    model: Model,
    events: usize,
    /// All of it.
    is_committed: bool,
    /// The bytes of this file, at least.
    synced: Option<u64>,
}

/// What is metadata: bytes that are overwritten in place may be newer than they.
fn without_bytes(model: &Model) -> Model {
    let mut model = model.clone();
    model.held.clear();
    model.nodes.retain(|_, node| node.links > 0);
    for node in model.nodes.values_mut() {
        let (length, blocks) = (node.bytes.len(), node.bytes.len().div_ceil(BLOCK));
        if node.is_regular() {
            node.bytes = length.to_le_bytes().to_vec();
        }
        node.written.retain(|block| *block < blocks);
        node.parent = if node.is_directory() { node.parent } else { 0 };
    }
    model
}

/// A history of operations, and all that was asked of the blocks meanwhile.
fn history(seed: u64, steps: usize) -> (Vec<Event>, Vec<Moment>, usize) {
    let recorder = Arc::new(Recorder { inner: MemoryBlocks::new(BLOCKS), events: Mutex::default() });
    let mut pair = Pair::new(Arc::clone(&recorder) as Arc<dyn Blocks>, seed);
    let start = recorder.count();
    let mut moments = vec![Moment { model: pair.model.clone(), events: start, is_committed: true, synced: None }];
    for _ in 0..steps {
        pair.step();
        let number = pair.node();
        let is_committed = match pair.random.below(50) {
            0 => pair.system.checkpoint() == Ok(()),
            1..5 => pair.system.commit() == Ok(()),
            5..12 => pair.system.sync(number, true) == Ok(()),
            _ => false,
        };
        let is_synced = !is_committed && pair.random.below(8) == 0;
        if is_synced {
            pair.system.sync(number, false).unwrap();
        }
        let synced = is_synced.then_some(number);
        moments.push(Moment { model: pair.model.clone(), events: recorder.count(), is_committed, synced });
    }
    // Its end is a commit, too, and no crash.
    let events = std::mem::take(&mut *recorder.events.lock().unwrap());
    (events, moments, start)
}

/// What the blocks hold when the power is cut before an event.
fn cut(events: &[Event], at: usize, random: &mut Random) -> Vec<u8> {
    let flushed = events[..at].iter().rposition(|event| matches!(event, Event::Flush)).unwrap_or(0);
    let mut bytes = vec![0; BLOCKS * BLOCK];
    let mut put = |event: &Event| {
        if let Event::Write(block, data) = event {
            let from = *block as usize * BLOCK;
            bytes[from..from + BLOCK].copy_from_slice(data);
        }
    };
    events[..flushed].iter().for_each(&mut put);
    // All, none, or any of the others, in any order.
    let share = random.below(5);
    let mut loose: Vec<&Event> = events[flushed..at].iter().filter(|_| random.below(4) < share).collect();
    if share < 4 {
        for index in (1..loose.len()).rev() {
            loose.swap(index, random.below(index as u64 + 1) as usize);
        }
    }
    loose.into_iter().for_each(&mut put);
    bytes
}

/// The bytes of a block, as far as a file of `size` bytes has them.
fn valid(bytes: &[u8], block: usize, size: usize) -> Vec<u8> {
    let from = (block * BLOCK).min(bytes.len());
    let mut valid = bytes[from..bytes.len().min(from + BLOCK)].to_vec();
    valid.resize(BLOCK.min(size - block * BLOCK), 0);
    valid
}

/// Every block that was written holds what was written there at one of the moments: not what another file had there,
/// nor nothing. Of what was not overwritten since the commit that is what was committed, and of a file that was synced
/// since, what was synced.
fn check_bytes(there: &Model, moments: &[Moment], at: usize, place: &str) {
    for (number, node) in there.nodes.iter().filter(|(_, node)| node.is_regular()) {
        let synced = moments.iter().rposition(|moment| moment.synced == Some(*number) && moment.events <= at);
        let moments = &moments[synced.unwrap_or(0)..];
        let size = node.bytes.len();
        for block in node.written.iter().copied().filter(|block| block * BLOCK < size) {
            let found = valid(&node.bytes, block, size);
            let is_one = moments
                .iter()
                .filter_map(|moment| moment.model.nodes.get(number))
                .any(|moment| moment.written.contains(&block) && valid(&moment.bytes, block, size) == found);
            assert!(
                is_one,
                "{place}: block {block} of {number} holds what was never there: {:?}",
                &found[..8.min(found.len())]
            );
        }
    }
}

fn check_cut(events: &[Event], moments: &[Moment], at: usize, seed: u64) {
    let place = format!("seed {seed}, cut at {at}");
    let bytes = cut(events, at, &mut Random(seed << 32 | at as u64));
    let system =
        FileSystem::mount(Arc::new(MemoryBlocks::from_bytes(bytes))).unwrap_or_else(|error| panic!("{place}: {error}"));
    let faults = check(&system).unwrap().faults;
    assert!(faults.is_empty(), "{place}: {faults:?}");
    let there = read_all(&system);
    let committed = moments.iter().rposition(|moment| moment.is_committed && moment.events <= at).unwrap();
    // The operation under way at the cut may be there, too.
    let last = moments.iter().position(|moment| moment.events > at).unwrap_or(moments.len() - 1);
    let metadata = without_bytes(&there);
    let is_one = moments[committed..=last].iter().any(|moment| without_bytes(&moment.model) == metadata);
    assert!(is_one, "{place}: it is what it was after none of the operations {committed} to {last}");
    check_bytes(&there, &moments[committed..=last], at, &place);
}

#[test]
fn a_cut_at_any_write_leaves_what_some_operation_left_and_nothing_committed_is_lost() {
    let mut cuts = 0;
    for seed in 1..=12 {
        let (events, moments, start) = history(seed, 250);
        // As many of them as there is time for, from everywhere.
        let step = ((events.len() - start) / CUTS_OF_A_HISTORY).max(1);
        for at in (start + seed as usize % step..=events.len()).step_by(step) {
            check_cut(&events, &moments, at, seed);
            cuts += 1;
        }
    }
    assert!(cuts >= 2000, "only {cuts} cuts");
}

#[test]
fn what_was_overwritten_and_synced_is_not_undone_by_a_record_before_it() {
    for (length, is_much) in [(BLOCK, false), (16 * BLOCK, true)] {
        let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
        let system = FileSystem::format(Arc::clone(&blocks), [3; 16], (0, 0), time(0)).unwrap();
        let node = NewNode { mode: S_IFREG | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
        let (number, _) = system.create(ROOT, b"file", &node, time(0)).unwrap();
        let effects = WriteEffects { now: None, is_unprivileged: false };
        system.write(number, 0, &vec![1; length], effects).unwrap();
        system.write(number, 0, &[2; BLOCK], effects).unwrap();
        // A record with the first block; then that is overwritten in place, with one write or among much else.
        system.sync(number, true).unwrap();
        let newer = vec![3; if is_much { length } else { BLOCK }];
        system.write(number, 0, &newer, effects).unwrap();
        system.sync(number, false).unwrap();
        drop(system);
        let system = FileSystem::mount(blocks).unwrap();
        assert!(system.read(number, 0, newer.len()).unwrap() == newer, "{length}");
    }
}
