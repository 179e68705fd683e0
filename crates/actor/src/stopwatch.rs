//! Measures how long a call takes, where the call itself may take no longer than two looks at the system's clock.
//!
//! The processor's time-stamp counter is read instead where it runs at one rate in all states of power and speed
//! (Intel SDM volume 3, *Invariant TSC*; AMD64 APM volume 3, CPUID Fn8000_0007, *TscInvariant*). How long a tick is
//! comes from the system's clock, over the first millisecond or more. Until then, and wherever there is no such
//! counter, the system's clock serves. The figures are for accounting: nothing is ordered by them.

use std::time::Instant;

/// Time over which ticks are compared with the system's clock, in nanoseconds: some ten thousand times what the
/// comparison may be off by.
const CALIBRATION_NS: u64 = 1_000_000;
/// Attempts at reading both clocks at once; the one that took the fewest ticks is taken.
const ATTEMPTS: usize = 8;
/// Fractional bits of the length of a tick.
const FRACTION_BITS: u32 = 32;

/// Measures spans of time.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    /// Both clocks when it was made; `None` without a counter to trust.
    anchor: Option<Both>,
    /// Nanoseconds of a tick in 2^-32; `None` while they are not known.
    tick: Option<u64>,
}

/// When something began.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Begin {
    Ticks(u64),
    Clock(Instant),
}

/// Both clocks at one moment.
#[derive(Debug, Clone, Copy)]
struct Both {
    ticks: u64,
    clock: Instant,
}

impl Stopwatch {
    pub(crate) fn new() -> Stopwatch {
        Stopwatch { anchor: counter::is_invariant().then(Both::now), tick: None }
    }

    /// Now.
    #[inline]
    pub(crate) fn begin(&mut self) -> Begin {
        match self.tick {
            Some(_) => Begin::Ticks(counter::ticks()),
            None => Begin::Clock(self.calibrate()),
        }
    }

    /// Nanoseconds since then.
    #[inline]
    pub(crate) fn since(&self, begin: Begin) -> u64 {
        match begin {
            // A tick is known from when the first was handed out.
            Begin::Ticks(ticks) => span(counter::ticks().saturating_sub(ticks), self.tick.unwrap_or(0)),
            Begin::Clock(clock) => nanos(clock, Instant::now()),
        }
    }

    /// The system's clock; when enough time has gone by, the length of a tick is known afterwards.
    #[cold]
    fn calibrate(&mut self) -> Instant {
        let clock = Instant::now();
        if let Some(anchor) = self.anchor
            && nanos(anchor.clock, clock) >= CALIBRATION_NS
        {
            self.tick = tick(anchor, Both::now());
            if self.tick.is_none() {
                self.anchor = None;
            }
        }
        clock
    }
}

impl Both {
    fn now() -> Both {
        let attempt = |_| {
            let (before, clock, after) = (counter::ticks(), Instant::now(), counter::ticks());
            (after.saturating_sub(before), Both { ticks: before.midpoint(after), clock })
        };
        let first = attempt(0);
        (1..ATTEMPTS).map(attempt).fold(first, |best, next| if next.0 < best.0 { next } else { best }).1
    }
}

/// Nanoseconds of a tick between two moments in 2^-32; `None` if the counter did not advance as one does.
fn tick(from: Both, to: Both) -> Option<u64> {
    let ticks = to.ticks.checked_sub(from.ticks).filter(|ticks| *ticks > 0)?;
    u64::try_from((u128::from(nanos(from.clock, to.clock)) << FRACTION_BITS) / u128::from(ticks))
        .ok()
        .filter(|t| *t > 0)
}

fn span(ticks: u64, tick: u64) -> u64 {
    u64::try_from((u128::from(ticks) * u128::from(tick)) >> FRACTION_BITS).unwrap_or(u64::MAX)
}

fn nanos(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{__cpuid, _rdtsc};

    /// CPUID leaf of advanced power management, and its bit in EDX for a counter of constant rate.
    const POWER_LEAF: u32 = 0x8000_0007;
    const INVARIANT_BIT: u32 = 1 << 8;

    pub(super) fn is_invariant() -> bool {
        __cpuid(POWER_LEAF & 1 << 31).eax >= POWER_LEAF && __cpuid(POWER_LEAF).edx & INVARIANT_BIT != 0
    }

    pub(super) fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction, and it touches no memory. Where a kernel forbids it, it
        // ends the process as the system's clock would, which is read by it, too.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod counter {
    pub(super) fn is_invariant() -> bool {
        false
    }

    pub(super) fn ticks() -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn both(ticks: u64, base: Instant, ns: u64) -> Both {
        Both { ticks, clock: base + Duration::from_nanos(ns) }
    }

    #[test]
    fn ticks_are_as_long_as_the_clock_says() {
        let base = Instant::now();
        for (ticks, ns) in [(300_000_000, 100_000_000), (1, 1_000), (2_445_000_000, 1_000_000_000), (100, 99)] {
            let tick = tick(both(7, base, 0), both(7 + ticks, base, ns)).unwrap();
            let found = span(ticks, tick);
            assert!(found <= ns && ns - found <= 1, "{ticks} ticks in {ns} ns: {found}");
        }
        assert_eq!(span(u64::MAX, u64::MAX), u64::MAX);
    }

    #[test]
    fn a_counter_that_stands_or_falls_is_not_used() {
        let base = Instant::now();
        for ticks in [0, 7, 8] {
            let after = both(ticks, base, CALIBRATION_NS);
            assert_eq!(tick(both(8, base, 0), after), None, "8 to {ticks}");
        }
        assert_eq!(tick(both(0, base, 5), both(9, base, 5)), None, "the clock stood");
        let before = base.checked_sub(Duration::from_nanos(2 * CALIBRATION_NS)).unwrap();
        let mut watch = Stopwatch { anchor: Some(Both { ticks: u64::MAX, clock: before }), tick: None };
        assert!(matches!(watch.begin(), Begin::Clock(_)));
        assert!(watch.anchor.is_none() && matches!(watch.begin(), Begin::Clock(_)));
    }

    #[test]
    fn without_a_counter_the_clock_serves() {
        let mut watch = Stopwatch { anchor: None, tick: None };
        let begin = watch.begin();
        assert!(matches!(begin, Begin::Clock(_)));
        std::thread::sleep(Duration::from_millis(2));
        assert!(watch.since(begin) >= 2_000_000);
    }

    /// What is read between two looks at the clock lies between what the clock says, wherever the process is stopped.
    #[test]
    fn both_ways_of_reading_agree() {
        let mut watch = Stopwatch::new();
        assert!(matches!(watch.begin(), Begin::Clock(_)));
        std::thread::sleep(Duration::from_nanos(CALIBRATION_NS));
        watch.begin();
        let outer = Instant::now();
        let begin = watch.begin();
        let inner = Instant::now();
        assert_eq!(matches!(begin, Begin::Ticks(_)), counter::is_invariant());
        std::thread::sleep(Duration::from_millis(20));
        let at_least = nanos(inner, Instant::now());
        let found = watch.since(begin);
        let at_most = nanos(outer, Instant::now());
        let slack = at_most / 100;
        assert!(found + slack >= at_least && found <= at_most + slack, "{at_least} {found} {at_most}");
    }
}
