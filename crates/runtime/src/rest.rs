//! How a domain's thread waits: as its policy says, and awake while an actor is on its way to it.
//!
//! To wake up takes longer than all the rest of a switch, so whoever is to get an actor is told before the actor
//! leaves.

use std::ops::Range;
use std::time::Duration;

use osier_domain::{Nanos, Side};
use osier_pmr::{Doorbell, WaitPolicy, Waiter};

use crate::clock;
use crate::control::Control;

/// Actors of a pipeline come one after the other: how long one that came lets its domain expect another.
const ANOTHER_NS: u64 = 20_000;

/// A domain's thread when it has nothing to do.
pub struct Rest {
    side: Side,
    control: Control,
    /// How it waits while an actor is expected.
    alert: Waiter,
    /// From when to when, in nanoseconds, it last slept in the kernel.
    slept: Range<u64>,
}

impl Rest {
    /// Of one domain.
    pub fn new(side: Side, control: Control) -> Rest {
        let alert = Waiter::new(WaitPolicy::Poll).expect("every processor can poll");
        Rest { side, control, alert, slept: 0..0 }
    }

    /// Whether an actor is on its way here, or about to be.
    pub fn expects(&self, now: Nanos) -> bool {
        self.control.expected(self.side) > now.0
    }

    /// An actor has come.
    pub fn arrived(&self) {
        self.control.expect(self.side, clock::now().0 + ANOTHER_NS);
    }

    /// Whether the last sleep in the kernel was around `at`.
    pub fn slept_at(&self, at: u64) -> bool {
        self.slept.contains(&at)
    }

    /// Waits for a bell, `look`, the time limit, or that an actor is to be expected; since when, and whether that was
    /// a sleep.
    pub fn wait(
        &mut self,
        waiter: &mut Waiter,
        bells: &[&Doorbell],
        limit: Duration,
        look: impl Fn() -> bool,
    ) -> (u64, bool) {
        let since = clock::now().0;
        let expected = self.control.expected(self.side);
        let (waiter, limit) = match expected.checked_sub(since) {
            Some(left @ 1..) => (&mut self.alert, limit.min(Duration::from_nanos(left))),
            _ => (waiter, limit),
        };
        let sleeps = waiter.counts().sleeps;
        let told = || self.control.expected(self.side) != expected;
        waiter.wait_for_any(bells, limit, || (look() || told()).then_some(()));
        let slept = waiter.counts().sleeps > sleeps;
        if slept {
            self.slept = since..clock::now().0;
        }
        (since, slept)
    }
}

#[cfg(test)]
mod tests {
    use osier_pmr::{Backing, DOORBELL_BYTES, ObjectKind, Region};

    use super::*;
    use crate::control::{CONTROL_BYTES, MOVES_BYTES};

    const LONG: Duration = Duration::from_secs(20);

    fn rest() -> (Rest, Doorbell, Waiter) {
        let region = Region::create(&Backing::Memfd, 2 << 20, [0; 16]).unwrap();
        let object = |name, bytes| region.allocate(name, ObjectKind::STATISTICS, bytes, 4096).unwrap();
        let control = Control::new(object("control", CONTROL_BYTES), object("moves", MOVES_BYTES));
        let bell = Doorbell::new(&object("bell", DOORBELL_BYTES), 0);
        (Rest::new(Side::Device, control), bell, Waiter::new(WaitPolicy::Futex).unwrap())
    }

    #[test]
    fn whoever_sleeps_is_woken_for_an_actor_that_is_to_come_and_stays_awake_for_it() {
        let (mut rest, bell, mut waiter) = rest();
        let (control, ringer) = (rest.control.clone(), bell.clone());
        let teller = std::thread::spawn(move || {
            while ringer.sleepers() == 0 {
                std::thread::yield_now();
            }
            let told = clock::now().0;
            control.expect(Side::Device, told + LONG.as_nanos() as u64);
            ringer.ring();
            told
        });
        let (since, slept) = rest.wait(&mut waiter, &[&bell], LONG, || false);
        let told = teller.join().unwrap();
        assert!(slept && clock::now().0 - since < LONG.as_nanos() as u64, "nothing was found, and it did not time out");
        assert!(rest.slept_at(told) && !rest.slept_at(clock::now().0));
        let (_, slept) = rest.wait(&mut waiter, &[&bell], Duration::from_millis(2), || false);
        assert!(!slept && rest.expects(clock::now()));
    }

    #[test]
    fn an_expectation_ends_when_its_time_is_over_or_soon_after_the_actor_came() {
        let (mut rest, bell, mut waiter) = rest();
        rest.control.expect(Side::Device, clock::now().0 + 1_000_000);
        let (since, slept) = rest.wait(&mut waiter, &[&bell], LONG, || false);
        assert!(!slept && clock::now().0 >= since + 900_000 && !rest.expects(clock::now()));
        let (_, slept) = rest.wait(&mut waiter, &[&bell], Duration::from_millis(2), || false);
        assert!(slept, "it sleeps as its policy says");
        rest.control.expect(Side::Device, u64::MAX);
        rest.arrived();
        std::thread::sleep(Duration::from_nanos(2 * ANOTHER_NS));
        assert!(!rest.expects(clock::now()));
    }
}
