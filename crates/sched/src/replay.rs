//! Another policy on the samples of a recorded run.
//!
//! What a replay can and cannot say. The policy's moves are carried out on paper: an actor that it
//! moves stays moved, whatever the recorded run did with it. Both sides' loads are corrected for
//! actors that stand elsewhere than they did in the recording, by what each actor took on that side
//! on average while the recording saw it there. The temperature and the throttling are those of the
//! recorded run: they do **not** answer the replayed moves. So a replay shows what a policy would
//! have decided on what was seen; what would have come of it, only a simulation can show.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::wire::{ActorNumber, SideWord};
use crate::{
    ActorId, Decision, Nanos, Policy, RATE_UNLIMITED_PERMILLE, Reason, Recorded, Sample, SchedulerParams, Side,
};

/// So many log entries and moves are kept; the rest are only counted.
const LOG_MAX: usize = 100_000;

/// One move of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TimedMove {
    /// When it was decided, in the recording's time.
    pub at_ns: u64,
    /// Which actor.
    #[serde(with = "ActorNumber")]
    pub actor: ActorId,
    /// Where to.
    #[serde(with = "SideWord")]
    pub to: Side,
    /// Why.
    pub reason: Reason,
    /// How long the actor had been where it was.
    pub residency_ns: u64,
}

/// A change of what the policy says: the reason, the rate, or a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// When, in the recording's time.
    pub at_ns: u64,
    /// The device's temperature then.
    pub temperature_millicelsius: i32,
    /// The host's CPU share then, as corrected.
    pub host_cpu_permille: u32,
    /// Why.
    pub reason: Reason,
    /// The rate.
    pub rate_permille: u32,
    /// How many actors are moved.
    pub moves: u32,
}

/// How long an actor was on each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ActorTimes {
    /// Which actor.
    #[serde(with = "ActorNumber")]
    pub actor: ActorId,
    /// On the host, in nanoseconds.
    pub host_ns: u64,
    /// On the device, in nanoseconds.
    pub device_ns: u64,
    /// How often it was moved.
    pub moves: u64,
}

/// What a policy did on a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// The policy.
    pub policy: String,
    /// How many epochs it saw.
    pub epochs: u64,
    /// From the first sample to the last, in nanoseconds.
    pub span_ns: u64,
    /// The moves, the first of them if there are very many.
    pub moves: Vec<TimedMove>,
    /// Moves to the host, all of them.
    pub uploads: u64,
    /// Moves to the device, all of them.
    pub offloads: u64,
    /// The shortest time between two moves of one actor, or from its placement to its first move.
    pub shortest_residency_ns: Option<u64>,
    /// Time at or above the upload temperature, in nanoseconds. It comes from the recording alone.
    pub above_upload_ns: u64,
    /// Time throttled, in nanoseconds. It comes from the recording alone.
    pub throttled_ns: u64,
    /// Time with a rate below the whole, in nanoseconds.
    pub shed_ns: u64,
    /// The mean rate over time.
    pub rate_mean_permille: u32,
    /// How many epochs' decisions differ from those that were recorded, where any were.
    pub differs_from_recorded: u64,
    /// How long each actor was where, in rising order of their numbers.
    pub actors: Vec<ActorTimes>,
    /// Every change of what the policy says, the first of them if there are very many.
    pub log: Vec<LogEntry>,
}

impl ReplayReport {
    fn times(&mut self, actor: ActorId) -> &mut ActorTimes {
        let index = match self.actors.binary_search_by_key(&actor, |times| times.actor) {
            Ok(index) => index,
            Err(index) => {
                let fresh = ActorTimes { actor, host_ns: 0, device_ns: 0, moves: 0 };
                self.actors.insert(index, fresh);
                index
            }
        };
        &mut self.actors[index]
    }
}

/// Why a replay is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Too little to say anything.
    #[error("the recording holds {0} samples, a replay needs two at least: record a longer run")]
    TooShort(usize),
}

/// Runs a fresh policy over a recording. `params` are those that the policy was made with.
///
/// # Errors
/// [`ReplayError::TooShort`] when the recording spans no time.
pub fn replay(
    policy: &mut dyn Policy,
    params: &SchedulerParams,
    entries: &[Recorded],
) -> Result<ReplayReport, ReplayError> {
    if entries.len() < 2 {
        return Err(ReplayError::TooShort(entries.len()));
    }
    let mut run = Run::new(policy.name(), params, entries);
    for (index, entry) in entries.iter().enumerate() {
        let next = entries.get(index + 1).map_or(entry.sample.at, |next| next.sample.at);
        let sample = run.overlay(&entry.sample);
        let decision = policy.decide(&sample);
        run.account(&sample, &decision, entry.decision.as_ref(), next);
    }
    Ok(run.finish())
}

/// Where the replay has put an actor.
#[derive(Clone, Copy, Debug)]
struct Placed {
    side: Side,
    since: Nanos,
}

/// What an actor took on one side, summed over the samples that saw it there.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    busy_permille: u64,
    samples: u64,
}

struct Run {
    report: ReplayReport,
    upload_millicelsius: i32,
    placed: BTreeMap<ActorId, Placed>,
    seen: BTreeMap<(ActorId, Side), Seen>,
    rate_permille_ns: u128,
    last_said: Option<(Reason, u32)>,
}

impl Run {
    fn new(policy: &str, params: &SchedulerParams, entries: &[Recorded]) -> Run {
        let mut seen: BTreeMap<(ActorId, Side), Seen> = BTreeMap::new();
        for view in entries.iter().flat_map(|entry| &entry.sample.actors) {
            let sum = seen.entry((view.id, view.side)).or_default();
            sum.busy_permille += u64::from(view.busy_permille);
            sum.samples += 1;
        }
        let first = entries[0].sample.at;
        let last = entries[entries.len() - 1].sample.at;
        let report = ReplayReport {
            policy: policy.to_owned(),
            epochs: 0,
            span_ns: last.0 - first.0,
            moves: Vec::new(),
            uploads: 0,
            offloads: 0,
            shortest_residency_ns: None,
            above_upload_ns: 0,
            throttled_ns: 0,
            shed_ns: 0,
            rate_mean_permille: RATE_UNLIMITED_PERMILLE,
            differs_from_recorded: 0,
            actors: Vec::new(),
            log: Vec::new(),
        };
        Run {
            report,
            upload_millicelsius: params.upload_millicelsius,
            placed: BTreeMap::new(),
            seen,
            rate_permille_ns: 0,
            last_said: None,
        }
    }

    /// The recorded sample with actors where the replay has put them, and loads to match.
    fn overlay(&mut self, recorded: &Sample) -> Sample {
        let mut sample = recorded.clone();
        let mut host = i64::from(sample.host.cpu_permille);
        let mut device = i64::from(sample.device.utilisation_permille);
        for view in &mut sample.actors {
            let first = Placed { side: view.side, since: view.since };
            let placed = *self.placed.entry(view.id).or_insert(first);
            if placed.side != view.side {
                let here = i64::from(view.busy_permille);
                view.busy_permille = self.busy_on(view.id, placed.side, view.busy_permille);
                let there = i64::from(view.busy_permille);
                let (loses, gains) = match placed.side {
                    Side::Host => (&mut device, &mut host),
                    Side::Device => (&mut host, &mut device),
                };
                *loses -= here;
                *gains += there;
            }
            view.side = placed.side;
            view.since = placed.since;
        }
        sample.host.cpu_permille = clamped(host);
        sample.device.utilisation_permille = clamped(device);
        sample
    }

    /// What the actor takes on a side on average; where the recording never saw it there, what it
    /// takes on the other.
    fn busy_on(&self, id: ActorId, side: Side, otherwise: u32) -> u32 {
        match self.seen.get(&(id, side)) {
            Some(seen) if seen.samples > 0 => {
                u32::try_from(seen.busy_permille / seen.samples).expect("a mean of shares")
            }
            _ => otherwise,
        }
    }

    fn account(&mut self, sample: &Sample, decision: &Decision, recorded: Option<&Decision>, next: Nanos) {
        let elapsed_ns = next.0 - sample.at.0;
        let report = &mut self.report;
        report.epochs += 1;
        if recorded.is_some_and(|recorded| recorded != decision) {
            report.differs_from_recorded += 1;
        }
        if sample.device.temperature_millicelsius >= self.upload_millicelsius {
            report.above_upload_ns += elapsed_ns;
        }
        if sample.device.speed_permille < 1000 {
            report.throttled_ns += elapsed_ns;
        }
        if decision.rate_permille < RATE_UNLIMITED_PERMILLE {
            report.shed_ns += elapsed_ns;
        }
        self.rate_permille_ns += u128::from(decision.rate_permille) * u128::from(elapsed_ns);
        self.log(sample, decision);
        self.carry_out(sample, decision);
        for view in &sample.actors {
            let side = self.placed[&view.id].side;
            let times = self.report.times(view.id);
            match side {
                Side::Host => times.host_ns += elapsed_ns,
                Side::Device => times.device_ns += elapsed_ns,
            }
        }
    }

    fn log(&mut self, sample: &Sample, decision: &Decision) {
        let moves = decision.moves.as_slice().len();
        let said = (decision.reason, decision.rate_permille);
        let same = self.last_said.replace(said) == Some(said);
        if (same && moves == 0) || self.report.log.len() >= LOG_MAX {
            return;
        }
        self.report.log.push(LogEntry {
            at_ns: sample.at.0,
            temperature_millicelsius: sample.device.temperature_millicelsius,
            host_cpu_permille: sample.host.cpu_permille,
            reason: decision.reason,
            rate_permille: decision.rate_permille,
            moves: u32::try_from(moves).expect("a bounded list"),
        });
    }

    fn carry_out(&mut self, sample: &Sample, decision: &Decision) {
        for one in &decision.moves {
            let allowed = sample.actor(one.actor).is_some_and(|view| view.movable);
            let Some(placed) = self.placed.get_mut(&one.actor).filter(|_| allowed) else {
                continue;
            };
            if placed.side == one.to {
                continue;
            }
            let residency_ns = sample.at.0.saturating_sub(placed.since.0);
            *placed = Placed { side: one.to, since: sample.at };
            let report = &mut self.report;
            match one.to {
                Side::Host => report.uploads += 1,
                Side::Device => report.offloads += 1,
            }
            report.times(one.actor).moves += 1;
            let shortest = report.shortest_residency_ns.unwrap_or(u64::MAX).min(residency_ns);
            report.shortest_residency_ns = Some(shortest);
            if report.moves.len() < LOG_MAX {
                report.moves.push(TimedMove {
                    at_ns: sample.at.0,
                    actor: one.actor,
                    to: one.to,
                    reason: decision.reason,
                    residency_ns,
                });
            }
        }
    }

    fn finish(mut self) -> ReplayReport {
        if self.report.span_ns > 0 {
            let mean = self.rate_permille_ns / u128::from(self.report.span_ns);
            self.report.rate_mean_permille = u32::try_from(mean).expect("a mean of rates");
        }
        self.report
    }
}

fn clamped(permille: i64) -> u32 {
    u32::try_from(permille.clamp(0, 1000)).expect("clamped")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Plant, actor, params, sample_at};
    use crate::{POLICIES, Wio, policy};

    fn record(name: &str, epochs: usize) -> Vec<Recorded> {
        let mut plant = Plant::new(3);
        let mut policy = policy(name, &params()).unwrap();
        let mut entries = Vec::new();
        for _ in 0..epochs {
            let (sample, decision) = plant.epoch(policy.as_mut());
            entries.push(Recorded { sample, decision: Some(decision) });
        }
        entries
    }

    #[test]
    fn a_policy_on_its_own_recording_decides_the_same_again() {
        for info in POLICIES {
            let entries = record(info.name, 6_000);
            let mut again = policy(info.name, &params()).unwrap();
            let report = replay(again.as_mut(), &params(), &entries).unwrap();
            assert_eq!(report.differs_from_recorded, 0, "{}", info.name);
            assert_eq!(report.epochs, 6_000);
            let span_ns: u64 = report.actors.iter().map(|t| t.host_ns + t.device_ns).sum();
            assert_eq!(span_ns, report.span_ns * 3, "every actor is on one side at any time");
        }
    }

    #[test]
    fn another_policy_is_told_apart() {
        let entries = record("wio", 6_000);
        let mut pinned = policy("pinned-device", &params()).unwrap();
        let report = replay(pinned.as_mut(), &params(), &entries).unwrap();
        assert!(report.differs_from_recorded > 0);
        assert_eq!((report.uploads, report.offloads), (0, 0));
        assert!(report.actors.iter().all(|times| times.host_ns == 0));
        assert!(report.above_upload_ns > 0, "the recorded run did get hot");
    }

    #[test]
    fn loads_follow_actors_that_stand_elsewhere() {
        let mut entries = Vec::new();
        for epoch in 0..100 {
            let mut sample = sample_at(1_000 + epoch * 10, 50_000, 900);
            let side = if epoch < 50 { Side::Host } else { Side::Device };
            sample.actors.push(actor(1, side, if epoch < 50 { 300 } else { 500 }));
            sample.device.utilisation_permille = if epoch < 50 { 0 } else { 500 };
            entries.push(Recorded { sample, decision: None });
        }
        let mut pinned = policy("pinned-host", &params()).unwrap();
        let report = replay(pinned.as_mut(), &params(), &entries).unwrap();
        assert_eq!(report.actors[0].host_ns, report.span_ns);
        let mut run = Run::new("x", &params(), &entries);
        run.overlay(&entries[0].sample);
        let sample = run.overlay(&entries[99].sample);
        assert_eq!(sample.host.cpu_permille, 1000, "900 + 300, cut off");
        assert_eq!(sample.device.utilisation_permille, 0);
        assert_eq!(sample.actors[0].busy_permille, 300);
    }

    #[test]
    fn a_recording_without_time_is_refused() {
        let mut wio = Wio::new(&params());
        assert_eq!(replay(&mut wio, &params(), &[]), Err(ReplayError::TooShort(0)));
    }
}
