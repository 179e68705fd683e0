//! A table of things by number, whose numbers are used again.

/// No number.
pub(super) const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<T>,
    vacant: Vec<u32>,
    max: u32,
}

impl<T> Slab<T> {
    /// An empty table for at most `max` things.
    pub(super) fn new(max: u32) -> Slab<T> {
        assert!(max < NONE, "numbers have 32 bits, and one means none");
        Slab { entries: Vec::new(), vacant: Vec::new(), max }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.vacant.is_empty() && self.entries.len() as u64 >= u64::from(self.max)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.vacant.len()
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.entries[number as usize] = entry;
            return number;
        }
        assert!((self.entries.len() as u64) < u64::from(self.max), "a bounded table of the model is full");
        self.entries.push(entry);
        (self.entries.len() - 1) as u32
    }

    /// Gives the number back; the entry stays readable until it is used again.
    #[inline]
    pub(super) fn remove(&mut self, number: u32) {
        self.vacant.push(number);
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    #[inline]
    fn index(&self, number: u32) -> &T {
        &self.entries[number as usize]
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, number: u32) -> &mut T {
        &mut self.entries[number as usize]
    }
}
