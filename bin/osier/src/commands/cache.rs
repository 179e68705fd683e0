//! `osier cache`: eviction policies on traces, through the cache alone. Nothing takes time; what comes out is misses.
//!
//! Results are printed when all runs are done: of a run that failed, nothing passes for a result.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use osier_actor::policy::Source;
use osier_cache::{
    CacheConfig, ConfigError, OPTIMUM, Op, POLICIES, ParameterValues, ReplayError, SetIndex, Shape, Stats, WriteMode,
    parse_policy, replay, replay_with,
};
use osier_sim::trace::PAGE_BYTES;
use serde_json::{Value, json};

use super::Context;
use super::trace::{HowArgs, each};
use crate::exit::{Exit, Failure};
use crate::output::{self, Table};
use crate::policies;

/// Most requests for a page that a replay keeps in memory, 8 bytes each.
const PAGE_REQUESTS_MAX: usize = 1 << 30;

/// Try eviction policies of the DRAM cache on traces
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// The eviction policies that there are, with their parameters
    Policies,
    /// Replay a trace through the cache alone, and count misses
    ///
    /// Belady's optimum, which knows the future, is always there as the bound.
    Replay(ReplayArgs),
}

/// `osier cache replay`
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The trace, also compressed by gzip or zstd; `-` is standard input
    #[arg(long)]
    trace: String,
    #[command(flatten)]
    how: HowArgs,
    /// A policy by its name, or a WebAssembly module by its path; with parameters as in `s3-fifo:small_permille=200`
    ///
    /// May be given several times. By default, every policy that has a name.
    #[arg(long, value_name = "POLICY[:KEY=VALUE,...]")]
    policy: Vec<String>,
    /// The size of the cache, in pages of 4 KiB; several are separated by commas
    #[arg(long, value_name = "N", required = true, value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    frames: Vec<u32>,
    /// Frames of a set; by default all of them, which is fully associative
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ways: Option<u32>,
    /// For policies that draw numbers
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

/// Does what was asked.
///
/// # Errors
/// A trace, policy or size that cannot be used, a policy that fails.
pub fn run(command: &CacheCommand, context: &Context) -> Result<Exit> {
    match command {
        CacheCommand::Policies => list(context),
        CacheCommand::Replay(args) => replay_all(args, context),
    }
}

fn refuse(cause: impl std::fmt::Display) -> anyhow::Error {
    Failure::new(Exit::BadInput, cause.to_string()).into()
}

fn list(context: &Context) -> Result<Exit> {
    let mut table = Table::new(&["POLICY", "WHAT LEAVES", "PARAMETERS"]);
    let mut values = Vec::new();
    for info in POLICIES {
        let parameters: Vec<String> = info.parameters.iter().map(|p| format!("{}={}", p.name, p.default)).collect();
        table.row(vec![info.name.to_owned(), info.summary.to_owned(), parameters.join(",")]);
        let parameter = |p: &osier_cache::Parameter| json!({ "name": p.name, "default": p.default, "min": p.min, "max": p.max, "about": p.about });
        let parameters: Vec<Value> = info.parameters.iter().map(parameter).collect();
        values.push(json!({ "name": info.name, "summary": info.summary, "parameters": parameters }));
    }
    if context.json {
        output::print_json(&values)?
    } else {
        output::print(&table.text())?
    }
    Ok(Exit::Ok)
}

/// One policy to try.
struct Tried {
    /// As it was given.
    word: String,
    source: Source,
    parameters: ParameterValues,
}

impl Tried {
    fn parse(word: &str) -> Result<Tried> {
        let (name, parameters) = parse_policy(word).map_err(refuse)?;
        Ok(Tried { word: word.to_owned(), source: policies::find(name)?, parameters })
    }

    fn run(&self, config: &CacheConfig, seed: u64, trace: &Pages) -> Result<Stats> {
        let failed = |error: ReplayError| refuse(format_args!("{error}; nothing of this replay is a result"));
        match &self.source {
            Source::Name(name) => {
                let (eviction, eviction_parameters) = (name.clone(), self.parameters.clone());
                let config = CacheConfig { eviction, eviction_parameters, ..config.clone() };
                replay(&config, seed, trace.requests()).map_err(failed)
            }
            Source::Module(module) => {
                let policy = module.policy(config.shape()?, &self.parameters, seed).map_err(refuse)?;
                replay_with(config, policy, trace.requests()).map_err(failed)
            }
        }
    }

    /// Finds out before the replays begin whether it can be made.
    fn check(&self, shape: Shape, seed: u64) -> Result<()> {
        self.source.policy(shape, &self.parameters, seed).map(drop).map_err(refuse)
    }
}

/// The pages that a trace asks for.
#[derive(Default)]
struct Pages {
    /// Number of the page, doubled; the last bit says that it is written.
    packed: Vec<u64>,
    /// Trims and flushes, which are no use of a page.
    left_out: u64,
    bad_lines: u64,
}

impl Pages {
    fn read(args: &ReplayArgs) -> Result<Pages> {
        let (_, mut trace) = args.how.open(&args.trace)?;
        let mut pages = Pages::default();
        let taken = each(&mut trace.reader, |request| pages.take(request));
        taken.map_err(|error| trace.refuse(&error))?;
        trace.warn();
        pages.bad_lines = trace.reader.counts().bad();
        if pages.packed.is_empty() {
            return Err(trace.refuse(&"no request of it reads or writes; there is nothing to replay"));
        }
        Ok(pages)
    }

    fn take(&mut self, request: &osier_sim::Request) -> Result<()> {
        let is_write = match request.op {
            osier_sim::Op::Read | osier_sim::Op::Load => 0,
            osier_sim::Op::Write | osier_sim::Op::Store => 1,
            osier_sim::Op::Trim | osier_sim::Op::Flush => {
                self.left_out += 1;
                return Ok(());
            }
        };
        let page_bytes = u64::from(PAGE_BYTES);
        let last = request.address + u64::from(request.bytes) - 1;
        for page in request.address / page_bytes..=last / page_bytes {
            if self.packed.len() == PAGE_REQUESTS_MAX {
                return Err(refuse(format_args!(
                    "it asks for more than {PAGE_REQUESTS_MAX} pages, the most there is room for; cut it"
                )));
            }
            self.packed.push(page << 1 | is_write);
        }
        Ok(())
    }

    fn requests(&self) -> impl Iterator<Item = (u64, Op)> + Clone {
        self.packed.iter().map(|packed| (packed >> 1, if packed & 1 == 1 { Op::WRITE } else { Op::READ }))
    }
}

/// What one policy did in one size.
struct Outcome {
    policy: String,
    frames: u32,
    stats: Stats,
    /// Misses of the optimum.
    least: u64,
}

fn config(frames: u32, ways: Option<u32>) -> Result<CacheConfig, ConfigError> {
    let config = CacheConfig {
        frames,
        ways: ways.unwrap_or(frames),
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: 0,
        eviction: OPTIMUM.to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: osier_cache::NO_PREFETCH.to_owned(),
        prefetch_parameters: ParameterValues::new(),
        write_log: None,
    };
    config.shape().map(|_| config)
}

fn replay_all(args: &ReplayArgs, context: &Context) -> Result<Exit> {
    let all: Vec<String> = POLICIES.iter().map(|info| info.name.to_owned()).collect();
    let words = if args.policy.is_empty() { &all } else { &args.policy };
    // The optimum is there in any case.
    let tried = words.iter().filter(|word| *word != OPTIMUM).map(|word| Tried::parse(word));
    let tried: Vec<Tried> = tried.collect::<Result<_>>()?;
    let configs = args.frames.iter().map(|frames| config(*frames, args.ways).map_err(refuse));
    let configs: Vec<CacheConfig> = configs.collect::<Result<_>>()?;
    for config in &configs {
        let shape = config.shape()?;
        tried.iter().try_for_each(|tried| tried.check(shape, args.seed))?;
    }
    let trace = Pages::read(args)?;
    let mut outcomes = Vec::new();
    for config in &configs {
        let least = replay(config, args.seed, trace.requests()).context("replaying the optimum")?;
        let outcome = |policy: &str, stats| Outcome {
            policy: policy.to_owned(),
            frames: config.frames,
            stats,
            least: least.misses,
        };
        for tried in &tried {
            outcomes.push(outcome(&tried.word, tried.run(config, args.seed, &trace)?));
        }
        outcomes.push(outcome(OPTIMUM, least));
    }
    show(args, &trace, &outcomes, context)?;
    Ok(Exit::Ok)
}

fn show(args: &ReplayArgs, trace: &Pages, outcomes: &[Outcome], context: &Context) -> Result<()> {
    if context.json {
        let runs: Vec<Value> = outcomes.iter().map(Outcome::to_json).collect();
        return Ok(output::print_json(&json!({
            "trace": args.trace,
            "page_bytes": PAGE_BYTES,
            "page_requests": trace.packed.len(),
            "left_out": trace.left_out,
            "bad_lines": trace.bad_lines,
            "ways": args.ways,
            "seed": args.seed,
            "runs": runs,
        }))?);
    }
    let mut table = Table::new(&["FRAMES", "POLICY", "MISSES", "MISS RATIO", "X OPTIMUM", "DIRTY EVICTIONS"]);
    outcomes.iter().for_each(|outcome| table.row(outcome.cells()));
    let left_out = match trace.left_out {
        0 => String::new(),
        count => format!(", {count} trims and flushes left out"),
    };
    let head = format!("{}: {} requests for pages of 4 KiB{left_out}\n\n", args.trace, trace.packed.len());
    Ok(output::print(&(head + &table.text()))?)
}

/// A part of a whole in ten-thousandths, rounded.
fn ten_thousandths(part: u64, whole: u64) -> u128 {
    (u128::from(part) * 20_000 + u128::from(whole)) / (2 * u128::from(whole.max(1)))
}

impl Outcome {
    fn to_json(&self) -> Value {
        let Outcome { policy, frames, stats, least } = self;
        json!({
            "policy": policy,
            "frames": frames,
            "requests": stats.requests(),
            "reads": stats.reads,
            "writes": stats.writes,
            "hits": stats.hits,
            "misses": stats.misses,
            "misses_of_optimum": least,
            "miss_ratio": stats.misses as f64 / stats.requests() as f64,
            "evicted_clean": stats.evicted_clean,
            "evicted_dirty": stats.evicted_dirty,
        })
    }

    fn cells(&self) -> Vec<String> {
        let ratio = ten_thousandths(self.stats.misses, self.stats.requests());
        let over = ten_thousandths(self.stats.misses, self.least) / 10;
        vec![
            self.frames.to_string(),
            self.policy.clone(),
            self.stats.misses.to_string(),
            format!("{}.{:02} %", ratio / 100, ratio % 100),
            format!("{}.{:03}", over / 1000, over % 1000),
            self.stats.evicted_dirty.to_string(),
        ]
    }
}
