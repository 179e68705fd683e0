//! The controller: what admin commands do.

use std::collections::VecDeque;

use osier_device::Status;

use crate::allocation::AllocationQuery;
use crate::command::{Command, admin};
use crate::features::Features;
use crate::identify::{self, ERRORS_MAX, EVENTS_MAX, IDENTIFY_BYTES};
use crate::io::{Direction, Io};
use crate::log::{self, Failure, Health, LOG_BYTES_MAX, LogPage, Wanted};
use crate::status::{
    EVENT_LIMIT_EXCEEDED, INVALID_FORMAT, INVALID_LOG_PAGE, INVALID_NAMESPACE, INVALID_OPCODE,
    NAMESPACE_WRITE_PROTECTED,
};

/// All namespaces.
const NSID_ALL: u32 = u32::MAX;

/// How a controller is reached, and what for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// By queues in memory; it is alone in its subsystem.
    Memory,
    /// Over a fabric, as one of many.
    Fabric,
    /// Over a fabric, to be told what there is: a discovery controller.
    Discovery,
}

/// What a controller says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Serial number, 20 characters at most.
    pub serial: String,
    /// Model number, 40 characters at most.
    pub model: String,
    /// Firmware revision, 8 characters at most.
    pub firmware: String,
    /// NVMe Qualified Name of the subsystem, 223 bytes at most.
    pub subsystem: String,
    /// CNTLID.
    pub controller: u16,
    /// Whether what was answered may be lost with the power before a flush.
    pub volatile_cache: bool,
    /// Where the profile begins to throttle.
    pub warning_kelvin: u16,
    /// Where it shuts down.
    pub critical_kelvin: u16,
    /// How it is reached.
    pub reach: Reach,
    /// Most queues for I/O that a client gets, 1 to [`IO_QUEUES_MAX`](crate::IO_QUEUES_MAX).
    pub io_queues_max: u16,
}

/// A namespace of the NVM command set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Namespace identifier, from 1 on.
    pub nsid: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Logical blocks that hold something (NUSE).
    pub used_blocks: u64,
    /// Whether it may show more than fits.
    pub is_thin: bool,
    /// Whether it takes no writes.
    pub is_read_only: bool,
    /// Namespace Globally Unique Identifier.
    pub nguid: [u8; 16],
}

/// An event request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its identifier.
    pub cid: u16,
}

/// What becomes of an admin command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admin {
    /// It has ended.
    Done {
        /// Dword 0 of the completion.
        result: u32,
        /// What goes to the client.
        data: Vec<u8>,
    },
    /// It ends with an event: [`Controller::event`].
    Held,
    /// It is about the transport's queues.
    Queue,
    /// A command with this identifier in this submission queue is to be aborted if it has not ended; that it was not is
    /// no error.
    Abort {
        /// The queue.
        sqid: u16,
        /// The command.
        cid: u16,
    },
    /// All blocks of a namespace are to be deallocated.
    Format {
        /// Which.
        nsid: u32,
    },
    /// Which blocks take space.
    Allocation(AllocationQuery),
}

/// What the client has not been told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The temperature went over its threshold, or the spare below its.
    Health { info: u8 },
    /// Namespaces changed.
    Namespaces,
}

impl Event {
    /// Dword 0 of the completion: type in bits 2:0, information in 15:8, log page in 23:16.
    fn result(self) -> u32 {
        let (kind, info, page) = match self {
            Event::Health { info } => (1, info, 0x02),
            Event::Namespaces => (2, 0, 0x04),
        };
        kind | u32::from(info) << 8 | page << 16
    }

    fn page(self) -> LogPage {
        match self {
            Event::Health { .. } => LogPage::Health,
            Event::Namespaces => LogPage::ChangedNamespaces,
        }
    }

    /// Its bit in Asynchronous Event Configuration.
    fn wanted(self) -> u32 {
        match self {
            // Spare and temperature are bits 0 and 1 of the critical warnings.
            Event::Health { info } => 1 << info,
            Event::Namespaces => 1 << 8,
        }
    }
}

/// One controller, as one client sees it.
#[derive(Debug)]
pub struct Controller {
    identity: Identity,
    namespaces: Vec<Namespace>,
    features: Features,
    /// Event requests that wait for events.
    held: VecDeque<Held>,
    /// Events that wait for requests, at most one of a kind.
    events: Vec<Event>,
    /// Kinds that were told, and are masked until their log page is read.
    masked: Vec<LogPage>,
    changed: Vec<u32>,
    failures: VecDeque<Failure>,
    failed: u64,
    was_hot: bool,
    /// The Discovery log page, of a discovery controller.
    discovery: Vec<u8>,
}

impl Controller {
    /// A controller with these namespaces, ascending by identifier.
    #[must_use]
    pub fn new(identity: Identity, namespaces: Vec<Namespace>) -> Controller {
        assert!(namespaces.is_sorted_by_key(|n| n.nsid) && namespaces.iter().all(|n| n.nsid > 0));
        Controller {
            features: Features::new(&identity),
            identity,
            namespaces,
            held: VecDeque::new(),
            events: Vec::new(),
            masked: Vec::new(),
            changed: Vec::new(),
            failures: VecDeque::new(),
            failed: 0,
            was_hot: false,
            discovery: Vec::new(),
        }
    }

    /// A discovery controller, and its log page.
    #[must_use]
    pub fn discovery(identity: Identity, page: Vec<u8>) -> Controller {
        assert!(identity.reach == Reach::Discovery);
        Controller { discovery: page, ..Controller::new(identity, Vec::new()) }
    }

    /// The controller begins anew; its error log stays. The event requests that it held are gone: their identifiers.
    pub fn reset(&mut self) -> Vec<u16> {
        // The timer belongs to the association, and outlives a reset.
        let keep_alive_ms = if self.identity.reach == Reach::Memory { 0 } else { self.features.keep_alive_ms };
        self.features = Features::new(&self.identity);
        self.features.keep_alive_ms = keep_alive_ms;
        self.events.clear();
        self.masked.clear();
        self.was_hot = false;
        self.held.drain(..).map(|held| held.cid).collect()
    }

    /// A namespace of this controller.
    #[must_use]
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        self.namespaces.iter().find(|namespace| namespace.nsid == nsid)
    }

    /// Puts what changes of a namespace up to date, without a notice.
    pub fn set_used(&mut self, nsid: u32, used_blocks: u64) {
        if let Some(namespace) = self.namespaces.iter_mut().find(|n| n.nsid == nsid) {
            namespace.used_blocks = used_blocks;
        }
    }

    /// Attaches, detaches or changes a namespace; the client gets a notice if it wants one.
    pub fn set_namespaces(&mut self, namespaces: Vec<Namespace>) {
        let of = |list: &[Namespace], nsid: u32| list.iter().find(|n| n.nsid == nsid).cloned();
        let mut ids: Vec<u32> = self.namespaces.iter().chain(&namespaces).map(|n| n.nsid).collect();
        ids.sort_unstable();
        ids.dedup();
        ids.retain(|nsid| of(&self.namespaces, *nsid) != of(&namespaces, *nsid) && !self.changed.contains(nsid));
        self.namespaces = namespaces;
        if !ids.is_empty() {
            self.changed.extend(ids);
            self.raise(Event::Namespaces);
        }
    }

    /// The features.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Sets the keep-alive timer, as a Connect command does.
    pub fn set_keep_alive(&mut self, keep_alive_ms: u32) {
        self.features.keep_alive_ms = keep_alive_ms;
    }

    /// What an I/O command asks for. With the write cache off, every write is through it.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn io(&self, command: &Command) -> Result<Io, Status> {
        let namespace = self.namespace(command.nsid).ok_or(INVALID_NAMESPACE)?;
        let through = !self.features.write_cache;
        Ok(match Io::decode(command, namespace)? {
            Io::Write { range, fua } => Io::Write { range, fua: fua || through },
            Io::WriteZeroes { range, deallocate, fua } => Io::WriteZeroes { range, deallocate, fua: fua || through },
            other => other,
        })
    }

    /// Notes a command that failed, for the error log.
    pub fn note_failure(&mut self, sqid: u16, command: &Command, status: Status) {
        self.failed += 1;
        self.failures.truncate(ERRORS_MAX - 1);
        let lba = if sqid > 0 { command.slba() } else { 0 };
        let failure = Failure { count: self.failed, sqid, cid: command.cid, status, lba, nsid: command.nsid };
        self.failures.push_front(failure);
    }

    /// Which way an admin command's data go, and how many bytes they are.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn data(command: &Command) -> Result<(Direction, u64), Status> {
        Ok(match command.opcode {
            admin::IDENTIFY => (Direction::FromController, IDENTIFY_BYTES as u64),
            admin::GET_LOG_PAGE => {
                let bytes = log::wanted(command)?.bytes;
                debug_assert!(bytes <= LOG_BYTES_MAX);
                (Direction::FromController, bytes)
            }
            admin::GET_LBA_STATUS => (Direction::FromController, AllocationQuery::bytes(command)?),
            _ => (Direction::None, 0),
        })
    }

    /// Carries out an admin command.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn admin(&mut self, command: &Command, health: &Health) -> Result<Admin, Status> {
        if command.fuse != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if !self.has(command.opcode) {
            return Err(INVALID_OPCODE);
        }
        let done = |result| Ok(Admin::Done { result, data: Vec::new() });
        match command.opcode {
            admin::IDENTIFY => self.identify(command).map(|data| Admin::Done { result: 0, data }),
            admin::GET_LOG_PAGE => self.log(command, health).map(|data| Admin::Done { result: 0, data }),
            admin::GET_FEATURES => done(self.features.get(command.cdw[0], command.cdw[1])?),
            admin::SET_FEATURES => done(self.features.set(command.cdw[0], command.cdw[1])?.result),
            admin::ASYNC_EVENT_REQUEST if self.held.len() == EVENTS_MAX => Err(EVENT_LIMIT_EXCEEDED),
            admin::ASYNC_EVENT_REQUEST => {
                self.held.push_back(Held { cid: command.cid });
                Ok(Admin::Held)
            }
            admin::KEEP_ALIVE => done(0),
            admin::ABORT => Ok(Admin::Abort { sqid: command.cdw[0] as u16, cid: (command.cdw[0] >> 16) as u16 }),
            admin::CREATE_CQ | admin::CREATE_SQ | admin::DELETE_CQ | admin::DELETE_SQ => Ok(Admin::Queue),
            admin::FORMAT_NVM => self.format(command),
            admin::GET_LBA_STATUS => {
                let namespace = self.namespace(command.nsid).ok_or(INVALID_NAMESPACE)?;
                AllocationQuery::decode(command, namespace).map(Admin::Allocation)
            }
            _ => Err(INVALID_OPCODE),
        }
    }

    /// Whether controllers that are reached like this one have a command: queues are made, and where blocks are is
    /// said, in memory alone, and a discovery controller has nothing but what it says ("Discovery Controller").
    fn has(&self, opcode: u8) -> bool {
        match self.identity.reach {
            Reach::Memory => true,
            Reach::Fabric => !log::MEMORY_COMMANDS.contains(&opcode),
            Reach::Discovery => matches!(
                opcode,
                admin::IDENTIFY
                    | admin::GET_LOG_PAGE
                    | admin::GET_FEATURES
                    | admin::SET_FEATURES
                    | admin::ASYNC_EVENT_REQUEST
                    | admin::KEEP_ALIVE
                    | admin::ABORT
            ),
        }
    }

    fn identify(&self, command: &Command) -> Result<Vec<u8>, Status> {
        let nsid = command.nsid;
        let known = || self.namespace(nsid).ok_or(INVALID_NAMESPACE);
        // CNS in bits 7:0, CNTID in bits 31:16 of dword 10; CSI in bits 31:24 of dword 11.
        let (cns, from, csi) = (command.cdw[0] & 0xFF, (command.cdw[0] >> 16) as u16, command.cdw[1] >> 24);
        let is_list = |nsid: u32| nsid < NSID_ALL - 1;
        match cns {
            0x01 => Ok(identify::controller(&self.identity)),
            _ if self.identity.reach == Reach::Discovery => Err(Status::INVALID_FIELD),
            0x00 | 0x11 if nsid == NSID_ALL => Ok(identify::namespace(Some(&self.common()), self.identity.reach)),
            0x00 | 0x11 if nsid == 0 || nsid > identify::NAMESPACES_MAX => Err(INVALID_NAMESPACE),
            0x00 | 0x11 => Ok(identify::namespace(self.namespace(nsid), self.identity.reach)),
            0x02 | 0x10 if is_list(nsid) => Ok(identify::namespace_list(&self.namespaces, nsid)),
            0x02 | 0x10 => Err(INVALID_NAMESPACE),
            0x03 => known().map(identify::descriptors),
            // Structures of a command set (Identify I/O Command Set Specific): the NVM command set's are all zero but
            // for the list of its namespaces.
            0x05..=0x07 if csi != 0 => Err(Status::INVALID_FIELD),
            0x05 => known().map(|_| vec![0; IDENTIFY_BYTES]),
            0x06 => Ok(vec![0; IDENTIFY_BYTES]),
            0x07 if is_list(nsid) => Ok(identify::namespace_list(&self.namespaces, nsid)),
            0x12 => known().map(|_| identify::controller_list(self.identity.controller, from)),
            0x13 => Ok(identify::controller_list(self.identity.controller, from)),
            _ => Err(Status::INVALID_FIELD),
        }
    }

    /// What all namespaces have in common: their capabilities, no size.
    fn common(&self) -> Namespace {
        Namespace { nsid: NSID_ALL, blocks: 0, used_blocks: 0, is_thin: false, is_read_only: false, nguid: [0; 16] }
    }

    fn log(&mut self, command: &Command, health: &Health) -> Result<Vec<u8>, Status> {
        let wanted: Wanted = log::wanted(command)?;
        if (wanted.page == LogPage::Discovery) != (self.identity.reach == Reach::Discovery) {
            return Err(INVALID_LOG_PAGE);
        }
        let page = match wanted.page {
            LogPage::Errors => log::errors(&self.failures),
            LogPage::Health => log::health(health, self.failed),
            LogPage::Firmware => log::firmware(&self.identity),
            LogPage::ChangedNamespaces => log::changed(&self.changed),
            LogPage::Effects => log::effects(self.identity.reach),
            LogPage::Discovery => self.discovery.clone(),
        };
        let part = log::cut(&page, &wanted).ok_or(Status::INVALID_FIELD)?;
        if !wanted.retain {
            self.masked.retain(|page| *page != wanted.page);
            if wanted.page == LogPage::ChangedNamespaces {
                self.changed.clear();
            }
        }
        Ok(part)
    }

    /// Format NVM: LBAF in bits 3:0, SES (secure erase) in bits 11:9 of dword 10; the rest asks for metadata or
    /// protection information, which there is not.
    fn format(&self, command: &Command) -> Result<Admin, Status> {
        let dword = command.cdw[0];
        let namespace = self.namespace(command.nsid).ok_or(INVALID_NAMESPACE)?;
        if dword & 0xF != 0 {
            return Err(INVALID_FORMAT);
        }
        // Secure erase would have to reach what garbage collection has not erased yet.
        if dword != 0 {
            return Err(Status::INVALID_FIELD);
        }
        if namespace.is_read_only {
            return Err(NAMESPACE_WRITE_PROTECTED);
        }
        Ok(Admin::Format { nsid: namespace.nsid })
    }

    /// Looks at the device's condition; what is new is an event.
    pub fn observe(&mut self, health: &Health) {
        // Information 01h: temperature; 00h: the subsystem's reliability, for spare.
        let hot = health.temperature_kelvin >= self.features.over_kelvin;
        if hot && !self.was_hot {
            self.raise(Event::Health { info: 1 });
        }
        self.was_hot = hot;
    }

    fn raise(&mut self, event: Event) {
        let is_new = !self.events.contains(&event) && !self.masked.contains(&event.page());
        if is_new && self.features.events & event.wanted() != 0 {
            self.events.push(event);
        }
    }

    /// An event request that ends now, and dword 0 of its completion.
    pub fn event(&mut self) -> Option<(Held, u32)> {
        if self.events.is_empty() {
            return None;
        }
        let held = self.held.pop_front()?;
        let event = self.events.remove(0);
        self.masked.push(event.page());
        Some((held, event.result()))
    }

    /// Takes an event request back that is to be aborted; whether it waited.
    pub fn abort_event(&mut self, cid: u16) -> bool {
        let before = self.held.len();
        self.held.retain(|held| held.cid != cid);
        self.held.len() < before
    }
}
