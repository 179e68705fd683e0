//! Counts of durations in buckets an eighth of a power of two wide, as programs keep them in the memory that they share
//! with the device: it reads them while they run, and when they have died.

/// Buckets of each power of two.
const PARTS: usize = 8;
/// Buckets of a histogram.
pub const BUCKETS: usize = 64 * PARTS;
/// Words of a histogram in shared memory: its buckets, and the longest duration.
pub const HISTOGRAM_WORDS: u64 = BUCKETS as u64 + 1;

/// What a program measures of each fault, in the order of the shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// From the fault, as far as the program sees it, to the page being mapped.
    Latency,
    /// From when the page was due to its being mapped: the emulator's own error.
    Lateness,
    /// From the fault to the device's taking it.
    Asking,
    /// From there to its answer.
    Device,
    /// The call that maps the page.
    Mapping,
    /// Of pages that were drawn for a sample, which are in none of the others: from the fault to being mapped again.
    Sampling,
}

impl Measure {
    /// Bytes of all of them.
    pub const BYTES: u64 = 6 * HISTOGRAM_WORDS * 8;

    /// Offset of its histogram.
    #[must_use]
    pub fn offset(self) -> u64 {
        self as u64 * HISTOGRAM_WORDS * 8
    }
}

/// The bucket of a duration.
#[must_use]
pub fn bucket(ns: u64) -> usize {
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
    // The last buckets begin beyond what there is; only who writes nonsense counts there.
    u64::try_from(((PARTS + bucket % PARTS) as u128) << (power - 3)).unwrap_or(u64::MAX)
}

/// Counts as they were at one time. What a program wrote there is believed as far as it can be: sums stop at the most
/// that a word holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), max_ns: 0 }
    }
}

impl Histogram {
    /// From the words of shared memory.
    #[must_use]
    pub fn read(word: impl Fn(u64) -> u64) -> Histogram {
        let counts = Box::new(std::array::from_fn(|index| word(index as u64)));
        Histogram { counts, max_ns: word(BUCKETS as u64) }
    }

    /// Counts a duration.
    pub fn record(&mut self, ns: u64) {
        let count = &mut self.counts[bucket(ns)];
        *count = count.saturating_add(1);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Histogram) {
        for (count, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *count = count.saturating_add(*more);
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// How many durations were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The longest.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// The duration that `permille` thousandths do not exceed, rounded up by at most an eighth; 0 without any.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        let wanted = (u128::from(self.count()) * u128::from(permille)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return if index + 1 < BUCKETS { (least(index + 1) - 1).min(self.max_ns) } else { self.max_ns };
            }
        }
        self.max_ns
    }

    /// Buckets that have any: the least duration of each, and how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(index, count)| (least(index), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_an_eighth() {
        let mut histogram = Histogram::default();
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

    #[test]
    fn sums_are_those_of_both_and_any_words_are_borne() {
        let (mut one, mut other, mut both) = (Histogram::default(), Histogram::default(), Histogram::default());
        for ns in [0, 3, 900, 70_000, u64::MAX] {
            one.record(ns);
            other.record(ns / 2 + 1);
            both.record(ns);
            both.record(ns / 2 + 1);
        }
        let words: Vec<u64> = one.counts.iter().copied().chain([one.max_ns]).collect();
        let mut read = Histogram::read(|index| words[index as usize]);
        assert_eq!(read, one);
        read.merge(&other);
        assert_eq!(read, both);
        let mut wild = Histogram::read(|_| u64::MAX);
        wild.merge(&both);
        assert_eq!((wild.count(), wild.max_ns()), (u64::MAX, u64::MAX));
        let last = Histogram::read(|index| u64::from(index >= 490));
        assert!(last.quantile_ns(500) <= last.max_ns() && last.buckets().all(|(ns, _)| ns >= 1 << 62));
    }
}
