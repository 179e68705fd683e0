//! Pages that come from the flash into frames of the cache.

use std::collections::VecDeque;

use osier_cache::{ALL_LINES, Evicted, Fill, Op as CacheOp};
use osier_flash::page::{Done, Outcome as Asked, Status};

use super::agenda::Event;
use super::below::Purpose;
use super::config::ModelConfig;
use super::front::LINE_BYTES;
use super::pages::Page;
use super::planted::Bug;
use super::slab::{NONE, Slab};
use super::{Causes, Model, Outcome, PAGE_BYTES};

/// Most requests that wait for fills.
const WAITERS_MAX: u32 = 1 << 28;

/// A page on its way.
#[derive(Clone, Copy, Debug)]
struct Filling {
    page: u64,
    frame: u32,
    /// Whether the flash has to be read.
    reads: bool,
    /// Whether it is read, or will be.
    is_reading: bool,
    /// Whether what was in the frame is not safe yet.
    is_draining: bool,
    /// Whether it counts among those that are read.
    is_running: bool,
    is_lost: bool,
    /// When the read was over, and where its time went, in that order: map, collection, die, sensing, retries, channel,
    /// transfer.
    read_until: u64,
    parts: [u64; 7],
    /// The next fill that is read with it.
    next_of_run: u32,
    /// Requests that wait for it, first and last.
    first: u32,
    last: u32,
}

/// A request that waits for a fill.
#[derive(Clone, Copy, Debug)]
struct Waiter {
    page: Page,
    since: u64,
    next: u32,
}

/// All fills.
#[derive(Debug)]
pub(super) struct Fills {
    table: Slab<Filling>,
    waiters: Slab<Waiter>,
    /// The fill of each frame, from 1; 0 without one.
    of_frame: Vec<u32>,
    running: u32,
    running_max: u32,
    /// Those that wait until fewer are under way.
    queue: VecDeque<u32>,
    /// Those that were just begun.
    begun: Vec<u32>,
    /// For what the prefetcher wants.
    pub wanted: Vec<u64>,
    /// Logarithm of the units of a page of the flash, a power of two.
    units_shift: u32,
    dram_read_ns: u64,
    dram_write_ns: u64,
    /// Time of the bytes of a line, and of all lines of a page.
    line_picos: u64,
    page_ns: u64,
}

impl Fills {
    pub(super) fn new(config: &ModelConfig, frames: u32) -> Fills {
        let cache = config.cache.as_ref();
        let rate = cache.map_or(1, |cache| cache.dram.bytes_per_second);
        let line_picos = (LINE_BYTES * 1_000_000_000_000).div_ceil(rate);
        Fills {
            table: Slab::new(frames),
            waiters: Slab::new(WAITERS_MAX),
            of_frame: vec![0; frames as usize],
            running: 0,
            running_max: cache.map_or(0, |cache| cache.fills_max),
            queue: VecDeque::new(),
            begun: Vec::new(),
            wanted: Vec::new(),
            units_shift: (u64::from(config.flash.shape.page_bytes) / PAGE_BYTES).trailing_zeros(),
            dram_read_ns: cache.map_or(0, |cache| cache.dram.read_ns),
            dram_write_ns: cache.map_or(0, |cache| cache.dram.write_ns),
            line_picos,
            page_ns: (u64::from(ALL_LINES.count_ones()) * line_picos).div_ceil(1000),
        }
    }

    /// Whether no prefetch should be added.
    pub(super) fn are_enough(&self) -> bool {
        self.table.len() as u64 >= u64::from(self.running_max)
    }

    /// Time of an access to DRAM.
    #[inline]
    pub(super) fn dram_ns(&self, op: CacheOp) -> u64 {
        if self.running_max == 0 {
            return 0;
        }
        let first = if op.is_write { self.dram_write_ns } else { self.dram_read_ns };
        let bytes_ns = if op.lines == ALL_LINES {
            self.page_ns
        } else {
            (u64::from(op.lines.count_ones()) * self.line_picos).div_ceil(1000)
        };
        first + bytes_ns
    }
}

impl Model {
    /// The cache gave a frame to a page: the fill's number. The reads of what was begun start with
    /// [`Model::start_reads`].
    pub(super) fn begin_fill(&mut self, fill: Fill) -> u32 {
        let filling = Filling {
            page: fill.page,
            frame: fill.frame,
            reads: fill.reads_media,
            is_reading: true,
            is_draining: false,
            is_running: false,
            is_lost: false,
            read_until: self.now.0,
            parts: [0; 7],
            next_of_run: NONE,
            first: NONE,
            last: NONE,
        };
        let number = self.fills.table.insert(filling);
        self.fills.of_frame[fill.frame as usize] = number + 1;
        self.fills.begun.push(number);
        if let Some(Evicted { page, is_dirty: true, .. }) = fill.evicted {
            self.fills.table[number].is_draining = !self.has_bug(Bug::FillBeforeDrain);
            self.drain(page, number);
        }
        while let Some(evicted) = self.cache.as_mut().and_then(|cache| cache.reclaim(fill.page)) {
            self.left(evicted);
        }
        number
    }

    /// A request waits for the fill of a frame.
    pub(super) fn wait_for_frame(&mut self, page: Page, frame: u32) {
        self.wait_for_fill(page, self.fills.of_frame[frame as usize] - 1);
    }

    /// A request waits until a fill is done.
    #[inline]
    pub(super) fn wait_for_fill(&mut self, page: Page, number: u32) {
        if self.has_bug(Bug::MergedEndsEarly) && self.fills.table[number].first != NONE {
            let blocked_ns = self.now.0 - self.jobs[page.job].start;
            return self.end_in_dram(page, Causes { frame: blocked_ns, ..Causes::default() });
        }
        let waiter = self.fills.waiters.insert(Waiter { page, since: self.now.0, next: NONE });
        let filling = &mut self.fills.table[number];
        let last = std::mem::replace(&mut filling.last, waiter);
        if last == NONE {
            filling.first = waiter;
        } else {
            self.fills.waiters[last].next = waiter;
        }
    }

    /// Starts the reads of fills that were begun; neighbours that are likely to share a page of the flash go together.
    #[inline]
    pub(super) fn start_reads(&mut self) {
        if self.fills.begun.is_empty() {
            return;
        }
        let mut at = 0;
        while at < self.fills.begun.len() {
            at += self.start_read(at);
        }
        self.fills.begun.clear();
    }

    /// Starts the read of a fill that was begun, with those after it that belong to it; says how many these are.
    #[inline]
    fn start_read(&mut self, at: usize) -> usize {
        let first = self.fills.begun[at];
        let Filling { page, reads, .. } = self.fills.table[first];
        if !reads || self.below.is_waiting(page) {
            // The bytes come with the request, or are still in the controller's memory.
            self.fill_read(first);
            return 1;
        }
        if self.fills.running >= self.fills.running_max || !self.fills.queue.is_empty() {
            self.fills.queue.push_back(first);
            return 1;
        }
        let is_last = at + 1 == self.fills.begun.len();
        let count = if is_last { 1 } else { self.join_run(at, page) };
        self.read_run(first, page, count);
        count as usize
    }

    /// How many fills from the one at `at` on are read together; links them.
    fn join_run(&mut self, at: usize, page: u64) -> u32 {
        let begun = &self.fills.begun[at..];
        let room = (self.fills.running_max - self.fills.running) as usize;
        let group = page >> self.fills.units_shift;
        let mut count = 1;
        while count < begun.len().min(room) {
            let next = &self.fills.table[begun[count]];
            let belongs = next.reads
                && next.page == page + count as u64
                && next.page >> self.fills.units_shift == group
                && !self.below.is_waiting(next.page);
            if !belongs {
                break;
            }
            self.fills.table[begun[count - 1]].next_of_run = begun[count];
            count += 1;
        }
        count as u32
    }

    fn read_run(&mut self, first: u32, page: u64, count: u32) {
        let asked = self.ftl.read(self.now, page, count);
        let mut number = first;
        while number != NONE {
            self.fills.table[number].is_running = true;
            self.fills.running += 1;
            number = self.fills.table[number].next_of_run;
        }
        match asked {
            Ok(Asked::Done(done)) => self.run_read(first, &done),
            Ok(Asked::Waiting(id)) => self.below.wait(id, Purpose::Fill(first)),
            Err(refused) => panic!("at most {} fills are read at a time: {refused}", super::config::FILLS_MAX),
        }
    }

    /// The flash says when it has read a run of fills.
    pub(super) fn run_read(&mut self, first: u32, done: &Done) {
        let parts = [
            done.map_ns,
            done.wait_collection_ns,
            done.wait_host_ns,
            done.array_ns,
            done.retry_ns,
            done.wait_channel_ns,
            done.transfer_ns,
        ];
        let mut number = first;
        while number != NONE {
            let filling = &mut self.fills.table[number];
            filling.parts = parts;
            filling.is_lost = done.status == Status::Uncorrectable;
            self.agenda.push(done.due.0, Event::FillRead(number));
            number = filling.next_of_run;
        }
    }

    /// The page of a fill has been read.
    pub(super) fn fill_read(&mut self, number: u32) {
        let filling = &mut self.fills.table[number];
        filling.is_reading = false;
        filling.read_until = self.now.0;
        let frees = std::mem::take(&mut filling.is_running);
        self.end_fill(number);
        if frees {
            self.fills.running -= 1;
            self.start_queued();
        }
    }

    /// Starts the next fill that waits for its turn.
    fn start_queued(&mut self) {
        while self.fills.running < self.fills.running_max {
            let Some(next) = self.fills.queue.pop_front() else { return };
            let page = self.fills.table[next].page;
            if self.below.is_waiting(page) {
                self.fill_read(next);
            } else {
                self.read_run(next, page, 1);
            }
        }
    }

    /// What was in the frame of a fill is safe.
    pub(super) fn fill_drained(&mut self, number: u32) {
        self.fills.table[number].is_draining = false;
        self.end_fill(number);
    }

    /// Ends a fill, if everything that it waits for has happened.
    fn end_fill(&mut self, number: u32) {
        let filling = &self.fills.table[number];
        if filling.is_reading || filling.is_draining {
            return;
        }
        let Filling { frame, page, is_lost, first, .. } = *filling;
        let Some(cache) = &mut self.cache else { unreachable!("fills are the cache's") };
        if is_lost {
            cache.fill_failed(frame);
        } else {
            cache.fill_done(frame);
        }
        self.fills.of_frame[frame as usize] = 0;
        self.freed(page);
        self.retry |= !self.blocked.is_empty();
        let mut next = first;
        while next != NONE {
            let waiter = next;
            next = self.fills.waiters[waiter].next;
            self.fills.waiters.remove(waiter);
            self.end_waiter(number, waiter);
        }
        self.fills.table.remove(number);
        self.compact();
    }

    /// A request that waited for a fill goes on. Its number among those that wait was given back, and is not used again
    /// meanwhile.
    #[inline]
    fn end_waiter(&mut self, fill: u32, waiter: u32) {
        let (filling, Waiter { page, since, .. }) = (&self.fills.table[fill], self.fills.waiters[waiter]);
        let (job, is_lost) = (page.job, filling.is_lost);
        let mut causes = causes_since(filling, since, self.now.0);
        causes.frame += since - self.jobs[job].start;
        if self.has_bug(Bug::SenseTwice) {
            causes.sense *= 2;
        }
        if is_lost {
            let outcome = &mut self.jobs[job].outcome;
            *outcome = (*outcome).max(Outcome::Uncorrectable);
            return self.part_done(job, self.now.0, &causes);
        }
        self.end_in_dram(page, causes);
    }
}

/// Where the time from `since` to the end of a fill went: the last steps of the fill that fit into it.
fn causes_since(filling: &Filling, since: u64, now: u64) -> Causes {
    let mut left = now - since;
    let mut take = |ns: u64| {
        let taken = ns.min(left);
        left -= taken;
        taken
    };
    let drained_last = take(now - filling.read_until);
    let [map, collection, die, sense, retry, channel, transfer] = filling.parts;
    let transfer = take(transfer);
    let channel = take(channel);
    let retry = take(retry);
    let sense = take(sense);
    let die = take(die);
    let collection = take(collection);
    let map = take(map);
    // What is left is from before the read: waiting for its turn.
    Causes { frame: drained_last + left, die, collection, channel, sense, retry, transfer, map, ..Causes::default() }
}
