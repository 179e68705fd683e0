//! `osier run --dax`: paths that the program opens and maps, whose bytes are parts of the window that outlive it.
//!
//! To the program a path is a regular file of the part's size. What it opens is a file that stands in (`stand_in` of
//! the client), sealed against stores, so that what this library does not see fails. Its mappings are *views*: windows
//! on the whole part, of which the program gets what it asked for; a mapping of something that it has mapped already,
//! or at a fixed place, is of another view. A view stays until the process ends, because the device believes that it
//! knows what is mapped: what the program unmaps is made inaccessible, and given out again.
//!
//! Nothing here is locked by the windows' own threads, nor by those that are being started while a view is opened: both
//! map memory of no file only, and not where a view is yet.

use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::time::Duration;

use osier_client::Window;
use osier_client::extent::{Extent, plain};
use osier_client::heap::{Settings, stand_in};

use crate::locked::Locked;
use crate::own::{self, MAP_FAILED};
use crate::space::PAGE;
use crate::{CannotStart, guest, options, statistics};

/// Most views of a process.
const VIEWS_MAX: usize = 12;
/// Threads of a window, at most.
const VIEW_THREADS_MAX: usize = 3;
const _: () = assert!((VIEWS_MAX + 1) * VIEW_THREADS_MAX <= own::THREADS_MAX);
/// What a view's address is a multiple of, as DAX programs like it: a large page.
const ALIGNMENT: usize = 2 << 20;
/// How often pages that were on their way out are looked for again, and how long each wait is.
const FLUSH_TRIES_MAX: u32 = 10_000;
const FLUSH_WAIT: Duration = Duration::from_micros(200);

const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;
const NOTHING: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
const FIXED: i32 = libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE;
/// What else may be asked for: nothing that a view does otherwise.
const HARMLESS: i32 = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_NONBLOCK | libc::MAP_LOCKED;

/// An error of the system's.
pub type Errno = i32;

/// A path that stands for an extent.
pub struct Named {
    pub extent: Extent,
    /// The file that stands in for it.
    pub fd: i32,
    /// Its device and number.
    file: (u64, u64),
    /// The directory of the path, with nothing symbolic in it, if there is one.
    directory: Option<PathBuf>,
}

struct Known {
    settings: Settings,
    named: Vec<Named>,
}

static KNOWN: OnceLock<Known> = OnceLock::new();
/// The process that has the views.
static PID: AtomicI32 = AtomicI32::new(0);
static VIEWS: Locked<Vec<View>> = Locked::new(Vec::new());
/// The addresses of the views, for the look that every call takes.
static BOUNDS: [(AtomicUsize, AtomicUsize); VIEWS_MAX] =
    [const { (AtomicUsize::new(0), AtomicUsize::new(0)) }; VIEWS_MAX];

/// Bytes of a view that the program has.
#[derive(Clone)]
struct Part {
    addresses: Range<usize>,
    protection: i32,
    may_store: bool,
}

/// A window on a path's part of the device's, or on a piece of that.
struct View {
    /// From a box, and never freed in the process that opened it.
    window: *const Window,
    named: &'static Named,
    /// The bytes of the path that it shows.
    bytes: Range<u64>,
    base: usize,
    /// In no order, and disjoint. What is in none of them is inaccessible.
    parts: Vec<Part>,
    /// It is this library's own, for calls with the path's descriptor.
    is_own: bool,
}

// SAFETY: a window may be used by any thread.
unsafe impl Send for View {}

impl View {
    fn window(&self) -> &'static Window {
        // SAFETY: it came from a box that is not freed while its process lives; in a forked child it is replaced before
        // anybody sees it.
        unsafe { &*self.window }
    }

    fn addresses(&self) -> Range<usize> {
        self.base..self.base + (self.bytes.end - self.bytes.start) as usize
    }

    fn address_of(&self, byte: u64) -> usize {
        self.base + (byte - self.bytes.start) as usize
    }

    /// The pages of the window at some addresses.
    fn pages(&self, addresses: &Range<usize>) -> Range<u64> {
        let page = |address: usize| {
            (self.named.extent.first + self.bytes.start) / PAGE as u64 + ((address - self.base) / PAGE) as u64
        };
        page(addresses.start)..page(addresses.end)
    }

    /// Whether it shows some bytes of a path, and the program has none of them.
    fn is_free(&self, named: &Named, bytes: &Range<u64>) -> bool {
        let shows = std::ptr::eq(self.named, named) && self.bytes.start <= bytes.start && bytes.end <= self.bytes.end;
        shows && {
            let wanted = self.address_of(bytes.start)..self.address_of(bytes.end);
            self.parts.iter().all(|part| common(&part.addresses, &wanted).is_none())
        }
    }

    /// Whether the program has all of some addresses.
    fn has(&self, addresses: &Range<usize>) -> bool {
        let found = self.parts.iter().filter_map(|part| common(&part.addresses, addresses));
        found.map(|part| part.len()).sum::<usize>() == addresses.len()
    }

    /// Changes what the program has of some addresses.
    fn change(&mut self, addresses: &Range<usize>, change: impl Fn(&Part) -> Option<i32>) {
        let parts = std::mem::take(&mut self.parts);
        for part in parts {
            let Some(middle) = common(&part.addresses, addresses) else {
                self.parts.push(part);
                continue;
            };
            let changed = change(&part).map(|protection| Part { addresses: middle.clone(), protection, ..part });
            let around = [part.addresses.start..middle.start, middle.end..part.addresses.end];
            let rest = around.into_iter().filter(|rest| !rest.is_empty());
            self.parts.extend(rest.map(|addresses| Part { addresses, ..part }).chain(changed));
        }
    }

    /// Gives the program some addresses.
    fn give(&mut self, part: Part) {
        own::mprotect(part.addresses.start, part.addresses.len(), part.protection);
        self.parts.push(part);
    }
}

fn common(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let both = a.start.max(b.start)..a.end.min(b.end);
    (!both.is_empty()).then_some(both)
}

/// From now on the program's paths stand for what they are said to.
pub fn begin(settings: Settings) -> Result<(), CannotStart> {
    let named = settings.dax.iter().map(|dax| {
        let (fd, file) = match check(dax.fd, dax.extent.bytes) {
            Some(file) => (dax.fd, file),
            // Whoever started this program closed what it did not know.
            None => {
                let fd = stand_in(dax.extent.bytes)?.into_raw_fd();
                (fd, check(fd, dax.extent.bytes).ok_or_else(io::Error::last_os_error)?)
            }
        };
        if !settings.children {
            // SAFETY: a plain call.
            unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
        let directory = dax.extent.path.parent().and_then(|path| std::fs::canonicalize(path).ok());
        Ok(Named { extent: dax.extent.clone(), fd, file, directory })
    });
    let named = named.collect::<io::Result<Vec<_>>>()?;
    note_pid();
    KNOWN.get_or_init(|| Known { settings, named });
    // SAFETY: the functions do what such functions may, and live as long as the process.
    match unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) } {
        0 => {}
        code => return Err(io::Error::from_raw_os_error(code).into()),
    }
    statistics::begin();
    Ok(())
}

fn note_pid() {
    // SAFETY: a plain call.
    PID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// The device and number of a file that stands in for so many bytes, if a descriptor is of one.
fn check(fd: i32, bytes: u64) -> Option<(u64, u64)> {
    // SAFETY: a plain call.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    let stat = own::stat(fd).filter(|stat| stat.st_size as u64 == bytes)?;
    (seals >= 0 && seals & libc::F_SEAL_WRITE != 0).then_some((stat.st_dev, stat.st_ino))
}

/// What a descriptor stands for.
pub fn by_fd(fd: i32) -> Option<&'static Named> {
    let known = KNOWN.get().filter(|_| fd >= 0 && !own::is_own_thread())?;
    let stat = own::stat(fd)?;
    known.named.iter().find(|named| named.file == (stat.st_dev, stat.st_ino))
}

/// What a path stands for, which may be relative to a directory.
pub fn by_path(directory: i32, path: &Path) -> Option<&'static Named> {
    let known = KNOWN.get().filter(|_| !own::is_own_thread())?;
    let name: &OsStr = path.file_name()?;
    let mut alike = known.named.iter().filter(|named| named.extent.path.file_name() == Some(name)).peekable();
    alike.peek()?;
    let whole = match directory {
        _ if path.is_absolute() => path.to_owned(),
        libc::AT_FDCWD => std::env::current_dir().ok()?.join(path),
        _ => std::fs::read_link(format!("/proc/self/fd/{directory}")).ok()?.join(path),
    };
    let text = plain(&whole);
    let real = whole.parent().and_then(|path| std::fs::canonicalize(path).ok());
    alike.find(|named| named.extent.path == text || (real.is_some() && named.directory == real))
}

/// Whether the descriptor that stands for a path is still the library's: a program may close what it did not open.
pub fn is_open(named: &Named) -> bool {
    own::stat(named.fd).is_some_and(|stat| (stat.st_dev, stat.st_ino) == named.file)
}

/// Whether what is in the device's cache survives a loss of power.
pub fn survives_power_loss() -> bool {
    KNOWN.get().is_some_and(|known| known.settings.survives_power_loss)
}

/// Whether some bytes lie where a view is.
pub fn touches(at: usize, bytes: usize) -> bool {
    if KNOWN.get().is_none() || own::is_own_thread() {
        return false;
    }
    let wanted = at..at.saturating_add(bytes.max(1));
    let bounds = BOUNDS.iter().map(|(low, high)| low.load(Ordering::Acquire)..high.load(Ordering::Acquire));
    bounds.into_iter().any(|view| common(&view, &wanted).is_some())
}

/// Answers a mapping, if it is of a path, or where a view is.
pub fn mmap(at: usize, bytes: usize, protection: i32, flags: i32, fd: i32, offset: i64) -> Option<usize> {
    KNOWN.get()?;
    let named = if flags & libc::MAP_ANONYMOUS == 0 { by_fd(fd) } else { None };
    let mapped = match named {
        Some(named) => map(named, at, bytes, protection, flags, fd, offset),
        None if flags & FIXED != 0 && touches(at, bytes) => Err(libc::EPERM),
        None => return None,
    };
    Some(mapped.unwrap_or_else(|code| {
        own::set_errno(code);
        MAP_FAILED
    }))
}

fn map(
    named: &'static Named,
    at: usize,
    bytes: usize,
    protection: i32,
    flags: i32,
    fd: i32,
    offset: i64,
) -> Result<usize, Errno> {
    let may_store = check_mapping(protection, flags, fd)?;
    let bytes = bytes.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0).ok_or(libc::EINVAL)?;
    let first = u64::try_from(offset).ok().filter(|first| first.is_multiple_of(PAGE as u64)).ok_or(libc::EINVAL)?;
    let wanted = first..first.checked_add(bytes as u64).ok_or(libc::EINVAL)?;
    if wanted.end > named.extent.bytes {
        return Err(libc::EINVAL);
    }
    if flags & FIXED != 0 && (!at.is_multiple_of(PAGE) || at.checked_add(bytes).is_none()) {
        return Err(libc::EINVAL);
    }
    let at = VIEWS.with(|views| {
        let view = if flags & FIXED != 0 {
            fixed(views, named, &wanted, at, flags)?
        } else {
            floating(views, named, &wanted)?
        };
        let start = view.address_of(wanted.start);
        view.give(Part { addresses: start..start + bytes, protection, may_store });
        Ok::<usize, Errno>(start)
    })?;
    if flags & libc::MAP_POPULATE != 0 {
        let can = protection & libc::PROT_WRITE != 0;
        own::madvise(at, bytes, if can { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ });
    }
    Ok(at)
}

/// Whether a mapping is one that a path can have; and whether it may be stored to.
fn check_mapping(protection: i32, flags: i32, fd: i32) -> Result<bool, Errno> {
    const KINDS: i32 = 0xf;
    let kind = flags & KINDS;
    let is_validated = kind == libc::MAP_SHARED_VALIDATE;
    if kind != libc::MAP_SHARED && !is_validated {
        return Err(libc::EINVAL);
    }
    // Without that the kernel does not look at flags that it does not know.
    if is_validated && flags & !(KINDS | FIXED | HARMLESS | libc::MAP_SYNC) != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if is_validated && flags & libc::MAP_SYNC != 0 && !survives_power_loss() {
        return Err(libc::EOPNOTSUPP);
    }
    let mode = mode_of(fd) & libc::O_ACCMODE;
    let stores = protection & libc::PROT_WRITE != 0;
    if mode == libc::O_WRONLY || (stores && mode != libc::O_RDWR) || protection & libc::PROT_EXEC != 0 {
        return Err(libc::EACCES);
    }
    Ok(mode == libc::O_RDWR)
}

/// How a descriptor was opened.
pub fn mode_of(fd: i32) -> i32 {
    // SAFETY: a plain call.
    unsafe { libc::fcntl(fd, libc::F_GETFL) }
}

/// A view where the program wants it.
fn fixed<'a>(
    views: &'a mut Vec<View>,
    named: &'static Named,
    wanted: &Range<u64>,
    at: usize,
    flags: i32,
) -> Result<&'a mut View, Errno> {
    let bytes = (wanted.end - wanted.start) as usize;
    let addresses = at..at + bytes;
    let no_replace = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    if views.iter().any(|view| common(&view.addresses(), &addresses).is_some()) {
        let is_that = |view: &View| {
            std::ptr::eq(view.named, named)
                && view.bytes.start <= wanted.start
                && wanted.end <= view.bytes.end
                && view.address_of(wanted.start) == at
        };
        let view = views.iter_mut().find(|view| is_that(view)).ok_or(libc::EPERM)?;
        if no_replace && view.parts.iter().any(|part| common(&part.addresses, &addresses).is_some()) {
            return Err(libc::EEXIST);
        }
        view.change(&addresses, |_| None);
        return Ok(view);
    }
    let how = if no_replace { libc::MAP_FIXED_NOREPLACE } else { libc::MAP_FIXED };
    if own::mmap(at, bytes, libc::PROT_NONE, NOTHING | how, -1, 0) != at {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOMEM));
    }
    open(views, named, wanted.clone(), at)
}

/// A view that has some bytes free, wherever it is.
fn floating<'a>(views: &'a mut Vec<View>, named: &'static Named, wanted: &Range<u64>) -> Result<&'a mut View, Errno> {
    if let Some(index) = views.iter().position(|view| view.is_free(named, wanted)) {
        return Ok(&mut views[index]);
    }
    let at = reserve(named.extent.bytes as usize)?;
    open(views, named, 0..named.extent.bytes, at)
}

/// Addresses for a view.
fn reserve(bytes: usize) -> Result<usize, Errno> {
    let room = bytes + ALIGNMENT;
    let start = own::mmap(0, room, libc::PROT_NONE, NOTHING, -1, 0);
    if start == MAP_FAILED {
        return Err(libc::ENOMEM);
    }
    let at = start.next_multiple_of(ALIGNMENT);
    for (at, bytes) in [(start, at - start), (at + bytes, start + room - at - bytes)] {
        if bytes > 0 {
            own::munmap(at, bytes);
        }
    }
    Ok(at)
}

/// Opens a view over what is reserved for it.
fn open<'a>(
    views: &'a mut Vec<View>,
    named: &'static Named,
    bytes: Range<u64>,
    base: usize,
) -> Result<&'a mut View, Errno> {
    let length = (bytes.end - bytes.start) as usize;
    let fail = |text: String| {
        say!("osier run: {} cannot be mapped: {text}", named.extent.path.display());
        own::munmap(base, length);
        Err(libc::ENOMEM)
    };
    if views.len() == VIEWS_MAX {
        return fail(format!("this process has {VIEWS_MAX} mappings at places of their own, the most that it may"));
    }
    match window(named, &bytes, base) {
        Ok(window) => {
            own::mprotect(base, length, libc::PROT_NONE);
            note_bounds(base, length);
            views.push(View { window, named, bytes, base, parts: Vec::new(), is_own: false });
            let index = views.len() - 1;
            Ok(&mut views[index])
        }
        Err(error) => fail(error.to_string()),
    }
}

/// From now on calls look whether they are of a view there. While a window is opened its own are of none.
fn note_bounds(low: usize, bytes: usize) {
    let free = BOUNDS.iter().find(|(_, high)| high.load(Ordering::Relaxed) == 0);
    let Some((first, last)) = free else { unreachable!("there is a place for each view") };
    first.store(low, Ordering::Release);
    last.store(low + bytes, Ordering::Release);
}

fn window(named: &Named, bytes: &Range<u64>, at: usize) -> Result<*const Window, osier_client::WindowError> {
    let Some(known) = KNOWN.get() else { unreachable!("a path is known") };
    let options = options(&known.settings, Some(bytes.end - bytes.start));
    // SAFETY: the addresses were reserved for this, and nobody uses them yet.
    let window = unsafe { Window::open_at(&known.settings.socket, &options, named.extent.first + bytes.start, at) }?;
    own::await_threads(window.threads());
    Ok(Box::into_raw(Box::new(window)))
}

/// What is unmapped of views cannot be touched any more; what lies around them goes by `others`.
pub fn munmap(at: usize, bytes: usize, others: impl Fn(usize, usize) -> i32) -> Result<i32, Errno> {
    let bytes = bytes.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0).ok_or(libc::EINVAL)?;
    if !at.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let all = at..at.checked_add(bytes).ok_or(libc::EINVAL)?;
    let mut inside = VIEWS.with(|views| {
        let mut inside: Vec<Range<usize>> = Vec::new();
        for view in views.iter_mut().filter(|view| !view.is_own) {
            let Some(both) = common(&view.addresses(), &all) else { continue };
            own::mprotect(both.start, both.len(), libc::PROT_NONE);
            view.change(&both, |_| None);
            inside.push(both);
        }
        inside
    });
    inside.sort_by_key(|range| range.start);
    inside.push(all.end..all.end);
    let (mut from, mut result) = (at, 0);
    for range in inside {
        if from < range.start {
            result = result.min(others(from, range.start - from));
        }
        from = range.end;
    }
    Ok(result)
}

/// Changes the protection of what the program has.
pub fn mprotect(at: usize, bytes: usize, protection: i32) -> Result<(), Errno> {
    with_mapped(at, bytes, |view, addresses| {
        let stores = protection & libc::PROT_WRITE != 0;
        let is_refused = |part: &Part| stores && !part.may_store && common(&part.addresses, &addresses).is_some();
        if protection & libc::PROT_EXEC != 0 || view.parts.iter().any(is_refused) {
            return Err(libc::EACCES);
        }
        own::mprotect(addresses.start, addresses.len(), protection);
        view.change(&addresses, |_| Some(protection));
        Ok(())
    })
}

/// Does something with addresses of which the program has all.
fn with_mapped<R>(
    at: usize,
    bytes: usize,
    f: impl FnOnce(&mut View, Range<usize>) -> Result<R, Errno>,
) -> Result<R, Errno> {
    if !at.is_multiple_of(PAGE) {
        return Err(libc::EINVAL);
    }
    let end = bytes.checked_next_multiple_of(PAGE).and_then(|bytes| at.checked_add(bytes)).ok_or(libc::ENOMEM)?;
    VIEWS.with(|views| {
        let view = views.iter_mut().find(|view| view.has(&(at..end)) && !view.is_own).ok_or(libc::ENOMEM)?;
        f(view, at..end)
    })
}

/// The bytes stay what they are, whatever is advised.
pub fn madvise(at: usize, bytes: usize, advice: i32) -> Result<i32, Errno> {
    let (window, pages) = with_mapped(at, bytes, |view, addresses| Ok((view.window(), view.pages(&addresses))))?;
    if advice == libc::MADV_WILLNEED {
        // A hint that is not followed is none that failed.
        let _ = window.prefetch(pages);
        return Ok(0);
    }
    Ok(guest::madvise(at, bytes, advice))
}

/// Makes a mapping smaller where it is.
pub fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: i32) -> Result<usize, Errno> {
    let whole = |bytes: usize| bytes.checked_next_multiple_of(PAGE).filter(|bytes| *bytes > 0).ok_or(libc::EINVAL);
    let (bytes, new_bytes) = (whole(bytes)?, whole(new_bytes)?);
    if new_bytes > bytes || flags & !libc::MREMAP_MAYMOVE != 0 {
        return Err(libc::EINVAL);
    }
    with_mapped(at, bytes, |view, addresses| {
        let rest = at + new_bytes..addresses.end;
        if !rest.is_empty() {
            own::mprotect(rest.start, rest.len(), libc::PROT_NONE);
            view.change(&rest, |_| None);
        }
        Ok(at)
    })
}

/// With `MS_SYNC` a loss of power does not lose what was stored, once this ends.
pub fn msync(at: usize, bytes: usize, flags: i32) -> Result<(), Errno> {
    const ALL: i32 = libc::MS_SYNC | libc::MS_ASYNC | libc::MS_INVALIDATE;
    if flags & !ALL != 0 || flags & (libc::MS_SYNC | libc::MS_ASYNC) == libc::MS_SYNC | libc::MS_ASYNC {
        return Err(libc::EINVAL);
    }
    let (window, pages) = with_mapped(at, bytes, |view, addresses| Ok((view.window(), view.pages(&addresses))))?;
    if flags & libc::MS_SYNC != 0 { flush(window, pages) } else { Ok(()) }
}

/// The same for some bytes of a path, or for all.
pub fn sync(named: &'static Named, bytes: Range<u64>) -> Result<(), Errno> {
    let (first, end) = (named.extent.first + bytes.start, named.extent.first + bytes.end);
    flush(of_own(named)?.0, first / PAGE as u64..end.div_ceil(PAGE as u64))
}

/// Pages that are in a cache which a loss of power empties have to leave it: the device has no other way of programming
/// them.
fn flush(window: &Window, pages: Range<u64>) -> Result<(), Errno> {
    if survives_power_loss() {
        return Ok(());
    }
    for _ in 0..FLUSH_TRIES_MAX {
        match window.evict(pages.clone()) {
            Ok(report) if report.refused == 0 => return Ok(()),
            // They are on their way, or come and go.
            Ok(_) => std::thread::sleep(FLUSH_WAIT),
            Err(_) => return Err(libc::EIO),
        }
    }
    // Somebody has pinned them.
    Err(libc::EBUSY)
}

/// The library's own view of a path, opened when it is first needed, and where its first byte is.
fn of_own(named: &'static Named) -> Result<(&'static Window, usize), Errno> {
    VIEWS.with(|views| {
        let found = views.iter().position(|view| view.is_own && std::ptr::eq(view.named, named));
        let view = match found {
            Some(index) => &views[index],
            None => {
                let at = reserve(named.extent.bytes as usize)?;
                let view = open(views, named, 0..named.extent.bytes, at)?;
                view.is_own = true;
                view.give(Part { addresses: view.addresses(), protection: READ_WRITE, may_store: true });
                view
            }
        };
        Ok((view.window(), view.base))
    })
}

/// Copies bytes of a path to the program's; how many there are.
pub fn read(named: &'static Named, to: *mut u8, bytes: usize, offset: i64) -> Result<usize, Errno> {
    let (from, bytes) = place(named, bytes, offset)?;
    // SAFETY: the caller's promise of its buffer; the view is as long as the path's bytes.
    unsafe { std::ptr::copy(from as *const u8, to, bytes) };
    Ok(bytes)
}

/// Copies the program's bytes to those of a path; how many there is room for.
pub fn write(named: &'static Named, from: *const u8, bytes: usize, offset: i64) -> Result<usize, Errno> {
    let (to, room) = place(named, bytes, offset)?;
    if room == 0 && bytes > 0 {
        return Err(libc::ENOSPC);
    }
    // SAFETY: as above.
    unsafe { std::ptr::copy(from, to as *mut u8, room) };
    Ok(room)
}

/// Where bytes of a path are, and how many of those that are wanted there are.
fn place(named: &'static Named, bytes: usize, offset: i64) -> Result<(usize, usize), Errno> {
    let offset = u64::try_from(offset).map_err(|_| libc::EINVAL)?;
    let there = named.extent.bytes.saturating_sub(offset).min(bytes as u64);
    if there == 0 {
        return Ok((0, 0));
    }
    let (_, base) = of_own(named)?;
    Ok((base + offset as usize, there as usize))
}

/// Does something with each window of this process, and the path that it is of.
pub fn each_window(mut f: impl FnMut(&Extent, &Window)) {
    // SAFETY: a plain call.
    if KNOWN.get().is_some() && unsafe { libc::getpid() } == PID.load(Ordering::Relaxed) {
        VIEWS.with(|views| views.iter().for_each(|view| f(&view.named.extent, view.window())));
    }
}

/// How the program was to run, if there are paths.
pub fn settings() -> Option<&'static Settings> {
    KNOWN.get().map(|known| &known.settings)
}

extern "C" fn before_fork() {
    VIEWS.lock();
}

extern "C" fn in_parent() {
    VIEWS.unlock();
}

/// The child maps what the parent has mapped, at the same addresses, by windows of its own: the bytes are shared.
extern "C" fn in_child() {
    own::forget_threads();
    note_pid();
    // SAFETY: the parent's thread, which this one is a copy of, locked it.
    unsafe {
        VIEWS.with_held(|views| {
            BOUNDS.iter().for_each(|(_, high)| high.store(0, Ordering::Release));
            // Before anything else can be mapped there.
            views.iter().for_each(abandon);
            views.retain_mut(|view| {
                let opened = reopen(view);
                if let Err(error) = &opened {
                    say!("osier run: a forked child cannot touch what its parent mapped: {error}");
                }
                opened.is_ok()
            });
        });
    }
    VIEWS.unlock();
}

/// Lets go of the parent's window, and keeps its addresses.
fn abandon(view: &View) {
    let (base, length) = (view.base, view.addresses().len());
    if own::mmap(base, length, libc::PROT_NONE, NOTHING | libc::MAP_FIXED_NOREPLACE, -1, 0) != base {
        say!("osier run: a forked child cannot have its parent's addresses: {}", io::Error::last_os_error());
        std::process::abort();
    }
    // SAFETY: it came from a box; nobody else in this process knows of it.
    let old = unsafe { Box::from_raw(view.window.cast_mut()) };
    old.abandon();
}

fn reopen(view: &mut View) -> Result<(), osier_client::WindowError> {
    let (base, length) = (view.base, view.addresses().len());
    view.window = window(view.named, &view.bytes, base)?;
    note_bounds(base, length);
    own::mprotect(base, length, libc::PROT_NONE);
    for part in &view.parts {
        own::mprotect(part.addresses.start, part.addresses.len(), part.protection);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(parts: &[(Range<usize>, i32)]) -> View {
        let extent = Extent { path: "/p".into(), first: 16 << 12, bytes: 64 << 12 };
        let named = Box::leak(Box::new(Named { extent, fd: -1, file: (0, 0), directory: None }));
        let parts = parts.iter().map(|(addresses, protection)| Part {
            addresses: addresses.start << 12..addresses.end << 12,
            protection: *protection,
            may_store: true,
        });
        let bytes = 8 << 12..40 << 12;
        View { window: std::ptr::null(), named, bytes, base: 100 << 12, parts: parts.collect(), is_own: false }
    }

    fn parts(view: &View) -> Vec<(Range<usize>, i32)> {
        let of = |part: &Part| (part.addresses.start >> 12..part.addresses.end >> 12, part.protection);
        let mut parts: Vec<_> = view.parts.iter().map(of).collect();
        parts.sort_by_key(|(range, _)| range.start);
        parts
    }

    #[test]
    fn what_is_taken_of_a_view_leaves_what_is_around_it() {
        let mut view = view(&[(100..110, 3), (112..120, 1)]);
        view.change(&(104 << 12..106 << 12), |_| None);
        assert_eq!(parts(&view), [(100..104, 3), (106..110, 3), (112..120, 1)]);
        view.change(&(108 << 12..114 << 12), |_| Some(0));
        assert_eq!(parts(&view), [(100..104, 3), (106..108, 3), (108..110, 0), (112..114, 0), (114..120, 1)]);
        let has = |range: Range<usize>| view.has(&(range.start << 12..range.end << 12));
        assert!(has(106..110) && has(112..120) && !has(106..113) && !has(103..107) && !has(120..121));
    }

    #[test]
    fn a_view_knows_which_bytes_it_shows() {
        let view = view(&[(104..106, 3)]);
        let free = |bytes: Range<u64>| view.is_free(view.named, &(bytes.start << 12..bytes.end << 12));
        assert!(free(8..12) && free(14..40));
        assert!(!free(8..13) && !free(13..14), "the program has them");
        assert!(!free(7..9) && !free(39..41), "it does not show them");
        // The path begins at page 16 of the window, and the view at page 8 of the path.
        assert_eq!(view.pages(&(100 << 12..102 << 12)), 24..26);
    }
}
