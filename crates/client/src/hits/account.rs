//! What is added to a program's time, and how well that is known.

/// Nanoseconds that were measured many times: their mean and its standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mean {
    /// How often.
    pub count: f64,
    /// Their sum.
    pub sum: f64,
    /// The sum of their squares.
    pub squares: f64,
}

impl Mean {
    /// One more.
    pub fn note(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    /// Their mean, if there are any.
    pub fn value(&self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }

    /// Its standard error; 0 of less than two.
    pub fn error(&self) -> f64 {
        if self.count < 2.0 {
            return 0.0;
        }
        let mean = self.sum / self.count;
        let variance = (self.squares / self.count - mean * mean).max(0.0);
        (variance / (self.count - 1.0)).sqrt()
    }
}

/// What the accesses of one sample are to take longer. In the time that the sample stands for, the program waited as
/// long as one access takes (`access_ns`, with its translation of the address) for each one it would have waited for
/// if nothing overlapped; and each takes that much longer. What overlaps here does so on the device: the number is
/// the same, and cancels out.
pub fn delay_ns(period_ns: f64, miss_share: f64, hit_ns: u64, machine_ns: f64, access_ns: f64) -> f64 {
    let more_ns = (hit_ns as f64 - machine_ns).max(0.0);
    period_ns * miss_share * more_ns / access_ns.max(machine_ns).max(1.0)
}

/// How wrong a sum of delays may be, as a share of it: one standard error.
#[derive(Clone, Copy, Debug, Default)]
pub struct Doubt {
    /// Samples of all kinds.
    pub samples: f64,
    /// Those that missed, by their shares.
    pub missed: f64,
    /// The sum of share times rest: nothing if each is known to have hit or missed.
    pub undecided: f64,
    /// Samples of the window of which nothing came out.
    pub unknown: f64,
    /// What a hit is to take.
    pub hit_ns: f64,
    /// What the machine's memory takes.
    pub machine: Mean,
    /// What an access took.
    pub access: Mean,
}

impl Doubt {
    /// Of samples, of their verdicts, and of what was measured; and what is not known at all, in full.
    pub fn share(&self) -> Option<f64> {
        let (machine, access) = (self.machine.value()?, self.access.value()?);
        let more = self.hit_ns - machine;
        if self.missed <= 0.0 || more <= 0.0 {
            return None;
        }
        // Each sample missed or not: a binomial count.
        let drawn = self.missed * (1.0 - (self.missed / self.samples).min(1.0)) + self.undecided;
        let parts = [drawn.sqrt() / self.missed, self.machine.error() / more, self.access.error() / access];
        let known = parts.iter().map(|part| part * part).sum::<f64>().sqrt();
        Some(known + self.unknown / (self.missed + self.unknown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_only_misses_takes_what_the_device_would() {
        // 20,000 accesses of 100 ns each, one after the other, in 2 ms; each is to take 771 instead.
        assert!((delay_ns(2e6, 1.0, 771, 100.0, 100.0) - 20_000.0 * 671.0).abs() < 1.0);
        // With 30 ns more for the translation there are fewer, and each takes as much longer as before.
        assert!((delay_ns(2e6, 1.0, 771, 100.0, 130.0) - 2e6 / 130.0 * 671.0).abs() < 1.0);
        assert!((delay_ns(2e6, 0.25, 771, 100.0, 100.0) - 5_000.0 * 671.0).abs() < 1.0);
    }

    #[test]
    fn a_machine_that_is_slower_than_the_device_is_not_slowed() {
        assert_eq!(delay_ns(2e6, 1.0, 150, 180.0, 200.0), 0.0);
        assert!(delay_ns(2e6, 1.0, 150, 0.0, 0.0).is_finite());
    }

    #[test]
    fn a_mean_and_its_error_are_those_of_the_textbook() {
        let mut mean = Mean::default();
        assert_eq!((mean.value(), mean.error()), (None, 0.0));
        [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0].into_iter().for_each(|value| mean.note(value));
        assert_eq!(mean.value(), Some(5.0));
        // The sample's standard deviation is sqrt(32/7), of eight values.
        assert!((mean.error() - (32.0_f64 / 7.0 / 8.0).sqrt()).abs() < 1e-12);
    }

    /// Sums of drawn samples lie within their errors about as often as a normal distribution says.
    #[test]
    fn the_error_is_that_of_drawn_samples() {
        let exact = |value| Mean { count: 1.0, sum: value, squares: value * value };
        let mut random = 1_u64;
        let (samples, share) = (500, 0.3);
        let mut inside = 0;
        for _ in 0..1_000 {
            let missed = (0..samples).filter(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((random >> 33) as f64) < share * f64::from(1_u32 << 31)
            });
            let missed = missed.count() as f64;
            let (machine, access) = (exact(100.0), exact(120.0));
            let doubt =
                Doubt { samples: f64::from(samples), missed, hit_ns: 400.0, machine, access, ..Doubt::default() };
            let error = doubt.share().unwrap_or(0.0);
            inside += usize::from((missed / (f64::from(samples) * share) - 1.0).abs() <= error);
        }
        assert!((600..760).contains(&inside), "{inside} of 1000, and 683 expected");
    }

    #[test]
    fn what_came_to_nothing_is_doubted_in_full() {
        let exact = |value| Mean { count: 1.0, sum: value, squares: value * value };
        let (machine, access) = (exact(100.0), exact(120.0));
        let doubt =
            Doubt { samples: 1e6, missed: 1e6, unknown: 1e6, hit_ns: 400.0, machine, access, ..Doubt::default() };
        assert!((doubt.share().unwrap_or(0.0) - 0.5).abs() < 0.01);
        assert_eq!(Doubt { missed: 0.0, ..doubt }.share(), None);
    }
}
