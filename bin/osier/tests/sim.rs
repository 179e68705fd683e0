//! `osier sim` as a user meets it: what it prints and writes, exit codes, errors, and that a part of a run is no
//! result.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const WORKLOAD: &str = r#"
seed = 3
[[job]]
name = "a"
[[job.phase]]
requests = 2000
pattern = "uniform"
mix = { read_permille = 500, write_permille = 500 }
range_bytes = 67108864
block_bytes = 4096
arrivals = { closed = { depth = 8 } }
"#;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(place.path("w.toml"), WORKLOAD).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.arg("sim").args(["--profile", "cylon", "--capacity", "1GiB"]).args(args);
        // Fewer dies, so that a small device has as many superblocks as a large one.
        command.args(["--set", "geometry.channels=2", "--set", "geometry.chips_per_channel=2"]);
        command.current_dir(self.dir.path()).env_clear().env("HOME", self.dir.path());
        command
    }

    /// Runs, and insists on the exit code; gives back what was printed.
    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        check(code, args, &self.command(args).output().unwrap())
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn check(code: i32, args: &[&str], output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
    (out, err)
}

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/sim/tests/traces").join(name);
    path.canonicalize().unwrap().into_os_string().into_string().unwrap()
}

#[test]
fn a_run_is_shown_for_people_and_for_programs_and_written_as_asked() {
    let place = Place::new();
    let (out, err) = place.expect(0, &["--workload", "w.toml", "--precondition", "100%"]);
    for word in ["cylon", "2000 in ", "p99.9", "write amplification", "sense", "calibrated"] {
        assert!(out.contains(word), "{word} is not in {out}");
    }
    assert_eq!(err, "", "no progress if nobody sees it");
    let files = ["--json-file", "r.json", "--html", "r.html", "--per-io", "r.csv"];
    let args = [&["--workload", "w.toml", "--json"][..], &files].concat();
    let (out, _) = place.expect(0, &args);
    assert_eq!(fs::read_to_string(place.path("r.json")).unwrap(), out, "one result");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&report["version"], &report["run"]["requests"]), (&1.into(), &2000.into()));
    let page = fs::read_to_string(place.path("r.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script") && !page.contains("http://"), "asks for nothing");
    let log = fs::read_to_string(place.path("r.csv")).unwrap();
    assert_eq!(log.lines().count(), 2001);
    check_log(&log, &report);
    let (refused, err) = place.expect(3, &args);
    assert!(refused.is_empty() && err.contains("r.html exists already"), "{err}");
    let again = place.expect(0, &[&args[..], &["--overwrite"]].concat()).0;
    assert_eq!(
        again,
        serde_json::to_string(&report).map(|_| fs::read_to_string(place.path("r.json")).unwrap()).unwrap()
    );
}

/// Mean and longest latency, worked out from the log of requests, are those of the report; parts add up.
fn check_log(log: &str, report: &Value) {
    let (mut sum, mut longest) = (0, 0);
    for line in log.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |place: usize| fields[place].parse::<u64>().unwrap();
        let latency = number(7) - number(5);
        assert_eq!((10..fields.len()).map(number).sum::<u64>(), latency, "{line}");
        sum += latency;
        longest = longest.max(latency);
    }
    let latency = &report["latency"]["all"]["latency"];
    assert_eq!((&latency["mean_ns"], &latency["max_ns"]), (&(sum / 2000).into(), &longest.into()));
}

#[test]
fn the_same_command_gives_the_same_bytes_and_each_setting_counts() {
    let place = Place::new();
    let json = |more: &[&str]| place.expect(0, &[&["--workload", "w.toml", "--json"], more].concat()).0;
    let plain = json(&[]);
    assert_eq!(plain, json(&["--seed", "3"]), "which is the workload's own");
    let others: [&[&str]; 6] = [
        &["--seed", "4"],
        &["--precondition", "100%"],
        &["--set", "cache.eviction=lru", "--set", "timing.erase_ns=1000000"],
        &["--warm-up", "500"],
        &["--requests", "100"],
        &["--seconds", "0.001"],
    ];
    for other in others {
        let text = json(other);
        assert_ne!(text, plain, "{other:?}");
        assert!(serde_json::from_str::<Value>(&text).is_ok());
    }
    let report: Value = serde_json::from_str(&json(others[2])).unwrap();
    assert_eq!(report["device"]["set"]["cache.eviction"], "\"lru\"");
    let (log, compressed) = (place.path("a.csv"), place.path("a.csv.zst"));
    place.expect(0, &["--workload", "w.toml", "--per-io", "a.csv"]);
    place.expect(0, &["--workload", "w.toml", "--per-io", "a.csv.zst"]);
    let mut unpacked = String::new();
    let (_, mut bytes) = osier_sim::trace::unpack(fs::File::open(compressed).unwrap()).unwrap();
    std::io::Read::read_to_string(&mut bytes, &mut unpacked).unwrap();
    assert_eq!(unpacked, fs::read_to_string(log).unwrap());
}

#[test]
fn traces_are_replayed_also_from_standard_input_and_bad_lines_are_told() {
    let place = Place::new();
    let (out, _) = place.expect(0, &["--workload", &golden("msr.csv.gz"), "--addresses", "compact", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(report["workload"]["trace"]["format"], "msr");
    let mut text = fs::read_to_string(golden("mem.txt")).unwrap();
    text.push_str("R nowhere\nW 0x0 0\n");
    fs::write(place.path("bad.txt"), &text).unwrap();
    let args = ["--workload", "-", "--addresses", "modulo", "--json"];
    let output = place.command(&args).stdin(fs::File::open(place.path("bad.txt")).unwrap()).output().unwrap();
    let (out, err) = check(0, &args, &output);
    let report: Value = serde_json::from_str(&out).unwrap();
    let bad = &report["workload"]["trace"]["bad"];
    assert_eq!((&bad["malformed"], &bad["zero length"]), (&1.into(), &1.into()));
    assert!(err.contains("standard input: line ") && err.contains("nowhere"), "{err}");
    let (_, err) = place.expect(3, &["--workload", "./bad.txt", "--addresses", "modulo", "--strict"]);
    assert!(err.contains("nowhere"), "{err}");
}

#[test]
fn wrong_input_is_refused_in_one_line_and_leaves_nothing() {
    let place = Place::new();
    let mixed_up = format!("{}{}", fs::read_to_string(golden("msr.csv")).unwrap(), "1 0 8 8 1\n".repeat(20));
    fs::write(place.path("mixed"), mixed_up).unwrap();
    fs::write(place.path("empty"), "").unwrap();
    fs::write(place.path("words"), "this is no trace\n").unwrap();
    fs::write(place.path("wrong.toml"), WORKLOAD.replace("depth = 8", "deep = 8")).unwrap();
    fs::write(place.path("large.toml"), WORKLOAD.replace("range_bytes = 67108864", "range_bytes = 8589934592"))
        .unwrap();
    let huge = WORKLOAD.replace("block_bytes = 4096", "block_bytes = 134217728").replace("67108864", "134217728");
    fs::write(place.path("huge.toml"), huge).unwrap();
    fs::write(place.path("no-profile.toml"), "[device]\n").unwrap();
    let bytes = fs::read(golden("msr.csv.gz")).unwrap();
    fs::write(place.path("cut.gz"), &bytes[..bytes.len() - 20]).unwrap();
    let before = place.files();
    let msr = golden("msr.csv");
    let cases: [(&[&str], &str); 16] = [
        (&["--workload", "cylon-sideways"], "cylon-seq"),
        (&["--workload", "./absent"], "absent failed"),
        (&["--workload", "wrong.toml"], "deep"),
        (&["--workload", "large.toml"], "beyond the capacity"),
        (&["--workload", "huge.toml"], "cut it"),
        (&["--workload", "./empty"], "empty"),
        (&["--workload", "./words"], "not recognized"),
        (&["--workload", "./mixed", "--addresses", "modulo"], "mixed: "),
        (&["--workload", "./cut.gz", "--addresses", "modulo"], "cut off"),
        (&["--workload", &msr], "beyond the capacity"),
        (&["--workload", "w.toml", "--addresses", "compact"], "compact"),
        (&["--workload", "w.toml", "--depth", "3"], "--depth is for traces"),
        (&["--workload", "w.toml", "--set", "cache.evict=lru"], "evict"),
        (&["--workload", "w.toml", "--set", "cache.eviction=least"], "least"),
        (&["--workload", "w.toml", "--set", "cache.size.bytes=8589934592"], "cache"),
        (&["--workload", "w.toml", "--warm-up", "2000"], "warm-up"),
    ];
    for (args, expected) in cases {
        let args = [args, &["--json-file", "out.json", "--html", "out.html", "--per-io", "out.csv"]].concat();
        let (out, err) = place.expect(3, &args);
        assert!(out.is_empty() && err.contains(expected), "{args:?}: {err}");
        assert!(err.lines().last().unwrap().starts_with("osier: "), "{err}");
        assert_eq!(place.files(), before, "{args:?}");
    }
    for args in [["--requests", "0"], ["--seconds", "soon"], ["--precondition", "200%"], ["--set", "nothing"]] {
        place.expect(2, &[&["--workload", "w.toml"][..], &args].concat());
    }
    let mut other = Command::new(env!("CARGO_BIN_EXE_osier"));
    let args = ["sim", "--profile", "./no-profile.toml", "--workload", "w.toml"];
    let output = other.args(args).current_dir(place.dir.path()).output().unwrap();
    assert!(check(3, &args, &output).1.contains("no-profile.toml"));
}

#[test]
fn an_interrupt_ends_a_run_without_a_result() {
    let place = Place::new();
    fs::write(place.path("long.toml"), WORKLOAD.replace("requests = 2000", "requests = 4000000000")).unwrap();
    let before = place.files();
    let args = ["--workload", "long.toml", "--json-file", "out.json", "--per-io", "out.csv", "--html", "out.html"];
    let child = place.command(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The files that it has begun say that it is at work.
    while place.files().len() < before.len() + 3 {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(500));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let (out, err) = check(1, &args, &child.wait_with_output().unwrap());
    assert!(out.is_empty() && err.contains("stopped after") && err.contains("no result"), "{err}");
    assert_eq!(place.files(), before);
}

/// A prebuilt module that is an eviction policy.
fn module(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../actors/prebuilt/policies").join(name);
    path.canonicalize().unwrap().into_os_string().into_string().unwrap()
}

/// More than the cache holds, with pages that come again.
const REUSE: &str = r#"
seed = 5
[[job]]
name = "a"
[[job.phase]]
requests = 20000
pattern = { zipf = { theta_permille = 900 } }
mix = { load_permille = 700, store_permille = 300 }
range_bytes = 67108864
block_bytes = 64
align_bytes = 4096
arrivals = { closed = { depth = 4 } }
"#;

#[test]
fn a_policy_from_a_module_evicts_as_the_built_in_one_does() {
    let place = Place::new();
    fs::write(place.path("reuse.toml"), REUSE).unwrap();
    let result = |policy: &str| {
        let set = format!("cache.eviction={policy}");
        let sets = ["--set", &set, "--set", "cache.size.permille=5"];
        let (text, _) = place.expect(0, &[&["--workload", "reuse.toml", "--json", "--quiet"], &sets[..]].concat());
        let mut result: Value = serde_json::from_str(&text).unwrap();
        // What was set is a part of the result, and is what differs.
        result["device"].as_object_mut().unwrap().remove("set");
        result
    };
    let (fifo, sieve) = (result("fifo"), result("sieve"));
    assert!(fifo != sieve, "the workload tells the two apart");
    assert!(result(&module("fifo.wasm")) == fifo, "FIFO");
    assert!(result(&module("sieve.wasm")) == sieve, "SIEVE");
}

#[test]
fn a_policy_that_fails_ends_the_run_without_a_result() {
    let place = Place::new();
    fs::write(place.path("reuse.toml"), REUSE).unwrap();
    // Its victim is a frame that there is not.
    let wrong = r#"(module (memory (export "memory") 1)
        (func (export "osier_policy_abi") (result i32) (i32.const 1))
        (func (export "osier_policy_new") (param i32 i32 i32 i64) (result i32) (i32.const 8))
        (func (export "osier_policy_events") (param i32))
        (func (export "osier_policy_victim") (param i32 i32 i32) (result i32) (i32.const 99999999)))"#;
    fs::write(place.path("wrong.wasm"), wat::parse_str(wrong).unwrap()).unwrap();
    fs::write(place.path("text.wasm"), "no module").unwrap();
    for (name, says) in [("wrong", "it named frame 99999999"), ("text", "text.wasm"), ("absent", "absent.wasm")] {
        let set = format!("cache.eviction=./{name}.wasm");
        let args =
            ["--workload", "reuse.toml", "--set", "cache.size.permille=5", "--set", &set, "--json-file", "r.json"];
        let (out, error) = place.expect(3, &args);
        assert!(error.contains(says) && out.is_empty(), "{name}: {out}{error}");
        assert!(!place.path("r.json").exists(), "{name}");
    }
}
