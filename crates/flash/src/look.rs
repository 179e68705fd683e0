//! What the bytes on the media are looked at for: headers, whether payloads fit their checksums, whether pages are
//! blank. A recording of a device needs to know which bytes those are (`osier_device::record`).

use crate::codec::{ExtentHeader, SUPERBLOCK_HEADER_BYTES};
use crate::ops::Purpose;
use crate::{Ftl, OpId, ReadId};

/// What the media were asked to read for.
#[derive(Debug, PartialEq, Eq)]
pub enum ReadFor<'a> {
    /// A read of [`Ftl::read`], which will report the media's bytes and behind them `tail`.
    Read {
        /// Which.
        id: ReadId,
        /// What follows from the page that is still open.
        tail: &'a [u8],
    },
    /// Collection, which will compare these payloads with their checksums.
    Relocation(Vec<Payload>),
}

/// A payload among bytes of the media.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload {
    /// Its first byte, counted from the first of those.
    pub at: u64,
    /// Its length.
    pub bytes: u32,
    /// What its CRC-32C should be.
    pub checksum: u32,
}

impl Ftl {
    /// What a read of the media was issued for; nothing if the operation is none, or was answered.
    #[must_use]
    pub fn read_for(&self, id: OpId) -> Option<ReadFor<'_>> {
        match self.ops.purpose(id)? {
            Purpose::Read { read, tail, .. } => Some(ReadFor::Read { id: *read, tail }),
            Purpose::Relocate { batch } => Some(ReadFor::Relocation(self.payloads_of_batch(*batch))),
            Purpose::Program { .. } | Purpose::Erase { .. } | Purpose::Sync => None,
        }
    }
}

/// Payloads shorter than this are shown as bytes: so few bytes have not every checksum.
pub const LOOKED_BYTES_MIN: u32 = 4;

/// What recovery looked at on the media, in any order and more than once. Media that have this, and anything else in
/// between, are recovered to the same map.
#[derive(Debug)]
pub enum Looked<'a> {
    /// Bytes.
    Bytes {
        /// Address of the first.
        address: u64,
        /// What they are.
        bytes: &'a [u8],
    },
    /// A payload that fits its checksum: any other bytes that fit it do the same.
    Payload {
        /// Address of its first byte.
        address: u64,
        /// Its length, at least [`LOOKED_BYTES_MIN`].
        bytes: u32,
        /// Its CRC-32C.
        checksum: u32,
    },
}

/// Why recovery wants some bytes, which says what of them it looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purview {
    /// All of them.
    All,
    /// Nothing: what they are is told otherwise.
    Nothing,
    /// Whether they begin as a header does, and then all of them.
    Search,
    /// Whether they are blank.
    Blank,
    /// The header that they begin with, and whether they are blank.
    Front,
}

impl Purview {
    /// The bytes at the front that decide.
    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        let length = match self {
            Purview::All => bytes.len(),
            Purview::Nothing => 0,
            Purview::Search => bytes.len() * usize::from(ExtentHeader::looks_like(bytes)),
            Purview::Blank => blank_evidence(bytes),
            Purview::Front => blank_evidence(bytes).max(SUPERBLOCK_HEADER_BYTES as usize),
        };
        &bytes[..length.min(bytes.len())]
    }
}

/// How many bytes at the front show whether all are blank, which is: all ones or all zeroes.
fn blank_evidence(bytes: &[u8]) -> usize {
    match bytes.first() {
        Some(first @ (0 | 0xff)) => bytes.iter().position(|byte| byte != first).map_or(bytes.len(), |other| other + 1),
        Some(_) => 1,
        None => 0,
    }
}
