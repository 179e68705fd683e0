//! Write a storage actor for Osier in Rust.
//!
//! An actor implements [`Actor`] and names what it exports:
//!
//! ```ignore
//! #![cfg_attr(target_family = "wasm", no_std)]
//! use osier_actor_sdk::{Actor, Chunk, Failure, Progress};
//!
//! struct Swap;
//!
//! impl Actor for Swap {
//!     fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
//!         let output = chunk.output.get_mut(..chunk.input.len()).ok_or(Failure::NoRoom)?;
//!         output.copy_from_slice(chunk.input);
//!         output.reverse();
//!         Ok(Progress::Done(chunk.input.len()))
//!     }
//! }
//!
//! osier_actor_sdk::export!(Swap: Swap; forward);
//! ```
//!
//! `docs/abi.md` says what each call means, `docs/how-to-actor.md` goes through it step by step, and `actors/example`
//! is there to be copied. Compiled for anything but WebAssembly, the functions of [`host`] talk to the host of
//! [`testing`], so that an actor's own tests are plain `cargo test`.
//!
//! This crate never allocates, and in a module links no standard library.
#![cfg_attr(target_family = "wasm", no_std)]

pub mod host;
pub mod params;
#[cfg(not(target_family = "wasm"))]
pub mod testing;

#[doc(hidden)]
pub mod glue;

pub use host::Level;
pub use params::{Params, Text, Value};

/// The version of the ABI that modules built with this crate speak.
pub const ABI_VERSION: i32 = 1;

/// Why an actor fails. The request that the unit belongs to ends with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Failure {
    /// The input is not in the form that this stage reads.
    Malformed = 1,
    /// The output does not fit.
    NoRoom = 2,
    /// A checksum or an authentication tag is wrong.
    Integrity = 3,
    /// A parameter or a key is missing or wrong.
    Configuration = 4,
    /// Anything else; the log says what.
    Other = 5,
}

impl Failure {
    /// The failure of a code, as host functions answer it with a minus sign.
    pub fn from_code(code: u32) -> Failure {
        match code {
            1 => Failure::Malformed,
            2 => Failure::NoRoom,
            3 => Failure::Integrity,
            4 => Failure::Configuration,
            _ => Failure::Other,
        }
    }
}

/// Which way data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A write, towards the media.
    Forward,
    /// A read: what was done is undone.
    Inverse,
}

/// One call: a unit's input and output, and how much to do of it now.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The whole unit. The same in every chunk of it.
    pub input: &'a [u8],
    /// Where the result goes. Keeps what was written to it from one chunk of a unit to the next.
    pub output: &'a mut [u8],
    /// Bytes of input after which to yield; at least 1. An actor that does not yield ignores it.
    pub budget: usize,
    /// Go on with the unit that was yielded, rather than begin one. An actor that never yields never sees it set.
    pub resumed: bool,
}

/// How a chunk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The unit is through; the output has this many bytes.
    Done(usize),
    /// There is more to do. This many bytes of input are worked on so far, more than at the last yield.
    Yielded(usize),
}

/// What a module does. Those of the two directions that it exports have to be implemented.
pub trait Actor {
    /// Reads the parameters. By default an actor takes none.
    ///
    /// # Errors
    /// A failure refuses the pipeline, with the last error that was logged.
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        params.only(&[])
    }

    /// Works on a unit that is written.
    ///
    /// # Errors
    /// A failure fails the request.
    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let _ = chunk;
        Err(Failure::Other)
    }

    /// Works on a unit that is read.
    ///
    /// # Errors
    /// A failure fails the request.
    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let _ = chunk;
        Err(Failure::Other)
    }
}

/// Exports an actor: its type, the value that it begins as (a constant expression), and which of `forward` and
/// `inverse` the module has. Add `resume` if it ever yields.
///
/// `export!(Mask: Mask::new(); forward, inverse, resume);`
#[macro_export]
macro_rules! export {
    ($type:ty: $value:expr; $($what:ident),+ $(,)?) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            static ACTOR: $crate::glue::Guest<$type> = $crate::glue::Guest::new($value);

            #[unsafe(no_mangle)]
            extern "C" fn osier_abi() -> i32 {
                $crate::ABI_VERSION
            }

            #[unsafe(no_mangle)]
            extern "C" fn osier_init() -> i32 {
                $crate::glue::init(&ACTOR)
            }

            $($crate::export!(@ $what);)+
        };
    };
    (@ forward) => {
        #[unsafe(no_mangle)]
        extern "C" fn osier_forward(input: usize, in_len: usize, output: usize, out_cap: usize, budget: u32) -> i64 {
            $crate::glue::begin(&ACTOR, $crate::Direction::Forward, [input, in_len, output, out_cap], budget)
        }
    };
    (@ inverse) => {
        #[unsafe(no_mangle)]
        extern "C" fn osier_inverse(input: usize, in_len: usize, output: usize, out_cap: usize, budget: u32) -> i64 {
            $crate::glue::begin(&ACTOR, $crate::Direction::Inverse, [input, in_len, output, out_cap], budget)
        }
    };
    (@ resume) => {
        #[unsafe(no_mangle)]
        extern "C" fn osier_resume(budget: u32) -> i64 {
            $crate::glue::resume(&ACTOR, budget)
        }
    };
}

#[cfg(target_family = "wasm")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(feature = "panic-location")]
    if let Some(location) = info.location() {
        let mut room = [0u8; 10];
        let line = host::decimal(location.line(), &mut room);
        host::log(Level::Error, &[b"panic at ", location.file().as_bytes(), b":", line]);
    }
    let _ = info;
    core::arch::wasm32::unreachable()
}
