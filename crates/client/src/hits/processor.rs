//! What is asked of the processor: its ticks, what is in its caches, and the time of one load.

use std::arch::x86_64::{_mm_clflush, _mm_lfence, _mm_mfence, _rdtsc};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::shared::clock_ns;

/// Memory whose lines nobody else uses.
const REGION_BYTES: usize = 16 << 20;
/// A huge page: the same translation for many lines.
const HUGE: usize = 2 << 20;
/// From one line that is used to the next, so that none brings another one in.
const STRIDE: usize = 256;
const LINES: usize = REGION_BYTES / STRIDE;
/// An order without a pattern: odd, so that each line has its turn.
const ORDER: usize = 0x9e37_79b1;
/// How long ticks are counted against the clock.
const TICKS_NS: u64 = 20_000_000;
/// A load that takes as long as so many was interrupted.
const INTERRUPTED_NS: f64 = 2_000.0;
/// A load that hits the first cache, by which it is known what the measurement itself takes.
const FIRST_CACHE_NS: f64 = 1.5;

/// The processor's memory, and lines to measure it by.
#[derive(Debug)]
pub struct Processor {
    ns_per_tick: f64,
    /// Ticks of a measurement of nothing.
    base_ticks: f64,
    region: usize,
    next: AtomicUsize,
}

/// Ticks of the processor's clock.
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { _rdtsc() }
}

/// Takes a line out of all caches.
///
/// # Safety
/// Its page is mapped.
pub unsafe fn flush(line: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm_clflush(line as *const u8);
        _mm_mfence();
    }
}

/// Ticks of one load that waits for nothing before it.
///
/// # Safety
/// The address is mapped for loads.
unsafe fn load_ticks(address: usize) -> u64 {
    // SAFETY: the caller's promise; the fences keep the load between the two looks at the clock.
    unsafe {
        _mm_lfence();
        let began = _rdtsc();
        _mm_lfence();
        (address as *const u8).read_volatile();
        _mm_lfence();
        let ended = _rdtsc();
        _mm_lfence();
        ended.wrapping_sub(began)
    }
}

impl Processor {
    /// Measures the clock, and makes the lines.
    ///
    /// # Errors
    /// What the system refused.
    pub fn new() -> std::io::Result<Processor> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: no address is asked for; the memory is never given back.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), REGION_BYTES + HUGE, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let region = (start as usize).next_multiple_of(HUGE);
        // SAFETY: the region was mapped just now, with room to be aligned. Without huge pages it costs accuracy alone.
        unsafe {
            libc::madvise(region as *mut libc::c_void, REGION_BYTES, libc::MADV_HUGEPAGE);
            (region as *mut u8).write_bytes(1, REGION_BYTES);
        }
        let (began_ns, began) = (clock_ns(), ticks());
        let mut ended_ns = began_ns;
        while ended_ns < began_ns + TICKS_NS {
            ended_ns = clock_ns();
        }
        let ns_per_tick = (ended_ns - began_ns) as f64 / ticks().wrapping_sub(began).max(1) as f64;
        // SAFETY: the line lies in the region.
        let mut loads: Vec<u64> = (0..1_001).map(|_| unsafe { load_ticks(region) }).collect();
        loads.sort_unstable();
        let base_ticks = loads[loads.len() / 2] as f64 - FIRST_CACHE_NS / ns_per_tick;
        Ok(Processor { ns_per_tick, base_ticks, region, next: AtomicUsize::new(0) })
    }

    /// Ticks as nanoseconds.
    pub fn ns(&self, ticks: u64) -> f64 {
        ticks as f64 * self.ns_per_tick
    }

    /// The time of one load; nothing if it was interrupted.
    ///
    /// # Safety
    /// The address is mapped for loads.
    pub unsafe fn load_ns(&self, address: usize) -> Option<f64> {
        // SAFETY: the caller's promise.
        let ticks = unsafe { load_ticks(address) };
        let ns = ((ticks as f64 - self.base_ticks) * self.ns_per_tick).max(0.0);
        (ns < INTERRUPTED_NS).then_some(ns)
    }

    /// A line of the region, loaded. Each has its turn.
    pub fn next_line(&self) -> usize {
        let line = self.line(self.next.fetch_add(1, Ordering::Relaxed));
        // SAFETY: the line lies in the region.
        unsafe { (line as *const u8).read_volatile() };
        line
    }

    /// The time of a load of such a line, with its address translated before.
    pub fn own_load_ns(&self, line: usize) -> Option<f64> {
        // SAFETY: both lie in the region, and in the same page.
        unsafe {
            ((line ^ (STRIDE / 2)) as *const u8).read_volatile();
            self.load_ns(line)
        }
    }

    /// The time of a load that no cache has.
    pub fn memory_ns(&self) -> Option<f64> {
        let line = self.next_line();
        // SAFETY: the line lies in the region.
        unsafe { flush(line) };
        self.own_load_ns(line)
    }

    fn line(&self, index: usize) -> usize {
        self.region + index.wrapping_mul(ORDER) % LINES * STRIDE
    }

    /// Links the lines of the region in an order without a pattern, and takes them out of the caches. The first, and
    /// how many there are.
    pub fn chain(&self) -> (*const usize, usize) {
        for index in 0..LINES {
            // SAFETY: the line lies in the region, which nobody else uses.
            unsafe { (self.line(index) as *mut usize).write(self.line(index + 1)) };
        }
        // SAFETY: as above.
        (0..LINES).for_each(|index| unsafe { flush(self.line(index)) });
        (self.line(0) as *const usize, LINES)
    }
}

/// Follows a chain for so many steps, 1 at least, by one load each: [`CHASE_LOAD_BYTES`] long, at the function's
/// first address.
#[unsafe(naked)]
pub extern "C" fn chase(from: *const usize, steps: usize) -> *const usize {
    std::arch::naked_asm!("2:", "mov rdi, [rdi]", "dec rsi", "jnz 2b", "mov rax, rdi", "ret")
}

/// Bytes of the load of [`chase`].
pub const CHASE_LOAD_BYTES: usize = 3;

const _: () = assert!(LINES.is_power_of_two(), "an odd number has each line's turn come");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_has_its_turn_and_a_chain_goes_through_all() {
        let processor = Processor::new().unwrap();
        let (first, steps) = processor.chain();
        let mut seen = std::collections::HashSet::new();
        let mut at = first;
        for _ in 0..steps {
            assert!(seen.insert(at as usize));
            // SAFETY: a link of the chain.
            at = unsafe { *at } as *const usize;
        }
        assert_eq!((at, seen.len()), (first, LINES));
        assert_eq!(chase(first, steps), first);
        assert_ne!(chase(first, 1), first);
    }

    #[test]
    fn what_no_cache_has_takes_longer_than_what_one_has() {
        let processor = Processor::new().unwrap();
        let median = |mut times: Vec<f64>| {
            times.sort_unstable_by(f64::total_cmp);
            times[times.len() / 2]
        };
        let memory = median((0..999).filter_map(|_| processor.memory_ns()).collect());
        let line = processor.next_line();
        let cached = median((0..999).filter_map(|_| processor.own_load_ns(line)).collect());
        assert!(memory > 3.0 * cached && memory > 20.0, "{memory} and {cached}");
    }
}
