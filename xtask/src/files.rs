//! A mounted device beside what everybody has: libfuse's `passthrough_hp` for direct reads, and the file system of the
//! disk that holds the device's files for small appends that are synced.
//!
//! For reads the device's media are memory, the model takes no time, and the peer's files are in memory; beside both
//! stands the same file system on the memory of its own process, which shows what the device's part is. For appends
//! the media are a file of that disk: once with a write buffer that is not persistent, so that a sync waits for the
//! disk as the peer's does, and once with one that the profile declares to be.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::turns::{PATIENCE, ROUNDS, Taken, build_osier, cpu_seconds, end, fio, make_device, median, rate};

/// Seconds of one load.
const SECONDS: u32 = 2;
/// Reads: fio's engine, and requests under way.
const READS: [(&str, u32); 2] = [("psync", 1), ("libaio", 8)];
const READ_RATIO_MIN: f64 = 0.8;
/// Writers that append to files of their own.
const WRITERS: [u32; 2] = [1, 8];
/// A sync that waits for the disk, and one that ends in persistent memory.
const APPEND_RATIOS_MIN: [(&str, f64); 2] = [("volatile", 1.0), ("persistent", 3.0)];

/// Runs the loads and prints the figures.
///
/// # Errors
/// When a server or the client cannot be run, or fails.
pub fn run() -> Result<ExitCode> {
    let peers = Command::new("scripts/fuse-peers").stderr(Stdio::inherit()).status().context("look for FUSE peers")?;
    if !peers.success() || std::fs::File::open("/dev/fuse").is_err() {
        let note = "/dev/fuse, fio or libfuse's passthrough_hp are not to be had here";
        println!("{}", json!({ "name": "files", "value": null, "unit": "requests/s", "note": note }));
        return Ok(ExitCode::SUCCESS);
    }
    let program = build_osier()?;
    let home = std::path::absolute("target/bench/files").context("find the directory")?;
    // What an earlier run that was killed has left.
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).context("make target/bench/files")?;
    read(&program, &home)?;
    append(&program, &home)?;
    let _ = std::fs::remove_dir_all(&home);
    Ok(ExitCode::SUCCESS)
}

fn read(program: &Path, home: &Path) -> Result<()> {
    let places = [
        mount_device(program, &home.join("memory"), &["--media", "memory"])?,
        mount_memory(program, &home.join("alone"))?,
        pass_through(home)?,
    ];
    for place in &places {
        // Every block, so that nothing is read that is nowhere.
        place.fio(&[
            "--rw=write",
            "--bs=1m",
            "--ioengine=psync",
            "--end_fsync=1",
            "--size=192m",
            "--filename=reads",
        ])?;
    }
    for (engine, depth) in READS {
        let load = [
            "--rw=randread",
            "--bs=4k",
            "--direct=1",
            "--size=192m",
            "--filename=reads",
            "--time_based",
            &format!("--runtime={SECONDS}"),
            &format!("--ioengine={engine}"),
            &format!("--iodepth={depth}"),
        ];
        let taken = take_turns(&places, &load)?;
        for (what, ours) in ["", ", no device"].iter().zip(&taken) {
            let figure = figure(&Load {
                name: format!("files: direct reads of 4k, {depth} under way{what}, beside passthrough_hp"),
                ours: *ours,
                peer: "passthrough_hp",
                theirs: taken[2],
                ratio_min: READ_RATIO_MIN,
                durability: "memory, both",
            });
            println!("{figure}");
        }
    }
    Ok(())
}

fn append(program: &Path, home: &Path) -> Result<()> {
    let volatile = home.join("volatile.toml");
    let profile = std::fs::read_to_string("profiles/wio.toml").context("read profiles/wio.toml")?;
    ensure!(profile.contains("pmr_persistent = true"), "profiles/wio.toml has a persistent memory region");
    let profile = profile.replace("pmr_persistent = true", "pmr_persistent = false");
    std::fs::write(&volatile, profile).context("write a profile")?;
    let volatile = volatile.to_str().context("a path in UTF-8")?;
    let disk = home.join("disk");
    std::fs::create_dir(&disk).context("make a directory on the disk")?;
    let places = [
        mount_device(program, &home.join("volatile"), &["--profile", volatile])?,
        mount_device(program, &home.join("persistent"), &["--profile", "wio"])?,
        Place { name: "the disk", directory: disk, processes: Vec::new(), is_mounted: false, memory: None },
    ];
    for writers in WRITERS {
        let load = [
            "--rw=write",
            "--bs=512",
            "--fdatasync=1",
            "--ioengine=psync",
            "--fallocate=none",
            "--create_on_open=1",
            "--unlink=1",
            "--size=64m",
            "--group_reporting",
            &format!("--runtime={SECONDS}"),
            &format!("--numjobs={writers}"),
        ];
        let taken = take_turns(&places, &load)?;
        for ((buffer, ratio_min), ours) in APPEND_RATIOS_MIN.iter().zip(&taken) {
            println!(
                "{}",
                figure(&Load {
                    name: format!(
                        "files: 512 bytes appended and synced, writers: {writers}, {buffer} buffer, beside the disk"
                    ),
                    ours: *ours,
                    peer: "the disk's file system",
                    theirs: taken[2],
                    ratio_min: *ratio_min,
                    durability: match *buffer {
                        "volatile" => "the disk's, both",
                        _ => "the profile's word that its write buffer outlives the power; the peer's is the disk's",
                    },
                })
            );
        }
    }
    Ok(())
}

/// Each place has the load so often; the medians, in order.
fn take_turns(places: &[Place], load: &[&str]) -> Result<Vec<Taken>> {
    let mut taken = vec![Vec::new(); places.len()];
    for round in 0..ROUNDS {
        for turn in 0..places.len() {
            let at = (turn + round) % places.len();
            let before = places[at].cpu_seconds();
            let rate = rate(&places[at].fio(load)?);
            taken[at].push(Taken { rate, cpu_seconds: places[at].cpu_seconds() - before });
        }
    }
    Ok(taken.iter().map(|taken| median(taken)).collect())
}

/// What a load came to on both sides.
struct Load {
    name: String,
    ours: Taken,
    peer: &'static str,
    theirs: Taken,
    ratio_min: f64,
    durability: &'static str,
}

fn figure(load: &Load) -> Value {
    let ratio = load.ours.rate / load.theirs.rate;
    json!({
        "name": load.name, "value": load.ours.rate, "unit": "requests/s", "peer": load.peer,
        "peer_value": load.theirs.rate, "ratio": ratio, "bar": format!(">= {} x", load.ratio_min),
        "pass": ratio >= load.ratio_min, "durability": load.durability, "cpu_seconds": load.ours.cpu_seconds,
        "peer_cpu_seconds": load.theirs.cpu_seconds,
        "note": format!("median of {ROUNDS} turns of {SECONDS} s; fio; processor time of servers alone"),
    })
}

/// A directory, until it is dropped: of a file system that processes serve, or of the disk.
struct Place {
    name: &'static str,
    directory: PathBuf,
    processes: Vec<Child>,
    is_mounted: bool,
    /// A directory in memory that goes with it.
    memory: Option<PathBuf>,
}

impl Place {
    /// Waits until a process has mounted it.
    fn mounted(name: &'static str, directory: PathBuf, processes: Vec<Child>) -> Result<Place> {
        let mut place = Place { name, directory, processes, is_mounted: true, memory: None };
        let began = Instant::now();
        while !is_mount_point(&place.directory)? {
            let ended = place.processes.iter_mut().any(|process| process.try_wait().is_ok_and(|ended| ended.is_some()));
            ensure!(!ended && began.elapsed() < PATIENCE, "{name} does not mount at {}", place.directory.display());
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(place)
    }

    fn fio(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new("fio");
        command.arg(format!("--directory={}", self.directory.display())).args(arguments);
        fio(self.name, &mut command)
    }

    fn cpu_seconds(&self) -> f64 {
        self.processes.iter().map(|process| cpu_seconds(process.id())).sum()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg(&self.directory).status();
        }
        self.processes.iter_mut().for_each(end);
        if let Some(memory) = &self.memory {
            let _ = std::fs::remove_dir_all(memory);
        }
    }
}

/// Whether a directory is on another file system than the one that it is in.
fn is_mount_point(directory: &Path) -> Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    let above = directory.parent().context("a directory in another")?;
    let looking = || format!("looking at {}", directory.display());
    Ok(device(directory).with_context(looking)? != device(above).with_context(looking)?)
}

/// A new device, served and mounted by one supervisor.
fn mount_device(program: &Path, home: &Path, options: &[&str]) -> Result<Place> {
    let directory = home.join("mounted");
    std::fs::create_dir_all(&directory).context("make a directory to mount at")?;
    make_device(program, home, &[&["--capacity", "512MiB"], options].concat())?;
    let log = std::fs::File::create(home.join("log")).context("make a log")?;
    let process = Command::new(program)
        .env("OSIER_HOME", home)
        .args(["serve", "d", "--no-model-timing", "--pipeline", "none", "--mount"])
        .arg(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .context("start osier")?;
    Place::mounted("osier", directory, vec![process])
}

/// The file system on its process's memory: without a device, and without the command around it.
fn mount_memory(program: &Path, directory: &Path) -> Result<Place> {
    let example = ["build", "--quiet", "--package", "osier-front", "--example", "fuse_mount"];
    let built = Command::new("cargo").args(example).status().context("run cargo")?;
    ensure!(built.success(), "the example fuse_mount does not build");
    std::fs::create_dir_all(directory).context("make a directory to mount at")?;
    let process = Command::new(program.with_file_name("examples/fuse_mount"))
        .arg("memory:512")
        .arg(directory)
        .arg("8")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("start fuse_mount")?;
    Place::mounted("the file system alone", directory.to_owned(), vec![process])
}

/// `passthrough_hp` of a directory in memory.
fn pass_through(home: &Path) -> Result<Place> {
    let directory = home.join("passed");
    let source = Path::new("/dev/shm").join(format!("osier-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).context("make a directory to mount at")?;
    std::fs::create_dir_all(&source).context("make a directory in /dev/shm")?;
    let process = Command::new("target/fuse-peers/passthrough_hp")
        .arg("--foreground")
        .args([&source, &directory])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .context("start passthrough_hp")?;
    let mut place = Place::mounted("passthrough_hp", directory, vec![process]);
    match &mut place {
        Ok(place) => place.memory = Some(source),
        Err(_) => drop(std::fs::remove_dir_all(&source)),
    }
    place
}
