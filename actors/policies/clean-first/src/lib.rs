//! A cache policy to copy. It is FIFO that spares the flash programs: of the oldest pages, one that need not be written
//! goes first, as in CFLRU (Park and others, "CFLRU: a replacement algorithm for flash memory", CASES 2006), with the
//! order of arrival in place of LRU's.
//!
//! It has one of everything that a policy can want: a parameter, state for each set, a look at the frames, and tests
//! that run without a host.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `window_permille` | 0 to 1000, by default 250 | thousandths of a set that count as old (assumed) |

// In a module there is no standard library. Natively, where the tests run, there is.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_policy_sdk::{Frames, Parameters, Policy, Shape, Vec, VecDeque};

/// Everything that the policy remembers.
#[derive(Debug)]
pub struct CleanFirst {
    /// Of each set, its frames from old to new.
    sets: Vec<VecDeque<u32>>,
    /// How many of the oldest frames of a set are looked at.
    window: usize,
}

impl Policy for CleanFirst {
    fn new(shape: Shape, parameters: &Parameters, _seed: u64) -> Result<Self, &'static str> {
        let permille = parameters.get("window_permille", 250, 0, 1000);
        let window = u64::from(shape.pages_per_set) * permille / 1000;
        // Nothing should grow later: memory is not given back.
        let sets = (0..shape.sets).map(|_| VecDeque::with_capacity(shape.ways as usize)).collect();
        Ok(CleanFirst { sets, window: window as usize })
    }

    fn inserted(&mut self, set: u32, frame: u32, _page: u64, _recall: u8) {
        self.sets[set as usize].push_back(frame);
    }

    fn victim(&mut self, set: u32, _recall: u8, frames: &Frames) -> Option<u32> {
        let queue = &mut self.sets[set as usize];
        let clean = queue.iter().take(self.window).position(|frame| !frames.is_dirty(*frame));
        queue.remove(clean.unwrap_or(0))
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].retain(|known| *known != frame);
    }
}

osier_policy_sdk::export!(CleanFirst);

#[cfg(test)]
mod tests {
    use super::*;

    fn full(parameters: &Parameters) -> CleanFirst {
        let shape = Shape { sets: 1, ways: 8, pages_per_set: 8 };
        let mut policy = CleanFirst::new(shape, parameters, 0).unwrap();
        (0..8).for_each(|frame| policy.inserted(0, frame, 0, 0));
        policy
    }

    #[test]
    fn of_the_oldest_a_clean_page_goes_first() {
        let dirty = Frames::with_dirty(&[0, 1, 2, 3]);
        let mut policy = full(&Parameters::of(&[("window_permille", 500)]));
        assert_eq!(policy.victim(0, 0, &dirty), Some(0), "all four that count as old are dirty");
        assert_eq!(policy.victim(0, 0, &dirty), Some(4));
        assert_eq!(policy.victim(0, 0, &dirty), Some(5));
        policy.removed(0, 6);
        assert_eq!(policy.victim(0, 0, &dirty), Some(7));
        assert_eq!([policy.victim(0, 0, &dirty), policy.victim(0, 0, &dirty)], [Some(1), Some(2)]);
    }

    #[test]
    fn without_a_window_it_is_fifo() {
        let mut policy = full(&Parameters::of(&[("window_permille", 0)]));
        let victims: Vec<_> = (0..9).map(|_| policy.victim(0, 0, &Frames::with_dirty(&[0, 3]))).collect();
        assert_eq!(victims, (0..8).map(Some).chain([None]).collect::<Vec<_>>());
    }
}
