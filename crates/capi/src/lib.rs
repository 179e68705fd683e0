//! The memory window for programs in C. What each function does is said in `include/osier_window.h`, which a test
//! compares with what is here by compiling and running a program in C.

use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

use osier_client::{FaultMode, Report, Window, WindowError, WindowOptions};

const EINVAL: c_int = -1;
const EOPEN: c_int = -2;
const EREFUSED: c_int = -3;
const EDEAD: c_int = -4;

/// `osier_window_report`
#[repr(C)]
#[derive(Debug)]
pub struct CReport {
    done: u64,
    idle: u64,
    refused: u64,
}

/// `osier_window_stats`
#[repr(C)]
#[derive(Debug)]
pub struct CStats {
    faults: u64,
    misses: u64,
    left: u64,
    left_dirty: u64,
    resident: u64,
    frames: u64,
    lost: u64,
    flash_written: u64,
    flash_moved: u64,
    superblocks_erased: u64,
    blocked: u64,
    dropped: u64,
    samples_used: u64,
    samples: u64,
}

/// `osier_window_timing`
#[repr(C)]
#[derive(Debug)]
pub struct CTiming {
    faults: u64,
    latency_p50_ns: u64,
    latency_p99_ns: u64,
    latency_max_ns: u64,
    lateness_p50_ns: u64,
    lateness_p99_ns: u64,
    lateness_max_ns: u64,
}

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// Remembers why a call failed.
fn fail(code: c_int, text: &str) -> c_int {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    ERROR.with(|error| error.replace(text));
    code
}

fn code_of(error: &WindowError) -> c_int {
    match error {
        WindowError::DeviceDied { .. } => EDEAD,
        WindowError::Command { .. } | WindowError::Forked { .. } => EREFUSED,
        WindowError::Policy(_) | WindowError::TooLarge { .. } | WindowError::TooManyShards { .. } => EINVAL,
        _ => EOPEN,
    }
}

/// The bytes of a text of C's, if there is one.
///
/// # Safety
/// The pointer is null, or to bytes that end with a zero and live as long as the result.
unsafe fn text<'a>(text: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// # Safety
/// As the header says: the text ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_open(socket: *const c_char, bytes: u64, mode: c_int) -> *mut Window {
    // SAFETY: the caller's promise.
    unsafe { osier_window_open_sharded(socket, bytes, mode, 1) }
}

/// # Safety
/// As the header says: the text ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_open_sharded(
    socket: *const c_char,
    bytes: u64,
    mode: c_int,
    shards: c_uint,
) -> *mut Window {
    let mode = match mode {
        0 => Some(FaultMode::InThread),
        1 => Some(FaultMode::Spinning),
        2 => Some(FaultMode::Sleeping),
        _ => None,
    };
    // SAFETY: the caller's promise.
    let (Some(socket), Some(mode)) = (unsafe { text(socket) }, mode) else {
        fail(EINVAL, "a window is opened with a socket and one of the three modes");
        return std::ptr::null_mut();
    };
    let bytes = (bytes > 0).then_some(bytes);
    let options = WindowOptions { bytes, mode, shards: shards as usize, ..WindowOptions::default() };
    match Window::open(OsStr::from_bytes(socket).as_ref(), &options) {
        Ok(window) => Box::into_raw(Box::new(window)),
        Err(error) => {
            fail(code_of(&error), &error.to_string());
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// The window is null, or one that was opened and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_close(window: *mut Window) {
    if !window.is_null() {
        // SAFETY: the caller's promise: it came from `osier_window_open`.
        drop(unsafe { Box::from_raw(window) });
    }
}

/// # Safety
/// The window is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_base(window: *const Window) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { &*window }.as_ptr().cast()
}

/// # Safety
/// The window is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_bytes(window: *const Window) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { &*window }.len() as u64
}

/// # Safety
/// The window is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_is_live(window: *const Window) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(unsafe { &*window }.is_live())
}

/// Does a command on pages.
///
/// # Safety
/// The window is open; the report is null or can be written.
unsafe fn command(
    window: *mut Window,
    (first, pages): (u64, u64),
    report: *mut CReport,
    f: impl FnOnce(&Window, Range<u64>) -> Result<Report, WindowError>,
) -> c_int {
    let Some(end) = first.checked_add(pages) else { return fail(EINVAL, "the range of pages has no end") };
    // SAFETY: the caller's promise.
    match f(unsafe { &*window }, first..end) {
        Ok(done) => {
            if !report.is_null() {
                let what = CReport { done: done.done, idle: done.idle, refused: done.refused };
                // SAFETY: the caller's promise.
                unsafe { report.write(what) };
            }
            0
        }
        Err(error) => fail(code_of(&error), &error.to_string()),
    }
}

/// # Safety
/// The window is open; the report is null or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_prefetch(
    window: *mut Window,
    first: u64,
    pages: u64,
    report: *mut CReport,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { command(window, (first, pages), report, Window::prefetch) }
}

/// # Safety
/// As [`osier_window_prefetch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_pin(window: *mut Window, first: u64, pages: u64, report: *mut CReport) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { command(window, (first, pages), report, Window::pin) }
}

/// # Safety
/// As [`osier_window_prefetch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_unpin(
    window: *mut Window,
    first: u64,
    pages: u64,
    report: *mut CReport,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { command(window, (first, pages), report, Window::unpin) }
}

/// # Safety
/// As [`osier_window_prefetch`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_evict(
    window: *mut Window,
    first: u64,
    pages: u64,
    report: *mut CReport,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { command(window, (first, pages), report, Window::evict) }
}

/// # Safety
/// The window is open; the name ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_set_policy(window: *mut Window, name: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let Some(Ok(name)) = (unsafe { text(name) }).map(std::str::from_utf8) else {
        return fail(EINVAL, "a policy has a name");
    };
    // SAFETY: the caller's promise.
    match unsafe { &*window }.set_policy(name) {
        Ok(_) => 0,
        Err(error) => fail(code_of(&error), &error.to_string()),
    }
}

/// # Safety
/// The window is open; the figures can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_get_stats(window: *const Window, stats: *mut CStats) {
    // SAFETY: the caller's promise.
    let found = unsafe { &*window }.stats();
    let figures = CStats {
        faults: found.faults,
        misses: found.misses,
        left: found.left,
        left_dirty: found.left_dirty,
        resident: found.resident,
        frames: found.frames,
        lost: found.lost,
        flash_written: found.flash_written,
        flash_moved: found.flash_moved,
        superblocks_erased: found.superblocks_erased,
        blocked: found.blocked,
        dropped: found.dropped,
        samples_used: found.samples_used,
        samples: found.samples,
    };
    // SAFETY: the caller's promise.
    unsafe { stats.write(figures) };
}

/// # Safety
/// The window is open; the figures can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn osier_window_get_timing(window: *const Window, timing: *mut CTiming) {
    // SAFETY: the caller's promise.
    let found = unsafe { &*window }.timing();
    let figures = CTiming {
        faults: found.latency.count(),
        latency_p50_ns: found.latency.quantile_ns(500),
        latency_p99_ns: found.latency.quantile_ns(990),
        latency_max_ns: found.latency.max_ns(),
        lateness_p50_ns: found.lateness.quantile_ns(500),
        lateness_p99_ns: found.lateness.quantile_ns(990),
        lateness_max_ns: found.lateness.max_ns(),
    };
    // SAFETY: the caller's promise.
    unsafe { timing.write(figures) };
}

/// Why the calling thread's latest call failed.
#[unsafe(no_mangle)]
pub extern "C" fn osier_window_error() -> *const c_char {
    ERROR.with(|error| error.borrow().as_ptr())
}
