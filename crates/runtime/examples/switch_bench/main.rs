//! How long a migration takes between two real processes under load, by its parts: a JSON line a figure.
//!
//! The program starts itself as the two domains. The load is made inside the host's thread; model timing is off and
//! the media are memory, so that what is measured is the mechanism. A switch is from the checkpoint's `ready` to the
//! end of the first chunk at the destination. An actor that arrives where nothing waits for it has nothing to serve:
//! its time is that of the load, so the bars are for the moves that found something waiting; how many those were of
//! all is a figure too, and so is the same percentile of all. A decision's time is from the host's decision to the
//! end of the first chunk at the destination.
//!
//! The peer of the last percentile is a bare ping-pong over one cache line, in the same run. What the machine adds
//! to anything that takes as long stands beside the figures: see `bare`. On a machine that others use, `nice` alone
//! does not help where the kernel groups processes by session; what does is
//! `setsid --wait sh -c 'echo -20 >/proc/self/autogroup; exec nice -n -20 make bench FILTER=switch'`.

mod bare;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use osier_device::Profile;
use osier_image::MediaSpec;
use osier_runtime::bootstrap::{Event, Forced, Job, JobReport, Options};
use osier_runtime::control::MoveTimes;
use osier_runtime::create::{CreateSpec, DEFAULT_PIPELINE, create, current_tag};
use osier_runtime::workload::SoakSpec;
use osier_runtime::{Session, SessionSpec, Watch, domain_main};

type Failure = Box<dyn std::error::Error>;

/// Migrations of one measurement: enough for a 99.9th percentile.
const MOVES: u64 = 16_000;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = match arguments.first().and_then(|a| a.to_str()) {
        Some("domain") => domain_main(&mut std::io::stdin().lock(), &mut std::io::stdout()).map_err(Failure::from),
        Some("echo") => bare::echo(path(&arguments)),
        Some("sleeper") => bare::sleeper(path(&arguments)),
        Some("compile-module") => return osier_actor::compile_main(&arguments[1..]),
        _ => measure(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn path(arguments: &[OsString]) -> &Path {
    Path::new(arguments.get(1).map_or(OsStr::new(""), OsString::as_os_str))
}

fn pipeline(actor: &str) -> String {
    format!(
        "[[pipeline]]\nname = \"{DEFAULT_PIPELINE}\"\nunit_kib = 64\nrequest_kib_max = 64\nslots = 16\n\
         [[pipeline.stage]]\nactor = \"{actor}\"\n"
    )
}

fn measure() -> Result<(), Failure> {
    // A region in the page cache of a disk is write-protected again each time that it is written back.
    let memory = Path::new("/dev/shm");
    let home = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
    let bench = Bench { home: home.path(), program: std::env::current_exe()? };
    let machine = bare::measure(bench.home, &bench.program)?;
    switches(&bench, &machine)?;
    sleepers(&bench, &machine)?;
    pauses(&bench, &machine)?;
    mid_requests(&bench)
}

/// Both sides polling.
fn switches(bench: &Bench, machine: &bare::Bare) -> Result<(), Failure> {
    let (all, _) = bench.run(&Case { actor: "crc32c", ..Case::default() })?;
    let moves = awaited("switch polling", &all);
    percentile("switch polling p50", &moves, switch, 0.5, 5_000);
    percentile("switch polling p99", &moves, switch, 0.99, 20_000);
    percentile("switch polling p99.9", &moves, switch, 0.999, 2 * machine.ping_pong_ns + 10_000);
    line("bare ping-pong p99.9", machine.ping_pong_ns, None);
    line("switch polling p99, whatever waited", at(&all, switch, 0.99), None);
    spell(machine.spells[0]);
    let gaps = machine.gaps_per_second;
    figure(
        serde_json::json!({ "name": "gaps of 5 us and more on a processor that spins", "value": gaps, "unit": "1/s" }),
    );
    hit_by_gaps(gaps, at(&moves, switch, 0.5));
    parts(&moves);
    let (all, _) = bench.run(&Case { actor: "crc32c", media: MediaSpec::File, ..Case::default() })?;
    let moves = awaited("switch polling, media in a file", &all);
    line("switch polling p99, media in a file", at(&moves, switch, 0.99), None);
    Ok(())
}

/// The share of switches in which the machine is expected to take the processor away: gaps come whenever they come, so
/// it is their rate times the length of a switch. Where that is more than one in a thousand, the 99.9th percentile is
/// the length of a gap, whatever the switch does.
fn hit_by_gaps(gaps_per_second: u64, switch_ns: u64) {
    let ppm = gaps_per_second * switch_ns / 1_000;
    let note = format!(
        "{gaps_per_second} gaps a second x {switch_ns} ns (p50 of a switch); the 99.9th percentile is a gap's from 1,000 ppm on"
    );
    figure(serde_json::json!({
        "name": "switches that a gap is expected to hit", "value": ppm, "unit": "ppm", "note": note,
    }));
}

/// A destination that sleeps when it is idle. A device that sleeps is woken up at the decision, and those moves count;
/// the host decides, so it is awake, and does not go to sleep while an actor is on its way to it.
fn sleepers(bench: &Bench, machine: &bare::Bare) -> Result<(), Failure> {
    for (waits, depth, to_device, name) in [
        (["poll", "futex"], 1, true, "switch to a device that slept at the decision"),
        (["futex", "poll"], 8, false, "switch to a host that sleeps when idle"),
    ] {
        let (mut all, _) = bench.run(&Case { actor: "crc32c", waits, depth, ..Case::default() })?;
        all.retain(|m| m.to_device == to_device);
        let some: Vec<MoveTimes> = all.iter().filter(|m| m.asleep || !to_device).copied().collect();
        count(&format!("{name}, moves"), some.len(), all.len());
        let moves = awaited(name, &some);
        percentile(&format!("{name} p99"), &moves, switch, 0.99, 50_000);
        line(
            &format!("{name}, decision to routed, p99"),
            at(&moves, |m| m.routed.saturating_sub(m.decided), 0.99),
            None,
        );
        parts(&moves);
    }
    line("wake of a bare sleeper p50", machine.wake_ns[0], None);
    line("wake of a bare sleeper p99", machine.wake_ns[1], None);
    Ok(())
}

fn pauses(bench: &Bench, machine: &bare::Bare) -> Result<(), Failure> {
    let cases =
        [(false, "pause of a stream, depth 8, 4 KiB"), (true, "pause of a stream, depth 8, 4 KiB, device throttled")];
    for (throttled, name) in cases {
        let (_, report) = bench.run(&Case { throttled, ..Case::default() })?;
        let mut pauses = report.pauses_ns;
        pauses.sort_unstable();
        line(&format!("{name}, p50"), share(&pauses, 0.5), None);
        line(&format!("{name}, p99"), share(&pauses, 0.99), Some(150_000));
    }
    spell(machine.spells[1]);
    Ok(())
}

fn mid_requests(bench: &Bench) -> Result<(), Failure> {
    let (all, _) = bench.run(&Case { blocks: 16, ..Case::default() })?;
    let moves: Vec<MoveTimes> = all.iter().filter(|m| m.mid_request).copied().collect();
    count("mid-request, moved in the middle of one", moves.len(), all.len());
    let elsewhere = |m: &MoveTimes| m.first_served.saturating_sub(m.decided);
    line("mid-request, decision to running elsewhere, p50", at(&moves, elsewhere, 0.5), None);
    percentile("mid-request, decision to running elsewhere, p99", &moves, elsewhere, 0.99, 100_000);
    parts(&moves);
    // With a model an actor that leaves the device also waits for what that keeps, up to `chunk_ns_max`.
    let (all, _) = bench.run(&Case { blocks: 16, throttled: true, ..Case::default() })?;
    let moves: Vec<MoveTimes> = all.iter().filter(|m| m.mid_request && !m.to_device).copied().collect();
    let left = |m: &MoveTimes| m.ready.saturating_sub(m.decided);
    line("mid-request, leaving a device that its model throttles, decision to ready, p50", at(&moves, left, 0.5), None);
    line(
        "mid-request, leaving a device that its model throttles, decision to ready, p99",
        at(&moves, left, 0.99),
        None,
    );
    Ok(())
}

fn switch(of: &MoveTimes) -> u64 {
    of.first_served.saturating_sub(of.ready)
}

/// Those moves that found something waiting.
fn awaited(name: &str, moves: &[MoveTimes]) -> Vec<MoveTimes> {
    let awaited: Vec<MoveTimes> = moves.iter().filter(|m| m.awaited).copied().collect();
    count(&format!("{name}, a request waited"), awaited.len(), moves.len());
    awaited
}

/// How long a spell really takes on the bare machine.
fn spell((spell_ns, [p99, p999]): (u64, [u64; 2])) {
    let name = format!("bare ping-pong of {} us, begun as often as moves,", spell_ns / 1000);
    line(&format!("{name} p99"), p99, None);
    line(&format!("{name} p99.9"), p999, None);
}

/// What is measured.
struct Case {
    actor: &'static str,
    /// How host and device wait.
    waits: [&'static str; 2],
    /// Requests in flight.
    depth: usize,
    /// Blocks a request.
    blocks: u32,
    media: MediaSpec,
    /// Stages on the device take the time of the model, in a device that is too hot for its full speed.
    throttled: bool,
}

impl Default for Case {
    fn default() -> Case {
        Case { actor: "lz4", waits: ["poll"; 2], depth: 8, blocks: 1, media: MediaSpec::Memory, throttled: false }
    }
}

struct Bench<'a> {
    home: &'a Path,
    program: PathBuf,
}

/// A device whose first throttle step is reached at once, without any load.
fn hot(text: &str) -> String {
    let mut steps = 0;
    let lines = text.lines().map(|line| {
        steps += u32::from(line == "[[throttle]]");
        match line.split_once('=') {
            Some((key, _)) if steps == 1 && key.trim() == "enter_millicelsius" => "enter_millicelsius = 31000",
            Some((key, _)) if steps == 1 && key.trim() == "exit_millicelsius" => "exit_millicelsius = 30500",
            _ => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

impl Bench<'_> {
    fn run(&self, case: &Case) -> Result<(Vec<MoveTimes>, JobReport), Failure> {
        let image = tempfile::tempdir_in(self.home)?.path().join("device");
        let text = Profile::built_in_text("wio").ok_or("the profile wio is built in")?;
        let text = if case.throttled { hot(text) } else { text.to_owned() };
        let mut spec = CreateSpec::new(&image, "wio", &text, 256 << 20);
        spec.media = case.media.clone();
        spec.pipelines = (pipeline(case.actor), "the benchmark's pipeline".to_owned(), self.home.to_owned());
        std::fs::create_dir_all(image.parent().ok_or("an image has a parent")?)?;
        create(&spec)?;
        let job = Job::Soak(SoakSpec {
            seed: 1,
            requests: 10_000,
            depth: case.depth,
            request_blocks: case.blocks,
            groups: 256,
            reads_permille: 0,
            tag: current_tag(&image, DEFAULT_PIPELINE)?.0,
            verify: false,
            until_moves: MOVES,
        });
        let options = Options {
            model_timing: case.throttled,
            thermal_time_scale: if case.throttled { 1000 } else { 1 },
            host_wait: case.waits[0].to_owned(),
            device_wait: case.waits[1].to_owned(),
            cpus: Some([0, 1]),
            forced: Some(Forced { moves: MOVES, every_ns: 100_000, whole_pipeline: true, seed: 1 }),
            ..Options::default()
        };
        let compiler = (self.program.clone(), vec!["compile-module".into()]);
        let spec =
            SessionSpec { image, options, job, program: (self.program.clone(), vec!["domain".into()]), compiler };
        let mut session = Session::start(spec)?;
        let mut found = None;
        session.watch(|session, event| match event {
            Some(Event::Finished(report)) => {
                found = Some((session.setup().control.move_log(0), (**report).clone()));
                Watch::End
            }
            _ => Watch::On,
        })?;
        session.stop()?;
        found.ok_or_else(|| "the session ended before its job".into())
    }
}

/// A part of a migration's time.
type Part = (&'static str, fn(&MoveTimes) -> u64);

/// The parts of a migration, one after the other, and the switch that some of them make.
const PARTS: [Part; 7] = [
    ("decided to routed", |m| m.routed.saturating_sub(m.decided)),
    ("routed to ready", |m| m.ready.saturating_sub(m.routed)),
    ("ready to heard", |m| m.heard.saturating_sub(m.ready)),
    ("heard to active", |m| m.active.saturating_sub(m.heard)),
    ("active to begun", |m| m.first_begun.saturating_sub(m.active)),
    ("begun to served", |m| m.first_served.saturating_sub(m.first_begun)),
    ("whole switch", switch),
];

/// Where the time of a switch goes, for people: of all, and of the slowest hundredth by its largest part.
fn parts(moves: &[MoveTimes]) {
    for to_device in [true, false] {
        let mut some: Vec<MoveTimes> = moves.iter().filter(|m| m.to_device == to_device).copied().collect();
        if some.is_empty() {
            continue;
        }
        let way = if to_device { "to the device" } else { "to the host" };
        for (name, part) in PARTS {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| at(&some, part, q));
            eprintln!("{way:>14}, {name:<17}: p50 {p50:>7} ns, p99 {p99:>7} ns, p99.9 {p999:>7} ns");
        }
        some.sort_unstable_by_key(switch);
        let slowest = some.split_off(some.len() - some.len() / 100);
        for (index, (name, part)) in PARTS[2..6].iter().enumerate() {
            let blamed = slowest.iter().filter(|m| {
                let spans = PARTS[2..6].iter().map(|(_, part)| part(m));
                spans.enumerate().max_by_key(|(_, span)| *span).is_some_and(|(largest, _)| largest == index)
            });
            let p50 = at(&slowest, part, 0.5);
            eprintln!("{way:>14}, slowest 1 %, {name}: p50 {p50} ns, the largest part of {}", blamed.count());
        }
    }
}

fn share(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0)
}

fn at(moves: &[MoveTimes], of: impl Fn(&MoveTimes) -> u64, quantile: f64) -> u64 {
    let mut values: Vec<u64> = moves.iter().map(of).collect();
    values.sort_unstable();
    share(&values, quantile)
}

/// A percentile with its bar; too few moves to have one are a bar missed.
fn percentile(name: &str, moves: &[MoveTimes], of: fn(&MoveTimes) -> u64, quantile: f64, bar_ns: u64) {
    let enough = moves.len() as f64 * (1.0 - quantile) >= 2.0;
    let value = enough.then(|| at(moves, of, quantile));
    let note = (!enough).then(|| format!("{} moves are too few for it", moves.len()));
    figure(serde_json::json!({
        "name": name, "value": value, "unit": "ns", "bar": bar_ns, "pass": value.is_some_and(|v| v <= bar_ns), "note": note,
    }));
}

fn line(name: &str, value_ns: u64, bar_ns: Option<u64>) {
    let pass = bar_ns.map(|bar| value_ns <= bar);
    figure(serde_json::json!({ "name": name, "value": value_ns, "unit": "ns", "bar": bar_ns, "pass": pass }));
}

fn count(name: &str, some: usize, all: usize) {
    let unit = format!("of {all} moves");
    figure(serde_json::json!({ "name": name, "value": some, "unit": unit, "bar": null, "pass": null }));
}

fn figure(mut fields: serde_json::Value) {
    for key in ["peer", "peer_value", "ratio", "bar", "pass"] {
        // Indexing makes the key where there is none.
        let _ = &mut fields[key];
    }
    println!("{fields}");
}
