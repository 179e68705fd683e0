//! One point of a sweep: the device, the workload and the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use osier_device::{Profile, ProfileError};
use osier_flash::page::FillPattern;
use osier_sim::run::{FillMethod, Limits, Load, Options, Precondition, WarmUp, simulate_with};
use osier_sim::sweep::{Fill, Point, Replay, RunOptions, Sweep, Value, digest_of, figures, is_trace};
use osier_sim::trace::{Remap, Speed, TraceReader};
use osier_sim::workload::{Workload, WorkloadError};

use crate::commands::trace::{Bytes, open_strictly};
use crate::exit::{Exit, Failure};
use crate::policies::Policies;
use crate::profiles;

/// What all points share: read once, so that a file that changes meanwhile changes nothing.
pub struct Inputs {
    profile_name: String,
    profile_text: String,
    /// By their words in the sweep.
    workloads: BTreeMap<String, Asked>,
    columns: Vec<String>,
    run: RunOptions,
    policies: Policies,
    /// The eviction policies that are modules, in the order of their words.
    modules: Vec<Vec<u8>>,
}

/// What is asked of the device.
enum Asked {
    /// The text of a description.
    Description(String),
    Trace(Trace),
}

/// A trace, which each point reads anew.
struct Trace {
    path: String,
    /// Names its bytes.
    digest: String,
    /// What its file shows when it changes.
    state: (u64, Option<SystemTime>),
}

/// What the keys of the workload begin with; all others are the profile's.
const WORKLOAD: &str = "workload.";
/// The key whose values may be paths of modules.
const EVICTION: &str = "cache.eviction";

impl Inputs {
    /// Finds profile and workloads; paths are as from the directory of the sweep.
    ///
    /// # Errors
    /// What cannot be read or is refused; an axis whose key the profile does not have, or not with that value's type.
    pub fn find(name: &str, sweep: &Sweep, directory: &Path) -> Result<Inputs> {
        let (profile, _) = profiles::find(&from(directory, &sweep.profile))?;
        let workloads = sweep.workloads.iter().map(|word| Ok((word.clone(), find_workload(directory, word)?)));
        let mut inputs = Inputs {
            profile_name: profile.name,
            profile_text: profile.text,
            workloads: workloads.collect::<Result<_>>()?,
            columns: sweep.columns.clone(),
            run: sweep.run.clone(),
            policies: Policies::default(),
            modules: Vec::new(),
        };
        inputs.check_keys(name, sweep)?;
        inputs.find_modules(sweep, directory)?;
        Ok(inputs)
    }

    fn find_modules(&mut self, sweep: &Sweep, directory: &Path) -> Result<()> {
        let axes = sweep.axes.iter().filter(|axis| axis.key == EVICTION).flat_map(|axis| &axis.values);
        let set = sweep.set.iter().filter(|(key, _)| key == EVICTION).map(|(_, value)| value);
        let words: BTreeSet<String> = axes.chain(set).map(ToString::to_string).collect();
        for word in words.iter().filter(|word| osier_cache::is_module(word)) {
            let path = from(directory, word);
            self.policies.add(word, &path)?;
            self.modules.push(std::fs::read(&path).with_context(|| format!("reading the cache policy {path}"))?);
        }
        Ok(())
    }

    /// A key that is wrong is wrong for every point; whether its values go together, each point shows.
    fn check_keys(&self, name: &str, sweep: &Sweep) -> Result<()> {
        let refused = |set: &[(String, Value)]| {
            let of_workload = |(word, asked): (&String, &Asked)| match asked {
                Asked::Description(text) => match workload(word, text, set) {
                    Err(error @ WorkloadError::Override { .. }) => Some(error.to_string()),
                    _ => None,
                },
                Asked::Trace(_) => {
                    let (key, _) = set.iter().find(|(key, _)| key.starts_with(WORKLOAD))?;
                    Some(format!("{word} is a trace, which has no {key}"))
                }
            };
            match self.profile(set) {
                Err(error @ ProfileError::Override { .. }) => Some(error.to_string()),
                _ => self.workloads.iter().find_map(of_workload),
            }
        };
        if let Some(error) = refused(&sweep.set) {
            return Err(Failure::new(Exit::BadInput, format!("sweep {name}, [set]: {error}")).into());
        }
        for axis in &sweep.axes {
            for value in &axis.values {
                if let Some(error) = refused(&[(axis.key.clone(), value.clone())]) {
                    let text = format!("sweep {name}, line {}: the axis {}: {error}", axis.line, axis.key);
                    return Err(Failure::new(Exit::BadInput, text).into());
                }
            }
        }
        // Two axes may be names of one key. Where their values happen to be the same
        // in both of these, the rows of the other points say so.
        for number in [0, sweep.points() - 1] {
            if let Some(error) = refused(&sweep.point(number).set) {
                return Err(Failure::new(Exit::BadInput, format!("sweep {name}, its axes together: {error}")).into());
            }
        }
        Ok(())
    }

    /// Everything that the results depend on beside the sweep's own text.
    pub fn texts(&self) -> impl Iterator<Item = &[u8]> {
        let workloads = self.workloads.values().map(|asked| match asked {
            Asked::Description(text) => text.as_bytes(),
            Asked::Trace(trace) => trace.digest.as_bytes(),
        });
        let modules = self.modules.iter().map(Vec::as_slice);
        std::iter::once(self.profile_text.as_bytes()).chain(workloads).chain(modules)
    }

    fn profile(&self, set: &[(String, Value)]) -> Result<Profile, ProfileError> {
        let of_profile = set.iter().filter(|(key, _)| !key.starts_with(WORKLOAD));
        let set: Vec<(String, toml::Value)> = of_profile.map(|(key, value)| (key.clone(), value.to_toml())).collect();
        Profile::parse_with_all(&self.profile_name, &self.profile_text, &set)
    }

    /// Runs a point, and gives its columns.
    ///
    /// # Errors
    /// Why it cannot be run, in one line.
    pub fn figures(&self, point: &Point) -> Result<Vec<Option<u64>>, String> {
        let profile = self.profile(&point.set).map_err(one_line)?;
        let name = point.workload.as_str();
        let make_policy = |cache: &_, seed| self.policies.make(cache, seed);
        let simulate = |load: Load<'_>| {
            simulate_with(&make_policy, &profile, load, &self.options(point), &mut ()).map_err(one_line)
        };
        let report = match &self.workloads[name] {
            Asked::Description(text) => {
                let workload = workload(name, text, &point.set).map_err(one_line)?;
                simulate(Load::Workload { name, workload: &workload })
            }
            Asked::Trace(trace) => {
                let mut reader = trace.open().map_err(|error| one_line(format_args!("{error:#}")))?;
                let speed = self.run.traces.map_or(Speed::Scaled { numerator: 1, denominator: 1 }, Replay::speed);
                simulate(Load::Trace { name, reader: &mut reader, speed })
            }
        }?;
        Ok(figures(&self.columns, &report))
    }

    fn options(&self, point: &Point) -> Options {
        let pattern = |fill| match fill {
            Fill::Sequential => FillPattern::Sequential,
            Fill::Random => FillPattern::UniformRandom,
        };
        let fill = self.run.fill_permille.zip(self.run.fill_pattern);
        Options {
            seed: Some(point.seed),
            capacity_bytes: self.run.capacity_bytes,
            set: point.set.iter().map(|(key, value)| (key.clone(), value.to_string())).collect(),
            precondition: fill.map(|(fill_permille, fill)| Precondition {
                fill_permille,
                pattern: pattern(fill),
                method: FillMethod::Analytic,
            }),
            limits: Limits {
                warm_up: self.run.warm_up_requests.map_or(WarmUp::None, WarmUp::Requests),
                requests_max: self.run.requests_max,
                duration_ns: None,
            },
            addresses: self.run.addresses.unwrap_or(Remap::Refuse),
        }
    }
}

fn one_line(error: impl std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A name as it is, a path as from the directory of the sweep.
fn from(directory: &Path, word: &str) -> String {
    if is_path(word) { directory.join(word).display().to_string() } else { word.to_owned() }
}

fn is_path(word: &str) -> bool {
    word.contains('/') || word.ends_with(".toml") || word.ends_with(".wasm")
}

fn workload(word: &str, text: &str, set: &[(String, Value)]) -> Result<Workload, WorkloadError> {
    let of_workload = set.iter().filter_map(|(key, value)| Some((key.strip_prefix(WORKLOAD)?, value)));
    let set: Vec<(String, toml::Value)> = of_workload.map(|(key, value)| (key.to_owned(), value.to_toml())).collect();
    Workload::parse_with(word, text, &set)
}

/// A workload that is sound, or a trace whose beginning is.
fn find_workload(directory: &Path, word: &str) -> Result<Asked> {
    let refuse = |text: String| Failure::new(Exit::BadInput, text);
    if is_trace(word) {
        return Trace::find(from(directory, word)).map(Asked::Trace);
    }
    if !is_path(word) {
        Workload::built_in(word).map_err(|error| refuse(error.to_string()))?;
        return Ok(Asked::Description(Workload::built_in_text(word).unwrap_or_default().to_owned()));
    }
    let path = from(directory, word);
    let text = std::fs::read_to_string(&path)
        .map_err(|cause| refuse(format!("reading the workload {path} failed: {cause}; name another file")))?;
    Workload::parse(&path, &text).map_err(|error| refuse(error.to_string()))?;
    Ok(Asked::Description(text))
}

impl Trace {
    fn find(path: String) -> Result<Trace> {
        let failed = |cause| {
            Failure::new(Exit::BadInput, format!("reading the trace {path} failed: {cause}; name another file"))
        };
        let file = File::open(&path).map_err(failed)?;
        let state = state(&file).map_err(failed)?;
        let digest = digest_of(file).map_err(failed)?;
        let trace = Trace { path, digest, state };
        trace.open()?;
        Ok(trace)
    }

    /// A line that is left out of one point and not of another would be seen nowhere, so there must be no bad one.
    fn open(&self) -> Result<TraceReader<Bytes>> {
        let opened = open_strictly(&self.path)?;
        let is_same = File::open(&self.path).and_then(|file| state(&file)).is_ok_and(|state| state == self.state);
        anyhow::ensure!(is_same, "the trace {} has changed since the sweep began; begin anew", self.path);
        Ok(opened.reader)
    }
}

fn state(file: &File) -> std::io::Result<(u64, Option<SystemTime>)> {
    file.metadata().map(|metadata| (metadata.len(), metadata.modified().ok()))
}
