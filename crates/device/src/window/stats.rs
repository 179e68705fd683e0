//! What a window counts.

use osier_cache::Stats as CacheStats;
use osier_flash::page::PageFtlStats;
use serde::Serialize;

use super::{Resident, SampleCounts, Window};

/// The window's own counts, since it was made. Pages, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WindowCounts {
    /// Faults reported.
    pub faults: u64,
    /// Of these, those that began a fill.
    pub misses: u64,
    /// Of these, those that had to be asked for again.
    pub blocked: u64,
    /// Fills begun, for faults, prefetches and commands.
    pub fills: u64,
    /// Of these, those that failed because the flash had lost or refused the bytes.
    pub fills_failed: u64,
    /// Of these, those that were begun again elsewhere, because a mapper did not give their frame back.
    pub fills_given_up: u64,
    /// Faults answered with [`super::Grant::Lost`].
    pub lost: u64,
    /// Pages that a mapper was asked to unmap; of several mappers each counts.
    pub zaps: u64,
    /// Pages that left.
    pub left: u64,
    /// Of these, those that were dirty and went to the flash.
    pub left_dirty: u64,
    /// Of these, those that the flash did not take because it is worn out: their bytes are lost, and faults say so.
    pub dropped: u64,
    /// Pages that were mapped with one that faulted before them.
    pub ahead: u64,
    /// Pages that commands have gone through.
    pub commanded: u64,
    /// Prefetches not begun because enough fills were under way.
    pub prefetches_dropped: u64,
}

/// A snapshot of all figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowStats {
    /// The window's own.
    pub counts: WindowCounts,
    /// What sampling saw of hits.
    pub samples: SampleCounts,
    /// The cache's. It takes every page that is mapped for dirty: what was is in `counts`.
    pub cache: CacheStats,
    /// The flash's.
    pub flash: PageFtlStats,
    /// Pages that are resident or on their way.
    pub resident: u64,
    /// Frames of the cache.
    pub frames: u64,
}

impl WindowStats {
    /// The figures as one JSON object, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("numbers under names are JSON")
    }
}

impl<R: Resident> Window<R> {
    /// The figures as they are now.
    #[must_use]
    pub fn stats(&self) -> WindowStats {
        WindowStats {
            counts: self.counts,
            samples: self.sampler.counts,
            cache: self.cache.stats(),
            flash: self.ftl.stats(),
            resident: self.frames_used(),
            frames: self.cache.shape().frames().into(),
        }
    }
}
