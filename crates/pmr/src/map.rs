//! System calls under the region: making, sizing, mapping and releasing memory.

use crate::error::{PmrError, Result};
use crate::layout::PAGE_BYTES;
use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

/// A shared mapping of a whole region; unmapped when the last user lets go.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping is plain memory without thread affinity; all access goes through atomics, opaque
// copies, or `unsafe` functions whose callers promise single ownership.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` bytes of `fd`, shared and writable. `on` names the file in errors.
    pub(crate) fn new(fd: BorrowedFd<'_>, bytes: u64, on: &str) -> Result<Self> {
        let length = usize::try_from(bytes).expect("a region's size fits the address space");
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(PmrError::last_os("map", on));
        }
        let base = NonNull::new(base.cast()).expect("mmap never returns page zero when not asked to");
        Ok(Self { base, bytes: length })
    }

    /// Bytes of the mapping.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of a range inside the mapping.
    ///
    /// # Panics
    /// If the range leaves the mapping: a bug of the caller, whose offsets were checked before.
    #[inline]
    pub(crate) fn range(&self, offset: usize, bytes: usize) -> NonNull<u8> {
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "bytes {offset}+{bytes} leave a mapping of {}",
            self.bytes
        );
        // SAFETY: the range was just checked to lie in the mapping.
        unsafe { self.base.add(offset) }
    }

    /// Makes all pages of a range present and writable now, so that first touches do not fault later.
    pub(crate) fn prefault(&self, offset: usize, bytes: usize, on: &str) -> Result<()> {
        let start = offset - offset % PAGE_BYTES as usize;
        let length = offset + bytes - start;
        self.advise(start, length, libc::MADV_POPULATE_WRITE).map_err(|source| {
            let on = on.to_owned();
            PmrError::Io { what: "make present all pages of", on, source }
        })
    }

    fn advise(&self, offset: usize, bytes: usize, advice: c_int) -> io::Result<()> {
        let start = self.range(offset, bytes);
        // SAFETY: the range lies in this mapping, and populating changes no content.
        match unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Writes a page-aligned range through to the file and waits for it.
    pub(crate) fn sync(&self, offset: usize, bytes: usize, on: &str) -> Result<()> {
        let start = offset - offset % PAGE_BYTES as usize;
        let at = self.range(start, offset + bytes - start);
        // SAFETY: the range lies in this mapping; msync changes no content.
        match unsafe { libc::msync(at.as_ptr().cast(), offset + bytes - start, libc::MS_SYNC) } {
            0 => Ok(()),
            _ => Err(PmrError::last_os("write through", on)),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and everything that points into it holds a reference to it.
        let unmapped = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        assert_eq!(unmapped, 0, "munmap of an owned mapping cannot fail");
    }
}

/// How a range is placed at a given address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapOptions {
    /// Make all pages present now, so that the first touch does not fault on the I/O path.
    pub populate: bool,
    /// Allow stores through this mapping.
    pub writable: bool,
}

impl Default for MapOptions {
    fn default() -> Self {
        Self { populate: false, writable: true }
    }
}

/// Maps a file range at exactly `at`, replacing what is there.
///
/// # Safety
/// The caller owns the address range `at .. at + bytes`, and no reference into it is live.
pub(crate) unsafe fn map_fixed(
    fd: BorrowedFd<'_>,
    offset: u64,
    bytes: usize,
    at: *mut u8,
    options: MapOptions,
) -> io::Result<()> {
    let write = if options.writable { libc::PROT_WRITE } else { 0 };
    let populate = if options.populate { libc::MAP_POPULATE } else { 0 };
    let flags = libc::MAP_SHARED | libc::MAP_FIXED | populate;
    let offset = libc::off_t::try_from(offset).expect("a region's size fits a file offset");
    // SAFETY: the caller owns the address range.
    let mapped = unsafe { libc::mmap(at.cast(), bytes, libc::PROT_READ | write, flags, fd.as_raw_fd(), offset) };
    check_fixed(mapped, at)
}

/// Replaces what is mapped at `at .. at + bytes` by inaccessible address space, which stays reserved.
///
/// # Errors
/// What the operating system says, for example that `at` is not on a page border.
///
/// # Safety
/// The caller owns the address range, and no reference into it is live.
pub unsafe fn unmap_fixed(at: *mut u8, bytes: usize) -> io::Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the caller owns the address range.
    let mapped = unsafe { libc::mmap(at.cast(), bytes, libc::PROT_NONE, flags, -1, 0) };
    check_fixed(mapped, at)
}

fn check_fixed(mapped: *mut c_void, at: *mut u8) -> io::Result<()> {
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    assert_eq!(mapped.cast(), at, "a fixed mapping lies where it was asked for");
    Ok(())
}

/// Makes anonymous shared memory of a fixed size.
///
/// Anonymous memory has no limit of its own: reserving more than there is would not fail, it would make
/// the kernel kill processes. So it is compared with the memory available first.
pub(crate) fn memfd(bytes: u64, on: &str) -> Result<File> {
    if available_memory_bytes().is_some_and(|available| available < bytes) {
        return Err(PmrError::NoSpace { on: on.to_owned(), bytes });
    }
    // SAFETY: the name is a constant string ending in zero.
    let fd = unsafe { libc::memfd_create(c"osier-pmr".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if fd < 0 {
        return Err(PmrError::last_os("make shared memory for", on));
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    reserve(&file, bytes, on)?;
    // Sealed in size: no holder can cut the memory short and so kill the others with SIGBUS.
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a plain call on an owned descriptor.
    if unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, seals) } != 0 {
        return Err(PmrError::last_os("fix the size of", on));
    }
    Ok(file)
}

/// What the kernel believes can be taken without swapping, if it says so.
fn available_memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

/// Gives the file `bytes` bytes of real space, so that no later store can fail for want of it.
///
/// A sparse file would turn a full disk into SIGBUS in the middle of a store to the mapping.
pub(crate) fn reserve(file: &File, bytes: u64, on: &str) -> Result<()> {
    let length = libc::off_t::try_from(bytes).expect("a region's size fits a file offset");
    loop {
        // SAFETY: a plain call on an open file.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
            return Ok(());
        }
        let source = io::Error::last_os_error();
        let on = || on.to_owned();
        match source.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOSPC | libc::EDQUOT | libc::ENOMEM | libc::EFBIG) => {
                return Err(PmrError::NoSpace { on: on(), bytes });
            }
            Some(libc::EOPNOTSUPP) => return reserve_by_writing(file, bytes, &on()),
            _ => {
                return Err(PmrError::Io { what: "reserve space for", on: on(), source });
            }
        }
    }
}

/// For file systems without `fallocate`: writes zeros past the end of the file, and holes below it are
/// filled by rewriting what is read there.
fn reserve_by_writing(file: &File, bytes: u64, on: &str) -> Result<()> {
    const STEP_BYTES: u64 = 1 << 20;
    let present = file.metadata().map_err(|source| PmrError::Io { what: "size", on: on.to_owned(), source })?.len();
    let mut block = vec![0; STEP_BYTES as usize];
    for offset in (0..bytes).step_by(STEP_BYTES as usize) {
        let length = STEP_BYTES.min(bytes - offset) as usize;
        let old = present.saturating_sub(offset).min(length as u64) as usize;
        block.fill(0);
        let moved =
            file.read_exact_at(&mut block[..old], offset).and_then(|()| file.write_all_at(&block[..length], offset));
        moved.map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PmrError::NoSpace { on: on.to_owned(), bytes },
            _ => PmrError::Io { what: "write zeros to", on: on.to_owned(), source },
        })?;
    }
    Ok(())
}

/// The writer's lock of a region: a file lock on a description of its own, which the kernel drops when the
/// process ends.
#[derive(Debug)]
pub(crate) struct WriterLock(File);

impl Drop for WriterLock {
    fn drop(&mut self) {
        // Closing alone is not enough: a process that another thread is just starting holds a copy of the
        // descriptor from its fork to its exec, and with it the lock. An error leaves it to the closing.
        // SAFETY: a plain call on an owned descriptor.
        unsafe { libc::flock(self.0.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Takes the writer's lock of a region. Nothing when another holds it.
///
/// The descriptor that was passed to the domains cannot carry the lock: all its copies share one
/// description and would all hold it.
pub(crate) fn lock_writer(fd: BorrowedFd<'_>, on: &str) -> Result<Option<WriterLock>> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let file = File::options().read(true).write(true).open(path).map_err(|source| PmrError::Io {
        what: "open anew",
        on: on.to_owned(),
        source,
    })?;
    // SAFETY: a plain call on an owned descriptor.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(Some(WriterLock(file)));
    }
    match io::Error::last_os_error() {
        source if source.kind() == io::ErrorKind::WouldBlock => Ok(None),
        source => Err(PmrError::Io { what: "lock", on: on.to_owned(), source }),
    }
}

/// `RAMFS_MAGIC` of Linux's `magic.h`, which the libc crate lacks.
const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// Whether a file system without a disk holds the file.
pub(crate) fn is_in_memory(fd: BorrowedFd<'_>, on: &str) -> Result<bool> {
    // SAFETY: an all-zero statfs is a valid value of that plain struct.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live, writable value.
    if unsafe { libc::fstatfs(fd.as_raw_fd(), &mut stat) } != 0 {
        return Err(PmrError::last_os("ask for the file system of", on));
    }
    Ok([libc::TMPFS_MAGIC, RAMFS_MAGIC, libc::HUGETLBFS_MAGIC].contains(&stat.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn a_copy_of_the_writers_descriptor_does_not_keep_the_lock() {
        let file = tempfile::tempfile().unwrap();
        let lock = lock_writer(file.as_fd(), "region").unwrap().unwrap();
        assert!(lock_writer(file.as_fd(), "region").unwrap().is_none());
        let held_by_a_starting_process = lock.0.try_clone().unwrap();
        drop(lock);
        assert!(lock_writer(file.as_fd(), "region").unwrap().is_some());
        drop(held_by_a_starting_process);
    }
}
