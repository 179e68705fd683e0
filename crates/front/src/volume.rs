//! What a front end needs of a namespace: whole blocks of 4096 bytes, many requests at a time, one thread.

use std::os::fd::BorrowedFd;

/// Bytes of a block.
pub const BLOCK_BYTES: usize = 4096;
/// Most blocks of one deallocation, of one write of zeroes and of one question for extents: what an NVMe Write Zeroes
/// can name (16 bits, NVM Command Set 1.0, Write Zeroes, CDW12).
pub const RANGE_BLOCKS_MAX: u64 = 1 << 16;

/// A namespace as front ends use it. One connection has one, and drives it from one thread.
///
/// A flush covers what has ended before it began, on whichever volume of the same namespace that was.
pub trait Volume: Send {
    /// Blocks of the namespace. Does not change while the volume is open.
    fn blocks(&self) -> u64;
    /// Whether every write is refused.
    fn is_read_only(&self) -> bool;
    /// What clients may be told of it. Does not change while the volume is open.
    fn about(&self) -> About;
    /// Most blocks of one read or write; at least one. The other operations name up to [`RANGE_BLOCKS_MAX`].
    fn transfer_blocks_max(&self) -> u32;
    /// Begins a request.
    ///
    /// # Errors
    /// Gives the operation back when there is no room until some other has ended; so there is always room for one.
    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation>;
    /// Appends what has ended, in any order. Never waits.
    fn reap(&mut self, ended: &mut Vec<Ended>);
    /// Readable when something has ended since [`Volume::arm`].
    fn event(&self) -> BorrowedFd<'_>;
    /// To be called before waiting on [`Volume::event`]: false when something has ended already, so that it would be
    /// wrong to wait.
    fn arm(&mut self) -> bool;
}

/// What a namespace is, beside its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct About {
    /// What it is of, in a few words.
    pub model: String,
    /// Its globally unique identifier.
    pub nguid: [u8; 16],
    /// What has ended may be lost with the power before a flush.
    pub has_volatile_cache: bool,
}

/// What a volume is asked for. Buffers hold whole blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    /// Fills the buffer.
    Read {
        /// The first block.
        block: u64,
        /// Of as many blocks as are to be read; its bytes are of no meaning.
        buffer: Vec<u8>,
    },
    /// Writes the buffer.
    Write {
        /// The first block.
        block: u64,
        /// What is written.
        data: Vec<u8>,
        /// Whether it ends only when it is persistent.
        fua: bool,
    },
    /// Ends when everything is persistent that had ended before.
    Flush,
    /// The blocks are needed no longer. They read as zeroes, or as they did before.
    Deallocate {
        /// The first block.
        block: u64,
        /// How many.
        blocks: u64,
    },
    /// The blocks read as zeroes.
    WriteZeroes {
        /// The first block.
        block: u64,
        /// How many.
        blocks: u64,
        /// Whether they may take no space afterwards.
        may_deallocate: bool,
        /// Whether it ends only when it is persistent.
        fua: bool,
    },
    /// Which blocks take space.
    Allocation {
        /// The first block.
        block: u64,
        /// How many.
        blocks: u64,
    },
}

/// A request has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    /// As given to [`Volume::submit`].
    pub token: u64,
    /// How.
    pub outcome: Result<Outcome, VolumeError>,
}

/// What a request that succeeded gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// A flush, a deallocation or a write of zeroes is done.
    Done,
    /// A read or a write is done; its buffer, to be used again.
    Buffer {
        /// All of it filled if it was a read.
        buffer: Vec<u8>,
        /// Of a read: whether none of its blocks takes space. The buffer is filled with zeroes all the same.
        is_hole: bool,
    },
    /// Consecutive extents, the first of which begins with the first block asked for; at least one. They need not
    /// reach the last one.
    Extents(Vec<Extent>),
}

/// Consecutive blocks of which all or none take space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// How many; never zero.
    pub blocks: u64,
    /// They take no space, and read as zeroes.
    pub is_hole: bool,
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VolumeError {
    /// The media gave other bytes than were written, or none.
    Media,
    /// A block that does not exist.
    OutOfRange,
    /// The device has no room for what was written.
    CapacityExceeded,
    /// The namespace may not be written.
    WriteProtected,
    /// The device is ending or gone.
    ShutDown,
}

/// A namespace that can be opened, once for each connection.
pub trait Export: Send + Sync {
    /// What clients call it.
    fn name(&self) -> &str;
    /// A volume of its own for a connection.
    ///
    /// # Errors
    /// What a person at the client should read.
    fn open(&self) -> Result<Box<dyn Volume>, String>;
    /// As [`Export::open`], for a client that has come already: one that is away for a moment is waited for.
    ///
    /// # Errors
    /// As there.
    fn open_for_client(&self) -> Result<Box<dyn Volume>, String> {
        self.open()
    }
}
