//! From page to a 32-bit number: an open-addressing table that answers the same on every machine.
//!
//! A slot is eight bytes: the upper half of the page's hash as a *tag*, and the number. The pages themselves
//! stay with the caller, who is asked whether a number is the one: a wrong tag costs no look at the page. A page
//! has its home at `tag * slots / 2^32`, so a slot's home follows from the slot alone and a removal can close the
//! gap behind it: there are no tombstones, and what a lookup costs does not depend on the table's age.
//!
//! There are two slots for each number that the table was made for: 16 bytes of memory for each.

use crate::config::FRAMES_MAX;

/// A slot without a number.
const EMPTY: u64 = u64::MAX;
/// 2^64 divided by the golden ratio, odd: neighbouring pages are spread evenly (Knuth, vol. 3, section 6.4).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(FRAMES_MAX < 1 << 31, "the number of slots has 32 bits");

/// The upper half of a page's hash.
#[inline]
pub(crate) fn tag(page: u64) -> u32 {
    // The fold lets high bits of the page reach the upper half whatever the lower bits are.
    ((page ^ (page >> 32)).wrapping_mul(MULTIPLIER) >> 32) as u32
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    slots: Box<[u64]>,
    len: u32,
}

impl Table {
    /// A table for at most `entries` numbers, each below `u32::MAX`.
    pub fn new(entries: u32) -> Self {
        assert!(entries <= FRAMES_MAX, "{entries} entries are more than a table may have");
        Self { slots: vec![EMPTY; (entries as usize + 1) * 2].into_boxed_slice(), len: 0 }
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        // The lengths of tables are below 2^32, so nothing overflows.
        ((u64::from(tag) * u64::from(self.slots.len() as u32)) >> 32) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// The number of `page`, or the slot where it may go; `is` says whether a number stands for that page.
    #[inline]
    pub fn probe(&self, page: u64, is: impl Fn(u32) -> bool) -> Result<u32, usize> {
        let tag = tag(page);
        let mut slot = self.home(tag);
        loop {
            let entry = self.slots[slot];
            if entry == EMPTY {
                return Err(slot);
            }
            if (entry >> 32) as u32 == tag && is(entry as u32) {
                return Ok(entry as u32);
            }
            slot = self.after(slot);
        }
    }

    /// The number of `page`.
    #[inline]
    pub fn get(&self, page: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        self.probe(page, is).ok()
    }

    /// Adds a page that is not in the table.
    #[inline]
    pub fn insert(&mut self, page: u64, number: u32) {
        let slot = self.probe(page, |_| false);
        let slot = slot.expect_err("no number was taken for the page");
        self.insert_at(slot, page, number);
    }

    /// Adds a page at the slot that [`Table::probe`] gave for it, if the table was not changed since. There is room for
    /// one more than the table was made for, so that one may go in before another goes out.
    #[inline]
    pub fn insert_at(&mut self, slot: usize, page: u64, number: u32) {
        assert!((self.len as usize) < self.slots.len() / 2, "the table was made for fewer pages");
        self.slots[slot] = (u64::from(tag(page)) << 32) | u64::from(number);
        self.len += 1;
    }

    /// Removes a page that is in the table with this number.
    #[inline]
    pub fn remove(&mut self, page: u64, number: u32) {
        let entry = u64::from(tag(page)) << 32 | u64::from(number);
        let mut hole = self.home(tag(page));
        while self.slots[hole] != entry {
            assert!(self.slots[hole] != EMPTY, "page {page} is not in the table");
            hole = self.after(hole);
        }
        let mut slot = hole;
        loop {
            slot = self.after(slot);
            let entry = self.slots[slot];
            if entry == EMPTY {
                break;
            }
            // An entry may move back to the hole unless its home lies behind the hole.
            let home = self.home((entry >> 32) as u32);
            if self.distance(home, slot) >= self.distance(hole, slot) {
                self.slots[hole] = entry;
                hole = slot;
            }
        }
        self.slots[hole] = EMPTY;
        self.len -= 1;
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.slots.fill(EMPTY);
        self.len = 0;
    }

    /// Steps from `from` forward to `to`.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::SplitMix64;

    /// The table beside a plain map, with the pages that the numbers stand for.
    fn random_run(seed: u64, entries: u32, page: impl Fn(&mut SplitMix64) -> u64) {
        let mut random = SplitMix64::new(seed);
        let (mut table, mut model) = (Table::new(entries), BTreeMap::new());
        let mut pages = vec![0; entries as usize];
        let mut free: Vec<u32> = (0..entries).collect();
        for step in 0..20_000 {
            let page = page(&mut random);
            let found = table.get(page, |number| pages[number as usize] == page);
            assert_eq!(found, model.get(&page).copied(), "seed {seed}, step {step}, page {page}");
            if let Some(number) = found {
                table.remove(page, number);
                model.remove(&page);
                free.push(number);
            } else if let Some(number) = free.pop() {
                pages[number as usize] = page;
                table.insert(page, number);
                model.insert(page, number);
            }
            assert_eq!(table.len() as usize, model.len());
        }
        for (page, number) in model {
            assert_eq!(table.get(page, |number| pages[number as usize] == page), Some(number));
        }
    }

    #[test]
    fn it_is_what_a_map_is() {
        for seed in 0..8 {
            random_run(seed, 1, |random| random.below(3));
            random_run(seed, 7, |random| random.below(14));
            random_run(seed, 64, |random| random.below(128) << 40);
            random_run(seed, 1000, SplitMix64::next);
        }
    }

    #[test]
    fn the_last_slot_goes_on_at_the_first() {
        let mut table = Table::new(4);
        let last: Vec<u64> = (0..).filter(|page| table.home(tag(*page)) == 9).take(4).collect();
        for (number, page) in last.iter().enumerate() {
            table.insert(*page, number as u32);
        }
        table.remove(last[0], 0);
        for (number, page) in last.iter().enumerate().skip(1) {
            assert_eq!(table.get(*page, |found| last[found as usize] == *page), Some(number as u32));
        }
    }

    #[test]
    #[should_panic(expected = "made for fewer pages")]
    fn more_than_it_was_made_for_is_refused() {
        let mut table = Table::new(1);
        table.insert(1, 0);
        table.insert(2, 1);
        table.insert(3, 2);
    }
}
