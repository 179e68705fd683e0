//! What of a run's report can become a column.

use crate::run::RunReport;
use crate::run::report::GroupPart;

/// A figure of a report.
pub struct Figure {
    /// The column's name, with its unit.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// The figure; none where a run does not have it.
    pub of: fn(&RunReport) -> Option<u64>,
}

/// Every figure, in the order of the manual.
pub const FIGURES: &[Figure] = &[
    Figure { name: "requests", about: "counted requests", of: |r| Some(r.run.requests) },
    Figure { name: "span_ns", about: "from the first submission to the last completion", of: |r| Some(r.run.span_ns) },
    Figure { name: "requests_per_second", about: "requests in that time", of: |r| Some(r.run.requests_per_second) },
    Figure { name: "bytes_per_second", about: "bytes in that time", of: |r| Some(r.run.bytes_per_second) },
    Figure { name: "latency_mean_ns", about: "mean latency", of: |r| Some(r.latency.all.latency.mean_ns) },
    Figure { name: "latency_p50_ns", about: "median latency", of: |r| Some(r.latency.all.latency.p50_ns) },
    Figure { name: "latency_p90_ns", about: "nine in ten are faster", of: |r| Some(r.latency.all.latency.p90_ns) },
    Figure { name: "latency_p99_ns", about: "99 in 100 are faster", of: |r| Some(r.latency.all.latency.p99_ns) },
    Figure { name: "latency_p99_9_ns", about: "999 in 1000 are faster", of: |r| Some(r.latency.all.latency.p99_9_ns) },
    Figure { name: "latency_p99_99_ns", about: "9999 in 10,000", of: |r| Some(r.latency.all.latency.p99_99_ns) },
    Figure { name: "latency_max_ns", about: "the slowest request", of: |r| Some(r.latency.all.latency.max_ns) },
    Figure { name: "read_mean_ns", about: "mean latency of reads", of: |r| Some(of_op(r, "read")?.latency.mean_ns) },
    Figure { name: "read_p99_ns", about: "99 in 100 reads", of: |r| Some(of_op(r, "read")?.latency.p99_ns) },
    Figure { name: "write_mean_ns", about: "mean latency of writes", of: |r| Some(of_op(r, "write")?.latency.mean_ns) },
    Figure { name: "write_p99_ns", about: "99 in 100 writes", of: |r| Some(of_op(r, "write")?.latency.p99_ns) },
    Figure {
        name: "hit_ppm",
        about: "accesses that the cache answered, in millionths",
        of: |r| r.cache.as_ref()?.hit_ppm,
    },
    Figure { name: "cache_misses", about: "pages brought in on demand", of: |r| Some(r.cache.as_ref()?.counts.misses) },
    Figure {
        name: "cache_evicted_dirty",
        about: "pages that left the cache and had to be written",
        of: |r| Some(r.cache.as_ref()?.counts.evicted_dirty),
    },
    Figure {
        name: "prefetch_issued",
        about: "prefetches begun",
        of: |r| Some(r.cache.as_ref()?.counts.prefetch_issued),
    },
    Figure {
        name: "prefetch_useful",
        about: "prefetched pages that were asked for",
        of: |r| Some(r.cache.as_ref()?.counts.prefetch_useful),
    },
    Figure { name: "waf_ppm", about: "write amplification of the flash, in millionths", of: |r| r.flash.waf_ppm },
    Figure { name: "pages_read", about: "flash pages read for the host", of: |r| Some(r.flash.counts.pages_read) },
    Figure {
        name: "pages_programmed",
        about: "pages programmed with data",
        of: |r| Some(r.flash.counts.pages_programmed),
    },
    Figure { name: "units_moved", about: "4 KiB that collection moved", of: |r| Some(r.flash.counts.units_moved) },
    Figure { name: "blocks_erased", about: "blocks erased", of: |r| Some(r.flash.counts.blocks_erased) },
    Figure { name: "erases_max", about: "erases of the superblock most erased", of: |r| Some(r.flash.erases.max) },
    Figure {
        name: "die_busy_ppm",
        about: "the busiest die's share of the span",
        of: |r| r.flash.die_busy_ppm.iter().copied().max(),
    },
    Figure {
        name: "channel_busy_ppm",
        about: "the busiest channel's share of the span",
        of: |r| r.flash.channel_busy_ppm.iter().copied().max(),
    },
    Figure { name: "link_payload_bytes", about: "payload over the link", of: |r| Some(r.link.payload_bytes) },
    Figure { name: "link_wire_bytes", about: "bytes on the link's wire", of: |r| Some(r.link.wire_bytes) },
];

fn of_op<'a>(report: &'a RunReport, op: &str) -> Option<&'a GroupPart> {
    report.latency.by_op.get(op)
}

/// The names of [`FIGURES`].
#[must_use]
pub fn figure_names() -> Vec<&'static str> {
    FIGURES.iter().map(|figure| figure.name).collect()
}

/// The figures of a report, for columns that [`super::Sweep::parse`] has checked.
#[must_use]
pub fn figures(columns: &[String], report: &RunReport) -> Vec<Option<u64>> {
    let of =
        |column: &String| FIGURES.iter().find(|figure| figure.name == column).and_then(|figure| (figure.of)(report));
    columns.iter().map(of).collect()
}
