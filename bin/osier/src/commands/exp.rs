//! `osier exp`: the papers' figures, in virtual time.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use osier_sim::cmm_h::{self, CmmHError, CmmHParams, CmmHReport};
use osier_sim::cylon::{self, CylonError, CylonParams, CylonReport};
use osier_sim::thermal::{self, ThermalParams};

use super::Context;
use crate::exit::{Exit, Failure};
use crate::workers::{self, Ended};
use crate::{output, signals};

/// Reproduce a published figure
#[derive(Debug, Subcommand)]
pub enum ExpCommand {
    /// Ten minutes of sustained writes on three devices, with and without migration (WIO, Figure 1)
    Thermal(ThermalArgs),
    /// Hit ratios of eviction policies and of next-N prefetching in a CXL SSD's cache (Cylon, Table 3 and Figure 10)
    CylonEviction(CylonArgs),
    /// Bandwidth and latency of a CXL memory with flash behind DRAM, measured and modelled (Samsung CMM-H, as in Cylon)
    CmmH(CmmHArgs),
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

/// Does what was asked.
///
/// # Errors
/// What the model or the system says.
pub fn run(command: &ExpCommand, context: &Context) -> Result<Exit> {
    match command {
        ExpCommand::Thermal(args) => thermal(args, context),
        ExpCommand::CylonEviction(args) => cylon_eviction(args, context),
        ExpCommand::CmmH(args) => cmm_h(args, context),
    }
}

/// Makes the directory of the results. First: minutes of work are not to be lost to a wrong name.
fn make_directory(out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| format!("making the directory {}", out.display()))
}

fn write_files(out: &Path, files: [(&str, String); 3]) -> Result<()> {
    for (name, text) in files {
        let path = out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

fn thermal(args: &ThermalArgs, context: &Context) -> Result<Exit> {
    let params = ThermalParams { seconds: args.seconds, seed: args.seed, ..ThermalParams::default() };
    make_directory(&args.out)?;
    let report = thermal::run(&params, thermal::CASES, &mut |case| eprintln!("osier: {} ...", case.label))?;
    let page = report.to_report().to_html();
    let files = [("thermal.csv", report.to_csv()), ("thermal.svg", report.to_svg()), ("thermal.html", page)];
    write_files(&args.out, files)?;
    if context.json {
        println!("{}", report.to_report().to_json());
    } else {
        println!("{}", report.table().to_text());
        println!("{}", report.ratio_table().to_text());
        println!("{}", report.provenance_text());
        println!("written to {}", args.out.display());
    }
    Ok(Exit::Ok)
}

fn cylon_eviction(args: &CylonArgs, context: &Context) -> Result<Exit> {
    let params = CylonParams { scale: args.scale, seed: args.seed };
    params.check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    make_directory(&args.out)?;
    let stop = signals::stop_flag()?;
    let jobs = args.jobs.map_or_else(workers::processors, usize::from);
    let mut cases = cylon::cases();
    // What prefetches most takes longest: at the end it would leave the other threads idle.
    cases.sort_by_key(|case| std::cmp::Reverse(case.prefetch_degree));
    let mut cells = Vec::with_capacity(cases.len());
    let work = |case: &cylon::Case| cylon::run_case(&params, *case);
    let ended = workers::run(jobs, &stop, &cases, work, |_, cell: Result<cylon::Cell, CylonError>| {
        cells.push(cell?);
        let done = cells.last().map(|cell| cell.case.label()).unwrap_or_default();
        eprintln!("osier: {done} ({} of {})", cells.len(), cases.len());
        Ok(())
    })?;
    if ended == Ended::Stopped {
        let text = format!("interrupted after {} of {} runs; nothing was written", cells.len(), cases.len());
        return Err(Failure::new(Exit::Failure, text).into());
    }
    let report = CylonReport::new(params, &cells);
    let page = report.to_report().to_html();
    let (csv, svg) = (report.to_csv(), report.to_svg());
    let files = [("cylon-eviction.csv", csv), ("cylon-eviction.svg", svg), ("cylon-eviction.html", page)];
    write_files(&args.out, files)?;
    if context.json {
        output::print_json(&report.to_json())?;
    } else {
        let tables = [report.eviction_table().to_text(), report.prefetch_table().to_text(), report.provenance_text()];
        output::print(&format!("{}\nwritten to {}\n", tables.join("\n"), args.out.display()))?;
    }
    Ok(Exit::Ok)
}

fn cmm_h(args: &CmmHArgs, context: &Context) -> Result<Exit> {
    let params = CmmHParams { scale: args.scale, seed: args.seed };
    params.check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    make_directory(&args.out)?;
    let stop = signals::stop_flag()?;
    let jobs = args.jobs.map_or_else(workers::processors, usize::from);
    let cases = cmm_h::cases();
    let mut outcomes = Vec::with_capacity(cases.len());
    let work = |case: &cmm_h::Case| cmm_h::run_case(&params, *case);
    let ended = workers::run(jobs, &stop, &cases, work, |_, outcome: Result<cmm_h::Outcome, CmmHError>| {
        let outcome = outcome?;
        eprintln!("osier: {} ({} of {})", outcome.case.label(), outcomes.len() + 1, cases.len());
        outcomes.push(outcome);
        Ok(())
    })?;
    if ended == Ended::Stopped {
        let text = format!("interrupted after {} of {} runs; nothing was written", outcomes.len(), cases.len());
        return Err(Failure::new(Exit::Failure, text).into());
    }
    let report = CmmHReport::new(params, &outcomes);
    let page = report.to_report().to_html();
    write_files(&args.out, [("cmm-h.csv", report.to_csv()), ("cmm-h.svg", report.to_svg()), ("cmm-h.html", page)])?;
    if context.json {
        output::print_json(&report.to_json())?;
    } else {
        let tables = [report.bandwidth_table().to_text(), report.latency_table().to_text(), report.provenance_text()];
        output::print(&format!("{}\nwritten to {}\n", tables.join("\n"), args.out.display()))?;
    }
    Ok(Exit::Ok)
}
