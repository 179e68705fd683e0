//! Eviction policies of the DRAM cache as WebAssembly modules; `docs/abi-cache-policy.md` is the contract with them.
//!
//! A [`PolicyModule`] is checked and compiled once, with the bounds that [`crate::compile`] sets; each policy made of
//! it is an instance of its own, so that a sweep makes one a run. [`Source`] is what a word in a profile or on the
//! command line means: a policy of `osier-cache` by its name, or a module by its path.
//!
//! Invariants:
//! 1. A module sees every call of [`osier_cache::Eviction`] that it can see, in their order. Those without an answer
//!    are gathered, and handed over with the next that has one: a hit costs a few bytes and no call.
//! 2. The same calls give the same answers on each run: a module is bounded by fuel and not by time, and imports
//!    nothing that knows more than it is told.
//! 3. After its first failure a module is not entered again, and [`osier_cache::Eviction::failure`] says why.

mod check;
mod instance;
mod module;

pub use instance::WasmPolicy;
pub use module::{PolicyModule, PolicyModuleError, Source, SourceError};

/// What `osier_policy_abi` of a module has to answer.
pub const POLICY_ABI_VERSION: i32 = 1;
/// Most events that are handed over at once: the room that a module has for them.
pub const EVENTS_MAX: usize = 1024;
/// Bytes of one event.
pub const EVENT_BYTES: usize = 16;
/// Alignment of the events in a module's memory, in bytes.
const EVENT_ALIGN: u32 = 8;

/// Most bytes of a policy's memory: a fixed part, and so many for each frame of the cache.
const MEMORY_BYTES_BASE: u64 = 16 << 20;
const MEMORY_BYTES_PER_FRAME: u64 = 256;
/// Most entries of a module's tables.
const TABLE_ENTRIES_MAX: usize = 4096;
/// Most parameters that a module may ask for.
const PARAMETERS_MAX: usize = 64;
/// Longest name of a parameter, in bytes.
const PARAMETER_NAME_BYTES_MAX: usize = 64;

/// Fuel, which is about one unit an instruction: of instantiation and `osier_policy_new`.
const FUEL_NEW: u64 = 20_000_000;
/// Of the same, for each frame.
const FUEL_NEW_PER_FRAME: u64 = 2_000;
/// Of any other call.
const FUEL_CALL: u64 = 1_000_000;
/// Of a call for each event, and for its question.
const FUEL_PER_EVENT: u64 = 10_000;
/// Of the same for each frame of a set: twice round a CLOCK takes a part of it.
const FUEL_PER_EVENT_AND_WAY: u64 = 100;
/// Of any call, some seconds.
const FUEL_MAX: u64 = 10_000_000_000;
