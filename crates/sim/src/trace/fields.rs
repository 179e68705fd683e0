//! Numbers and words out of a line of bytes.

use super::counts::Fault;

/// What is left of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Fields { rest: line }
    }

    /// The next word, between blanks.
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        let start = self.rest.iter().position(|byte| !is_blank(*byte))?;
        let word = &self.rest[start..];
        let length = word.iter().position(|byte| is_blank(*byte)).unwrap_or(word.len());
        self.rest = &word[length..];
        Some(&word[..length])
    }
}

/// What is left of a line of fields between commas; nothing behind the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Commas<'a>(Option<&'a [u8]>);

impl<'a> Commas<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Commas(Some(line))
    }

    /// The bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.0.map_or(0, <[u8]>::len)
    }

    /// The next field.
    pub(super) fn next(&mut self) -> Result<&'a [u8], Fault> {
        let rest = self.0.ok_or(Fault::Fields)?;
        let length = rest.iter().position(|byte| *byte == b',');
        self.0 = length.map(|length| &rest[length + 1..]);
        Ok(&rest[..length.unwrap_or(rest.len())])
    }

    /// Makes sure that there was no more.
    pub(super) fn end(&self) -> Result<(), Fault> {
        if self.0.is_none() { Ok(()) } else { Err(Fault::Fields) }
    }
}

pub(super) fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

/// Whether a line has nothing on it.
pub(super) fn is_empty(line: &[u8]) -> bool {
    line.iter().all(u8::is_ascii_whitespace)
}

/// A field that is there.
pub(super) fn required(field: Option<&[u8]>) -> Result<&[u8], Fault> {
    field.ok_or(Fault::Fields)
}

/// The decimal number that a field is, all of it.
pub(super) fn decimal(field: &[u8], name: &'static str) -> Result<u64, Fault> {
    /// So many digits cannot overflow.
    const SAFE_DIGITS: usize = 19;
    let wrong = Fault::Number(name);
    if field.is_empty() {
        return Err(wrong);
    }
    let mut value = 0_u64;
    let (safe, rest) = field.split_at(field.len().min(SAFE_DIGITS));
    for byte in safe {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(wrong);
        }
        value = value * 10 + u64::from(digit);
    }
    for byte in rest {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(wrong);
        }
        value = value.checked_mul(10).and_then(|value| value.checked_add(digit.into())).ok_or(Fault::TooLarge(name))?;
    }
    Ok(value)
}

/// The hexadecimal number that a field is, all of it, without `0x`.
pub(super) fn hexadecimal(field: &[u8], name: &'static str) -> Result<u64, Fault> {
    if field.is_empty() {
        return Err(Fault::Number(name));
    }
    let mut value = 0_u64;
    for byte in field {
        let digit = char::from(*byte).to_digit(16).ok_or(Fault::Number(name))?;
        if value >> 60 != 0 {
            return Err(Fault::TooLarge(name));
        }
        value = value << 4 | u64::from(digit);
    }
    Ok(value)
}

/// A size in bytes that a request can have.
pub(super) fn size(bytes: u64) -> Result<u32, Fault> {
    u32::try_from(bytes).map_err(|_| Fault::TooLarge("size"))
}

/// The time that is `value` times `unit_ns`.
pub(super) fn nanos(value: u64, unit_ns: u64) -> Result<u64, Fault> {
    value.checked_mul(unit_ns).ok_or(Fault::TooLarge("time"))
}

/// Bytes of a sector of block traces, whatever the disk's is.
pub(super) const SECTOR_BYTES: u64 = 512;

/// The byte address of a sector.
pub(super) fn sector_address(sector: u64) -> Result<u64, Fault> {
    sector.checked_mul(SECTOR_BYTES).ok_or(Fault::TooLarge("address"))
}

/// The bytes of so many sectors.
pub(super) fn sector_bytes(sectors: u64) -> Result<u32, Fault> {
    size(sectors.checked_mul(SECTOR_BYTES).ok_or(Fault::TooLarge("size"))?)
}
