//! `osier demo`: the main job, from real files to proof.
//!
//! It makes a device of its own, writes real files through the pipeline while the device heats up and its
//! actors move, reads everything back through the inverse pipeline, does the same again with placement fixed
//! on the device, and puts both side by side.

mod live;
mod outcome;
mod page;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use osier_runtime::bootstrap::{Event, Job, Options, Placement};
use osier_runtime::create::{CreateSpec, DEFAULT_PIPELINE, create};
use osier_runtime::workload::FilesSpec;
use osier_runtime::{RecordCore, RuntimeError, Session, Watch};
use osier_sched::Recording;

use super::{Context as Invocation, PlacementArg, domain};
use crate::exit::{Exit, Failure};
use crate::profiles;
use crate::signals::{self, StopFlag};
use outcome::{Outcome, Prediction};

/// Compress, encrypt and checksum real files while the device heats up and its actors move.
#[derive(Debug, Args)]
#[command(after_help = "\
Without --input it takes what every machine with Osier has: its sources, if it is started in their directory, \
and its own program. The model runs at a stated fraction of the profile's rates (--rate-divisor; energies are \
multiplied, so that the heat is the same) and the temperature moves faster than it would (--thermal-time-scale); \
nothing else is scaled.")]
pub struct DemoArgs {
    /// A file or directory to write; may be given several times.
    #[arg(long, value_name = "PATH")]
    input: Vec<PathBuf>,
    /// How long to write, in seconds, for each of the two runs.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// A built-in profile, or the path of one.
    #[arg(long, default_value = "smartssd")]
    profile: String,
    /// Where the actors are in the first run; the second run always has them fixed on the device.
    #[arg(long, value_enum, default_value_t = PlacementArg::Adaptive)]
    placement: PlacementArg,
    /// The placement policy (`osier sched policies` lists them).
    #[arg(long, default_value = osier_sched::DEFAULT_POLICY)]
    policy: String,
    /// Divide the profile's rates by this, and multiply its energies.
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    rate_divisor: u32,
    /// Let the temperature change so many times faster.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    thermal_time_scale: u32,
    /// Where the HTML report goes; a file that is no such report is never overwritten [default: osier-demo.html; of
    /// one run alone osier-demo-one-run.html, of `sched record` FILE.html].
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,
    /// Where the device is made; by default in a temporary directory that is removed at the end.
    #[arg(long, value_name = "DIR")]
    device: Option<PathBuf>,
    /// Leave out the second run, with placement fixed on the device.
    #[arg(long)]
    pub skip_fixed: bool,
    /// Write the scheduler's samples of the first run to this file, for `osier sched replay`.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write every input of the device core of the first run to this file, for `osier replay`.
    #[arg(long, value_name = "FILE")]
    record_core: Option<PathBuf>,
}

/// Bytes of input at most, so that a pass over it is short against the run.
const INPUT_BYTES_MAX: u64 = 96 << 20;
/// Where a report's title stands.
const REPORT_HEAD_BYTES: usize = 4096;
/// The device that the demo makes.
const CAPACITY_BYTES: u64 = 1 << 30;

/// Runs the demo.
pub fn run(args: &DemoArgs, context: &Invocation) -> Result<Exit> {
    let (text, profile) = profiles::find(&args.profile)?;
    let scaled = profile.scaled(args.rate_divisor, args.thermal_time_scale);
    let inputs = inputs(&args.input)?;
    // Before a device is made for what cannot be written to it.
    osier_runtime::corpus::check(&inputs, INPUT_BYTES_MAX).map_err(RuntimeError::from)?;
    let report = report_path(args);
    check_report(&report, page::title(args))?;
    let (root, temporary) = match &args.device {
        Some(root) => (root.clone(), None),
        None => {
            let temporary = tempfile::Builder::new().prefix("osier-demo-").tempdir();
            let temporary = temporary.context("making a temporary directory")?;
            (temporary.path().to_owned(), Some(temporary))
        }
    };
    let stop = match temporary.as_ref().map(|temporary| temporary.path().to_owned()) {
        Some(scratch) => signals::stop_flag_or(move || remove(&scratch))?,
        None => signals::stop_flag()?,
    };
    let first: Placement = args.placement.into();
    let mut outcomes = Vec::new();
    let runs = [(name(first), first), ("device-fixed", Placement::Device)];
    for (label, placement) in runs.into_iter().take(if args.skip_fixed { 1 } else { 2 }) {
        let image = root.join(format!("demo-{label}"));
        create(&CreateSpec::new(&image, &text.name, &text.text, CAPACITY_BYTES))?;
        outcomes.push(one_run(args, context.json, &image, (label, placement), &inputs, &stop)?);
    }
    let prediction = Prediction::of(&scaled, &outcomes);
    let page = page::build(args, &scaled, &outcomes, &prediction);
    std::fs::write(&report, page).with_context(|| format!("writing the report {}", report.display()))?;
    if context.json {
        println!("{}", outcome::json(&outcomes, &prediction, &report));
    } else {
        println!("\n{}", outcome::table(&outcomes).to_text());
        outcomes.iter().for_each(|outcome| println!("{}", outcome.gap_sentence()));
        if !args.skip_fixed {
            println!("{}", prediction.sentence());
        }
        println!("report: {}", report.display());
    }
    if let Some(path) = &args.record {
        check_record(path)?;
    }
    Ok(if outcomes.iter().all(Outcome::is_right) { Exit::Ok } else { Exit::VerificationFailed })
}

/// Removes the temporary directory of a demonstration that nobody ends in order any more, and says so.
fn remove(scratch: &Path) -> String {
    match std::fs::remove_dir_all(scratch) {
        Ok(()) => "its temporary directory is removed".to_owned(),
        Err(error) => format!("its temporary directory {} is not removed ({error}): remove it", scratch.display()),
    }
}

/// Where the report goes. Each kind has a name of its own, so that one does not take the place of another.
fn report_path(args: &DemoArgs) -> PathBuf {
    let named = args.report.clone();
    named.unwrap_or_else(|| match (&args.record, args.skip_fixed) {
        (Some(samples), true) => {
            let mut name = samples.clone().into_os_string();
            name.push(".html");
            name.into()
        }
        (_, true) => "osier-demo-one-run.html".into(),
        (_, false) => "osier-demo.html".into(),
    })
}

/// Refuses a place where the report cannot go, or where something else than a report of this title is, before the work
/// that it is to report on.
fn check_report(path: &Path, title: &str) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !directory.is_dir() {
        let text =
            format!("the report cannot go to {}; name a file in a directory that exists with --report", path.display());
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    // What is no file, such as a pipe, has nothing to lose.
    if path.is_file() && !is_report(path, title) {
        let text = format!(
            "{} is there and is not a report titled \"{title}\"; name another file with --report, or remove it",
            path.display()
        );
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    Ok(())
}

/// Whether a file is empty, or a report of this title.
fn is_report(path: &Path, title: &str) -> bool {
    let element = format!("<title>{title}</title>");
    std::fs::read(path).is_ok_and(|bytes| {
        let head = String::from_utf8_lossy(&bytes[..bytes.len().min(REPORT_HEAD_BYTES)]);
        bytes.is_empty() || head.contains(&element)
    })
}

/// Refuses a recording that was cut short: the host's domain said why, and went on.
fn check_record(path: &Path) -> Result<()> {
    // A pipe or a terminal has no end to look at.
    if !path.is_file() {
        return Ok(());
    }
    let whole = std::fs::read_to_string(path).ok().and_then(|text| Recording::parse(&text).ok());
    if whole.is_none_or(|recording| !recording.malformed.is_empty()) {
        bail!(
            "the samples in {} are not whole; the message above says why, and the run itself was not harmed",
            path.display()
        );
    }
    Ok(())
}

fn name(placement: Placement) -> &'static str {
    match placement {
        Placement::Host => "host-fixed",
        Placement::Device => "device-only",
        Placement::Adaptive => "adaptive",
    }
}

fn one_run(
    args: &DemoArgs,
    json: bool,
    image: &Path,
    (label, placement): (&'static str, Placement),
    inputs: &[PathBuf],
    stop: &StopFlag,
) -> Result<Outcome> {
    let options = Options {
        record: args.record.clone().filter(|_| label != "device-fixed"),
        record_core: args
            .record_core
            .clone()
            .filter(|_| label != "device-fixed")
            .map(|path| RecordCore { path, wait: false }),
        placement,
        policy: args.policy.clone(),
        rate_divisor: args.rate_divisor,
        thermal_time_scale: args.thermal_time_scale,
        ..Options::default()
    };
    let tag = osier_runtime::create::current_tag(image, DEFAULT_PIPELINE)?;
    let job = Job::Files(FilesSpec {
        inputs: inputs.to_vec(),
        input_bytes_max: INPUT_BYTES_MAX,
        write_ns: args.seconds * 1_000_000_000,
        depth: 8,
        request_blocks: 16,
        tag: tag.0,
        verify: true,
    });
    let mut session = Session::start(domain::session(image.to_owned(), options, job)?)?;
    let names = session.setup().pipelines.actors().iter().map(|a| a.stage.name.clone()).collect();
    let survival = session.setup().survival()?;
    let mut view = live::View::new(label, names, json);
    let mut outcome = Outcome::new(label, survival);
    session.watch(|session, event| {
        match event {
            None if stop.is_set() => return Watch::End,
            None => {}
            Some(Event::Progress(progress)) => {
                view.show(progress);
                outcome.series.push(progress.clone());
            }
            Some(Event::Notice { text }) => view.notice(text),
            // A host that died and was recovered serves again; the run began with the first.
            Some(Event::Serving { at_ns }) if outcome.began_ns == 0 => outcome.began_ns = *at_ns,
            Some(Event::Serving { .. }) => {}
            Some(Event::Finished(report)) => {
                outcome.finish(session, report);
                report.tally.first_lost.iter().for_each(|text| view.notice(text));
                return Watch::End;
            }
        }
        Watch::On
    })?;
    view.end();
    outcome.deaths = session.deaths().len();
    session.stop()?;
    if !outcome.finished {
        bail!("the {label} run was stopped before it ended");
    }
    Ok(outcome)
}

/// What to write when nothing was named: the project's sources, if we stand in them, and this program.
fn inputs(named: &[PathBuf]) -> Result<Vec<PathBuf>> {
    if !named.is_empty() {
        return Ok(named.to_vec());
    }
    let here = std::env::current_dir().context("finding the current directory")?;
    // Sources only: what was built beside them differs from one checkout to the next, and can be of any size.
    let names =
        ["crates", "bin", "actors/builtin", "actors/codecs", "actors/sdk", "actors/prebuilt", "docs", "profiles"];
    let in_project = here.join("Cargo.toml").exists();
    let sources = names.iter().map(|name| here.join(name)).filter(|path| in_project && path.exists());
    let program = std::env::current_exe().context("finding this program")?;
    let room = INPUT_BYTES_MAX / 2;
    let fits = std::fs::metadata(&program).is_ok_and(|meta| meta.len() <= room);
    let inputs: Vec<PathBuf> = sources.chain(fits.then_some(program)).collect();
    if inputs.is_empty() {
        bail!("there is nothing to write: name files with --input");
    }
    Ok(inputs)
}
