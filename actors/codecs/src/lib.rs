//! What the built-in actors do, as plain codecs: bytes in, bytes out, no host and no allocation.
//!
//! Each codec is *resumable*: it works on about a budget of input, says how far it came, and goes on later from
//! what it keeps in itself. A caller gives it the same input and output at every step.
#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

pub mod decimal;
pub mod filter;
pub mod hash;
pub mod json;
pub mod logfmt;
pub mod lz4;
pub mod project;
pub mod records;

/// How a step of a codec ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The whole input is worked on; the output has this many bytes.
    Done(usize),
    /// The budget is used up; this many bytes of input are worked on so far.
    Yielded(usize),
}

/// Why a codec cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodecError {
    /// The input is not in the form that this codec reads.
    Malformed,
    /// The output does not fit.
    NoRoom,
}
