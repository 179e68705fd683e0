//! The measured points against the model, and the model against arithmetic.

use super::present::Role;
use super::*;

const QUICK: CmmHParams = CmmHParams { scale: 1024, seed: 1 };

fn report() -> CmmHReport {
    let outcomes: Vec<Outcome> = cases().into_iter().map(|case| run_case(&QUICK, case).unwrap()).collect();
    CmmHReport::new(QUICK, &outcomes)
}

#[test]
fn the_file_has_the_published_points() {
    let value = |points: &[Point], x| points.iter().find(|point| point.x == x).expect("a point").value;
    let bandwidths = bandwidths();
    assert_eq!(bandwidths.len(), 7);
    assert_eq!((value(&bandwidths, 4_000), value(&bandwidths, 267_000)), (223_455, 8_352));
    let latencies = latencies();
    assert_eq!(latencies.len(), 21);
    assert_eq!((value(&latencies, 50_000), value(&latencies, 99_999)), (7_710, 902_130));
}

/// Working sets are powers of two of gigabytes, of a cache of 48.
#[test]
fn working_sets_are_what_the_rounded_ratios_stand_for() {
    let pages: Vec<u64> = bandwidths().iter().map(|point| working_set_pages(point.x, 48)).collect();
    assert_eq!(pages, [2, 4, 8, 16, 32, 64, 128]);
}

/// The residual is part of the profile: whoever changes one of its values sees here what it does to the other points.
/// Every bandwidth is within an eighth of what was measured, every latency that something was fitted to within 2 %.
#[test]
fn the_model_is_within_an_eighth_of_the_measured_bandwidths() {
    let report = report();
    let text = format!("\n{}{}", report.bandwidth_table().to_text(), report.latency_table().to_text());
    for row in report.bandwidth_rows() {
        assert!(row.difference_permille().abs() <= 125, "{row:?}{text}");
    }
    for row in report.latency_rows().iter().filter(|row| row.role == Role::Calibrated) {
        assert!(row.difference_permille().abs() <= 20, "{row:?}{text}");
    }
    // LRU keeps nothing of a loop that is larger than what it has to hold it: every page misses, in both working sets.
    // So its bandwidth does not fall any more with the working set. The measured one falls by a quarter.
    let [second, last] = [5, 6].map(|point| report.outcome_of(point, "lru"));
    let fewest = second.miss_ppm.min(last.miss_ppm);
    assert!(fewest >= 1_000_000, "{fewest} of a million pages missed{text}");
    assert!(last.bytes_per_second >= second.bytes_per_second, "{text}");
}

/// Below what it can hold, a loop never misses, and the bandwidth is that of the lines under way by the time of a load.
#[test]
fn in_the_cache_the_bandwidth_is_that_of_littles_law() {
    let outcome = run_case(&QUICK, Case::Bandwidth(2, None)).unwrap();
    assert_eq!(outcome.miss_ppm, 0);
    let mean_ns = outcome.latency.mean();
    let lines = BANDWIDTH_THREADS * u64::from(LINES_PER_THREAD);
    let expected = lines * LINE_BYTES * 1_000_000_000 / mean_ns;
    assert!(outcome.bytes_per_second.abs_diff(expected) * 50 <= expected, "{outcome:?}");
}

/// A defect that the residual has to show: the whole cache serves the working set, so that nothing drops before its
/// size.
#[test]
fn a_cache_without_its_reserve_does_not_drop_where_the_device_does() {
    let text = Profile::built_in_text(PROFILE).unwrap();
    let whole = Profile::parse_with(PROFILE, text, &[("cache.reserve_frames".to_owned(), 0.into())]).unwrap();
    let outcome = run_profile(&QUICK, Case::Bandwidth(4, None), &whole).unwrap();
    assert_eq!(outcome.miss_ppm, 0);
    let measured = bandwidths()[4].value * 100_000;
    assert!(outcome.bytes_per_second > 5 * measured, "{outcome:?}");
}

#[test]
fn a_run_is_the_same_twice_and_a_scale_that_cannot_be_is_refused() {
    let run = || run_case(&QUICK, Case::Latency).unwrap();
    assert_eq!(run(), run());
    for scale in [0, 3, 2048] {
        let error = run_case(&CmmHParams { scale, seed: 1 }, Case::Latency).unwrap_err().to_string();
        assert!(error.contains(&format!("--scale {scale}")), "{error}");
    }
}

impl CmmHReport {
    fn outcome_of(&self, point: usize, eviction: &'static str) -> &Outcome {
        let case = Case::Bandwidth(point, Some(eviction));
        self.outcomes.iter().find(|outcome| outcome.case == case).expect("it was run")
    }
}
