//! Programs that are started with the preloaded library in them: for `osier run` and `osier vm`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use osier_client::heap::{HEAP_UNIT_BYTES, Settings};
use osier_client::{FaultMode, Window, WindowError, WindowOptions};

use crate::exit::{Exit, Failure};
use crate::units::format_bytes;

/// The library beside this program, or where packages put it.
const LIBRARY: &str = "libosier_preload.so";
/// With so many processors one may spin.
const SPINNING_CPUS_MIN: usize = 4;

/// Who resolves faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// Spinning on a machine with four processors or more, sleeping on others
    Auto,
    /// A thread that spins: the fastest; it takes a processor
    Spinning,
    /// A thread that sleeps until there is a fault
    Sleeping,
}

impl ModeArg {
    /// Who that is on this machine.
    pub fn mode(self) -> FaultMode {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        match self {
            ModeArg::Spinning => FaultMode::Spinning,
            ModeArg::Auto if cpus >= SPINNING_CPUS_MIN => FaultMode::Spinning,
            ModeArg::Auto | ModeArg::Sleeping => FaultMode::Sleeping,
        }
    }
}

/// A window that a program could have.
pub struct Offer {
    /// The device's name.
    pub device: String,
    /// What it has.
    pub bytes: u64,
}

/// Whether a program could have its part of the window, so that what is missing is said here and not by the program.
/// `what` it is wanted for begins with an article, and needs at `least` so many bytes.
///
/// # Errors
/// What is missing.
pub fn check_window(socket: &Path, mode: FaultMode, what: &str, least: u64, wanted: Option<u64>) -> Result<Offer> {
    let options = WindowOptions { mode, is_leased: true, ..WindowOptions::default() };
    let window = Window::open(socket, &options).map_err(|error| {
        let exit = match error {
            WindowError::Connect { .. } => Exit::Missing,
            WindowError::Stranger { .. } | WindowError::NoPermission { .. } | WindowError::NoFeature { .. } => {
                Exit::BadInput
            }
            _ => Exit::Failure,
        };
        // The other mode is no remedy here: system calls have to work.
        let text = error.to_string();
        let text = text.split_once("; without either").map_or(text.as_str(), |(before, _)| before);
        Failure::new(exit, text)
    })?;
    let bytes = window.len() as u64;
    let refuse = |text: String| Err(Failure::new(Exit::BadInput, text).into());
    match wanted {
        Some(wanted) if wanted > bytes => refuse(format!(
            "{what} of {} does not fit in the window of {}, which has {}; ask for at most that",
            format_bytes(wanted),
            window.device(),
            format_bytes(bytes)
        )),
        Some(wanted) if wanted == 0 || wanted % HEAP_UNIT_BYTES != 0 => {
            refuse(format!("{what} is a multiple of {}, which {wanted} bytes are not", format_bytes(HEAP_UNIT_BYTES)))
        }
        _ if bytes < least => refuse(format!(
            "the window of {} has {}; {what} needs at least {}",
            window.device(),
            format_bytes(bytes),
            format_bytes(least)
        )),
        Some(wanted) if wanted < least => refuse(format!("{what} needs at least {}", format_bytes(least))),
        _ => Ok(Offer { device: window.device().to_owned(), bytes }),
    }
}

/// Becomes a program with the library in it. `name` is what the program is called by.
///
/// # Errors
/// The library is not there, or nothing can be preloaded into the program.
pub fn become_program(program: &Path, name: &OsStr, arguments: &[OsString], settings: &Settings) -> Result<Exit> {
    check_program(program)?;
    let mut preloaded = library()?.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preloaded.push(":");
        preloaded.push(others);
    }
    let mut command = Command::new(program);
    command.arg0(name).args(arguments).env("LD_PRELOAD", preloaded).envs(settings.to_env());
    Err(command.exec()).with_context(|| format!("running {} failed", program.display()))
}

/// The file that a shell would run.
pub fn find(name: &OsStr) -> Option<PathBuf> {
    let is_program =
        |path: &PathBuf| fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
    if Path::new(name).components().count() > 1 || name.as_encoded_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(is_program)
}

/// Refuses programs into which nothing is preloaded: they would run with an ordinary heap, and nobody would hear of it.
fn check_program(program: &Path) -> Result<()> {
    const SET_ID: u32 = 0o6000;
    let refuse = |why: &str| {
        let text = format!("{} cannot have memory in a window: {why}", program.display());
        Err(Failure::new(Exit::BadInput, text).into())
    };
    let meta = fs::metadata(program).with_context(|| format!("looking at {}", program.display()))?;
    if meta.mode() & SET_ID != 0 {
        return refuse("it runs as another user, and the system preloads nothing into it");
    }
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    if is_static(&bytes) == Some(true) {
        return refuse("it is statically linked, so that nothing can be preloaded; build it with shared libraries");
    }
    Ok(())
}

/// Whether an ELF file of 64 bits names no interpreter; nothing for what is no such file, such as a script.
fn is_static(bytes: &[u8]) -> Option<bool> {
    const PT_INTERP: u32 = 3;
    let number = |at: usize, length: usize| -> Option<u64> {
        let part = bytes.get(at..at + length)?;
        Some(part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    };
    if !bytes.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    // e_phoff, e_phentsize and e_phnum of the header; p_type is the first word of an entry (System V ABI, chapter 5).
    let (offset, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
    let types: Option<Vec<u64>> = (0..count).map(|index| number(offset.checked_add(index * size)?, 4)).collect();
    Some(!types?.contains(&u64::from(PT_INTERP)))
}

/// The library that is preloaded.
fn library() -> Result<PathBuf> {
    let own = std::env::current_exe().context("finding this program, to find its library")?;
    let beside = own.with_file_name(LIBRARY);
    let installed = own.parent().map(|bin| bin.join("../lib/osier").join(LIBRARY));
    let found = [Some(beside), installed].into_iter().flatten().find(|path| path.is_file());
    found.ok_or_else(|| {
        let text = format!(
            "{LIBRARY} is neither beside {} nor in ../lib/osier; build it with `cargo build --package osier-preload`",
            own.display()
        );
        Failure::new(Exit::Missing, text).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_static_program_is_told_from_others() {
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(is_static(&own), Some(false));
        // The same file with its interpreter's entry made one of no type.
        let mut cut = own.clone();
        let (offset, count) = (64, own[56] as usize);
        for index in 0..count {
            let at = offset + index * 56;
            if cut[at..at + 4] == [3, 0, 0, 0] {
                cut[at] = 0;
            }
        }
        assert_eq!(is_static(&cut), Some(true));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(is_static(&own[..60]), None, "cut short");
    }
}
