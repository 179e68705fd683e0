//! How fast traces are read, beside libCacheSim 0.3.5: the same bytes, in the same run, in CPU seconds of one core.
//!
//! Ours are read from memory, the peer's from the page cache (it maps the file). What a peer's figure holds is in
//! `peer.py`. One JSON object a line for each figure.

use std::path::{Path, PathBuf};
use std::process::Command;

use osier_sim::trace::{Format, ReadOptions, Target, TraceReader, TraceWriter, unpack};
use osier_sim::workload::Workload;
use osier_sim::{Nanos, Op, Request, Rng, Source};
use rustix::time::{ClockId, clock_gettime};

const RECORDS: u64 = 5_000_000;
const LINES: u64 = 2_000_000;
const DRAWS: u64 = 5_000_000;
/// Runs of which the fastest counts, for both.
const RUNS: u32 = 3;

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// CPU seconds of the fastest of some runs.
fn fastest(mut run: impl FnMut()) -> f64 {
    let time = |_| {
        let start = cpu_seconds();
        run();
        cpu_seconds() - start
    };
    (0..RUNS).map(time).fold(f64::INFINITY, f64::min)
}

/// Reads everything, and makes sure that it was.
fn read(bytes: &[u8], requests: u64) {
    let (_, bytes) = unpack(bytes).expect("the trace is sound");
    let mut reader = TraceReader::new(bytes, None, ReadOptions::default()).expect("the format is known");
    let mut sum = 0_u64;
    while let Some(request) = reader.next(Nanos::ZERO) {
        sum = sum.wrapping_add(request.expect("the trace is sound").address);
    }
    std::hint::black_box(sum);
    assert_eq!(reader.counts().requests, requests);
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The peer's CPU seconds for the same bytes, or why there are none.
fn peer(bytes: &[u8], name: &str, kind: &str, requests: u64) -> Result<f64, String> {
    let python = Command::new(root().join("scripts/oracle-libcachesim")).output().map_err(|error| error.to_string())?;
    if !python.status.success() {
        return Err(String::from_utf8_lossy(&python.stderr).trim().to_owned());
    }
    let python = String::from_utf8_lossy(&python.stdout).trim().to_owned();
    let directory = root().join("target/oracle");
    let path = directory.join(format!("bench-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&directory)
        .and_then(|()| std::fs::write(&path, bytes))
        .map_err(|error| error.to_string())?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peer.py");
    let output = Command::new(python).arg(script).arg(&path).args([kind, &RUNS.to_string()]).output();
    std::fs::remove_file(&path).map_err(|error| error.to_string())?;
    let output = output.map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let seconds = match text.split_once(' ') {
        Some((read, seconds)) if read == requests.to_string() => seconds.parse().ok(),
        _ => None,
    };
    seconds.ok_or_else(|| format!("it said `{text}` {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// One figure, in millions a CPU second, with the least that it should be.
fn figure(name: &str, unit: &str, count: u64, seconds: f64, bar: Option<f64>, peer: Option<Result<f64, String>>) {
    let rate = |seconds: f64| count as f64 / seconds / 1e6;
    let mut figure = serde_json::json!({
        "name": name,
        "value": rate(seconds),
        "unit": format!("million {unit}/CPU s"),
        "cpu_seconds": seconds,
    });
    if let Some(bar) = bar {
        figure["bar"] = format!(">= {bar}").into();
        figure["pass"] = (rate(seconds) >= bar).into();
    }
    match peer {
        None => {}
        Some(Ok(theirs)) => {
            figure["peer"] = "libCacheSim 0.3.5".into();
            figure["peer_value"] = rate(theirs).into();
            figure["peer_cpu_seconds"] = theirs.into();
            figure["ratio"] = (theirs / seconds).into();
        }
        Some(Err(reason)) => figure["note"] = format!("SKIPPED the peer: {reason}").into(),
    }
    println!("{figure}");
}

/// A trace of so many requests to a thousand pages, ten a microsecond.
fn trace(requests: u64, target: Target) -> Vec<u8> {
    let mut rng = Rng::new(1);
    let mut writer = TraceWriter::new(Vec::new(), target);
    for number in 0..requests {
        let op = if rng.one_in(4) { Op::Write } else { Op::Read };
        let at = Nanos(128_166_372_003_061_600 * 100 + number * 100);
        let at = if target == Target::OracleGeneral { Nanos(number * 100) } else { at };
        let request = Request { at, address: (1 + rng.below(1000)) * 4096, bytes: 4096, tenant: 0, op };
        writer.write(&request).expect("a vector has room");
    }
    writer.finish().expect("a vector has room")
}

fn main() {
    // The figures that `make bench FILTER=...` wants; all without it.
    let filter = std::env::var("OSIER_BENCH_FILTER").unwrap_or_default();
    let wanted = |name: &str| name.contains(&filter);
    if wanted("trace/oracle-general") {
        let bytes = trace(RECORDS, Target::OracleGeneral);
        let seconds = fastest(|| read(&bytes, RECORDS));
        let peer = peer(&bytes, "oracle.bin", Format::OracleGeneral.name(), RECORDS);
        figure("trace/oracle-general", "records", RECORDS, seconds, Some(10.0), Some(peer));
    }
    if wanted("trace/msr") {
        let bytes = trace(LINES, Target::Msr);
        let seconds = fastest(|| read(&bytes, LINES));
        let peer = peer(&bytes, "msr.csv", Format::Msr.name(), LINES);
        figure("trace/msr", "lines", LINES, seconds, Some(3.0), Some(peer));
    }
    if wanted("trace/mem") {
        let bytes = trace(LINES, Target::Mem);
        figure("trace/mem", "lines", LINES, fastest(|| read(&bytes, LINES)), Some(3.0), None);
    }
    compressed(&wanted);
    generators(&wanted);
}

/// What reading costs when it includes decompressing; the programs `gzip` and `zstd` compress.
fn compressed(wanted: &dyn Fn(&str) -> bool) {
    for program in ["gzip", "zstd"] {
        let name = format!("trace/msr-{program}");
        if !wanted(&name) {
            continue;
        }
        let path = std::env::temp_dir().join(format!("osier-bench-{}.csv", std::process::id()));
        std::fs::write(&path, trace(LINES, Target::Msr)).expect("the trace is written");
        let output = Command::new(program).args(["-c", "-q"]).arg(&path).output();
        std::fs::remove_file(&path).expect("it was there");
        match output {
            Ok(output) if output.status.success() => {
                let seconds = fastest(|| read(&output.stdout, LINES));
                figure(&name, "lines", LINES, seconds, None, None);
            }
            _ => println!(
                "{}",
                serde_json::json!({ "name": name, "value": null, "unit": "", "note": format!("SKIPPED: no {program}") })
            ),
        }
    }
}

fn generators(wanted: &dyn Fn(&str) -> bool) {
    for (name, pattern) in [
        ("workload/uniform", "\"uniform\""),
        ("workload/zipf", "{ zipf = { theta_permille = 990 } }"),
        ("workload/chase", "\"chase\""),
    ] {
        if !wanted(name) {
            continue;
        }
        let text = format!(
            "seed = 1\n[[job]]\nname = \"j\"\n[[job.phase]]\nrequests = {DRAWS}\npattern = {pattern}\n\
             mix = {{ read_permille = 1000 }}\nrange_bytes = 1099511627776\nblock_bytes = 4096\n\
             arrivals = {{ fixed = {{ requests_per_second = 1000000 }} }}\n"
        );
        let workload = Workload::parse(name, &text).expect("the workload is sound");
        let seconds = fastest(|| {
            let mut job = workload.jobs().remove(0);
            let mut drawn = 0;
            while job.next(Nanos::ZERO).is_some() {
                drawn += 1;
            }
            assert_eq!(drawn, DRAWS);
        });
        figure(name, "requests", DRAWS, seconds, None, None);
    }
}
