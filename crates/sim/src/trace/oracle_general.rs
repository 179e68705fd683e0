//! libCacheSim's binary format `oracleGeneral` (`oracleGeneralBin.h` in 1a1a11a/libCacheSim): records of 24 bytes,
//! packed and little-endian: time in seconds (u32), object (u64), size in bytes (u32), and the number of the next
//! request for the object, counted from 1 (i64; −1, or the largest number, for never).
//!
//! There is no operation in it, so every request is a read. The next use is not handed on: whoever wants Belady's
//! optimum computes it from the requests, which is also right when addresses were mapped to others.

use super::counts::Fault;
use super::fields::nanos;
use super::pages::PageNumbers;
use super::reader::Parsed;
use crate::{Nanos, Op, Request};

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 24;
/// The unit of the time.
pub(super) const SECOND_NS: u64 = 1_000_000_000;
/// How many records have to make sense for a file to be taken for one of these.
const PROBED: usize = 64;

/// A record as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) seconds: u32,
    pub(super) object: u64,
    pub(super) bytes: u32,
    pub(super) next: i64,
}

impl Record {
    pub(super) fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Record {
        // The ranges are constant, so these are plain loads.
        let four = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
        let eight =
            |at: usize| u64::from(u32::from_le_bytes(four(at))) | u64::from(u32::from_le_bytes(four(at + 4))) << 32;
        Record {
            seconds: u32::from_le_bytes(four(0)),
            object: eight(4),
            bytes: u32::from_le_bytes(four(12)),
            next: eight(16).cast_signed(),
        }
    }

    pub(super) fn to_bytes(self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..4].copy_from_slice(&self.seconds.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.object.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[16..].copy_from_slice(&self.next.to_le_bytes());
        bytes
    }
}

/// What an object's number says about where it is.
#[derive(Debug)]
pub(super) struct Objects {
    /// Bytes from one object to the next.
    pub(super) bytes: u64,
    /// Numbers by first use, for traces whose objects are hashes.
    pub(super) numbers: Option<PageNumbers>,
}

#[inline]
pub(super) fn parse(bytes: &[u8], objects: &mut Objects) -> Result<Parsed, Fault> {
    let bytes = <&[u8; RECORD_BYTES]>::try_from(bytes).map_err(|_| Fault::Truncated)?;
    let record = Record::from_bytes(bytes);
    let number = match &mut objects.numbers {
        None => record.object,
        Some(numbers) => numbers.number(record.object).ok_or(Fault::TooMany("objects"))?.0,
    };
    let address = number.checked_mul(objects.bytes).ok_or(Fault::ObjectTooLarge)?;
    let at = Nanos(nanos(record.seconds.into(), SECOND_NS)?);
    Ok(Parsed::One(Request { at, address, bytes: record.bytes, tenant: 0, op: Op::Read }))
}

/// Whether bytes look like the beginning of such a file: times that do not go back, and next uses that are in the
/// future. Random bytes fail the first of these with the second record, half the time, and the other with each.
pub(super) fn is_likely(bytes: &[u8]) -> bool {
    let mut last = 0;
    let mut probed = 0;
    for (index, chunk) in bytes.chunks_exact(RECORD_BYTES).take(PROBED).enumerate() {
        let Ok(chunk) = <&[u8; RECORD_BYTES]>::try_from(chunk) else { return false };
        let record = Record::from_bytes(chunk);
        let number = index as i64 + 1;
        if record.seconds < last || !(record.next == -1 || record.next > number) {
            return false;
        }
        (last, probed) = (record.seconds, probed + 1);
    }
    probed > 0
}
