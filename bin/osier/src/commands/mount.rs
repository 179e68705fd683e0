//! `osier mount` and `osier fsck`: a device that is up, as a file system.

use std::fs::{File, TryLockError};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use osier_front::fuse::{DeviceDisk, Mount, MountConfig, now, take_out};
use osier_fs::{Blocks, Content, FileSystem, MountError, check, is_blank, probe};
use osier_runtime::clients;

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::output::{print_json, tell};

/// Between two looks at the lock, and at what the process in the background says.
const LOOK: Duration = Duration::from_millis(50);
/// A process whose file system has just been unmounted has the last changes to make persistent.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// What the process in the background says when the file system is there.
const READY: &str = "osier: mounted";
/// Threads that answer the kernel when nobody says how many. Each waits for the device most of the time, so fewer would
/// keep requests from it, and syncs from sharing a record.
const THREADS: std::ops::RangeInclusive<usize> = 8..=16;

/// Mount a running device as a file system
///
/// `osier serve` has the device up. Programs use the directory as any other; what was synced is there after any crash.
/// It ends with `umount`, or with SIGINT or SIGTERM.
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
    /// Threads that answer the kernel [default: four for each processor, 8 to 16]
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
    let image = context.image_path(&args.device)?;
    if !args.foreground {
        return in_background(&image);
    }
    let threads = args.threads.map_or_else(default_threads, usize::from);
    fronts::tie_to_supervisor()?;
    let _lock = lock(&image, &args.device)?;
    // What a process that was killed has left in the tree; nobody can use it any more. The kernel may still have its
    // attributes, so it is asked for what only the process knows.
    if rustix::fs::statfs(&args.dir).is_err_and(|errno| errno == rustix::io::Errno::NOTCONN) {
        take_out(&args.dir).with_context(|| format!("unmounting what died at {}", args.dir.display()))?;
    }
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
    fronts::await_stop_or(&stop, || mount.has_ended());
    mount.end(|| {
        let dir = args.dir.display();
        tell!("osier: {dir} is in use: it is out of the tree, and ends when the last file is closed");
    })?;
    Ok(Exit::Ok)
}

fn default_threads() -> usize {
    let (least, most) = THREADS.into_inner();
    std::thread::available_parallelism().map_or(least, |count| (4 * count.get()).clamp(least, most))
}

/// Makes sure that nobody else has the device's file system as long as the file is open: two at once would destroy it.
fn lock(image: &Path, device: &str) -> Result<File> {
    let path = image.join("mount.lock");
    let what = || format!("locking {}", path.display());
    let file = File::options().create(true).truncate(false).write(true).open(&path).with_context(what)?;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => {
                let text = format!("the file system of {device} is mounted or being checked; unmount it first");
                return Err(Failure::new(Exit::Busy, text).into());
            }
            Err(TryLockError::Error(error)) => return Err(error).with_context(what),
        }
    }
}

fn attach(image: &Path, lanes: usize) -> Result<DeviceDisk> {
    Ok(DeviceDisk::attach(&clients::socket(image), lanes)
        .map_err(|error| Failure::new(Exit::Missing, error.to_string()))?)
}

/// The same command once more, in a process group of its own, which says what it has to say to `mount.log` in the
/// image; it goes on when the file system is there.
fn in_background(image: &Path) -> Result<Exit> {
    if !image.is_dir() {
        return Err(Failure::new(Exit::Missing, format!("there is no device at {}", image.display())).into());
    }
    let path = image.join("mount.log");
    // Another's log is not cut off: whoever holds the lock writes there.
    let log =
        File::options().create(true).append(true).open(&path).with_context(|| format!("opening {}", path.display()))?;
    let begin = log.metadata().context("looking at the log")?.len() as usize;
    let program = std::env::current_exe().context("looking for this program")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).arg("--foreground");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut child = command.spawn().context("starting the process that serves the file system")?;
    loop {
        // Looked at before what it said is read, so that its last words are heard.
        let status = child.try_wait().context("waiting for the process that serves the file system")?;
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let said = String::from_utf8_lossy(bytes.get(begin..).unwrap_or_default()).into_owned();
        let is_there = said.lines().any(|line| line.starts_with(READY));
        if is_there || status.is_some() {
            said.lines().for_each(|line| tell!("{line}"));
        }
        match status {
            _ if is_there => return Ok(Exit::Ok),
            Some(status) => {
                let exit = status.code().and_then(Exit::of_code).filter(|exit| *exit != Exit::Ok);
                return Ok(exit.unwrap_or(Exit::Failure));
            }
            None => std::thread::sleep(LOOK),
        }
    }
}

/// The file system that the device holds, or a new one if it holds nothing or that is asked for.
fn open(disk: Arc<DeviceDisk>, args: &MountArgs) -> Result<FileSystem> {
    let content = probe(&*disk).context("reading the device's first block")?;
    let is_new = args.format || (content == Content::NoSuperblock && is_blank(&*disk).context("reading the device")?);
    if is_new {
        let mut identity = [0; 16];
        std::io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut identity)?;
        tell!("osier: {} gets a new file system", args.device);
        // Whoever makes it may fill it.
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        return Ok(FileSystem::format(disk, identity, owner, now()).map_err(refusal)?);
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
    let image = context.image_path(&args.device)?;
    let _lock = lock(&image, &args.device)?;
    let disk: Arc<dyn Blocks> = Arc::new(attach(&image, 1)?);
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
