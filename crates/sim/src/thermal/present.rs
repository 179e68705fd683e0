//! The experiment's results as CSV, charts, tables and sentences.

use osier_report::{
    Axis, BarChart, BarGroup, Cell, Chart, Fact, HeatStrip, Level, LineChart, Marker, Report, Series, Side as AxisSide,
    StripRow, Stroke, Table, Tone, Unit, format_value, stack,
};
use osier_sched::Side;

use super::{ACTORS, Point, Run, ThermalReport};
use crate::HOST_SOURCES;

/// The head of the CSV.
const CSV_HEAD: &str = "run,profile,policy,seconds,bytes_per_second,millicelsius,speed_permille,actors_on_device,\
                        host_cpu_permille,rate_permille\n";

/// A ratio that a run may differ by from what its profile predicts, in permille.
pub const RATIO_ERROR_MAX_PERMILLE: u64 = 150;

/// What adaptive placement must hold over device-fixed placement, in permille.
pub const RATIO_MIN_PERMILLE: u64 = 1800;

impl ThermalReport {
    /// Every point of every curve. Integers throughout, so that the same run gives the same bytes.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = CSV_HEAD.to_owned();
        for run in &self.runs {
            // Labels hold commas.
            let head = format!("\"{}\",{},{}", run.case.label, run.case.profile, run.case.policy);
            for point in &run.points {
                let seconds = format!("{}.{:03}", point.at_ns / 1_000_000_000, point.at_ns / 1_000_000 % 1000);
                csv.push_str(&format!(
                    "{head},{seconds},{},{},{},{},{},{}\n",
                    point.bytes_per_second,
                    point.millicelsius,
                    point.speed_permille,
                    point.on_device,
                    point.host_cpu_permille,
                    point.rate_permille
                ));
            }
        }
        csv
    }

    /// The figure: throughput above, temperature below.
    #[must_use]
    pub fn figure(&self) -> Vec<Chart> {
        let time = || Axis::new("Time", Unit::Seconds).from(0.0).to(f64::from(self.params.seconds));
        let rate_axis = Axis::new("Throughput", Unit::BytesPerSecond).from(0.0);
        let mut rate = LineChart::new("Sustained write throughput", time(), rate_axis);
        let mut heat = LineChart::new("Device temperature", time(), Axis::new("Temperature", Unit::Celsius));
        for run in &self.runs {
            let styled = |series: Series| series.colour(self.colour(run)).stroke(run.stroke());
            rate.series.push(styled(series(run, |point| point.bytes_per_second as f64)));
            heat.series.push(styled(series(run, |point| f64::from(point.millicelsius) / 1000.0)));
        }
        heat.height = 240;
        vec![rate.into(), heat.into()]
    }

    /// A colour for each profile; how the line is drawn then tells the policy.
    fn colour(&self, run: &Run) -> usize {
        let mut profiles: Vec<&str> = Vec::new();
        for other in &self.runs {
            if !profiles.contains(&other.case.profile) {
                profiles.push(other.case.profile);
            }
        }
        profiles.iter().position(|profile| *profile == run.case.profile).unwrap_or(0)
    }

    /// The figure as an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        stack(&self.figure())
    }

    /// The summary of every run.
    #[must_use]
    pub fn table(&self) -> Table {
        let mut table = Table::new()
            .left("Run")
            .right("Mean")
            .right("Settled")
            .right("Predicted")
            .right("Peak")
            .right("Throttled after")
            .right("Throttled")
            .right("Moves up / down");
        for run in &self.runs {
            let summary = &run.summary;
            let seconds = |ns: u64| format_value(ns as f64 / 1e9, Unit::Seconds);
            table.row([
                run.case.label.to_owned(),
                rate(summary.bytes_per_second),
                rate(summary.settled_bytes_per_second),
                rate(run.predicted_bytes_per_second()),
                format_value(f64::from(summary.peak_millicelsius) / 1000.0, Unit::Celsius),
                summary.throttled_at_ns.map_or_else(|| "never".to_owned(), seconds),
                format_value(summary.throttled_ns as f64 / 1e9 / f64::from(self.params.seconds), Unit::Share),
                format!("{} / {}", summary.uploads, summary.offloads),
            ]);
        }
        table
    }

    /// Adaptive over device-fixed placement, a row for each profile that has both.
    #[must_use]
    pub fn ratio_table(&self) -> Table {
        let mut table = Table::new().left("Profile").right("From").right("Simulated").right("Predicted").right("Apart");
        for ratio in self.ratios() {
            let apart = format!("{:.1}%", ratio.error_permille() as f64 / 10.0);
            table.row([
                Cell::from(ratio.profile),
                Cell::from(format_value(ratio.from_ns as f64 / 1e9, Unit::Seconds)),
                Cell::from(times(ratio.measured_permille)),
                Cell::from(times(ratio.predicted_permille)),
                Cell::verdict(ratio.error_permille() <= RATIO_ERROR_MAX_PERMILLE, apart),
            ]);
        }
        table
    }

    /// For every profile: what was fitted to a published figure, and what follows from the model.
    #[must_use]
    pub fn provenance(&self) -> Vec<(String, Vec<String>, Vec<String>)> {
        let mut profiles: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
        for run in &self.runs {
            let name = run.case.profile;
            if !profiles.iter().any(|(known, ..)| known == name) {
                let fitted = run.calibration.iter().map(|one| format!("{}: {}", one.parameter, one.figure)).collect();
                profiles.push((name.to_owned(), fitted, Vec::new()));
            }
            let (.., follows) = profiles.iter_mut().find(|(known, ..)| known == name).expect("just added");
            follows.push(run.what_follows());
        }
        profiles
    }

    /// The same as lines to print, calibrated before derived.
    #[must_use]
    pub fn provenance_text(&self) -> String {
        let mut text = String::new();
        for (profile, fitted, follows) in self.provenance() {
            text.push_str(&format!("{profile}\n"));
            for line in fitted {
                text.push_str(&format!("  calibrated  {line}\n"));
            }
            for line in follows {
                text.push_str(&format!("  follows     {line}\n"));
            }
        }
        text
    }

    fn provenance_table(&self) -> Table {
        let mut table = Table::new().left("Profile").left("Kind").left("What");
        for (profile, fitted, follows) in self.provenance() {
            for line in fitted {
                table.row([profile.as_str(), "calibrated", &line]);
            }
            for line in follows {
                table.row([profile.as_str(), "follows", &line]);
            }
        }
        table
    }

    /// Everything on one page.
    #[must_use]
    pub fn to_report(&self) -> Report {
        let mut report = Report::new("Sustained writes under heat", self.subtitle());
        report.facts(self.facts());
        report.heading("Throughput and temperature");
        report.figure(
            "As in WIO (arXiv 2604.02442), Figure 1: throughput above, device temperature below. Dashed: all actors on \
             the device for good.",
            self.figure(),
        );
        report.table("", self.table());
        for run in self.runs.iter().filter(|run| !run.moves.is_empty()) {
            report.figure(run.moves_caption(), vec![run.placement_chart(self.params.seconds)]);
        }
        report.figure("", vec![self.heat_strip(), self.settled_bars()]);
        report.heading("Adaptive over device-fixed placement");
        if self.ratios().is_empty() {
            report.note(Tone::Plain, "No device-fixed run throttled long enough to compare with.");
        } else {
            report.text(
                "Mean throughput from the moment at which the device-fixed run throttled first, beside the ratio of \
                 the steady states that the profile predicts.",
            );
            report.table("", self.ratio_table());
        }
        report.heading("What was calibrated, and what follows");
        report.text(
            "What was fitted to a published figure is not a prediction of that figure. Everything else in the curves \
             follows from the model.",
        );
        report.table("", self.provenance_table());
        report.heading("The host, and how it was simulated");
        report.list(HOST_SOURCES.iter().map(|(what, source)| format!("{what}: {source}")));
        report.list(self.method());
        report
    }

    fn subtitle(&self) -> String {
        let params = &self.params;
        format!(
            "{} of virtual time, rates divided by {} and energies multiplied, thermal time scale {}, seed {}",
            format_value(f64::from(params.seconds), Unit::Seconds),
            params.rate_divisor,
            params.thermal_time_scale,
            params.seed
        )
    }

    fn facts(&self) -> Vec<Fact> {
        let mut facts: Vec<Fact> = self
            .ratios()
            .into_iter()
            .map(|ratio| {
                let note = format!("the profile predicts {}", times(ratio.predicted_permille));
                let fact = Fact::new(
                    format!("Adaptive over device-fixed, {}", ratio.profile),
                    times(ratio.measured_permille),
                    note,
                );
                fact.verdict(ratio.error_permille() <= RATIO_ERROR_MAX_PERMILLE)
            })
            .collect();
        for run in self.runs.iter().filter(|run| run.summary.throttled_at_ns.is_none()) {
            let note =
                format!("peak {}", format_value(f64::from(run.summary.peak_millicelsius) / 1000.0, Unit::Celsius));
            facts.push(Fact::new(
                format!("{}: never throttled", run.case.label),
                rate(run.summary.bytes_per_second),
                note,
            ));
        }
        facts
    }

    fn method(&self) -> Vec<String> {
        let params = &self.params;
        let (low, high) = params.stored_permille;
        vec![
            format!(
                "Requests of {} in sequence, {} in flight, through {}.",
                format_value(f64::from(params.request_bytes), Unit::Bytes),
                params.queue_depth,
                ACTORS.map(|(name, _)| name).join(", ")
            ),
            format!("A thousand raw bytes are stored as {low} to {high}, drawn for each request."),
            format!(
                "An actor that is moved rests for {}.",
                format_value(params.switch_pause_ns as f64 / 1e9, Unit::Seconds)
            ),
            "The device is the device core: write buffer, flash layer, thermal model and throttle. Its media hold no \
             bytes."
                .to_owned(),
        ]
    }

    fn heat_strip(&self) -> Chart {
        let time = Axis::new("Time", Unit::Seconds).from(0.0).to(f64::from(self.params.seconds));
        let mut strip = HeatStrip::new("Temperature", time, Axis::new("Temperature", Unit::Celsius));
        for run in &self.runs {
            let points = series(run, |point| f64::from(point.millicelsius) / 1000.0).points;
            strip.rows.push(StripRow { name: run.case.label.to_owned(), points });
        }
        strip.into()
    }

    fn settled_bars(&self) -> Chart {
        let names = vec!["simulated".to_owned(), "predicted by the profile".to_owned()];
        let axis = Axis::new("Throughput", Unit::BytesPerSecond);
        let mut bars = BarChart::new("Throughput in the last third of the time", axis, names);
        for run in &self.runs {
            let values = [run.summary.settled_bytes_per_second, run.predicted_bytes_per_second()];
            bars.groups.push(BarGroup::new(run.case.label, values.map(|value| value as f64).to_vec()));
        }
        bars.into()
    }
}

impl Run {
    /// What the profile predicts for this curve. A policy that moves actors is predicted to hold
    /// what the host placement holds.
    #[must_use]
    pub fn predicted_bytes_per_second(&self) -> u64 {
        match self.case.policy {
            "pinned-device" => self.predicted_device.write_bytes_per_second,
            _ => self.predicted_host.write_bytes_per_second,
        }
    }

    fn stroke(&self) -> Stroke {
        if self.case.policy == "pinned-device" { Stroke::Dashed } else { Stroke::Solid }
    }

    fn what_follows(&self) -> String {
        let summary = &self.summary;
        let throttle = match summary.throttled_at_ns {
            Some(at) => format!("throttles after {}", format_value(at as f64 / 1e9, Unit::Seconds)),
            None => "never throttles".to_owned(),
        };
        format!(
            "{}: {throttle}, peak {}, settles at {}, {} moves up and {} down, write amplification {:.2}",
            self.case.label,
            format_value(f64::from(summary.peak_millicelsius) / 1000.0, Unit::Celsius),
            rate(summary.settled_bytes_per_second),
            summary.uploads,
            summary.offloads,
            summary.write_amplification_permille as f64 / 1000.0,
        )
    }

    fn moves_caption(&self) -> String {
        format!("{}: where the actors are, and the temperature that moves them.", self.case.label)
    }

    fn placement_chart(&self, seconds: u32) -> Chart {
        let time = Axis::new("Time", Unit::Seconds).from(0.0).to(f64::from(seconds));
        let actors = Axis::new("Actors on the device", Unit::Count).from(0.0).to(ACTORS.len() as f64);
        let mut chart = LineChart::new(format!("{}: placement", self.case.label), time, actors);
        chart.height = 170;
        chart.y2 = Some(Axis::new("Temperature", Unit::Celsius));
        chart.series.push(series(self, |point| f64::from(point.on_device)).step().colour(0));
        chart.series[0].name = "actors on the device".to_owned();
        let mut heat = series(self, |point| f64::from(point.millicelsius) / 1000.0);
        heat.name = "temperature".to_owned();
        chart.series.push(heat.right().stroke(Stroke::Dotted).colour(1));
        // The moves of a whole pipeline lie epochs apart: one marker for each run of them.
        let mut last: Option<(u64, Side)> = None;
        for moved in &self.moves {
            let near = last.is_some_and(|(at, to)| to == moved.to && moved.at.0 - at < 1_000_000_000);
            if !near {
                let label = if moved.to == Side::Host { "upload" } else { "offload" };
                chart.markers.push(Marker { x: moved.at.0 as f64 / 1e9, label: label.to_owned() });
            }
            last = Some((moved.at.0, moved.to));
        }
        for (celsius, label) in self.thresholds() {
            chart.levels.push(Level { side: AxisSide::Right, y: celsius, label });
        }
        chart.into()
    }

    /// The temperatures at which the policy acts.
    fn thresholds(&self) -> Vec<(f64, String)> {
        let scheduler = &self.scheduler;
        [("upload", scheduler.upload_millicelsius), ("offload below", scheduler.offload_below_millicelsius)]
            .into_iter()
            .map(|(name, millicelsius)| {
                let celsius = f64::from(millicelsius) / 1000.0;
                (celsius, format!("{name} {}", format_value(celsius, Unit::Celsius)))
            })
            .collect()
    }
}

fn series(run: &Run, value: impl Fn(&Point) -> f64) -> Series {
    // A point covers the time up to it and is drawn at its end.
    let points = run.points.iter().map(|point| (point.at_ns as f64 / 1e9, value(point))).collect();
    Series::new(run.case.label, points)
}

fn rate(bytes_per_second: u64) -> String {
    format_value(bytes_per_second as f64, Unit::BytesPerSecond)
}

fn times(permille: u64) -> String {
    format!("{:.2}×", permille as f64 / 1000.0)
}
