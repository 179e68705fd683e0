//! Lets in as much of the offered load as the scheduler allows.
//!
//! A rate is a share of the *full* rate, which is what went through while nothing was held back. It is measured
//! then and remembered: in a closed loop the offered load itself says nothing, because clients that are held back
//! offer less. What is let in is paced by time, in bytes: a share of the requests, or a part of every epoch, would
//! change nothing while those in flight keep the device busy.

use osier_domain::Nanos;

/// Spans over which the full rate is measured.
const SPAN_NS: u64 = 10_000_000;
/// A new span counts for one in so many in the average.
const SPANS: u64 = 8;
/// Bytes that may be let in at once after a pause are what the rate allows in this time.
const BURST_NS: u64 = 1_000_000;
/// A rate that limits nothing.
const UNLIMITED_PERMILLE: u32 = 1000;
const SECOND_NS: u128 = 1_000_000_000;

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Pacer {
    permille: u32,
    /// Bytes a second while nothing is held back; 0 until a span with traffic has ended.
    full: u64,
    span_began: Nanos,
    span_bytes: u64,
    /// When the next request may be let in.
    open_at: Nanos,
    /// A request was refused because of the time, and may be let in then.
    refused: bool,
}

impl Pacer {
    /// A pacer that limits nothing.
    pub fn new(now: Nanos) -> Pacer {
        Pacer {
            permille: UNLIMITED_PERMILLE,
            full: 0,
            span_began: now,
            span_bytes: 0,
            open_at: Nanos(0),
            refused: false,
        }
    }

    /// The share of the full rate that is let in now.
    pub fn rate_permille(&self) -> u32 {
        self.permille
    }

    /// From now on so much is let in, of the full rate.
    pub fn set_rate(&mut self, now: Nanos, permille: u32) {
        if permille == self.permille {
            return;
        }
        if self.permille == UNLIMITED_PERMILLE {
            // What is in the pipe was let in at the full rate.
            self.open_at = now;
        }
        self.permille = permille;
        (self.span_began, self.span_bytes) = (now, 0);
    }

    /// A request of so many bytes has ended.
    pub fn completed(&mut self, now: Nanos, bytes: u64) {
        // Before a rate is known nothing can be held back, so that it is measured then too.
        if self.permille != UNLIMITED_PERMILLE && self.full != 0 {
            return;
        }
        self.span_bytes += bytes;
        let elapsed = now.0.saturating_sub(self.span_began.0);
        if elapsed > 2 * SPAN_NS {
            // Nothing was asked for, for a while.
            (self.span_began, self.span_bytes) = (now, 0);
        } else if elapsed >= SPAN_NS {
            let rate = (u128::from(self.span_bytes) * SECOND_NS / u128::from(elapsed)) as u64;
            self.full = if self.full == 0 { rate } else { (self.full * (SPANS - 1) + rate) / SPANS };
            (self.span_began, self.span_bytes) = (now, 0);
        }
    }

    /// Whether a request may be let in now.
    pub fn is_open(&mut self, now: Nanos) -> bool {
        self.refused = self.permille != UNLIMITED_PERMILLE && self.full != 0 && now < self.open_at;
        !self.refused
    }

    /// A request of so many bytes was let in: its time is used up.
    pub fn admitted(&mut self, now: Nanos, bytes: u64) {
        let allowed = u128::from(self.full) * u128::from(self.permille) / 1000;
        if let Some(span) = (u128::from(bytes) * SECOND_NS).checked_div(allowed) {
            let from = self.open_at.0.max(now.0.saturating_sub(BURST_NS));
            self.open_at = Nanos(from.saturating_add(span as u64));
        }
    }

    /// When a request that was refused may be let in.
    pub fn next_event(&self) -> Option<Nanos> {
        self.refused.then_some(self.open_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: u64 = 65_536;

    fn admits(pacer: &mut Pacer, now: Nanos) -> bool {
        let open = pacer.is_open(now);
        if open {
            pacer.admitted(now, REQUEST);
        }
        open
    }

    /// A closed loop of four requests over a server that takes 100 microseconds a request; the requests that
    /// were done in each of the spans, whose rates are given.
    fn closed_loop(rates: &[u32]) -> Vec<u64> {
        let mut pacer = Pacer::new(Nanos(0));
        let mut done = vec![0; rates.len()];
        let (mut inflight, mut server_free) = (std::collections::VecDeque::new(), 0);
        for now in (0..rates.len() as u64 * 1_000_000_000).step_by(10_000) {
            let span = (now / 1_000_000_000) as usize;
            pacer.set_rate(Nanos(now), rates[span]);
            while inflight.front().is_some_and(|due| *due <= now) {
                inflight.pop_front();
                done[span] += 1;
                pacer.completed(Nanos(now), REQUEST);
            }
            while inflight.len() < 4 && admits(&mut pacer, Nanos(now)) {
                server_free = now.max(server_free) + 100_000;
                inflight.push_back(server_free);
            }
        }
        done
    }

    #[test]
    fn a_rate_is_that_share_of_what_went_through_before() {
        let done = closed_loop(&[1000, 500, 250, 900, 1000]);
        for (done, share) in done.iter().zip([1000, 500, 250, 900, 1000]) {
            let wanted = 10_000 * share / 1000;
            assert!(done.abs_diff(wanted) <= wanted / 50, "{done} requests at {share} permille, not {wanted}");
        }
    }

    #[test]
    fn retrying_does_not_help() {
        let mut pacer = Pacer::new(Nanos(0));
        for now in (0..100_000_000).step_by(100_000) {
            pacer.completed(Nanos(now), REQUEST);
        }
        pacer.set_rate(Nanos(100_000_000), 100);
        let times = (100_000_000..200_000_000u64).step_by(100);
        let admitted = times.filter(|now| admits(&mut pacer, Nanos(*now))).count();
        assert!((95..=105).contains(&admitted), "{admitted} in a tenth of a second at a hundred a second");
        assert!(pacer.next_event().is_some());
    }

    #[test]
    fn a_pause_is_not_saved_up() {
        let mut pacer = Pacer::new(Nanos(0));
        for now in (0..100_000_000).step_by(100_000) {
            pacer.completed(Nanos(now), REQUEST);
        }
        pacer.set_rate(Nanos(100_000_000), 500);
        let burst = (0..1000).filter(|_| admits(&mut pacer, Nanos(9_000_000_000))).count();
        assert!(burst <= 6, "{burst} at once after a long pause");
    }
}
