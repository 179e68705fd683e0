//! The write path: from a record to programmed pages.

use crate::codec::{
    EXTENT_ALIGN, EXTENT_HEADER_BYTES, ExtentHeader, HeaderBytes, HeaderPlace, SUPERBLOCK_HEADER_BYTES, StreamKind,
    SuperblockHeader, extent_footprint, header_offsets,
};
use crate::directory::Record;
use crate::error::Backpressure;
use crate::ftl::{Ftl, SuperblockState};
use crate::media::MediaOpKind;
use crate::ops::Purpose;
use crate::planted::Bug;
use crate::stream::{Open, Program};
use crate::{AppendId, Nanos};

/// Pages kept for use again: as many as can be in flight in both streams.
const fn spare_pages_max(programs_max: usize) -> usize {
    2 * (programs_max + 1)
}

impl Ftl {
    /// Writes a record of the host and enters it in the directory.
    pub(crate) fn append_record(
        &mut self,
        now: Nanos,
        mut record: Record,
        payload: Option<&[u8]>,
    ) -> Result<AppendId, Backpressure> {
        let footprint = extent_footprint(record.stored_bytes);
        let reserved = self.reserve_lasting(now, u64::from(footprint));
        if let Err(refused) = reserved.and_then(|()| self.reserve(now, StreamKind::Host, footprint)) {
            self.counters.stalls += u64::from(refused == Backpressure::Busy);
            self.collect(now);
            return Err(refused);
        }
        let stream = &self.streams[StreamKind::Host.index()];
        assert!(record.sequence > stream.appended_sequence, "appends come in rising sequence");
        let append = AppendId(stream.appended.0 + 1);
        (record.superblock, record.offset16) = self.place(now, StreamKind::Host, &record, payload);
        let stream = &mut self.streams[StreamKind::Host.index()];
        stream.appended = append;
        stream.appended_sequence = record.sequence;
        self.program_if_full(now, StreamKind::Host);
        let live_bytes = self.directory.live_bytes + u64::from(footprint);
        self.directory.insert(&record, append);
        self.shadows.add(append, live_bytes - self.directory.live_bytes);
        self.collect(now);
        Ok(append)
    }

    /// Makes sure that a record of this footprint fits beside all that lives and all that a crash may bring back. If
    /// it does not, a sync drives the shadows away.
    fn reserve_lasting(&mut self, now: Nanos, footprint: u64) -> Result<(), Backpressure> {
        let shadows = if self.has_bug(Bug::ForgetShadows) { 0 } else { self.shadows.bytes() };
        if self.directory.live_bytes + shadows + footprint <= self.lasting_bytes_max() {
            return Ok(());
        }
        if shadows == 0 {
            return Err(Backpressure::Full);
        }
        self.pad_page(now, StreamKind::Host);
        self.sync_for_space(now);
        Err(Backpressure::Busy)
    }

    /// Makes sure that a record of this footprint can be placed now.
    pub(crate) fn reserve(&mut self, now: Nanos, kind: StreamKind, footprint: u32) -> Result<(), Backpressure> {
        self.check_writable()?;
        // The page that is open may fill, one may have to be closed with its superblock, and the next
        // superblock begins with a page of its own.
        let programs = (footprint / self.geometry.page_bytes) as usize + 3;
        let stream = &self.streams[kind.index()];
        if !stream.has_room_for(programs) {
            return Err(Backpressure::Busy);
        }
        if stream.open.is_some_and(|open| open.fill + u64::from(footprint) > self.limits.superblock_bytes) {
            self.close_superblock(now, kind);
        }
        if self.streams[kind.index()].open.is_none() {
            self.open_superblock(now, kind)?;
        }
        Ok(())
    }

    /// Writes header and payload where [`Ftl::reserve`] made room. Returns superblock and offset in
    /// units of 16 bytes. The page that the last byte completes is left to `program_if_full`, so that
    /// the caller can say first what the page completes.
    pub(crate) fn place(
        &mut self,
        now: Nanos,
        kind: StreamKind,
        record: &Record,
        payload: Option<&[u8]>,
    ) -> (u32, u32) {
        let open = self.streams[kind.index()].open.expect("reserve opened a superblock");
        let footprint = extent_footprint(record.stored_bytes);
        let offset16 = (open.fill / u64::from(EXTENT_ALIGN)) as u32;
        let padding = footprint - EXTENT_HEADER_BYTES - record.stored_bytes;
        self.counters.header_bytes += u64::from(EXTENT_HEADER_BYTES);
        self.counters.pad_bytes += u64::from(padding);
        if let Some(payload) = payload {
            let header = self.extent_header(kind, record, &open);
            let bytes = header.encode(HeaderPlace { superblock: open.superblock, offset16 });
            self.salt = crc32c::crc32c_append(self.salt, &bytes);
            self.write(now, kind, Some(&bytes), EXTENT_HEADER_BYTES);
            self.write(now, kind, Some(payload), record.stored_bytes);
            self.write(now, kind, Some(&[0; EXTENT_ALIGN as usize][..padding as usize]), padding);
        } else {
            self.write(now, kind, None, footprint);
        }
        (open.superblock, offset16)
    }

    /// Programs the open page if nothing more fits.
    pub(crate) fn program_if_full(&mut self, now: Nanos, kind: StreamKind) {
        if self.page_fill(kind) == self.geometry.page_bytes {
            self.issue_program(now, kind);
        }
    }

    /// Pads and programs the open page, if it holds anything.
    pub(crate) fn pad_page(&mut self, now: Nanos, kind: StreamKind) {
        let fill = self.page_fill(kind);
        if fill == 0 {
            return;
        }
        let padding = self.geometry.page_bytes - fill;
        let stream = &mut self.streams[kind.index()];
        if self.params.with_data {
            stream.page[fill as usize..].fill(0);
        }
        let open = stream.open.as_mut().expect("an open page lies in an open superblock");
        open.fill += u64::from(padding);
        self.counters.pad_bytes += u64::from(padding);
        self.issue_program(now, kind);
    }

    /// A program is done: its page can be read from the media.
    pub(crate) fn program_done(&mut self, kind: StreamKind, serial: u64, buffer: Option<Box<[u8]>>) {
        let program = self.streams[kind.index()].done(serial);
        self.shadows.programmed(self.durable_through());
        self.superblocks[program.superblock as usize].programs_in_flight -= 1;
        if let Some(buffer) = buffer
            && self.params.with_data
            && buffer.len() == self.geometry.page_bytes as usize
            && self.spare_pages.len() < spare_pages_max(self.limits.programs_max)
        {
            self.spare_pages.push(buffer);
        }
    }

    /// Bytes of the open page that are taken.
    fn page_fill(&self, kind: StreamKind) -> u32 {
        self.streams[kind.index()].open.map_or(0, |open| {
            let programmed = self.superblocks[open.superblock as usize].next_page;
            (open.fill - u64::from(programmed) * u64::from(self.geometry.page_bytes)) as u32
        })
    }

    /// Adds bytes to the open page, and programs each page that must make room for more.
    fn write(&mut self, now: Nanos, kind: StreamKind, mut bytes: Option<&[u8]>, mut length: u32) {
        while length > 0 {
            self.program_if_full(now, kind);
            let fill = self.page_fill(kind);
            let part = length.min(self.geometry.page_bytes - fill);
            let stream = &mut self.streams[kind.index()];
            if let Some(rest) = bytes {
                let (now_bytes, later) = rest.split_at(part as usize);
                stream.page[fill as usize..(fill + part) as usize].copy_from_slice(now_bytes);
                bytes = Some(later);
            }
            stream.open.as_mut().expect("bytes go to an open superblock").fill += u64::from(part);
            length -= part;
        }
    }

    fn issue_program(&mut self, now: Nanos, kind: StreamKind) {
        let stream = &mut self.streams[kind.index()];
        let open = stream.open.expect("an open page lies in an open superblock");
        let superblock = &mut self.superblocks[open.superblock as usize];
        assert_eq!(superblock.state, SuperblockState::Open, "only open superblocks are programmed");
        let page = superblock.next_page;
        let end = u64::from(page + 1) * u64::from(self.geometry.page_bytes);
        assert_eq!(open.fill, end, "pages are programmed whole and in order");
        superblock.next_page += 1;
        superblock.programs_in_flight += 1;
        let data = self.params.with_data.then(|| {
            let fresh = self.spare_pages.pop();
            let fresh = fresh.unwrap_or_else(|| vec![0; self.geometry.page_bytes as usize].into());
            core::mem::replace(&mut stream.page, fresh)
        });
        let serial = stream.issue(Program {
            superblock: open.superblock,
            superblock_sequence: open.sequence,
            page,
            done: false,
            append: stream.appended,
            sequence: stream.appended_sequence,
        });
        let due = self.nand.program(now, open.superblock, page);
        let bytes = self.geometry.page_bytes;
        let address = self.address(open.superblock, end - u64::from(bytes));
        self.counters.pages_programmed += 1;
        self.ops.issue(due, Purpose::Program { stream: kind, serial }, MediaOpKind::Program { address, bytes, data });
    }

    fn extent_header(&self, kind: StreamKind, record: &Record, open: &Open) -> ExtentHeader {
        ExtentHeader {
            kind: record.kind,
            damaged: record.damaged,
            slba: record.slba,
            blocks: record.blocks,
            raw_bytes: record.raw_bytes,
            stored_bytes: record.stored_bytes,
            tag: record.tag,
            checksum: record.checksum,
            sequence: record.sequence,
            life: open.sequence,
            salt: open.salt,
            // Relocated records are older than what is trusted, so the distance cannot be expressed.
            trusted_sequence: (kind == StreamKind::Host).then_some(self.trust.sequence),
        }
    }

    /// Takes the free superblock with the fewest erases, which is what levels the wear of all that
    /// change hands, and writes its header.
    fn open_superblock(&mut self, now: Nanos, kind: StreamKind) -> Result<(), Backpressure> {
        let reserved = match kind {
            StreamKind::Host => self.params.gc_free_superblocks_min,
            StreamKind::Relocation => 0,
        };
        if self.superblocks_free <= reserved {
            return Err(Backpressure::Busy);
        }
        let free = self.superblocks.iter().enumerate().filter(|(_, s)| s.state == SuperblockState::Free);
        let (index, _) = free.min_by_key(|(_, s)| s.erase_count).expect("free superblocks were counted");
        let sequence = self.next_superblock_sequence;
        self.next_superblock_sequence += 1;
        self.superblocks_free -= 1;
        let superblock = &mut self.superblocks[index];
        assert_eq!(superblock.next_page, 0, "a superblock is opened erased");
        superblock.state = SuperblockState::Open;
        superblock.sequence = sequence;
        let erase_count = superblock.erase_count;
        let open = Open { superblock: index as u32, sequence, salt: self.salt, fill: 0 };
        self.streams[kind.index()].open = Some(open);
        let header = self.params.with_data.then(|| self.superblock_header(kind, &open, erase_count));
        // Twice: at the start of the first page, which holds nothing else, and of the second.
        for _ in header_offsets(&self.geometry) {
            self.pad_page(now, kind);
            self.counters.header_bytes += u64::from(SUPERBLOCK_HEADER_BYTES);
            self.write(now, kind, header.as_ref().map(<[u8; 64]>::as_slice), SUPERBLOCK_HEADER_BYTES);
        }
        Ok(())
    }

    fn superblock_header(&mut self, kind: StreamKind, open: &Open, erase_count: u32) -> HeaderBytes {
        let header = SuperblockHeader {
            stream: kind,
            index: open.superblock,
            sequence: open.sequence,
            erase_count,
            geometry: self.geometry.fingerprint(),
            trusted_sequence: self.trust.sequence,
            trusted_superblocks: self.trust.superblocks,
            note: self.note_erase_count(),
            salt: open.salt,
        };
        let bytes = header.encode();
        self.salt = crc32c::crc32c_append(self.salt, &bytes);
        bytes
    }

    /// Closes the open superblock; pages that were not begun stay erased.
    fn close_superblock(&mut self, now: Nanos, kind: StreamKind) {
        self.pad_page(now, kind);
        let open = self.streams[kind.index()].open.take().expect("only an open superblock is closed");
        self.counters.tail_bytes += self.limits.superblock_bytes - open.fill;
        self.superblocks[open.superblock as usize].state = SuperblockState::Closed;
    }

    /// The erase count of one free superblock: its own header is erased, so that it would be forgotten
    /// with a crash. Superblocks are opened as often as they are erased, so that one note for each open
    /// keeps up; those that were erased since their last note come first.
    fn note_erase_count(&mut self) -> Option<(u32, u32)> {
        let free = self.superblocks.iter_mut().enumerate().filter(|(_, s)| s.state == SuperblockState::Free);
        let (noted, superblock) = free.min_by_key(|(_, superblock)| superblock.noted)?;
        self.notes += 1;
        superblock.noted = self.notes;
        Some((noted as u32, superblock.erase_count))
    }
}
