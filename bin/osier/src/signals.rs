//! SIGINT and SIGTERM as a flag that loops look at, so that everything is ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::exit::Exit;
use crate::output::tell;

/// Set once somebody asked this program to stop. A second signal ends it at once, and says so.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// The flag itself, for what knows no more than that.
    pub fn shared(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Asks.
    #[cfg(test)]
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// From now on the signals set the flag.
///
/// # Errors
/// What the system says.
pub fn stop_flag() -> Result<StopFlag> {
    stop_flag_or(|| "what a device had completed is there at its next start".to_owned())
}

/// The same, with something to do when a second signal ends the program: it answers how that went.
///
/// # Errors
/// What the system says.
pub fn stop_flag_or(at_once: impl Fn() -> String + Send + 'static) -> Result<StopFlag> {
    let flag = Arc::new(AtomicBool::new(false));
    let asked = flag.clone();
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("listening to signals")?;
    let listen = move || {
        for _ in signals.forever() {
            if asked.swap(true, Ordering::Relaxed) {
                tell!("osier: a second signal ends this at once, not in order; {}", at_once());
                std::process::exit(Exit::Failure as i32);
            }
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).context("listening to signals")?;
    Ok(StopFlag(flag))
}
