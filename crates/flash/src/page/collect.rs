//! Garbage collection and static wear levelling.
//!
//! A victim is read slot by slot; what is valid when a slot arrives is appended to the stream of
//! collection. It is erased once nothing of it is needed any more (`may_erase`); meanwhile the next victim
//! is read.

use super::PageMedia;
use super::ftl::{NONE, PageFtl, Task, VICTIMS_MAX};
use super::media::{Record, SlotState, Unit};
use super::place::Writer;
use super::planted::PageBug;
use super::space::SuperblockState;
use crate::BLOCK_BYTES;
use crate::array::{Job, JobKind, ReadErrors};

/// A superblock that is being collected.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Victim {
    pub superblock: u32,
    /// Next slot to look at, in the superblock.
    next_slot: u32,
    reads_in_flight: u32,
    /// Copies that are not programmed yet.
    copies: u32,
    is_erasing: bool,
}

/// State of collection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Collector {
    /// Space has changed since collection last looked.
    pub kick: bool,
    pub victims: [Option<Victim>; VICTIMS_MAX],
    /// The victim that is read.
    reading: Option<usize>,
    /// Whether the last victim was taken for its wear: the next is not.
    was_for_wear: bool,
}

impl<M: PageMedia> PageFtl<M> {
    /// Does what can be done.
    pub(crate) fn collect(&mut self) {
        self.collector.kick = false;
        if self.is_frozen() {
            return;
        }
        loop {
            if let Some(victim) = self.collector.reading {
                self.read_on(victim);
                if self.collector.reading.is_some() {
                    break;
                }
            }
            self.erase_victims();
            if !self.begin_victim() {
                break;
            }
        }
        let is_short = self.free_count() <= self.config.ftl.collection.free_min && !self.waiting.is_empty();
        if is_short && self.collector.reading.is_none() && !self.is_erasing() {
            self.free_copies();
        }
    }

    /// No victim is read on.
    pub(crate) fn stop_collecting(&mut self) {
        self.collector.reading = None;
    }

    /// Whether a victim is being read, whose units were sure to fit into what is free.
    pub(crate) fn is_reading_victim(&self) -> bool {
        self.collector.reading.is_some()
    }

    /// Whether a victim is being erased.
    fn is_erasing(&self) -> bool {
        self.collector.victims.iter().flatten().any(|victim| victim.is_erasing)
    }

    /// How many superblocks were opened since the youngest victim that is being erased.
    #[must_use]
    pub fn age_of_erased(&self) -> Option<u64> {
        let victims = self.collector.victims.iter().flatten().filter(|victim| victim.is_erasing);
        victims.map(|victim| self.next_life - self.superblocks[victim.superblock as usize].life).min()
    }

    /// Begins a victim, if there is need, room, and one.
    fn begin_victim(&mut self) -> bool {
        let limits = self.config.ftl.collection;
        let coming = self.collector.victims.iter().flatten().count() as u32;
        if self.free_count() + coming > limits.free_background {
            return false;
        }
        let Some(index) = self.collector.victims.iter().position(Option::is_none) else { return false };
        let Some((number, for_wear)) = self.choose_victim() else {
            return false;
        };
        self.collector.was_for_wear = for_wear;
        self.counters.victims += 1;
        self.counters.victims_for_wear += u64::from(for_wear);
        let superblock = &mut self.superblocks[number as usize];
        superblock.state = SuperblockState::Victim;
        self.candidates.remove(number, superblock.valid, superblock.erases);
        let victim = Victim { superblock: number, next_slot: 0, reads_in_flight: 0, copies: 0, is_erasing: false };
        self.collector.victims[index] = Some(victim);
        self.collector.reading = Some(index);
        true
    }

    /// The policy's victim, or one that is collected for its wear; one that fits into what is free.
    fn choose_victim(&mut self) -> Option<(u32, bool)> {
        // In a shared log a flush may cost a part of the slot that is open.
        let slack = if self.is_shared() { self.sizes.slot_units - 1 } else { 0 };
        let room = self.collection_room().saturating_sub(u64::from(slack));
        let fits = |ftl: &Self, number: u32| u64::from(ftl.superblocks[number as usize].valid) <= room;
        if let Some(number) = self.worn_apart().filter(|&number| fits(self, number)) {
            return Some((number, true));
        }
        let chosen = self.candidates.choose(&self.superblocks, &mut self.rng, self.next_life)?;
        let is_full = |ftl: &Self, number: u32| ftl.superblocks[number as usize].valid == ftl.sizes.superblock_units;
        // Where all candidates are full of what is valid, there is nothing to gain: an idle device that cannot have as
        // much free as it should would be collected for ever.
        if is_full(self, chosen) && self.candidates.emptiest(&self.superblocks).is_none_or(|least| is_full(self, least))
        {
            return None;
        }
        // Where space is tight, a victim without garbage would only move the trouble on.
        let is_tight = self.free_count() <= self.config.ftl.collection.free_min;
        let yields = self.sizes.superblock_units - self.superblocks[chosen as usize].valid >= self.sizes.slot_units;
        if fits(self, chosen) && (yields || !is_tight) {
            return Some((chosen, false));
        }
        let emptiest = self.candidates.emptiest(&self.superblocks)?;
        fits(self, emptiest).then_some((emptiest, false))
    }

    /// The least worn candidate, if it is too far behind the most worn superblock.
    fn worn_apart(&self) -> Option<u32> {
        let spread_max = self.config.ftl.wear.spread_max;
        if spread_max == 0 || self.collector.was_for_wear {
            return None;
        }
        let (erases, number) = self.candidates.least_worn()?;
        (self.counters.erases_max.saturating_sub(erases) > spread_max).then_some(number)
    }

    /// The host waits, and nothing is begun that would help: the copies that wait in memory for their slot to
    /// fill hold up an erase.
    fn free_copies(&mut self) {
        if self.collector.victims.iter().flatten().any(|victim| victim.copies > 0) {
            self.close_slot(self.collection_stream());
        }
    }

    /// Reads the victim's slots that hold something valid.
    fn read_on(&mut self, index: usize) {
        let Some(mut victim) = self.collector.victims[index] else { return };
        let slots = self.sizes.slots_per_superblock;
        while victim.next_slot < slots && victim.reads_in_flight < self.config.ftl.collection.moves_max {
            if self.superblocks[victim.superblock as usize].valid == 0 {
                victim.next_slot = slots;
                break;
            }
            let slot = victim.superblock * slots + victim.next_slot;
            victim.next_slot += 1;
            let valid = self.valid_units(slot).count_ones();
            if valid > 0 {
                victim.reads_in_flight += 1;
                self.read_slot(index, slot, valid);
            }
        }
        self.collector.victims[index] = Some(victim);
        if victim.next_slot == slots && victim.reads_in_flight == 0 {
            self.collector.reading = None;
        }
    }

    /// The valid units of a slot, by bit. Looked up all at once: the map of a large device is not in the
    /// processor's cache, and so the processor waits for many entries at the same time.
    fn valid_units(&self, slot: u32) -> u128 {
        let first = slot * self.sizes.slot_units;
        let lpns = self.reverse.range(first, self.sizes.slot_units);
        let moves_dead = self.has_bug(PageBug::MoveDeadUnits);
        // No logical unit is beyond the map's end, and what is none is.
        let is_moved = |(unit, lpn): (u32, u32)| self.map.has(lpn, unit) || (moves_dead && lpn != NONE);
        (first..first + self.sizes.slot_units)
            .zip(lpns)
            .rev()
            .fold(0, |units, unit| units << 1 | u128::from(is_moved(unit)))
    }

    /// Reads a slot of a victim; only valid units cross the channel.
    fn read_slot(&mut self, victim: usize, slot: u32, valid: u32) {
        let place = self.place(slot * self.sizes.slot_units);
        let mut worst = ReadErrors::default();
        let mut lost = 0_u128;
        if self.has_read_errors {
            for index in 0..self.sizes.slot_units {
                let drawn = self.draw_errors(&place, 1);
                lost |= u128::from(drawn.uncorrectable) << index;
                worst.retry_ns = worst.retry_ns.max(drawn.retry_ns);
            }
        }
        let array_ns = self.row_read_ns[place.row as usize] + worst.retry_ns;
        let bytes = valid * BLOCK_BYTES;
        self.counters.pages_read_to_move += u64::from(self.sizes.slot_planes);
        let job = Job { kind: JobKind::Read, class: self.collection_class(), array_ns, bytes, token: 0 };
        self.issue_job(place.stripe, job, Task::Move { victim, slot, lost });
    }

    /// A slot of a victim has arrived: what is valid now is moved.
    pub(crate) fn slot_read(&mut self, victim: usize, slot: u32, lost: u128) {
        if self.is_frozen() {
            // What was not copied yet stays where it is.
            return;
        }
        let kept = if M::KEEPS { Some(self.media.slot(slot)) } else { None };
        let first = slot * self.sizes.slot_units;
        let count = self.sizes.slot_units - u32::from(self.has_bug(PageBug::MoveOneUnitShort));
        let mut left = self.valid_units(slot);
        let mut moved = 0;
        while left.trailing_zeros() < count {
            let index = left.trailing_zeros();
            left &= left - 1;
            let lpn = self.reverse.get(first + index);
            let is_lost = lost >> index & 1 == 1;
            if is_lost {
                self.lost.insert(lpn);
            }
            let unit = kept.as_ref().map(|kept| self.unit_to_move(kept, index as usize, lpn, is_lost));
            self.append(self.collection_stream(), lpn, Writer::Collection { victim, unit });
            self.counters.units_moved += 1;
            moved += 1;
            if self.map_cache.is_some() {
                self.outdate_map_page(lpn);
            }
        }
        // The copies of a victim may be programmed before it is read to its end, but not before now.
        let victim = self.collector.victims[victim].as_mut().expect("a victim that is read is there");
        victim.copies += moved;
        victim.reads_in_flight -= 1;
    }

    /// A unit of a slot that was read to be moved. Of one that cannot be read, not even its sequence, the place
    /// is taken by a newer version that says so: an older one that is still on the media must not win.
    fn unit_to_move(&mut self, slot: &SlotState, index: usize, lpn: u32, is_lost: bool) -> Unit {
        match slot {
            SlotState::Whole { record: Record::Data { units, .. }, .. } if index < units.len() => {
                let was_lost = units[index].lost && !self.has_bug(PageBug::MoveForgetsLoss);
                Unit { lost: was_lost || is_lost, ..units[index] }
            }
            _ => {
                self.lost.insert(lpn);
                self.sequence += 1;
                Unit { lpn, sequence: self.sequence, payload: 0, lost: true }
            }
        }
    }

    /// A unit as it is kept: on the media, or in memory until its slot is programmed.
    pub(crate) fn kept_unit(&self, slot: u32, index: usize) -> Option<Unit> {
        for stream in &self.streams {
            if stream.fill > 0 && stream.base == slot * self.sizes.slot_units {
                return stream.units.get(index).copied();
            }
        }
        for task in self.tasks.iter().flatten() {
            if let Task::Slot(task) = task
                && task.slot == slot
            {
                return task.units.get(index).copied();
            }
        }
        self.media.unit(slot, index)
    }

    /// A slot with copies is programmed.
    pub(crate) fn copies_programmed(&mut self, moved: &[u16; VICTIMS_MAX]) {
        for (victim, &count) in self.collector.victims.iter_mut().zip(moved) {
            if let Some(victim) = victim {
                // Saturates for the sake of planted bugs alone.
                victim.copies = victim.copies.saturating_sub(u32::from(count));
            }
        }
    }

    fn erase_victims(&mut self) {
        for index in 0..VICTIMS_MAX {
            let Some(victim) = self.collector.victims[index] else { continue };
            if victim.is_erasing || self.collector.reading == Some(index) || !self.may_erase(&victim) {
                continue;
            }
            if self.superblocks[victim.superblock as usize].is_failing {
                self.collector.victims[index] = None;
                self.retire(victim.superblock);
                continue;
            }
            if let Some(victim) = &mut self.collector.victims[index] {
                victim.is_erasing = true;
            }
            self.counters.superblocks_erased += 1;
            self.erase(victim.superblock, self.collection_class());
        }
    }

    /// Whether nothing of a victim is needed any more, and the media knows.
    fn may_erase(&mut self, victim: &Victim) -> bool {
        if victim.copies > 0 && !self.has_bug(PageBug::EraseBeforeCopies) {
            return false;
        }
        if self.checkpoints.holds(victim.superblock) {
            return false;
        }
        let killed_by = self.superblocks[victim.superblock as usize].killed_by;
        let keeps_nothing = self.config.ftl.checkpoint_superblocks == 0;
        if keeps_nothing || self.has_bug(PageBug::EraseBeforeKillers) || killed_by <= self.durable_sequence() {
            return true;
        }
        // Later writes would bring the killers to the media by themselves, if there were space for any.
        if !self.waiting.is_empty() || self.free_count() <= self.config.ftl.collection.free_foreground {
            self.push_out(killed_by);
        }
        false
    }

    /// A superblock is erased: a victim, or one of a checkpoint area.
    pub(crate) fn superblock_erased(&mut self, superblock: u32) {
        self.counters.erases_max = self.counters.erases_max.max(self.superblocks[superblock as usize].erases);
        for victim in &mut self.collector.victims {
            if victim.is_some_and(|victim| victim.superblock == superblock) {
                *victim = None;
            }
        }
        if superblock < 2 * self.sizes.area_superblocks {
            self.area_erased();
        }
    }
}
