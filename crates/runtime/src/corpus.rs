//! Real files as input: read once, cut into logical blocks, each file with its SHA-256.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use osier_flash::BLOCK_BYTES;
use sha2::{Digest, Sha256};

/// Files that a directory walk takes at most; a deeper tree is cut off and said so.
const FILES_MAX: usize = 20_000;
/// Directories below a given one that a walk enters.
const DEPTH_MAX: usize = 32;

/// Why an input cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CorpusError {
    /// A file or directory cannot be read.
    #[error("cannot read the input {path}: {source}; check that it exists and that you may read it")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A pipe, a socket or a device: reading it may never end, and gives other bytes each time.
    #[error("the input {path} is neither a file nor a directory; copy what it gives into a file, and name that")]
    NotAFile {
        /// Which.
        path: PathBuf,
    },
    /// There is nothing in it.
    #[error("the inputs hold no bytes; name files that hold some with --input PATH")]
    Empty,
    /// One file is larger than all that may be taken.
    #[error(
        "the input {path} has {bytes} bytes, more than the {limit} that fit; name a smaller one, or a larger device with --capacity"
    )]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// What fits.
        limit: u64,
    },
}

/// One input file.
#[derive(Debug, Clone)]
pub struct Piece {
    /// Where it came from.
    pub path: PathBuf,
    /// Its first block in [`Corpus::bytes`].
    pub first_block: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// The SHA-256 of its content.
    pub sha256: [u8; 32],
}

/// All input, each file padded with zeroes to whole blocks.
#[derive(Debug, Default)]
pub struct Corpus {
    /// The files, in the order of their blocks.
    pub pieces: Vec<Piece>,
    /// Their bytes.
    pub bytes: Vec<u8>,
    /// Files left out because they did not fit any more.
    pub left_out: usize,
}

impl Corpus {
    /// Reads files and all files below directories, in the order of their paths, up to `limit_bytes`.
    ///
    /// A path given by name must be readable, whole, and fit; files found below a directory that do not fit
    /// are left out and counted.
    pub fn load(paths: &[PathBuf], limit_bytes: u64) -> Result<Corpus, CorpusError> {
        let mut corpus = Corpus::default();
        check(paths, limit_bytes)?;
        for path in paths {
            if path.is_dir() {
                let mut files = Vec::new();
                walk(path, 0, &mut files)?;
                files.sort();
                for file in files {
                    corpus.add(&file, limit_bytes, false)?;
                }
            } else {
                corpus.add(path, limit_bytes, true)?;
            }
        }
        if corpus.bytes.is_empty() { Err(CorpusError::Empty) } else { Ok(corpus) }
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u64 {
        self.bytes.len() as u64 / u64::from(BLOCK_BYTES)
    }

    fn add(&mut self, path: &Path, limit: u64, named: bool) -> Result<(), CorpusError> {
        let unreadable = |source| CorpusError::Unreadable { path: path.to_owned(), source };
        let mut content = Vec::new();
        let room = limit.saturating_sub(self.bytes.len() as u64);
        let file = fs::File::open(path).map_err(unreadable)?;
        let length = file.metadata().map_err(unreadable)?.len();
        if length > room {
            if named {
                return Err(CorpusError::TooLarge { path: path.to_owned(), bytes: length, limit: room });
            }
            self.left_out += 1;
            return Ok(());
        }
        // A file that grows while it is read is cut at what fits, so that the padding below stays within the limit.
        file.take(room).read_to_end(&mut content).map_err(unreadable)?;
        if content.is_empty() {
            return Ok(());
        }
        self.pieces.push(Piece {
            path: path.to_owned(),
            first_block: self.blocks(),
            bytes: content.len() as u64,
            sha256: Sha256::digest(&content).into(),
        });
        self.bytes.append(&mut content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        Ok(())
    }
}

/// Refuses, by name, what is no file or directory that may be read; and inputs of which, within `limit_bytes`, not a
/// byte would be taken. So that nothing is started for what cannot be used.
pub fn check(paths: &[PathBuf], limit_bytes: u64) -> Result<(), CorpusError> {
    for path in paths {
        let unreadable = |source| CorpusError::Unreadable { path: path.clone(), source };
        let meta = fs::metadata(path).map_err(unreadable)?;
        if !meta.is_file() && !meta.is_dir() {
            return Err(CorpusError::NotAFile { path: path.clone() });
        }
        if meta.is_file() && meta.len() > limit_bytes {
            return Err(CorpusError::TooLarge { path: path.clone(), bytes: meta.len(), limit: limit_bytes });
        }
        // A directory can be opened as well as a file.
        fs::File::open(path).map_err(unreadable)?;
    }
    for path in paths {
        let mut files = vec![path.clone()];
        if path.is_dir() {
            files.clear();
            walk(path, 0, &mut files)?;
        }
        for file in files {
            if holds_bytes(&file, limit_bytes)? {
                return Ok(());
            }
        }
    }
    Err(CorpusError::Empty)
}

/// Whether a file has a first byte. Its length does not say so: files of `/proc` have none and hold bytes.
fn holds_bytes(path: &Path, limit_bytes: u64) -> Result<bool, CorpusError> {
    let unreadable = |source| CorpusError::Unreadable { path: path.to_owned(), source };
    let mut file = fs::File::open(path).map_err(unreadable)?;
    let fits = file.metadata().map_err(unreadable)?.len() <= limit_bytes;
    Ok(fits && file.read(&mut [0]).map_err(unreadable)? > 0)
}

fn walk(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), CorpusError> {
    let unreadable = |source| CorpusError::Unreadable { path: directory.to_owned(), source };
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let kind = entry.file_type().map_err(unreadable)?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        if kind.is_dir() && !hidden && depth < DEPTH_MAX {
            walk(&entry.path(), depth + 1, files)?;
        } else if kind.is_file() && !hidden && files.len() < FILES_MAX {
            files.push(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_padded_and_keep_their_digest() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("b"), vec![7u8; 5000]).unwrap();
        fs::write(dir.path().join("a"), b"x").unwrap();
        fs::write(dir.path().join("empty"), b"").unwrap();
        let corpus = Corpus::load(&[dir.path().to_owned()], 1 << 20).unwrap();
        assert_eq!(corpus.blocks(), 3);
        assert_eq!(corpus.pieces.len(), 2);
        assert_eq!(corpus.pieces[1].first_block, 1);
        assert_eq!(corpus.pieces[0].sha256, <[u8; 32]>::from(Sha256::digest(b"x")));
    }

    #[test]
    fn what_is_no_file_is_refused_by_name_and_passed_over_in_a_directory() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        fs::write(path("file"), b"x").unwrap();
        for name in ["pipe", "socket"] {
            let error = Corpus::load(&[path(name)], 1 << 20).unwrap_err();
            assert!(matches!(&error, CorpusError::NotAFile { path } if path.ends_with(name)), "{error}");
        }
        let error = Corpus::load(&[path("dangling")], 1 << 20).unwrap_err();
        assert!(matches!(error, CorpusError::Unreadable { .. }), "{error}");
        let corpus = Corpus::load(&[dir.path().to_owned()], 1 << 20).unwrap();
        assert_eq!(corpus.pieces.len(), 1);
    }

    #[test]
    fn a_missing_an_empty_and_a_large_input_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Corpus::load(&[dir.path().join("none")], 1 << 20).unwrap_err();
        assert!(missing.to_string().contains("none"), "{missing}");
        assert!(matches!(Corpus::load(&[dir.path().to_owned()], 1 << 20), Err(CorpusError::Empty)));
        fs::write(dir.path().join("big"), vec![1u8; 10_000]).unwrap();
        let large = Corpus::load(&[dir.path().join("big")], 8192).unwrap_err();
        assert!(matches!(large, CorpusError::TooLarge { bytes: 10_000, limit: 8192, .. }));
        let below = Corpus::load(&[dir.path().to_owned()], 8192);
        assert!(matches!(below, Err(CorpusError::Empty)), "left out, and nothing else is there");
    }
}
