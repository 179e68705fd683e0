//! Samples of the program's threads, and the delays that come of them.
//!
//! The kernel's task clock (`perf_event_open`, software: no counter of the processor is needed) sends a signal to a
//! thread after so much of its time on a processor, and in the program's own code alone: system calls are never
//! interrupted. The handler runs in the thread, finds out what it waited for, looks at lines that were sampled before,
//! and waits for what has come of them. No lock, no allocation, and only system calls that may be made there.

use std::cell::Cell;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::access::{AFTER_BYTES, BEFORE_BYTES, Code, Places, Registers, Skid, accessed};
use super::account::{Doubt, Mean, delay_ns};
use super::processor::{CHASE_LOAD_BYTES, Processor, chase, flush, ticks};
use super::reuse::{FLUSHED_NS, LOADED_NS, RUNGS, Survival, Verdict, Watch, Watched};
use super::{HitError, HitFigures, SIGNAL};
use crate::shared::{LIVE, Shared, clock_ns};
use crate::signal::window_at;
use crate::uffd::PAGE;

/// What a sample of a thread stands for that uses the window.
const PERIOD_NS: u64 = 2_000_000;
/// The same of a thread of which no sample was of the window for so many: taking one costs 30 microseconds and more
/// in a virtual machine.
const IDLE_PERIOD_NS: u64 = 8_000_000;
const IDLE_SAMPLES: u32 = 16;
/// A signal so soon after a handler or a delay came due in it: where the thread stands says nothing.
const SOON_NS: u64 = 4_000;
/// Less than that is not worth a delay of its own.
const OWED_MIN_NS: f64 = 20_000.0;
/// Other signals wait for a delay, at most so long; the rest of it is for the next sample.
const DELAY_MAX_NS: f64 = 50_000_000.0;
/// Between two looks at the clock that are further apart others had the processor.
const STOLEN_NS: f64 = 50_000.0;
/// Lines that are looked at in one sample.
const LOOKS_MAX: usize = 2 * RUNGS;
/// Samples from when it is asked whether a line's page is mapped to the look.
const READY_TURNS: usize = 4;
/// Lines that nobody uses, for each that is watched.
const OWN_LINES: usize = 3;
/// A load that takes less than this share of what memory takes was answered by a cache.
const CACHED_SHARE: f64 = 0.65;
/// The newest measurement counts so much against what was known.
const NEW_SHARE: f64 = 1.0 / 64.0;
/// A line of every processor that is known.
const LINE: u64 = 64;
/// Descriptors from here on, so that a program finds its own low ones free.
const FD_MIN: c_int = 512;

/// While the processor is being measured: periods, samples, and which share of them has to be at one place.
const MEASURE_PERIOD_NS: u64 = 100_000;
const MEASURED_MIN: u64 = 30;
const MEASURE_TURNS_MAX: usize = 40;
const SKID_PERMILLE_MIN: u64 = 800;
const MEMORY_LOADS: usize = 4_000;
const COST_NS: u64 = 30_000_000;

/// What was measured once.
struct Machine {
    processor: Processor,
    skid: Skid,
    memory: Mean,
    sample_cost_ns: f64,
}

static MACHINE: OnceLock<Machine> = OnceLock::new();
static BEGINNING: Mutex<()> = Mutex::new(());
/// Whether this process's threads are sampled: not those of a forked child, which has no window.
static ON: AtomicBool = AtomicBool::new(false);
/// The latency that was asked for last.
static HIT_NS: AtomicU64 = AtomicU64::new(0);
/// Nobody looks at lines any more: some may not be loaded.
static LOOKS_FORBIDDEN: AtomicBool = AtomicBool::new(false);
/// Threads that look at a line, or at whether an address is of a window, just now: none of these goes meanwhile.
static LOOKING: AtomicU32 = AtomicU32::new(0);

/// While the processor is measured: interrupts at the load, behind it, all.
static MEASURING: AtomicBool = AtomicBool::new(false);
static AT_LOAD: AtomicU64 = AtomicU64::new(0);
static BEHIND_LOAD: AtomicU64 = AtomicU64::new(0);
static INTERRUPTS: AtomicU64 = AtomicU64::new(0);

/// Millionths.
const PARTS: f64 = 1e6;

/// What all threads sum up.
struct Counts {
    samples: AtomicU64,
    on_window: AtomicU64,
    missed_parts: AtomicU64,
    undecided_parts: AtomicU64,
    verdicts: AtomicU64,
    unknown: AtomicU64,
    late: AtomicU64,
    injected_ns: AtomicU64,
    over_ns: AtomicU64,
    lag_ns: AtomicU64,
    machine: Sum,
    access: Sum,
}

/// A [`Mean`] that several threads add to, in thousandths of nanoseconds, and squares in whole ones.
struct Sum {
    count: AtomicU64,
    sum: AtomicU64,
    squares: AtomicU64,
}

impl Sum {
    const fn new() -> Sum {
        Sum { count: AtomicU64::new(0), sum: AtomicU64::new(0), squares: AtomicU64::new(0) }
    }

    fn note(&self, ns: f64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add((ns * 1e3) as u64, Ordering::Relaxed);
        self.squares.fetch_add((ns * ns) as u64, Ordering::Relaxed);
    }

    fn mean(&self) -> Mean {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed) as f64;
        Mean { count: load(&self.count), sum: load(&self.sum) / 1e3, squares: load(&self.squares) }
    }
}

static COUNTS: Counts = Counts {
    samples: AtomicU64::new(0),
    on_window: AtomicU64::new(0),
    missed_parts: AtomicU64::new(0),
    undecided_parts: AtomicU64::new(0),
    verdicts: AtomicU64::new(0),
    unknown: AtomicU64::new(0),
    late: AtomicU64::new(0),
    injected_ns: AtomicU64::new(0),
    over_ns: AtomicU64::new(0),
    lag_ns: AtomicU64::new(0),
    machine: Sum::new(),
    access: Sum::new(),
};

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

thread_local! {
    /// What this thread has, once it is sampled. Without a destructor, so that a handler may look at it.
    static THREAD: Cell<*mut Thread> = const { Cell::new(null_mut()) };
}

/// The thread's clock that sends the signals.
struct Event {
    fd: c_int,
    /// By which it is known again: a program may close descriptors that are not its own.
    id: u64,
}

/// The kernel's ABI, `linux/perf_event.h`.
mod perf {
    pub const TYPE_SOFTWARE: u64 = 1;
    pub const TASK_CLOCK: u64 = 1;
    /// Of the structure's first version, whose eight words are all that is needed.
    pub const ATTRIBUTES_BYTES: u64 = 64;
    pub const DISABLED: u64 = 1 << 0;
    pub const EXCLUDE_KERNEL: u64 = 1 << 5;
    pub const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
    pub const FLAG_CLOEXEC: u64 = 1 << 3;
    pub const ENABLE: libc::c_ulong = 0x2400;
    pub const DISABLE: libc::c_ulong = 0x2401;
    pub const PERIOD: libc::c_ulong = 0x4008_2404;
    pub const ID: libc::c_ulong = 0x8008_2407;
}

/// System calls by number: programs may have functions of their own by these names.
fn call(number: c_long, arguments: [c_long; 5]) -> io::Result<c_long> {
    let [a, b, c, d, e] = arguments;
    // SAFETY: each caller passes what the call of that number takes.
    match unsafe { libc::syscall(number, a, b, c, d, e) } {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn fcntl(fd: c_int, what: c_int, value: c_long) -> io::Result<c_int> {
    call(libc::SYS_fcntl, [c_long::from(fd), c_long::from(what), value, 0, 0]).map(|result| result as c_int)
}

impl Event {
    /// Of the calling thread, not begun.
    fn open(period_ns: u64) -> io::Result<Event> {
        let flags = perf::DISABLED | perf::EXCLUDE_KERNEL | perf::EXCLUDE_HYPERVISOR;
        let attributes =
            [perf::TYPE_SOFTWARE | perf::ATTRIBUTES_BYTES << 32, perf::TASK_CLOCK, period_ns, 0, 0, flags, 0, 0];
        let at = (&raw const attributes) as c_long;
        // The calling thread, any processor, no group.
        let low = call(libc::SYS_perf_event_open, [at, 0, -1, -1, perf::FLAG_CLOEXEC as c_long])? as c_int;
        let fd = match fcntl(low, libc::F_DUPFD_CLOEXEC, c_long::from(FD_MIN)) {
            Ok(high) => {
                call(libc::SYS_close, [c_long::from(low), 0, 0, 0, 0])?;
                high
            }
            // So few may be open.
            Err(_) => low,
        };
        let mut event = Event { fd, id: 0 };
        event.id = event.current_id().ok_or_else(io::Error::last_os_error)?;
        /// `struct f_owner_ex` of `fcntl(2)`.
        #[repr(C)]
        struct Owner {
            kind: c_int,
            thread: libc::pid_t,
        }
        const F_SETSIG: c_int = 10;
        const F_SETOWN_EX: c_int = 15;
        const F_OWNER_TID: c_int = 0;
        let owner = Owner { kind: F_OWNER_TID, thread: call(libc::SYS_gettid, [0; 5])? as libc::pid_t };
        fcntl(fd, F_SETOWN_EX, (&raw const owner) as c_long)?;
        fcntl(fd, F_SETSIG, c_long::from(SIGNAL))?;
        fcntl(fd, libc::F_SETFL, c_long::from(libc::O_ASYNC))?;
        Ok(event)
    }

    fn control(&self, what: libc::c_ulong, argument: c_long) -> io::Result<c_long> {
        call(libc::SYS_ioctl, [c_long::from(self.fd), what as c_long, argument, 0, 0])
    }

    /// A refusal means that the program has closed it: then there are no samples.
    fn run(&self, runs: bool) {
        let _ = self.control(if runs { perf::ENABLE } else { perf::DISABLE }, 0);
    }

    fn set_period(&self, ns: u64) {
        let _ = self.control(perf::PERIOD, (&raw const ns) as c_long);
    }

    fn current_id(&self) -> Option<u64> {
        let mut id = 0_u64;
        self.control(perf::ID, (&raw mut id) as c_long).ok()?;
        Some(id)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.current_id() == Some(self.id) {
            let _ = call(libc::SYS_close, [c_long::from(self.fd), 0, 0, 0, 0]);
        }
    }
}

/// What a thread has.
struct Thread {
    event: Event,
    period_ns: u64,
    /// Samples since the latest one of the window.
    idle: u32,
    watch: Watch,
    own: Watch,
    /// Whether lines are looked at after the delay, instead of before it. While a thread is stopped others use the
    /// caches, its translations leave them, and the accesses after that take longer: looks are to be as those are on
    /// average.
    looks_after: bool,
    /// What is looked at in the next samples, in turns.
    ready: [Ready; READY_TURNS],
    turn: usize,
    survival: Survival,
    machine_ns: f64,
    access_ns: f64,
    owed_ns: f64,
    /// How long the latest handler took, without its delay; and the program's own time that a sample stands for.
    handled_ns: f64,
    stands_ns: f64,
    places: Places,
    /// Verdicts, and those of them that missed, by their shares.
    verdicts: f64,
    missed: f64,
    next_rung: usize,
    /// When the latest handler or delay ended.
    ended_ns: u64,
}

impl Thread {
    fn sample(&mut self, machine: &Machine, context: &libc::ucontext_t) {
        let now = clock_ns();
        if now < self.ended_ns + SOON_NS {
            return add(&COUNTS.late, 1);
        }
        add(&COUNTS.samples, 1);
        // The clock ran in the handler before, too, and in the kernel on the way to it.
        self.stands_ns = (self.period_ns as f64 - self.handled_ns - machine.sample_cost_ns).max(0.0);
        if !self.looks_after {
            self.look(machine, now);
        }
        LOOKING.fetch_add(1, Ordering::SeqCst);
        let found = locate(machine.skid, &mut self.places, context);
        LOOKING.fetch_sub(1, Ordering::SeqCst);
        if let Some((line, hit_ns)) = found {
            add(&COUNTS.on_window, 1);
            self.begin_watch(machine, line, hit_ns, now);
        }
        self.note_use(found.is_some());
        if !self.looks_after {
            self.make_ready(now);
        }
        let handled_ns = (clock_ns() - now) as f64;
        self.owed_ns -= machine.sample_cost_ns + handled_ns;
        self.pay();
        let now = clock_ns();
        if self.looks_after {
            self.look(machine, now);
            self.make_ready(now);
        }
        self.looks_after = !self.looks_after;
        self.ended_ns = clock_ns();
        let looked_ns = (self.ended_ns - now) as f64;
        self.handled_ns = (handled_ns + looked_ns).min(self.period_ns as f64);
        self.owed_ns = (self.owed_ns - looked_ns).max(-OWED_MIN_NS);
    }

    /// Takes a line of the window out of the caches, so that it is known whether it is used again, and one that nobody
    /// uses into them; and measures the machine's memory.
    fn begin_watch(&mut self, machine: &Machine, line: usize, hit_ns: u64, now: u64) {
        let watched = Watched::new(line, now, hit_ns);
        let is_watched = with_line(line, true, || {
            // SAFETY: the page is mapped, as was just seen, and stays so; else its fault is resolved as others are.
            unsafe { flush(line) };
        });
        if is_watched.is_none() || !self.watch.push(0, watched) {
            add(&COUNTS.unknown, 1);
        }
        for _ in 0..OWN_LINES {
            // Without room for it nothing is learned from this one.
            self.own.push(self.next_rung, Watched::new(machine.processor.next_line(), now, 0));
            self.next_rung = (self.next_rung + 1) % RUNGS;
        }
        if let Some(ns) = machine.processor.memory_ns() {
            COUNTS.machine.note(ns);
            self.machine_ns += (ns - self.machine_ns) * NEW_SHARE;
        }
    }

    /// Who does not use the window is sampled less often.
    fn note_use(&mut self, is_use: bool) {
        self.idle = if is_use { 0 } else { self.idle.saturating_add(1) };
        let period_ns = if self.idle < IDLE_SAMPLES { PERIOD_NS } else { IDLE_PERIOD_NS };
        if period_ns != self.period_ns {
            self.period_ns = period_ns;
            self.event.set_period(period_ns);
        }
    }

    /// Takes lines whose time has come for a look a few samples later. Those of pages that have left are not looked
    /// at: it would bring them in. The question is asked now, because the answer leaves the page's translation in the
    /// caches, where it would make the look too short.
    fn make_ready(&mut self, now: u64) {
        let mut ready = Ready { lines: Few::new(), own: (0..LOOKS_MAX).map_while(|_| self.own.due(now)).collect() };
        for (rung, watched) in (0..LOOKS_MAX).map_while(|_| self.watch.due(now)) {
            if with_line(watched.line, true, || ()).is_some() {
                ready.lines.push(rung, watched);
            } else {
                add(&COUNTS.unknown, 1);
            }
        }
        self.ready[self.turn] = ready;
        self.turn = (self.turn + 1) % READY_TURNS;
    }

    /// Looks at the lines that were made ready.
    fn look(&mut self, machine: &Machine, now: u64) {
        let Ready { lines, own } = self.ready[self.turn];
        for (rung, watched) in own {
            if let Some(ns) = machine.processor.own_load_ns(watched.line) {
                self.survival.note(rung, ns < self.machine_ns * CACHED_SHARE);
            }
        }
        for (rung, watched) in lines {
            let Some(was_cached) = self.is_cached(machine, watched.line) else {
                add(&COUNTS.unknown, 1);
                continue;
            };
            match self.survival.judge(rung, was_cached, watched) {
                Verdict::Missed(share) => self.decide(share, &watched, now),
                Verdict::Again(rung, watched) => self.watch_again(rung, watched),
            }
        }
    }

    /// Whether a line of the window is in the caches; nothing if it cannot be told. A line that is not shows what an
    /// access takes.
    fn is_cached(&mut self, machine: &Machine, line: usize) -> Option<bool> {
        // SAFETY: the page was mapped a few samples ago. If it has left since, the load brings it in as any other does;
        // whoever takes the permission to load from the program forbids looks before.
        let ns = with_line(line, false, || unsafe { machine.processor.load_ns(line) })??;
        let is_cached = ns < self.machine_ns * CACHED_SHARE;
        if !is_cached {
            COUNTS.access.note(ns);
            self.access_ns += (ns - self.access_ns) * NEW_SHARE;
        }
        Some(is_cached)
    }

    fn watch_again(&mut self, rung: usize, watched: Watched) {
        let flushed = with_line(watched.line, true, || {
            // SAFETY: as in `begin_watch`.
            unsafe { flush(watched.line) };
        });
        if flushed.is_none() || !self.watch.push(rung, Watched { since_ns: clock_ns(), ..watched }) {
            add(&COUNTS.unknown, 1);
        }
    }

    fn decide(&mut self, share: f64, watched: &Watched, now: u64) {
        add(&COUNTS.verdicts, 1);
        add(&COUNTS.missed_parts, (share * PARTS) as u64);
        add(&COUNTS.undecided_parts, (share * (1.0 - share) * PARTS) as u64);
        add(&COUNTS.lag_ns, now.saturating_sub(watched.sampled_ns));
        self.verdicts += 1.0;
        self.missed += share;
        self.owed_ns += delay_ns(self.stands_ns, share, watched.hit_ns, self.machine_ns, self.access_ns);
    }

    /// Stops the thread for what it owes. It spins, as a processor whose load is not answered waits; its clock stands
    /// still meanwhile, so that delays are not sampled.
    fn pay(&mut self) {
        if self.owed_ns < OWED_MIN_NS {
            return;
        }
        let wanted = self.owed_ns.min(DELAY_MAX_NS);
        let (mut last, mut took) = (clock_ns(), 0.0);
        self.event.run(false);
        let mut is_running = false;
        while took < wanted || !is_running {
            if took >= wanted {
                self.event.run(true);
                is_running = true;
            }
            std::hint::spin_loop();
            let now = clock_ns();
            // The time in which others had the processor does not count.
            took += ((now - last) as f64).min(STOLEN_NS);
            last = now;
        }
        add(&COUNTS.injected_ns, took as u64);
        add(&COUNTS.over_ns, (took - wanted) as u64);
        self.owed_ns -= took;
    }

    /// The thread ends: what was not looked at yet is taken for what the others were.
    fn settle(&mut self, machine: &Machine) {
        self.event.run(false);
        let now = clock_ns();
        for (rung, watched) in self.ready.into_iter().flat_map(|ready| ready.lines) {
            self.watch.push(rung, watched);
        }
        while let Some((rung, watched)) = self.watch.any() {
            let is_mapped = with_line(watched.line, true, || ()).is_some();
            let looked = if is_mapped { self.is_cached(machine, watched.line) } else { None };
            let Some(was_cached) = looked else {
                add(&COUNTS.unknown, 1);
                continue;
            };
            let otherwise = if self.verdicts > 0.0 { self.missed / self.verdicts } else { 1.0 };
            let share = match self.survival.judge(rung, was_cached, watched) {
                Verdict::Missed(share) => share,
                // Found each time so far, or not found yet.
                Verdict::Again(..) if was_cached => 1.0 - watched.hit_share,
                Verdict::Again(..) => otherwise,
            };
            self.decide(share, &watched, now);
        }
        while self.owed_ns >= OWED_MIN_NS {
            self.pay();
        }
        self.event.run(false);
    }
}

/// Lines of the window, and lines that nobody uses, for a look.
#[derive(Clone, Copy)]
struct Ready {
    lines: Few,
    own: Few,
}

/// A few watched lines.
#[derive(Clone, Copy)]
struct Few {
    places: [(usize, Watched); LOOKS_MAX],
    count: usize,
}

impl Few {
    fn new() -> Few {
        Few { places: [(0, Watched::new(0, 0, 0)); LOOKS_MAX], count: 0 }
    }

    fn push(&mut self, rung: usize, watched: Watched) {
        self.places[self.count] = (rung, watched);
        self.count += 1;
    }
}

impl FromIterator<(usize, Watched)> for Few {
    fn from_iter<I: IntoIterator<Item = (usize, Watched)>>(all: I) -> Few {
        let mut few = Few::new();
        all.into_iter().take(LOOKS_MAX).for_each(|(rung, watched)| few.push(rung, watched));
        few
    }
}

impl IntoIterator for Few {
    type Item = (usize, Watched);
    type IntoIter = std::iter::Take<std::array::IntoIter<(usize, Watched), LOOKS_MAX>>;

    fn into_iter(self) -> Self::IntoIter {
        self.places.into_iter().take(self.count)
    }
}

/// The window that an address lies in, if hits have a latency there.
fn delayed(address: u64) -> Option<&'static Shared> {
    let (shared, _) = window_at(address as usize)?;
    let is_delayed = shared.hit_ns.load(Ordering::Relaxed) > 0 && shared.state.load(Ordering::Acquire) == LIVE;
    is_delayed.then_some(shared)
}

/// Does something with a line of a window, if there is one, which may be used, and its page is mapped if that is
/// `asked`. A page that leaves in between faults as any other access does.
fn with_line<T>(line: usize, asked: bool, f: impl FnOnce() -> T) -> Option<T> {
    LOOKING.fetch_add(1, Ordering::SeqCst);
    let may = !LOOKS_FORBIDDEN.load(Ordering::SeqCst);
    // In a frozen window a fault would wait for the thaw, which this thread may have to do.
    let can = |shared: &&Shared| may && !shared.is_frozen() && (!asked || is_mapped(shared, line));
    let done = delayed(line as u64).filter(can).map(|_| f());
    LOOKING.fetch_sub(1, Ordering::SeqCst);
    done
}

fn is_mapped(shared: &Shared, address: usize) -> bool {
    const PRESENT: u64 = 1 << 63;
    let mut entry = 0_u64;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&shared.uffd.page_map());
    let at = (address / PAGE * size_of::<u64>()) as c_long;
    let read = call(libc::SYS_pread64, [c_long::from(fd), (&raw mut entry) as c_long, 8, at, 0]);
    read.is_ok_and(|bytes| bytes == 8) && entry & PRESENT != 0
}

/// The line of a window that a thread waited for, and what a hit takes there.
fn locate(skid: Skid, places: &mut Places, context: &libc::ucontext_t) -> Option<(usize, u64)> {
    const NUMBERS: [c_int; 16] = [
        libc::REG_RAX,
        libc::REG_RCX,
        libc::REG_RDX,
        libc::REG_RBX,
        libc::REG_RSP,
        libc::REG_RBP,
        libc::REG_RSI,
        libc::REG_RDI,
        libc::REG_R8,
        libc::REG_R9,
        libc::REG_R10,
        libc::REG_R11,
        libc::REG_R12,
        libc::REG_R13,
        libc::REG_R14,
        libc::REG_R15,
    ];
    let registers: Registers = NUMBERS.map(|number| context.uc_mcontext.gregs[number as usize] as u64);
    let rip = context.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    let mut bytes = [0_u8; BEFORE_BYTES + AFTER_BYTES];
    // What is before in the same page is there, because the thread executes it.
    let from = rip.saturating_sub(BEFORE_BYTES as u64).max(rip & !(PAGE as u64 - 1));
    let read = read_own(from, &mut bytes);
    let code = Code { at: from, bytes: &bytes[..read] };
    let address = accessed(code, rip, &registers, (skid, places), |address| delayed(address).is_some())?;
    let hit_ns = delayed(address)?.hit_ns.load(Ordering::Relaxed);
    Some(((address & !(LINE - 1)) as usize, hit_ns))
}

/// Reads from this process's memory, whether it is mapped or not; how many bytes.
fn read_own(from: u64, bytes: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: from as *mut c_void, iov_len: bytes.len() };
    // SAFETY: both are live values, and the bytes are as many as is said; what is not mapped is an error.
    let read = unsafe {
        libc::syscall(libc::SYS_process_vm_readv, libc::getpid(), &raw const local, 1, &raw const remote, 1, 0)
    };
    usize::try_from(read).unwrap_or(0).min(bytes.len())
}

extern "C" fn on_sample(_: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno is a thread-local of the C library; the code that was interrupted finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo and context.
    let (is_kernels, context) = unsafe { ((*info).si_code > 0, &*context.cast::<libc::ucontext_t>()) };
    if is_kernels && MEASURING.load(Ordering::Relaxed) {
        note_measured(context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize);
    } else if is_kernels
        && ON.load(Ordering::Acquire)
        && let Some(machine) = MACHINE.get()
    {
        // SAFETY: it is this thread's, from a box, and set to null before that is freed. Its handler is not
        // interrupted by itself.
        if let Some(thread) = unsafe { THREAD.get().as_mut() } {
            thread.sample(machine, context);
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

fn note_measured(rip: usize) {
    let load = chase as *const () as usize;
    if rip == load {
        add(&AT_LOAD, 1);
    } else if rip == load + CHASE_LOAD_BYTES {
        add(&BEHIND_LOAD, 1);
    }
    add(&INTERRUPTS, 1);
}

/// Whether this process may be sampled.
///
/// # Errors
/// It may not.
pub fn check() -> Result<(), HitError> {
    Event::open(PERIOD_NS).map(drop).map_err(HitError::NoPermission)
}

/// Samples the calling thread from now on, and those that [`enter_thread`]; hits of this window have a latency.
pub(crate) fn begin(shared: &Shared) -> Result<(), HitError> {
    let _one = BEGINNING.lock().unwrap_or_else(PoisonError::into_inner);
    if MACHINE.get().is_none() {
        let machine = measure()?;
        let key = leave_key().map_err(|source| HitError::System { what: "have ends of threads told", source })?;
        LEAVE_KEY.store(key, Ordering::Release);
        // SAFETY: the function does what such a function may.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        MACHINE.get_or_init(|| machine);
    }
    HIT_NS.store(shared.hit_ns.load(Ordering::Relaxed), Ordering::Relaxed);
    ON.store(true, Ordering::Release);
    enter_thread();
    Ok(())
}

/// Whether this process's threads are sampled.
#[must_use]
pub fn is_on() -> bool {
    ON.load(Ordering::Acquire)
}

extern "C" fn in_child() {
    ON.store(false, Ordering::Release);
    // The parent's threads may have looked just when it forked.
    LOOKING.store(0, Ordering::SeqCst);
    let thread = THREAD.replace(null_mut());
    if !thread.is_null() {
        // SAFETY: it came from a box, and was taken from its place just now.
        drop(unsafe { Box::from_raw(thread) });
    }
}

fn install() -> Result<(), HitError> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: an all-zero sigaction is a valid value of that plain struct, and all pointers are to live values.
    let before = unsafe {
        libc::sigaction(SIGNAL, std::ptr::null(), before.as_mut_ptr());
        before.assume_init()
    };
    if ![libc::SIG_DFL, libc::SIG_IGN, on_sample as *const () as usize].contains(&before.sa_sigaction) {
        return Err(HitError::SignalTaken);
    }
    // SAFETY: as above; the handler does only what a handler may.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_sample as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        libc::sigfillset(&raw mut action.sa_mask);
        // An access of the handler may fault, and a fault whose signal waits ends the program.
        for signal in [libc::SIGBUS, libc::SIGSEGV, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(&raw mut action.sa_mask, signal);
        }
        libc::sigaction(SIGNAL, &raw const action, null_mut());
    }
    Ok(())
}

/// Measures what loads take here, where interrupts come, and what they cost.
fn measure() -> Result<Machine, HitError> {
    let fail = |what| move |source| HitError::System { what, source };
    install()?;
    let event = Event::open(MEASURE_PERIOD_NS).map_err(HitError::NoPermission)?;
    let processor = Processor::new().map_err(fail("map memory to measure the processor by"))?;
    let mut memory = Mean::default();
    (0..MEMORY_LOADS).filter_map(|_| processor.memory_ns()).for_each(|ns| memory.note(ns));
    // The decoder makes its tables when it is used first, which no handler may.
    let none: Registers = [0; 16];
    let code = Code { at: 0, bytes: &[0x90, 0xc3] };
    accessed(code, 0, &none, (Skid::At, &mut Places::new()), |_| false);
    MEASURING.store(true, Ordering::Release);
    event.run(true);
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    for _ in 0..MEASURE_TURNS_MAX {
        event.run(false);
        let (first, steps) = processor.chain();
        event.run(true);
        std::hint::black_box(chase(first, steps));
        if load(&AT_LOAD) + load(&BEHIND_LOAD) >= MEASURED_MIN {
            break;
        }
    }
    event.run(false);
    let (at, before, all) = (load(&AT_LOAD), load(&BEHIND_LOAD), load(&INTERRUPTS));
    event.run(true);
    let sample_cost_ns = sample_cost(&processor);
    event.run(false);
    MEASURING.store(false, Ordering::Release);
    let skid = match () {
        () if all < MEASURED_MIN => None,
        () if before * 1000 >= all * SKID_PERMILLE_MIN => Some(Skid::Before),
        () if at * 1000 >= all * SKID_PERMILLE_MIN => Some(Skid::At),
        () => None,
    };
    let skid = skid.ok_or(HitError::NoSkid { at, before, all })?;
    Ok(Machine { processor, skid, memory, sample_cost_ns })
}

/// What an interrupt with its signal takes, from the gaps in a thread that looks at its clock: the median.
fn sample_cost(processor: &Processor) -> f64 {
    const GAPS_MAX: usize = 1024;
    let (mut gaps, mut counted) = (Vec::with_capacity(GAPS_MAX), INTERRUPTS.load(Ordering::Relaxed));
    let (began, mut last, mut before) = (clock_ns(), ticks(), 0);
    while gaps.len() < GAPS_MAX {
        let count = INTERRUPTS.load(Ordering::Relaxed);
        let now = ticks();
        let gap = now.wrapping_sub(last);
        if count != counted {
            counted = count;
            // It came before this look at the clock, or before the one before.
            gaps.push(processor.ns(gap.max(before)));
            if clock_ns() > began + COST_NS {
                break;
            }
        }
        (last, before) = (now, gap);
    }
    gaps.sort_unstable_by(f64::total_cmp);
    gaps.get(gaps.len() / 2).copied().unwrap_or(0.0)
}

/// The key whose value's end is a thread's.
static LEAVE_KEY: AtomicU32 = AtomicU32::new(0);

fn leave_key() -> io::Result<u32> {
    extern "C" fn leave(_: *mut c_void) {
        leave_thread();
    }
    let mut key = 0;
    // SAFETY: the pointer is to a live value, and the function lives as long as the process.
    match unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } {
        0 => Ok(key),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Samples the calling thread from now on, if this process has a window whose hits have a latency. A thread that the
/// kernel gives no clock to is not sampled.
pub fn enter_thread() {
    let Some(machine) = MACHINE.get().filter(|_| is_on() && THREAD.get().is_null()) else { return };
    let Ok(event) = Event::open(PERIOD_NS) else { return };
    let machine_ns = machine.memory.value().unwrap_or(0.0);
    let thread = Box::into_raw(Box::new(Thread {
        event,
        period_ns: PERIOD_NS,
        idle: 0,
        looks_after: false,
        watch: Watch::new(FLUSHED_NS),
        own: Watch::new(LOADED_NS),
        ready: [Ready { lines: Few::new(), own: Few::new() }; READY_TURNS],
        turn: 0,
        survival: Survival::new(),
        machine_ns,
        access_ns: machine_ns,
        owed_ns: 0.0,
        handled_ns: 0.0,
        stands_ns: PERIOD_NS as f64,
        places: Places::new(),
        verdicts: 0.0,
        missed: 0.0,
        next_rung: 0,
        ended_ns: 0,
    }));
    THREAD.set(thread);
    // SAFETY: the key is there since the machine is, and it is a value of this thread's; the thread was just made.
    unsafe {
        libc::pthread_setspecific(LEAVE_KEY.load(Ordering::Acquire), thread.cast());
        (*thread).event.run(true);
    }
}

/// Ends the samples of the calling thread, after the delays that it still owes.
pub fn leave_thread() {
    let thread = THREAD.get();
    if thread.is_null() {
        return;
    }
    // SAFETY: it came from a box, and is this thread's alone. Its clock is stopped before it is used here, and what
    // may wait of its signals finds no thread.
    let mut thread = unsafe {
        (*thread).event.run(false);
        THREAD.set(null_mut());
        Box::from_raw(thread)
    };
    if let Some(machine) = MACHINE.get().filter(|_| is_on()) {
        thread.settle(machine);
    }
}

/// A handler of this library's has ended in the calling thread: a sample that comes now came due in it.
pub(crate) fn note_handled() {
    // SAFETY: as in `on_sample`, whose signal waits meanwhile.
    if let Some(thread) = unsafe { THREAD.get().as_mut() } {
        thread.ended_ns = clock_ns();
    }
}

/// From now on no line of a window is looked at: the program makes some inaccessible. What is sampled after that is
/// counted as unknown.
pub fn forbid_looks() {
    LOOKS_FORBIDDEN.store(true, Ordering::SeqCst);
    await_looks();
}

/// Waits until nobody looks at a line who began before.
pub(crate) fn await_looks() {
    while LOOKING.load(Ordering::SeqCst) > 0 {
        std::hint::spin_loop();
    }
}

/// What was added so far; nothing if no window's hits have a latency.
#[must_use]
pub fn figures() -> Option<HitFigures> {
    let machine = MACHINE.get()?;
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let (missed, undecided) = (load(&COUNTS.missed_parts) as f64 / PARTS, load(&COUNTS.undecided_parts) as f64 / PARTS);
    let (running, access) = (COUNTS.machine.mean(), COUNTS.access.mean());
    let (samples, unknown, hit_ns) = (load(&COUNTS.samples), load(&COUNTS.unknown), load(&HIT_NS));
    let doubt = Doubt {
        samples: samples as f64,
        missed,
        undecided,
        unknown: unknown as f64,
        hit_ns: hit_ns as f64,
        machine: running,
        access,
    };
    let machine_start_ns = machine.memory.value().unwrap_or(0.0);
    Some(HitFigures {
        hit_ns,
        machine_start_ns,
        machine_ns: running.value().unwrap_or(machine_start_ns),
        access_ns: access.value().unwrap_or(0.0),
        period_ns: PERIOD_NS,
        sample_cost_ns: machine.sample_cost_ns,
        samples,
        on_window: load(&COUNTS.on_window),
        missed,
        unknown,
        late: load(&COUNTS.late),
        injected_ns: load(&COUNTS.injected_ns),
        over_ns: load(&COUNTS.over_ns),
        lag_ns: load(&COUNTS.lag_ns).checked_div(load(&COUNTS.verdicts)).unwrap_or(0),
        error: doubt.share(),
    })
}
