//! The experiment's results as CSV, JSON, charts, tables and sentences.

use osier_report::{Axis, Chart, LineChart, Report, Series, Stroke, Table, Unit, stack};
use serde::Serialize;

use super::{ALTERNATIVES, CHASE_SCALE, Case, CmmHParams, CmmHReport, Outcome, Point, bandwidths, cases, latencies};

/// What was not measured, and was assumed.
pub const ASSUMED: [&str; 7] = [
    "Bandwidth: 64 threads, one a core of the Xeon 6710E of section 5.1, each load the lines of its share of the working set \
     in order, round and round; what is shown is whole rounds after the cache has settled. (The file does not say how MLC was \
     called.)",
    "Latency: four threads wait for each load. Of the loads 97.5% go to a working set that is in the cache, a third of its \
     size, and the others to pages that are not. (The file does not say in which order MIO went through its buffer; from 2 to \
     3% the same quantiles come out.)",
    "The host fetches lines in pairs: of the loads of the chase that hit, each second one finds its line on the way, for a \
     part of its time that is equally likely. Its caches and its other prefetchers are not in the model.",
    "What came last leaves the cache first. Of three policies LRU, whose bandwidth hardly falls from 1.33 to 2.67 of the cache, \
     and random replacement, fitted to the same points and a fifth too high at 2.67, were left aside because of that point: \
     the choice saw it, no value did.",
    "TLC whose pages are sensed once, twice and four times.",
    "The flash is full, and nothing is written meanwhile.",
    "Capacity, cache and working sets are scaled down alike; threads, queues and times are not.",
];

/// What was fitted to the measured points. A point that something was fitted to is no prediction.
pub const CALIBRATED: [&str; 5] = [
    "The time of a load that hits, 771 ns: the median of the pointer chase.",
    "Lines that a thread has under way, 4: the bandwidth at 0.04 of the cache. 256 lines every 771 ns are 21 GB/s.",
    "Frames that a working set can use, 30 of each set of 64: the bandwidth at 0.67 of the cache, where all of it would fit.",
    "Misses under way, 6: the bandwidth at 1.33 of the cache.",
    "The time of a sense: the 99th percentile of the pointer chase.",
];

/// What the model does not account for.
pub const UNEXPLAINED: [&str; 5] = [
    "Why only half of the cache serves a working set; Cylon's authors assume prefetching or metadata.",
    "Which policy the device has. Section 2 of Cylon has LRU or MRU insertion; LRU, shown beside, keeps nothing of a loop.",
    "The first decline, 4% from 0.04 to 0.33 of the cache: the model has none.",
    "The quickest tenth of the loads, and the jitter of those that take longest without a miss: they are the host's.",
    "Why a share of the loads misses in a working set that the cache holds.",
];

/// A prediction is to be within so many thousandths of what was measured.
pub const AIM_PERMILLE: i64 = 150;

/// What a modelled figure is worth beside a measured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Something was fitted to it.
    Calibrated,
    /// It follows.
    Follows,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Calibrated => "calibrated",
            Role::Follows => "follows",
        }
    }

    /// Of a bandwidth, by the working set in hundred-thousandths of the cache.
    fn of_bandwidth(x: u64) -> Role {
        if matches!(x, 4_000 | 67_000 | 133_000) { Role::Calibrated } else { Role::Follows }
    }

    /// Of a latency, by the quantile in hundred-thousandths.
    fn of_latency(x: u64) -> Role {
        if matches!(x, 50_000 | 99_000) { Role::Calibrated } else { Role::Follows }
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

    pub(crate) fn difference(&self) -> String {
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
    assumed: [&'static str; 7],
    calibrated: [&'static str; 5],
    unexplained: [&'static str; 5],
    bandwidth: Vec<JsonRow>,
    latency: Vec<JsonRow>,
}

#[derive(Serialize)]
pub(crate) struct JsonRow {
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

    /// The report of the profile alone, without what other policies give.
    ///
    /// # Panics
    /// If a case is missing, which is a bug of the caller.
    #[must_use]
    pub(crate) fn of_profile(params: CmmHParams, outcomes: &[Outcome]) -> CmmHReport {
        let own = cases().into_iter().filter(|case| !matches!(case, Case::Bandwidth(_, Some(_))));
        let of = |case: Case| outcomes.iter().find(|outcome| outcome.case == case).expect("every case was run");
        CmmHReport { params, outcomes: own.map(|case| of(case).clone()).collect() }
    }

    pub(crate) fn params(&self) -> CmmHParams {
        self.params
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
            table.row([
                decimal(row.measured.x, 5),
                (row.measured.value / 10).to_string(),
                (row.modelled / 10).to_string(),
                row.difference(),
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

    /// Of the points that nothing was fitted to, those that the model has within the aim, and all.
    #[must_use]
    pub fn within_aim(&self) -> (usize, usize) {
        let rows = [self.bandwidth_rows(), self.latency_rows()].concat();
        let follow: Vec<Row> = rows.into_iter().filter(|row| row.role == Role::Follows).collect();
        let within = follow.iter().filter(|row| row.difference_permille().abs() <= AIM_PERMILLE).count();
        (within, follow.len())
    }

    /// What was assumed, what was fitted, what follows, what is unexplained; a line each.
    #[must_use]
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let (bandwidth, latency) = self.residual_permille();
        let percent = |permille: i64| format!("{:+.1}%", permille as f64 / 10.0);
        let within = self.within_aim();
        let follows = format!(
            "What nothing was fitted to is off by {} at most in bandwidth and by {} in latency; {} of {} points are within {}%.",
            percent(bandwidth),
            percent(latency),
            within.0,
            within.1,
            AIM_PERMILLE / 10
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
pub(crate) fn decimal(parts: u64, digits: usize) -> String {
    let one = 10_u64.pow(digits as u32);
    format!("{}.{:0digits$}", parts / one, parts % one)
}
