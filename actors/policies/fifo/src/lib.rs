//! First in, first out: evicts the page that came in first.

#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_policy_sdk::{Frames, Parameters, Policy, Shape, Vec, VecDeque};

/// Of each set, its frames from old to new.
#[derive(Debug)]
pub struct Fifo(Vec<VecDeque<u32>>);

impl Policy for Fifo {
    fn new(shape: Shape, _: &Parameters, _: u64) -> Result<Self, &'static str> {
        Ok(Fifo((0..shape.sets).map(|_| VecDeque::with_capacity(shape.ways as usize)).collect()))
    }

    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: u8) {
        self.0[set as usize].push_back(frame);
    }

    fn victim(&mut self, set: u32, _: u8, _: &Frames) -> Option<u32> {
        self.0[set as usize].pop_front()
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.0[set as usize].retain(|known| *known != frame);
    }
}

osier_policy_sdk::export!(Fifo);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_one_in_is_the_first_one_out_of_its_set() {
        let shape = Shape { sets: 2, ways: 4, pages_per_set: 4 };
        let mut fifo = Fifo::new(shape, &Parameters::default(), 0).unwrap();
        for frame in [2, 0, 5, 1] {
            fifo.inserted(shape.set_of(frame), frame, 0, 0);
        }
        fifo.touched(0, 2);
        fifo.removed(0, 0);
        let victims = [0, 1, 0, 0].map(|set| fifo.victim(set, 0, &Frames::default()));
        assert_eq!(victims, [Some(2), Some(5), Some(1), None]);
    }
}
