//! Faults become fills, and are answered.

use std::collections::VecDeque;

use osier_cache::{Evicted, Fill, Op as CacheOp, Outcome as Asked, Prefetched, Presence};
use osier_flash::Nanos;
use osier_flash::page::{Done, Outcome, Status};

use super::control::PIECE_PAGES;
use super::planted::Bug;
use super::{Effect, Event, Found, Mapped, MapperId, Misuse, Output, Resident, Window};

/// Pages that are brought in ahead and whose read waits, at most. A program that runs through pages touches them one
/// after another, and a fault stands for as many of them as are mapped with it: what those would have asked for one
/// by one is asked for at once.
const AHEAD_MAX: usize = 16;
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
    /// How many of the pages that follow it may map at the same time, at most.
    pub more_max: u8,
}

/// As what a page may be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// For stores; it counts as dirty, now or when its mark is looked for.
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
    /// A command began it, which is counted.
    pub is_of_command: bool,
    /// It was pinned meanwhile: its pins are those of the frame.
    pub is_pinned: bool,
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

/// Fills whose read waits, by frame: in one list those that faults wait for, in the other those that nobody waits for.
/// They take turns, so that neither keeps the other waiting for longer than it takes itself.
#[derive(Debug, Default)]
pub(super) struct Queue {
    wanted: VecDeque<u32>,
    ahead: VecDeque<u32>,
    is_aheads_turn: bool,
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.wanted.is_empty() && self.ahead.is_empty()
    }

    fn pop(&mut self) -> Option<u32> {
        let is_ahead = (self.is_aheads_turn || self.wanted.is_empty()) && !self.ahead.is_empty();
        self.is_aheads_turn = !is_ahead;
        if is_ahead { self.ahead.pop_front() } else { self.wanted.pop_front() }
    }

    /// A fault waits for it from now on.
    fn want(&mut self, frame: u32) {
        if let Some(at) = self.ahead.iter().position(|queued| *queued == frame) {
            self.ahead.remove(at);
            self.wanted.push_back(frame);
        }
    }

    /// Whether it waited.
    fn remove(&mut self, frame: u32) -> bool {
        let waited = self.wanted.len() + self.ahead.len();
        self.wanted.retain(|queued| *queued != frame);
        self.ahead.retain(|queued| *queued != frame);
        self.wanted.len() + self.ahead.len() < waited
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
        self.expect(fault.page);
        if self.short.len() >= SHORT_MAX {
            self.reclaim();
        }
        self.counts.faults += 1;
        if fault.page >= self.pages {
            self.answer(&fault, self.now, Grant::NoSuchPage, false);
        } else {
            self.ask_or_block(&fault);
        }
        if self.retry {
            self.retry_blocked();
        }
        Ok(())
    }

    /// A page will probably be read: its bytes are on their way to the processor while the cache and the flash decide.
    /// Where they probably are is enough for that.
    fn expect(&self, page: u64) {
        let copy = if page < self.pages { self.resident.held(page) } else { None };
        if let Some(bytes) = copy.and_then(|copy| self.ftl.media().at_hand(copy)) {
            self.resident.expect(bytes);
        }
    }

    /// Asks for a page, now or when something has left.
    pub(super) fn ask_or_block(&mut self, fault: &Fault) {
        if !self.ask(fault) {
            self.counts.blocked += 1;
            self.blocked.push_back(Blocked { fault: *fault });
            self.reclaim();
            self.send_all_zaps();
        }
    }

    /// Asks the cache for a page; `false` means that it has to be asked again.
    fn ask(&mut self, fault: &Fault) -> bool {
        if self.sampler.is_on() && self.meets_drawn(fault) {
            return true;
        }
        // A frame may be held by a program that does not answer: then another one, but not all of them in one go.
        for _ in 0..PIECE_PAGES {
            // A single line: a store needs the rest of its page.
            match self.cache.request(fault.page, CacheOp { is_write: fault.is_store, lines: 1 }) {
                Asked::Hit { frame } => {
                    let arms_again = self.has_bug(Bug::ArmAgain);
                    let mapped = &mut self.mapped[frame as usize];
                    // A page that it maps was unmapped without a zap: the window was frozen, or the system took the
                    // page to its swap. What traced the stores went with the mapping, and another trace would hide
                    // them.
                    let has_been = mapped.by & fault.mapper.bit() != 0 && !arms_again;
                    mapped.by |= fault.mapper.bit();
                    mapped.is_dirty |= fault.is_store;
                    self.grant(fault, self.now, has_been);
                }
                Asked::Merged { frame } => self.join(frame, fault),
                Asked::Miss(fill) if self.begin(fill, Some(fault)) => self.counts.misses += 1,
                Asked::Miss(_) => continue,
                Asked::Wait(_) => return false,
                Asked::LogHit | Asked::Logged => unreachable!("a window has no write log"),
            }
            self.prefetch_wanted();
            return true;
        }
        self.retry = true;
        false
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
            if self.queue.ahead.len() >= AHEAD_MAX {
                self.counts.prefetches_dropped += 1;
            } else if let Prefetched::Started(fill) = self.cache.prefetch(page) {
                self.brings_ahead |= self.begin(fill, None);
            }
        }
    }

    /// The cache gave a frame to a page. `false` if it will not have it, because the page that is to leave is mapped by
    /// somebody who does not answer.
    pub(super) fn begin(&mut self, fill: Fill, fault: Option<&Fault>) -> bool {
        let frame = fill.frame;
        // The frame's old page leaves with what is known of it, before the frame is the new one's.
        let was = std::mem::take(&mut self.mapped[frame as usize]);
        if let Some(Evicted { page, .. }) = fill.evicted.filter(|_| self.is_stuck(&was)) {
            self.leave(page, was, None, None);
            self.cache.fill_failed(frame);
            return false;
        }
        self.counts.fills += 1;
        let filling = Filling { page: fill.page, waiters: fault.copied().into_iter().collect(), ..Filling::default() };
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
            let is_wanted = fault.is_some() && !self.has_bug(Bug::RangeInOneGo);
            let waits = if is_wanted { &mut self.queue.wanted } else { &mut self.queue.ahead };
            waits.push_back(frame);
        } else {
            self.read(frame);
        }
        true
    }

    /// A fill waits for a frame that somebody does not give back: who waits for it asks again. Whether it was given up;
    /// one that was pinned waits, for its pins are the frame's.
    pub(super) fn give_up(&mut self, frame: u32) -> bool {
        if self.fills.get(&frame).is_none_or(|filling| filling.is_pinned) {
            return false;
        }
        let Some(filling) = self.fills.remove(&frame) else { return false };
        if !self.queue.remove(frame) {
            self.reads.retain(|_, read| *read != frame);
            self.read_is_over();
        }
        if filling.is_of_command {
            self.commands.fill_ended();
        }
        self.counts.fills_given_up += 1;
        self.cache.fill_failed(frame);
        self.blocked.extend(filling.waiters.into_iter().map(|fault| Blocked { fault }));
        self.retry = true;
        true
    }

    /// Another fill may be read.
    fn read_is_over(&mut self) {
        self.reading -= 1;
        if let Some(next) = self.queue.pop() {
            self.read(next);
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
        let brought = if done.status == Status::Ok { self.bring_bytes(page) } else { None };
        if let Some(filling) = self.fills.get_mut(&frame) {
            filling.is_lost = brought.is_none();
            filling.mapped.copy = brought.flatten();
        }
        self.push(due.0, Event::Arrived(frame));
        for waiter in &waiters {
            self.join(frame, waiter);
        }
    }

    /// The bytes of the flash unit that the FTL names go into the frame; `None` when they are damaged, or not the
    /// newest, else the copy that they are.
    fn bring_bytes(&mut self, page: u64) -> Option<Option<u64>> {
        if self.dropped.contains(&page) {
            return None;
        }
        let reads_damaged = self.has_bug(Bug::ReadDamaged);
        let Some(copy) = self.ftl.payload(page).ok()? else {
            self.trace.note(Effect::Loaded { page, copy: None });
            self.resident.load(page, None, None);
            return Some(None);
        };
        let found = self.ftl.media().read(copy, &mut self.room);
        self.trace.note(Effect::Read(match found {
            Some((_, true)) => Found::Whole,
            Some((_, false)) => Found::Damaged,
            None => Found::Nothing,
        }));
        let (bytes, _) = found.filter(|(_, is_whole)| *is_whole || reads_damaged)?;
        self.trace.note(Effect::Loaded { page, copy: Some(copy) });
        self.resident.load(page, Some(copy), Some(bytes));
        Some(Some(copy))
    }

    /// A fault waits for a fill, or is answered with its end.
    fn join(&mut self, frame: u32, fault: &Fault) {
        let Some(filling) = self.fills.get_mut(&frame) else { unreachable!("the page of the frame is on its way") };
        let Some(due) = filling.due else {
            filling.waiters.push(*fault);
            self.queue.want(frame);
            return;
        };
        let due = due.max(self.now);
        if filling.is_lost {
            return self.answer(fault, due, Grant::Lost, false);
        }
        filling.mapped.by |= fault.mapper.bit();
        filling.mapped.is_dirty |= fault.is_store;
        self.grant(fault, due, false);
    }

    /// The page is in its frame from `at` on. One that the mapper has had is not armed.
    fn grant(&mut self, fault: &Fault, at: Nanos, has_been: bool) {
        let grant = if fault.is_store || has_been { Grant::Writable } else { Grant::Armed };
        let ns = if fault.is_store { self.overhead.store_ns } else { self.overhead.load_ns };
        self.answer(fault, Nanos(at.0 + ns), grant, false);
    }

    pub(super) fn answer(&mut self, fault: &Fault, due: Nanos, grant: Grant, is_sample: bool) {
        self.counts.lost += u64::from(grant == Grant::Lost);
        let Fault { mapper, lane, page, more_max, .. } = *fault;
        // How many there are is looked at when the answer is handed out: what was wanted with the page has begun then.
        self.outputs.push_back(Output::Answer { mapper, lane, page, due, grant, more: more_max, is_sample });
    }

    /// Says with each answer which of the pages that follow are mapped with it: those that somebody brought in ahead,
    /// that are there when it is due, and that nobody maps. They count as used, because nobody hears of their use.
    pub(super) fn extend_answers(&mut self) {
        let mut outputs = std::mem::take(&mut self.outputs);
        for output in &mut outputs {
            let Output::Answer { mapper, page, due, grant, more, .. } = output else { continue };
            let more_max = std::mem::take(more);
            if !self.brings_ahead || matches!(grant, Grant::Lost | Grant::NoSuchPage) {
                continue;
            }
            while *more < more_max && self.grant_ahead(*mapper, *page + 1 + u64::from(*more), *due) {
                *more += 1;
            }
        }
        // What that brought in is not answered: nobody waits for it.
        outputs.append(&mut self.outputs);
        self.outputs = outputs;
    }

    /// Grants a page for loads to who has not asked for it; whether it is there at `due` and mapped by nobody.
    fn grant_ahead(&mut self, mapper: MapperId, page: u64, due: Nanos) -> bool {
        let is_early = self.has_bug(Bug::AheadTooEarly);
        if self.sampler.has(page) {
            return false;
        }
        let mapped = match self.cache.presence(page) {
            Presence::Resident { frame, .. } => self.mapped.get_mut(frame as usize),
            Presence::Filling { frame } => self
                .fills
                .get_mut(&frame)
                .filter(|filling| is_early || filling.due.is_some_and(|at| at <= due) && !filling.is_lost)
                .map(|filling| &mut filling.mapped),
            Presence::Absent | Presence::Draining => None,
        };
        let Some(mapped) = mapped.filter(|mapped| mapped.by == 0) else { return false };
        mapped.by = mapper.bit();
        mapped.drawn &= !mapper.bit();
        self.counts.ahead += 1;
        // A hit, or one that came while the page was on its way: it asks for nothing.
        self.cache.request(page, CacheOp { is_write: false, lines: 1 });
        self.prefetch_wanted();
        true
    }

    /// The page of a frame is resident, or lost.
    pub(super) fn arrived(&mut self, frame: u32) {
        let Some(filling) = self.fills.remove(&frame) else { unreachable!("a fill ends once") };
        if filling.is_of_command {
            self.commands.fill_ended();
        }
        if filling.is_lost {
            self.counts.fills_failed += 1;
            self.cache.fill_failed(frame);
            self.commands.page_lost(filling.page);
        } else {
            self.cache.fill_done(frame);
            let cell = self.cell(filling.page);
            self.map[cell] += 1;
            // Whether it is dirty when it leaves is found out after its zap: until then the cache takes it for dirty.
            let marked = self.cache.mark_dirty(filling.page);
            debug_assert!(marked.is_ok(), "the page has just become resident");
            self.mapped[frame as usize] = filling.mapped;
        }
        self.read_is_over();
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
        self.commands.changed();
        if !self.blocked.is_empty() {
            self.send_all_zaps();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Queue;

    #[test]
    fn what_is_wanted_and_what_is_not_take_turns() {
        let mut queue = Queue { wanted: [1, 2, 3].into(), ahead: [10, 11, 12, 13].into(), ..Queue::default() };
        queue.want(13);
        queue.want(2);
        assert!(queue.remove(11) && queue.remove(2) && !queue.remove(99));
        let order: Vec<u32> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [1, 10, 3, 12, 13]);
        assert!(queue.is_empty());
    }
}
