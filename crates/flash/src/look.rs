//! What the bytes on the media are looked at for: nothing but the headers, and whether payloads fit their checksums.
//! A recording of a device needs to know which bytes those are (`osier_device::record`).

use crate::codec::{EXTENT_ALIGN, EXTENT_HEADER_BYTES, ExtentHeader, HeaderBytes, HeaderPlace, extent_footprint};
use crate::ops::Purpose;
use crate::{ExtentKind, Ftl, Geometry, OpId, ReadId};

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

/// The payloads among bytes of the media that lie there whole behind their headers, and fit their checksums.
#[must_use]
pub fn sound_payloads(geometry: &Geometry, address: u64, bytes: &[u8]) -> Vec<Payload> {
    let mut found = Vec::new();
    let align = EXTENT_ALIGN as usize;
    let mut at = (address.next_multiple_of(u64::from(EXTENT_ALIGN)) - address) as usize;
    while let Some(rest) = bytes.get(at..).filter(|rest| rest.len() > EXTENT_HEADER_BYTES as usize) {
        let Some((payload, footprint)) = sound_extent(geometry, address + at as u64, rest) else {
            at += align;
            continue;
        };
        if payload.bytes > 0 {
            found.push(Payload { at: at as u64 + payload.at, ..payload });
        }
        at += footprint;
    }
    found
}

/// The extent that `bytes` at `address` begin with, and how many of them it takes.
fn sound_extent(geometry: &Geometry, address: u64, bytes: &[u8]) -> Option<(Payload, usize)> {
    if !ExtentHeader::looks_like(bytes) {
        return None;
    }
    let superblock_bytes = geometry.superblock_bytes();
    let offset16 = (address % superblock_bytes / u64::from(EXTENT_ALIGN)) as u32;
    let place = HeaderPlace { superblock: u32::try_from(address / superblock_bytes).ok()?, offset16 };
    let (header, rest) = bytes.split_at_checked(EXTENT_HEADER_BYTES as usize)?;
    let header: HeaderBytes = header.try_into().ok()?;
    let header = ExtentHeader::decode(&header, place).ok()?;
    let payload = rest.get(..header.stored_bytes as usize)?;
    let is_sound = header.kind == ExtentKind::Data && crc32c::crc32c(payload) == header.checksum;
    let at = u64::from(EXTENT_HEADER_BYTES);
    let footprint = extent_footprint(header.stored_bytes) as usize;
    is_sound.then_some((Payload { at, bytes: header.stored_bytes, checksum: header.checksum }, footprint))
}
