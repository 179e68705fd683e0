//! What `osier trace info` says.

use osier_report::{Unit, format_value};
use osier_sim::Op;
use osier_sim::trace::{Compression, Counts, FaultKind, Format, PAGE_BYTES, Summary};
use serde_json::{Value, json};

use crate::output::Table;
use crate::units::format_bytes;

/// Characters of the longest bar of the histogram.
const BAR_MAX: u64 = 40;

/// A trace that was read to its end.
#[derive(Debug)]
pub struct Shown<'a> {
    /// How the file is compressed.
    pub compression: Compression,
    /// As what it was read.
    pub format: Format,
    /// What its lines are.
    pub counts: &'a Counts,
    /// What its requests are.
    pub summary: &'a Summary,
}

impl Shown<'_> {
    /// For programs.
    pub fn to_json(&self) -> Value {
        let (counts, summary) = (self.counts, self.summary);
        let ops: Vec<Value> = self
            .ops()
            .map(|op| json!({ "op": op.name(), "requests": summary.requests(op), "bytes": summary.bytes(op) }))
            .collect();
        let sizes: Vec<Value> = summary
            .sizes()
            .map(|(low, high, requests)| json!({ "bytes_min": low, "bytes_max": high, "requests": requests }))
            .collect();
        let bad: Vec<Value> = FaultKind::ALL
            .iter()
            .map(|kind| json!({ "kind": kind.name(), "lines": counts.faults[*kind as usize] }))
            .collect();
        let shown: Vec<Value> = counts
            .shown
            .iter()
            .map(|bad| json!({ "number": bad.number, "reason": bad.fault.to_string(), "text": bad.text }))
            .collect();
        json!({
            "format": self.format.name(),
            "compression": self.compression.name(),
            "lines": counts.lines,
            "skipped": counts.skipped,
            "requests": summary.requests_all(),
            "bytes": summary.bytes_all(),
            "ops": ops,
            "tenants": summary.tenants(),
            "footprint_pages": summary.footprint_pages(),
            "footprint_exceeded": summary.is_footprint_exceeded(),
            "page_bytes": PAGE_BYTES,
            "address_end": summary.address_end(),
            "span_ns": self.timed(summary.span_ns()),
            "requests_per_second": self.timed(summary.rate_millihertz()).flatten().map(|rate| rate as f64 / 1000.0),
            "unsorted": counts.unsorted,
            "sizes": sizes,
            "bad_lines": counts.bad(),
            "bad_kinds": bad,
            "bad_first": shown,
        })
    }

    /// For people.
    pub fn to_text(&self) -> String {
        let (counts, summary) = (self.counts, self.summary);
        let pages = summary.footprint_pages();
        let footprint = format!(
            "{}{} pages of 4 KiB ({})",
            if summary.is_footprint_exceeded() { "more than " } else { "" },
            count(pages),
            format_bytes(pages.saturating_mul(PAGE_BYTES.into())),
        );
        let none = || "the format has none".to_owned();
        let span = self.timed(summary.span_ns()).map_or_else(none, seconds);
        let rate = summary.rate_millihertz().map(|rate| format_value(rate as f64 / 1000.0, Unit::PerSecond));
        let mut lines = vec![
            ("format", self.format.name().to_owned()),
            ("compression", self.compression.name().to_owned()),
            ("requests", count(summary.requests_all())),
        ];
        for op in self.ops() {
            let bytes = format_bytes(summary.bytes(op));
            lines.push((op.name(), format!("{} ({bytes})", count(summary.requests(op)))));
        }
        lines.extend([
            ("tenants", summary.tenants().to_string()),
            ("footprint", footprint),
            ("addresses end at", format!("{} ({})", summary.address_end(), format_bytes(summary.address_end()))),
            ("time span", span),
            ("arrival rate", self.timed(rate).flatten().unwrap_or_else(|| "-".to_owned())),
            ("out of order, sorted", count(counts.unsorted)),
            (if self.format.unit() == "line" { "lines skipped" } else { "records skipped" }, count(counts.skipped)),
            (if self.format.unit() == "line" { "bad lines" } else { "bad records" }, count(counts.bad())),
        ]);
        let mut text: String = lines.iter().map(|(name, value)| format!("{name:<22}{value}\n")).collect();
        text += &self.bad_lines();
        text + "\n" + &self.sizes()
    }

    fn bad_lines(&self) -> String {
        let counts = self.counts;
        let kinds = FaultKind::ALL.iter().filter(|kind| counts.faults[**kind as usize] > 0);
        let kinds = kinds.map(|kind| format!("  {:<20}{}\n", kind.name(), count(counts.faults[*kind as usize])));
        let shown = counts.shown.iter().map(|bad| format!("  {} {bad}\n", self.format.unit()));
        kinds.chain(shown).collect()
    }

    fn sizes(&self) -> String {
        let most = self.summary.sizes().map(|(_, _, requests)| requests).max().unwrap_or(1);
        let mut table = Table::new(&["SIZE", "REQUESTS", ""]);
        for (low, _, requests) in self.summary.sizes() {
            let length = (u128::from(requests) * u128::from(BAR_MAX)).div_ceil(most.into()) as usize;
            table.row(vec![format!("{} and more", format_bytes(low)), count(requests), "#".repeat(length)]);
        }
        table.text()
    }

    fn ops(&self) -> impl Iterator<Item = Op> {
        Op::ALL.into_iter().filter(|op| self.summary.requests(*op) > 0)
    }

    /// A figure about time, if the format has times.
    fn timed<T>(&self, figure: T) -> Option<T> {
        self.format.is_timed().then_some(figure)
    }
}

fn count(number: u64) -> String {
    format_value(number as f64, Unit::Count)
}

fn seconds(ns: u64) -> String {
    format_value(ns as f64 / 1e9, Unit::Seconds)
}
