//! NVMe over Fabrics, without a fabric: who is connected to which controller by which queue.
//!
//! ```text
//! connection ── Connect ──> Target ── Place { controller, queue } ──> commands, properties ── leave
//! ```
//!
//! A [`Target`] has one subsystem and its discovery controllers (the dynamic controller model: each host that connects
//! an admin queue gets a controller). A *connection* is whatever carries one queue; its number is the transport's.
//!
//! Invariants:
//! 1. A controller lives from its admin queue's Connect until that queue's connection leaves, its keep-alive timer
//!    expires, or the transport ends. What is returned as *to be closed* belongs to nobody any more.
//! 2. No host is let in while a connection of a controller that it lost has not left: what that one still has under way
//!    must not overtake what the host sends next. A connection that its host has closed, which the target does not know
//!    yet, is for the transport to look for ([`Target::connections_of`]).
//! 3. Where hosts are listed, no other one is let in, and a queue takes no command before its host has proved over it
//!    who it is ([`auth`]). Discovery is for everybody.
//! 4. Time is what the caller says; so is which connection a command came by.
//!
//! Sections are those of the NVM Express Base Specification 2.0.

pub mod auth;
mod connect;
mod discovery;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use osier_device::Status;

use crate::command::{Command, fabrics};
use crate::controller::{Admin, Controller, Identity, Namespace};
use crate::io::Io;
use crate::log::Health;
use crate::registers::{CAP, CC, CC_EN, CC_SHN, CSTS, CSTS_CFS, CSTS_RDY, CSTS_SHST_COMPLETE, VERSION, VS};
use crate::registers::{is_configurable, over_fabric};
use crate::status::{AUTHENTICATION_REQUIRED, COMMAND_SEQUENCE_ERROR, CONNECT_INVALID_PARAMETERS};
use auth::{Exchange, Hosts};

pub use connect::{CONNECT_BYTES, ConnectData, Connected, Refused};
pub use discovery::{DISCOVERY_NQN, Portal};

/// Bytes of data that a command's capsule may carry (IOCCSZ less a command; 8192 are what admin capsules have in any
/// case).
pub const CAPSULE_DATA_BYTES: usize = 8192;
/// Most entries of a queue (CAP.MQES, which counts from zero, is one less; MAXCMD).
pub const QUEUE_ENTRIES_MAX: u16 = 128;
/// Fewest entries of an admin queue ("Connect Command", SQSIZE; "Discovery Log Page Entry", ASQSZ).
pub const ADMIN_ENTRIES_MIN: u16 = 32;
/// What a keep-alive timer is rounded up to (KAS).
pub const KEEP_ALIVE_UNIT_MS: u64 = 1000;
/// CSTS.SHST, bits 3:2: a shutdown is under way.
const SHUTTING_DOWN: u32 = CSTS_RDY | 0b01 << 2;
/// How long a discovery controller lives without a word when it has no timer ("Discovery Controller Initialization").
const DISCOVERY_IDLE_MS: u64 = 120_000;
/// Most bytes of a qualified name ("NVMe Qualified Names"), its NUL not counted.
pub const NQN_BYTES_MAX: usize = 223;

/// What hosts connect to.
#[derive(Clone, Debug)]
pub struct Subsystem {
    /// What each controller says of itself; its number is put in.
    pub identity: Identity,
    /// What each controller has.
    pub namespaces: Vec<Namespace>,
    /// Most controllers at a time, those of discovery included.
    pub controllers_max: usize,
    /// The hosts that may connect, if not all of them may.
    pub hosts: Option<Hosts>,
}

/// Who a host says that it is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Host {
    id: [u8; 16],
    nqn: String,
}

/// What a connection is: a queue of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The connection's number, which no other one has or had.
    pub connection: u64,
    /// CNTLID.
    pub controller: u16,
    /// 0 is the admin queue.
    pub qid: u16,
}

/// Values of a controller's properties that change.
#[derive(Clone, Copy, Debug, Default)]
struct Properties {
    cc: u32,
    csts: u32,
}

/// One controller and its connections.
#[derive(Debug)]
struct Association {
    controller: Controller,
    host: Host,
    is_discovery: bool,
    properties: Properties,
    /// Connections by queue; the admin queue's is always here.
    queues: BTreeMap<u16, u64>,
    /// Queues whose hosts have not proved who they are.
    unproved: BTreeSet<u16>,
    /// When its host was last heard.
    heard_ms: u64,
}

impl Association {
    /// When it expires, if nothing is heard.
    fn deadline_ms(&self) -> Option<u64> {
        let wanted = match u64::from(self.controller.features().keep_alive_ms) {
            0 if self.is_discovery => DISCOVERY_IDLE_MS,
            0 => return None,
            wanted => wanted.next_multiple_of(KEEP_ALIVE_UNIT_MS),
        };
        Some(self.heard_ms.saturating_add(wanted))
    }
}

/// What setting a property does beside its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Nothing that concerns anybody else.
    None,
    /// The controller begins anew, or is disabled.
    Reset {
        /// Connections that are to be closed: those of its queues for I/O.
        close: Vec<u64>,
        /// Event requests that are held no more, by their identifiers: they are to be aborted.
        events: Vec<u16>,
    },
    /// The host wants it shut down: [`Target::shut_down`] when all is persistent.
    ShutDown,
}

/// What a Fabrics command answers, the Connect command's aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done {
        /// Dwords 0 and 1 of the completion.
        result: u64,
        /// What else is to be done.
        change: Change,
    },
    /// The queue is gone: this is answered, and then the connection is to be closed.
    Disconnected,
}

/// See the module.
#[derive(Debug)]
pub struct Target {
    subsystem: Subsystem,
    controllers: BTreeMap<u16, Association>,
    /// Connections that belonged to a controller that is no more, or to a queue, and have not left.
    leaving: BTreeMap<u64, Host>,
    /// The number that was given last.
    last: u16,
}

impl Target {
    /// Of a subsystem nobody is connected to.
    ///
    /// # Panics
    /// When the subsystem's name is no NQN that fits, or it may have no controllers.
    #[must_use]
    pub fn new(subsystem: Subsystem) -> Target {
        let name = &subsystem.identity.subsystem;
        assert!(!name.is_empty() && name.len() <= NQN_BYTES_MAX && name != DISCOVERY_NQN);
        assert!((1..usize::from(CNTLID_MAX)).contains(&subsystem.controllers_max));
        Target { subsystem, controllers: BTreeMap::new(), leaving: BTreeMap::new(), last: 0 }
    }

    /// What hosts connect to.
    #[must_use]
    pub fn subsystem(&self) -> &Subsystem {
        &self.subsystem
    }

    /// Controllers that live.
    #[must_use]
    pub fn controllers(&self) -> usize {
        self.controllers.len()
    }

    /// The controller of a connection, as long as the connection is its.
    fn association(&mut self, place: Place) -> Result<&mut Association, Status> {
        let association = self.controllers.get_mut(&place.controller);
        association
            .filter(|association| association.queues.get(&place.qid) == Some(&place.connection))
            .ok_or(COMMAND_SEQUENCE_ERROR)
    }

    /// The same, for a command.
    fn served(&mut self, place: Place) -> Result<&mut Association, Status> {
        let association = self.association(place)?;
        let is_proved = !association.unproved.contains(&place.qid);
        if is_proved { Ok(association) } else { Err(AUTHENTICATION_REQUIRED) }
    }

    /// What a queue that has just been connected has to be authenticated by, if it has to.
    pub fn exchange(&mut self, place: Place) -> Option<Exchange> {
        let subsystem = self.subsystem.identity.subsystem.clone();
        let association = self.association(place).ok().filter(|it| it.unproved.contains(&place.qid))?;
        let host = association.host.nqn.clone();
        let secrets = self.subsystem.hosts.as_ref()?.of(&host)?.clone();
        Some(Exchange::new(secrets, host, subsystem))
    }

    /// A queue's host has proved who it is.
    pub fn proved(&mut self, place: Place) {
        if let Ok(association) = self.association(place) {
            association.unproved.remove(&place.qid);
        }
    }

    /// Whether a connection is still a queue of a controller that lives.
    #[must_use]
    pub fn is_alive(&self, place: Place) -> bool {
        let association = self.controllers.get(&place.controller);
        association.is_some_and(|association| association.queues.get(&place.qid) == Some(&place.connection))
    }

    /// A Fabrics command that is none of Connect.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn fabrics(&mut self, place: Place, command: &Command, now_ms: u64) -> Result<Answer, Status> {
        let association = self.served(place)?;
        if place.qid == 0 {
            association.heard_ms = now_ms;
        }
        let done = |result, change| Ok(Answer::Done { result, change });
        match command.fabrics_type() {
            Some(fabrics::PROPERTY_GET) if place.qid == 0 => {
                done(association.property(command.cdw[0], command.cdw[1])?, Change::None)
            }
            Some(fabrics::PROPERTY_SET) if place.qid == 0 => {
                let change = self.set_property(place, command)?;
                done(0, change)
            }
            // "Disconnect Command": only of queues for I/O. Another connection may take the queue's number then.
            Some(fabrics::DISCONNECT) if place.qid > 0 => {
                association.queues.remove(&place.qid);
                let host = association.host.clone();
                self.leaving.insert(place.connection, host);
                Ok(Answer::Disconnected)
            }
            Some(fabrics::CONNECT) => Err(COMMAND_SEQUENCE_ERROR),
            Some(fabrics::PROPERTY_GET | fabrics::PROPERTY_SET | fabrics::DISCONNECT) => Err(Status::INVALID_FIELD),
            _ => Err(crate::status::INVALID_OPCODE),
        }
    }

    /// Property Set: bits 2:0 of ATTRIB say how many bytes, dwords 12 and 13 what.
    fn set_property(&mut self, place: Place, command: &Command) -> Result<Change, Status> {
        let association = self.association(place)?;
        let [attributes, offset, value, ..] = command.cdw;
        if u64::from(offset) != CC || attributes & 0b111 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        let before = std::mem::replace(&mut association.properties.cc, value);
        let is_enabled = before & CC_EN != 0;
        let csts = &mut association.properties.csts;
        if value & CC_EN == 0 {
            if is_enabled {
                *csts = 0;
                let events = association.controller.reset();
                return Ok(Change::Reset { close: self.close_io(place.controller), events });
            }
        } else if !is_enabled {
            *csts = if is_configurable(value) { CSTS_RDY } else { CSTS_CFS };
            let events = association.controller.reset();
            return Ok(Change::Reset { close: Vec::new(), events });
        } else if value & CC_SHN != 0 && before & CC_SHN == 0 && *csts & CSTS_RDY != 0 {
            *csts = SHUTTING_DOWN;
            return Ok(Change::ShutDown);
        }
        Ok(Change::None)
    }

    /// Takes a controller's queues for I/O from it; their connections.
    fn close_io(&mut self, controller: u16) -> Vec<u64> {
        let Some(association) = self.controllers.get_mut(&controller) else { return Vec::new() };
        let close: Vec<u64> = association.queues.split_off(&1).into_values().collect();
        let host = association.host.clone();
        self.leaving.extend(close.iter().map(|connection| (*connection, host.clone())));
        close
    }

    /// All is persistent, as the host wanted before it shuts its controller down.
    pub fn shut_down(&mut self, place: Place) {
        if let Ok(association) = self.association(place)
            && association.properties.csts == SHUTTING_DOWN
        {
            association.properties.csts = CSTS_RDY | CSTS_SHST_COMPLETE;
        }
    }

    /// An admin command, of an admin queue.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn admin(&mut self, place: Place, command: &Command, health: &Health, now_ms: u64) -> Result<Admin, Status> {
        let association = self.served(place)?;
        association.heard_ms = now_ms;
        if association.properties.csts & CSTS_RDY == 0 {
            return Err(COMMAND_SEQUENCE_ERROR);
        }
        association.controller.admin(command, health)
    }

    /// What an I/O command asks for.
    ///
    /// # Errors
    /// The status that it ends with.
    pub fn io(&mut self, place: Place, command: &Command) -> Result<Io, Status> {
        self.served(place)?.controller.io(command)
    }

    /// The controller of a connection, for what only it knows.
    pub fn controller(&mut self, place: Place) -> Option<&mut Controller> {
        self.association(place).ok().map(|association| &mut association.controller)
    }

    /// A connection has gone, and nothing of it is under way. The connections that are to be closed because of it.
    pub fn leave(&mut self, connection: u64, place: Option<Place>) -> Vec<u64> {
        self.leaving.remove(&connection);
        let Some(place) = place.filter(|place| self.is_alive(*place)) else { return Vec::new() };
        if place.qid == 0 {
            let close = self.close_io(place.controller);
            self.controllers.remove(&place.controller);
            return close;
        }
        if let Ok(association) = self.association(place) {
            association.queues.remove(&place.qid);
        }
        Vec::new()
    }

    /// Ends controllers whose timers have expired; the connections that are to be closed.
    pub fn expire(&mut self, now_ms: u64) -> Vec<u64> {
        let is_over = |association: &Association| association.deadline_ms().is_some_and(|deadline| deadline <= now_ms);
        let over: Vec<u16> = self.controllers.iter().filter(|(_, a)| is_over(a)).map(|(number, _)| *number).collect();
        let mut close = Vec::new();
        for controller in over {
            close.extend(self.close_io(controller));
            if let Some(association) = self.controllers.remove(&controller) {
                let connections = association.queues.into_values();
                let host = association.host;
                for connection in connections {
                    self.leaving.insert(connection, host.clone());
                    close.push(connection);
                }
            }
        }
        close
    }

    /// The connections of a host's controllers. One that has ended, and has not left, is for the transport to find: the
    /// host is not to be let in before it has left.
    #[must_use]
    pub fn connections_of(&self, data: &ConnectData) -> Vec<u64> {
        let is_its = |host: &Host| host.id == data.host_id && host.nqn == data.host;
        let its = self.controllers.values().filter(|association| is_its(&association.host));
        its.flat_map(|association| association.queues.values().copied()).collect()
    }

    /// When [`Target::expire`] is to be called next, if nothing is heard.
    #[must_use]
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.controllers.values().filter_map(Association::deadline_ms).min()
    }
}

/// Controllers are numbered below this; those above say that none is meant ("Connect Command", CNTLID).
const CNTLID_MAX: u16 = 0xFFEF;

impl Association {
    /// Property Get: bits 2:0 of ATTRIB are 0 for four bytes and 1 for eight.
    fn property(&self, attributes: u32, offset: u32) -> Result<u64, Status> {
        let (value, is_wide) = match u64::from(offset) {
            CAP => (over_fabric(QUEUE_ENTRIES_MAX), true),
            VS => (u64::from(VERSION), false),
            CC => (u64::from(self.properties.cc), false),
            CSTS => (u64::from(self.properties.csts), false),
            _ => return Err(Status::INVALID_FIELD),
        };
        if attributes & 0b111 == u32::from(is_wide) { Ok(value) } else { Err(Status::INVALID_FIELD) }
    }
}

impl Refused {
    /// A parameter is wrong: the offset of its field, in the data if `is_data` or else in the command (IPO, IATTR).
    fn parameter(is_data: bool, offset: u16) -> Refused {
        Refused { status: CONNECT_INVALID_PARAMETERS, result: u64::from(is_data) << 16 | u64::from(offset) }
    }
}
