//! The experiments in real time as a user meets them, at small sizes: that values are right and counts agree. How fast
//! they are is no matter of a test.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Once;

use serde_json::Value;

fn exp(name: &str, out: &Path, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(["--json", "exp", name, "--out"]).arg(out).args(options).stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs an experiment and insists on its being well; what it printed. Its pictures are whole, and its table has so many
/// rows below its header, each with a value for each column.
fn expect(name: &str, options: &[&str], rows: usize) -> Value {
    let out = tempfile::tempdir().unwrap();
    let output = exp(name, out.path(), options);
    assert!(output.status.success(), "{name}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    let read = |ending: &str| fs::read_to_string(out.path().join(format!("{name}.{ending}"))).unwrap();
    let (csv, svg, page) = (read("csv"), read("svg"), read("html"));
    let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!(columns, vec![columns[0]; 1 + rows], "{name}.csv: {csv}");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{name}.svg: {svg}");
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"), "{name}.html: {page}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no {key} in {value}"))
}

/// Each fault was counted once in each histogram, and late are those beyond the bound.
fn check_kept(kept: &Value) {
    let sum = |name: &str, from: u64| -> u64 {
        let buckets = kept[name]["buckets"].as_array().unwrap();
        buckets
            .iter()
            .map(|bucket| (bucket[0].as_u64().unwrap(), bucket[1].as_u64().unwrap()))
            .filter(|(least, _)| *least >= from)
            .map(|(_, count)| count)
            .sum()
    };
    let count = number(&kept["lateness"], "count");
    assert_eq!((sum("lateness", 0), sum("latency", 0), number(&kept["latency"], "count")), (count, count, count));
    assert_eq!(number(kept, "late"), sum("lateness", 1024));
}

#[test]
fn stream_has_the_right_values_on_both_sides_of_the_boundary() {
    // Five sizes, four kernels.
    let found = expect("stream", &["--cache", "1MiB", "--capacity", "256MiB", "--rounds", "2"], 5 * 4);
    let sizes = found["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 5);
    for size in sizes {
        check_kept(&size["kept"]);
        assert_eq!(number(size, "faults"), number(&size["kept"]["latency"], "count"));
        // The program fails if a value is wrong; here each kernel ran.
        assert!(size["window_bytes_per_second"].as_array().unwrap().iter().all(|rate| rate.as_u64().unwrap() > 0));
    }
    // A quarter of the cache: each page is touched for the first time, and stays.
    let pages = (number(&sizes[0], "elements") * 24).div_ceil(4096);
    assert_eq!((number(&sizes[0], "faults"), number(&sizes[0], "evicted_dirty")), (pages, 0));
    // Twice the cache: nothing stays for the next kernel, and the arrays are stored to.
    assert!(number(&sizes[4], "faults") > 4 * 512 && number(&sizes[4], "evicted_dirty") > 512, "{}", sizes[4]);
}

#[test]
fn page_rank_in_a_window_is_page_rank_in_memory() {
    let options =
        ["--cache", "256KiB", "--capacity", "256MiB", "--scale-min", "10", "--scale-max", "11", "--iterations", "2"];
    let found = expect("cylon-graph", &options, 2);
    let sizes = found["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    for (size, scale) in sizes.iter().zip([10_u32, 11]) {
        check_kept(&size["kept"]);
        assert_eq!(number(size, "vertices"), 1 << scale);
        // Twice sixteen edges a vertex, less what is drawn twice; scores add up to one, less those without neighbours.
        let edges = number(size, "edges");
        assert!(edges > 16 << scale && edges < 32 << scale, "{edges}");
        assert!((200_000..=1_000_000).contains(&number(size, "score_ppm")), "{size}");
        assert!(number(size, "faults") >= number(size, "bytes") / 4096, "{size}");
    }
    // The larger one is beyond the cache: pages come back.
    let (bytes, faults) = (number(&sizes[1], "bytes"), number(&sizes[1], "faults"));
    assert!(bytes > 256 << 10 && faults > bytes / 4096, "{faults} faults for {bytes} bytes");
}

#[test]
fn pointers_hit_in_real_time_as_often_as_the_cache_is_large() {
    // 384 sets of 64 frames at the default are 48 MiB; here an eighth, in the same sets of 64.
    let options = ["--real-time", "--cache", "6MiB", "--loads", "4000"];
    // Points of the CMM-H and of the emulator; pointers in virtual time, and in real time, each with eight quantiles.
    // A page may be used until its mapper has unmapped it. On a machine that has no time for that more loads hit, but
    // never more than there are frames; then it is tried again.
    const FRAMES: u64 = 1536;
    // Three times the deviation of as many draws, and a bit for pages that are still mapped while they leave.
    const NEAR_PPM: u64 = 60_000;
    let is_near = |_attempt| {
        let found = expect("cylon-latency", &options, 7 + 21 + 7 + 4 * (2 + 8) + 4 * (3 + 8));
        assert_eq!(found["bandwidth"].as_array().unwrap().len(), 7);
        let runs = found["real_time"]["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 4);
        runs.iter().all(|run| {
            check_kept(&run["kept"]);
            check_kept(&run["scan_kept"]);
            let (hits, expected) = (number(run, "hit_ppm"), number(run, "hit_ppm_expected"));
            let most = (1_000_000 * FRAMES / number(run, "pages")).min(1_000_000);
            let bounds = expected.saturating_sub(NEAR_PPM)..=most + NEAR_PPM;
            assert!(bounds.contains(&hits), "{hits} ppm hit, {expected} expected: {run}");
            assert_eq!(number(run, "hit_ppm"), (4000 - number(run, "misses")) * 250);
            if hits > expected + NEAR_PPM {
                println!("{hits} ppm hit, {expected} expected: {run}");
            }
            hits <= expected + NEAR_PPM
        })
    };
    assert!((0..3).any(is_near), "in none of three runs");
}

#[test]
fn redis_serves_what_was_stored_at_each_size() {
    static LIBRARY: Once = Once::new();
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let may = setting.trim() == "1" || fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    if !may || !Path::new("/usr/bin/redis-server").exists() {
        common::skipped("this needs userfaultfd and redis-server");
        return;
    }
    LIBRARY.call_once(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "osier-preload"]).current_dir(root);
        assert!(cargo.status().unwrap().success(), "the library can be built");
    });
    // Three sizes, six quantiles.
    let found = expect("cylon-redis", &["--cache", "4MiB", "--capacity", "256MiB", "--requests", "400"], 3 * 6);
    let sizes = found["sizes"].as_array().unwrap();
    let records: Vec<u64> = sizes.iter().map(|size| number(size, "records")).collect();
    assert!(records.len() == 3 && records.is_sorted_by(|a, b| a < b), "{records:?}");
    for size in sizes {
        check_kept(&size["kept"]);
        // The program fails if a value is another than the one that was stored.
        assert_eq!(number(size, "requests"), 400);
        assert!(number(size, "heap_bytes_max") > number(size, "records") * 1024, "{size}");
    }
    assert!(number(&sizes[2], "misses") > 100, "more than the cache holds: {}", sizes[2]);
}

#[test]
fn what_an_experiment_cannot_do_is_said() {
    let refused = |name: &str, options: &[&str], code: i32| -> String {
        let out = tempfile::tempdir().unwrap();
        let output = exp(name, out.path(), options);
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{err}");
        assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0, "nothing was written");
        err
    };
    assert!(refused("stream", &["--cache", "1MiB", "--capacity", "1MiB"], 3).contains("give --capacity more"));
    assert!(refused("stream", &["--profile", "no-such-device"], 3).contains("no-such-device"));
    assert!(refused("cylon-graph", &["--scale-min", "12", "--scale-max", "11"], 3).contains("--scale-min 12"));
    assert!(refused("cylon-latency", &["--cache", "1MiB"], 2).contains("--real-time"));
    assert!(refused("cylon-latency", &["--scale", "3"], 3).contains("--scale 3"));
    let out = tempfile::tempdir().unwrap();
    let mut bare = Command::new(env!("CARGO_BIN_EXE_osier"));
    bare.args(["--json", "exp", "cylon-redis", "--out"]).arg(out.path()).env("PATH", out.path());
    let output = bare.output().unwrap();
    assert_eq!(output.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&output.stderr).contains("install it"), "{output:?}");
}
