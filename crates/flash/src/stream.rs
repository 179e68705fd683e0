//! One stream of writes: its open superblock, its open page, and its programs in flight.
//!
//! Invariants:
//! 1. Pages of the open superblock are programmed whole, in order, each once.
//! 2. `in_flight` holds the programs in the order of issue; what is before its front is done.
//! 3. Without data the page has no buffer, only a fill level.

use std::collections::VecDeque;

use crate::AppendId;

/// The superblock that a stream writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Open {
    pub superblock: u32,
    pub sequence: u64,
    pub salt: u32,
    /// First byte that is not taken, in the superblock.
    pub fill: u64,
}

/// A program in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    pub superblock: u32,
    pub superblock_sequence: u64,
    pub page: u32,
    pub done: bool,
    /// The last append that is wholly in this page and those before it.
    pub append: AppendId,
    /// The sequence of that append.
    pub sequence: u64,
}

/// State of one stream.
#[derive(Debug)]
pub(crate) struct Stream {
    pub open: Option<Open>,
    /// Content of the open page; empty without data.
    pub page: Box<[u8]>,
    /// The last append that lies wholly in the stream, and its sequence.
    pub appended: AppendId,
    pub appended_sequence: u64,
    /// The last append whose pages are all programmed, and its sequence.
    pub durable: AppendId,
    pub durable_sequence: u64,
    in_flight: VecDeque<Program>,
    /// Serial number of the front of `in_flight`.
    front_serial: u64,
    programs_max: usize,
}

impl Stream {
    pub(crate) fn new(page: Box<[u8]>, programs_max: usize) -> Stream {
        Stream {
            open: None,
            page,
            appended: AppendId(0),
            appended_sequence: 0,
            durable: AppendId(0),
            durable_sequence: 0,
            // One more than appends may use: closing a page is never refused.
            in_flight: VecDeque::with_capacity(programs_max + 1),
            front_serial: 0,
            programs_max,
        }
    }

    /// Whether so many more programs may be issued.
    pub(crate) fn has_room_for(&self, programs: usize) -> bool {
        self.in_flight.len() + programs <= self.programs_max
    }

    /// Notes a program and returns its serial number.
    pub(crate) fn issue(&mut self, program: Program) -> u64 {
        assert!(self.in_flight.len() <= self.programs_max, "programs in flight are bounded");
        self.in_flight.push_back(program);
        self.next_serial() - 1
    }

    /// Notes that a program is done; returns it.
    pub(crate) fn done(&mut self, serial: u64) -> Program {
        let index = usize::try_from(serial - self.front_serial).expect("the serial is of a program in flight");
        self.in_flight[index].done = true;
        let program = self.in_flight[index];
        while let Some(front) = self.in_flight.front().filter(|program| program.done) {
            self.durable = front.append;
            self.durable_sequence = self.durable_sequence.max(front.sequence);
            self.in_flight.pop_front();
            self.front_serial += 1;
        }
        program
    }

    /// The last append whose pages were all given to the media.
    pub(crate) fn issued_append(&self) -> AppendId {
        self.in_flight.back().map_or(self.durable, |program| program.append)
    }

    /// Serial number that the next program will get.
    pub(crate) fn next_serial(&self) -> u64 {
        self.front_serial + self.in_flight.len() as u64
    }

    /// Whether all programs before `serial` are done.
    pub(crate) fn all_done_before(&self, serial: u64) -> bool {
        self.front_serial >= serial
    }

    /// Whether a program of one of these pages is in flight.
    pub(crate) fn is_programming(&self, superblock: u32, pages: core::ops::RangeInclusive<u32>) -> bool {
        self.in_flight.iter().any(|p| !p.done && p.superblock == superblock && pages.contains(&p.page))
    }

    /// Superblocks of this stream before this sequence have no program in flight and will get none.
    pub(crate) fn settled_before(&self, next_superblock_sequence: u64) -> u64 {
        let open = self.open.map_or(next_superblock_sequence, |open| open.sequence);
        self.in_flight.front().map_or(open, |program| program.superblock_sequence.min(open))
    }
}
