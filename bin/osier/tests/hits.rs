//! `osier run --hit-latency` as a user meets it: programs that it slows give the same results, with threads that keep
//! all signals away, handlers of their own, system calls on the window, a fork and a death.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;
mod windows;

use windows::*;

/// MiB of the chain that a program follows: more than most processors have cache.
const CHAIN: &str = "64";

#[test]
fn a_program_is_slowed_by_its_misses_and_computes_the_same() {
    if !may_handle_faults() || !cfg!(target_arch = "x86_64") {
        return;
    }
    let device = Device::start(256, 200, &["--profile", "cmm-h"]);
    let Some(chase) = compile("bin/osier/tests/programs/chase.c", &device.path("chase"), &[]) else { return };
    let step = |out: &str| out.split_whitespace().last().unwrap().parse::<f64>().unwrap();
    let (out, stats) = device.expect(&[], &[&chase, CHAIN]);
    assert!(stats.get("hit_latency").is_none(), "nobody asked for it");
    let without = step(&out);
    let (out, stats) = device.expect(&["--hit-latency=5000"], &[&chase, CHAIN]);
    let (with, hits) = (step(&out), &stats["hit_latency"]);
    let number = |name: &str| hits[name].as_f64().unwrap();
    // Each step is a miss, and its thread keeps all signals away: several microseconds, on a machine with nothing else.
    assert!(with > without + 500.0, "{without} and {with}: {hits}");
    assert_eq!(number("hit_ns"), 5000.0);
    assert!(number("missed") <= number("on_window") && number("on_window") <= number("samples"), "{hits}");
    assert!((20.0..2_000.0).contains(&number("machine_ns")) && number("access_ns") > 20.0, "{hits}");
    assert!(number("injected_ns") > 1e9 && (0.0..1.0).contains(&number("error")), "{hits}");
    // What the profile says: link and DRAM of the device, which the paper measured as 771.
    let (_, stats) = device.expect(&["--hit-latency"], &[&chase, "4"]);
    assert!((700..800).contains(&stats["hit_latency"]["hit_ns"].as_u64().unwrap()), "{stats}");
}

#[test]
fn heaps_threads_and_forks_do_what_they_do_without() {
    if !may_handle_faults() || !cfg!(target_arch = "x86_64") {
        return;
    }
    // A cache that is much too small: pages leave while their lines are watched.
    for mode in ["sleeping", "spinning"] {
        let device = Device::start(256, 8, &[]);
        let Some(heap) = compile("bin/osier/tests/programs/heap.c", &device.path("heap"), &[]) else { return };
        let (out, stats) = device.expect(&["--mode", mode, "--hit-latency=2000"], &[&heap, "16"]);
        assert_eq!(out, "well\n");
        assert!(stats["hit_latency"]["samples"].as_u64().unwrap() > 0, "{stats}");
    }
}

#[test]
fn a_latency_that_cannot_be_had_is_said_before_the_program_begins() {
    for wrong in ["--hit-latency=0", "--hit-latency=-5", "--hit-latency=5us", "--hit-latency=", "--hit-latency=100001"]
    {
        let mut command = osier();
        let (status, _, err) = finish({
            command.args(["run", "--device", "/nowhere", wrong, "--", "true"]);
            command
        });
        assert_eq!(status.code(), Some(2), "{wrong}: {err}");
        assert!(err.contains("nanoseconds from 1 to 100000"), "{err}");
    }
}
