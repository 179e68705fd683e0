//! One connection as a state machine without input or output: bytes in, in whatever pieces, requests out; responses in,
//! bytes out.
//!
//! ```text
//! ICReq ─► ICResp ─► capsule ─┬─────────────────────────► Request ─► Response ─► [C2HData] ─► response capsule
//!                             └─► R2T ─► H2CData ... ──────┘
//! ```
//!
//! Invariants:
//! 1. No input panics. What breaks the protocol is answered with a C2HTermReq and ends the session; what is merely
//!    wrong ends the command with a status, and the place in the stream is kept.
//! 2. Every command that was taken is answered once, and nothing else is, as long as the session lives.
//! 3. A command has at most one R2T, for all of its data, and none before there is room for them.
//! 4. What is buffered is bounded by [`Limits`], by the queue's entries and by what a capsule may carry: a session that
//!    has enough takes no more bytes until something is answered and sent.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};

use osier_device::Status;

use super::pdu::{self, Common, Digests, Fatal, FatalError, H2cData, IcReq, at, flag, kind};
use crate::command::{COMMAND_BYTES, Command, Completion, DataPointer};
use crate::fabrics::{CAPSULE_DATA_BYTES, QUEUE_ENTRIES_MAX};
use crate::io::Direction;
use crate::planted::{self, Bug};
use crate::status::{
    COMMAND_ID_CONFLICT, SGL_LENGTH_INVALID, SGL_OFFSET_INVALID, SGL_TYPE_INVALID, TRANSIENT_TRANSPORT_ERROR,
};
use crate::stream::{Duplex, Input, Outbox, Part, Pool};
use crate::{COMPLETION_BYTES, TRANSFER_BYTES_MAX};

/// What a session keeps of what a host sends, and of what it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that are read ahead of being understood.
    pub staging_bytes: usize,
    /// Bytes of a buffer of a command's data; the last one of a command is as long as what is left.
    pub piece_bytes: usize,
    /// Bytes of data of commands that are under way, and of what is not sent.
    pub buffered_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { staging_bytes: 64 << 10, piece_bytes: 128 << 10, buffered_bytes_max: 16 << 20 }
    }
}

impl Limits {
    fn check(&self) {
        assert!(self.staging_bytes >= 4096 && self.piece_bytes >= 4096 && self.piece_bytes.is_multiple_of(4096));
        assert!(self.buffered_bytes_max >= TRANSFER_BYTES_MAX as usize);
    }
}

/// A command whose data are here.
#[derive(Debug, PartialEq, Eq)]
pub struct Request {
    /// The command; its identifier is that of nothing else under way.
    pub command: Command,
    /// What the host gives, in buffers of [`Limits::piece_bytes`].
    pub data: Vec<Vec<u8>>,
    /// Bytes that the host takes.
    pub wanted: usize,
}

impl Request {
    /// Bytes that the host gives.
    #[must_use]
    pub fn given(&self) -> usize {
        self.data.iter().map(Vec::len).sum()
    }
}

/// How a command has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    /// Its status.
    pub status: Status,
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// What the host gets, if it ended well: as many bytes as it wants, or none.
    pub data: Vec<Vec<u8>>,
}

impl Response {
    /// One without data.
    #[must_use]
    pub fn of(status: Status, result: u64) -> Response {
        Response { status, result, data: Vec::new() }
    }
}

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The host closed the connection.
    HungUp,
    /// The host said that it would (H2CTermReq), and why (FES).
    ByHost(u16),
    /// The host broke the protocol.
    Violation(Fatal),
    /// The owner wanted it.
    Closed,
}

/// Where a command's data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transfer {
    None,
    /// In its capsule.
    InCapsule {
        length: usize,
    },
    /// With the host, which sends them when it is asked.
    FromHost(usize),
    ToHost(usize),
}

/// Where a command is.
#[derive(Debug)]
enum Stage {
    /// Its capsule is not complete.
    Arriving,
    /// There is no room for its data.
    Waiting,
    /// The host was asked for its data, with this tag; so many have come.
    Asked { tag: u16, received: usize },
    /// It was handed out.
    Running,
}

/// A command that is not answered.
#[derive(Debug)]
struct Open {
    command: Command,
    transfer: Transfer,
    stage: Stage,
    data: Vec<Vec<u8>>,
    /// What it ends with, once its data have come.
    status: Option<Status>,
    /// Bytes that are set aside for it.
    reserved: usize,
}

/// Data that are being received.
#[derive(Debug)]
struct Receiving {
    /// Whose they are.
    cid: u16,
    /// Bytes of them that have come, and that are to come.
    received: usize,
    left: usize,
    /// Where in the command's data the next byte belongs.
    position: usize,
    /// The digest so far.
    digest: u32,
    /// Bytes of the digest behind them.
    digest_bytes: usize,
    /// Whether they end the command's.
    is_last: bool,
}

/// See the module.
pub struct Session {
    limits: Limits,
    input: Input,
    out: Outbox,
    pool: Pool,
    digests: Digests,
    alignment: usize,
    is_initialized: bool,
    receiving: Option<Receiving>,
    open: BTreeMap<u16, Open>,
    /// Commands that wait for room, in order.
    waiting: VecDeque<u16>,
    /// Commands to be handed out, in order.
    ready: VecDeque<u16>,
    /// Bytes that are set aside for commands.
    reserved: usize,
    next_tag: u16,
    entries: u16,
    /// SQHD, when the host wants to be told of it.
    head: Option<u16>,
    end: Option<End>,
}

impl Session {
    /// Of a connection whose host has not said anything, and is not connected to a queue.
    ///
    /// # Panics
    /// When the limits contradict each other.
    #[must_use]
    pub fn new(limits: Limits) -> Session {
        limits.check();
        Session {
            limits,
            input: Input::new(limits.staging_bytes),
            out: Outbox::default(),
            pool: Pool::default(),
            digests: Digests::default(),
            alignment: 4,
            is_initialized: false,
            receiving: None,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            ready: VecDeque::new(),
            reserved: 0,
            next_tag: 0,
            // Before Connect a host has no reason to send a second command.
            entries: 2,
            head: Some(0),
            end: None,
        }
    }

    /// The connection has become a queue: to be called before the Connect command is answered.
    pub fn connected(&mut self, entries: u16, has_flow_control: bool) {
        assert!((2..=QUEUE_ENTRIES_MAX).contains(&entries));
        // The Connect command was the first entry.
        (self.entries, self.head) = (entries, has_flow_control.then_some(1));
    }

    /// Ends the session; what is to be sent may be.
    pub fn close(&mut self) {
        self.end.get_or_insert(End::Closed);
    }

    /// What is to be done next, as far as the bytes reach. `None`: nothing, until bytes come or something is answered
    /// or sent.
    pub fn next_request(&mut self) -> Option<Request> {
        while self.end.is_none() {
            self.make_room();
            if let Some(cid) = self.ready.pop_front() {
                if let Some(request) = self.hand_out(cid) {
                    return Some(request);
                }
                continue;
            }
            if self.has_enough() {
                return None;
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => return None,
                Err((fatal, header)) => {
                    self.out.message(pdu::term_req(fatal, &header));
                    self.end = Some(End::Violation(fatal));
                }
            }
        }
        None
    }

    /// A request has been carried out.
    ///
    /// # Panics
    /// When there is none with this identifier, or data are not as many as were wanted.
    pub fn respond(&mut self, cid: u16, response: Response) {
        if self.end.is_some() {
            return;
        }
        let open = self.open.remove(&cid).expect("a request is answered once");
        assert!(matches!(open.stage, Stage::Running));
        self.reserved -= open.reserved;
        open.data.into_iter().for_each(|buffer| self.pool.give(buffer));
        self.answer(cid, response, open.transfer);
    }

    /// Commands that are not answered.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.open.len()
    }

    /// Whether there is something that may go on when bytes are sent: bytes that are not understood yet, or commands
    /// that wait for room.
    #[must_use]
    pub fn has_more(&self) -> bool {
        self.end.is_none() && !(self.input.is_empty() && self.waiting.is_empty())
    }

    /// Whether ICReq and ICResp are over.
    #[must_use]
    pub fn is_initialized(&self) -> bool {
        self.is_initialized
    }

    /// How it ended, if it has: no more is taken in, and what is answered is let go.
    #[must_use]
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Nothing more can be sent.
    pub fn output_ended(&mut self) {
        self.end.get_or_insert(End::HungUp);
        self.out.clear();
    }

    /// The spare buffers of this connection.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Bytes of data that are set aside, and of what is not sent.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.reserved + self.out.bytes()
    }

    fn has_enough(&self) -> bool {
        self.out.bytes() >= self.limits.buffered_bytes_max
    }

    /// Lets commands go on that wait for room, in order.
    fn make_room(&mut self) {
        while let Some(cid) = self.waiting.front().copied() {
            let Some(open) = self.open.get_mut(&cid) else { panic!("a command that waits is not answered") };
            let length = match open.transfer {
                Transfer::FromHost(length) | Transfer::ToHost(length) => length,
                Transfer::None | Transfer::InCapsule { .. } => 0,
            };
            if self.reserved + self.out.bytes() + length > self.limits.buffered_bytes_max {
                return;
            }
            self.waiting.pop_front();
            self.reserved += length;
            open.reserved = length;
            if let Transfer::FromHost(_) = open.transfer {
                self.next_tag = self.next_tag.wrapping_add(1);
                open.data = buffers(length, self.limits.piece_bytes, &mut self.pool);
                open.stage = Stage::Asked { tag: self.next_tag, received: 0 };
                self.out.head(pdu::r2t(cid, self.next_tag, length as u32, self.digests));
            } else {
                self.ready.push_back(cid);
            }
        }
    }

    /// A command that is complete goes to the owner, or ends with what is wrong with it.
    fn hand_out(&mut self, cid: u16) -> Option<Request> {
        let open = self.open.get_mut(&cid)?;
        open.stage = Stage::Running;
        if let Some(status) = open.status {
            self.respond(cid, Response::of(status, 0));
            return None;
        }
        let wanted = if let Transfer::ToHost(length) = open.transfer { length } else { 0 };
        Some(Request { command: open.command, data: std::mem::take(&mut open.data), wanted })
    }

    /// Understands the next part of the input; false when bytes are missing. A violation comes with the header that
    /// it is in.
    fn step(&mut self) -> Result<bool, (Fatal, Vec<u8>)> {
        self.input.skip();
        if self.input.is_skipping() {
            return Ok(false);
        }
        if self.receiving.is_some() {
            return Ok(self.receive());
        }
        let Some(first) = self.input.staged().first_chunk::<{ pdu::COMMON_BYTES }>().copied() else {
            return Ok(false);
        };
        let wrong = |fatal| (fatal, first.to_vec());
        let common = Common::decode(first, self.digests, self.is_initialized).map_err(wrong)?;
        let header_bytes = common.header_bytes;
        let Some(bytes) = self.input.staged().get(..header_bytes + common.header_digest_bytes) else {
            return Ok(false);
        };
        let (header, digest) = (bytes[..header_bytes].to_vec(), &bytes[header_bytes..]);
        if let Ok(digest) = <[u8; pdu::DIGEST_BYTES]>::try_from(digest)
            && crc32c::crc32c(&header) != u32::from_le_bytes(digest)
            && !planted::has(Bug::BelieveHeader)
        {
            let fatal = Fatal { error: FatalError::HeaderDigest, info: u32::from_le_bytes(digest) };
            return Err((fatal, header));
        }
        self.input.consume(header_bytes + common.header_digest_bytes);
        self.understand(&common, &header).map_err(|fatal| (fatal, header))?;
        Ok(true)
    }

    fn understand(&mut self, common: &Common, header: &[u8]) -> Result<(), Fatal> {
        match common.kind {
            kind::IC_REQ => {
                let request = IcReq::decode(header)?;
                (self.digests, self.alignment, self.is_initialized) = (request.digests, request.alignment, true);
                self.out.message(pdu::ic_resp(self.digests));
            }
            kind::CAPSULE_CMD => self.capsule(common, header)?,
            kind::H2C_DATA => self.data(common, &H2cData::decode(header))?,
            _ => self.end = Some(End::ByHost(u16::from_le_bytes([header[8], header[9]]))),
        }
        Ok(())
    }

    /// A command has come, or begins to.
    fn capsule(&mut self, common: &Common, header: &[u8]) -> Result<(), Fatal> {
        let mut entry = [0; COMMAND_BYTES];
        entry.copy_from_slice(&header[pdu::COMMON_BYTES..]);
        let command = Command::decode(&entry);
        // More commands than entries would be as many buffers as the host likes.
        if self.open.len() >= usize::from(self.entries) && !planted::has(Bug::TakeWithoutBound) {
            return Err(Fatal::of(FatalError::Sequence));
        }
        if let Some(head) = &mut self.head {
            *head = (*head + 1) % self.entries;
        }
        let in_capsule = common.data_bytes;
        if self.open.contains_key(&command.cid) {
            // The other one goes on.
            self.let_go(common);
            self.answer(command.cid, Response::of(COMMAND_ID_CONFLICT, 0), Transfer::None);
            return Ok(());
        }
        let (transfer, status) = match transfer(&command, in_capsule) {
            Ok(transfer) => (transfer, None),
            Err(status) => (Transfer::None, Some(status)),
        };
        let open = Open { command, transfer, stage: Stage::Arriving, data: Vec::new(), status, reserved: 0 };
        self.open.insert(command.cid, open);
        if let Transfer::InCapsule { length } = transfer {
            self.reserve(command.cid, length);
            self.expect(common, command.cid, 0, true);
        } else {
            self.let_go(common);
            self.arrived(command.cid);
        }
        Ok(())
    }

    /// Sets buffers aside for a command's data in its capsule. Of these a queue's entries are the bound.
    fn reserve(&mut self, cid: u16, length: usize) {
        let Some(open) = self.open.get_mut(&cid) else { return };
        open.data = buffers(length, self.limits.piece_bytes, &mut self.pool);
        open.reserved = length;
        self.reserved += length;
    }

    /// A command's capsule is complete.
    fn arrived(&mut self, cid: u16) {
        let Some(open) = self.open.get_mut(&cid) else { return };
        match open.transfer {
            Transfer::FromHost(_) | Transfer::ToHost(_) => {
                open.stage = Stage::Waiting;
                self.waiting.push_back(cid);
            }
            Transfer::None | Transfer::InCapsule { .. } => self.ready.push_back(cid),
        }
    }

    /// Data of a command begin to come.
    fn data(&mut self, common: &Common, data: &H2cData) -> Result<(), Fatal> {
        let open = self.open.get(&data.cid).ok_or(Fatal::field(at::CCCID))?;
        let Stage::Asked { tag, received } = open.stage else { return Err(Fatal::of(FatalError::Sequence)) };
        let Transfer::FromHost(length) = open.transfer else { return Err(Fatal::of(FatalError::Sequence)) };
        if data.tag != tag && !planted::has(Bug::AnyTag) {
            return Err(Fatal::field(at::TTAG));
        }
        if data.length as usize != common.data_bytes || data.length == 0 {
            return Err(Fatal::field(at::DATAL));
        }
        // "H2CData": the data of an R2T come in order, and no more than it asked for.
        let is_next = data.offset as usize == received || planted::has(Bug::AnyOffset);
        if !is_next || received + common.data_bytes > length {
            return Err(Fatal::of(FatalError::DataOutOfRange));
        }
        let is_last = received + common.data_bytes == length;
        if is_last != (common.flags & flag::LAST != 0) {
            return Err(Fatal::field(at::FLAGS));
        }
        self.expect(common, data.cid, received, is_last);
        Ok(())
    }

    /// From now on data of a command come, the first of them at this position.
    fn expect(&mut self, common: &Common, cid: u16, position: usize, is_last: bool) {
        self.input.skip_more(common.padding_bytes as u64);
        self.receiving = Some(Receiving {
            cid,
            received: 0,
            left: common.data_bytes,
            position,
            digest: 0,
            digest_bytes: common.data_digest_bytes,
            is_last,
        });
    }

    /// Data that nobody wants come, or none.
    fn let_go(&mut self, common: &Common) {
        if planted::has(Bug::KeepRefusedData) {
            return;
        }
        let bytes = common.padding_bytes + common.data_bytes + common.data_digest_bytes;
        self.input.skip_more(bytes as u64);
    }

    /// Takes what is staged of the data that are being received; false when bytes are missing.
    fn receive(&mut self) -> bool {
        let Some(receiving) = &mut self.receiving else { return false };
        while receiving.left > 0 {
            let staged = self.input.staged();
            if staged.is_empty() {
                return false;
            }
            let Some(open) = self.open.get_mut(&receiving.cid) else { panic!("data are a command's") };
            let Some((piece, range)) = place(&open.data, receiving, self.limits.piece_bytes) else {
                panic!("there is a buffer for each byte that is left")
            };
            let count = range.len().min(staged.len());
            let target = &mut open.data[piece][range.start..range.start + count];
            target.copy_from_slice(&staged[..count]);
            receiving.take(target);
            self.input.consume(count);
        }
        let mut is_whole = true;
        if receiving.digest_bytes > 0 {
            let Some(digest) = self.input.take::<{ pdu::DIGEST_BYTES }>() else { return false };
            is_whole = u32::from_le_bytes(digest) == receiving.digest || planted::has(Bug::BelieveData);
        }
        let Some(Receiving { cid, received, is_last, .. }) = self.receiving.take() else { return true };
        self.received(cid, received, is_last, is_whole);
        true
    }

    /// All data of a PDU have come. A wrong digest ends the command, and not the connection ("Data Digest"), but not
    /// before all of its data are here.
    fn received(&mut self, cid: u16, bytes: usize, is_last: bool, is_whole: bool) {
        let Some(open) = self.open.get_mut(&cid) else { return };
        if !is_whole {
            open.status = Some(TRANSIENT_TRANSPORT_ERROR);
        }
        if let Stage::Asked { received, .. } = &mut open.stage {
            *received += bytes;
        }
        if is_last {
            self.ready.push_back(cid);
        }
    }

    /// Sends a command's data and its completion.
    fn answer(&mut self, cid: u16, response: Response, transfer: Transfer) {
        let Response { status, result, data } = response;
        // Without SQHD a completion that says nothing more than "well" is a bit of the data's header.
        let mut is_told = false;
        if status.is_success() && !data.is_empty() {
            let length: usize = data.iter().map(Vec::len).sum();
            assert!(transfer == Transfer::ToHost(length), "as many bytes as the host wants");
            is_told = (self.head.is_none() || planted::has(Bug::AlwaysSucceed)) && result == 0;
            let (head, padding) = pdu::c2h_data(cid, length as u32, is_told, self.alignment, self.digests);
            self.out.head(head);
            if padding > 0 {
                self.out.message(vec![0; padding]);
            }
            let digested = if planted::has(Bug::DigestOnePiece) { &data[..1] } else { &data[..] };
            let digest = digested.iter().fold(0, |digest, piece| crc32c::crc32c_append(digest, piece));
            data.into_iter().for_each(|piece| self.out.push(Part::message(piece)));
            if self.digests.data {
                self.out.message(digest.to_le_bytes().to_vec());
            }
        }
        if !is_told {
            // "Completion Queue Entry" over a fabric: SQHD is reserved without flow control, and so is SQID always.
            let completion = Completion { result, sqhd: self.head.unwrap_or(u16::MAX), sqid: 0, cid, status };
            let entry: [u8; COMPLETION_BYTES] = completion.encode(false);
            self.out.head(pdu::capsule_resp(&entry, self.digests));
        }
    }
}

impl Duplex for Session {
    fn space(&mut self) -> [IoSliceMut<'_>; 2] {
        if self.end.is_some() || self.has_enough() {
            return [IoSliceMut::new(&mut []), IoSliceMut::new(&mut [])];
        }
        if let Some(receiving) = &self.receiving
            && self.input.is_empty()
            && receiving.left > 0
            && let Some(open) = self.open.get_mut(&receiving.cid)
            && let Some((piece, range)) = place(&open.data, receiving, self.limits.piece_bytes)
        {
            return [IoSliceMut::new(&mut open.data[piece][range]), IoSliceMut::new(self.input.free())];
        }
        [IoSliceMut::new(self.input.free()), IoSliceMut::new(&mut [])]
    }

    fn filled(&mut self, mut bytes: usize) {
        if self.end.is_some() || bytes == 0 {
            return;
        }
        if let Some(receiving) = &mut self.receiving
            && self.input.is_empty()
            && receiving.left > 0
            && let Some(open) = self.open.get_mut(&receiving.cid)
            && let Some((piece, range)) = place(&open.data, receiving, self.limits.piece_bytes)
        {
            let taken = bytes.min(range.len());
            let end = range.start + taken;
            receiving.take(&open.data[piece][range.start..end]);
            bytes -= taken;
        }
        self.input.filled(bytes);
    }

    fn input_ended(&mut self) {
        self.end.get_or_insert(End::HungUp);
    }

    fn output<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.out.slices(slices)
    }

    fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    fn sent(&mut self, bytes: usize) {
        self.out.sent(bytes, &mut self.pool);
    }
}

impl Receiving {
    /// These bytes have come.
    fn take(&mut self, bytes: &[u8]) {
        if self.digest_bytes > 0 {
            self.digest = crc32c::crc32c_append(self.digest, bytes);
        }
        self.received += bytes.len();
        self.left -= bytes.len();
        self.position += bytes.len();
    }
}

/// Buffers for so many bytes.
fn buffers(bytes: usize, piece_bytes: usize, pool: &mut Pool) -> Vec<Vec<u8>> {
    (0..bytes).step_by(piece_bytes).map(|from| pool.take(piece_bytes.min(bytes - from))).collect()
}

/// The buffer in which the next bytes belong, and where in it.
fn place(data: &[Vec<u8>], receiving: &Receiving, piece_bytes: usize) -> Option<(usize, std::ops::Range<usize>)> {
    let (piece, from) = (receiving.position / piece_bytes, receiving.position % piece_bytes);
    let room = data.get(piece)?.len().checked_sub(from).filter(|room| *room > 0)?;
    Some((piece, from..from + room.min(receiving.left)))
}

/// Which way a command's data go, how many they are, and where ("SGL Descriptors" over TCP): in the capsule, at an
/// offset; or with the host.
fn transfer(command: &Command, in_capsule: usize) -> Result<Transfer, Status> {
    /// SGL Data Block, Address or Offset: an offset.
    const OFFSET: u8 = 0x01;
    /// Transport SGL Data Block, Transport Specific.
    const TRANSPORT: u8 = 0x5A;
    let direction = command.direction();
    let DataPointer::Sgl(descriptor) = command.dptr else {
        // PRPs are not for capsules ("PSDT").
        return if direction == Direction::None { Ok(Transfer::None) } else { Err(Status::INVALID_FIELD) };
    };
    let field = |from: usize| u32::from_le_bytes(std::array::from_fn(|index| descriptor[from + index]));
    let (offset, length) = (u64::from(field(0)) | u64::from(field(4)) << 32, field(8) as usize);
    if direction == Direction::None || length == 0 {
        return Ok(Transfer::None);
    }
    if length as u64 > TRANSFER_BYTES_MAX {
        return Err(Status::INVALID_FIELD);
    }
    match (descriptor[15], direction) {
        (OFFSET, Direction::ToController) if length > CAPSULE_DATA_BYTES.min(in_capsule) => Err(SGL_LENGTH_INVALID),
        // ICDOFF is zero, so that is where data are.
        (OFFSET, Direction::ToController) if offset != 0 => Err(SGL_OFFSET_INVALID),
        (OFFSET, Direction::ToController) if length < in_capsule => Err(SGL_LENGTH_INVALID),
        (OFFSET, Direction::ToController) => Ok(Transfer::InCapsule { length }),
        (TRANSPORT, Direction::ToController) => Ok(Transfer::FromHost(length)),
        (TRANSPORT, Direction::FromController) => Ok(Transfer::ToHost(length)),
        _ => Err(SGL_TYPE_INVALID),
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
