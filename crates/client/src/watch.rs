//! The thread that watches the device's process: when it dies, the window becomes inaccessible.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::shared::{CLOSING, DEAD, LIVE, Shared};

/// Waits until the device dies or the window closes.
pub fn run(shared: &Shared, device: &OwnedFd, nothing: &OwnedFd) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut fds = [entry(device.as_raw_fd()), entry(shared.stop.as_raw_fd())];
    while shared.state.load(Ordering::Acquire) != CLOSING {
        // SAFETY: live entries of the stated number.
        unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
        if fds[0].revents != 0 {
            return bury(shared, nothing);
        }
    }
}

/// Puts a file of no bytes in the window's place: each access, and each access of the kernel for the program, is beyond
/// its end. So nobody can take a page of zeroes for data, nor wait for an answer that never comes.
fn bury(shared: &Shared, nothing: &OwnedFd) {
    // Said here and not where SIGBUS is handled: a program may have a handler of its own.
    shared.say("the device has died, and its window with it: whoever touches it gets SIGBUS");
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
    let base = shared.base as *mut libc::c_void;
    // SAFETY: the range is the window's own; whoever uses it gets SIGBUS from now on.
    let mapped = unsafe { libc::mmap(base, shared.bytes, protection, flags, nothing.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        shared.say("the device has died, and its window cannot be closed; the program ends");
        std::process::abort();
    }
    let _ = shared.state.compare_exchange(LIVE, DEAD, Ordering::AcqRel, Ordering::Relaxed);
    shared.uffd.wake(shared.base, shared.bytes);
    shared.stop();
    shared.ended.notify_all();
}
