//! Small writes of data, held until somebody syncs: one that is synced goes to the device together with the record that
//! shows it, and one that is written again before that never does.
//!
//! Invariants:
//! 1. A block that is held is read from here, whatever the device has.
//! 2. While a block is dirty the device may be getting older bytes of it, so newer ones are held, too, until they are
//!    given to the device later: nothing older ever lands on what is newer.
//! 3. There are at most [`DIRTY_MAX`] dirty blocks, and [`HELD_MAX`] in all.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::space::Run;

/// Most blocks of a write that is held.
const SMALL_BLOCKS: usize = 4;
/// Most blocks that the device does not have yet.
pub(crate) const DIRTY_MAX: usize = 32;
/// Most blocks in all: clean ones are kept because the next append changes the same block again.
const HELD_MAX: usize = 64;

/// A block that the device is to get, and which version of it this is.
#[derive(Debug, Clone)]
pub(crate) struct Dirty {
    pub block: u64,
    pub bytes: Arc<[u8]>,
    version: u64,
}

struct Entry {
    bytes: Arc<[u8]>,
    /// Rises with each write of any block.
    version: u64,
    is_dirty: bool,
}

#[derive(Default)]
struct Held {
    entries: BTreeMap<u64, Entry>,
    dirty: usize,
    versions: u64,
}

/// A device's blocks with small writes held.
pub(crate) struct Behind {
    blocks: Arc<dyn Blocks>,
    held: Mutex<Held>,
    /// How many are held, for those who need not lock.
    count: AtomicUsize,
    /// Writes that went to the device and have ended, and those that a flush has covered.
    written: AtomicU64,
    flushed: AtomicU64,
    /// Writes of both kinds, and those that are persistent: whoever syncs waits for those before, and for none later.
    stamp: AtomicU64,
    durable: AtomicU64,
}

/// A range as blocks.
fn each<'a>(ranges: &'a [(u64, &'a [u8])]) -> impl Iterator<Item = (u64, &'a [u8])> {
    ranges.iter().flat_map(|(block, bytes)| (*block..).zip(bytes.chunks(BLOCK_BYTES)))
}

impl Held {
    fn put(&mut self, block: u64, bytes: &[u8]) {
        self.versions += 1;
        let entry = Entry { bytes: bytes.into(), version: self.versions, is_dirty: true };
        let before = self.entries.insert(block, entry);
        if before.is_none_or(|before| !before.is_dirty) {
            self.dirty += 1;
        }
        if self.entries.len() > HELD_MAX {
            let clean = self.entries.iter().filter(|(_, entry)| !entry.is_dirty);
            let oldest = clean.min_by_key(|(_, entry)| entry.version).map(|(block, _)| *block);
            self.entries.remove(&oldest.expect("most of what is held is clean"));
        }
    }
}

impl Behind {
    pub fn new(blocks: Arc<dyn Blocks>) -> Behind {
        Behind {
            blocks,
            held: Mutex::default(),
            count: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            durable: AtomicU64::new(0),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, held: &Held) {
        self.count.store(held.entries.len(), Ordering::Release);
    }

    /// Fills `bytes`, a whole number of blocks.
    pub fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        if self.count.load(Ordering::Acquire) == 0 {
            return self.blocks.read(block, bytes);
        }
        let end = block + (bytes.len() / BLOCK_BYTES) as u64;
        // Looked at first: what is not held now, the device has.
        let found: Vec<(u64, Arc<[u8]>)> = {
            let held = self.held();
            held.entries.range(block..end).map(|(block, entry)| (*block, Arc::clone(&entry.bytes))).collect()
        };
        if found.len() * BLOCK_BYTES < bytes.len() {
            self.blocks.read(block, bytes)?;
        }
        for (number, held) in found {
            let from = (number - block) as usize * BLOCK_BYTES;
            bytes[from..from + BLOCK_BYTES].copy_from_slice(&held);
        }
        Ok(())
    }

    /// Writes several ranges of whole blocks, in any order.
    pub fn write_all(&self, ranges: &[(u64, &[u8])]) -> io::Result<()> {
        let blocks: usize = ranges.iter().map(|(_, bytes)| bytes.len() / BLOCK_BYTES).sum();
        {
            let mut held = self.held();
            if blocks <= SMALL_BLOCKS && held.dirty + blocks <= DIRTY_MAX {
                each(ranges).for_each(|(block, bytes)| held.put(block, bytes));
                self.count(&held);
                self.stamp.fetch_add(1, Ordering::AcqRel);
                return Ok(());
            }
            for (block, bytes) in each(ranges) {
                match held.entries.get(&block).map(|entry| entry.is_dirty) {
                    Some(true) => held.put(block, bytes),
                    Some(false) => drop(held.entries.remove(&block)),
                    None => {}
                }
            }
            self.count(&held);
        }
        let result = self.blocks.write_all(ranges);
        self.written.fetch_add(1, Ordering::AcqRel);
        self.stamp.fetch_add(1, Ordering::AcqRel);
        result
    }

    /// Which writes there were so far, for [`Behind::is_durable`] and [`Behind::set_durable`].
    pub fn stamp(&self) -> u64 {
        self.stamp.load(Ordering::Acquire)
    }

    /// Whether the writes up to a stamp are persistent.
    pub fn is_durable(&self, stamp: u64) -> bool {
        self.durable.load(Ordering::Acquire) >= stamp
    }

    /// The writes up to a stamp are persistent.
    pub fn set_durable(&self, stamp: u64) {
        self.durable.fetch_max(stamp, Ordering::AcqRel);
    }

    /// What the device does not have yet.
    pub fn dirty(&self) -> Vec<Dirty> {
        let held = self.held();
        let dirty = held.entries.iter().filter(|(_, entry)| entry.is_dirty);
        dirty
            .map(|(block, entry)| Dirty { block: *block, bytes: Arc::clone(&entry.bytes), version: entry.version })
            .collect()
    }

    /// The device has these, persistently; what was written again meanwhile stays dirty.
    pub fn clean(&self, written: &[Dirty]) {
        let mut held = self.held();
        for dirty in written {
            if let Some(entry) = held.entries.get_mut(&dirty.block)
                && entry.version == dirty.version
            {
                entry.is_dirty = false;
                held.dirty -= 1;
            }
        }
    }

    /// Nobody needs these blocks' bytes any more. Nobody is giving them to the device.
    pub fn forget(&self, run: Run) {
        let mut held = self.held();
        let gone: Vec<u64> = held.entries.range(run.block..run.block + run.blocks).map(|(block, _)| *block).collect();
        for block in gone {
            if held.entries.remove(&block).is_some_and(|entry| entry.is_dirty) {
                held.dirty -= 1;
            }
        }
        self.count(&held);
    }

    /// Makes persistent what has gone to the device.
    pub fn flush(&self) -> io::Result<()> {
        let written = self.written.load(Ordering::Acquire);
        if self.flushed.load(Ordering::Acquire) < written {
            self.blocks.flush()?;
            self.flushed.fetch_max(written, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Makes everything persistent that was written before. One at a time.
    pub fn sync(&self) -> io::Result<()> {
        let stamp = self.stamp();
        self.flush()?;
        let dirty = self.dirty();
        if !dirty.is_empty() {
            self.blocks.write_durably(&ranges_of(&dirty))?;
            self.clean(&dirty);
        }
        self.set_durable(stamp);
        Ok(())
    }
}

/// Blocks as ranges.
pub(crate) fn ranges_of(dirty: &[Dirty]) -> Vec<(u64, &[u8])> {
    dirty.iter().map(|dirty| (dirty.block, &dirty.bytes[..])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::MemoryBlocks;

    const BLOCKS: usize = 200;

    #[test]
    fn blocks_are_read_as_they_were_written_last_and_the_device_has_them_after_a_sync() {
        for first in 1..=20_u64 {
            let mut seed = first;
            let mut draw = |below: u64| {
                seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                (seed >> 33) % below
            };
            let device: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
            let behind = Behind::new(Arc::clone(&device));
            let mut model = vec![0_u8; BLOCKS];
            // What somebody is giving to the device, and which bytes.
            let mut under_way: Option<Vec<Dirty>> = None;
            for step in 0..600_u32 {
                let (block, blocks) = (draw(BLOCKS as u64 - 8), 1 + draw(8));
                match draw(10) {
                    0..5 => {
                        let fill = 1 + (step % 255) as u8;
                        behind.write_all(&[(block, &vec![fill; blocks as usize * BLOCK_BYTES])]).unwrap();
                        model[block as usize..(block + blocks) as usize].fill(fill);
                    }
                    5 if under_way.is_none() => under_way = Some(behind.dirty()),
                    6 => {
                        // It lands late, after newer writes.
                        if let Some(dirty) = under_way.take() {
                            device.write_durably(&ranges_of(&dirty)).unwrap();
                            behind.clean(&dirty);
                        }
                    }
                    7 if under_way.is_none() => {
                        behind.sync().unwrap();
                        assert!(behind.is_durable(behind.stamp()) && behind.dirty().is_empty());
                    }
                    _ => {}
                }
                let mut bytes = vec![0xAA; blocks as usize * BLOCK_BYTES];
                behind.read(block, &mut bytes).unwrap();
                let expected: Vec<u8> = model[block as usize..(block + blocks) as usize]
                    .iter()
                    .flat_map(|fill| [*fill; BLOCK_BYTES])
                    .collect();
                assert!(bytes == expected, "seed {first}, step {step}");
                let held = behind.held();
                let dirty = held.entries.values().filter(|entry| entry.is_dirty).count();
                assert_eq!((dirty, held.entries.len() <= HELD_MAX), (held.dirty, true));
                assert!(dirty <= DIRTY_MAX);
            }
            if let Some(dirty) = under_way {
                device.write_durably(&ranges_of(&dirty)).unwrap();
                behind.clean(&dirty);
            }
            behind.sync().unwrap();
            let mut all = vec![0; BLOCKS * BLOCK_BYTES];
            device.read(0, &mut all).unwrap();
            assert!(all.chunks(BLOCK_BYTES).zip(&model).all(|(block, fill)| block.iter().all(|byte| byte == fill)));
        }
    }

    #[test]
    fn what_is_forgotten_is_not_given_to_the_device() {
        let device: Arc<dyn Blocks> = Arc::new(MemoryBlocks::new(BLOCKS));
        let behind = Behind::new(Arc::clone(&device));
        behind.write_all(&[(5, &[7; 2 * BLOCK_BYTES])]).unwrap();
        behind.forget(Run { block: 4, blocks: 2 });
        behind.sync().unwrap();
        let mut bytes = vec![1; 2 * BLOCK_BYTES];
        device.read(5, &mut bytes).unwrap();
        assert!(bytes[..BLOCK_BYTES] == [0; BLOCK_BYTES] && bytes[BLOCK_BYTES..] == [7; BLOCK_BYTES]);
    }
}
