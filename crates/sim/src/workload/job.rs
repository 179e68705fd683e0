//! One job: its phases, one after the other.

use super::config::{Arrivals, Block, Phase, Workload};
use super::draw::{below, exponential};
use super::pattern::Places;
use crate::trace::TraceError;
use crate::{Nanos, Op, Pace, Request, Rng, Source};

const SECOND_NS: u64 = 1_000_000_000;

/// A job as a source of requests.
#[derive(Clone, Debug)]
pub struct Job {
    tenant: u16,
    phases: Vec<Phase>,
    rng: Rng,
    /// The place in the list of the phase that the next request is of, as far as can be known before it is asked for.
    phase: usize,
    run: Option<Run>,
    /// No phase that is still to come begins before.
    free_from: Nanos,
}

impl Job {
    pub(super) fn new(workload: &Workload, index: usize) -> Self {
        // A generator for each job, whatever the others draw.
        let mut seeds = Rng::new(workload.seed);
        let rng = (0..=index).map(|_| seeds.fork()).last().unwrap_or_else(|| Rng::new(workload.seed));
        let phases = workload.jobs[index].phases.clone();
        let mut job = Job { tenant: workload.tenant(index), phases, rng, phase: 0, run: None, free_from: Nanos::ZERO };
        job.begin(0);
        job
    }

    /// Its tenant.
    #[must_use]
    pub fn tenant(&self) -> u16 {
        self.tenant
    }

    /// The phase that the last request was of, or the next one is if that is sure, by its place in the list.
    #[must_use]
    pub fn phase(&self) -> usize {
        self.phase
    }

    fn begin(&mut self, phase: usize) {
        self.phase = phase;
        let rng = self.rng.fork();
        self.run = self.phases.get(phase).map(|phase| Run::new(phase, rng));
    }

    fn take(&mut self, now: Nanos) -> Option<Request> {
        loop {
            let run = self.run.as_mut()?;
            let start = *run.start.get_or_insert(self.free_from.max(now));
            match run.next(start, now) {
                Step::Request { at, bytes, address, op, last } => {
                    let tenant = self.tenant;
                    if let Some(end) = last {
                        self.free_from = end;
                        self.begin(self.phase + 1);
                    }
                    return Some(Request { at, address, bytes, tenant, op });
                }
                Step::Over(end) => {
                    self.free_from = end;
                    self.begin(self.phase + 1);
                }
            }
        }
    }
}

impl Source for Job {
    fn pace(&self) -> Pace {
        match self.run.as_ref().map(|run| run.arrivals) {
            Some(Arrivals::Closed { depth, .. }) => Pace::Closed { depth },
            _ => Pace::Open,
        }
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        self.take(now).map(Ok)
    }

    fn len_hint(&self) -> Option<u64> {
        self.phases.iter().map(|phase| phase.requests).sum()
    }
}

/// A phase under way.
#[derive(Clone, Debug)]
struct Run {
    arrivals: Arrivals,
    requests: Option<u64>,
    duration_ns: Option<u64>,
    mix: [(Op, u32); Op::ALL.len()],
    /// The operation of all requests, where there is one.
    only_op: Option<Op>,
    blocks: Vec<Block>,
    weights: u64,
    places: Places,
    ops: Rng,
    sizes: Rng,
    gaps: Rng,
    taken: u64,
    bytes: u64,
    /// From the start to the next arrival of a Poisson process, in 2^-16 ns.
    gap_sum: u64,
    start: Option<Nanos>,
}

enum Step {
    /// A request. If it is the last one for sure, also when the next phase may begin.
    Request { at: Nanos, bytes: u32, address: u64, op: Op, last: Option<Nanos> },
    /// The time is over.
    Over(Nanos),
}

impl Run {
    fn new(phase: &Phase, mut rng: Rng) -> Self {
        let blocks = phase.sizes();
        let places = Places::new(phase, rng.fork());
        let mix = phase.mix.permille();
        let mut run = Run {
            arrivals: phase.arrivals,
            requests: phase.requests,
            duration_ns: phase.duration_ns,
            mix,
            only_op: mix.iter().find(|(_, share)| *share == 1000).map(|(op, _)| *op),
            weights: blocks.iter().map(|block| u64::from(block.weight)).sum(),
            blocks,
            places,
            ops: rng.fork(),
            sizes: rng.fork(),
            gaps: rng.fork(),
            taken: 0,
            bytes: 0,
            gap_sum: 0,
            start: None,
        };
        run.draw_gap();
        run
    }

    fn next(&mut self, start: Nanos, now: Nanos) -> Step {
        let end = self.duration_ns.map(|duration| start.saturating_add(duration));
        let due = match self.arrivals {
            // Of an open loop before it the last arrival may be earlier than its end.
            Arrivals::Closed { .. } => now.max(start),
            _ => self.arrival(start),
        };
        if let Some(end) = end.filter(|end| due >= *end) {
            return Step::Over(if self.is_closed() { due } else { end });
        }
        let op = self.draw_op();
        let (address, bytes) = if op == Op::Flush { (0, 0) } else { self.draw_place() };
        self.taken += 1;
        self.bytes += u64::from(bytes);
        self.draw_gap();
        let at = match self.arrivals {
            Arrivals::Closed { think_ns, .. } => due.saturating_add(think_ns),
            _ => due,
        };
        let last = (self.requests == Some(self.taken)).then(|| if self.is_closed() { at } else { self.arrival(start) });
        Step::Request { at, bytes, address, op, last }
    }

    fn is_closed(&self) -> bool {
        matches!(self.arrivals, Arrivals::Closed { .. })
    }

    /// When the next request comes in an open loop. Counted from the start each time, so that no error adds up.
    fn arrival(&self, start: Nanos) -> Nanos {
        let (amount, rate) = match self.arrivals {
            Arrivals::Closed { .. } => (0, 1),
            Arrivals::Fixed { requests_per_second } => (self.taken, requests_per_second),
            Arrivals::Bandwidth { bytes_per_second } => (self.bytes, bytes_per_second),
            Arrivals::Poisson { .. } => return start.saturating_add(self.gap_sum >> 16),
        };
        let after = u128::from(amount) * u128::from(SECOND_NS) / u128::from(rate);
        start.saturating_add(u64::try_from(after).unwrap_or(u64::MAX))
    }

    fn draw_gap(&mut self) {
        if let Arrivals::Poisson { requests_per_second } = self.arrivals {
            let mean_ns = SECOND_NS as f64 / requests_per_second as f64;
            self.gap_sum = self.gap_sum.saturating_add(exponential(&mut self.gaps, mean_ns));
        }
    }

    fn draw_op(&mut self) -> Op {
        // Nothing else draws from this generator, so what has one outcome need not be drawn.
        if let Some(op) = self.only_op {
            return op;
        }
        let mut drawn = below(&mut self.ops, 1000);
        for (op, share) in self.mix {
            match drawn.checked_sub(share.into()) {
                Some(rest) => drawn = rest,
                None => return op,
            }
        }
        unreachable!("the shares of a mix were checked to add up to 1000")
    }

    fn draw_place(&mut self) -> (u64, u32) {
        if let [only] = self.blocks[..] {
            return (self.places.next(only.bytes), only.bytes);
        }
        let mut drawn = below(&mut self.sizes, self.weights);
        let chosen = self.blocks.iter().find(|block| match drawn.checked_sub(block.weight.into()) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        let bytes = chosen.map_or(0, |block| block.bytes);
        (self.places.next(bytes), bytes)
    }
}
