//! One command under way: the parts that it is cut into, and what it ends with.

use std::collections::VecDeque;

use osier_device::Run;
use osier_domain::{Nanos, Opcode, Status};
use osier_nvme::{ALLOCATION_BLOCKS_MAX, AllocationQuery, BlockRange, Command, HostMemory, Io, Span, status};

use crate::traffic::Kind;

/// Most blocks of one part that deallocates.
const TRIM_BLOCKS_MAX: u64 = 1 << 20;
/// Most blocks of one part that asks which of them take space: the device looks each of them up in one go.
const ALLOCATION_BLOCKS: u64 = 1 << 13;

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
    /// When.
    pub begun: Nanos,
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
    /// Of a question for which blocks take space: what is known.
    allocation: Option<Allocation>,
}

/// The blocks that take space, as far as they are known.
#[derive(Debug)]
struct Allocation {
    query: AllocationQuery,
    ranges: Vec<BlockRange>,
    /// There are more than the client has room for.
    is_cut: bool,
}

const BARRIER: Part = Part { opcode: Opcode::Flush, range: BlockRange { slba: 0, blocks: 0 }, offset: 0, fua: false };

impl Work {
    /// What an I/O command is cut into. `listed` are the ranges of one that deallocates.
    pub fn new(client: usize, (sqid, command): (u16, Command), io: &Io, listed: Vec<BlockRange>) -> Work {
        let mut work = Work {
            client,
            sqid,
            command,
            begun: Nanos(0),
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
            allocation: None,
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

    /// The question of a client which blocks take space.
    pub fn allocation(client: usize, command: Command, query: AllocationQuery) -> Work {
        let mut work = Work::new(client, (0, command), &Io::Verify(query.range), Vec::new());
        work.opcode = Opcode::Allocation;
        work.bytes = Use::None;
        work.allocation = Some(Allocation { query, ranges: Vec::new(), is_cut: false });
        work
    }

    /// The next part, of at most `blocks_max` blocks; it is not taken yet.
    pub fn next(&self, blocks_max: u64) -> Option<Part> {
        // Where the next part of an allocation begins is known when the one before has ended.
        let waits = self.at_barrier || self.opcode == Opcode::Allocation && self.out > 0;
        if !self.status.is_success() || waits {
            return None;
        }
        if self.barrier_first {
            return Some(BARRIER);
        }
        let Some(range) = self.ranges.front() else {
            // What was written before the barrier has to have been completed.
            return (self.barrier_last && self.out == 0).then_some(BARRIER);
        };
        let most = match self.opcode {
            Opcode::Trim => TRIM_BLOCKS_MAX,
            Opcode::Allocation => ALLOCATION_BLOCKS,
            _ => blocks_max,
        };
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
        } else if part.opcode != Opcode::Allocation {
            self.pass(part.range.blocks);
            self.offset += part.range.blocks * osier_nvme::BLOCK_BYTES;
        }
    }

    /// So many blocks of what is left are done with.
    fn pass(&mut self, blocks: u64) {
        let Some(range) = self.ranges.front_mut() else { return };
        range.slba += blocks;
        range.blocks -= blocks;
        if range.blocks == 0 {
            self.ranges.pop_front();
        }
    }

    /// What the device says of the blocks that were asked for.
    fn learn(&mut self, part: &Part, data: &[u8]) {
        let Some(known) = &mut self.allocation else { return };
        let (mut at, end) = (part.range.slba, part.range.slba + part.range.blocks);
        for word in data.chunks_exact(size_of::<u32>()) {
            let run = Run::from_word(u32::from_le_bytes(word.try_into().expect("four bytes")));
            let range = BlockRange { slba: at, blocks: u64::from(run.blocks).min(end - at) };
            if run.is_allocated && !known.add(range) {
                known.is_cut = true;
                self.ranges.clear();
                return;
            }
            at += range.blocks;
        }
        // A device that says nothing of the first block would be asked for ever.
        if at == part.range.slba {
            return self.fail(Status::INTERNAL_ERROR);
        }
        self.pass(at - part.range.slba);
    }

    /// Gives the client the answer to what it asked for beside blocks.
    pub fn conclude(&mut self, memory: &impl HostMemory) {
        let Some(known) = self.allocation.take().filter(|_| self.status.is_success()) else { return };
        if scatter(&self.spans, 0, &known.query.answer(&known.ranges, known.is_cut), memory).is_err() {
            self.fail(status::DATA_TRANSFER_ERROR);
        }
    }

    /// A part has ended; `data` are what it read.
    pub fn ended(&mut self, part: &Part, status: Status, data: &[u8], memory: &impl HostMemory) {
        self.out -= 1;
        self.at_barrier &= part.opcode != Opcode::Flush;
        if self.opcode == Opcode::Allocation && status.is_success() {
            return self.learn(part, data);
        }
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

    /// As what it is counted.
    pub fn kind(&self) -> Kind {
        match self.opcode {
            Opcode::Read | Opcode::Allocation => Kind::Read,
            Opcode::Write | Opcode::Passthrough => Kind::Write,
            Opcode::Trim => Kind::Deallocate,
            Opcode::Flush => Kind::Flush,
        }
    }

    /// Bytes of data that its parts moved so far.
    pub fn bytes(&self) -> u64 {
        if self.bytes == Use::None { 0 } else { self.offset }
    }

    /// Whether its parts' bytes are wanted.
    pub fn reads(&self) -> bool {
        matches!(self.bytes, Use::Show | Use::Compare) || self.opcode == Opcode::Allocation
    }

    /// Whether nothing of it is under way or left.
    pub fn is_done(&self) -> bool {
        self.out == 0 && self.next(1).is_none()
    }
}

impl Allocation {
    /// Enters blocks that take space, behind those that are known; whether there was room.
    fn add(&mut self, range: BlockRange) -> bool {
        let goes_on = |last: &&mut BlockRange| {
            last.slba + last.blocks == range.slba && last.blocks + range.blocks <= ALLOCATION_BLOCKS_MAX
        };
        if let Some(last) = self.ranges.last_mut().filter(goes_on) {
            last.blocks += range.blocks;
            return true;
        }
        let has_room = self.ranges.len() < self.query.ranges_max();
        if has_room {
            self.ranges.push(range);
        }
        has_room
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use osier_nvme::{OutOfMemory, admin, nvm};

    use super::*;

    const BLOCK: usize = osier_nvme::BLOCK_BYTES as usize;

    struct Memory(RefCell<Vec<u8>>);

    impl HostMemory for Memory {
        fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfMemory> {
            let memory = self.0.borrow();
            let from = address as usize;
            out.copy_from_slice(memory.get(from..from + out.len()).ok_or(OutOfMemory)?);
            Ok(())
        }

        fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfMemory> {
            let from = address as usize;
            let mut memory = self.0.borrow_mut();
            memory.get_mut(from..from + bytes.len()).ok_or(OutOfMemory)?.copy_from_slice(bytes);
            Ok(())
        }

        fn publish(&self, address: u64, word: [u8; 4]) -> Result<(), OutOfMemory> {
            self.write(address, &word)
        }
    }

    fn memory() -> Memory {
        Memory(RefCell::new((0..8 * BLOCK).map(|at| (at / 7) as u8).collect()))
    }

    fn work(io: &Io) -> Work {
        let mut work = Work::new(0, (1, Command::new(nvm::READ, 1)), io, Vec::new());
        work.spans = vec![Span { address: BLOCK as u64, bytes: io.data().1 }];
        work
    }

    const RANGE: BlockRange = BlockRange { slba: 10, blocks: 5 };

    #[test]
    fn a_command_is_cut_into_parts_that_are_its_range() {
        let mut work = work(&Io::Write { range: RANGE, fua: true });
        let mut parts = Vec::new();
        while let Some(part) = work.next(2) {
            work.took(&part);
            parts.push(part);
        }
        let seen: Vec<_> = parts.iter().map(|p| (p.range.slba, p.range.blocks, p.offset, p.fua)).collect();
        let block = BLOCK as u64;
        assert_eq!(seen, [(10, 2, 0, true), (12, 2, 2 * block, true), (14, 1, 4 * block, true)]);
        for part in &parts {
            assert!(!work.is_done());
            work.ended(part, Status::SUCCESS, &[], &memory());
        }
        assert!(work.is_done() && work.status.is_success());
    }

    #[test]
    fn a_barrier_goes_before_a_read_and_behind_zeroes_that_have_to_be_persistent() {
        let orders = [
            (Io::Read { range: RANGE, fua: true }, [Opcode::Flush, Opcode::Read]),
            (Io::WriteZeroes { range: RANGE, deallocate: false, fua: true }, [Opcode::Trim, Opcode::Flush]),
        ];
        for (io, order) in orders {
            let mut work = work(&io);
            for opcode in order {
                let part = work.next(64).unwrap();
                assert_eq!(part.opcode, opcode, "{io:?}");
                work.took(&part);
                assert_eq!(work.next(64), None, "the next one waits until it has ended");
                let bytes = part.range.blocks as usize * BLOCK;
                work.ended(&part, Status::SUCCESS, &vec![0; if work.reads() { bytes } else { 0 }], &memory());
            }
            assert!(work.is_done(), "{io:?}");
        }
    }

    #[test]
    fn what_is_compared_is_the_same_byte_for_byte_or_a_failure() {
        let memory = memory();
        let stored = memory.0.borrow()[BLOCK..6 * BLOCK].to_vec();
        for (changed, expected) in [(None, Status::SUCCESS), (Some(3 * BLOCK + 5), status::COMPARE_FAILURE)] {
            let mut data = stored.clone();
            if let Some(at) = changed {
                data[at] ^= 1;
            }
            let mut work = work(&Io::Compare(RANGE));
            while let Some(part) = work.next(2) {
                work.took(&part);
                let from = part.offset as usize;
                let bytes = part.range.blocks as usize * BLOCK;
                work.ended(&part, Status::SUCCESS, &data[from..from + bytes], &memory);
            }
            assert_eq!(work.status, expected);
            assert!(work.is_done());
        }
    }

    /// A device whose blocks take space when `is_allocated` says so, and that answers at most `most` runs at a time.
    fn answer_of(part: &Part, most: usize, is_allocated: impl Fn(u64) -> bool) -> Vec<u8> {
        let blocks: Vec<u64> = (part.range.slba..part.range.slba + part.range.blocks).collect();
        let runs = blocks.chunk_by(|a, b| is_allocated(*a) == is_allocated(*b)).take(most);
        runs.flat_map(|run| {
            Run { blocks: run.len() as u32, is_allocated: is_allocated(run[0]) }.to_word().to_le_bytes()
        })
        .collect()
    }

    #[test]
    fn which_blocks_take_space_is_asked_in_parts_until_all_is_known_or_there_is_no_room() {
        let is_allocated = |block: u64| block % 1000 < 300;
        let range = BlockRange { slba: 500, blocks: 3 * ALLOCATION_BLOCKS };
        for (bytes, most) in [(4096, 1000), (4096, 1), (4096, 2), (24 + 16 * 3, 1000), (8, 5)] {
            let query = AllocationQuery { range, bytes };
            let mut work = Work::allocation(0, Command::new(admin::GET_LBA_STATUS, 1), query);
            work.spans = vec![Span { address: 0, bytes }];
            let mut asked = 0;
            while let Some(part) = work.next(1) {
                work.took(&part);
                assert_eq!(work.next(1), None, "where it goes on is not known yet");
                work.ended(&part, Status::SUCCESS, &answer_of(&part, most, is_allocated), &memory());
                asked += 1;
            }
            let memory = memory();
            work.conclude(&memory);
            assert!(work.is_done() && work.status.is_success());
            let (found, is_cut) = osier_nvme::allocated(&memory.0.borrow()[..bytes as usize]);
            let first = [(1000, 300), (2000, 300), (3000, 300), (4000, 300)];
            let room = query.ranges_max();
            assert_eq!(is_cut, room < 25, "{bytes} bytes");
            assert_eq!(found.len(), room.min(25));
            for (found, (slba, blocks)) in found.iter().zip(first) {
                assert_eq!(*found, BlockRange { slba, blocks }, "{bytes} bytes, {most} runs at a time");
            }
            assert!(asked >= if is_cut { 1 } else { 3 });
        }
    }

    #[test]
    fn a_device_that_does_not_say_what_takes_space_is_not_asked_for_ever() {
        let query = AllocationQuery { range: RANGE, bytes: 4096 };
        let mut work = Work::allocation(0, Command::new(admin::GET_LBA_STATUS, 1), query);
        let part = work.next(1).unwrap();
        work.took(&part);
        work.ended(&part, Status::SUCCESS, &[], &memory());
        assert!(work.is_done() && work.status == Status::INTERNAL_ERROR);
    }

    #[test]
    fn the_first_thing_that_goes_wrong_stays_and_nothing_more_is_begun() {
        let mut work = work(&Io::Read { range: RANGE, fua: false });
        let parts: Vec<Part> = (0..2)
            .map(|_| {
                let part = work.next(2).unwrap();
                work.took(&part);
                part
            })
            .collect();
        work.ended(&parts[0], Status::UNRECOVERED_READ_ERROR, &[], &memory());
        assert_eq!(work.next(2), None);
        assert!(!work.is_done(), "a part is under way");
        work.ended(&parts[1], Status::INTERNAL_ERROR, &[], &memory());
        assert!(work.is_done() && work.status == Status::UNRECOVERED_READ_ERROR);
    }

    #[test]
    fn a_read_goes_where_its_spans_say_and_not_beyond_the_clients_memory() {
        let memory = memory();
        let spans = [(100, 3000), (9000, 2000)].map(|(address, bytes)| Span { address, bytes });
        let data: Vec<u8> = (0..4000).map(|at| (at % 251) as u8).collect();
        scatter(&spans, 1000, &data, &memory).unwrap();
        let mut back = vec![0; 4000];
        gather(&spans, 1000, &mut back, &memory).unwrap();
        assert_eq!(back, data);
        assert_eq!(memory.0.borrow()[1100..3100], data[..2000]);
        assert_eq!(memory.0.borrow()[9000..11_000], data[2000..]);
        assert!(scatter(&spans, 1001, &data, &memory).is_err(), "the spans are too short");
        let outside = [Span { address: 8 * BLOCK as u64 - 10, bytes: 4000 }];
        assert!(scatter(&outside, 0, &data, &memory).is_err());
    }
}
