//! MSR Cambridge block traces (Narayanan, Donnelly and Rowstron, FAST 2008; SNIA IOTTA):
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, with times in Windows ticks of 100 ns since 1601 and
//! offset and size in bytes.

use super::counts::Fault;
use super::fields::{Commas, decimal, nanos, size};
use super::reader::{Parsed, Tenants};
use crate::{Nanos, Op, Request};

/// A Windows tick.
pub(super) const TICK_NS: u64 = 100;

pub(super) fn parse(line: &[u8], tenants: &mut Tenants) -> Result<Parsed, Fault> {
    let mut fields = Commas::new(line);
    let ticks = decimal(fields.next()?, "timestamp")?;
    let start = line.len() - fields.left();
    fields.next()?;
    decimal(fields.next()?, "disk number")?;
    // Host and disk with the commas behind them.
    let disk = &line[start..line.len() - fields.left()];
    let kind = fields.next()?;
    let address = decimal(fields.next()?, "offset")?;
    let bytes = size(decimal(fields.next()?, "size")?)?;
    decimal(fields.next()?, "response time")?;
    fields.end()?;
    let op = match kind {
        kind if kind.eq_ignore_ascii_case(b"read") => Op::Read,
        kind if kind.eq_ignore_ascii_case(b"write") => Op::Write,
        _ => return Err(Fault::Op),
    };
    let at = Nanos(nanos(ticks, TICK_NS)?);
    Ok(Parsed::One(Request { at, address, bytes, tenant: tenants.number(disk)?, op }))
}
