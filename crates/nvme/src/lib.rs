//! NVMe: commands, queues, data pointers and a controller. Sans-IO.
//!
//! ```text
//! transport ── Command ──> Controller ─┬─ Admin::Done ────────────────> transport
//!                                      └─ Io (blocks, data, flags) ──> whoever has the blocks
//! ```
//!
//! A transport brings commands and moves data: a memory that a client shares ([`local`], by registers, doorbells and
//! PRPs), or a connection ([`tcp`]). The [`Controller`] knows what a command means and what the device says of itself;
//! it never sees a block's bytes. [`Queues`] is the part of a controller that only transports by memory have,
//! [`fabrics`] the part that only those by messages have.
//!
//! What it must never do: trust a word that came from a client (each is copied once and then checked), answer with a
//! status that the standard does not have for the case, or hold more commands than [`COMMANDS_MAX`].
//!
//! Fields are named as the NVM Express Base Specification 2.0 and the NVM Command Set Specification 1.0 name them.
//! Their text was not at hand; offsets and values were taken from the headers of Linux (`include/linux/nvme.h`) and
//! QEMU (`include/block/nvme.h`), and stock Linux is what they are tested with.
#![forbid(unsafe_code)]

mod allocation;
mod command;
mod controller;
pub mod fabrics;
mod features;
mod identify;
mod io;
pub mod local;
mod log;
mod memory;
mod planted;
mod queues;
pub mod registers;
pub mod status;
pub mod stream;
pub mod tcp;
#[cfg(test)]
mod tests;

pub use allocation::{AllocationQuery, RANGE_BLOCKS_MAX as ALLOCATION_BLOCKS_MAX, allocated};
pub use command::{
    COMMAND_BYTES, COMPLETION_BYTES, Command, Completion, DataPointer, admin, fabrics as fabrics_command, nvm,
};
pub use controller::{Admin, Controller, Held, Identity, Namespace, Reach};
pub use features::Features;
pub use identify::IDENTIFY_BYTES;
pub use io::{BlockRange, Direction, Io, RANGE_BYTES, RANGES_MAX, ranges};
pub use log::{Health, LogPage};
pub use memory::{HostMemory, OutOfMemory, PAGE_BYTES, Span, resolve};
pub use osier_device::Status;
pub use queues::{Change, Fetched, Queues, Registers};

/// Bytes of a logical block: the one LBA format.
pub const BLOCK_BYTES: u64 = 4096;
/// Most bytes of one command's data, as a power of two of pages (MDTS).
pub const TRANSFER_PAGES_LOG2: u8 = 8;
/// The same in bytes.
pub const TRANSFER_BYTES_MAX: u64 = PAGE_BYTES << TRANSFER_PAGES_LOG2;
/// Most queues for I/O of one controller.
pub const IO_QUEUES_MAX: u16 = 64;
/// Most entries of a queue (CAP.MQES, which counts from zero, is one less).
pub const QUEUE_ENTRIES_MAX: u32 = 1024;
/// Most commands of one controller that have not ended.
pub const COMMANDS_MAX: usize = 4096;
