//! What this library and the window's threads use themselves: memory of the C library, and system calls as they are.
//!
//! The names `malloc` and `mmap` mean this library's own functions in every part of the program. A thread that resolves
//! faults must not wait for itself, so nothing of its own may lie in the window.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::{CStr, CString, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// What the C library's own names are, by which it can be had although others are in their place.
pub mod c {
    use std::ffi::c_void;

    unsafe extern "C" {
        pub fn __libc_malloc(bytes: usize) -> *mut c_void;
        pub fn __libc_calloc(count: usize, bytes: usize) -> *mut c_void;
        pub fn __libc_realloc(old: *mut c_void, bytes: usize) -> *mut c_void;
        pub fn __libc_memalign(alignment: usize, bytes: usize) -> *mut c_void;
        pub fn __libc_free(old: *mut c_void);
    }
}

struct CLibrary;

#[global_allocator]
static ALLOCATOR: CLibrary = CLibrary;

/// What `malloc` aligns to.
const ALIGNED: usize = 16;

// SAFETY: the C library's allocator is one.
unsafe impl GlobalAlloc for CLibrary {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: plain calls.
        unsafe {
            if layout.align() <= ALIGNED {
                c::__libc_malloc(layout.size()).cast()
            } else {
                c::__libc_memalign(layout.align(), layout.size()).cast()
            }
        }
    }

    unsafe fn dealloc(&self, old: *mut u8, _: Layout) {
        // SAFETY: the caller's promise: it came from `alloc`.
        unsafe { c::__libc_free(old.cast()) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if layout.align() <= ALIGNED {
            // SAFETY: as above.
            return unsafe { c::__libc_realloc(old.cast(), bytes).cast() };
        }
        // SAFETY: as above; both are as long as the copy.
        unsafe {
            let new: *mut u8 = c::__libc_memalign(layout.align(), bytes).cast();
            if !new.is_null() {
                std::ptr::copy_nonoverlapping(old, new, bytes.min(layout.size()));
                c::__libc_free(old.cast());
            }
            new
        }
    }
}

/// Most threads of windows, of the heap's and of those that paths are mapped by.
pub const THREADS_MAX: usize = 40;

/// The windows' own threads, and how many places of these were ever given out.
static THREADS: [AtomicUsize; THREADS_MAX] = [const { AtomicUsize::new(0) }; THREADS_MAX];
static NOTED: AtomicUsize = AtomicUsize::new(0);
/// How many windows' threads were waited for.
static AWAITED: AtomicUsize = AtomicUsize::new(0);

fn this_thread() -> usize {
    // By this and not by a variable of the thread: for that the C library may want memory.
    // SAFETY: a plain call.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread is one of the windows' own.
pub fn note_thread() {
    let place = NOTED.fetch_add(1, Ordering::AcqRel);
    // The views that a process may have are fewer than there are places for.
    THREADS[place % THREADS_MAX].store(this_thread(), Ordering::Release);
}

fn noted() -> &'static [AtomicUsize] {
    &THREADS[..NOTED.load(Ordering::Acquire).min(THREADS_MAX)]
}

/// Waits until each of the threads of one more window is known: what it asks for must not come from a window.
pub fn await_threads(count: usize) {
    let all = AWAITED.fetch_add(count, Ordering::AcqRel) + count;
    while noted().iter().filter(|place| place.load(Ordering::Acquire) != 0).count() < all {
        std::thread::yield_now();
    }
}

/// Whether the calling thread is one of the windows' own.
pub fn is_own_thread() -> bool {
    let this = this_thread();
    noted().iter().any(|place| place.load(Ordering::Relaxed) == this)
}

/// In a forked child there are none.
pub fn forget_threads() {
    AWAITED.store(0, Ordering::Relaxed);
    NOTED.store(0, Ordering::Relaxed);
    THREADS.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}

/// A function in whose place this library has its own: the C library's, or another preloaded one's.
pub struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    pub const fn new(name: &'static CStr) -> Next {
        Next { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address.
    pub fn get(&self) -> *mut c_void {
        let mut found = self.found.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: the name ends in zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if found.is_null() {
                // What calls it was linked to a C library that has it.
                std::process::abort();
            }
            self.found.store(found, Ordering::Relaxed);
        }
        found
    }
}

/// The error of the calling thread's latest call.
pub fn set_errno(code: i32) {
    // SAFETY: the C library's variable of this thread.
    unsafe { *libc::__errno_location() = code };
}

/// `fstat` of the kernel.
pub fn stat(fd: i32) -> Option<libc::stat> {
    // SAFETY: an all-zero value of that plain struct is valid, and it lives. The kernel's has the same form.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::syscall(libc::SYS_fstat, fd, &raw mut stat) == 0).then_some(stat)
    }
}

/// `open` of the kernel, to read.
pub fn open(path: &Path) -> Option<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: the name ends in zero.
    let fd =
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    // SAFETY: the descriptor is new and owned by nobody else.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// `mmap` of the kernel.
pub fn mmap(at: usize, bytes: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> usize {
    // SAFETY: what is mapped over is the caller's to answer for, as with the call of that name.
    unsafe { libc::syscall(libc::SYS_mmap, at, bytes, protection, flags, fd, offset) as usize }
}

/// `munmap` of the kernel.
pub fn munmap(at: usize, bytes: usize) -> i32 {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_munmap, at, bytes) as i32 }
}

/// `mremap` of the kernel.
pub fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: i32, new_at: usize) -> usize {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_mremap, at, bytes, new_bytes, flags, new_at) as usize }
}

/// `madvise` of the kernel.
pub fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) as i32 }
}

/// `mprotect` of the kernel.
pub fn mprotect(at: usize, bytes: usize, protection: i32) -> i32 {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_mprotect, at, bytes, protection) as i32 }
}

/// What a failed `mmap` gives.
pub const MAP_FAILED: usize = usize::MAX;
