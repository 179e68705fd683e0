//! The two domain processes in real time, and the supervisor that watches them.
//!
//! [`Session`] is a device that is up: it owns the image, starts `osier domain` twice (the host's and the
//! device's process), and recovers whichever dies. [`domain_main`] is what those processes run. They share
//! nothing but the objects of the region that [`Setup`] lists.
//!
//! Where to start reading: [`supervisor`] for the life of a session, [`host`] and [`firmware`] for the two
//! loops.

#![forbid(unsafe_code)]

pub mod board;
pub mod bootstrap;
mod check;
pub mod client;
pub mod clients;
pub mod clock;
pub mod control;
pub mod corpus;
pub mod create;
mod error;
mod firmware;
mod host;
mod keys;
mod link;
mod machine;
mod media;
mod pacer;
pub mod pattern;
mod record;
mod recording;
mod resident;
mod rest;
mod sampler;
mod setup;
pub mod supervisor;
pub mod traffic;
mod vigil;
pub mod waits;
pub mod workload;

pub use check::check;
pub use error::RuntimeError;
pub use recording::{FileSink, RecordCore, check as check_recording};
pub use setup::{Attached, Setup, TenantUsage, modules_path, on_cut_region, pipelines_path};
pub use supervisor::{Death, Session, SessionSpec, Watch, domain_main};
