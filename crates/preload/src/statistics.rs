//! The figures of a run, once the program ends.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use osier_client::extent::Extent;
use osier_client::{Histogram, HitFigures, Window, WindowStats, hits};

use crate::space::{PAGE, REFUSED, USED_MAX};
use crate::{RUN, Run, callers, dax, guest, is_owner, who};

static IS_SAID: AtomicBool = AtomicBool::new(false);

/// At the end they are said.
pub fn begin() {
    static IS_BEGUN: AtomicBool = AtomicBool::new(false);
    if !IS_BEGUN.swap(true, Ordering::AcqRel) {
        // SAFETY: the function lives as long as the process. Where there is no room for it, nothing is said.
        unsafe { libc::atexit(at_exit) };
    }
}

extern "C" fn at_exit() {
    end();
}

/// What is said of one window.
struct Use {
    text: String,
    json: String,
    stats: WindowStats,
}

/// The program ends: says the figures, once. A forked child has those of its own windows.
pub fn end() {
    let run = RUN.get().filter(|run| is_owner(run));
    let Some(settings) = run.map(|run| &run.settings).or_else(dax::settings) else { return };
    let heap = run.map(|run| Use::new(&run.window, heap_text(run), heap_json(run)));
    let mut paths = Vec::new();
    dax::each_window(|extent, window| paths.push(Use::new(window, path_text(extent, window), path_json(extent))));
    if (heap.is_none() && paths.is_empty()) || IS_SAID.swap(true, Ordering::AcqRel) {
        return;
    }
    // What this thread still owes is in the figures.
    hits::leave_thread();
    let hits = hits::figures();
    // Wherever the figures go: rules that do nothing are mistakes.
    let unused = callers::unused(who());
    if !unused.is_empty() {
        say!("{}", unused.trim_end());
    }
    let text = if settings.json {
        json(heap.as_ref(), &paths, hits.as_ref())
    } else {
        text(heap.iter().chain(&paths)) + &hits.as_ref().map_or_else(String::new, hits_text)
    };
    match &settings.stats {
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

impl Use {
    fn new(window: &Window, text: String, json: String) -> Use {
        let timing = window.timing();
        let mut lines = String::new();
        for (name, histogram) in [("a fault took", &timing.latency), ("and was late by", &timing.lateness)] {
            _ = writeln!(
                lines,
                "{}: {} faults, {name} {} us (p50), {} us (p99), {} us (most)",
                who(),
                histogram.count(),
                microseconds(histogram.quantile_ns(500)),
                microseconds(histogram.quantile_ns(990)),
                microseconds(histogram.max_ns())
            );
        }
        let histograms = format!(
            "\"latency\": {}, \"lateness\": {}, \"sampling\": {}",
            histogram_json(&timing.latency),
            histogram_json(&timing.lateness),
            histogram_json(&timing.sampling)
        );
        let stats = window.stats();
        Use { text: text + &lines + &samples(&stats, window), json: format!("{json}, {histograms}"), stats }
    }
}

fn heap_text(run: &Run) -> String {
    let (kib, device) = ((run.lease.range().end - run.lease.range().start) / 1024, run.window.device());
    if guest::is_one() {
        return format!("{}: process {}: a guest with {kib} KiB in the window of {device}\n", who(), run.pid);
    }
    let all = run.window.len() as u64 / 1024;
    let left = match run.settings.heap_bytes {
        None if !run.settings.children && kib < all => format!(" (what was left of {all} KiB)"),
        _ => String::new(),
    };
    format!(
        "{}: process {}: at most {} KiB of a heap of {kib} KiB in the window of {device}{left}; {} requests refused\n",
        who(),
        run.pid,
        USED_MAX.load(Ordering::Relaxed) * PAGE as u64 / 1024,
        REFUSED.load(Ordering::Relaxed)
    ) + &callers::text(who())
}

fn path_text(extent: &Extent, window: &Window) -> String {
    format!(
        "{}: process {}: {} of {} KiB in the window of {}\n",
        who(),
        std::process::id(),
        extent.path.display(),
        extent.bytes / 1024,
        window.device()
    )
}

/// What samples of hits say, if there are any.
fn samples(stats: &WindowStats, window: &Window) -> String {
    let Some(permille) = (stats.samples_used * 1000).checked_div(stats.samples) else { return String::new() };
    let sampling = &window.timing().sampling;
    format!(
        "{}: of {} pages in the device's cache that were sampled {}.{} % were used within a period; {} of these were \
         this program's, and took {} us (p50)\n",
        who(),
        stats.samples,
        permille / 10,
        permille % 10,
        sampling.count(),
        microseconds(sampling.quantile_ns(500))
    )
}

fn text<'a>(uses: impl Iterator<Item = &'a Use>) -> String {
    let mut text = String::new();
    let mut device = None;
    for one in uses {
        text += &one.text;
        device = Some(one.stats);
    }
    let Some(stats) = device else { return text };
    text + &format!(
        "{}: the device: {} faults, {} misses, {} evictions ({} dirty), {} pages programmed, {} moved by collection, \
         {} superblocks erased\n",
        who(),
        stats.faults,
        stats.misses,
        stats.left,
        stats.left_dirty,
        stats.flash_written,
        stats.flash_moved,
        stats.superblocks_erased
    )
}

fn heap_json(run: &Run) -> String {
    let bytes = run.lease.range().end - run.lease.range().start;
    if guest::is_one() {
        return format!("\"guest_bytes\": {bytes}");
    }
    format!(
        "{}\"heap_bytes\": {bytes}, \"used_bytes_max\": {}, \"requests_refused\": {}",
        callers::json(quoted),
        USED_MAX.load(Ordering::Relaxed) * PAGE as u64,
        REFUSED.load(Ordering::Relaxed)
    )
}

fn path_json(extent: &Extent) -> String {
    format!("\"path\": {}, \"bytes\": {}", quoted(&extent.path.to_string_lossy()), extent.bytes)
}

/// A string of JSON.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter < ' ' => _ = write!(quoted, "\\u{:04x}", u32::from(letter)),
            letter => quoted.push(letter),
        }
    }
    quoted + "\""
}

/// What was added for the latency of hits.
fn hits_text(hits: &HitFigures) -> String {
    let name = who();
    let error = hits.error.map_or_else(|| "none".to_owned(), |share| format!("{:.1} %", share * 100.0));
    let HitFigures { hit_ns, machine_start_ns, machine_ns, access_ns, samples, on_window, missed, .. } = hits;
    let HitFigures { unknown, late, injected_ns, lag_ns, .. } = hits;
    let (injected_us, lag_us) = (injected_ns / 1000, lag_ns / 1000);
    format!(
        "{name}: hits were to take {hit_ns} ns; this machine's memory took {machine_start_ns:.0} ns at first, \
         {machine_ns:.0} ns while the program ran, and {access_ns:.0} ns with translation\n\
         {name}: of {samples} samples {on_window} waited for the window, {missed:.0} of these for memory; {unknown} came to \
         nothing, {late} came late\n\
         {name}: {injected_us} us were added, {lag_us} us after what they are for (mean); estimated error: {error}\n"
    )
}

fn hits_json(hits: &HitFigures) -> String {
    let HitFigures { hit_ns, machine_start_ns, machine_ns, access_ns, sample_cost_ns, samples, on_window, .. } = hits;
    let HitFigures { missed, unknown, late, injected_ns, over_ns, lag_ns, error, .. } = hits;
    let error = error.map_or_else(|| "null".to_owned(), |share| format!("{share:.4}"));
    format!(
        "\"hit_latency\": {{\"hit_ns\": {hit_ns}, \"machine_start_ns\": {machine_start_ns:.1}, \
         \"machine_ns\": {machine_ns:.1}, \"access_ns\": {access_ns:.1}, \"sample_cost_ns\": {sample_cost_ns:.0}, \
         \"samples\": {samples}, \"on_window\": {on_window}, \"missed\": {missed:.3}, \"unknown\": {unknown}, \
         \"late\": {late}, \"injected_ns\": {injected_ns}, \"over_ns\": {over_ns}, \"lag_ns\": {lag_ns}, \
         \"error\": {error}}}, "
    )
}

/// The heap's figures beside the process's, those of paths in a list, and the device's.
fn json(heap: Option<&Use>, paths: &[Use], hits: Option<&HitFigures>) -> String {
    let Some(last) = heap.or(paths.last()) else { unreachable!("something is said of a window") };
    let WindowStats { faults, misses, left, left_dirty, flash_written, flash_moved, superblocks_erased, lost, .. } =
        last.stats;
    let hits = hits.map_or_else(String::new, hits_json);
    let heap = heap.map_or_else(String::new, |heap| format!("{}, ", heap.json));
    let paths: Vec<String> = paths.iter().map(|path| format!("{{{}}}", path.json)).collect();
    let paths = if paths.is_empty() { String::new() } else { format!("\"dax\": [{}], ", paths.join(", ")) };
    format!(
        "{{\"pid\": {}, {heap}{paths}{hits}\"device\": {{\"faults\": {faults}, \"misses\": {misses}, \"evicted\": {left}, \
         \"evicted_dirty\": {left_dirty}, \"lost\": {lost}, \"flash_pages_written\": {flash_written}, \
         \"flash_pages_moved\": {flash_moved}, \"superblocks_erased\": {superblocks_erased}, \"samples\": {}, \
         \"samples_used\": {}}}}}\n",
        std::process::id(),
        last.stats.samples,
        last.stats.samples_used,
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
