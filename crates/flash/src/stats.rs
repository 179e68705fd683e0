//! Figures about what the FTL did.

use crate::Ftl;
use crate::ftl::SuperblockState;

/// Counts that only rise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub host_bytes: u64,
    pub relocated_bytes: u64,
    pub relocated_extents: u64,
    pub header_bytes: u64,
    pub pad_bytes: u64,
    pub tail_bytes: u64,
    pub trims: u64,
    pub pages_programmed: u64,
    pub pages_read: u64,
    pub blocks_erased: u64,
    pub superblocks_erased: u64,
    pub victims: u64,
    pub syncs: u64,
    pub stalls: u64,
    pub damaged_relocated: u64,
}

/// A snapshot of an FTL's figures. Counts are since the FTL was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct FtlStats {
    /// Stored bytes that were appended.
    pub host_bytes: u64,
    /// Stored bytes that collection copied.
    pub relocated_bytes: u64,
    /// Extents that collection copied, trim records included.
    pub relocated_extents: u64,
    /// Extents whose payload did not fit its checksum, or could not be read, when it was copied.
    pub damaged_relocated: u64,
    /// Bytes of headers.
    pub header_bytes: u64,
    /// Bytes of padding: to the alignment, and to whole pages.
    pub pad_bytes: u64,
    /// Bytes at the end of superblocks that were never programmed.
    pub tail_bytes: u64,
    /// Trim records that were appended.
    pub trims: u64,
    /// Pages programmed.
    pub pages_programmed: u64,
    /// Pages read; a page that two reads touch counts twice.
    pub pages_read: u64,
    /// Blocks erased (a superblock has one on each plane).
    pub blocks_erased: u64,
    /// Superblocks erased.
    pub superblocks_erased: u64,
    /// Superblocks that collection began to empty.
    pub victims: u64,
    /// Syncs given to the media.
    pub syncs: u64,
    /// Appends and trims that were told to wait.
    pub stalls: u64,
    /// Bytes programmed, pages times their size.
    pub programmed_bytes: u64,
    /// Bytes of live extents, headers included.
    pub live_bytes: u64,
    /// Live extents, trim records included.
    pub live_extents: u64,
    /// Logical blocks that hold data.
    pub mapped_blocks: u64,
    /// Bytes of live extents that can be promised.
    pub usable_bytes: u64,
    /// Superblocks that are erased and ready.
    pub superblocks_free: u32,
    /// Superblocks out of use since an erase failed.
    pub superblocks_retired: u32,
    /// Superblocks that recovery found torn or damaged, and that are not yet collected.
    pub superblocks_suspect: u32,
    /// Fewest erases of a superblock.
    pub erase_count_min: u32,
    /// Most erases of a superblock.
    pub erase_count_max: u32,
}

impl FtlStats {
    /// Write amplification in thousandths: bytes programmed for each byte stored by the host. 0 before
    /// the first.
    #[must_use]
    pub fn waf_permille(&self) -> u64 {
        let programmed = u128::from(self.programmed_bytes) * 1000;
        u64::try_from(programmed.checked_div(u128::from(self.host_bytes)).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

impl Ftl {
    /// The figures as they are now.
    #[must_use]
    pub fn stats(&self) -> FtlStats {
        let counters = self.counters;
        let in_use = self.superblocks.iter().filter(|s| s.state != SuperblockState::Retired);
        let erase_counts = in_use.map(|superblock| superblock.erase_count);
        FtlStats {
            host_bytes: counters.host_bytes,
            relocated_bytes: counters.relocated_bytes,
            relocated_extents: counters.relocated_extents,
            damaged_relocated: counters.damaged_relocated,
            header_bytes: counters.header_bytes,
            pad_bytes: counters.pad_bytes,
            tail_bytes: counters.tail_bytes,
            trims: counters.trims,
            pages_programmed: counters.pages_programmed,
            pages_read: counters.pages_read,
            blocks_erased: counters.blocks_erased,
            superblocks_erased: counters.superblocks_erased,
            victims: counters.victims,
            syncs: counters.syncs,
            stalls: counters.stalls,
            programmed_bytes: counters.pages_programmed * u64::from(self.geometry.page_bytes),
            live_bytes: self.directory.live_bytes,
            live_extents: self.directory.live_extents,
            mapped_blocks: self.directory.mapped_blocks,
            usable_bytes: self.usable_bytes(),
            superblocks_free: self.superblocks_free,
            superblocks_retired: self.superblocks_retired,
            superblocks_suspect: self.suspects,
            erase_count_min: erase_counts.clone().min().unwrap_or(0),
            erase_count_max: erase_counts.max().unwrap_or(0),
        }
    }

    /// Nanoseconds of work given to each die so far, by die number; over a span of time, utilisation.
    pub fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.nand.die_busy_ns()
    }

    /// Nanoseconds of work given to each channel so far, by channel number.
    pub fn channel_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.nand.channel_busy_ns()
    }
}
