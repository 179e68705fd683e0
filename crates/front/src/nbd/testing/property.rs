//! Random requests over several connections at once, to a volume that ends what it is asked in any order, against what
//! every byte may be: a read gives a value that some write put there, which no other write had replaced for certain
//! before the read began.

use std::collections::BTreeMap;
use std::io::PipeReader;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use super::Duplex as _;
use super::replies::{Replies, Reply, Style};
use super::stream::{Check, Rng, drain, feed, first_failure};
use crate::memory::Disk;
use crate::nbd::bytes::Bytes;
use crate::nbd::lock::RangeLock;
use crate::nbd::planted::{Bug, plant};
use crate::nbd::session::{Event, Limits, Security, Session};
use crate::volume::{About, BLOCK_BYTES, Ended, Operation, Volume};

const SEEDS: u64 = 300;
const BLOCKS: u64 = 6;
const BYTES: u64 = BLOCKS * BLOCK_BYTES as u64;
const CONNECTIONS: usize = 3;
const REQUESTS: u64 = 150;
const OUTSTANDING_MAX: usize = 6;

const LIMITS: Limits = Limits {
    staging_bytes: 9 << 10,
    option_bytes_max: 1 << 10,
    request_bytes_max: BYTES as u32,
    outstanding_max: OUTSTANDING_MAX,
    buffered_bytes_max: 2 * BYTES,
};

/// Bugs of order, which one request at a time does not show.
pub const OF_ORDER: [Bug; 4] = [Bug::PatchAtOnce, Bug::IgnoreCounted, Bug::TakeWithoutBound, Bug::AnswerFirst];

/// A volume that does some of what it has when it is asked what has ended.
struct Shuffled {
    disk: Arc<Disk>,
    taken: Vec<(u64, Operation)>,
    rng: Rng,
    event: PipeReader,
}

impl Volume for Shuffled {
    fn blocks(&self) -> u64 {
        BLOCKS
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn about(&self) -> About {
        About { model: String::new(), nguid: [0; 16], has_volatile_cache: true }
    }

    fn transfer_blocks_max(&self) -> u32 {
        2
    }

    fn submit(&mut self, token: u64, operation: Operation) -> Result<(), Operation> {
        if self.taken.len() > 4 {
            return Err(operation);
        }
        self.taken.push((token, operation));
        Ok(())
    }

    fn reap(&mut self, ended: &mut Vec<Ended>) {
        for _ in 0..self.rng.below(4) {
            if !self.taken.is_empty() {
                let drawn = self.rng.below(self.taken.len() as u64) as usize;
                let (token, operation) = self.taken.swap_remove(drawn);
                ended.push(Ended { token, outcome: self.disk.apply(operation) });
            }
        }
    }

    fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    fn arm(&mut self) -> bool {
        false
    }
}

/// A change of a range of bytes, and when it was asked for and answered.
struct Change {
    from: u64,
    to: u64,
    value: u8,
    /// A trim may leave what was there.
    is_certain: bool,
    began: u64,
    ended: u64,
}

/// Every change so far, the oldest of which made everything zero.
struct History(Vec<Change>);

impl History {
    /// Whether a byte may have been read as `value` between two moments.
    fn allows(&self, at: u64, value: u8, began: u64, ended: u64) -> bool {
        let covers = |change: &&Change| (change.from..change.to).contains(&at);
        self.0.iter().filter(covers).any(|change| {
            let is_replaced = |by: &Change| by.is_certain && change.ended < by.began && by.ended < began;
            change.value == value && change.began < ended && !self.0.iter().filter(covers).any(is_replaced)
        })
    }

    fn check(&self, offset: u64, data: &[u8], began: u64, ended: u64, step: usize) -> Check<()> {
        let wrong = |at: &usize| !self.allows(offset + *at as u64, data[*at], began, ended);
        match (0..data.len()).step_by(step).find(wrong) {
            Some(at) => Err(format!("byte {} was read as {}, which nobody left there", offset + at as u64, data[at])),
            None => Ok(()),
        }
    }
}

/// What a client waits for.
enum Asked {
    Read { offset: u64, length: u64, began: u64 },
    Change { offset: u64, index: usize },
    Other { offset: u64 },
}

struct Client {
    session: Session,
    bytes: Bytes,
    style: Style,
    unsent: Vec<u8>,
    received: Vec<u8>,
    asked: BTreeMap<u64, Asked>,
    is_greeted: bool,
}

impl Client {
    fn new(disk: &Arc<Disk>, lock: &Arc<RangeLock>, rng: &mut Rng) -> Client {
        let (event, _) = std::io::pipe().unwrap();
        let volume = Shuffled { disk: Arc::clone(disk), taken: Vec::new(), rng: Rng(rng.draw()), event };
        let style = rng.pick(&[Style::Simple, Style::Structured, Style::Extended]);
        let mut unsent = 3_u32.to_be_bytes().to_vec();
        let option = |number: u32, data: &[u8]| {
            [b"IHAVEOPT", &number.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat()
        };
        match style {
            Style::Simple => {}
            Style::Structured => unsent.extend(option(8, &[])),
            Style::Extended => unsent.extend(option(11, &[])),
        }
        unsent.extend(option(7, &[0; 6]));
        Client {
            session: Session::new(Arc::new(["only".to_owned()]), LIMITS, Security::None),
            bytes: Bytes::new(Box::new(volume), lock).unwrap(),
            style,
            unsent,
            received: Vec::new(),
            asked: BTreeMap::new(),
            is_greeted: false,
        }
    }

    fn ask(&mut self, rng: &mut Rng, cookie: u64, now: u64, history: &mut History) {
        let point = |rng: &mut Rng| match rng.below(3) {
            0 => rng.below(BYTES + 1),
            _ => rng.below(BLOCKS + 1) * BLOCK_BYTES as u64,
        };
        let (one, other) = (point(rng), point(rng));
        let (offset, length) = (one.min(other), one.abs_diff(other).max(1).min(BYTES - one.min(other)));
        if length == 0 {
            return;
        }
        let value = (cookie % 255) as u8 + 1;
        let (command, asked) = match rng.below(10) {
            0 => (3, Asked::Other { offset: 0 }),
            1 => (5, Asked::Other { offset }),
            2..5 => (0, Asked::Read { offset, length, began: now }),
            5 => (4, self.change(history, offset, length, 0, false, now)),
            6 => (6, self.change(history, offset, length, 0, true, now)),
            _ => (1, self.change(history, offset, length, value, true, now)),
        };
        let (offset, length) = if command == 3 { (0, 0) } else { (offset, length) };
        let is_extended = self.style == Style::Extended;
        self.unsent.extend(if is_extended { 0x21e41c71_u32 } else { 0x25609513 }.to_be_bytes());
        self.unsent.extend(if is_extended && command == 1 { 1_u16 << 5 } else { 0 }.to_be_bytes());
        self.unsent.extend((command as u16).to_be_bytes());
        self.unsent.extend(cookie.to_be_bytes());
        self.unsent.extend(offset.to_be_bytes());
        self.unsent.extend(&length.to_be_bytes()[if is_extended { 0 } else { 4 }..]);
        if command == 1 {
            self.unsent.extend(std::iter::repeat_n(value, length as usize));
        }
        self.asked.insert(cookie, asked);
    }

    fn change(&self, history: &mut History, offset: u64, length: u64, value: u8, is_certain: bool, now: u64) -> Asked {
        let to = offset + length;
        history.0.push(Change { from: offset, to, value, is_certain, began: now, ended: u64::MAX });
        Asked::Change { offset, index: history.0.len() - 1 }
    }

    /// Moves some bytes in, does some work, moves some bytes out.
    fn advance(&mut self, rng: &mut Rng) -> Check<()> {
        let filled = feed(&mut self.session, &self.unsent, rng.pick(&[0, 1, 30, 3000, 100_000]));
        self.unsent.drain(..filled);
        while let Some(event) = self.session.next_event() {
            match event {
                Event::Open { .. } => self.session.opened(Ok(self.bytes.info())),
                Event::Request(request) => self.bytes.begin(request, self.session.pool()),
                Event::StartTls => return Err("nobody asked for TLS".to_owned()),
            }
            if self.session.outstanding() > OUTSTANDING_MAX {
                return Err(format!("{} requests are outstanding", self.session.outstanding()));
            }
        }
        let mut answers = Vec::new();
        self.bytes.advance(self.session.pool(), &mut answers);
        answers.into_iter().for_each(|(token, answer)| self.session.answer(token, answer));
        drain::<3>(&mut self.session, &mut self.received, rng.pick(&[10, 5000, 100_000]));
        Ok(())
    }

    /// Looks at the replies, once they are whole.
    fn hear(&mut self, now: u64, history: &mut History) -> Check<()> {
        if self.session.has_output() || !self.session.is_transmitting() {
            return Ok(());
        }
        let received = std::mem::take(&mut self.received);
        let mut replies = Replies(&received);
        if !self.is_greeted {
            self.is_greeted = true;
            replies.greeting()?;
            match self.style {
                Style::Simple => {}
                Style::Structured => assert_eq!(replies.option(8)?.0, 1),
                Style::Extended => assert_eq!(replies.option(11)?.0, 1),
            }
            assert_eq!((replies.option(7)?.0, replies.option(7)?.0), (3, 1));
        }
        while !replies.0.is_empty() {
            Replies(replies.0).bytes(16)?;
            let cookie = Replies(&replies.0[8..]).number(8)?;
            let asked = self.asked.remove(&cookie).ok_or(format!("an answer to {cookie}, which is not outstanding"))?;
            let (offset, read) = match &asked {
                Asked::Read { offset, length, .. } => (*offset, Some(*length)),
                Asked::Change { offset, .. } | Asked::Other { offset } => (*offset, None),
            };
            let mut reply: Reply = replies.reply(self.style, offset, read)?;
            if reply.error != 0 {
                return Err(format!("error {}", reply.error));
            }
            match asked {
                Asked::Change { index, .. } => history.0[index].ended = now,
                Asked::Read { length, began, .. } => {
                    history.check(offset, &reply.data(offset, length)?, began, now, 61)?;
                }
                Asked::Other { .. } => {}
            }
        }
        Ok(())
    }
}

fn run(seed: u64) -> Check<()> {
    let rng = &mut Rng(seed);
    let (disk, lock) = (Arc::new(Disk::new(BLOCKS)), Arc::new(RangeLock::default()));
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::new(&disk, &lock, rng)).collect();
    let everything = Change { from: 0, to: BYTES, value: 0, is_certain: true, began: 0, ended: 0 };
    let mut history = History(vec![everything]);
    let (mut now, mut cookie, mut quiet) = (1, 0, 0);
    while quiet < 10_000 {
        now += 1;
        let drawn = rng.below(CONNECTIONS as u64) as usize;
        if cookie < REQUESTS && clients[drawn].asked.len() < 2 * OUTSTANDING_MAX && rng.one_in(2) {
            cookie += 1;
            clients[drawn].ask(rng, cookie, now, &mut history);
        }
        clients[drawn].advance(rng)?;
        clients[drawn].hear(now + 1, &mut history)?;
        now += 1;
        quiet += 1;
        if cookie == REQUESTS && clients.iter().all(|client| client.asked.is_empty()) {
            return history.check(0, &disk.bytes.read().unwrap().clone(), now, now + 1, 1);
        }
        if cookie < REQUESTS {
            quiet = 0;
        }
    }
    let left: Vec<usize> = clients.iter().map(|client| client.asked.len()).collect();
    Err(format!("requests without an answer, by connection: {left:?}"))
}

#[test]
fn every_byte_is_what_some_write_left_there() {
    assert_eq!(first_failure(0..SEEDS, run), None);
}

#[test]
fn planted_bugs_are_found() {
    for bug in OF_ORDER.into_iter().chain([Bug::LoseTail, Bug::MisplaceHole]) {
        plant(Some(bug));
        let found = first_failure(0..SEEDS, run);
        plant(None);
        assert!(found.is_some(), "{bug:?} went unnoticed");
    }
}
