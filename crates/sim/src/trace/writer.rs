//! Writes requests as a trace.
//!
//! No format holds all that a request is. What one cannot say is refused where the replay would be another one (a
//! trim in a format of reads and writes), and given up where it is only coarser; [`Target::loses`] says what.

use std::io::{self, Write};

use super::PAGE_BYTES;
use super::fields::SECTOR_BYTES;
use super::msr::TICK_NS;
use super::oracle_general::{Record, SECOND_NS};
use super::pages::{PAGES_MAX, PageNumbers};
use crate::{Op, Request};

/// Most records of an `oracle-general` trace that is written: it has to be held until its end is known.
const RECORDS_MAX: usize = 1 << 30;

/// A format that can be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// libCacheSim's binary format of 24 bytes a page.
    OracleGeneral,
    /// MSR Cambridge.
    Msr,
    /// MQSim's ASCII traces.
    MqSim,
    /// Loads and stores as text.
    Mem,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 4] = [Target::OracleGeneral, Target::Msr, Target::MqSim, Target::Mem];

    /// The name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Target::OracleGeneral => "oracle-general",
            Target::Msr => "msr",
            Target::MqSim => "mqsim",
            Target::Mem => "mem",
        }
    }

    /// What the format has no place for.
    #[must_use]
    pub fn loses(self) -> &'static str {
        match self {
            Target::OracleGeneral => {
                "a request is a read of each 4 KiB page that it touches; times are whole seconds; no tenants"
            }
            Target::Msr => "times are whole 100 ns",
            Target::MqSim => "requests begin and end at 512-byte sectors",
            Target::Mem => "no times, no tenants",
        }
    }

    /// Whether its requests have times.
    #[must_use]
    pub fn is_timed(self) -> bool {
        self != Target::Mem
    }
}

/// Why a request was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The caller's writer failed.
    #[error("writing the trace failed: {0}")]
    Io(#[from] io::Error),
    /// An operation that the format does not have.
    #[error("request {number} is a {}, which the format `{}` does not have; leave such requests out", .op.name(), .target.name())]
    Op {
        /// The request's number, from 1.
        number: u64,
        /// What it does.
        op: Op,
        /// The format.
        target: Target,
    },
    /// A time that the format does not have.
    #[error("request {number} is at {seconds} s, later than `oracle-general` can say; scale the time down")]
    Late {
        /// The request's number, from 1.
        number: u64,
        /// Its time.
        seconds: u64,
    },
    /// More than can be held.
    #[error("`oracle-general` needs the whole trace in memory, and it has more than {0} {1}; write a part of it")]
    TooLong(u64, &'static str),
}

/// Writes requests, one after the other.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    target: Target,
    written: u64,
    /// Of `oracle-general` alone, whose records name what comes later.
    records: Vec<Record>,
}

impl<W: Write> TraceWriter<W> {
    /// A writer of a format. Buffers are the caller's.
    pub fn new(out: W, target: Target) -> Self {
        TraceWriter { out, target, written: 0, records: Vec::new() }
    }

    /// Writes a request.
    ///
    /// # Errors
    /// If the writer fails, or the format cannot hold the request. What was written until then is no trace.
    pub fn write(&mut self, request: &Request) -> Result<(), WriteError> {
        self.written += 1;
        let Request { at, address, bytes, tenant, op } = *request;
        let is_read = match op {
            Op::Read | Op::Load => true,
            Op::Write | Op::Store => false,
            Op::Trim | Op::Flush => return Err(WriteError::Op { number: self.written, op, target: self.target }),
        };
        match self.target {
            Target::OracleGeneral => self.hold(request)?,
            Target::Msr => {
                let kind = if is_read { "Read" } else { "Write" };
                writeln!(self.out, "{},osier,{tenant},{kind},{address},{bytes},0", at.0 / TICK_NS)?;
            }
            Target::MqSim => {
                let first = address / SECTOR_BYTES;
                let sectors = (address + u64::from(bytes)).div_ceil(SECTOR_BYTES) - first;
                writeln!(self.out, "{} {tenant} {first} {sectors} {}", at.0, u8::from(is_read))?;
            }
            Target::Mem => writeln!(self.out, "{} 0x{address:x} {bytes}", if is_read { 'R' } else { 'W' })?,
        }
        Ok(())
    }

    fn hold(&mut self, request: &Request) -> Result<(), WriteError> {
        let seconds = request.at.0 / SECOND_NS;
        let late = WriteError::Late { number: self.written, seconds };
        let seconds = u32::try_from(seconds).map_err(|_| late)?;
        let page = u64::from(PAGE_BYTES);
        let last = (request.address + u64::from(request.bytes).saturating_sub(1)) / page;
        for object in request.address / page..=last {
            if self.records.len() == RECORDS_MAX {
                return Err(WriteError::TooLong(RECORDS_MAX as u64, "records"));
            }
            self.records.push(Record { seconds, object, bytes: PAGE_BYTES, next: -1 });
        }
        Ok(())
    }

    /// Writes what had to wait for the end, and gives back the writer.
    ///
    /// # Errors
    /// If it fails.
    pub fn finish(mut self) -> Result<W, WriteError> {
        fill_in_next(&mut self.records)?;
        for record in self.records {
            self.out.write_all(&record.to_bytes())?;
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Finds each record's next use, from the last one backwards.
fn fill_in_next(records: &mut [Record]) -> Result<(), WriteError> {
    let mut numbers = PageNumbers::default();
    // Where each page was last seen, by its number.
    let mut seen: Vec<i64> = Vec::new();
    for (index, record) in records.iter_mut().enumerate().rev() {
        let position = index as i64 + 1;
        let numbered = numbers.number(record.object).ok_or(WriteError::TooLong(PAGES_MAX, "pages"))?;
        match numbered {
            (_, true) => seen.push(position),
            (number, false) => record.next = std::mem::replace(&mut seen[number as usize], position),
        }
    }
    Ok(())
}
