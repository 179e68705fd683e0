//! What sampling is good for, beside the truth: a program whose every access is known to the test, and to the window
//! only where it faults.

use std::collections::BTreeMap;

use osier_cache::{CacheConfig, Outcome as Asked, SplitMix64};

use super::tests::{config_of, origin, sampling};
use super::*;

const PAGES: u64 = 2_000;
const FRAMES: u32 = 400;
const ACCESSES: u64 = 200_000;
/// From one access to the next.
const ACCESS_NS: u64 = 1_000;
const PERIOD_US: u64 = 100;

/// A shared memory without bytes that knows which pages have left.
#[derive(Default)]
struct Places {
    left: Vec<u64>,
}

impl Resident for Places {
    fn load(&mut self, _page: u64, _copy: Option<u64>, _bytes: Option<&PageBytes>) {}

    fn save(&mut self, _page: u64, _bytes: &mut PageBytes) {}

    fn left(&mut self, page: u64, _copy: Option<u64>) {
        self.left.push(page);
    }
}

/// Pages by popularity: the k-th is accessed 1/k times as often as the first, in an order without a pattern.
struct Zipf {
    sums: Vec<u64>,
    random: SplitMix64,
}

impl Zipf {
    fn new(seed: u64) -> Zipf {
        let weights = (1..=PAGES).scan(0, |sum, rank| {
            *sum += (1 << 32) / rank;
            Some(*sum)
        });
        Zipf { sums: weights.collect(), random: SplitMix64::new(seed) }
    }

    fn next(&mut self) -> u64 {
        let drawn = self.random.below(self.sums[self.sums.len() - 1]);
        let rank = self.sums.partition_point(|sum| *sum <= drawn) as u64;
        rank * 1_237 % PAGES
    }
}

fn config(policy: &str, sample_pages: u64) -> ModelConfig {
    let mut origin = origin(PAGES, FRAMES, policy);
    origin.settings.retain(|(key, _)| !key.starts_with("geometry"));
    origin.settings.push(sampling(sample_pages, PERIOD_US));
    config_of(&origin)
}

/// Pages that are resident, and whether each was used since the last look, if it was there then.
#[derive(Default)]
struct Truth {
    used: BTreeMap<u64, Option<bool>>,
    /// Pages that were not used between two looks, and pages that were, among those there at the first and, if they
    /// were not used, at the second.
    counts: [u64; 2],
}

impl Truth {
    fn look(&mut self) {
        for used in self.used.values_mut() {
            if let Some(used) = used {
                self.counts[usize::from(*used)] += 1;
            }
            *used = Some(false);
        }
    }

    fn used(&mut self, page: u64) {
        let known = self.used.entry(page).or_insert(None);
        *known = known.map(|_| true);
    }

    fn left(&mut self, page: u64) {
        // One that was used before it left is counted; of the others nobody knows whether it would have been.
        self.counts[1] += u64::from(self.used.remove(&page) == Some(Some(true)));
    }

    fn used_ppm(&self) -> u64 {
        self.counts[1] * 1_000_000 / (self.counts[0] + self.counts[1])
    }
}

/// A program under a window: its misses in millionths of its accesses, what sampling said and what was so.
fn run(policy: &str, sample_pages: u64) -> (u64, SampleCounts, Truth) {
    let reserve = Reserve { frames: 8, batch: 4 };
    let mut window = Window::new(&config(policy, sample_pages), reserve, 1, Places::default()).unwrap();
    let (mapper, mut now, mut zipf) = (window.attach().unwrap(), Nanos::ZERO, Zipf::new(5));
    let (mut mapped, mut outputs, mut truth) = (BTreeSet::new(), Vec::new(), Truth::default());
    let mut next_look = Nanos::ZERO;
    for _ in 0..ACCESSES {
        now.0 += ACCESS_NS;
        if now >= next_look {
            truth.look();
            next_look = Nanos(now.0 + PERIOD_US * 1000);
        }
        let page = zipf.next();
        window.poll(now, &mut outputs);
        let mut is_asked = false;
        loop {
            for output in outputs.drain(..) {
                match output {
                    Output::Answer { page, due, is_sample, .. } => {
                        assert!(!is_sample || due <= now, "a page that never left takes no time");
                        mapped.insert(page);
                        // It may be drawn before it is used.
                        is_asked = false;
                        now = now.max(due);
                    }
                    Output::Zap { pages, .. } => {
                        pages.iter().for_each(|page| _ = mapped.remove(page));
                        window.zapped(now, mapper, 0).unwrap();
                    }
                    Output::Done { .. } => {}
                }
            }
            if mapped.contains(&page) {
                break;
            }
            if !std::mem::replace(&mut is_asked, true) {
                window.fault(now, Fault { mapper, lane: 0, page, is_store: false, more_max: 0 }).unwrap();
            }
            window.poll(now, &mut outputs);
            if outputs.is_empty() && !mapped.contains(&page) {
                now = window.next_event().unwrap().max(now);
            }
        }
        window.resident_mut().left.drain(..).for_each(|page| truth.left(page));
        truth.used(page);
    }
    let stats = window.stats();
    (stats.counts.misses * 1_000_000 / ACCESSES, stats.samples, truth)
}

/// The same accesses to a cache that is told of each.
fn with_every_access(policy: &str) -> u64 {
    let config = config(policy, 0).cache.unwrap().cache;
    let mut cache = Cache::build(&CacheConfig { reserve_frames: 8, ..config }, 1).unwrap();
    let (mut zipf, mut misses) = (Zipf::new(5), 0);
    for _ in 0..ACCESSES {
        let page = zipf.next();
        if let Asked::Miss(fill) = cache.request(page, osier_cache::Op { is_write: false, lines: 1 }) {
            misses += 1;
            cache.fill_done(fill.frame);
            while cache.reclaim(page).is_some() {}
        }
    }
    misses * 1_000_000 / ACCESSES
}

#[test]
fn policies_that_hear_of_sampled_hits_miss_as_if_they_saw_more() {
    for policy in ["clock", "s3-fifo", "sieve"] {
        let truth = with_every_access(policy);
        let [blind, sampled] = [0, 32].map(|pages| run(policy, pages).0);
        println!(
            "{policy}: {truth} ppm of accesses miss if all are seen, {blind} if misses alone, {sampled} with samples"
        );
        assert!(blind.abs_diff(truth) > 10_000, "{policy}: hits make a difference: {blind}, {truth}");
        assert!(sampled.abs_diff(truth) * 3 < blind.abs_diff(truth) * 2, "{policy}: {blind}, {sampled}, {truth}");
    }
}

#[test]
fn the_share_of_used_pages_is_estimated_within_its_error() {
    for (policy, pages) in [("fifo", 4), ("clock", 8), ("sieve", 16)] {
        let (_, counts, truth) = run(policy, pages);
        let (found, error) = counts.used_ppm().unwrap();
        let exact = truth.used_ppm();
        println!("{policy}: {found} ppm +- {error} of {} samples; {exact} ppm were used", counts.samples());
        assert!(counts.samples() > 5_000 && error < 10_000, "{policy}: {counts:?}");
        assert!(found.abs_diff(exact) <= 3 * error, "{policy}: {found} +- {error}, and it is {exact}");
    }
}

#[test]
fn the_error_of_an_estimate_is_that_of_its_samples() {
    let counts = |used, unused| SampleCounts { used, unused, ..SampleCounts::default() };
    assert_eq!(counts(0, 0).used_ppm(), None);
    // The square root of p (1 - p) / n.
    let (share, error) = counts(2_000, 8_000).used_ppm().unwrap();
    assert!(share == 200_000 && error.abs_diff(4_000) < 5, "{share} {error}");
    // Of ten that were all used nobody knows that all are.
    let (share, error) = counts(10, 0).used_ppm().unwrap();
    assert!(share == 1_000_000 && error > 50_000, "{share} {error}");
}

#[test]
fn pinned_pages_are_not_drawn_and_without_a_program_nothing_is() {
    let mut window = Window::new(&config("fifo", 64), Reserve { frames: 8, batch: 4 }, 1, Places::default()).unwrap();
    let mut outputs = Vec::new();
    window.poll(Nanos(10_000_000), &mut outputs);
    assert!(outputs.is_empty() && window.next_event().is_none());
    let mapper = window.attach().unwrap();
    let mut now = Nanos(20_000_000);
    window.command(now, mapper, 1, Command::Pin(0..2)).unwrap();
    while !outputs.drain(..).any(|output| matches!(output, Output::Done { .. })) {
        now = window.next_event().unwrap_or(now).max(now);
        window.poll(now, &mut outputs);
    }
    for page in 0..3 {
        window.fault(now, Fault { mapper, lane: 0, page, is_store: false, more_max: 0 }).unwrap();
    }
    let mut drawn = BTreeSet::new();
    for _ in 0..500 {
        now.0 += 50_000;
        window.poll(now, &mut outputs);
        for output in outputs.drain(..) {
            if let Output::Zap { pages, .. } = output {
                drawn.extend(pages);
                window.zapped(now, mapper, 0).unwrap();
            }
        }
    }
    assert_eq!(drawn, BTreeSet::from([2]));
    window.detach(now, mapper);
    window.poll(Nanos(now.0 + 10_000_000), &mut outputs);
    assert!(window.next_event().is_none(), "nobody is left to use a page");
}
