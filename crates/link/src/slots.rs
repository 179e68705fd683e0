//! CXL.mem: messages in the slots of flits (CXL sections 4.2.5 and 4.3.4).
//!
//! The transmitter modelled here takes messages in the order in which they come, each into the first slot that may
//! hold it, and puts one data header in a slot: it is one with multi-data headers disabled, as either side may
//! ask for (CXL section 8.2.4.19.7). With them a stream of read data would take up to 2 slots in 15 less. Credits and
//! acknowledgements ride in flits that are sent anyway; control flits, retries and trailers with extended metadata
//! are not modelled, nor are latency-optimised flits.

use crate::config::CxlFlit;
use crate::flit::Placed;
use crate::planted::{Bug, Planted};
use crate::traffic::{Direction, Kind};

/// Bytes of a line, the payload of a message with data.
pub(crate) const LINE_BYTES: u64 = 64;
/// Bytes of a generic slot: a chunk of data, or messages.
const SLOT_BYTES: u64 = 16;
/// Chunks of a line.
const LINE_CHUNKS: u8 = 4;
/// Slots of a group, within which messages are counted (CXL section 4.3.4); a flit of 68 bytes is one group.
const GROUP_SLOTS: u8 = 4;
/// Groups of the longest flit.
const GROUPS_MAX: usize = 4;
/// Channels of CXL.mem to and from a device without back-invalidation: requests, requests with data, responses
/// with and without data.
const CHANNELS: usize = 4;

/// A message of CXL.mem, for a line of host-managed memory that is coherent by the host alone (HDM-H).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CxlMessage {
    /// Master to subordinate request: the host asks for a line (M2S Req, MemRd).
    Request,
    /// Master to subordinate request with data: the host writes a line (M2S RwD, MemWr).
    WriteData,
    /// The same for a part of a line, with byte enables in a slot of their own (M2S RwD, MemWrPtl).
    PartialWriteData,
    /// Subordinate to master response without data: a write is done (S2M NDR, Cmp).
    WriteDone,
    /// Subordinate to master response with data: the line that was asked for (S2M DRS, MemData).
    ReadData,
}

impl CxlMessage {
    /// All of them.
    pub const ALL: [CxlMessage; 5] = [
        CxlMessage::Request,
        CxlMessage::WriteData,
        CxlMessage::PartialWriteData,
        CxlMessage::WriteDone,
        CxlMessage::ReadData,
    ];

    /// Which way it goes.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            CxlMessage::Request | CxlMessage::WriteData | CxlMessage::PartialWriteData => Direction::Downstream,
            CxlMessage::WriteDone | CxlMessage::ReadData => Direction::Upstream,
        }
    }

    /// What it is counted as.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            CxlMessage::Request | CxlMessage::ReadData => Kind::CxlRead,
            CxlMessage::WriteData | CxlMessage::PartialWriteData | CxlMessage::WriteDone => Kind::CxlWrite,
        }
    }

    /// Bytes of data in it: a line or nothing.
    #[must_use]
    pub const fn payload_bytes(self) -> u64 {
        if self.chunks() > 0 { LINE_BYTES } else { 0 }
    }

    /// Its share of flits that are full, in bytes, as a fraction: numerator and denominator. No transmitter gets
    /// below it; the limits on messages in a flit keep a stream of one kind above it. `None` without CXL flits.
    #[must_use]
    pub fn share_bytes(self, flit: CxlFlit) -> Option<(u64, u64)> {
        let format = Format::of(flit)?;
        let in_a_slot = if matches!(self, CxlMessage::WriteDone) { format.responses_in_slot } else { 1 };
        let slots = 1 + u64::from(self.chunks());
        Some((format.flit_bytes * slots, u64::from(format.slots) * u64::from(in_a_slot)))
    }

    /// Slots of data that follow its header.
    const fn chunks(self) -> u8 {
        match self {
            CxlMessage::Request | CxlMessage::WriteDone => 0,
            CxlMessage::WriteData | CxlMessage::ReadData => LINE_CHUNKS,
            CxlMessage::PartialWriteData => LINE_CHUNKS + 1,
        }
    }

    const fn channel(self) -> usize {
        match self {
            CxlMessage::Request => 0,
            CxlMessage::WriteData | CxlMessage::PartialWriteData => 1,
            CxlMessage::WriteDone => 2,
            CxlMessage::ReadData => 3,
        }
    }
}

/// A format of flits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    pub(crate) flit_bytes: u64,
    slots: u8,
    /// Bytes of slot 0 that messages can have; it never holds data in a flit with a header.
    header_slot_bytes: u64,
    /// Responses without data that slot 0 and another slot hold.
    responses_in_header_slot: u8,
    responses_in_slot: u8,
    /// The same beside the header of a response with data.
    responses_beside_header_slot: u8,
    responses_beside_slot: u8,
    /// Most messages of each channel in a group, or in two neighbouring groups if `rolling`.
    limits: [u8; CHANNELS],
    rolling: bool,
    /// With more data to come than the slots beside a header hold, the next flit is all data and has no header.
    all_data: bool,
}

/// CXL tables 4-7 and 4-8, and the list at the end of section 4.2.5. The header slot loses 4 bytes to the flit's
/// header; protocol identifier and checksum take 2 each. One data header without multi-data headers.
const FORMAT_68: Format = Format {
    flit_bytes: 68,
    slots: 4,
    header_slot_bytes: 12,
    responses_in_header_slot: 2,
    responses_in_slot: 2,
    responses_beside_header_slot: 1,
    responses_beside_slot: 2,
    limits: [2, 1, 2, 1],
    rolling: false,
    all_data: true,
};

/// CXL tables 4-14, 4-15 and 4-18. Of 256 bytes 16 are the physical layer's and 2 return credits.
const FORMAT_256: Format = Format {
    flit_bytes: 256,
    slots: 15,
    header_slot_bytes: 14,
    responses_in_header_slot: 2,
    responses_in_slot: 3,
    responses_beside_header_slot: 0,
    responses_beside_slot: 0,
    limits: [4, 2, 6, 3],
    rolling: true,
    all_data: false,
};

/// The same tables for port based routing; requests go into header slots zero extended.
const FORMAT_256_PBR: Format = Format { responses_in_slot: 2, ..FORMAT_256 };

impl Format {
    pub(crate) const fn of(flit: CxlFlit) -> Option<Format> {
        match flit {
            CxlFlit::None => None,
            CxlFlit::Bytes68 => Some(FORMAT_68),
            CxlFlit::Bytes256 => Some(FORMAT_256),
            CxlFlit::Bytes256Pbr => Some(FORMAT_256_PBR),
        }
    }
}

/// The flit that still takes messages, and what lies in it.
#[derive(Clone, Debug)]
struct Open {
    header_slot_free: bool,
    /// The first of the slots from 1 on that is free, with all after it.
    next: u8,
    /// Responses without data that slots already begun still take, and the group of these slots.
    response_room: u8,
    response_group: usize,
    /// Messages by group and channel: the last group of the flit before, then the groups of this one.
    counts: [[u8; CHANNELS]; GROUPS_MAX + 1],
}

/// The CXL.mem flits of one direction.
#[derive(Clone, Debug)]
pub(crate) struct SlotFlits {
    format: Format,
    open: Open,
    planted: Planted,
}

impl SlotFlits {
    pub(crate) fn new(format: Format, planted: Planted) -> SlotFlits {
        let counts = [[0; CHANNELS]; GROUPS_MAX + 1];
        let open = Open { header_slot_free: false, next: format.slots, response_room: 0, response_group: 0, counts };
        SlotFlits { format, open, planted }
    }

    /// Places a message, in the open flit first if it may `join` it. All slots of the message are placed at once.
    pub(crate) fn place(&mut self, message: CxlMessage, join: bool) -> Placed {
        let mut placed = Placed::default();
        if !join {
            self.begin_flit(&mut placed);
        }
        if message == CxlMessage::WriteDone && self.take_response_room() {
            return placed;
        }
        let channel = message.channel();
        let slot = match self.free_slot(channel) {
            Some(slot) => slot,
            None => {
                // A fresh flit has room for any message, if not in its first group then in the second.
                self.begin_flit(&mut placed);
                self.free_slot(channel).unwrap_or(0)
            }
        };
        self.take_slot(slot, message, &mut placed);
        self.place_data(message.chunks(), &mut placed);
        placed
    }

    /// The first slot that may hold one more message of a channel, in the open flit.
    fn free_slot(&self, channel: usize) -> Option<u8> {
        if self.open.header_slot_free && self.within_limits(0, channel) {
            return Some(0);
        }
        let mut slot = self.open.next;
        while slot < self.format.slots {
            if self.within_limits(slot, channel) {
                return Some(slot);
            }
            slot = (slot / GROUP_SLOTS + 1) * GROUP_SLOTS;
        }
        None
    }

    /// Whether the groups around a slot take one more message of a channel. Windows of two groups roll over the end
    /// of the flit (CXL section 4.3.4).
    fn within_limits(&self, slot: u8, channel: usize) -> bool {
        if self.planted.has(Bug::IgnoreMessageLimits) {
            return true;
        }
        let (group, limit) = (1 + usize::from(slot / GROUP_SLOTS), self.format.limits[channel]);
        let count = |group: usize| self.open.counts.get(group).map_or(0, |counts| counts[channel]);
        if !self.format.rolling {
            return count(group) < limit;
        }
        count(group - 1) + count(group) < limit && count(group) + count(group + 1) < limit
    }

    fn take_response_room(&mut self) -> bool {
        let channel = CxlMessage::WriteDone.channel();
        let slot = u8::try_from(self.open.response_group).unwrap_or(0) * GROUP_SLOTS;
        let fits = self.open.response_room > 0 && self.within_limits(slot, channel);
        if fits {
            self.open.response_room -= 1;
            self.open.counts[1 + self.open.response_group][channel] += 1;
        }
        fits
    }

    fn take_slot(&mut self, slot: u8, message: CxlMessage, placed: &mut Placed) {
        let format = &self.format;
        let header_slot = slot == 0;
        let (in_slot, beside) = match header_slot {
            true => (format.responses_in_header_slot, format.responses_beside_header_slot),
            false => (format.responses_in_slot, format.responses_beside_slot),
        };
        placed.filled_bytes += if header_slot { format.header_slot_bytes } else { SLOT_BYTES };
        if header_slot {
            self.open.header_slot_free = false;
        } else {
            self.open.next = slot + 1;
        }
        let group = usize::from(slot / GROUP_SLOTS);
        self.open.counts[1 + group][message.channel()] += 1;
        let room = match message {
            CxlMessage::WriteDone => in_slot - 1,
            CxlMessage::ReadData => beside,
            _ => 0,
        };
        if room > 0 {
            (self.open.response_room, self.open.response_group) = (room, group);
        }
    }

    /// Data follows its header in the next slots that can hold it, over as many flits as that takes.
    fn place_data(&mut self, mut chunks: u8, placed: &mut Placed) {
        loop {
            let taken = chunks.min(self.format.slots - self.open.next);
            self.open.next += taken;
            placed.filled_bytes += SLOT_BYTES * u64::from(taken);
            chunks -= taken;
            if chunks == 0 {
                return;
            }
            self.begin_flit(placed);
            let all_data = self.format.all_data && chunks >= self.format.slots;
            if all_data || self.planted.has(Bug::DataInHeaderSlot) {
                self.open.header_slot_free = false;
                self.open.next = 0;
            }
        }
    }

    fn begin_flit(&mut self, placed: &mut Placed) {
        placed.flits += 1;
        let mut counts = [[0; CHANNELS]; GROUPS_MAX + 1];
        counts[0] = self.open.counts[GROUPS_MAX];
        self.open = Open { header_slot_free: true, next: 1, response_room: 0, response_group: 0, counts };
    }
}
