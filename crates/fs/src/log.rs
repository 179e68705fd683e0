//! The intent log: what was made persistent and is not in the store yet.
//!
//! A record has what changed in the metadata since the record before it, and the small writes of data that go to the
//! device with it. It is written with one command or few, durably, beside the data at their own places. When the file
//! system is mounted the records behind the last that the store knows of are applied, in order, up to the first that is
//! not whole. A transaction of the store begins the log anew.
//!
//! | bytes | what |
//! | --- | --- |
//! | 8 | `OSIERLOG` |
//! | 16 | the file system's identity: what an earlier one has left is none of its records |
//! | 8 | the record's sequence number, one more than that of the record before it |
//! | 4, 4, 4 | bytes of the head, pairs, blocks of data |
//! | 4 | CRC-32C of all but itself: the head up to its length, and the data |
//! | 7 and more | each pair: bytes of the key (2), whether there is a value (1), bytes of the value (4), both |
//! | 8 | each block of data: its place |
//! | 4096 | in blocks of their own: the data |
//!
//! Numbers are little-endian. Only the last record's data are put to their places again: those of the others were
//! persistent before the next record was begun, and may have been overwritten since, or belong to another file.

use std::io;

use crate::behind::{DIRTY_MAX, Dirty};
use crate::blocks::{BLOCK_BYTES, Blocks};
use crate::layout::Geometry;
use crate::store::{Layer, Pairs};

const MAGIC: [u8; 8] = *b"OSIERLOG";
const HEAD_BYTES: usize = 8 + 16 + 8 + 4 + 4 + 4 + 4;
/// Where the checksum is.
const SUM: usize = HEAD_BYTES - 4;
/// Most bytes of the pairs of one record: more is a transaction of the store.
pub(crate) const PAIRS_BYTES_MAX: usize = 64 << 10;
/// Bytes of a pair beside key and value.
pub(crate) const PAIR_BYTES: usize = 7;
const HEAD_BYTES_MAX: usize = HEAD_BYTES + PAIRS_BYTES_MAX + DIRTY_MAX * 8;
/// Most blocks of a record.
pub(crate) const RECORD_BLOCKS_MAX: u64 = (HEAD_BYTES_MAX.div_ceil(BLOCK_BYTES) + DIRTY_MAX) as u64;

/// Where the next record goes.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    geometry: Geometry,
    /// Blocks of the log that have records.
    used: u64,
    /// Of the last record.
    sequence: u64,
    /// Whether the last record has data.
    has_data: bool,
}

/// What a log holds beyond what the store knows.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Replay {
    /// Records.
    pub records: u64,
    /// All that they change.
    pub layer: Layer,
    /// The last one's data, by their places.
    pub data: Data,
}

impl Log {
    /// An empty log; `sequence` is that of the last record that the store knows of.
    pub fn new(geometry: Geometry, sequence: u64) -> Log {
        Log { geometry, used: 0, sequence, has_data: false }
    }

    /// Where it lies.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The number of the last record.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Whether there is room for any record.
    pub fn has_room(&self) -> bool {
        self.used + RECORD_BLOCKS_MAX <= self.geometry.log_blocks()
    }

    /// Whether the last record's data would be put to their places at the next mount: whatever is made persistent there
    /// needs a record behind it.
    pub fn holds_data(&self) -> bool {
        self.has_data
    }

    /// The next record: its place, and its bytes. [`Log::advance`] says that it is persistent.
    pub fn record(&self, pairs: &Pairs, data: &[Dirty]) -> (u64, Vec<u8>) {
        let mut bytes = Vec::with_capacity((2 + data.len()) * BLOCK_BYTES);
        bytes.extend(MAGIC);
        bytes.extend(self.geometry.identity);
        bytes.extend((self.sequence + 1).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((pairs.len() as u32).to_le_bytes());
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend([0; 4]);
        for (key, value) in pairs {
            bytes.extend((key.len() as u16).to_le_bytes());
            bytes.push(u8::from(value.is_some()));
            bytes.extend((value.as_ref().map_or(0, Vec::len) as u32).to_le_bytes());
            bytes.extend(key);
            bytes.extend(value.iter().flatten());
        }
        data.iter().for_each(|dirty| bytes.extend(dirty.block.to_le_bytes()));
        let head = bytes.len();
        bytes[32..36].copy_from_slice(&(head as u32).to_le_bytes());
        bytes.resize(head.next_multiple_of(BLOCK_BYTES), 0);
        data.iter().for_each(|dirty| bytes.extend_from_slice(&dirty.bytes));
        let sum = sum(&bytes, head);
        bytes[SUM..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        (self.geometry.log_start() + self.used, bytes)
    }

    /// The record that [`Log::record`] has made is persistent.
    pub fn advance(&mut self, record: &[u8], data: &[Dirty]) {
        self.used += (record.len() / BLOCK_BYTES) as u64;
        self.sequence += 1;
        self.has_data = !data.is_empty();
    }

    /// The store has all of it.
    pub fn restart(&mut self) {
        (self.used, self.has_data) = (0, false);
    }
}

/// The checksum of a record whose head has so many bytes.
fn sum(record: &[u8], head: usize) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&record[..SUM]), &record[HEAD_BYTES..head]);
    crc32c::crc32c_append(sum, &record[head.next_multiple_of(BLOCK_BYTES)..])
}

/// Reads the records behind one.
///
/// # Errors
/// What the device says.
pub(crate) fn replay(blocks: &dyn Blocks, geometry: &Geometry, sequence: u64) -> io::Result<Replay> {
    let (mut replay, mut at) = (Replay::default(), 0);
    while let Some((length, pairs, data)) = read(blocks, geometry, at, sequence + 1 + replay.records)? {
        replay.layer.extend(pairs);
        replay.data = data;
        replay.records += 1;
        at += length;
    }
    Ok(replay)
}

/// Blocks of data, by their places.
type Data = Vec<(u64, Vec<u8>)>;

/// The record at a place, if there is one of this number and it is whole: its blocks, its pairs, and its data.
fn read(blocks: &dyn Blocks, geometry: &Geometry, at: u64, sequence: u64) -> io::Result<Option<(u64, Pairs, Data)>> {
    let left = geometry.log_blocks() - at;
    if left == 0 {
        return Ok(None);
    }
    let mut record = vec![0; BLOCK_BYTES];
    blocks.read(geometry.log_start() + at, &mut record)?;
    let mut reader = Reader(&record);
    let begins = reader.take(8) == Some(&MAGIC) && reader.take(16) == Some(&geometry.identity);
    let (Some(found), Some(head), Some(pairs), Some(data)) = (reader.u64(), reader.u32(), reader.u32(), reader.u32())
    else {
        return Ok(None);
    };
    let blocks_of_head = u64::from(head).div_ceil(BLOCK_BYTES as u64);
    let length = blocks_of_head + u64::from(data);
    if !begins || found != sequence || (head as usize) < HEAD_BYTES || length > left.min(RECORD_BLOCKS_MAX) {
        return Ok(None);
    }
    record.resize(length as usize * BLOCK_BYTES, 0);
    blocks.read(geometry.log_start() + at + 1, &mut record[BLOCK_BYTES..])?;
    let head = head as usize;
    if sum(&record, head).to_le_bytes() != record[SUM..HEAD_BYTES] {
        return Ok(None);
    }
    let taken = take_apart(&record, head, pairs, data, geometry);
    if taken.is_none() {
        tracing::error!(sequence, "a record of the log has a right checksum and no sense; it is left out");
    }
    Ok(taken.map(|(pairs, data)| (length, pairs, data)))
}

fn take_apart(record: &[u8], head: usize, pairs: u32, data: u32, geometry: &Geometry) -> Option<(Pairs, Data)> {
    let mut reader = Reader(record.get(HEAD_BYTES..head)?);
    let mut changes = Pairs::new();
    for _ in 0..pairs {
        let (key, has_value, value) = (reader.u16()?, reader.take(1)?[0] != 0, reader.u32()?);
        let key = reader.take(usize::from(key))?.to_vec();
        let value = reader.take(value as usize)?.to_vec();
        changes.push((key, has_value.then_some(value)));
    }
    let mut places = Vec::new();
    for index in 0..data as usize {
        let block = reader.u64().filter(|block| (geometry.data_start()..geometry.blocks).contains(block))?;
        let from = head.next_multiple_of(BLOCK_BYTES) + index * BLOCK_BYTES;
        places.push((block, record.get(from..from + BLOCK_BYTES)?.to_vec()));
    }
    reader.0.is_empty().then_some((changes, places))
}

/// Takes a record apart.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(first)
    }

    fn number(&mut self, bytes: usize) -> Option<u64> {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(self.take(bytes)?);
        Some(u64::from_le_bytes(number))
    }

    fn u16(&mut self) -> Option<u16> {
        self.number(2).map(|number| number as u16)
    }

    fn u32(&mut self) -> Option<u32> {
        self.number(4).map(|number| number as u32)
    }

    fn u64(&mut self) -> Option<u64> {
        self.number(8)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::behind::Behind;
    use crate::blocks::MemoryBlocks;

    const BLOCKS: u64 = 4096;

    struct Draw(u64);

    impl Draw {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) % bound
        }

        fn pairs(&mut self) -> Pairs {
            let mut pairs = Pairs::new();
            for _ in 0..self.below(40) {
                let key = vec![self.below(30) as u8; self.below(20) as usize];
                let value = vec![self.below(256) as u8; self.below(600) as usize];
                pairs.push((key, (self.below(4) > 0).then_some(value)));
            }
            pairs
        }

        fn data(&mut self, geometry: &Geometry) -> Vec<Dirty> {
            let behind = Behind::new(Arc::new(MemoryBlocks::new(BLOCKS as usize)));
            for _ in 0..self.below(3) {
                let block = geometry.data_start() + self.below(100);
                behind.write_all(&[(block, &[self.below(256) as u8; BLOCK_BYTES])]).unwrap();
            }
            behind.dirty()
        }
    }

    /// Writes records until there is no room; what a replay must find, and where each begins.
    fn fill(blocks: &dyn Blocks, geometry: &Geometry, seed: u64) -> Vec<(u64, Replay)> {
        let (mut draw, mut log) = (Draw(seed), Log::new(*geometry, 41));
        let (mut expected, mut states) = (Replay::default(), Vec::new());
        while log.has_room() {
            let (pairs, data) = (draw.pairs(), draw.data(geometry));
            let (place, record) = log.record(&pairs, &data);
            blocks.write(place, &record).unwrap();
            log.advance(&record, &data);
            assert_eq!(log.holds_data(), !data.is_empty());
            expected.records += 1;
            expected.layer.extend(pairs);
            expected.data = data.iter().map(|dirty| (dirty.block, dirty.bytes.to_vec())).collect();
            let Replay { records, layer, data } = &expected;
            states.push((place, Replay { records: *records, layer: layer.clone(), data: data.clone() }));
        }
        states
    }

    #[test]
    fn records_are_found_up_to_the_first_that_is_not_whole() {
        let geometry = Geometry::new(BLOCKS, [9; 16]).unwrap();
        let mut draw = Draw(1);
        for seed in 1..=20 {
            let blocks = MemoryBlocks::new(BLOCKS as usize);
            assert_eq!(replay(&blocks, &geometry, 41).unwrap(), Replay::default());
            let states = fill(&blocks, &geometry, seed);
            assert!(states.len() > 10);
            let found = replay(&blocks, &geometry, 41).unwrap();
            assert!(found == states[states.len() - 1].1, "seed {seed}");
            // Others that are there are of another file system, or the store has them, or one before them is missing.
            let other = Geometry { identity: [8; 16], ..geometry };
            assert_eq!(replay(&blocks, &other, 41).unwrap().records, 0);
            for sequence in [40, 42] {
                assert_eq!(replay(&blocks, &geometry, sequence).unwrap().records, 0);
            }
            // Any bit of a record, but for what fills its last block.
            let broken = draw.below(states.len() as u64 - 1) as usize;
            let (place, end) = (states[broken].0, states[broken + 1].0);
            let mut record = vec![0; (end - place) as usize * BLOCK_BYTES];
            blocks.read(place, &mut record).unwrap();
            let head = u32::from_le_bytes(record[32..36].try_into().unwrap()) as usize;
            let padded = head.next_multiple_of(BLOCK_BYTES);
            for _ in 0..200 {
                let at = draw.below(record.len() as u64) as usize;
                if (head..padded).contains(&at) {
                    continue;
                }
                let mut bad = record.clone();
                bad[at] ^= 1 << draw.below(8);
                blocks.write(place, &bad).unwrap();
                let found = replay(&blocks, &geometry, 41).unwrap();
                let expected = broken.checked_sub(1).map(|last| &states[last].1);
                assert!(
                    expected.map_or(found == Replay::default(), |expected| found == *expected),
                    "seed {seed}, {at}"
                );
            }
        }
    }

    #[test]
    fn the_largest_record_fits() {
        let geometry = Geometry::new(BLOCKS, [9; 16]).unwrap();
        let pairs: Pairs = (0..PAIRS_BYTES_MAX / (PAIR_BYTES + 1)).map(|key| (vec![key as u8], None)).collect();
        let behind = Behind::new(Arc::new(MemoryBlocks::new(BLOCKS as usize)));
        for block in 0..DIRTY_MAX as u64 {
            behind.write_all(&[(geometry.data_start() + 2 * block, &[1; BLOCK_BYTES])]).unwrap();
        }
        let (_, record) = Log::new(geometry, 0).record(&pairs, &behind.dirty());
        assert!(record.len() <= RECORD_BLOCKS_MAX as usize * BLOCK_BYTES);
    }
}
