//! A recording as a file: blocks, each with a header and a checksum, one after the other.
//!
//! A block is whole or it is not there: what a death of the writer leaves of the last one is shorter than its header
//! says, and is cut off. Anything else that is wrong is damage, and is said; so is a block that is shorter than it says
//! and has another one behind it.

use std::io::{ErrorKind, Read};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 40;
/// The version of the format that this code writes, and the only one that it reads.
pub const VERSION: u16 = 1;
/// Most bytes of the records of a block.
pub const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// What every block begins with, and so a recording.
pub const MAGIC: [u8; 8] = *b"OSIERCR\x1a";

/// Offsets in a block's header; fields are little-endian.
mod at {
    pub const VERSION: usize = 8;
    pub const RESERVED: usize = 10;
    pub const LIFE: usize = 12;
    pub const NUMBER: usize = 16;
    pub const FIRST_INPUT: usize = 24;
    pub const BYTES: usize = 32;
    pub const CRC: usize = 36;
}

const _: () = assert!(at::CRC + 4 == BLOCK_HEADER_BYTES);

/// A block's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// Which life of the core it belongs to, from 0.
    pub life: u32,
    /// Its number in that life, from 0.
    pub number: u64,
    /// Records of that life before it.
    pub first_input: u64,
    /// Bytes of its records.
    pub bytes: u32,
}

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It does not begin as one.
    #[error("this is no recording of a device core; `osier serve --record-core FILE` makes one")]
    NotARecording,
    /// It is of another version.
    #[error(
        "the recording has version {found}, and this program reads version {VERSION}; use the program that made it"
    )]
    Version {
        /// Version found.
        found: u16,
    },
    /// A block is not as it was written.
    #[error(
        "the recording is damaged at byte {at}: {what}; what is before it was replayed and agrees; take a copy of the file"
    )]
    Damaged {
        /// First byte of the block.
        at: u64,
        /// What does not fit.
        what: String,
    },
    /// It cannot be read.
    #[error("reading the recording failed at byte {at}")]
    Io {
        /// Where.
        at: u64,
        /// What the system says.
        source: std::io::Error,
    },
}

/// What comes next in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A whole block: its header and its records.
    Block(BlockHeader, Vec<u8>),
    /// So many bytes of one that was being written when its writer died.
    Torn(u64),
    /// Nothing.
    End,
}

impl BlockHeader {
    /// The header as bytes, over these records.
    #[must_use]
    pub fn encode(&self, records: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
        let mut header = [0; BLOCK_HEADER_BYTES];
        header[..8].copy_from_slice(&MAGIC);
        header[at::VERSION..at::RESERVED].copy_from_slice(&VERSION.to_le_bytes());
        header[at::LIFE..at::NUMBER].copy_from_slice(&self.life.to_le_bytes());
        header[at::NUMBER..at::FIRST_INPUT].copy_from_slice(&self.number.to_le_bytes());
        header[at::FIRST_INPUT..at::BYTES].copy_from_slice(&self.first_input.to_le_bytes());
        header[at::BYTES..at::CRC].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = checksum(&header, records);
        header[at::CRC..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// The header in these bytes, and its checksum, which the records decide.
    ///
    /// # Errors
    /// Bytes that are no header, or of another version.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_BYTES]) -> Result<(BlockHeader, u32), RecordingError> {
        if bytes[..8] != MAGIC {
            return Err(RecordingError::NotARecording);
        }
        let found = u16::from_le_bytes(get(bytes, at::VERSION));
        if found != VERSION {
            return Err(RecordingError::Version { found });
        }
        let header = BlockHeader {
            life: u32::from_le_bytes(get(bytes, at::LIFE)),
            number: u64::from_le_bytes(get(bytes, at::NUMBER)),
            first_input: u64::from_le_bytes(get(bytes, at::FIRST_INPUT)),
            bytes: u32::from_le_bytes(get(bytes, at::BYTES)),
        };
        Ok((header, u32::from_le_bytes(get(bytes, at::CRC))))
    }
}

/// Reads the block that begins at byte `at` of a file.
///
/// # Errors
/// What is no block, and not the rest of one that was never finished.
pub fn read_block(from: &mut dyn Read, at: u64) -> Result<Next, RecordingError> {
    let mut header_bytes = [0; BLOCK_HEADER_BYTES];
    let found = read_up_to(from, &mut header_bytes).map_err(|source| RecordingError::Io { at, source })?;
    if found < BLOCK_HEADER_BYTES {
        let begins_so = header_bytes[..found.min(8)] == MAGIC[..found.min(8)];
        return match found {
            0 => Ok(Next::End),
            _ if begins_so => Ok(Next::Torn(found as u64)),
            _ => Err(not_a_block(at)),
        };
    }
    let damaged = |what: &str| RecordingError::Damaged { at, what: what.to_owned() };
    let (header, crc) = BlockHeader::decode(&header_bytes).map_err(|error| match error {
        RecordingError::NotARecording => not_a_block(at),
        other => other,
    })?;
    if header.bytes > BLOCK_BYTES_MAX {
        return Err(damaged("a block says that it is longer than blocks are"));
    }
    let mut records = vec![0; header.bytes as usize];
    let found = read_up_to(from, &mut records).map_err(|source| RecordingError::Io { at, source })?;
    if found < records.len() {
        if records[..found].windows(MAGIC.len()).any(|bytes| bytes == MAGIC) {
            return Err(damaged("a block says that it is longer than the file, and another block follows it"));
        }
        return Ok(Next::Torn((BLOCK_HEADER_BYTES + found) as u64));
    }
    if checksum(&header_bytes, &records) != crc {
        return Err(damaged("a block does not fit its checksum"));
    }
    Ok(Next::Block(header, records))
}

fn not_a_block(at: u64) -> RecordingError {
    match at {
        0 => RecordingError::NotARecording,
        _ => RecordingError::Damaged { at, what: "no block begins here".to_owned() },
    }
}

fn read_up_to(from: &mut dyn Read, into: &mut [u8]) -> std::io::Result<usize> {
    let mut found = 0;
    while found < into.len() {
        match from.read(&mut into[found..]) {
            Ok(0) => break,
            Ok(count) => found += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

fn checksum(header: &[u8; BLOCK_HEADER_BYTES], records: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&header[..at::CRC]), records)
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut value = [0; N];
    value.copy_from_slice(&bytes[at..at + N]);
    value
}
