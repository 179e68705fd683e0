//! A doorbell: one shared word that says "look again", and knows whether anyone sleeps on it.
//!
//! The word is `sequence << 32 | era << 16 | sleepers`. Ringing adds one to the sequence; about to sleep,
//! a waiter adds one to the sleepers. Both are read-modify-writes of the *same* word, so one comes first:
//! either the waiter sees the new sequence and does not sleep, or the ringer sees the sleeper and wakes it.
//! With sequence and sleepers in two words each side would need a full fence between its store and its
//! load, on the path of every entry.
//!
//! Invariants:
//! 1. A waiter reads the sequence, then looks for work, then sleeps on *that* sequence: work that came
//!    between is followed by a ring, hence by another sequence.
//! 2. The kernel compares the sequence once more before it puts a waiter to sleep (the futex word is the
//!    upper half), so a ring between announcing and sleeping is not lost.
//! 3. A killed sleeper leaves the count too high, which costs a needless wake at each ring and never loses
//!    one. [`Doorbell::forget_sleepers`] starts a new era; a sleeper of an older era does not count down.

use crate::object::Object;
use crate::words::{Lines, SharedLines, Word};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SEQUENCE_ONE: u64 = 1 << 32;
const ERA_ONE: u64 = 1 << 16;
const COUNT_MASK: u64 = ERA_ONE - 1;
const ERA_MASK: u64 = (SEQUENCE_ONE - 1) & !COUNT_MASK;
/// Times that a leaving sleeper tries to count itself out before it leaves the count too high, which is safe.
const LEAVE_TRIES: u32 = 1 << 16;

/// The protocol of the word, apart from the kernel: what the model checker runs.
#[derive(Debug)]
pub struct Bell<'a, W>(&'a W);

/// A sleeper's proof that it announced itself.
#[derive(Debug)]
#[must_use = "a sleeper that does not leave makes every ring call the kernel"]
pub struct Announced {
    era: u64,
}

impl<'a, W: Word> Bell<'a, W> {
    /// Views a word as a doorbell. Zero is a valid start.
    pub fn new(word: &'a W) -> Self {
        Self(word)
    }

    /// How often it rang, modulo 2^32. All that the ringer wrote before is then visible.
    #[inline]
    pub fn sequence(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }

    /// Rings; whether someone may sleep and must be woken.
    #[inline]
    pub fn ring(&self) -> bool {
        self.0.fetch_add(SEQUENCE_ONE) & COUNT_MASK != 0
    }

    /// Announces a sleeper, unless the bell rang since `observed`.
    pub fn announce(&self, observed: u32) -> Option<Announced> {
        let old = self.0.fetch_add(1);
        assert!(old & COUNT_MASK < COUNT_MASK, "more sleepers on one doorbell than it can count");
        let announced = Announced { era: old & ERA_MASK };
        if (old >> 32) as u32 == observed {
            return Some(announced);
        }
        self.leave(announced);
        None
    }

    /// Takes a sleeper's announcement back.
    pub fn leave(&self, announced: Announced) {
        let mut current = self.0.load(Ordering::Relaxed);
        for _ in 0..LEAVE_TRIES {
            if current & ERA_MASK != announced.era || current & COUNT_MASK == 0 {
                return;
            }
            match self.0.compare_exchange(current, current - 1) {
                Ok(_) => return,
                Err(found) => current = found,
            }
        }
    }

    /// Starts a new era without sleepers, and rings. All sleepers must then be woken: those that live
    /// announce themselves anew.
    pub fn forget_sleepers(&self) {
        let mut current = self.0.load(Ordering::Relaxed);
        for _ in 0..LEAVE_TRIES {
            let era = current.wrapping_add(ERA_ONE) & ERA_MASK;
            let sequence = (current & !(SEQUENCE_ONE - 1)).wrapping_add(SEQUENCE_ONE);
            match self.0.compare_exchange(current, sequence | era) {
                Ok(_) => return,
                Err(found) => current = found,
            }
        }
        // Others ring without pause; the count stays too high, which is safe.
    }
}

/// Doorbells that one party can wait for at a time.
pub const BELLS_MAX: usize = 2;

/// A doorbell in shared memory, on a cache line of its own.
#[derive(Debug, Clone)]
pub struct Doorbell {
    line: SharedLines,
}

/// Bytes that a doorbell takes in an object: two lines, because processors fetch lines in pairs.
pub const DOORBELL_BYTES: u64 = 128;

impl Doorbell {
    /// The doorbell at byte `offset` of an object. Zeroed memory is a doorbell that never rang.
    ///
    /// # Panics
    /// If `offset` is not a multiple of 64 or leaves the object.
    pub fn new(object: &Object, offset: u64) -> Self {
        Self { line: SharedLines::new(object, offset, 1) }
    }

    /// How often it rang, modulo 2^32. Read it *before* looking for work, and sleep on what was read.
    #[inline]
    pub fn sequence(&self) -> u32 {
        self.bell().sequence()
    }

    /// Rings, and wakes whoever sleeps; whether a wake was needed. Without sleepers it costs one atomic
    /// addition, with one a system call of about 2 microseconds.
    #[inline]
    pub fn ring(&self) -> bool {
        let wake = self.bell().ring();
        if wake {
            futex::wake_all(self.word());
        }
        wake
    }

    /// Recovers from sleepers that were killed: forgets all, and wakes those that live.
    pub fn forget_sleepers(&self) {
        self.bell().forget_sleepers();
        futex::wake_all(self.word());
    }

    /// How many sleepers are announced, dead ones included. For reports.
    pub fn sleepers(&self) -> u16 {
        (self.word().load(Ordering::Relaxed) & COUNT_MASK) as u16
    }

    /// Sleeps in the kernel until one of the bells rings after what was observed of it, for at most `timeout`. May
    /// return early. Whether the kernel was asked at all: false means that one had rung already.
    pub(crate) fn sleep(bells: &[&Doorbell], observed: &[u32; BELLS_MAX], timeout: Duration) -> bool {
        assert!((1..=BELLS_MAX).contains(&bells.len()), "{} bells at a time", bells.len());
        let mut announced = [const { None }; BELLS_MAX];
        let mut rang = false;
        for (place, (bell, observed)) in announced.iter_mut().zip(bells.iter().zip(observed)) {
            *place = bell.bell().announce(*observed);
            rang |= place.is_none();
        }
        if !rang {
            futex::wait(bells, observed, timeout);
        }
        for (place, bell) in announced.into_iter().zip(bells) {
            if let Some(announced) = place {
                bell.bell().leave(announced);
            }
        }
        !rang
    }

    /// The word, whose line a processor can monitor.
    pub(crate) fn word(&self) -> &AtomicU64 {
        &self.line.line(0)[0]
    }

    fn bell(&self) -> Bell<'_, AtomicU64> {
        Bell::new(self.word())
    }
}

/// The futex calls, on the upper half of a doorbell's word, between processes.
mod futex {
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::{BELLS_MAX, Doorbell};

    /// Longest single sleep. A sleeper whose ringer died unseen looks again after this long.
    const SLEEP_MAX: Duration = Duration::from_secs(1);

    fn upper_half(word: &AtomicU64) -> *mut u32 {
        // SAFETY: the second half of an eight-byte word; memory order is little-endian (asserted in lib.rs).
        unsafe { word.as_ptr().cast::<u32>().add(1) }
    }

    /// The longest sleep where the kernel cannot wait for several words (before Linux 5.16): then it waits for the
    /// first, and looks at the others that often.
    const LOOK: Duration = Duration::from_micros(100);

    /// `struct futex_waitv` of linux/futex.h.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct WaitV {
        value: u64,
        address: u64,
        flags: u32,
        reserved: u32,
    }

    /// Size of the word: 32 bits; between processes, as the private flag is left out.
    const FUTEX_32: u32 = 2;

    pub(super) fn wait(bells: &[&Doorbell], expected: &[u32; BELLS_MAX], timeout: Duration) {
        let timeout = timeout.min(SLEEP_MAX);
        let several_fail = bells.len() > 1 && !wait_several(bells, expected, timeout);
        if bells.len() == 1 || several_fail {
            wait_one(bells[0].word(), expected[0], if several_fail { timeout.min(LOOK) } else { timeout });
        }
    }

    fn wait_one(word: &AtomicU64, expected: u32, timeout: Duration) {
        let relative =
            libc::timespec { tv_sec: timeout.as_secs().cast_signed(), tv_nsec: i64::from(timeout.subsec_nanos()) };
        // Every outcome (woken, value changed, timed out, interrupted) means the same: look again.
        // SAFETY: the address is a live, aligned 32-bit word; the time is a live value.
        unsafe { libc::syscall(libc::SYS_futex, upper_half(word), libc::FUTEX_WAIT, expected, &raw const relative) };
    }

    /// False where the kernel has no such call.
    fn wait_several(bells: &[&Doorbell], expected: &[u32; BELLS_MAX], timeout: Duration) -> bool {
        let mut words = [WaitV { value: 0, address: 0, flags: FUTEX_32, reserved: 0 }; BELLS_MAX];
        for (word, (bell, expected)) in words.iter_mut().zip(bells.iter().zip(expected)) {
            word.value = u64::from(*expected);
            word.address = upper_half(bell.word()) as u64;
        }
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a live value that the call fills in.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        let nanos = now.tv_nsec + i64::from(timeout.subsec_nanos());
        let until = libc::timespec {
            tv_sec: now.tv_sec + timeout.as_secs().cast_signed() + nanos / 1_000_000_000,
            tv_nsec: nanos % 1_000_000_000,
        };
        // SAFETY: as many live entries as are said, each of a live, aligned 32-bit word; the time is a live value.
        let result = unsafe {
            let flags: libc::c_uint = 0;
            let (count, clock) = (bells.len() as libc::c_uint, libc::CLOCK_MONOTONIC);
            libc::syscall(libc::SYS_futex_waitv, words.as_ptr(), count, flags, &raw const until, clock)
        };
        // As above, but for a kernel that does not know the call.
        result >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
    }

    pub(super) fn wake_all(word: &AtomicU64) {
        // SAFETY: the address is a live, aligned 32-bit word.
        unsafe { libc::syscall(libc::SYS_futex, upper_half(word), libc::FUTEX_WAKE, i32::MAX) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_reports_sleepers_and_bumps_the_sequence() {
        let word = AtomicU64::new(0);
        let bell = Bell::new(&word);
        assert!(!bell.ring());
        assert_eq!(bell.sequence(), 1);
        let announced = bell.announce(1).expect("nothing rang since");
        assert!(bell.ring());
        bell.leave(announced);
        assert!(!bell.ring());
        assert!(bell.announce(1).is_none(), "it rang since");
        assert!(!bell.ring(), "a refused announcement is taken back");
    }

    #[test]
    fn the_sequence_wraps_without_touching_era_or_sleepers() {
        let word = AtomicU64::new(u64::from(u32::MAX) << 32 | 7 << 16);
        let bell = Bell::new(&word);
        let announced = bell.announce(u32::MAX).unwrap();
        assert!(bell.ring());
        assert_eq!(word.load(Ordering::Relaxed), 7 << 16 | 1);
        bell.leave(announced);
        assert_eq!(word.load(Ordering::Relaxed), 7 << 16);
    }

    #[test]
    fn a_sleeper_of_an_older_era_does_not_count_down() {
        let word = AtomicU64::new(0xFFFF << 16);
        let bell = Bell::new(&word);
        let dead = bell.announce(0).unwrap();
        let old = bell.announce(0).unwrap();
        bell.forget_sleepers();
        assert!(!bell.ring(), "the dead sleeper is forgotten, also where the era wraps");
        let new = bell.announce(2).unwrap();
        bell.leave(old);
        assert!(bell.ring(), "the new sleeper still counts");
        bell.leave(new);
        assert!(!bell.ring());
        drop(dead);
    }
}
