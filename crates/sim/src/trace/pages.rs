//! Numbers for pages by first use: the footprint of a trace, and a dense numbering of it.

/// Most pages that are told apart: 1 TiB of 4 KiB each, in 8 GiB of memory at most.
pub const PAGES_MAX: u64 = 1 << 28;
/// Where no page is.
const NONE: u64 = u64::MAX;
/// Slots to begin with; a power of two.
const SLOTS_MIN: usize = 1 << 10;

/// Gives each page the next number when it is first asked for. An open-addressing table, because the order in which it
/// is gone through must not depend on a seed of the process; it is never more than half full.
#[derive(Clone, Debug)]
pub struct PageNumbers {
    /// Page and number.
    slots: Vec<(u64, u64)>,
    len: u64,
}

impl Default for PageNumbers {
    fn default() -> Self {
        PageNumbers { slots: vec![(0, NONE); SLOTS_MIN], len: 0 }
    }
}

impl PageNumbers {
    /// A page's number, and whether it is a new one. Nothing once there are [`PAGES_MAX`].
    pub fn number(&mut self, page: u64) -> Option<(u64, bool)> {
        let slot = self.slot(page);
        if self.slots[slot].1 != NONE {
            return Some((self.slots[slot].1, false));
        }
        if self.len == PAGES_MAX {
            return None;
        }
        let number = self.len;
        self.slots[slot] = (page, number);
        self.len += 1;
        if self.len * 2 > self.slots.len() as u64 {
            self.grow();
        }
        Some((number, true))
    }

    /// How many pages there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The slot of a page, or the free one where it belongs.
    fn slot(&self, page: u64) -> usize {
        let mask = self.slots.len() - 1;
        // The finalizer of MurmurHash3: strided pages do not fall on each other.
        let mut hash = page ^ (page >> 33);
        hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash ^= hash >> 33;
        let mut slot = hash as usize & mask;
        while self.slots[slot].1 != NONE && self.slots[slot].0 != page {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let old = std::mem::take(&mut self.slots);
        self.slots = vec![(0, NONE); old.len() * 2];
        for (page, number) in old.into_iter().filter(|(_, number)| *number != NONE) {
            let slot = self.slot(page);
            self.slots[slot] = (page, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Rng;

    #[test]
    fn pages_are_numbered_by_first_use_as_a_map_would() {
        for (seed, bound) in [(1, 100), (2, 5000), (3, u64::MAX)] {
            let mut rng = Rng::new(seed);
            let mut numbers = PageNumbers::default();
            let mut model = BTreeMap::new();
            for _ in 0..20_000 {
                let page = rng.below(bound).wrapping_mul(if rng.one_in(2) { 1 } else { 4096 });
                let new = model.len() as u64;
                let known = model.contains_key(&page);
                let expected = *model.entry(page).or_insert(new);
                assert_eq!(numbers.number(page), Some((expected, !known)), "seed {seed}");
            }
            assert_eq!(numbers.len(), model.len() as u64);
        }
    }
}
