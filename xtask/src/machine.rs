//! What a measurement was made with: the commit and the machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// Where evidence is kept; what changes there changes nothing that is measured.
pub const EVIDENCE_DIRECTORY: &str = "docs/evidence";

/// The sources that were measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sources {
    /// The last commit that changed anything but evidence.
    pub commit: String,
    /// Whether there were changes that no commit has.
    pub dirty: bool,
}

/// The machine that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// How many processors the system shows.
    pub processors: usize,
    /// Main memory, in kibibytes.
    pub memory_kib: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The distribution's name.
    pub system: String,
}

impl Sources {
    /// The sources in `root`.
    ///
    /// # Errors
    /// When git is not there or `root` is not a repository.
    pub fn of(root: &Path) -> Result<Self> {
        let but_evidence = format!(":!{EVIDENCE_DIRECTORY}");
        let commit = git(root, &["log", "-1", "--format=%H", "--", ".", &but_evidence])?;
        let changes = git(root, &["status", "--porcelain", "--", ".", &but_evidence])?;
        if commit.is_empty() {
            bail!("there is no commit in {}", root.display());
        }
        Ok(Self { commit, dirty: !changes.is_empty() })
    }
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output();
    let output = output.context("running git failed; install it, because results name the commit")?;
    if !output.status.success() {
        bail!("git {} failed: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

impl Machine {
    /// This machine, as far as it tells.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        Self {
            processor: value_of(&read("/proc/cpuinfo"), "model name", ':'),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory_kib: value_of(&read("/proc/meminfo"), "MemTotal", ':')
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or(0),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            system: value_of(&read("/etc/os-release"), "PRETTY_NAME", '=').trim_matches('"').to_owned(),
        }
    }
}

/// The value of the first line that begins with `key`, or `unknown`.
fn value_of(text: &str, key: &str, separator: char) -> String {
    let line = text.lines().find(|line| line.starts_with(key));
    let value = line.and_then(|line| line.split_once(separator)).map(|(_, value)| value.trim());
    value.unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_their_key() {
        let text = "a\t: 1\nmodel name\t: Fast CPU: 9000\n";
        assert_eq!(value_of(text, "model name", ':'), "Fast CPU: 9000");
        assert_eq!(value_of(text, "missing", ':'), "unknown");
        assert!(Machine::here().processors > 0);
    }
}
