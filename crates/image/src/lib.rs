//! A device image on disk: superblock, owner lock and media back ends.
//!
//! An image is a directory that holds everything a device keeps between two starts: what it is
//! (`superblock`, `profile.toml`), its flash array (`media`), its persistent memory region (`pmr`), its
//! keys (`keys/`), and who is using it (`lock`). This crate makes, opens, checks and removes images; it
//! knows nothing of what the bytes in the media and in the region mean.
//!
//! - [`Image::create`] makes one whole or not at all; [`Image::open`] takes the owner lock.
//! - [`inspect`] and [`check`] look without taking it; [`remove`] refuses what is in use or is not an image.
//! - [`Media`] is the interface to the bytes of the flash array; [`SyncWorker`] makes them durable off the
//!   caller's path.

#![forbid(unsafe_code)]

mod check;
mod clock;
mod create;
mod error;
mod image;
mod layout;
mod leftover;
mod lock;
mod media;
mod remove;
mod superblock;
mod sync_worker;
mod uuid;

#[cfg(test)]
#[path = "image_tests.rs"]
mod tests;

pub use check::{Area, CheckReport, Finding, Severity, check, check_with};
pub use clock::utc_text;
pub use create::{CreateOptions, MediaSpec, ProfileText};
pub use error::{ImageError, is_no_space};
pub use image::{Entry, Image, Inspection, ProfileCheck, inspect, list};
pub use layout::{Layout, check_name};
pub use lock::{Holder, LockState, OwnerLock, OwnerRecord, probe};
pub use media::{
    BlockMedia, FileMedia, Media, MediaError, MediaFault, MediaOperation, MediaView, MemoryMedia, NoneMedia,
};
pub use remove::remove;
pub use superblock::{CopyFault, FORMAT_VERSION, Incarnation, MediaKind, ReadFault, Superblock};
pub use sync_worker::{SyncDone, SyncQueueFull, SyncTicket, SyncWorker, TICKETS_MAX};
pub use uuid::Uuid;

/// The size of a logical block in bytes; every size of an image is a multiple of it.
pub const BLOCK_BYTES: u64 = 4096;
