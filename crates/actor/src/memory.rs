//! Placement of linear memories: a WebAssembly memory whose bytes are pages of the shared region.
//!
//! Wasmtime asks the [`Creator`] for each linear memory. It reserves 4 GiB and a guard of address space,
//! none of it accessible but the module's initial pages, which are private scratch while the module is
//! instantiated. Then [`Creator::attach`] grows the memory by what the host adds and maps shared segments
//! over all of it. Addresses inside WebAssembly are relative, so each process maps where it likes.
//!
//! Invariants:
//! 1. What lies behind the accessible bytes stays reserved and inaccessible, so that an access there traps.
//! 2. A memory grows once, by the host, in `attach`. Whatever the module asks for answers -1.
//! 3. The base never moves.
//!
//! `docs/actors.md` tells the three traps of this and the tests that hold them.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use wasmtime::{AsContextMut, LinearMemory, Memory, MemoryCreator, MemoryType};

use crate::abi::PAGE_BYTES;
use crate::segment::Segment;

/// Address space of one linear memory: all that a 32-bit address reaches, so that bounds checks vanish.
pub const RESERVATION_BYTES: u64 = 4 << 30;
/// Inaccessible bytes behind it, for the constant offsets of loads and stores.
pub const GUARD_BYTES: u64 = 32 << 20;

/// Why a memory could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// The kernel refused a mapping.
    #[error("mapping {bytes} bytes of the shared region into an actor's memory: {error}")]
    Map {
        /// How many bytes.
        bytes: u64,
        /// What the kernel says.
        error: io::Error,
    },
    /// Growing by the host's pages failed.
    #[error(
        "growing an actor's memory from {pages} by {more} pages for the I/O buffers failed; \
         link the module without a maximum memory size"
    )]
    Grow {
        /// Pages before.
        pages: u64,
        /// Pages wanted besides.
        more: u64,
    },
    /// The pieces do not cover the memory's own pages.
    #[error("the segment for an actor's memory has {given} bytes, its module asks for {wanted}")]
    Short {
        /// Bytes of the segment.
        given: u64,
        /// Bytes of the module's initial memory.
        wanted: u64,
    },
}

/// What the creator and a memory that it made both know.
#[derive(Debug)]
struct Place {
    base: NonNull<u8>,
    accessible: AtomicUsize,
    /// How far the memory may grow now: its present size but for the moment of the host's own growth.
    allowed: AtomicUsize,
    reserved: usize,
    total: usize,
}

// SAFETY: the base is an address that the place owns; the counters are atomics.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Drop for Place {
    fn drop(&mut self) {
        // SAFETY: `Creator::reserve` mapped this very range; whatever was mapped over parts of it goes too.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.total) };
    }
}

/// One linear memory, as Wasmtime sees it.
struct Placed(Arc<Place>);

// SAFETY: `byte_size` bytes behind `as_ptr` are readable and writable, the rest of the reservation and the
// guard are mapped without access, and the base never moves, as the trait asks.
unsafe impl LinearMemory for Placed {
    fn byte_size(&self) -> usize {
        self.0.accessible.load(Ordering::Relaxed)
    }

    fn byte_capacity(&self) -> usize {
        self.0.reserved
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size > self.0.allowed.load(Ordering::Relaxed) || new_size > self.0.reserved {
            return Err(wasmtime::Error::msg("an actor's memory does not grow"));
        }
        allow_access(self.0.base, new_size).map_err(wasmtime::Error::from)?;
        self.0.accessible.store(new_size, Ordering::Relaxed);
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.0.base.as_ptr()
    }
}

/// Makes every linear memory of an engine.
#[derive(Debug, Default)]
pub struct Creator {
    places: Mutex<Vec<Arc<Place>>>,
}

// SAFETY: `new_memory` reserves what is asked for and the guard behind it, zeroed and accessible for
// `minimum` bytes only.
unsafe impl MemoryCreator for Creator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        let reserved = reserved.unwrap_or(RESERVATION_BYTES as usize).max(minimum);
        let place = reserve(minimum, reserved, guard)
            .map_err(|e| format!("reserving {reserved} bytes of address space for an actor's memory: {e}"))?;
        let place = Arc::new(place);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        // Those whose instance is gone have this list as their last owner.
        places.retain(|p| Arc::strong_count(p) > 1);
        places.push(place.clone());
        Ok(Box::new(Placed(place)))
    }
}

impl Creator {
    /// Memories made so far and not dropped.
    pub fn alive(&self) -> usize {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter().filter(|p| Arc::strong_count(p) > 1).count()
    }

    /// Grows `memory` to the length of all `pieces` and maps them over it, the first one at its beginning.
    /// The first has to cover the module's own pages. What was in them is gone from this process's view:
    /// the memory now shows what the segments hold. Afterwards the memory does not grow any more.
    ///
    /// # Errors
    /// [`PlaceError`]; the memory is then in no state to be used.
    ///
    /// # Panics
    /// If `memory` was not made by this creator.
    pub fn attach(
        &self,
        mut store: impl AsContextMut,
        memory: &Memory,
        pieces: &[Segment],
        populate: bool,
    ) -> Result<(), PlaceError> {
        let place = self.place(memory.data_ptr(&store));
        let own = place.accessible.load(Ordering::Relaxed) as u64;
        let first = pieces.first().map_or(0, Segment::bytes);
        if first < own {
            return Err(PlaceError::Short { given: first, wanted: own });
        }
        let total: u64 = pieces.iter().map(Segment::bytes).sum();
        let (pages, wanted) = (own / PAGE_BYTES, total.div_ceil(PAGE_BYTES));
        let more = wanted - pages;
        let failed = || PlaceError::Grow { pages, more };
        let target = usize::try_from(wanted * PAGE_BYTES).map_err(|_| failed())?;
        place.allowed.store(target, Ordering::Relaxed);
        let grown = memory.grow(&mut store, more);
        place.allowed.store(0, Ordering::Relaxed);
        grown.map_err(|_| failed())?;
        let mut at = 0;
        for piece in pieces {
            // SAFETY: `at` plus the piece lies within the accessible bytes just grown.
            let to = unsafe { place.base.add(at) };
            // SAFETY: the range is this memory's own reservation, no reference into it exists (every use of a
            // linear memory in this crate borrows the store, which is borrowed here), and the bytes may be
            // anything.
            unsafe { piece.map_over(to, populate) }.map_err(|error| PlaceError::Map { bytes: piece.bytes(), error })?;
            at += piece.bytes() as usize;
        }
        Ok(())
    }

    fn place(&self, base: *mut u8) -> Arc<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let found = places.iter().find(|p| p.base.as_ptr() == base);
        found.cloned().unwrap_or_else(|| panic!("a linear memory that this engine's creator did not make"))
    }
}

fn reserve(minimum: usize, reserved: usize, guard: usize) -> io::Result<Place> {
    let total = reserved.checked_add(guard).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: without MAP_FIXED the kernel chooses addresses that nothing uses.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), total, libc::PROT_NONE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let place = Place { base, accessible: AtomicUsize::new(minimum), allowed: AtomicUsize::new(0), reserved, total };
    allow_access(base, minimum)?;
    Ok(place)
}

/// Makes the first `bytes` of a reservation readable and writable.
fn allow_access(base: NonNull<u8>, bytes: usize) -> io::Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    // SAFETY: the range is within a reservation of ours; what is mapped there keeps its contents.
    let result = unsafe { libc::mprotect(base.as_ptr().cast(), bytes, libc::PROT_READ | libc::PROT_WRITE) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests;
