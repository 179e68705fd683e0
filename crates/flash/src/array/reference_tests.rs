//! The array against a model that steps through every nanosecond.
//!
//! The model knows nothing of occupancy: a die is a machine that is sensing, receiving, programming,
//! suspending and so on, and each nanosecond it does one more of that. One die a channel: what channels do
//! is tested with their calendars.

use std::collections::VecDeque;

use super::*;
use crate::Nanos;
use crate::rng::Rng;

const SHAPE: Shape = Shape {
    channels: 1,
    chips_per_channel: 1,
    dies_per_chip: 1,
    planes_per_die: 1,
    blocks_per_plane: 16,
    pages_per_block: 4,
    page_bytes: 4096,
};

#[derive(Debug, Clone, Copy)]
enum Item {
    Read { id: usize, sense: u64, transfer: u64 },
    Job(Job),
}

/// What the die is doing, and the nanoseconds that it still takes.
#[derive(Debug, Clone, Copy)]
enum Doing {
    Nothing,
    Read {
        id: usize,
        left: u64,
    },
    /// Bytes of a program arrive; then the array works for the second number.
    Receiving {
        job: Job,
        left: u64,
    },
    Working {
        job: Job,
        left: u64,
    },
    Suspending {
        left: u64,
    },
    Resuming {
        left: u64,
    },
}

struct Model {
    timing: ArrayTiming,
    doing: Doing,
    /// The job that is suspended, and what it has left.
    suspended: Option<(Job, u64)>,
    suspensions: u32,
    /// A read waits for the transfer of the running program, to suspend it then.
    suspends_next: bool,
    /// Reads that run while the job is suspended.
    inside: VecDeque<Item>,
    /// What follows the running job, in order.
    line: VecDeque<Item>,
    host: VecDeque<(u64, Job)>,
    collection: VecDeque<(u64, Job)>,
    urgent: bool,
    overtakes: u32,
    reads_done: Vec<(usize, u64)>,
    jobs_done: Vec<(u32, u64)>,
}

impl Model {
    fn new(timing: &ArrayTiming, urgent: bool) -> Model {
        Model {
            timing: timing.clone(),
            doing: Doing::Nothing,
            suspended: None,
            suspensions: 0,
            suspends_next: false,
            inside: VecDeque::new(),
            line: VecDeque::new(),
            host: VecDeque::new(),
            collection: VecDeque::new(),
            urgent,
            overtakes: 0,
            reads_done: Vec::new(),
            jobs_done: Vec::new(),
        }
    }

    fn next_job(&mut self) -> Option<Job> {
        let collection_first = match (self.host.front(), self.collection.front()) {
            (Some(host), Some(collection)) => self.urgent && collection.0 < host.0,
            (host, _) => host.is_none(),
        };
        let next = if collection_first { self.collection.pop_front() } else { self.host.pop_front() };
        self.overtakes = 0;
        next.map(|(_, job)| job)
    }

    /// One nanosecond passes.
    fn tick(&mut self, now: u64) {
        match &mut self.doing {
            Doing::Nothing => {}
            Doing::Read { left, .. }
            | Doing::Receiving { left, .. }
            | Doing::Working { left, .. }
            | Doing::Suspending { left }
            | Doing::Resuming { left } => *left -= 1,
        }
        self.change(now);
    }

    /// Ends what is over, and begins what follows.
    fn change(&mut self, now: u64) {
        loop {
            match self.doing {
                Doing::Read { id, left: 0 } => {
                    self.reads_done.push((id, now));
                    if self.suspended.is_some() && self.inside.is_empty() {
                        self.doing = Doing::Resuming { left: self.timing.suspend.resume_ns };
                    } else if self.suspended.is_some() {
                        self.begin_inside();
                    } else {
                        self.doing = Doing::Nothing;
                    }
                }
                Doing::Receiving { job, left: 0 } => {
                    self.doing = Doing::Working { job, left: job.array_ns };
                    if std::mem::take(&mut self.suspends_next) {
                        self.suspend();
                    }
                }
                Doing::Working { job, left: 0 } => {
                    self.jobs_done.push((job.token, now));
                    self.doing = Doing::Nothing;
                }
                Doing::Suspending { left: 0 } => self.begin_inside(),
                Doing::Resuming { left: 0 } => {
                    let (job, left) = self.suspended.take().unwrap();
                    self.doing = Doing::Working { job, left };
                    if std::mem::take(&mut self.suspends_next) {
                        self.suspend();
                    }
                }
                Doing::Nothing => match self.line.pop_front() {
                    Some(item) => self.begin(item),
                    None => match self.next_job() {
                        Some(job) => self.begin(Item::Job(job)),
                        None => return,
                    },
                },
                _ => return,
            }
        }
    }

    fn begin(&mut self, item: Item) {
        self.doing = match item {
            Item::Read { id, sense, transfer } => Doing::Read { id, left: sense + transfer },
            Item::Job(job) => {
                self.suspensions = 0;
                let transfer = self.timing.transfer_ns(job.bytes);
                match job.kind {
                    JobKind::Program => Doing::Receiving { job, left: transfer },
                    // Sensing and transfer are one piece of work here.
                    JobKind::Read => Doing::Working { job, left: job.array_ns + transfer },
                    JobKind::Erase => Doing::Working { job, left: job.array_ns },
                }
            }
        }
    }

    fn begin_inside(&mut self) {
        let item = self.inside.pop_front().unwrap();
        self.begin(item);
    }

    fn suspend(&mut self) {
        let Doing::Working { job, left } = self.doing else { panic!("only the array's work is suspended") };
        self.suspended = Some((job, left));
        self.suspensions += 1;
        self.doing = Doing::Suspending { left: self.timing.suspend.suspend_ns };
    }

    fn queue(&mut self, now: u64, job: Job) {
        if self.timing.reads_first {
            match job.class {
                Class::Host => self.host.push_back((now, job)),
                Class::Collection => self.collection.push_back((now, job)),
            }
        } else {
            self.line.push_back(Item::Job(job));
        }
        self.change(now);
    }

    fn read(&mut self, now: u64, read: Item) {
        let waits = !self.host.is_empty() || !self.collection.is_empty();
        if waits && self.overtakes >= self.timing.reads_first_max {
            let job = self.next_job().unwrap();
            self.line.push_back(Item::Job(job));
        }
        self.overtakes += u32::from(!self.host.is_empty() || !self.collection.is_empty());
        // Once something stands in line behind the job, it keeps its time.
        if !self.line.is_empty() {
            self.line.push_back(read);
        } else if self.joins_suspension() {
            self.inside.push_back(read);
            if matches!(self.doing, Doing::Resuming { left } if left == self.timing.suspend.resume_ns) {
                self.begin_inside();
            }
        } else if self.may_suspend() {
            self.inside.push_back(read);
            match self.doing {
                Doing::Working { .. } => self.suspend(),
                _ => self.suspends_next = true,
            }
        } else {
            self.line.push_back(read);
        }
        self.change(now);
    }

    /// Whether the reads of a suspension are not over, or are over just now.
    fn joins_suspension(&self) -> bool {
        let just_over = |left| left == self.timing.suspend.resume_ns && !self.suspends_next;
        self.suspends_next
            || (self.suspended.is_some() && !matches!(self.doing, Doing::Resuming { left } if !just_over(left)))
    }

    fn may_suspend(&self) -> bool {
        let (job, left) = match self.doing {
            Doing::Receiving { job, .. } => (job, job.array_ns),
            Doing::Working { job, left } => (job, left),
            Doing::Resuming { .. } => self.suspended.unwrap(),
            _ => return false,
        };
        let suspend = &self.timing.suspend;
        let may = match job.kind {
            JobKind::Program => suspend.program,
            JobKind::Erase => suspend.erase,
            JobKind::Read => false,
        };
        may && self.suspensions < suspend.times_max && left > suspend.suspend_ns
    }
}

fn draw_timing(rng: &mut Rng) -> ArrayTiming {
    let reads_first = rng.below(4) > 0;
    let mut flag = |share| reads_first && rng.below(4) < share;
    ArrayTiming {
        read_ns: vec![5],
        program_ns: vec![20],
        erase_ns: 60,
        // A nanosecond for each KiB.
        channel_bytes_per_second: 1_024_000_000_000,
        multi_plane: false,
        cache_read: false,
        cache_program: false,
        reads_first,
        reads_first_max: 1,
        suspend: Suspend { program: flag(2), erase: flag(3), suspend_ns: 1, resume_ns: 1, times_max: 1 },
    }
}

fn run(seed: u64) {
    let mut rng = Rng::new(seed);
    let mut timing = draw_timing(&mut rng);
    timing.reads_first_max = 1 + rng.below(4) as u32;
    timing.suspend.times_max = 1 + rng.below(3) as u32;
    timing.suspend.suspend_ns = 1 + rng.below(6);
    timing.suspend.resume_ns = 1 + rng.below(6);
    let urgent = rng.below(2) == 0;
    let (mut array, mut model) = (Array::new(&SHAPE, &timing), Model::new(&timing, urgent));
    array.set_urgent(urgent);
    let (mut reads, mut jobs, mut id) = (Vec::new(), Vec::new(), 0);
    let gap = 1 + rng.below(40);
    for now in 0..4_000 {
        if now > 0 {
            model.tick(now);
        }
        while let Some(finished) = array.advance(Nanos(now)) {
            jobs.push((finished.token, finished.at.0));
        }
        if now > 2_500 || rng.below(gap) > 0 {
            continue;
        }
        for _ in 0..1 + rng.below(2) {
            id += 1;
            let bytes = 1024 * (1 + rng.below(8) as u32);
            let class = if rng.below(2) == 0 { Class::Host } else { Class::Collection };
            match rng.below(6) {
                0 | 1 => {
                    let (kind, array_ns) = [(JobKind::Program, 20), (JobKind::Read, 5)][rng.below(2) as usize];
                    let job = Job { kind, class, array_ns, bytes, token: id as u32 };
                    array.queue(Nanos(now), 0, job);
                    model.queue(now, job);
                }
                2 => {
                    let job = Job { kind: JobKind::Erase, class, array_ns: 60, bytes: 0, token: id as u32 };
                    array.queue(Nanos(now), 0, job);
                    model.queue(now, job);
                }
                _ => {
                    let time = array.read(Nanos(now), 0, 5, bytes);
                    let parts = time.wait_host_ns + time.wait_collection_ns + time.array_ns + time.wait_channel_ns;
                    assert_eq!(parts + time.transfer_ns, time.due.0 - now, "seed {seed}: {time:?}");
                    reads.push((id, time.due.0));
                    model.read(now, Item::Read { id, sense: 5, transfer: timing.transfer_ns(bytes) });
                }
            }
        }
    }
    let after = |found: &mut Vec<(usize, u64)>| found.sort_unstable();
    after(&mut reads);
    after(&mut model.reads_done);
    reads.retain(|&(_, due)| due < 4_000);
    assert_eq!(model.reads_done, reads, "seed {seed}: {timing:?}");
    jobs.sort_unstable();
    model.jobs_done.sort_unstable();
    assert_eq!(model.jobs_done, jobs, "seed {seed}: {timing:?}");
    assert!(!jobs.is_empty() && !reads.is_empty(), "seed {seed}");
}

#[test]
fn every_read_and_job_ends_when_the_model_says() {
    for seed in 0..1_500 {
        run(seed);
    }
}

/// A die with a channel of its own, at 4,096 ns a page.
fn array(cache_read: bool, cache_program: bool) -> Array {
    let mut timing = draw_timing(&mut Rng::new(0));
    timing.channel_bytes_per_second = 1_000_000_000;
    (timing.reads_first, timing.cache_read, timing.cache_program) = (true, cache_read, cache_program);
    (timing.suspend.program, timing.suspend.erase) = (false, false);
    Array::new(&SHAPE, &timing)
}

#[test]
fn cache_reads_sense_while_the_last_page_crosses_the_channel() {
    for (cache_read, expected) in [(false, 3 * 44_096), (true, 3 * 40_000 + 4_096)] {
        let mut array = array(cache_read, false);
        let dues: Vec<u64> = (0..3).map(|_| array.read(Nanos(0), 0, 40_000, 4096).due.0).collect();
        assert_eq!(dues[2], expected);
    }
}

#[test]
fn cache_programs_take_the_next_page_while_the_array_works() {
    for (cache_program, expected) in [(false, 3 * 204_096), (true, 3 * 200_000 + 4_096)] {
        let mut array = array(false, cache_program);
        for token in 0..3 {
            let job = Job { kind: JobKind::Program, class: Class::Host, array_ns: 200_000, bytes: 4096, token };
            array.queue(Nanos(0), 0, job);
        }
        let ends: Vec<u64> = std::iter::from_fn(|| array.advance(Nanos::MAX)).map(|finished| finished.at.0).collect();
        assert_eq!(ends[2], expected);
    }
}
