//! The whole device in virtual time, and everything that may happen to it, drawn from a seed.
//!
//! Two domains (the same state machines that run in the two processes), the device core with its
//! write buffer and flash, media that hold bytes, and clients that write, read, trim and flush. In
//! one run actors move at random, in mid-request too; the rings between the domains are slow at
//! random; a domain dies at a named step or between two, or both die, or the power goes.
//!
//! # What must hold
//!
//! 1. Every request of a stream completes once, in order.
//! 2. A read gives, for each block, what some write gave it that may be the newest then: none older
//!    than the newest that was completed when the read began, and none that failed.
//! 3. A stateful actor's output is what it would be without moves and deaths.
//! 4. An actor is run only by the domain that its owner record names, and none while it moves.
//! 5. After the end, once more killed and recovered, every block reads back as last written.
//!
//! # Faults, and what they may take
//!
//! | fault | takes |
//! | --- | --- |
//! | death of the host | its state machine, the messages in both rings |
//! | death of the device | its state machine, the core, messages; media operations under way end, tear or never were |
//! | both | all of these |
//! | loss of power | the same, and programs that were not synced stay, tear or vanish; the profile says that the shared region is protected, so that stays |
//!
//! What lies in the shared region (slots, owner records, actors' memories, the write buffer) and on
//! the media stays. An actor's memory may be torn by a death, so recovery makes it afresh.

mod actors;
mod client;
mod media;
#[cfg(test)]
mod tests;
mod world;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use osier_domain::Step;
use osier_domain::migrate::Resolution;

/// How hard to be on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TortureParams {
    /// Requests of each stream.
    pub requests: u64,
    /// Whether domains die.
    pub deaths: bool,
    /// Whether the power goes.
    pub power_cuts: bool,
    /// A defect to plant.
    pub flaw: Option<Flaw>,
}

impl Default for TortureParams {
    fn default() -> TortureParams {
        TortureParams { requests: 60, deaths: true, power_cuts: true, flaw: None }
    }
}

/// Deliberate defects, by which a run shows that its checks can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// An actor that moves loses its globals.
    ForgetGlobals,
    /// After a death, a stateful actor goes on with what it had, though requests will be replayed.
    KeepTornState,
    /// After a death, requests that were not committed are not replayed.
    ForgetReplay,
    /// A write is answered before the write buffer has it.
    AnswerBeforeStore,
    /// A message between the domains is lost now and then.
    LoseMessage,
    /// A bit of what a stage put out flips in the shared region now and then.
    FlipBit,
    /// After the death of one domain, the other is not told to look at the owner records.
    StaleOwner,
    /// A page that was programmed tears though its program was answered and synced.
    LieAboutSync,
}

impl Flaw {
    /// Every defect.
    pub const ALL: [Flaw; 8] = [
        Flaw::ForgetGlobals,
        Flaw::KeepTornState,
        Flaw::ForgetReplay,
        Flaw::AnswerBeforeStore,
        Flaw::LoseMessage,
        Flaw::FlipBit,
        Flaw::StaleOwner,
        Flaw::LieAboutSync,
    ];
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Story {
    /// Requests that completed.
    pub requests: u64,
    /// Requests that failed on purpose.
    pub failed: u64,
    /// Requests that the device refused for want of room, or whose fate a death left unknown.
    pub refused: u64,
    /// Blocks whose content was compared.
    pub blocks_compared: u64,
    /// Moves that were begun.
    pub moves: u64,
    /// Moves that arrived in the middle of a request.
    pub moves_mid_request: u64,
    /// Deaths by what died: host, device, both, power.
    pub deaths: [u64; 4],
    /// Deaths at a named step.
    pub deaths_at: BTreeMap<Step, u64>,
    /// Actors kept, rolled back, rolled forward by recoveries.
    pub resolutions: [u64; 3],
    /// Requests given again after a death.
    pub replayed: u64,
}

impl Story {
    /// Adds another run's figures.
    pub fn add(&mut self, other: &Story) {
        self.requests += other.requests;
        self.failed += other.failed;
        self.refused += other.refused;
        self.blocks_compared += other.blocks_compared;
        self.moves += other.moves;
        self.moves_mid_request += other.moves_mid_request;
        self.replayed += other.replayed;
        for (sum, one) in self.deaths.iter_mut().zip(other.deaths) {
            *sum += one;
        }
        for (sum, one) in self.resolutions.iter_mut().zip(other.resolutions) {
            *sum += one;
        }
        for (step, count) in &other.deaths_at {
            *self.deaths_at.entry(*step).or_default() += count;
        }
    }

    fn count(&mut self, resolution: Resolution) {
        let index = match resolution {
            Resolution::Kept(_) | Resolution::Fresh(_) => 0,
            Resolution::RolledBack(_) => 1,
            Resolution::RolledForward(_) => 2,
        };
        self.resolutions[index] += 1;
    }
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, at {at_ns} ns of virtual time: {what}; the same seed and parameters show it again")]
pub struct Broken {
    /// The seed of the run.
    pub seed: u64,
    /// When.
    pub at_ns: u64,
    /// Which promise, and how.
    pub what: String,
}

/// One run.
///
/// # Errors
/// The first promise that was broken. An assertion of any part that fails is one too.
pub fn run(seed: u64, params: &TortureParams) -> Result<Story, Broken> {
    let mut world = world::World::new(seed, params);
    match catch_unwind(AssertUnwindSafe(|| world.run())) {
        Ok(outcome) => outcome,
        Err(cause) => {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| cause.downcast_ref::<&str>().copied());
            Err(world.broken(format!("an assertion failed: {}", text.unwrap_or("without a text"))))
        }
    }
}
