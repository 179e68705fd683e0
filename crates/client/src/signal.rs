//! SIGBUS: a fault to be resolved in the thread that faulted, or the end of a window.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::error::WindowError;
use crate::fault::{Ended, resolve};
use crate::hits;
use crate::shared::{DEAD, Shared};
use crate::window::FaultMode;

/// Most windows of a process.
pub const WINDOWS_MAX: usize = 64;

static WINDOWS: [AtomicPtr<Shared>; WINDOWS_MAX] = [const { AtomicPtr::new(std::ptr::null_mut()) }; WINDOWS_MAX];
static INSTALL: Once = Once::new();
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());

/// Lets the handler know of a window, which must stay where it is until [`forget`].
pub fn note(shared: &Shared) -> Result<(), WindowError> {
    INSTALL.call_once(install);
    let new = std::ptr::from_ref(shared).cast_mut();
    for place in &WINDOWS {
        let null = std::ptr::null_mut();
        if place.compare_exchange(null, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            return Ok(());
        }
    }
    Err(WindowError::TooMany { max: WINDOWS_MAX })
}

/// The window is gone.
pub fn forget(shared: &Shared) {
    let old = std::ptr::from_ref(shared).cast_mut();
    for place in &WINDOWS {
        let _ = place.compare_exchange(old, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed);
    }
}

fn install() {
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an all-zero sigaction is a valid value of that plain struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_sigbus as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: both point to live values; the handler does only what a handler may. A failure is impossible for SIGBUS.
    let previous = unsafe {
        // All signals wait: another one's handler could touch the window, and wait for a page that this one unmaps.
        libc::sigfillset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, &raw const action, previous.as_mut_ptr());
        previous.assume_init()
    };
    // Never freed: handlers have no end.
    PREVIOUS.store(Box::into_raw(Box::new(previous)), Ordering::Release);
}

/// The window that an address lies in.
pub fn window_at(address: usize) -> Option<(&'static Shared, u64)> {
    WINDOWS.iter().find_map(|place| {
        // SAFETY: whoever noted a window keeps it until it is forgotten, and nobody touches one that is being closed.
        let shared = unsafe { place.load(Ordering::Acquire).as_ref() }?;
        Some((shared, shared.page_at(address)?))
    })
}

/// Sets this thread's mask by the system call itself: a program may have functions of its own by the C library's names.
///
/// # Safety
/// The first points to a set, the second to a zeroed one or nowhere.
unsafe fn set_mask(set: *const libc::sigset_t, before: *mut libc::sigset_t) {
    /// Bytes of the kernel's set, with which the C library's begins.
    const KERNEL_SET: usize = 8;
    // SAFETY: the caller's promise.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, set, before, KERNEL_SET) };
}

/// Keeps signals from this thread as long as it lives: their handlers may touch the window, and would then wait for
/// what this thread holds.
pub struct Blocked {
    before: libc::sigset_t,
    _thread: PhantomData<*const ()>,
}

impl Blocked {
    pub fn new() -> Blocked {
        let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut before = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the pointers are to live values, an all-zero set is a valid one, and it is this thread's mask alone.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            set_mask(all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Blocked { before, _thread: PhantomData }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: the set is what this thread had; the guard does not leave it.
        unsafe { set_mask(&raw const self.before, std::ptr::null_mut()) };
    }
}

extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is a thread-local of the C library; the code that was interrupted finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo for SIGBUS, which has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    let Some((shared, page)) = window_at(address) else { return chain(signal, info, context) };
    if shared.state.load(Ordering::Acquire) == DEAD {
        return chain(signal, info, context);
    }
    let ended = match shared.mode {
        FaultMode::InThread if shared.uffd.stores().faults() && access(context).is_protected => {
            shared.uffd.allow_stores(shared.address_of(page));
            Ended::Again
        }
        FaultMode::InThread => resolve(shared, page, access(context).is_store),
        FaultMode::Spinning | FaultMode::Sleeping => Ended::Lost,
    };
    if ended == Ended::Lost {
        shared.say("SIGBUS: the device cannot read a page: its flash has lost the bytes");
        return chain(signal, info, context);
    }
    hits::note_handled();
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// What is known of an access that faulted.
struct Access {
    is_store: bool,
    /// The page was mapped, and protected against stores.
    is_protected: bool,
}

/// Where the processor does not say, a load, whose later stores leave a trace.
fn access(context: *mut libc::c_void) -> Access {
    #[cfg(target_arch = "x86_64")]
    {
        const ERROR_PRESENT: i64 = 1 << 0;
        const ERROR_WRITE: i64 = 1 << 1;
        // SAFETY: the kernel passes a valid context.
        let context = unsafe { &*context.cast::<libc::ucontext_t>() };
        let error = context.uc_mcontext.gregs[libc::REG_ERR as usize];
        let is_store = error & ERROR_WRITE != 0;
        Access { is_store, is_protected: is_store && error & ERROR_PRESENT != 0 }
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = context;
        Access { is_store: false, is_protected: false }
    }
}

/// What SIGBUS did before: the program's own handler, or its end.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written once with a value that is never freed.
    let previous = unsafe { PREVIOUS.load(Ordering::Acquire).as_ref() };
    let Some(previous) = previous.filter(|action| ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction))
    else {
        // SAFETY: back to the default: the access faults again, and ends the program.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
        return;
    };
    if previous.sa_flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program registered a handler of this type.
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(previous.sa_sigaction) };
        handler(signal, info, context);
    } else {
        // SAFETY: as above.
        let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(previous.sa_sigaction) };
        handler(signal);
    }
}
