//! What has to be tried again: pages that the cache could not take, reads that the flash had no room for, trims.
//!
//! A page that waits for a frame of its set is tried when something in that set was freed, and no sooner: with many
//! sets, nearly all others would be asked in vain. Everything is tried in the order of its coming.

use std::collections::{BTreeMap, BTreeSet};

use super::Model;
use super::pages::Page;

/// What has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Blocked {
    /// A page that the cache could not take.
    Page(Page),
    /// A read of the flash that it had no room for: first page and how many.
    Read { job: u32, first: u64, pages: u32 },
    /// A trim of which a page is on its way somewhere.
    Trim(u32),
}

/// The place of what may wait for more than a set: it is tried each time.
const ANYWHERE: u32 = u32::MAX;

/// See the module. As many entries as commands under way have parts, and as many sets as the cache has.
#[derive(Debug, Default)]
pub(super) struct BlockedQueue {
    /// By place and number.
    entries: BTreeMap<(u32, u64), Blocked>,
    /// Numbers given, in the order of coming.
    numbers: u64,
    /// Sets where something was freed since what waits there was tried.
    freed: BTreeSet<u32>,
}

impl BlockedQueue {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The first from a number on, of those in `sets`, in sets where something was freed, and anywhere.
    fn next_from(&self, number: u64, sets: &BTreeSet<u32>) -> Option<((u32, u64), Blocked)> {
        let places = sets.iter().chain(&self.freed).chain(&[ANYWHERE]);
        let firsts = places.filter_map(|place| self.entries.range((*place, number)..=(*place, u64::MAX)).next());
        firsts.min_by_key(|((_, number), _)| *number).map(|(key, what)| (*key, *what))
    }
}

impl Model {
    pub(super) fn block(&mut self, what: Blocked) {
        let place = if let Blocked::Page(page) = what { self.place_of(page.page) } else { ANYWHERE };
        self.blocked.entries.insert((place, self.blocked.numbers), what);
        self.blocked.numbers += 1;
    }

    /// Where a page waits: in its set. All of one set wait in one line, and the write log is of all sets.
    fn place_of(&self, page: u64) -> u32 {
        let cache = self.cache.as_ref().filter(|cache| cache.shape().sets > 1 && cache.log().is_none());
        cache.map_or(ANYWHERE, |cache| cache.set_of(page))
    }

    /// In the set of a page a frame has become free, or can.
    #[inline]
    pub(super) fn freed(&mut self, page: u64) {
        if !self.blocked.is_empty() {
            let place = self.place_of(page);
            self.blocked.freed.insert(place);
        }
    }

    /// Tries again what is blocked, in the order of its coming. Where all frames are one set, what is first holds the
    /// others back.
    #[inline(never)]
    pub(super) fn retry_blocked(&mut self) {
        self.retry = false;
        let one_set = self.cache.as_ref().is_none_or(|cache| cache.shape().sets == 1);
        // What is freed meanwhile is for those that are still to come, and for the next time.
        let sets = std::mem::take(&mut self.blocked.freed);
        let mut next = 0;
        while let Some((key, what)) = self.blocked.next_from(next, &sets) {
            next = key.1 + 1;
            if self.try_again(what) {
                self.blocked.entries.remove(&key);
            } else if one_set {
                break;
            }
        }
        self.start_reads();
    }

    fn try_again(&mut self, what: Blocked) -> bool {
        match what {
            Blocked::Page(page) => self.ask_cache_again(page),
            Blocked::Read { job, first, pages } => self.read_part(job, first, pages),
            Blocked::Trim(job) => self.trim(job),
        }
    }
}
