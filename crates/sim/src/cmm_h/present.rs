//! The experiment's results as CSV, JSON, charts, tables and sentences.

use osier_report::{Axis, Chart, LineChart, Report, Series, Stroke, Table, Unit, stack};
use serde::Serialize;

use super::{ALTERNATIVES, CHASE_SCALE, Case, CmmHParams, CmmHReport, Outcome, Point, bandwidths, cases, latencies};

/// What was not measured, and was assumed.
pub const ASSUMED: [&str; 5] = [
    "Bandwidth: 64 threads, one a core of the Xeon 6710E of section 5.1, each load the lines of its share of the working set \
     in order, round and round; what is shown is whole rounds after the cache has settled. (The file does not say how MLC was \
     called.)",
    "Latency: four threads wait for each load. Of the loads 97.5% go to a working set that is in the cache, a third of its \
     size, and the others to pages that are not. (The file does not say in which order MIO went through its buffer.)",
    "The flash is full, and nothing is written meanwhile.",
    "The way that loads take in the host (its caches, its prefetchers) is not in the model.",
    "Capacity, cache and working sets are scaled down alike; threads, queues and times are not.",
];

/// What was fitted to the measured points. A point that something was fitted to is no prediction.
pub const CALIBRATED: [&str; 5] = [
    "The time of a load that hits: 883 ns, the third quartile of the pointer chase. Quicker loads were answered in the host.",
    "Lines that a thread has under way, 5: the bandwidth at 0.04 of the cache. 320 lines every 883 ns are 23 GB/s, and eight \
     lanes of PCIe 5.0 carry 23.7.",
    "Frames that a working set can use, 17 of each set of 32: the bandwidth at 0.67 of the cache, where all of it would fit.",
    "Random replacement, and 6 misses under way: the bandwidth at 1.33 and 2.67 of the cache.",
    "The array times of the three page types, and the share of misses in the chase (2 to 3% give the same percentiles): its \
     98th, 99th and 99.5th percentile.",
];

/// What the model does not account for.
pub const UNEXPLAINED: [&str; 5] = [
    "Why only half of the cache serves a working set; Cylon's authors assume prefetching or metadata.",
    "Which policy the device has. Section 2 of Cylon has LRU: as shown beside, that keeps nothing of a loop, and the \
     bandwidth would not fall any more from 1.33 to 2.67 of the cache. Three points do not tell random replacement from LIFO \
     with half a cache.",
    "The first decline, 4% from 0.04 to 0.33 of the cache: the model has none.",
    "Latencies below the third quartile: they are the host's.",
    "Latencies above the 99.5th percentile, which follow from waiting for dies and read retries alone and come out too short.",
];

/// What a modelled figure is worth beside a measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Something was fitted to it.
    Calibrated,
    /// It follows.
    Follows,
    /// It is not the device's.
    Host,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Calibrated => "calibrated",
            Role::Follows => "follows",
            Role::Host => "the host's",
        }
    }

    /// Of a bandwidth, by the working set in hundred-thousandths of the cache.
    fn of_bandwidth(x: u64) -> Role {
        if matches!(x, 4_000 | 67_000 | 133_000 | 267_000) { Role::Calibrated } else { Role::Follows }
    }

    /// Of a latency, by the quantile in hundred-thousandths.
    fn of_latency(x: u64) -> Role {
        match x {
            75_000 | 98_000 | 99_000 | 99_500 => Role::Calibrated,
            0..75_000 => Role::Host,
            _ => Role::Follows,
        }
    }
}

/// A measured point and what the model has for it, in the unit of the series, in tenths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// What was measured.
    pub measured: Point,
    /// What the model has.
    pub modelled: u64,
    /// What that is worth.
    pub role: Role,
}

impl Row {
    /// The difference in thousandths of what was measured, rounded to zero.
    #[must_use]
    pub fn difference_permille(&self) -> i64 {
        let measured = self.measured.value.max(1) as i64;
        (self.modelled as i64 - measured) * 1000 / measured
    }

    fn difference(&self) -> String {
        let permille = self.difference_permille();
        let sign = if permille < 0 { "-" } else { "+" };
        format!("{sign}{}.{}%", permille.abs() / 10, permille.abs() % 10)
    }
}

/// The report for programs.
#[derive(Serialize)]
struct Json {
    experiment: &'static str,
    scale: u32,
    seed: u64,
    assumed: [&'static str; 5],
    calibrated: [&'static str; 5],
    unexplained: [&'static str; 5],
    bandwidth: Vec<JsonRow>,
    latency: Vec<JsonRow>,
}

#[derive(Serialize)]
struct JsonRow {
    /// Working set by cache, or quantile, in hundred-thousandths.
    x_e5: u64,
    /// Tenths of MB/s, or of nanoseconds.
    measured_tenths: u64,
    modelled_tenths: u64,
    difference_permille: i64,
    role: Role,
}

impl From<&Row> for JsonRow {
    fn from(row: &Row) -> JsonRow {
        JsonRow {
            x_e5: row.measured.x,
            measured_tenths: row.measured.value,
            modelled_tenths: row.modelled,
            difference_permille: row.difference_permille(),
            role: row.role,
        }
    }
}

impl CmmHReport {
    /// The report of all cases, in whatever order they ran.
    ///
    /// # Panics
    /// If a case is missing, which is a bug of the caller.
    #[must_use]
    pub fn new(params: CmmHParams, outcomes: &[Outcome]) -> CmmHReport {
        let of = |case: Case| outcomes.iter().find(|outcome| outcome.case == case).expect("every case was run");
        CmmHReport { params, outcomes: cases().into_iter().map(|case| of(case).clone()).collect() }
    }

    fn outcome(&self, case: Case) -> Option<&Outcome> {
        self.outcomes.iter().find(|outcome| outcome.case == case)
    }

    /// Tenths of MB/s of a point of the bandwidths, under the profile's policy or another.
    fn bandwidth(&self, point: usize, eviction: Option<&'static str>) -> Option<u64> {
        Some(self.outcome(Case::Bandwidth(point, eviction))?.bytes_per_second / 100_000)
    }

    /// Bandwidths, measured and modelled.
    #[must_use]
    pub fn bandwidth_rows(&self) -> Vec<Row> {
        let row = |(index, measured): (usize, Point)| Row {
            measured,
            modelled: self.bandwidth(index, None).unwrap_or(0),
            role: Role::of_bandwidth(measured.x),
        };
        bandwidths().into_iter().enumerate().map(row).collect()
    }

    /// Latencies, measured and modelled.
    #[must_use]
    pub fn latency_rows(&self) -> Vec<Row> {
        let outcome = self.outcome(Case::Latency);
        let modelled = |x: u64| outcome.map_or(0, |outcome| outcome.latency.percentile((x * 10) as u32));
        let row =
            |measured: Point| Row { measured, modelled: modelled(measured.x) * 10, role: Role::of_latency(measured.x) };
        latencies().into_iter().map(row).collect()
    }

    /// Every point. Integers and fixed decimals throughout, so that the same run gives the same bytes.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = "series,x,measured,modelled,unit,difference_permille,role\n".to_owned();
        for (series, unit, rows) in
            [("read bandwidth", "MB/s", self.bandwidth_rows()), ("pointer chase", "ns", self.latency_rows())]
        {
            for row in rows {
                csv.push_str(&format!(
                    "{series},{},{},{},{unit},{},{}\n",
                    decimal(row.measured.x, 5),
                    decimal(row.measured.value, 1),
                    decimal(row.modelled, 1),
                    row.difference_permille(),
                    row.role.name(),
                ));
            }
        }
        csv
    }

    /// The report for programs: every figure an integer.
    #[must_use]
    pub fn to_json(&self) -> impl Serialize {
        Json {
            experiment: "cmm-h",
            scale: self.params.scale,
            seed: self.params.seed,
            assumed: ASSUMED,
            calibrated: CALIBRATED,
            unexplained: UNEXPLAINED,
            bandwidth: self.bandwidth_rows().iter().map(JsonRow::from).collect(),
            latency: self.latency_rows().iter().map(JsonRow::from).collect(),
        }
    }

    /// Bandwidths beside the measured ones, and what other policies would give.
    #[must_use]
    pub fn bandwidth_table(&self) -> Table {
        let mut table = Table::new()
            .left("Working set, of the cache")
            .right("Measured, MB/s")
            .right("Modelled")
            .right("Difference")
            .left("Worth");
        for policy in ALTERNATIVES {
            table = table.right(format!("With {policy}"));
        }
        for (index, row) in self.bandwidth_rows().into_iter().enumerate() {
            let mut cells = vec![
                decimal(row.measured.x / 1000, 2),
                decimal(row.measured.value, 1),
                decimal(row.modelled, 1),
                row.difference(),
                row.role.name().to_owned(),
            ];
            let others = ALTERNATIVES.map(|policy| self.bandwidth(index, Some(policy)));
            cells.extend(others.map(|other| other.map_or_else(|| "-".to_owned(), |tenths| decimal(tenths, 1))));
            table.row(cells);
        }
        table
    }

    /// Latencies beside the measured ones.
    #[must_use]
    pub fn latency_table(&self) -> Table {
        let mut table =
            Table::new().left("Quantile").right("Measured, ns").right("Modelled").right("Difference").left("Worth");
        for row in self.latency_rows() {
            let difference = if row.role == Role::Host { "-".to_owned() } else { row.difference() };
            table.row([
                decimal(row.measured.x, 5),
                (row.measured.value / 10).to_string(),
                (row.modelled / 10).to_string(),
                difference,
                row.role.name().to_owned(),
            ]);
        }
        table
    }

    /// Bandwidth by working set, and the distribution of latencies.
    #[must_use]
    pub fn figure(&self) -> Vec<Chart> {
        let chart = |title, x, y, rows: &[Row], scale: fn(u64) -> f64| {
            let points = |value: fn(&Row) -> u64| {
                rows.iter().map(|row| (row.measured.x as f64 / 1e5, scale(value(row)))).collect::<Vec<_>>()
            };
            let mut chart = LineChart::new(title, x, y);
            chart.series.push(Series::new("measured", points(|row| row.measured.value)));
            chart.series.push(Series::new("modelled", points(|row| row.modelled)).stroke(Stroke::Dotted));
            Chart::from(chart)
        };
        let bandwidth = chart(
            "Bandwidth of loads",
            Axis::new("Working set, of the cache", Unit::Number).log(),
            Axis::new("Bandwidth", Unit::BytesPerSecond).log(),
            &self.bandwidth_rows(),
            |tenths| tenths as f64 * 1e5,
        );
        let latency = chart(
            "Latencies of a pointer chase",
            Axis::new("Quantile", Unit::Share),
            Axis::new("Latency", Unit::Seconds).log(),
            &self.latency_rows(),
            |tenths| tenths as f64 * 1e-10,
        );
        vec![bandwidth, latency]
    }

    /// The figure as an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        stack(&self.figure())
    }

    /// The largest differences of what follows from the calibration, in thousandths: of bandwidths and of latencies.
    #[must_use]
    pub fn residual_permille(&self) -> (i64, i64) {
        let largest = |rows: Vec<Row>, role: Role| {
            let of_role = rows.into_iter().filter(|row| row.role == role);
            of_role.map(|row| row.difference_permille()).max_by_key(|permille| permille.abs()).unwrap_or(0)
        };
        (largest(self.bandwidth_rows(), Role::Follows), largest(self.latency_rows(), Role::Follows))
    }

    /// What was assumed, what was fitted, what follows, what is unexplained; a line each.
    #[must_use]
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let (bandwidth, latency) = self.residual_permille();
        let percent = |permille: i64| format!("{:+.1}%", permille as f64 / 10.0);
        let follows = format!(
            "What nothing was fitted to is off by {} at most in bandwidth and by {} in latency.",
            percent(bandwidth),
            percent(latency)
        );
        let mut lines: Vec<_> = ASSUMED.map(|line| ("assumed", line.to_owned())).into();
        lines.extend(CALIBRATED.map(|line| ("calibrated", line.to_owned())));
        lines.push(("follows", follows));
        lines.extend(UNEXPLAINED.map(|line| ("unexplained", line.to_owned())));
        lines
    }

    /// The same as lines to print.
    #[must_use]
    pub fn provenance_text(&self) -> String {
        self.provenance().into_iter().map(|(kind, line)| format!("{kind:<11} {line}\n")).collect()
    }

    /// Everything on one page.
    #[must_use]
    pub fn to_report(&self) -> Report {
        let CmmHParams { scale, seed } = self.params;
        let subtitle =
            format!("bandwidth at 1/{scale} of the capacity, latencies at 1/{}, seed {seed}", scale.min(CHASE_SCALE));
        let mut report = Report::new("Samsung CMM-H, measured and modelled", subtitle);
        report.heading("Bandwidth and latency");
        report.figure("Measured by the authors of Cylon (FAST 2026), beside the profile cmm-h.", self.figure());
        report.table("Loads by 64 threads", self.bandwidth_table());
        report.table("A pointer chase by four threads", self.latency_table());
        report.heading("What was assumed, what was calibrated, what follows");
        report.list(self.provenance().into_iter().map(|(kind, line)| format!("{kind}: {line}")));
        report
    }
}

/// A fixed-point number as text.
fn decimal(parts: u64, digits: usize) -> String {
    let one = 10_u64.pow(digits as u32);
    format!("{}.{:0digits$}", parts / one, parts % one)
}
