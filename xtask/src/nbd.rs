//! A device behind NBD beside the servers that everybody has: the same client, the same load, in turns.
//!
//! The device's media are memory and the model takes no time, so what is compared is software: `nbdkit memory`, and
//! `qemu-nbd` of a file in memory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Loads: fio's pattern, bytes of a request, requests under way.
const LOADS: [(&str, &str, u32); 6] = [
    ("randread", "4k", 1),
    ("randread", "4k", 32),
    ("randwrite", "4k", 1),
    ("randwrite", "4k", 32),
    ("read", "1m", 4),
    ("write", "1m", 4),
];
/// Each server has each load so often, in turns; the median counts.
const ROUNDS: usize = 3;
/// Seconds of one load.
const SECONDS: u32 = 2;
/// Times a peer's speed.
const RATIO_MIN: f64 = 1.0;
/// How long a server may take to come up, and to end.
const PATIENCE: Duration = Duration::from_secs(20);
/// The kernel's unit of processor time (`sysconf(_SC_CLK_TCK)`, 100 on every Linux).
const TICKS_PER_SECOND: f64 = 100.0;

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
    let built = Command::new("cargo").args(["build", "--quiet", "--package", "osier"]).status().context("run cargo")?;
    ensure!(built.success(), "osier does not build");
    let home = Path::new("target/bench/nbd");
    // What an earlier run that was killed has left.
    let _ = std::fs::remove_dir_all(home);
    std::fs::create_dir_all(home).context("make target/bench/nbd")?;
    let servers = [osier(home)?, nbdkit(home)?, qemu(home)?];
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

/// What a load came to.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Taken {
    /// Requests in a second.
    rate: f64,
    /// Processor time of the server.
    cpu_seconds: f64,
}

fn median(taken: &[Taken]) -> Taken {
    let mut sorted = taken.to_vec();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    sorted[sorted.len() / 2]
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
            std::thread::sleep(Duration::from_millis(50));
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
        let rate = ["read", "write"].iter().filter_map(|way| found["jobs"][0][way]["iops"].as_f64()).sum();
        Ok(Taken { rate, cpu_seconds: cpu_seconds(self.process.id()) - before })
    }

    fn fio(&self, arguments: &[&str]) -> Result<Value> {
        let output = Command::new("fio")
            .args(["--name=bench", "--ioengine=nbd", "--size=192m", "--output-format=json", "--eta=never"])
            .arg(format!("--uri={}", self.uri))
            .args(arguments)
            .stderr(Stdio::inherit())
            .output()
            .context("run fio")?;
        ensure!(output.status.success(), "fio on {} ended with {}", self.name, output.status);
        // Lines of its own go before the document.
        let text = String::from_utf8_lossy(&output.stdout);
        let document = text.find('{').map_or("", |at| &text[at..]);
        serde_json::from_str(document).with_context(|| format!("read what fio says of {}", self.name))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // In order: a supervisor's domains and front ends end with it.
        let _ = Command::new("kill").args(["-INT", &self.process.id().to_string()]).status();
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if self.process.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Processor time of a process and of all that it has started and that live.
fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may have spaces; user and system time are the 14th and 15th field.
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
    let own: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    own + children.split_whitespace().filter_map(|child| child.parse().ok()).map(cpu_seconds).sum::<f64>()
}

fn osier(home: &Path) -> Result<Server> {
    let program = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let program = program.join("debug/osier");
    let made = Command::new(&program)
        .env("OSIER_HOME", home)
        .args(["device", "create", "d", "--capacity", "256MiB", "--media", "memory"])
        .stdout(Stdio::null())
        .status()
        .context("run osier")?;
    ensure!(made.success(), "the device cannot be made");
    let socket = home.join("osier.sock");
    let mut command = Command::new(&program);
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

    #[test]
    fn processor_time_is_that_of_a_process_and_its_children() {
        let before = cpu_seconds(std::process::id());
        let began = Instant::now();
        while cpu_seconds(std::process::id()) < before + 0.05 {
            assert!(began.elapsed() < PATIENCE, "no processor time is counted");
        }
    }
}
