//! Keeps the named fields of each JSON object, in the order in which the object has them, values as written.

use crate::CodecError;
use crate::json::{Fields, key_is};
use crate::records::{Sink, Verdict};

/// Projects one line. `wanted` says whether a field is kept, given its name as written.
///
/// # Errors
/// [`CodecError::NoRoom`].
pub fn project(line: &[u8], sink: &mut Sink<'_>, wanted: impl Fn(&[u8]) -> bool) -> Result<Verdict, CodecError> {
    sink.put_byte(b'{')?;
    let mut first = true;
    for field in Fields::new(line) {
        let Ok(field) = field else { return Ok(Verdict::Malformed) };
        if !wanted(field.key) {
            continue;
        }
        sink.put(if first { b"\"" } else { b",\"" })?;
        sink.put(field.key)?;
        sink.put(b"\":")?;
        sink.put(field.value)?;
        first = false;
    }
    sink.put_byte(b'}')?;
    Ok(Verdict::Written)
}

/// Names to keep, packed one behind the other; a table that a module can hold without an allocator.
#[derive(Debug, Clone)]
pub struct Names {
    bytes: [u8; Names::BYTES_MAX],
    ends: [u16; Names::COUNT_MAX],
    count: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self::new()
    }
}

impl Names {
    /// Bytes of all names together.
    pub const BYTES_MAX: usize = 512;
    /// How many names there can be.
    pub const COUNT_MAX: usize = 32;

    /// No names.
    pub const fn new() -> Names {
        Names { bytes: [0; Names::BYTES_MAX], ends: [0; Names::COUNT_MAX], count: 0 }
    }

    /// Adds a name, given byte by byte.
    ///
    /// # Errors
    /// [`CodecError::NoRoom`] when there are too many, or too long ones.
    pub fn add(&mut self, name: impl Iterator<Item = u8>) -> Result<(), CodecError> {
        let from = self.end_of(self.count);
        let mut end = from;
        for byte in name {
            *self.bytes.get_mut(end).ok_or(CodecError::NoRoom)? = byte;
            end += 1;
        }
        *self.ends.get_mut(self.count).ok_or(CodecError::NoRoom)? = end as u16;
        self.count += 1;
        Ok(())
    }

    /// The names, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.count).map(|index| &self.bytes[self.end_of(index)..self.end_of(index + 1)])
    }

    /// Whether a key, as written, is one of the names.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.iter().any(|name| key_is(key, name))
    }

    fn end_of(&self, count: usize) -> usize {
        count.checked_sub(1).map_or(0, |last| usize::from(self.ends[last]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::{Malformed, testing};
    use proptest::prelude::*;
    use serde_json::Value;

    fn names(list: &[&str]) -> Names {
        let mut names = Names::new();
        list.iter().for_each(|name| names.add(name.bytes()).unwrap());
        names
    }

    fn run(input: &str, keep: &[&str], budget: usize) -> String {
        let names = names(keep);
        let out = testing::run(input.as_bytes(), input.len() + 64, budget, Malformed::Keep, |line, sink| {
            project(line, sink, |key| names.contains(key))
        });
        String::from_utf8(out.unwrap()).unwrap()
    }

    #[test]
    fn keeps_order_and_spelling() {
        let input = "{\"a\": 1, \"b\": {\"a\": [2 , 3]}, \"c\":\"x\\n\"}\nail\":1}\n{ \"b\" : 1.50 }\n{}\n{\"a\":1";
        assert_eq!(
            run(input, &["c", "b"], 10),
            "{\"b\":{\"a\": [2 , 3]},\"c\":\"x\\n\"}\nail\":1}\n{\"b\":1.50}\n{}\n{\"a\":1"
        );
        assert_eq!(run("{\"\\u0061b\":1,\"ab\":2}\n", &["ab"], 100), "{\"\\u0061b\":1,\"ab\":2}\n");
    }

    #[test]
    fn tables_have_a_bound() {
        let mut names = Names::new();
        (0..Names::COUNT_MAX).for_each(|_| names.add(b"x".iter().copied()).unwrap());
        assert_eq!(names.add(b"x".iter().copied()), Err(CodecError::NoRoom));
        let mut names = Names::new();
        names.add(core::iter::repeat_n(b'x', Names::BYTES_MAX)).unwrap();
        assert_eq!(names.add(b"x".iter().copied()), Err(CodecError::NoRoom));
        assert_eq!(names.iter().count(), 1);
    }

    proptest! {
        #[test]
        fn agrees_with_serde(
            rows in proptest::collection::vec(
                proptest::collection::btree_map("[a-d]", any::<i32>(), 0..5),
                0..20,
            ),
            keep in proptest::collection::btree_set("[a-d]", 0..4),
            budget in 1usize..200,
        ) {
            let input: String = rows.iter().map(|row| serde_json::to_string(row).unwrap() + "\n").collect();
            let keep: Vec<&str> = keep.iter().map(String::as_str).collect();
            let out = run(&input, &keep, budget);
            prop_assert_eq!(out.lines().count(), rows.len());
            for (line, row) in out.lines().zip(&rows) {
                let kept = row.iter().filter(|(k, _)| keep.contains(&k.as_str()));
                let want: serde_json::Map<String, Value> =
                    kept.map(|(k, v)| (k.clone(), Value::from(*v))).collect();
                prop_assert_eq!(serde_json::from_str::<Value>(line).unwrap(), Value::Object(want));
            }
        }
    }
}
