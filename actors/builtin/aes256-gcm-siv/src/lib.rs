//! Encrypts and authenticates units with AES-256-GCM-SIV, and undoes it.
//!
//! The cipher is an intrinsic of the host: in plain WebAssembly it would be some sixty times slower, and the key would
//! have to be in the module's memory. Here it never is. Takes no parameters; the stage's key is named in the
//! pipeline. Section 4.3 of the ABI has the layout, and what is bound to what.
//!
//! A unit is sealed in one piece: the tag stands for all of it, so there is nothing to yield at.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_sdk::{Actor, Chunk, Failure, Level, Progress, host};

/// The actor.
#[derive(Debug)]
pub struct Seal;

impl Actor for Seal {
    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        host::aead_seal(chunk.input, chunk.output).map(Progress::Done).map_err(explain)
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        host::aead_open(chunk.input, chunk.output).map(Progress::Done).map_err(explain)
    }
}

fn explain(failure: Failure) -> Failure {
    match failure {
        Failure::Configuration => host::log(Level::Error, &[b"the stage has no key of that id; name one with `key`"]),
        Failure::Integrity => {
            host::log(Level::Error, &[b"a unit does not authenticate: changed, moved, or another key"])
        }
        _ => {}
    }
    failure
}

osier_actor_sdk::export!(Seal: Seal; forward, inverse);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::host::SEAL_BYTES;
    use osier_actor_sdk::testing::{Host, Unit};

    #[test]
    fn there_and_back_and_what_does_not_open() {
        let (host, unit, input) = (Host::default(), Unit::default(), [7; 4096]);
        let sealed = host.write(&mut Seal, unit, &input, 100).unwrap();
        assert_eq!(sealed.len(), input.len() + SEAL_BYTES);
        assert_eq!(host.read(&mut Seal, unit, &sealed, 100).unwrap(), input);
        let moved = Unit { slba: 8, ..unit };
        assert_eq!(host.read(&mut Seal, moved, &sealed, 100), Err(Failure::Integrity));
        assert!(host.errors()[0].contains("does not authenticate"));
        let mut changed = sealed.clone();
        changed[40] ^= 1;
        assert_eq!(host.read(&mut Seal, unit, &changed, 100), Err(Failure::Integrity));
        assert_eq!(host.read(&mut Seal, unit, &sealed[..20], 100), Err(Failure::Malformed));
        let host = Host::default().without_key();
        assert_eq!(host.write(&mut Seal, unit, &input, 100), Err(Failure::Configuration));
        assert!(host.errors()[0].contains("no key"));
    }
}
