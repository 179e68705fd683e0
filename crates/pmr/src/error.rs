//! Operating errors of the region. Each text says what was attempted, on what, and what to do.

use std::io;

/// What can go wrong with a region, apart from bugs (assertions) and damage (see [`crate::Finding`]).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PmrError {
    /// The operating system refused a call.
    #[error("cannot {what} {on}: {source}")]
    Io {
        /// The step that was attempted.
        what: &'static str,
        /// The file or memory it was attempted on.
        on: String,
        /// The reason that the operating system gave.
        source: io::Error,
    },
    /// There is no such file.
    #[error(
        "region {on} is missing: it holds what was completed and not written to the media yet; \
         put it back from where it went, or from a copy"
    )]
    Missing {
        /// The file that was looked for.
        on: String,
    },
    /// The backing store cannot hold the region.
    #[error("cannot reserve {bytes} bytes for region {on}: no space left; free some or ask for a smaller region")]
    NoSpace {
        /// The file or memory of the region.
        on: String,
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A region is never made over something that exists.
    #[error("cannot create region {on}: it exists already; open it, or remove it first")]
    Exists {
        /// The file that exists.
        on: String,
    },
    /// The size asked for is outside what the format allows.
    #[error("cannot create a region of {bytes} bytes: the size must be a multiple of 4096 from {min} to {max}")]
    BadSize {
        /// Bytes that were asked for.
        bytes: u64,
        /// Smallest size, in bytes.
        min: u64,
        /// Largest size, in bytes.
        max: u64,
    },
    /// The file does not begin as a region does: another kind of file, or a creation that was cut short.
    #[error(
        "{on} is not a region: it does not begin with OSIERPMR; \
         name another file, or remove it if a creation was cut short"
    )]
    NotARegion {
        /// The file that was opened.
        on: String,
    },
    /// The region was written by a newer version of the format.
    #[error(
        "region {on} has format version {found}, this program knows versions up to {known}; \
         use a newer program"
    )]
    NewerVersion {
        /// The file that was opened.
        on: String,
        /// Version in the file.
        found: u32,
        /// Newest version that this program knows.
        known: u32,
    },
    /// The header's checksum or a value in it is wrong. Nothing was written.
    #[error("the header of region {on} is damaged ({why}); nothing was changed; restore the file from a copy")]
    DamagedHeader {
        /// The file that was opened.
        on: String,
        /// Which check failed.
        why: String,
    },
    /// The file is shorter than its header says.
    #[error("region {on} is cut short: its header says {stated} bytes, the file has {found}; restore it from a copy")]
    Truncated {
        /// The file that was opened.
        on: String,
        /// Bytes that the header states.
        stated: u64,
        /// Bytes that the file has.
        found: u64,
    },
    /// Another process changes the table of objects.
    #[error("cannot change the objects of region {on}: another process is its writer; stop that process first")]
    WriterBusy {
        /// The file of the region.
        on: String,
    },
    /// The table has damaged entries, so free space cannot be told from used space.
    #[error(
        "cannot change the objects of region {on}: {count} table entries are damaged; \
         run the check, save what is needed, then drop them"
    )]
    DamagedTable {
        /// The file of the region.
        on: String,
        /// How many entries are damaged.
        count: usize,
    },
    /// The name of an object is not allowed.
    #[error("cannot use {name:?} as an object's name: it must be 1 to 32 printable ASCII characters without spaces")]
    BadName {
        /// The name that was given.
        name: String,
    },
    /// The length or alignment of an object is not allowed.
    #[error("cannot allocate object {name}: {why}")]
    BadRequest {
        /// The name that was given.
        name: String,
        /// Which rule was broken.
        why: &'static str,
    },
    /// An object of that name exists.
    #[error("cannot allocate object {name}: the name is in use; free that object or choose another name")]
    NameTaken {
        /// The name that was given.
        name: String,
    },
    /// All entries of the table are in use.
    #[error("cannot allocate object {name}: all {entries} table entries are in use; free an object")]
    TableFull {
        /// The name that was given.
        name: String,
        /// Entries that the table has.
        entries: u32,
    },
    /// No gap is large enough.
    #[error(
        "cannot allocate {bytes} bytes for object {name}: the largest gap has {largest_gap_bytes}; \
         free objects or create a larger region"
    )]
    NoRoom {
        /// The name that was given.
        name: String,
        /// Bytes that were asked for.
        bytes: u64,
        /// Largest run of free bytes, before alignment.
        largest_gap_bytes: u64,
    },
    /// No object has that name.
    #[error("region {on} has no object named {name}; list the objects to see what it holds")]
    NotFound {
        /// The file of the region.
        on: String,
        /// The name that was looked for.
        name: String,
    },
    /// A range cannot be mapped because it does not lie on page borders or leaves the object.
    #[error(
        "cannot map bytes {start}..{end} of object {name}: \
         range, object and address must lie on 4096-byte borders inside the object"
    )]
    BadRange {
        /// The object's name.
        name: String,
        /// First byte of the range.
        start: u64,
        /// End of the range.
        end: u64,
    },
}

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, PmrError>;

impl PmrError {
    /// The error of the last system call of this thread, told as `what` attempted on `on`.
    pub(crate) fn last_os(what: &'static str, on: &str) -> Self {
        Self::Io { what, on: on.to_owned(), source: io::Error::last_os_error() }
    }
}
