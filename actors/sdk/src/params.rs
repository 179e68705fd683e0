//! An actor's parameters: the `params` table of its stage in the pipeline file.
//!
//! The host has normalised them: one `key = value` a line, sorted, as section 3 of the ABI says. So reading them needs
//! no TOML, and what is not in that form is refused as a whole.

use crate::{Failure, Level, host};

/// All parameters of an actor.
#[derive(Debug, Clone, Copy)]
pub struct Params<'a> {
    text: &'a [u8],
}

/// One value.
#[derive(Debug, Clone, Copy)]
pub enum Value<'a> {
    /// A string.
    Text(Text<'a>),
    /// An integer.
    Integer(i64),
    /// `true` or `false`.
    Truth(bool),
    /// A list of strings or integers.
    List(List<'a>),
}

/// A string, with its escapes still in it.
#[derive(Debug, Clone, Copy)]
pub struct Text<'a> {
    inside: &'a [u8],
}

/// A list, as written between its brackets.
#[derive(Debug, Clone, Copy)]
pub struct List<'a> {
    inside: &'a [u8],
}

impl<'a> Params<'a> {
    /// Bytes that parameters may have.
    pub const BYTES_MAX: usize = 1024;

    /// Parameters in the normal form.
    pub fn new(text: &'a [u8]) -> Params<'a> {
        Params { text }
    }

    fn lines(&self) -> impl Iterator<Item = Option<(&'a [u8], &'a [u8])>> + use<'a> {
        let lines = self.text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| {
            let at = line.windows(3).position(|part| part == b" = ")?;
            Some((&line[..at], &line[at + 3..]))
        })
    }

    /// Refuses keys that the actor does not know, by name.
    ///
    /// # Errors
    /// [`Failure::Configuration`], with the key in the log.
    pub fn only(&self, known: &[&str]) -> Result<(), Failure> {
        for line in self.lines() {
            let Some((key, _)) = line else { return Err(refuse("", b"the parameters are not in the form of the ABI")) };
            if !known.iter().any(|name| name.as_bytes() == key) {
                host::log(Level::Error, &[b"unknown parameter `", key, b"`"]);
                return Err(Failure::Configuration);
            }
        }
        Ok(())
    }

    /// The value of a key.
    ///
    /// # Errors
    /// [`Failure::Configuration`] when it is in none of the forms of the ABI.
    pub fn get(&self, key: &str) -> Result<Option<Value<'a>>, Failure> {
        match self.lines().flatten().find(|(name, _)| *name == key.as_bytes()) {
            None => Ok(None),
            Some((_, value)) => read(value).map(Some).ok_or_else(|| refuse(key, b"is not a value of the ABI")),
        }
    }

    /// A string.
    ///
    /// # Errors
    /// [`Failure::Configuration`] when the value is something else.
    pub fn text(&self, key: &str) -> Result<Option<Text<'a>>, Failure> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(refuse(key, b"has to be a string")),
        }
    }

    /// An integer.
    ///
    /// # Errors
    /// [`Failure::Configuration`] when the value is something else.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, Failure> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::Integer(number)) => Ok(Some(number)),
            Some(_) => Err(refuse(key, b"has to be an integer")),
        }
    }

    /// A list.
    ///
    /// # Errors
    /// [`Failure::Configuration`] when the value is something else.
    pub fn list(&self, key: &str) -> Result<Option<List<'a>>, Failure> {
        match self.get(key)? {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(refuse(key, b"has to be a list")),
        }
    }

    /// One of several words, given with what each stands for; the first one is taken when the key is missing.
    ///
    /// # Errors
    /// [`Failure::Configuration`] for any other word.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<T, Failure> {
        let Some(text) = self.text(key)? else {
            return words.first().map(|(_, meaning)| *meaning).ok_or(Failure::Other);
        };
        let found = words.iter().find(|(word, _)| text.is(word));
        found.map(|(_, meaning)| *meaning).ok_or_else(|| refuse(key, b"is none of the words that it can be"))
    }
}

/// Logs what is wrong with a parameter.
pub fn refuse(key: &str, problem: &[u8]) -> Failure {
    if key.is_empty() {
        host::log(Level::Error, &[problem]);
    } else {
        host::log(Level::Error, &[b"parameter `", key.as_bytes(), b"` ", problem]);
    }
    Failure::Configuration
}

fn read(value: &[u8]) -> Option<Value<'_>> {
    match value {
        b"true" => Some(Value::Truth(true)),
        b"false" => Some(Value::Truth(false)),
        [b'[', inside @ .., b']'] => {
            let list = List { inside };
            list.items().all(|item| item.is_some()).then_some(Value::List(list))
        }
        [b'"', ..] => {
            let (text, rest) = read_text(value)?;
            rest.is_empty().then_some(Value::Text(text))
        }
        _ => read_integer(value).map(Value::Integer),
    }
}

/// A string and what is behind it.
fn read_text(value: &[u8]) -> Option<(Text<'_>, &[u8])> {
    let inside = value.strip_prefix(b"\"")?;
    let mut at = 0;
    loop {
        match inside.get(at)? {
            b'"' => return Some((Text { inside: &inside[..at] }, &inside[at + 1..])),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn read_integer(text: &[u8]) -> Option<i64> {
    core::str::from_utf8(text).ok()?.parse().ok()
}

impl<'a> Text<'a> {
    /// The bytes that it stands for.
    pub fn bytes(&self) -> impl Iterator<Item = u8> + Clone + use<'a> {
        let mut rest = self.inside.iter();
        core::iter::from_fn(move || {
            let byte = *rest.next()?;
            if byte != b'\\' {
                return Some(byte);
            }
            Some(match *rest.next()? {
                b'n' => b'\n',
                b't' => b'\t',
                b'r' => b'\r',
                b'u' => {
                    let hex = rest.as_slice().get(..4)?;
                    rest = rest.as_slice()[4..].iter();
                    hex.iter().fold(0, |sum, digit| sum << 4 | char::from(*digit).to_digit(16).unwrap_or(0) as u8)
                }
                other => other,
            })
        })
    }

    /// Whether it is this word.
    pub fn is(&self, word: &str) -> bool {
        self.bytes().eq(word.bytes())
    }

    /// Copies what it stands for; the length, `None` if it does not fit.
    pub fn copy_to(&self, room: &mut [u8]) -> Option<usize> {
        let mut used = 0;
        for byte in self.bytes() {
            *room.get_mut(used)? = byte;
            used += 1;
        }
        Some(used)
    }
}

impl<'a> List<'a> {
    fn items(&self) -> impl Iterator<Item = Option<Value<'a>>> + use<'a> {
        let mut rest = Some(self.inside).filter(|inside| !inside.is_empty());
        core::iter::from_fn(move || {
            let here = rest.take()?;
            let (value, behind) = if here.first() == Some(&b'"') {
                let Some((text, behind)) = read_text(here) else { return Some(None) };
                (Some(Value::Text(text)), behind)
            } else {
                let end = here.iter().position(|byte| *byte == b',').unwrap_or(here.len());
                (read_integer(&here[..end]).map(Value::Integer), &here[end..])
            };
            if behind.is_empty() {
                return Some(value);
            }
            rest = behind.strip_prefix(b", ");
            Some(value.filter(|_| rest.is_some()))
        })
    }

    /// Its values, in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        self.items().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Host;

    const TEXT: &[u8] = b"fields = [\"a\", \"b\\\"\", \"\"]\nkey = \"x\\ny\\\\\\u0001\"\nlevels = [1, -2]\nmany = -12\nnone = []\nyes = true\n";

    #[test]
    fn every_form() {
        let params = Params::new(TEXT);
        assert!(params.only(&["fields", "key", "levels", "many", "none", "yes"]).is_ok());
        assert_eq!(params.text("key").unwrap().unwrap().bytes().collect::<Vec<_>>(), b"x\ny\\\x01");
        assert_eq!(params.integer("many").unwrap(), Some(-12));
        assert!(matches!(params.get("yes").unwrap(), Some(Value::Truth(true))));
        assert!(params.get("absent").unwrap().is_none());
        let fields: Vec<Vec<u8>> = (params.list("fields").unwrap().unwrap().values())
            .map(|value| if let Value::Text(text) = value { text.bytes().collect() } else { panic!() })
            .collect();
        assert_eq!(fields, [b"a".as_slice(), b"b\"", b""]);
        let levels = params.list("levels").unwrap().unwrap().values();
        assert!(levels.map(|v| if let Value::Integer(n) = v { n } else { 0 }).eq([1, -2]));
        assert_eq!(params.list("none").unwrap().unwrap().values().count(), 0);
        assert!(params.text("key").unwrap().unwrap().copy_to(&mut [0; 4]).is_none());
    }

    #[test]
    fn refusals_name_the_key() {
        let host = Host::default();
        let params = Params::new(TEXT);
        let check = |failed: bool, says: &str| {
            assert!(failed);
            assert!(host.log().last().is_some_and(|(_, text)| text.contains(says)), "{:?}", host.log());
        };
        check(params.only(&["key"]).is_err(), "unknown parameter `fields`");
        check(params.integer("key").is_err(), "`key` has to be an integer");
        check(params.word("key", &[("a", 1), ("b", 2)]).is_err(), "`key`");
        assert_eq!(params.word("absent", &[("a", 1), ("b", 2)]), Ok(1));
        for bad in
            ["k = \"x", "k = [1 2]", "k = [1,]", "k = 1.5", "k = \"a\"b", "k = [\"a\" \"b\"]", "k = [true]", "k = "]
        {
            assert!(Params::new(bad.as_bytes()).get("k").is_err(), "{bad}");
        }
        check(Params::new(b"no value here").only(&[]).is_err(), "form of the ABI");
    }

    #[test]
    fn noise_never_panics() {
        let alphabet = b"k = \"\\[],-12ntu0\n truefals";
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut text = Vec::new();
        for _ in 0..20_000 {
            text.clear();
            text.extend_from_slice(b"k = ");
            for _ in 0..state % 24 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                text.push(alphabet[(state % alphabet.len() as u64) as usize]);
            }
            state = state.rotate_left(5).wrapping_add(1);
            let params = Params::new(&text);
            let _ = params.only(&["k"]);
            match params.get("k") {
                Ok(Some(Value::Text(text))) => drop(text.bytes().count()),
                Ok(Some(Value::List(list))) => drop(list.values().count()),
                _ => {}
            }
        }
    }
}
