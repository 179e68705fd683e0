//! The latency of hits. A page that is in the device's cache is mapped, and a load costs what this machine's memory
//! takes; on the device it takes longer. Each thread is therefore stopped now and then for as long as its loads of the
//! window would have taken longer.
//!
//! - [`sampler`]: a signal to each thread every two milliseconds of its time on a processor, and what is done then;
//! - [`access`]: what the thread waited for;
//! - [`reuse`]: whether that was in the processor's caches;
//! - [`account`]: how long it is to be stopped, and how well that is known;
//! - [`processor`]: what loads take here.
//!
//! `docs/window.md` says what is not seen.

#[cfg(target_arch = "x86_64")]
mod access;
#[cfg(target_arch = "x86_64")]
mod account;
#[cfg(target_arch = "x86_64")]
mod processor;
#[cfg(target_arch = "x86_64")]
mod reuse;
#[cfg(target_arch = "x86_64")]
mod sampler;

use std::io;

#[cfg(target_arch = "x86_64")]
pub(crate) use sampler::{await_looks, begin, note_handled};
#[cfg(target_arch = "x86_64")]
pub use sampler::{check, enter_thread, figures, forbid_looks, is_on, leave_thread};

/// The signal by which threads are stopped. The kernel never sends it by itself, and programs that send it to
/// themselves are not known.
pub const SIGNAL: i32 = libc::SIGSTKFLT;

/// What a load that hits the device's cache is to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitLatency {
    /// What the device's profile says: over an idle link, and through the device's DRAM.
    Profile,
    /// So many nanoseconds.
    Nanoseconds(u32),
}

/// Why hits cannot have a latency.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HitError {
    /// No permission.
    #[error(
        "sampling this process's threads (perf_event_open) was refused: {0}; set `sysctl kernel.perf_event_paranoid=2` \
         or lower, and in a container allow the call"
    )]
    NoPermission(io::Error),
    /// The program has a handler of the signal.
    #[error(
        "the program handles signal {SIGNAL} (SIGSTKFLT) itself, by which its threads would be stopped: run it without \
         a latency of hits"
    )]
    SignalTaken,
    /// No samples come, or they say nothing.
    #[error(
        "it cannot be told from samples what this processor waits for: {at} of {all} interrupts were at a load that it \
         waited for, and {before} behind one; run without a latency of hits"
    )]
    NoSkid {
        /// At the load.
        at: u64,
        /// Behind it.
        before: u64,
        /// In all.
        all: u64,
    },
    /// Another processor.
    #[error("a latency of hits is known how to be added on x86-64 alone; run without it")]
    OtherProcessor,
    /// The system refused something else.
    #[error("cannot {what}, for the latency of hits: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What was added to a process's time, and how well.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HitFigures {
    /// What a hit was to take, nanoseconds.
    pub hit_ns: u64,
    /// What a load from this machine's memory took when that was measured first.
    pub machine_start_ns: f64,
    /// The same while the program ran.
    pub machine_ns: f64,
    /// What one load took that missed the processor's caches in the window, with its translation.
    pub access_ns: f64,
    /// Nanoseconds of a thread's time that a sample stands for.
    pub period_ns: u64,
    /// What taking a sample costs, which is taken off what is added.
    pub sample_cost_ns: f64,
    /// Samples.
    pub samples: u64,
    /// Of these, those that waited for the window, or were about to.
    pub on_window: u64,
    /// Of these, those that had missed the processor's caches, in parts.
    pub missed: f64,
    /// Of these, those of which it is not known: their pages left, or there was no room to remember them.
    pub unknown: u64,
    /// Samples that came late, when a handler or a delay had ended, and were not counted.
    pub late: u64,
    /// Nanoseconds that were added to all threads' times.
    pub injected_ns: u64,
    /// Nanoseconds by which threads were stopped too long; the next delays were the shorter for it.
    pub over_ns: u64,
    /// From when a sample was taken to when its delay was added, nanoseconds, on average.
    pub lag_ns: u64,
    /// How wrong what was added may be, as a share of it: one standard error of samples and measurements, and what
    /// is not known in full. Nothing if nothing was added.
    pub error: Option<f64>,
}

/// What there is where it cannot be done.
#[cfg(not(target_arch = "x86_64"))]
mod elsewhere {
    use super::{HitError, HitFigures};
    use crate::shared::Shared;

    /// Whether hits can have a latency here.
    ///
    /// # Errors
    /// They cannot.
    pub fn check() -> Result<(), HitError> {
        Err(HitError::OtherProcessor)
    }

    pub(crate) fn begin(_: &Shared) -> Result<(), HitError> {
        check()
    }

    pub(crate) fn await_looks() {}

    pub(crate) fn note_handled() {}

    /// Threads are not sampled.
    pub fn enter_thread() {}

    /// Threads are not sampled.
    pub fn leave_thread() {}

    /// Nobody looks.
    pub fn forbid_looks() {}

    /// Never.
    pub fn is_on() -> bool {
        false
    }

    /// None.
    pub fn figures() -> Option<HitFigures> {
        None
    }
}
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use elsewhere::{await_looks, begin, note_handled};
#[cfg(not(target_arch = "x86_64"))]
pub use elsewhere::{check, enter_thread, figures, forbid_looks, is_on, leave_thread};
