//! `osier replay`: a recorded device core in virtual time.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use osier_device::Status;
use osier_device::record::{BLOCK_HEADER_BYTES, Ending, Life, Next, Replay, ReplayError, meaning, read_block};
use osier_report::{Table, Unit, format_value};
use serde_json::json;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::units::parse_bytes;

/// Replay a recorded device core in virtual time and compare every output
///
/// `osier serve`, `soak`, `demo` and `window serve` record one with `--record-core FILE`. The replay gives the core
/// every input again at its time, and ends at the first output that is another one: with code 6 and the input's number.
/// A recording that is damaged ends it with code 3.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The recording
    file: PathBuf,
    /// Most memory that the recorded device may take: 60 bytes for each of its blocks of 4 KiB, its write buffer, and
    /// the bytes of what is under way; of a window 400 bytes for each of its pages of 4 KiB, and 256 for each frame
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "4GiB")]
    memory: u64,
}

/// What came of it.
struct Found {
    lives: Vec<Life>,
    /// Bytes at the end of a block that was never finished.
    torn_bytes: u64,
    seconds: f64,
}

/// Replays the recording.
///
/// # Errors
/// A file that is no sound recording; a core that does otherwise than it did.
pub fn run(args: &ReplayArgs, context: &Context) -> Result<Exit> {
    let mut replay = Replay::new(args.memory);
    let begun = std::time::Instant::now();
    let outcome = replay_file(&args.file, &mut replay);
    replay.finish();
    let lives = replay.lives().to_vec();
    let torn_bytes = *outcome.as_ref().unwrap_or(&0);
    let found = Found { lives, torn_bytes, seconds: begun.elapsed().as_secs_f64() };
    if context.json {
        println!("{}", json_of(&found, outcome.as_ref().err()));
    } else if !found.lives.is_empty() {
        print!("{}", text_of(&found));
    }
    match outcome {
        Ok(_) if found.lives.is_empty() => {
            let text =
                format!("{} is an empty recording: nothing was recorded, or not for long enough", args.file.display());
            Err(Failure::new(Exit::BadInput, text).into())
        }
        Ok(_) => Ok(Exit::Ok),
        Err(error) => {
            let exit = match &error.downcast_ref::<ReplayError>() {
                Some(ReplayError::Differs(_)) => Exit::VerificationFailed,
                _ => Exit::BadInput,
            };
            Err(Failure::new(exit, format!("{}: {error:#}", args.file.display())).into())
        }
    }
}

/// Bytes that were cut off its end.
fn replay_file(path: &Path, replay: &mut Replay) -> Result<u64> {
    let mut file = BufReader::with_capacity(1 << 20, File::open(path).context("it cannot be opened")?);
    let mut at = 0;
    loop {
        match read_block(&mut file, at).map_err(ReplayError::from)? {
            Next::Block(header, records) => {
                replay.block(at, &header, &records)?;
                at += BLOCK_HEADER_BYTES as u64 + u64::from(header.bytes);
            }
            Next::Torn(bytes) => return Ok(bytes),
            Next::End => return Ok(0),
        }
    }
}

fn ending(life: &Life) -> String {
    match &life.ending {
        Ending::InOrder => "in order; the statistics are the recorded ones".to_owned(),
        Ending::Open => "without an end: its process was killed, or still runs".to_owned(),
        Ending::Stopped(why) => format!("before the device did: {why}"),
    }
}

fn text_of(found: &Found) -> String {
    let mut text = String::new();
    for life in &found.lives {
        let seconds = life.span.map_or(0, |(first, last)| last.0.saturating_sub(first.0)) as f64 / 1e9;
        let begins = if life.recovered { "recovered" } else { "new" };
        text += &format!(
            "life {}: profile {}, {begins}; {} inputs over {}, {} checks hold\n",
            life.number,
            life.profile,
            life.inputs,
            format_value(seconds, Unit::Seconds),
            life.checks
        );
        let mut table = Table::new().left("input").right("count").left("");
        for (kind, count) in &life.kinds {
            table.row([(*kind).to_owned(), count.to_string(), meaning(kind).to_owned()]);
        }
        for (status, count) in &life.ended {
            table.row([format!("ended: {}", Status(*status)), count.to_string(), String::new()]);
        }
        text += &table.to_text();
        text += &format!("it ends {}\n", ending(life));
        if let Some(statistics) = &life.statistics {
            text += &format!("{}\n", statistics.to_json());
        }
    }
    if found.torn_bytes > 0 {
        text += &format!("{} bytes at the end were never finished and are cut off\n", found.torn_bytes);
    }
    text += &format!("replayed in {}\n", format_value(found.seconds, Unit::Seconds));
    text
}

fn json_of(found: &Found, error: Option<&anyhow::Error>) -> serde_json::Value {
    let difference = error.and_then(|error| match error.downcast_ref::<ReplayError>() {
        Some(ReplayError::Differs(difference)) => Some(json!({
            "life": difference.life,
            "input": difference.input,
            "kind": difference.kind,
            "at_ns": difference.at_ns,
            "what": difference.what,
        })),
        _ => None,
    });
    let lives = found.lives.iter().map(|life| {
        let (word, why) = match &life.ending {
            Ending::InOrder => ("in-order", None),
            Ending::Open => ("open", None),
            Ending::Stopped(why) => ("stopped", Some(why)),
        };
        let ended: serde_json::Map<String, serde_json::Value> =
            life.ended.iter().map(|(status, count)| (Status(*status).to_string(), json!(count))).collect();
        json!({
            "life": life.number,
            "profile": life.profile,
            "program": life.program,
            "recovered": life.recovered,
            "inputs": life.inputs,
            "checks": life.checks,
            "first_ns": life.span.map(|(first, _)| first.0),
            "last_ns": life.span.map(|(_, last)| last.0),
            "kinds": life.kinds,
            "ended": ended,
            "ending": word,
            "why": why,
            "statistics": life.statistics,
        })
    });
    json!({
        "lives": lives.collect::<Vec<_>>(),
        "torn_bytes": found.torn_bytes,
        "difference": difference,
        "same": error.is_none(),
    })
}
