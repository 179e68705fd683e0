//! The face that shared memory shows to the protocols: cache lines of atomic words.
//!
//! The ring, the doorbell, the page tags and the owner word are written against these two traits, so that
//! the same code runs over a mapped region, over plain vectors in tests, and under a model checker's atomics.

use crate::object::Object;
use crate::region::Shared;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words of a cache line.
pub const LINE_WORDS: usize = 8;

/// A 64-bit word that others may change at any time.
pub trait Word {
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Writes the word.
    fn store(&self, value: u64, order: Ordering);
    /// Adds to the word, wrapping around, and returns what it was. Orders both ways (AcqRel).
    fn fetch_add(&self, value: u64) -> u64;
    /// Replaces `current` by `new` (AcqRel), or says what was there instead (Acquire).
    ///
    /// # Errors
    /// The value that was found instead of `current`.
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64>;
    /// A fence that orders this thread's accesses to all words.
    fn fence(order: Ordering);
}

impl Word for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }
    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
    #[inline(always)]
    fn fetch_add(&self, value: u64) -> u64 {
        AtomicU64::fetch_add(self, value, Ordering::AcqRel)
    }
    #[inline(always)]
    fn compare_exchange(&self, current: u64, new: u64) -> Result<u64, u64> {
        AtomicU64::compare_exchange(self, current, new, Ordering::AcqRel, Ordering::Acquire)
    }
    #[inline(always)]
    fn fence(order: Ordering) {
        std::sync::atomic::fence(order);
    }
}

/// A run of cache lines of shared words. Clones are handles to the same lines.
pub trait Lines: Clone {
    /// The words that the lines are made of.
    type Word: Word;
    /// How many lines there are.
    fn count(&self) -> usize;
    /// One line.
    ///
    /// # Panics
    /// If there is no such line.
    fn line(&self, index: usize) -> &[Self::Word; LINE_WORDS];
    /// Stores words 1 to 7 of a line, relaxed: in any order among themselves.
    ///
    /// # Panics
    /// If there is no such line.
    #[inline(always)]
    fn store_rest(&self, index: usize, words: &[u64; LINE_WORDS]) {
        for (word, value) in self.line(index).iter().zip(words).skip(1) {
            word.store(*value, Ordering::Relaxed);
        }
    }
    /// Loads words 1 to 7 of a line, relaxed: in any order among themselves.
    ///
    /// # Panics
    /// If there is no such line.
    #[inline(always)]
    fn load_rest(&self, index: usize, words: &mut [u64; LINE_WORDS]) {
        for (value, word) in words.iter_mut().zip(self.line(index)).skip(1) {
            *value = word.load(Ordering::Relaxed);
        }
    }
}

impl<W: Word> Lines for Arc<[[W; LINE_WORDS]]> {
    type Word = W;
    #[inline(always)]
    fn count(&self) -> usize {
        self.len()
    }
    #[inline(always)]
    fn line(&self, index: usize) -> &[W; LINE_WORDS] {
        &self[index]
    }
}

/// Cache lines of an object; keeps the region mapped.
#[derive(Debug, Clone)]
pub struct SharedLines {
    first: NonNull<[AtomicU64; LINE_WORDS]>,
    count: usize,
    _mapped: Arc<Shared>,
}

// SAFETY: a handle to atomics in a mapping that it keeps alive; nothing in it belongs to a thread.
unsafe impl Send for SharedLines {}
// SAFETY: as above; the words are atomics.
unsafe impl Sync for SharedLines {}

impl SharedLines {
    /// `count` lines of `object` from byte `offset` on.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 64 or the lines leave the object.
    pub fn new(object: &Object, offset: u64, count: usize) -> Self {
        let first = object.address_of(offset, count as u64 * 64, 64).cast();
        Self { first, count, _mapped: object.keep_mapped() }
    }
}

impl Lines for SharedLines {
    type Word = AtomicU64;
    #[inline(always)]
    fn count(&self) -> usize {
        self.count
    }
    #[inline(always)]
    fn line(&self, index: usize) -> &[AtomicU64; LINE_WORDS] {
        assert!(index < self.count, "line {index} of {}", self.count);
        // SAFETY: the line is one of those checked in `new`, aligned, and mapped while `self` lives;
        // everyone accesses it by atomics.
        unsafe { self.first.add(index).as_ref() }
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn store_rest(&self, index: usize, words: &[u64; LINE_WORDS]) {
        let line = self.line(index);
        // SAFETY: reads the last 56 bytes of `words` and writes those of `line`, both 64 bytes; the line is aligned to
        // 64. See `wide` for why racing with other processes is defined.
        unsafe { wide::copy_rest(words.as_ptr(), line.as_ptr().cast_mut().cast()) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    fn load_rest(&self, index: usize, words: &mut [u64; LINE_WORDS]) {
        let line = self.line(index);
        // SAFETY: reads the last 56 bytes of `line` and writes those of `words`, both 64 bytes. See `wide` for why
        // racing with other processes is defined.
        unsafe { wide::copy_rest(line.as_ptr().cast(), words.as_mut_ptr()) };
    }
}

/// Copies of entries by wide moves. Seven separate stores an entry fill the processor's store queue while the
/// lines are fetched from the other core, and cost about a quarter more time an entry.
///
/// The compiler cannot see through the instructions, so it draws no conclusions from the race. What they do
/// is what relaxed accesses of each word may do: x86-64 never tears an aligned eight-byte part of a move, and
/// keeps stores in order with the release store of word 0 that follows, loads with the acquire load before.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod wide {
    /// Copies words 1 to 7.
    ///
    /// # Safety
    /// Both pointers are valid for 64 bytes and eight-byte aligned.
    #[inline(always)]
    pub(super) unsafe fn copy_rest(from: *const u64, to: *mut u64) {
        // SAFETY: the caller's promise; the moves need no more alignment than that.
        unsafe {
            std::arch::asm!(
                "mov {word}, [{from} + 8]",
                "movups {a}, [{from} + 16]",
                "movups {b}, [{from} + 32]",
                "movups {c}, [{from} + 48]",
                "mov [{to} + 8], {word}",
                "movups [{to} + 16], {a}",
                "movups [{to} + 32], {b}",
                "movups [{to} + 48], {c}",
                from = in(reg) from,
                to = in(reg) to,
                word = out(reg) _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

const _: () = assert!(size_of::<[AtomicU64; LINE_WORDS]>() == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::ObjectKind;
    use crate::region::{Backing, Region};
    use crate::ring::{Ring, RingEntry, ring_bytes};

    #[test]
    fn wide_copies_move_words_one_to_seven_and_nothing_else() {
        let region = Region::create(&Backing::Memfd, 65536, [0; 16]).unwrap();
        let object = region.allocate("lines", ObjectKind::RING, 192, 64).unwrap();
        let lines = SharedLines::new(&object, 0, 3);
        let words: [u64; LINE_WORDS] = std::array::from_fn(|word| 10 + word as u64);
        lines.store_rest(1, &words);
        let held = |line: usize| lines.line(line).each_ref().map(|word| word.load(Ordering::Relaxed));
        assert_eq!([held(0), held(2)], [[0; LINE_WORDS]; 2]);
        assert_eq!(held(1), [0, 11, 12, 13, 14, 15, 16, 17]);
        lines.line(1)[0].store(99, Ordering::Relaxed);
        let mut copy = [7; LINE_WORDS];
        lines.load_rest(1, &mut copy);
        assert_eq!(copy, [7, 11, 12, 13, 14, 15, 16, 17]);
        assert!(std::panic::catch_unwind(|| lines.line(3)[0].load(Ordering::Relaxed)).is_err());
    }

    #[test]
    fn a_ring_in_a_region_passes_whole_entries_from_another_process() {
        const COUNT: u64 = 100_000;
        let region = Region::create(&Backing::Memfd, 65536, [0; 16]).unwrap();
        let object = region.allocate("ring", ObjectKind::RING, ring_bytes(64), 128).unwrap();
        let ring = Ring::format(SharedLines::new(&object, 0, 68), 1).unwrap();
        let (mut producer, mut consumer) = (ring.producer(), ring.consumer());
        let entry = |id: u64| -> RingEntry { std::array::from_fn(|word| id << 8 | word as u64) };
        // SAFETY: the child touches only the ring and yields; it allocates no memory and takes no lock that
        // another thread of this test process could have held at the fork.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let mut sent = 0;
            while sent < COUNT {
                let batch: [RingEntry; 7] = std::array::from_fn(|ahead| entry(sent + ahead as u64));
                let pushed = producer.push_batch(&batch[..batch.len().min((COUNT - sent) as usize)]);
                sent += pushed as u64;
                if pushed == 0 {
                    std::thread::yield_now();
                }
            }
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) };
        }
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
        let mut status = 0;
        // SAFETY: the child is ours and the pointer is to a live value.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
}
