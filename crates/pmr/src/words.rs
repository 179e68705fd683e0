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
    /// Says that a line will soon be written, so that its transfer can begin. May do nothing.
    #[inline(always)]
    fn will_write(&self, _index: usize) {}
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
    #[inline(always)]
    fn will_write(&self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint; it neither faults nor changes anything, whatever the address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_ET0>(self.first.as_ptr().wrapping_add(index).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

const _: () = assert!(size_of::<[AtomicU64; LINE_WORDS]>() == 64);
