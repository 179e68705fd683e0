//! Samsung's CMM-H, calibrated: what Cylon's authors measured on it, beside the profile `cmm-h`.
//!
//! Two measurements are carried in `experiments/data/cmm-h.csv`: the bandwidth of loads over working sets of 2 to 128
//! GB (Intel MLC; the cache has 48), and the latencies of a pointer chase by four threads over 16 GB (MIO). The model
//! runs both at a fraction of the capacity: cache and working sets shrink alike, threads and queues do not.
//!
//! The profile was fitted to some of these points; [`CALIBRATED`] says to which. Of the others most were in view when
//! the model was chosen, and three are predictions: [`Role`].

mod present;
#[cfg(test)]
mod tests;

use std::ops::ControlFlow;

use osier_device::model::Met;
use osier_device::{Profile, ProfileError};
use osier_flash::page::FillPattern;

use crate::rng::Rng;
use crate::run::{
    FillMethod, Histogram, Io, Limits, Load, Options, Precondition, RunReport, SimulateError, WarmUp, Watch, simulate,
};
use crate::workload::{Workload, WorkloadError};

pub use present::{AIM_PERMILLE, ASSUMED, CALIBRATED, Role, Row, UNEXPLAINED};
pub(crate) use present::{JsonRow, decimal, modelled_series};

/// The profile.
pub const PROFILE: &str = "cmm-h";
/// The measured points.
const MEASURED: &str = include_str!("../../../../experiments/data/cmm-h.csv");
const BANDWIDTH_SERIES: &str = "cmm-h read bandwidth";
const LATENCY_SERIES: &str = "cmm-h pointer-chase latency 4 threads working set 0.33x cache";

/// Largest scale: with less capacity than that, the flash has too few blocks.
pub const SCALE_MAX: u32 = 1024;
/// The scale of the pointer chase, if not a smaller one is asked for: it costs no more than at a larger one, and the
/// pages that miss do not crowd the cache.
const CHASE_SCALE: u32 = 64;
/// Eviction policies that are shown beside the profile's, where the working set is larger than the part of the cache
/// that holds it: Cylon, section 2, has LRU; random replacement keeps some of a loop too.
pub const ALTERNATIVES: [&str; 2] = ["lru", "random"];
/// The alternatives are run from this share of the cache on, in hundredths.
const ALTERNATIVES_FROM: u64 = 67;

/// Threads of the bandwidth test: one a core of the Xeon 6710E of section 5.1.
const BANDWIDTH_THREADS: u64 = 64;
/// Lines that each of them has under way, fitted: see [`CALIBRATED`].
const LINES_PER_THREAD: u32 = 4;
/// Before the measurement each thread loads a line of every page in turn, for so long a page: four rounds where each of
/// them misses, more where they hit.
const WARM_UP_NS_PER_PAGE: u64 = 20_000;
/// What it waits between two of them, so that the rounds that hit are not many.
const WARM_UP_THINK_NS: u64 = 20_000;
/// Fewest loads that are measured: where the working set is small, several rounds.
const BANDWIDTH_LOADS_MIN: u64 = 1 << 20;
/// Threads of the pointer chase (section 5.3, Figure 5).
const CHASE_THREADS: u64 = 4;
/// Loads of the pointer chase.
const CHASE_LOADS: u64 = 400_000;
/// Thousandths of them that go to the cached part; stated in [`ASSUMED`].
const CHASE_CACHED_PERMILLE: u32 = 975;
/// The working set of the chase in thousandths of the capacity: a third of the cache, which has 47.
const CHASE_SPACE_PERMILLE: u64 = 16;
/// Of the loads of the chase that hit, one in so many finds its line on the way: the host fetches lines in pairs.
const PAIRED_ONE_IN: u64 = 2;
pub(crate) const LINE_BYTES: u64 = 64;
pub(crate) const PAGE_BYTES: u64 = 4096;
const LINES_PER_PAGE: u64 = PAGE_BYTES / LINE_BYTES;

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CmmHParams {
    /// Capacity, cache and working sets are divided by this power of two, at most [`SCALE_MAX`]; those of the pointer
    /// chase by no more than 64.
    pub scale: u32,
    /// Draws what is random.
    pub seed: u64,
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum CmmHError {
    /// A scale that cannot be.
    #[error("--scale {0} is no power of two from 1 to {SCALE_MAX}")]
    Scale(u32),
    /// The profile cannot be.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The workload cannot be.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The profile has no cache.
    #[error("a chase across the cache needs a profile with a [cache]")]
    NoCache,
    /// The simulation failed.
    #[error(transparent)]
    Simulate(#[from] SimulateError),
}

impl CmmHParams {
    /// Refuses what cannot be.
    ///
    /// # Errors
    /// Says what can.
    pub fn check(&self) -> Result<(), CmmHError> {
        if self.scale.is_power_of_two() && self.scale <= SCALE_MAX {
            return Ok(());
        }
        Err(CmmHError::Scale(self.scale))
    }
}

/// A measured point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Working set by cache, or quantile, in hundred-thousandths.
    pub x: u64,
    /// Megabytes a second, or nanoseconds, in tenths.
    pub value: u64,
}

/// The points of a series of the file.
///
/// # Panics
/// When the file is not as it should be: it is a part of the program.
pub(crate) fn points(series: &str) -> Vec<Point> {
    let of = |line: &str| {
        let (name, rest) = line.split_once(',')?;
        let mut fields = rest.split(',');
        let x = fixed(fields.next()?, 5);
        let value = fixed(fields.nth(1)?, 1);
        (name == series).then_some(Point { x, value })
    };
    MEASURED.lines().skip(2).filter_map(of).collect()
}

/// A decimal number with that many digits behind the point, as an integer.
fn fixed(text: &str, digits: usize) -> u64 {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    assert!(fraction.len() <= digits, "{text} has at most {digits} digits behind the point");
    format!("{whole}{fraction:0<digits$}").parse().expect("a decimal number")
}

/// Measured bandwidths by working set.
#[must_use]
pub fn bandwidths() -> Vec<Point> {
    points(BANDWIDTH_SERIES)
}

/// Measured latencies by quantile.
#[must_use]
pub fn latencies() -> Vec<Point> {
    points(LATENCY_SERIES)
}

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// A point of the bandwidths, by its place in the list, and the policy if it is not the profile's.
    Bandwidth(usize, Option<&'static str>),
    /// The pointer chase.
    Latency,
}

impl Case {
    /// For progress: what runs.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Case::Bandwidth(point, eviction) => {
                let x = bandwidths()[*point].x;
                let policy = eviction.map_or_else(String::new, |policy| format!(", {policy}"));
                format!("bandwidth, working set of {}.{:02} of the cache{policy}", x / 100_000, x / 1000 % 100)
            }
            Case::Latency => "pointer chase".to_owned(),
        }
    }
}

/// Every case, what takes longest first.
#[must_use]
pub fn cases() -> Vec<Case> {
    let points = bandwidths();
    let with_alternatives = |index: usize| {
        let shown = points[index].x >= ALTERNATIVES_FROM * 1000;
        let others = ALTERNATIVES.into_iter().filter(move |_| shown);
        std::iter::once(None).chain(others.map(Some)).map(move |eviction| Case::Bandwidth(index, eviction))
    };
    let bandwidths = (0..points.len()).rev().flat_map(with_alternatives);
    bandwidths.chain(std::iter::once(Case::Latency)).collect()
}

/// What came out of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What ran.
    pub case: Case,
    /// Bytes a second.
    pub bytes_per_second: u64,
    /// Pages that were read from the flash, of all that were asked for, in millionths.
    pub miss_ppm: u64,
    /// Latencies, as the host's loads see them.
    pub latency: Histogram,
}

/// Runs one case.
///
/// # Errors
/// When the profile cannot be, which is no matter of the case.
pub fn run_case(params: &CmmHParams, case: Case) -> Result<Outcome, CmmHError> {
    params.check()?;
    let text = Profile::built_in_text(PROFILE).unwrap_or_default();
    let set = match case {
        Case::Bandwidth(_, Some(policy)) => vec![("cache.eviction".to_owned(), policy.into())],
        _ => Vec::new(),
    };
    let profile = Profile::parse_with(PROFILE, text, &set)?;
    run_profile(params, case, &profile)
}

fn run_profile(params: &CmmHParams, case: Case, profile: &Profile) -> Result<Outcome, CmmHError> {
    let scale = if case == Case::Latency { params.scale.min(CHASE_SCALE) } else { params.scale };
    let capacity_bytes = profile.capacity_bytes() / u64::from(scale) / PAGE_BYTES * PAGE_BYTES;
    let refuse = |why| CmmHError::Simulate(SimulateError::Device { profile: PROFILE.to_owned(), why });
    let model = profile.model(Some(capacity_bytes)).map_err(refuse)?;
    let cache_pages = model.cache.as_ref().map_or(0, |cache| u64::from(cache.cache.frames));
    let (text, limits, pages) = match case {
        Case::Bandwidth(point, _) => bandwidth_workload(working_set_pages(bandwidths()[point].x, cache_pages)),
        Case::Latency => chase_workload(capacity_bytes),
    };
    let is_paired = case == Case::Latency;
    let (report, latency) = run_loads(profile, (&text, limits), (capacity_bytes, params.seed), is_paired)?;
    let filled = report.cache.as_ref().map_or(0, |cache| cache.counts.misses);
    Ok(Outcome {
        case,
        bytes_per_second: report.run.bytes_per_second,
        miss_ppm: filled * 1_000_000 / pages.max(1),
        latency,
    })
}

/// Runs loads on a device that is full; what it reports, and the latencies as the host sees them.
pub(crate) fn run_loads(
    profile: &Profile,
    (text, limits): (&str, Limits),
    (capacity_bytes, seed): (u64, u64),
    is_paired: bool,
) -> Result<(RunReport, Histogram), CmmHError> {
    let workload = Workload::parse(PROFILE, text)?;
    let options = Options {
        seed: Some(seed),
        capacity_bytes: Some(capacity_bytes),
        precondition: Some(Precondition {
            fill_permille: 1000,
            pattern: FillPattern::Sequential,
            method: FillMethod::Analytic,
        }),
        limits,
        ..Options::default()
    };
    let mut collected = Collected { latency: Histogram::default(), host: is_paired.then(|| Host(Rng::new(seed))) };
    let load = Load::Workload { name: PROFILE, workload: &workload };
    let report = simulate(profile, load, &options, &mut collected)?;
    Ok((report, collected.latency))
}

/// The latencies of all counted requests.
struct Collected {
    latency: Histogram,
    /// What lies between the device and the loads, if anything.
    host: Option<Host>,
}

/// A host that fetches lines in pairs.
struct Host(Rng);

impl Host {
    /// What a load that hits takes that finds the device answering in so long.
    fn see(&mut self, device_ns: u64) -> u64 {
        if self.0.one_in(PAIRED_ONE_IN) { self.0.between(0, device_ns) } else { device_ns }
    }
}

impl Watch for Collected {
    fn completed(&mut self, io: &Io) -> ControlFlow<()> {
        let device_ns = io.completed.saturating_since(io.request.at);
        let seen_ns = match &mut self.host {
            Some(host) if io.met == Met::Hit => host.see(device_ns),
            _ => device_ns,
        };
        self.latency.add(seen_ns);
        ControlFlow::Continue(())
    }
}

/// Pages of a working set of `x` hundred-thousandths of the cache. They are 2, 4, 8 … GB for a cache of 48, which the
/// file rounds to hundredths of the cache.
#[must_use]
pub fn working_set_pages(x: u64, cache_pages: u64) -> u64 {
    let twenty_fourths = (x * 24 + 50_000) / 100_000;
    cache_pages * twenty_fourths / 24
}

/// Threads that each read their share of the working set round and round, and the pages that they load meanwhile.
fn bandwidth_workload(pages: u64) -> (String, Limits, u64) {
    let per_thread = (pages / BANDWIDTH_THREADS).max(1);
    let warm_up_ns = pages * WARM_UP_NS_PER_PAGE;
    let round = per_thread * LINES_PER_PAGE;
    let lines = round * (BANDWIDTH_LOADS_MIN / BANDWIDTH_THREADS).div_ceil(round);
    let mut text = "seed = 1\n".to_owned();
    for thread in 0..BANDWIDTH_THREADS {
        let range = per_thread * PAGE_BYTES;
        let offset = thread * range;
        text.push_str(&format!("[[job]]\nname = \"thread {thread}\"\n"));
        // By time, so that all threads begin the measurement together.
        text.push_str(&touch_phase(&format!("duration_ns = {warm_up_ns}"), offset, range, WARM_UP_THINK_NS));
        // Twice as many as are measured: no thread is done before the others.
        let length = format!("requests = {}", 2 * lines);
        let phase = phase(&length, "\"sequential\"", offset, range, (LINES_PER_THREAD, 0));
        text.push_str(&phase);
    }
    let limits =
        Limits { warm_up: WarmUp::Nanos(warm_up_ns), requests_max: Some(lines * BANDWIDTH_THREADS), duration_ns: None };
    (text, limits, lines / LINES_PER_PAGE * BANDWIDTH_THREADS)
}

/// Threads that load one line after the other, mostly of a part that is in the cache.
fn chase_workload(capacity_bytes: u64) -> (String, Limits, u64) {
    let cached_pages = capacity_bytes / PAGE_BYTES * CHASE_SPACE_PERMILLE / 1000;
    let per_thread = cached_pages / CHASE_THREADS;
    let hotspot = format!(
        "{{ hotspot = {{ access_permille = {CHASE_CACHED_PERMILLE}, space_permille = {CHASE_SPACE_PERMILLE} }} }}"
    );
    let mut text = "seed = 1\n".to_owned();
    for thread in 0..CHASE_THREADS {
        let range = per_thread * PAGE_BYTES;
        text.push_str(&format!("[[job]]\nname = \"thread {thread}\"\n"));
        text.push_str(&touch_phase(&format!("requests = {per_thread}"), thread * range, range, 0));
        let loads = format!("requests = {}", 2 * CHASE_LOADS / CHASE_THREADS);
        let phase = phase(&loads, &hotspot, 0, capacity_bytes, (1, 0));
        text.push_str(&phase);
    }
    let limits = Limits {
        warm_up: WarmUp::Requests(per_thread * CHASE_THREADS),
        requests_max: Some(CHASE_LOADS),
        duration_ns: None,
    };
    (text, limits, CHASE_LOADS)
}

/// A line of every page in turn.
pub(crate) fn touch_phase(length: &str, offset: u64, range: u64, think_ns: u64) -> String {
    phase(length, "{ strided = { stride_bytes = 4096 } }", offset, range, (1, think_ns))
}

pub(crate) fn phase(length: &str, pattern: &str, offset: u64, range: u64, (depth, think_ns): (u32, u64)) -> String {
    format!(
        "[[job.phase]]\n{length}\npattern = {pattern}\nmix = {{ load_permille = 1000 }}\noffset_bytes = {offset}\n\
         range_bytes = {range}\nblock_bytes = {LINE_BYTES}\n\
         arrivals = {{ closed = {{ depth = {depth}, think_ns = {think_ns} }} }}\n"
    )
}

/// Everything that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CmmHReport {
    params: CmmHParams,
    outcomes: Vec<Outcome>,
}
