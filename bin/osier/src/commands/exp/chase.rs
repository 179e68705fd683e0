//! Pointers followed, and memory scanned, in a window across the size of its cache, in real time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use osier_client::Window;
use osier_device::Profile;
use osier_report::{Axis, Chart, LineChart, Series, Stroke, Table, Unit};
use osier_sim::cmm_h::{self, Role};
use osier_sim::cylon_latency::{self, QUANTILES, Shape, WORKING_SETS};
use osier_sim::run::Histogram;
use serde::Serialize;

use super::live::{Device, Kept, Setup, go_on, hundredths};
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::profiles;
use crate::signals::StopFlag;

const PAGE_BYTES: u64 = 4096;
const WORDS_PER_LINE: usize = 8;
const WORDS_PER_PAGE: usize = 512;
const LINES_PER_PAGE: u64 = 64;
/// Rounds of a scan that are measured.
const ROUNDS: usize = 2;
/// What the device brings in ahead of a scan. One thread stands for the many that were measured: those kept the device
/// busy with misses, and so do pages that are brought in ahead.
const AHEAD: [&str; 2] = ["cache.prefetch=\"next-n\"", "cache.prefetch_parameters={degree=8,tagged=1}"];

/// A chase in real time.
#[derive(Debug, Clone, Serialize)]
pub struct Live {
    /// Working set by cache, in hundred-thousandths.
    pub x_e5: u64,
    pub pages: u64,
    pub loads: u64,
    /// Loads whose page this program did not map, and those of them that read a page of the flash. More fault than miss
    /// where the system takes pages back by itself.
    pub faults: u64,
    pub misses: u64,
    /// Loads that found their page in the cache, in millionths, and how many should.
    pub hit_ppm: u64,
    pub hit_ppm_expected: u64,
    /// Quantile in millionths, and nanoseconds; a clock is read around each load, which counts.
    pub quantiles: Vec<(u32, u64)>,
    pub kept: Kept,
    /// A scan of the working set by one thread, in bytes a second, and how well the times were kept meanwhile.
    pub scan_bytes_per_second: u64,
    pub scan_kept: Kept,
    #[serde(skip)]
    latency: Histogram,
}

/// Runs the chase and the scan through each working set.
///
/// # Errors
/// A device that cannot be, a value that is not what was stored.
pub fn run(args: &Setup, (loads, seed): (u64, u64), stop: &StopFlag) -> Result<Vec<Live>> {
    let shape = shape(args)?;
    let mut all = Vec::new();
    for x in WORKING_SETS {
        let pages = cmm_h::working_set_pages(x, shape.frames);
        go_on(stop)?;
        let device = Device::start(args)?;
        let mut live = chase(&device.open()?, pages, (loads, seed))?;
        device.stop()?;
        live.x_e5 = x;
        live.hit_ppm_expected = cylon_latency::hit_ppm_expected(shape, pages);
        let mut ahead = args.clone();
        ahead.set.extend(AHEAD.map(str::to_owned));
        let device = Device::start(&ahead)?;
        let window = device.open()?;
        live.scan_bytes_per_second = scan(&window, pages)?;
        live.scan_kept = Kept::of(&window);
        drop(window);
        device.stop()?;
        tell!("osier: {} of the cache in real time", hundredths(x / 1000));
        all.push(live);
    }
    Ok(all)
}

/// The cache of the device, as its profile has it with these sizes.
fn shape(args: &Setup) -> Result<Shape> {
    let mut set = vec![(
        "cache.size".to_owned(),
        toml::Value::Table(toml::Table::from_iter([("bytes".to_owned(), i64::try_from(args.cache)?.into())])),
    )];
    for text in &args.set {
        set.push(super::super::parse_setting(text).map_err(|error| Failure::new(Exit::BadInput, error))?);
    }
    let profile: Profile = profiles::find_with(&args.profile, &set)?;
    let shape = cylon_latency::shape(&profile, args.capacity)
        .map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    let most = cmm_h::working_set_pages(WORKING_SETS[3], shape.frames);
    if most * PAGE_BYTES > args.capacity {
        let text = format!("a window of {} bytes has no room for {most} pages; give --capacity more", args.capacity);
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    Ok(shape)
}

/// Each line has its number in its first word, so that the next address is not known before the load is done, and a
/// load of another line's bytes is seen.
fn fill(words: &[AtomicU64], pages: u64) {
    for line in 0..pages * LINES_PER_PAGE {
        words[line as usize * WORDS_PER_LINE].store(line, Ordering::Relaxed);
    }
}

/// A finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(value: u64) -> u64 {
    let z = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn chase(window: &Window, pages: u64, (loads, seed): (u64, u64)) -> Result<Live> {
    let words = window.words();
    fill(words, pages);
    let lines = pages * LINES_PER_PAGE;
    let (mut line, mut latency) = (0, Histogram::default());
    // What was stored leaves with the first loads, and is not what is measured.
    let warm_up = 2 * pages;
    let mut before = (0, 0);
    for step in 0..warm_up + loads {
        if step == warm_up {
            before = faults_and_misses(window)?;
        }
        let at = &words[line as usize * WORDS_PER_LINE];
        let began = Instant::now();
        let found = at.load(Ordering::Relaxed);
        let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        if found != line {
            return Err(wrong(line, found));
        }
        if step >= warm_up {
            latency.add(ns);
        }
        line = mix((found ^ seed).wrapping_add((step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))) % lines;
    }
    let (faults, misses) = faults_and_misses(window)?;
    let (faults, misses) = (faults - before.0, misses - before.1);
    Ok(Live {
        x_e5: 0,
        pages,
        loads,
        faults,
        misses,
        hit_ppm: (loads - misses.min(loads)) * 1_000_000 / loads.max(1),
        hit_ppm_expected: 0,
        quantiles: QUANTILES.map(|quantile| (quantile, latency.percentile(quantile))).into(),
        kept: Kept::of(window),
        scan_bytes_per_second: 0,
        scan_kept: Kept::default(),
        latency,
    })
}

/// What was counted until now. The device's figures are up to date when a command has ended: here one of no pages.
fn faults_and_misses(window: &Window) -> Result<(u64, u64)> {
    window.unpin(0..0)?;
    Ok((window.timing().latency.count(), window.stats().misses))
}

/// Loads every word of the working set in order, round and round; bytes a second.
fn scan(window: &Window, pages: u64) -> Result<u64> {
    let words = window.words();
    fill(words, pages);
    let lines = pages * LINES_PER_PAGE;
    let sum_wanted = lines * (lines - 1) / 2;
    let round = || -> Result<f64> {
        let began = Instant::now();
        let words = words[..pages as usize * WORDS_PER_PAGE].iter();
        let sum = words.fold(0, |sum: u64, word| sum.wrapping_add(word.load(Ordering::Relaxed)));
        if sum == sum_wanted { Ok(began.elapsed().as_secs_f64()) } else { Err(wrong(sum_wanted, sum)) }
    };
    // One round until the cache has settled.
    round()?;
    let mut seconds = 0.0;
    for _ in 0..ROUNDS {
        seconds += round()?;
    }
    Ok((ROUNDS as f64 * (pages * PAGE_BYTES) as f64 / seconds) as u64)
}

fn wrong(wanted: u64, found: u64) -> anyhow::Error {
    let text = format!("the window has {found} where {wanted} was stored: the device has lost or mixed up a page");
    Failure::new(Exit::VerificationFailed, text).into()
}

/// The chases and scans beside what was measured on hardware.
pub fn table(all: &[Live]) -> Table {
    let mut table = Table::new()
        .left("Working set, of the cache")
        .right("Loads")
        .right("Hits, %")
        .right("Closed form, %")
        .right("p50, ns")
        .right("p90, ns")
        .right("p99, ns")
        .right("Late, p50 ns")
        .right("p99 ns")
        .right("Scan, MB/s")
        .right("CMM-H measured")
        .right("Difference");
    for live in all {
        let measured = measured_tenths(live.x_e5);
        let scan_tenths = live.scan_bytes_per_second / 100_000;
        let quantile = |wanted: u32| {
            live.quantiles.iter().find(|(quantile, _)| *quantile == wanted).map_or(0, |(_, ns)| *ns).to_string()
        };
        let percent = |ppm: u64| hundredths(ppm / 100);
        let off = (scan_tenths as f64 / measured.max(1) as f64 - 1.0) * 100.0;
        table.row([
            hundredths(live.x_e5 / 1000),
            live.loads.to_string(),
            percent(live.hit_ppm),
            percent(live.hit_ppm_expected),
            quantile(500_000),
            quantile(900_000),
            quantile(990_000),
            live.kept.lateness.p50_ns.to_string(),
            live.kept.lateness.p99_ns.to_string(),
            format!("{}.{}", scan_tenths / 10, scan_tenths % 10),
            format!("{}.{}", measured / 10, measured % 10),
            format!("{off:+.1}%"),
        ]);
    }
    table
}

fn measured_tenths(x: u64) -> u64 {
    cmm_h::bandwidths().into_iter().find(|point| point.x == x).map_or(0, |point| point.value)
}

/// Latencies in real time.
pub fn chart(all: &[Live]) -> Chart {
    let mut chart = LineChart::new(
        "Latencies of pointers in real time",
        Axis::new("Latency", Unit::Seconds).log(),
        Axis::new("Share of the loads", Unit::Share),
    );
    for live in all {
        let of = |permille: u32| (live.latency.percentile(permille * 1000) as f64 * 1e-9, f64::from(permille) / 1000.0);
        let name = format!("{} of the cache", hundredths(live.x_e5 / 1000));
        chart.series.push(Series::new(name, (1..1000).map(of).collect()).stroke(Stroke::Solid));
    }
    Chart::from(chart)
}

/// How well the times were kept, a line for each working set.
pub fn notes(all: &[Live]) -> Vec<String> {
    let line = |live: &Live| {
        let set = hundredths(live.x_e5 / 1000);
        format!("pointers {set}  {}\nscan     {set}  {}", live.kept.text(), live.scan_kept.text())
    };
    all.iter().map(line).collect()
}

/// Rows for the file, after those of the model.
pub fn to_csv(all: &[Live]) -> String {
    let mut csv = String::new();
    for live in all {
        let x = format!("{}.{:05}", live.x_e5 / 100_000, live.x_e5 % 100_000);
        let mut row = |series: &str, value: u64, unit: &str, role: Role| {
            csv.push_str(&format!("real time {series},{x},,{value},{unit},,{}\n", role.name()));
        };
        // With the profile's values and policy: where these were fitted or chosen, a scan here predicts nothing either.
        row("scan", live.scan_bytes_per_second / 1_000_000, "MB/s", Role::of_bandwidth(live.x_e5));
        let mut line = |series: &str, value: u64, unit: &str| row(series, value, unit, Role::Follows);
        line("faults", live.faults, "count");
        line("late", live.kept.late, "count");
        for (quantile, ns) in &live.quantiles {
            line(&format!("latency of pointers q{quantile}"), *ns, "ns");
        }
    }
    csv
}
