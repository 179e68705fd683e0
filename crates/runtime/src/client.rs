//! A client inside the host's domain: it has slots of the arena, submits requests into streams and hears
//! of their end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use osier_actor::Arena;
use osier_domain::arena::{BLOB_OFFSET, Buffer, Layout, SLOT_FREE, SLOT_SUBMITTED, Unit};
use osier_domain::message::Request;
use osier_domain::{Descriptor, Kind, Message, Opcode, STREAMS_MAX, SlotId, Status, StreamId, Tag};
use osier_flash::{BLOCK_BYTES, Nanos};

use crate::control::{Control, STREAM_INFLIGHT_MAX};

/// State word: the request has failed with the status in bits 16..32; recovery completes it so.
pub const SLOT_FAILED: u64 = 2;

/// What a client asks for.
#[derive(Debug, Clone, Copy)]
pub enum Ask<'a> {
    /// Write these bytes, whole blocks.
    Write {
        /// First logical block.
        slba: u64,
        /// Whole blocks, at most one request's.
        data: &'a [u8],
        /// The pipeline, or [`Tag::NONE`] for none.
        tag: Tag,
        /// `FLAG_*` bits.
        flags: u16,
    },
    /// Read blocks.
    Read {
        /// First logical block.
        slba: u64,
        /// How many, at most one request's.
        blocks: u32,
        /// `FLAG_*` bits.
        flags: u16,
    },
    /// Deallocate blocks.
    Trim {
        /// First logical block.
        slba: u64,
        /// How many.
        blocks: u32,
    },
    /// The Global Persistent Flush barrier.
    Flush,
    /// Which blocks take space.
    Allocation {
        /// First logical block.
        slba: u64,
        /// How many.
        blocks: u32,
    },
}

/// A request that ended.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// The request with its status and output.
    pub request: Request,
    /// From submission to now; of a replayed request, from its first submission if this process saw it.
    pub latency: Nanos,
}

/// Slots and streams of the clients in one host process.
pub struct Client {
    arena: Arc<Arena>,
    free: Vec<SlotId>,
    submitted_at: Vec<Nanos>,
    next: [u64; STREAMS_MAX],
    /// The last request of each stream that has ended; they end in order.
    ended: [u64; STREAMS_MAX],
    inflight: usize,
    /// Blocks of a unit, by pipeline.
    units: Vec<(Tag, u8)>,
    /// The pipeline of each stream, from its first request on.
    bound: [Option<Tag>; STREAMS_MAX],
}

/// What a slot holds after a restart.
#[derive(Debug, Clone, Copy)]
pub enum Left {
    /// To be replayed.
    Submitted(Request),
    /// It had failed; to be completed with its status.
    Failed(Request),
}

impl Client {
    /// A client; `units` says how many blocks a unit of each pipeline has.
    pub fn new(arena: Arc<Arena>, units: Vec<(Tag, u8)>) -> Client {
        let slots = arena.layout().slots;
        let free = (0..slots).rev().map(SlotId).filter(|slot| state(&arena, *slot) == SLOT_FREE).collect();
        Client {
            arena,
            free,
            submitted_at: vec![Nanos(0); usize::from(slots)],
            next: [1; STREAMS_MAX],
            ended: [0; STREAMS_MAX],
            inflight: 0,
            units,
            bound: [None; STREAMS_MAX],
        }
    }

    /// The arena.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Requests in flight.
    pub fn inflight(&self) -> usize {
        self.inflight
    }

    /// Whether another request can be submitted now.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// Finds and publishes where each stream goes on: behind the last completion that was delivered, which is
    /// before the first request that a slot still holds, or where the device's cursor is if none does.
    pub fn resume(&mut self, control: &Control) -> [u64; STREAMS_MAX] {
        let (cursors, known) = (control.cursors(), control.delivered());
        let mut delivered: [u64; STREAMS_MAX] = std::array::from_fn(|s| cursors[s].max(known[s]));
        self.next = delivered.map(|sequence| sequence + 1);
        // In the order of the streams, last first, so that the first of each stream is what remains.
        for left in self.left().iter().rev() {
            let request = left.request();
            delivered[usize::from(request.stream.0)] = request.sequence - 1;
        }
        for (stream, sequence) in delivered.iter().enumerate() {
            control.set_delivered(stream, *sequence);
        }
        self.ended = delivered;
        delivered
    }

    /// What the slots hold after a restart, in the order of their streams.
    pub fn left(&self) -> Vec<Left> {
        let mut left: Vec<Left> = (0..self.arena.layout().slots)
            .filter_map(|slot| {
                let state = state(&self.arena, SlotId(slot));
                let mut request = submitted(&self.arena, SlotId(slot))?;
                match state & 0xffff {
                    SLOT_SUBMITTED => Some(Left::Submitted(request)),
                    SLOT_FAILED => {
                        request.status = Status((state >> 16) as u16);
                        Some(Left::Failed(request))
                    }
                    _ => None,
                }
            })
            .collect();
        left.sort_by_key(|l| (l.request().stream, l.request().sequence));
        left
    }

    /// Takes over the requests that a restart found, as if this process had submitted them.
    pub fn adopt(&mut self, now: Nanos, left: &[Left]) {
        for each in left {
            let request = each.request();
            let next = &mut self.next[usize::from(request.stream.0)];
            *next = (*next).max(request.sequence + 1);
            self.submitted_at[usize::from(request.descriptor.slot.0)] = now;
            self.inflight += 1;
        }
    }

    /// Makes a fresh copy of a request's unit table, for its replay.
    pub fn rearm(&self, request: &Request) {
        set_state(&self.arena, request.descriptor.slot, SLOT_SUBMITTED);
        self.arena.begin(request.descriptor.slot);
        if request.descriptor.direction() == osier_domain::Direction::Forward {
            self.put_units(&request.descriptor);
        }
    }

    /// Fills a slot and answers the request to hand to the domain; `None` when no slot is free, or too many requests
    /// of the stream are in flight.
    ///
    /// `filled` runs when the slot holds the request and nobody has been told.
    ///
    /// # Panics
    /// When the request is longer than a slot, or empty: whoever cuts requests has to see to it. When requests of
    /// one stream go through different pipelines: an actor waits for each sequence of a stream, and one that
    /// goes another way would never come.
    pub fn prepare(&mut self, now: Nanos, stream: StreamId, ask: Ask<'_>, filled: impl FnOnce()) -> Option<Request> {
        let way = if let Ask::Write { tag, .. } = ask { tag } else { Tag::NONE };
        let bound = *self.bound[usize::from(stream.0)].get_or_insert(way);
        assert_eq!(bound, way, "{stream:?} goes through one pipeline");
        let sequence = self.next[usize::from(stream.0)];
        if sequence - self.ended[usize::from(stream.0)] > STREAM_INFLIGHT_MAX {
            return None;
        }
        let slot = self.free.pop()?;
        self.next[usize::from(stream.0)] += 1;
        let descriptor = self.describe(slot, ask);
        if let Ask::Write { data, .. } = ask {
            self.arena.write_raw(slot, 0, data);
            self.put_units(&descriptor);
        }
        let request =
            Request { descriptor, stream, sequence, visited: 0, status: Status::SUCCESS, fetched: false, output: 0 };
        self.arena.begin(slot);
        self.arena.set_request(slot, &Message { kind: Kind::Request(request) }.encode());
        set_state(&self.arena, slot, SLOT_SUBMITTED);
        filled();
        self.submitted_at[usize::from(slot.0)] = now;
        self.inflight += 1;
        Some(request)
    }

    /// A request has ended: its slot is free again once the caller has taken what it needs.
    pub fn end(&mut self, now: Nanos, request: Request) -> Done {
        let slot = request.descriptor.slot;
        self.ended[usize::from(request.stream.0)] = request.sequence;
        let since = self.submitted_at[usize::from(slot.0)];
        Done { request, latency: Nanos(now.0.saturating_sub(since.0)) }
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: SlotId) {
        set_state(&self.arena, slot, SLOT_FREE);
        self.free.push(slot);
        self.inflight -= 1;
    }

    fn describe(&self, slot: SlotId, ask: Ask<'_>) -> Descriptor {
        let layout = self.arena.layout();
        let wanted = if let Ask::Write { tag, .. } = ask { tag } else { Tag::NONE };
        let known = self.units.iter().find(|(tag, _)| *tag == wanted);
        let unit_blocks = known.map_or(layout.unit_blocks, |(_, blocks)| *blocks);
        let base = Descriptor {
            opcode: Opcode::Flush,
            unit_blocks,
            flags: 0,
            tag: Tag::NONE,
            slot,
            units: 0,
            blocks: 0,
            slba: 0,
            output_bytes: layout.raw_bytes(),
            state_handle: BLOB_OFFSET,
        };
        match ask {
            Ask::Write { slba, data, tag, flags } => {
                let blocks = (data.len() / BLOCK_BYTES as usize) as u32;
                assert!(blocks > 0 && data.len() % BLOCK_BYTES as usize == 0 && blocks <= layout.request_blocks_max);
                let opcode = if tag == Tag::NONE { Opcode::Passthrough } else { Opcode::Write };
                let units = blocks.div_ceil(u32::from(unit_blocks)) as u16;
                Descriptor { opcode, flags, tag, units, blocks, slba, ..base }
            }
            Ask::Read { slba, blocks, flags } => {
                assert!(blocks > 0 && blocks <= layout.request_blocks_max);
                Descriptor { opcode: Opcode::Read, flags, blocks, slba, ..base }
            }
            Ask::Trim { slba, blocks } => Descriptor { opcode: Opcode::Trim, blocks, slba, ..base },
            Ask::Flush => base,
            Ask::Allocation { slba, blocks } => Descriptor { opcode: Opcode::Allocation, blocks, slba, ..base },
        }
    }

    fn put_units(&self, descriptor: &Descriptor) {
        for index in 0..descriptor.units {
            let first = u32::from(index) * u32::from(descriptor.unit_blocks);
            let blocks = (descriptor.blocks - first).min(u32::from(descriptor.unit_blocks));
            let unit = Unit {
                slba: descriptor.slba + u64::from(first),
                version: 0,
                bytes: blocks * BLOCK_BYTES,
                raw_bytes: blocks * BLOCK_BYTES,
                tag: descriptor.stored_tag().0,
                request_block: first,
                skip_blocks: 0,
                blocks: blocks as u16,
                buffer: Buffer::Raw,
            };
            self.arena.set_unit(descriptor.slot, index, &unit);
        }
    }
}

/// The state word of a slot; what was written before it is seen by who sees it.
pub fn state(arena: &Arena, slot: SlotId) -> u64 {
    arena.state(slot).load(Ordering::Acquire)
}

fn set_state(arena: &Arena, slot: SlotId, state: u64) {
    arena.state(slot).store(state, Ordering::Release);
}

/// Notes that a request failed, for a recovery.
pub fn note_failure(arena: &Arena, slot: SlotId, status: Status) {
    set_state(arena, slot, SLOT_FAILED | u64::from(status.0) << 16);
}

fn submitted(arena: &Arena, slot: SlotId) -> Option<Request> {
    request_of(&arena.request(slot), slot, arena.layout())
}

/// The request that a slot's words hold, if they are one that a client can have put there.
pub fn request_of(words: &[u64; 8], slot: SlotId, layout: &Layout) -> Option<Request> {
    let Kind::Request(request) = Message::decode(words)?.kind else { return None };
    let descriptor = &request.descriptor;
    let is_placed = descriptor.slot == slot && usize::from(request.stream.0) < STREAMS_MAX && request.sequence > 0;
    let has_bytes = matches!(descriptor.opcode, Opcode::Write | Opcode::Passthrough | Opcode::Read);
    let fits = !has_bytes || (1..=layout.request_blocks_max).contains(&descriptor.blocks);
    let units = match descriptor.opcode {
        Opcode::Write | Opcode::Passthrough => descriptor.blocks.div_ceil(u32::from(descriptor.unit_blocks)),
        Opcode::Read | Opcode::Trim | Opcode::Flush | Opcode::Allocation => 0,
    };
    let is_cut = u32::from(descriptor.units) == units && descriptor.unit_blocks <= layout.unit_blocks;
    (is_placed && fits && is_cut).then_some(request)
}

impl Left {
    /// The request.
    pub fn request(&self) -> &Request {
        match self {
            Left::Submitted(request) | Left::Failed(request) => request,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_no_client_can_have_filled_holds_no_request() {
        let layout = Layout { slots: 4, request_blocks_max: 16, unit_blocks: 4 };
        let descriptor = Descriptor {
            opcode: Opcode::Write,
            unit_blocks: 4,
            flags: 0,
            tag: Tag(7),
            slot: SlotId(2),
            units: 3,
            blocks: 10,
            slba: 5,
            output_bytes: 0,
            state_handle: 0,
        };
        let request = Request {
            descriptor,
            stream: StreamId(15),
            sequence: 1,
            visited: 0,
            status: Status::SUCCESS,
            fetched: false,
            output: 0,
        };
        let read =
            |request: Request| request_of(&Message { kind: Kind::Request(request) }.encode(), SlotId(2), &layout);
        assert_eq!(read(request), Some(request));
        let with = |change: &dyn Fn(&mut Descriptor)| {
            let mut descriptor = descriptor;
            change(&mut descriptor);
            read(Request { descriptor, ..request })
        };
        let impossible = [
            read(Request { stream: StreamId(16), ..request }),
            read(Request { sequence: 0, ..request }),
            with(&|d| d.slot = SlotId(1)),
            with(&|d| d.units = 4),
            with(&|d| (d.blocks, d.units) = (17, 5)),
            with(&|d| (d.blocks, d.units) = (0, 0)),
            with(&|d| (d.unit_blocks, d.units) = (16, 1)),
            with(&|d| d.opcode = Opcode::Read),
        ];
        assert!(impossible.iter().all(Option::is_none), "{impossible:?}");
        let trim = with(&|d| (d.opcode, d.blocks, d.units) = (Opcode::Trim, 1 << 20, 0));
        assert!(trim.is_some(), "a trim has no bytes in its slot");
    }
}
