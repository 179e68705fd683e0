//! Keeps the JSON lines of which a predicate on one top-level field holds.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `field` | string, required | whose value is looked at |
//! | `op` | `eq`, `ne`, `lt`, `gt`, `contains`, or `==`, `!=`, `<`, `>`; required | how |
//! | `value` | string, integer, `true` or `false` | what it is compared with |
//! | `number` | string | instead of `value`: a number that is no integer, as in JSON |
//!
//! and `when`, `malformed` and `pad` as in `osier-actor-lines`. Strings compare with strings, by bytes; numbers with
//! numbers, exactly. A record without the field, or with a value of another type, is left out.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::filter::{Operand, Operator, matches};
use osier_actor_codecs::json::is_number;
use osier_actor_lines::LineStage;
use osier_actor_sdk::params::refuse;
use osier_actor_sdk::{Actor, Chunk, Direction, Failure, Params, Progress, Text, Value};

const TEXT_MAX: usize = 256;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Text,
    Number,
    Truth(bool),
}

/// A short text in the module's own memory.
#[derive(Debug)]
struct Short {
    bytes: [u8; TEXT_MAX],
    length: usize,
}

impl Short {
    const fn new() -> Short {
        Short { bytes: [0; TEXT_MAX], length: 0 }
    }

    fn set(&mut self, key: &str, text: Text<'_>) -> Result<(), Failure> {
        self.length = text.copy_to(&mut self.bytes).ok_or_else(|| refuse(key, b"is longer than 256 bytes"))?;
        Ok(())
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The actor.
#[derive(Debug)]
pub struct Filter {
    stage: LineStage,
    field: Short,
    operator: Operator,
    kind: Kind,
    operand: Short,
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

impl Filter {
    /// The actor before it has read its parameters.
    pub const fn new() -> Filter {
        Filter {
            stage: LineStage::new(),
            field: Short::new(),
            operator: Operator::Equal,
            kind: Kind::Text,
            operand: Short::new(),
        }
    }

    fn work(&mut self, direction: Direction, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let operand = match self.kind {
            Kind::Text => Operand::Text(self.operand.get()),
            Kind::Number => Operand::Number(self.operand.get()),
            Kind::Truth(truth) => Operand::Truth(truth),
        };
        let (field, operator) = (self.field.get(), self.operator);
        self.stage.chunk(direction, chunk, |line, _| Ok(matches(line, field, operator, operand)))
    }

    fn read_operand(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        match (params.get("value")?, params.text("number")?) {
            (Some(Value::Text(text)), None) => {
                self.kind = Kind::Text;
                self.operand.set("value", text)
            }
            (Some(Value::Truth(truth)), None) => {
                self.kind = Kind::Truth(truth);
                Ok(())
            }
            (Some(Value::Integer(number)), None) => {
                self.kind = Kind::Number;
                self.operand.length = write_decimal(number, &mut self.operand.bytes);
                Ok(())
            }
            (None, Some(text)) => {
                self.kind = Kind::Number;
                self.operand.set("number", text)?;
                if is_number(self.operand.get()) { Ok(()) } else { Err(refuse("number", b"is not a JSON number")) }
            }
            (Some(Value::List(_)), None) => Err(refuse("value", b"has to be a string, an integer, true or false")),
            (Some(_), Some(_)) => Err(refuse("number", b"and `value` are both there")),
            (None, None) => Err(refuse("value", b"is missing: say what to compare with")),
        }
    }
}

/// Writes an integer in decimal and answers its length.
fn write_decimal(number: i64, room: &mut [u8; TEXT_MAX]) -> usize {
    let mut digits = [0u8; 20];
    let (mut rest, mut count) = (number.unsigned_abs(), 0);
    loop {
        digits[count] = b'0' + (rest % 10) as u8;
        rest /= 10;
        count += 1;
        if rest == 0 {
            break;
        }
    }
    let sign = usize::from(number < 0);
    room[0] = b'-';
    for (to, from) in room[sign..].iter_mut().zip(digits[..count].iter().rev()) {
        *to = *from;
    }
    sign + count
}

impl Actor for Filter {
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        self.stage.init(params, &["field", "op", "value", "number"])?;
        let field = params.text("field")?.ok_or_else(|| refuse("field", b"is missing: say what to look at"))?;
        self.field.set("field", field)?;
        let op = params.text("op")?.ok_or_else(|| refuse("op", b"is missing: one of eq, ne, lt, gt, contains"))?;
        let mut name = [0; 8];
        let length = op.copy_to(&mut name).unwrap_or(0);
        self.operator =
            Operator::from_name(&name[..length]).ok_or_else(|| refuse("op", b"is none of eq, ne, lt, gt, contains"))?;
        self.read_operand(params)?;
        match (self.operator, self.kind) {
            (Operator::Contains, Kind::Number | Kind::Truth(_)) => {
                Err(refuse("value", b"of contains has to be a string"))
            }
            _ => Ok(()),
        }
    }

    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Forward, chunk)
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Inverse, chunk)
    }
}

osier_actor_sdk::export!(Filter: Filter::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    const INPUT: &[u8] = b"{\"n\":-5,\"s\":\"error: x\"}\n{\"n\":1.5,\"t\":true}\n{\"n\":12,\"s\":\"fine\"}\nhalf\n";

    fn run(params: &str) -> Vec<u8> {
        let (host, mut actor) = (Host::with_params(params), Filter::new());
        host.init(&mut actor).unwrap();
        assert_eq!(host.write(&mut actor, Unit::default(), INPUT, 10).unwrap(), INPUT);
        host.read(&mut actor, Unit::default(), INPUT, 10).unwrap()
    }

    #[test]
    fn predicates() {
        let lines: Vec<&[u8]> = INPUT.split_inclusive(|byte| *byte == b'\n').collect();
        for (params, kept) in [
            ("field = \"n\"\nop = \"lt\"\npad = \"none\"\nvalue = 0\n", vec![0, 3]),
            ("field = \"n\"\nop = \"==\"\npad = \"none\"\nvalue = -5\n", vec![0, 3]),
            ("field = \"n\"\nnumber = \"1.50\"\nop = \"eq\"\npad = \"none\"\n", vec![1, 3]),
            ("field = \"n\"\nop = \"gt\"\npad = \"none\"\nvalue = -9223372036854775808\n", vec![0, 1, 2, 3]),
            ("field = \"s\"\nop = \"contains\"\npad = \"none\"\nvalue = \"error\"\n", vec![0, 3]),
            ("field = \"s\"\nmalformed = \"drop\"\nop = \"ne\"\npad = \"none\"\nvalue = \"fine\"\n", vec![0]),
            ("field = \"t\"\nop = \"eq\"\npad = \"none\"\nvalue = true\n", vec![1, 3]),
            ("field = \"zz\"\nmalformed = \"drop\"\nop = \"eq\"\npad = \"none\"\nvalue = true\n", vec![]),
        ] {
            let expected: Vec<u8> = kept.iter().flat_map(|index: &usize| lines[*index]).copied().collect();
            assert_eq!(run(params), expected, "{params}");
        }
        let padded = run("field = \"n\"\nop = \"eq\"\npad = \"zero\"\nvalue = 12\n");
        assert_eq!(padded.len(), INPUT.len());
        let text = [lines[2], lines[3]].concat();
        assert_eq!(padded[..text.len()], text);
        assert!(padded[text.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn nothing_kept_on_a_write_is_one_newline() {
        let params = "field = \"zz\"\nmalformed = \"drop\"\nop = \"eq\"\nvalue = 1\nwhen = \"write\"\n";
        let (host, mut actor) = (Host::with_params(params), Filter::new());
        host.init(&mut actor).unwrap();
        assert_eq!(host.write(&mut actor, Unit::default(), INPUT, 10).unwrap(), b"\n");
    }

    #[test]
    fn bad_parameters() {
        for (text, says) in [
            ("op = \"eq\"\nvalue = 1\n", "`field` is missing"),
            ("field = \"a\"\nvalue = 1\n", "`op` is missing"),
            ("field = \"a\"\nop = \"resembles\"\nvalue = 1\n", "`op` is none"),
            ("field = \"a\"\nop = \"eq\"\n", "`value` is missing"),
            ("field = \"a\"\nop = \"eq\"\nvalue = [1]\n", "`value` has to be"),
            ("field = \"a\"\nnumber = \"1\"\nop = \"eq\"\nvalue = 1\n", "both"),
            ("field = \"a\"\nnumber = \"1.\"\nop = \"eq\"\n", "not a JSON number"),
            ("field = \"a\"\nop = \"contains\"\nvalue = 1\n", "has to be a string"),
            (&format!("field = \"{}\"\nop = \"eq\"\nvalue = 1\n", "x".repeat(257)), "256 bytes"),
        ] {
            let host = Host::with_params(text);
            assert_eq!(host.init(&mut Filter::new()), Err(Failure::Configuration), "{text}");
            assert!(host.errors()[0].contains(says), "{:?}", host.errors());
        }
    }
}
