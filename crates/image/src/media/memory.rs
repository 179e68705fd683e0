//! Media in memory, and media that keep nothing.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::MemfdFlags;

use super::file::{Range, media_by_range};
use super::{Media, MediaError, MediaFault, MediaOperation, in_range};

/// Media in anonymous memory, as a memory file rather than a heap buffer: a process that inherits the
/// descriptor keeps the bytes alive when the one that wrote them is killed, the bytes do not count as the
/// process's own memory, and an erased block gives its memory back.
#[derive(Debug)]
pub struct MemoryMedia {
    range: Range,
}

impl MemoryMedia {
    /// New media of `bytes` bytes, all zero. Memory is taken when it is written.
    ///
    /// # Errors
    /// The system's.
    pub fn create(bytes: u64) -> Result<Self, MediaError> {
        let make = || -> std::io::Result<File> {
            let file = File::from(rustix::fs::memfd_create("osier-media", MemfdFlags::CLOEXEC)?);
            file.set_len(bytes)?;
            Ok(file)
        };
        let file = make()
            .map_err(|cause| MediaError::new(MediaOperation::Open, 0, bytes, "memory", MediaFault::from(cause)))?;
        Ok(Self { range: Range::new(file, bytes, "memory".to_owned()) })
    }

    /// The media behind a descriptor that another process made with [`MemoryMedia::create`].
    ///
    /// # Errors
    /// When the descriptor's size is not `bytes`, or cannot be found.
    pub fn from_fd(fd: OwnedFd, bytes: u64) -> Result<Self, MediaError> {
        let file = File::from(fd);
        let error = |fault| MediaError::new(MediaOperation::Open, 0, bytes, "memory", fault);
        let found = file.metadata().map_err(|cause| error(cause.into()))?.len();
        if found != bytes {
            return Err(error(MediaFault::Unfit(format!("the descriptor has {found} bytes"))));
        }
        Ok(Self { range: Range::new(file, bytes, "memory".to_owned()) })
    }
}

impl AsFd for MemoryMedia {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.range.file.as_fd()
    }
}

media_by_range!(MemoryMedia);

/// Media that take everything and keep nothing, for timing only.
#[derive(Debug)]
pub struct NoneMedia {
    bytes: u64,
}

impl NoneMedia {
    /// Media that pretend to have `bytes` bytes.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { bytes }
    }

    fn check(&self, operation: MediaOperation, address: u64, bytes: u64) -> Result<(), MediaError> {
        in_range(address, bytes, self.bytes)
            .map_err(|fault| MediaError::new(operation, address, bytes, "no media", fault))
    }
}

impl Media for NoneMedia {
    /// Reading nothing succeeds; reading a byte is refused, because a zero made up here would be found as
    /// a wrong checksum far from its cause.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError> {
        let bytes = into.len() as u64;
        self.check(MediaOperation::Read, address, bytes)?;
        if bytes == 0 {
            return Ok(());
        }
        Err(MediaError::new(MediaOperation::Read, address, bytes, "no media", MediaFault::NoBytes))
    }

    fn program(&self, address: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.check(MediaOperation::Program, address, bytes.len() as u64)
    }

    fn erase(&self, address: u64, bytes: u64) -> Result<(), MediaError> {
        self.check(MediaOperation::Erase, address, bytes)
    }

    fn sync(&self) -> Result<(), MediaError> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn describe(&self) -> String {
        "no media".to_owned()
    }
}
