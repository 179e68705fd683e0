//! `osier exp`: the papers' figures, in virtual time.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use osier_sim::thermal::{self, ThermalParams};

use super::Context;
use crate::exit::Exit;

/// Reproduce a published figure
#[derive(Debug, Subcommand)]
pub enum ExpCommand {
    /// Ten minutes of sustained writes on three devices, with and without migration (WIO, Figure 1)
    Thermal(ThermalArgs),
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

/// Does what was asked.
///
/// # Errors
/// What the model or the system says.
pub fn run(command: &ExpCommand, context: &Context) -> Result<Exit> {
    match command {
        ExpCommand::Thermal(args) => thermal(args, context),
    }
}

fn thermal(args: &ThermalArgs, context: &Context) -> Result<Exit> {
    let params = ThermalParams { seconds: args.seconds, seed: args.seed, ..ThermalParams::default() };
    // First: minutes of work are not to be lost to a wrong name.
    std::fs::create_dir_all(&args.out).with_context(|| format!("making the directory {}", args.out.display()))?;
    let report = thermal::run(&params, thermal::CASES, &mut |case| eprintln!("osier: {} ...", case.label))?;
    for (name, text) in [
        ("thermal.csv", report.to_csv()),
        ("thermal.svg", report.to_svg()),
        ("thermal.html", report.to_report().to_html()),
    ] {
        let path = args.out.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    }
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
