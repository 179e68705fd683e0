//! How far a sweep is, on standard error: one line that is drawn anew in a terminal, a line now and then elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use crate::output::tell;

/// The time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct Progress {
    is_terminal: bool,
    began: Instant,
    shown: Option<Instant>,
    /// Points that were done before.
    before: u64,
    done: u64,
    points: u64,
    failed: u64,
}

impl Progress {
    /// Of a sweep of so many points, some of which were done before.
    pub fn new(before: usize, points: u64) -> Self {
        let before = before as u64;
        if before > 0 {
            tell!("osier: going on after {before} of {points} points");
        }
        let is_terminal = std::io::stderr().is_terminal();
        Self { is_terminal, began: Instant::now(), shown: None, before, done: before, points, failed: 0 }
    }

    /// One more is done.
    pub fn show(&mut self, has_failed: bool) {
        self.done += 1;
        self.failed += u64::from(has_failed);
        let now = Instant::now();
        if self.is_terminal {
            // A terminal that is gone is no reason to stop.
            let _ = write!(std::io::stderr(), "\r\u{1b}[K{}", self.line(now));
        } else if self.shown.is_none_or(|shown| now - shown >= LINE_EVERY) || self.done == self.points {
            tell!("{}", self.line(now));
            self.shown = Some(now);
        }
    }

    /// Leaves the line.
    pub fn end(&self) {
        if self.is_terminal && self.done > self.before {
            tell!();
        }
    }

    fn line(&self, now: Instant) -> String {
        let failed = if self.failed > 0 { format!(", {} failed", self.failed) } else { String::new() };
        let left = left_seconds((now - self.began).as_secs(), self.done - self.before, self.points - self.done);
        let (hours, minutes, seconds) = (left / 3600, left / 60 % 60, left % 60);
        format!("osier: {} of {} points{failed}, {hours}:{minutes:02}:{seconds:02} left", self.done, self.points)
    }
}

/// Seconds that the rest takes if each point takes as long as those done did.
fn left_seconds(elapsed_seconds: u64, done: u64, rest: u64) -> u64 {
    elapsed_seconds.saturating_mul(rest) / done.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was_done_in_this_run() {
        assert_eq!(left_seconds(60, 30, 15), 30);
        assert_eq!(left_seconds(0, 0, 15), 0);
    }
}
