//! The NVM command set: what an I/O command asks for.

use osier_device::Status;

use crate::command::{Command, nvm};
use crate::controller::Namespace;
use crate::status::{INVALID_OPCODE, NAMESPACE_WRITE_PROTECTED};
use crate::{BLOCK_BYTES, TRANSFER_BYTES_MAX};

/// Bytes of a range of Dataset Management.
pub const RANGE_BYTES: usize = 16;
/// Most ranges of one command.
pub const RANGES_MAX: usize = 256;

/// Force Unit Access: bit 30 of dword 12.
const FUA: u32 = 1 << 30;
/// Deallocate, of Write Zeroes: bit 25 of dword 12.
const DEALLOCATE: u32 = 1 << 25;
/// Protection information and its checks, bits 29:26 of dword 12: there is none.
const PRINFO: u32 = 0b1111 << 26;
/// Attribute Deallocate of Dataset Management: bit 2 of dword 11.
const AD: u32 = 1 << 2;

/// Which way a command's data go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// There are none.
    None,
    /// From the client.
    ToController,
    /// To the client.
    FromController,
}

/// Consecutive blocks of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// Its first block.
    pub slba: u64,
    /// How many.
    pub blocks: u64,
}

/// What an I/O command asks for; its ranges lie in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Io {
    /// All that was completed is persistent when this ends.
    Flush,
    /// Blocks to the client. With FUA they are on the media first, which they are when they were written so: a read
    /// never shows what a loss of power could take back if its write was not acknowledged as persistent.
    Read {
        /// Which.
        range: BlockRange,
        /// Force Unit Access.
        fua: bool,
    },
    /// Blocks from the client.
    Write {
        /// Which.
        range: BlockRange,
        /// Force Unit Access.
        fua: bool,
    },
    /// Blocks that read as zeroes from now on.
    WriteZeroes {
        /// Which.
        range: BlockRange,
        /// They need not keep their place on the media.
        deallocate: bool,
        /// Force Unit Access.
        fua: bool,
    },
    /// Whether blocks hold what the client gives.
    Compare(BlockRange),
    /// Whether blocks can be read.
    Verify(BlockRange),
    /// So many ranges, in the client's memory, whose blocks nobody needs any more.
    Deallocate {
        /// How many.
        ranges: usize,
    },
    /// A hint that is taken note of, and not acted on.
    Hint {
        /// How many ranges it names.
        ranges: usize,
    },
}

impl Io {
    /// What a command asks of a namespace.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn decode(command: &Command, namespace: &Namespace) -> Result<Io, Status> {
        if command.fuse != 0 {
            // Fused operations are not announced (FUSES is zero).
            return Err(Status::INVALID_FIELD);
        }
        let io = Io::parse(command)?;
        if let Some(range) = io.range() {
            let end = range.slba.checked_add(range.blocks);
            if end.is_none_or(|end| end > namespace.blocks) {
                return Err(Status::LBA_OUT_OF_RANGE);
            }
        }
        if io.changes() && namespace.is_read_only {
            return Err(NAMESPACE_WRITE_PROTECTED);
        }
        if io.data().1 > TRANSFER_BYTES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        Ok(io)
    }

    fn parse(command: &Command) -> Result<Io, Status> {
        let dword = command.cdw[2];
        // NLB, bits 15:0 of dword 12, counts from zero.
        let range = BlockRange { slba: command.slba(), blocks: u64::from(dword & 0xFFFF) + 1 };
        let fua = dword & FUA != 0;
        let unprotected = if dword & PRINFO == 0 { Ok(()) } else { Err(Status::INVALID_FIELD) };
        Ok(match command.opcode {
            nvm::FLUSH => Io::Flush,
            nvm::READ => unprotected.map(|()| Io::Read { range, fua })?,
            nvm::WRITE => unprotected.map(|()| Io::Write { range, fua })?,
            nvm::COMPARE => unprotected.map(|()| Io::Compare(range))?,
            nvm::VERIFY => unprotected.map(|()| Io::Verify(range))?,
            nvm::WRITE_ZEROES => {
                unprotected.map(|()| Io::WriteZeroes { range, deallocate: dword & DEALLOCATE != 0, fua })?
            }
            nvm::DATASET_MANAGEMENT => {
                // NR, bits 7:0 of dword 10, counts from zero.
                let ranges = (command.cdw[0] & 0xFF) as usize + 1;
                if command.cdw[1] & AD != 0 { Io::Deallocate { ranges } } else { Io::Hint { ranges } }
            }
            _ => return Err(INVALID_OPCODE),
        })
    }

    /// The blocks that it names by itself.
    #[must_use]
    pub fn range(&self) -> Option<BlockRange> {
        match *self {
            Io::Read { range, .. }
            | Io::Write { range, .. }
            | Io::WriteZeroes { range, .. }
            | Io::Compare(range)
            | Io::Verify(range) => Some(range),
            Io::Flush | Io::Deallocate { .. } | Io::Hint { .. } => None,
        }
    }

    /// Which way its data go, and how many bytes they are.
    #[must_use]
    pub fn data(&self) -> (Direction, u64) {
        match *self {
            Io::Read { range, .. } => (Direction::FromController, range.blocks * BLOCK_BYTES),
            Io::Write { range, .. } | Io::Compare(range) => (Direction::ToController, range.blocks * BLOCK_BYTES),
            Io::Deallocate { ranges } | Io::Hint { ranges } => (Direction::ToController, (ranges * RANGE_BYTES) as u64),
            Io::Flush | Io::WriteZeroes { .. } | Io::Verify(_) => (Direction::None, 0),
        }
    }

    /// Whether it changes what is stored.
    #[must_use]
    pub fn changes(&self) -> bool {
        matches!(self, Io::Write { .. } | Io::WriteZeroes { .. } | Io::Deallocate { .. })
    }
}

/// The ranges of Dataset Management ("Dataset Management – Range Definition"), each in the namespace.
///
/// # Errors
/// The status that the command ends with: none of its ranges is acted on then.
///
/// # Panics
/// When `list` is not a whole number of ranges: it is as long as [`Io::data`] says.
pub fn ranges(list: &[u8], namespace: &Namespace) -> Result<Vec<BlockRange>, Status> {
    assert!(list.len().is_multiple_of(RANGE_BYTES) && list.len() <= RANGES_MAX * RANGE_BYTES);
    list.chunks_exact(RANGE_BYTES)
        .map(|range| {
            let blocks = u64::from(u32::from_le_bytes(range[4..8].try_into().expect("four bytes")));
            let slba = u64::from_le_bytes(range[8..16].try_into().expect("eight bytes"));
            let end = slba.checked_add(blocks).filter(|end| *end <= namespace.blocks);
            end.map(|_| BlockRange { slba, blocks }).ok_or(Status::LBA_OUT_OF_RANGE)
        })
        .collect()
}
