//! The write buffer: a log of records in bytes that the caller supplies (in real time, the PMR).
//!
//! A write is *completed* once its records are here, and *persistent* once the flash has them; the
//! log is what carries it over the death of the process in between. `docs/formats-buffer.md` gives
//! the layout byte by byte. In short: a header, two tail cells, two copies of a table of stream
//! cursors, then a ring of records, each a 64-byte header and its payload, aligned to 64.
//!
//! Invariants:
//! 1. A record counts only if its header's CRC and its payload's checksum hold. The payload is
//!    written first, so a death in mid-write leaves a record that does not count.
//! 2. Records carry consecutive sequence numbers. The header's CRC also covers the log's salt and
//!    the place in the ring, so neither an older lap, nor another log, nor a user's payload that
//!    looks like a record can be taken for one.
//! 3. The records of a request are contiguous and count only with the last of them: a request is
//!    in the log wholly or not at all. What recovery drops it also erases, last record first, so
//!    that no later recovery finds it.
//! 4. Space is used again only when the tail that frees it has been written. Before the tail moves
//!    over a record, the cursor table has what the record said about its stream.
//! 5. Tail and cursors have two copies, written one after the other with a fence between: one is
//!    always whole, and at rest both say the same, so damage to one loses nothing.
//!
//! Fault model. A death of the process at any store is survived without loss. Damage by other means
//! (flipped bits, pages lost by the backing store) is found by the checksums and reported, and does
//! not hide the valid records after it. A record whose payload alone is damaged was complete once,
//! since its header is there: it is kept, so that reads of its blocks fail instead of giving older
//! bytes. The one case that cannot be told is a damaged header of the very last record: it looks
//! like a record that was never finished.

use osier_flash::Lba;
use std::collections::VecDeque;

/// Bytes of a record's header.
pub const RECORD_HEADER_BYTES: u64 = 64;
/// Version of the layout that this code writes and the only one it reads.
pub const BUFFER_VERSION: u32 = 1;
/// How far behind the newest request of its stream a replayed one is still recognised exactly.
pub const STREAM_WINDOW: u64 = 64;
/// Most streams a log may have.
pub const STREAMS_MAX: u16 = 4096;

const HEADER_MAGIC: u64 = u64::from_le_bytes(*b"OSIERWB\x1a");
const TAIL_MAGIC: u32 = u32::from_le_bytes(*b"OWBT");
const CURSOR_MAGIC: u32 = u32::from_le_bytes(*b"OWBC");
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"OWBR");

const LINE: u64 = 64;
const TAIL_AT: u64 = LINE;
const CURSORS_AT: u64 = 4 * LINE;
const CURSOR_BYTES: u64 = 32;
/// Smallest ring that is of any use: a few units of the largest size.
const RING_BYTES_MIN: u64 = 256 << 10;
/// Largest ring: a gap in it is described by a record, whose length is a `u32`.
const RING_BYTES_MAX: u64 = 1 << 31;
/// Part of the ring that may be free on paper before the tail is written.
const LAZY_TAIL_PARTS: u64 = 16;
/// Most damaged places that a report lists; all are counted.
const DAMAGES_MAX: usize = 64;

/// Offsets in a record's header; fields are little-endian.
mod at {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 4;
    pub const KIND: usize = 5;
    pub const FLAGS: usize = 6;
    pub const SEQUENCE: usize = 8;
    pub const SLBA: usize = 16;
    pub const STREAM_SEQUENCE: usize = 24;
    pub const BLOCKS: usize = 32;
    pub const RAW_BYTES: usize = 36;
    pub const STORED_BYTES: usize = 40;
    pub const TAG: usize = 44;
    pub const CHECKSUM: usize = 48;
    pub const STREAM: usize = 52;
    pub const RESERVED: usize = 54;
    pub const CRC: usize = 60;
}

const FLAG_LAST: u16 = 1;

type HeaderBytes = [u8; RECORD_HEADER_BYTES as usize];

const _: () = assert!(at::CRC + 4 == RECORD_HEADER_BYTES as usize);
const _: () = assert!(at::RESERVED + 6 == at::CRC);
const _: () = assert!(RECORD_HEADER_BYTES == LINE, "records are aligned to their header");
const _: () = assert!(TAIL_AT + 2 * LINE <= CURSORS_AT);
const _: () = assert!(CURSORS_AT.is_multiple_of(LINE) && (2 * CURSOR_BYTES).is_multiple_of(LINE));

/// Bytes that outlive the process (or pretend to): the home of the log.
pub trait Bytes {
    /// How many bytes there are. It does not change.
    fn len(&self) -> u64;
    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes out. The range lies inside; anything else is a bug of the log.
    fn read(&self, offset: u64, into: &mut [u8]);
    /// Copies bytes in. The range lies inside; anything else is a bug of the log.
    fn write(&mut self, offset: u64, from: &[u8]);
    /// What was written before survives if anything does that is written after. Memory that only
    /// has to outlive the process needs nothing here: its stores are seen in program order.
    fn fence(&mut self) {}
}

macro_rules! bytes_of_a_slice {
    ($($owner:ty),*) => {$(
        impl Bytes for $owner {
            fn len(&self) -> u64 {
                <[u8]>::len(self) as u64
            }
            fn read(&self, offset: u64, into: &mut [u8]) {
                let (start, length) = (index(offset), <[u8]>::len(into));
                into.copy_from_slice(&self[start..start + length]);
            }
            fn write(&mut self, offset: u64, from: &[u8]) {
                let (start, length) = (index(offset), <[u8]>::len(from));
                self[start..start + length].copy_from_slice(from);
            }
        }
    )*};
}

bytes_of_a_slice!(Vec<u8>, Box<[u8]>, &mut [u8]);

/// Bytes that are not there: for a device that models time only. Reads give zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoBytes {
    /// The size to pretend.
    pub len: u64,
}

impl Bytes for NoBytes {
    fn len(&self) -> u64 {
        self.len
    }
    fn read(&self, _offset: u64, into: &mut [u8]) {
        into.fill(0);
    }
    fn write(&mut self, _offset: u64, _from: &[u8]) {}
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A unit: its payload is stored for its blocks.
    Data,
    /// Its blocks read as never written.
    Trim,
    /// Nothing: fills the ring up to its end.
    Pad,
}

/// A record without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Device-wide number; the newest wins.
    pub sequence: u64,
    /// What it is.
    pub kind: RecordKind,
    /// First logical block.
    pub slba: Lba,
    /// Logical blocks covered.
    pub blocks: u32,
    /// Bytes before the pipeline.
    pub raw_bytes: u32,
    /// Bytes of payload.
    pub stored_bytes: u32,
    /// The pipeline that wrote it.
    pub tag: u32,
    /// CRC-32C of the payload.
    pub checksum: u32,
    /// Stream of the request.
    pub stream: u16,
    /// Number of the request in its stream; 0 if the request has none.
    pub stream_sequence: u64,
    /// Whether it is the last record of its request.
    pub last: bool,
}

impl Record {
    /// Bytes that it takes in the ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        record_bytes(self.stored_bytes)
    }
}

/// Bytes that a record with that much payload takes in the ring.
#[must_use]
pub fn record_bytes(stored_bytes: u32) -> u64 {
    RECORD_HEADER_BYTES + u64::from(stored_bytes).next_multiple_of(LINE)
}

/// Why bytes cannot be used as a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// Too few bytes for the layout.
    #[error(
        "write buffer: {bytes} bytes were given and {needed} are needed for {streams} streams; give it a larger region"
    )]
    TooSmall {
        /// Bytes given.
        bytes: u64,
        /// Fewest bytes that work.
        needed: u64,
        /// Streams asked for.
        streams: u16,
    },
    /// More streams than the layout has room for, or none.
    #[error("write buffer: {streams} streams were asked for, 1 to {STREAMS_MAX} are possible")]
    Streams {
        /// Streams asked for.
        streams: u16,
    },
    /// The header is not one: never formatted, or damaged.
    #[error(
        "write buffer: the region does not start with a log's header; it was never formatted or is damaged; nothing was changed"
    )]
    NotALog,
    /// The header is sound but of another version.
    #[error(
        "write buffer: the log has version {found}, this program reads version {BUFFER_VERSION}; nothing was changed; use the program that wrote it"
    )]
    Version {
        /// Version found.
        found: u32,
    },
    /// The header is sound but was made for a region of another size.
    #[error(
        "write buffer: the log was made for {expected} bytes and the region has {bytes}; nothing was changed; open it at its own size"
    )]
    Size {
        /// Bytes given.
        bytes: u64,
        /// Bytes that the log was made for.
        expected: u64,
    },
    /// Neither tail cell is sound.
    #[error(
        "write buffer: both tail cells are damaged, so the log's start is not known; nothing was changed; restore the region from a copy"
    )]
    TailLost,
}

/// One place where the log was damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// First sequence number lost, or of the record kept with a wrong payload.
    pub sequence: u64,
    /// How many sequence numbers are lost; 0 if the header survived and the record was kept, so
    /// that reads of its blocks fail instead of giving older bytes.
    pub lost: u64,
    /// Where, as an offset in the ring.
    pub ring_offset: u64,
}

/// What recovery found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BufferReport {
    /// Records kept, pads not counted.
    pub records: u64,
    /// Bytes of payload kept.
    pub payload_bytes: u64,
    /// Records dropped because their request was never committed.
    pub uncommitted: u64,
    /// Damaged places, at most 64 of them.
    pub damages: Vec<Damage>,
    /// How many damaged places there were.
    pub damage_count: u64,
    /// Cursor cells of which one copy was damaged and the other used.
    pub cursor_copies_damaged: u64,
    /// Streams of which both cursor cells were damaged: their older replays are not recognised.
    pub cursors_lost: Vec<u16>,
    /// Whether one of the tail cells was damaged or older than the other.
    pub tail_copy_damaged: bool,
}

impl BufferReport {
    /// True if nothing was lost. One bad copy of two is what a death in the middle of a store
    /// leaves, and was put right.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.damage_count == 0 && self.cursors_lost.is_empty()
    }
}

/// Which requests of a stream are committed: the newest, and a window of those before it. Requests
/// that failed leave a gap in the window, so that a replay of one is not taken for done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cursor {
    newest: u64,
    /// Bit i: `newest − i` is committed.
    window: u64,
}

impl Cursor {
    fn commit(&mut self, stream_sequence: u64) {
        if stream_sequence > self.newest {
            let ahead = stream_sequence - self.newest;
            self.window = if ahead < STREAM_WINDOW { self.window << ahead } else { 0 };
            self.newest = stream_sequence;
            self.window |= 1;
        } else if self.newest - stream_sequence < STREAM_WINDOW {
            self.window |= 1 << (self.newest - stream_sequence);
        }
    }

    /// Bits are only ever set, so two states of one cursor join into one that has both.
    fn join(&mut self, other: Cursor) {
        for behind in 0..STREAM_WINDOW.min(other.newest) {
            if other.window >> behind & 1 == 1 {
                self.commit(other.newest - behind);
            }
        }
    }

    fn has(&self, stream_sequence: u64) -> bool {
        if stream_sequence > self.newest {
            return false;
        }
        let behind = self.newest - stream_sequence;
        // Beyond the window only the order of the stream speaks: what is older was answered.
        behind >= STREAM_WINDOW || self.window >> behind & 1 == 1
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    cursor: Cursor,
    /// Changed since its cells were written.
    dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    streams: u16,
    ring_at: u64,
    ring_bytes: u64,
    salt: u32,
}

/// The log.
#[derive(Debug)]
pub struct WriteBuffer<B> {
    bytes: B,
    layout: Layout,
    /// False for a device that models time only: nothing is written.
    with_data: bool,
    /// Records from the front on, with consecutive sequence numbers, pads included.
    records: VecDeque<(u64, Record)>,
    /// Where the next record goes.
    head: u64,
    next_sequence: u64,
    /// Ring bytes from the written tail to the head.
    used_bytes: u64,
    /// Ring bytes of `records`.
    live_bytes: u64,
    tail_generation: u64,
    streams: Vec<Stream>,
}

impl<B: Bytes> WriteBuffer<B> {
    /// Makes an empty log. What the bytes held is lost. `first_sequence` is the number of the first
    /// record; `salt` is any number that differs from the log that was here before.
    ///
    /// # Errors
    /// [`BufferError::TooSmall`] and [`BufferError::Streams`].
    pub fn format(
        bytes: B,
        streams: u16,
        first_sequence: u64,
        salt: u32,
        with_data: bool,
    ) -> Result<WriteBuffer<B>, BufferError> {
        let layout = Layout::new(bytes.len(), streams, salt)?;
        let mut log = WriteBuffer::empty(bytes, layout, with_data, first_sequence);
        if with_data {
            // The header goes last: a death on the way leaves what is no log.
            log.bytes.write(0, &[0; LINE as usize]);
            log.bytes.fence();
            let cursors = vec![0; index(2 * CURSOR_BYTES * u64::from(streams))];
            log.bytes.write(CURSORS_AT, &cursors);
            log.write_tail();
            log.bytes.write(0, &layout.encode(log.bytes.len()));
        }
        Ok(log)
    }

    /// Reads a log. Every committed record is kept, in order; see [`BufferReport`] for the rest.
    ///
    /// # Errors
    /// [`BufferError::NotALog`], [`BufferError::Version`], [`BufferError::Size`] and
    /// [`BufferError::TailLost`]; the bytes are then as they were.
    pub fn recover(bytes: B) -> Result<(WriteBuffer<B>, BufferReport), (BufferError, B)> {
        let mut report = BufferReport::default();
        let found = Layout::decode(&bytes).and_then(|layout| {
            let cells = [0, 1].map(|cell| Tail::decode(&bytes, cell, &layout));
            report.tail_copy_damaged = cells[0].is_none() || cells[0] != cells[1];
            let newest = cells.into_iter().flatten().max_by_key(|tail| tail.generation);
            newest.map(|tail| (layout, tail)).ok_or(BufferError::TailLost)
        });
        let (layout, tail) = match found {
            Ok(found) => found,
            Err(error) => return Err((error, bytes)),
        };
        let mut log = WriteBuffer::empty(bytes, layout, true, tail.sequence);
        log.head = tail.ring_offset;
        log.tail_generation = tail.generation;
        log.read_cursors(&mut report);
        log.walk(&mut report);
        log.drop_uncommitted(&mut report);
        for position in 0..log.records.len() {
            let record = log.records[position].1;
            log.commit_stream(&record);
            if record.kind != RecordKind::Pad {
                report.records += 1;
                report.payload_bytes += u64::from(record.stored_bytes);
            }
        }
        if report.tail_copy_damaged || report.cursor_copies_damaged > 0 {
            log.write_tail();
        }
        Ok((log, report))
    }

    /// Whether a request with these payloads fits now. It writes the tail if that helps.
    pub fn fits(&mut self, payloads: impl Iterator<Item = u32> + Clone) -> bool {
        let needed = self.needed(payloads);
        if self.used_bytes + needed > self.layout.ring_bytes && self.used_bytes > self.live_bytes {
            self.write_tail();
        }
        self.used_bytes + needed <= self.layout.ring_bytes
    }

    /// Most ring bytes that one request may take: half of the ring, so that it fits into an empty
    /// one wherever the head is.
    #[must_use]
    pub fn request_bytes_max(&self) -> u64 {
        self.layout.ring_bytes / 2
    }

    /// Appends one record and returns its sequence number. All records of a request follow each
    /// other, the last with `last` set; [`WriteBuffer::fits`] was true for all of them. The number
    /// in `record` is ignored.
    ///
    /// # Panics
    /// If there is no room, the stream is unknown or the payload has another length than the record
    /// says: bugs of the caller.
    pub fn push(&mut self, record: &Record, payload: &[u8]) -> u64 {
        assert!(record.stream < self.layout.streams, "stream was checked by the caller");
        let to_end = self.layout.ring_bytes - self.head;
        if to_end < record.ring_bytes() {
            self.place(pad(to_end), &[]);
        }
        let sequence = self.place(*record, payload);
        if record.last {
            self.commit_stream(record);
        }
        sequence
    }

    /// Where the payload of each record of data lies among the log's bytes, oldest first.
    pub(crate) fn payloads(&self) -> impl Iterator<Item = (u64, Record)> + '_ {
        let data = self.records.iter().filter(|(_, record)| record.kind == RecordKind::Data);
        data.map(|(offset, record)| (self.layout.ring_at + offset + RECORD_HEADER_BYTES, *record))
    }

    /// Copies the payload of a record in the log.
    ///
    /// # Panics
    /// If no such record is in the log or `into` has another length: bugs of the caller.
    pub fn read_payload(&self, sequence: u64, into: &mut [u8]) {
        let (offset, record) = self.entry(sequence);
        assert_eq!(<[u8]>::len(into), index(u64::from(record.stored_bytes)), "length of the payload");
        self.bytes.read(self.layout.ring_at + offset + RECORD_HEADER_BYTES, into);
    }

    /// The record of that number, if it is in the log.
    #[must_use]
    pub fn record(&self, sequence: u64) -> Option<&Record> {
        let front = self.records.front()?.1.sequence;
        let position = usize::try_from(sequence.checked_sub(front)?).ok()?;
        self.records.get(position).map(|(_, record)| record)
    }

    /// Records in the log, oldest first, pads included.
    pub fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().map(|(_, record)| record)
    }

    /// Frees every record up to and including `sequence`: the flash has them.
    pub fn release_through(&mut self, sequence: u64) {
        while let Some((_, record)) = self.records.front() {
            if record.sequence > sequence {
                break;
            }
            self.live_bytes -= record.ring_bytes();
            self.records.pop_front();
        }
        let lazy = self.used_bytes - self.live_bytes;
        // The tail is not written for each record: a record that is found again by recovery is
        // written to the flash again, which changes nothing there.
        if lazy >= self.layout.ring_bytes / LAZY_TAIL_PARTS {
            self.write_tail();
        }
    }

    /// Number that the next record will have.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Raises the next sequence number of an empty log, for a device whose flash has newer extents.
    ///
    /// # Panics
    /// If the log is not empty: its numbers could not be consecutive.
    pub fn raise_sequence(&mut self, next_sequence: u64) {
        if next_sequence > self.next_sequence {
            assert!(self.records.is_empty(), "only an empty log may skip sequence numbers");
            self.next_sequence = next_sequence;
            self.write_tail();
        }
    }

    /// Newest committed request of a stream; 0 if there is none.
    #[must_use]
    pub fn stream_cursor(&self, stream: u16) -> u64 {
        self.streams.get(usize::from(stream)).map_or(0, |stream| stream.cursor.newest)
    }

    /// Whether that request of the stream is committed. Exact within [`STREAM_WINDOW`] of the
    /// newest; anything older counts as committed. Number 0 never is.
    #[must_use]
    pub fn is_committed(&self, stream: u16, stream_sequence: u64) -> bool {
        let stream = self.streams.get(usize::from(stream));
        stream_sequence != 0 && stream.is_some_and(|stream| stream.cursor.has(stream_sequence))
    }

    /// Number of streams.
    #[must_use]
    pub fn streams(&self) -> u16 {
        self.layout.streams
    }

    /// Ring bytes of records that are not freed.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Size of the ring.
    #[must_use]
    pub fn ring_bytes(&self) -> u64 {
        self.layout.ring_bytes
    }

    /// Gives the bytes back.
    pub fn into_bytes(self) -> B {
        self.bytes
    }

    /// The bytes, for one who inspects them.
    pub fn bytes(&self) -> &B {
        &self.bytes
    }

    fn empty(bytes: B, layout: Layout, with_data: bool, next_sequence: u64) -> WriteBuffer<B> {
        let stream = Stream { cursor: Cursor::default(), dirty: false };
        WriteBuffer {
            bytes,
            layout,
            with_data,
            records: VecDeque::new(),
            head: 0,
            next_sequence,
            used_bytes: 0,
            live_bytes: 0,
            tail_generation: 0,
            streams: vec![stream; usize::from(layout.streams)],
        }
    }

    fn entry(&self, sequence: u64) -> &(u64, Record) {
        let front = self.records.front().map_or(sequence + 1, |(_, record)| record.sequence);
        assert!(sequence >= front, "record {sequence} was freed");
        &self.records[index(sequence - front)]
    }

    /// Ring bytes of a request at the present head, the pads it causes included.
    fn needed(&self, payloads: impl Iterator<Item = u32>) -> u64 {
        let (mut head, mut needed) = (self.head, 0);
        for stored_bytes in payloads {
            let bytes = record_bytes(stored_bytes);
            let to_end = self.layout.ring_bytes - head;
            if to_end < bytes {
                needed += to_end;
                head = 0;
            }
            needed += bytes;
            head = (head + bytes) % self.layout.ring_bytes;
        }
        needed
    }

    /// Writes one record at the head: payload, then header.
    fn place(&mut self, record: Record, payload: &[u8]) -> u64 {
        let record = Record { sequence: self.next_sequence, ..record };
        let bytes = record.ring_bytes();
        assert!(self.head + bytes <= self.layout.ring_bytes, "a record does not wrap");
        assert!(self.used_bytes + bytes <= self.layout.ring_bytes, "room was checked");
        if self.with_data {
            let at = self.layout.ring_at + self.head;
            if record.kind == RecordKind::Data {
                assert_eq!(payload.len() as u64, u64::from(record.stored_bytes), "length of the payload");
                self.bytes.write(at + RECORD_HEADER_BYTES, payload);
                self.bytes.fence();
            }
            let header = encode(&record, self.head, self.layout.salt);
            self.bytes.write(at, &header);
        }
        self.keep(record);
        record.sequence
    }

    /// Takes a record at the head into the books.
    fn keep(&mut self, record: Record) {
        let bytes = record.ring_bytes();
        self.records.push_back((self.head, record));
        self.head = (self.head + bytes) % self.layout.ring_bytes;
        self.next_sequence = record.sequence + 1;
        self.used_bytes += bytes;
        self.live_bytes += bytes;
    }

    fn commit_stream(&mut self, record: &Record) {
        if record.stream_sequence == 0 {
            return;
        }
        // A damaged log may name a stream that is not: its records are kept, its cursor is not.
        if let Some(stream) = self.streams.get_mut(usize::from(record.stream)) {
            stream.cursor.commit(record.stream_sequence);
            stream.dirty = true;
        }
    }

    /// Writes the cursors that changed, then the tail; only now may freed space be used again.
    fn write_tail(&mut self) {
        self.used_bytes = self.live_bytes;
        if !self.with_data {
            return;
        }
        for copy in [0, 1] {
            self.write_cursors(copy);
        }
        for stream in &mut self.streams {
            stream.dirty = false;
        }
        let (ring_offset, sequence) = match self.records.front() {
            Some((offset, record)) => (*offset, record.sequence),
            None => (self.head, self.next_sequence),
        };
        self.tail_generation += 1;
        let tail = Tail { generation: self.tail_generation, ring_offset, sequence };
        let cell = tail.encode(self.layout.salt);
        for copy in [0, 1] {
            self.bytes.write(TAIL_AT + LINE * copy, &cell);
            self.bytes.fence();
        }
    }

    fn write_cursors(&mut self, copy: u64) {
        for number in 0..self.layout.streams {
            let stream = self.streams[usize::from(number)];
            if stream.dirty {
                let cell = encode_cursor(stream.cursor, number, self.layout.salt);
                self.bytes.write(self.layout.cursor_at(number, copy), &cell);
            }
        }
        self.bytes.fence();
    }
}

/// Recovery.
impl<B: Bytes> WriteBuffer<B> {
    fn read_cursors(&mut self, report: &mut BufferReport) {
        for number in 0..self.layout.streams {
            let copies = [0, 1].map(|copy| self.read_cursor(number, copy));
            let damaged = copies.iter().filter(|cell| cell.is_err()).count();
            report.cursor_copies_damaged += damaged as u64;
            if damaged == 2 {
                report.cursors_lost.push(number);
            }
            let stream = &mut self.streams[usize::from(number)];
            for cursor in copies.iter().flatten() {
                stream.cursor.join(*cursor);
            }
            stream.dirty = damaged > 0;
        }
    }

    /// One copy of a cursor: a cell never written is a cursor at the beginning.
    fn read_cursor(&self, number: u16, copy: u64) -> Result<Cursor, ()> {
        let mut cell = [0; CURSOR_BYTES as usize];
        self.bytes.read(self.layout.cursor_at(number, copy), &mut cell);
        if cell.iter().all(|byte| *byte == 0) {
            return Ok(Cursor::default());
        }
        let cursor = Cursor { newest: read_u64(&cell, 0), window: read_u64(&cell, 8) };
        if encode_cursor(cursor, number, self.layout.salt) == cell { Ok(cursor) } else { Err(()) }
    }

    /// Takes records from the tail on until none follows.
    fn walk(&mut self, report: &mut BufferReport) {
        while self.used_bytes < self.layout.ring_bytes {
            let (sequence, ring_offset) = (self.next_sequence, self.head);
            let next = self
                .header_at(ring_offset)
                .filter(|record| record.sequence == sequence && self.has_room(ring_offset, record));
            if let Some(record) = next {
                if !self.payload_holds(ring_offset, &record) {
                    note(report, Damage { sequence, lost: 0, ring_offset });
                }
                self.keep(record);
            } else if let Some((skipped, record)) = self.resynchronise() {
                let lost = record.sequence - sequence;
                note(report, Damage { sequence, lost, ring_offset });
                self.bridge(skipped, lost);
            } else {
                break;
            }
        }
    }

    /// After a damaged header: the next valid record with a higher number, and how far on it is.
    fn resynchronise(&self) -> Option<(u64, Record)> {
        let mut skipped = LINE;
        while self.used_bytes + skipped < self.layout.ring_bytes {
            let offset = (self.head + skipped) % self.layout.ring_bytes;
            let found = self.header_at(offset).filter(|record| {
                // The lost records took at least a line each, so their number is bounded.
                let lost = record.sequence.checked_sub(self.next_sequence);
                lost.is_some_and(|lost| lost >= 1 && lost <= skipped / LINE)
                    && self.used_bytes + skipped + record.ring_bytes() <= self.layout.ring_bytes
                    && offset + record.ring_bytes() <= self.layout.ring_bytes
                    && self.payload_holds(offset, record)
            });
            if let Some(record) = found {
                return Some((skipped, record));
            }
            skipped += LINE;
        }
        None
    }

    /// Stands pads in for what was lost, so that numbers stay consecutive and the space accounted
    /// for: all but the last are a bare header long. They are in the books only, so the last may go
    /// over the end of the ring.
    fn bridge(&mut self, skipped: u64, lost: u64) {
        for _ in 1..lost {
            self.keep(Record { sequence: self.next_sequence, ..pad(LINE) });
        }
        let rest = skipped - (lost - 1) * LINE;
        self.keep(Record { sequence: self.next_sequence, ..pad(rest) });
    }

    /// Drops what follows the last committed record, and erases it, newest first.
    fn drop_uncommitted(&mut self, report: &mut BufferReport) {
        while let Some((_, record)) = self.records.back() {
            if record.last {
                break;
            }
            report.uncommitted += u64::from(record.kind != RecordKind::Pad);
            self.forget_newest();
        }
    }

    fn forget_newest(&mut self) {
        if let Some((offset, record)) = self.records.pop_back() {
            self.bytes.write(self.layout.ring_at + offset, &[0; LINE as usize]);
            self.bytes.fence();
            self.head = offset;
            self.next_sequence = record.sequence;
            self.used_bytes -= record.ring_bytes();
            self.live_bytes -= record.ring_bytes();
        }
    }

    fn header_at(&self, ring_offset: u64) -> Option<Record> {
        let mut header: HeaderBytes = [0; RECORD_HEADER_BYTES as usize];
        self.bytes.read(self.layout.ring_at + ring_offset, &mut header);
        decode(&header, ring_offset, self.layout.salt)
    }

    fn has_room(&self, ring_offset: u64, record: &Record) -> bool {
        ring_offset + record.ring_bytes() <= self.layout.ring_bytes
            && self.used_bytes + record.ring_bytes() <= self.layout.ring_bytes
    }

    fn payload_holds(&self, ring_offset: u64, record: &Record) -> bool {
        if record.kind != RecordKind::Data {
            return true;
        }
        let mut at = self.layout.ring_at + ring_offset + RECORD_HEADER_BYTES;
        let mut left = index(u64::from(record.stored_bytes));
        let mut crc = 0;
        let mut part = [0; 4096];
        while left > 0 {
            let length = left.min(part.len());
            self.bytes.read(at, &mut part[..length]);
            crc = crc32c::crc32c_append(crc, &part[..length]);
            at += length as u64;
            left -= length;
        }
        crc == record.checksum
    }
}

/// The bytes of a log that a recovery decides by, but for payloads: all before the ring, and in it the lines that begin
/// as the header of a record does. For the others zeroes give the same.
pub(crate) fn deciding_lines(bytes: &impl Bytes, streams: u16, found: &mut dyn FnMut(u64, &[u8])) {
    let ring_at = CURSORS_AT + 2 * CURSOR_BYTES * u64::from(streams);
    let mut part = [0; 4096];
    let mut at = 0;
    while at < bytes.len() {
        let length = (bytes.len() - at).min(part.len() as u64) as usize;
        bytes.read(at, &mut part[..length]);
        for (index, line) in part[..length].chunks(LINE as usize).enumerate() {
            let offset = at + index as u64 * LINE;
            let is_header = line.len() == LINE as usize && read_u32(line, at::MAGIC) == RECORD_MAGIC;
            if is_header || (offset < ring_at && line.iter().any(|byte| *byte != 0)) {
                found(offset, line);
            }
        }
        at += length as u64;
    }
}

fn note(report: &mut BufferReport, damage: Damage) {
    report.damage_count += 1;
    if report.damages.len() < DAMAGES_MAX {
        report.damages.push(damage);
    }
}

/// A record that fills `bytes` of the ring, its header included.
fn pad(bytes: u64) -> Record {
    Record {
        sequence: 0,
        kind: RecordKind::Pad,
        slba: Lba(0),
        blocks: 0,
        raw_bytes: 0,
        stored_bytes: u32::try_from(bytes - RECORD_HEADER_BYTES).unwrap_or(u32::MAX),
        tag: 0,
        checksum: 0,
        stream: 0,
        stream_sequence: 0,
        last: false,
    }
}

impl Layout {
    fn new(bytes: u64, streams: u16, salt: u32) -> Result<Layout, BufferError> {
        if streams == 0 || streams > STREAMS_MAX {
            return Err(BufferError::Streams { streams });
        }
        let ring_at = CURSORS_AT + 2 * CURSOR_BYTES * u64::from(streams);
        let ring_bytes = (bytes.saturating_sub(ring_at) / LINE * LINE).min(RING_BYTES_MAX);
        if ring_bytes < RING_BYTES_MIN {
            let needed = ring_at + RING_BYTES_MIN;
            return Err(BufferError::TooSmall { bytes, needed, streams });
        }
        Ok(Layout { streams, ring_at, ring_bytes, salt })
    }

    fn cursor_at(&self, stream: u16, copy: u64) -> u64 {
        CURSORS_AT + CURSOR_BYTES * (u64::from(self.streams) * copy + u64::from(stream))
    }

    fn encode(&self, bytes: u64) -> HeaderBytes {
        let mut header: HeaderBytes = [0; 64];
        put(&mut header, 0, HEADER_MAGIC.to_le_bytes());
        put(&mut header, 8, BUFFER_VERSION.to_le_bytes());
        put(&mut header, 12, self.streams.to_le_bytes());
        put(&mut header, 16, bytes.to_le_bytes());
        put(&mut header, 24, self.ring_at.to_le_bytes());
        put(&mut header, 32, self.ring_bytes.to_le_bytes());
        put(&mut header, 40, self.salt.to_le_bytes());
        let crc = crc32c::crc32c(&header[..60]);
        put(&mut header, 60, crc.to_le_bytes());
        header
    }

    fn decode(bytes: &impl Bytes) -> Result<Layout, BufferError> {
        if bytes.len() < LINE {
            return Err(BufferError::NotALog);
        }
        let mut header: HeaderBytes = [0; 64];
        bytes.read(0, &mut header);
        let sound = read_u64(&header, 0) == HEADER_MAGIC && read_u32(&header, 60) == crc32c::crc32c(&header[..60]);
        if !sound {
            return Err(BufferError::NotALog);
        }
        let found = read_u32(&header, 8);
        if found != BUFFER_VERSION {
            return Err(BufferError::Version { found });
        }
        let expected = read_u64(&header, 16);
        if expected != bytes.len() {
            return Err(BufferError::Size { bytes: bytes.len(), expected });
        }
        let layout = Layout::new(bytes.len(), read_u16(&header, 12), read_u32(&header, 40))?;
        // The offsets are stored for other readers; here they follow from the size.
        let stored = (read_u64(&header, 24), read_u64(&header, 32));
        if stored == (layout.ring_at, layout.ring_bytes) { Ok(layout) } else { Err(BufferError::NotALog) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tail {
    generation: u64,
    ring_offset: u64,
    sequence: u64,
}

impl Tail {
    fn encode(&self, salt: u32) -> HeaderBytes {
        let mut cell: HeaderBytes = [0; 64];
        put(&mut cell, 0, TAIL_MAGIC.to_le_bytes());
        put(&mut cell, 8, self.generation.to_le_bytes());
        put(&mut cell, 16, self.ring_offset.to_le_bytes());
        put(&mut cell, 24, self.sequence.to_le_bytes());
        let crc = crc32c::crc32c_append(salt, &cell[..60]);
        put(&mut cell, 60, crc.to_le_bytes());
        cell
    }

    fn decode(bytes: &impl Bytes, cell: u64, layout: &Layout) -> Option<Tail> {
        let mut found: HeaderBytes = [0; 64];
        bytes.read(TAIL_AT + LINE * cell, &mut found);
        let tail =
            Tail { generation: read_u64(&found, 8), ring_offset: read_u64(&found, 16), sequence: read_u64(&found, 24) };
        let inside = tail.ring_offset < layout.ring_bytes && tail.ring_offset.is_multiple_of(LINE);
        (inside && tail.encode(layout.salt) == found).then_some(tail)
    }
}

fn encode_cursor(cursor: Cursor, stream: u16, salt: u32) -> [u8; CURSOR_BYTES as usize] {
    let mut cell = [0; CURSOR_BYTES as usize];
    put(&mut cell, 0, cursor.newest.to_le_bytes());
    put(&mut cell, 8, cursor.window.to_le_bytes());
    put(&mut cell, 16, CURSOR_MAGIC.to_le_bytes());
    put(&mut cell, 20, stream.to_le_bytes());
    let crc = crc32c::crc32c_append(salt, &cell[..28]);
    put(&mut cell, 28, crc.to_le_bytes());
    cell
}

fn encode(record: &Record, ring_offset: u64, salt: u32) -> HeaderBytes {
    let mut header: HeaderBytes = [0; 64];
    put(&mut header, at::MAGIC, RECORD_MAGIC.to_le_bytes());
    put(&mut header, at::VERSION, [1]);
    let kind = match record.kind {
        RecordKind::Data => 1,
        RecordKind::Trim => 2,
        RecordKind::Pad => 3,
    };
    put(&mut header, at::KIND, [kind]);
    put(&mut header, at::FLAGS, (if record.last { FLAG_LAST } else { 0 }).to_le_bytes());
    put(&mut header, at::SEQUENCE, record.sequence.to_le_bytes());
    put(&mut header, at::SLBA, record.slba.0.to_le_bytes());
    put(&mut header, at::STREAM_SEQUENCE, record.stream_sequence.to_le_bytes());
    put(&mut header, at::BLOCKS, record.blocks.to_le_bytes());
    put(&mut header, at::RAW_BYTES, record.raw_bytes.to_le_bytes());
    put(&mut header, at::STORED_BYTES, record.stored_bytes.to_le_bytes());
    put(&mut header, at::TAG, record.tag.to_le_bytes());
    put(&mut header, at::CHECKSUM, record.checksum.to_le_bytes());
    put(&mut header, at::STREAM, record.stream.to_le_bytes());
    let crc = header_crc(&header, ring_offset, salt);
    put(&mut header, at::CRC, crc.to_le_bytes());
    header
}

fn decode(header: &HeaderBytes, ring_offset: u64, salt: u32) -> Option<Record> {
    if read_u32(header, at::MAGIC) != RECORD_MAGIC
        || read_u32(header, at::CRC) != header_crc(header, ring_offset, salt)
        || header[at::VERSION] != 1
    {
        return None;
    }
    let kind = match header[at::KIND] {
        1 => RecordKind::Data,
        2 => RecordKind::Trim,
        3 => RecordKind::Pad,
        _ => return None,
    };
    Some(Record {
        sequence: read_u64(header, at::SEQUENCE),
        kind,
        slba: Lba(read_u64(header, at::SLBA)),
        blocks: read_u32(header, at::BLOCKS),
        raw_bytes: read_u32(header, at::RAW_BYTES),
        stored_bytes: read_u32(header, at::STORED_BYTES),
        tag: read_u32(header, at::TAG),
        checksum: read_u32(header, at::CHECKSUM),
        stream: read_u16(header, at::STREAM),
        stream_sequence: read_u64(header, at::STREAM_SEQUENCE),
        last: read_u16(header, at::FLAGS) & FLAG_LAST != 0,
    })
}

/// The CRC covers, besides the header, where it lies and in which log.
fn header_crc(header: &HeaderBytes, ring_offset: u64, salt: u32) -> u32 {
    let crc = crc32c::crc32c_append(salt, &header[..at::CRC]);
    crc32c::crc32c_append(crc, &ring_offset.to_le_bytes())
}

fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}

fn read_u16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(bytes, at))
}

fn read_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

/// An offset as an index: the supplied bytes are in memory, so it fits.
fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "buffer_tests.rs"]
mod tests;
