//! The bytes of the flash in a file, for a window larger than the machine's memory.
//!
//! The file is sparse, grows with what is written, and belongs to the device's process alone: it has no name any more
//! once it is open, so that nothing of it outlives the device. Bytes that rot there are found by their checksums.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use osier_device::window::{CopyStore, PAGE_BYTES, PageBytes, StoreError};

/// See the module.
#[derive(Debug)]
pub struct FileStore {
    file: File,
    directory: PathBuf,
    room: Box<PageBytes>,
}

impl FileStore {
    /// A file in this directory.
    ///
    /// # Errors
    /// What the system refused.
    pub fn new(directory: &Path) -> Result<FileStore, StoreError> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = File::options().read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE).open(directory);
        let file = file.map_err(|error| {
            let place = directory.display();
            StoreError(format!(
                "cannot make a file for the flash in {place}: {error}; name a directory of a file system that has \
                 unnamed files (O_TMPFILE), as ext4, xfs, btrfs and tmpfs do"
            ))
        })?;
        Ok(FileStore::over(file, directory))
    }

    fn over(file: File, directory: &Path) -> FileStore {
        FileStore { file, directory: directory.to_owned(), room: Box::new([0; PAGE_BYTES]) }
    }
}

fn offset(number: u32) -> u64 {
    u64::from(number) * PAGE_BYTES as u64
}

impl CopyStore for FileStore {
    fn put(&mut self, number: u32, fill: &mut dyn FnMut(&mut PageBytes)) -> Result<&PageBytes, StoreError> {
        fill(&mut self.room);
        self.file.write_all_at(&self.room[..], offset(number)).map_err(|error| {
            let place = self.directory.display();
            StoreError(format!(
                "cannot write a page of the flash to its file in {place}: {error}; the page is kept in memory and tried \
                 again: make room there"
            ))
        })?;
        Ok(&self.room)
    }

    fn get<'a>(&'a self, number: u32, room: &'a mut PageBytes) -> Option<&'a PageBytes> {
        self.file.read_exact_at(room, offset(number)).ok()?;
        Some(room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_by_number_and_the_file_is_sparse() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let mut store = FileStore::new(directory.path()).unwrap();
        for number in [7, 1_000_000, 3] {
            store.put(number, &mut |page| page.fill(number as u8)).unwrap();
        }
        let mut room = [0; PAGE_BYTES];
        for number in [1_000_000_u32, 3, 7] {
            assert_eq!(store.get(number, &mut room), Some(&[number as u8; PAGE_BYTES]));
        }
        assert!(store.get(2_000_000, &mut room).is_none(), "beyond the end there is nothing");
        let about = store.file.metadata().unwrap();
        assert!(about.len() > 4_000_000_000 && about.blocks() < 1024, "{} blocks", about.blocks());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "it has no name");
    }

    #[test]
    fn a_full_disk_is_said_with_its_remedy() {
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let error = FileStore::over(full, Path::new("/media")).put(1, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("/media") && error.contains("make room"), "{error}");
        assert!(FileStore::new(Path::new("/nonexistent")).unwrap_err().to_string().contains("/nonexistent"));
    }
}
