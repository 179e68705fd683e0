//! The ownership word of a shared object: who may touch its bytes now, and the how-manieth owner that is.
//!
//! The word is `generation << 8 | side`. It is checked on each entry into the object and changed only by
//! compare-and-exchange, so of two parties that both believe themselves the owner's successor one loses.
//! The generation makes a stale compare-and-exchange fail even when the same side owns the object again.

use crate::layout::Side;
use crate::words::Word;
use std::sync::atomic::Ordering;

/// What an ownership word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ownership {
    /// The side that owns the object.
    pub side: Side,
    /// How often the object changed hands.
    pub generation: u64,
}

/// Generations that a word can count.
pub const GENERATION_MAX: u64 = (1 << 56) - 1;

impl Ownership {
    /// Reads it from a word's value.
    pub const fn from_word(word: u64) -> Self {
        Self { side: Side(word as u8), generation: word >> 8 }
    }

    /// The word's value.
    ///
    /// # Panics
    /// If the generation does not fit 56 bits.
    pub const fn to_word(self) -> u64 {
        assert!(self.generation <= GENERATION_MAX, "an object cannot change hands that often");
        self.generation << 8 | self.side.0 as u64
    }
}

/// Someone else owns the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot use the object as {wanted}: {} owns it (generation {})", .found.side, .found.generation)]
pub struct NotOwner {
    /// Who asked.
    pub wanted: Side,
    /// What the word says.
    pub found: Ownership,
}

/// An ownership word, over any shared word.
#[derive(Debug)]
pub struct OwnerWord<'a, W>(&'a W);

impl<W> Clone for OwnerWord<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W> Copy for OwnerWord<'_, W> {}

impl<'a, W: Word> OwnerWord<'a, W> {
    /// Views a word as an ownership word.
    pub fn new(word: &'a W) -> Self {
        Self(word)
    }

    /// Sets the word, whatever it was: for making an object, when nobody else knows of it.
    pub fn initialise(&self, ownership: Ownership) {
        self.0.store(ownership.to_word(), Ordering::Release);
    }

    /// What the word says now.
    #[inline]
    pub fn ownership(&self) -> Ownership {
        Ownership::from_word(self.0.load(Ordering::Acquire))
    }

    /// Admits `side` if it owns the object; it then sees all that the former owner wrote.
    ///
    /// # Errors
    /// `NotOwner` with what the word says.
    #[inline]
    pub fn check(&self, side: Side) -> Result<Ownership, NotOwner> {
        let found = self.ownership();
        if found.side == side { Ok(found) } else { Err(NotOwner { wanted: side, found }) }
    }

    /// Hands the object from `from` to `to`, raising the generation.
    ///
    /// # Errors
    /// `NotOwner` when the word does not say `from`, the generation included: then nothing changed.
    pub fn transfer(&self, from: Ownership, to: Side) -> Result<Ownership, NotOwner> {
        let next = Ownership { side: to, generation: from.generation + 1 };
        match self.0.compare_exchange(from.to_word(), next.to_word()) {
            Ok(_) => Ok(next),
            Err(found) => Err(NotOwner { wanted: from.side, found: Ownership::from_word(found) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn only_the_owner_passes_and_each_transfer_counts() {
        let word = AtomicU64::new(0);
        let owner = OwnerWord::new(&word);
        owner.initialise(Ownership { side: Side::HOST, generation: 5 });
        let held = owner.check(Side::HOST).unwrap();
        assert!(owner.check(Side::DEVICE).is_err());
        let next = owner.transfer(held, Side::DEVICE).unwrap();
        assert_eq!(next, Ownership { side: Side::DEVICE, generation: 6 });
        let stale = owner.transfer(held, Side::SUPERVISOR).unwrap_err();
        assert_eq!(stale.to_string(), "cannot use the object as host: device owns it (generation 6)");
    }

    #[test]
    fn a_stale_transfer_fails_although_the_same_side_owns_again() {
        let word = AtomicU64::new(0);
        let owner = OwnerWord::new(&word);
        owner.initialise(Ownership { side: Side::HOST, generation: 0 });
        let stale = owner.check(Side::HOST).unwrap();
        let device = owner.transfer(stale, Side::DEVICE).unwrap();
        owner.transfer(device, Side::HOST).unwrap();
        assert!(owner.transfer(stale, Side::DEVICE).is_err());
    }

    #[test]
    fn of_many_claimants_one_wins_each_generation() {
        let word = AtomicU64::new(Ownership { side: Side::NOBODY, generation: 0 }.to_word());
        let wins: u64 = std::thread::scope(|scope| {
            let claim = |side| {
                let owner = OwnerWord::new(&word);
                let tries = (0..2000).filter(|_| owner.transfer(owner.ownership(), side).is_ok());
                tries.count() as u64
            };
            let threads = [Side::HOST, Side::DEVICE].map(|side| scope.spawn(move || claim(side)));
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(OwnerWord::new(&word).ownership().generation, wins);
    }

    #[test]
    fn the_largest_generation_round_trips() {
        let most = Ownership { side: Side(255), generation: GENERATION_MAX };
        assert_eq!(Ownership::from_word(most.to_word()), most);
    }
}
