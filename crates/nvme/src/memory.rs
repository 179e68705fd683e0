//! Where a command's data lie: PRP and SGL, resolved to spans of the client's memory.

use osier_device::Status;

use crate::command::DataPointer;
use crate::status::{
    DATA_TRANSFER_ERROR, INVALID_SGL_COUNT, INVALID_SGL_SEGMENT, PRP_OFFSET_INVALID, SGL_LENGTH_INVALID,
    SGL_TYPE_INVALID,
};

/// Bytes of a memory page: CC.MPS is zero.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of an entry of a PRP list.
const PRP_BYTES: u64 = 8;
/// Bytes of an SGL descriptor.
const DESCRIPTOR_BYTES: u64 = 16;
/// Most descriptors of one SGL, those of its segments together.
const DESCRIPTORS_MAX: usize = 1024;

/// An address that the client's memory does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client's memory has no such address")]
pub struct OutOfMemory;

/// A client's memory. What is read may change at any time; what says where data lie is read once.
pub trait HostMemory {
    /// Copies bytes out.
    ///
    /// # Errors
    /// A range that the memory does not have.
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfMemory>;
    /// Copies bytes in.
    ///
    /// # Errors
    /// A range that the memory does not have.
    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfMemory>;
    /// Stores an aligned word of four bytes at once, behind all that was written before: the one that says that the
    /// rest is there.
    ///
    /// # Errors
    /// A word that the memory does not have.
    fn publish(&self, address: u64, word: [u8; 4]) -> Result<(), OutOfMemory>;
}

/// Consecutive bytes of a client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first byte.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

/// Adds the spans of `bytes` bytes of data to `spans`, in order.
///
/// # Errors
/// The status that the command ends with.
pub fn resolve(
    pointer: &DataPointer,
    bytes: u64,
    memory: &impl HostMemory,
    spans: &mut Vec<Span>,
) -> Result<(), Status> {
    match pointer {
        DataPointer::Prp(first, second) => prp(*first, *second, bytes, memory, spans),
        DataPointer::Sgl(descriptor) => sgl(descriptor, bytes, memory, spans),
    }
}

/// Appends a span, or lengthens the last one where they touch.
fn push(spans: &mut Vec<Span>, address: u64, bytes: u64) {
    match spans.last_mut() {
        Some(last) if last.address.checked_add(last.bytes) == Some(address) => last.bytes += bytes,
        _ if bytes == 0 => {}
        _ => spans.push(Span { address, bytes }),
    }
}

/// Physical Region Pages ("Physical Region Page Entry and List").
fn prp(first: u64, second: u64, bytes: u64, memory: &impl HostMemory, spans: &mut Vec<Span>) -> Result<(), Status> {
    if !first.is_multiple_of(4) {
        return Err(PRP_OFFSET_INVALID);
    }
    let head = bytes.min(PAGE_BYTES - first % PAGE_BYTES);
    push(spans, first, head);
    let mut left = bytes - head;
    if left == 0 {
        return Ok(());
    }
    if left <= PAGE_BYTES {
        return page(second, left, spans);
    }
    // Each list but the last ends with a pointer to the next, so this ends with the data.
    let mut list = second;
    while left > 0 {
        if !list.is_multiple_of(PRP_BYTES) {
            return Err(PRP_OFFSET_INVALID);
        }
        let entries = (PAGE_BYTES - list % PAGE_BYTES) / PRP_BYTES;
        let wanted = left.div_ceil(PAGE_BYTES);
        let pages = if wanted > entries { entries - 1 } else { wanted };
        for index in 0..pages {
            let length = left.min(PAGE_BYTES);
            page(entry(memory, list, index)?, length, spans)?;
            left -= length;
        }
        if left > 0 {
            let next = entry(memory, list, pages)?;
            // A list whose one entry points on would never end.
            if pages == 0 && !next.is_multiple_of(PAGE_BYTES) {
                return Err(PRP_OFFSET_INVALID);
            }
            list = next;
        }
    }
    Ok(())
}

fn entry(memory: &impl HostMemory, list: u64, index: u64) -> Result<u64, Status> {
    let mut entry = [0; PRP_BYTES as usize];
    let at = list.checked_add(index * PRP_BYTES).ok_or(DATA_TRANSFER_ERROR)?;
    memory.read(at, &mut entry).map_err(|_| DATA_TRANSFER_ERROR)?;
    Ok(u64::from_le_bytes(entry))
}

/// A page of data that is not the first: it begins where a page does.
fn page(address: u64, bytes: u64, spans: &mut Vec<Span>) -> Result<(), Status> {
    if !address.is_multiple_of(PAGE_BYTES) {
        return Err(PRP_OFFSET_INVALID);
    }
    push(spans, address, bytes);
    Ok(())
}

/// What a descriptor is ("SGL Descriptor"): bits 7:4 of its last byte. Bits 3:0 say how its address counts; by
/// address is all that there is in memory.
enum Descriptor {
    /// Data Block.
    Data(Span),
    /// Segment, or Last Segment.
    Segment { at: Span, is_last: bool },
}

fn descriptor(bytes: &[u8; DESCRIPTOR_BYTES as usize]) -> Result<Descriptor, Status> {
    let address = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"));
    let length = u64::from(u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes")));
    let span = Span { address, bytes: length };
    match bytes[15] {
        0x00 => Ok(Descriptor::Data(span)),
        0x20 => Ok(Descriptor::Segment { at: span, is_last: false }),
        0x30 => Ok(Descriptor::Segment { at: span, is_last: true }),
        _ => Err(SGL_TYPE_INVALID),
    }
}

/// Scatter Gather List: the command has one descriptor, which is the data or the first segment.
fn sgl(first: &[u8; 16], bytes: u64, memory: &impl HostMemory, spans: &mut Vec<Span>) -> Result<(), Status> {
    let mut left = bytes;
    let mut take = |span: Span, spans: &mut Vec<Span>| {
        left = left.checked_sub(span.bytes).ok_or(SGL_LENGTH_INVALID)?;
        push(spans, span.address, span.bytes);
        Ok(left)
    };
    let mut segment = match descriptor(first)? {
        Descriptor::Data(span) => {
            return if take(span, spans)? == 0 { Ok(()) } else { Err(SGL_LENGTH_INVALID) };
        }
        Descriptor::Segment { at, is_last } => Some((at, is_last)),
    };
    let (mut seen, mut rest) = (0, bytes);
    while let Some((at, is_last)) = segment.take() {
        if at.bytes == 0 || !at.bytes.is_multiple_of(DESCRIPTOR_BYTES) {
            return Err(INVALID_SGL_SEGMENT);
        }
        let count = at.bytes / DESCRIPTOR_BYTES;
        for index in 0..count {
            seen += 1;
            if seen > DESCRIPTORS_MAX {
                return Err(INVALID_SGL_COUNT);
            }
            let mut raw = [0; DESCRIPTOR_BYTES as usize];
            let from = at.address.checked_add(index * DESCRIPTOR_BYTES).ok_or(DATA_TRANSFER_ERROR)?;
            memory.read(from, &mut raw).map_err(|_| DATA_TRANSFER_ERROR)?;
            match descriptor(&raw)? {
                Descriptor::Data(span) => rest = take(span, spans)?,
                // Only the last descriptor of a segment that is not the last points on.
                Descriptor::Segment { at, is_last: ends } if !is_last && index + 1 == count => {
                    segment = Some((at, ends));
                }
                Descriptor::Segment { .. } => return Err(INVALID_SGL_SEGMENT),
            }
        }
    }
    if rest == 0 { Ok(()) } else { Err(SGL_LENGTH_INVALID) }
}
