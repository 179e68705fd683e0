//! What the model asks of the flash: reads, programs, flushes and trims, and the compaction of the write log.

use std::collections::VecDeque;

use osier_cache::{ALL_LINES, Compaction, PageMap, Presence};
use osier_flash::page::{Completed, Done, Outcome as Asked, Refused, RequestId, Status};

use super::agenda::Event;
use super::blocked::Blocked;
use super::pages::Page;
use super::planted::Bug;
use super::slab::{NONE, Slab};
use super::{Causes, Model, Op, Outcome, PAGE_BYTES};

/// Most parts of commands that wait for programs or for reads to merge.
const PARTS_MAX: u32 = 1 << 28;

/// What a request that waits in the flash is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The read of a fill, and of those that follow it in its run.
    Fill(u32),
    /// The read of a part of a command.
    Read(u32),
    /// The read that a partial write needs.
    Merge(u32),
    /// The read that a compaction needs.
    CompactRead,
    /// A program.
    Program(Program),
    /// The flush of a command.
    Flush(u32),
}

/// A program: pages, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    first: u64,
    pages: u32,
    cause: ProgramCause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProgramCause {
    /// A page left the cache dirty; the fill that needs its frame, or none.
    Drain(u32),
    /// A part of a command.
    Part(u32),
    /// A flush.
    Flush,
    /// The compaction of the write log.
    Compaction,
}

/// A part of a command that waits until the flash has its bytes.
#[derive(Clone, Copy, Debug)]
struct Part {
    job: u32,
    lead: Causes,
    /// When everything else is done.
    ready: u64,
    /// Whether collection had no space for it when it was handed to the flash.
    behind_collection: bool,
}

/// A partial write that waits for the rest of its page.
#[derive(Clone, Copy, Debug)]
struct Merge {
    page: Page,
    causes: Causes,
}

/// A flush that waits for programs.
#[derive(Clone, Copy, Debug)]
struct Flush {
    job: u32,
    /// Programs asked for before.
    programs: u64,
    /// Compactions of a half of the log that have to end.
    halves: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Below {
    /// Requests that wait in the flash; their numbers rise by one.
    waits: VecDeque<Option<Purpose>>,
    first_id: u64,
    /// How many of these have not ended, and how many programs are in the queue.
    awaited: usize,
    /// Programs that the flash had no room for.
    queue: VecDeque<Program>,
    /// Programs asked for, and those that the flash has.
    asked: u64,
    taken: u64,
    /// Pages whose program the flash does not have, and how many of these each has.
    pages: PageMap,
    parts: Slab<Part>,
    merges: Slab<Merge>,
    flushes: VecDeque<Flush>,
    compacting: Option<Compaction>,
    /// A trim waits for room among those on record.
    trim_waits: bool,
    completed: Vec<Completed>,
}

impl Below {
    pub(super) fn new() -> Below {
        Below {
            waits: VecDeque::new(),
            first_id: 0,
            awaited: 0,
            queue: VecDeque::new(),
            asked: 0,
            taken: 0,
            pages: PageMap::default(),
            parts: Slab::new(PARTS_MAX),
            merges: Slab::new(PARTS_MAX),
            flushes: VecDeque::new(),
            compacting: None,
            trim_waits: false,
            completed: Vec::new(),
        }
    }

    pub(super) fn wait(&mut self, id: RequestId, purpose: Purpose) {
        if self.waits.is_empty() {
            self.first_id = id.0;
        }
        assert_eq!(self.first_id + self.waits.len() as u64, id.0, "every request that waits is noted");
        self.waits.push_back(Some(purpose));
        self.awaited += 1;
    }

    fn ended(&mut self, id: RequestId) -> Purpose {
        let index = (id.0 - self.first_id) as usize;
        let purpose = self.waits[index].take().expect("a request ends once");
        while self.waits.front().is_some_and(Option::is_none) {
            self.waits.pop_front();
            self.first_id += 1;
        }
        self.awaited -= 1;
        purpose
    }

    /// Whether bytes of a page are still to be handed to the flash: they are in the controller's memory.
    #[inline]
    pub(super) fn is_waiting(&self, page: u64) -> bool {
        self.pages.get(page).is_some()
    }

    fn note(&mut self, program: &Program) {
        for page in program.first..program.first + u64::from(program.pages) {
            if let Some(others) = self.pages.insert(page, 1) {
                self.pages.insert(page, others + 1);
            }
        }
    }

    fn forget(&mut self, program: &Program) {
        for page in program.first..program.first + u64::from(program.pages) {
            let count = self.pages.remove(page).expect("the page was noted");
            if count > 1 {
                self.pages.insert(page, count - 1);
            }
        }
    }
}

fn causes_of(done: &Done) -> Causes {
    Causes {
        die: done.wait_host_ns,
        collection: done.wait_collection_ns,
        channel: done.wait_channel_ns,
        sense: done.array_ns,
        retry: done.retry_ns,
        transfer: done.transfer_ns,
        map: done.map_ns,
        ..Causes::default()
    }
}

impl Model {
    /// When the flash has something that is waited for; `u64::MAX` when not.
    #[inline]
    pub(super) fn next_below(&self) -> u64 {
        if self.below.awaited == 0 && !self.below.trim_waits {
            return u64::MAX;
        }
        self.ftl.next_event().map_or(u64::MAX, |at| at.0)
    }

    /// The flash does what is due now.
    #[inline(never)]
    pub(super) fn take_from_flash(&mut self) {
        let mut completed = std::mem::take(&mut self.below.completed);
        self.ftl.poll(self.now, &mut completed);
        for Completed { id, done } in completed.drain(..) {
            self.flash_ended(id, &done);
        }
        self.below.completed = completed;
        self.hand_down_queue();
        self.retry |= !self.blocked.is_empty();
    }

    fn flash_ended(&mut self, id: RequestId, done: &Done) {
        match self.below.ended(id) {
            Purpose::Fill(first) => self.run_read(first, done),
            Purpose::Read(job) => self.part_read(job, done),
            Purpose::Merge(merge) => self.merge_read(merge, done),
            Purpose::CompactRead => self.agenda.push(done.due.0, Event::CompactRead),
            Purpose::Program(program) => {
                self.below.forget(&program);
                self.taken(&program, done.status);
            }
            Purpose::Flush(job) => self.flushed(job),
        }
    }

    /// Reads pages of a command that only the flash has; `false` when it has no room.
    pub(super) fn read_part(&mut self, job: u32, first: u64, pages: u32) -> bool {
        match self.ftl.read(self.now, first, pages) {
            Ok(Asked::Done(done)) => self.part_read(job, &done),
            Ok(Asked::Waiting(id)) => self.below.wait(id, Purpose::Read(job)),
            Err(_) => return false,
        }
        true
    }

    fn part_read(&mut self, job: u32, done: &Done) {
        let mut causes = causes_of(done);
        if self.has_bug(Bug::SenseTwice) {
            causes.sense *= 2;
        }
        let state = &mut self.jobs[job];
        if done.status == Status::Uncorrectable {
            state.outcome = state.outcome.max(Outcome::Uncorrectable);
        }
        // What is left over was waited for before the flash took it.
        causes.frame = (done.due.0 - state.start).saturating_sub(causes.total());
        self.part_done(job, done.due.0, &causes);
    }

    /// A part of a page is written of which only the flash has the rest.
    pub(super) fn begin_merge(&mut self, page: Page) {
        let merge = self.below.merges.insert(Merge { page, causes: Causes::default() });
        match self.ftl.read(self.now, page.page, 1) {
            Ok(Asked::Done(done)) => self.merge_read(merge, &done),
            Ok(Asked::Waiting(id)) => self.below.wait(id, Purpose::Merge(merge)),
            Err(refused) => panic!("a command reads a page at most twice: {refused}"),
        }
    }

    fn merge_read(&mut self, merge: u32, done: &Done) {
        let state = &mut self.below.merges[merge];
        state.causes = causes_of(done);
        if done.status == Status::Uncorrectable {
            let outcome = &mut self.jobs[state.page.job].outcome;
            *outcome = (*outcome).max(Outcome::Uncorrectable);
        }
        self.agenda.push(done.due.0, Event::Merge(merge));
    }

    /// The rest of a page was read: it is programmed.
    pub(super) fn merge(&mut self, merge: u32) {
        let Merge { page, causes } = self.below.merges[merge];
        self.below.merges.remove(merge);
        if self.jobs[page.job].outcome != Outcome::Ok {
            return self.part_done(page.job, self.now.0, &causes);
        }
        self.counts.pages_written += 1;
        self.program_part(page.job, page.page, 1, causes, self.now.0);
    }

    /// A page left the cache dirty; `fill` needs its frame.
    pub(super) fn drain(&mut self, page: u64, fill: u32) {
        if self.has_bug(Bug::ForgetDrain) {
            return self.drained(page, fill);
        }
        self.counts.pages_drained += 1;
        self.program(Program { first: page, pages: 1, cause: ProgramCause::Drain(fill) });
    }

    fn drained(&mut self, page: u64, fill: u32) {
        let Some(cache) = &mut self.cache else { unreachable!("pages leave a cache") };
        cache.drained(page);
        self.freed(page);
        if fill == NONE {
            self.retry = true;
        } else {
            self.retry |= !self.blocked.is_empty();
            self.fill_drained(fill);
        }
    }

    /// Programs pages of a command; they are done at `ready`, or when the flash has them. `lead` says where the time up
    /// to `ready` went.
    pub(super) fn program_part(&mut self, job: u32, first: u64, pages: u32, lead: Causes, ready: u64) {
        let part = self.below.parts.insert(Part { job, lead, ready, behind_collection: false });
        self.program(Program { first, pages, cause: ProgramCause::Part(part) });
    }

    fn program(&mut self, program: Program) {
        self.below.asked += 1;
        if self.below.queue.is_empty() && self.hand_down(&program) {
            return;
        }
        self.below.note(&program);
        self.below.queue.push_back(program);
        self.below.awaited += 1;
    }

    fn hand_down_queue(&mut self) {
        while let Some(program) = self.below.queue.front().copied() {
            // It is noted again if it waits in the flash.
            self.below.forget(&program);
            if !self.hand_down(&program) {
                self.below.note(&program);
                break;
            }
            self.below.queue.pop_front();
            self.below.awaited -= 1;
        }
    }

    /// Hands a program to the flash; `false` when too many wait there.
    fn hand_down(&mut self, program: &Program) -> bool {
        match self.ftl.write(self.now, program.first, program.pages, 0) {
            Ok(Asked::Done(_)) => self.taken(program, Status::Ok),
            Ok(Asked::Waiting(id)) => {
                if let ProgramCause::Part(part) = program.cause {
                    self.below.parts[part].behind_collection = self.ftl.is_out_of_space();
                }
                self.below.note(program);
                self.below.wait(id, Purpose::Program(*program));
            }
            Err(Refused::Busy) => return false,
            Err(Refused::ReadOnly) => self.taken(program, Status::ReadOnly),
            Err(refused @ Refused::OutOfRange { .. }) => {
                panic!("commands are in range, and so are their pages: {refused}")
            }
        }
        true
    }

    /// The flash has the bytes of a program, or will never take them.
    fn taken(&mut self, program: &Program, status: Status) {
        self.below.taken += 1;
        let is_lost = status != Status::Ok;
        match program.cause {
            ProgramCause::Part(part) => self.part_taken(part, is_lost),
            ProgramCause::Drain(fill) => {
                self.counts.pages_lost += u64::from(is_lost);
                self.drained(program.first, fill);
            }
            ProgramCause::Flush => self.counts.pages_lost += u64::from(is_lost),
            ProgramCause::Compaction => {
                self.counts.pages_lost += u64::from(is_lost);
                self.compacted();
            }
        }
        if !self.below.flushes.is_empty() {
            self.go_on_with_flushes();
        }
    }

    fn part_taken(&mut self, part: u32, is_lost: bool) {
        let Part { job, mut lead, ready, behind_collection } = self.below.parts[part];
        self.below.parts.remove(part);
        if is_lost {
            let outcome = &mut self.jobs[job].outcome;
            *outcome = (*outcome).max(Outcome::ReadOnly);
        }
        let waited_ns = self.now.0.saturating_sub(ready);
        if behind_collection {
            lead.collection += waited_ns;
        } else {
            lead.program += waited_ns;
        }
        self.part_done(job, ready.max(self.now.0), &lead);
    }

    /// Compacts the page of the write log that is next, if there is one and none is being compacted.
    #[inline]
    pub(super) fn compact(&mut self) {
        if self.cache.as_ref().is_some_and(|cache| cache.log().is_some()) && self.below.compacting.is_none() {
            self.compact_next();
        }
    }

    fn compact_next(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        let Some(next) = cache.next_compaction() else { return };
        self.below.compacting = Some(next);
        let is_resident = matches!(cache.presence(next.page), Presence::Resident { .. });
        if next.lines == 0 {
            return self.compacted();
        }
        if is_resident || next.lines == ALL_LINES || self.below.is_waiting(next.page) {
            return self.compact_program();
        }
        match self.ftl.read(self.now, next.page, 1) {
            Ok(Asked::Done(done)) => self.agenda.push(done.due.0, Event::CompactRead),
            Ok(Asked::Waiting(id)) => self.below.wait(id, Purpose::CompactRead),
            Err(refused) => panic!("one page is compacted at a time: {refused}"),
        }
    }

    /// All lines of the page that is compacted are at hand.
    pub(super) fn compact_program(&mut self) {
        let compaction = self.below.compacting.expect("a page is being compacted");
        self.counts.pages_compacted += 1;
        self.program(Program { first: compaction.page, pages: 1, cause: ProgramCause::Compaction });
    }

    fn compacted(&mut self) {
        self.below.compacting = None;
        let Some(cache) = &mut self.cache else { unreachable!("the log is the cache's") };
        cache.compacted();
        self.retry = true;
        if cache.log().is_some_and(|log| log.next_compaction().is_none()) {
            self.half_compacted();
        }
        self.compact();
    }

    fn half_compacted(&mut self) {
        let mut seals = false;
        for flush in &mut self.below.flushes {
            flush.halves = flush.halves.saturating_sub(1);
            seals |= flush.halves > 0;
        }
        if seals && !self.seal_log() {
            // Nothing was written to the other half.
            self.below.flushes.iter_mut().for_each(|flush| flush.halves = 0);
        }
        self.go_on_with_flushes();
    }

    /// Lets the half of the log that takes lines be compacted; whether it has any.
    fn seal_log(&mut self) -> bool {
        let Some(cache) = &mut self.cache else { return false };
        cache.seal_log();
        cache.log().is_some_and(|log| log.next_compaction().is_some())
    }

    /// A flush covers what ended before it came: dirty pages of the cache, lines of the write log, pages that are on
    /// their way to the flash, and what the flash has but has not programmed. What survives a loss of power in the
    /// cache needs none of it.
    pub(super) fn begin_flush(&mut self, job: u32) {
        self.jobs[job].left += 1;
        if self.config.cache.as_ref().is_some_and(|cache| cache.survives_power_loss) {
            return self.part_done(job, self.now.0, &Causes::default());
        }
        if !self.has_bug(Bug::FlushWithoutCache) {
            let dirty: Vec<u64> =
                self.cache.iter().flat_map(|cache| cache.dirty_pages()).map(|evicted| evicted.page).collect();
            for page in dirty {
                self.flush_page(page);
            }
        }
        let log = self.cache.as_ref().and_then(osier_cache::Cache::log);
        let halves = match log.map(|log| log.next_compaction().is_some()) {
            None => 0,
            // The half that takes lines follows the one that is being compacted.
            Some(true) => 2,
            Some(false) => u32::from(self.seal_log()),
        };
        self.below.flushes.push_back(Flush { job, programs: self.below.asked, halves });
        self.compact();
        self.go_on_with_flushes();
    }

    fn flush_page(&mut self, page: u64) {
        // It is resident: the cache has just named it. Until the flash has it, reads find it in the controller.
        if let Some(cache) = &mut self.cache {
            let _ = cache.mark_clean(page);
        }
        self.counts.pages_flushed += 1;
        self.program(Program { first: page, pages: 1, cause: ProgramCause::Flush });
    }

    /// Programs are handed to the flash in their order, and so flushes can go on in theirs.
    fn go_on_with_flushes(&mut self) {
        while let Some(&Flush { job, programs, halves }) = self.below.flushes.front() {
            let waits = halves > 0 || self.below.taken < programs;
            if waits && !self.has_bug(Bug::FlushWithoutWaiting) {
                break;
            }
            match self.ftl.flush(self.now) {
                Ok(Asked::Done(_)) => self.flushed(job),
                Ok(Asked::Waiting(id)) => self.below.wait(id, Purpose::Flush(job)),
                Err(_) => break,
            }
            self.below.flushes.pop_front();
        }
    }

    fn flushed(&mut self, job: u32) {
        let waited_ns = self.now.0 - self.jobs[job].start;
        self.part_done(job, self.now.0, &Causes { program: waited_ns, ..Causes::default() });
    }

    pub(super) fn begin_trim(&mut self, job: u32) {
        self.jobs[job].left += 1;
        if !self.trim(job) {
            self.block(Blocked::Trim(job));
        }
    }

    /// Trims the whole pages of a command, once none of them is on its way anywhere; `false` means to try again.
    pub(super) fn trim(&mut self, job: u32) -> bool {
        let command = self.jobs[job].command;
        debug_assert_eq!(command.op, Op::Trim);
        let end = (command.address + u64::from(command.bytes)) / PAGE_BYTES;
        let first = command.address.div_ceil(PAGE_BYTES).min(end);
        // All of them are looked at before one is dropped.
        if (first..end).any(|page| self.is_on_its_way(page)) {
            return false;
        }
        for page in first..end {
            self.drop_page(page);
        }
        self.below.trim_waits = false;
        match self.ftl.trim(self.now, first, (end - first) as u32) {
            Ok(_) => {}
            Err(Refused::ReadOnly) => self.jobs[job].outcome = Outcome::ReadOnly,
            Err(_) => {
                self.below.trim_waits = true;
                return false;
            }
        }
        let waited_ns = self.now.0 - self.jobs[job].start;
        self.part_done(job, self.now.0, &Causes { program: waited_ns, ..Causes::default() });
        true
    }

    fn is_on_its_way(&self, page: u64) -> bool {
        let moves = self
            .cache
            .as_ref()
            .is_some_and(|cache| matches!(cache.presence(page), Presence::Filling { .. } | Presence::Draining));
        let is_compacted = self.below.compacting.is_some_and(|compaction| compaction.page == page);
        moves || is_compacted || self.below.is_waiting(page)
    }

    /// Takes a trimmed page out of the cache; nobody needs its bytes.
    fn drop_page(&mut self, page: u64) {
        let keeps_dirty = self.has_bug(Bug::TrimKeepsDirty);
        let Some(cache) = &mut self.cache else { return };
        let forgot = cache.forget_logged(page);
        debug_assert!(forgot, "page {page} is not being compacted: that was looked at");
        let Presence::Resident { .. } = cache.presence(page) else { return };
        match cache.evict(page) {
            Ok(evicted) if evicted.is_dirty && !keeps_dirty => {
                self.counts.pages_dropped += 1;
                self.drained(page, NONE);
            }
            Ok(evicted) => self.left(evicted),
            // A pinned page stays, and has nothing to write.
            Err(_) => {
                let _ = cache.mark_clean(page);
            }
        }
    }
}
