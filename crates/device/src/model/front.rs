//! The way of a command over the link and through the controller, and back.
//!
//! A block command is NVMe's: its doorbell rings, the device fetches its entry, the controller works on it in the order
//! of the doorbells, its data is fetched; when its pages are done, a read's data, the completion and an interrupt go
//! back. Loads and stores are messages of CXL.mem, a line each, or accesses to a window of the device's memory when the
//! link has no CXL flits.

use osier_flash::Nanos;
use osier_link::nvme::{self, PrpUnit, QueuePair, Transfer};
use osier_link::{CxlFlit, CxlMessage, Due, Kind, Time, Transaction};

use super::agenda::Event;
use super::config::{DataTransfer, ModelConfig};
use super::planted::Bug;
use super::{Causes, Command, Completed, Met, Model, Op, Outcome, PAGE_BYTES};

/// Bytes of a line of the host's cache.
pub(super) const LINE_BYTES: u64 = 64;
/// Bytes of a range that a trim names (NVM Command Set Specification, Dataset Management).
const RANGE_BYTES: u32 = 16;
/// Places in the host's memory and in the device's: only their alignment and that they need 64 bits matters.
const SUBMISSIONS: u64 = 1 << 33;
const COMPLETIONS: u64 = 1 << 34;
const HOST_BUFFER: u64 = 1 << 40;
const PRP_LIST: u64 = 1 << 41;
const DOORBELLS: u64 = 1 << 44;
const WINDOW: u64 = 1 << 45;

/// A command under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job {
    pub command: Command,
    pub arrived: Nanos,
    /// What is known of its causes: everything up to `mark`.
    pub causes: Causes,
    pub mark: u64,
    /// When its pages were begun.
    pub start: u64,
    /// Parts of it that are not done.
    pub left: u32,
    /// The latest end of a part, and where the time from `start` to it went.
    pub end: u64,
    pub end_causes: Causes,
    pub outcome: Outcome,
    pub met: Met,
}

/// State of this side.
#[derive(Debug)]
pub(super) struct Front {
    queue: QueuePair,
    has_cxl: bool,
    /// Entries used of each queue so far.
    submitted: u32,
    answered: u32,
    /// When the controller has worked off what it has.
    controller_free_at: u64,
    read_picos_per_byte: u64,
    write_picos_per_byte: u64,
}

impl Front {
    pub(super) fn new(config: &ModelConfig) -> Front {
        let controller = &config.controller;
        let picos = |rate: u64| 1_000_000_000_000_u64.div_ceil(rate.max(1));
        let entries = controller.queue_entries;
        Front {
            queue: QueuePair { submissions: SUBMISSIONS, completions: COMPLETIONS, doorbells: DOORBELLS, entries },
            has_cxl: config.link.cxl_flit != CxlFlit::None,
            submitted: 0,
            answered: 0,
            controller_free_at: 0,
            read_picos_per_byte: picos(controller.read_bytes_per_second),
            write_picos_per_byte: picos(controller.write_bytes_per_second),
        }
    }
}

fn advance_slot(slot: &mut u32, entries: u32) -> u32 {
    let taken = *slot;
    *slot = if taken + 1 == entries { 0 } else { taken + 1 };
    taken
}

/// The lines that an access touches: their number, and how many of them whole.
fn lines(address: u64, bytes: u32) -> (u64, u64) {
    let end = address.saturating_add(bytes.into());
    let touched = end.div_ceil(LINE_BYTES) - address / LINE_BYTES;
    let whole = (end / LINE_BYTES).saturating_sub(address.div_ceil(LINE_BYTES));
    (touched, whole)
}

impl Model {
    fn time(&self) -> Time {
        Time::from_nanos(self.now.0)
    }

    /// The host sends a command.
    pub(super) fn send(&mut self, command: Command) {
        let end = command.address.checked_add(command.bytes.into());
        let fits = command.op == Op::Flush || end.is_some_and(|end| end <= self.capacity_bytes());
        let time = self.time();
        let due = match command.op {
            Op::Load => self.ask(time, &command),
            Op::Store => self.store(time, &command),
            Op::Read | Op::Write | Op::Trim | Op::Flush => self.link.transfer(time, Transaction::doorbell(DOORBELLS)),
        };
        self.counts.commands[command.op as usize] += 1;
        let job = self.jobs.insert(Job {
            command,
            arrived: self.now,
            causes: Causes::default(),
            mark: self.now.0,
            start: 0,
            left: 0,
            end: 0,
            end_causes: Causes::default(),
            outcome: if fits { Outcome::Ok } else { Outcome::OutOfRange },
            met: Met::Nothing,
        });
        self.agenda.push(due.at.nanos_ceil(), Event::Arrived(job));
    }

    fn ask(&mut self, time: Time, command: &Command) -> Due {
        if !self.front.has_cxl {
            return self.link.ask_device(time, Kind::Register, WINDOW + command.address % WINDOW, command.bytes);
        }
        let mut due = Due { sent: time, at: time };
        for _ in 0..lines(command.address, command.bytes).0 {
            due = self.link.transfer(time, Transaction::cxl(CxlMessage::Request));
        }
        due
    }

    fn store(&mut self, time: Time, command: &Command) -> Due {
        if !self.front.has_cxl {
            let address = WINDOW + command.address % WINDOW;
            return self.link.transfer(time, Transaction::register_write(address, command.bytes));
        }
        let mut due = Due { sent: time, at: time };
        let (touched, whole) = lines(command.address, command.bytes);
        for line in 0..touched {
            let message = if line < whole { CxlMessage::WriteData } else { CxlMessage::PartialWriteData };
            due = self.link.transfer(time, Transaction::cxl(message));
        }
        due
    }

    /// The command, or the message, is at the device.
    pub(super) fn arrived(&mut self, job: u32) {
        let now = self.now.0;
        let Command { op, bytes, .. } = self.jobs[job].command;
        let state = &mut self.jobs[job];
        state.causes.link += now - state.mark;
        match op {
            Op::Store => return self.begin_pages(job),
            Op::Load => {
                let answers_ns = self.config.link.device_read_ns;
                state.causes.controller += answers_ns;
                self.agenda.push(now + answers_ns, Event::Handled(job));
                return;
            }
            Op::Read | Op::Write | Op::Trim | Op::Flush => {}
        }
        let slot = advance_slot(&mut self.front.submitted, self.front.queue.entries);
        let time = self.time();
        // The doorbell has rung already.
        let fetched = self.link.transfer(time, self.front.queue.fetch(slot)).at.nanos_ceil();
        let picos = match op {
            Op::Read => self.front.read_picos_per_byte,
            Op::Write => self.front.write_picos_per_byte,
            _ => 0,
        };
        let work_ns = self.config.controller.command_ns + (u64::from(bytes) * picos).div_ceil(1000);
        let end = fetched.max(self.front.controller_free_at) + work_ns;
        self.front.controller_free_at = end;
        self.counts.controller_busy_ns += work_ns;
        let state = &mut self.jobs[job];
        state.causes.link += fetched - now;
        state.causes.controller += end - fetched;
        self.agenda.push(end, Event::Handled(job));
    }

    /// The controller has done its work for a command.
    pub(super) fn handled(&mut self, job: u32) {
        let Command { op, bytes, .. } = self.jobs[job].command;
        let wanted = match op {
            Op::Write if self.jobs[job].outcome == Outcome::Ok => bytes,
            Op::Trim => RANGE_BYTES,
            _ => return self.begin_pages(job),
        };
        let at = self.move_data(Transfer::HostToController, wanted);
        self.jobs[job].causes.link += at - self.now.0;
        self.agenda.push(at, Event::Fetched(job));
    }

    /// Moves the data of a command; says when it is where it was wanted.
    fn move_data(&mut self, transfer: Transfer, bytes: u32) -> u64 {
        let time = self.time();
        let how = self.config.controller.data_transfer;
        if (1..=PAGE_BYTES as u32).contains(&bytes) {
            // One page, or one block: the command itself names it.
            let bytes = if how == DataTransfer::PrpPage { PAGE_BYTES as u32 } else { bytes };
            return self.link.transfer(time, transfer.data(HOST_BUFFER, bytes)).at.nanos_ceil();
        }
        let mut at = time;
        let link = &mut self.link;
        let mut send = |transaction| at = at.max(link.transfer(time, transaction).at);
        match how {
            DataTransfer::Prp => nvme::prp(transfer, PrpUnit::Exact, HOST_BUFFER, bytes, PRP_LIST).for_each(&mut send),
            DataTransfer::PrpPage => {
                nvme::prp(transfer, PrpUnit::Page, HOST_BUFFER, bytes, PRP_LIST).for_each(&mut send)
            }
            DataTransfer::Sgl => nvme::sgl(transfer, &[(HOST_BUFFER, bytes)], PRP_LIST).for_each(&mut send),
        }
        at.nanos_ceil()
    }

    /// All pages of a command are done.
    pub(super) fn answer(&mut self, job: u32) {
        let now = self.now.0;
        let Job { command, end_causes, outcome, .. } = self.jobs[job];
        let at = match command.op {
            Op::Load => self.answer_load(&command),
            Op::Store => self.answer_store(&command),
            Op::Read | Op::Write | Op::Trim | Op::Flush => {
                self.complete(command.op == Op::Read, outcome, command.bytes)
            }
        };
        let state = &mut self.jobs[job];
        state.causes += end_causes;
        state.causes.link += at - now;
        self.agenda.push(at, Event::Delivered(job));
    }

    fn answer_load(&mut self, command: &Command) -> u64 {
        let time = self.time();
        if !self.front.has_cxl {
            let address = WINDOW + command.address % WINDOW;
            return self.link.answer_host(time, Kind::Register, address, command.bytes).at.nanos_ceil();
        }
        let mut at = time;
        for _ in 0..lines(command.address, command.bytes).0 {
            at = self.link.transfer(time, Transaction::cxl(CxlMessage::ReadData)).at;
        }
        at.nanos_ceil()
    }

    /// Writes through a window are posted: nothing answers them.
    fn answer_store(&mut self, command: &Command) -> u64 {
        let time = self.time();
        let mut at = time;
        if self.front.has_cxl {
            for _ in 0..lines(command.address, command.bytes).0 {
                at = self.link.transfer(time, Transaction::cxl(CxlMessage::WriteDone)).at;
            }
        }
        at.nanos_ceil()
    }

    /// A read's data, the completion, and its interrupt, which is the last to arrive: posted writes keep their order.
    fn complete(&mut self, is_read: bool, outcome: Outcome, bytes: u32) -> u64 {
        let mut at = self.now.0;
        if is_read && outcome == Outcome::Ok {
            at = self.move_data(Transfer::ControllerToHost, bytes);
        }
        if self.has_bug(Bug::CompletionWithoutLink) {
            return at;
        }
        let slot = advance_slot(&mut self.front.answered, self.front.queue.entries);
        let time = self.time();
        // The host frees the slot later. Posted writes keep their order: the interrupt is there last.
        self.link.transfer(time, self.front.queue.completion(slot));
        at.max(self.link.transfer(time, Transaction::interrupt()).at.nanos_ceil())
    }

    /// The answer is with the host.
    pub(super) fn delivered(&mut self, job: u32) {
        let Job { command, arrived, causes, outcome, met, .. } = self.jobs[job];
        debug_assert_eq!(causes.total(), self.now.0 - arrived.0, "causes of {command:?}: {causes:?}");
        if !matches!(command.op, Op::Load | Op::Store) {
            let time = self.time();
            self.link.transfer(time, Transaction::doorbell(DOORBELLS + 4));
        }
        self.jobs.remove(job);
        self.completed.push_back(Completed { id: command.id, arrived, at: self.now, outcome, met, causes });
    }

    /// A part of a command ends, or will: of several the last counts.
    #[inline]
    pub(super) fn part_done(&mut self, job: u32, at: u64, causes: &Causes) {
        let state = &mut self.jobs[job];
        debug_assert_eq!(causes.total(), at - state.start, "{causes:?} of a part of {:?}", state.command);
        if at > state.end {
            state.end = at;
            state.end_causes = *causes;
        }
        state.left -= 1;
        if state.left == 0 {
            let end = state.end;
            self.agenda.push(end, Event::Ready(job));
        }
    }
}
