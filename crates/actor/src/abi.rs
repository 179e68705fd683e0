//! The numbers of `docs/abi.md`, version 1, and the one reader of what a guest's call answers.

use osier_domain::{Direction, Status};

/// What `osier_abi` of a module has to answer.
pub const ABI_VERSION: i32 = 1;
/// The module that all imports come from.
pub const IMPORT_MODULE: &str = "osier";
/// The largest module, in bytes.
pub const MODULE_BYTES_MAX: usize = 1 << 20;
/// The largest state of one (actor, stream), in bytes.
pub const STATE_BYTES_MAX: usize = 256;
/// The longest normal form of a stage's parameters, in bytes.
pub const PARAMS_BYTES_MAX: usize = 1024;
/// What is over this of one log message is cut, in bytes.
pub const LOG_BYTES_MAX: usize = 256;
/// Bytes of a WebAssembly page.
pub const PAGE_BYTES: u64 = 65_536;
/// Alignment of the `in` and `out` pointers of a call, in bytes.
pub const BUFFER_ALIGN: u32 = 16;

/// Failure codes, `docs/abi.md` section 2.3.
pub mod code {
    /// The input is not in the form that this stage reads.
    pub const MALFORMED: i32 = 1;
    /// The output does not fit.
    pub const NO_ROOM: i32 = 2;
    /// A checksum or an authentication tag is wrong.
    pub const INTEGRITY: i32 = 3;
    /// A parameter or a key is missing or wrong.
    pub const CONFIGURATION: i32 = 4;
    /// See the actor's log.
    pub const OTHER: i32 = 5;
}

/// The name of a failure code, for messages.
pub fn code_name(code: u32) -> &'static str {
    match code {
        1 => "malformed input",
        2 => "no room for the output",
        3 => "integrity",
        4 => "configuration",
        _ => "other",
    }
}

/// The status that a request ends with after a failure code.
pub fn code_status(code: u32, direction: Direction) -> Status {
    match (code, direction) {
        (1, Direction::Inverse) | (3, _) => Status::INTEGRITY,
        _ => Status::ACTOR_FAILED,
    }
}

/// What a guest's call answered, checked against the lengths of the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The output has this many bytes.
    Done(u32),
    /// This many bytes of input are worked on, counted from the unit's beginning.
    Yielded(u32),
    /// A failure code.
    Failed(u32),
    /// Not an answer of this ABI.
    Malformed,
}

impl Answer {
    /// Reads a result. `consumed_before` is what the yield before said, 0 at the beginning of a unit.
    #[inline]
    pub fn read(result: i64, in_len: u32, out_cap: u32, consumed_before: u32, direction: Direction) -> Answer {
        if let Ok(length) = u64::try_from(result) {
            let empty_write = length == 0 && direction == Direction::Forward;
            return match u32::try_from(length) {
                Ok(length) if length <= out_cap && !empty_write => Answer::Done(length),
                _ => Answer::Malformed,
            };
        }
        let magnitude = result.unsigned_abs();
        let argument = magnitude >> 8;
        let Ok(argument) = u32::try_from(argument) else { return Answer::Malformed };
        match magnitude & 0xff {
            1 if argument > consumed_before && argument <= in_len => Answer::Yielded(argument),
            2 => Answer::Failed(if (1..=5).contains(&argument) { argument } else { 5 }),
            _ => Answer::Malformed,
        }
    }
}

/// A guest's yield after `consumed` bytes, as it travels.
pub fn encode_yield(consumed: u32) -> i64 {
    -1 - (i64::from(consumed) << 8)
}

/// A guest's failure, as it travels.
pub fn encode_failure(code: u32) -> i64 {
    -2 - (i64::from(code) << 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(result: i64) -> Answer {
        Answer::read(result, 100, 200, 10, Direction::Forward)
    }

    #[test]
    fn answers_are_read_as_the_page_says() {
        assert_eq!(read(200), Answer::Done(200));
        assert_eq!(read(201), Answer::Malformed);
        assert_eq!(read(0), Answer::Malformed);
        assert_eq!(Answer::read(0, 100, 200, 0, Direction::Inverse), Answer::Done(0));
        assert_eq!(read(encode_yield(11)), Answer::Yielded(11));
        assert_eq!(read(encode_yield(10)), Answer::Malformed, "no progress");
        assert_eq!(read(encode_yield(101)), Answer::Malformed, "more than there is");
        assert_eq!(read(encode_failure(3)), Answer::Failed(3));
        assert_eq!(read(encode_failure(77)), Answer::Failed(5));
        for wild in [i64::MIN, i64::MAX, -3, -256, -1 - (1 << 40), 1 << 32] {
            assert_eq!(read(wild), Answer::Malformed, "{wild}");
        }
    }

    #[test]
    fn codes_become_statuses() {
        assert_eq!(code_status(1, Direction::Inverse), Status::INTEGRITY);
        assert_eq!(code_status(1, Direction::Forward), Status::ACTOR_FAILED);
        assert_eq!(code_status(3, Direction::Forward), Status::INTEGRITY);
        assert_eq!(code_status(2, Direction::Inverse), Status::ACTOR_FAILED);
    }
}
