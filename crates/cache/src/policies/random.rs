//! Any page.

use crate::SplitMix64;
use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};

/// Evicts a page drawn evenly from the set. 8 bytes a frame.
#[derive(Debug)]
pub struct Random {
    /// Each set's part begins with the frames that the policy has, in no order.
    frames: Box<[u32]>,
    /// Where each frame is in `frames`.
    places: Box<[u32]>,
    /// How many each set has.
    counts: Box<[u32]>,
    ways: u32,
    random: SplitMix64,
}

impl Named for Random {
    const NAME: &'static str = "random";
    const SUMMARY: &'static str = "any page, drawn from the seed";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, _: &Parameters, seed: u64) -> Self {
        Self {
            frames: vec![0; shape.frames() as usize].into(),
            places: vec![0; shape.frames() as usize].into(),
            counts: vec![0; shape.sets as usize].into(),
            ways: shape.ways,
            random: SplitMix64::new(seed),
        }
    }
}

impl Eviction for Random {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        let place = set * self.ways + self.counts[set as usize];
        self.frames[place as usize] = frame;
        self.places[frame as usize] = place;
        self.counts[set as usize] += 1;
    }

    #[inline]
    fn touched(&mut self, _: u32, _: u32) {}

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let count = self.counts[set as usize];
        if count == 0 {
            return None;
        }
        let place = set * self.ways + self.random.below(u64::from(count)) as u32;
        let frame = self.frames[place as usize];
        self.removed(set, frame);
        Some(frame)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        let count = &mut self.counts[set as usize];
        *count -= 1;
        // The last takes the place of the one that leaves.
        let last = self.frames[(set * self.ways + *count) as usize];
        let place = self.places[frame as usize];
        self.frames[place as usize] = last;
        self.places[last as usize] = place;
    }
}
