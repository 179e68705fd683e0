//! The owner lock: one daemon at a time has an image.
//!
//! The kernel's `flock` on the file `lock` is the truth; the record written into it only tells a second
//! owner who the first is. A lock ends with the last descriptor, so a killed owner never has to be
//! cleaned up after, and an owner that hands the descriptor to its children keeps the image owned for as
//! long as one of them lives.
//!
//! Invariants:
//! 1. The record is written and erased only by who holds the lock.
//! 2. Looking at the lock ([`probe`]) takes it shared for an instant; an owner that meets such an instant
//!    tries again, and only a refusal that lasts is reported.
//! 3. The file is never unlinked while the image keeps its name: two owners would then lock two files.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::{ImageError, io_error};

/// How often a refused lock is tried again before its holder is reported.
const TRIES_MAX: u32 = 20;
/// The pause between two tries: a probe holds the lock for microseconds.
const TRY_PAUSE: Duration = Duration::from_millis(5);
/// No record is longer; what is longer is not a record.
const RECORD_BYTES_MAX: u64 = 4096;

/// What the owner writes into the lock file, as TOML.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerRecord {
    /// The owner's process id.
    pub pid: u32,
    /// When that process started, in clock ticks since boot (`/proc/PID/stat` field 22). With the pid it
    /// names one process for good: pids are used again, start times with them are not.
    pub start_ticks: u64,
    /// The owner's program.
    pub program: String,
    /// Since when it owns the image, in seconds since 1970 (UTC).
    pub since_unix_seconds: u64,
}

impl OwnerRecord {
    fn of_this_process() -> Self {
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| path.file_name().map(|name| name.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown program".to_owned());
        let pid = std::process::id();
        Self { pid, start_ticks: start_ticks(pid).unwrap_or(0), program, since_unix_seconds: clock::now_unix_seconds() }
    }

    /// Whether the process that wrote this record is still there.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        is_process_alive(self.pid, self.start_ticks)
    }
}

/// Who holds a lock, as far as can be known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This process, which is alive.
    Process(OwnerRecord),
    /// The recorded process is gone, but a process that inherited the lock from it is not.
    LeftBehind(OwnerRecord),
    /// Somebody who left no record.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(record) => {
                let here = if record.pid == std::process::id() { ", this very process" } else { "" };
                let since = clock::utc_text(record.since_unix_seconds);
                write!(f, "{} (pid {}{here}, since {since})", record.program, record.pid)
            }
            Self::LeftBehind(record) => {
                write!(f, "a process left behind by {} (pid {}, which is gone)", record.program, record.pid)
            }
            Self::Unknown => f.write_str("a process that left no record"),
        }
    }
}

/// What a look at the lock found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockState {
    /// Nobody holds it.
    Free,
    /// Nobody holds it, and its last owner did not give it back: it was killed.
    FreeAfterKill(OwnerRecord),
    /// Somebody holds it.
    Held(Holder),
    /// There is no lock file.
    Missing,
}

impl fmt::Display for LockState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("free"),
            Self::FreeAfterKill(record) => {
                write!(f, "free; its last owner, {} (pid {}), ended without giving it back", record.program, record.pid)
            }
            Self::Held(holder) => write!(f, "held by {holder}"),
            Self::Missing => f.write_str("the lock file is missing; the next owner makes it anew"),
        }
    }
}

/// The lock, held until this value and every duplicate of its descriptor are gone.
#[derive(Debug)]
pub struct OwnerLock {
    file: File,
    previous: Option<OwnerRecord>,
}

impl OwnerLock {
    /// Takes the lock file at `lock_path` for the image at `image_path`, making the file if need be.
    ///
    /// # Errors
    /// [`ImageError::Busy`] with the holder; [`ImageError::Missing`] when the image was removed or
    /// replaced meanwhile; or what the system said.
    pub fn acquire(image_path: &Path, lock_path: &Path) -> Result<Self, ImageError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(lock_path)
            .map_err(io_error("opening the lock file", lock_path))?;
        for attempt in 1..=TRIES_MAX {
            match file.try_lock() {
                Ok(()) => return Self::begin(file, image_path, lock_path),
                Err(TryLockError::Error(cause)) => {
                    return Err(io_error("locking", lock_path)(cause));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            let holder = holder_of(read_record(&mut file));
            if attempt == TRIES_MAX || matches!(holder, Holder::Process(_)) {
                return Err(ImageError::Busy { path: image_path.to_owned(), holder });
            }
            std::thread::sleep(TRY_PAUSE);
        }
        unreachable!("the last attempt returns");
    }

    fn begin(mut file: File, image_path: &Path, lock_path: &Path) -> Result<Self, ImageError> {
        // The image can be removed between the opening of the file and its locking.
        let mine = file.metadata().map_err(io_error("examining", lock_path))?;
        match std::fs::metadata(lock_path) {
            Ok(there) if (there.dev(), there.ino()) == (mine.dev(), mine.ino()) => {}
            _ => {
                return Err(ImageError::Missing { path: image_path.to_owned() });
            }
        }
        let previous = read_record(&mut file);
        let record = OwnerRecord::of_this_process();
        write_record(&mut file, &record).map_err(io_error("writing the owner into", lock_path))?;
        Ok(Self { file, previous })
    }

    /// The owner before this one, when it ended without giving the lock back.
    #[must_use]
    pub fn previous(&self) -> Option<&OwnerRecord> {
        self.previous.as_ref()
    }
}

impl AsFd for OwnerLock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for OwnerLock {
    fn drop(&mut self) {
        // Erasing the record tells a later owner that this one ended in order. The lock itself goes with
        // the descriptor: unlocking here would also take it from a child that inherited it. An error
        // leaves a stale record, which the next owner reports as an owner that was killed.
        let _ = self.file.set_len(0);
    }
}

/// Looks at a lock without disturbing its owner.
///
/// # Errors
/// What the system said when the file could not be opened or read.
pub fn probe(lock_path: &Path) -> Result<LockState, ImageError> {
    let mut file = match File::open(lock_path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(LockState::Missing),
        Err(cause) => return Err(io_error("opening the lock file", lock_path)(cause)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(match read_record(&mut file) {
            None => LockState::Free,
            Some(record) => LockState::FreeAfterKill(record),
        }),
        Err(TryLockError::WouldBlock) => Ok(LockState::Held(holder_of(read_record(&mut file)))),
        Err(TryLockError::Error(cause)) => Err(io_error("examining the lock file", lock_path)(cause)),
    }
}

fn holder_of(record: Option<OwnerRecord>) -> Holder {
    match record {
        None => Holder::Unknown,
        Some(record) if record.is_alive() => Holder::Process(record),
        Some(record) => Holder::LeftBehind(record),
    }
}

/// The record in the file; nothing when it is empty, or is not a record.
fn read_record(file: &mut File) -> Option<OwnerRecord> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
    toml::from_str(&text).ok()
}

fn write_record(file: &mut File, record: &OwnerRecord) -> io::Result<()> {
    let text = toml::to_string(record).map_err(io::Error::other)?;
    file.set_len(0)?;
    file.seek(SeekFrom::Start(0))?;
    file.write_all(text.as_bytes())
}

/// Whether the process is there that had this pid and started then.
pub(crate) fn is_process_alive(pid: u32, ticks: u64) -> bool {
    start_ticks(pid) == Some(ticks)
}

/// Field 22 of `/proc/PID/stat` (proc_pid_stat(5)), counted after the command's closing parenthesis
/// because a command's name may itself hold spaces and parentheses.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    const FIELD_AFTER_COMMAND: usize = 22 - 3;
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after) = text.rsplit_once(')')?;
    after.split_ascii_whitespace().nth(FIELD_AFTER_COMMAND)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_told_pid_program_and_since_when() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let first = OwnerLock::acquire(dir.path(), &path).unwrap();
        let text = OwnerLock::acquire(dir.path(), &path).unwrap_err().to_string();
        assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
        assert!(text.contains("since 2") && text.contains(&dir.path().display().to_string()), "{text}");
        assert!(matches!(probe(&path).unwrap(), LockState::Held(Holder::Process(_))));
        drop(first);
        assert_eq!(probe(&path).unwrap(), LockState::Free);
        assert!(OwnerLock::acquire(dir.path(), &path).unwrap().previous().is_none());
    }

    #[test]
    fn a_probe_never_makes_an_owner_fail() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        drop(OwnerLock::acquire(dir.path(), &path).unwrap());
        std::thread::scope(|scope| {
            let prober = scope.spawn(|| (0..2000).for_each(|_| drop(probe(&path).unwrap())));
            while !prober.is_finished() {
                drop(OwnerLock::acquire(dir.path(), &path).unwrap());
            }
        });
    }

    #[test]
    fn an_owner_that_was_killed_is_told_of_and_does_not_hold_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let gone = OwnerRecord { pid: u32::MAX, start_ticks: 1, program: "gone".into(), since_unix_seconds: 7 };
        std::fs::write(&path, toml::to_string(&gone).unwrap()).unwrap();
        assert_eq!(probe(&path).unwrap(), LockState::FreeAfterKill(gone.clone()));
        assert_eq!(OwnerLock::acquire(dir.path(), &path).unwrap().previous(), Some(&gone));
    }

    #[test]
    fn a_duplicate_of_the_descriptor_keeps_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = OwnerLock::acquire(dir.path(), &path).unwrap();
        let inherited = lock.as_fd().try_clone_to_owned().unwrap();
        drop(lock);
        let error = OwnerLock::acquire(dir.path(), &path).unwrap_err();
        assert!(matches!(error, ImageError::Busy { holder: Holder::Unknown, .. }), "{error}");
        drop(inherited);
        OwnerLock::acquire(dir.path(), &path).unwrap();
    }

    #[test]
    fn a_lock_file_that_was_unlinked_meanwhile_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let file = File::create(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = OwnerLock::begin(file, dir.path(), &path).unwrap_err();
        assert!(matches!(error, ImageError::Missing { .. }), "{error}");
    }

    #[test]
    fn rubbish_in_the_lock_file_is_no_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, [0xff; 9000]).unwrap();
        assert_eq!(probe(&path).unwrap(), LockState::Free);
        OwnerLock::acquire(dir.path(), &path).unwrap();
    }
}
