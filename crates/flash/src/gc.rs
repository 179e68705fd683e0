//! Garbage collection: empties the superblock with the fewest live bytes, then erases it.
//!
//! ```text
//!  Idle --start--> Relocating --retire_victim--> Syncing --collection_synced--> Draining
//!  Draining --erase--> Erasing --erased--> Idle
//! ```
//!
//! - *Relocating*: live extents are read, in address order and a run of pages at a time, and appended
//!   whole, with their sequence, to the relocation stream. An extent that dies meanwhile is dropped.
//! - *Syncing*: see invariant 2 of `ftl`. The copies and everything that killed an extent of the victim
//!   are programmed, then synced. Waiting for the copies alone is not enough: a block that was
//!   overwritten by an append that is still in the open page has its newest durable version in the
//!   victim, dead as it is.
//! - *Draining*: reads of the victim that are under way end.
//!
//! Collection runs in the background while few superblocks are free, with few reads at a time so that
//! the host's own are not held up; in the foreground, when the host is out of superblocks, with many.
//! One victim at a time: a superblock spans all dies, so that two erases would not overlap.

use std::collections::VecDeque;

use crate::codec::{EXTENT_HEADER_BYTES, StreamKind};
use crate::directory::Record;
use crate::error::Backpressure;
use crate::ftl::{Ftl, FtlEvent, Superblock, SuperblockState};
use crate::media::{MediaError, MediaOpKind};
use crate::ops::Purpose;
use crate::planted::Bug;
use crate::sync::Asker;
use crate::{ExtentKind, Lba, Nanos, Payload};

/// Relocation reads in flight while the host still has superblocks to write to.
const RELOCATIONS_BACKGROUND: usize = 2;
/// Bytes that one relocation read spans, unless a single extent is longer.
const RELOCATION_BYTES_MAX: u64 = 128 << 10;
/// Extents of one relocation read.
const RELOCATION_EXTENTS_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Relocating,
    Syncing,
    Draining,
    Erasing,
}

/// Extents that are moved with one read.
#[derive(Debug, Default)]
struct Batch {
    /// Slot and offset in the victim, in units of 16 bytes: together they tell whether the extent is
    /// still the one that was read.
    extents: Vec<(u32, u32)>,
    /// Extents before this one are moved.
    moved: usize,
    /// First byte of `data` in the victim.
    offset_bytes: u64,
    /// What was read; `None` when the media could not.
    data: Option<Box<[u8]>>,
    is_read: bool,
}

/// State of garbage collection.
#[derive(Debug)]
pub(crate) struct Collector {
    phase: Phase,
    victim: u32,
    /// Batches by number; the numbers of those in use are in `order`.
    batches: Vec<Batch>,
    vacant: Vec<usize>,
    /// Batches under way, in address order.
    order: VecDeque<usize>,
    /// What was moved out of the victim, which still holds it, until the copies are synced.
    moved: Vec<Moved>,
    /// Why a superblock was retired last.
    retired: Option<MediaError>,
}

/// An extent that was moved.
#[derive(Debug, Clone, Copy)]
struct Moved {
    slot: u32,
    /// Where it was in the victim.
    from_offset16: u32,
    /// Where its copy is.
    superblock: u32,
    offset16: u32,
}

impl Collector {
    pub(crate) fn new() -> Collector {
        Collector {
            phase: Phase::Idle,
            victim: 0,
            batches: Vec::new(),
            vacant: Vec::new(),
            order: VecDeque::new(),
            moved: Vec::new(),
            retired: None,
        }
    }
}

impl SuperblockState {
    /// Whether extents may be read from it.
    pub(crate) fn is_readable(self) -> bool {
        matches!(self, SuperblockState::Open | SuperblockState::Closed | SuperblockState::Victim)
    }
}

impl Ftl {
    /// Does what collection can do now.
    pub(crate) fn collect(&mut self, now: Nanos) {
        if self.failed.is_some() {
            return;
        }
        loop {
            let went_on = match self.collector.phase {
                Phase::Idle => self.start(),
                Phase::Relocating => self.relocate(now),
                Phase::Draining => self.erase_victim(now),
                Phase::Syncing | Phase::Erasing => false,
            };
            if !went_on {
                return;
            }
        }
    }

    /// The sync that the victim waited for is done.
    pub(crate) fn collection_synced(&mut self, now: Nanos) {
        assert_eq!(self.collector.phase, Phase::Syncing, "collection asks for one sync a victim");
        self.collector.moved.clear();
        self.collector.phase = Phase::Draining;
        self.erase_victim(now);
    }

    /// Writing has stopped, and the copies may not be there: what the victim still holds is read from it again.
    pub(crate) fn undo_relocations(&mut self) {
        let victim = self.collector.victim;
        for moved in core::mem::take(&mut self.collector.moved) {
            if self.directory.resident(moved.slot, moved.superblock, moved.offset16).is_some() {
                self.directory.relocate(moved.slot, victim, moved.from_offset16, false);
            }
        }
    }

    /// A relocation read is over; `None`: the media failed.
    pub(crate) fn relocation_read(&mut self, now: Nanos, number: usize, data: Option<Box<[u8]>>) {
        let batch = &mut self.collector.batches[number];
        if data.is_none() && batch.extents.len() > 1 {
            self.read_one_by_one(now, number);
            return;
        }
        batch.data = data;
        batch.is_read = true;
    }

    /// A page of a batch cannot be read: its extents are read alone, so that no other is lost with it.
    fn read_one_by_one(&mut self, now: Nanos, number: usize) {
        let position = self.collector.order.iter().position(|&other| other == number);
        let position = position.expect("a batch that is read is under way");
        self.collector.order.remove(position);
        self.collector.vacant.push(number);
        let extents = core::mem::take(&mut self.collector.batches[number].extents);
        for (index, (slot, offset16)) in extents.into_iter().enumerate() {
            let stored = self.directory.resident(slot, self.collector.victim, offset16).map(|entry| entry.stored_bytes);
            let start = u64::from(offset16) * 16 + u64::from(EXTENT_HEADER_BYTES);
            let range = start..start + u64::from(stored.unwrap_or(0));
            let number = self.vacant_batch();
            let batch = &mut self.collector.batches[number];
            batch.extents.clear();
            batch.extents.push((slot, offset16));
            self.collector.order.insert(position + index, number);
            self.read_batch(now, number, range);
        }
    }

    fn vacant_batch(&mut self) -> usize {
        self.collector.vacant.pop().unwrap_or_else(|| {
            self.collector.batches.push(Batch::default());
            self.collector.batches.len() - 1
        })
    }

    /// Reads the payloads of a batch, if it has any.
    fn read_batch(&mut self, now: Nanos, number: usize, range: core::ops::Range<u64>) {
        let batch = &mut self.collector.batches[number];
        batch.moved = 0;
        batch.offset_bytes = range.start;
        batch.data = None;
        batch.is_read = range.is_empty();
        if !range.is_empty() {
            let due = self.read_due(now, &range);
            let address = self.address(self.collector.victim, range.start);
            let bytes = (range.end - range.start) as u32;
            self.ops.issue(due, Purpose::Relocate { batch: number }, MediaOpKind::Read { address, bytes });
        }
    }

    /// The payloads that will be compared with their checksums once a batch is read.
    pub(crate) fn payloads_of_batch(&self, number: usize) -> Vec<Payload> {
        let batch = &self.collector.batches[number];
        let left = batch.extents[batch.moved..].iter();
        let payload = |&(slot, offset16): &(u32, u32)| {
            let entry = self.directory.resident(slot, self.collector.victim, offset16)?;
            let at = (u64::from(offset16) * 16 + u64::from(EXTENT_HEADER_BYTES)).checked_sub(batch.offset_bytes)?;
            let compares = entry.kind == ExtentKind::Data && entry.stored_bytes > 0 && !entry.damaged;
            compares.then_some(Payload { at, bytes: entry.stored_bytes, checksum: entry.checksum })
        };
        left.filter_map(payload).collect()
    }

    /// The victim is erased.
    pub(crate) fn erased(&mut self, superblock: u32) {
        let entry = &mut self.superblocks[superblock as usize];
        assert_eq!(entry.state, SuperblockState::Erasing, "only what was to be erased is");
        entry.state = SuperblockState::Free;
        entry.erase_count = entry.erase_count.saturating_add(1);
        entry.next_page = 0;
        entry.noted = 0;
        self.suspects -= u32::from(core::mem::take(&mut entry.suspect));
        self.superblocks_free += 1;
        self.directory.erased(superblock);
        self.collector.phase = Phase::Idle;
    }

    /// The victim could not be erased: it holds nothing, and is not used again. What it still reads as
    /// is dead, so nothing is lost; if it was suspect, it stays so, since recovery will meet it again.
    pub(crate) fn erase_failed(&mut self, superblock: u32, error: MediaError) {
        self.superblocks[superblock as usize].state = SuperblockState::Retired;
        self.superblocks_retired += 1;
        self.directory.erased(superblock);
        self.events.push_back(FtlEvent::SuperblockRetired { superblock, error });
        self.collector.phase = Phase::Idle;
        self.collector.retired = Some(error);
        if self.directory.live_bytes > self.usable_bytes() {
            // The spare space is used up: collection could not make room for what is promised already.
            self.fail(error);
        }
    }

    /// Whether the host cannot open another superblock.
    fn is_foreground(&self) -> bool {
        self.superblocks_free <= self.params.gc_free_superblocks_min
    }

    /// Takes a victim if collection is wanted and worth while.
    fn start(&mut self) -> bool {
        let wants_space = self.superblocks_free <= self.params.gc_free_superblocks_low;
        if !wants_space && self.suspects == 0 {
            return false;
        }
        let Some(victim) = self.pick_victim(wants_space) else { return false };
        self.collector.phase = Phase::Relocating;
        self.collector.victim = victim;
        self.superblocks[victim as usize].state = SuperblockState::Victim;
        self.directory.walk_from(victim);
        self.counters.victims += 1;
        true
    }

    /// The closed superblock with the fewest live bytes; suspect ones first (and only those, when no
    /// space is wanted), so that trust can grow again. One whose collection would cost what it gains is
    /// no victim; [`Ftl::usable_bytes`] makes sure that there is another whenever the host waits.
    fn pick_victim(&self, wants_space: bool) -> Option<u32> {
        let candidates = self.superblocks.iter().enumerate().filter(|(index, superblock)| {
            superblock.state == SuperblockState::Closed
                && superblock.programs_in_flight == 0
                && (superblock.suspect || (wants_space && self.is_worth_while(*index as u32)))
        });
        let key = |(index, superblock): &(usize, &Superblock)| {
            let live = self.directory.residents(*index as u32).live_bytes;
            // With nothing free to copy to, only a superblock that needs no copy surely helps.
            let stuck = self.superblocks_free == 0 && live > 0;
            (stuck, !superblock.suspect, live, superblock.erase_count)
        };
        candidates.min_by_key(key).map(|(index, _)| index as u32)
    }

    fn is_worth_while(&self, superblock: u32) -> bool {
        let live = self.directory.residents(superblock).live_bytes;
        live <= self.limits.victim_live_bytes_max
    }

    /// Moves what was read, reads more. Says whether the victim is done with.
    fn relocate(&mut self, now: Nanos) -> bool {
        loop {
            let issued = self.issue_relocations(now);
            let appended = self.append_relocated(now);
            if !issued && !appended {
                break;
            }
        }
        if self.directory.walk_peek().is_none() && self.collector.order.is_empty() {
            self.retire_victim(now);
            return true;
        }
        false
    }

    /// Reads on, as far as the bounds allow.
    fn issue_relocations(&mut self, now: Nanos) -> bool {
        let limit = if self.is_foreground() { self.limits.relocations_foreground } else { RELOCATIONS_BACKGROUND };
        let mut issued = false;
        while self.collector.order.len() < limit && self.directory.walk_peek().is_some() {
            let number = self.vacant_batch();
            let mut extents = core::mem::take(&mut self.collector.batches[number].extents);
            let range = self.gather(&mut extents);
            self.collector.batches[number].extents = extents;
            self.collector.order.push_back(number);
            issued = true;
            self.read_batch(now, number, range);
        }
        issued
    }

    /// Steps over the next extents of the victim whose payloads lie on neighbouring pages: a page is
    /// read whole by the die, so what lies between costs only its transfer. Returns the bytes to read,
    /// none when only trim records were met.
    fn gather(&mut self, extents: &mut Vec<(u32, u32)>) -> core::ops::Range<u64> {
        let page_bytes = u64::from(self.geometry.page_bytes);
        extents.clear();
        let mut range = 0..0_u64;
        while let Some((slot, entry)) = self.directory.walk_peek() {
            let start = u64::from(entry.offset16) * 16 + u64::from(EXTENT_HEADER_BYTES);
            let end = start + u64::from(entry.stored_bytes);
            let has_payload = entry.stored_bytes > 0;
            let joins = range.is_empty()
                || !has_payload
                || (start >= range.start
                    && start / page_bytes <= range.end.div_ceil(page_bytes)
                    && end - range.start <= RELOCATION_BYTES_MAX);
            if extents.len() == RELOCATION_EXTENTS_MAX || !joins {
                break;
            }
            if has_payload {
                range = if range.is_empty() { start..end } else { range.start..range.end.max(end) };
            }
            extents.push((slot, entry.offset16));
            self.directory.walk_step();
        }
        range
    }

    /// Appends what was read, in order, until something must be waited for.
    fn append_relocated(&mut self, now: Nanos) -> bool {
        let mut went_on = false;
        while let Some(&number) = self.collector.order.front() {
            if !self.collector.batches[number].is_read {
                break;
            }
            let mut batch = core::mem::take(&mut self.collector.batches[number]);
            let done = self.append_batch(now, &mut batch).is_ok();
            self.collector.batches[number] = batch;
            if !done {
                break;
            }
            self.collector.order.pop_front();
            self.collector.vacant.push(number);
            went_on = true;
        }
        went_on
    }

    /// Ends writing when retired superblocks have used up what is kept free to copy to: the victim, from which alone
    /// another could come, cannot be emptied.
    fn give_up_if_stuck(&mut self, footprint: u32) {
        let open = self.streams[StreamKind::Relocation.index()].open;
        let has_room = open.is_some_and(|open| open.fill + u64::from(footprint) <= self.limits.superblock_bytes);
        if let Some(error) = self.collector.retired.filter(|_| self.superblocks_free == 0 && !has_room) {
            self.fail(error);
        }
    }

    fn append_batch(&mut self, now: Nanos, batch: &mut Batch) -> Result<(), Backpressure> {
        let victim = self.collector.victim;
        while let Some(&(slot, offset16)) = batch.extents.get(batch.moved) {
            let Some(&entry) = self.directory.resident(slot, victim, offset16) else {
                batch.moved += 1;
                continue;
            };
            if let Err(refused) = self.reserve(now, StreamKind::Relocation, entry.footprint()) {
                self.give_up_if_stuck(entry.footprint());
                return Err(refused);
            }
            if entry.kind == ExtentKind::Trim && self.has_bug(Bug::DropTrimRecords) {
                let open = self.streams[StreamKind::Relocation.index()].open.expect("reserve opened one");
                self.directory.relocate(slot, open.superblock, (open.fill / 16) as u32, false);
                batch.moved += 1;
                continue;
            }
            let lost;
            let payload = match &batch.data {
                _ if !self.params.with_data => None,
                _ if entry.stored_bytes == 0 => Some([].as_slice()),
                Some(data) => {
                    let start = u64::from(offset16) * 16 + u64::from(EXTENT_HEADER_BYTES) - batch.offset_bytes;
                    Some(&data[start as usize..start as usize + entry.stored_bytes as usize])
                }
                // The media could not read it. Its blocks must not fall back to older data, so a record
                // without the bytes goes on in its place, and reads of it fail.
                None => {
                    lost = vec![0; entry.stored_bytes as usize];
                    Some(lost.as_slice())
                }
            };
            let is_read = batch.data.is_some() || entry.stored_bytes == 0 || !self.params.with_data;
            let damaged = entry.damaged
                || !is_read
                || (entry.kind == ExtentKind::Data
                    && payload.is_some_and(|bytes| crc32c::crc32c(bytes) != entry.checksum));
            let record = Record {
                kind: entry.kind,
                damaged,
                slba: Lba(u64::from(entry.slba)),
                blocks: entry.blocks,
                raw_bytes: entry.raw_bytes,
                stored_bytes: entry.stored_bytes,
                tag: entry.tag,
                checksum: entry.checksum,
                sequence: entry.sequence,
                superblock: 0,
                offset16: 0,
            };
            self.append_relocated_record(now, (slot, offset16), &record, payload);
            batch.moved += 1;
        }
        Ok(())
    }

    fn append_relocated_record(
        &mut self,
        now: Nanos,
        (slot, from_offset16): (u32, u32),
        record: &Record,
        payload: Option<&[u8]>,
    ) {
        self.counters.relocated_bytes += u64::from(record.stored_bytes);
        self.counters.relocated_extents += 1;
        self.counters.damaged_relocated += u64::from(record.damaged);
        let (superblock, offset16) = self.place(now, StreamKind::Relocation, record, payload);
        self.program_if_full(now, StreamKind::Relocation);
        self.directory.relocate(slot, superblock, offset16, record.damaged);
        self.collector.moved.push(Moved { slot, from_offset16, superblock, offset16 });
    }

    /// Nothing lives in the victim any more: makes sure of it before the erase.
    fn retire_victim(&mut self, now: Nanos) {
        self.pad_page(now, StreamKind::Relocation);
        let killed_by = self.directory.residents(self.collector.victim).killed_by;
        let host = &self.streams[StreamKind::Host.index()];
        if killed_by > host.issued_append() && !self.has_bug(Bug::EraseBeforeKillerIsDurable) {
            self.pad_page(now, StreamKind::Host);
        }
        if self.has_bug(Bug::EraseBeforeSync) {
            self.collector.moved.clear();
            self.collector.phase = Phase::Draining;
            return;
        }
        self.collector.phase = Phase::Syncing;
        self.request_sync(now, Asker::Collection);
    }

    /// Erases the victim once nobody reads it.
    fn erase_victim(&mut self, now: Nanos) -> bool {
        let victim = self.collector.victim;
        if self.superblocks[victim as usize].readers > 0 && !self.has_bug(Bug::EraseUnderReader) {
            return false;
        }
        self.collector.phase = Phase::Erasing;
        self.issue_erase(now, victim);
        true
    }
}
