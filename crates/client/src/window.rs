//! The window itself: mapping, commands, statistics.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use osier_cache::parse_policy;
pub use osier_device::window::message::Figures as WindowStats;
use osier_device::window::message::{FIGURES_AT, HELPS_AT, LANES, PageTables, RING_ENTRIES, ToDevice, Words};
use osier_device::window::{Command, Report};
use osier_pmr::{Doorbell, Object, Ring, SharedLines, pass, ring_bytes};

use crate::attach::{Attached, attach};
use crate::error::WindowError;
use crate::fault::pause;
use crate::histogram::Timing;
use crate::hits::{self, HitLatency};
use crate::shared::{AWAKE, CLOSING, LIVE, SHARDS_MAX, Shared};
use crate::stores::StoreTracking;
use crate::uffd::{PAGE, Uffd};
use crate::{evict, handler, heap, signal, watch};

/// How long signals of a thread wait that waits for the end of a command.
const SIGNALS_WAIT_MAX: Duration = Duration::from_millis(10);

/// What the address of a window is a multiple of, for allocators that divide it.
const ALIGNMENT: usize = 2 << 20;

/// Who resolves a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultMode {
    /// The thread that faulted, in a handler of SIGBUS: the fastest, and needs no permission. A system call that is
    /// given a page outside the cache fails with EFAULT, and where a store can be a fault ([`StoreTracking`]) so does
    /// one that stores to a page which was only loaded. Signal handlers of the program must leave SIGBUS alone.
    #[default]
    InThread,
    /// A thread that spins. System calls work; it takes a processor.
    Spinning,
    /// A thread that sleeps until there is a fault.
    Sleeping,
}

/// How a window is opened.
#[derive(Clone, Debug, Default)]
pub struct WindowOptions {
    /// Bytes to map from the device's first, whole pages; nothing maps all.
    pub bytes: Option<u64>,
    /// Who resolves faults.
    pub mode: FaultMode,
    /// How stores are tracked; nothing for as well as the kernel can.
    pub stores: Option<StoreTracking>,
    /// Parts of the window with a userfaultfd each, and in the modes with a handler a thread each, at most
    /// [`SHARDS_MAX`]; 0 is 1.
    pub shards: usize,
    /// What a load of a resident page is to take; nothing for what this machine's memory takes. Samples the thread
    /// that opens the window, and those that call [`enter_thread`](crate::hits::enter_thread).
    pub hit_latency: Option<HitLatency>,
    /// What each of the window's own threads does first.
    pub on_thread: Option<fn()>,
    /// Whether stores go to what a [`Lease`](crate::heap::Lease) has alone. Otherwise all that is mapped counts as used
    /// from now on, and heaps of `osier run` make their memory zero before they take it.
    pub is_leased: bool,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("device", &self.shared.device).field("bytes", &self.shared.bytes).finish()
    }
}

/// The memory of a device, mapped. Closes when it is dropped: whoever touches it then is on his own.
pub struct Window {
    shared: Arc<Shared>,
    next_tag: AtomicU32,
    threads: Vec<JoinHandle<()>>,
    _socket: UnixStream,
}

impl Window {
    /// Attaches to the device that serves at `socket`, and maps it.
    ///
    /// # Errors
    /// What is missing, and what can be done.
    pub fn open(socket: &Path, options: &WindowOptions) -> Result<Window, WindowError> {
        Window::open_part(socket, options, 0, |bytes, memory| {
            let base = find_place(bytes)?;
            map_over(base, bytes, memory, 0)?;
            Ok(base)
        })
    }

    /// The same for a part of the window, from its byte `from` on, over what is mapped at an address. After an error
    /// nothing is mapped there.
    ///
    /// # Errors
    /// As [`Window::open`].
    ///
    /// # Safety
    /// As many bytes from `at` on as are asked for are the caller's, and nobody uses them.
    pub unsafe fn open_at(socket: &Path, options: &WindowOptions, from: u64, at: usize) -> Result<Window, WindowError> {
        assert!(at.is_multiple_of(PAGE) && from.is_multiple_of(PAGE as u64), "whole pages are mapped");
        Window::open_part(socket, options, from, |bytes, memory| {
            map_over(at, bytes, memory, from)?;
            Ok(at)
        })
    }

    fn open_part(
        socket: &Path,
        options: &WindowOptions,
        from: u64,
        map: impl FnOnce(usize, &OwnedFd) -> Result<usize, WindowError>,
    ) -> Result<Window, WindowError> {
        if options.shards > SHARDS_MAX {
            return Err(WindowError::TooManyShards { wanted: options.shards });
        }
        let attached = attach(socket)?;
        let device_bytes = attached.pages * PAGE as u64;
        let left = device_bytes.saturating_sub(from);
        let wanted = options.bytes.unwrap_or(left).next_multiple_of(PAGE as u64);
        if wanted > left || wanted == 0 {
            return Err(WindowError::TooLarge { wanted, device: attached.device, bytes: device_bytes });
        }
        let bytes = wanted as usize;
        let first = from / PAGE as u64;
        let base = map(bytes, &attached.memory)?;
        let shared = match Window::share(&attached, base, bytes, first, options) {
            Ok(shared) => Arc::new(shared),
            Err(error) => {
                unmap(base, bytes);
                return Err(error);
            }
        };
        if mode_helps(options.mode) {
            shared.words.word64(HELPS_AT).store(1, Ordering::Release);
        }
        if let Err(error) = signal::note(&shared) {
            unmap(base, bytes);
            return Err(error);
        }
        let stores = shared.uffd.stores();
        if stores == StoreTracking::Nothing && options.stores != Some(stores) {
            let why = "this kernel does not track stores to shared memory (Linux 5.19)";
            shared.say(&format!("{why}: every page that leaves counts as dirty, and is written to the flash"));
        }
        // Without it pages count as dirty when they leave.
        let tables = PageTables { origin: (base as u64).wrapping_sub(from), marks: stores.marks() };
        let _ = pass::send(&attached.socket, &tables.encode(), &[shared.uffd.page_map()]);
        let mut window = Window { shared, next_tag: AtomicU32::new(1), threads: Vec::new(), _socket: attached.socket };
        window.start(attached.pidfd, options.on_thread)?;
        if options.hit_latency.is_some() {
            window.begin_hits()?;
        }
        if !options.is_leased {
            let what = "note in the file beside the socket that the window is used";
            heap::note_use(socket, from + wanted).map_err(|source| WindowError::System { what, source })?;
        }
        Ok(window)
    }

    fn share(
        attached: &Attached,
        base: usize,
        bytes: usize,
        first: u64,
        options: &WindowOptions,
    ) -> Result<Shared, WindowError> {
        let mode = options.mode;
        let find = |name| attached.segment.find(name).map_err(|error| WindowError::Segment(error.to_string()));
        let bell = attached.bell.find("bell").map_err(|error| WindowError::Segment(error.to_string()))?;
        Ok(Shared {
            base,
            bytes,
            first,
            device: attached.device.clone(),
            mode,
            // SAFETY: a plain call.
            owner_pid: unsafe { libc::getpid() },
            uffd: Uffd::new(base, bytes, options.shards, mode == FaultMode::InThread, options.stores)?,
            memory: attached
                .memory
                .try_clone()
                .map_err(|source| WindowError::System { what: "keep the window's memory", source })?,
            gates: std::array::from_fn(|_| AtomicU32::new(AWAKE)),
            lanes: SharedLines::new(&find("lanes")?, 0, LANES * 2),
            free_lanes: AtomicU64::new(u64::MAX),
            bringing: std::array::from_fn(|_| AtomicU64::new(0)),
            numbers: std::array::from_fn(|_| AtomicU64::new(0)),
            touched: (0..(bytes / PAGE).div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            words: find("words")?,
            device_bell: Doorbell::new(&bell, 0),
            bell: Doorbell::new(&find("bell")?, 0),
            to_device: Mutex::new(ring(&find("to-device")?)?.producer()),
            zapper: Mutex::new(evict::Zapper::new(ring(&find("to-mapper")?)?.consumer())),
            state: AtomicU32::new(LIVE),
            stop: eventfd()?,
            commands: Mutex::new(HashMap::new()),
            ended: Condvar::new(),
            timing: Timing::new(&find("timing")?),
            hit_ns: AtomicU64::new(match options.hit_latency {
                None => 0,
                Some(HitLatency::Profile) => attached.hit_ns,
                Some(HitLatency::Nanoseconds(ns)) => u64::from(ns),
            }),
        })
    }

    fn begin_hits(&self) -> Result<(), WindowError> {
        hits::begin(&self.shared)?;
        let hit_ns = self.shared.hit_ns.load(Ordering::Relaxed);
        let figures = hits::figures().unwrap_or_default();
        if figures.machine_start_ns >= hit_ns as f64 {
            let (machine_ns, name) = (figures.machine_start_ns, "hits have no latency of their own");
            self.shared.say(&format!("{name}: they are to take {hit_ns} ns, and this memory takes {machine_ns:.0}"));
        }
        Ok(())
    }

    fn start(&mut self, pidfd: OwnedFd, first: Option<fn()>) -> Result<(), WindowError> {
        let nothing = memfd()?;
        self.spawn("osier-evict", first, evict::run)?;
        self.spawn("osier-watch", first, move |shared| watch::run(shared, &pidfd, &nothing))?;
        if self.shared.mode != FaultMode::InThread {
            for part in 0..self.shared.uffd.parts() {
                self.spawn("osier-faults", first, move |shared| handler::run(shared, part))?;
            }
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: &str,
        first: Option<fn()>,
        run: impl FnOnce(&Shared) + Send + 'static,
    ) -> Result<(), WindowError> {
        let shared = Arc::clone(&self.shared);
        // It has this thread's mask from its first instruction: a handler that touches the window must not run in it.
        let _blocked = signal::Blocked::new();
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            hits::leave_thread();
            if let Some(first) = first {
                first();
            }
            run(&shared);
        });
        let thread = thread.map_err(|source| WindowError::System { what: "start a thread of the window", source })?;
        self.threads.push(thread);
        Ok(())
    }

    /// The first byte. Valid until the window is dropped; when the device dies each access is a SIGBUS.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.shared.base as *mut u8
    }

    /// The window as words that anybody may store to at any time, for programs that do without pointers.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        let length = self.shared.bytes / size_of::<AtomicU64>();
        // SAFETY: the mapping starts at a page, is so long, and lives as long as the window; what other programs store
        // there, or this one by its pointer, is for atomics what another thread stores.
        unsafe { std::slice::from_raw_parts(self.shared.base as *const AtomicU64, length) }
    }

    /// The bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.bytes
    }

    /// Never: a window has at least a page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shared.bytes == 0
    }

    /// The device's name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.shared.device
    }

    /// Whether the device serves.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.shared.is_live()
    }

    /// Brings pages into the device's cache; ends when they are there. The first access to each still faults, briefly.
    ///
    /// # Errors
    /// Pages beyond the end, or the device has died.
    pub fn prefetch(&self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Prefetch(pages))
    }

    /// Brings pages into the cache and keeps them there until as many unpins have come: all or none.
    ///
    /// # Errors
    /// More than may be pinned, pages beyond the end or that the flash has lost, or the device has died.
    pub fn pin(&self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Pin(pages))
    }

    /// Takes one pin off each page that has one.
    ///
    /// # Errors
    /// As [`Window::prefetch`].
    pub fn unpin(&self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Unpin(pages))
    }

    /// Lets pages leave the cache; ends when they have. Dirty ones are programmed.
    ///
    /// # Errors
    /// As [`Window::prefetch`].
    pub fn evict(&self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Evict(pages))
    }

    /// Changes the device's eviction policy: a name, and parameters that are to have other values than their authors
    /// published, as in `s3-fifo:small_permille=200,ghost_permille=500`.
    ///
    /// # Errors
    /// There is none of this name, or it cannot have these parameters; or the device has died.
    pub fn set_policy(&self, policy: &str) -> Result<Report, WindowError> {
        let (name, parameters) = parse_policy(policy)?;
        self.command(Command::Policy { name: name.to_owned(), parameters })
    }

    /// The device's figures.
    #[must_use]
    pub fn stats(&self) -> WindowStats {
        let word = |index: usize| self.shared.words.word64(FIGURES_AT + index as u64 * 8).load(Ordering::Relaxed);
        WindowStats::decode(std::array::from_fn(word))
    }

    /// How stores are tracked.
    #[must_use]
    pub fn stores(&self) -> StoreTracking {
        self.shared.uffd.stores()
    }

    /// The window's own threads.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// How well the times were kept.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        &self.shared.timing
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    pub(crate) fn died(&self) -> WindowError {
        WindowError::DeviceDied { device: self.shared.device.clone() }
    }

    fn command(&self, command: Command) -> Result<Report, WindowError> {
        let shared = &self.shared;
        if !shared.is_owner() {
            return Err(WindowError::Forked { device: shared.device.clone(), owner: shared.owner_pid });
        }
        let tag = self.next_tag.fetch_add(1, Ordering::Relaxed);
        let words = ToDevice::Command(tag, command).encode()?;
        self.expect_end(tag);
        let mut spins = 0;
        while !self.tell(&words) {
            if !shared.is_live() {
                return Err(self.died());
            }
            pause(&mut spins);
        }
        shared.device_bell.ring();
        loop {
            // Between two turns of this loop handlers run, while nothing is held.
            let _blocked = signal::Blocked::new();
            let mut commands = shared.commands.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Some(result)) = commands.get(&tag).copied() {
                commands.remove(&tag);
                return result.map_err(|refusal| WindowError::Command { device: shared.device.clone(), refusal });
            }
            if !shared.is_live() {
                commands.remove(&tag);
                return Err(self.died());
            }
            drop(shared.ended.wait_timeout(commands, SIGNALS_WAIT_MAX));
        }
    }

    fn expect_end(&self, tag: u32) {
        let _blocked = signal::Blocked::new();
        self.shared.commands.lock().unwrap_or_else(PoisonError::into_inner).insert(tag, None);
    }

    /// Says something to the device, if its ring has room.
    fn tell(&self, words: &Words) -> bool {
        let _blocked = signal::Blocked::new();
        self.shared.to_device.lock().unwrap_or_else(PoisonError::into_inner).push(*words).is_ok()
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if !self.shared.is_owner() {
            // A forked child has neither the window nor its threads; the parent has both.
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        let was_live = self.shared.state.swap(CLOSING, Ordering::AcqRel) == LIVE;
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
        signal::forget(&self.shared);
        hits::await_looks();
        unmap(self.shared.base, self.shared.bytes);
        if was_live && let Ok(words) = ToDevice::Detach.encode() {
            // A full ring means that the device is not listening; it hears of the process's end.
            self.tell(&words);
            self.shared.device_bell.ring();
        }
    }
}

/// Whether whoever resolves faults has time to unmap pages, so that the thread for that need not be woken at once.
fn mode_helps(mode: FaultMode) -> bool {
    match mode {
        FaultMode::InThread | FaultMode::Spinning => true,
        FaultMode::Sleeping => false,
    }
}

/// Reserves addresses where the system likes.
fn find_place(bytes: usize) -> Result<usize, WindowError> {
    let room = bytes + ALIGNMENT;
    let reserved = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), room, libc::PROT_NONE, reserved, -1, 0) } as usize;
    if start == libc::MAP_FAILED as usize {
        return Err(WindowError::last_os("map the window"));
    }
    let base = start.next_multiple_of(ALIGNMENT);
    unmap(start, base - start);
    unmap(base + bytes, start + room - base - bytes);
    Ok(base)
}

/// Maps the shared memory over what is there, not to be inherited: a child would see pages that are not resident.
fn map_over(base: usize, bytes: usize, memory: &OwnedFd, from: u64) -> Result<(), WindowError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let at = base as *mut libc::c_void;
    // SAFETY: what is mapped over is the caller's, and nobody uses it.
    let advised = unsafe {
        libc::mmap(at, bytes, protection, flags, memory.as_raw_fd(), from as libc::off_t) != libc::MAP_FAILED
            && libc::madvise(at, bytes, libc::MADV_DONTFORK) == 0
            && libc::madvise(at, bytes, libc::MADV_DONTDUMP) == 0
    };
    if !advised {
        let error = WindowError::last_os("map the window");
        unmap(base, bytes);
        return Err(error);
    }
    Ok(())
}

fn unmap(base: usize, bytes: usize) {
    if bytes > 0 {
        // SAFETY: the range is the window's own, and nobody may use it any more.
        unsafe { libc::munmap(base as *mut libc::c_void, bytes) };
    }
}

fn ring(object: &Object) -> Result<Ring<SharedLines>, WindowError> {
    let lines = SharedLines::new(object, 0, (ring_bytes(RING_ENTRIES) / 64) as usize);
    Ring::open(lines).map_err(|error| WindowError::Segment(error.to_string()))
}

fn eventfd() -> Result<OwnedFd, WindowError> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(WindowError::last_os("make an eventfd"));
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A file of no bytes.
fn memfd() -> Result<OwnedFd, WindowError> {
    // SAFETY: the name is a constant string ending in zero.
    let fd = unsafe { libc::memfd_create(c"osier-nothing".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(WindowError::last_os("make an empty file"));
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
