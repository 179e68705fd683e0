//! `fork`: the child has the heap as it was, in private memory at the same addresses.
//!
//! The parent makes the copy before it forks, with the window frozen: nobody stores to the heap from the copy's first
//! byte until the child is there, so the copy and what the child inherits are of one instant. The child moves the copy
//! to where the heap was. The parent waits for that as long as it takes to bring in what is in use.

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use osier_client::Frozen;

use crate::callers;
use crate::own::{self, MAP_FAILED};
use crate::space::{PAGE, SPACE};
use crate::{HIGH, LOW, RUN, is_owner};

/// Where the copy is, between the three handlers; 0 if there is none.
static COPY: AtomicUsize = AtomicUsize::new(0);
/// The window as long as it is frozen.
static FROZEN: AtomicPtr<Frozen<'static>> = AtomicPtr::new(std::ptr::null_mut());

/// From now on children get copies.
///
/// # Errors
/// What the system refused.
pub fn begin() -> io::Result<()> {
    // SAFETY: the functions do what such functions may, and live as long as the process.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

fn heap() -> (usize, usize) {
    let low = LOW.load(Ordering::Relaxed);
    (low, HIGH.load(Ordering::Relaxed) - low)
}

extern "C" fn prepare() {
    callers::before_fork();
    SPACE.lock();
    let Some(run) = RUN.get().filter(|run| is_owner(run)) else { return };
    match run.window.freeze() {
        Ok(frozen) => {
            match copy(&frozen) {
                Ok(at) => COPY.store(at, Ordering::Relaxed),
                Err(text) => say!("osier run: a child cannot have the heap, and ends when it uses it: {text}"),
            }
            FROZEN.store(Box::into_raw(Box::new(frozen)), Ordering::Relaxed);
        }
        Err(error) => say!("osier run: a child cannot have the heap, and ends when it uses it: {error}"),
    }
}

/// Copies what is in use, each page to its place in memory as long as the heap.
fn copy(frozen: &Frozen<'_>) -> Result<usize, String> {
    let (_, bytes) = heap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let at = own::mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
    if at == MAP_FAILED {
        return Err(format!("mapping {bytes} bytes failed: {}", io::Error::last_os_error()));
    }
    // SAFETY: `prepare` has locked it.
    let (used, first) = unsafe { SPACE.with_held(|space| (space.used(), space.heap().start)) };
    for range in used {
        let copied = frozen.copy(range, |page, page_bytes| {
            if page_bytes.iter().any(|byte| *byte != 0) {
                let to = at + (page - first) as usize * PAGE;
                // SAFETY: the page lies in the memory that was just mapped.
                unsafe { std::ptr::copy_nonoverlapping(page_bytes.as_ptr(), to as *mut u8, PAGE) };
            }
        });
        if let Err(error) = copied {
            own::munmap(at, bytes);
            return Err(error.to_string());
        }
    }
    Ok(at)
}

fn take_frozen() -> Option<Box<Frozen<'static>>> {
    let frozen = FROZEN.swap(std::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: it came from a box in `prepare`, and was taken out of its place just now.
    (!frozen.is_null()).then(|| unsafe { Box::from_raw(frozen) })
}

extern "C" fn parent() {
    let copy = COPY.swap(0, Ordering::Relaxed);
    if copy != 0 {
        own::munmap(copy, heap().1);
    }
    drop(take_frozen());
    SPACE.unlock();
    callers::after_fork();
}

extern "C" fn child() {
    // The window's threads are the parent's, and so is what they hold.
    own::forget_threads();
    std::mem::forget(take_frozen());
    if let Some(run) = RUN.get() {
        run.lease.forget();
    }
    let copy = COPY.swap(0, Ordering::Relaxed);
    if copy != 0 {
        let (low, bytes) = heap();
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if own::mremap(copy, bytes, bytes, flags, low) == MAP_FAILED {
            say!("osier run: a forked child cannot have the heap: {}", io::Error::last_os_error());
            std::process::abort();
        }
    }
    SPACE.unlock();
    callers::after_fork();
}
