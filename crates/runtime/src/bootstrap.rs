//! What the supervisor hands to a domain process over its standard input, and what the host's domain says
//! on its standard output: one JSON document, and one JSON line an event.

use std::path::PathBuf;

use osier_domain::{Side, Step};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use crate::clients::ClientsSpec;
use crate::error::RuntimeError;
use crate::recording::RecordCore;

use crate::waits::Gap;
use crate::workload::{FilesSpec, SoakSpec, TallyReport};

/// Everything a domain process needs to begin. Keys travel here, over a pipe, never through the shared region.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// Which domain.
    pub device: bool,
    /// The image's directory.
    pub image: PathBuf,
    /// The recovery epoch that this process begins in.
    pub epoch: u64,
    /// The persisted number that makes nonces of this start unlike those of any other.
    pub incarnation: u64,
    /// How to run.
    pub options: Options,
    /// The key ring, as hexadecimal digits.
    pub key_ring: String,
    /// What the host's client does.
    pub job: Job,
}

impl Bootstrap {
    /// The key ring's bytes.
    pub fn keys(&self) -> Result<Zeroizing<Vec<u8>>, RuntimeError> {
        let byte = |at| u8::from_str_radix(self.key_ring.get(at..at + 2)?, 16).ok();
        let bytes: Option<Vec<u8>> = (0..self.key_ring.len()).step_by(2).map(byte).collect();
        bytes.map(Zeroizing::new).ok_or_else(|| RuntimeError::Option("the key ring handed over is damaged".into()))
    }

    /// Which domain.
    pub fn side(&self) -> Side {
        if self.device { Side::Device } else { Side::Host }
    }
}

impl Drop for Bootstrap {
    fn drop(&mut self) {
        self.key_ring.zeroize();
    }
}

// Keys are not for logs.
impl std::fmt::Debug for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bootstrap").field("device", &self.device).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

/// Where actors are at the start and what moves them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All on the host; only a command moves them.
    Host,
    /// All on the device; only a command moves them.
    Device,
    /// On the device at the start, then where the policy wants them.
    Adaptive,
}

/// How a session runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    /// Where actors are.
    pub placement: Placement,
    /// The policy's name, for adaptive placement.
    pub policy: String,
    /// Stages, link and controller take the time that the model says; else as long as they take.
    pub model_timing: bool,
    /// How the host waits when it has nothing to do.
    pub host_wait: String,
    /// How the device waits when it has nothing to do.
    pub device_wait: String,
    /// The processors that host and device are bound to, if they are.
    pub cpus: Option<[usize; 2]>,
    /// All rates of the profile are divided by this, and energies multiplied.
    pub rate_divisor: u32,
    /// The temperature changes that many times faster than it would.
    pub thermal_time_scale: u32,
    /// Move actors to and fro without being asked.
    pub forced: Option<Forced>,
    /// Kill a domain where a test wants it.
    pub crash: Option<Crash>,
    /// Write every sample of the scheduler to this file.
    pub record: Option<PathBuf>,
    /// Write every input of the device core to this file.
    pub record_core: Option<RecordCore>,
    /// Chain a checksum over all that is stored, so that two runs can be compared byte for byte.
    pub digest: bool,
    /// How long a domain may take to stop before it is killed, in seconds.
    pub stop_patience_s: u64,
}

/// How long a domain may take to stop, where nobody says.
pub const STOP_PATIENCE_S: u64 = 30;

impl Default for Options {
    fn default() -> Options {
        Options {
            placement: Placement::Adaptive,
            policy: osier_sched::DEFAULT_POLICY.to_owned(),
            model_timing: true,
            host_wait: "hybrid".to_owned(),
            device_wait: "hybrid".to_owned(),
            cpus: None,
            rate_divisor: 1,
            thermal_time_scale: 1,
            forced: None,
            crash: None,
            record: None,
            record_core: None,
            digest: false,
            stop_patience_s: STOP_PATIENCE_S,
        }
    }
}

/// Moves that are made for their own sake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forced {
    /// How many in all.
    pub moves: u64,
    /// Nanoseconds from one to the next, drawn between half and one and a half of this.
    pub every_ns: u64,
    /// Every actor of the pipeline at a time, rather than one.
    pub whole_pipeline: bool,
    /// Draws which and when.
    pub seed: u64,
}

/// A death that a test asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Crash {
    /// Kill the device rather than the host.
    pub device: bool,
    /// At this step, by its number in [`Step::ALL`].
    pub step: u8,
    /// When it is passed for the so-manieth time, counted from 1.
    pub nth: u64,
}

impl Crash {
    /// The step.
    pub fn at(&self) -> Option<Step> {
        Step::ALL.get(usize::from(self.step)).copied()
    }
}

/// What the host's client does.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Job {
    /// Serve programs of this machine.
    Clients(ClientsSpec),
    /// Write real files and read them back.
    Files(FilesSpec),
    /// Random self-describing blocks.
    Soak(SoakSpec),
}

/// What the host's domain tells while it runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// It serves.
    Serving {
        /// Nanoseconds of the monotonic clock.
        at_ns: u64,
    },
    /// Ten times a second.
    Progress(Progress),
    /// The job is done.
    Finished(Box<JobReport>),
    /// Something that a person should see.
    Notice {
        /// In words.
        text: String,
    },
}

/// How it goes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Nanoseconds of the monotonic clock.
    pub at_ns: u64,
    /// Of the job.
    pub phase: String,
    /// How far the phase is.
    pub progress_permille: u64,
    /// Bytes written and read so far.
    pub bytes: u64,
    /// Percentiles (50, 99, 99.9) of the latency in this tenth of a second.
    pub latency_ns: [u64; 3],
    /// The modelled temperature.
    pub millicelsius: i64,
    /// What throttling leaves.
    pub speed_permille: u64,
    /// Busy share of the device's modelled cores.
    pub device_permille: u64,
    /// Busy share of the host's thread.
    pub host_permille: u64,
    /// Where each actor is: true on the device.
    pub on_device: Vec<bool>,
    /// Migrations so far.
    pub moves: u64,
    /// Requests admitted, of 1000 offered, when the scheduler sheds load.
    pub rate_permille: u64,
}

/// What came of a job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobReport {
    /// What the client counted.
    pub tally: TallyReport,
    /// Seconds of the monotonic clock that writing took, in nanoseconds.
    pub write_ns: u64,
    /// Files that read back right, and files there are.
    pub files: [u64; 2],
    /// Input bytes.
    pub input_bytes: u64,
    /// For each migration the longest time between two completions around it, in nanoseconds.
    pub pauses_ns: Vec<u64>,
    /// The longest time between two completions, and what both processes did in it.
    pub gap: Gap,
    /// CPU time of the host's process, in nanoseconds.
    pub host_cpu_ns: u64,
    /// Input bytes that each actor worked on, on the host and on the device.
    pub actor_bytes: Vec<[u64; 2]>,
    /// Most messages that waited in the ring at once.
    pub ring_depth_max: u64,
}
