//! The one clock: CLOCK_MONOTONIC, the same in every process of the machine; and the processor time that this one uses.

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
