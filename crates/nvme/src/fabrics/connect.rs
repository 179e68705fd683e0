//! The Connect command ("Connect Command"): makes a queue of a connection, and with an admin queue a controller.

use std::collections::BTreeSet;

use osier_device::Status;

use super::discovery::{DISCOVERY_NQN, Portal, page};
use super::{Association, CNTLID_MAX, Host, NQN_BYTES_MAX, Place, Properties, QUEUE_ENTRIES_MAX, Target};
use crate::command::Command;
use crate::controller::{Controller, Identity, Reach};
use crate::registers::CSTS_RDY;
use crate::status::{COMMAND_SEQUENCE_ERROR, CONNECT_BUSY, CONNECT_INCOMPATIBLE_FORMAT, CONNECT_INVALID_HOST};

/// Bytes of the command's data.
pub const CONNECT_BYTES: usize = 1024;

/// Where fields lie in the command, and in its data.
mod at {
    pub const QID: u16 = 42;
    pub const SQSIZE: u16 = 44;
    pub const CNTLID: u16 = 16;
    pub const SUBNQN: u16 = 256;
    pub const HOSTNQN: u16 = 512;
}
/// Bytes that a name has room for in the data.
const NAME_BYTES: usize = 256;
/// Bit 2 of CATTR: the host needs no SQHD.
const DISABLE_FLOW_CONTROL: u32 = 1 << 2;
/// ATR in the completion: the host has to authenticate the queue ("Connect Response", AUTHREQ).
const AUTHENTICATION_REQUESTED: u64 = 1 << 17;
/// CNTLID of a host that wants a controller made for it.
const DYNAMIC: u16 = 0xFFFF;

/// The command's data ("Connect Command – Data").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID.
    pub controller: u16,
    /// SUBNQN.
    pub subsystem: String,
    /// HOSTNQN.
    pub host: String,
}

/// A connection has become a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Which.
    pub place: Place,
    /// Commands that the queue holds.
    pub entries: u16,
    /// Whether the host wants to be told of the queue's head.
    pub has_flow_control: bool,
    /// Dwords 0 and 1 of the completion: the controller's number, and whether the queue is to be authenticated.
    pub result: u64,
}

/// Why it has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
}

impl From<Status> for Refused {
    fn from(status: Status) -> Refused {
        Refused { status, result: 0 }
    }
}

impl ConnectData {
    /// Reads the data.
    ///
    /// # Errors
    /// Which parameter is wrong.
    pub fn decode(data: &[u8; CONNECT_BYTES]) -> Result<ConnectData, Refused> {
        let name = |at: u16| {
            let from = usize::from(at);
            let field = &data[from..from + NAME_BYTES];
            let length = field.iter().position(|byte| *byte == 0).filter(|length| (1..=NQN_BYTES_MAX).contains(length));
            let text = length.and_then(|length| std::str::from_utf8(&field[..length]).ok());
            text.map(str::to_owned).ok_or(Refused::parameter(true, at))
        };
        Ok(ConnectData {
            host_id: *data.first_chunk().expect("the data are longer"),
            controller: u16::from_le_bytes([data[16], data[17]]),
            subsystem: name(at::SUBNQN)?,
            host: name(at::HOSTNQN)?,
        })
    }
}

impl Target {
    /// Connects a connection, which is none yet; `portal` is where its host has reached it.
    ///
    /// # Errors
    /// Why it is refused. After [`CONNECT_BUSY`] it may be tried again soon.
    pub fn connect(
        &mut self,
        connection: u64,
        command: &Command,
        data: &ConnectData,
        portal: &Portal,
        now_ms: u64,
    ) -> Result<Connected, Refused> {
        // RECFMT in bits 15:0 of dword 10, QID above; SQSIZE, from zero, in bits 15:0 of dword 11, CATTR above.
        let (format, qid) = (command.cdw[0] as u16, (command.cdw[0] >> 16) as u16);
        let (last_entry, attributes) = (command.cdw[1] as u16, command.cdw[1] >> 16);
        if format != 0 {
            return Err(CONNECT_INCOMPATIBLE_FORMAT.into());
        }
        // A host should ask for 32 entries of an admin queue at least; one that makes do with fewer is let.
        if !(1..QUEUE_ENTRIES_MAX).contains(&last_entry) {
            return Err(Refused::parameter(false, at::SQSIZE));
        }
        let host = Host { id: data.host_id, nqn: data.host.clone() };
        let has_to_prove = self.subsystem.hosts.is_some() && data.subsystem == self.subsystem.identity.subsystem;
        if has_to_prove && self.subsystem.hosts.as_ref().is_some_and(|hosts| hosts.of(&host.nqn).is_none()) {
            return Err(CONNECT_INVALID_HOST.into());
        }
        if self.leaving.values().any(|leaving| *leaving == host) {
            return Err(CONNECT_BUSY.into());
        }
        let controller = if qid == 0 {
            self.make_controller(connection, data, host, command.cdw[2], portal, now_ms)?
        } else {
            self.add_queue(connection, qid, data, &host)?
        };
        if let Some(association) = self.controllers.get_mut(&controller) {
            association.unproved.remove(&qid);
            association.unproved.extend(has_to_prove.then_some(qid));
        }
        Ok(Connected {
            place: Place { connection, controller, qid },
            entries: last_entry + 1,
            has_flow_control: attributes & DISABLE_FLOW_CONTROL == 0,
            result: u64::from(controller) | if has_to_prove { AUTHENTICATION_REQUESTED } else { 0 },
        })
    }

    fn make_controller(
        &mut self,
        connection: u64,
        data: &ConnectData,
        host: Host,
        keep_alive_ms: u32,
        portal: &Portal,
        now_ms: u64,
    ) -> Result<u16, Refused> {
        let is_discovery = data.subsystem == DISCOVERY_NQN;
        if !is_discovery && data.subsystem != self.subsystem.identity.subsystem {
            return Err(Refused::parameter(true, at::SUBNQN));
        }
        if data.controller != DYNAMIC {
            return Err(Refused::parameter(true, at::CNTLID));
        }
        if self.controllers.len() >= self.subsystem.controllers_max {
            return Err(CONNECT_BUSY.into());
        }
        let mut number = self.last;
        while self.controllers.contains_key(&number) || number == self.last {
            number = if number >= CNTLID_MAX { 1 } else { number + 1 };
        }
        self.last = number;
        let identity = Identity { controller: number, ..self.subsystem.identity.clone() };
        let mut controller = if is_discovery {
            let page = page(&self.subsystem.identity.subsystem, portal);
            let subsystem = DISCOVERY_NQN.to_owned();
            Controller::discovery(Identity { reach: Reach::Discovery, subsystem, ..identity }, page)
        } else {
            Controller::new(identity, self.subsystem.namespaces.clone())
        };
        controller.set_keep_alive(keep_alive_ms);
        let association = Association {
            controller,
            host,
            is_discovery,
            properties: Properties::default(),
            queues: [(0, connection)].into(),
            unproved: BTreeSet::new(),
            heard_ms: now_ms,
        };
        self.controllers.insert(number, association);
        Ok(number)
    }

    fn add_queue(&mut self, connection: u64, qid: u16, data: &ConnectData, host: &Host) -> Result<u16, Refused> {
        let association = self.controllers.get_mut(&data.controller);
        let association = association.ok_or(Refused::parameter(true, at::CNTLID))?;
        if association.host.id != host.id {
            return Err(Refused::parameter(true, 0));
        }
        if association.host.nqn != host.nqn {
            return Err(Refused::parameter(true, at::HOSTNQN));
        }
        if data.subsystem != self.subsystem.identity.subsystem || association.is_discovery {
            return Err(Refused::parameter(true, at::SUBNQN));
        }
        if qid > self.subsystem.identity.io_queues_max || association.queues.contains_key(&qid) {
            return Err(Refused::parameter(false, at::QID));
        }
        if association.properties.csts & CSTS_RDY == 0 {
            return Err(COMMAND_SEQUENCE_ERROR.into());
        }
        association.queues.insert(qid, connection);
        Ok(data.controller)
    }
}
