//! Draws from distributions.
//!
//! Logarithms and powers are those of `libm` without its machine-dependent parts; the rest is IEEE 754 arithmetic and a
//! square root, which are exact to the bit everywhere. So a draw is the same on every machine.

use crate::Rng;

/// After so many rejected draws the most likely value is taken. The chance of coming here is below 2^-100.
const DRAWS_MAX: usize = 256;

/// A number below `bound`, each exactly as likely as every other (Lemire, "Fast random integer generation in an
/// interval", ACM TOMACS 2019). `bound` is not zero.
pub(super) fn below(rng: &mut Rng, bound: u64) -> u64 {
    loop {
        let product = u128::from(rng.next()) * u128::from(bound);
        let low = product as u64;
        // Below this, the products that fall on some results are one more than on others.
        if low >= bound || low >= bound.wrapping_neg() % bound {
            return (product >> 64) as u64;
        }
    }
}

/// A number in (0, 1], in steps of 2^-53.
fn unit(rng: &mut Rng) -> f64 {
    ((rng.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

/// A time with the exponential distribution, in 2^-16 of the mean's unit.
pub(super) fn exponential(rng: &mut Rng, mean: f64) -> u64 {
    (-libm::log(unit(rng)) * mean * 65_536.0) as u64
}

/// Ranks by Zipf's law, by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates from
/// monotone discrete distributions", ACM TOMACS 1996): exact, with no table, about 1.1 draws a rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zipf {
    theta: f64,
    ranks: u64,
    /// The area under the hat up to one half behind the first rank, and behind the last.
    area_first: f64,
    area_last: f64,
    /// Nearer than this to its rank a draw is taken without asking further.
    near: f64,
}

impl Zipf {
    pub(super) fn new(ranks: u64, theta_permille: u32) -> Self {
        let mut zipf =
            Zipf { theta: f64::from(theta_permille) / 1000.0, ranks, area_first: 0.0, area_last: 0.0, near: 0.0 };
        zipf.area_first = zipf.area(1.5) - 1.0;
        zipf.area_last = zipf.area(ranks as f64 + 0.5);
        zipf.near = 2.0 - zipf.inverse(zipf.area(2.5) - zipf.weight(2.0));
        zipf
    }

    /// A rank, from 0.
    pub(super) fn draw(&self, rng: &mut Rng) -> u64 {
        for _ in 0..DRAWS_MAX {
            let area = self.area_last + unit(rng) * (self.area_first - self.area_last);
            let x = self.inverse(area);
            let rank = ((x + 0.5) as u64).clamp(1, self.ranks);
            let k = rank as f64;
            if k - x <= self.near || area >= self.area(k + 0.5) - self.weight(k) {
                return rank - 1;
            }
        }
        0
    }

    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.theta * libm::log(x))
    }

    /// The integral of the weight from 1: `(x^(1-theta) - 1) / (1 - theta)`, also where theta is 1.
    fn area(&self, x: f64) -> f64 {
        let log = libm::log(x);
        let t = (1.0 - self.theta) * log;
        log * if t.abs() > 1e-8 { libm::expm1(t) / t } else { 1.0 + t / 2.0 }
    }

    fn inverse(&self, area: f64) -> f64 {
        // Rounding may lead past the pole, where the weight has no more area.
        let t = (area * (1.0 - self.theta)).max(-1.0);
        libm::exp(area * if t.abs() > 1e-8 { libm::log1p(t) / t } else { 1.0 - t / 2.0 })
    }
}

/// A number of `0..slots` with the normal distribution around `mean`, both in slots; by Marsaglia's polar method.
pub(super) fn normal(rng: &mut Rng, slots: u64, mean: f64, deviation: f64) -> u64 {
    for _ in 0..DRAWS_MAX {
        let (u, v) = (2.0 * unit(rng) - 1.0, 2.0 * unit(rng) - 1.0);
        let square = u * u + v * v;
        if square >= 1.0 || square == 0.0 {
            continue;
        }
        let value = mean + deviation * u * (-2.0 * libm::log(square) / square).sqrt();
        // What is outside of the range is drawn again.
        if value >= 0.0 && value < slots as f64 {
            return (value as u64).min(slots - 1);
        }
    }
    (mean as u64).min(slots - 1)
}

/// The exponent of the self-similar distribution of a skew `h`: `log h / log (1 - h)`.
pub(super) fn pareto_exponent(skew_permille: u32) -> f64 {
    let skew = f64::from(skew_permille) / 1000.0;
    libm::log(skew) / libm::log(1.0 - skew)
}

/// A number of `0..slots` with the self-similar distribution (Gray et al., "Quickly generating billion-record synthetic
/// databases", SIGMOD 1994, section 3.2).
pub(super) fn pareto(rng: &mut Rng, slots: u64, exponent: f64) -> u64 {
    ((slots as f64 * libm::pow(unit(rng), exponent)) as u64).min(slots - 1)
}
