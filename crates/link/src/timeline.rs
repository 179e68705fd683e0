//! When one direction of the wire is taken.
//!
//! What is sent is reserved in the order of the calls, but not in the order of time: completions of a read are
//! reserved when the read begins, for a time to come. So the wire keeps the gaps before such reservations, and what
//! fits into one goes there. A single time at which the wire becomes free would make a doorbell wait for the
//! completions of a read that has only just been asked for.

use crate::planted::{Bug, Planted};
use crate::time::Time;

/// Gaps that are remembered. With more, the earliest is given up, which is time lost and never time gained.
const GAPS_MAX: usize = 16;

/// A time when the wire is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    start: Time,
    end: Time,
}

/// The reservations of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Free from here on.
    free_from: Time,
    /// Free times before, in order; at most [`GAPS_MAX`].
    gaps: Vec<Gap>,
    busy_picos: u128,
    /// Nothing will be reserved before this any more.
    passed: Time,
    /// The shortest time that anything takes: a shorter gap is of no use to anybody.
    shortest_picos: u64,
}

impl Timeline {
    /// A free wire on which nothing takes less than `shortest_picos`.
    pub(crate) fn new(shortest_picos: u64) -> Timeline {
        let gaps = Vec::with_capacity(GAPS_MAX + 1);
        Timeline { free_from: Time::ZERO, gaps, busy_picos: 0, passed: Time::ZERO, shortest_picos }
    }

    /// When something that takes `picos` would start, not before `earliest`.
    #[inline]
    pub(crate) fn first_fit(&self, earliest: Time, picos: u64) -> Time {
        self.fit(earliest, picos).map_or(self.free_from.max(earliest), |(_, start)| start)
    }

    /// Takes the first `picos` that are free from `earliest` on, and returns their start.
    #[inline]
    pub(crate) fn reserve(&mut self, earliest: Time, picos: u64, planted: Planted) -> Time {
        self.busy_picos += u128::from(picos);
        if let Some((index, start)) = self.fit(earliest, picos) {
            if !planted.has(Bug::KeepUsedGaps) {
                self.take(index, start, start.plus_picos(picos));
            }
            return start;
        }
        let start = self.free_from.max(earliest);
        let gap = Gap { start: self.free_from, end: start };
        if start > self.passed && self.is_useful(gap) {
            self.remember(self.gaps.len(), gap);
        }
        self.free_from = start.plus_picos(picos);
        start
    }

    /// Forgets the gaps that lie before `now`: nothing will be reserved there any more.
    #[inline]
    pub(crate) fn forget_before(&mut self, now: Time) {
        self.passed = now;
        if self.gaps.first().is_some_and(|gap| gap.end <= now) {
            let passed = self.gaps.partition_point(|gap| gap.end <= now);
            self.gaps.drain(..passed);
        }
    }

    /// Time taken so far, in picoseconds, reservations for the future included.
    pub(crate) fn busy_picos(&self) -> u128 {
        self.busy_picos
    }

    #[inline]
    fn fit(&self, earliest: Time, picos: u64) -> Option<(usize, Time)> {
        // Most of what is sent comes after all gaps, or goes into the first.
        let end_min = earliest.plus_picos(picos);
        if self.gaps.last().is_none_or(|gap| gap.end < end_min) {
            return None;
        }
        let first = if self.gaps[0].end >= end_min { 0 } else { self.gaps.partition_point(|gap| gap.end < end_min) };
        for (index, gap) in self.gaps.iter().enumerate().skip(first) {
            let start = gap.start.max(earliest);
            if start.plus_picos(picos) <= gap.end {
                return Some((index, start));
            }
        }
        None
    }

    /// Cuts a reservation out of a gap.
    fn take(&mut self, index: usize, start: Time, end: Time) {
        let gap = self.gaps[index];
        let (before, after) = (Gap { start: gap.start, end: start }, Gap { start: end, end: gap.end });
        match (self.is_useful(before), self.is_useful(after)) {
            (false, false) => drop(self.gaps.remove(index)),
            (true, false) => self.gaps[index] = before,
            (false, true) => self.gaps[index] = after,
            (true, true) => {
                self.gaps[index] = after;
                self.remember(index, before);
            }
        }
    }

    fn is_useful(&self, gap: Gap) -> bool {
        gap.end >= gap.start.plus_picos(self.shortest_picos)
    }

    fn remember(&mut self, index: usize, gap: Gap) {
        self.gaps.insert(index, gap);
        if self.gaps.len() > GAPS_MAX {
            self.gaps.remove(0);
        }
        assert!(self.gaps.len() <= GAPS_MAX, "one gap is added at a time");
    }
}
