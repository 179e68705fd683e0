//! What tests that boot a stock kernel in QEMU share: the kernel, its modules, and its first file system.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::skipped;

/// The directory with a kernel and its modules, unless there is none.
pub fn ready() -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/vm-guest");
    let got = Command::new(script).output().unwrap();
    if !got.status.success() {
        skipped(format_args!("no guest can be booted: {}", String::from_utf8_lossy(&got.stderr).trim_end()));
        return None;
    }
    Some(PathBuf::from(String::from_utf8(got.stdout).unwrap().trim_end()))
}

/// These modules and what they depend on, in an order in which they can be loaded.
pub fn closure(modules: &Path, names: &[&str]) -> Vec<String> {
    let mut order = Vec::new();
    names.iter().for_each(|name| add(modules, name, &mut order));
    order
}

fn add(modules: &Path, name: &str, order: &mut Vec<String>) {
    let file = [format!("{name}.ko"), format!("{}.ko", name.replace('_', "-"))]
        .into_iter()
        .find(|file| modules.join(file).exists());
    // What is no module is part of the kernel.
    let Some(file) = file.filter(|file| !order.contains(file)) else { return };
    let bytes = fs::read(modules.join(&file)).unwrap();
    const FIELD: &[u8] = b"\0depends=";
    if let Some(at) = bytes.windows(FIELD.len()).position(|window| window == FIELD) {
        let text = bytes[at + FIELD.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
        let text = String::from_utf8_lossy(text).into_owned();
        text.split(',').filter(|name| !name.is_empty()).for_each(|name| add(modules, name, order));
    }
    order.push(file);
}

/// A kernel's first file system (its Documentation/driver-api/early-userspace/buffer-format.rst).
pub struct Archive(Vec<u8>);

/// Types and permissions of files.
const DIRECTORY: u32 = 0o040_755;
const CHARACTERS: u32 = 0o020_600;
pub const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// With this program as the first process.
    pub fn new(init: impl AsRef<Path>) -> Archive {
        let mut archive = Archive(Vec::new());
        archive.directory("dev");
        archive.put("dev/console", CHARACTERS, (5, 1), &[]);
        archive.directory("lib");
        archive.put("init", PROGRAM, (0, 0), &fs::read(init).unwrap());
        archive
    }

    pub fn directory(&mut self, name: &str) {
        self.put(name, DIRECTORY, (0, 0), &[]);
    }

    /// A program of this machine, and the libraries that it is linked with, at their places.
    pub fn program(&mut self, from: &Path, to: &str) {
        let listed = Command::new("ldd").arg(from).output().unwrap();
        for path in String::from_utf8_lossy(&listed.stdout).split_whitespace().filter(|word| word.starts_with('/')) {
            let path = Path::new(path);
            let parents: Vec<&Path> = path.ancestors().skip(1).collect();
            for parent in parents.iter().rev().filter(|parent| **parent != Path::new("/")) {
                // A directory that is there already is no harm.
                self.directory(parent.strip_prefix("/").unwrap().to_str().unwrap());
            }
            let name = path.strip_prefix("/").unwrap().to_str().unwrap();
            self.put(name, PROGRAM, (0, 0), &fs::read(path).unwrap());
        }
        self.put(to, PROGRAM, (0, 0), &fs::read(from).unwrap());
    }

    /// Writes it down.
    pub fn save(mut self, path: &Path) {
        self.put("TRAILER!!!", 0, (0, 0), &[]);
        fs::write(path, self.0).unwrap();
    }

    pub fn put(&mut self, name: &str, mode: u32, device: (u32, u32), bytes: &[u8]) {
        let (inode, length, name_length) = (self.0.len() as u32 + 1, bytes.len() as u32, name.len() as u32 + 1);
        let fields = [inode, mode, 0, 0, 1, 0, length, 0, 0, device.0, device.1, name_length, 0];
        self.0.extend(b"070701");
        fields.iter().for_each(|field| self.0.extend(format!("{field:08x}").into_bytes()));
        for part in [[name.as_bytes(), b"\0"].concat().as_slice(), bytes] {
            self.0.extend(part);
            self.0.resize(self.0.len().next_multiple_of(4), 0);
        }
    }
}
