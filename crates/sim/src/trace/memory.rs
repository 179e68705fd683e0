//! Traces of loads and stores. None of them has times: each access comes when the one before it is done.
//!
//! - *mem*: `R` or `W`, an address, and optionally a size; `#` begins a comment;
//! - *lackey*: what `valgrind --tool=lackey --trace-mem=yes` prints (valgrind's `lk_main.c`): ` L`, ` S`, ` M` (a
//!   load and a
//!   store) or `I ` (an instruction), a hexadecimal address, a comma and a size;
//! - *mem-binary*: addresses alone, u64 little-endian, each a load.

use super::counts::Fault;
use super::fields::{Commas, Fields, decimal, hexadecimal, required, size};
use super::reader::Parsed;
use crate::{Nanos, Op, Request};

/// What an access has where the trace does not say: a line of the processor's cache, which is also what one transfer
/// over CXL.mem carries (CXL 3.1, 3.3).
pub const LINE_BYTES: u32 = 64;
/// Bytes of an address.
pub(super) const ADDRESS_BYTES: usize = 8;

fn access(op: Op, address: u64, bytes: u32) -> Request {
    Request { at: Nanos::ZERO, address, bytes, tenant: 0, op }
}

pub(super) fn parse_text(line: &[u8]) -> Result<Parsed, Fault> {
    if line.trim_ascii_start().starts_with(b"#") {
        return Ok(Parsed::Nothing);
    }
    let mut fields = Fields::new(line);
    let op = match required(fields.word())? {
        b"R" | b"r" => Op::Load,
        b"W" | b"w" => Op::Store,
        _ => return Err(Fault::Op),
    };
    let address = match required(fields.word())? {
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits, "address")?,
        digits => decimal(digits, "address")?,
    };
    let bytes = match fields.word() {
        None => LINE_BYTES,
        Some(word) => size(decimal(word, "size")?)?,
    };
    if fields.word().is_some() {
        return Err(Fault::Fields);
    }
    Ok(Parsed::One(access(op, address, bytes)))
}

pub(super) fn parse_lackey(line: &[u8], instructions: bool) -> Result<Parsed, Fault> {
    // What valgrind itself says, and what the program printed between.
    if line.starts_with(b"==") || line.starts_with(b"--") {
        return Ok(Parsed::Nothing);
    }
    let [kind @ .., b' '] = line.get(..3).ok_or(Fault::Fields)? else { return Err(Fault::Op) };
    let mut fields = Commas::new(&line[3..]);
    let address = hexadecimal(fields.next()?.trim_ascii_start(), "address")?;
    let bytes = size(decimal(fields.next()?, "size")?)?;
    fields.end()?;
    match kind {
        b" L" => Ok(Parsed::One(access(Op::Load, address, bytes))),
        b" S" => Ok(Parsed::One(access(Op::Store, address, bytes))),
        b" M" => Ok(Parsed::Two(access(Op::Load, address, bytes), access(Op::Store, address, bytes))),
        b"I " if instructions => Ok(Parsed::One(access(Op::Load, address, bytes))),
        b"I " => Ok(Parsed::Nothing),
        _ => Err(Fault::Op),
    }
}

pub(super) fn parse_binary(bytes: &[u8]) -> Result<Parsed, Fault> {
    let bytes = <[u8; ADDRESS_BYTES]>::try_from(bytes).map_err(|_| Fault::Truncated)?;
    Ok(Parsed::One(access(Op::Load, u64::from_le_bytes(bytes), LINE_BYTES)))
}
