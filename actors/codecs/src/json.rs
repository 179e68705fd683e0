//! Reads one JSON object a line, strictly, in place.
//!
//! What is here never allocates and never recurses: nesting is a bit a level, at most [`DEPTH_MAX`] of them.
//! Strings are not checked to be UTF-8; their bytes go through as they are.

/// Levels of objects and lists within a value.
pub const DEPTH_MAX: u32 = 64;

/// One member of an object, in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    /// The key as it is written, without its quotes.
    pub key: &'a [u8],
    /// The value as it is written.
    pub value: &'a [u8],
}

/// The text is not one JSON object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnObject;

/// The members of an object, one after the other. The object is known to be well formed when the last one,
/// `None`, was given out without an error before it.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    scanner: Scanner<'a>,
    begun: bool,
    over: bool,
}

impl<'a> Fields<'a> {
    /// The members of the object that `line` is, with white space around it.
    pub fn new(line: &'a [u8]) -> Fields<'a> {
        Fields { scanner: Scanner { bytes: line, at: 0 }, begun: false, over: false }
    }

    fn advance(&mut self) -> Option<Option<Field<'a>>> {
        let scanner = &mut self.scanner;
        scanner.space();
        if !self.begun {
            self.begun = true;
            scanner.expect(b'{')?;
            scanner.space();
            if scanner.peek() == Some(b'}') {
                return scanner.end().map(|()| None);
            }
        } else if scanner.peek()? == b'}' {
            return scanner.end().map(|()| None);
        } else {
            scanner.expect(b',')?;
            scanner.space();
        }
        let key = scanner.key()?;
        scanner.space();
        let from = scanner.at;
        scanner.value()?;
        Some(Some(Field { key, value: &scanner.bytes[from..scanner.at] }))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, NotAnObject>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        match self.advance() {
            Some(Some(field)) => Some(Ok(field)),
            Some(None) => {
                self.over = true;
                None
            }
            None => {
                self.over = true;
                Some(Err(NotAnObject))
            }
        }
    }
}

/// The value of a field of an object, `Ok(None)` if it has no such field; the first one if it has several.
///
/// # Errors
/// When `line` is not an object; all of it is checked.
pub fn find<'a>(line: &'a [u8], key: &[u8]) -> Result<Option<&'a [u8]>, NotAnObject> {
    let mut found = None;
    for field in Fields::new(line) {
        let field = field?;
        if found.is_none() && key_is(field.key, key) {
            found = Some(field.value);
        }
    }
    Ok(found)
}

/// Whether a key, as written, is this name.
pub fn key_is(written: &[u8], name: &[u8]) -> bool {
    if written.contains(&b'\\') { Unescape::new(written).eq(name.iter().copied()) } else { written == name }
}

/// The inside of a string value, as written; `None` for a value of another type.
pub fn string_inside(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', inside @ .., b'"'] => Some(inside),
        _ => None,
    }
}

/// Whether a text is one JSON number and nothing else.
pub fn is_number(text: &[u8]) -> bool {
    let mut scanner = Scanner { bytes: text, at: 0 };
    scanner.number().is_some() && scanner.at == text.len()
}

#[derive(Debug, Clone)]
struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    /// A closing brace with nothing but white space behind it.
    fn end(&mut self) -> Option<()> {
        self.expect(b'}')?;
        self.space();
        (self.at == self.bytes.len()).then_some(())
    }

    /// A key and its colon.
    fn key(&mut self) -> Option<&'a [u8]> {
        let key = self.string()?;
        self.space();
        self.expect(b':')?;
        Some(key)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        self.expect(b'"')?;
        let from = self.at;
        loop {
            let byte = self.peek()?;
            self.at += 1;
            match byte {
                b'"' => return Some(&self.bytes[from..self.at - 1]),
                b'\\' => self.escape()?,
                0..0x20 => return None,
                _ => {}
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        let byte = self.peek()?;
        self.at += 1;
        match byte {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(()),
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4)?;
                self.at += 4;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())
            }
            _ => None,
        }
    }

    fn digits(&mut self) -> Option<()> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn literal(&mut self, word: &[u8]) -> Option<()> {
        self.bytes.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    /// Any value. The levels that are open are bits of a word, 1 for an object.
    fn value(&mut self) -> Option<()> {
        let (mut kinds, mut depth) = (0u64, 0u32);
        loop {
            self.space();
            match self.peek()? {
                open @ (b'{' | b'[') => {
                    self.at += 1;
                    self.space();
                    let object = open == b'{';
                    if self.peek()? == (if object { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        if depth == DEPTH_MAX {
                            return None;
                        }
                        depth += 1;
                        kinds = kinds << 1 | u64::from(object);
                        if object {
                            self.key()?;
                        }
                        continue;
                    }
                }
                b'"' => drop(self.string()?),
                b't' => self.literal(b"true")?,
                b'f' => self.literal(b"false")?,
                b'n' => self.literal(b"null")?,
                _ => self.number()?,
            }
            if !self.close(&mut kinds, &mut depth)? {
                return Some(());
            }
        }
    }

    /// After a value: closes what ends here. True when another value follows, false when the outermost is over.
    fn close(&mut self, kinds: &mut u64, depth: &mut u32) -> Option<bool> {
        while *depth > 0 {
            self.space();
            let object = *kinds & 1 == 1;
            let byte = self.peek()?;
            self.at += 1;
            if byte == b',' {
                if object {
                    self.space();
                    self.key()?;
                }
                return Some(true);
            }
            if byte != (if object { b'}' } else { b']' }) {
                return None;
            }
            *kinds >>= 1;
            *depth -= 1;
        }
        Some(false)
    }
}

/// The bytes that the inside of a well-formed string stands for, in UTF-8. Half of a surrogate pair becomes U+FFFD.
#[derive(Debug, Clone)]
pub struct Unescape<'a> {
    rest: &'a [u8],
    pending: [u8; 4],
    /// Bytes of `pending` that are still to come; they are its last ones.
    waiting: u8,
}

impl<'a> Unescape<'a> {
    /// The bytes of a string, given what is written between its quotes.
    pub fn new(inside: &'a [u8]) -> Unescape<'a> {
        Unescape { rest: inside, pending: [0; 4], waiting: 0 }
    }

    fn hex(&mut self) -> u32 {
        let (digits, rest) = self.rest.split_at_checked(4).unwrap_or((&[], &[]));
        self.rest = rest;
        digits.iter().fold(0, |sum, digit| sum << 4 | char::from(*digit).to_digit(16).unwrap_or(0))
    }

    fn unicode(&mut self) -> u8 {
        let mut code = self.hex();
        if (0xd800..0xdc00).contains(&code)
            && let Some(rest) = self.rest.strip_prefix(b"\\u")
        {
            let before = core::mem::replace(&mut self.rest, rest);
            let low = self.hex();
            if (0xdc00..0xe000).contains(&low) {
                code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            } else {
                self.rest = before;
            }
        }
        let mut room = [0u8; 4];
        let text = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).encode_utf8(&mut room).as_bytes();
        self.waiting = text.len() as u8 - 1;
        for (to, from) in self.pending.iter_mut().rev().zip(text.iter().rev()) {
            *to = *from;
        }
        text[0]
    }
}

impl Iterator for Unescape<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if self.waiting > 0 {
            self.waiting -= 1;
            return Some(self.pending[3 - usize::from(self.waiting)]);
        }
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        if byte != b'\\' {
            return Some(byte);
        }
        let (&escape, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(match escape {
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'u' => self.unicode(),
            other => other,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::Bool),
            any::<i64>().prop_map(|n| serde_json::json!(n)),
            (-9_000_000i32..9_000_000).prop_map(|n| serde_json::json!(f64::from(n) / 64.0)),
            ".{0,12}".prop_map(Value::String),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Array),
                proptest::collection::btree_map("[a-c\u{e9}\"\\\\]{0,3}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn well_formed(text: &[u8]) -> bool {
        Fields::new(text).all(|field| field.is_ok())
    }

    proptest! {
        #[test]
        fn reads_what_serde_writes(value in any_json(), pretty in any::<bool>()) {
            let print = if pretty { serde_json::to_string_pretty } else { serde_json::to_string };
            let text = print(&value).unwrap();
            let fields: Result<Vec<_>, _> = Fields::new(text.as_bytes()).collect();
            match &value {
                Value::Object(map) => {
                    let fields = fields.unwrap();
                    prop_assert_eq!(fields.len(), map.len());
                    for (key, inner) in map {
                        let found = find(text.as_bytes(), key.as_bytes()).unwrap().unwrap();
                        prop_assert_eq!(&serde_json::from_slice::<Value>(found).unwrap(), inner);
                        if let Value::String(plain) = inner {
                            let bytes: Vec<u8> = Unescape::new(string_inside(found).unwrap()).collect();
                            prop_assert_eq!(&bytes, plain.as_bytes());
                        }
                    }
                }
                _ => prop_assert!(fields.is_err()),
            }
        }

        #[test]
        fn refuses_what_serde_refuses(
            value in any_json(),
            at in any::<prop::sample::Index>(),
            byte in prop::sample::select(&b"{}[],:\"\\0-9.eEtfn u\n"[..]),
            kind in 0..3,
        ) {
            let mut text = serde_json::to_vec(&value).unwrap();
            let index = at.index(text.len());
            match kind {
                0 => text[index] = byte,
                1 => text.insert(index, byte),
                _ => drop(text.remove(index)),
            }
            // Escaped halves of surrogate pairs, numbers out of range and broken UTF-8 are more than a form.
            let theirs = serde_json::from_slice::<serde_json::Map<String, Value>>(&text);
            let ours = well_formed(&text);
            match theirs {
                Ok(_) => prop_assert!(ours, "{}", String::from_utf8_lossy(&text)),
                Err(error) if ours => {
                    let why = error.to_string();
                    let known = ["surrogate", "range", "unicode", "hex"].iter().any(|word| why.contains(word));
                    prop_assert!(known, "{} {}", why, String::from_utf8_lossy(&text));
                }
                Err(_) => {}
            }
        }

        #[test]
        fn noise_never_panics(text in proptest::collection::vec(prop::sample::select(&b"{}[],:\"\\0-9.eEtrufalsn \n\x00\xff"[..]), 0..60)) {
            let _ = well_formed(&text);
            let _: Vec<u8> = Unescape::new(&text).collect();
        }
    }

    #[test]
    fn nesting_has_a_bound() {
        let nested = |n: usize| format!("{{\"a\":{}1{}}}", "[".repeat(n), "]".repeat(n));
        assert!(well_formed(nested(64).as_bytes()));
        assert!(!well_formed(nested(65).as_bytes()));
    }

    #[test]
    fn pairs_and_halves() {
        let text = |inside: &str| String::from_utf8(Unescape::new(inside.as_bytes()).collect()).unwrap();
        assert_eq!(text(r"\ud83d\ude00!"), "\u{1f600}!");
        assert_eq!(text(r"\ud83dx\u00e9"), "\u{fffd}x\u{e9}");
        assert_eq!(text(r"\ud83d\u0041"), "\u{fffd}A");
    }
}
