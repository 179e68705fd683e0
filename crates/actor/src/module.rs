//! Modules by content: what a pipeline names by path is copied to the image and named by its SHA-256, so
//! that a file changed later does not change how old data is decoded.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::abi::MODULE_BYTES_MAX;

/// The SHA-256 of a module.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// The first 12 hexadecimal digits, for messages.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }

    /// The 32 bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Digest, String> {
        let wrong = || format!("`{text}` is not a SHA-256 in hexadecimal");
        if text.len() != 64 || !text.is_ascii() {
            return Err(wrong());
        }
        let mut out = [0u8; 32];
        for (byte, index) in out.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[index..index + 2], 16).map_err(|_| wrong())?;
        }
        Ok(Digest(out))
    }
}

/// Why a module could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum ModuleStoreError {
    /// The file system refused.
    #[error("{action} {path}: {error}")]
    Io {
        /// What was attempted.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Larger than any module may be.
    #[error(
        "module {path} has {bytes} bytes, at most {MODULE_BYTES_MAX} are possible; build it with opt-level and strip"
    )]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// What is kept is not what its name says.
    #[error("the copy of module {digest} in the image is damaged; put the original back as {path}")]
    Damaged {
        /// Which module.
        digest: Digest,
        /// Where.
        path: PathBuf,
    },
}

/// A directory of modules named by their digests.
#[derive(Debug, Clone)]
pub struct ModuleStore {
    directory: PathBuf,
}

impl ModuleStore {
    /// A store in `directory`, which is made when the first module comes.
    pub fn new(directory: impl Into<PathBuf>) -> ModuleStore {
        ModuleStore { directory: directory.into() }
    }

    /// Copies a file in and answers its digest.
    ///
    /// # Errors
    /// [`ModuleStoreError`], naming the file.
    pub fn put_file(&self, path: &Path) -> Result<Digest, ModuleStoreError> {
        let failed = |error| ModuleStoreError::Io { action: "reading module", path: path.to_owned(), error };
        let bytes = fs::metadata(path).map_err(failed)?.len();
        if bytes > MODULE_BYTES_MAX as u64 {
            return Err(ModuleStoreError::TooLarge { path: path.to_owned(), bytes });
        }
        self.put(&fs::read(path).map_err(failed)?)
    }

    /// Keeps a module and answers its digest.
    ///
    /// # Errors
    /// [`ModuleStoreError::Io`].
    pub fn put(&self, wasm: &[u8]) -> Result<Digest, ModuleStoreError> {
        let digest = Digest::of(wasm);
        let path = self.path(&digest);
        if fs::read(&path).is_ok_and(|kept| kept == wasm) {
            return Ok(digest);
        }
        let failed = |error| ModuleStoreError::Io { action: "writing module", path: path.clone(), error };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        write_whole(&path, wasm).map_err(failed)?;
        Ok(digest)
    }

    /// A module that was kept.
    ///
    /// # Errors
    /// [`ModuleStoreError::Io`] if it is not there, [`ModuleStoreError::Damaged`] if it is not what was put.
    pub fn get(&self, digest: &Digest) -> Result<Vec<u8>, ModuleStoreError> {
        let path = self.path(digest);
        let failed = |error| ModuleStoreError::Io { action: "reading module", path: path.clone(), error };
        let wasm = fs::read(&path).map_err(failed)?;
        if Digest::of(&wasm) != *digest {
            return Err(ModuleStoreError::Damaged { digest: *digest, path });
        }
        Ok(wasm)
    }

    /// Where a module is kept under its file's own name, so that a configuration that was copied into an image
    /// finds it also when it is not where it was.
    pub fn named(&self, name: &str) -> Option<PathBuf> {
        Path::new(name).file_name().map(|file| self.directory.join(file))
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.directory.join(format!("{digest}.wasm"))
    }
}

/// A name that nobody else on this machine uses at this time.
pub(crate) fn unique() -> String {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed))
}

/// Writes a file so that under its name there is either the old content or all of the new one.
///
/// # Errors
/// What the system says.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    use std::io::Write as _;
    let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let temporary = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), unique()));
    let result = (|| {
        let mut file = fs::File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    if result.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    result
}
