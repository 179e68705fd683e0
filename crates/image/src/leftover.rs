//! Directories that are being made into an image, or were one and are being removed.
//!
//! Each carries in its name the process at work on it. When that process is gone, so that the work will never
//! be finished, and nobody holds the lock inside, the directory is a leftover, and the next creation or removal
//! in the same place removes it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::layout::Layout;
use crate::lock::{LockState, is_process_alive, probe, start_ticks};

const CREATING: &str = "creating";
const REMOVING: &str = "removing";
const PREFIX: &str = ".osier-";

/// Where an image is made before it gets its name. `tag` tells it from others of this process.
pub(crate) fn creating(parent: &Path, tag: &str) -> PathBuf {
    path(parent, CREATING, tag)
}

/// Where an image lies from the moment it has lost its name.
pub(crate) fn removing(parent: &Path, tag: &str) -> PathBuf {
    path(parent, REMOVING, tag)
}

fn path(parent: &Path, work: &str, tag: &str) -> PathBuf {
    let pid = std::process::id();
    parent.join(format!("{PREFIX}{work}-{pid}-{}-{tag}", start_ticks(pid).unwrap_or(0)))
}

/// Removes the leftovers in `parent`. What cannot be removed is in nobody's way, and is tried again next time.
pub(crate) fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let Some((pid, ticks)) = worker(&entry.file_name().to_string_lossy()) else { continue };
        // A process of another container is not seen here; while it works it holds the lock.
        let held = matches!(probe(&Layout::new(&entry.path()).lock()), Ok(LockState::Held(_)) | Err(_));
        if !held && !is_process_alive(pid, ticks) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The process in the name of a directory that is made or removed: its pid and when it started.
fn worker(name: &str) -> Option<(u32, u64)> {
    let mut words = name.strip_prefix(PREFIX)?.splitn(4, '-');
    let work = words.next()?;
    let process = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    [CREATING, REMOVING].contains(&work).then_some(process)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_who_is_at_work() {
        let pid = std::process::id();
        for path in [creating(Path::new("/h"), "x-y"), removing(Path::new("/h"), "")] {
            let (found, ticks) = worker(&path.file_name().unwrap().to_string_lossy()).unwrap();
            assert!(found == pid && is_process_alive(pid, ticks) && !is_process_alive(pid, ticks + 1));
        }
        for other in ["a", ".osier-creating", ".osier-creating-1", ".osier-other-1-2-x", ".osier-removing-x-2-y"] {
            assert_eq!(worker(other), None, "{other}");
        }
    }
}
