//! `osier trace` as a user meets it: output, exit codes, errors, and that a trace is written whole or not at all.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.arg("trace").args(args).current_dir(self.dir.path()).env_clear().env("HOME", self.dir.path());
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

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/sim/tests/traces").join(name);
    path.canonicalize().unwrap().into_os_string().into_string().unwrap()
}

#[test]
fn a_trace_is_examined_for_people_and_for_programs() {
    let place = Place::new();
    let (out, _) = place.expect(0, &["info", &golden("msr.csv.gz")]);
    let has = |name: &str, value: &str| {
        let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {out}"));
        assert!(line.ends_with(value), "{line}");
    };
    has("format", " msr");
    has("compression", " gzip");
    has("requests", " 60");
    has("tenants", " 2");
    has("bad lines", " 0");
    assert!(out.contains("SIZE") && out.contains("####"), "{out}");
    let (out, _) = place.expect(0, &["info", &golden("oracle-general.bin.zst"), "--json"]);
    let shown = json(&out);
    assert_eq!((&shown["format"], &shown["compression"]), (&"oracle-general".into(), &"zstd".into()));
    assert_eq!((&shown["requests"], &shown["bytes"]), (&200.into(), &(200 * 4096).into()));
    assert_eq!((&shown["span_ns"], &shown["bad_lines"]), (&19_000_000_000_u64.into(), &0.into()));
    let (out, _) = place.expect(0, &["info", &golden("lackey.txt"), "--json"]);
    assert_eq!(json(&out)["span_ns"], Value::Null, "there are no times in it");
}

#[test]
fn standard_input_is_a_trace_too() {
    let place = Place::new();
    let args = ["info", "-", "--json"];
    let file = fs::File::open(golden("mqsim.txt")).unwrap();
    let output = place.command(&args).stdin(Stdio::from(file)).output().unwrap();
    assert_eq!(json(&check(0, &args, &output).0)["requests"], 50);
    let output = place.command(&args).stdin(Stdio::null()).output().unwrap();
    let (_, err) = check(3, &args, &output);
    assert_eq!(json(&err)["error"], "standard input: the trace is empty");
}

#[test]
fn a_trace_is_converted_to_each_format_and_back() {
    let place = Place::new();
    let original = golden("mqsim.txt");
    place.expect(0, &["convert", &original, "a.csv", "--to", "msr"]);
    place.expect(0, &["convert", "a.csv", "b.txt", "--to", "mqsim"]);
    place.expect(0, &["convert", "b.txt", "c.csv", "--to", "msr"]);
    assert_eq!(fs::read(place.path("a.csv")).unwrap(), fs::read(place.path("c.csv")).unwrap());
    let (out, _) = place.expect(0, &["convert", &original, "d.bin", "--to", "oracle-general", "--time-scale", "1000"]);
    assert!(out.starts_with("wrote 50 requests to d.bin") && out.contains("whole seconds"), "{out}");
    let figures = |name: &str| json(&place.expect(0, &["info", name, "--json"]).0);
    let pages = figures(&original)["footprint_pages"].clone();
    assert_eq!(figures("d.bin")["footprint_pages"], pages);
    let compact = ["convert", &original, "e.mem", "--to", "mem", "--capacity", "64MiB", "--remap", "compact"];
    place.expect(0, &compact);
    let last = figures("e.mem");
    assert_eq!((&last["footprint_pages"], &last["format"]), (&pages, &"mem".into()));
    assert_eq!(last["address_end"].as_u64().unwrap().div_ceil(4096), pages.as_u64().unwrap());
}

#[test]
fn what_cannot_be_converted_says_why_and_leaves_nothing() {
    let place = Place::new();
    fs::write(place.path("kept"), "mine").unwrap();
    let mixed = format!("{}{}", fs::read_to_string(golden("msr.csv")).unwrap(), "4851300 0 1024 8 1\n".repeat(20));
    fs::write(place.path("mixed"), mixed).unwrap();
    let bytes = fs::read(golden("msr.csv.gz")).unwrap();
    fs::write(place.path("cut.gz"), &bytes[..bytes.len() - 20]).unwrap();
    let before = place.files();
    let (msr, lackey, blkparse) = (golden("msr.csv"), golden("lackey.txt"), golden("blkparse.txt"));
    let cases: [(&[&str], &str); 11] = [
        (&[&msr, "kept", "--to", "mqsim"], "exists already"),
        (&[&msr, "out", "--to", "mqsim", "--capacity", "1MiB"], "beyond the capacity"),
        (&[&msr, "out", "--to", "mqsim", "--capacity", "5000"], "pages of 4096"),
        (&[&msr, "out", "--to", "mqsim", "--capacity", "much"], "not a size"),
        (&[&msr, "out", "--to", "mqsim", "--strict"], "line 22 is earlier"),
        (&[&lackey, "out", "--to", "msr"], "--interval-ns"),
        (&[&blkparse, "out", "--to", "msr"], "is a trim"),
        (&["mixed", "out", "--to", "mqsim"], "look like `mqsim`"),
        (&["cut.gz", "out", "--to", "mqsim"], "cut off"),
        (&["absent", "out", "--to", "mqsim"], "absent failed"),
        (&[&msr, "out", "--to", "mem", "--format", "lackey"], "look like `msr`"),
    ];
    for (args, expected) in cases {
        let args = [&["convert"], args].concat();
        let (_, err) = place.expect(3, &args);
        assert!(err.contains(expected), "{args:?}: {err}");
        assert!(err.starts_with("osier: ") && err.lines().count() == 1, "{err}");
    }
    assert_eq!(place.files(), before);
    assert_eq!(fs::read(place.path("kept")).unwrap(), b"mine");
    place.expect(0, &["convert", &msr, "kept", "--to", "mqsim", "--overwrite"]);
    assert!(fs::metadata(place.path("kept")).unwrap().len() > 100);
    place.expect(2, &["convert", &msr, "out", "--to", "mqsim", "--time-scale", "0"]);
    place.expect(2, &["convert", &msr, "out", "--to", "tape"]);
}

#[test]
fn bad_lines_are_left_out_and_said() {
    let place = Place::new();
    let lines: String = (0..50).map(|i| format!("{i}00 0 {i} 8 1\n")).collect();
    fs::write(place.path("t"), lines + "5000 0 1 0 1\nnonsense\n").unwrap();
    let (out, err) = place.expect(0, &["convert", "t", "o", "--to", "msr"]);
    assert!(out.contains("wrote 50 requests") && out.contains("2 bad lines left out"), "{out}");
    assert!(err.contains("line 51 asks for no bytes") && err.contains("line 52 ") && err.contains("nonsense"), "{err}");
    let (out, _) = place.expect(0, &["info", "t"]);
    assert!(out.contains("zero length         1") && out.contains("line 52 "), "{out}");
    let (out, _) = place.expect(0, &["info", "t", "--json"]);
    assert_eq!((&json(&out)["bad_lines"], &json(&out)["bad_first"][0]["number"]), (&2.into(), &51.into()));
    let (_, err) = place.expect(3, &["info", "t", "--strict"]);
    assert!(err.contains("t: line 51 asks for no bytes"), "{err}");
}

#[test]
fn the_trace_of_a_workload_is_made() {
    let place = Place::new();
    let (out, _) = place.expect(0, &["workloads"]);
    assert!(out.contains("cylon-seq") && out.contains("Table 3"), "{out}");
    let (text, _) = place.expect(0, &["workloads", "cylon-stride-4096"]);
    fs::write(place.path("w.toml"), text).unwrap();
    let make = ["make", "w.toml", "a.mem", "--to", "mem", "--service-ns", "100", "--requests", "1000"];
    place.expect(0, &make);
    place.expect(0, &["make", "cylon-stride-4096", "b.mem", "--to", "mem", "--service-ns", "9", "--requests", "1000"]);
    assert_eq!(fs::read(place.path("a.mem")).unwrap(), fs::read(place.path("b.mem")).unwrap());
    let (out, _) = place.expect(0, &["info", "a.mem", "--json"]);
    assert_eq!((&json(&out)["requests"], &json(&out)["footprint_pages"]), (&1000.into(), &1000.into()));
    let before = place.files();
    fs::write(place.path("bad.toml"), "seed = 1\njobs = 3\n").unwrap();
    for (args, expected) in [
        (&["make", "w.toml", "o", "--to", "mem"][..], "--service-ns"),
        (&["make", "bad.toml", "o", "--to", "mem"], "bad.toml, line 2: unknown"),
        (&["make", "cylon", "o", "--to", "mem"], "cylon-rand"),
        (&["make", "./absent.toml", "o", "--to", "mem"], "absent.toml failed"),
        (&["workloads", "cylon"], "cylon-rand"),
    ] {
        let (_, err) = place.expect(3, args);
        assert!(err.contains(expected) && err.lines().count() == 1, "{args:?}: {err}");
    }
    fs::remove_file(place.path("bad.toml")).unwrap();
    assert_eq!(place.files(), before);
}

/// The limit of a file's size stands for a full disk: it needs no privilege.
#[test]
fn a_trace_that_finds_no_room_is_code_7_and_leaves_nothing() {
    let place = Place::new();
    let script = "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\"";
    let make = ["trace", "make", "cylon-seq", "o", "--to", "mem", "--service-ns", "1", "--requests", "100000"];
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_osier")]).args(make);
    let output = shell.current_dir(place.dir.path()).env("HOME", place.dir.path()).output().unwrap();
    let (_, err) = check(7, &make, &output);
    assert!(err.contains("free some space"), "{err}");
    assert_eq!(place.files(), [""; 0]);
}
