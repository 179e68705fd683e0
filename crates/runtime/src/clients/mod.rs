//! Programs of this machine as clients: each has an NVMe controller in memory that it shares (`osier_nvme::local`).
//!
//! ```text
//! client's queue ──fetch──> Work ──parts──> stream ──> domain ... completion ──> Work ──> client's queue
//! ```
//!
//! Invariants:
//! 1. A command is in `works` from its fetch until its completion is posted; a part is at its slot of the arena.
//! 2. No client is served while requests of a former life of this process are under way, nor is one let in while those
//!    of one that has gone are: what it sends again, or writes over, must not be overtaken by what it sent before.
//! 3. What a client's memory says is copied once; what leaves its memory is a status and no more.

mod listener;
mod work;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use osier_domain::message::FLAG_FUA;
use osier_domain::{Nanos, Opcode, STREAMS_MAX, Status, StreamId, Tag};
use osier_nvme::local::{BELL, Welcome, armed};
use osier_nvme::{
    Admin, BLOCK_BYTES, BlockRange, Change, Command, Controller, Direction, Health, HostMemory, IO_QUEUES_MAX,
    Identity, Io, Namespace, OutOfMemory, Queues, RANGE_BYTES, Reach, Registers, admin, resolve, status,
};
use osier_pmr::{Backing, DOORBELL_BYTES, Doorbell, Object, ObjectKind, Region, pass};
use serde::{Deserialize, Serialize};
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};

use crate::client::{Ask, Done};
use crate::control::Control;
use crate::error::RuntimeError;
use crate::setup::Setup;
use crate::traffic::Traffic;
use crate::workload::{Port, Tally, Workload};
use listener::{Arrival, Listener, News};
use osier_actor::Arena;
use work::{Part, Work, gather};

/// Streams of reads, and of writes: a stream's requests end in order, so several let them overtake each other.
const READS: std::ops::Range<u16> = 0..8;
const WRITES: std::ops::Range<u16> = 8..14;
const TRIMS: StreamId = StreamId(14);
const FLUSHES: StreamId = StreamId(15);
const _: () = assert!(STREAMS_MAX == 16);
/// Commands under way, of all clients.
const WORKS_MAX: usize = 1024;
/// How often the device's condition is looked at.
const OBSERVE_NS: u64 = 1_000_000_000;
/// Absolute zero, in thousandths of a degree Celsius.
const ZERO_KELVIN_MILLICELSIUS: i64 = -273_150;

/// Where the clients of a device arrive.
#[must_use]
pub fn socket(image: &Path) -> PathBuf {
    image.join("nvme.sock")
}

/// How clients are served.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClientsSpec {
    /// Where they arrive.
    pub socket: PathBuf,
    /// The pipeline that their writes go through, or 0 for none.
    pub tag: u32,
    /// Whether they may only read.
    pub is_read_only: bool,
}

/// The workload that clients are.
pub struct Clients {
    listener: Listener,
    bells: Region,
    bell: Doorbell,
    control: Control,
    identity: Identity,
    namespace: Namespace,
    tag: Tag,
    name: String,
    /// Most blocks of one request of the domain's.
    request_blocks: u64,
    clients: Vec<Option<Client>>,
    /// Those that are to be let in.
    arrivals: VecDeque<Arrival>,
    works: Vec<Option<Work>>,
    free: Vec<usize>,
    /// Commands that have parts left to submit.
    ready: VecDeque<usize>,
    /// What is at each slot of the arena.
    parts: Vec<Option<(usize, Part)>>,
    /// Requests of a former life that are under way.
    inherited: usize,
    next_client: usize,
    next_stream: [u16; 2],
    next_look: Nanos,
    /// When this turn began.
    now: Nanos,
    health: Health,
    traffic: Traffic,
    data: Vec<u8>,
    tally: Tally,
}

struct Client {
    /// What the listener calls it.
    id: u64,
    registers: Words,
    memory: Memory,
    events: Vec<std::os::fd::OwnedFd>,
    queues: Queues,
    controller: Controller,
    /// It has gone; it stays here until its commands have ended.
    gone: bool,
    /// It waits for a barrier before it is shut down.
    shuts_down: bool,
}

/// A client's registers.
struct Words(Object);

impl Registers for Words {
    fn load(&self, offset: u64) -> u32 {
        self.0.word32(offset).load(Ordering::Acquire)
    }

    fn store(&self, offset: u64, value: u32) {
        self.0.word32(offset).store(value, Ordering::Release);
    }
}

/// A client's memory.
struct Memory(Object);

impl HostMemory for Memory {
    fn read(&self, address: u64, out: &mut [u8]) -> Result<(), OutOfMemory> {
        self.0.bytes().get(address, out.len() as u64).ok_or(OutOfMemory)?.read(0, out);
        Ok(())
    }

    fn write(&self, address: u64, bytes: &[u8]) -> Result<(), OutOfMemory> {
        self.0.bytes().get(address, bytes.len() as u64).ok_or(OutOfMemory)?.write(0, bytes);
        Ok(())
    }

    fn publish(&self, address: u64, word: [u8; 4]) -> Result<(), OutOfMemory> {
        let in_memory = address.is_multiple_of(4) && self.0.bytes().get(address, 4).is_some();
        if !in_memory {
            return Err(OutOfMemory);
        }
        self.0.word32(address).store(u32::from_le_bytes(word), Ordering::Release);
        Ok(())
    }
}

impl Clients {
    /// Clients of the device that `setup` describes.
    pub fn new(setup: &Setup, spec: &ClientsSpec, delivered: &[u64; STREAMS_MAX]) -> Result<Clients, RuntimeError> {
        let bells = Region::create(&Backing::Memfd, 1 << 16, setup.superblock.uuid.0)?;
        let bell = Doorbell::new(&bells.allocate(BELL, ObjectKind::DOORBELL, DOORBELL_BYTES, 4096)?, 0);
        let layout = setup.pipelines.layout();
        let name = setup.superblock.profile_name.clone();
        let traffic = setup.traffic()?;
        traffic.clear_clients();
        Ok(Clients {
            listener: Listener::start(&spec.socket, bell.clone())?,
            bells,
            bell,
            control: setup.control.clone(),
            identity: identity(setup),
            namespace: Namespace {
                nsid: 1,
                blocks: setup.superblock.logical_blocks,
                used_blocks: setup.superblock.logical_blocks,
                is_thin: false,
                is_read_only: spec.is_read_only,
                nguid: setup.superblock.uuid.0,
            },
            tag: Tag(spec.tag),
            name,
            request_blocks: u64::from(layout.request_blocks_max),
            clients: Vec::new(),
            arrivals: VecDeque::new(),
            works: Vec::new(),
            free: Vec::new(),
            ready: VecDeque::new(),
            parts: vec![None; usize::from(layout.slots)],
            inherited: 0,
            next_client: 0,
            next_stream: [READS.start, WRITES.start],
            next_look: Nanos(0),
            now: Nanos(0),
            traffic,
            health: Health { is_read_only: spec.is_read_only, ..Health::default() },
            data: vec![0; layout.raw_bytes() as usize],
            tally: Tally::new(delivered, false),
        })
    }

    /// Takes note of who came and who went.
    fn hear(&mut self) {
        while let Some(news) = self.listener.news() {
            match news {
                News::Arrived(arrival) => self.arrivals.push_back(arrival),
                News::Left(id) => {
                    self.arrivals.retain(|arrival| arrival.id != id);
                    for client in self.clients.iter_mut().flatten().filter(|client| client.id == id) {
                        client.gone = true;
                    }
                }
            }
        }
        for (index, place) in self.clients.iter_mut().enumerate() {
            let gone = place.as_ref().is_some_and(|client| client.gone && client.queues.outstanding() == 0);
            // Its place may be another's only when nothing is under way for it any more, a barrier included.
            if gone && !self.works.iter().flatten().any(|work| work.client == index) {
                *place = None;
                self.traffic.left(index);
            }
        }
        while !self.arrivals.is_empty() && !self.clients.iter().flatten().any(|client| client.gone) {
            if let Some(arrival) = self.arrivals.pop_front() {
                self.welcome(arrival);
            }
        }
    }

    fn welcome(&mut self, arrival: Arrival) {
        let registers = Words(arrival.registers);
        let client = Client {
            id: arrival.id,
            queues: Queues::new(&registers, arrival.events.len() as u16),
            registers,
            memory: Memory(arrival.memory),
            events: arrival.events,
            controller: Controller::new(self.identity.clone(), vec![self.namespace.clone()]),
            gone: false,
            shuts_down: false,
        };
        // One that does not listen any more is found by its socket, which closes.
        let _ = pass::send(&arrival.socket, &Welcome(Ok(self.name.clone())).encode(), &[self.bells.as_fd()]);
        let place = self.clients.iter().position(Option::is_none).unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        self.traffic.arrived(place, client.id, &arrival.name);
        self.clients[place] = Some(client);
    }

    /// Fetches a command and begins it; whether there was any.
    fn fetch(&mut self) -> bool {
        for _ in 0..self.clients.len() {
            self.next_client = (self.next_client + 1) % self.clients.len();
            let index = self.next_client;
            let Some(client) = self.clients[index].as_mut().filter(|client| !client.gone) else { continue };
            match client.queues.look(&client.registers) {
                Change::Reset => {
                    // In memory the client forgets what it asked for.
                    client.controller.reset();
                }
                Change::ShutDown => client.shuts_down = true,
                Change::None => {}
            }
            let mut vectors = Vec::new();
            client.queues.go_on(&client.registers, &client.memory, &mut vectors);
            for vector in vectors {
                client.interrupt(vector);
            }
            if client.shuts_down {
                client.shuts_down = false;
                self.begin_shut_down(index);
                return true;
            }
            if let Some(fetched) = client.queues.fetch(&client.registers, &client.memory) {
                self.begin(index, fetched.sqid, fetched.command);
                return true;
            }
        }
        false
    }

    fn begin(&mut self, index: usize, sqid: u16, command: Command) {
        let begun = if sqid == 0 { self.begin_admin(index, command) } else { self.begin_io(index, sqid, command) };
        if let Err(status) = begun
            && let Some(client) = &mut self.clients[index]
        {
            client.end(sqid, &command, status, 0);
        }
    }

    fn begin_io(&mut self, index: usize, sqid: u16, command: Command) -> Result<(), Status> {
        let Some(client) = &mut self.clients[index] else { return Ok(()) };
        let io = client.controller.io(&command)?;
        let mut spans = Vec::new();
        resolve(&command.dptr, io.data().1, &client.memory, &mut spans)?;
        let mut listed = Vec::new();
        if let Io::Deallocate { ranges } | Io::Hint { ranges } = io {
            let mut list = vec![0; ranges * RANGE_BYTES];
            gather(&spans, 0, &mut list, &client.memory).map_err(|_| status::DATA_TRANSFER_ERROR)?;
            listed = osier_nvme::ranges(&list, &self.namespace)?;
            if matches!(io, Io::Hint { .. }) {
                listed.clear();
            }
        }
        let mut work = Work::new(index, (sqid, command), &io, listed);
        work.spans = spans;
        self.admit(work);
        Ok(())
    }

    /// A command that has parts waits for its turn; one that has none ends.
    fn admit(&mut self, mut work: Work) {
        work.begun = self.now;
        let place = self.free.pop().unwrap_or_else(|| {
            self.works.push(None);
            self.works.len() - 1
        });
        let is_done = work.is_done();
        self.works[place] = Some(work);
        if is_done { self.finish(place) } else { self.queue(place) }
    }

    /// The command waits for its turn to submit a part, if it has one.
    fn queue(&mut self, place: usize) {
        let Some(work) = &mut self.works[place] else { return };
        if !work.is_queued && work.next(1).is_some() {
            work.is_queued = true;
            self.ready.push_back(place);
        }
    }

    /// The command whose turn it is has nothing to submit now.
    fn pass_turn(&mut self) {
        let Some(place) = self.ready.pop_front() else { return };
        let Some(work) = &mut self.works[place] else { return };
        work.is_queued = false;
        if work.is_done() {
            self.finish(place);
        }
    }

    fn begin_admin(&mut self, index: usize, command: Command) -> Result<(), Status> {
        let health = self.health.clone();
        let Some(client) = &mut self.clients[index] else { return Ok(()) };
        let (direction, bytes) = Controller::data(&command)?;
        let mut spans = Vec::new();
        resolve(&command.dptr, bytes, &client.memory, &mut spans)?;
        match client.controller.admin(&command, &health)? {
            Admin::Done { result, data } => {
                if direction == Direction::FromController {
                    work::scatter(&spans, 0, &data, &client.memory).map_err(|_| status::DATA_TRANSFER_ERROR)?;
                }
                client.end(0, &command, Status::SUCCESS, result);
            }
            Admin::Held => client.tell_events(),
            Admin::Queue => client.change_queues(&command)?,
            Admin::Abort { sqid, cid } => {
                // What is under way ends soon by itself: bit 0 of the result says that it was not aborted.
                let aborted = sqid == 0 && client.controller.abort_event(cid);
                if aborted {
                    let event = Command { cid, ..Command::new(admin::ASYNC_EVENT_REQUEST, 0) };
                    client.end(0, &event, status::ABORT_REQUESTED, 0);
                }
                client.end(0, &command, Status::SUCCESS, u32::from(!aborted));
            }
            Admin::Allocation(query) => {
                let mut work = Work::allocation(index, command, query);
                work.spans = spans;
                self.admit(work);
            }
            Admin::Format { .. } => {
                let all = BlockRange { slba: 0, blocks: self.namespace.blocks };
                self.admit(Work::new(index, (0, command), &Io::Deallocate { ranges: 1 }, vec![all]));
            }
        }
        Ok(())
    }

    /// A client that is shut down gets a barrier first. The work has no command: it ends by a register.
    fn begin_shut_down(&mut self, index: usize) {
        let mut work = Work::new(index, (0, Command::new(0, 0)), &Io::Flush, Vec::new());
        work.ends_by_register = true;
        self.admit(work);
    }

    /// Submits the next part of a command; whether there was room.
    fn submit(&mut self, place: usize, port: &mut dyn Port) -> bool {
        let Some(work) = &mut self.works[place] else { return false };
        let Some(part) = work.next(self.request_blocks) else { return false };
        let bytes = (part.range.blocks * BLOCK_BYTES) as usize;
        if part.opcode == Opcode::Write {
            let Some(client) = &self.clients[work.client] else { return false };
            if gather(&work.spans, part.offset, &mut self.data[..bytes], &client.memory).is_err() {
                work.fail(status::DATA_TRANSFER_ERROR);
                return false;
            }
        }
        let flags = if part.fua { FLAG_FUA } else { 0 };
        let (slba, blocks) = (part.range.slba, part.range.blocks as u32);
        let (streams, ask) = match part.opcode {
            Opcode::Read => (READS, Ask::Read { slba, blocks, flags }),
            Opcode::Write | Opcode::Passthrough => {
                (WRITES, Ask::Write { slba, data: &self.data[..bytes], tag: self.tag, flags })
            }
            Opcode::Trim => (TRIMS.0..TRIMS.0 + 1, Ask::Trim { slba, blocks }),
            Opcode::Flush => (FLUSHES.0..FLUSHES.0 + 1, Ask::Flush),
            Opcode::Allocation => (READS, Ask::Allocation { slba, blocks }),
        };
        let next = match part.opcode {
            Opcode::Read | Opcode::Allocation => &mut self.next_stream[0],
            Opcode::Write | Opcode::Passthrough => &mut self.next_stream[1],
            Opcode::Trim | Opcode::Flush => &mut { streams.start },
        };
        let stream = StreamId(*next);
        *next = if *next + 1 < streams.end { *next + 1 } else { streams.start };
        let Some(slot) = port.submit(stream, ask) else { return false };
        work.took(&part);
        self.parts[usize::from(slot.0)] = Some((place, part));
        true
    }

    /// A command has ended.
    fn finish(&mut self, place: usize) {
        let Some(mut work) = self.works[place].take() else { return };
        self.free.push(place);
        let Some(client) = &mut self.clients[work.client] else { return };
        work.conclude(&client.memory);
        if work.ends_by_register {
            client.queues.shut_down(&client.registers);
            return;
        }
        let bytes = work.bytes();
        let took_ns = self.now.0.saturating_sub(work.begun.0);
        self.traffic.ended(work.kind(), !work.status.is_success(), bytes, took_ns);
        self.traffic.served(work.client, bytes);
        let bytes = u128::from(bytes);
        match work.command.opcode {
            _ if work.sqid == 0 || !work.status.is_success() => {}
            osier_nvme::nvm::READ => {
                self.health.reads += 1;
                self.health.read_bytes += bytes;
            }
            osier_nvme::nvm::WRITE => {
                self.health.writes += 1;
                self.health.written_bytes += bytes;
            }
            _ => {}
        }
        client.end(work.sqid, &work.command, work.status, 0);
    }

    /// Looks at the device's condition now and then.
    fn observe(&mut self, now: Nanos) {
        if now < self.next_look {
            return;
        }
        self.next_look = Nanos(now.0 + OBSERVE_NS);
        let kelvin = (self.control.temperature_millicelsius() - ZERO_KELVIN_MILLICELSIUS) / 1000;
        self.health.temperature_kelvin = u16::try_from(kelvin).unwrap_or(0);
        let warning = self.identity.warning_kelvin;
        self.health.is_hot = warning > 0 && self.health.temperature_kelvin >= warning;
        for client in self.clients.iter_mut().flatten() {
            client.controller.observe(&self.health);
            client.tell_events();
        }
    }
}

impl Client {
    /// Posts a completion, and sends the interrupt if somebody waits for it.
    fn end(&mut self, sqid: u16, command: &Command, status: Status, result: u32) {
        if !status.is_success() {
            self.controller.note_failure(sqid, command, status);
        }
        let ended = (status, result);
        if let Some(vector) = self.queues.complete((sqid, command.cid), ended, &self.registers, &self.memory) {
            self.interrupt(vector);
        }
    }

    fn interrupt(&self, vector: u16) {
        let Some(event) = self.events.get(usize::from(vector)) else { return };
        let armed = self.registers.0.word32(armed(vector));
        // The completion before the look: whoever arms looks for completions after it.
        fence(Ordering::SeqCst);
        if armed.load(Ordering::Relaxed) != 0 && armed.swap(0, Ordering::AcqRel) != 0 {
            // A client that made this fail has itself to blame.
            let _ = rustix::io::write(event.as_fd(), &1_u64.to_ne_bytes());
        }
    }

    fn tell_events(&mut self) {
        while let Some((held, result)) = self.controller.event() {
            let command = Command { cid: held.cid, ..Command::new(admin::ASYNC_EVENT_REQUEST, 0) };
            self.end(0, &command, Status::SUCCESS, result);
        }
    }

    fn change_queues(&mut self, command: &Command) -> Result<(), Status> {
        let qid = command.cdw[0] as u16;
        match command.opcode {
            admin::CREATE_CQ => self.queues.create_completion(command)?,
            admin::CREATE_SQ => self.queues.create_submission(command)?,
            admin::DELETE_CQ => self.queues.delete_completion(qid)?,
            _ => {
                if !self.queues.delete_submission(qid, command.cid)? {
                    return Ok(());
                }
            }
        }
        self.end(0, command, Status::SUCCESS, 0);
        Ok(())
    }

    fn has_command(&self) -> bool {
        !self.gone && self.queues.has_command(&self.registers)
    }
}

impl Workload for Clients {
    fn offer(&mut self, now: Nanos, port: &mut dyn Port) -> bool {
        self.now = now;
        self.hear();
        self.observe(now);
        if self.inherited > 0 {
            return false;
        }
        let Some(place) = self.ready.front().copied() else {
            return self.works.len() - self.free.len() < WORKS_MAX && self.fetch();
        };
        let submitted = self.submit(place, port);
        let has_more = self.works[place].as_ref().is_some_and(|work| work.next(1).is_some());
        if !has_more {
            self.pass_turn();
        }
        submitted || !has_more
    }

    fn completed(&mut self, now: Nanos, done: &Done, arena: &Arena) {
        self.now = now;
        self.tally.count(now, done);
        let slot = done.request.descriptor.slot;
        let Some((place, part)) = self.parts[usize::from(slot.0)].take() else {
            self.inherited = self.inherited.saturating_sub(1);
            return;
        };
        let Some(work) = &mut self.works[place] else { return };
        let Some(client) = &self.clients[work.client] else { return };
        let bytes = match part.opcode {
            Opcode::Allocation => usize::from(done.request.descriptor.units) * size_of::<u32>(),
            _ => (part.range.blocks * BLOCK_BYTES) as usize,
        };
        let mut data = &mut self.data[..0];
        if work.reads() && done.request.status.is_success() {
            data = &mut self.data[..bytes];
            arena.read_raw(slot, 0, data);
        }
        work.ended(&part, done.request.status, data, &client.memory);
        // One that has failed while it waited for its turn ends there.
        if work.is_done() && !work.is_queued {
            self.finish(place);
        } else {
            self.queue(place);
        }
    }

    fn inherited(&mut self, _request: &osier_domain::message::Request) {
        self.inherited += 1;
    }

    fn bell(&self) -> Option<&Doorbell> {
        Some(&self.bell)
    }

    fn has_offer(&self) -> bool {
        self.inherited == 0 && self.clients.iter().flatten().any(Client::has_command)
    }

    fn finished(&self) -> bool {
        false
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn phase(&self) -> &'static str {
        "serving"
    }

    fn progress_permille(&self) -> u64 {
        0
    }
}

fn identity(setup: &Setup) -> Identity {
    let uuid = setup.superblock.uuid;
    let kelvin = |millicelsius: i32| ((i64::from(millicelsius) - ZERO_KELVIN_MILLICELSIUS) / 1000) as u16;
    let throttle = &setup.profile.throttle;
    let shut_down = throttle.iter().find(|step| step.speed_permille == 0).or(throttle.last());
    let hex: String = uuid.0.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    Identity {
        serial: hex,
        model: format!("Osier {}", setup.superblock.profile_name),
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        subsystem: format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"),
        controller: 1,
        volatile_cache: !setup.profile.persistence.pmr_persistent,
        // Zero says that there is none.
        warning_kelvin: throttle.first().map_or(0, |step| kelvin(step.enter_millicelsius)),
        critical_kelvin: shut_down.map_or(0, |step| kelvin(step.enter_millicelsius)),
        reach: Reach::Memory,
        io_queues_max: IO_QUEUES_MAX,
    }
}
