//! What the threads and signal handlers of one window share.
//!
//! Everything that a signal handler does is here or below: no lock, no allocation, system calls that may be made there.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};

use osier_device::window::message::{Ask, LANES, LANES_USED_AT, Refusal, Reply, SAMPLING_AT};
use osier_device::window::{Grant, Report};
use osier_pmr::words::Lines;
use osier_pmr::{Doorbell, Object, Producer, SharedLines};

use crate::evict::Zapper;
use crate::fault::MORE_MAX;
use crate::histogram::Timing;
use crate::uffd::{PAGE, Uffd};
use crate::window::FaultMode;

/// The device serves.
pub const LIVE: u32 = 0;
/// The device has died, and the window is inaccessible.
pub const DEAD: u32 = 1;
/// The program closes the window.
pub const CLOSING: u32 = 2;

/// Most parts of a window that have a descriptor of their own.
pub const SHARDS_MAX: usize = 16;

/// What a thread that resolves faults does: resolves, waits for a fault, is to stop once none is under way, has
/// stopped.
pub const AWAKE: u32 = 0;
pub const ASLEEP: u32 = 1;
pub const FREEZING: u32 = 2;
pub const FROZEN: u32 = 3;

/// See the module.
pub struct Shared {
    pub base: usize,
    pub bytes: usize,
    /// The page of the window at `base`.
    pub first: u64,
    pub device: String,
    pub mode: FaultMode,
    /// The process that opened the window: a forked child has the memory of this, and not the window.
    pub owner_pid: i32,
    pub uffd: Uffd,
    /// The memory that is mapped.
    pub memory: OwnedFd,
    /// Of the threads that resolve faults, one for each part.
    pub gates: [AtomicU32; SHARDS_MAX],
    pub lanes: SharedLines,
    /// A bit for each lane that nobody uses.
    pub free_lanes: AtomicU64,
    /// By lane: one more than the page that is being brought in, until it and those that come with it are mapped.
    pub bringing: [AtomicU64; LANES],
    /// By lane: the number of its latest fault.
    pub numbers: [AtomicU64; LANES],
    /// A bit for each page that this program may have mapped.
    pub touched: Box<[AtomicU64]>,
    pub words: Object,
    pub device_bell: Doorbell,
    pub bell: Doorbell,
    pub to_device: Mutex<Producer<SharedLines>>,
    pub zapper: Mutex<Zapper>,
    pub state: AtomicU32,
    /// Becomes readable when the window closes.
    pub stop: OwnedFd,
    pub commands: Mutex<HashMap<u32, Option<Result<Report, Refusal>>>>,
    pub ended: Condvar,
    pub timing: Timing,
    /// What a load that hits the device's cache is to take; 0 for what this machine's memory takes.
    pub hit_ns: AtomicU64,
}

/// Nanoseconds of the monotonic clock, the same in all processes.
pub fn clock_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Shared {
    /// Whether nobody may touch the window, or soon.
    pub fn is_frozen(&self) -> bool {
        self.gates.iter().any(|gate| [FREEZING, FROZEN].contains(&gate.load(Ordering::Acquire)))
    }

    pub fn is_live(&self) -> bool {
        self.state.load(Ordering::Acquire) == LIVE
    }

    /// Whether this process opened the window, and was not forked from the one that did.
    pub fn is_owner(&self) -> bool {
        // SAFETY: a plain call.
        unsafe { libc::getpid() == self.owner_pid }
    }

    /// The page at an address of the window.
    pub fn page_at(&self, address: usize) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        (offset < self.bytes).then_some(self.first + (offset / PAGE) as u64)
    }

    /// How many of the pages that follow one may be mapped with it.
    pub fn more_max(&self, page: u64) -> u8 {
        MORE_MAX.min(u8::try_from(self.end().saturating_sub(page + 1)).unwrap_or(u8::MAX))
    }

    /// A page is about to be mapped, and maybe some that follow it.
    pub fn note_touched(&self, page: u64) {
        let end = (page + 1 + u64::from(MORE_MAX)).min(self.end());
        for page in page - self.first..end - self.first {
            let (word, bit) = (&self.touched[page as usize / 64], 1 << (page % 64));
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Whether this program may have mapped a page.
    pub fn was_touched(&self, page: u64) -> bool {
        let page = page - self.first;
        self.touched[page as usize / 64].load(Ordering::Relaxed) >> (page % 64) & 1 != 0
    }

    pub fn address_of(&self, page: u64) -> usize {
        self.base + (page - self.first) as usize * PAGE
    }

    /// One past the last page that is mapped here.
    fn end(&self) -> u64 {
        self.first + (self.bytes / PAGE) as u64
    }

    /// Takes a lane, if one is free.
    pub fn take_lane(&self) -> Option<usize> {
        let mut free = self.free_lanes.load(Ordering::Relaxed);
        while free != 0 {
            let next = free & (free - 1);
            match self.free_lanes.compare_exchange_weak(free, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(free.trailing_zeros() as usize),
                Err(found) => free = found,
            }
        }
        None
    }

    pub fn give_lane(&self, lane: usize) {
        self.bringing[lane].store(0, Ordering::Release);
        self.free_lanes.fetch_or(1 << lane, Ordering::Release);
    }

    /// Tells the device of a fault.
    pub fn ask(&self, lane: usize, ask: &Ask) {
        self.bringing[lane].store(ask.page + 1, Ordering::Relaxed);
        let number = self.numbers[lane].load(Ordering::Relaxed) + 1;
        self.numbers[lane].store(number, Ordering::Relaxed);
        let used = self.words.word64(LANES_USED_AT);
        if used.load(Ordering::Relaxed) <= lane as u64 {
            used.fetch_max(lane as u64 + 1, Ordering::AcqRel);
        }
        self.lanes.store_rest(lane * 2, &ask.encode());
        self.lanes.line(lane * 2)[0].store(number, Ordering::Release);
        self.device_bell.ring();
    }

    /// Whether the device has answered the latest fault of a lane.
    pub fn is_answered(&self, lane: usize) -> bool {
        self.lanes.line(lane * 2 + 1)[0].load(Ordering::Acquire) == self.numbers[lane].load(Ordering::Relaxed)
    }

    /// The answer to the latest fault of a lane, once there is one.
    pub fn answer(&self, lane: usize) -> Option<Reply> {
        if !self.is_answered(lane) {
            return None;
        }
        let mut words = [0; 8];
        self.lanes.load_rest(lane * 2 + 1, &mut words);
        Reply::decode(&words)
    }

    /// Maps the page of an answered fault, and those that come with it; false means that the window is no longer there.
    pub fn map(&self, page: u64, reply: &Reply) -> bool {
        let (address, more) = (self.address_of(page), usize::from(reply.more.min(self.more_max(page))));
        if reply.grant == Grant::Armed {
            return self.map_armed(address, 1 + more);
        }
        // Those that follow first: whoever waits for the page finds them.
        (more == 0 || self.map_armed(address + PAGE, more)) && self.uffd.map(address, 1, false)
    }

    /// Maps pages so that a store leaves a trace. The system does it in one call where they have the same protection.
    fn map_armed(&self, address: usize, pages: usize) -> bool {
        let mut each = (address..address + pages * PAGE).step_by(PAGE);
        self.uffd.map(address, pages, true) || (pages > 1 && each.all(|address| self.uffd.map(address, 1, true)))
    }

    /// Counts a page that has just been mapped; `map_ns` is when that was begun.
    pub fn delivered(&self, asked_ns: u64, reply: &Reply, map_ns: u64) {
        let now = clock_ns();
        if reply.is_sample {
            // A hit that was seen: it is no fault of the model's.
            self.timing.sampling.record(now.saturating_sub(asked_ns));
            return self.sampled(now.saturating_sub(asked_ns));
        }
        self.timing.latency.record(now.saturating_sub(asked_ns));
        self.timing.lateness.record(now.saturating_sub(reply.due_ns));
        self.timing.asking.record(reply.taken_ns.saturating_sub(asked_ns));
        self.timing.device.record(reply.answered_ns.saturating_sub(reply.taken_ns));
        self.timing.mapping.record(now.saturating_sub(map_ns));
    }

    /// Sums up what samples cost.
    pub fn sampled(&self, ns: u64) {
        self.words.word64(SAMPLING_AT).fetch_add(ns, Ordering::Relaxed);
    }

    /// Says on standard error why the program is about to get SIGBUS.
    pub fn say(&self, what: &str) {
        for part in ["osier: ", what, " (device ", &self.device, ")\n"] {
            // SAFETY: the text lives; a write to standard error may be made in a signal handler.
            unsafe { libc::write(libc::STDERR_FILENO, part.as_ptr().cast(), part.len()) };
        }
    }

    /// Ends all waits of the window's own threads.
    pub fn stop(&self) {
        let one = 1_u64;
        // SAFETY: eight live bytes to an eventfd that this value owns.
        unsafe { libc::write(self.stop.as_raw_fd(), (&raw const one).cast(), 8) };
        self.bell.ring();
    }
}
