//! A file system over a device's blocks, for one computer at a time.
//!
//! [`FileSystem`] has the operations that POSIX programs need, on anything that has the trait [`Blocks`]; how programs
//! get at it is somebody else's business (`osier_front::fuse`). Metadata are keys and values in a transactional store
//! over a region of the blocks; what is synced goes through a log before it; data lie in extents outside of both.
//!
//! Invariants:
//! 1. What the store and the log on the device say is what the file system was after some operation: operations are
//!    whole in them, and none is there without those before it.
//! 2. Data are persistent before the metadata that show them, or with them in one record.
//! 3. A block that was freed is given out only when the store or the log on the device says so.
//! 4. An operation that fails leaves nothing of itself in the metadata.
//!
//! There is no clock and no thread here; whoever calls says what time it is, and when to commit.

mod attributes;
mod backend;
mod behind;
mod blocks;
mod check;
mod data;
mod extents;
mod layout;
mod log;
mod names;
mod record;
mod space;
mod state;
mod store;
mod system;

pub use attributes::{ATTRIBUTE_NAME_MAX, ATTRIBUTE_VALUE_MAX, Changes, Presence};
pub use blocks::{BLOCK_BYTES, Blocks, MemoryBlocks};
pub use check::{Report, check};
pub use data::{Allocation, FILE_BYTES_MAX, Seek, WriteEffects};
pub use layout::{Content, Geometry, is_blank, probe};
pub use names::{Existing, LINKS_MAX, NAME_MAX, NewNode, TARGET_MAX};
pub use record::{Entry, Inode, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, S_ISGID, S_ISUID, Time};
pub use rustix::io::Errno;
pub use system::{FileSystem, MountError, ROOT, Totals};
