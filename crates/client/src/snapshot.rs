//! Pages as they all are at one instant: what a forked child gets in the window's place.
//!
//! A window is *frozen* for that: no fault is resolved and no page is mapped, so whoever touches it waits, and nobody
//! can store. Pages still leave the cache and come into it. The way of a page that is copied is that of a fault which
//! ends before its page is mapped: as long as its lane is held, the page stays where it is.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use osier_device::window::Grant;
use osier_device::window::message::Ask;

use crate::error::WindowError;
use crate::fault::{pause, wait_until};
use crate::shared::{ASLEEP, AWAKE, FREEZING, FROZEN, Shared, clock_ns};
use crate::uffd::PAGE;
use crate::window::{FaultMode, Window};

/// Pages that are asked for together.
const PAGES_AT_ONCE: usize = 32;

/// A window in which no page is mapped, until this is dropped. A forked child forgets it.
#[derive(Debug)]
pub struct Frozen<'a> {
    window: &'a Window,
    /// What each thread that resolves faults does then.
    after: Vec<u32>,
}

/// A page that was asked for.
#[derive(Clone, Copy)]
struct Asked {
    lane: usize,
    page: u64,
}

impl Window {
    /// Lets nobody touch the window. One freeze at a time.
    ///
    /// # Errors
    /// The faults of this window are resolved by the threads that fault, which cannot be held; or the device has died.
    pub fn freeze(&self) -> Result<Frozen<'_>, WindowError> {
        let shared = self.shared();
        if shared.mode == FaultMode::InThread {
            return Err(WindowError::NoHandler);
        }
        let mut frozen = Frozen { window: self, after: Vec::with_capacity(shared.uffd.parts()) };
        for gate in &shared.gates[..shared.uffd.parts()] {
            let mut spins = 0;
            let after = loop {
                match gate.compare_exchange(ASLEEP, FROZEN, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break ASLEEP,
                    Err(FROZEN) => break AWAKE,
                    Err(_) => {}
                }
                let _ = gate.compare_exchange(AWAKE, FREEZING, Ordering::AcqRel, Ordering::Relaxed);
                if !shared.is_live() {
                    return Err(self.died());
                }
                pause(&mut spins);
            };
            frozen.after.push(after);
        }
        let base = shared.base as *mut libc::c_void;
        // By the system call itself: in a preloaded program the name may mean something else.
        // SAFETY: the range is the window's; its bytes stay in the shared memory, and what was stored to counts as
        // dirty, since no mark is left where it was mapped.
        if unsafe { libc::syscall(libc::SYS_madvise, base, shared.bytes, libc::MADV_DONTNEED) } != 0 {
            return Err(WindowError::last_os("unmap the window's pages"));
        }
        Ok(frozen)
    }
}

impl Frozen<'_> {
    /// Hands over the bytes of each page that this program ever had. Their order is any.
    ///
    /// # Errors
    /// The flash has lost a page, or the device has died.
    pub fn copy(&self, pages: Range<u64>, mut each: impl FnMut(u64, &[u8; PAGE])) -> Result<(), WindowError> {
        let shared = self.window.shared();
        let mut asked: [Option<Asked>; PAGES_AT_ONCE] = [None; PAGES_AT_ONCE];
        let next_from = |page: u64| (page..pages.end).find(|page| shared.was_touched(*page)).unwrap_or(pages.end);
        let (mut next, mut under_way, mut spins) = (next_from(pages.start), 0, 0);
        let mut ended = Ok(());
        while under_way > 0 || (next < pages.end && ended.is_ok()) {
            let mut is_busy = false;
            for place in &mut asked {
                if place.is_none() && next < pages.end && ended.is_ok() {
                    let Some(lane) = shared.take_lane() else { continue };
                    shared.ask(lane, &Ask { page: next, is_store: false, at_ns: clock_ns(), more_max: 0 });
                    *place = Some(Asked { lane, page: next });
                    (next, under_way, is_busy) = (next_from(next + 1), under_way + 1, true);
                }
                if let Some(page) = *place
                    && let Some(copied) = self.take(page, &mut each)
                {
                    (*place, under_way, is_busy) = (None, under_way - 1, true);
                    ended = ended.and(copied);
                }
            }
            if !shared.is_live() {
                // The lanes are left as they are: the device is dead, and nobody will use them again.
                return Err(self.window.died());
            }
            spins = if is_busy { 0 } else { spins };
            pause(&mut spins);
        }
        ended
    }

    /// Copies a page that was asked for, once the device has answered.
    fn take(&self, asked: Asked, each: &mut impl FnMut(u64, &[u8; PAGE])) -> Option<Result<(), WindowError>> {
        let shared = self.window.shared();
        let reply = shared.answer(asked.lane)?;
        let result = match reply.grant {
            Grant::Writable | Grant::Armed => {
                wait_until(reply.due_ns);
                read(shared, asked.page).map(|bytes| each(asked.page, &bytes))
            }
            Grant::Lost | Grant::NoSuchPage => {
                Err(WindowError::PageLost { device: shared.device.clone(), page: asked.page })
            }
        };
        shared.give_lane(asked.lane);
        Some(result)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        for (gate, after) in self.window.shared().gates.iter().zip(&self.after) {
            gate.store(*after, Ordering::Release);
        }
    }
}

fn read(shared: &Shared, page: u64) -> Result<[u8; PAGE], WindowError> {
    let mut bytes = [0; PAGE];
    let at = (page as usize * PAGE) as libc::off_t;
    // SAFETY: the buffer is live and of the stated length.
    let got = unsafe { libc::pread(shared.memory.as_raw_fd(), bytes.as_mut_ptr().cast(), PAGE, at) };
    if got == PAGE as isize { Ok(bytes) } else { Err(WindowError::last_os("read a page of the window's memory")) }
}
