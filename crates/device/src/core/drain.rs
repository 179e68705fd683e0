//! The way from the buffer to the flash, and the barriers that wait for it.
//!
//! Draining starts when the buffer is filled to the profile's level, when nothing was written for a
//! while, when a write waits for room, or when a barrier asks; and goes on until the reason is gone.
//!
//! ```text
//! committed ──append──> handed over ──page programmed──> programmed ──media synced──> synced
//! ```
//!
//! A record is freed when it is programmed. Where persistence rests on the buffer that is too early:
//! a power cut would take the page while the buffer no longer has the record. There it is freed when
//! it is synced, and syncs are asked for in batches.

use super::{
    AppendId, Barrier, Bytes, CommandId, Device, FtlEvent, Nanos, Record, RecordKind, Status, SyncId, Waiting,
    extent_footprint, extent_of, refusal,
};
use osier_flash::{Backpressure, MediaError};

/// Records handed to the flash in one poll. Whoever drives the core has more to do than this: a poll is short, and
/// says by [`Device::next_event`] that another one is due at once.
const DRAINED_PER_POLL: u32 = 2;
/// Records freed in one poll.
const FREED_PER_POLL: u32 = 32;
/// Part of the ring that may wait for a sync before one is asked for.
const RELEASE_PARTS: u64 = 8;

impl<B: Bytes> Device<B> {
    /// Takes what the flash layer has to report.
    pub(super) fn poll_flash(&mut self, now: Nanos) {
        let mut events = std::mem::take(&mut self.flash_events);
        self.ftl.poll(now, &mut events);
        for event in events.drain(..) {
            match event {
                FtlEvent::Durable { through } => self.programmed(through),
                FtlEvent::ReadDone { id, result } => self.flash_read_done(now, id, result),
                FtlEvent::SyncDone { id, result } => self.sync_done(now, id, result),
                FtlEvent::ReadOnly { error } => self.give_up(now, refusal(error)),
                FtlEvent::SuperblockRetired { .. } => self.counters.superblocks_retired += 1,
            }
        }
        self.flash_events = events;
    }

    /// Does what can be done now, until nothing more can or enough was done for one poll.
    pub(super) fn work(&mut self, now: Nanos) {
        self.idle_timer(now);
        self.retry_reads(now);
        self.drained.again_at = None;
        if self.is_shut_down() {
            return;
        }
        let all_freed = self.free();
        let mut left = DRAINED_PER_POLL;
        loop {
            let admitted = self.admit(now);
            let drained = self.drain(now, &mut left);
            self.close_and_sync(now);
            self.answer_barriers(now);
            if !admitted && !drained {
                break;
            }
        }
        self.drained.again_at = (left == 0 || !all_freed).then_some(now);
    }

    /// A request came in; the poll that hands records over is due now if there is a reason to.
    pub(super) fn ask_for_poll(&mut self, now: Nanos) {
        if self.wants_drain() {
            self.drained.again_at = Some(now);
        }
    }

    /// When something is to be done although nothing comes in.
    pub(super) fn timer_due(&self) -> Option<Nanos> {
        if self.is_shut_down() && self.drained.undrained_bytes > 0 {
            return Some(self.thermal.next_tick());
        }
        self.drained.idle_armed.then(|| self.idle_due())
    }

    /// Answers when everything up to now is persistent.
    pub(super) fn barrier(&mut self, id: CommandId, due: Nanos) {
        let through = self.log.next_sequence() - 1;
        if self.profile.persistence.pmr_persistent || self.has_bug_skipped_flush() {
            return self.answer(due, id, Status::SUCCESS, through);
        }
        self.barriers.push_back(Barrier { id, due, through });
    }

    fn idle_due(&self) -> Nanos {
        self.drained.last_write.saturating_add(self.profile.write_buffer.drain_idle_ns)
    }

    fn idle_timer(&mut self, now: Nanos) {
        if self.drained.idle_armed && now >= self.idle_due() {
            self.drained.idle_armed = false;
            self.drained.idle = true;
        }
    }

    /// Lets waiting writes in, in their order, as far as there is room.
    fn admit(&mut self, now: Nanos) -> bool {
        let mut admitted = false;
        while let Some(front) = self.waiting.front() {
            if !self.log.fits(front.records.iter().map(|record| record.stored_bytes)) {
                break;
            }
            let Some(waiting) = self.waiting.pop_front() else { break };
            self.admit_one(now, &waiting);
            admitted = true;
        }
        admitted
    }

    fn admit_one(&mut self, now: Nanos, waiting: &Waiting) {
        let mut start = 0;
        for record in &waiting.records {
            let end = (start + record.stored_bytes as usize).min(waiting.payload.len());
            self.commit(*record, &waiting.payload[start..end]);
            start = end;
        }
        if waiting.answered {
            return;
        }
        self.committed(now, waiting.id, waiting.meta, waiting.due);
    }

    fn wants_drain(&self) -> bool {
        let level = u128::from(self.drained.undrained_bytes) * 1000;
        let start = u128::from(self.log.ring_bytes()) * u128::from(self.profile.write_buffer.drain_start_permille);
        self.drained.idle
            || !self.waiting.is_empty()
            || level > start
            || self.barriers.iter().any(|barrier| barrier.through > self.drained.through)
    }

    /// Hands records to the flash, oldest first, until it is busy, no reason is left, or `left` are done.
    fn drain(&mut self, now: Nanos, left: &mut u32) -> bool {
        let mut drained = false;
        while *left > 0 && self.wants_drain() {
            let Some(record) = self.log.record(self.drained.through + 1).copied() else { break };
            match self.hand_over(now, &record) {
                Ok(append) => self.handed_over(&record, append),
                Err(Backpressure::Busy) => break,
                // Only superblocks that were retired since admission can take space away.
                Err(Backpressure::Full) => {
                    self.give_up(now, Status::CAPACITY_EXCEEDED);
                    break;
                }
                Err(Backpressure::ReadOnly(error)) => {
                    self.give_up(now, refusal(error));
                    break;
                }
            }
            *left -= 1;
            drained = true;
        }
        drained
    }

    fn hand_over(&mut self, now: Nanos, record: &Record) -> Result<AppendId, Backpressure> {
        match record.kind {
            RecordKind::Pad => Ok(self.ftl.last_append()),
            RecordKind::Trim if self.has_bug_lost_trim() => Ok(self.ftl.last_append()),
            RecordKind::Trim => self.ftl.trim(now, record.slba, record.blocks, record.sequence),
            RecordKind::Data if !self.params.with_data => self.ftl.append(now, &extent_of(record), None),
            RecordKind::Data => {
                self.scratch.resize(record.stored_bytes as usize, 0);
                self.log.read_payload(record.sequence, &mut self.scratch);
                self.ftl.append(now, &extent_of(record), Some(&self.scratch))
            }
        }
    }

    fn handed_over(&mut self, record: &Record, append: AppendId) {
        self.drained.through = record.sequence;
        self.drained.undrained_bytes -= record.ring_bytes();
        if record.kind != RecordKind::Pad {
            self.drained.reserved_bytes -= u64::from(extent_footprint(record.stored_bytes));
        }
        self.drained.unprogrammed.push_back((record.sequence, append));
        if append <= self.ftl.durable_through() {
            self.programmed(append);
        }
        if self.has_bug_early_release() {
            self.release(record.sequence);
        }
    }

    /// All appends up to this one are in programmed pages.
    fn programmed(&mut self, append: AppendId) {
        while let Some(&(sequence, _)) = self.drained.unprogrammed.front().filter(|(_, at)| *at <= append) {
            self.drained.unprogrammed.pop_front();
            self.drained.programmed = sequence;
        }
        if !self.profile.persistence.pmr_persistent {
            self.release(self.drained.programmed);
        }
    }

    /// The records up to `sequence` are to be freed.
    fn release(&mut self, sequence: u64) {
        self.drained.free_through = self.drained.free_through.max(sequence);
    }

    /// Frees what is to be freed, up to one poll's worth; whether that was all.
    fn free(&mut self) -> bool {
        for _ in 0..FREED_PER_POLL {
            let oldest = self.log.records().next();
            let Some(record) = oldest.filter(|r| r.sequence <= self.drained.free_through).copied() else { return true };
            if record.kind != RecordKind::Pad {
                self.pending.remove(record.slba.0, u64::from(record.blocks), record.sequence);
            }
            self.log.release_through(record.sequence);
        }
        false
    }

    /// Closes the open page where someone waits for what is in it, and asks for the sync that a
    /// barrier or the buffer needs.
    fn close_and_sync(&mut self, now: Nanos) {
        let all_handed_over = self.drained.undrained_bytes == 0;
        let barrier = self.barriers.iter().rev().find(|barrier| barrier.through <= self.drained.through);
        let barrier_waits = barrier.is_some_and(|barrier| barrier.through > self.sync_covers());
        let idle = std::mem::take(&mut self.drained.idle);
        if barrier_waits || (all_handed_over && (idle || !self.waiting.is_empty())) {
            self.ftl.close_page(now);
        }
        // Idle goes on until the last record was handed over, and, if the buffer waits for it, synced.
        let release = self.wants_release(idle);
        self.drained.idle = idle && (!all_handed_over || release);
        if barrier_waits {
            self.sync(now, self.drained.through);
        } else if release && self.drained.syncs.is_empty() && self.drained.programmed > self.drained.synced {
            self.sync(now, self.drained.programmed);
        }
    }

    /// Whether the buffer needs a sync to free records. Media that failed never sync again: to ask would be for ever.
    fn wants_release(&self, idle: bool) -> bool {
        let is_synced = self.drained.through <= self.drained.synced;
        if !self.profile.persistence.pmr_persistent || is_synced || self.ftl.read_only().is_some() {
            return false;
        }
        let unsynced = self.log.live_bytes() - self.drained.undrained_bytes;
        let freeing = self.log.records().next().is_some_and(|oldest| oldest.sequence <= self.drained.free_through);
        let much = unsynced >= self.log.ring_bytes() / RELEASE_PARTS;
        idle || !self.waiting.is_empty() || (much && !freeing)
    }

    /// The newest record that is synced or on its way to be.
    fn sync_covers(&self) -> u64 {
        self.drained.syncs.back().map_or(self.drained.synced, |(_, through)| *through)
    }

    fn sync(&mut self, now: Nanos, through: u64) {
        let id = self.ftl.sync(now);
        self.counters.syncs += 1;
        self.drained.syncs.push_back((id, through));
    }

    fn sync_done(&mut self, now: Nanos, id: SyncId, result: Result<(), MediaError>) {
        let Some(position) = self.drained.syncs.iter().position(|(sync, _)| *sync == id) else {
            return;
        };
        let (_, through) = self.drained.syncs.remove(position).unwrap_or((id, 0));
        if let Err(error) = result {
            return self.give_up(now, refusal(error));
        }
        self.drained.synced = self.drained.synced.max(through);
        if self.profile.persistence.pmr_persistent {
            self.release(self.drained.synced);
        }
    }

    fn answer_barriers(&mut self, now: Nanos) {
        while let Some(front) = self.barriers.front() {
            if front.through > self.drained.synced {
                break;
            }
            let (id, due, through) = (front.id, front.due.max(now), front.through);
            self.barriers.pop_front();
            self.answer(due, id, Status::SUCCESS, through);
        }
    }

    /// The flash takes nothing any more: whoever waits for it is told. What is in the buffer stays
    /// there, and is read from there.
    fn give_up(&mut self, now: Nanos, status: Status) {
        while let Some(waiting) = self.waiting.pop_front() {
            self.unreserve(&waiting.records);
            self.answer(now, waiting.id, status, 0);
        }
        while let Some(barrier) = self.barriers.pop_front() {
            self.answer(now, barrier.id, status, 0);
        }
        self.drained.idle = false;
    }
}
