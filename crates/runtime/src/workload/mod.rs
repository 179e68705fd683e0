//! What clients in the host's domain do: traffic that checks itself.
//!
//! A workload offers requests while there is room and hears of their ends in the order of each stream. It
//! runs inside the host's thread, so that load and switch are measured on one clock.

mod files;
mod soak;

pub use files::{Files, FilesSpec};
pub use soak::{Soak, SoakSpec, Witness};

use hdrhistogram::Histogram;
use osier_domain::{Nanos, SlotId, StreamId};
use osier_pmr::Doorbell;
use serde::{Deserialize, Serialize};

use crate::client::{Ask, Done};
use osier_actor::Arena;

/// Where a workload puts what it asks for.
pub trait Port {
    /// Whether another request can be submitted now.
    fn has_room(&mut self) -> bool;
    /// Submits a request; the slot where it is until it has ended, or nothing when there was no room.
    fn submit(&mut self, stream: StreamId, ask: Ask<'_>) -> Option<SlotId>;
    /// Migrations so far.
    fn moves(&self) -> u64;
}

/// Traffic of one kind.
pub trait Workload {
    /// Offers at most one request, because to make its bytes takes time in which an actor may arrive; says whether
    /// it did.
    fn offer(&mut self, now: Nanos, port: &mut dyn Port) -> bool;
    /// A request of its own has ended. Its slot's bytes may be read until this returns.
    fn completed(&mut self, now: Nanos, done: &Done, arena: &Arena);
    /// A request that another process of this workload had submitted, found after a restart, goes on.
    fn inherited(&mut self, _done: &osier_domain::message::Request) {}
    /// The bell that rings when there is something to offer, where that comes from outside.
    fn bell(&self) -> Option<&Doorbell> {
        None
    }
    /// Whether something has come from outside.
    fn has_offer(&self) -> bool {
        false
    }
    /// Whether nothing is left to offer and nothing is in flight.
    fn finished(&self) -> bool;
    /// What it saw so far.
    fn tally(&self) -> &Tally;
    /// A name for the phase it is in.
    fn phase(&self) -> &'static str;
    /// How far it is, in permille.
    fn progress_permille(&self) -> u64;
    /// Files read back right, and files there are.
    fn files(&self) -> (u64, u64) {
        (0, 0)
    }
    /// What a person should know of its input.
    fn notice(&self) -> Option<String> {
        None
    }
    /// Bytes of input that it works on.
    fn input_bytes(&self) -> u64 {
        0
    }
}

/// What every workload counts.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Requests that ended well.
    pub completed: u64,
    /// Requests that ended with a status other than success, with the first few of these statuses.
    pub failed: u64,
    /// The first statuses other than success.
    pub first_failures: Vec<String>,
    /// Sequence numbers that were passed over.
    pub lost: u64,
    /// Sequence numbers that came again.
    pub repeated: u64,
    /// Sequence numbers that came after a later one.
    pub out_of_order: u64,
    /// Blocks read whose bytes were wrong.
    pub wrong_blocks: u64,
    /// The first few of them, in words.
    pub first_wrong: Vec<String>,
    /// Blocks read and found right.
    pub verified_blocks: u64,
    /// Bytes written by requests that ended well.
    pub written_bytes: u64,
    /// Bytes read by requests that ended well.
    pub read_bytes: u64,
    /// Latency of writes.
    pub write_latency: Histogram<u64>,
    /// Latency of reads.
    pub read_latency: Histogram<u64>,
    /// When requests ended, if they are kept, in nanoseconds.
    pub completions: Option<Vec<u64>>,
    /// The longest time between two completions while requests were in flight.
    pub longest_gap_ns: u64,
    last_completion: u64,
    expected: [u64; osier_domain::STREAMS_MAX],
}

/// Failures and wrong blocks that are kept in words.
pub const FIRST_MAX: usize = 8;
/// Completion times that are kept at most.
const COMPLETIONS_MAX: usize = 1 << 24;

impl Tally {
    /// Nothing counted yet; streams go on behind `delivered`.
    pub fn new(delivered: &[u64; osier_domain::STREAMS_MAX], keep_completions: bool) -> Tally {
        let histogram = || Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants");
        Tally {
            completed: 0,
            failed: 0,
            first_failures: Vec::new(),
            lost: 0,
            repeated: 0,
            out_of_order: 0,
            wrong_blocks: 0,
            first_wrong: Vec::new(),
            verified_blocks: 0,
            written_bytes: 0,
            read_bytes: 0,
            write_latency: histogram(),
            read_latency: histogram(),
            completions: keep_completions.then(Vec::new),
            longest_gap_ns: 0,
            last_completion: 0,
            expected: delivered.map(|sequence| sequence + 1),
        }
    }

    /// The traffic pauses on purpose: the time until the next completion is no gap.
    pub fn end_span(&mut self) {
        self.last_completion = 0;
    }

    /// Counts the end of a request.
    pub fn count(&mut self, now: Nanos, done: &Done) {
        let request = &done.request;
        let expected = &mut self.expected[usize::from(request.stream.0)];
        match request.sequence.cmp(expected) {
            std::cmp::Ordering::Equal => *expected += 1,
            std::cmp::Ordering::Greater => {
                self.lost += request.sequence - *expected;
                *expected = request.sequence + 1;
            }
            std::cmp::Ordering::Less if request.sequence + 1 == *expected => self.repeated += 1,
            std::cmp::Ordering::Less => self.out_of_order += 1,
        }
        if self.last_completion != 0 {
            self.longest_gap_ns = self.longest_gap_ns.max(now.0.saturating_sub(self.last_completion));
        }
        self.last_completion = now.0;
        if let Some(times) = self.completions.as_mut().filter(|t| t.len() < COMPLETIONS_MAX) {
            times.push(now.0);
        }
        if request.status.is_success() {
            self.completed += 1;
        } else {
            self.failed += 1;
            if self.first_failures.len() < FIRST_MAX {
                let what = request.descriptor;
                self.first_failures.push(format!("{:?} of block {}: {}", what.opcode, what.slba, request.status));
            }
        }
    }

    /// Notes a block with wrong bytes.
    pub fn wrong(&mut self, what: impl FnOnce() -> String) {
        self.wrong_blocks += 1;
        if self.first_wrong.len() < FIRST_MAX {
            self.first_wrong.push(what());
        }
    }

    /// Whether anything is not as it has to be.
    pub fn is_clean(&self) -> bool {
        self.failed + self.lost + self.repeated + self.out_of_order + self.wrong_blocks == 0
    }
}

/// A tally for the outside.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TallyReport {
    /// Requests that ended well.
    pub completed: u64,
    /// Requests that failed.
    pub failed: u64,
    /// The first failures in words.
    pub first_failures: Vec<String>,
    /// Requests lost: passed over, or still in flight when nobody had anything to do any more.
    pub lost: u64,
    /// The first of those in flight in words, with where each was last.
    #[serde(default)]
    pub first_lost: Vec<String>,
    /// Requests repeated.
    pub repeated: u64,
    /// Requests out of order.
    pub out_of_order: u64,
    /// Blocks read back wrong.
    pub wrong_blocks: u64,
    /// The first of them in words.
    pub first_wrong: Vec<String>,
    /// Blocks read back right.
    pub verified_blocks: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write latency at 50, 99 and 99.9 percent, in nanoseconds.
    pub write_ns: [u64; 3],
    /// Read latency at 50, 99 and 99.9 percent, in nanoseconds.
    pub read_ns: [u64; 3],
    /// Longest time between two completions, in nanoseconds.
    pub longest_gap_ns: u64,
}

/// The 50th, 99th and 99.9th percentile.
pub fn percentiles(histogram: &Histogram<u64>) -> [u64; 3] {
    [0.5, 0.99, 0.999].map(|q| histogram.value_at_quantile(q))
}

impl From<&Tally> for TallyReport {
    fn from(tally: &Tally) -> TallyReport {
        TallyReport {
            completed: tally.completed,
            failed: tally.failed,
            first_failures: tally.first_failures.clone(),
            lost: tally.lost,
            first_lost: Vec::new(),
            repeated: tally.repeated,
            out_of_order: tally.out_of_order,
            wrong_blocks: tally.wrong_blocks,
            first_wrong: tally.first_wrong.clone(),
            verified_blocks: tally.verified_blocks,
            written_bytes: tally.written_bytes,
            read_bytes: tally.read_bytes,
            write_ns: percentiles(&tally.write_latency),
            read_ns: percentiles(&tally.read_latency),
            longest_gap_ns: tally.longest_gap_ns,
        }
    }
}
