//! The bytes of one client's connection: between its socket and its session.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use osier_nvme::stream::Duplex;

use crate::sys::{self, Patience, Wait};

/// Parts of what is sent that are sent in one call.
const PARTS_SENT_MAX: usize = 128;

/// A connection's socket.
pub struct Line<'a> {
    socket: BorrowedFd<'a>,
}

impl<'a> Line<'a> {
    pub fn new(socket: BorrowedFd<'a>) -> Line<'a> {
        Line { socket }
    }

    /// Sends what there is room for; whether that was anything.
    pub fn send(&mut self, session: &mut impl Duplex) -> io::Result<bool> {
        let mut has_sent = false;
        while session.has_output() {
            let mut slices = [IoSlice::new(&[]); PARTS_SENT_MAX];
            let count = session.output(&mut slices);
            let Some(sent) = sys::send(self.socket, &slices[..count])? else { break };
            session.sent(sent);
            has_sent = true;
        }
        Ok(has_sent)
    }

    /// Receives what is there, as much as the session takes. False: the client sends no more.
    pub fn receive(&mut self, session: &mut impl Duplex, patience: Patience) -> io::Result<bool> {
        let mut space = session.space();
        let slices = if space[1].is_empty() { &mut space[..1] } else { &mut space[..] };
        let received = match sys::receive(self.socket, slices, patience) {
            Ok(None) => return Ok(true),
            Ok(Some(received)) => received,
            // A client that has gone is no error of the server.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => 0,
            Err(error) => return Err(error),
        };
        if received == 0 {
            session.input_ended();
        }
        session.filled(received);
        Ok(received > 0)
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

    /// Throws away what is there. False: nothing comes any more.
    pub fn discard(&self) -> bool {
        let mut bytes = [0; 4096];
        !matches!(
            sys::receive(self.socket, &mut [IoSliceMut::new(&mut bytes)], Patience::DoNotWait),
            Ok(Some(0)) | Err(_)
        )
    }

    /// Sends no more.
    pub fn shut_down(&self) {
        sys::shut_down(self.socket, Shutdown::Write);
    }
}

/// For how many milliseconds to wait for a deadline; `None` when it is over.
pub fn milliseconds_until(deadline: Instant) -> Option<u32> {
    let left = deadline.saturating_duration_since(Instant::now());
    (!left.is_zero()).then(|| left.as_millis() as u32 + 1)
}
