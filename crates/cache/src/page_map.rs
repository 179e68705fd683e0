//! A number for each of some pages: an open-addressing map that grows, and that answers the same on every machine.
//!
//! For sets that are small and change with every request, such as the pages on their way to the flash. It has no
//! order that anyone could come to rely on, and so no iterator.

use crate::table::tag;

/// A slot without a page.
const VACANT: u64 = u64::MAX;
/// Slots of the first table: a power of two, as all are.
const SLOTS_MIN: usize = 64;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    /// Pages with their numbers, at or behind the home of each; at most half of the slots are taken.
    slots: Vec<(u64, u32)>,
    len: usize,
}

impl PageMap {
    /// How many pages it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of a page.
    #[inline]
    #[must_use]
    pub fn get(&self, page: u64) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let (found, number) = self.slots[self.probe(page)];
        (found == page).then_some(number)
    }

    /// Sets the number of a page, and returns the one that it had.
    ///
    /// # Panics
    /// On the last page that 64 bits can name, which no device has.
    #[inline]
    pub fn insert(&mut self, page: u64, number: u32) -> Option<u32> {
        assert!(page != VACANT, "no device has a page {page}");
        if self.len * 2 >= self.slots.len() {
            self.grow();
        }
        let slot = self.probe(page);
        let (found, before) = std::mem::replace(&mut self.slots[slot], (page, number));
        if found == page {
            return Some(before);
        }
        self.len += 1;
        None
    }

    /// Takes a page out, and returns its number.
    #[inline]
    pub fn remove(&mut self, page: u64) -> Option<u32> {
        if self.len == 0 {
            return None;
        }
        let mut hole = self.probe(page);
        let (found, number) = self.slots[hole];
        if found != page {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut slot = hole;
        // Closes the gap: a page may move back to the hole unless its home lies behind the hole.
        loop {
            slot = (slot + 1) & mask;
            let (page, number) = self.slots[slot];
            if page == VACANT {
                break;
            }
            let from_home = slot.wrapping_sub(self.home(page)) & mask;
            if from_home >= slot.wrapping_sub(hole) & mask {
                self.slots[hole] = (page, number);
                hole = slot;
            }
        }
        self.slots[hole].0 = VACANT;
        self.len -= 1;
        Some(number)
    }

    #[inline]
    fn home(&self, page: u64) -> usize {
        tag(page) as usize & (self.slots.len() - 1)
    }

    /// The slot of a page, or the one where it may go.
    #[inline]
    fn probe(&self, page: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.home(page);
        loop {
            let (found, _) = self.slots[slot];
            if found == page || found == VACANT {
                return slot;
            }
            slot = (slot + 1) & mask;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        let before = std::mem::replace(&mut self.slots, vec![(VACANT, 0); slots]);
        for (page, number) in before.into_iter().filter(|(page, _)| *page != VACANT) {
            let slot = self.probe(page);
            self.slots[slot] = (page, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::SplitMix64;

    #[test]
    fn it_is_what_a_map_is() {
        for seed in 0..64 {
            let mut random = SplitMix64::new(seed);
            let (mut map, mut plain) = (PageMap::default(), BTreeMap::new());
            let (pages, stride) = (1 + random.below(400), 1 << random.below(40));
            for step in 0..20_000 {
                let page = random.below(pages) * stride;
                let context = format!("seed {seed}, step {step}, page {page}");
                assert_eq!(map.get(page), plain.get(&page).copied(), "{context}");
                if random.below(2) == 0 {
                    assert_eq!(map.insert(page, step), plain.insert(page, step), "{context}");
                } else {
                    assert_eq!(map.remove(page), plain.remove(&page), "{context}");
                }
                assert_eq!((map.len(), map.is_empty()), (plain.len(), plain.is_empty()), "{context}");
            }
        }
    }
}
