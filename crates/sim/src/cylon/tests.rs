//! A 32nd of the experiment, with the ratios of the whole.

use super::*;

const QUICK: CylonParams = CylonParams { scale: 32, seed: 1 };

fn report(params: CylonParams) -> CylonReport {
    let cells: Vec<Cell> = cases().into_iter().map(|case| run_case(&params, case).unwrap()).collect();
    CylonReport::new(params, &cells)
}

fn hits(params: CylonParams, pattern: usize, eviction: &'static str, prefetch_degree: u64) -> Cell {
    run_case(&params, Case { pattern, eviction, prefetch_degree }).unwrap()
}

/// What steady cycles through a working set hit, in hundredths of a percent: FIFO and CLOCK all but the first access to
/// each page, LIFO also the first to those that stay.
fn cycle_permyriad(eviction: &str, accesses_per_page: u64, pages: u64, frames: u64) -> u64 {
    let kept = if eviction == "lifo" { frames - 1 } else { 0 };
    let accesses = pages * accesses_per_page;
    (accesses - (pages - kept)) * 10_000 / accesses
}

#[test]
fn fifo_lifo_and_clock_are_within_two_points_of_cylons_table_3() {
    let report = report(QUICK);
    assert_eq!(report.within(), (15, 15), "\n{}", report.eviction_table().to_text());
}

/// The same at full scale: minutes of processor time.
#[test]
#[ignore = "run by make evidence"]
fn cylon_table_3_at_full_scale() {
    let seed = |name| std::env::var(name).map_or(1, |text| text.parse().unwrap());
    for seed in seed("OSIER_SEED_FIRST")..=seed("OSIER_SEED_LAST") {
        let report = report(CylonParams { scale: 1, seed });
        assert_eq!(report.within(), (15, 15), "seed {seed}\n{}", report.eviction_table().to_text());
    }
}

#[test]
fn cycles_hit_what_their_closed_form_says() {
    let frames = u64::from(FRAMES / QUICK.scale);
    let pages = (8 << 30) / PAGE_BYTES / u64::from(QUICK.scale);
    for (pattern, step) in [(0, 128), (2, 512), (3, 1024), (4, 4096)] {
        for eviction in ["fifo", "lifo", "clock"] {
            let expected = cycle_permyriad(eviction, PAGE_BYTES / step, pages, frames);
            let found = hits(QUICK, pattern, eviction, 0).hit_permyriad();
            // LIFO's one frame that changes is sometimes hit, and sometimes not.
            assert!(found.abs_diff(expected) <= 1, "{step}, {eviction}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_uniform_working_set_is_hit_by_the_share_that_the_cache_holds() {
    for eviction in POLICIES {
        // A chase visits every line once a round, which is a little less even than chance.
        let found = hits(QUICK, 1, eviction, 0).hit_permyriad();
        assert!(found.abs_diff(2250) <= 100, "{eviction}: {found}");
    }
}

#[test]
fn next_n_on_a_cycle_misses_once_in_n_and_one_pages_and_wastes_nothing() {
    // FIFO, so that no page of the cycle stays.
    for degree in [1_u64, 2, 4, 8] {
        let cell = hits(QUICK, 4, "fifo", degree);
        let expected = 10_000 * degree / (degree + 1);
        assert!(cell.hit_permyriad().abs_diff(expected) <= 2, "{degree}: {cell:?}");
        assert!(cell.accuracy_permille().unwrap() >= 999, "{degree}: {cell:?}");
        assert_eq!(cell.mean_access_ns(), HIT_NS + cell.misses() * FLASH_READ_NS / cell.accesses);
    }
    let random = hits(QUICK, 1, PREFETCH_POLICY, 8);
    assert!(random.accuracy_permille().unwrap() < 100 && random.polluting > random.misses() / 10, "{random:?}");
}

#[test]
fn every_scale_keeps_the_ratios() {
    let ratios = |scale: u32| {
        let params = CylonParams { scale, seed: 1 };
        let of = |pattern: usize| {
            let workload = params.workload(pattern).unwrap();
            let phases = &workload.jobs[0].phases;
            let scaled = |value: u64| value * u64::from(scale);
            phases.iter().map(|phase| (scaled(phase.range_bytes), scaled(phase.requests.unwrap()))).collect::<Vec<_>>()
        };
        (0..PATTERNS.len()).map(of).collect::<Vec<_>>()
    };
    let full = ratios(1);
    for scale in (0..=SCALE_MAX.ilog2()).map(|power| 1 << power) {
        assert_eq!(ratios(scale), full);
        assert!(FRAMES.is_multiple_of(scale));
    }
    for scale in [0, 3, SCALE_MAX * 2] {
        let refused = run_case(&CylonParams { scale, seed: 1 }, cases()[0]).unwrap_err().to_string();
        assert!(refused.contains(&format!("scale {scale}:")), "{refused}");
    }
}

#[test]
fn the_report_says_what_was_assumed_and_what_was_calibrated() {
    let params = CylonParams { scale: SCALE_MAX, seed: 1 };
    let report = report(params);
    let text = report.provenance_text();
    assert!(text.contains("calibrated  The working set of Rand") && text.contains("libCacheSim 0.3.5"), "{text}");
    assert_eq!(report.to_csv().lines().count(), 1 + cases().len());
    let json = serde_json::to_value(report.to_json()).unwrap();
    assert_eq!(json["cells"].as_array().unwrap().len(), cases().len());
    assert_eq!(json["cells"][0]["eviction"], "fifo");
    assert!(report.to_svg().starts_with("<svg") && report.to_report().to_html().contains("Table 3"));
}
