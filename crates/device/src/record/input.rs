//! The table of records: what the core is given, one kind a line.
//!
//! A new kind of input is a line here, an arm in `Replay::feed` that gives it to the core again, and, where it is
//! called in real time, a method of `Recorded`. `docs/formats-recording.md` lists the same kinds; a test compares.

use osier_flash::{Lba, MediaError, MediaOp, MediaOpKind, Nanos, OpId};

use super::wire::{Blob, Reader, Wire, wire_of_struct};
use crate::core::{Completion, Device, DeviceParams, DeviceSample, ReadContent, ReadPiece, UnitMeta, WriteMeta};
use crate::predict::Crossing;
use crate::profile::Engine;

/// A unit of a write, with what stands for its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unit {
    pub slba: u64,
    pub blocks: u16,
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    pub tag: u32,
    /// CRC-32C of the payload.
    pub checksum: u32,
    /// The payload, if it is shorter than a stand-in can be.
    pub bytes: Blob,
}

wire_of_struct!(Unit { slba, blocks, raw_bytes, stored_bytes, tag, checksum, bytes });

impl Unit {
    pub(crate) fn meta(&self) -> UnitMeta {
        UnitMeta {
            slba: Lba(self.slba),
            blocks: self.blocks,
            raw_bytes: self.raw_bytes,
            stored_bytes: self.stored_bytes,
            tag: self.tag,
        }
    }
}

/// What a write or a trim says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    stream: u16,
    stream_sequence: u64,
    fua: bool,
    crossing: Crossing,
}

wire_of_struct!(Meta { stream, stream_sequence, fua, crossing });

impl From<WriteMeta> for Meta {
    fn from(meta: WriteMeta) -> Meta {
        let WriteMeta { stream, stream_sequence, fua, crossing } = meta;
        Meta { stream, stream_sequence, fua, crossing }
    }
}

impl From<Meta> for WriteMeta {
    fn from(meta: Meta) -> WriteMeta {
        let Meta { stream, stream_sequence, fua, crossing } = meta;
        WriteMeta { stream, stream_sequence, fua, crossing }
    }
}

/// An operation of the media by its slot and how often that was used, which are both small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Op {
    slot: u32,
    uses: u32,
}

wire_of_struct!(Op { slot, uses });

impl From<OpId> for Op {
    fn from(id: OpId) -> Op {
        Op { slot: id.0 as u32, uses: (id.0 >> 32) as u32 }
    }
}

impl From<Op> for OpId {
    fn from(op: Op) -> OpId {
        OpId(u64::from(op.uses) << 32 | u64::from(op.slot))
    }
}

/// What a window is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Made {
    pub profile_name: String,
    pub profile_text: String,
    pub settings: Vec<Setting>,
    pub capacity_bytes: u64,
    pub reserve_frames: u32,
    pub reserve_batch: u32,
    pub seed: u64,
}

wire_of_struct!(Made { profile_name, profile_text, settings, capacity_bytes, reserve_frames, reserve_batch, seed });

/// A key of a profile, and its value as TOML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub key: String,
    pub value: String,
}

wire_of_struct!(Setting { key, value });

/// A parameter of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameter {
    pub name: String,
    pub value: u64,
}

wire_of_struct!(Parameter { name, value });

/// Whether a kind's record ends with a check of all outputs so far.
macro_rules! is_checked {
    (checked) => {
        true
    };
    (unchecked) => {
        false
    };
}

macro_rules! records {
    ($($code:literal $check:ident $name:ident { $($field:ident: $type:ty),* $(,)? } $what:literal;)*) => {
        /// One record.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Input {
            $($name { $($field: $type),* },)*
        }

        /// Every kind of record: its number, its name, whether it is checked, its fields, and what it says.
        pub(crate) const KINDS: &[Kind] = &[$(Kind {
            code: $code,
            name: stringify!($name),
            checked: is_checked!($check),
            fields: &[$(stringify!($field)),*],
            what: $what,
        }),*];

        impl Input {
            fn code(&self) -> u8 {
                match self { $(Input::$name { .. } => $code),* }
            }

            fn put_fields(&self, out: &mut Vec<u8>) {
                match self { $(Input::$name { $($field),* } => { let _ = &out; $($field.put(out);)* })* }
            }

            fn take_fields(code: u8, from: &mut Reader<'_>) -> Option<Input> {
                let _ = &from;
                match code {
                    $($code => Some(Input::$name { $($field: Wire::take(from)?),* }),)*
                    _ => None,
                }
            }
        }
    };
}

records! {
    1 unchecked Configure {
        program: String, profile_name: String, profile_text: String, rate_divisor: u32, thermal_time_scale: u32,
        params: DeviceParams, buffer_bytes: u64, recovered: bool,
    } "a life begins: what the core is made with";
    2 unchecked MediaBytes { address: u64, bytes: Blob } "bytes of the media that recovery read; others are zero";
    3 unchecked MediaPayload { address: u64, bytes: u32, checksum: u32 } "a sound payload that recovery read";
    4 unchecked BufferBytes { offset: u64, bytes: Blob } "bytes of the write buffer that recovery looks at";
    5 unchecked BufferPayload { offset: u64, bytes: u32, checksum: u32 } "a sound payload in the write buffer";
    6 checked Begin {} "the core is made";
    16 unchecked Write { id: u64, meta: Meta, units: Vec<Unit> } "a write";
    17 unchecked Trim { id: u64, meta: Meta, slba: u64, blocks: u32 } "a trim";
    18 unchecked Read { id: u64, slba: u64, blocks: u32, crossing: Crossing } "a read";
    19 unchecked Flush { id: u64 } "a flush";
    24 unchecked Poll {} "a poll that ends no command";
    25 checked PollEnded { ended: u64 } "a poll that ends so many commands";
    26 checked NextOp {} "an operation goes to the media";
    32 unchecked MediaRead { op: Op } "the media have read, and every payload fits its checksum";
    33 unchecked MediaReadBytes { op: Op, bytes: Blob } "the media have read, and not every payload fits";
    34 unchecked MediaProgrammed { op: Op } "the media have programmed a page";
    35 unchecked MediaErased { op: Op } "the media have erased a superblock";
    36 unchecked MediaSynced { op: Op } "the media have synced";
    37 unchecked MediaFailed { op: Op, error: MediaError } "the media have refused";
    40 unchecked Compute {} "the processor is brought to a time";
    41 unchecked Run { core_hint: Option<u32>, engine: Engine, bytes: u32 } "the processor is given work from a time on";
    42 unchecked GoOn { core_hint: Option<u32>, engine: Engine, bytes: u32 } "the processor goes on with a call";
    48 checked Sample {} "a scheduler's sample";
    49 unchecked Temperature { millicelsius: i32 } "the temperature is set";
    56 checked Statistics {} "every figure of the core is checked";
    57 checked End { statistics: String } "the core is let go; its figures as JSON";
    58 unchecked Stopped { why: String } "the recording ends before the core does";
    64 checked Window { program: String, made: Made } "a life begins: a window is made";
    72 unchecked Saved { checksum: u32 } "the next input takes a dirty page to the flash: the CRC-32C of its bytes";
    73 unchecked NotSaved {} "the next input finds no room for a dirty page";
    74 unchecked Unread { read: u32, is_damaged: bool } "a read of the next input does not find what was saved";
    80 unchecked Attach {} "a program begins to map the window";
    81 unchecked Detach { mapper: u8 } "a program maps it no more";
    82 unchecked Fault { mapper: u8, lane: u16, page: u64, is_store: bool, more_max: u8 } "a fault";
    83 unchecked Zapped { mapper: u8, dirty: u64 } "a program has unmapped pages, of which these are dirty";
    84 unchecked Prefetch { mapper: u8, tag: u32, first: u64, end: u64 } "a command: prefetch";
    85 unchecked Pin { mapper: u8, tag: u32, first: u64, end: u64 } "a command: pin";
    86 unchecked Unpin { mapper: u8, tag: u32, first: u64, end: u64 } "a command: unpin";
    87 unchecked Evict { mapper: u8, tag: u32, first: u64, end: u64 } "a command: evict";
    88 unchecked Policy { mapper: u8, tag: u32, name: String, parameters: Vec<Parameter> } "a command: another policy";
    96 unchecked Prepare {} "a poll of a window that hands nothing out";
    97 checked HandOut { outputs: u64 } "a poll of a window that hands so many things out";
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    /// The first byte of its records.
    pub code: u8,
    /// Its name.
    pub name: &'static str,
    /// Whether its records end with a check.
    pub checked: bool,
    /// Its fields, in order.
    #[cfg_attr(not(test), expect(dead_code, reason = "the manual is compared with it"))]
    pub fields: &'static [&'static str],
    /// What it says.
    pub what: &'static str,
}

impl Input {
    /// Its line in the table.
    pub(crate) fn kind(&self) -> &'static Kind {
        let code = self.code();
        KINDS.iter().find(|kind| kind.code == code).expect("each record is a line of the table")
    }
}

/// A record as it is written: kind, time since the record before, fields, and a check where the kind has one.
pub(crate) fn put(out: &mut Vec<u8>, before: Nanos, now: Nanos, input: &Input, digest: &Digest) {
    out.push(input.code());
    super::wire::fold(now.0.wrapping_sub(before.0) as i64).put(out);
    input.put_fields(out);
    if input.kind().checked {
        out.extend_from_slice(&digest.check().to_le_bytes());
    }
}

/// The next record: its time, what it is, and its check.
pub(crate) fn take(from: &mut Reader<'_>, before: Nanos) -> Option<(Nanos, Input, Option<u32>)> {
    let code = u8::take(from)?;
    let now = Nanos(before.0.wrapping_add(super::wire::unfold(u64::take(from)?) as u64));
    let input = Input::take_fields(code, from)?;
    let check = if input.kind().checked { Some(u32::from_le_bytes(from.bytes(4)?.try_into().ok()?)) } else { None };
    Some((now, input, check))
}

/// A running digest of everything that the core has put out, in order. It finds differences; it is no protection from
/// somebody who wants to hide one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new() -> Digest {
        Digest(0x6f73_6965_725f_7265)
    }

    /// What a checked record ends with.
    pub(crate) fn check(&self) -> u32 {
        (self.0 >> 32) as u32 ^ self.0 as u32
    }

    pub(crate) fn word(&mut self, word: u64) {
        // An odd constant (that of FNV's 64-bit prime's spread, doubled in bits): each step can be undone, so that
        // two states that differ stay different.
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 29;
    }

    pub(crate) fn due(&mut self, due: Option<Nanos>) {
        self.word(due.map_or(u64::MAX, |due| due.0));
    }

    pub(crate) fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.word(word));
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.word(text.len() as u64);
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.word(u64::from_le_bytes(word));
        }
    }

    pub(crate) fn completions(&mut self, ended: &[Completion]) {
        for completion in ended {
            let Completion { id, status, due, pieces } = completion;
            self.words([id.0, u64::from(status.0), due.0, pieces.len() as u64]);
            pieces.iter().for_each(|piece| self.piece(piece));
        }
    }

    fn piece(&mut self, piece: &ReadPiece) {
        let ReadPiece { block_offset, blocks, content } = piece;
        self.words([u64::from(*block_offset), u64::from(*blocks)]);
        match content {
            ReadContent::Unmapped => self.word(0),
            ReadContent::Stored { extent, first, data } => self.words([
                1 + u64::from(*first),
                extent.sequence,
                extent.slba.0,
                u64::from(extent.blocks),
                u64::from(extent.raw_bytes),
                u64::from(extent.stored_bytes),
                u64::from(extent.tag),
                u64::from(extent.checksum),
                data.len() as u64,
            ]),
        }
    }

    pub(crate) fn operation(&mut self, op: &MediaOp) {
        let (kind, address, bytes) = match op.kind {
            MediaOpKind::Read { address, bytes } => (1, address, u64::from(bytes)),
            MediaOpKind::Program { address, bytes, .. } => (2, address, u64::from(bytes)),
            MediaOpKind::Erase { address, bytes } => (3, address, bytes),
            MediaOpKind::Sync => (4, 0, 0),
        };
        self.words([op.id.0, op.due.0, kind, address, bytes]);
    }

    pub(crate) fn sample(&mut self, sample: &DeviceSample) {
        let DeviceSample {
            at,
            temperature_millicelsius,
            speed_permille,
            throttle_level,
            compute_permille,
            commands_in_flight,
            buffer_permille,
        } = *sample;
        self.words([at.0, temperature_millicelsius as u64, u64::from(speed_permille), u64::from(throttle_level)]);
        self.words([compute_permille, commands_in_flight, buffer_permille].map(u64::from));
    }

    /// What the core says of itself after an input: when it wants to be polled, how hot it is and how much it has.
    pub(crate) fn state<B: crate::Bytes>(&mut self, device: &Device<B>) {
        let next = device.next_event().map_or(u64::MAX, |at| at.0);
        self.words([next, device.temperature_millicelsius() as u64, device.commands_in_flight() as u64]);
    }

    /// Every figure.
    pub(crate) fn statistics<B: crate::Bytes>(&mut self, device: &Device<B>) {
        self.text(&format!("{:?}", device.stats()));
    }
}
