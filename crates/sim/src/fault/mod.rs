//! The flash in virtual time, and everything that may happen to it, drawn from a seed: configuration, work and
//! faults. Power is lost at any event; a plain reference says at each step what a unit may read as.
//!
//! # What must hold
//!
//! 1. What was flushed is there after a loss of power; of what came later each unit shows one whole version, none
//!    older than the flushed one.
//! 2. What a flushed trim removed, and what one recovery did not show, never comes back.
//! 3. No other bytes are read than some version's: what the media lost reads as an error, and nothing else does.
//! 4. Map, reverse map, counts and states of superblocks agree (`audit`).
//! 5. A recovery writes nothing, so that one that is cut short changes nothing, and two of the same media agree.
//!
//! # Faults
//!
//! | fault | page map | extents |
//! | --- | --- | --- |
//! | loss of power: what had begun is dropped, torn or whole | slot by slot | byte by byte, and all that is not synced |
//! | death of the process: what was answered stays | | yes |
//! | power lost again, right after a recovery | yes | yes |
//! | a unit, or a slot that a checkpoint names, rots | yes | |
//! | reads that retries do not help, failed programs and erases, bad blocks | yes | reads |
//! | a die dies, or one plane of it | yes | a die |
//!
//! Exactly: [`osier_flash::faulty`], and in prose `docs/fault-simulation.md`.

mod extent;
mod page;
mod planted;
mod reference;
mod script;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use planted::Planted;
use script::Script;

/// What is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Model {
    /// The page-mapped FTL of the memory face.
    Page,
    /// The FTL that packs extents, under the actors' pipelines.
    Extent,
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Model::Page => "page",
            Model::Extent => "extent",
        })
    }
}

/// How often each thing happened, by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// A promise that was broken, and the way there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Broken {
    /// What was simulated.
    pub model: Model,
    /// The seed.
    pub seed: u64,
    /// Which promise, and how: what was read, and what is allowed.
    pub what: String,
    /// The configuration that was drawn.
    pub config: String,
    /// Operations that were drawn up to the failure.
    pub operations: u64,
    /// Operations that were left out to make it smaller.
    pub skipped: u64,
    /// The last operations.
    pub story: Vec<String>,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Broken { model, seed, what, config, operations, skipped, story } = self;
        writeln!(f, "model {model}, seed {seed}: {what}")?;
        writeln!(f, "configuration: {config}")?;
        writeln!(f, "{} of {operations} operations were done; the last:", operations - skipped)?;
        for line in story {
            writeln!(f, "  {line}")?;
        }
        write!(f, "replay: osier fault sim --model {model} --seed {seed}")
    }
}

/// Whether a promise holds.
type Check = Result<(), String>;

/// One run: a device, what may be read of it, and what happens.
trait World {
    /// Runs it to its end.
    fn run(&mut self) -> Check;
    fn script(&mut self) -> &mut Script;
    fn counts(&mut self) -> &mut Counts;
    fn config(&self) -> String;
}

/// Most runs that making a failure smaller takes.
const SHRINK_RUNS_MAX: u32 = 2_000;

/// Runs a seed.
///
/// # Errors
/// The first promise that was broken, told from a second run that is the same. An assertion of the FTL that fails
/// is one too.
pub fn run(model: Model, seed: u64) -> Result<Counts, Box<Broken>> {
    run_planted(model, seed, None)
}

/// As [`run`], and leaves out what a failure does not need.
///
/// # Errors
/// As [`run`]: the failure of the smaller run, which may be another.
pub fn run_and_shrink(model: Model, seed: u64) -> Result<Counts, Box<Broken>> {
    shrink_planted(model, seed, None)
}

fn run_planted(model: Model, seed: u64, bug: Option<Planted>) -> Result<Counts, Box<Broken>> {
    let mut world = world(model, seed, bug, Script::new(seed));
    match outcome(&mut *world) {
        Ok(()) => Ok(std::mem::take(world.counts())),
        Err(_) => Err(tell(model, seed, bug, &BTreeSet::new(), u64::MAX)),
    }
}

fn shrink_planted(model: Model, seed: u64, bug: Option<Planted>) -> Result<Counts, Box<Broken>> {
    let mut whole = world(model, seed, bug, Script::new(seed));
    if outcome(&mut *whole).is_ok() {
        return Ok(std::mem::take(whole.counts()));
    }
    let operations = whole.script().next;
    let skipped = script::shrink(operations, SHRINK_RUNS_MAX, |skipped| {
        outcome(&mut *world(model, seed, bug, Script::without(seed, skipped).until(operations))).is_err()
    });
    Err(tell(model, seed, bug, &skipped, operations))
}

fn world(model: Model, seed: u64, bug: Option<Planted>, script: Script) -> Box<dyn World> {
    match model {
        Model::Page => Box::new(page::PageWorld::new(seed, bug, script)),
        Model::Extent => Box::new(extent::ExtentWorld::new(seed, bug, script)),
    }
}

/// Runs a world; a panic is a broken promise too.
fn outcome(world: &mut dyn World) -> Check {
    catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|cause| {
        let text = cause.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
        Err(format!("an assertion failed: {}", text.unwrap_or("without a text")))
    })
}

/// Runs a seed that fails once more, and notes what happens.
fn tell(model: Model, seed: u64, bug: Option<Planted>, skipped: &BTreeSet<u64>, end: u64) -> Box<Broken> {
    let mut world = world(model, seed, bug, Script::without(seed, skipped).until(end).told());
    let what = outcome(&mut *world).err().unwrap_or_else(|| "the second run did not fail: chance is not seeded".into());
    let operations = world.script().next;
    let skipped = skipped.range(..operations).count() as u64 + operations.saturating_sub(end);
    Box::new(Broken { model, seed, what, config: world.config(), operations, skipped, story: world.script().lines() })
}
