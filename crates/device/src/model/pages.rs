//! What the pages of a command meet: the cache, or on the way around it, the flash.

use osier_cache::{ALL_LINES, Op as CacheOp, Outcome as Asked, Prefetched, Presence};

use super::blocked::Blocked;
use super::config::BlockCommands;
use super::front::LINE_BYTES;
use super::planted::Bug;
use super::{Causes, Met, Model, Op, Outcome, PAGE_BYTES};

/// A page of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub job: u32,
    pub page: u64,
    /// What is done to which lines.
    pub op: CacheOp,
}

/// The lines of a page that bytes from `start` to `end` of it touch, one bit each; of the whole page, all of any page.
fn lines(start: u64, end: u64) -> u64 {
    if start == 0 && end == PAGE_BYTES {
        return ALL_LINES;
    }
    let (first, last) = (start / LINE_BYTES, (end - 1) / LINE_BYTES);
    (ALL_LINES >> (63 - (last - first))) << first
}

impl Model {
    /// The pages of a command begin, all at once.
    pub(super) fn begin_pages(&mut self, job: u32) {
        let now = self.now.0;
        let state = &mut self.jobs[job];
        (state.start, state.end) = (now, now);
        // One part more, so that the command does not end while its parts are begun.
        state.left = 1;
        let op = state.command.op;
        if state.outcome == Outcome::Ok {
            match op {
                Op::Flush => self.begin_flush(job),
                Op::Trim => self.begin_trim(job),
                Op::Read | Op::Write | Op::Load | Op::Store if self.goes_around(op) => self.go_around(job),
                Op::Read | Op::Write | Op::Load | Op::Store => self.go_through(job),
            }
        }
        self.part_over(job);
    }

    #[inline]
    fn goes_around(&self, op: Op) -> bool {
        let Some(cache) = &self.config.cache else { return true };
        matches!(op, Op::Read | Op::Write) && cache.block_commands == BlockCommands::Around
    }

    /// What a command does to a page.
    #[inline]
    fn page_at(&self, job: u32, page: u64) -> Page {
        let command = &self.jobs[job].command;
        let base = page * PAGE_BYTES;
        let start = command.address.max(base) - base;
        let end = (command.address + u64::from(command.bytes)).min(base + PAGE_BYTES) - base;
        let is_write = matches!(command.op, Op::Write | Op::Store);
        Page { job, page, op: CacheOp { is_write, lines: lines(start, end) } }
    }

    #[inline]
    fn pages_of(&self, job: u32) -> std::ops::RangeInclusive<u64> {
        let command = &self.jobs[job].command;
        let last = command.address + u64::from(command.bytes) - 1;
        command.address / PAGE_BYTES..=last / PAGE_BYTES
    }

    fn go_through(&mut self, job: u32) {
        let (first, last) = self.pages_of(job).into_inner();
        // All of them, so that the command does not end while its pages are begun.
        self.jobs[job].left += (last - first + 1) as u32;
        let mut next = first;
        while next <= last {
            let page = self.page_at(job, next);
            if !self.ask_cache(page) {
                self.block(Blocked::Page(page));
                self.counts.blocked += 1;
            }
            next += 1;
        }
        self.start_reads();
    }

    /// Asks the cache for a page; `false` means that it has to be asked again.
    fn ask_cache(&mut self, page: Page) -> bool {
        let Some(cache) = &mut self.cache else { unreachable!("without a cache everything goes around it") };
        match cache.request(page.page, page.op) {
            Asked::Hit { .. } | Asked::LogHit | Asked::Logged => {
                let blocked_ns = self.now.0 - self.jobs[page.job].start;
                let lead = Causes { frame: blocked_ns, ..Causes::default() };
                let met = if blocked_ns > 0 { Met::Miss } else { Met::Hit };
                self.met(page.job, met);
                self.end_in_dram(page, lead);
            }
            Asked::Merged { frame } => {
                self.met(page.job, Met::Merged);
                self.wait_for_frame(page, frame);
            }
            Asked::Miss(fill) => {
                self.met(page.job, Met::Miss);
                let fill = self.begin_fill(fill);
                self.wait_for_fill(page, fill);
            }
            Asked::Wait(_) => return false,
        }
        self.prefetch_wanted();
        self.compact();
        true
    }

    #[inline]
    pub(super) fn met(&mut self, job: u32, met: Met) {
        let state = &mut self.jobs[job];
        state.met = state.met.max(met);
    }

    #[inline]
    fn prefetch_wanted(&mut self) {
        let Some(cache) = &mut self.cache else { return };
        if cache.wanted().is_empty() {
            return;
        }
        let mut wanted = std::mem::take(&mut self.fills.wanted);
        wanted.extend_from_slice(cache.wanted());
        let pages = self.config.flash.ftl.logical_units;
        for page in wanted.drain(..).filter(|page| *page < pages) {
            if self.fills.are_enough() {
                self.counts.prefetches_dropped += 1;
                continue;
            }
            let Some(cache) = &mut self.cache else { break };
            if let Prefetched::Started(fill) = cache.prefetch(page) {
                let _ = self.begin_fill(fill);
            }
        }
        self.fills.wanted = wanted;
    }

    /// The bytes of a page are in its frame, or go there: what is left is the access to DRAM, and below it what has
    /// to be written at once. `lead` says where the time went since the pages were begun.
    pub(super) fn end_in_dram(&mut self, page: Page, mut lead: Causes) {
        let dram_ns = self.fills.dram_ns(page.op);
        lead.dram += dram_ns;
        if page.op.is_write && self.writes_below(page.job) {
            return self.program_page(page, lead, self.now.0 + dram_ns);
        }
        self.part_done(page.job, self.now.0 + dram_ns, &lead);
    }

    /// Whether what a command writes to a resident page goes to the flash at once.
    fn writes_below(&self, job: u32) -> bool {
        if self.has_bug(Bug::ForgetWriteThrough) {
            return false;
        }
        let through = self.cache.as_ref().is_some_and(osier_cache::Cache::writes_through);
        through || self.goes_around(self.jobs[job].command.op)
    }

    fn program_page(&mut self, page: Page, lead: Causes, ready: u64) {
        if let Some(cache) = &mut self.cache
            && let Presence::Resident { is_dirty: true, .. } = cache.presence(page.page)
        {
            // The page is resident: that was looked at.
            let _ = cache.mark_clean(page.page);
        }
        self.counts.pages_written += 1;
        self.program_part(page.job, page.page, 1, lead, ready);
    }

    /// The pages of a command that goes around the cache, or that has none to go through.
    fn go_around(&mut self, job: u32) {
        // Pages that are on the flash alone go together.
        let (mut first, mut count) = (0, 0);
        for page in self.pages_of(job) {
            let page = self.page_at(job, page);
            if self.is_plain(page) && count > 0 && first + u64::from(count) == page.page {
                count += 1;
                continue;
            }
            self.end_run(job, first, std::mem::take(&mut count));
            if self.is_plain(page) {
                (first, count) = (page.page, 1);
            } else {
                self.jobs[job].left += 1;
                self.go_around_alone(page);
            }
        }
        self.end_run(job, first, count);
        self.start_reads();
    }

    /// Whether a page concerns the flash alone, as a whole.
    fn is_plain(&self, page: Page) -> bool {
        let is_absent = match self.presence(page.page) {
            Presence::Absent => true,
            Presence::Resident { .. } | Presence::Filling { .. } => {
                self.has_bug(Bug::ReadPastDirty) && !page.op.is_write
            }
            Presence::Draining => page.op.is_write,
        };
        let is_whole = !page.op.is_write || page.op.lines == ALL_LINES;
        is_absent && is_whole && (page.op.is_write || !self.below.is_waiting(page.page))
    }

    fn presence(&self, page: u64) -> Presence {
        self.cache.as_ref().map_or(Presence::Absent, |cache| cache.presence(page))
    }

    fn end_run(&mut self, job: u32, first: u64, pages: u32) {
        if pages == 0 {
            return;
        }
        self.jobs[job].left += 1;
        if matches!(self.jobs[job].command.op, Op::Write | Op::Store) {
            self.counts.pages_written += u64::from(pages);
            return self.program_part(job, first, pages, Causes::default(), self.now.0);
        }
        if !self.read_part(job, first, pages) {
            self.block(Blocked::Read { job, first, pages });
            self.counts.blocked += 1;
        }
    }

    /// A page that is not on the flash alone, or a part of one.
    fn go_around_alone(&mut self, page: Page) {
        match self.presence(page.page) {
            Presence::Resident { .. } => {
                self.met(page.job, Met::Hit);
                self.end_in_dram(page, Causes::default());
            }
            Presence::Filling { frame } => {
                self.met(page.job, Met::Merged);
                self.wait_for_frame(page, frame);
            }
            // Its bytes are still in the device's memory.
            Presence::Draining if !page.op.is_write => self.end_in_dram(page, Causes::default()),
            Presence::Draining => self.program_part_of_page(page),
            Presence::Absent if self.below.is_waiting(page.page) => {
                if page.op.is_write {
                    self.program_part_of_page(page);
                } else {
                    self.part_done(page.job, self.now.0, &Causes::default());
                }
            }
            Presence::Absent => self.begin_merge(page),
        }
    }

    fn program_part_of_page(&mut self, page: Page) {
        self.counts.pages_written += 1;
        self.program_part(page.job, page.page, 1, Causes::default(), self.now.0);
    }

    pub(super) fn ask_cache_again(&mut self, page: Page) -> bool {
        let done = self.ask_cache(page);
        if done {
            self.met(page.job, Met::Miss);
        }
        done
    }
}
