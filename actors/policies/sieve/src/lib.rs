//! SIEVE (Zhang and others, "SIEVE is simpler than LRU", NSDI 2024, Algorithm 1): a queue in the order of arrival, and
//! a hand that goes from old to new. A page that was used since the hand last passed stays, and loses its mark.

#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_policy_sdk::{Frames, Parameters, Policy, Shape, Vec, vec};

/// No frame.
const NONE: u32 = u32::MAX;

/// The queues of all sets, as links between frames. 9 bytes a frame.
#[derive(Debug)]
pub struct Sieve {
    newer: Vec<u32>,
    older: Vec<u32>,
    visited: Vec<bool>,
    sets: Vec<Set>,
}

#[derive(Debug, Clone, Copy)]
struct Set {
    newest: u32,
    oldest: u32,
    /// Where the next search begins; none for the oldest.
    hand: u32,
}

impl Policy for Sieve {
    fn new(shape: Shape, _: &Parameters, _: u64) -> Result<Self, &'static str> {
        let frames = shape.frames() as usize;
        Ok(Sieve {
            newer: vec![0; frames],
            older: vec![0; frames],
            visited: vec![false; frames],
            sets: vec![Set { newest: NONE, oldest: NONE, hand: NONE }; shape.sets as usize],
        })
    }

    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: u8) {
        let set = &mut self.sets[set as usize];
        self.visited[frame as usize] = false;
        self.newer[frame as usize] = NONE;
        self.older[frame as usize] = set.newest;
        match set.newest {
            NONE => set.oldest = frame,
            newest => self.newer[newest as usize] = frame,
        }
        set.newest = frame;
    }

    fn touched(&mut self, _: u32, frame: u32) {
        self.visited[frame as usize] = true;
    }

    fn victim(&mut self, set: u32, _: u8, _: &Frames) -> Option<u32> {
        let Set { oldest, hand, .. } = self.sets[set as usize];
        let mut frame = if hand == NONE { oldest } else { hand };
        if frame == NONE {
            return None;
        }
        while self.visited[frame as usize] {
            self.visited[frame as usize] = false;
            frame = match self.newer[frame as usize] {
                NONE => oldest,
                newer => newer,
            };
        }
        self.sets[set as usize].hand = frame;
        self.removed(set, frame);
        Some(frame)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        let set = &mut self.sets[set as usize];
        let (newer, older) = (self.newer[frame as usize], self.older[frame as usize]);
        if set.hand == frame {
            set.hand = newer;
        }
        match newer {
            NONE => set.newest = older,
            newer => self.older[newer as usize] = older,
        }
        match older {
            NONE => set.oldest = newer,
            older => self.newer[older as usize] = newer,
        }
    }
}

osier_policy_sdk::export!(Sieve);

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the paper's Figure 1, as far as it goes: a hand that passes used pages and stays where it is.
    #[test]
    fn used_pages_stay_and_the_hand_goes_on_from_where_it_was() {
        let shape = Shape { sets: 1, ways: 4, pages_per_set: 4 };
        let mut sieve = Sieve::new(shape, &Parameters::default(), 0).unwrap();
        (0..4).for_each(|frame| sieve.inserted(0, frame, 0, 0));
        sieve.touched(0, 0);
        sieve.touched(0, 2);
        let mut victim = || sieve.victim(0, 0, &Frames::default());
        assert_eq!([victim(), victim(), victim(), victim(), victim()], [Some(1), Some(3), Some(0), Some(2), None]);
    }
}
