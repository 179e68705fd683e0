//! A client in a test's memory drives a controller as a driver of the standard would.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::command::{admin, nvm};
use crate::registers::{
    ACQ, AQA, ASQ, CAP, CC, CC_EN, CC_ENTRIES, CC_SHN, CSTS, CSTS_CFS, CSTS_RDY, CSTS_SHST_COMPLETE, head_doorbell,
    tail_doorbell,
};
use crate::status::{self, *};
use crate::*;

const MEMORY_BYTES: usize = 1 << 20;

/// A client's memory and registers.
struct Host {
    memory: RefCell<Vec<u8>>,
    words: RefCell<BTreeMap<u64, u32>>,
}

impl Host {
    fn new() -> Host {
        Host { memory: RefCell::new(vec![0; MEMORY_BYTES]), words: RefCell::default() }
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.borrow_mut()[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    }

    fn get(&self, at: u64, bytes: usize) -> Vec<u8> {
        self.memory.borrow()[at as usize..at as usize + bytes].to_vec()
    }
}

impl HostMemory for Host {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfMemory> {
        let memory = self.memory.borrow();
        let from = usize::try_from(address).map_err(|_| OutOfMemory)?;
        let bytes = memory.get(from..from.checked_add(out.len()).ok_or(OutOfMemory)?).ok_or(OutOfMemory)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfMemory> {
        let mut memory = self.memory.borrow_mut();
        let from = usize::try_from(address).map_err(|_| OutOfMemory)?;
        let end = from.checked_add(bytes.len()).ok_or(OutOfMemory)?;
        memory.get_mut(from..end).ok_or(OutOfMemory)?.copy_from_slice(bytes);
        Ok(())
    }

    fn publish(&self, address: u64, word: [u8; 4]) -> Result<(), OutOfMemory> {
        self.write(address, &word)
    }
}

impl Registers for Host {
    fn load(&self, offset: u64) -> u32 {
        self.words.borrow().get(&offset).copied().unwrap_or(0)
    }

    fn store(&self, offset: u64, value: u32) {
        self.words.borrow_mut().insert(offset, value);
    }
}

fn identity() -> Identity {
    Identity {
        serial: "00112233445566778899".into(),
        model: "Osier test".into(),
        firmware: "0.1.0".into(),
        subsystem: "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-000000000001".into(),
        controller: 1,
        volatile_cache: true,
        warning_kelvin: 343,
        critical_kelvin: 358,
        reach: Reach::Memory,
        io_queues_max: IO_QUEUES_MAX,
    }
}

fn namespace(nsid: u32, blocks: u64) -> Namespace {
    Namespace { nsid, blocks, used_blocks: blocks, is_thin: false, is_read_only: false, nguid: [nsid as u8; 16] }
}

fn controller() -> Controller {
    Controller::new(identity(), vec![namespace(1, 1000), namespace(3, 10)])
}

fn run(controller: &mut Controller, command: &Command) -> Result<Admin, Status> {
    controller.admin(command, &Health::default())
}

fn data(outcome: Result<Admin, Status>) -> Vec<u8> {
    match outcome.unwrap() {
        Admin::Done { data, .. } => data,
        other => panic!("{other:?}"),
    }
}

fn result(outcome: Result<Admin, Status>) -> u32 {
    match outcome.unwrap() {
        Admin::Done { result, .. } => result,
        other => panic!("{other:?}"),
    }
}

fn with(opcode: u8, nsid: u32, cdw: [u32; 6]) -> Command {
    Command { cdw, ..Command::new(opcode, nsid) }
}

fn u64_at(page: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().unwrap())
}

/// One pair of queues of a driver.
struct Pair {
    submission: u64,
    completion: u64,
    entries: u32,
    tail: u32,
    head: u32,
    phase: bool,
    qid: u16,
}

impl Pair {
    fn new(qid: u16, at: u64, entries: u32) -> Pair {
        Pair { submission: at, completion: at + 65_536, entries, tail: 0, head: 0, phase: true, qid }
    }

    fn has_room(&self, sqhd: u32) -> bool {
        (self.tail + 1) % self.entries != sqhd
    }

    fn push(&mut self, host: &Host, command: &Command) {
        host.put(self.submission + u64::from(self.tail) * 64, &command.encode());
        self.tail = (self.tail + 1) % self.entries;
        host.store(tail_doorbell(self.qid), self.tail);
    }

    fn pop(&mut self, host: &Host) -> Option<Completion> {
        let entry = host.get(self.completion + u64::from(self.head) * 16, 16);
        let (completion, phase) = Completion::decode(&entry.try_into().unwrap());
        if phase != self.phase {
            return None;
        }
        self.head = (self.head + 1) % self.entries;
        self.phase ^= self.head == 0;
        host.store(head_doorbell(self.qid), self.head);
        Some(completion)
    }
}

const ADMIN_AT: u64 = 0;
const IO_AT: u64 = 262_144;

/// A controller that was enabled, with its admin queue.
fn enabled(host: &Host, entries: u32) -> (Queues, Pair) {
    let mut queues = Queues::new(host, 2);
    let pair = Pair::new(0, ADMIN_AT, entries);
    host.store(AQA, (entries - 1) | (entries - 1) << 16);
    host.store(ASQ, pair.submission as u32);
    host.store(ACQ, pair.completion as u32);
    host.store(CC, CC_ENTRIES | CC_EN);
    assert_eq!(queues.look(host), Change::Reset);
    assert_eq!(host.load(CSTS), CSTS_RDY);
    (queues, pair)
}

/// Makes queue pair 1; the completion queue has an interrupt.
fn make_io(queues: &mut Queues, entries: u32) -> Pair {
    let pair = Pair::new(1, IO_AT, entries);
    let sized = 1 | (entries - 1) << 16;
    let create = |opcode, base, flags| Command {
        dptr: DataPointer::Prp(base, 0),
        ..with(opcode, 0, [sized, flags, 0, 0, 0, 0])
    };
    queues.create_completion(&create(admin::CREATE_CQ, pair.completion, 0b11 | 1 << 16)).unwrap();
    queues.create_submission(&create(admin::CREATE_SQ, pair.submission, 1 | 1 << 16)).unwrap();
    pair
}

#[test]
fn what_a_driver_reads_first_says_how_to_go_on() {
    let host = Host::new();
    let _ = Queues::new(&host, 1);
    let capabilities = u64::from(host.load(CAP)) | u64::from(host.load(CAP + 4)) << 32;
    assert_eq!(capabilities & 0xFFFF, u64::from(QUEUE_ENTRIES_MAX) - 1);
    assert_eq!(capabilities >> 37 & 1, 1, "the NVM command set");
    let stride = 4 << (capabilities >> 32 & 0xF);
    assert_eq!(head_doorbell(3) - tail_doorbell(3), stride);
    assert_eq!(tail_doorbell(4) - tail_doorbell(3), 2 * stride);
}

#[test]
fn a_configuration_that_cannot_be_is_a_fatal_error_until_the_next_reset() {
    for (cc, aqa) in [
        (CC_ENTRIES | 1 << 7, 0x0003_0003),
        (CC_ENTRIES | 1 << 4, 0x0003_0003),
        (CC_ENTRIES, 0x0003_0000),
        (CC_ENTRIES, 0x0FFF_0003),
    ] {
        let host = Host::new();
        let mut queues = Queues::new(&host, 1);
        host.store(AQA, aqa);
        host.store(CC, cc | CC_EN);
        queues.look(&host);
        assert_eq!(host.load(CSTS), CSTS_CFS, "{cc:x} {aqa:x}");
        host.store(CC, 0);
        queues.look(&host);
        assert_eq!(host.load(CSTS), 0);
    }
}

/// Every command of a driver that wraps, fills and empties its queues ends once, with its own status, whatever the
/// order in which commands end and however slow the driver is to take completions.
#[test]
fn every_command_ends_once_on_small_queues() {
    for seed in 0..200_u64 {
        let host = Host::new();
        let entries = 2 + (seed % 7) as u32;
        let (mut queues, _) = enabled(&host, 4);
        let mut pair = make_io(&mut queues, entries);
        let mut random = seed + 1;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (random >> 33) % below
        };
        let (mut next, mut sqhd) = (0_u16, 0);
        let mut out: Vec<Fetched> = Vec::new();
        let mut expected: BTreeSet<u16> = BTreeSet::new();
        let mut vectors = Vec::new();
        for _ in 0..400 {
            match draw(4) {
                0 if pair.has_room(sqhd) && next < 300 => {
                    pair.push(&host, &Command { cid: next, ..Command::new(nvm::FLUSH, 1) });
                    expected.insert(next);
                    next += 1;
                }
                1 => out.extend(queues.fetch(&host, &host)),
                2 if !out.is_empty() => {
                    let fetched = out.swap_remove(draw(out.len() as u64) as usize);
                    let (sqid, cid) = (fetched.sqid, fetched.command.cid);
                    assert_eq!(sqid, 1);
                    let vector = queues.complete((sqid, cid), (Status(cid % 5), u32::from(cid)), &host, &host);
                    assert_eq!(vector, Some(1));
                }
                _ => {
                    queues.go_on(&host, &host, &mut vectors);
                    if let Some(ended) = pair.pop(&host) {
                        assert!(expected.remove(&ended.cid), "seed {seed}: {} ended twice", ended.cid);
                        assert_eq!((ended.status, ended.result), (Status(ended.cid % 5), u64::from(ended.cid)));
                        sqhd = u32::from(ended.sqhd);
                    }
                }
            }
        }
        // Now all that is left.
        loop {
            out.extend(queues.fetch(&host, &host));
            if let Some(fetched) = out.pop() {
                let cid = fetched.command.cid;
                queues.complete((1, cid), (Status(cid % 5), u32::from(cid)), &host, &host);
            }
            queues.go_on(&host, &host, &mut vectors);
            match pair.pop(&host) {
                Some(ended) => assert!(expected.remove(&ended.cid)),
                None if out.is_empty() && !queues.has_command(&host) => break,
                None => {}
            }
        }
        assert!(expected.is_empty() && queues.outstanding() == 0, "seed {seed}: {expected:?} did not end");
    }
}

#[test]
fn a_queue_goes_with_the_last_of_its_commands() {
    let host = Host::new();
    let (mut queues, mut admin_pair) = enabled(&host, 4);
    let mut pair = make_io(&mut queues, 8);
    pair.push(&host, &Command { cid: 7, ..Command::new(nvm::FLUSH, 1) });
    let fetched = queues.fetch(&host, &host).unwrap();
    assert_eq!(queues.delete_completion(1), Err(INVALID_QUEUE_DELETION));
    admin_pair.push(&host, &Command { cid: 9, ..with(admin::DELETE_SQ, 0, [1, 0, 0, 0, 0, 0]) });
    let delete = queues.fetch(&host, &host).unwrap();
    assert_eq!(queues.delete_submission(1, delete.command.cid), Ok(false));
    assert_eq!(queues.delete_submission(1, 10), Err(INVALID_QUEUE_IDENTIFIER), "it is going already");
    pair.push(&host, &Command { cid: 8, ..Command::new(nvm::FLUSH, 1) });
    assert_eq!(queues.fetch(&host, &host), None, "nothing more comes from a queue that goes");
    queues.complete((1, fetched.command.cid), (Status::SUCCESS, 0), &host, &host);
    assert_eq!(pair.pop(&host).unwrap().cid, 7);
    assert_eq!(admin_pair.pop(&host).unwrap().cid, 9);
    assert_eq!(queues.outstanding(), 0);
    assert_eq!(queues.delete_completion(1), Ok(()));
    assert_eq!(queues.delete_completion(1), Err(INVALID_QUEUE_IDENTIFIER));
}

#[test]
fn a_controller_is_disabled_when_its_last_command_has_ended() {
    let host = Host::new();
    let (mut queues, mut pair) = enabled(&host, 4);
    pair.push(&host, &Command::new(admin::KEEP_ALIVE, 0));
    let fetched = queues.fetch(&host, &host).unwrap();
    host.store(CC, 0);
    queues.look(&host);
    assert_eq!(host.load(CSTS), CSTS_RDY, "a command is under way");
    assert_eq!(queues.complete((0, fetched.command.cid), (Status::SUCCESS, 0), &host, &host), None);
    assert_eq!(host.load(CSTS), 0);
    assert_eq!(pair.pop(&host), None, "nobody hears of it");
    assert_eq!(host.load(tail_doorbell(0)), 0, "doorbells begin anew");
}

#[test]
fn a_shut_down_is_complete_when_the_device_says_so() {
    let host = Host::new();
    let (mut queues, _) = enabled(&host, 4);
    host.store(CC, CC_ENTRIES | CC_EN | CC_SHN & 1 << 14);
    assert_eq!(queues.look(&host), Change::ShutDown);
    assert_eq!(queues.look(&host), Change::None, "it is said once");
    assert_eq!(host.load(CSTS), CSTS_RDY);
    queues.shut_down(&host);
    assert_eq!(host.load(CSTS), CSTS_RDY | CSTS_SHST_COMPLETE);
}

#[test]
fn doorbells_and_queues_that_no_client_can_mean_do_no_harm() {
    let host = Host::new();
    let (mut queues, mut pair) = enabled(&host, 4);
    host.store(tail_doorbell(0), 99);
    assert!(!queues.has_command(&host));
    assert_eq!(queues.fetch(&host, &host), None);
    pair.push(&host, &Command::new(admin::KEEP_ALIVE, 0));
    let fetched = queues.fetch(&host, &host).unwrap();
    host.store(head_doorbell(0), 77);
    queues.complete((0, fetched.command.cid), (Status::SUCCESS, 0), &host, &host);
    let create = |qid: u32, entries: u32, base| Command {
        dptr: DataPointer::Prp(base, 0),
        ..with(admin::CREATE_CQ, 0, [qid | (entries - 1) << 16, 1, 0, 0, 0, 0])
    };
    let refused = [
        (create(0, 8, 0), INVALID_QUEUE_IDENTIFIER),
        (create(u32::from(IO_QUEUES_MAX) + 1, 8, 0), INVALID_QUEUE_IDENTIFIER),
        (create(1, 1, 0), INVALID_QUEUE_SIZE),
        (create(1, QUEUE_ENTRIES_MAX + 1, 0), INVALID_QUEUE_SIZE),
        (create(1, 8, 512), PRP_OFFSET_INVALID),
        (Command { cdw: [1 | 7 << 16, 0, 0, 0, 0, 0], ..create(1, 8, 0) }, Status::INVALID_FIELD),
        (Command { cdw: [1 | 7 << 16, 0b11 | 2 << 16, 0, 0, 0, 0], ..create(1, 8, 0) }, INVALID_INTERRUPT_VECTOR),
    ];
    for (command, expected) in refused {
        assert_eq!(queues.create_completion(&command), Err(expected), "{command:?}");
    }
    assert_eq!(queues.create_submission(&create(1, 8, 0)), Err(COMPLETION_QUEUE_INVALID));
    // A queue outside of the client's memory: the controller fails, and a reset brings it back.
    queues.create_completion(&create(1, 8, 1 << 40)).unwrap();
    let submission = Command { cdw: [1 | 7 << 16, 1 | 1 << 16, 0, 0, 0, 0], ..create(1, 8, 1 << 40) };
    queues.create_submission(&submission).unwrap();
    host.store(tail_doorbell(1), 1);
    assert_eq!(queues.fetch(&host, &host), None);
    assert_eq!(host.load(CSTS), CSTS_CFS);
}

/// The spans of a PRP pair that a driver made over these pages, byte by byte.
fn prp_of(host: &Host, pages: &[u64], offset: u64, bytes: u64, lists: u64) -> (u64, u64) {
    let first = pages[0] + offset;
    let in_first = bytes.min(PAGE_BYTES - offset);
    let rest = (bytes - in_first).div_ceil(PAGE_BYTES) as usize;
    let others = &pages[1..=rest];
    match others {
        [] => (first, 0xDEAD_BEEF),
        [one] => (first, *one),
        _ => {
            // Lists of 512 entries, the last of each a pointer to the next while there is more.
            let (mut at, mut left) = (lists, others);
            loop {
                let room = ((PAGE_BYTES - at % PAGE_BYTES) / 8) as usize;
                let here = if left.len() > room { room - 1 } else { left.len() };
                for (index, page) in left[..here].iter().enumerate() {
                    host.put(at + index as u64 * 8, &page.to_le_bytes());
                }
                left = &left[here..];
                if left.is_empty() {
                    return (first, lists);
                }
                let next = (at / PAGE_BYTES + 1) * PAGE_BYTES;
                host.put(at + here as u64 * 8, &next.to_le_bytes());
                at = next;
            }
        }
    }
}

fn bytes_of(spans: &[Span]) -> Vec<u64> {
    spans.iter().flat_map(|span| span.address..span.address + span.bytes).collect()
}

proptest! {
    #[test]
    fn commands_and_completions_are_read_as_they_are_written(
        entry in prop::array::uniform32(any::<u8>()),
        more in prop::array::uniform32(any::<u8>()),
    ) {
        let mut raw = [0; COMMAND_BYTES];
        raw[..32].copy_from_slice(&entry);
        raw[32..].copy_from_slice(&more);
        let command = Command::decode(&raw);
        prop_assert_eq!(Command::decode(&command.encode()), command);
        let completion = Completion {
            result: u64::from_le_bytes(more[..8].try_into().unwrap()),
            sqhd: u16::from(entry[4]),
            sqid: u16::from(entry[5]),
            cid: command.cid,
            status: Status(u16::from_le_bytes([entry[6], entry[7]]) & 0x7FF),
        };
        for phase in [false, true] {
            prop_assert_eq!(Completion::decode(&completion.encode(phase)), (completion, phase));
        }
    }

    #[test]
    fn prps_name_the_bytes_that_a_driver_put_into_them(
        order in Just((64..200_u64).collect::<Vec<_>>()).prop_shuffle(),
        offset in (0..1024_u64).prop_map(|dword| dword * 4),
        bytes in 1..=100 * PAGE_BYTES,
        list_offset in (0..512_u64).prop_map(|entry| entry * 8),
    ) {
        let host = Host::new();
        let pages: Vec<u64> = order.iter().map(|page| page * PAGE_BYTES).collect();
        let (first, second) = prp_of(&host, &pages, offset, bytes, 8192 + list_offset);
        let mut spans = Vec::new();
        resolve(&DataPointer::Prp(first, second), bytes, &host, &mut spans).unwrap();
        let head = bytes.min(PAGE_BYTES - offset);
        let mut expected: Vec<u64> = (first..first + head).collect();
        let mut left = bytes - head;
        for page in &pages[1..] {
            let here = left.min(PAGE_BYTES);
            expected.extend(*page..*page + here);
            left -= here;
        }
        prop_assert_eq!(bytes_of(&spans), expected);
    }

    /// Whatever 64 bytes say, a command is answered, and what it asks for lies in its namespace.
    #[test]
    fn no_command_is_more_than_the_controller_can_bear(
        raw in prop::collection::vec(any::<u8>(), 64),
        opcode in 0..0x20_u8,
    ) {
        let mut entry: [u8; 64] = raw.try_into().unwrap();
        entry[0] = opcode;
        let mut controller = controller();
        for nsid in [0, 1, 2, 3, u32::MAX] {
            let command = Command { nsid, ..Command::decode(&entry) };
            if let Ok(io) = controller.io(&command) {
                prop_assert!(io.data().1 <= TRANSFER_BYTES_MAX);
                if let Some(range) = io.range() {
                    let blocks = controller.namespace(nsid).unwrap().blocks;
                    prop_assert!(range.blocks > 0 && range.slba + range.blocks <= blocks);
                }
                let mut spans = Vec::new();
                // The memory has no such bytes, or has them; either way it ends.
                let _ = resolve(&command.dptr, io.data().1, &Host::new(), &mut spans);
            }
            let (_, bytes) = Controller::data(&command).unwrap_or((Direction::None, 0));
            if let Ok(Admin::Done { data, .. }) = run(&mut controller, &command) {
                prop_assert!(data.is_empty() || data.len() as u64 == bytes);
            }
        }
    }
}

#[test]
fn prps_that_name_no_pages_are_refused() {
    let host = Host::new();
    let refused = |first, second, bytes| resolve(&DataPointer::Prp(first, second), bytes, &host, &mut Vec::new());
    assert_eq!(refused(2, 0, 4096), Err(PRP_OFFSET_INVALID));
    assert_eq!(refused(4096, 512, 8192), Err(PRP_OFFSET_INVALID), "a second page begins where a page does");
    assert_eq!(refused(4096, 8196, 3 * 4096), Err(PRP_OFFSET_INVALID), "a list's entries have eight bytes");
    assert_eq!(refused(4096, MEMORY_BYTES as u64, 3 * 4096), Err(DATA_TRANSFER_ERROR));
    assert_eq!(refused(4096, u64::MAX - 7, 3 * 4096), Err(DATA_TRANSFER_ERROR));
    // The one entry that a list has room for points to itself.
    host.put(8192 - 8, &(8192_u64 - 8).to_le_bytes());
    assert_eq!(refused(4096, 8192 - 8, 3 * 4096), Err(PRP_OFFSET_INVALID));
}

fn sgl(kind: u8, address: u64, bytes: u32) -> [u8; 16] {
    let mut descriptor = [0; 16];
    descriptor[..8].copy_from_slice(&address.to_le_bytes());
    descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
    descriptor[15] = kind;
    descriptor
}

#[test]
fn an_sgl_is_its_data_blocks_in_order_and_as_long_as_the_data() {
    let host = Host::new();
    let run = |descriptor, bytes| {
        let mut spans = Vec::new();
        resolve(&DataPointer::Sgl(descriptor), bytes, &host, &mut spans).map(|()| spans)
    };
    assert_eq!(run(sgl(0, 100, 4096), 4096), Ok(vec![Span { address: 100, bytes: 4096 }]));
    assert_eq!(run(sgl(0, 100, 4095), 4096), Err(SGL_LENGTH_INVALID));
    assert_eq!(run(sgl(0, 100, 4097), 4096), Err(SGL_LENGTH_INVALID));
    assert_eq!(run(sgl(0x50, 100, 4096), 4096), Err(SGL_TYPE_INVALID));
    // A segment of two: a data block, and the last segment, which has two data blocks.
    host.put(1024, &sgl(0, 5000, 1000));
    host.put(1040, &sgl(0x30, 2048, 32));
    host.put(2048, &sgl(0, 9000, 3000));
    host.put(2064, &sgl(0, 200, 96));
    let spans = [(5000, 1000), (9000, 3000), (200, 96)].map(|(address, bytes)| Span { address, bytes });
    assert_eq!(run(sgl(0x20, 1024, 32), 4096), Ok(spans.to_vec()));
    assert_eq!(run(sgl(0x30, 1024, 32), 4096), Err(INVALID_SGL_SEGMENT), "the last segment points nowhere");
    assert_eq!(run(sgl(0x20, 1024, 33), 4096), Err(INVALID_SGL_SEGMENT));
    assert_eq!(run(sgl(0x20, u64::MAX - 4, 32), 4096), Err(DATA_TRANSFER_ERROR));
    // A segment that is its own next ends too.
    host.put(3072, &sgl(0x20, 3072, 16));
    assert_eq!(run(sgl(0x20, 3072, 16), 4096), Err(INVALID_SGL_COUNT));
}

#[test]
fn io_commands_say_what_the_standard_says_of_them() {
    let controller = controller();
    let io = |command: &Command| controller.io(command);
    let range = BlockRange { slba: 7, blocks: 3 };
    let rw = |opcode, flags: u32| with(opcode, 1, [7, 0, 2 | flags, 0, 0, 0]);
    assert_eq!(io(&rw(nvm::READ, 0)), Ok(Io::Read { range, fua: false }));
    assert_eq!(io(&rw(nvm::WRITE, 1 << 30)), Ok(Io::Write { range, fua: true }));
    assert_eq!(io(&rw(nvm::WRITE_ZEROES, 1 << 25)), Ok(Io::WriteZeroes { range, deallocate: true, fua: false }));
    assert_eq!(io(&rw(nvm::COMPARE, 0)), Ok(Io::Compare(range)));
    assert_eq!(io(&rw(nvm::VERIFY, 0)), Ok(Io::Verify(range)));
    assert_eq!(io(&with(nvm::DATASET_MANAGEMENT, 1, [4, 1 << 2, 0, 0, 0, 0])), Ok(Io::Deallocate { ranges: 5 }));
    assert_eq!(io(&with(nvm::DATASET_MANAGEMENT, 1, [4, 1, 0, 0, 0, 0])), Ok(Io::Hint { ranges: 5 }));
    let refused = [
        (rw(nvm::READ, 1 << 26), Status::INVALID_FIELD),
        (Command { fuse: 1, ..rw(nvm::COMPARE, 0) }, Status::INVALID_FIELD),
        (with(nvm::READ, 1, [998, 0, 2, 0, 0, 0]), Status::LBA_OUT_OF_RANGE),
        (with(nvm::READ, 1, [u32::MAX, u32::MAX, 0, 0, 0, 0]), Status::LBA_OUT_OF_RANGE),
        (with(nvm::READ, 1, [0, 0, 256, 0, 0, 0]), Status::INVALID_FIELD),
        (with(nvm::READ, 2, [0; 6]), INVALID_NAMESPACE),
        (with(nvm::FLUSH, u32::MAX, [0; 6]), INVALID_NAMESPACE),
        (with(0x0D, 1, [0; 6]), INVALID_OPCODE),
    ];
    for (command, expected) in refused {
        assert_eq!(io(&command), Err(expected), "{command:?}");
    }
    let mut read_only = controller;
    read_only.set_namespaces(vec![Namespace { is_read_only: true, ..namespace(1, 1000) }]);
    assert_eq!(read_only.io(&rw(nvm::WRITE, 0)), Err(NAMESPACE_WRITE_PROTECTED));
    assert!(read_only.io(&rw(nvm::READ, 0)).is_ok());
}

#[test]
fn ranges_of_dataset_management_lie_in_the_namespace_or_none_is_taken() {
    let list = |ranges: &[(u32, u64)]| -> Vec<u8> {
        ranges
            .iter()
            .flat_map(|(blocks, slba)| [[0; 4].as_slice(), &blocks.to_le_bytes(), &slba.to_le_bytes()].concat())
            .collect()
    };
    let namespace = namespace(1, 1000);
    let ok = ranges(&list(&[(5, 10), (0, 1000), (1000, 0)]), &namespace).unwrap();
    assert_eq!(ok, [(10, 5), (1000, 0), (0, 1000)].map(|(slba, blocks)| BlockRange { slba, blocks }));
    assert_eq!(ranges(&list(&[(5, 10), (1, 1000)]), &namespace), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(ranges(&list(&[(2, u64::MAX)]), &namespace), Err(Status::LBA_OUT_OF_RANGE));
}

#[test]
fn identify_says_what_there_is() {
    let mut controller = controller();
    let mut identify = |cns: u32, nsid: u32| run(&mut controller, &with(admin::IDENTIFY, nsid, [cns, 0, 0, 0, 0, 0]));
    let page = data(identify(1, 0));
    assert_eq!(&page[4..24], b"00112233445566778899");
    assert_eq!(&page[24..64], format!("{:40}", "Osier test").as_bytes());
    assert_eq!(page[77], TRANSFER_PAGES_LOG2);
    assert_eq!(u64_at(&data(identify(0, 1)), 0), 1000);
    assert_eq!(data(identify(0, 1))[130], 12, "blocks of 4096 bytes");
    assert_eq!(data(identify(0, 2)), vec![0; IDENTIFY_BYTES], "an inactive namespace is all zero");
    assert_eq!(identify(0, 0), Err(INVALID_NAMESPACE));
    let list = data(identify(2, 1));
    assert_eq!((&list[..4], &list[4..8]), (&[3, 0, 0, 0][..], &[0; 4][..]), "those above the one that is named");
    assert_eq!(&data(identify(3, 3))[..20], [&[2, 16, 0, 0][..], &[3; 16]].concat());
    assert_eq!(identify(3, 2), Err(INVALID_NAMESPACE));
    assert_eq!(identify(0x55, 1), Err(Status::INVALID_FIELD));
}

#[test]
fn features_are_kept_or_refused() {
    let mut controller = controller();
    let get = |controller: &mut Controller, dword: u32| {
        run(controller, &with(admin::GET_FEATURES, 0, [dword, 0, 0, 0, 0, 0]))
    };
    let set = |controller: &mut Controller, feature: u32, value: u32| {
        run(controller, &with(admin::SET_FEATURES, 0, [feature, value, 0, 0, 0, 0]))
    };
    let write = with(nvm::WRITE, 1, [0; 6]);
    assert_eq!(result(get(&mut controller, 6)), 1);
    set(&mut controller, 6, 0).unwrap();
    assert_eq!(result(get(&mut controller, 6)), 0);
    assert!(
        matches!(controller.io(&write), Ok(Io::Write { fua: true, .. })),
        "with the cache off, writes go through it"
    );
    assert_eq!(result(get(&mut controller, 6 | 1 << 8)), 1, "the default");
    assert_eq!(result(set(&mut controller, 7, 3 | 200 << 16)), 3 | 63 << 16, "at most 64 queues");
    assert_eq!(set(&mut controller, 7, 0xFFFF), Err(Status::INVALID_FIELD));
    assert_eq!(set(&mut controller, 6 | 1 << 31, 1), Err(FEATURE_NOT_SAVEABLE));
    assert_eq!(set(&mut controller, 1, 99), Err(FEATURE_NOT_CHANGEABLE));
    assert_eq!(set(&mut controller, 0x7F, 0), Err(Status::INVALID_FIELD));
    controller.reset();
    assert!(controller.features().write_cache, "a reset makes features what they were");
}

#[test]
fn events_are_told_once_until_their_log_is_read() {
    let mut controller = controller();
    let hot = Health { temperature_kelvin: 350, ..Health::default() };
    let cool = Health { temperature_kelvin: 300, ..Health::default() };
    run(&mut controller, &with(admin::SET_FEATURES, 0, [0x0B, 1 << 1 | 1 << 8, 0, 0, 0, 0])).unwrap();
    let ask = |controller: &mut Controller, cid| {
        run(controller, &Command { cid, ..Command::new(admin::ASYNC_EVENT_REQUEST, 0) })
    };
    for cid in 0..4 {
        assert_eq!(ask(&mut controller, cid), Ok(Admin::Held));
    }
    assert_eq!(ask(&mut controller, 4), Err(EVENT_LIMIT_EXCEEDED));
    controller.observe(&cool);
    assert_eq!(controller.event(), None);
    controller.observe(&hot);
    assert_eq!(controller.event(), Some((Held { cid: 0 }, 1 | 1 << 8 | 2 << 16)));
    controller.observe(&cool);
    controller.observe(&hot);
    assert_eq!(controller.event(), None, "masked until the log page is read");
    let log = |page: u32| with(admin::GET_LOG_PAGE, u32::MAX, [page | 127 << 16, 0, 0, 0, 0, 0]);
    let page = data(controller.admin(&log(2), &hot));
    assert_eq!((page.len(), u16::from_le_bytes([page[1], page[2]])), (512, 350));
    controller.observe(&cool);
    controller.observe(&hot);
    assert!(controller.event().is_some());
    controller.set_namespaces(vec![namespace(1, 1000), namespace(2, 5), namespace(3, 10)]);
    assert_eq!(controller.event(), Some((Held { cid: 2 }, 2 | 4 << 16)));
    assert_eq!(&data(run(&mut controller, &log(4)))[..8], &[2, 0, 0, 0, 0, 0, 0, 0]);
    assert!(controller.abort_event(3) && !controller.abort_event(3));
}

#[test]
fn the_error_log_has_the_newest_first_and_a_log_is_read_in_parts() {
    let mut controller = controller();
    for cid in 0..100 {
        let command = Command { cid, ..with(nvm::READ, 1, [5000 + u32::from(cid), 0, 0, 0, 0, 0]) };
        controller.note_failure(1, &command, Status::LBA_OUT_OF_RANGE);
    }
    let log = |offset: u32, bytes: u32| with(admin::GET_LOG_PAGE, 0, [1 | (bytes / 4 - 1) << 16, 0, offset, 0, 0, 0]);
    let page = data(run(&mut controller, &log(0, 64 * 64)));
    assert_eq!((u64_at(&page, 0), u64_at(&page, 16)), (100, 5099));
    assert_eq!(u64_at(&page, 63 * 64), 37, "sixty-four are kept");
    assert_eq!(data(run(&mut controller, &log(64, 128))), page[64..192]);
    assert_eq!(run(&mut controller, &log(2, 64)), Err(Status::INVALID_FIELD));
    assert_eq!(run(&mut controller, &log(1 << 20, 64)), Err(Status::INVALID_FIELD));
    let unknown = with(admin::GET_LOG_PAGE, 0, [0x70, 0, 0, 0, 0, 0]);
    assert_eq!(run(&mut controller, &unknown), Err(INVALID_LOG_PAGE));
}

#[test]
fn what_fails_for_good_says_so() {
    assert_eq!(status::field(Status::LBA_OUT_OF_RANGE), 1 << 14 | 0x80);
    assert_eq!(status::field(Status::INTERNAL_ERROR), 0x06);
    assert_eq!(status::of_field(status::field(COMPARE_FAILURE)), COMPARE_FAILURE);
}

#[test]
fn a_welcome_is_read_as_it_is_written() {
    use local::{WELCOME_BYTES, Welcome};
    for welcome in [Welcome(Ok("wio".into())), Welcome(Err("no room".into())), Welcome(Ok(String::new()))] {
        assert_eq!(Welcome::decode(&welcome.encode()), Some(welcome));
    }
    let long = Welcome(Err("ü".repeat(400)));
    assert_eq!(Welcome::decode(&long.encode()), Some(Welcome(Err("ü".repeat(250)))));
    assert_eq!(Welcome::decode(&[0; WELCOME_BYTES]), None);
}
