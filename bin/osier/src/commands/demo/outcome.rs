//! What came of the runs: one table, one comparison, one JSON document.

use osier_device::Profile;
use osier_report::{Cell, Table, Unit, format_value};
use osier_runtime::Session;
use osier_runtime::bootstrap::{JobReport, Progress};
use osier_runtime::control::{Gauge, MoveTimes};
use serde::Serialize;

/// One run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Its name.
    pub label: &'static str,
    /// What the shared region outlives.
    pub survival: String,
    /// Ten times a second.
    pub series: Vec<Progress>,
    /// Every migration.
    pub moves: Vec<MoveTimes>,
    /// What the client counted.
    pub report: JobReport,
    /// Whether it ran to its end.
    pub finished: bool,
    /// When it began to serve, in nanoseconds of the monotonic clock.
    pub began_ns: u64,
    /// Domains that died.
    pub deaths: usize,
    /// Bytes stored for the bytes written, in permille.
    pub stored_permille: u64,
}

impl Outcome {
    /// A run that has not begun.
    pub fn new(label: &'static str, survival: String) -> Outcome {
        Outcome { label, survival, ..Outcome::default() }
    }

    /// Takes what the session knows at the end.
    pub fn finish(&mut self, session: &Session, report: &JobReport) {
        let control = &session.setup().control;
        self.moves = control.move_log(0);
        self.report = report.clone();
        self.finished = true;
        let (host, stored) = (control.gauge(Gauge::HostBytes), control.gauge(Gauge::StoredBytes));
        self.stored_permille = (stored * 1000).checked_div(host).unwrap_or(0);
    }

    /// Bytes a second over the whole of writing.
    pub fn throughput(&self) -> f64 {
        rate(self.report.tally.written_bytes, self.report.write_ns)
    }

    /// Bytes a second from `from_ns` after the start of writing on.
    pub fn throughput_after(&self, from_ns: u64) -> Option<f64> {
        let writes: Vec<&Progress> = self.series.iter().filter(|p| p.phase == "write").collect();
        let begin = writes.iter().find(|p| p.at_ns >= self.began_ns + from_ns)?;
        let end = writes.last()?;
        // A host that was recovered meanwhile counts from nothing: then there is no such rate.
        let bytes = end.bytes.checked_sub(begin.bytes)?;
        (end.at_ns > begin.at_ns).then(|| rate(bytes, end.at_ns - begin.at_ns))
    }

    /// When the device first ran slower than at full speed, after the start.
    pub fn throttled_after(&self) -> Option<u64> {
        let first = self.series.iter().find(|p| p.phase == "write" && p.speed_permille < 1000)?;
        Some(first.at_ns.saturating_sub(self.began_ns))
    }

    /// Checkpoint to first request served, sorted, in nanoseconds.
    pub fn switches(&self) -> Vec<u64> {
        let mut times: Vec<u64> = self.moves.iter().map(|m| m.first_served.saturating_sub(m.ready)).collect();
        times.sort_unstable();
        times
    }

    /// The longest gap and what took most of it, in words.
    pub fn gap_sentence(&self) -> String {
        let gap = &self.report.gap;
        let (cause, ns) = gap.cause();
        format!(
            "{}: the longest gap between completions, {} in \"{}\" at {} % of the device's speed; of it {}: {cause}",
            self.label,
            seconds(gap.ns),
            gap.phase,
            gap.speed_permille / 10,
            seconds(ns),
        )
    }

    /// Nothing lost, repeated, out of order, failed or wrong, and every file read back right.
    pub fn is_right(&self) -> bool {
        let tally = &self.report.tally;
        let [right, all] = self.report.files;
        let faults = tally.failed + tally.lost + tally.repeated + tally.out_of_order + tally.wrong_blocks;
        self.finished && faults == 0 && right == all && all > 0
    }
}

fn rate(bytes: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { bytes as f64 * 1e9 / ns as f64 }
}

/// The value at a share of a sorted list.
pub fn at_share(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0)
}

fn seconds(ns: u64) -> String {
    format_value(ns as f64 / 1e9, Unit::Seconds)
}

/// Adaptive against fixed, once the fixed run is throttled; and what the profile says that should be.
#[derive(Debug, Serialize)]
pub struct Prediction {
    /// Bytes a second of the first run while the fixed one is throttled.
    pub adaptive_bytes_per_second: Option<f64>,
    /// Bytes a second of the fixed run while it is throttled.
    pub fixed_bytes_per_second: Option<f64>,
    /// Their ratio.
    pub measured: Option<f64>,
    /// The ratio of the profile's steady states.
    pub predicted: f64,
    /// Measured over predicted.
    pub deviation: Option<f64>,
}

impl Prediction {
    /// Compares the runs with the profile's steady states for the compression that was seen.
    pub fn of(profile: &Profile, outcomes: &[Outcome]) -> Prediction {
        use osier_device::{Placement, Workload};
        let stored = outcomes.iter().map(|o| o.stored_permille).max().unwrap_or(1000);
        let workload = Workload::pipeline(stored.clamp(1, 2000) as u32);
        let host = profile.steady_state_of(Placement::Host, &workload).write_bytes_per_second;
        let device = profile.steady_state_of(Placement::Device, &workload).write_bytes_per_second;
        let throttled = outcomes.get(1).and_then(Outcome::throttled_after);
        let during = |index: usize| outcomes.get(index).zip(throttled).and_then(|(o, from)| o.throughput_after(from));
        let (adaptive, fixed) = (during(0), during(1));
        let predicted = host as f64 / device.max(1) as f64;
        let measured = adaptive.zip(fixed).filter(|(_, f)| *f > 0.0).map(|(a, f)| a / f);
        Prediction {
            adaptive_bytes_per_second: adaptive,
            fixed_bytes_per_second: fixed,
            measured,
            predicted,
            deviation: measured.map(|m| m / predicted - 1.0),
        }
    }

    /// In words.
    pub fn sentence(&self) -> String {
        let Some(measured) = self.measured else {
            return format!(
                "the device-fixed run was not throttled, so there is nothing to compare (the profile predicts {:.2}x)",
                self.predicted
            );
        };
        format!(
            "once the device-fixed run is throttled, the first run writes {measured:.2}x as much; \
             the profile predicts {:.2}x ({:+.0}%)",
            self.predicted,
            self.deviation.unwrap_or(0.0) * 100.0
        )
    }
}

/// One table, a column a run.
pub fn table(outcomes: &[Outcome]) -> Table {
    let mut table = Table::new().left("");
    for outcome in outcomes {
        table = table.right(outcome.label);
    }
    let mut row = |name: &str, cell: &dyn Fn(&Outcome) -> Cell| {
        let cells = std::iter::once(Cell::from(name)).chain(outcomes.iter().map(cell));
        table.row(cells.collect::<Vec<_>>());
    };
    row("written", &|o| format_value(o.report.tally.written_bytes as f64, Unit::Bytes).into());
    row("throughput", &|o| format_value(o.throughput(), Unit::BytesPerSecond).into());
    row("stored for each byte written", &|o| format!("{:.3}", o.stored_permille as f64 / 1000.0).into());
    for (index, name) in ["write p50", "write p99", "write p99.9"].into_iter().enumerate() {
        row(name, &|o| seconds(o.report.tally.write_ns[index]).into());
    }
    row("migrations", &|o| o.moves.len().to_string().into());
    row("switch p50", &|o| if o.moves.is_empty() { "-".into() } else { seconds(at_share(&o.switches(), 0.5)).into() });
    row("switch p99", &|o| if o.moves.is_empty() { "-".into() } else { seconds(at_share(&o.switches(), 0.99)).into() });
    row("longest gap between completions", &|o| seconds(o.report.tally.longest_gap_ns).into());
    row("- the host's process had work and did not run", &|o| seconds(o.report.gap.host.absent_ns).into());
    row("- the device's process had work and did not run", &|o| seconds(o.report.gap.device.absent_ns).into());
    row("- the device waiting for its model", &|o| seconds(o.report.gap.device.due_ns).into());
    row("- the device at its media", &|o| seconds(o.report.gap.device.media_ns + o.report.gap.device.sync_ns).into());
    row("requests lost", &|o| zero(o.report.tally.lost));
    row("requests repeated", &|o| zero(o.report.tally.repeated));
    row("requests out of order", &|o| zero(o.report.tally.out_of_order));
    row("requests failed", &|o| zero(o.report.tally.failed));
    row("blocks read back wrong", &|o| zero(o.report.tally.wrong_blocks));
    row("files whose SHA-256 reads back right", &|o| {
        let [right, all] = o.report.files;
        Cell::verdict(right == all && all > 0, format!("{right} of {all}"))
    });
    table
}

fn zero(count: u64) -> Cell {
    Cell::verdict(count == 0, count.to_string())
}

/// Everything, for programs.
pub fn json(outcomes: &[Outcome], prediction: &Prediction, report: &std::path::Path) -> String {
    let run = |o: &Outcome| {
        let switches = o.switches();
        serde_json::json!({
            "run": o.label,
            "throughput_bytes_per_second": o.throughput(),
            "stored_permille": o.stored_permille,
            "migrations": o.moves.len(),
            "switch_ns": {"p50": at_share(&switches, 0.5), "p99": at_share(&switches, 0.99)},
            "deaths": o.deaths,
            "right": o.is_right(),
            "gap_cause": {"what": o.report.gap.cause().0, "ns": o.report.gap.cause().1},
            "report": o.report,
        })
    };
    let runs: Vec<_> = outcomes.iter().map(run).collect();
    serde_json::json!({ "runs": runs, "comparison": prediction, "report_path": report.display().to_string() })
        .to_string()
}
