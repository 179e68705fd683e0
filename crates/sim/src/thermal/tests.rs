//! A quick version of the experiment: a tenth of the rates, ten times the thermal speed.

use super::*;

/// 60 seconds in which as much heat happens as in 600.
fn quick() -> ThermalParams {
    ThermalParams { seconds: 60, thermal_time_scale: 10, rate_divisor: 64, ..ThermalParams::default() }
}

fn quick_report() -> ThermalReport {
    run(&quick(), CASES, &mut |_| {}).unwrap()
}

#[test]
fn the_figure_has_the_shape_of_the_published_one() {
    let report = quick_report();
    let run = |label: &str| report.runs.iter().find(|run| run.case.label == label).unwrap();
    let loss = |run: &Run| {
        let full = run.predicted_host.write_bytes_per_second;
        100 - run.summary.settled_bytes_per_second * 100 / full
    };
    let samsung = run("SmartSSD, on the device");
    assert!((46..=54).contains(&loss(samsung)), "half is lost: {:?}", samsung.summary);
    let scaleflux = run("ScaleFlux, on the device");
    assert!((50..=64).contains(&loss(scaleflux)), "60 % is lost: {:?}", scaleflux.summary);
    for label in ["SmartSSD, adaptive", "CXL SSD, adaptive"] {
        let adaptive = run(label);
        assert!(loss(adaptive) <= 5, "a few percent at most: {:?}", adaptive.summary);
        assert_eq!(adaptive.summary.throttled_ns, 0, "{:?}", adaptive.summary);
        assert!(adaptive.summary.uploads > 0);
    }
    assert!(run("CXL SSD, on the device").summary.peak_millicelsius > 75_000);
}

#[test]
fn adaptive_placement_holds_what_the_profile_predicts() {
    let ratios = quick_report().ratios();
    let smartssd = ratios.iter().find(|ratio| ratio.profile == "smartssd").unwrap();
    assert!(smartssd.measured_permille >= RATIO_MIN_PERMILLE, "{smartssd:?}");
    assert!(smartssd.error_permille() <= RATIO_ERROR_MAX_PERMILLE, "{smartssd:?}");
}

#[test]
fn no_actor_moves_faster_than_its_residency() {
    for run in quick_report().runs {
        if let Some(shortest) = run.summary.shortest_residency_ns {
            assert!(shortest >= run.scheduler.min_residency_ms * 1_000_000, "{}: {shortest} ns", run.case.label);
        }
        for pair in run.moves.windows(2) {
            let epoch_ns = run.scheduler.epoch_ms * 1_000_000;
            assert!(pair[1].at.0 - pair[0].at.0 >= epoch_ns, "{}: two moves in one epoch", run.case.label);
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_does_not() {
    let params = ThermalParams { seconds: 20, thermal_time_scale: 10, rate_divisor: 256, ..ThermalParams::default() };
    let csv = |seed| run(&ThermalParams { seed, ..params.clone() }, CASES, &mut |_| {}).unwrap().to_csv();
    let first = csv(7);
    assert_eq!(first, csv(7));
    assert_ne!(first, csv(8));
    assert_eq!(first.lines().count(), 1 + CASES.len() * POINTS as usize);
}

#[test]
fn the_naive_policy_moves_far_more_often() {
    let case = |policy| Case { label: policy, profile: "smartssd", policy };
    let report = run(&quick(), &[case("wio"), case("threshold")], &mut |_| {}).unwrap();
    let moves = |index: usize| report.runs[index].summary.uploads + report.runs[index].summary.offloads;
    assert!(moves(1) > 10 * moves(0), "wio {} moves, threshold {}", moves(0), moves(1));
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    for (params, name) in [
        (ThermalParams { seconds: 0, ..quick() }, "seconds = 0"),
        (ThermalParams { rate_divisor: 0, ..quick() }, "rate_divisor = 0"),
        (ThermalParams { thermal_time_scale: 0, ..quick() }, "thermal_time_scale = 0"),
        (ThermalParams { queue_depth: 5000, ..quick() }, "queue_depth = 5000"),
        (ThermalParams { request_bytes: 5000, ..quick() }, "request_bytes = 5000"),
        (ThermalParams { stored_permille: (900, 1100), ..quick() }, "stored_permille = 1100"),
        (ThermalParams { device_bytes: 65_536, ..quick() }, "device_bytes = 65536"),
    ] {
        let refused = run(&params, CASES, &mut |_| {}).unwrap_err().to_string();
        assert!(refused.contains(name), "{refused}");
    }
    let unknown = Case { label: "x", profile: "floppy", policy: "wio" };
    assert!(run(&quick(), &[unknown], &mut |_| {}).unwrap_err().to_string().contains("floppy"));
}

#[test]
fn the_report_says_what_was_calibrated() {
    let report = quick_report();
    let text = report.provenance_text();
    assert!(text.contains("smartssd\n  calibrated  ") && text.contains("  follows     SmartSSD, adaptive: "), "{text}");
    let page = report.to_report().to_html();
    assert!(page.contains("Figure 1") && page.contains("thermal time scale 10"));
    assert!(report.to_svg().starts_with("<svg"));
}

#[test]
fn with_the_host_busy_too_the_rate_is_shed_and_the_device_does_not_throttle() {
    let host = HostParams { other_permille: 950, ..HostParams::default() };
    let case = |policy| Case { label: policy, profile: "smartssd", policy };
    let params = ThermalParams { host, ..quick() };
    let report = run(&params, &[case("wio")], &mut |_| {}).unwrap();
    let shed = &report.runs[0];
    assert_eq!((shed.summary.uploads, shed.summary.throttled_ns), (0, 0), "{:?}", shed.summary);
    let last = shed.points.last().unwrap();
    assert!((300..900).contains(&last.rate_permille), "{last:?}");
    // Gradual: the rate settles instead of swinging.
    let settled = &shed.points[shed.points.len() * 3 / 4..];
    let (low, high) = settled
        .iter()
        .fold((1000, 0), |(low, high), point| (point.rate_permille.min(low), point.rate_permille.max(high)));
    assert!(high - low <= 60, "the rate swings between {low} and {high} permille");
}
