//! The memory that programs map: a page of it at its place in the window, there while the page is resident.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use osier_device::window::{PAGE_BYTES, PageBytes, Resident};

/// Pages given back to the system in a turn in which nothing else is to be done.
const GIVEN_BACK_PER_TURN: usize = 8;

/// Idle pages beyond the limit that wait for such a turn.
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
    idle: usize,
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
            idle: 0,
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

    /// Gives memory of idle pages beyond the limit back to the system, a little at a time, going round the window.
    pub fn give_back(&mut self) {
        for _ in 0..GIVEN_BACK_PER_TURN {
            if self.idle <= self.idle_max {
                return;
            }
            while self.is_idle[self.hand] == 0 {
                self.hand = (self.hand + 1) % self.is_idle.len();
            }
            let page = self.hand * 64 + self.is_idle[self.hand].trailing_zeros() as usize;
            self.note(page as u64, false);
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (offset, bytes) = ((page * PAGE_BYTES) as i64, PAGE_BYTES as i64);
            // SAFETY: a plain call on an owned descriptor; nobody maps the page. A refusal costs memory alone.
            unsafe { libc::fallocate(self.fd.as_raw_fd(), mode, offset, bytes) };
        }
    }

    fn note(&mut self, page: u64, is_idle: bool) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        let was_idle = self.is_idle[word] & bit != 0;
        self.is_idle[word] = if is_idle { self.is_idle[word] | bit } else { self.is_idle[word] & !bit };
        self.idle = self.idle + usize::from(is_idle) - usize::from(was_idle);
    }
}

impl Resident for Memory {
    fn load(&mut self, page: u64, bytes: Option<&PageBytes>) {
        self.note(page, false);
        let to = self.at(page);
        match bytes {
            // SAFETY: a page of the mapping; a program that maps it against the rules races with itself alone.
            Some(bytes) => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE_BYTES) },
            // SAFETY: as above.
            None => unsafe { std::ptr::write_bytes(to, 0, PAGE_BYTES) },
        }
    }

    fn save(&mut self, page: u64, bytes: &mut PageBytes) {
        // SAFETY: a page of the mapping that nobody maps; as above.
        unsafe { std::ptr::copy_nonoverlapping(self.at(page), bytes.as_mut_ptr(), PAGE_BYTES) };
    }

    fn left(&mut self, page: u64) {
        self.note(page, true);
        if self.idle > self.idle_max + IDLE_SLACK {
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
