//! The cache with a driver that moves bytes as a device would, in random order, with every command: each read sees
//! the newest bytes, nothing pinned leaves, and at the end everything is below.
//!
//! A line's bytes are one number: the write that made them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::HashMap;

use osier_cache::{
    ALL_LINES, Bug, Cache, CacheConfig, CommandError, Compaction, Evicted, Eviction, Fill, Frames, Op, Outcome,
    POLICIES, ParameterValues, PolicyFault, Prefetched, Recall, SetIndex, SplitMix64, Wait, WriteLogConfig, WriteMode,
    policy, replay_with,
};

const PAGES: u64 = 40;
const LINES: usize = 4;
type Bytes = [u64; LINES];

/// A fill on its way, with the requests that wait for it.
struct Arriving {
    fill: Fill,
    must_drain: bool,
    /// What was read from below, once it was.
    read: Option<Bytes>,
    waiting: Vec<Op>,
}

/// A page being written from the log.
struct Compacting {
    what: Compaction,
    bytes: Bytes,
}

/// The device around the cache.
struct Driver {
    cache: Cache<Box<dyn Eviction>>,
    random: SplitMix64,
    flash: HashMap<u64, Bytes>,
    frames: Vec<Bytes>,
    log: HashMap<(u8, u32), u64>,
    /// What a read has to see.
    newest: HashMap<u64, Bytes>,
    writes: u64,
    arriving: Vec<Arriving>,
    /// Pages that left for no other.
    leaving: Vec<Evicted>,
    compacting: Option<Compacting>,
    pins: HashMap<u64, u32>,
}

fn bits(lines: u64) -> impl Iterator<Item = usize> {
    (0..LINES).filter(move |line| lines >> line & 1 == 1)
}

impl Driver {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let ways = [2, 4, 8, 16][random.below(4) as usize];
        let frames = ways * [1, 1, 2, 3][random.below(4) as usize];
        let with_log = random.below(2) == 0;
        let prefetch = ["none", "next-n", "stride", "best-offset"][random.below(4) as usize];
        let config = CacheConfig {
            frames,
            ways,
            set_index: if random.below(2) == 0 { SetIndex::Modulo } else { SetIndex::Hash },
            write: if !with_log && random.below(4) == 0 { WriteMode::Through } else { WriteMode::Back },
            reserve_frames: random.below(u64::from(ways.min(3))) as u32,
            pinned_pages_max: random.below(6) as u32,
            eviction: POLICIES[random.below(POLICIES.len() as u64) as usize].name.to_owned(),
            eviction_parameters: ParameterValues::new(),
            prefetch: prefetch.to_owned(),
            prefetch_parameters: ParameterValues::new(),
            write_log: with_log.then_some(WriteLogConfig { lines_per_page: LINES as u32, lines_per_half: 12 }),
        };
        let cache = Cache::build(&config, seed).unwrap();
        let (flash, log, newest, pins) = Default::default();
        let (arriving, leaving) = Default::default();
        let frames = vec![[0; LINES]; frames as usize];
        Self { cache, random, flash, frames, log, newest, writes: 0, arriving, leaving, compacting: None, pins }
    }

    fn below(&self, page: u64) -> Bytes {
        self.flash.get(&page).copied().unwrap_or_default()
    }

    /// Does what a request does, to the page's bytes in its frame.
    fn serve(&mut self, page: u64, frame: u32, op: Op) -> Result<(), String> {
        if !op.is_write {
            return self.expect(page, op.lines, self.frames[frame as usize], "the frame");
        }
        self.writes += 1;
        for line in bits(op.lines) {
            self.frames[frame as usize][line] = self.writes;
            self.newest.entry(page).or_default()[line] = self.writes;
            if self.cache.writes_through() {
                self.flash.entry(page).or_default()[line] = self.writes;
            }
        }
        self.log_lines(page, op.lines);
        Ok(())
    }

    /// Puts the newest bytes of lines that the log has just taken where it has them.
    fn log_lines(&mut self, page: u64, lines: u64) {
        let Some(log) = self.cache.log() else { return };
        for line in bits(lines) {
            let slot = log.slot(page, line as u32).expect("the log has just taken it");
            self.log.insert((slot.half, slot.slot), self.newest[&page][line]);
        }
    }

    fn expect(&self, page: u64, lines: u64, found: Bytes, place: &str) -> Result<(), String> {
        let newest = self.newest.get(&page).copied().unwrap_or_default();
        match bits(lines).find(|line| found[*line] != newest[*line]) {
            Some(line) => {
                Err(format!("line {line} of page {page} is {found:?} in {place}, and {newest:?} was written"))
            }
            None => Ok(()),
        }
    }

    fn lines_in_log(&self, page: u64, lines: u64) -> Bytes {
        let mut bytes = Bytes::default();
        for line in bits(lines) {
            let slot = self.cache.log().and_then(|log| log.slot(page, line as u32)).expect("the log has the line");
            bytes[line] = self.log[&(slot.half, slot.slot)];
        }
        bytes
    }

    fn page_left(&self, evicted: Evicted) -> Result<(), String> {
        match self.pins.get(&evicted.page) {
            Some(pins) => Err(format!("page {} left with {pins} pins", evicted.page)),
            None => Ok(()),
        }
    }

    fn begin(&mut self, fill: Fill, waiting: Vec<Op>) -> Result<(), String> {
        if let Some(evicted) = fill.evicted {
            self.page_left(evicted)?;
        }
        let must_drain = fill.evicted.is_some_and(|evicted| evicted.is_dirty);
        let read = (!fill.reads_media).then(Bytes::default);
        self.arriving.push(Arriving { fill, must_drain, read, waiting });
        while let Some(evicted) = self.cache.reclaim(fill.page) {
            self.leave(evicted)?;
        }
        Ok(())
    }

    fn leave(&mut self, evicted: Evicted) -> Result<(), String> {
        self.page_left(evicted)?;
        if evicted.is_dirty {
            self.leaving.push(evicted);
        }
        Ok(())
    }

    fn request(&mut self) -> Result<(), String> {
        let near = self.random.below(PAGES / 4);
        let page = if self.random.below(2) == 0 { near } else { self.random.below(PAGES) };
        let whole = (1 << LINES) - 1;
        let op = match self.random.below(4) {
            0 => Op { is_write: true, lines: 1 << self.random.below(LINES as u64) },
            1 if self.random.below(2) == 0 => Op { is_write: true, lines: ALL_LINES },
            _ => Op { is_write: false, lines: 1 + self.random.below(whole) },
        };
        match self.cache.request(page, op) {
            Outcome::Hit { frame } => self.serve(page, frame, op)?,
            Outcome::Merged { frame } => {
                let arriving = self.arriving.iter_mut().find(|arriving| arriving.fill.frame == frame);
                let arriving = arriving.ok_or(format!("page {page} was merged with no fill"))?;
                arriving.waiting.push(op);
            }
            Outcome::Miss(fill) => self.begin(fill, vec![op])?,
            Outcome::LogHit => {
                let bytes = self.lines_in_log(page, op.lines);
                self.expect(page, op.lines, bytes, "the log")?;
            }
            Outcome::Logged => {
                self.writes += 1;
                for line in bits(op.lines) {
                    self.newest.entry(page).or_default()[line] = self.writes;
                }
                self.log_lines(page, op.lines);
            }
            Outcome::Wait(wait) => self.may_wait(page, wait)?,
        }
        for page in self.cache.wanted().to_vec() {
            if page < PAGES && self.random.below(2) == 0 {
                self.prefetch(page)?;
            }
        }
        Ok(())
    }

    /// Whether there is something under way that the cache can be waiting for.
    fn may_wait(&self, page: u64, wait: Wait) -> Result<(), String> {
        let is_dirty = |evicted: &Evicted| evicted.page == page;
        let fills = self.arriving.iter().filter(|arriving| arriving.must_drain);
        let right = match wait {
            Wait::Frame => !self.arriving.is_empty() || !self.leaving.is_empty(),
            Wait::Drain => {
                self.leaving.iter().any(is_dirty) || fills.filter_map(|a| a.fill.evicted.as_ref()).any(is_dirty)
            }
            Wait::Log => self.cache.log().is_some_and(|log| log.next_compaction().is_some()),
            Wait::Compaction => self.compacting.as_ref().is_some_and(|compacting| compacting.what.page == page),
        };
        if right { Ok(()) } else { Err(format!("page {page} waits for {wait:?}, and nothing of it is under way")) }
    }

    fn prefetch(&mut self, page: u64) -> Result<(), String> {
        match self.cache.prefetch(page) {
            Prefetched::Started(fill) => self.begin(fill, Vec::new()),
            Prefetched::Present | Prefetched::Refused => Ok(()),
        }
    }

    /// One step of one thing that is under way.
    fn progress(&mut self) -> Result<(), String> {
        let count = self.arriving.len() + self.leaving.len() + 1;
        let which = self.random.below(count as u64) as usize;
        if which < self.arriving.len() {
            self.progress_fill(which)
        } else if which < count - 1 {
            let Evicted { page, frame, .. } = self.leaving.swap_remove(which - self.arriving.len());
            self.flash.insert(page, self.frames[frame as usize]);
            self.cache.drained(page);
            Ok(())
        } else {
            self.progress_compaction();
            Ok(())
        }
    }

    fn progress_fill(&mut self, which: usize) -> Result<(), String> {
        let Arriving { fill, must_drain, read, waiting } = &mut self.arriving[which];
        let Fill { page, frame, .. } = *fill;
        let Some(bytes) = *read else {
            *read = Some(self.flash.get(&page).copied().unwrap_or_default());
            return Ok(());
        };
        if *must_drain {
            *must_drain = false;
            let evicted = fill.evicted.expect("it was dirty");
            self.flash.insert(evicted.page, self.frames[frame as usize]);
            self.cache.drained(evicted.page);
            return Ok(());
        }
        let may_fail = waiting.iter().all(|op| !op.is_write);
        if may_fail && self.random.below(20) == 0 {
            self.arriving.swap_remove(which);
            self.cache.fill_failed(frame);
            self.pins.remove(&page);
            return Ok(());
        }
        let arrived = self.arriving.swap_remove(which);
        self.frames[frame as usize] = bytes;
        let lines = self.cache.fill_done(frame);
        let logged = self.lines_in_log(page, lines);
        bits(lines).for_each(|line| self.frames[frame as usize][line] = logged[line]);
        arrived.waiting.iter().try_for_each(|op| self.serve(page, frame, *op))
    }

    fn progress_compaction(&mut self) {
        if let Some(Compacting { what, bytes }) = self.compacting.take() {
            self.flash.insert(what.page, bytes);
            self.cache.compacted();
        } else if let Some(what) = self.cache.next_compaction() {
            let resident = self.cache.resident(what.page);
            let mut bytes = resident.map_or(self.below(what.page), |frame| self.frames[frame as usize]);
            let log = self.cache.log().expect("there is a compaction");
            // What is resident is at least as new as what the log has.
            for line in bits(what.lines).filter(|_| resident.is_none()) {
                let slot = log.slot_of(&what, line as u32).expect("the log has what it compacts");
                bytes[line] = self.log[&(slot.half, slot.slot)];
            }
            self.compacting = Some(Compacting { what, bytes });
        }
    }

    fn command(&mut self) -> Result<(), String> {
        let page = self.random.below(PAGES);
        match self.random.below(8) {
            0 => {
                if let Ok(evicted) = self.cache.evict(page) {
                    self.leave(evicted)?;
                }
            }
            1 | 2 => {
                if self.cache.pin(page).is_ok() {
                    *self.pins.entry(page).or_default() += 1;
                }
            }
            3 | 4 => {
                let had = self.pins.get(&page).copied().unwrap_or(0);
                match self.cache.unpin(page) {
                    Ok(()) if had == 0 => return Err(format!("page {page} was not pinned and could be unpinned")),
                    Ok(()) if had == 1 => drop(self.pins.remove(&page)),
                    Ok(()) => drop(self.pins.insert(page, had - 1)),
                    Err(error) if had > 0 => return Err(format!("unpinning: {error}")),
                    Err(_) => {}
                }
            }
            5 => drop(self.cache.touch(page)),
            6 => self.flush_one(),
            _ if self.random.below(10) == 0 => {
                let name = POLICIES[self.random.below(POLICIES.len() as u64) as usize].name;
                let shape = self.cache.shape();
                self.cache.set_policy(policy(name, shape, &ParameterValues::new(), 1).expect("it is registered"));
            }
            _ => self.prefetch(page)?,
        }
        Ok(())
    }

    fn flush_one(&mut self) {
        let first = self.cache.dirty_pages().next();
        if let Some(Evicted { page, frame, .. }) = first {
            self.flash.insert(page, self.frames[frame as usize]);
            self.cache.mark_clean(page).expect("a dirty page is resident");
        }
        self.cache.seal_log();
    }

    /// Ends all that is under way, flushes, and looks at what is below.
    fn quiesce(&mut self) -> Result<(), String> {
        for _ in 0..100_000 {
            self.flush_one();
            let log_is_empty = self.cache.log().is_none_or(|log| log.room() == 2 * 12);
            let nothing_under_way = self.arriving.is_empty() && self.leaving.is_empty() && self.compacting.is_none();
            if nothing_under_way && log_is_empty && self.cache.dirty_pages().next().is_none() {
                for page in 0..PAGES {
                    self.expect(page, ALL_LINES, self.below(page), "flash")?;
                }
                return self.cache.audit();
            }
            self.progress()?;
        }
        Err("it does not come to rest".to_owned())
    }

    fn run(&mut self, steps: u32) -> Result<(), String> {
        for _ in 0..steps {
            match self.random.below(8) {
                0..3 => self.request()?,
                3 => self.command()?,
                _ => self.progress()?,
            }
            self.cache.audit()?;
        }
        self.quiesce()
    }
}

#[test]
fn every_read_sees_the_newest_bytes_in_whatever_order_things_happen() {
    for seed in 0..600 {
        let mut driver = Driver::new(seed);
        driver.run(2000).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(driver.cache.stats().policy_faults, 0, "seed {seed}: {:?}", driver.cache.last_fault());
    }
}

#[test]
fn every_planted_bug_of_the_cache_is_found() {
    for bug in Bug::ALL {
        let is_found = (0..600).any(|seed| {
            let mut driver = Driver::new(seed);
            driver.cache.plant(bug);
            driver.run(2000).is_err()
        });
        assert!(is_found, "{bug:?} was not found");
    }
}

/// A policy that names frames it should not: pinned ones, others' ones, ones that do not exist, none.
struct Liar {
    honest: Box<dyn Eviction>,
    random: SplitMix64,
}

impl Eviction for Liar {
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        self.honest.incoming(set, page, demanded)
    }
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        self.honest.inserted(set, frame, page, recall);
    }
    fn touched(&mut self, set: u32, frame: u32) {
        self.honest.touched(set, frame);
    }
    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        match self.random.below(4) {
            0 => None,
            1 => Some(u32::MAX),
            2 => Some(self.random.below(64) as u32),
            _ => self.honest.victim(set, recall, frames),
        }
    }
    fn removed(&mut self, set: u32, frame: u32) {
        self.honest.removed(set, frame);
    }
}

/// FIFO that does not mind being told of frames that it does not have.
#[derive(Default)]
struct Careless(Vec<(u32, u32)>);

impl Eviction for Careless {
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.0.push((set, frame));
    }
    fn touched(&mut self, _: u32, _: u32) {}
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let at = self.0.iter().position(|(of, _)| *of == set)?;
        Some(self.0.remove(at).1)
    }
    fn removed(&mut self, _: u32, frame: u32) {
        self.0.retain(|(_, known)| *known != frame);
    }
}

#[test]
fn a_policy_that_names_wrong_victims_is_caught_counted_and_costs_no_bytes() {
    let mut faults = 0;
    for seed in 0..200 {
        let mut driver = Driver::new(seed);
        let honest = Box::new(Careless::default());
        driver.cache.set_policy(Box::new(Liar { honest, random: SplitMix64::new(seed) }));
        // Changing the policy at random would end the lies.
        for _ in 0..2000 {
            let step = if driver.random.below(2) == 0 { driver.request() } else { driver.progress() };
            step.and_then(|()| driver.cache.audit()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
        driver.quiesce().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let stats = driver.cache.stats();
        assert_eq!(stats.policy_faults > 0, driver.cache.last_fault().is_some());
        faults += stats.policy_faults;
    }
    assert!(faults > 1000, "only {faults} lies were told");
}

/// FIFO that can decide no more after some victims, and says so, or names a frame that there is not and says nothing.
struct Failing {
    honest: Careless,
    victims: u32,
    says_so: bool,
    overruled: u32,
}

impl Eviction for Failing {
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        self.honest.inserted(set, frame, page, recall);
    }
    fn touched(&mut self, _: u32, _: u32) {}
    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        self.victims = self.victims.checked_sub(1)?;
        self.honest.victim(set, recall, frames).filter(|_| self.victims > 0).or(Some(99))
    }
    fn removed(&mut self, set: u32, frame: u32) {
        self.honest.removed(set, frame);
    }
    fn overruled(&mut self, fault: &PolicyFault) {
        assert_eq!(*fault, PolicyFault { set: 0, named: (self.overruled == 0).then_some(99) });
        self.overruled += 1;
    }
    fn failure(&self) -> Option<&str> {
        (self.says_so && self.overruled > 0).then_some("it is tired")
    }
}

#[test]
fn a_policy_that_fails_has_no_result() {
    let failing = |victims, says_so| Failing { honest: Careless::default(), victims, says_so, overruled: 0 };
    let run = |policy| replay_with(&small(4, 0), policy, (0..100_000).map(|page| (page, Op::READ)));
    // Four pages come into free frames; the page after the last right victim is the first without one.
    assert_eq!(run(failing(99_997, true)).unwrap().misses, 100_000);
    for (says_so, says) in [(true, "it is tired"), (false, "it named frame 99 as the victim of set 0")] {
        let error = run(failing(99_996, says_so)).unwrap_err().to_string();
        assert!(error.contains("within the first 100000 requests") && error.contains(says), "{error}");
        let error = run(failing(9, says_so)).unwrap_err().to_string();
        assert!(error.contains("within the first 65536 requests"), "it stops soon: {error}");
    }
    let mut cache: Cache<Box<dyn Eviction>> = Cache::new(&small(4, 0), Box::new(failing(1, true)) as _).unwrap();
    for page in 0..5 {
        cache.at_once(page, Op::READ);
    }
    assert_eq!(cache.policy_failure().as_deref(), Some("it is tired"));
    cache.set_policy(policy("lru", cache.shape(), &ParameterValues::new(), 0).unwrap());
    assert_eq!(cache.policy_failure(), None, "the new policy did nothing wrong");
}

/// A fully associative LRU cache.
fn small(frames: u32, reserve_frames: u32) -> CacheConfig {
    CacheConfig {
        frames,
        ways: frames,
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames,
        pinned_pages_max: 0,
        eviction: "lru".to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: "none".to_owned(),
        prefetch_parameters: ParameterValues::new(),
        write_log: None,
    }
}

#[test]
fn commands_that_cannot_be_done_say_why_and_change_nothing() {
    let config = CacheConfig { pinned_pages_max: 2, ..small(4, 0) };
    let mut cache = Cache::build(&config, 0).unwrap();
    for page in 0..4 {
        cache.at_once(page, Op::READ);
    }
    assert_eq!(cache.pin(9), Err(CommandError::NotResident { page: 9 }));
    assert_eq!(cache.unpin(0), Err(CommandError::NotPinned { page: 0 }));
    cache.pin(0).unwrap();
    cache.pin(0).unwrap();
    cache.pin(1).unwrap();
    assert_eq!(cache.pin(2), Err(CommandError::PinLimit { page: 2, max: 2 }));
    assert_eq!(cache.evict(0), Err(CommandError::Pinned { page: 0, pins: 2 }));
    assert_eq!(cache.evict(9), Err(CommandError::NotResident { page: 9 }));
    for page in 10..20 {
        cache.at_once(page, Op::READ);
    }
    assert!(cache.resident(0).is_some() && cache.resident(1).is_some());
    let Outcome::Miss(fill) = cache.request(50, Op::READ) else { panic!("page 50 is not there") };
    assert_eq!(cache.evict(50), Err(CommandError::Filling { page: 50 }));
    cache.fill_done(fill.frame);
    cache.unpin(0).unwrap();
    cache.unpin(0).unwrap();
    assert!(cache.evict(0).is_ok());
    cache.audit().unwrap();

    let mut narrow = Cache::build(&CacheConfig { ways: 2, pinned_pages_max: 9, ..config }, 0).unwrap();
    narrow.at_once(0, Op::READ);
    narrow.at_once(2, Op::READ);
    narrow.pin(0).unwrap();
    assert_eq!(narrow.pin(2), Err(CommandError::SetPinned { page: 2 }));
}

#[test]
fn frames_are_kept_free_so_that_misses_find_one() {
    let config = small(16, 3);
    let mut cache = Cache::build(&config, 0).unwrap();
    for page in 0..1000 {
        let Outcome::Miss(fill) = cache.request(page, Op::READ) else { panic!("page {page} is new") };
        assert_eq!(fill.evicted, None, "page {page} found no free frame");
        cache.fill_done(fill.frame);
        while let Some(evicted) = cache.reclaim(page) {
            assert_eq!(evicted.page + 13, page, "the oldest of 13 pages leaves");
        }
    }
    assert_eq!(cache.stats().reclaimed, 1000 - 13);
}

#[test]
fn a_new_policy_gets_the_pages_in_the_order_in_which_they_came() {
    let config = small(8, 0);
    for (name, expected) in [("fifo", [0, 1, 2, 3]), ("lru", [0, 1, 2, 3]), ("lifo", [7, 16, 17, 18])] {
        let mut cache = Cache::build(&config, 0).unwrap();
        for page in 0..8 {
            cache.at_once(page, Op::READ);
        }
        // Uses are forgotten: this order must not matter.
        for page in (0..8).rev() {
            cache.at_once(page, Op::READ);
        }
        cache.set_policy(policy(name, cache.shape(), &ParameterValues::new(), 0).unwrap());
        let left = (16..20).map(|page| match cache.at_once(page, Op::READ) {
            Outcome::Miss(Fill { evicted: Some(evicted), .. }) => evicted.page,
            other => panic!("page {page}: {other:?}"),
        });
        assert_eq!(left.collect::<Vec<u64>>(), expected, "{name}");
        assert_eq!(cache.stats().hits, 8, "the pages stayed");
    }
}
