//! What is going to happen, in order.

use std::collections::VecDeque;
use std::hint::select_unpredictable;

/// What happens to a command or to a fill, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// How many lanes there are.
const LANES: usize = 5;
/// The heap's place behind the lanes.
const HEAP: usize = LANES;

impl Event {
    /// The lane of its kind; reads of the flash end in no order.
    #[inline]
    fn lane(self) -> usize {
        match self {
            Event::Arrived(_) => 0,
            Event::Handled(_) => 1,
            Event::Fetched(_) => 2,
            Event::Ready(_) => 3,
            Event::Delivered(_) => 4,
            Event::FillRead(_) | Event::Merge(_) | Event::CompactRead => HEAP,
        }
    }
}

/// When, and by what serial number among those of the same instant: the upper and the lower half.
type Key = u128;

/// Later than anything.
const NEVER: Key = Key::MAX;

/// A queue of events by time, and among those of the same time by the order in which they were put in.
///
/// Most events of a step of a command come in the order of their times: those wait in a lane, first in, first out. The
/// others wait in a heap.
#[derive(Debug)]
pub(super) struct Agenda {
    lanes: [VecDeque<(Key, Event)>; LANES],
    /// The first key of each lane, and of the heap behind them.
    first: [Key; LANES + 1],
    /// The least of these, and whose it is.
    least: (Key, usize),
    heap: Heap,
    serial: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        let lanes = std::array::from_fn(|_| VecDeque::new());
        Agenda { lanes, first: [NEVER; LANES + 1], least: (NEVER, 0), heap: Heap::default(), serial: 0 }
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.serial += 1;
        let (key, mut index) = (Key::from(at) << 64 | Key::from(self.serial), event.lane());
        match self.lanes.get_mut(index) {
            Some(lane) if lane.back().is_none_or(|(last, _)| *last < key) => lane.push_back((key, event)),
            _ => {
                self.heap.push((key, event));
                index = HEAP;
            }
        }
        self.first[index] = self.first[index].min(key);
        if key < self.least.0 {
            self.least = (key, index);
        }
    }

    /// When the next event is; `u64::MAX` without one.
    #[inline]
    pub(super) fn next_at(&self) -> u64 {
        (self.least.0 >> 64) as u64
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let (key, index) = self.least;
        if key == NEVER {
            return None;
        }
        let (taken, next) = match self.lanes.get_mut(index) {
            Some(lane) => (lane.pop_front(), lane.front().map_or(NEVER, |(key, _)| *key)),
            None => (self.heap.pop(), self.heap.first()),
        };
        self.first[index] = next;
        let [a, b, c, d, e, f] = self.first;
        self.least = earlier(earlier(earlier((a, 0), (b, 1)), earlier((c, 2), (d, 3))), earlier((e, 4), (f, 5)));
        taken.map(|(_, event)| event)
    }
}

/// The earlier of two keys, with its place. Which it is cannot be predicted, so that no branch depends on it.
#[inline]
fn earlier(one: (Key, usize), other: (Key, usize)) -> (Key, usize) {
    let is_other = other.0 < one.0;
    (select_unpredictable(is_other, other.0, one.0), select_unpredictable(is_other, other.1, one.1))
}

/// Children of a node of the heap: half as many levels as with two, and those of one node lie together.
const CHILDREN: usize = 4;

/// A heap with the least key first.
#[derive(Debug, Default)]
struct Heap {
    nodes: Vec<(Key, Event)>,
}

impl Heap {
    #[inline]
    fn first(&self) -> Key {
        self.nodes.first().map_or(NEVER, |(key, _)| *key)
    }

    #[inline]
    fn push(&mut self, node: (Key, Event)) {
        let mut hole = self.nodes.len();
        self.nodes.push(node);
        while hole > 0 {
            let parent = (hole - 1) / CHILDREN;
            if self.nodes[parent].0 <= node.0 {
                break;
            }
            self.nodes[hole] = self.nodes[parent];
            hole = parent;
        }
        self.nodes[hole] = node;
    }

    #[inline]
    fn pop(&mut self) -> Option<(Key, Event)> {
        let last = self.nodes.pop()?;
        let Some(&first) = self.nodes.first() else { return Some(last) };
        let mut hole = 0;
        loop {
            let from = hole * CHILDREN + 1;
            let (key, least) = match self.nodes.get(from..) {
                Some([a, b, c, d, ..]) => {
                    earlier(earlier((a.0, from), (b.0, from + 1)), earlier((c.0, from + 2), (d.0, from + 3)))
                }
                Some(few) => (from..).zip(few).fold((NEVER, from), |least, (at, node)| earlier(least, (node.0, at))),
                None => break,
            };
            if last.0 <= key {
                break;
            }
            self.nodes[hole] = self.nodes[least];
            hole = least;
        }
        self.nodes[hole] = last;
        Some(first)
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
