//! From page to a 32-bit number: a hash table with chains that answers the same on every machine.
//!
//! The pages themselves stay with the caller, who is asked whether a number is the one. A number is in one chain at
//! most, so the chains need no nodes: each number has a place for the one behind it. A page that goes in is the first
//! of its chain; one that goes out is unlinked, where open addressing would look at all that follows to close the gap.
//!
//! There are two buckets for each number that the table was made for: with the chains 12 bytes of memory for each.

use prefetch_index::prefetch_index;

use crate::config::FRAMES_MAX;
use crate::list::NONE;

/// 2^64 divided by the golden ratio, odd: neighbouring pages are spread evenly (Knuth, vol. 3, section 6.4).
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

const _: () = assert!(FRAMES_MAX < 1 << 31, "the number of buckets has 32 bits");

/// The upper half of a page's hash.
#[inline]
pub(crate) fn tag(page: u64) -> u32 {
    // The fold lets high bits of the page reach the upper half whatever the lower bits are.
    ((page ^ (page >> 32)).wrapping_mul(MULTIPLIER) >> 32) as u32
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// The first number of each chain, or [`NONE`].
    buckets: Box<[u32]>,
    /// The number behind each in its chain, or [`NONE`].
    next: Box<[u32]>,
    len: u32,
}

impl Table {
    /// A table for the numbers below `entries`.
    pub fn new(entries: u32) -> Self {
        assert!(entries <= FRAMES_MAX, "{entries} entries are more than a table may have");
        let entries = entries as usize;
        Self { buckets: vec![NONE; (entries * 2).max(1)].into(), next: vec![NONE; entries].into(), len: 0 }
    }

    /// How many numbers are in it.
    pub fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    fn bucket(&self, page: u64) -> usize {
        // The lengths of tables are below 2^32, so nothing overflows.
        ((u64::from(tag(page)) * u64::from(self.buckets.len() as u32)) >> 32) as usize
    }

    /// Has the processor bring the beginning of a page's chain near: a hint that changes nothing.
    #[inline]
    pub fn prefetch(&self, page: u64) {
        prefetch_index(&self.buckets, self.bucket(page));
    }

    /// The number of `page`; `is` says whether a number stands for that page.
    #[inline]
    pub fn get(&self, page: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        let mut number = self.buckets[self.bucket(page)];
        while number != NONE && !is(number) {
            number = self.next[number as usize];
        }
        (number != NONE).then_some(number)
    }

    /// Adds a page that is not in the table, with a number that is not.
    #[inline]
    pub fn insert(&mut self, page: u64, number: u32) {
        assert!((number as usize) < self.next.len(), "the table was made for fewer pages");
        let bucket = self.bucket(page);
        self.next[number as usize] = std::mem::replace(&mut self.buckets[bucket], number);
        self.len += 1;
    }

    /// Removes a page that is in the table with this number.
    #[inline]
    pub fn remove(&mut self, page: u64, number: u32) {
        let bucket = self.bucket(page);
        let next = self.next[number as usize];
        let mut before = self.buckets[bucket];
        if before == number {
            self.buckets[bucket] = next;
        } else {
            while before != NONE && self.next[before as usize] != number {
                before = self.next[before as usize];
            }
            assert!(before != NONE, "page {page} is not in the table");
            self.next[before as usize] = next;
        }
        self.len -= 1;
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.buckets.fill(NONE);
        self.len = 0;
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
    fn what_is_in_one_chain_goes_out_in_any_order() {
        let table = Table::new(4);
        let alike: Vec<u64> = (0..).filter(|page| table.bucket(*page) == 5).take(4).collect();
        for first in 0..4_u32 {
            for step in [1, 3] {
                let mut table = table.clone();
                for (number, page) in alike.iter().enumerate() {
                    table.insert(*page, number as u32);
                }
                let mut left = vec![0, 1, 2, 3];
                for number in (0..4).map(|index| (first + index * step) % 4) {
                    table.remove(alike[number as usize], number);
                    left.retain(|kept| *kept != number);
                    for (other, page) in (0..).zip(&alike) {
                        let found = table.get(*page, |found| alike[found as usize] == *page);
                        assert_eq!(found.is_some(), left.contains(&other), "{other} after {number}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_table_is_empty_after_it_was_cleared() {
        let mut table = Table::new(3);
        (0..3).for_each(|number| table.insert(u64::from(number), number));
        table.clear();
        table.prefetch(1);
        assert_eq!((table.len(), table.get(1, |_| true)), (0, None));
        table.insert(1, 0);
        assert_eq!(table.get(1, |number| number == 0), Some(0));
    }

    #[test]
    #[should_panic(expected = "made for fewer pages")]
    fn more_than_it_was_made_for_is_refused() {
        let mut table = Table::new(1);
        table.insert(1, 0);
        table.insert(2, 1);
    }

    #[test]
    #[should_panic(expected = "page 2 is not in the table")]
    fn what_is_not_in_it_cannot_be_removed() {
        let mut table = Table::new(2);
        table.insert(1, 0);
        table.remove(2, 1);
    }
}
