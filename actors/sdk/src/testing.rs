//! A host for native tests of actors: what section 4 of the ABI says, for one actor and one thread.
//!
//! Make a [`Host`], set what the actor is to see, and put units through it with [`Host::write`] and [`Host::read`].
//! These also check what the ABI demands of a result. The seal here is a stand-in that detects changes and hides
//! nothing.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::host::{BLOB_BYTES, LOG_BYTES_MAX, SEAL_BYTES, STATE_BYTES_MAX};
use crate::{Actor, Chunk, Direction, Failure, Level, Params, Progress};

/// The facts about a unit that an actor can ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// First logical block.
    pub slba: u64,
    /// Length in bytes before the first stage.
    pub raw_bytes: usize,
    /// Of a read, the sequence that it was written with.
    pub version: u64,
    /// The stream.
    pub stream: usize,
    /// The request's place in it.
    pub sequence: u64,
    /// Which unit of the request.
    pub unit: u32,
    /// How many units the request has.
    pub units: u32,
    /// The number of the pipeline.
    pub tag: u32,
}

impl Default for Unit {
    fn default() -> Self {
        Unit { slba: 0, raw_bytes: 4096, version: 0, stream: 0, sequence: 1, unit: 0, units: 1, tag: 1 }
    }
}

#[derive(Debug, Default)]
struct State {
    params: Vec<u8>,
    unit: Option<(Unit, Direction)>,
    states: BTreeMap<usize, BTreeMap<u64, Vec<u8>>>,
    blob: Option<Box<[u8; BLOB_BYTES]>>,
    log: Vec<(u32, String)>,
    keyless: bool,
}

thread_local! {
    static STATE: RefCell<State> = RefCell::default();
}

/// The host of this thread. Making one forgets whatever the thread's host held before.
#[derive(Debug)]
pub struct Host {
    _private: (),
}

impl Default for Host {
    fn default() -> Self {
        STATE.set(State::default());
        Host { _private: () }
    }
}

impl Host {
    /// A host with parameters, written as section 3 of the ABI says.
    pub fn with_params(text: &str) -> Host {
        let host = Host::default();
        STATE.with_borrow_mut(|state| state.params = text.as_bytes().to_vec());
        host
    }

    /// Takes the stage's key away.
    pub fn without_key(self) -> Host {
        STATE.with_borrow_mut(|state| state.keyless = true);
        self
    }

    /// Runs the actor's `init` with the parameters.
    ///
    /// # Errors
    /// What `init` answers.
    pub fn init(&self, actor: &mut impl Actor) -> Result<(), Failure> {
        let text = STATE.with_borrow(|state| state.params.clone());
        actor.init(&Params::new(&text))
    }

    /// Puts a unit through the actor, forward.
    ///
    /// # Errors
    /// What the actor answers.
    ///
    /// # Panics
    /// When the actor breaks a rule of the ABI.
    pub fn write(&self, actor: &mut impl Actor, unit: Unit, input: &[u8], budget: usize) -> Result<Vec<u8>, Failure> {
        let result = run(actor, unit, Direction::Forward, input, budget);
        if result.is_err() {
            STATE.with_borrow_mut(|state| state.states.entry(unit.stream).or_default().remove(&unit.sequence));
        }
        result
    }

    /// Puts a unit through the actor, inverse.
    ///
    /// # Errors
    /// What the actor answers.
    ///
    /// # Panics
    /// When the actor breaks a rule of the ABI.
    pub fn read(&self, actor: &mut impl Actor, unit: Unit, input: &[u8], budget: usize) -> Result<Vec<u8>, Failure> {
        run(actor, unit, Direction::Inverse, input, budget)
    }

    /// What the actor logged: level and message, oldest first.
    pub fn log(&self) -> Vec<(u32, String)> {
        STATE.with_borrow(|state| state.log.clone())
    }

    /// What was logged as an error.
    pub fn errors(&self) -> Vec<String> {
        self.log().into_iter().filter(|(level, _)| *level == Level::Error as u32).map(|(_, text)| text).collect()
    }

    /// Forgets shared state above a sequence, as a host does when it replays what was not completed.
    pub fn roll_back(&self, stream: usize, sequence: u64) {
        STATE.with_borrow_mut(|state| {
            state.states.entry(stream).or_default().retain(|version, _| *version <= sequence);
        });
    }
}

/// Room for the output that a pipeline with units of this size gives.
pub fn out_cap(raw_bytes: usize) -> usize {
    raw_bytes + 512 + raw_bytes / 128
}

fn run(
    actor: &mut impl Actor,
    unit: Unit,
    direction: Direction,
    input: &[u8],
    budget: usize,
) -> Result<Vec<u8>, Failure> {
    STATE.with_borrow_mut(|state| {
        state.unit = Some((unit, direction));
        if unit.unit == 0 {
            state.blob = None;
        }
    });
    let mut output = vec![0xa5; out_cap(unit.raw_bytes)];
    let (mut before, mut resumed) = (0, false);
    loop {
        let chunk = Chunk { input, output: &mut output, budget, resumed };
        let result = match direction {
            Direction::Forward => actor.forward(chunk),
            Direction::Inverse => actor.inverse(chunk),
        };
        match result {
            Ok(Progress::Done(length)) => {
                assert!(length <= output.len(), "a length of {length} in an output of {}", output.len());
                assert!(length > 0 || direction == Direction::Inverse, "an empty extent");
                output.truncate(length);
                return Ok(output);
            }
            Ok(Progress::Yielded(consumed)) => {
                assert!(consumed > before && consumed <= input.len(), "yielded at {consumed} after {before}");
                (before, resumed) = (consumed, true);
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// The functions that a module imports.
pub(crate) mod imports {
    use super::*;

    fn unit() -> Option<(Unit, Direction)> {
        STATE.with_borrow(|state| state.unit)
    }

    fn writing() -> Result<Unit, Failure> {
        match unit() {
            Some((unit, Direction::Forward)) => Ok(unit),
            _ => Err(Failure::Configuration),
        }
    }

    fn fill(to: &mut [u8], from: &[u8]) -> Result<usize, Failure> {
        to.get_mut(..from.len()).ok_or(Failure::NoRoom)?.copy_from_slice(from);
        Ok(from.len())
    }

    pub fn log(level: u32, text: &[u8]) {
        let text = String::from_utf8_lossy(&text[..text.len().min(LOG_BYTES_MAX)]).into_owned();
        STATE.with_borrow_mut(|state| state.log.push((level, text)));
    }

    pub fn unit_info(field: u32) -> i64 {
        let Some((unit, direction)) = unit() else { return -1 };
        let blocks = unit.raw_bytes as i64 / 4096;
        match field {
            0 => unit.slba as i64,
            1 | 13 => blocks,
            2 => unit.raw_bytes as i64,
            3 => unit.version as i64,
            4 => unit.stream as i64,
            5 => unit.sequence as i64,
            6 => i64::from(unit.unit),
            7 => i64::from(unit.units),
            8 => direction as i64,
            9 => i64::from(unit.tag),
            10 => i64::from(unit.unit == 0),
            11 => i64::from(unit.unit + 1 == unit.units),
            12 => 0,
            _ => -1,
        }
    }

    pub fn param(to: &mut [u8]) -> Result<usize, Failure> {
        STATE.with_borrow(|state| {
            let fits = state.params.len().min(to.len());
            to[..fits].copy_from_slice(&state.params[..fits]);
            Ok(state.params.len())
        })
    }

    pub fn state_get(to: &mut [u8]) -> Result<usize, Failure> {
        let unit = writing()?;
        STATE.with_borrow(|state| {
            let newest = state.states.get(&unit.stream).and_then(|all| all.range(..=unit.sequence).next_back());
            newest.map_or(Ok(0), |(_, bytes)| fill(to, bytes))
        })
    }

    pub fn state_put(from: &[u8]) -> Result<usize, Failure> {
        let unit = writing()?;
        if from.len() > STATE_BYTES_MAX {
            return Err(Failure::NoRoom);
        }
        STATE.with_borrow_mut(|state| {
            state.states.entry(unit.stream).or_default().insert(unit.sequence, from.to_vec());
        });
        Ok(0)
    }

    fn blob<T>(offset: u32, len: usize, then: impl FnOnce(&mut [u8]) -> T) -> Result<T, Failure> {
        unit().ok_or(Failure::Configuration)?;
        STATE.with_borrow_mut(|state| {
            let blob = state.blob.get_or_insert_with(|| Box::new([0; BLOB_BYTES]));
            let offset = offset as usize;
            let range = offset.checked_add(len).and_then(|end| blob.get_mut(offset..end));
            range.map(then).ok_or(Failure::NoRoom)
        })
    }

    pub fn blob_get(offset: u32, to: &mut [u8]) -> Result<usize, Failure> {
        blob(offset, to.len(), |range| to.copy_from_slice(range)).map(|()| to.len())
    }

    pub fn blob_put(offset: u32, from: &[u8]) -> Result<usize, Failure> {
        blob(offset, from.len(), |range| range.copy_from_slice(from)).map(|()| from.len())
    }

    pub fn record_next(bytes: &[u8], from: usize) -> i64 {
        if from >= bytes.len() {
            return -1;
        }
        let found = bytes[from..].iter().position(|byte| *byte == b'\n');
        found.map_or(bytes.len(), |at| from + at) as i64
    }

    pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
        ::crc32c::crc32c_append(seed, bytes)
    }

    fn tag(unit: &Unit, bytes: &[u8]) -> [u8; 16] {
        let seed = ::crc32c::crc32c(format!("{} {} {}", unit.slba, unit.raw_bytes, unit.tag).as_bytes());
        let mut out = [0; 16];
        out[..4].copy_from_slice(&::crc32c::crc32c_append(seed, bytes).to_le_bytes());
        out
    }

    pub fn aead_seal(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
        let unit = writing()?;
        if STATE.with_borrow(|state| state.keyless) {
            return Err(Failure::Configuration);
        }
        let hidden: Vec<u8> = from.iter().map(|byte| byte ^ 0x5a).collect();
        let header = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        fill(to, &[&header, &hidden[..], &tag(&unit, from)].concat())
    }

    pub fn aead_open(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
        let (unit, _) = unit().ok_or(Failure::Configuration)?;
        if STATE.with_borrow(|state| state.keyless) {
            return Err(Failure::Configuration);
        }
        if from.len() < SEAL_BYTES || from[..2] != [1, 0] {
            return Err(Failure::Malformed);
        }
        let (body, found) = from.split_at(from.len() - 16);
        let plain: Vec<u8> = body[16..].iter().map(|byte| byte ^ 0x5a).collect();
        if tag(&unit, &plain) != found {
            return Err(Failure::Integrity);
        }
        fill(to, &plain)
    }

    pub fn lz4_compress(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
        fill(to, &lz4_flex::block::compress(from))
    }

    pub fn lz4_decompress(from: &[u8], to: &mut [u8]) -> Result<usize, Failure> {
        lz4_flex::block::decompress_into(from, to).map_err(|error| match error {
            lz4_flex::block::DecompressError::OutputTooSmall { .. } => Failure::NoRoom,
            _ => Failure::Malformed,
        })
    }
}
