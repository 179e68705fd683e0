//! SIGINT and SIGTERM as a flag that loops look at, so that everything is ended in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};

/// Set once somebody asked this program to stop. A second signal ends it at once.
#[derive(Debug, Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Whether somebody asked.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_shutdown(signal, 1, flag.clone())
            .and_then(|_| signal_hook::flag::register(signal, flag.clone()))
            .context("listening to signals")?;
    }
    Ok(StopFlag(flag))
}
