//! The one clock: CLOCK_MONOTONIC, the same in every process of the machine; and what this process uses.

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

/// What the kernel says of this process's memory. The file is kept open, and it is the short one: to open
/// `/proc/self/status` and to have its page of text written holds a loop up for as long as a migration may take.
pub struct Memory {
    statm: Option<File>,
}

impl Memory {
    /// Of this process.
    pub fn of_this_process() -> Memory {
        Memory { statm: File::open("/proc/self/statm").ok() }
    }

    /// Anonymous memory that is resident, in bytes: what the process needs beside the shared region, the media's
    /// file and the program's own text. Zero where the kernel does not say.
    pub fn resident_bytes(&self) -> u64 {
        let mut text = [0u8; 128];
        let length = self.statm.as_ref().and_then(|statm| statm.read_at(&mut text, 0).ok()).unwrap_or(0);
        let pages = std::str::from_utf8(&text[..length]).ok().and_then(anonymous_pages);
        pages.unwrap_or(0) * rustix::param::page_size() as u64
    }
}

/// From the text of `/proc/self/statm` (proc(5)): all pages, those that are resident, those of them that a file or
/// shared memory backs.
fn anonymous_pages(statm: &str) -> Option<u64> {
    let mut words = statm.split_whitespace().skip(1);
    let mut pages = || words.next()?.parse::<u64>().ok();
    let (resident, backed) = (pages()?, pages()?);
    resident.checked_sub(backed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_pages_are_read_and_other_text_is_not() {
        assert_eq!(anonymous_pages("9000 700 300 5 0 800 0\n"), Some(400));
        for text in ["", "9000", "9000 700", "9000 x 300", "9000 300 700 5 0 800 0"] {
            assert_eq!(anonymous_pages(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_allocated_and_touched_is_resident() {
        const BYTES: usize = 64 << 20;
        let memory = Memory::of_this_process();
        let before = memory.resident_bytes();
        let touched = std::hint::black_box(vec![1u8; BYTES]);
        let more = memory.resident_bytes() - before;
        // The kernel counts in batches of some hundred pages a processor.
        assert!(more.abs_diff(touched.len() as u64) < 8 << 20, "{more} bytes more");
    }
}
