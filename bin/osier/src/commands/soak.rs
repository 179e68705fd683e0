//! `osier soak`: traffic that checks itself, while actors are moved and domains are killed.

use anyhow::{Result, bail};
use clap::Args;
use osier_domain::{Side, Status, Step};
use osier_report::{Table, Unit, format_value};
use osier_runtime::bootstrap::{Crash, Event, Forced, Job, JobReport};
use osier_runtime::control::MoveTimes;
use osier_runtime::workload::SoakSpec;
use osier_runtime::{Death, Session, TenantUsage, Watch};

use super::Context;
use super::serve::RunArgs;
use crate::exit::{Exit, Failure};
use crate::output::tell;

/// Check a device under random traffic, forced migrations and planned deaths
///
/// Every block says what it is, so a lost, torn, repeated or resurrected write is found. The device's data are
/// overwritten.
#[derive(Debug, Args)]
pub struct SoakArgs {
    /// The device
    device: String,
    /// The pipeline that writes go through
    #[arg(long, default_value = osier_runtime::create::DEFAULT_PIPELINE)]
    pipeline: String,
    /// Requests in all
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    requests: u64,
    /// Requests in flight; at most the slots of the device's pipelines
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..))]
    depth: u64,
    /// Blocks of 4096 bytes a request
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    request_blocks: u32,
    /// Groups of so many blocks that are written
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..))]
    groups: u64,
    /// Reads of 1000 requests
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=1000))]
    reads_permille: u64,
    /// Write nothing: read back what the soak before left on the device, all of it
    #[arg(long, conflicts_with_all = ["requests", "moves", "reads_permille", "digest"])]
    read_back: bool,
    /// Draws the requests
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Force so many migrations
    #[arg(long, default_value_t = 0)]
    moves: u64,
    /// Nanoseconds between forced migrations, on average
    #[arg(long, default_value_t = 200_000)]
    move_every_ns: u64,
    /// Move all actors at a time
    #[arg(long)]
    move_all: bool,
    /// Kill a domain (SIGKILL) at a named step: host|device:STEP:NTH
    #[arg(long, value_name = "SIDE:STEP:NTH", value_parser = parse_crash)]
    crash: Option<Crash>,
    /// Chain a checksum over everything that is stored, so that runs can be compared byte for byte
    #[arg(long)]
    digest: bool,
    #[command(flatten)]
    run: RunArgs,
}

fn parse_crash(text: &str) -> Result<Crash, String> {
    let parts: Vec<&str> = text.split(':').collect();
    let [side, step, nth] = parts.as_slice() else { return Err("write SIDE:STEP:NTH, such as device:Ready:3".into()) };
    let device = match *side {
        "host" => false,
        "device" => true,
        other => return Err(format!("`{other}` is no side; write host or device")),
    };
    let step = Step::from_name(step).ok_or_else(|| {
        let names: Vec<String> = Step::ALL.iter().map(|s| format!("{s:?}")).collect();
        format!("`{step}` is no step; the steps are {}", names.join(", "))
    })?;
    let nth = nth.parse().ok().filter(|n| *n > 0).ok_or("NTH is a number from 1 on")?;
    Ok(Crash { device, step: step as u8, nth })
}

/// What came of it.
struct Found {
    report: Option<JobReport>,
    moves: Vec<MoveTimes>,
    digests: [u64; 2],
    deaths: Vec<Death>,
    resident_bytes: u64,
    tenants: Vec<TenantUsage>,
}

/// Runs the soak.
///
/// # Errors
/// What the session says, or that the device does not hold its promises.
pub fn run(args: &SoakArgs, context: &Context) -> Result<Exit> {
    let image = context.image_path(&args.device)?;
    let tag = osier_runtime::create::current_tag(&image, &args.pipeline)?;
    let mut options = args.run.options();
    options.forced = (args.moves > 0).then_some(Forced {
        moves: args.moves,
        every_ns: args.move_every_ns,
        whole_pipeline: args.move_all,
        seed: args.seed,
    });
    options.crash = args.crash;
    options.digest = args.digest;
    let job = Job::Soak(SoakSpec {
        seed: args.seed,
        requests: if args.read_back { 0 } else { args.requests },
        depth: args.depth as usize,
        request_blocks: args.request_blocks,
        groups: args.groups,
        reads_permille: args.reads_permille,
        tag: tag.0,
        verify: true,
        // Two runs are compared byte for byte over the same requests, however many moves fit into them.
        until_moves: if args.digest { 0 } else { args.moves },
    });
    let stop = crate::signals::stop_flag()?;
    let mut session = Session::start(super::domain::session(image, options, job)?)?;
    let mut found = Found {
        report: None,
        moves: Vec::new(),
        digests: [0; 2],
        deaths: Vec::new(),
        resident_bytes: 0,
        tenants: Vec::new(),
    };
    session.watch(|session, event| match event {
        Some(Event::Finished(report)) => {
            let control = &session.setup().control;
            found.report = Some((**report).clone());
            found.moves = control.move_log(0);
            found.digests = control.digest();
            found.tenants = session.setup().tenants();
            found.resident_bytes = session.setup().resident_bytes(Side::Device).unwrap_or(0);
            Watch::End
        }
        _ if stop.is_set() => Watch::End,
        _ => Watch::On,
    })?;
    found.deaths = session.deaths().to_vec();
    let stopped = session.stop();
    let exit = show(&found, context)?;
    // After what was found, which is worth seeing whatever the end was like.
    stopped?;
    Ok(exit)
}

fn show(found: &Found, context: &Context) -> Result<Exit> {
    let Some(report) = &found.report else { bail!("the soak was stopped before it ended") };
    let tally = &report.tally;
    let broken = tally.lost + tally.repeated + tally.out_of_order + tally.wrong_blocks;
    if context.json {
        println!("{}", json(found, report));
    } else {
        print!("{}", table(found, report).to_text());
    }
    for text in tally.first_failures.iter().chain(&tally.first_lost).chain(&tally.first_wrong) {
        tell!("osier: {text}");
    }
    if broken > 0 {
        return Err(Failure::new(Exit::VerificationFailed, format!("{broken} faults were found")).into());
    }
    if tally.failed > 0 {
        let full = Status::CAPACITY_EXCEEDED.to_string();
        let is_full = tally.first_failures.iter().all(|text| text.ends_with(&full));
        let exit = if is_full { Exit::NoSpace } else { Exit::Failure };
        let text = format!("{} requests failed; the others are right, and so is everything read", tally.failed);
        return Err(Failure::new(exit, text).into());
    }
    Ok(Exit::Ok)
}

fn percentiles(mut values: Vec<u64>) -> [u64; 4] {
    values.sort_unstable();
    let at = |share: f64| {
        let index = (values.len() as f64 * share).ceil() as usize;
        values.get(index.saturating_sub(1)).copied().unwrap_or(0)
    };
    [at(0.5), at(0.99), at(0.999), at(1.0)]
}

fn spans(moves: &[MoveTimes], from: impl Fn(&MoveTimes) -> u64, to: impl Fn(&MoveTimes) -> u64) -> [u64; 4] {
    percentiles(moves.iter().map(|m| to(m).saturating_sub(from(m))).collect())
}

fn json(found: &Found, report: &JobReport) -> serde_json::Value {
    let mid: Vec<MoveTimes> = found.moves.iter().filter(|m| m.mid_request).copied().collect();
    serde_json::json!({
        "tally": report.tally,
        "migrations": found.moves.len(),
        "mid_request": mid.len(),
        "switch_ns": spans(&found.moves, |m| m.ready, |m| m.first_served),
        "decision_ns": spans(&found.moves, |m| m.decided, |m| m.active),
        "mid_request_ns": spans(&mid, |m| m.decided, |m| m.first_served),
        "pause_ns": percentiles(report.pauses_ns.clone()),
        "digest": found.digests,
        "deaths": found.deaths.iter().map(|d| serde_json::json!({
            "side": d.side.to_string(), "how": d.how, "recovery_ns": d.recovery.as_nanos() as u64,
            "resolutions": d.resolutions.iter().map(|r| format!("{r:?}")).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "device_resident_bytes": found.resident_bytes,
        "tenants": found.tenants,
        "host_cpu_ns": report.host_cpu_ns,
        "write_ns": report.write_ns,
    })
}

fn table(found: &Found, report: &JobReport) -> Table {
    let tally = &report.tally;
    let mut table = Table::new().left("").right("");
    let seconds = |ns: u64| format_value(ns as f64 / 1e9, Unit::Seconds);
    let list = |values: [u64; 4]| values.map(seconds).join(" / ");
    let switch = spans(&found.moves, |m| m.ready, |m| m.first_served);
    for (name, value) in [
        ("requests completed", tally.completed.to_string()),
        ("failed", tally.failed.to_string()),
        ("lost", tally.lost.to_string()),
        ("repeated", tally.repeated.to_string()),
        ("out of order", tally.out_of_order.to_string()),
        ("blocks read wrong", tally.wrong_blocks.to_string()),
        ("blocks read right", tally.verified_blocks.to_string()),
        ("migrations (in mid-request)", {
            let mid = found.moves.iter().filter(|m| m.mid_request).count();
            format!("{} ({mid})", found.moves.len())
        }),
        ("switch p50 / p99 / p99.9 / max", list(switch)),
        ("pause p50 / p99 / p99.9 / max", list(percentiles(report.pauses_ns.clone()))),
        ("write p50 / p99 / p99.9", tally.write_ns.map(seconds).join(" / ")),
        ("deaths recovered", found.deaths.len().to_string()),
        ("device process, resident", format_value(found.resident_bytes as f64, Unit::Bytes)),
    ] {
        table.row([name.to_owned(), value]);
    }
    table
}
