//! The library that `osier run` preloads into a program: its heap, and its large anonymous mappings, lie in a device's
//! window, and so does what it maps by certain paths (`dax`). `osier vm` preloads it into a machine emulator, whose
//! guest's memory alone lies there (`guest`).
//!
//! Invariants:
//! - nothing that the window's own threads use lies in the window (`own`): they would wait for themselves;
//! - a page of the window that the program gets where the system promises zeroes is zero (`space`);
//! - a forked child has the heap as it was when it was forked, in private memory, or ends (`fork`);
//! - no system call of the program changes how the window is mapped (`mapping`): the device believes that it knows;
//! - where hits have a latency every thread of the program is sampled, and none of the window's is (`threads`).

/// Prints a line to standard error, unless that has been closed: `eprintln!` would panic, and the program is not ours.
macro_rules! say {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        _ = writeln!(std::io::stderr(), $($part)*);
    }};
}

mod callers;
mod dax;
mod exports;
mod files;
mod fork;
mod guest;
mod locked;
mod mapping;
mod own;
mod ranges;
mod space;
mod statistics;
mod streams;
mod threads;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use osier_client::heap::{Lease, Settings};
use osier_client::{Window, WindowOptions};

/// What the library knows once it has begun.
struct Run {
    settings: Settings,
    window: Window,
    lease: Lease,
    /// The process that has the window.
    pid: i32,
}

static RUN: OnceLock<Run> = OnceLock::new();

/// Whether allocations go to the window.
static SERVES: AtomicBool = AtomicBool::new(false);
/// The addresses of the heap, for the look that every `free` takes.
static LOW: AtomicUsize = AtomicUsize::new(0);
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// How a program ends whose heap cannot be had: as a command that cannot be run.
const CANNOT_RUN: i32 = 126;

/// Whether an address lies in the heap.
fn is_in_heap(address: usize) -> bool {
    address >= LOW.load(Ordering::Relaxed) && address < HIGH.load(Ordering::Relaxed)
}

/// Whether the calling thread's allocations go to the window.
fn serves() -> bool {
    SERVES.load(Ordering::Acquire) && !own::is_own_thread()
}

/// Whether this process has the window, and was not forked from the one that does.
fn is_owner(run: &Run) -> bool {
    // SAFETY: a plain call.
    unsafe { libc::getpid() == run.pid }
}

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".init_array"))]
static BEGIN: extern "C" fn() = begin;

extern "C" fn begin() {
    let Some(settings) = Settings::from_env() else { return };
    if !settings.children {
        forget_environment();
    }
    let children = settings.children;
    match start(settings) {
        Ok(()) => {}
        // A program that another one started is not to fail for that; it is said.
        Err(error) if children && error.is_no_room => {
            say!("osier run: {} (process {}); it runs in ordinary memory", error.text, std::process::id());
        }
        Err(error) => end(who(), &error.text),
    }
}

/// The command that started the program.
fn who() -> &'static str {
    if guest::is_one() { "osier vm" } else { "osier run" }
}

/// Ends a program that cannot have what it was promised.
fn end(who: &str, text: &str) -> ! {
    say!("{who}: {text}");
    // SAFETY: ends the process.
    unsafe { libc::_exit(CANNOT_RUN) }
}

/// Why there is no heap in the window.
struct CannotStart {
    text: String,
    is_no_room: bool,
}

impl<E: std::error::Error> From<E> for CannotStart {
    fn from(error: E) -> CannotStart {
        CannotStart { text: error.to_string(), is_no_room: false }
    }
}

/// What comes first has its turn first after a fork: a path's windows are opened with the heap there.
fn start(settings: Settings) -> Result<(), CannotStart> {
    let has_paths = !settings.dax.is_empty();
    let paths = settings.clone();
    if settings.stand_in.is_some() {
        return guest::begin(settings);
    }
    let heap = if settings.has_heap() { start_heap(settings) } else { Ok(()) };
    if has_paths && heap.as_ref().map_or_else(|error| error.is_no_room, |()| true) {
        dax::begin(paths)?;
    }
    heap
}

fn start_heap(settings: Settings) -> Result<(), CannotStart> {
    let window = Window::open(&settings.socket, &options(&settings, None))?;
    own::await_threads(window.threads());
    let bytes = window.len() as u64;
    let lease = settings.take_heap(bytes).map_err(|error| CannotStart {
        text: error.to_string(),
        is_no_room: matches!(error, osier_client::heap::LeaseError::NoRoom { .. }),
    })?;
    let base = window.as_ptr() as usize;
    let range = lease.range();
    let run = keep(settings, window, lease);
    space::begin(run, base);
    note_range(base + range.start as usize, base + range.end as usize);
    fork::begin()?;
    statistics::begin();
    callers::begin(&run.settings.call_sites);
    SERVES.store(true, Ordering::Release);
    Ok(())
}

fn options(settings: &Settings, bytes: Option<u64>) -> WindowOptions {
    WindowOptions {
        bytes,
        mode: settings.mode,
        hit_latency: settings.hit_latency,
        on_thread: Some(own::note_thread),
        is_leased: true,
        ..WindowOptions::default()
    }
}

/// From now on this process has the window.
fn keep(settings: Settings, window: Window, lease: Lease) -> &'static Run {
    // SAFETY: a plain call.
    let pid = unsafe { libc::getpid() };
    RUN.get_or_init(|| Run { settings, window, lease, pid })
}

/// The addresses whose mapping is the window's.
fn note_range(low: usize, high: usize) {
    LOW.store(low, Ordering::Relaxed);
    HIGH.store(high, Ordering::Relaxed);
}

/// Programs that this one starts run as if nothing were.
fn forget_environment() {
    let preloaded = std::env::var("LD_PRELOAD").unwrap_or_default();
    let others: Vec<&str> = preloaded.split([':', ' ']).filter(|path| !path.ends_with("libosier_preload.so")).collect();
    // SAFETY: the program has not begun, and has one thread that uses the environment: this one.
    unsafe {
        if others.iter().all(|path| path.is_empty()) {
            std::env::remove_var("LD_PRELOAD");
        } else {
            std::env::set_var("LD_PRELOAD", others.join(":"));
        }
        Settings::names().iter().for_each(|name| std::env::remove_var(name));
    }
}
