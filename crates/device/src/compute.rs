//! What the device's own processor costs: cores as servers, engines as rates.
//!
//! A call occupies one core for `call_ns` plus its bytes at the engine's rate, both stretched by
//! the throttle speed. The model only says when work is due and how much energy it took; the work
//! itself is done elsewhere.
//!
//! Energy is charged for the *nominal* time of the work, whatever the speed: throttling here is a
//! lower clock or gated cycles, where the power falls with the speed and the energy of one byte
//! stays. Charging busy time instead would leave a throttled device as hot as a full one.

use crate::profile::{ComputeParams, Engine};
use osier_flash::Nanos;

/// Smallest chunk: below this the fixed cost of a call outweighs the work.
pub const CHUNK_BYTES_MIN: u32 = 256;

/// The device's cores and engines.
#[derive(Clone, Debug)]
pub struct Compute {
    params: ComputeParams,
    milliwatts_per_core: u64,
    speed_permille: u32,
    busy_until: Vec<Nanos>,
    /// Core time given out since the start, in nanoseconds, what lies in the future included.
    scheduled_ns: u64,
    sampled_at: Nanos,
    sampled_consumed_ns: u64,
    energy_picojoules: u128,
    calls: u64,
    bytes: u64,
    /// The calls since they were last taken, for who writes them down.
    journal: Option<Vec<ComputeCall>>,
}

/// One call of [`Compute::run`] or [`Compute::go_on`], and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputeCall {
    pub now: Nanos,
    pub core_hint: Option<u32>,
    pub engine: Engine,
    pub bytes: u32,
    pub due: Option<Nanos>,
    pub goes_on: bool,
}

impl Compute {
    /// Idle cores at full speed. `milliwatts_per_core` is drawn by a busy core over an idle one.
    #[must_use]
    pub fn new(params: &ComputeParams, milliwatts_per_core: u64) -> Compute {
        Compute {
            params: params.clone(),
            milliwatts_per_core,
            speed_permille: 1000,
            busy_until: vec![Nanos(0); params.cores as usize],
            scheduled_ns: 0,
            sampled_at: Nanos(0),
            sampled_consumed_ns: 0,
            energy_picojoules: 0,
            calls: 0,
            bytes: 0,
            journal: None,
        }
    }

    /// Gives one call of `engine` over `bytes` to a core and returns when it is due, or `None`
    /// while the device is shut down. Of the cores that are free at `now` the one takes it that was
    /// free last, the hinted one before others like it; else the core that is free first.
    ///
    /// `now` is the present, or the end of the chunk before in the same unit. A later stage of a
    /// request is given out when the one before it is over, not ahead of time.
    pub fn run(&mut self, now: Nanos, core_hint: Option<u32>, engine: Engine, bytes: u32) -> Option<Nanos> {
        let due = self.give_out(now, core_hint, self.params.nominal_ns(engine, bytes), bytes);
        self.calls += u64::from(due.is_some());
        self.note(ComputeCall { now, core_hint, engine, bytes, due, goes_on: false });
        due
    }

    /// As [`Compute::run`], for the next piece of a call that was begun: whoever computes may take more than one piece
    /// for it, and the model's call stays one.
    pub fn go_on(&mut self, now: Nanos, core_hint: Option<u32>, engine: Engine, bytes: u32) -> Option<Nanos> {
        let nominal_ns = self.params.nominal_ns(engine, bytes) - self.params.call_ns;
        let due = self.give_out(now, core_hint, nominal_ns, bytes);
        self.note(ComputeCall { now, core_hint, engine, bytes, due, goes_on: true });
        due
    }

    fn note(&mut self, call: ComputeCall) {
        if let Some(journal) = &mut self.journal {
            journal.push(call);
        }
    }

    /// Notes every call from now on, until they are no longer wanted.
    pub(crate) fn keep_calls(&mut self, wanted: bool) {
        self.journal = wanted.then(Vec::new);
    }

    /// The calls since they were last taken, in `into`, which was empty.
    pub(crate) fn take_calls(&mut self, into: &mut Vec<ComputeCall>) {
        if let Some(journal) = self.journal.as_mut().filter(|journal| !journal.is_empty()) {
            std::mem::swap(journal, into);
        }
    }

    fn give_out(&mut self, now: Nanos, core_hint: Option<u32>, nominal_ns: u64, bytes: u32) -> Option<Nanos> {
        let duration_ns = stretch(nominal_ns, self.speed_permille)?;
        let core = self.choose(now, core_hint);
        let start = self.busy_until[core].max(now);
        let due = Nanos(start.0.saturating_add(duration_ns));
        self.busy_until[core] = due;
        self.scheduled_ns += duration_ns;
        self.energy_picojoules += u128::from(nominal_ns) * u128::from(self.milliwatts_per_core);
        self.bytes += u64::from(bytes);
        Some(due)
    }

    /// Time of one call at the present speed in nanoseconds, without queueing; `None` while the
    /// device is shut down.
    #[must_use]
    pub fn duration_ns(&self, engine: Engine, bytes: u32) -> Option<u64> {
        stretch(self.params.nominal_ns(engine, bytes), self.speed_permille)
    }

    /// The time that [`Compute::go_on`] takes, as [`Compute::duration_ns`].
    #[must_use]
    pub fn piece_ns(&self, engine: Engine, bytes: u32) -> Option<u64> {
        stretch(self.params.nominal_ns(engine, bytes) - self.params.call_ns, self.speed_permille)
    }

    /// The most bytes whose call takes at most `chunk_ns_max` at the present speed, but never
    /// fewer than [`CHUNK_BYTES_MIN`]. It bounds how long a drain waits for an actor.
    #[must_use]
    pub fn chunk_bytes(&self, engine: Engine) -> u32 {
        let nominal_ns = u128::from(self.params.chunk_ns_max) * u128::from(self.speed_permille) / 1000;
        let work_ns = nominal_ns.saturating_sub(u128::from(self.params.call_ns));
        let rate = u128::from(self.params.engines.bytes_per_second(engine));
        let bytes = u32::try_from(work_ns * rate / 1_000_000_000).unwrap_or(u32::MAX);
        bytes.max(CHUNK_BYTES_MIN)
    }

    /// Sets the throttle speed for calls from now on; calls already due keep their time.
    pub fn set_speed_permille(&mut self, speed_permille: u32) {
        assert!(speed_permille <= 1000, "speed is a fraction of full speed");
        self.speed_permille = speed_permille;
    }

    /// Present speed in thousandths.
    #[must_use]
    pub fn speed_permille(&self) -> u32 {
        self.speed_permille
    }

    /// Takes the energy used since the last call, in picojoules.
    pub fn take_energy_picojoules(&mut self) -> u128 {
        std::mem::take(&mut self.energy_picojoules)
    }

    /// Share of core time used since the last call of this function, in thousandths.
    pub fn utilisation_permille(&mut self, now: Nanos) -> u32 {
        let overhang: u64 = self.busy_until.iter().map(|until| until.0.saturating_sub(now.0)).sum();
        // A core's work given out for the future is contiguous from `now`, so what is not
        // overhang was spent.
        let consumed_ns = self.scheduled_ns.saturating_sub(overhang);
        let used_ns = consumed_ns.saturating_sub(self.sampled_consumed_ns);
        let window_ns = now.0.saturating_sub(self.sampled_at.0);
        self.sampled_at = self.sampled_at.max(now);
        self.sampled_consumed_ns = self.sampled_consumed_ns.max(consumed_ns);
        let capacity = u128::from(window_ns) * self.busy_until.len() as u128;
        if capacity == 0 {
            return 0;
        }
        u32::try_from((u128::from(used_ns) * 1000 / capacity).min(1000)).unwrap_or(1000)
    }

    /// Calls and bytes so far.
    #[must_use]
    pub fn totals(&self) -> (u64, u64) {
        (self.calls, self.bytes)
    }

    /// Number of cores.
    #[must_use]
    pub fn cores(&self) -> u32 {
        self.params.cores
    }

    /// The core that was free last among those free at `now`, the hinted one before others like it; else the first
    /// that will be. A call may be given out for the future, when the chunk before it ends: on a core that is free
    /// long before, the time until then would be lost.
    fn choose(&self, now: Nanos, core_hint: Option<u32>) -> usize {
        let hint = core_hint.map(|hint| hint as usize % self.busy_until.len());
        let cores = || self.busy_until.iter().enumerate();
        let free = cores().filter(|(_, until)| **until <= now);
        let chosen = free.max_by_key(|(core, until)| (**until, Some(*core) == hint));
        chosen.or_else(|| cores().min_by_key(|(_, until)| **until)).map_or(0, |(core, _)| core)
    }
}

/// A nominal time at a throttle speed, rounded up; `None` at speed 0.
pub(crate) fn stretch(nominal_ns: u64, speed_permille: u32) -> Option<u64> {
    match speed_permille {
        0 => None,
        1000 => Some(nominal_ns),
        speed => {
            let stretched = (u128::from(nominal_ns) * 1000).div_ceil(u128::from(speed));
            Some(u64::try_from(stretched).unwrap_or(u64::MAX))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Engines;

    fn compute() -> Compute {
        let engines = Engines {
            lz4_bytes_per_second: 1_000_000_000,
            aes_bytes_per_second: 2_000_000_000,
            crc32c_bytes_per_second: 8_000_000_000,
            wasm_bytes_per_second: 100_000_000,
        };
        let params = ComputeParams { cores: 2, call_ns: 1_000, chunk_ns_max: 50_000, engines };
        Compute::new(&params, 4_000)
    }

    #[test]
    fn calls_queue_on_the_core_that_is_free_first() {
        let mut compute = compute();
        let run = |compute: &mut Compute, now, hint, bytes| {
            compute.run(Nanos(now), hint, Engine::Lz4, bytes).map(|due| due.0)
        };
        assert_eq!(run(&mut compute, 0, None, 9_000), Some(10_000));
        assert_eq!(run(&mut compute, 0, Some(0), 4_000), Some(5_000), "the hinted core is busy");
        assert_eq!(run(&mut compute, 0, None, 1_000), Some(7_000));
        assert_eq!(run(&mut compute, 20_000, Some(1), 0), Some(21_000));
        assert_eq!(run(&mut compute, 20_000, Some(3), 0), Some(21_000), "core 1 is busy, core 0 is not");
        assert_eq!(compute.totals(), (5, 14_000));
    }

    #[test]
    fn the_pieces_of_a_call_take_what_the_call_takes() {
        let (mut whole, mut pieces) = (compute(), compute());
        for each in [&mut whole, &mut pieces] {
            each.set_speed_permille(500);
        }
        let due = whole.run(Nanos(0), None, Engine::Lz4, 40_000);
        let first = pieces.run(Nanos(0), None, Engine::Lz4, 10_000);
        let last = (0..3).fold(first, |due, _| pieces.go_on(due?, None, Engine::Lz4, 10_000));
        assert_eq!((last, pieces.totals()), (due, whole.totals()));
        assert_eq!(pieces.take_energy_picojoules(), whole.take_energy_picojoules());
    }

    #[test]
    fn units_of_many_chunks_leave_no_core_idle() {
        let mut compute = compute();
        // Sixteen units of eleven chunks each, given out ahead of time, over two cores, for an actor of core 1.
        let mut last = 0;
        for _ in 0..16 {
            let mut due = Nanos(0);
            for _ in 0..11 {
                due = compute.run(due, Some(1), Engine::Lz4, 1_000).expect("the device is on");
            }
            last = last.max(due.0);
        }
        assert_eq!(last, 16 * 11 * 2_000 / 2);
    }

    #[test]
    fn energy_is_that_of_the_work_at_any_speed() {
        let (mut full, mut half) = (compute(), compute());
        half.set_speed_permille(500);
        assert_eq!(full.run(Nanos(0), None, Engine::Aes, 4_000), Some(Nanos(3_000)));
        assert_eq!(half.run(Nanos(0), None, Engine::Aes, 4_000), Some(Nanos(6_000)));
        assert_eq!(full.take_energy_picojoules(), 3_000 * 4_000);
        assert_eq!(half.take_energy_picojoules(), 3_000 * 4_000);
        assert_eq!(half.take_energy_picojoules(), 0);
    }

    #[test]
    fn a_shut_down_device_runs_nothing() {
        let mut compute = compute();
        compute.set_speed_permille(0);
        assert_eq!(compute.run(Nanos(0), None, Engine::Wasm, 1), None);
        assert_eq!(compute.chunk_bytes(Engine::Lz4), CHUNK_BYTES_MIN);
        assert_eq!(compute.totals(), (0, 0));
    }

    #[test]
    fn a_chunk_is_the_largest_that_fits_its_time() {
        let mut compute = compute();
        for speed in [1000, 777, 500, 333, 100, 1] {
            compute.set_speed_permille(speed);
            for engine in Engine::ALL {
                let bytes = compute.chunk_bytes(engine);
                let within = |bytes| compute.duration_ns(engine, bytes).is_some_and(|ns| ns <= 50_000);
                assert!(within(bytes) || bytes == CHUNK_BYTES_MIN, "{engine:?} at {speed}");
                assert!(!within(bytes + 16), "{engine:?} at {speed}: a larger chunk fits too");
            }
        }
    }

    #[test]
    fn utilisation_counts_each_window_once() {
        let mut compute = compute();
        compute.run(Nanos(0), None, Engine::Lz4, 99_000);
        assert_eq!(compute.utilisation_permille(Nanos(50_000)), 500);
        assert_eq!(compute.utilisation_permille(Nanos(150_000)), 250);
        assert_eq!(compute.utilisation_permille(Nanos(150_000)), 0);
        assert_eq!(compute.utilisation_permille(Nanos(250_000)), 0);
    }
}
