//! What makes the map survive a loss of power: checkpoints, and a record of trims.
//!
//! Two *areas* of superblocks take turns. A checkpoint is written into the one that holds the older, slot by
//! slot, while everything else goes on:
//!
//! 1. the area is erased;
//! 2. the checkpoint *begins*: sequence, life, and the place of each open superblock are noted. Recovery
//!    reads everything written from here on;
//! 3. the parts of the map are written, each as it is when it is written;
//! 4. open slots are programmed as they are, and once everything that a part may name is programmed, the
//!    trims since 2 are written;
//! 5. the root is written. With it the checkpoint counts, and its area is the *current* one.
//!
//! Trims are recorded in the current area behind the checkpoint. Between 4 and 5 they wait.
//!
//! A part of the map may name units that were written after 2: those are found in the superblocks, newest
//! first, so that recovery does not believe the part there. All the same they must be programmed before the
//! checkpoint counts (4): the version before them, which may have been flushed, is in no part.

use super::PageMedia;
use super::config::{AREA_SLOTS_MORE, ENTRIES_PER_MAP_PAGE};
use super::ftl::{AreaKind, NONE, PageFtl, Task};
use super::media::{Record, Root, TrimRecord};
use super::planted::PageBug;
use crate::array::{Class, JobKind};
use crate::{BLOCK_BYTES, Nanos};

/// Trims that one unit of 4 KiB records, 24 bytes each.
const TRIMS_PER_UNIT: usize = 170;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Idle,
    Erasing,
    Map,
    /// The parts are written; open slots are not yet.
    Open,
    /// Slots of the log that a part may name are in flight.
    Drain,
    Trims,
    Root,
}

/// State of checkpoints.
#[derive(Debug, Clone, Default)]
pub(crate) struct Checkpoints {
    /// A superblock was opened since `checkpoint` last looked.
    pub kick: bool,
    /// Parity of the checkpoint that began last: slots of the log are counted by it.
    pub era: usize,
    /// Slots of the log in flight, by era.
    pub in_flight: [u32; 2],
    /// Superblocks opened since the last checkpoint began.
    pub opened: u32,
    /// Superblocks opened between the beginning of the last whole checkpoint and that of the one that is
    /// being written.
    opened_before: u32,
    phase: Phase,
    /// Number of the last whole checkpoint.
    pub number: u64,
    /// The area that holds it, 0 or 1.
    pub current: u32,
    /// Next slot of the current area.
    pub next_slot: u32,
    /// Next slot of the other area.
    target_slot: u32,
    erases_left: u32,
    next_part: u32,
    /// Slots of the other area in flight.
    writes_in_flight: u32,
    root: Root,
    /// Trims that are not on record, in order.
    pub unsaved: Vec<TrimRecord>,
    /// A record of trims is being written.
    is_saving: bool,
    /// Trims that are on record in the current area, since the checkpoint that is being written began.
    carried: Vec<TrimRecord>,
    /// Trims up to this sequence come with the checkpoint.
    carried_through: u64,
    /// The current area is full: a checkpoint begins early.
    is_full: bool,
    /// Stripes that were dead when the checkpoint that is being written began.
    dead_at_start: usize,
    /// The same of the last whole one.
    pub dead_at_seal: usize,
    /// What is left of the areas holds no checkpoint: there will be none.
    is_given_up: bool,
    /// Superblock that the last checkpoint may still name: not erased before the next one is whole.
    held: Option<u32>,
}

impl Checkpoints {
    /// Keeps a superblock until a checkpoint that begins from now on is whole.
    pub(crate) fn hold(&mut self, superblock: u32) {
        self.held = Some(superblock);
        self.is_full = true;
    }

    /// A checkpoint begins at the next occasion.
    pub(crate) fn start_early(&mut self) {
        self.is_full = true;
        self.kick = true;
    }

    /// No checkpoint is written any more.
    pub(crate) fn give_up(&mut self) {
        self.phase = Phase::Idle;
        self.is_given_up = true;
    }

    /// Whether no checkpoint comes, and nothing is in flight that would make more survive.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_given_up && !self.is_saving && self.in_flight == [0, 0]
    }

    pub(crate) fn holds(&self, superblock: u32) -> bool {
        self.held == Some(superblock)
    }

    /// The first trim that is not on record, `u64::MAX` when all are.
    pub(crate) fn first_unsaved(&self) -> u64 {
        self.unsaved.first().map_or(u64::MAX, |trim| trim.sequence)
    }
}

impl<M: PageMedia> PageFtl<M> {
    fn keeps_checkpoints(&self) -> bool {
        self.config.ftl.checkpoint_superblocks > 0
    }

    fn area_slots(&self) -> u32 {
        self.sizes.area_superblocks * self.sizes.slots_per_superblock
    }

    fn trims_per_slot(&self) -> usize {
        self.sizes.slot_units as usize * TRIMS_PER_UNIT
    }

    /// Whether a superblock must not be opened before the checkpoint is whole: recovery would read too much.
    pub(crate) fn must_checkpoint_first(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let opened = checkpoints.opened + checkpoints.opened_before;
        self.keeps_checkpoints() && opened >= 2 * self.config.ftl.checkpoint_superblocks
    }

    /// Whether another trim fits into what a checkpoint carries.
    pub(crate) fn has_room_for_trim(&self) -> bool {
        // One slot is for the root, one for trims afterwards.
        let slots = self.area_slots().saturating_sub(self.sizes.map_slots + 2) as usize;
        let trims = self.checkpoints.unsaved.len() + self.checkpoints.carried.len();
        !self.keeps_checkpoints() || trims < slots * self.trims_per_slot()
    }

    pub(crate) fn record_trim(&mut self, trim: TrimRecord) {
        if self.keeps_checkpoints() && !self.has_bug(PageBug::ForgetTrim) {
            self.checkpoints.unsaved.push(trim);
            if self.checkpoints.unsaved.len() >= self.trims_per_slot() {
                self.save_trims();
            }
        }
    }

    /// Puts trims on record, unless that is under way or comes with the checkpoint.
    pub(crate) fn save_trims(&mut self) {
        let per_slot = self.trims_per_slot();
        let area_slots = self.area_slots();
        let next_slot = self.live_area_slot(self.checkpoints.next_slot);
        let checkpoints = &mut self.checkpoints;
        let waits = checkpoints.is_saving || matches!(checkpoints.phase, Phase::Trims | Phase::Root);
        if waits || checkpoints.unsaved.is_empty() {
            return;
        }
        if next_slot == area_slots {
            checkpoints.start_early();
            return;
        }
        let trims: Vec<_> = checkpoints.unsaved.iter().take(per_slot).copied().collect();
        let through = trims.last().map_or(0, |trim| trim.sequence);
        checkpoints.is_saving = true;
        let slot = checkpoints.current * area_slots + next_slot;
        checkpoints.next_slot = next_slot + 1;
        self.counters.trim_slots_programmed += 1;
        self.write_area(slot, AreaKind::Trims { through }, Record::Trims { trims });
    }

    fn write_area(&mut self, slot: u32, kind: AreaKind, record: Record) {
        let record = M::KEEPS.then_some(record);
        let bytes = self.sizes.slot_units * BLOCK_BYTES;
        self.issue(slot, JobKind::Program, Class::Host, bytes, Task::Area { slot, record, kind });
    }

    /// Writes a slot of the checkpoint that is under way.
    fn write_target(&mut self, kind: AreaKind, record: Record) {
        let target_slot = self.live_area_slot(self.checkpoints.target_slot);
        let slot = (1 - self.checkpoints.current) * self.area_slots() + target_slot;
        self.checkpoints.target_slot = target_slot + 1;
        self.checkpoints.writes_in_flight += 1;
        self.counters.map_slots_programmed += 1;
        self.write_area(slot, kind, record);
    }

    /// Takes the checkpoint on, as far as it goes now.
    pub(crate) fn checkpoint(&mut self) {
        self.checkpoints.kick = false;
        if !self.keeps_checkpoints() {
            return;
        }
        match self.checkpoints.phase {
            Phase::Idle => {
                let is_due = self.checkpoints.opened >= self.config.ftl.checkpoint_superblocks;
                if is_due || self.checkpoints.is_full {
                    self.erase_area();
                }
            }
            Phase::Map => self.write_map(),
            Phase::Open => self.close_open_slots(),
            Phase::Drain => self.carry_trims_once_safe(),
            Phase::Erasing | Phase::Trims | Phase::Root => {}
        }
    }

    /// Step 1.
    fn erase_area(&mut self) {
        if self.is_frozen() && self.live_area_slots(0) < self.sizes.map_slots + AREA_SLOTS_MORE as u32 {
            self.checkpoints.give_up();
        }
        if self.checkpoints.is_given_up {
            return;
        }
        let area = 1 - self.checkpoints.current;
        let count = self.sizes.area_superblocks;
        self.checkpoints.phase = Phase::Erasing;
        self.checkpoints.is_full = false;
        self.checkpoints.erases_left = count;
        for superblock in area * count..(area + 1) * count {
            self.erase(superblock, Class::Host);
        }
    }

    pub(crate) fn area_erased(&mut self) {
        self.checkpoints.erases_left -= 1;
        if self.checkpoints.erases_left == 0 {
            self.begin_checkpoint();
        }
    }

    /// Step 2.
    fn begin_checkpoint(&mut self) {
        let slots = self.sizes.slots_per_superblock;
        let streams = self.streams.iter().filter(|stream| stream.superblock != NONE);
        let open = streams.map(|stream| {
            let life = self.superblocks[stream.superblock as usize].life;
            let next = (stream.superblock * slots + stream.next_slot) * self.sizes.slot_units;
            (stream.superblock, life, if stream.fill > 0 { stream.base + stream.fill } else { next })
        });
        let dead = if self.has_bug(PageBug::ForgetDeath) { Vec::new() } else { self.dead.iter().copied().collect() };
        let root = Root { sequence: self.sequence, life: self.next_life, open: open.collect(), dead };
        let dead_at_start = self.dead.len();
        let checkpoints = &mut self.checkpoints;
        checkpoints.root = root;
        checkpoints.dead_at_start = dead_at_start;
        checkpoints.phase = Phase::Map;
        checkpoints.opened_before += checkpoints.opened;
        checkpoints.opened = 0;
        checkpoints.target_slot = 0;
        checkpoints.next_part = 0;
        checkpoints.writes_in_flight = 0;
        checkpoints.carried.clear();
        self.write_map();
    }

    /// Step 3.
    fn write_map(&mut self) {
        let in_flight_max = 2 * self.sizes.stripes;
        let part_entries = ENTRIES_PER_MAP_PAGE as usize * self.sizes.slot_units as usize;
        while self.checkpoints.next_part < self.sizes.map_slots && self.checkpoints.writes_in_flight < in_flight_max {
            let part = self.checkpoints.next_part;
            self.checkpoints.next_part += 1;
            let start = part as usize * part_entries;
            let end = (start + part_entries).min(self.map.len());
            let entries = if M::KEEPS { self.map[start..end].to_vec() } else { Vec::new() };
            let checkpoint = self.checkpoints.number + 1;
            self.write_target(AreaKind::Map, Record::Map { checkpoint, part, entries });
        }
        if self.checkpoints.next_part == self.sizes.map_slots {
            self.checkpoints.phase = Phase::Open;
            self.close_open_slots();
        }
    }

    /// The first half of step 4. The slot of collection waits while a victim is read, whose units were sure
    /// to fit into what is free.
    fn close_open_slots(&mut self) {
        let collection = self.collection_stream();
        if self.is_reading_victim() && self.streams[collection].fill > 0 {
            return;
        }
        for stream in 0..self.streams.len() {
            self.close_slot(stream);
        }
        self.checkpoints.era ^= 1;
        self.checkpoints.phase = Phase::Drain;
        self.carry_trims_once_safe();
    }

    fn carry_trims_once_safe(&mut self) {
        let checkpoints = &self.checkpoints;
        let is_safe = checkpoints.in_flight[checkpoints.era ^ 1] == 0 || self.has_bug(PageBug::SealBeforeWrites);
        if checkpoints.writes_in_flight == 0 && is_safe {
            self.carry_trims();
        }
    }

    /// The second half of step 4.
    fn carry_trims(&mut self) {
        self.checkpoints.phase = Phase::Trims;
        self.checkpoints.carried_through = self.sequence;
        let since = self.checkpoints.root.sequence;
        let checkpoints = &self.checkpoints;
        // What is being saved just now is in both.
        let unsaved = checkpoints.unsaved.iter().filter(|trim| trim.sequence > since);
        let trims: Vec<TrimRecord> = checkpoints.carried.iter().chain(unsaved).copied().collect();
        if self.is_frozen() {
            let slots = trims.len().div_ceil(self.trims_per_slot()) as u32 + 1;
            if self.live_area_slots(self.checkpoints.target_slot) < slots {
                self.checkpoints.give_up();
                return;
            }
        }
        let skips = self.has_bug(PageBug::SealWithoutTrims);
        for chunk in trims.chunks(self.trims_per_slot()).filter(|_| !skips) {
            self.write_target(AreaKind::CarriedTrims, Record::Trims { trims: chunk.to_vec() });
        }
        if self.checkpoints.writes_in_flight == 0 {
            self.write_root();
        }
    }

    /// Step 5.
    fn write_root(&mut self) {
        self.checkpoints.phase = Phase::Root;
        let (checkpoint, root) = (self.checkpoints.number + 1, self.checkpoints.root.clone());
        self.write_target(AreaKind::Root, Record::Root { checkpoint, root });
    }

    pub(crate) fn area_programmed(&mut self, slot: u32, record: Option<Record>, kind: AreaKind) {
        if let Some(record) = record {
            // The life of an area's superblock is not used; the numbers of checkpoints are.
            self.media.program(slot, 0, record);
        }
        if let AreaKind::Trims { through } = kind {
            self.trims_saved(through);
            return;
        }
        self.checkpoints.writes_in_flight -= 1;
        match kind {
            AreaKind::CarriedTrims if self.checkpoints.writes_in_flight == 0 => self.write_root(),
            AreaKind::Root => self.seal(),
            _ => {}
        }
    }

    fn trims_saved(&mut self, through: u64) {
        let checkpoints = &mut self.checkpoints;
        checkpoints.is_saving = false;
        let count = checkpoints.unsaved.partition_point(|trim| trim.sequence <= through);
        let saved = checkpoints.unsaved.drain(..count);
        if matches!(checkpoints.phase, Phase::Map | Phase::Open | Phase::Drain) {
            let since = checkpoints.root.sequence;
            checkpoints.carried.extend(saved.filter(|trim| trim.sequence > since));
        }
    }

    fn seal(&mut self) {
        let dead = self.dead.len();
        let checkpoints = &mut self.checkpoints;
        checkpoints.phase = Phase::Idle;
        if checkpoints.dead_at_start != dead {
            // A part of it may be gone: the next one knows.
            checkpoints.start_early();
            return;
        }
        checkpoints.dead_at_seal = dead;
        checkpoints.number += 1;
        checkpoints.current = 1 - checkpoints.current;
        checkpoints.next_slot = checkpoints.target_slot;
        checkpoints.opened_before = 0;
        checkpoints.held = None;
        checkpoints.carried.clear();
        let through = checkpoints.carried_through;
        checkpoints.unsaved.retain(|trim| trim.sequence > through);
        self.counters.checkpoints += 1;
        self.checkpoints.kick = true;
    }

    /// Whether a checkpoint is being written.
    #[must_use]
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoints.phase != Phase::Idle
    }

    /// Moves time on until nothing more happens by itself; returns when that is.
    pub fn settle(&mut self) -> Nanos {
        while let Some(at) = self.array.next_event() {
            self.advance(at);
        }
        self.now
    }
}
