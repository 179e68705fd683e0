//! PDUs as bytes: what is parsed and what is encoded, without meaning. All integers are little-endian.

use crate::TRANSFER_BYTES_MAX;
use crate::command::{COMMAND_BYTES, COMPLETION_BYTES};
use crate::fabrics::CAPSULE_DATA_BYTES;
use crate::stream::Head;

/// PDU types ("PDU Types").
pub mod kind {
    /// Initialize Connection Request.
    pub const IC_REQ: u8 = 0x00;
    /// Initialize Connection Response.
    pub const IC_RESP: u8 = 0x01;
    /// Host to Controller Terminate Connection Request.
    pub const H2C_TERM_REQ: u8 = 0x02;
    /// Controller to Host Terminate Connection Request.
    pub const C2H_TERM_REQ: u8 = 0x03;
    /// Command Capsule.
    pub const CAPSULE_CMD: u8 = 0x04;
    /// Response Capsule.
    pub const CAPSULE_RESP: u8 = 0x05;
    /// Host to Controller Data.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to Host Data.
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to Transfer.
    pub const R2T: u8 = 0x09;
}

/// Bits of FLAGS.
pub mod flag {
    /// HDGSTF: a digest of the header is behind it.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// DDGSTF: a digest of the data is behind them.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// LAST_PDU: of the data that were asked for, or of the command's.
    pub const LAST: u8 = 1 << 2;
    /// SUCCESS: the command has ended well, and no response capsule comes.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Bytes of the common header.
pub const COMMON_BYTES: usize = 8;
/// Bytes of an ICReq, and of an ICResp.
pub const IC_BYTES: usize = 128;
/// Bytes of a command capsule's header.
pub const COMMAND_HEADER_BYTES: usize = COMMON_BYTES + COMMAND_BYTES;
/// Bytes of the headers of data, of R2T, of responses and of the termination.
pub const SHORT_HEADER_BYTES: usize = 24;
/// Bytes of a digest: CRC-32C.
pub const DIGEST_BYTES: usize = 4;
/// Most bytes of a terminating PDU: its header, and the header that was wrong.
pub const TERM_BYTES_MAX: usize = SHORT_HEADER_BYTES + 128;
/// Most bytes of data in one H2CData (MAXH2CDATA): all that a command has, so one R2T is enough.
pub const H2C_DATA_BYTES_MAX: u32 = TRANSFER_BYTES_MAX as u32;

const _: () = assert!(SHORT_HEADER_BYTES == COMMON_BYTES + COMPLETION_BYTES);
const _: () = assert!(H2C_DATA_BYTES_MAX >= 4096 && H2C_DATA_BYTES_MAX.is_multiple_of(4));

/// Why a connection is ended by either side (FES, "Fatal Error Status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalError {
    /// 01h: a field of a header; the offset of the field is told.
    InvalidHeader,
    /// 02h: a PDU at a time at which it may not come.
    Sequence,
    /// 03h: the digest of a header; the digest that came is told.
    HeaderDigest,
    /// 04h: data that were not asked for.
    DataOutOfRange,
    /// 05h: more data than a PDU may have.
    DataLimit,
    /// 06h: something that this controller does not have; the offset of the field is told.
    Unsupported,
}

/// The same with what is told of it (FEI).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// FES.
    pub error: FatalError,
    /// FEI.
    pub info: u32,
}

impl Fatal {
    pub(super) fn field(offset: u32) -> Fatal {
        Fatal { error: FatalError::InvalidHeader, info: offset }
    }

    pub(super) fn of(error: FatalError) -> Fatal {
        Fatal { error, info: 0 }
    }

    /// FES.
    #[must_use]
    pub fn status(self) -> u16 {
        match self.error {
            FatalError::InvalidHeader => 1,
            FatalError::Sequence => 2,
            FatalError::HeaderDigest => 3,
            FatalError::DataOutOfRange => 4,
            FatalError::DataLimit => 5,
            FatalError::Unsupported => 6,
        }
    }
}

/// Offsets of fields, as FEI tells them.
pub mod at {
    /// PDU-type.
    pub const KIND: u32 = 0;
    /// FLAGS.
    pub const FLAGS: u32 = 1;
    /// HLEN.
    pub const HLEN: u32 = 2;
    /// PDO.
    pub const PDO: u32 = 3;
    /// PLEN.
    pub const PLEN: u32 = 4;
    /// PFV of an ICReq.
    pub const PFV: u32 = 8;
    /// HPDA of an ICReq.
    pub const HPDA: u32 = 10;
    /// CCCID of data.
    pub const CCCID: u32 = 8;
    /// TTAG of data.
    pub const TTAG: u32 = 10;
    /// DATAL of data.
    pub const DATAL: u32 = 16;
}

/// Which digests a connection has ("Digests").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// HDGST.
    pub header: bool,
    /// DDGST.
    pub data: bool,
}

/// The header that every PDU begins with ("PDU Common Header"), checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// What it is.
    pub kind: u8,
    /// FLAGS.
    pub flags: u8,
    /// Bytes of its header, this part included.
    pub header_bytes: usize,
    /// Bytes of a digest behind the header, or zero.
    pub header_digest_bytes: usize,
    /// Bytes from there to the data.
    pub padding_bytes: usize,
    /// Bytes of data.
    pub data_bytes: usize,
    /// Bytes of a digest behind the data, or zero.
    pub data_digest_bytes: usize,
}

/// HPDA may ask for data at this many times four bytes, less one.
const ALIGNMENT_MAX: u8 = 31;

impl Common {
    /// Reads and checks the header of what a host sends. `is_initialized`: ICReq and ICResp are over.
    ///
    /// # Errors
    /// Why the connection has to end.
    pub fn decode(bytes: [u8; COMMON_BYTES], digests: Digests, is_initialized: bool) -> Result<Common, Fatal> {
        let [kind, flags, hlen, pdo, ..] = bytes;
        let plen = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
        let header_bytes = match kind {
            kind::IC_REQ => IC_BYTES,
            kind::CAPSULE_CMD => COMMAND_HEADER_BYTES,
            kind::H2C_DATA | kind::H2C_TERM_REQ => SHORT_HEADER_BYTES,
            _ => return Err(Fatal::field(at::KIND)),
        };
        if (kind == kind::IC_REQ) == is_initialized && kind != kind::H2C_TERM_REQ {
            return Err(Fatal::of(FatalError::Sequence));
        }
        if usize::from(hlen) != header_bytes {
            return Err(Fatal::field(at::HLEN));
        }
        // Neither ICReq nor the termination has digests or data in this sense.
        if matches!(kind, kind::IC_REQ | kind::H2C_TERM_REQ) {
            let fits =
                if kind == kind::IC_REQ { plen == IC_BYTES } else { (header_bytes..=TERM_BYTES_MAX).contains(&plen) };
            let whole = Common { kind, flags, header_bytes, ..Common::default() };
            return if fits {
                Ok(Common { data_bytes: plen - header_bytes, ..whole })
            } else {
                Err(Fatal::field(at::PLEN))
            };
        }
        if (flags & flag::HEADER_DIGEST != 0) != digests.header {
            return Err(Fatal::field(at::FLAGS));
        }
        let header_digest_bytes = if digests.header { DIGEST_BYTES } else { 0 };
        let begins = header_bytes + header_digest_bytes;
        if plen < begins {
            return Err(Fatal::field(at::PLEN));
        }
        if plen == begins {
            // Without data PDO means nothing, and there is nothing to have a digest of.
            return Ok(Common { kind, flags, header_bytes, header_digest_bytes, ..Common::default() });
        }
        if (flags & flag::DATA_DIGEST != 0) != digests.data {
            return Err(Fatal::field(at::FLAGS));
        }
        // CPDA is zero: data begin at a multiple of four.
        let data_begins = usize::from(pdo);
        if data_begins < begins || !data_begins.is_multiple_of(4) {
            return Err(Fatal::field(at::PDO));
        }
        let data_digest_bytes = if digests.data { DIGEST_BYTES } else { 0 };
        let data_bytes = plen.checked_sub(data_begins + data_digest_bytes).filter(|bytes| *bytes > 0);
        let data_bytes = data_bytes.ok_or(Fatal::field(at::PLEN))?;
        let most = if kind == kind::CAPSULE_CMD { CAPSULE_DATA_BYTES } else { H2C_DATA_BYTES_MAX as usize };
        if data_bytes > most {
            return Err(Fatal::of(FatalError::DataLimit));
        }
        let padding_bytes = data_begins - begins;
        Ok(Common { kind, flags, header_bytes, header_digest_bytes, padding_bytes, data_bytes, data_digest_bytes })
    }
}

fn word(bytes: &[u8], at: u32) -> u16 {
    let at = at as usize;
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn dword(bytes: &[u8], at: u32) -> u32 {
    u32::from(word(bytes, at)) | u32::from(word(bytes, at + 2)) << 16
}

/// Initialize Connection Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcReq {
    /// What data that go to the host begin at a multiple of, in bytes.
    pub alignment: usize,
    /// The digests that the host wants.
    pub digests: Digests,
}

impl IcReq {
    /// Reads one. How many R2Ts a command may have at a time (MAXR2T) does not matter: it has one.
    ///
    /// # Errors
    /// Why the connection has to end.
    pub fn decode(header: &[u8]) -> Result<IcReq, Fatal> {
        if word(header, at::PFV) != 0 {
            return Err(Fatal { error: FatalError::Unsupported, info: at::PFV });
        }
        let alignment = header[at::HPDA as usize];
        if alignment > ALIGNMENT_MAX {
            return Err(Fatal::field(at::HPDA));
        }
        let digests = Digests { header: header[11] & 1 != 0, data: header[11] & 2 != 0 };
        Ok(IcReq { alignment: (usize::from(alignment) + 1) * 4, digests })
    }
}

/// Initialize Connection Response: data to the controller begin at multiples of four (CPDA zero).
#[must_use]
pub fn ic_resp(digests: Digests) -> Vec<u8> {
    let mut pdu = vec![0; IC_BYTES];
    pdu[..COMMON_BYTES].copy_from_slice(&common(kind::IC_RESP, 0, IC_BYTES as u8, 0, IC_BYTES));
    pdu[11] = u8::from(digests.header) | u8::from(digests.data) << 1;
    pdu[12..16].copy_from_slice(&H2C_DATA_BYTES_MAX.to_le_bytes());
    pdu
}

/// Host to Controller Data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct H2cData {
    /// CCCID: the command.
    pub cid: u16,
    /// TTAG, as the R2T had it.
    pub tag: u16,
    /// DATAO: where in the command's data these begin.
    pub offset: u32,
    /// DATAL: how many they are.
    pub length: u32,
}

impl H2cData {
    /// Reads a header.
    #[must_use]
    pub fn decode(header: &[u8]) -> H2cData {
        H2cData {
            cid: word(header, at::CCCID),
            tag: word(header, at::TTAG),
            offset: dword(header, 12),
            length: dword(header, at::DATAL),
        }
    }
}

fn common(kind: u8, flags: u8, hlen: u8, pdo: u8, plen: usize) -> [u8; COMMON_BYTES] {
    let [a, b, c, d] = (plen as u32).to_le_bytes();
    [kind, flags, hlen, pdo, a, b, c, d]
}

/// A header, and its digest if there is to be one.
fn sealed(head: Head, digests: Digests) -> Head {
    if digests.header { head.with(&crc32c::crc32c(head.bytes()).to_le_bytes()) } else { head }
}

/// Bytes of a short header with its digest.
fn short_bytes(digests: Digests) -> usize {
    SHORT_HEADER_BYTES + if digests.header { DIGEST_BYTES } else { 0 }
}

fn begun(kind: u8, flags: u8, pdo: u8, plen: usize, digests: Digests) -> Head {
    let flags = flags | if digests.header { flag::HEADER_DIGEST } else { 0 };
    Head::new().with(&common(kind, flags, SHORT_HEADER_BYTES as u8, pdo, plen))
}

/// Response Capsule.
#[must_use]
pub fn capsule_resp(completion: &[u8; COMPLETION_BYTES], digests: Digests) -> Head {
    sealed(begun(kind::CAPSULE_RESP, 0, 0, short_bytes(digests), digests).with(completion), digests)
}

/// Ready to Transfer: all of a command's data.
#[must_use]
pub fn r2t(cid: u16, tag: u16, length: u32, digests: Digests) -> Head {
    let head = begun(kind::R2T, 0, 0, short_bytes(digests), digests);
    let head = head.with(&cid.to_le_bytes()).with(&tag.to_le_bytes()).with(&0_u32.to_le_bytes());
    sealed(head.with(&length.to_le_bytes()).with(&[0; 4]), digests)
}

/// Controller to Host Data: all of a command's; how many zeroes are between this and the data.
#[must_use]
pub fn c2h_data(cid: u16, length: u32, is_success: bool, alignment: usize, digests: Digests) -> (Head, usize) {
    let begins = short_bytes(digests).next_multiple_of(alignment);
    let mut flags = flag::LAST;
    flags |= if is_success { flag::SUCCESS } else { 0 };
    flags |= if digests.data { flag::DATA_DIGEST } else { 0 };
    let plen = begins + length as usize + if digests.data { DIGEST_BYTES } else { 0 };
    let head = begun(kind::C2H_DATA, flags, begins as u8, plen, digests);
    let head = head.with(&cid.to_le_bytes()).with(&[0; 6]).with(&length.to_le_bytes()).with(&[0; 4]);
    (sealed(head, digests), begins - short_bytes(digests))
}

/// Controller to Host Terminate Connection Request, with the header that was wrong. FEI is not aligned: bytes 13:10.
#[must_use]
pub fn term_req(fatal: Fatal, wrong: &[u8]) -> Vec<u8> {
    let wrong = &wrong[..wrong.len().min(TERM_BYTES_MAX - SHORT_HEADER_BYTES)];
    let plen = SHORT_HEADER_BYTES + wrong.len();
    let mut pdu = common(kind::C2H_TERM_REQ, 0, SHORT_HEADER_BYTES as u8, 0, plen).to_vec();
    pdu.extend(fatal.status().to_le_bytes());
    pdu.extend(fatal.info.to_le_bytes());
    pdu.resize(SHORT_HEADER_BYTES, 0);
    pdu.extend(wrong);
    pdu
}
