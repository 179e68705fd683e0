//! The read path: a range of an extent's payload, from the media, from the open page, or from both.
//!
//! A page whose program is in flight can be read from neither (its buffer was given to the media), so
//! a read of it is held until the program is done. The die would not have served it earlier anyway.

use core::ops::Range;

use crate::codec::StreamKind;
use crate::error::ReadRefused;
use crate::ftl::{Ftl, FtlEvent, Location};
use crate::media::{MediaError, MediaOpKind, MediaResult};
use crate::ops::Purpose;
use crate::{Nanos, OpId, ReadId};

/// Most reads in flight.
const READS_IN_FLIGHT_MAX: u32 = 65_536;

/// A read that waits for programs.
#[derive(Debug)]
pub(crate) struct HeldRead {
    op: OpId,
    superblock: u32,
    /// First byte in the superblock.
    offset_bytes: u64,
    bytes: u32,
}

impl Ftl {
    /// Starts a read of `range` of the stored bytes of the extent at `location`. It is over with an
    /// [`FtlEvent::ReadDone`]. The bytes are as the media gave them: the caller compares the checksum.
    ///
    /// # Errors
    /// [`ReadRefused::Moved`]: the location is stale, look it up again. [`ReadRefused::Busy`]: too many
    /// reads are in flight.
    ///
    /// # Panics
    /// When the range does not lie within the superblock.
    pub fn read(&mut self, now: Nanos, location: Location, range: Range<u32>) -> Result<ReadId, ReadRefused> {
        let Location { superblock, offset_bytes, life } = location;
        assert!(range.start <= range.end, "a range begins before it ends");
        assert!(
            offset_bytes + u64::from(range.end) <= self.limits.superblock_bytes,
            "extents do not leave superblocks"
        );
        let entry = &self.superblocks[superblock as usize];
        if entry.sequence != life || !entry.state.is_readable() {
            return Err(ReadRefused::Moved);
        }
        if self.reads_in_flight >= READS_IN_FLIGHT_MAX {
            return Err(ReadRefused::Busy);
        }
        let read = ReadId(self.next_read);
        self.next_read += 1;
        self.reads_in_flight += 1;
        self.superblocks[superblock as usize].readers += 1;
        let start = offset_bytes + u64::from(range.start);
        let end = offset_bytes + u64::from(range.end);
        let media_end = end.min(self.programmed_end(superblock).max(start));
        let tail = self.open_page_bytes(superblock, media_end..end);
        self.start_read(now, read, superblock, start..media_end, tail);
        Ok(read)
    }

    /// Gives reads to the media whose pages are programmed now. After a failed program there is nothing
    /// left to wait for: the checksum tells whether the bytes are there.
    pub(crate) fn release_held_reads(&mut self) {
        let mut index = 0;
        while index < self.held_reads.len() {
            let held = &self.held_reads[index];
            let (superblock, offset) = (held.superblock, held.offset_bytes);
            let range = offset..offset + u64::from(held.bytes);
            if self.failed.is_none() && self.is_programming(superblock, &range) {
                index += 1;
                continue;
            }
            let held = self.held_reads.remove(index);
            let address = self.address(superblock, offset);
            self.ops.enqueue(held.op, MediaOpKind::Read { address, bytes: held.bytes });
        }
    }

    pub(crate) fn read_done(
        &mut self,
        id: ReadId,
        superblock: u32,
        tail: Box<[u8]>,
        result: Result<Box<[u8]>, MediaError>,
    ) {
        self.reads_in_flight -= 1;
        self.superblocks[superblock as usize].readers -= 1;
        let result = result.map(|bytes| match (bytes.is_empty(), tail.is_empty()) {
            (_, true) => bytes,
            (true, _) => tail,
            _ => [bytes, tail].concat().into(),
        });
        self.events.push_back(FtlEvent::ReadDone { id, result });
    }

    /// When a read of this range of a superblock will be done: its pages lie on different dies and are
    /// sensed side by side.
    pub(crate) fn read_due(&mut self, now: Nanos, range: &Range<u64>) -> Nanos {
        let page_bytes = u64::from(self.geometry.page_bytes);
        let (mut at, mut due) = (range.start, now);
        while at < range.end {
            let page = at / page_bytes;
            let part = range.end.min((page + 1) * page_bytes) - at;
            due = due.max(self.nand.read(now, page as u32, part as u32));
            self.counters.pages_read += 1;
            at += part;
        }
        due
    }

    fn start_read(&mut self, now: Nanos, read: ReadId, superblock: u32, range: Range<u64>, tail: Box<[u8]>) {
        if range.is_empty() {
            // Wholly in the open page: nothing is asked of the media, the answer is there.
            let op = self.ops.prepare(now, Purpose::Read { read, superblock, tail });
            self.ops.answer(now, op, MediaResult::Read(Box::default()));
            return;
        }
        let due = self.read_due(now, &range);
        let bytes = (range.end - range.start) as u32;
        let op = self.ops.prepare(due, Purpose::Read { read, superblock, tail });
        if self.failed.is_none() && self.is_programming(superblock, &range) {
            self.held_reads.push(HeldRead { op, superblock, offset_bytes: range.start, bytes });
        } else {
            let address = self.address(superblock, range.start);
            self.ops.enqueue(op, MediaOpKind::Read { address, bytes });
        }
    }

    /// End of what was given to the media, in bytes of the superblock.
    fn programmed_end(&self, superblock: u32) -> u64 {
        let entry = &self.superblocks[superblock as usize];
        match entry.state {
            crate::ftl::SuperblockState::Open => u64::from(entry.next_page) * u64::from(self.geometry.page_bytes),
            _ => self.limits.superblock_bytes,
        }
    }

    /// A copy of bytes that are still in the open page of a superblock.
    fn open_page_bytes(&self, superblock: u32, range: Range<u64>) -> Box<[u8]> {
        if range.is_empty() || !self.params.with_data {
            return Box::default();
        }
        let is_open =
            |kind: &StreamKind| self.streams[kind.index()].open.is_some_and(|open| open.superblock == superblock);
        let kind = StreamKind::ALL.into_iter().find(is_open).expect("only an open superblock has unprogrammed bytes");
        let base = self.programmed_end(superblock);
        self.streams[kind.index()].page[(range.start - base) as usize..(range.end - base) as usize].into()
    }

    fn is_programming(&self, superblock: u32, range: &Range<u64>) -> bool {
        if self.superblocks[superblock as usize].programs_in_flight == 0 {
            return false;
        }
        let page_bytes = u64::from(self.geometry.page_bytes);
        let pages = (range.start / page_bytes) as u32..=((range.end - 1) / page_bytes) as u32;
        self.streams.iter().any(|stream| stream.is_programming(superblock, pages.clone()))
    }
}
