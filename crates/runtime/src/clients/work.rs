//! One command under way: the parts that it is cut into, and what it ends with.

use std::collections::VecDeque;

use osier_domain::{Opcode, Status};
use osier_nvme::{BlockRange, Command, HostMemory, Io, Span, status};

/// Most blocks of one part that deallocates.
const TRIM_BLOCKS_MAX: u64 = 1 << 20;

/// A part of a command, which is a request of the domain's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// What is asked.
    pub opcode: Opcode,
    /// Which blocks.
    pub range: BlockRange,
    /// Where its bytes are in the command's data.
    pub offset: u64,
    /// Force Unit Access.
    pub fua: bool,
}

/// What is done with the bytes of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// They come from the client.
    Store,
    /// They go to the client.
    Show,
    /// The client's have to be the same.
    Compare,
    /// That they can be read is enough.
    Verify,
    /// There are none.
    None,
}

/// A command, from when it was fetched until it has ended.
#[derive(Debug)]
pub struct Work {
    /// Whose it is: a place among the clients.
    pub client: usize,
    /// The queue that it came by.
    pub sqid: u16,
    /// As it was fetched.
    pub command: Command,
    /// How it goes; the first thing that goes wrong stays.
    pub status: Status,
    /// Where its data are.
    pub spans: Vec<Span>,
    /// Whether it waits for its turn to submit a part.
    pub is_queued: bool,
    /// It is no command: it ends by a register.
    pub ends_by_register: bool,
    bytes: Use,
    opcode: Opcode,
    ranges: VecDeque<BlockRange>,
    /// Where the data of the next part are.
    offset: u64,
    fua: bool,
    /// A barrier goes before the first part.
    barrier_first: bool,
    /// A barrier goes behind the last part.
    barrier_last: bool,
    /// A barrier is under way.
    at_barrier: bool,
    /// Parts under way.
    out: u32,
}

const BARRIER: Part = Part { opcode: Opcode::Flush, range: BlockRange { slba: 0, blocks: 0 }, offset: 0, fua: false };

impl Work {
    /// What an I/O command is cut into. `listed` are the ranges of one that deallocates.
    pub fn new(client: usize, (sqid, command): (u16, Command), io: &Io, listed: Vec<BlockRange>) -> Work {
        let mut work = Work {
            client,
            sqid,
            command,
            status: Status::SUCCESS,
            spans: Vec::new(),
            is_queued: false,
            ends_by_register: false,
            bytes: Use::None,
            opcode: Opcode::Flush,
            ranges: io.range().into_iter().chain(listed).filter(|range| range.blocks > 0).collect(),
            offset: 0,
            fua: false,
            barrier_first: false,
            barrier_last: false,
            at_barrier: false,
            out: 0,
        };
        (work.opcode, work.bytes) = match io {
            Io::Flush => {
                work.barrier_last = true;
                (Opcode::Flush, Use::None)
            }
            // What it shows has to be persistent.
            Io::Read { fua, .. } => {
                work.barrier_first = *fua;
                (Opcode::Read, Use::Show)
            }
            Io::Write { fua, .. } => {
                work.fua = *fua;
                (Opcode::Write, Use::Store)
            }
            // Blocks that are deallocated read as zeroes, so both ways of writing zeroes are one.
            Io::WriteZeroes { fua, .. } => {
                work.barrier_last = *fua;
                (Opcode::Trim, Use::None)
            }
            Io::Compare(_) => (Opcode::Read, Use::Compare),
            Io::Verify(_) => (Opcode::Read, Use::Verify),
            Io::Deallocate { .. } | Io::Hint { .. } => (Opcode::Trim, Use::None),
        };
        work
    }

    /// The next part, of at most `blocks_max` blocks; it is not taken yet.
    pub fn next(&self, blocks_max: u64) -> Option<Part> {
        if !self.status.is_success() || self.at_barrier {
            return None;
        }
        if self.barrier_first {
            return Some(BARRIER);
        }
        let Some(range) = self.ranges.front() else {
            // What was written before the barrier has to have been completed.
            return (self.barrier_last && self.out == 0).then_some(BARRIER);
        };
        let most = if self.opcode == Opcode::Trim { TRIM_BLOCKS_MAX } else { blocks_max };
        let range = BlockRange { slba: range.slba, blocks: range.blocks.min(most) };
        Some(Part { opcode: self.opcode, range, offset: self.offset, fua: self.fua })
    }

    /// That part is under way.
    pub fn took(&mut self, part: &Part) {
        self.out += 1;
        if part.opcode == Opcode::Flush {
            self.at_barrier = true;
            // The first is taken first.
            let which = if self.barrier_first { &mut self.barrier_first } else { &mut self.barrier_last };
            *which = false;
        } else if let Some(range) = self.ranges.front_mut() {
            range.slba += part.range.blocks;
            range.blocks -= part.range.blocks;
            self.offset += part.range.blocks * osier_nvme::BLOCK_BYTES;
            if range.blocks == 0 {
                self.ranges.pop_front();
            }
        }
    }

    /// A part has ended; `data` are what it read.
    pub fn ended(&mut self, part: &Part, status: Status, data: &[u8], memory: &impl HostMemory) {
        self.out -= 1;
        self.at_barrier &= part.opcode != Opcode::Flush;
        let status = if status.is_success() { self.took_data(part, data, memory) } else { status };
        self.fail(status);
    }

    fn took_data(&self, part: &Part, data: &[u8], memory: &impl HostMemory) -> Status {
        let done = match self.bytes {
            Use::Show => scatter(&self.spans, part.offset, data, memory),
            Use::Compare => {
                let mut wanted = vec![0; data.len()];
                match gather(&self.spans, part.offset, &mut wanted, memory) {
                    Ok(()) if wanted == data => Ok(()),
                    Ok(()) => return status::COMPARE_FAILURE,
                    Err(error) => Err(error),
                }
            }
            Use::Store | Use::Verify | Use::None => Ok(()),
        };
        if done.is_ok() { Status::SUCCESS } else { status::DATA_TRANSFER_ERROR }
    }

    /// Nothing more of it is begun.
    pub fn fail(&mut self, status: Status) {
        if self.status.is_success() {
            self.status = status;
        }
    }

    /// Bytes of data that its parts moved so far.
    pub fn bytes(&self) -> u64 {
        if self.bytes == Use::None { 0 } else { self.offset }
    }

    /// Whether its parts' bytes are wanted.
    pub fn reads(&self) -> bool {
        matches!(self.bytes, Use::Show | Use::Compare)
    }

    /// Whether nothing of it is under way or left.
    pub fn is_done(&self) -> bool {
        self.out == 0 && self.next(1).is_none()
    }
}

/// Copies bytes out of spans, from an offset in all of them on.
pub fn gather(
    spans: &[Span],
    offset: u64,
    out: &mut [u8],
    memory: &impl HostMemory,
) -> Result<(), osier_nvme::OutOfMemory> {
    let mut at = 0;
    for (address, range) in pieces(spans, offset, out.len()) {
        memory.read(address, &mut out[range.clone()])?;
        at = range.end;
    }
    if at == out.len() { Ok(()) } else { Err(osier_nvme::OutOfMemory) }
}

/// Copies bytes into spans, from an offset in all of them on.
pub fn scatter(
    spans: &[Span],
    offset: u64,
    data: &[u8],
    memory: &impl HostMemory,
) -> Result<(), osier_nvme::OutOfMemory> {
    let mut at = 0;
    for (address, range) in pieces(spans, offset, data.len()) {
        memory.write(address, &data[range.clone()])?;
        at = range.end;
    }
    if at == data.len() { Ok(()) } else { Err(osier_nvme::OutOfMemory) }
}

/// The places of `bytes` bytes from an offset on, each with its part of them.
fn pieces(spans: &[Span], offset: u64, bytes: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> + '_ {
    let (mut skip, mut at) = (offset, 0);
    spans.iter().filter_map(move |span| {
        let skipped = skip.min(span.bytes);
        skip -= skipped;
        let length = usize::try_from(span.bytes - skipped).unwrap_or(usize::MAX).min(bytes - at);
        let range = at..at + length;
        at += length;
        (length > 0).then(|| (span.address + skipped, range))
    })
}
