//! The time of a trace: faster, slower, or as fast as the device can.

use super::counts::TraceError;
use crate::{Nanos, Pace, Request, Source};

/// How fast a trace is replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speed {
    /// In an open loop, with times multiplied by a fraction: 1/10 is ten times as fast.
    Scaled {
        /// Of the fraction.
        numerator: u32,
        /// Of the fraction; not zero.
        denominator: u32,
    },
    /// In a closed loop: times are forgotten, and so many requests are always under way.
    Closed {
        /// How many; not zero.
        depth: u32,
    },
    /// In an open loop with the same time between any two: for traces that have no times.
    Every {
        /// That time.
        interval_ns: u64,
    },
}

/// A source at another speed.
#[derive(Debug)]
pub struct Paced<S> {
    source: S,
    speed: Speed,
    taken: u64,
}

impl<S: Source> Paced<S> {
    /// A source at this speed.
    ///
    /// # Panics
    /// If a number of the speed that must not be zero is.
    pub fn new(source: S, speed: Speed) -> Self {
        match speed {
            Speed::Scaled { denominator, .. } => assert!(denominator > 0, "a fraction has a denominator"),
            Speed::Closed { depth } => assert!(depth > 0, "a closed loop has a request under way"),
            Speed::Every { .. } => {}
        }
        Paced { source, speed, taken: 0 }
    }

    /// The source.
    pub fn get_ref(&self) -> &S {
        &self.source
    }
}

impl<S: Source> Source for Paced<S> {
    fn pace(&self) -> Pace {
        match self.speed {
            Speed::Scaled { .. } => self.source.pace(),
            Speed::Closed { depth } => Pace::Closed { depth },
            Speed::Every { .. } => Pace::Open,
        }
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        let request = match self.source.next(now)? {
            Ok(request) => request,
            Err(error) => return Some(Err(error)),
        };
        let at = match self.speed {
            // What waits for completions has no times to scale.
            Speed::Scaled { .. } if self.source.pace() != Pace::Open => request.at,
            Speed::Scaled { numerator, denominator } => {
                let scaled = u128::from(request.at.0) * u128::from(numerator) / u128::from(denominator);
                Nanos(u64::try_from(scaled).unwrap_or(u64::MAX))
            }
            Speed::Closed { .. } => now,
            Speed::Every { interval_ns } => Nanos(self.taken.saturating_mul(interval_ns)),
        };
        self.taken += 1;
        Some(Ok(Request { at, ..request }))
    }

    fn len_hint(&self) -> Option<u64> {
        self.source.len_hint()
    }
}
