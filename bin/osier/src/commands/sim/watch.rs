//! Whoever sits before the terminal: sees how far a run is, and may end it.

use std::io::IsTerminal as _;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::Result;
use osier_sim::run::{Io, Progress, Watch};

use super::per_io::PerIo;
use crate::signals::{StopFlag, stop_flag};

/// Between two lines of progress.
const LINE_EVERY: Duration = Duration::from_millis(200);

/// See the module. It also writes the log of requests.
pub struct Looker {
    stop: StopFlag,
    /// When the run began and when a line was last shown, if lines are shown.
    shown: Option<(Instant, Instant)>,
    per_io: Option<PerIo>,
    failed: Option<anyhow::Error>,
}

impl Looker {
    pub fn new(per_io: Option<PerIo>, quiet: bool) -> Result<Looker> {
        let now = Instant::now();
        let shown = (!quiet && std::io::stderr().is_terminal()).then_some((now, now));
        Ok(Looker { stop: stop_flag()?, shown, per_io, failed: None })
    }

    /// The run is over, for whatever reason: gives back the log, unless writing it has failed.
    pub fn end(self) -> Result<Option<PerIo>> {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
        self.failed.map_or(Ok(self.per_io), Err)
    }
}

impl Watch for Looker {
    fn progress(&mut self, progress: &Progress) -> ControlFlow<()> {
        if self.stop.is_set() {
            return ControlFlow::Break(());
        }
        if let Some((began, last)) = &mut self.shown
            && last.elapsed() >= LINE_EVERY
        {
            *last = Instant::now();
            let share = match progress.expected {
                Some(expected) if expected > 0 => format!("{:3}% ", progress.submitted * 100 / expected),
                _ => String::new(),
            };
            let rate = progress.submitted as f64 / began.elapsed().as_secs_f64() / 1e6;
            let (millions, seconds) = (progress.submitted as f64 / 1e6, progress.now.0 as f64 / 1e9);
            eprint!("\r\x1b[K{share}{millions:.1} million requests, {rate:.2} a second; device time {seconds:.3} s");
        }
        ControlFlow::Continue(())
    }

    fn preconditioning(&mut self, written: u64, all: u64) -> ControlFlow<()> {
        if self.stop.is_set() {
            return ControlFlow::Break(());
        }
        if let Some((began, last)) = &mut self.shown
            && last.elapsed() >= LINE_EVERY
        {
            *last = Instant::now();
            let (percent, millions) = (written * 100 / all.max(1), written as f64 / 1e6);
            let left = began.elapsed().as_secs_f64() * (all - written) as f64 / written.max(1) as f64;
            eprint!("\r\x1b[K{percent:3}% preconditioned, {millions:.1} million pages written; {left:.0} s left");
        }
        ControlFlow::Continue(())
    }

    fn completed(&mut self, io: &Io) -> ControlFlow<()> {
        let Some(log) = &mut self.per_io else { return ControlFlow::Continue(()) };
        match log.add(io) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                self.failed = Some(error);
                ControlFlow::Break(())
            }
        }
    }
}
