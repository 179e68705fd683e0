//! The one clock: CLOCK_MONOTONIC, the same in every process of the machine; and the processor time that this one uses
//! and waits for.

use std::fs::File;
use std::os::unix::fs::FileExt;

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

/// What the kernel counts of this process's first thread, which is the domain. The file is kept open: to open it takes
/// longer than all the rest, and an actor that arrives waits meanwhile.
pub struct Schedule {
    schedstat: Option<File>,
}

impl Schedule {
    /// Of this process.
    pub fn of_this_process() -> Schedule {
        Schedule { schedstat: File::open("/proc/self/schedstat").ok() }
    }

    /// How long it ran so far, and how long it was ready to run and had no processor, in nanoseconds: the first words
    /// of `/proc/self/schedstat`. Zero where the kernel does not count them.
    pub fn nanoseconds(&self) -> [u64; 2] {
        let mut text = [0u8; 96];
        let length = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        let words = std::str::from_utf8(&text[..length]).unwrap_or_default();
        let mut words = words.split_whitespace().map(|word| word.parse().unwrap_or(0));
        [words.next().unwrap_or(0), words.next().unwrap_or(0)]
    }
}
