//! A host that draws what it does, a link that cuts bytes anywhere, and an owner that answers in any order, around one
//! session. The host knows what each of its commands has to end with, and what the one thing that it does wrong, if it
//! does, has to be answered with.

use std::collections::BTreeMap;

use super::wire::*;
use crate::Status;
use crate::planted::{Bug, plant};
use crate::stream::testing::{Check, Rng, drain, draw_cut, feed, first_failure};
use crate::tcp::{End, Limits, Request, Response, Session};

const CASES: u64 = 200_000;
const ENTRIES: u16 = 6;
const LIMITS: Limits = Limits { staging_bytes: 4096, piece_bytes: 4096, buffered_bytes_max: 1 << 20 };

/// What a host may do wrong, once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// Bytes are changed, lost, repeated or added, anywhere.
    Noise,
    HeaderDigest,
    DataDigest,
    Kind,
    SecondIcReq,
    HeaderLength,
    TooMuchData,
    Offset,
    UnknownCommand,
    Tag,
    Replay,
    Length,
    NoLast,
    TooManyCommands,
}

const WRONGS: [Wrong; 14] = [
    Wrong::Noise,
    Wrong::HeaderDigest,
    Wrong::DataDigest,
    Wrong::Kind,
    Wrong::SecondIcReq,
    Wrong::HeaderLength,
    Wrong::TooMuchData,
    Wrong::Offset,
    Wrong::UnknownCommand,
    Wrong::Tag,
    Wrong::Replay,
    Wrong::Length,
    Wrong::NoLast,
    Wrong::TooManyCommands,
];

/// A command under way, as the host knows it.
struct Sent {
    /// What it gives, and what it is to get.
    gives: Vec<u8>,
    gets: Vec<u8>,
    status: u16,
    got: Vec<u8>,
}

/// The host.
struct World {
    rng: Rng,
    terms: Terms,
    has_flow_control: bool,
    session: Session,
    /// Bytes on their way to the session, and from it.
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    sent: BTreeMap<u16, Sent>,
    /// Requests that the owner has not answered.
    taken: Vec<Request>,
    next: u16,
    left: u32,
    wrong: Option<Wrong>,
    /// FES and FEI that the session has to end with.
    expected: Option<(u16, Option<u32>)>,
    is_initialized: bool,
    /// Nothing is known of what comes any more.
    is_noisy: bool,
    terminated: Option<(u16, u32)>,
    last_data: Vec<u8>,
    ended: u64,
}

fn pattern(length: usize, seed: u16) -> Vec<u8> {
    (0..length).map(|at| (at as u16).wrapping_mul(31).wrapping_add(seed) as u8).collect()
}

impl World {
    fn new(seed: u64) -> World {
        let mut rng = Rng(seed);
        let terms =
            Terms { header_digest: rng.one_in(2), data_digest: rng.one_in(2), alignment: rng.pick(&[0, 0, 1, 15, 31]) };
        let wrong = if rng.one_in(2) { Some(rng.pick(&WRONGS)) } else { None };
        let mut session = Session::new(LIMITS);
        let has_flow_control = rng.one_in(2);
        session.connected(ENTRIES, has_flow_control);
        World {
            left: 1 + rng.below(12) as u32,
            next: rng.draw() as u16,
            rng,
            terms,
            has_flow_control,
            session,
            outgoing: ic_req(terms),
            incoming: Vec::new(),
            sent: BTreeMap::new(),
            taken: Vec::new(),
            wrong,
            expected: None,
            is_initialized: false,
            is_noisy: false,
            terminated: None,
            last_data: Vec::new(),
            ended: 0,
        }
    }

    fn run(&mut self) -> Check<()> {
        let mut idle = 0;
        while idle < 40 {
            let before = (self.outgoing.len(), self.incoming.len(), self.taken.len(), self.sent.len(), self.left);
            // Whoever has something to do gets a turn in the end.
            let turn = if idle < 10 { self.rng.below(5) } else { idle % 5 };
            match turn {
                0 => self.speak(),
                1 | 2 => self.carry(),
                3 => self.answer(),
                _ => self.hear()?,
            }
            self.check_bounds()?;
            let after = (self.outgoing.len(), self.incoming.len(), self.taken.len(), self.sent.len(), self.left);
            idle = if before == after { idle + 1 } else { 0 };
        }
        self.check_end()
    }

    /// The host sends its next command, or does its wrong.
    fn speak(&mut self) {
        if !self.is_initialized || self.expected.is_some() || self.left == 0 {
            return;
        }
        if self.wrong.is_some() && self.rng.one_in(3) {
            self.do_wrong();
            return;
        }
        if self.sent.len() < usize::from(ENTRIES) {
            self.command();
        }
    }

    fn command(&mut self) {
        self.left -= 1;
        self.next = self.next.wrapping_add(1 + self.rng.below(3) as u16);
        let cid = self.next;
        if self.sent.contains_key(&cid) {
            return;
        }
        let length = match self.rng.below(8) {
            0 => 0,
            1 => 8192,
            2 => 1 + self.rng.below(12_000) as usize,
            _ => 4 * (1 + self.rng.below(40) as usize),
        };
        let mut inside = Vec::new();
        let mut sent = Sent { gives: Vec::new(), gets: Vec::new(), status: 0, got: Vec::new() };
        let sqe = match self.rng.below(9) {
            0 => Sqe::new(0x00, cid, 1),
            1 | 2 if length <= 8192 && length > 0 => {
                inside = pattern(length, cid);
                sent.gives.clone_from(&inside);
                Sqe::new(0x01, cid, 1).inside(length as u32)
            }
            3 | 4 => {
                sent.gives = pattern(length, cid);
                Sqe::new(0x01, cid, 1).outside(length as u32)
            }
            5 => {
                // More than any command has.
                sent.status = 0x002;
                Sqe::new(0x02, cid, 1).outside((1 << 20) + 1)
            }
            6 if (4..=8192).contains(&length) => {
                // A descriptor that is none of these; what is in the capsule is skipped.
                inside = pattern(length, cid);
                sent.status = 0x011;
                let mut sqe = Sqe::new(0x01, cid, 1).inside(length as u32);
                sqe.0[39] = 0x30;
                sqe
            }
            _ => {
                sent.gets = pattern(length, !cid);
                Sqe::new(0x02, cid, 1).outside(length as u32)
            }
        };
        let bytes = pdu(self.terms, CAPSULE, 0, &sqe.0, &inside);
        self.outgoing.extend(bytes);
        self.sent.insert(cid, sent);
    }

    /// The one thing that is wrong, if it can be now.
    fn do_wrong(&mut self) {
        let Some(wrong) = self.wrong else { return };
        let flush = |world: &World, cid: u16| pdu(world.terms, CAPSULE, 0, &Sqe::new(0, cid, 1).0, &[]);
        let fresh = self.next.wrapping_add(9);
        let is_room = self.sent.len() < usize::from(ENTRIES);
        let (bytes, expected) = match wrong {
            Wrong::Noise => {
                self.is_noisy = true;
                self.wrong = None;
                return self.make_noise();
            }
            Wrong::HeaderDigest if self.terms.header_digest => {
                let mut bytes = flush(self, fresh);
                bytes[72] ^= 1 << self.rng.below(8);
                let told = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
                (bytes, (3, Some(told)))
            }
            Wrong::DataDigest if self.terms.data_digest && is_room => {
                let data = pattern(40, fresh);
                let sent = Sent { gives: data.clone(), gets: Vec::new(), status: 0x022, got: Vec::new() };
                let mut bytes = pdu(self.terms, CAPSULE, 0, &Sqe::new(1, fresh, 1).inside(40).0, &data);
                let last = bytes.len() - 1 - self.rng.below(44) as usize;
                bytes[last] ^= 1 << self.rng.below(8);
                self.outgoing.extend(bytes);
                self.sent.insert(fresh, sent);
                (self.next, self.wrong) = (fresh, None);
                return;
            }
            Wrong::Kind => {
                let mut bytes = flush(self, fresh);
                bytes[0] = self.rng.pick(&[IC_RESP, C2H_TERM, RESPONSE, C2H_DATA, 8, R2T, 10, 0xFF]);
                (bytes, (1, Some(0)))
            }
            Wrong::SecondIcReq => (ic_req(self.terms), (2, None)),
            Wrong::HeaderLength => {
                let mut bytes = flush(self, fresh);
                bytes[2] ^= 1 << self.rng.below(8);
                (bytes, (1, Some(2)))
            }
            Wrong::TooMuchData => {
                let data = vec![0; 8193 + self.rng.below(9) as usize];
                (pdu(self.terms, CAPSULE, 0, &Sqe::new(1, fresh, 1).inside(8192).0, &data), (5, None))
            }
            Wrong::UnknownCommand if !self.sent.contains_key(&fresh) => {
                (pdu(self.terms, H2C_DATA, 4, &h2c_header(fresh, 1, 0, 4), &[0; 4]), (1, Some(8)))
            }
            Wrong::Replay if !self.last_data.is_empty() => (self.last_data.clone(), (0, None)),
            Wrong::TooManyCommands if self.sent.is_empty() && self.taken.is_empty() => {
                let bytes: Vec<Vec<u8>> = (0..=ENTRIES)
                    .map(|turn| {
                        let sqe = Sqe::new(1, fresh.wrapping_add(turn), 1).outside(4);
                        pdu(self.terms, CAPSULE, 0, &sqe.0, &[])
                    })
                    .collect();
                self.is_noisy = true;
                (bytes.concat(), (2, None))
            }
            // Those of data are done where data are sent; the others come when they can.
            _ => return,
        };
        self.outgoing.extend(bytes);
        (self.expected, self.wrong) = (Some(expected), None);
    }

    fn make_noise(&mut self) {
        for _ in 0..=self.rng.below(3) {
            let length = self.outgoing.len() as u64;
            let at = self.rng.below(length + 1) as usize;
            match self.rng.below(4) {
                0 if length > 0 => self.outgoing[at % length as usize] ^= 1 << self.rng.below(8),
                1 => self.outgoing.truncate(at),
                2 => {
                    let again = self.outgoing[at..].to_vec();
                    self.outgoing.extend(again);
                }
                _ => {
                    let count = self.rng.below(300);
                    let more: Vec<u8> = (0..count).map(|_| self.rng.draw() as u8).collect();
                    self.outgoing.splice(at..at, more);
                }
            }
        }
    }

    /// Bytes go to the session, as many as it takes or the link has just then; what it asks for is taken.
    fn carry(&mut self) {
        let filled = feed(&mut self.session, &self.outgoing, draw_cut(&mut self.rng));
        self.outgoing.drain(..filled);
        self.take();
    }

    fn take(&mut self) {
        while let Some(request) = self.session.next_request() {
            self.taken.push(request);
        }
    }

    /// The owner answers one of the requests.
    fn answer(&mut self) {
        if self.taken.is_empty() {
            return;
        }
        let drawn = self.rng.below(self.taken.len() as u64) as usize;
        let Request { command, data, wanted } = self.taken.swap_remove(drawn);
        let given = data.concat();
        let sent = self.sent.get(&command.cid);
        if !self.is_noisy && self.expected.is_none() {
            let sent = sent.expect("a request is a command of the host's");
            assert!(given == sent.gives && wanted == sent.gets.len(), "{} of {}", given.len(), sent.gives.len());
            assert!(sent.status == 0, "what is wrong is not handed out");
        }
        let gets = if wanted > 0 { pattern(wanted, !command.cid) } else { Vec::new() };
        let data = gets.chunks(LIMITS.piece_bytes).map(<[u8]>::to_vec).collect();
        self.session.respond(command.cid, Response { status: Status::SUCCESS, result: 0, data });
    }

    /// The host hears what has come, as far as it has.
    fn hear(&mut self) -> Check<()> {
        let most = if self.rng.one_in(3) { 1 + self.rng.below(30) as usize } else { usize::MAX };
        drain::<3>(&mut self.session, &mut self.incoming, most);
        self.take();
        while let Some((pdu, length)) = Pdu::parse(&self.incoming, self.terms) {
            self.incoming.drain(..length);
            self.understand(&pdu)?;
        }
        Ok(())
    }

    fn understand(&mut self, pdu: &Pdu) -> Check<()> {
        if self.terminated.is_some() {
            return Err("something comes behind the end".to_owned());
        }
        match pdu.kind {
            IC_RESP => self.is_initialized = true,
            C2H_TERM => self.terminated = Some((pdu.word(8), pdu.dword(10))),
            R2T => return self.give(pdu),
            C2H_DATA => {
                let cid = pdu.word(8);
                let Some(sent) = self.sent.get_mut(&cid) else { return self.stray(cid) };
                sent.got.extend(&pdu.data);
                if pdu.flags & 8 != 0 {
                    if self.has_flow_control {
                        return Err("SUCCESS with flow control".to_owned());
                    }
                    return self.complete(cid, 0);
                }
            }
            RESPONSE => {
                let cqe = Cqe::of(pdu);
                if cqe.head != u16::MAX && cqe.head >= ENTRIES {
                    return Err(format!("SQHD {}", cqe.head));
                }
                if (cqe.head == u16::MAX) == self.has_flow_control {
                    return Err(format!("SQHD {} with flow control {}", cqe.head, self.has_flow_control));
                }
                return self.complete(cqe.cid, cqe.status);
            }
            other => return Err(format!("a PDU of type {other}")),
        }
        Ok(())
    }

    fn stray(&self, cid: u16) -> Check<()> {
        if self.is_noisy { Ok(()) } else { Err(format!("command {cid} is not under way")) }
    }

    fn complete(&mut self, cid: u16, status: u16) -> Check<()> {
        let Some(sent) = self.sent.remove(&cid) else { return self.stray(cid) };
        self.ended += 1;
        if self.is_noisy {
            return Ok(());
        }
        if status != sent.status || status == 0 && sent.got != sent.gets {
            return Err(format!("command {cid}: status {status:#x}, {} of {} bytes", sent.got.len(), sent.gets.len()));
        }
        Ok(())
    }

    /// Data that were asked for, in one PDU or some.
    fn give(&mut self, r2t: &Pdu) -> Check<()> {
        let (cid, tag) = (r2t.word(8), r2t.word(10));
        let Some(sent) = self.sent.get(&cid) else { return self.stray(cid) };
        let data = sent.gives.clone();
        if (r2t.dword(12), r2t.dword(16) as usize) != (0, data.len()) {
            return if self.is_noisy { Ok(()) } else { Err(format!("{r2t:?}")) };
        }
        if self.expected.is_some() {
            return Ok(());
        }
        let most = if self.rng.one_in(2) { data.len() } else { data.len() / 3 + 1 };
        let mut offset = 0;
        for part in data.chunks(most) {
            let is_last = offset + part.len() == data.len();
            let (mut header, mut flags) =
                (h2c_header(cid, tag, offset as u32, part.len() as u32), if is_last { 4 } else { 0 });
            let wrong = self.wrong.filter(|_| self.rng.one_in(2));
            let expected = match wrong {
                Some(Wrong::Offset) => {
                    header[4] ^= 1 << self.rng.below(8);
                    Some((4, None))
                }
                Some(Wrong::Tag) => {
                    header[2] ^= 1 << self.rng.below(8);
                    Some((1, Some(10)))
                }
                Some(Wrong::Length) => {
                    header[8] ^= 1 << self.rng.below(8);
                    Some((1, Some(16)))
                }
                Some(Wrong::NoLast) => {
                    flags ^= 4;
                    Some((1, Some(1)))
                }
                _ => None,
            };
            let bytes = pdu(self.terms, H2C_DATA, flags, &header, part);
            self.last_data.clone_from(&bytes);
            self.outgoing.extend(bytes);
            offset += part.len();
            if expected.is_some() {
                (self.expected, self.wrong) = (expected, None);
                break;
            }
        }
        Ok(())
    }

    fn check_bounds(&self) -> Check<()> {
        // Set aside: the limit; in capsules: eight KiB an entry; and the end of a message that was begun.
        let most = LIMITS.buffered_bytes_max + usize::from(ENTRIES) * 8192 + (1 << 20);
        if self.session.buffered() > most || self.session.outstanding() > usize::from(ENTRIES) {
            return Err(format!("{} bytes, {} commands", self.session.buffered(), self.session.outstanding()));
        }
        Ok(())
    }

    fn check_end(&mut self) -> Check<()> {
        if self.is_noisy {
            let is_told = self.terminated.is_none_or(|(fes, _)| (1..=6).contains(&fes));
            return if is_told { Ok(()) } else { Err(format!("{:?}", self.terminated)) };
        }
        match (self.expected, self.terminated) {
            (None, None) if self.sent.is_empty() && self.session.end().is_none() => Ok(()),
            (Some((fes, fei)), Some((found, info))) => {
                let is_it = (fes == found || fes == 0) && fei.is_none_or(|fei| fei == info);
                let has_ended = matches!(self.session.end(), Some(End::Violation(_)));
                if is_it && has_ended { Ok(()) } else { Err(format!("{fes} {fei:?} and not {found} {info}")) }
            }
            (expected, found) => {
                let (left, end) = (self.sent.len(), self.session.end());
                Err(format!("{expected:?} expected, {found:?} found, {left} commands left, end {end:?}"))
            }
        }
    }
}

fn run(seed: u64) -> Check<()> {
    World::new(seed).run()
}

#[test]
fn what_a_host_hears_is_what_the_standard_says() {
    assert_eq!(first_failure(0..CASES, run), None);
}

#[test]
fn the_generator_reaches_what_it_is_for() {
    let (mut ended, mut terminated, mut digests) = (0, [0; 7], 0);
    for seed in 0..4000 {
        let mut world = World::new(seed);
        world.run().unwrap();
        ended += world.ended;
        digests += u64::from(world.terms.header_digest && world.terms.data_digest);
        if let Some((fes, _)) = world.terminated {
            terminated[usize::from(fes)] += 1;
        }
    }
    assert!(ended > 10_000 && digests > 500, "{ended} {digests}");
    assert!(terminated[1..6].iter().all(|count| *count > 20), "{terminated:?}");
}

#[test]
fn planted_bugs_are_found() {
    for &bug in Bug::ALL {
        plant(Some(bug));
        let found = first_failure(0..CASES / 20, run);
        plant(None);
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}
