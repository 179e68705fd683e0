//! When one direction of the wire is taken.
//!
//! What is sent is reserved in the order of the calls, but not in the order of time: completions of a read are
//! reserved when the read begins, for a time to come. So the wire keeps the gaps before such reservations, and what
//! fits into one goes there. A single time at which the wire becomes free would make a doorbell wait for the
//! completions of a read that has only just been asked for.
//!
//! Times are picoseconds since the epoch of the link ([`crate::Link`]), so that 64 bits are enough for them.

use crate::planted::{Bug, Planted};

/// Gaps that are remembered. With more, the earliest is given up, which is time lost and never time gained.
const GAPS_MAX: usize = 16;

/// A time when the wire is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    start: u64,
    end: u64,
}

/// The reservations of one direction.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    /// Free from here on.
    free_from: u64,
    /// Free times before, in order; at most [`GAPS_MAX`].
    gaps: Vec<Gap>,
    busy_picos: u128,
    /// The shortest time that anything takes: a shorter gap is of no use to anybody.
    shortest_picos: u64,
}

impl Timeline {
    /// A free wire on which nothing takes less than `shortest_picos`.
    pub(crate) fn new(shortest_picos: u64) -> Timeline {
        let gaps = Vec::with_capacity(GAPS_MAX + 1);
        Timeline { free_from: 0, gaps, busy_picos: 0, shortest_picos }
    }

    /// When something that takes `picos` would start, not before `earliest`.
    #[inline]
    pub(crate) fn first_fit(&self, earliest: u64, picos: u64) -> u64 {
        self.fit(earliest, picos).map_or(self.free_from.max(earliest), |(_, start)| start)
    }

    /// Whether everything is reserved behind all others.
    #[inline]
    pub(crate) fn has_no_gap(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Takes the first `picos` that are free from `earliest` on, and returns their start. Nothing will be asked for
    /// before `now` any more.
    #[inline]
    pub(crate) fn reserve(&mut self, now: u64, earliest: u64, picos: u64, planted: Planted) -> u64 {
        self.busy_picos += u128::from(picos);
        if !self.gaps.is_empty()
            && let Some(start) = self.reserve_gap(now, earliest, picos, planted)
        {
            return start;
        }
        let start = self.free_from.max(earliest);
        if start > now && start > self.free_from {
            self.remember_last(start);
        }
        self.free_from = start.saturating_add(picos);
        start
    }

    /// The same in a gap, if there is one.
    #[inline(never)]
    fn reserve_gap(&mut self, now: u64, earliest: u64, picos: u64, planted: Planted) -> Option<u64> {
        if self.gaps[0].end <= now {
            let passed = self.gaps.partition_point(|gap| gap.end <= now);
            self.gaps.drain(..passed);
        }
        let (index, start) = self.fit(earliest, picos)?;
        if !planted.has(Bug::KeepUsedGaps) {
            self.take(index, start, start.saturating_add(picos));
        }
        Some(start)
    }

    /// The wire is free up to a reservation at `start` behind all others.
    #[inline(never)]
    fn remember_last(&mut self, start: u64) {
        let gap = Gap { start: self.free_from, end: start };
        if self.is_useful(gap) {
            self.remember(self.gaps.len(), gap);
        }
    }

    /// The epoch is `picos` later from now on. What lies before it has passed, and is at its start.
    pub(crate) fn move_epoch(&mut self, picos: u64) {
        self.free_from = self.free_from.saturating_sub(picos);
        for gap in &mut self.gaps {
            *gap = Gap { start: gap.start.saturating_sub(picos), end: gap.end.saturating_sub(picos) };
        }
    }

    /// Time taken so far, in picoseconds, reservations for the future included.
    pub(crate) fn busy_picos(&self) -> u128 {
        self.busy_picos
    }

    #[inline]
    fn fit(&self, earliest: u64, picos: u64) -> Option<(usize, u64)> {
        // Most of what is sent comes after all gaps, or goes into the first.
        let end_min = earliest.saturating_add(picos);
        if self.gaps.last().is_none_or(|gap| gap.end < end_min) {
            return None;
        }
        // They are few.
        for (index, gap) in self.gaps.iter().enumerate() {
            let start = gap.start.max(earliest);
            if start.saturating_add(picos) <= gap.end {
                return Some((index, start));
            }
        }
        None
    }

    /// Cuts a reservation out of a gap.
    fn take(&mut self, index: usize, start: u64, end: u64) {
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

    #[inline]
    fn is_useful(&self, gap: Gap) -> bool {
        gap.end >= gap.start.saturating_add(self.shortest_picos)
    }

    fn remember(&mut self, index: usize, gap: Gap) {
        self.gaps.insert(index, gap);
        if self.gaps.len() > GAPS_MAX {
            self.gaps.remove(0);
        }
        assert!(self.gaps.len() <= GAPS_MAX, "one gap is added at a time");
    }
}
