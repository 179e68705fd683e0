//! The transmission phase: requests, and their replies.

use super::{End, Event, Failure as Refused, Info, Refusal, Step, Stream};
use crate::nbd::planted::{self, Bug};
use crate::nbd::slab::Slab;
use crate::nbd::span::Span;
use crate::nbd::wire::{self, Addressee, Errno, Headers, RequestHeader, command, command_flag};
use crate::volume::BLOCK_BYTES;
use osier_nvme::stream::Part;
use osier_nvme::stream::Pool;

/// Bytes in buffers of whole blocks: the blocks that the span touches, cut into pieces of equal size, the last one
/// shorter. Of the first and the last block, only what lies in the span means something.
#[derive(Debug, PartialEq, Eq)]
pub struct Payload {
    /// Where the bytes belong.
    pub span: Span,
    /// Its blocks.
    pub pieces: Vec<Vec<u8>>,
}

impl Payload {
    /// Buffers for a span, whatever is in them.
    pub fn new(span: Span, piece_blocks: u64, pool: &mut Pool) -> Payload {
        let piece = |index| span.piece(piece_blocks, index).1 as usize * BLOCK_BYTES;
        Payload { span, pieces: (0..span.pieces(piece_blocks)).map(|index| pool.take(piece(index))).collect() }
    }

    /// Which bytes of a piece lie in the span.
    pub fn within(&self, piece: usize) -> std::ops::Range<usize> {
        Payload::range(self.span, piece, self.pieces.len(), self.pieces[piece].len())
    }

    /// Which bytes of the piece of that index lie in the span, of which there are `pieces`.
    fn range(span: Span, piece: usize, pieces: usize, length: usize) -> std::ops::Range<usize> {
        let from = if piece == 0 { span.lead() } else { 0 };
        let beyond = (BLOCK_BYTES - (span.end() % BLOCK_BYTES as u64) as usize) % BLOCK_BYTES;
        from..if piece + 1 == pieces { length - beyond } else { length }
    }

    /// The bytes of the span from `at` on: what is left of their piece, and the next one.
    fn rest(&mut self, at: u64) -> (&mut [u8], &mut [u8]) {
        let (piece, from) = self.place(at);
        let (to, next_to) =
            (self.within(piece).end, self.pieces.get(piece + 1).map_or(0, |_| self.within(piece + 1).end));
        let (first, rest) = self.pieces[piece..].split_at_mut(1);
        let next = rest.first_mut().map_or(&mut [][..], |next| &mut next[..next_to]);
        (&mut first[0][from..to], next)
    }

    /// In which piece a byte of the span lies, and where there.
    fn place(&self, at: u64) -> (usize, usize) {
        let (at, piece_bytes) = (self.span.lead() + at as usize, self.pieces[0].len());
        (at / piece_bytes, at % piece_bytes)
    }
}

/// What a client wants. Spans lie in the export and are not empty.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// The bytes.
    Read(Span),
    /// Writes; ends when it is persistent if `fua`.
    Write {
        /// What, and where.
        payload: Payload,
        /// Force unit access.
        fua: bool,
    },
    /// Makes persistent what was answered before.
    Flush,
    /// The bytes are needed no longer.
    Trim {
        /// Which.
        span: Span,
        /// Force unit access.
        fua: bool,
    },
    /// The bytes will be read soon.
    Cache(Span),
    /// The bytes become zeroes.
    WriteZeroes {
        /// Which.
        span: Span,
        /// Whether they may take no space afterwards.
        may_deallocate: bool,
        /// Force unit access.
        fua: bool,
    },
    /// Which of the bytes take space.
    BlockStatus(Span),
}

/// A request of a client.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// Names it in the answer.
    pub token: u32,
    /// What it is.
    pub command: Command,
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// What was read.
    Data {
        /// All of its bytes.
        payload: Payload,
        /// Which pieces take no space (their bytes are zeroes); empty when all do.
        holes: Vec<bool>,
    },
    /// Consecutive extents in bytes from the beginning of the span, and whether they are holes; at least one.
    Extents(Vec<(u64, bool)>),
    /// It failed.
    Failed(Failure),
}

/// Why a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    /// What the client is told.
    pub error: Errno,
    /// Where, in the span.
    pub offset: Option<u64>,
    /// For whoever reads the client's log.
    pub text: &'static str,
}

/// A request that is not answered yet.
struct Pending {
    to: Addressee,
    span: Span,
    command: u16,
    flags: u16,
    buffered: u64,
}

/// A write whose payload is on its way.
struct Incoming {
    pending: Pending,
    payload: Payload,
    filled: u64,
}

pub struct Transmission {
    headers: Headers,
    info: Info,
    has_context: bool,
    pending: Slab<Pending>,
    incoming: Option<Incoming>,
    /// Bytes of the requests in `pending` and `incoming`.
    buffered: u64,
}

impl Transmission {
    pub fn new(headers: Headers, info: Info, has_context: bool) -> Transmission {
        Transmission { headers, info, has_context, pending: Slab::new(), incoming: None, buffered: 0 }
    }

    pub fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Where the rest of a payload goes, if one is on its way.
    pub fn payload_space(&mut self) -> Option<(&mut [u8], &mut [u8])> {
        let incoming = self.incoming.as_mut().filter(|incoming| incoming.filled < incoming.payload.span.length)?;
        Some(incoming.payload.rest(incoming.filled))
    }

    /// How many of `bytes` went there.
    pub fn payload_filled(&mut self, bytes: usize) -> usize {
        let Some(incoming) = &mut self.incoming else { return 0 };
        let taken = (bytes as u64).min(incoming.payload.span.length - incoming.filled);
        incoming.filled += taken;
        taken as usize
    }

    pub fn step(&mut self, stream: &mut Stream, refusal: Option<&Refusal>) -> Step {
        if self.incoming.is_some() {
            return self.receive_payload(stream);
        }
        if (self.pending.len() >= stream.limits.outstanding_max && !planted::has(Bug::TakeWithoutBound))
            || stream.out.parts() > 2 * stream.limits.outstanding_max
        {
            return Step::Blocked;
        }
        let staged = stream.input.staged();
        if staged.len() < self.headers.request_bytes() {
            return Step::Blocked;
        }
        let Some(header) = RequestHeader::parse(staged, self.headers) else {
            return Step::End(End::Violation("a request without its magic"));
        };
        if header.command == command::DISC {
            return Step::End(End::Disconnected);
        }
        let checked = if refusal.is_some() {
            Err(Refused::of_request(Errno::ShutDown, "the server is ending"))
        } else {
            self.check(&header, stream.limits.request_bytes_max)
        };
        match checked {
            Ok(span) => self.accept(stream, &header, span),
            Err(failure) => self.refuse(stream, &header, failure),
        }
    }

    /// Whether a request may be tried.
    fn check(&self, header: &RequestHeader, most: u32) -> Result<Span, Failure> {
        let refuse = |error, text| Err(Failure::of_request(error, text));
        let Some(allowed) = self.allowed_flags(header.command) else {
            return refuse(Errno::Invalid, "this command is not known here");
        };
        if header.flags & !allowed != 0 {
            return refuse(Errno::Invalid, "this command has no such flag");
        }
        let writes = matches!(header.command, command::WRITE | command::WRITE_ZEROES);
        if self.info.is_read_only && (writes || header.command == command::TRIM) {
            return refuse(Errno::NotPermitted, "the export is read-only");
        }
        let is_buffered = matches!(header.command, command::READ | command::WRITE | command::CACHE);
        if is_buffered && header.length > u64::from(most) {
            // NBD_CMD_FLAG_DF: "MAY trigger an NBD_EOVERFLOW error chunk, if the request length is too large".
            let is_whole = header.flags & command_flag::DF != 0;
            let error = if is_whole { Errno::Overflow } else { Errno::Invalid };
            return refuse(error, "longer than the maximum block size");
        }
        if header.command == command::FLUSH && (header.offset, header.length) != (0, 0) {
            return refuse(Errno::Invalid, "a flush has neither offset nor length");
        }
        if header.command == command::BLOCK_STATUS && (!self.has_context || header.length == 0) {
            return refuse(Errno::Invalid, "no metadata context was chosen for this export, or no byte is meant");
        }
        let is_zeroed_slowly = command_flag::NO_HOLE | command_flag::FAST_ZERO;
        if header.flags & is_zeroed_slowly == is_zeroed_slowly {
            return refuse(Errno::NotSupported, "zeroes that take space are written like other bytes");
        }
        let export_bytes = self.info.blocks * BLOCK_BYTES as u64 + u64::from(planted::has(Bug::ReachBeyondEnd));
        if header.offset.checked_add(header.length).is_none_or(|end| end > export_bytes) {
            // "Error values": NBD_ENOSPC for writes.
            return refuse(if writes { Errno::NoSpace } else { Errno::Invalid }, "beyond the end of the export");
        }
        Ok(Span::new(header.offset, header.length))
    }

    /// "Command flags": which are documented for a command. NBD_CMD_FLAG_FUA is to be accepted with all.
    fn allowed_flags(&self, command: u16) -> Option<u16> {
        let of_headers = |least, flag| if self.headers >= least { flag } else { 0 };
        let own = match command {
            command::READ => of_headers(Headers::Structured, command_flag::DF),
            command::WRITE => of_headers(Headers::Extended, command_flag::PAYLOAD_LEN),
            command::FLUSH | command::TRIM | command::CACHE => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => return None,
        };
        Some(own | command_flag::FUA)
    }

    fn accept(&mut self, stream: &mut Stream, header: &RequestHeader, span: Span) -> Step {
        let buffered = match header.command {
            command::READ | command::WRITE => header.length,
            _ => 0,
        };
        let held = self.buffered + stream.out.bytes() as u64;
        if held > 0 && held + buffered > stream.limits.buffered_bytes_max {
            return Step::Blocked;
        }
        stream.input.consume(self.headers.request_bytes());
        let to = Addressee { cookie: header.cookie, offset: header.offset };
        let pending = Pending { to, span, command: header.command, flags: header.flags, buffered };
        if span.length == 0 && header.command != command::FLUSH {
            self.reply(stream, &pending, Answer::Done);
            return Step::Again;
        }
        self.buffered += buffered;
        if header.command == command::WRITE {
            let payload = Payload::new(span, self.info.piece_blocks, &mut stream.pool);
            self.incoming = Some(Incoming { pending, payload, filled: 0 });
            return Step::Again;
        }
        let has = |flag| header.flags & flag != 0;
        let fua = has(command_flag::FUA);
        let command = match header.command {
            command::READ => Command::Read(span),
            command::FLUSH => Command::Flush,
            command::TRIM => Command::Trim { span, fua },
            command::CACHE => Command::Cache(span),
            command::WRITE_ZEROES => Command::WriteZeroes { span, may_deallocate: !has(command_flag::NO_HOLE), fua },
            _ => Command::BlockStatus(span),
        };
        let token = self.pending.insert(pending);
        Step::Event(Event::Request(Request { token, command }))
    }

    fn refuse(&mut self, stream: &mut Stream, header: &RequestHeader, failure: Failure) -> Step {
        let payload = header.payload_bytes(self.headers);
        if payload > u64::from(u32::MAX) {
            return Step::End(End::Violation("a payload beyond all bounds"));
        }
        stream.input.consume(self.headers.request_bytes());
        if !planted::has(Bug::KeepRefusedPayload) {
            stream.input.skip_more(payload);
        }
        let to = Addressee { cookie: header.cookie, offset: header.offset };
        stream.postponed = Some(self.failed(to, failure));
        Step::Again
    }

    fn receive_payload(&mut self, stream: &mut Stream) -> Step {
        let Some(mut incoming) = self.incoming.take() else { return Step::Again };
        let length = incoming.payload.span.length;
        while incoming.filled < length && !stream.input.is_empty() {
            let staged = stream.input.staged();
            let (room, _) = incoming.payload.rest(incoming.filled);
            let taken = room.len().min(staged.len());
            room[..taken].copy_from_slice(&staged[..taken]);
            stream.input.consume(taken);
            incoming.filled += taken as u64;
        }
        if incoming.filled < length {
            self.incoming = Some(incoming);
            return Step::Blocked;
        }
        let Incoming { pending, payload, .. } = incoming;
        let fua = pending.flags & command_flag::FUA != 0;
        let token = self.pending.insert(pending);
        Step::Event(Event::Request(Request { token, command: Command::Write { payload, fua } }))
    }

    pub fn answer(&mut self, stream: &mut Stream, token: u32, answer: Answer) {
        let token = if planted::has(Bug::AnswerFirst) { self.pending.first().unwrap_or(token) } else { token };
        let Some(pending) = self.pending.take(token) else { panic!("request {token} is answered twice") };
        self.buffered -= pending.buffered;
        self.reply(stream, &pending, answer);
    }

    fn reply(&self, stream: &mut Stream, pending: &Pending, answer: Answer) {
        match answer {
            Answer::Done => {
                let may_be_simple = self.headers != Headers::Extended && pending.command != command::READ;
                let is_simple = self.headers == Headers::Simple || may_be_simple;
                stream.out.head(if is_simple {
                    wire::simple_reply(pending.to, None)
                } else {
                    wire::none_chunk(self.headers, pending.to)
                });
            }
            Answer::Data { payload, holes } => self.send_data(stream, pending, payload, &holes),
            Answer::Extents(mut extents) => {
                if pending.flags & command_flag::REQ_ONE != 0 {
                    extents.truncate(1);
                }
                stream.out.message(wire::block_status_chunk(self.headers, pending.to, &extents));
            }
            Answer::Failed(failure) => stream.out.push(self.failed(pending.to, failure)),
        }
    }

    fn send_data(&self, stream: &mut Stream, pending: &Pending, payload: Payload, holes: &[bool]) {
        assert_eq!(payload.span, pending.span, "what was read is not what was asked for");
        let is_cut = !holes.is_empty()
            && self.headers != Headers::Simple
            && (pending.flags & command_flag::DF == 0 || planted::has(Bug::CutUncut));
        if !is_cut {
            let length = payload.span.length as usize;
            stream.out.head(match self.headers {
                Headers::Simple => wire::simple_reply(pending.to, None),
                headers => wire::data_chunk(headers, pending.to, true, payload.span.offset, length),
            });
        }
        let mut offset = payload.span.offset;
        let pieces = payload.pieces.len();
        for (piece, buffer) in payload.pieces.into_iter().enumerate() {
            let range = Payload::range(payload.span, piece, pieces, buffer.len());
            let is_last = piece + 1 == pieces;
            if is_cut && holes[piece] {
                let length = range.len() as u32;
                stream.out.head(wire::hole_chunk(self.headers, pending.to, is_last, offset, length));
                offset += if planted::has(Bug::MisplaceHole) { 0 } else { range.len() as u64 };
                stream.pool.give(buffer);
                continue;
            }
            if is_cut {
                stream.out.head(wire::data_chunk(self.headers, pending.to, is_last, offset, range.len()));
            }
            offset += range.len() as u64;
            stream.out.body(buffer, range);
        }
    }

    fn failed(&self, to: Addressee, failure: Failure) -> Part {
        let Failure { error, offset, text } = failure;
        match self.headers {
            Headers::Simple => Part::Head(wire::simple_reply(to, Some(error))),
            headers => Part::message(wire::error_chunk(headers, to, error, offset, text)),
        }
    }
}
