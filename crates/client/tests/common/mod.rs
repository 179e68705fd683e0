//! A device in a process of its own: this very test program, started again with one test that serves.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use osier_device::Profile;
use osier_device::profile::parse_override;
use osier_device::window::Reserve;
use osier_front::window::{ServeOptions, Server};
use osier_pmr::WaitPolicy;

/// What the device's process finds in its environment.
const SOCKET: &str = "OSIER_TEST_SOCKET";
const OVERRIDES: &str = "OSIER_TEST_OVERRIDES";
const PAGES: &str = "OSIER_TEST_PAGES";
const ROT: &str = "OSIER_TEST_ROT";

/// A device that runs.
pub struct Device {
    process: Child,
    directory: tempfile::TempDir,
}

impl Device {
    /// A device of so many pages with a cache of so many, and a page of whose flash a bit flips after each eviction.
    pub fn start(pages: u64, cache: u64, rot: Option<u64>) -> Device {
        let directory = tempfile::tempdir().unwrap();
        let overrides = [
            format!("cache.size={{bytes={}}}", cache * 4096),
            "geometry.channels=2".to_owned(),
            "geometry.chips_per_channel=2".to_owned(),
            "geometry.pages_per_block=32".to_owned(),
            "ftl.over_provisioning_permille=300".to_owned(),
            "cache.pinned_pages_max=16".to_owned(),
        ];
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["serve_the_device", "--exact", "--nocapture"]).stdin(Stdio::null()).stdout(Stdio::piped());
        command.env(SOCKET, socket(directory.path())).env(OVERRIDES, overrides.join("\n"));
        command.env(PAGES, pages.to_string());
        if let Some(page) = rot {
            command.env(ROT, page.to_string());
        }
        let mut process = command.spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("serving")), "the device serves");
        Device { process, directory }
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
    let mut server = Server::new(&config, &options).unwrap();
    println!("serving");
    match std::env::var(ROT).ok().map(|page| page.parse().unwrap()) {
        None => server.run(&Arc::new(AtomicBool::new(false))),
        Some(page) => {
            // Until the page has been written to the flash there is nothing to rot.
            while !server.window_mut().rot(page, 100, 3) {
                server.turn();
            }
            server.run(&Arc::new(AtomicBool::new(false)));
        }
    }
}
