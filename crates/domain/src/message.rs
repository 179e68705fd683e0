//! What the two domains say to each other: one 64-byte ring entry a message.
//!
//! A request carries the paper's 32-byte descriptor (WIO, arXiv 2604.02442, section 4.2: a 4-bit opcode,
//! flags for optional stages, buffer references and a handle to per-request state) and this project's
//! stream, sequence and stage cursor beside it. Bit 63 of word 0 belongs to the ring (its phase bit) and
//! is zero here. Entries come from another process: [`Message::decode`] is the only door and refuses
//! what is not a message.

use crate::Status;
use crate::plan::{ActorId, Direction, Side, SlotId, StreamId, Tag};

/// The paper's 4-bit operation of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// Write without any stage.
    Passthrough = 0,
    /// Write through the pipeline that the descriptor names.
    Write = 1,
    /// Read back through the pipelines that the extents name.
    Read = 2,
    /// Deallocate blocks.
    Trim = 3,
    /// Make all that was completed persistent: the Global Persistent Flush barrier.
    Flush = 4,
    /// Say which blocks take space: as many words of [`osier_device::Run`] in buffer `Raw`, little
    /// endian, as its units; they need not reach the last block.
    Allocation = 5,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0 => Opcode::Passthrough,
            1 => Opcode::Write,
            2 => Opcode::Read,
            3 => Opcode::Trim,
            4 => Opcode::Flush,
            5 => Opcode::Allocation,
            _ => return None,
        })
    }
}

/// Flag: complete only when persistent on the media (NVMe's Force Unit Access).
pub const FLAG_FUA: u16 = 1 << 15;
/// Flag: a read whose output is what the last stage put out, of any length (a query), not whole blocks.
pub const FLAG_QUERY: u16 = 1 << 14;
/// Mask of the bits that leave out optional stages: bit *i* skips the stage at position *i*.
pub const FLAG_SKIP_MASK: u16 = 0x00ff;

/// The 32 bytes that name what to do with a request and where its buffers are.
///
/// | bytes | content |
/// | --- | --- |
/// | 0 | version (high 4 bits, now 1) and opcode (low 4 bits) |
/// | 1 | blocks that a unit has, 1 to 16 |
/// | 2..4 | flags |
/// | 4..8 | tag of the pipeline |
/// | 8..10 | arena slot: its buffers and its per-request state |
/// | 10..12 | units |
/// | 12..16 | blocks of 4096 bytes |
/// | 16..24 | first logical block |
/// | 24..28 | output capacity in bytes |
/// | 28..32 | handle of the state blob in the slot (its offset) |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// What to do.
    pub opcode: Opcode,
    /// Logical blocks in one unit.
    pub unit_blocks: u8,
    /// `FLAG_*` bits.
    pub flags: u16,
    /// The pipeline; of a read, the one whose inverse is being run now.
    pub tag: Tag,
    /// Where the buffers are.
    pub slot: SlotId,
    /// How many units the request has.
    pub units: u16,
    /// Length in logical blocks.
    pub blocks: u32,
    /// First logical block.
    pub slba: u64,
    /// Room for output in bytes.
    pub output_bytes: u32,
    /// Offset of the per-request state blob in the slot.
    pub state_handle: u32,
}

const DESCRIPTOR_VERSION: u8 = 1;

impl Descriptor {
    /// The descriptor as it lies in memory, little endian.
    pub fn encode(&self) -> [u8; 32] {
        let mut out = [0u8; 32];
        out[0] = DESCRIPTOR_VERSION << 4 | self.opcode as u8;
        out[1] = self.unit_blocks;
        out[2..4].copy_from_slice(&self.flags.to_le_bytes());
        out[4..8].copy_from_slice(&self.tag.0.to_le_bytes());
        out[8..10].copy_from_slice(&self.slot.0.to_le_bytes());
        out[10..12].copy_from_slice(&self.units.to_le_bytes());
        out[12..16].copy_from_slice(&self.blocks.to_le_bytes());
        out[16..24].copy_from_slice(&self.slba.to_le_bytes());
        out[24..28].copy_from_slice(&self.output_bytes.to_le_bytes());
        out[28..32].copy_from_slice(&self.state_handle.to_le_bytes());
        out
    }

    /// Reads a descriptor; `None` for another version, an unknown opcode or a unit of no blocks.
    pub fn decode(bytes: &[u8; 32]) -> Option<Descriptor> {
        if bytes[0] >> 4 != DESCRIPTOR_VERSION || bytes[1] == 0 {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        Some(Descriptor {
            opcode: Opcode::from_bits(bytes[0] & 15)?,
            unit_blocks: bytes[1],
            flags: u16_at(2),
            tag: Tag(u32_at(4)),
            slot: SlotId(u16_at(8)),
            units: u16_at(10),
            blocks: u32_at(12),
            slba: u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32,
            output_bytes: u32_at(24),
            state_handle: u32_at(28),
        })
    }

    /// The way of the data.
    pub fn direction(&self) -> Direction {
        match self.opcode {
            Opcode::Read => Direction::Inverse,
            _ => Direction::Forward,
        }
    }

    /// Whether the stage at `position` is left out: of a write because the client says so, of a read because
    /// it was left out when the extent was written.
    pub fn skips(&self, position: u8) -> bool {
        (self.flags & FLAG_SKIP_MASK) as u8 & 1 << position != 0 || self.tag.skipped() & 1 << position != 0
    }

    /// What the extents of this write are tagged with.
    pub fn stored_tag(&self) -> Tag {
        match self.opcode {
            Opcode::Write => self.tag.with_skipped((self.flags & FLAG_SKIP_MASK) as u8),
            _ => Tag::NONE,
        }
    }
}

/// A request on its way, with its place in its stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What is asked.
    pub descriptor: Descriptor,
    /// Its stream.
    pub stream: StreamId,
    /// Its place in the stream, from 1 on, without gaps.
    pub sequence: u64,
    /// Stages it has been through.
    pub visited: u8,
    /// How it went so far; a failed request passes the stages left without being run.
    pub status: Status,
    /// A read that has its bytes from the media and goes through inverse stages now.
    pub fetched: bool,
    /// Bytes of output, set when it completes.
    pub output: u32,
}

/// What a ring entry says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A request goes on in the other domain.
    Request(Request),
    /// A request has ended; for the host.
    Complete(Request),
    /// `actor` is about to come to you: keep its requests, serve none.
    Prepare {
        /// Who.
        actor: ActorId,
        /// The generation that its checkpoint will be published with.
        generation: u64,
    },
    /// The checkpoint of `actor` is ready: adopt it. The doorbell of the protocol.
    Adopt {
        /// Who.
        actor: ActorId,
        /// The generation of the owner word that says `Ready`.
        generation: u64,
    },
    /// Whoever has `actor` should give it to `to`.
    MoveRequest {
        /// Who.
        actor: ActorId,
        /// Where to.
        to: Side,
    },
    /// The checkpoint of `actor` cannot be used: it stays with you.
    Refuse {
        /// Who.
        actor: ActorId,
        /// The generation that was announced.
        generation: u64,
    },
}

/// One ring entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// What it says.
    pub kind: Kind,
}

const KIND_REQUEST: u64 = 1;
const KIND_COMPLETE: u64 = 2;
const KIND_PREPARE: u64 = 3;
const KIND_ADOPT: u64 = 4;
const KIND_MOVE: u64 = 5;
const KIND_REFUSE: u64 = 6;

impl Message {
    /// The ring entry. Bit 63 of word 0 is zero.
    pub fn encode(&self) -> [u64; 8] {
        let mut words = [0u64; 8];
        match self.kind {
            Kind::Request(request) => encode_request(&mut words, KIND_REQUEST, &request),
            Kind::Complete(request) => encode_request(&mut words, KIND_COMPLETE, &request),
            Kind::Prepare { actor, generation } => encode_control(&mut words, KIND_PREPARE, actor, generation),
            Kind::Adopt { actor, generation } => encode_control(&mut words, KIND_ADOPT, actor, generation),
            Kind::Refuse { actor, generation } => encode_control(&mut words, KIND_REFUSE, actor, generation),
            Kind::MoveRequest { actor, to } => encode_control(&mut words, KIND_MOVE, actor, to as u64),
        }
        words
    }

    /// Reads a ring entry that another process wrote; `None` when it is no message.
    pub fn decode(words: &[u64; 8]) -> Option<Message> {
        let actor = ActorId((words[0] >> 8) as u16);
        let kind = match words[0] & 0xff {
            KIND_REQUEST => Kind::Request(decode_request(words)?),
            KIND_COMPLETE => Kind::Complete(decode_request(words)?),
            KIND_PREPARE => Kind::Prepare { actor, generation: words[1] },
            KIND_ADOPT => Kind::Adopt { actor, generation: words[1] },
            KIND_REFUSE => Kind::Refuse { actor, generation: words[1] },
            KIND_MOVE => Kind::MoveRequest { actor, to: Side::from_byte(u8::try_from(words[1]).ok()?)? },
            _ => return None,
        };
        Some(Message { kind })
    }
}

fn encode_control(words: &mut [u64; 8], kind: u64, actor: ActorId, argument: u64) {
    words[0] = kind | u64::from(actor.0) << 8;
    words[1] = argument;
}

fn encode_request(words: &mut [u64; 8], kind: u64, request: &Request) {
    words[0] = kind
        | u64::from(request.visited) << 8
        | u64::from(request.fetched) << 16
        | u64::from(request.stream.0) << 24
        | u64::from(request.status.0) << 40;
    words[1] = request.sequence;
    words[2] = u64::from(request.output);
    for (word, bytes) in words[4..].iter_mut().zip(request.descriptor.encode().as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
}

fn decode_request(words: &[u64; 8]) -> Option<Request> {
    let mut bytes = [0u8; 32];
    for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(&words[4..]) {
        *chunk = word.to_le_bytes();
    }
    Some(Request {
        descriptor: Descriptor::decode(&bytes)?,
        stream: StreamId((words[0] >> 24) as u16),
        sequence: words[1],
        visited: (words[0] >> 8) as u8,
        status: Status((words[0] >> 40) as u16),
        fetched: words[0] >> 16 & 1 == 1,
        output: u32::try_from(words[2]).ok()?,
    })
}
