//! Traces: what a program or a machine once asked for, from the formats that others write.
//!
//! - [`TraceReader`] reads any [`Format`] from the bytes that the caller gives, compressed or not ([`unpack`]);
//! - [`Remapped`] brings addresses into a device's capacity, [`Paced`] scales time or replays in a closed loop;
//! - [`Summary`] says what is in a trace, [`TraceWriter`] writes one.
//!
//! Invariants:
//! - nothing here opens a file or reads a clock; bytes come from the caller's reader;
//! - a line that cannot be understood is counted and shown, or in strict mode ends the reading; it is never guessed at;
//! - a trace of which more than [`BAD_PERMILLE_MAX`] of the lines are bad is an error, not a result;
//! - requests come in the order of their times, which begin at zero.
//!
//! The formats are described in `docs/workloads.md`.

mod blkparse;
mod counts;
mod detect;
mod fields;
mod input;
mod memory;
mod mqsim;
mod msr;
mod oracle_general;
mod pace;
mod pages;
mod reader;
mod remap;
mod summary;
mod unpack;
mod writer;

pub use blkparse::BlkEvent;
pub use counts::{BAD_PERMILLE_MAX, BadLine, Counts, Fault, FaultKind, SHOWN_MAX, TraceError};
pub use detect::detect;
pub use input::LINE_BYTES_MAX;
pub use memory::LINE_BYTES;
pub use pace::{Paced, Speed};
pub use pages::{PAGES_MAX, PageNumbers};
pub use reader::{Format, ReadOptions, SORT_WINDOW, TraceReader};
pub use remap::{Remap, RemapError, Remapped};
pub use summary::{PAGE_BYTES, Summary};
pub use unpack::{Compression, unpack};
pub use writer::{Target, TraceWriter, WriteError};
