//! Every kind of chart and block in one page, with made-up data: for looking at.
//!
//! `cargo run -p osier-report --example gallery > /tmp/gallery.html`

use osier_report::{
    Axis, BarChart, BarGroup, Cell, Chart, Fact, HeatStrip, Histogram, HistogramSeries, Level, LineChart, Marker,
    Report, Series, Side, StripRow, Stroke, Table, Tone, Unit,
};

type Points = Vec<(f64, f64)>;

/// Throughput and temperature of a run that throttles at `limit`, by seconds.
fn run(limit: f64, rise: f64) -> (Points, Points) {
    let (mut heat, mut slow) = (40.0, false);
    let (mut rates, mut temperatures) = (Vec::new(), Vec::new());
    for tick in 0..6000 {
        let second = f64::from(tick) / 10.0;
        slow = heat >= limit || (slow && heat > limit - 6.0);
        let rate = if slow { 0.95e9 } else { 1.9e9 };
        let target = 35.0 + rise * rate / 1.9e9;
        heat += (target - heat) / 1500.0;
        rates.push((second, rate + 2e7 * (second * 3.0).sin()));
        temperatures.push((second, heat));
    }
    (rates, temperatures)
}

fn time() -> Axis {
    Axis::new("Time", Unit::Seconds)
}

fn thermal() -> Vec<Chart> {
    let runs = [("device-fixed", run(70.0, 66.0)), ("adaptive", run(200.0, 33.0)), ("scaleflux", run(65.0, 50.0))];
    let mut rate = LineChart::new("Throughput", time(), Axis::new("Throughput", Unit::BytesPerSecond).from(0.0));
    let mut heat = LineChart::new("Temperature", time(), Axis::new("Temperature", Unit::Celsius));
    for (name, (rates, temperatures)) in runs {
        rate.series.push(Series::new(name, rates));
        heat.series.push(Series::new(name, temperatures).stroke(Stroke::Dotted));
    }
    rate.height = 170;
    heat.height = 170;
    for (x, label) in [(64.0, "upload"), (70.0, "shed"), (110.0, "throttle 1"), (420.0, "cooled: offload")] {
        rate.markers.push(Marker { x, label: label.to_owned() });
    }
    heat.levels.push(Level { side: Side::Left, y: 70.0, label: "throttle: 70 °C".to_owned() });
    heat.bands.push((120.0, 300.0));
    vec![rate.into(), heat.into()]
}

fn both_axes() -> Chart {
    let (rates, temperatures) = run(70.0, 66.0);
    let mut chart = LineChart::new(
        "SmartSSD, device-fixed: two axes",
        time(),
        Axis::new("Throughput", Unit::BytesPerSecond).from(0.0),
    );
    chart.y2 = Some(Axis::new("Temperature", Unit::Celsius));
    chart.series.push(Series::new("throughput", rates).colour(0));
    chart.series.push(Series::new("temperature", temperatures).right().stroke(Stroke::Dotted).colour(1));
    chart.into()
}

fn strip() -> Chart {
    let axis = Axis::new("Temperature", Unit::Celsius).from(30.0).to(100.0);
    let mut strip = HeatStrip::new("Temperature by run", time(), axis);
    for (name, limit, rise) in [("smartssd, device-fixed", 70.0, 66.0), ("smartssd, adaptive", 200.0, 33.0)] {
        strip.rows.push(StripRow { name: name.to_owned(), points: run(limit, rise).1 });
    }
    strip.into()
}

fn latencies() -> Chart {
    let values = |middle: f64, spread: f64| -> Vec<f64> {
        (1..20_000)
            .map(|i| middle * (spread * (f64::from(i) * 0.618_034).fract().mul_add(2.0, -1.0).powi(3)).exp())
            .collect()
    };
    let mut histogram = Histogram::new("Latency of a 64 KiB write", Axis::new("Latency", Unit::Seconds).log());
    histogram.series.push(HistogramSeries::from_values("adaptive", &values(40e-6, 2.0), 20));
    histogram.series.push(HistogramSeries::from_values("device-fixed", &values(90e-6, 2.5), 20));
    histogram.into()
}

fn bars() -> Chart {
    let axis = Axis::new("Throughput when throttled", Unit::BytesPerSecond);
    let mut bars = BarChart::new("Sustained throughput", axis, vec!["device-fixed".to_owned(), "adaptive".to_owned()]);
    bars.groups.push(BarGroup::new("smartssd", vec![0.95e9, 1.88e9]));
    bars.groups.push(BarGroup::new("scaleflux", vec![1.1e9, 2.6e9]));
    bars.groups.push(BarGroup::new("wio", vec![2.1e9, 3.3e9]));
    bars.into()
}

fn main() {
    let mut table = Table::new().left("Run").right("Throughput").right("Moves").left("Verdict");
    table.row([Cell::from("device-fixed"), "0.95 GB/s".into(), "0".into(), Cell::bad("throttled")]);
    table.row([Cell::from("adaptive"), "1.88 GB/s".into(), "12".into(), Cell::good("held")]);
    let mut report = Report::new("Gallery", "Every chart and block, with made-up data");
    report
        .facts(vec![
            Fact::new("Adaptive over device-fixed", "1.98×", "the profile predicts 2.00×").verdict(true),
            Fact::new("Requests lost", "0", "of 1,234,567"),
            Fact::new("Longest gap", "151 µs", "the bar is 150 µs").verdict(false),
        ])
        .heading("Throughput and temperature")
        .text("Sustained sequential writes for ten minutes.")
        .figure("Throughput (top) and temperature (bottom); grey: throttled.", thermal())
        .figure("", vec![both_axes()])
        .figure("", vec![strip()])
        .figure("", vec![latencies()])
        .figure("", vec![bars()])
        .table("Totals", table)
        .note(Tone::Bad, "A note that something did not hold.")
        .list(["calibrated: the throttle steps", "predicted: the ratio"])
        .verbatim("$ osier exp thermal --seconds 600");
    println!("{}", report.to_html());
}
