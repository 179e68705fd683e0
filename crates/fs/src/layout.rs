//! Where things lie on the device's blocks.
//!
//! | blocks | what |
//! | --- | --- |
//! | 0 | the superblock |
//! | 1 | how many bytes of the store's region are in use |
//! | 8 to `log_start` | the store's region: a `redb` database |
//! | `log_start` to `data_start` | the log |
//! | `data_start` to the end | data of files |
//!
//! The superblock is written last when a file system is made, and never again.

use std::io;

use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::log::RECORD_BLOCKS_MAX;

/// Fewest blocks that a file system can be made on: 16 MiB.
pub const BLOCKS_MIN: u64 = 4096;
/// Most blocks of a file system: 2^40, 4 PiB.
pub const BLOCKS_MAX: u64 = 1 << 40;
/// The store gets at least one block in so many.
const STORE_SHARE: u64 = 16;
/// redb's file begins with a page and 17 pages for data, and doubles those whenever they do not suffice. So the region
/// has a length that the file reaches: 17 pages doubled so many times at least.
const STORE_DOUBLED_MIN: u32 = 6;
const STORE_FIRST_BLOCKS: u64 = 17;
/// Blocks of the region beside those for data: the first page, and what more than one region of the file's adds.
const STORE_SPARE_BLOCKS: u64 = 16;
/// The log gets one block in so many, and this many at least and at most.
const LOG_SHARE: u64 = 64;
const LOG_BLOCKS_MIN: u64 = 256;
const LOG_BLOCKS_MAX: u64 = 4096;
const _: () = assert!(RECORD_BLOCKS_MAX <= LOG_BLOCKS_MIN);
/// The superblock's place.
const SUPERBLOCK: u64 = 0;
/// The place of the store's length.
pub const STORE_LENGTH: u64 = 1;
/// The store's first block.
pub const STORE_START: u64 = 8;

const MAGIC: [u8; 8] = *b"OSIERFS\0";
const VERSION: u32 = 2;
/// Magic, version, reserved, blocks, store's blocks, identity; the checksum follows.
const SUPERBLOCK_BYTES: usize = 8 + 4 + 4 + 8 + 8 + 16;

/// What the superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks of the whole file system.
    pub blocks: u64,
    /// Blocks of the store's region.
    pub store_blocks: u64,
    /// Drawn when it was made.
    pub identity: [u8; 16],
}

impl Geometry {
    /// The geometry of a new file system on so many blocks; nothing when there are too few or too many.
    #[must_use]
    pub fn new(blocks: u64, identity: [u8; 16]) -> Option<Geometry> {
        let mut store_blocks = STORE_FIRST_BLOCKS << STORE_DOUBLED_MIN;
        while store_blocks < blocks.min(BLOCKS_MAX) / STORE_SHARE {
            store_blocks *= 2;
        }
        store_blocks += STORE_SPARE_BLOCKS;
        (BLOCKS_MIN..=BLOCKS_MAX).contains(&blocks).then_some(Geometry { blocks, store_blocks, identity })
    }

    /// The log's first block.
    #[must_use]
    pub fn log_start(&self) -> u64 {
        STORE_START + self.store_blocks
    }

    /// Blocks of the log.
    #[must_use]
    pub fn log_blocks(&self) -> u64 {
        (self.blocks / LOG_SHARE).clamp(LOG_BLOCKS_MIN, LOG_BLOCKS_MAX)
    }

    /// The first block of data.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.log_start() + self.log_blocks()
    }

    /// Bytes of the store's region.
    #[must_use]
    pub fn store_bytes(&self) -> u64 {
        self.store_blocks * BLOCK_BYTES as u64
    }

    fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_BYTES);
        block.extend(MAGIC);
        block.extend(VERSION.to_le_bytes());
        block.extend([0; 4]);
        block.extend(self.blocks.to_le_bytes());
        block.extend(self.store_blocks.to_le_bytes());
        block.extend(self.identity);
        block.extend(crc32c::crc32c(&block).to_le_bytes());
        block.resize(BLOCK_BYTES, 0);
        block
    }

    /// Writes the superblock and makes it persistent.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn write(&self, blocks: &dyn Blocks) -> io::Result<()> {
        blocks.write(SUPERBLOCK, &self.encode())?;
        blocks.flush()
    }

    /// Makes sure that nobody takes what is there for a file system.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn erase(blocks: &dyn Blocks) -> io::Result<()> {
        blocks.write(SUPERBLOCK, &[0; BLOCK_BYTES])?;
        blocks.flush()
    }
}

/// What a device holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A file system of this version.
    FileSystem(Geometry),
    /// A file system, but none that can be mounted, and why.
    Unusable(String),
    /// Zeroes in block 0; whatever may be in the others.
    NoSuperblock,
    /// Something else.
    Foreign,
}

/// Looks at what the superblock's place holds.
///
/// # Errors
/// What the device says.
pub fn probe(blocks: &dyn Blocks) -> io::Result<Content> {
    let mut block = vec![0; BLOCK_BYTES];
    blocks.read(SUPERBLOCK, &mut block)?;
    if block.iter().all(|byte| *byte == 0) {
        return Ok(Content::NoSuperblock);
    }
    if block[..8] != MAGIC {
        return Ok(Content::Foreign);
    }
    let word = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&block[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    let sum = word(SUPERBLOCK_BYTES) as u32;
    if crc32c::crc32c(&block[..SUPERBLOCK_BYTES]) != sum {
        return Ok(Content::Unusable("its superblock is damaged".to_owned()));
    }
    let version = word(8) as u32;
    if version != VERSION {
        return Ok(Content::Unusable(format!("it is of version {version}, and this program knows {VERSION}")));
    }
    let mut identity = [0; 16];
    identity.copy_from_slice(&block[32..48]);
    let geometry = Geometry { blocks: word(16), store_blocks: word(24), identity };
    let fits = Geometry::new(geometry.blocks, identity) == Some(geometry);
    if !fits || geometry.blocks > blocks.blocks() {
        let (wanted, there) = (geometry.blocks, blocks.blocks());
        return Ok(Content::Unusable(format!("it has {wanted} blocks, and the device {there}")));
    }
    Ok(Content::FileSystem(geometry))
}

/// Whether every block is zeroes.
///
/// # Errors
/// What the device says.
pub fn is_blank(blocks: &dyn Blocks) -> io::Result<bool> {
    const STEP: u64 = 256;
    let mut bytes = vec![0; STEP as usize * BLOCK_BYTES];
    let count = blocks.blocks();
    for block in (0..count).step_by(STEP as usize) {
        let part = &mut bytes[..STEP.min(count - block) as usize * BLOCK_BYTES];
        blocks.read(block, part)?;
        // Words: a device may have a hundred million blocks.
        if part.chunks_exact(8).any(|word| word != [0; 8]) {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::MemoryBlocks;

    #[test]
    fn a_superblock_is_read_as_it_was_written_and_any_damage_is_found() {
        let geometry = Geometry::new(5000, [7; 16]).unwrap();
        let blocks = MemoryBlocks::new(5000);
        assert_eq!(probe(&blocks).unwrap(), Content::NoSuperblock);
        geometry.write(&blocks).unwrap();
        assert_eq!(probe(&blocks).unwrap(), Content::FileSystem(geometry));
        let good = geometry.encode();
        for bit in 0..(SUPERBLOCK_BYTES + 4) * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            blocks.write(0, &bad).unwrap();
            assert!(matches!(probe(&blocks).unwrap(), Content::Unusable(_) | Content::Foreign), "bit {bit}");
        }
        let smaller = MemoryBlocks::new(4999);
        geometry.write(&smaller).unwrap();
        assert!(matches!(probe(&smaller).unwrap(), Content::Unusable(_)));
    }

    #[test]
    fn one_byte_anywhere_makes_a_device_not_blank() {
        let blocks = MemoryBlocks::new(700);
        assert!(is_blank(&blocks).unwrap());
        let mut block = [0; BLOCK_BYTES];
        block[4095] = 1;
        blocks.write(699, &block).unwrap();
        assert!(!is_blank(&blocks).unwrap());
    }
}
