//! Random operations on a file system and its model, and their comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use osier_fs::{
    Allocation, Blocks, Changes, Errno, Existing, FileSystem, MemoryBlocks, NewNode, Presence, ROOT, S_IFDIR, S_IFLNK,
    S_IFREG, Seek, WriteEffects, check,
};

use crate::model::{BLOCK, Model};
use crate::{BLOCKS, Random, time};

/// Bytes that files here have at most.
const FILE_BYTES: u64 = 20 * BLOCK as u64;

/// A file system, what it should be, and whom the test holds.
pub struct Pair {
    pub system: FileSystem,
    pub model: Model,
    pub random: Random,
    clock: u64,
}

impl Pair {
    pub fn new(blocks: Arc<dyn Blocks>, seed: u64) -> Pair {
        let system = FileSystem::format(blocks, [3; 16], (0, 0), time(0)).unwrap();
        Pair { system, model: Model::new(), random: Random(seed), clock: 1 }
    }

    fn name(&mut self) -> Vec<u8> {
        let length = if self.random.below(8) == 0 { 200 } else { 1 };
        vec![b'a' + self.random.below(7) as u8; length]
    }

    pub fn node(&mut self) -> u64 {
        let index = self.random.below(self.model.nodes.len() as u64) as usize;
        *self.model.nodes.keys().nth(index).unwrap()
    }

    /// Mostly one that is of the kind asked for.
    fn node_of(&mut self, is_directory: bool) -> u64 {
        let mut number = self.node();
        for _ in 0..4 {
            if self.model.nodes[&number].is_directory() == is_directory {
                break;
            }
            number = self.node();
        }
        number
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        // Never zero, so that what was not written is told from what was.
        let first = self.random.below(255);
        (0..length).map(|index| ((first + index / 7) % 255) as u8 + 1).collect()
    }

    fn range(&mut self) -> (u64, u64) {
        let draw = |random: &mut Random, below: u64| match random.below(3) {
            0 => random.below(below / BLOCK as u64 + 1) * BLOCK as u64,
            _ => random.below(below),
        };
        let offset = draw(&mut self.random, FILE_BYTES / 2);
        (offset, draw(&mut self.random, FILE_BYTES / 2))
    }

    /// Does one thing to both.
    pub fn step(&mut self) {
        self.clock += 1;
        match self.random.below(22) {
            0..=2 => self.create(),
            3 => self.link(),
            4 | 5 => self.remove(),
            6..=8 => self.rename(),
            9..=12 => self.write(),
            13 => self.resize(),
            14..=16 => self.allocate(),
            17 => self.attribute(),
            18 => self.set_attributes(),
            19 => self.forget(),
            20 => self.read(),
            _ => self.look(),
        }
    }

    fn create(&mut self) {
        let (parent, name) = (self.node_of(true), self.name());
        let mode = [S_IFREG, S_IFREG, S_IFDIR, S_IFLNK][self.random.below(4) as usize] | 0o640;
        let target = self.bytes(if mode & S_IFLNK == S_IFLNK { 9 } else { 0 });
        let node = NewNode { mode, uid: 0, gid: 0, rdev: 0, target: &target };
        let made = self.system.create(parent, &name, &node, time(self.clock));
        assert_eq!(made.map(drop), self.model.can_create(parent, &name));
        if let Ok((number, _)) = made {
            self.model.create(parent, &name, number, mode, &target);
            if self.random.below(3) == 0 {
                self.model.held.insert(number);
            } else {
                self.system.forget(number, 1);
            }
        }
    }

    fn link(&mut self) {
        let (number, parent, name) = (self.node_of(false), self.node_of(true), self.name());
        let made = self.system.link(number, parent, &name, time(self.clock));
        assert_eq!(made.map(drop), self.model.link(number, parent, &name));
        if made.is_ok() {
            self.forget_once(number);
        }
    }

    /// Gives back what an operation gave.
    fn forget_once(&self, number: u64) {
        self.system.forget(number, 1);
    }

    fn remove(&mut self) {
        let (parent, name, is_directory) = (self.node_of(true), self.name(), self.random.below(3) == 0);
        let now = time(self.clock);
        let done = match is_directory {
            true => self.system.rmdir(parent, &name, now),
            false => self.system.unlink(parent, &name, now),
        };
        assert_eq!(done, self.model.remove(parent, &name, is_directory));
    }

    fn rename(&mut self) {
        let (from, to) = (self.node_of(true), self.node_of(true));
        let (first, second) = (self.name(), self.name());
        let existing =
            [Existing::Replace, Existing::Replace, Existing::Keep, Existing::Exchange][self.random.below(4) as usize];
        let done = self.system.rename((from, &first), (to, &second), existing, time(self.clock));
        let expected = match existing {
            Existing::Exchange => self.model.exchange((from, &first), (to, &second)),
            _ => self.model.rename((from, &first), (to, &second), existing == Existing::Replace),
        };
        assert_eq!(done, expected, "{existing:?} {first:?} in {from} to {second:?} in {to}");
    }

    fn effects(&self) -> WriteEffects {
        WriteEffects { now: Some(time(self.clock)), is_unprivileged: false }
    }

    fn write(&mut self) {
        let number = self.node_of(false);
        let (offset, length) = self.range();
        let bytes = self.bytes(length);
        let done = self.system.write(number, offset, &bytes, self.effects());
        assert_eq!(done, self.model.write(number, offset as usize, &bytes));
    }

    fn resize(&mut self) {
        let (number, (size, _)) = (self.node_of(false), self.range());
        let changes = Changes { size: Some(size), ..Changes::default() };
        let done = self.system.set_attributes(number, &changes, time(self.clock));
        assert_eq!(done.map(drop), self.model.resize(number, size as usize));
    }

    fn allocate(&mut self) {
        let (number, (offset, length)) = (self.node_of(false), self.range());
        let (length, grows) = (length + 1, self.random.below(2) == 0);
        let what = [Allocation::Reserve, Allocation::Zero, Allocation::Punch][self.random.below(3) as usize];
        let done = self.system.allocate(number, (offset, length), what, grows, self.effects());
        let (offset, length) = (offset as usize, length as usize);
        let expected = match what {
            Allocation::Reserve => self.model.reserve(number, offset + length, grows),
            Allocation::Zero => self.model.clear(number, offset, length, grows),
            Allocation::Punch => self.model.clear(number, offset, length, false),
        };
        assert_eq!(done, expected);
    }

    fn attribute(&mut self) {
        let (number, name) = (self.node(), self.name());
        let value = self.random.below(300);
        let value = self.bytes(value);
        let now = time(self.clock);
        let there = self.model.nodes[&number].attributes.contains_key(&name);
        let attributes = &mut self.model.nodes.get_mut(&number).unwrap().attributes;
        match self.random.below(4) {
            0 => {
                let expected = attributes.remove(&name).map(drop).ok_or(Errno::NODATA);
                assert_eq!(self.system.remove_attribute(number, &name, now), expected);
            }
            1 if there => {
                let done = self.system.set_attribute(number, &name, &value, Presence::Absent, now);
                assert_eq!(done, Err(Errno::EXIST));
            }
            2 if !there => {
                let done = self.system.set_attribute(number, &name, &value, Presence::Present, now);
                assert_eq!(done, Err(Errno::NODATA));
            }
            _ => {
                self.system.set_attribute(number, &name, &value, Presence::Any, now).unwrap();
                attributes.insert(name, value);
            }
        }
    }

    fn set_attributes(&mut self) {
        let (number, mode, owner) = (self.node(), self.random.below(0o1000) as u32, self.random.below(9) as u32);
        let changes = Changes { mode: Some(mode), uid: Some(owner), ..Changes::default() };
        self.system.set_attributes(number, &changes, time(self.clock)).unwrap();
        let node = self.model.nodes.get_mut(&number).unwrap();
        node.mode = node.mode & !0o7777 | mode;
        node.owner = owner;
    }

    fn forget(&mut self) {
        if let Some(number) = self.model.held.pop_first() {
            self.system.forget(number, 1);
            self.model.reap(number);
        }
    }

    fn read(&mut self) {
        let (number, (offset, length)) = (self.node_of(false), self.range());
        let node = &self.model.nodes[&number];
        if node.is_regular() {
            let (from, to) = (node.bytes.len().min(offset as usize), node.bytes.len().min((offset + length) as usize));
            assert!(self.system.read(number, offset, length as usize).unwrap() == node.bytes[from..to]);
        }
        for (seek, is_data) in [(Seek::Data, true), (Seek::Hole, false)] {
            let expected = self.model.seek(number, offset as usize, is_data).map(|found| found as u64);
            assert_eq!(self.system.seek(number, offset, seek), expected, "{seek:?} from {offset} in {number}");
        }
    }

    fn look(&mut self) {
        let (parent, name) = (self.node_of(true), self.name());
        if let Ok((number, _)) = self.system.lookup(parent, &name) {
            assert_eq!(self.model.nodes[&parent].entries.get(&name), Some(&number));
            self.forget_once(number);
        }
    }

    /// Nobody holds anything any more.
    pub fn forget_all(&mut self) {
        while !self.model.held.is_empty() {
            self.forget();
        }
    }
}

/// What a file system holds, as a model.
pub fn read_all(system: &FileSystem) -> Model {
    let mut model = Model::new();
    let (mut todo, mut known) = (vec![ROOT], BTreeMap::new());
    while let Some(directory) = todo.pop() {
        let mut after = 0;
        loop {
            let entries = system.entries(directory, after, 3).unwrap();
            let Some(last) = entries.last() else { break };
            after = last.cookie;
            for entry in entries.into_iter().filter(|entry| entry.cookie > 2) {
                let inode = system.attributes(entry.inode).unwrap();
                let target = system.target(entry.inode).unwrap_or_default();
                if known.insert(entry.inode, inode).is_some() {
                    model.link(entry.inode, directory, &entry.name).unwrap();
                } else {
                    model.create(directory, &entry.name, entry.inode, inode.mode, &target);
                }
                if inode.is_directory() {
                    todo.push(entry.inode);
                }
            }
        }
    }
    known.insert(ROOT, system.attributes(ROOT).unwrap());
    for (number, inode) in known {
        let node = model.nodes.get_mut(&number).unwrap();
        assert_eq!(node.links, inode.nlink, "links of {number}");
        (node.mode, node.owner) = (inode.mode, inode.uid);
        if inode.is_regular() {
            node.bytes = system.read(number, 0, inode.size as usize).unwrap();
            assert_eq!(node.bytes.len() as u64, inode.size);
            let is_written =
                |block: &usize| system.seek(number, (block * BLOCK) as u64, Seek::Data) == Ok((block * BLOCK) as u64);
            node.written = (0..node.bytes.len().div_ceil(BLOCK)).filter(is_written).collect();
        }
        for name in system.attribute_names(number).unwrap() {
            let value = system.attribute(number, &name).unwrap();
            node.attributes.insert(name, value);
        }
    }
    model
}

/// Fails when the two differ, or the file system is not in order.
pub fn compare(pair: &Pair, seed: u64) {
    let report = check(&pair.system).unwrap();
    assert!(report.faults.is_empty(), "seed {seed}: {:?}", report.faults);
    let mut expected = pair.model.clone();
    expected.nodes.retain(|_, node| node.links > 0);
    expected.held.clear();
    let mut there = read_all(&pair.system);
    for node in expected.nodes.values_mut().chain(there.nodes.values_mut()) {
        let blocks = node.bytes.len().div_ceil(BLOCK);
        node.written.retain(|block| *block < blocks);
        // A file may have several, and the model names any.
        node.parent = if node.is_directory() { node.parent } else { 0 };
    }
    let numbers: BTreeSet<u64> = there.nodes.keys().chain(expected.nodes.keys()).copied().collect();
    for number in numbers {
        let (there, expected) = (there.nodes.get(&number), expected.nodes.get(&number));
        assert!(there == expected, "seed {seed}, inode {number}: {there:?} instead of {expected:?}");
    }
}

#[test]
fn a_file_system_is_what_a_plain_model_is() {
    for seed in 1..=30 {
        let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
        let mut pair = Pair::new(Arc::clone(&blocks), seed);
        for step in 0..1500 {
            pair.step();
            match pair.random.below(40) {
                0 => pair.system.commit().unwrap(),
                1 => {
                    let number = pair.node();
                    let is_all = pair.random.below(2) == 0;
                    pair.system.sync(number, is_all).unwrap();
                }
                2 if step % 5 == 0 => compare(&pair, seed),
                3 if step % 5 == 0 => {
                    pair.forget_all();
                    pair.system.commit().unwrap();
                    let Pair { system, model, random, clock } = pair;
                    drop(system);
                    pair = Pair { system: FileSystem::mount(Arc::clone(&blocks)).unwrap(), model, random, clock };
                }
                _ => {}
            }
        }
        pair.forget_all();
        compare(&pair, seed);
    }
}

#[test]
fn a_full_device_says_so_and_everything_can_be_removed_again() {
    let mut random = Random(5);
    let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
    let system = FileSystem::format(Arc::clone(&blocks), [3; 16], (0, 0), time(0)).unwrap();
    let empty = system.totals();
    let node = NewNode { mode: S_IFREG | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let effects = WriteEffects { now: None, is_unprivileged: false };
    for round in 0..3_u64 {
        let mut names = Vec::new();
        // First few large files, then as many small ones as there is room for.
        let error = loop {
            let name = format!("{}-{}", "n".repeat(60), names.len()).into_bytes();
            let (number, _) = match system.create(ROOT, &name, &node, time(round)) {
                Ok(made) => made,
                Err(error) => break error,
            };
            names.push(name);
            system.forget(number, 1);
            let length = if round == 1 { 0 } else { random.below(3_000_000) as usize };
            if let Err(error) = system.write(number, 0, &vec![7; length], effects) {
                break error;
            }
        };
        assert_eq!(error, Errno::NOSPC, "round {round}");
        assert!(round != 1 || names.len() > 2_000, "only {} files", names.len());
        system.commit().unwrap();
        assert_eq!(check(&system).unwrap().faults, Vec::<String>::new());
        for name in names {
            system.unlink(ROOT, &name, time(round)).unwrap();
        }
        system.commit().unwrap();
        assert_eq!((system.totals().blocks_free, system.totals().inodes), (empty.blocks_free, 1));
    }
}

#[test]
fn a_directory_is_read_whole_while_it_changes() {
    let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
    let system = FileSystem::format(blocks, [3; 16], (0, 0), time(0)).unwrap();
    let node = NewNode { mode: S_IFREG | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let make = |name: String| system.create(ROOT, name.as_bytes(), &node, time(1)).map(drop).unwrap();
    (0..3000).for_each(|index| make(format!("stays-{index}")));
    (0..500).for_each(|index| make(format!("goes-{index}")));
    let (mut names, mut after, mut round) = (Vec::new(), 0, 0);
    loop {
        let entries = system.entries(ROOT, after, 10).unwrap();
        let Some(last) = entries.last() else { break };
        after = last.cookie;
        names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()));
        if round < 300 {
            system.unlink(ROOT, format!("goes-{round}").as_bytes(), time(2)).unwrap();
            make(format!("comes-{round}"));
        }
        round += 1;
    }
    let stays = names.iter().filter(|name| name.starts_with("stays")).count();
    names.sort();
    let count = names.len();
    names.dedup();
    assert_eq!((stays, names.len()), (3000, count));
}

#[test]
fn what_is_read_and_written_at_once_is_whole() {
    let blocks: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
    let system = FileSystem::format(blocks, [3; 16], (0, 0), time(0)).unwrap();
    let node = NewNode { mode: S_IFREG | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    let effects = WriteEffects { now: None, is_unprivileged: false };
    std::thread::scope(|scope| {
        for worker in 0..4_u8 {
            let system = &system;
            scope.spawn(move || {
                let mut random = Random(u64::from(worker) + 1);
                for round in 0..200 {
                    let name = [b'a' + worker, b'0' + (random.below(8) as u8)];
                    let number = match system.create(ROOT, &name, &node, time(round)) {
                        Ok((number, _)) => number,
                        Err(_) => system.lookup(ROOT, &name).unwrap().0,
                    };
                    let length = random.below(100_000) as usize;
                    system.write(number, 0, &vec![worker + 1; length], effects).unwrap();
                    let read = system.read(number, 0, length).unwrap();
                    // A block that another file has freed and somebody got shows here.
                    assert!(read.len() == length && read.iter().all(|byte| *byte == worker + 1));
                    if random.below(3) == 0 {
                        system.unlink(ROOT, &name, time(round)).unwrap();
                    }
                    if random.below(20) == 0 {
                        system.sync(number, true).unwrap();
                    }
                    system.forget(number, 1);
                }
            });
        }
    });
    assert_eq!(check(&system).unwrap().faults, Vec::<String>::new());
}
