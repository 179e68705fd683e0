//! What is done to a cache beside requests: frames kept free, pins, evictions, marks, another policy, the log's
//! compaction.

use super::{Cache, Evicted, Set};
use crate::error::CommandError;
use crate::eviction::{Eviction, Recall};
use crate::flags::{Flags, State};
use crate::planted::Bug;
use crate::write_log::{Compaction, WriteLog};

impl<P: Eviction> Cache<P> {
    /// Evicts a page to keep frames free in the set that `page` belongs to; nothing if there are enough, counting
    /// those that will be once they are drained. To be called after a miss until it gives nothing.
    #[inline]
    pub fn reclaim(&mut self, page: u64) -> Option<Evicted> {
        if self.reserve_frames == 0 { None } else { self.reclaim_in_set(page) }
    }

    fn reclaim_in_set(&mut self, page: u64) -> Option<Evicted> {
        let set = self.set_of(page);
        let Set { free_count, ruled, draining, .. } = self.sets[set as usize];
        if free_count + draining >= self.reserve_frames || ruled == 0 {
            return None;
        }
        let frame = self.victim(set, Recall::NOTHING);
        let evicted = self.leave(frame);
        self.stats.reclaimed += 1;
        self.release(set, evicted);
        Some(evicted)
    }

    /// Evicts a page by command.
    ///
    /// # Errors
    /// When it is not there, on its way, or pinned.
    pub fn evict(&mut self, page: u64) -> Result<Evicted, CommandError> {
        let frame = self.find(page).ok_or(CommandError::NotResident { page })?;
        if let Some(pins) = self.pins.get(&frame) {
            return Err(CommandError::Pinned { page, pins: *pins });
        }
        if self.flags[frame as usize].state() == State::Filling {
            return Err(CommandError::Filling { page });
        }
        let set = self.set_of(page);
        self.unrule(set, frame);
        let evicted = self.leave(frame);
        self.stats.evicted_by_command += 1;
        self.release(set, evicted);
        Ok(evicted)
    }

    /// Pins a page: it stays until as many [`Cache::unpin`] have come. A page on its way can be pinned, one that
    /// is not there has to be prefetched first. The policy forgets it meanwhile.
    ///
    /// # Errors
    /// When it is not there, or a limit is reached.
    pub fn pin(&mut self, page: u64) -> Result<(), CommandError> {
        let frame = self.find(page).ok_or(CommandError::NotResident { page })?;
        if let Some(pins) = self.pins.get_mut(&frame) {
            let more = pins.checked_add(1).ok_or(CommandError::PinCount { page, pins: *pins })?;
            *pins = more;
            return Ok(());
        }
        if self.pins.len() as u64 >= u64::from(self.pinned_pages_max) {
            return Err(CommandError::PinLimit { page, max: self.pinned_pages_max });
        }
        let set = self.set_of(page);
        if self.sets[set as usize].pinned + 1 >= self.shape.pages_per_set {
            return Err(CommandError::SetPinned { page });
        }
        self.pins.insert(frame, 1);
        self.sets[set as usize].pinned += 1;
        if self.has_bug(Bug::EvictPinned) {
            return Ok(());
        }
        if self.flags[frame as usize].has(Flags::RULED) {
            self.unrule(set, frame);
        }
        self.flags[frame as usize].set(Flags::PINNED);
        Ok(())
    }

    /// Takes one pin off a page. With the last one it goes back to the policy, as one that has just come in.
    ///
    /// # Errors
    /// When it is not there or not pinned.
    pub fn unpin(&mut self, page: u64) -> Result<(), CommandError> {
        let frame = self.find(page).ok_or(CommandError::NotResident { page })?;
        let pins = self.pins.get_mut(&frame).ok_or(CommandError::NotPinned { page })?;
        *pins -= 1;
        if *pins > 0 {
            return Ok(());
        }
        self.pins.remove(&frame);
        let set = self.set_of(page);
        self.sets[set as usize].pinned -= 1;
        self.flags[frame as usize].clear(Flags::PINNED);
        let flags = self.flags[frame as usize];
        if flags.state() == State::Resident && !flags.has(Flags::RULED) {
            self.rule(set, frame, page, Recall::NOTHING);
        }
        Ok(())
    }

    /// A use of a page that was no request: a sampled hit of a page that the host maps. Says whether it is there.
    pub fn touch(&mut self, page: u64) -> bool {
        let Some(frame) = self.resident(page) else { return false };
        self.stats.sampled += 1;
        let flags = &mut self.flags[frame as usize];
        if flags.has(Flags::UNUSED) {
            flags.clear(Flags::UNUSED);
            self.stats.prefetch_useful += 1;
        }
        if flags.has(Flags::RULED) {
            self.policy.touched(self.set_of(page), frame);
        }
        true
    }

    /// Stores were made to a page that the host maps.
    ///
    /// # Errors
    /// When it is not resident, or there is a write log, which has to see every store.
    pub fn mark_dirty(&mut self, page: u64) -> Result<(), CommandError> {
        if self.log.is_some() {
            return Err(CommandError::LogNeedsStores { page });
        }
        let frame = self.resident(page).ok_or(CommandError::NotResident { page })?;
        self.flags[frame as usize].set(Flags::DIRTY);
        Ok(())
    }

    /// The bytes of a resident page were written below, and it was not written to since.
    ///
    /// # Errors
    /// When it is not resident.
    pub fn mark_clean(&mut self, page: u64) -> Result<(), CommandError> {
        let frame = self.resident(page).ok_or(CommandError::NotResident { page })?;
        self.flags[frame as usize].clear(Flags::DIRTY);
        Ok(())
    }

    /// Changes the policy; the pages stay. The new one gets those that the old one had, in the order in which they
    /// came in; uses and ghosts are forgotten, and what the old one did wrong is no failure of the new one.
    pub fn set_policy(&mut self, policy: P) {
        self.policy = policy;
        self.last_fault = None;
        let mut ruled: Vec<u32> =
            (0..self.shape.frames()).filter(|frame| self.flags[*frame as usize].has(Flags::RULED)).collect();
        ruled.sort_unstable_by_key(|frame| self.arrived[*frame as usize]);
        for frame in ruled {
            let page = self.pages[frame as usize];
            self.policy.inserted(self.set_of(page), frame, page, Recall::NOTHING);
        }
        for flags in &mut self.flags {
            flags.forget_recall();
        }
    }

    /// The page of the write log that is to be written next, all lines that the cache has included. Nothing while it
    /// is on its way into the cache, and when there is nothing. To be answered with [`Cache::compacted`].
    pub fn next_compaction(&mut self) -> Option<Compaction> {
        let next = self.log.as_ref()?.next_compaction()?;
        let frame = self.find(next.page);
        let is_filling = frame.is_some_and(|frame| self.flags[frame as usize].state() == State::Filling);
        if is_filling && !self.has_bug(Bug::FillWhileCompacting) {
            return None;
        }
        self.compacting = Some(next.page);
        Some(next)
    }

    /// The page of [`Cache::next_compaction`] is written.
    ///
    /// # Panics
    /// When there is none: the driver is wrong.
    pub fn compacted(&mut self) {
        assert!(self.compacting.take().is_some(), "no page is being compacted");
        if let Some(log) = &mut self.log {
            log.compacted();
        }
    }

    /// Forgets the lines that the write log has of a page, because nobody needs them any more; they leave with a
    /// compaction that has nothing to write. `false` means that the page is being compacted: that has to end first.
    pub fn forget_logged(&mut self, page: u64) -> bool {
        if self.compacting == Some(page) {
            return false;
        }
        if let Some(log) = &mut self.log {
            log.forget(page);
        }
        true
    }

    /// Lets the half of the write log that takes lines be compacted before it is full, for a flush. `false` means
    /// that the other half is still being compacted, or that there is no log.
    pub fn seal_log(&mut self) -> bool {
        self.log.as_mut().is_some_and(WriteLog::seal)
    }
}
