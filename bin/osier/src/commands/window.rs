//! `osier window`: a device whose memory programs map.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use osier_client::{Control, WindowError, heap};
use osier_device::model::ModelConfig;
use osier_device::record::{Tape, WindowOrigin};
use osier_device::window::{ByteMedia, PAGE_BYTES, Reserve};
use osier_front::window::{Durations, FileStore, Live, ServeError, ServeOptions, Server};
use osier_pmr::WaitPolicy;
use osier_runtime::{FileSink, RecordCore, check_recording};
use serde::Serialize;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{self, tell};
use crate::units::{format_bytes, parse_bytes};
use crate::{profiles, signals};

const PAGE: u64 = PAGE_BYTES as u64;
/// Frames that are kept free, in thousandths of the cache, and at most.
const RESERVE_PERMILLE: u64 = 30;
const RESERVE_MAX: u64 = 512;

/// Serve a device's memory to programs
#[derive(Debug, Subcommand)]
pub enum WindowCommand {
    /// Bring a device up whose memory programs map, until SIGINT or SIGTERM
    ///
    /// Its flash is in this process's memory, or in a file (`--media`), and ends with it. `osier run` puts a program's
    /// heap there.
    Serve(ServeArgs),
    /// Bring pages into the cache
    Prefetch(RangeArgs),
    /// Bring pages into the cache and keep them there until `unpin`, or until the device ends
    Pin(RangeArgs),
    /// Take one of the pins of `pin` off each page; programs' own pins stay
    Unpin(RangeArgs),
    /// Let pages leave the cache
    Evict(RangeArgs),
    /// Change the eviction policy
    Policy(PolicyArgs),
    /// Print what the device does, as JSON
    Stats(DeviceArg),
}

/// A device that serves its window.
#[derive(Debug, Args)]
pub struct DeviceArg {
    /// The socket of the device
    #[arg(long, value_name = "SOCKET")]
    pub device: PathBuf,
}

/// `osier window prefetch` and the others that take pages
#[derive(Debug, Args)]
pub struct RangeArgs {
    #[command(flatten)]
    pub device: DeviceArg,
    /// Bytes of the window, as in 0..64MiB or 1GiB..1088MiB; their bounds are multiples of 4 KiB
    #[arg(required = true, value_name = "RANGE", value_parser = parse_range)]
    pub ranges: Vec<PageRange>,
}

/// `osier window policy`
#[derive(Debug, Args)]
pub struct PolicyArgs {
    #[command(flatten)]
    pub device: DeviceArg,
    /// The policy, with parameters as in s3-fifo:small_permille=200,ghost_permille=500
    #[arg(value_name = "POLICY")]
    pub policy: String,
}

/// Pages of a window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageRange(Range<u64>);

/// Bytes `FIRST..END`, as pages.
fn parse_range(text: &str) -> Result<PageRange, String> {
    let (first, end) = text.split_once("..").ok_or("a range is FIRST..END, in bytes, as in 0..64MiB")?;
    let page = |text: &str| match parse_bytes(text)? {
        bytes if bytes.is_multiple_of(PAGE) => Ok(bytes / PAGE),
        bytes => Err(format!("{bytes} bytes are not a multiple of a page's 4 KiB")),
    };
    let (first, end) = (page(first)?, page(end)?);
    if first > end {
        return Err(format!("{text} ends before it begins"));
    }
    Ok(PageRange(first..end))
}

/// `osier window serve`
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where programs attach: the path of a socket to be made
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// What the device is.
#[derive(Debug, Args)]
#[command(next_help_heading = "The device")]
pub struct DeviceArgs {
    /// A built-in profile, or the path of a file
    #[arg(long, value_name = "NAME|FILE", default_value = "cylon")]
    pub profile: String,
    /// Bytes of the window: what programs can address
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "1GiB")]
    pub capacity: u64,
    /// Bytes of the device's DRAM cache, if others than the profile's
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub cache: Option<u64>,
    /// Set a key of the profile otherwise, as in cache.eviction=sieve; may be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::parse_setting)]
    pub set: Vec<(String, toml::Value)>,
    /// Keep the flash's bytes in an unnamed file in this directory, for windows larger than memory
    #[arg(long, value_name = "DIRECTORY")]
    pub media: Option<PathBuf>,
    /// How the device waits when idle: poll, umwait, futex, hybrid or hybrid:NANOSECONDS
    #[arg(long, value_name = "POLICY", default_value = "hybrid")]
    pub wait: WaitPolicy,
    /// Draws what the models draw
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write every input of the device core to this file, for `osier replay`
    #[arg(long, value_name = "FILE")]
    pub record_core: Option<PathBuf>,
    /// Let the device wait where the disk takes less than that, instead of ending the recording
    #[arg(long, requires = "record_core")]
    pub record_core_wait: bool,
}

/// Does what was asked.
///
/// # Errors
/// A device that cannot be, a socket that cannot be served.
pub fn run(command: &WindowCommand, context: &Context) -> Result<Exit> {
    match command {
        WindowCommand::Serve(args) => serve(args, context),
        WindowCommand::Prefetch(args) => ranges(args, Control::prefetch, context),
        WindowCommand::Pin(args) => ranges(args, Control::pin, context),
        WindowCommand::Unpin(args) => ranges(args, Control::unpin, context),
        WindowCommand::Evict(args) => ranges(args, Control::evict, context),
        WindowCommand::Policy(args) => {
            connect(&args.device)?.set_policy(&args.policy).map_err(refused)?;
            Ok(Exit::Ok)
        }
        WindowCommand::Stats(args) => {
            output::print_json(&live(&mut connect(args)?)?)?;
            Ok(Exit::Ok)
        }
    }
}

/// The control socket of a device.
pub fn connect(args: &DeviceArg) -> Result<Control> {
    Control::open(&args.device).map_err(|error| Failure::new(Exit::Missing, error.to_string()).into())
}

/// What a device does now.
pub fn live(control: &mut Control) -> Result<Live> {
    let text = control.stats().map_err(refused)?;
    serde_json::from_str(&text).map_err(|error| {
        let text = format!("the device's figures cannot be read ({error}); is it of the same version?");
        Failure::new(Exit::BadInput, text).into()
    })
}

fn refused(error: WindowError) -> anyhow::Error {
    let exit = match error {
        WindowError::Connect { .. } | WindowError::DeviceDied { .. } => Exit::Missing,
        _ => Exit::BadInput,
    };
    Failure::new(exit, error.to_string()).into()
}

/// What a command did to all its ranges, in pages.
#[derive(Debug, Default, Serialize)]
struct Done {
    done: u64,
    idle: u64,
    refused: u64,
}

/// Does a command on one range after the other.
fn ranges(
    args: &RangeArgs,
    command: fn(&mut Control, Range<u64>) -> Result<osier_client::Report, WindowError>,
    context: &Context,
) -> Result<Exit> {
    let mut control = connect(&args.device)?;
    let mut all = Done::default();
    for PageRange(pages) in &args.ranges {
        let report = command(&mut control, pages.clone()).map_err(refused)?;
        all.done += report.done;
        all.idle += report.idle;
        all.refused += report.refused;
    }
    if context.json {
        output::print_json(&all)?
    } else {
        let Done { done, idle, refused } = all;
        output::print(&format!("{done} pages; {idle} more were as they should be, {refused} were refused\n"))?
    }
    Ok(Exit::Ok)
}

fn serve(args: &ServeArgs, context: &Context) -> Result<Exit> {
    let (mut server, survives_power_loss) = args.device.server(&args.socket)?;
    let _file = HeapFile::new(&args.socket, survives_power_loss)?;
    let stop = signals::stop_flag()?;
    let stats = server.window().stats();
    let [window, cache] = [server.window().pages(), stats.frames].map(|pages| format_bytes(pages * PAGE));
    tell!("osier: a window of {window} with a cache of {cache} at {}", args.socket.display());
    server.run(&stop.shared());
    server.end_recording();
    let report = Report::new(&server);
    if context.json {
        output::print_json(&report)?
    } else {
        output::print(&report.text())?
    }
    Ok(Exit::Ok)
}

/// Who has which part of the window, there while the device serves.
struct HeapFile(PathBuf);

impl HeapFile {
    fn new(socket: &Path, survives_power_loss: bool) -> Result<HeapFile> {
        let path = heap::file_of(socket);
        heap::create_file(&path, survives_power_loss)
            .map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
        Ok(HeapFile(path))
    }
}

impl Drop for HeapFile {
    fn drop(&mut self) {
        // A file that stays is of no use to anybody, and does no harm: the next device makes it anew.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl DeviceArgs {
    /// A device that listens, and whether its cache survives a loss of power.
    fn server(&self, socket: &Path) -> Result<(Server, bool)> {
        let mut set = self.set.clone();
        if let Some(bytes) = self.cache {
            let size = toml::Table::from_iter([("bytes".to_owned(), i64::try_from(bytes)?.into())]);
            set.push(("cache.size".to_owned(), toml::Value::Table(size)));
        }
        let (profile_name, profile_text) = profiles::text(&self.profile)?;
        let profile = profiles::with(&profile_name, &profile_text, &set)?;
        let refuse = |error: &dyn std::error::Error| Failure::new(Exit::BadInput, error.to_string());
        let config = profile.model(Some(self.capacity)).map_err(|error| refuse(&error))?;
        let cache_bytes = config.cache.as_ref().map_or(0, |cache| u64::from(cache.cache.frames) * PAGE);
        let frames = reserve_frames(&config);
        let options = ServeOptions {
            socket: socket.to_owned(),
            name: profile.device.name.clone(),
            reserve: Reserve { frames, batch: (frames / 4).max(1) },
            wait: self.wait,
            idle_bytes_max: cache_bytes,
            seed: self.seed,
        };
        let media = match &self.media {
            Some(directory) => {
                let store = FileStore::new(directory).map_err(|error| refuse(&error))?;
                ByteMedia::with_store(&config.flash, Box::new(store))
            }
            None => ByteMedia::new(&config.flash),
        };
        let server = match &self.record_core {
            Some(path) => {
                let (reserve, seed, capacity_bytes) = (options.reserve, options.seed, self.capacity);
                let origin = WindowOrigin { profile_name, profile_text, settings: set, capacity_bytes, reserve, seed };
                Server::recorded(&config, &options, media, &origin, self.tape(path)?)
            }
            None => Server::with_media(&config, &options, media),
        };
        let survives_power_loss = config.cache.as_ref().is_some_and(|cache| cache.survives_power_loss);
        server.map(|server| (server, survives_power_loss)).map_err(|error| {
            let exit = match &error {
                ServeError::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Exit::Busy,
                ServeError::Memory(_) | ServeError::Segment(_) => Exit::NoSpace,
                _ => Exit::BadInput,
            };
            Failure::new(exit, error.to_string()).into()
        })
    }

    /// An empty recording.
    fn tape(&self, path: &Path) -> Result<Tape> {
        let refuse = |error: osier_runtime::RuntimeError| Failure::new(Exit::BadInput, error.to_string());
        check_recording(path).map_err(refuse)?;
        let to = RecordCore { path: path.to_owned(), wait: self.record_core_wait };
        let (sink, life) = FileSink::open(&to, false).map_err(refuse)?;
        Ok(Tape::new(life, Box::new(sink)))
    }
}

/// Frames that are kept free: of a cache that is one set a share, of others what the profile keeps of each set.
fn reserve_frames(config: &ModelConfig) -> u32 {
    let Some(cache) = config.cache.as_ref().map(|cache| &cache.cache) else { return 1 };
    if cache.ways == 0 || cache.ways == cache.frames {
        return (u64::from(cache.frames) * RESERVE_PERMILLE / 1000).clamp(1, RESERVE_MAX) as u32;
    }
    cache.reserve_frames.max(1)
}

/// What a device did while it served. Pages are of 4 KiB.
#[derive(Debug, Serialize)]
struct Report {
    window_bytes: u64,
    cache_bytes: u64,
    /// Faults that programs reported.
    faults: u64,
    /// Of these, those that read a page of the flash.
    misses: u64,
    /// Of these, those that waited for a frame.
    blocked: u64,
    /// Pages that left the cache.
    evicted: u64,
    /// Of these, those that were programmed.
    evicted_dirty: u64,
    /// Programs whose stores were not tracked: each page of theirs that left counts as dirty.
    programs_untracked: u64,
    /// Faults that found a page whose bytes the flash has lost.
    lost: u64,
    /// Dirty pages that worn-out flash refused.
    dropped: u64,
    flash_pages_written: u64,
    /// Pages that collection moved.
    flash_pages_moved: u64,
    superblocks_erased: u64,
    blocks_erased: u64,
    /// Bytes programmed for each byte written, in millionths.
    waf_ppm: u64,
    /// How long faults took, of all programs.
    latency: Durations,
    /// How late their pages were mapped, after they were due: the emulator's own error.
    lateness: Durations,
    sampling: Sampled,
}

/// What is known of hits, of which the device does not hear: of pages that were drawn for a sample.
#[derive(Debug, Serialize)]
struct Sampled {
    /// How long each was watched.
    period_us: u64,
    /// Pages that were drawn, and used within the period or not.
    samples: u64,
    used: u64,
    /// Pages that left before.
    gone: u64,
    /// The share of resident pages that is used within a period, and its standard error, in millionths.
    used_ppm: Option<u64>,
    error_ppm: Option<u64>,
    /// What it cost programs, but for the traps themselves: in all, for each sample, and of the time that they ran, in
    /// millionths.
    cost_ns: u64,
    cost_ns_per_sample: u64,
    cost_ppm: u64,
}

impl Sampled {
    fn new(server: &Server) -> Sampled {
        let (counts, cost) = (server.window().stats().samples, server.sampling());
        let share = counts.used_ppm();
        let of = |part: u64, times: u64, all: u64| {
            let share = u128::from(part) * u128::from(times) / u128::from(all.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        Sampled {
            period_us: server.window().sampling().period_ns / 1000,
            samples: counts.samples(),
            used: counts.used,
            gone: counts.gone,
            used_ppm: share.map(|(share, _)| share),
            error_ppm: share.map(|(_, error)| error),
            cost_ns: cost.ns,
            cost_ns_per_sample: of(cost.ns, 1, counts.samples() + counts.gone),
            cost_ppm: of(cost.ns, 1_000_000, cost.program_ns),
        }
    }

    fn line(&self) -> Option<String> {
        let (used, error) = (self.used_ppm?, self.error_ppm?);
        let percent = |ppm: u64| format!("{}.{:02} %", ppm / 10_000, ppm / 100 % 100);
        Some(format!(
            "hits        of {} sampled pages {} (+- {}) were used within {} us; a sample cost {} ns, all of them {} of the \
             programs' time",
            self.samples,
            percent(used),
            percent(error),
            self.period_us,
            self.cost_ns_per_sample,
            percent(self.cost_ppm)
        ))
    }
}

impl Report {
    fn new(server: &Server) -> Report {
        let stats = server.window().stats();
        let (counts, flash) = (&stats.counts, &stats.flash);
        let [latency, lateness] = server.timing();
        Report {
            latency: Durations::from(&latency),
            lateness: Durations::from(&lateness),
            window_bytes: server.window().pages() * PAGE,
            cache_bytes: stats.frames * PAGE,
            faults: counts.faults,
            misses: counts.misses,
            blocked: counts.blocked,
            evicted: counts.left,
            evicted_dirty: counts.left_dirty,
            programs_untracked: server.programs_untracked(),
            lost: counts.lost,
            dropped: counts.dropped,
            flash_pages_written: flash.units_written,
            flash_pages_moved: flash.units_moved,
            superblocks_erased: flash.superblocks_erased,
            blocks_erased: flash.blocks_erased,
            waf_ppm: flash.waf_ppm(),
            sampling: Sampled::new(server),
        }
    }

    fn text(&self) -> String {
        let mut lines = vec![
            format!(
                "faults      {}, of which {} missed and {} waited for a frame",
                self.faults, self.misses, self.blocked
            ),
            format!("evictions   {}, of which {} were dirty", self.evicted, self.evicted_dirty),
            format!(
                "flash       {} pages written, {} moved by collection, {} superblocks erased",
                self.flash_pages_written, self.flash_pages_moved, self.superblocks_erased
            ),
        ];
        if self.flash_pages_written > 0 {
            lines.push(format!("WAF         {}.{:03}", self.waf_ppm / 1_000_000, self.waf_ppm / 1000 % 1000));
        }
        if self.latency.count > 0 {
            lines.push(format!("latency     {}", durations(&self.latency)));
            lines.push(format!("lateness    {}: the emulator's own error", durations(&self.lateness)));
        }
        if self.lost + self.dropped > 0 {
            lines.push(format!(
                "lost        {} faults found lost pages; {} pages were refused",
                self.lost, self.dropped
            ));
        }
        if self.programs_untracked > 0 {
            lines.push(format!(
                "warning     stores of {} programs were not tracked: each page of theirs that left counts as dirty, so \
                 there are too many dirty evictions, pages written and erased superblocks",
                self.programs_untracked
            ));
        }
        lines.extend(self.sampling.line());
        lines.join("\n") + "\n"
    }
}

/// Durations in a line.
pub fn durations(of: &Durations) -> String {
    let micros = |ns: u64| format!("{}.{}", ns / 1000, ns / 100 % 10);
    format!(
        "{} us (p50), {} us (p99), {} us (most) of {}",
        micros(of.p50_ns),
        micros(of.p99_ns),
        micros(of.max_ns),
        of.count
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_of_whole_pages() {
        assert_eq!(parse_range("0..64MiB"), Ok(PageRange(0..16_384)));
        assert_eq!(parse_range("4096..4096"), Ok(PageRange(1..1)));
        for (text, said) in [
            ("5", "FIRST..END"),
            ("0..1000", "1000 bytes are not a multiple"),
            ("8KiB..4KiB", "ends before"),
            ("x..4KiB", "x"),
        ] {
            let error = parse_range(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
