//! The reader of traces: lines or records in, requests in the order of their times out.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::ops::Range;

use super::blkparse::{self, BlkEvent};
use super::counts::{BadLine, Counts, Fault, JUDGED_FROM, TraceError};
use super::detect::{detect, detect_input};
use super::fields::is_empty;
use super::input::{Input, Line};
use super::memory::{ADDRESS_BYTES, parse_binary, parse_lackey, parse_text};
use super::oracle_general::{self, Objects, RECORD_BYTES};
use super::pages::PageNumbers;
use super::{PAGE_BYTES, mqsim, msr};
use crate::{Nanos, Op, Pace, Request, Source};

/// A request may come so many others too late and is still put in its place. blkparse and the tracers of operating
/// systems merge buffers of several processors and are off by less.
pub const SORT_WINDOW: usize = 1024;

/// A format that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// MSR Cambridge.
    Msr,
    /// MQSim's ASCII traces.
    MqSim,
    /// libCacheSim's binary format of 24 bytes a request.
    OracleGeneral,
    /// What blkparse prints.
    BlkParse,
    /// Loads and stores as text.
    Mem,
    /// What valgrind's lackey prints.
    Lackey,
    /// Addresses of 8 bytes.
    MemBinary,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 7] = [
        Format::Msr,
        Format::MqSim,
        Format::OracleGeneral,
        Format::BlkParse,
        Format::Mem,
        Format::Lackey,
        Format::MemBinary,
    ];
    pub(super) const TEXT: [Format; 5] = [Format::Msr, Format::MqSim, Format::BlkParse, Format::Mem, Format::Lackey];

    /// The name on the command line and in errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Format::Msr => "msr",
            Format::MqSim => "mqsim",
            Format::OracleGeneral => "oracle-general",
            Format::BlkParse => "blkparse",
            Format::Mem => "mem",
            Format::Lackey => "lackey",
            Format::MemBinary => "mem-binary",
        }
    }

    /// The format of this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Format> {
        Format::ALL.into_iter().find(|format| format.name() == name)
    }

    /// All names, for an error.
    #[must_use]
    pub fn names() -> String {
        Format::ALL.map(Format::name).join(", ")
    }

    /// Whether its requests have times. Those of the others come one when the one before it is done.
    #[must_use]
    pub fn is_timed(self) -> bool {
        !matches!(self, Format::Mem | Format::Lackey | Format::MemBinary)
    }

    /// What it consists of.
    #[must_use]
    pub fn unit(self) -> &'static str {
        if self.record_bytes().is_some() { "record" } else { "line" }
    }

    fn record_bytes(self) -> Option<usize> {
        match self {
            Format::OracleGeneral => Some(RECORD_BYTES),
            Format::MemBinary => Some(ADDRESS_BYTES),
            _ => None,
        }
    }
}

/// How a trace is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// The first bad or unsorted line ends the reading.
    pub strict: bool,
    /// Which event of a `blkparse` trace counts.
    pub event: BlkEvent,
    /// Whether the instructions of a `lackey` trace are loads; they are skipped otherwise.
    pub instructions: bool,
    /// Bytes from one object of an `oracle-general` trace to the next: an object is a page of this size.
    pub object_bytes: u32,
    /// Whether its objects are hashes or names instead: each is then the next page when it is first asked for.
    pub hashed_objects: bool,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            strict: false,
            event: BlkEvent::default(),
            instructions: false,
            object_bytes: PAGE_BYTES,
            hashed_objects: false,
        }
    }
}

/// What a line or record is. Times are the trace's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parsed {
    Nothing,
    One(Request),
    Two(Request, Request),
}

/// Numbers for the disks of a trace, in the order in which they appear.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    known: BTreeMap<Vec<u8>, u16>,
    /// The last one, because most often it is the next one too.
    last: Option<(Vec<u8>, u16)>,
}

impl Tenants {
    pub(super) fn number(&mut self, name: &[u8]) -> Result<u16, Fault> {
        if let Some((_, number)) = self.last.as_ref().filter(|(last, _)| last == name) {
            return Ok(*number);
        }
        let new = u16::try_from(self.known.len());
        let number = match self.known.get(name) {
            Some(number) => *number,
            None => new.map_err(|_| Fault::TooMany("disks"))?,
        };
        self.known.insert(name.to_owned(), number);
        self.last = Some((name.to_owned(), number));
        Ok(number)
    }
}

/// Reads a trace.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: Input<R>,
    format: Format,
    is_timed: bool,
    record_bytes: Option<usize>,
    options: ReadOptions,
    tenants: Tenants,
    objects: Objects,
    counts: Counts,
    /// Requests by time, not yet handed on.
    window: VecDeque<Request>,
    /// The second request of the last line.
    second: Option<Request>,
    /// The trace's time of the first request handed on.
    epoch: Option<Nanos>,
    /// The trace's time of the last one.
    handed_on: Nanos,
    input_ended: bool,
    done: bool,
}

impl<R: Read> TraceReader<R> {
    /// A reader of these bytes, decompressed ([`super::unpack`]). Without a format it is found out.
    ///
    /// # Errors
    /// If there are no bytes, or their format is not known.
    pub fn new(bytes: R, format: Option<Format>, options: ReadOptions) -> Result<Self, TraceError> {
        let mut input = Input::new(bytes);
        if input.peek().map_err(TraceError::Open)?.0.is_empty() {
            return Err(TraceError::Empty);
        }
        let format = match format {
            Some(format) => format,
            None => detect_input(&mut input)?,
        };
        let numbers = options.hashed_objects.then(PageNumbers::default);
        Ok(TraceReader {
            input,
            format,
            is_timed: format.is_timed(),
            record_bytes: format.record_bytes(),
            options,
            tenants: Tenants::default(),
            objects: Objects { bytes: options.object_bytes.into(), numbers },
            counts: Counts::default(),
            window: VecDeque::with_capacity(SORT_WINDOW + 1),
            second: None,
            epoch: None,
            handed_on: Nanos::ZERO,
            input_ended: false,
            done: false,
        })
    }

    /// As what it is read.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// What has been read so far.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    fn advance(&mut self, now: Nanos) -> Result<Option<Request>, TraceError> {
        if !self.is_timed {
            return Ok(self.read()?.map(|request| Request { at: now, ..request }));
        }
        while !self.input_ended && self.window.len() <= SORT_WINDOW {
            match self.read()? {
                Some(request) => self.hold(request),
                None => self.input_ended = true,
            }
        }
        let Some(request) = self.window.pop_front() else { return Ok(None) };
        self.handed_on = request.at;
        let epoch = *self.epoch.get_or_insert(request.at);
        Ok(Some(Request { at: Nanos(request.at.0 - epoch.0), ..request }))
    }

    /// Puts a request where its time belongs, behind those of the same time.
    fn hold(&mut self, request: Request) {
        if self.window.back().is_none_or(|last| last.at <= request.at) {
            return self.window.push_back(request);
        }
        self.counts.unsorted += 1;
        let place = self.window.partition_point(|held| held.at <= request.at);
        self.window.insert(place, request);
    }

    /// The next request in the order of the file.
    fn read(&mut self) -> Result<Option<Request>, TraceError> {
        if let Some(second) = self.second.take() {
            self.counts.requests += 1;
            return Ok(Some(second));
        }
        loop {
            let unit = match self.record_bytes {
                Some(bytes) => self.input.record(bytes).map(|record| record.map(Line::Whole)),
                None => self.input.line(),
            };
            let read = |cause| TraceError::Read { format: self.format, number: self.counts.lines, cause };
            let Some(unit) = unit.map_err(read)? else {
                return self.end();
            };
            self.counts.lines += 1;
            let (range, parsed) = match unit {
                Line::TooLong => (0..0, Err(Fault::LongLine)),
                Line::Whole(range) => (range.clone(), self.parse(range)),
            };
            match parsed {
                Ok(Parsed::Nothing) => self.counts.skipped += 1,
                Ok(Parsed::One(request)) => {
                    self.counts.requests += 1;
                    return Ok(Some(request));
                }
                Ok(Parsed::Two(first, second)) => {
                    self.counts.requests += 1;
                    self.second = Some(second);
                    return Ok(Some(first));
                }
                Err(fault) => self.fault(fault, range)?,
            }
        }
    }

    fn parse(&mut self, range: Range<usize>) -> Result<Parsed, Fault> {
        let bytes = self.input.bytes(range);
        let parsed = match self.format {
            Format::OracleGeneral => oracle_general::parse(bytes, &mut self.objects)?,
            Format::MemBinary => parse_binary(bytes)?,
            _ if is_empty(bytes) => Parsed::Nothing,
            Format::Msr => msr::parse(bytes, &mut self.tenants)?,
            Format::MqSim => mqsim::parse(bytes)?,
            Format::BlkParse => blkparse::parse(bytes, self.options.event, &mut self.tenants)?,
            Format::Mem => parse_text(bytes)?,
            Format::Lackey => parse_lackey(bytes, self.options.instructions)?,
        };
        // Of two, the second is at the same place.
        if let Parsed::One(request) | Parsed::Two(request, _) = &parsed {
            self.check(request)?;
        }
        Ok(parsed)
    }

    fn check(&self, request: &Request) -> Result<(), Fault> {
        if request.bytes == 0 && request.op != Op::Flush {
            return Err(Fault::ZeroLength);
        }
        request.address.checked_add(request.bytes.into()).ok_or(Fault::BeyondAddresses)?;
        if !self.is_timed {
            return Ok(());
        }
        let newest = self.window.back().map_or(self.handed_on, |last| last.at);
        if self.options.strict && request.at < newest {
            return Err(Fault::Unsorted);
        }
        if request.at < self.handed_on { Err(Fault::Late) } else { Ok(()) }
    }

    fn fault(&mut self, fault: Fault, range: Range<usize>) -> Result<(), TraceError> {
        let line = self.input.bytes(range);
        if self.options.strict {
            let bad = Box::new(BadLine::new(self.counts.lines, fault, line));
            return Err(TraceError::Bad { format: self.format, bad });
        }
        self.counts.add_fault(fault, line);
        if self.counts.requests + self.counts.bad() >= JUDGED_FROM { self.judge() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<Option<Request>, TraceError> {
        self.judge()?;
        if self.counts.requests == 0 {
            return Err(TraceError::NoRequests { format: self.format, lines: self.counts.lines });
        }
        Ok(None)
    }

    fn judge(&self) -> Result<(), TraceError> {
        let Some(first) = self.counts.shown.first().filter(|_| self.counts.is_mixed_up()) else { return Ok(()) };
        let texts: Vec<&str> = self.counts.shown.iter().map(|bad| bad.text.as_str()).collect();
        Err(TraceError::MixedUp {
            format: self.format,
            bad: self.counts.bad(),
            of: self.counts.lines,
            looks_like: detect(texts.join("\n").as_bytes(), true).filter(|other| *other != self.format),
            first: Box::new(first.clone()),
        })
    }
}

impl<R: Read> Source for TraceReader<R> {
    /// A trace without times is a program that waits for each access.
    fn pace(&self) -> Pace {
        if self.is_timed { Pace::Open } else { Pace::Closed { depth: 1 } }
    }

    fn next(&mut self, now: Nanos) -> Option<Result<Request, TraceError>> {
        if self.done {
            return None;
        }
        let next = self.advance(now).transpose();
        self.done = !matches!(next, Some(Ok(_)));
        next
    }
}
