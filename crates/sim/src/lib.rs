//! Virtual time: drivers that jump from event to event over the same code that runs in real time.
//!
//! [`thermal`] runs sustained writes on the device core under a placement policy and shows throughput
//! and temperature over time (WIO, arXiv 2604.02442, Figure 1).
//!
//! [`cylon`] replays five access patterns through the device's DRAM cache under four eviction policies and next-N
//! prefetching (Cylon, FAST 2026, Table 3 and Figure 10).
//!
//! [`cmm_h`] runs the profile of Samsung's CMM-H beside what was measured on it; [`cylon_latency`] bandwidth and
//! latency across the size of its cache (Cylon, Figures 5 and 6).
//!
//! [`sweep`] says which points a grid of parameters has and shows what came out of them.
//!
//! [`torture`] runs both domains on the device core under moves, deaths and power cuts, and checks
//! every answer.
//!
//! [`fault`] runs the flash under power cuts, rot and deaths of dies, against a plain reference.
//!
//! [`run`] drives a device model with a workload or a trace, and reports what it measured.
//!
//! [`trace`] reads what others recorded, [`workload`] makes requests of a description; both are a [`Source`].
//!
//! Invariants: nothing here reads a clock, a file or the environment; a run depends on its
//! parameters and its seed alone, and the same ones give the same bytes.

#![forbid(unsafe_code)]

pub mod cmm_h;
pub mod cylon;
pub mod cylon_latency;
pub mod fault;
mod host;
mod queue;
mod request;
mod rng;
pub mod run;
pub mod sweep;
pub mod thermal;
pub mod torture;
pub mod trace;
pub mod workload;

/// What a request does.
pub use osier_device::model::Op;
/// Time, as the device counts it.
pub use osier_flash::Nanos;

pub use host::{HOST_SOURCES, HostParams};
pub use queue::EventQueue;
pub use request::{Pace, Request, Source};
pub use rng::Rng;
