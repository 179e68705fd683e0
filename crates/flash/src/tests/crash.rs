//! Random work, random crashes, and a model that knows what each block may read as afterwards.
//!
//! The model keeps, for each block, the versions that a crash may leave: the newest one that is
//! synced, and everything since. A flush, or a sync that ends, drops what is older than the newest
//! synced version; what recovery shows drops what is newer than itself, since what was lost must not
//! come back later. A kill without loss of power leaves nothing older than what is durable.

use std::collections::BTreeMap;

use super::bench::{Bench, GEOMETRY, PARAMS, TIMING, extent};
use super::nand_array::NandArray;
use super::rng::Rng;
use crate::codec::StreamKind;
use crate::ftl::SuperblockState;
use crate::planted::Bug;
use crate::*;

/// Seeds of the plain run; each is 2 to 5 crashes.
const SEEDS: u64 = 400;
/// Seeds of the long run, which is not part of the suite.
const SEEDS_LONG: u64 = 40_000;
/// Seeds within which a planted bug must be found.
const SEEDS_PLANTED: u64 = 400;

/// What a block reads as: the sequence of an extent, or nothing (`data` false) since a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    sequence: u64,
    data: bool,
}

const NEVER: Version = Version { sequence: 0, data: false };

/// An append that a device would keep in its write buffer until it is durable.
#[derive(Debug, Clone, Copy)]
struct Write {
    sequence: u64,
    slba: u64,
    blocks: u16,
    /// `None`: a trim.
    stored_bytes: Option<u32>,
    append: AppendId,
}

struct World {
    bench: Bench,
    rng: Rng,
    params: FtlParams,
    geometry: Geometry,
    blocks: u64,
    /// Blocks that this run writes to, from 0.
    used: u64,
    versions: Vec<Vec<Version>>,
    sequence: u64,
    /// Writes of this session.
    writes: Vec<Write>,
    /// Reads under way, and what they must bring.
    reads: BTreeMap<ReadId, Extent>,
    /// Size of what is written: 0 tiny, 1 anything, 2 incompressible.
    sizes: u64,
    /// Syncs under way, and the append that was durable when each was asked for.
    syncs: BTreeMap<SyncId, AppendId>,
    bug: Option<Bug>,
    marks: Marks,
}

/// How often the rare paths were met, so that a run that never meets one fails.
#[derive(Debug, Default, Clone, Copy)]
struct Marks {
    crashes: u64,
    torn: u64,
    rotten: u64,
    gaps: u64,
    holes: u64,
    headless: u64,
    headers_lost: u64,
    suspects: u64,
    cut_in_collection: u64,
    erases: u64,
    relocated: u64,
    replays: u64,
    full: u64,
}

impl Marks {
    fn add(&mut self, other: &Marks) {
        self.crashes += other.crashes;
        self.torn += other.torn;
        self.rotten += other.rotten;
        self.gaps += other.gaps;
        self.holes += other.holes;
        self.headless += other.headless;
        self.headers_lost += other.headers_lost;
        self.suspects += other.suspects;
        self.cut_in_collection += other.cut_in_collection;
        self.erases += other.erases;
        self.relocated += other.relocated;
        self.replays += other.replays;
        self.full += other.full;
    }
}

/// A failed check, told apart from a bug of the test by its type.
type Check = Result<(), String>;

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> World {
        let mut rng = Rng::new(seed);
        let geometry = Geometry {
            channels: rng.within(1..=2) as u32,
            dies_per_channel: rng.within(1..=2) as u32,
            planes_per_die: rng.within(1..=2) as u32,
            blocks_per_plane: rng.within(16..=18) as u32,
            pages_per_block: 0,
            page_bytes: 4096 << rng.below(2),
        };
        // Superblocks of 64 KiB and more.
        let pages = (64 << rng.below(2)) / (geometry.page_bytes / 1024);
        let geometry = Geometry { pages_per_block: (pages / geometry.planes()).max(4), ..geometry };
        let min = rng.within(1..=3) as u32;
        let params = FtlParams {
            over_provisioning_permille: rng.within(10..=200) as u32,
            gc_free_superblocks_low: min + rng.below(3) as u32,
            gc_free_superblocks_min: min,
            with_data: true,
            thin: true,
        };
        let most = Ftl::logical_blocks_max(&geometry, &params).unwrap();
        // Thin: full of incompressible data long before every block is written.
        let blocks = most.max(16) * rng.within(2..=5) / 2;
        let mut ftl = Ftl::new(geometry, TIMING, params, blocks).unwrap();
        ftl.bug = bug;
        let blank = if rng.one_in(2) { 0xff } else { 0 };
        let mut bench = Bench::over(ftl, NandArray::new(geometry, blank));
        bench.shuffle = rng.one_in(2).then(|| Rng::new(seed + 1));
        let used = blocks * rng.within(20..=100) / 100;
        World {
            bench,
            params,
            geometry,
            blocks,
            used: used.max(16),
            versions: vec![vec![NEVER]; blocks as usize],
            sequence: 0,
            writes: Vec::new(),
            reads: BTreeMap::new(),
            sizes: 1,
            syncs: BTreeMap::new(),
            bug,
            marks: Marks::default(),
            rng,
        }
    }

    fn run(&mut self) -> Check {
        self.fill()?;
        let crashes = self.rng.within(2..=5);
        for _ in 0..crashes {
            // Short stretches cut recovery's aftermath again before it has settled.
            self.sizes = self.rng.below(3);
            let operations = if self.rng.one_in(3) { self.rng.below(8) } else { self.rng.within(20..=120) };
            for _ in 0..operations {
                self.operate()?;
            }
            self.crash()?;
        }
        Ok(())
    }

    /// Writes the used blocks one after the other, until the device is as full as drawn.
    fn fill(&mut self) -> Check {
        let full = self.bench.ftl.usable_bytes() * self.rng.within(50..=99) / 100;
        let mut slba = 0;
        while slba < self.used && self.bench.ftl.stats().live_bytes < full {
            let blocks = self.rng.within(1..=8).min(self.used - slba);
            let most = self.bench.ftl.stored_bytes_max().min(blocks as u32 * 4096);
            let stored_bytes = self.rng.within(u64::from(most) / 2..=u64::from(most)) as u32;
            if !self.bench.ftl.can_accept(u64::from(stored_bytes)) {
                break;
            }
            let sequence = self.next_sequence();
            let stored_bytes = Some(stored_bytes);
            self.put(Write { sequence, slba, blocks: blocks as u16, stored_bytes, append: AppendId(0) })?;
            slba += blocks;
        }
        Ok(())
    }

    /// Reads, overwrites or trims what is being collected, or is about to be.
    fn meddle(&mut self) -> Check {
        let ftl = &self.bench.ftl;
        let live = |index: usize| ftl.directory.residents(index as u32).live_bytes;
        let key = |index: &usize| (ftl.superblocks[*index].state != SuperblockState::Victim, live(*index));
        let target = (0..ftl.superblocks.len()).filter(|&index| live(index) > 0).min_by_key(key);
        let Some(target) = target else { return Ok(()) };
        let slot = *ftl.directory.slot(ftl.directory.residents(target as u32).first);
        let (slba, blocks) = (u64::from(slot.slba), slot.blocks.min(1_000) as u16);
        match self.rng.below(4) {
            0 => self.start_read(slba),
            1 => {
                let sequence = self.next_sequence();
                self.put(Write { sequence, slba, blocks, stored_bytes: None, append: AppendId(0) })?;
            }
            _ if self.bench.ftl.can_accept_over(Lba(slba), u32::from(blocks), 50) => {
                let sequence = self.next_sequence();
                self.put(Write { sequence, slba, blocks, stored_bytes: Some(50), append: AppendId(0) })?;
            }
            _ => {}
        }
        Ok(())
    }

    fn operate(&mut self) -> Check {
        match self.rng.below(40) {
            0..20 => self.write()?,
            20..23 => self.trim()?,
            23 => self.flush(),
            24 => {
                let id = self.bench.ftl.sync(self.bench.now);
                self.syncs.insert(id, self.bench.ftl.durable_through());
            }
            25 => self.bench.ftl.close_page(self.bench.now),
            26 => self.read_any()?,
            27..30 => {
                let block = self.rng.below(self.used);
                self.start_read(block);
            }
            30..34 => self.meddle()?,
            _ => {
                for _ in 0..self.rng.below(6) {
                    self.bench.step();
                }
            }
        }
        self.note_syncs();
        self.note_reads()?;
        if self.rng.one_in(16) { self.bench.ftl.audit() } else { Ok(()) }
    }

    fn draw_range(&mut self, blocks_max: u64) -> (u64, u16) {
        let blocks = self.rng.within(1..=blocks_max.min(self.used));
        // Half of the writes go to a tenth of the blocks.
        let span = if self.rng.one_in(2) { (self.used / 10).max(blocks) } else { self.used };
        (self.rng.below(span - blocks + 1), blocks as u16)
    }

    fn write(&mut self) -> Check {
        let (slba, blocks) = self.draw_range([2, 8, 16][self.sizes as usize]);
        let most = u64::from(self.bench.ftl.stored_bytes_max().min(u32::from(blocks) * 4096 + 100));
        let stored_bytes = match (self.sizes, self.rng.below(8)) {
            (0, _) => self.rng.below(100),
            (_, 0) => 0,
            (2, _) | (_, 1) => most,
            _ => self.rng.below(most + 1),
        } as u32;
        if !self.bench.ftl.can_accept_over(Lba(slba), u32::from(blocks), u64::from(stored_bytes)) {
            self.marks.full += 1;
            return Ok(());
        }
        let sequence = self.next_sequence();
        let write = Write { sequence, slba, blocks, stored_bytes: Some(stored_bytes), append: AppendId(0) };
        self.put(write)
    }

    fn trim(&mut self) -> Check {
        let (slba, blocks) = self.draw_range(40);
        let sequence = self.next_sequence();
        self.put(Write { sequence, slba, blocks, stored_bytes: None, append: AppendId(0) })
    }

    fn next_sequence(&mut self) -> u64 {
        self.sequence += self.rng.within(1..=3);
        self.sequence
    }

    /// Appends, without noting a version: for replays, too.
    fn put(&mut self, mut write: Write) -> Check {
        let mut steps = 0;
        let append = loop {
            let now = self.bench.now;
            let done = match write.stored_bytes {
                Some(stored_bytes) => {
                    let (extent, payload) = extent(write.slba, write.blocks, stored_bytes, write.sequence);
                    self.bench.ftl.append(now, &extent, Some(&payload))
                }
                None => self.bench.ftl.trim(now, Lba(write.slba), u32::from(write.blocks), write.sequence),
            };
            match done {
                Ok(append) => break append,
                Err(Backpressure::Busy) => {}
                Err(other) => return Err(format!("{write:?} was refused: {other}")),
            }
            steps += 1;
            if !self.bench.step() || steps > 1_000_000 {
                return Err(format!("{write:?} waits for ever: {:?}", self.bench.ftl.stats()));
            }
        };
        write.append = append;
        self.writes.push(write);
        let version = Version { sequence: write.sequence, data: write.stored_bytes.is_some() };
        for block in write.slba..write.slba + u64::from(write.blocks) {
            let versions = &mut self.versions[block as usize];
            if versions.iter().all(|known| known.sequence < version.sequence) {
                versions.push(version);
            }
        }
        Ok(())
    }

    fn flush(&mut self) {
        self.bench.flush();
        let last = self.bench.ftl.last_append();
        self.synced(last);
    }

    fn note_syncs(&mut self) {
        for (id, result) in std::mem::take(&mut self.bench.syncs) {
            result.unwrap();
            if let Some(append) = self.syncs.remove(&id) {
                self.synced(append);
            }
        }
    }

    /// Everything up to this append survives a loss of power from now on.
    fn synced(&mut self, append: AppendId) {
        let floor = self.sequence_of(append);
        for versions in &mut self.versions {
            drop_older(versions, floor);
        }
    }

    /// The highest sequence that is appended once this append is.
    fn sequence_of(&self, append: AppendId) -> u64 {
        let appended = self.writes.iter().filter(|write| write.append <= append);
        appended.map(|write| write.sequence).max().unwrap_or(0)
    }

    fn read_any(&mut self) -> Check {
        let block = self.rng.below(self.used);
        let newest = *self.versions[block as usize].last().unwrap();
        let seen = self.observe(block)?;
        self.note_syncs();
        let is_right = seen == newest || (!seen.data && !newest.data);
        if is_right { Ok(()) } else { Err(format!("block {block} reads as {seen:?}, newest is {newest:?}")) }
    }

    /// Starts a read that ends whenever it does.
    fn start_read(&mut self, block: u64) {
        let mut pieces = Vec::new();
        self.bench.ftl.pieces(Lba(block), 1, &mut pieces);
        if let PieceKind::Mapped { extent, location, .. } = pieces[0].kind {
            let id = self.bench.ftl.read(self.bench.now, location, 0..extent.stored_bytes).unwrap();
            self.reads.insert(id, extent);
        }
    }

    fn note_reads(&mut self) -> Check {
        for (id, result) in std::mem::take(&mut self.bench.reads) {
            let found = self.reads.remove(&id).expect("every read was started here");
            let (_, payload) = extent(found.slba.0, found.blocks, found.stored_bytes, found.sequence);
            if result.as_deref() != Ok(&payload[..]) {
                return Err(format!("a read of {found:?} that was under way brought other bytes"));
            }
        }
        Ok(())
    }

    /// Reads a block, checks every byte, and says which version it is.
    fn observe(&mut self, block: u64) -> Result<Version, String> {
        let Some((found, first, bytes)) = self.bench.read_block(block) else { return Ok(NEVER) };
        let (expected, payload) = extent(found.slba.0, found.blocks, found.stored_bytes, found.sequence);
        if found != expected || found.slba.0 + u64::from(first) != block {
            return Err(format!("block {block} reads from {found:?} at {first}, written was {expected:?}"));
        }
        match bytes {
            Ok(bytes) if bytes[..] == payload[..] => Ok(Version { sequence: found.sequence, data: true }),
            Ok(_) => Err(format!("block {block}: the bytes of {found:?} are wrong")),
            Err(error) => Err(format!("block {block}: {error}")),
        }
    }

    fn crash(&mut self) -> Check {
        self.marks.crashes += 1;
        let stats = self.bench.ftl.stats();
        self.marks.erases += stats.superblocks_erased;
        self.marks.relocated += stats.relocated_extents;
        self.marks.cut_in_collection += u64::from(stats.victims > stats.superblocks_erased);
        self.bench.issue();
        let durable = self.bench.ftl.durable_through();
        let loses_power = self.rng.one_in(2);
        if loses_power {
            self.bench.array.cut_power(&mut self.rng);
        } else {
            self.bench.array.kill(&mut self.rng);
        }
        self.recover()?;
        let floor = if loses_power { 0 } else { self.sequence_of(durable) };
        self.check_all(floor)?;
        let writes = std::mem::take(&mut self.writes);
        if !loses_power && self.rng.one_in(2) {
            // As a device does whose write buffer outlived the process.
            self.marks.replays += 1;
            for write in writes.into_iter().filter(|write| write.append > durable) {
                self.put(write)?;
            }
            self.check_newest()?;
        }
        Ok(())
    }

    fn recover(&mut self) -> Check {
        // A recovery that is cut short changes nothing, so that only the last one counts; its report
        // must be the same.
        let reports: Vec<RecoveryReport> = (0..2).map(|_| self.recover_once()).collect::<Result<_, _>>()?;
        if reports[0] != reports[1] {
            return Err(format!("two recoveries differ: {reports:?}"));
        }
        let report = &reports[0];
        self.marks.torn += report.extents_torn;
        self.marks.rotten += report.extents_damaged;
        self.marks.gaps += report.gaps;
        self.marks.holes += report.holes;
        self.marks.headers_lost += report.headers_lost;
        self.marks.headless += u64::from(report.superblocks_headless);
        self.marks.suspects += u64::from(report.superblocks_suspect);
        if report.sequence_max > self.sequence {
            return Err(format!("sequence {} was never given, {} was the last", report.sequence_max, self.sequence));
        }
        self.bench.ftl.audit()
    }

    fn recover_once(&mut self) -> Result<RecoveryReport, String> {
        let array = &self.bench.array;
        let mut read = |address, out: &mut [u8]| array.read_into(address, out);
        let recovered = Ftl::recover_planted(self.geometry, TIMING, self.params, self.blocks, &mut read, self.bug);
        let (ftl, report) = recovered.map_err(|error| error.to_string())?;
        self.bench.ftl = ftl;
        self.bench.reads.clear();
        self.bench.syncs.clear();
        self.syncs.clear();
        self.reads.clear();
        Ok(report)
    }

    fn check_all(&mut self, floor: u64) -> Check {
        for block in 0..self.blocks {
            let seen = self.observe(block)?;
            let versions = &mut self.versions[block as usize];
            let mut allowed = versions.clone();
            drop_older(&mut allowed, floor);
            let is_it = |version: &&Version| if seen.data { **version == seen } else { !version.data };
            let Some(newest) = allowed.iter().rfind(is_it).copied() else {
                return Err(format!("block {block} reads as {seen:?}, allowed are {allowed:?}"));
            };
            // What was lost must not come back.
            versions.retain(|version| version.sequence <= newest.sequence);
        }
        Ok(())
    }

    fn check_newest(&mut self) -> Check {
        for block in 0..self.blocks {
            let newest = *self.versions[block as usize].last().unwrap();
            let seen = self.observe(block)?;
            if seen != newest && (seen.data || newest.data) {
                return Err(format!("after the replay block {block} reads as {seen:?}, newest is {newest:?}"));
            }
        }
        self.note_syncs();
        Ok(())
    }
}

/// Drops what is older than the newest version up to `floor`.
fn drop_older(versions: &mut Vec<Version>, floor: u64) {
    if let Some(index) = versions.iter().rposition(|version| version.sequence <= floor) {
        versions.drain(..index);
    }
}

/// Runs one seed; a panic of the FTL's own assertions counts as found, too.
fn run(seed: u64, bug: Option<Bug>) -> Result<Marks, String> {
    let mut world = World::new(seed, bug);
    let outcome = if bug.is_some() {
        let run = std::panic::AssertUnwindSafe(|| world.run());
        std::panic::catch_unwind(run).unwrap_or_else(|_| Err("a check of the FTL or the array failed".into()))
    } else {
        world.run()
    };
    outcome.map(|()| world.marks).map_err(|error| format!("seed {seed}: {error}"))
}

fn run_all(seeds: std::ops::RangeInclusive<u64>) -> Marks {
    let mut total = Marks::default();
    for seed in seeds {
        total.add(&run(seed, None).unwrap());
    }
    println!("{total:?}");
    total
}

#[test]
fn whatever_a_crash_leaves_every_block_reads_as_a_version_that_it_may() {
    let total = run_all(0..=SEEDS - 1);
    // The rare paths were met, often.
    for (name, met, least) in [
        ("torn", total.torn, SEEDS),
        ("gaps", total.gaps, SEEDS),
        ("headers_lost", total.headers_lost, SEEDS / 4),
        ("holes", total.holes, SEEDS / 10),
        ("suspects", total.suspects, SEEDS),
        ("cut_in_collection", total.cut_in_collection, SEEDS / 4),
        ("erases", total.erases, SEEDS),
        ("relocated", total.relocated, SEEDS),
        ("replays", total.replays, SEEDS / 4),
        ("full", total.full, SEEDS / 10),
    ] {
        assert!(met >= least, "{name} was met {met} times");
    }
}

/// Any seeds: `OSIER_SEED_FIRST=7 OSIER_SEED_LAST=7 cargo test -p osier-flash -- --ignored crash_seeds`
/// replays one that failed.
#[test]
#[ignore = "takes the seeds from the environment, or minutes"]
fn crash_seeds() {
    let bound = |name, or: u64| std::env::var(name).map_or(or, |seed| seed.parse().unwrap());
    run_all(bound("OSIER_SEED_FIRST", 0)..=bound("OSIER_SEED_LAST", SEEDS_LONG - 1));
}

/// A full device is cut off each time that collection has taken the last free superblock and has copied
/// only some of its victim there; it must still take writes in the end.
fn cut_in_every_collection(bug: Option<Bug>) -> Check {
    let params = FtlParams { gc_free_superblocks_low: 1, over_provisioning_permille: 10, ..PARAMS };
    let blocks = Ftl::logical_blocks_max(&GEOMETRY, &params).unwrap();
    let mut rng = Rng::new(1);
    let mut bench = Bench::new(GEOMETRY, params, blocks);
    bench.ftl.bug = bug;
    let mut sequence = 0;
    let mut cuts = 0;
    while cuts < 40 {
        sequence += 1;
        let block = if sequence <= blocks { sequence - 1 } else { rng.below(blocks) };
        let (one, payload) = extent(block, 1, 4096, sequence);
        let mut steps = 0;
        while bench.ftl.append(bench.now, &one, Some(&payload)) == Err(Backpressure::Busy) {
            if is_at_its_worst(&bench.ftl) {
                cuts += 1;
                bench.issue();
                while bench.array.carry_out(None).is_some() {}
                let mut read = |address, out: &mut [u8]| bench.array.read_into(address, out);
                let recovered = Ftl::recover_planted(GEOMETRY, TIMING, params, blocks, &mut read, bug);
                bench.ftl = recovered.map_err(|error| error.to_string())?.0;
                bench.reads.clear();
                break;
            }
            steps += 1;
            if !bench.step() || steps > 100_000 {
                return Err(format!("cut {cuts}: waits for ever: {:?}", bench.ftl.stats()));
            }
        }
    }
    bench.ftl.audit()
}

/// Nothing is free, and pages with copies are programmed while the victim still holds extents.
fn is_at_its_worst(ftl: &Ftl) -> bool {
    let is_half_copied = |(index, superblock): (usize, &crate::ftl::Superblock)| {
        superblock.state == SuperblockState::Victim && ftl.directory.residents(index as u32).live_bytes > 0
    };
    let open = ftl.streams[StreamKind::Relocation.index()].open;
    ftl.superblocks_free == 0
        && open.is_some_and(|open| ftl.superblocks[open.superblock as usize].next_page > 2)
        && ftl.superblocks.iter().enumerate().any(is_half_copied)
}

/// A read is late, and its superblock is wanted meanwhile.
fn read_during_collection(bug: Option<Bug>) -> Check {
    let mut bench = Bench::new(GEOMETRY, FtlParams { gc_free_superblocks_low: 8, ..PARAMS }, 240);
    bench.ftl.bug = bug;
    let (one, payload) = extent(0, 1, 4_000, 1);
    bench.append(&one, &payload).unwrap();
    bench.flush();
    let mut pieces = Vec::new();
    bench.ftl.pieces(Lba(0), 1, &mut pieces);
    let PieceKind::Mapped { location, .. } = pieces[0].kind else { panic!("mapped") };
    let id = bench.ftl.read(bench.now, location, 0..4_000).unwrap();
    // The read's operation is withheld from the array while the device is overwritten many times.
    let read = bench.ftl.next_op().unwrap();
    for sequence in 2..400 {
        let (one, payload) = extent(sequence % 7, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    bench.array.issue(read);
    bench.settle();
    if bench.reads.remove(&id).unwrap().as_deref() != Ok(&payload[..]) {
        return Err("the read brought other bytes".into());
    }
    for sequence in 400..1_000 {
        let (one, payload) = extent(sequence % 7, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    match bench.ftl.read(bench.now, location, 0..4_000) {
        Err(ReadRefused::Moved) => Ok(()),
        other => Err(format!("a stale location was not refused: {other:?}")),
    }
}

#[test]
fn a_device_that_is_cut_off_in_every_collection_still_takes_writes() {
    cut_in_every_collection(None).unwrap();
}

#[test]
fn a_read_under_way_keeps_its_superblock_and_a_stale_location_is_refused() {
    read_during_collection(None).unwrap();
}

/// Which check finds a bug: a directed one, or the first seed of the random run.
fn find(bug: Bug) -> Option<String> {
    let check = |check: fn(Option<Bug>) -> Check| {
        let check = std::panic::AssertUnwindSafe(|| check(Some(bug)));
        std::panic::catch_unwind(check).map_or(true, |check| check.is_err()).then(|| "directed".to_owned())
    };
    match bug {
        Bug::CopyStands => check(cut_in_every_collection),
        Bug::EraseUnderReader => check(read_during_collection),
        _ => (0..SEEDS_PLANTED).find(|&seed| run(seed, Some(bug)).is_err()).map(|seed| format!("seed {seed}")),
    }
}

#[test]
fn every_planted_bug_is_found() {
    // The panics that the bugs cause are expected; their messages would bury those of real failures.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let found: Vec<(Bug, Option<String>)> = Bug::ALL.iter().map(|&bug| (bug, find(bug))).collect();
    std::panic::set_hook(hook);
    println!("{found:?}");
    for (bug, how) in found {
        assert!(how.is_some(), "{bug:?} was not found");
    }
}
