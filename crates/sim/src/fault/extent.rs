//! The FTL of extents under random work, deaths of the process, losses of power, failing reads and dead dies.

use std::collections::{BTreeMap, BTreeSet};

use osier_flash::faulty::{Bench, NandArray, extent};
use osier_flash::{
    AppendId, Backpressure, Extent, Ftl, FtlError, FtlParams, Geometry, Lba, MediaError, MediaOpKind, PieceKind,
    ReadId, RecoveryReport, SyncId, Timing,
};

use super::planted::{Bug, Planted, plant_extent, recover_extent};
use super::reference::{Content, Reference};
use super::script::Script;
use super::{Check, Counts, World};
use crate::Rng;

const TIMING: Timing =
    Timing { read_ns: 40_000, program_ns: 200_000, erase_ns: 2_000_000, channel_bytes_per_second: 800_000_000 };
/// Operations that go on after a die has died.
const OPERATIONS_AFTER_DEATH: u64 = 30;

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

pub(super) struct ExtentWorld {
    seed: u64,
    bench: Bench,
    params: FtlParams,
    geometry: Geometry,
    blocks: u64,
    /// Blocks that this run writes to, from 0.
    used: u64,
    reference: Reference,
    /// Writes of this session.
    writes: Vec<Write>,
    /// Reads under way, and what they must bring.
    reads: BTreeMap<ReadId, (Extent, u64)>,
    /// Size of what is written: 0 tiny, 1 anything, 2 incompressible.
    sizes: u64,
    /// Syncs under way, and the append that was durable when each was asked for.
    syncs: BTreeMap<SyncId, AppendId>,
    /// Whether reads of the media fail now and then, and whether a die dies in the end.
    reads_fail: bool,
    die_dies: bool,
    /// Sequences of the extents that lay on a die when it died.
    gone: BTreeSet<u64>,
    bug: Option<Bug>,
    script: Script,
    counts: Counts,
}

impl World for ExtentWorld {
    fn run(&mut self) -> Check {
        let mut rng = Rng::new(self.seed).fork();
        self.fill(&mut rng)?;
        let crashes = rng.between(2, 5);
        for _ in 0..crashes {
            // Short stretches cut recovery's aftermath again before it has settled.
            self.sizes = rng.below(3);
            let operations = if rng.one_in(3) { rng.below(8) } else { rng.between(20, 120) };
            self.operate_often(operations)?;
            self.crash(&mut rng)?;
        }
        if self.die_dies { self.lose_die(&mut rng) } else { Ok(()) }
    }

    fn script(&mut self) -> &mut Script {
        &mut self.script
    }

    fn counts(&mut self) -> &mut Counts {
        &mut self.counts
    }

    fn config(&self) -> String {
        format!(
            "{:?}; {:?}; {} blocks, {} of them used; reads fail: {}, a die dies: {}",
            self.geometry, self.params, self.blocks, self.used, self.reads_fail, self.die_dies
        )
    }
}

impl ExtentWorld {
    pub(super) fn new(seed: u64, bug: Option<Planted>, script: Script) -> ExtentWorld {
        let bug = Planted::extent(bug);
        let mut rng = Rng::new(seed);
        let (geometry, params) = draw_config(&mut rng);
        let most = Ftl::logical_blocks_max(&geometry, &params).expect("the geometry was drawn to fit");
        // Thin: full of incompressible data long before every block is written.
        let blocks = most.max(16) * rng.between(2, 5) / 2;
        let mut ftl = Ftl::new(geometry, TIMING, params, blocks).expect("the parameters were drawn to fit");
        plant_extent(&mut ftl, bug);
        let blank = if rng.one_in(2) { 0xff } else { 0 };
        let mut bench = Bench::over(ftl, NandArray::new(geometry, blank, rng.next()));
        bench.in_any_order = rng.one_in(2);
        let reads_fail = rng.one_in(8);
        if reads_fail {
            let mut rng = rng.fork();
            bench.fails = Box::new(move |kind| matches!(kind, MediaOpKind::Read { .. }) && rng.one_in(20));
        }
        let used = blocks * rng.between(20, 100) / 100;
        ExtentWorld {
            seed,
            bench,
            params,
            geometry,
            blocks,
            used: used.max(16),
            reference: Reference::new(blocks),
            writes: Vec::new(),
            reads: BTreeMap::new(),
            sizes: 1,
            syncs: BTreeMap::new(),
            reads_fail,
            die_dies: rng.one_in(8),
            gone: BTreeSet::new(),
            bug,
            script,
            counts: Counts::new(),
        }
    }

    fn count(&mut self, name: &'static str, by: u64) {
        *self.counts.entry(name).or_default() += by;
    }

    /// Writes the used blocks one after the other, until the device is as full as drawn.
    fn fill(&mut self, rng: &mut Rng) -> Check {
        let full = self.bench.ftl.usable_bytes() * rng.between(50, 99) / 100;
        let mut slba = 0;
        while slba < self.used && self.bench.ftl.stats().live_bytes < full {
            let blocks = rng.between(1, 8).min(self.used - slba);
            let most = self.bench.ftl.stored_bytes_max().min(blocks as u32 * 4096);
            let stored_bytes = rng.between(u64::from(most) / 2, u64::from(most)) as u32;
            if !self.bench.ftl.can_accept(u64::from(stored_bytes)) {
                break;
            }
            self.put_new(rng, slba, blocks as u16, Some(stored_bytes))?;
            slba += blocks;
        }
        Ok(())
    }

    fn operate_often(&mut self, operations: u64) -> Check {
        for _ in 0..operations {
            let Some(mut rng) = self.script.next_operation() else { continue };
            self.operate(&mut rng)?;
            self.note_syncs();
            self.note_reads()?;
            if rng.one_in(16) {
                self.bench.ftl.audit()?;
            }
        }
        Ok(())
    }

    fn operate(&mut self, rng: &mut Rng) -> Check {
        match rng.below(40) {
            0..20 => self.write(rng),
            20..23 => {
                let (slba, blocks) = self.draw_range(rng, 40);
                self.put_new(rng, slba, blocks, None)
            }
            23 => self.flush(),
            24 => {
                self.script.tell(|| "sync".into());
                let id = self.bench.ftl.sync(self.bench.now);
                self.syncs.insert(id, self.bench.ftl.durable_through());
                Ok(())
            }
            25 => {
                self.script.tell(|| "close the page".into());
                self.bench.ftl.close_page(self.bench.now);
                Ok(())
            }
            26 => self.read_one(rng),
            27..30 => {
                let block = rng.below(self.used);
                self.start_read(block)
            }
            30..34 => self.meddle(rng),
            _ => {
                let events = rng.below(6);
                self.script.tell(|| format!("{events} events pass"));
                for _ in 0..events {
                    self.bench.step();
                }
                Ok(())
            }
        }
    }

    /// Reads, overwrites or trims what is being collected, or is about to be: what lies where the least lives.
    fn meddle(&mut self, rng: &mut Rng) -> Check {
        let superblock_bytes = self.geometry.superblock_bytes();
        let mut live = BTreeMap::<u64, (u64, u64, u16)>::new();
        for one in self.bench.ftl.live_extents() {
            let entry = live.entry(one.address / superblock_bytes).or_default();
            *entry = (entry.0 + u64::from(one.extent.stored_bytes), one.extent.slba.0, one.extent.blocks);
        }
        let Some(&(_, slba, blocks)) = live.values().min() else { return Ok(()) };
        match rng.below(4) {
            0 => self.start_read(slba),
            1 => self.put_new(rng, slba, blocks, None),
            _ if self.bench.ftl.can_accept_over(Lba(slba), u32::from(blocks), 50) => {
                self.put_new(rng, slba, blocks, Some(50))
            }
            _ => Ok(()),
        }
    }

    fn draw_range(&self, rng: &mut Rng, blocks_max: u64) -> (u64, u16) {
        let blocks = rng.between(1, blocks_max.min(self.used));
        // Half of the writes go to a tenth of the blocks.
        let span = if rng.one_in(2) { (self.used / 10).max(blocks) } else { self.used };
        (rng.below(span - blocks + 1), blocks as u16)
    }

    fn write(&mut self, rng: &mut Rng) -> Check {
        let (slba, blocks) = self.draw_range(rng, [2, 8, 16][self.sizes as usize]);
        let most = u64::from(self.bench.ftl.stored_bytes_max().min(u32::from(blocks) * 4096 + 100));
        let stored_bytes = match (self.sizes, rng.below(8)) {
            (0, _) => rng.below(100),
            (_, 0) => 0,
            (2, _) | (_, 1) => most,
            _ => rng.below(most + 1),
        };
        if !self.bench.ftl.can_accept_over(Lba(slba), u32::from(blocks), stored_bytes) {
            self.count("writes that found no room", 1);
            return Ok(());
        }
        self.put_new(rng, slba, blocks, Some(stored_bytes as u32))
    }

    fn put_new(&mut self, rng: &mut Rng, slba: u64, blocks: u16, stored_bytes: Option<u32>) -> Check {
        let sequence = self.reference.next_sequence(rng.between(1, 3));
        self.put(Write { sequence, slba, blocks, stored_bytes, append: AppendId(0) })
    }

    /// Appends, for replays too.
    fn put(&mut self, mut write: Write) -> Check {
        self.script.tell(|| format!("{write:?}"));
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
                Err(Backpressure::ReadOnly(_)) if self.bench.ftl.read_only().is_some() => {
                    self.count("refused", 1);
                    return Ok(());
                }
                // Superblocks whose erase fails are used no more.
                Err(Backpressure::Full) if self.bench.ftl.stats().superblocks_retired > 0 => {
                    self.count("refused", 1);
                    return Ok(());
                }
                Err(other) => return Err(format!("{write:?} was refused: {other}")),
            }
            steps += 1;
            if !self.bench.step() || steps > 1_000_000 {
                return Err(format!("{write:?} waits for ever: {:?}", self.bench.ftl.stats()));
            }
        };
        write.append = append;
        self.writes.push(write);
        self.count(if write.stored_bytes.is_some() { "writes" } else { "trims" }, 1);
        let content = write.stored_bytes.map_or(Content::Nothing, |_| Content::Payload(write.sequence));
        for block in write.slba..write.slba + u64::from(write.blocks) {
            self.reference.put(block, write.sequence, content);
        }
        Ok(())
    }

    fn flush(&mut self) -> Check {
        self.script.tell(|| "flush".into());
        self.count("flushes", 1);
        let last = self.bench.ftl.last_append();
        match self.bench.flush() {
            Ok(()) => self.synced(last),
            Err(_) if self.bench.ftl.read_only().is_some() => {}
            Err(error) => return Err(format!("a flush failed: {error}")),
        }
        Ok(())
    }

    fn note_syncs(&mut self) {
        for (id, result) in std::mem::take(&mut self.bench.syncs) {
            if let (Some(append), Ok(())) = (self.syncs.remove(&id), result) {
                self.synced(append);
            }
        }
    }

    /// Everything up to this append survives a loss of power from now on.
    fn synced(&mut self, append: AppendId) {
        let sequence = self.sequence_of(append);
        self.reference.persist(sequence);
    }

    /// The highest sequence that is appended once this append is.
    fn sequence_of(&self, append: AppendId) -> u64 {
        let appended = self.writes.iter().filter(|write| write.append <= append);
        appended.map(|write| write.sequence).max().unwrap_or(0)
    }

    /// Where a block's bytes lie, if any do.
    fn place(&self, block: u64) -> Option<(osier_flash::Location, Extent, u64)> {
        let mut pieces = Vec::new();
        self.bench.ftl.pieces(Lba(block), 1, &mut pieces);
        let PieceKind::Mapped { extent, location, .. } = pieces[0].kind else { return None };
        let address = u64::from(location.superblock) * self.geometry.superblock_bytes() + location.offset_bytes;
        Some((location, extent, address))
    }

    /// Whether an error is allowed for bytes of the media.
    fn may_fail(&self, address: u64, bytes: u32) -> bool {
        self.reads_fail || self.bench.array.is_on_dead_die(address, u64::from(bytes))
    }

    /// Whether an extent is in programmed pages; it is while writing goes on, or will be.
    fn is_durable(&self, extent: &Extent) -> bool {
        let ftl = &self.bench.ftl;
        ftl.read_only().is_none() || extent.sequence <= self.sequence_of(ftl.durable_through())
    }

    /// Whether an extent could not be read when it was moved: then its copy is without its bytes, and says so.
    fn may_be_lost(&self, extent: &Extent) -> bool {
        self.reads_fail || self.gone.contains(&extent.sequence)
    }

    fn read_one(&mut self, rng: &mut Rng) -> Check {
        let block = rng.below(self.used);
        self.script.tell(|| format!("read {block}"));
        let seen = self.observe(block)?;
        self.note_syncs();
        self.reference.check_newest(block, seen, |_| false)
    }

    /// Starts a read that ends whenever it does.
    fn start_read(&mut self, block: u64) -> Check {
        self.script.tell(|| format!("begin to read {block}"));
        self.count("reads", 1);
        if let Some((location, extent, address)) = self.place(block) {
            let id = self.bench.ftl.read(self.bench.now, location, 0..extent.stored_bytes);
            self.reads.insert(id.map_err(|error| error.to_string())?, (extent, address));
        }
        Ok(())
    }

    fn note_reads(&mut self) -> Check {
        for (id, result) in std::mem::take(&mut self.bench.reads) {
            let (found, address) = self.reads.remove(&id).expect("every read was started here");
            let (_, payload) = extent(found.slba.0, found.blocks, found.stored_bytes, found.sequence);
            let may_not_fit = self.may_be_lost(&found) || self.bench.ftl.read_only().is_some();
            match result {
                Ok(bytes) if bytes[..] == payload[..] => {}
                Ok(bytes) if may_not_fit && crc32c::crc32c(&bytes) != found.checksum => self.count("units lost", 1),
                Err(_) if self.may_fail(address, found.stored_bytes) => self.count("failed reads", 1),
                _ => return Err(format!("a read of {found:?} that was under way brought {result:?}")),
            }
        }
        Ok(())
    }

    /// Reads a block, checks every byte, and says which version it is: the FTL names it even where the bytes
    /// cannot be read.
    fn observe(&mut self, block: u64) -> Result<Content, String> {
        if self.bench.ftl.read_only().is_some() {
            // Programs that were under way when writing ended are not waited for by reads: the checksum tells.
            self.bench.settle();
        }
        let Some((_, _, address)) = self.place(block) else { return Ok(Content::Nothing) };
        let Some((found, first, bytes)) = self.bench.read_block(block) else { return Ok(Content::Nothing) };
        let (expected, payload) = extent(found.slba.0, found.blocks, found.stored_bytes, found.sequence);
        if found != expected || found.slba.0 + u64::from(first) != block {
            return Err(format!("block {block} reads from {found:?} at {first}, written was {expected:?}"));
        }
        match bytes {
            Ok(bytes) if bytes[..] == payload[..] => {}
            // What could not be read when it was moved is kept with bytes that do not fit, which every reader notices.
            Ok(bytes) if self.may_be_lost(&found) && crc32c::crc32c(&bytes) != found.checksum => {
                self.count("units lost", 1);
            }
            // Writing has ended before this was programmed: a device still has it in its write buffer.
            Ok(bytes) if !self.is_durable(&found) && crc32c::crc32c(&bytes) != found.checksum => {
                self.count("units not programmed", 1);
            }
            Ok(_) => return Err(format!("block {block}: the bytes of {found:?} are wrong")),
            Err(_) if self.may_fail(address, found.stored_bytes) => self.count("failed reads", 1),
            Err(error) => return Err(format!("block {block}: {error}")),
        }
        Ok(Content::Payload(found.sequence))
    }

    fn crash(&mut self, rng: &mut Rng) -> Check {
        let stats = self.bench.ftl.stats();
        for (name, count) in [
            ("cuts", 1),
            ("superblocks erased", stats.superblocks_erased),
            ("extents moved", stats.relocated_extents),
            ("cuts in collections", u64::from(stats.victims > stats.superblocks_erased)),
        ] {
            self.count(name, count);
        }
        self.bench.issue();
        let durable = self.bench.ftl.durable_through();
        let loses_power = rng.one_in(2);
        self.script.tell(|| if loses_power { "power is lost" } else { "the process dies" }.into());
        if loses_power {
            self.bench.array.cut_power();
        } else {
            self.bench.array.kill();
        }
        self.recover_twice()?;
        let floor = if loses_power { 0 } else { self.sequence_of(durable) };
        self.check_all(floor)?;
        let writes = std::mem::take(&mut self.writes);
        if !loses_power && rng.one_in(2) {
            // As a device does whose write buffer outlived the process.
            self.count("replays", 1);
            for write in writes.into_iter().filter(|write| write.append > durable) {
                self.put(write)?;
            }
            for block in 0..self.blocks {
                let seen = self.observe(block)?;
                self.reference.check_newest(block, seen, |_| false)?;
            }
            self.note_syncs();
        }
        Ok(())
    }

    /// A recovery that is cut short changes nothing, so that only the last one counts; its report is the same.
    fn recover_twice(&mut self) -> Check {
        let first = self.recover().map_err(|error| error.to_string())?;
        let report = self.recover().map_err(|error| error.to_string())?;
        if report != first {
            return Err(format!("two recoveries differ: {first:?}, {report:?}"));
        }
        self.count("recoveries cut short", 1);
        for (name, count) in [
            ("torn extents", report.extents_torn),
            ("gaps", report.gaps),
            ("holes", report.holes),
            ("headers lost", report.headers_lost),
            ("suspect superblocks", u64::from(report.superblocks_suspect)),
        ] {
            self.count(name, count);
        }
        let last = self.reference.sequence();
        if report.sequence_max > last {
            return Err(format!("sequence {} was never given, {last} was the last", report.sequence_max));
        }
        self.bench.ftl.audit()
    }

    fn recover(&mut self) -> Result<RecoveryReport, FtlError> {
        let array = &self.bench.array;
        let mut read = |address, out: &mut [u8]| array.read_into(address, out);
        let device = (self.geometry, TIMING, self.params, self.blocks);
        let (ftl, report) = recover_extent(device, &mut read, self.bug)?;
        self.bench.ftl = ftl;
        self.bench.reads.clear();
        self.bench.syncs.clear();
        self.syncs.clear();
        self.reads.clear();
        Ok(report)
    }

    fn check_all(&mut self, floor: u64) -> Check {
        self.count("units checked", self.blocks);
        for block in 0..self.blocks {
            let seen = self.observe(block)?;
            self.reference.check_recovered(block, seen, floor, false, |_| false)?;
        }
        Ok(())
    }

    /// A die dies. What lies on it reads as an error and everything else is right; writing ends with the first
    /// program that fails; a recovery is refused with the address that cannot be read.
    fn lose_die(&mut self, rng: &mut Rng) -> Check {
        let die = rng.below(u64::from(self.geometry.dies())) as u32;
        self.script.tell(|| format!("die {die} dies"));
        self.count("dead dies and planes", 1);
        self.bench.array.lose_die(die);
        let array = &self.bench.array;
        let live = self.bench.ftl.live_extents();
        let is_gone = |address, bytes| array.is_on_dead_die(address, u64::from(bytes));
        let gone = live.filter(|one| is_gone(one.address, one.extent.stored_bytes));
        self.gone = gone.map(|one| one.extent.sequence).collect();
        self.operate_often(OPERATIONS_AFTER_DEATH)?;
        for block in 0..self.blocks {
            let seen = self.observe(block)?;
            self.reference.check_newest(block, seen, |_| false)?;
        }
        self.bench.ftl.audit()?;
        self.bench.issue();
        self.bench.array.cut_power();
        match self.recover() {
            Err(FtlError::Read { source: MediaError::Io, .. }) => Ok(()),
            other => Err(format!("a recovery with a dead die ended with {other:?}")),
        }
    }
}

fn draw_config(rng: &mut Rng) -> (Geometry, FtlParams) {
    let geometry = Geometry {
        channels: rng.between(1, 2) as u32,
        dies_per_channel: rng.between(1, 2) as u32,
        planes_per_die: rng.between(1, 2) as u32,
        blocks_per_plane: rng.between(16, 18) as u32,
        pages_per_block: 0,
        page_bytes: 4096 << rng.below(2),
    };
    // Superblocks of 64 KiB and more.
    let pages = (64 << rng.below(2)) / (geometry.page_bytes / 1024);
    let geometry = Geometry { pages_per_block: (pages / geometry.planes()).max(4), ..geometry };
    let min = rng.between(1, 3) as u32;
    let params = FtlParams {
        over_provisioning_permille: rng.between(10, 200) as u32,
        gc_free_superblocks_low: min + rng.below(3) as u32,
        gc_free_superblocks_min: min,
        with_data: true,
        thin: true,
    };
    (geometry, params)
}
