//! What the device takes back is unmapped: by the thread that faults, while it waits anyway, or by a thread of its own.
//!
//! Order is everything: first a page that is just being mapped is waited for, then it is unmapped, then the device
//! hears of it, and looks whether it was stored to. To look first would lose the stores in between.
//!
//! Whoever faulted may be anywhere in the program, the allocator included: nothing here allocates once it runs.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use osier_device::window::message::{LANES, LANES_USED_AT, ToDevice, ToMapper};
use osier_device::window::{Report, ZAP_PAGES_MAX};
use osier_pmr::{Consumer, SharedLines, WaitPolicy, Waiter};

use crate::fault::{MORE_MAX, pause};
use crate::place::Place;
use crate::shared::{Shared, clock_ns};
use crate::uffd::PAGE;

/// Zaps that are done together by the thread of its own, and by one that faulted.
const ZAPS_MAX: usize = 32;
const ZAPS_IN_FAULT: usize = 4;
/// Ends of commands that wait for the thread of its own.
const DONES_MAX: usize = 64;
/// How long the thread sleeps at most.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A zap as it came.
#[derive(Clone, Copy)]
struct Zap {
    count: usize,
    pages: [u64; ZAP_PAGES_MAX],
    is_sample: bool,
}

/// The end of a command as it came.
type Done = (u32, Result<Report, osier_device::window::message::Refusal>);

/// What the device said and nobody has done yet.
pub struct Zapper {
    entries: Consumer<SharedLines>,
    zaps: Vec<Zap>,
    dones: Vec<Done>,
    parts: Vec<libc::iovec>,
    own: Option<OwnedFd>,
}

// SAFETY: the parts point into the window, which belongs to no thread, and are empty between two zaps.
unsafe impl Send for Zapper {}

impl Zapper {
    pub fn new(entries: Consumer<SharedLines>) -> Zapper {
        Zapper {
            entries,
            zaps: Vec::with_capacity(ZAPS_MAX),
            dones: Vec::with_capacity(DONES_MAX),
            parts: Vec::with_capacity(ZAPS_MAX * ZAP_PAGES_MAX),
            own: own_pidfd(),
        }
    }

    fn has_work(&self) -> bool {
        self.entries.has_entry() || !self.zaps.is_empty() || !self.dones.is_empty()
    }

    /// Takes what the device said, as far as there is room.
    fn gather(&mut self, shared: &Shared, zaps_max: usize) {
        while self.zaps.len() < zaps_max && self.dones.len() < DONES_MAX {
            let Some(words) = self.entries.pop() else { return };
            match ToMapper::decode(&words) {
                Some(ToMapper::Zap { count, pages, is_sample }) => {
                    self.zaps.push(Zap { count, pages, is_sample });
                }
                Some(ToMapper::Done { tag, result }) => self.dones.push((tag, result)),
                // A device of the same version says nothing else.
                None => shared.say("the device says something that is no message; it is passed over"),
            }
        }
    }

    fn zap(&mut self, shared: &Shared) {
        if self.zaps.is_empty() {
            return;
        }
        for zap in &self.zaps {
            await_mapping(shared, &zap.pages[..zap.count]);
        }
        let began_ns = clock_ns();
        self.unmap(shared);
        self.count_samples(shared, began_ns);
        let mut to_device = loop {
            match shared.to_device.try_lock() {
                Ok(to_device) => break to_device,
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => std::hint::spin_loop(),
            }
        };
        let Ok(words) = ToDevice::Acknowledge.encode() else { unreachable!("an acknowledgement has an entry") };
        for _ in self.zaps.drain(..) {
            let mut spins = 0;
            while to_device.push(words).is_err() && shared.is_live() {
                pause(&mut spins);
            }
        }
        drop(to_device);
        shared.device_bell.ring();
    }

    /// Sums up the part of an unmapping that was for samples.
    fn count_samples(&self, shared: &Shared, began_ns: u64) {
        let pages = |zaps: &mut dyn Iterator<Item = &Zap>| zaps.map(|zap| zap.count as u64).sum::<u64>();
        let samples = pages(&mut self.zaps.iter().filter(|zap| zap.is_sample));
        if samples > 0 {
            let all = pages(&mut self.zaps.iter());
            shared.sampled(clock_ns().saturating_sub(began_ns) * samples / all);
        }
    }

    /// Unmaps pages: in one call, with one flush of the other processors' page tables, where the kernel allows it.
    fn unmap(&mut self, shared: &Shared) {
        let pages = self.zaps.iter().flat_map(|zap| &zap.pages[..zap.count]);
        for page in pages {
            let address = shared.address_of(*page);
            match self.parts.last_mut() {
                Some(last) if last.iov_base as usize + last.iov_len == address => last.iov_len += PAGE,
                _ => self.parts.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: PAGE }),
            }
        }
        let mut done = 0;
        if let Some(own) = &self.own
            && self.parts.len() > 1
        {
            let (parts, count) = (self.parts.as_ptr(), self.parts.len());
            // SAFETY: the parts lie in the window, whose pages the device has taken back; the bytes stay in the shared
            // memory.
            let advised = unsafe {
                libc::syscall(libc::SYS_process_madvise, own.as_raw_fd(), parts, count, libc::MADV_DONTNEED, 0)
            };
            done = usize::try_from(advised).unwrap_or(0);
        }
        for part in self.parts.drain(..) {
            if done >= part.iov_len {
                done -= part.iov_len;
                continue;
            }
            done = 0;
            // SAFETY: as above.
            let refused = unsafe { libc::madvise(part.iov_base, part.iov_len, libc::MADV_DONTNEED) } != 0;
            if refused && shared.is_live() {
                // The device would believe that nobody stores to the page any more.
                shared.say("a page cannot be unmapped; the program ends before a store is lost");
                std::process::abort();
            }
        }
    }
}

/// Unmaps until the window closes or the device dies.
pub fn run(shared: &Shared) {
    let (mut waiter, _) = Waiter::with_fallback(WaitPolicy::Futex);
    let mut place = Place::new();
    while shared.is_live() {
        place.avoid_device(shared);
        let look = || (!shared.is_live() || lock(shared).has_work()).then_some(());
        waiter.wait_for(&shared.bell, SLEEP_MAX, look);
        let mut zapper = lock(shared);
        while shared.is_live() && zapper.has_work() {
            zapper.gather(shared, ZAPS_MAX);
            zapper.zap(shared);
            end_commands(shared, &mut zapper);
        }
    }
}

fn lock(shared: &Shared) -> MutexGuard<'_, Zapper> {
    shared.zapper.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_commands(shared: &Shared, zapper: &mut Zapper) {
    if zapper.dones.is_empty() {
        return;
    }
    let mut commands = shared.commands.lock().unwrap_or_else(PoisonError::into_inner);
    for (tag, result) in zapper.dones.drain(..) {
        if let Some(place) = commands.get_mut(&tag) {
            *place = Some(result);
        }
    }
    shared.ended.notify_all();
}

/// A thread that faulted unmaps a little, if something is to be unmapped and nobody else is at it. A page that it is
/// about to map itself is not unmapped: it would wait for itself.
pub fn help(shared: &Shared, own: Option<u64>) {
    let Ok(mut zapper) = shared.zapper.try_lock() else { return };
    if !zapper.has_work() {
        return;
    }
    zapper.gather(shared, ZAPS_IN_FAULT);
    if !own.is_some_and(|own| zapper.zaps.iter().any(|zap| is_any_of(&zap.pages[..zap.count], own))) {
        zapper.zap(shared);
    }
    if !zapper.dones.is_empty() {
        drop(zapper);
        shared.bell.ring();
    }
}

/// Whether one of these pages may be mapped with one that faulted.
fn is_any_of(pages: &[u64], faulted: u64) -> bool {
    pages.iter().any(|page| (0..=u64::from(MORE_MAX)).contains(&page.wrapping_sub(faulted)))
}

/// Waits until no thread is about to map one of these pages. The device has answered such a thread before it asked for
/// the page back, and the thread may not have got to it.
fn await_mapping(shared: &Shared, pages: &[u64]) {
    let used = (shared.words.word64(LANES_USED_AT).load(Ordering::Acquire) as usize).min(LANES);
    for lane in 0..used {
        let bringing = shared.bringing[lane].load(Ordering::Acquire);
        if bringing == 0 || !is_any_of(pages, bringing - 1) {
            continue;
        }
        let mut spins = 0;
        while shared.is_live() && shared.is_answered(lane) && shared.bringing[lane].load(Ordering::Acquire) == bringing
        {
            pause(&mut spins);
        }
    }
}

fn own_pidfd() -> Option<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    // SAFETY: the descriptor is new and owned by nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
