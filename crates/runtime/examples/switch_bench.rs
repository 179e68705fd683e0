//! How long a migration takes between two real processes under load, by its parts: a JSON line a figure.
//!
//! The program starts itself as the two domains. The load is made inside the host's thread; model timing is off and
//! the media are memory, so that what is measured is the mechanism. A switch is from the checkpoint's `ready` to the
//! end of the first chunk at the destination; a decision's time is until then from the moment that the move was
//! begun. The peer of the last percentile is a bare ping-pong over one cache line, in the same run.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;

use osier_device::Profile;
use osier_image::MediaSpec;
use osier_pmr::{Backing, ObjectKind, Region};
use osier_runtime::bootstrap::{Event, Forced, Job, JobReport, Options};
use osier_runtime::clock;
use osier_runtime::control::MoveTimes;
use osier_runtime::create::{CreateSpec, DEFAULT_PIPELINE, create, current_tag};
use osier_runtime::workload::SoakSpec;
use osier_runtime::{Session, SessionSpec, Watch, domain_main};
use rustix::thread::{CpuSet, sched_setaffinity};

type Failure = Box<dyn std::error::Error>;

/// Migrations of one measurement: enough for a 99.9th percentile.
const MOVES: u64 = 10_000;
/// Round trips of the ping-pong.
const ROUNDS: u64 = 1_000_000;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = match arguments.first().and_then(|a| a.to_str()) {
        Some("domain") => domain_main(&mut std::io::stdin().lock(), &mut std::io::stdout()).map_err(Failure::from),
        Some("echo") => echo(Path::new(arguments.get(1).map_or(OsStr::new(""), OsString::as_os_str))),
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
    let echo = ping_pong(&bench)?;
    let (moves, _) = bench.run(&Case { actor: "crc32c", ..Case::default() })?;
    let switch = |m: &MoveTimes| m.first_served.saturating_sub(m.ready);
    line("switch polling p50", at(&moves, switch, 0.5), Some(5_000), None);
    line("switch polling p99", at(&moves, switch, 0.99), Some(20_000), None);
    line("switch polling p99.9", at(&moves, switch, 0.999), Some(2 * echo + 10_000), Some(echo));
    parts(&moves);
    let (moves, _) = bench.run(&Case { actor: "crc32c", media: MediaSpec::File, ..Case::default() })?;
    line("switch polling p99, media in a file", at(&moves, switch, 0.99), None, None);
    for (waits, to_device, name) in [
        (["poll", "futex"], true, "switch to a device that sleeps when idle, p99"),
        (["futex", "poll"], false, "switch to a host that sleeps when idle, p99"),
    ] {
        let (mut moves, _) = bench.run(&Case { actor: "crc32c", waits, ..Case::default() })?;
        moves.retain(|m| m.to_device == to_device);
        line(name, at(&moves, switch, 0.99), Some(50_000), None);
    }
    let pause = |report: JobReport| {
        let mut pauses = report.pauses_ns;
        pauses.sort_unstable();
        share(&pauses, 0.99)
    };
    let (_, report) = bench.run(&Case::default())?;
    line("pause of a stream, depth 8, 4 KiB, p99", pause(report), Some(150_000), None);
    let (_, report) = bench.run(&Case { throttled: true, ..Case::default() })?;
    line("pause of a stream, depth 8, 4 KiB, device throttled, p99", pause(report), Some(150_000), None);
    let (mut moves, _) = bench.run(&Case { blocks: 16, ..Case::default() })?;
    moves.retain(|m| m.mid_request);
    let decided = at(&moves, |m| m.first_served - m.routed, 0.99);
    line("mid-request, decision to running elsewhere, p99", decided, Some(100_000), None);
    Ok(())
}

/// What is measured.
struct Case {
    actor: &'static str,
    /// How host and device wait.
    waits: [&'static str; 2],
    /// Blocks a request.
    blocks: u32,
    media: MediaSpec,
    /// Stages on the device take the time of the model, in a device that is too hot for its full speed.
    throttled: bool,
}

impl Default for Case {
    fn default() -> Case {
        Case { actor: "lz4", waits: ["poll"; 2], blocks: 1, media: MediaSpec::Memory, throttled: false }
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
        let text = Profile::built_in_text("cxl-ssd").ok_or("the profile cxl-ssd is built in")?;
        let text = if case.throttled { hot(text) } else { text.to_owned() };
        let mut spec = CreateSpec::new(&image, "cxl-ssd", &text, 256 << 20);
        spec.media = case.media.clone();
        spec.pipelines = (pipeline(case.actor), "the benchmark's pipeline".to_owned(), self.home.to_owned());
        std::fs::create_dir_all(image.parent().ok_or("an image has a parent")?)?;
        create(&spec)?;
        let job = Job::Soak(SoakSpec {
            seed: 1,
            requests: 10_000,
            depth: 8,
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

/// The 99.9th percentile of a round trip over one cache line between two processes that do nothing else, on the
/// processors of the domains.
fn ping_pong(bench: &Bench) -> Result<u64, Failure> {
    let path = bench.home.join("line");
    let region = Region::create(&Backing::File(path.clone()), 1 << 20, [0; 16])?;
    let line = region.allocate("line", ObjectKind::STATISTICS, 4096, 4096)?;
    let mut peer = Command::new(&bench.program).arg("echo").arg(&path).spawn()?;
    pin(0)?;
    let word = line.word64(0);
    let mut times = Vec::with_capacity(ROUNDS as usize);
    for round in 0..ROUNDS {
        let begin = clock::now().0;
        word.store(2 * round + 1, Ordering::Release);
        while word.load(Ordering::Acquire) != 2 * round + 2 {
            std::hint::spin_loop();
        }
        times.push(clock::now().0 - begin);
    }
    peer.wait()?;
    unpin()?;
    // The first rounds wait for the other process to start.
    let mut times = times.split_off(ROUNDS as usize / 10);
    times.sort_unstable();
    Ok(share(&times, 0.999))
}

/// The other end of [`ping_pong`].
fn echo(path: &Path) -> Result<(), Failure> {
    let region = Region::open(path)?;
    let line = region.find("line")?;
    pin(1)?;
    for round in 0..ROUNDS {
        while line.word64(0).load(Ordering::Acquire) != 2 * round + 1 {
            std::hint::spin_loop();
        }
        line.word64(0).store(2 * round + 2, Ordering::Release);
    }
    Ok(())
}

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

fn unpin() -> Result<(), Failure> {
    let mut set = CpuSet::new();
    (0..std::thread::available_parallelism()?.get().max(2)).for_each(|cpu| set.set(cpu));
    Ok(sched_setaffinity(None, &set)?)
}

/// The parts of a migration, one after the other.
const PARTS: [(&str, fn(&MoveTimes) -> u64); 6] = [
    ("routed to ready", |m| m.ready.saturating_sub(m.routed)),
    ("ready to heard", |m| m.heard.saturating_sub(m.ready)),
    ("heard to active", |m| m.active.saturating_sub(m.heard)),
    ("active to begun", |m| m.first_begun.saturating_sub(m.active)),
    ("begun to served", |m| m.first_served.saturating_sub(m.first_begun)),
    ("whole switch", |m| m.first_served.saturating_sub(m.ready)),
];

/// Where the time of a switch goes, for people: of all, and of the slowest hundredth by its largest part.
fn parts(moves: &[MoveTimes]) {
    for to_device in [true, false] {
        let mut some: Vec<MoveTimes> = moves.iter().filter(|m| m.to_device == to_device).copied().collect();
        let way = if to_device { "to the device" } else { "to the host" };
        let awaited = some.iter().filter(|m| m.awaited).count();
        eprintln!("{way}: a request waited at {awaited} of {} moves", some.len());
        for (name, part) in PARTS {
            let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|q| at(&some, part, q));
            eprintln!("{way:>14}, {name:<16}: p50 {p50:>7} ns, p99 {p99:>7} ns, p99.9 {p999:>7} ns");
        }
        some.sort_unstable_by_key(|m| m.first_served.saturating_sub(m.ready));
        let slowest = some.split_off(some.len() - some.len() / 100);
        for (index, (name, part)) in PARTS[1..5].iter().enumerate() {
            let blamed = slowest.iter().filter(|m| {
                let spans = PARTS[1..5].iter().map(|(_, part)| part(m));
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

fn line(name: &str, value_ns: u64, bar_ns: Option<u64>, ping_pong_ns: Option<u64>) {
    let pass = bar_ns.is_none_or(|bar| value_ns <= bar);
    println!(
        "{}",
        serde_json::json!({
            "name": name, "value": value_ns, "unit": "ns", "peer": ping_pong_ns.map(|_| "cache-line ping-pong"),
            "peer_value": ping_pong_ns, "ratio": ping_pong_ns.map(|p| value_ns as f64 / p as f64),
            "bar": bar_ns, "pass": pass,
        })
    );
}
