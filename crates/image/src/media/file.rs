//! Media in a sparse file, and on a block device.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, OFlags};

use super::{Media, MediaError, MediaFault, MediaOperation, in_range};

/// The size of the zeroes written where the file system cannot punch holes.
const ZEROES_BYTES: usize = 64 * 1024;

/// What file and block device have in common: positioned reads and writes on one descriptor.
#[derive(Debug)]
pub(super) struct Range {
    pub(super) file: File,
    pub(super) bytes: u64,
    pub(super) name: String,
    sync_failed: AtomicBool,
}

impl Range {
    pub(super) fn new(file: File, bytes: u64, name: String) -> Self {
        Self { file, bytes, name, sync_failed: AtomicBool::new(false) }
    }

    fn error(&self, operation: MediaOperation, address: u64, bytes: u64, fault: MediaFault) -> MediaError {
        MediaError::new(operation, address, bytes, &self.name, fault)
    }

    pub(super) fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError> {
        let bytes = into.len() as u64;
        in_range(address, bytes, self.bytes)
            .and_then(|()| self.file.read_exact_at(into, address).map_err(MediaFault::from))
            .map_err(|fault| self.error(MediaOperation::Read, address, bytes, fault))
    }

    pub(super) fn program(&self, address: u64, from: &[u8]) -> Result<(), MediaError> {
        let bytes = from.len() as u64;
        in_range(address, bytes, self.bytes)
            .and_then(|()| self.file.write_all_at(from, address).map_err(MediaFault::from))
            .map_err(|fault| self.error(MediaOperation::Program, address, bytes, fault))
    }

    pub(super) fn erase(&self, address: u64, bytes: u64) -> Result<(), MediaError> {
        in_range(address, bytes, self.bytes)
            .and_then(|()| if bytes == 0 { Ok(()) } else { self.zero(address, bytes).map_err(MediaFault::from) })
            .map_err(|fault| self.error(MediaOperation::Erase, address, bytes, fault))
    }

    fn zero(&self, address: u64, bytes: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&self.file, flags, address, bytes) {
            Ok(()) => Ok(()),
            // A file system without holes, or a block device asked for less than one of its sectors.
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => self.write_zeroes(address, bytes),
            Err(errno) => Err(errno.into()),
        }
    }

    pub(super) fn write_zeroes(&self, address: u64, bytes: u64) -> io::Result<()> {
        let zeroes = [0u8; ZEROES_BYTES];
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(ZEROES_BYTES as u64);
            self.file.write_all_at(&zeroes[..step as usize], address + done)?;
            done += step;
        }
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), MediaError> {
        self.sync_by(|file| file.sync_data())
    }

    pub(super) fn sync_by(&self, sync: impl FnOnce(&File) -> io::Result<()>) -> Result<(), MediaError> {
        let error = |fault| self.error(MediaOperation::Sync, 0, self.bytes, fault);
        if self.sync_failed.load(Ordering::SeqCst) {
            return Err(error(MediaFault::EarlierSyncFailed));
        }
        sync(&self.file).map_err(|cause| {
            self.sync_failed.store(true, Ordering::SeqCst);
            error(MediaFault::from(cause))
        })
    }
}

/// Delegates the trait to the `range` inside.
macro_rules! media_by_range {
    ($name:ty) => {
        impl Media for $name {
            fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError> {
                self.range.read(address, into)
            }
            fn program(&self, address: u64, bytes: &[u8]) -> Result<(), MediaError> {
                self.range.program(address, bytes)
            }
            fn erase(&self, address: u64, bytes: u64) -> Result<(), MediaError> {
                self.range.erase(address, bytes)
            }
            fn sync(&self) -> Result<(), MediaError> {
                self.range.sync()
            }
            fn bytes(&self) -> u64 {
                self.range.bytes
            }
            fn describe(&self) -> String {
                self.range.name.clone()
            }
        }
    };
}
pub(super) use media_by_range;

/// Media in a sparse file: an erased block takes no room.
#[derive(Debug)]
pub struct FileMedia {
    range: Range,
}

impl FileMedia {
    /// Opens the file at `path`, which must be `bytes` bytes long.
    ///
    /// # Errors
    /// The system's, or that the file has another size: a shorter one lost data, a longer one is not ours.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, MediaError> {
        let name = path.display().to_string();
        let error = |fault| MediaError::new(MediaOperation::Open, 0, bytes, &name, fault);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|cause| error(MediaFault::not_opened(cause)))?;
        let found = file.metadata().map_err(|cause| error(cause.into()))?.len();
        if found != bytes {
            return Err(error(MediaFault::wrong_size(found)));
        }
        Ok(Self { range: Range::new(file, bytes, name) })
    }
}

media_by_range!(FileMedia);

/// Media on a whole block device or partition, held exclusively.
#[derive(Debug)]
pub struct BlockMedia {
    range: Range,
    path: PathBuf,
}

impl BlockMedia {
    /// Opens the block device at `path`, which must have at least `bytes` bytes. It is opened exclusively:
    /// a device that is mounted, or in use by another image, is refused by the kernel.
    ///
    /// # Errors
    /// The system's, or that the path is not a block device, or too small.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, MediaError> {
        let name = path.display().to_string();
        let error = |fault| MediaError::new(MediaOperation::Open, 0, bytes, &name, fault);
        let kind = std::fs::metadata(path).map_err(|cause| error(cause.into()))?.file_type();
        if !kind.is_block_device() {
            return Err(error(MediaFault::Unfit("it is not a block device".to_owned())));
        }
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::EXCL.bits().cast_signed())
            .open(path)
            .map_err(|cause| error(busy_or(cause)))?;
        let found = file.seek(SeekFrom::End(0)).map_err(|cause| error(cause.into()))?;
        if found < bytes {
            let text = format!("the block device has only {found} bytes; use a larger one or a smaller device");
            return Err(error(MediaFault::Unfit(text)));
        }
        Ok(Self { range: Range::new(file, bytes, name), path: path.to_owned() })
    }

    /// The path of the block device.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the first `bytes` bytes (or all, if fewer) are zero, as on a device nobody has used.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn begins_blank(&self, bytes: u64) -> Result<bool, MediaError> {
        let mut buffer = [0u8; ZEROES_BYTES];
        let end = bytes.min(self.range.bytes);
        let mut at = 0;
        while at < end {
            let step = (end - at).min(ZEROES_BYTES as u64);
            let part = &mut buffer[..step as usize];
            self.range.read(at, part)?;
            if part.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += step;
        }
        Ok(true)
    }
}

media_by_range!(BlockMedia);

fn busy_or(cause: io::Error) -> MediaFault {
    if cause.kind() == io::ErrorKind::ResourceBusy {
        MediaFault::Unfit("it is mounted, or in use by another program; release it first".to_owned())
    } else {
        cause.into()
    }
}
