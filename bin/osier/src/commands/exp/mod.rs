//! `osier exp`: the papers' figures, in virtual time and in real time.

mod chase;
mod graph;
mod live;
mod redis;
mod stream;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use osier_report::{Chart, Report};
use osier_sim::cmm_h::{self, CmmHParams, CmmHReport};
use osier_sim::cylon::{self, CylonParams, CylonReport};
use osier_sim::cylon_latency::{self, CylonLatencyReport};
use osier_sim::thermal::{self, ThermalParams};
use serde::Serialize;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{self, tell};
use crate::signals;
use crate::workers::{self, Ended};
use live::{LiveArgs, Setup, Shown, hundredths};

/// Reproduce a published figure
#[derive(Debug, Subcommand)]
pub enum ExpCommand {
    /// Ten minutes of sustained writes on three devices, with and without migration (WIO, Figure 1)
    Thermal(ThermalArgs),
    /// Hit ratios of eviction policies and of next-N prefetching in a CXL SSD's cache (Cylon, Table 3 and Figure 10)
    CylonEviction(CylonArgs),
    /// Bandwidth and latency of a CXL memory with flash behind DRAM, measured and modelled (Samsung CMM-H, as in Cylon)
    CmmH(CmmHArgs),
    /// Bandwidth and latency of a CXL SSD across the size of its cache (Cylon, Figures 5 and 6)
    CylonLatency(LatencyArgs),
    /// Redis with its heap in a device, under YCSB-C, in real time (Cylon, Figure 7)
    CylonRedis(redis::RedisArgs),
    /// PageRank over a Kronecker graph in a device, in real time (after Cylon, Figure 9)
    CylonGraph(graph::GraphArgs),
    /// STREAM across the boundary of a device's cache, in real time (WIO, Figure 15)
    Stream(stream::StreamArgs),
}

/// `osier exp thermal`
#[derive(Debug, Args)]
pub struct ThermalArgs {
    /// Seconds of device time
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Draws what is random in the workload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-thermal", value_name = "DIR")]
    out: PathBuf,
}

/// `osier exp cylon-eviction`
#[derive(Debug, Args)]
pub struct CylonArgs {
    /// Divide the cache, the working sets and the accesses by this power of two, 64 at most
    #[arg(long, default_value_t = 1, value_name = "N")]
    scale: u32,
    /// Draws the order of the random pattern
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=workers::JOBS_MAX as i64))]
    jobs: Option<u16>,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-cylon-eviction", value_name = "DIR")]
    out: PathBuf,
}

/// `osier exp cmm-h`
#[derive(Debug, Args)]
pub struct CmmHArgs {
    /// Divide the capacity, the cache and the working sets by this power of two, 1024 at most
    #[arg(long, default_value_t = cmm_h::SCALE_MAX, value_name = "N")]
    scale: u32,
    /// Draws what is random in the device and in the workload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=workers::JOBS_MAX as i64))]
    jobs: Option<u16>,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-cmm-h", value_name = "DIR")]
    out: PathBuf,
}

/// `osier exp cylon-latency`
#[derive(Debug, Args)]
pub struct LatencyArgs {
    /// In virtual time, divide the capacity, the cache and the working sets by this power of two, 1024 at most
    #[arg(long, default_value_t = cmm_h::SCALE_MAX, value_name = "N")]
    scale: u32,
    /// Draws what is random in the device and in the workload
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Threads of the runs in virtual time [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=workers::JOBS_MAX as i64))]
    jobs: Option<u16>,
    /// Run the pointers and a scan in a window of this machine too; the options of the device are for that
    #[arg(long)]
    real_time: bool,
    /// Loads of each chase in real time
    #[arg(long, default_value_t = 30_000, requires = "real_time")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    loads: u64,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-cylon-latency", value_name = "DIR")]
    out: PathBuf,
    #[command(flatten)]
    device: LiveArgs,
}

/// Does what was asked.
///
/// # Errors
/// What the model or the system says.
pub fn run(command: &ExpCommand, context: &Context) -> Result<Exit> {
    match command {
        ExpCommand::Thermal(args) => thermal(args, context),
        ExpCommand::CylonEviction(args) => cylon_eviction(args, context),
        ExpCommand::CmmH(args) => cmm_h(args, context),
        ExpCommand::CylonLatency(args) => latency(args, context),
        ExpCommand::CylonRedis(args) => {
            make_directory(&args.out)?;
            let served = redis::run(args, &signals::stop_flag()?)?;
            finish_shown(&args.out, &served, served.shown(), context)
        }
        ExpCommand::CylonGraph(args) => {
            make_directory(&args.out)?;
            let graphs = graph::run(args, &signals::stop_flag()?)?;
            finish_shown(&args.out, &graphs, graphs.shown(), context)
        }
        ExpCommand::Stream(args) => {
            make_directory(&args.out)?;
            let streamed = stream::run(args, &signals::stop_flag()?)?;
            finish_shown(&args.out, &streamed, streamed.shown(), context)
        }
    }
}

/// Makes the directory of the results. First: minutes of work are not to be lost to a wrong name.
fn make_directory(out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("making the directory {}", out.display()))
}

/// Writes what came out, and prints it, for people or for programs.
fn finish(
    (out, name): (&Path, &str),
    [csv, svg, page]: [String; 3],
    (json, text): (&impl Serialize, &str),
    context: &Context,
) -> Result<Exit> {
    for (ending, content) in [("csv", csv), ("svg", svg), ("html", page)] {
        let path = out.join(format!("{name}.{ending}"));
        std::fs::write(&path, content).with_context(|| format!("writing {}", path.display()))?;
    }
    if context.json {
        output::print_json(json)?;
    } else {
        output::print(&format!("{text}\nwritten to {}\n", out.display()))?;
    }
    Ok(Exit::Ok)
}

/// The same of an experiment in real time.
fn finish_shown(out: &Path, json: &impl Serialize, shown: Shown, context: &Context) -> Result<Exit> {
    let charts = vec![Chart::from(shown.chart), live::lateness_chart(shown.kept)];
    let svg = osier_report::stack(&charts);
    let assumed = shown.assumed.map(|line| format!("assumed  {line}")).join("\n");
    let text = format!("{}\n{assumed}", shown.table.to_text());
    let Setup { profile, cache, .. } = shown.device;
    let subtitle = format!("profile {profile}, a cache of {cache} bytes, {}, in real time", shown.options);
    let mut page = Report::new(shown.title, subtitle);
    page.figure(shown.figure_caption, charts).table(shown.table_caption, shown.table).list(shown.assumed);
    finish((out, shown.name), [shown.csv, svg, page.to_html()], (json, &text), context)
}

/// Runs every case in virtual time, and says how far it is.
fn run_cases<C: Copy + Sync, T: Send, E: Into<anyhow::Error> + Send>(
    jobs: Option<u16>,
    stop: &signals::StopFlag,
    cases: &[C],
    label: impl Fn(&C) -> String,
    work: impl Fn(C) -> Result<T, E> + Sync,
) -> Result<Vec<T>> {
    let jobs = jobs.map_or_else(workers::processors, usize::from);
    let mut outcomes = Vec::with_capacity(cases.len());
    let work = |case: &C| work(*case);
    let ended = workers::run(jobs, stop, cases, work, |index, outcome| {
        outcomes.push(outcome.map_err(E::into)?);
        tell!("osier: {} ({} of {})", label(&cases[index]), outcomes.len(), cases.len());
        Ok(())
    })?;
    if ended == Ended::Stopped {
        let text = format!("interrupted after {} of {} runs; nothing was written", outcomes.len(), cases.len());
        return Err(Failure::new(Exit::Failure, text).into());
    }
    Ok(outcomes)
}

fn thermal(args: &ThermalArgs, context: &Context) -> Result<Exit> {
    let params = ThermalParams { seconds: args.seconds, seed: args.seed, ..ThermalParams::default() };
    make_directory(&args.out)?;
    let report = thermal::run(&params, thermal::CASES, &mut |case| tell!("osier: {} ...", case.label))?;
    let tables = [report.table().to_text(), report.ratio_table().to_text(), report.provenance_text()];
    let page = report.to_report();
    let files = [report.to_csv(), report.to_svg(), page.to_html()];
    finish((&args.out, "thermal"), files, (&page, &tables.join("\n")), context)
}

fn cylon_eviction(args: &CylonArgs, context: &Context) -> Result<Exit> {
    let params = CylonParams { scale: args.scale, seed: args.seed };
    params.check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    make_directory(&args.out)?;
    let mut cases = cylon::cases();
    // What prefetches most takes longest: at the end it would leave the other threads idle.
    cases.sort_by_key(|case| std::cmp::Reverse(case.prefetch_degree));
    let work = |case| cylon::run_case(&params, case);
    let cells = run_cases(args.jobs, &signals::stop_flag()?, &cases, cylon::Case::label, work)?;
    let report = CylonReport::new(params, &cells);
    let tables = [report.eviction_table().to_text(), report.prefetch_table().to_text(), report.provenance_text()];
    let files = [report.to_csv(), report.to_svg(), report.to_report().to_html()];
    finish((&args.out, "cylon-eviction"), files, (&report.to_json(), &tables.join("\n")), context)
}

fn cmm_h(args: &CmmHArgs, context: &Context) -> Result<Exit> {
    let params = CmmHParams { scale: args.scale, seed: args.seed };
    params.check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    make_directory(&args.out)?;
    let (cases, work) = (cmm_h::cases(), |case| cmm_h::run_case(&params, case));
    let outcomes = run_cases(args.jobs, &signals::stop_flag()?, &cases, cmm_h::Case::label, work)?;
    let report = CmmHReport::new(params, &outcomes);
    let tables = [report.bandwidth_table().to_text(), report.latency_table().to_text(), report.provenance_text()];
    let files = [report.to_csv(), report.to_svg(), report.to_report().to_html()];
    finish((&args.out, "cmm-h"), files, (&report.to_json(), &tables.join("\n")), context)
}

/// What the runs in real time assume.
const REAL_TIME: [&str; 4] = [
    "One thread follows the pointers; a clock is read around each load, and what hits costs what this machine's memory costs.",
    "One thread scans, and the device brings in the next eight pages, in place of the 64 threads that were measured. In the cache \
     a scan is this machine's memory, and says nothing of the device.",
    "The cache is scaled down, to the size above from 48 GB; the times of the device are not.",
    "Nothing is fitted in real time: the profile is the one of the virtual time above, with what was fitted and chosen there.",
];

#[derive(Serialize)]
struct LatencyJson<M: Serialize> {
    #[serde(flatten)]
    model: M,
    real_time: Option<RealTime>,
}

#[derive(Serialize)]
struct RealTime {
    device: Setup,
    assumed: [&'static str; 4],
    runs: Vec<chase::Live>,
}

fn latency(args: &LatencyArgs, context: &Context) -> Result<Exit> {
    let params = CmmHParams { scale: args.scale, seed: args.seed };
    params.check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    if args.device.is_given() && !args.real_time {
        let text = "--profile, --capacity, --cache and --set are for runs in real time; give --real-time with them";
        return Err(Failure::new(Exit::Usage, text).into());
    }
    make_directory(&args.out)?;
    let stop = signals::stop_flag()?;
    let (cases, work) = (cylon_latency::cases(), |case| cylon_latency::run_case(&params, case));
    let outcomes = run_cases(args.jobs, &stop, &cases, cylon_latency::Case::label, work)?;
    let report = CylonLatencyReport::new(params, &outcomes);
    let mut page = report.to_report();
    let (mut svg, mut csv, mut live_text) = (report.figure(), report.to_csv(), String::new());
    let real_time = if args.real_time {
        let device = args.device.or(cmm_h::PROFILE, 48 << 20);
        let runs = chase::run(&device, (args.loads, args.seed), &stop)?;
        let kept = runs.iter().map(|live| (hundredths(live.x_e5 / 1000), &live.kept));
        let charts = vec![chase::chart(&runs), live::lateness_chart(kept)];
        page.heading("In real time");
        page.figure("Pointers in a window of this machine, and how late pages were.", charts.clone());
        page.table("One thread", chase::table(&runs));
        page.list(REAL_TIME);
        svg.extend(charts);
        csv.push_str(&chase::to_csv(&runs));
        live_text = format!("{}\n{}", chase::table(&runs).to_text(), chase::notes(&runs).join("\n"));
        Some(RealTime { device, assumed: REAL_TIME, runs })
    } else {
        None
    };
    let model = [report.bandwidth_table(), report.published().latency_table(), report.chase_table()];
    let model = model.map(|table| table.to_text()).join("\n");
    let text = format!("{model}\n{}\n{live_text}", report.provenance_text());
    let files = [csv, osier_report::stack(&svg), page.to_html()];
    finish((&args.out, "cylon-latency"), files, (&LatencyJson { model: report.to_json(), real_time }, &text), context)
}
