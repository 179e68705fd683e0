//! What the file system stands on: whole blocks of 4096 bytes that are persistent after a flush.

use std::io;
use std::sync::{Mutex, PoisonError};

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;

/// A device's blocks, from any thread.
///
/// A write is visible to every later read when it returns, and persistent after a [`Blocks::flush`] that began later.
/// Until then a crash may keep it or lose it, whatever becomes of other writes; but never a part of a block.
pub trait Blocks: Send + Sync {
    /// How many there are. Does not change.
    fn blocks(&self) -> u64;
    /// Fills `bytes`, a whole number of blocks.
    ///
    /// # Errors
    /// What the device says.
    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes `bytes`, a whole number of blocks.
    ///
    /// # Errors
    /// What the device says.
    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()>;
    /// Writes several ranges, in any order.
    ///
    /// # Errors
    /// What the device says; some may be written then.
    fn write_all(&self, ranges: &[(u64, &[u8])]) -> io::Result<()> {
        ranges.iter().try_for_each(|(block, bytes)| self.write(*block, bytes))
    }
    /// Writes several ranges, in any order, and makes them persistent; what was written before need not become so.
    ///
    /// # Errors
    /// What the device says; some may be persistent then.
    fn write_durably(&self, ranges: &[(u64, &[u8])]) -> io::Result<()> {
        self.write_all(ranges)?;
        self.flush()
    }
    /// Makes blocks read as zeroes.
    ///
    /// # Errors
    /// What the device says.
    fn zero(&self, block: u64, blocks: u64) -> io::Result<()>;
    /// Says that nobody needs the blocks' bytes any more.
    ///
    /// # Errors
    /// What the device says.
    fn deallocate(&self, block: u64, blocks: u64) -> io::Result<()>;
    /// Makes everything persistent whose write has returned.
    ///
    /// # Errors
    /// What the device says; nothing is sure then.
    fn flush(&self) -> io::Result<()>;
}

/// Blocks in memory.
#[derive(Debug)]
pub struct MemoryBlocks(Mutex<Vec<u8>>);

impl MemoryBlocks {
    /// So many blocks of zeroes.
    #[must_use]
    pub fn new(blocks: usize) -> MemoryBlocks {
        MemoryBlocks(Mutex::new(vec![0; blocks * BLOCK_BYTES]))
    }

    /// Blocks that hold these bytes.
    ///
    /// # Panics
    /// When they are no whole number of blocks.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> MemoryBlocks {
        assert!(bytes.len().is_multiple_of(BLOCK_BYTES), "whole blocks");
        MemoryBlocks(Mutex::new(bytes))
    }

    fn with<T>(&self, block: u64, bytes: usize, work: impl FnOnce(&mut [u8]) -> T) -> io::Result<T> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(block).ok().and_then(|block| block.checked_mul(BLOCK_BYTES));
        let range = from.and_then(|from| all.get_mut(from..from.checked_add(bytes)?));
        range.map(work).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no such block"))
    }
}

impl Blocks for MemoryBlocks {
    fn blocks(&self) -> u64 {
        (self.0.lock().unwrap_or_else(PoisonError::into_inner).len() / BLOCK_BYTES) as u64
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.with(block, bytes.len(), |from| bytes.copy_from_slice(from))
    }

    fn write(&self, block: u64, bytes: &[u8]) -> io::Result<()> {
        self.with(block, bytes.len(), |to| to.copy_from_slice(bytes))
    }

    fn zero(&self, block: u64, blocks: u64) -> io::Result<()> {
        self.with(block, blocks as usize * BLOCK_BYTES, |to| to.fill(0))
    }

    fn deallocate(&self, block: u64, blocks: u64) -> io::Result<()> {
        // Bytes that nobody must see: whoever reads them is found out.
        self.with(block, blocks as usize * BLOCK_BYTES, |to| to.fill(0xDB))
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
