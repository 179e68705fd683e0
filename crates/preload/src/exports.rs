//! The names that programs call, in the place of the C library's.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libmimalloc_sys as mi;

use crate::own::{self, c};
use crate::space::{PAGE, allocate};
use crate::{RUN, is_in_heap, mapping, serves, statistics};

/// Larger alignments are not the allocator's: they are had from ordinary memory.
const ALIGNMENT_MAX: usize = 64 << 10;

/// `malloc_usable_size` of the C library.
static C_USABLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

fn is_served(bytes: usize) -> bool {
    serves() && RUN.get().is_some_and(|run| bytes as u64 >= run.settings.small_bytes)
}

fn is_ours(old: *mut c_void) -> bool {
    is_in_heap(old as usize)
}

/// The bytes behind a pointer of the C library's.
fn c_usable_size(old: *mut c_void) -> usize {
    let mut found = C_USABLE.load(Ordering::Relaxed);
    if found.is_null() {
        // SAFETY: a constant name ending in zero.
        found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"malloc_usable_size".as_ptr()) };
        C_USABLE.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        return 0;
    }
    // SAFETY: the function of that name has this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> usize>(found)(old) }
}

#[unsafe(no_mangle)]
extern "C" fn malloc(bytes: usize) -> *mut c_void {
    if is_served(bytes) {
        // SAFETY: a plain call.
        return allocate(bytes, || unsafe { mi::mi_malloc(bytes) });
    }
    // SAFETY: a plain call.
    unsafe { c::__libc_malloc(bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    if let Some(all) = count.checked_mul(bytes)
        && is_served(all)
    {
        // SAFETY: a plain call.
        return allocate(all, || unsafe { mi::mi_calloc(count, bytes) });
    }
    // SAFETY: a plain call, which refuses products that are too large.
    unsafe { c::__libc_calloc(count, bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn realloc(old: *mut c_void, bytes: usize) -> *mut c_void {
    if old.is_null() {
        return malloc(bytes);
    }
    if bytes == 0 {
        free(old);
        return null_mut();
    }
    if is_ours(old) {
        // SAFETY: the pointer is one that the allocator gave.
        return allocate(bytes, || unsafe { mi::mi_realloc(old, bytes) });
    }
    if !is_served(bytes) {
        // SAFETY: the pointer is one that the C library gave.
        return unsafe { c::__libc_realloc(old, bytes) };
    }
    let new = malloc(bytes);
    if !new.is_null() {
        // SAFETY: both are at least as long as the copy; the old one is the C library's.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), bytes.min(c_usable_size(old)));
            c::__libc_free(old);
        }
    }
    new
}

#[unsafe(no_mangle)]
extern "C" fn reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(bytes) else {
        own::set_errno(libc::ENOMEM);
        return null_mut();
    };
    realloc(old, all)
}

#[unsafe(no_mangle)]
extern "C" fn free(old: *mut c_void) {
    if is_ours(old) {
        // SAFETY: the pointer is one that the allocator gave.
        unsafe { mi::mi_free(old) };
    } else {
        // SAFETY: the pointer is none, or one that the C library gave.
        unsafe { c::__libc_free(old) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn cfree(old: *mut c_void) {
    free(old);
}

#[unsafe(no_mangle)]
extern "C" fn malloc_usable_size(old: *mut c_void) -> usize {
    if old.is_null() {
        0
    } else if is_ours(old) {
        // SAFETY: the pointer is one that the allocator gave.
        unsafe { mi::mi_usable_size(old) }
    } else {
        c_usable_size(old)
    }
}

#[unsafe(no_mangle)]
extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    // As the C library does.
    let Some(alignment) = alignment.max(1).checked_next_power_of_two() else {
        own::set_errno(libc::EINVAL);
        return null_mut();
    };
    if alignment <= ALIGNMENT_MAX && is_served(bytes) {
        // SAFETY: a plain call with a power of two.
        return allocate(bytes, || unsafe { mi::mi_malloc_aligned(bytes, alignment) });
    }
    // SAFETY: a plain call.
    unsafe { c::__libc_memalign(alignment, bytes) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    memalign(alignment, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: the C library's variable of this thread, which this call leaves as it is.
    let errno = unsafe { *libc::__errno_location() };
    let got = memalign(alignment, bytes);
    own::set_errno(errno);
    if got.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(got) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn valloc(bytes: usize) -> *mut c_void {
    memalign(PAGE, bytes)
}

#[unsafe(no_mangle)]
extern "C" fn pvalloc(bytes: usize) -> *mut c_void {
    let Some(whole) = bytes.checked_next_multiple_of(PAGE) else {
        own::set_errno(libc::ENOMEM);
        return null_mut();
    };
    memalign(PAGE, whole)
}

#[unsafe(no_mangle)]
extern "C" fn mmap(at: *mut c_void, bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    mapping::mmap(at as usize, bytes, prot, flags, fd, offset) as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn mmap64(at: *mut c_void, bytes: usize, prot: c_int, flags: c_int, fd: c_int, offset: i64) -> *mut c_void {
    mapping::mmap(at as usize, bytes, prot, flags, fd, offset) as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn munmap(at: *mut c_void, bytes: usize) -> c_int {
    mapping::munmap(at as usize, bytes)
}

/// The C library's takes its last argument only with some flags; where it is not given, it is not looked at.
#[unsafe(no_mangle)]
extern "C" fn mremap(
    at: *mut c_void,
    bytes: usize,
    new_bytes: usize,
    flags: c_int,
    new_at: *mut c_void,
) -> *mut c_void {
    mapping::mremap(at as usize, bytes, new_bytes, flags, new_at as usize) as *mut c_void
}

#[unsafe(no_mangle)]
extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    mapping::madvise(at as usize, bytes, advice)
}

#[unsafe(no_mangle)]
extern "C" fn mprotect(at: *mut c_void, bytes: usize, protection: c_int) -> c_int {
    mapping::mprotect(at as usize, bytes, protection)
}

/// Programs that end without the C library's doing anything for them have figures, too.
#[unsafe(no_mangle)]
extern "C" fn _exit(code: c_int) -> ! {
    statistics::end();
    loop {
        // SAFETY: ends the process.
        unsafe { libc::syscall(libc::SYS_exit_group, code) };
    }
}

#[unsafe(no_mangle)]
extern "C" fn _Exit(code: c_int) -> ! {
    _exit(code)
}
