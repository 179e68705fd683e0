//! What the host offers an actor: section 4 of the ABI, with slices for pointers.

use crate::{Direction, Failure};

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Level {
    /// Something failed.
    Error = 0,
    /// Something is odd.
    Warning = 1,
    /// Something is worth knowing.
    Information = 2,
    /// For whoever works on the actor.
    Debug = 3,
}

/// Bytes of a message; what is over is cut.
pub const LOG_BYTES_MAX: usize = 256;
/// Bytes of one shared state.
pub const STATE_BYTES_MAX: usize = 256;
/// Bytes of a request's blob.
pub const BLOB_BYTES: usize = 1024;
/// Streams that there can be; [`stream`] is below it.
pub const STREAMS_MAX: usize = 16;
/// Bytes that a seal adds.
pub const SEAL_BYTES: usize = 32;

/// The imports themselves, or what stands for them in native tests.
#[cfg(target_family = "wasm")]
mod imports {
    use super::Failure;

    mod raw {
        #[link(wasm_import_module = "osier")]
        unsafe extern "C" {
            pub fn log(level: u32, ptr: *const u8, len: usize);
            pub safe fn unit_info(field: u32) -> i64;
            pub fn param(ptr: *mut u8, cap: usize) -> i32;
            pub fn state_get(ptr: *mut u8, cap: usize) -> i32;
            pub fn state_put(ptr: *const u8, len: usize) -> i32;
            pub fn blob_get(offset: u32, ptr: *mut u8, len: usize) -> i32;
            pub fn blob_put(offset: u32, ptr: *const u8, len: usize) -> i32;
            pub fn record_next(ptr: *const u8, len: usize, from: usize) -> i64;
            pub fn crc32c(seed: u32, ptr: *const u8, len: usize) -> i32;
            pub fn aead_seal(input: *const u8, len: usize, output: *mut u8, cap: usize) -> i32;
            pub fn aead_open(input: *const u8, len: usize, output: *mut u8, cap: usize) -> i32;
            pub fn lz4_compress(input: *const u8, len: usize, output: *mut u8, cap: usize) -> i32;
            pub fn lz4_decompress(input: *const u8, len: usize, output: *mut u8, cap: usize) -> i32;
        }
    }

    pub use raw::unit_info;

    fn length(answer: i32) -> Result<usize, Failure> {
        if answer >= 0 { Ok(answer as usize) } else { Err(Failure::from_code(answer.unsigned_abs())) }
    }

    /// A safe function for an import that takes slices and answers a length.
    macro_rules! answers_length {
        ($($name:ident($($arg:ident: $type:ty => $($raw:expr),+);*);)+) => {$(
            pub fn $name($($arg: $type),*) -> Result<usize, Failure> {
                // SAFETY: the ranges come from slices, and the host stays within them and keeps none.
                length(unsafe { raw::$name($($($raw),+),*) })
            }
        )+};
    }

    answers_length! {
        param(to: &mut [u8] => to.as_mut_ptr(), to.len());
        state_get(to: &mut [u8] => to.as_mut_ptr(), to.len());
        state_put(from: &[u8] => from.as_ptr(), from.len());
        blob_get(offset: u32 => offset; to: &mut [u8] => to.as_mut_ptr(), to.len());
        blob_put(offset: u32 => offset; from: &[u8] => from.as_ptr(), from.len());
        aead_seal(from: &[u8] => from.as_ptr(), from.len(); to: &mut [u8] => to.as_mut_ptr(), to.len());
        aead_open(from: &[u8] => from.as_ptr(), from.len(); to: &mut [u8] => to.as_mut_ptr(), to.len());
        lz4_compress(from: &[u8] => from.as_ptr(), from.len(); to: &mut [u8] => to.as_mut_ptr(), to.len());
        lz4_decompress(from: &[u8] => from.as_ptr(), from.len(); to: &mut [u8] => to.as_mut_ptr(), to.len());
    }

    pub fn log(level: u32, text: &[u8]) {
        // SAFETY: the range comes from a slice, and the host only reads it.
        unsafe { raw::log(level, text.as_ptr(), text.len()) }
    }

    pub fn record_next(bytes: &[u8], from: usize) -> i64 {
        // SAFETY: the range comes from a slice, and the host only reads it.
        unsafe { raw::record_next(bytes.as_ptr(), bytes.len(), from) }
    }

    pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        // SAFETY: the range comes from a slice, and the host only reads it.
        unsafe { raw::crc32c(seed, bytes.as_ptr(), bytes.len()) as u32 }
    }
}

#[cfg(not(target_family = "wasm"))]
use crate::testing::imports;

/// Logs a message, given in parts.
pub fn log(level: Level, parts: &[&[u8]]) {
    let mut text = [0u8; LOG_BYTES_MAX];
    let mut used = 0;
    for part in parts {
        let fits = part.len().min(LOG_BYTES_MAX - used);
        text[used..used + fits].copy_from_slice(&part[..fits]);
        used += fits;
    }
    imports::log(level as u32, &text[..used]);
}

/// Writes a number in decimal and answers its digits, for [`log`].
pub fn decimal(mut number: u32, room: &mut [u8; 10]) -> &[u8] {
    let mut at = room.len();
    loop {
        at -= 1;
        room[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &room[at..];
        }
    }
}

/// One fact about the unit that is being worked on.
macro_rules! unit_fields {
    ($($(#[$doc:meta])* $name:ident = $field:literal: $type:ty;)+) => {$(
        $(#[$doc])*
        pub fn $name() -> $type {
            imports::unit_info($field) as $type
        }
    )+};
}

unit_fields! {
    /// First logical block (4096 bytes) of the extent that the unit is.
    slba = 0: u64;
    /// Its length in logical blocks before the first stage.
    blocks = 1: u32;
    /// Its length in bytes before the first stage.
    raw_bytes = 2: usize;
    /// Of a read, the sequence that it was written with; of a write 0.
    version = 3: u64;
    /// The stream, below [`STREAMS_MAX`].
    stream = 4: usize;
    /// The request's place in the stream, from 1.
    sequence = 5: u64;
    /// Which unit of the request, from 0.
    unit = 6: u32;
    /// How many units the request has.
    units = 7: u32;
    /// The number of the pipeline.
    tag = 9: u32;
    /// Of a read, blocks at the front of the extent that the reader does not want; of a write 0.
    skip_blocks = 12: u32;
    /// Of a read, blocks that the reader wants behind those; of a write all.
    wanted_blocks = 13: u32;
}

/// Which way the unit goes.
pub fn direction() -> Direction {
    if imports::unit_info(8) == 0 { Direction::Forward } else { Direction::Inverse }
}

/// Whether this is the request's first unit.
pub fn is_first() -> bool {
    imports::unit_info(10) == 1
}

/// Whether this is the request's last unit.
pub fn is_last() -> bool {
    imports::unit_info(11) == 1
}

/// The actor's parameters, as text; their whole length. [`Params`](crate::Params) reads them.
pub fn params(to: &mut [u8]) -> usize {
    imports::param(to).unwrap_or(0)
}

/// The shared state of this actor in this stream; its length, 0 before the first [`state_put`].
///
/// # Errors
/// [`Failure::NoRoom`] if it does not fit, [`Failure::Configuration`] on a read.
pub fn state_get(to: &mut [u8]) -> Result<usize, Failure> {
    imports::state_get(to)
}

/// Sets the shared state; it is committed together with the request.
///
/// # Errors
/// [`Failure::NoRoom`] above [`STATE_BYTES_MAX`], [`Failure::Configuration`] on a read.
pub fn state_put(from: &[u8]) -> Result<(), Failure> {
    imports::state_put(from).map(|_| ())
}

/// Copies from the request's blob, which all stages and units of a request share; all zeros at first.
///
/// # Errors
/// [`Failure::NoRoom`] outside [`BLOB_BYTES`].
pub fn blob_get(offset: u32, to: &mut [u8]) -> Result<(), Failure> {
    imports::blob_get(offset, to).map(|_| ())
}

/// Copies into the request's blob.
///
/// # Errors
/// [`Failure::NoRoom`] outside [`BLOB_BYTES`].
pub fn blob_put(offset: u32, from: &[u8]) -> Result<(), Failure> {
    imports::blob_put(offset, from).map(|_| ())
}

/// The offset of the first newline at or behind `from`, or the length.
pub fn newline(bytes: &[u8], from: usize) -> usize {
    usize::try_from(imports::record_next(bytes, from)).unwrap_or(bytes.len())
}

/// CRC-32C, going on from the CRC of what came before; 0 to begin.
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    imports::crc32c(seed, bytes)
}

/// Encrypts and authenticates with the stage's key; the length, which is [`SEAL_BYTES`] more.
///
/// # Errors
/// [`Failure::NoRoom`], [`Failure::Configuration`] without a key or on a read.
pub fn aead_seal(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
    imports::aead_seal(from, to)
}

/// Undoes [`aead_seal`]; the length.
///
/// # Errors
/// [`Failure::Malformed`], [`Failure::NoRoom`], [`Failure::Integrity`], [`Failure::Configuration`] without the key.
pub fn aead_open(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
    imports::aead_open(from, to)
}

/// Compresses into one LZ4 block at native speed; its length.
///
/// # Errors
/// [`Failure::NoRoom`].
pub fn lz4_compress(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
    imports::lz4_compress(from, to)
}

/// Undoes [`lz4_compress`]; the length.
///
/// # Errors
/// [`Failure::Malformed`], [`Failure::NoRoom`].
pub fn lz4_decompress(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
    imports::lz4_decompress(from, to)
}

#[cfg(test)]
mod tests {
    use super::decimal;

    #[test]
    fn numbers_in_messages() {
        for number in [0, 7, 10, 4_294_967_295] {
            assert_eq!(decimal(number, &mut [0; 10]), number.to_string().as_bytes());
        }
    }
}
