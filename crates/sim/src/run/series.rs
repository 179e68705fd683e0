//! What happened over time, in at most [`POINTS_MAX`] intervals of the same length.
//!
//! The length is not known beforehand, because nobody knows how long a run will be: when the table is full, neighbours
//! are merged and intervals are twice as long. So the memory is bounded, and a run of any length has at least half as
//! many points, but for one of less than [`INTERVAL_NS_MIN`] for each.

use super::counters::{CacheCounts, FlashCounts};

/// Most intervals; even, so that they merge in pairs.
pub const POINTS_MAX: usize = 256;
/// The first length of an interval.
pub const INTERVAL_NS_MIN: u64 = 10_000;

/// What happened in one interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// Requests that completed.
    pub requests: u64,
    /// Bytes of those that read or loaded.
    pub bytes_read: u64,
    /// Bytes of those that wrote or stored.
    pub bytes_written: u64,
    /// Their latencies added up.
    pub latency_sum_ns: u128,
    /// The longest of them.
    pub latency_max_ns: u64,
    /// What the cache counted.
    pub cache: CacheCounts,
    /// What the flash counted.
    pub flash: FlashCounts,
    /// Nanoseconds of work that each die was given.
    pub die_busy_ns: Vec<u64>,
}

impl Point {
    fn merge(&mut self, later: &Point) {
        self.requests += later.requests;
        self.bytes_read += later.bytes_read;
        self.bytes_written += later.bytes_written;
        self.latency_sum_ns += later.latency_sum_ns;
        self.latency_max_ns = self.latency_max_ns.max(later.latency_max_ns);
        self.cache = self.cache.plus(&later.cache);
        self.flash = self.flash.plus(&later.flash);
        for (busy, more) in self.die_busy_ns.iter_mut().zip(&later.die_busy_ns) {
            *busy += more;
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    interval_ns: u64,
    points: Vec<Point>,
}

impl Default for Series {
    fn default() -> Self {
        Series { interval_ns: INTERVAL_NS_MIN, points: Vec::new() }
    }
}

impl Series {
    /// The length of an interval.
    #[must_use]
    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    /// The intervals that are over, from the first.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// When the interval under way ends, from the beginning of the series.
    #[must_use]
    pub fn next_end_ns(&self) -> u64 {
        (self.points.len() as u64 + 1).saturating_mul(self.interval_ns)
    }

    /// An interval is over. If it is the last that fits, neighbours are merged.
    pub fn push(&mut self, point: Point) {
        self.points.push(point);
        if self.points.len() < POINTS_MAX {
            return;
        }
        let merged = self.points.chunks(2).map(|pair| {
            let mut first = pair[0].clone();
            pair[1..].iter().for_each(|second| first.merge(second));
            first
        });
        self.points = merged.collect();
        self.interval_ns *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_intervals_hold_what_was_in_them_and_are_never_too_many() {
        for count in [1_u64, 255, 256, 257, 1000, 100_000] {
            let mut series = Series::default();
            let (mut from, mut pushed) = (0, Vec::new());
            while from < count {
                // An interval may be longer than the first ones: it holds as much more.
                let length = series.interval_ns() / INTERVAL_NS_MIN;
                assert_eq!(series.next_end_ns(), (from + length) * INTERVAL_NS_MIN);
                let values = from..from + length;
                let die_busy_ns = vec![values.clone().sum(), length];
                let (latency_max_ns, latency_sum_ns) = (values.end - 1, values.clone().map(u128::from).sum());
                pushed.extend(values);
                series.push(Point {
                    requests: length,
                    latency_max_ns,
                    latency_sum_ns,
                    die_busy_ns,
                    ..Point::default()
                });
                from += length;
                assert!(series.points().len() < POINTS_MAX);
            }
            let length = series.interval_ns() / INTERVAL_NS_MIN;
            assert!(count < POINTS_MAX as u64 || series.points().len() >= POINTS_MAX / 2);
            for (index, point) in (0..).zip(series.points()) {
                let values = &pushed[(index * length) as usize..((index + 1) * length) as usize];
                assert_eq!((point.requests, Some(&point.latency_max_ns)), (length, values.iter().max()));
                let sum: u64 = values.iter().sum();
                assert_eq!((point.latency_sum_ns, &point.die_busy_ns), (sum.into(), &vec![sum, length]));
            }
        }
    }
}
