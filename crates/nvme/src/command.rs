//! The two entries of a queue: a command of 64 bytes, a completion of 16.

use crate::io::Direction;
use crate::status;
use osier_device::Status;

/// Bytes of a submission queue entry.
pub const COMMAND_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub const COMPLETION_BYTES: usize = 16;

/// Opcodes of the admin command set (Base Specification, "Opcodes for Admin Commands").
pub mod admin {
    /// Delete I/O Submission Queue.
    pub const DELETE_SQ: u8 = 0x00;
    /// Create I/O Submission Queue.
    pub const CREATE_SQ: u8 = 0x01;
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Delete I/O Completion Queue.
    pub const DELETE_CQ: u8 = 0x04;
    /// Create I/O Completion Queue.
    pub const CREATE_CQ: u8 = 0x05;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0A;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0C;
    /// Namespace Attachment.
    pub const NAMESPACE_ATTACHMENT: u8 = 0x15;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
    /// Format NVM (NVM Command Set).
    pub const FORMAT_NVM: u8 = 0x80;
    /// Get LBA Status (NVM Command Set).
    pub const GET_LBA_STATUS: u8 = 0x86;
}

/// The opcode of all Fabrics commands; what they are is in FCTYPE, byte 4 ("Fabrics Command Types").
pub mod fabrics {
    /// Fabrics Commands.
    pub const OPCODE: u8 = 0x7F;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Opcodes of the NVM command set ("Opcodes for NVM Commands"). Bits 1:0 say which way data goes.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Verify.
    pub const VERIFY: u8 = 0x0C;
}

/// Where a command's data are in the client's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPointer {
    /// Physical Region Pages: PRP1 and PRP2.
    Prp(u64, u64),
    /// The first descriptor of a Scatter Gather List.
    Sgl([u8; 16]),
}

/// A submission queue entry ("Common Command Format"). Every 64 bytes are one: what it says is checked by whoever
/// carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// FUSE, bits 1:0 of byte 1: zero for a command by itself.
    pub fuse: u8,
    /// Command identifier.
    pub cid: u16,
    /// Namespace identifier.
    pub nsid: u32,
    /// Where its data are.
    pub dptr: DataPointer,
    /// Dwords 10 to 15.
    pub cdw: [u32; 6],
}

impl Command {
    /// A command without data.
    #[must_use]
    pub fn new(opcode: u8, nsid: u32) -> Command {
        Command { opcode, fuse: 0, cid: 0, nsid, dptr: DataPointer::Prp(0, 0), cdw: [0; 6] }
    }

    /// Reads an entry.
    #[must_use]
    pub fn decode(entry: &[u8; COMMAND_BYTES]) -> Command {
        let dword = |index: usize| {
            let at = index * 4;
            u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
        };
        let qword = |index: usize| u64::from(dword(index)) | u64::from(dword(index + 1)) << 32;
        // PSDT, bits 7:6 of byte 1: zero is PRP, one and two are SGLs that differ in what metadata are.
        let dptr = match entry[1] >> 6 {
            0 => DataPointer::Prp(qword(6), qword(8)),
            _ => DataPointer::Sgl(entry[24..40].try_into().expect("sixteen bytes")),
        };
        Command {
            opcode: entry[0],
            fuse: entry[1] & 0b11,
            cid: u16::from_le_bytes([entry[2], entry[3]]),
            nsid: dword(1),
            dptr,
            cdw: std::array::from_fn(|index| dword(10 + index)),
        }
    }

    /// The entry.
    #[must_use]
    pub fn encode(&self) -> [u8; COMMAND_BYTES] {
        let mut entry = [0; COMMAND_BYTES];
        entry[0] = self.opcode;
        entry[1] = self.fuse;
        entry[2..4].copy_from_slice(&self.cid.to_le_bytes());
        entry[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        match self.dptr {
            DataPointer::Prp(first, second) => {
                entry[24..32].copy_from_slice(&first.to_le_bytes());
                entry[32..40].copy_from_slice(&second.to_le_bytes());
            }
            DataPointer::Sgl(descriptor) => {
                entry[1] |= 0b01 << 6;
                entry[24..40].copy_from_slice(&descriptor);
            }
        }
        for (dword, value) in entry[40..].chunks_exact_mut(4).zip(self.cdw) {
            dword.copy_from_slice(&value.to_le_bytes());
        }
        entry
    }

    /// FCTYPE, byte 4, when it is a Fabrics command.
    #[must_use]
    pub fn fabrics_type(&self) -> Option<u8> {
        (self.opcode == fabrics::OPCODE).then_some(self.nsid as u8)
    }

    /// Which way its data would go: bits 1:0 of the opcode, of a Fabrics command's type ("Opcode", Data Transfer).
    #[must_use]
    pub fn direction(&self) -> Direction {
        match self.fabrics_type().unwrap_or(self.opcode) & 0b11 {
            0b01 => Direction::ToController,
            0b10 => Direction::FromController,
            // Bidirectional commands there are none of.
            _ => Direction::None,
        }
    }

    /// Starting LBA of an I/O command: dwords 10 and 11.
    #[must_use]
    pub fn slba(&self) -> u64 {
        u64::from(self.cdw[0]) | u64::from(self.cdw[1]) << 32
    }
}

/// A completion queue entry ("Completion Queue Entry").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1: what the command answers beside its status. In memory there is dword 0 alone.
    pub result: u64,
    /// SQ Head Pointer: entries before it may be used again.
    pub sqhd: u16,
    /// SQ Identifier.
    pub sqid: u16,
    /// Command identifier.
    pub cid: u16,
    /// How it ended.
    pub status: Status,
}

impl Completion {
    /// The entry, with its phase tag.
    #[must_use]
    pub fn encode(&self, phase: bool) -> [u8; COMPLETION_BYTES] {
        let mut entry = [0; COMPLETION_BYTES];
        entry[0..8].copy_from_slice(&self.result.to_le_bytes());
        entry[8..10].copy_from_slice(&self.sqhd.to_le_bytes());
        entry[10..12].copy_from_slice(&self.sqid.to_le_bytes());
        entry[12..14].copy_from_slice(&self.cid.to_le_bytes());
        let field = status::field(self.status) << 1 | u16::from(phase);
        entry[14..16].copy_from_slice(&field.to_le_bytes());
        entry
    }

    /// Reads an entry and its phase tag.
    #[must_use]
    pub fn decode(entry: &[u8; COMPLETION_BYTES]) -> (Completion, bool) {
        let word = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let completion = Completion {
            result: (0..4).map(|index| u64::from(word(2 * index)) << (16 * index)).sum(),
            sqhd: word(8),
            sqid: word(10),
            cid: word(12),
            status: status::of_field(word(14) >> 1),
        };
        (completion, word(14) & 1 == 1)
    }
}
