//! What can go wrong that is not a bug.

use crate::geometry::GeometryError;
use crate::media::MediaError;
use crate::nand::TimingError;

/// An FTL that cannot be built or recovered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FtlError {
    /// A dimension of the array cannot work.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A duration cannot be true.
    #[error(transparent)]
    Timing(#[from] TimingError),
    /// A parameter of the FTL cannot work.
    #[error("ftl: {name} is {value}, which is outside {min}..={max}; choose a value inside")]
    Param {
        /// The field of [`crate::FtlParams`].
        name: &'static str,
        /// What it was.
        value: u64,
        /// Smallest value that works here.
        min: u64,
        /// Largest value that works here.
        max: u64,
    },
    /// The logical blocks do not fit into what the media can promise.
    #[error(
        "ftl: {logical_blocks} logical blocks need {needed_bytes} bytes with a header for each block, \
         but only {usable_bytes} are usable after over-provisioning and the reserve of garbage collection; \
         use fewer blocks, more media, or thin provisioning"
    )]
    Capacity {
        /// Blocks asked for.
        logical_blocks: u64,
        /// Bytes that they take in the worst case.
        needed_bytes: u64,
        /// Bytes that can be promised.
        usable_bytes: u64,
    },
    /// There are no bytes to recover from.
    #[error("ftl: recovery was asked for in timing-only mode, which keeps no bytes; create a new FTL instead")]
    NoData,
    /// The media could not be read during recovery.
    #[error("ftl: reading {bytes} bytes at media address {address} during recovery failed: {source}")]
    Read {
        /// First byte of the read.
        address: u64,
        /// Its length.
        bytes: u32,
        /// Why.
        source: MediaError,
    },
    /// The media was written by a newer version of the format.
    #[error(
        "ftl: superblock {superblock} is in format version {version}, this program knows up to {known}; \
         nothing was changed; use the newer program"
    )]
    NewerVersion {
        /// Where it was found.
        superblock: u32,
        /// What it says.
        version: u16,
        /// The newest that is understood.
        known: u16,
    },
    /// The media was written with another geometry.
    #[error(
        "ftl: superblock {superblock} was written with another geometry (fingerprint {found:#010x}, \
         expected {expected:#010x}); nothing was changed; use the profile that the media was created with"
    )]
    OtherGeometry {
        /// Where it was found.
        superblock: u32,
        /// Fingerprint on the media.
        found: u32,
        /// Fingerprint of the geometry that was given.
        expected: u32,
    },
    /// The media holds bytes, but nothing that this crate wrote.
    #[error(
        "ftl: {superblocks} superblocks hold bytes, and none of them has a sound header; nothing was changed; \
         check that this is the right media and profile, or create the device anew"
    )]
    Foreign {
        /// Superblocks that are neither erased nor ours.
        superblocks: u32,
    },
    /// The media holds blocks beyond the logical capacity that was given.
    #[error(
        "ftl: an extent on the media covers logical blocks up to {end}, but only {logical_blocks} were configured; \
         nothing was changed; recover with the capacity that the media was created with"
    )]
    LogicalCapacity {
        /// One past the last block of the extent.
        end: u64,
        /// Blocks configured.
        logical_blocks: u64,
    },
}

/// Why an append or a trim was not taken. Nothing has changed; the same call may be made again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Backpressure {
    /// Programs are in flight, or garbage collection has to free a superblock first.
    #[error("the flash is busy; retry after the next event")]
    Busy,
    /// The media is full of live data. Ask `Ftl::can_accept` before promising anything.
    #[error("the flash is full of live data; overwrite or trim what is no longer needed")]
    Full,
    /// A program or a sync failed, so that nothing more can be promised. Reads go on.
    #[error("the flash is read-only since a write to the media failed: {0}")]
    ReadOnly(MediaError),
}

/// Why a read was not taken. Nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadRefused {
    /// Too many reads are in flight; retry after the next event.
    #[error("too many reads are in flight; retry after the next event")]
    Busy,
    /// The superblock was collected since the location was looked up; look it up again.
    #[error("the extent has moved; look the blocks up again")]
    Moved,
}
