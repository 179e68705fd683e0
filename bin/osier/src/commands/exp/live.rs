//! What experiments in real time share: a device process of their own, its window, how well times were kept, and
//! what people see of it.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use osier_client::{Window, WindowError, WindowOptions};
use osier_front::window::Durations;
use osier_pmr::WaitPolicy;
use osier_report::{Axis, Chart, Histogram as HistogramChart, HistogramSeries, LineChart, Table, Unit};
use serde::Serialize;
use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::signals::StopFlag;
use crate::units::parse_bytes;

/// A page that came so long after it was due counts as late.
pub const LATE_NS: u64 = 1 << 10;
/// How long a device may take to end, once it was asked.
const END_MAX: Duration = Duration::from_secs(20);
const END_LOOK: Duration = Duration::from_millis(5);

/// The device of an experiment in real time.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "The device")]
pub struct LiveArgs {
    /// A built-in profile, or the path of a file [default: cmm-h for cylon-latency, cylon for others]
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Bytes of the window [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    capacity: Option<u64>,
    /// Bytes of the device's DRAM cache [default: 48MiB for cylon-latency, 8MiB for others]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    cache: Option<u64>,
    /// Set a key of the profile otherwise, as in cache.eviction=sieve; may be given several times
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// How the device waits when idle: poll, umwait, futex, hybrid or hybrid:NANOSECONDS; to poll takes a processor
    #[arg(long, value_name = "POLICY", default_value = "poll")]
    wait: WaitPolicy,
}

/// Bytes of a window, unless it was said.
const CAPACITY_BYTES: u64 = 1 << 30;

impl LiveArgs {
    /// The device, with what the experiment has where nothing was said.
    pub fn or(&self, profile: &str, cache_bytes: u64) -> Setup {
        Setup {
            profile: self.profile.clone().unwrap_or_else(|| profile.to_owned()),
            capacity: self.capacity.unwrap_or(CAPACITY_BYTES),
            cache: self.cache.unwrap_or(cache_bytes),
            set: self.set.clone(),
            wait: self.wait.to_string(),
        }
    }

    /// Whether anything was said about it.
    pub fn is_given(&self) -> bool {
        self.profile.is_some() || self.capacity.is_some() || self.cache.is_some() || !self.set.is_empty()
    }
}

/// Asked before each run of an experiment.
///
/// # Errors
/// Somebody asked to stop.
pub fn go_on(stop: &StopFlag) -> Result<()> {
    if stop.is_set() { Err(Failure::new(Exit::Failure, "interrupted; nothing was written").into()) } else { Ok(()) }
}

/// What the device is.
#[derive(Debug, Clone, Serialize)]
pub struct Setup {
    pub profile: String,
    pub capacity: u64,
    pub cache: u64,
    pub set: Vec<String>,
    pub wait: String,
}

/// A device that serves its window in a process of its own.
pub struct Device {
    process: Child,
    directory: tempfile::TempDir,
}

impl Device {
    /// Starts one, and waits until it serves.
    ///
    /// # Errors
    /// What the device said: that the profile or the sizes cannot be.
    pub fn start(args: &Setup) -> Result<Device> {
        let directory = tempfile::Builder::new().prefix("osier-exp-").tempdir().context("making a directory")?;
        let own = std::env::current_exe().context("finding this program, to start its device")?;
        let mut command = Command::new(own);
        command.args(["--json", "window", "serve", "--profile", &args.profile, "--socket"]);
        command.arg(directory.path().join("window"));
        command.args(["--capacity", &args.capacity.to_string(), "--cache", &args.cache.to_string()]);
        command.args(["--wait", &args.wait]);
        for setting in &args.set {
            command.args(["--set", setting]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().context("starting the device's process")?;
        let mut line = String::new();
        if let Some(err) = process.stderr.take() {
            let mut err = BufReader::new(err);
            err.read_line(&mut line).context("reading what the device says")?;
            // What it says later is passed on; a pipe that nobody reads would stop it.
            std::thread::spawn(move || std::io::copy(&mut err, &mut std::io::stderr()));
        }
        let device = Device { process, directory };
        if line.starts_with("osier: a window of") {
            return Ok(device);
        }
        let said: Option<Value> = serde_json::from_str(&line).ok();
        let said = said.and_then(|value| value["error"].as_str().map(str::to_owned)).unwrap_or(line);
        Err(Failure::new(Exit::BadInput, format!("the device of the experiment: {}", said.trim())).into())
    }

    /// Where programs attach.
    pub fn socket(&self) -> PathBuf {
        self.path("window")
    }

    /// A file of this experiment, removed with the device.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A window whose faults are resolved in the thread that has them.
    ///
    /// # Errors
    /// What the system does not have.
    pub fn open(&self) -> Result<Window> {
        let opened = Window::open(&self.socket(), &WindowOptions::default());
        opened.map_err(|error: WindowError| Failure::new(Exit::BadInput, error.to_string()).into())
    }

    /// Ends the device in order; its report.
    ///
    /// # Errors
    /// When it does not end in order.
    pub fn stop(mut self) -> Result<Value> {
        let pid = libc::pid_t::try_from(self.process.id()).context("the device's process")?;
        terminate(pid)?;
        let mut text = String::new();
        if let Some(mut out) = self.process.stdout.take() {
            out.read_to_string(&mut text).context("reading the device's report")?;
        }
        let began = Instant::now();
        while self.process.try_wait().context("waiting for the device")?.is_none() {
            if began.elapsed() > END_MAX {
                return Err(anyhow!("the device did not end in {} s after it was asked", END_MAX.as_secs()));
            }
            std::thread::sleep(END_LOOK);
        }
        serde_json::from_str(&text).with_context(|| format!("the device's report is no JSON: {text}"))
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Asks a process to end in order.
fn terminate(pid: libc::pid_t) -> Result<()> {
    let status = Command::new("kill").arg(pid.to_string()).status().context("running kill")?;
    if status.success() { Ok(()) } else { Err(anyhow!("process {pid} cannot be asked to end")) }
}

/// How well the times of the device were kept by this machine.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Kept {
    /// From a fault to its page being mapped.
    pub latency: Durations,
    /// From when the page was due to its being mapped: the error of the emulation.
    pub lateness: Durations,
    /// Pages that came more than [`LATE_NS`] after they were due.
    pub late: u64,
}

impl Kept {
    /// Of two histograms.
    pub fn new(latency: Durations, lateness: Durations) -> Kept {
        let late = lateness.buckets.iter().filter(|(least, _)| *least >= LATE_NS).map(|(_, count)| count).sum();
        Kept { latency, lateness, late }
    }

    /// Of a window that has been used.
    pub fn of(window: &Window) -> Kept {
        let timing = window.timing();
        Kept::new(Durations::from(&timing.latency.snapshot()), Durations::from(&timing.lateness.snapshot()))
    }

    /// One line for people.
    pub fn text(&self) -> String {
        let us = |ns: u64| format!("{}.{}", ns / 1000, ns / 100 % 10);
        format!(
            "{} faults, {} of them more than {} us late; due to mapped {} us (p50), {} us (p99), {} us (most)",
            self.lateness.count,
            self.late,
            us(LATE_NS),
            us(self.lateness.p50_ns),
            us(self.lateness.p99_ns),
            us(self.lateness.max_ns)
        )
    }
}

/// A number of hundredths, as in 0.33.
pub fn hundredths(number: u64) -> String {
    format!("{}.{:02}", number / 100, number % 100)
}

/// What people see of an experiment.
pub struct Shown<'a> {
    /// Of its files.
    pub name: &'static str,
    pub title: &'static str,
    pub device: &'a Setup,
    /// What else was chosen.
    pub options: String,
    pub figure_caption: &'static str,
    pub chart: LineChart,
    /// The runs, for the chart of the lateness.
    pub kept: Vec<(String, &'a Kept)>,
    pub table_caption: String,
    pub table: Table,
    pub csv: String,
    pub assumed: [&'static str; 3],
}

/// Lateness of several runs as one chart.
pub fn lateness_chart<'a>(runs: impl IntoIterator<Item = (String, &'a Kept)>) -> Chart {
    let mut chart =
        HistogramChart::new("From when a page was due to its being mapped", Axis::new("Lateness", Unit::Seconds).log());
    for (name, kept) in runs {
        let lateness = &kept.lateness;
        let bins = lateness.buckets.iter().filter(|(least, _)| *least > 0);
        let bins = bins.map(|(least, count)| (*least as f64 * 1e-9, *least as f64 * 1.125e-9, *count)).collect();
        let percentiles = [("p50", lateness.p50_ns), ("p99", lateness.p99_ns)]
            .map(|(name, ns)| (name.to_owned(), ns as f64 * 1e-9))
            .into();
        chart.series.push(HistogramSeries { name, bins, percentiles });
    }
    Chart::from(chart)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_is_what_lies_beyond_the_bound() {
        let lateness = Durations { count: 9, buckets: vec![(960, 4), (1024, 3), (5000, 2)], ..Durations::default() };
        assert_eq!(Kept::new(Durations::default(), lateness).late, 5);
    }
}
