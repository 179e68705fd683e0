//! CLOCK, the second chance (Corbató, "A paging experiment with the Multics system", 1968).
//!
//! The hand goes over a set's frames in the order of their numbers. As a page comes into the frame that the hand
//! has just left, this is the order of a FIFO that puts used pages back at its end, which is how libCacheSim does
//! it: the same pages leave. Where frames are freed out of turn (pins, evictions by command, frames kept free) the
//! two differ, and this is what hardware with a reference bit a frame does.

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};

/// The count of a frame that the policy does not have.
const ABSENT: u8 = u8::MAX;

/// Evicts the first page at the hand that was not used since the hand passed it. 1 byte a frame.
#[derive(Debug)]
pub struct Clock {
    /// Uses seen since the hand passed, up to `count_max`.
    counts: Box<[u8]>,
    /// Of each set: the frame that the hand looks at next, and how many frames it has.
    sets: Box<[Hand]>,
    ways: u32,
    count_max: u8,
    count_first: u8,
}

#[derive(Clone, Copy, Debug)]
struct Hand {
    next: u32,
    frames: u32,
}

impl Named for Clock {
    const NAME: &'static str = "clock";
    const SUMMARY: &'static str = "the first page at the hand that was not used since the hand passed";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "bits",
            default: 1,
            min: 1,
            max: 7,
            about: "bits of the count of uses; 1 is the reference bit of the original (libCacheSim: n-bit-counter)",
        },
        Parameter {
            name: "first_count",
            default: 0,
            min: 0,
            max: 127,
            about: "count of a page that comes in, at most what the bits hold; 0 as in libCacheSim, 1 in Cylon",
        },
    ];

    fn new(shape: Shape, parameters: &Parameters, _: u64) -> Self {
        let count_max = (1_u8 << parameters.get("bits")) - 1;
        let hand = |set| Hand { next: set * shape.ways, frames: 0 };
        Self {
            counts: vec![ABSENT; shape.frames() as usize].into(),
            sets: (0..shape.sets).map(hand).collect(),
            ways: shape.ways,
            count_max,
            count_first: (parameters.get("first_count") as u8).min(count_max),
        }
    }
}

impl Eviction for Clock {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.counts[frame as usize] = self.count_first;
        self.sets[set as usize].frames += 1;
    }

    #[inline]
    fn touched(&mut self, _: u32, frame: u32) {
        let count = &mut self.counts[frame as usize];
        *count = (*count + 1).min(self.count_max);
    }

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let hand = &mut self.sets[set as usize];
        if hand.frames == 0 {
            return None;
        }
        let end = set * self.ways + self.ways;
        // At most `count_max + 1` rounds: each lowers every count, and there is at least one frame.
        loop {
            let frame = hand.next;
            hand.next = if frame + 1 == end { end - self.ways } else { frame + 1 };
            match &mut self.counts[frame as usize] {
                &mut ABSENT => {}
                count @ 0 => {
                    *count = ABSENT;
                    hand.frames -= 1;
                    return Some(frame);
                }
                count => *count -= 1,
            }
        }
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.counts[frame as usize] = ABSENT;
        self.sets[set as usize].frames -= 1;
    }
}
