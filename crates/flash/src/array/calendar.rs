//! Reservations on one channel.
//!
//! A transfer takes the earliest gap that is long enough, at or after the moment when its data is ready. A
//! reservation is never moved. So the bus is never idle while a transfer that fits waits for it, no two
//! transfers overlap, and the end of a transfer is known when it is asked for.

/// The busy intervals of a channel from now on: sorted, disjoint, and not touching.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calendar {
    /// Those from `first` on; the ones before are over. A list in one piece is searched and shifted faster than a ring.
    intervals: Vec<(u64, u64)>,
    first: usize,
    busy_ns: u64,
}

/// Intervals that are over and still kept, before all of them are dropped.
const OVER_MAX: usize = 64;

impl Calendar {
    /// Reserves `length_ns` at or after `ready`; returns the start. Nothing is asked for before `now` any more.
    #[inline]
    pub(crate) fn reserve(&mut self, now: u64, ready: u64, length_ns: u64) -> u64 {
        self.forget(now);
        self.busy_ns += length_ns;
        let busy = &self.intervals[self.first..];
        // Most transfers come after all others: those need no search.
        if busy.last().is_none_or(|&(_, end)| end < ready) {
            self.intervals.push((ready, ready + length_ns));
            return ready;
        }
        let mut index = busy.partition_point(|&(_, end)| end <= ready);
        let mut start = ready;
        for &(from, end) in &busy[index..] {
            if start + length_ns <= from {
                break;
            }
            start = start.max(end);
            index += 1;
        }
        self.insert(self.first + index, start, start + length_ns);
        start
    }

    /// Time reserved so far.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    #[inline]
    fn forget(&mut self, now: u64) {
        while self.intervals.get(self.first).is_some_and(|&(_, end)| end <= now) {
            self.first += 1;
        }
        if self.first >= OVER_MAX {
            self.intervals.drain(..self.first);
            self.first = 0;
        }
    }

    /// Puts an interval before `index`, joined with its neighbours where they touch.
    fn insert(&mut self, index: usize, start: u64, end: u64) {
        let joins_last = index > self.first && self.intervals[index - 1].1 == start;
        let joins_next = self.intervals.get(index).is_some_and(|&(from, _)| from == end);
        match (joins_last, joins_next) {
            (true, true) => {
                self.intervals[index - 1].1 = self.intervals[index].1;
                self.intervals.remove(index);
            }
            (true, false) => self.intervals[index - 1].1 = end,
            (false, true) => self.intervals[index].0 = start,
            (false, false) => self.intervals.insert(index, (start, end)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    /// Every transfer that was ever reserved, searched from the start.
    fn reserve_by_search(taken: &mut Vec<(u64, u64)>, ready: u64, length: u64) -> u64 {
        let mut starts: Vec<u64> = taken.iter().map(|&(_, end)| end).filter(|&end| end > ready).collect();
        starts.push(ready);
        starts.sort_unstable();
        let free = |start: &u64| taken.iter().all(|&(from, end)| start + length <= from || *start >= end);
        let start = starts.into_iter().find(free).expect("after the last one there is room");
        taken.push((start, start + length));
        start
    }

    #[test]
    fn every_transfer_gets_the_earliest_gap() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let (mut calendar, mut taken, mut now) = (Calendar::default(), Vec::new(), 0);
            for _ in 0..200 {
                now += rng.below(12);
                let (ready, length) = (now + rng.below(60), 1 + rng.below(9));
                let expected = reserve_by_search(&mut taken, ready, length);
                assert_eq!(calendar.reserve(now, ready, length), expected, "seed {seed}");
            }
        }
    }
}
