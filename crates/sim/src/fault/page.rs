//! The page-mapped FTL under random work and faults.

use osier_flash::Nanos;
use osier_flash::array::{ArrayTiming, ErrorParams, RberPoint, RetryStep, Shape, Suspend};
use osier_flash::faulty::SlotArray;
use osier_flash::page::{
    Collection, Completed, Done, Outcome, PageFtl, PageFtlConfig, PageFtlParams, PageRecovery, Refused, RequestId,
    Status, Streams, VictimPolicy, WearLevelling,
};

use super::planted::{PageBug, Planted, plant_page, recover_page};
use super::reference::{Content, Reference};
use super::script::Script;
use super::{Check, Counts, World};
use crate::Rng;

/// Losses of power of one seed.
pub(super) const CUTS: u64 = 5;
/// Events within which a loss of power that seeks an erase finds one.
const ERASE_SOUGHT_MAX: u64 = 400;
/// Events after the beginning of the erase that it found.
const AFTER_ERASE_MAX: u64 = 4;
/// Units of the largest write or trim.
const COUNT_MAX: u64 = 3;

/// Which faults a seed has beside losses of power.
#[derive(Debug, Clone, Copy)]
struct Faults {
    units_rot: bool,
    slots_rot: bool,
    areas_rot: bool,
    dies_die: bool,
    /// Three writes of four go to so many units, where this is not 0: superblocks empty soon.
    hot_units: u64,
}

pub(super) struct PageWorld {
    seed: u64,
    config: PageFtlConfig,
    faults: Faults,
    ftl: Option<PageFtl<SlotArray>>,
    reference: Reference,
    script: Script,
    counts: Counts,
    now: Nanos,
    bug: Option<PageBug>,
    /// Events until the next loss of power.
    fuel: u64,
    /// Flushes under way, and the sequence that each covers.
    flushes: Vec<(RequestId, u64)>,
    /// Power is lost so many events after the next erase of a superblock that is at most so old has begun.
    after_erase: Option<(u64, u64)>,
    /// A die or a plane died, while everything that a checkpoint area holds had two copies, and none before.
    is_first_death: bool,
    /// More died, or earlier.
    is_more_dead: bool,
    /// A recovery said that it does not know what lies on a dead die: nothing is promised any more.
    is_over: bool,
}

impl World for PageWorld {
    fn run(&mut self) -> Check {
        for cut in 0..CUTS {
            let mut rng = Rng::new(self.seed ^ (cut + 1) << 48).fork();
            self.fuel = if rng.one_in(4) { rng.below(10) } else { 20 + rng.below(400) };
            let ages = [u64::MAX, 4, 2][rng.below(3) as usize];
            self.after_erase = rng.one_in(2).then(|| (rng.below(AFTER_ERASE_MAX), ages));
            if self.after_erase.is_some() {
                self.fuel += ERASE_SOUGHT_MAX;
            }
            while self.fuel > 0 {
                self.fuel -= 1;
                if let Some(mut rng) = self.script.next_operation() {
                    self.operate(&mut rng)?;
                }
            }
            self.cut(&mut rng)?;
            if self.is_over {
                break;
            }
        }
        Ok(())
    }

    fn script(&mut self) -> &mut Script {
        &mut self.script
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    fn config(&self) -> String {
        format!("{:?}; {:?}", self.config, self.faults)
    }
}

impl PageWorld {
    pub(super) fn new(seed: u64, bug: Option<Planted>, script: Script) -> PageWorld {
        let bug = Planted::page(bug);
        let mut rng = Rng::new(seed).fork();
        let config = draw_config(&mut rng);
        let faults = Faults {
            units_rot: rng.one_in(3),
            slots_rot: rng.one_in(3),
            areas_rot: false,
            dies_die: rng.one_in(6),
            hot_units: if rng.one_in(3) { 1 + rng.below(COUNT_MAX) } else { 0 },
        };
        // A death that meets a record with one copy left is told, and nothing is promised.
        let faults = Faults { areas_rot: !faults.dies_die && rng.one_in(2), ..faults };
        let media = SlotArray::new(&config, rng.next());
        let mut ftl = PageFtl::with_media(&config, seed, media).expect("the configuration was validated");
        plant_page(&mut ftl, bug);
        PageWorld {
            seed,
            reference: Reference::new(config.ftl.logical_units),
            config,
            faults,
            ftl: Some(ftl),
            script,
            counts: Counts::new(),
            now: Nanos::ZERO,
            bug,
            fuel: 0,
            flushes: Vec::new(),
            after_erase: None,
            is_first_death: false,
            is_more_dead: false,
            is_over: false,
        }
    }

    fn ftl(&mut self) -> &mut PageFtl<SlotArray> {
        self.ftl.as_mut().expect("it is there between cuts")
    }

    fn count(&mut self, name: &'static str, by: u64) {
        *self.counts.entry(name).or_default() += by;
    }

    fn operate(&mut self, rng: &mut Rng) -> Check {
        let units = self.config.ftl.logical_units;
        // Half of the work goes to a quarter of the units.
        let span = match self.faults.hot_units {
            hot if hot > 0 && !rng.one_in(4) => hot.min(units),
            _ if rng.one_in(2) => units,
            _ => units.div_ceil(4),
        };
        let lpn = rng.below(span);
        match rng.below(21) {
            0..12 => {
                let count = if rng.one_in(6) { 1 + rng.below(COUNT_MAX.min(units - lpn)) } else { 1 };
                self.write(lpn, count)
            }
            // All that is hot: superblocks that hold nothing else are empty, and no write came after.
            12..15 if self.faults.hot_units > 0 && rng.one_in(2) => self.trim(0, self.faults.hot_units.min(units)),
            12..15 => self.trim(lpn, 1 + rng.below(COUNT_MAX.min(units - lpn))),
            15 => self.flush(rng.one_in(2)),
            16 => self.read(lpn, 1 + rng.below(COUNT_MAX.min(units - lpn))),
            17 => self.check_newest(),
            18 => self.ftl().audit(),
            19 => self.fault(rng),
            _ => {
                self.script.tell(|| "one event passes".into());
                self.step();
                Ok(())
            }
        }
    }

    fn write(&mut self, lpn: u64, count: u64) -> Check {
        let sequence = self.reference.next_sequence(1);
        // Says whose it is and which version.
        let payload = lpn << 40 | sequence;
        let now = self.now;
        self.script.tell(|| format!("at {now}, write {lpn}+{count} with version {payload:#x}"));
        let outcome = match self.ftl().write(now, lpn, count as u32, payload) {
            Ok(outcome) => outcome,
            Err(refused) => return self.refused(refused),
        };
        (lpn..lpn + count).for_each(|lpn| self.reference.put(lpn, sequence, Content::Payload(payload)));
        self.count("writes", 1);
        match self.wait(outcome)? {
            Some(Done { status: Status::Ok, .. }) | None => Ok(()),
            Some(done) => {
                self.refused(Refused::ReadOnly)?;
                if done.status != Status::ReadOnly {
                    return Err(format!("a write ended with {done:?}"));
                }
                for lpn in lpn..lpn + count {
                    let seen = self.seen(lpn);
                    self.reference.settle_last(lpn, seen);
                }
                Ok(())
            }
        }
    }

    /// A request may be refused for one reason alone.
    fn refused(&mut self, refused: Refused) -> Check {
        let is_read_only = self.ftl().stats().is_read_only;
        if refused == Refused::ReadOnly && is_read_only {
            self.count("refused", 1);
            return Ok(());
        }
        Err(format!("refused ({refused}), though the device {}", if is_read_only { "is read-only" } else { "works" }))
    }

    fn trim(&mut self, lpn: u64, count: u64) -> Check {
        let now = self.now;
        self.script.tell(|| format!("at {now}, trim {lpn}+{count}"));
        match self.ftl().trim(now, lpn, count as u32) {
            Ok(_) => {
                let sequence = self.reference.next_sequence(1);
                (lpn..lpn + count).for_each(|lpn| self.reference.put(lpn, sequence, Content::Nothing));
                self.count("trims", 1);
                Ok(())
            }
            // Too many trims are not on record yet.
            Err(Refused::Busy) => Ok(()),
            Err(refused) => self.refused(refused),
        }
    }

    fn flush(&mut self, waits: bool) -> Check {
        let (now, covers) = (self.now, self.reference.sequence());
        self.script.tell(|| format!("at {now}, flush{}", if waits { " and wait" } else { "" }));
        self.count("flushes", 1);
        match self.ftl().flush(now).map_err(|error| error.to_string())? {
            Outcome::Done(done) => self.flushed(done, covers),
            Outcome::Waiting(id) => {
                self.flushes.push((id, covers));
                if waits {
                    self.wait(Outcome::Waiting(id))?;
                }
                Ok(())
            }
        }
    }

    fn flushed(&mut self, done: Done, covers: u64) -> Check {
        match done.status {
            Status::Ok => self.reference.persist(covers),
            Status::ReadOnly if self.ftl().stats().is_read_only => self.count("flushes refused", 1),
            status => return Err(format!("a flush ended with {status:?}")),
        }
        Ok(())
    }

    fn read(&mut self, lpn: u64, count: u64) -> Check {
        let now = self.now;
        self.script.tell(|| format!("at {now}, read {lpn}+{count}"));
        self.count("reads", 1);
        let outcome = self.ftl().read(now, lpn, count as u32).map_err(|error| error.to_string())?;
        let Outcome::Done(done) = outcome else {
            return self.wait(outcome).map(|_| ());
        };
        let lost = (lpn..lpn + count).filter(|&lpn| self.seen(lpn) == Content::Lost).count();
        let has_read_errors = self.has_read_errors();
        match done.status {
            Status::Ok if lost > 0 => {
                Err(format!("a read of {lpn}+{count} says nothing of {lost} units that are lost"))
            }
            Status::Uncorrectable if lost == 0 && !has_read_errors => {
                Err(format!("a read of {lpn}+{count} is uncorrectable, and every unit is there"))
            }
            _ => Ok(()),
        }
    }

    fn note_death(&mut self, has_copies: bool) {
        let is_first = has_copies && !self.is_first_death && !self.is_more_dead;
        (self.is_first_death, self.is_more_dead) = (is_first, !is_first);
    }

    fn seen(&self, lpn: u64) -> Content {
        match self.ftl.as_ref().expect("it is there between cuts").payload(lpn) {
            Ok(None) => Content::Nothing,
            Ok(Some(payload)) => Content::Payload(payload),
            Err(_) => Content::Lost,
        }
    }

    /// Whether reads fail that retries do not help: a copy that is made then is lost.
    fn has_read_errors(&self) -> bool {
        self.config.errors.rber.iter().any(|point| point.errors_e12 > 0)
    }

    fn check_newest(&mut self) -> Check {
        self.count("units checked", self.config.ftl.logical_units);
        let media = self.ftl.as_ref().expect("it is there between cuts").media();
        let damaged = |payload| self.has_read_errors() || media.is_damaged(payload);
        (0..self.config.ftl.logical_units).try_for_each(|lpn| self.reference.check_newest(lpn, self.seen(lpn), damaged))
    }

    /// Something rots, or dies.
    fn fault(&mut self, rng: &mut Rng) -> Check {
        let (draw, faults, now) = (rng.next(), self.faults, self.now);
        let shape = self.config.shape;
        let which = rng.below(40);
        if faults.areas_rot && rng.one_in(3) {
            if self.ftl().media_mut().rot_area_slot(draw) {
                self.script.tell(|| format!("at {now}, a slot of a checkpoint area rots"));
                self.count("rotten area slots", 1);
            }
            return Ok(());
        }
        match which {
            0..16 if faults.units_rot => {
                if let Some(unit) = self.ftl().media_mut().rot_unit(draw) {
                    self.script.tell(|| format!("at {now}, {unit:?} rots"));
                    self.count("rotten units", 1);
                }
            }
            16..32 if faults.slots_rot => {
                if let Some(units) = self.ftl().media_mut().rot_slot(draw) {
                    self.script.tell(|| format!("at {now}, a slot with {units:?} rots"));
                    self.count("rotten slots", 1);
                }
            }
            39 if faults.dies_die => {
                let (die, plane) = draw_death(&shape, rng);
                let has_copies = self.ftl().media().has_copies();
                self.note_death(has_copies);
                self.script.tell(|| format!("at {now}, die {die} dies, plane {plane:?}"));
                self.ftl().lose_die(now, die, plane);
                self.count("dead dies and planes", 1);
            }
            _ => {}
        }
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
        if let Some((events, age_max)) = self.after_erase
            && self.fuel <= ERASE_SOUGHT_MAX
            && self.ftl().age_of_erased().is_some_and(|age| age <= age_max)
        {
            self.fuel = self.fuel.min(events);
        }
        Some(completed)
    }

    /// Waits for a request; none when power is lost before.
    fn wait(&mut self, outcome: Outcome) -> Result<Option<Done>, String> {
        let id = match outcome {
            Outcome::Done(done) => return Ok(Some(done)),
            Outcome::Waiting(id) => id,
        };
        while self.fuel > 0 {
            if self.ftl().next_event().is_none() {
                return Err(format!("{id:?} waits for ever: {:?}", self.ftl().stats()));
            }
            let Some(completed) = self.step() else { return Ok(None) };
            self.note_flushes(&completed)?;
            if let Some(found) = completed.iter().find(|completed| completed.id == id) {
                return Ok(Some(found.done));
            }
        }
        Ok(None)
    }

    fn note_flushes(&mut self, completed: &[Completed]) -> Check {
        for one in completed {
            if let Some(index) = self.flushes.iter().position(|&(id, _)| id == one.id) {
                let (_, covers) = self.flushes.remove(index);
                self.flushed(one.done, covers)?;
            }
        }
        Ok(())
    }

    fn cut(&mut self, rng: &mut Rng) -> Check {
        let now = self.now;
        self.script.tell(|| format!("at {now}, power is lost"));
        let ftl = self.ftl.take().expect("it is there between cuts");
        let stats = ftl.stats();
        for (name, count) in [
            ("cuts", 1),
            ("checkpoints", stats.checkpoints),
            ("units moved", stats.units_moved),
            ("cuts in collections", u64::from(stats.victims > stats.superblocks_erased)),
            ("cuts in checkpoints", u64::from(ftl.is_checkpointing())),
            ("failed programs", stats.program_failures),
            ("failed erases", stats.erase_failures),
        ] {
            self.count(name, count);
        }
        let vouched = ftl.vouches();
        let mut media = ftl.lose_power();
        self.flushes.clear();
        if self.faults.areas_rot {
            let hit = (0..rng.below(3)).filter(|_| media.rot_area_slot(rng.next())).count() as u64;
            self.script.tell(|| format!("{hit} slots of checkpoint areas rot while the power is off"));
            self.count("rotten area slots", hit);
        }
        let dies_now = self.faults.dies_die && !self.is_first_death && !self.is_more_dead && rng.one_in(6);
        if dies_now {
            let (die, plane) = draw_death(&self.config.shape, rng);
            self.script.tell(|| format!("die {die} dies while the power is off, plane {plane:?}"));
            self.note_death(media.has_copies());
            media.lose_die(die, plane);
            self.count("dead dies and planes", 1);
        }
        let vouched = vouched && !dies_now;
        if rng.one_in(4) {
            self.recover_twice(media.clone(), rng.clone())?;
        }
        let operations = media.operations();
        let (mut ftl, report) = recover_page(&self.config, rng.next(), media, self.bug)?;
        if ftl.media().operations() != operations {
            return Err("a recovery wrote to the media".into());
        }
        self.check_report(&report, vouched)?;
        ftl.audit()?;
        ftl.advance(now);
        self.ftl = Some(ftl);
        self.is_over = report.unvouched;
        self.check_recovered()
    }

    /// A recovery that is cut short has changed nothing, so that the next one finds the same.
    fn recover_twice(&mut self, media: SlotArray, mut rng: Rng) -> Check {
        let seed = rng.next();
        self.count("recoveries cut short", 1);
        let (first, first_report) = recover_page(&self.config, seed, media, self.bug)?;
        let payloads = |ftl: &PageFtl<SlotArray>| -> Vec<_> {
            (0..self.config.ftl.logical_units).map(|lpn| ftl.payload(lpn)).collect()
        };
        let found = payloads(&first);
        let (second, report) = recover_page(&self.config, seed, first.lose_power(), self.bug)?;
        if report != first_report || payloads(&second) != found {
            return Err(format!("two recoveries of the same media differ: {first_report:?}, {report:?}"));
        }
        Ok(())
    }

    fn check_report(&mut self, report: &PageRecovery, vouched: bool) -> Check {
        for (name, count) in [
            ("torn slots", report.torn_slots),
            ("copies dropped", u64::from(report.copies_dropped)),
            ("bad blocks found", report.blocks_bad),
            ("deaths on no checkpoint", u64::from(report.unvouched)),
        ] {
            self.count(name, count);
        }
        if report.unvouched && vouched {
            return Err(format!("a checkpoint knew of every dead stripe, recovery does not: {report:?}"));
        }
        let most = scanned_max(&self.config);
        if u64::from(report.superblocks_scanned) > most && !report.unvouched {
            return Err(format!("{report:?}: more than {most} superblocks were read"));
        }
        Ok(())
    }

    fn check_recovered(&mut self) -> Check {
        if self.is_over && self.is_more_dead {
            // Both copies of what a checkpoint area holds may be gone.
            return Ok(());
        }
        let units = self.config.ftl.logical_units;
        let mut lost = 0;
        for lpn in 0..units {
            let seen = self.seen(lpn);
            let media = self.ftl.as_ref().expect("it is there between cuts").media();
            let damaged = |payload| media.is_damaged(payload);
            // What lies on a die whose death is on no checkpoint may read as what it was before.
            if !self.is_over || !self.reference.may_any_be_lost(lpn, damaged) {
                lost += u64::from(seen == Content::Lost);
                self.reference.check_recovered(lpn, seen, 0, true, damaged)?;
            }
        }
        self.count("units checked", units);
        self.count("units lost", lost);
        if self.is_over {
            return Ok(());
        }
        self.ftl().media_mut().fade();
        self.check_newest()
    }
}

/// A die, or one plane of it.
fn draw_death(shape: &Shape, rng: &mut Rng) -> (u32, Option<u32>) {
    let die = rng.below(u64::from(shape.dies())) as u32;
    (die, rng.one_in(2).then(|| rng.below(u64::from(shape.planes_per_die)) as u32))
}

/// Superblocks that recovery may read: what the host opens before it waits for a checkpoint, what was open, and
/// what collection opens for that.
fn scanned_max(config: &PageFtlConfig) -> u64 {
    u64::from(config.shape.blocks_per_plane.min(2 * config.ftl.checkpoint_superblocks + 3 + 4))
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
        let timing = draw_timing(rng);
        let errors = draw_errors(rng, timing.page_types());
        let order = ["PCWD", "CWDP", "DPCW", "WDPC"][rng.below(4) as usize].parse().expect("an order");
        let mut config = PageFtlConfig { shape, order, timing, errors, ftl: draw_ftl(rng) };
        let most = config.logical_units_max();
        if most >= 4 {
            config.ftl.logical_units = (most * (50 + rng.below(51)) / 100).max(1);
            if config.validate().is_ok() {
                return config;
            }
        }
    }
}

fn draw_ftl(rng: &mut Rng) -> PageFtlParams {
    let policies = [VictimPolicy::Greedy, VictimPolicy::Fifo, VictimPolicy::CostBenefit, VictimPolicy::Choices(2)];
    let free_min = 1 + rng.below(2) as u32;
    let free_foreground = free_min + rng.below(2) as u32;
    PageFtlParams {
        logical_units: 1,
        spare_blocks_per_plane: rng.below(3) as u32,
        streams: [Streams::Shared, Streams::Separate, Streams::HotCold][rng.below(3) as usize],
        slots_per_die_max: 1 + rng.below(4) as u32,
        collection: Collection {
            policy: policies[rng.below(4) as usize],
            free_min,
            free_foreground,
            free_background: free_foreground + rng.below(2) as u32,
            preemptible: rng.one_in(2),
            moves_max: 1 + rng.below(8) as u32,
        },
        wear: WearLevelling { dynamic: rng.one_in(2), spread_max: if rng.one_in(4) { 4 } else { 0 } },
        checkpoint_superblocks: 1 + rng.below(4) as u32,
        map_cache_pages: rng.below(2) as u32,
    }
}

/// Times of a TLC part (`docs/flash.md`), and everything that an array may have beside.
fn draw_timing(rng: &mut Rng) -> ArrayTiming {
    let reads_first = rng.one_in(2);
    ArrayTiming {
        read_ns: vec![40_000, 50_000, 60_000],
        program_ns: vec![200_000, 400_000, 600_000],
        erase_ns: 2_000_000,
        channel_bytes_per_second: 1_200_000_000,
        multi_plane: rng.one_in(2),
        cache_read: rng.one_in(2),
        cache_program: rng.one_in(2),
        reads_first,
        reads_first_max: 100,
        suspend: Suspend {
            program: reads_first,
            erase: reads_first,
            suspend_ns: 5_000,
            resume_ns: 5_000,
            times_max: 10,
        },
    }
}

/// One seed of four has failing programs and erases, one of six reads that retries do not always help.
fn draw_errors(rng: &mut Rng, page_types: u32) -> ErrorParams {
    let mut errors = ErrorParams::none(page_types);
    if rng.one_in(4) {
        errors.program_fail_ppm = rng.below(20_000) as u32;
        errors.erase_fail_ppm = rng.below(20_000) as u32;
    }
    if rng.one_in(6) {
        // About eight errors in a codeword of 1,024 bytes, twelve of which are corrected.
        errors.rber = vec![RberPoint { erases: 0, errors_e12: 1_000_000_000 }];
        errors.correctable_bits = 12;
        errors.retries = vec![RetryStep { ns: 80_000, rber_permille: 900 }];
    }
    errors
}
