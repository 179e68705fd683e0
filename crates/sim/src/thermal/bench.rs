//! The driver of one curve: requests, actors, host and device in virtual time.
//!
//! Invariants: a request is in exactly one place (waiting to be let in, in a stage, waiting for its
//! turn at the device, in the device); requests reach the device in the order in which they began;
//! at most `queue_depth` are under way.

use std::collections::BTreeMap;

use osier_device::predict::{Crossing, Stage};
use osier_device::{
    CommandId, Completion, Device, DeviceParams, Engine, NoBytes, Placement, Profile, SchedulerParams, Status,
    UnitMeta, Workload, WriteMeta,
};
use osier_flash::{BLOCK_BYTES, Lba, MediaOp, MediaOpKind, MediaResult};
use osier_sched::{
    ActorId, ActorView, Class, DeviceSample, HostSample, Policy, RATE_UNLIMITED_PERMILLE, Sample, Side, policy,
};

use super::{Moved, Point, Summary, ThermalError, ThermalParams};
use crate::host::Host;
use crate::{EventQueue, Nanos, Rng};

/// The actors of the pipeline in the order of a write: name and engine.
pub const ACTORS: [(&str, Engine); 3] =
    [("compress", Engine::Lz4), ("encrypt", Engine::Aes), ("checksum", Engine::Crc32c)];

/// The workload in the words of the profile's prediction.
pub(super) fn workload(params: &ThermalParams) -> Workload {
    let (low, high) = params.stored_permille;
    let input = |index| if index == 0 { Crossing::Raw } else { Crossing::Stored };
    Workload {
        request_bytes: params.request_bytes,
        unit_bytes: params.request_bytes,
        stored_permille: (low + high) / 2,
        stages: ACTORS.iter().enumerate().map(|(i, (_, engine))| Stage { engine: *engine, input: input(i) }).collect(),
    }
}

/// What the profile writes a second at full speed, whatever the temperature.
fn full_speed(profile: &Profile, params: &ThermalParams) -> u64 {
    let mut cold = profile.clone();
    cold.throttle.clear();
    cold.steady_state_of(Placement::Host, &workload(params)).write_bytes_per_second
}

/// What one curve came to.
pub(super) struct Outcome {
    pub(super) points: Vec<Point>,
    pub(super) moves: Vec<Moved>,
    pub(super) summary: Summary,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The stage that a request is in has ended.
    StageDone { slot: usize },
    /// A request that a shut down device refused tries again.
    Again { slot: usize },
    /// The next request may come in at the present rate.
    Turn,
    /// The scheduler's tick.
    Epoch,
    /// The end of a point of the series.
    Point,
}

/// One request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Request {
    order: u64,
    slba: u64,
    stored_bytes: u32,
    stage: usize,
    /// Whether a stage ran on the device, so that the raw bytes crossed the link.
    crossed_raw: bool,
}

/// One actor.
#[derive(Clone, Copy, Debug)]
struct Actor {
    side: Side,
    since: Nanos,
    /// Until then it is on its way and serves nobody.
    away_until: Nanos,
    /// Core time since the last sample.
    busy_ns: u64,
    /// Input since the last sample.
    bytes: u64,
}

pub(super) struct Bench<'p> {
    params: &'p ThermalParams,
    scheduler: SchedulerParams,
    device_cores: u64,
    device: Device<NoBytes>,
    host: Host,
    policy: Box<dyn Policy>,
    queue: EventQueue<Event>,
    rng: Rng,
    actors: [Actor; ACTORS.len()],
    requests: Vec<Request>,
    /// Slots that wait to be let in.
    idle: Vec<usize>,
    /// Requests through all stages that wait for older ones, by order.
    ready: BTreeMap<u64, usize>,
    next_order: u64,
    next_submit: u64,
    next_slba: u64,
    rate_permille: u32,
    /// What the profile writes at full speed, to which the rate refers.
    full_bytes_per_second: u64,
    next_turn: Nanos,
    turn_is_called: bool,
    epoch_began: Nanos,
    host_cpu_permille: u32,
    written_bytes: u64,
    point_bytes: u64,
    refused: u64,
    throttled_at: Option<Nanos>,
    points: Vec<Point>,
    moves: Vec<Moved>,
    peak_millicelsius: i32,
    shortest_residency_ns: Option<u64>,
    completions: Vec<Completion>,
}

impl<'p> Bench<'p> {
    pub(super) fn new(params: &'p ThermalParams, profile: &Profile, name: &str) -> Result<Bench<'p>, ThermalError> {
        let logical_blocks = params.device_bytes / u64::from(BLOCK_BYTES);
        let device_params = DeviceParams { with_data: false, ..DeviceParams::new(profile, logical_blocks) };
        let buffer = NoBytes { len: profile.write_buffer.bytes };
        let first = match name {
            "pinned-host" => Side::Host,
            _ => Side::Device,
        };
        let actor = Actor { side: first, since: Nanos(0), away_until: Nanos(0), busy_ns: 0, bytes: 0 };
        let depth = params.queue_depth as usize;
        Ok(Bench {
            params,
            scheduler: profile.scheduler,
            device_cores: u64::from(profile.compute.cores),
            device: Device::create(profile, device_params, buffer)?,
            host: Host::new(&params.host.scaled(params.rate_divisor)),
            policy: policy(name, &profile.scheduler)?,
            queue: EventQueue::new(),
            rng: Rng::new(params.seed),
            actors: [actor; ACTORS.len()],
            requests: vec![Request::default(); depth],
            idle: (0..depth).collect(),
            ready: BTreeMap::new(),
            next_order: 0,
            next_submit: 0,
            next_slba: 0,
            rate_permille: RATE_UNLIMITED_PERMILLE,
            full_bytes_per_second: full_speed(profile, params),
            next_turn: Nanos(0),
            turn_is_called: false,
            epoch_began: Nanos(0),
            host_cpu_permille: 0,
            written_bytes: 0,
            point_bytes: 0,
            refused: 0,
            throttled_at: None,
            points: Vec::new(),
            moves: Vec::new(),
            peak_millicelsius: i32::MIN,
            shortest_residency_ns: None,
            completions: Vec::new(),
        })
    }

    pub(super) fn run(mut self) -> Outcome {
        let end = Nanos(self.params.point_ns() * u64::from(super::POINTS));
        self.queue.push(Nanos(self.epoch_ns()), Event::Epoch);
        self.queue.push(Nanos(self.params.point_ns()), Event::Point);
        self.admit(Nanos(0));
        loop {
            let device_at = self.device.next_event().unwrap_or(end);
            if let Some(event) = self.queue.pop_by(device_at.min(end)) {
                self.handle(self.queue.now(), event);
            } else if device_at < end {
                self.queue.advance(device_at.max(self.queue.now()));
                self.drive_device(self.queue.now());
            } else {
                break;
            }
        }
        self.finish()
    }

    fn epoch_ns(&self) -> u64 {
        self.scheduler.epoch_ms * 1_000_000
    }

    fn handle(&mut self, now: Nanos, event: Event) {
        match event {
            Event::StageDone { slot } => {
                self.requests[slot].stage += 1;
                self.advance(now, slot);
            }
            Event::Again { slot } => self.advance(now, slot),
            Event::Turn => {
                self.turn_is_called = false;
                self.admit(now);
            }
            Event::Epoch => self.epoch(now),
            Event::Point => self.point(now),
        }
    }

    /// Lets requests in that wait, as far as the rate allows. A rate below the whole paces them: that
    /// share of what the profile writes at full speed. To close the door for a part of every epoch
    /// would not do, because the requests in flight keep the device busy for longer than that.
    fn admit(&mut self, now: Nanos) {
        while let Some(slot) = self.idle.pop() {
            if self.rate_permille < RATE_UNLIMITED_PERMILLE && !self.has_its_turn(now) {
                return self.idle.push(slot);
            }
            let (low, high) = self.params.stored_permille;
            let permille = self.rng.between(u64::from(low), u64::from(high));
            let stored = u64::from(self.params.request_bytes) * permille / 1000;
            let blocks = u64::from(self.params.request_bytes / BLOCK_BYTES);
            self.requests[slot] = Request {
                order: self.next_order,
                slba: self.next_slba,
                stored_bytes: u32::try_from(stored).expect("not more than the request"),
                stage: 0,
                crossed_raw: false,
            };
            self.next_order += 1;
            self.next_slba += blocks;
            if (self.next_slba + blocks) * u64::from(BLOCK_BYTES) > self.params.device_bytes {
                self.next_slba = 0;
            }
            self.advance(now, slot);
        }
    }

    /// Whether the next request may come in at the present rate; if not, it is called when it may.
    fn has_its_turn(&mut self, now: Nanos) -> bool {
        if now < self.next_turn {
            if !self.turn_is_called {
                self.turn_is_called = true;
                self.queue.push(self.next_turn, Event::Turn);
            }
            return false;
        }
        let share = u128::from(self.full_bytes_per_second) * u128::from(self.rate_permille);
        let pause_ns = u128::from(self.params.request_bytes) * 1_000_000_000 * 1000 / share.max(1);
        self.next_turn = Nanos(now.0 + u64::try_from(pause_ns).unwrap_or(u64::MAX));
        true
    }

    /// Sends a request into its next stage, or to the device behind the last one.
    fn advance(&mut self, now: Nanos, slot: usize) {
        let request = &mut self.requests[slot];
        let Some((_, engine)) = ACTORS.get(request.stage) else {
            self.ready.insert(request.order, slot);
            return self.submit_ready(now);
        };
        let bytes = if request.stage == 0 { self.params.request_bytes } else { request.stored_bytes };
        let actor = &mut self.actors[request.stage];
        let from = actor.away_until.max(now);
        let (due, took_ns) = match actor.side {
            Side::Host => self.host.run(from, *engine, bytes),
            Side::Device => {
                request.crossed_raw = true;
                let compute = self.device.compute(now);
                let took_ns = compute.duration_ns(*engine, bytes);
                let (Some(due), Some(took_ns)) = (compute.run(from, None, *engine, bytes), took_ns) else {
                    let epoch_ns = self.scheduler.epoch_ms * 1_000_000;
                    return self.queue.push(Nanos(now.0 + epoch_ns), Event::Again { slot });
                };
                (due, took_ns)
            }
        };
        actor.busy_ns += took_ns;
        actor.bytes += u64::from(bytes);
        self.queue.push(due, Event::StageDone { slot });
    }

    /// Gives the device what is ready, in order.
    fn submit_ready(&mut self, now: Nanos) {
        while let Some(slot) = self.ready.remove(&self.next_submit) {
            self.next_submit += 1;
            self.submit(now, slot);
        }
        self.drive_device(now);
    }

    fn submit(&mut self, now: Nanos, slot: usize) {
        let request = self.requests[slot];
        let crossing = if request.crossed_raw { Crossing::Raw } else { Crossing::Stored };
        let meta = WriteMeta { crossing, ..WriteMeta::default() };
        let unit = UnitMeta {
            slba: Lba(request.slba),
            blocks: u16::try_from(self.params.request_bytes / BLOCK_BYTES).expect("64 KiB at most"),
            raw_bytes: self.params.request_bytes,
            stored_bytes: request.stored_bytes,
            tag: 1,
        };
        self.device.submit_write(now, CommandId(slot as u64), meta, &[unit], &[&[]]);
    }

    /// Answers the media's operations, which are over when the model says so, and takes completions.
    fn drive_device(&mut self, now: Nanos) {
        self.device.poll(now, &mut self.completions);
        while let Some(op) = self.device.next_op() {
            let (id, result) = answer(op);
            self.device.media_done(now, id, result);
        }
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.completed(now, &completion);
        }
        self.completions = completions;
        self.admit(now);
    }

    fn completed(&mut self, now: Nanos, completion: &Completion) {
        let slot = usize::try_from(completion.id.0).expect("ids are slots");
        match completion.status {
            Status::SUCCESS => {
                let bytes = u64::from(self.params.request_bytes) * u64::from(self.params.rate_divisor);
                self.written_bytes += bytes;
                self.point_bytes += bytes;
                self.idle.push(slot);
            }
            Status::THERMAL_SHUTDOWN => {
                // Its stages are done; it asks the device again in the next epoch.
                self.refused += 1;
                self.requests[slot].order = self.next_order;
                self.next_order += 1;
                self.queue.push(Nanos(now.0 + self.epoch_ns()), Event::Again { slot });
            }
            status => panic!("a sequential write within the device's size ended with {status}: the model is wrong"),
        }
    }

    fn epoch(&mut self, now: Nanos) {
        self.drive_device(now);
        let sample = self.sample(now);
        debug_assert_eq!(sample.check(), Ok(()));
        let decision = self.policy.decide(&sample);
        if let Err(error) = decision.check(self.policy.name(), &sample) {
            panic!("a registered policy broke the contract: {error}");
        }
        self.rate_permille = decision.rate_permille;
        for one in &decision.moves {
            let index = usize::from(one.actor.0);
            let actor = &mut self.actors[index];
            let residency_ns = now.0 - actor.since.0;
            let moved_before = self.moves.iter().any(|moved| moved.actor == index);
            if moved_before {
                let shortest = self.shortest_residency_ns.unwrap_or(u64::MAX);
                self.shortest_residency_ns = Some(shortest.min(residency_ns));
            }
            actor.side = one.to;
            actor.since = now;
            actor.away_until = Nanos(now.0 + self.params.switch_pause_ns);
            self.moves.push(Moved { at: now, actor: index, to: one.to, reason: decision.reason });
        }
        self.epoch_began = now;
        self.admit(now);
        self.queue.push(Nanos(now.0 + self.epoch_ns()), Event::Epoch);
    }

    fn sample(&mut self, now: Nanos) -> Sample {
        let speed_permille = {
            let compute = self.device.compute(now);
            compute.speed_permille()
        };
        if speed_permille < 1000 && self.throttled_at.is_none() {
            self.throttled_at = Some(now);
        }
        let temperature_millicelsius = self.device.temperature_millicelsius();
        self.peak_millicelsius = self.peak_millicelsius.max(temperature_millicelsius);
        self.host_cpu_permille = self.host.cpu_permille(now);
        let window_ns = now.0 - self.epoch_began.0;
        let (host_cores, device_cores) = (u64::from(self.params.host.cores), self.device_cores);
        let view = |(index, actor): (usize, &Actor)| {
            let cores = if actor.side == Side::Host { host_cores } else { device_cores };
            let busy = actor.busy_ns * 1000 / (window_ns * cores).max(1);
            ActorView {
                id: ActorId(u16::try_from(index).expect("three actors")),
                side: actor.side,
                class: Class::BestEffort,
                movable: actor.away_until <= now,
                since: actor.since,
                busy_permille: u32::try_from(busy.min(1000)).expect("cut off"),
                bytes: actor.bytes,
            }
        };
        let actors = self.actors.iter().enumerate().map(view).collect();
        for actor in &mut self.actors {
            (actor.busy_ns, actor.bytes) = (0, 0);
        }
        Sample {
            at: now,
            host: HostSample {
                cpu_permille: self.host_cpu_permille,
                frequency_khz: None,
                frequency_nominal_khz: None,
                power_milliwatts: None,
                ring_depth: 0,
            },
            device: DeviceSample {
                temperature_millicelsius,
                utilisation_permille: self.device.compute(now).utilisation_permille(now),
                speed_permille,
                ring_depth: u32::try_from(self.device.commands_in_flight()).unwrap_or(u32::MAX),
            },
            actors,
        }
    }

    fn point(&mut self, now: Nanos) {
        self.drive_device(now);
        let speed_permille = self.device.compute(now).speed_permille();
        let on_device = self.actors.iter().filter(|actor| actor.side == Side::Device).count();
        let rate = u128::from(self.point_bytes) * 1_000_000_000 / u128::from(self.params.point_ns());
        self.points.push(Point {
            at_ns: now.0,
            bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            millicelsius: self.device.temperature_millicelsius(),
            speed_permille,
            on_device: u32::try_from(on_device).expect("three actors"),
            host_cpu_permille: self.host_cpu_permille,
            rate_permille: self.rate_permille,
        });
        self.point_bytes = 0;
        self.queue.push(Nanos(now.0 + self.params.point_ns()), Event::Point);
    }

    fn finish(self) -> Outcome {
        let seconds = u64::from(self.params.seconds);
        let settled: Vec<u64> =
            self.points.iter().skip(self.points.len() * 2 / 3).map(|point| point.bytes_per_second).collect();
        let throttled = self.points.iter().filter(|point| point.speed_permille < 1000).count() as u64;
        let count = |side: Side| {
            let moves = self.moves.iter().filter(|moved| moved.to == side).count();
            u32::try_from(moves).unwrap_or(u32::MAX)
        };
        let summary = Summary {
            written_bytes: self.written_bytes,
            bytes_per_second: self.written_bytes / seconds,
            settled_bytes_per_second: settled.iter().sum::<u64>() / (settled.len() as u64).max(1),
            peak_millicelsius: self.peak_millicelsius,
            last_millicelsius: self.points.last().map_or(0, |point| point.millicelsius),
            throttled_at_ns: self.throttled_at.map(|at| at.0),
            throttled_ns: throttled * self.params.point_ns(),
            uploads: count(Side::Host),
            offloads: count(Side::Device),
            shortest_residency_ns: self.shortest_residency_ns,
            refused: self.refused,
            write_amplification_permille: self.device.stats().flash.waf_permille(),
        };
        Outcome { points: self.points, moves: self.moves, summary }
    }
}

/// Media without bytes: every operation succeeds; the model alone says when.
fn answer(op: MediaOp) -> (osier_flash::OpId, MediaResult) {
    let result = match op.kind {
        MediaOpKind::Read { .. } => MediaResult::Read(Box::default()),
        MediaOpKind::Program { data, .. } => MediaResult::Programmed(data),
        MediaOpKind::Erase { .. } => MediaResult::Erased,
        MediaOpKind::Sync => MediaResult::Synced,
    };
    (op.id, result)
}
