//! A device in a process of its own: this very test program, started again with one test that serves.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use osier_device::Profile;
use osier_device::profile::parse_override;
use osier_device::window::{ByteMedia, Reserve};
use osier_front::window::{FileStore, ServeOptions, Server};
use osier_pmr::WaitPolicy;

/// What the device's process finds in its environment.
const SOCKET: &str = "OSIER_TEST_SOCKET";
const OVERRIDES: &str = "OSIER_TEST_OVERRIDES";
const PAGES: &str = "OSIER_TEST_PAGES";
const ROT: &str = "OSIER_TEST_ROT";
/// What it says when a bit has flipped.
const ROTS: &str = "a bit has flipped";
const MEDIA: &str = "OSIER_TEST_MEDIA";

/// A device that runs.
pub struct Device {
    process: Child,
    /// Open as long as the device runs: a test that takes long says so there.
    said: Lines<BufReader<ChildStdout>>,
    directory: tempfile::TempDir,
}

impl Device {
    /// A device of so many pages with a cache of so many, and a page of whose flash a bit flips after each eviction.
    pub fn start(pages: u64, cache: u64, rot: Option<u64>) -> Device {
        let small = [
            "geometry.channels=2",
            "geometry.chips_per_channel=2",
            "geometry.pages_per_block=32",
            "ftl.over_provisioning_permille=300",
            "cache.pinned_pages_max=16",
        ];
        Device::launch(pages, cache, &small, |command| {
            if let Some(page) = rot {
                command.env(ROT, page.to_string());
            }
        })
    }

    /// A device that draws so many frames each so many microseconds for samples.
    pub fn start_sampling(pages: u64, cache: u64, sample_pages: u32, period_us: u32) -> Device {
        let sampling = format!("window={{sample_pages={sample_pages},sample_period_us={period_us}}}");
        Device::launch(pages, cache, &[&sampling], |_| {})
    }

    /// A device that brings in the next eight pages ahead.
    pub fn start_ahead(pages: u64, cache: u64) -> Device {
        let ahead = ["cache.prefetch=\"next-n\"", "cache.prefetch_parameters={degree=8,tagged=1}"];
        Device::launch(pages, cache, &ahead, |_| {})
    }

    /// A device whose flash is a file in a directory.
    pub fn start_in_file(pages: u64, cache: u64, media: &Path) -> Device {
        Device::launch(pages, cache, &[], |command| _ = command.env(MEDIA, media))
    }

    fn launch(pages: u64, cache: u64, overrides: &[&str], more: impl FnOnce(&mut Command)) -> Device {
        let directory = tempfile::tempdir().unwrap();
        let overrides = format!("cache.size={{bytes={}}}\n{}", cache * 4096, overrides.join("\n"));
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["serve_the_device", "--exact", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(SOCKET, socket(directory.path())).env(OVERRIDES, overrides);
        command.env(PAGES, pages.to_string());
        more(&mut command);
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("serving")), "the device serves");
        Device { process, said: lines, directory }
    }

    /// Bytes of memory that are the device's own, or shared, and those of its page tables.
    pub fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let bytes = |key: &str| {
            let line = status.lines().find(|line| line.starts_with(key)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
        };
        (bytes("VmRSS:"), bytes("VmPTE:"))
    }

    /// Waits until the page of [`Device::start`] has begun to rot.
    pub fn await_rot(&mut self) {
        assert!(
            self.said.any(|line| line.unwrap().contains(ROTS)),
            "the device ended before the page was on its flash"
        );
    }

    /// Where it serves.
    pub fn socket(&self) -> PathBuf {
        socket(self.directory.path())
    }

    /// Kills the device's process.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.kill();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("window.sock")
}

/// The device's process; nothing in any other.
pub fn serve() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let overrides = std::env::var(OVERRIDES).unwrap();
    let overrides: Vec<_> = overrides.lines().map(|line| parse_override(line).unwrap()).collect();
    let text = Profile::built_in_text("cylon").unwrap();
    let pages: u64 = std::env::var(PAGES).unwrap().parse().unwrap();
    let config = Profile::parse_with("cylon", text, &overrides).unwrap().model(Some(pages * 4096)).unwrap();
    let options = ServeOptions {
        socket: socket.into(),
        name: "test-device".to_owned(),
        reserve: Reserve { frames: 8, batch: 4 },
        wait: WaitPolicy::HYBRID,
        idle_bytes_max: 64 * 4096,
        seed: 1,
    };
    let media = match std::env::var_os(MEDIA) {
        Some(directory) => {
            ByteMedia::with_store(&config.flash, Box::new(FileStore::new(Path::new(&directory)).unwrap()))
        }
        None => ByteMedia::new(&config.flash),
    };
    let mut server = Server::with_media(&config, &options, media).unwrap();
    println!("serving");
    match std::env::var(ROT).ok().map(|page| page.parse().unwrap()) {
        None => server.run(&Arc::new(AtomicBool::new(false))),
        Some(page) => {
            // Until the page has been written to the flash there is nothing to rot.
            while !server.window_mut().rot(page, 100, 3) {
                server.turn();
            }
            println!("{ROTS}");
            server.run(&Arc::new(AtomicBool::new(false)));
        }
    }
}
