//! `osier mount` and `osier fsck`: a device that is up, as a file system.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::Args;
use osier_front::fuse::{DeviceDisk, Mount, MountConfig};
use osier_fs::{Blocks, Content, FileSystem, MountError, Time, check, is_blank, probe};
use osier_runtime::clients;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::{print_json, tell};

/// Between two looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// What the process in the background says when the file system is there.
const READY: &str = "osier: mounted";
/// Threads that answer the kernel when nobody says how many: most that are of use to one device.
const THREADS_MAX: usize = 8;

/// Mount a running device as a file system
///
/// `osier serve` has the device up. Programs use the directory as any other; what was synced is there after any crash. It
/// ends with `umount`, or with SIGINT or SIGTERM.
#[derive(Debug, Args)]
pub struct MountArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// The directory where it is mounted
    pub dir: PathBuf,
    /// Make a new, empty file system first; whatever the device holds is lost
    #[arg(long)]
    pub format: bool,
    /// Stay in the foreground until it is unmounted
    #[arg(long)]
    pub foreground: bool,
    /// Threads that answer the kernel [default: two for each processor, 8 at most]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub threads: Option<u16>,
    /// Make changes persistent after so many seconds when no program asks for it sooner
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub commit_interval: u64,
}

/// Check a device's file system; nothing is repaired
///
/// The device is up, and not mounted.
#[derive(Debug, Args)]
pub struct FsckArgs {
    /// The device: a name in the home, or a path
    pub device: String,
}

/// Mounts, and in the foreground stays until it is unmounted.
///
/// # Errors
/// That the device is not up, holds something else, or cannot be mounted there.
pub fn run(args: &MountArgs, context: &Context) -> Result<Exit> {
    if !args.foreground {
        return in_background();
    }
    let image = context.image_path(&args.device)?;
    let threads = args.threads.map_or_else(default_threads, usize::from);
    let place = std::fs::metadata(&args.dir).with_context(|| format!("looking at {}", args.dir.display()))?;
    if !place.is_dir() {
        return Err(Failure::new(Exit::BadInput, format!("{} is no directory", args.dir.display())).into());
    }
    // One more for whoever commits.
    let disk = attach(&image, threads + 1)?;
    if disk.is_read_only() {
        let text = format!("{} takes no writes; serve it without --read-only", args.device);
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    let system = Arc::new(open(Arc::new(disk), args)?);
    // It must not be in the tree when nobody answers: so the signals are caught first.
    let stop = crate::signals::stop_flag_or(|| "what was not synced may be lost".to_owned())?;
    let config = MountConfig {
        name: format!("osier:{}", args.device),
        threads,
        commit_interval: Duration::from_secs(args.commit_interval),
    };
    let mount = Mount::start(system, &args.dir, &config).map_err(|error| {
        let text =
            format!("cannot mount at {}: {error}; FUSE needs /dev/fuse, and root or fusermount3", args.dir.display());
        Failure::new(Exit::Failure, text)
    })?;
    tell!("{READY} {} at {}", args.device, args.dir.display());
    while !stop.is_set() && !mount.has_ended() {
        std::thread::sleep(LOOK);
    }
    mount.end(|| {
        let dir = args.dir.display();
        tell!("osier: {dir} is in use: it is out of the tree, and ends when the last file is closed");
    })?;
    Ok(Exit::Ok)
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(2, |count| (2 * count.get()).min(THREADS_MAX))
}

fn attach(image: &Path, lanes: usize) -> Result<DeviceDisk> {
    Ok(DeviceDisk::attach(&clients::socket(image), lanes)
        .map_err(|error| Failure::new(Exit::Missing, error.to_string()))?)
}

/// The same command once more, in a session of its own; it goes on when the file system is there.
fn in_background() -> Result<Exit> {
    let program = std::env::current_exe().context("looking for this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("starting the process that serves the file system")?;
    let Some(errors) = child.stderr.take() else { return Ok(Exit::Failure) };
    for line in BufReader::new(errors).lines() {
        let line = line.context("listening to the process that serves the file system")?;
        tell!("{line}");
        if line.starts_with(READY) {
            return Ok(Exit::Ok);
        }
    }
    let status = child.wait().context("waiting for the process that serves the file system")?;
    Ok(status.code().and_then(Exit::of_code).filter(|exit| *exit != Exit::Ok).unwrap_or(Exit::Failure))
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs().cast_signed(), nanoseconds: since.subsec_nanos() }
}

/// The file system that the device holds, or a new one if it holds nothing or that is asked for.
fn open(disk: Arc<DeviceDisk>, args: &MountArgs) -> Result<FileSystem> {
    let content = probe(&*disk).context("reading the device's first block")?;
    let is_new = args.format || (content == Content::NoSuperblock && is_blank(&*disk).context("reading the device")?);
    if is_new {
        let mut identity = [0; 16];
        std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut identity)?;
        tell!("osier: {} gets a new file system", args.device);
        return Ok(FileSystem::format(disk, identity, now()).map_err(refusal)?);
    }
    if matches!(content, Content::NoSuperblock | Content::Foreign) {
        let text = format!(
            "{} holds something that is no file system of Osier's; `--format` makes one, and all that it holds is lost",
            args.device
        );
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    Ok(FileSystem::mount(disk).map_err(refusal)?)
}

fn refusal(error: MountError) -> Failure {
    let exit = match error {
        MountError::Size(_) | MountError::NoFileSystem => Exit::BadInput,
        MountError::Unusable(_) => Exit::Damaged,
        MountError::Device { .. } => Exit::Failure,
    };
    Failure::new(exit, error.to_string())
}

/// Checks.
///
/// # Errors
/// That the device is not up, or holds no file system.
pub fn fsck(args: &FsckArgs, context: &Context) -> Result<Exit> {
    let disk: Arc<dyn Blocks> = Arc::new(attach(&context.image_path(&args.device)?, 1)?);
    let system = FileSystem::mount(disk).map_err(refusal)?;
    let report = check(&system).context("reading the file system")?;
    if context.json {
        print_json(&serde_json::json!({
            "inodes": report.inodes,
            "entries": report.entries,
            "extents": report.extents,
            "bytes": report.blocks * osier_fs::BLOCK_BYTES as u64,
            "faults": report.faults,
        }))?;
    } else {
        let (inodes, entries, extents) = (report.inodes, report.entries, report.extents);
        tell!("osier: {inodes} inodes, {entries} entries, {extents} extents, {} blocks", report.blocks);
        for fault in &report.faults {
            tell!("osier: {fault}");
        }
        tell!("osier: {}", if report.faults.is_empty() { "all is well" } else { "the file system is damaged" });
    }
    Ok(if report.faults.is_empty() { Exit::Ok } else { Exit::Damaged })
}
