//! UMONITOR and UMWAIT: the processor watches a cache line in a light sleep, from user mode.
//!
//! Intel Software Developer's Manual, volume 2, "UMONITOR" and "UMWAIT": present where CPUID leaf 7,
//! sub-leaf 0, ECX bit 5 (WAITPKG) is set. WIO (arXiv 2604.02442, section 4.3) waits for completion
//! entries this way.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Longest slice. The system may set a shorter one (IA32_UMWAIT_CONTROL; Linux: 100,000 cycles).
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "other processors have no UMWAIT"))]
const SLICE_MAX: Duration = Duration::from_micros(100);

/// A processor that can watch a line, and the rate of the clock that its limit is told in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tsc {
    ticks_per_us: u64,
}

/// Detects WAITPKG, at run time.
#[cfg(target_arch = "x86_64")]
pub(crate) fn detect() -> Option<Tsc> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const LEAF: u32 = 7;
    const WAITPKG: u32 = 1 << 5;
    let present = __cpuid(0).eax >= LEAF && __cpuid_count(LEAF, 0).ecx & WAITPKG != 0;
    present.then(|| Tsc { ticks_per_us: x86::ticks_per_us() })
}

/// Other processors have nothing of the kind.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn detect() -> Option<Tsc> {
    None
}

impl Tsc {
    /// Begins to watch the line of a word. A store to it after this ends the next [`Tsc::watch`].
    pub(crate) fn arm(self, word: &AtomicU64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a value of this type exists only where the processor has the instruction.
        unsafe {
            x86::umonitor(word);
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no processor but x86-64 makes a Tsc; asked to watch {word:?}");
    }

    /// Sleeps until the armed line is stored to, for at most `limit` and one slice. May return early.
    pub(crate) fn watch(self, limit: Duration) {
        #[cfg(target_arch = "x86_64")]
        {
            let us = limit.min(SLICE_MAX).as_micros() as u64;
            // SAFETY: a value of this type exists only where the processor has the instruction.
            unsafe { x86::umwait(us * self.ticks_per_us) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        unreachable!("no processor but x86-64 makes a Tsc; asked to wait {limit:?} at {}", self.ticks_per_us);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::_rdtsc;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    /// State C0.1: lighter than C0.2 and quicker to leave (control register bit 0).
    const STATE_C01: u32 = 1;
    /// How long the clock's rate is measured. An error of a percent only shifts the length of a slice.
    const CALIBRATION: Duration = Duration::from_micros(200);

    pub(super) fn ticks_per_us() -> u64 {
        let start = Instant::now();
        // SAFETY: every x86-64 processor has a time-stamp counter, and Linux lets user mode read it.
        let first = unsafe { _rdtsc() };
        while start.elapsed() < CALIBRATION {
            std::hint::spin_loop();
        }
        // SAFETY: as above.
        let ticks = unsafe { _rdtsc() }.wrapping_sub(first);
        (ticks / (start.elapsed().as_micros() as u64).max(1)).max(1)
    }

    /// # Safety
    /// The processor has WAITPKG.
    pub(super) unsafe fn umonitor(word: &AtomicU64) {
        // SAFETY: the caller's promise; the instruction reads no memory, it arms a monitor on the line.
        unsafe { asm!("umonitor {0}", in(reg) word.as_ptr(), options(nostack, preserves_flags)) };
    }

    /// # Safety
    /// The processor has WAITPKG.
    pub(super) unsafe fn umwait(ticks: u64) {
        // SAFETY: every x86-64 processor has a time-stamp counter, and Linux lets user mode read it.
        let until = unsafe { _rdtsc() }.wrapping_add(ticks);
        // SAFETY: the caller's promise; the instruction changes flags only.
        unsafe {
            asm!(
                "umwait {state:e}",
                state = in(reg) STATE_C01,
                in("eax") until as u32,
                in("edx") (until >> 32) as u32,
                options(nostack),
            );
        };
    }
}
