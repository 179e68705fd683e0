//! Each policy finds work, keeps its time limit, and sleeps or polls as it says.

use super::*;
use crate::layout::ObjectKind;
use crate::region::{Backing, Region};
use std::sync::atomic::{AtomicBool, Ordering};

fn bell() -> Doorbell {
    let region = Region::create(&Backing::Memfd, 65536, [0; 16]).unwrap();
    let object = region.allocate("bell", ObjectKind::DOORBELL, 128, 128).unwrap();
    Doorbell::new(&object, 0)
}

fn usable_policies() -> Vec<WaitPolicy> {
    let all = [WaitPolicy::Poll, WaitPolicy::Umwait, WaitPolicy::Futex, WaitPolicy::Hybrid { spin_ns: 5_000 }];
    all.into_iter().filter(|policy| Waiter::new(*policy).is_ok()).collect()
}

#[test]
fn every_policy_finds_work_that_is_there_without_waiting() {
    let bell = bell();
    for policy in usable_policies() {
        let mut waiter = Waiter::new(policy).unwrap();
        assert_eq!(waiter.wait_for(&bell, Duration::ZERO, || Some(5)), Some(5));
        assert_eq!(waiter.counts(), WaitCounts { polls: 1, found: 1, ..WaitCounts::default() });
    }
}

#[test]
fn every_policy_keeps_its_time_limit() {
    let bell = bell();
    for policy in usable_policies() {
        let mut waiter = Waiter::new(policy).unwrap();
        let start = Instant::now();
        assert!(!waiter.wait(&bell, bell.sequence(), Duration::from_millis(3)));
        assert!(start.elapsed() >= Duration::from_millis(3), "{policy}");
        assert_eq!(waiter.counts().timeouts, 1);
        assert_eq!(bell.sleepers(), 0, "{policy} left its announcement behind");
    }
}

#[test]
fn every_policy_hears_a_ring_from_another_thread() {
    for policy in usable_policies() {
        let bell = bell();
        let rounds = 200;
        let answered = &bell.clone();
        std::thread::scope(|scope| {
            let asked = bell.clone();
            let reply = Doorbell::new_for_test();
            let replied = reply.clone();
            scope.spawn(move || {
                let mut waiter = Waiter::new(policy).unwrap();
                for round in 0..rounds {
                    assert!(waiter.wait(&asked, round, Duration::from_secs(10)), "{policy} round {round}");
                    replied.ring();
                }
            });
            let mut waiter = Waiter::new(policy).unwrap();
            for round in 0..rounds {
                if round % 8 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                answered.ring();
                assert!(waiter.wait(&reply, round, Duration::from_secs(10)), "{policy} reply {round}");
            }
        });
    }
}

impl Doorbell {
    fn new_for_test() -> Self {
        bell()
    }
}

#[test]
fn a_futex_sleeper_is_woken_by_the_ring_and_not_by_its_limit() {
    let bell = bell();
    let woke = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut waiter = Waiter::new(WaitPolicy::Futex).unwrap();
            woke.store(waiter.wait(&bell, 0, Duration::from_secs(30)), Ordering::SeqCst);
            assert!(waiter.counts().sleeps >= 1);
        });
        while bell.sleepers() == 0 {
            std::hint::spin_loop();
        }
        assert!(bell.ring(), "a sleeper was announced");
    });
    assert!(woke.into_inner());
    assert!(!bell.ring(), "nobody sleeps any more");
}

#[test]
fn whoever_sleeps_on_two_bells_is_woken_by_either() {
    let bells = [bell(), bell()];
    for rung in &bells {
        let woke = AtomicBool::new(false);
        let before = rung.sequence();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut waiter = Waiter::new(WaitPolicy::Futex).unwrap();
                let [first, second] = &bells;
                let rang = || (rung.sequence() != before).then_some(());
                let found = waiter.wait_for_any(&[first, second], Duration::from_secs(30), rang);
                woke.store(found.is_some(), Ordering::SeqCst);
            });
            while bells.iter().any(|bell| bell.sleepers() == 0) {
                std::hint::spin_loop();
            }
            assert!(rung.ring(), "a sleeper was announced");
        });
        assert!(woke.into_inner());
        assert!(bells.iter().all(|bell| bell.sleepers() == 0), "nobody sleeps on either any more");
    }
}

#[test]
fn a_hybrid_sleeps_only_after_its_spell() {
    let bell = bell();
    let mut eager = Waiter::new(WaitPolicy::Hybrid { spin_ns: u64::MAX }).unwrap();
    assert!(!eager.wait(&bell, 0, Duration::from_millis(1)));
    assert_eq!(eager.counts().sleeps, 0);
    let mut lazy = Waiter::new(WaitPolicy::Hybrid { spin_ns: 0 }).unwrap();
    assert!(!lazy.wait(&bell, 0, Duration::from_millis(20)));
    assert!(lazy.counts().sleeps >= 1);
}

#[test]
fn a_hybrid_polls_less_after_long_spells_and_fully_after_a_short_one() {
    let mut spin = Spin::new(8_000);
    let us = Duration::from_micros;
    for wanted in [us(4), us(2), us(1), us(1)] {
        spin.learn(us(33));
        assert_eq!(spin.now, wanted);
    }
    spin.learn(us(32));
    assert_eq!(spin.now, us(8));
    Spin::new(u64::MAX).learn(Duration::MAX);
}

#[test]
fn timed_sleeps_end_near_their_limit_once_asked_to() {
    set_timer_slack(1).unwrap();
    let bell = bell();
    let mut waiter = Waiter::new(WaitPolicy::Futex).unwrap();
    let limit = Duration::from_micros(100);
    // One sleep in many is enough: a busy machine may hold this thread back after most of them.
    let mut late = (0..2_000).map(|_| {
        let start = Instant::now();
        assert!(!waiter.wait(&bell, 0, limit));
        start.elapsed() - limit
    });
    assert!(late.any(|late| late < Duration::from_micros(40)));
}

#[test]
fn forgotten_sleepers_that_live_sleep_again() {
    let bell = bell();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut waiter = Waiter::new(WaitPolicy::Futex).unwrap();
            let rung_twice = || (bell.sequence() >= 2).then_some(());
            waiter.wait_for(&bell, Duration::from_secs(30), rung_twice)
        });
        let announced = || bell.sleepers() == 1;
        while !announced() {
            std::hint::spin_loop();
        }
        bell.forget_sleepers();
        while !announced() {
            std::hint::spin_loop();
        }
        assert!(bell.ring());
        assert_eq!(sleeper.join().unwrap(), Some(()));
    });
}

#[test]
fn umwait_is_refused_with_its_reason_where_the_processor_lacks_it() {
    let (waiter, replaced) = Waiter::with_fallback(WaitPolicy::Umwait);
    match replaced {
        Some(reason) => {
            assert_eq!(waiter.policy(), WaitPolicy::HYBRID);
            assert!(reason.to_string().contains("WAITPKG"));
        }
        None => assert_eq!(waiter.policy(), WaitPolicy::Umwait),
    }
}

#[test]
fn policies_are_read_back_as_they_are_printed() {
    for policy in [WaitPolicy::Poll, WaitPolicy::Umwait, WaitPolicy::Futex, WaitPolicy::HYBRID] {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
    assert_eq!("hybrid".parse(), Ok(WaitPolicy::HYBRID));
    for bad in ["", "Poll", "hybrid:", "hybrid:-1", "hybrid:x"] {
        assert_eq!(bad.parse::<WaitPolicy>(), Err(BadPolicy(bad.to_owned())));
    }
}
