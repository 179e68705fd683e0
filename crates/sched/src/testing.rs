//! What the tests of this crate share: parameters, samples, a seeded generator, and a plant (host
//! and device with a resistor-capacitor thermal model and throttle steps) to close the loop with.

use crate::{
    ActorId, ActorView, Class, Decision, DeviceSample, HostSample, Nanos, Policy, Sample, SchedulerParams, Side,
};

/// The thresholds that the paper gives, and rates of shedding as in the shipped profiles.
pub(crate) fn params() -> SchedulerParams {
    SchedulerParams {
        epoch_ms: 10,
        upload_millicelsius: 75_000,
        offload_below_millicelsius: 68_000,
        host_cpu_high_permille: 800,
        host_cpu_low_permille: 400,
        host_headroom_permille: 800,
        host_cpu_window_ms: 100,
        host_throttle_permille: 700,
        min_residency_ms: 100,
        moves_per_epoch: 1,
        shed_step_permille: 10,
        shed_recover_permille: 5,
        shed_floor_permille: 200,
        shed_span_millikelvin: 5_000,
    }
}

/// A sample with no actors.
pub(crate) fn sample_at(at_ms: u64, temperature_millicelsius: i32, cpu_permille: u32) -> Sample {
    Sample {
        at: Nanos(at_ms * 1_000_000),
        host: HostSample {
            cpu_permille,
            frequency_khz: Some(3_000_000),
            frequency_nominal_khz: Some(3_000_000),
            power_milliwatts: None,
            ring_depth: 0,
        },
        device: DeviceSample { temperature_millicelsius, utilisation_permille: 0, speed_permille: 1000, ring_depth: 0 },
        actors: Vec::new(),
    }
}

/// A movable best-effort actor, placed at time zero.
pub(crate) fn actor(id: u16, side: Side, busy_permille: u32) -> ActorView {
    ActorView {
        id: ActorId(id),
        side,
        class: Class::BestEffort,
        movable: true,
        since: Nanos(0),
        busy_permille,
        bytes: 1_000_000,
    }
}

/// SplitMix64: small, seeded, and the same on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Less than `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

/// A host and a device under a load, with a thermal model of one resistor and one capacitor.
///
/// Independent of the device crate's model on purpose: a fault there must not hide one here.
pub(crate) struct Plant {
    pub(crate) now: Nanos,
    /// In millionths of a degree, so that the small steps of one epoch are not lost.
    temperature_microcelsius: i64,
    pub(crate) speed_permille: u32,
    pub(crate) sides: Vec<ActorView>,
    /// Load of everything else on the host.
    pub(crate) host_other_permille: u32,
    /// What one actor takes on the host, of all its cores.
    pub(crate) host_cost_permille: u32,
    pub(crate) rate_permille: u32,
    /// The power of one actor on the device, and of the device without any, at full rate.
    pub(crate) actor_milliwatts: i64,
    pub(crate) base_milliwatts: i64,
    /// How many moves were made, and each move's age of residency.
    pub(crate) moves: u64,
    pub(crate) residencies_ms: Vec<u64>,
}

const AMBIENT_MICROCELSIUS: i64 = 40_000_000;
const RESISTANCE_MILLIKELVIN_PER_WATT: i64 = 2_000;
const CAPACITANCE_MILLIJOULE_PER_KELVIN: i64 = 5_000;

impl Plant {
    pub(crate) fn new(actors: u16) -> Plant {
        Plant {
            now: Nanos(0),
            temperature_microcelsius: 50_000_000,
            speed_permille: 1000,
            sides: (0..actors).map(|id| actor(id, Side::Device, 0)).collect(),
            host_other_permille: 100,
            host_cost_permille: 100,
            rate_permille: 1000,
            actor_milliwatts: 5_000,
            base_milliwatts: 10_000,
            moves: 0,
            residencies_ms: Vec::new(),
        }
    }

    pub(crate) fn temperature_millicelsius(&self) -> i32 {
        i32::try_from(self.temperature_microcelsius / 1000).unwrap()
    }

    fn sample(&self) -> Sample {
        let mut sample = sample_at(0, self.temperature_millicelsius(), 0);
        sample.at = self.now;
        sample.device.speed_permille = self.speed_permille;
        let mut host = self.host_other_permille;
        let mut device = 0;
        for view in &self.sides {
            let mut view = *view;
            let share = match view.side {
                Side::Host => self.host_cost_permille,
                Side::Device => 150,
            };
            view.busy_permille = share * self.rate_permille / 1000;
            match view.side {
                Side::Host => host += view.busy_permille,
                Side::Device => device += view.busy_permille,
            }
            sample.actors.push(view);
        }
        sample.host.cpu_permille = host.min(1000);
        sample.device.utilisation_permille = device.min(1000);
        sample
    }

    /// One epoch: heat, throttle, sample, decide, carry out.
    pub(crate) fn epoch(&mut self, policy: &mut dyn Policy) -> (Sample, Decision) {
        let step_ms = 10;
        self.now.0 += step_ms * 1_000_000;
        let on_device = self.sides.iter().filter(|view| view.side == Side::Device).count();
        let load = i64::from(self.rate_permille) * i64::from(self.speed_permille) / 1000;
        let power = (self.base_milliwatts + self.actor_milliwatts * i64::try_from(on_device).unwrap()) * load / 1000;
        let lost_milliwatts = (self.temperature_microcelsius - AMBIENT_MICROCELSIUS) / RESISTANCE_MILLIKELVIN_PER_WATT;
        // Microjoules over millijoules per kelvin are millikelvins.
        self.temperature_microcelsius +=
            (power - lost_milliwatts) * step_ms.cast_signed() * 1000 / CAPACITANCE_MILLIJOULE_PER_KELVIN;
        self.speed_permille = match (self.speed_permille, self.temperature_millicelsius()) {
            (_, 82_000..) => 500,
            (500, 78_000..) => 500,
            _ => 1000,
        };
        let sample = self.sample();
        sample.check().unwrap();
        let decision = policy.decide(&sample);
        decision.check(policy.name(), &sample).unwrap();
        self.rate_permille = decision.rate_permille;
        for one in &decision.moves {
            let view = self.sides.iter_mut().find(|view| view.id == one.actor).unwrap();
            self.residencies_ms.push((self.now.0 - view.since.0) / 1_000_000);
            view.side = one.to;
            view.since = self.now;
            self.moves += 1;
        }
        (sample, decision)
    }
}
