//! One connection: a thread that moves bytes between a socket, a session and a volume.
//!
//! While nothing is outstanding and nothing unsent, it waits in the call that receives; else it polls. So a client that
//! asks for one block after the other costs a receive and a send each, and one that is idle costs nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use osier_nvme::stream::Duplex;

use super::bytes::Bytes;
use super::lock::RangeLock;
use super::session::{Answer, End, Event, Limits, Refusal, Security, Session};
use crate::line::{Line, milliseconds_until};
use crate::sys::Patience;
use crate::tls::Tls;
use crate::volume::Export;

/// How long a client may take nothing of what is sent while the server waits for it to end.
const STUCK_MS_MAX: u32 = 5_000;

/// An export and what its connections share.
pub struct Served {
    pub export: Arc<dyn Export>,
    pub lock: Arc<RangeLock>,
}

/// How a connection is served.
pub struct Terms {
    pub limits: Limits,
    /// How long a client may negotiate.
    pub negotiation: Duration,
    /// How what is said is encrypted, if it has to be.
    pub tls: Option<Tls>,
    /// Set when the server ends.
    pub stops: Arc<AtomicBool>,
    /// Why the client is turned away, if it is.
    pub refusal: Option<Refusal>,
}

pub struct Connection<'a> {
    line: Line<'a>,
    session: Session,
    exports: &'a [Served],
    /// The export that was looked at last, and its volume.
    opened: Option<(String, Bytes)>,
    answers: Vec<(u32, Answer)>,
    terms: Terms,
    /// Until when the negotiation is to be over.
    deadline: Instant,
    /// What was said so far is to be sent, and then the encryption begins.
    starts_tls: bool,
    /// The client sends no more, or nobody listens to it any more.
    has_ended: bool,
}

/// How a connection came to its end.
#[derive(Debug)]
pub enum Outcome {
    Ended(End),
    /// The negotiation took too long.
    Overdue,
}

impl<'a> Connection<'a> {
    pub fn new(socket: &'a OwnedFd, exports: &'a [Served], terms: Terms) -> Connection<'a> {
        let names = exports.iter().map(|served| served.export.name().to_owned()).collect();
        let security = if terms.tls.is_some() { Security::Required } else { Security::None };
        let mut session = Session::new(names, terms.limits, security);
        if let Some(refusal) = terms.refusal.clone() {
            session.refuse(refusal);
        }
        let deadline = Instant::now() + terms.negotiation;
        Connection {
            line: Line::new(socket.as_fd()),
            session,
            exports,
            opened: None,
            answers: Vec::new(),
            terms,
            deadline,
            starts_tls: false,
            has_ended: false,
        }
    }

    /// Serves the client until it or the server ends.
    ///
    /// # Errors
    /// When the socket fails.
    pub fn serve(&mut self) -> io::Result<Outcome> {
        loop {
            if self.terms.stops.load(Ordering::Acquire) {
                self.session.refuse(Refusal::ShutDown);
            }
            self.work();
            match self.send() {
                // What was sent may have made room for what is staged, and no more bytes need come to say so.
                Ok(true) if self.session.has_staged() => continue,
                Ok(_) => {}
                Err(error) => {
                    // What is under way is finished all the same: it was taken.
                    self.session.output_ended();
                    tracing::debug!(%error, "a client took no more replies");
                }
            }
            if let Some(end) = self.session.end()
                && self.session.outstanding() == 0
                && !self.has_output()
            {
                self.line.shut_down();
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
            while let Some(event) = self.session.next_event() {
                match event {
                    Event::Open { name } => self.open(name),
                    Event::StartTls => self.starts_tls = true,
                    Event::Request(request) => {
                        let Some((_, bytes)) = &mut self.opened else { panic!("a request without an export") };
                        bytes.begin(request, self.session.pool());
                    }
                }
            }
            let Some((_, bytes)) = &mut self.opened else { return };
            bytes.advance(self.session.pool(), &mut self.answers);
            if self.answers.is_empty() {
                return;
            }
            for (token, answer) in self.answers.drain(..) {
                self.session.answer(token, answer);
            }
        }
    }

    fn open(&mut self, name: String) {
        if self.opened.as_ref().is_none_or(|(opened, _)| *opened != name) {
            self.opened = None;
            match self.open_volume(&name) {
                Ok(bytes) => self.opened = Some((name, bytes)),
                Err(text) => return self.session.opened(Err(text)),
            }
        }
        let info = self.opened.as_ref().map(|(_, bytes)| bytes.info());
        self.session.opened(info.ok_or_else(String::new));
    }

    fn open_volume(&self, name: &str) -> Result<Bytes, String> {
        let Some(served) = self.exports.iter().find(|served| served.export.name() == name) else {
            return Err(format!("there is no export {name:?} any more"));
        };
        let volume = served.export.open_for_client()?;
        Bytes::new(volume, &served.lock).map_err(|error| format!("cannot open export {name:?}: {error}"))
    }

    /// Sends what there is room for; whether that was anything.
    fn send(&mut self) -> io::Result<bool> {
        let has_sent = self.line.send(&mut self.session)?;
        if self.starts_tls
            && !self.session.has_output()
            && let Some(tls) = &self.terms.tls
        {
            self.starts_tls = false;
            self.line.secure(Arc::clone(&tls.config))?;
            self.session.secured();
        }
        Ok(has_sent)
    }

    fn has_output(&self) -> bool {
        self.session.has_output() || self.line.has_output()
    }

    /// Waits until there is something to do, and receives what is there. False: it took too long.
    fn await_more(&mut self) -> io::Result<bool> {
        let is_transmitting = self.session.is_transmitting();
        let may_receive = !self.has_ended && !self.session.space()[0].is_empty();
        if may_receive && self.line.has_input() {
            return self.receive_if(true);
        }
        let has_output = self.has_output();
        let is_busy = self.opened.as_ref().is_some_and(|(_, bytes)| bytes.is_busy());
        if is_transmitting && may_receive && !has_output && !is_busy {
            self.receive(Patience::Wait)?;
            return Ok(true);
        }
        if let Some((_, bytes)) = &mut self.opened
            && is_busy
            && !bytes.arm()
        {
            return self.receive_if(may_receive);
        }
        let milliseconds = if self.has_ended || self.terms.stops.load(Ordering::Acquire) {
            has_output.then_some(STUCK_MS_MAX)
        } else if is_transmitting {
            None
        } else {
            let Some(left) = milliseconds_until(self.deadline) else { return Ok(false) };
            Some(left)
        };
        let began = Instant::now();
        self.wait(may_receive, has_output, milliseconds)?;
        let is_stuck = milliseconds.is_some_and(|limit| began.elapsed() >= Duration::from_millis(limit.into()));
        if is_stuck && is_transmitting && !is_busy {
            self.session.output_ended();
        }
        self.receive_if(may_receive)
    }

    fn wait(&self, to_read: bool, to_write: bool, milliseconds: Option<u32>) -> io::Result<()> {
        let mut events = Vec::with_capacity(2);
        if let Some((_, bytes)) = &self.opened
            && bytes.is_busy()
        {
            events.push(bytes.event());
            events.extend(bytes.turn_event());
        }
        self.line.wait(to_read, to_write, &events, milliseconds)
    }

    fn receive_if(&mut self, may_receive: bool) -> io::Result<bool> {
        if may_receive {
            self.receive(Patience::DoNotWait)?;
        }
        Ok(true)
    }

    fn receive(&mut self, patience: Patience) -> io::Result<()> {
        match self.line.receive(&mut self.session, patience) {
            Ok(more) => self.has_ended |= !more,
            Err(error) => {
                // It is to hear why, where that is for the server to say.
                self.session.output_ended();
                self.line.linger(&mut self.session);
                return Err(error);
            }
        }
        Ok(())
    }
}
