//! The way of a command over the link and through the controller, and back.
//!
//! A block command is NVMe's: its doorbell rings, the device fetches its entry, the controller works on it in the order
//! of the doorbells, its data is fetched; when its pages are done, a read's data, the completion and an interrupt go
//! back. Loads and stores are messages of CXL.mem, a line each, or accesses to a window of the device's memory when the
//! link has no CXL flits.

use osier_flash::Nanos;
use osier_link::nvme::{self, PrpUnit, QueuePair, Transfer};
use osier_link::{CxlFlit, CxlMessage, Kind, Link, Prepared, PreparedAll, Time, Transaction};

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
    /// Time of the link and of the controller before its pages were begun.
    pub link_ns: u64,
    pub controller_ns: u64,
    /// When its pages were begun.
    pub start: u64,
    /// The latest end of a part.
    pub end: u64,
    /// Parts of it that are not done.
    pub left: u32,
    pub outcome: Outcome,
    pub met: Met,
    /// Where the time from `start` to `end` went; of an answered command, all of its time.
    pub causes: Causes,
}

/// What commands send over and over, with its packets counted once: the slots of a queue are all aligned alike.
#[derive(Debug)]
struct Shapes {
    submission_doorbell: Prepared,
    completion_doorbell: Prepared,
    fetch: Prepared,
    /// The completion, and its interrupt, which is the last to arrive: posted writes keep their order.
    completion: PreparedAll,
    load_request: Prepared,
    load_answer: Prepared,
    store: Prepared,
    partial_store: Prepared,
    store_answer: Prepared,
    /// The data of the latest write of at most a page; of the latest such read, with its completion. With their bytes.
    write_data: (u32, Prepared),
    read_data: (u32, PreparedAll),
    completion_entry: Transaction,
}

impl Shapes {
    fn new(link: &Link, entries: u32) -> Shapes {
        let queue = QueuePair { submissions: SUBMISSIONS, completions: COMPLETIONS, doorbells: DOORBELLS, entries };
        let message = |message| link.prepare(Transaction::cxl(message));
        let (page, entry) = (PAGE_BYTES as u32, queue.completion(0));
        Shapes {
            submission_doorbell: link.prepare(Transaction::doorbell(DOORBELLS)),
            completion_doorbell: link.prepare(Transaction::doorbell(DOORBELLS + 4)),
            fetch: link.prepare(queue.fetch(0)),
            completion: link.prepare_all(&[entry, Transaction::interrupt()]),
            load_request: message(CxlMessage::Request),
            load_answer: message(CxlMessage::ReadData),
            store: message(CxlMessage::WriteData),
            partial_store: message(CxlMessage::PartialWriteData),
            store_answer: message(CxlMessage::WriteDone),
            write_data: (page, Shapes::write_data(link, page)),
            read_data: (page, Shapes::read_data(link, entry, page)),
            completion_entry: entry,
        }
    }

    fn write_data(link: &Link, bytes: u32) -> Prepared {
        link.prepare(Transfer::HostToController.data(HOST_BUFFER, bytes))
    }

    fn read_data(link: &Link, entry: Transaction, bytes: u32) -> PreparedAll {
        link.prepare_all(&[Transfer::ControllerToHost.data(HOST_BUFFER, bytes), entry, Transaction::interrupt()])
    }
}

/// State of this side.
#[derive(Debug)]
pub(super) struct Front {
    shapes: Shapes,
    has_cxl: bool,
    /// When the controller has worked off what it has.
    controller_free_at: u64,
    read_picos_per_byte: u64,
    write_picos_per_byte: u64,
}

impl Front {
    pub(super) fn new(config: &ModelConfig, link: &Link) -> Front {
        let controller = &config.controller;
        let picos = |rate: u64| 1_000_000_000_000_u64.div_ceil(rate.max(1));
        Front {
            shapes: Shapes::new(link, controller.queue_entries),
            has_cxl: config.link.cxl_flit != CxlFlit::None,
            controller_free_at: 0,
            read_picos_per_byte: picos(controller.read_bytes_per_second),
            write_picos_per_byte: picos(controller.write_bytes_per_second),
        }
    }
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
        self.expect(command.address / PAGE_BYTES);
        let at = match command.op {
            Op::Load => self.ask(&command),
            Op::Store => self.store(&command),
            Op::Read | Op::Write | Op::Trim | Op::Flush => {
                self.link.begin(self.now.0, &self.front.shapes.submission_doorbell)
            }
        };
        self.counts.commands[command.op as usize] += 1;
        let job = self.jobs.insert(Job {
            command,
            arrived: self.now,
            link_ns: 0,
            controller_ns: 0,
            start: 0,
            end: 0,
            left: 0,
            causes: Causes::default(),
            outcome: if fits { Outcome::Ok } else { Outcome::OutOfRange },
            met: Met::Nothing,
        });
        self.agenda.push(at, Event::Arrived(job));
    }

    /// The page of a command, or its first, will be asked for.
    #[inline]
    fn expect(&self, page: u64) {
        self.ftl.expect(page);
        if let Some(cache) = &self.cache {
            cache.expect(page);
        }
    }

    fn ask(&mut self, command: &Command) -> u64 {
        if !self.front.has_cxl {
            let address = WINDOW + command.address % WINDOW;
            return self.link.ask_device(self.time(), Kind::Register, address, command.bytes).at.nanos_ceil();
        }
        let mut at = self.now.0;
        for _ in 0..lines(command.address, command.bytes).0 {
            at = self.link.begin(self.now.0, &self.front.shapes.load_request);
        }
        at
    }

    fn store(&mut self, command: &Command) -> u64 {
        if !self.front.has_cxl {
            let address = WINDOW + command.address % WINDOW;
            return self.transfer(Transaction::register_write(address, command.bytes));
        }
        let mut at = self.now.0;
        let (touched, whole) = lines(command.address, command.bytes);
        for line in 0..touched {
            let shapes = &self.front.shapes;
            at = self.link.begin(self.now.0, if line < whole { &shapes.store } else { &shapes.partial_store });
        }
        at
    }

    fn transfer(&mut self, transaction: Transaction) -> u64 {
        self.link.transfer(self.time(), transaction).at.nanos_ceil()
    }

    /// The command, or the message, is at the device.
    #[inline(never)]
    pub(super) fn arrived(&mut self, job: u32) {
        let now = self.now.0;
        let Command { op, bytes, .. } = self.jobs[job].command;
        let state = &mut self.jobs[job];
        state.link_ns = now - state.arrived.0;
        match op {
            Op::Store => return self.begin_pages(job),
            Op::Load => {
                let answers_ns = self.config.link.device_read_ns;
                state.controller_ns = answers_ns;
                self.agenda.push(now + answers_ns, Event::Handled(job));
                return;
            }
            Op::Read | Op::Write | Op::Trim | Op::Flush => {}
        }
        // The doorbell has rung already.
        let fetched = self.link.begin(now, &self.front.shapes.fetch);
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
        state.link_ns += fetched - now;
        state.controller_ns = end - fetched;
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
        let at = self.fetch_data(wanted);
        self.jobs[job].link_ns += at - self.now.0;
        self.agenda.push(at, Event::Fetched(job));
    }

    /// The bytes that cross the link for the data of a command, if these lie in one page, or one block: the command
    /// itself names it.
    fn bytes_in_one(&self, bytes: u32) -> Option<u32> {
        let is_page = self.config.controller.data_transfer == DataTransfer::PrpPage;
        (1..=PAGE_BYTES as u32).contains(&bytes).then_some(if is_page { PAGE_BYTES as u32 } else { bytes })
    }

    /// Fetches the data of a command; says when it is here.
    fn fetch_data(&mut self, bytes: u32) -> u64 {
        let Some(bytes) = self.bytes_in_one(bytes) else { return self.move_data(Transfer::HostToController, bytes) };
        let latest = &mut self.front.shapes.write_data;
        if latest.0 != bytes {
            *latest = (bytes, Shapes::write_data(&self.link, bytes));
        }
        self.link.begin(self.now.0, &latest.1)
    }

    /// Moves data in several pieces; says when the last is where it was wanted.
    fn move_data(&mut self, transfer: Transfer, bytes: u32) -> u64 {
        let how = self.config.controller.data_transfer;
        let (time, link) = (self.time(), &mut self.link);
        let mut at = time;
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
    #[inline(never)]
    pub(super) fn answer(&mut self, job: u32) {
        let now = self.now.0;
        let Job { command, outcome, .. } = self.jobs[job];
        let at = match command.op {
            Op::Load => self.answer_load(&command),
            Op::Store => self.answer_store(&command),
            Op::Read | Op::Write | Op::Trim | Op::Flush => {
                self.complete(command.op == Op::Read, outcome, command.bytes)
            }
        };
        let state = &mut self.jobs[job];
        // No part of a command takes time of these two.
        state.causes.link = state.link_ns + (at - now);
        state.causes.controller = state.controller_ns;
        self.agenda.push(at, Event::Delivered(job));
    }

    fn answer_load(&mut self, command: &Command) -> u64 {
        if !self.front.has_cxl {
            let address = WINDOW + command.address % WINDOW;
            return self.link.answer_host(self.time(), Kind::Register, address, command.bytes).at.nanos_ceil();
        }
        let mut at = self.now.0;
        for _ in 0..lines(command.address, command.bytes).0 {
            at = self.link.begin(self.now.0, &self.front.shapes.load_answer);
        }
        at
    }

    /// Writes through a window are posted: nothing answers them.
    fn answer_store(&mut self, command: &Command) -> u64 {
        let mut at = self.now.0;
        if self.front.has_cxl {
            for _ in 0..lines(command.address, command.bytes).0 {
                at = self.link.begin(self.now.0, &self.front.shapes.store_answer);
            }
        }
        at
    }

    /// A read's data, the completion, and its interrupt. The host frees the slot later.
    fn complete(&mut self, is_read: bool, outcome: Outcome, bytes: u32) -> u64 {
        let has_data = is_read && outcome == Outcome::Ok;
        let mut at = self.now.0;
        if self.has_bug(Bug::CompletionWithoutLink) {
            return if has_data { self.move_data(Transfer::ControllerToHost, bytes) } else { at };
        }
        if has_data {
            if let Some(bytes) = self.bytes_in_one(bytes) {
                let shapes = &mut self.front.shapes;
                if shapes.read_data.0 != bytes {
                    shapes.read_data = (bytes, Shapes::read_data(&self.link, shapes.completion_entry, bytes));
                }
                return self.link.begin_all(self.now.0, &shapes.read_data.1);
            }
            at = self.move_data(Transfer::ControllerToHost, bytes);
        }
        at.max(self.link.begin_all(self.now.0, &self.front.shapes.completion))
    }

    /// The answer is with the host.
    #[inline(never)]
    pub(super) fn delivered(&mut self, job: u32) {
        if !matches!(self.jobs[job].command.op, Op::Load | Op::Store) {
            self.link.begin(self.now.0, &self.front.shapes.completion_doorbell);
        }
        let Job { command, arrived, causes, outcome, met, .. } = &self.jobs[job];
        debug_assert_eq!(causes.total(), self.now.0 - arrived.0, "causes of {command:?}: {causes:?}");
        let (id, arrived, outcome, met, causes) = (command.id, *arrived, *outcome, *met, *causes);
        self.completed.push(Completed { id, arrived, at: self.now, outcome, met, causes });
        self.jobs.remove(job);
    }

    /// A part of a command ends, or will: of several the last counts.
    #[inline]
    pub(super) fn part_done(&mut self, job: u32, at: u64, causes: &Causes) {
        let state = &mut self.jobs[job];
        debug_assert_eq!(causes.total(), at - state.start, "{causes:?} of a part of {:?}", state.command);
        if at > state.end {
            state.end = at;
            state.causes = *causes;
        }
        self.part_over(job);
    }

    /// One part less is left; after the last the command goes on when the latest has ended.
    #[inline]
    pub(super) fn part_over(&mut self, job: u32) {
        let state = &mut self.jobs[job];
        state.left -= 1;
        if state.left == 0 {
            let end = state.end;
            self.agenda.push(end, Event::Ready(job));
        }
    }
}
