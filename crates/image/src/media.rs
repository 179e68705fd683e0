//! Where the bytes of the flash array live: a sparse file, a block device, memory, or nowhere.
//!
//! A back end is a plain range of bytes. It knows nothing of pages and blocks; that a page is programmed
//! once between two erases is the flash model's affair. All methods take `&self`, so one back end can
//! serve a worker that syncs while another thread reads.
//!
//! Invariants:
//! 1. A byte range outside the media is refused before anything is touched.
//! 2. What was erased or never programmed reads as zero, on every back end that keeps bytes.
//! 3. After one failed sync every later sync of the same opening fails too: the kernel marks pages clean
//!    whose write-back failed, so a later success would say nothing about them.

mod file;
mod memory;
mod view;

use std::fmt;
use std::io;

pub use file::{BlockMedia, FileMedia};
pub use memory::{MemoryMedia, NoneMedia};
pub use view::MediaView;

use crate::error::is_no_space;

/// A range of bytes that can be read, written, erased and made durable.
pub trait Media: Send + Sync + fmt::Debug {
    /// Fills `into` with the bytes from `address` on.
    ///
    /// # Errors
    /// A range outside the media, an error of the system, or media that keep no bytes.
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError>;

    /// Writes `bytes` at `address`. They are durable only after a later [`Media::sync`].
    ///
    /// # Errors
    /// A range outside the media, or an error of the system.
    fn program(&self, address: u64, bytes: &[u8]) -> Result<(), MediaError>;

    /// Makes `bytes` bytes from `address` on read as zero, and gives their room back where it can.
    ///
    /// # Errors
    /// A range outside the media, or an error of the system.
    fn erase(&self, address: u64, bytes: u64) -> Result<(), MediaError>;

    /// Returns when everything programmed and erased before the call is durable.
    ///
    /// # Errors
    /// An error of the system, now or at an earlier sync of the same opening.
    fn sync(&self) -> Result<(), MediaError>;

    /// The size of the media in bytes.
    fn bytes(&self) -> u64;

    /// What the media are, for messages and reports.
    fn describe(&self) -> String;
}

/// What was asked of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaOperation {
    /// Opening or making the media.
    Open,
    /// [`Media::read`].
    Read,
    /// [`Media::program`].
    Program,
    /// [`Media::erase`].
    Erase,
    /// [`Media::sync`].
    Sync,
}

impl fmt::Display for MediaOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Program => "program",
            Self::Erase => "erase",
            Self::Sync => "sync",
        })
    }
}

/// Why the media did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum MediaFault {
    /// The range does not lie within the media.
    #[error("the media end at byte {0}; this is a bug of the caller, or of a profile that states another size")]
    OutOfRange(u64),
    /// There is no room.
    #[error("{0}; free some space where the media lie; what was stored before is intact")]
    NoSpace(io::Error),
    /// The media keep no bytes.
    #[error("media of kind `none` keep no bytes; use a device with other media to store data")]
    NoBytes,
    /// An earlier sync failed.
    #[error("an earlier sync failed, so what it covered may be lost; restart the device and check it")]
    EarlierSyncFailed,
    /// The media are missing, or a part of them is.
    #[error("{0}")]
    Damaged(String),
    /// The thing at the path cannot serve as media.
    #[error("{0}")]
    Unfit(String),
    /// The system refused.
    #[error("{0}")]
    Io(io::Error),
}

/// An operating error of the media: the operation, where, on what, and why.
#[derive(Debug, thiserror::Error)]
#[error("{operation} of {bytes} bytes at {address} of {media} failed: {fault}")]
pub struct MediaError {
    /// What was asked.
    pub operation: MediaOperation,
    /// The first byte asked for.
    pub address: u64,
    /// How many bytes were asked for.
    pub bytes: u64,
    /// The media, by path.
    pub media: String,
    /// Why it failed.
    pub fault: MediaFault,
}

impl MediaError {
    fn new(operation: MediaOperation, address: u64, bytes: u64, media: &str, fault: MediaFault) -> Self {
        Self { operation, address, bytes, media: media.to_owned(), fault }
    }

    /// Whether the media are missing, or a part of them is.
    #[must_use]
    pub fn is_damage(&self) -> bool {
        matches!(self.fault, MediaFault::Damaged(_))
    }

    /// Whether the cause is a full disk, a used-up quota or a file size limit.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        matches!(self.fault, MediaFault::NoSpace(_))
    }
}

impl From<io::Error> for MediaFault {
    fn from(cause: io::Error) -> Self {
        if is_no_space(&cause) { Self::NoSpace(cause) } else { Self::Io(cause) }
    }
}

impl MediaFault {
    /// Why media that were there once could not be opened.
    fn not_opened(cause: io::Error) -> Self {
        match cause.kind() {
            io::ErrorKind::NotFound => {
                Self::Damaged("it is missing; put it back from where it went, or from a copy".to_owned())
            }
            _ => cause.into(),
        }
    }

    /// Media that do not have the bytes that the superblock states.
    fn wrong_size(found: u64) -> Self {
        Self::Damaged(format!("it has {found} bytes; put the whole of it back from a copy"))
    }
}

/// Whether a range lies within media of `media_bytes` bytes.
fn in_range(address: u64, bytes: u64, media_bytes: u64) -> Result<(), MediaFault> {
    match address.checked_add(bytes) {
        Some(end) if end <= media_bytes => Ok(()),
        _ => Err(MediaFault::OutOfRange(media_bytes)),
    }
}

#[cfg(test)]
#[path = "media_tests.rs"]
mod tests;
