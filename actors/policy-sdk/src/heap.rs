//! An allocator for a policy: what is made stays.

use core::alloc::{GlobalAlloc, Layout};
use core::arch::wasm32::{memory_grow, memory_size};
use core::cell::UnsafeCell;
use core::ptr::{null_mut, with_exposed_provenance_mut};

const PAGE_BYTES: usize = 65_536;

/// Goes up through the memory behind what the linker laid out, and asks for more of it. Nothing is given back: a policy
/// makes its arrays once, and an allocator that can reuse would be most of a small module.
struct Heap(UnsafeCell<Room>);

struct Room {
    next: usize,
    end: usize,
}

// SAFETY: WebAssembly modules of this ABI have no threads, so nothing is ever shared between two.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(Room { next: 0, end: 0 }));

// SAFETY: each answer is a range of the memory that no other answer has: `next` only goes up, and what `memory_grow`
// gives lies behind everything that there was.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: there is one thread, and nothing in here allocates.
        let room = unsafe { &mut *self.0.get() };
        let Some(place) = room.next.checked_next_multiple_of(layout.align()) else { return null_mut() };
        let Some(end) = place.checked_add(layout.size()) else { return null_mut() };
        if end <= room.end {
            room.next = end;
            return with_exposed_provenance_mut(place);
        }
        // Begin anew behind the memory's present end, which is a multiple of every alignment there is.
        let pages = layout.size().div_ceil(PAGE_BYTES);
        let place = memory_size(0) * PAGE_BYTES;
        if memory_grow(0, pages) == usize::MAX {
            return null_mut();
        }
        *room = Room { next: place + layout.size(), end: place + pages * PAGE_BYTES };
        with_exposed_provenance_mut(place)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises. The bytes have never been used: they are zero.
        unsafe { self.alloc(layout) }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}
