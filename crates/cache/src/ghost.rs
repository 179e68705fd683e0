//! Ghosts: pages that are gone and whose numbers are kept, in one or more queues.

use crate::list::{Links, NONE, Queue};
use crate::table::Table;

/// A store of page numbers, of a bounded size. The queues are the caller's; each entry carries the number of
/// the queue that it is in. 29 bytes for each entry that it was made for.
#[derive(Clone, Debug)]
pub(crate) struct Ghosts {
    table: Table,
    pages: Box<[u64]>,
    queue: Box<[u8]>,
    links: Links,
    /// A stack of unused entries, through `pages`.
    free: u32,
}

impl Ghosts {
    pub fn new(entries: u32) -> Self {
        let chain = (1..=u64::from(entries)).map(|next| if next == u64::from(entries) { NONE.into() } else { next });
        Self {
            table: Table::new(entries),
            pages: chain.collect(),
            queue: vec![0; entries as usize].into_boxed_slice(),
            links: Links::new(entries),
            free: if entries == 0 { NONE } else { 0 },
        }
    }

    /// Entry and queue of a page.
    #[inline]
    pub fn find(&self, page: u64) -> Option<(u32, u8)> {
        let entry = self.table.get(page, |entry| self.pages[entry as usize] == page)?;
        Some((entry, self.queue[entry as usize]))
    }

    /// Adds a page that is not in it, as the newest of a queue; the caller has seen to it that there is room.
    #[inline]
    pub fn push(&mut self, queue: &mut Queue, number: u8, page: u64) {
        let entry = self.free;
        assert!(entry != NONE, "the ghosts are full");
        self.free = self.pages[entry as usize] as u32;
        self.pages[entry as usize] = page;
        self.queue[entry as usize] = number;
        self.table.insert(page, entry);
        queue.push_newest(&mut self.links, entry);
    }

    /// Removes an entry from the queue that it is in.
    #[inline]
    pub fn remove(&mut self, queue: &mut Queue, entry: u32) {
        queue.remove(&mut self.links, entry);
        self.table.remove(self.pages[entry as usize], entry);
        self.pages[entry as usize] = u64::from(self.free);
        self.free = entry;
    }

    /// Forgets the oldest of a queue that has one.
    #[inline]
    pub fn drop_oldest(&mut self, queue: &mut Queue) {
        self.remove(queue, queue.oldest());
    }
}
