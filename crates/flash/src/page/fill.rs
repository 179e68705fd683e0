//! Preconditioning: a device as it is after long use, without simulating the use.
//!
//! Under uniform random writes every block loses valid units at a rate that is proportional to what it
//! holds, and blocks are written at a constant rate. So the valid units of the closed superblocks, from the
//! youngest to the oldest, fall as a geometric series `u, uq, uq^2, ...` that adds up to the mapped units:
//! the fluid limit of Desnoyers (SYSTOR 2012), for cleaning in order of age and greedy cleaning alike. `q`
//! is found by bisection in fixed point.

use std::ops::ControlFlow;

use super::ftl::PageFtl;
use super::serve::{Outcome, Refused, Status};
use super::space::SuperblockState;
use crate::Nanos;
use crate::array::ConfigError;
use crate::rng::Rng;

/// What a device looks like after preconditioning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillPattern {
    /// Written once, in order: superblocks are full of valid units.
    Sequential,
    /// Overwritten at random for long: every superblock holds what it would in the steady state.
    UniformRandom,
}

/// Overwrites of each unit, on average, after which what superblocks hold is taken as settled. The first ones find
/// every superblock full.
const OVERWRITES: u64 = 8;
/// Writes between two reports of how far it is.
const REPORT_WRITES: u64 = 1 << 14;

/// One in the fixed point of the series: 48 fractional bits leave room for a product of two.
const ONE: u128 = 1 << 48;

impl PageFtl {
    /// Fills a device that was never written: the first `fill_permille` thousandths of its logical units are
    /// mapped as `pattern` says. Takes no time, and counts no operation.
    ///
    /// # Errors
    /// When the device was written before, or the share is above 1,000.
    pub fn precondition(&mut self, fill_permille: u32, pattern: FillPattern, seed: u64) -> Result<(), ConfigError> {
        let units = self.units_to_fill(fill_permille)?;
        match pattern {
            FillPattern::Sequential => self.fill_in_order(units as u32),
            FillPattern::UniformRandom => self.fill_as_in_steady_state(units as u32, seed),
        }
        Ok(())
    }

    /// The same by writing: each unit once in order, and for [`FillPattern::UniformRandom`] [`OVERWRITES`] times as
    /// many at random, each as soon as there is room for it. Takes virtual time, and wears the flash. `look` hears how
    /// many of how many units are written, and may end it. Gives the time of the last write.
    ///
    /// # Errors
    /// As [`PageFtl::precondition`], and when the flash fails for good under the writes.
    pub fn precondition_by_writing(
        &mut self,
        fill_permille: u32,
        pattern: FillPattern,
        seed: u64,
        look: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Nanos>, ConfigError> {
        let units = self.units_to_fill(fill_permille)?;
        let total = match pattern {
            FillPattern::Sequential => units,
            FillPattern::UniformRandom => units * (1 + OVERWRITES),
        };
        let mut rng = Rng::new(seed);
        for number in 0..total {
            if number.is_multiple_of(REPORT_WRITES) && look(number, total).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let lpn = if number < units { number } else { rng.below(units) };
            if !self.write_and_wait(lpn) {
                let reason = format!("the flash took no more after {number} of {total} units; lower its error rates");
                return Err(ConfigError::new("precondition.fill_permille", fill_permille, reason));
            }
        }
        Ok(ControlFlow::Continue(self.now))
    }

    /// Writes a unit as soon as there is room for it; `false` if there never is.
    fn write_and_wait(&mut self, lpn: u64) -> bool {
        match self.write(self.now, lpn, 1, 0) {
            Ok(Outcome::Done(done)) => done.status == Status::Ok,
            Err(Refused::ReadOnly) => false,
            Err(refused) => panic!("a unit within the capacity, with nothing waiting, is refused: {refused}"),
            Ok(Outcome::Waiting(id)) => {
                let mut completed = Vec::new();
                while let Some(at) = self.next_event() {
                    self.poll(at, &mut completed);
                    if let Some(found) = completed.iter().find(|completed| completed.id == id) {
                        return found.done.status == Status::Ok;
                    }
                }
                panic!("a write waits, and nothing happens")
            }
        }
    }

    fn units_to_fill(&self, fill_permille: u32) -> Result<u64, ConfigError> {
        ConfigError::range("precondition.fill_permille", u64::from(fill_permille), 0, 1000)?;
        if self.next_life > 1 {
            let reason = "the device was written before; precondition a new one";
            return Err(ConfigError::new("precondition.fill_permille", fill_permille, reason));
        }
        Ok(self.config.ftl.logical_units * u64::from(fill_permille) / 1000)
    }

    fn fill_in_order(&mut self, units: u32) {
        let mut lpn = 0;
        while lpn < units {
            let count = self.sizes.superblock_units.min(units - lpn);
            let superblock = self.take_free().expect("the logical capacity fits");
            let base = superblock * self.sizes.superblock_units;
            for index in 0..count {
                self.map.set(lpn + index, base + index);
                self.reverse.set(base + index, lpn + index);
            }
            self.close_filled(superblock, count);
            lpn += count;
        }
    }

    /// Gives each logical unit a place in a superblock that is drawn with the chance of what it still has to
    /// take. Logical units come in shuffled runs that are short enough to stay in the processor's cache, and
    /// the places of each superblock in order, so that a terabyte does not wait for memory at every unit.
    fn fill_as_in_steady_state(&mut self, units: u32, seed: u64) {
        let full = self.sizes.superblock_units;
        // Where the capacity leaves less than collection would like to keep free, it begins at once.
        let count = self.superblocks_usable().max(units.div_ceil(full)).min(self.free_count());
        let mut rng = Rng::new(seed);
        // From the oldest to the youngest, so that their lives rise.
        let shares: Vec<u32> = series(u64::from(units), u64::from(full), count).into_iter().rev().collect();
        let numbers: Vec<u32> = shares.iter().map(|_| self.take_free().expect("so many are free")).collect();
        let places = |(&number, &left): (&u32, &u32)| Places { next: number * full, left, positions: full };
        let mut drawn = Drawn::new(numbers.iter().zip(&shares).map(places).collect());
        let runs = Shuffle::new(units.div_ceil(RUN_UNITS), rng.next());
        for run in 0..units.div_ceil(RUN_UNITS) {
            let start = runs.apply(run) * RUN_UNITS;
            let length = RUN_UNITS.min(units - start);
            let shuffle = Shuffle::new(length, rng.next());
            for index in 0..length {
                let lpn = start + shuffle.apply(index);
                let unit = drawn.take(&mut rng);
                self.map.set(lpn, unit);
                self.reverse.set(unit, lpn);
            }
        }
        for (&number, &valid) in numbers.iter().zip(&shares) {
            self.close_filled(number, valid);
        }
    }

    fn close_filled(&mut self, number: u32, valid: u32) {
        let superblock = &mut self.superblocks[number as usize];
        superblock.state = SuperblockState::Closed;
        superblock.life = self.next_life;
        superblock.valid = valid;
        self.next_life += 1;
        self.candidates.insert(number, valid, superblock.erases);
    }
}

/// Logical units that are shuffled among themselves: 16 KiB of the map.
const RUN_UNITS: u32 = 4096;
/// Draws after which the largest share is looked for anew.
const DRAWS_PER_SEARCH: u32 = 65_536;

/// The places of one superblock that are still to be given out.
struct Places {
    /// The unit that comes next.
    next: u32,
    /// Units that it will hold yet.
    left: u32,
    /// Units from `next` to its end.
    positions: u32,
}

impl Places {
    /// The next unit that is taken: each with the chance of what is left over the positions that are left.
    fn take(&mut self, rng: &mut Rng) -> u32 {
        loop {
            let unit = self.next;
            let taken = rng.below(u64::from(self.positions)) < u64::from(self.left);
            self.next += 1;
            self.positions -= 1;
            if taken {
                self.left -= 1;
                return unit;
            }
        }
    }
}

/// Superblocks that are drawn with the chance of what they have left.
struct Drawn {
    places: Vec<Places>,
    /// At least what any of them has left.
    most: u32,
    draws: u32,
}

impl Drawn {
    fn new(places: Vec<Places>) -> Drawn {
        Drawn { places, most: 0, draws: 0 }
    }

    fn take(&mut self, rng: &mut Rng) -> u32 {
        loop {
            if self.draws == 0 {
                self.places.retain(|places| places.left > 0);
                self.most = self.places.iter().map(|places| places.left).max().expect("a unit has a place");
                // Near the end the shares change faster.
                self.draws = DRAWS_PER_SEARCH.min(self.most);
            }
            self.draws -= 1;
            let index = rng.below(self.places.len() as u64) as usize;
            let places = &mut self.places[index];
            if rng.below(u64::from(self.most)) < u64::from(places.left) {
                return places.take(rng);
            }
        }
    }
}

/// The geometric series from `full` down with `count` terms that adds up to `sum`, in whole numbers.
fn series(sum: u64, full: u64, count: u32) -> Vec<u32> {
    let total = |ratio: u128| {
        let (mut term, mut total) = (u128::from(full) * ONE, 0_u128);
        for _ in 0..count {
            total += term;
            // In two parts, so that nothing overflows.
            term = term / ONE * ratio + (term % ONE) * ratio / ONE;
        }
        total
    };
    let (mut low, mut high) = (0, ONE);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if total(middle) <= u128::from(sum) * ONE { low = middle } else { high = middle }
    }
    // Whole numbers whose sums are those of the series, rounded down; the youngest takes what is over.
    let (mut term, mut total, mut given) = (u128::from(full) * ONE, 0_u128, 0_u64);
    let mut shares = Vec::with_capacity(count as usize);
    for _ in 0..count {
        total += term;
        let share = (((total / ONE) as u64).min(sum) - given).min(full);
        given += share;
        shares.push(share as u32);
        term = term / ONE * low + (term % ONE) * low / ONE;
    }
    for share in &mut shares {
        let more = (full - u64::from(*share)).min(sum - given);
        *share += more as u32;
        given += more;
    }
    assert_eq!(given, sum, "the units fit into the superblocks");
    shares
}

/// A permutation of the numbers below `count`: a mixing function of the next power of two that can be
/// undone, applied until it lands below.
struct Shuffle {
    count: u32,
    bits: u32,
    key: u64,
}

impl Shuffle {
    fn new(count: u32, key: u64) -> Shuffle {
        Shuffle { count, bits: 32 - count.saturating_sub(1).leading_zeros().min(31), key }
    }

    fn apply(&self, number: u32) -> u32 {
        let mask = (1_u64 << self.bits) - 1;
        let shift = self.bits.div_ceil(2);
        let mut mixed = u64::from(number);
        loop {
            for round in 0..3 {
                // Adding, multiplying by an odd number and folding down are all permutations.
                mixed = mixed.wrapping_add(self.key >> (round * 8)) & mask;
                mixed = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) & mask;
                mixed ^= mixed >> shift;
            }
            if mixed < u64::from(self.count) {
                return mixed as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_adds_up_and_falls() {
        for (sum, full, count) in [(900, 64, 20), (1280, 64, 20), (0, 64, 20), (64, 64, 1), (1_000_000, 4096, 300)] {
            let shares = series(sum, full, count);
            assert_eq!(shares.iter().map(|&share| u64::from(share)).sum::<u64>(), sum);
            assert!(shares.windows(2).all(|pair| pair[0] + 1 >= pair[1]), "{shares:?}");
            assert!(shares.iter().all(|&share| u64::from(share) <= full));
        }
    }

    #[test]
    fn a_shuffle_is_a_permutation() {
        for count in [1, 2, 3, 100, 1 << 12, (1 << 12) + 1] {
            let shuffle = Shuffle::new(count, 99);
            let mut seen: Vec<u32> = (0..count).map(|number| shuffle.apply(number)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count));
        }
    }
}
