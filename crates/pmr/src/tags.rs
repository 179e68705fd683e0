//! Page tags: who works on a page, where it should be, and an epoch that tells readers to try again.
//!
//! A tag is 16 bytes, four to a cache line. Word 0 is `flags << 56 | hint << 48 | actor << 32 | epoch`; word 1
//! is the user's. The epoch is odd while the page is being relocated. WIO (arXiv 2604.02442, section 4.2)
//! tags cache pages this way: a reader that sees the epoch advance retries after the relocation.
//!
//! Invariants:
//! 1. Only the party that made the epoch odd writes the page, word 1, or the epoch again.
//! 2. What a reader copied counts only if the epoch was even before and the same after.
//! 3. A writer killed half-way leaves the epoch odd: readers are refused, not misled, until recovery has
//!    made the page whole and called [`PageTags::repair`].

use crate::words::{LINE_WORDS, Lines, Word};
use std::sync::atomic::Ordering;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Bytes of a tag.
pub const TAG_BYTES: u64 = 16;
const TAG_WORDS: usize = (TAG_BYTES / 8) as usize;
const TAGS_PER_LINE: usize = LINE_WORDS / TAG_WORDS;

/// What a tag says about its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PageTag {
    /// The actor that works on the page; 0 is none.
    pub actor: u16,
    /// Where the placement policy wants the page; the region does not interpret it.
    pub hint: u8,
    /// Free for the tags' user.
    pub flags: u8,
    /// How often the page began or ended a relocation; odd while one is in progress.
    pub epoch: u32,
    /// Free for the tags' user, changed only by a relocation: for example the page's block address.
    pub note: u64,
}

impl PageTag {
    fn first_word(&self) -> u64 {
        u64::from(self.flags) << 56 | u64::from(self.hint) << 48 | u64::from(self.actor) << 32 | u64::from(self.epoch)
    }

    fn from_words(first: u64, note: u64) -> Self {
        Self {
            actor: (first >> 32) as u16,
            hint: (first >> 48) as u8,
            flags: (first >> 56) as u8,
            epoch: first as u32,
            note,
        }
    }

    /// Whether the page is being relocated.
    pub fn is_relocating(&self) -> bool {
        !self.epoch.is_multiple_of(2)
    }
}

/// The page was being relocated, for as long as the reader or writer was willing to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cannot use page {page}: it is being relocated (epoch {epoch}); try again, or repair it if its writer died")]
pub struct Relocating {
    /// The page.
    pub page: usize,
    /// Its epoch when last seen.
    pub epoch: u32,
}

/// A relocation in progress. Dropping it leaves the page refused to readers, as a killed writer does.
#[derive(Debug)]
#[must_use = "readers are refused until the relocation ends"]
pub struct Relocation {
    page: usize,
    before: PageTag,
}

impl Relocation {
    /// The tag as it was before.
    pub fn before(&self) -> PageTag {
        self.before
    }
}

/// The tags of a run of pages.
#[derive(Debug, Clone)]
pub struct PageTags<L> {
    lines: L,
}

/// Bytes that the tags of `pages` pages take in an object.
pub const fn tags_bytes(pages: usize) -> u64 {
    (pages.div_ceil(TAGS_PER_LINE) * 64) as u64
}

impl<L: Lines> PageTags<L> {
    /// Views lines as tags. Zeroed lines are tags of no actor at epoch 0.
    pub fn new(lines: L) -> Self {
        Self { lines }
    }

    /// How many pages have tags here.
    pub fn pages(&self) -> usize {
        self.lines.count() * TAGS_PER_LINE
    }

    /// Copies a page together with its tag, trying up to `tries` times until no relocation came between.
    /// `copy` must use accesses that tolerate concurrent change; its result from a disturbed try is dropped.
    ///
    /// # Errors
    /// `Relocating` when every try was disturbed.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn read_with<T>(
        &self,
        page: usize,
        tries: u32,
        mut copy: impl FnMut() -> T,
    ) -> Result<(PageTag, T), Relocating> {
        let [first, note] = self.words(page);
        let mut seen = first.load(Acquire);
        for _ in 0..tries {
            let tag = PageTag::from_words(seen, note.load(Relaxed));
            if !tag.is_relocating() {
                let copied = copy();
                // The copy's loads come before the load of the epoch: if one of them saw a relocation's
                // store, the epoch is seen odd or advanced.
                L::Word::fence(Ordering::Acquire);
                let again = first.load(Relaxed);
                if again == seen {
                    return Ok((tag, copied));
                }
            }
            std::hint::spin_loop();
            seen = first.load(Acquire);
        }
        Err(Relocating { page, epoch: seen as u32 })
    }

    /// The tag alone, as it is at this moment, possibly in relocation.
    pub fn peek(&self, page: usize) -> PageTag {
        let [first, note] = self.words(page);
        PageTag::from_words(first.load(Acquire), note.load(Relaxed))
    }

    /// Begins a relocation: from here to [`PageTags::end`] the caller alone writes the page.
    ///
    /// # Errors
    /// `Relocating` when another relocation is in progress.
    ///
    /// # Panics
    /// If there is no such page.
    pub fn begin(&self, page: usize) -> Result<Relocation, Relocating> {
        let [first, note] = self.words(page);
        let seen = first.load(Acquire);
        let before = PageTag::from_words(seen, note.load(Relaxed));
        let busy = |epoch| Relocating { page, epoch };
        if before.is_relocating() {
            return Err(busy(before.epoch));
        }
        let odd = PageTag { epoch: before.epoch.wrapping_add(1), ..before };
        first.compare_exchange(seen, odd.first_word()).map_err(|found| busy(found as u32))?;
        // The odd epoch comes before the page's stores.
        L::Word::fence(Ordering::Release);
        Ok(Relocation { page, before })
    }

    /// Ends a relocation: the page as it is now belongs to `actor`, with the given hint, flags and note. The
    /// epoch of `tag` is ignored; it advances by itself.
    pub fn end(&self, relocation: Relocation, tag: PageTag) -> PageTag {
        let [first, note] = self.words(relocation.page);
        note.store(tag.note, Relaxed);
        let tag = PageTag { epoch: relocation.before.epoch.wrapping_add(2), ..tag };
        first.store(tag.first_word(), Release);
        tag
    }

    /// Ends the relocation of a writer that died, after the caller made the page whole. Whether there was
    /// one.
    pub fn repair(&self, page: usize, tag: PageTag) -> bool {
        let [first, _] = self.words(page);
        let seen = PageTag::from_words(first.load(Acquire), 0);
        if !seen.is_relocating() {
            return false;
        }
        let before = PageTag { epoch: seen.epoch.wrapping_sub(1), ..seen };
        self.end(Relocation { page, before }, tag);
        true
    }

    /// The pages whose relocation is in progress: after a crash, those to repair.
    pub fn relocating(&self) -> Vec<usize> {
        (0..self.pages()).filter(|page| self.peek(*page).is_relocating()).collect()
    }

    fn words(&self, page: usize) -> &[L::Word; TAG_WORDS] {
        let line = self.lines.line(page / TAGS_PER_LINE);
        &line.as_chunks::<TAG_WORDS>().0[page % TAGS_PER_LINE]
    }
}

const _: () = assert!(TAG_BYTES * TAGS_PER_LINE as u64 == 64);

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    type HeapLines = Arc<[[AtomicU64; LINE_WORDS]]>;

    fn tags(pages: usize) -> PageTags<HeapLines> {
        let line = || std::array::from_fn(|_| AtomicU64::new(0));
        PageTags::new((0..tags_bytes(pages) / 64).map(|_| line()).collect())
    }

    #[test]
    fn a_relocation_refuses_readers_and_other_writers_until_it_ends() {
        let tags = tags(5);
        assert_eq!(tags.pages(), 8);
        let relocation = tags.begin(4).unwrap();
        assert_eq!(tags.begin(4).unwrap_err(), Relocating { page: 4, epoch: 1 });
        assert_eq!(tags.read_with(4, 3, || ()).unwrap_err(), Relocating { page: 4, epoch: 1 });
        assert_eq!(tags.relocating(), [4]);
        let wanted = PageTag { actor: 0xABCD, hint: 0x12, flags: 0x34, epoch: 99, note: u64::MAX };
        let ended = tags.end(relocation, wanted);
        assert_eq!(ended, PageTag { epoch: 2, ..wanted });
        assert_eq!(tags.read_with(4, 1, || 7).unwrap(), (ended, 7));
        for other in [0, 3, 5, 7] {
            assert_eq!(tags.peek(other), PageTag::default(), "page {other} was not touched");
        }
    }

    #[test]
    fn a_dead_writers_page_is_refused_until_repaired() {
        let tags = tags(4);
        drop(tags.begin(1).unwrap());
        assert!(tags.read_with(1, 2, || ()).is_err());
        assert!(tags.repair(1, PageTag { actor: 3, ..PageTag::default() }));
        assert!(!tags.repair(1, PageTag::default()), "nothing is left to repair");
        assert_eq!(tags.read_with(1, 1, || ()).unwrap().0, PageTag { actor: 3, epoch: 2, ..PageTag::default() });
    }

    #[test]
    fn a_reader_that_is_overtaken_tries_again() {
        let tags = tags(4);
        let mut calls = 0;
        let (tag, ()) = tags
            .read_with(0, 2, || {
                calls += 1;
                if calls == 1 {
                    let relocation = tags.begin(0).unwrap();
                    tags.end(relocation, PageTag { actor: 9, ..PageTag::default() });
                }
            })
            .unwrap();
        assert_eq!((tag.actor, tag.epoch, calls), (9, 2, 2));
    }

    #[test]
    fn the_epoch_wraps() {
        let tags = tags(1);
        let last = PageTag { epoch: u32::MAX - 1, ..PageTag::default() };
        tags.words(0)[0].store(last.first_word(), Relaxed);
        let relocation = tags.begin(0).unwrap();
        assert_eq!(tags.end(relocation, last).epoch, 0);
    }
}
