//! The NBD protocol as bytes: what is parsed and what is encoded, without meaning.
//!
//! Sections are those of `doc/proto.md` of the NBD project; all integers are big-endian ("Conventions").

use osier_nvme::stream::Head;

/// Longest string: "Conventions".
pub const STRING_BYTES_MAX: usize = 4096;
/// "Newstyle negotiation": NBDMAGIC, and IHAVEOPT before every option.
const INIT_PASSWD: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// "Fixed newstyle negotiation": before every reply to an option.
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// "Request message".
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// "Extended request message".
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// "Simple reply message".
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// "Structured reply chunk message".
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
/// "Extended reply chunk message".
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// "Handshake flags" and "Client flags": the same bits, 0 and 1.
const FLAG_FIXED_NEWSTYLE: u16 = 1 << 0;
const FLAG_NO_ZEROES: u16 = 1 << 1;

/// "Option types".
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// "Option reply types".
pub mod reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub const ERR_UNSUP: u32 = ERROR + 1;
    pub const ERR_POLICY: u32 = ERROR + 2;
    pub const ERR_INVALID: u32 = ERROR + 3;
    pub const ERR_TLS_REQD: u32 = ERROR + 5;
    pub const ERR_UNKNOWN: u32 = ERROR + 6;
    pub const ERR_SHUTDOWN: u32 = ERROR + 7;
    pub const ERR_TOO_BIG: u32 = ERROR + 9;
    pub const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// "Option reply types", NBD_REP_INFO.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const BLOCK_SIZE: u16 = 3;
}

/// "Transmission flags".
pub mod export_flag {
    pub const HAS_FLAGS: u16 = 1 << 0;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// "Request types".
pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// "Command flags".
pub mod command_flag {
    pub const FUA: u16 = 1 << 0;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// "Structured reply flags".
const CHUNK_DONE: u16 = 1 << 0;

/// "Structured reply types".
mod chunk {
    pub const NONE: u16 = 0;
    pub const OFFSET_DATA: u16 = 1;
    pub const OFFSET_HOLE: u16 = 2;
    pub const BLOCK_STATUS: u16 = 5;
    pub const BLOCK_STATUS_EXT: u16 = 6;
    pub const ERROR: u16 = (1 << 15) + 1;
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// "`base:allocation` metadata context": a hole that reads as zeroes, NBD_STATE_HOLE and NBD_STATE_ZERO.
const STATE_HOLE_AND_ZERO: u32 = 0b11;

/// "Error values".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Errno {
    /// NBD_EPERM.
    NotPermitted = 1,
    /// NBD_EIO.
    Io = 5,
    /// NBD_EINVAL.
    Invalid = 22,
    /// NBD_ENOSPC.
    NoSpace = 28,
    /// NBD_EOVERFLOW.
    Overflow = 75,
    /// NBD_ENOTSUP.
    NotSupported = 95,
    /// NBD_ESHUTDOWN.
    ShutDown = 108,
}

/// Reads a message from its front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string after its length ("Conventions": UTF-8, no NUL, at most 4096 bytes).
    fn string(&mut self) -> Option<&'a str> {
        let length = self.u32()? as usize;
        string(self.bytes(length)?)
    }

    fn end(&self) -> Option<()> {
        self.0.is_empty().then_some(())
    }
}

/// A string as "Conventions" allows it.
pub fn string(bytes: &[u8]) -> Option<&str> {
    let is_allowed = bytes.len() <= STRING_BYTES_MAX && !bytes.contains(&0);
    std::str::from_utf8(bytes).ok().filter(|_| is_allowed)
}

/// What the server says first ("Newstyle negotiation").
pub fn greeting(out: &mut Vec<u8>) {
    out.extend_from_slice(&INIT_PASSWD.to_be_bytes());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
}

pub const CLIENT_FLAGS_BYTES: usize = 4;

/// Whether the zeroes after the reply to NBD_OPT_EXPORT_NAME are left out; `None` when the client sets a flag that
/// nobody offered ("Client flags": the connection is dropped).
pub fn parse_client_flags(bytes: [u8; CLIENT_FLAGS_BYTES]) -> Option<bool> {
    let flags = u32::from_be_bytes(bytes);
    let offered = u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES);
    (flags & !offered == 0).then_some(flags & u32::from(FLAG_NO_ZEROES) != 0)
}

/// The front of an option ("Newstyle negotiation").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionHeader {
    pub option: u32,
    pub length: u32,
}

impl OptionHeader {
    pub const BYTES: usize = 16;

    /// `None`: it does not begin as an option does.
    pub fn parse(bytes: &[u8]) -> Option<OptionHeader> {
        let mut reader = Reader(bytes);
        let is_option = reader.u64()? == OPTION_MAGIC;
        Some(OptionHeader { option: reader.u32()?, length: reader.u32()? }).filter(|_| is_option)
    }
}

/// The data of NBD_OPT_INFO and NBD_OPT_GO ("Option types").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    pub name: &'a str,
    pub wants_name: bool,
    pub wants_block_size: bool,
}

impl InfoRequest<'_> {
    pub fn parse(data: &[u8]) -> Option<InfoRequest<'_>> {
        let mut reader = Reader(data);
        let mut request = InfoRequest { name: reader.string()?, wants_name: false, wants_block_size: false };
        for _ in 0..reader.u16()? {
            match reader.u16()? {
                info::NAME => request.wants_name = true,
                info::BLOCK_SIZE => request.wants_block_size = true,
                _ => {}
            }
        }
        reader.end()?;
        Some(request)
    }
}

/// The data of NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT ("Option types").
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    pub export: &'a str,
    /// How many queries there were, and whether one is answered by `base:allocation`.
    pub queries: u32,
    pub names_allocation: bool,
    pub names_base: bool,
}

/// "The `base:` metadata namespace".
pub const BASE_ALLOCATION: &str = "base:allocation";
const BASE: &str = "base:";
/// The id by which the server calls that context.
const ALLOCATION_CONTEXT: u32 = 1;

impl ContextRequest<'_> {
    pub fn parse(data: &[u8]) -> Option<ContextRequest<'_>> {
        let mut reader = Reader(data);
        let (export, queries) = (reader.string()?, reader.u32()?);
        let mut request = ContextRequest { export, queries, names_allocation: false, names_base: false };
        for _ in 0..queries {
            let query = reader.string()?;
            request.names_allocation |= query == BASE_ALLOCATION;
            request.names_base |= query == BASE;
        }
        reader.end()?;
        Some(request)
    }
}

/// A reply to an option ("Fixed newstyle negotiation").
pub fn option_reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let length: usize = data.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(length as u32).to_be_bytes());
    data.iter().for_each(|part| out.extend_from_slice(part));
}

/// NBD_REP_SERVER ("Option reply types").
pub fn server_reply(out: &mut Vec<u8>, name: &str) {
    let length = (name.len() as u32).to_be_bytes();
    option_reply(out, option::LIST, reply::SERVER, &[&length, name.as_bytes()]);
}

/// NBD_REP_META_CONTEXT for `base:allocation` ("Option reply types"). The id in a list is reserved, and zero.
pub fn context_reply(out: &mut Vec<u8>, option: u32) {
    let id = if option == option::SET_META_CONTEXT { ALLOCATION_CONTEXT } else { 0 };
    option_reply(out, option, reply::META_CONTEXT, &[&id.to_be_bytes(), BASE_ALLOCATION.as_bytes()]);
}

/// NBD_INFO_EXPORT ("Option reply types").
pub fn export_info(out: &mut Vec<u8>, option: u32, bytes: u64, flags: u16) {
    let data: [&[u8]; 3] = [&info::EXPORT.to_be_bytes(), &bytes.to_be_bytes(), &flags.to_be_bytes()];
    option_reply(out, option, reply::INFO, &data);
}

/// NBD_INFO_NAME ("Option reply types").
pub fn name_info(out: &mut Vec<u8>, option: u32, name: &str) {
    option_reply(out, option, reply::INFO, &[&info::NAME.to_be_bytes(), name.as_bytes()]);
}

/// NBD_INFO_BLOCK_SIZE ("Option reply types", "Block size constraints").
pub fn block_size_info(out: &mut Vec<u8>, option: u32, [minimum, preferred, maximum]: [u32; 3]) {
    let data: [&[u8]; 4] =
        [&info::BLOCK_SIZE.to_be_bytes(), &minimum.to_be_bytes(), &preferred.to_be_bytes(), &maximum.to_be_bytes()];
    option_reply(out, option, reply::INFO, &data);
}

/// What answers NBD_OPT_EXPORT_NAME ("Newstyle negotiation").
pub fn export_name_reply(out: &mut Vec<u8>, bytes: u64, flags: u16, no_zeroes: bool) {
    const ZEROES: usize = 124;
    out.extend_from_slice(&bytes.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; ZEROES]);
    }
}

/// Which messages the transmission phase has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Headers {
    /// Requests of 28 bytes, simple replies.
    Simple,
    /// Structured replies where something is to be said ("Structured reply chunk message").
    Structured,
    /// Requests and replies of 32 bytes, and lengths of 64 bits ("Extended request message").
    Extended,
}

impl Headers {
    /// Bytes of a request without its payload.
    pub fn request_bytes(self) -> usize {
        if self == Headers::Extended { 32 } else { 28 }
    }
}

/// A request without its payload ("Request message").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u64,
}

impl RequestHeader {
    /// `None`: it does not begin as a request does.
    pub fn parse(bytes: &[u8], headers: Headers) -> Option<RequestHeader> {
        let mut reader = Reader(bytes);
        let is_extended = headers == Headers::Extended;
        let is_request = reader.u32()? == if is_extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let (flags, command, cookie, offset) = (reader.u16()?, reader.u16()?, reader.u64()?, reader.u64()?);
        let length = if is_extended { reader.u64()? } else { u64::from(reader.u32()?) };
        Some(RequestHeader { flags, command, cookie, offset, length }).filter(|_| is_request)
    }

    /// Bytes that follow the header. Of extended headers the flag says it, and a write without it is taken for what a
    /// client that forgot it means.
    pub fn payload_bytes(&self, headers: Headers) -> u64 {
        let is_said = headers == Headers::Extended && self.flags & command_flag::PAYLOAD_LEN != 0;
        if is_said || self.command == command::WRITE { self.length } else { 0 }
    }
}

/// To which request a reply belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressee {
    pub cookie: u64,
    /// The offset of the request, which extended replies repeat.
    pub offset: u64,
}

/// "Simple reply message".
pub fn simple_reply(to: Addressee, error: Option<Errno>) -> Head {
    Head::new()
        .with(&SIMPLE_REPLY_MAGIC.to_be_bytes())
        .with(&error.map_or(0, |error| error as u32).to_be_bytes())
        .with(&to.cookie.to_be_bytes())
}

/// "Structured reply chunk message", "Extended reply chunk message".
fn chunk_head(headers: Headers, to: Addressee, kind: u16, is_last: bool, length: usize) -> Head {
    let flags = if is_last { CHUNK_DONE } else { 0 };
    let is_extended = headers == Headers::Extended;
    let magic = if is_extended { EXTENDED_REPLY_MAGIC } else { STRUCTURED_REPLY_MAGIC };
    let head = Head::new()
        .with(&magic.to_be_bytes())
        .with(&flags.to_be_bytes())
        .with(&kind.to_be_bytes())
        .with(&to.cookie.to_be_bytes());
    if is_extended {
        head.with(&to.offset.to_be_bytes()).with(&(length as u64).to_be_bytes())
    } else {
        head.with(&(length as u32).to_be_bytes())
    }
}

/// Success without a payload: NBD_REPLY_TYPE_NONE ("Structured reply types").
pub fn none_chunk(headers: Headers, to: Addressee) -> Head {
    chunk_head(headers, to, chunk::NONE, true, 0)
}

/// NBD_REPLY_TYPE_OFFSET_DATA, but for the data, of which there is some ("Structured reply types").
pub fn data_chunk(headers: Headers, to: Addressee, is_last: bool, offset: u64, length: usize) -> Head {
    chunk_head(headers, to, chunk::OFFSET_DATA, is_last, 8 + length).with(&offset.to_be_bytes())
}

/// NBD_REPLY_TYPE_OFFSET_HOLE ("Structured reply types").
pub fn hole_chunk(headers: Headers, to: Addressee, is_last: bool, offset: u64, length: u32) -> Head {
    chunk_head(headers, to, chunk::OFFSET_HOLE, is_last, 12).with(&offset.to_be_bytes()).with(&length.to_be_bytes())
}

/// NBD_REPLY_TYPE_ERROR, or NBD_REPLY_TYPE_ERROR_OFFSET where it is known ("Structured reply types").
pub fn error_chunk(headers: Headers, to: Addressee, error: Errno, offset: Option<u64>, text: &str) -> Vec<u8> {
    let kind = if offset.is_some() { chunk::ERROR_OFFSET } else { chunk::ERROR };
    let length = 6 + text.len() + if offset.is_some() { 8 } else { 0 };
    let mut out = chunk_head(headers, to, kind, true, length).bytes().to_vec();
    out.extend_from_slice(&(error as u32).to_be_bytes());
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
    out.extend(offset.into_iter().flat_map(u64::to_be_bytes));
    out
}

/// NBD_REPLY_TYPE_BLOCK_STATUS, or NBD_REPLY_TYPE_BLOCK_STATUS_EXT with extended headers ("Structured reply types"):
/// lengths in bytes, and whether they are holes.
pub fn block_status_chunk(headers: Headers, to: Addressee, extents: &[(u64, bool)]) -> Vec<u8> {
    let state = |is_hole: bool| if is_hole { STATE_HOLE_AND_ZERO } else { 0 };
    let context = ALLOCATION_CONTEXT.to_be_bytes();
    if headers == Headers::Extended {
        let head = chunk_head(headers, to, chunk::BLOCK_STATUS_EXT, true, 8 + 16 * extents.len());
        let mut out = head.with(&context).with(&(extents.len() as u32).to_be_bytes()).bytes().to_vec();
        for &(length, is_hole) in extents {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&u64::from(state(is_hole)).to_be_bytes());
        }
        return out;
    }
    let head = chunk_head(headers, to, chunk::BLOCK_STATUS, true, 4 + 8 * extents.len());
    let mut out = head.with(&context).bytes().to_vec();
    for &(length, is_hole) in extents {
        out.extend_from_slice(&(length as u32).to_be_bytes());
        out.extend_from_slice(&state(is_hole).to_be_bytes());
    }
    out
}
