//! Each built-in actor as a native function: what the simulator runs in its place, and what a benchmark puts
//! beside it. A test holds that both put out the same bytes.
//!
//! LZ4 is the exception that is meant: natively it is `lz4_flex`, whose blocks differ from the module's and are
//! read by both.

use osier_actor_codecs::filter::{Operand, Operator, matches};
use osier_actor_codecs::hash::{Position, TRAILER_BYTES, Xxh64, strip};
use osier_actor_codecs::logfmt::Template;
use osier_actor_codecs::project::{Names, project};
use osier_actor_codecs::records::{Lines, Malformed, Sink, Verdict};
use osier_actor_codecs::{CodecError, Step};
use osier_domain::{Direction, STREAMS_MAX};

use crate::abi::code;
use crate::intrinsics::{self, Binding, KeyRing, NonceParts};

/// First byte of a unit that LZ4 would not make shorter.
const STORED: u8 = 0;
/// First byte of a unit that is an LZ4 block.
const COMPRESSED: u8 = 1;
/// Bytes that the checksum adds.
const CRC_BYTES: usize = 4;

/// What a native actor knows of a unit.
#[derive(Debug, Clone, Copy)]
pub struct NativeUnit<'a> {
    /// Where it lies and how it is written.
    pub binding: Binding,
    /// Who writes it.
    pub nonce: NonceParts,
    /// The keys, and which of them seals.
    pub keys: (&'a KeyRing, Option<u16>),
}

/// One built-in actor without a sandbox.
#[derive(Debug)]
pub struct Native {
    kind: Kind,
    scratch: Vec<u8>,
}

#[derive(Debug)]
enum Kind {
    Lz4,
    Seal,
    Checksum,
    RunningHash(Box<[Position; STREAMS_MAX]>),
    Mask(Vec<u8>),
    Lines(LineStage),
}

#[derive(Debug)]
struct LineStage {
    when: Direction,
    malformed: Malformed,
    pad: Option<u8>,
    work: LineWork,
}

#[derive(Debug)]
enum LineWork {
    Project(Box<Names>),
    Filter { field: Vec<u8>, operator: Operator, operand: OwnedOperand },
    Format(Box<Template>),
}

#[derive(Debug)]
enum OwnedOperand {
    Text(Vec<u8>),
    Number(Vec<u8>),
    Truth(bool),
}

impl Native {
    /// The built-in of this name with parameters in normal form; `None` if there is none, or it refuses them.
    pub fn new(name: &str, params: &str) -> Option<Native> {
        let table: toml::Table = params.parse().ok()?;
        let kind = match name {
            "lz4" => Kind::Lz4,
            "aes256-gcm-siv" => Kind::Seal,
            "crc32c" => Kind::Checksum,
            "running-hash" => Kind::RunningHash(Box::default()),
            "example" => Kind::Mask(table.get("word")?.as_str()?.as_bytes().to_vec()),
            "jsonl-project" => Kind::Lines(LineStage::new(&table, project_of(&table)?)?),
            "filter" => Kind::Lines(LineStage::new(&table, filter_of(&table)?)?),
            "logfmt" => Kind::Lines(LineStage::new(&table, format_of(&table)?)?),
            _ => return None,
        };
        Some(Native { kind, scratch: Vec::new() })
    }

    /// Works on a whole unit; answers the length of the output.
    ///
    /// # Errors
    /// A failure code of `docs/abi.md`.
    pub fn run(
        &mut self,
        direction: Direction,
        unit: &NativeUnit<'_>,
        input: &[u8],
        output: &mut [u8],
    ) -> Result<usize, i32> {
        let forward = direction == Direction::Forward;
        match &mut self.kind {
            Kind::Lz4 if forward => compress(input, output, &mut self.scratch),
            Kind::Lz4 => decompress(input, output),
            Kind::Seal if forward => {
                let (keys, id) = unit.keys;
                let id = id.ok_or(code::CONFIGURATION)?;
                intrinsics::seal(keys, id, &unit.binding, &unit.nonce, input, output)
            }
            Kind::Seal => intrinsics::open(unit.keys.0, &unit.binding, input, output),
            Kind::Checksum if forward => append_crc(unit.binding.slba, input, output),
            Kind::Checksum => verify_crc(unit.binding.slba, input, output),
            Kind::RunningHash(positions) if forward => {
                let position = positions.get_mut(usize::from(unit.nonce.stream)).ok_or(code::OTHER)?;
                append_hash(position, unit.nonce.sequence, input, output)
            }
            Kind::RunningHash(_) => {
                let length = strip(input).ok_or(code::MALFORMED)?;
                copy(&input[..length], output)
            }
            Kind::Mask(word) => {
                let output = output.get_mut(..input.len()).ok_or(code::NO_ROOM)?;
                for ((to, from), key) in output.iter_mut().zip(input).zip(word.iter().cycle()) {
                    *to = from ^ key;
                }
                Ok(input.len())
            }
            Kind::Lines(stage) => stage.run(direction, input, output),
        }
    }
}

fn copy(input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
    output.get_mut(..input.len()).ok_or(code::NO_ROOM)?.copy_from_slice(input);
    Ok(input.len())
}

fn compress(input: &[u8], output: &mut [u8], scratch: &mut Vec<u8>) -> Result<usize, i32> {
    let (marker, block) = output.split_first_mut().ok_or(code::NO_ROOM)?;
    *marker = COMPRESSED;
    match intrinsics::lz4_compress(input, block, scratch) {
        Ok(length) if length < input.len() => Ok(1 + length),
        _ => {
            *marker = STORED;
            copy(input, block).map(|length| 1 + length)
        }
    }
}

fn decompress(input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
    match input.split_first() {
        Some((&STORED, block)) => copy(block, output),
        Some((&COMPRESSED, block)) => intrinsics::lz4_decompress(block, output),
        _ => Err(code::MALFORMED),
    }
}

fn unit_crc(slba: u64, content: &[u8]) -> [u8; CRC_BYTES] {
    intrinsics::crc32c(intrinsics::crc32c(0, &slba.to_le_bytes()), content).to_le_bytes()
}

fn append_crc(slba: u64, input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
    let end = input.len() + CRC_BYTES;
    output.get_mut(..end).ok_or(code::NO_ROOM)?[input.len()..].copy_from_slice(&unit_crc(slba, input));
    copy(input, output)?;
    Ok(end)
}

fn verify_crc(slba: u64, input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
    let (content, trailer) = input.split_last_chunk::<CRC_BYTES>().ok_or(code::MALFORMED)?;
    if unit_crc(slba, content) != *trailer {
        return Err(code::INTEGRITY);
    }
    copy(content, output)
}

fn append_hash(position: &mut Position, sequence: u64, input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
    let end = input.len() + TRAILER_BYTES;
    let room = output.get_mut(..end).ok_or(code::NO_ROOM)?;
    let hash = Xxh64::new(position.hash).finish(input);
    *position = Position { hash, units: position.units + 1, sequence };
    room[..input.len()].copy_from_slice(input);
    room[input.len()..].copy_from_slice(&position.trailer());
    Ok(end)
}

impl LineStage {
    fn new(table: &toml::Table, work: LineWork) -> Option<LineStage> {
        let word = |key: &str, default: &'static str| match table.get(key) {
            Some(value) => value.as_str().map(str::to_owned),
            None => Some(default.to_owned()),
        };
        let when = match word("when", "read")?.as_str() {
            "read" => Direction::Inverse,
            "write" => Direction::Forward,
            _ => return None,
        };
        let malformed = match word("malformed", "keep")?.as_str() {
            "keep" => Malformed::Keep,
            "drop" => Malformed::Drop,
            "fail" => Malformed::Fail,
            _ => return None,
        };
        let usual = if when == Direction::Inverse { "newline" } else { "none" };
        let pad = match word("pad", usual)?.as_str() {
            "newline" => Some(b'\n'),
            "zero" => Some(0),
            "none" => None,
            _ => return None,
        };
        Some(LineStage { when, malformed, pad, work })
    }

    fn run(&self, direction: Direction, input: &[u8], output: &mut [u8]) -> Result<usize, i32> {
        if direction != self.when {
            return copy(input, output);
        }
        let newline =
            |bytes: &[u8], from: usize| memchr::memchr(b'\n', &bytes[from..]).map_or(bytes.len(), |at| from + at);
        let line = |line: &[u8], sink: &mut Sink<'_>| self.line(line, sink);
        let step = Lines::new().step(input, output, usize::MAX, self.malformed, newline, line);
        let written = match step {
            Ok(Step::Done(written)) => written,
            Ok(Step::Yielded(_)) => unreachable!("a budget without end is never used up"),
            Err(CodecError::Malformed) => return Err(code::MALFORMED),
            Err(CodecError::NoRoom) => return Err(code::NO_ROOM),
        };
        if let Some(byte) = self.pad {
            let rest = output.get_mut(..input.len()).and_then(|unit| unit.get_mut(written..));
            rest.ok_or(code::NO_ROOM)?.fill(byte);
            return Ok(input.len());
        }
        if written == 0 && direction == Direction::Forward {
            // An extent is not empty.
            return copy(b"\n", output);
        }
        Ok(written)
    }

    fn line(&self, line: &[u8], sink: &mut Sink<'_>) -> Result<Verdict, CodecError> {
        match &self.work {
            LineWork::Project(names) => project(line, sink, |key| names.contains(key)),
            LineWork::Format(template) => template.format(line, sink),
            LineWork::Filter { field, operator, operand } => {
                let operand = match operand {
                    OwnedOperand::Text(text) => Operand::Text(text),
                    OwnedOperand::Number(number) => Operand::Number(number),
                    OwnedOperand::Truth(truth) => Operand::Truth(*truth),
                };
                Ok(matches(line, field, *operator, operand))
            }
        }
    }
}

fn project_of(table: &toml::Table) -> Option<LineWork> {
    let mut names = Names::new();
    for name in table.get("fields")?.as_array()? {
        names.add(name.as_str()?.bytes()).ok()?;
    }
    Some(LineWork::Project(Box::new(names)))
}

fn filter_of(table: &toml::Table) -> Option<LineWork> {
    let operand = match (table.get("value"), table.get("number")) {
        (Some(toml::Value::String(text)), None) => OwnedOperand::Text(text.as_bytes().to_vec()),
        (Some(toml::Value::Integer(number)), None) => OwnedOperand::Number(number.to_string().into_bytes()),
        (Some(toml::Value::Boolean(truth)), None) => OwnedOperand::Truth(*truth),
        (None, Some(toml::Value::String(number))) => OwnedOperand::Number(number.as_bytes().to_vec()),
        _ => return None,
    };
    let field = table.get("field")?.as_str()?.as_bytes().to_vec();
    let operator = Operator::from_name(table.get("op")?.as_str()?.as_bytes())?;
    Some(LineWork::Filter { field, operator, operand })
}

fn format_of(table: &toml::Table) -> Option<LineWork> {
    let text = match table.get("template") {
        Some(text) => text.as_str()?,
        None => "{time:24} {level:5} {message}",
    };
    let mut template = Template::new();
    template.read(text.bytes()).ok()?;
    Some(LineWork::Format(Box::new(template)))
}
