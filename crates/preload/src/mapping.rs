//! The calls that map memory, where they touch the heap or what a path is mapped by.

use std::sync::atomic::Ordering;

use osier_client::hits;
use osier_client::placement::Placement;

use crate::callers::{self, Call};
use crate::own::{self, MAP_FAILED};
use crate::space::{PAGE, SPACE, begin_use, make_zero};
use crate::{HIGH, LOW, RUN, dax, guest, is_in_heap, serves};

const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// What else may be asked for: nothing that the window does otherwise.
const HARMLESS: i32 = libc::MAP_NORESERVE | libc::MAP_POPULATE;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn fail(code: i32) -> usize {
    own::set_errno(code);
    MAP_FAILED
}

/// The part of some bytes that lies in the heap.
pub fn in_heap(at: usize, bytes: usize) -> Option<(usize, usize)> {
    let (low, high) = (LOW.load(Ordering::Relaxed), HIGH.load(Ordering::Relaxed));
    let (start, end) = (at.max(low), at.saturating_add(bytes).min(high));
    (start < end).then(|| (start, end - start))
}

pub fn mmap(at: usize, bytes: usize, protection: i32, flags: i32, fd: i32, offset: i64, call: Call) -> usize {
    if let Some(mapped) = guest::mmap(at, bytes, protection, flags, fd, offset) {
        return mapped;
    }
    if let Some(mapped) = dax::mmap(at, bytes, protection, flags, fd, offset) {
        return mapped;
    }
    if !serves() {
        return own::mmap(at, bytes, protection, flags, fd, offset);
    }
    if flags & (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) != 0 && in_heap(at, bytes).is_some() {
        return map_over(at, bytes, protection, flags);
    }
    let is_plain = flags & !(PRIVATE | HARMLESS) == 0 && flags & PRIVATE == PRIVATE;
    // A place that the program would like is one of the kernel's.
    let can = at == 0 && is_plain && protection == READ_WRITE && bytes > 0;
    let threshold = RUN.get().map_or(u64::MAX, |run| run.settings.threshold_bytes);
    let goes_to_window = can
        && match callers::decide(bytes, call) {
            Some(placement) => placement == Placement::Window,
            None => bytes as u64 >= threshold,
        };
    if !goes_to_window {
        return own::mmap(at, bytes, protection, flags, fd, offset);
    }
    let new = map_new(bytes);
    if new != MAP_FAILED {
        callers::count(bytes, call);
    }
    new
}

/// New pages of the heap, zero.
fn map_new(bytes: usize) -> usize {
    let pages = bytes.div_ceil(PAGE) as u64;
    let Some((at, range)) = SPACE.with(|space| space.map(pages).map(|range| (space.address(range.start), range)))
    else {
        return fail(libc::ENOMEM);
    };
    if !begin_use(&range) {
        make_zero(at, pages as usize * PAGE);
    }
    at
}

/// A mapping in the place of what the program has in the heap. It becomes zero; there is no other memory to be had
/// there.
fn map_over(at: usize, bytes: usize, protection: i32, flags: i32) -> usize {
    let bytes = bytes.next_multiple_of(PAGE);
    let is_whole = is_in_heap(at) && is_in_heap(at + bytes - 1) && at.is_multiple_of(PAGE);
    if flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE {
        return fail(libc::EEXIST);
    }
    if !is_whole || flags & PRIVATE != PRIVATE || !SPACE.with(|space| space.is_mapped(space.pages(at, bytes))) {
        return fail(libc::ENOMEM);
    }
    own::mprotect(at, bytes, READ_WRITE);
    make_zero(at, bytes);
    if protection != READ_WRITE {
        SPACE.with(|space| space.note_protection());
        own::mprotect(at, bytes, protection);
    }
    at
}

/// What a call gives that gives 0 or fails.
fn code(result: Result<i32, dax::Errno>) -> i32 {
    result.unwrap_or_else(|code| {
        own::set_errno(code);
        -1
    })
}

pub fn munmap(at: usize, bytes: usize) -> i32 {
    if dax::touches(at, bytes) {
        return code(dax::munmap(at, bytes, munmap));
    }
    let Some((start, length)) = in_heap(at, bytes) else { return own::munmap(at, bytes) };
    if own::is_own_thread() {
        return own::munmap(at, bytes);
    }
    if guest::is_one() {
        return guest::munmap(at, bytes);
    }
    if !at.is_multiple_of(PAGE) {
        own::set_errno(libc::EINVAL);
        return -1;
    }
    SPACE.with(|space| space.unmap(space.pages(start, length)));
    let end = start + length;
    let before = if at < start { own::munmap(at, start - at) } else { 0 };
    let after = if at + bytes > end { own::munmap(end, at + bytes - end) } else { 0 };
    before.min(after)
}

pub fn mremap(at: usize, bytes: usize, new_bytes: usize, flags: i32, new_at: usize) -> usize {
    if dax::touches(at, bytes) || (flags & libc::MREMAP_FIXED != 0 && dax::touches(new_at, new_bytes)) {
        return dax::mremap(at, bytes, new_bytes, flags).unwrap_or_else(fail);
    }
    let goes_to_heap = flags & libc::MREMAP_FIXED != 0 && in_heap(new_at, new_bytes).is_some();
    if !is_in_heap(at) && !goes_to_heap {
        return own::mremap(at, bytes, new_bytes, flags, new_at);
    }
    if guest::is_one() {
        return fail(libc::EINVAL);
    }
    let (bytes, new_bytes) = (bytes.next_multiple_of(PAGE), new_bytes.next_multiple_of(PAGE));
    let is_known = flags & !(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) == 0;
    if goes_to_heap || !is_known || bytes == 0 || new_bytes == 0 {
        return fail(libc::EINVAL);
    }
    if !SPACE.with(|space| space.is_mapped(space.pages(at, bytes))) {
        return fail(libc::EFAULT);
    }
    if flags & libc::MREMAP_FIXED != 0 {
        let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let new = own::mmap(new_at, new_bytes, READ_WRITE, fixed, -1, 0);
        return if new == MAP_FAILED { MAP_FAILED } else { move_to(new, at, bytes, new_bytes) };
    }
    if new_bytes <= bytes {
        SPACE.with(|space| space.unmap(space.pages(at + new_bytes, bytes - new_bytes)));
        return at;
    }
    let more = SPACE.with(|space| {
        let range = space.pages(at + bytes, new_bytes - bytes);
        space.map_at(range.clone()).then_some(range)
    });
    if let Some(range) = more {
        if !begin_use(&range) {
            make_zero(at + bytes, new_bytes - bytes);
        }
        return at;
    }
    if flags & libc::MREMAP_MAYMOVE == 0 {
        return fail(libc::ENOMEM);
    }
    let new = map_new(new_bytes);
    if new == MAP_FAILED { MAP_FAILED } else { move_to(new, at, bytes, new_bytes) }
}

fn move_to(new: usize, at: usize, bytes: usize, new_bytes: usize) -> usize {
    // SAFETY: both are mapped, the program's own, and do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(at as *const u8, new as *mut u8, bytes.min(new_bytes)) };
    SPACE.with(|space| space.unmap(space.pages(at, bytes)));
    new
}

pub fn madvise(at: usize, bytes: usize, advice: i32) -> i32 {
    if dax::touches(at, bytes) {
        return code(dax::madvise(at, bytes, advice));
    }
    if in_heap(at, bytes).is_none() || own::is_own_thread() {
        return own::madvise(at, bytes, advice);
    }
    if guest::is_one() {
        return guest::madvise(at, bytes, advice);
    }
    let is_whole = at.is_multiple_of(PAGE) && is_in_heap(at) && is_in_heap(at + bytes.next_multiple_of(PAGE) - 1);
    match advice {
        _ if !is_whole => {}
        // Private anonymous memory is zero after that.
        libc::MADV_DONTNEED => {
            make_zero(at, bytes.next_multiple_of(PAGE));
            return 0;
        }
        libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE => return own::madvise(at, bytes, advice),
        libc::MADV_WILLNEED => {
            if let Some(run) = RUN.get().filter(|run| crate::is_owner(run)) {
                // A hint that is not followed is none that failed.
                let _ = run.window.prefetch(SPACE.with(|space| space.pages(at, bytes)));
            }
            return 0;
        }
        libc::MADV_NORMAL
        | libc::MADV_RANDOM
        | libc::MADV_SEQUENTIAL
        | libc::MADV_FREE
        | libc::MADV_COLD
        | libc::MADV_PAGEOUT
        | libc::MADV_HUGEPAGE
        | libc::MADV_NOHUGEPAGE
        | libc::MADV_MERGEABLE
        | libc::MADV_UNMERGEABLE
        | libc::MADV_DONTDUMP
        | libc::MADV_DODUMP => return 0,
        _ => {}
    }
    own::set_errno(libc::EINVAL);
    -1
}

/// Answers `msync`, where it is of what a path is mapped by.
pub fn msync(at: usize, bytes: usize, flags: i32) -> Option<i32> {
    dax::touches(at, bytes).then(|| code(dax::msync(at, bytes, flags).map(|()| 0)))
}

pub fn mprotect(at: usize, bytes: usize, protection: i32) -> i32 {
    let (is_heap, is_path) = (in_heap(at, bytes).is_some(), dax::touches(at, bytes));
    if protection & libc::PROT_READ == 0 && (is_heap || is_path) && hits::is_on() {
        // A sample's look at a line there would end the program.
        hits::forbid_looks();
    }
    if is_path {
        return code(dax::mprotect(at, bytes, protection).map(|()| 0));
    }
    if is_heap && !own::is_own_thread() && !guest::is_one() {
        SPACE.with(|space| space.note_protection());
    }
    own::mprotect(at, bytes, protection)
}
