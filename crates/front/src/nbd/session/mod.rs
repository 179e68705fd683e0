//! One connection as a state machine without input or output: bytes in, in whatever pieces, requests out; answers in,
//! bytes out.
//!
//! ```text
//! ClientFlags ─► Options ─► Opening ─► Transmission
//!                 ▲ │ ▲        │ NBD_OPT_INFO, or no such export
//!                 │ │ └────────┘
//!                 │ ▼ NBD_OPT_STARTTLS
//!               Securing
//! ```
//!
//! Invariants:
//! - no input panics; what breaks the protocol ends the session, what is merely wrong is answered with an error, and
//!   the place in the stream is kept;
//! - every request that was taken is answered once, and nothing else is;
//! - where TLS is to be, nothing is done but what begins it before it is there, and no byte from before it is taken for
//!   one from behind it;
//! - what is buffered is bounded by [`Limits`]: a session that has enough takes no more bytes until something is sent
//!   or answered.

mod options;
mod transmission;

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use super::planted::{self, Bug};
use super::wire::{self, Errno, OptionHeader};
use crate::volume::BLOCK_BYTES;
use options::{Negotiation, Opening};
use osier_nvme::stream::{Duplex, Input, Outbox, Part, Pool};
use transmission::Transmission;
pub use transmission::{Answer, Command, Failure, Payload, Request};

/// What a session keeps of what clients send. All of it is given back when it is answered and sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that are read ahead of being understood.
    pub staging_bytes: usize,
    /// Data of one option; a longer one is skipped and answered with NBD_REP_ERR_TOO_BIG.
    pub option_bytes_max: u32,
    /// Bytes of one read, write or cache request; a longer one is answered with an error.
    pub request_bytes_max: u32,
    /// Requests that are not answered yet.
    pub outstanding_max: usize,
    /// Bytes of requests that are not answered, and of replies that are not sent.
    pub buffered_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            staging_bytes: 256 << 10,
            option_bytes_max: 32 << 10,
            // "Block size constraints": less than that is never to be refused.
            request_bytes_max: 32 << 20,
            outstanding_max: 512,
            buffered_bytes_max: 64 << 20,
        }
    }
}

impl Limits {
    fn check(&self) {
        assert!(self.staging_bytes >= self.option_bytes_max as usize + OptionHeader::BYTES);
        assert!(self.staging_bytes >= 2 * wire::STRING_BYTES_MAX);
        assert!(self.request_bytes_max as usize >= BLOCK_BYTES && self.request_bytes_max <= 1 << 30);
        assert!(self.outstanding_max > 0 && self.buffered_bytes_max > 0);
    }
}

/// What an export is, as clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// Its size.
    pub blocks: u64,
    /// Whether writes are refused.
    pub is_read_only: bool,
    /// Blocks of the buffers in which what is written is handed on.
    pub piece_blocks: u64,
}

/// What a session asks of its owner.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Look at an export; to be answered with [`Session::opened`].
    Open {
        /// One of those the session was made with.
        name: String,
    },
    /// Do it; to be answered with [`Session::answer`].
    Request(Request),
    /// Encrypt what follows, once everything is sent; to be answered with [`Session::secured`].
    StartTls,
}

/// Whether what is said is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Security {
    /// There is no TLS here.
    None,
    /// It has to be begun before anything else ("Security", FORCEDTLS).
    Required,
    /// Everything is encrypted.
    Secured,
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The client said so.
    Disconnected,
    /// The client closed the connection without saying so.
    HungUp,
    /// The client was refused by an option that knows no errors.
    Refused,
    /// The client broke the protocol.
    Violation(&'static str),
}

/// Why a client is turned away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// For what is said here; it may come again.
    Policy(String),
    /// The server ends.
    ShutDown,
}

impl Refusal {
    fn reply(&self) -> (u32, &str) {
        match self {
            Refusal::Policy(text) => (wire::reply::ERR_POLICY, text),
            Refusal::ShutDown => (wire::reply::ERR_SHUTDOWN, "the server is ending"),
        }
    }
}

enum Phase {
    ClientFlags,
    Options,
    Securing,
    Opening(Opening),
    Transmission(Transmission),
}

/// What goes in and out.
struct Stream {
    limits: Limits,
    input: Input,
    out: Outbox,
    /// What answers a message whose bytes are being skipped. A client may be lost that is answered while it sends.
    postponed: Option<Part>,
    pool: Pool,
}

/// One connection.
pub struct Session {
    phase: Phase,
    stream: Stream,
    negotiation: Negotiation,
    security: Security,
    refusal: Option<Refusal>,
    end: Option<End>,
}

impl Session {
    /// A session that has greeted the client, and is not encrypted yet. The first of `exports` is the default one.
    ///
    /// # Panics
    /// When the limits contradict each other.
    #[must_use]
    pub fn new(exports: Arc<[String]>, limits: Limits, security: Security) -> Session {
        limits.check();
        let mut greeting = Vec::new();
        wire::greeting(&mut greeting);
        let mut out = Outbox::default();
        out.message(greeting);
        Session {
            phase: Phase::ClientFlags,
            stream: Stream {
                limits,
                input: Input::new(limits.staging_bytes),
                out,
                postponed: None,
                pool: Pool::default(),
            },
            negotiation: Negotiation::new(exports),
            security,
            refusal: None,
            end: None,
        }
    }

    /// From now on options and requests are refused.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
    }

    /// What is to be done next, as far as the bytes reach. `None`: nothing, until bytes come or something is answered
    /// or sent.
    pub fn next_event(&mut self) -> Option<Event> {
        while self.end.is_none() {
            self.stream.input.skip();
            if self.stream.input.is_skipping() && !planted::has(Bug::AnswerEarly) {
                return None;
            }
            if let Some(part) = self.stream.postponed.take() {
                self.stream.out.push(part);
            }
            let step = match &mut self.phase {
                Phase::ClientFlags => self.client_flags(),
                Phase::Options => self.next_option(),
                Phase::Securing | Phase::Opening(_) => Step::Blocked,
                Phase::Transmission(transmission) => transmission.step(&mut self.stream, self.refusal.as_ref()),
            };
            match step {
                Step::Again => {}
                Step::Blocked => return None,
                Step::Event(event) => return Some(event),
                Step::End(end) => self.end = Some(end),
            }
        }
        None
    }

    /// Whatever comes from now on is encrypted, and so is what is to be sent.
    ///
    /// # Panics
    /// When that was not asked for, or something is not sent.
    pub fn secured(&mut self) {
        assert!(matches!(self.phase, Phase::Securing) && self.stream.out.is_empty());
        (self.phase, self.security) = (Phase::Options, Security::Secured);
    }

    /// A request was done. One that is not known (twice answered) is a bug of the caller.
    ///
    /// # Panics
    /// When there is no such request.
    pub fn answer(&mut self, token: u32, answer: Answer) {
        let Phase::Transmission(transmission) = &mut self.phase else { panic!("nothing was asked for") };
        transmission.answer(&mut self.stream, token, answer);
    }

    /// Requests that are not answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        match &self.phase {
            Phase::Transmission(transmission) => transmission.outstanding(),
            _ => 0,
        }
    }

    /// Whether the client is past the options.
    #[must_use]
    pub fn is_transmitting(&self) -> bool {
        matches!(self.phase, Phase::Transmission(_))
    }

    /// Whether bytes are here that are not understood yet.
    #[must_use]
    pub fn has_staged(&self) -> bool {
        self.end.is_none() && !self.stream.input.is_empty()
    }

    /// How it ended, if it has: no more is taken in, and it is over when nothing is outstanding and all is sent.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Nothing more can be sent.
    pub fn output_ended(&mut self) {
        self.end.get_or_insert(End::HungUp);
        self.stream.out.clear();
    }

    /// The spare buffers of this connection.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.stream.pool
    }
}

impl Duplex for Session {
    fn space(&mut self) -> [IoSliceMut<'_>; 2] {
        let Stream { input, .. } = &mut self.stream;
        // What comes while the encryption begins is for whoever encrypts.
        if self.end.is_some() || matches!(self.phase, Phase::Securing) {
            return [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])];
        }
        if let Phase::Transmission(transmission) = &mut self.phase
            && input.is_empty()
            && let Some((first, second)) = transmission.payload_space()
        {
            let second = if second.is_empty() { input.free() } else { second };
            return [IoSliceMut::new(first), IoSliceMut::new(second)];
        }
        [IoSliceMut::new(input.free()), IoSliceMut::new(&mut [])]
    }

    fn filled(&mut self, mut bytes: usize) {
        if self.end.is_some() {
            return;
        }
        if let Phase::Transmission(transmission) = &mut self.phase
            && self.stream.input.is_empty()
        {
            bytes -= transmission.payload_filled(bytes);
        }
        self.stream.input.filled(bytes);
    }

    fn input_ended(&mut self) {
        self.end.get_or_insert(End::HungUp);
    }

    fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.stream.out.slices(slices)
    }

    fn has_output(&self) -> bool {
        !self.stream.out.is_empty()
    }

    fn sent(&mut self, bytes: usize) {
        self.stream.out.sent(bytes, &mut self.stream.pool);
    }
}

enum Step {
    /// Look again: something was understood.
    Again,
    /// Bytes are missing, or there is enough to do.
    Blocked,
    Event(Event),
    End(End),
}

impl Failure {
    /// A refusal before anything was tried.
    fn of_request(error: Errno, text: &'static str) -> Failure {
        Failure { error, offset: None, text }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
