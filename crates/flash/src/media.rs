//! What the FTL asks of the media, and what the media answers.
//!
//! The owner of the FTL takes every [`MediaOp`] from `Ftl::next_op`, carries it out on whatever holds
//! the bytes, and answers each exactly once with `Ftl::media_done`. Operations may be carried out in
//! any order and at the same time, with one exception that the FTL takes care of itself: it never
//! issues an operation before one that it depends on was answered.

use crate::{Nanos, OpId};

/// One operation on the media.
#[derive(Debug, Clone)]
pub struct MediaOp {
    /// Names the operation in `Ftl::media_done`.
    pub id: OpId,
    /// When the model says that it ends. The FTL itself holds an answer that comes earlier until then.
    pub due: Nanos,
    /// What to do.
    pub kind: MediaOpKind,
}

/// What to do. Addresses and lengths are in bytes of the media.
#[derive(Debug, Clone)]
pub enum MediaOpKind {
    /// Read a range that is not aligned to anything; every byte of it has been programmed.
    Read {
        /// First byte.
        address: u64,
        /// Bytes to read.
        bytes: u32,
    },
    /// Program one whole page. It is erased, and is programmed once before the next erase.
    Program {
        /// First byte, a multiple of the page size.
        address: u64,
        /// The page size.
        bytes: u32,
        /// The page's content; `None` when the FTL keeps no data.
        data: Option<Box<[u8]>>,
    },
    /// Erase one superblock. What it held is dead; afterwards it reads as all zeroes or all ones.
    Erase {
        /// First byte, a multiple of the superblock size.
        address: u64,
        /// The superblock size.
        bytes: u64,
    },
    /// Make every program and erase that was answered before this was issued survive a loss of power.
    Sync,
}

/// The answer to one [`MediaOp`].
#[derive(Debug)]
pub enum MediaResult {
    /// The bytes read, as many as were asked for; empty when the FTL keeps no data.
    Read(Box<[u8]>),
    /// The page is programmed; its buffer comes back to be used again (or not: it is only a saving).
    Programmed(Option<Box<[u8]>>),
    /// The superblock is erased.
    Erased,
    /// The sync is done.
    Synced,
    /// The media could not do it. A transient failure should be retried before it is reported here.
    Failed(MediaError),
}

/// Why the media could not do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MediaError {
    /// The backing store reported an I/O error.
    #[error("the media reported an I/O error; look at the backing store's own log")]
    Io,
    /// The backing store has no room (a sparse file on a full disk).
    #[error("the media has no room left to write; free space where it is stored, then restart the device")]
    NoSpace,
    /// The range lies outside of the backing store.
    #[error("the range is outside of the media; the media is shorter than the geometry says")]
    OutOfRange,
}
