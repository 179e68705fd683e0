//! What the parts of a device count, as the driver samples it: plain numbers that only grow, so that the difference of
//! two samples is what happened between them.

use osier_cache::{LogStats, Stats};
use osier_device::model::{Counts, ModelStats};
use osier_flash::page::PageFtlStats;
use osier_link::{Direction, Kind, Traffic};
use serde::{Deserialize, Serialize};

/// A struct of counters with the operations that all of them have, made from what the part itself counts.
macro_rules! counts {
    ($(#[$about:meta])* $name:ident from $stats:ty { $($(#[$doc:meta])* $field:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl From<&$stats> for $name {
            fn from(stats: &$stats) -> Self {
                $name { $($field: stats.$field,)* }
            }
        }

        impl $name {
            /// What was counted since an earlier sample.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                $name { $($field: self.$field - earlier.$field,)* }
            }

            /// The sum of two spans.
            #[must_use]
            pub fn plus(&self, other: &Self) -> Self {
                $name { $($field: self.$field + other.$field,)* }
            }
        }
    };
}

counts! {
    /// What happened in the DRAM cache, in pages.
    CacheCounts from Stats {
        /// Accesses that read.
        reads,
        /// Accesses that wrote.
        writes,
        /// Accesses to a resident page.
        hits,
        /// Accesses that began to bring a page in.
        misses,
        /// Accesses to a page that was on its way.
        merged,
        /// Reads answered by the write log alone.
        log_hits,
        /// Writes that the write log took while the page was not resident.
        logged,
        /// Times an access had to wait for a frame.
        waits,
        /// Pages that left without being written.
        evicted_clean,
        /// Pages that left and had to be written.
        evicted_dirty,
        /// Of those that left: on command.
        evicted_by_command,
        /// Of those that left: to keep frames free.
        reclaimed,
        /// Fills that failed.
        fills_failed,
        /// Prefetches begun.
        prefetch_issued,
        /// Prefetches not begun because the page was there or on its way.
        prefetch_redundant,
        /// Prefetches not begun because there was no frame for them.
        prefetch_refused,
        /// Prefetched pages that were asked for, late ones included.
        prefetch_useful,
        /// Of these, pages that were asked for before they had arrived.
        prefetch_late,
        /// Prefetched pages that left without having been asked for.
        prefetch_unused,
        /// Misses of pages that a prefetch had pushed out not long before.
        prefetch_pollution,
        /// Victims that the policy named wrongly or not at all.
        policy_faults,
    }
}

impl CacheCounts {
    /// Accesses that the cache or its write log answered.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.hits + self.log_hits + self.logged
    }

    /// Accesses of any outcome.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.answered() + self.misses + self.merged
    }

    /// Those that the cache answered, in millionths of all; `None` without any.
    #[must_use]
    pub fn hit_ppm(&self) -> Option<u64> {
        per_million(self.answered(), self.accesses())
    }
}

counts! {
    /// What happened on the flash. A unit is 4 KiB.
    FlashCounts from PageFtlStats {
        /// Units that the host, or the cache, wrote.
        units_written,
        /// Units that were read.
        units_read,
        /// Of these, units that were still in memory.
        units_read_from_memory,
        /// Units that were trimmed.
        units_trimmed,
        /// Units that garbage collection moved.
        units_moved,
        /// Units that stayed empty because their page had to be programmed.
        units_padded,
        /// Pages of a cached map that were read.
        map_units_read,
        /// Pages of a cached map that were written.
        map_units_written,
        /// Accesses to the map whose page was cached.
        map_hits,
        /// Accesses to the map whose page was not.
        map_misses,
        /// Pages read for the host.
        pages_read,
        /// Pages read by garbage collection.
        pages_read_to_move,
        /// Pages programmed with data.
        pages_programmed,
        /// Pages programmed for checkpoints of the map.
        pages_programmed_for_map,
        /// Pages programmed to record trims.
        pages_programmed_for_trims,
        /// Blocks erased.
        blocks_erased,
        /// Superblocks that garbage collection began to empty.
        victims,
        /// Of these, those that were taken for their wear.
        victims_for_wear,
        /// Checkpoints that are whole.
        checkpoints,
        /// Steps of read retry.
        read_retries,
        /// Reads that failed.
        reads_uncorrectable,
        /// Programs that failed and were done again.
        program_failures,
        /// Erases that failed.
        erase_failures,
        /// Blocks that went bad.
        blocks_gone_bad,
        /// Bytes that were written to the flash.
        bytes_written,
        /// Bytes that were programmed, whatever for.
        bytes_programmed,
    }
}

impl FlashCounts {
    /// Bytes programmed for each byte written, in millionths; `None` if nothing was written.
    #[must_use]
    pub fn waf_ppm(&self) -> Option<u64> {
        per_million(self.bytes_programmed, self.bytes_written)
    }
}

counts! {
    /// What happened in the write log, in lines of 64 bytes.
    LogCounts from LogStats {
        /// Lines appended.
        lines,
        /// Of these, lines that the same half of the log had before.
        overwritten,
        /// Pages whose lines were brought to the flash.
        pages_compacted,
        /// Lines that went with them.
        lines_compacted,
        /// Appends refused because both halves were full.
        refused,
    }
}

counts! {
    /// What the device did between its parts.
    ControllerCounts from Counts {
        /// Pages that left the cache dirty and were programmed.
        pages_drained,
        /// Pages programmed for commands: around the cache, or through it at once.
        pages_written,
        /// Pages programmed for flushes.
        pages_flushed,
        /// Pages programmed from the write log.
        pages_compacted,
        /// Dirty pages that were trimmed, and so not programmed.
        pages_dropped,
        /// Pages whose bytes were lost because the flash is worn out.
        pages_lost,
        /// Prefetches not begun because enough fills were under way.
        prefetches_dropped,
        /// Times that a page had to be asked for again.
        blocked,
        /// Nanoseconds that the controller worked.
        controller_busy_ns,
    }
}

/// What crossed the link, of one kind in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkCount {
    /// `downstream`, from the host to the device, or `upstream`.
    pub direction: String,
    /// What it was for.
    pub kind: String,
    /// Packets, messages or flits.
    pub packets: u64,
    /// Bytes of data, as hardware counters show them.
    pub payload_bytes: u64,
    /// Bytes on the wire, with headers, framing, flow control and what flits left empty.
    pub wire_bytes: u64,
}

/// The name of a direction in reports.
#[must_use]
pub fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Downstream => "downstream",
        Direction::Upstream => "upstream",
    }
}

/// What crossed since an earlier sample, without the kinds of which there was nothing.
#[must_use]
pub fn link_counts(traffic: &Traffic, earlier: &Traffic) -> Vec<LinkCount> {
    let all = Direction::ALL.into_iter().flat_map(|direction| Kind::ALL.map(|kind| (direction, kind)));
    let counts = all.map(|(direction, kind)| {
        let (now, before) = (traffic.count(direction, kind), earlier.count(direction, kind));
        LinkCount {
            direction: direction_name(direction).to_owned(),
            kind: kind.name().to_owned(),
            packets: now.packets - before.packets,
            payload_bytes: now.payload_bytes - before.payload_bytes,
            // A flit that is open when the measuring begins is filled later: bytes then move from its overhead to
            // what fills it.
            wire_bytes: now.wire_bytes.saturating_sub(before.wire_bytes),
        }
    });
    counts.filter(|count| count.packets > 0 || count.wire_bytes > 0).collect()
}

/// Everything that a device counts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Of the parts together.
    pub controller: ControllerCounts,
    /// Of the cache, if there is one.
    pub cache: Option<CacheCounts>,
    /// Of the write log, if there is one.
    pub log: Option<LogCounts>,
    /// Of the flash.
    pub flash: FlashCounts,
    /// Of the link.
    pub traffic: Traffic,
    /// Nanoseconds that each direction of the link was taken, in the order of [`Direction::ALL`].
    pub link_busy_ns: [u64; 2],
}

impl From<&ModelStats> for Counters {
    fn from(stats: &ModelStats) -> Self {
        Counters {
            controller: (&stats.counts).into(),
            cache: stats.cache.as_ref().map(Into::into),
            log: stats.log.as_ref().map(Into::into),
            flash: (&stats.flash).into(),
            traffic: stats.link,
            link_busy_ns: stats.link_busy_ns,
        }
    }
}

/// What a part counted since an earlier sample, if the device has it.
#[must_use]
pub fn since<T>(now: Option<T>, earlier: Option<T>, difference: impl Fn(&T, &T) -> T) -> Option<T> {
    Some(difference(&now?, &earlier?))
}

/// A share in millionths, rounded down; `None` of nothing.
#[must_use]
pub fn per_million(part: u64, whole: u64) -> Option<u64> {
    let share = (u128::from(part) * 1_000_000).checked_div(whole.into())?;
    Some(u64::try_from(share).unwrap_or(u64::MAX))
}
