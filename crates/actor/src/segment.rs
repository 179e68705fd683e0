//! Ranges of shared objects, and this process's own mapping of one.
//!
//! A [`Segment`] names bytes that several processes share: a file descriptor, an offset, a length. The
//! shared region is one file; every object in it is a segment. This crate maps segments itself, because it
//! has to place them at addresses that WebAssembly chose.
//!
//! Other processes write what is mapped here. So a mapping hands out no reference to its bytes: they are
//! copied in and out, and whoever copies out checks what came.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a page of the machine, as `mmap` counts offsets.
pub const MACHINE_PAGE_BYTES: u64 = 4096;

/// A range of a shared object.
#[derive(Debug, Clone)]
pub struct Segment {
    fd: Arc<OwnedFd>,
    offset: u64,
    bytes: u64,
}

impl Segment {
    /// The range `offset .. offset + bytes` of what `fd` refers to.
    ///
    /// # Panics
    /// If offset or length is not a multiple of 4096, or the length is 0: the region allocates whole pages.
    pub fn new(fd: Arc<OwnedFd>, offset: u64, bytes: u64) -> Segment {
        assert!(offset.is_multiple_of(MACHINE_PAGE_BYTES), "segment at {offset}, which is not on a page");
        assert!(bytes.is_multiple_of(MACHINE_PAGE_BYTES) && bytes > 0, "segment of {bytes} bytes, not whole pages");
        Segment { fd, offset, bytes }
    }

    /// A segment of its own in anonymous shared memory, zeroed: for tests, benchmarks and volatile devices.
    ///
    /// # Errors
    /// What `memfd_create` or `ftruncate` say.
    pub fn anonymous(name: &std::ffi::CStr, bytes: u64) -> io::Result<Segment> {
        use std::os::fd::FromRawFd;
        // SAFETY: the name is a C string that outlives the call.
        let raw = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made the descriptor and nobody else has it.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        std::fs::File::from(fd.try_clone()?).set_len(bytes)?;
        Ok(Segment::new(Arc::new(fd), 0, bytes))
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The object that it is a range of.
    pub fn fd(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Where in the object it begins, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The part `offset .. offset + bytes` of it.
    ///
    /// # Panics
    /// If the part does not lie within, or not on pages.
    pub fn part(&self, offset: u64, bytes: u64) -> Segment {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset, "part {offset}+{bytes} of {}", self.bytes);
        Segment::new(self.fd.clone(), self.offset + offset, bytes)
    }

    /// Maps the whole segment shared, readable and writable, over what is at `at`.
    ///
    /// # Safety
    /// `at .. at + bytes` must be address space that the caller reserved and that nothing refers to by
    /// reference; afterwards its bytes are those of the segment.
    ///
    /// # Errors
    /// What `mmap` says.
    pub unsafe fn map_over(&self, at: NonNull<u8>, populate: bool) -> io::Result<()> {
        let populate = if populate { libc::MAP_POPULATE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_FIXED | populate;
        // SAFETY: the caller owns the address range; the descriptor is open as long as `self`.
        unsafe { self.map_at(at.as_ptr(), flags) }.map(|_| ())
    }

    /// # Safety
    /// With `MAP_FIXED` among the flags, the contract of [`Segment::map_over`].
    unsafe fn map_at(&self, at: *mut u8, flags: i32) -> io::Result<NonNull<u8>> {
        let length = usize::try_from(self.bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let offset = i64::try_from(self.offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: passed on to the caller of this function.
        let base = unsafe { libc::mmap(at.cast(), length, protection, flags, self.fd.as_raw_fd(), offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

/// A segment mapped anywhere, for this process to copy in and out of.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping is plain shared memory without thread affinity; all access is by copy or by atomics,
// and who may write which bytes when is the ownership protocol's matter, across processes as across threads.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a segment.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn new(segment: &Segment) -> io::Result<Mapping> {
        // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing uses.
        let base = unsafe { segment.map_at(std::ptr::null_mut(), libc::MAP_SHARED) }?;
        Ok(Mapping { base, bytes: segment.bytes as usize })
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range does not lie within.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: `at` checked the range; `out` is exclusive memory of ours and does not overlap a mapping
        // that hands out no references.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the range does not lie within.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes from one place of the mapping to another; the places may overlap.
    ///
    /// # Panics
    /// If a range does not lie within.
    pub fn copy_within(&self, from: u64, to: u64, bytes: usize) {
        let (from, to) = (self.at(from, bytes), self.at(to, bytes));
        // SAFETY: `at` checked both ranges; `copy` allows an overlap.
        unsafe { std::ptr::copy(from, to, bytes) }
    }

    /// Sets bytes to zero.
    ///
    /// # Panics
    /// If the range does not lie within.
    pub fn zero(&self, offset: u64, bytes: usize) {
        let to = self.at(offset, bytes);
        // SAFETY: `at` checked the range.
        unsafe { std::ptr::write_bytes(to, 0, bytes) }
    }

    /// The shared word at `offset`.
    ///
    /// # Panics
    /// If it does not lie within or is not aligned to 8.
    pub fn word64(&self, offset: u64) -> &AtomicU64 {
        let at = self.at(offset, 8);
        assert!(at.addr().is_multiple_of(8), "a shared word at {offset} is not aligned");
        // SAFETY: the word lies within the mapping, which lives as long as `self`, and is aligned; atomics
        // may be shared between processes.
        unsafe { AtomicU64::from_ptr(at.cast()) }
    }

    /// The shared word at `offset`.
    ///
    /// # Panics
    /// If it does not lie within or is not aligned to 4.
    #[inline]
    pub fn word32(&self, offset: u64) -> &AtomicU32 {
        let at = self.at(offset, 4);
        assert!(at.addr().is_multiple_of(4), "a shared word at {offset} is not aligned");
        // SAFETY: as in `word64`.
        unsafe { AtomicU32::from_ptr(at.cast()) }
    }

    /// Reads a word with relaxed ordering: what one owner at a time writes.
    #[inline]
    pub fn load32(&self, offset: u64) -> u32 {
        self.word32(offset).load(Ordering::Relaxed)
    }

    /// Writes a word with relaxed ordering.
    #[inline]
    pub fn store32(&self, offset: u64, value: u32) {
        self.word32(offset).store(value, Ordering::Relaxed);
    }

    #[inline]
    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        assert!(
            offset <= self.bytes && bytes <= self.bytes - offset,
            "access to {bytes} bytes at {offset} of a mapping of {}",
            self.bytes
        );
        // SAFETY: checked to lie within the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this very range was mapped by `new`, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_segment_see_the_same_bytes() {
        let segment = Segment::anonymous(c"test", 8192).unwrap();
        let (a, b) = (Mapping::new(&segment).unwrap(), Mapping::new(&segment.part(4096, 4096)).unwrap());
        a.write(4100, b"hello");
        let mut out = [0u8; 5];
        b.read(4, &mut out);
        assert_eq!(&out, b"hello");
        b.word64(8).store(7, Ordering::Release);
        assert_eq!(a.word64(4104).load(Ordering::Acquire), 7);
        a.copy_within(4100, 0, 4);
        a.zero(4100, 4);
        b.read(4, &mut out);
        assert_eq!(&out, b"\0\0\0\0\x07");
    }

    #[test]
    #[should_panic(expected = "access to 2 bytes at 4095")]
    fn a_range_over_the_end_is_a_bug() {
        let segment = Segment::anonymous(c"test", 4096).unwrap();
        Mapping::new(&segment).unwrap().write(4095, b"xx");
    }
}
