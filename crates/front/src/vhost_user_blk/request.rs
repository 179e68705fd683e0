//! A chain of descriptors as a request (Virtual I/O Device 1.2, 2.7 and 5.2.6).
//!
//! A guest's memory may change at any time. Invariants:
//! - each descriptor, header and list of ranges is copied once, and what is checked is the copy;
//! - no guest makes a chain without an end, nor more of what is kept than [`REQUEST_BYTES_MAX`] and [`RANGES_MAX`] say;
//! - what cannot be reported is not done: a request without a byte for its status has no effect.

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_DISCARD, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_GET_ID,
    VIRTIO_BLK_T_IN, VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_queue::desc::split::Descriptor;
use vm_memory::{ByteValued, Bytes, GuestAddress, GuestMemoryMmap};

use super::config::{BLOCK_SECTORS, RANGE_SECTORS_MAX, RANGES_MAX, REQUEST_BYTES_MAX, SECTOR_BYTES, Shape};

/// A guest's memory.
pub type Memory = GuestMemoryMmap<()>;

/// Bytes of a descriptor (2.7.5).
const DESCRIPTOR_BYTES: usize = size_of::<Descriptor>();
/// Descriptors of an indirect table: as many as the largest queue of a front end has.
const INDIRECT_MAX: usize = 1024;
/// Bytes of a request's header: type, reserved, sector (5.2.6).
const HEADER_BYTES: usize = 16;
/// Bytes of a range of a discard or of a write of zeroes: sector, number of sectors, flags (5.2.6).
const RANGE_BYTES: usize = 16;

const _: () = assert!(DESCRIPTOR_BYTES == 16);

/// Why a chain is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// A descriptor beyond the table.
    Index,
    /// More descriptors than there are: it has no end.
    Endless,
    /// A descriptor or a buffer that is not in the guest's memory.
    Address,
    /// An indirect table of no or too many descriptors, or within another (2.7.5.3).
    Indirect,
    /// A buffer for the device to read behind one to write (2.7.4.2).
    Order,
}

/// Bytes of a guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    pub address: u64,
    pub bytes: u32,
}

/// Bytes of segments.
pub fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.bytes)).sum()
}

/// A chain: what the device may read, and then what it may write. No segment is empty.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chain {
    pub readable: Vec<Segment>,
    pub writable: Vec<Segment>,
}

impl Chain {
    /// The chain that begins with a descriptor of a table of `size`.
    pub fn walk(memory: &Memory, table: u64, size: u16, head: u16) -> Result<Chain, Malformed> {
        let mut chain = Chain::default();
        let mut index = head;
        for _ in 0..size {
            if index >= size {
                return Err(Malformed::Index);
            }
            let at = table.checked_add(u64::from(index) * DESCRIPTOR_BYTES as u64).ok_or(Malformed::Address)?;
            let descriptor: Descriptor = memory.read_obj(GuestAddress(at)).map_err(|_| Malformed::Address)?;
            if descriptor.refers_to_indirect_table() {
                if descriptor.has_next() {
                    return Err(Malformed::Indirect);
                }
                chain.walk_indirect(memory, descriptor)?;
                return Ok(chain);
            }
            chain.push(descriptor)?;
            if !descriptor.has_next() {
                return Ok(chain);
            }
            index = descriptor.next();
        }
        Err(Malformed::Endless)
    }

    fn walk_indirect(&mut self, memory: &Memory, of: Descriptor) -> Result<(), Malformed> {
        let bytes = of.len() as usize;
        let size = bytes / DESCRIPTOR_BYTES;
        if !bytes.is_multiple_of(DESCRIPTOR_BYTES) || size == 0 || size > INDIRECT_MAX {
            return Err(Malformed::Indirect);
        }
        let mut table = vec![Descriptor::default(); size];
        for (place, descriptor) in table.iter_mut().enumerate() {
            let at = of.addr().0.checked_add((place * DESCRIPTOR_BYTES) as u64).ok_or(Malformed::Address)?;
            memory.read_slice(descriptor.as_mut_slice(), GuestAddress(at)).map_err(|_| Malformed::Address)?;
        }
        let mut index = 0;
        for _ in 0..size {
            let descriptor = *table.get(index).ok_or(Malformed::Index)?;
            if descriptor.refers_to_indirect_table() {
                return Err(Malformed::Indirect);
            }
            self.push(descriptor)?;
            if !descriptor.has_next() {
                return Ok(());
            }
            index = usize::from(descriptor.next());
        }
        Err(Malformed::Endless)
    }

    fn push(&mut self, descriptor: Descriptor) -> Result<(), Malformed> {
        let segment = Segment { address: descriptor.addr().0, bytes: descriptor.len() };
        segment.address.checked_add(u64::from(segment.bytes)).ok_or(Malformed::Address)?;
        if !descriptor.is_write_only() && !self.writable.is_empty() {
            return Err(Malformed::Order);
        }
        if segment.bytes > 0 {
            if descriptor.is_write_only() { &mut self.writable } else { &mut self.readable }.push(segment);
        }
        Ok(())
    }
}

/// Blocks that a discard or a write of zeroes names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub block: u64,
    /// Not zero.
    pub blocks: u64,
    /// They may take no space afterwards.
    pub may_deallocate: bool,
}

/// What a driver asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    Read {
        block: u64,
    },
    Write {
        block: u64,
    },
    Flush,
    Discard(Vec<Range>),
    WriteZeroes(Vec<Range>),
    Id,
    /// Nothing is done, and the status is this.
    Refused(u8),
}

/// A request.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    pub ask: Ask,
    /// What is written, or where what is read goes: whole blocks of both.
    pub data: Vec<Segment>,
    /// Where the status goes, if there is room for one.
    pub status: Option<u64>,
}

/// A refusal for a reason that the standard has no status of its own for.
const IOERR: Ask = Ask::Refused(VIRTIO_BLK_S_IOERR as u8);
/// The device does not do that.
const UNSUPP: Ask = Ask::Refused(VIRTIO_BLK_S_UNSUPP as u8);

impl Request {
    /// What a chain asks of a disk.
    pub fn parse(memory: &Memory, mut chain: Chain, shape: &Shape) -> Request {
        let Some(status) = take_last_byte(&mut chain.writable) else {
            return Request { ask: IOERR, data: Vec::new(), status: None };
        };
        let Some(header) = take_front::<HEADER_BYTES>(memory, &mut chain.readable) else {
            return Request { ask: IOERR, data: chain.writable, status: Some(status) };
        };
        let kind = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        let sector = u64_of(&header[8..]);
        let ask = match kind {
            VIRTIO_BLK_T_IN => match blocks_of(shape, sector, &chain.writable) {
                Some(block) if chain.readable.is_empty() => Ask::Read { block },
                _ => IOERR,
            },
            VIRTIO_BLK_T_OUT => match blocks_of(shape, sector, &chain.readable) {
                Some(block) if !shape.is_read_only => Ask::Write { block },
                _ => IOERR,
            },
            VIRTIO_BLK_T_FLUSH => Ask::Flush,
            VIRTIO_BLK_T_GET_ID => Ask::Id,
            VIRTIO_BLK_T_DISCARD | VIRTIO_BLK_T_WRITE_ZEROES if shape.is_read_only => IOERR,
            VIRTIO_BLK_T_DISCARD => match ranges(memory, &chain.readable, shape, 0) {
                Ok(ranges) => Ask::Discard(ranges),
                Err(refusal) => refusal,
            },
            VIRTIO_BLK_T_WRITE_ZEROES => {
                match ranges(memory, &chain.readable, shape, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP) {
                    Ok(ranges) => Ask::WriteZeroes(ranges),
                    Err(refusal) => refusal,
                }
            }
            _ => UNSUPP,
        };
        let data = if matches!(ask, Ask::Write { .. }) { chain.readable } else { chain.writable };
        Request { ask, data, status: Some(status) }
    }
}

/// The first block, if it and all the others are whole and the disk's.
fn blocks_of(shape: &Shape, sector: u64, data: &[Segment]) -> Option<u64> {
    let bytes = bytes_of(data);
    let sectors = bytes / SECTOR_BYTES;
    let is_whole = bytes.is_multiple_of(BLOCK_SECTORS * SECTOR_BYTES) && sector.is_multiple_of(BLOCK_SECTORS);
    let is_there = sector.checked_add(sectors)? <= shape.blocks * BLOCK_SECTORS;
    (is_whole && is_there && bytes <= REQUEST_BYTES_MAX).then_some(sector / BLOCK_SECTORS)
}

/// The ranges of a discard or of a write of zeroes, whose flags may be `allowed`.
fn ranges(memory: &Memory, data: &[Segment], shape: &Shape, allowed: u32) -> Result<Vec<Range>, Ask> {
    let bytes = bytes_of(data);
    let is_list = bytes > 0 && bytes.is_multiple_of(RANGE_BYTES as u64);
    if !is_list || bytes > u64::from(RANGES_MAX) * RANGE_BYTES as u64 {
        return Err(IOERR);
    }
    let mut list = vec![0; bytes as usize];
    if !gather(memory, data, &mut list) {
        return Err(IOERR);
    }
    let mut ranges = Vec::with_capacity(list.len() / RANGE_BYTES);
    for range in list.chunks_exact(RANGE_BYTES) {
        let sector = u64_of(range);
        let sectors = u32::from_le_bytes([range[8], range[9], range[10], range[11]]);
        let flags = u32::from_le_bytes([range[12], range[13], range[14], range[15]]);
        // A flag that is not known is to be answered so, before anything is done (5.2.6.2).
        if flags & !allowed != 0 {
            return Err(UNSUPP);
        }
        let end = sector.checked_add(u64::from(sectors)).ok_or(IOERR)?;
        let is_whole = sector.is_multiple_of(BLOCK_SECTORS) && u64::from(sectors).is_multiple_of(BLOCK_SECTORS);
        if end > shape.blocks * BLOCK_SECTORS || !is_whole || sectors > RANGE_SECTORS_MAX {
            return Err(IOERR);
        }
        let (block, blocks) = (sector / BLOCK_SECTORS, u64::from(sectors) / BLOCK_SECTORS);
        let may_deallocate = flags & VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP != 0;
        if blocks > 0 {
            ranges.push(Range { block, blocks, may_deallocate });
        }
    }
    Ok(ranges)
}

fn u64_of(bytes: &[u8]) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[..8]);
    u64::from_le_bytes(value)
}

/// Where the last byte is, which is no longer of the segments.
fn take_last_byte(segments: &mut Vec<Segment>) -> Option<u64> {
    let last = segments.last_mut()?;
    last.bytes -= 1;
    let at = last.address + u64::from(last.bytes);
    if last.bytes == 0 {
        segments.pop();
    }
    Some(at)
}

/// The first bytes, which are no longer of the segments.
fn take_front<const N: usize>(memory: &Memory, segments: &mut Vec<Segment>) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if bytes_of(segments) < N as u64 || !gather(memory, segments, &mut bytes) {
        return None;
    }
    let mut left = N as u32;
    while left > 0 {
        let first = segments.first_mut()?;
        let taken = left.min(first.bytes);
        first.address += u64::from(taken);
        first.bytes -= taken;
        left -= taken;
        if first.bytes == 0 {
            segments.remove(0);
        }
    }
    Some(bytes)
}

/// Fills `bytes` from the segments, which are as long at least; false when they are not in the guest's memory.
fn gather(memory: &Memory, segments: &[Segment], bytes: &mut [u8]) -> bool {
    Cursor::new(segments).read(memory, bytes)
}

/// A place in segments, from their first byte on.
pub struct Cursor<'a> {
    segments: &'a [Segment],
    /// Bytes of the first segment that are behind.
    passed: u32,
}

impl<'a> Cursor<'a> {
    pub fn new(segments: &'a [Segment]) -> Cursor<'a> {
        Cursor { segments, passed: 0 }
    }

    /// Copies what comes next out of the guest's memory; false when it is not there.
    pub fn read(&mut self, memory: &Memory, bytes: &mut [u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let Some((address, length)) = self.next(bytes.len() - at) else { return false };
            if memory.read_slice(&mut bytes[at..at + length], address).is_err() {
                return false;
            }
            at += length;
        }
        true
    }

    /// Copies into what comes next of the guest's memory; false when it is not there.
    pub fn write(&mut self, memory: &Memory, bytes: &[u8]) -> bool {
        let mut at = 0;
        while at < bytes.len() {
            let Some((address, length)) = self.next(bytes.len() - at) else { return false };
            if memory.write_slice(&bytes[at..at + length], address).is_err() {
                return false;
            }
            at += length;
        }
        true
    }

    /// The next bytes that lie together, at most so many.
    fn next(&mut self, most: usize) -> Option<(GuestAddress, usize)> {
        let first = self.segments.first()?;
        let address = first.address + u64::from(self.passed);
        let length = ((first.bytes - self.passed) as usize).min(most);
        self.passed += length as u32;
        if self.passed == first.bytes {
            self.segments = &self.segments[1..];
            self.passed = 0;
        }
        Some((GuestAddress(address), length))
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
