//! SIEVE (Zhang and others, "SIEVE is simpler than LRU", NSDI 2024, Algorithm 1).

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};
use crate::list::{Links, NONE, Queue};

/// A FIFO whose used pages stay where they are while a hand goes from old to new. 9 bytes a frame.
#[derive(Debug)]
pub struct Sieve {
    links: Links,
    visited: Box<[bool]>,
    sets: Box<[Set]>,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    queue: Queue,
    /// Where the next search begins; none for the oldest.
    hand: u32,
}

impl Named for Sieve {
    const NAME: &'static str = "sieve";
    const SUMMARY: &'static str = "the first unused page from the hand, which goes from old to new";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, _: &Parameters, _: u64) -> Self {
        Self {
            links: Links::new(shape.frames()),
            visited: vec![false; shape.frames() as usize].into(),
            sets: vec![Set { queue: Queue::EMPTY, hand: NONE }; shape.sets as usize].into(),
        }
    }
}

impl Eviction for Sieve {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.visited[frame as usize] = false;
        self.sets[set as usize].queue.push_newest(&mut self.links, frame);
    }

    #[inline]
    fn touched(&mut self, _: u32, frame: u32) {
        self.visited[frame as usize] = true;
    }

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let Set { queue, hand } = self.sets[set as usize];
        let mut frame = if hand == NONE { queue.oldest() } else { hand };
        if frame == NONE {
            return None;
        }
        // Ends in the second round at the latest: the first clears every mark.
        while self.visited[frame as usize] {
            self.visited[frame as usize] = false;
            frame = match self.links.newer(frame) {
                NONE => queue.oldest(),
                newer => newer,
            };
        }
        self.sets[set as usize].hand = frame;
        self.removed(set, frame);
        Some(frame)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        let set = &mut self.sets[set as usize];
        if set.hand == frame {
            set.hand = self.links.newer(frame);
        }
        set.queue.remove(&mut self.links, frame);
    }
}
