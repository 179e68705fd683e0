//! What benchmarks share that have a device and its peers do the same in turns.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Each server has each load so often, in turns; the median counts.
pub const ROUNDS: usize = 3;
/// How long a server may take to come up, and to end.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// The kernel's unit of processor time (`sysconf(_SC_CLK_TCK)`, 100 on every Linux).
const TICKS_PER_SECOND: f64 = 100.0;

/// What a load came to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Taken {
    /// Requests in a second.
    pub rate: f64,
    /// Processor time of the server.
    pub cpu_seconds: f64,
}

/// The one in the middle by its rate.
pub fn median(taken: &[Taken]) -> Taken {
    let mut sorted = taken.to_vec();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    sorted[sorted.len() / 2]
}

/// Builds `osier`, and says where it is.
///
/// # Errors
/// When it does not build.
pub fn build_osier() -> Result<PathBuf> {
    let built = Command::new("cargo").args(["build", "--quiet", "--package", "osier"]).status().context("run cargo")?;
    ensure!(built.success(), "osier does not build");
    let program = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    Ok(program.join("debug/osier"))
}

/// Makes the device `d`.
///
/// # Errors
/// When `osier` cannot make it.
pub fn make_device(program: &Path, home: &Path, options: &[&str]) -> Result<()> {
    let made = Command::new(program)
        .env("OSIER_HOME", home)
        .args(["device", "create", "d"])
        .args(options)
        .stdout(Stdio::null())
        .status()
        .context("run osier")?;
    ensure!(made.success(), "the device cannot be made");
    Ok(())
}

/// Runs a job of fio; what it says.
///
/// # Errors
/// When it fails.
pub fn fio(name: &str, command: &mut Command) -> Result<Value> {
    let output = command
        .args(["--name=bench", "--output-format=json", "--eta=never"])
        .stderr(Stdio::inherit())
        .output()
        .context("run fio")?;
    ensure!(output.status.success(), "fio on {name} ended with {}", output.status);
    // Lines of its own go before the document.
    let text = String::from_utf8_lossy(&output.stdout);
    let document = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(document).with_context(|| format!("read what fio says of {name}"))
}

/// Requests in a second of what fio says.
pub fn rate(found: &Value) -> f64 {
    ["read", "write"].iter().filter_map(|way| found["jobs"][0][way]["iops"].as_f64()).sum()
}

/// Ends a server in order: a supervisor's domains and front ends end with it. One that does not is killed.
pub fn end(process: &mut Child) {
    let _ = Command::new("kill").args(["-INT", &process.id().to_string()]).status();
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        if process.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = process.kill();
    let _ = process.wait();
}

/// Processor time of a process and of all that it has started and that live.
pub fn cpu_seconds(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name may have spaces; user and system time are the 14th and 15th field.
    let fields = text.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ').skip(11).take(2);
    let own: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / TICKS_PER_SECOND;
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    own + children.split_whitespace().filter_map(|child| child.parse().ok()).map(cpu_seconds).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_that_of_a_process_and_its_children() {
        let before = cpu_seconds(std::process::id());
        let began = Instant::now();
        while cpu_seconds(std::process::id()) < before + 0.05 {
            assert!(began.elapsed() < PATIENCE, "no processor time is counted");
        }
    }
}
