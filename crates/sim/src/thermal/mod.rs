//! Sustained writes under heat: WIO (arXiv 2604.02442), Figure 1, in virtual time.
//!
//! A host writes sequentially, as fast as it is let, through three actors (compress, encrypt,
//! checksum). Each actor runs on the host's cores or on the device's; a placement policy decides
//! every epoch. The device is the device core itself with media that hold no bytes: its write
//! buffer, flash layer, thermal model and throttle are those of a real run.
//!
//! To simulate ten minutes in seconds, rates are divided (`rate_divisor`) while energies per byte
//! are multiplied by the same number (`Profile::scaled`): powers and temperatures are those of the
//! full rate. Throughput is multiplied back in every result.
//!
//! What is the experiment's own model, beside the device's: the host ([`crate::HostParams`]); a
//! request passes its stages one after the other; a move takes effect at once for requests that
//! have not reached the actor, and the actor rests for `switch_pause_ns`.

mod bench;
mod present;
#[cfg(test)]
mod tests;

use osier_device::profile::Calibration;
use osier_device::{Profile, ProfileError, SchedulerParams, SteadyState};
use osier_sched::{Reason, Side, UnknownPolicy};
use serde::Serialize;

use crate::{HostParams, Nanos};

pub use bench::ACTORS;
pub use present::{RATIO_ERROR_MAX_PERMILLE, RATIO_MIN_PERMILLE};

/// Longest simulated time in seconds: a day.
pub const SECONDS_MAX: u32 = 86_400;
/// Most requests in flight.
pub const QUEUE_DEPTH_MAX: u32 = 1024;
/// Points of a series; each covers an equal part of the time.
pub const POINTS: u32 = 600;

/// What to simulate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ThermalParams {
    /// Simulated seconds of sustained writes.
    pub seconds: u32,
    /// Rates are divided by this, energies per byte multiplied.
    pub rate_divisor: u32,
    /// How many times faster than in nature temperatures move. Ticks of the scheduler do not.
    pub thermal_time_scale: u32,
    /// Requests in flight.
    pub queue_depth: u32,
    /// Bytes of one request, which is one unit: a multiple of 4096, 65536 at most.
    pub request_bytes: u32,
    /// Stored bytes for a thousand raw ones: drawn for each request between these two.
    pub stored_permille: (u32, u32),
    /// Logical size of the device in bytes; writes wrap around.
    pub device_bytes: u64,
    /// How long an actor that is moved serves nobody, in nanoseconds.
    pub switch_pause_ns: u64,
    /// The host.
    pub host: HostParams,
    /// The seed of every draw.
    pub seed: u64,
}

impl Default for ThermalParams {
    /// Ten minutes. The pause is the paper's bound of a whole migration ("under 50 µs", section 3.4).
    /// The data hardly compress, as in the paper's sustained writes, so the stages after the first
    /// have almost all of the bytes to work on.
    fn default() -> ThermalParams {
        ThermalParams {
            seconds: 600,
            rate_divisor: 16,
            thermal_time_scale: 1,
            queue_depth: 64,
            request_bytes: 65_536,
            stored_permille: (900, 1000),
            device_bytes: 16 << 30,
            switch_pause_ns: 50_000,
            host: HostParams::default(),
            seed: 1,
        }
    }
}

impl ThermalParams {
    fn check(&self) -> Result<(), ThermalError> {
        let refuse = |name, value: u64, why| Err(ThermalError::Parameter { name, value, why });
        if self.seconds == 0 || self.seconds > SECONDS_MAX {
            return refuse("seconds", self.seconds.into(), "it must be 1 to 86400");
        }
        if self.rate_divisor == 0 || self.rate_divisor > 1024 {
            return refuse("rate_divisor", self.rate_divisor.into(), "it must be 1 to 1024");
        }
        if self.thermal_time_scale == 0 {
            return refuse("thermal_time_scale", 0, "it must be at least 1");
        }
        if self.queue_depth == 0 || self.queue_depth > QUEUE_DEPTH_MAX {
            return refuse("queue_depth", self.queue_depth.into(), "it must be 1 to 1024");
        }
        let request = self.request_bytes;
        if request == 0 || !request.is_multiple_of(4096) || request > 65_536 {
            return refuse("request_bytes", request.into(), "it must be a multiple of 4096, 65536 at most");
        }
        let (low, high) = self.stored_permille;
        if low == 0 || low > high || high > 1000 {
            return refuse("stored_permille", high.into(), "the two bounds must be 1 to 1000 and in order");
        }
        if self.device_bytes / u64::from(request) < u64::from(self.queue_depth) {
            return refuse("device_bytes", self.device_bytes, "it must hold every request in flight");
        }
        if self.host.cores == 0 {
            return refuse("host.cores", 0, "a host without cores runs nothing");
        }
        Ok(())
    }

    /// Length of one point of a series.
    fn point_ns(&self) -> u64 {
        u64::from(self.seconds) * 1_000_000_000 / u64::from(POINTS)
    }
}

/// One curve: which device under which policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Case {
    /// Name in tables and legends.
    pub label: &'static str,
    /// A built-in profile.
    pub profile: &'static str,
    /// A registered policy.
    pub policy: &'static str,
}

/// The curves of the figure, and the adaptive run on the drive with the four throttle steps that
/// the ratio of adaptive to device-fixed placement needs.
pub const CASES: &[Case] = &[
    Case { label: "SmartSSD, on the device", profile: "smartssd", policy: "pinned-device" },
    Case { label: "SmartSSD, adaptive", profile: "smartssd", policy: "wio" },
    Case { label: "ScaleFlux, on the device", profile: "scaleflux", policy: "pinned-device" },
    Case { label: "CXL SSD, on the device", profile: "wio", policy: "pinned-device" },
    Case { label: "CXL SSD, adaptive", profile: "wio", policy: "wio" },
];

/// One point of a series: what happened in the time up to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The end of the time that it covers, in nanoseconds.
    pub at_ns: u64,
    /// Raw bytes a second at the full rate.
    pub bytes_per_second: u64,
    /// The device's temperature at its end.
    pub millicelsius: i32,
    /// What throttling leaves of the device's speed at its end.
    pub speed_permille: u32,
    /// Actors on the device at its end.
    pub on_device: u32,
    /// The host's CPU share in the last epoch.
    pub host_cpu_permille: u32,
    /// The rate that the policy lets in.
    pub rate_permille: u32,
}

/// A move that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// When.
    pub at: Nanos,
    /// Index of the actor in [`ACTORS`].
    pub actor: usize,
    /// Where to.
    pub to: Side,
    /// Why.
    pub reason: Reason,
}

/// A run in a few figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Raw bytes written, at the full rate.
    pub written_bytes: u64,
    /// Mean over the whole time.
    pub bytes_per_second: u64,
    /// Mean over the last third of the time.
    pub settled_bytes_per_second: u64,
    /// The highest temperature.
    pub peak_millicelsius: i32,
    /// The temperature at the end.
    pub last_millicelsius: i32,
    /// When the device throttled first.
    pub throttled_at_ns: Option<u64>,
    /// How long it was throttled, to the length of a point.
    pub throttled_ns: u64,
    /// Moves to the host.
    pub uploads: u32,
    /// Moves to the device.
    pub offloads: u32,
    /// The shortest time between two moves of one actor.
    pub shortest_residency_ns: Option<u64>,
    /// Requests that the device refused while it was shut down. They were given again later.
    pub refused: u64,
    /// Bytes programmed over bytes from the host, in permille.
    pub write_amplification_permille: u64,
}

/// One curve, simulated.
#[derive(Clone, Debug)]
pub struct Run {
    /// What was simulated.
    pub case: Case,
    /// The curve.
    pub points: Vec<Point>,
    /// The moves.
    pub moves: Vec<Moved>,
    /// In a few figures.
    pub summary: Summary,
    /// What the profile predicts for device-fixed placement, rates at the full rate.
    pub predicted_device: SteadyState,
    /// The same for placement on the host.
    pub predicted_host: SteadyState,
    /// What of the profile was fitted to a published figure.
    pub calibration: Vec<Calibration>,
    /// The thresholds of the policy.
    pub scheduler: SchedulerParams,
}

/// Adaptive over device-fixed placement, from when the device-fixed run throttled first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ratio {
    /// The profile.
    pub profile: &'static str,
    /// From when on, in nanoseconds.
    pub from_ns: u64,
    /// As simulated, in permille.
    pub measured_permille: u64,
    /// As the profile predicts, in permille.
    pub predicted_permille: u64,
}

impl Ratio {
    /// How far the simulated ratio is from the predicted one, in permille of the predicted one.
    #[must_use]
    pub fn error_permille(&self) -> u64 {
        self.measured_permille.abs_diff(self.predicted_permille) * 1000 / self.predicted_permille.max(1)
    }
}

/// The whole experiment.
#[derive(Clone, Debug)]
pub struct ThermalReport {
    /// What was simulated.
    pub params: ThermalParams,
    /// The curves, in the order of the cases.
    pub runs: Vec<Run>,
}

/// Why the experiment was not run.
#[derive(Debug, thiserror::Error)]
pub enum ThermalError {
    /// A parameter out of range.
    #[error("the thermal experiment cannot run with {name} = {value}: {why}")]
    Parameter {
        /// Which.
        name: &'static str,
        /// What it is.
        value: u64,
        /// What it must be.
        why: &'static str,
    },
    /// No such profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// No such policy.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// The device could not be made.
    #[error(transparent)]
    Device(#[from] osier_device::DeviceError),
}

/// Simulates every case. `progress` hears the label of each before it begins.
///
/// # Errors
/// A parameter out of range, or an unknown profile or policy, by name.
pub fn run(
    params: &ThermalParams,
    cases: &[Case],
    progress: &mut dyn FnMut(&Case),
) -> Result<ThermalReport, ThermalError> {
    params.check()?;
    let mut runs = Vec::with_capacity(cases.len());
    for case in cases {
        progress(case);
        runs.push(run_case(params, *case)?);
    }
    Ok(ThermalReport { params: params.clone(), runs })
}

fn run_case(params: &ThermalParams, case: Case) -> Result<Run, ThermalError> {
    let profile = Profile::built_in(case.profile)?.scaled(params.rate_divisor, params.thermal_time_scale);
    let outcome = bench::Bench::new(params, &profile, case.policy)?.run();
    let full_rate = |state: SteadyState| SteadyState {
        write_bytes_per_second: state.write_bytes_per_second * u64::from(params.rate_divisor),
        ..state
    };
    let workload = bench::workload(params);
    Ok(Run {
        case,
        points: outcome.points,
        moves: outcome.moves,
        summary: outcome.summary,
        predicted_device: full_rate(profile.steady_state_of(osier_device::Placement::Device, &workload)),
        predicted_host: full_rate(profile.steady_state_of(osier_device::Placement::Host, &workload)),
        scheduler: profile.scheduler,
        calibration: profile.calibration,
    })
}

impl Run {
    /// Mean raw bytes a second from a time on.
    fn mean_from(&self, from_ns: u64) -> u64 {
        let after: Vec<u64> =
            self.points.iter().filter(|point| point.at_ns > from_ns).map(|point| point.bytes_per_second).collect();
        after.iter().sum::<u64>() / (after.len() as u64).max(1)
    }
}

impl ThermalReport {
    /// For every profile that was simulated device-fixed and under another policy, and that
    /// throttled when device-fixed: the ratio of the two throughputs from then on.
    #[must_use]
    pub fn ratios(&self) -> Vec<Ratio> {
        let fixed = self.runs.iter().filter(|run| run.case.policy == "pinned-device");
        fixed.filter_map(|fixed| self.ratio(fixed)).collect()
    }

    fn ratio(&self, fixed: &Run) -> Option<Ratio> {
        let profile = fixed.case.profile;
        let adaptive =
            self.runs.iter().find(|run| run.case.profile == profile && run.case.policy != fixed.case.policy)?;
        let from_ns = fixed.summary.throttled_at_ns?;
        // Less than a tenth of the time says little.
        if from_ns + u64::from(self.params.seconds) * 100_000_000 > u64::from(self.params.seconds) * 1_000_000_000 {
            return None;
        }
        let permille = |above: u64, below: u64| {
            u64::try_from(u128::from(above) * 1000 / u128::from(below.max(1))).unwrap_or(u64::MAX)
        };
        let predicted = (adaptive.predicted_host, fixed.predicted_device);
        Some(Ratio {
            profile,
            from_ns,
            measured_permille: permille(adaptive.mean_from(from_ns), fixed.mean_from(from_ns)),
            predicted_permille: permille(predicted.0.write_bytes_per_second, predicted.1.write_bytes_per_second),
        })
    }
}
