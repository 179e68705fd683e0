//! The one clock: CLOCK_MONOTONIC, the same in every process of the machine; and the processor time that this one uses
//! and waits for.

use osier_domain::Nanos;

/// Now.
pub fn now() -> Nanos {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// CPU time that this process has used, in nanoseconds.
pub fn cpu() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Time that this process's first thread, which is the domain, was ready to run and had no processor, in nanoseconds:
/// the second word of `/proc/self/schedstat`. Zero where the kernel does not count it.
pub fn processor_wait() -> u64 {
    let text = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
