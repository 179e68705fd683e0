//! What was wrong with a trace: faults of lines, their counts, and when they end the reading.

use std::fmt;

use super::reader::Format;

/// Of the lines that should be requests, so many in a thousand may be bad; with more the file is taken for something
/// else than it was read as, and there is no result.
pub const BAD_PERMILLE_MAX: u64 = 100;
/// That share is judged from so many lines on, and at the end.
pub(super) const JUDGED_FROM: u64 = 1000;
/// So many bad lines are kept to be shown: the first ones.
pub const SHOWN_MAX: usize = 8;
/// So many bytes of such a line are kept.
const SHOWN_BYTES: usize = 100;

/// What is wrong with one line or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Not the format's fields.
    #[error("has fewer or more fields than the format")]
    Fields,
    /// A field that should be a number.
    #[error("the {0} is no number")]
    Number(&'static str),
    /// A number out of range.
    #[error("the {0} is too large a number")]
    TooLarge(&'static str),
    /// An operation that the format does not have.
    #[error("the operation is none of the format's")]
    Op,
    /// A request of no bytes.
    #[error("asks for no bytes")]
    ZeroLength,
    /// A request past the last address.
    #[error("reaches beyond the last address of 64 bits")]
    BeyondAddresses,
    /// An object's number that is no page's.
    #[error("the object's number is too large to be a page's; if objects are hashes, say so when reading")]
    ObjectTooLarge,
    /// A time before the one before, in strict mode.
    #[error("is earlier than the line before it; sort the trace, or read it without strict mode")]
    Unsorted,
    /// A time before what was handed on already.
    #[error("is earlier than requests more than {} lines before it; sort the trace by time", super::SORT_WINDOW)]
    Late,
    /// The end of the input within a record.
    #[error("ends in the middle; the file was cut off, or is of another format")]
    Truncated,
    /// A line of unreasonable length.
    #[error("is longer than {} bytes", super::LINE_BYTES_MAX)]
    LongLine,
    /// More of something than can be told apart.
    #[error("there are more {0} than can be told apart")]
    TooMany(&'static str),
}

/// The kinds by which faults are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// [`Fault::Fields`], [`Fault::Number`], [`Fault::Op`] and [`Fault::LongLine`].
    Malformed,
    /// [`Fault::TooLarge`], [`Fault::BeyondAddresses`], [`Fault::ObjectTooLarge`] and [`Fault::TooMany`].
    OutOfRange,
    /// [`Fault::ZeroLength`].
    ZeroLength,
    /// [`Fault::Unsorted`] and [`Fault::Late`].
    OutOfOrder,
    /// [`Fault::Truncated`].
    Truncated,
}

impl FaultKind {
    /// All of them, in the order in which they are counted.
    pub const ALL: [FaultKind; 5] = [
        FaultKind::Malformed,
        FaultKind::OutOfRange,
        FaultKind::ZeroLength,
        FaultKind::OutOfOrder,
        FaultKind::Truncated,
    ];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FaultKind::Malformed => "malformed",
            FaultKind::OutOfRange => "out of range",
            FaultKind::ZeroLength => "zero length",
            FaultKind::OutOfOrder => "out of order",
            FaultKind::Truncated => "truncated",
        }
    }
}

impl Fault {
    /// The kind as which it is counted.
    #[must_use]
    pub fn kind(self) -> FaultKind {
        match self {
            Fault::Fields | Fault::Number(_) | Fault::Op | Fault::LongLine => FaultKind::Malformed,
            Fault::TooLarge(_) | Fault::BeyondAddresses | Fault::ObjectTooLarge | Fault::TooMany(_) => {
                FaultKind::OutOfRange
            }
            Fault::ZeroLength => FaultKind::ZeroLength,
            Fault::Unsorted | Fault::Late => FaultKind::OutOfOrder,
            Fault::Truncated => FaultKind::Truncated,
        }
    }
}

/// One bad line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, or that of the record, from 1.
    pub number: u64,
    /// What is wrong with it.
    pub fault: Fault,
    /// How it begins. Bytes that are not printed are escaped.
    pub text: String,
}

impl BadLine {
    pub(super) fn new(number: u64, fault: Fault, line: &[u8]) -> Self {
        let text = line[..line.len().min(SHOWN_BYTES)].escape_ascii().to_string();
        BadLine { number, fault, text }
    }
}

impl fmt::Display for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (`{}`)", self.number, self.fault, self.text)
    }
}

/// What has been read so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines, or records, good and bad and empty.
    pub lines: u64,
    /// Lines that are no requests and no faults: comments, other events, empty ones.
    pub skipped: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that came before one with an earlier time, and were sorted.
    pub unsorted: u64,
    /// Bad lines by [`FaultKind::ALL`]; none of them is a request.
    pub faults: [u64; FaultKind::ALL.len()],
    /// The first bad lines.
    pub shown: Vec<BadLine>,
}

impl Counts {
    /// Bad lines of all kinds.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.faults.iter().sum()
    }

    pub(super) fn add_fault(&mut self, fault: Fault, line: &[u8]) {
        self.faults[fault.kind() as usize] += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(BadLine::new(self.lines, fault, line));
        }
    }

    /// Whether so many lines are bad that the rest is no result.
    pub(super) fn is_mixed_up(&self) -> bool {
        let bad = self.bad();
        bad * 1000 > (self.requests + bad) * BAD_PERMILLE_MAX
    }
}

/// Why there is no trace, or no more of it.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The bytes could not be had. After some of them, a damaged or cut-off compressed file says so here.
    #[error("reading the trace failed after {unit} {number}: {cause}", unit = .format.unit())]
    Read {
        /// As what it was read.
        format: Format,
        /// How many lines or records had been read.
        number: u64,
        /// What the reader said.
        cause: std::io::Error,
    },
    /// The beginning could not be had.
    #[error("reading the trace failed at its beginning: {0}")]
    Open(std::io::Error),
    /// No byte.
    #[error("the trace is empty")]
    Empty,
    /// Lines, but no request.
    #[error("the trace has {lines} {unit}s and no request in them; is it a trace of the format `{}`?", .format.name(), unit = .format.unit())]
    NoRequests {
        /// As what it was read.
        format: Format,
        /// How many lines or records there are.
        lines: u64,
    },
    /// No format fits.
    #[error("the format is not recognized; it begins with `{begin}`. Name it: one of {}", Format::names())]
    Unrecognized {
        /// The first bytes.
        begin: String,
    },
    /// A bad line, in strict mode.
    #[error("{} {bad}", .format.unit())]
    Bad {
        /// As what it was read.
        format: Format,
        /// The line.
        bad: Box<BadLine>,
    },
    /// Too many bad lines.
    #[error(
        "{bad} of the first {of} {unit}s are no requests in the format `{}`{other}; the first: {unit} {first}",
        .format.name(), unit = .format.unit(), other = resemblance(*.looks_like)
    )]
    MixedUp {
        /// As what it was read.
        format: Format,
        /// Bad lines.
        bad: u64,
        /// Lines.
        of: u64,
        /// What the bad ones look like, if it is a known format.
        looks_like: Option<Format>,
        /// The first of them.
        first: Box<BadLine>,
    },
    /// An address that the device does not have.
    #[error(
        "request {number} asks for {bytes} bytes at {address}, beyond the capacity of {capacity_bytes}; take a larger \
         device, or map addresses by `modulo` or `compact`"
    )]
    BeyondCapacity {
        /// The request's number, from 1.
        number: u64,
        /// Its first byte.
        address: u64,
        /// Its bytes.
        bytes: u32,
        /// Bytes that there are.
        capacity_bytes: u64,
    },
    /// A trace that touches more than fits, however it is mapped.
    #[error("the trace touches more than {pages} pages, which is what `compact` has room for; take a larger device")]
    TooManyPages {
        /// Pages that there is room for.
        pages: u64,
    },
}

fn resemblance(format: Option<Format>) -> String {
    format.map_or_else(String::new, |format| format!(", and look like `{}`", format.name()))
}
