//! A file that is written whole or not at all: under a name of its own beside the one asked for, which it takes when it
//! is complete and on the disk.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::exit::{Exit, Failure};

/// See the module. What is dropped without [`WholeFile::keep`] leaves nothing.
#[derive(Debug)]
pub struct WholeFile {
    path: PathBuf,
    what: &'static str,
    overwrite: bool,
    file: BufWriter<tempfile::NamedTempFile>,
}

impl WholeFile {
    /// Begins the file at a path. `what` it is, for errors. A file that is there is refused unless it may be replaced.
    ///
    /// # Errors
    /// If there is one already, or the directory cannot be written.
    pub fn create(path: &Path, what: &'static str, overwrite: bool) -> Result<WholeFile> {
        if !overwrite && path.exists() {
            let text = format!("{} exists already; name another file, or give --overwrite", path.display());
            return Err(Failure::new(Exit::BadInput, text).into());
        }
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let file = tempfile::Builder::new().prefix(".osier-").tempfile_in(directory);
        let file = file.with_context(|| format!("writing the {what} {}", path.display()))?;
        Ok(WholeFile { path: path.to_owned(), what, overwrite, file: BufWriter::new(file) })
    }

    /// What an error of writing to it means.
    pub fn failure(&self, cause: std::io::Error) -> anyhow::Error {
        failure(&self.path, self.what, cause)
    }

    /// The file is complete: it takes its name.
    ///
    /// # Errors
    /// What the system says; there is then no such file.
    pub fn keep(mut self) -> Result<()> {
        let synced = self.file.flush().and_then(|()| self.file.get_ref().as_file().sync_all());
        synced.map_err(|cause| self.failure(cause))?;
        readable_by_all(self.file.get_ref().as_file());
        let context = format!("writing the {} {}", self.what, self.path.display());
        let (file, _) = self.file.into_parts();
        let kept = if self.overwrite { file.persist(&self.path) } else { file.persist_noclobber(&self.path) };
        kept.map_err(|error| error.error).context(context)?;
        Ok(())
    }
}

/// What an error of writing a file means: a full disk has a code of its own.
pub fn failure(path: &Path, what: &str, cause: std::io::Error) -> anyhow::Error {
    if osier_image::is_no_space(&cause) {
        let text = format!("writing {} failed: {cause}; free some space", path.display());
        return Failure::new(Exit::NoSpace, text).into();
    }
    anyhow::Error::new(cause).context(format!("writing the {what} {}", path.display()))
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// A temporary file is for its owner alone; a result is an ordinary file. What the file system does not let be changed
/// is no reason to lose it.
fn readable_by_all(file: &File) {
    use std::os::unix::fs::PermissionsExt;
    if let Err(cause) = file.set_permissions(std::fs::Permissions::from_mode(0o644)) {
        tracing::warn!("the file stays readable by its owner alone: {cause}");
    }
}
