//! The memory that programs map: a page of it at its place in the window, there while the page is resident.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use osier_device::window::{PAGE_BYTES, PageBytes, Resident};

/// Idle pages beyond the limit that wait for a turn in which nothing else is to be done.
const IDLE_SLACK: usize = 1024;
/// Idle pages, one after another, that are given back in one call, at most: a fault may come meanwhile.
const GIVEN_BACK_MAX: u32 = 16;
const ZEROES: PageBytes = [0; PAGE_BYTES];

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
    file: File,
    base: NonNull<u8>,
    bytes: usize,
    /// A bit for each page whose memory is kept though it has left.
    is_idle: Vec<u64>,
    /// A bit for each page that this process has mapped. One that has no memory yet gets it by a write to the file:
    /// that costs no fault, clears nothing, and leaves nothing to unmap when the page is given back.
    is_mapped: Vec<u64>,
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
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        // SAFETY: plain calls on an owned descriptor. Sealed in size, so that no holder can cut it short under others.
        let sized = unsafe {
            libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) == 0
                && libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW) == 0
        };
        if !sized {
            return Err(fail("size")());
        }
        let length = bytes as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: no address is asked for, so no existing mapping is touched.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, file.as_raw_fd(), 0) };
        let base = NonNull::new(base.cast()).filter(|_| base != libc::MAP_FAILED).ok_or_else(fail("map"))?;
        let words = (pages as usize).div_ceil(64);
        Ok(Memory {
            file,
            base,
            bytes: length,
            is_idle: vec![0; words],
            is_mapped: vec![0; words],
            idle: HashMap::new(),
            idle_max: (idle_bytes_max / PAGE_BYTES as u64) as usize,
            hand: 0,
        })
    }

    /// The descriptor to pass on.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    fn at(&self, page: u64) -> *mut u8 {
        let offset = page as usize * PAGE_BYTES;
        assert!(offset < self.bytes, "page {page} is in the window");
        // SAFETY: the page lies in the mapping, as was just checked.
        unsafe { self.base.add(offset).as_ptr() }
    }

    /// Gives memory of idle pages beyond the limit back to the system, going round the window; whether there were any.
    /// A few at a time, because a fault may come meanwhile.
    pub fn give_back(&mut self) -> bool {
        let beyond = self.idle.len().saturating_sub(self.idle_max);
        if beyond == 0 {
            return false;
        }
        while self.is_idle[self.hand] == 0 {
            self.hand = (self.hand + 1) % self.is_idle.len();
        }
        let word = self.is_idle[self.hand];
        let first = word.trailing_zeros();
        let count = (word >> first).trailing_ones().min(GIVEN_BACK_MAX).min(u32::try_from(beyond).unwrap_or(u32::MAX));
        let pages = (self.hand as u64 * 64 + u64::from(first)..).take(count as usize);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let offset = (self.hand * 64 + first as usize) * PAGE_BYTES;
        let bytes = count as usize * PAGE_BYTES;
        for page in pages {
            self.take_idle(page);
        }
        self.is_mapped[self.hand] &= self.is_idle[self.hand] | !word;
        // SAFETY: a plain call on an owned descriptor; nobody maps the pages. A refusal costs memory alone.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t) };
        true
    }

    /// The bytes of a page. Another program may be storing to it: then they are of any moment.
    pub fn read(&self, page: u64) -> PageBytes {
        let mut bytes = [0; PAGE_BYTES];
        self.copy_to(page, &mut bytes);
        bytes
    }

    fn copy_to(&self, page: u64, bytes: &mut PageBytes) {
        let from = self.at(page);
        if !self.is_mapped(page) && self.file.read_exact_at(bytes, page * PAGE_BYTES as u64).is_ok() {
            return;
        }
        // SAFETY: a page of the mapping; a program that still maps it races with itself alone, and the bytes are no
        // part of it.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), PAGE_BYTES) };
    }

    fn is_mapped(&self, page: u64) -> bool {
        self.is_mapped[page as usize / 64] >> (page % 64) & 1 != 0
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
        let was_idle = self.take_idle(page);
        if was_idle == Some(copy) {
            return;
        }
        let (to, bytes) = (self.at(page), bytes.unwrap_or(&ZEROES));
        let has_memory = was_idle.is_some() || self.is_mapped(page);
        if !has_memory && self.file.write_all_at(bytes, page * PAGE_BYTES as u64).is_ok() {
            return;
        }
        self.is_mapped[page as usize / 64] |= 1 << (page % 64);
        // SAFETY: a page of the mapping; a program that maps it against the rules races with itself alone.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, PAGE_BYTES) };
    }

    fn save(&mut self, page: u64, bytes: &mut PageBytes) {
        self.copy_to(page, bytes);
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const PAGES: u64 = 6_000;
    const IDLE_MAX: u64 = 500;

    fn bytes_of(value: u64) -> PageBytes {
        let mut bytes = ZEROES;
        bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
        bytes
    }

    /// Pages come, are stored to by a program, are saved and leave in any order: each has the bytes that it should, and
    /// the memory is that of the pages that are there, and of idle ones up to their limit.
    #[test]
    fn each_page_has_its_bytes_and_memory_is_bounded() {
        let mut memory = Memory::new(PAGES, IDLE_MAX * PAGE_BYTES as u64).unwrap();
        let mut state = 7_u64;
        let mut below = |bound: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % bound
        };
        // The bytes of each copy of the flash, what is there with the copy that it came from, and what has left.
        let mut copies: Vec<u64> = Vec::new();
        let mut there: BTreeMap<u64, (Option<u64>, u64)> = BTreeMap::new();
        let mut newest: BTreeMap<u64, u64> = BTreeMap::new();
        for step in 0..60_000 {
            // Neighbours, as a scan has them, so that several are given back at a time.
            let page = (below(PAGES / 32) * 32 + step % 32).min(PAGES - 1);
            match there.get(&page).copied() {
                None => {
                    let copy = newest.get(&page).copied();
                    let value = copy.map_or(0, |copy| copies[copy as usize]);
                    assert!(memory.held(page).is_none_or(|held| Some(held) == copy), "page {page}");
                    memory.load(page, copy, copy.map(|_| bytes_of(value)).as_ref());
                    there.insert(page, (copy, value));
                }
                Some((copy, value)) if below(2) == 0 => {
                    let value = if copy.is_none() || below(2) == 0 { step + 1 } else { value };
                    memory.file.write_all_at(&bytes_of(value), page * PAGE_BYTES as u64).unwrap();
                    let mut saved = ZEROES;
                    memory.save(page, &mut saved);
                    assert!(saved == bytes_of(value), "page {page} is saved as it was stored");
                    copies.push(value);
                    let copy = copies.len() as u64 - 1;
                    newest.insert(page, copy);
                    there.remove(&page);
                    memory.left(page, Some(copy));
                }
                Some((copy, _)) => {
                    there.remove(&page);
                    memory.left(page, copy);
                }
            }
            let (at, value) = there.first_key_value().map_or((page, 0), |(page, (_, value))| (*page, *value));
            if there.contains_key(&at) {
                let mut found = ZEROES;
                memory.file.read_exact_at(&mut found, at * PAGE_BYTES as u64).unwrap();
                assert!(found == bytes_of(value), "page {at} in step {step}");
            }
        }
        let pages = |memory: &Memory| memory.file.metadata().unwrap().blocks() * 512 / PAGE_BYTES as u64;
        assert!(pages(&memory) <= there.len() as u64 + IDLE_MAX + IDLE_SLACK as u64);
        while memory.give_back() {}
        assert!(pages(&memory) <= there.len() as u64 + IDLE_MAX);
        for (page, (_, value)) in &there {
            let mut found = ZEROES;
            memory.file.read_exact_at(&mut found, page * PAGE_BYTES as u64).unwrap();
            assert!(found == bytes_of(*value), "page {page}");
        }
    }
}
