//! The bytes of one client's connection: between its socket and its session, encrypted once that was agreed on.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_nvme::stream::Duplex;
use rustls::{ServerConfig, ServerConnection};

use crate::sys::{self, Patience, Wait};

/// Parts of what is sent that are sent in one call.
const PARTS_SENT_MAX: usize = 128;
/// Encrypted bytes that are received in one call.
const SEALED_BYTES_MAX: usize = 64 << 10;

/// How long a client may take to close a connection that was ended.
const LINGER_MAX: Duration = Duration::from_secs(1);

/// A connection.
pub struct Line<'a> {
    socket: BorrowedFd<'a>,
    tls: Option<Tls>,
}

impl<'a> Line<'a> {
    pub fn new(socket: BorrowedFd<'a>) -> Line<'a> {
        Line { socket, tls: None }
    }

    /// From now on everything is encrypted; the client shakes hands first. All that was said before is sent.
    pub fn secure(&mut self, config: Arc<ServerConfig>) -> io::Result<()> {
        let connection = ServerConnection::new(config).map_err(io::Error::other)?;
        let sealed = vec![0; SEALED_BYTES_MAX];
        self.tls = Some(Tls { connection: Box::new(connection), sealed, from: 0, to: 0, plain: 0, has_closed: false });
        Ok(())
    }

    /// Sends what there is room for; whether that was anything.
    pub fn send(&mut self, session: &mut impl Duplex) -> io::Result<bool> {
        let mut has_sent = self.tls.as_mut().map_or(Ok(false), |tls| tls.flush(self.socket))?;
        while session.has_output() {
            let mut slices = [IoSlice::new(&[]); PARTS_SENT_MAX];
            let count = session.output(&mut slices);
            let sent = match &mut self.tls {
                None => sys::send(self.socket, &slices[..count])?,
                // What is encrypted and not sent is bounded there: no byte is taken then.
                Some(tls) => Some(tls.connection.writer().write_vectored(&slices[..count])?).filter(|taken| *taken > 0),
            };
            let Some(sent) = sent else { break };
            session.sent(sent);
            has_sent = true;
            if let Some(tls) = &mut self.tls {
                tls.flush(self.socket)?;
            }
        }
        Ok(has_sent)
    }

    /// Receives what is there, as much as the session takes. False: the client sends no more.
    pub fn receive(&mut self, session: &mut impl Duplex, patience: Patience) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            return tls.receive(self.socket, session, patience);
        }
        let mut space = session.space();
        let slices = if space[1].is_empty() { &mut space[..1] } else { &mut space[..] };
        let Some(received) = receive(self.socket, slices, patience)? else { return Ok(true) };
        if received == 0 {
            session.input_ended();
        }
        session.filled(received);
        Ok(received > 0)
    }

    /// Whether bytes are here that the session had no room for: its socket does not say so.
    pub fn has_input(&self) -> bool {
        self.tls.as_ref().is_some_and(Tls::has_input)
    }

    /// Whether something is to be sent that the session has given.
    pub fn has_output(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.connection.wants_write())
    }

    /// Waits until the socket is ready for what is wanted of it or one of `events` is readable, for `milliseconds` at
    /// most.
    pub fn wait(
        &self,
        to_read: bool,
        to_write: bool,
        events: &[BorrowedFd<'_>],
        milliseconds: Option<u32>,
    ) -> io::Result<()> {
        let mut waits = Vec::with_capacity(1 + events.len());
        // A socket whose client has gone is always ready, so one that nothing is wanted of is left out.
        if to_read || to_write {
            waits.push(Wait { fd: self.socket, to_read, to_write });
        }
        waits.extend(events.iter().map(|&fd| Wait { fd, to_read: true, to_write: false }));
        sys::wait(&waits, milliseconds)
    }

    /// Gives the client a moment to take what was said last and to close first: closing while bytes of the client's are
    /// not read would lose it.
    pub fn linger(&mut self, session: &mut impl Duplex) {
        let until = Instant::now() + LINGER_MAX;
        while let Some(left) = milliseconds_until(until) {
            if self.send(session).is_err() {
                return;
            }
            let has_output = session.has_output() || self.has_output();
            if !has_output {
                sys::shut_down(self.socket, Shutdown::Write);
            }
            let mut bytes = [0; 4096];
            let is_over = self.wait(true, has_output, &[], Some(left)).is_err()
                || matches!(
                    receive(self.socket, &mut [IoSliceMut::new(&mut bytes)], Patience::DoNotWait),
                    Ok(Some(0)) | Err(_)
                );
            if is_over {
                return;
            }
        }
    }

    /// Sends no more.
    pub fn shut_down(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.connection.send_close_notify();
            // A client that is not there any more to hear of it needs not.
            let _ = tls.flush(self.socket);
        }
        sys::shut_down(self.socket, Shutdown::Write);
    }
}

/// Receives what is there. `None`: nothing, yet. Nothing at all: the client sends no more, or has gone.
fn receive(socket: BorrowedFd<'_>, slices: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<Option<usize>> {
    match sys::receive(socket, slices, patience) {
        // A client that has gone is no error of the server.
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(Some(0)),
        received => received,
    }
}

/// For how many milliseconds to wait for a deadline; `None` when it is over.
pub fn milliseconds_until(deadline: Instant) -> Option<u32> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.as_millis() as u32 + 1)
}

/// The encryption of a connection.
struct Tls {
    connection: Box<ServerConnection>,
    /// What was received and is not decrypted: the bytes from `from` to `to`.
    sealed: Vec<u8>,
    from: usize,
    to: usize,
    /// Bytes that are decrypted and that the session does not have yet.
    plain: usize,
    /// The client has said that nothing comes behind what is decrypted.
    has_closed: bool,
}

impl Tls {
    fn has_input(&self) -> bool {
        self.from < self.to || self.plain > 0
    }

    fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        let mut has_sent = false;
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut Sender(socket)) {
                Ok(0) => break,
                Ok(_) => has_sent = true,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(has_sent)
    }

    fn receive(&mut self, socket: BorrowedFd<'_>, session: &mut impl Duplex, patience: Patience) -> io::Result<bool> {
        if !self.has_input() {
            let received = receive(socket, &mut [IoSliceMut::new(&mut self.sealed)], patience)?;
            let Some(received) = received else { return Ok(true) };
            if received == 0 {
                session.input_ended();
                return Ok(false);
            }
            (self.from, self.to) = (0, received);
        }
        while self.hand_on(session)? {
            if self.has_closed {
                session.input_ended();
                return Ok(false);
            }
            if self.from == self.to {
                break;
            }
            let mut sealed = &self.sealed[self.from..self.to];
            self.from += self.connection.read_tls(&mut sealed)?;
            match self.connection.process_new_packets() {
                Ok(state) => {
                    self.plain = state.plaintext_bytes_to_read();
                    self.has_closed = state.peer_has_closed();
                }
                Err(error) => {
                    // The client is to hear why, if it still listens.
                    let _ = self.flush(socket);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
        Ok(true)
    }

    /// Gives the session what is decrypted; whether it took all.
    fn hand_on(&mut self, session: &mut impl Duplex) -> io::Result<bool> {
        while self.plain > 0 {
            let mut filled = 0;
            for slice in &mut session.space() {
                let count = slice.len().min(self.plain - filled);
                self.connection.reader().read_exact(&mut slice[..count])?;
                filled += count;
            }
            if filled == 0 {
                return Ok(false);
            }
            session.filled(filled);
            self.plain -= filled;
        }
        Ok(true)
    }
}

/// A socket as something to write to, without waiting.
struct Sender<'a>(BorrowedFd<'a>);

impl Write for Sender<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        sys::send(self.0, slices)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
