//! What is going to happen, in order: a calendar queue (Brown, Communications of the ACM, 1988).
//!
//! Time is cut into days of equal length, and each day of a year has its list. What happens today is kept in order;
//! another day's list is put in order when that day comes. What is more than a year away waits in a heap. So an event
//! costs the same however many there are.

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

/// Logarithm of the nanoseconds of a day: about one event of a busy device.
const DAY_SHIFT: u32 = 7;
/// Days of a year: one bit each in the words of [`Days`], and one for each word in its summary.
const DAYS: usize = 64 * 64;
/// No node.
const NONE: u32 = u32::MAX;
/// A day that never comes: the last one that 64 bits of nanoseconds have is far before it.
const NEVER: u64 = u64::MAX;

/// An event, its time, and its serial number among all, in which order those of the same time happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    at: u64,
    serial: u64,
    event: Event,
}

impl Entry {
    #[inline]
    fn day(&self) -> u64 {
        self.at >> DAY_SHIFT
    }

    #[inline]
    fn is_before(&self, other: &Entry) -> bool {
        (u128::from(self.at) << 64 | u128::from(self.serial)) < (u128::from(other.at) << 64 | u128::from(other.serial))
    }
}

/// A queue of events by time, and among those of the same time by the order in which they were put in.
///
/// While there is any event, there is one of today.
#[derive(Debug)]
pub(super) struct Agenda {
    /// Today's events from `first` on, in order, and today.
    near: Vec<Entry>,
    first: usize,
    today: u64,
    /// Those of the year that begins tomorrow.
    year: Year,
    /// Those of later years, and the first day of these.
    far: BinaryHeap<Reverse<Entry>>,
    far_day: u64,
    serial: u64,
}

impl Agenda {
    pub(super) fn new() -> Agenda {
        Agenda {
            near: Vec::new(),
            first: 0,
            today: 0,
            year: Year::new(),
            far: BinaryHeap::new(),
            far_day: NEVER,
            serial: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.serial += 1;
        let entry = Entry { at, serial: self.serial, event };
        let days = entry.day().saturating_sub(self.today);
        if days == 0 {
            self.put_near(entry);
        } else if days < DAYS as u64 && !self.near.is_empty() {
            self.year.put(entry);
        } else {
            self.push_apart(entry);
        }
    }

    /// An event of a later year, or the only one.
    #[cold]
    fn push_apart(&mut self, entry: Entry) {
        if self.near.is_empty() {
            self.today = entry.day();
            self.near.push(entry);
        } else {
            self.far.push(Reverse(entry));
            self.far_day = self.far_day.min(entry.day());
        }
    }

    /// When the next event is; `u64::MAX` without one.
    #[inline]
    pub(super) fn next_at(&self) -> u64 {
        self.near.get(self.first).map_or(u64::MAX, |entry| entry.at)
    }

    /// Takes the next event.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<Event> {
        let event = self.near.get(self.first)?.event;
        self.first += 1;
        if self.first == self.near.len() {
            self.near.clear();
            self.first = 0;
            self.turn_page();
        }
        Some(event)
    }

    /// Most events come behind all others of their day.
    #[inline]
    fn put_near(&mut self, entry: Entry) {
        let mut hole = self.near.len();
        self.near.push(entry);
        while hole > self.first && entry.is_before(&self.near[hole - 1]) {
            self.near[hole] = self.near[hole - 1];
            hole -= 1;
        }
        self.near[hole] = entry;
    }

    /// Goes on to the next day that has an event.
    #[inline]
    fn turn_page(&mut self) {
        let next = self.year.next_day(self.today);
        if self.far_day <= next {
            return self.turn_page_to_far(next);
        }
        self.today = next;
        self.year.take(next, &mut self.near);
        self.sort_near();
    }

    /// The same where an event of that day was more than a year away when it was put in, or where there is none at all.
    #[cold]
    fn turn_page_to_far(&mut self, next: u64) {
        if self.far_day == NEVER {
            return;
        }
        self.today = self.far_day;
        if next == self.today {
            self.year.take(next, &mut self.near);
        }
        while self.far_day == self.today {
            self.near.extend(self.far.pop().map(|Reverse(entry)| entry));
            self.far_day = self.far.peek().map_or(NEVER, |Reverse(entry)| entry.day());
        }
        self.sort_near();
    }

    #[inline]
    fn sort_near(&mut self) {
        match &mut self.near[..] {
            [_] => {}
            // Lists are in the order opposite to that of their coming.
            [one, other] => {
                if other.is_before(one) {
                    std::mem::swap(one, other);
                }
            }
            more => more.sort_unstable(),
        }
    }
}

/// The lists of the days of a year.
#[derive(Debug)]
struct Year {
    /// The first node of each day.
    lists: Box<[u32; DAYS]>,
    /// The days that have events, and the words of these that are not zero.
    words: [u64; 64],
    summary: u64,
    nodes: Vec<(Entry, u32)>,
    vacant: u32,
}

impl Year {
    fn new() -> Year {
        Year { lists: Box::new([NONE; DAYS]), words: [0; 64], summary: 0, nodes: Vec::new(), vacant: NONE }
    }

    #[inline]
    fn put(&mut self, entry: Entry) {
        let day = entry.day() as usize % DAYS;
        let node = (entry, self.lists[day]);
        let number = self.vacant;
        if let Some(vacant) = self.nodes.get_mut(number as usize) {
            self.vacant = std::mem::replace(vacant, node).1;
            self.lists[day] = number;
        } else {
            self.lists[day] = self.nodes.len() as u32;
            self.nodes.push(node);
        }
        self.words[day / 64] |= 1 << (day % 64);
        self.summary |= 1 << (day / 64);
    }

    /// The next day after `today` that has an event, or [`NEVER`].
    #[inline]
    fn next_day(&self, today: u64) -> u64 {
        let from = (today + 1) as usize % DAYS;
        let rest = self.words[from / 64] >> (from % 64);
        if rest != 0 {
            return today + 1 + u64::from(rest.trailing_zeros());
        }
        if self.summary == 0 {
            return NEVER;
        }
        // The words behind it, round to its own first part.
        let words = (from / 64 + 1) % 64;
        let ahead = self.summary.rotate_right(words as u32).trailing_zeros() as usize;
        let word = (words + ahead) % 64;
        let day = word * 64 + self.words[word].trailing_zeros() as usize;
        today + 1 + ((day + DAYS - from) % DAYS) as u64
    }

    /// Moves the events of a day to `near`, in no order.
    #[inline]
    fn take(&mut self, day: u64, near: &mut Vec<Entry>) {
        let day = day as usize % DAYS;
        let mut number = std::mem::replace(&mut self.lists[day], NONE);
        while let Some((entry, next)) = self.nodes.get_mut(number as usize) {
            near.push(*entry);
            let after = std::mem::replace(next, self.vacant);
            self.vacant = number;
            number = after;
        }
        self.words[day / 64] &= !(1 << (day % 64));
        if self.words[day / 64] == 0 {
            self.summary &= !(1 << (day / 64));
        }
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
