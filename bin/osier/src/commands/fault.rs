//! `osier fault`: the flash under simulated faults.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use osier_report::Table;
use osier_sim::fault::{self, Broken, Counts, Model};

use super::Context;
use crate::exit::{Exit, Failure};

/// What may be done under faults.
#[derive(Debug, Subcommand)]
pub enum FaultCommand {
    /// Simulate power cuts, torn and dropped writes, rot and dead dies, and check every unit
    ///
    /// Configuration, work and faults are drawn from the seed alone, so that a seed that fails fails again. Ends
    /// with 6 if one does, and tells the lowest.
    Sim(SimArgs),
}

/// Arguments of `osier fault sim`.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// The first seed
    #[arg(long)]
    seed: u64,
    /// How many seeds
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    seeds: u64,
    /// Seeds that run at the same time; 0: as many as there are processors
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=1024))]
    jobs: u64,
    /// What is simulated: the page-mapped FTL, or the one of extents
    #[arg(long, value_enum, default_value_t = ModelArg::Page)]
    model: ModelArg,
    /// Leave out the operations that a failure does not need
    #[arg(long)]
    shrink: bool,
}

/// A model, as the command line names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ModelArg {
    /// The page-mapped FTL
    Page,
    /// The FTL of extents
    Extent,
}

impl From<ModelArg> for Model {
    fn from(arg: ModelArg) -> Model {
        match arg {
            ModelArg::Page => Model::Page,
            ModelArg::Extent => Model::Extent,
        }
    }
}

/// Does what was asked.
///
/// # Errors
/// When a thread cannot be started.
pub fn run(command: &FaultCommand, context: &Context) -> Result<Exit> {
    let FaultCommand::Sim(args) = command;
    let found = simulate(args)?;
    if context.json {
        println!("{}", json(args, &found));
    } else if found.broken.is_none() {
        print!("{}", table(&found.counts).to_text());
    }
    match found.broken {
        Some(broken) => Err(Failure::new(Exit::VerificationFailed, broken.to_string()).into()),
        None => Ok(Exit::Ok),
    }
}

/// What came of it.
#[derive(Debug, Default)]
struct Found {
    seeds: u64,
    counts: Counts,
    /// The failure with the lowest seed.
    broken: Option<Box<Broken>>,
}

/// Runs the seeds on as many threads as asked for. After a failure only lower seeds are still run, so that the one
/// that is told does not depend on the number of threads.
fn simulate(args: &SimArgs) -> Result<Found> {
    let end = args.seed.saturating_add(args.seeds);
    let (next, lowest) = (AtomicU64::new(args.seed), AtomicU64::new(end));
    let found = Mutex::new(Found::default());
    let jobs = match args.jobs {
        0 => std::thread::available_parallelism().map_or(1, |count| count.get() as u64),
        jobs => jobs,
    };
    // A failed assertion is told as the failure that it is; its message alone says too little.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let work = || {
        let mut mine = Found::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= lowest.load(Ordering::Relaxed) {
                break;
            }
            match fault::run(args.model.into(), seed) {
                Ok(counts) => mine.add(1, counts),
                Err(broken) => {
                    lowest.fetch_min(seed, Ordering::Relaxed);
                    mine.keep_lowest(broken);
                }
            }
        }
        mine
    };
    std::thread::scope(|scope| -> Result<()> {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, || merge(&found, work()));
        let threads: Vec<_> =
            (0..jobs.min(args.seeds)).map(start).collect::<std::io::Result<_>>().context("starting")?;
        threads.into_iter().for_each(|thread| drop(thread.join()));
        Ok(())
    })?;
    let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(broken) = found.broken.take() {
        // What other threads ran beyond it depends on chance.
        (found.seeds, found.counts) = (broken.seed - args.seed, Counts::new());
        let smaller = if args.shrink { fault::run_and_shrink(args.model.into(), broken.seed).err() } else { None };
        found.broken = Some(smaller.unwrap_or(broken));
    }
    std::panic::set_hook(hook);
    Ok(found)
}

fn merge(all: &Mutex<Found>, one: Found) {
    let mut all = all.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    all.add(one.seeds, one.counts);
    if let Some(broken) = one.broken {
        all.keep_lowest(broken);
    }
}

impl Found {
    fn add(&mut self, seeds: u64, counts: Counts) {
        self.seeds += seeds;
        for (name, count) in counts {
            *self.counts.entry(name).or_default() += count;
        }
    }

    fn keep_lowest(&mut self, broken: Box<Broken>) {
        if self.broken.as_ref().is_none_or(|known| broken.seed < known.seed) {
            self.broken = Some(broken);
        }
    }
}

fn table(counts: &Counts) -> Table {
    let mut table = Table::new().left("").right("");
    for (name, count) in counts {
        table.row([(*name).to_owned(), count.to_string()]);
    }
    table
}

fn json(args: &SimArgs, found: &Found) -> serde_json::Value {
    let counts: serde_json::Map<String, serde_json::Value> =
        found.counts.iter().map(|(name, count)| (name.replace(' ', "_"), (*count).into())).collect();
    let broken = found.broken.as_ref().map(|broken| {
        serde_json::json!({
            "seed": broken.seed,
            "what": broken.what,
            "configuration": broken.config,
            "operations": broken.operations - broken.skipped,
            "story": broken.story,
        })
    });
    serde_json::json!({
        "model": Model::from(args.model).to_string(),
        "seed": args.seed,
        "seeds_passed": found.seeds,
        "counts": counts,
        "broken": broken,
    })
}
