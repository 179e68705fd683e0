//! What can go wrong with an image, in words that say what to do.

use std::io;
use std::path::{Path, PathBuf};

use crate::lock::Holder;
use crate::superblock::FORMAT_VERSION;

/// An operating error of an image. The text says what was attempted, on what, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A size, name or path given for a new image is impossible.
    #[error("cannot make the device image {path}: {why}")]
    Options {
        /// The image that was to be made.
        path: PathBuf,
        /// What is wrong and what would be right.
        why: String,
    },
    /// Something is already there.
    #[error("cannot make the device image {path}: it exists already; choose another name, or remove it first")]
    Exists {
        /// The path that is taken.
        path: PathBuf,
    },
    /// Nothing is there.
    #[error("there is no device image at {path}; `osier device ls` lists those that are there")]
    Missing {
        /// The path that is empty.
        path: PathBuf,
    },
    /// Something is there, but it is not an image.
    #[error("{path} is not a device image: {why}; it was left as it is")]
    NotAnImage {
        /// The path.
        path: PathBuf,
        /// What an image has and this has not.
        why: String,
    },
    /// Another process owns the image.
    #[error("the device image {path} is in use by {holder}; stop that program first, or use another image")]
    Busy {
        /// The image.
        path: PathBuf,
        /// Who owns it.
        holder: Holder,
    },
    /// The image was written by a newer program.
    #[error(
        "the device image {path} has format version {found}, and this program reads up to \
         {FORMAT_VERSION}; use a newer osier; nothing was changed"
    )]
    NewerFormat {
        /// The image.
        path: PathBuf,
        /// The version found.
        found: u32,
    },
    /// A part of the image is damaged.
    #[error("the device image {path} is damaged: {what}; nothing was changed; restore the file from a copy")]
    Damaged {
        /// The image.
        path: PathBuf,
        /// Which part, and how it is known.
        what: String,
    },
    /// The profile is refused by the device model.
    #[error("the profile of the device image {path} is refused: {why}")]
    Profile {
        /// The image.
        path: PathBuf,
        /// What the profile's parser said.
        why: String,
    },
    /// The file system is full.
    #[error("{operation} {path} failed: {cause}; free some space on that file system, or choose smaller sizes")]
    NoSpace {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's word for it: no space, quota, or file size limit.
        cause: io::Error,
    },
    /// The directory holds files that an image does not have, so it is not removed.
    #[error(
        "the device image {path} was not removed: it also holds {names}, which osier did not make; \
         move that away first"
    )]
    Foreign {
        /// The image.
        path: PathBuf,
        /// The names of what does not belong there.
        names: String,
    },
    /// The system refused an operation.
    #[error("{operation} {path} failed: {cause}")]
    Io {
        /// What was attempted.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
}

/// Whether this error means that there is no room: disk full, quota used up, or a file size limit.
#[must_use]
pub fn is_no_space(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge)
}

/// Turns a system error into an [`ImageError`] that names the operation and the path.
pub(crate) fn io_error(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ImageError {
    move |cause| {
        let path = path.to_owned();
        if is_no_space(&cause) {
            ImageError::NoSpace { operation, path, cause }
        } else {
            ImageError::Io { operation, path, cause }
        }
    }
}
