//! A device whose time began before the run: it was preconditioned by writing. To the run, time begins at zero.

use osier_device::model::{Command, Completed, Model, Refused};

use super::counters::Counters;
use super::driver::Target;
use crate::Nanos;

/// See the module.
pub(super) struct Since<'a> {
    pub model: &'a mut Model,
    /// The device's time at which the run begins.
    pub origin: Nanos,
}

impl Since<'_> {
    fn device_time(&self, run: Nanos) -> Nanos {
        run.saturating_add(self.origin.0)
    }

    fn run_time(&self, device: Nanos) -> Nanos {
        Nanos(device.0.saturating_sub(self.origin.0))
    }

    /// Brings what has completed from `from` on into the run's time.
    fn shift(&self, done: &mut [Completed], from: usize) {
        for completed in &mut done[from..] {
            completed.arrived = self.run_time(completed.arrived);
            completed.at = self.run_time(completed.at);
        }
    }
}

impl Target for Since<'_> {
    fn submit(&mut self, now: Nanos, command: Command) -> Result<(), Refused> {
        let now = self.device_time(now);
        Target::submit(self.model, now, command)
    }

    fn poll(&mut self, now: Nanos, done: &mut Vec<Completed>) {
        let (now, from) = (self.device_time(now), done.len());
        Target::poll(self.model, now, done);
        self.shift(done, from);
    }

    fn next_event(&self) -> Option<Nanos> {
        Target::next_event(self.model).map(|at| self.run_time(at))
    }

    fn poll_next(&mut self, until: Nanos, done: &mut Vec<Completed>) -> Nanos {
        let (until, from) = (self.device_time(until), done.len());
        let now = Target::poll_next(self.model, until, done);
        self.shift(done, from);
        self.run_time(now)
    }

    fn counters(&self) -> Counters {
        Target::counters(self.model)
    }

    fn failure(&self) -> Option<String> {
        Target::failure(self.model)
    }

    fn die_busy_ns(&self, into: &mut Vec<u64>) {
        Target::die_busy_ns(self.model, into);
    }

    fn channel_busy_ns(&self, into: &mut Vec<u64>) {
        Target::channel_busy_ns(self.model, into);
    }
}
