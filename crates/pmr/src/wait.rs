//! How to wait for a doorbell: the policies, from burning a core to sleeping in the kernel.
//!
//! | policy | latency | processor while idle |
//! | --- | --- | --- |
//! | `Poll` | one cache miss | all of it |
//! | `Umwait` | about one cache miss | a light sleep state, in slices of at most 100 microseconds |
//! | `Futex` | a wake-up by the kernel, 5 to 20 microseconds | none |
//! | `Hybrid` | as `Poll` while work keeps coming | none after a spell without work |
//!
//! Every wait has a time limit; a party that died cannot hold another for longer.

use crate::doorbell::{BELLS_MAX, Doorbell};
use crate::umwait::{self, Tsc};
use std::time::{Duration, Instant};

/// How a waiter waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitPolicy {
    /// Looks again and again.
    Poll,
    /// Lets the processor watch the doorbell's cache line (UMONITOR and UMWAIT).
    Umwait,
    /// Sleeps in the kernel.
    Futex,
    /// Polls while work keeps coming. After `spin_ns` nanoseconds without work it lets the processor
    /// watch the line, where it can, for up to a millisecond, and then sleeps in the kernel. When work has
    /// come only after much longer spells, it polls for less, down to an eighth: polling would be in vain.
    Hybrid {
        /// Most nanoseconds without work before it stops polling.
        spin_ns: u64,
    },
}

impl WaitPolicy {
    /// A hybrid that polls for longer than a wake-up by the kernel takes (5 to 20 microseconds), so that a
    /// wait costs at most about twice what the best choice in hindsight would have.
    pub const HYBRID: Self = Self::Hybrid { spin_ns: 20_000 };
}

impl std::fmt::Display for WaitPolicy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Poll => f.write_str("poll"),
            Self::Umwait => f.write_str("umwait"),
            Self::Futex => f.write_str("futex"),
            Self::Hybrid { spin_ns } => write!(f, "hybrid:{spin_ns}"),
        }
    }
}

/// A text that names no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {0:?} as a wait policy: it must be poll, umwait, futex, hybrid or hybrid:NANOSECONDS")]
pub struct BadPolicy(pub String);

impl std::str::FromStr for WaitPolicy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        match (text, text.strip_prefix("hybrid:").map(str::parse)) {
            ("poll", _) => Ok(Self::Poll),
            ("umwait", _) => Ok(Self::Umwait),
            ("futex", _) => Ok(Self::Futex),
            ("hybrid", _) => Ok(Self::HYBRID),
            (_, Some(Ok(spin_ns))) => Ok(Self::Hybrid { spin_ns }),
            _ => Err(BadPolicy(text.to_owned())),
        }
    }
}

/// The processor cannot do what the policy needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot wait by UMWAIT: this processor has no WAITPKG (CPUID leaf 7, ECX bit 5); choose hybrid, futex or poll")]
pub struct NoWaitpkg;

/// What a waiter did, for reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitCounts {
    /// Looks for work.
    pub polls: u64,
    /// Slices given to UMWAIT.
    pub umwaits: u64,
    /// Sleeps in the kernel.
    pub sleeps: u64,
    /// Waits that found work.
    pub found: u64,
    /// Waits that ran out of time.
    pub timeouts: u64,
}

/// Looks between two readings of the clock, which costs as much as several looks.
const LOOKS_PER_CLOCK: u32 = 32;
/// Slices of UMWAIT in a row before a hybrid goes on to sleep in the kernel: about a millisecond.
const UMWAIT_SLICES: u32 = 10;

/// Lets this thread's timed sleeps end within `slack_ns` nanoseconds of their limit. Linux groups the wake-ups of
/// ordinary threads within 50 microseconds, which is far more than a wake by a doorbell takes.
///
/// # Errors
/// What the system refused.
pub fn set_timer_slack(slack_ns: u32) -> std::io::Result<()> {
    // Zero would mean the default, which is the opposite of what a caller of zero wants.
    let slack_ns = libc::c_ulong::from(slack_ns.max(1));
    // SAFETY: a plain call about the calling thread.
    match unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, slack_ns) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A spell so many times as long as `spin_ns` says that polling for the next one is in vain.
const LONG_SPELL: u32 = 4;
/// The shortest that a hybrid polls, as a part of `spin_ns`.
const SPIN_PART_MIN: u32 = 8;

/// How long a hybrid polls, by the spells it saw. One short spell restores the whole of `spin_ns`, so a burst
/// after a pause is polled for from its second entry on.
#[derive(Debug, Clone, Copy)]
struct Spin {
    most: Duration,
    now: Duration,
}

impl Spin {
    fn new(spin_ns: u64) -> Self {
        let most = Duration::from_nanos(spin_ns);
        Self { most, now: most }
    }

    /// Learns that work came, or did not, after a spell of this length.
    fn learn(&mut self, spell: Duration) {
        let long = spell > self.most.saturating_mul(LONG_SPELL);
        self.now = if long { (self.now / 2).max(self.most / SPIN_PART_MIN) } else { self.most };
    }
}

/// One party's way of waiting. Each thread that waits has its own.
#[derive(Debug)]
pub struct Waiter {
    policy: WaitPolicy,
    spin: Spin,
    tsc: Option<Tsc>,
    counts: WaitCounts,
}

impl Waiter {
    /// A waiter of the given policy.
    ///
    /// # Errors
    /// `NoWaitpkg` when the policy is `Umwait` and this processor cannot.
    pub fn new(policy: WaitPolicy) -> Result<Self, NoWaitpkg> {
        let tsc = match policy {
            WaitPolicy::Umwait | WaitPolicy::Hybrid { .. } => umwait::detect(),
            WaitPolicy::Poll | WaitPolicy::Futex => None,
        };
        if policy == WaitPolicy::Umwait && tsc.is_none() {
            return Err(NoWaitpkg);
        }
        Ok(Self::of(policy, tsc))
    }

    /// A waiter of the given policy, or of the hybrid one where this processor cannot do it. The second
    /// value says when it was replaced.
    pub fn with_fallback(policy: WaitPolicy) -> (Self, Option<NoWaitpkg>) {
        match Self::new(policy) {
            Ok(waiter) => (waiter, None),
            Err(reason) => (Self::of(WaitPolicy::HYBRID, None), Some(reason)),
        }
    }

    fn of(policy: WaitPolicy, tsc: Option<Tsc>) -> Self {
        let spin_ns = match policy {
            WaitPolicy::Hybrid { spin_ns } => spin_ns,
            WaitPolicy::Poll | WaitPolicy::Umwait | WaitPolicy::Futex => 0,
        };
        Self { policy, spin: Spin::new(spin_ns), tsc, counts: WaitCounts::default() }
    }

    /// The policy in use.
    pub fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// What it did so far.
    pub fn counts(&self) -> WaitCounts {
        self.counts
    }

    /// Waits until `look` finds work, for at most `timeout`; nothing when the time ran out.
    ///
    /// Whoever makes work must ring `bell` after it. `look` must not consume anything but what it returns.
    pub fn wait_for<T>(&mut self, bell: &Doorbell, timeout: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
        self.wait_for_any(&[bell], timeout, look)
    }

    /// The same for several bells, [`BELLS_MAX`] at most: whoever makes work must ring one of them after it. UMWAIT
    /// watches the first alone, in slices so short that the others do not wait long.
    pub fn wait_for_any<T>(
        &mut self,
        bells: &[&Doorbell],
        timeout: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if let Some(found) = self.look_some(&mut look) {
            self.spin.learn(Duration::ZERO);
            self.counts.found += 1;
            return Some(found);
        }
        let start = Instant::now();
        let deadline = start.checked_add(timeout).unwrap_or(start + Duration::from_secs(1 << 30));
        let found = match self.policy {
            WaitPolicy::Poll => self.poll(deadline, &mut look),
            WaitPolicy::Umwait => self.watch(bells, deadline, u32::MAX, &mut look),
            WaitPolicy::Futex => self.sleep(bells, deadline, &mut look),
            WaitPolicy::Hybrid { .. } => self.hybrid(bells, start, deadline, &mut look),
        };
        self.counts.found += u64::from(found.is_some());
        self.counts.timeouts += u64::from(found.is_none());
        found
    }

    /// Waits until the bell rang after `observed`, for at most `timeout`; whether it did.
    pub fn wait(&mut self, bell: &Doorbell, observed: u32, timeout: Duration) -> bool {
        self.wait_for(bell, timeout, || (bell.sequence() != observed).then_some(())).is_some()
    }

    fn hybrid<T>(
        &mut self,
        bells: &[&Doorbell],
        start: Instant,
        deadline: Instant,
        look: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let spun = start.checked_add(self.spin.now).unwrap_or(deadline).min(deadline);
        let found = self
            .poll(spun, look)
            .or_else(|| self.watch(bells, deadline, UMWAIT_SLICES, look))
            .or_else(|| self.sleep(bells, deadline, look));
        self.spin.learn(start.elapsed());
        found
    }

    fn poll<T>(&mut self, deadline: Instant, look: &mut impl FnMut() -> Option<T>) -> Option<T> {
        while Instant::now() < deadline {
            if let Some(found) = self.look_some(look) {
                return Some(found);
            }
        }
        None
    }

    fn look_some<T>(&mut self, look: &mut impl FnMut() -> Option<T>) -> Option<T> {
        for looks in 1..=LOOKS_PER_CLOCK {
            if let Some(found) = look() {
                self.counts.polls += u64::from(looks);
                return Some(found);
            }
            std::hint::spin_loop();
        }
        self.counts.polls += u64::from(LOOKS_PER_CLOCK);
        None
    }

    /// Lets the processor watch the bell's line, at most `slices` times. Nothing where it cannot.
    fn watch<T>(
        &mut self,
        bells: &[&Doorbell],
        deadline: Instant,
        slices: u32,
        look: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let tsc = self.tsc?;
        for _ in 0..slices {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            // Arm first, look second: what comes after the look ends the watch.
            tsc.arm(bells[0].word());
            self.counts.polls += 1;
            if let Some(found) = look() {
                return Some(found);
            }
            self.counts.umwaits += 1;
            tsc.watch(left);
        }
        None
    }

    fn sleep<T>(&mut self, bells: &[&Doorbell], deadline: Instant, look: &mut impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            // The sequences first: work that comes after this look is followed by another one.
            let mut observed = [0; BELLS_MAX];
            for (observed, bell) in observed.iter_mut().zip(bells) {
                *observed = bell.sequence();
            }
            self.counts.polls += 1;
            if let Some(found) = look() {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            self.counts.sleeps += u64::from(Doorbell::sleep(bells, &observed, left));
        }
    }
}

#[cfg(test)]
mod tests;
