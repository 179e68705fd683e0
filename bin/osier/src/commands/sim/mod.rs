//! `osier sim`: a device under a workload or a trace, in virtual time.
//!
//! A run that is interrupted, or whose trace is broken, prints no result and leaves no file.

mod per_io;
mod watch;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use osier_flash::page::FillPattern;
use osier_sim::run::{
    DriveError, FillMethod, Limits, Load, Options, Precondition, RunReport, SimulateError, WarmUp, simulate_with,
};
use osier_sim::trace::Speed;
use osier_sim::workload::Workload;

use self::per_io::PerIo;
use self::watch::Looker;
use super::Context;
use super::trace::{HowArgs, Opened, RemapArg, find_workload, parse_factor};
use crate::exit::{Exit, Failure};
use crate::policies::Policies;
use crate::units::{parse_bytes, parse_duration_ns, scaled};
use crate::whole_file::WholeFile;
use crate::{output, profiles};

/// `osier sim`
#[derive(Debug, Args)]
pub struct SimArgs {
    /// A built-in profile, or the path of a file
    #[arg(long, value_name = "NAME|FILE")]
    profile: String,
    /// A built-in workload, a workload's file (.toml), or a trace; `-` is a trace on standard input
    #[arg(long, value_name = "NAME|FILE|-")]
    workload: String,
    /// Set a key of the profile otherwise, as in cache.eviction=sieve; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::parse_setting)]
    set: Vec<(String, toml::Value)>,
    /// Draws everything that is random, also in a workload; the workload's own, or 1, if not given
    #[arg(long)]
    seed: Option<u64>,
    /// Bytes that the host can address, if fewer than the profile has
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    capacity: Option<u64>,
    /// Fill the device first, as after long use: how full, `random` (the default) or `sequential`, and `analytic` (the
    /// default), in no time as a closed form says, or `simulated`, by the writes themselves
    #[arg(long, value_name = "FILL[:PATTERN[:METHOD]]", value_parser = parse_precondition)]
    precondition: Option<Precondition>,
    /// Do not count the first requests, or those of the first time, as in 100000 or 5s
    #[arg(long, value_name = "N|TIME", value_parser = parse_warm_up)]
    warm_up: Option<WarmUp>,
    /// Stop after so many counted requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Stop after so many seconds of the device's time
    #[arg(long, value_name = "S", value_parser = parse_seconds)]
    seconds: Option<u64>,
    /// Addresses beyond the capacity: refuse them, take them modulo it, or number a trace's 4 KiB pages by first use
    #[arg(long, value_enum, default_value = "refuse")]
    addresses: RemapArg,
    /// Forget the times of a trace, and keep so many requests under way
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: Option<u32>,
    /// Multiply the times of a trace by a whole number or a fraction, as in 10 or 1/10
    #[arg(long, value_name = "FACTOR", value_parser = parse_factor, conflicts_with = "depth")]
    time_scale: Option<(u32, u32)>,
    #[command(flatten)]
    how: HowArgs,
    /// Write the result as JSON into a file
    #[arg(long, value_name = "FILE")]
    json_file: Option<PathBuf>,
    /// Write the result as a page with pictures
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a line for each counted request, as CSV; compressed if the name ends in .zst
    #[arg(long, value_name = "FILE")]
    per_io: Option<PathBuf>,
    /// Replace files if they are there
    #[arg(long)]
    overwrite: bool,
    /// Show no progress
    #[arg(long)]
    quiet: bool,
}

fn parse_precondition(text: &str) -> Result<Precondition, String> {
    let mut words = text.splitn(3, ':');
    let (fill, pattern) = (words.next().unwrap_or_default(), words.next().unwrap_or("random"));
    let method = match words.next() {
        None | Some("analytic") => Some(FillMethod::Analytic),
        Some("simulated") => Some(FillMethod::Simulated),
        Some(_) => None,
    };
    let fill_permille = scaled(fill.trim_end_matches('%'), 10).filter(|permille| *permille <= 1000);
    let pattern = match pattern {
        "random" => Some(FillPattern::UniformRandom),
        "sequential" => Some(FillPattern::Sequential),
        _ => None,
    };
    let all = fill_permille.and_then(|fill| u32::try_from(fill).ok()).zip(pattern).zip(method);
    let all = all.map(|((fill_permille, pattern), method)| Precondition { fill_permille, pattern, method });
    all.ok_or_else(|| {
        format!(
            "`{text}` is no fill: write percent with at most one decimal, `random` or `sequential`, and `analytic` or `simulated`, as in 100%:random or 80%:random:simulated"
        )
    })
}

fn parse_warm_up(text: &str) -> Result<WarmUp, String> {
    let requests = text.parse().ok().map(WarmUp::Requests);
    let time = || parse_duration_ns(text).ok().map(WarmUp::Nanos);
    requests.or_else(time).ok_or_else(|| {
        format!("`{text}` is no warm-up: write a number of requests, or a time with its unit, as in 100000 or 5s")
    })
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    let nanos = scaled(text, 1_000_000_000).filter(|nanos| *nanos > 0);
    nanos.ok_or_else(|| format!("`{text}` are no seconds: write a number above 0, as in 10 or 0.5"))
}

/// What is asked of the device, from what the command line names.
enum Asked {
    Workload(Box<Workload>),
    Trace(Box<Opened>),
}

/// Simulates, and shows the result.
///
/// # Errors
/// A profile, workload or trace that is not understood or does not fit the device; an interrupt; a file that cannot be
/// written.
pub fn run(args: &SimArgs, context: &Context) -> Result<Exit> {
    let profile = profiles::find_with(&args.profile, &args.set)?;
    let mut policies = Policies::default();
    if let Some(cache) = &profile.cache {
        policies.add(&cache.eviction, &cache.eviction)?;
    }
    let mut asked = args.find_asked()?;
    // Before the work is done: it is not to be lost to a wrong name.
    let page = args.html.as_deref().map(|path| WholeFile::create(path, "page", args.overwrite)).transpose()?;
    let json = args.json_file.as_deref().map(|path| WholeFile::create(path, "result", args.overwrite)).transpose()?;
    let per_io = args.per_io.as_deref().map(|path| PerIo::create(path, args.overwrite)).transpose()?;
    let mut looker = Looker::new(per_io, args.quiet)?;
    let load = match &mut asked {
        Asked::Workload(workload) => Load::Workload { name: &args.workload, workload },
        Asked::Trace(trace) => Load::Trace { name: &args.workload, reader: &mut trace.reader, speed: args.speed() },
    };
    let make_policy = |cache: &_, seed| policies.make(cache, seed);
    let done = simulate_with(&make_policy, &profile, load, &args.options(), &mut looker);
    let per_io = looker.end()?;
    if let Asked::Trace(trace) = &asked {
        trace.warn();
    }
    let report = done.map_err(|error| failure(error, &asked))?;
    if let Some(per_io) = per_io {
        per_io.keep()?;
    }
    for (file, text) in [(page, RunReport::to_page as fn(&RunReport) -> String), (json, RunReport::to_json)] {
        if let Some(mut file) = file {
            file.write_all(text(&report).as_bytes()).map_err(|cause| file.failure(cause))?;
            file.keep()?;
        }
    }
    output::print(&if context.json { report.to_json() } else { report.to_text() })?;
    Ok(Exit::Ok)
}

fn failure(error: SimulateError, asked: &Asked) -> anyhow::Error {
    let text = match (&error, asked) {
        (SimulateError::Drive(DriveError::Stopped { submitted }), _) => {
            let text =
                format!("stopped after {submitted} requests; a part of a run is no result, and nothing was written");
            return Failure::new(Exit::Failure, text).into();
        }
        (SimulateError::Drive(DriveError::Trace(cause)), Asked::Trace(trace)) => return trace.refuse(cause),
        (error, _) => error.to_string(),
    };
    Failure::new(Exit::BadInput, text).into()
}

impl SimArgs {
    fn options(&self) -> Options {
        let set = self.set.iter().map(|(key, value)| (key.clone(), value.to_string()));
        Options {
            seed: self.seed,
            capacity_bytes: self.capacity,
            set: set.collect::<BTreeMap<_, _>>(),
            precondition: self.precondition,
            limits: Limits {
                warm_up: self.warm_up.unwrap_or_default(),
                requests_max: self.requests,
                duration_ns: self.seconds,
            },
            addresses: self.addresses.into(),
        }
    }

    fn speed(&self) -> Speed {
        match (self.depth, self.time_scale) {
            (Some(depth), _) => Speed::Closed { depth },
            (None, Some((numerator, denominator))) => Speed::Scaled { numerator, denominator },
            (None, None) => Speed::Scaled { numerator: 1, denominator: 1 },
        }
    }

    /// A word that ends in `.toml` is a workload's file, one that names a built-in workload is that, and any other is a
    /// trace.
    fn find_asked(&self) -> Result<Asked> {
        let word = self.workload.as_str();
        let is_workload = word.ends_with(".toml") || Workload::built_in_names().any(|name| name == word);
        if is_workload {
            let of_traces = [self.depth.map(|_| "--depth"), self.time_scale.map(|_| "--time-scale")];
            if let Some(option) = of_traces.into_iter().flatten().next() {
                let text =
                    format!("{option} is for traces, and {word} is a workload, which says itself when requests come");
                return Err(Failure::new(Exit::BadInput, text).into());
            }
            return Ok(Asked::Workload(Box::new(find_workload(word)?)));
        }
        if word != "-" && !word.contains('/') && !Path::new(word).exists() {
            let known = Workload::built_in_names().collect::<Vec<_>>().join(", ");
            let text = format!(
                "there is no trace {word} and no built-in workload of this name; choose one of {known}, or give the path of a trace or of a workload's .toml"
            );
            return Err(Failure::new(Exit::BadInput, text).into());
        }
        let (_, trace) = self.how.open(word)?;
        Ok(Asked::Trace(Box::new(trace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_options_mean() {
        let fill = |text: &str| parse_precondition(text).map(|fill| (fill.fill_permille, fill.pattern, fill.method));
        assert_eq!(fill("100%"), Ok((1000, FillPattern::UniformRandom, FillMethod::Analytic)));
        assert_eq!(fill("62.5:sequential"), Ok((625, FillPattern::Sequential, FillMethod::Analytic)));
        assert_eq!(fill("100%:random:simulated"), Ok((1000, FillPattern::UniformRandom, FillMethod::Simulated)));
        for text in ["101%", "full", "50:often", "1.25%", "", "100%:random:guessed", "100%:simulated"] {
            assert!(fill(text).unwrap_err().contains("100%:random"), "{text}");
        }
        assert_eq!(parse_warm_up("10"), Ok(WarmUp::Requests(10)));
        assert_eq!(parse_warm_up("10ms"), Ok(WarmUp::Nanos(10_000_000)));
        assert!(parse_warm_up("long").is_err() && parse_warm_up("-1").is_err());
        assert_eq!((parse_seconds("0.5"), parse_seconds("2")), (Ok(500_000_000), Ok(2_000_000_000)));
        assert!(parse_seconds("0").is_err() && parse_seconds("1s").is_err());
    }
}
