//! A random permutation that is not stored.

/// Rounds of the network. Four make it as good as a random permutation if the round function is random (Luby and
/// Rackoff, 1988); two more, because for few slots it cannot be.
const ROUNDS: usize = 6;

/// A permutation of `0..len`: a Feistel network over the next power of four, and where that leads out of `0..len`, the
/// network again until it leads back in (cycle walking; Black and Rogaway, CT-RSA 2002).
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    len: u64,
    /// Bits of each half.
    half_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// A permutation of `0..len` that a seed chooses.
    ///
    /// # Panics
    /// If `len` is zero or above 2^62, which is a bug of the caller.
    #[must_use]
    pub fn new(len: u64, seed: u64) -> Self {
        assert!(len > 0 && len <= super::SLOTS_MAX, "a permutation of {len} numbers cannot be");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let mut rng = crate::Rng::new(seed);
        Permutation { len, half_bits: bits.div_ceil(2).max(1), keys: std::array::from_fn(|_| rng.next()) }
    }

    /// How many numbers there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never: there is at least one number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where a number goes.
    #[must_use]
    pub fn apply(&self, number: u64) -> u64 {
        assert!(number < self.len, "{number} is not below {}", self.len);
        let mut place = self.network(number);
        // The network is a permutation, so the walk comes back to `number` at the latest; on average it has at most
        // four steps, because the network is over less than four times `len`.
        while place >= self.len {
            place = self.network(place);
        }
        place
    }

    fn network(&self, number: u64) -> u64 {
        let mask = (1 << self.half_bits) - 1;
        let (mut left, mut right) = (number >> self.half_bits, number & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        left << self.half_bits | right
    }
}

/// The finalizer of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_is_met_exactly_once() {
        for len in (1..=70).chain([255, 256, 257, 1000, 4096, 65_537, 300_001]) {
            for seed in 0..3 {
                let permutation = Permutation::new(len, seed);
                let mut met = vec![false; len as usize];
                for number in 0..len {
                    let place = permutation.apply(number) as usize;
                    assert!(!std::mem::replace(&mut met[place], true), "{len}, seed {seed}: {place} twice");
                }
            }
        }
    }

    #[test]
    fn seeds_give_other_permutations_and_neighbours_are_parted() {
        let [one, other] = [1, 2].map(|seed| Permutation::new(1 << 40, seed));
        let same = (0..1000).filter(|number| one.apply(*number) == other.apply(*number)).count();
        let close = (0..1000).filter(|n| one.apply(*n).abs_diff(one.apply(n + 1)) < 1 << 30).count();
        // Two in a thousand are within 2^30 of 2^40 by chance.
        assert!(same == 0 && close < 12, "{same} the same, {close} close");
    }

    #[test]
    fn the_largest_is_in_range() {
        let permutation = Permutation::new(super::super::SLOTS_MAX - 1, 7);
        assert!((0..1000).all(|number| permutation.apply(number * 1_000_003) < permutation.len()));
    }

    /// For every place of three, each of the six orders comes up about as often.
    #[test]
    fn small_permutations_are_all_reached() {
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..6000 {
            let permutation = Permutation::new(3, seed);
            *counts.entry([0, 1, 2].map(|number| permutation.apply(number))).or_insert(0) += 1;
        }
        assert!(counts.len() == 6 && counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
