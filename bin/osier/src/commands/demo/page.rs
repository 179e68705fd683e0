//! The report: one page with the table, the plots and what was assumed.

use osier_device::Profile;
use osier_report::{Axis, Chart, Fact, LineChart, Marker, Report, Series, Stroke, Unit, format_value};

use super::DemoArgs;
use super::outcome::{Outcome, Prediction, at_share, table};

/// The page's title, by which a report is told from one of another kind.
pub fn title(args: &DemoArgs) -> &'static str {
    if args.skip_fixed { "Storage actors that move: one run" } else { "Storage actors that move" }
}

/// The page's HTML.
pub fn build(args: &DemoArgs, profile: &Profile, outcomes: &[Outcome], prediction: &Prediction) -> String {
    let mut report =
        Report::new(title(args), format!("{} for {} seconds a run", profile.device.description, args.seconds));
    report.facts(facts(outcomes, prediction));
    report.text(prediction.sentence());
    report.figure("Throughput and modelled temperature; a line marks each migration.", charts(outcomes));
    report.table("", table(outcomes));
    report.list(outcomes.iter().map(Outcome::gap_sentence).collect::<Vec<_>>());
    report.heading("What was assumed");
    report.list(assumptions(args, profile, outcomes));
    report.to_html()
}

fn facts(outcomes: &[Outcome], prediction: &Prediction) -> Vec<Fact> {
    let Some(first) = outcomes.first() else { return Vec::new() };
    let right = outcomes.iter().all(Outcome::is_right);
    let switches = first.switches();
    let mut facts = vec![
        Fact::new("every byte", if right { "right" } else { "NOT right" }, "SHA-256 of each file, read back")
            .verdict(right),
        Fact::new("throughput", format_value(first.throughput(), Unit::BytesPerSecond), first.label),
        Fact::new("migrations", first.moves.len().to_string(), "traffic never stopped"),
    ];
    if !switches.is_empty() {
        let p99 = format_value(at_share(&switches, 0.99) as f64 / 1e9, Unit::Seconds);
        facts.push(Fact::new("switch p99", p99, "checkpoint to first request served"));
    }
    if let Some(measured) = prediction.measured {
        facts.push(Fact::new(
            "against device-fixed",
            format!("{measured:.2}x"),
            format!("predicted {:.2}x", prediction.predicted),
        ));
    }
    facts
}

fn charts(outcomes: &[Outcome]) -> Vec<Chart> {
    let seconds = |outcome: &Outcome, at_ns: u64| at_ns.saturating_sub(outcome.began_ns) as f64 / 1e9;
    let mut throughput = LineChart::new(
        "Throughput",
        Axis::new("time", Unit::Seconds),
        Axis::new("written", Unit::BytesPerSecond).from(0.0),
    );
    let mut temperature =
        LineChart::new("Temperature", Axis::new("time", Unit::Seconds), Axis::new("device", Unit::Celsius));
    for (index, outcome) in outcomes.iter().enumerate() {
        let writes: Vec<_> = outcome.series.iter().filter(|p| p.phase == "write").collect();
        let rates = writes.windows(2).map(|w| {
            let elapsed = (w[1].at_ns - w[0].at_ns).max(1) as f64 / 1e9;
            // A host that was recovered counts from nothing.
            let bytes = w[1].bytes.checked_sub(w[0].bytes).unwrap_or(w[1].bytes);
            (seconds(outcome, w[1].at_ns), bytes as f64 / elapsed)
        });
        let heat = writes.iter().map(|p| (seconds(outcome, p.at_ns), p.millicelsius as f64 / 1000.0));
        let stroke = if index == 0 { Stroke::Solid } else { Stroke::Dashed };
        throughput.series.push(Series::new(outcome.label, rates.collect()).stroke(stroke).colour(index));
        temperature.series.push(Series::new(outcome.label, heat.collect()).stroke(stroke).colour(index));
        if index == 0 {
            let marker = |m: &osier_runtime::control::MoveTimes| Marker {
                x: seconds(outcome, m.routed),
                label: (if m.to_device { "to device" } else { "to host" }).to_owned(),
            };
            // One marker a burst: the actors of a pipeline move one an epoch, right after each other.
            let mut last = f64::MIN;
            let bursts = outcome.moves.iter().map(marker).filter(|m| {
                let first = m.x - last > 0.2;
                last = m.x;
                first
            });
            throughput.markers.extend(bursts);
        }
    }
    vec![Chart::Line(throughput), Chart::Line(temperature)]
}

fn assumptions(args: &DemoArgs, profile: &Profile, outcomes: &[Outcome]) -> Vec<String> {
    let mut items = vec![
        format!(
            "The profile's rates are divided by {} and its energies multiplied by as much, so that the heat is the same \
             at a load that this machine can make.",
            args.rate_divisor
        ),
        format!("The temperature changes {} times faster than it would; the scheduler's ticks are real.", args.thermal_time_scale),
        "On the device a stage takes the time that the profile gives its cores, less what throttling takes; on the host \
         it takes as long as this machine needs."
            .to_owned(),
    ];
    items.push(
        "The longest gap between completions is one of real time. Each process keeps an account of its time; the rows \
         below the gap are of it, and the two processes' rows may overlap. Where a process had work and did not run, other \
         programs or the machine below the kernel had its processor, or a disk held it. What the device waits for its model \
         is the profile's: link, controller, flash and stages, slower while the heat throttles them."
            .to_owned(),
    );
    items.extend(outcomes.first().map(|o| format!("Completed data lies in the shared region: it {}.", o.survival)));
    if profile.persistence.pmr_persistent {
        items.push("The profile declares that region persistent, as the paper's hardware does: flush does not wait for the media.".to_owned());
    }
    items.extend(
        profile.calibration.iter().map(|c| format!("Calibrated, not predicted: {} from {}.", c.parameter, c.figure)),
    );
    items
}
