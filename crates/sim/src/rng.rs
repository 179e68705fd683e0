//! The one source of randomness in virtual time: seeded, and the same on every machine.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter through a mixing function.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator from a seed.
    #[must_use]
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Another generator, whose numbers have nothing to do with this one's. Parts of a simulation
    /// that draw from generators of their own do not disturb each other's draws.
    #[must_use]
    pub fn fork(&mut self) -> Rng {
        Rng(self.next() ^ 0xA5A5_5A5A_0F0F_F0F0)
    }

    /// The next number. Named as in the literature; the generator is endless, so no iterator.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be zero. The bias is below 2⁻³² for the bounds in use.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below zero");
        self.next() % bound
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// True once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_published_generator() {
        // Test vector of the reference implementation for the seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
    }

    #[test]
    fn between_reaches_both_ends() {
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..200).map(|_| rng.between(3, 5)).collect();
        assert!(drawn.contains(&3) && drawn.contains(&5) && drawn.iter().all(|n| (3..=5).contains(n)));
    }
}
