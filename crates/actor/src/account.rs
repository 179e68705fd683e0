//! What actors use, and the shares that hold tenants back.

use osier_domain::Nanos;

/// What one actor used in this domain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Calls of the guest.
    pub calls: u64,
    /// Time in them, in nanoseconds.
    pub busy_ns: u64,
    /// Input bytes worked on.
    pub bytes_in: u64,
    /// Output bytes of units that got through.
    pub bytes_out: u64,
    /// Fuel, of untrusted actors.
    pub fuel: u64,
    /// Calls that trapped.
    pub traps: u64,
    /// Calls that used up their fuel.
    pub timeouts: u64,
    /// Units that failed with a code or a wrong answer.
    pub failures: u64,
    /// Times that the instance was made afresh.
    pub resets: u64,
}

impl Usage {
    /// Calls that failed their request, in whatever way.
    pub fn failed(&self) -> u64 {
        self.traps + self.timeouts + self.failures
    }
}

/// Time that may be used at once after a pause, in nanoseconds.
const BURST_NS: u64 = 10_000_000;

/// A share of one processor: time flows in at the share's rate and each call takes out what it used. A call
/// is allowed while there is no debt, and may leave one, because its length is not known beforehand.
#[derive(Debug, Clone)]
pub struct Share {
    permille: Option<u32>,
    /// Thousandths of nanoseconds, so that no share of a short time is lost to rounding.
    credit: i128,
    since: Nanos,
}

impl Share {
    /// A share of `permille` thousandths of a processor, without limit if there is none.
    pub fn new(permille: Option<u32>) -> Share {
        Share { permille, credit: i128::from(BURST_NS) * 1000, since: Nanos(0) }
    }

    /// Takes out the time that a call used.
    #[inline]
    pub fn charge(&mut self, used_ns: u64) {
        if self.permille.is_some() {
            self.credit -= i128::from(used_ns) * 1000;
        }
    }

    /// Takes out `used_ns` in place of `charged_ns` that were taken out for the same call.
    pub fn charge_instead(&mut self, charged_ns: u64, used_ns: u64) {
        if self.permille.is_some() {
            self.credit += (i128::from(charged_ns) - i128::from(used_ns)) * 1000;
        }
    }

    /// The earliest time, `now` or later, at which a call is allowed.
    pub fn allowed_at(&mut self, now: Nanos) -> Nanos {
        let Some(permille) = self.permille else { return now };
        let permille = i128::from(permille.max(1));
        let elapsed = now.0.saturating_sub(self.since.0);
        self.since = Nanos(self.since.0.max(now.0));
        self.credit = (self.credit + i128::from(elapsed) * permille).min(i128::from(BURST_NS) * 1000);
        if self.credit >= 0 {
            return now;
        }
        let wait = (-self.credit + permille - 1) / permille;
        Nanos(now.0.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_holds_in_the_long_run() {
        for permille in [1, 50, 333, 1000, 2500] {
            let mut share = Share::new(Some(permille));
            let (mut now, mut used) = (Nanos(0), 0u64);
            for step in 0..20_000u64 {
                now = share.allowed_at(now);
                let call = 1_000 + step * 7 % 90_000;
                share.charge(call);
                used += call;
                // One processor runs one call at a time; a share over 1000 is never short.
                now = Nanos(now.0 + call);
            }
            let bound = (now.0 * u64::from(permille) / 1000).saturating_add(BURST_NS + 100_000);
            assert!(used <= bound, "{permille}: {used} of {}", now.0);
            if permille < 1000 {
                assert!(used * 100 >= now.0 * u64::from(permille) / 1000 * 99, "{permille}: starved");
            }
        }
    }

    /// One that always has work gets its share of modelled time, whatever time its calls took here: a hundredth of
    /// it, or a hundred times.
    #[test]
    fn a_share_is_one_of_modelled_time() {
        const SECOND_NS: u64 = 1_000_000_000;
        for measured_ns in [500, 50_000, 5_000_000] {
            let (mut tenant, mut other) = (Share::new(Some(250)), Share::new(Some(250)));
            let (mut now, mut modelled) = (Nanos(0), 0u64);
            loop {
                now = tenant.allowed_at(now);
                if now.0 >= 10 * SECOND_NS {
                    break;
                }
                assert_eq!(other.allowed_at(now), now, "another tenant waits for nothing");
                let due_ns = 20_000 + modelled / 7 % 60_000;
                tenant.charge(measured_ns);
                tenant.charge_instead(measured_ns, due_ns);
                modelled += due_ns;
                // The device's cores take the next call at once.
                now = Nanos(now.0 + 1);
            }
            let fair = now.0 / 4 + BURST_NS;
            assert!((fair - 1..=fair).contains(&modelled), "{measured_ns}: {modelled} of {fair}");
        }
    }

    #[test]
    fn no_share_is_no_limit_and_time_that_stands_still_gives_nothing() {
        let mut free = Share::new(None);
        free.charge(u64::MAX);
        assert_eq!(free.allowed_at(Nanos(5)), Nanos(5));
        let mut share = Share::new(Some(500));
        share.charge(BURST_NS + 1_000);
        let at = share.allowed_at(Nanos(0));
        assert_eq!(at, Nanos(2_000));
        assert_eq!(share.allowed_at(Nanos(0)), at);
        assert_eq!(share.allowed_at(at), at);
    }
}
