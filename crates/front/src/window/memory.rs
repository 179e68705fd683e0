//! The memory that programs map: a page of it at its place in the window, there while the page is resident.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use osier_device::window::{PAGE_BYTES, PageBytes, Resident};

/// Idle pages beyond the limit that wait for a turn in which nothing else is to be done.
const IDLE_SLACK: usize = 1024;

/// No memory to map.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {bytes} bytes of shared memory for the window: {source}")]
pub struct MemoryError {
    what: &'static str,
    bytes: u64,
    source: io::Error,
}

/// See the module. The file is as long as the window and sparse: memory is taken by resident pages, and by idle ones up
/// to a limit, because to give a page back and take one anew costs more than to fill it.
#[derive(Debug)]
pub struct Memory {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    /// A bit for each page whose memory is kept though it has left.
    is_idle: Vec<u64>,
    /// Of these, whose bytes they have: one that comes back need not be copied.
    idle: HashMap<u64, Option<u64>>,
    idle_max: usize,
    /// Where the search for an idle page goes on, in words.
    hand: usize,
}

impl Memory {
    /// Memory for so many pages, none there.
    ///
    /// # Errors
    /// What the system refused.
    pub fn new(pages: u64, idle_bytes_max: u64) -> Result<Memory, MemoryError> {
        let bytes = pages * PAGE_BYTES as u64;
        let fail = |what| move || MemoryError { what, bytes, source: io::Error::last_os_error() };
        // SAFETY: the name is a constant string ending in zero.
        let fd = unsafe { libc::memfd_create(c"osier-window".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        if fd < 0 {
            return Err(fail("make")());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: plain calls on an owned descriptor. Sealed in size, so that no holder can cut it short under others.
        let sized = unsafe {
            libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) == 0
        };
        if !sized {
            return Err(fail("size")());
        }
        let length = bytes as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), 0) };
        let base = NonNull::new(base.cast()).filter(|_| base != libc::MAP_FAILED).ok_or_else(fail("map"))?;
        Ok(Memory {
            fd,
            base,
            bytes: length,
            is_idle: vec![0; (pages as usize).div_ceil(64)],
            idle: HashMap::new(),
            idle_max: (idle_bytes_max / PAGE_BYTES as u64) as usize,
            hand: 0,
        })
    }

    /// The descriptor to pass on.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn at(&self, page: u64) -> *mut u8 {
        let offset = page as usize * PAGE_BYTES;
        assert!(offset < self.bytes, "page {page} is in the window");
        // SAFETY: the page lies in the mapping, as was just checked.
        unsafe { self.base.add(offset).as_ptr() }
    }

    /// Gives the memory of an idle page beyond the limit back to the system, going round the window; whether there was
    /// one. One at a time, because a fault may come meanwhile.
    pub fn give_back(&mut self) -> bool {
        if self.idle.len() <= self.idle_max {
            return false;
        }
        while self.is_idle[self.hand] == 0 {
            self.hand = (self.hand + 1) % self.is_idle.len();
        }
        let page = self.hand * 64 + self.is_idle[self.hand].trailing_zeros() as usize;
        self.take_idle(page as u64);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, bytes) = ((page * PAGE_BYTES) as i64, PAGE_BYTES as i64);
        // SAFETY: a plain call on an owned descriptor; nobody maps the page. A refusal costs memory alone.
        unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, bytes) };
        true
    }

    /// The bytes of a page. Another program may be storing to it: then they are of any moment.
    pub fn read(&self, page: u64) -> PageBytes {
        let mut bytes = [0; PAGE_BYTES];
        // SAFETY: a page of the mapping; the bytes are no part of it.
        unsafe { std::ptr::copy_nonoverlapping(self.at(page), bytes.as_mut_ptr(), PAGE_BYTES) };
        bytes
    }

    /// The page is idle no more; what it had the bytes of, if it was.
    fn take_idle(&mut self, page: u64) -> Option<Option<u64>> {
        self.is_idle[page as usize / 64] &= !(1 << (page % 64));
        self.idle.remove(&page)
    }
}

impl Resident for Memory {
    fn held(&self, page: u64) -> Option<u64> {
        self.idle.get(&page).copied().flatten()
    }

    fn expect(&self, bytes: &PageBytes) {
        #[cfg(target_arch = "x86_64")]
        for line in bytes.chunks(64) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            // SAFETY: a hint, about bytes that live.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = bytes;
    }

    fn load(&mut self, page: u64, copy: Option<u64>, bytes: Option<&PageBytes>) {
        if self.take_idle(page) == Some(copy) {
            return;
        }
        let to = self.at(page);
        match bytes {
            // SAFETY: a page of the mapping; a program that maps it against the rules races with itself alone.
            Some(bytes) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE_BYTES) },
            // SAFETY: as above.
            None => unsafe { std::ptr::write_bytes(to, 0, PAGE_BYTES) },
        }
    }

    fn save(&mut self, page: u64, bytes: &mut PageBytes) {
        *bytes = self.read(page);
    }

    fn left(&mut self, page: u64, copy: Option<u64>) {
        self.is_idle[page as usize / 64] |= 1 << (page % 64);
        self.idle.insert(page, copy);
        if self.idle.len() > self.idle_max + IDLE_SLACK {
            self.give_back();
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
