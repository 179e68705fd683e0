//! A controller's queues in a client's memory: what transports by registers and doorbells have.
//!
//! Invariants:
//! 1. An entry is read once, and its queue's head goes past it then.
//! 2. A completion goes where the queue has room; it waits where the client is slow to take others. A client has at
//!    most [`COMMANDS_MAX`] commands that have not ended, those that wait included, so this is bounded.
//! 3. A queue goes only when nothing of it is under way. So does everything, when the controller is disabled.

use std::collections::VecDeque;

use osier_device::Status;

use crate::command::{COMMAND_BYTES, COMPLETION_BYTES, Command, Completion, DataPointer};
use crate::memory::HostMemory;
use crate::registers::{
    ACQ, AQA, ASQ, CAP, CC, CC_EN, CC_SHN, CSTS, CSTS_CFS, CSTS_RDY, CSTS_SHST_COMPLETE, VERSION, VS, capabilities,
    head_doorbell, is_configurable, tail_doorbell,
};
use crate::status::{
    COMPLETION_QUEUE_INVALID, INVALID_INTERRUPT_VECTOR, INVALID_QUEUE_DELETION, INVALID_QUEUE_IDENTIFIER,
    INVALID_QUEUE_SIZE, PRP_OFFSET_INVALID,
};
use crate::{COMMANDS_MAX, IO_QUEUES_MAX, PAGE_BYTES, QUEUE_ENTRIES_MAX};

/// The words that client and controller share.
pub trait Registers {
    /// The 32-bit word at an offset; what its writer wrote before is visible.
    fn load(&self, offset: u64) -> u32;
    /// Stores such a word, behind all that was written before.
    fn store(&self, offset: u64, value: u32);
    /// A property of eight bytes, as two words.
    fn load_wide(&self, offset: u64) -> u64 {
        u64::from(self.load(offset)) | u64::from(self.load(offset + 4)) << 32
    }
}

/// A command, and the submission queue that it came by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// 0 is the admin queue.
    pub sqid: u16,
    /// The command.
    pub command: Command,
}

#[derive(Debug)]
struct Submission {
    base: u64,
    entries: u32,
    head: u32,
    cqid: u16,
    /// Commands that have not ended.
    outstanding: usize,
    /// It goes when they have: the admin command that waits for it.
    deleted_by: Option<u16>,
}

#[derive(Debug)]
struct CompletionQueue {
    base: u64,
    entries: u32,
    tail: u32,
    phase: bool,
    /// The interrupt, if it has one.
    vector: Option<u16>,
    /// Completions that wait for room.
    waiting: VecDeque<Completion>,
}

/// Where a controller's life is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Disabled,
    Enabled,
    /// CC.EN was cleared while commands were under way; they end unheard.
    Disabling,
    /// A fatal error: CSTS.CFS is set until CC.EN is cleared.
    Failed,
}

/// What a look at the registers finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that concerns anybody else.
    None,
    /// The controller begins anew: features are as at the start, event requests are gone.
    Reset,
    /// The client wants it shut down: [`Queues::shut_down`] when all is persistent.
    ShutDown,
}

/// The queues of one controller.
#[derive(Debug)]
pub struct Queues {
    life: Life,
    submission: Vec<Option<Submission>>,
    completion: Vec<Option<CompletionQueue>>,
    /// Submission queue to look at first.
    next: usize,
    outstanding: usize,
    shutting_down: bool,
    vectors: u16,
}

impl Queues {
    /// Of a controller that is not enabled, for a client with so many interrupts.
    pub fn new(registers: &impl Registers, vectors: u16) -> Queues {
        let capabilities = capabilities();
        registers.store(CAP, capabilities as u32);
        registers.store(CAP + 4, (capabilities >> 32) as u32);
        registers.store(VS, VERSION);
        clear_doorbells(registers);
        registers.store(CSTS, 0);
        Queues {
            life: Life::Disabled,
            submission: Vec::new(),
            completion: Vec::new(),
            next: 0,
            outstanding: 0,
            shutting_down: false,
            vectors,
        }
    }

    /// Commands that have not ended.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Looks whether the client enables, disables or shuts down the controller.
    pub fn look(&mut self, registers: &impl Registers) -> Change {
        let cc = registers.load(CC);
        match self.life {
            Life::Disabled if cc & CC_EN != 0 => {
                self.enable(registers, cc);
                return Change::Reset;
            }
            Life::Enabled | Life::Failed if cc & CC_EN == 0 => {
                self.life = Life::Disabling;
                self.finish_disabling(registers);
            }
            Life::Enabled if cc & CC_SHN != 0 && !self.shutting_down => {
                self.shutting_down = true;
                return Change::ShutDown;
            }
            _ => {}
        }
        Change::None
    }

    fn enable(&mut self, registers: &impl Registers, cc: u32) {
        let aqa = registers.load(AQA);
        // ASQS, bits 11:0, and ACQS, bits 27:16, count from zero.
        let (entries, completions) = ((aqa & 0xFFF) + 1, (aqa >> 16 & 0xFFF) + 1);
        let (asq, acq) = (registers.load_wide(ASQ), registers.load_wide(ACQ));
        let fits = |entries: u32| (2..=QUEUE_ENTRIES_MAX).contains(&entries);
        let aligned = asq.is_multiple_of(PAGE_BYTES) && acq.is_multiple_of(PAGE_BYTES);
        if !is_configurable(cc) || !fits(entries) || !fits(completions) || !aligned {
            return self.fail(registers);
        }
        self.submission = vec![Some(Submission::new(asq, entries, 0))];
        self.completion = vec![Some(CompletionQueue::new(acq, completions, Some(0)))];
        (self.next, self.shutting_down, self.life) = (0, false, Life::Enabled);
        registers.store(CSTS, CSTS_RDY);
    }

    fn fail(&mut self, registers: &impl Registers) {
        self.life = Life::Failed;
        registers.store(CSTS, CSTS_CFS);
    }

    fn finish_disabling(&mut self, registers: &impl Registers) {
        if self.life == Life::Disabling && self.outstanding == 0 {
            self.submission.clear();
            self.completion.clear();
            self.life = Life::Disabled;
            clear_doorbells(registers);
            registers.store(CSTS, 0);
        }
    }

    /// All is persistent, as the client wanted before it shuts down.
    pub fn shut_down(&self, registers: &impl Registers) {
        registers.store(CSTS, CSTS_RDY | CSTS_SHST_COMPLETE);
    }

    /// The next command, round robin over the queues; the admin queue goes first.
    pub fn fetch(&mut self, registers: &impl Registers, memory: &impl HostMemory) -> Option<Fetched> {
        if self.life != Life::Enabled || self.outstanding >= COMMANDS_MAX {
            return None;
        }
        if let Some(fetched) = self.fetch_from(0, registers, memory) {
            return Some(fetched);
        }
        let count = self.submission.len();
        for _ in 1..count {
            self.next = if self.next + 1 < count { self.next + 1 } else { 1 };
            if let Some(fetched) = self.fetch_from(self.next, registers, memory) {
                return Some(fetched);
            }
        }
        None
    }

    fn fetch_from(&mut self, index: usize, registers: &impl Registers, memory: &impl HostMemory) -> Option<Fetched> {
        let sqid = index as u16;
        let queue = self.submission.get_mut(index)?.as_mut().filter(|queue| queue.deleted_by.is_none())?;
        let tail = registers.load(tail_doorbell(sqid));
        // A tail beyond the queue is no tail ("Invalid Doorbell Write Value"): nothing new is there.
        if tail == queue.head || tail >= queue.entries {
            return None;
        }
        let mut entry = [0; COMMAND_BYTES];
        let at = queue.base.checked_add(u64::from(queue.head) * COMMAND_BYTES as u64);
        let read = at.is_some_and(|at| memory.read(at, &mut entry).is_ok());
        if !read {
            self.fail(registers);
            return None;
        }
        queue.head = (queue.head + 1) % queue.entries;
        queue.outstanding += 1;
        self.outstanding += 1;
        Some(Fetched { sqid, command: Command::decode(&entry) })
    }

    /// Whether there is a command to fetch.
    #[must_use]
    pub fn has_command(&self, registers: &impl Registers) -> bool {
        self.life == Life::Enabled
            && self.submission.iter().enumerate().any(|(index, queue)| {
                queue.as_ref().is_some_and(|queue| {
                    let tail = registers.load(tail_doorbell(index as u16));
                    tail != queue.head && tail < queue.entries && queue.deleted_by.is_none()
                })
            })
    }

    /// Ends a command; the interrupt to send, if its queue has one.
    pub fn complete(
        &mut self,
        (sqid, cid): (u16, u16),
        (status, result): (Status, u32),
        registers: &impl Registers,
        memory: &impl HostMemory,
    ) -> Option<u16> {
        self.outstanding -= 1;
        let Some(queue) = self.submission.get_mut(usize::from(sqid)).and_then(Option::as_mut) else {
            self.finish_disabling(registers);
            return None;
        };
        queue.outstanding -= 1;
        let (sqhd, cqid) = (queue.head as u16, queue.cqid);
        let deletes = queue.deleted_by.filter(|_| queue.outstanding == 0);
        if self.life == Life::Disabling {
            self.finish_disabling(registers);
            return None;
        }
        let vector =
            self.post(cqid, Completion { result: u64::from(result), sqhd, sqid, cid, status }, registers, memory);
        if let Some(admin) = deletes {
            self.submission[usize::from(sqid)] = None;
            return self.complete((0, admin), (Status::SUCCESS, 0), registers, memory);
        }
        vector
    }

    fn post(
        &mut self,
        cqid: u16,
        completion: Completion,
        registers: &impl Registers,
        memory: &impl HostMemory,
    ) -> Option<u16> {
        let queue = self.completion.get_mut(usize::from(cqid))?.as_mut()?;
        queue.waiting.push_back(completion);
        let written = queue.write(registers.load(head_doorbell(cqid)), memory);
        let vector = queue.vector;
        if written.is_none() {
            self.fail(registers);
        }
        vector
    }

    /// Goes on with completions that wait for room; the interrupts to send.
    pub fn go_on(&mut self, registers: &impl Registers, memory: &impl HostMemory, vectors: &mut Vec<u16>) {
        let mut failed = false;
        for (cqid, queue) in self.completion.iter_mut().enumerate() {
            let Some(queue) = queue.as_mut().filter(|queue| !queue.waiting.is_empty()) else { continue };
            match queue.write(registers.load(head_doorbell(cqid as u16)), memory) {
                Some(0) => {}
                Some(_) => vectors.extend(queue.vector),
                None => failed = true,
            }
        }
        if failed {
            self.fail(registers);
        }
    }

    /// Create I/O Completion Queue.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn create_completion(&mut self, command: &Command) -> Result<(), Status> {
        let (qid, base, entries) =
            self.shape(command, &self.completion.iter().map(Option::is_some).collect::<Vec<_>>())?;
        let [_, flags, ..] = command.cdw;
        // PC, bit 0: the queue is contiguous, which CAP.CQR requires. IEN, bit 1; IV, bits 31:16.
        let vector = (flags >> 16) as u16;
        if flags & 1 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let interrupts = flags & 2 != 0;
        if interrupts && vector >= self.vectors {
            return Err(INVALID_INTERRUPT_VECTOR);
        }
        place(&mut self.completion, qid, CompletionQueue::new(base, entries, interrupts.then_some(vector)));
        Ok(())
    }

    /// Create I/O Submission Queue.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn create_submission(&mut self, command: &Command) -> Result<(), Status> {
        let (qid, base, entries) =
            self.shape(command, &self.submission.iter().map(Option::is_some).collect::<Vec<_>>())?;
        let cqid = (command.cdw[1] >> 16) as u16;
        if command.cdw[1] & 1 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        if cqid == 0 || self.completion.get(usize::from(cqid)).is_none_or(Option::is_none) {
            return Err(COMPLETION_QUEUE_INVALID);
        }
        place(&mut self.submission, qid, Submission::new(base, entries, cqid));
        Ok(())
    }

    /// Number, place and length of a queue to be made: QID in bits 15:0 of dword 10, QSIZE, from zero, in 31:16.
    fn shape(&self, command: &Command, taken: &[bool]) -> Result<(u16, u64, u32), Status> {
        let (qid, entries) = (command.cdw[0] as u16, (command.cdw[0] >> 16) + 1);
        if qid == 0 || qid > IO_QUEUES_MAX || taken.get(usize::from(qid)).copied().unwrap_or(false) {
            return Err(INVALID_QUEUE_IDENTIFIER);
        }
        if !(2..=QUEUE_ENTRIES_MAX).contains(&entries) {
            return Err(INVALID_QUEUE_SIZE);
        }
        match command.dptr {
            DataPointer::Prp(base, _) if base.is_multiple_of(PAGE_BYTES) => Ok((qid, base, entries)),
            DataPointer::Prp(..) => Err(PRP_OFFSET_INVALID),
            DataPointer::Sgl(_) => Err(Status::INVALID_FIELD),
        }
    }

    /// Delete I/O Submission Queue, by the admin command `cid`: true when it is gone, false when it goes with the last
    /// of its commands, and the admin command ends then.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn delete_submission(&mut self, qid: u16, cid: u16) -> Result<bool, Status> {
        let queue = self.submission.get_mut(usize::from(qid)).filter(|_| qid > 0);
        let place = queue.ok_or(INVALID_QUEUE_IDENTIFIER)?;
        let queue = place.as_mut().filter(|queue| queue.deleted_by.is_none()).ok_or(INVALID_QUEUE_IDENTIFIER)?;
        if queue.outstanding > 0 {
            queue.deleted_by = Some(cid);
            return Ok(false);
        }
        *place = None;
        Ok(true)
    }

    /// Delete I/O Completion Queue.
    ///
    /// # Errors
    /// The status that the command ends with.
    pub fn delete_completion(&mut self, qid: u16) -> Result<(), Status> {
        let place = self.completion.get_mut(usize::from(qid)).filter(|place| qid > 0 && place.is_some());
        let place = place.ok_or(INVALID_QUEUE_IDENTIFIER)?;
        if self.submission.iter().flatten().any(|queue| queue.cqid == qid) {
            return Err(INVALID_QUEUE_DELETION);
        }
        *place = None;
        Ok(())
    }
}

/// Doorbells begin anew with their queues.
fn clear_doorbells(registers: &impl Registers) {
    for queue in 0..=IO_QUEUES_MAX {
        registers.store(tail_doorbell(queue), 0);
        registers.store(head_doorbell(queue), 0);
    }
}

/// Puts a queue at its number.
fn place<Q>(queues: &mut Vec<Option<Q>>, qid: u16, queue: Q) {
    let index = usize::from(qid);
    if queues.len() <= index {
        queues.resize_with(index + 1, || None);
    }
    queues[index] = Some(queue);
}

impl Submission {
    fn new(base: u64, entries: u32, cqid: u16) -> Submission {
        Submission { base, entries, head: 0, cqid, outstanding: 0, deleted_by: None }
    }
}

impl CompletionQueue {
    fn new(base: u64, entries: u32, vector: Option<u16>) -> CompletionQueue {
        CompletionQueue { base, entries, tail: 0, phase: true, vector, waiting: VecDeque::new() }
    }

    /// Writes what waits and fits, with the client's head; how many, or nothing when its memory is not there.
    fn write(&mut self, head: u32, memory: &impl HostMemory) -> Option<usize> {
        // A head beyond the queue is none: then there is room for nothing, and the client has stopped itself.
        let mut written = 0;
        while head < self.entries && (self.tail + 1) % self.entries != head {
            let Some(completion) = self.waiting.pop_front() else { break };
            let at = self.base.checked_add(u64::from(self.tail) * COMPLETION_BYTES as u64)?;
            // The phase is in the last word, and a client may look while the bytes before it are written.
            let entry = completion.encode(self.phase);
            memory.write(at, &entry[..COMPLETION_BYTES - 4]).ok()?;
            memory.publish(at + COMPLETION_BYTES as u64 - 4, entry[COMPLETION_BYTES - 4..].try_into().ok()?).ok()?;
            self.tail = (self.tail + 1) % self.entries;
            self.phase ^= self.tail == 0;
            written += 1;
        }
        Some(written)
    }
}
