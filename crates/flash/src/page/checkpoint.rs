//! What makes the map survive a loss of power: checkpoints, and a journal of trims and bad blocks.
//!
//! Two *areas* of superblocks take turns. A checkpoint is written into the one that holds the older, record by
//! record, while everything else goes on. Each record is programmed twice, on two dies (`mirror`), and counts once both
//! copies are programmed: recovery reads whichever it can.
//!
//! 1. the area is erased;
//! 2. the checkpoint *begins*: sequence, life, and the place of each open superblock are noted. Recovery
//!    reads everything written from here on;
//! 3. the parts of the map are written, each as it is when it is written;
//! 4. open slots are programmed as they are, and once everything that a part may name is programmed, the
//!    trims since 2 are written, and the table of bad blocks;
//! 5. the root is written. With it the checkpoint counts, and its area is the *current* one.
//!
//! If a die dies before 5, there is no root, and the next checkpoint knows what is dead. If one dies in 5, recovery
//! takes the root that lies on another die, and so the checkpoint counts here, too; it does not know of the death.
//!
//! Trims and blocks that go bad are recorded in the current area behind the checkpoint. Between 4 and 5 they wait.
//!
//! A part of the map may name units that were written after 2: those are found in the superblocks, newest
//! first, so that recovery does not believe the part there. All the same they must be programmed before the
//! checkpoint counts (4): the version before them, which may have been flushed, is in no part.

use super::PageMedia;
use super::config::{ENTRIES_PER_MAP_PAGE, NOTES_PER_UNIT};
use super::ftl::{AreaKind, NONE, PageFtl, Task};
use super::media::{BadBlock, Record, Root, TrimRecord};
use super::mirror::Mirror;
use super::planted::PageBug;
use crate::array::{Class, JobKind};
use crate::{BLOCK_BYTES, Nanos};

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
    Carried,
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
    /// Next record of the current area.
    pub next_record: u32,
    /// Next record of the other area.
    target_record: u32,
    /// Where the records of each area lie.
    pub mirrors: [Mirror; 2],
    erases_left: u32,
    next_part: u32,
    /// Slots of the other area in flight.
    writes_in_flight: u32,
    /// Slots of either area that failed and are programmed again.
    failed: Vec<u32>,
    root: Root,
    /// Trims that are not on record, in order.
    pub unsaved: Vec<TrimRecord>,
    /// Slots of a record of the journal in flight.
    saves_in_flight: u32,
    /// Trims that are on record in the current area, since the checkpoint that is being written began.
    carried: Vec<TrimRecord>,
    /// Trims up to this sequence come with the checkpoint.
    carried_through: u64,
    /// And so many entries of the table of bad blocks.
    carried_bad: usize,
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
    pub(crate) fn new(stripes: &[(u32, u32)]) -> Checkpoints {
        let mirror = Mirror::new(stripes, |_| true);
        Checkpoints { mirrors: [mirror.clone(), mirror], ..Checkpoints::default() }
    }

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
        self.is_given_up && self.saves_in_flight == 0 && self.in_flight == [0, 0]
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

    fn notes_per_slot(&self) -> usize {
        (self.sizes.slot_units * NOTES_PER_UNIT) as usize
    }

    /// Whether a superblock must not be opened before the checkpoint is whole: recovery would read too much.
    pub(crate) fn must_checkpoint_first(&self) -> bool {
        let checkpoints = &self.checkpoints;
        let opened = checkpoints.opened + checkpoints.opened_before;
        self.keeps_checkpoints() && opened >= 2 * self.config.ftl.checkpoint_superblocks
    }

    /// Whether another trim fits into what a checkpoint carries.
    pub(crate) fn has_room_for_trim(&self) -> bool {
        // One record is the root, one is for trims afterwards.
        let records = self.sizes.area_records - self.sizes.map_slots - self.sizes.bad_slots - 2;
        let trims = self.checkpoints.unsaved.len() + self.checkpoints.carried.len();
        !self.keeps_checkpoints() || trims < records as usize * self.notes_per_slot()
    }

    pub(crate) fn record_trim(&mut self, trim: TrimRecord) {
        if self.keeps_checkpoints() && !self.has_bug(PageBug::ForgetTrim) {
            self.checkpoints.unsaved.push(trim);
            if self.checkpoints.unsaved.len() >= self.notes_per_slot() {
                self.save_notes();
            }
        }
    }

    /// Puts trims and bad blocks on record, unless that is under way or comes with the checkpoint.
    pub(crate) fn save_notes(&mut self) {
        let per_slot = self.notes_per_slot();
        let area = self.checkpoints.current;
        let record = self.live_record(area, self.checkpoints.next_record);
        let checkpoints = &mut self.checkpoints;
        let waits = checkpoints.saves_in_flight > 0 || matches!(checkpoints.phase, Phase::Carried | Phase::Root);
        let bad = self.bad.unsaved();
        if waits || (checkpoints.unsaved.is_empty() && bad.is_empty()) {
            return;
        }
        if record >= checkpoints.mirrors[area as usize].records(&self.sizes) {
            // One that is under way brings a new area.
            if checkpoints.phase == Phase::Idle {
                checkpoints.start_early();
            }
            return;
        }
        let bad: Vec<BadBlock> = bad.iter().take(per_slot).copied().collect();
        let trims: Vec<_> = checkpoints.unsaved.iter().take(per_slot - bad.len()).copied().collect();
        let kind = AreaKind::Journal {
            through: trims.last().map_or(0, |trim| trim.sequence),
            bad: self.bad.saved + bad.len(),
        };
        checkpoints.next_record = record + 1;
        let copies = self.write_area(area, record, kind, &Record::Journal { trims, bad });
        self.checkpoints.saves_in_flight = copies;
        self.counters.trim_slots_programmed += u64::from(copies);
    }

    /// Whether a copy of a record of an area lies on a stripe that lives.
    fn has_live_copy(&self, area: u32, record: u32) -> bool {
        let slots = self.checkpoints.mirrors[area as usize].slots(record);
        slots.iter().any(|slot| !self.is_dead(slot % self.sizes.stripes))
    }

    /// The first record of an area, from this one on, of which a copy lies on a stripe that lives.
    fn live_record(&self, area: u32, from: u32) -> u32 {
        let end = self.checkpoints.mirrors[area as usize].records(&self.sizes);
        let lives = |&record: &u32| self.has_live_copy(area, record);
        if self.is_frozen() { (from..end).find(lives).unwrap_or(end) } else { from }
    }

    /// Whether slots of an area are in flight.
    fn is_area_in_flight(&self, area: u32) -> bool {
        let of = self.area_slots();
        self.tasks.iter().flatten().any(|task| matches!(task, Task::Area { slot, .. } if slot / of == area))
    }

    /// Programs a record of an area, twice where there is room. Returns how often.
    fn write_area(&mut self, area: u32, number: u32, kind: AreaKind, record: &Record) -> u32 {
        let bytes = self.sizes.slot_units * BLOCK_BYTES;
        let mut slots = self.checkpoints.mirrors[area as usize].slots(number).to_vec();
        slots.dedup();
        let copies = slots.len() as u32;
        for slot in slots {
            let slot = area * self.area_slots() + slot;
            let record = M::KEEPS.then(|| record.clone());
            self.issue(slot, JobKind::Program, Class::Host, bytes, Task::Area { slot, record, kind });
        }
        copies
    }

    /// Writes a record of the checkpoint that is under way.
    fn write_target(&mut self, kind: AreaKind, record: &Record) {
        let area = 1 - self.checkpoints.current;
        let number = self.live_record(area, self.checkpoints.target_record);
        self.checkpoints.target_record = number + 1;
        let copies = self.write_area(area, number, kind, record);
        self.checkpoints.writes_in_flight += copies;
        self.counters.map_slots_programmed += u64::from(copies);
    }

    /// No checkpoint comes any more, and nothing else may happen that would let a flush be looked at again.
    fn give_up_checkpoints(&mut self) {
        self.checkpoints.give_up();
        self.answer_flushes();
    }

    /// Takes the checkpoint on, as far as it goes now.
    pub(crate) fn checkpoint(&mut self) {
        self.checkpoints.kick = false;
        if !self.keeps_checkpoints() {
            return;
        }
        if !self.bad.unsaved().is_empty() {
            self.save_notes();
            self.checkpoints.kick = false;
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
            Phase::Drain => self.carry_notes_once_safe(),
            Phase::Erasing | Phase::Carried | Phase::Root => {}
        }
    }

    /// Step 1.
    fn erase_area(&mut self) {
        let area = 1 - self.checkpoints.current;
        // A note that fails is programmed again, which would be behind the erase of its area.
        if self.is_area_in_flight(area) && !self.has_bug(PageBug::EraseUnderNotes) {
            return;
        }
        let mirror = Mirror::new(&self.stripes, |stripe| !self.is_dead(stripe));
        let mirror = if self.has_bug(PageBug::UnsealedRoot) { mirror } else { mirror.or_once(&self.sizes) };
        if mirror.records(&self.sizes) < self.sizes.area_records {
            self.give_up_checkpoints();
        }
        if self.checkpoints.is_given_up {
            return;
        }
        let is_on_one_die = self.has_bug(PageBug::CopiesOnOneDie);
        self.checkpoints.mirrors[area as usize] = if is_on_one_die { mirror.on_one_die(&self.sizes) } else { mirror };
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
        checkpoints.target_record = 0;
        checkpoints.next_part = 0;
        checkpoints.writes_in_flight = 0;
        checkpoints.carried.clear();
        self.write_map();
    }

    /// Step 3.
    fn write_map(&mut self) {
        let in_flight_max = 2 * self.sizes.stripes;
        let part_entries = ENTRIES_PER_MAP_PAGE as u32 * self.sizes.slot_units;
        while self.checkpoints.next_part < self.sizes.map_slots && self.checkpoints.writes_in_flight < in_flight_max {
            let part = self.checkpoints.next_part;
            self.checkpoints.next_part += 1;
            let entries =
                if M::KEEPS { self.map.range(part * part_entries, part_entries).collect() } else { Vec::new() };
            let checkpoint = self.checkpoints.number + 1;
            self.write_target(AreaKind::Map, &Record::Map { checkpoint, part, entries });
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
        self.carry_notes_once_safe();
    }

    fn carry_notes_once_safe(&mut self) {
        let checkpoints = &self.checkpoints;
        let is_safe = checkpoints.in_flight[checkpoints.era ^ 1] == 0 || self.has_bug(PageBug::SealBeforeWrites);
        if checkpoints.writes_in_flight == 0 && is_safe {
            self.carry_notes();
        }
    }

    /// The second half of step 4.
    fn carry_notes(&mut self) {
        self.checkpoints.phase = Phase::Carried;
        self.checkpoints.carried_through = self.sequence;
        self.checkpoints.carried_bad = self.bad.table.len();
        let since = self.checkpoints.root.sequence;
        let checkpoints = &self.checkpoints;
        // What is being saved just now is in both.
        let unsaved = checkpoints.unsaved.iter().filter(|trim| trim.sequence > since);
        let trims: Vec<TrimRecord> = checkpoints.carried.iter().chain(unsaved).copied().collect();
        let per_slot = self.notes_per_slot();
        if self.is_frozen() {
            let records = trims.len().div_ceil(per_slot) + self.bad.table.len().div_ceil(per_slot) + 1;
            let end = checkpoints.mirrors[1 - checkpoints.current as usize].records(&self.sizes);
            if end.saturating_sub(checkpoints.target_record) < records as u32 {
                self.give_up_checkpoints();
                return;
            }
        }
        let skips = self.has_bug(PageBug::SealWithoutTrims);
        for trims in trims.chunks(per_slot).filter(|_| !skips) {
            self.write_target(AreaKind::Carried, &Record::Journal { trims: trims.to_vec(), bad: Vec::new() });
        }
        for start in (0..self.bad.table.len()).step_by(per_slot) {
            let bad = self.bad.table.iter().skip(start).take(per_slot).copied().collect();
            self.write_target(AreaKind::Carried, &Record::Journal { trims: Vec::new(), bad });
        }
        if self.checkpoints.writes_in_flight == 0 {
            self.write_root();
        }
    }

    /// Step 5, unless something died since the checkpoint began.
    fn write_root(&mut self) {
        if self.checkpoints.dead_at_start != self.dead.len() {
            self.start_over();
            return;
        }
        self.checkpoints.phase = Phase::Root;
        let (checkpoint, root) = (self.checkpoints.number + 1, self.checkpoints.root.clone());
        self.write_target(AreaKind::Root, &Record::Root { checkpoint, root });
    }

    /// Whether a slot of an area has to be programmed again, for how long: it failed, or one in front of it in the
    /// block did.
    fn fails(&mut self, slot: u32, superblock: u32, row: u32, stripe: u32) -> Option<u64> {
        if self.rng.chance(self.config.errors.program_fail_ppm) {
            if !self.checkpoints.failed.contains(&slot) {
                self.checkpoints.failed.push(slot);
            }
            return Some(self.program_failed(slot, superblock, row, stripe));
        }
        let slots = self.sizes.slots_per_superblock;
        let is_before = |&failed: &u32| {
            failed < slot && failed / slots == superblock && (slot - failed).is_multiple_of(self.sizes.stripes)
        };
        if self.checkpoints.failed.iter().any(is_before) {
            return Some(self.row_program_ns[row as usize]);
        }
        self.checkpoints.failed.retain(|&failed| failed != slot);
        None
    }

    pub(crate) fn area_programmed(&mut self, slot: u32, record: Option<Record>, kind: AreaKind) {
        let superblock = slot / self.sizes.slots_per_superblock;
        let (row, stripe) = self.split.stripes.split(slot % self.sizes.slots_per_superblock);
        if let Some(array_ns) = self.fails(slot, superblock, row, stripe) {
            self.program_in(stripe, Class::Host, array_ns, Task::Area { slot, record, kind });
            return;
        }
        if let Some(record) = record {
            // The life of an area's superblock is not used; the numbers of checkpoints are.
            self.media.program(slot, 0, record);
        }
        if !self.bad.copying.is_empty() {
            self.note_copied(slot);
        }
        if let AreaKind::Journal { through, bad } = kind {
            self.checkpoints.saves_in_flight -= 1;
            if self.checkpoints.saves_in_flight == 0 {
                self.bad.saved = self.bad.saved.max(bad);
                self.trims_saved(through);
            }
            return;
        }
        self.checkpoints.writes_in_flight -= 1;
        match kind {
            _ if self.checkpoints.writes_in_flight > 0 => {}
            AreaKind::Carried => self.write_root(),
            AreaKind::Root => self.seal(),
            AreaKind::Map | AreaKind::Journal { .. } => {}
        }
    }

    fn trims_saved(&mut self, through: u64) {
        let checkpoints = &mut self.checkpoints;
        let count = checkpoints.unsaved.partition_point(|trim| trim.sequence <= through);
        let saved = checkpoints.unsaved.drain(..count);
        if matches!(checkpoints.phase, Phase::Map | Phase::Open | Phase::Drain) {
            let since = checkpoints.root.sequence;
            checkpoints.carried.extend(saved.filter(|trim| trim.sequence > since));
        }
    }

    /// The checkpoint that is under way does not count: the next one begins at once.
    fn start_over(&mut self) {
        self.checkpoints.phase = Phase::Idle;
        self.checkpoints.start_early();
    }

    fn seal(&mut self) {
        let area = 1 - self.checkpoints.current;
        let is_hit = self.checkpoints.dead_at_start != self.dead.len();
        let is_whole = (0..self.checkpoints.target_record).all(|record| self.has_live_copy(area, record));
        if is_hit && (!is_whole || self.has_bug(PageBug::UnsealedRoot)) {
            self.start_over();
            return;
        }
        let checkpoints = &mut self.checkpoints;
        checkpoints.phase = Phase::Idle;
        checkpoints.dead_at_seal = checkpoints.dead_at_start;
        checkpoints.number += 1;
        checkpoints.current = 1 - checkpoints.current;
        checkpoints.next_record = checkpoints.target_record;
        checkpoints.opened_before = 0;
        checkpoints.held = None;
        checkpoints.carried.clear();
        let through = checkpoints.carried_through;
        checkpoints.unsaved.retain(|trim| trim.sequence > through);
        self.bad.saved = checkpoints.carried_bad;
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
