//! `osier window`: a device whose memory programs map.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};
use osier_client::heap;
use osier_device::Profile;
use osier_device::model::ModelConfig;
use osier_device::window::{ByteMedia, PAGE_BYTES, Reserve};
use osier_front::window::{FileStore, ServeError, ServeOptions, Server};
use osier_pmr::WaitPolicy;
use serde::Serialize;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::units::{format_bytes, parse_bytes};
use crate::{output, profiles, signals};

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
}

/// Does what was asked.
///
/// # Errors
/// A device that cannot be, a socket that cannot be served.
pub fn run(command: &WindowCommand, context: &Context) -> Result<Exit> {
    match command {
        WindowCommand::Serve(args) => serve(args, context),
    }
}

fn serve(args: &ServeArgs, context: &Context) -> Result<Exit> {
    let mut server = args.device.server(&args.socket)?;
    let _file = HeapFile::new(&args.socket)?;
    let stop = signals::stop_flag()?;
    let stats = server.window().stats();
    let [window, cache] = [server.window().pages(), stats.frames].map(|pages| format_bytes(pages * PAGE));
    eprintln!("osier: a window of {window} with a cache of {cache} at {}", args.socket.display());
    server.run(&stop.shared());
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
    fn new(socket: &Path) -> Result<HeapFile> {
        let path = heap::file_of(socket);
        heap::create_file(&path).map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
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
    /// A device that listens.
    fn server(&self, socket: &Path) -> Result<Server> {
        let mut set = self.set.clone();
        if let Some(bytes) = self.cache {
            let size = toml::Table::from_iter([("bytes".to_owned(), i64::try_from(bytes)?.into())]);
            set.push(("cache.size".to_owned(), toml::Value::Table(size)));
        }
        let profile: Profile = profiles::find_with(&self.profile, &set)?;
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
        Server::with_media(&config, &options, media).map_err(|error| {
            let exit = match &error {
                ServeError::System { source, .. } if source.kind() == io::ErrorKind::AddrInUse => Exit::Busy,
                ServeError::Memory(_) | ServeError::Segment(_) => Exit::NoSpace,
                _ => Exit::BadInput,
            };
            Failure::new(exit, error.to_string()).into()
        })
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
}

impl Report {
    fn new(server: &Server) -> Report {
        let stats = server.window().stats();
        let (counts, flash) = (&stats.counts, &stats.flash);
        Report {
            window_bytes: server.window().pages() * PAGE,
            cache_bytes: stats.frames * PAGE,
            faults: counts.faults,
            misses: counts.misses,
            blocked: counts.blocked,
            evicted: counts.left,
            evicted_dirty: counts.left_dirty,
            lost: counts.lost,
            dropped: counts.dropped,
            flash_pages_written: flash.units_written,
            flash_pages_moved: flash.units_moved,
            superblocks_erased: flash.superblocks_erased,
            blocks_erased: flash.blocks_erased,
            waf_ppm: flash.waf_ppm(),
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
        if self.lost + self.dropped > 0 {
            lines.push(format!(
                "lost        {} faults found lost pages; {} pages were refused",
                self.lost, self.dropped
            ));
        }
        lines.join("\n") + "\n"
    }
}
