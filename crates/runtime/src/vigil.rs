//! Notices requests that will not end, which would otherwise show as a run that hangs.
//!
//! A request takes as long as the model, the media and the shares of tenants want; so no length of time says that it is
//! lost. What does is that nobody has anything to do or waits for anything while requests are in flight: the host says
//! that of itself, the device in a word that it writes again and again while it holds. Should that last, the requests
//! are lost, or wait for one that is.

use osier_domain::Nanos;

/// How long both domains have to be idle with requests in flight.
pub const PATIENCE_NS: u64 = 5_000_000_000;
/// How old the device's word may be: a process that is stopped or starved is not idle.
const FRESH_NS: u64 = 2_000_000_000;

/// What is seen at one look.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Requests in flight.
    pub inflight: usize,
    /// Requests that ended so far.
    pub ended: u64,
    /// The host has nothing to do and waits for no time.
    pub host_is_idle: bool,
    /// When the device last said that of itself; 0 if it has something to do.
    pub device_idle_at: Nanos,
}

/// See the module's text.
#[derive(Debug, Clone, Copy, Default)]
pub struct Vigil {
    /// Since when nothing happens, and how many had ended then.
    quiet: Option<(Nanos, u64)>,
}

impl Vigil {
    /// Looks once more; whether what is in flight is lost.
    pub fn look(&mut self, now: Nanos, look: &Look) -> bool {
        let is_fresh = look.device_idle_at.0 > 0 && now.0.saturating_sub(look.device_idle_at.0) <= FRESH_NS;
        if look.inflight == 0 || !look.host_is_idle || !is_fresh {
            self.quiet = None;
            return false;
        }
        let (since, ended) = *self.quiet.get_or_insert((now, look.ended));
        if ended != look.ended {
            self.quiet = Some((now, look.ended));
            return false;
        }
        now.0.saturating_sub(since.0) >= PATIENCE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK_NS: u64 = 100_000_000;

    /// When the vigil first says that requests are lost, if it does within a minute.
    fn first(of: impl Fn(u64) -> Look) -> Option<u64> {
        let mut vigil = Vigil::default();
        (LOOK_NS..60_000_000_000).step_by(LOOK_NS as usize).find(|now| vigil.look(Nanos(*now), &of(*now)))
    }

    fn quiet(now: u64) -> Look {
        Look { inflight: 1, ended: 7, host_is_idle: true, device_idle_at: Nanos(now - 50_000_000) }
    }

    #[test]
    fn idle_domains_with_a_request_in_flight_have_lost_it() {
        assert_eq!(first(quiet), Some(LOOK_NS + PATIENCE_NS));
    }

    #[test]
    fn whoever_works_or_waits_has_lost_nothing() {
        // Once in four seconds something is seen to happen, or never anything else.
        let once = |now: u64| now.is_multiple_of(4_000_000_000);
        assert_eq!(first(|now| Look { inflight: 0, ..quiet(now) }), None);
        assert_eq!(first(|now| Look { host_is_idle: !once(now), ..quiet(now) }), None);
        assert_eq!(first(|now| Look { device_idle_at: Nanos(if once(now) { 0 } else { now }), ..quiet(now) }), None);
        assert_eq!(first(|now| Look { ended: now / 4_000_000_000, ..quiet(now) }), None);
        assert_eq!(first(|now| Look { device_idle_at: Nanos(1), ..quiet(now) }), None, "a device that is stopped");
    }
}
