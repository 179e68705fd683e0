//! LZ4 block format, resumable in both directions.
//!
//! Invariants:
//! 1. The output does not depend on how the work was cut into steps: what is moved in the middle of a unit comes
//!    out bit for bit as what was not.
//! 2. The compressor never writes more than its input has bytes; where it would, it says [`CodecError::NoRoom`]
//!    and the caller stores the input as it is.
//! 3. The decompressor takes any input. It reads nothing outside it, and writes nothing outside the output.
//!
//! Format: `lz4_Block_format.md` of the LZ4 project. The last five bytes are literals, the last match begins
//! twelve bytes or more before the end.

use crate::{CodecError, Step};

const HASH_BITS: u32 = 12;
const MATCH_MIN: usize = 4;
/// A match begins at least this many bytes before the end of the input.
const MATCH_TAIL: usize = 12;
/// A match ends at least this many bytes before the end of the input.
const LITERAL_TAIL: usize = 5;
/// After each 2 to this power positions without a match, the steps of the search become longer by one.
const SKIP_SHIFT: u32 = 6;
/// Bytes that one wide copy moves. Wider than what is wanted is allowed where both sides have the room.
const WIDE: usize = 16;

/// Compresses one input into one block.
#[derive(Debug, Clone)]
pub struct Compressor {
    /// The low 16 bits of the last position of each hash. A position that is a multiple of 64 KiB off is not told
    /// apart here; the comparison of the bytes is what decides.
    table: [u16; 1 << HASH_BITS],
    position: usize,
    /// Where the literals that are not written yet begin.
    anchor: usize,
    written: usize,
    /// Positions since the last match at which there was none.
    misses: u32,
}

impl Default for Compressor {
    fn default() -> Self {
        Self::new()
    }
}

/// What the search for a match came to.
enum Search {
    Match { position: usize, candidate: usize },
    Budget,
    End,
}

impl Compressor {
    /// A compressor at the beginning of an input.
    pub const fn new() -> Compressor {
        Compressor { table: [0; 1 << HASH_BITS], position: 0, anchor: 0, written: 0, misses: 0 }
    }

    /// Forgets what it was working on.
    pub fn begin(&mut self) {
        self.table.fill(0);
        (self.position, self.anchor, self.written, self.misses) = (0, 0, 0, 0);
    }

    /// Works on about `budget` bytes of input.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`] when the block would not be shorter than the input, or not fit in `output`.
    pub fn step(&mut self, input: &[u8], output: &mut [u8], budget: usize) -> Result<Step, CodecError> {
        let limit = output.len().min(input.len());
        let output = &mut output[..limit];
        let stop = self.position.saturating_add(budget.max(1));
        loop {
            match self.search(input, stop) {
                Search::Match { position, candidate } => self.emit(input, output, position, candidate)?,
                Search::Budget => return Ok(Step::Yielded(self.position)),
                Search::End => return self.finish(input, output),
            }
        }
    }

    #[inline(always)]
    fn search(&mut self, input: &[u8], stop: usize) -> Search {
        let Some(last) = input.len().checked_sub(MATCH_TAIL) else { return Search::End };
        let stop = stop.min(last + 1);
        let (mut position, mut misses) = (self.position, self.misses);
        while position < stop {
            let word = read_u64(input, position);
            let slot = &mut self.table[hash(word)];
            let back = usize::from((position as u16).wrapping_sub(*slot));
            *slot = position as u16;
            if let Some(candidate) = position.checked_sub(back)
                && back != 0
                && read_u32(input, candidate) == word as u32
            {
                self.position = position;
                self.misses = 0;
                return Search::Match { position, candidate };
            }
            position += 1 + (misses >> SKIP_SHIFT) as usize;
            misses += 1;
        }
        (self.position, self.misses) = (position, misses);
        if position > last { Search::End } else { Search::Budget }
    }

    /// Writes the literals up to a match, and the match.
    #[inline(always)]
    fn emit(
        &mut self,
        input: &[u8],
        output: &mut [u8],
        mut position: usize,
        mut candidate: usize,
    ) -> Result<(), CodecError> {
        let forward = MATCH_MIN + common(input, candidate + MATCH_MIN, position + MATCH_MIN);
        let end = position + forward;
        while position > self.anchor && candidate > 0 && input[position - 1] == input[candidate - 1] {
            position -= 1;
            candidate -= 1;
        }
        let (literals, extra) = (position - self.anchor, end - position - MATCH_MIN);
        // Token, offset, one byte for each of the two lengths, and the wide copy of the literals.
        if self.written + literals + literals / 255 + extra / 255 + WIDE + 5 > output.len() {
            return Err(CodecError::NoRoom);
        }
        let token = self.written;
        output[token] = (literals.min(15) << 4 | extra.min(15)) as u8;
        let mut at = token + 1;
        if literals >= 15 {
            at = put_length(output, at, literals - 15);
        }
        copy_literals(input, self.anchor, output, at, literals);
        at += literals;
        let offset = (position - candidate) as u16;
        output[at..at + 2].copy_from_slice(&offset.to_le_bytes());
        at += 2;
        if extra >= 15 {
            at = put_length(output, at, extra - 15);
        }
        self.written = at;
        (self.position, self.anchor) = (end, end);
        if end + MATCH_TAIL <= input.len() {
            self.table[hash(read_u64(input, end - 2))] = (end - 2) as u16;
        }
        Ok(())
    }

    /// Writes the literals behind the last match.
    fn finish(&mut self, input: &[u8], output: &mut [u8]) -> Result<Step, CodecError> {
        let literals = input.len() - self.anchor;
        if self.written + 1 + literals / 255 + 1 + literals > output.len() {
            return Err(CodecError::NoRoom);
        }
        output[self.written] = (literals.min(15) << 4) as u8;
        let mut at = self.written + 1;
        if literals >= 15 {
            at = put_length(output, at, literals - 15);
        }
        output[at..at + literals].copy_from_slice(&input[self.anchor..]);
        Ok(Step::Done(at + literals))
    }
}

/// Undoes one block.
#[derive(Debug, Clone, Default)]
pub struct Decompressor {
    read: usize,
    written: usize,
}

/// Output bytes that one byte of budget may make. Budgets count input, but a move must not wait for a few bytes
/// that stand for a long run.
const EXPANSION: usize = 4;

impl Decompressor {
    /// A decompressor at the beginning of a block.
    pub const fn new() -> Decompressor {
        Decompressor { read: 0, written: 0 }
    }

    /// Forgets what it was working on.
    pub fn begin(&mut self) {
        *self = Decompressor::new();
    }

    /// Works on about `budget` bytes of the block.
    ///
    /// # Errors
    /// [`CodecError::Malformed`] when the input is not a block, [`CodecError::NoRoom`] when `output` is too short.
    pub fn step(&mut self, input: &[u8], output: &mut [u8], budget: usize) -> Result<Step, CodecError> {
        let stop = self.read.saturating_add(budget.max(1));
        let stop_output = self.written.saturating_add(budget.max(1).saturating_mul(EXPANSION));
        let (mut read, mut written) = (self.read, self.written);
        loop {
            if read >= stop || written >= stop_output {
                if read >= input.len() {
                    return Err(CodecError::Malformed);
                }
                (self.read, self.written) = (read, written);
                return Ok(Step::Yielded(read));
            }
            let Some(&token) = input.get(read) else { return Err(CodecError::Malformed) };
            read += 1;
            let short = usize::from(token >> 4);
            let offset;
            if short < 15 && read + WIDE + 2 <= input.len() && written + WIDE <= output.len() {
                copy_wide(input, read, output, written);
                read += short;
                written += short;
                offset = read_u16(input, read);
                let length = usize::from(token & 15) + MATCH_MIN;
                // The usual match: short, from further back than a wide copy reaches, with room behind it.
                if length < 15 + MATCH_MIN
                    && offset >= WIDE
                    && let Some(from) = written.checked_sub(offset)
                    && written + 2 * WIDE <= output.len()
                {
                    move_wide(output, from, written);
                    if length > WIDE {
                        move_wide(output, from + WIDE, written + WIDE);
                    }
                    read += 2;
                    written += length;
                    continue;
                }
            } else {
                let literals = take_length(input, &mut read, short)?;
                let from = input.get(read..).and_then(|rest| rest.get(..literals)).ok_or(CodecError::Malformed)?;
                let to = output.get_mut(written..).and_then(|rest| rest.get_mut(..literals));
                to.ok_or(CodecError::NoRoom)?.copy_from_slice(from);
                read += literals;
                written += literals;
                if read == input.len() {
                    return Ok(Step::Done(written));
                }
                if read + 2 > input.len() {
                    return Err(CodecError::Malformed);
                }
                offset = read_u16(input, read);
            }
            read += 2;
            let length = take_length(input, &mut read, usize::from(token & 15))? + MATCH_MIN;
            if offset == 0 || offset > written {
                return Err(CodecError::Malformed);
            }
            if length > output.len() - written {
                return Err(CodecError::NoRoom);
            }
            copy_match(output, written, offset, length);
            written += length;
        }
    }
}

/// Spreads five bytes over the table: a longer word than a match needs finds fewer false candidates.
#[inline(always)]
fn hash(word: u64) -> usize {
    const PRIME_5_BYTES: u64 = 889_523_592_379;
    ((word << 24).wrapping_mul(PRIME_5_BYTES) >> (64 - HASH_BITS)) as usize
}

#[inline(always)]
fn read_u16(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}

#[inline(always)]
fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let word = &bytes[at..at + 4];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}

#[inline(always)]
fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let word = &bytes[at..at + 8];
    u64::from_le_bytes([word[0], word[1], word[2], word[3], word[4], word[5], word[6], word[7]])
}

/// How many bytes are the same from `a` and from the later `b` on, up to where a match must end.
#[inline(always)]
fn common(input: &[u8], a: usize, b: usize) -> usize {
    let end = input.len() - LITERAL_TAIL;
    let mut length = 0;
    while b + length + 8 <= end {
        let difference = read_u64(input, a + length) ^ read_u64(input, b + length);
        if difference != 0 {
            return length + (difference.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    while b + length < end && input[a + length] == input[b + length] {
        length += 1;
    }
    length
}

/// The part of a length that did not fit in the token.
fn put_length(output: &mut [u8], mut at: usize, mut length: usize) -> usize {
    while length >= 255 {
        output[at] = 255;
        at += 1;
        length -= 255;
    }
    output[at] = length as u8;
    at + 1
}

#[inline(always)]
fn take_length(input: &[u8], read: &mut usize, short: usize) -> Result<usize, CodecError> {
    let mut length = short;
    if short == 15 {
        loop {
            let byte = *input.get(*read).ok_or(CodecError::Malformed)?;
            *read += 1;
            length += usize::from(byte);
            if byte != 255 {
                break;
            }
        }
    }
    Ok(length)
}

#[inline(always)]
fn copy_wide(input: &[u8], from: usize, output: &mut [u8], to: usize) {
    output[to..to + WIDE].copy_from_slice(&input[from..from + WIDE]);
}

#[inline(always)]
fn move_wide(bytes: &mut [u8], from: usize, to: usize) {
    let mut word = [0u8; WIDE];
    word.copy_from_slice(&bytes[from..from + WIDE]);
    bytes[to..to + WIDE].copy_from_slice(&word);
}

/// Copies literals for the compressor, whose output has [`WIDE`] bytes to spare behind them.
#[inline(always)]
fn copy_literals(input: &[u8], from: usize, output: &mut [u8], to: usize, length: usize) {
    // A match lies at least MATCH_TAIL bytes before the end, so a wide read may still leave the input.
    if length <= 2 * WIDE && from + 2 * WIDE <= input.len() && to + 2 * WIDE <= output.len() {
        copy_wide(input, from, output, to);
        if length > WIDE {
            copy_wide(input, from + WIDE, output, to + WIDE);
        }
    } else {
        output[to..to + length].copy_from_slice(&input[from..from + length]);
    }
}

/// Repeats what was written `offset` bytes ago.
fn copy_match(output: &mut [u8], mut at: usize, offset: usize, length: usize) {
    let end = at + length;
    if offset >= WIDE {
        while at + WIDE <= output.len() && at < end {
            move_wide(output, at - offset, at);
            at += WIDE;
        }
    } else if at + WIDE <= output.len() {
        // A run: lay out whole periods as wide as they fit, and write them one behind the other.
        let mut pattern = [0u8; WIDE];
        for (index, byte) in pattern.iter_mut().enumerate() {
            *byte = output[at - offset + index % offset];
        }
        let stride = WIDE - WIDE % offset;
        while at + WIDE <= output.len() && at < end {
            output[at..at + WIDE].copy_from_slice(&pattern);
            at += stride;
        }
    }
    while at < end {
        output[at] = output[at - offset];
        at += 1;
    }
}

#[cfg(test)]
mod tests;
