//! The death of a die, or of a plane of one, and what the device still does.
//!
//! From then on the device is read-only: nothing is written to what is left but slots that were open, trims, and a
//! checkpoint that says which stripes are dead. What was on its way to the die counts as lying on it: it reads as
//! uncorrectable. Nothing is collected, so that every other unit stays where it is.
//!
//! Once that checkpoint is whole, a recovery knows what lies on the dead stripes, and all of the above holds after
//! a loss of power too. A recovery that finds a dead stripe on no checkpoint says so
//! ([`PageRecovery::unvouched`](super::PageRecovery)): units that were written to it since may read as older
//! versions. With multi-plane operations a slot lies on all planes of a die, and dies with any.

use super::PageMedia;
use super::ftl::PageFtl;
use crate::Nanos;

impl<M: PageMedia> PageFtl<M> {
    /// A die stops answering, or one plane of it, for good.
    pub fn lose_die(&mut self, now: Nanos, die: u32, plane: Option<u32>) {
        self.advance(now);
        let is_hit =
            |&(of, on): &(u32, u32)| of == die && (self.sizes.slot_planes > 1 || plane.is_none_or(|p| p == on));
        let hit: Vec<u32> = (0..self.sizes.stripes).filter(|&number| is_hit(&self.stripes[number as usize])).collect();
        for stripe in hit {
            if self.dead.insert(stripe) {
                self.media.lose_stripe(stripe);
            }
        }
        if self.is_frozen() {
            self.read_only = true;
            self.stop_collecting();
            self.checkpoints.start_early();
            self.go_on();
        }
    }

    /// Whether the newest checkpoint knows of every dead stripe.
    #[must_use]
    pub fn vouches(&self) -> bool {
        self.checkpoints.dead_at_seal == self.dead.len()
    }

    /// Whether space is left as it is, since something is dead.
    pub(crate) fn is_frozen(&self) -> bool {
        !self.dead.is_empty()
    }

    pub(crate) fn is_dead(&self, stripe: u32) -> bool {
        self.is_frozen() && self.dead.contains(&stripe)
    }
}
