//! Bandwidth and latency across the size of the cache, as in the figures 5 and 6 of Cylon (FAST 2026): the profile
//! `cmm-h` beside Samsung's device as it was measured, and beside the published emulator.
//!
//! The bandwidths and the chase that was measured are those of [`cmm_h`], which says what was fitted. Beside them four
//! threads follow pointers through working sets of a third of the cache to 2.7 times as much. Each pointer leads to any
//! line of the working set alike, so that what hits is known without the model: [`hit_ppm_expected`].

mod present;
#[cfg(test)]
mod tests;

use osier_device::Profile;

use crate::cmm_h::{self, CmmHError, CmmHParams, PAGE_BYTES, PROFILE, Point};
use crate::run::{Histogram, Limits, WarmUp};

pub use present::QUANTILES;

/// Working sets of the chase by cache, in hundred-thousandths: 16, 32, 64 and 128 GB for a cache of 48.
pub const WORKING_SETS: [u64; 4] = [33_000, 67_000, 133_000, 267_000];
/// Threads of the chase (section 5.3, Figure 5).
pub const THREADS: u64 = 4;
/// Loads of each chase that are counted.
const LOADS: u64 = 200_000;
const CYLON_SERIES: &str = "cylon read bandwidth without prefetch";

/// One simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// One of [`cmm_h::cases`].
    Published(cmm_h::Case),
    /// A chase through a working set, by its place in [`WORKING_SETS`].
    Chase(usize),
}

impl Case {
    /// For progress: what runs.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Case::Published(case) => case.label(),
            Case::Chase(index) => {
                format!("pointers through {} of the cache", present::hundredths(WORKING_SETS[*index]))
            }
        }
    }
}

/// Every case, what takes longest first.
#[must_use]
pub fn cases() -> Vec<Case> {
    let own_policy = |case: &cmm_h::Case| !matches!(case, cmm_h::Case::Bandwidth(_, Some(_)));
    let published = cmm_h::cases().into_iter().filter(own_policy).map(Case::Published);
    (0..WORKING_SETS.len()).rev().map(Case::Chase).chain(published).collect()
}

/// The published emulator's bandwidths by working set.
#[must_use]
pub fn cylon_bandwidths() -> Vec<Point> {
    cmm_h::points(CYLON_SERIES)
}

/// What came out of a chase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chase {
    /// Its place in [`WORKING_SETS`].
    pub index: usize,
    /// Pages of the working set.
    pub pages: u64,
    /// Loads counted.
    pub loads: u64,
    /// Those that found their page, in millionths.
    pub hit_ppm: u64,
    /// Those that should: see [`hit_ppm_expected`].
    pub hit_ppm_expected: u64,
    /// Bytes of lines a second.
    pub bytes_per_second: u64,
    /// Latencies, as the device gives them.
    pub latency: Histogram,
}

/// What came out of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Of a published point.
    Published(cmm_h::Outcome),
    /// Of a chase.
    Chase(Box<Chase>),
}

/// Runs one case.
///
/// # Errors
/// A scale that cannot be; a profile that cannot be, which is no matter of the case.
pub fn run_case(params: &CmmHParams, case: Case) -> Result<Outcome, CmmHError> {
    match case {
        Case::Published(case) => cmm_h::run_case(params, case).map(Outcome::Published),
        Case::Chase(index) => chase(params, index).map(|chase| Outcome::Chase(Box::new(chase))),
    }
}

/// The cache that a chase runs through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sets of the cache.
    pub sets: u64,
    /// Pages that a set holds of a working set.
    pub pages_per_set: u64,
    /// Frames, those of the reserve included.
    pub frames: u64,
}

/// The cache of the profile at a capacity.
///
/// # Errors
/// When the profile cannot be so large, or has no cache.
pub fn shape(profile: &Profile, capacity_bytes: u64) -> Result<Shape, CmmHError> {
    use crate::run::SimulateError::Device;
    let refuse = |why| CmmHError::Simulate(Device { profile: profile.device.name.clone(), why });
    let model = profile.model(Some(capacity_bytes)).map_err(refuse)?;
    let cache = model.cache.ok_or(CmmHError::NoCache)?.cache;
    let ways = u64::from(if cache.ways == 0 { cache.frames } else { cache.ways });
    let pages_per_set = ways - u64::from(cache.reserve_frames);
    let frames = u64::from(cache.frames);
    Ok(Shape { sets: frames / ways, pages_per_set, frames })
}

/// The share of uniform loads of so many pages that hit, in millionths. Each page is in any set alike, so the number of
/// pages of a set is binomial, and a set that has more pages than it can hold keeps as many as it can: whichever they
/// are, the next load finds one of them as often. Policies that know nothing of the future do not differ.
#[must_use]
pub fn hit_ppm_expected(shape: Shape, pages: u64) -> u64 {
    let (sets, held) = (shape.sets as f64, shape.pages_per_set);
    if shape.sets == 1 {
        return (held * 1_000_000 / pages.max(1)).min(1_000_000);
    }
    // Products alone, which are the same to the bit on each machine.
    let (n, p) = (pages as f64, 1.0 / sets);
    let mut probability = power(1.0 - p, pages);
    assert!(probability > 0.0, "{pages} pages are too many for sets of {held}");
    let (mut mean_held, mut seen) = (0.0, 0.0);
    for k in 0..=pages.min(LOADED_MAX + (n * p * 4.0) as u64) {
        mean_held += probability * k.min(held) as f64;
        seen += probability;
        let k = k as f64;
        probability *= (n - k) / (k + 1.0) * (p / (1.0 - p));
    }
    // What lies beyond has full sets.
    mean_held += (1.0 - seen).max(0.0) * held as f64;
    ((mean_held * sets / n * 1e6) as u64).min(1_000_000)
}

/// A set with so many more pages than four times the mean is as good as impossible.
const LOADED_MAX: u64 = 64;

fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut result = 1.0;
    while exponent > 0 {
        if exponent % 2 == 1 {
            result *= base;
        }
        base *= base;
        exponent /= 2;
    }
    result
}

fn chase(params: &CmmHParams, index: usize) -> Result<Chase, CmmHError> {
    params.check()?;
    let profile = Profile::parse(PROFILE, Profile::built_in_text(PROFILE).unwrap_or_default())?;
    let capacity_bytes = profile.capacity_bytes() / u64::from(params.scale) / PAGE_BYTES * PAGE_BYTES;
    let shape = shape(&profile, capacity_bytes)?;
    let pages = cmm_h::working_set_pages(WORKING_SETS[index], shape.frames);
    let (text, limits) = chase_workload(pages, THREADS, LOADS);
    let (report, latency) = cmm_h::run_loads(&profile, (&text, limits), (capacity_bytes, params.seed), false)?;
    Ok(Chase {
        index,
        pages,
        loads: latency.count(),
        hit_ppm: report.cache.as_ref().and_then(|cache| cache.hit_ppm).unwrap_or(0),
        hit_ppm_expected: hit_ppm_expected(shape, pages),
        bytes_per_second: report.run.bytes_per_second,
        latency,
    })
}

/// Threads that touch each page of their shares, and then follow pointers through all of them.
fn chase_workload(pages: u64, threads: u64, loads: u64) -> (String, Limits) {
    let per_thread = pages / threads;
    let mut text = "seed = 1\n".to_owned();
    for thread in 0..threads {
        let range = per_thread * PAGE_BYTES;
        text.push_str(&format!("[[job]]\nname = \"thread {thread}\"\n"));
        text.push_str(&cmm_h::touch_phase(&format!("requests = {per_thread}"), thread * range, range, 0));
        // Twice as many as are measured: no thread is done before the others.
        let length = format!("requests = {}", 2 * loads);
        text.push_str(&cmm_h::phase(&length, "\"uniform\"", 0, per_thread * threads * PAGE_BYTES, (1, 0)));
    }
    let limits =
        Limits { warm_up: WarmUp::Requests(per_thread * threads), requests_max: Some(loads), duration_ns: None };
    (text, limits)
}

/// Everything that ran.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CylonLatencyReport {
    published: cmm_h::CmmHReport,
    chases: Vec<Chase>,
}

impl CylonLatencyReport {
    /// The report of all cases, in whatever order they ran.
    ///
    /// # Panics
    /// If a case is missing, which is a bug of the caller.
    #[must_use]
    pub fn new(params: CmmHParams, outcomes: &[Outcome]) -> CylonLatencyReport {
        let published = outcomes.iter().filter_map(|outcome| match outcome {
            Outcome::Published(outcome) => Some(outcome.clone()),
            Outcome::Chase(_) => None,
        });
        let chase = |index| {
            let of = |outcome: &Outcome| match outcome {
                Outcome::Chase(chase) if chase.index == index => Some((**chase).clone()),
                _ => None,
            };
            outcomes.iter().find_map(of).expect("every chase was run")
        };
        let published: Vec<cmm_h::Outcome> = published.collect();
        CylonLatencyReport {
            published: cmm_h::CmmHReport::of_profile(params, &published),
            chases: (0..WORKING_SETS.len()).map(chase).collect(),
        }
    }

    /// The chases, from the smallest working set.
    #[must_use]
    pub fn chases(&self) -> &[Chase] {
        &self.chases
    }

    /// What was published, and what the model has for it.
    #[must_use]
    pub fn published(&self) -> &cmm_h::CmmHReport {
        &self.published
    }
}
