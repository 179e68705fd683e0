//! How the array fails: bit errors that a code corrects, read retries, blocks that go bad.
//!
//! The raw bit error rate of a page is looked up by its block's erases in a table, linear between the
//! points, and raised by the page type, the time since the block was written, and the reads since it was
//! erased (the shape of the characterisations by Cai and others, Proceedings of the IEEE 105(9), 2017). The
//! errors of each codeword are drawn from a Poisson distribution with that mean. A codeword with more than
//! the code corrects is read again with shifted references, which lowers the rate; when no step helps, the
//! unit is uncorrectable. All of it in integers, from a seed.

use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::BLOCK_BYTES;
use crate::rng::Rng;

/// Parameters of the error model. A part without errors says so by zeroes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErrorParams {
    /// Raw bit error rate by erases of the block, with rising `erases`, the first 0. Beyond the last point
    /// the rate stays.
    pub rber: Vec<RberPoint>,
    /// Factor on the rate by page type, in thousandths; as many as `read_ns` has.
    pub page_type_permille: Vec<u32>,
    /// What a day since the block was written adds to the rate, in thousandths of it.
    pub retention_permille_per_day: u32,
    /// What a thousand reads since the block's erase add to the rate, in thousandths of it.
    pub disturb_permille_per_thousand_reads: u32,
    /// Bytes that one codeword protects: a power of two from 512 to 4,096.
    pub codeword_bytes: u32,
    /// Bit errors of one codeword that are corrected: 1 to 1,000.
    pub correctable_bits: u32,
    /// Retries of a read that is not corrected, in their order; at most 64.
    pub retries: Vec<RetryStep>,
    /// Programs that fail, in a million.
    pub program_fail_ppm: u32,
    /// Erases that fail, in a million.
    pub erase_fail_ppm: u32,
    /// Blocks that are bad from the start, in a million.
    pub factory_bad_ppm: u32,
}

/// A point of the table of raw bit error rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RberPoint {
    /// Erases of the block.
    pub erases: u32,
    /// Bit errors in 10^12 bits.
    pub errors_e12: u64,
}

/// One retry of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetryStep {
    /// Time that it takes the die, transfer and decoding included, in nanoseconds.
    pub ns: u64,
    /// The rate with its references, in thousandths of the rate without.
    pub rber_permille: u32,
}

impl ErrorParams {
    /// A part that never fails.
    #[must_use]
    pub fn none(page_types: u32) -> ErrorParams {
        ErrorParams {
            rber: vec![RberPoint { erases: 0, errors_e12: 0 }],
            page_type_permille: vec![1000; page_types as usize],
            retention_permille_per_day: 0,
            disturb_permille_per_thousand_reads: 0,
            codeword_bytes: 1024,
            correctable_bits: 40,
            retries: Vec::new(),
            program_fail_ppm: 0,
            erase_fail_ppm: 0,
            factory_bad_ppm: 0,
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// Names the first value that cannot work.
    pub fn validate(&self, page_types: u32) -> Result<(), ConfigError> {
        let rises = self.rber.windows(2).all(|pair| pair[0].erases < pair[1].erases);
        if self.rber.first().is_none_or(|point| point.erases != 0) || !rises {
            let reason = "the first point is at 0 erases, and erases rise";
            return Err(ConfigError::new("errors.rber", format!("{:?}", self.rber), reason));
        }
        for point in &self.rber {
            ConfigError::range("errors.rber.errors_e12", point.errors_e12, 0, 100_000_000_000)?;
        }
        if self.page_type_permille.len() != page_types as usize {
            let reason = format!("give as many values as timing.read_ns has, {page_types}");
            let value = format!("{:?}", self.page_type_permille);
            return Err(ConfigError::new("errors.page_type_permille", value, reason));
        }
        if !self.codeword_bytes.is_power_of_two() {
            let reason = "choose 512, 1024, 2048 or 4096";
            return Err(ConfigError::new("errors.codeword_bytes", self.codeword_bytes, reason));
        }
        let ranges = [
            ("errors.retention_permille_per_day", self.retention_permille_per_day, 0, 1_000_000),
            ("errors.disturb_permille_per_thousand_reads", self.disturb_permille_per_thousand_reads, 0, 1_000_000),
            ("errors.codeword_bytes", self.codeword_bytes, 512, 4096),
            ("errors.correctable_bits", self.correctable_bits, 1, 1000),
            ("errors.retries", self.retries.len() as u32, 0, 64),
            ("errors.program_fail_ppm", self.program_fail_ppm, 0, 100_000),
            ("errors.erase_fail_ppm", self.erase_fail_ppm, 0, 100_000),
            ("errors.factory_bad_ppm", self.factory_bad_ppm, 0, 100_000),
        ];
        for (key, value, min, max) in ranges {
            ConfigError::range(key, u64::from(value), min, max)?;
        }
        for &factor in &self.page_type_permille {
            ConfigError::range("errors.page_type_permille", u64::from(factor), 1, 100_000)?;
        }
        for step in &self.retries {
            ConfigError::range("errors.retries.ns", step.ns, 1, 10_000_000_000)?;
            ConfigError::range("errors.retries.rber_permille", u64::from(step.rber_permille), 1, 1000)?;
        }
        Ok(())
    }
}

/// What a block went through, as far as it matters for its errors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wear {
    pub erases: u32,
    pub reads: u32,
    pub rest_ns: u64,
    pub page_type: u32,
}

/// How a read of one unit went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ReadErrors {
    pub retries: u32,
    pub retry_ns: u64,
    pub uncorrectable: bool,
}

const NS_PER_DAY: u128 = 86_400_000_000_000;

impl ErrorParams {
    /// Whether reads can fail at all: a part without errors is not asked.
    pub(crate) fn has_read_errors(&self) -> bool {
        self.rber.iter().any(|point| point.errors_e12 > 0)
    }

    /// Raw bit errors in 10^12 bits.
    fn rber_e12(&self, wear: &Wear) -> u64 {
        let after = self.rber.partition_point(|point| point.erases <= wear.erases);
        let from = self.rber[after - 1];
        let base = match self.rber.get(after) {
            None => i128::from(from.errors_e12),
            Some(to) => {
                let rise = i128::from(to.errors_e12) - i128::from(from.errors_e12);
                let along = i128::from(wear.erases - from.erases);
                i128::from(from.errors_e12) + rise * along / i128::from(to.erases - from.erases)
            }
        };
        let retention = u128::from(self.retention_permille_per_day) * u128::from(wear.rest_ns) / NS_PER_DAY;
        let disturb = u128::from(self.disturb_permille_per_thousand_reads) * u128::from(wear.reads) / 1000;
        let factor = u128::from(self.page_type_permille[wear.page_type as usize]);
        let rate = base.unsigned_abs() * factor * (1000 + retention + disturb) / 1_000_000;
        // More than one error in ten bits is noise, whatever the cause.
        rate.min(100_000_000_000) as u64
    }

    /// Draws how a read of one unit goes.
    pub(crate) fn draw_read(&self, rng: &mut Rng, wear: &Wear) -> ReadErrors {
        let codewords = BLOCK_BYTES / self.codeword_bytes;
        let mean_e6 = self.rber_e12(wear) * u64::from(self.codeword_bytes) * 8 / 1_000_000;
        let mut result = ReadErrors::default();
        let fails = |rng: &mut Rng, mean_e6| (0..codewords).any(|_| exceeds(rng, mean_e6, self.correctable_bits));
        if !fails(rng, mean_e6) {
            return result;
        }
        for step in &self.retries {
            result.retries += 1;
            result.retry_ns += step.ns;
            if !fails(rng, mean_e6 * u64::from(step.rber_permille) / 1000) {
                return result;
            }
        }
        result.uncorrectable = true;
        result
    }
}

/// Whether more errors than are corrected were drawn, with a mean in millionths.
fn exceeds(rng: &mut Rng, mean_e6: u64, correctable: u32) -> bool {
    let limit_e6 = u64::from(correctable) * 1_000_000;
    // Below an eighth of sixteen errors and more, the chance is under one in 10^9; above four times the
    // limit, that of being corrected is.
    if correctable >= 16 && mean_e6 <= limit_e6 / 8 {
        return false;
    }
    if correctable >= 16 && mean_e6 >= limit_e6 * 4 {
        return true;
    }
    poisson(rng, mean_e6, correctable + 1) > correctable
}

/// Draws from a Poisson distribution with a mean in millionths, but at most `limit`.
///
/// A sum of independent draws with means of at most 16, each by the inverse of the distribution in 64-bit
/// fixed point.
fn poisson(rng: &mut Rng, mean_e6: u64, limit: u32) -> u32 {
    const PIECE_E6: u64 = 16_000_000;
    let (mut left, mut count) = (mean_e6, 0);
    while left > 0 && count < limit {
        let piece = left.min(PIECE_E6);
        left -= piece;
        let drawn = u128::from(rng.next());
        // Terms e^-m m^k / k! with 80 fractional bits; `drawn` has 64.
        let mut term = exp_minus(piece) << 16;
        let mut sum = term;
        let mut k = 0;
        while (sum >> 16) <= drawn && k < limit && term > 0 {
            k += 1;
            term = term * u128::from(piece) / (u128::from(k) * 1_000_000);
            sum += term;
        }
        count += k;
    }
    count.min(limit)
}

/// e^-x with 64 fractional bits, of an x in millionths of at most 16 million.
fn exp_minus(x_e6: u64) -> u128 {
    /// e^-1 with 64 fractional bits.
    const E_MINUS_1: u128 = 6_786_177_901_268_885_274;
    let (whole, rest) = (x_e6 / 1_000_000, u128::from(x_e6 % 1_000_000));
    // The series alternates; 20 terms of a number below one leave less than 2^-61.
    let (mut term, mut plus, mut minus) = (1_u128 << 64, 0_u128, 0_u128);
    for k in 1..=20_u128 {
        if k % 2 == 1 {
            plus += term
        } else {
            minus += term
        }
        term = term * rest / (k * 1_000_000);
    }
    (0..whole).fold(plus - minus, |value, _| (value * E_MINUS_1) >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> ErrorParams {
        ErrorParams {
            rber: vec![
                RberPoint { erases: 0, errors_e12: 1_000_000 },
                RberPoint { erases: 3000, errors_e12: 4_000_000 },
            ],
            page_type_permille: vec![1000, 2000],
            retention_permille_per_day: 100,
            disturb_permille_per_thousand_reads: 10,
            retries: vec![RetryStep { ns: 50_000, rber_permille: 300 }],
            ..ErrorParams::none(2)
        }
    }

    #[test]
    fn the_rate_follows_the_table_and_its_factors() {
        let fresh = Wear { erases: 0, reads: 0, rest_ns: 0, page_type: 0 };
        let params = params();
        assert_eq!(params.validate(2), Ok(()));
        assert_eq!(params.rber_e12(&fresh), 1_000_000);
        assert_eq!(params.rber_e12(&Wear { erases: 1500, ..fresh }), 2_500_000);
        assert_eq!(params.rber_e12(&Wear { erases: 9000, ..fresh }), 4_000_000);
        assert_eq!(params.rber_e12(&Wear { page_type: 1, ..fresh }), 2_000_000);
        assert_eq!(params.rber_e12(&Wear { rest_ns: 10 * NS_PER_DAY as u64, ..fresh }), 2_000_000);
        assert_eq!(params.rber_e12(&Wear { reads: 100_000, ..fresh }), 2_000_000);
    }

    #[test]
    fn the_exponential_is_exact_to_nine_digits() {
        for x_e6 in [0, 1, 500_000, 1_000_000, 3_141_592, 15_999_999] {
            let found = exp_minus(x_e6) as f64 / 2f64.powi(64);
            let exact = (-(x_e6 as f64) / 1e6).exp();
            assert!((found - exact).abs() <= exact * 1e-9 + 1e-17, "{x_e6}: {found} {exact}");
        }
    }

    #[test]
    fn draws_have_the_mean_and_the_tail_of_the_distribution() {
        for (mean, limit) in [(0.3, 1_u32), (5.0, 8), (45.0, 52)] {
            let mut rng = Rng::new(7);
            let draws = 200_000_u32;
            let mean_e6 = (mean * 1e6) as u64;
            let (mut sum, mut above) = (0_u64, 0_u32);
            for _ in 0..draws {
                let drawn = poisson(&mut rng, mean_e6, 1000);
                sum += u64::from(drawn);
                above += u32::from(drawn > limit);
            }
            let average = sum as f64 / f64::from(draws);
            // Five standard deviations of the average.
            assert!((average - mean).abs() < 5.0 * (mean / f64::from(draws)).sqrt(), "{average} for {mean}");
            let (mut term, mut below) = ((-mean).exp(), (-mean).exp());
            for k in 1..=limit {
                term *= mean / f64::from(k);
                below += term;
            }
            let (share, exact) = (f64::from(above) / f64::from(draws), 1.0 - below);
            assert!((share - exact).abs() < 5.0 * (exact / f64::from(draws)).sqrt(), "{share} for {exact}");
        }
    }

    #[test]
    fn retries_cost_time_and_help_until_nothing_does() {
        let mut rng = Rng::new(1);
        let wear = Wear { erases: 0, reads: 0, rest_ns: 0, page_type: 0 };
        let at = |errors_e12| ErrorParams { rber: vec![RberPoint { erases: 0, errors_e12 }], ..params() };
        // 8,192 bits with 0.6 % are 49 errors where 40 are corrected; with 300 thousandths of it 15.
        let retried = at(6_000_000_000).draw_read(&mut rng, &wear);
        assert_eq!(retried, ReadErrors { retries: 1, retry_ns: 50_000, uncorrectable: false });
        assert!(at(50_000_000_000).draw_read(&mut rng, &wear).uncorrectable);
        assert_eq!(at(100_000_000).draw_read(&mut rng, &wear), ReadErrors::default());
    }
}
