//! NAND array and flash translation layer. Pure: no I/O, no clock, no threads; everything that comes
//! in has a time stamp, everything that goes out has one.
//!
//! The FTL is a log of *extents*: a unit of 1 to 65,535 logical blocks with whatever number of bytes a
//! pipeline made of it, behind a header of 64 bytes, packed without regard to pages. Where to start:
//!
//! - [`geometry`]: the array's shape, and where a byte lies on it;
//! - [`nand`]: when its operations end;
//! - [`codec`]: the headers on the media, byte by byte (in prose: `docs/formats-flash.md`);
//! - [`array`] and [`page`]: the array in full and a page-mapped FTL for terabytes, in virtual time;
//! - [`faulty`]: media in memory that fail as real ones do, for simulations and tests;
//! - [`Ftl`]: the translation layer for extents; its modules follow a record: `write`, `read`, `sync`, `gc`,
//!   `recover`; `directory` is the map.
//!
//! ```
//! use osier_flash::*;
//!
//! let geometry = Geometry {
//!     channels: 2, dies_per_channel: 1, planes_per_die: 1,
//!     blocks_per_plane: 16, pages_per_block: 64, page_bytes: 4096,
//! };
//! let timing = Timing {
//!     read_ns: 40_000, program_ns: 200_000, erase_ns: 3_000_000, channel_bytes_per_second: 800_000_000,
//! };
//! let params = FtlParams {
//!     over_provisioning_permille: 100, gc_free_superblocks_low: 3, gc_free_superblocks_min: 2,
//!     with_data: false, thin: false,
//! };
//! let mut ftl = Ftl::new(geometry, timing, params, 256)?;
//! let extent = Extent {
//!     slba: Lba(7), blocks: 1, raw_bytes: 4096, stored_bytes: 900, tag: 0, checksum: 0,
//!     sequence: 1, kind: ExtentKind::Data,
//! };
//! let append = ftl.append(Nanos(0), &extent, None).expect("the flash is idle");
//! ftl.close_page(Nanos(0));
//! let mut due = Nanos(0);
//! while let Some(op) = ftl.next_op() {
//!     // Two programs: the superblock's first page, and the one that was closed.
//!     due = due.max(op.due);
//!     ftl.media_done(Nanos(0), op.id, MediaResult::Programmed(None));
//! }
//! let mut events = Vec::new();
//! ftl.poll(due, &mut events);
//! assert_eq!(ftl.durable_through(), append);
//! # Ok::<(), FtlError>(())
//! ```
#![forbid(unsafe_code)]

pub mod array;
pub mod codec;
pub mod faulty;
pub mod geometry;
pub mod nand;

mod audit;
mod directory;
mod error;
mod ftl;
mod gc;
mod look;
mod media;
mod ops;
pub mod page;
mod planted;
mod read;
mod recover;
mod rng;
mod shadow;
mod stats;
mod stream;
mod sync;
mod units;
mod write;

pub use codec::{ExtentKind, extent_footprint};
pub use error::{Backpressure, FtlError, ReadRefused};
pub use ftl::{Extent, Ftl, FtlEvent, FtlParams, LiveExtent, Location, Piece, PieceKind};
pub use geometry::{Geometry, GeometryError};
pub use look::{LOOKED_BYTES_MIN, Looked, Payload, ReadFor};
pub use media::{MediaError, MediaOp, MediaOpKind, MediaResult};
pub use nand::{Timing, TimingError};
#[cfg(any(test, feature = "planted"))]
pub use planted::Bug;
pub use recover::{Damage, Finding, RecoveryReport};
pub use stats::FtlStats;
pub use units::{AppendId, BLOCK_BYTES, Lba, Nanos, OpId, ReadId, SyncId};

#[cfg(test)]
mod tests;
