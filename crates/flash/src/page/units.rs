//! A table of unit numbers in which an entry that says nothing takes no memory of the machine.
//!
//! Entries are kept as complements: [`NONE`] is zero, and a table of zeroes comes from the operating system without a
//! page of it being touched. Filling gigabytes of a large device that is hardly used would take seconds.

use prefetch_index::prefetch_index;

use super::ftl::NONE;

/// See the module. All entries are [`NONE`] at first.
#[derive(Debug, Clone)]
pub(crate) struct UnitTable {
    complements: Vec<u32>,
}

const _: () = assert!(!NONE == 0, "an entry without a number is zero");

impl UnitTable {
    pub(crate) fn new(entries: usize) -> UnitTable {
        assert!(entries <= NONE as usize, "numbers have 32 bits, and one means none");
        UnitTable { complements: vec![0; entries] }
    }

    pub(crate) fn len(&self) -> u32 {
        self.complements.len() as u32
    }

    #[inline]
    pub(crate) fn get(&self, index: u32) -> u32 {
        !self.complements[index as usize]
    }

    /// Has the processor bring an entry near, if there is one: a hint that changes nothing.
    #[inline]
    pub(crate) fn prefetch(&self, index: usize) {
        prefetch_index(&self.complements, index);
    }

    #[inline]
    pub(crate) fn set(&mut self, index: u32, number: u32) {
        self.complements[index as usize] = !number;
    }

    /// Whether there is such an entry, and it has this number.
    #[inline]
    pub(crate) fn has(&self, index: u32, number: u32) -> bool {
        self.complements.get(index as usize) == Some(&!number)
    }

    /// The entries from `first` on, at most `count`.
    #[inline]
    pub(crate) fn range(&self, first: u32, count: u32) -> impl DoubleEndedIterator<Item = u32> + ExactSizeIterator {
        let end = self.complements.len().min(first as usize + count as usize);
        self.complements[first as usize..end].iter().map(|complement| !complement)
    }

    /// Bytes of memory, touched or not.
    pub(crate) fn bytes(&self) -> u64 {
        (self.complements.capacity() * size_of::<u32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_none_until_they_are_set() {
        let mut table = UnitTable::new(4);
        assert_eq!(table.range(0, 9).collect::<Vec<_>>(), [NONE; 4]);
        table.set(2, 0);
        table.set(3, NONE - 1);
        assert_eq!((table.get(1), table.get(2), table.get(3)), (NONE, 0, NONE - 1));
        assert_eq!(table.range(1, 2).rev().collect::<Vec<_>>(), [0, NONE]);
        assert!(table.has(2, 0) && table.has(1, NONE) && !table.has(2, NONE) && !table.has(4, NONE));
        table.set(2, NONE);
        assert_eq!(table.get(2), NONE);
        table.prefetch(usize::MAX);
    }
}
