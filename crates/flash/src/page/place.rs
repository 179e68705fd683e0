//! Where units are put: streams, their open superblocks and slots, and the programs of these.

use std::collections::VecDeque;

use super::PageMedia;
use super::ftl::{NONE, PageFtl, SlotTask, Task, VICTIMS_MAX};
use super::media::{Record, Unit};
use super::planted::PageBug;
use super::space::SuperblockState;
use crate::BLOCK_BYTES;
use crate::array::{Class, Job, JobKind};

/// One stream of writes.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// The open superblock, or [`NONE`].
    pub superblock: u32,
    /// Next slot to begin, in the superblock.
    pub next_slot: u32,
    /// First unit of the open slot.
    pub base: u32,
    /// Units of the open slot that are taken; 0 when no slot is open.
    pub fill: u32,
    /// Sequence of the first host write in the open slot; `u64::MAX` without one.
    first_sequence: u64,
    moved: [u16; VICTIMS_MAX],
    /// Units of the open slot; empty when nothing is kept.
    pub units: Vec<Unit>,
    /// Slots with host writes in flight: the first sequence of each, and whether it is done.
    in_flight: VecDeque<(u64, bool)>,
    /// Serial of the front of `in_flight`.
    front_serial: u64,
}

impl Stream {
    pub(crate) fn new() -> Stream {
        Stream {
            superblock: NONE,
            next_slot: 0,
            base: 0,
            fill: 0,
            first_sequence: u64::MAX,
            moved: [0; VICTIMS_MAX],
            units: Vec::new(),
            in_flight: VecDeque::new(),
            front_serial: 0,
        }
    }

    /// The first sequence that is not programmed, `u64::MAX` when all are.
    fn first_pending(&self) -> u64 {
        self.in_flight.front().map_or(self.first_sequence, |&(sequence, _)| sequence)
    }

    fn done(&mut self, serial: u64) {
        self.in_flight[(serial - self.front_serial) as usize].1 = true;
        while self.in_flight.front().is_some_and(|&(_, done)| done) {
            self.in_flight.pop_front();
            self.front_serial += 1;
        }
    }
}

/// A superblock of which some slots are not programmed yet.
#[derive(Debug, Clone)]
pub(crate) struct Writing {
    pub superblock: u32,
    /// Rows that are programmed, by stripe.
    pub rows: Vec<u32>,
    /// Slots in flight.
    pub in_flight: u32,
}

/// Who writes a unit.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Writer {
    /// The host, or the cached map, with a new sequence.
    Host { payload: u64 },
    /// Collection, from a victim.
    Collection { victim: usize, unit: Option<Unit> },
}

impl<M: PageMedia> PageFtl<M> {
    /// Whether the host may write a unit to a stream now.
    pub(crate) fn has_room(&self, stream: usize) -> bool {
        let free_min = self.config.ftl.collection.free_min;
        // In a shared log the host must not take what collection opened for itself.
        if self.is_shared() && self.free_count() < free_min {
            return false;
        }
        let state = &self.streams[stream];
        if state.fill > 0 {
            return true;
        }
        let is_full = state.superblock == NONE || state.next_slot == self.sizes.slots_per_superblock;
        if is_full && (self.free_count() <= free_min || self.must_checkpoint_first()) {
            return false;
        }
        let stripe = if is_full { 0 } else { self.split.stripes.split(state.next_slot).1 };
        self.host_slots[self.stripes[stripe as usize].0 as usize] < self.config.ftl.slots_per_die_max
    }

    /// Units that collection can write without another superblock being freed.
    pub(crate) fn collection_room(&self) -> u64 {
        let stream = &self.streams[self.collection_stream()];
        let left = if stream.superblock == NONE {
            0
        } else {
            let open = if stream.fill > 0 { self.sizes.slot_units - stream.fill } else { 0 };
            (self.sizes.slots_per_superblock - stream.next_slot) * self.sizes.slot_units + open
        };
        u64::from(self.free_count()) * u64::from(self.sizes.superblock_units) + u64::from(left)
    }

    /// Takes the next unit of a stream for a logical unit, and maps it there.
    pub(crate) fn append(&mut self, stream: usize, lpn: u32, writer: Writer) {
        if self.streams[stream].fill == 0 {
            self.open_slot(stream);
        }
        let sequence = match writer {
            Writer::Host { .. } => {
                self.sequence += 1;
                self.sequence
            }
            // The copy is of the same write; it kills what nobody needs.
            Writer::Collection { .. } => 0,
        };
        self.kill(lpn, sequence);
        let state = &mut self.streams[stream];
        let (unit, superblock) = (state.base + state.fill, state.superblock);
        state.fill += 1;
        match writer {
            Writer::Host { payload } => {
                state.first_sequence = state.first_sequence.min(sequence);
                if M::KEEPS {
                    state.units.push(Unit { lpn, sequence, payload, lost: false });
                }
            }
            Writer::Collection { victim, unit } => {
                state.moved[victim] += 1;
                if M::KEEPS {
                    state.units.push(unit.expect("media that keeps data has the unit"));
                }
            }
        }
        let is_full = state.fill == self.sizes.slot_units;
        self.map.set(lpn, unit);
        self.reverse.set(unit, lpn);
        self.superblocks[superblock as usize].valid += 1;
        if is_full {
            self.close_slot(stream);
        }
    }

    /// The version of a logical unit that the map names dies.
    #[inline]
    pub(crate) fn kill(&mut self, lpn: u32, sequence: u64) {
        let unit = self.map.get(lpn);
        if unit == NONE {
            return;
        }
        let number = self.split.superblock_units.quotient(unit);
        let superblock = &mut self.superblocks[number as usize];
        superblock.valid -= 1;
        superblock.killed_by = superblock.killed_by.max(sequence);
        if superblock.state == SuperblockState::Closed {
            let valid = superblock.valid;
            self.candidates.lost_one(number, valid);
        }
    }

    fn open_slot(&mut self, stream: usize) {
        let state = &self.streams[stream];
        if state.superblock == NONE || state.next_slot == self.sizes.slots_per_superblock {
            self.open_superblock(stream);
        }
        let state = &mut self.streams[stream];
        let slot = state.superblock * self.sizes.slots_per_superblock + state.next_slot;
        state.base = slot * self.sizes.slot_units;
        state.next_slot += 1;
    }

    fn open_superblock(&mut self, stream: usize) {
        let number = self.take_free().expect("space was checked before");
        let superblock = &mut self.superblocks[number as usize];
        superblock.state = SuperblockState::Open;
        superblock.life = self.next_life;
        superblock.opened_at = self.now.0;
        self.next_life += 1;
        self.checkpoints.opened += 1;
        self.collector.kick = true;
        self.checkpoints.kick = true;
        self.streams[stream].superblock = number;
        self.streams[stream].next_slot = 0;
        self.write_superblock(number, 0);
    }

    /// Notes that slots of a superblock will be in flight; those before `next_slot` are done.
    pub(crate) fn write_superblock(&mut self, superblock: u32, next_slot: u32) {
        let stripes = self.sizes.stripes;
        let rows = (0..stripes).map(|stripe| (next_slot + stripes - 1 - stripe) / stripes).collect();
        self.writing.push(Writing { superblock, rows, in_flight: 0 });
    }

    /// Programs the open slot, as full as it is.
    pub(crate) fn close_slot(&mut self, stream: usize) {
        let units = self.sizes.slot_units;
        let state = &mut self.streams[stream];
        if state.fill == 0 {
            return;
        }
        let slot = state.base / units;
        let serial = (state.first_sequence != u64::MAX).then(|| {
            state.in_flight.push_back((state.first_sequence, false));
            state.front_serial + state.in_flight.len() as u64 - 1
        });
        let padding = units - state.fill;
        let task = SlotTask {
            slot,
            stream: stream as u32,
            serial,
            moved: state.moved,
            era: self.checkpoints.era,
            stream_class: Class::Host,
            units: std::mem::take(&mut state.units),
        };
        for unit in state.base + state.fill..state.base + units {
            self.reverse.set(unit, NONE);
        }
        state.fill = 0;
        state.first_sequence = u64::MAX;
        state.moved = [0; VICTIMS_MAX];
        self.counters.units_padded += u64::from(padding);
        self.program_slot(task);
    }

    fn program_slot(&mut self, mut task: SlotTask) {
        let is_collection = !self.is_shared() && task.stream as usize == self.collection_stream();
        task.stream_class = if is_collection { self.collection_class() } else { Class::Host };
        let superblock = task.slot / self.sizes.slots_per_superblock;
        let writing = self.writing.iter_mut().find(|writing| writing.superblock == superblock);
        writing.expect("an open superblock is noted").in_flight += 1;
        self.checkpoints.in_flight[task.era] += 1;
        self.counters.slots_programmed += 1;
        if task.serial.is_some() {
            *self.host_slots_of(task.slot) += 1;
        }
        let (slot, class) = (task.slot, task.stream_class);
        let bytes = self.sizes.slot_units * BLOCK_BYTES;
        self.issue(slot, JobKind::Program, class, bytes, Task::Slot(task));
    }

    /// Slots with host writes in flight on the die of a slot.
    fn host_slots_of(&mut self, slot: u32) -> &mut u32 {
        let (_, stripe) = self.split.stripes.split(slot % self.sizes.slots_per_superblock);
        &mut self.host_slots[self.stripes[stripe as usize].0 as usize]
    }

    /// What is programmed for a task: slot, life and content.
    pub(crate) fn data_record(&self, task: SlotTask) -> (u32, u64, Record) {
        let superblock = &self.superblocks[(task.slot / self.sizes.slots_per_superblock) as usize];
        let record = Record::Data { stream: task.stream, erases: superblock.erases, units: task.units };
        (task.slot, superblock.life, record)
    }

    pub(crate) fn slot_programmed(&mut self, mut task: SlotTask) {
        let slots = self.sizes.slots_per_superblock;
        let (number, (row, stripe)) = (task.slot / slots, self.split.stripes.split(task.slot % slots));
        if self.rng.chance(self.config.errors.program_fail_ppm) {
            self.program_again(task, number, row, stripe);
            return;
        }
        let index = self.writing.iter().position(|writing| writing.superblock == number);
        let index = index.expect("a superblock with slots in flight is noted");
        if self.writing[index].rows[stripe as usize] < row && !self.has_bug(PageBug::OvertakeFailed) {
            // It went to a block that failed before it, and comes after what failed.
            self.program(task, stripe, self.row_program_ns[row as usize]);
            return;
        }
        if M::KEEPS {
            let units = std::mem::take(&mut task.units);
            let (slot, life, record) = self.data_record(SlotTask { units, ..task });
            self.media.program(slot, life, record);
        }
        if !self.bad.copying.is_empty() {
            self.note_copied(task.slot);
        }
        self.checkpoints.in_flight[task.era] -= 1;
        if let Some(serial) = task.serial {
            self.streams[task.stream as usize].done(serial);
            *self.host_slots_of(task.slot) -= 1;
        }
        let writing = &mut self.writing[index];
        writing.rows[stripe as usize] = row + 1;
        writing.in_flight -= 1;
        if writing.in_flight == 0 {
            self.close_if_full(index);
        }
        self.copies_programmed(&task.moved);
    }

    /// Once nothing of a superblock is in flight and no stream fills it, it can be a victim.
    fn close_if_full(&mut self, index: usize) {
        let number = self.writing[index].superblock;
        let is_full = |stream: &Stream| stream.next_slot == self.sizes.slots_per_superblock && stream.fill == 0;
        if self.streams.iter().any(|stream| stream.superblock == number && !is_full(stream)) {
            return;
        }
        for stream in &mut self.streams {
            if stream.superblock == number {
                stream.superblock = NONE;
            }
        }
        self.writing.swap_remove(index);
        self.close(number);
    }

    /// A superblock becomes a candidate for collection.
    pub(crate) fn close(&mut self, number: u32) {
        let superblock = &mut self.superblocks[number as usize];
        superblock.state = SuperblockState::Closed;
        self.candidates.insert(number, superblock.valid, superblock.erases);
    }

    /// A program failed. Without a spare block it is tried again where it is. Either way the units stay where the map
    /// has them, and in memory until they are safe.
    fn program_again(&mut self, task: SlotTask, number: u32, row: u32, stripe: u32) {
        let array_ns = self.program_failed(task.slot, number, row, stripe);
        self.program(task, stripe, array_ns);
    }

    /// How long it takes to program a slot again that failed: where there is a spare block in the plane, the block's
    /// pages are copied there first.
    pub(crate) fn program_failed(&mut self, slot: u32, number: u32, row: u32, stripe: u32) -> u64 {
        self.counters.program_failures += 1;
        let array_ns = self.row_program_ns[row as usize];
        let Some(bad) = self.replace_block(number, stripe) else { return array_ns };
        self.bad.copying.push((slot, bad));
        let rows = if bad.spare.is_some() { 0..row as usize } else { 0..0 };
        array_ns + rows.map(|row| self.row_read_ns[row] + self.row_program_ns[row]).sum::<u64>()
    }

    fn program(&mut self, task: SlotTask, stripe: u32, array_ns: u64) {
        let class = task.stream_class;
        self.program_in(stripe, class, array_ns, Task::Slot(task));
    }

    pub(crate) fn program_in(&mut self, stripe: u32, class: Class, array_ns: u64, task: Task) {
        let bytes = self.sizes.slot_units * BLOCK_BYTES;
        self.issue_job(stripe, Job { kind: JobKind::Program, class, array_ns, bytes, token: 0 }, task);
    }

    /// Whether a unit is programmed, and not still in memory.
    pub(crate) fn is_programmed(&self, superblock: u32, row: u32, stripe: u32) -> bool {
        let writing = self.writing.iter().find(|writing| writing.superblock == superblock);
        writing.is_none_or(|writing| row < writing.rows[stripe as usize])
    }

    /// Everything up to this sequence is on the media.
    pub(crate) fn durable_sequence(&self) -> u64 {
        let writes = self.streams.iter().map(Stream::first_pending).min().unwrap_or(u64::MAX);
        let trims = if self.has_bug(PageBug::FlushWithoutTrims) { u64::MAX } else { self.checkpoints.first_unsaved() };
        writes.min(trims).saturating_sub(1).min(self.sequence)
    }

    /// Programs every open slot, and puts every trim on record, up to a sequence.
    pub(crate) fn push_out(&mut self, sequence: u64) {
        for stream in 0..self.streams.len() {
            if self.streams[stream].first_sequence <= sequence {
                self.close_slot(stream);
            }
        }
        if self.checkpoints.first_unsaved() <= sequence {
            self.save_notes();
        }
    }
}
