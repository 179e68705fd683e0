//! The description of a cache, as a section of a profile.

use serde::Deserialize;

use crate::error::ConfigError;
use crate::eviction::{ParameterValues, Shape};

/// Most frames of a cache: 4 TiB of pages of 4 KiB. Twice as many slots of a table still have a number of 32 bits.
pub const FRAMES_MAX: u32 = 1 << 30;
/// Most lines of a page, one bit each in a mask.
pub const LINES_PER_PAGE_MAX: u32 = 64;

/// The section `[cache]`. Every key is required, except that parameters not given have their published values, and
/// that without `[cache.write_log]` there is none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheConfig {
    /// Frames, of one page each.
    pub frames: u32,
    /// Frames of a set: a number that divides `frames`, or as many as there are for fully associative.
    pub ways: u32,
    /// Which set a page belongs to.
    pub set_index: SetIndex,
    /// When written bytes go below the cache.
    pub write: WriteMode,
    /// Frames of each set that [`crate::Cache::reclaim`] keeps free, so that a miss need not wait for a victim.
    pub reserve_frames: u32,
    /// Most pages that may be pinned.
    pub pinned_pages_max: u32,
    /// Name of the eviction policy.
    pub eviction: String,
    /// Its parameters.
    #[serde(default)]
    pub eviction_parameters: ParameterValues,
    /// Name of the prefetcher, or `none`.
    pub prefetch: String,
    /// Its parameters.
    #[serde(default)]
    pub prefetch_parameters: ParameterValues,
    /// A log of written lines in front of the pages.
    pub write_log: Option<WriteLogConfig>,
}

/// How a page's set is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SetIndex {
    /// The page's number modulo the number of sets, as caches that take address bits do.
    Modulo,
    /// The upper half of the page's multiplicative hash, scaled to the number of sets.
    Hash,
}

/// When written bytes go below the cache. A write to a page that is not resident brings it in, in both. With a write
/// log it is `back`: the log holds what was written until it is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteMode {
    /// When the page leaves.
    Back,
    /// At once; no page is ever dirty.
    Through,
}

/// The section `[cache.write_log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteLogConfig {
    /// Lines of a page: page size by line size.
    pub lines_per_page: u32,
    /// Lines that each half of the log holds: one takes writes while the other is compacted.
    pub lines_per_half: u32,
}

impl CacheConfig {
    /// The shape that this describes.
    ///
    /// # Errors
    /// Names the key that cannot work, and why.
    pub fn shape(&self) -> Result<Shape, ConfigError> {
        let refuse = |key, value: u32, reason: String| Err(ConfigError::Value { key, value: value.into(), reason });
        if self.frames == 0 || self.frames > FRAMES_MAX {
            return refuse("frames", self.frames, format!("a cache has 1 to {FRAMES_MAX} frames"));
        }
        if self.ways == 0 || !self.frames.is_multiple_of(self.ways) {
            return refuse("ways", self.ways, format!("a set has a number of frames that divides {}", self.frames));
        }
        if self.reserve_frames >= self.ways {
            let reason = format!("a set has {} frames, and at least one has to hold a page", self.ways);
            return refuse("reserve_frames", self.reserve_frames, reason);
        }
        if let Some(log) = &self.write_log {
            log.check()?;
            if self.write == WriteMode::Through {
                return Err(ConfigError::ThroughWithLog);
            }
        }
        let pages_per_set = self.ways - self.reserve_frames;
        Ok(Shape { sets: self.frames / self.ways, ways: self.ways, pages_per_set })
    }
}

impl WriteLogConfig {
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key, value: u32, reason: String| Err(ConfigError::Value { key, value: value.into(), reason });
        if self.lines_per_page == 0 || self.lines_per_page > LINES_PER_PAGE_MAX {
            let reason = format!("a page has 1 to {LINES_PER_PAGE_MAX} lines");
            return refuse("write_log.lines_per_page", self.lines_per_page, reason);
        }
        if self.lines_per_half < self.lines_per_page || self.lines_per_half > FRAMES_MAX {
            let reason =
                format!("half a log holds at least a page of {} lines, and at most {FRAMES_MAX}", self.lines_per_page);
            return refuse("write_log.lines_per_half", self.lines_per_half, reason);
        }
        Ok(())
    }
}
