//! What a model counts.

use osier_cache::{LogStats, Stats as CacheStats};
use osier_flash::page::PageFtlStats;
use osier_link::{Direction, Traffic};

use super::Model;

/// What the model itself counts, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Commands that were sent, in the order of [`super::Op::ALL`].
    pub commands: [u64; 6],
    /// Pages that left the cache dirty and were programmed.
    pub pages_drained: u64,
    /// Pages programmed for commands: around the cache, or through it at once.
    pub pages_written: u64,
    /// Pages programmed for flushes.
    pub pages_flushed: u64,
    /// Pages programmed from the write log.
    pub pages_compacted: u64,
    /// Dirty pages that were trimmed, and so not programmed.
    pub pages_dropped: u64,
    /// Pages whose bytes were lost because the flash is worn out.
    pub pages_lost: u64,
    /// Prefetches not begun because enough fills were under way.
    pub prefetches_dropped: u64,
    /// Pages that had to be asked for again.
    pub blocked: u64,
    /// Time that the controller worked.
    pub controller_busy_ns: u64,
}

/// A snapshot of all figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelStats {
    /// The model's own.
    pub counts: Counts,
    /// The cache's.
    pub cache: Option<CacheStats>,
    /// The write log's.
    pub log: Option<LogStats>,
    /// The flash's.
    pub flash: PageFtlStats,
    /// What crossed the link.
    pub link: Traffic,
    /// Time that each direction of the link was taken, down and up, in nanoseconds.
    pub link_busy_ns: [u64; 2],
}

impl Model {
    /// The figures as they are now.
    #[must_use]
    pub fn stats(&self) -> ModelStats {
        let busy = |direction| u64::try_from(self.link.busy_picos(direction) / 1000).unwrap_or(u64::MAX);
        ModelStats {
            counts: self.counts,
            cache: self.cache.as_ref().map(osier_cache::Cache::stats),
            log: self.cache.as_ref().and_then(|cache| cache.log()).map(osier_cache::WriteLog::stats),
            flash: self.ftl.stats(),
            link: self.link.traffic(),
            link_busy_ns: Direction::ALL.map(busy),
        }
    }

    /// Nanoseconds of work given to each die so far, by die number; two samples give its utilisation between them.
    pub fn die_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.ftl.die_busy_ns()
    }

    /// Nanoseconds of work given to each channel so far, by channel number.
    pub fn channel_busy_ns(&self) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.ftl.channel_busy_ns()
    }

    /// Erases of each superblock, which are those of each of its blocks.
    pub fn superblock_erases(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.ftl.superblock_erases()
    }

    /// Bytes of memory that grow with the capacity: the maps of the flash.
    #[must_use]
    pub fn map_bytes(&self) -> u64 {
        self.ftl.map_bytes()
    }
}
