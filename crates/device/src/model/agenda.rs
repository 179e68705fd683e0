//! What is going to happen, in order: a calendar queue (Brown, Communications of the ACM, 1988).
//!
//! Time is cut into days of equal length, and each day of a year has the list of its events, in order. What is more
//! than a year away waits in a heap. So an event costs the same however many there are.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

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

/// Logarithm of the nanoseconds of a day: a few events of a busy device.
const DAY_SHIFT: u32 = 7;
/// Days of a year: one bit each in the words of [`Agenda`], and one for each word in its summary.
const DAYS: usize = 64 * 64;
/// Nodes that are made at first.
const NODES_MIN: u32 = 64;
/// No node.
const NONE: u32 = u32::MAX;
/// A time, or a day, that never comes.
const NEVER: u64 = u64::MAX;

#[inline]
fn day_of(at: u64) -> u64 {
    at >> DAY_SHIFT
}

/// An event of this year.
#[derive(Clone, Copy, Debug)]
struct Node {
    at: u64,
    event: Event,
    /// The one after it on its day; of a vacant node, the next vacant one.
    next: u32,
}

/// The events of a day.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    /// Most events come behind all others of their day. Of an empty list, any.
    last: u32,
}

const EMPTY: List = List { first: NONE, last: NONE };

/// An event of a later year: its time, its serial number among these, in which order those of the same time happen, and
/// what happens.
type Far = Reverse<(u64, u64, Event)>;

/// A queue of events by time, and among those of the same time by the order in which they were put in.
///
/// While there is any event, there is one in today's list, and the first of all is the first there.
#[derive(Debug)]
pub(super) struct Agenda {
    /// When the first event is, or [`NEVER`].
    next_at: u64,
    /// With which the year begins. An event that is put in for a day before it, because the time is not there yet, is
    /// in its list.
    today: u64,
    /// Of each day of the year, by its number modulo those of a year.
    lists: Box<[List; DAYS]>,
    /// The days that have events, and the words of these that are not zero.
    words: [u64; 64],
    summary: u64,
    nodes: Vec<Node>,
    vacant: u32,
    /// Events of later years. Whatever else is on one of their days was put in after them.
    far: BinaryHeap<Far>,
    far_day: u64,
    serial: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        Agenda {
            next_at: NEVER,
            today: 0,
            lists: Box::new([EMPTY; DAYS]),
            words: [0; 64],
            summary: 0,
            nodes: Vec::new(),
            vacant: NONE,
            far: BinaryHeap::new(),
            far_day: NEVER,
            serial: 0,
        }
    }

    /// Puts an event in.
    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        if self.vacant == NONE {
            return self.push_growing(at, event);
        }
        if self.next_at == NEVER {
            self.today = day_of(at);
        }
        let day = day_of(at).max(self.today);
        if day - self.today >= DAYS as u64 {
            return self.push_far(at, event);
        }
        self.next_at = self.next_at.min(at);
        self.put(day as usize % DAYS, at, event);
    }

    /// As [`Agenda::push`], where no node is vacant. Apart, so that the way of most events needs no call.
    #[cold]
    fn push_growing(&mut self, at: u64, event: Event) {
        self.grow(event);
        self.push(at, event);
    }

    /// Makes as many vacant nodes as there are nodes; `event` stands in them.
    #[cold]
    fn grow(&mut self, event: Event) {
        let count = self.nodes.len() as u32;
        let more = count.max(NODES_MIN);
        self.nodes.extend((count..count + more).map(|number| Node { at: NEVER, event, next: number + 1 }));
        self.nodes[(count + more - 1) as usize].next = NONE;
        self.vacant = count;
    }

    #[cold]
    fn push_far(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.far.push(Reverse((at, self.serial, event)));
        self.far_day = self.far_day.min(day_of(at));
    }

    /// When the next event is; `u64::MAX` without one.
    #[inline]
    pub(super) fn next_at(&self) -> u64 {
        self.next_at
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        if self.next_at == NEVER {
            return None;
        }
        let list = &mut self.lists[self.today as usize % DAYS];
        let number = list.first;
        let node = &mut self.nodes[number as usize];
        let (event, next) = (node.event, node.next);
        node.next = self.vacant;
        self.vacant = number;
        list.first = next;
        match self.nodes.get(next as usize) {
            Some(next) => self.next_at = next.at,
            None => self.turn_page(),
        }
        Some(event)
    }

    /// Puts an event into the list of a day, behind those of the same time. There is a vacant node.
    #[inline]
    fn put(&mut self, day: usize, at: u64, event: Event) {
        let number = self.vacant;
        let List { first, last } = self.lists[day];
        let next = if first == NONE {
            self.words[day / 64] |= 1 << (day % 64);
            self.summary |= 1 << (day / 64);
            self.lists[day] = List { first: number, last: number };
            NONE
        } else if self.nodes[last as usize].at <= at {
            self.nodes[last as usize].next = number;
            self.lists[day].last = number;
            NONE
        } else {
            self.put_before_last(day, at, number)
        };
        self.vacant = std::mem::replace(&mut self.nodes[number as usize], Node { at, event, next }).next;
    }

    /// Links the node of an event that is before the last of its day with those before it; says which is behind it.
    fn put_before_last(&mut self, day: usize, at: u64, new: u32) -> u32 {
        let list = &mut self.lists[day];
        let (mut before, mut number) = (NONE, list.first);
        while self.nodes[number as usize].at <= at {
            (before, number) = (number, self.nodes[number as usize].next);
        }
        match self.nodes.get_mut(before as usize) {
            Some(node) => node.next = new,
            None => list.first = new,
        }
        number
    }

    /// Today has no event any more: goes on to the next day that has one.
    #[inline]
    fn turn_page(&mut self) {
        let day = self.today as usize % DAYS;
        self.words[day / 64] &= !(1 << (day % 64));
        if self.words[day / 64] == 0 {
            self.summary &= !(1 << (day / 64));
        }
        let next = self.next_day();
        if self.far_day <= next {
            // Also where both are never.
            return self.turn_page_to_far();
        }
        self.today = next;
        self.next_at = self.first_at();
    }

    /// When today's first event is.
    #[inline]
    fn first_at(&self) -> u64 {
        self.nodes[self.lists[self.today as usize % DAYS].first as usize].at
    }

    /// The next day of the year after today that has an event, or [`NEVER`].
    #[inline]
    fn next_day(&self) -> u64 {
        let from = (self.today + 1) as usize % DAYS;
        let rest = self.words[from / 64] >> (from % 64);
        if rest != 0 {
            return self.today + 1 + u64::from(rest.trailing_zeros());
        }
        if self.summary == 0 {
            return NEVER;
        }
        // The words behind it, round to its own first part.
        let words = (from / 64 + 1) % 64;
        let ahead = self.summary.rotate_right(words as u32).trailing_zeros() as usize;
        let word = (words + ahead) % 64;
        let day = word * 64 + self.words[word].trailing_zeros() as usize;
        self.today + 1 + ((day + DAYS - from) % DAYS) as u64
    }

    /// The next event is one that was more than a year away when it was put in, or there is none at all.
    #[cold]
    fn turn_page_to_far(&mut self) {
        self.next_at = NEVER;
        if self.far_day == NEVER {
            return;
        }
        self.today = self.far_day;
        let day = self.today as usize % DAYS;
        // What is on that day already came later.
        let mut number = std::mem::replace(&mut self.lists[day], EMPTY).first;
        while self.far_day == self.today {
            let Some(Reverse((at, _, event))) = self.far.pop() else { break };
            if self.vacant == NONE {
                self.grow(event);
            }
            self.put(day, at, event);
            self.far_day = self.far.peek().map_or(NEVER, |Reverse((at, ..))| day_of(*at));
        }
        while let Some(&Node { at, event, next }) = self.nodes.get(number as usize) {
            self.nodes[number as usize].next = self.vacant;
            self.vacant = number;
            number = next;
            self.put(day, at, event);
        }
        self.next_at = self.first_at();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against a sorted list, with times of the same instant, of the same day, of the year, and of later ones.
    #[test]
    fn events_come_by_time_and_then_by_the_order_of_their_coming() {
        for (spread, seed) in [(4, 1), (60, 2), (2_000, 3), (300_000, 4), (2_000_000, 5), (40_000_000, 6)] {
            let (mut agenda, mut plain, mut now) = (Agenda::new(), Vec::new(), 0);
            let mut random = seed;
            let mut draw = |end: u64| {
                random = random_after(random);
                (random >> 32) % end
            };
            for index in 0..10_000_u32 {
                let at = now + if draw(3) == 0 { draw(50) } else { draw(spread) };
                let event = match draw(4) {
                    0 => Event::Arrived(index),
                    1 => Event::Ready(index),
                    2 => Event::FillRead(index),
                    _ => Event::Delivered(index),
                };
                agenda.push(at, event);
                plain.push((at, index, event));
                // The queue grows to some hundreds, and is emptied from time to time.
                let taken = if draw(1_000) == 0 { plain.len() } else { draw(3) as usize };
                for _ in 0..taken.min(plain.len()) {
                    plain.sort_unstable();
                    assert_eq!(agenda.next_at(), plain[0].0, "spread {spread}");
                    let (at, _, event) = plain.remove(0);
                    assert_eq!(agenda.pop(), Some(event), "spread {spread}");
                    now = at;
                }
            }
            plain.sort_unstable();
            for (_, _, event) in plain {
                assert_eq!(agenda.pop(), Some(event));
            }
            assert_eq!((agenda.pop(), agenda.next_at()), (None, u64::MAX));
        }
    }

    fn random_after(random: u64) -> u64 {
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
    }
}
