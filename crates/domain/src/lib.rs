//! One domain of the device: routes requests through stages, keeps streams in order, migrates actors. Pure.
//!
//! The host and the device each run one [`Domain`]. It takes messages, runs stages through its
//! [`Env`] one bounded chunk at a time, and puts out messages; whoever drives it moves them over rings,
//! reads the clock and owns the memory. The same code runs in both processes, in virtual time and under
//! a model checker.
//!
//! What it must never do: serve an actor that its owner record gives to the other side; run requests of
//! one stream through one actor out of order, twice, or not at all; look at a clock or at another
//! process's memory other than through its arguments.
#![forbid(unsafe_code)]

pub mod arena;
mod domain;
pub mod message;
pub mod migrate;
pub mod plan;
#[cfg(test)]
mod tests;

pub use domain::{Call, Domain, DomainError, Env, Outcome, Stats, Step, Whereabouts};
pub use message::{Descriptor, Kind, Message, Opcode};
pub use migrate::{Checkpoint, OwnerRecord, OwnerState, Phase};
pub use plan::{ActorId, Direction, Pipeline, Plan, Side, SlotId, StreamId, Tag};

/// The status that a request ends with.
pub use osier_device::Status;
/// Bytes of a logical block.
pub use osier_flash::BLOCK_BYTES;
/// Time, as the rest of the device counts it.
pub use osier_flash::Nanos;

/// Streams that one domain pair can carry at a time.
pub const STREAMS_MAX: usize = 16;
/// Stages that one pipeline may have.
pub const STAGES_MAX: usize = 8;
/// Actors (stages of all pipelines together) that one device can hold.
pub const ACTORS_MAX: usize = 64;
