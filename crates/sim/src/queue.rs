//! Events in order of virtual time.
//!
//! Invariants: time never goes back; events of one time come out in the order in which they went in,
//! so that a run depends on nothing but its inputs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Nanos;

/// A queue of events, earliest first.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    pushed: u64,
    now: Nanos,
}

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    order: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Nanos, u64) {
        (self.at, self.order)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), pushed: 0, now: Nanos(0) }
    }
}

impl<E> EventQueue<E> {
    /// An empty queue at time zero.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The time of the last event that came out, or later if [`EventQueue::advance`] said so.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Adds an event. One for a time that has passed happens now.
    pub fn push(&mut self, at: Nanos, event: E) {
        let entry = Entry { at: at.max(self.now), order: self.pushed, event };
        self.pushed += 1;
        self.heap.push(Reverse(entry));
    }

    /// When the next event is.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|Reverse(entry)| entry.at)
    }

    /// Takes the next event if it is due by `until`.
    pub fn pop_by(&mut self, until: Nanos) -> Option<E> {
        if self.next_at()? > until {
            return None;
        }
        let Reverse(entry) = self.heap.pop()?;
        self.advance(entry.at);
        Some(entry.event)
    }

    /// Says that something outside of the queue happened at this time.
    ///
    /// # Panics
    /// If time would go back, which is a bug of the driver.
    pub fn advance(&mut self, now: Nanos) {
        assert!(now >= self.now, "virtual time went back from {} ns to {} ns", self.now.0, now.0);
        self.now = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_by_time_and_then_by_order_of_arrival() {
        let mut queue = EventQueue::new();
        for (at, name) in [(5, 'a'), (3, 'b'), (5, 'c'), (3, 'd'), (4, 'e')] {
            queue.push(Nanos(at), name);
        }
        assert_eq!(queue.pop_by(Nanos(2)), None);
        let order: String = std::iter::from_fn(|| queue.pop_by(Nanos(9))).collect();
        assert_eq!(order, "bdeac");
        assert_eq!(queue.now(), Nanos(5));
        queue.push(Nanos(1), 'z');
        assert_eq!(queue.next_at(), Some(Nanos(5)), "what has passed happens now");
    }

    #[test]
    #[should_panic(expected = "went back")]
    fn time_never_goes_back() {
        let mut queue: EventQueue<()> = EventQueue::new();
        queue.advance(Nanos(2));
        queue.advance(Nanos(1));
    }
}
