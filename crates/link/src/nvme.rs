//! What NVMe commands are made of on the link (NVMe Base Specification 2.0, to which sections refer, and
//! NVMe over PCIe Transport Specification).
//!
//! Each function gives the transactions in order. Who wants bytes gives them to [`crate::Link::pipelined`], who wants
//! time gives each to [`crate::Link::transfer`] when the one before has got far enough.

use crate::tlp::PAGE_BYTES;
use crate::traffic::Kind;
use crate::transaction::Transaction;

/// A submission queue entry (section 3.3.3.1).
pub const COMMAND_BYTES: u32 = 64;
/// A completion queue entry (section 3.3.3.2).
pub const COMPLETION_BYTES: u32 = 16;
/// An entry of a PRP list (section 4.1.1).
const PRP_BYTES: u32 = 8;
/// An SGL descriptor (section 4.1.2).
const SGL_DESCRIPTOR_BYTES: u32 = 16;
/// Entries of a page of a PRP list. In a page that is not the last, the last entry is the address of the next page.
const PRP_LIST_ENTRIES: u32 = PAGE_BYTES / PRP_BYTES;

/// A pair of queues in the host's memory, as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// Address of the submission queue; its tail doorbell and then its completion queue's head doorbell lie at
    /// `doorbells`.
    pub submissions: u64,
    /// Address of the completion queue.
    pub completions: u64,
    /// Address of both doorbells in the device's memory space.
    pub doorbells: u64,
    /// Entries of each queue, at least 1.
    pub entries: u32,
}

impl QueuePair {
    /// The host rings the doorbell, the device fetches `count` entries from slot `first` on in as few reads as the
    /// ring's end allows. Commands that carry data in the slots behind them are more entries to fetch.
    pub fn submit(&self, first: u32, count: u32) -> impl Iterator<Item = Transaction> + use<> {
        let (queue, first) = (*self, first % self.entries.max(1));
        let count = count.min(queue.entries);
        let to_end = count.min(queue.entries - first);
        let fetch = move |slot: u32, count: u32| {
            let address = queue.submissions.wrapping_add(u64::from(slot) * u64::from(COMMAND_BYTES));
            (count > 0).then(|| Transaction::dma_read(Kind::CommandFetch, address, count * COMMAND_BYTES))
        };
        let fetches = fetch(first, to_end).into_iter().chain(fetch(0, count - to_end));
        std::iter::once(Transaction::doorbell(self.doorbells)).chain(fetches)
    }

    /// The device fetches the entry of one slot, which is below `entries`.
    #[inline]
    #[must_use]
    pub fn fetch(&self, slot: u32) -> Transaction {
        let offset = u64::from(slot) * u64::from(COMMAND_BYTES);
        Transaction::dma_read(Kind::CommandFetch, self.submissions.wrapping_add(offset), COMMAND_BYTES)
    }

    /// The device writes a completion into one slot, which is below `entries`.
    #[inline]
    #[must_use]
    pub fn completion(&self, slot: u32) -> Transaction {
        let offset = u64::from(slot) * u64::from(COMPLETION_BYTES);
        Transaction::dma_write(Kind::Completion, self.completions.wrapping_add(offset), COMPLETION_BYTES)
    }

    /// The device writes a completion into slot `slot`, interrupts the host if asked, and the host frees the slot.
    pub fn complete(&self, slot: u32, interrupt: bool) -> impl Iterator<Item = Transaction> + use<> {
        let entry = self.completion(slot % self.entries.max(1));
        let head = Transaction::doorbell(self.doorbells.wrapping_add(4));
        std::iter::once(entry).chain(interrupt.then(Transaction::interrupt)).chain(std::iter::once(head))
    }

    /// A command with nothing but itself: submission and completion, with an interrupt, in slot `slot` of each queue.
    pub fn command(&self, slot: u32) -> impl Iterator<Item = Transaction> + use<> {
        self.submit(slot, 1).chain(self.complete(slot, true))
    }
}

/// Which way a command's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// The device reads it, as for writes and puts.
    HostToController,
    /// The device writes it, as for reads and gets.
    ControllerToHost,
}

impl Transfer {
    /// What moves data that lies in one piece.
    #[inline]
    #[must_use]
    pub const fn data(self, address: u64, bytes: u32) -> Transaction {
        match self {
            Transfer::HostToController => Transaction::dma_read(Kind::Data, address, bytes),
            Transfer::ControllerToHost => Transaction::dma_write(Kind::Data, address, bytes),
        }
    }
}

/// How much of the pages that PRPs name is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrpUnit {
    /// All of each page, whatever the command's length: what key-value devices were measured to do
    /// (BandSlim, Figure 2).
    Page,
    /// The bytes of the command.
    Exact,
}

/// Data that is named by PRPs: `bytes` from `address` on, which may lie within a page. More than two pages take a
/// list, which the device reads at `list` (section 4.1.1), the start of a page.
pub fn prp(
    transfer: Transfer,
    unit: PrpUnit,
    address: u64,
    bytes: u32,
    list: u64,
) -> impl Iterator<Item = Transaction> {
    let page = u64::from(PAGE_BYTES);
    let offset = address % page;
    let pages = if bytes == 0 { 0 } else { (offset + u64::from(bytes)).div_ceil(page) };
    let data = (0..pages).map(move |index| {
        let base = (address - offset).wrapping_add(index * page);
        let (skip, end) = match unit {
            PrpUnit::Page => (0, page),
            PrpUnit::Exact => {
                let skip = if index == 0 { offset } else { 0 };
                (skip, (offset + u64::from(bytes) - index * page).min(page))
            }
        };
        transfer.data(base.wrapping_add(skip), u32::try_from(end - skip).unwrap_or(PAGE_BYTES))
    });
    prp_lists(pages, list).chain(data)
}

/// The reads of a PRP list for so many pages, of which the command itself names the first.
fn prp_lists(pages: u64, list: u64) -> impl Iterator<Item = Transaction> {
    let mut left = if pages > 2 { pages - 1 } else { 0 };
    let mut address = list;
    std::iter::from_fn(move || {
        if left == 0 {
            return None;
        }
        let full = u64::from(PRP_LIST_ENTRIES);
        let (entries, pages) = if left > full { (full, full - 1) } else { (left, left) };
        left -= pages;
        let bytes = u32::try_from(entries).unwrap_or(PRP_LIST_ENTRIES) * PRP_BYTES;
        let read = Transaction::dma_read(Kind::PrpList, address, bytes);
        address = address.wrapping_add(u64::from(PAGE_BYTES));
        Some(read)
    })
}

/// Data that is named by an SGL, to the byte: `blocks` are addresses and lengths. One block is named by the command
/// itself; more take a segment, which the device reads at `segment` (section 4.1.2).
pub fn sgl<'a>(
    transfer: Transfer,
    blocks: &'a [(u64, u32)],
    segment: u64,
) -> impl Iterator<Item = Transaction> + use<'a> {
    let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
    let bytes = count.saturating_mul(SGL_DESCRIPTOR_BYTES);
    let descriptors = (count > 1).then(|| Transaction::dma_read(Kind::SglSegment, segment, bytes));
    descriptors.into_iter().chain(blocks.iter().map(move |(address, bytes)| transfer.data(*address, *bytes)))
}

/// Data within commands: so many bytes in the first, and so many in each that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piggyback {
    /// Bytes that the command itself has room for.
    pub first_bytes: u32,
    /// Bytes of each command that only carries more of it; at least 1.
    pub next_bytes: u32,
}

impl Piggyback {
    /// BandSlim: 35 bytes of fields that a put does not use, and 56 of each transfer command.
    pub const BANDSLIM: Piggyback = Piggyback { first_bytes: 35, next_bytes: 56 };

    /// Commands that carry `bytes`, at least one.
    #[must_use]
    pub const fn commands(self, bytes: u32) -> u32 {
        1 + bytes.saturating_sub(self.first_bytes).div_ceil(self.next_bytes)
    }
}
