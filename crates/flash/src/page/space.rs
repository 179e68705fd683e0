//! Superblocks: free, open, closed, erased, retired.

use std::cmp::Reverse;

use super::PageMedia;
use super::ftl::{PageFtl, Task};
use super::planted::PageBug;
use crate::array::{Class, Job, JobKind};

/// Life of a superblock: `Free -> Open -> Closed -> Victim -> Erasing -> Free`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SuperblockState {
    #[default]
    Free,
    /// A stream fills it (`place::open_superblock`).
    Open,
    /// Full, and all of it is programmed (`place::slot_programmed`), or left so by recovery.
    Closed,
    /// Its valid units are being moved (`collect::begin`).
    Victim,
    /// Its erase was issued (`space::erase`).
    Erasing,
    /// It has a bad block for which there is no spare one; never used again.
    Retired,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Superblock {
    pub state: SuperblockState,
    /// Valid units.
    pub valid: u32,
    pub erases: u32,
    /// Reads since the last erase.
    pub reads: u32,
    /// Number of the present life, rising over all superblocks.
    pub life: u64,
    /// Sequence of the last write or trim that killed one of its units.
    pub killed_by: u64,
    /// When it was opened.
    pub opened_at: u64,
    /// Stripes whose erase is under way.
    pub erases_left: u32,
    /// A block of it failed and cannot be replaced: it is retired instead of erased.
    pub is_failing: bool,
}

impl<M: PageMedia> PageFtl<M> {
    /// Superblocks that are free.
    pub(crate) fn free_count(&self) -> u32 {
        self.free.len() as u32
    }

    /// Puts an erased superblock among the free ones.
    pub(crate) fn give_back(&mut self, superblock: u32) {
        self.superblocks[superblock as usize].state = SuperblockState::Free;
        self.free_order += 1;
        let erases = u64::from(self.superblocks[superblock as usize].erases);
        let key = if self.config.ftl.wear.dynamic { erases } else { self.free_order };
        self.free.push(Reverse((key, superblock)));
        self.set_urgency();
    }

    /// Takes the free superblock that goes next.
    pub(crate) fn take_free(&mut self) -> Option<u32> {
        let Reverse((_, superblock)) = self.free.pop()?;
        self.set_urgency();
        Some(superblock)
    }

    fn set_urgency(&mut self) {
        let urgent = self.free_count() <= self.config.ftl.collection.free_foreground;
        self.array.set_urgent(urgent);
    }

    /// Erases all of a superblock.
    pub(crate) fn erase(&mut self, superblock: u32, class: Class) {
        let state = &mut self.superblocks[superblock as usize];
        state.state = SuperblockState::Erasing;
        state.erases_left = self.sizes.stripes;
        let array_ns = self.config.timing.erase_ns;
        for stripe in 0..self.sizes.stripes {
            let job = Job { kind: JobKind::Erase, class, array_ns, bytes: 0, token: 0 };
            self.issue_job(stripe, job, Task::Erase { superblock, stripe });
        }
    }

    pub(crate) fn stripe_erased(&mut self, superblock: u32, stripe: u32) {
        let is_wrong = self.has_bug(PageBug::EraseWrongVictim) && superblock + 1 < self.sizes.superblocks;
        let (first, stripes, count) = self.slots_of(superblock + u32::from(is_wrong), stripe);
        self.counters.blocks_erased += u64::from(self.sizes.slot_planes);
        if self.rng.chance(self.config.errors.erase_fail_ppm) {
            self.counters.erase_failures += 1;
            let bad = self.replace_block(superblock, stripe);
            self.bad.table.extend(bad);
        }
        if M::KEEPS {
            // Of the spare block, if one took the place.
            self.media.erase(first, stripes, count);
        }
        let state = &mut self.superblocks[superblock as usize];
        state.erases_left -= 1;
        if state.erases_left > 0 {
            return;
        }
        state.erases += 1;
        state.reads = 0;
        state.killed_by = 0;
        if superblock < 2 * self.sizes.area_superblocks {
            // The areas have no substitute: a block of theirs that cannot be replaced is used on.
            state.state = SuperblockState::Free;
        } else if state.is_failing {
            self.retire(superblock);
        } else {
            self.give_back(superblock);
        }
        self.superblock_erased(superblock);
    }

    /// Goes read-only when a write waits for space, nothing is under way that could free any, and the superblock that
    /// would have helped was retired.
    pub(crate) fn give_up_if_stuck(&mut self) {
        if self.retired > 0 && !self.waiting.is_empty() && !self.read_only && self.array.next_event().is_none() {
            self.read_only = true;
            self.serve_waiting();
        }
    }

    /// Goes read-only when what is left cannot hold the logical capacity.
    pub(crate) fn check_capacity(&mut self) {
        let left = self.sizes.data_superblocks() - self.retired;
        if self.config.ftl.logical_units > self.sizes.logical_units_max(&self.config.ftl, left) {
            self.read_only = true;
        }
    }
}
