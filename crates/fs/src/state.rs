//! What an operation sees and changes, in memory, under one lock.

use std::collections::HashMap;

use rustix::io::Errno;

use crate::record::{COUNTERS, Counters, Inode, key};
use crate::space::{Run, Space};
use crate::store::Store;

/// Bytes of metadata that an operation may add beside names and values.
const ROOM_BYTES: u64 = 4096;

pub(crate) struct State {
    pub store: Store,
    pub space: Space,
    pub next_inode: u64,
    pub inodes: u64,
    /// Changes so far.
    pub sequence: u64,
    /// Changes that are committed.
    pub committed: u64,
    /// The last change of a file that more depends on than its times.
    pub essential: HashMap<u64, u64>,
    /// Most bytes of metadata.
    pub live_bytes_max: u64,
    counts: (u64, u64),
}

impl State {
    pub fn new(store: Store, space: Space, counters: Counters, live_bytes_max: u64) -> State {
        let Counters { next_inode, inodes, .. } = counters;
        State {
            store,
            space,
            next_inode,
            inodes,
            sequence: 0,
            committed: 0,
            essential: HashMap::new(),
            live_bytes_max,
            counts: (next_inode, inodes),
        }
    }

    /// From here on changes can be taken back.
    pub fn begin(&mut self) {
        self.store.begin();
        self.space.begin();
        self.counts = (self.next_inode, self.inodes);
    }

    /// Takes back what has changed since [`State::begin`].
    pub fn roll_back(&mut self) {
        self.store.roll_back();
        self.space.roll_back();
        (self.next_inode, self.inodes) = self.counts;
    }

    /// What has changed up to some moment is persistent, and what was freed by then can be given out.
    pub fn is_durable(&mut self, sequence: u64, freed: &[Run]) {
        self.space.free_now(freed);
        self.committed = sequence;
        self.essential.retain(|_, change| *change > sequence);
    }

    /// Puts what the store has to know beside what operations put: counters and bitmaps.
    pub fn put_totals(&mut self) {
        for (chunk, bytes) in self.space.take_dirty() {
            self.store.put_uncounted(key(b'B', chunk), bytes);
        }
        let live_bytes = self.store.live_bytes();
        let counters = Counters { next_inode: self.next_inode, inodes: self.inodes, live_bytes };
        self.store.put_uncounted(COUNTERS.to_vec(), counters.encode());
    }

    pub fn inode(&self, number: u64) -> Result<Inode, Errno> {
        let value = self.store.get(&key(b'I', number))?.ok_or(Errno::NOENT)?;
        Inode::decode(&value)
    }

    /// A directory that has a name.
    pub fn directory(&self, number: u64) -> Result<Inode, Errno> {
        let inode = self.inode(number)?;
        match () {
            () if !inode.is_directory() => Err(Errno::NOTDIR),
            () if inode.nlink == 0 => Err(Errno::NOENT),
            () => Ok(inode),
        }
    }

    /// A regular file.
    pub fn file(&self, number: u64) -> Result<Inode, Errno> {
        let inode = self.inode(number)?;
        match () {
            () if inode.is_regular() => Ok(inode),
            () if inode.is_directory() => Err(Errno::ISDIR),
            () => Err(Errno::INVAL),
        }
    }

    pub fn put_inode(&mut self, number: u64, inode: &Inode) -> Result<(), Errno> {
        self.store.put(key(b'I', number), inode.encode())
    }

    /// Refuses what adds metadata when there is too much of it.
    pub fn need_room(&self, bytes: usize) -> Result<(), Errno> {
        let wanted = self.store.live_bytes() + bytes as u64 + ROOM_BYTES;
        if wanted > self.live_bytes_max { Err(Errno::NOSPC) } else { Ok(()) }
    }

    /// An fdatasync of the file has to wait for what has changed now.
    pub fn is_essential(&mut self, number: u64) {
        self.essential.insert(number, self.sequence + 1);
    }
}
