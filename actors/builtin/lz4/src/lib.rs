//! Compresses units on their way to the media, and undoes it.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `engine` | `wasm` (default), `intrinsic` | which code compresses: this module's, which yields, or the host's native one, which does not |
//!
//! What is put out: one byte, 0 for a unit that is stored as it is because LZ4 would not make it shorter, or 1 and one
//! LZ4 block. Both engines read what either wrote.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::lz4::{Compressor, Decompressor};
use osier_actor_codecs::{CodecError, Step};
use osier_actor_sdk::{Actor, Chunk, Failure, Params, Progress, host};

/// First byte of a unit that is stored as it is.
pub const STORED: u8 = 0;
/// First byte of a unit that is an LZ4 block.
pub const COMPRESSED: u8 = 1;

#[derive(Debug, Clone, Copy)]
enum Engine {
    Wasm,
    Intrinsic,
}

/// The actor.
#[derive(Debug)]
pub struct Lz4 {
    engine: Engine,
    compressor: Compressor,
    decompressor: Decompressor,
}

impl Default for Lz4 {
    fn default() -> Self {
        Self::new()
    }
}

impl Lz4 {
    /// The actor with its default parameters.
    pub const fn new() -> Lz4 {
        Lz4 { engine: Engine::Wasm, compressor: Compressor::new(), decompressor: Decompressor::new() }
    }
}

impl Actor for Lz4 {
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        params.only(&["engine"])?;
        self.engine = params.word("engine", &[("wasm", Engine::Wasm), ("intrinsic", Engine::Intrinsic)])?;
        Ok(())
    }

    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let (marker, block) = chunk.output.split_first_mut().ok_or(Failure::NoRoom)?;
        *marker = COMPRESSED;
        let step = match self.engine {
            Engine::Wasm => {
                if !chunk.resumed {
                    self.compressor.begin();
                }
                self.compressor.step(chunk.input, block, chunk.budget)
            }
            Engine::Intrinsic => {
                // Only what is shorter than the input is of use.
                let limit = block.len().min(chunk.input.len());
                match host::lz4_compress(chunk.input, &mut block[..limit]) {
                    Ok(length) => Ok(Step::Done(length)),
                    Err(Failure::NoRoom) => Err(CodecError::NoRoom),
                    Err(failure) => return Err(failure),
                }
            }
        };
        match step {
            Ok(Step::Done(length)) => Ok(Progress::Done(1 + length)),
            Ok(Step::Yielded(consumed)) => Ok(Progress::Yielded(consumed)),
            Err(CodecError::NoRoom | CodecError::Malformed) => {
                *marker = STORED;
                block.get_mut(..chunk.input.len()).ok_or(Failure::NoRoom)?.copy_from_slice(chunk.input);
                Ok(Progress::Done(1 + chunk.input.len()))
            }
        }
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let (&marker, block) = chunk.input.split_first().ok_or(Failure::Malformed)?;
        match (marker, self.engine) {
            (STORED, _) => {
                chunk.output.get_mut(..block.len()).ok_or(Failure::NoRoom)?.copy_from_slice(block);
                Ok(Progress::Done(block.len()))
            }
            (COMPRESSED, Engine::Intrinsic) => host::lz4_decompress(block, chunk.output).map(Progress::Done),
            (COMPRESSED, Engine::Wasm) => {
                if !chunk.resumed {
                    self.decompressor.begin();
                }
                match self.decompressor.step(block, chunk.output, chunk.budget) {
                    Ok(Step::Done(length)) => Ok(Progress::Done(length)),
                    Ok(Step::Yielded(consumed)) => Ok(Progress::Yielded(consumed)),
                    Err(CodecError::Malformed) => Err(Failure::Malformed),
                    Err(CodecError::NoRoom) => Err(Failure::NoRoom),
                }
            }
            _ => Err(Failure::Malformed),
        }
    }
}

osier_actor_sdk::export!(Lz4: Lz4::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    fn unit(bytes: usize) -> Unit {
        Unit { raw_bytes: bytes, ..Unit::default() }
    }

    fn inputs() -> Vec<Vec<u8>> {
        let mut state = 7u64;
        let noise = (0..65_536).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as u8
        });
        let text = include_bytes!("lib.rs").repeat(20);
        vec![noise.collect(), text[..65_536].to_vec(), text[..4096].to_vec(), vec![0; 65_536], vec![9; 1]]
    }

    #[test]
    fn both_engines_read_what_either_wrote() {
        for input in inputs() {
            for (writer, reader) in [("wasm", "intrinsic"), ("intrinsic", "wasm"), ("wasm", "wasm")] {
                for budget in [500, 4096, 1 << 20] {
                    let host = Host::with_params(&format!("engine = \"{writer}\"\n"));
                    let mut actor = Lz4::new();
                    host.init(&mut actor).unwrap();
                    let stored = host.write(&mut actor, unit(input.len()), &input, budget).unwrap();
                    assert!(stored.len() <= input.len() + 1);
                    let host = Host::with_params(&format!("engine = \"{reader}\"\n"));
                    host.init(&mut actor).unwrap();
                    assert_eq!(host.read(&mut actor, unit(input.len()), &stored, budget).unwrap(), input);
                }
            }
        }
    }

    #[test]
    fn what_is_stored_is_the_standard_format() {
        let (host, input) = (Host::default(), &inputs()[1]);
        let stored = host.write(&mut Lz4::new(), unit(input.len()), input, 1000).unwrap();
        assert_eq!(stored[0], COMPRESSED);
        assert_eq!(&lz4_flex::block::decompress(&stored[1..], input.len()).unwrap(), input);
        let noise = &inputs()[0];
        let stored = host.write(&mut Lz4::new(), unit(noise.len()), noise, 1000).unwrap();
        assert_eq!((stored[0], &stored[1..]), (STORED, &noise[..]));
    }

    #[test]
    fn a_unit_that_is_given_up_leaves_nothing_behind() {
        let (host, mut actor, input) = (Host::default(), Lz4::new(), &inputs()[1]);
        let mut room = vec![0; 70_000];
        let chunk = Chunk { input, output: &mut room, budget: 1000, resumed: false };
        assert!(matches!(actor.forward(chunk), Ok(Progress::Yielded(_))));
        let again = host.write(&mut actor, unit(input.len()), input, 1000).unwrap();
        assert_eq!(again, host.write(&mut Lz4::new(), unit(input.len()), input, 7777).unwrap());
    }

    #[test]
    fn bad_input_and_bad_parameters() {
        let mut actor = Lz4::new();
        for bad in [&[2u8, 0][..], &[1], &[1, 0x10], &[1, 0xff, 0xff]] {
            assert_eq!(Host::default().read(&mut actor, unit(4096), bad, 4096), Err(Failure::Malformed), "{bad:?}");
        }
        for (text, says) in [("engine = \"gpu\"\n", "`engine`"), ("level = 3\n", "`level`")] {
            let host = Host::with_params(text);
            assert_eq!(host.init(&mut actor), Err(Failure::Configuration));
            assert!(host.errors()[0].contains(says));
        }
    }
}
