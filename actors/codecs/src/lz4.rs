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
/// Bytes that are read at a position to hash it.
const WORD: usize = 8;
const _: () = assert!(WORD <= MATCH_TAIL);
/// Positions at which a match is looked for. Units end at 64 KiB, but for what a stage before may have added; whatever
/// is behind becomes literals, or the end of a match that began before.
const POSITIONS: usize = 1 << 16;
/// A match begins at least this many bytes before the end of the input.
const MATCH_TAIL: usize = 12;
/// A match ends at least this many bytes before the end of the input.
const LITERAL_TAIL: usize = 5;
/// After each 2 to this power positions without a match, the steps of the search become longer by one.
const SKIP_SHIFT: u32 = 6;
/// Where no candidate is.
const NO_MATCH: usize = usize::MAX;
/// Bytes that one wide copy moves. Wider than what is wanted is allowed where both sides have the room.
const WIDE: usize = 16;

/// Output that a sequence with fewer than 15 literals may be written to, in bytes: token, a wide copy of the literals,
/// offset, and one more byte of the length.
const SHORT_OUTPUT: usize = 1 + WIDE + 2 + 1;

/// Compresses one input into one block.
#[derive(Debug, Clone)]
pub struct Compressor {
    /// The last position of each hash; 0, where the input begins, for those that were not met. All positions that are
    /// looked at later are behind all that are in here.
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

impl Compressor {
    /// A compressor at the beginning of an input.
    pub const fn new() -> Compressor {
        Compressor { table: [0; 1 << HASH_BITS], position: 1, anchor: 0, written: 0, misses: 0 }
    }

    /// Forgets what it was working on.
    pub fn begin(&mut self) {
        self.table.fill(0);
        (self.position, self.anchor, self.written, self.misses) = (1, 0, 0, 0);
    }

    /// Works on about `budget` bytes of input.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`] when the block would not be shorter than the input, or not fit in `output`.
    pub fn step(&mut self, input: &[u8], output: &mut [u8], budget: usize) -> Result<Step, CodecError> {
        let limit = output.len().min(input.len());
        let output = &mut output[..limit];
        let stop = self.position.saturating_add(budget.max(1));
        let end = (input.len() + 1).saturating_sub(MATCH_TAIL).min(POSITIONS);
        // A window that ends where its last word may begin makes the check of the bounds the check of the stop.
        let window = &input[..input.len().min(stop.min(end) + WORD - 1)];
        loop {
            let candidate = self.search(window);
            if candidate == NO_MATCH {
                break;
            }
            self.emit(input, output, candidate)?;
        }
        if self.position < end { Ok(Step::Yielded(self.position)) } else { self.finish(input, output) }
    }

    /// Looks for the next match in the window: advances to its position and answers what it matches, or [`NO_MATCH`].
    /// A function of its own, for it needs nearly every register; and a plain number, for an option would be answered
    /// through memory.
    #[inline(never)]
    fn search(&mut self, window: &[u8]) -> usize {
        let (mut position, mut misses) = (self.position, self.misses);
        while let Some(word) = window.get(position..).and_then(|rest| rest.first_chunk::<WORD>()) {
            let slot = &mut self.table[hash(word)];
            let candidate = usize::from(*slot);
            *slot = position as u16;
            let found = window.get(candidate..).and_then(|rest| rest.first_chunk::<MATCH_MIN>());
            if found == word.first_chunk() {
                (self.position, self.misses) = (position, 0);
                return candidate;
            }
            position += 1 + (misses >> SKIP_SHIFT) as usize;
            misses += 1;
        }
        (self.position, self.misses) = (position, misses);
        NO_MATCH
    }

    /// Writes the literals up to a match at the present position, and the match.
    #[inline(always)]
    fn emit(&mut self, input: &[u8], output: &mut [u8], candidate: usize) -> Result<(), CodecError> {
        let mut position = self.position;
        let end = position + MATCH_MIN + common(input, candidate + MATCH_MIN, position + MATCH_MIN);
        let back = common_back(&input[self.anchor..position], &input[..candidate]);
        position -= back;
        let offset = position - (candidate - back);
        let (literals, extra) = (position - self.anchor, end - position - MATCH_MIN);
        let target = output.get_mut(self.written..).ok_or(CodecError::NoRoom)?;
        let source = &input[self.anchor..];
        if literals < 15
            && extra < 15 + 255
            && let Some(room) = target.first_chunk_mut::<SHORT_OUTPUT>()
            && let Some(wide) = source.first_chunk::<WIDE>()
        {
            room[0] = (literals << 4 | extra.min(15)) as u8;
            room[1..1 + WIDE].copy_from_slice(wide);
            room[1 + literals..3 + literals].copy_from_slice(&(offset as u16).to_le_bytes());
            // Of no meaning where the token says all; the next sequence then begins here.
            room[3 + literals] = extra.wrapping_sub(15) as u8;
            self.written += 3 + literals + usize::from(extra >= 15);
        } else {
            self.written += put_sequence(&source[..literals], target, offset, extra)?;
        }
        (self.position, self.anchor) = (end, end);
        if let Some(word) = input.get(end - 2..).and_then(|rest| rest.first_chunk::<WORD>())
            && end < POSITIONS
        {
            self.table[hash(word)] = (end - 2) as u16;
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
        let at = put_length(output, self.written + 1, literals);
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
/// The most literals, and the longest match, of a usual sequence, in bytes: two wide copies.
const USUAL_LENGTH: usize = 2 * WIDE;
/// Input that a usual sequence may look at, in bytes: token, literals, offset, and one more byte of each length.
const USUAL_INPUT: usize = 1 + 1 + USUAL_LENGTH + 2 + 1;
/// Output that a usual sequence may write to, in bytes.
const USUAL_OUTPUT: usize = 2 * USUAL_LENGTH;

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
        assert!(u32::try_from(input.len().max(output.len())).is_ok(), "a unit is of 32 bits");
        let stop = self.read.saturating_add(budget.max(1));
        let stop_output = self.written.saturating_add(budget.max(1).saturating_mul(EXPANSION));
        let usual_input = &input[..input.len().min(stop.saturating_add(USUAL_INPUT))];
        let usual_output = output.len().min(stop_output.saturating_add(USUAL_OUTPUT));
        loop {
            if let Some(rest) = usual_input.get(self.read..) {
                self.advance(usual_sequences(rest, &mut output[..usual_output], self.written));
            }
            if (self.read >= stop || self.written >= stop_output) && self.read < input.len() {
                return Ok(Step::Yielded(self.read));
            }
            self.advance(any_sequence(&input[self.read..], output, self.written).checked()?);
            if self.read == input.len() {
                return Ok(Step::Done(self.written));
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, reached: Reached) {
        self.read += (reached.0 >> 32) as usize;
        self.written = (reached.0 & u64::from(u32::MAX)) as usize;
    }
}

/// How many bytes were read, and up to where was written, or why not: one number, for more would be answered through
/// memory.
struct Reached(u64);

impl Reached {
    const MALFORMED: Reached = Reached(u64::MAX);
    const NO_ROOM: Reached = Reached(u64::MAX - 1);

    #[inline(always)]
    fn new(read: usize, written: usize) -> Reached {
        Reached((read as u64) << 32 | written as u64)
    }

    #[inline(always)]
    fn checked(self) -> Result<Reached, CodecError> {
        match self {
            Reached(u64::MAX) => Err(CodecError::Malformed),
            Reached(number) if number == Reached::NO_ROOM.0 => Err(CodecError::NoRoom),
            reached => Ok(reached),
        }
    }
}

/// Works on usual sequences, as long as the ends of both buffers are far: up to [`USUAL_LENGTH`] literals, and a match
/// of up to as much from further back than a wide copy reaches. Leaves everything else, and everything wrong, to
/// [`any_sequence`].
///
/// Which of the two lengths of a match a sequence has is computed and not branched on, and the second wide copy is made
/// whether it is needed or not: in records, no processor guesses these. What lives through the loop has to fit in
/// registers, or it is moved on each way out. So this is a function of its own, and reads its input off the front.
#[inline(never)]
fn usual_sequences(input: &[u8], output: &mut [u8], mut written: usize) -> Reached {
    let mut rest = input;
    while let Some(source) = rest.first_chunk::<USUAL_INPUT>() {
        let Some(target) = chunk_mut::<USUAL_OUTPUT>(output, written) else { break };
        let token = usize::from(source[0]);
        let (mut begin, mut literals, short) = (1, token >> 4, token & 15);
        if token >= 0xf0 {
            literals += usize::from(source[1]);
            if literals > USUAL_LENGTH {
                break;
            }
            begin = 2;
            put_wide(target, WIDE, get_wide(source, begin + WIDE));
        }
        put_wide(target, 0, get_wide(source, begin));
        let tail = begin + literals;
        let offset = usize::from(u16::from_le_bytes([source[tail], source[tail + 1]]));
        let longer = usize::from(short == 15);
        let length = MATCH_MIN + short + longer * usize::from(source[tail + 2]);
        if offset < WIDE || length > USUAL_LENGTH {
            break;
        }
        // Where the offset is wrong this is far outside.
        let from = (written + literals).wrapping_sub(offset);
        // One after the other, for the second half may repeat the first.
        let Some(before) = chunk::<USUAL_LENGTH>(output, from) else { break };
        let half = get_wide(before, 0);
        let Some(target) = chunk_mut::<USUAL_OUTPUT>(output, written) else { break };
        put_wide(target, literals, half);
        let Some(before) = chunk::<USUAL_LENGTH>(output, from) else { break };
        let half = get_wide(before, WIDE);
        let Some(target) = chunk_mut::<USUAL_OUTPUT>(output, written) else { break };
        put_wide(target, literals + WIDE, half);
        rest = &rest[tail + 2 + longer..];
        written += literals + length;
    }
    Reached::new(input.len() - rest.len(), written)
}

/// One sequence of any form, the last one among them.
#[inline(always)]
fn any_sequence(input: &[u8], output: &mut [u8], written: usize) -> Reached {
    let Some((token, mut rest)) = input.split_first() else { return Reached::MALFORMED };
    let Some(literals) = take_length(&mut rest, token >> 4) else { return Reached::MALFORMED };
    if literals > rest.len() {
        return Reached::MALFORMED;
    }
    let Some(target) = output.get_mut(written..).filter(|room| room.len() >= literals) else {
        return Reached::NO_ROOM;
    };
    copy_literals(rest, target, literals);
    rest = &rest[literals..];
    let written = written + literals;
    if rest.is_empty() {
        return Reached::new(input.len(), written);
    }
    let Some((offset, mut rest)) = rest.split_first_chunk::<2>() else { return Reached::MALFORMED };
    let offset = usize::from(u16::from_le_bytes(*offset));
    let Some(extra) = take_length(&mut rest, token & 15) else { return Reached::MALFORMED };
    let end = written + MATCH_MIN + extra;
    // A block ends with literals.
    if offset == 0 || offset > written || rest.is_empty() {
        return Reached::MALFORMED;
    }
    if end > output.len() {
        return Reached::NO_ROOM;
    }
    copy_match(output, written, offset, end);
    Reached::new(input.len() - rest.len(), end)
}

#[inline(always)]
fn chunk<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

#[inline(always)]
fn chunk_mut<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

#[inline(always)]
fn get_wide(bytes: &[u8], at: usize) -> [u8; WIDE] {
    let mut word = [0u8; WIDE];
    word.copy_from_slice(&bytes[at..at + WIDE]);
    word
}

#[inline(always)]
fn put_wide(bytes: &mut [u8], at: usize, word: [u8; WIDE]) {
    bytes[at..at + WIDE].copy_from_slice(&word);
}

/// Hashes five bytes, one more than the shortest match has. That misses some matches of four bytes, which save a byte
/// each: text comes out 2 % longer in units of 4 KiB and 1 % in units of 16 KiB, in four fifths of the time.
#[inline(always)]
fn hash(word: &[u8; WORD]) -> usize {
    const PRIME_5_BYTES: u64 = 889_523_592_379;
    ((u64::from_le_bytes(*word) << 24).wrapping_mul(PRIME_5_BYTES) >> (64 - HASH_BITS)) as usize
}

/// How many bytes are the same from `a` and from the later `b` on, up to where a match must end.
#[inline(always)]
fn common(input: &[u8], a: usize, b: usize) -> usize {
    let later = &input[b..input.len() - LITERAL_TAIL];
    let earlier = &input[a..][..later.len()];
    let ((earlier, earlier_rest), (later, later_rest)) = (earlier.as_chunks::<8>(), later.as_chunks::<8>());
    let mut length = 0;
    for (x, y) in earlier.iter().zip(later) {
        let difference = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if difference != 0 {
            return length + (difference.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    length + earlier_rest.iter().zip(later_rest).take_while(|(x, y)| x == y).count()
}

/// How many bytes at the ends of two ranges are the same.
#[inline(always)]
fn common_back(a: &[u8], b: &[u8]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count()
}

/// Writes a sequence of any form; answers its length.
#[inline(never)]
fn put_sequence(literals: &[u8], target: &mut [u8], offset: usize, extra: usize) -> Result<usize, CodecError> {
    let length = literals.len();
    // Token, offset, and one byte for each of the two lengths.
    if length + length / 255 + extra / 255 + 5 > target.len() {
        return Err(CodecError::NoRoom);
    }
    target[0] = (length.min(15) << 4 | extra.min(15)) as u8;
    let at = put_length(target, 1, length);
    target[at..at + length].copy_from_slice(literals);
    let at = at + length;
    target[at..at + 2].copy_from_slice(&(offset as u16).to_le_bytes());
    Ok(put_length(target, at + 2, extra))
}

/// The part of a length that did not fit in the token, if it did not; answers where it ends.
fn put_length(output: &mut [u8], mut at: usize, length: usize) -> usize {
    let Some(mut rest) = length.checked_sub(15) else { return at };
    while rest >= 255 {
        output[at] = 255;
        at += 1;
        rest -= 255;
    }
    output[at] = rest as u8;
    at + 1
}

/// A length that begins in a token and takes what does not fit there off the input.
#[inline(always)]
fn take_length(input: &mut &[u8], short: u8) -> Option<usize> {
    let mut length = usize::from(short);
    if short == 15 {
        loop {
            let (byte, rest) = input.split_first()?;
            *input = rest;
            length += usize::from(*byte);
            if *byte != 255 {
                break;
            }
        }
    }
    Some(length)
}

/// Copies a run of literals; both sides have at least `length` bytes. A copy of a fixed size is a few instructions, one
/// of any other is a call out of the module.
#[inline(always)]
fn copy_literals(source: &[u8], target: &mut [u8], length: usize) {
    if length <= 2 * WIDE
        && let (Some(to), Some(from)) = (target.first_chunk_mut::<{ 2 * WIDE }>(), source.first_chunk())
    {
        *to = *from;
    } else if length <= 4 * WIDE
        && let (Some(to), Some(from)) = (target.first_chunk_mut::<{ 4 * WIDE }>(), source.first_chunk())
    {
        *to = *from;
    } else {
        target[..length].copy_from_slice(&source[..length]);
    }
}

/// Repeats what was written `offset` bytes ago, up to `end`; all of it fits.
#[inline(always)]
fn copy_match(output: &mut [u8], mut at: usize, offset: usize, end: usize) {
    if offset >= WIDE {
        at = copy_on::<WIDE>(output, at, offset, end);
    } else if offset >= WORD {
        at = copy_on::<WORD>(output, at, offset, end);
    } else if let Some(before) = chunk::<WORD>(output, at - offset) {
        let word = repeated(u64::from_le_bytes(*before), offset as u32 * 8).to_le_bytes();
        while at < end
            && let Some(target) = chunk_mut(output, at)
        {
            *target = word;
            at += WHOLE_PERIODS[offset];
        }
    }
    while at < end {
        output[at] = output[at - offset];
        at += 1;
    }
}

/// Copies `N` bytes at a time from at least as far back, until `end` or until there is no room for as many; answers
/// how far it came.
#[inline(always)]
fn copy_on<const N: usize>(output: &mut [u8], mut at: usize, offset: usize, end: usize) -> usize {
    while at < end
        && let Some(before) = chunk::<N>(output, at - offset).copied()
        && let Some(target) = chunk_mut::<N>(output, at)
    {
        *target = before;
        at += N;
    }
    at
}

/// The first `bits` bits, over and over.
#[inline(always)]
fn repeated(word: u64, bits: u32) -> u64 {
    let mut word = word & ((1 << bits) - 1);
    for doubled in [bits, 2 * bits, 4 * bits] {
        word |= word.checked_shl(doubled).unwrap_or(0);
    }
    word
}

/// Bytes of a word that are whole periods, for each length of a period.
const WHOLE_PERIODS: [usize; WORD] = [0, 8, 8, 6, 8, 5, 6, 7];

#[cfg(test)]
mod tests;
