//! Counts of durations in buckets an eighth of a power of two wide, written from signal handlers too.

use std::sync::atomic::{AtomicU64, Ordering};

/// Buckets of each power of two.
const PARTS: usize = 8;
const BUCKETS: usize = 64 * PARTS;

/// See the module.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    max_ns: AtomicU64,
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
    pub(crate) fn new() -> Timing {
        Timing {
            latency: Histogram::new(),
            lateness: Histogram::new(),
            asking: Histogram::new(),
            device: Histogram::new(),
            mapping: Histogram::new(),
            sampling: Histogram::new(),
        }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < PARTS as u64 {
        return ns as usize;
    }
    let power = ns.ilog2() as usize;
    (power - 2) * PARTS + (ns >> (power - 3)) as usize % PARTS
}

/// The least duration of a bucket.
fn least(bucket: usize) -> u64 {
    if bucket < PARTS {
        return bucket as u64;
    }
    let power = bucket / PARTS + 2;
    ((PARTS + bucket % PARTS) as u64) << (power - 3)
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { buckets: std::array::from_fn(|_| AtomicU64::new(0)), max_ns: AtomicU64::new(0) }
    }

    pub(crate) fn record(&self, ns: u64) {
        self.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
        self.max_ns.fetch_max(ns, Ordering::Relaxed);
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum()
    }

    /// The longest.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns.load(Ordering::Relaxed)
    }

    /// The duration that `permille` thousandths do not exceed, rounded up by at most an eighth; 0 without any.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        let wanted = (self.count() * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, bucket) in self.buckets.iter().enumerate() {
            seen += bucket.load(Ordering::Relaxed);
            if seen >= wanted {
                return (least(index + 1) - 1).min(self.max_ns());
            }
        }
        self.max_ns()
    }

    /// Buckets that have any: the least duration of each, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        counts.enumerate().filter(|(_, count)| *count > 0).map(|(index, count)| (least(index), count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let histogram = Histogram::new();
        assert_eq!(histogram.quantile_ns(500), 0);
        (0..=100_000).for_each(|ns| histogram.record(ns));
        for permille in [1, 10, 500, 990, 999, 1000] {
            let (exact, found) = (100 * permille, histogram.quantile_ns(permille));
            assert!(found >= exact && found <= exact + exact / 8 + 1, "{permille}: {found}, exactly {exact}");
        }
        assert_eq!((histogram.count(), histogram.max_ns()), (100_001, 100_000));
        assert_eq!(histogram.buckets().map(|(_, count)| count).sum::<u64>(), 100_001);
    }

    #[test]
    fn buckets_follow_each_other() {
        for ns in (0..100_000).chain([u64::MAX, u64::MAX / 2]) {
            let index = bucket(ns);
            assert!(least(index) <= ns, "{ns}");
            assert!(index + 1 == bucket(u64::MAX) + 1 || least(index + 1) > ns, "{ns}");
        }
    }
}
