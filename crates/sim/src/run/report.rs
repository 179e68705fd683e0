//! The result of a run as plain data. `docs/report-schema.json` describes it as JSON, field by field.
//!
//! Every number is an integer, with its unit in its name; shares are in millionths (`_ppm`). So two results are equal
//! if their bytes are.

use std::collections::BTreeMap;

use osier_device::model::{Op, Outcome};
use osier_flash::page::PageFtlStats;
use serde::{Deserialize, Serialize};

use super::counters::{
    CacheCounts, ControllerCounts, Counters, FlashCounts, LinkCount, LogCounts, link_counts, per_million, since,
};
use super::driver::{End, Measured, OUTCOMES};
use super::histogram::Histogram;
use super::latency::{CAUSES, Group, METS, Tail, cause_names, met_name};

/// The version of the schema. Fields may be added in a version; one that goes or changes its meaning makes a new one.
pub const REPORT_VERSION: u32 = 1;
/// The percentiles at which the causes of what is slower are told, in millionths.
pub const TAILS: [(&str, u32); 4] = [("p50", 500_000), ("p90", 900_000), ("p99", 990_000), ("p99.9", 999_000)];
/// Each power of two has so many buckets in a report.
const REPORT_BUCKETS: u64 = 8;

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunReport {
    /// [`REPORT_VERSION`].
    pub version: u32,
    /// What was simulated.
    pub device: DevicePart,
    /// With what.
    pub workload: WorkloadPart,
    /// How much was done, in what time.
    pub run: RunPart,
    /// How long requests took, and why.
    pub latency: LatencyPart,
    /// What the device did between its parts.
    pub controller: ControllerCounts,
    /// The DRAM cache; none if the device has none.
    pub cache: Option<CachePart>,
    /// The flash.
    pub flash: FlashPart,
    /// What crossed the link.
    pub link: LinkPart,
    /// Each tenant.
    pub tenants: Vec<TenantPart>,
    /// What happened over time.
    pub series: SeriesPart,
}

/// What was simulated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicePart {
    /// The profile's name.
    pub profile: String,
    /// Keys of it that were set otherwise.
    pub set: BTreeMap<String, String>,
    /// Bytes that the host can address.
    pub capacity_bytes: u64,
    /// What was fitted to a published figure, and so is no prediction of it.
    pub calibrated: Vec<String>,
    /// How the device was filled beforehand; none if it was new.
    pub precondition: Option<String>,
    /// Seed of what is random in the device.
    pub seed: u64,
    /// Channels of the flash.
    pub channels: u32,
    /// Dies on each of them.
    pub dies_per_channel: u32,
}

/// What the device was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadPart {
    /// The workload's name, or the trace's.
    pub name: String,
    /// Seed of a workload; none of a trace.
    pub seed: Option<u64>,
    /// The trace; none of a workload.
    pub trace: Option<TracePart>,
    /// How addresses were brought into the capacity.
    pub addresses: String,
}

/// What was found in a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TracePart {
    /// Its format.
    pub format: String,
    /// Lines or records that were read.
    pub lines: u64,
    /// Of these, lines that were out of order and put in their place.
    pub unsorted: u64,
    /// Lines that were left out, by what is wrong with them.
    pub bad: BTreeMap<String, u64>,
}

/// How much was done, in what time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunPart {
    /// Requests before the first counted one.
    pub warm_up_requests: u64,
    /// Requests that were counted.
    pub requests: u64,
    /// Of these, requests for which the device had no room when they arrived.
    pub delayed: u64,
    /// Why the run ended: `workload`, `requests` or `duration`.
    pub end: String,
    /// From the submission of the first counted request to the completion of the last.
    pub span_ns: u64,
    /// Requests in that time.
    pub requests_per_second: u64,
    /// Bytes read, loaded, written and stored in that time.
    pub bytes_per_second: u64,
    /// Bytes read and loaded.
    pub bytes_read: u64,
    /// Bytes written and stored.
    pub bytes_written: u64,
    /// Counted requests by how they ended.
    pub outcomes: BTreeMap<String, u64>,
}

/// How long requests took, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyPart {
    /// All counted requests.
    pub all: GroupPart,
    /// By what they did.
    pub by_op: BTreeMap<String, GroupPart>,
    /// By what they met in the cache.
    pub by_met: BTreeMap<String, GroupPart>,
    /// What each cause took of the requests that it took anything of.
    pub by_cause: BTreeMap<String, Distribution>,
    /// What the slowest spent their time on, by percentile.
    pub beyond: BTreeMap<String, TailPart>,
}

/// Requests of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupPart {
    /// Their latencies.
    pub latency: Distribution,
    /// Nanoseconds of each cause a request.
    pub mean_ns_by_cause: BTreeMap<String, u64>,
}

/// How times are distributed. A percentile is at most 1/128 above the exact one, and never below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// How many there are.
    pub requests: u64,
    /// The shortest.
    pub min_ns: u64,
    /// The mean.
    pub mean_ns: u64,
    /// The median.
    pub p50_ns: u64,
    /// Nine in ten are at or below.
    pub p90_ns: u64,
    /// 95 in 100 are at or below.
    pub p95_ns: u64,
    /// 99 in 100 are at or below.
    pub p99_ns: u64,
    /// 999 in 1,000 are at or below.
    pub p99_9_ns: u64,
    /// 9,999 in 10,000 are at or below.
    pub p99_99_ns: u64,
    /// The longest.
    pub max_ns: u64,
    /// From the shortest times on: lowest time, highest time, how many.
    pub buckets: Vec<(u64, u64, u64)>,
}

/// What the slowest requests spent their time on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailPart {
    /// The latency from which on requests are counted here: the lowest of the percentile's bucket.
    pub from_ns: u64,
    /// How many these are.
    pub requests: u64,
    /// Nanoseconds of each cause a request.
    pub mean_ns_by_cause: BTreeMap<String, u64>,
}

/// The DRAM cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CachePart {
    /// Accesses that it or its write log answered, of all; none without any access.
    pub hit_ppm: Option<u64>,
    /// What happened in it.
    pub counts: CacheCounts,
    /// What happened in its write log; none if it has none.
    pub log: Option<LogCounts>,
}

/// The flash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashPart {
    /// Bytes programmed for each byte written to it; none if nothing was written.
    pub waf_ppm: Option<u64>,
    /// What happened on it.
    pub counts: FlashCounts,
    /// How it is at the end.
    pub at_end: FlashState,
    /// Erases of each superblock at the end, since it was new.
    pub erases: ErasesPart,
    /// Nanoseconds of work that each die was given, by its number.
    pub die_busy_ns: Vec<u64>,
    /// The same as a share of the span. Work that was given and not done at the end is in it.
    pub die_busy_ppm: Vec<u64>,
    /// Nanoseconds of work that each channel was given, by its number.
    pub channel_busy_ns: Vec<u64>,
    /// The same as a share of the span.
    pub channel_busy_ppm: Vec<u64>,
}

/// How the flash is at the end of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FlashState {
    /// Units of 4 KiB that hold data.
    pub units_valid: u64,
    /// Superblocks that are free.
    pub superblocks_free: u64,
    /// Superblocks that are out of use.
    pub superblocks_retired: u64,
    /// Spare blocks that are left.
    pub spare_blocks: u64,
    /// Whether writes are refused.
    pub is_read_only: bool,
}

impl From<&PageFtlStats> for FlashState {
    fn from(stats: &PageFtlStats) -> Self {
        FlashState {
            units_valid: stats.units_valid,
            superblocks_free: stats.superblocks_free.into(),
            superblocks_retired: stats.superblocks_retired.into(),
            spare_blocks: stats.spare_blocks,
            is_read_only: stats.is_read_only,
        }
    }
}

/// How often superblocks were erased. A superblock is one block of every plane of every die.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ErasesPart {
    /// Of the one that was erased least.
    pub min: u64,
    /// Their mean, in millionths of an erase.
    pub mean_ppm: u64,
    /// Of the one that was erased most.
    pub max: u64,
    /// Erases, and how many superblocks were erased so often.
    pub histogram: Vec<(u64, u64)>,
}

/// What crossed the link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkPart {
    /// Bytes of data in both directions, as hardware counters show them.
    pub payload_bytes: u64,
    /// Bytes on the wire in both directions.
    pub wire_bytes: u64,
    /// Of the span, the share in which the way to the device was taken.
    pub downstream_busy_ppm: u64,
    /// The same of the way to the host.
    pub upstream_busy_ppm: u64,
    /// By direction and purpose.
    pub counts: Vec<LinkCount>,
}

/// One tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantPart {
    /// Its number.
    pub tenant: u16,
    /// Its job's name; none of a trace.
    pub name: Option<String>,
    /// Its requests by what they did.
    pub requests: BTreeMap<String, u64>,
    /// Their bytes.
    pub bytes: BTreeMap<String, u64>,
    /// Its requests by what they met in the cache.
    pub met: BTreeMap<String, u64>,
    /// Requests that met a resident page, of those that met anything; none without any.
    pub hit_ppm: Option<u64>,
    /// Its requests in a second of the span.
    pub requests_per_second: u64,
    /// How long they took, and why.
    pub latency: GroupPart,
}

/// What happened over time: a column an item, a row an interval. The last interval may be shorter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeriesPart {
    /// The length of an interval.
    pub interval_ns: u64,
    /// Requests that completed.
    pub requests: Vec<u64>,
    /// Bytes that they read and loaded.
    pub bytes_read: Vec<u64>,
    /// Bytes that they wrote and stored.
    pub bytes_written: Vec<u64>,
    /// Their mean latency; 0 of none.
    pub latency_mean_ns: Vec<u64>,
    /// The longest.
    pub latency_max_ns: Vec<u64>,
    /// Accesses that the cache answered.
    pub cache_hits: Vec<u64>,
    /// Accesses to the cache.
    pub cache_accesses: Vec<u64>,
    /// Bytes written to the flash.
    pub flash_bytes_written: Vec<u64>,
    /// Bytes programmed, whatever for.
    pub flash_bytes_programmed: Vec<u64>,
    /// Units of 4 KiB that garbage collection moved.
    pub units_moved: Vec<u64>,
    /// Blocks that were erased.
    pub blocks_erased: Vec<u64>,
    /// Nanoseconds of work that each die was given: a list for each die, by its number.
    pub die_busy_ns: Vec<Vec<u64>>,
}

/// What a run cannot know of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Context {
    /// What was simulated.
    pub device: DevicePart,
    /// With what.
    pub workload: WorkloadPart,
    /// Names of the tenants.
    pub tenants: BTreeMap<u16, String>,
    /// How the flash is at the end.
    pub flash: FlashState,
    /// Erases of each superblock at the end.
    pub erases: Vec<u32>,
}

impl RunReport {
    /// The result of what was measured.
    #[must_use]
    pub fn new(measured: &Measured, context: Context) -> RunReport {
        let span_ns = measured.ended.saturating_since(measured.began);
        let (begin, end) = (&measured.counters_at_begin, &measured.counters_at_end);
        let cache = since(end.cache, begin.cache, CacheCounts::since);
        let log = since(end.log, begin.log, LogCounts::since);
        RunReport {
            version: REPORT_VERSION,
            run: run_part(measured, span_ns),
            latency: latency_part(measured),
            controller: end.controller.since(&begin.controller),
            cache: cache.map(|counts| CachePart { hit_ppm: counts.hit_ppm(), counts, log }),
            flash: flash_part(measured, span_ns, &context),
            link: link_part(begin, end, span_ns),
            tenants: tenant_parts(measured, span_ns, &context.tenants),
            series: series_part(measured),
            device: context.device,
            workload: context.workload,
        }
    }

    /// As JSON, a line an item, lists of numbers in one line. The same result gives the same bytes.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut bytes = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, super::json::Lines::default());
        self.serialize(&mut serializer).expect("plain data always serialize");
        bytes.push(b'\n');
        String::from_utf8(bytes).expect("JSON is UTF-8")
    }
}

fn per_second(amount: u64, span_ns: u64) -> u64 {
    let rate = (u128::from(amount) * 1_000_000_000).checked_div(span_ns.into()).unwrap_or(0);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// The name in reports.
#[must_use]
pub fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Ok => "ok",
        Outcome::Uncorrectable => "uncorrectable",
        Outcome::ReadOnly => "read-only",
        Outcome::OutOfRange => "out-of-range",
    }
}

fn run_part(measured: &Measured, span_ns: u64) -> RunPart {
    let requests = measured.latencies.all.latency.count();
    let sum = |of: fn(&super::series::Point) -> u64| measured.series.points().iter().map(of).sum::<u64>();
    let (bytes_read, bytes_written) = (sum(|point| point.bytes_read), sum(|point| point.bytes_written));
    let outcomes = OUTCOMES.into_iter().map(outcome_name).map(str::to_owned).zip(measured.outcomes);
    RunPart {
        warm_up_requests: measured.warm_up_requests,
        requests,
        delayed: measured.delayed,
        end: match measured.end {
            End::Workload => "workload",
            End::Requests => "requests",
            End::Duration => "duration",
        }
        .to_owned(),
        span_ns,
        requests_per_second: per_second(requests, span_ns),
        bytes_per_second: per_second(bytes_read + bytes_written, span_ns),
        bytes_read,
        bytes_written,
        outcomes: outcomes.collect(),
    }
}

fn by_cause(parts: [u64; CAUSES]) -> BTreeMap<String, u64> {
    cause_names().into_iter().map(str::to_owned).zip(parts).collect()
}

fn group_part(group: &Group) -> GroupPart {
    GroupPart { latency: Distribution::of(&group.latency), mean_ns_by_cause: by_cause(group.mean_parts()) }
}

impl Distribution {
    fn of(histogram: &Histogram) -> Distribution {
        let mut buckets: Vec<(u64, u64, u64)> = Vec::new();
        for (low, high, count) in histogram.buckets() {
            let (low, high) = coarse(low, high);
            match buckets.last_mut() {
                Some(last) if last.0 == low => last.2 += count,
                _ => buckets.push((low, high, count)),
            }
        }
        Distribution {
            requests: histogram.count(),
            min_ns: histogram.min(),
            mean_ns: histogram.mean(),
            p50_ns: histogram.percentile(500_000),
            p90_ns: histogram.percentile(900_000),
            p95_ns: histogram.percentile(950_000),
            p99_ns: histogram.percentile(990_000),
            p99_9_ns: histogram.percentile(999_000),
            p99_99_ns: histogram.percentile(999_900),
            max_ns: histogram.max(),
            buckets,
        }
    }
}

/// The bucket of a report that a bucket of a histogram is in: one eighth of a power of two.
fn coarse(low: u64, high: u64) -> (u64, u64) {
    if low < 2 * REPORT_BUCKETS {
        return (low, high);
    }
    let width = 1_u64 << (low.ilog2() - REPORT_BUCKETS.ilog2());
    let low = low / width * width;
    (low, low + (width - 1))
}

fn tail_part(tail: &Tail) -> TailPart {
    TailPart { from_ns: tail.from_ns, requests: tail.requests, mean_ns_by_cause: by_cause(tail.mean_parts) }
}

fn latency_part(measured: &Measured) -> LatencyPart {
    let latencies = &measured.latencies;
    let named = |name: &str, group: &Group| (name.to_owned(), group_part(group));
    let has_any = |group: &Group| group.latency.count() > 0;
    let ops = Op::ALL.into_iter().zip(&latencies.by_op).filter(|(_, group)| has_any(group));
    let mets = METS.into_iter().zip(&latencies.by_met).filter(|(_, group)| has_any(group));
    let causes = cause_names().into_iter().zip(&latencies.by_cause).filter(|(_, histogram)| histogram.count() > 0);
    let tails = TAILS.into_iter().filter_map(|(name, permillion)| Some((name, latencies.tail(permillion)?)));
    LatencyPart {
        all: group_part(&latencies.all),
        by_op: ops.map(|(op, group)| named(op.name(), group)).collect(),
        by_met: mets.map(|(met, group)| named(met_name(met), group)).collect(),
        by_cause: causes.map(|(name, histogram)| (name.to_owned(), Distribution::of(histogram))).collect(),
        beyond: tails.map(|(name, tail)| (name.to_owned(), tail_part(&tail))).collect(),
    }
}

fn flash_part(measured: &Measured, span_ns: u64, context: &Context) -> FlashPart {
    let counts = measured.counters_at_end.flash.since(&measured.counters_at_begin.flash);
    let shares = |busy: &[u64]| busy.iter().map(|busy| per_million(*busy, span_ns).unwrap_or(0)).collect();
    FlashPart {
        waf_ppm: counts.waf_ppm(),
        counts,
        at_end: context.flash,
        erases: ErasesPart::of(&context.erases),
        die_busy_ppm: shares(&measured.die_busy_ns),
        die_busy_ns: measured.die_busy_ns.clone(),
        channel_busy_ppm: shares(&measured.channel_busy_ns),
        channel_busy_ns: measured.channel_busy_ns.clone(),
    }
}

impl ErasesPart {
    fn of(erases: &[u32]) -> ErasesPart {
        let mut histogram: BTreeMap<u64, u64> = BTreeMap::new();
        for count in erases {
            *histogram.entry((*count).into()).or_default() += 1;
        }
        let sum = histogram.iter().map(|(erases, superblocks)| erases * superblocks).sum();
        ErasesPart {
            min: histogram.keys().next().copied().unwrap_or(0),
            mean_ppm: per_million(sum, erases.len() as u64).unwrap_or(0),
            max: histogram.keys().next_back().copied().unwrap_or(0),
            histogram: histogram.into_iter().collect(),
        }
    }
}

fn link_part(begin: &Counters, end: &Counters, span_ns: u64) -> LinkPart {
    let busy = |direction: usize| {
        let busy_ns = end.link_busy_ns[direction] - begin.link_busy_ns[direction];
        per_million(busy_ns, span_ns).unwrap_or(0)
    };
    let counts = link_counts(&end.traffic, &begin.traffic);
    LinkPart {
        payload_bytes: counts.iter().map(|count| count.payload_bytes).sum(),
        wire_bytes: counts.iter().map(|count| count.wire_bytes).sum(),
        downstream_busy_ppm: busy(0),
        upstream_busy_ppm: busy(1),
        counts,
    }
}

fn tenant_parts(measured: &Measured, span_ns: u64, names: &BTreeMap<u16, String>) -> Vec<TenantPart> {
    let parts = measured.latencies.tenants().map(|(number, tenant)| {
        let by_op = |counts: &[u64; Op::ALL.len()]| {
            let named = Op::ALL.into_iter().zip(*counts).filter(|(op, _)| tenant.requests[*op as usize] > 0);
            named.map(|(op, count)| (op.name().to_owned(), count)).collect()
        };
        let met = METS.into_iter().zip(tenant.met).filter(|(_, count)| *count > 0);
        let [_, hits, merged, misses] = tenant.met;
        TenantPart {
            tenant: number,
            name: names.get(&number).cloned(),
            requests: by_op(&tenant.requests),
            bytes: by_op(&tenant.bytes),
            met: met.map(|(met, count)| (met_name(met).to_owned(), count)).collect(),
            hit_ppm: per_million(hits, hits + merged + misses),
            requests_per_second: per_second(tenant.group.latency.count(), span_ns),
            latency: group_part(&tenant.group),
        }
    });
    parts.collect()
}

fn series_part(measured: &Measured) -> SeriesPart {
    let points = measured.series.points();
    let column = |of: fn(&super::series::Point) -> u64| points.iter().map(of).collect::<Vec<u64>>();
    let dies = measured.die_busy_ns.len();
    SeriesPart {
        interval_ns: measured.series.interval_ns(),
        requests: column(|point| point.requests),
        bytes_read: column(|point| point.bytes_read),
        bytes_written: column(|point| point.bytes_written),
        latency_mean_ns: column(|point| {
            let mean = point.latency_sum_ns.checked_div(point.requests.into()).unwrap_or(0);
            u64::try_from(mean).unwrap_or(u64::MAX)
        }),
        latency_max_ns: column(|point| point.latency_max_ns),
        cache_hits: column(|point| point.cache.answered()),
        cache_accesses: column(|point| point.cache.accesses()),
        flash_bytes_written: column(|point| point.flash.bytes_written),
        flash_bytes_programmed: column(|point| point.flash.bytes_programmed),
        units_moved: column(|point| point.flash.units_moved),
        blocks_erased: column(|point| point.flash.blocks_erased),
        die_busy_ns: (0..dies).map(|die| points.iter().map(|point| point.die_busy_ns[die]).collect()).collect(),
    }
}
