//! The sources of a run, each paced by itself, and the requests that they gave and the device does not have yet.
//!
//! Invariants:
//! - of an open loop one request at a time waits here; the next is taken when that one is submitted, with its arrival
//!   as the time. So an overloaded device delays requests and never changes when they arrive;
//! - of a closed loop as many are taken as its depth allows, and wait here if the device has no room;
//! - requests leave in the order of their arrivals, those of one time in the order in which they were taken.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::trace::TraceError;
use crate::{Nanos, Pace, Request, Source};

/// A request that waits for its arrival or for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// What is asked.
    pub request: Request,
    /// The lane that it is of.
    pub lane: u32,
    /// Its number in the lane, from 1.
    number: u64,
    /// Over all lanes, in the order in which they were taken.
    order: u64,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.request.at, self.order).cmp(&(other.request.at, other.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

struct Lane<'a> {
    source: &'a mut dyn Source,
    /// Taken and not completed; at most the depth of a closed loop, one more than are with the device of an open one.
    under_way: u64,
    taken: u64,
}

/// See the module.
pub struct Lanes<'a> {
    lanes: Vec<Lane<'a>>,
    waiting: BinaryHeap<Reverse<Waiting>>,
    taken: u64,
    closed: bool,
}

impl<'a> Lanes<'a> {
    /// Takes the first requests of each source.
    pub fn new(sources: Vec<&'a mut dyn Source>) -> Result<Self, TraceError> {
        let lanes = sources.into_iter().map(|source| Lane { source, under_way: 0, taken: 0 }).collect();
        let mut lanes = Lanes { lanes, waiting: BinaryHeap::new(), taken: 0, closed: false };
        for lane in 0..lanes.lanes.len() {
            lanes.take(lane, Nanos::ZERO)?;
        }
        Ok(lanes)
    }

    /// The next request to submit.
    pub fn peek(&self) -> Option<&Waiting> {
        self.waiting.peek().map(|Reverse(waiting)| waiting)
    }

    /// The first request was submitted.
    pub fn submitted(&mut self) -> Result<(), TraceError> {
        let Some(Reverse(waiting)) = self.waiting.pop() else { return Ok(()) };
        let lane = waiting.lane as usize;
        // In an open loop the arrival of the last one taken is the time for the next.
        if waiting.number == self.lanes[lane].taken && self.lanes[lane].source.pace() == Pace::Open {
            self.take(lane, waiting.request.at)?;
        }
        Ok(())
    }

    /// A request of a lane completed.
    pub fn completed(&mut self, lane: u32, now: Nanos) -> Result<(), TraceError> {
        let lane = lane as usize;
        self.lanes[lane].under_way -= 1;
        if self.lanes[lane].source.pace() != Pace::Open {
            self.take(lane, now)?;
        }
        Ok(())
    }

    /// Forgets what waits, and takes nothing more.
    pub fn close(&mut self) {
        self.closed = true;
        self.waiting.clear();
    }

    /// Takes what a lane has to give now.
    fn take(&mut self, index: usize, now: Nanos) -> Result<(), TraceError> {
        let lane = &mut self.lanes[index];
        loop {
            let is_full = |depth: u32| lane.under_way >= depth.into();
            if self.closed || matches!(lane.source.pace(), Pace::Closed { depth } if is_full(depth)) {
                return Ok(());
            }
            let Some(request) = lane.source.next(now) else { return Ok(()) };
            let request = request?;
            lane.taken += 1;
            lane.under_way += 1;
            self.taken += 1;
            let (number, order) = (lane.taken, self.taken);
            // There are fewer lanes than jobs of a workload.
            self.waiting.push(Reverse(Waiting { request, lane: index as u32, number, order }));
            if lane.source.pace() == Pace::Open {
                return Ok(());
            }
        }
    }
}
