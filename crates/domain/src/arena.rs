//! Where a request's bytes lie in the I/O arena: offsets only, so that both domains and every actor's
//! linear memory agree on them.
//!
//! An arena is an array of slots; a slot holds one request in flight:
//!
//! | part | content |
//! | --- | --- |
//! | header page, 4096 bytes | state word, the request as submitted, the unit table, the state blob |
//! | buffer `Raw` | a write's input, kept whole until it completes so that it can be replayed; a read's output |
//! | buffers `A`, `B` | what stages put out, in turn; each unit has a place of its own |

use osier_flash::BLOCK_BYTES;

/// Bytes of a slot's header page.
pub const HEADER_BYTES: u32 = 4096;
/// Offset of the state word (u64: see [`SLOT_FREE`], [`SLOT_SUBMITTED`]) in a slot.
pub const STATE_OFFSET: u32 = 0;
/// Offset of the request, as a ring entry of 64 bytes, in a slot.
pub const REQUEST_OFFSET: u32 = 64;
/// Offset of the unit table in a slot.
pub const UNITS_OFFSET: u32 = 128;
/// Bytes of one row of the unit table.
pub const UNIT_BYTES: u32 = 40;
/// Rows in the unit table.
pub const UNITS_MAX: u32 = 64;
/// Offset of the word (u32) that says how many input bytes of the unit under way an actor that yielded has
/// worked on, in a slot.
pub const PROGRESS_OFFSET: u32 = 2688;
/// Offset of the per-request state blob in a slot.
pub const BLOB_OFFSET: u32 = 3072;
/// Bytes of the per-request state blob.
pub const BLOB_BYTES: u32 = 1024;

const _: () = assert!(UNITS_OFFSET + UNITS_MAX * UNIT_BYTES <= PROGRESS_OFFSET);
const _: () = assert!(PROGRESS_OFFSET + 4 <= BLOB_OFFSET);
const _: () = assert!(BLOB_OFFSET + BLOB_BYTES <= HEADER_BYTES);

/// State word: nobody uses the slot.
pub const SLOT_FREE: u64 = 0;
/// State word: a request was submitted and has not completed; recovery replays it.
pub const SLOT_SUBMITTED: u64 = 1;

/// One of a slot's three buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Buffer {
    /// The client's bytes.
    Raw = 0,
    /// Stage output.
    A = 1,
    /// Stage output.
    B = 2,
}

impl Buffer {
    /// Where a stage that reads from here puts its output. `Raw` is never written by a stage.
    #[inline]
    pub fn next(self) -> Buffer {
        match self {
            Buffer::Raw | Buffer::B => Buffer::A,
            Buffer::A => Buffer::B,
        }
    }

    /// The buffer that a byte names.
    #[inline]
    pub fn from_byte(byte: u8) -> Option<Buffer> {
        match byte {
            0 => Some(Buffer::Raw),
            1 => Some(Buffer::A),
            2 => Some(Buffer::B),
            _ => None,
        }
    }
}

/// The present state of one unit of a request; one row of the unit table, little endian, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First logical block of the extent that the unit is (of a read: the extent's, not the request's).
    pub slba: u64,
    /// Sequence that the extent was written with (of a read), 0 on a write.
    pub version: u64,
    /// Length now, in bytes.
    pub bytes: u32,
    /// Length before the first stage, in bytes.
    pub raw_bytes: u32,
    /// The pipeline that wrote it (of a read) or that writes it.
    pub tag: u32,
    /// First block of the request that it covers.
    pub request_block: u32,
    /// Of a read: blocks of the extent to leave out before the wanted ones.
    pub skip_blocks: u16,
    /// Blocks wanted.
    pub blocks: u16,
    /// Where its bytes are now.
    pub buffer: Buffer,
}

impl Unit {
    /// The row of the unit table.
    #[inline]
    pub fn encode(&self) -> [u8; UNIT_BYTES as usize] {
        let mut out = [0u8; UNIT_BYTES as usize];
        out[0..8].copy_from_slice(&self.slba.to_le_bytes());
        out[8..16].copy_from_slice(&self.version.to_le_bytes());
        out[16..20].copy_from_slice(&self.bytes.to_le_bytes());
        out[20..24].copy_from_slice(&self.raw_bytes.to_le_bytes());
        out[24..28].copy_from_slice(&self.tag.to_le_bytes());
        out[28..32].copy_from_slice(&self.request_block.to_le_bytes());
        out[32..34].copy_from_slice(&self.skip_blocks.to_le_bytes());
        out[34..36].copy_from_slice(&self.blocks.to_le_bytes());
        out[36] = self.buffer as u8;
        out
    }

    /// Reads a row; `None` when it names no buffer.
    #[inline]
    pub fn decode(row: &[u8; UNIT_BYTES as usize]) -> Option<Unit> {
        let u16_at = |at: usize| u16::from_le_bytes([row[at], row[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Unit {
            slba: u64_at(0),
            version: u64_at(8),
            bytes: u32_at(16),
            raw_bytes: u32_at(20),
            tag: u32_at(24),
            request_block: u32_at(28),
            skip_blocks: u16_at(32),
            blocks: u16_at(34),
            buffer: Buffer::from_byte(row[36])?,
        })
    }
}

/// The sizes that an arena was laid out with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Requests that can be in flight.
    pub slots: u16,
    /// The largest request, in logical blocks.
    pub request_blocks_max: u32,
    /// Blocks of a unit.
    pub unit_blocks: u8,
}

/// What a stage may add to a unit: LZ4's worst case (1/255 and 16 bytes), a seal, a checksum, with room to spare.
const HEADROOM_BYTES: u32 = 512;

impl Layout {
    /// Bytes of room that one unit has in buffers `A` and `B`.
    #[inline]
    pub fn unit_capacity(&self) -> u32 {
        let raw = u32::from(self.unit_blocks) * BLOCK_BYTES;
        raw + HEADROOM_BYTES + raw / 128
    }

    /// Units that the largest request has. A read may find every block in an extent of its own.
    #[inline]
    pub fn units_max(&self) -> u32 {
        self.request_blocks_max
    }

    /// Bytes of buffer `Raw`.
    #[inline]
    pub fn raw_bytes(&self) -> u32 {
        self.request_blocks_max * BLOCK_BYTES
    }

    /// Bytes of one slot, a whole number of 4096-byte pages.
    #[inline]
    pub fn slot_bytes(&self) -> u32 {
        let work = self.units_max() * self.unit_capacity();
        (HEADER_BYTES + self.raw_bytes() + 2 * work).next_multiple_of(4096)
    }

    /// Bytes of the whole arena.
    #[inline]
    pub fn arena_bytes(&self) -> u64 {
        u64::from(self.slots) * u64::from(self.slot_bytes())
    }

    /// Offset of a slot in the arena.
    #[inline]
    pub fn slot_offset(&self, slot: u16) -> u64 {
        assert!(slot < self.slots, "slot {slot} of {}", self.slots);
        u64::from(slot) * u64::from(self.slot_bytes())
    }

    /// Offset within its slot of unit `index`'s place in `buffer`. In `Raw`, units lie at their blocks.
    #[inline]
    pub fn unit_offset(&self, buffer: Buffer, index: u16, request_block: u32) -> u32 {
        let work = self.units_max() * self.unit_capacity();
        match buffer {
            Buffer::Raw => HEADER_BYTES + request_block * BLOCK_BYTES,
            Buffer::A => HEADER_BYTES + self.raw_bytes() + u32::from(index) * self.unit_capacity(),
            Buffer::B => HEADER_BYTES + self.raw_bytes() + work + u32::from(index) * self.unit_capacity(),
        }
    }
}
