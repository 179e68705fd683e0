//! `osier trace`: what is in a trace, the same in another format, and a trace of a described workload.

mod show;

use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand, ValueEnum};
use osier_sim::trace::{
    BlkEvent, Compression, Format, PAGE_BYTES, Paced, ReadOptions, Remap, Remapped, Speed, Summary, Target,
    TraceReader, TraceWriter, WriteError, unpack,
};
use osier_sim::workload::{Merged, Workload};
use osier_sim::{Nanos, Source};

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{self, tell};
use crate::units::parse_bytes;
use crate::whole_file::{self, WholeFile};

/// The word for standard input.
const STANDARD_INPUT: &str = "-";

/// Examine, convert and make traces of requests
#[derive(Debug, Subcommand)]
pub enum TraceCommand {
    /// Say what is in a trace
    Info(InfoArgs),
    /// Write a trace in another format
    Convert(ConvertArgs),
    /// Write the trace of a workload
    Make(MakeArgs),
    /// List the built-in workloads, or print one
    Workloads {
        /// The one to print
        name: Option<String>,
    },
}

/// Which trace, and how it is read.
#[derive(Debug, Args)]
pub struct ReadArgs {
    /// The trace, also compressed by gzip or zstd; `-` is standard input
    trace: String,
    #[command(flatten)]
    how: HowArgs,
}

/// How any trace is read.
#[derive(Debug, Args)]
pub struct HowArgs {
    /// Its format, if it is not to be recognized by its content
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Stop at the first line that is malformed or not in the order of time
    #[arg(long)]
    strict: bool,
    /// Which event of a blkparse trace is the request: queued (Q), issued to the device (D), completed (C)
    #[arg(long, value_enum, ignore_case = true, default_value = "d")]
    event: EventArg,
    /// Take the instructions of a lackey trace for loads too
    #[arg(long)]
    instructions: bool,
    /// The objects of an oracle-general trace are hashes or names, not numbers of 4 KiB pages
    #[arg(long)]
    hashed_objects: bool,
}

/// `osier trace info`
#[derive(Debug, Args)]
pub struct InfoArgs {
    #[command(flatten)]
    read: ReadArgs,
}

/// `osier trace convert`
#[derive(Debug, Args)]
pub struct ConvertArgs {
    #[command(flatten)]
    read: ReadArgs,
    #[command(flatten)]
    write: WriteArgs,
    /// Bring addresses into this capacity
    #[arg(long, value_name = "SIZE")]
    capacity: Option<String>,
    /// How: refuse what is beyond it, take addresses modulo it, or number 4 KiB pages by first use
    #[arg(long, value_enum, default_value = "refuse", requires = "capacity")]
    remap: RemapArg,
    /// Multiply times by a whole number or a fraction, as in 10 or 1/10
    #[arg(long, value_name = "FACTOR", value_parser = parse_factor)]
    time_scale: Option<(u32, u32)>,
    /// Give the requests times that are so far apart, whatever they have
    #[arg(long, value_name = "N", conflicts_with = "time_scale")]
    interval_ns: Option<u64>,
}

/// `osier trace make`
#[derive(Debug, Args)]
pub struct MakeArgs {
    /// A built-in workload, or the path of a file
    workload: String,
    #[command(flatten)]
    write: WriteArgs,
    /// How long each request takes, for jobs that wait for completions
    #[arg(long, value_name = "N")]
    service_ns: Option<u64>,
    /// Stop after so many requests
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
}

/// Where a trace goes.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// The file to write
    out: PathBuf,
    /// The format to write
    #[arg(long, value_enum)]
    to: TargetArg,
    /// Replace the file if there is one
    #[arg(long)]
    overwrite: bool,
}

/// The library's names, as clap wants them.
macro_rules! value_enum {
    ($name:ident, $inner:ty, $word:expr) => {
        #[doc = concat!("A [`", stringify!($inner), "`] by its name.")]
        #[derive(Debug, Clone, Copy)]
        pub struct $name($inner);

        impl From<$name> for $inner {
            fn from(named: $name) -> $inner {
                named.0
            }
        }

        impl ValueEnum for $name {
            fn value_variants<'a>() -> &'a [Self] {
                const ALL: &[$name] = &{
                    let mut all = [$name(<$inner>::ALL[0]); <$inner>::ALL.len()];
                    let mut index = 0;
                    while index < all.len() {
                        all[index] = $name(<$inner>::ALL[index]);
                        index += 1;
                    }
                    all
                };
                ALL
            }

            fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
                let word: fn($inner) -> &'static str = $word;
                Some(clap::builder::PossibleValue::new(word(self.0)))
            }
        }
    };
}

value_enum!(FormatArg, Format, Format::name);
value_enum!(TargetArg, Target, Target::name);
value_enum!(RemapArg, Remap, Remap::name);
value_enum!(EventArg, BlkEvent, BlkEvent::letter);

pub fn parse_factor(text: &str) -> Result<(u32, u32), String> {
    let (numerator, denominator) = text.split_once('/').unwrap_or((text, "1"));
    let numbers = numerator.parse().ok().zip(denominator.parse().ok());
    let positive = numbers.filter(|(numerator, denominator)| *numerator > 0 && *denominator > 0);
    positive.ok_or_else(|| format!("`{text}` is no factor: write a whole number or a fraction, as in 10 or 1/10"))
}

/// Does what was asked.
///
/// # Errors
/// A trace or workload that is not understood, a format that cannot hold it, a file that cannot be written.
pub fn run(command: &TraceCommand, context: &Context) -> Result<Exit> {
    match command {
        TraceCommand::Info(args) => info(args, context),
        TraceCommand::Convert(args) => convert(args, context),
        TraceCommand::Make(args) => make(args, context),
        TraceCommand::Workloads { name } => workloads(name.as_deref(), context),
    }
}

fn refuse(cause: impl std::fmt::Display) -> anyhow::Error {
    Failure::new(Exit::BadInput, cause.to_string()).into()
}

/// The bytes of a trace.
pub type Bytes = Box<dyn Read>;

impl ReadArgs {
    fn open(&self) -> Result<(Compression, Opened)> {
        self.how.open(&self.trace)
    }
}

impl HowArgs {
    /// Opens a trace, by its path or `-`.
    pub fn open(&self, trace: &str) -> Result<(Compression, Opened)> {
        let name = if trace == STANDARD_INPUT { "standard input" } else { trace };
        let failed = |cause: std::io::Error| refuse(format_args!("reading the trace {name} failed: {cause}"));
        let file: Bytes = if trace == STANDARD_INPUT {
            Box::new(std::io::stdin())
        } else {
            Box::new(File::open(trace).map_err(failed)?)
        };
        let (compression, bytes) = unpack(file).map_err(failed)?;
        let options = ReadOptions {
            strict: self.strict,
            event: self.event.into(),
            instructions: self.instructions,
            hashed_objects: self.hashed_objects,
            ..ReadOptions::default()
        };
        let reader = TraceReader::new(bytes, self.format.map(Format::from), options);
        let reader = reader.map_err(|error| refuse(format_args!("{name}: {error}")))?;
        Ok((compression, Opened { name: name.to_owned(), reader }))
    }
}

/// Opens a trace whose format its content shows, and in which no line may be bad.
pub fn open_strictly(trace: &str) -> Result<Opened> {
    let event = EventArg(BlkEvent::default());
    let how = HowArgs { format: None, strict: true, event, instructions: false, hashed_objects: false };
    how.open(trace).map(|(_, opened)| opened)
}

/// A trace that was opened.
pub struct Opened {
    /// Its name in errors.
    pub name: String,
    /// Its reader.
    pub reader: TraceReader<Bytes>,
}

impl Opened {
    /// An error of this trace.
    pub fn refuse(&self, error: &dyn std::fmt::Display) -> anyhow::Error {
        refuse(format_args!("{}: {error}", self.name))
    }

    /// Says on standard error which lines were left out.
    pub fn warn(&self) {
        let (counts, unit) = (self.reader.counts(), self.reader.format().unit());
        for bad in &counts.shown {
            tell!("osier: {}: {unit} {bad}", self.name);
        }
        if counts.bad() > counts.shown.len() as u64 {
            tell!("osier: {}: {} {unit}s in all are bad and were left out", self.name, counts.bad());
        }
    }
}

/// Everything that a source gives, one after the other. No completion is waited for, so time is that of the arrivals.
///
/// # Errors
/// What the source says, or `take`.
pub fn each(source: &mut dyn Source, mut take: impl FnMut(&osier_sim::Request) -> Result<()>) -> Result<()> {
    let mut now = Nanos::ZERO;
    while let Some(request) = source.next(now) {
        let request = request.map_err(refuse)?;
        now = request.at;
        take(&request)?;
    }
    Ok(())
}

fn info(args: &InfoArgs, context: &Context) -> Result<Exit> {
    let (compression, mut trace) = args.read.open()?;
    let mut summary = Summary::default();
    each(&mut trace.reader, |request| {
        summary.add(request);
        Ok(())
    })
    .map_err(|error| trace.refuse(&error))?;
    let reader = &trace.reader;
    let shown = show::Shown { compression, format: reader.format(), counts: reader.counts(), summary: &summary };
    if context.json {
        output::print_json(&shown.to_json())?;
    } else {
        output::print(&shown.to_text())?;
    }
    Ok(Exit::Ok)
}

fn convert(args: &ConvertArgs, context: &Context) -> Result<Exit> {
    let (_, mut trace) = args.read.open()?;
    let is_timed = trace.reader.format().is_timed() || args.interval_ns.is_some();
    if args.write.to.0.is_timed() && !is_timed {
        let (from, to) = (trace.reader.format().name(), args.write.to.0.name());
        let text = format!("a `{from}` trace has no times, and `{to}` needs them; give --interval-ns");
        return Err(trace.refuse(&text));
    }
    let speed = match (args.interval_ns, args.time_scale) {
        (Some(interval_ns), _) => Speed::Every { interval_ns },
        (None, Some((numerator, denominator))) => Speed::Scaled { numerator, denominator },
        (None, None) => Speed::Scaled { numerator: 1, denominator: 1 },
    };
    let written = {
        let paced = Paced::new(&mut trace.reader, speed);
        match &args.capacity {
            None => args.write.write(paced, None),
            Some(capacity) => {
                let bytes = parse_bytes(capacity).map_err(refuse)?;
                let remapped = Remapped::new(paced, args.remap.0, bytes, PAGE_BYTES).map_err(refuse)?;
                args.write.write(remapped, None)
            }
        }
    };
    let written = written.with_context(|| format!("converting {}", trace.name))?;
    trace.warn();
    args.write.report(written, trace.reader.counts().bad(), context)
}

fn make(args: &MakeArgs, context: &Context) -> Result<Exit> {
    let workload = find_workload(&args.workload)?;
    let merged = Merged::new(&workload, args.service_ns);
    let merged = merged.map_err(|error| refuse(format_args!("{error} (--service-ns)")))?;
    let written = args.write.write(merged, args.requests)?;
    args.write.report(written, 0, context)
}

/// A workload by its name, or that of a file by its path. A word with a `/` in it, or that ends in `.toml`, is a path.
pub fn find_workload(word: &str) -> Result<Workload> {
    if !word.contains('/') && !word.ends_with(".toml") {
        return Workload::built_in(word).map_err(refuse);
    }
    let read = std::fs::read_to_string(word);
    let text =
        read.map_err(|cause| refuse(format_args!("reading the workload {word} failed: {cause}; name another file")))?;
    Workload::parse(word, &text).map_err(refuse)
}

fn workloads(name: Option<&str>, context: &Context) -> Result<Exit> {
    if let Some(name) = name {
        Workload::built_in(name).map_err(refuse)?;
        output::print(Workload::built_in_text(name).unwrap_or_default())?;
        return Ok(Exit::Ok);
    }
    let mut table = output::Table::new(&["WORKLOAD", "WHAT IT IS"]);
    let mut list = Vec::new();
    for name in Workload::built_in_names() {
        let description = Workload::built_in(name).map_err(refuse)?.description;
        list.push(serde_json::json!({ "name": name, "description": description }));
        table.row(vec![name.to_owned(), description]);
    }
    if context.json {
        output::print_json(&list)?
    } else {
        output::print(&table.text())?
    }
    Ok(Exit::Ok)
}

impl WriteArgs {
    /// Writes all requests, or `most`, and gives back how many.
    fn write(&self, mut source: impl Source, most: Option<u64>) -> Result<u64> {
        let file = WholeFile::create(&self.out, "trace", self.overwrite)?;
        let mut writer = TraceWriter::new(file, self.to.0);
        let (mut now, mut written) = (Nanos::ZERO, 0);
        while most != Some(written) {
            let Some(request) = source.next(now) else { break };
            let request = request.map_err(refuse)?;
            now = request.at;
            writer.write(&request).map_err(|error| self.failure(error))?;
            written += 1;
        }
        writer.finish().map_err(|error| self.failure(error))?.keep()?;
        Ok(written)
    }

    /// What a failed writer means: a full disk, or a request that the format cannot hold.
    fn failure(&self, error: WriteError) -> anyhow::Error {
        match error {
            WriteError::Io(cause) => whole_file::failure(&self.out, "trace", cause),
            other => refuse(other),
        }
    }

    fn report(&self, written: u64, left_out: u64, context: &Context) -> Result<Exit> {
        let (path, format, loses) = (self.out.display().to_string(), self.to.0.name(), self.to.0.loses());
        if context.json {
            let figures = serde_json::json!({
                "file": path, "format": format, "requests": written, "bad_lines": left_out, "loses": loses,
            });
            output::print_json(&figures)?;
        } else {
            let left_out = if left_out > 0 { format!(", {left_out} bad lines left out") } else { String::new() };
            output::print(&format!("wrote {written} requests to {path}{left_out} ({format}: {loses})\n"))?;
        }
        Ok(Exit::Ok)
    }
}
