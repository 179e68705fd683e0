//! The heap's part of the window: what is free, what the allocator has, what the program mapped.

use std::ffi::c_void;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libmimalloc_sys as mi;
use osier_client::heap::HEAP_UNIT_BYTES;

use crate::locked::Locked;
use crate::ranges::Ranges;
use crate::{Run, own};

pub const PAGE: usize = 4096;
/// What the allocator divides its memory into, in pages.
const SLICE_PAGES: u64 = 16;
/// Of a heap the allocator takes this part at a time, in whole units.
const GROWTH_SHARE: u64 = 64;
/// What the allocator writes about its memory into it, at most: this part, and so many bytes.
const OVERHEAD_SHARE: usize = 16;
const OVERHEAD_BYTES: usize = 4 << 20;
/// `mi_option_purge_delay`, which the binding lacks.
const OPTION_PURGE_DELAY: mi::mi_option_t = 15;
/// `mi_option_show_errors`: what fails is told to the program alone.
const OPTION_SHOW_ERRORS: mi::mi_option_t = 0;

/// What lies where, in pages of the window.
#[derive(Debug)]
pub struct Space {
    /// The address of the window's first page.
    base: usize,
    heap: Range<u64>,
    free: Ranges,
    /// What the program mapped.
    mapped: Ranges,
    /// The program changed the protection of something.
    is_protected: bool,
}

pub static SPACE: Locked<Space> =
    Locked::new(Space { base: 0, heap: 0..0, free: Ranges::new(), mapped: Ranges::new(), is_protected: false });

/// How often the allocator got memory.
static GROWN: AtomicU64 = AtomicU64::new(0);
/// Requests that found the heap full.
pub static REFUSED: AtomicU64 = AtomicU64::new(0);
/// Most pages that were in use.
pub static USED_MAX: AtomicU64 = AtomicU64::new(0);

/// Lays the heap out. Nothing lies in it yet.
pub fn begin(run: &Run, base: usize) {
    let range = run.lease.range();
    let heap = range.start / PAGE as u64..range.end / PAGE as u64;
    SPACE.with(|space| {
        space.base = base;
        space.free.insert(heap.clone());
        space.heap = heap;
    });
    // SAFETY: plain calls, before the first allocation. What the program frees stays the allocator's: to give pages
    // back would be to write zeroes.
    unsafe {
        mi::mi_option_set(mi::mi_option_limit_os_alloc, 1);
        mi::mi_option_set(OPTION_PURGE_DELAY, -1);
        mi::mi_option_set(OPTION_SHOW_ERRORS, 0);
    }
    grow(0, 0);
    // What it needs once for all memory is asked for now: in the heap it would lie across parts that it could take.
    // SAFETY: plain calls; it gave the block.
    unsafe { mi::mi_free(mi::mi_malloc(1)) };
}

impl Space {
    pub fn address(&self, page: u64) -> usize {
        self.base + page as usize * PAGE
    }

    /// The pages that bytes of the heap lie in.
    pub fn pages(&self, address: usize, bytes: usize) -> Range<u64> {
        let start = (address - self.base) / PAGE;
        start as u64..(start + bytes.div_ceil(PAGE)) as u64
    }

    /// What is in use.
    pub fn used(&self) -> Vec<Range<u64>> {
        let mut used = Ranges::new();
        used.insert(self.heap.clone());
        for free in self.free.within(self.heap.clone()) {
            used.remove(free);
        }
        used.within(self.heap.clone())
    }

    pub fn heap(&self) -> Range<u64> {
        self.heap.clone()
    }

    fn take(&mut self, pages: u64, alignment: u64) -> Option<Range<u64>> {
        let taken = self.free.take(pages, alignment);
        if taken.is_none() {
            REFUSED.fetch_add(1, Ordering::Relaxed);
        }
        let used = self.heap.end - self.heap.start - self.free.pages();
        USED_MAX.fetch_max(used, Ordering::Relaxed);
        taken
    }

    /// The allocator finds no part of so many bytes. Said once: programs seldom say more than that memory is missing.
    fn say_full(&self, bytes: usize) {
        static IS_SAID: AtomicBool = AtomicBool::new(false);
        let kib = |pages: u64| pages * PAGE as u64 / 1024;
        let all = kib(self.heap.end - self.heap.start);
        if bytes as u64 / 1024 <= all && !IS_SAID.swap(true, Ordering::Relaxed) {
            say!(
                "{}: process {}: the allocator takes {} KiB of the heap now, and of its {all} KiB no so many are free \
                 together; {} KiB are left for mappings; ask for a larger heap (--heap)",
                crate::who(),
                std::process::id(),
                bytes / 1024,
                kib(self.free.pages())
            );
        }
    }

    /// Gives the program pages of its own; they may have to be made zero.
    pub fn map(&mut self, pages: u64) -> Option<Range<u64>> {
        let range = self.take(pages, 1)?;
        self.mapped.insert(range.clone());
        Some(range)
    }

    /// Gives the program the pages behind what it has, if they are free.
    pub fn map_at(&mut self, range: Range<u64>) -> bool {
        let is_free = self.free.contains(range.clone());
        if is_free {
            self.free.remove(range.clone());
            self.mapped.insert(range);
        }
        is_free
    }

    /// Takes back what the program had mapped of some pages.
    pub fn unmap(&mut self, range: Range<u64>) {
        for piece in self.mapped.remove(range) {
            if self.is_protected {
                let bytes = (piece.end - piece.start) as usize * PAGE;
                own::mprotect(self.address(piece.start), bytes, libc::PROT_READ | libc::PROT_WRITE);
            }
            self.free.insert(piece);
        }
    }

    /// Whether the program mapped all of some pages.
    pub fn is_mapped(&self, range: Range<u64>) -> bool {
        self.mapped.contains(range)
    }

    /// The program changes the protection of something.
    pub fn note_protection(&mut self) {
        self.is_protected = true;
    }
}

/// Notes that pages are used from now on; whether they are zero.
pub fn begin_use(range: &Range<u64>) -> bool {
    let Some(run) = crate::RUN.get() else { return false };
    run.lease.begin_use(range.start * PAGE as u64..range.end * PAGE as u64)
}

/// Makes pages zero that are not. A page that is read alone does not become dirty.
pub fn make_zero(address: usize, bytes: usize) {
    for page in (address..address + bytes).step_by(PAGE) {
        let page = page as *mut u64;
        // SAFETY: the page is the caller's alone.
        unsafe {
            if std::slice::from_raw_parts(page, PAGE / 8).iter().any(|word| *word != 0) {
                std::ptr::write_bytes(page.cast::<u8>(), 0, PAGE);
            }
        }
    }
}

/// Asks the allocator, and gives it memory if it has too little.
pub fn allocate(bytes: usize, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    loop {
        let grown = GROWN.load(Ordering::Acquire);
        let got = ask();
        if !got.is_null() {
            return got;
        }
        if !grow(grown, bytes) {
            own::set_errno(libc::ENOMEM);
            return std::ptr::null_mut();
        }
    }
}

/// Gives the allocator memory for an object of so many bytes, unless somebody did since it had got `grown` parts.
fn grow(grown: u64, bytes: usize) -> bool {
    SPACE.with(|space| {
        if GROWN.load(Ordering::Acquire) != grown {
            return true;
        }
        let unit = HEAP_UNIT_BYTES as usize;
        let heap_bytes = (space.heap.end - space.heap.start) as usize * PAGE;
        let step = (heap_bytes / GROWTH_SHARE as usize).next_multiple_of(unit);
        let least = bytes.saturating_add(bytes / OVERHEAD_SHARE + OVERHEAD_BYTES);
        let Some(least) = least.checked_next_multiple_of(unit) else { return false };
        let whole = |bytes: usize| (bytes / PAGE) as u64;
        let range = space.take(whole(least.max(step)), SLICE_PAGES);
        let Some(range) = range.or_else(|| space.take(whole(least), SLICE_PAGES)) else {
            space.say_full(least);
            return false;
        };
        let is_zero = begin_use(&range);
        let (at, bytes) = (space.address(range.start), (range.end - range.start) as usize * PAGE);
        // SAFETY: the range is in the window and nobody else's, for as long as the process lives. It counts as memory
        // that can be given back, since the allocator would not put its own lists elsewhere; the options forbid it.
        let taken = unsafe {
            mi::mi_manage_os_memory_ex(
                at as *const c_void,
                bytes,
                true,
                false,
                is_zero,
                -1,
                false,
                std::ptr::null_mut(),
            )
        };
        GROWN.fetch_add(u64::from(taken), Ordering::AcqRel);
        taken
    })
}
