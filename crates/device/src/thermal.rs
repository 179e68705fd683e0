//! Temperature of the device: one heat capacity behind one thermal resistance, and throttle steps.
//!
//! `C dθ/dt = P − θ/R`, θ being the rise over ambient. The state is the heat above ambient in
//! picojoules, an integer, advanced on a fixed grid of ticks: each tick keeps the fraction
//! `exp(−tick/RC)` of the heat it found and `exp(−tick/2RC)` of the energy that came in during it,
//! that is, the energy counts as arriving in the middle of the tick. Ticks are at most 1/8192 of
//! the time constant, so this is within a few millikelvin of the continuous equation.
//!
//! Invariants:
//! - The temperature depends on what energy arrived in which tick, never on how often the model is
//!   asked, so a replay with other polling points gives the same curve.
//! - Energy is conserved exactly: added = stored + lost, in picojoules.
//! - The throttle level changes only at the end of a tick, and has hysteresis: a step is entered
//!   at or above its `enter` and left at or below its `exit`.
//!
//! A time scale multiplies dT/dt alone. It is a division of the heat capacity, so the temperature
//! that a load settles at does not move.

use crate::profile::{ThermalParams, ThrottleStep};
use osier_flash::Nanos;
use std::collections::VecDeque;

/// How many ticks make one time constant, as long as the bounds below allow it.
const TICKS_PER_TIME_CONSTANT: u64 = 8192;
/// Shortest tick in nanoseconds.
const TICK_NS_MIN: u64 = 1_000;
/// Longest tick in nanoseconds; also the longest delay of a throttle decision.
const TICK_NS_MAX: u64 = 10_000_000;
/// How many throttle transitions are kept; older ones are forgotten, their count is not.
pub const TRANSITIONS_MAX: usize = 1024;

/// One change of the throttle level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Model time of the change.
    pub at: Nanos,
    /// Level left: 0 is unthrottled, n is the n-th `[[throttle]]` step.
    pub from: u8,
    /// Level entered.
    pub to: u8,
    /// Speed after the change, in thousandths of full speed.
    pub speed_permille: u32,
    /// Temperature at the change.
    pub millicelsius: i32,
}

/// The thermal model with its throttle.
#[derive(Clone, Debug)]
pub struct Thermal {
    ambient_millicelsius: i32,
    /// Picojoules of heat for one millikelvin, before the time scale.
    picojoules_per_millikelvin: u128,
    time_scale: u64,
    tick_ns: u64,
    /// Fractions kept, in units of 2^-64.
    decay: u64,
    half_decay: u64,
    idle_picojoules_per_tick: u64,
    /// Time of the first call; the grid of ticks starts there. A model fed with a clock that
    /// counts from the machine's start would otherwise begin with days of idling.
    origin: Option<Nanos>,
    ticks: u64,
    heat_picojoules: u64,
    pending_picojoules: u64,
    added_picojoules: u128,
    lost_picojoules: u128,
    steps: Vec<ThrottleStep>,
    level: usize,
    peak_millicelsius: i32,
    transitions: VecDeque<Transition>,
    transition_count: u64,
}

impl Thermal {
    /// A model at ambient temperature. `idle_milliwatts` flows in all the time; `steps` must be in
    /// rising order, as a validated profile has them.
    #[must_use]
    pub fn new(params: &ThermalParams, idle_milliwatts: u64, steps: &[ThrottleStep]) -> Thermal {
        let tau_ns = time_constant_ns(params);
        let tick_ns = (tau_ns / TICKS_PER_TIME_CONSTANT).clamp(TICK_NS_MIN, TICK_NS_MAX);
        Thermal {
            ambient_millicelsius: params.ambient_millicelsius,
            picojoules_per_millikelvin: u128::from(params.capacitance_millijoule_per_kelvin) * 1_000_000,
            time_scale: u64::from(params.time_scale),
            tick_ns,
            decay: exp_minus(tick_ns, tau_ns),
            half_decay: exp_minus(tick_ns, tau_ns * 2),
            // A milliwatt for a nanosecond is a picojoule.
            idle_picojoules_per_tick: idle_milliwatts * tick_ns,
            origin: None,
            ticks: 0,
            heat_picojoules: 0,
            pending_picojoules: 0,
            added_picojoules: 0,
            lost_picojoules: 0,
            steps: steps.to_vec(),
            level: 0,
            peak_millicelsius: params.ambient_millicelsius,
            transitions: VecDeque::new(),
            transition_count: 0,
        }
    }

    /// Adds energy that is turned into heat at the present time.
    pub fn add_energy(&mut self, nanojoules: u64) {
        self.add_picojoules(u128::from(nanojoules) * 1000);
    }

    /// As [`Thermal::add_energy`], in picojoules: the energies of single bytes are below one
    /// nanojoule and would be lost to rounding.
    pub fn add_picojoules(&mut self, picojoules: u128) {
        let room = u64::MAX - self.pending_picojoules;
        let taken = u64::try_from(picojoules).unwrap_or(u64::MAX).min(room);
        assert!(
            u128::from(taken) == picojoules,
            "more than 18 MJ in one thermal tick: the energies of the profile are not possible"
        );
        self.pending_picojoules += taken;
    }

    /// Brings the model to `now` and returns the temperature in thousandths of a degree Celsius.
    /// A `now` before the last one changes nothing.
    pub fn advance(&mut self, now: Nanos) -> i32 {
        let origin = *self.origin.get_or_insert(now);
        let target = now.0.saturating_sub(origin.0) / self.tick_ns;
        while self.ticks < target {
            let idle = self.pending_picojoules == 0;
            let before = self.heat_picojoules;
            self.tick();
            // An idle model settles on an integer and stays there, so the rest is one jump. It
            // settles within 64 ln 2 time constants: that bounds the loop, however long the gap.
            if idle && self.heat_picojoules == before {
                let skipped = target - self.ticks;
                let energy = u128::from(skipped) * u128::from(self.idle_picojoules_per_tick);
                self.added_picojoules += energy;
                self.lost_picojoules += energy;
                self.ticks = target;
            }
        }
        self.millicelsius()
    }

    /// Temperature at the last completed tick, in thousandths of a degree Celsius.
    #[must_use]
    pub fn millicelsius(&self) -> i32 {
        let rise = u128::from(self.heat_picojoules) * u128::from(self.time_scale) / self.picojoules_per_millikelvin;
        let rise = i64::try_from(rise).unwrap_or(i64::from(i32::MAX));
        i32::try_from(i64::from(self.ambient_millicelsius) + rise).unwrap_or(i32::MAX)
    }

    /// Highest temperature so far.
    #[must_use]
    pub fn peak_millicelsius(&self) -> i32 {
        self.peak_millicelsius
    }

    /// Present speed in thousandths of full speed; 0 is shut down.
    #[must_use]
    pub fn speed_permille(&self) -> u32 {
        match self.level {
            0 => 1000,
            level => self.steps[level - 1].speed_permille,
        }
    }

    /// Present throttle level: 0 is unthrottled, n is the n-th step of the profile.
    #[must_use]
    pub fn level(&self) -> u8 {
        u8::try_from(self.level).unwrap_or(u8::MAX)
    }

    /// The last [`TRANSITIONS_MAX`] changes of level, oldest first.
    pub fn transitions(&self) -> impl Iterator<Item = &Transition> {
        self.transitions.iter()
    }

    /// How many changes of level there have been.
    #[must_use]
    pub fn transition_count(&self) -> u64 {
        self.transition_count
    }

    /// Sets the temperature, keeping the throttle level's rules: for a device that is started
    /// again before it has cooled.
    pub fn set_millicelsius(&mut self, millicelsius: i32) {
        let rise = u128::try_from(i64::from(millicelsius) - i64::from(self.ambient_millicelsius)).unwrap_or(0);
        let heat = rise * self.picojoules_per_millikelvin / u128::from(self.time_scale);
        let heat = u64::try_from(heat).unwrap_or(u64::MAX);
        // The books stay balanced: what is set counts as added or lost.
        self.added_picojoules += u128::from(heat.saturating_sub(self.heat_picojoules));
        self.lost_picojoules += u128::from(self.heat_picojoules.saturating_sub(heat));
        self.heat_picojoules = heat;
        self.throttle();
    }

    /// Energy added, stored and lost to the surroundings so far, in picojoules. The first is the
    /// sum of the other two, exactly.
    #[must_use]
    pub fn energy_picojoules(&self) -> (u128, u128, u128) {
        (self.added_picojoules, u128::from(self.heat_picojoules), self.lost_picojoules)
    }

    /// When the present tick ends and the throttle is looked at again.
    #[must_use]
    pub fn next_tick(&self) -> Nanos {
        let start = self.origin.unwrap_or_default();
        Nanos(start.0.saturating_add((self.ticks + 1).saturating_mul(self.tick_ns)))
    }

    /// Length of a tick in nanoseconds.
    #[must_use]
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    fn tick(&mut self) {
        let incoming = u128::from(self.pending_picojoules) + u128::from(self.idle_picojoules_per_tick);
        let kept = (u128::from(self.heat_picojoules) * u128::from(self.decay)) >> 64;
        let arrived = keep(incoming, self.half_decay);
        let heat = u64::try_from(kept + arrived).unwrap_or(u64::MAX);
        self.added_picojoules += incoming;
        self.lost_picojoules += u128::from(self.heat_picojoules) + incoming - u128::from(heat);
        self.heat_picojoules = heat;
        self.pending_picojoules = 0;
        self.ticks += 1;
        self.throttle();
    }

    fn throttle(&mut self) {
        let millicelsius = self.millicelsius();
        self.peak_millicelsius = self.peak_millicelsius.max(millicelsius);
        let from = self.level;
        while self.level < self.steps.len() && millicelsius >= self.steps[self.level].enter_millicelsius {
            self.level += 1;
        }
        while self.level > 0 && millicelsius <= self.steps[self.level - 1].exit_millicelsius {
            self.level -= 1;
        }
        if self.level != from {
            self.record(from, millicelsius);
        }
    }

    fn record(&mut self, from: usize, millicelsius: i32) {
        if self.transitions.len() == TRANSITIONS_MAX {
            self.transitions.pop_front();
        }
        let start = self.origin.unwrap_or_default();
        self.transition_count += 1;
        self.transitions.push_back(Transition {
            at: Nanos(start.0 + self.ticks * self.tick_ns),
            from: u8::try_from(from).unwrap_or(u8::MAX),
            to: self.level(),
            speed_permille: self.speed_permille(),
            millicelsius,
        });
    }
}

/// Time constant R·C in nanoseconds after the time scale, at least one shortest tick.
fn time_constant_ns(params: &ThermalParams) -> u64 {
    // mK/W · mJ/K is a microsecond.
    let nanoseconds = u128::from(params.resistance_millikelvin_per_watt)
        * u128::from(params.capacitance_millijoule_per_kelvin)
        * 1000
        / u128::from(params.time_scale);
    u64::try_from(nanoseconds).unwrap_or(u64::MAX / 4).clamp(TICK_NS_MIN, u64::MAX / 4)
}

/// `value · fraction / 2^64` for a value of up to 65 bits.
fn keep(value: u128, fraction: u64) -> u128 {
    let high = (value >> 32) * u128::from(fraction);
    let low = (value & 0xFFFF_FFFF) * u128::from(fraction);
    (high + (low >> 32)) >> 32
}

/// `exp(−span/tau)` in units of 2^-64, for span ≤ tau, by its series: floating point is not the
/// same on every machine. Six terms leave an error below 2^-12 of the last place at 1/8192.
fn exp_minus(span: u64, tau: u64) -> u64 {
    assert!(span <= tau, "a tick is never longer than the time constant");
    let one = 1u128 << 64;
    let x = (u128::from(span) << 64) / u128::from(tau);
    let mut sum = one;
    let mut term = one;
    for order in 1..=24u128 {
        term = mul_q64(term, x) / order;
        sum = if order % 2 == 1 { sum - term } else { sum + term };
    }
    u64::try_from(sum).unwrap_or(u64::MAX)
}

/// Product of two numbers of at most 2^64 in units of 2^-64.
fn mul_q64(a: u128, b: u128) -> u128 {
    if a == 1 << 64 {
        return b;
    }
    (a * b.min((1 << 64) - 1)) >> 64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> ThermalParams {
        ThermalParams {
            ambient_millicelsius: 35_000,
            resistance_millikelvin_per_watt: 2_000,
            capacitance_millijoule_per_kelvin: 75_000,
            time_scale: 1,
        }
    }

    fn step(enter: i32, exit: i32, speed: u32) -> ThrottleStep {
        ThrottleStep { name: "step".into(), enter_millicelsius: enter, exit_millicelsius: exit, speed_permille: speed }
    }

    /// Heats with `milliwatts` for `seconds` in calls `every_ns` apart.
    fn heat(model: &mut Thermal, from_ns: u64, milliwatts: u64, seconds: u64, every_ns: u64) -> u64 {
        let end = from_ns + seconds * 1_000_000_000;
        let mut now = from_ns;
        model.advance(Nanos(now));
        while now < end {
            model.add_picojoules(u128::from(milliwatts * every_ns));
            now += every_ns;
            model.advance(Nanos(now));
        }
        now
    }

    fn analytic(milliwatts: f64, start_rise: f64, seconds: f64) -> f64 {
        let (resistance, capacitance) = (2.0, 75.0);
        let target = milliwatts / 1000.0 * resistance;
        35.0 + target + (start_rise - target) * (-seconds / (resistance * capacitance)).exp()
    }

    #[test]
    fn follows_the_exponential_while_heating_and_cooling() {
        let mut model = Thermal::new(&params(), 0, &[]);
        let mut now = 0;
        for second in 1..=400u32 {
            now = heat(&mut model, now, 25_000, 1, 100_000);
            let expected = analytic(25_000.0, 0.0, f64::from(second));
            let seen = f64::from(model.millicelsius()) / 1000.0;
            assert!((seen - expected).abs() < 0.1, "{second} s: {seen} not {expected}");
        }
        let rise = f64::from(model.millicelsius()) / 1000.0 - 35.0;
        for second in 1..=400u32 {
            let seen = f64::from(model.advance(Nanos(now + u64::from(second) * 1_000_000_000))) / 1e3;
            let expected = analytic(0.0, rise, f64::from(second));
            assert!((seen - expected).abs() < 0.1, "{second} s: {seen} not {expected}");
        }
    }

    #[test]
    fn idle_power_alone_settles_at_its_own_rise() {
        let mut model = Thermal::new(&params(), 8_000, &[]);
        model.advance(Nanos(0));
        let settled = model.advance(Nanos(3_600_000_000_000));
        assert!((settled - (35_000 + 16_000)).abs() <= 5, "{settled}");
        // A day more in one call is one jump, and changes nothing.
        assert_eq!(model.advance(Nanos(90_000_000_000_000)), settled);
    }

    #[test]
    fn energy_is_conserved_to_the_picojoule() {
        let mut model = Thermal::new(&params(), 7_123, &[step(60_000, 50_000, 500)]);
        let mut now = 0;
        for round in 0..50u64 {
            now = heat(&mut model, now, round * 977 + 13, 3, 333_333);
            now += round * 1_000_000_007;
            let (added, stored, lost) = {
                model.advance(Nanos(now));
                model.energy_picojoules()
            };
            assert_eq!(added, stored + lost, "round {round}");
        }
        model.set_millicelsius(40_000);
        let (added, stored, lost) = model.energy_picojoules();
        assert_eq!(added, stored + lost);
    }

    #[test]
    fn the_curve_does_not_depend_on_when_it_is_asked() {
        let (mut often, mut seldom) = (Thermal::new(&params(), 5_000, &[]), Thermal::new(&params(), 5_000, &[]));
        often.advance(Nanos(0));
        seldom.advance(Nanos(0));
        for second in 0..600u64 {
            let at = second * 1_000_000_000;
            for part in 0..10 {
                often.advance(Nanos(at + part * 100_000_000));
            }
            seldom.advance(Nanos(at + 900_000_000));
            often.add_energy(20_000_000_000);
            seldom.add_energy(20_000_000_000);
        }
        assert_eq!(often.heat_picojoules, seldom.heat_picojoules);
    }

    #[test]
    fn the_time_scale_moves_the_clock_and_not_the_end() {
        let mut fast = Thermal::new(&ThermalParams { time_scale: 30, ..params() }, 0, &[]);
        heat(&mut fast, 0, 25_000, 10, 50_000);
        let expected = analytic(25_000.0, 0.0, 300.0);
        let seen = f64::from(fast.millicelsius()) / 1000.0;
        assert!((seen - expected).abs() < 0.1, "{seen} not {expected}");
        heat(&mut fast, 10_000_000_000, 25_000, 90, 50_000);
        assert!((fast.millicelsius() - 85_000).abs() < 30, "{}", fast.millicelsius());
    }

    #[test]
    fn steps_have_hysteresis_and_are_recorded() {
        let steps = [step(50_000, 45_000, 500), step(60_000, 55_000, 100), step(70_000, 40_000, 0)];
        let mut model = Thermal::new(&params(), 0, &steps);
        model.advance(Nanos(5));
        let mut speeds = Vec::new();
        for millicelsius in [49_999, 50_000, 45_001, 45_000, 61_000, 55_001, 55_000, 71_000, 56_000, 40_000] {
            model.set_millicelsius(millicelsius);
            speeds.push(model.speed_permille());
        }
        assert_eq!(speeds, [1000, 500, 500, 1000, 100, 100, 500, 0, 0, 1000]);
        assert_eq!(model.transition_count(), 6);
        let last = model.transitions().last().copied();
        let expected = Transition { at: Nanos(5), from: 3, to: 0, speed_permille: 1000, millicelsius: 40_000 };
        assert_eq!(last, Some(expected));
        assert_eq!(model.peak_millicelsius(), 71_000);
    }

    #[test]
    fn the_list_of_transitions_is_bounded() {
        let mut model = Thermal::new(&params(), 0, &[step(50_000, 45_000, 500)]);
        for _ in 0..2 * TRANSITIONS_MAX {
            model.set_millicelsius(51_000);
            model.set_millicelsius(44_000);
        }
        assert_eq!(model.transitions().count(), TRANSITIONS_MAX);
        assert_eq!(model.transition_count(), 4 * TRANSITIONS_MAX as u64);
    }

    #[test]
    fn the_series_agrees_with_the_library() {
        for (span, tau) in [(1u64, 8192u64), (1, 2), (1, 1), (1, 1 << 40), (1000, 1_250_000)] {
            let seen = exp_minus(span, tau) as f64 / 2f64.powi(64);
            let expected = (-(span as f64) / tau as f64).exp();
            assert!((seen - expected).abs() < 1e-12, "exp(-{span}/{tau}): {seen} not {expected}");
        }
    }
}
