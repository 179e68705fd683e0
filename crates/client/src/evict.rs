//! The thread that unmaps what the device takes back, and hears what became of commands.
//!
//! Order is everything: first a page that is just being mapped is waited for, then it is unmapped, then it is looked
//! whether it was stored to, then the device hears of it. To look first would lose the stores in between.

use std::time::Duration;

use osier_device::window::ZAP_PAGES_MAX;
use osier_device::window::message::{LANES, ToDevice, ToMapper};
use osier_pmr::{Consumer, SharedLines, WaitPolicy, Waiter};

use crate::fault::pause;
use crate::shared::Shared;
use crate::uffd::PAGE;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

/// Zaps that are done together.
const ZAPS_MAX: usize = 32;
/// How long the thread sleeps at most.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A zap as it came.
struct Zap {
    count: usize,
    pages: [u64; ZAP_PAGES_MAX],
    known: u64,
}

/// Unmaps until the window closes or the device dies.
pub fn run(shared: &Shared, mut entries: Consumer<SharedLines>) {
    let (mut waiter, _) = Waiter::with_fallback(WaitPolicy::Futex);
    let own = own_pidfd();
    let mut zaps = Vec::with_capacity(ZAPS_MAX);
    while shared.is_live() {
        waiter.wait_for(&shared.bell, SLEEP_MAX, || (entries.has_entry() || !shared.is_live()).then_some(()));
        while let Some(words) = entries.pop() {
            match ToMapper::decode(&words) {
                Some(ToMapper::Zap { count, pages, known }) => zaps.push(Zap { count, pages, known }),
                Some(ToMapper::Done { tag, result }) => {
                    let mut commands = shared.commands.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(place) = commands.get_mut(&tag) {
                        *place = Some(result);
                        shared.ended.notify_all();
                    }
                }
                // A device of the same version says nothing else.
                None => shared.say("the device says something that is no message; it is passed over"),
            }
            if zaps.len() == ZAPS_MAX {
                zap(shared, own.as_ref(), &mut zaps);
            }
        }
        zap(shared, own.as_ref(), &mut zaps);
    }
}

fn zap(shared: &Shared, own: Option<&OwnedFd>, zaps: &mut Vec<Zap>) {
    if zaps.is_empty() {
        return;
    }
    for zap in zaps.iter() {
        await_mapping(shared, &zap.pages[..zap.count]);
    }
    let pages: Vec<u64> = zaps.iter().flat_map(|zap| &zap.pages[..zap.count]).copied().collect();
    unmap(shared, own, &pages);
    let mut to_device = shared.to_device.lock().unwrap_or_else(PoisonError::into_inner);
    for zap in zaps.drain(..) {
        let mut dirty = zap.known;
        for (index, page) in zap.pages[..zap.count].iter().enumerate() {
            if dirty >> index & 1 == 0 {
                dirty |= u64::from(shared.uffd.was_written(shared.address_of(*page))) << index;
            }
        }
        let Some(words) = ToDevice::Acknowledge { dirty }.encode() else { unreachable!("an acknowledgement has one") };
        let mut spins = 0;
        while to_device.push(words).is_err() && shared.is_live() {
            pause(&mut spins);
        }
    }
    drop(to_device);
    shared.device_bell.ring();
}

/// Waits until no thread is about to map one of these pages. The device has answered such a thread before it asked for
/// the page back, and the thread may not have got to it.
fn await_mapping(shared: &Shared, pages: &[u64]) {
    let used = (shared.words.word64(0).load(Ordering::Acquire) as usize).min(LANES);
    for lane in 0..used {
        let bringing = shared.bringing[lane].load(Ordering::Acquire);
        if bringing == 0 || !pages.contains(&(bringing - 1)) {
            continue;
        }
        let mut spins = 0;
        while shared.is_live() && shared.is_answered(lane) && shared.bringing[lane].load(Ordering::Acquire) == bringing
        {
            pause(&mut spins);
        }
    }
}

/// Unmaps pages: in one call, with one flush of the other processors' page tables, where the kernel allows it.
fn unmap(shared: &Shared, own: Option<&OwnedFd>, pages: &[u64]) {
    let mut parts: Vec<libc::iovec> = Vec::with_capacity(pages.len());
    for page in pages {
        let address = shared.address_of(*page);
        match parts.last_mut() {
            Some(last) if last.iov_base as usize + last.iov_len == address => last.iov_len += PAGE,
            _ => parts.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: PAGE }),
        }
    }
    let mut done = 0;
    if let Some(own) = own {
        let flags = 0;
        // SAFETY: the parts lie in the window, whose pages the device has taken back; the bytes stay in the shared memory.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                own.as_raw_fd(),
                parts.as_ptr(),
                parts.len(),
                libc::MADV_DONTNEED,
                flags,
            )
        };
        done = usize::try_from(advised).unwrap_or(0);
    }
    for part in parts {
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

fn own_pidfd() -> Option<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    // SAFETY: the descriptor is new and owned by nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
