//! Belady's optimum (Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems
//! Journal, 1966, the algorithm MIN): the page whose next use is farthest away. No policy misses less, so it is the
//! bound to compare with. It needs the whole trace beforehand.

use std::collections::BinaryHeap;

use crate::eviction::{Eviction, Frames, Recall, Shape};

/// The name that stands for the optimum, which only the replay of a trace can offer.
pub const OPTIMUM: &str = "belady";
/// A page that is not used again.
const NEVER: u64 = u64::MAX;
/// A set's heap is made anew when it has this many times as many entries as the set has frames: entries of uses
/// that have passed stay in it until then.
const HEAP_FACTOR: usize = 4;

/// For each request of a trace, the number of the next one for the same page; `u64::MAX` where there is none.
pub fn next_uses(pages: impl Iterator<Item = u64>) -> Box<[u64]> {
    let mut uses: Vec<(u64, u64)> = pages.zip(0..).collect();
    let mut next = vec![NEVER; uses.len()].into_boxed_slice();
    uses.sort_unstable();
    for pair in uses.windows(2) {
        if pair[0].0 == pair[1].0 {
            next[pair[0].1 as usize] = pair[1].1;
        }
    }
    next
}

/// The optimum for one trace. It counts requests by the calls it gets, so every request of the trace has to reach
/// it, in order and once: no prefetcher, no sampled hits, nothing of the trace left out.
#[derive(Debug)]
pub struct Belady {
    next_uses: Box<[u64]>,
    /// Requests so far.
    requests: usize,
    /// Of each frame, the next use of its page.
    next_use: Box<[u64]>,
    is_held: Box<[bool]>,
    /// Of each set, frames by next use; an entry counts if it agrees with `next_use`.
    heaps: Box<[BinaryHeap<(u64, u32)>]>,
    ways: u32,
}

impl Belady {
    /// For a trace whose [`next_uses`] these are.
    #[must_use]
    pub fn new(shape: Shape, next_uses: Box<[u64]>) -> Self {
        Self {
            next_uses,
            requests: 0,
            next_use: vec![NEVER; shape.frames() as usize].into(),
            is_held: vec![false; shape.frames() as usize].into(),
            heaps: vec![BinaryHeap::new(); shape.sets as usize].into(),
            ways: shape.ways,
        }
    }

    fn push(&mut self, set: u32, frame: u32) {
        // The request that is being served was counted before.
        let now = self.requests.checked_sub(1);
        let next = now.and_then(|now| self.next_uses.get(now)).copied().unwrap_or(NEVER);
        self.next_use[frame as usize] = next;
        self.is_held[frame as usize] = true;
        let heap = &mut self.heaps[set as usize];
        heap.push((next, frame));
        if heap.len() > HEAP_FACTOR * self.ways as usize {
            heap.clear();
            let frames = set * self.ways..(set + 1) * self.ways;
            let held = frames.filter(|frame| self.is_held[*frame as usize]);
            heap.extend(held.map(|frame| (self.next_use[frame as usize], frame)));
        }
    }
}

impl Eviction for Belady {
    fn incoming(&mut self, _: u32, _: u64, demanded: bool) -> Recall {
        self.requests += usize::from(demanded);
        Recall::NOTHING
    }

    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.push(set, frame);
    }

    fn touched(&mut self, set: u32, frame: u32) {
        self.requests += 1;
        self.push(set, frame);
    }

    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        while let Some((next, frame)) = self.heaps[set as usize].pop() {
            if self.is_held[frame as usize] && self.next_use[frame as usize] == next {
                self.removed(set, frame);
                return Some(frame);
            }
        }
        None
    }

    fn removed(&mut self, _: u32, frame: u32) {
        self.is_held[frame as usize] = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_uses_are_what_looking_ahead_finds() {
        let pages = [3, 1, 3, 3, 2, 1];
        assert_eq!(*next_uses(pages.into_iter()), [2, 5, 3, NEVER, NEVER, NEVER]);
        assert!(next_uses(std::iter::empty()).is_empty());
    }
}
