//! `osier vm`: of a machine emulator the guest's memory alone lies in the window. To the emulator it is the mapping of
//! a file, which stands in for the window; it is answered with the window, where the emulator wants it.
//!
//! Nothing takes it away again until the process ends: the device believes that it knows what is mapped.

use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use osier_client::Window;
use osier_client::heap::{Lease, LeaseError, Settings, StandIn};

use crate::mapping::in_heap;
use crate::own::{self, MAP_FAILED};
use crate::space::make_zero;
use crate::{CannotStart, HIGH, LOW, RUN, end, keep, note_range, options, statistics, who};

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// What is known before the guest has memory.
struct Expected {
    settings: Settings,
    /// The device and the number of the file.
    file: (u64, u64),
    bytes: u64,
    window_bytes: u64,
}

static EXPECTED: OnceLock<Expected> = OnceLock::new();

/// Waits for the mapping of the file that stands in.
pub fn begin(settings: Settings) -> Result<(), CannotStart> {
    let Some(StandIn { fd, window_bytes }) = settings.stand_in else { return Ok(()) };
    let stat = own::stat(fd).ok_or_else(std::io::Error::last_os_error)?;
    let (file, bytes) = ((stat.st_dev, stat.st_ino), stat.st_size as u64);
    EXPECTED.get_or_init(|| Expected { settings, file, bytes, window_bytes });
    Ok(())
}

/// Whether this process is a machine emulator whose guest's memory lies in the window.
pub fn is_one() -> bool {
    EXPECTED.get().is_some()
}

/// Answers a mapping, if it is of the file that stands in.
pub fn mmap(at: usize, bytes: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> Option<usize> {
    let expected = EXPECTED.get()?;
    let fixed = flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0;
    if fixed && in_heap(at, bytes).is_some() && !own::is_own_thread() {
        own::set_errno(libc::EPERM);
        return Some(MAP_FAILED);
    }
    if fd < 0 {
        return None;
    }
    own::stat(fd).filter(|stat| (stat.st_dev, stat.st_ino) == expected.file)?;
    let is_whole = offset == 0 && bytes as u64 == expected.bytes;
    let is_plain = protection == READ_WRITE && flags & libc::MAP_SHARED != 0 && RUN.get().is_none();
    if !is_whole || !is_plain {
        own::set_errno(libc::EPERM);
        return Some(MAP_FAILED);
    }
    // Where nothing is said about the place, one is found first; else what is there is the emulator's own.
    let at = if !fixed { own::mmap(at, bytes, libc::PROT_NONE, NOTHING, -1, 0) } else { at };
    if at != MAP_FAILED
        && let Err(error) = place(expected, at)
    {
        end(who(), &error.text);
    }
    Some(at)
}

const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// Maps the guest's part of the window.
fn place(expected: &Expected, at: usize) -> Result<(), CannotStart> {
    let settings = expected.settings.clone();
    let lease = Lease::take(&settings.socket, expected.window_bytes, expected.bytes).map_err(|error| CannotStart {
        text: error.to_string(),
        is_no_room: matches!(error, LeaseError::NoRoom { .. }),
    })?;
    let range = lease.range();
    let options = options(&settings, Some(expected.bytes));
    // SAFETY: the emulator wants these bytes mapped, so they are its own, and nobody uses them yet.
    let window = unsafe { Window::open_at(&settings.socket, &options, range.start, at) }?;
    own::await_threads(window.threads());
    let run = keep(settings, window, lease);
    note_range(at, at + expected.bytes as usize);
    // Memory of a machine that was just switched on may hold anything, but not what another user left there.
    if !run.lease.begin_use(range) {
        make_zero(at, expected.bytes as usize);
    }
    statistics::begin();
    Ok(())
}

/// The guest's memory stays; what lies around it goes.
pub fn munmap(at: usize, bytes: usize) -> i32 {
    let (low, high) = (LOW.load(Ordering::Relaxed), HIGH.load(Ordering::Relaxed));
    let (before, after) = ((at, low.saturating_sub(at)), (high, at.saturating_add(bytes).saturating_sub(high)));
    let parts = [before, after].into_iter().filter(|(_, bytes)| *bytes > 0);
    parts.map(|(at, bytes)| own::munmap(at, bytes)).min().unwrap_or(0)
}

/// Hints are not followed, as the kernel may do with each; what would take bytes away is refused.
pub fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    match advice {
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => own::madvise(at, bytes, advice),
        libc::MADV_REMOVE | libc::MADV_FREE | libc::MADV_HWPOISON => {
            own::set_errno(libc::EINVAL);
            -1
        }
        _ => 0,
    }
}
