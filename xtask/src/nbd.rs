//! A device behind NBD beside the servers that everybody has: the same client, the same load, in turns.
//!
//! The device's media are memory and the model takes no time, so what is compared is software: `nbdkit memory`, and
//! `qemu-nbd` of a file in memory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::turns::{PATIENCE, ROUNDS, Taken, build_osier, cpu_seconds, end, fio, make_device, median, rate};

/// Loads: fio's pattern, bytes of a request, requests under way.
const LOADS: [(&str, &str, u32); 6] = [
    ("randread", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 1),
    ("randwrite", "4k", 32),
    ("read", "1m", 4),
    ("write", "1m", 4),
];
/// Seconds of one load.
const SECONDS: u32 = 2;
/// Times a peer's speed.
const RATIO_MIN: f64 = 1.0;

/// Runs the loads and prints the figures.
///
/// # Errors
/// When a server or the client cannot be run, or fails.
pub fn run() -> Result<ExitCode> {
    let peers = Command::new("scripts/nbd-peers").stderr(Stdio::inherit()).status().context("look for NBD peers")?;
    if !peers.success() {
        let skipped = json!({
            "name": "nbd", "value": null, "unit": "requests/s", "note": "NBD peers and fio are not to be had here",
        });
        println!("{skipped}");
        return Ok(ExitCode::SUCCESS);
    }
    let program = build_osier()?;
    let home = Path::new("target/bench/nbd");
    // What an earlier run that was killed has left.
    let _ = std::fs::remove_dir_all(home);
    std::fs::create_dir_all(home).context("make target/bench/nbd")?;
    let servers = [osier(&program, home)?, nbdkit(home)?, qemu(home)?];
    for server in &servers {
        server.fill()?;
    }
    let mut found = vec![vec![Vec::new(); servers.len()]; LOADS.len()];
    for round in 0..ROUNDS {
        for (load, taken) in LOADS.iter().zip(&mut found) {
            for turn in 0..servers.len() {
                let at = (turn + round) % servers.len();
                taken[at].push(servers[at].measure(load)?);
            }
        }
    }
    for (load, taken) in LOADS.iter().zip(&found) {
        let [ours, peers @ ..] = &taken[..] else { bail!("nothing was measured") };
        for (server, peer) in servers[1..].iter().zip(peers) {
            println!("{}", figure(load, median(ours), server.name, median(peer)));
        }
    }
    drop(servers);
    let _ = std::fs::remove_dir_all(home);
    Ok(ExitCode::SUCCESS)
}

fn figure((pattern, bytes, depth): &(&str, &str, u32), ours: Taken, peer: &str, theirs: Taken) -> Value {
    let ratio = ours.rate / theirs.rate;
    json!({
        "name": format!("nbd: {pattern} of {bytes}, {depth} under way, beside {peer}"), "value": ours.rate,
        "unit": "requests/s", "peer": peer, "peer_value": theirs.rate, "ratio": ratio,
        "bar": format!(">= {RATIO_MIN} x"), "pass": ratio >= RATIO_MIN,
        "durability": "a process's memory, both", "cpu_seconds": ours.cpu_seconds,
        "peer_cpu_seconds": theirs.cpu_seconds,
        "note": format!("median of {ROUNDS} turns of {SECONDS} s; Unix socket; fio"),
    })
}

/// A server that is up, until it is dropped.
struct Server {
    name: &'static str,
    uri: String,
    process: Child,
}

impl Server {
    fn start(name: &'static str, socket: &Path, export: &str, command: &mut Command) -> Result<Server> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let process = process.with_context(|| format!("start {name}"))?;
        let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
        let server = Server { name, uri, process };
        let began = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            ensure!(began.elapsed() < PATIENCE, "{name} does not listen at {}", socket.display());
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        Ok(server)
    }

    /// Writes every block, so that nothing is read that is nowhere.
    fn fill(&self) -> Result<()> {
        self.fio(&["--rw=write", "--bs=1m", "--iodepth=4"]).map(|_| ())
    }

    fn measure(&self, (pattern, bytes, depth): &(&str, &str, u32)) -> Result<Taken> {
        let before = cpu_seconds(self.process.id());
        let found = self.fio(&[
            &format!("--rw={pattern}"),
            &format!("--bs={bytes}"),
            &format!("--iodepth={depth}"),
            "--time_based",
            &format!("--runtime={SECONDS}"),
        ])?;
        Ok(Taken { rate: rate(&found), cpu_seconds: cpu_seconds(self.process.id()) - before })
    }

    fn fio(&self, arguments: &[&str]) -> Result<Value> {
        let mut command = Command::new("fio");
        command.args(["--ioengine=nbd", "--size=192m"]).arg(format!("--uri={}", self.uri)).args(arguments);
        fio(self.name, &mut command)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

fn osier(program: &Path, home: &Path) -> Result<Server> {
    make_device(program, home, &["--capacity", "256MiB", "--media", "memory"])?;
    let socket = home.join("osier.sock");
    let mut command = Command::new(program);
    command
        .env("OSIER_HOME", home)
        .args(["serve", "d", "--no-model-timing", "--pipeline", "none", "--nbd"])
        .arg(&socket);
    Server::start("osier", &socket, "", command.stderr(Stdio::null()))
}

fn nbdkit(home: &Path) -> Result<Server> {
    let socket = std::path::absolute(home.join("nbdkit.sock")).context("find the directory")?;
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(&socket).args(["memory", "256M"]);
    Server::start("nbdkit memory", &socket, "", &mut command)
}

fn qemu(home: &Path) -> Result<Server> {
    // A file in memory, that no name keeps when this ends.
    let file = PathBuf::from(format!("/dev/shm/osier-bench-{}", std::process::id()));
    std::fs::File::create(&file).and_then(|made| made.set_len(256 << 20)).context("make a file in /dev/shm")?;
    let socket = std::path::absolute(home.join("qemu.sock")).context("find the directory")?;
    let mut command = Command::new("qemu-nbd");
    command.args(["--persistent", "--format=raw", "--cache=writeback", "--socket"]).arg(&socket).arg(&file);
    let server = Server::start("qemu-nbd", &socket, "", &mut command);
    // It has the file open.
    let _ = std::fs::remove_file(&file);
    server
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_pass_and_fail_by_their_bars() {
        let taken = |rate| Taken { rate, cpu_seconds: 1.0 };
        assert_eq!(median(&[taken(3.0), taken(1.0), taken(2.0)]), taken(2.0));
        let passes = |ours, theirs| figure(&LOADS[0], taken(ours), "p", taken(theirs))["pass"].as_bool();
        assert_eq!((passes(1.0, 1.0), passes(0.99, 1.0)), (Some(true), Some(false)));
    }
}
