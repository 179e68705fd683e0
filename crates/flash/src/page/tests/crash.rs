//! Random work, random losses of power, and a model that knows what each unit may read as afterwards.
//!
//! The model keeps, for each unit, the versions that a loss of power may leave: the newest that was flushed,
//! and everything since. What recovery shows is on the media, so that it alone stays possible.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::common::*;
use crate::Nanos;
use crate::array::Shape;
use crate::page::planted::PageBug;
use crate::page::*;
use crate::rng::Rng;

/// Seeds of the plain run, with 5 losses of power each.
const SEEDS: u64 = 4_000;
/// Seeds of the long run, which is not part of the suite.
const SEEDS_LONG: u64 = 200_000;
/// Seeds within which a planted bug must be found.
const SEEDS_PLANTED: u64 = 2_000;
/// Losses of power of one seed.
const CUTS: u64 = 5;

/// Media that keeps everything, and the rules of NAND.
#[derive(Debug, Clone)]
pub struct TestMedia {
    slots: Vec<SlotState>,
    rng: Rng,
}

impl TestMedia {
    pub fn new(config: &PageFtlConfig, seed: u64) -> TestMedia {
        let planes = if config.timing.multi_plane { config.shape.planes_per_die } else { 1 };
        let slots = config.shape.units() / u64::from(config.shape.units_per_page() * planes);
        TestMedia { slots: vec![SlotState::Erased; slots as usize], rng: Rng::new(seed) }
    }
}

impl PageMedia for TestMedia {
    const KEEPS: bool = true;

    fn program(&mut self, slot: u32, life: u64, record: Record) {
        assert_eq!(self.slots[slot as usize], SlotState::Erased, "slot {slot} is programmed without an erase");
        self.slots[slot as usize] = SlotState::Whole { life, record };
    }

    fn erase(&mut self, first: u32, stripes: u32, count: u32) {
        for row in 0..count {
            self.slots[(first + row * stripes) as usize] = SlotState::Erased;
        }
    }

    fn slot(&self, slot: u32) -> SlotState {
        self.slots[slot as usize].clone()
    }

    fn tear_program(&mut self, slot: u32) {
        assert_eq!(self.slots[slot as usize], SlotState::Erased, "slot {slot} is programmed without an erase");
        self.slots[slot as usize] = SlotState::Torn;
    }

    fn tear_erase(&mut self, first: u32, stripes: u32, count: u32) {
        for row in 0..count {
            match self.rng.below(3) {
                0 => self.slots[(first + row * stripes) as usize] = SlotState::Erased,
                1 => self.slots[(first + row * stripes) as usize] = SlotState::Torn,
                _ => {}
            }
        }
    }
}

/// What units may read as.
#[derive(Debug, Clone)]
pub struct Model {
    /// By unit, oldest first; the last is the newest.
    versions: Vec<Vec<Option<u64>>>,
    next_payload: u64,
}

impl Model {
    pub fn new(units: u64) -> Model {
        Model { versions: vec![vec![None]; units as usize], next_payload: 1 }
    }

    pub fn write(&mut self, lpn: u64) -> u64 {
        let payload = self.next_payload;
        self.next_payload += 1;
        self.versions[lpn as usize].push(Some(payload));
        payload
    }

    pub fn trim(&mut self, lpn: u64) {
        self.versions[lpn as usize].push(None);
    }

    /// How many versions of each unit there are: what a flush that is asked for now covers.
    pub fn mark(&self) -> Vec<usize> {
        self.versions.iter().map(Vec::len).collect()
    }

    pub fn flushed(&mut self, mark: &[usize]) {
        for (versions, &count) in self.versions.iter_mut().zip(mark) {
            versions.drain(..count - 1);
        }
    }

    pub fn check_newest<M: PageMedia>(&self, ftl: &PageFtl<M>) -> Check {
        for (lpn, versions) in self.versions.iter().enumerate() {
            let (found, newest) = (ftl.payload(lpn as u64), versions.last().copied().flatten());
            if found != Ok(newest) {
                return Err(format!("unit {lpn} reads as {found:?}, newest is {newest:?}"));
            }
        }
        Ok(())
    }

    /// After a loss of power; what is seen is all that stays possible.
    pub fn recovered<M: PageMedia>(&mut self, ftl: &PageFtl<M>) -> Check {
        for (lpn, versions) in self.versions.iter_mut().enumerate() {
            let found = ftl.payload(lpn as u64).map_err(|error| format!("unit {lpn}: {error:?}"))?;
            if !versions.contains(&found) {
                return Err(format!("unit {lpn} reads as {found:?}, possible are {versions:?}"));
            }
            *versions = vec![found];
        }
        Ok(())
    }
}

/// A failed check.
pub type Check = Result<(), String>;

/// How often the rare paths were met, so that a run that never meets one fails.
#[derive(Debug, Default, Clone, Copy)]
struct Marks {
    cuts: u64,
    checkpoints: u64,
    cut_in_checkpoint: u64,
    moved: u64,
    cut_in_collection: u64,
    torn: u64,
    trims: u64,
    flushes: u64,
    dropped: u64,
    scanned_max: u64,
}

struct World {
    config: PageFtlConfig,
    ftl: Option<PageFtl<TestMedia>>,
    model: Model,
    rng: Rng,
    now: Nanos,
    bug: Option<PageBug>,
    /// Events until the next loss of power.
    fuel: u64,
    flushes: Vec<(RequestId, Vec<usize>)>,
    marks: Marks,
}

fn draw_config(rng: &mut Rng) -> PageFtlConfig {
    loop {
        let shape = Shape {
            channels: 1 + rng.below(2) as u32,
            chips_per_channel: 1,
            dies_per_chip: 1 + rng.below(2) as u32,
            planes_per_die: 1 + rng.below(2) as u32,
            blocks_per_plane: 8 + rng.below(8) as u32,
            pages_per_block: 4 + rng.below(5) as u32,
            page_bytes: 4096 << rng.below(2),
        };
        let mut ftl = params(1);
        ftl.streams = [Streams::Shared, Streams::Separate, Streams::HotCold][rng.below(3) as usize];
        let policies = [VictimPolicy::Greedy, VictimPolicy::Fifo, VictimPolicy::CostBenefit, VictimPolicy::Choices(2)];
        ftl.collection.policy = policies[rng.below(4) as usize];
        ftl.collection.free_min = 1 + rng.below(2) as u32;
        ftl.collection.free_foreground = ftl.collection.free_min + rng.below(2) as u32;
        ftl.collection.free_background = ftl.collection.free_foreground + rng.below(2) as u32;
        ftl.collection.preemptible = rng.below(2) == 0;
        ftl.collection.moves_max = 1 + rng.below(8) as u32;
        ftl.checkpoint_superblocks = 1 + rng.below(4) as u32;
        ftl.slots_per_die_max = 1 + rng.below(4) as u32;
        ftl.map_cache_pages = rng.below(2) as u32;
        let mut config = config(shape, ftl);
        config.timing.multi_plane = rng.below(2) == 0;
        config.timing.reads_first = rng.below(2) == 0;
        if !config.timing.reads_first {
            (config.timing.suspend.program, config.timing.suspend.erase) = (false, false);
        }
        config.timing.cache_program = rng.below(2) == 0;
        let most = config.logical_units_max();
        if most >= 4 {
            config.ftl.logical_units = (most * (50 + rng.below(51)) / 100).max(1);
            if config.validate().is_ok() {
                return config;
            }
        }
    }
}

impl World {
    fn new(seed: u64, bug: Option<PageBug>) -> World {
        let mut rng = Rng::new(seed);
        let config = draw_config(&mut rng);
        let media = TestMedia::new(&config, rng.next());
        let mut ftl = PageFtl::with_media(&config, seed, media).unwrap();
        ftl.bug = bug;
        let model = Model::new(config.ftl.logical_units);
        let marks = Marks::default();
        let (now, fuel, flushes) = (Nanos::ZERO, 0, Vec::new());
        World { config, ftl: Some(ftl), model, rng, now, bug, fuel, flushes, marks }
    }

    fn run(&mut self) -> Check {
        for _ in 0..CUTS {
            self.fuel = if self.rng.below(4) == 0 { self.rng.below(10) } else { 20 + self.rng.below(400) };
            while self.fuel > 0 {
                self.operate()?;
            }
            self.cut()?;
        }
        Ok(())
    }

    fn ftl(&mut self) -> &mut PageFtl<TestMedia> {
        self.ftl.as_mut().expect("it is there between cuts")
    }

    fn operate(&mut self) -> Check {
        let units = self.config.ftl.logical_units;
        // Half of the work goes to a quarter of the units.
        let span = if self.rng.below(2) == 0 { units } else { units.div_ceil(4) };
        let lpn = self.rng.below(span);
        let now = self.now;
        match self.rng.below(20) {
            0..12 => {
                let payload = self.model.write(lpn);
                let outcome = self.ftl().write(now, lpn, 1, payload).map_err(|error| error.to_string())?;
                self.wait(outcome)?;
            }
            12..15 => {
                let count = 1 + self.rng.below(3.min(units - lpn));
                if self.ftl().trim(now, lpn, count as u32).is_ok() {
                    (lpn..lpn + count).for_each(|lpn| self.model.trim(lpn));
                    self.marks.trims += 1;
                }
            }
            15 => {
                let mark = self.model.mark();
                match self.ftl().flush(now).map_err(|error| error.to_string())? {
                    Outcome::Done(_) => self.model.flushed(&mark),
                    Outcome::Waiting(id) if self.rng.below(2) == 0 => {
                        self.flushes.push((id, mark));
                        self.wait(Outcome::Waiting(id))?;
                    }
                    Outcome::Waiting(id) => self.flushes.push((id, mark)),
                }
                self.marks.flushes += 1;
            }
            16 => {
                let outcome = self.ftl().read(now, lpn, 1).map_err(|error| error.to_string())?;
                self.wait(outcome)?;
            }
            17 => self.model.check_newest(self.ftl.as_ref().expect("it is there between cuts"))?,
            18 => self.ftl().audit()?,
            _ => {
                self.step();
            }
        }
        self.fuel = self.fuel.saturating_sub(1);
        Ok(())
    }

    /// The next event, if the power lasts so long and anything happens.
    fn step(&mut self) -> Option<Vec<Completed>> {
        if self.fuel == 0 {
            return None;
        }
        self.fuel -= 1;
        let mut completed = Vec::new();
        if let Some(at) = self.ftl().next_event() {
            self.now = self.now.max(at);
            let now = self.now;
            self.ftl().poll(now, &mut completed);
        }
        for done in &completed {
            if let Some(index) = self.flushes.iter().position(|&(id, _)| id == done.id) {
                // An earlier flush that is done later covers no more.
                let (_, mark) = self.flushes.remove(index);
                self.model.flushed(&mark);
                for (_, other) in &mut self.flushes {
                    for (other, mark) in other.iter_mut().zip(&mark) {
                        *other = (*other + 1).saturating_sub(*mark).max(1);
                    }
                }
            }
        }
        Some(completed)
    }

    fn wait(&mut self, outcome: Outcome) -> Check {
        let Outcome::Waiting(id) = outcome else { return Ok(()) };
        while self.fuel > 0 {
            if self.ftl().next_event().is_none() {
                return Err(format!("{id:?} waits for ever: {:?}", self.ftl().stats()));
            }
            let Some(completed) = self.step() else { return Ok(()) };
            if completed.iter().any(|done| done.id == id) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn cut(&mut self) -> Check {
        let ftl = self.ftl.take().expect("it is there between cuts");
        let stats = ftl.stats();
        self.marks.cuts += 1;
        self.marks.checkpoints += stats.checkpoints;
        self.marks.moved += stats.units_moved;
        self.marks.cut_in_collection += u64::from(stats.victims > stats.superblocks_erased);
        self.marks.cut_in_checkpoint += u64::from(ftl.is_checkpointing());
        let media = ftl.lose_power();
        self.flushes.clear();
        let seed = self.rng.next();
        let recovered = PageFtl::recover_with(&self.config, seed, media, self.bug);
        let (mut ftl, report) = recovered.map_err(|error| error.to_string())?;
        self.marks.torn += report.torn_slots;
        self.marks.dropped += u64::from(report.copies_dropped);
        let most = scanned_max(&self.config);
        if u64::from(report.superblocks_scanned) > most {
            return Err(format!("{report:?}: more than {most} superblocks were read"));
        }
        self.marks.scanned_max = self.marks.scanned_max.max(u64::from(report.superblocks_scanned));
        ftl.audit()?;
        ftl.advance(self.now);
        self.model.recovered(&ftl)?;
        self.ftl = Some(ftl);
        Ok(())
    }
}

/// Superblocks that recovery may read: what the host opens before it waits for a checkpoint, what was open,
/// and what collection opens for that.
fn scanned_max(config: &PageFtlConfig) -> u64 {
    u64::from(config.shape.blocks_per_plane.min(2 * config.ftl.checkpoint_superblocks + 3 + 4))
}

/// Runs a seed; a panic counts as a failed check.
fn run_seed(seed: u64, bug: Option<PageBug>, marks: &mut Marks) -> Check {
    let run = AssertUnwindSafe(|| {
        let mut world = World::new(seed, bug);
        (world.run(), world.marks)
    });
    let (result, found) = match catch_unwind(run) {
        Ok(done) => done,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            (Err(text.unwrap_or_else(|| "a panic".to_string())), Marks::default())
        }
    };
    marks.cuts += found.cuts;
    marks.checkpoints += found.checkpoints;
    marks.cut_in_checkpoint += found.cut_in_checkpoint;
    marks.moved += found.moved;
    marks.cut_in_collection += found.cut_in_collection;
    marks.torn += found.torn;
    marks.trims += found.trims;
    marks.flushes += found.flushes;
    marks.dropped += found.dropped;
    marks.scanned_max = marks.scanned_max.max(found.scanned_max);
    result.map_err(|error| format!("seed {seed}: {error}"))
}

fn run_all(seeds: std::ops::RangeInclusive<u64>) -> Marks {
    let mut marks = Marks::default();
    for seed in seeds {
        run_seed(seed, None, &mut marks).unwrap();
    }
    println!("{marks:?}");
    marks
}

#[test]
fn no_loss_of_power_loses_tears_or_revives_a_unit() {
    let marks = run_all(0..=SEEDS - 1);
    assert_eq!(marks.cuts, SEEDS * CUTS);
    for (name, count) in [
        ("checkpoints", marks.checkpoints),
        ("cuts in checkpoints", marks.cut_in_checkpoint),
        ("moved units", marks.moved),
        ("cuts in collections", marks.cut_in_collection),
        ("torn slots", marks.torn),
        ("trims", marks.trims),
        ("flushes", marks.flushes),
    ] {
        assert!(count >= SEEDS / 10, "{name}: only {count} in {marks:?}");
    }
}

/// Any seeds: `OSIER_SEED_FIRST=7 OSIER_SEED_LAST=7 cargo test -p osier-flash -- --ignored page_crash_seeds`
#[test]
#[ignore = "a million losses of power take long; `make evidence` runs them"]
fn page_crash_seeds() {
    let bound = |name: &str, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    run_all(bound("OSIER_SEED_FIRST", 0)..=bound("OSIER_SEED_LAST", SEEDS_LONG - 1));
}

#[test]
fn every_planted_bug_of_the_page_map_is_found() {
    for bug in PageBug::ALL {
        let found = (0..SEEDS_PLANTED).find(|&seed| run_seed(seed, Some(bug), &mut Marks::default()).is_err());
        println!("{bug:?}: seed {found:?}");
        assert!(found.is_some(), "{bug:?} was not found");
    }
}

/// A full device whose power is lost in the middle of every collection, again and again.
#[test]
fn a_full_device_that_is_cut_off_in_every_collection_still_takes_writes() {
    let mut dropped = 0;
    for seed in 0..60 {
        let mut rng = Rng::new(seed);
        let shape = Shape { blocks_per_plane: 12, channels: 1 + seed as u32 % 3, ..ONE_DIE };
        let mut config = config(shape, params(1));
        config.ftl.collection.free_foreground = 1;
        config.ftl.collection.free_background = 1;
        config.ftl.checkpoint_superblocks = 2;
        config.ftl.logical_units = config.logical_units_max();
        let units = config.ftl.logical_units;
        let mut ftl = PageFtl::with_media(&config, seed, TestMedia::new(&config, seed)).unwrap();
        let (mut now, mut model) = (Nanos::ZERO, Model::new(units));
        for round in 0..100 {
            let victims = ftl.stats().victims;
            for _ in 0..1_000 {
                let lpn = rng.below(units);
                let payload = model.write(lpn);
                write(&mut ftl, &mut now, lpn, payload);
                if ftl.stats().victims > victims {
                    break;
                }
            }
            for _ in 0..rng.below(12) {
                let Some(at) = ftl.next_event() else { break };
                now = now.max(at);
                ftl.advance(now);
            }
            let (recovered, report) = PageFtl::recover(&config, seed, ftl.lose_power()).unwrap();
            dropped += report.copies_dropped;
            ftl = recovered;
            ftl.advance(now);
            ftl.audit().unwrap();
            model.recovered(&ftl).unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
        }
    }
    assert!(dropped > 0, "no cut left too little space for the copies to stand");
}
