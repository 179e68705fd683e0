//! A host's side of NVMe/TCP, written from the standard's tables: it puts bytes together by offset, and takes apart
//! what comes, without a line of the target's own encoder.

#![allow(dead_code, reason = "each test program uses a part")]

/// PDU types.
pub const IC_RESP: u8 = 1;
pub const H2C_TERM: u8 = 2;
pub const C2H_TERM: u8 = 3;
pub const CAPSULE: u8 = 4;
pub const RESPONSE: u8 = 5;
pub const H2C_DATA: u8 = 6;
pub const C2H_DATA: u8 = 7;
pub const R2T: u8 = 9;

pub const DISCOVERY: &str = "nqn.2014-08.org.nvmexpress.discovery";
pub const HOST: &str = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555";

/// CRC-32C by a table (RFC 3720, B.4: reflected polynomial 82F63B78h).
pub fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut step = 0;
        while step < 2048 {
            let crc = if step % 8 == 0 { step as u32 / 8 } else { table[step / 8] };
            table[step / 8] = if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
            step += 1;
        }
        table
    };
    !bytes.iter().fold(!0_u32, |crc, byte| crc >> 8 ^ TABLE[((crc ^ u32::from(*byte)) & 0xFF) as usize])
}

/// A command, by its bytes.
#[derive(Clone, Copy)]
pub struct Sqe(pub [u8; 64]);

impl Sqe {
    pub fn new(opcode: u8, cid: u16, nsid: u32) -> Sqe {
        let mut sqe = [0; 64];
        (sqe[0], sqe[1]) = (opcode, 0x40);
        sqe[2..4].copy_from_slice(&cid.to_le_bytes());
        sqe[4..8].copy_from_slice(&nsid.to_le_bytes());
        // No data: a Transport SGL Data Block of no bytes.
        sqe[39] = 0x5A;
        Sqe(sqe)
    }

    pub fn dword(mut self, number: usize, value: u32) -> Sqe {
        self.0[number * 4..number * 4 + 4].copy_from_slice(&value.to_le_bytes());
        self
    }

    /// Data in the capsule.
    pub fn inside(mut self, length: u32) -> Sqe {
        self.0[32..36].copy_from_slice(&length.to_le_bytes());
        self.0[39] = 0x01;
        self
    }

    /// Data that stay with the host until they are asked for, or that it is to be sent.
    pub fn outside(mut self, length: u32) -> Sqe {
        self.0[32..36].copy_from_slice(&length.to_le_bytes());
        self
    }

    /// A Fabrics command.
    pub fn fabrics(kind: u8, cid: u16) -> Sqe {
        Sqe::new(0x7F, cid, u32::from(kind))
    }

    pub fn property_get(cid: u16, offset: u32, is_wide: bool) -> Sqe {
        Sqe::fabrics(4, cid).dword(10, u32::from(is_wide)).dword(11, offset)
    }

    pub fn property_set(cid: u16, offset: u32, value: u32) -> Sqe {
        Sqe::fabrics(0, cid).dword(11, offset).dword(12, value)
    }

    /// Of 4096-byte blocks; `opcode` 1 writes, 2 reads.
    pub fn blocks(opcode: u8, cid: u16, block: u64, blocks: u32) -> Sqe {
        let sqe = Sqe::new(opcode, cid, 1).dword(10, block as u32).dword(11, (block >> 32) as u32);
        sqe.dword(12, blocks - 1)
    }

    pub fn identify(cid: u16, cns: u32, nsid: u32) -> Sqe {
        Sqe::new(0x06, cid, nsid).dword(10, cns).outside(4096)
    }

    pub fn log(cid: u16, page: u32, bytes: u32) -> Sqe {
        Sqe::new(0x02, cid, 0).dword(10, page | (bytes / 4 - 1) << 16).outside(bytes)
    }

    pub fn connect(cid: u16, qid: u16, entries: u16, keep_alive_ms: u32) -> Sqe {
        let sqe = Sqe::fabrics(1, cid).dword(10, u32::from(qid) << 16).dword(11, u32::from(entries - 1));
        sqe.dword(12, keep_alive_ms).inside(1024)
    }
}

pub fn connect_data(controller: u16, subsystem: &str, host: &str) -> Vec<u8> {
    let mut data = vec![0; 1024];
    data[..16].copy_from_slice(&[7; 16]);
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + host.len()].copy_from_slice(host.as_bytes());
    data
}

/// What a host does about digests and alignment.
#[derive(Clone, Copy, Default)]
pub struct Terms {
    pub header_digest: bool,
    pub data_digest: bool,
    /// HPDA: data at multiples of four times one more than this.
    pub alignment: u8,
}

/// A PDU that came, taken apart.
#[derive(Debug)]
pub struct Pdu {
    pub kind: u8,
    pub flags: u8,
    pub header: Vec<u8>,
    pub data: Vec<u8>,
}

impl Pdu {
    /// Takes a PDU of the target's apart, with its digests checked, and says how long it is; nothing when bytes are
    /// missing.
    pub fn parse(bytes: &[u8], terms: Terms) -> Option<(Pdu, usize)> {
        let [kind, flags, header_bytes, offset, ..] = *bytes.first_chunk::<8>()?;
        let length = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        let all = bytes.get(..length)?;
        let header = all[..usize::from(header_bytes)].to_vec();
        let has_header_digest = terms.header_digest && !matches!(kind, C2H_TERM | IC_RESP);
        assert_eq!(flags & 1 == 1, has_header_digest, "HDGSTF of {kind}");
        let mut end = header.len();
        if has_header_digest {
            assert_eq!(all[end..end + 4], crc32c(&header).to_le_bytes(), "HDGST of {kind}");
            end += 4;
        }
        let mut data = Vec::new();
        if kind == C2H_DATA {
            let begins = usize::from(offset);
            assert_eq!(begins, end.next_multiple_of((usize::from(terms.alignment) + 1) * 4), "PDO");
            let digest = if terms.data_digest { 4 } else { 0 };
            assert_eq!(flags & 2 == 2, terms.data_digest, "DDGSTF");
            data = all[begins..length - digest].to_vec();
            if digest > 0 {
                assert_eq!(all[length - 4..], crc32c(&data).to_le_bytes(), "DDGST");
            }
        } else if kind == C2H_TERM {
            data = all[end..].to_vec();
        } else {
            assert_eq!(end, length, "nothing behind the header of {kind}");
        }
        Some((Pdu { kind, flags, header, data }, length))
    }

    pub fn word(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.header[at], self.header[at + 1]])
    }

    pub fn dword(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.header[at..at + 4].try_into().unwrap())
    }
}

/// A completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cqe {
    pub result: u64,
    pub head: u16,
    pub cid: u16,
    /// Type and code, without "do not retry".
    pub status: u16,
}

impl Cqe {
    pub fn of(pdu: &Pdu) -> Cqe {
        assert_eq!(pdu.kind, RESPONSE, "{pdu:?}");
        let result = u64::from(pdu.dword(8)) | u64::from(pdu.dword(12)) << 32;
        Cqe { result, head: pdu.word(16), cid: pdu.word(20), status: pdu.word(22) >> 1 & 0x7FF }
    }
}

/// A PDU as a host sends it.
pub fn pdu(terms: Terms, kind: u8, flags: u8, rest: &[u8], data: &[u8]) -> Vec<u8> {
    let header_bytes = 8 + rest.len();
    let digest = if terms.header_digest { 4 } else { 0 };
    let begins = header_bytes + digest;
    let has_digest = terms.data_digest && !data.is_empty();
    let length = begins + data.len() + if has_digest { 4 } else { 0 };
    let flags = flags | u8::from(terms.header_digest) | u8::from(has_digest) << 1;
    let offset = if data.is_empty() { 0 } else { begins as u8 };
    let mut bytes = vec![kind, flags, header_bytes as u8, offset];
    bytes.extend((length as u32).to_le_bytes());
    bytes.extend(rest);
    if terms.header_digest {
        bytes.extend(crc32c(&bytes).to_le_bytes());
    }
    bytes.extend(data);
    if has_digest {
        bytes.extend(crc32c(data).to_le_bytes());
    }
    bytes
}

pub fn ic_req(terms: Terms) -> Vec<u8> {
    let mut bytes = vec![0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes[10] = terms.alignment;
    bytes[11] = u8::from(terms.header_digest) | u8::from(terms.data_digest) << 1;
    bytes
}

/// H2CData's own part of its header.
pub fn h2c_header(cid: u16, tag: u16, offset: u32, length: u32) -> Vec<u8> {
    [&cid.to_le_bytes()[..], &tag.to_le_bytes(), &offset.to_le_bytes(), &length.to_le_bytes(), &[0; 4]].concat()
}
