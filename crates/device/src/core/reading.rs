//! The way back: from the newest record of each block to checked bytes.
//!
//! A read looks its blocks up once, at submission: in the buffer first, then in the flash's map. Each
//! extent is fetched once however many of the blocks it holds. Bytes from the buffer are copied then;
//! bytes from the flash come with an event. When the last is there, the data path takes its time.
//!
//! The flash may refuse a read for now, or have moved an extent before its read was issued. Then the
//! whole command is looked up anew: a mix of two lookups could show a block's older state after a
//! newer one.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Bytes, CommandId, Completion, Crossing, Device, Extent, Lba, MediaError, Nanos, OpId, READ_BLOCKS_MAX, ReadContent,
    ReadId, ReadPiece, RecordKind, Status, extent_of, stretch, transfer_ns,
};
use osier_flash::{BLOCK_BYTES, Location, Payload, Piece, PieceKind, ReadFor};

/// A read under way.
#[derive(Debug)]
pub(super) struct ReadCommand {
    id: CommandId,
    slba: u64,
    blocks: u32,
    crossing: Crossing,
    /// How many times it was looked up: events of earlier times are not for it.
    attempt: u32,
    runs: Vec<ReadRun>,
    fetches: Vec<Fetch>,
    /// Fetches whose bytes are still to come.
    missing: usize,
    failed: bool,
}

#[derive(Clone, Copy, Debug)]
struct ReadRun {
    block_offset: u32,
    blocks: u32,
    /// Index of the fetch and of the first block in its extent; zeroes if none.
    source: Option<(usize, u16)>,
}

#[derive(Debug)]
struct Fetch {
    extent: Extent,
    data: Box<[u8]>,
}

/// Where bytes that the flash was asked for belong.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlashRead {
    slot: usize,
    attempt: u32,
    fetch: usize,
}

/// All reads under way.
#[derive(Debug, Default)]
pub(super) struct Reads {
    slots: Vec<Option<ReadCommand>>,
    free: Vec<usize>,
    /// Reads to be looked up anew.
    again: VecDeque<usize>,
}

impl Reads {
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn insert(&mut self, command: ReadCommand) -> usize {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.slots[slot] = Some(command);
        slot
    }

    fn take(&mut self, slot: usize) -> Option<ReadCommand> {
        let command = self.slots[slot].take();
        if command.is_some() {
            self.free.push(slot);
        }
        command
    }
}

/// A payload, or the first part of one, among the bytes of a media read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compared<'a> {
    /// Its first byte in what is read.
    pub at: usize,
    /// Bytes of it there.
    pub bytes: u32,
    /// What follows them from elsewhere.
    pub tail: &'a [u8],
    /// What the CRC-32C of both should be.
    pub checksum: u32,
}

/// What a lookup found.
#[derive(Default)]
struct Plan {
    runs: Vec<ReadRun>,
    fetches: Vec<Fetch>,
    /// Flash location of the fetches that are not from the buffer.
    locations: Vec<(usize, Location)>,
    /// Fetch of each sequence number seen.
    known: BTreeMap<u64, usize>,
    failed: bool,
}

impl<B: Bytes> Device<B> {
    /// A read of `blocks` logical blocks. `crossing` says what the host gets over the link: raw bytes
    /// if stages run on the device, stored ones if they run on the host.
    pub fn submit_read(&mut self, now: Nanos, id: CommandId, slba: Lba, blocks: u32, crossing: Crossing) {
        self.begin(now);
        if let Err(status) = self.check_read(slba, blocks) {
            return self.answer(now, id, status, 0);
        }
        let command = ReadCommand {
            id,
            slba: slba.0,
            blocks,
            crossing,
            attempt: 0,
            runs: Vec::new(),
            fetches: Vec::new(),
            missing: 0,
            failed: false,
        };
        let slot = self.reads.insert(command);
        self.look_up(now, slot);
    }

    fn check_read(&self, slba: Lba, blocks: u32) -> Result<(), Status> {
        self.check_range(slba, u64::from(blocks))?;
        if blocks <= READ_BLOCKS_MAX { Ok(()) } else { Err(Status::INVALID_FIELD) }
    }

    /// Whether a read of these blocks would be refused at once.
    pub(crate) fn refuses_read(&self, slba: Lba, blocks: u32) -> bool {
        self.check_read(slba, blocks).is_err()
    }

    /// Looks up reads anew that the flash could not take.
    pub(super) fn retry_reads(&mut self, now: Nanos) {
        for _ in 0..self.reads.again.len() {
            let Some(slot) = self.reads.again.pop_front() else { return };
            self.look_up(now, slot);
        }
    }

    /// The flash has read something.
    pub(super) fn flash_read_done(&mut self, now: Nanos, id: ReadId, result: Result<Box<[u8]>, MediaError>) {
        let Some(FlashRead { slot, attempt, fetch }) = self.flash_reads.remove(&id) else { return };
        let with_data = self.params.with_data;
        let unchecked = self.has_bug_unchecked_read();
        let Some(command) = self.reads.slots[slot].as_mut().filter(|command| command.attempt == attempt) else {
            return;
        };
        let target = &mut command.fetches[fetch];
        match result {
            Ok(data) if !with_data || unchecked || holds(&target.extent, &data) => target.data = data,
            Ok(_) | Err(_) => command.failed = true,
        }
        command.missing -= 1;
        if command.missing == 0 {
            self.finish_read(now, slot);
        }
    }

    /// What the bytes of a media read will be compared with. An operation that was answered has nothing.
    pub(crate) fn compared(&self, op: OpId) -> Vec<Compared<'_>> {
        match self.ftl.read_for(op) {
            Some(ReadFor::Read { id, tail }) => {
                let wanted = self.flash_reads.get(&id).and_then(|read| {
                    let command = self.reads.slots[read.slot].as_ref()?;
                    // Of an attempt that is over nobody looks at the bytes.
                    (command.attempt == read.attempt).then(|| command.fetches[read.fetch].extent)
                });
                let whole = |extent: Extent| Compared {
                    at: 0,
                    bytes: extent.stored_bytes.saturating_sub(tail.len() as u32),
                    tail,
                    checksum: extent.checksum,
                };
                wanted.map(whole).into_iter().collect()
            }
            Some(ReadFor::Relocation(payloads)) => {
                let compared = |payload: Payload| Compared {
                    at: payload.at as usize,
                    bytes: payload.bytes,
                    tail: &[],
                    checksum: payload.checksum,
                };
                payloads.into_iter().map(compared).collect()
            }
            None => Vec::new(),
        }
    }

    fn look_up(&mut self, now: Nanos, slot: usize) {
        let Some(command) = &self.reads.slots[slot] else { return };
        let (slba, blocks, attempt) = (command.slba, command.blocks, command.attempt + 1);
        let plan = self.plan(slba, blocks);
        let mut missing = 0;
        let mut refused = false;
        for &(fetch, location) in &plan.locations {
            let stored_bytes = plan.fetches[fetch].extent.stored_bytes;
            match self.ftl.read(now, location, 0..stored_bytes) {
                Ok(id) => {
                    self.flash_reads.insert(id, FlashRead { slot, attempt, fetch });
                    missing += 1;
                }
                Err(_) => {
                    refused = true;
                    break;
                }
            }
        }
        let Some(command) = &mut self.reads.slots[slot] else { return };
        command.attempt = attempt;
        command.runs = plan.runs;
        command.fetches = plan.fetches;
        command.missing = missing;
        command.failed = plan.failed;
        if refused {
            // What was issued is for nobody now: it ends under an attempt that is over.
            command.attempt += 1;
            self.counters.reads_retried += 1;
            self.reads.again.push_back(slot);
        } else if missing == 0 {
            self.finish_read(now, slot);
        }
    }

    fn plan(&self, slba: u64, blocks: u32) -> Plan {
        let mut plan = Plan::default();
        let mut pieces = Vec::new();
        self.pending.lookup(slba, u64::from(blocks), |found| {
            // Lengths are within the request's u32.
            let (offset, length) = ((found.slba - slba) as u32, found.blocks as u32);
            match found.sequence {
                Some(sequence) => self.plan_buffered(&mut plan, sequence, found.slba, offset, length),
                None => {
                    pieces.clear();
                    self.ftl.pieces(Lba(found.slba), length, &mut pieces);
                    pieces.iter().for_each(|piece| plan.add_flash(slba, piece));
                }
            }
        });
        plan
    }

    /// A run that a record of the buffer holds.
    fn plan_buffered(&self, plan: &mut Plan, sequence: u64, slba: u64, block_offset: u32, blocks: u32) {
        let record = self.log.record(sequence).copied();
        let Some(record) = record.filter(|record| record.kind == RecordKind::Data) else {
            plan.runs.push(ReadRun { block_offset, blocks, source: None });
            return;
        };
        let fetch = plan.known.get(&sequence).copied().unwrap_or_else(|| {
            let mut data = Box::default();
            if self.params.with_data {
                let mut bytes = vec![0; record.stored_bytes as usize];
                self.log.read_payload(sequence, &mut bytes);
                data = bytes.into_boxed_slice();
                plan.failed |= !self.has_bug_unchecked_read() && !holds(&extent_of(&record), &data);
            }
            plan.fetches.push(Fetch { extent: extent_of(&record), data });
            plan.known.insert(sequence, plan.fetches.len() - 1);
            plan.fetches.len() - 1
        });
        let first = (slba - record.slba.0) as u16;
        plan.runs.push(ReadRun { block_offset, blocks, source: Some((fetch, first)) });
    }

    /// All bytes are there: what remains is the data path.
    fn finish_read(&mut self, now: Nanos, slot: usize) {
        let Some(command) = self.reads.take(slot) else { return };
        let logical_bytes = u64::from(command.blocks) * u64::from(BLOCK_BYTES);
        let stored: u64 = command.fetches.iter().map(|fetch| u64::from(fetch.extent.stored_bytes)).sum();
        let crossing = if command.crossing == Crossing::Raw { logical_bytes } else { stored };
        let Some(due) = self.read_due(now, crossing, logical_bytes) else {
            return self.answer(now, command.id, Status::THERMAL_SHUTDOWN, 0);
        };
        if command.failed {
            self.counters.reads_unrecovered += 1;
            return self.answer(due, command.id, Status::UNRECOVERED_READ_ERROR, 0);
        }
        self.counters.raw_bytes_read += logical_bytes;
        let pieces = pieces_of(command.runs, command.fetches);
        self.finished.push(Completion { id: command.id, status: Status::SUCCESS, due, pieces }, 0);
    }

    fn read_due(&mut self, now: Nanos, crossing_bytes: u64, logical_bytes: u64) -> Option<Nanos> {
        let (link, controller) = (self.link, &self.profile.controller);
        let nominal = controller.command_ns + transfer_ns(logical_bytes, controller.read_bytes_per_second);
        let handled = self.controller_read.serve(now, stretch(nominal, self.speed_permille)?);
        let crossed = self.link_out.serve(now, transfer_ns(crossing_bytes, link.bytes_per_second));
        let power = &self.profile.power;
        self.energy_picojoules += u128::from(crossing_bytes) * u128::from(power.link_picojoules_per_byte)
            + u128::from(logical_bytes) * u128::from(power.controller_picojoules_per_byte);
        Some(crossed.max(handled).saturating_add(link.round_trip_ns))
    }
}

impl Plan {
    fn add_flash(&mut self, slba: u64, piece: &Piece) {
        let (block_offset, blocks) = ((piece.slba.0 - slba) as u32, piece.blocks);
        let source = match piece.kind {
            PieceKind::Unmapped => None,
            PieceKind::Mapped { extent, location, first } => {
                let fetch = self.known.get(&extent.sequence).copied().unwrap_or_else(|| {
                    self.fetches.push(Fetch { extent, data: Box::default() });
                    let fetch = self.fetches.len() - 1;
                    self.known.insert(extent.sequence, fetch);
                    self.locations.push((fetch, location));
                    fetch
                });
                Some((fetch, first))
            }
        };
        self.runs.push(ReadRun { block_offset, blocks, source });
    }
}

/// The runs with their bytes; the last run of an extent takes them, those before it copy.
fn pieces_of(runs: Vec<ReadRun>, mut fetches: Vec<Fetch>) -> Vec<ReadPiece> {
    let mut uses = vec![0_u32; fetches.len()];
    for (fetch, _) in runs.iter().filter_map(|run| run.source) {
        uses[fetch] += 1;
    }
    let content = |source: Option<(usize, u16)>| {
        let Some((fetch, first)) = source else { return ReadContent::Unmapped };
        uses[fetch] -= 1;
        let Fetch { extent, data } = &mut fetches[fetch];
        let data = if uses[fetch] == 0 { std::mem::take(data) } else { data.clone() };
        ReadContent::Stored { extent: *extent, first, data }
    };
    let mut content = content;
    let piece =
        |run: ReadRun| ReadPiece { block_offset: run.block_offset, blocks: run.blocks, content: content(run.source) };
    runs.into_iter().map(piece).collect()
}

/// Whether bytes are those that the extent was written with.
fn holds(extent: &Extent, data: &[u8]) -> bool {
    data.len() as u64 == u64::from(extent.stored_bytes) && crc32c::crc32c(data) == extent.checksum
}
