//! Turns JSON lines into lines of text after a template.
//!
//! | parameter | values | meaning |
//! | --- | --- | --- |
//! | `template` | string; by default `{time:24} {level:5} {message}` | text with `{field}`, `{field:20}` for 20 characters, `{field:>20}` for 20 with the spaces in front; `{{` and `}}` for braces |
//!
//! and `when`, `malformed` and `pad` as in `osier-actor-lines`. A field that a record does not have is `-`. A string
//! keeps its escapes, so that a record stays one line.
#![cfg_attr(target_family = "wasm", no_std)]
#![forbid(unsafe_code)]

use osier_actor_codecs::logfmt::Template;
use osier_actor_lines::LineStage;
use osier_actor_sdk::params::refuse;
use osier_actor_sdk::{Actor, Chunk, Direction, Failure, Params, Progress};

const DEFAULT: &str = "{time:24} {level:5} {message}";

/// The actor.
#[derive(Debug, Default)]
pub struct Logfmt {
    stage: LineStage,
    template: Template,
}

impl Logfmt {
    /// The actor before it has read its parameters.
    pub const fn new() -> Logfmt {
        Logfmt { stage: LineStage::new(), template: Template::new() }
    }

    fn work(&mut self, direction: Direction, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        let template = &self.template;
        self.stage.chunk(direction, chunk, |line, sink| template.format(line, sink))
    }
}

impl Actor for Logfmt {
    fn init(&mut self, params: &Params<'_>) -> Result<(), Failure> {
        self.stage.init(params, &["template"])?;
        let result = match params.text("template")? {
            Some(text) => self.template.read(text.bytes()),
            None => self.template.read(DEFAULT.bytes()),
        };
        result.map_err(|_| refuse("template", b"is no template: a brace, a width or its length is wrong"))
    }

    fn forward(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Forward, chunk)
    }

    fn inverse(&mut self, chunk: Chunk<'_>) -> Result<Progress, Failure> {
        self.work(Direction::Inverse, chunk)
    }
}

osier_actor_sdk::export!(Logfmt: Logfmt::new(); forward, inverse, resume);

#[cfg(test)]
mod tests {
    use super::*;
    use osier_actor_sdk::testing::{Host, Unit};

    const INPUT: &[u8] =
        b"{\"level\":\"warn\",\"message\":\"low \\\"disk\\\"\",\"time\":\"2031-01-01T00:00:00Z\"}\nx\n";

    #[test]
    fn the_default_template() {
        let (host, mut actor) = (Host::with_params("pad = \"none\"\n"), Logfmt::new());
        host.init(&mut actor).unwrap();
        let out = host.read(&mut actor, Unit::default(), INPUT, 5).unwrap();
        assert_eq!(out, b"2031-01-01T00:00:00Z     warn  low \\\"disk\\\"\nx\n");
    }

    #[test]
    fn formatted_on_the_way_to_the_media() {
        let (host, mut actor) = (Host::with_params("template = \"<{message}>\"\nwhen = \"write\"\n"), Logfmt::new());
        host.init(&mut actor).unwrap();
        assert_eq!(host.write(&mut actor, Unit::default(), INPUT, 5).unwrap(), b"<low \\\"disk\\\">\nx\n");
        assert_eq!(host.read(&mut actor, Unit::default(), b"<x>\n", 5).unwrap(), b"<x>\n");
    }

    #[test]
    fn a_text_that_outgrows_its_unit_fails() {
        let (host, mut actor) = (Host::with_params("template = \"{x:200}\"\n"), Logfmt::new());
        host.init(&mut actor).unwrap();
        assert_eq!(host.read(&mut actor, Unit::default(), b"{\"x\":1}\n", 5), Err(Failure::NoRoom));
        assert!(host.errors()[0].contains("longer than"));
        let host = Host::with_params("template = \"{x\"\n");
        assert_eq!(host.init(&mut actor), Err(Failure::Configuration));
        assert!(host.errors()[0].contains("`template`"));
    }
}
