//! Faults become fills, and are answered.

use osier_cache::{Evicted, Fill, Op as CacheOp, Outcome as Asked, Prefetched};
use osier_flash::Nanos;
use osier_flash::page::{Done, Outcome, Status};

use super::planted::Bug;
use super::{Event, Mapped, MapperId, Misuse, Output, Resident, Window};

/// Fills for which the reserve was not restored, at most: a few, so that it is never empty because of them alone.
const SHORT_MAX: usize = 4;

/// The first access to a page that a mapper does not map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Who.
    pub mapper: MapperId,
    /// Its name for the fault.
    pub lane: u16,
    /// The page.
    pub page: u64,
    /// Whether it stores.
    pub is_store: bool,
}

/// As what a page may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// For stores; it counts as dirty.
    Writable,
    /// So that a store leaves a trace that the scan after the zap finds.
    Armed,
    /// Not at all: the flash has lost its bytes, or refused them.
    Lost,
    /// Not at all: the device has no such page.
    NoSuchPage,
}

/// A fault that has to be asked again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocked {
    pub fault: Fault,
}

/// A page on its way in.
#[derive(Clone, Debug, Default)]
pub(super) struct Filling {
    page: u64,
    /// What the flash said, once it did.
    read: Option<Done>,
    is_draining: bool,
    /// When its bytes are in the frame: they are there already for whoever maps it then.
    due: Option<Nanos>,
    is_lost: bool,
    waiters: Vec<Fault>,
    mapped: Mapped,
}

impl Filling {
    pub(super) fn waits_for_frame(&self) -> bool {
        self.is_draining
    }

    pub(super) fn forget(&mut self, mapper: MapperId) {
        self.waiters.retain(|waiter| waiter.mapper != mapper);
        if self.mapped.by & mapper.bit() != 0 {
            self.mapped.by &= !mapper.bit();
            self.mapped.is_dirty = true;
        }
    }
}

impl<R: Resident> Window<R> {
    /// A mapper touched a page that it does not map. `now` is when it did.
    ///
    /// # Errors
    /// When it is not attached.
    pub fn fault(&mut self, now: Nanos, fault: Fault) -> Result<(), Misuse> {
        self.advance(now);
        if self.attached & fault.mapper.bit() == 0 {
            return Err(Misuse::NotAttached(fault.mapper));
        }
        if self.short.len() >= SHORT_MAX {
            self.reclaim();
        }
        self.counts.faults += 1;
        if fault.page >= self.pages {
            self.answer(&fault, self.now, Grant::NoSuchPage);
        } else if !self.ask(&fault) {
            self.counts.blocked += 1;
            self.blocked.push_back(Blocked { fault });
            self.reclaim();
            self.send_all_zaps();
        }
        if self.retry {
            self.retry_blocked();
        }
        Ok(())
    }

    /// Asks the cache for a page; `false` means that it has to be asked again.
    fn ask(&mut self, fault: &Fault) -> bool {
        // A single line: a store needs the rest of its page.
        match self.cache.request(fault.page, CacheOp { is_write: fault.is_store, lines: 1 }) {
            Asked::Hit { frame } => {
                let mapped = &mut self.mapped[frame as usize];
                mapped.by |= fault.mapper.bit();
                mapped.is_dirty |= fault.is_store;
                self.grant(fault, self.now);
            }
            Asked::Merged { frame } => self.join(frame, fault),
            Asked::Miss(fill) => {
                self.counts.misses += 1;
                self.begin(fill, Some(fault));
            }
            Asked::Wait(_) => return false,
            Asked::LogHit | Asked::Logged => unreachable!("a window has no write log"),
        }
        self.prefetch_wanted();
        true
    }

    fn prefetch_wanted(&mut self) {
        if self.cache.wanted().is_empty() {
            return;
        }
        let wanted = self.cache.wanted().to_vec();
        for page in wanted {
            if page >= self.pages {
                continue;
            }
            if self.fills.len() as u64 >= u64::from(self.fills_max) {
                self.counts.prefetches_dropped += 1;
            } else if let Prefetched::Started(fill) = self.cache.prefetch(page) {
                self.begin(fill, None);
            }
        }
    }

    /// The cache gave a frame to a page.
    pub(super) fn begin(&mut self, fill: Fill, fault: Option<&Fault>) {
        self.counts.fills += 1;
        let frame = fill.frame;
        let filling = Filling { page: fill.page, waiters: fault.copied().into_iter().collect(), ..Filling::default() };
        // The frame's old page leaves with what is known of it, before the frame is the new one's.
        let was = std::mem::take(&mut self.mapped[frame as usize]);
        self.fills.insert(frame, filling);
        if let Some(Evicted { page, .. }) = fill.evicted {
            let waits = !self.has_bug(Bug::AnswerBeforeLeft);
            if let Some(filling) = self.fills.get_mut(&frame) {
                filling.is_draining = waits;
            }
            self.leave(page, was, waits.then_some(frame), None);
            self.send_all_zaps();
        }
        self.short.push(fill.page);
        if self.reading >= self.fills_max || !self.queue.is_empty() {
            self.queue.push_back(frame);
        } else {
            self.read(frame);
        }
    }

    /// Lets pages leave until each set has its reserve again. A fault does not wait for it: it is done when the answers
    /// are out, or when the next one comes.
    pub(super) fn reclaim(&mut self) {
        while let Some(page) = self.short.pop() {
            while let Some(evicted) = self.cache.reclaim(page) {
                let was = std::mem::take(&mut self.mapped[evicted.frame as usize]);
                self.leave(evicted.page, was, None, None);
            }
        }
    }

    fn read(&mut self, frame: u32) {
        let Some(filling) = self.fills.get(&frame) else { unreachable!("a fill is read once") };
        self.reading += 1;
        match self.ftl.read(self.now, filling.page, 1) {
            Ok(Outcome::Done(done)) => self.read_ended(frame, done),
            Ok(Outcome::Waiting(id)) => _ = self.reads.insert(id, frame),
            Err(refused) => panic!("at most {} fills are read at a time: {refused}", self.fills_max),
        }
    }

    /// The flash says when it has read the page of a fill.
    pub(super) fn read_ended(&mut self, frame: u32, done: Done) {
        if let Some(filling) = self.fills.get_mut(&frame) {
            filling.read = Some(done);
        }
        self.conclude(frame);
    }

    /// What was in the frame of a fill has left.
    pub(super) fn frame_left(&mut self, frame: u32) {
        if let Some(filling) = self.fills.get_mut(&frame) {
            filling.is_draining = false;
        }
        self.conclude(frame);
    }

    /// Brings the bytes and answers, if everything that a fill waits for is known. Its end may lie in the future: then
    /// who waits knows it beforehand, and is not late by the time that a message takes.
    fn conclude(&mut self, frame: u32) {
        let Some(filling) = self.fills.get_mut(&frame) else { return };
        let Some(done) = filling.read.filter(|_| !filling.is_draining) else { return };
        let due = done.due.max(self.now);
        filling.due = Some(due);
        let (page, waiters) = (filling.page, std::mem::take(&mut filling.waiters));
        let is_lost = done.status != Status::Ok || !self.bring_bytes(page);
        if let Some(filling) = self.fills.get_mut(&frame) {
            filling.is_lost = is_lost;
        }
        self.push(due.0, Event::Arrived(frame));
        for waiter in &waiters {
            self.join(frame, waiter);
        }
    }

    /// The bytes of the flash unit that the FTL names go into the frame; `false` when they are damaged, or not the
    /// newest.
    fn bring_bytes(&mut self, page: u64) -> bool {
        if self.dropped.contains(&page) {
            return false;
        }
        let Ok(copy) = self.ftl.payload(page) else { return false };
        let Some(copy) = copy else {
            self.resident.load(page, None);
            return true;
        };
        let media = self.ftl.media();
        if !media.is_whole(copy) && !self.has_bug(Bug::ReadDamaged) {
            return false;
        }
        self.resident.load(page, Some(media.bytes(copy)));
        true
    }

    /// A fault waits for a fill, or is answered with its end.
    fn join(&mut self, frame: u32, fault: &Fault) {
        let Some(filling) = self.fills.get_mut(&frame) else { unreachable!("the page of the frame is on its way") };
        let Some(due) = filling.due else {
            filling.waiters.push(*fault);
            return;
        };
        let due = due.max(self.now);
        if filling.is_lost {
            return self.answer(fault, due, Grant::Lost);
        }
        filling.mapped.by |= fault.mapper.bit();
        filling.mapped.is_dirty |= fault.is_store;
        self.grant(fault, due);
    }

    /// The page is in its frame from `at` on.
    fn grant(&mut self, fault: &Fault, at: Nanos) {
        let grant = if fault.is_store { Grant::Writable } else { Grant::Armed };
        let ns = if fault.is_store { self.overhead.store_ns } else { self.overhead.load_ns };
        self.answer(fault, Nanos(at.0 + ns), grant);
    }

    fn answer(&mut self, fault: &Fault, due: Nanos, grant: Grant) {
        self.counts.lost += u64::from(grant == Grant::Lost);
        let Fault { mapper, lane, page, .. } = *fault;
        self.outputs.push_back(Output::Answer { mapper, lane, page, due, grant });
    }

    /// The page of a frame is resident, or lost.
    pub(super) fn arrived(&mut self, frame: u32) {
        let Some(filling) = self.fills.remove(&frame) else { unreachable!("a fill ends once") };
        self.reading -= 1;
        if filling.is_lost {
            self.counts.fills_failed += 1;
            self.cache.fill_failed(frame);
        } else {
            self.cache.fill_done(frame);
            // Whether it is dirty when it leaves is found out after its zap: until then the cache takes it for dirty.
            let marked = self.cache.mark_dirty(filling.page);
            debug_assert!(marked.is_ok(), "the page has just become resident");
            self.mapped[frame as usize] = filling.mapped;
        }
        if let Some(next) = self.queue.pop_front() {
            self.read(next);
        }
        self.retry = true;
    }

    /// Asks again for what is blocked, in the order of its coming.
    pub(super) fn retry_blocked(&mut self) {
        self.retry = false;
        for _ in 0..self.blocked.len() {
            let Some(blocked) = self.blocked.pop_front() else { break };
            if !self.ask(&blocked.fault) {
                self.blocked.push_back(blocked);
            }
        }
        self.go_on_with_commands();
        if !self.blocked.is_empty() {
            self.send_all_zaps();
        }
    }
}
