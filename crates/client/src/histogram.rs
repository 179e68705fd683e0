//! How long faults took, counted where the device can read it too, and from signal handlers.

use std::sync::atomic::Ordering;

use osier_device::window::histogram::{self, BUCKETS, Measure, bucket};
use osier_pmr::Object;

/// Counts of durations in buckets an eighth of a power of two wide.
#[derive(Debug)]
pub struct Histogram {
    words: Object,
    at: u64,
}

/// How well this process kept the times that the device asked for, and where the time of a fault went.
#[derive(Debug)]
pub struct Timing {
    /// From the fault, as far as this process sees it, to the page being mapped.
    pub latency: Histogram,
    /// From when the page was due to its being mapped: the emulator's own error.
    pub lateness: Histogram,
    /// From the fault to the device's taking it.
    pub asking: Histogram,
    /// From there to its answer.
    pub device: Histogram,
    /// The call that maps the page.
    pub mapping: Histogram,
    /// Of pages that were drawn for a sample, which are in none of the others: from the fault to being mapped again.
    pub sampling: Histogram,
}

impl Timing {
    pub(crate) fn new(words: &Object) -> Timing {
        let histogram = |measure: Measure| Histogram { words: words.clone(), at: measure.offset() };
        Timing {
            latency: histogram(Measure::Latency),
            lateness: histogram(Measure::Lateness),
            asking: histogram(Measure::Asking),
            device: histogram(Measure::Device),
            mapping: histogram(Measure::Mapping),
            sampling: histogram(Measure::Sampling),
        }
    }
}

impl Histogram {
    pub(crate) fn record(&self, ns: u64) {
        self.words.word64(self.at + bucket(ns) as u64 * 8).fetch_add(1, Ordering::Relaxed);
        self.words.word64(self.at + BUCKETS as u64 * 8).fetch_max(ns, Ordering::Relaxed);
    }

    /// The counts as they are now.
    #[must_use]
    pub fn snapshot(&self) -> histogram::Histogram {
        histogram::Histogram::read(|index| self.words.word64(self.at + index * 8).load(Ordering::Relaxed))
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.snapshot().count()
    }

    /// The longest.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.snapshot().max_ns()
    }

    /// The duration that `permille` thousandths do not exceed, rounded up by at most an eighth; 0 without any.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        self.snapshot().quantile_ns(permille)
    }

    /// Buckets that have any: the least duration of each, and how many.
    #[must_use]
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        self.snapshot().buckets().collect()
    }
}
