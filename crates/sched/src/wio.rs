//! The default policy: temperature, host load and residency (WIO, arXiv 2604.02442, sections 3.5,
//! 5.7 and 5.8).
//!
//! # Rules, in order of priority
//!
//! | rule | fires when | moves |
//! | --- | --- | --- |
//! | device hot | the device is *hot* and the host has headroom | any actor to the host |
//! | host busy | host CPU at or above its high mark, the device *cool* | best-effort actors to the device |
//! | host throttled | the same, cores below their nominal frequency, no best-effort actor left on the host | latency-sensitive actors to the device |
//! | device cooled | the device is *cool* | best-effort actors that heat drove away, back to the device |
//! | host idle | host CPU below its low mark | actors that the host's load drove away, back to the host |
//! | latency-sensitive | the host is neither throttled nor busy | latency-sensitive actors to the host |
//!
//! *Hot* is at or above the upload temperature, or throttled whatever the temperature says: a device
//! that throttles below the upload temperature would otherwise never be relieved. *Cool* is below
//! the offload temperature and at full speed. When the device is hot and the host has no headroom,
//! nothing moves; the rate falls instead, in proportion to how far the temperature is above the
//! upload temperature, by a bounded step an epoch, and rises again in the same way.
//!
//! # Invariants
//!
//! 1. An actor that was placed stays for the minimum residency, whatever happens.
//! 2. At most `moves_per_epoch` actors move in one epoch, all for one reason.
//! 3. No actor is sent to a device that is not cool, nor, because of heat, to a host without
//!    headroom.
//! 4. A latency-sensitive actor is sent to the device only while the host is throttled.
//! 5. Opposite rules are separated by a band (hot and cool; CPU high and low), and an actor returns
//!    only when the cause that drove it away has cleared: so one cause cannot move an actor both
//!    ways without the temperature or the load crossing the whole band.
//!
//! The paper gives the thresholds, the residency and the bound; that an actor remembers what drove
//! it away is ours. Without it the paper's two rules "below 40% host CPU actors return to the host"
//! and "offload when the device is cool" would contradict each other on an idle host with a cool
//! device, and an actor would swing between them once each residency.

use std::collections::BTreeMap;

use crate::average::Average;
use crate::{
    ACTORS_MAX, ActorId, ActorView, Class, Decision, Move, Moves, Nanos, Policy, RATE_UNLIMITED_PERMILLE, Reason,
    Sample, SchedulerParams, Side,
};

/// What drove an actor from its home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    DeviceHot,
    HostBusy,
    HostThrottled,
}

/// What the policy knows of one actor beyond the sample.
#[derive(Clone, Copy, Debug)]
struct Memory {
    side: Side,
    /// `None` while the actor is at home; its home is then the side where it is.
    away: Option<Cause>,
    /// The side it was last sent to, and what `away` becomes once it is seen there.
    sent: Option<(Side, Option<Cause>)>,
    /// Its share of the host's cores when last seen there.
    host_busy_permille: Option<u32>,
}

/// The state of both sides, as the rules name it.
#[derive(Clone, Copy, Debug)]
struct Pressure {
    now: Nanos,
    hot: bool,
    cool: bool,
    host_has_headroom: bool,
    host_saturated: bool,
    host_busy: bool,
    host_idle: bool,
    host_throttled: bool,
    host_recovered: bool,
    host_cpu_permille: u32,
    /// How far the device is above its upload temperature.
    excess_millikelvin: u32,
}

/// Deliberate defects, by which the tests show that their checks can fail.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plant {
    IgnoreResidency,
    IgnoreBand,
    IgnoreHeadroom,
    MoveLatencySensitive,
    TwoMoves,
    DropRateAtOnce,
}

/// The default policy. See the module's head for its rules.
pub struct Wio {
    params: SchedulerParams,
    actors: BTreeMap<ActorId, Memory>,
    host_cpu: Average,
    rate_permille: u32,
    #[cfg(test)]
    pub(crate) plant: Option<Plant>,
}

impl Wio {
    /// A policy with the thresholds of a profile.
    ///
    /// # Panics
    /// If the thresholds contradict each other. A parsed profile has been checked.
    #[must_use]
    pub fn new(params: &SchedulerParams) -> Wio {
        assert!(
            params.offload_below_millicelsius < params.upload_millicelsius,
            "without a band between the two temperatures actors would swing"
        );
        assert!(
            params.host_cpu_low_permille < params.host_cpu_high_permille,
            "without a band between the two host loads actors would swing"
        );
        assert!(params.shed_floor_permille >= 1, "a rate of zero would stop the traffic for good");
        assert!(params.shed_floor_permille <= RATE_UNLIMITED_PERMILLE);
        assert!(params.shed_span_millikelvin >= 1 && params.moves_per_epoch >= 1);
        Wio {
            params: *params,
            actors: BTreeMap::new(),
            host_cpu: Average::new(params.host_cpu_window_ms),
            rate_permille: RATE_UNLIMITED_PERMILLE,
            #[cfg(test)]
            plant: None,
        }
    }

    /// Takes over what the sample says of the actors: new ones, lost ones, and whether those that
    /// were sent somewhere have arrived.
    fn observe(&mut self, sample: &Sample) {
        assert!(sample.actors.len() <= ACTORS_MAX);
        self.host_cpu.add(sample.at, sample.host.cpu_permille);
        self.actors.retain(|id, _| sample.actor(*id).is_some());
        for view in &sample.actors {
            let memory = self.actors.entry(view.id).or_insert(Memory {
                side: view.side,
                away: None,
                sent: None,
                host_busy_permille: None,
            });
            if memory.side != view.side {
                // An actor that arrives where nobody here sent it was placed by the operator: that
                // is its new home.
                memory.away = match memory.sent {
                    Some((to, away)) if to == view.side => away,
                    _ => None,
                };
                memory.side = view.side;
                memory.sent = None;
            }
            if view.side == Side::Host {
                memory.host_busy_permille = Some(view.busy_permille);
            }
        }
    }

    fn pressure(&self, sample: &Sample) -> Pressure {
        let params = &self.params;
        let device = &sample.device;
        let excess = i64::from(device.temperature_millicelsius) - i64::from(params.upload_millicelsius);
        let throttled = device.speed_permille < 1000;
        let cpu = self.host_cpu.expected_permille();
        let slow = host_is_slow(sample, params.host_throttle_permille);
        let busy = cpu >= params.host_cpu_high_permille;
        let idle = cpu < params.host_cpu_low_permille;
        let headroom = params.host_headroom_permille;
        Pressure {
            now: sample.at,
            hot: excess >= 0 || throttled,
            cool: device.temperature_millicelsius < self.cool_below() && !throttled,
            host_has_headroom: cpu < headroom || self.planted_no_headroom(),
            host_saturated: self.host_cpu.measured_permille() >= headroom,
            host_busy: busy,
            host_idle: idle,
            host_throttled: slow && busy,
            // Governors lower the frequency of idle cores too, so a slow but idle host counts as
            // recovered: otherwise an actor that left would never return.
            host_recovered: !slow || idle,
            host_cpu_permille: cpu,
            excess_millikelvin: u32::try_from(excess.max(0)).unwrap_or(u32::MAX),
        }
    }

    fn cool_below(&self) -> i32 {
        #[cfg(test)]
        if self.plant == Some(Plant::IgnoreBand) {
            return self.params.upload_millicelsius;
        }
        self.params.offload_below_millicelsius
    }

    fn planted_no_headroom(&self) -> bool {
        #[cfg(test)]
        if self.plant == Some(Plant::IgnoreHeadroom) {
            return true;
        }
        false
    }

    /// The first rule that has an actor to move, with its actors, most pressing first. Without one:
    /// why not.
    fn choose<'s>(&self, sample: &'s Sample, now: &Pressure) -> Result<(Rule, Vec<&'s ActorView>), Reason> {
        let mut outcome = Reason::Steady;
        for rule in Rule::IN_ORDER {
            if !rule.fires(now) {
                continue;
            }
            let wanted: Vec<&ActorView> =
                sample.actors.iter().filter(|view| self.wants(rule, view, sample, now)).collect();
            let mut ready: Vec<&ActorView> =
                wanted.iter().copied().filter(|view| view.movable && self.has_resided(view, now.now)).collect();
            if !ready.is_empty() {
                ready.sort_by_key(|view| order_of(view));
                return Ok((rule, ready));
            }
            if outcome == Reason::Steady {
                outcome = match wanted.iter().any(|view| view.movable) {
                    true => Reason::Resident,
                    false if rule == Rule::DeviceHot => Reason::NothingToMove,
                    false => Reason::Steady,
                };
            }
        }
        Err(outcome)
    }

    /// Whether a rule that fires would have this actor moved, residency apart.
    fn wants(&self, rule: Rule, view: &ActorView, sample: &Sample, now: &Pressure) -> bool {
        if view.side == rule.to() {
            return false;
        }
        let away = self.actors[&view.id].away;
        let best_effort = self.is_best_effort(view);
        match rule {
            Rule::DeviceHot => true,
            Rule::HostBusy => best_effort,
            // Best-effort actors leave a throttled host first, even if that means to wait until
            // they may.
            Rule::HostThrottled => !sample
                .actors
                .iter()
                .any(|other| other.class == Class::BestEffort && other.side == Side::Host && other.movable),
            Rule::DeviceCooled => best_effort && away == Some(Cause::DeviceHot),
            Rule::HostIdle => away == Some(Cause::HostBusy) && self.fits_on_host(view, now),
            Rule::LatencySensitive => !best_effort && self.fits_on_host(view, now),
        }
    }

    fn is_best_effort(&self, view: &ActorView) -> bool {
        #[cfg(test)]
        if self.plant == Some(Plant::MoveLatencySensitive) {
            return true;
        }
        view.class == Class::BestEffort
    }

    /// Whether the host stays below its high mark with this actor on it, judged by what the actor
    /// took when it was last there. An actor that was never there is let in: how much it takes can
    /// only be found out by trying.
    fn fits_on_host(&self, view: &ActorView, now: &Pressure) -> bool {
        let busy = self.actors[&view.id].host_busy_permille.unwrap_or(0);
        now.host_cpu_permille + busy < self.params.host_cpu_high_permille
    }

    fn has_resided(&self, view: &ActorView, now: Nanos) -> bool {
        #[cfg(test)]
        if self.plant == Some(Plant::IgnoreResidency) {
            return true;
        }
        let residency_ns = self.params.min_residency_ms * 1_000_000;
        now.0.saturating_sub(view.since.0) >= residency_ns
    }

    /// Records what was ordered, so that the next samples are understood.
    fn order(&mut self, rule: Rule, view: &ActorView) -> Move {
        let to = rule.to();
        let unknown = 1000 - self.params.host_headroom_permille;
        let memory = self.actors.get_mut(&view.id).expect("observe() has entered every actor");
        let away = if memory.away.is_some() { None } else { rule.cause() };
        memory.sent = Some((to, away));
        // The measured load answers a move only after some epochs. Until then the forecast counts
        // it, lest a whole pipeline follow its first actor before the first has made a difference.
        match to {
            Side::Device => self.host_cpu.expect(-i64::from(view.busy_permille)),
            Side::Host => {
                let busy = memory.host_busy_permille.unwrap_or(unknown);
                self.host_cpu.expect(i64::from(busy));
            }
        }
        Move { actor: view.id, to }
    }

    /// The rate of this epoch: towards the target, by a bounded step.
    fn step_rate(&mut self, now: &Pressure) {
        let both_near_limits = now.hot && now.host_saturated;
        let target = match both_near_limits {
            true => self.shed_target(now.excess_millikelvin),
            false => RATE_UNLIMITED_PERMILLE,
        };
        let rate = self.rate_permille;
        #[cfg(test)]
        if self.plant == Some(Plant::DropRateAtOnce) {
            self.rate_permille = target;
            return;
        }
        self.rate_permille = if target < rate {
            target.max(rate.saturating_sub(self.params.shed_step_permille))
        } else {
            target.min(rate + self.params.shed_recover_permille)
        };
        assert!(self.rate_permille >= self.params.shed_floor_permille.min(rate));
    }

    /// In proportion to the excess: a warmer device gets a lower rate, a lower rate makes a cooler
    /// device, so the two meet at one point and stay there. Stepping down for as long as the device
    /// is hot would run to the floor, because a temperature answers in seconds and an epoch is
    /// milliseconds; then the rate would swing.
    fn shed_target(&self, excess_millikelvin: u32) -> u32 {
        let span = u64::from(self.params.shed_span_millikelvin);
        let depth = u64::from(RATE_UNLIMITED_PERMILLE - self.params.shed_floor_permille);
        let excess = u64::from(excess_millikelvin).min(span);
        let cut = u32::try_from(depth * excess / span).expect("at most 1000 permille");
        RATE_UNLIMITED_PERMILLE - cut
    }

    fn moves_max(&self) -> usize {
        let max = (self.params.moves_per_epoch as usize).min(Moves::CAPACITY);
        #[cfg(test)]
        if self.plant == Some(Plant::TwoMoves) {
            return max + 1;
        }
        max
    }
}

impl Policy for Wio {
    fn name(&self) -> &'static str {
        "wio"
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        self.observe(sample);
        let now = self.pressure(sample);
        let before = self.rate_permille;
        self.step_rate(&now);
        let rate_permille = self.rate_permille;
        let mut moves = Moves::none();
        let mut reason = match self.choose(sample, &now) {
            Ok((rule, ready)) => {
                for view in ready.into_iter().take(self.moves_max()) {
                    let one = self.order(rule, view);
                    moves.push(one);
                }
                rule.reason()
            }
            Err(reason) => reason,
        };
        if moves.as_slice().is_empty() {
            if rate_permille > before {
                reason = Reason::Recover;
            } else if rate_permille < RATE_UNLIMITED_PERMILLE {
                reason = Reason::Shed;
            }
        }
        Decision { moves, rate_permille, reason }
    }
}

/// The rules of the table in the module's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    DeviceHot,
    HostBusy,
    HostThrottled,
    DeviceCooled,
    HostIdle,
    LatencySensitive,
}

impl Rule {
    const IN_ORDER: [Rule; 6] = [
        Rule::DeviceHot,
        Rule::HostBusy,
        Rule::HostThrottled,
        Rule::DeviceCooled,
        Rule::HostIdle,
        Rule::LatencySensitive,
    ];

    fn fires(self, now: &Pressure) -> bool {
        match self {
            Rule::DeviceHot => now.hot && now.host_has_headroom,
            Rule::HostBusy => now.host_busy && now.cool,
            Rule::HostThrottled => now.host_throttled && now.cool,
            Rule::DeviceCooled => now.cool,
            Rule::HostIdle => now.host_idle,
            Rule::LatencySensitive => now.host_recovered && now.host_has_headroom,
        }
    }

    fn to(self) -> Side {
        match self {
            Rule::DeviceHot | Rule::HostIdle | Rule::LatencySensitive => Side::Host,
            Rule::HostBusy | Rule::HostThrottled | Rule::DeviceCooled => Side::Device,
        }
    }

    /// What the actor is away for after this move, if it was at home before.
    fn cause(self) -> Option<Cause> {
        match self {
            Rule::DeviceHot => Some(Cause::DeviceHot),
            Rule::HostBusy => Some(Cause::HostBusy),
            Rule::HostThrottled => Some(Cause::HostThrottled),
            // These three bring an actor where it belongs.
            Rule::DeviceCooled | Rule::HostIdle | Rule::LatencySensitive => None,
        }
    }

    fn reason(self) -> Reason {
        match self {
            Rule::DeviceHot => Reason::DeviceHot,
            Rule::HostBusy => Reason::HostBusy,
            Rule::HostThrottled => Reason::HostThrottled,
            Rule::DeviceCooled => Reason::DeviceCooled,
            Rule::HostIdle => Reason::HostIdle,
            Rule::LatencySensitive => Reason::LatencySensitive,
        }
    }
}

/// Latency-sensitive actors first, because they have most to gain; then the busiest, because moving
/// it makes the largest difference; then by number, so that the choice is always the same.
fn order_of(view: &ActorView) -> (Class, std::cmp::Reverse<u32>, ActorId) {
    (view.class, std::cmp::Reverse(view.busy_permille), view.id)
}

fn host_is_slow(sample: &Sample, throttle_permille: u32) -> bool {
    match (sample.host.frequency_khz, sample.host.frequency_nominal_khz) {
        (Some(now), Some(nominal)) => u64::from(now) * 1000 < u64::from(nominal) * u64::from(throttle_permille),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
