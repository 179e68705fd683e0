//! Tells Rust code from its comments and literals, without parsing it.
//!
//! Both results have the length and the lines of the source, with blanks for what is not theirs, so that an
//! offset in one is an offset in all.

/// A source file, taken apart.
#[derive(Clone, Debug)]
pub struct Source {
    /// The code, with comments and the insides of literals blanked.
    pub code: String,
    /// The comments alone.
    pub comments: String,
}

/// Where the lexer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Code,
    LineComment,
    BlockComment(u32),
    Text,
    RawText(usize),
}

impl Source {
    /// Takes a source apart.
    pub fn new(text: &str) -> Self {
        let bytes = text.as_bytes();
        let (mut code, mut comments) = (Vec::with_capacity(bytes.len()), Vec::with_capacity(bytes.len()));
        let (mut state, mut at) = (State::Code, 0);
        while at < bytes.len() {
            let (taken, next) = step(state, bytes, at);
            let comment = matches!(state, State::LineComment | State::BlockComment(_))
                || matches!(next, State::LineComment | State::BlockComment(_));
            let is_code = state == State::Code && !comment;
            for &byte in &bytes[at..at + taken] {
                let keep = |wanted: bool| if wanted || byte == b'\n' { byte } else { b' ' };
                code.push(keep(is_code));
                comments.push(keep(comment));
            }
            (state, at) = (next, at + taken);
        }
        // Whole characters are kept or blanked byte by byte, so both stay UTF-8.
        let text = |bytes| String::from_utf8(bytes).unwrap_or_default();
        Self { code: text(code), comments: text(comments) }
    }
}

/// How many bytes belong together at `at`, and the state after them.
fn step(state: State, bytes: &[u8], at: usize) -> (usize, State) {
    let rest = &bytes[at..];
    match state {
        State::Code => step_code(bytes, at),
        State::LineComment if rest[0] == b'\n' => (1, State::Code),
        State::LineComment => (1, State::LineComment),
        State::BlockComment(depth) if rest.starts_with(b"/*") => (2, State::BlockComment(depth + 1)),
        State::BlockComment(1) if rest.starts_with(b"*/") => (2, State::Code),
        State::BlockComment(depth) if rest.starts_with(b"*/") => (2, State::BlockComment(depth - 1)),
        State::BlockComment(depth) => (1, State::BlockComment(depth)),
        State::Text if rest[0] == b'\\' && rest.len() > 1 => (2, State::Text),
        State::Text if rest[0] == b'"' => (1, State::Code),
        State::Text => (1, State::Text),
        State::RawText(hashes) => {
            let ends = rest[0] == b'"' && rest.len() > hashes && rest[1..=hashes].iter().all(|b| *b == b'#');
            if ends { (1 + hashes, State::Code) } else { (1, State::RawText(hashes)) }
        }
    }
}

fn step_code(bytes: &[u8], at: usize) -> (usize, State) {
    let rest = &bytes[at..];
    if rest.starts_with(b"//") {
        return (2, State::LineComment);
    }
    if rest.starts_with(b"/*") {
        return (2, State::BlockComment(1));
    }
    if rest[0] == b'"' {
        return (1, State::Text);
    }
    let begins_word = at == 0 || !is_word(bytes[at - 1]);
    if begins_word && let Some((taken, hashes)) = raw_start(rest) {
        return (taken, State::RawText(hashes));
    }
    if rest[0] == b'\'' {
        return (char_literal(rest), State::Code);
    }
    (1, State::Code)
}

/// The length of `r##"` (also `br`, `cr`) and its number of hashes.
fn raw_start(rest: &[u8]) -> Option<(usize, usize)> {
    let prefix = match rest {
        [b'r', ..] => 1,
        [b'b' | b'c', b'r', ..] => 2,
        _ => return None,
    };
    let hashes = rest[prefix..].iter().take_while(|b| **b == b'#').count();
    (rest.get(prefix + hashes) == Some(&b'"')).then_some((prefix + hashes + 1, hashes))
}

/// The length of a character literal, or 1 for the quote of a lifetime.
fn char_literal(rest: &[u8]) -> usize {
    if rest.get(1) == Some(&b'\\') {
        // The escaped character itself may be a quote.
        let end = rest.iter().skip(3).position(|b| *b == b'\'');
        return end.map_or(1, |end| end + 4);
    }
    // One character of up to four bytes between two quotes.
    let end = rest.iter().skip(2).take(4).position(|b| *b == b'\'').map(|end| end + 2);
    match end {
        Some(end) if std::str::from_utf8(&rest[1..end]).is_ok_and(|text| text.chars().count() == 1) => end + 1,
        _ => 1,
    }
}

/// Whether a byte can be part of a name.
pub fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric()
}

/// The offsets at which `word` stands in `text` as a word of its own.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let bytes = text.as_bytes();
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = at == 0 || !is_word(bytes[at - 1]);
        let after = bytes.get(at + word.len()).is_none_or(|byte| !is_word(*byte));
        before && after
    })
}

/// The line of an offset, from 1.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The offset of the bracket that closes the one at `open`, in blanked code.
pub fn closing(code: &str, open: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let pair = match bytes[open] {
        b'{' => (b'{', b'}'),
        b'(' => (b'(', b')'),
        b'[' => (b'[', b']'),
        _ => return None,
    };
    let mut depth = 0usize;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        if *byte == pair.0 {
            depth += 1;
        } else if *byte == pair.1 {
            depth -= 1;
            if depth == 0 {
                return Some(at);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_told_from_code() {
        let text = "a // unsafe\nb /* x /* y */ unsafe */ c \"unsafe \\\" //\" d r#\"uns\"afe\"# e 'u' '\\'' f<'life>";
        let source = Source::new(text);
        assert_eq!(words(&source.code, "unsafe").count(), 0);
        assert_eq!(words(&source.comments, "unsafe").count(), 2);
        for name in ["a", "b", "c", "d", "e", "f"] {
            assert_eq!(words(&source.code, name).count(), 1, "{name} in {:?}", source.code);
        }
        assert_eq!(words(&source.code, "life").count(), 1, "a lifetime is no literal");
        assert_eq!((source.code.len(), source.comments.len()), (text.len(), text.len()));
    }

    #[test]
    fn lines_stay_where_they_are_and_other_scripts_do_no_harm() {
        let text = "// é\nlet x = \"ü\n\"; // ß\nlet y = 'é'; unsafe";
        let source = Source::new(text);
        assert_eq!(source.code.lines().count(), text.lines().count());
        let at = words(&source.code, "unsafe").next().unwrap();
        assert_eq!(line_of(&source.code, at), 4);
    }

    #[test]
    fn a_bracket_finds_its_partner() {
        assert_eq!(closing("{ { } }", 0), Some(6));
        assert_eq!(closing("{ {", 0), None);
    }
}
