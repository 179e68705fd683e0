//! The names that programs call, in the place of the C library's.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use libmimalloc_sys as mi;

use osier_client::placement::Placement;

use crate::callers::{self, Call};
use crate::own::{self, Next, c};
use crate::space::{PAGE, allocate};
use crate::{RUN, is_in_heap, mapping, serves, statistics};

/// Larger alignments are not the allocator's: they are had from ordinary memory.
const ALIGNMENT_MAX: usize = 64 << 10;

/// `malloc_usable_size` of the C library.
static C_USABLE: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Functions that hand on who called: the stack before the call and the frame pointer come after their arguments, in
/// the registers that are named.
#[cfg(target_arch = "x86_64")]
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, [$stack:literal, $frame:literal], $to:path;)+) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name($($argument: $type),*) -> $result {
            std::arch::naked_asm!(
                concat!("lea ", $stack, ", [rsp + 8]"),
                concat!("mov ", $frame, ", rbp"),
                "jmp {to}",
                to = sym $to,
            )
        }
    )+};
}

/// Elsewhere nobody asks who called.
#[cfg(not(target_arch = "x86_64"))]
macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty, [$stack:literal, $frame:literal], $to:path;)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $result {
            $to($($argument,)* 0, 0)
        }
    )+};
}

entries! {
    malloc(bytes: usize) -> *mut c_void, ["rsi", "rdx"], malloc_of;
    calloc(count: usize, bytes: usize) -> *mut c_void, ["rdx", "rcx"], calloc_of;
    realloc(old: *mut c_void, bytes: usize) -> *mut c_void, ["rdx", "rcx"], realloc_of;
    reallocarray(old: *mut c_void, count: usize, bytes: usize) -> *mut c_void, ["rcx", "r8"], reallocarray_of;
    memalign(alignment: usize, bytes: usize) -> *mut c_void, ["rdx", "rcx"], memalign_of;
    aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void, ["rdx", "rcx"], memalign_of;
    posix_memalign(place: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int, ["rcx", "r8"], posix_memalign_of;
    valloc(bytes: usize) -> *mut c_void, ["rsi", "rdx"], valloc_of;
    pvalloc(bytes: usize) -> *mut c_void, ["rsi", "rdx"], pvalloc_of;
}

/// Whether an allocation goes to the window; by a rule, or by its size alone.
fn is_served(bytes: usize, call: Call) -> bool {
    serves()
        && RUN.get().is_some_and(|run| match callers::decide(bytes, call) {
            Some(placement) => placement == Placement::Window,
            None => bytes as u64 >= run.settings.small_bytes,
        })
}

/// Asks the allocator, for who calls.
fn take(bytes: usize, call: Call, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    let got = allocate(bytes, ask);
    if !got.is_null() {
        callers::count(bytes, call);
    }
    got
}

fn is_ours(old: *mut c_void) -> bool {
    is_in_heap(old as usize)
}

/// The bytes behind a pointer of the C library's.
fn c_usable_size(old: *mut c_void) -> usize {
    let mut found = C_USABLE.load(Ordering::Relaxed);
    if found.is_null() {
        // Not the next of that name: a program may be linked to an allocator of its own, which does not know the block.
        // SAFETY: constant names ending in zero.
        found = unsafe {
            let library = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            libc::dlsym(library, c"malloc_usable_size".as_ptr())
        };
        C_USABLE.store(found, Ordering::Relaxed);
    }
    if found.is_null() {
        return 0;
    }
    // SAFETY: the function of that name has this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_void) -> usize>(found)(old) }
}

extern "C" fn malloc_of(bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    let call = Call { stack, frame };
    if is_served(bytes, call) {
        // SAFETY: a plain call.
        return take(bytes, call, || unsafe { mi::mi_malloc(bytes) });
    }
    // SAFETY: a plain call.
    unsafe { c::__libc_malloc(bytes) }
}

extern "C" fn calloc_of(count: usize, bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    let call = Call { stack, frame };
    if let Some(all) = count.checked_mul(bytes)
        && is_served(all, call)
    {
        // SAFETY: a plain call.
        return take(all, call, || unsafe { mi::mi_calloc(count, bytes) });
    }
    // SAFETY: a plain call, which refuses products that are too large.
    unsafe { c::__libc_calloc(count, bytes) }
}

extern "C" fn realloc_of(old: *mut c_void, bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    if old.is_null() {
        return malloc_of(bytes, stack, frame);
    }
    if bytes == 0 {
        free(old);
        return null_mut();
    }
    let call = Call { stack, frame };
    let goes_to_window = stays_or_goes_to_window(old, bytes, call);
    if is_ours(old) && goes_to_window {
        // SAFETY: the pointer is one that the allocator gave.
        let before = unsafe { mi::mi_usable_size(old) };
        // SAFETY: as above.
        let new = allocate(bytes, || unsafe { mi::mi_realloc(old, bytes) });
        if !new.is_null() && bytes > before {
            callers::count(bytes - before, call);
        }
        return new;
    }
    if !is_ours(old) && !goes_to_window {
        // SAFETY: the pointer is one that the C library gave.
        return unsafe { c::__libc_realloc(old, bytes) };
    }
    let new = if goes_to_window {
        // SAFETY: a plain call.
        take(bytes, call, || unsafe { mi::mi_malloc(bytes) })
    } else {
        // SAFETY: a plain call.
        unsafe { c::__libc_malloc(bytes) }
    };
    if !new.is_null() {
        // SAFETY: both are at least as long as the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(old.cast::<u8>(), new.cast::<u8>(), bytes.min(malloc_usable_size(old)))
        };
        free(old);
    }
    new
}

/// Whether a block that gets another size lies in the window then. Where no rule fits it stays where a rule may have
/// put it; one that was too small for the window goes there.
fn stays_or_goes_to_window(old: *mut c_void, bytes: usize, call: Call) -> bool {
    let Some(run) = RUN.get().filter(|_| serves()) else { return is_ours(old) };
    let large = |bytes: usize| bytes as u64 >= run.settings.small_bytes;
    match callers::decide(bytes, call) {
        Some(placement) => placement == Placement::Window,
        None if is_ours(old) => true,
        None => large(bytes) && !(callers::has_rules() && large(c_usable_size(old))),
    }
}

extern "C" fn reallocarray_of(old: *mut c_void, count: usize, bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    let Some(all) = count.checked_mul(bytes) else {
        own::set_errno(libc::ENOMEM);
        return null_mut();
    };
    realloc_of(old, all, stack, frame)
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

extern "C" fn memalign_of(alignment: usize, bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    // As the C library does.
    let Some(alignment) = alignment.max(1).checked_next_power_of_two() else {
        own::set_errno(libc::EINVAL);
        return null_mut();
    };
    let call = Call { stack, frame };
    if alignment <= ALIGNMENT_MAX && is_served(bytes, call) {
        // SAFETY: a plain call with a power of two.
        return take(bytes, call, || unsafe { mi::mi_malloc_aligned(bytes, alignment) });
    }
    // SAFETY: a plain call.
    unsafe { c::__libc_memalign(alignment, bytes) }
}

extern "C" fn posix_memalign_of(
    place: *mut *mut c_void,
    alignment: usize,
    bytes: usize,
    stack: usize,
    frame: usize,
) -> c_int {
    if !alignment.is_power_of_two() || !alignment.is_multiple_of(size_of::<usize>()) {
        return libc::EINVAL;
    }
    // SAFETY: the C library's variable of this thread, which this call leaves as it is.
    let errno = unsafe { *libc::__errno_location() };
    let got = memalign_of(alignment, bytes, stack, frame);
    own::set_errno(errno);
    if got.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { place.write(got) };
    0
}

extern "C" fn valloc_of(bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    memalign_of(PAGE, bytes, stack, frame)
}

extern "C" fn pvalloc_of(bytes: usize, stack: usize, frame: usize) -> *mut c_void {
    let Some(whole) = bytes.checked_next_multiple_of(PAGE) else {
        own::set_errno(libc::ENOMEM);
        return null_mut();
    };
    memalign_of(PAGE, whole, stack, frame)
}

/// The call has as many arguments as there are registers for: who called goes by the stack.
#[cfg(target_arch = "x86_64")]
macro_rules! map_entries {
    ($($name:ident)+) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        extern "C" fn $name(
            at: *mut c_void,
            bytes: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            std::arch::naked_asm!(
                "lea rax, [rsp + 8]",
                "sub rsp, 8",
                "push rbp",
                "push rax",
                "call {to}",
                "add rsp, 24",
                "ret",
                to = sym mmap_of,
            )
        }
    )+};
}

#[cfg(not(target_arch = "x86_64"))]
macro_rules! map_entries {
    ($($name:ident)+) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(
            at: *mut c_void,
            bytes: usize,
            prot: c_int,
            flags: c_int,
            fd: c_int,
            offset: i64,
        ) -> *mut c_void {
            mmap_of(at, bytes, prot, flags, fd, offset, 0, 0)
        }
    )+};
}

map_entries! { mmap mmap64 }

#[allow(clippy::too_many_arguments, reason = "those of the call, and who called")]
extern "C" fn mmap_of(
    at: *mut c_void,
    bytes: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
    stack: usize,
    frame: usize,
) -> *mut c_void {
    mapping::mmap(at as usize, bytes, prot, flags, fd, offset, Call { stack, frame }) as *mut c_void
}

/// What was loaded elsewhere may be loaded where something was.
#[unsafe(no_mangle)]
extern "C-unwind" fn dlclose(library: *mut c_void) -> c_int {
    static NEXT: Next = Next::new(c"dlclose");
    // SAFETY: the function of that name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, extern "C-unwind" fn(*mut c_void) -> c_int>(NEXT.get()) };
    let closed = next(library);
    callers::refresh();
    closed
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
