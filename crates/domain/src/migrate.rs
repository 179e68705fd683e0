//! Who owns an actor, and the two-phase commit that changes it (WIO, arXiv 2604.02442, section 3.4).
//!
//! One record an actor lies in the shared region: an owner word and a checkpoint. The word says
//!
//! ```text
//! Active(owner) --publish, by the owner--> Ready(owner -> to) --adopt, by `to`--> Active(to)
//!                                              \--roll back, by either------------> Active(owner)
//! ```
//!
//! Invariants:
//! 1. Every change is one compare-and-swap that raises the generation, so of an adoption and a roll-back
//!    that race, one wins and the other sees that it lost.
//! 2. The checkpoint is whole before the word says `Ready`.
//! 3. Nobody serves the actor while the word says `Ready`; only the owner does while it says `Active`.
//!
//! When a domain dies, [`resolve`] decides: before `Ready` the owner keeps the actor; between `Ready` and
//! `Active`, a living source rolls back, a living destination of a dead source rolls forward, and with
//! both dead the source has it on restart. That a domain is dead is the kernel's word, never a time-out.

use crate::STREAMS_MAX;
use crate::message::{Kind, Message, Request};
use crate::plan::{ActorId, Side};

/// Mutable WebAssembly globals that an actor may have; a Rust or C actor has one, its stack pointer.
pub const GLOBALS_MAX: usize = 4;
/// Bytes of an encoded checkpoint: all that moves. The bar is 1 KiB.
pub const CHECKPOINT_BYTES: usize = 320;

/// Where an actor's ownership lies. Over the shared region in real time, over plain cells in virtual time.
pub trait OwnerRecord {
    /// The owner word, with acquire ordering.
    fn load(&self) -> u64;
    /// Sets the owner word to `new` if it is `current`, with acquire and release ordering; says whether it was.
    fn compare_exchange(&self, current: u64, new: u64) -> bool;
    /// Puts the checkpoint's bytes into the record.
    fn write_checkpoint(&self, bytes: &[u8; CHECKPOINT_BYTES]);
    /// Copies the checkpoint's bytes out of the record.
    fn read_checkpoint(&self) -> [u8; CHECKPOINT_BYTES];
}

/// The two states of an owner word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The owner serves.
    Active,
    /// A checkpoint waits for `to`; nobody serves.
    Ready {
        /// The destination.
        to: Side,
    },
}

/// The owner word, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerState {
    /// Rises with each change.
    pub generation: u64,
    /// Active: who serves. Ready: who made the checkpoint.
    pub owner: Side,
    /// Which state.
    pub phase: Phase,
}

const READY_BIT: u64 = 1 << 2;
const VALID_BIT: u64 = 1 << 3;

impl OwnerState {
    /// An actor that `owner` serves, as it is when a device is first brought up.
    pub fn first(owner: Side) -> OwnerState {
        OwnerState { generation: 1, owner, phase: Phase::Active }
    }

    /// The word: generation in bits 8.., valid bit 3, ready bit 2, destination bit 1, owner bit 0.
    pub fn encode(self) -> u64 {
        let phase = match self.phase {
            Phase::Active => 0,
            Phase::Ready { to } => READY_BIT | (to as u64) << 1,
        };
        self.generation << 8 | VALID_BIT | phase | self.owner as u64
    }

    /// Reads a word; `None` when it is no owner word (a fresh or damaged record).
    #[inline]
    pub fn decode(word: u64) -> Option<OwnerState> {
        if word & VALID_BIT == 0 || word & 0xf0 != 0 {
            return None;
        }
        let side = |bit: u64| if bit == 0 { Side::Host } else { Side::Device };
        let owner = side(word & 1);
        let to = side(word >> 1 & 1);
        let phase = match word & READY_BIT {
            0 => Phase::Active,
            _ if to == owner => return None,
            _ => Phase::Ready { to },
        };
        Some(OwnerState { generation: word >> 8, owner, phase })
    }

    fn next(self, owner: Side, phase: Phase) -> OwnerState {
        OwnerState { generation: self.generation + 1, owner, phase }
    }
}

/// A request that an actor has begun and not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partial {
    /// The request.
    pub request: Request,
    /// The unit that comes next, or that is being worked on.
    pub unit: u16,
    /// The actor yielded in the middle of `unit`.
    pub resume: bool,
}

/// The control state of an actor: all that moves. Its memory stays where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Whose it is.
    pub actor: ActorId,
    /// The generation of the owner word that publishes it.
    pub generation: u64,
    /// Mutable globals, in the order of the module.
    pub globals: [u64; GLOBALS_MAX],
    /// For each stream the last sequence that went through the actor on a write.
    pub gates: [u64; STREAMS_MAX],
    /// What it was in the middle of.
    pub current: Option<Partial>,
}

const MAGIC: u32 = 0x4b43_534f;
const FORMAT_VERSION: u16 = 1;
const GATES_AT: usize = 56;
const CURRENT_AT: usize = GATES_AT + 8 * STREAMS_MAX;
const CRC_AT: usize = CHECKPOINT_BYTES - 4;
const _: () = assert!(CURRENT_AT + 8 + 64 <= CRC_AT);
const _: () = assert!(CHECKPOINT_BYTES <= 1024);

/// Why a checkpoint cannot be adopted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// Its checksum is wrong.
    #[error("the checkpoint of an actor in the shared region is damaged (checksum); the actor stays with its source")]
    Damaged,
    /// It was written by another format version.
    #[error(
        "the checkpoint of an actor has format version {0}, this program reads version 1; the actor stays with its source"
    )]
    Version(u16),
    /// It is another actor's, or another migration's.
    #[error("the checkpoint found is not the one announced; the actor stays with its source")]
    Foreign,
}

impl Checkpoint {
    /// The checkpoint as it lies in the record, little endian, its CRC-32C last.
    pub fn encode(&self) -> [u8; CHECKPOINT_BYTES] {
        let mut out = [0u8; CHECKPOINT_BYTES];
        out[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        out[6..8].copy_from_slice(&self.actor.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.generation.to_le_bytes());
        put_words(&mut out[16..], &self.globals);
        put_words(&mut out[GATES_AT..], &self.gates);
        if let Some(partial) = &self.current {
            out[CURRENT_AT] = 1;
            out[CURRENT_AT + 1] = u8::from(partial.resume);
            out[CURRENT_AT + 2..CURRENT_AT + 4].copy_from_slice(&partial.unit.to_le_bytes());
            let message = Message { kind: Kind::Request(partial.request) };
            put_words(&mut out[CURRENT_AT + 8..], &message.encode());
        }
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads and checks a checkpoint.
    pub fn decode(bytes: &[u8; CHECKPOINT_BYTES]) -> Result<Checkpoint, CheckpointError> {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        if u32_at(CRC_AT) != crc32c::crc32c(&bytes[..CRC_AT]) || u32_at(0) != MAGIC {
            return Err(CheckpointError::Damaged);
        }
        if u16_at(4) != FORMAT_VERSION {
            return Err(CheckpointError::Version(u16_at(4)));
        }
        let mut checkpoint = Checkpoint {
            actor: ActorId(u16_at(6)),
            generation: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            globals: [0; GLOBALS_MAX],
            gates: [0; STREAMS_MAX],
            current: None,
        };
        take_words(&bytes[16..], &mut checkpoint.globals);
        take_words(&bytes[GATES_AT..], &mut checkpoint.gates);
        if bytes[CURRENT_AT] == 1 {
            let mut words = [0u64; 8];
            take_words(&bytes[CURRENT_AT + 8..], &mut words);
            let Some(Message { kind: Kind::Request(request) }) = Message::decode(&words) else {
                return Err(CheckpointError::Damaged);
            };
            let (unit, resume) = (u16_at(CURRENT_AT + 2), bytes[CURRENT_AT + 1] == 1);
            checkpoint.current = Some(Partial { request, unit, resume });
        }
        Ok(checkpoint)
    }
}

fn put_words(out: &mut [u8], words: &[u64]) {
    for (chunk, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
}

fn take_words(bytes: &[u8], words: &mut [u64]) {
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*chunk);
    }
}

/// Reads the owner word of a record that has one.
pub fn state(record: &impl OwnerRecord) -> Option<OwnerState> {
    OwnerState::decode(record.load())
}

/// Phase one, first half, by the source after it drained: writes the checkpoint for the generation that will
/// publish it. Answers the owner word that [`set_ready`] then replaces; `None` when the word is not
/// `Active` of `from` any more, which means that a recovery ran meanwhile.
pub fn write_checkpoint(record: &impl OwnerRecord, from: Side, checkpoint: &mut Checkpoint) -> Option<u64> {
    let word = record.load();
    let now = OwnerState::decode(word)?;
    if now.owner != from || now.phase != Phase::Active {
        return None;
    }
    checkpoint.generation = now.generation + 1;
    record.write_checkpoint(&checkpoint.encode());
    Some(word)
}

/// Phase one, second half: `Ready`. Answers the generation, `None` when a recovery ran meanwhile.
pub fn set_ready(record: &impl OwnerRecord, word: u64, from: Side) -> Option<u64> {
    let ready = OwnerState::decode(word)?.next(from, Phase::Ready { to: from.other() });
    record.compare_exchange(word, ready.encode()).then_some(ready.generation)
}

/// Phase two, first half, by the destination: reads and checks what was announced. Answers the owner word that
/// [`set_active`] then replaces. `Ok(None)`: the source rolled back meanwhile, and nothing may be served.
pub fn read_ready(
    record: &impl OwnerRecord,
    to: Side,
    actor: ActorId,
    generation: u64,
) -> Result<Option<(u64, Checkpoint)>, CheckpointError> {
    let word = record.load();
    let Some(now) = OwnerState::decode(word) else { return Ok(None) };
    if now.generation != generation || now.phase != (Phase::Ready { to }) {
        return Ok(None);
    }
    let checkpoint = Checkpoint::decode(&record.read_checkpoint())?;
    if checkpoint.actor != actor || checkpoint.generation != generation {
        return Err(CheckpointError::Foreign);
    }
    Ok(Some((word, checkpoint)))
}

/// Phase two, second half, when the actor is rebuilt: `Active`. False when the source rolled back meanwhile.
pub fn set_active(record: &impl OwnerRecord, word: u64, to: Side) -> bool {
    OwnerState::decode(word).is_some_and(|now| record.compare_exchange(word, now.next(to, Phase::Active).encode()))
}

/// Takes a published checkpoint back: `Ready` becomes `Active` of the source again.
pub fn roll_back(record: &impl OwnerRecord, generation: u64) -> bool {
    let word = record.load();
    match OwnerState::decode(word) {
        Some(now) if now.generation == generation && now.phase != Phase::Active => {
            record.compare_exchange(word, now.next(now.owner, Phase::Active).encode())
        }
        _ => false,
    }
}

/// What recovery did with an actor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// No migration was under way.
    Kept(Side),
    /// It was between `Ready` and `Active`, and stays with its source.
    RolledBack(Side),
    /// It was between `Ready` and `Active`, and its destination has it.
    RolledForward(Side),
    /// The record held no owner word; the actor begins at the default side.
    Fresh(Side),
}

impl Resolution {
    /// Who has the actor now.
    pub fn owner(self) -> Side {
        match self {
            Resolution::Kept(s) | Resolution::RolledBack(s) | Resolution::RolledForward(s) | Resolution::Fresh(s) => s,
        }
    }
}

/// Decides who has an actor after a death. `alive` says which domains the kernel reports alive: both dead is
/// `[false, false]`. Several may call it at once; all come to the same owner.
pub fn resolve(record: &impl OwnerRecord, alive: [bool; 2], default: Side) -> Resolution {
    // Each turn ends or loses a race to one other writer, which itself ends the migration.
    for _ in 0..4 {
        let word = record.load();
        let Some(now) = OwnerState::decode(word) else {
            let first = OwnerState::first(default);
            if record.compare_exchange(word, first.encode()) {
                return Resolution::Fresh(default);
            }
            continue;
        };
        let Phase::Ready { to } = now.phase else { return Resolution::Kept(now.owner) };
        let forward = !alive[now.owner as usize] && alive[to as usize];
        let owner = if forward { to } else { now.owner };
        if record.compare_exchange(word, now.next(owner, Phase::Active).encode()) {
            return if forward { Resolution::RolledForward(owner) } else { Resolution::RolledBack(owner) };
        }
    }
    unreachable!("an owner word changed four times during one recovery: two recoveries fight over it")
}
