//! Media opened for reading alone: what a check looks through.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use super::file::Range;
use super::{MediaError, MediaFault, MediaOperation};

/// The bytes of media in a file or on a block device, by a descriptor that the kernel lets nobody write
/// through. A block device is not claimed: that nobody else uses it has to be known from the owner lock.
#[derive(Debug)]
pub struct MediaView {
    range: Range,
}

impl MediaView {
    /// Opens the file or block device at `path`, of which `bytes` bytes are the media.
    ///
    /// # Errors
    /// The system's, or that there are fewer bytes.
    pub fn open(path: &Path, bytes: u64) -> Result<Self, MediaError> {
        let name = path.display().to_string();
        let error = |fault| MediaError::new(MediaOperation::Open, 0, bytes, &name, fault);
        let mut file = File::open(path).map_err(|cause| error(MediaFault::not_opened(cause)))?;
        let found = file.seek(SeekFrom::End(0)).map_err(|cause| error(cause.into()))?;
        if found < bytes {
            return Err(error(MediaFault::wrong_size(found)));
        }
        Ok(Self { range: Range::new(file, bytes, name) })
    }

    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// A range outside the media, or an error of the system.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError> {
        self.range.read(address, into)
    }
}
