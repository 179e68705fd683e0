//! A map that is cached page by page, as DFTL does (Gupta, Kim and Urgaonkar, ASPLOS 2009).
//!
//! The map's pages are units of the log behind the logical ones, so that collection moves them like data.
//! What is modelled is their traffic: a page that is not cached is read before a request goes on; the least
//! recently used page makes room, and is written first if it was changed. Pages whose entries collection
//! changed while they were not cached are *outdated*; the host's writes bring them up to date one by one.

use std::collections::BTreeSet;

use super::PageMedia;
use super::config::ENTRIES_PER_MAP_PAGE;
use super::ftl::{NONE, PageFtl};
use super::place::Writer;
use crate::Nanos;

/// The cached pages, in the order of their last use.
#[derive(Debug, Clone)]
pub(crate) struct MapCache {
    /// Slot by page of the map, or [`NONE`].
    slots: Vec<u32>,
    pages: Vec<u32>,
    dirty: Vec<bool>,
    /// Slots as a ring: the one after the anchor was used last.
    newer: Vec<u32>,
    older: Vec<u32>,
    used: u32,
    /// Pages that collection outdated.
    outdated: BTreeSet<u32>,
    /// Changed pages that were dropped and are to be written.
    unwritten: Vec<u32>,
}

impl MapCache {
    pub(crate) fn new(pages: u32, capacity: u32) -> MapCache {
        // The last slot is the anchor of the ring.
        let anchor = capacity;
        MapCache {
            slots: vec![NONE; pages as usize],
            pages: vec![NONE; capacity as usize + 1],
            dirty: vec![false; capacity as usize + 1],
            newer: vec![anchor; capacity as usize + 1],
            older: vec![anchor; capacity as usize + 1],
            used: 0,
            outdated: BTreeSet::new(),
            unwritten: Vec::new(),
        }
    }

    fn anchor(&self) -> u32 {
        self.pages.len() as u32 - 1
    }

    fn unlink(&mut self, slot: u32) {
        let (newer, older) = (self.newer[slot as usize], self.older[slot as usize]);
        self.older[newer as usize] = older;
        self.newer[older as usize] = newer;
    }

    fn link(&mut self, slot: u32) {
        let anchor = self.anchor();
        let first = self.older[anchor as usize];
        self.older[anchor as usize] = slot;
        self.newer[slot as usize] = anchor;
        self.older[slot as usize] = first;
        self.newer[first as usize] = slot;
    }

    /// Uses a page; whether it was cached. If not, the least recently used one made room.
    fn touch(&mut self, page: u32) -> bool {
        let slot = self.slots[page as usize];
        if slot != NONE {
            self.unlink(slot);
            self.link(slot);
            return true;
        }
        let slot = if self.used < self.anchor() {
            self.used += 1;
            self.used - 1
        } else {
            let slot = self.newer[self.anchor() as usize];
            self.unlink(slot);
            let dropped = self.pages[slot as usize];
            self.slots[dropped as usize] = NONE;
            if self.dirty[slot as usize] {
                self.unwritten.push(dropped);
            }
            slot
        };
        self.pages[slot as usize] = page;
        self.slots[page as usize] = slot;
        // Loading an outdated page brings it up to date, in memory.
        self.dirty[slot as usize] = self.outdated.remove(&page);
        self.link(slot);
        false
    }
}

fn page_of(lpn: u32) -> u32 {
    lpn / ENTRIES_PER_MAP_PAGE as u32
}

impl<M: PageMedia> PageFtl<M> {
    /// The logical unit that stands for a page of the map.
    fn lpn_of_page(&self, page: u32) -> u32 {
        self.config.ftl.logical_units as u32 + page
    }

    /// Caches the pages of the map for `count` units; returns when the last one is there.
    pub(crate) fn load_map_pages(&mut self, lpn: u32, count: u32) -> Nanos {
        let mut ready = self.now;
        for page in page_of(lpn)..=page_of(lpn + count.max(1) - 1) {
            ready = ready.max(self.load_map_page(page));
        }
        ready
    }

    fn load_map_page(&mut self, page: u32) -> Nanos {
        let Some(cache) = &mut self.map_cache else { return self.now };
        if cache.touch(page) {
            self.counters.map_hits += 1;
            return self.now;
        }
        self.counters.map_misses += 1;
        let unit = self.map.get(self.lpn_of_page(page));
        if unit == NONE {
            return self.now;
        }
        let place = self.place(unit);
        if !self.is_programmed(place.superblock, place.row, place.stripe) {
            return self.now;
        }
        self.counters.map_units_read += 1;
        let errors = self.draw_errors(&place, 1);
        self.read_array(&place, 1, &errors).0.due
    }

    /// Writes changed pages of the map that were dropped, and one that is outdated; whether the stream still
    /// has room for a unit of the host.
    pub(crate) fn make_map_room(&mut self, stream: usize) -> bool {
        loop {
            let Some(cache) = &mut self.map_cache else { return true };
            let Some(page) = cache.unwritten.pop() else { break };
            // It may have been cached again meanwhile: then it is changed there.
            match cache.slots[page as usize] {
                NONE => self.write_map_page(stream, page),
                slot => cache.dirty[slot as usize] = true,
            }
            if !self.has_room(stream) {
                return false;
            }
        }
        let outdated = self.map_cache.as_mut().and_then(|cache| cache.outdated.pop_first());
        if let Some(page) = outdated {
            // Its other entries are read first.
            let unit = self.map.get(self.lpn_of_page(page));
            if unit != NONE {
                let place = self.place(unit);
                self.counters.map_units_read += 1;
                let errors = self.draw_errors(&place, 1);
                self.read_array(&place, 1, &errors);
            }
            self.write_map_page(stream, page);
        }
        self.has_room(stream)
    }

    fn write_map_page(&mut self, stream: usize, page: u32) {
        self.counters.map_units_written += 1;
        self.append(stream, self.lpn_of_page(page), Writer::Host { payload: u64::from(page) });
    }

    /// A trim changed entries.
    pub(crate) fn change_map_pages(&mut self, lpn: u32, count: u32) {
        if self.map_cache.is_some() && count > 0 {
            for page in page_of(lpn)..=page_of(lpn + count - 1) {
                self.change_map_page(page * ENTRIES_PER_MAP_PAGE as u32);
            }
        }
    }

    /// The host's write changed an entry: its page is loaded, behind the write, and is changed.
    pub(crate) fn change_map_page(&mut self, lpn: u32) {
        let page = page_of(lpn);
        self.load_map_page(page);
        if let Some(cache) = &mut self.map_cache {
            let slot = cache.slots[page as usize];
            cache.dirty[slot as usize] = true;
        }
    }

    /// Collection moved a unit.
    pub(crate) fn outdate_map_page(&mut self, lpn: u32) {
        if u64::from(lpn) >= self.config.ftl.logical_units {
            // The directory of the map's own pages is in memory.
            return;
        }
        let page = page_of(lpn);
        if let Some(cache) = &mut self.map_cache {
            match cache.slots[page as usize] {
                NONE => {
                    cache.outdated.insert(page);
                }
                slot => cache.dirty[slot as usize] = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn the_least_recently_used_page_makes_room() {
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut cache = MapCache::new(20, 5);
            let mut model: Vec<u32> = Vec::new();
            for _ in 0..500 {
                let page = rng.below(20) as u32;
                let known = model.iter().position(|&other| other == page);
                assert_eq!(cache.touch(page), known.is_some(), "seed {seed}");
                if let Some(index) = known {
                    model.remove(index);
                } else if model.len() == 5 {
                    model.remove(0);
                }
                model.push(page);
            }
        }
    }
}
