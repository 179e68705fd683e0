//! `osier sweep` as a user meets it: kills, interrupts, damage and bad input.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const WORKLOAD: &str = r#"seed = 1

[[job]]
name = "mixed"

[[job.phase]]
requests = REQUESTS
pattern = { zipf = { theta_permille = 900 } }
mix = { read_permille = 700, write_permille = 300 }
range_bytes = 134_217_728
block_bytes = 4096
arrivals = { closed = { depth = 4 } }
"#;

const SWEEP: &str = r#"description = "Policies by size"
profile = "cylon"
workloads = ["./w.toml"]
seeds = [1, 2]
columns = ["requests", "hit_ppm", "latency_p99_ns", "waf_ppm"]

[[axis]]
key = "cache.eviction"
values = ["fifo", "clock", "s3-fifo"]

[[axis]]
key = "cache.prefetch"
values = ["none", "next-n"]

[run]
capacity_bytes = 1_073_741_824
"#;

const POINTS: usize = 12;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(requests: u32, sweep: &str) -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(place.path("w.toml"), WORKLOAD.replace("REQUESTS", &requests.to_string())).unwrap();
        fs::write(place.path("s.toml"), sweep).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.arg("sweep").args(args).current_dir(self.dir.path()).env_clear().env("HOME", self.dir.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self) -> Child {
        self.command(&["s.toml", "--jobs", "2"]).spawn().unwrap()
    }

    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        let output: Output = self.command(args).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        (out, err)
    }

    fn results(&self) -> (String, String) {
        (fs::read_to_string(self.path("s.csv")).unwrap(), fs::read_to_string(self.path("s.html")).unwrap())
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Waits until so many points are in the journal.
    fn wait_for_points(&self, points: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        let done = || fs::read_to_string(self.path("s.csv.journal")).unwrap_or_default().lines().count();
        while done() <= points {
            assert!(Instant::now() < until, "{points} points took a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

fn whole(requests: u32) -> (String, String) {
    let place = Place::new(requests, SWEEP);
    place.expect(0, &["s.toml", "--jobs", "1"]);
    assert_eq!(place.files(), ["s.csv", "s.html", "s.toml", "w.toml"]);
    place.results()
}

#[test]
fn killed_or_interrupted_and_gone_on_a_sweep_has_the_same_bytes_as_in_one_go() {
    let requests = 60_000;
    let expected = whole(requests);
    assert_eq!(expected.0.lines().count(), 1 + POINTS);
    for signal in ["-KILL", "-INT"] {
        let place = Place::new(requests, SWEEP);
        let mut stops = 0;
        for points in [1, 4, 7] {
            let child = place.start();
            place.wait_for_points(points);
            // It was not waited for, so its number is still its own.
            Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
            let output = child.wait_with_output().unwrap();
            stops += i32::from(!output.status.success());
            let err = String::from_utf8(output.stderr).unwrap();
            let is_told = output.status.code().is_some_and(|code| code != 0);
            // One that goes on has points from its start, when nothing listens to a signal yet.
            assert!(signal == "-KILL" || output.status.success() || is_told || points > 1, "{err}");
            if signal == "-INT" && is_told {
                assert!(err.contains("which are kept; the same command goes on from there"), "{err}");
                let journal = fs::read_to_string(place.path("s.csv.journal")).unwrap();
                assert!(journal.ends_with("}\n"), "{journal}");
            }
            if output.status.success() {
                break;
            }
            assert_eq!(place.files(), ["s.csv.journal", "s.toml", "w.toml"]);
        }
        assert!(stops > 0, "each run had ended before it was to be stopped");
        // As a loss of power may leave it.
        if let Ok(mut journal) = fs::read(place.path("s.csv.journal")) {
            journal.truncate(journal.len() - 5);
            fs::write(place.path("s.csv.journal"), journal).unwrap();
            let (_, err) = place.expect(0, &["s.toml"]);
            assert!(err.contains("osier: going on after "), "{err}");
        }
        assert_eq!(place.results(), expected);
        assert_eq!(place.files(), ["s.csv", "s.html", "s.toml", "w.toml"]);
    }
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let expected = whole(2000);
    let place = Place::new(2000, SWEEP);
    for jobs in ["1", "2", "3", "16"] {
        let (out, _) = place.expect(0, &["s.toml", "--jobs", jobs, "--overwrite", "--json"]);
        let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&shown["points"], &shown["failed"]), (&POINTS.into(), &0.into()));
        assert_eq!(place.results(), expected, "{jobs} threads");
    }
}

/// The figures of a results file: the columns after the seed, without the error.
fn figures_of(csv: &str) -> Vec<Vec<String>> {
    let rows = csv.lines().skip(1).map(|line| line.split(',').map(str::to_owned).collect::<Vec<_>>());
    rows.map(|cells| cells[cells.len() - 5..cells.len() - 1].to_vec()).collect()
}

#[test]
fn an_axis_of_the_workload_gives_what_workloads_changed_by_hand_give() {
    let axis = "[[axis]]\nkey = \"workload.queue_depth\"\nvalues = [1, 4, 16]\n";
    let head = SWEEP.split("[[axis]]").next().unwrap();
    let tail = "\n[run]\ncapacity_bytes = 1_073_741_824\n";
    let place = Place::new(3000, &format!("{head}{axis}{tail}"));
    place.expect(0, &["s.toml"]);
    let swept = figures_of(&place.results().0);
    let by_hand: Vec<Vec<String>> = [1, 4, 16]
        .into_iter()
        .flat_map(|depth| {
            let place = Place::new(3000, &format!("{head}{tail}"));
            let workload = fs::read_to_string(place.path("w.toml")).unwrap();
            fs::write(place.path("w.toml"), workload.replace("depth = 4", &format!("depth = {depth}"))).unwrap();
            place.expect(0, &["s.toml"]);
            figures_of(&place.results().0)
        })
        .collect();
    assert_eq!(swept, by_hand);
    assert_eq!(swept.len(), 6);
    assert!(swept[0] != swept[2] && swept[2] != swept[4], "the depth counts: {swept:?}");
    for (key, word) in [("workload.colour", "colour"), ("workload.job.2.phase.1.block_bytes", "there are 1")] {
        let text = format!("{head}{axis}{tail}").replace("workload.queue_depth", key);
        let place = Place::new(10, &text);
        let (_, err) = place.expect(3, &["s.toml"]);
        assert!(err.contains("the axis") && err.contains(word) && err.contains("line 8"), "{err}");
        assert_eq!(place.files(), ["s.toml", "w.toml"]);
    }
    let same = axis.replace("queue_depth", "arrivals.closed.depth").replace("[1, 4, 16]", "[2, 8]");
    let place = Place::new(10, &format!("{head}{axis}{same}{tail}"));
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("its axes together") && err.contains("takes its place"), "{err}");
}

/// Rows of such a grid would name a size that their runs did not have.
#[test]
fn two_axes_that_are_one_key_of_the_profile_are_refused() {
    let with = |from: &str, to: &str, text: &str| text.replace(from, to);
    let text = with(
        "\"cache.eviction\"\nvalues = [\"fifo\", \"clock\", \"s3-fifo\"]",
        "\"cache.size.permille\"\nvalues = [10, 20]",
        SWEEP,
    );
    let text = with(
        "\"cache.prefetch\"\nvalues = [\"none\", \"next-n\"]",
        "\"cache.size.bytes\"\nvalues = [67_108_864, 134_217_728]",
        &text,
    );
    let place = Place::new(2000, &text);
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("its axes together") && err.contains("takes its place"), "{err}");
    assert!(err.contains("cache.size.permille"), "{err}");
    assert_eq!(place.files(), ["s.toml", "w.toml"]);
}

/// A time of 2007, as MSR's traces have it.
const FILETIME: u64 = 128_166_372_003_061_629;

/// A trace of random pages, as lines of MSR's.
fn trace(requests: u64, first_time: u64) -> String {
    let line = |number: u64| {
        let (time, page) = (first_time + number * 50_000, number * 7_919 % 65_536);
        let op = if number.is_multiple_of(3) { "Write" } else { "Read" };
        format!("{time},host,0,{op},{},4096,0\n", page * 4096)
    };
    (0..requests).map(line).collect()
}

#[test]
fn a_trace_gives_in_a_sweep_what_it_gives_alone() {
    for (traces, options) in [
        ("", &[][..]),
        ("traces = { depth = 8 }", &["--depth", "8"][..]),
        ("traces = { time_permille = 100 }\naddresses = \"modulo\"", &["--time-scale", "1/10"]),
    ] {
        let sweep = SWEEP.replace("./w.toml", "./t.csv").replace("[run]", &format!("[run]\n{traces}"));
        let place = Place::new(1, &sweep);
        fs::write(place.path("t.csv"), trace(3_000, FILETIME)).unwrap();
        place.expect(0, &["s.toml"]);
        let rows = figures_of(&place.results().0);
        assert_eq!(rows.len(), POINTS);
        for (number, row) in rows.iter().enumerate() {
            let set = ["fifo", "clock", "s3-fifo"][number / 4];
            let (eviction, prefetch) = (format!("cache.eviction={set}"), ["none", "next-n"][number / 2 % 2]);
            let prefetch = format!("cache.prefetch={prefetch}");
            let seed = (number % 2 + 1).to_string();
            let mut sim = Command::new(env!("CARGO_BIN_EXE_osier"));
            sim.args(["--json", "sim", "--quiet", "--profile", "cylon", "--workload", "./t.csv", "--capacity", "1GiB"]);
            sim.args(["--set", &eviction, "--set", &prefetch, "--seed", &seed, "--addresses", "modulo"]).args(options);
            let output = sim.current_dir(place.dir.path()).output().unwrap();
            let alone: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let of_sim = [
                &alone["run"]["requests"],
                &alone["cache"]["hit_ppm"],
                &alone["latency"]["all"]["latency"]["p99_ns"],
                &alone["flash"]["waf_ppm"],
            ];
            assert_eq!(
                *row,
                of_sim.map(|value| if value.is_null() { String::new() } else { value.to_string() }),
                "{alone}"
            );
        }
    }
}

#[test]
fn a_trace_that_is_bad_or_has_no_keys_is_refused_before_anything_runs() {
    let sweep = SWEEP.replace("./w.toml", "./t.csv");
    let place = Place::new(
        1,
        &sweep.replace("cache.prefetch\"\nvalues = [\"none\", \"next-n\"]", "workload.block_bytes\"\nvalues = [4096]"),
    );
    fs::write(place.path("t.csv"), trace(10, FILETIME)).unwrap();
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("./t.csv is a trace, which has no workload.block_bytes"), "{err}");
    let place = Place::new(1, &sweep);
    fs::write(place.path("t.csv"), trace(500, FILETIME) + "nonsense\n" + &trace(500, FILETIME * 2)).unwrap();
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("line 501") && err.contains("nothing was written"), "{err}");
    assert_eq!(place.files(), ["s.toml", "t.csv", "w.toml"]);
}

#[test]
fn results_of_another_sweep_are_refused_and_never_mixed() {
    let place = Place::new(60_000, SWEEP);
    let mut child = place.start();
    place.wait_for_points(2);
    child.kill().unwrap();
    child.wait().unwrap();
    let journal = fs::read(place.path("s.csv.journal")).unwrap();
    let workload = fs::read_to_string(place.path("w.toml")).unwrap();
    for (file, from, to) in [("s.toml", "seeds = [1, 2]", "seeds = [1, 3]"), ("w.toml", "900", "800")] {
        let text = fs::read_to_string(place.path(file)).unwrap();
        fs::write(place.path(file), text.replace(from, to)).unwrap();
        let (_, err) = place.expect(3, &["s.toml"]);
        assert!(err.contains("another sweep") && err.contains("s.csv.journal"), "{err}");
        assert_eq!(fs::read(place.path("s.csv.journal")).unwrap(), journal);
        fs::write(place.path(file), text).unwrap();
    }
    assert_eq!(fs::read_to_string(place.path("w.toml")).unwrap(), workload);
    let mut damaged = journal.clone();
    let second_line = journal.iter().position(|byte| *byte == b'\n').unwrap() + 20;
    damaged[second_line] ^= 1;
    fs::write(place.path("s.csv.journal"), damaged).unwrap();
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("line 2 of the journal s.csv.journal is damaged"), "{err}");
    fs::write(place.path("s.csv.journal"), journal).unwrap();
    place.expect(0, &["s.toml"]);
    let (_, err) = place.expect(3, &["s.toml"]);
    assert!(err.contains("s.csv exists already") && err.contains("--overwrite"), "{err}");
}

#[test]
fn a_point_that_cannot_be_run_is_a_row_with_its_reason_and_ends_a_strict_sweep() {
    // A set of 8 frames cannot keep 9 free.
    let sweep = SWEEP
        .replace("\"cache.prefetch\"\nvalues = [\"none\", \"next-n\"]", "\"cache.reserve_frames\"\nvalues = [0, 9]");
    let sweep = sweep + "\n[set]\ncache.ways = 8\n";
    let place = Place::new(2000, &sweep);
    let (out, _) = place.expect(0, &["s.toml"]);
    assert!(out.contains("12 points, 6 without a result"), "{out}");
    let (csv, page) = place.results();
    let failed: Vec<&str> = csv.lines().filter(|line| line.contains(",9,./w.toml,")).collect();
    assert_eq!(failed.len(), 6);
    assert!(failed.iter().all(|line| line.contains("reserve_frames") && line.contains(",,,")), "{csv}");
    assert!(page.contains("6 of 12 points failed"));
    let strict = Place::new(2000, &sweep);
    let (_, err) = strict.expect(3, &["s.toml", "--strict", "--jobs", "1"]);
    assert!(
        err.contains("point 2 (cache.ways = 8, cache.eviction = fifo, cache.reserve_frames = 9) cannot be run"),
        "{err}"
    );
    assert_eq!(strict.files(), ["s.csv.journal", "s.toml", "w.toml"]);
}

#[test]
fn a_sweep_without_a_figure_is_no_result() {
    let place = Place::new(2000, &(SWEEP.to_owned() + "\n[set]\ncache.ways = 8\ncache.reserve_frames = 9\n"));
    let (out, err) = place.expect(3, &["s.toml"]);
    assert!(
        out.is_empty() && err.contains("none of the 12 points can be run, and nothing was written: "),
        "{out}{err}"
    );
    assert!(err.contains("reserve_frames"), "{err}");
    assert_eq!(place.files(), ["s.toml", "w.toml"]);
}

#[test]
fn bad_input_is_refused_by_name_and_leaves_nothing() {
    for (from, to, expected) in [
        ("columns", "colums", "s.toml, line 5: unknown field `colums`"),
        ("\"waf_ppm\"", "\"waf\"", "line 5: `waf` of columns is no figure; choose of requests, "),
        ("[\"none\", \"next-n\"]", "[]", "line 13: the axis cache.prefetch has 0 items"),
        ("\"cache.prefetch\"", "\"cache.eviction\"", "line 12: the axis cache.eviction is there twice"),
        ("\"cache.prefetch\"", "\"cache.prefetcher\"", "line 12: the axis cache.prefetcher: "),
        ("[\"none\", \"next-n\"]", "[\"none\", 3]", "line 12: the axis cache.prefetch: "),
        ("[run]", "[set]\ncache.frame = 3\n[run]", "[set]: setting cache.frame"),
        ("\"cylon\"", "\"floppy\"", "floppy"),
        ("\"cylon\"", "\"./none.toml\"", "none.toml"),
        ("./w.toml", "./none.toml", "none.toml"),
        ("./w.toml", "cylon", "cylon-seq"),
        ("./w.toml", "./w.csv.gz", "reading the trace ./w.csv.gz failed"),
        ("./w.toml", "./s.toml.bad", "reading the trace ./s.toml.bad failed"),
        ("[run]", "[run]\ntraces = { depth = 4 }", "run.traces says how traces are replayed, and no workload"),
        ("[run]", "[run]\ntraces = { time_permille = 0 }", "run.traces.time_permille is 0"),
        ("[run]", "[run]\naddresses = \"wrap\"", "addresses is `wrap`; choose of refuse, modulo, compact"),
        ("profile = ", "profile ", "line 2"),
    ] {
        assert!(SWEEP.contains(from), "{from}");
        let place = Place::new(2000, &SWEEP.replacen(from, to, 1));
        let (_, err) = place.expect(3, &["s.toml"]);
        assert!(err.contains(expected) && err.lines().count() == 1, "{to}: {err}");
        assert_eq!(place.files(), ["s.toml", "w.toml"], "{to}");
    }
    let place = Place::new(2000, SWEEP);
    place.expect(3, &["none.toml"]);
    let (_, err) = place.expect(3, &["s.toml", "--out", "s.txt"]);
    assert!(err.contains("must end in .csv"), "{err}");
    assert_eq!(place.files(), ["s.toml", "w.toml"]);
}
