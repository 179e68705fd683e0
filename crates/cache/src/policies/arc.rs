//! ARC, the adaptive replacement cache (Megiddo and Modha, FAST 2003, Figure 4).
//!
//! Exactly as libCacheSim 0.3.5 does it, which takes the paper's target `p` and its steps as real numbers, in
//! double precision. Here they are fixed-point numbers with 52 bits after the point, each result rounded to the 53
//! significant bits of a double: as every step is at least 1, no double that comes up has finer bits, so the two
//! agree to the last bit, and nothing here depends on floating point.

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};
use crate::ghost::Ghosts;
use crate::list::{Links, NONE, Queue};

/// A page remembered as used once (the paper's B1).
const WAS_ONCE: Recall = Recall::new(1);
/// A page remembered as used more than once (B2).
const WAS_OFTEN: Recall = Recall::new(2);

/// Two queues, of pages used once and more than once, whose shares follow which of them misses more. 9 bytes a
/// frame and 29 for each ghost, of which there are as many as frames: 38 bytes a frame.
#[derive(Debug)]
pub struct Arc {
    links: Links,
    is_often: Box<[bool]>,
    ghosts: Ghosts,
    sets: Box<[Set]>,
    /// The paper's `c`.
    pages: u32,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    /// T1 and T2.
    once: Queue,
    often: Queue,
    /// B1 and B2.
    ghosts_once: Queue,
    ghosts_often: Queue,
    /// The paper's `p`: how many pages T1 should have.
    target: Target,
}

/// A number of pages, as the module says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Target(u128);

impl Target {
    /// Bits after the point.
    const FRACTION: u32 = 52;

    fn whole(pages: u32) -> Self {
        Self(u128::from(pages) << Self::FRACTION)
    }

    /// `dividend / divisor`, at least 1.
    fn step(dividend: u32, divisor: u32) -> Self {
        if dividend <= divisor {
            return Self::whole(1);
        }
        // Two bits more than are kept, and whether anything is left below them, say how to round.
        let dividend = u128::from(dividend) << (Self::FRACTION + 2);
        let (quotient, rest) = (dividend / u128::from(divisor), dividend % u128::from(divisor));
        Self(round(quotient | u128::from(rest != 0)) >> 2)
    }

    fn raised(self, step: Self, max: Self) -> Self {
        Self(round(self.0 + step.0)).min(max)
    }

    fn lowered(self, step: Self) -> Self {
        Self(round(self.0.saturating_sub(step.0)))
    }
}

/// To 53 significant bits, to the nearest, ties to even (IEEE 754-2019, section 4.3.1).
fn round(value: u128) -> u128 {
    let excess = (u128::BITS - value.leading_zeros()).saturating_sub(53);
    if excess == 0 {
        return value;
    }
    let half = 1 << (excess - 1);
    let kept = value >> excess;
    let rest = value & ((1 << excess) - 1);
    let up = rest > half || (rest == half && kept & 1 == 1);
    (kept + u128::from(up)) << excess
}

impl Named for Arc {
    const NAME: &'static str = "arc";
    const SUMMARY: &'static str = "recency and frequency, whose balance follows the misses";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, _: &Parameters, _: u64) -> Self {
        let set = Set {
            once: Queue::EMPTY,
            often: Queue::EMPTY,
            ghosts_once: Queue::EMPTY,
            ghosts_often: Queue::EMPTY,
            target: Target::whole(0),
        };
        Self {
            links: Links::new(shape.frames()),
            is_often: vec![false; shape.frames() as usize].into(),
            ghosts: Ghosts::new(shape.pages_per_set * shape.sets),
            sets: vec![set; shape.sets as usize].into(),
            pages: shape.pages_per_set,
        }
    }
}

impl Arc {
    /// The paper's REPLACE: the older queue end that the target asks for becomes a ghost.
    fn replace(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        let state = &mut self.sets[set as usize];
        let length = Target::whole(state.once.len());
        let over = length > state.target || (length == state.target && recall == WAS_OFTEN);
        let from_once = state.often.len() == 0 || (state.once.len() > 0 && over);
        let (queue, number) =
            if from_once { (&mut state.once, WAS_ONCE.get()) } else { (&mut state.often, WAS_OFTEN.get()) };
        let frame = queue.pop_oldest(&mut self.links)?;
        // Only where pages left in other ways than by this policy could the ghosts be full.
        if state.ghosts_once.len() + state.ghosts_often.len() >= self.pages {
            let more_once = state.ghosts_once.len() >= state.ghosts_often.len();
            let longer = if more_once { &mut state.ghosts_once } else { &mut state.ghosts_often };
            self.ghosts.drop_oldest(longer);
        }
        let ghosts = if from_once { &mut state.ghosts_once } else { &mut state.ghosts_often };
        self.ghosts.push(ghosts, number, frames.page(frame));
        Some(frame)
    }
}

impl Eviction for Arc {
    #[inline]
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        let Some((entry, number)) = self.ghosts.find(page) else { return Recall::NOTHING };
        let set = &mut self.sets[set as usize];
        let (once, often) = (set.ghosts_once.len(), set.ghosts_often.len());
        let recall = Recall::new(number);
        let queue = if recall == WAS_ONCE { &mut set.ghosts_once } else { &mut set.ghosts_often };
        self.ghosts.remove(queue, entry);
        // A prefetch is a guess, not a use: it teaches nothing.
        if !demanded {
            return Recall::NOTHING;
        }
        set.target = if recall == WAS_ONCE {
            set.target.raised(Target::step(often, once), Target::whole(self.pages))
        } else {
            set.target.lowered(Target::step(once, often))
        };
        recall
    }

    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, recall: Recall) {
        let set = &mut self.sets[set as usize];
        let is_often = recall != Recall::NOTHING;
        self.is_often[frame as usize] = is_often;
        let queue = if is_often { &mut set.often } else { &mut set.once };
        queue.push_newest(&mut self.links, frame);
    }

    #[inline]
    fn touched(&mut self, set: u32, frame: u32) {
        let set = &mut self.sets[set as usize];
        if self.is_often[frame as usize] {
            set.often.move_to_newest(&mut self.links, frame);
        } else {
            self.is_often[frame as usize] = true;
            set.once.remove(&mut self.links, frame);
            set.often.push_newest(&mut self.links, frame);
        }
    }

    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        if recall != Recall::NOTHING {
            return self.replace(set, recall, frames);
        }
        // The paper's case IV.
        let state = &mut self.sets[set as usize];
        let once = state.once.len() + state.ghosts_once.len();
        if once >= self.pages {
            if state.ghosts_once.len() == 0 {
                return match state.once.oldest() {
                    NONE => None,
                    _ => state.once.pop_oldest(&mut self.links),
                };
            }
            self.ghosts.drop_oldest(&mut state.ghosts_once);
        } else if u64::from(once + state.often.len() + state.ghosts_often.len()) >= 2 * u64::from(self.pages)
            && state.ghosts_often.len() > 0
        {
            self.ghosts.drop_oldest(&mut state.ghosts_often);
        }
        self.replace(set, recall, frames)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        let set = &mut self.sets[set as usize];
        let queue = if self.is_often[frame as usize] { &mut set.often } else { &mut set.once };
        queue.remove(&mut self.links, frame);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;

    /// The target beside the double that it stands for, through random walks as ARC makes them.
    #[test]
    fn the_target_is_the_double_that_it_stands_for() {
        for seed in 0..50 {
            let mut random = SplitMix64::new(seed);
            let bits = 1 + random.below(31);
            let pages = 1 + random.below(1 << bits) as u32;
            let (mut target, mut double) = (Target::whole(0), 0.0_f64);
            for step in 0..20_000 {
                let dividend = random.below(u64::from(pages)) as u32;
                let bits = random.below(32);
                let divisor = 1 + random.below(u64::from(pages).min(1 << bits)) as u32;
                let delta = (f64::from(dividend) / f64::from(divisor)).max(1.0);
                if random.below(2) == 0 {
                    target = target.raised(Target::step(dividend, divisor), Target::whole(pages));
                    double = (double + delta).min(f64::from(pages));
                } else {
                    target = target.lowered(Target::step(dividend, divisor));
                    double = (double - delta).max(0.0);
                }
                // Multiplying by a power of two is exact.
                let scaled = double * (1_u64 << 52) as f64;
                assert_eq!(target.0, scaled as u128, "seed {seed}, step {step}: {double}");
            }
        }
    }
}
