//! The ring against a plain queue, and with its ends taken over or killed at any point.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

type HeapLines = Arc<[[AtomicU64; LINE_WORDS]]>;

fn lines(capacity: usize) -> HeapLines {
    // Old content everywhere: formatting must not rely on zeroed memory.
    let line = |_| std::array::from_fn(|_| AtomicU64::new(u64::MAX));
    (0..HEADER_LINES + capacity).map(line).collect()
}

fn ring(capacity: usize) -> Ring<HeapLines> {
    Ring::format(lines(capacity), 1).unwrap()
}

/// An entry whose eight words differ and all depend on `id`.
fn entry(id: u64) -> RingEntry {
    std::array::from_fn(|word| (id.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ word as u64) & !PHASE_BIT)
}

#[derive(Debug, Clone)]
enum Step {
    Push,
    PushBatch(usize),
    Pop,
    PopBatch(usize),
    /// Another process takes the producing end over, at the cursor or after a death.
    NewProducer {
        died: bool,
    },
    /// Another process takes the consuming end over at the cursor.
    NewConsumer,
    /// The consumer dies without a checkpoint.
    ConsumerDies,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Push),
        3 => (0usize..20).prop_map(Step::PushBatch),
        6 => Just(Step::Pop),
        3 => (0usize..20).prop_map(Step::PopBatch),
        1 => any::<bool>().prop_map(|died| Step::NewProducer { died }),
        1 => Just(Step::NewConsumer),
        1 => Just(Step::ConsumerDies),
    ]
}

/// A ring and what must come out of it.
struct Run {
    ring: Ring<HeapLines>,
    producer: Producer<HeapLines>,
    consumer: Consumer<HeapLines>,
    queue: VecDeque<u64>,
    pushed: u64,
    popped: u64,
}

impl Run {
    fn new(capacity: usize) -> Self {
        let ring = ring(capacity);
        let (producer, consumer) = (ring.producer(), ring.consumer());
        Self { ring, producer, consumer, queue: VecDeque::new(), pushed: 0, popped: 0 }
    }

    fn accepted(&mut self, count: usize) {
        for _ in 0..count {
            self.queue.push_back(self.pushed);
            self.pushed += 1;
        }
        assert!(self.queue.len() <= self.ring.capacity());
    }

    fn came_out(&mut self, entries: &[RingEntry]) {
        for seen in entries {
            let id = self.queue.pop_front().expect("nothing comes out that did not go in");
            assert_eq!(*seen, entry(id));
            self.popped = id + 1;
        }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Push => {
                let pushed = self.producer.push(entry(self.pushed)).is_ok();
                self.accepted(usize::from(pushed));
            }
            Step::PushBatch(count) => {
                let batch: Vec<_> = (0..count as u64).map(|ahead| entry(self.pushed + ahead)).collect();
                let room = self.producer.free();
                let pushed = self.producer.push_batch(&batch);
                assert_eq!(pushed, room.min(count));
                self.accepted(pushed);
            }
            Step::Pop => {
                let seen: Vec<_> = self.consumer.pop().into_iter().collect();
                assert_eq!(seen.is_empty(), self.queue.is_empty());
                self.came_out(&seen);
            }
            Step::PopBatch(count) => {
                let mut out = vec![[0; LINE_WORDS]; count];
                let popped = self.consumer.pop_batch(&mut out);
                assert_eq!(popped, count.min(self.queue.len()));
                self.came_out(&out[..popped]);
            }
            Step::NewProducer { died: true } => self.producer = self.ring.recover_producer(),
            Step::NewProducer { died: false } => {
                self.producer = self.ring.producer_at(self.producer.cursor()).unwrap();
            }
            Step::NewConsumer => {
                let cursor = self.consumer.cursor();
                self.consumer = Ring::open(self.ring.lines.clone()).unwrap().consumer_at(cursor).unwrap();
            }
            Step::ConsumerDies => {
                self.consumer = self.ring.recover_consumer();
                let again = self.popped - self.consumer.position;
                assert!(again <= (self.ring.capacity() as u64).div_ceil(4), "{again} entries repeated");
                (0..again).for_each(|back| self.queue.push_front(self.popped - 1 - back));
                self.popped -= again;
            }
        }
        assert_eq!(self.consumer.has_entry(), !self.queue.is_empty());
        assert_eq!(self.producer.cursor(), Cursor(self.pushed));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_a_queue(shift in 1u32..5, steps in prop::collection::vec(step(), 1..200)) {
        let mut run = Run::new(1 << shift);
        for step in &steps {
            run.apply(step);
        }
    }
}

#[test]
fn the_phase_flips_each_lap_for_many_laps() {
    let mut run = Run::new(4);
    for _ in 0..1000 {
        run.apply(&Step::PushBatch(3));
        run.apply(&Step::PopBatch(3));
    }
    assert_eq!(run.popped, 3000);
}

#[test]
fn a_full_ring_refuses_until_the_consumer_runs_dry_or_publishes() {
    let ring = ring(8);
    let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
    assert_eq!(producer.push_batch(&[entry(0); 9]), 8);
    assert_eq!(producer.push(entry(0)), Err(Full));
    consumer.pop().unwrap();
    assert_eq!(producer.push(entry(0)), Err(Full), "one entry is not worth a line transfer");
    consumer.pop().unwrap();
    assert_eq!(producer.free(), 2, "a quarter of the capacity is");
    consumer.pop().unwrap();
    assert!(consumer.publish() && !consumer.publish());
    assert_eq!(producer.free(), 3);
    while consumer.pop().is_some() {}
    assert!(producer.is_drained());
    assert_eq!(producer.free(), 8);
}

#[test]
fn an_entry_cut_short_is_not_seen_and_is_overwritten() {
    let ring = ring(4);
    let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
    producer.push(entry(1)).unwrap();
    // What a producer killed before its last store leaves: all words but the first.
    for word in 1..LINE_WORDS {
        ring.lines.line(HEADER_LINES + 1)[word].store(0xDEAD, Relaxed);
    }
    let mut recovered = ring.recover_producer();
    assert_eq!(recovered.cursor(), Cursor(1));
    recovered.push(entry(2)).unwrap();
    assert_eq!([consumer.pop(), consumer.pop(), consumer.pop()], [Some(entry(1)), Some(entry(2)), None]);
}

/// A word whose stores stop taking effect when a fuse shared by all words has burnt down: a killed process.
struct FusedWord {
    word: AtomicU64,
    fuse: Arc<AtomicU64>,
}

impl Word for FusedWord {
    fn load(&self, order: Ordering) -> u64 {
        Word::load(&self.word, order)
    }
    fn store(&self, value: u64, order: Ordering) {
        let left = self.fuse.load(Relaxed);
        if left > 0 {
            self.fuse.store(left - 1, Relaxed);
            Word::store(&self.word, value, order);
        }
    }
    fn fetch_add(&self, value: u64) -> u64 {
        Word::fetch_add(&self.word, value)
    }
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        Word::compare_exchange(&self.word, current, new)
    }
    fn fence(_: Ordering) {}
}

type FusedLines = Arc<[[FusedWord; LINE_WORDS]]>;

fn fused_lines(capacity: usize) -> (FusedLines, Arc<AtomicU64>) {
    let fuse = Arc::new(AtomicU64::new(u64::MAX));
    let word = |_| FusedWord { word: AtomicU64::new(u64::MAX), fuse: Arc::clone(&fuse) };
    ((0..HEADER_LINES + capacity).map(|_| std::array::from_fn(word)).collect(), Arc::clone(&fuse))
}

/// Kills a producer after each store of a batch, lets `recover` make another, and counts the runs in which
/// something else came out than what was whole, then what the new producer put in.
fn wrong_after_a_killed_batch(recover: fn(&Ring<FusedLines>) -> Producer<FusedLines>) -> usize {
    const CAPACITY: usize = 8;
    let wrong = |before: u64, stores: u64| {
        let (lines, fuse) = fused_lines(CAPACITY);
        let ring = Ring::format(lines, 1).unwrap();
        let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
        for id in 0..before {
            producer.push(entry(id)).unwrap();
            consumer.pop().unwrap();
        }
        fuse.store(stores, Relaxed);
        producer.push_batch(&std::array::from_fn::<_, 4, _>(|ahead| entry(before + ahead as u64)));
        fuse.store(u64::MAX, Relaxed);
        let mut recovered = recover(&ring);
        let whole = recovered.cursor().0;
        // Just one, so that it does not cover what may be left of the batch.
        recovered.push(entry(100)).unwrap();
        let wanted = (before..whole).map(entry).chain([entry(100)]);
        !wanted.eq(std::iter::from_fn(|| consumer.pop()))
    };
    (0..20).map(|before| (0..=4 * 8).filter(|stores| wrong(before, *stores)).count()).sum()
}

#[test]
fn a_batch_cut_short_anywhere_comes_out_whole_or_not_at_all() {
    assert_eq!(wrong_after_a_killed_batch(Ring::recover_producer), 0);
    // Without taking back what lies behind the end, the rest of the batch would come out later.
    assert!(wrong_after_a_killed_batch(|ring| Producer::at(ring, ring.end())) > 0);
}

#[test]
fn a_format_cut_short_anywhere_is_refused_or_done() {
    let (lines, fuse) = fused_lines(4);
    let stores = (HEADER_LINES as u64 + 4) * 8;
    let mut refused = 0;
    for cut in 0..stores {
        fuse.store(u64::MAX, Relaxed);
        Ring::format(lines.clone(), 1).unwrap().producer().push(entry(1)).unwrap();
        fuse.store(cut, Relaxed);
        Ring::format(lines.clone(), 2).unwrap();
        match Ring::open(lines.clone()) {
            Ok(ring) if ring.generation() == 1 => assert_eq!(ring.consumer().pop(), Some(entry(1))),
            Ok(ring) => assert_eq!(ring.consumer().pop(), None),
            Err(error) => {
                assert_eq!(error, RingError::NotFormatted);
                refused += 1;
            }
        }
    }
    assert!(refused > 0);
}

#[test]
fn a_cursor_that_the_ring_contradicts_is_refused() {
    let ring = ring(4);
    let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
    assert_eq!(producer.push_batch(&[entry(0); 3]), 3);
    consumer.pop().unwrap();
    consumer.publish();
    for bad in [0, 2, 4, u64::MAX] {
        assert_eq!(ring.producer_at(Cursor(bad)).unwrap_err(), RingError::BadCursor { cursor: bad });
    }
    for bad in [0, 4, u64::MAX] {
        assert_eq!(ring.consumer_at(Cursor(bad)).unwrap_err(), RingError::BadCursor { cursor: bad });
    }
    for good in 1..=3 {
        ring.consumer_at(Cursor(good)).unwrap();
    }
    assert_eq!(ring.snapshot(), [(Cursor(1), entry(0)), (Cursor(2), entry(0))]);
}

#[test]
fn a_reset_empties_the_ring_and_shuts_out_the_old_incarnation() {
    let mut ring = ring(4);
    ring.producer().push(entry(1)).unwrap();
    ring.reset(2);
    assert_eq!(ring.consumer().pop(), None);
    let lines = ring.lines.clone();
    let stale = Ring::open_generation(lines.clone(), 1).unwrap_err();
    assert_eq!(stale, RingError::WrongGeneration { found: 2, wanted: 1 });
    assert_eq!(Ring::open_generation(lines, 2).unwrap().generation(), 2);
}

#[test]
fn memory_that_is_no_ring_is_refused() {
    let slots = |count| Ring::format(lines(count), 1).unwrap_err();
    for count in [0, 1, 3, 12] {
        assert_eq!(slots(count), RingError::BadCapacity { slots: count });
    }
    assert_eq!(Ring::open(lines(4)).unwrap_err(), RingError::NotFormatted);
    let ring = ring(4);
    ring.lines.line(GEOMETRY_LINE)[CAPACITY_WORD].store(8, Relaxed);
    assert_eq!(Ring::open(ring.lines).unwrap_err(), RingError::Damaged { stated: 8, slots: 4 });
}

#[test]
fn a_tail_damaged_by_the_other_side_never_overwrites_entries() {
    for damage in [u64::MAX, 1 << 40, 5, 0] {
        let ring = ring(4);
        let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
        assert_eq!(producer.push_batch(&[entry(0); 4]), 4);
        assert!(consumer.pop().is_some());
        ring.lines.line(TAIL_LINE)[0].store(damage, Relaxed);
        assert_eq!(producer.push(entry(9)), Err(Full), "tail {damage}");
    }
}

#[test]
#[should_panic(expected = "belongs to the ring")]
fn an_entry_with_the_phase_bit_set_is_a_bug() {
    let _ = ring(4).producer().push([PHASE_BIT; LINE_WORDS]);
}

#[test]
fn two_threads_pass_many_entries_in_order() {
    const COUNT: u64 = 200_000;
    let ring = ring(64);
    let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
    // Yielding rather than spinning: a machine may have fewer free processors than there are threads.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut sent = 0;
            while sent < COUNT {
                let batch: [RingEntry; 5] = std::array::from_fn(|ahead| entry(sent + ahead as u64));
                let wanted = batch.len().min((COUNT - sent) as usize);
                match producer.push_batch(&batch[..wanted]) {
                    0 => std::thread::yield_now(),
                    pushed => sent += pushed as u64,
                }
            }
        });
        let mut taken = 0;
        while taken < COUNT {
            match consumer.pop() {
                Some(seen) => {
                    assert_eq!(seen, entry(taken));
                    taken += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}
