//! What a profile settles at: the figure to hold a measured run against.
//!
//! Sustained writes of requests of one size, each through the stages of a pipeline, either on the
//! device or on the host. The slowest of controller, link, flash and (on the device) compute sets
//! the rate; rate and energies give the power; power and resistance give the temperature; the
//! temperature gives the throttle step; and the step slows controller and compute down. That is
//! a walk over the steps in closed form, all in integers.
//!
//! Assumptions, which are those of the device model: enough requests in flight, a host that is never
//! the bottleneck, no relocation by garbage collection (sequential overwriting leaves whole
//! superblocks dead).

use crate::profile::{Engine, Profile};

/// Where the stages of a pipeline run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Placement {
    /// In the host domain.
    Host,
    /// In the device domain.
    Device,
}

/// What crosses the link for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Crossing {
    /// The user's bytes: the stages ran (or will run) on the device.
    Raw,
    /// The bytes as stored: the stages ran (or will run) on the host.
    Stored,
}

impl Placement {
    /// What crosses the link with the stages placed so.
    #[must_use]
    pub fn crossing(self) -> Crossing {
        match self {
            Placement::Host => Crossing::Stored,
            Placement::Device => Crossing::Raw,
        }
    }
}

/// One stage of the pipeline, as the cost model sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The engine that it calls.
    pub engine: Engine,
    /// Whether it works on the user's bytes or on what a compressor before it left.
    pub input: Crossing,
}

/// A sustained write load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Bytes of one write request.
    pub request_bytes: u32,
    /// Bytes of one unit: each stage is called once for each unit.
    pub unit_bytes: u32,
    /// Stored bytes for a thousand raw ones.
    pub stored_permille: u32,
    /// The pipeline.
    pub stages: Vec<Stage>,
}

impl Workload {
    /// Compress, encrypt and checksum in units of 64 KiB over bytes that shrink to
    /// `stored_permille` thousandths.
    #[must_use]
    pub fn pipeline(stored_permille: u32) -> Workload {
        let stage = |engine, input| Stage { engine, input };
        Workload {
            request_bytes: 65_536,
            unit_bytes: 65_536,
            stored_permille,
            stages: vec![
                stage(Engine::Lz4, Crossing::Raw),
                stage(Engine::Aes, Crossing::Stored),
                stage(Engine::Crc32c, Crossing::Stored),
            ],
        }
    }
}

impl Default for Workload {
    /// [`Workload::pipeline`] over bytes that do not compress, the heaviest case.
    fn default() -> Workload {
        Workload::pipeline(1000)
    }
}

/// What the device settles at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteadyState {
    /// Temperature; for a device that swings between two throttle levels, that of the faster.
    pub millicelsius: i32,
    /// Speed in thousandths; a time average if it swings.
    pub speed_permille: u32,
    /// Raw (user) bytes written a second, averaged in the same way.
    pub write_bytes_per_second: u64,
    /// Electrical power at that rate.
    pub milliwatts: u64,
    /// Throttle level, 0 unthrottled.
    pub level: u8,
    /// True if the device swings between `level` and the level above it for ever.
    pub cycles: bool,
}

impl Profile {
    /// What sustained writes through compress, encrypt and checksum over bytes that do not
    /// compress settle at.
    #[must_use]
    pub fn steady_state(&self, placement: Placement) -> SteadyState {
        self.steady_state_of(placement, &Workload::default())
    }

    /// What sustained writes of any workload settle at.
    ///
    /// # Panics
    /// If the workload has a request or unit of zero bytes, which is a bug of the caller.
    #[must_use]
    pub fn steady_state_of(&self, placement: Placement, workload: &Workload) -> SteadyState {
        assert!(workload.request_bytes > 0 && workload.unit_bytes > 0);
        // The levels reached are passed upwards until one holds. A level that is left downwards
        // again means a swing with the level below it.
        let mut level = 0;
        loop {
            let here = self.at_level(placement, workload, level);
            let hotter = self.throttle.get(level);
            if hotter.is_some_and(|step| here.millicelsius >= step.enter_millicelsius) {
                level += 1;
                continue;
            }
            let left = level > 0 && here.millicelsius <= self.throttle[level - 1].exit_millicelsius;
            return if left { self.swing(placement, workload, level) } else { here };
        }
    }

    /// The state if `level` held for ever.
    fn at_level(&self, placement: Placement, workload: &Workload, level: usize) -> SteadyState {
        let speed_permille = match level {
            0 => 1000,
            level => self.throttle[level - 1].speed_permille,
        };
        let rate = self.write_rate(placement, workload, speed_permille);
        let milliwatts = self.milliwatts(placement, workload, rate);
        let rise = milliwatts * u128::from(self.thermal.resistance_millikelvin_per_watt) / 1000;
        let rise = i64::try_from(rise).unwrap_or(i64::MAX / 2);
        let millicelsius = i64::from(self.thermal.ambient_millicelsius) + rise;
        SteadyState {
            millicelsius: i32::try_from(millicelsius).unwrap_or(i32::MAX),
            speed_permille,
            write_bytes_per_second: u64::try_from(rate).unwrap_or(u64::MAX),
            milliwatts: u64::try_from(milliwatts).unwrap_or(u64::MAX),
            level: u8::try_from(level).unwrap_or(u8::MAX),
            cycles: false,
        }
    }

    /// A device that heats out of level `level − 1` and cools out of level `level`, averaged by
    /// the time that each phase takes: both are exponentials, `t = RC ln(gap before / gap after)`.
    fn swing(&self, placement: Placement, workload: &Workload, level: usize) -> SteadyState {
        let step = &self.throttle[level - 1];
        let fast = self.at_level(placement, workload, level - 1);
        let slow = self.at_level(placement, workload, level);
        let gap = |from: i32, to: i32| i64::from(from).abs_diff(i64::from(to)).max(1);
        let heating = ln_permyriad(
            gap(fast.millicelsius, step.exit_millicelsius),
            gap(fast.millicelsius, step.enter_millicelsius),
        );
        let cooling = ln_permyriad(
            gap(slow.millicelsius, step.enter_millicelsius),
            gap(slow.millicelsius, step.exit_millicelsius),
        );
        let average = |fast: u64, slow: u64| {
            let sum = u128::from(fast) * heating + u128::from(slow) * cooling;
            u64::try_from(sum / (heating + cooling).max(1)).unwrap_or(u64::MAX)
        };
        let speed = average(u64::from(fast.speed_permille), u64::from(slow.speed_permille));
        SteadyState {
            millicelsius: step.enter_millicelsius,
            speed_permille: u32::try_from(speed).unwrap_or(1000),
            write_bytes_per_second: average(fast.write_bytes_per_second, slow.write_bytes_per_second),
            milliwatts: average(fast.milliwatts, slow.milliwatts),
            level: u8::try_from(level - 1).unwrap_or(u8::MAX),
            cycles: true,
        }
    }

    /// Raw bytes a second through the slowest part.
    fn write_rate(&self, placement: Placement, workload: &Workload, speed_permille: u32) -> u128 {
        if speed_permille == 0 {
            return 0;
        }
        let throttled = |ps: u128| ps * 1000 / u128::from(speed_permille);
        let controller = throttled(
            u128::from(self.controller.command_ns) * 1000
                + picoseconds(u128::from(workload.request_bytes), self.controller.write_bytes_per_second),
        );
        let link = picoseconds(workload.crossing_bytes(placement.crossing()), self.link_path().bytes_per_second);
        let compute = match placement {
            Placement::Host => 0,
            Placement::Device => throttled(self.compute_picoseconds(workload)) / u128::from(self.compute.cores),
        };
        let slowest = controller.max(link).max(compute).max(self.flash_picoseconds(workload));
        u128::from(workload.request_bytes) * 1_000_000_000_000 / slowest.max(1)
    }

    /// Core time of one request at full speed.
    fn compute_picoseconds(&self, workload: &Workload) -> u128 {
        let units = u128::from(workload.request_bytes.div_ceil(workload.unit_bytes));
        workload
            .stages
            .iter()
            .map(|stage| {
                let rate = self.compute.engines.bytes_per_second(stage.engine);
                units * u128::from(self.compute.call_ns) * 1000
                    + picoseconds(workload.crossing_bytes(stage.input), rate)
            })
            .sum()
    }

    /// Time of one request on the flash with every plane at work: the planes of a die program
    /// together.
    fn flash_picoseconds(&self, workload: &Workload) -> u128 {
        let geometry = self.geometry();
        let timing = self.timing();
        let planes = u128::from(geometry.planes());
        let media_bytes = workload.media_bytes();
        let page = u128::from(geometry.page_bytes);
        let program = media_bytes * u128::from(timing.program_ns) * 1000 / (page * planes);
        let erase = media_bytes * u128::from(timing.erase_ns) * 1000 / u128::from(geometry.superblock_bytes());
        let bus = picoseconds(media_bytes, timing.channel_bytes_per_second) / u128::from(geometry.channels);
        (program + erase).max(bus)
    }

    /// Power at a rate of raw bytes a second.
    fn milliwatts(&self, placement: Placement, workload: &Workload, rate: u128) -> u128 {
        let power = &self.power;
        let geometry = self.geometry();
        let raw = u128::from(workload.request_bytes);
        let media = workload.media_bytes();
        let block_bytes = u128::from(geometry.pages_per_block) * u128::from(geometry.page_bytes);
        let flash = media * u128::from(power.program_nanojoules_per_page) * 1000 / u128::from(geometry.page_bytes)
            + media * u128::from(power.erase_nanojoules_per_block) * 1000 / block_bytes;
        let path = raw * u128::from(power.controller_picojoules_per_byte)
            + workload.crossing_bytes(placement.crossing()) * u128::from(power.link_picojoules_per_byte);
        let compute = match placement {
            Placement::Host => 0,
            // A milliwatt for a nanosecond is a picojoule.
            Placement::Device => {
                self.compute_picoseconds(workload) * u128::from(power.compute_milliwatts_per_core) / 1000
            }
        };
        // Picojoules a request, times requests a second, are picowatts.
        u128::from(power.idle_milliwatts) + (flash + path + compute) * rate / raw / 1_000_000_000
    }
}

impl Workload {
    fn stored_bytes(&self) -> u128 {
        u128::from(self.request_bytes) * u128::from(self.stored_permille) / 1000
    }

    fn crossing_bytes(&self, crossing: Crossing) -> u128 {
        match crossing {
            Crossing::Raw => u128::from(self.request_bytes),
            Crossing::Stored => self.stored_bytes(),
        }
    }

    /// Stored bytes with the 64-byte header of each extent.
    fn media_bytes(&self) -> u128 {
        self.stored_bytes() + 64 * u128::from(self.request_bytes.div_ceil(self.unit_bytes))
    }
}

fn picoseconds(bytes: u128, bytes_per_second: u64) -> u128 {
    bytes * 1_000_000_000_000 / u128::from(bytes_per_second.max(1))
}

/// `ln(above/below)` in ten-thousandths, for above ≥ below, by `ln x = 2 artanh((x−1)/(x+1))` after
/// halving x to at most 2.
fn ln_permyriad(above: u64, below: u64) -> u128 {
    const ONE: u128 = 1 << 32;
    const LN2: u128 = 2_977_044_472;
    let mut x = (u128::from(above) << 32) / u128::from(below.max(1));
    let mut halvings = 0;
    while x > 2 * ONE {
        x /= 2;
        halvings += 1;
    }
    let z = (x.saturating_sub(ONE) << 32) / (x + ONE);
    let square = (z * z) >> 32;
    let (mut term, mut sum) = (z, 0);
    for order in (1..=41u128).step_by(2) {
        sum += term / order;
        term = (term * square) >> 32;
    }
    ((2 * sum + halvings * LN2) * 10_000) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(name: &str) -> Profile {
        Profile::built_in(name).expect("built-in profile")
    }

    fn workloads() -> [Workload; 3] {
        [1000, 600, 350].map(Workload::pipeline)
    }

    #[test]
    fn smartssd_stays_throttled_with_compute_on_the_device_and_never_throttles_without() {
        let profile = profile("smartssd");
        for workload in workloads() {
            let device = profile.steady_state_of(Placement::Device, &workload);
            let host = profile.steady_state_of(Placement::Host, &workload);
            assert_eq!((device.level, device.speed_permille, device.cycles), (1, 500, false), "{device:?}");
            assert_eq!((host.level, host.speed_permille), (0, 1000), "{host:?}");
            assert!(host.millicelsius < profile.scheduler.offload_below_millicelsius, "{host:?}");
            let ratio = host.write_bytes_per_second * 100 / device.write_bytes_per_second;
            assert!((198..=202).contains(&ratio), "{ratio}");
        }
    }

    #[test]
    fn scaleflux_loses_sixty_percent() {
        let profile = profile("scaleflux");
        for workload in workloads() {
            let device = profile.steady_state_of(Placement::Device, &workload);
            let host = profile.steady_state_of(Placement::Host, &workload);
            assert_eq!((device.level, device.speed_permille, device.cycles), (1, 400, false), "{device:?}");
            assert!(host.level == 0 && host.millicelsius < 65_000, "{host:?}");
            assert!(host.millicelsius < profile.scheduler.offload_below_millicelsius, "{host:?}");
        }
    }

    #[test]
    fn wio_crosses_the_upload_threshold_only_with_compute_on_the_device() {
        let profile = profile("wio");
        for workload in workloads() {
            let unthrottled = profile.at_level(Placement::Device, &workload, 0);
            assert!(unthrottled.millicelsius > 80_000, "{unthrottled:?}");
            let device = profile.steady_state_of(Placement::Device, &workload);
            assert_eq!((device.level, device.cycles), (1, false), "{device:?}");
            let host = profile.steady_state_of(Placement::Host, &workload);
            assert!(host.level == 0 && host.millicelsius < 60_000, "{host:?}");
        }
        let host = profile.steady_state(Placement::Host).millicelsius;
        assert!((53_000..=54_500).contains(&host), "calibrated to 53.9 C, is {host}");
    }

    #[test]
    fn the_write_path_and_not_the_flash_or_the_engines_sets_the_rate() {
        for name in Profile::built_in_names() {
            let profile = profile(name);
            let rated = profile.controller.write_bytes_per_second;
            let has_engines = !crate::profile::SOFTWARE_CORES.contains(&name);
            for placement in [Some(Placement::Host), has_engines.then_some(Placement::Device)].into_iter().flatten() {
                let rate = profile.at_level(placement, &Workload::default(), 0).write_bytes_per_second;
                assert!(rate > rated * 93 / 100 && rate <= rated, "{name}: {rate} of {rated}");
            }
        }
    }

    #[test]
    fn scaling_keeps_heat_and_divides_rates() {
        for name in Profile::built_in_names() {
            let full = profile(name);
            let scaled = full.scaled(40, 30);
            assert_eq!((scaled.scale.rate_divisor, scaled.scale.thermal_time), (40, 30));
            for placement in [Placement::Host, Placement::Device] {
                let (a, b) = (full.steady_state(placement), scaled.steady_state(placement));
                assert_eq!((a.level, a.cycles), (b.level, b.cycles));
                let apart = (a.millicelsius - b.millicelsius).abs();
                assert!(apart < 2_500, "{name} {placement:?}: {a:?} {b:?}");
                let ratio = a.write_bytes_per_second * 100 / b.write_bytes_per_second;
                assert!((3_700..=4_100).contains(&ratio), "{ratio}");
            }
        }
    }

    /// The closed form against the thermal model itself, stepped through with constant power.
    fn simulate(profile: &Profile, placement: Placement, workload: &Workload) -> (u64, u64) {
        let idle = profile.power.idle_milliwatts;
        let mut thermal = crate::Thermal::new(&profile.thermal, idle, &profile.throttle);
        let step_ns = 10_000_000;
        let (mut bytes, mut counted_ns) = (0u128, 0u128);
        // Rate and power follow from the speed alone, and the link's rate is long to compute.
        let mut at_speed = std::collections::BTreeMap::new();
        for tick in 0..600_000u64 {
            thermal.advance(osier_flash::Nanos(tick * step_ns));
            let speed = thermal.speed_permille();
            let (rate, milliwatts) = *at_speed.entry(speed).or_insert_with(|| {
                let rate = profile.write_rate(placement, workload, speed);
                (rate, profile.milliwatts(placement, workload, rate) - u128::from(idle))
            });
            thermal.add_picojoules(milliwatts * u128::from(step_ns));
            if tick >= 200_000 {
                bytes += rate;
                counted_ns += 1;
            }
        }
        let peak = u64::try_from(thermal.millicelsius()).expect("above zero");
        (u64::try_from(bytes / counted_ns).expect("a rate"), peak)
    }

    #[test]
    fn the_closed_form_agrees_with_the_model_run() {
        for name in Profile::built_in_names() {
            let profile = profile(name);
            for placement in [Placement::Host, Placement::Device] {
                let predicted = profile.steady_state(placement);
                let (rate, millicelsius) = simulate(&profile, placement, &Workload::default());
                let apart = rate.abs_diff(predicted.write_bytes_per_second);
                assert!(apart * 100 <= rate, "{name} {placement:?}: {rate} {predicted:?}");
                let expected = u64::try_from(predicted.millicelsius).expect("above zero");
                assert!(millicelsius.abs_diff(expected) < 100, "{name}: {millicelsius} {predicted:?}");
            }
        }
    }

    #[test]
    fn a_swing_between_two_levels_is_averaged_by_time() {
        let mut profile = profile("smartssd");
        profile.throttle[0].speed_permille = 300;
        profile.throttle.truncate(1);
        let workload = Workload::pipeline(350);
        let predicted = profile.steady_state_of(Placement::Device, &workload);
        assert!(predicted.cycles && (301..1000).contains(&predicted.speed_permille), "{predicted:?}");
        let (rate, _) = simulate(&profile, Placement::Device, &workload);
        let apart = rate.abs_diff(predicted.write_bytes_per_second);
        assert!(apart * 100 <= rate * 2, "{rate} {predicted:?}");
    }

    #[test]
    fn the_logarithm_agrees_with_the_library() {
        for (above, below) in [(1u64, 1u64), (2, 1), (1000, 999), (58_000, 23_000), (1 << 40, 1)] {
            let expected = (above as f64 / below as f64).ln() * 1e4;
            let seen = ln_permyriad(above, below) as f64;
            assert!((seen - expected).abs() <= 1.5, "ln({above}/{below}): {seen} not {expected}");
        }
    }
}
