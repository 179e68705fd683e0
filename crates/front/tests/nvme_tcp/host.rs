//! A host over sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub use super::wire::*;

/// One connection: a queue, once it is connected.
pub struct Host {
    pub stream: TcpStream,
    pub terms: Terms,
    pub next: u16,
}

impl Host {
    /// A connection that has said ICReq and heard ICResp.
    pub fn dial(address: SocketAddr, terms: Terms) -> Host {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&ic_req(terms)).unwrap();
        let mut host = Host { stream, terms: Terms::default(), next: 0 };
        let answer = host.receive();
        assert_eq!((answer.kind, answer.header.len(), answer.word(8)), (IC_RESP, 128, 0));
        let digests = u8::from(terms.header_digest) | u8::from(terms.data_digest) << 1;
        assert_eq!(answer.header[11], digests);
        assert!(answer.dword(12) >= 4096, "MAXH2CDATA");
        host.terms = terms;
        host
    }

    /// A queue, and the number of its controller.
    pub fn connect(&mut self, qid: u16, data: &[u8]) -> Cqe {
        self.run(Sqe::connect(self.next, qid, 32, 0), data).0
    }

    /// An admin queue whose controller is enabled.
    pub fn admin(address: SocketAddr, terms: Terms, subsystem: &str) -> (Host, u16) {
        let mut host = Host::dial(address, terms);
        let cqe = host.connect(0, &connect_data(0xFFFF, subsystem, HOST));
        assert_eq!(cqe.status, 0);
        host.enable();
        (host, cqe.result as u16)
    }

    pub fn enable(&mut self) {
        assert_eq!(self.run(Sqe::property_set(0, 0x14, 0x0046_0001), &[]).0.status, 0);
        assert_eq!(self.run(Sqe::property_get(0, 0x1C, false), &[]).0.result & 3, 1, "CSTS.RDY");
    }

    /// A queue for I/O of a controller.
    pub fn io(address: SocketAddr, terms: Terms, qid: u16, controller: u16, subsystem: &str) -> Host {
        let mut host = Host::dial(address, terms);
        assert_eq!(host.connect(qid, &connect_data(controller, subsystem, HOST)).status, 0);
        host
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// Sends a command; `data` are in its capsule if it says so.
    pub fn submit(&mut self, sqe: Sqe, data: &[u8]) {
        let data = if sqe.0[39] == 0x01 { data } else { &[] };
        let bytes = pdu(self.terms, CAPSULE, 0, &sqe.0, data);
        self.send(&bytes);
    }

    /// The next PDU, with its digests checked.
    pub fn receive(&mut self) -> Pdu {
        let mut common = [0; 8];
        self.stream.read_exact(&mut common).unwrap();
        let length = u32::from_le_bytes(common[4..].try_into().unwrap()) as usize;
        let mut all = common.to_vec();
        all.resize(length, 0);
        self.stream.read_exact(&mut all[8..]).unwrap();
        Pdu::parse(&all, self.terms).unwrap().0
    }

    /// Runs a command by itself; its completion and what it gave. An identifier of its own is put in.
    pub fn run(&mut self, mut sqe: Sqe, given: &[u8]) -> (Cqe, Vec<u8>) {
        self.next = self.next.wrapping_add(1);
        let cid = self.next;
        sqe.0[2..4].copy_from_slice(&cid.to_le_bytes());
        self.submit(sqe, given);
        let mut got = Vec::new();
        loop {
            let pdu = self.receive();
            match pdu.kind {
                R2T => {
                    assert_eq!((pdu.word(8), pdu.dword(12), pdu.dword(16)), (cid, 0, given.len() as u32), "{pdu:?}");
                    self.give(cid, pdu.word(10), given, 100_000);
                }
                C2H_DATA => {
                    assert_eq!((pdu.word(8), pdu.dword(12) as usize), (cid, got.len()));
                    assert_eq!(pdu.dword(16) as usize, pdu.data.len());
                    got.extend(&pdu.data);
                    if pdu.flags & 8 != 0 {
                        assert!(pdu.flags & 4 != 0, "SUCCESS without LAST");
                        return (Cqe { result: 0, head: u16::MAX, cid, status: 0 }, got);
                    }
                }
                C2H_TERM => panic!("the target ends the connection: {pdu:?}"),
                _ => {
                    let cqe = Cqe::of(&pdu);
                    assert_eq!(cqe.cid, cid);
                    return (cqe, got);
                }
            }
        }
    }

    /// Gives data that were asked for, so many bytes in each PDU.
    pub fn give(&mut self, cid: u16, tag: u16, data: &[u8], most: usize) {
        let mut offset = 0;
        for part in data.chunks(most) {
            let is_last = offset + part.len() == data.len();
            let header = h2c_header(cid, tag, offset as u32, part.len() as u32);
            let bytes = pdu(self.terms, H2C_DATA, if is_last { 4 } else { 0 }, &header, part);
            self.send(&bytes);
            offset += part.len();
        }
    }

    /// The next PDU is a completion.
    pub fn completion(&mut self) -> Cqe {
        Cqe::of(&self.receive())
    }

    /// FES and FEI of the termination that comes next, behind whatever was on its way; then the connection is closed.
    pub fn terminated(&mut self) -> (u16, u32) {
        loop {
            let pdu = self.receive();
            if pdu.kind == C2H_TERM {
                assert!(self.is_closed());
                return (pdu.word(8), pdu.dword(10));
            }
        }
    }

    pub fn is_closed(&mut self) -> bool {
        self.stream.read_to_end(&mut Vec::new()).map_or(true, |bytes| bytes == 0)
    }
}
