//! The shared persistent memory region (PMR): mapping, allocation, rings, waiting, ownership.
//!
//! Host and device domain are two processes that map one [`Region`]; nothing else is shared. Whichever of
//! them is killed, at whatever store, the rest of the region stays usable. The bytes are laid out as
//! `docs/formats-pmr.md` says.
//!
//! | module | what it guards |
//! | --- | --- |
//! | [`Region`] | a header that names version and damage; space reserved, so that no store meets a full disk |
//! | [`Snapshot`] | a look from outside: reads the file, maps and changes nothing |
//! | [`Region::end_if_cut`] | a file that is cut short under a process ends it with a word, not with a SIGBUS |
//! | [`Object`] | named pieces of the region; safe access copies or is atomic |
//! | [`ring`] | entries from one producer to one consumer, one cache line each |
//! | [`Doorbell`], [`Waiter`] | waking who waits, by polling, by the processor or by the kernel |
//! | [`tags`] | readers of a page that is being relocated try again |
//! | [`owner`] | one owner of an object at a time |
//!
//! The protocols are written over the traits of [`words`], so that a model checker runs the same code.

#[cfg(not(all(target_os = "linux", target_endian = "little", target_pointer_width = "64")))]
compile_error!("the region needs 64-bit little-endian Linux: memfd, futex, and its format in memory order");

mod copy;
mod cut;
mod doorbell;
mod error;
mod layout;
mod map;
mod object;
pub mod owner;
pub mod pass;
mod region;
pub mod ring;
mod snapshot;
mod table;
pub mod tags;
mod umwait;
mod wait;
pub mod words;

pub use doorbell::{Announced, BELLS_MAX, Bell, DOORBELL_BYTES, Doorbell};
pub use error::{PmrError, Result};
pub use layout::{
    DATA_OFFSET, ENTRY_BYTES, Entry, FORMAT_VERSION, Header, LINE_BYTES, NAME_BYTES, ObjectKind, ObjectName,
    PAGE_BYTES, REGION_BYTES_MAX, REGION_BYTES_MIN, REGION_MAGIC, Side, TABLE_ENTRIES, TABLE_OFFSET,
};
pub use map::{MapOptions, unmap_fixed};
pub use object::{Object, SharedBytes};
pub use owner::{NotOwner, OwnerWord, Ownership};
pub use region::{Backing, Region, Survival};
pub use ring::{Consumer, Cursor, Full, Producer, Ring, RingEntry, RingError, ring_bytes};
pub use snapshot::Snapshot;
pub use table::Finding;
pub use tags::{PageTag, PageTags, Relocating, Relocation, tags_bytes};
pub use wait::{BadPolicy, NoWaitpkg, WaitCounts, WaitPolicy, Waiter, set_timer_slack};
pub use words::{Lines, SharedLines, Word};
