//! Copies between shared and private memory that stay defined when another process writes meanwhile.
//!
//! A plain `memcpy` over memory that someone else changes is a data race, which the compiler may assume
//! away. Here the bytes are moved by an instruction the compiler cannot see through (`rep movsb`, which
//! the processor does at the speed of its cache lines) or, on other machines, by relaxed atomic loads and
//! stores. The result may be a mixture of old and new bytes; it is never undefined behaviour.

/// Below this many bytes the start-up cost of `rep movsb` exceeds that of a loop of words.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const REP_BYTES_MIN: usize = 128;

/// Copies `bytes` bytes out of shared memory at `from` to private memory at `to`.
///
/// # Safety
/// `from` is valid for reads of `bytes` bytes for the duration of the call, and whoever else accesses them
/// does so by atomics or in another process; `to` is valid for writes, private, and does not overlap.
#[inline]
pub(crate) unsafe fn from_shared(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= REP_BYTES_MIN {
        // SAFETY: the caller's promise; source and destination do not overlap.
        unsafe { rep_movsb(from, to, bytes) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { words(from, to, bytes, Shared::Source) };
}

/// Copies `bytes` bytes of private memory at `from` to shared memory at `to`.
///
/// # Safety
/// As for [`from_shared`], with the roles of the two pointers exchanged.
#[inline]
pub(crate) unsafe fn to_shared(from: *const u8, to: *mut u8, bytes: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes >= REP_BYTES_MIN {
        // SAFETY: the caller's promise; source and destination do not overlap.
        unsafe { rep_movsb(from, to, bytes) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { words(from, to, bytes, Shared::Destination) };
}

/// Sets `bytes` bytes of shared memory at `to` to `value`.
///
/// # Safety
/// `to` is valid for writes of `bytes` bytes, and whoever else accesses them does so by atomics or in
/// another process.
pub(crate) unsafe fn fill_shared(to: *mut u8, bytes: usize, value: u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: the caller's promise; the direction flag is clear as the calling convention demands.
    unsafe {
        std::arch::asm!(
            "rep stosb",
            inout("rcx") bytes => _,
            inout("rdi") to => _,
            in("al") value,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    for at in 0..bytes {
        // SAFETY: in range by the caller's promise; bytes have no alignment.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(value, Ordering::Relaxed);
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
unsafe fn rep_movsb(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the callers' promise; the direction flag is clear as the calling convention demands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Which of the two pointers is shared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shared {
    Source,
    Destination,
}

/// Copies by words where the shared side is aligned, by bytes at the ends.
unsafe fn words(from: *const u8, to: *mut u8, bytes: usize, shared: Shared) {
    let shared_address = if shared == Shared::Source { from.addr() } else { to.addr() };
    let head = bytes.min(shared_address.wrapping_neg() % 8);
    let mut at = 0;
    while at < bytes {
        // SAFETY: `at` stays below `bytes`, and a word is moved only when eight bytes are left of an
        // aligned shared side; the private side is accessed without alignment.
        unsafe {
            if at >= head && bytes - at >= 8 {
                match shared {
                    Shared::Source => {
                        let word = AtomicU64::from_ptr(from.add(at).cast_mut().cast()).load(Ordering::Relaxed);
                        to.add(at).cast::<u64>().write_unaligned(word);
                    }
                    Shared::Destination => {
                        let word = from.add(at).cast::<u64>().read_unaligned();
                        AtomicU64::from_ptr(to.add(at).cast()).store(word, Ordering::Relaxed);
                    }
                }
                at += 8;
            } else {
                match shared {
                    Shared::Source => {
                        *to.add(at) = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
                    }
                    Shared::Destination => {
                        AtomicU8::from_ptr(to.add(at)).store(*from.add(at), Ordering::Relaxed);
                    }
                }
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every combination of small misalignments and lengths, around the borders of each strategy.
    #[test]
    fn copies_every_alignment_and_length() {
        let source: Vec<u8> = (0..1024u32).map(|i| (i * 7 + i / 256) as u8).collect();
        for bytes in (0..48).chain([127, 128, 129, 255, 600]) {
            for (from, to) in (0..9).flat_map(|from| (0..9).map(move |to| (from, to))) {
                for outward in [true, false] {
                    let mut out = vec![0xEE; 1024];
                    let copy = if outward { from_shared } else { to_shared };
                    // SAFETY: both vectors are longer than offset plus length, and distinct.
                    unsafe { copy(source.as_ptr().add(from), out.as_mut_ptr().add(to), bytes) };
                    assert_eq!(out[to..to + bytes], source[from..from + bytes], "{from} {to} {bytes}");
                    assert!(out[..to].iter().chain(&out[to + bytes..]).all(|b| *b == 0xEE));
                }
            }
        }
    }

    #[test]
    fn fills_exactly_the_range() {
        for bytes in [0, 1, 7, 64, 300] {
            let mut out = vec![1; 512];
            // SAFETY: the vector is longer than offset plus length.
            unsafe { fill_shared(out.as_mut_ptr().add(3), bytes, 9) };
            assert!(out[3..3 + bytes].iter().all(|b| *b == 9));
            assert!(out[..3].iter().chain(&out[3 + bytes..]).all(|b| *b == 1));
        }
    }
}
