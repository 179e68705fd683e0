//! Keeps the named fields of JSON lines, at the top level, in the order of each record, values as they are written.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `fields` | list of strings, required | the fields to keep |
//!
//! and `when`, `malformed` and `pad` as in `osier-actor-lines`. By default it works on reads: the media keep
//! everything, the reader gets the projection, in blocks of the same length.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::project::{Names, project};
use osier_actor_lines::LineStage;
use osier_actor_sdk::params::refuse;
use osier_actor_sdk::{Actor, Chunk, Direction, Failure, Params, Progress, Value};

/// The actor.
#[derive(Debug, Default)]
pub struct Project {
    stage: LineStage,
    names: Names,
}

impl Project {
    /// The actor before it has read its parameters.
    pub const fn new() -> Project {
        Project { stage: LineStage::new(), names: Names::new() }
    }

    fn work(&mut self, direction: Direction, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let names = &self.names;
        self.stage.chunk(direction, chunk, |line, sink| project(line, sink, |key| names.contains(key)))
    }
}

impl Actor for Project {
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        self.stage.init(params, &["fields"])?;
        let fields = params.list("fields")?.ok_or_else(|| refuse("fields", b"is missing: name what to keep"))?;
        self.names = Names::new();
        for value in fields.values() {
            let Value::Text(name) = value else { return Err(refuse("fields", b"has to be a list of strings")) };
            self.names
                .add(name.bytes())
                .map_err(|_| refuse("fields", b"are more than 32, or longer than 512 bytes"))?;
        }
        Ok(())
    }

    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Forward, chunk)
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Inverse, chunk)
    }
}

osier_actor_sdk::export!(Project: Project::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    const INPUT: &[u8] = b"rt\":1}\n{\"a\":1,\"b\":[2],\"c\":\"x\"}\n{\"c\":3}\nnot json\n{\"a\":";

    fn run(params: &str, budget: usize) -> (Vec<u8>, Vec<u8>) {
        let (host, mut actor) = (Host::with_params(params), Project::new());
        host.init(&mut actor).unwrap();
        let written = host.write(&mut actor, Unit::default(), INPUT, budget).unwrap();
        (written, host.read(&mut actor, Unit::default(), INPUT, budget).unwrap())
    }

    #[test]
    fn on_reads_blocks_keep_their_length() {
        for budget in [1, 20, 4096] {
            let (written, read) = run("fields = [\"c\", \"a\"]\n", budget);
            assert_eq!(written, INPUT);
            let text = b"rt\":1}\n{\"a\":1,\"c\":\"x\"}\n{\"c\":3}\nnot json\n{\"a\":";
            assert_eq!(read.len(), INPUT.len());
            assert_eq!(&read[..text.len()], text);
            assert!(read[text.len()..].iter().all(|byte| *byte == b'\n'));
        }
    }

    #[test]
    fn on_writes_what_is_left_out_is_gone() {
        let (written, read) = run("fields = [\"b\"]\nmalformed = \"drop\"\nwhen = \"write\"\n", 30);
        assert_eq!(written, b"{\"b\":[2]}\n{}\n");
        assert_eq!(read, INPUT);
    }

    #[test]
    fn a_malformed_line_can_fail() {
        let (host, mut actor) = (Host::with_params("fields = []\nmalformed = \"fail\"\n"), Project::new());
        host.init(&mut actor).unwrap();
        assert_eq!(host.read(&mut actor, Unit::default(), INPUT, 9), Err(Failure::Malformed));
        assert!(host.errors()[0].contains("not one JSON object"));
    }

    #[test]
    fn bad_parameters() {
        for (text, says) in [
            ("", "`fields` is missing"),
            ("fields = \"a\"\n", "has to be a list"),
            ("fields = [1]\n", "list of strings"),
            ("fields = []\nwhen = \"now\"\n", "`when`"),
            ("fields = []\nfiedls = []\n", "`fiedls`"),
            (&format!("fields = [{}\"a\"]\n", "\"a\", ".repeat(32)), "more than 32"),
        ] {
            let host = Host::with_params(text);
            assert_eq!(host.init(&mut Project::new()), Err(Failure::Configuration), "{text}");
            assert!(host.errors()[0].contains(says), "{:?}", host.errors());
        }
    }
}
