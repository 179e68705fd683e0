//! A table of things by number, whose numbers are used again.

/// No number.
pub(super) const NONE: u32 = u32::MAX;

/// See the module.
#[derive(Debug)]
pub(super) struct Slab<T> {
    entries: Vec<T>,
    /// Numbers that are not in use, up to `free`; as long as `entries`, so that giving one back needs no room.
    vacant: Vec<u32>,
    free: usize,
    max: u32,
}

impl<T: Copy> Slab<T> {
    /// An empty table for at most `max` things.
    pub(super) fn new(max: u32) -> Slab<T> {
        assert!(max < NONE, "numbers have 32 bits, and one means none");
        Slab { entries: Vec::new(), vacant: Vec::new(), free: 0, max }
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.free == 0 && self.entries.len() as u64 >= u64::from(self.max)
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.entries.len() - self.free
    }

    #[inline]
    pub(super) fn insert(&mut self, entry: T) -> u32 {
        if self.free == 0 {
            self.grow(entry);
        }
        self.free -= 1;
        let number = self.vacant[self.free];
        self.entries[number as usize] = entry;
        number
    }

    /// Makes room for one more thing, with `entry` in it for now.
    #[cold]
    fn grow(&mut self, entry: T) {
        assert!(!self.is_full(), "a bounded table of the model is full");
        self.vacant.push(NONE);
        self.vacant[0] = self.entries.len() as u32;
        self.entries.push(entry);
        self.free = 1;
    }

    /// Gives the number back; the entry stays readable until it is used again.
    #[inline]
    pub(super) fn remove(&mut self, number: u32) {
        self.vacant[self.free] = number;
        self.free += 1;
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
