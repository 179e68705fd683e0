//! Turns a JSON object into one line of text after a template.
//!
//! A template is text with `{field}` in it, `{field:20}` for at least and at most 20 characters, filled with
//! spaces behind, `{field:>20}` filled in front. `{{` and `}}` stand for braces.

use crate::CodecError;
use crate::json::{self, string_inside};
use crate::records::{Sink, Verdict};

/// Pieces (runs of text, and fields) that a template may have.
pub const PIECES_MAX: usize = 32;
/// Bytes that a template may have.
pub const TEMPLATE_MAX: usize = 512;
/// The widest field, in characters.
pub const WIDTH_MAX: u16 = 256;
/// What stands for a field that the record does not have.
const ABSENT: &[u8] = b"-";

#[derive(Debug, Clone, Copy)]
enum Piece {
    Text,
    Field { width: u16, right: bool },
}

/// A template that has been read.
#[derive(Debug, Clone)]
pub struct Template {
    text: [u8; TEMPLATE_MAX],
    pieces: [(Piece, u16, u16); PIECES_MAX],
    count: usize,
    used: usize,
}

impl Default for Template {
    fn default() -> Self {
        Self::new()
    }
}

impl Template {
    /// A template without anything in it.
    pub const fn new() -> Template {
        Template { text: [0; TEMPLATE_MAX], pieces: [(Piece::Text, 0, 0); PIECES_MAX], count: 0, used: 0 }
    }

    /// Reads a template, given byte by byte.
    ///
    /// # Errors
    /// [`CodecError::Malformed`] for a brace without its partner, an empty field name or a width that is not
    /// 1..=[`WIDTH_MAX`]; [`CodecError::NoRoom`] when it is too long or has too many pieces.
    pub fn read(&mut self, mut bytes: impl Iterator<Item = u8>) -> Result<(), CodecError> {
        *self = Template::new();
        let mut from = 0;
        while let Some(byte) = bytes.next() {
            match byte {
                b'{' => match bytes.next() {
                    Some(b'{') => self.keep(b'{')?,
                    Some(first) => {
                        self.piece(Piece::Text, from)?;
                        self.field(first, &mut bytes)?;
                        from = self.used;
                    }
                    None => return Err(CodecError::Malformed),
                },
                b'}' if bytes.next() != Some(b'}') => return Err(CodecError::Malformed),
                b'\n' => return Err(CodecError::Malformed),
                _ => self.keep(byte)?,
            }
        }
        self.piece(Piece::Text, from)
    }

    fn field(&mut self, first: u8, bytes: &mut impl Iterator<Item = u8>) -> Result<(), CodecError> {
        let from = self.used;
        let (mut byte, mut width, mut right, mut in_width) = (first, 0u16, false, false);
        loop {
            match byte {
                b'}' => break,
                b':' if !in_width => in_width = true,
                b'>' if in_width && !right && width == 0 => right = true,
                b'0'..=b'9' if in_width && width <= WIDTH_MAX => width = width * 10 + u16::from(byte - b'0'),
                _ if in_width => return Err(CodecError::Malformed),
                _ => self.keep(byte)?,
            }
            byte = bytes.next().ok_or(CodecError::Malformed)?;
        }
        if from == self.used || width > WIDTH_MAX || in_width && width == 0 {
            return Err(CodecError::Malformed);
        }
        self.piece(Piece::Field { width, right }, from)
    }

    fn keep(&mut self, byte: u8) -> Result<(), CodecError> {
        *self.text.get_mut(self.used).ok_or(CodecError::NoRoom)? = byte;
        self.used += 1;
        Ok(())
    }

    fn piece(&mut self, piece: Piece, from: usize) -> Result<(), CodecError> {
        if from < self.used {
            *self.pieces.get_mut(self.count).ok_or(CodecError::NoRoom)? = (piece, from as u16, self.used as u16);
            self.count += 1;
        }
        Ok(())
    }

    /// Formats one line.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`].
    pub fn format(&self, line: &[u8], sink: &mut Sink<'_>) -> Result<Verdict, CodecError> {
        let mut values: [Option<&[u8]>; PIECES_MAX] = [None; PIECES_MAX];
        for field in json::Fields::new(line) {
            let Ok(field) = field else { return Ok(Verdict::Malformed) };
            for (value, (piece, from, to)) in values.iter_mut().zip(&self.pieces[..self.count]) {
                let name = &self.text[usize::from(*from)..usize::from(*to)];
                if matches!(piece, Piece::Field { .. }) && value.is_none() && json::key_is(field.key, name) {
                    *value = Some(field.value);
                }
            }
        }
        for (value, (piece, from, to)) in values.iter().zip(&self.pieces[..self.count]) {
            match piece {
                Piece::Text => sink.put(&self.text[usize::from(*from)..usize::from(*to)])?,
                Piece::Field { width, right } => put_field(sink, value.unwrap_or(ABSENT), *width, *right)?,
            }
        }
        Ok(Verdict::Written)
    }
}

/// Writes a value, cut and filled to its width. A string goes without its quotes but with its escapes, so that a
/// record stays one line.
fn put_field(sink: &mut Sink<'_>, value: &[u8], width: u16, right: bool) -> Result<(), CodecError> {
    let value = string_inside(value).unwrap_or(value);
    let width = usize::from(width);
    if width == 0 {
        return sink.put(value);
    }
    // UTF-8 in plain sight: every byte but a continuation begins a character.
    let begins = |byte: &u8| *byte & 0xc0 != 0x80;
    let cut = value.iter().enumerate().filter(|(_, byte)| begins(byte)).nth(width).map_or(value.len(), |(at, _)| at);
    let fill = width - value[..cut].iter().filter(|byte| begins(byte)).count();
    if right {
        (0..fill).try_for_each(|_| sink.put_byte(b' '))?;
    }
    sink.put(&value[..cut])?;
    if !right {
        (0..fill).try_for_each(|_| sink.put_byte(b' '))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Malformed, testing};
    use proptest::prelude::*;

    fn read(template: &str) -> Result<Template, CodecError> {
        let mut out = Template::new();
        out.read(template.bytes()).map(|()| out)
    }

    fn run(template: &str, input: &str) -> String {
        let template = read(template).unwrap();
        let out = testing::run(input.as_bytes(), 4096, 7, Malformed::Keep, |line, sink| template.format(line, sink));
        String::from_utf8(out.unwrap()).unwrap()
    }

    #[test]
    fn fields_widths_and_braces() {
        let input = "{\"t\":\"12:00\",\"level\":\"error\",\"n\":42,\"msg\":\"a\\nb \u{e9}\u{e9}\"}\n{\"n\":1}\nrest";
        assert_eq!(run("{t} {level:3} {n:>5}|{msg}", input), "12:00 err    42|a\\nb \u{e9}\u{e9}\n- -       1|-\nrest");
        assert_eq!(run("{{{n}}} {msg:6}.", input), "{42} a\\nb \u{e9}.\n{1} -     .\nrest");
    }

    #[test]
    fn bad_templates() {
        for bad in ["{", "}", "{a", "{}", "{:3}", "{a:}", "{a:0}", "{a:257}", "{a:x}", "{a:3>}", "a\nb", "}x"] {
            assert_eq!(read(bad).unwrap_err(), CodecError::Malformed, "{bad}");
        }
        assert_eq!(read(&"x".repeat(TEMPLATE_MAX + 1)).unwrap_err(), CodecError::NoRoom);
        assert_eq!(read(&"{a}".repeat(PIECES_MAX + 1)).unwrap_err(), CodecError::NoRoom);
        assert!(read(&"{a}".repeat(PIECES_MAX)).is_ok());
    }

    proptest! {
        #[test]
        fn any_template_is_read_or_refused(template in "[a{}:>0-9 ]{0,20}", line in "\\{\"a\":\"[a-c\u{e9}]{0,8}\"\\}") {
            if let Ok(template) = read(&template) {
                let text = line.as_bytes();
                let out = testing::run(text, 20_000, 9, Malformed::Fail, |line, sink| template.format(line, sink));
                prop_assert!(String::from_utf8(out.unwrap()).is_ok());
            }
        }
    }
}
