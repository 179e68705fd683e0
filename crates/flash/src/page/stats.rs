//! Figures about what the FTL did.

use serde::Serialize;

use super::PageMedia;
use super::ftl::PageFtl;
use super::space::SuperblockState;

/// Counts that only rise.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counters {
    pub units_written: u64,
    pub units_read: u64,
    pub units_read_from_memory: u64,
    pub units_trimmed: u64,
    pub units_moved: u64,
    pub units_padded: u64,
    pub map_units_written: u64,
    pub map_units_read: u64,
    pub map_hits: u64,
    pub map_misses: u64,
    pub pages_read: u64,
    pub pages_read_to_move: u64,
    pub slots_programmed: u64,
    pub map_slots_programmed: u64,
    pub trim_slots_programmed: u64,
    pub blocks_erased: u64,
    pub superblocks_erased: u64,
    pub victims: u64,
    pub victims_for_wear: u64,
    pub checkpoints: u64,
    pub read_retries: u64,
    pub reads_uncorrectable: u64,
    pub program_failures: u64,
    pub erase_failures: u64,
    pub blocks_gone_bad: u64,
    pub blocks_bad_from_factory: u64,
    pub erases_max: u32,
}

/// A snapshot of the figures. Counts are since the device was made or recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct PageFtlStats {
    /// Units that the host wrote.
    pub units_written: u64,
    /// Units that the host read.
    pub units_read: u64,
    /// Of these, units that were still in memory.
    pub units_read_from_memory: u64,
    /// Units that the host trimmed, mapped or not.
    pub units_trimmed: u64,
    /// Units that collection moved.
    pub units_moved: u64,
    /// Units that stayed empty because their slot had to be programmed.
    pub units_padded: u64,
    /// Pages of a cached map that were written to the log.
    pub map_units_written: u64,
    /// Pages of a cached map that were read from the log.
    pub map_units_read: u64,
    /// Accesses to the map whose page was cached.
    pub map_hits: u64,
    /// Accesses to the map whose page was not.
    pub map_misses: u64,
    /// Pages read for the host.
    pub pages_read: u64,
    /// Pages read by collection.
    pub pages_read_to_move: u64,
    /// Pages programmed in the log.
    pub pages_programmed: u64,
    /// Pages programmed for checkpoints.
    pub pages_programmed_for_map: u64,
    /// Pages programmed to record trims.
    pub pages_programmed_for_trims: u64,
    /// Blocks erased.
    pub blocks_erased: u64,
    /// Superblocks that collection erased.
    pub superblocks_erased: u64,
    /// Superblocks that collection began to empty.
    pub victims: u64,
    /// Of these, those that were taken for their wear.
    pub victims_for_wear: u64,
    /// Checkpoints that are whole.
    pub checkpoints: u64,
    /// Steps of read retry.
    pub read_retries: u64,
    /// Host reads that failed.
    pub reads_uncorrectable: u64,
    /// Programs that failed and were done again.
    pub program_failures: u64,
    /// Erases that failed.
    pub erase_failures: u64,
    /// Blocks that went bad.
    pub blocks_gone_bad: u64,
    /// Blocks that were bad from the start.
    pub blocks_bad_from_factory: u64,
    /// Spare blocks that are left.
    pub spare_blocks: u64,
    /// Logical units that are mapped.
    pub units_valid: u64,
    /// Superblocks that are free.
    pub superblocks_free: u32,
    /// Superblocks out of use.
    pub superblocks_retired: u32,
    /// Fewest erases of a superblock of the log.
    pub erases_min: u32,
    /// Most erases of a superblock of the log.
    pub erases_max: u32,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Bytes programmed, whatever for.
    pub bytes_programmed: u64,
    /// Bytes that the host wrote.
    pub bytes_written: u64,
}

impl PageFtlStats {
    /// Write amplification in millionths: bytes programmed for each byte that the host wrote; 0 before the
    /// first.
    #[must_use]
    pub fn waf_ppm(&self) -> u64 {
        let programmed = u128::from(self.bytes_programmed) * 1_000_000;
        u64::try_from(programmed.checked_div(u128::from(self.bytes_written)).unwrap_or(0)).unwrap_or(u64::MAX)
    }
}

impl<M: PageMedia> PageFtl<M> {
    /// The figures as they are now.
    #[must_use]
    pub fn stats(&self) -> PageFtlStats {
        let c = &self.counters;
        let log = &self.superblocks[2 * self.sizes.area_superblocks as usize..];
        let in_use = log.iter().filter(|superblock| superblock.state != SuperblockState::Retired);
        let erases = in_use.map(|superblock| superblock.erases);
        let pages = u64::from(self.sizes.slot_planes);
        let slots = c.slots_programmed + c.map_slots_programmed + c.trim_slots_programmed;
        PageFtlStats {
            units_written: c.units_written,
            units_read: c.units_read,
            units_read_from_memory: c.units_read_from_memory,
            units_trimmed: c.units_trimmed,
            units_moved: c.units_moved,
            units_padded: c.units_padded,
            map_units_written: c.map_units_written,
            map_units_read: c.map_units_read,
            map_hits: c.map_hits,
            map_misses: c.map_misses,
            pages_read: c.pages_read,
            pages_read_to_move: c.pages_read_to_move,
            pages_programmed: c.slots_programmed * pages,
            pages_programmed_for_map: c.map_slots_programmed * pages,
            pages_programmed_for_trims: c.trim_slots_programmed * pages,
            blocks_erased: c.blocks_erased,
            superblocks_erased: c.superblocks_erased,
            victims: c.victims,
            victims_for_wear: c.victims_for_wear,
            checkpoints: c.checkpoints,
            read_retries: c.read_retries,
            reads_uncorrectable: c.reads_uncorrectable,
            program_failures: c.program_failures,
            erase_failures: c.erase_failures,
            blocks_gone_bad: c.blocks_gone_bad,
            blocks_bad_from_factory: c.blocks_bad_from_factory,
            spare_blocks: self.spares.iter().map(|&count| u64::from(count)).sum(),
            units_valid: self.superblocks.iter().map(|superblock| u64::from(superblock.valid)).sum(),
            superblocks_free: self.free_count(),
            superblocks_retired: self.retired,
            erases_min: erases.clone().min().unwrap_or(0),
            erases_max: erases.max().unwrap_or(0),
            is_read_only: self.read_only,
            bytes_programmed: slots * u64::from(self.sizes.slot_units) * u64::from(crate::BLOCK_BYTES),
            bytes_written: c.units_written * u64::from(crate::BLOCK_BYTES),
        }
    }

    /// Erases of each superblock, which are those of each of its blocks.
    pub fn superblock_erases(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.superblocks.iter().map(|superblock| superblock.erases)
    }

    /// Valid units of each superblock of the log that can be a victim.
    pub fn valid_units_of_closed(&self) -> impl Iterator<Item = u32> + '_ {
        let closed = |superblock: &&super::space::Superblock| superblock.state == SuperblockState::Closed;
        self.superblocks.iter().filter(closed).map(|superblock| superblock.valid)
    }

    /// Units of one superblock.
    #[must_use]
    pub fn superblock_units(&self) -> u32 {
        self.sizes.superblock_units
    }

    /// Superblocks of the log that can hold closed data: all but the retired ones, what collection keeps
    /// free, and the open ones.
    #[must_use]
    pub fn superblocks_usable(&self) -> u32 {
        let open = self.sizes.streams + self.config.ftl.collection.free_background;
        self.sizes.data_superblocks().saturating_sub(self.retired + open)
    }

    /// Bytes of memory that grow with the capacity: the two maps.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.map.bytes() + self.reverse.bytes()
    }

    /// Whether no more superblocks are free than collection keeps for itself: a write that waits now waits for it.
    #[must_use]
    pub fn is_out_of_space(&self) -> bool {
        self.free_count() <= self.config.ftl.collection.free_min
    }

    /// Nanoseconds of work of each die, by die number; over a span of time, utilisation.
    pub fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.array.die_busy_ns()
    }

    /// Nanoseconds of work of each channel, by channel number.
    pub fn channel_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.array.channel_busy_ns()
    }
}
