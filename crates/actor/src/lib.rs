//! Storage actors on the host side: the sandbox, intrinsics, pipelines and memory placement.
//!
//! [`pipeline`] reads what a person wrote and keeps what ever wrote to the device; [`install`] checks
//! modules, [`compile`] turns them into machine code away from the I/O path, [`prepare`] ties these
//! together; [`runner`] is what a domain calls for each chunk. `docs/abi.md` is the contract with guests,
//! `docs/actors.md` tells how this side keeps it.
//!
//! What this crate must never do: hold a compiler in a domain's process, give a guest an address or a byte
//! outside of its memory, let a guest's answer or another process's bytes through unchecked, print a key.

pub mod abi;
pub mod account;
pub mod arena;
pub mod builtin;
pub mod compile;
pub mod install;
pub mod intrinsics;
pub mod memory;
pub mod module;
pub mod native;
pub mod pipeline;
pub mod policy;
pub mod prepare;
pub mod runner;
pub mod sandbox;
pub mod segment;
pub mod state;
mod stopwatch;

pub use account::Usage;
pub use arena::Arena;
pub use compile::{CodeCache, Compiler, Engines, Limits, compile_main};
pub use intrinsics::KeyRing;
pub use module::ModuleStore;
pub use pipeline::{Config, Pipelines, Registry};
pub use prepare::{Prepared, prepare, try_out};
pub use runner::{Parts, Runner};
pub use segment::Segment;
