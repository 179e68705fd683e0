//! The experiment's results as CSV, JSON, charts, tables and sentences.

use osier_report::{Axis, Chart, LineChart, Report, Series, Stroke, Table, Unit, stack};
use serde::Serialize;

use super::{CylonLatencyReport, THREADS, WORKING_SETS, cylon_bandwidths};
use crate::cmm_h::{JsonRow, Point, Row, decimal, latencies, modelled_series};

/// Quantiles that are shown, in millionths.
pub const QUANTILES: [u32; 8] = [100_000, 250_000, 500_000, 750_000, 900_000, 990_000, 999_000, 999_900];

/// What the chase assumes beside what the published points do.
pub const ASSUMED: [&str; 2] = [
    "Pointers: four threads, each with one load under way; each pointer leads to any line of the working set alike. What hits \
     then follows from the size of the cache alone.",
    "The latencies of the pointers are the device's: the host's caches, which hide a part, are not in the model.",
];

/// A share in hundred-thousandths, with two digits behind the point.
pub(super) fn hundredths(x: u64) -> String {
    decimal(x / 1000, 2)
}

#[derive(Serialize)]
struct Json {
    experiment: &'static str,
    scale: u32,
    seed: u64,
    provenance: Vec<JsonLine>,
    bandwidth: Vec<JsonBandwidth>,
    measured_chase: Vec<JsonRow>,
    chases: Vec<JsonChase>,
}

#[derive(Serialize)]
struct JsonLine {
    kind: &'static str,
    text: String,
}

#[derive(Serialize)]
struct JsonBandwidth {
    #[serde(flatten)]
    row: JsonRow,
    /// The published emulator, in tenths of MB/s.
    cylon_tenths: u64,
    cylon_difference_permille: i64,
}

#[derive(Serialize)]
struct JsonChase {
    /// Working set by cache, in hundred-thousandths.
    x_e5: u64,
    pages: u64,
    loads: u64,
    hit_ppm: u64,
    hit_ppm_expected: u64,
    bytes_per_second: u64,
    /// Quantile in millionths, and nanoseconds.
    quantiles: Vec<(u32, u64)>,
}

impl CylonLatencyReport {
    /// The measured bandwidths with the model's, and the published emulator's beside.
    fn bandwidths(&self) -> Vec<(Row, Row)> {
        let cylon = cylon_bandwidths();
        let beside = |row: Row| {
            let published = cylon.iter().find(|point| point.x == row.measured.x).map_or(0, |point| point.value);
            (row, Row { modelled: published, ..row })
        };
        self.published().bandwidth_rows().into_iter().map(beside).collect()
    }

    /// Bandwidths: measured, modelled, and those of the published emulator.
    #[must_use]
    pub fn bandwidth_table(&self) -> Table {
        let mut table = Table::new()
            .left("Working set, of the cache")
            .right("CMM-H measured, MB/s")
            .right("Modelled")
            .right("Difference")
            .left("Worth")
            .right("Cylon published")
            .right("Its difference");
        for (row, cylon) in self.bandwidths() {
            table.row([
                hundredths(row.measured.x),
                decimal(row.measured.value, 1),
                decimal(row.modelled, 1),
                row.difference(),
                row.role.name().to_owned(),
                decimal(cylon.modelled, 1),
                cylon.difference(),
            ]);
        }
        table
    }

    /// The chases: what hits, the bandwidth, and quantiles of the latency.
    #[must_use]
    pub fn chase_table(&self) -> Table {
        let mut table = Table::new()
            .left("Working set, of the cache")
            .right("Hits, %")
            .right("Closed form, %")
            .right("MB/s of lines");
        for quantile in QUANTILES {
            table = table.right(format!("p{}, ns", percent_of(quantile)));
        }
        for chase in self.chases() {
            let mut cells = vec![
                hundredths(WORKING_SETS[chase.index]),
                decimal(chase.hit_ppm / 100, 2),
                decimal(chase.hit_ppm_expected / 100, 2),
                decimal(chase.bytes_per_second / 100_000, 1),
            ];
            cells.extend(QUANTILES.map(|quantile| chase.latency.percentile(quantile).to_string()));
            table.row(cells);
        }
        table
    }

    /// Every point. Integers and fixed decimals throughout, so that the same run gives the same bytes.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = self.published().to_csv();
        let mut line = |series: &str, x: u64, value: &str, unit: &str| {
            csv.push_str(&format!("{series},{},,{value},{unit},,follows\n", decimal(x, 5)));
        };
        for chase in self.chases() {
            let x = WORKING_SETS[chase.index];
            line("hit ratio of pointers", x, &decimal(chase.hit_ppm, 6), "share");
            line("bandwidth of pointers", x, &decimal(chase.bytes_per_second / 100_000, 1), "MB/s");
            for quantile in QUANTILES {
                let series = format!("latency of pointers p{}", percent_of(quantile));
                line(&series, x, &chase.latency.percentile(quantile).to_string(), "ns");
            }
        }
        for Point { x, value } in cylon_bandwidths() {
            let published = decimal(value, 1);
            csv.push_str(&format!("cylon read bandwidth,{},{published},,MB/s,,published\n", decimal(x, 5)));
        }
        csv
    }

    /// The report for programs: every figure an integer.
    #[must_use]
    pub fn to_json(&self) -> impl Serialize {
        let bandwidth = self.bandwidths().into_iter().map(|(row, cylon)| JsonBandwidth {
            row: JsonRow::from(&row),
            cylon_tenths: cylon.modelled,
            cylon_difference_permille: cylon.difference_permille(),
        });
        let chases = self.chases().iter().map(|chase| JsonChase {
            x_e5: WORKING_SETS[chase.index],
            pages: chase.pages,
            loads: chase.loads,
            hit_ppm: chase.hit_ppm,
            hit_ppm_expected: chase.hit_ppm_expected,
            bytes_per_second: chase.bytes_per_second,
            quantiles: QUANTILES.map(|quantile| (quantile, chase.latency.percentile(quantile))).into(),
        });
        let params = self.published().params();
        Json {
            experiment: "cylon-latency",
            scale: params.scale,
            seed: params.seed,
            provenance: self.provenance().into_iter().map(|(kind, text)| JsonLine { kind, text }).collect(),
            bandwidth: bandwidth.collect(),
            measured_chase: self.published().latency_rows().iter().map(JsonRow::from).collect(),
            chases: chases.collect(),
        }
    }

    /// What was assumed, what was fitted, what was in view, what follows, what is unexplained; a line each.
    #[must_use]
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let mut lines: Vec<_> = ASSUMED.map(|line| ("assumed", line.to_owned())).into();
        lines.extend(self.published().provenance());
        lines
    }

    /// The same as lines to print.
    #[must_use]
    pub fn provenance_text(&self) -> String {
        self.provenance().into_iter().map(|(kind, line)| format!("{kind:<11} {line}\n")).collect()
    }

    /// Bandwidth by working set, and the distributions of latencies.
    #[must_use]
    pub fn figure(&self) -> Vec<Chart> {
        let rows = self.bandwidths();
        let line = |value: fn(&(Row, Row)) -> u64| -> Vec<(f64, f64)> {
            rows.iter().map(|row| (row.0.measured.x as f64 / 1e5, value(row) as f64 * 1e5)).collect()
        };
        let mut bandwidth = LineChart::new(
            "Bandwidth of loads",
            Axis::new("Working set, of the cache", Unit::Number).log(),
            Axis::new("Bandwidth", Unit::BytesPerSecond).log(),
        );
        bandwidth.series.push(Series::new("CMM-H, measured", line(|row| row.0.measured.value)));
        bandwidth.series.push(Series::new("Cylon, published", line(|row| row.1.modelled)));
        bandwidth.series.extend(modelled_series(&self.published().bandwidth_rows(), |tenths| tenths as f64 * 1e5));
        let mut latency = LineChart::new(
            "Latencies of pointers",
            Axis::new("Latency", Unit::Seconds).log(),
            Axis::new("Share of the loads", Unit::Share),
        );
        for chase in self.chases() {
            let name = format!("modelled, {} of the cache", hundredths(WORKING_SETS[chase.index]));
            let of =
                |permille: u32| (chase.latency.percentile(permille * 1000) as f64 * 1e-9, f64::from(permille) / 1000.0);
            latency.series.push(Series::new(name, (1..1000).map(of).collect()).stroke(Stroke::Dotted));
        }
        let measured = latencies().into_iter().map(|point| (point.value as f64 * 1e-10, point.x as f64 / 1e5));
        latency.series.push(Series::new("CMM-H, measured, 0.33 of the cache", measured.collect()));
        vec![Chart::from(bandwidth), Chart::from(latency)]
    }

    /// The figure as an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        stack(&self.figure())
    }

    /// Everything on one page.
    #[must_use]
    pub fn to_report(&self) -> Report {
        let params = self.published().params();
        let subtitle = format!("virtual time, 1/{} of the capacity, seed {}", params.scale, params.seed);
        let mut report = Report::new("A CXL SSD across the size of its cache", subtitle);
        report.heading("Bandwidth and latency");
        report.figure("The profile cmm-h beside what Cylon's authors measured and published.", self.figure());
        report.table("Loads by 64 threads", self.bandwidth_table());
        report.table("The chase that was measured, 0.33 of the cache", self.published().latency_table());
        report.table(format!("Pointers followed by {THREADS} threads, modelled"), self.chase_table());
        report.heading("What was assumed, what was calibrated, what was in view, what follows");
        report.list(self.provenance().into_iter().map(|(kind, line)| format!("{kind}: {line}")));
        report
    }
}

/// A quantile in millionths as a percentage without idle zeros.
fn percent_of(quantile: u32) -> String {
    let text = decimal(u64::from(quantile), 4);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
