//! The window beside plain memory: mappers that load and store at random, slow to map, slow to unmap, and killed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use osier_cache::SplitMix64;

use super::*;
use crate::profile::{Profile, parse_override};

/// What a page's memory holds when the page has left: nobody may see it.
const GARBAGE: u8 = 0xdb;
const MAPPERS: usize = 3;
const THREADS: usize = 2;
/// Bytes of each page that are looked at.
const OFFSETS: [usize; 3] = [0, 1777, 4095];

struct Memory(Vec<PageBytes>);

impl Resident for Memory {
    fn load(&mut self, page: u64, bytes: Option<&PageBytes>) {
        self.0[page as usize] = bytes.copied().unwrap_or([0; PAGE_BYTES]);
    }

    fn save(&mut self, page: u64, bytes: &mut PageBytes) {
        *bytes = self.0[page as usize];
    }

    fn left(&mut self, page: u64) {
        self.0[page as usize].fill(GARBAGE);
    }
}

fn config(pages: u64, frames: u32, eviction: &str) -> ModelConfig {
    let overrides = [
        "geometry.channels=2",
        "geometry.chips_per_channel=1",
        "geometry.dies_per_chip=1",
        "geometry.blocks_per_plane=32",
        "geometry.pages_per_block=8",
        "ftl.over_provisioning_permille=300",
        "ftl.collection.moves_max=2",
        "cache.pinned_pages_max=3",
    ];
    let mut overrides: Vec<_> = overrides.iter().map(|text| parse_override(text).unwrap()).collect();
    overrides.push(parse_override(&format!("cache.size={{bytes={}}}", u64::from(frames) * 4096)).unwrap());
    overrides.push(parse_override(&format!("cache.eviction=\"{eviction}\"")).unwrap());
    let text = Profile::built_in_text("cylon").unwrap();
    Profile::parse_with("cylon", text, &overrides).unwrap().model(Some(pages * 4096)).unwrap()
}

/// Why a run failed.
#[derive(Debug)]
struct Wrong(String);

#[derive(Clone, Copy, Debug)]
struct Access {
    page: u64,
    offset: usize,
    store: Option<u8>,
}

#[derive(Clone, Copy, Debug)]
enum Thread {
    Idle,
    Faulted(Access),
    Answered(Access, Nanos, Grant),
}

#[derive(Clone, Copy, Debug)]
struct Pte {
    is_dirty: bool,
}

#[derive(Debug, Default)]
struct Process {
    id: Option<MapperId>,
    ptes: BTreeMap<u64, Pte>,
    zaps: VecDeque<(Vec<u64>, u64)>,
    /// Of the planted bug: what was found before the first of `zaps` was unmapped.
    scanned: Option<u64>,
    acks: VecDeque<u64>,
}

struct World {
    window: Window<Memory>,
    now: Nanos,
    random: SplitMix64,
    processes: [Process; MAPPERS],
    threads: [[Thread; THREADS]; MAPPERS],
    reference: Vec<[u8; 3]>,
    frames: u64,
    scan_first: bool,
    accesses: u64,
    kills: u64,
    commands: BTreeSet<u32>,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut random = SplitMix64::new(seed);
        let frames = 12 + random.below(20) as u32;
        let pages = u64::from(frames) * (2 + random.below(3));
        let eviction = ["fifo", "lru", "clock", "s3-fifo", "sieve"][random.below(5) as usize];
        let reserve = Reserve { frames: 1 + random.below(6) as u32, batch: 1 };
        let reserve = Reserve { batch: 1 + random.below(u64::from(reserve.frames)) as u32, ..reserve };
        let memory = Memory(vec![[GARBAGE; PAGE_BYTES]; pages as usize]);
        let mut window = Window::new(&config(pages, frames, eviction), reserve, seed, memory).unwrap();
        if let Some(bug) = bug {
            window.plant(bug);
        }
        let mut world = World {
            window,
            now: Nanos::ZERO,
            random,
            processes: Default::default(),
            threads: [[Thread::Idle; THREADS]; MAPPERS],
            reference: vec![[0; 3]; pages as usize],
            frames: frames.into(),
            scan_first: false,
            accesses: 0,
            kills: 0,
            commands: BTreeSet::new(),
        };
        for process in 0..MAPPERS {
            world.processes[process].id = Some(world.window.attach().unwrap());
        }
        world
    }

    fn access(&mut self, process: usize, access: Access) -> Result<bool, Wrong> {
        let Some(pte) = self.processes[process].ptes.get_mut(&access.page) else { return Ok(false) };
        let place = OFFSETS.iter().position(|offset| *offset == access.offset).unwrap();
        let byte = &mut self.window.resident_mut().0[access.page as usize][access.offset];
        let wanted = &mut self.reference[access.page as usize][place];
        if byte != wanted {
            return Err(Wrong(format!("{access:?} by {process} found {byte:#x}, stored was {wanted:#x}")));
        }
        if let Some(value) = access.store {
            (*byte, *wanted) = (value, value);
            pte.is_dirty = true;
        }
        self.accesses += 1;
        Ok(true)
    }

    fn begin(&mut self, process: usize, thread: usize, access: Access) -> Result<(), Wrong> {
        if self.access(process, access)? {
            self.threads[process][thread] = Thread::Idle;
            return Ok(());
        }
        let Some(mapper) = self.processes[process].id else { return Ok(()) };
        self.threads[process][thread] = Thread::Faulted(access);
        let fault = Fault { mapper, lane: thread as u16, page: access.page, is_store: access.store.is_some() };
        self.window.fault(self.now, fault).map_err(|misuse| Wrong(misuse.to_string()))
    }

    fn run_thread(&mut self, process: usize, thread: usize) -> Result<(), Wrong> {
        match self.threads[process][thread] {
            Thread::Idle => {
                let page = self.random.below(self.reference.len() as u64);
                let page = if self.random.below(2) == 0 { page } else { page / 4 };
                let offset = OFFSETS[self.random.below(3) as usize];
                let store = (self.random.below(3) == 0).then(|| self.random.below(256) as u8);
                self.begin(process, thread, Access { page, offset, store })
            }
            Thread::Answered(access, due, grant) if due <= self.now => {
                let is_dirty = match grant {
                    Grant::Writable => true,
                    Grant::Armed => false,
                    Grant::Lost | Grant::NoSuchPage => return Err(Wrong(format!("{access:?}: {grant:?}"))),
                };
                // What another thread has mapped meanwhile stays as it is.
                self.processes[process].ptes.entry(access.page).or_insert(Pte { is_dirty });
                self.begin(process, thread, access)
            }
            Thread::Faulted(_) | Thread::Answered(..) => Ok(()),
        }
    }

    fn take_outputs(&mut self) {
        let mut outputs = Vec::new();
        self.window.poll(self.now, &mut outputs);
        for output in outputs {
            let index = self.processes.iter().position(|process| process.id == Some(output.mapper())).unwrap();
            match output {
                Output::Answer { lane, due, grant, page, .. } => {
                    let thread = &mut self.threads[index][usize::from(lane)];
                    let Thread::Faulted(access) = *thread else { panic!("{thread:?} was answered") };
                    assert_eq!(access.page, page);
                    *thread = Thread::Answered(access, due, grant);
                }
                Output::Zap { pages, known, .. } => self.processes[index].zaps.push_back((pages, known)),
                Output::Done { tag, .. } => assert!(self.commands.remove(&tag), "command {tag} ends once"),
            }
        }
    }

    /// Unmaps the pages of the oldest zap, unless a page of it is just being mapped.
    fn unmap(&mut self, index: usize) {
        let process = &mut self.processes[index];
        let Some((pages, known)) = process.zaps.front().cloned() else { return };
        let is_mapping =
            |thread: &Thread| matches!(thread, Thread::Answered(access, ..) if pages.contains(&access.page));
        if self.threads[index].iter().any(is_mapping) {
            return;
        }
        let scan = |ptes: &BTreeMap<u64, Pte>| {
            let is_dirty = |page: &u64| ptes.get(page).is_some_and(|pte| pte.is_dirty);
            let found = pages.iter().rev().fold(0, |found, page| found << 1 | u64::from(is_dirty(page)));
            found & !known
        };
        if self.scan_first && process.scanned.is_none() {
            process.scanned = Some(scan(&process.ptes));
            return;
        }
        let found = process.scanned.take().unwrap_or_else(|| scan(&process.ptes));
        process.zaps.pop_front();
        for page in &pages {
            process.ptes.remove(page);
        }
        process.acks.push_back(found);
    }

    fn acknowledge(&mut self, index: usize) -> Result<(), Wrong> {
        let process = &mut self.processes[index];
        let (Some(mapper), Some(found)) = (process.id, process.acks.pop_front()) else { return Ok(()) };
        self.window.zapped(self.now, mapper, found).map_err(|misuse| Wrong(misuse.to_string()))
    }

    fn kill(&mut self, index: usize) {
        self.kills += 1;
        let old = std::mem::take(&mut self.processes[index]);
        self.window.detach(self.now, old.id.unwrap());
        self.threads[index] = [Thread::Idle; THREADS];
        self.commands.retain(|tag| *tag as usize % 8 != index);
        self.processes[index].id = Some(self.window.attach().unwrap());
    }

    fn command(&mut self, index: usize) {
        let first = self.random.below(self.reference.len() as u64);
        let pages = first..(first + self.random.below(5)).min(self.reference.len() as u64);
        let command = match self.random.below(5) {
            0 => Command::Prefetch(pages),
            1 => Command::Pin(pages),
            2 => Command::Unpin(pages),
            3 => Command::Evict(pages),
            _ => Command::Policy { name: "sieve".to_owned(), parameters: BTreeMap::new() },
        };
        let tag = self.accesses as u32 * 8 + index as u32;
        let mapper = self.processes[index].id.unwrap();
        if self.commands.insert(tag) {
            self.window.command(self.now, mapper, tag, command).unwrap();
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        let mapped: BTreeSet<u64> = self.processes.iter().flat_map(|process| process.ptes.keys()).copied().collect();
        if mapped.len() as u64 > self.frames {
            return Err(Wrong(format!("{} pages are mapped, of {} frames", mapped.len(), self.frames)));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let index = self.random.below(MAPPERS as u64) as usize;
        let thread = self.random.below(THREADS as u64) as usize;
        match self.random.below(1000) {
            0..500 => self.run_thread(index, thread)?,
            500..650 => self.unmap(index),
            650..800 => self.acknowledge(index)?,
            800..804 => self.kill(index),
            804..820 => self.command(index),
            820..900 => self.now.0 += self.random.below(100_000),
            _ => self.now.0 += self.random.below(2_000),
        }
        self.take_outputs();
        self.check()
    }

    /// Lets everything that is under way end, and reads every byte.
    fn finish(&mut self) -> Result<(), Wrong> {
        for page in 0..self.reference.len() as u64 {
            for offset in OFFSETS {
                self.read_at_last(Access { page, offset, store: None })?;
            }
        }
        Ok(())
    }

    fn read_at_last(&mut self, access: Access) -> Result<(), Wrong> {
        for round in 0..100_000 {
            if round == 0 || matches!(self.threads[0][0], Thread::Idle) {
                if self.access(0, access)? {
                    return Ok(());
                }
                if matches!(self.threads[0][0], Thread::Idle) {
                    self.begin(0, 0, access)?;
                }
            }
            for index in 0..MAPPERS {
                for thread in 0..THREADS {
                    if matches!(self.threads[index][thread], Thread::Answered(..)) {
                        self.run_thread(index, thread)?;
                    }
                }
                self.unmap(index);
                self.acknowledge(index)?;
            }
            self.now.0 += 1_000;
            self.take_outputs();
            self.check()?;
        }
        Err(Wrong(format!("{access:?} never ended: {:?}", self.threads)))
    }

    fn run(&mut self, steps: u32) -> Result<(), Wrong> {
        for _ in 0..steps {
            self.step()?;
        }
        self.finish()
    }
}

#[test]
fn no_store_is_lost_and_no_load_is_stale() {
    let (mut accesses, mut kills, mut dirty, mut moved, mut blocked) = (0, 0, 0, 0, 0);
    for seed in 0..60 {
        let mut world = World::new(seed, None);
        world.run(6_000).unwrap_or_else(|wrong| panic!("seed {seed}: {}", wrong.0));
        let stats = world.window.stats();
        assert!(stats.resident <= stats.frames, "seed {seed}: {stats:?}");
        (accesses, kills) = (accesses + world.accesses, kills + world.kills);
        (dirty, moved) = (dirty + stats.counts.left_dirty, moved + stats.flash.units_moved);
        blocked += stats.counts.blocked;
    }
    // It would prove little if nothing of this had happened.
    assert!(accesses > 30_000 && kills > 500 && dirty > 5_000, "{accesses} {kills} {dirty}");
    assert!(moved > 500 && blocked > 1_000, "{moved} {blocked}");
}

#[test]
fn each_planted_bug_is_found() {
    for bug in Bug::ALL {
        if bug == Bug::ReadDamaged {
            continue;
        }
        let found = (0..40).any(|seed| World::new(seed, Some(bug)).run(6_000).is_err());
        assert!(found, "{bug:?} was not found");
    }
}

#[test]
fn a_mapper_that_scans_before_it_unmaps_loses_stores() {
    let found = (0..40).any(|seed| {
        let mut world = World::new(seed, None);
        world.scan_first = true;
        world.run(6_000).is_err()
    });
    assert!(found);
}
