//! Reservations on one channel.
//!
//! A transfer takes the earliest gap that is long enough, at or after the moment when its data is ready. A
//! reservation is never moved. So the bus is never idle while a transfer that fits waits for it, no two
//! transfers overlap, and the end of a transfer is known when it is asked for.

use std::collections::VecDeque;

/// The busy intervals of a channel from now on: sorted, disjoint, and not touching.
#[derive(Debug, Clone, Default)]
pub(crate) struct Calendar {
    busy: VecDeque<(u64, u64)>,
    busy_ns: u64,
}

impl Calendar {
    /// Reserves `length_ns` at or after `ready`; returns the start. Nothing is asked for before `now` any more.
    pub(crate) fn reserve(&mut self, now: u64, ready: u64, length_ns: u64) -> u64 {
        while self.busy.front().is_some_and(|&(_, end)| end <= now) {
            self.busy.pop_front();
        }
        self.busy_ns += length_ns;
        let mut start = ready;
        // Most transfers come after all others: those need no search.
        if self.busy.back().is_none_or(|&(_, end)| end < ready) {
            self.busy.push_back((start, start + length_ns));
            return start;
        }
        let mut index = self.busy.partition_point(|&(_, end)| end <= ready);
        while let Some(&(from, end)) = self.busy.get(index) {
            if start + length_ns <= from {
                break;
            }
            start = start.max(end);
            index += 1;
        }
        self.insert(index, start, start + length_ns);
        start
    }

    /// Time reserved so far.
    pub(crate) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Puts an interval before `index`, joined with its neighbours where they touch.
    fn insert(&mut self, index: usize, start: u64, end: u64) {
        let joins_last = index > 0 && self.busy[index - 1].1 == start;
        let joins_next = self.busy.get(index).is_some_and(|&(from, _)| from == end);
        match (joins_last, joins_next) {
            (true, true) => {
                self.busy[index - 1].1 = self.busy[index].1;
                self.busy.remove(index);
            }
            (true, false) => self.busy[index - 1].1 = end,
            (false, true) => self.busy[index].0 = start,
            (false, false) => self.busy.insert(index, (start, end)),
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
