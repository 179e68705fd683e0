//! The experiment's results as CSV, JSON, charts, tables and sentences.

use osier_report::{Axis, Chart, LineChart, Report, Series, Stroke, Table, Unit, stack};
use serde::Serialize;

use super::{ALTERNATIVES, CHASE_SCALE, Case, CmmHParams, CmmHReport, Outcome, Point, bandwidths, cases, latencies};

/// What was not measured, and was assumed. A point that a choice was made in view of is no prediction.
pub const ASSUMED: [&str; 7] = [
    "Bandwidth: 64 threads, one a core of the Xeon 6710E of section 5.1, each load the lines of its share of the working set \
     in order, round and round; what is shown is whole rounds after the cache has settled. (The file does not say how MLC was \
     called.)",
    "Latency: four threads wait for each load. Of the loads 97.5% go to a working set that is in the cache, a third of its \
     size, and the others to pages that are not: the measured 95th percentile is a hit, the 98th a miss. (The file does not \
     say in which order MIO went through its buffer; from 2 to 3% the same quantiles come out.)",
    "The host fetches lines in pairs: of the loads of the chase that hit, each second one finds its line on the way, for a \
     part of its time that is equally likely. Its caches and its other prefetchers are not in the model. This was chosen with \
     the measured latencies in view.",
    "What came last leaves the cache first: chosen of three policies with the bandwidth at 2.67 of the cache in view. LRU, \
     whose bandwidth hardly falls from 1.33 to 2.67, and random replacement, fitted to the same points and a fifth too high \
     at 2.67, were left aside because of it.",
    "TLC whose pages are sensed once, twice and four times: chosen with the measured latencies in view.",
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
    /// A value was fitted to it.
    Calibrated,
    /// Neither fitted nor predicted: what the model is made of was chosen with this figure in view.
    InView,
    /// A prediction: no value and no choice depends on it.
    Follows,
}

impl Role {
    /// Each of them, as legends have them.
    pub const ALL: [Role; 3] = [Role::Calibrated, Role::InView, Role::Follows];

    /// As reports have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Role::Calibrated => "calibrated",
            Role::InView => "in-view",
            Role::Follows => "follows",
        }
    }

    /// Of a bandwidth, by the working set in hundred-thousandths of the cache. What is not named is no prediction.
    #[must_use]
    pub fn of_bandwidth(x: u64) -> Role {
        match x {
            4_000 | 67_000 | 133_000 => Role::Calibrated,
            8_000 | 17_000 | 33_000 => Role::Follows,
            _ => Role::InView,
        }
    }

    /// Of a latency, by the quantile in hundred-thousandths. None is a prediction.
    fn of_latency(x: u64) -> Role {
        if matches!(x, 50_000 | 99_000) { Role::Calibrated } else { Role::InView }
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
            let measured = rows.iter().map(|row| (row.measured.x as f64 / 1e5, scale(row.measured.value)));
            let mut chart = LineChart::new(title, x, y);
            chart.series.push(Series::new("measured", measured.collect()));
            chart.series.extend(modelled_series(rows, scale));
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

    /// Of the predictions, those that are within the aim, and all.
    #[must_use]
    pub fn within_aim(&self) -> (usize, usize) {
        within_aim(&[self.bandwidth_rows(), self.latency_rows()].concat(), Role::Follows)
    }

    /// What was assumed, what was fitted, what was in view, what follows, what is unexplained; a line each.
    #[must_use]
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let (bandwidths, latencies) = (self.bandwidth_rows(), self.latency_rows());
        let ((seen, all_seen), (within, all)) = (within_aim(&latencies, Role::InView), self.within_aim());
        let aim = AIM_PERMILLE / 10;
        let in_view = format!(
            "The bandwidth at 2.67 of the cache, off by {}, and all latencies that nothing was fitted to, off by {} at most; \
             {seen} of these {all_seen} are within {aim}%. The model was chosen with them in view: they are no predictions.",
            largest_difference(&bandwidths, Role::InView),
            largest_difference(&latencies, Role::InView),
        );
        let follows = format!(
            "The bandwidths at 0.08, 0.17 and 0.33 of the cache, off by {} at most; {within} of {all} are within {aim}%. Every load \
             hits there, as at 0.04, which was fitted: they predict no more than that the bandwidth stays.",
            largest_difference(&bandwidths, Role::Follows),
        );
        let mut lines: Vec<_> = ASSUMED.map(|line| ("assumed", line.to_owned())).into();
        lines.extend(CALIBRATED.map(|line| (Role::Calibrated.name(), line.to_owned())));
        lines.push((Role::InView.name(), in_view));
        lines.push((Role::Follows.name(), follows));
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
        report.heading("What was assumed, what was calibrated, what was in view, what follows");
        report.list(self.provenance().into_iter().map(|(kind, line)| format!("{kind}: {line}")));
        report
    }
}

/// Of the points of a role, those that are within the aim, and all.
fn within_aim(rows: &[Row], role: Role) -> (usize, usize) {
    let of_role = || rows.iter().filter(|row| row.role == role);
    let within = of_role().filter(|row| row.difference_permille().abs() <= AIM_PERMILLE).count();
    (within, of_role().count())
}

/// The difference of the point of a role that is off by most.
fn largest_difference(rows: &[Row], role: Role) -> String {
    let of_role = rows.iter().filter(|row| row.role == role);
    of_role.max_by_key(|row| row.difference_permille().abs()).map_or_else(|| "-".to_owned(), Row::difference)
}

/// Modelled points as dots, in a series for each role that they have.
pub(crate) fn modelled_series(rows: &[Row], scale: fn(u64) -> f64) -> Vec<Series> {
    let of_role = |role: Role| -> Series {
        let dot = |row: &Row| {
            let x = row.measured.x as f64 / 1e5;
            // A gap behind each point: a line from one to the next would go through points of another role.
            [(x, scale(row.modelled)), (x, f64::NAN)]
        };
        let points = rows.iter().filter(|row| row.role == role).flat_map(dot).collect();
        Series::new(format!("modelled, {}", role.name()), points).stroke(Stroke::Dotted)
    };
    Role::ALL.map(of_role).into_iter().filter(|series| !series.points.is_empty()).collect()
}

/// A fixed-point number as text.
pub(crate) fn decimal(parts: u64, digits: usize) -> String {
    let one = 10_u64.pow(digits as u32);
    format!("{}.{:0digits$}", parts / one, parts % one)
}
