//! Queues and occupancy of dies and channels.
//!
//! Two kinds of work reach a die. *Host reads* are placed when they arrive, so that their end is known at
//! once. Everything else is a [`Job`]: it waits in a queue of its die until the die is free, and its end is
//! reported by [`Array::advance`]. Exactly:
//!
//! 1. A die does one thing at a time. A read takes it from the start of sensing until its bytes have crossed
//!    the channel; with cache read only for sensing, whose end then waits until the bytes before it have
//!    left the cache register. A program takes it from the start of its transfer to the end of the array's
//!    work; with cache program the transfer may fall into the program before. An erase takes it for its time.
//! 2. A channel gives each transfer the earliest gap at or after the moment its bytes are ready
//!    (`calendar`).
//! 3. *Reads first*: a read starts when what runs on its die and the reads before it are over, ahead of the
//!    jobs that wait. When `reads_first_max` reads have gone before the job that is next, it goes before the
//!    following read. Otherwise reads and jobs run in the order of their arrival.
//! 4. Of the jobs that wait on a die, those of the host go before those of collection, each class in order;
//!    while collection is *urgent*, in the order of their arrival.
//! 5. *Suspension*: a read that finds a job running in the array, with more time left than a suspension
//!    takes, interrupts it: it starts `suspend_ns` later, reads that arrive until it is over follow it, then
//!    the job goes on `resume_ns` later, for the time that it had left. A transfer is never interrupted.
//! 6. What is due at an instant is done before what arrives at that instant; what is due at the same
//!    instant is done in the order in which it was started.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::calendar::Calendar;
use super::{ArrayTiming, Shape};
use crate::{BLOCK_BYTES, Nanos};

/// For whom a job is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Something waits for it outside of the device.
    Host,
    /// Garbage collection and wear levelling.
    Collection,
}

/// What a job does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobKind {
    /// Reads a page; the bytes cross the channel afterwards.
    Read,
    /// The bytes cross the channel, then they are programmed.
    Program,
    /// Erases a block, or the blocks of all planes of a die.
    Erase,
}

/// Work for one die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Job {
    /// What it does.
    pub kind: JobKind,
    /// For whom.
    pub class: Class,
    /// Time of the array's work, in nanoseconds.
    pub array_ns: u64,
    /// Bytes that cross the channel; 0 for an erase.
    pub bytes: u32,
    /// Given back by [`Array::advance`].
    pub token: u32,
}

/// A job that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    /// When.
    pub at: Nanos,
    /// The job's token.
    pub token: u32,
}

/// How a host read spends its time; the parts add up to `due` less the time of its arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReadTime {
    /// When the last byte has crossed the channel.
    pub due: Nanos,
    /// Waiting for the die behind the host's operations, a suspension's own time included.
    pub wait_host_ns: u64,
    /// Waiting for the die behind an operation of collection.
    pub wait_collection_ns: u64,
    /// Sensing, retries included.
    pub array_ns: u64,
    /// Waiting for the channel, or for the cache register that it empties.
    pub wait_channel_ns: u64,
    /// Crossing the channel.
    pub transfer_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    job: Job,
    arrived: u64,
}

/// A job that was started, or whose start is fixed.
#[derive(Debug, Clone, Copy)]
struct Started {
    kind: JobKind,
    class: Class,
    token: u32,
    /// When it takes the die.
    start: u64,
    /// From here to `end` it works in the array; later when it was suspended.
    array_start: u64,
    end: u64,
    suspensions: u32,
    /// End of the reads that it is suspended for; before `array_start`, and 0 when it never was.
    reads_end: u64,
}

#[derive(Debug, Clone, Default)]
struct Die {
    channel: u32,
    /// Nothing that was placed takes the die from here on.
    free_at: u64,
    /// With cache read: when the cache register is empty.
    register_free_at: u64,
    /// Jobs whose time is fixed, in their order; only the first can have begun.
    started: VecDeque<Started>,
    /// The job that waits next has its bytes in the cache register, or will have at this time.
    loaded: Option<(Waiting, u64)>,
    host: VecDeque<Waiting>,
    collection: VecDeque<Waiting>,
    /// Reads that went before the job that is next.
    overtakes: u32,
    /// Whether the heap holds the moment at which the reads are over and a job can start.
    will_wake: bool,
    busy_ns: u64,
}

impl Die {
    #[inline]
    fn has_waiting(&self) -> bool {
        self.loaded.is_some() || !self.host.is_empty() || !self.collection.is_empty()
    }

    /// The job that goes next.
    fn take_next(&mut self, urgent: bool) -> Option<Waiting> {
        let collection_first = match (self.host.front(), self.collection.front()) {
            (Some(host), Some(collection)) => urgent && collection.arrived < host.arrived,
            (None, _) => true,
            (_, None) => false,
        };
        if collection_first { self.collection.pop_front() } else { self.host.pop_front() }
    }

    /// Whether the job that goes next is a program.
    fn next_is_program(&self, urgent: bool) -> bool {
        let next = match (self.host.front(), self.collection.front()) {
            (Some(host), Some(collection)) if urgent && collection.arrived < host.arrived => Some(collection),
            (Some(host), _) => Some(host),
            (None, collection) => collection,
        };
        next.is_some_and(|waiting| waiting.job.kind == JobKind::Program)
    }
}

/// A moment in the heap: time, order, die, and what happens.
type Moment = Reverse<(u64, u64, u32, Event)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first started job of the die ends, unless it was moved.
    End,
    /// The reads on the die are over, unless more came.
    Wake,
}

/// Occupancy of the whole array.
#[derive(Debug, Clone)]
pub struct Array {
    timing: ArrayTiming,
    dies: Vec<Die>,
    channels: Vec<Calendar>,
    /// Time in which a unit crosses a channel: most reads are of one.
    unit_transfer_ns: u64,
    moments: BinaryHeap<Moment>,
    order: u64,
    now: u64,
    urgent: bool,
}

impl Array {
    /// An idle array. Shape and timing were validated.
    #[must_use]
    pub fn new(shape: &Shape, timing: &ArrayTiming) -> Array {
        let die = |number: u32| Die { channel: number / shape.dies_per_channel(), ..Die::default() };
        Array {
            timing: timing.clone(),
            dies: (0..shape.dies()).map(die).collect(),
            channels: (0..shape.channels).map(|_| Calendar::default()).collect(),
            unit_transfer_ns: timing.transfer_ns(BLOCK_BYTES),
            moments: BinaryHeap::new(),
            order: 0,
            now: 0,
            urgent: false,
        }
    }

    /// Timing that the array was made with.
    #[must_use]
    pub fn timing(&self) -> &ArrayTiming {
        &self.timing
    }

    /// When something ends or begins by itself, if anything does.
    #[inline]
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        self.moments.peek().map(|&Reverse((at, ..))| Nanos(at))
    }

    /// Whether collection is urgent (rule 4).
    pub fn set_urgent(&mut self, urgent: bool) {
        self.urgent = urgent;
    }

    /// Moves time up to `until`, or to the end of the next job, which it returns.
    pub fn advance(&mut self, until: Nanos) -> Option<Finished> {
        while let Some(&Reverse((at, _, die, event))) = self.moments.peek() {
            if at > until.0 {
                break;
            }
            self.moments.pop();
            self.now = self.now.max(at);
            match event {
                Event::End => {
                    if let Some(token) = self.end(die, at) {
                        return Some(Finished { at: Nanos(at), token });
                    }
                }
                Event::Wake => self.wake(die, at),
            }
        }
        self.now = self.now.max(until.0);
        None
    }

    /// Moves time up to `until`, where nothing is due.
    #[inline]
    pub(crate) fn pass(&mut self, until: Nanos) {
        debug_assert!(self.next_event().is_none_or(|at| at > until), "nothing is due");
        self.now = self.now.max(until.0);
    }

    /// Places a read of `bytes` of one page. `now` must not be before what was advanced to.
    #[inline(always)]
    pub fn read(&mut self, now: Nanos, die: u32, array_ns: u64, bytes: u32) -> ReadTime {
        assert!(now.0 >= self.now, "time does not run backwards");
        let number = die;
        let is_unit = bytes == BLOCK_BYTES;
        let transfer_ns = if is_unit { self.unit_transfer_ns } else { self.timing.transfer_ns(bytes) };
        let die = &self.dies[number as usize];
        if die.overtakes >= self.timing.reads_first_max && die.has_waiting() {
            self.let_next_job_go(now.0, number);
        }
        let die = &mut self.dies[number as usize];
        die.overtakes += u32::from(die.has_waiting());
        let interrupted = interrupt(die, &self.timing, now.0);
        let start = interrupted.unwrap_or(die.free_at).max(now.0);
        let wait_ns = start - now.0;
        let behind = die.started.front().filter(|job| job.class == Class::Collection);
        let wait_collection_ns = behind.map_or(0, |job| start.min(job.end).saturating_sub(now.0));
        let mut sensed = start + array_ns;
        if self.timing.cache_read {
            sensed = sensed.max(die.register_free_at);
        }
        let crosses = self.channels[die.channel as usize].reserve(now.0, sensed, transfer_ns);
        let due = crosses + transfer_ns;
        die.register_free_at = due;
        let over = if self.timing.cache_read { sensed } else { due };
        die.busy_ns += over - start;
        match interrupted {
            // The job goes on after the read, for as long as it had left.
            Some(_) => resume(die, over, self.timing.suspend.resume_ns),
            None => die.free_at = over,
        }
        ReadTime {
            due: Nanos(due),
            wait_host_ns: wait_ns - wait_collection_ns,
            wait_collection_ns,
            array_ns,
            wait_channel_ns: crosses - start - array_ns,
            transfer_ns,
        }
    }

    /// Queues a job on a die. `now` must not be before what was advanced to.
    pub fn queue(&mut self, now: Nanos, die: u32, job: Job) {
        assert!(now.0 >= self.now, "time does not run backwards");
        let waiting = Waiting { job, arrived: now.0 };
        let state = &mut self.dies[die as usize];
        if !self.timing.reads_first {
            let at = state.free_at.max(now.0);
            let loaded = self.load(now.0, die, &waiting);
            self.start(now.0, die, waiting, at, loaded);
            return;
        }
        let is_idle = state.started.is_empty() && !state.has_waiting();
        if is_idle && state.free_at <= now.0 {
            self.start(now.0, die, waiting, now.0, None);
            return;
        }
        match job.class {
            Class::Host => state.host.push_back(waiting),
            Class::Collection => state.collection.push_back(waiting),
        }
        if state.started.is_empty() {
            self.wake_later(die);
        } else {
            self.load_next(now.0, die);
        }
    }

    /// Tokens of the jobs that have begun and not ended: what a loss of power tears.
    pub fn begun(&self) -> impl Iterator<Item = u32> + '_ {
        let now = self.now;
        let first = self.dies.iter().filter_map(|die| die.started.front());
        first.filter(move |job| job.start <= now).map(|job| job.token)
    }

    /// Nanoseconds for which each die was given work so far, by die number.
    pub fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.dies.iter().map(|die| die.busy_ns)
    }

    /// Nanoseconds for which each channel was given work so far, by channel number.
    pub fn channel_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.channels.iter().map(Calendar::busy_ns)
    }

    fn push(&mut self, at: u64, die: u32, event: Event) {
        self.order += 1;
        self.moments.push(Reverse((at, self.order, die, event)));
    }

    /// The first started job of a die ends now, unless it was suspended since the moment was noted.
    fn end(&mut self, die: u32, at: u64) -> Option<u32> {
        let state = &mut self.dies[die as usize];
        let first = state.started.front().expect("a job that ends was started");
        if first.end > at {
            let end = first.end;
            self.push(end, die, Event::End);
            return None;
        }
        let token = first.token;
        state.started.pop_front();
        if state.started.is_empty() && state.has_waiting() {
            self.wake(die, at);
        }
        Some(token)
    }

    /// Starts the next job, or waits for the reads that still have the die.
    fn wake(&mut self, die: u32, at: u64) {
        let urgent = self.urgent;
        let state = &mut self.dies[die as usize];
        state.will_wake = false;
        if !state.started.is_empty() || !state.has_waiting() {
            return;
        }
        if state.free_at > at {
            self.wake_later(die);
            return;
        }
        let (waiting, loaded) = match state.loaded.take() {
            Some((waiting, loaded)) => (Some(waiting), Some(loaded)),
            None => (state.take_next(urgent), None),
        };
        self.start(at, die, waiting.expect("a job waits"), at, loaded);
    }

    fn wake_later(&mut self, die: u32) {
        let state = &mut self.dies[die as usize];
        if !state.will_wake {
            state.will_wake = true;
            let at = state.free_at;
            self.push(at, die, Event::Wake);
        }
    }

    /// Rule 3: a job that was overtaken often enough is placed before the next read.
    fn let_next_job_go(&mut self, now: u64, die: u32) {
        let urgent = self.urgent;
        let state = &mut self.dies[die as usize];
        let at = state.free_at.max(now);
        let (waiting, loaded) = match state.loaded.take() {
            Some((waiting, loaded)) => (Some(waiting), Some(loaded)),
            None => (state.take_next(urgent), None),
        };
        self.start(now, die, waiting.expect("a job waits"), at, loaded);
    }

    /// Fixes the time of a job that takes the die at `at`.
    fn start(&mut self, now: u64, die: u32, waiting: Waiting, at: u64, loaded: Option<u64>) {
        let job = waiting.job;
        let transfer_ns = self.timing.transfer_ns(job.bytes);
        let state = &mut self.dies[die as usize];
        let channel = &mut self.channels[state.channel as usize];
        let (array_start, end) = match job.kind {
            JobKind::Erase => (at, at + job.array_ns),
            JobKind::Read => {
                let sensed = at + job.array_ns;
                (at, channel.reserve(now, sensed, transfer_ns) + transfer_ns)
            }
            JobKind::Program => {
                let arrived = loaded.unwrap_or_else(|| {
                    let ready = if self.timing.cache_read { at.max(state.register_free_at) } else { at };
                    channel.reserve(now, ready, transfer_ns) + transfer_ns
                });
                let array_start = arrived.max(at);
                (array_start, array_start + job.array_ns)
            }
        };
        state.busy_ns += end - at;
        state.free_at = end;
        state.overtakes = 0;
        let (kind, class, token) = (job.kind, job.class, job.token);
        let started = Started { kind, class, token, start: at, array_start, end, suspensions: 0, reads_end: 0 };
        state.started.push_back(started);
        self.push(end, die, Event::End);
        self.load_next(now, die);
    }

    /// With cache program: moves the bytes of a job that follows a program now; returns their arrival.
    fn load(&mut self, now: u64, die: u32, waiting: &Waiting) -> Option<u64> {
        let state = &self.dies[die as usize];
        let last = state.started.back()?;
        let both = last.kind == JobKind::Program && waiting.job.kind == JobKind::Program;
        if !self.timing.cache_program || !both {
            return None;
        }
        let transfer_ns = self.timing.transfer_ns(waiting.job.bytes);
        let ready = last.array_start.max(now);
        Some(self.channels[state.channel as usize].reserve(now, ready, transfer_ns) + transfer_ns)
    }

    /// With cache program: loads the job that goes next, once it is sure.
    fn load_next(&mut self, now: u64, die: u32) {
        let urgent = self.urgent;
        let state = &mut self.dies[die as usize];
        let may = self.timing.cache_program
            && state.loaded.is_none()
            && state.started.len() == 1
            && state.started[0].kind == JobKind::Program;
        if !may || !state.next_is_program(urgent) {
            return;
        }
        let waiting = state.take_next(urgent).expect("a program waits");
        let arrived = self.load(now, die, &waiting).expect("it follows a program");
        self.dies[die as usize].loaded = Some((waiting, arrived));
    }
}

/// Rule 5: when a read that arrives now can start because the job that runs gives way, if it does.
#[inline]
fn interrupt(die: &mut Die, timing: &ArrayTiming, now: u64) -> Option<u64> {
    // Once something is placed behind the job, it keeps its time.
    if die.started.len() != 1 || die.free_at != die.started[0].end { None } else { interrupt_job(die, timing, now) }
}

fn interrupt_job(die: &mut Die, timing: &ArrayTiming, now: u64) -> Option<u64> {
    let suspend = &timing.suspend;
    let job = &mut die.started[0];
    let may = match job.kind {
        JobKind::Program => suspend.program,
        JobKind::Erase => suspend.erase,
        JobKind::Read => false,
    };
    if !may || job.end <= now || job.start > now {
        return None;
    }
    if job.suspensions > 0 && now <= job.reads_end {
        return Some(job.reads_end);
    }
    let at = now.max(job.array_start);
    if job.suspensions >= suspend.times_max || job.end - at <= suspend.suspend_ns {
        return None;
    }
    job.suspensions += 1;
    // What it has left starts anew after the reads (`resume`).
    let left = job.end - at;
    die.busy_ns += suspend.suspend_ns + suspend.resume_ns;
    job.reads_end = at + suspend.suspend_ns;
    job.array_start = job.reads_end + suspend.resume_ns;
    job.end = job.array_start + left;
    Some(job.reads_end)
}

/// The job that was interrupted goes on after a read that is over at `over`.
fn resume(die: &mut Die, over: u64, resume_ns: u64) {
    let job = &mut die.started[0];
    let left = job.end - job.array_start;
    job.reads_end = over;
    job.array_start = over + resume_ns;
    job.end = job.array_start + left;
    die.free_at = job.end;
}
