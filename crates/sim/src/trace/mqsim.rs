//! MQSim's ASCII traces (`src/host/ASCII_Trace_Definition.h` in CMU-SAFARI/MQSim): arrival in nanoseconds, device,
//! first sector, sectors, and 0 for a write or 1 for a read.

use super::counts::Fault;
use super::fields::{Fields, decimal, required, sector_address, sector_bytes};
use super::reader::Parsed;
use crate::{Nanos, Op, Request};

pub(super) fn parse(line: &[u8]) -> Result<Parsed, Fault> {
    let mut fields = Fields::new(line);
    let at = Nanos(decimal(required(fields.word())?, "arrival")?);
    let device = decimal(required(fields.word())?, "device")?;
    let address = sector_address(decimal(required(fields.word())?, "first sector")?)?;
    let bytes = sector_bytes(decimal(required(fields.word())?, "sectors")?)?;
    let op = match required(fields.word())? {
        b"0" => Op::Write,
        b"1" => Op::Read,
        _ => return Err(Fault::Op),
    };
    if fields.word().is_some() {
        return Err(Fault::Fields);
    }
    let tenant = u16::try_from(device).map_err(|_| Fault::TooLarge("device"))?;
    Ok(Parsed::One(Request { at, address, bytes, tenant, op }))
}
