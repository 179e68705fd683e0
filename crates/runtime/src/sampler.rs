//! What the scheduler sees: one sample an epoch of host, device and actors, from the machine where it shows
//! them and from the model.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use osier_domain::{ActorId, Nanos, Side};
use osier_sched::{ActorView, Decision, DeviceSample, Header, HostSample, Sample, encode_header, encode_sample};

use crate::control::{ActorStats, Gauge};
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
    others: Others,
}

/// What the machine's processors do for anybody but this device.
struct Others {
    stat: Option<File>,
    next: Nanos,
    /// Time of all processors, the part of it that was not idle, and what this device used, at the last look.
    last: Option<[u64; 3]>,
    permille: u32,
}

/// Between two looks at `/proc/stat`. The kernel counts there in ticks of 10 milliseconds, and to write its text takes
/// it some microseconds for each processor.
const OTHERS_NS: u64 = 50_000_000;

impl Others {
    /// Share of all processors that is taken by others, in permille, at the last look; `ours` is the processor time
    /// that this device's processes have used.
    fn permille(&mut self, now: Nanos, ours: impl FnOnce() -> u64) -> u32 {
        if now >= self.next {
            self.next = Nanos(now.0 + OTHERS_NS);
            if let Some([total, busy]) = self.stat.as_ref().and_then(processor_times) {
                let at = [total, busy, ours()];
                if let Some(before) = self.last.replace(at) {
                    let [total, busy, ours] = std::array::from_fn(|i| at[i].saturating_sub(before[i]));
                    self.permille = (busy.saturating_sub(ours) * 1000 / total.max(1)).min(1000) as u32;
                }
            }
        }
        self.permille
    }
}

/// Nanoseconds of all processors since the machine was started, and of those the ones that were not idle.
fn processor_times(stat: &File) -> Option<[u64; 2]> {
    let mut text = [0u8; 256];
    let length = stat.read_at(&mut text, 0).ok()?;
    parse_processor_times(std::str::from_utf8(&text[..length]).ok()?)
}

/// From the first line of `/proc/stat` (proc(5)): user, nice, system, idle, iowait, irq, softirq and steal, in ticks.
/// The two columns behind them are counted in the first two.
fn parse_processor_times(text: &str) -> Option<[u64; 2]> {
    let mut words = text.lines().next()?.split_whitespace();
    if words.next() != Some("cpu") {
        return None;
    }
    let mut columns = [0u64; 8];
    for column in &mut columns {
        *column = words.next()?.parse().ok()?;
    }
    let total: u64 = columns.iter().sum();
    let tick_ns = 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1);
    Some([total * tick_ns, (total - columns[3] - columns[4]) * tick_ns])
}

impl Sources {
    fn find() -> Sources {
        let cpu = Path::new("/sys/devices/system/cpu/cpu0/cpufreq");
        let frequency = Some(cpu.join("scaling_cur_freq")).filter(|p| number(p).is_some());
        let nominal = number(&cpu.join("base_frequency")).or_else(|| number(&cpu.join("cpuinfo_max_freq")));
        let energy = Some(PathBuf::from("/sys/class/powercap/intel-rapl:0/energy_uj")).filter(|p| number(p).is_some());
        let others = Others { stat: File::open("/proc/stat").ok(), next: Nanos(0), last: None, permille: 0 };
        Sources {
            frequency,
            nominal_khz: nominal.and_then(|n| u32::try_from(n).ok()),
            energy,
            last_energy: None,
            others,
        }
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
    /// A sampler; `record` is the file that samples are written to, from its end on where `goes_on` says that a
    /// former host began it.
    pub fn new(setup: &Setup, record: Option<&Path>, policy: &str, goes_on: bool) -> Result<Sampler, RuntimeError> {
        let out = match record {
            None => None,
            Some(path) => {
                let failed = |source| RuntimeError::Record { path: path.to_owned(), source };
                let mut how = File::options();
                let opened = how.create(true).write(true).append(goes_on).truncate(!goes_on).open(path);
                let mut out = BufWriter::new(opened.map_err(failed)?);
                let profile = &setup.profile;
                let epoch_ms = profile.scheduler.epoch_ms as u32;
                let header = Header::new(&profile.device.name, policy, epoch_ms, profile.scale.thermal_time);
                // Where a host was killed in the middle of a line, that line alone is malformed.
                let head = if goes_on { "\n".to_owned() } else { encode_header(&header) };
                out.write_all(head.as_bytes()).map_err(failed)?;
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
        // The host's stages run in this thread: there is headroom for one more if the thread has time left and the
        // machine's processors have.
        let own = (self.busy_ns * 1000 / elapsed).min(1000) as u32;
        let ours = || crate::clock::cpu() + control.gauge(Gauge::DeviceCpu);
        let cpu_permille = own.max(self.sources.others.permille(now, ours));
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
            let stats = ActorStats {
                bytes: usage.bytes_in,
                busy_ns: usage.busy_ns,
                calls: usage.calls,
                failed: usage.failed(),
            };
            setup.control.set_actor_stats(id, Side::Host, &stats);
            // An actor that is on its way is seen when it has arrived.
            let Some(side) = setup.owner(id) else { continue };
            let ActorStats { bytes, busy_ns, .. } = setup.control.actor_stats(id, side);
            if seen.0 != Some(side) {
                *seen = (Some(side), now, busy_ns);
            }
            // On the device the model runs an actor on all cores at once; the host's stages have one thread.
            let cores = if side == Side::Device { u64::from(setup.profile.compute.cores.max(1)) } else { 1 };
            let busy_permille = (busy_ns.saturating_sub(seen.2) * 1000 / (elapsed * cores)).min(1000) as u32;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_line_is_read_and_others_are_not() {
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let text = "cpu  10 1 5 70 4 2 3 5 0 0\ncpu0 10 1 5 70 4 2 3 5 0 0\n";
        assert_eq!(parse_processor_times(text), Some([100 * tick, 26 * tick]));
        for text in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3", "cpu 1 2 x 4 5 6 7 8"] {
            assert_eq!(parse_processor_times(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_others_use_is_what_is_used_beside_ours() {
        let stat = tempfile::NamedTempFile::new().unwrap();
        let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
        let mut others = Others { stat: Some(stat.reopen().unwrap()), next: Nanos(0), last: None, permille: 0 };
        fs::write(stat.path(), "cpu 100 0 0 100 0 0 0 0 0 0").unwrap();
        assert_eq!(others.permille(Nanos(1), || 0), 0, "one look says nothing");
        // Of 200 more ticks, 120 were busy, 40 of them with this device.
        fs::write(stat.path(), "cpu 220 0 0 180 0 0 0 0 0 0").unwrap();
        assert_eq!(others.permille(Nanos(2), || 40 * tick), 0, "too early to look again");
        assert_eq!(others.permille(Nanos(1 + OTHERS_NS), || 40 * tick), 400);
    }
}
