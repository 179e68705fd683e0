//! `osier sched`: placement policies, and what another one would have decided.

use std::path::PathBuf;

use anyhow::Result;
use clap::Subcommand;
use osier_device::Profile;
use osier_report::{Table, Unit, format_value};
use osier_sched::{POLICIES, Recording, ReplayReport, policy, replay};

use super::Context;
use super::demo::{self, DemoArgs};
use crate::exit::{Exit, Failure};
use crate::output::tell;

/// List policies, record the samples of a run, evaluate a policy on them
#[derive(Debug, Subcommand)]
pub enum SchedCommand {
    /// The policies that there are
    Policies,
    /// Run the demonstration once and write the scheduler's samples to a file
    ///
    /// `osier serve --record FILE` does the same for a device of yours.
    Record {
        /// Where the samples go; the other options are those of `osier demo`
        file: PathBuf,
        #[command(flatten)]
        demo: Box<DemoArgs>,
    },
    /// What a policy decides on recorded samples
    Replay {
        /// The samples
        file: PathBuf,
        /// The policy
        #[arg(long, default_value = osier_sched::DEFAULT_POLICY)]
        policy: String,
        /// The profile whose thresholds it uses; by default the one of the recording
        #[arg(long)]
        profile: Option<String>,
    },
}

/// Does what was asked.
///
/// # Errors
/// A file that is no recording, an unknown policy.
pub fn run(command: SchedCommand, context: &Context) -> Result<Exit> {
    match command {
        SchedCommand::Policies => policies(),
        SchedCommand::Record { file, mut demo } => {
            demo.skip_fixed = true;
            demo.record = Some(file);
            demo::run(&demo, context)
        }
        SchedCommand::Replay { file, policy, profile } => evaluate(&file, &policy, profile.as_deref(), context),
    }
}

fn policies() -> Result<Exit> {
    let mut table = Table::new().left("policy").left("what it does");
    for info in POLICIES {
        table.row([info.name, info.summary]);
    }
    print!("{}", table.to_text());
    Ok(Exit::Ok)
}

fn evaluate(file: &std::path::Path, name: &str, profile: Option<&str>, context: &Context) -> Result<Exit> {
    let refuse = |text: String| Failure::new(Exit::BadInput, text);
    let text = std::fs::read_to_string(file)
        .map_err(|cause| refuse(format!("reading the samples {} failed: {cause}", file.display())))?;
    let recording = Recording::parse(&text).map_err(|e| refuse(format!("{}: {e}", file.display())))?;
    for error in &recording.malformed {
        tell!("osier: {}: {error}", file.display());
    }
    let profile: Profile = crate::profiles::find(profile.unwrap_or(&recording.header.profile))?.1;
    let mut chosen = policy(name, &profile.scheduler).map_err(|e| refuse(e.to_string()))?;
    let report = replay(chosen.as_mut(), &profile.scheduler, &recording.entries).map_err(|e| refuse(e.to_string()))?;
    if context.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", table(&report).to_text());
    }
    Ok(Exit::Ok)
}

fn table(report: &ReplayReport) -> Table {
    let seconds = |ns: u64| format_value(ns as f64 / 1e9, Unit::Seconds);
    let mut table = Table::new().left("").right("");
    for (name, value) in [
        ("policy", report.policy.clone()),
        ("epochs", report.epochs.to_string()),
        ("time", seconds(report.span_ns)),
        ("moves to the host", report.uploads.to_string()),
        ("moves to the device", report.offloads.to_string()),
        ("shortest residency", report.shortest_residency_ns.map_or("-".to_owned(), seconds)),
        ("hotter than the upload threshold (as recorded)", seconds(report.above_upload_ns)),
        ("throttled (as recorded)", seconds(report.throttled_ns)),
        ("load shed", seconds(report.shed_ns)),
        ("decisions that differ from the recorded ones", report.differs_from_recorded.to_string()),
    ] {
        table.row([name.to_owned(), value]);
    }
    table
}
