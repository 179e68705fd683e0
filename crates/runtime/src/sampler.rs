//! What the scheduler sees: one sample an epoch of host, device and actors, from the machine where it shows
//! them and from the model.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use osier_domain::{ActorId, Nanos, Side};
use osier_sched::{ActorView, Decision, DeviceSample, Header, HostSample, Sample, encode_header, encode_sample};

use crate::control::Gauge;
use crate::error::RuntimeError;
use crate::link::Link;
use crate::machine::Machine;
use crate::setup::Setup;

/// Takes samples, and writes them down if somebody wants to replay them.
pub struct Sampler {
    out: Option<(PathBuf, BufWriter<File>)>,
    sources: Sources,
    last_turn: Nanos,
    was_busy: bool,
    busy_ns: u64,
    since: Nanos,
    /// For each actor: where it was, since when, and its busy nanoseconds at the last sample.
    seen: Vec<(Option<Side>, Nanos, u64)>,
}

/// Where the machine tells of itself; a virtual machine often does not.
struct Sources {
    frequency: Option<PathBuf>,
    nominal_khz: Option<u32>,
    energy: Option<PathBuf>,
    last_energy: Option<(Nanos, u64)>,
}

impl Sources {
    fn find() -> Sources {
        let cpu = Path::new("/sys/devices/system/cpu/cpu0/cpufreq");
        let frequency = Some(cpu.join("scaling_cur_freq")).filter(|p| number(p).is_some());
        let nominal = number(&cpu.join("base_frequency")).or_else(|| number(&cpu.join("cpuinfo_max_freq")));
        let energy = Some(PathBuf::from("/sys/class/powercap/intel-rapl:0/energy_uj")).filter(|p| number(p).is_some());
        Sources { frequency, nominal_khz: nominal.and_then(|n| u32::try_from(n).ok()), energy, last_energy: None }
    }

    fn power_milliwatts(&mut self, now: Nanos) -> Option<u32> {
        let microjoules = number(self.energy.as_ref()?)?;
        let (then, before) = self.last_energy.replace((now, microjoules))?;
        // The counter wraps; the sample that sees it wrap is left out.
        let used = microjoules.checked_sub(before)?;
        let elapsed_us = (now.0.saturating_sub(then.0) / 1000).max(1);
        u32::try_from(used * 1000 / elapsed_us).ok()
    }
}

fn number(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

impl Sampler {
    /// A sampler; `record` is the file that samples are written to.
    pub fn new(setup: &Setup, record: Option<&Path>, policy: &str) -> Result<Sampler, RuntimeError> {
        let out = match record {
            None => None,
            Some(path) => {
                let failed = |source| RuntimeError::Record { path: path.to_owned(), source };
                let mut out = BufWriter::new(File::create(path).map_err(failed)?);
                let profile = &setup.profile;
                let epoch_ms = profile.scheduler.epoch_ms as u32;
                let header = Header::new(&profile.device.name, policy, epoch_ms, profile.scale.thermal_time);
                out.write_all(encode_header(&header).as_bytes()).map_err(failed)?;
                Some((path.to_owned(), out))
            }
        };
        Ok(Sampler {
            out,
            sources: Sources::find(),
            last_turn: Nanos(0),
            was_busy: false,
            busy_ns: 0,
            since: crate::clock::now(),
            seen: vec![(None, Nanos(0), 0); setup.defaults.len()],
        })
    }

    /// One turn of the host's loop has begun; `busy` says whether it had work.
    pub fn turn(&mut self, now: Nanos, busy: bool) {
        if self.was_busy {
            self.busy_ns += now.0.saturating_sub(self.last_turn.0);
        }
        self.last_turn = now;
        self.was_busy = busy;
    }

    /// The sample of the epoch that ends now.
    pub fn sample(&mut self, now: Nanos, setup: &Setup, machine: &Machine, link: &mut Link) -> Sample {
        let control = &setup.control;
        let elapsed = now.0.saturating_sub(self.since.0).max(1);
        let cpu_permille = (self.busy_ns * 1000 / elapsed).min(1000) as u32;
        control.set_gauge(Gauge::HostBusy, u64::from(cpu_permille));
        let sample = Sample {
            at: now,
            host: HostSample {
                cpu_permille,
                frequency_khz: self.sources.frequency.as_deref().and_then(number).and_then(|n| u32::try_from(n).ok()),
                frequency_nominal_khz: self.sources.nominal_khz,
                power_milliwatts: self.sources.power_milliwatts(now),
                ring_depth: link.depth() as u32,
            },
            device: DeviceSample {
                temperature_millicelsius: control.temperature_millicelsius() as i32,
                utilisation_permille: control.gauge(Gauge::Utilisation) as u32,
                speed_permille: control.gauge(Gauge::Speed) as u32,
                ring_depth: control.gauge(Gauge::Pending) as u32,
            },
            actors: self.actors(now, elapsed, setup, machine),
        };
        self.busy_ns = 0;
        self.since = now;
        sample
    }

    /// Writes a sample down with what was decided on it, if somebody wants that. A file that takes no more ends the
    /// recording, not the traffic.
    pub fn note(&mut self, sample: &Sample, decision: Option<&Decision>) {
        let Some((path, out)) = &mut self.out else { return };
        if let Err(source) = out.write_all(encode_sample(sample, decision).as_bytes()) {
            let error = RuntimeError::Record { path: path.clone(), source };
            tracing::error!(%error, "the recording ends here; the device goes on");
            self.out = None;
        }
    }

    fn actors(&mut self, now: Nanos, elapsed: u64, setup: &Setup, machine: &Machine) -> Vec<ActorView> {
        let mut views = Vec::with_capacity(self.seen.len());
        for (index, seen) in self.seen.iter_mut().enumerate() {
            let id = ActorId(index as u16);
            let usage = machine.runner.usage(id);
            setup.control.set_actor_stats(id, Side::Host, usage.bytes_in, usage.busy_ns);
            // An actor that is on its way is seen when it has arrived.
            let Some(side) = setup.owner(id) else { continue };
            let (bytes, busy_ns) = setup.control.actor_stats(id, side);
            if seen.0 != Some(side) {
                *seen = (Some(side), now, busy_ns);
            }
            let busy_permille = (busy_ns.saturating_sub(seen.2) * 1000 / elapsed).min(1000) as u32;
            seen.2 = busy_ns;
            views.push(ActorView {
                id,
                side,
                class: setup.class(id),
                movable: setup.movable(id),
                since: seen.1,
                busy_permille,
                bytes,
            });
        }
        views
    }
}
