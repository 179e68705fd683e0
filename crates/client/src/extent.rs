//! Named parts of a window, which outlive programs: what `osier run --dax` lets programs open and map.
//!
//! An extent has the name of the path that programs open. Its bytes are those of the window from its first on, for as
//! long as the device lives, and no heap is ever put there. The extents of a device are lines at the end of the file
//! beside its socket (`heap`): the first byte, the bytes, the path. A line is written once, whole, by whoever has
//! leased that part of the window; one without an end is not there yet.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::Ordering;

use crate::error::WindowError;
use crate::heap::{LOCKS_AT, Lease, LeaseError, file_of};
use crate::uffd::PAGE;
use crate::window::{FaultMode, Window, WindowOptions};

/// A named part of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// What programs call it.
    pub path: PathBuf,
    /// Its first byte in the window.
    pub first: u64,
    /// Its bytes, whole pages.
    pub bytes: u64,
}

/// Why there is no such extent.
#[derive(Debug, thiserror::Error)]
pub enum ExtentError {
    /// There is no room, or the file beside the socket cannot be used.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The window cannot be had.
    #[error(transparent)]
    Window(#[from] WindowError),
    /// There is no such extent yet.
    #[error(
        "the device has nothing of the name {} yet; say how large it is to be: --dax {}=SIZE", .path.display(),
        .path.display()
    )]
    Unknown {
        /// What was asked for.
        path: PathBuf,
    },
    /// It is of another size.
    #[error("{} has {bytes} bytes on this device and not {wanted}; ask for it without a size", .path.display())]
    OtherSize {
        /// What was asked for.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
        /// What was asked for.
        wanted: u64,
    },
    /// It cannot be of that size or name.
    #[error("{} cannot be {what}", .path.display())]
    Invalid {
        /// What was asked for.
        path: PathBuf,
        /// What it cannot be.
        what: String,
    },
}

/// A path without `.`, `..` and doubled slashes, by its text alone.
#[must_use]
pub fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => _ = plain.pop(),
            _ => plain.push(part),
        }
    }
    plain
}

impl Extent {
    /// One past its last byte in the window.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first + self.bytes
    }

    /// Finds the extent of a name, or makes it with so many bytes, which are zero.
    ///
    /// # Errors
    /// There is none and no size was given, or it is of another size, or there is no room.
    pub fn find_or_make(
        socket: &Path,
        path: &Path,
        wanted: Option<u64>,
        mode: FaultMode,
    ) -> Result<Extent, ExtentError> {
        let table = file_of(socket);
        let fail = |what| {
            let path = table.clone();
            move |source| LeaseError::File { what, path, source }
        };
        let invalid = |what: String| Err(ExtentError::Invalid { path: path.to_owned(), what });
        if path.as_os_str().as_bytes().contains(&b'\n') {
            return invalid("the name of a part of a window: it has a line's end in it".to_owned());
        }
        let mut file = File::options().read(true).append(true).open(&table).map_err(fail("open"))?;
        // Until the file is closed nobody else makes one.
        // SAFETY: a plain call on an open file.
        if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
            return Err(fail("lock")(io::Error::last_os_error()).into());
        }
        let there = read(&file).map_err(fail("read"))?;
        match (there.into_iter().find(|extent| extent.path == path), wanted) {
            (Some(extent), Some(wanted)) if extent.bytes != wanted => {
                Err(ExtentError::OtherSize { path: extent.path, bytes: extent.bytes, wanted })
            }
            (Some(extent), _) => Ok(extent),
            (None, None) => Err(ExtentError::Unknown { path: path.to_owned() }),
            (None, Some(0)) => invalid("of no bytes".to_owned()),
            (None, Some(bytes)) if bytes % PAGE as u64 != 0 => {
                invalid(format!("of {bytes} bytes, which are no multiple of 4096"))
            }
            (None, Some(bytes)) => {
                let extent = Extent::make(socket, path, bytes, mode)?;
                file.write_all(&extent.0.to_line()).map_err(fail("write to"))?;
                Ok(extent.0)
            }
        }
    }

    /// Finds room, and makes it zero. The part is leased until the extent is in the file.
    fn make(socket: &Path, path: &Path, bytes: u64, mode: FaultMode) -> Result<(Extent, Lease), ExtentError> {
        let options = WindowOptions { mode, is_leased: true, ..WindowOptions::default() };
        let window = Window::open(socket, &options)?;
        let lease = Lease::take(socket, window.len() as u64, bytes)?;
        let range = lease.range();
        if !lease.begin_use(range.clone()) {
            let words = &window.words()[range.start as usize / 8..range.end as usize / 8];
            // A page that is read alone does not become dirty.
            words
                .iter()
                .filter(|word| word.load(Ordering::Relaxed) != 0)
                .for_each(|word| word.store(0, Ordering::Relaxed));
        }
        Ok((Extent { path: path.to_owned(), first: range.start, bytes }, lease))
    }

    pub(crate) fn to_line(&self) -> Vec<u8> {
        [format!("{} {} ", self.first, self.bytes).as_bytes(), self.path.as_os_str().as_bytes(), b"\n"].concat()
    }

    pub(crate) fn from_line(line: &[u8]) -> Option<Extent> {
        let mut parts = line.strip_suffix(b"\n")?.splitn(3, |byte| *byte == b' ');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        let (first, bytes) = (number()?, number()?);
        let path = OsString::from_vec(parts.next()?.to_vec()).into();
        Some(Extent { path, first, bytes })
    }
}

/// The extents that the file beside a device's socket has.
pub(crate) fn read(file: &File) -> io::Result<Vec<Extent>> {
    let length = file.metadata()?.len().saturating_sub(LOCKS_AT);
    let mut text = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut text, LOCKS_AT)?;
    Ok(text.split_inclusive(|byte| *byte == b'\n').map_while(Extent::from_line).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::heap::{HEAP_UNIT_BYTES as UNIT, create_file};

    #[test]
    fn no_heap_is_put_where_an_extent_is() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let table = file_of(&socket);
        create_file(&table, false).unwrap();
        let extent = Extent { path: "/a b".into(), first: UNIT, bytes: UNIT / 2 };
        let line = extent.to_line();
        let append = |bytes: &[u8]| File::options().append(true).open(&table).unwrap().write_all(bytes).unwrap();
        append(&line);
        // One that is being written is not there yet.
        append(&line[..line.len() - 1]);
        assert_eq!(read(&File::open(&table).unwrap()).unwrap(), [extent]);
        let take = |units: u64| Lease::take(&socket, 6 * UNIT, units * UNIT);
        let (large, small) = (take(2).unwrap(), take(1).unwrap());
        assert_eq!((large.range(), small.range()), (2 * UNIT..4 * UNIT, 0..UNIT));
        assert!(matches!(take(3), Err(LeaseError::NoRoom { .. })));
        assert_eq!(take(2).unwrap().range(), 4 * UNIT..6 * UNIT);
    }

    #[test]
    fn what_is_no_line_is_no_extent() {
        for line in ["", "\n", "1\n", "1 2\n", "1 x /a\n", "-1 2 /a\n", "1 2 /a"] {
            assert_eq!(Extent::from_line(line.as_bytes()), None, "{line:?}");
        }
    }
}
