//! The flash translation layer: a log of variable-length extents over superblocks.
//!
//! Sans-IO: time comes in as an argument, media operations come out of [`Ftl::next_op`] and are
//! answered through [`Ftl::media_done`]. The owner's loop is: call something, drain `next_op`, answer
//! what the media has done, `poll` at or after `next_event`.
//!
//! Invariants, and who holds them:
//! 1. A page is programmed once between two erases, whole and in order (`write::issue_program`).
//! 2. The newest *synced* version of a block is never erased before a newer one is synced
//!    (`gc::retire_victim`): relocated copies are programmed, the appends that killed anything in the
//!    victim are programmed, then the media is synced, and only then the erase is issued.
//! 3. A trim record lives for as long as a block is unmapped by it (`directory`).
//! 4. Garbage collection can always make progress: it has superblocks that the host cannot take, and
//!    live data is bounded so that some superblock has more garbage than collecting it costs
//!    ([`Ftl::usable_bytes`], `gc::pick_victim`).
//! 5. An operation is over at the later of its due time and the media's answer (`ops`).
//! 6. Nothing is promised after a failed program or sync (`failed`).
//! 7. What a crash may bring back, beside all that was appended, fits too (`shadow`): so an append that was taken
//!    once is never refused as full when it comes again after a crash.

use std::collections::VecDeque;

use crate::codec::{EXTENT_HEADER_BYTES, StreamKind, extent_footprint, first_extent_offset};
use crate::directory::{Directory, Record, Slot};
use crate::error::{Backpressure, FtlError};
use crate::gc::Collector;
use crate::media::{MediaError, MediaOp, MediaOpKind, MediaResult};
use crate::nand::{Nand, Timing};
use crate::ops::{Ops, Purpose};
use crate::planted::Bug;
use crate::read::HeldRead;
use crate::shadow::Shadows;
use crate::stats::Counters;
use crate::stream::Stream;
use crate::{AppendId, BLOCK_BYTES, ExtentKind, Geometry, Lba, Nanos, OpId, ReadId, SyncId};

/// How the FTL manages space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FtlParams {
    /// Share of the space after reserves that stays free of live data, in thousandths: 10 to 900.
    pub over_provisioning_permille: u32,
    /// Background collection runs while no more superblocks than this are free.
    pub gc_free_superblocks_low: u32,
    /// Superblocks that only collection may take; the host waits instead. At least 1.
    pub gc_free_superblocks_min: u32,
    /// Whether bytes are kept. `false` models time and space only.
    pub with_data: bool,
    /// Whether more logical blocks may be promised than fit in the worst case.
    pub thin: bool,
}

/// One unit as the host stored it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// First logical block that it covers.
    pub slba: Lba,
    /// Logical blocks that it covers, at least 1.
    pub blocks: u16,
    /// Bytes before the pipeline.
    pub raw_bytes: u32,
    /// Bytes on the media.
    pub stored_bytes: u32,
    /// Which pipeline wrote it.
    pub tag: u32,
    /// CRC-32C of the stored bytes.
    pub checksum: u32,
    /// Device-wide, rising: the newest wins.
    pub sequence: u64,
    /// Data, or a trim record.
    pub kind: ExtentKind,
}

/// An extent that at least one block reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LiveExtent {
    /// What it is.
    pub extent: Extent,
    /// Media address of its first stored byte.
    pub address: u64,
    /// Blocks that read from it.
    pub live_blocks: u32,
    /// Its bytes are known not to fit its checksum: reads of it fail.
    pub is_damaged: bool,
}

/// Where the payload of an extent lies. Becomes stale when its superblock is collected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// Superblock that holds it.
    pub superblock: u32,
    /// First byte of the payload in the superblock.
    pub offset_bytes: u64,
    /// Sequence of the superblock's life, to notice that it was erased since.
    pub life: u64,
}

/// A run of logical blocks that read from one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// First logical block of the run.
    pub slba: Lba,
    /// Length of the run in blocks.
    pub blocks: u32,
    /// What the run reads from.
    pub kind: PieceKind,
}

/// What a [`Piece`] reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind {
    /// Never written, or trimmed: reads as zeroes.
    Unmapped,
    /// Part of an extent.
    Mapped {
        /// The extent, as it was appended.
        extent: Extent,
        /// Where its payload lies now.
        location: Location,
        /// Index within the extent of the run's first block.
        first: u16,
    },
}

/// Something that [`Ftl::poll`] reports.
#[derive(Debug)]
pub enum FtlEvent {
    /// All appends up to this one are in programmed pages. Their sources may be forgotten as far as
    /// the death of a process goes; a loss of power is survived only after a sync.
    Durable {
        /// The last of them.
        through: AppendId,
    },
    /// A read is over.
    ReadDone {
        /// Which one.
        id: ReadId,
        /// The bytes asked for; empty when the FTL keeps no data.
        result: Result<Box<[u8]>, MediaError>,
    },
    /// A sync is over: what was durable when it was asked for survives a loss of power.
    SyncDone {
        /// Which one.
        id: SyncId,
        /// Fails when the media could not promise it; nothing can be promised from then on.
        result: Result<(), MediaError>,
    },
    /// A program or a sync failed. Appends, trims and collection stop; reads go on.
    ReadOnly {
        /// Why.
        error: MediaError,
    },
    /// An erase failed: the superblock is taken out of use, and the usable capacity shrinks.
    SuperblockRetired {
        /// Which one.
        superblock: u32,
        /// Why.
        error: MediaError,
    },
}

/// Life of a superblock: `Free -> Open -> Closed -> Victim -> Erasing -> Free`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SuperblockState {
    Free,
    /// A stream writes it (`write::open_superblock`).
    Open,
    /// Full, or left behind by a crash (`write::close_superblock`, `recover`).
    Closed,
    /// Its live extents are being copied (`gc::start`).
    Victim,
    /// Its erase was issued (`gc::issue_erase`).
    Erasing,
    /// Its erase failed; never used again.
    Retired,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Superblock {
    pub state: SuperblockState,
    /// Sequence of the present life, from the counter that all superblocks share.
    pub sequence: u64,
    pub erase_count: u32,
    /// Next page to program.
    pub next_page: u32,
    pub programs_in_flight: u32,
    pub readers: u32,
    /// Number of the last note of its erase count since it was erased, or 0.
    pub noted: u64,
    /// Recovery found torn or damaged bytes here: collected first, and nothing is newly trusted
    /// until it is gone (`sync::SyncInFlight`).
    pub suspect: bool,
}

/// What recovery may take for whole without looking at payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Trust {
    /// Every record up to this sequence is synced.
    pub sequence: u64,
    /// Superblocks of each stream below this sequence are wholly programmed, synced and undamaged.
    pub superblocks: [u64; 2],
}

/// The flash translation layer.
#[derive(Debug)]
pub struct Ftl {
    pub(crate) geometry: Geometry,
    pub(crate) params: FtlParams,
    pub(crate) limits: Limits,
    pub(crate) nand: Nand,
    pub(crate) directory: Directory,
    pub(crate) shadows: Shadows,
    /// Appends up to this sequence are replays: recovery met it on the media.
    pub(crate) replays_through: u64,
    pub(crate) superblocks: Vec<Superblock>,
    pub(crate) superblocks_free: u32,
    pub(crate) superblocks_retired: u32,
    pub(crate) suspects: u32,
    pub(crate) next_superblock_sequence: u64,
    pub(crate) streams: [Stream; 2],
    pub(crate) ops: Ops,
    pub(crate) held_reads: Vec<HeldRead>,
    pub(crate) reads_in_flight: u32,
    pub(crate) next_read: u64,
    pub(crate) syncs: crate::sync::Syncs,
    pub(crate) collector: Collector,
    pub(crate) trust: Trust,
    /// Rolls over every header written; makes headers of one life impossible to guess for who
    /// chooses payloads, so that recovery cannot be led to a forged one.
    pub(crate) salt: u32,
    /// Notes of erase counts that were written.
    pub(crate) notes: u64,
    /// Pages to be used again, so that a program in steady state allocates nothing.
    pub(crate) spare_pages: Vec<Box<[u8]>>,
    /// Events that were caused outside of `poll`.
    pub(crate) events: VecDeque<FtlEvent>,
    pub(crate) reported_durable: AppendId,
    pub(crate) failed: Option<MediaError>,
    pub(crate) counters: Counters,
    pub(crate) bug: Option<Bug>,
}

/// Bounds that follow from the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub superblock_bytes: u64,
    pub stored_bytes_max: u32,
    /// A superblock with no more live bytes than this is worth collecting: what a superblock surely
    /// holds (less its headers, one page that is padded when a victim is done, and the largest extent
    /// that may not fit at its end), less the over-provisioning.
    pub victim_live_bytes_max: u64,
    /// Programs in flight for each stream.
    pub programs_max: usize,
    /// Relocation reads in flight when the host is waiting for space.
    pub relocations_foreground: usize,
}

/// Fewest and most programs in flight for each stream. Two for each plane keep every die at work
/// while one crosses the channel; an extent of the largest size must fit the smallest value.
const PROGRAMS_IN_FLIGHT_MIN: u32 = 32;
const PROGRAMS_IN_FLIGHT_MAX: u32 = 4096;
const _: () = assert!(PROGRAMS_IN_FLIGHT_MIN >= extent_footprint(crate::geometry::STORED_BYTES_MAX) / 4096 + 3);

/// Bounds of the relocation reads in flight when the host is waiting for space.
const RELOCATIONS_MIN: u32 = 4;
const RELOCATIONS_MAX: u32 = 64;

/// Superblocks beyond those of collection that hold no promised data: one for what the two open ones
/// have not filled, one for trim records, which are taken even when data is not.
const SUPERBLOCKS_SLACK: u32 = 2;

impl Limits {
    pub(crate) fn new(geometry: &Geometry, params: &FtlParams) -> Limits {
        let superblock_bytes = geometry.superblock_bytes();
        let stored_bytes_max = geometry.stored_bytes_max();
        let waste = u64::from(geometry.page_bytes + extent_footprint(stored_bytes_max));
        let yield_bytes = superblock_bytes - first_extent_offset(geometry) - waste;
        let live_permille = u64::from(1000 - params.over_provisioning_permille);
        Limits {
            superblock_bytes,
            stored_bytes_max,
            victim_live_bytes_max: yield_bytes * live_permille / 1000,
            programs_max: (2 * geometry.planes()).clamp(PROGRAMS_IN_FLIGHT_MIN, PROGRAMS_IN_FLIGHT_MAX) as usize,
            relocations_foreground: (2 * geometry.dies()).clamp(RELOCATIONS_MIN, RELOCATIONS_MAX) as usize,
        }
    }
}

impl FtlParams {
    /// Checks every value against the geometry.
    ///
    /// # Errors
    /// Names the first value that cannot work, and the range that would.
    pub fn validate(&self, geometry: &Geometry) -> Result<(), FtlError> {
        let superblocks = u64::from(geometry.superblocks());
        let min = u64::from(self.gc_free_superblocks_min);
        let ranges = [
            ("over_provisioning_permille", u64::from(self.over_provisioning_permille), 10, 900),
            ("gc_free_superblocks_min", min, 1, superblocks / 4),
            ("gc_free_superblocks_low", u64::from(self.gc_free_superblocks_low), min, superblocks / 2),
        ];
        for (name, value, min, max) in ranges {
            if value < min || value > max {
                return Err(FtlError::Param { name, value, min, max });
            }
        }
        Ok(())
    }
}

impl Ftl {
    /// Most bytes of memory that the map takes for each logical block.
    pub const MAP_BYTES_PER_BLOCK: u64 = crate::directory::BYTES_PER_BLOCK;

    /// An FTL over media that is erased.
    ///
    /// # Errors
    /// A parameter that cannot work, by name; or logical blocks that do not fit.
    pub fn new(geometry: Geometry, timing: Timing, params: FtlParams, logical_blocks: u64) -> Result<Ftl, FtlError> {
        geometry.validate()?;
        timing.validate()?;
        params.validate(&geometry)?;
        let blocks_max = u64::from(u32::MAX) - 1;
        if logical_blocks == 0 || logical_blocks > blocks_max {
            let (name, value) = ("logical_blocks", logical_blocks);
            return Err(FtlError::Param { name, value, min: 1, max: blocks_max });
        }
        let ftl = Ftl::build(geometry, timing, params, logical_blocks as u32);
        // One extent more than there are blocks: an overwrite is appended before the old one dies.
        let needed_bytes = logical_blocks.saturating_mul(u64::from(extent_footprint(BLOCK_BYTES)))
            + u64::from(extent_footprint(ftl.limits.stored_bytes_max));
        let usable_bytes = ftl.usable_bytes();
        if !params.thin && needed_bytes > usable_bytes {
            return Err(FtlError::Capacity { logical_blocks, needed_bytes, usable_bytes });
        }
        Ok(ftl)
    }

    /// The most logical blocks that [`Ftl::new`] accepts without thin provisioning.
    ///
    /// # Errors
    /// A dimension or a parameter that cannot work, by name.
    pub fn logical_blocks_max(geometry: &Geometry, params: &FtlParams) -> Result<u64, FtlError> {
        geometry.validate()?;
        params.validate(geometry)?;
        let limits = Limits::new(geometry, params);
        let usable = usable_bytes(&limits, geometry.superblocks(), params);
        let spare = u64::from(extent_footprint(limits.stored_bytes_max));
        Ok(usable.saturating_sub(spare) / u64::from(extent_footprint(BLOCK_BYTES)))
    }

    fn build(geometry: Geometry, timing: Timing, params: FtlParams, logical_blocks: u32) -> Ftl {
        let limits = Limits::new(&geometry, &params);
        let page = || if params.with_data { vec![0; geometry.page_bytes as usize].into() } else { Box::default() };
        let superblock = Superblock {
            state: SuperblockState::Free,
            sequence: 0,
            erase_count: 0,
            next_page: 0,
            programs_in_flight: 0,
            readers: 0,
            noted: 0,
            suspect: false,
        };
        Ftl {
            geometry,
            params,
            limits,
            nand: Nand::new(geometry, timing),
            directory: Directory::new(logical_blocks, geometry.superblocks()),
            shadows: Shadows::default(),
            replays_through: 0,
            superblocks: vec![superblock; geometry.superblocks() as usize],
            superblocks_free: geometry.superblocks(),
            superblocks_retired: 0,
            suspects: 0,
            next_superblock_sequence: 1,
            streams: StreamKind::ALL.map(|_| Stream::new(page(), limits.programs_max)),
            ops: Ops::default(),
            held_reads: Vec::new(),
            reads_in_flight: 0,
            next_read: 1,
            syncs: crate::sync::Syncs::default(),
            collector: Collector::new(),
            trust: Trust::default(),
            salt: geometry.fingerprint(),
            notes: 0,
            spare_pages: Vec::new(),
            events: VecDeque::new(),
            reported_durable: AppendId(0),
            failed: None,
            counters: Counters::default(),
            bug: None,
        }
    }

    /// The geometry that the FTL was made with.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Logical blocks that the FTL was made with.
    #[must_use]
    pub fn logical_blocks(&self) -> u64 {
        u64::from(self.directory.logical_blocks())
    }

    /// Most bytes that one extent may store.
    #[must_use]
    pub fn stored_bytes_max(&self) -> u32 {
        self.limits.stored_bytes_max
    }

    /// Bytes of live extents, headers included, that can be promised: the superblocks less those that
    /// collection needs and those that are retired, each counted with what it surely holds, less the
    /// over-provisioning.
    #[must_use]
    pub fn usable_bytes(&self) -> u64 {
        usable_bytes(&self.limits, self.geometry.superblocks() - self.superblocks_retired, &self.params)
    }

    /// Whether an extent of so many stored bytes fits beside all live data. `false` means really full:
    /// collection could not make room for it.
    ///
    /// Extents that were accepted but not yet appended are not known here: the caller adds their
    /// [`extent_footprint`]s to `stored_bytes`.
    #[must_use]
    pub fn can_accept(&self, stored_bytes: u64) -> bool {
        let footprint = stored_bytes.saturating_add(u64::from(extent_footprint(0))).next_multiple_of(16);
        self.failed.is_none() && self.directory.live_bytes.saturating_add(footprint) <= self.usable_bytes()
    }

    /// As [`Ftl::can_accept`], and counts what an overwrite of these blocks would set free: a device
    /// that is full still takes overwrites that do not make it fuller.
    ///
    /// # Panics
    /// When the blocks are not all logical blocks of this FTL.
    #[must_use]
    pub fn can_accept_over(&self, slba: Lba, blocks: u32, stored_bytes: u64) -> bool {
        self.check_range(slba, blocks);
        let freed = self.directory.bytes_replaced(slba.0 as u32, blocks, u64::MAX);
        let footprint = stored_bytes.saturating_add(u64::from(extent_footprint(0))).next_multiple_of(16);
        let live = self.directory.live_bytes - freed;
        self.failed.is_none() && live.saturating_add(footprint) <= self.usable_bytes()
    }

    /// Whether one more trim record fits beside all live data. `pending_bytes` are the
    /// [`extent_footprint`]s of extents and trims that were accepted but not yet appended.
    #[must_use]
    pub fn can_trim(&self, pending_bytes: u64) -> bool {
        let footprint = pending_bytes.saturating_add(u64::from(EXTENT_HEADER_BYTES));
        self.failed.is_none() && self.directory.live_bytes.saturating_add(footprint) <= self.lasting_bytes_max()
    }

    /// Most bytes that collection can work with: what is promised to data, and a superblock more for trim records
    /// and for what a crash may bring back.
    pub(crate) fn lasting_bytes_max(&self) -> u64 {
        self.usable_bytes() + self.limits.victim_live_bytes_max
    }

    /// Appends an extent. Its bytes are copied; pages that fill up are programmed.
    ///
    /// Appends of one session come in rising sequence. An extent of which every block already holds
    /// something as new (a replay after a crash) is not written again, and its identity is that of the
    /// last append. Replays in the order of their first appends always find room.
    ///
    /// # Errors
    /// [`Backpressure::Busy`]: retry after the next event. [`Backpressure::Full`]: not even collection
    /// could make room. [`Backpressure::ReadOnly`]: the media failed. Nothing has changed then.
    ///
    /// # Panics
    /// On an extent that cannot be: no blocks, out of range, longer than [`Ftl::stored_bytes_max`], a
    /// payload of another length, no payload though data is kept.
    pub fn append(&mut self, now: Nanos, extent: &Extent, payload: Option<&[u8]>) -> Result<AppendId, Backpressure> {
        assert_eq!(extent.kind, ExtentKind::Data, "trims have a call of their own");
        assert!(extent.stored_bytes <= self.limits.stored_bytes_max, "an extent must fit a quarter of a superblock");
        assert_eq!(payload.is_some(), self.params.with_data, "payloads come when data is kept, and only then");
        assert!(payload.is_none_or(|p| p.len() == extent.stored_bytes as usize), "the payload has its stated length");
        let blocks = u32::from(extent.blocks);
        self.check_range(extent.slba, blocks);
        let slba = extent.slba.0 as u32;
        if !self.directory.any_older(slba, blocks, extent.sequence) {
            return Ok(self.last_append());
        }
        self.check_writable()?;
        let is_replay = extent.sequence <= self.replays_through && !self.has_bug(Bug::ReplayCountsAsNew);
        if !is_replay
            && self.directory.live_bytes + u64::from(extent_footprint(extent.stored_bytes)) > self.usable_bytes()
            && !self.can_accept_over(extent.slba, blocks, u64::from(extent.stored_bytes))
        {
            return Err(Backpressure::Full);
        }
        let record = Record {
            kind: ExtentKind::Data,
            damaged: false,
            slba: extent.slba,
            blocks,
            raw_bytes: extent.raw_bytes,
            stored_bytes: extent.stored_bytes,
            tag: extent.tag,
            checksum: extent.checksum,
            sequence: extent.sequence,
            superblock: 0,
            offset16: 0,
        };
        let append = self.append_record(now, record, payload)?;
        self.counters.host_bytes += u64::from(extent.stored_bytes);
        Ok(append)
    }

    /// Unmaps blocks: they read as never written from now on, and after recovery once the returned
    /// append is durable. Blocks that hold no data cost nothing; if none of them does, the identity is
    /// that of the last append.
    ///
    /// # Errors
    /// As [`Ftl::append`]. Trims have space of their own, so that a full device takes them.
    ///
    /// # Panics
    /// When the blocks are not all logical blocks of this FTL.
    pub fn trim(&mut self, now: Nanos, slba: Lba, blocks: u32, sequence: u64) -> Result<AppendId, Backpressure> {
        self.check_range(slba, blocks);
        let Some((slba, blocks)) = self.directory.data_older(slba.0 as u32, blocks, sequence) else {
            return Ok(self.last_append());
        };
        self.check_writable()?;
        if self.directory.live_bytes + u64::from(EXTENT_HEADER_BYTES) > self.lasting_bytes_max() {
            return Err(Backpressure::Full);
        }
        let record = Record {
            kind: ExtentKind::Trim,
            damaged: false,
            slba: Lba(u64::from(slba)),
            blocks,
            raw_bytes: 0,
            stored_bytes: 0,
            tag: 0,
            checksum: 0,
            sequence,
            superblock: 0,
            offset16: 0,
        };
        self.counters.trims += 1;
        self.append_record(now, record, self.params.with_data.then_some(&[]))
    }

    /// Programs the open page of the host's stream, padded with zeroes, if it holds anything. Before a
    /// barrier, or when idle, so that appends do not wait for their page to fill.
    pub fn close_page(&mut self, now: Nanos) {
        if self.failed.is_none() {
            self.pad_page(now, StreamKind::Host);
        }
    }

    /// All appends up to this one are in programmed pages.
    #[must_use]
    pub fn durable_through(&self) -> AppendId {
        self.streams[StreamKind::Host.index()].durable
    }

    /// The last append; once it is durable, everything is.
    #[must_use]
    pub fn last_append(&self) -> AppendId {
        self.streams[StreamKind::Host.index()].appended
    }

    /// The sequence of the record that a block reads from, a trim counted; 0 if it was never written.
    ///
    /// # Panics
    /// When it is not a logical block of this FTL.
    #[must_use]
    pub fn sequence_at(&self, block: Lba) -> u64 {
        self.check_range(block, 1);
        self.directory.slot_of(block.0 as u32).map_or(0, |(_, slot)| slot.sequence)
    }

    /// What the blocks read from, in address order, appended to `out`.
    ///
    /// # Panics
    /// When the blocks are not all logical blocks of this FTL.
    pub fn pieces(&self, slba: Lba, blocks: u32, out: &mut Vec<Piece>) {
        self.check_range(slba, blocks);
        let end = slba.0 as u32 + blocks;
        let mut at = slba.0 as u32;
        while at < end {
            let slot = self.directory.data_slot(at);
            let mut run = 1;
            while at + run < end && self.directory.data_slot(at + run) == slot {
                run += 1;
            }
            let kind = slot.map_or(PieceKind::Unmapped, |slot| self.mapped(slot, at));
            out.push(Piece { slba: Lba(u64::from(at)), blocks: run, kind });
            at += run;
        }
    }

    /// Every extent of data that a block reads from, in no order: for who looks the whole media over.
    pub fn live_extents(&self) -> impl Iterator<Item = LiveExtent> {
        let data = self.directory.slots().filter(|slot| slot.kind == ExtentKind::Data);
        data.map(|slot| LiveExtent {
            extent: extent_of(slot),
            address: self.address(slot.superblock, slot.payload_offset()),
            live_blocks: slot.live,
            is_damaged: slot.damaged,
        })
    }

    /// The next operation for the media, in the order in which it was issued.
    pub fn next_op(&mut self) -> Option<MediaOp> {
        self.ops.next()
    }

    /// Answers an operation. Takes effect in the first [`Ftl::poll`] at or after its due time.
    ///
    /// # Panics
    /// When the operation was not issued, or was answered before.
    pub fn media_done(&mut self, now: Nanos, id: OpId, result: MediaResult) {
        self.ops.answer(now, id, result);
    }

    /// Lets everything that is over at `now` take effect, and reports it.
    pub fn poll(&mut self, now: Nanos, out: &mut Vec<FtlEvent>) {
        while let Some((purpose, result)) = self.ops.over(now) {
            self.over(now, purpose, result);
        }
        self.release_held_reads();
        self.issue_sync(now);
        self.collect(now);
        let through = self.durable_through();
        if through > self.reported_durable {
            self.reported_durable = through;
            out.push(FtlEvent::Durable { through });
        }
        out.extend(self.events.drain(..));
    }

    /// When the next [`Ftl::poll`] has something to do, as far as the media's answers are in.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        // What was caused outside of `poll` is reported at once.
        if self.events.is_empty() { self.ops.next_event() } else { Some(Nanos::ZERO) }
    }

    /// Whether writing has stopped since the media failed, and why.
    #[must_use]
    pub fn read_only(&self) -> Option<MediaError> {
        self.failed
    }

    /// Plants a known bug, to prove that a check would find it.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: Bug) {
        self.bug = Some(bug);
    }

    pub(crate) fn has_bug(&self, bug: Bug) -> bool {
        cfg!(any(test, feature = "planted")) && self.bug == Some(bug)
    }

    /// What the media failed at comes before what would not fit.
    pub(crate) fn check_writable(&self) -> Result<(), Backpressure> {
        self.failed.map_or(Ok(()), |error| Err(Backpressure::ReadOnly(error)))
    }

    fn check_range(&self, slba: Lba, blocks: u32) {
        let end = slba.0.checked_add(u64::from(blocks));
        assert!(blocks > 0 && end.is_some_and(|end| end <= self.logical_blocks()), "{slba}+{blocks} is out of range");
    }

    fn mapped(&self, slot: u32, block: u32) -> PieceKind {
        let slot = self.directory.slot(slot);
        let location = Location {
            superblock: slot.superblock,
            offset_bytes: slot.payload_offset(),
            life: self.superblocks[slot.superblock as usize].sequence,
        };
        PieceKind::Mapped { extent: extent_of(slot), location, first: (block - slot.slba) as u16 }
    }

    fn over(&mut self, now: Nanos, purpose: Purpose, result: MediaResult) {
        match (purpose, result) {
            (Purpose::Program { stream, serial }, MediaResult::Programmed(buffer)) => {
                self.program_done(stream, serial, buffer);
            }
            (Purpose::Program { .. } | Purpose::Sync, MediaResult::Failed(error)) => self.fail(error),
            (Purpose::Read { read, superblock, tail }, MediaResult::Read(bytes)) => {
                self.read_done(read, superblock, tail, Ok(bytes));
            }
            (Purpose::Read { read, superblock, tail }, MediaResult::Failed(error)) => {
                self.read_done(read, superblock, tail, Err(error));
            }
            (Purpose::Relocate { batch }, MediaResult::Read(bytes)) => self.relocation_read(now, batch, Some(bytes)),
            (Purpose::Relocate { batch }, MediaResult::Failed(_)) => self.relocation_read(now, batch, None),
            (Purpose::Erase { superblock }, MediaResult::Erased) => self.erased(superblock),
            (Purpose::Erase { superblock }, MediaResult::Failed(error)) => self.erase_failed(superblock, error),
            (Purpose::Sync, MediaResult::Synced) => self.sync_done(now),
            (purpose, result) => panic!("the media answered {result:?} to {purpose:?}"),
        }
    }

    /// Stops writing for good: what was handed to the media may or may not be there.
    pub(crate) fn fail(&mut self, error: MediaError) {
        if self.failed.is_none() {
            self.failed = Some(error);
            self.undo_relocations();
            self.events.push_back(FtlEvent::ReadOnly { error });
        }
        self.fail_syncs(error);
    }

    /// The address of a byte of a superblock.
    pub(crate) fn address(&self, superblock: u32, offset_bytes: u64) -> u64 {
        u64::from(superblock) * self.limits.superblock_bytes + offset_bytes
    }

    /// Issues an erase of a whole superblock.
    pub(crate) fn issue_erase(&mut self, now: Nanos, superblock: u32) {
        let due = self.nand.erase(now);
        let (address, bytes) = (self.address(superblock, 0), self.limits.superblock_bytes);
        self.superblocks[superblock as usize].state = SuperblockState::Erasing;
        self.counters.blocks_erased += u64::from(self.geometry.planes());
        self.counters.superblocks_erased += 1;
        self.ops.issue(due, Purpose::Erase { superblock }, MediaOpKind::Erase { address, bytes });
    }
}

fn extent_of(slot: &Slot) -> Extent {
    Extent {
        slba: Lba(u64::from(slot.slba)),
        // Data extents come from `append`, where the count is a u16.
        blocks: slot.blocks as u16,
        raw_bytes: slot.raw_bytes,
        stored_bytes: slot.stored_bytes,
        tag: slot.tag,
        checksum: slot.checksum,
        sequence: slot.sequence,
        kind: slot.kind,
    }
}

fn usable_bytes(limits: &Limits, superblocks: u32, params: &FtlParams) -> u64 {
    let reserve = params.gc_free_superblocks_min + SUPERBLOCKS_SLACK;
    u64::from(superblocks.saturating_sub(reserve)) * limits.victim_live_bytes_max
}
