//! The text that blkparse prints by default (blktrace, `blkparse_fmt.c`): `major,minor cpu sequence
//! seconds.nanoseconds pid action rwbs sector + sectors [command]`.
//!
//! One request of a program gives several events. [`BlkEvent`] says which of them is *the* request; all others are
//! skipped, and so are the sums that blkparse prints at the end.

use super::counts::Fault;
use super::fields::{Commas, Fields, decimal, nanos, required, sector_address, sector_bytes};
use super::oracle_general::SECOND_NS;
use super::reader::{Parsed, Tenants};
use crate::{Nanos, Op, Request};

/// Which event of a request counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlkEvent {
    /// `Q`: as the file system queued it, before it was merged and split.
    Queue,
    /// `D`: as the driver gave it to the device. The default: what is simulated is the device, and this is what a
    /// device saw, when it saw it.
    #[default]
    Issue,
    /// `C`: as the device completed it. The time is that of the completion.
    Complete,
}

impl BlkEvent {
    /// All of them.
    pub const ALL: [BlkEvent; 3] = [BlkEvent::Queue, BlkEvent::Issue, BlkEvent::Complete];

    /// The letter that blkparse prints.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            BlkEvent::Queue => "Q",
            BlkEvent::Issue => "D",
            BlkEvent::Complete => "C",
        }
    }
}

/// Every action of `blkparse(1)`, "Trace actions".
const ACTIONS: &[u8] = b"ABCDFGIMPQRSTUXm";
/// How the lines of the sums at the end begin, behind blanks.
const SUMS: [&[u8]; 11] = [
    b"CPU",
    b"Total (",
    b"Reads ",
    b"Writes ",
    b"Read ",
    b"Write ",
    b"IO unplugs",
    b"PC ",
    b"Throughput",
    b"Events",
    b"Skips",
];

pub(super) fn parse(line: &[u8], event: BlkEvent, tenants: &mut Tenants) -> Result<Parsed, Fault> {
    if is_sum(line) {
        return Ok(Parsed::Nothing);
    }
    let mut fields = Fields::new(line);
    let device = required(fields.word())?;
    let mut numbers = Commas::new(device);
    decimal(numbers.next()?, "major number")?;
    decimal(numbers.next()?, "minor number")?;
    numbers.end()?;
    decimal(required(fields.word())?, "processor")?;
    decimal(required(fields.word())?, "sequence")?;
    let at = Nanos(time(required(fields.word())?)?);
    decimal(required(fields.word())?, "pid")?;
    let action = required(fields.word())?;
    if !action.first().is_some_and(|letter| ACTIONS.contains(letter)) || action.len() > 2 {
        return Err(Fault::Op);
    }
    if action != event.letter().as_bytes() {
        return Ok(Parsed::Nothing);
    }
    let Some(op) = operation(required(fields.word())?)? else { return Ok(Parsed::Nothing) };
    let tenant = tenants.number(device)?;
    let (address, bytes) = match fields.word() {
        // A flush alone has no place.
        None if op == Op::Flush => (0, 0),
        Some(word) if op == Op::Flush && word.starts_with(b"[") => (0, 0),
        word => span(word, &mut fields)?,
    };
    // A write that is also a flush and has no sectors is only that.
    let op = if bytes == 0 && op == Op::Write { Op::Flush } else { op };
    Ok(Parsed::One(Request { at, address, bytes, tenant, op }))
}

fn is_sum(line: &[u8]) -> bool {
    let text = line.trim_ascii_start();
    SUMS.iter().any(|start| text.starts_with(start))
}

fn time(word: &[u8]) -> Result<u64, Fault> {
    let wrong = Fault::Number("time");
    let point = word.iter().position(|byte| *byte == b'.').ok_or(wrong)?;
    let fraction = &word[point + 1..];
    // blkparse pads them to nine digits.
    if fraction.len() != 9 {
        return Err(wrong);
    }
    let seconds = nanos(decimal(&word[..point], "time")?, SECOND_NS)?;
    seconds.checked_add(decimal(fraction, "time")?).ok_or(Fault::TooLarge("time"))
}

/// The operation of the letters that the kernel's `blk_fill_rwbs` writes: an `F` for a flush before the data, the
/// operation, and flags. Nothing for what carries no data of a user: a command to the device, an operation on a zone.
fn operation(rwbs: &[u8]) -> Result<Option<Op>, Fault> {
    let (flush, rest) = match rwbs {
        [b'F', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    match rest.first() {
        Some(b'R') => Ok(Some(Op::Read)),
        Some(b'W') => Ok(Some(Op::Write)),
        Some(b'D' | b'E') => Ok(Some(Op::Trim)),
        Some(b'F' | b'N' | b'S') | None if flush => Ok(Some(Op::Flush)),
        Some(b'N' | b'Z') => Ok(None),
        _ => Err(Fault::Op),
    }
}

fn span(sector: Option<&[u8]>, fields: &mut Fields<'_>) -> Result<(u64, u32), Fault> {
    let address = sector_address(decimal(required(sector)?, "sector")?)?;
    if required(fields.word())? != b"+" {
        return Err(Fault::Fields);
    }
    Ok((address, sector_bytes(decimal(required(fields.word())?, "sectors")?)?))
}
