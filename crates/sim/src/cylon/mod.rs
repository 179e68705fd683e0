//! Eviction and prefetching in a CXL SSD's DRAM cache: Cylon (FAST 2026), Table 3 and Figure 10.
//!
//! Five patterns of pointer chasing by one thread (the built-in workloads `cylon-*`) go through a fully associative
//! cache of 4 KiB pages, each case by itself: every pattern under FIFO, LIFO, CLOCK and S3-FIFO without prefetching,
//! and under S3-FIFO with next-N prefetching. A hit ratio counts accesses, of the steady state: the first phase of a
//! workload fills the cache and is not counted.
//!
//! One thread that waits for each of its loads has one miss under way, and the pages that follow a missed one lie on
//! other dies: what a miss prefetches arrives with it, and no prefetch is late. So the replay needs no clock, and the
//! time of a run is that of its hits and misses ([`Cell::mean_access_ns`]).
//!
//! What was assumed and what was fitted to the published table, the report says: [`ASSUMED`], [`CALIBRATED`].

mod present;
#[cfg(test)]
mod tests;

use osier_cache::{
    Cache, CacheConfig, ConfigError, Eviction, Op, ParameterValues, SetIndex, Stats, Visitor, WriteMode, with_policy,
};

use crate::trace::TraceError;
use crate::workload::{Job, Workload, WorkloadError};
use crate::{Nanos, Source};

pub use present::{ASSUMED, CALIBRATED, TOLERANCE_POINTS};

/// Bytes of a page (section 5.1; `secsz` times `secs_per_pg` of the artifact's run-cxlssd.sh).
pub const PAGE_BYTES: u64 = 4096;
/// Frames of the cache: 4915 MiB, a twentieth of 98,304 MiB (`bufsz`, in run-cxlssd.sh).
pub const FRAMES: u32 = 4915 * 256;
/// A load that hits (section 5.2: 0.16 µs with every access a hit).
pub const HIT_NS: u64 = 160;
/// A read of flash (section 5.1).
pub const FLASH_READ_NS: u64 = 40_000;
/// The largest scale. The frames of the cache, and the pages and accesses of every workload, are multiples of it;
/// beyond, too few accesses of Rand would be left to tell points apart.
pub const SCALE_MAX: u32 = 64;

/// The policies of Table 3, in its order.
pub const POLICIES: [&str; 4] = ["fifo", "lifo", "clock", "s3-fifo"];
/// The policy of the prefetch study (section 5.6).
pub const PREFETCH_POLICY: &str = "s3-fifo";
/// Pages that follow a missed one, in the prefetch study.
pub const DEGREES: [u64; 5] = [0, 1, 2, 4, 8];

/// A row of Table 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// As the paper calls it.
    pub label: &'static str,
    /// The built-in workload.
    pub workload: &'static str,
    /// The published hit ratios in percent, in the order of [`POLICIES`].
    pub published_percent: [u32; 4],
}

/// Table 3.
pub const PATTERNS: [Pattern; 5] = [
    Pattern { label: "Seq", workload: "cylon-seq", published_percent: [97, 99, 97, 99] },
    Pattern { label: "Rand", workload: "cylon-rand", published_percent: [24, 21, 24, 24] },
    Pattern { label: "Stride-512", workload: "cylon-stride-512", published_percent: [88, 95, 88, 90] },
    Pattern { label: "Stride-1024", workload: "cylon-stride-1024", published_percent: [75, 90, 75, 80] },
    Pattern { label: "Stride-4096", workload: "cylon-stride-4096", published_percent: [0, 60, 0, 18] },
];

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CylonParams {
    /// Cache, working sets and accesses are divided by this power of two, at most [`SCALE_MAX`]; all ratios stay.
    pub scale: u32,
    /// Draws the order of the random pattern.
    pub seed: u64,
}

/// One replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Index in [`PATTERNS`].
    pub pattern: usize,
    /// The eviction policy.
    pub eviction: &'static str,
    /// Pages prefetched after a miss.
    pub prefetch_degree: u64,
}

impl Case {
    /// For progress: what runs.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}, {}, next-{}", PATTERNS[self.pattern].label, self.eviction, self.prefetch_degree)
    }

    /// What Table 3 has for it.
    #[must_use]
    pub fn published_percent(&self) -> Option<u32> {
        let policy = POLICIES.iter().position(|policy| *policy == self.eviction)?;
        (self.prefetch_degree == 0).then(|| PATTERNS[self.pattern].published_percent[policy])
    }
}

/// Every case, in the order of the tables. Those without prefetching are of both studies.
#[must_use]
pub fn cases() -> Vec<Case> {
    let of_pattern = |pattern: usize| {
        let evictions = POLICIES.map(|eviction| Case { pattern, eviction, prefetch_degree: 0 });
        let degrees = DEGREES.into_iter().filter(|degree| *degree > 0);
        let prefetches =
            degrees.map(move |prefetch_degree| Case { pattern, eviction: PREFETCH_POLICY, prefetch_degree });
        evictions.into_iter().chain(prefetches)
    };
    (0..PATTERNS.len()).flat_map(of_pattern).collect()
}

/// What came out of one case, the first phase left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// What ran.
    pub case: Case,
    /// Loads.
    pub accesses: u64,
    /// Loads whose page was in the cache.
    pub hits: u64,
    /// Prefetches begun.
    pub prefetched: u64,
    /// Prefetched pages that were then asked for.
    pub prefetched_useful: u64,
    /// Misses of pages that a prefetch had pushed out.
    pub polluting: u64,
}

impl Cell {
    /// Misses.
    #[must_use]
    pub fn misses(&self) -> u64 {
        self.accesses - self.hits
    }

    /// Hits of all accesses, in hundredths of a percent, rounded down.
    #[must_use]
    pub fn hit_permyriad(&self) -> u64 {
        self.hits * 10_000 / self.accesses.max(1)
    }

    /// Useful of all prefetches, in thousandths; nothing without prefetches.
    #[must_use]
    pub fn accuracy_permille(&self) -> Option<u64> {
        (self.prefetched > 0).then(|| self.prefetched_useful * 1000 / self.prefetched)
    }

    /// The mean of all accesses: a miss costs a read of flash beside the hit that follows it.
    #[must_use]
    pub fn mean_access_ns(&self) -> u64 {
        (self.accesses * HIT_NS + self.misses() * FLASH_READ_NS) / self.accesses.max(1)
    }
}

/// The whole experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CylonReport {
    params: CylonParams,
    cells: Vec<Cell>,
}

/// Why the experiment was not run.
#[derive(Debug, thiserror::Error)]
pub enum CylonError {
    /// A scale at which ratios would not stay.
    #[error("the experiment cannot run at scale {0}: it must be a power of two, {SCALE_MAX} at most")]
    Scale(u32),
    /// A built-in workload that is not right.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A workload that ends with an error.
    #[error(transparent)]
    Requests(#[from] TraceError),
    /// A cache that cannot be.
    #[error(transparent)]
    Cache(#[from] ConfigError),
}

impl CylonParams {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`CylonError::Scale`].
    pub fn check(&self) -> Result<(), CylonError> {
        let is_right = self.scale.is_power_of_two() && self.scale <= SCALE_MAX;
        if is_right { Ok(()) } else { Err(CylonError::Scale(self.scale)) }
    }

    fn workload(&self, pattern: usize) -> Result<Workload, CylonError> {
        let mut workload = Workload::built_in(PATTERNS[pattern].workload)?;
        workload.seed = self.seed;
        for phase in workload.jobs.iter_mut().flat_map(|job| &mut job.phases) {
            phase.range_bytes /= u64::from(self.scale);
            phase.requests = phase.requests.map(|requests| requests / u64::from(self.scale));
        }
        Ok(workload)
    }

    fn cache(&self, case: Case) -> CacheConfig {
        let frames = FRAMES / self.scale;
        let is_prefetching = case.prefetch_degree > 0;
        let degree = is_prefetching.then(|| ("degree".to_owned(), case.prefetch_degree));
        CacheConfig {
            frames,
            ways: frames,
            set_index: SetIndex::Modulo,
            write: WriteMode::Back,
            reserve_frames: 0,
            pinned_pages_max: 0,
            eviction: case.eviction.to_owned(),
            eviction_parameters: ParameterValues::new(),
            prefetch: if is_prefetching { "next-n" } else { osier_cache::NO_PREFETCH }.to_owned(),
            prefetch_parameters: degree.into_iter().collect(),
            write_log: None,
        }
    }
}

/// Replays one case.
///
/// # Errors
/// A scale that cannot be; nothing else, unless the program is wrong.
pub fn run_case(params: &CylonParams, case: Case) -> Result<Cell, CylonError> {
    params.check()?;
    let workload = params.workload(case.pattern)?;
    let warm_up = workload.jobs[0].phases[0].requests.unwrap_or(0);
    let config = params.cache(case);
    let replay = Replay { config: &config, job: workload.jobs().remove(0), warm_up };
    let shape = config.shape()?;
    let counted = with_policy(case.eviction, shape, &config.eviction_parameters, params.seed, replay);
    let (before, after) = counted.map_err(ConfigError::from)??;
    Ok(Cell {
        case,
        accesses: after.requests() - before.requests(),
        hits: after.hits - before.hits,
        prefetched: after.prefetch_issued - before.prefetch_issued,
        prefetched_useful: after.prefetch_useful - before.prefetch_useful,
        polluting: after.prefetch_pollution - before.prefetch_pollution,
    })
}

struct Replay<'a> {
    config: &'a CacheConfig,
    job: Job,
    warm_up: u64,
}

impl Visitor for Replay<'_> {
    /// The counts after the first phase and at the end.
    type Output = Result<(Stats, Stats), CylonError>;

    fn visit<P: Eviction + 'static>(mut self, policy: P) -> Self::Output {
        let mut cache = Cache::new(self.config, policy)?;
        let mut replay = |requests: u64| -> Result<Stats, CylonError> {
            for _ in 0..requests {
                let Some(request) = self.job.next(Nanos::ZERO) else { break };
                cache.at_once(request?.address / PAGE_BYTES, Op::READ);
            }
            Ok(cache.stats())
        };
        Ok((replay(self.warm_up)?, replay(u64::MAX)?))
    }
}
