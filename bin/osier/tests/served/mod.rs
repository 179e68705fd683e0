//! What the tests of programs that use a device's blocks share: a device that is served.

#![allow(dead_code, reason = "each test program uses a part")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use osier_client::Queue;

/// How long something may take before a test calls it a hang, on slow machines too.
pub const LIMIT: Duration = Duration::from_secs(120);

/// A device, and the process that serves it.
pub struct Served {
    pub home: tempfile::TempDir,
    pub process: Option<Child>,
    pub options: Vec<String>,
}

impl Served {
    /// Of 64 MiB.
    pub fn new(options: &[&str]) -> Served {
        Served::sized("64MiB", options)
    }

    pub fn sized(capacity: &str, options: &[&str]) -> Served {
        let mut served = Served::down(capacity, options);
        served.start();
        served
    }

    /// A device that is not up yet.
    pub fn down(capacity: &str, options: &[&str]) -> Served {
        let home = tempfile::tempdir().unwrap();
        let made = osier(&home, &["device", "create", "d", "--capacity", capacity]).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let options = options.iter().map(|o| (*o).to_owned()).collect();
        Served { home, process: None, options }
    }

    pub fn start(&mut self) {
        let mut command = osier(&self.home, &["serve", "d", "--no-model-timing"]);
        let log = std::fs::File::create(self.home.path().join("log")).unwrap();
        self.process = Some(command.args(&self.options).stderr(log).stdout(Stdio::null()).spawn().unwrap());
    }

    pub fn socket(&self) -> PathBuf {
        self.home.path().join("d/nvme.sock")
    }

    pub fn queue(&self, depth: u16, transfer_bytes: u32) -> Queue {
        let until = Instant::now() + LIMIT;
        loop {
            match Queue::attach(&self.socket(), depth, transfer_bytes) {
                Ok(queue) => return queue,
                Err(error) if Instant::now() > until => panic!("{error}"),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// The two domains, the device first, as they are started, and front ends behind them.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.process.as_ref().unwrap().id())
    }

    /// Ends it in order.
    pub fn stop(&mut self) {
        let mut process = self.process.take().unwrap();
        signal(process.id(), "INT");
        assert!(process.wait().unwrap().success(), "{}", self.log());
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            for pid in children_of(process.id()) {
                signal(pid, "KILL");
            }
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

pub fn osier(home: &tempfile::TempDir, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
    command.args(arguments).env("OSIER_HOME", home.path()).env_remove("OSIER_CONFIG");
    command
}

pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).stderr(Stdio::null()).status();
}
