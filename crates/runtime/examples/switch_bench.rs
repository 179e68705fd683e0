//! How long a migration takes between two real processes under load, by its parts: a JSON line a figure.
//!
//! The program starts itself as the two domains. The load is made inside the host's thread and model timing is off,
//! so that what is measured is the mechanism. A switch is from the checkpoint's `ready` to the end of the first
//! chunk at the destination; a decision's time is until then from the moment that the move was begun.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use osier_device::Profile;
use osier_runtime::bootstrap::{Event, Forced, Job, JobReport, Options};
use osier_runtime::control::MoveTimes;
use osier_runtime::create::{CreateSpec, DEFAULT_PIPELINE, create, current_tag};
use osier_runtime::workload::SoakSpec;
use osier_runtime::{Session, SessionSpec, Watch, domain_main};

type Failure = Box<dyn std::error::Error>;

/// Migrations of one measurement.
const MOVES: u64 = 2_000;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let result = match arguments.first().and_then(|a| a.to_str()) {
        Some("domain") => domain_main(&mut std::io::stdin().lock(), &mut std::io::stdout()).map_err(Failure::from),
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
    let home = tempfile::tempdir()?;
    let (moves, _) = run(home.path(), "crc32c", "poll", 1)?;
    let switch = |m: &MoveTimes| m.first_served.saturating_sub(m.ready);
    line("switch polling p50", at(&moves, switch, 0.5), Some(5_000));
    line("switch polling p99", at(&moves, switch, 0.99), Some(20_000));
    line("switch polling p99.9", at(&moves, switch, 0.999), None);
    let (moves, _) = run(home.path(), "crc32c", "futex", 1)?;
    line("switch sleeping p99", at(&moves, switch, 0.99), Some(50_000));
    let (_, report) = run(home.path(), "lz4", "poll", 1)?;
    let mut pauses = report.pauses_ns;
    pauses.sort_unstable();
    line("pause of a stream, depth 8, 4 KiB, p99", share(&pauses, 0.99), Some(150_000));
    let (mut moves, _) = run(home.path(), "lz4", "poll", 16)?;
    moves.retain(|m| m.mid_request);
    line(
        "mid-request, decision to running elsewhere, p99",
        at(&moves, |m| m.first_served - m.routed, 0.99),
        Some(100_000),
    );
    Ok(())
}

fn run(home: &Path, actor: &str, wait: &str, blocks: u32) -> Result<(Vec<MoveTimes>, JobReport), Failure> {
    let image = home.join(format!("{actor}-{wait}-{blocks}"));
    let text = Profile::built_in_text("cxl-ssd").ok_or("the profile cxl-ssd is built in")?;
    let mut spec = CreateSpec::new(&image, "cxl-ssd", text, 256 << 20);
    spec.pipelines = (pipeline(actor), "the benchmark's pipeline".to_owned(), home.to_owned());
    create(&spec)?;
    let program = std::env::current_exe()?;
    let job = Job::Soak(SoakSpec {
        seed: 1,
        requests: 10_000,
        depth: 8,
        request_blocks: blocks,
        groups: 256,
        reads_permille: 0,
        tag: current_tag(&image, DEFAULT_PIPELINE)?.0,
        verify: false,
        until_moves: MOVES,
    });
    let options = Options {
        model_timing: false,
        host_wait: wait.to_owned(),
        device_wait: wait.to_owned(),
        cpus: Some([0, 1]),
        forced: Some(Forced { moves: MOVES, every_ns: 100_000, whole_pipeline: true, seed: 1 }),
        ..Options::default()
    };
    let compiler = (program.clone(), vec!["compile-module".into()]);
    let spec = SessionSpec { image, options, job, program: (program, vec!["domain".to_owned()]), compiler };
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

fn share(sorted: &[u64], share: f64) -> u64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0)
}

fn at(moves: &[MoveTimes], of: impl Fn(&MoveTimes) -> u64, quantile: f64) -> u64 {
    let mut values: Vec<u64> = moves.iter().map(of).collect();
    values.sort_unstable();
    share(&values, quantile)
}

fn line(name: &str, value_ns: u64, bar_ns: Option<u64>) {
    let pass = bar_ns.is_none_or(|bar| value_ns <= bar);
    println!(
        "{}",
        serde_json::json!({
            "name": name, "value": value_ns, "unit": "ns", "peer": null, "peer_value": null, "ratio": null,
            "bar": bar_ns, "pass": pass,
        })
    );
}
