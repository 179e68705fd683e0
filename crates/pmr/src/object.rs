//! An object of a region, and the ways to touch its bytes.
//!
//! Invariant: no safe function hands out a plain reference to bytes that another process may write. Safe
//! access copies ([`SharedBytes`]) or is atomic ([`Object::word64`]); a slice needs a promise of ownership.

use crate::copy;
use crate::error::{PmrError, Result};
use crate::layout::{Entry, ObjectKind, PAGE_BYTES, Side};
use crate::map::{self, MapOptions};
use crate::region::Shared;
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// A named object. Cloning is cheap; every clone keeps the region mapped.
#[derive(Debug, Clone)]
pub struct Object {
    shared: Arc<Shared>,
    slot: u32,
    entry: Entry,
}

impl Object {
    /// Wraps an entry that was checked to lie in the region.
    pub(crate) fn new(shared: Arc<Shared>, slot: u32, entry: Entry) -> Self {
        assert!(entry.end() <= shared.mapping.bytes() as u64, "{} leaves its region", entry.name);
        Self { shared, slot, entry }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.entry.name.as_str()
    }

    /// What it is for.
    pub fn kind(&self) -> ObjectKind {
        self.entry.kind
    }

    /// The side that the supervisor assigned it to when this handle was made.
    pub fn owner(&self) -> Side {
        self.entry.owner
    }

    /// Its first byte, from the start of the region.
    pub fn offset(&self) -> u64 {
        self.entry.offset
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.entry.bytes
    }

    /// Never: an object has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.entry.bytes == 0
    }

    /// The entry as the table held it when this handle was made.
    pub fn entry(&self) -> &Entry {
        &self.entry
    }

    /// Whether the object is still in the table: false once it was freed, also if its place was reused.
    pub fn is_current(&self) -> bool {
        self.shared.holds(self.slot, &self.entry)
    }

    /// The bytes, for copying in and out.
    pub fn bytes(&self) -> SharedBytes<'_> {
        let start = self.address_of(0, self.entry.bytes, 1);
        SharedBytes { start, bytes: self.entry.bytes, _of: PhantomData }
    }

    /// The 64-bit word at a byte offset.
    ///
    /// # Panics
    /// If the offset is not a multiple of 8 or leaves the object.
    #[inline]
    pub fn word64(&self, offset: u64) -> &AtomicU64 {
        let at = self.address_of(offset, 8, 8);
        // SAFETY: eight aligned bytes inside the mapping, which `self` keeps; everyone accesses them by
        // atomics or opaque copies.
        unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }
    }

    /// The 32-bit word at a byte offset.
    ///
    /// # Panics
    /// If the offset is not a multiple of 4 or leaves the object.
    #[inline]
    pub fn word32(&self, offset: u64) -> &AtomicU32 {
        let at = self.address_of(offset, 4, 4);
        // SAFETY: four aligned bytes inside the mapping, which `self` keeps; everyone accesses them by
        // atomics or opaque copies.
        unsafe { AtomicU32::from_ptr(at.as_ptr().cast()) }
    }

    /// All bytes as a slice, for their single owner.
    ///
    /// # Safety
    /// For as long as the slice lives no one else, in any process, reads or writes the object, this
    /// process has no other slice of it, and the object is not freed.
    #[expect(clippy::mut_from_ref, reason = "the caller's promise stands in for the borrow checker")]
    pub unsafe fn slice_mut(&self) -> &mut [u8] {
        let start = self.address_of(0, self.entry.bytes, 1);
        // SAFETY: the bytes are mapped while `self` lives, initialised, and by the caller's promise unshared.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), self.entry.bytes as usize) }
    }

    /// All bytes as a slice, while no one writes them.
    ///
    /// # Safety
    /// For as long as the slice lives no one, in any process, writes the object, and it is not freed.
    pub unsafe fn slice(&self) -> &[u8] {
        let start = self.address_of(0, self.entry.bytes, 1);
        // SAFETY: the bytes are mapped while `self` lives, initialised, and by the caller's promise unchanging.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.entry.bytes as usize) }
    }

    /// Maps a page-aligned range of the object at exactly `at`, replacing what is mapped there. Undo with
    /// [`crate::unmap_fixed`]. This is how a WebAssembly linear memory is placed in the region.
    ///
    /// # Errors
    /// `BadRange`, or what the system refused.
    ///
    /// # Safety
    /// The caller owns the address range of that length at `at`; no reference into it is live; and what
    /// reaches the bytes through it respects their sharing as this crate's users do.
    pub unsafe fn map_fixed(&self, range: Range<u64>, at: *mut u8, options: MapOptions) -> Result<()> {
        let in_object = range.start < range.end && range.end <= self.entry.bytes;
        let places = [self.entry.offset, range.start, range.end, at.addr() as u64];
        if !in_object || !places.iter().all(|place| place.is_multiple_of(PAGE_BYTES)) {
            let (start, end) = (range.start, range.end);
            return Err(PmrError::BadRange { name: self.name().to_owned(), start, end });
        }
        let bytes = usize::try_from(range.end - range.start).expect("an object fits the address space");
        let offset = self.entry.offset + range.start;
        // SAFETY: the caller's promise about the address range.
        let mapped = unsafe { map::map_fixed(self.shared.fd.as_fd(), offset, bytes, at, options) };
        mapped.map_err(|source| PmrError::Io {
            what: "map at a given address a part of",
            on: self.name().to_owned(),
            source,
        })
    }

    /// Makes all pages of the object present in this process, so that first touches do not fault later.
    ///
    /// # Errors
    /// What the system refused.
    pub fn prefault(&self) -> Result<()> {
        self.shared.mapping.prefault(self.entry.offset as usize, self.entry.bytes as usize, self.name())
    }

    /// Writes the object through to the region's file and waits for it. Without a file it does nothing.
    ///
    /// # Errors
    /// What the system refused.
    pub fn sync(&self) -> Result<()> {
        self.shared.mapping.sync(self.entry.offset as usize, self.entry.bytes as usize, self.name())
    }

    /// Address of a range of the object in this process.
    #[inline]
    pub(crate) fn address_of(&self, offset: u64, bytes: u64, align: u64) -> NonNull<u8> {
        assert!(
            offset.is_multiple_of(align) && offset <= self.entry.bytes && bytes <= self.entry.bytes - offset,
            "bytes {offset}+{bytes} (aligned to {align}) leave object {} of {}",
            self.entry.name,
            self.entry.bytes
        );
        self.shared.mapping.range((self.entry.offset + offset) as usize, bytes as usize)
    }

    /// Keeps the region mapped for something that points into this object.
    pub(crate) fn keep_mapped(&self) -> Arc<Shared> {
        Arc::clone(&self.shared)
    }
}

/// Bytes that others may change at any time: they are copied, never referred to.
///
/// A copy of bytes that are being written may mix old and new; what it says must be checked after copying.
#[derive(Debug, Clone, Copy)]
pub struct SharedBytes<'a> {
    start: NonNull<u8>,
    bytes: u64,
    _of: PhantomData<&'a Object>,
}

// SAFETY: a pointer into a mapping that outlives `'a`, used only by race-tolerant copies.
unsafe impl Send for SharedBytes<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedBytes<'_> {}

impl<'a> SharedBytes<'a> {
    /// How many bytes there are.
    pub fn len(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// A part of the bytes; nothing when it leaves them. Use it for ranges that came from another process.
    pub fn get(&self, offset: u64, bytes: u64) -> Option<SharedBytes<'a>> {
        if offset > self.bytes || bytes > self.bytes - offset {
            return None;
        }
        // SAFETY: the part was just checked to lie in the bytes.
        let start = unsafe { self.start.add(offset as usize) };
        Some(SharedBytes { start, bytes, _of: PhantomData })
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If the range leaves the bytes.
    #[inline]
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        // SAFETY: the range was checked; `out` is private memory, so it cannot overlap.
        unsafe { copy::from_shared(from, out.as_mut_ptr(), out.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If the range leaves the bytes.
    #[inline]
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range was checked; `bytes` is private memory, so it cannot overlap.
        unsafe { copy::to_shared(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Sets a range of the bytes to one value.
    ///
    /// # Panics
    /// If the range leaves the bytes.
    pub fn fill(&self, offset: u64, bytes: u64, value: u8) {
        let to = self.at(offset, bytes as usize);
        // SAFETY: the range was checked.
        unsafe { copy::fill_shared(to, bytes as usize, value) };
    }

    /// A private copy of all the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.bytes as usize];
        self.read(0, &mut out);
        out
    }

    /// Address of the first byte in this process, for system calls and foreign functions that tolerate
    /// concurrent change.
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    #[inline]
    fn at(&self, offset: u64, bytes: usize) -> *mut u8 {
        assert!(
            offset <= self.bytes && bytes as u64 <= self.bytes - offset,
            "bytes {offset}+{bytes} leave {} shared bytes",
            self.bytes
        );
        // SAFETY: the range was just checked to lie in the bytes.
        unsafe { self.start.add(offset as usize) }.as_ptr()
    }
}
