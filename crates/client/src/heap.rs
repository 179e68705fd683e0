//! Programs whose heaps share a window: what `osier run` tells the library that it preloads, and who has which part.
//!
//! Beside the device's socket lies a file. A program *leases* a part of the window by a lock on the bytes of the same
//! numbers in that file, so that the kernel gives the part back whenever and however the program ends. The file's first
//! word says up to where the window was ever used: pages beyond are zero, others have what their last user left. What
//! an [`Extent`] has is never leased.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::extent::{self, Extent};
use crate::hits::HitLatency;
use crate::placement::{CallSites, Rule};
use crate::uffd::PAGE;
use crate::window::FaultMode;

/// Anonymous mappings that are smaller stay in ordinary memory, unless the user says otherwise.
pub const THRESHOLD_BYTES: u64 = 128 << 10;
/// With programs that the program starts, each has this part of the window unless the user says otherwise.
const CHILDREN_SHARE: u64 = 8;
/// Heaps are of a multiple of this: what the allocator takes at a time.
pub const HEAP_UNIT_BYTES: u64 = 32 << 20;
/// The smallest heap: of one unit the allocator's own records leave no part that it could take.
pub const HEAP_MIN_BYTES: u64 = 2 * HEAP_UNIT_BYTES;
/// Locks that others may take from under a search before it gives up.
const TRIES_MAX: u32 = 1_000;
/// Where the bytes that are locked begin: those before hold the file's words.
pub(crate) const LOCKS_AT: u64 = PAGE as u64;
/// Where the file says whether what is in the device's cache survives a loss of power.
const SURVIVES_AT: u64 = 8;

const SOCKET: &str = "OSIER_RUN_SOCKET";
const HEAP: &str = "OSIER_RUN_HEAP";
const THRESHOLD: &str = "OSIER_RUN_THRESHOLD";
const SMALL: &str = "OSIER_RUN_SMALL";
const MODE: &str = "OSIER_RUN_MODE";
const STATS: &str = "OSIER_RUN_STATS";
const FORMAT: &str = "OSIER_RUN_FORMAT";
const CHILDREN: &str = "OSIER_RUN_CHILDREN";
const STAND_IN: &str = "OSIER_RUN_STAND_IN";
const DAX: &str = "OSIER_RUN_DAX";
const SURVIVES: &str = "OSIER_RUN_SURVIVES";
const RULES: &str = "OSIER_RUN_RULES";
const CALL_SITES: &str = "OSIER_RUN_CALL_SITES";
const CALL_DEPTH: &str = "OSIER_RUN_CALL_DEPTH";
const HIT_LATENCY: &str = "OSIER_RUN_HIT_LATENCY";

/// What the profile says, as that variable has it.
const OF_PROFILE: &str = "profile";

/// What `osier run` says to the preloaded library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the device serves.
    pub socket: PathBuf,
    /// Bytes of the window for the program; nothing means as much as is sensible.
    pub heap_bytes: Option<u64>,
    /// Anonymous mappings of so many bytes and more lie in the window.
    pub threshold_bytes: u64,
    /// Allocations of fewer bytes stay in ordinary memory.
    pub small_bytes: u64,
    /// Who resolves faults.
    pub mode: FaultMode,
    /// Where the figures go at the end, if not to standard error.
    pub stats: Option<PathBuf>,
    /// Whether they are JSON.
    pub json: bool,
    /// Whether programs that the program starts have their heaps in the window too.
    pub children: bool,
    /// The mapping of a file lies in the window, and nothing else does.
    pub stand_in: Option<StandIn>,
    /// Paths that the program opens and maps.
    pub dax: Vec<Dax>,
    /// Whether what is in the device's cache survives a loss of power.
    pub survives_power_loss: bool,
    /// Where allocations go by their call sites, and which of these are shown.
    pub call_sites: CallSites,
    /// What a load that hits the device's cache is to take.
    pub hit_latency: Option<HitLatency>,
}

/// A path that stands for an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dax {
    /// What it stands for.
    pub extent: Extent,
    /// The descriptor of the file that stands in for it, in the program: see [`stand_in`].
    pub fd: i32,
}

impl Dax {
    fn to_line(&self) -> Vec<u8> {
        [format!("{} ", self.fd).into_bytes(), self.extent.to_line()].concat()
    }

    fn from_line(line: &[u8]) -> Option<Dax> {
        let space = line.iter().position(|byte| *byte == b' ')?;
        let fd = std::str::from_utf8(&line[..space]).ok()?.parse().ok()?;
        Some(Dax { extent: Extent::from_line(&line[space + 1..])?, fd })
    }
}

/// A file that stands in for a part of a window: see [`stand_in`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandIn {
    /// Its descriptor, in the program.
    pub fd: i32,
    /// Bytes of the whole window.
    pub window_bytes: u64,
}

/// A file of so many bytes whose mapping the preloaded library answers with a part of the window: the memory of a
/// guest of `osier vm`. Programs that are started inherit it. It is sealed against stores, so that a mapping which the
/// library does not see fails: it would be ordinary memory, and nobody would hear of it.
///
/// # Errors
/// What the system refused.
pub fn stand_in(bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: the name is a constant string ending in zero.
    let fd = unsafe { libc::memfd_create(c"osier-window".as_ptr(), libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(bytes)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a plain call on an open file.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file.into())
}

impl Settings {
    /// As variables of the environment.
    #[must_use]
    pub fn to_env(&self) -> Vec<(&'static str, OsString)> {
        let mode = match self.mode {
            FaultMode::Spinning => "spinning",
            FaultMode::InThread | FaultMode::Sleeping => "sleeping",
        };
        let mut all: Vec<(&'static str, OsString)> = vec![
            (SOCKET, self.socket.clone().into()),
            (THRESHOLD, self.threshold_bytes.to_string().into()),
            (SMALL, self.small_bytes.to_string().into()),
            (MODE, mode.into()),
            (FORMAT, if self.json { "json" } else { "text" }.into()),
            (CHILDREN, if self.children { "1" } else { "0" }.into()),
        ];
        all.extend(self.heap_bytes.map(|bytes| (HEAP, bytes.to_string().into())));
        all.extend(self.stats.clone().map(|path| (STATS, path.into())));
        all.extend(self.stand_in.map(|file| (STAND_IN, format!("{} {}", file.fd, file.window_bytes).into())));
        if !self.dax.is_empty() {
            let lines: Vec<u8> = self.dax.iter().flat_map(Dax::to_line).collect();
            all.push((DAX, OsString::from_vec(lines)));
            all.push((SURVIVES, if self.survives_power_loss { "1" } else { "0" }.into()));
        }
        let CallSites { rules, shown, depth } = &self.call_sites;
        if !rules.is_empty() {
            let lines: Vec<String> = rules.iter().map(Rule::to_string).collect();
            all.push((RULES, lines.join("\n").into()));
        }
        if *shown > 0 {
            all.push((CALL_SITES, shown.to_string().into()));
            all.push((CALL_DEPTH, depth.to_string().into()));
        }
        all.extend(self.hit_latency.map(|latency| match latency {
            HitLatency::Profile => (HIT_LATENCY, OF_PROFILE.into()),
            HitLatency::Nanoseconds(ns) => (HIT_LATENCY, ns.to_string().into()),
        }));
        all
    }

    /// From there; nothing when `osier run` is not what started this program.
    #[must_use]
    pub fn from_env() -> Option<Settings> {
        let text = |name: &str| std::env::var_os(name);
        let number =
            |name: &str| text(name).as_deref().and_then(OsStr::to_str).and_then(|text| text.parse::<u64>().ok());
        let stand_in = |text: &str| {
            let (fd, window_bytes) = text.split_once(' ')?;
            Some(StandIn { fd: fd.parse().ok()?, window_bytes: window_bytes.parse().ok()? })
        };
        Some(Settings {
            socket: text(SOCKET)?.into(),
            heap_bytes: number(HEAP),
            threshold_bytes: number(THRESHOLD).unwrap_or(THRESHOLD_BYTES),
            small_bytes: number(SMALL).unwrap_or(0),
            mode: if text(MODE)? == "spinning" { FaultMode::Spinning } else { FaultMode::Sleeping },
            stats: text(STATS).map(PathBuf::from),
            json: text(FORMAT)? == "json",
            children: text(CHILDREN)? == "1",
            stand_in: text(STAND_IN).as_deref().and_then(OsStr::to_str).and_then(stand_in),
            dax: text(DAX)
                .map(|lines| lines.as_bytes().split_inclusive(|b| *b == b'\n').map_while(Dax::from_line).collect())
                .unwrap_or_default(),
            survives_power_loss: text(SURVIVES).is_some_and(|text| text == "1"),
            call_sites: CallSites {
                rules: text(RULES)
                    .and_then(|lines| lines.to_str()?.lines().map(Rule::from_line).collect())
                    .unwrap_or_default(),
                shown: number(CALL_SITES).and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
                depth: number(CALL_DEPTH).and_then(|depth| u8::try_from(depth).ok()).unwrap_or(0),
            },
            hit_latency: text(HIT_LATENCY).map(|text| {
                text.to_str().and_then(|text| text.parse().ok()).map_or(HitLatency::Profile, HitLatency::Nanoseconds)
            }),
        })
    }

    /// Whether the program's heap lies in the window: with paths it does where that is asked for.
    #[must_use]
    pub fn has_heap(&self) -> bool {
        self.stand_in.is_none() && (self.dax.is_empty() || self.heap_bytes.is_some())
    }

    /// The names of these variables.
    #[must_use]
    pub fn names() -> [&'static str; 15] {
        [
            SOCKET,
            HEAP,
            THRESHOLD,
            SMALL,
            MODE,
            STATS,
            FORMAT,
            CHILDREN,
            STAND_IN,
            DAX,
            SURVIVES,
            RULES,
            CALL_SITES,
            CALL_DEPTH,
            HIT_LATENCY,
        ]
    }

    /// Takes the program's part of a window: what was asked for, or all that is left, or where the programs that it
    /// starts have some too a share.
    ///
    /// # Errors
    /// As [`Lease::take`].
    pub fn take_heap(&self, window_bytes: u64) -> Result<Lease, LeaseError> {
        let wanted = match self.heap_bytes {
            None if !self.children => return Lease::take_largest(&self.socket, window_bytes, HEAP_MIN_BYTES),
            None => window_bytes / CHILDREN_SHARE,
            Some(bytes) => bytes,
        };
        let wanted = (wanted / HEAP_UNIT_BYTES * HEAP_UNIT_BYTES).max(HEAP_MIN_BYTES);
        Lease::take(&self.socket, window_bytes, wanted)
    }
}

/// Why a program has no part of a window.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The system refused something.
    #[error("cannot {what} {}: {source}", .path.display())]
    File {
        /// What.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Others have it.
    #[error(
        "a part of {wanted} bytes does not fit beside the others in the window, which has {window}; end a program that \
         has one, or ask for a smaller one"
    )]
    NoRoom {
        /// What was asked for.
        wanted: u64,
        /// What there is.
        window: u64,
    },
}

/// The file beside a device's socket.
#[must_use]
pub fn file_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".heaps");
    name.into()
}

/// Makes the file for a device of which nothing was ever used. What is in the device's cache may survive a loss of
/// power.
///
/// # Errors
/// What the system refused.
pub fn create_file(path: &Path, survives_power_loss: bool) -> Result<(), LeaseError> {
    let fail = |source| LeaseError::File { what: "make", path: path.to_owned(), source };
    // One that a device of before left behind may have locks on it: they are not this device's.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
        _ => {}
    }
    let file = File::options().read(true).write(true).create_new(true).open(path).map_err(fail)?;
    file.write_all_at(&u64::from(survives_power_loss).to_le_bytes(), SURVIVES_AT).map_err(fail)?;
    file.set_len(LOCKS_AT).map_err(fail)
}

/// Whether what is in a device's cache survives a loss of power.
///
/// # Errors
/// What the system refused.
pub fn survives_power_loss(socket: &Path) -> Result<bool, LeaseError> {
    let path = file_of(socket);
    let mut word = [0; 8];
    let read = File::open(&path).and_then(|file| file.read_exact_at(&mut word, SURVIVES_AT));
    read.map_err(|source| LeaseError::File { what: "read", path, source })?;
    Ok(u64::from_le_bytes(word) != 0)
}

/// A part of a window that is one program's alone, until its process ends.
#[derive(Debug)]
pub struct Lease {
    /// Less than 0 once it is forgotten.
    fd: AtomicI32,
    /// Up to where the window was ever used, shared by all.
    used_to: &'static AtomicU64,
    range: Range<u64>,
}

impl Lease {
    /// Takes the first part of a window of so many bytes that nobody has.
    ///
    /// # Errors
    /// There is no room, or what the system refused.
    pub fn take(socket: &Path, window_bytes: u64, wanted: u64) -> Result<Lease, LeaseError> {
        let path = file_of(socket);
        let fail = |what| {
            let path = path.clone();
            move |source| LeaseError::File { what, path, source }
        };
        let file = File::options().read(true).write(true).open(&path).map_err(fail("open"))?;
        let mut start = 0;
        for _ in 0..TRIES_MAX {
            if start + wanted > window_bytes {
                return Err(LeaseError::NoRoom { wanted, window: window_bytes });
            }
            match lock(&file, start, wanted).map_err(fail("lock a part of"))? {
                None => {
                    // Looked for with the lock held: an extent is made under one.
                    let extents = extent::read(&file).map_err(fail("read"))?;
                    let end = start + wanted;
                    if let Some(taken) = extents.iter().find(|extent| extent.first < end && start < extent.end()) {
                        unlock(&file, start, wanted).map_err(fail("unlock a part of"))?;
                        start = taken.end().next_multiple_of(HEAP_UNIT_BYTES);
                        continue;
                    }
                    let used_to = map_word(&path).map_err(fail("map"))?;
                    let fd = AtomicI32::new(file.into_raw_fd());
                    return Ok(Lease { fd, used_to, range: start..start + wanted });
                }
                Some(next) => start = next.next_multiple_of(HEAP_UNIT_BYTES),
            }
        }
        Err(LeaseError::NoRoom { wanted, window: window_bytes })
    }

    /// Takes the largest part that nobody has, in whole units.
    ///
    /// # Errors
    /// It has fewer bytes than `least`, or what the system refused.
    pub fn take_largest(socket: &Path, window_bytes: u64, least: u64) -> Result<Lease, LeaseError> {
        let path = file_of(socket);
        let fail = |what| {
            let path = path.clone();
            move |source| LeaseError::File { what, path, source }
        };
        let file = File::open(&path).map_err(fail("open"))?;
        for _ in 0..TRIES_MAX {
            let mut free = unlocked(&file, 0..window_bytes).map_err(fail("look for locks of"))?;
            for taken in extent::read(&file).map_err(fail("read"))? {
                free = free.into_iter().flat_map(|part| without(part, taken.first..taken.end())).collect();
            }
            let units = |part: Range<u64>| {
                part.start.next_multiple_of(HEAP_UNIT_BYTES)..part.end / HEAP_UNIT_BYTES * HEAP_UNIT_BYTES
            };
            let parts = free.into_iter().map(units).filter(|part| part.end >= part.start.saturating_add(least));
            // Of parts that are alike the first.
            let largest = parts.min_by_key(|part| (std::cmp::Reverse(part.end - part.start), part.start));
            let Some(part) = largest else { break };
            match Lease::take(socket, part.end, part.end - part.start) {
                // Somebody was faster.
                Err(LeaseError::NoRoom { .. }) => {}
                taken => return taken,
            }
        }
        Err(LeaseError::NoRoom { wanted: least, window: window_bytes })
    }

    /// The bytes of the window.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Notes that bytes of the window are used from now on; whether their pages are zero, because nobody used them
    /// before.
    pub fn begin_use(&self, bytes: Range<u64>) -> bool {
        self.used_to.fetch_max(bytes.end, Ordering::AcqRel) <= bytes.start
    }

    /// Lets go of the part without giving it back: in a forked child, whose parent has it.
    pub fn forget(&self) {
        let fd = self.fd.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: the descriptor was this value's own, and is now nobody's.
            unsafe { libc::close(fd) };
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Notes that a window is used up to a byte by a program that has no lease. A device without the file has no heaps.
pub(crate) fn note_use(socket: &Path, end: u64) -> io::Result<()> {
    let word = match map_word(&file_of(socket)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        word => word?,
    };
    word.fetch_max(end, Ordering::AcqRel);
    // SAFETY: the mapping is this call's own, and the word is not used any more.
    unsafe { libc::munmap(std::ptr::from_ref(word).cast_mut().cast(), PAGE) };
    Ok(())
}

/// A lock on bytes of the window, as the system wants it described.
fn lock_of(kind: libc::c_int, start: u64, bytes: u64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: (LOCKS_AT + start) as libc::off_t,
        l_len: bytes as libc::off_t,
        l_pid: 0,
    }
}

fn unlock(file: &File, start: u64, bytes: u64) -> io::Result<()> {
    let mut lock = lock_of(libc::F_UNLCK, start, bytes);
    // SAFETY: an open file and a live value.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut lock) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// What is left of a part on both sides of another.
fn without(part: Range<u64>, taken: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let before = part.start..part.end.min(taken.start);
    let after = part.start.max(taken.end)..part.end;
    [before, after].into_iter().filter(|rest| !rest.is_empty())
}

/// The parts of some bytes that nobody has locked. The system names one lock of those that there are.
fn unlocked(file: &File, bytes: Range<u64>) -> io::Result<Vec<Range<u64>>> {
    let (mut free, mut left) = (Vec::new(), vec![bytes]);
    while let Some(part) = left.pop() {
        let mut found = lock_of(libc::F_WRLCK, part.start, part.end - part.start);
        // SAFETY: an open file and a live value.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut found) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::c_int::from(found.l_type) == libc::F_UNLCK {
            free.push(part);
        } else {
            let start = (found.l_start as u64).saturating_sub(LOCKS_AT);
            left.extend(without(part, start..start + found.l_len as u64));
        }
    }
    Ok(free)
}

/// Locks bytes, or says behind which others to look further.
fn lock(file: &File, start: u64, bytes: u64) -> io::Result<Option<u64>> {
    let range = |kind| lock_of(kind, start, bytes);
    let mut wanted = range(libc::F_WRLCK);
    // SAFETY: an open file and a live value.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw mut wanted) } == 0 {
        return Ok(None);
    }
    let error = io::Error::last_os_error();
    if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) {
        return Err(error);
    }
    let mut holder = range(libc::F_WRLCK);
    // SAFETY: as above.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut holder) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if libc::c_int::from(holder.l_type) == libc::F_UNLCK {
        // It has just been given back.
        return Ok(Some(start));
    }
    Ok(Some((holder.l_start + holder.l_len) as u64 - LOCKS_AT))
}

/// The file's first word, mapped until whoever asked unmaps it.
fn map_word(path: &Path) -> io::Result<&'static AtomicU64> {
    // Opened anew: a mapping keeps the locks of what it was made of.
    let file = File::options().read(true).write(true).open(path)?;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is of a whole page, aligned, and the caller's; an atomic is valid for any bytes.
    Ok(unsafe { &*base.cast::<AtomicU64>() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use std::io::Write as _;

    use super::*;

    const UNIT: u64 = HEAP_UNIT_BYTES;

    #[test]
    fn parts_are_disjoint_and_given_back() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        create_file(&file_of(&socket), false).unwrap();
        let take = |units: u64| Lease::take(&socket, 8 * UNIT, units * UNIT);
        let (a, b, c) = (take(2).unwrap(), take(3).unwrap(), take(3).unwrap());
        assert_eq!((a.range(), b.range(), c.range()), (0..2 * UNIT, 2 * UNIT..5 * UNIT, 5 * UNIT..8 * UNIT));
        assert!(matches!(take(1), Err(LeaseError::NoRoom { .. })));
        drop(b);
        assert!(matches!(take(4), Err(LeaseError::NoRoom { .. })));
        assert_eq!(take(1).unwrap().range(), 2 * UNIT..3 * UNIT);
        drop((a, c));
        assert_eq!(take(8).unwrap().range(), 0..8 * UNIT);
    }

    #[test]
    fn the_largest_part_is_what_nobody_has() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let table = file_of(&socket);
        create_file(&table, false).unwrap();
        let take = |units: u64| Lease::take(&socket, 16 * UNIT, units * UNIT).unwrap();
        let largest = || Lease::take_largest(&socket, 16 * UNIT, 2 * UNIT).map(|lease| lease.range());
        assert_eq!(largest().unwrap(), 0..16 * UNIT);
        let (a, b, c) = (take(3), take(4), take(1));
        assert_eq!(largest().unwrap(), 8 * UNIT..16 * UNIT);
        // Half a unit of a path takes the whole out of what heaps can have.
        let extent = Extent { path: "/p".into(), first: 11 * UNIT + UNIT / 4, bytes: UNIT / 2 };
        File::options().append(true).open(&table).unwrap().write_all(&extent.to_line()).unwrap();
        drop(b);
        assert_eq!(largest().unwrap(), 3 * UNIT..7 * UNIT, "of two that are alike the first");
        drop(a);
        let held = Lease::take_largest(&socket, 16 * UNIT, 2 * UNIT).unwrap();
        assert_eq!(held.range(), 0..7 * UNIT);
        assert_eq!(largest().unwrap(), 12 * UNIT..16 * UNIT);
        let more = Lease::take_largest(&socket, 16 * UNIT, 2 * UNIT).unwrap();
        assert_eq!(largest().unwrap(), 8 * UNIT..11 * UNIT);
        let last = take(2);
        let refused = largest().unwrap_err();
        assert!(matches!(refused, LeaseError::NoRoom { wanted, .. } if wanted == 2 * UNIT), "{refused}");
        drop((c, held, more, last));
        assert_eq!(largest().unwrap(), 0..11 * UNIT);
    }

    #[test]
    fn what_was_never_used_is_known_by_all() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        create_file(&file_of(&socket), false).unwrap();
        let first = Lease::take(&socket, 8 * UNIT, 2 * UNIT).unwrap();
        assert!(first.begin_use(0..UNIT));
        assert!(!first.begin_use(0..UNIT), "it was used");
        drop(first);
        let second = Lease::take(&socket, 8 * UNIT, 4 * UNIT).unwrap();
        assert!(!second.begin_use(UNIT / 2..2 * UNIT), "a part of it was used");
        assert!(second.begin_use(2 * UNIT..3 * UNIT));
    }

    #[test]
    fn a_window_without_a_lease_counts_as_used() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        note_use(&socket, UNIT).unwrap();
        assert!(!file_of(&socket).exists(), "a device without heaps gets none by it");
        create_file(&file_of(&socket), false).unwrap();
        let lease = Lease::take(&socket, 8 * UNIT, 4 * UNIT).unwrap();
        note_use(&socket, 2 * UNIT).unwrap();
        note_use(&socket, UNIT).unwrap();
        assert!(!lease.begin_use(UNIT..2 * UNIT));
        assert!(lease.begin_use(2 * UNIT..3 * UNIT));
    }

    #[test]
    fn a_stand_in_is_as_long_as_it_says_and_cannot_be_mapped_for_stores() {
        let file = stand_in(3 << 20).unwrap();
        // As an emulator has it: by its path, for reading and writing.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let again = File::options().read(true).write(true).open(path).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 3 << 20);
        let map = |protection| {
            // SAFETY: no address is asked for, so no existing mapping is touched.
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, libc::MAP_SHARED, again.as_raw_fd(), 0) }
        };
        assert_eq!(map(libc::PROT_READ | libc::PROT_WRITE), libc::MAP_FAILED);
        assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EPERM));
        // SAFETY: a plain call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) } & libc::FD_CLOEXEC, 0, "it is inherited");
    }

    #[test]
    fn settings_come_through_the_environment() {
        let settings = Settings {
            socket: "/run/a b".into(),
            heap_bytes: Some(7),
            threshold_bytes: 8,
            small_bytes: 9,
            mode: FaultMode::Spinning,
            stats: Some("/tmp/x".into()),
            json: true,
            children: true,
            stand_in: Some(StandIn { fd: 9, window_bytes: 10 }),
            dax: vec![
                Dax { extent: Extent { path: "/dev/dax 0.0".into(), first: 0, bytes: 4096 }, fd: 3 },
                Dax { extent: Extent { path: "/p".into(), first: 4096, bytes: 8192 }, fd: 4 },
            ],
            survives_power_loss: true,
            call_sites: CallSites {
                rules: ["memory symbol=a depth=2 size=8..", "window any"]
                    .map(|line| Rule::from_line(line).unwrap())
                    .into(),
                shown: 5,
                depth: 1,
            },
            hit_latency: Some(HitLatency::Nanoseconds(771)),
        };
        assert_eq!(Settings::from_env(), None);
        let env = settings.to_env();
        assert!(env.iter().all(|(name, _)| Settings::names().contains(name)));
        // SAFETY: no other thread of this test program reads the environment of these names.
        unsafe { env.iter().for_each(|(name, value)| std::env::set_var(name, value)) };
        assert_eq!(Settings::from_env(), Some(settings));
    }
}
