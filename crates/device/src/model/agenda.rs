//! What is going to happen, in order.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What happens to a command or to a fill, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The command, or the message, is at the device.
    Arrived(u32),
    /// The controller has done its work for the command.
    Handled(u32),
    /// The data of the command is at the device.
    Fetched(u32),
    /// All pages of the command are done.
    Ready(u32),
    /// The answer is with the host.
    Delivered(u32),
    /// The flash has read the page of a fill.
    FillRead(u32),
    /// The flash has read what a partial write leaves.
    Merge(u32),
    /// The flash has read what the log lacks of a page.
    CompactRead,
}

/// How many lanes there are: one for each kind of event.
const LANES: usize = 8;

impl Event {
    fn lane(self) -> usize {
        match self {
            Event::Arrived(_) => 0,
            Event::Handled(_) => 1,
            Event::Fetched(_) => 2,
            Event::Ready(_) => 3,
            Event::Delivered(_) => 4,
            Event::FillRead(_) => 5,
            Event::Merge(_) => 6,
            Event::CompactRead => 7,
        }
    }
}

/// When, and by what serial number among those of the same instant.
type Key = (u64, u64);

/// Later than anything.
const NEVER: Key = (u64::MAX, u64::MAX);

/// A queue of events by time, and among those of the same time by the order in which they were put in.
///
/// Most events of one kind come in the order of their times: those wait in a lane of their kind, first in, first out.
/// The others wait in a heap.
#[derive(Debug)]
pub(super) struct Agenda {
    lanes: [VecDeque<(Key, Event)>; LANES],
    /// The first key of each lane, and of the heap behind them.
    first: [Key; LANES + 1],
    heap: BinaryHeap<Reverse<(Key, Event)>>,
    serial: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        let lanes = std::array::from_fn(|_| VecDeque::new());
        Agenda { lanes, first: [NEVER; LANES + 1], heap: BinaryHeap::new(), serial: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.serial += 1;
        let (key, index) = ((at, self.serial), event.lane());
        let lane = &mut self.lanes[index];
        match lane.back() {
            Some((last, _)) if *last > key => {
                self.heap.push(Reverse((key, event)));
                self.first[LANES] = self.first[LANES].min(key);
            }
            Some(_) => lane.push_back((key, event)),
            None => {
                lane.push_back((key, event));
                self.first[index] = key;
            }
        }
    }

    #[inline]
    fn next(&self) -> (Key, usize) {
        let mut least = (self.first[0], 0);
        for (index, key) in self.first.iter().enumerate().skip(1) {
            if *key < least.0 {
                least = (*key, index);
            }
        }
        least
    }

    /// When the next event is; `u64::MAX` without one.
    #[inline]
    pub(super) fn next_at(&self) -> u64 {
        self.next().0.0
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let (key, index) = self.next();
        if key == NEVER {
            return None;
        }
        if index == LANES {
            let taken = self.heap.pop();
            self.first[LANES] = self.heap.peek().map_or(NEVER, |Reverse((key, _))| *key);
            return taken.map(|Reverse((_, event))| event);
        }
        let taken = self.lanes[index].pop_front();
        self.first[index] = self.lanes[index].front().map_or(NEVER, |(key, _)| *key);
        taken.map(|(_, event)| event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a sorted list, with times that rise and fall.
    #[test]
    fn events_come_by_time_and_then_by_the_order_of_their_coming() {
        let (mut agenda, mut plain) = (Agenda::new(), Vec::new());
        let mut random = 7_u64;
        for index in 0..10_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = u64::from(index / 3) + (random >> 60);
            let event = match random >> 40 & 3 {
                0 => Event::Arrived(index),
                1 => Event::Ready(index),
                2 => Event::FillRead(index),
                _ => Event::Delivered(index),
            };
            agenda.push(at, event);
            plain.push((at, index, event));
            if random >> 33 & 3 == 0 {
                plain.sort_by_key(|(at, index, _)| (*at, *index));
                assert_eq!(agenda.next_at(), plain[0].0);
                assert_eq!(agenda.pop(), Some(plain.remove(0).2));
            }
        }
        plain.sort_by_key(|(at, index, _)| (*at, *index));
        for (_, _, event) in plain {
            assert_eq!(agenda.pop(), Some(event));
        }
        assert_eq!((agenda.pop(), agenda.next_at()), (None, u64::MAX));
    }
}
