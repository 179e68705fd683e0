//! `osier cache` as a user meets it: policies by name and by path, figures, exit codes, errors.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    /// With a trace `t` of loads and stores that no policy serves as the optimum does.
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        let line =
            |i: u64| format!("{} {:#x}\n", if i.is_multiple_of(5) { "W" } else { "R" }, (i * i % 97 + i % 7) * 4096);
        fs::write(place.path("t"), (0..5000).map(line).collect::<String>()).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs, and insists on the exit code; gives back what was printed.
    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.arg("cache").args(args).current_dir(self.dir.path()).env_clear().env("HOME", self.dir.path());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        (out, err)
    }

    fn runs(&self, args: &[&str]) -> Vec<Value> {
        let (out, _) = self.expect(0, &[&["replay", "--json"], args].concat());
        let value: Value = serde_json::from_str(&out).unwrap();
        value["runs"].as_array().unwrap().clone()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn prebuilt(name: &str) -> String {
    root().join("actors/prebuilt").join(name).into_os_string().into_string().unwrap()
}

/// All but the policy's name.
fn figures(run: &Value) -> Value {
    let mut run = run.clone();
    run.as_object_mut().unwrap().remove("policy");
    run
}

#[test]
fn a_module_by_its_path_gives_the_figures_of_the_policy_by_its_name() {
    let place = Place::new();
    fs::copy(prebuilt("policies/sieve.wasm"), place.path("my.wasm")).unwrap();
    let fifo = prebuilt("policies/fifo.wasm");
    let policies = ["--policy", "sieve", "--policy", "my.wasm", "--policy", "fifo", "--policy", &fifo];
    for shape in [&["--frames", "20,60"][..], &["--frames", "64", "--ways", "8"]] {
        let runs = place.runs(&[&["--trace", "t"], &policies[..], shape].concat());
        for of_size in runs.chunks(5) {
            assert_eq!(figures(&of_size[0]), figures(&of_size[1]));
            assert_eq!(figures(&of_size[2]), figures(&of_size[3]));
            assert_ne!(figures(&of_size[0]), figures(&of_size[2]));
            let misses = |run: &Value| run["misses"].as_u64().unwrap();
            assert_eq!(of_size[4]["policy"], "belady");
            assert!(of_size.iter().all(|run| misses(run) >= misses(&of_size[4]) && run["requests"] == 5000));
            assert!(of_size.iter().all(|run| misses(run) + run["hits"].as_u64().unwrap() == 5000));
        }
    }
}

#[test]
fn a_replay_is_shown_for_people_and_is_the_same_each_time() {
    let place = Place::new();
    let args = ["replay", "--trace", "t", "--frames", "30"];
    let (out, _) = place.expect(0, &args);
    assert!(out.starts_with("t: 5000 requests for pages of 4 KiB\n"), "{out}");
    assert!(out.contains("FRAMES") && out.contains(" %") && out.contains("belady"), "{out}");
    assert_eq!(out.lines().count(), 3 + 9 + 1, "every policy that has a name, and the optimum: {out}");
    assert_eq!(place.expect(0, &args).0, out);
    let (out, _) = place.expect(0, &["policies"]);
    assert!(out.contains("sieve") && out.contains("small_permille=100"), "{out}");
    let all: Value = serde_json::from_str(&place.expect(0, &["policies", "--json"]).0).unwrap();
    assert_eq!(all.as_array().unwrap().len(), 9);
}

#[test]
fn what_a_request_touches_is_counted_by_pages() {
    let place = Place::new();
    fs::write(place.path("m"), "100 0 7 2 1\n200 0 8 8 0\n300 0 0 24 1\n".repeat(20)).unwrap();
    let runs = place.runs(&["--trace", "m", "--format", "mqsim", "--frames", "10", "--policy", "lru"]);
    // Sectors 7 and 8 are in pages 0 and 1; 8 to 15 are page 1; 0 to 23 are pages 0 to 2.
    assert_eq!((&runs[0]["requests"], &runs[0]["misses"]), (&120.into(), &3.into()));
    assert_eq!((&runs[0]["reads"], &runs[0]["writes"]), (&100.into(), &20.into()));
    let golden = root().join("crates/sim/tests/traces/blkparse.txt").into_os_string().into_string().unwrap();
    let (out, _) = place.expect(0, &["replay", "--trace", &golden, "--frames", "10", "--policy", "lru"]);
    assert!(out.lines().next().unwrap().ends_with("trims and flushes left out"), "{out}");
}

#[test]
fn parameters_reach_a_policy_or_are_refused_by_name() {
    let place = Place::new();
    let module = prebuilt("policies/clean-first.wasm");
    let with = |window: u32| format!("{module}:window_permille={window}");
    let (fifo, half) = (with(0), with(500));
    let runs =
        place.runs(&["--trace", "t", "--frames", "40", "--policy", "fifo", "--policy", &fifo, "--policy", &half]);
    assert_eq!(figures(&runs[0]), figures(&runs[1]), "without a window it is FIFO");
    let dirty = |run: &Value| run["evicted_dirty"].as_u64().unwrap();
    assert!(dirty(&runs[2]) < dirty(&runs[1]), "with one it spares the flash programs");
    for (word, says) in [
        (format!("{module}:window=1"), "has no parameter `window`; it has window_permille"),
        (with(1001), "`window_permille` is 1001, which is outside 0..=1000"),
        (format!("{module}:window_permille=much"), "is not KEY=NUMBER"),
        ("s3-fifo:small=1".to_owned(), "has no parameter `small`"),
    ] {
        let (_, err) = place.expect(3, &["replay", "--trace", "t", "--frames", "40", "--policy", &word]);
        assert!(err.contains(says) && err.lines().count() == 1, "{err}");
    }
}

/// A policy in the text format, whose victim is what `victim` says.
fn policy(victim: &str) -> Vec<u8> {
    let text = format!(
        r#"(module (memory (export "memory") 1)
             (func (export "osier_policy_abi") (result i32) (i32.const 1))
             (func (export "osier_policy_new") (param i32 i32 i32 i64) (result i32) (i32.const 8))
             (func (export "osier_policy_events") (param i32))
             (func (export "osier_policy_victim") (param i32 i32 i32) (result i32) {victim}))"#
    );
    wat::parse_str(text).unwrap()
}

#[test]
fn a_policy_that_misbehaves_or_is_none_is_an_error_and_prints_no_result() {
    let place = Place::new();
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("trap.wasm", policy("unreachable"), "`osier_policy_victim` failed: wasm trap: wasm `unreachable`"),
        ("loop.wasm", policy("(loop (br 0)) (i32.const 0)"), "`osier_policy_victim` failed: it did not end within"),
        ("grow.wasm", policy("(memory.grow (i32.const 60000))"), "`osier_policy_victim` failed: it asks for"),
        ("wrong.wasm", policy("(i32.const 20)"), "it named frame 20 as the victim of set 0"),
        ("none.wasm", policy("(i32.const -1)"), "it named no victim of set 0"),
        ("text.wasm", b"fn main() {}".to_vec(), "is not a WebAssembly module"),
        ("cut.wasm", policy("unreachable")[..60].to_vec(), "compiling module cut.wasm"),
        ("actor.wasm", fs::read(prebuilt("lz4.wasm")).unwrap(), "imports `osier.lz4_compress`"),
    ];
    for (name, wasm, says) in &cases {
        fs::write(place.path(name), wasm).unwrap();
        let args = ["replay", "--trace", "t", "--frames", "20", "--policy", "fifo", "--policy", name];
        let (out, err) = place.expect(3, &args);
        assert!(err.contains(says) && err.contains(&format!("cache policy {name}: ")), "{err}");
        assert!(out.is_empty() && err.lines().count() == 1, "{out}{err}");
        let (_, err) = place.expect(3, &[&args[..], &["--json"]].concat());
        assert_eq!(serde_json::from_str::<Value>(&err).unwrap()["exit"], 3);
    }
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let place = Place::new();
    let mut traces = vec![("empty", String::new()), ("absurd", "Hello\n".repeat(50))];
    traces.push(("bad", "R 0x1000\n".repeat(50) + "R nowhere\n"));
    traces.iter().for_each(|(name, text)| fs::write(place.path(name), text).unwrap());
    for (args, code, says) in [
        (&["--trace", "absent", "--frames", "9"][..], 3, "absent failed"),
        (&["--trace", "empty", "--frames", "9"], 3, "the trace is empty"),
        (&["--trace", "absurd", "--frames", "9"], 3, "format is not recognized"),
        (&["--trace", "bad", "--frames", "9", "--strict"], 3, "line 51"),
        (&["--trace", "t", "--frames", "9", "--policy", "lur"], 3, "choose one of fifo"),
        (&["--trace", "t", "--frames", "9", "--policy", "./no.wasm"], 3, "cache policy ./no.wasm: reading it failed"),
        (&["--trace", "t", "--frames", "9", "--ways", "2"], 3, "`ways` is 2"),
        (&["--trace", "t", "--frames", "0"], 2, "--frames"),
        (&["--trace", "t", "--frames", "2000000000"], 3, "`frames` is 2000000000"),
        (&["--trace", "t"], 2, "--frames"),
    ] {
        let (out, err) = place.expect(code, &[&["replay"], args].concat());
        assert!(err.contains(says) && out.is_empty(), "{args:?}: {out}{err}");
    }
    let (out, err) = place.expect(0, &["replay", "--trace", "bad", "--frames", "9"]);
    assert!(err.contains("line 51") && out.contains("belady"), "{err}");
}
