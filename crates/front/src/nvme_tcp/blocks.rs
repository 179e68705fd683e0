//! The commands of one queue at a volume.
//!
//! Invariants:
//! 1. A command that was begun ends once, or the volume is lost ([`Blocks::is_lost`]) and nothing ends any more.
//! 2. What a command has to do in turn is begun when what came before has ended, and not at all when that has failed.
//! 3. Buffers are bounded by the session that the commands come from; a command that needs none of its host's (Verify,
//!    ranges) has one operation under way at a time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;

use osier_device::Status;
use osier_nvme::status::{COMPARE_FAILURE, NAMESPACE_WRITE_PROTECTED};
use osier_nvme::stream::Pool;
use osier_nvme::tcp::Response;
use osier_nvme::{BlockRange, Command, Io};

use crate::volume::{BLOCK_BYTES, Ended, Operation, Outcome, RANGE_BLOCKS_MAX, Volume, VolumeError};

/// Blocks of an operation that reads or writes: those of one of the session's buffers.
pub const PIECE_BLOCKS: u64 = 32;
/// The same in bytes.
pub const PIECE_BYTES: usize = PIECE_BLOCKS as usize * BLOCK_BYTES;

/// Who waits for a command to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// A command, by its identifier.
    Command(u16),
    /// Whoever shuts the controller down.
    ShutDown,
}

impl Owner {
    fn token(self, piece: usize) -> u64 {
        let owner = match self {
            Owner::Command(cid) => u64::from(cid),
            Owner::ShutDown => 1 << 16,
        };
        owner | (piece as u64) << 32
    }

    fn of_token(token: u64) -> (Owner, usize) {
        let owner = if token & 1 << 16 == 0 { Owner::Command(token as u16) } else { Owner::ShutDown };
        (owner, (token >> 32) as usize)
    }
}

/// What becomes of the buffers of operations.
enum Kind {
    /// They are what the host gets.
    Read,
    /// They are compared with what the host gave.
    Compare(Vec<Vec<u8>>),
    /// They go back.
    Other,
}

/// What is left to do when what is under way has ended.
enum Later {
    Nothing,
    /// A read, when a flush has ended.
    Read(BlockRange),
    /// The next part of these.
    Deallocate(VecDeque<BlockRange>),
    Verify(BlockRange),
}

/// A command that has not ended.
struct Task {
    command: Command,
    kind: Kind,
    later: Later,
    /// Operations under way, or in the backlog.
    left: usize,
    status: Status,
    /// Buffers by piece.
    data: Vec<Vec<u8>>,
}

/// A command that has ended.
pub struct Finished {
    pub owner: Owner,
    pub command: Command,
    pub response: Response,
}

/// See the module.
pub struct Blocks {
    volume: Box<dyn Volume>,
    tasks: BTreeMap<Owner, Task>,
    /// Operations that the volume has no room for yet.
    backlog: VecDeque<(u64, Operation)>,
    /// Commands that have nothing left to do.
    over: Vec<Owner>,
    ended: Vec<Ended>,
    is_lost: bool,
}

impl Blocks {
    pub fn new(volume: Box<dyn Volume>) -> Blocks {
        let (tasks, backlog) = (BTreeMap::new(), VecDeque::new());
        Blocks { volume, tasks, backlog, over: Vec::new(), ended: Vec::new(), is_lost: false }
    }

    /// Begins a command, of an owner that has none. `data`: what the host gave, in pieces; `ranges`: those that it
    /// named in them.
    pub fn begin(
        &mut self,
        owner: Owner,
        command: Command,
        io: &Io,
        data: Vec<Vec<u8>>,
        ranges: Vec<BlockRange>,
        pool: &mut Pool,
    ) {
        let mut task = Task {
            command,
            kind: Kind::Other,
            later: Later::Nothing,
            left: 0,
            status: Status::SUCCESS,
            data: Vec::new(),
        };
        match *io {
            Io::Flush => self.submit(&mut task, owner, 0, Operation::Flush),
            Io::Read { range, fua } => {
                task.kind = Kind::Read;
                if fua {
                    task.later = Later::Read(range);
                    self.submit(&mut task, owner, 0, Operation::Flush);
                } else {
                    self.read(&mut task, owner, range, pool);
                }
            }
            Io::Write { range, fua } => {
                for (piece, data) in data.into_iter().enumerate() {
                    let block = range.slba + piece as u64 * PIECE_BLOCKS;
                    self.submit(&mut task, owner, piece, Operation::Write { block, data, fua });
                }
            }
            Io::WriteZeroes { range, deallocate, fua } => {
                let (block, blocks) = (range.slba, range.blocks);
                let operation = Operation::WriteZeroes { block, blocks, may_deallocate: deallocate, fua };
                self.submit(&mut task, owner, 0, operation);
            }
            Io::Compare(range) => {
                task.kind = Kind::Compare(data);
                self.read(&mut task, owner, range, pool);
            }
            Io::Verify(range) => task.later = Later::Verify(range),
            Io::Deallocate { .. } => task.later = Later::Deallocate(ranges.into()),
            Io::Hint { .. } => {}
        }
        self.tasks.insert(owner, task);
        self.go_on(owner, pool);
    }

    /// Reads blocks into as many buffers as they need.
    fn read(&mut self, task: &mut Task, owner: Owner, range: BlockRange, pool: &mut Pool) {
        let pieces = range.blocks.div_ceil(PIECE_BLOCKS);
        for piece in 0..pieces {
            let blocks = PIECE_BLOCKS.min(range.blocks - piece * PIECE_BLOCKS);
            let buffer = pool.take(blocks as usize * BLOCK_BYTES);
            let block = range.slba + piece * PIECE_BLOCKS;
            self.submit(task, owner, piece as usize, Operation::Read { block, buffer });
        }
        task.data.resize_with(pieces as usize, Vec::new);
    }

    fn submit(&mut self, task: &mut Task, owner: Owner, piece: usize, operation: Operation) {
        task.left += 1;
        self.backlog.push_back((owner.token(piece), operation));
    }

    /// Begins what comes next of a command, when all that was begun has ended.
    fn go_on(&mut self, owner: Owner, pool: &mut Pool) {
        let Some(mut task) = self.tasks.remove(&owner) else { return };
        if task.left == 0 && task.status.is_success() {
            match std::mem::replace(&mut task.later, Later::Nothing) {
                Later::Nothing => {}
                Later::Read(range) => self.read(&mut task, owner, range, pool),
                Later::Verify(range) => {
                    let blocks = range.blocks.min(PIECE_BLOCKS);
                    let rest = BlockRange { slba: range.slba + blocks, blocks: range.blocks - blocks };
                    let buffer = pool.take(blocks as usize * BLOCK_BYTES);
                    self.submit(&mut task, owner, 0, Operation::Read { block: range.slba, buffer });
                    if rest.blocks > 0 {
                        task.later = Later::Verify(rest);
                    }
                }
                Later::Deallocate(mut ranges) => {
                    if let Some(range) = next_part(&mut ranges) {
                        let operation = Operation::Deallocate { block: range.slba, blocks: range.blocks };
                        self.submit(&mut task, owner, 0, operation);
                        task.later = Later::Deallocate(ranges);
                    }
                }
            }
        }
        if task.left == 0 {
            self.over.push(owner);
        }
        self.tasks.insert(owner, task);
    }

    /// Goes on with everything; appends what has ended. Never waits for long.
    pub fn advance(&mut self, pool: &mut Pool, finished: &mut Vec<Finished>) {
        loop {
            while let Some((token, operation)) = self.backlog.pop_front() {
                if let Err(operation) = self.volume.submit(token, operation) {
                    self.backlog.push_front((token, operation));
                    break;
                }
            }
            let mut ended = std::mem::take(&mut self.ended);
            self.volume.reap(&mut ended);
            let has_ended = !ended.is_empty();
            for Ended { token, outcome } in ended.drain(..) {
                self.end(token, outcome, pool);
            }
            self.ended = ended;
            if !has_ended || self.is_lost {
                break;
            }
        }
        if !self.is_lost {
            self.finish(finished);
        }
    }

    fn end(&mut self, token: u64, outcome: Result<Outcome, VolumeError>, pool: &mut Pool) {
        let (owner, piece) = Owner::of_token(token);
        let Some(task) = self.tasks.get_mut(&owner) else { return };
        task.left -= 1;
        match outcome {
            Ok(Outcome::Buffer { buffer, .. }) => match &mut task.kind {
                Kind::Read => task.data[piece] = buffer,
                Kind::Compare(expected) => {
                    if expected.get(piece) != Some(&buffer) && task.status.is_success() {
                        task.status = COMPARE_FAILURE;
                    }
                    pool.give(buffer);
                }
                Kind::Other => pool.give(buffer),
            },
            Ok(Outcome::Done | Outcome::Extents(_)) => {}
            Err(VolumeError::ShutDown) => self.is_lost = true,
            Err(error) => {
                if task.status.is_success() {
                    task.status = status_of(error, task.command.opcode);
                }
            }
        }
        if task.left == 0 {
            self.go_on(owner, pool);
        }
    }

    fn finish(&mut self, finished: &mut Vec<Finished>) {
        for owner in self.over.drain(..) {
            let Some(Task { command, kind, status, data, .. }) = self.tasks.remove(&owner) else { continue };
            let data = if matches!(kind, Kind::Read) && status.is_success() { data } else { Vec::new() };
            finished.push(Finished { owner, command, response: Response { status, result: 0, data } });
        }
    }

    /// Whether something of an owner's is under way.
    pub fn has(&self, owner: Owner) -> bool {
        self.tasks.contains_key(&owner)
    }

    /// Whether commands are under way.
    pub fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Whether the volume is gone for good.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// See [`Volume::event`].
    pub fn event(&self) -> BorrowedFd<'_> {
        self.volume.event()
    }

    /// See [`Volume::arm`].
    pub fn arm(&mut self) -> bool {
        self.volume.arm()
    }
}

/// The next blocks of what is to be deallocated, as many as a volume takes at a time.
fn next_part(ranges: &mut VecDeque<BlockRange>) -> Option<BlockRange> {
    while let Some(range) = ranges.pop_front() {
        if range.blocks == 0 {
            continue;
        }
        let blocks = range.blocks.min(RANGE_BLOCKS_MAX);
        if range.blocks > blocks {
            ranges.push_front(BlockRange { slba: range.slba + blocks, blocks: range.blocks - blocks });
        }
        return Some(BlockRange { slba: range.slba, blocks });
    }
    None
}

fn status_of(error: VolumeError, opcode: u8) -> Status {
    let is_write = opcode & 0b01 != 0 && opcode != osier_nvme::nvm::COMPARE || opcode == osier_nvme::nvm::WRITE_ZEROES;
    match error {
        VolumeError::Media if is_write => Status::WRITE_FAULT,
        VolumeError::Media => Status::UNRECOVERED_READ_ERROR,
        VolumeError::OutOfRange => Status::LBA_OUT_OF_RANGE,
        VolumeError::CapacityExceeded => Status::CAPACITY_EXCEEDED,
        VolumeError::WriteProtected => NAMESPACE_WRITE_PROTECTED,
        VolumeError::ShutDown => Status::INTERNAL_ERROR,
    }
}
