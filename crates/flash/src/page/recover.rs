//! The map from what is on the media.
//!
//! 1. Spare blocks that hold pages say whose place they take. Both areas are read; of the two copies of each record
//!    whichever can be read. The newest whole checkpoint counts; without one the map is empty. The blocks that it and
//!    the journal behind it call bad are not used again.
//! 2. Of each superblock of the log, slots are read until one says its life.
//! 3. Superblocks of a life since the checkpoint began are read to the end, and those that were open then
//!    from the place that the root names. The newest version of each unit found counts; a copy has the
//!    sequence of its original.
//! 4. Where nothing was found, the checkpoint's entry counts, unless it points to what was read in 3.
//! 5. Trims on record kill what is older.
//!
//! Reads are bounded: the areas, a slot or so of each superblock and spare block, and the superblocks opened since the
//! checkpoint began, of which there are at most twice `checkpoint_superblocks` and those that collection
//! opened meanwhile. Nothing is written: a recovery that is cut short changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::config::{ENTRIES_PER_MAP_PAGE, PageFtlConfig};
use super::ftl::{NONE, PageFtl};
use super::media::{BadBlock, PageMedia, Record, Root, SlotState, TrimRecord, Unit};
use super::planted::PageBug;
use super::space::SuperblockState;
use crate::array::ConfigError;

/// What a recovery read and found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageRecovery {
    /// Number of the checkpoint that was used; 0 without one.
    pub checkpoint: u64,
    /// Slots read of the checkpoint areas.
    pub area_slots_read: u64,
    /// Slots of the area in use that cannot be read. What they held was read from its other copy, or never counted.
    pub area_slots_torn: u64,
    /// Blocks that are known to have gone bad.
    pub blocks_bad: u64,
    /// Slots read to learn the lives of superblocks, and whose place spare blocks take.
    pub probe_slots_read: u64,
    /// Slots read of superblocks written since the checkpoint began.
    pub scan_slots_read: u64,
    /// Superblocks written since the checkpoint began.
    pub superblocks_scanned: u32,
    /// Torn slots met.
    pub torn_slots: u64,
    /// Units mapped.
    pub units: u64,
    /// Trims that were on record since the checkpoint began.
    pub trims: u64,
    /// Superblocks of copies that were dropped, because their originals are whole and space is short.
    pub copies_dropped: u32,
    /// Stripes whose die or plane does not answer; with any the device is read-only.
    pub dead_stripes: u32,
    /// One of them is on no checkpoint: units that were written there since may read as older versions, or as
    /// never written.
    pub unvouched: bool,
}

/// A version of a unit that was found.
#[derive(Debug, Clone, Copy)]
struct Found {
    sequence: u64,
    unit: u32,
    rank: Rank,
}

/// Which of two copies of one version stands: the one that collection wrote, and of two such the one in the younger
/// superblock. The other one's superblock may be on the way out, half erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_copy: bool,
    life: u64,
}

const NOTHING: Found = Found { sequence: 0, unit: NONE, rank: Rank { is_copy: false, life: 0 } };

/// What the current area says.
#[derive(Debug, Clone, Default)]
struct Area {
    number: u64,
    area: u32,
    next_record: u32,
    slots_torn: u64,
    root: Root,
    map: Vec<u32>,
    trims: Vec<TrimRecord>,
    bad: Vec<BadBlock>,
}

impl Area {
    /// Takes what the journal says, in its order; most of it twice.
    fn take_journal(&mut self, journal: BTreeMap<(u32, u32), (Vec<TrimRecord>, Vec<BadBlock>)>) {
        for (trims, bad) in journal.into_values() {
            self.trims.extend(trims);
            let is_new = |block: &BadBlock| !self.bad.contains(block);
            let new: Vec<BadBlock> = bad.into_iter().filter(is_new).collect();
            self.bad.extend(new);
        }
    }
}

/// What is known of a superblock.
#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    life: u64,
    erases: u32,
    /// Slots that may be programmed end here.
    end: u32,
    /// The stream that wrote it.
    stream: u32,
    /// First unit that was read in the scan; `NONE` when it was not.
    scanned_from: u32,
}

struct Recovery<M: PageMedia> {
    ftl: PageFtl<M>,
    report: PageRecovery,
    found: Vec<Found>,
    probes: Vec<Probe>,
    sequence: u64,
    area: Area,
    dead: BTreeSet<u32>,
}

impl<M: PageMedia> PageFtl<M> {
    /// Recovers a device from its media.
    ///
    /// # Errors
    /// The first value of the configuration that cannot work, or one that keeps nothing to recover from.
    pub fn recover(config: &PageFtlConfig, seed: u64, media: M) -> Result<(PageFtl<M>, PageRecovery), ConfigError> {
        PageFtl::recover_with(config, seed, media, None)
    }

    /// As [`PageFtl::recover`], with a known bug planted from the start.
    ///
    /// # Errors
    /// As [`PageFtl::recover`].
    #[cfg(any(test, feature = "planted"))]
    pub fn recover_planted(
        config: &PageFtlConfig,
        seed: u64,
        media: M,
        bug: Option<PageBug>,
    ) -> Result<(PageFtl<M>, PageRecovery), ConfigError> {
        PageFtl::recover_with(config, seed, media, bug)
    }

    fn recover_with(
        config: &PageFtlConfig,
        seed: u64,
        media: M,
        bug: Option<PageBug>,
    ) -> Result<(PageFtl<M>, PageRecovery), ConfigError> {
        config.validate()?;
        if config.ftl.checkpoint_superblocks == 0 || !M::KEEPS {
            let reason = "nothing was kept to recover from; create a new device instead";
            return Err(ConfigError::new("ftl.checkpoint_superblocks", config.ftl.checkpoint_superblocks, reason));
        }
        let mut ftl = PageFtl::build(config, seed, media);
        ftl.bug = bug;
        let superblocks = ftl.superblocks.len();
        let entries = ftl.map.len() as usize;
        let mut recovery = Recovery {
            ftl,
            report: PageRecovery::default(),
            found: vec![NOTHING; entries],
            probes: vec![Probe { scanned_from: NONE, ..Probe::default() }; superblocks],
            sequence: 0,
            area: Area::default(),
            dead: BTreeSet::new(),
        };
        recovery.read_areas();
        recovery.probe();
        recovery.scan();
        recovery.apply();
        recovery.set_up();
        Ok((recovery.ftl, recovery.report))
    }
}

impl<M: PageMedia> Recovery<M> {
    fn data_superblocks(&self) -> core::ops::Range<u32> {
        2 * self.ftl.sizes.area_superblocks..self.ftl.sizes.superblocks
    }

    fn slots(&self) -> u32 {
        self.ftl.sizes.slots_per_superblock
    }

    /// Step 1.
    fn read_areas(&mut self) {
        let factory_bad = self.ftl.media.factory_bad().to_vec();
        self.ftl.leave_out(&factory_bad);
        let stand_ins = self.ftl.find_stand_ins();
        let spares = u64::from(self.ftl.config.ftl.spare_blocks_per_plane);
        self.report.probe_slots_read += spares * self.ftl.spares.len() as u64;
        // The areas themselves may lie in spare blocks.
        stand_ins.iter().for_each(|&bad| self.ftl.media.stand_in(bad));
        let areas = [self.read_area(0), self.read_area(1)];
        let prefers_old = self.ftl.has_bug(PageBug::StaleCheckpoint);
        let [first, second] = areas;
        let first_counts = match (first.number, second.number) {
            (0, 0) => true,
            (one, other) if one == 0 || other == 0 => one > other,
            (one, other) => (one > other) != prefers_old,
        };
        self.area = if first_counts { first } else { second };
        self.report.checkpoint = self.area.number;
        self.report.area_slots_torn = self.area.slots_torn;
        self.sequence = self.area.root.sequence;
        self.ftl.restore_bad_blocks(std::mem::take(&mut self.area.bad), &stand_ins);
        self.report.blocks_bad = self.ftl.bad.table.len() as u64;
    }

    fn read_area(&mut self, area: u32) -> Area {
        let slots = self.ftl.sizes.area_superblocks * self.slots();
        let mut found = Area { area, ..Area::default() };
        let mut parts: BTreeMap<(u64, u32), Vec<u32>> = BTreeMap::new();
        let (mut root, mut journal) = (None, BTreeMap::new());
        let mirror = self.ftl.checkpoints.mirrors[area as usize].clone();
        let reads_first_only = self.ftl.has_bug(PageBug::FirstCopyOnly);
        for slot in (0..slots).filter(|&slot| !reads_first_only || !mirror.is_copy(slot)) {
            self.report.area_slots_read += 1;
            let record = match self.ftl.media.slot(area * slots + slot) {
                SlotState::Erased => continue,
                SlotState::Torn => {
                    self.report.torn_slots += 1;
                    found.slots_torn += 1;
                    found.next_record = mirror.first_record_from(slot + 1);
                    continue;
                }
                SlotState::Dead => {
                    self.dead.insert(slot % self.ftl.sizes.stripes);
                    continue;
                }
                SlotState::Whole { record, .. } => record,
            };
            found.next_record = mirror.first_record_from(slot + 1);
            match record {
                Record::Map { checkpoint, part, entries } => {
                    parts.insert((checkpoint, part), entries);
                }
                Record::Journal { trims, bad } => {
                    journal.insert((mirror.record_of(slot), slot), (trims, bad));
                }
                Record::Root { checkpoint, root: found } => root = Some((checkpoint, found)),
                Record::Data { .. } => {}
            }
        }
        found.take_journal(journal);
        if root.is_none() && self.ftl.has_bug(PageBug::CheckpointWithoutRoot) {
            root = parts
                .keys()
                .next()
                .map(|&(checkpoint, _)| (checkpoint, Root { life: u64::MAX >> 1, ..Root::default() }));
        }
        let Some((number, root)) = root else { return found };
        let count = parts.range((number, 0)..=(number, u32::MAX)).count();
        if count == self.ftl.sizes.map_slots as usize || self.ftl.has_bug(PageBug::CheckpointWithoutRoot) {
            let part_entries = ENTRIES_PER_MAP_PAGE as usize * self.ftl.sizes.slot_units as usize;
            found.map = vec![NONE; self.ftl.map.len() as usize];
            for (&(_, part), entries) in parts.range((number, 0)..=(number, u32::MAX)) {
                let start = part as usize * part_entries;
                found.map[start..start + entries.len()].copy_from_slice(entries);
            }
            (found.number, found.root) = (number, root);
        }
        found
    }

    /// Step 2.
    fn probe(&mut self) {
        for superblock in self.data_superblocks() {
            let mut first_row_is_erased = true;
            for slot in 0..self.slots() {
                if slot == self.ftl.sizes.stripes && first_row_is_erased {
                    break;
                }
                self.report.probe_slots_read += 1;
                match self.ftl.media.slot(superblock * self.slots() + slot) {
                    SlotState::Whole { life, record: Record::Data { stream, erases, .. } } => {
                        let probe = &mut self.probes[superblock as usize];
                        *probe = Probe { life, erases, end: 0, stream, scanned_from: NONE };
                        break;
                    }
                    SlotState::Erased => {}
                    _ => first_row_is_erased = false,
                }
            }
        }
    }

    /// Step 3.
    fn scan(&mut self) {
        let root = self.area.root.clone();
        for superblock in self.data_superblocks() {
            let probe = self.probes[superblock as usize];
            let base = superblock * self.ftl.sizes.superblock_units;
            let open = root.open.iter().find(|&&(number, life, _)| number == superblock && life == probe.life);
            let from = match open {
                _ if probe.life == 0 => continue,
                _ if probe.life >= root.life => base,
                Some(_) if self.ftl.has_bug(PageBug::ScanWithoutOpen) => continue,
                Some(&(_, _, from)) if self.ftl.has_bug(PageBug::ScanOneSlotLate) => from + self.ftl.sizes.slot_units,
                Some(&(_, _, from)) => from,
                None => continue,
            };
            self.probes[superblock as usize].scanned_from = from;
            self.report.superblocks_scanned += 1;
            self.scan_superblock(superblock, (from - base) / self.ftl.sizes.slot_units);
        }
    }

    fn scan_superblock(&mut self, superblock: u32, first: u32) {
        let Probe { life, stream, scanned_from: from, .. } = self.probes[superblock as usize];
        let rank = self.rank(stream, life);
        self.probes[superblock as usize].end = first;
        for slot in first..self.slots() {
            self.report.scan_slots_read += 1;
            let number = superblock * self.slots() + slot;
            match self.ftl.media.slot(number) {
                SlotState::Erased => continue,
                SlotState::Torn => self.report.torn_slots += 1,
                SlotState::Dead => continue,
                SlotState::Whole { record: Record::Data { units, .. }, .. } => {
                    let places = number * self.ftl.sizes.slot_units..;
                    // A slot that was open when the checkpoint began: its first units are the checkpoint's.
                    for (place, unit) in places.zip(&units).filter(|&(place, _)| place >= from) {
                        self.find(unit, place, rank);
                    }
                }
                SlotState::Whole { .. } => {}
            }
            self.probes[superblock as usize].end = slot + 1;
        }
    }

    fn rank(&self, stream: u32, life: u64) -> Rank {
        let is_copy = stream as usize == self.ftl.collection_stream() && !self.ftl.has_bug(PageBug::OriginalStands);
        Rank { is_copy, life }
    }

    fn find(&mut self, unit: &Unit, place: u32, rank: Rank) {
        self.sequence = self.sequence.max(unit.sequence);
        let found = &mut self.found[unit.lpn as usize];
        let is_newer = unit.sequence > found.sequence || self.ftl.has_bug(PageBug::IgnoreSequence);
        if found.unit == NONE || is_newer || (unit.sequence == found.sequence && rank > found.rank) {
            *found = Found { sequence: unit.sequence, unit: place, rank };
        }
    }

    /// Steps 4 and 5.
    fn apply(&mut self) {
        for lpn in 0..self.found.len() {
            let entry = self.area.map.get(lpn).copied().unwrap_or(NONE);
            if entry == NONE {
                continue;
            }
            let superblock = self.ftl.split.superblock_units.quotient(entry);
            // Of a superblock that says nothing the entry counts, too: what collection moved out of it is found
            // elsewhere, and the rest cannot be read.
            if self.probes[superblock as usize].scanned_from > entry && self.found[lpn].unit == NONE {
                self.found[lpn] = Found { unit: entry, ..NOTHING };
            }
        }
        let since = self.area.root.sequence;
        for trim in std::mem::take(&mut self.area.trims) {
            self.sequence = self.sequence.max(trim.sequence);
            if trim.sequence <= since {
                continue;
            }
            self.report.trims += 1;
            for lpn in trim.lpn..trim.lpn + trim.count {
                if self.found[lpn as usize].sequence < trim.sequence {
                    self.found[lpn as usize] = NOTHING;
                }
            }
        }
    }

    /// The FTL as if it had never stopped.
    fn set_up(&mut self) {
        for lpn in 0..self.found.len() {
            let unit = self.found[lpn].unit;
            if unit != NONE {
                self.map_unit(lpn as u32, unit);
                self.report.units += 1;
            }
        }
        let restarts = self.ftl.has_bug(PageBug::SequenceRestarts);
        self.ftl.sequence = if restarts { self.report.units } else { self.sequence };
        let lives = self.probes.iter().map(|probe| probe.life);
        self.ftl.next_life = lives.max().unwrap_or(0).max(self.area.root.life).max(1) + 1;
        let checkpoints = &mut self.ftl.checkpoints;
        (checkpoints.number, checkpoints.current) = (self.area.number, self.area.area);
        checkpoints.next_record = self.area.next_record;
        checkpoints.opened = self.report.superblocks_scanned;
        // Behind the last slot that can be read a dead one may hold units: a checkpoint that calls its superblock
        // open would have the next recovery look for them there, and find nothing.
        if self.dead.is_empty() || self.ftl.has_bug(PageBug::ReopenBesideDeath) {
            self.reopen();
        }
        self.close_the_rest();
        self.ftl.check_capacity();
        self.ftl.lost = self.lost_units();
        if self.dead.is_empty() {
            self.drop_copies();
        } else {
            self.mourn();
        }
        if self.area.slots_torn > 0 {
            // So that there are two copies of all again.
            self.ftl.checkpoints.start_early();
        }
        // Whatever is due begins with the first request.
        self.ftl.collector.kick = true;
        self.ftl.checkpoints.kick = true;
    }

    /// Something is dead. A checkpoint that did not know is the last: the next recovery must not believe that
    /// one did.
    fn mourn(&mut self) {
        self.report.dead_stripes = self.dead.len() as u32;
        self.report.unvouched = self.dead.iter().any(|stripe| !self.area.root.dead.contains(stripe));
        self.ftl.dead = std::mem::take(&mut self.dead);
        self.ftl.read_only = true;
        if self.report.unvouched {
            self.ftl.checkpoints.give_up();
        } else {
            self.ftl.checkpoints.dead_at_seal = self.ftl.dead.len();
        }
    }

    fn map_unit(&mut self, lpn: u32, unit: u32) {
        self.ftl.map.set(lpn, unit);
        self.ftl.reverse.set(unit, lpn);
        let superblock = self.ftl.split.superblock_units.quotient(unit);
        self.ftl.superblocks[superblock as usize].valid += 1;
    }

    /// Each stream goes on in its youngest superblock, behind the last slot that is not erased, if anything in it is
    /// valid: nothing is valid in a superblock whose erase has begun, and what such an erase left is not to be
    /// programmed, however erased it looks.
    fn reopen(&mut self) {
        for stream in 0..self.ftl.streams.len() {
            let range = self.data_superblocks();
            let mine = range.filter(|&number| {
                let probe = &self.probes[number as usize];
                probe.life > 0 && probe.stream == stream as u32 && probe.scanned_from != NONE
            });
            let Some(number) = mine.max_by_key(|&number| self.probes[number as usize].life) else { continue };
            let probe = self.probes[number as usize];
            let is_empty = self.ftl.superblocks[number as usize].valid == 0;
            let is_failing = self.ftl.superblocks[number as usize].is_failing;
            if probe.end == self.slots() || is_failing || (is_empty && !self.ftl.has_bug(PageBug::ReopenEmpty)) {
                continue;
            }
            self.ftl.superblocks[number as usize].state = SuperblockState::Open;
            self.ftl.streams[stream].superblock = number;
            self.ftl.streams[stream].next_slot = probe.end;
            self.ftl.write_superblock(number, probe.end);
        }
    }

    /// All other superblocks are closed, oldest first: those that hold nothing are the first victims, as
    /// nobody knows whether they are wholly erased.
    fn close_the_rest(&mut self) {
        let mut rest: Vec<u32> = self.data_superblocks().collect();
        rest.sort_by_key(|&number| self.probes[number as usize].life);
        for number in rest {
            let probe = self.probes[number as usize];
            let superblock = &mut self.ftl.superblocks[number as usize];
            (superblock.life, superblock.erases) = (probe.life, probe.erases);
            match superblock.state {
                SuperblockState::Open | SuperblockState::Retired => {}
                _ if superblock.is_failing && superblock.valid == 0 => self.ftl.retire(number),
                _ => self.ftl.close(number),
            }
        }
    }

    /// Units whose bytes were lost before they were moved.
    fn lost_units(&self) -> BTreeSet<u32> {
        let is_lost = |lpn: &u32| {
            let unit = self.ftl.map.get(*lpn);
            unit != NONE && self.unit_at(unit).is_none_or(|unit| unit.lost)
        };
        // Only what was read in the scan is known to have been moved since; the rest says so when read.
        let scanned = |lpn: &u32| self.found[*lpn as usize].sequence > 0;
        (0..self.found.len() as u32).filter(scanned).filter(is_lost).collect()
    }

    fn unit_at(&self, unit: u32) -> Option<Unit> {
        let slot_units = self.ftl.sizes.slot_units;
        match self.ftl.media.slot(unit / slot_units) {
            SlotState::Whole { record: Record::Data { units, .. }, .. } => {
                units.get((unit % slot_units) as usize).copied()
            }
            _ => None,
        }
    }

    /// A cut in the middle of a victim leaves half of it copied, and the copies stand. Where no superblock is
    /// empty and what is left of the victim does not fit into what is open (cut after cut tears slots), the
    /// originals stand instead, so that the superblock of the copies becomes empty. It is erased once a
    /// checkpoint says so.
    fn drop_copies(&mut self) {
        let ftl = &mut self.ftl;
        let Some(emptiest) = ftl.candidates.emptiest(&ftl.superblocks) else { return };
        if u64::from(ftl.superblocks[emptiest as usize].valid) <= ftl.collection_room() {
            return;
        }
        let stream = ftl.collection_stream();
        let copies = (0..ftl.sizes.superblocks).filter(|&number| {
            let probe = &self.probes[number as usize];
            probe.life > 0 && probe.stream == stream as u32
        });
        let Some(number) = copies.max_by_key(|&number| self.probes[number as usize].life) else { return };
        let is_copy = |unit: u32| unit != NONE && self.ftl.split.superblock_units.quotient(unit) == number;
        let copied = (0..self.ftl.map.len()).filter(|&lpn| is_copy(self.ftl.map.get(lpn)));
        let copied: BTreeMap<u32, Option<u64>> =
            copied.map(|lpn| (lpn, self.unit_at(self.ftl.map.get(lpn)).map(|unit| unit.sequence))).collect();
        let originals = self.find_originals(number, &copied);
        if originals.len() < copied.len() {
            return;
        }
        self.detach(number, stream);
        for (lpn, unit) in originals {
            let (from, to) = (number, self.ftl.split.superblock_units.quotient(unit));
            for (number, more) in [(from, false), (to, true)] {
                let state = self.ftl.superblocks[number as usize];
                self.ftl.candidates.remove(number, state.valid, state.erases);
                let valid = if more { state.valid + 1 } else { state.valid - 1 };
                self.ftl.superblocks[number as usize].valid = valid;
                self.ftl.candidates.insert(number, valid, state.erases);
            }
            self.ftl.map.set(lpn, unit);
            self.ftl.reverse.set(unit, lpn);
        }
        self.ftl.checkpoints.hold(number);
        self.report.copies_dropped += 1;
    }

    /// Where else, in a closed superblock, the same versions lie. Reads the whole log: this is rare.
    fn find_originals(&mut self, number: u32, copied: &BTreeMap<u32, Option<u64>>) -> BTreeMap<u32, u32> {
        let mut originals = BTreeMap::new();
        for superblock in self.data_superblocks().filter(|&other| other != number) {
            if self.ftl.superblocks[superblock as usize].state != SuperblockState::Closed {
                continue;
            }
            for slot in superblock * self.slots()..(superblock + 1) * self.slots() {
                self.report.scan_slots_read += 1;
                let SlotState::Whole { record: Record::Data { units, .. }, .. } = self.ftl.media.slot(slot) else {
                    continue;
                };
                for (place, unit) in (slot * self.ftl.sizes.slot_units..).zip(units) {
                    if copied.get(&unit.lpn) == Some(&Some(unit.sequence)) && !unit.lost {
                        originals.insert(unit.lpn, place);
                    }
                }
            }
        }
        originals
    }

    /// A stream leaves its superblock, which is closed.
    fn detach(&mut self, number: u32, stream: usize) {
        if self.ftl.streams[stream].superblock == number {
            self.ftl.streams[stream].superblock = NONE;
            self.ftl.writing.retain(|writing| writing.superblock != number);
            self.ftl.close(number);
        }
    }
}
