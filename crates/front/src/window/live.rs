//! What a device does, as its control socket and its report say it.

use osier_device::window::histogram::Histogram;
use osier_device::window::{MAP_CELLS, PAGE_BYTES, WindowStats};
use serde::{Deserialize, Serialize};

/// How long something took, of all faults.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durations {
    /// How many there were.
    pub count: u64,
    /// The duration that half of them did not exceed, rounded up by at most an eighth.
    pub p50_ns: u64,
    /// The same for 99 of a hundred.
    pub p99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// The least duration of each bucket that has any, and how many.
    pub buckets: Vec<(u64, u64)>,
}

impl From<&Histogram> for Durations {
    fn from(histogram: &Histogram) -> Durations {
        Durations {
            count: histogram.count(),
            p50_ns: histogram.quantile_ns(500),
            p99_ns: histogram.quantile_ns(990),
            max_ns: histogram.max_ns(),
            buckets: histogram.buckets().collect(),
        }
    }
}

/// The flash of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlashState {
    /// Pages that the host side programmed.
    pub pages_written: u64,
    /// Pages that collection moved.
    pub pages_moved: u64,
    /// Bytes programmed for each byte written, in millionths.
    pub waf_ppm: u64,
    /// Superblocks that are free.
    pub superblocks_free: u32,
    /// Superblocks that collection began to empty, and that were erased.
    pub collections: u64,
    /// See above.
    pub superblocks_erased: u64,
    /// Blocks that were erased.
    pub blocks_erased: u64,
}

/// A program that maps the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its process.
    pub pid: i32,
    /// Pages that it has pinned.
    pub pinned_pages: u64,
    /// It does not give pages back: it is stopped, most probably.
    pub is_silent: bool,
    /// Its stores are not tracked: each page of its that leaves counts as dirty.
    pub is_untracked: bool,
    /// How long its faults took, by its own count, without the buckets.
    pub latency: Durations,
    /// How late it was.
    pub lateness: Durations,
}

/// See the module. Counts are since the device began.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Live {
    /// The device's name.
    pub device: String,
    /// When, by the monotonic clock.
    pub at_ns: u64,
    /// Bytes of the window.
    pub window_bytes: u64,
    /// Bytes of its cache.
    pub cache_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages that are resident, on their way in or out.
    pub resident_pages: u64,
    /// Faults that programs reported.
    pub faults: u64,
    /// Of these, those that read a page of the flash. What a program touches of its mapped pages nobody sees.
    pub misses: u64,
    /// Of these, those that waited for a frame.
    pub blocked: u64,
    /// Pages that left the cache.
    pub evicted: u64,
    /// Of these, those that were programmed.
    pub evicted_dirty: u64,
    /// Faults that found a page whose bytes the flash has lost.
    pub lost: u64,
    /// Dirty pages that worn-out flash refused.
    pub dropped: u64,
    /// Pages that are pinned over the control socket.
    pub pinned_by_control: u64,
    /// How long faults took, of all programs that there ever were.
    pub latency: Durations,
    /// How late they were: the emulator's own error.
    pub lateness: Durations,
    /// The flash.
    pub flash: FlashState,
    /// Resident pages in equal parts of the window.
    pub residency: Vec<u64>,
    /// Pages of such a part.
    pub residency_pages: u64,
    /// Who maps the window.
    pub programs: Vec<Program>,
    /// Of all that there ever were, those whose stores were not tracked.
    pub programs_untracked: u64,
}

impl Live {
    /// What the core counts; the rest is the caller's.
    pub(super) fn of(stats: &WindowStats, pages: u64, residency: &[u64; MAP_CELLS]) -> Live {
        let (counts, flash) = (&stats.counts, &stats.flash);
        let page_bytes = PAGE_BYTES as u64;
        Live {
            window_bytes: pages * page_bytes,
            cache_bytes: stats.frames * page_bytes,
            page_bytes,
            resident_pages: stats.resident,
            faults: counts.faults,
            misses: counts.misses,
            blocked: counts.blocked,
            evicted: counts.left,
            evicted_dirty: counts.left_dirty,
            lost: counts.lost,
            dropped: counts.dropped,
            flash: FlashState {
                pages_written: flash.units_written,
                pages_moved: flash.units_moved,
                waf_ppm: flash.waf_ppm(),
                superblocks_free: flash.superblocks_free,
                collections: flash.victims,
                superblocks_erased: flash.superblocks_erased,
                blocks_erased: flash.blocks_erased,
            },
            residency: residency.to_vec(),
            residency_pages: pages.div_ceil(MAP_CELLS as u64),
            ..Live::default()
        }
    }
}
