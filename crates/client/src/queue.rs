//! A queue of a device's blocks: NVMe commands in memory that this program shares with the device.
//!
//! A [`Queue`] is a controller of its own with one pair of queues, so each thread has one, and no two share a lock. Its
//! memory holds the entries, and a buffer for each command that can be under way; the device copies from and to it.
//!
//! Invariants:
//! 1. A buffer is the caller's from [`Queue::take`] until [`Queue::submit`], and from [`Queue::reap`] until
//!    [`Queue::release`]; in between it is the device's.
//! 2. What was submitted ends, or its queue fails for good: when the device's host domain dies, [`Queue::recover`]
//!    attaches anew and sends again what had not ended. The device lets nobody in before what it had begun has ended,
//!    so nothing that is sent later is overtaken by what was sent twice.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use osier_nvme::local::{
    BELL, Hello, MEMORY, MEMORY_BYTES_MAX, REGISTERS, REGISTERS_BYTES, WELCOME_BYTES, Welcome, armed,
};
use osier_nvme::registers::{
    ACQ, AQA, ASQ, CC, CC_EN, CC_ENTRIES, CSTS, CSTS_CFS, CSTS_RDY, head_doorbell, tail_doorbell,
};
use osier_nvme::{
    AllocationQuery, BLOCK_BYTES, BlockRange, COMMAND_BYTES, COMPLETION_BYTES, Command, Completion, DataPointer,
    IDENTIFY_BYTES, PAGE_BYTES, QUEUE_ENTRIES_MAX, RANGE_BYTES, RANGES_MAX, Status, TRANSFER_BYTES_MAX, admin,
    allocated, nvm,
};
use osier_pmr::{Backing, DATA_OFFSET, Doorbell, Object, ObjectKind, Region, SharedBytes, pass};
use rustix::event::epoll;

/// Most blocks of one command that writes zeroes.
pub const ZEROES_BLOCKS_MAX: u64 = 1 << 16;
/// Most blocks of one command that deallocates.
pub const DEALLOCATE_BLOCKS_MAX: u64 = RANGES_MAX as u64 * u32::MAX as u64;
/// How long the device may take to answer what it answers at once.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// Between two looks at a device that is not there.
const RETRY: Duration = Duration::from_millis(2);
/// Most blocks of one question for allocated blocks.
pub const ALLOCATION_BLOCKS_MAX: u64 = u16::MAX as u64;
/// The admin queues' number.
const ADMIN: u16 = 0;
/// The pair of queues for I/O.
const IO: u16 = 1;
/// The identifier of commands that no slot has.
const BRINGING_UP: u16 = u16::MAX;

/// A queue that cannot be had, or that has failed for good.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// Nobody listens.
    #[error("cannot reach a device at {socket}: {source}; is it served there (`osier serve DEVICE`)?")]
    Connect {
        /// Where.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Whoever listens is no device.
    #[error("what listens at {socket} is no device of this version")]
    Stranger {
        /// Where.
        socket: PathBuf,
    },
    /// The device refuses.
    #[error("the device at {socket} refuses: {why}")]
    Refused {
        /// Where.
        socket: PathBuf,
        /// In its words.
        why: String,
    },
    /// A size that a queue cannot have.
    #[error("a queue of {depth} commands of {transfer_bytes} bytes each: {why}")]
    Shape {
        /// Commands.
        depth: u16,
        /// Bytes of each.
        transfer_bytes: u32,
        /// What is wrong.
        why: &'static str,
    },
    /// No memory to share.
    #[error(transparent)]
    Memory(#[from] osier_pmr::PmrError),
    /// The system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted.
        what: &'static str,
        /// What the system says.
        source: io::Error,
    },
    /// The controller does not come up.
    #[error("the device at {socket} does not bring its controller up: {why}")]
    Controller {
        /// Where.
        socket: PathBuf,
        /// What it did instead.
        why: String,
    },
}

/// What is asked of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Blocks into the buffer.
    Read {
        /// The first.
        block: u64,
        /// How many, at most a buffer's.
        blocks: u32,
    },
    /// Blocks from the buffer.
    Write {
        /// The first.
        block: u64,
        /// How many, at most a buffer's.
        blocks: u32,
        /// Answered when they are persistent.
        fua: bool,
    },
    /// Blocks that read as zeroes.
    WriteZeroes {
        /// The first.
        block: u64,
        /// How many, at most [`ZEROES_BLOCKS_MAX`].
        blocks: u64,
        /// They may be deallocated.
        deallocate: bool,
        /// Answered when they are persistent.
        fua: bool,
    },
    /// Blocks that nobody needs.
    Deallocate {
        /// The first.
        block: u64,
        /// How many, at most [`DEALLOCATE_BLOCKS_MAX`].
        blocks: u64,
    },
    /// All that was answered is persistent.
    Flush,
    /// Which blocks take space: [`Queue::allocated`] says it, when it has ended.
    Allocation {
        /// The first.
        block: u64,
        /// How many, at most [`ALLOCATION_BLOCKS_MAX`].
        blocks: u64,
    },
}

/// A command's place in the queue, and its buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u16);

impl Slot {
    /// Its number, below the queue's depth.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// What the device says of its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Blocks of 4096 bytes.
    pub blocks: u64,
    /// It takes no writes.
    pub is_read_only: bool,
    /// What was answered may be lost with the power before a flush.
    pub has_volatile_cache: bool,
    /// Its globally unique identifier.
    pub nguid: [u8; 16],
}

/// Where things are in the memory that stands in for a host's.
#[derive(Debug, Clone, Copy)]
struct Layout {
    depth: u16,
    transfer_bytes: u64,
    /// The submission and completion queues, by their number.
    submission: [u64; 2],
    completion: [u64; 2],
    lists: u64,
    list_bytes: u64,
    buffers: u64,
    bytes: u64,
}

const IDENTIFY: u64 = 0;
const FIRST_FREE: u64 = IDENTIFY + IDENTIFY_BYTES as u64;

impl Layout {
    fn new(depth: u16, transfer_bytes: u32) -> Result<Layout, QueueError> {
        let refused = |why| Err(QueueError::Shape { depth, transfer_bytes, why });
        if depth == 0 || u32::from(depth) >= QUEUE_ENTRIES_MAX {
            return refused("it has 1 to 1023 commands");
        }
        let transfer = u64::from(transfer_bytes);
        if transfer == 0 || !transfer.is_multiple_of(BLOCK_BYTES) || transfer > TRANSFER_BYTES_MAX {
            return refused("a command's data are whole blocks of 4096 bytes, 1 MiB at most");
        }
        let count = u64::from(depth);
        let entries = count + 1;
        let submission_bytes = (entries * COMMAND_BYTES as u64).next_multiple_of(PAGE_BYTES);
        let completion_bytes = (entries * COMPLETION_BYTES as u64).next_multiple_of(PAGE_BYTES);
        let submission = [FIRST_FREE, FIRST_FREE + submission_bytes];
        let completion = [0, 1].map(|queue| FIRST_FREE + 2 * submission_bytes + queue * completion_bytes);
        let lists = completion[1] + completion_bytes;
        // The first page is PRP1, the others are in a list of at most 255 entries.
        let list_bytes = PAGE_BYTES / 2;
        let buffers = (lists + count * list_bytes).next_multiple_of(PAGE_BYTES);
        let bytes = buffers + count * transfer;
        if bytes > MEMORY_BYTES_MAX {
            return refused("that is more memory than a device takes");
        }
        Ok(Layout { depth, transfer_bytes: transfer, submission, completion, lists, list_bytes, buffers, bytes })
    }

    fn entries(&self) -> u32 {
        u32::from(self.depth) + 1
    }

    fn buffer(&self, slot: Slot) -> u64 {
        self.buffers + u64::from(slot.0) * self.transfer_bytes
    }

    fn list(&self, slot: Slot) -> u64 {
        self.lists + u64::from(slot.0) * self.list_bytes
    }
}

/// Who is at the other end, as long as it lives.
struct Peer {
    socket: UnixStream,
    bell: Doorbell,
}

/// How far a submission queue and its completion queue are.
#[derive(Debug, Clone, Copy)]
struct Pair {
    tail: u32,
    head: u32,
    phase: bool,
}

impl Pair {
    /// Nothing was submitted.
    const NEW: Pair = Pair { tail: 0, head: 0, phase: true };
}

/// See the module.
pub struct Queue {
    path: PathBuf,
    peer: Peer,
    segment: Region,
    registers: Object,
    memory: Object,
    event: OwnedFd,
    /// Readable when the event is, or when the peer has gone.
    waits: OwnedFd,
    layout: Layout,
    /// Where the queues are, by their number: both have as many entries, so that there is room in each for every slot.
    pairs: [Pair; 2],
    /// Commands under way and their queues, by their slot.
    out: Vec<Option<(u16, Command)>>,
    free: Vec<Slot>,
    info: NamespaceInfo,
    /// What the device calls itself.
    device: String,
    hello: Hello,
}

impl Queue {
    /// Attaches to the device that is served at `path`, with room for so many commands of so many bytes each, under
    /// this program's name.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn attach(path: &Path, depth: u16, transfer_bytes: u32) -> Result<Queue, QueueError> {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        Queue::attach_as(path, depth, transfer_bytes, &format!("{program} {}", std::process::id()))
    }

    /// As [`Queue::attach`], under a name for people who look at the device.
    ///
    /// # Errors
    /// See [`QueueError`].
    pub fn attach_as(path: &Path, depth: u16, transfer_bytes: u32, name: &str) -> Result<Queue, QueueError> {
        let layout = Layout::new(depth, transfer_bytes)?;
        let bytes = DATA_OFFSET.next_multiple_of(PAGE_BYTES) + REGISTERS_BYTES + layout.bytes + PAGE_BYTES;
        let segment = Region::create(&Backing::Memfd, bytes.next_multiple_of(PAGE_BYTES), [0; 16])?;
        let registers = segment.allocate(REGISTERS, ObjectKind::DOORBELL, REGISTERS_BYTES, PAGE_BYTES)?;
        let memory = segment.allocate(MEMORY, ObjectKind::ARENA, layout.bytes, PAGE_BYTES)?;
        let event =
            rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK | rustix::event::EventfdFlags::CLOEXEC)
                .map_err(system("make an event"))?;
        let waits =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("make a set of descriptors to wait for"))?;
        watch(&waits, event.as_fd())?;
        let hello = Hello::new(name);
        let (peer, device) = greet(path, &hello, &segment, &registers, &event)?;
        watch(&waits, peer.socket.as_fd())?;
        let info = NamespaceInfo { blocks: 0, is_read_only: true, has_volatile_cache: true, nguid: [0; 16] };
        let mut queue = Queue {
            path: path.to_owned(),
            peer,
            segment,
            registers,
            memory,
            event,
            waits,
            layout,
            pairs: [Pair::NEW; 2],
            out: vec![None; usize::from(depth)],
            free: (0..depth).rev().map(Slot).collect(),
            info,
            device,
            hello,
        };
        queue.info = queue.bring_up()?;
        Ok(queue)
    }

    /// What the device calls itself.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The namespace.
    #[must_use]
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.info
    }

    /// Bytes of a buffer.
    #[must_use]
    pub fn transfer_bytes(&self) -> u64 {
        self.layout.transfer_bytes
    }

    /// Commands under way.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.out.iter().flatten().count()
    }

    /// A place for a command, if one is free.
    pub fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Gives a place back that has nothing under way.
    ///
    /// # Panics
    /// When it has, or is free already.
    pub fn release(&mut self, slot: Slot) {
        assert!(self.out[slot.index()].is_none() && self.free.len() < usize::from(self.layout.depth));
        self.free.push(slot);
    }

    /// A place's buffer.
    #[must_use]
    pub fn buffer(&self, slot: Slot) -> SharedBytes<'_> {
        let part = self.memory.bytes().get(self.layout.buffer(slot), self.layout.transfer_bytes);
        part.expect("a buffer lies in the memory")
    }

    /// Puts a command into the queue; [`Queue::ring`] tells the device.
    ///
    /// # Panics
    /// When the slot has one under way, or the command is longer than its buffer.
    pub fn submit(&mut self, slot: Slot, ask: &Ask) {
        assert!(self.out[slot.index()].is_none(), "one command a slot");
        let command = self.command(slot, ask);
        let queue = if matches!(ask, Ask::Allocation { .. }) { ADMIN } else { IO };
        self.out[slot.index()] = Some((queue, command));
        self.push(queue, &command);
    }

    fn push(&mut self, queue: u16, command: &Command) {
        let pair = &mut self.pairs[usize::from(queue)];
        let at = self.layout.submission[usize::from(queue)] + u64::from(pair.tail) * COMMAND_BYTES as u64;
        self.memory.bytes().write(at, &command.encode());
        pair.tail = (pair.tail + 1) % self.layout.entries();
    }

    /// Tells the device of what was submitted.
    pub fn ring(&self) {
        for queue in [ADMIN, IO] {
            let tail = self.pairs[usize::from(queue)].tail;
            self.registers.word32(tail_doorbell(queue)).store(tail, Ordering::Release);
        }
        self.peer.bell.ring();
    }

    fn command(&self, slot: Slot, ask: &Ask) -> Command {
        let command = |opcode| Command { cid: slot.0, ..Command::new(opcode, 1) };
        let range = |opcode, block: u64, blocks: u64, flags: u32| Command {
            cdw: [block as u32, (block >> 32) as u32, (blocks - 1) as u32 | flags, 0, 0, 0],
            ..command(opcode)
        };
        let force = |fua: bool| u32::from(fua) << 30;
        match *ask {
            Ask::Read { block, blocks } => {
                self.with_data(slot, u64::from(blocks), range(nvm::READ, block, u64::from(blocks), 0))
            }
            Ask::Write { block, blocks, fua } => {
                self.with_data(slot, u64::from(blocks), range(nvm::WRITE, block, u64::from(blocks), force(fua)))
            }
            Ask::WriteZeroes { block, blocks, deallocate, fua } => {
                assert!((1..=ZEROES_BLOCKS_MAX).contains(&blocks));
                range(nvm::WRITE_ZEROES, block, blocks, force(fua) | u32::from(deallocate) << 25)
            }
            Ask::Deallocate { block, blocks } => self.deallocate(slot, block, blocks, command(nvm::DATASET_MANAGEMENT)),
            Ask::Flush => command(nvm::FLUSH),
            Ask::Allocation { block, blocks } => {
                assert!((1..=ALLOCATION_BLOCKS_MAX).contains(&blocks));
                // A block of answer has room for 255 ranges, and whoever asks can ask again for the rest.
                let query = AllocationQuery::command(1, block, blocks as u16, BLOCK_BYTES);
                Command { cid: slot.0, dptr: DataPointer::Prp(self.layout.buffer(slot), 0), ..query }
            }
        }
    }

    /// Dataset Management: as many ranges as it takes, in the buffer.
    fn deallocate(&self, slot: Slot, block: u64, blocks: u64, command: Command) -> Command {
        assert!((1..=DEALLOCATE_BLOCKS_MAX).contains(&blocks));
        let buffer = self.buffer(slot);
        let (mut ranges, mut at, mut left) = (0, block, blocks);
        while left > 0 {
            let length = left.min(u64::from(u32::MAX));
            let mut range = [0; RANGE_BYTES];
            range[4..8].copy_from_slice(&(length as u32).to_le_bytes());
            range[8..16].copy_from_slice(&at.to_le_bytes());
            buffer.write(ranges * RANGE_BYTES as u64, &range);
            (ranges, at, left) = (ranges + 1, at + length, left - length);
        }
        let command = Command { cdw: [ranges as u32 - 1, 1 << 2, 0, 0, 0, 0], ..command };
        Command { dptr: DataPointer::Prp(self.layout.buffer(slot), 0), ..command }
    }

    /// A command with its buffer's pages.
    fn with_data(&self, slot: Slot, blocks: u64, command: Command) -> Command {
        let bytes = blocks * BLOCK_BYTES;
        assert!(bytes > 0 && bytes <= self.layout.transfer_bytes, "{blocks} blocks in a buffer of a command");
        let first = self.layout.buffer(slot);
        let second = match blocks {
            1 => 0,
            2 => first + PAGE_BYTES,
            _ => {
                let list = self.layout.list(slot);
                for index in 1..blocks {
                    let page = first + index * PAGE_BYTES;
                    self.memory.word64(list + (index - 1) * 8).store(page, Ordering::Relaxed);
                }
                list
            }
        };
        Command { dptr: DataPointer::Prp(first, second), ..command }
    }

    /// The blocks that take space, ascending, that an [`Ask::Allocation`] has found, and whether there are more behind
    /// the last of them.
    #[must_use]
    pub fn allocated(&self, slot: Slot) -> (Vec<BlockRange>, bool) {
        let mut answer = [0; BLOCK_BYTES as usize];
        self.buffer(slot).read(0, &mut answer);
        allocated(&answer)
    }

    /// A command that has ended, and how; its buffer is the caller's until it is released.
    pub fn reap(&mut self) -> Option<(Slot, Status)> {
        loop {
            let completion = self.take_completion(IO).or_else(|| self.take_completion(ADMIN))?;
            let place = self.out.get_mut(usize::from(completion.cid));
            // One for a command that is not under way is the device's fault, and nobody's answer.
            if let Some(Some(_)) = place.map(Option::take) {
                return Some((Slot(completion.cid), completion.status));
            }
        }
    }

    fn take_completion(&mut self, queue: u16) -> Option<Completion> {
        let completion = self.pop(queue)?;
        let entries = self.layout.entries();
        let pair = &mut self.pairs[usize::from(queue)];
        pair.head = (pair.head + 1) % entries;
        pair.phase ^= pair.head == 0;
        self.registers.word32(head_doorbell(queue)).store(pair.head, Ordering::Release);
        Some(completion)
    }

    /// The completion at a queue's head, if it is there.
    fn pop(&self, queue: u16) -> Option<Completion> {
        let Pair { head, phase, .. } = self.pairs[usize::from(queue)];
        let at = self.layout.completion[usize::from(queue)] + u64::from(head) * COMPLETION_BYTES as u64;
        // The last word says that the rest is there.
        let last = self.memory.word32(at + COMPLETION_BYTES as u64 - 4).load(Ordering::Acquire);
        if (last >> 16 & 1 == 1) != phase {
            return None;
        }
        let mut entry = [0; COMPLETION_BYTES];
        self.memory.bytes().read(at, &mut entry);
        Some(Completion::decode(&entry).0)
    }

    /// What to wait for: readable when a command has ended after [`Queue::arm`], or when the device has gone.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.waits.as_fd()
    }

    /// Asks for an event; false when a command has ended already, so that nobody need wait.
    pub fn arm(&mut self) -> bool {
        let mut count = [0; 8];
        // What was there before is answered by looking now.
        let _ = rustix::io::read(&self.event, &mut count);
        self.registers.word32(armed(0)).store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.pop(IO).or_else(|| self.pop(ADMIN)).is_none()
    }

    /// Sleeps until a command ends, and reaps it; nothing when none has within `limit`, or when the device has gone
    /// ([`Queue::has_lost_device`]).
    pub fn wait(&mut self, limit: Duration) -> Option<(Slot, Status)> {
        let until = Instant::now() + limit;
        loop {
            if let Some(ended) = self.reap() {
                return Some(ended);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.has_lost_device() {
                return None;
            }
            if self.arm() {
                let time = rustix::time::Timespec {
                    tv_sec: left.as_secs().cast_signed(),
                    tv_nsec: i64::from(left.subsec_nanos()),
                };
                let mut fds = [rustix::event::PollFd::new(&self.waits, rustix::event::PollFlags::IN)];
                // However it ends, the next look says what there is.
                let _ = rustix::event::poll(&mut fds, Some(&time));
            }
        }
    }

    /// Whether the device's process at the other end has gone.
    #[must_use]
    pub fn has_lost_device(&self) -> bool {
        let mut fds = [rustix::event::PollFd::new(&self.peer.socket, rustix::event::PollFlags::IN)];
        let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// Attaches anew after the device's process has gone, and sends again what had not ended. It tries for as long as
    /// `patience`.
    ///
    /// # Errors
    /// Why the last try failed. It may be called again.
    pub fn recover(&mut self, patience: Duration) -> Result<(), QueueError> {
        let until = Instant::now() + patience;
        loop {
            match self.try_recover() {
                Ok(()) => return Ok(()),
                Err(error @ QueueError::Refused { .. }) => return Err(error),
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => std::thread::sleep(RETRY),
            }
        }
    }

    fn try_recover(&mut self) -> Result<(), QueueError> {
        let (peer, _) = greet(&self.path, &self.hello, &self.segment, &self.registers, &self.event)?;
        // What has closed is not watched any more.
        watch(&self.waits, peer.socket.as_fd())?;
        self.peer = peer;
        let info = self.bring_up()?;
        if info.blocks != self.info.blocks || info.nguid != self.info.nguid {
            let why = "it is another device than before, or has another size".to_owned();
            return Err(QueueError::Refused { socket: self.path.clone(), why });
        }
        let again: Vec<(u16, Command)> = self.out.iter().flatten().copied().collect();
        for (queue, command) in &again {
            self.push(*queue, command);
        }
        self.ring();
        Ok(())
    }

    /// Enables the controller, asks what there is, and makes the queues for I/O.
    fn bring_up(&mut self) -> Result<NamespaceInfo, QueueError> {
        let failed =
            |queue: &Queue, why: &str| QueueError::Controller { socket: queue.path.clone(), why: why.to_owned() };
        self.pairs = [Pair::NEW; 2];
        let entries = self.layout.entries();
        for queue in self.layout.completion {
            self.memory.bytes().fill(queue, u64::from(entries) * COMPLETION_BYTES as u64, 0);
        }
        let set = |offset: u64, value: u64| {
            self.registers.word32(offset).store(value as u32, Ordering::Relaxed);
            self.registers.word32(offset + 4).store((value >> 32) as u32, Ordering::Relaxed);
        };
        set(ASQ, self.layout.submission[usize::from(ADMIN)]);
        set(ACQ, self.layout.completion[usize::from(ADMIN)]);
        let sizes = (entries - 1) | (entries - 1) << 16;
        self.registers.word32(AQA).store(sizes, Ordering::Relaxed);
        self.registers.word32(CC).store(CC_ENTRIES | CC_EN, Ordering::Release);
        self.peer.bell.ring();
        let status = || self.registers.word32(CSTS).load(Ordering::Acquire);
        self.await_answer(|| status() & (CSTS_RDY | CSTS_CFS) != 0)?;
        if status() & CSTS_CFS != 0 {
            return Err(failed(self, "it reports a fatal error"));
        }
        let controller = self.identify(0x01, 0)?;
        let namespace = self.identify(0x00, 1)?;
        let queue = |opcode, base, last| Command {
            dptr: DataPointer::Prp(base, 0),
            cdw: [u32::from(IO) | (entries - 1) << 16, last, 0, 0, 0, 0],
            ..Command::new(opcode, 0)
        };
        // PC in bit 0, IEN in bit 1 and vector 0; the completion queue in bits 31:16.
        let Layout { submission, completion, .. } = self.layout;
        self.run(queue(admin::CREATE_CQ, completion[usize::from(IO)], 0b11))?;
        self.run(queue(admin::CREATE_SQ, submission[usize::from(IO)], 1 | u32::from(IO) << 16))?;
        let blocks = u64::from_le_bytes(namespace[..8].try_into().expect("eight bytes"));
        if blocks == 0 {
            return Err(failed(self, "it has no namespace 1"));
        }
        Ok(NamespaceInfo {
            blocks,
            is_read_only: namespace[99] & 1 != 0,
            has_volatile_cache: controller[525] & 1 != 0,
            nguid: namespace[104..120].try_into().expect("sixteen bytes"),
        })
    }

    /// Waits for something that comes soon, or for the device to go.
    fn await_answer(&self, until: impl Fn() -> bool) -> Result<(), QueueError> {
        let limit = Instant::now() + ANSWER_MAX;
        while !until() {
            let gone = self.has_lost_device();
            if gone || Instant::now() > limit {
                let why = if gone { "it has gone" } else { "it does not answer" };
                return Err(QueueError::Controller { socket: self.path.clone(), why: why.to_owned() });
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Carries out an admin command before there are others.
    fn run(&mut self, command: Command) -> Result<(), QueueError> {
        self.push(ADMIN, &Command { cid: BRINGING_UP, ..command });
        self.ring();
        self.await_answer(|| self.pop(ADMIN).is_some())?;
        let ended = self.take_completion(ADMIN).map_or(Status::INTERNAL_ERROR, |ended| ended.status);
        if !ended.is_success() {
            let why = format!("admin command {:02X}h ends with {ended}", command.opcode);
            return Err(QueueError::Controller { socket: self.path.clone(), why });
        }
        Ok(())
    }

    fn identify(&mut self, cns: u32, nsid: u32) -> Result<Vec<u8>, QueueError> {
        let cdw = [cns, 0, 0, 0, 0, 0];
        self.run(Command { dptr: DataPointer::Prp(IDENTIFY, 0), cdw, ..Command::new(admin::IDENTIFY, nsid) })?;
        let mut page = vec![0; IDENTIFY_BYTES];
        self.memory.bytes().read(IDENTIFY, &mut page);
        Ok(page)
    }
}

/// Sends the segment and hears whether it is welcome; the device's name.
fn greet(
    path: &Path,
    hello: &Hello,
    segment: &Region,
    registers: &Object,
    event: &OwnedFd,
) -> Result<(Peer, String), QueueError> {
    let socket = path.to_owned();
    // A controller that begins is not enabled, whatever the last one was told.
    registers.word32(CC).store(0, Ordering::Release);
    let connect = |source| QueueError::Connect { socket: socket.clone(), source };
    let stream = pass::connect(path).map_err(connect)?;
    stream.set_read_timeout(Some(ANSWER_MAX)).map_err(connect)?;
    pass::send(&stream, &hello.encode(), &[segment.as_fd(), event.as_fd()]).map_err(connect)?;
    let mut welcome = [0; WELCOME_BYTES];
    let (got, fds) = pass::receive(&stream, &mut welcome).map_err(connect)?;
    let stranger = || QueueError::Stranger { socket: socket.clone() };
    if got == 0 {
        return Err(connect(io::Error::from(io::ErrorKind::ConnectionReset)));
    }
    let welcome = Welcome::decode(&welcome).filter(|_| got == WELCOME_BYTES).ok_or_else(stranger)?;
    let name = welcome.0.map_err(|why| QueueError::Refused { socket: socket.clone(), why })?;
    let bells = Region::from_fd(fds.into_iter().next().ok_or_else(stranger)?)?;
    Ok((Peer { socket: stream, bell: Doorbell::new(&bells.find(BELL)?, 0) }, name))
}

fn watch(set: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), QueueError> {
    let data = epoll::EventData::new_u64(0);
    epoll::add(set, fd, data, epoll::EventFlags::IN).map_err(system("wait for a descriptor"))
}

fn system(what: &'static str) -> impl Fn(rustix::io::Errno) -> QueueError {
    move |errno| QueueError::System { what, source: errno.into() }
}
