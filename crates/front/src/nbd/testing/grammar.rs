//! Whole conversations of a client, from a seed: mostly what the protocol allows, often what it forbids, and what is to
//! come back. What is expected follows from how a message was made, not from reading it again.

use super::replies::Style;
use super::stream::Rng;

/// Bytes of a block, and the most of one request and one option in these conversations.
pub const BLOCK: u64 = 4096;
pub const REQUEST_BYTES_MAX: u64 = 12 << 10;
pub const OPTION_BYTES_MAX: u32 = 1 << 10;
pub const EXPORTS: [&str; 3] = ["first", "second", "drittes-größeres"];

/// What is served.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub blocks: u64,
    pub is_read_only: bool,
    pub transfer_blocks_max: u32,
    /// Nothing goes before TLS.
    pub needs_tls: bool,
}

/// What is to come back, in this order.
#[derive(Debug, PartialEq, Eq)]
pub enum Expected {
    /// Replies to an option, by their types.
    Option { option: u32, kinds: Vec<u32> },
    /// The reply to NBD_OPT_EXPORT_NAME, and whether zeroes follow it.
    ExportName { zeroes: bool },
    /// A reply to a request.
    Reply {
        cookie: u64,
        offset: u64,
        outcome: Outcome,
        /// Bytes of the conversation up to the end of the request: before those, nothing may be answered.
        after: usize,
    },
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Error {
        error: u32,
        of_read: bool,
    },
    Done {
        of_read: bool,
    },
    /// These bytes, where they are specified; and whether they are to come in one piece.
    Read {
        data: Vec<Option<u8>>,
        is_whole: bool,
    },
    /// Extents within so many bytes; and whether only one.
    Status {
        length: u64,
        is_one: bool,
    },
}

pub struct Conversation {
    pub world: World,
    pub style: Style,
    pub bytes: Vec<u8>,
    pub expected: Vec<Expected>,
    /// Where TLS begins, if it does: the client waits there until it is told that it does.
    pub tls_at: Option<usize>,
    /// Something was broken at random: nothing can be expected.
    pub is_broken: bool,
}

const READ: u16 = 0;
const WRITE: u16 = 1;
const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const CONTEXT: u32 = 4;
const UNSUP: u32 = (1 << 31) + 1;
const INVALID: u32 = (1 << 31) + 3;
const TLS_REQD: u32 = (1 << 31) + 5;
const UNKNOWN: u32 = (1 << 31) + 6;
const TOO_BIG: u32 = (1 << 31) + 9;
const EXT_HEADER_REQD: u32 = (1 << 31) + 10;

struct Writer<'a> {
    rng: &'a mut Rng,
    talk: Conversation,
    has_context: bool,
    no_zeroes: bool,
    /// The export's bytes after what was asked so far; `None` where they are not specified.
    model: Vec<Option<u8>>,
}

/// The conversation of a seed.
pub fn conversation(seed: u64) -> Conversation {
    let rng = &mut Rng(seed);
    let world = World {
        blocks: 1 + rng.below(5),
        is_read_only: rng.one_in(8),
        transfer_blocks_max: rng.pick(&[1, 2, 3, 32]),
        needs_tls: rng.one_in(4),
    };
    let no_zeroes = rng.one_in(2);
    let model = vec![Some(0); (world.blocks * BLOCK) as usize];
    let talk = Conversation {
        world,
        style: Style::Simple,
        bytes: Vec::new(),
        expected: Vec::new(),
        tls_at: None,
        is_broken: false,
    };
    let mut writer = Writer { rng, talk, has_context: false, no_zeroes, model };
    writer.talk.bytes.extend_from_slice(&(1 | u32::from(no_zeroes) << 1).to_be_bytes());
    let is_let_in = !world.needs_tls || writer.secure();
    if is_let_in {
        for _ in 0..writer.rng.below(6) {
            writer.option();
        }
    }
    if is_let_in && writer.enter() {
        for cookie in 0..1 + writer.rng.below(12) {
            writer.request(cookie << 32 | seed & 0xffff);
        }
        if writer.rng.one_in(2) {
            writer.header(2, 0, 0, 0, 0);
        }
    }
    let mut talk = writer.talk;
    if rng.one_in(5) {
        break_something(rng, &mut talk);
    }
    talk
}

fn break_something(rng: &mut Rng, talk: &mut Conversation) {
    talk.is_broken = true;
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(talk.bytes.len() as u64) as usize;
        match rng.below(4) {
            0 => talk.bytes[at] ^= 1 << rng.below(8),
            1 => talk.bytes[at] = rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            2 => drop(talk.bytes.drain(at..(at + 1 + rng.below(9) as usize).min(talk.bytes.len()))),
            _ => talk.bytes.insert(at, rng.draw() as u8),
        }
        if talk.bytes.is_empty() {
            return;
        }
    }
}

impl Writer<'_> {
    fn send_option(&mut self, option: u32, data: &[u8], kinds: &[u32]) {
        self.talk.bytes.extend_from_slice(b"IHAVEOPT");
        self.talk.bytes.extend_from_slice(&option.to_be_bytes());
        self.talk.bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.talk.bytes.extend_from_slice(data);
        self.talk.expected.push(Expected::Option { option, kinds: kinds.to_vec() });
    }

    /// Options before TLS, and its beginning. False: the session has ended.
    fn secure(&mut self) -> bool {
        for _ in 0..self.rng.below(4) {
            let option = self.rng.pick(&[0, 3, 4, 6, 7, 8, 9, 10, 11, 12, u32::MAX]);
            let data = self.rng.pick(&[&b""[..], b"x", &[0; 6]]);
            self.send_option(option, data, &[TLS_REQD]);
        }
        match self.rng.below(8) {
            0 => {
                self.send_option(2, &[], &[ACK]);
                return false;
            }
            1 => {
                self.send_option(1, EXPORTS[0].as_bytes(), &[]);
                return false;
            }
            2 => self.send_option(5, b"!", &[INVALID]),
            _ => {}
        }
        self.send_option(5, &[], &[ACK]);
        self.talk.tls_at = Some(self.talk.bytes.len());
        true
    }

    fn option(&mut self) {
        let style = self.talk.style;
        match self.rng.below(12) {
            0 => self.send_option(3, &[], &[SERVER, SERVER, SERVER, ACK]),
            1 => self.send_option(3, b"x", &[INVALID]),
            2 | 3 => {
                let kind = match style {
                    Style::Simple => ACK,
                    Style::Structured => INVALID,
                    Style::Extended => EXT_HEADER_REQD,
                };
                self.send_option(8, &[], &[kind]);
                if kind == ACK {
                    self.talk.style = Style::Structured;
                }
            }
            4 => {
                self.send_option(11, &[], &[if style == Style::Extended { INVALID } else { ACK }]);
                self.talk.style = Style::Extended;
            }
            5 => self.send_option(5, &[], &[if self.talk.world.needs_tls { INVALID } else { UNSUP }]),
            6 => {
                let option = self.rng.pick(&[0, 4, 12, 255, u32::MAX]);
                let data = vec![7; self.rng.below(99) as usize];
                self.send_option(option, &data, &[UNSUP]);
            }
            7 => {
                let option = self.rng.pick(&[3, 6, 7, 8, 10, 77]);
                let data = vec![0; OPTION_BYTES_MAX as usize + 1 + self.rng.below(1000) as usize];
                self.send_option(option, &data, &[TOO_BIG]);
            }
            8 => self.info(),
            _ => self.contexts(),
        }
    }

    /// NBD_OPT_INFO, right or wrong.
    fn info(&mut self) {
        let items = [1_u16, 3, 0, 99];
        let count = self.rng.below(4) as usize;
        let name = self.rng.pick(&["", EXPORTS[0], EXPORTS[2]]);
        let good = info_data(name, &items[..count]);
        match self.rng.below(4) {
            0 => self.send_option(6, &info_data("nobody", &[]), &[UNKNOWN]),
            1 => self.send_option(6, &good[..good.len() - 1], &[INVALID]),
            2 => self.send_option(6, &[&good[..], b"!"].concat(), &[INVALID]),
            _ => {
                let infos = 1 + items[..count].iter().filter(|item| [1, 3].contains(*item)).count();
                let mut kinds = vec![INFO; infos];
                kinds.push(ACK);
                self.send_option(6, &good, &kinds);
            }
        }
    }

    /// NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT, right or wrong.
    fn contexts(&mut self) {
        let option = self.rng.pick(&[9, 10, 10, 10]);
        let sets = option == 10;
        let queries: Vec<&str> = (0..self.rng.below(3))
            .map(|_| self.rng.pick(&["base:allocation", "base:", "x-a:b", "base:other"]))
            .collect();
        let name = self.rng.pick(&["", EXPORTS[0], EXPORTS[1], "nobody"]);
        let mut data = string(name);
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend_from_slice(&string(query)));
        let is_cut = self.rng.one_in(6);
        if is_cut {
            data.pop();
        }
        if sets {
            self.has_context = false;
        }
        let is_named = queries.contains(&"base:allocation");
        let is_found = is_named || (!sets && (queries.is_empty() || queries.contains(&"base:")));
        let kinds: &[u32] = match () {
            () if self.talk.style == Style::Simple || is_cut => &[INVALID],
            () if name == "nobody" => &[UNKNOWN],
            () if is_found => &[CONTEXT, ACK],
            () => &[ACK],
        };
        self.send_option(option, &data, kinds);
        self.has_context |= sets && kinds.len() == 2 && name != EXPORTS[1];
    }

    /// The end of the options. False: the session has ended.
    fn enter(&mut self) -> bool {
        let name = self.rng.pick(&["", EXPORTS[0]]);
        match self.rng.below(8) {
            0 => {
                self.send_option(2, &[], &[ACK]);
                false
            }
            1 => {
                self.send_option(1, b"nobody", &[]);
                false
            }
            2 => {
                self.send_option(1, name.as_bytes(), &[]);
                self.talk.expected.pop();
                if self.talk.style == Style::Extended {
                    return false;
                }
                self.talk.expected.push(Expected::ExportName { zeroes: !self.no_zeroes });
                true
            }
            _ => {
                self.send_option(7, &info_data(name, &[]), &[INFO, ACK]);
                true
            }
        }
    }

    fn header(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u64) {
        let is_extended = self.talk.style == Style::Extended;
        let bytes = &mut self.talk.bytes;
        bytes.extend_from_slice(&if is_extended { 0x21e41c71_u32 } else { 0x25609513 }.to_be_bytes());
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        if is_extended {
            bytes.extend_from_slice(&length.to_be_bytes());
        } else {
            bytes.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }

    fn expect(&mut self, cookie: u64, offset: u64, outcome: Outcome) {
        let after = self.talk.bytes.len();
        self.talk.expected.push(Expected::Reply { cookie, offset, outcome, after });
    }

    /// Somewhere in the export, near what is interesting.
    fn range(&mut self) -> (u64, u64) {
        let bytes = self.model.len() as u64;
        let near = |rng: &mut Rng| match rng.below(4) {
            0 => rng.below(bytes + 1),
            1 => (rng.below(bytes / BLOCK + 1) * BLOCK + rng.below(3)).saturating_sub(1).min(bytes),
            _ => rng.below(bytes / BLOCK + 1) * BLOCK,
        };
        let (one, other) = (near(self.rng), near(self.rng));
        (one.min(other), one.abs_diff(other).min(REQUEST_BYTES_MAX))
    }

    fn request(&mut self, cookie: u64) {
        let extended = if self.talk.style == Style::Extended { 1 << 5 } else { 0 };
        let (offset, length) = self.range();
        let error = |error, of_read| Outcome::Error { error, of_read };
        match self.rng.below(16) {
            0 => self.beyond_the_end(cookie, length),
            1 => {
                // Longer than is allowed.
                let command = self.rng.pick(&[READ, WRITE, 5]);
                let length = REQUEST_BYTES_MAX + 1 + self.rng.below(5000);
                let is_whole = command == READ && self.talk.style != Style::Simple && self.rng.one_in(2);
                let is_refused = command == WRITE && self.talk.world.is_read_only;
                let flags = if is_whole {
                    4
                } else if command == WRITE {
                    extended
                } else {
                    0
                };
                self.header(command, flags, cookie, 0, length);
                self.payload(command, length);
                let number = if is_refused {
                    1
                } else if is_whole {
                    75
                } else {
                    22
                };
                self.expect(cookie, 0, error(number, command == READ));
            }
            2 => {
                // A command or a flag that is not known, or not of this command.
                let (command, flags) = self.rng.pick(&[(8, 0), (99, 1), (0, 2), (3, 8), (4, 4), (6, 8), (0, 1 << 9)]);
                self.header(command, flags, cookie, offset, length);
                self.expect(cookie, offset, error(22, command == READ));
            }
            3 => {
                let is_bad = self.rng.one_in(3);
                self.header(3, 0, cookie, u64::from(is_bad), 0);
                let outcome = if is_bad { error(22, false) } else { Outcome::Done { of_read: false } };
                self.expect(cookie, u64::from(is_bad), outcome);
            }
            4 => {
                self.header(5, 0, cookie, offset, length);
                self.expect(cookie, offset, Outcome::Done { of_read: false });
            }
            5 => self.block_status(cookie, offset, length),
            6 | 7 => self.trim_or_zero(cookie, offset, length),
            8..12 => self.write(cookie, offset, length, extended),
            _ => {
                let is_whole = self.talk.style != Style::Simple && self.rng.one_in(3);
                let flags = if is_whole { 4 } else { 0 } | self.rng.below(2) as u16;
                self.header(READ, flags, cookie, offset, length);
                let outcome = if length == 0 {
                    Outcome::Done { of_read: true }
                } else {
                    let data = self.model[offset as usize..(offset + length) as usize].to_vec();
                    Outcome::Read { data, is_whole }
                };
                self.expect(cookie, offset, outcome);
            }
        }
    }

    /// Beyond the end, by one byte or beyond all numbers.
    fn beyond_the_end(&mut self, cookie: u64, length: u64) {
        let bytes = self.model.len() as u64;
        let extended = if self.talk.style == Style::Extended { 1 << 5 } else { 0 };
        let command = self.rng.pick(&[READ, WRITE, 4, 5, 6]);
        let offset = self.rng.pick(&[bytes, bytes + 1, u64::MAX, u64::MAX - 511, bytes - length + 1]);
        let length = length.max(1);
        let error = |error, of_read| Outcome::Error { error, of_read };
        let outcome = match command {
            1 | 4 | 6 if self.talk.world.is_read_only => error(1, false),
            1 | 6 => error(28, false),
            _ => error(22, command == READ),
        };
        self.header(command, if command == WRITE { extended } else { 0 }, cookie, offset, length);
        self.payload(command, length);
        self.expect(cookie, offset, outcome);
    }

    /// What follows the header of a write; it looks like requests, in case somebody reads it as such.
    fn payload(&mut self, command: u16, length: u64) {
        if command == 1 {
            let decoy = 0x2560_9513_u32.to_be_bytes();
            self.talk.bytes.extend((0..length as usize).map(|at| decoy[at % 4]));
        }
    }

    fn write(&mut self, cookie: u64, offset: u64, length: u64, extended: u16) {
        let fua = self.rng.below(2) as u16;
        self.header(1, extended | fua, cookie, offset, length);
        let outcome = if self.talk.world.is_read_only {
            self.payload(1, length);
            Outcome::Error { error: 1, of_read: false }
        } else {
            let first = self.rng.draw();
            for at in 0..length {
                let byte = (first.wrapping_add(at * 7) >> 3) as u8;
                self.talk.bytes.push(byte);
                self.model[(offset + at) as usize] = Some(byte);
            }
            Outcome::Done { of_read: false }
        };
        self.expect(cookie, offset, outcome);
    }

    fn block_status(&mut self, cookie: u64, offset: u64, length: u64) {
        let is_one = self.rng.one_in(2);
        self.header(7, if is_one { 8 } else { 0 }, cookie, offset, length);
        let outcome = if self.has_context && length > 0 {
            Outcome::Status { length, is_one }
        } else {
            Outcome::Error { error: 22, of_read: false }
        };
        self.expect(cookie, offset, outcome);
    }

    fn trim_or_zero(&mut self, cookie: u64, offset: u64, length: u64) {
        let zeroes = self.rng.one_in(2);
        let flags = if zeroes { self.rng.pick(&[0, 1, 2, 16, 18]) } else { self.rng.pick(&[0, 1]) };
        self.header(if zeroes { 6 } else { 4 }, flags, cookie, offset, length);
        let outcome = match () {
            () if self.talk.world.is_read_only => Outcome::Error { error: 1, of_read: false },
            () if flags == 18 => Outcome::Error { error: 95, of_read: false },
            () => {
                for block in 0..self.talk.world.blocks {
                    // What is trimmed in part is kept in whole.
                    let is_whole = offset <= block * BLOCK && (block + 1) * BLOCK <= offset + length;
                    for at in (block * BLOCK).max(offset)..((block + 1) * BLOCK).min(offset + length) {
                        if zeroes {
                            self.model[at as usize] = Some(0);
                        } else if is_whole {
                            self.model[at as usize] = None;
                        }
                    }
                }
                Outcome::Done { of_read: false }
            }
        };
        self.expect(cookie, offset, outcome);
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

fn info_data(name: &str, items: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend_from_slice(&(items.len() as u16).to_be_bytes());
    items.iter().for_each(|item| data.extend_from_slice(&item.to_be_bytes()));
    data
}
