//! The NBD server over real sockets: with the clients that people use, and with one that behaves badly.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod raw;
mod serving;
mod tls;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Once};

use common::export;
use common::memory::Disk;
use osier_front::nbd::{Config, Server};

/// A server over memory, and where it is.
struct Rig {
    directory: tempfile::TempDir,
    disk: Arc<Disk>,
    server: Server,
}

impl Rig {
    fn new(blocks: u64) -> Rig {
        Rig::with(Disk::new(blocks), None, |_| {})
    }

    /// A server at a free port and at a Unix socket. `late`: the seed of volumes that end requests in another order.
    fn with(disk: Disk, late: Option<u64>, change: impl FnOnce(&mut Config)) -> Rig {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk);
        let mut config = Config {
            tcp: Some(([127, 0, 0, 1], 0).into()),
            unix: Some(directory.path().join("socket")),
            ..Config::default()
        };
        change(&mut config);
        Rig { server: Server::start(vec![export(&disk, late)], config).unwrap(), directory, disk }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn unix(&self) -> String {
        format!("nbd+unix:///memory?socket={}", self.socket().display())
    }

    fn tcp(&self) -> String {
        format!("nbd://{}/memory", self.server.tcp().unwrap())
    }
}

/// Says what is not tested, past the test harness, which would keep it to itself.
fn skip(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

/// A program, unless it is not there.
fn installed(name: &str) -> Option<Command> {
    static GOT: Once = Once::new();
    GOT.call_once(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/nbd-peers");
        let got = Command::new(script).output().unwrap();
        if !got.status.success() {
            skip(String::from_utf8_lossy(&got.stderr).trim_end());
        }
    });
    let path = Path::new("/usr/bin").join(name);
    if !path.exists() {
        skip(&format!("{name} is not installed"));
        return None;
    }
    let mut command = Command::new("timeout");
    command.arg("120").arg(path);
    Some(command)
}

/// What a program says that has to succeed.
fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&stdout).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{said}\n{}", String::from_utf8_lossy(&stderr));
    said
}
