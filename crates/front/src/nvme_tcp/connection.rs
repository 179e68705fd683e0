//! One connection: a thread that moves bytes between a socket, a session and a volume.
//!
//! While nothing is outstanding and nothing unsent, a queue for I/O waits in the call that receives; else the thread
//! polls. An admin queue's polls until its controller would expire, too.
//!
//! Whatever ends a connection, its volume goes before the target hears that the connection has left, and only then may
//! the same host connect anew: so nothing that it had under way here overtakes what it sends next.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use osier_device::Status;
use osier_nvme::fabrics::{Answer, CONNECT_BYTES, Change, ConnectData, Connected, Place, Portal, Refused};
use osier_nvme::status::{
    ABORT_REQUESTED, COMMAND_SEQUENCE_ERROR, CONNECT_BUSY, INVALID_NAMESPACE, INVALID_OPCODE, SGL_LENGTH_INVALID,
};
use osier_nvme::stream::Duplex;
use osier_nvme::tcp::{End, Limits, Request, Response, Session};
use osier_nvme::{Admin, BlockRange, Command, Controller, Direction, Io, fabrics_command, ranges};

use super::blocks::{Blocks, Finished, Owner, PIECE_BYTES};
use super::server::Shared;
use crate::line::{Line, milliseconds_until};
use crate::listen::Visitor;
use crate::sys::Patience;

/// How long a host that reconnects waits for what it had before to leave.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// Whether a command's data are ranges.
fn is_list(io: &Io) -> bool {
    matches!(io, Io::Deallocate { .. } | Io::Hint { .. })
}

/// How a connection came to its end.
#[derive(Debug)]
pub enum Outcome {
    Ended(End),
    /// It took too long to become a queue.
    Overdue,
    /// The device has gone.
    Lost,
}

pub struct Connection<'a> {
    shared: &'a Shared,
    visitor: &'a Visitor<'a>,
    line: Line<'a>,
    session: Session,
    place: Option<Place>,
    blocks: Option<Blocks>,
    finished: Vec<Finished>,
    /// Until when it is to be a queue.
    deadline: Instant,
    is_lost: bool,
    /// The host has asked for a shutdown while the one before goes on.
    shuts_down_again: bool,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.blocks = None;
        let close = self.shared.state().target.leave(self.visitor.number, self.place);
        self.shared.has_left();
        self.visitor.hang_up(&close);
    }
}

impl<'a> Connection<'a> {
    pub fn new(shared: &'a Shared, visitor: &'a Visitor<'a>) -> Connection<'a> {
        Connection {
            shared,
            visitor,
            line: Line::new(visitor.socket.as_fd()),
            session: Session::new(Limits { piece_bytes: PIECE_BYTES, ..shared.config.limits }),
            place: None,
            blocks: None,
            finished: Vec::new(),
            deadline: Instant::now() + shared.config.negotiation,
            is_lost: false,
            shuts_down_again: false,
        }
    }

    /// Serves the host until it or the server ends.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn serve(&mut self) -> io::Result<Outcome> {
        loop {
            self.work();
            match self.line.send(&mut self.session) {
                // What was sent may have made room for what waits, and no more bytes need come to say so.
                Ok(true) if self.session.has_more() => continue,
                Ok(_) => {}
                Err(error) => {
                    self.session.output_ended();
                    tracing::debug!(%error, "a host took no more");
                }
            }
            if self.is_lost {
                return Ok(Outcome::Lost);
            }
            if let Some(end) = self.session.end() {
                self.linger();
                return Ok(Outcome::Ended(end));
            }
            if !self.await_more()? {
                return Ok(Outcome::Overdue);
            }
        }
    }

    /// Does what the bytes that are here ask for, and what has ended.
    fn work(&mut self) {
        loop {
            while let Some(request) = self.session.next_request() {
                let command = request.command;
                if let Err(refused) = self.begin(request) {
                    self.respond(&command, Response::of(refused.status, refused.result));
                }
            }
            let Some(blocks) = &mut self.blocks else { return };
            blocks.advance(self.session.pool(), &mut self.finished);
            if blocks.is_lost() {
                self.is_lost = true;
                self.session.close();
            }
            if self.finished.is_empty() {
                return;
            }
            for Finished { owner, command, response } in std::mem::take(&mut self.finished) {
                match owner {
                    Owner::Command(_) => self.respond(&command, response),
                    Owner::ShutDown => self.has_shut_down(response.status),
                }
            }
        }
    }

    fn respond(&mut self, command: &Command, response: Response) {
        if let Some(place) = self.place {
            let mut state = self.shared.state();
            if !response.status.is_success() {
                let controller = state.target.controller(place);
                controller.into_iter().for_each(|it| it.note_failure(place.qid, command, response.status));
            } else if place.qid > 0 {
                let bytes = (u128::from(command.cdw[2] & 0xFFFF) + 1) * u128::from(osier_nvme::BLOCK_BYTES);
                let health = &mut state.health;
                match command.opcode {
                    osier_nvme::nvm::READ => {
                        (health.reads, health.read_bytes) = (health.reads + 1, health.read_bytes + bytes)
                    }
                    osier_nvme::nvm::WRITE => {
                        (health.writes, health.written_bytes) = (health.writes + 1, health.written_bytes + bytes);
                    }
                    _ => {}
                }
            }
        }
        self.session.respond(command.cid, response);
    }

    /// Begins a command.
    fn begin(&mut self, request: Request) -> Result<(), Refused> {
        let command = &request.command;
        let Some(place) = self.place else { return self.connect(&request) };
        if command.fabrics_type().is_some() {
            return Ok(self.fabrics(place, command)?);
        }
        if place.qid == 0 { Ok(self.admin(place, &request)?) } else { Ok(self.io(place, request)?) }
    }

    fn connect(&mut self, request: &Request) -> Result<(), Refused> {
        let command = &request.command;
        if command.fabrics_type() != Some(fabrics_command::CONNECT) {
            return Err(COMMAND_SEQUENCE_ERROR.into());
        }
        let data: Vec<u8> = request.data.concat();
        let data: &[u8; CONNECT_BYTES] = data.as_slice().try_into().map_err(|_| SGL_LENGTH_INVALID)?;
        let data = ConnectData::decode(data)?;
        if self.visitor.is_too_many || self.visitor.stops.load(Ordering::Acquire) {
            return Err(CONNECT_BUSY.into());
        }
        let portal = self.portal().map_err(|error| {
            tracing::error!(%error, "cannot tell where a host has connected to");
            Status::INTERNAL_ERROR
        })?;
        let connected = self.take_place(command, &data, &portal)?;
        self.place = Some(connected.place);
        self.session.connected(connected.entries, connected.has_flow_control);
        if connected.place.qid > 0 {
            // The host may come again when the device is there, or has room for one more.
            if let Err(why) = self.open() {
                tracing::warn!(client = self.visitor.number, %why, "a queue has no device");
                self.session.respond(command.cid, Response::of(CONNECT_BUSY, 0));
                self.session.close();
                return Ok(());
            }
        }
        self.session.respond(command.cid, Response::of(Status::SUCCESS, connected.result));
        Ok(())
    }

    /// Connects, once what the host had before has left.
    fn take_place(&self, command: &Command, data: &ConnectData, portal: &Portal) -> Result<Connected, Refused> {
        let until = Instant::now() + LEAVING_MAX;
        let mut state = self.shared.state();
        loop {
            // A thread whose host has closed its connection may not have noticed yet.
            let is_here = self.visitor.has_hung_up(&state.target.connections_of(data));
            if is_here && Instant::now() < until {
                state = self.shared.await_leaving(state, until.saturating_duration_since(Instant::now()));
                continue;
            }
            if is_here {
                return Err(CONNECT_BUSY.into());
            }
            let now_ms = self.shared.now_ms();
            match state.target.connect(self.visitor.number, command, data, portal, now_ms) {
                Err(refused) if refused.status == CONNECT_BUSY && Instant::now() < until => {
                    state = self.shared.await_leaving(state, until.saturating_duration_since(Instant::now()));
                }
                ended => return ended,
            }
        }
    }

    /// Where the host has reached this.
    fn portal(&self) -> io::Result<Portal> {
        let address: SocketAddr = TcpStream::from(self.visitor.socket.try_clone()?).local_addr()?;
        Ok(Portal { address: address.ip().to_string(), is_ipv6: address.is_ipv6(), port: address.port() })
    }

    /// Opens the volume, if it is not.
    fn open(&mut self) -> Result<&mut Blocks, String> {
        if self.blocks.is_none() {
            self.blocks = Some(Blocks::new(self.shared.open()?));
        }
        self.blocks.as_mut().ok_or_else(String::new)
    }

    fn fabrics(&mut self, place: Place, command: &Command) -> Result<(), Status> {
        let now_ms = self.shared.now_ms();
        let answer = self.shared.state().target.fabrics(place, command, now_ms)?;
        let (result, change) = match answer {
            Answer::Done { result, change } => (result, change),
            Answer::Disconnected => {
                self.session.respond(command.cid, Response::of(Status::SUCCESS, 0));
                self.session.close();
                return Ok(());
            }
        };
        self.session.respond(command.cid, Response::of(Status::SUCCESS, result));
        match change {
            Change::None => {}
            Change::Reset { close, events } => {
                self.visitor.hang_up(&close);
                for cid in events {
                    self.session.respond(cid, Response::of(ABORT_REQUESTED, 0));
                }
            }
            Change::ShutDown => self.shut_down(),
        }
        Ok(())
    }

    /// Makes all persistent, for a controller that shuts down.
    fn shut_down(&mut self) {
        if let Err(why) = self.open() {
            // The host sees that it is not shut down, and goes when it has waited for long enough.
            tracing::warn!(%why, "a controller cannot be shut down: the device cannot be reached");
            return;
        }
        let Some(blocks) = &mut self.blocks else { return };
        if blocks.has(Owner::ShutDown) {
            self.shuts_down_again = true;
            return;
        }
        let none = Command::new(osier_nvme::nvm::FLUSH, 1);
        blocks.begin(Owner::ShutDown, none, &Io::Flush, Vec::new(), Vec::new(), self.session.pool());
    }

    fn has_shut_down(&mut self, status: Status) {
        if std::mem::take(&mut self.shuts_down_again) {
            self.shut_down();
        } else if status.is_success()
            && let Some(place) = self.place
        {
            self.shared.state().target.shut_down(place);
        }
    }

    fn admin(&mut self, place: Place, request: &Request) -> Result<(), Status> {
        let command = &request.command;
        let (direction, bytes) = Controller::data(command)?;
        if direction == Direction::FromController && request.wanted as u64 != bytes {
            return Err(SGL_LENGTH_INVALID);
        }
        let now_ms = self.shared.now_ms();
        let outcome = {
            let mut state = self.shared.state();
            let health = state.health.clone();
            state.target.admin(place, command, &health, now_ms)?
        };
        match outcome {
            Admin::Done { result, data } => {
                let data = if data.is_empty() { Vec::new() } else { vec![data] };
                let result = u64::from(result);
                self.session.respond(command.cid, Response { status: Status::SUCCESS, result, data });
            }
            Admin::Held => {}
            Admin::Queue | Admin::Allocation(_) => return Err(INVALID_OPCODE),
            Admin::Abort { sqid, cid } => self.abort(place, command.cid, (sqid, cid)),
            Admin::Format { nsid } => self.format(place, *command, nsid)?,
        }
        self.tell_events(place);
        Ok(())
    }

    /// What is under way ends soon by itself: bit 0 of the result says that it was not aborted.
    fn abort(&mut self, place: Place, cid: u16, (sqid, aborted): (u16, u16)) {
        let mut state = self.shared.state();
        let controller = state.target.controller(place);
        let was_held = sqid == 0 && controller.is_some_and(|controller| controller.abort_event(aborted));
        drop(state);
        if was_held {
            self.session.respond(aborted, Response::of(ABORT_REQUESTED, 0));
        }
        self.session.respond(cid, Response::of(Status::SUCCESS, u64::from(!was_held)));
    }

    fn format(&mut self, place: Place, command: Command, nsid: u32) -> Result<(), Status> {
        let blocks = {
            let mut state = self.shared.state();
            let controller = state.target.controller(place);
            controller.and_then(|controller| controller.namespace(nsid)).map_or(0, |namespace| namespace.blocks)
        };
        self.open().map_err(|why| {
            tracing::warn!(%why, "a namespace cannot be formatted: the device cannot be reached");
            Status::NAMESPACE_NOT_READY
        })?;
        let Some(opened) = &mut self.blocks else { return Err(Status::NAMESPACE_NOT_READY) };
        let all = vec![BlockRange { slba: 0, blocks }];
        let io = Io::Deallocate { ranges: 1 };
        opened.begin(Owner::Command(command.cid), command, &io, Vec::new(), all, self.session.pool());
        Ok(())
    }

    fn tell_events(&mut self, place: Place) {
        loop {
            let event = self.shared.state().target.controller(place).and_then(Controller::event);
            let Some((held, result)) = event else { return };
            self.session.respond(held.cid, Response::of(Status::SUCCESS, u64::from(result)));
        }
    }

    fn io(&mut self, place: Place, request: Request) -> Result<(), Status> {
        let Request { command, data, wanted } = request;
        let mut listed = Vec::new();
        let io = {
            let mut state = self.shared.state();
            let io = state.target.io(place, &command)?;
            let given = data.iter().map(Vec::len).sum::<usize>() as u64;
            let fits = match io.data() {
                (Direction::None, _) => true,
                // Linux gives room for all ranges that there can be, whatever the command says that there are.
                (Direction::ToController, bytes) if is_list(&io) => given >= bytes,
                (Direction::ToController, bytes) => given == bytes,
                (Direction::FromController, bytes) => wanted as u64 == bytes,
            };
            if !fits {
                return Err(SGL_LENGTH_INVALID);
            }
            if is_list(&io) {
                let controller = state.target.controller(place);
                let namespace = controller.and_then(|controller| controller.namespace(command.nsid));
                let list = &data.concat()[..io.data().1 as usize];
                listed = ranges(list, namespace.ok_or(INVALID_NAMESPACE)?)?;
            }
            io
        };
        let Some(blocks) = &mut self.blocks else { return Err(Status::NAMESPACE_NOT_READY) };
        blocks.begin(Owner::Command(command.cid), command, &io, data, listed, self.session.pool());
        Ok(())
    }

    /// Waits until there is something to do, and receives what is there. False: it took too long.
    fn await_more(&mut self) -> io::Result<bool> {
        let may_receive = !self.session.space()[0].is_empty();
        let has_output = self.session.has_output();
        let is_busy = self.blocks.as_ref().is_some_and(Blocks::is_busy);
        let is_io = self.place.is_some_and(|place| place.qid > 0);
        if is_io && may_receive && !has_output && !is_busy {
            self.line.receive(&mut self.session, Patience::Wait)?;
            return Ok(true);
        }
        let has_ended = is_busy && self.blocks.as_mut().is_some_and(|blocks| !blocks.arm());
        if !has_ended {
            let milliseconds = match self.place {
                None => {
                    let Some(left) = milliseconds_until(self.deadline) else { return Ok(false) };
                    Some(left)
                }
                Some(place) if place.qid == 0 => self.expire(),
                Some(_) => None,
            };
            let busy = self.blocks.as_ref().filter(|_| is_busy);
            let events: Vec<_> = busy.map(Blocks::event).into_iter().collect();
            self.line.wait(may_receive, has_output, &events, milliseconds)?;
        }
        if may_receive {
            self.line.receive(&mut self.session, Patience::DoNotWait)?;
        }
        Ok(true)
    }

    /// Ends controllers whose time is over; when to look again, in milliseconds.
    fn expire(&self) -> Option<u32> {
        let now_ms = self.shared.now_ms();
        let (close, next) = {
            let target = &mut self.shared.state().target;
            (target.expire(now_ms), target.next_expiry_ms())
        };
        if !close.is_empty() {
            tracing::warn!(connections = close.len(), "nothing was heard of a host for as long as it had said");
            self.visitor.hang_up(&close);
        }
        next.map(|next| u32::try_from(next.saturating_sub(now_ms)).unwrap_or(u32::MAX).saturating_add(1))
    }

    /// What was said last is lost if the connection is closed while bytes of the host's are not read; so it gets a
    /// moment to close first ("Transport Connection Termination").
    fn linger(&mut self) {
        // Whatever of the host's was under way is not to go on meanwhile.
        self.blocks = None;
        if !matches!(self.session.end(), Some(End::Violation(_) | End::Closed)) {
            return;
        }
        self.line.linger(&mut self.session);
    }
}
