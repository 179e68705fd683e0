//! One simulation from its description to its result: what the command line calls, and what a sweep calls from many
//! threads.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use osier_cache::{CacheConfig, Eviction, policy};
use osier_device::Profile;
use osier_device::model::{Model, ModelError};
use osier_flash::page::FillPattern;

use super::driver::{DriveError, Limits, Measured, Target, Watch, drive};
use super::report::{Context, DevicePart, RunReport, TracePart};
use super::since::Since;
use crate::trace::{Counts, FaultKind, PAGE_BYTES, Paced, Remap, RemapError, Remapped, Speed, TraceReader};
use crate::workload::Workload;
use crate::{Nanos, Source};

/// What the device is asked.
pub enum Load<'a> {
    /// The requests of a description.
    Workload {
        /// Its name in the result.
        name: &'a str,
        /// The description.
        workload: &'a Workload,
    },
    /// The requests of a trace.
    Trace {
        /// Its name in the result.
        name: &'a str,
        /// Its reader, at the beginning.
        reader: &'a mut TraceReader<Box<dyn Read>>,
        /// How fast it is replayed.
        speed: Speed,
    },
}

/// How a device is filled before the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// So many thousandths of the capacity.
    pub fill_permille: u32,
    /// In which way.
    pub pattern: FillPattern,
    /// How it comes to that.
    pub method: FillMethod,
}

/// How a device is brought to its fill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillMethod {
    /// As the closed form says, in no time and with no wear.
    #[default]
    Analytic,
    /// By the writes themselves, before the first request.
    Simulated,
}

impl fmt::Display for Precondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pattern = match self.pattern {
            FillPattern::Sequential => "sequential",
            FillPattern::UniformRandom => "random",
        };
        let (whole, tenth) = (self.fill_permille / 10, self.fill_permille % 10);
        if tenth == 0 {
            write!(f, "{whole}% {pattern}")?
        } else {
            write!(f, "{whole}.{tenth}% {pattern}")?
        }
        match self.method {
            FillMethod::Analytic => Ok(()),
            FillMethod::Simulated => f.write_str(", simulated"),
        }
    }
}

/// How a simulation is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Draws what is random in the device and, if the workload is described, in it; its own seed, or 1, if not given.
    pub seed: Option<u64>,
    /// Bytes that the host can address, if fewer than the profile has.
    pub capacity_bytes: Option<u64>,
    /// Keys of the profile that were set otherwise when it was read, for the result.
    pub set: BTreeMap<String, String>,
    /// How the device is filled; it is new if not given.
    pub precondition: Option<Precondition>,
    /// When to begin to count, and when to stop.
    pub limits: Limits,
    /// How addresses are brought into the capacity.
    pub addresses: Remap,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            seed: None,
            capacity_bytes: None,
            set: BTreeMap::new(),
            precondition: None,
            limits: Limits::default(),
            addresses: Remap::Refuse,
        }
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The profile describes no device that can be, or not of this capacity.
    #[error("profile {profile}: {why}; change the profile, set the key otherwise, or ask for another capacity")]
    Device {
        /// The profile's name.
        profile: String,
        /// What cannot be.
        why: ModelError,
    },
    /// Nothing can be mapped to the capacity.
    #[error(transparent)]
    Capacity(#[from] RemapError),
    /// A described workload says its own addresses.
    #[error("addresses of a workload cannot be made compact: its jobs share none by chance; take `modulo` or `refuse`")]
    CompactWorkload,
    /// The eviction policy cannot be made.
    #[error("cache.eviction of profile {profile}: {why}")]
    Policy {
        /// The profile's name.
        profile: String,
        /// What is wrong with it.
        why: String,
    },
    /// The run had no end.
    #[error(transparent)]
    Drive(#[from] DriveError),
}

/// Simulates. The same profile, load and options give the same result to the bit, on any machine and on any thread.
///
/// # Errors
/// [`SimulateError`]; nothing of an unfinished run is given back.
pub fn simulate(
    profile: &Profile,
    load: Load<'_>,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<RunReport, SimulateError> {
    simulate_with(&|cache, seed| built_in(cache, seed), profile, load, options, watch)
}

/// Makes a cache's eviction policy, of a seed, or says why it cannot be made.
pub type MakePolicy<'a> = &'a dyn Fn(&CacheConfig, u64) -> Result<Box<dyn Eviction>, String>;

fn built_in(cache: &CacheConfig, seed: u64) -> Result<Box<dyn Eviction>, String> {
    let shape = cache.shape().map_err(|error| error.to_string())?;
    policy(&cache.eviction, shape, &cache.eviction_parameters, seed).map_err(|error| error.to_string())
}

/// The same with eviction policies that the caller makes, such as those of WebAssembly modules.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_with(
    make_policy: MakePolicy<'_>,
    profile: &Profile,
    load: Load<'_>,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<RunReport, SimulateError> {
    let name = &profile.device.name;
    let refuse = |why| SimulateError::Device { profile: name.clone(), why };
    let config = profile.model(options.capacity_bytes).map_err(refuse)?;
    let seed = options.seed_of(&load);
    let mut model = match &config.cache {
        Some(cache) => {
            let policy = make_policy(&cache.cache, seed);
            let policy = policy.map_err(|why| SimulateError::Policy { profile: name.clone(), why })?;
            Model::with_policy(&config, policy, seed).map_err(refuse)?
        }
        None => Model::new(&config, seed).map_err(refuse)?,
    };
    let calibrated = profile.calibration.iter().map(|one| format!("{}: {}", one.parameter, one.figure)).collect();
    simulate_on(&mut model, &profile.device.name, calibrated, load, options, watch)
}

/// The same on a new device.
fn simulate_on(
    model: &mut Model,
    name: &str,
    calibrated: Vec<String>,
    load: Load<'_>,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<RunReport, SimulateError> {
    let seed = options.seed_of(&load);
    let origin = match options.precondition {
        Some(fill) => precondition(model, name, fill, seed, watch)?,
        None => Nanos::ZERO,
    };
    let shape = model.config().flash.shape;
    let device = DevicePart {
        profile: name.to_owned(),
        set: options.set.clone(),
        capacity_bytes: model.capacity_bytes(),
        calibrated,
        precondition: options.precondition.map(|precondition| precondition.to_string()),
        seed,
        channels: shape.channels,
        dies_per_channel: shape.dies_per_channel(),
    };
    let mut context = Context { device, ..Context::default() };
    let measured = if origin > Nanos::ZERO {
        run_load(&mut Since { model, origin }, load, seed, options, &mut context, watch)?
    } else {
        run_load(model, load, seed, options, &mut context, watch)?
    };
    context.flash = (&model.stats().flash).into();
    context.erases = model.superblock_erases().collect();
    Ok(RunReport::new(&measured, context))
}

/// Fills a new device, and gives the time at which that ends.
fn precondition(
    model: &mut Model,
    name: &str,
    fill: Precondition,
    seed: u64,
    watch: &mut dyn Watch,
) -> Result<Nanos, SimulateError> {
    let Precondition { fill_permille, pattern, method } = fill;
    let refuse = |why| SimulateError::Device { profile: name.to_owned(), why };
    match method {
        FillMethod::Analytic => model.precondition(fill_permille, pattern, seed).map(|()| Nanos::ZERO).map_err(refuse),
        FillMethod::Simulated => {
            let mut look = |written, all| watch.preconditioning(written, all);
            let ended = model.precondition_by_writing(fill_permille, pattern, seed, &mut look).map_err(refuse)?;
            ended.continue_value().ok_or(DriveError::Stopped { submitted: 0 }.into())
        }
    }
}

fn run_load<T: Target>(
    target: &mut T,
    load: Load<'_>,
    seed: u64,
    options: &Options,
    context: &mut Context,
    watch: &mut dyn Watch,
) -> Result<Measured, SimulateError> {
    let capacity_bytes = context.device.capacity_bytes;
    context.workload.addresses = options.addresses.name().to_owned();
    match load {
        Load::Workload { name, workload } => {
            let workload = Workload { seed, ..workload.clone() };
            (context.workload.name, context.workload.seed) = (name.to_owned(), Some(seed));
            context.tenants = tenant_names(&workload);
            run_workload(target, capacity_bytes, &workload, options, watch)
        }
        Load::Trace { name, reader, speed } => {
            let paced = Paced::new(&mut *reader, speed);
            let mut source = Remapped::new(paced, options.addresses, capacity_bytes, PAGE_BYTES)?;
            let measured = drive(target, vec![&mut source], options.limits, watch)?;
            context.workload.name = name.to_owned();
            context.workload.trace = Some(trace_part(reader.format().name(), reader.counts()));
            Ok(measured)
        }
    }
}

impl Options {
    /// The seed of a run: the one that is asked for, or the workload's own, or 1.
    fn seed_of(&self, load: &Load<'_>) -> u64 {
        let own = match load {
            Load::Workload { workload, .. } => Some(workload.seed),
            Load::Trace { .. } => None,
        };
        self.seed.or(own).unwrap_or(1)
    }
}

fn tenant_names(workload: &Workload) -> BTreeMap<u16, String> {
    let named = workload.jobs.iter().enumerate().map(|(index, job)| (workload.tenant(index), job.name.clone()));
    named.collect()
}

/// Each job has a lane of its own, so that a closed loop waits for its own requests alone.
fn run_workload<T: Target>(
    target: &mut T,
    capacity_bytes: u64,
    workload: &Workload,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Measured, SimulateError> {
    if options.addresses == Remap::Compact {
        return Err(SimulateError::CompactWorkload);
    }
    let remap = |job| Remapped::new(job, options.addresses, capacity_bytes, PAGE_BYTES);
    let mut jobs = workload.jobs().into_iter().map(remap).collect::<Result<Vec<_>, _>>()?;
    let sources = jobs.iter_mut().map(|job| job as &mut dyn Source).collect();
    Ok(drive(target, sources, options.limits, watch)?)
}

fn trace_part(format: &str, counts: &Counts) -> TracePart {
    let bad = FaultKind::ALL.into_iter().zip(counts.faults).filter(|(_, count)| *count > 0);
    TracePart {
        format: format.to_owned(),
        lines: counts.lines,
        unsorted: counts.unsorted,
        bad: bad.map(|(kind, count)| (kind.name().to_owned(), count)).collect(),
    }
}
