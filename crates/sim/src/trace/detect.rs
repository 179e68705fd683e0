//! Which format a trace is, by its content.

use std::io::Read;

use memchr::memchr;

use super::counts::{Fault, TraceError};
use super::fields::is_empty;
use super::input::Input;
use super::memory::{parse_lackey, parse_text};
use super::reader::{Format, Parsed, Tenants};
use super::{BlkEvent, blkparse, mqsim, msr, oracle_general};

/// So many lines are tried.
const PROBED: usize = 64;
/// So many bytes are shown of what was not recognized.
const SHOWN_BYTES: usize = 60;

/// The format of a trace that begins with these bytes; `whole` says that there are no more. Nothing if none fits, or
/// none that can be told by its content: `mem-binary` is any bytes at all.
#[must_use]
pub fn detect(bytes: &[u8], whole: bool) -> Option<Format> {
    if memchr(0, bytes).is_some() {
        return oracle_general::is_likely(bytes).then_some(Format::OracleGeneral);
    }
    let mut lines: Vec<&[u8]> = bytes.split(|byte| *byte == b'\n').take(PROBED + 1).collect();
    // The last one is cut off, or is what is behind the end of the last line.
    if !whole || lines.len() > PROBED {
        lines.pop();
    }
    lines.retain(|line| !is_empty(line));
    let scores = Format::TEXT.map(|format| (score(format, &lines), format));
    scores.into_iter().filter(|(score, _)| *score > 0).max_by_key(|(score, _)| *score).map(|(_, format)| format)
}

/// How many lines are requests in a format, if they are at least as many as those that are wrong in it; else nothing.
fn score(format: Format, lines: &[&[u8]]) -> usize {
    let (mut good, mut bad) = (0, 0);
    for line in lines {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match try_line(format, line) {
            Ok(true) => good += 1,
            Ok(false) => {}
            Err(_) => bad += 1,
        }
    }
    if bad <= good { good } else { 0 }
}

/// Whether a line is a request of any kind.
fn try_line(format: Format, line: &[u8]) -> Result<bool, Fault> {
    let tenants = &mut Tenants::default();
    if format == Format::BlkParse {
        let events = BlkEvent::ALL.into_iter().map(|event| blkparse::parse(line, event, tenants));
        return events.map(|parsed| Ok(parsed? != Parsed::Nothing)).try_fold(false, |any, this| Ok(any | this?));
    }
    let parsed = match format {
        Format::Msr => msr::parse(line, tenants),
        Format::MqSim => mqsim::parse(line),
        Format::Mem => parse_text(line),
        Format::Lackey => parse_lackey(line, true),
        Format::BlkParse | Format::OracleGeneral | Format::MemBinary => return Err(Fault::Op),
    };
    Ok(parsed? != Parsed::Nothing)
}

/// The format of what an input begins with.
pub(super) fn detect_input<R: Read>(input: &mut Input<R>) -> Result<Format, TraceError> {
    let (bytes, whole) = input.peek().map_err(TraceError::Open)?;
    let begin = || bytes[..bytes.len().min(SHOWN_BYTES)].escape_ascii().to_string();
    detect(bytes, whole).ok_or_else(|| TraceError::Unrecognized { begin: begin() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_recognized_and_nothing_else() {
        let cases: [(&str, Option<Format>); 9] = [
            ("128166372003061629,hm,0,Read,383496192,32768,4131\n", Some(Format::Msr)),
            ("\n\n4851300 0 1024 8 1\r\n", Some(Format::MqSim)),
            (
                "  8,0    3        1     0.000000000   697  G   W 223490 + 8 [kjournald]\n8,0 3 2 0.000001000 697 Q W 8 + 8 [a]\n",
                Some(Format::BlkParse),
            ),
            ("# loads\nR 0x10\nW 0x20 8\n", Some(Format::Mem)),
            ("==1== Lackey\nI  0401ab70,3\n S 1fff000748,8\n", Some(Format::Lackey)),
            ("timestamp,lbn,size\n1,2,3\n", None),
            ("R\nR\nR\n", None),
            ("", None),
            ("{\"a\": 1}\n", None),
        ];
        for (text, format) in cases {
            assert_eq!(detect(text.as_bytes(), true), format, "{text}");
        }
        assert_eq!(detect(b"R 0x10\nR 0x20", false), Some(Format::Mem), "the line that is cut off does not count");
        assert_eq!(detect(b"R 0x10", false), None);
        assert_eq!(detect(&[0; 96], true), None, "an object of which the next use is its first");
        assert_eq!(detect(b"ELF\0\x01\x02", true), None);
    }
}
