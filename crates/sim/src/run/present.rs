//! The result of a run as tables to print and as a page with pictures.

use std::collections::BTreeMap;

use osier_report::{
    Axis, BarChart, BarGroup, Chart, Fact, HeatStrip, Histogram, HistogramSeries, LineChart, Report, Series, StripRow,
    Stroke, Table, Unit, format_value,
};

use super::latency::cause_names;
use super::report::{Distribution, GroupPart, RunReport, SeriesPart, TAILS};

const SECOND_NS: f64 = 1e9;
/// Causes that take less than this share of the time everywhere are in the table and not in the picture.
const SHARE_SHOWN: f64 = 0.005;
/// With more dies than this the map of their work has a row for each channel.
const DIE_ROWS_MAX: usize = 256;

fn time(ns: u64) -> String {
    format_value(ns as f64 / SECOND_NS, Unit::Seconds)
}

fn count(value: u64) -> String {
    format_value(value as f64, Unit::Count)
}

fn bytes(value: u64) -> String {
    format_value(value as f64, Unit::Bytes)
}

fn share(ppm: u64) -> String {
    format_value(ppm as f64 / 1e6, Unit::Share)
}

fn ratio(ppm: Option<u64>) -> String {
    ppm.map_or_else(|| "–".to_owned(), |ppm| format!("{:.3}", ppm as f64 / 1e6))
}

impl RunReport {
    /// What was simulated, with what, in a line each.
    #[must_use]
    pub fn headline(&self) -> Vec<(&'static str, String)> {
        let (device, workload, run) = (&self.device, &self.workload, &self.run);
        let set = device.set.iter().map(|(key, value)| format!(", {key} = {value}")).collect::<String>();
        let filled = device.precondition.as_deref().map(|fill| format!("preconditioned {fill}"));
        let filled = filled.unwrap_or_else(|| "new: what was never written is not read from flash".to_owned());
        let bad = workload.trace.as_ref().map_or(0, |trace| trace.bad.values().sum::<u64>());
        let bad = if bad > 0 { format!(", {} bad lines left out", count(bad)) } else { String::new() };
        let warm_up = match run.warm_up_requests {
            0 => String::new(),
            requests => format!(" after {} of warm-up", count(requests)),
        };
        vec![
            ("device", format!("{}, {}, {filled}{set}", device.profile, bytes(device.capacity_bytes))),
            ("workload", format!("{}{bad}", workload.name)),
            ("requests", format!("{} in {}{warm_up}", count(run.requests), time(run.span_ns))),
            (
                "throughput",
                format!(
                    "{}, {}",
                    format_value(run.requests_per_second as f64, Unit::PerSecond),
                    format_value(run.bytes_per_second as f64, Unit::BytesPerSecond)
                ),
            ),
        ]
    }

    /// Figures of the cache and of the flash that are asked for first.
    #[must_use]
    pub fn key_figures(&self) -> Vec<(&'static str, String)> {
        let (flash, mut figures) = (&self.flash, Vec::new());
        if let Some(cache) = &self.cache {
            figures.push(("cache hits", cache.hit_ppm.map_or_else(|| "–".to_owned(), share)));
            figures.push(("dirty evictions", count(cache.counts.evicted_dirty)));
        }
        let counts = &flash.counts;
        figures.extend([
            ("write amplification", ratio(flash.waf_ppm)),
            ("pages read", format!("{} and {} to move", count(counts.pages_read), count(counts.pages_read_to_move))),
            ("pages programmed", count(counts.pages_programmed)),
            ("units moved", count(counts.units_moved)),
            ("blocks erased", count(counts.blocks_erased)),
            ("erases", format!("{} to {}", flash.erases.min, flash.erases.max)),
            ("dies busy", spread(&flash.die_busy_ppm)),
            ("channels busy", spread(&flash.channel_busy_ppm)),
            ("link payload", bytes(self.link.payload_bytes)),
            ("link wire", bytes(self.link.wire_bytes)),
        ]);
        for (outcome, requests) in self.run.outcomes.iter().filter(|(name, count)| *name != "ok" && **count > 0) {
            let name = match outcome.as_str() {
                "uncorrectable" => "uncorrectable",
                "read-only" => "read-only",
                _ => "out of range",
            };
            figures.push((name, format!("{} requests", count(*requests))));
        }
        if self.run.delayed > 0 {
            figures.push(("waited for room", format!("{} requests", count(self.run.delayed))));
        }
        figures
    }

    /// Latencies: all, by operation, by what the cache had.
    #[must_use]
    pub fn latency_table(&self) -> Table {
        let mut table = latency_head("Requests");
        latency_row(&mut table, "all", &self.latency.all.latency);
        for (name, group) in self.latency.by_op.iter().chain(&self.latency.by_met) {
            latency_row(&mut table, name, &group.latency);
        }
        table
    }

    /// Where the time went: of all requests, and of those beyond each percentile.
    #[must_use]
    pub fn cause_table(&self) -> Table {
        let mut table = Table::new().left("Mean time in").right("all");
        for (name, _) in self.tails() {
            table = table.right(format!("from {name}"));
        }
        let all = &self.latency.all.mean_ns_by_cause;
        for cause in cause_names() {
            let tails = self.tails().map(|(_, tail)| &tail.mean_ns_by_cause);
            let values: Vec<u64> = std::iter::once(all).chain(tails).map(|causes| causes[cause]).collect();
            if values.iter().any(|value| *value > 0) {
                table.row(std::iter::once(cause.to_owned()).chain(values.into_iter().map(time)));
            }
        }
        table
    }

    fn tails(&self) -> impl Iterator<Item = (&'static str, &super::report::TailPart)> {
        TAILS.iter().filter_map(|(name, _)| Some((*name, self.latency.beyond.get(*name)?)))
    }

    /// What crossed the link.
    #[must_use]
    pub fn link_table(&self) -> Table {
        let mut table = Table::new().left("Link").left("Direction").right("Packets").right("Payload").right("Wire");
        for row in &self.link.counts {
            let figures = [count(row.packets), bytes(row.payload_bytes), bytes(row.wire_bytes)];
            table.row([row.kind.clone(), row.direction.clone()].into_iter().chain(figures));
        }
        table.row(
            ["all".to_owned(), "both".to_owned(), String::new()]
                .into_iter()
                .chain([bytes(self.link.payload_bytes), bytes(self.link.wire_bytes)]),
        );
        table
    }

    /// Each tenant.
    #[must_use]
    pub fn tenant_table(&self) -> Table {
        let mut table = Table::new().left("Tenant").right("Requests").right("Rate").right("Bytes").right("Hits");
        for name in ["Mean", "p50", "p99", "p99.9", "Max"] {
            table = table.right(name);
        }
        for tenant in &self.tenants {
            let latency = &tenant.latency.latency;
            let times = [latency.mean_ns, latency.p50_ns, latency.p99_ns, latency.p99_9_ns, latency.max_ns];
            let first = [
                tenant.name.clone().unwrap_or_else(|| tenant.tenant.to_string()),
                count(latency.requests),
                format_value(tenant.requests_per_second as f64, Unit::PerSecond),
                bytes(tenant.bytes.values().sum()),
                tenant.hit_ppm.map_or_else(|| "–".to_owned(), share),
            ];
            table.row(first.into_iter().chain(times.map(time)));
        }
        table
    }

    /// Everything for people, as text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.headline() {
            text.push_str(&format!("{name:<20} {value}\n"));
        }
        text.push('\n');
        text.push_str(&self.latency_table().to_text());
        text.push('\n');
        text.push_str(&self.cause_table().to_text());
        text.push('\n');
        for (name, value) in self.key_figures() {
            text.push_str(&format!("{name:<20} {value}\n"));
        }
        if self.tenants.len() > 1 {
            text.push('\n');
            text.push_str(&self.tenant_table().to_text());
        }
        for line in &self.device.calibrated {
            text.push_str(&format!("\ncalibrated: {line}"));
        }
        text.truncate(text.trim_end().len());
        text + "\n"
    }

    /// The page as a file.
    #[must_use]
    pub fn to_page(&self) -> String {
        self.to_report().to_html()
    }

    /// The page.
    #[must_use]
    pub fn to_report(&self) -> Report {
        let mut page = Report::new(
            format!("{} on {}", self.workload.name, self.device.profile),
            self.headline().iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(" · "),
        );
        page.facts(self.facts());
        page.heading("Latency").figure(
            "The share of requests that took at most so long, by what they met in the cache.",
            vec![self.distribution_chart()],
        );
        page.table("", self.latency_table());
        page.figure("How latencies are distributed, by operation.", vec![self.histogram_chart()]);
        page.heading("Where the time went").figure(
            "Of all requests, and of those at or beyond each percentile: the share of their time by cause. “queue” is \
             waiting for room in the device.",
            vec![self.cause_chart()],
        );
        page.table("", self.cause_table());
        page.heading("Over time").figure("", self.series_charts());
        page.heading("Flash").figure(
            "Work given to each die, as a share of the time. An erase or a queue of programs is given at once, so that an \
             interval can hold more than it has time.",
            vec![self.die_chart()],
        );
        page.table("", pairs(&self.key_figures()));
        page.heading("Link").figure("", vec![self.link_chart()]).table("", self.link_table());
        page.heading("Tenants").table("", self.tenant_table());
        page.heading("What was assumed").list(self.assumptions());
        page
    }

    fn facts(&self) -> Vec<Fact> {
        let (all, run) = (&self.latency.all.latency, &self.run);
        let bytes_per_second = format_value(run.bytes_per_second as f64, Unit::BytesPerSecond);
        let mut facts = vec![
            Fact::new("Throughput", format_value(run.requests_per_second as f64, Unit::PerSecond), bytes_per_second),
            Fact::new("Median latency", time(all.p50_ns), format!("mean {}", time(all.mean_ns))),
            Fact::new("p99 latency", time(all.p99_ns), format!("p99.9 {}", time(all.p99_9_ns))),
        ];
        if let Some(hits) = self.cache.as_ref().and_then(|cache| cache.hit_ppm) {
            facts.push(Fact::new("Cache hits", share(hits), "of accesses to pages"));
        }
        let moved = format!("{} units moved", count(self.flash.counts.units_moved));
        facts.push(Fact::new("Write amplification", ratio(self.flash.waf_ppm), moved));
        if let Some(failed) = self.run.outcomes.get("ok").and_then(|ok| self.run.requests.checked_sub(*ok)) {
            facts.push(Fact::new("Failed requests", count(failed), "").verdict(failed == 0));
        }
        facts
    }

    fn distribution_chart(&self) -> Chart {
        let x = Axis::new("Latency", Unit::Seconds).log();
        let y = Axis::new("Requests at or below", Unit::Share).from(0.0).to(1.0);
        let mut chart = LineChart::new("Cumulative distribution of latency", x, y);
        let parts: Vec<(&str, &GroupPart)> = self.latency.by_met.iter().map(|(name, part)| (&**name, part)).collect();
        let all = [("all", &self.latency.all)];
        let shown = if parts.len() > 1 { all.into_iter().chain(parts).collect() } else { all.to_vec() };
        for (name, part) in shown {
            chart.series.push(Series::new(name, cumulative(&part.latency)).step());
        }
        chart.into()
    }

    fn histogram_chart(&self) -> Chart {
        let mut chart = Histogram::new("Latency by operation", Axis::new("Latency", Unit::Seconds).log());
        for (name, part) in &self.latency.by_op {
            let latency = &part.latency;
            let bins = latency.buckets.iter().filter(|(low, ..)| *low > 0);
            let percentiles = [("p50", latency.p50_ns), ("p99", latency.p99_ns), ("p99.9", latency.p99_9_ns)];
            chart.series.push(HistogramSeries {
                name: name.clone(),
                bins: bins
                    .map(|(low, high, count)| (*low as f64 / SECOND_NS, (*high + 1) as f64 / SECOND_NS, *count))
                    .collect(),
                percentiles: percentiles.map(|(name, ns)| (name.to_owned(), ns as f64 / SECOND_NS)).to_vec(),
            });
        }
        chart.into()
    }

    fn cause_chart(&self) -> Chart {
        let shares = |causes: &BTreeMap<String, u64>| {
            let all = causes.values().sum::<u64>().max(1) as f64;
            cause_names().map(|cause| causes[cause] as f64 / all)
        };
        let tails = self.tails().map(|(name, tail)| (format!("from {name}"), shares(&tail.mean_ns_by_cause)));
        let all = ("all".to_owned(), shares(&self.latency.all.mean_ns_by_cause));
        let rows: Vec<_> = std::iter::once(all).chain(tails).collect();
        let is_shown = |cause: &usize| rows.iter().any(|(_, shares)| shares[*cause] >= SHARE_SHOWN);
        let shown: Vec<usize> = (0..cause_names().len()).filter(is_shown).collect();
        let names = shown.iter().map(|cause| cause_names()[*cause].to_owned()).collect();
        let mut chart = BarChart::new("Time by cause", Axis::new("Share of the time", Unit::Share), names);
        for (name, shares) in rows {
            chart.groups.push(BarGroup::new(name, shown.iter().map(|cause| shares[*cause]).collect()));
        }
        chart.into()
    }

    fn series_charts(&self) -> Vec<Chart> {
        let series = &self.series;
        let x = || Axis::new("Time", Unit::Seconds).from(0.0).to(self.run.span_ns as f64 / SECOND_NS);
        let rate = |values: &[u64]| self.points(values, |value, seconds| value as f64 / seconds);
        let mut throughput = LineChart::new("Throughput", x(), Axis::new("Bytes", Unit::BytesPerSecond).from(0.0));
        throughput.y2 = Some(Axis::new("Requests", Unit::PerSecond).from(0.0));
        throughput.series.push(Series::new("read", rate(&series.bytes_read)).step());
        throughput.series.push(Series::new("written", rate(&series.bytes_written)).step());
        throughput.series.push(Series::new("requests", rate(&series.requests)).step().right().stroke(Stroke::Dotted));
        let mut latency = LineChart::new("Latency", x(), Axis::new("Latency", Unit::Seconds).log());
        let times = |values: &[u64]| self.points(values, |value, _| positive(value as f64 / SECOND_NS));
        latency.series.push(Series::new("mean", times(&series.latency_mean_ns)).step());
        latency.series.push(Series::new("longest", times(&series.latency_max_ns)).step().stroke(Stroke::Dotted));
        let mut charts = vec![throughput.into(), latency.into()];
        if self.cache.is_some() {
            let mut hits = LineChart::new("Cache hits", x(), Axis::new("Accesses", Unit::Share).from(0.0).to(1.0));
            hits.series.push(Series::new("hits", self.shares(&series.cache_hits, &series.cache_accesses)).step());
            charts.push(hits.into());
        }
        charts.push(self.collection_chart(x(), series));
        charts
    }

    fn collection_chart(&self, x: Axis, series: &SeriesPart) -> Chart {
        let rate = |values: &[u64]| self.points(values, |value, seconds| value as f64 / seconds);
        let moved: Vec<u64> = series.units_moved.iter().map(|units| units * 4096).collect();
        let mut chart = LineChart::new("Garbage collection", x, Axis::new("Bytes", Unit::BytesPerSecond).from(0.0));
        chart.y2 = Some(Axis::new("Write amplification", Unit::Number).from(0.0));
        chart.series.push(Series::new("written to the flash", rate(&series.flash_bytes_written)).step());
        chart.series.push(Series::new("moved", rate(&moved)).step());
        let waf = self.shares(&series.flash_bytes_programmed, &series.flash_bytes_written);
        chart.series.push(Series::new("write amplification", waf).step().right().stroke(Stroke::Dotted));
        chart.into()
    }

    /// A value for each interval, given how long that is in seconds, and the last once more at the end.
    fn points(&self, values: &[u64], of: impl Fn(u64, f64) -> f64) -> Vec<(f64, f64)> {
        let (length, span) = (self.series.interval_ns, self.run.span_ns);
        let intervals = (0..).zip(values).map(|(index, value)| {
            let begin = index * length;
            (begin as f64 / SECOND_NS, of(*value, (span - begin.min(span)).clamp(1, length) as f64 / SECOND_NS))
        });
        let mut points: Vec<(f64, f64)> = intervals.collect();
        points.extend(points.last().map(|(_, value)| (span as f64 / SECOND_NS, *value)));
        points
    }

    fn shares(&self, parts: &[u64], wholes: &[u64]) -> Vec<(f64, f64)> {
        let mut points = self.points(parts, |part, _| part as f64);
        let wholes = wholes.iter().chain(wholes.last());
        for ((_, part), whole) in points.iter_mut().zip(wholes) {
            // Without any there is a gap.
            *part = if *whole == 0 { f64::NAN } else { *part / *whole as f64 };
        }
        points
    }

    fn die_chart(&self) -> Chart {
        let x = Axis::new("Time", Unit::Seconds).from(0.0).to(self.run.span_ns as f64 / SECOND_NS);
        let mut strip = HeatStrip::new("Work of each die", x, Axis::new("Busy", Unit::Share).from(0.0).to(1.0));
        let dies = &self.series.die_busy_ns;
        let per_channel = self.device.dies_per_channel.max(1) as usize;
        let rows: Vec<(String, Vec<u64>)> = if dies.len() > DIE_ROWS_MAX {
            let channels = dies.chunks(per_channel).enumerate();
            channels.map(|(channel, dies)| (format!("ch {channel}"), mean_columns(dies))).collect()
        } else {
            let name = |die: usize| format!("ch {} die {}", die / per_channel, die % per_channel);
            dies.iter().enumerate().map(|(die, busy)| (name(die), busy.clone())).collect()
        };
        for (name, busy) in rows {
            let points = self.points(&busy, |busy, seconds| busy as f64 / SECOND_NS / seconds);
            strip.rows.push(StripRow { name, points });
        }
        strip.into()
    }

    fn link_chart(&self) -> Chart {
        let mut kinds: Vec<&str> = Vec::new();
        for row in &self.link.counts {
            if !kinds.contains(&row.kind.as_str()) {
                kinds.push(&row.kind);
            }
        }
        let names = ["to the device, payload", "to the device, wire", "to the host, payload", "to the host, wire"];
        let mut chart =
            BarChart::new("Bytes on the link", Axis::new("Bytes", Unit::Bytes), names.map(str::to_owned).to_vec());
        for kind in kinds {
            let of = |direction: &str| {
                let row = self.link.counts.iter().find(|row| row.kind == kind && row.direction == direction);
                row.map_or([0.0; 2], |row| [row.payload_bytes as f64, row.wire_bytes as f64])
            };
            chart.groups.push(BarGroup::new(kind, [of("downstream"), of("upstream")].concat()));
        }
        chart.into()
    }

    fn assumptions(&self) -> Vec<String> {
        let device = &self.device;
        let mut lines = vec![format!("profile {}, seed {}", device.profile, device.seed)];
        lines.extend(device.set.iter().map(|(key, value)| format!("set: {key} = {value}")));
        lines.extend(device.calibrated.iter().map(|line| format!("calibrated: {line}")));
        lines
    }
}

/// A logarithmic axis has no zero: there is a gap.
fn positive(value: f64) -> f64 {
    if value > 0.0 { value } else { f64::NAN }
}

fn latency_head(first: &str) -> Table {
    let mut table = Table::new().left("Latency").right(first);
    for name in ["Mean", "p50", "p90", "p99", "p99.9", "p99.99", "Max"] {
        table = table.right(name);
    }
    table
}

fn latency_row(table: &mut Table, name: &str, latency: &Distribution) {
    let Distribution { mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns, .. } = *latency;
    let times = [mean_ns, p50_ns, p90_ns, p99_ns, p99_9_ns, p99_99_ns, max_ns].map(time);
    table.row([name.to_owned(), count(latency.requests)].into_iter().chain(times));
}

fn pairs(figures: &[(&'static str, String)]) -> Table {
    let mut table = Table::new().left("Figure").right("Value");
    for (name, value) in figures {
        table.row([(*name).to_owned(), value.clone()]);
    }
    table
}

fn spread(ppm: &[u64]) -> String {
    let (Some(low), Some(high)) = (ppm.iter().min(), ppm.iter().max()) else { return "–".to_owned() };
    let mean = ppm.iter().sum::<u64>() / ppm.len() as u64;
    format!("{} ({} to {})", share(mean), share(*low), share(*high))
}

fn cumulative(latency: &Distribution) -> Vec<(f64, f64)> {
    let (all, mut below) = (latency.requests.max(1) as f64, 0);
    let mut points = Vec::with_capacity(latency.buckets.len() + 1);
    points.extend(latency.buckets.first().map(|(low, ..)| ((*low).max(1) as f64 / SECOND_NS, 0.0)));
    for (_, high, count) in &latency.buckets {
        below += count;
        points.push(((*high).clamp(1, latency.max_ns.max(1)) as f64 / SECOND_NS, below as f64 / all));
    }
    points
}

fn mean_columns(rows: &[Vec<u64>]) -> Vec<u64> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let sum = |column: usize| rows.iter().filter_map(|row| row.get(column)).sum::<u64>();
    (0..columns).map(|column| sum(column) / rows.len() as u64).collect()
}
