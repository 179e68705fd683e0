//! The loop in virtual time: requests from the sources in, completions out, and every one of them counted.

use std::ops::ControlFlow;

use osier_device::model::{Command, Completed, Met, Model, Op, Outcome, Refused};

use super::counters::{CacheCounts, Counters, since};
use super::lanes::{Lanes, Waiting};
use super::latency::{CAUSES, Latencies, Sample, parts_of};
use super::series::{Point, Series};
use crate::trace::TraceError;
use crate::{Nanos, Request, Source};

/// Steps between two reports of progress.
const PROGRESS_STEPS: u64 = 1 << 11;
/// So often a device may want to go on at one point in time. More is a device that stands still, which is a bug.
const STEPS_AT_ONE_TIME_MAX: u64 = 1 << 24;

/// What can be driven: a device model, which takes commands and says when it wants to go on.
pub trait Target {
    /// Takes a command, or says why not.
    ///
    /// # Errors
    /// [`Refused::Full`] when there is no room for it now, which comes with a completion; others when it cannot be.
    fn submit(&mut self, now: Nanos, command: Command) -> Result<(), Refused>;

    /// Does what is due, and gives the commands that have completed.
    fn poll(&mut self, now: Nanos, done: &mut Vec<Completed>);

    /// When it wants to be polled next.
    fn next_event(&self) -> Option<Nanos>;

    /// Goes on to the next completion, but not beyond `until`; says what time it is then. It may stop before, too.
    fn poll_next(&mut self, until: Nanos, done: &mut Vec<Completed>) -> Nanos {
        let at = self.next_event().map_or(until, |at| at.min(until));
        self.poll(at, done);
        at
    }

    /// What it has counted so far.
    fn counters(&self) -> Counters;

    /// Why what it does is no longer what was asked for, if that is so.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Nanoseconds of work that each die was given so far.
    fn die_busy_ns(&self, into: &mut Vec<u64>);

    /// Nanoseconds of work that each channel was given so far.
    fn channel_busy_ns(&self, into: &mut Vec<u64>);
}

impl Target for Model {
    fn submit(&mut self, now: Nanos, command: Command) -> Result<(), Refused> {
        Model::submit(self, now, command)
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        Model::poll(self, now, done);
    }

    fn next_event(&self) -> Option<Nanos> {
        Model::next_event(self)
    }

    fn poll_next(&mut self, until: Nanos, done: &mut Vec<Completed>) -> Nanos {
        Model::poll_next(self, until, done)
    }

    fn counters(&self) -> Counters {
        (&self.stats()).into()
    }

    fn failure(&self) -> Option<String> {
        self.policy_failure()
    }

    fn die_busy_ns(&self, into: &mut Vec<u64>) {
        into.extend(Model::die_busy_ns(self));
    }

    fn channel_busy_ns(&self, into: &mut Vec<u64>) {
        into.extend(Model::channel_busy_ns(self));
    }
}

/// What is done and not counted before the measuring begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WarmUp {
    /// Nothing.
    #[default]
    None,
    /// So many requests.
    Requests(u64),
    /// What arrives in so many nanoseconds.
    Nanos(u64),
}

/// When to begin to count, and when to stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// What is not counted.
    pub warm_up: WarmUp,
    /// Counted requests after which none is submitted any more.
    pub requests_max: Option<u64>,
    /// Time from the first counted request, after which none is submitted any more.
    pub duration_ns: Option<u64>,
}

/// Why a run ended. What was under way was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The sources had no more.
    Workload,
    /// As many requests as were asked for.
    Requests,
    /// As much time as was asked for.
    Duration,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Virtual time.
    pub now: Nanos,
    /// Requests submitted, those of the warm-up too.
    pub submitted: u64,
    /// How many there will be, as far as it is known.
    pub expected: Option<u64>,
}

/// A counted request that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Io {
    /// Its number in the order of submission, from 1, those of the warm-up included.
    pub number: u64,
    /// What was asked, and when it arrived.
    pub request: Request,
    /// When the device had room for it.
    pub submitted: Nanos,
    /// When it completed.
    pub completed: Nanos,
    /// How it ended.
    pub outcome: Outcome,
    /// What it met in the cache.
    pub met: Met,
    /// Where its time went; see [`super::latency::cause_names`].
    pub parts: [u64; CAUSES],
}

/// Whoever looks on. It can end a run, which then has no result.
pub trait Watch {
    /// Called now and then.
    fn progress(&mut self, _progress: &Progress) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called now and then while a device is filled by writing, with the pages written and all of them.
    fn preconditioning(&mut self, _written: u64, _all: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Called for each counted request, in the order of completion.
    fn completed(&mut self, _io: &Io) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Nobody looks on.
impl Watch for () {}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The workload or the trace ended with an error.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// Whoever looked on ended it.
    #[error("the run was stopped after {submitted} requests; there is no result")]
    Stopped {
        /// Requests submitted by then.
        submitted: u64,
    },
    /// A request that the device does not take, now or later.
    #[error("request {number} is refused: {why}")]
    Refused {
        /// Its number, from 1.
        number: u64,
        /// Why.
        why: Refused,
    },
    /// The device's own parts failed, such as an eviction policy from outside.
    #[error("the run was stopped by request {number}: {why}; there is no result")]
    Failed {
        /// How many requests there were by then.
        number: u64,
        /// Why.
        why: String,
    },
    /// Nothing to count.
    #[error(
        "all {submitted} requests of the workload were in the warm-up; shorten the warm-up, or lengthen the workload"
    )]
    AllWarmUp {
        /// Requests submitted.
        submitted: u64,
    },
}

/// What a run has measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Latencies of the counted requests.
    pub latencies: Latencies,
    /// What happened over time.
    pub series: Series,
    /// Counted requests by [`OUTCOMES`].
    pub outcomes: [u64; OUTCOMES.len()],
    /// Counted requests for which the device had no room when they arrived.
    pub delayed: u64,
    /// Requests before the first counted one.
    pub warm_up_requests: u64,
    /// When the first counted request was submitted.
    pub began: Nanos,
    /// When the last one completed.
    pub ended: Nanos,
    /// Why.
    pub end: End,
    /// What the device had counted when the measuring began.
    pub counters_at_begin: Counters,
    /// What it had counted at the end.
    pub counters_at_end: Counters,
    /// Work given to each die in between.
    pub die_busy_ns: Vec<u64>,
    /// Work given to each channel in between.
    pub channel_busy_ns: Vec<u64>,
}

/// How a command can end, in the order in which it is counted.
pub const OUTCOMES: [Outcome; 4] = [Outcome::Ok, Outcome::Uncorrectable, Outcome::ReadOnly, Outcome::OutOfRange];

/// A command that the device has.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    number: u64,
    request: Request,
    lane: u32,
    submitted: Nanos,
    counted: bool,
}

/// The measuring, from the first counted request on.
struct Measuring {
    measured: Measured,
    point: Point,
    /// As the interval under way began.
    counters: Counters,
    die_busy_ns: Vec<u64>,
    channel_busy_at_begin: Vec<u64>,
}

struct Driver<'a, T: ?Sized> {
    target: &'a mut T,
    lanes: Lanes<'a>,
    watch: &'a mut dyn Watch,
    limits: Limits,
    now: Nanos,
    /// Commands by their id; at most as many as the device has room for.
    under_way: Vec<UnderWay>,
    free: Vec<u32>,
    submitted: u64,
    counted: u64,
    /// The device had no room for the request that is next.
    is_full: bool,
    end: End,
    measuring: Option<Box<Measuring>>,
    done: Vec<Completed>,
}

/// Runs the sources, each paced by itself, against a device until they end or a limit is reached.
///
/// # Errors
/// [`DriveError`]; there is then no result, also not of what was done.
///
/// # Panics
/// If the device loses a command or stands still, which is a bug of the model.
pub fn drive<'a, T: Target + ?Sized>(
    target: &'a mut T,
    sources: Vec<&'a mut dyn Source>,
    limits: Limits,
    watch: &'a mut dyn Watch,
) -> Result<Measured, DriveError> {
    let expected: Option<u64> = sources.iter().map(|source| source.len_hint()).sum();
    let lanes = Lanes::new(sources)?;
    let driver = Driver {
        target,
        lanes,
        watch,
        limits,
        now: Nanos::ZERO,
        under_way: Vec::new(),
        free: Vec::new(),
        submitted: 0,
        counted: 0,
        is_full: false,
        end: End::Workload,
        measuring: None,
        done: Vec::new(),
    };
    driver.run(limits.expected(expected))
}

impl Limits {
    /// Requests that there will be under these limits, of a workload of so many.
    fn expected(&self, workload: Option<u64>) -> Option<u64> {
        let limit = match (self.requests_max, self.warm_up) {
            (Some(requests), WarmUp::Requests(warm_up)) => Some(requests.saturating_add(warm_up)),
            (Some(requests), WarmUp::None) => Some(requests),
            _ => None,
        };
        let until_then = self.duration_ns.is_none();
        [limit, workload].into_iter().flatten().min().filter(|_| until_then)
    }
}

impl<T: Target + ?Sized> Driver<'_, T> {
    fn run(mut self, expected: Option<u64>) -> Result<Measured, DriveError> {
        let (mut steps, mut steps_here) = (0_u64, 0_u64);
        loop {
            self.submit_due()?;
            if self.lanes.peek().is_none() && self.free.len() == self.under_way.len() {
                return self.finish();
            }
            let before = self.now;
            self.advance()?;
            steps_here = if self.now > before { 0 } else { steps_here + 1 };
            assert!(steps_here < STEPS_AT_ONE_TIME_MAX, "the device stands still at {} ns", self.now.0);
            steps += 1;
            if steps.is_multiple_of(PROGRESS_STEPS) {
                self.check_target()?;
                let progress = Progress { now: self.now, submitted: self.submitted, expected };
                self.go_on(|watch| watch.progress(&progress))?;
            }
        }
    }

    fn check_target(&self) -> Result<(), DriveError> {
        let failed = |why| DriveError::Failed { number: self.submitted, why };
        self.target.failure().map_or(Ok(()), |why| Err(failed(why)))
    }

    fn go_on(&mut self, look: impl FnOnce(&mut dyn Watch) -> ControlFlow<()>) -> Result<(), DriveError> {
        match look(self.watch) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DriveError::Stopped { submitted: self.submitted }),
        }
    }

    /// Submits what has arrived, as long as there is room.
    fn submit_due(&mut self) -> Result<(), DriveError> {
        self.is_full = false;
        while let Some(waiting) = self.lanes.peek().copied() {
            if waiting.request.at > self.now {
                break;
            }
            if let Some(end) = self.limit_reached(&waiting.request) {
                self.end = end;
                self.lanes.close();
                break;
            }
            match self.submit(&waiting) {
                Ok(()) => self.lanes.submitted()?,
                Err(Refused::Full { .. }) => {
                    self.is_full = true;
                    break;
                }
                Err(why) => return Err(DriveError::Refused { number: self.submitted + 1, why }),
            }
        }
        Ok(())
    }

    fn is_counted(&self, request: &Request) -> bool {
        match self.limits.warm_up {
            WarmUp::None => true,
            WarmUp::Requests(requests) => self.submitted >= requests,
            WarmUp::Nanos(nanos) => request.at.0 >= nanos,
        }
    }

    fn limit_reached(&self, request: &Request) -> Option<End> {
        let began = self.measuring.as_ref()?.measured.began;
        if self.limits.requests_max.is_some_and(|most| self.counted >= most) {
            return Some(End::Requests);
        }
        let over = |duration: u64| request.at >= began.saturating_add(duration);
        self.limits.duration_ns.is_some_and(over).then_some(End::Duration)
    }

    fn submit(&mut self, waiting: &Waiting) -> Result<(), Refused> {
        let Waiting { request, lane, .. } = *waiting;
        let counted = self.is_counted(&request);
        if counted && self.measuring.is_none() {
            self.begin_measuring();
        }
        let number = self.submitted + 1;
        let entry = UnderWay { number, request, lane, submitted: self.now, counted };
        let place = self.free.last().map_or(self.under_way.len(), |place| *place as usize);
        let Request { address, bytes, tenant, op, .. } = request;
        self.target.submit(self.now, Command { id: place as u64, op, address, bytes, tenant })?;
        match self.free.pop() {
            Some(_) => self.under_way[place] = entry,
            None => self.under_way.push(entry),
        }
        self.submitted = number;
        self.counted += u64::from(counted);
        Ok(())
    }

    fn begin_measuring(&mut self) {
        let (mut die_busy_ns, mut channel_busy_at_begin) = (Vec::new(), Vec::new());
        self.target.die_busy_ns(&mut die_busy_ns);
        self.target.channel_busy_ns(&mut channel_busy_at_begin);
        let counters = self.target.counters();
        let measured = Measured {
            latencies: Latencies::default(),
            series: Series::default(),
            outcomes: [0; OUTCOMES.len()],
            delayed: 0,
            warm_up_requests: self.submitted,
            began: self.now,
            ended: self.now,
            end: End::Workload,
            counters_at_begin: counters,
            counters_at_end: counters,
            die_busy_ns: vec![0; die_busy_ns.len()],
            channel_busy_ns: Vec::new(),
        };
        let measuring = Measuring { measured, point: Point::default(), counters, die_busy_ns, channel_busy_at_begin };
        self.measuring = Some(Box::new(measuring));
    }

    /// Up to when only the device has anything to do.
    fn next_time(&self) -> Nanos {
        // What found no room is tried again when a command has completed.
        let arrival = self.lanes.peek().filter(|_| !self.is_full).map_or(Nanos::MAX, |waiting| waiting.request.at);
        let interval = self.measuring.as_ref().map_or(Nanos::MAX, |measuring| measuring.interval_end());
        let next = arrival.min(interval).max(self.now);
        let has_next = next < Nanos::MAX || self.target.next_event().is_some();
        assert!(has_next, "the device has commands, and nothing to do, at {} ns", self.now.0);
        next
    }

    fn advance(&mut self) -> Result<(), DriveError> {
        let mut done = std::mem::take(&mut self.done);
        self.now = self.target.poll_next(self.next_time(), &mut done).max(self.now);
        for completed in done.drain(..) {
            self.complete(&completed)?;
        }
        self.done = done;
        if let Some(measuring) = &mut self.measuring
            && self.now >= measuring.interval_end()
        {
            measuring.end_interval(self.target);
        }
        Ok(())
    }

    fn complete(&mut self, completed: &Completed) -> Result<(), DriveError> {
        // The id is the place that this driver gave.
        let place = completed.id as u32;
        let entry = self.under_way[place as usize];
        self.free.push(place);
        assert_eq!(completed.arrived, entry.submitted, "the device gives back what it was given");
        assert!(completed.at <= self.now, "a completion comes when it is due");
        if entry.counted
            && let Some(measuring) = &mut self.measuring
        {
            let io = measuring.count(&entry, completed);
            self.go_on(|watch| watch.completed(&io))?;
        }
        self.lanes.completed(entry.lane, self.now)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Measured, DriveError> {
        self.check_target()?;
        let Some(mut measuring) = self.measuring.take() else {
            return Err(DriveError::AllWarmUp { submitted: self.submitted });
        };
        measuring.end_interval(self.target);
        let mut measured = measuring.measured;
        measured.end = self.end;
        measured.counters_at_end = self.target.counters();
        self.target.channel_busy_ns(&mut measured.channel_busy_ns);
        for (busy, before) in measured.channel_busy_ns.iter_mut().zip(&measuring.channel_busy_at_begin) {
            *busy -= before;
        }
        Ok(measured)
    }
}

impl Measuring {
    fn interval_end(&self) -> Nanos {
        self.measured.began.saturating_add(self.measured.series.next_end_ns())
    }

    fn count(&mut self, entry: &UnderWay, completed: &Completed) -> Io {
        let UnderWay { number, request, submitted, .. } = *entry;
        let queue_ns = submitted.saturating_since(request.at);
        let parts = parts_of(queue_ns, &completed.causes);
        let latency_ns = completed.at.saturating_since(request.at);
        let Request { op, tenant, bytes, .. } = request;
        let measured = &mut self.measured;
        measured.latencies.add(&Sample { op, tenant, bytes, met: completed.met, latency_ns, parts });
        measured.outcomes[completed.outcome as usize] += 1;
        measured.delayed += u64::from(queue_ns > 0);
        measured.ended = measured.ended.max(completed.at);
        self.point.requests += 1;
        match op {
            Op::Read | Op::Load => self.point.bytes_read += u64::from(bytes),
            Op::Write | Op::Store => self.point.bytes_written += u64::from(bytes),
            Op::Trim | Op::Flush => {}
        }
        self.point.latency_sum_ns += u128::from(latency_ns);
        self.point.latency_max_ns = self.point.latency_max_ns.max(latency_ns);
        let (completed, outcome, met) = (completed.at, completed.outcome, completed.met);
        Io { number, request, submitted, completed, outcome, met, parts }
    }

    /// Closes the interval under way with what the device did in it.
    fn end_interval<T: Target + ?Sized>(&mut self, target: &T) {
        let counters = target.counters();
        let mut busy = Vec::with_capacity(self.die_busy_ns.len());
        target.die_busy_ns(&mut busy);
        let mut point = std::mem::take(&mut self.point);
        point.cache = since(counters.cache, self.counters.cache, CacheCounts::since).unwrap_or_default();
        point.flash = counters.flash.since(&self.counters.flash);
        point.die_busy_ns = busy.iter().zip(&self.die_busy_ns).map(|(now, before)| now - before).collect();
        for (sum, busy) in self.measured.die_busy_ns.iter_mut().zip(&point.die_busy_ns) {
            *sum += busy;
        }
        (self.counters, self.die_busy_ns) = (counters, busy);
        self.measured.series.push(point);
    }
}
