//! The names of the files in an image.

use std::path::{Path, PathBuf};

/// The longest name of an image, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Where everything in one image is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// The layout of the image in the directory `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The image's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Two copies of the superblock.
    #[must_use]
    pub fn superblock(&self) -> PathBuf {
        self.root.join("superblock")
    }

    /// The next superblock file, before it takes the place of the present one.
    pub(crate) fn superblock_new(&self) -> PathBuf {
        self.root.join("superblock.new")
    }

    /// The superblock file as it was before a damaged copy was restored.
    #[must_use]
    pub fn superblock_damaged(&self) -> PathBuf {
        self.root.join("superblock.damaged")
    }

    /// The profile's full text.
    #[must_use]
    pub fn profile(&self) -> PathBuf {
        self.root.join("profile.toml")
    }

    /// The actors and pipelines that were declared on the device.
    #[must_use]
    pub fn pipelines(&self) -> PathBuf {
        self.root.join("pipelines.toml")
    }

    /// Every pipeline that the device ever had, by the tags of extents.
    #[must_use]
    pub fn registry(&self) -> PathBuf {
        self.root.join("registry.toml")
    }

    /// The directory of the actors' modules that are not built in.
    #[must_use]
    pub fn modules(&self) -> PathBuf {
        self.root.join("modules")
    }

    /// The directory of machine code made of modules; it can be made again.
    #[must_use]
    pub fn code(&self) -> PathBuf {
        self.root.join("code")
    }

    /// The flash array's bytes, when they are in a file.
    #[must_use]
    pub fn media(&self) -> PathBuf {
        self.root.join("media")
    }

    /// The persistent memory region.
    #[must_use]
    pub fn pmr(&self) -> PathBuf {
        self.root.join("pmr")
    }

    /// The directory of the keys, for its owner only.
    #[must_use]
    pub fn keys(&self) -> PathBuf {
        self.root.join("keys")
    }

    /// The directory of what a running device needs and a stopped one does not: sockets and logs.
    #[must_use]
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// The owner lock.
    #[must_use]
    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }
}

/// The files that an image may hold, directly in its directory.
const FILES: [&str; 9] = [
    "superblock",
    "superblock.new",
    "superblock.damaged",
    "profile.toml",
    "pipelines.toml",
    "registry.toml",
    "media",
    "pmr",
    "lock",
];
/// The directories that an image may hold.
const DIRECTORIES: [&str; 4] = ["keys", "modules", "code", "run"];

/// Whether an image may hold something of this name. A file may also be there as `.NAME.ANYTHING`, after a kill
/// in the instant before it took its place.
pub(crate) fn is_known(name: &str, is_directory: bool) -> bool {
    if is_directory {
        return DIRECTORIES.contains(&name);
    }
    let unfinished = |known: &str| {
        let rest = name.strip_prefix('.').and_then(|rest| rest.strip_prefix(known));
        rest.is_some_and(|rest| rest.starts_with('.'))
    };
    FILES.contains(&name) || FILES.iter().any(|known| unfinished(known))
}

/// Whether `name` can name an image in a home directory.
///
/// # Errors
/// What a name must look like.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "`{name}` cannot name a device: use 1 to {NAME_BYTES_MAX} letters, digits, `-`, `_` or `.`, \
         beginning with a letter or digit; or give a path with a `/` in it"
    ))
}
