//! The shared-memory protocols under a model checker: every order of accesses that the memory model
//! allows, up to a bound on preemptions, for the very code that runs over the region.
//!
//! Each protocol is also run over words that are weaker than it asks for, and must then fail: so the
//! checks can fail, and the orders that the code asks for are needed.

#![expect(clippy::unwrap_used, reason = "a failed model is a failed test")]

use loom::sync::atomic::{AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use osier_pmr::words::LINE_WORDS;
use osier_pmr::{Bell, Lines, PageTag, PageTags, Ring, RingEntry, Side, Word, ring_bytes, tags_bytes};
use osier_pmr::{OwnerWord, Ownership};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release};

/// How a model's words behave.
trait Strength: 'static {
    const ORDERED: bool = true;
    /// Fences that do nothing.
    const MISSING_FENCE: Option<Ordering> = None;
    const ATOMIC_ADD: bool = true;
}

/// As asked for.
struct Exact;
impl Strength for Exact {}

/// Loads and stores order nothing.
struct Unordered;
impl Strength for Unordered {
    const ORDERED: bool = false;
}

/// A writer's fence does nothing.
struct NoReleaseFence;
impl Strength for NoReleaseFence {
    const MISSING_FENCE: Option<Ordering> = Some(Release);
}

/// A reader's fence does nothing.
struct NoAcquireFence;
impl Strength for NoAcquireFence {
    const MISSING_FENCE: Option<Ordering> = Some(Acquire);
}

/// An addition is a load and a store, as if sequence and sleepers were counted without a lock.
struct Torn;
impl Strength for Torn {
    const ATOMIC_ADD: bool = false;
}

struct ModelWord<S>(AtomicU64, PhantomData<S>);

impl<S: Strength> ModelWord<S> {
    fn new() -> Self {
        Self(AtomicU64::new(0), PhantomData)
    }
}

impl<S: Strength> Word for ModelWord<S> {
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(if S::ORDERED { order } else { Relaxed })
    }
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, if S::ORDERED { order } else { Relaxed });
    }
    fn fetch_add(&self, value: u64) -> u64 {
        if S::ATOMIC_ADD {
            return self.0.fetch_add(value, AcqRel);
        }
        let old = self.0.load(Acquire);
        self.0.store(old.wrapping_add(value), Release);
        old
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, AcqRel, Acquire)
    }
    fn fence(order: Ordering) {
        if S::MISSING_FENCE != Some(order) {
            fence(order);
        }
    }
}

struct ModelLines<S>(Arc<Vec<[ModelWord<S>; LINE_WORDS]>>);

impl<S: Strength> ModelLines<S> {
    fn new(bytes: u64) -> Self {
        Self(Arc::new((0..bytes / 64).map(|_| std::array::from_fn(|_| ModelWord::new())).collect()))
    }
}

impl<S> Clone for ModelLines<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: Strength> Lines for ModelLines<S> {
    type Word = ModelWord<S>;
    fn count(&self) -> usize {
        self.0.len()
    }
    fn line(&self, index: usize) -> &[ModelWord<S>; LINE_WORDS] {
        &self.0[index]
    }
}

/// Runs `body` in every order with at most `preemptions` preemptions.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(body);
}

fn entry(id: u64) -> RingEntry {
    std::array::from_fn(|word| id << 8 | word as u64)
}

/// Five entries through a ring of two, so that both phases are reused: whole, in order, none lost.
fn ring_passes_entries<S: Strength>() {
    const COUNT: u64 = 5;
    explore(3, || {
        let ring = Ring::format(ModelLines::<S>::new(ring_bytes(2)), 1).unwrap();
        let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
        let sender = thread::spawn(move || {
            for id in 1..=COUNT {
                while producer.push(entry(id)).is_err() {
                    thread::yield_now();
                }
            }
        });
        for id in 1..=COUNT {
            let seen = loop {
                match consumer.pop() {
                    Some(seen) => break seen,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(seen, entry(id));
        }
        sender.join().unwrap();
        assert!(consumer.pop().is_none());
    });
}

#[test]
fn a_ring_passes_entries_whole_and_in_order() {
    ring_passes_entries::<Exact>();
}

#[test]
#[should_panic(expected = "left == right")]
fn a_ring_over_unordered_words_is_caught() {
    ring_passes_entries::<Unordered>();
}

/// The consuming end changes hands in the middle: the cursor is passed by an owner word, as in a migration.
#[test]
fn a_consumer_hands_over_without_loss_or_repetition() {
    explore(2, || {
        let ring = Ring::format(ModelLines::<Exact>::new(ring_bytes(2)), 1).unwrap();
        let owner = Arc::new((ModelWord::<Exact>::new(), ModelWord::<Exact>::new()));
        OwnerWord::new(&owner.0).initialise(Ownership { side: Side::HOST, generation: 0 });
        let mut producer = ring.producer();
        producer.push(entry(1)).unwrap();
        producer.push(entry(2)).unwrap();
        let (device_owner, device_ring) = (Arc::clone(&owner), ring.clone());
        let device = thread::spawn(move || {
            let word = OwnerWord::new(&device_owner.0);
            while word.check(Side::DEVICE).is_err() {
                thread::yield_now();
            }
            let cursor = osier_pmr::Cursor(device_owner.1.load(Relaxed));
            let mut consumer = device_ring.consumer_at(cursor).unwrap();
            assert_eq!(consumer.pop(), Some(entry(2)));
            assert_eq!(consumer.pop(), None);
        });
        let mut consumer = ring.consumer();
        assert_eq!(consumer.pop(), Some(entry(1)));
        owner.1.store(consumer.cursor().0, Relaxed);
        let word = OwnerWord::new(&owner.0);
        word.transfer(word.ownership(), Side::DEVICE).unwrap();
        device.join().unwrap();
    });
}

/// A producer that dies before its last store and one that takes over race with the consumer.
#[test]
fn a_recovered_producer_continues_behind_the_last_whole_entry() {
    explore(2, || {
        let ring = Ring::format(ModelLines::<Exact>::new(ring_bytes(2)), 1).unwrap();
        let mut consumer = ring.consumer();
        let heir = ring.clone();
        let sender = thread::spawn(move || {
            heir.producer().push(entry(1)).unwrap();
            let mut recovered = heir.recover_producer();
            assert_eq!(recovered.cursor(), osier_pmr::Cursor(1));
            recovered.push(entry(2)).unwrap();
        });
        let mut seen = Vec::new();
        while seen.len() < 2 {
            match consumer.pop() {
                Some(entry) => seen.push(entry),
                None => thread::yield_now(),
            }
        }
        assert_eq!(seen, [entry(1), entry(2)]);
        sender.join().unwrap();
    });
}

/// A futex as the kernel does it: compares and sleeps, or wakes all, under one lock.
struct Kernel {
    queue: Mutex<()>,
    woken: Condvar,
}

impl Kernel {
    fn wait<S: Strength>(&self, word: &ModelWord<S>, expected: u32) {
        let queue = self.queue.lock().unwrap();
        if Bell::new(word).sequence() == expected {
            drop(self.woken.wait(queue).unwrap());
        }
    }

    fn wake_all(&self) {
        let _queue = self.queue.lock().unwrap();
        self.woken.notify_all();
    }
}

struct Ringing<S> {
    bell: ModelWord<S>,
    work: ModelWord<S>,
    kernel: Kernel,
}

impl<S: Strength> Ringing<S> {
    fn new() -> Arc<Self> {
        let kernel = Kernel { queue: Mutex::new(()), woken: Condvar::new() };
        Arc::new(Self { bell: ModelWord::new(), work: ModelWord::new(), kernel })
    }

    /// Makes a piece of work and rings, as [`osier_pmr::Doorbell::ring`] does.
    fn make_work(&self) {
        self.work.0.fetch_add(1, Relaxed);
        if Bell::new(&self.bell).ring() {
            self.kernel.wake_all();
        }
    }

    /// Waits for so much work without a time limit, as [`osier_pmr::Waiter`] does: a lost wake is a deadlock.
    fn wait_for(&self, wanted: u64) {
        let bell = Bell::new(&self.bell);
        loop {
            let observed = bell.sequence();
            if self.work.load(Relaxed) >= wanted {
                return;
            }
            if let Some(announced) = bell.announce(observed) {
                self.kernel.wait(&self.bell, observed);
                bell.leave(announced);
            }
        }
    }
}

/// Two pieces of work by `ringers` threads for as many sleepers as given.
fn no_wake_is_lost<S: Strength>(sleepers: usize, preemptions: usize) {
    explore(preemptions, move || {
        let ringing = Ringing::<S>::new();
        let threads: Vec<_> = (0..sleepers)
            .map(|_| {
                let ringing = Arc::clone(&ringing);
                thread::spawn(move || ringing.wait_for(2))
            })
            .collect();
        ringing.make_work();
        ringing.make_work();
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(!Bell::new(&ringing.bell).ring(), "every sleeper left");
    });
}

#[test]
fn a_doorbell_loses_no_wake() {
    no_wake_is_lost::<Exact>(1, 4);
}

#[test]
fn a_doorbell_loses_no_wake_of_two_sleepers() {
    no_wake_is_lost::<Exact>(2, 2);
}

/// One sleeper that goes to sleep at most once, where sleeping only leaves a mark that a wake removes: a lost
/// wake is a mark that stays. Unlike a deadlock it fails an assertion, which a test can expect.
fn no_mark_stays<S: Strength>() {
    explore(4, || {
        let ringing = Ringing::<S>::new();
        let asleep = Arc::new(Mutex::new(false));
        let sleeper = {
            let (ringing, asleep) = (Arc::clone(&ringing), Arc::clone(&asleep));
            thread::spawn(move || {
                let bell = Bell::new(&ringing.bell);
                let observed = bell.sequence();
                if ringing.work.load(Relaxed) == 0 && bell.announce(observed).is_some_and(|_| true) {
                    let mut mark = asleep.lock().unwrap();
                    *mark = bell.sequence() == observed;
                }
            })
        };
        ringing.work.0.fetch_add(1, Relaxed);
        if Bell::new(&ringing.bell).ring() {
            *asleep.lock().unwrap() = false;
        }
        sleeper.join().unwrap();
        assert!(!*asleep.lock().unwrap(), "a wake was lost");
    });
}

#[test]
fn a_doorbell_leaves_no_sleeper_behind() {
    no_mark_stays::<Exact>();
}

#[test]
#[should_panic(expected = "a wake was lost")]
fn a_doorbell_whose_additions_are_torn_is_caught() {
    no_mark_stays::<Torn>();
}

/// Recovery from a sleeper that was killed, racing with a live one and with a ring.
#[test]
fn forgetting_dead_sleepers_wakes_the_living() {
    explore(2, || {
        let ringing = Ringing::<Exact>::new();
        // The dead sleeper announced itself and never leaves.
        assert!(Bell::new(&ringing.bell).announce(0).is_some());
        let living = {
            let ringing = Arc::clone(&ringing);
            thread::spawn(move || ringing.wait_for(1))
        };
        Bell::new(&ringing.bell).forget_sleepers();
        ringing.kernel.wake_all();
        ringing.make_work();
        living.join().unwrap();
        assert!(!Bell::new(&ringing.bell).ring(), "the dead one is forgotten, the living one left");
    });
}

/// A page of two words is relocated twice while a reader copies it.
fn readers_never_see_a_mixture<S: Strength>() {
    explore(3, || {
        let tags = PageTags::new(ModelLines::<S>::new(tags_bytes(1)));
        let page = Arc::new([ModelWord::<S>::new(), ModelWord::<S>::new()]);
        let writer = {
            let (tags, page) = (tags.clone(), Arc::clone(&page));
            thread::spawn(move || {
                for value in 1..=2 {
                    let relocation = tags.begin(0).unwrap();
                    page.iter().for_each(|word| word.store(value, Relaxed));
                    tags.end(relocation, PageTag { actor: value as u16, note: value, ..PageTag::default() });
                }
            })
        };
        let read = tags.read_with(0, 3, || [page[0].load(Relaxed), page[1].load(Relaxed)]);
        if let Ok((tag, copied)) = read {
            assert_eq!(copied, [tag.note; 2], "a mixture passed as a page");
            assert_eq!((u64::from(tag.actor), u64::from(tag.epoch)), (tag.note, tag.note * 2));
        }
        writer.join().unwrap();
        assert_eq!(tags.read_with(0, 1, || page[0].load(Relaxed)).unwrap().1, 2);
    });
}

#[test]
fn a_reader_of_a_relocated_page_never_sees_a_mixture() {
    readers_never_see_a_mixture::<Exact>();
}

#[test]
#[should_panic(expected = "a mixture passed as a page")]
fn page_tags_without_the_writers_fence_are_caught() {
    readers_never_see_a_mixture::<NoReleaseFence>();
}

#[test]
#[should_panic(expected = "a mixture passed as a page")]
fn page_tags_without_the_readers_fence_are_caught() {
    readers_never_see_a_mixture::<NoAcquireFence>();
}

/// Two sides claim the same object; the loser must not touch it.
#[test]
fn of_two_claimants_one_owns() {
    explore(4, || {
        let words = Arc::new((ModelWord::<Exact>::new(), ModelWord::<Exact>::new()));
        let claim = |side| {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                let nobody = Ownership { side: Side::NOBODY, generation: 0 };
                let won = OwnerWord::new(&words.0).transfer(nobody, side).is_ok();
                if won {
                    // Not an atomic addition: safe only because the owner is alone.
                    let seen = words.1.load(Relaxed);
                    words.1.store(seen + 1, Relaxed);
                }
                won
            })
        };
        let (host, device) = (claim(Side::HOST), claim(Side::DEVICE));
        let (host_won, device_won) = (host.join().unwrap(), device.join().unwrap());
        assert!(host_won != device_won);
        assert_eq!(words.1.load(Relaxed), 1);
    });
}
