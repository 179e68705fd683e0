//! Threads of a program whose hits have a latency: each is sampled from its beginning, and none keeps the signal of the
//! samples away.

use std::ffi::{c_int, c_void};

use osier_client::hits;

use crate::own::{self, Next};

type Start = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = extern "C" fn(*mut libc::pthread_t, *const libc::pthread_attr_t, Start, *mut c_void) -> c_int;
type Mask = extern "C" fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
type Action = extern "C" fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
type Handle = extern "C" fn(c_int, libc::sighandler_t) -> libc::sighandler_t;

/// What a thread is to do.
struct Begin {
    start: Start,
    argument: *mut c_void,
}

#[unsafe(no_mangle)]
extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    static NEXT: Next = Next::new(c"pthread_create");
    // SAFETY: the function of that name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Create>(NEXT.get()) };
    if !hits::is_on() {
        return next(thread, attributes, start, argument);
    }
    let begin = Box::into_raw(Box::new(Begin { start, argument }));
    let code = next(thread, attributes, sampled, begin.cast());
    if code != 0 {
        // SAFETY: it came from a box, and no thread has it.
        drop(unsafe { Box::from_raw(begin) });
    }
    code
}

/// A thread from its beginning. Its samples end with it, however it does.
extern "C-unwind" fn sampled(begin: *mut c_void) -> *mut c_void {
    // SAFETY: it came from a box in `pthread_create`, for this thread alone.
    let Begin { start, argument } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    hits::enter_thread();
    start(argument)
}

fn mask(next: &Next, how: c_int, set: *const libc::sigset_t, before: *mut libc::sigset_t) -> c_int {
    // SAFETY: the functions of these names have this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Mask>(next.get()) };
    if set.is_null() || how == libc::SIG_UNBLOCK || !hits::is_on() || own::is_own_thread() {
        return next(how, set, before);
    }
    // Without the signal of the samples: a thread that keeps it away would have none.
    // SAFETY: the caller's set is a live value, which is copied.
    let mut without = unsafe { set.read() };
    // SAFETY: the set is a live value.
    unsafe { libc::sigdelset(&raw mut without, hits::SIGNAL) };
    next(how, &raw const without, before)
}

#[unsafe(no_mangle)]
extern "C" fn pthread_sigmask(how: c_int, set: *const libc::sigset_t, before: *mut libc::sigset_t) -> c_int {
    static NEXT: Next = Next::new(c"pthread_sigmask");
    mask(&NEXT, how, set, before)
}

#[unsafe(no_mangle)]
extern "C" fn sigprocmask(how: c_int, set: *const libc::sigset_t, before: *mut libc::sigset_t) -> c_int {
    static NEXT: Next = Next::new(c"sigprocmask");
    mask(&NEXT, how, set, before)
}

/// The signal of the samples is taken, as the C library's own are.
#[unsafe(no_mangle)]
extern "C" fn sigaction(signal: c_int, new: *const libc::sigaction, before: *mut libc::sigaction) -> c_int {
    static NEXT: Next = Next::new(c"sigaction");
    if signal == hits::SIGNAL && !new.is_null() && hits::is_on() {
        own::set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the function of that name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Action>(NEXT.get()) };
    next(signal, new, before)
}

#[unsafe(no_mangle)]
extern "C" fn signal(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    static NEXT: Next = Next::new(c"signal");
    if signal == hits::SIGNAL && hits::is_on() {
        own::set_errno(libc::EINVAL);
        return libc::SIG_ERR;
    }
    // SAFETY: the function of that name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Handle>(NEXT.get()) };
    next(signal, handler)
}
