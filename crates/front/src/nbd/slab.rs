//! A table whose entries keep their place until they are taken.

/// Entries by index; the index of one that was taken is given out again.
pub struct Slab<T> {
    entries: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub fn new() -> Slab<T> {
        Slab { entries: Vec::new(), free: Vec::new() }
    }

    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub fn insert(&mut self, entry: T) -> u32 {
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return index;
        }
        self.entries.push(Some(entry));
        self.entries.len() as u32 - 1
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.entries.get_mut(index as usize)?.as_mut()
    }

    /// The lowest index in use.
    pub fn first(&self) -> Option<u32> {
        self.entries.iter().position(Option::is_some).map(|index| index as u32)
    }

    pub fn take(&mut self, index: u32) -> Option<T> {
        let entry = self.entries.get_mut(index as usize)?.take()?;
        self.free.push(index);
        Some(entry)
    }
}
