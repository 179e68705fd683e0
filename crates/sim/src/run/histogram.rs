//! A log-linear histogram of times: exact counts, percentiles within 1/128.
//!
//! Values below 2^8 have a bucket each; every power of two above is cut into 2^7 buckets of the same width, as in
//! HdrHistogram. A bucket is at most 1/128 of its values wide, and a percentile is given as the bucket's highest value,
//! so it is never too low and at most 1/128 too high. Two histograms merge without loss.

/// Each power of two is cut into `2^SUB_BITS` buckets.
const SUB_BITS: u32 = 7;
/// Values below have a bucket each.
const EXACT_BELOW: u64 = 1 << (SUB_BITS + 1);
/// Buckets for all values of 64 bits, which bounds the table.
pub const BUCKETS_MAX: usize = ((64 - SUB_BITS as usize) + 1) << SUB_BITS;

/// The bucket of a value.
#[must_use]
pub fn bucket_of(value: u64) -> usize {
    if value < EXACT_BELOW {
        // Below 2^8.
        return value as usize;
    }
    let shift = value.ilog2() - SUB_BITS;
    // `value >> shift` is from 2^7 to 2^8 - 1.
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// The lowest and the highest value of a bucket.
#[must_use]
pub fn bounds_of(bucket: usize) -> (u64, u64) {
    let value = bucket as u64;
    if value < EXACT_BELOW {
        return (value, value);
    }
    let shift = (value >> SUB_BITS) - 1;
    let low = (value - (shift << SUB_BITS)) << shift;
    (low, low + ((1 << shift) - 1))
}

/// The rank of a percentile among `count` values, from 1: the smallest with at least that share at or below it.
#[must_use]
pub fn rank_of(count: u64, permillion: u32) -> u64 {
    let rank = (u128::from(count) * u128::from(permillion)).div_ceil(1_000_000);
    // At most `count`.
    (rank as u64).max(1)
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Grows with the highest value.
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Histogram {
    /// Adds a value, and says into which bucket.
    pub fn add(&mut self, value: u64) -> usize {
        let bucket = bucket_of(value);
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum += u128::from(value);
        bucket
    }

    /// Adds all values of another one.
    pub fn merge(&mut self, other: &Histogram) {
        if other.count == 0 {
            return;
        }
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The smallest, exactly; 0 of none.
    #[must_use]
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The largest, exactly; 0 of none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.max
    }

    /// All added up, exactly.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The mean, rounded down; 0 of none.
    #[must_use]
    pub fn mean(&self) -> u64 {
        // A mean of numbers of 64 bits is one.
        self.sum.checked_div(self.count.into()).unwrap_or(0) as u64
    }

    /// The value of a percentile by nearest rank: the highest one of its bucket, and not above the largest there is.
    /// 0 of none.
    #[must_use]
    pub fn percentile(&self, permillion: u32) -> u64 {
        self.bucket_at(permillion).map_or(0, |bucket| bounds_of(bucket).1.min(self.max))
    }

    /// The bucket in which a percentile lies.
    #[must_use]
    pub fn bucket_at(&self, permillion: u32) -> Option<usize> {
        let rank = rank_of(self.count, permillion);
        let mut below = 0;
        self.counts.iter().position(|count| {
            below += count;
            below >= rank
        })
    }

    /// Buckets that have values, from the lowest: lowest value, highest value, how many.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| {
            let (low, high) = bounds_of(bucket);
            (low, high, *count)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    const ASKED: [u32; 8] = [1, 10_000, 500_000, 900_000, 990_000, 999_000, 999_900, 1_000_000];

    #[test]
    fn buckets_follow_each_other_without_a_gap_and_are_narrow() {
        let mut next = 0;
        for bucket in 0..BUCKETS_MAX {
            let (low, high) = bounds_of(bucket);
            assert_eq!((low, bucket_of(low), bucket_of(high)), (next, bucket, bucket));
            assert!(u128::from(high - low) * 128 <= u128::from(low), "{low} to {high}");
            next = high.wrapping_add(1);
        }
        assert_eq!(next, 0, "the last bucket ends with the last value");
    }

    /// Values over all magnitudes, some of them many times.
    fn values(seed: u64, count: usize) -> Vec<u64> {
        let mut rng = Rng::new(seed);
        (0..count)
            .map(|_| match rng.below(4) {
                0 => rng.below(300),
                1 => 40_000 + rng.below(5),
                2 => rng.next() >> rng.below(64),
                _ => rng.below(1_000_000),
            })
            .collect()
    }

    #[test]
    fn it_says_what_a_sorted_list_says() {
        for (seed, count) in [(1, 1), (2, 2), (3, 7), (4, 1000), (5, 20_000)] {
            let mut sorted = values(seed, count);
            let mut histogram = Histogram::default();
            sorted.iter().for_each(|value| {
                histogram.add(*value);
            });
            sorted.sort_unstable();
            let sum: u128 = sorted.iter().map(|value| u128::from(*value)).sum();
            assert_eq!((histogram.count(), histogram.sum()), (count as u64, sum));
            assert_eq!((histogram.min(), histogram.max()), (sorted[0], sorted[count - 1]));
            assert_eq!(u128::from(histogram.mean()), sum / count as u128);
            for permillion in ASKED {
                let at_or_below = |value: u64| sorted.iter().filter(|other| **other <= value).count() as u64;
                let share = |value: u64| at_or_below(value) * 1_000_000 / count as u64;
                let exact = *sorted.iter().find(|value| share(**value) >= permillion.into()).unwrap_or(&sorted[0]);
                let found = histogram.percentile(permillion);
                assert!(
                    found >= exact && u128::from(found - exact) * 128 <= exact.into(),
                    "{exact} is given as {found}"
                );
            }
            let counted: Vec<u64> = histogram.buckets().map(|(_, _, count)| count).collect();
            for ((low, high, count), at) in histogram.buckets().zip(0..) {
                let within = sorted.iter().filter(|value| (low..=high).contains(*value)).count() as u64;
                assert_eq!(count, within, "bucket {at} of {counted:?}");
            }
        }
    }

    #[test]
    fn merged_halves_are_the_whole() {
        let all = values(9, 5000);
        for cut in [0, 1, 2500, 5000] {
            let mut parts = [Histogram::default(), Histogram::default(), Histogram::default()];
            for (index, value) in all.iter().enumerate() {
                parts[usize::from(index >= cut)].add(*value);
                parts[2].add(*value);
            }
            let [mut first, second, whole] = parts;
            first.merge(&second);
            assert_eq!(first, whole);
        }
    }

    #[test]
    fn nothing_is_in_an_empty_one() {
        let empty = Histogram::default();
        assert_eq!((empty.percentile(500_000), empty.mean(), empty.max(), empty.buckets().count()), (0, 0, 0, 0));
    }
}
