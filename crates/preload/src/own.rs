//! What this library and the window's threads use themselves: memory of the C library, and system calls as they are.
//!
//! The names `malloc` and `mmap` mean this library's own functions in every part of the program. A thread that resolves
//! faults must not wait for itself, so nothing of its own may lie in the window.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// The window's own threads.
static THREADS: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

fn this_thread() -> usize {
    // By this and not by a variable of the thread: for that the C library may want memory.
    // SAFETY: a plain call.
    unsafe { libc::pthread_self() as usize }
}

/// The calling thread is one of the window's own.
pub fn note_thread() {
    for place in &THREADS {
        if place.compare_exchange(0, this_thread(), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return;
        }
    }
}

/// How many threads said so.
pub fn threads() -> usize {
    THREADS.iter().filter(|place| place.load(Ordering::Acquire) != 0).count()
}

/// Whether the calling thread is one of the window's own.
pub fn is_own_thread() -> bool {
    let this = this_thread();
    THREADS.iter().any(|place| place.load(Ordering::Relaxed) == this)
}

/// In a forked child there are none.
pub fn forget_threads() {
    THREADS.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}

/// The error of the calling thread's latest call.
pub fn set_errno(code: i32) {
    // SAFETY: the C library's variable of this thread.
    unsafe { *libc::__errno_location() = code };
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
