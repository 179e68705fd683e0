//! This process's view of the I/O arena: the offsets of [`osier_domain::arena`], applied to bytes.
//!
//! Both domains write here, a slot by one of them at a time. Whatever is read is checked before use: a row
//! of the unit table names only places that lie within the slot.

use std::io;
use std::sync::atomic::AtomicU64;

use osier_domain::arena::{
    BLOB_BYTES, BLOB_OFFSET, Buffer, Layout, PROGRESS_OFFSET, REQUEST_OFFSET, STATE_OFFSET, UNIT_BYTES, UNITS_MAX,
    UNITS_OFFSET, Unit,
};
use osier_domain::{BLOCK_BYTES, SlotId};

use crate::abi::PAGE_BYTES;
use crate::segment::{Mapping, Segment};

/// Where in a row of the unit table the length is, and the buffer: a test holds them against [`Unit::encode`].
const ROW_BYTES_OFFSET: u64 = 16;
const ROW_BUFFER_OFFSET: u64 = 36;

/// The arena, mapped.
#[derive(Debug)]
pub struct Arena {
    layout: Layout,
    mapping: Mapping,
    /// What the layout says, worked out once, for each chunk asks for it several times: bytes of a slot, bytes of
    /// `Raw`, a unit's room in the other two, and where in a slot each buffer begins.
    slot_bytes: u64,
    raw_bytes: u32,
    unit_capacity: u32,
    begins: [u32; 3],
}

impl Arena {
    /// Bytes of the object that an arena of this layout needs: whole WebAssembly pages, for it is mapped into
    /// linear memories.
    pub fn object_bytes(layout: &Layout) -> u64 {
        layout.arena_bytes().next_multiple_of(PAGE_BYTES)
    }

    /// The arena that lies in `segment`.
    ///
    /// # Errors
    /// What mapping says.
    ///
    /// # Panics
    /// If the segment has another length than [`Arena::object_bytes`] says, or the layout is impossible.
    pub fn new(segment: &Segment, layout: Layout) -> io::Result<Arena> {
        assert_eq!(segment.bytes(), Arena::object_bytes(&layout), "bytes of the arena's segment");
        assert!(layout.request_blocks_max <= UNITS_MAX, "requests of {} blocks", layout.request_blocks_max);
        Ok(Arena {
            layout,
            mapping: Mapping::new(segment)?,
            slot_bytes: u64::from(layout.slot_bytes()),
            raw_bytes: layout.raw_bytes(),
            unit_capacity: layout.unit_capacity(),
            begins: [Buffer::Raw, Buffer::A, Buffer::B].map(|buffer| layout.unit_offset(buffer, 0, 0)),
        })
    }

    /// Its sizes.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// A slot's state word.
    pub fn state(&self, slot: SlotId) -> &AtomicU64 {
        self.mapping.word64(self.slot(slot) + u64::from(STATE_OFFSET))
    }

    /// The request that was put into a slot, a ring entry, as another process left it.
    pub fn request(&self, slot: SlotId) -> [u64; 8] {
        let mut bytes = [0u8; 64];
        self.mapping.read(self.slot(slot) + u64::from(REQUEST_OFFSET), &mut bytes);
        let mut words = [0u64; 8];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        words
    }

    /// Puts a request, as a ring entry, into its slot.
    pub fn set_request(&self, slot: SlotId, words: &[u64; 8]) {
        let mut bytes = [0u8; 64];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        self.mapping.write(self.slot(slot) + u64::from(REQUEST_OFFSET), &bytes);
    }

    /// A row of the unit table, if it names bytes that lie where such a row's bytes may lie.
    #[inline]
    pub fn unit(&self, slot: SlotId, index: u16) -> Option<Unit> {
        let mut row = [0u8; UNIT_BYTES as usize];
        self.mapping.read(self.row(slot, index)?, &mut row);
        // Looked at where it is: each copy of a row waits for the one before.
        let unit = Unit::decode(&row);
        let fits = unit.as_ref().is_some_and(|unit| self.has_room(index, unit));
        if fits { unit } else { None }
    }

    fn has_room(&self, index: u16, unit: &Unit) -> bool {
        let room = match unit.buffer {
            Buffer::Raw => {
                let begin = unit.request_block.checked_mul(BLOCK_BYTES);
                begin.and_then(|begin| self.raw_bytes.checked_sub(begin))
            }
            Buffer::A | Buffer::B => Some(self.unit_capacity),
        };
        room.is_some_and(|room| unit.bytes <= room) && u32::from(index) < self.layout.units_max()
    }

    /// Writes a row of the unit table.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn set_unit(&self, slot: SlotId, index: u16, unit: &Unit) {
        let Some(at) = self.row(slot, index) else { panic!("row {index} of a unit table") };
        self.mapping.write(at, &unit.encode());
    }

    /// Notes in a row of the unit table where a stage put its output, and its length in bytes. The rest of the row
    /// stays: writing all of it costs as much as looking it up.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub(crate) fn set_output(&self, slot: SlotId, index: u16, buffer: Buffer, bytes: u32) {
        let Some(at) = self.row(slot, index) else { panic!("row {index} of a unit table") };
        self.mapping.write(at + ROW_BYTES_OFFSET, &bytes.to_le_bytes());
        self.mapping.write(at + ROW_BUFFER_OFFSET, &[buffer as u8]);
    }

    /// Copies out the bytes of a unit: what lies at `from` of it and as much as `out` has.
    ///
    /// # Panics
    /// If that is not within its buffer.
    pub fn read_unit(&self, slot: SlotId, index: u16, unit: &Unit, from: u32, out: &mut [u8]) {
        self.mapping.read(self.unit_at(slot, index, unit.buffer, unit.request_block) + u64::from(from), out);
    }

    /// Copies bytes into the place of unit `index` in `buffer`.
    ///
    /// # Panics
    /// If they are more than a unit's room.
    pub fn write_unit(&self, slot: SlotId, index: u16, buffer: Buffer, request_block: u32, bytes: &[u8]) {
        let room = if buffer == Buffer::Raw { self.raw_bytes } else { self.unit_capacity };
        assert!(bytes.len() <= room as usize, "{} bytes into a unit's {room}", bytes.len());
        self.mapping.write(self.unit_at(slot, index, buffer, request_block), bytes);
    }

    /// Copies a client's bytes into buffer `Raw`, from its beginning.
    pub fn write_raw(&self, slot: SlotId, offset: u32, bytes: &[u8]) {
        assert!(offset as usize + bytes.len() <= self.raw_bytes as usize, "buffer Raw is too small");
        self.mapping.write(self.unit_at(slot, 0, Buffer::Raw, 0) + u64::from(offset), bytes);
    }

    /// Copies a client's bytes out of buffer `Raw`.
    pub fn read_raw(&self, slot: SlotId, offset: u32, out: &mut [u8]) {
        assert!(offset as usize + out.len() <= self.raw_bytes as usize, "buffer Raw is too small");
        self.mapping.read(self.unit_at(slot, 0, Buffer::Raw, 0) + u64::from(offset), out);
    }

    /// Makes a slot ready for a request's first stage: no progress, a blob of zeros.
    pub fn begin(&self, slot: SlotId) {
        self.set_progress(slot, 0);
        self.mapping.zero(self.slot(slot) + u64::from(BLOB_OFFSET), BLOB_BYTES as usize);
    }

    /// Copies out of the request's blob; false if the range is not within it.
    pub fn read_blob(&self, slot: SlotId, offset: u32, out: &mut [u8]) -> bool {
        let fits = out.len() <= BLOB_BYTES as usize && offset <= BLOB_BYTES - out.len() as u32;
        if fits {
            self.mapping.read(self.slot(slot) + u64::from(BLOB_OFFSET + offset), out);
        }
        fits
    }

    /// Copies into the request's blob; false if the range is not within it.
    pub fn write_blob(&self, slot: SlotId, offset: u32, bytes: &[u8]) -> bool {
        let fits = bytes.len() <= BLOB_BYTES as usize && offset <= BLOB_BYTES - bytes.len() as u32;
        if fits {
            self.mapping.write(self.slot(slot) + u64::from(BLOB_OFFSET + offset), bytes);
        }
        fits
    }

    /// Input bytes of the unit under way that the actor has worked on, when it yielded.
    #[inline]
    pub(crate) fn progress(&self, slot: SlotId) -> u32 {
        self.mapping.load32(self.slot(slot) + u64::from(PROGRESS_OFFSET))
    }

    #[inline]
    pub(crate) fn set_progress(&self, slot: SlotId, consumed: u32) {
        self.mapping.store32(self.slot(slot) + u64::from(PROGRESS_OFFSET), consumed);
    }

    /// Where in the arena a unit's place in a buffer is.
    #[inline]
    pub(crate) fn unit_at(&self, slot: SlotId, index: u16, buffer: Buffer, request_block: u32) -> u64 {
        let within = match buffer {
            Buffer::Raw => request_block * BLOCK_BYTES,
            Buffer::A | Buffer::B => u32::from(index) * self.unit_capacity,
        };
        self.slot(slot) + u64::from(self.begins[buffer as usize] + within)
    }

    /// Copies the wanted part of a decoded unit to where the client looks for it; zeros where it is short.
    pub(crate) fn place_blocks(&self, slot: SlotId, index: u16, unit: &Unit) {
        let skip = u32::from(unit.skip_blocks) * BLOCK_BYTES;
        let wanted = u32::from(unit.blocks) * BLOCK_BYTES;
        let present = unit.bytes.saturating_sub(skip).min(wanted);
        let to = self.unit_at(slot, 0, Buffer::Raw, unit.request_block);
        let from = self.unit_at(slot, index, unit.buffer, unit.request_block) + u64::from(skip);
        self.mapping.copy_within(from, to, present as usize);
        self.mapping.zero(to + u64::from(present), (wanted - present) as usize);
    }

    /// Copies all of a decoded unit to `offset` of buffer `Raw`.
    pub(crate) fn place_all(&self, slot: SlotId, index: u16, unit: &Unit, offset: u32) {
        let to = self.unit_at(slot, 0, Buffer::Raw, 0) + u64::from(offset);
        let from = self.unit_at(slot, index, unit.buffer, unit.request_block);
        self.mapping.copy_within(from, to, unit.bytes as usize);
    }

    #[inline]
    fn slot(&self, slot: SlotId) -> u64 {
        assert!(slot.0 < self.layout.slots, "slot {} of {}", slot.0, self.layout.slots);
        u64::from(slot.0) * self.slot_bytes
    }

    #[inline]
    fn row(&self, slot: SlotId, index: u16) -> Option<u64> {
        let index = u32::from(index);
        (index < UNITS_MAX).then(|| self.slot(slot) + u64::from(UNITS_OFFSET + index * UNIT_BYTES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noting_an_output_changes_length_and_buffer_alone() {
        let layout = Layout { slots: 2, request_blocks_max: 4, unit_blocks: 2 };
        let segment = Segment::anonymous(c"arena", Arena::object_bytes(&layout)).unwrap();
        let arena = Arena::new(&segment, layout).unwrap();
        let unit = Unit {
            slba: 0x0102_0304_0506_0708,
            version: 0x1112_1314_1516_1718,
            bytes: 8192,
            raw_bytes: 0x2122_2324,
            tag: 0x3132_3334,
            request_block: 2,
            skip_blocks: 0x4142,
            blocks: 0x5152,
            buffer: Buffer::Raw,
        };
        arena.set_unit(SlotId(1), 1, &unit);
        assert_eq!(arena.unit(SlotId(1), 1), Some(unit));
        for (buffer, bytes) in [(Buffer::A, 1), (Buffer::B, layout.unit_capacity())] {
            arena.set_output(SlotId(1), 1, buffer, bytes);
            assert_eq!(arena.unit(SlotId(1), 1), Some(Unit { buffer, bytes, ..unit }));
        }
    }

    /// What is worked out once is what the layout says.
    #[test]
    fn units_lie_where_the_layout_puts_them() {
        for layout in [
            Layout { slots: 1, request_blocks_max: 1, unit_blocks: 1 },
            Layout { slots: 3, request_blocks_max: 64, unit_blocks: 16 },
            Layout { slots: 5, request_blocks_max: 7, unit_blocks: 3 },
        ] {
            let segment = Segment::anonymous(c"arena", Arena::object_bytes(&layout)).unwrap();
            let arena = Arena::new(&segment, layout).unwrap();
            for slot in 0..layout.slots {
                for index in 0..layout.units_max() as u16 {
                    for buffer in [Buffer::Raw, Buffer::A, Buffer::B] {
                        let expected = u64::from(layout.unit_offset(buffer, index, u32::from(index)));
                        let found = arena.unit_at(SlotId(slot), index, buffer, u32::from(index));
                        assert_eq!(found, layout.slot_offset(slot) + expected, "{layout:?} {slot} {index} {buffer:?}");
                    }
                }
            }
        }
    }
}
