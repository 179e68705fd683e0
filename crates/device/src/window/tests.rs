//! The window beside plain memory: mappers that load and store at random, slow to map, slow to unmap, stopped, and
//! killed.

mod manners;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use osier_cache::SplitMix64;
use osier_flash::page::Outcome;

use super::*;
use crate::profile::{Profile, parse_override};
use crate::record::{RecordedWindow, Tape, WindowOrigin};

/// What a page's memory holds when the page has left: nobody may see it.
const GARBAGE: u8 = 0xdb;
const MAPPERS: usize = 3;
const THREADS: usize = 2;
/// Bytes of each page that are looked at.
const OFFSETS: [usize; 3] = [0, 1777, 4095];

pub(crate) struct Memory {
    pages: Vec<PageBytes>,
    /// Every version of each page that was saved for the flash, by the bytes that are looked at.
    saved: Vec<Vec<[u8; 3]>>,
    /// Of every other page that has left: the copy that it was said to have the bytes of, and the bytes.
    kept: BTreeMap<u64, (Option<u64>, PageBytes)>,
}

impl Memory {
    pub(crate) fn new(pages: u64) -> Memory {
        Memory {
            pages: vec![[GARBAGE; PAGE_BYTES]; pages as usize],
            saved: vec![vec![[0; 3]]; pages as usize],
            kept: BTreeMap::new(),
        }
    }

    fn looked_at(&self, page: u64) -> [u8; 3] {
        OFFSETS.map(|offset| self.pages[page as usize][offset])
    }
}

impl Resident for Memory {
    fn load(&mut self, page: u64, copy: Option<u64>, bytes: Option<&PageBytes>) {
        assert_eq!(copy.is_some(), bytes.is_some());
        self.pages[page as usize] = match self.kept.remove(&page) {
            Some((kept, in_place)) if kept == copy => in_place,
            _ => bytes.copied().unwrap_or([0; PAGE_BYTES]),
        };
    }

    fn save(&mut self, page: u64, bytes: &mut PageBytes) {
        *bytes = self.pages[page as usize];
        let version = self.looked_at(page);
        self.saved[page as usize].push(version);
    }

    fn left(&mut self, page: u64, copy: Option<u64>) {
        if page.is_multiple_of(2) {
            self.kept.insert(page, (copy, self.pages[page as usize]));
        }
        self.pages[page as usize].fill(GARBAGE);
    }
}

/// What a window of so many pages and frames is made from.
pub(crate) fn origin(pages: u64, frames: u32, eviction: &str) -> WindowOrigin {
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
    let mut settings: Vec<_> = overrides.iter().map(|text| parse_override(text).unwrap()).collect();
    settings.push(parse_override(&format!("cache.size={{bytes={}}}", u64::from(frames) * 4096)).unwrap());
    settings.push(parse_override(&format!("cache.eviction=\"{eviction}\"")).unwrap());
    WindowOrigin {
        profile_name: "cylon".to_owned(),
        profile_text: Profile::built_in_text("cylon").unwrap().to_owned(),
        settings,
        capacity_bytes: pages * 4096,
        reserve: Reserve { frames: 2, batch: 1 },
        seed: 1,
    }
}

/// How hits are sampled, as a setting.
pub(crate) fn sampling(pages: u64, period_us: u64) -> (String, toml::Value) {
    parse_override(&format!("window={{sample_pages={pages},sample_period_us={period_us}}}")).unwrap()
}

pub(crate) fn config_of(origin: &WindowOrigin) -> ModelConfig {
    origin.profile().unwrap().model(Some(origin.capacity_bytes)).unwrap()
}

fn config(pages: u64, frames: u32, eviction: &str) -> ModelConfig {
    config_of(&origin(pages, frames, eviction))
}

/// Why a run failed.
#[derive(Debug)]
pub(crate) struct Wrong(pub String);

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
    Answered(Access, Nanos, Grant, u64),
}

#[derive(Clone, Copy, Debug)]
struct Pte {
    is_dirty: bool,
    /// Nothing is mapped any more, but nobody asked for that; whether it was stored to can still be seen.
    is_gone: bool,
}

impl Pte {
    /// A mapping in the place of none, or of one that is gone. One that is there stays as it is.
    fn put(ptes: &mut BTreeMap<u64, Pte>, page: u64, is_dirty: bool) {
        let new = Pte { is_dirty, is_gone: false };
        let pte = ptes.entry(page).or_insert(new);
        if pte.is_gone {
            *pte = new;
        }
    }
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

pub(crate) struct World {
    config: ModelConfig,
    pub(crate) window: RecordedWindow<Memory>,
    now: Nanos,
    random: SplitMix64,
    processes: [Process; MAPPERS],
    threads: [[Thread; THREADS]; MAPPERS],
    reference: Vec<[u8; 3]>,
    frames: u64,
    scan_first: bool,
    is_stopped: [bool; MAPPERS],
    accesses: u64,
    kills: u64,
    bursts: u64,
    commands: BTreeSet<u32>,
}

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        World::with_tape(seed, bug, None)
    }

    /// One whose window is recorded, if there is a tape.
    pub(crate) fn with_tape(seed: u64, bug: Option<Bug>, tape: Option<Tape>) -> World {
        let mut random = SplitMix64::new(seed);
        let frames = 12 + random.below(20) as u32;
        let pages = u64::from(frames) * (2 + random.below(3));
        let eviction = ["fifo", "lru", "clock", "s3-fifo", "sieve"][random.below(5) as usize];
        let reserve = Reserve { frames: 1 + random.below(6) as u32, batch: 1 };
        let reserve = Reserve { batch: 1 + random.below(u64::from(reserve.frames)) as u32, ..reserve };
        let mut origin = WindowOrigin { reserve, seed, ..origin(pages, frames, eviction) };
        // Often, so that pages are drawn while they come, leave and lose their programs.
        let sample_pages = random.below(4);
        origin.settings.push(sampling(sample_pages, 10 + random.below(60)));
        let config = config_of(&origin);
        let mut window = Window::new(&config, reserve, seed, Memory::new(pages)).unwrap();
        if let Some(bug) = bug {
            window.plant(bug);
        }
        let window = match tape {
            Some(tape) => RecordedWindow::begin(window, &origin, tape),
            None => window.into(),
        };
        let mut world = World {
            config,
            window,
            now: Nanos::ZERO,
            random,
            processes: Default::default(),
            threads: [[Thread::Idle; THREADS]; MAPPERS],
            reference: vec![[0; 3]; pages as usize],
            frames: frames.into(),
            scan_first: false,
            is_stopped: [false; MAPPERS],
            accesses: 0,
            kills: 0,
            bursts: 0,
            commands: BTreeSet::new(),
        };
        for process in 0..MAPPERS {
            world.processes[process].id = Some(world.window.attach().unwrap());
        }
        world
    }

    fn access(&mut self, process: usize, access: Access) -> Result<bool, Wrong> {
        let pte = self.processes[process].ptes.get_mut(&access.page).filter(|pte| !pte.is_gone);
        let Some(pte) = pte else { return Ok(false) };
        let place = OFFSETS.iter().position(|offset| *offset == access.offset).unwrap();
        let byte = &mut self.window.resident_mut().pages[access.page as usize][access.offset];
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
        let fault =
            Fault { mapper, lane: thread as u16, page: access.page, is_store: access.store.is_some(), more_max: 3 };
        // The device hears of it a little later than it was.
        let at = Nanos(self.now.0.saturating_sub(access.page * 37 % 500));
        self.window.fault(at, fault).map_err(|misuse| Wrong(misuse.to_string()))
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
            Thread::Answered(access, due, grant, more) if due <= self.now => {
                let is_dirty = match grant {
                    Grant::Writable => true,
                    Grant::Armed => false,
                    Grant::Lost | Grant::NoSuchPage => return Err(Wrong(format!("{access:?}: {grant:?}"))),
                };
                let ptes = &mut self.processes[process].ptes;
                Pte::put(ptes, access.page, is_dirty);
                (1..=more).for_each(|ahead| Pte::put(ptes, access.page + ahead, false));
                self.bursts += u64::from(more > 0);
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
                Output::Answer { lane, due, grant, page, more, .. } => {
                    let thread = &mut self.threads[index][usize::from(lane)];
                    let Thread::Faulted(access) = *thread else { panic!("{thread:?} was answered") };
                    assert_eq!(access.page, page);
                    *thread = Thread::Answered(access, due, grant, more.into());
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
        let is_mapping = |thread: &Thread| match thread {
            Thread::Answered(access, _, _, more) => {
                pages.iter().any(|page| (0..=*more).contains(&page.wrapping_sub(access.page)))
            }
            _ => false,
        };
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
        self.is_stopped[index] = false;
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
        let resident = self.window.residency().iter().sum::<u64>();
        if resident > self.frames || resident != self.window.cache.dirty_pages().count() as u64 {
            return Err(Wrong(format!("{resident} pages are in the map")));
        }
        if mapped.len() as u64 > self.frames {
            return Err(Wrong(format!("{} pages are mapped, of {} frames", mapped.len(), self.frames)));
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Wrong> {
        let index = self.random.below(MAPPERS as u64) as usize;
        let thread = self.random.below(THREADS as u64) as usize;
        match self.random.below(1000) {
            0..800 if self.is_stopped[index] => {}
            0..500 => self.run_thread(index, thread)?,
            500..650 => self.unmap(index),
            650..800 => self.acknowledge(index)?,
            800..804 => self.kill(index),
            804..820 => self.command(index),
            820..824 => self.is_stopped[index] = true,
            824..830 => self.is_stopped[index] = false,
            830..832 => self.now.0 += leave::SILENT_NS,
            // The window is frozen for a fork.
            832..838 => self.processes[index].ptes.values_mut().for_each(|pte| pte.is_gone = true),
            838..900 => self.now.0 += self.random.below(100_000),
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

    pub(crate) fn run(&mut self, steps: u32) -> Result<(), Wrong> {
        for _ in 0..steps {
            self.step()?;
        }
        self.finish()
    }
}

#[test]
fn no_store_is_lost_and_no_load_is_stale() {
    let (mut accesses, mut kills, mut dirty, mut moved, mut blocked, mut bursts) = (0, 0, 0, 0, 0, 0);
    let mut samples = [0; 4];
    let mut given_up = 0;
    for seed in 0..60 {
        let mut world = World::new(seed, None);
        world.run(6_000).unwrap_or_else(|wrong| panic!("seed {seed}: {}", wrong.0));
        let stats = world.window.stats();
        assert!(stats.resident <= stats.frames, "seed {seed}: {stats:?}");
        (accesses, kills) = (accesses + world.accesses, kills + world.kills);
        (dirty, moved) = (dirty + stats.counts.left_dirty, moved + stats.flash.units_moved);
        (blocked, bursts) = (blocked + stats.counts.blocked, bursts + world.bursts);
        let SampleCounts { used, unused, gone, faults } = stats.samples;
        samples = std::array::from_fn(|index| samples[index] + [used, unused, gone, faults][index]);
        given_up += stats.counts.fills_given_up;
    }
    // It would prove little if nothing of this had happened.
    assert!(accesses > 30_000 && kills > 500 && dirty > 5_000, "{accesses} {kills} {dirty}");
    assert!(moved > 500 && blocked > 1_000 && bursts > 500, "{moved} {blocked} {bursts}");
    assert!(samples.into_iter().all(|count| count > 200), "{samples:?}");
    assert!(given_up > 20, "{given_up} fills were begun again elsewhere");
}

#[test]
fn each_planted_bug_is_found() {
    for bug in Bug::ALL {
        // None can show on flash that does not rot, wear out or find its disk full; their tests are below.
        if matches!(bug, Bug::ReadDamaged | Bug::ForgetRefused | Bug::ForgetUnsaved) {
            continue;
        }
        // Nor can bad manners where nobody waits for long; their tests are in `manners`.
        if matches!(bug, Bug::RangeInOneGo | Bug::KeepPinsOfTheGone | Bug::AwaitTheSilent) {
            continue;
        }
        let run = |seed| World::new(seed, Some(bug)).run(6_000).is_err();
        // An assertion of the window or of the cache finds it as well.
        let found = (0..100).any(|seed| std::panic::catch_unwind(|| run(seed)).unwrap_or(true));
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

/// What a fault of the only mapper brings.
fn fetch(window: &mut Window<Memory>, now: &mut Nanos, mapper: MapperId, page: u64, is_store: bool) -> Grant {
    window.fault(*now, Fault { mapper, lane: 0, page, is_store, more_max: 0 }).unwrap();
    let mut outputs = Vec::new();
    loop {
        window.poll(*now, &mut outputs);
        for output in outputs.drain(..) {
            match output {
                Output::Answer { due, grant, .. } => {
                    *now = due;
                    return grant;
                }
                // Everything is written to before it is unmapped, so that nobody has to look.
                Output::Zap { .. } => window.zapped(*now, mapper, u64::MAX).unwrap(),
                Output::Done { .. } => {}
            }
        }
        *now = window.next_event().unwrap_or(*now).max(*now);
    }
}

fn small(bug: Option<Bug>) -> (Window<Memory>, Nanos, MapperId) {
    let reserve = Reserve { frames: 2, batch: 1 };
    let mut window = Window::new(&config(40, 12, "fifo"), reserve, 1, Memory::new(40)).unwrap();
    if let Some(bug) = bug {
        window.plant(bug);
    }
    let mapper = window.attach().unwrap();
    (window, Nanos::ZERO, mapper)
}

#[test]
fn a_damaged_page_of_the_flash_is_reported_and_no_other() {
    for (bug, expected) in [(None, Grant::Lost), (Some(Bug::ReadDamaged), Grant::Armed)] {
        let (mut window, mut now, mapper) = small(bug);
        for page in 0..40 {
            assert_eq!(fetch(&mut window, &mut now, mapper, page, true), Grant::Writable);
        }
        assert!(window.rot(3, 4000, 7), "page 3 has left");
        assert_eq!(fetch(&mut window, &mut now, mapper, 3, false), expected);
        assert_eq!(fetch(&mut window, &mut now, mapper, 4, false), Grant::Armed);
        assert_eq!(fetch(&mut window, &mut now, mapper, 40, false), Grant::NoSuchPage);
    }
}

/// Stores until the flash is worn out and has refused a page; each load then brings the last store, or nothing. Says
/// how many pages were lost.
fn wear_out(bug: Option<Bug>) -> Result<u64, Wrong> {
    let mut config = config(40, 12, "fifo");
    config.flash.errors.erase_fail_ppm = 100_000;
    let mut window = Window::new(&config, Reserve { frames: 2, batch: 1 }, 1, Memory::new(40)).unwrap();
    if let Some(bug) = bug {
        window.plant(bug);
    }
    let (mut now, mapper) = (Nanos::ZERO, window.attach().unwrap());
    let mut stored = [0_u32; 40];
    for version in 1..1_000_000_u32 {
        let page = u64::from(version) % 40;
        if fetch(&mut window, &mut now, mapper, page, true) == Grant::Writable {
            window.resident_mut().pages[page as usize][..4].copy_from_slice(&version.to_le_bytes());
            stored[page as usize] = version;
        }
        if window.stats().counts.dropped > 0 {
            break;
        }
    }
    let mut lost = 0;
    for page in (0..40).chain(0..40) {
        match fetch(&mut window, &mut now, mapper, page, false) {
            // It has had those that never left, and they are not armed again.
            Grant::Armed | Grant::Writable => {
                let bytes = &window.resident().pages[page as usize][..4];
                if bytes != stored[page as usize].to_le_bytes() {
                    return Err(Wrong(format!("page {page} has {bytes:?}, stored was {:#x}", stored[page as usize])));
                }
            }
            Grant::Lost => lost += 1,
            grant => return Err(Wrong(format!("page {page}: {grant:?}"))),
        }
    }
    Ok(lost)
}

#[test]
fn a_page_that_worn_out_flash_refuses_is_lost_and_not_old() {
    assert!(wear_out(None).unwrap_or_else(|wrong| panic!("{}", wrong.0)) > 0);
    assert!(wear_out(Some(Bug::ForgetRefused)).is_err());
}

#[test]
fn a_power_cut_loses_exactly_what_was_not_programmed() {
    let mut lost = 0;
    for seed in 0..40 {
        let mut world = World::new(seed, None);
        for _ in 0..3_000 {
            world.step().unwrap_or_else(|wrong| panic!("seed {seed}: {}", wrong.0));
        }
        let is_flushed = seed % 2 == 0;
        // What the flash has not taken yet it cannot flush.
        while is_flushed
            && !(world.window.unsaved.is_empty() && world.window.writes.is_empty() && world.window.unwritten.is_empty())
        {
            world.now = world.window.next_event().unwrap().max(world.now);
            world.take_outputs();
        }
        let ftl = &mut world.window.window_mut().ftl;
        if is_flushed && let Ok(Outcome::Waiting(id)) = ftl.flush(world.now) {
            let mut completed = Vec::new();
            while !completed.iter().any(|completed: &Completed| completed.id == id) {
                world.now = ftl.next_event().unwrap();
                ftl.poll(world.now, &mut completed);
            }
        }
        let saved = world.window.resident().saved.clone();
        let World { config, window, reference, .. } = world;
        let media = window.into_window().lose_power();
        let memory = Memory::new(reference.len() as u64);
        let reserve = Reserve { frames: 2, batch: 1 };
        let (mut window, _) = Window::recover(&config, reserve, seed, memory, media).unwrap();
        let (mapper, mut now) = (window.attach().unwrap(), Nanos::ZERO);
        for page in 0..reference.len() as u64 {
            assert_eq!(fetch(&mut window, &mut now, mapper, page, false), Grant::Armed, "seed {seed}, page {page}");
            let (found, saved) = (window.resident().looked_at(page), &saved[page as usize]);
            assert!(saved.contains(&found), "seed {seed}: page {page} is {found:?}, which was never written");
            assert!(!is_flushed || saved.last() == Some(&found), "seed {seed}: page {page} is old");
            lost += u64::from(found != reference[page as usize]);
        }
    }
    assert!(lost > 100, "stores that were only in the cache are lost: {lost}");
}

/// Copies on a disk that is full while it is told so.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    pub(crate) is_full: Arc<AtomicBool>,
    pages: BTreeMap<u32, PageBytes>,
}

impl CopyStore for Disk {
    fn put(&mut self, number: u32, fill: &mut dyn FnMut(&mut PageBytes)) -> Result<&PageBytes, StoreError> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(StoreError("the disk is full".to_owned()));
        }
        let page = self.pages.entry(number).or_insert([0; PAGE_BYTES]);
        fill(page);
        Ok(page)
    }

    fn get<'a>(&'a self, number: u32, room: &'a mut PageBytes) -> Option<&'a PageBytes> {
        *room = *self.pages.get(&number)?;
        Some(room)
    }
}

/// Stores to pages until one finds no frame because the disk is full; then there is room. Whether all have their bytes.
fn fill_disk(bug: Option<Bug>) -> Result<(), Wrong> {
    let disk = Disk::default();
    let is_full = Arc::clone(&disk.is_full);
    let config = config(40, 12, "fifo");
    let media = ByteMedia::with_store(&config.flash, Box::new(disk));
    let mut window = Window::with_media(&config, Reserve { frames: 2, batch: 1 }, 1, Memory::new(40), media).unwrap();
    if let Some(bug) = bug {
        window.plant(bug);
    }
    let (mut now, mapper) = (Nanos::ZERO, window.attach().unwrap());
    for version in 0..80_u64 {
        let page = version % 40;
        // Full from the twentieth store on, for as long as a store waits a second for it.
        is_full.store(version >= 20, Ordering::Relaxed);
        window.fault(now, Fault { mapper, lane: 0, page, is_store: true, more_max: 0 }).unwrap();
        let (mut outputs, mut is_answered, until) = (Vec::new(), false, now.0 + 1_000_000_000);
        while !is_answered {
            window.poll(now, &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Answer { due, .. } => (now, is_answered) = (now.max(due), true),
                    Output::Zap { .. } => window.zapped(now, mapper, u64::MAX).unwrap(),
                    Output::Done { .. } => {}
                }
            }
            now = window.next_event().unwrap_or(now).max(now);
            if now.0 > until && is_full.load(Ordering::Relaxed) {
                assert!(window.stalled().is_some_and(|error| error.to_string() == "the disk is full"));
                is_full.store(false, Ordering::Relaxed);
            }
        }
        window.resident_mut().pages[page as usize][0] = version as u8;
    }
    is_full.store(false, Ordering::Relaxed);
    for page in 0..40 {
        let grant = fetch(&mut window, &mut now, mapper, page, false);
        let found = window.resident().pages[page as usize][0];
        if grant != Grant::Armed || found != page as u8 + 40 {
            return Err(Wrong(format!("page {page}: {grant:?}, {found}")));
        }
    }
    assert!(window.stalled().is_none());
    Ok(())
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    fill_disk(None).unwrap_or_else(|wrong| panic!("{}", wrong.0));
    assert!(fill_disk(Some(Bug::ForgetUnsaved)).is_err());
}

#[test]
fn pages_that_are_brought_in_ahead_are_mapped_with_the_one_that_faults() {
    let (pages, degree) = (90, 8);
    let mut config = config(pages, 45, "fifo");
    let cache = &mut config.cache.as_mut().unwrap().cache;
    cache.prefetch = "next-n".to_owned();
    cache.prefetch_parameters = [("degree".to_owned(), degree), ("tagged".to_owned(), 1)].into();
    let mut window = Window::new(&config, Reserve { frames: 8, batch: 4 }, 1, Memory::new(pages)).unwrap();
    let (mut now, mapper) = (Nanos::ZERO, window.attach().unwrap());
    let (mut mapped, mut faults) = (BTreeSet::new(), 0);
    for page in 0..pages {
        if mapped.contains(&page) {
            continue;
        }
        faults += 1;
        let fault = Fault { mapper, lane: 0, page, is_store: false, more_max: degree as u8 };
        window.fault(now, fault).unwrap();
        let (mut outputs, mut is_answered) = (Vec::new(), false);
        while !is_answered {
            window.poll(now, &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Answer { due, more, .. } => {
                        (now, is_answered) = (due, true);
                        for there in page..=page + u64::from(more) {
                            assert_eq!(window.resident().looked_at(there), [0; 3], "page {there} is there");
                            mapped.insert(there);
                        }
                    }
                    Output::Zap { pages, .. } => {
                        pages.iter().for_each(|page| assert!(mapped.contains(page), "page {page} was mapped"));
                        window.zapped(now, mapper, 0).unwrap();
                    }
                    Output::Done { .. } => {}
                }
            }
            now = window.next_event().unwrap_or(now).max(now);
        }
    }
    // What was never written takes no time to read: each fault brings the page and the eight that follow.
    assert_eq!(faults, pages / (1 + degree));
    assert_eq!(window.stats().counts.ahead, pages - faults);
}

#[test]
fn the_same_inputs_give_the_same_outputs() {
    let run = |seed| {
        let mut world = World::new(seed, None);
        world.run(2_000).unwrap_or_else(|wrong| panic!("{}", wrong.0));
        (world.window.stats(), world.now)
    };
    for seed in 0..5 {
        assert_eq!(run(seed), run(seed));
    }
}

#[test]
fn what_a_window_cannot_have_is_refused_by_name() {
    let good = config(40, 12, "fifo");
    let reserve = Reserve { frames: 2, batch: 1 };
    let refused = |config: &ModelConfig, reserve| match Window::new(config, reserve, 1, Memory::new(40)) {
        Ok(_) => panic!("it was taken"),
        Err(error) => error.to_string(),
    };
    assert!(refused(&ModelConfig { cache: None, ..good.clone() }, reserve).contains("cache.size"));
    let mut through = good.clone();
    through.cache.as_mut().unwrap().cache.write = osier_cache::WriteMode::Through;
    assert!(refused(&through, reserve).contains("cache.write"));
    let mut link = good.clone();
    link.link.cxl_flit = CxlFlit::None;
    assert!(refused(&link, reserve).contains("link.cxl_flit"));
    assert!(refused(&good, Reserve { frames: 2, batch: 3 }).contains("reserve.batch"));
    assert!(refused(&good, Reserve { frames: 12, batch: 1 }).contains("reserve_frames"));
}
