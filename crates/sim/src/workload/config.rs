//! The description of a workload, from TOML.

use std::fmt;

use osier_device::profile::{line_at, line_of_key, table_at};
use serde::Deserialize;

use super::Job;
use crate::Op;

/// Names and texts of the built-in workloads.
const BUILT_IN: [(&str, &str); 6] = [
    ("zipf", include_str!("../../workloads/zipf.toml")),
    ("cylon-seq", include_str!("../../workloads/cylon-seq.toml")),
    ("cylon-rand", include_str!("../../workloads/cylon-rand.toml")),
    ("cylon-stride-512", include_str!("../../workloads/cylon-stride-512.toml")),
    ("cylon-stride-1024", include_str!("../../workloads/cylon-stride-1024.toml")),
    ("cylon-stride-4096", include_str!("../../workloads/cylon-stride-4096.toml")),
];

/// Most jobs of a workload.
const JOBS_MAX: usize = 1024;
/// Most phases of a job.
const PHASES_MAX: usize = 1024;
/// Most sizes of a phase.
const BLOCKS_MAX: usize = 64;
/// Most places that a pattern chooses from.
pub const SLOTS_MAX: u64 = 1 << 62;
/// Most of them for `zipf`: beyond, a number of 53 bits does not reach them all.
pub const ZIPF_SLOTS_MAX: u64 = 1 << 40;
/// Largest request.
const BLOCK_BYTES_MAX: u64 = 1 << 30;
/// Most requests under way of a closed loop.
const DEPTH_MAX: u64 = 65_536;
/// Longest time that a value can say: 18 years of the 584 that are counted.
const NS_MAX: u64 = 1 << 59;
/// Highest rate: one a nanosecond, or a terabyte a second.
const REQUESTS_PER_SECOND_MAX: u64 = 1_000_000_000;
const BYTES_PER_SECOND_MAX: u64 = 1_000_000_000_000;
const PERMILLE: u64 = 1000;

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// One line for people.
    #[serde(default)]
    pub description: String,
    /// Draws everything that is random.
    pub seed: u64,
    /// `[[job]]`: what runs at the same time.
    #[serde(rename = "job")]
    pub jobs: Vec<JobDescription>,
}

/// `[[job]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobDescription {
    /// Name for reports.
    pub name: String,
    /// Its tenant; its place in the list, from 0, unless it is given.
    pub tenant: Option<u16>,
    /// `[[job.phase]]`: what it does, one after the other.
    #[serde(rename = "phase")]
    pub phases: Vec<Phase>,
}

/// `[[job.phase]]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Name for reports.
    #[serde(default)]
    pub name: String,
    /// How many requests there are; this or `duration_ns`.
    pub requests: Option<u64>,
    /// How long it lasts.
    pub duration_ns: Option<u64>,
    /// Where requests go.
    pub pattern: Pattern,
    /// What they do.
    pub mix: Mix,
    /// Where the range begins.
    #[serde(default)]
    pub offset_bytes: u64,
    /// How long the range is that addresses are drawn from.
    pub range_bytes: u64,
    /// The size of a request; this or `blocks`.
    pub block_bytes: Option<u32>,
    /// Several sizes.
    pub blocks: Option<Vec<Block>>,
    /// Addresses are multiples of this, from the range's beginning; the smallest size unless it is given.
    pub align_bytes: Option<u32>,
    /// When requests come.
    pub arrivals: Arrivals,
}

/// One of several sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// The size.
    pub bytes: u32,
    /// How often it comes, beside the weights of the others.
    pub weight: u32,
}

/// Where requests go. A *slot* is an aligned place at which the largest request still fits into the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Pattern {
    /// Each where the last one ended; at the end of the range from its beginning.
    Sequential,
    /// Each so far behind the beginning of the last one; at the end of the range from its beginning.
    Strided {
        /// How far.
        stride_bytes: u64,
    },
    /// Every slot is as likely as every other.
    Uniform,
    /// The slot of rank `k` has a weight of `k^-theta`.
    Zipf {
        /// The exponent, in thousandths. YCSB has 990.
        theta_permille: u32,
        /// Whether ranks are scattered over the range, or the first slot is the most likely one and so on.
        #[serde(default = "yes")]
        scatter: bool,
    },
    /// The normal distribution, cut off at the ends of the range.
    Normal {
        /// Its mean, in thousandths of the range.
        mean_permille: u32,
        /// Its standard deviation, in thousandths of the range.
        deviation_permille: u32,
    },
    /// The self-similar distribution (Gray et al., SIGMOD 1994), which fio calls `pareto`: of any part of the range,
    /// its first `h` has `1 - h` of the requests to it.
    Pareto {
        /// `h`, in thousandths: 200 is the rule of 80 to 20.
        skew_permille: u32,
    },
    /// Uniform within a part of the range, and within the rest.
    Hotspot {
        /// Requests to the part, in thousandths.
        access_permille: u32,
        /// The part, in thousandths of the range, from its beginning.
        space_permille: u32,
    },
    /// Pointer chasing: round and round through every slot, in a random order.
    Chase,
}

fn yes() -> bool {
    true
}

/// What requests do, in thousandths of them, which add up to 1000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mix {
    /// Reads of blocks.
    pub read_permille: u32,
    /// Writes of blocks.
    pub write_permille: u32,
    /// Trims.
    pub trim_permille: u32,
    /// Flushes, which have no address.
    pub flush_permille: u32,
    /// Loads from memory.
    pub load_permille: u32,
    /// Stores to memory.
    pub store_permille: u32,
}

impl Mix {
    /// The share of each operation, in the order of [`Op::ALL`].
    #[must_use]
    pub fn permille(&self) -> [(Op, u32); Op::ALL.len()] {
        let shares = [
            self.read_permille,
            self.write_permille,
            self.trim_permille,
            self.flush_permille,
            self.load_permille,
            self.store_permille,
        ];
        std::array::from_fn(|index| (Op::ALL[index], shares[index]))
    }
}

/// When requests come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Arrivals {
    /// A closed loop: each when another one is done.
    Closed {
        /// Requests under way.
        depth: u32,
        /// From a completion to the next arrival.
        #[serde(default)]
        think_ns: u64,
    },
    /// An open loop, at equal distances. After `n` seconds exactly `n` times the rate have come.
    Fixed {
        /// The rate.
        requests_per_second: u64,
    },
    /// An open loop, each so far behind the last one as that one is large.
    Bandwidth {
        /// The rate.
        bytes_per_second: u64,
    },
    /// An open loop, as a Poisson process.
    Poisson {
        /// The mean rate.
        requests_per_second: u64,
    },
}

/// Why a workload was refused. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// The text is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("workload {workload}, line {line}: {message}; correct the file, docs/workloads.md lists every key")]
    Syntax {
        /// Name given to [`Workload::parse`].
        workload: String,
        /// Line of the key, or of the table that lacks it.
        line: usize,
        /// What is wrong with which key.
        message: String,
    },
    /// A value is of the right type but cannot be.
    #[error("workload {workload}, line {line}: {key} {reason}; correct the value")]
    Impossible {
        /// Name given to [`Workload::parse`].
        workload: String,
        /// Line of the key.
        line: usize,
        /// The key with its tables, for example `job.1.phase.2.range_bytes`.
        key: String,
        /// Why it is not possible.
        reason: String,
    },
    /// A key that was to be set otherwise cannot be.
    #[error("workload {workload}: {key} cannot be set so: {reason}; docs/workloads.md lists every key")]
    Override {
        /// Name given to [`Workload::parse_with`].
        workload: String,
        /// The key.
        key: String,
        /// Why it is not possible.
        reason: String,
    },
    /// No built-in workload has that name.
    #[error("no built-in workload is called {name:?}; choose one of {known}, or give the path of a file")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// What there is.
        known: String,
    },
}

impl Workload {
    /// Parses and checks a workload. `name` stands for it in errors.
    ///
    /// # Errors
    /// [`WorkloadError::Syntax`] for text that is not TOML, a missing or unknown key or a wrong type;
    /// [`WorkloadError::Impossible`] for a value that cannot be.
    pub fn parse(name: &str, text: &str) -> Result<Workload, WorkloadError> {
        let workload: Workload = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let message = match table_at(text, offset) {
                Some(table) => format!("in [{table}], {}", error.message()),
                None => error.message().to_owned(),
            };
            WorkloadError::Syntax { workload: name.to_owned(), line: line_at(text, offset), message }
        })?;
        workload.check().map_err(|fault| WorkloadError::Impossible {
            workload: name.to_owned(),
            line: line_of_key(text, &fault.key),
            key: fault.key,
            reason: fault.reason,
        })?;
        Ok(workload)
    }

    /// A built-in workload.
    ///
    /// # Errors
    /// [`WorkloadError::UnknownName`] for any other name.
    pub fn built_in(name: &str) -> Result<Workload, WorkloadError> {
        let text = Workload::built_in_text(name).ok_or_else(|| {
            let known: Vec<&str> = Workload::built_in_names().collect();
            WorkloadError::UnknownName { name: name.to_owned(), known: known.join(", ") }
        })?;
        Workload::parse(name, text)
    }

    /// The TOML text of a built-in workload, with its source.
    #[must_use]
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }

    /// Names of the built-in workloads.
    pub fn built_in_names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// The jobs, each from its beginning.
    #[must_use]
    pub fn jobs(&self) -> Vec<Job> {
        (0..self.jobs.len()).map(|index| Job::new(self, index)).collect()
    }

    /// The tenant of a job, by its place in the list.
    #[must_use]
    pub fn tenant(&self, job: usize) -> u16 {
        // There are fewer jobs than tenants.
        self.jobs[job].tenant.unwrap_or(job as u16)
    }

    pub(super) fn check(&self) -> Result<(), Fault> {
        let count = self.jobs.len() as u64;
        within("job", count, 1, JOBS_MAX as u64, "it is how many jobs there are")?;
        for (index, job) in self.jobs.iter().enumerate() {
            let key = format!("job.{}", index + 1);
            let tenant = self.tenant(index);
            let taken = (0..index).any(|other| self.tenant(other) == tenant);
            let reason = format_args!("is {tenant}, which another job is; each has a tenant of its own");
            require(!taken, &format!("{key}.tenant"), reason)?;
            let phases = job.phases.len() as u64;
            within(&format!("{key}.phase"), phases, 1, PHASES_MAX as u64, "it is how many phases there are")?;
            for (index, phase) in job.phases.iter().enumerate() {
                let key = format!("{key}.phase.{}.", index + 1);
                phase.check().map_err(|fault| Fault { key: key + &fault.key, ..fault })?;
            }
        }
        Ok(())
    }
}

impl Phase {
    /// Sizes with their weights.
    #[must_use]
    pub fn sizes(&self) -> Vec<Block> {
        let one = self.block_bytes.map(|bytes| vec![Block { bytes, weight: 1 }]);
        one.or_else(|| self.blocks.clone()).unwrap_or_default()
    }

    /// The alignment of addresses, in bytes.
    #[must_use]
    pub fn align(&self) -> u64 {
        let smallest = || self.sizes().iter().map(|block| block.bytes).min().unwrap_or(1);
        self.align_bytes.unwrap_or_else(smallest).into()
    }

    /// Slots: aligned places at which the largest request still fits.
    #[must_use]
    pub fn slots(&self) -> u64 {
        let largest = self.sizes().iter().map(|block| block.bytes).max().unwrap_or(1);
        (self.range_bytes - u64::from(largest)) / self.align() + 1
    }

    fn check(&self) -> Result<(), Fault> {
        self.check_length()?;
        self.check_sizes()?;
        self.check_range()?;
        let sum: u64 = self.mix.permille().iter().map(|(_, share)| u64::from(*share)).sum();
        require(sum == PERMILLE, "mix", format_args!("adds up to {sum} thousandths, must be 1000"))?;
        self.check_pattern()?;
        self.check_arrivals()
    }

    fn check_length(&self) -> Result<(), Fault> {
        match (self.requests, self.duration_ns) {
            (Some(requests), None) => within("requests", requests, 1, NS_MAX, "it is how many there are"),
            (None, Some(duration)) => within("duration_ns", duration, 1, NS_MAX, "it is how long the phase lasts"),
            _ => require(false, "requests", "must be given, or `duration_ns`, and not both: a phase has one length"),
        }
    }

    fn check_sizes(&self) -> Result<(), Fault> {
        let one = self.block_bytes.is_some() != self.blocks.is_some();
        require(one, "block_bytes", "must be given, or `blocks`, and not both")?;
        if let Some(bytes) = self.block_bytes {
            within("block_bytes", bytes.into(), 1, BLOCK_BYTES_MAX, "it is the size of a request")?;
        }
        let blocks = self.blocks.as_deref().unwrap_or_default();
        if self.blocks.is_some() {
            within("blocks", blocks.len() as u64, 1, BLOCKS_MAX as u64, "it is how many sizes there are")?;
        }
        for (index, block) in blocks.iter().enumerate() {
            let key = |name: &str| format!("blocks.{}.{name}", index + 1);
            within(&key("bytes"), block.bytes.into(), 1, BLOCK_BYTES_MAX, "it is the size of a request")?;
            within(&key("weight"), block.weight.into(), 1, 1_000_000, "a size that never comes is left out")?;
        }
        match self.align_bytes {
            Some(align) => within("align_bytes", align.into(), 1, BLOCK_BYTES_MAX, "addresses are multiples of it"),
            None => Ok(()),
        }
    }

    fn check_range(&self) -> Result<(), Fault> {
        let largest = self.sizes().iter().map(|block| block.bytes).max().unwrap_or(1);
        within("range_bytes", self.range_bytes, largest.into(), SLOTS_MAX, "the largest request must fit into it")?;
        within("offset_bytes", self.offset_bytes, 0, SLOTS_MAX, "addresses have 64 bits")
    }

    fn check_pattern(&self) -> Result<(), Fault> {
        let share = |name: &str, value: u32, low: u64, high: u64, why: &str| {
            within(&format!("pattern.{name}"), value.into(), low, high, why)
        };
        match self.pattern {
            Pattern::Sequential | Pattern::Uniform | Pattern::Chase => Ok(()),
            Pattern::Strided { stride_bytes } => {
                let key = "pattern.strided.stride_bytes";
                within(key, stride_bytes, 1, SLOTS_MAX, "without one every request is for the same place")?;
                let align = self.align();
                let reason = format_args!("is {stride_bytes}, must be a multiple of the alignment, which is {align}");
                require(stride_bytes.is_multiple_of(align), key, reason)
            }
            Pattern::Zipf { theta_permille, .. } => {
                share("zipf.theta_permille", theta_permille, 1, 10_000, "0 is `uniform`")?;
                let slots = self.slots();
                let reason = format_args!("gives {slots} slots, of which `zipf` can choose from {ZIPF_SLOTS_MAX}");
                require(slots <= ZIPF_SLOTS_MAX, "range_bytes", reason)
            }
            Pattern::Normal { mean_permille, deviation_permille } => {
                share("normal.mean_permille", mean_permille, 0, PERMILLE, "it lies in the range")?;
                share("normal.deviation_permille", deviation_permille, 1, PERMILLE, "a wider one is `uniform`")
            }
            Pattern::Pareto { skew_permille } => {
                share("pareto.skew_permille", skew_permille, 1, 500, "500 is uniform, above it the skew turns round")
            }
            Pattern::Hotspot { access_permille, space_permille } => {
                share("hotspot.access_permille", access_permille, 0, PERMILLE, "it is a share")?;
                share("hotspot.space_permille", space_permille, 1, PERMILLE - 1, "there is a part, and a rest")?;
                let slots = self.slots();
                let reason = format_args!("gives {slots} slot, and a hot spot needs two");
                require(slots >= 2, "range_bytes", reason)
            }
        }
    }

    fn check_arrivals(&self) -> Result<(), Fault> {
        let why = "without one nothing comes, and time is counted in nanoseconds";
        match self.arrivals {
            Arrivals::Closed { depth, think_ns } => {
                within("arrivals.closed.depth", depth.into(), 1, DEPTH_MAX, "it is how many are under way")?;
                within("arrivals.closed.think_ns", think_ns, 0, NS_MAX, "it is a time")
            }
            Arrivals::Fixed { requests_per_second: rate } => {
                within("arrivals.fixed.requests_per_second", rate, 1, REQUESTS_PER_SECOND_MAX, why)
            }
            Arrivals::Poisson { requests_per_second: rate } => {
                within("arrivals.poisson.requests_per_second", rate, 1, REQUESTS_PER_SECOND_MAX, why)
            }
            Arrivals::Bandwidth { bytes_per_second: rate } => {
                within("arrivals.bandwidth.bytes_per_second", rate, 1, BYTES_PER_SECOND_MAX, why)?;
                // A flush has no bytes, so nothing would be between two of them.
                let flushes = self.mix.flush_permille;
                require(flushes == 0, "mix.flush_permille", "must be 0 with a bandwidth: a flush has no bytes")
            }
        }
    }
}

/// A value that cannot be.
pub(super) struct Fault {
    pub key: String,
    pub reason: String,
}

fn require(held: bool, key: &str, reason: impl fmt::Display) -> Result<(), Fault> {
    if held { Ok(()) } else { Err(Fault { key: key.to_owned(), reason: reason.to_string() }) }
}

/// Refuses a value outside `low..=high`, saying why the bound is there.
fn within(key: &str, value: u64, low: u64, high: u64, why: &str) -> Result<(), Fault> {
    require((low..=high).contains(&value), key, format_args!("is {value}, must be {low} to {high}: {why}"))
}
