//! A policy by prediction: the move with the largest drop of a cost.
//!
//! For every actor it learns how much of each side's cores a byte takes, and predicts from the
//! actor's present traffic how busy both sides would be after a move. The cost of a placement is
//! convex in both loads (the last idle tenth is worth more than the first), and load on a warm
//! device costs extra. It never sheds rate.
//!
//! It decides by load more than by heat, so it balances sooner than [`crate::Wio`] and reacts to a
//! hot device later; it is the policy to start from when the host is the scarce side.

use std::collections::BTreeMap;

use crate::average::Average;
use crate::{
    ActorId, ActorView, Class, Decision, Move, Moves, Nanos, Policy, RATE_UNLIMITED_PERMILLE, Reason, Sample,
    SchedulerParams, Side,
};

/// A move must lower the cost by at least this much. A move is a pause for its streams, and loads
/// are never exact; without a margin the policy would follow the noise. The unit is that of
/// [`load_cost`]: a side that goes from idle to fully busy costs 1000.
const GAIN_MIN: i64 = 60;

/// What it costs to have a latency-sensitive actor on the device: less than a fully busy host, more
/// than a half busy one.
const LATENCY_COST: i64 = 400;

/// Load beyond what a side has makes a queue, which is worse than any utilisation.
const OVERLOAD_FACTOR: i64 = 8;

/// Rates and costs follow their measurements by one part in this many per epoch.
const SMOOTHING: u64 = 8;

/// A load is cut off here: an actor on a device that is shut down would take an infinite share.
const LOAD_MAX_PERMILLE: u64 = 100_000;

/// What was learned of one actor.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    /// `None`: not measured yet.
    bytes_per_second: Option<u64>,
    /// Permille of all the host's cores at a gigabyte a second. `None`: never seen there.
    host_cost: Option<u64>,
    /// The same for the device's cores at full speed.
    device_cost: Option<u64>,
}

impl Learned {
    fn cost(&self, side: Side) -> u64 {
        // An actor never seen on a side is taken to cost there what it costs on the other.
        let (own, other) = match side {
            Side::Host => (self.host_cost, self.device_cost),
            Side::Device => (self.device_cost, self.host_cost),
        };
        own.or(other).unwrap_or(0)
    }

    fn load_permille(&self, side: Side, speed_permille: u32) -> u64 {
        let full = u128::from(self.bytes_per_second.unwrap_or(0)) * u128::from(self.cost(side)) / 1_000_000_000;
        let load = match side {
            Side::Host => full,
            Side::Device => full * 1000 / u128::from(speed_permille.max(1)),
        };
        u64::try_from(load.min(u128::from(LOAD_MAX_PERMILLE))).expect("cut off")
    }
}

/// Both loads in permille, which may exceed 1000 as a prediction.
#[derive(Clone, Copy, Debug)]
struct Loads {
    host: i64,
    device: i64,
}

/// Chooses by predicted cost. See the module's head.
pub struct GreedyCost {
    params: SchedulerParams,
    learned: BTreeMap<ActorId, Learned>,
    last: Option<Nanos>,
    host: Average,
    device: Average,
}

impl GreedyCost {
    /// A policy with the residency, the bound and the temperatures of a profile.
    ///
    /// # Panics
    /// If the temperatures contradict each other. A parsed profile has been checked.
    #[must_use]
    pub fn new(params: &SchedulerParams) -> GreedyCost {
        assert!(params.offload_below_millicelsius < params.upload_millicelsius);
        GreedyCost {
            params: *params,
            learned: BTreeMap::new(),
            last: None,
            host: Average::new(params.host_cpu_window_ms),
            device: Average::new(params.host_cpu_window_ms),
        }
    }

    fn learn(&mut self, sample: &Sample) {
        self.host.add(sample.at, sample.host.cpu_permille);
        self.device.add(sample.at, sample.device.utilisation_permille);
        self.learned.retain(|id, _| sample.actor(*id).is_some());
        let elapsed_ns = match self.last.replace(sample.at) {
            Some(last) if last < sample.at => sample.at.0 - last.0,
            _ => return,
        };
        for view in &sample.actors {
            let learned = self.learned.entry(view.id).or_default();
            let rate = u128::from(view.bytes) * 1_000_000_000 / u128::from(elapsed_ns);
            let rate = u64::try_from(rate).unwrap_or(u64::MAX);
            follow_or_start(&mut learned.bytes_per_second, rate);
            if rate == 0 {
                continue;
            }
            let busy = match view.side {
                Side::Host => u64::from(view.busy_permille),
                Side::Device => u64::from(view.busy_permille) * u64::from(sample.device.speed_permille) / 1000,
            };
            let cost = u128::from(busy) * 1_000_000_000 / u128::from(rate);
            let cost = u64::try_from(cost).unwrap_or(u64::MAX);
            let slot = match view.side {
                Side::Host => &mut learned.host_cost,
                Side::Device => &mut learned.device_cost,
            };
            follow_or_start(slot, cost);
        }
    }

    /// The movable actor whose move lowers the cost most, and the loads after it.
    fn best(&self, sample: &Sample, loads: Loads, taken: &Moves) -> Option<(Move, Loads)> {
        let heat = self.heat_permille(sample);
        let residency_ns = self.params.min_residency_ms * 1_000_000;
        let mut best: Option<(i64, Move, Loads)> = None;
        for view in &sample.actors {
            let resided = sample.at.0.saturating_sub(view.since.0) >= residency_ns;
            let again = taken.into_iter().any(|one| one.actor == view.id);
            if !view.movable || !resided || again {
                continue;
            }
            let to = view.side.other();
            let after = self.loads_after(sample, loads, view);
            let gain = cost(loads, heat) + latency_cost(view, view.side) - cost(after, heat) - latency_cost(view, to);
            if gain >= GAIN_MIN && best.is_none_or(|(most, ..)| gain > most) {
                best = Some((gain, Move { actor: view.id, to }, after));
            }
        }
        best.map(|(_, one, after)| (one, after))
    }

    fn loads_after(&self, sample: &Sample, loads: Loads, view: &ActorView) -> Loads {
        let Some(learned) = self.learned.get(&view.id) else {
            return loads;
        };
        let speed = sample.device.speed_permille;
        let there = learned.load_permille(view.side.other(), speed).cast_signed();
        let here = i64::from(view.busy_permille);
        match view.side {
            Side::Host => Loads { host: (loads.host - here).max(0), device: loads.device + there },
            Side::Device => Loads { host: loads.host + there, device: (loads.device - here).max(0) },
        }
    }

    /// 0 at the temperature below which the device is cool, 1000 at the upload temperature, 4000 at
    /// most.
    fn heat_permille(&self, sample: &Sample) -> i64 {
        let cool = i64::from(self.params.offload_below_millicelsius);
        let band = i64::from(self.params.upload_millicelsius) - cool;
        let above = i64::from(sample.device.temperature_millicelsius) - cool;
        (above * 1000 / band).clamp(0, 4000)
    }
}

impl Policy for GreedyCost {
    fn name(&self) -> &'static str {
        "greedy-cost"
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        self.learn(sample);
        let mut loads = Loads {
            host: i64::from(self.host.expected_permille()),
            device: i64::from(self.device.expected_permille()),
        };
        let mut moves = Moves::none();
        let moves_max = (self.params.moves_per_epoch as usize).min(Moves::CAPACITY);
        while moves.as_slice().len() < moves_max {
            let Some((one, after)) = self.best(sample, loads, &moves) else {
                break;
            };
            self.host.expect(after.host - loads.host);
            self.device.expect(after.device - loads.device);
            loads = after;
            moves.push(one);
        }
        let reason = if moves.as_slice().is_empty() { Reason::Steady } else { Reason::Cost };
        Decision { moves, rate_permille: RATE_UNLIMITED_PERMILLE, reason }
    }
}

fn follow_or_start(slot: &mut Option<u64>, measured: u64) {
    let Some(known) = slot else {
        *slot = Some(measured);
        return;
    };
    if measured >= *known {
        *known += (measured - *known).div_ceil(SMOOTHING);
    } else {
        *known -= (*known - measured).div_ceil(SMOOTHING);
    }
}

fn cost(loads: Loads, heat_permille: i64) -> i64 {
    load_cost(loads.host) + load_cost(loads.device) + loads.device * heat_permille / 1000
}

fn load_cost(permille: i64) -> i64 {
    let within = permille.min(1000);
    let beyond = permille - within;
    within * within / 1000 + beyond * OVERLOAD_FACTOR
}

fn latency_cost(view: &ActorView, side: Side) -> i64 {
    match (view.class, side) {
        (Class::LatencySensitive, Side::Device) => LATENCY_COST,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, sample_at};

    /// Runs epochs of one fixed sample and carries moves out.
    fn settle(sample: &mut Sample, epochs: u64) -> Vec<Move> {
        let mut policy = GreedyCost::new(&testing::params());
        let mut all = Vec::new();
        for epoch in 0..epochs {
            sample.at = Nanos(1_000_000_000 + epoch * 10_000_000);
            let decision = policy.decide(sample);
            decision.check("greedy-cost", sample).unwrap();
            for one in &decision.moves {
                let at = sample.at;
                let index = sample.actors.iter().position(|view| view.id == one.actor).unwrap();
                let view = &mut sample.actors[index];
                let busy = view.busy_permille;
                view.side = one.to;
                view.since = at;
                let (add, take) = match one.to {
                    Side::Host => (&mut sample.host.cpu_permille, &mut sample.device.utilisation_permille),
                    Side::Device => (&mut sample.device.utilisation_permille, &mut sample.host.cpu_permille),
                };
                *add = (*add + busy).min(1000);
                *take = take.saturating_sub(busy);
                all.push(*one);
            }
        }
        all
    }

    #[test]
    fn a_busy_host_hands_over_until_both_sides_are_even_and_then_rests() {
        let mut sample = sample_at(0, 40_000, 900);
        sample.device.utilisation_permille = 0;
        for id in 1..=4 {
            sample.actors.push(testing::actor(id, Side::Host, 200));
        }
        let moves = settle(&mut sample, 400);
        assert_eq!(moves.len(), 2, "{moves:?}");
        assert!(moves.iter().all(|one| one.to == Side::Device));
    }

    #[test]
    fn heat_makes_the_host_cheaper() {
        let mut sample = sample_at(0, 76_000, 300);
        sample.device.utilisation_permille = 300;
        sample.actors.push(testing::actor(1, Side::Device, 300));
        let moves = settle(&mut sample, 400);
        assert_eq!(moves, [Move { actor: ActorId(1), to: Side::Host }]);
    }

    #[test]
    fn a_latency_sensitive_actor_prefers_the_host_at_equal_loads() {
        let mut sample = sample_at(0, 40_000, 300);
        sample.device.utilisation_permille = 300;
        sample.actors.push(testing::actor(1, Side::Device, 100));
        sample.actors[0].class = Class::LatencySensitive;
        let moves = settle(&mut sample, 400);
        assert_eq!(moves, [Move { actor: ActorId(1), to: Side::Host }]);
    }

    #[test]
    fn a_device_that_is_shut_down_is_left() {
        let mut sample = sample_at(0, 40_000, 0);
        sample.device.utilisation_permille = 1000;
        sample.actors.push(testing::actor(1, Side::Device, 1000));
        let mut policy = GreedyCost::new(&testing::params());
        for epoch in 0..50 {
            sample.at = Nanos(1_000_000_000 + epoch * 10_000_000);
            if epoch == 20 {
                sample.device.speed_permille = 0;
            }
            let moved = !policy.decide(&sample).moves.as_slice().is_empty();
            if moved {
                return;
            }
        }
        panic!("the actor stayed on a device that is shut down");
    }
}
