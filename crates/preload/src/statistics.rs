//! The figures of a run, once the program ends.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use osier_client::{Histogram, WindowStats};

use crate::space::{PAGE, REFUSED, USED_MAX};
use crate::{RUN, Run, guest, is_owner, who};

static IS_SAID: AtomicBool = AtomicBool::new(false);

/// At the end they are said.
pub fn begin() {
    // SAFETY: the function lives as long as the process. Where there is no room for it, nothing is said.
    unsafe { libc::atexit(at_exit) };
}

extern "C" fn at_exit() {
    end();
}

/// The program ends: says the figures, once.
pub fn end() {
    let Some(run) = RUN.get().filter(|run| is_owner(run)) else { return };
    if IS_SAID.swap(true, Ordering::AcqRel) {
        return;
    }
    let text = if run.settings.json { json(run) } else { text(run) };
    match &run.settings.stats {
        None => say!("{}", text.trim_end()),
        // Several programs of a run write one after the other.
        Some(path) => {
            let file = std::fs::File::options().create(true).append(true).open(path);
            if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
                say!("{}: the figures cannot be written to {}: {error}", who(), path.display());
            }
        }
    }
}

fn microseconds(ns: u64) -> String {
    format!("{}.{}", ns / 1000, ns / 100 % 10)
}

fn text(run: &Run) -> String {
    let timing = run.window.timing();
    let stats = run.window.stats();
    let mut text = String::new();
    let mut line = |what: &str| _ = writeln!(text, "{}: {what}", who());
    let (kib, device) = ((run.lease.range().end - run.lease.range().start) / 1024, run.window.device());
    if guest::is_one() {
        line(&format!("process {}: a guest with {kib} KiB in the window of {device}", run.pid));
    } else {
        line(&format!(
            "process {}: at most {} KiB of a heap of {kib} KiB in the window of {device}; {} requests refused",
            run.pid,
            USED_MAX.load(Ordering::Relaxed) * PAGE as u64 / 1024,
            REFUSED.load(Ordering::Relaxed)
        ));
    }
    for (name, histogram) in [("a fault took", &timing.latency), ("and was late by", &timing.lateness)] {
        line(&format!(
            "{} faults, {name} {} us (p50), {} us (p99), {} us (most)",
            histogram.count(),
            microseconds(histogram.quantile_ns(500)),
            microseconds(histogram.quantile_ns(990)),
            microseconds(histogram.max_ns())
        ));
    }
    line(&format!(
        "the device: {} faults, {} misses, {} evictions ({} dirty), {} pages programmed, {} moved by collection, \
         {} superblocks erased",
        stats.faults,
        stats.misses,
        stats.left,
        stats.left_dirty,
        stats.flash_written,
        stats.flash_moved,
        stats.superblocks_erased
    ));
    if let Some(permille) = (stats.samples_used * 1000).checked_div(stats.samples) {
        let took = microseconds(timing.sampling.quantile_ns(500));
        text += &format!(
            "osier run: of {} pages in the device's cache that were sampled {}.{} % were used within a period; \
             {} of these were this program's, and took {took} us (p50)\n",
            stats.samples,
            permille / 10,
            permille % 10,
            timing.sampling.count(),
        );
    }
    text
}

fn json(run: &Run) -> String {
    let timing = run.window.timing();
    let stats = run.window.stats();
    let WindowStats { faults, misses, left, left_dirty, flash_written, flash_moved, superblocks_erased, lost, .. } =
        stats;
    let bytes = run.lease.range().end - run.lease.range().start;
    let user = if guest::is_one() {
        format!("\"guest_bytes\": {bytes}")
    } else {
        format!(
            "\"heap_bytes\": {bytes}, \"used_bytes_max\": {}, \"requests_refused\": {}",
            USED_MAX.load(Ordering::Relaxed) * PAGE as u64,
            REFUSED.load(Ordering::Relaxed)
        )
    };
    format!(
        "{{\"pid\": {}, {user}, \"latency\": {}, \"lateness\": {}, \"sampling\": {}, \"device\": {{\"faults\": {faults}, \"misses\": {misses}, \"evicted\": {left}, \
         \"evicted_dirty\": {left_dirty}, \"lost\": {lost}, \"flash_pages_written\": {flash_written}, \
         \"flash_pages_moved\": {flash_moved}, \"superblocks_erased\": {superblocks_erased}, \"samples\": {}, \
         \"samples_used\": {}}}}}\n",
        run.pid,
        histogram_json(&timing.latency),
        histogram_json(&timing.lateness),
        histogram_json(&timing.sampling),
        stats.samples,
        stats.samples_used,
    )
}

fn histogram_json(histogram: &Histogram) -> String {
    let buckets: Vec<String> = histogram.buckets().iter().map(|(ns, count)| format!("[{ns}, {count}]")).collect();
    format!(
        "{{\"count\": {}, \"p50_ns\": {}, \"p99_ns\": {}, \"max_ns\": {}, \"buckets\": [{}]}}",
        histogram.count(),
        histogram.quantile_ns(500),
        histogram.quantile_ns(990),
        histogram.max_ns(),
        buckets.join(", ")
    )
}
