//! All jobs of a workload as one source, by the time of arrival.

use super::{Arrivals, Job, Workload};
use crate::trace::TraceError;
use crate::{EventQueue, Nanos, Pace, Request, Source};

/// A closed loop without a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "job {job:?} waits for completions, and there is no device here to complete anything; give the job a rate, or say how \
     long a request takes"
)]
pub struct NeedsServiceTime {
    /// The job's name.
    pub job: String,
}

/// The jobs of a workload, merged. Requests of one time come in the order in which their jobs came to them. Where a job
/// waits for completions, each request takes the same time, given beforehand.
#[derive(Debug)]
pub struct Merged {
    jobs: Vec<Running>,
    events: EventQueue<Event>,
    service_ns: u64,
}

#[derive(Debug)]
struct Running {
    job: Job,
    /// Taken and not completed.
    under_way: u64,
    taken: u64,
}

#[derive(Debug)]
enum Event {
    Arrival { job: usize, number: u64, request: Request },
    Completion { job: usize },
}

impl Merged {
    /// Merges the jobs of a workload. `service_ns` is how long each request takes.
    ///
    /// # Errors
    /// If a job is a closed loop, and `service_ns` is not given.
    pub fn new(workload: &Workload, service_ns: Option<u64>) -> Result<Self, NeedsServiceTime> {
        let is_closed = |phase: &super::Phase| matches!(phase.arrivals, Arrivals::Closed { .. });
        let closed = workload.jobs.iter().find(|job| job.phases.iter().any(is_closed));
        if let Some(job) = closed.filter(|_| service_ns.is_none()) {
            return Err(NeedsServiceTime { job: job.name.clone() });
        }
        let jobs = workload.jobs().into_iter().map(|job| Running { job, under_way: 0, taken: 0 }).collect();
        let mut merged = Merged { jobs, events: EventQueue::new(), service_ns: service_ns.unwrap_or(0) };
        for job in 0..merged.jobs.len() {
            merged.take(job);
        }
        Ok(merged)
    }

    /// Takes what a job has to give now.
    fn take(&mut self, job: usize) {
        let now = self.events.now();
        let running = &mut self.jobs[job];
        loop {
            let is_full = |depth: u32| running.under_way >= depth.into();
            if matches!(running.job.pace(), Pace::Closed { depth } if is_full(depth)) {
                return;
            }
            // A job makes its requests itself and cannot fail.
            let Some(Ok(request)) = running.job.next(now) else { return };
            running.taken += 1;
            running.under_way += 1;
            self.events.push(request.at, Event::Arrival { job, number: running.taken, request });
            if running.job.pace() == Pace::Open {
                return;
            }
        }
    }
}

impl Source for Merged {
    fn pace(&self) -> Pace {
        Pace::Open
    }

    fn next(&mut self, _now: Nanos) -> Option<Result<Request, TraceError>> {
        loop {
            match self.events.pop_by(Nanos::MAX)? {
                Event::Arrival { job, number, request } => {
                    self.events.push(request.at.saturating_add(self.service_ns), Event::Completion { job });
                    // In an open loop the arrival of the last one taken is the time for the next.
                    if number == self.jobs[job].taken && self.jobs[job].job.pace() == Pace::Open {
                        self.take(job);
                    }
                    return Some(Ok(request));
                }
                Event::Completion { job } => {
                    self.jobs[job].under_way -= 1;
                    if self.jobs[job].job.pace() != Pace::Open {
                        self.take(job);
                    }
                }
            }
        }
    }

    fn len_hint(&self) -> Option<u64> {
        self.jobs.iter().map(|running| running.job.len_hint()).sum()
    }
}
