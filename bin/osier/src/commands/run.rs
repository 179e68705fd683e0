//! `osier run`: an unmodified program whose heap, or what it maps by a path, lies in a device's window.

use std::ffi::OsString;
use std::fs;
use std::os::fd::IntoRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::RangedI64ValueParser;
use osier_client::extent::{Extent, ExtentError, plain};
use osier_client::heap::{self, Dax, HEAP_MIN_BYTES, LeaseError, Settings, THRESHOLD_BYTES, stand_in};
use osier_client::placement::{CallSites, DEPTH_MAX, RULES_MAX, Rule, RuleError};
use osier_client::{FaultMode, HitLatency, hits};

use super::Context;
use crate::exit::{Exit, Failure};
use crate::preloaded::{self, ModeArg};
use crate::units::parse_bytes;

/// The latency of hits, if none is given.
const OF_PROFILE: &str = "profile";
/// The longest latency of a hit: no memory takes that long.
const HIT_NS_MAX: u32 = 100_000;
/// Most call sites that are said at the end.
const CALL_SITES_MAX: i64 = 1000;

/// Run a program with its heap in a device's memory
///
/// What it allocates, and its large anonymous mappings, are pages of the window; what is in the device's cache costs
/// what memory costs. Nothing is changed in the program. Start a device with `osier window serve`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The socket of the device
    #[arg(long, value_name = "SOCKET")]
    device: PathBuf,
    /// Who resolves faults
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeArg,
    /// A path that the program opens and maps: bytes of the window, kept while the device lives
    ///
    /// Programs that are given the same path have the same bytes. The size, whole pages of 4 KiB, is said once, by who
    /// makes them; they are zero then. With this and without `--heap` the program's heap is ordinary memory.
    #[arg(long, value_name = "PATH[=SIZE]", value_parser = parse_dax)]
    dax: Vec<DaxArg>,
    /// Bytes of the window for the program's heap, a multiple of 32 MiB, 64 MiB at least [default: the largest free
    /// part]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    heap: Option<u64>,
    /// Anonymous mappings of so many bytes and more lie in the window
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value_t = THRESHOLD_BYTES)]
    threshold: u64,
    /// Allocations of fewer bytes stay in ordinary memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value_t = 0)]
    from_size: u64,
    /// A file of rules of where allocations lie, by their call sites
    ///
    /// A line is a rule, as of `--place-rule`; what follows a `#` is not read. Those of `--place-rule` go before.
    #[arg(long, value_name = "FILE")]
    place: Option<PathBuf>,
    /// A rule of where allocations lie: the first that fits decides, and where none does the other options do
    ///
    /// `window` or `memory`, then what it is of: `any`, or `module=NAME`, `module=NAME+0xOFFSET`, `symbol=NAME` of the
    /// caller, `depth=N` callers further up, and `size=FROM..TO`; as in 'memory symbol=dictExpand depth=1'.
    #[arg(long, value_name = "RULE", value_parser = parse_rule)]
    place_rule: Vec<Rule>,
    /// Say at the end which call sites took most bytes of the window, so many of them
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = shown())]
    call_sites: u32,
    /// These are of so many callers further up: 0 is who calls `malloc` or `mmap`
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = depths())]
    call_depth: u8,
    /// Have loads of pages in the device's cache take so many nanoseconds, or what the device's profile says
    ///
    /// Threads are stopped for as long as such loads took less on this machine. The figures say how much was added, and
    /// how well that is known.
    #[arg(
        long,
        value_name = "NANOSECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = OF_PROFILE,
        value_parser = parse_hit_latency
    )]
    hit_latency: Option<HitLatency>,
    /// Programs that the program starts have heaps in the window too
    ///
    /// Each has an eighth of it, unless `--heap` says otherwise.
    #[arg(long)]
    children: bool,
    /// Add the figures to this file at the end, instead of standard error
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// A path, and the size that it is to have.
#[derive(Debug, Clone)]
struct DaxArg {
    path: PathBuf,
    bytes: Option<u64>,
}

/// What follows the last `=` is the size, unless it cannot be one.
fn parse_dax(text: &str) -> Result<DaxArg, String> {
    let sized = text.rsplit_once('=').and_then(|(path, size)| Some((path, parse_bytes(size).ok()?)));
    let (path, bytes) = sized.map_or((text, None), |(path, bytes)| (path, Some(bytes)));
    let path = plain(&std::path::absolute(path).map_err(|error| format!("`{path}` is no path: {error}"))?);
    if path.file_name().is_none() {
        return Err(format!(
            "`{text}` names no file: write a path, and a size if it is new, as in /mnt/dax/pool=64MiB"
        ));
    }
    Ok(DaxArg { path, bytes })
}

fn parse_hit_latency(text: &str) -> Result<HitLatency, String> {
    match text.parse() {
        _ if text == OF_PROFILE => Ok(HitLatency::Profile),
        Ok(ns @ 1..=HIT_NS_MAX) => Ok(HitLatency::Nanoseconds(ns)),
        _ => Err(format!("`{text}` is no latency of a hit: write nanoseconds from 1 to {HIT_NS_MAX}, or nothing")),
    }
}

fn shown() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(0..=CALL_SITES_MAX)
}

fn depths() -> RangedI64ValueParser<u8> {
    clap::value_parser!(u8).range(0..=i64::from(DEPTH_MAX))
}

fn parse_rule(text: &str) -> Result<Rule, RuleError> {
    Rule::parse(text, |bytes| parse_bytes(bytes).ok())
}

/// Becomes the program.
///
/// # Errors
/// What is missing: the device, a permission, the library, the program.
pub fn run(args: &RunArgs, context: &Context) -> Result<Exit> {
    let socket = fs::canonicalize(&args.device).unwrap_or_else(|_| args.device.clone());
    let mode = args.mode.mode();
    let has_heap = args.dax.is_empty() || args.heap.is_some();
    let least = if has_heap { HEAP_MIN_BYTES } else { 0 };
    let call_sites = args.call_sites(has_heap)?;
    if args.hit_latency.is_some() {
        hits::check().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    }
    preloaded::check_window(&socket, mode, "a heap", least, args.heap)?;
    let name = &args.program[0];
    let program = preloaded::find(name).ok_or_else(|| {
        Failure::new(Exit::BadInput, format!("there is no program {} on the PATH", Path::new(name).display()))
    })?;
    let dax = args.dax.iter().map(|dax| dax.find(&socket, mode)).collect::<Result<_>>()?;
    let survives_power_loss = !args.dax.is_empty() && heap::survives_power_loss(&socket).map_err(refused)?;
    let settings = Settings {
        socket,
        heap_bytes: args.heap,
        threshold_bytes: args.threshold,
        small_bytes: args.from_size,
        mode,
        stats: args.stats.as_deref().map(std::path::absolute).transpose()?,
        json: context.json,
        children: args.children,
        stand_in: None,
        dax,
        survives_power_loss,
        call_sites,
        hit_latency: args.hit_latency,
    };
    preloaded::become_program(&program, name, &args.program[1..], &settings)
}

impl RunArgs {
    /// The rules of the command line, then those of the file.
    fn call_sites(&self, has_heap: bool) -> Result<CallSites> {
        let refuse = |text: String| Err(Failure::new(Exit::Usage, text).into());
        let mut rules = self.place_rule.clone();
        if let Some(path) = &self.place {
            let fail =
                |error| Failure::new(Exit::Usage, format!("reading the rules {} failed: {error}", path.display()));
            let text = fs::read_to_string(path).map_err(fail)?;
            for (number, line) in (1..).zip(text.lines()) {
                let line = line.split('#').next().unwrap_or_default().trim();
                if line.is_empty() {
                    continue;
                }
                match parse_rule(line) {
                    Ok(rule) => rules.push(rule),
                    Err(error) => return refuse(format!("{}:{number}: `{line}`: {error}", path.display())),
                }
            }
        }
        if rules.len() > RULES_MAX {
            return refuse(RuleError::TooMany(rules.len()).to_string());
        }
        let call_sites = CallSites { rules, shown: self.call_sites, depth: self.call_depth };
        let has_some = !call_sites.rules.is_empty() || call_sites.shown > 0;
        if has_some && !has_heap {
            return refuse(
                "call sites are those of a heap, and with --dax alone there is none: add --heap SIZE".to_owned(),
            );
        }
        if has_some && !cfg!(target_arch = "x86_64") {
            return refuse(
                "call sites are known on x86-64 alone; leave --place, --place-rule and --call-sites away".to_owned(),
            );
        }
        Ok(call_sites)
    }
}

impl DaxArg {
    /// The part of the window, made if there is none yet, and a file that stands in for it.
    fn find(&self, socket: &Path, mode: FaultMode) -> Result<Dax> {
        let extent = Extent::find_or_make(socket, &self.path, self.bytes, mode).map_err(refused)?;
        let file = stand_in(extent.bytes).context("making the file that stands in for a path failed")?;
        // The program's from now on.
        Ok(Dax { extent, fd: file.into_raw_fd() })
    }
}

fn refused(error: impl Into<ExtentError>) -> anyhow::Error {
    let error = error.into();
    let exit = match error {
        ExtentError::Lease(LeaseError::NoRoom { .. }) => Exit::NoSpace,
        ExtentError::Window(_) => Exit::Failure,
        _ => Exit::BadInput,
    };
    Failure::new(exit, error.to_string()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_of_hits_is_a_number_or_the_profiles() {
        assert_eq!(parse_hit_latency("profile"), Ok(HitLatency::Profile));
        assert_eq!(parse_hit_latency("771"), Ok(HitLatency::Nanoseconds(771)));
        for wrong in ["", "0", "-1", "100001", "5us", "99999999999"] {
            assert!(parse_hit_latency(wrong).is_err_and(|text| text.contains("nanoseconds")), "{wrong}");
        }
    }

    #[test]
    fn a_path_has_a_size_or_none() {
        let parsed = |text: &str| parse_dax(text).map(|dax| (dax.path.display().to_string(), dax.bytes));
        assert_eq!(parsed("/mnt/a"), Ok(("/mnt/a".to_owned(), None)));
        assert_eq!(parsed("/mnt//./b/../a=64MiB"), Ok(("/mnt/a".to_owned(), Some(64 << 20))));
        assert_eq!(parsed("/mnt/a=b"), Ok(("/mnt/a=b".to_owned(), None)));
        assert_eq!(parsed("/mnt/a=b=4096"), Ok(("/mnt/a=b".to_owned(), Some(4096))));
        assert!(parsed("/=4096").is_err() && parsed("=4096").is_err());
    }
}
