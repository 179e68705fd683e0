//! A predicate on one field of a JSON object.

use core::cmp::Ordering;

use crate::decimal;
use crate::json::{self, Unescape};
use crate::records::Verdict;

/// How the field's value and the given one are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// They are the same.
    Equal,
    /// They are of one type and not the same.
    NotEqual,
    /// The field's is the lesser.
    Less,
    /// The field's is the greater.
    Greater,
    /// The field's, a string, has the given one in it.
    Contains,
}

impl Operator {
    /// The operator of a name: `eq`, `ne`, `lt`, `gt`, `contains`, or `==`, `!=`, `<`, `>`.
    pub fn from_name(name: &[u8]) -> Option<Operator> {
        Some(match name {
            b"eq" | b"==" => Operator::Equal,
            b"ne" | b"!=" => Operator::NotEqual,
            b"lt" | b"<" => Operator::Less,
            b"gt" | b">" => Operator::Greater,
            b"contains" => Operator::Contains,
            _ => return None,
        })
    }
}

/// What a field is compared with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operand<'a> {
    /// Text, unescaped. Only strings compare with it.
    Text(&'a [u8]),
    /// A JSON number, as written. Only numbers compare with it, exactly.
    Number(&'a [u8]),
    /// `true` or `false`. Only these compare with it, and false is the lesser.
    Truth(bool),
}

/// Whether a line has `field` and it stands in that relation to `operand`. A record without the field, or with one
/// of another type, does not match, whatever the operator: nothing is known about it.
pub fn matches(line: &[u8], field: &[u8], operator: Operator, operand: Operand<'_>) -> Verdict {
    match json::find(line, field) {
        Err(json::NotAnObject) => Verdict::Malformed,
        Ok(Some(value)) if holds(value, operator, operand) => Verdict::Unchanged,
        Ok(_) => Verdict::Dropped,
    }
}

fn holds(value: &[u8], operator: Operator, operand: Operand<'_>) -> bool {
    let order = match operand {
        Operand::Text(text) => {
            let Some(inside) = json::string_inside(value) else { return false };
            if operator == Operator::Contains {
                return contains(Unescape::new(inside), text);
            }
            Unescape::new(inside).cmp(text.iter().copied())
        }
        Operand::Number(number) if json::is_number(value) => decimal::compare(value, number),
        Operand::Truth(truth) if value == b"true" || value == b"false" => (value == b"true").cmp(&truth),
        Operand::Number(_) | Operand::Truth(_) => return false,
    };
    match operator {
        Operator::Equal => order == Ordering::Equal,
        Operator::NotEqual => order != Ordering::Equal,
        Operator::Less => order == Ordering::Less,
        Operator::Greater => order == Ordering::Greater,
        Operator::Contains => false,
    }
}

/// Whether `needle` occurs. The time is the product of both lengths; the needle is a parameter, at most some
/// hundred bytes.
fn contains(mut text: Unescape<'_>, needle: &[u8]) -> bool {
    loop {
        let mut here = text.clone();
        if needle.iter().all(|byte| here.next() == Some(*byte)) {
            return true;
        }
        if text.next().is_none() {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(line: &str, field: &str, operator: &str, operand: Operand<'_>) -> Verdict {
        matches(line.as_bytes(), field.as_bytes(), Operator::from_name(operator.as_bytes()).unwrap(), operand)
    }

    #[test]
    fn types_and_operators() {
        use Operand::{Number, Text, Truth};
        use Verdict::{Dropped, Malformed, Unchanged};
        let line = r#"{"n": 1.50, "s": "caf\u00e9 \"x\"", "t": true, "o": {"n": 9}, "z": null}"#;
        for (field, operator, operand, verdict) in [
            ("n", "eq", Number(b"1.5"), Unchanged),
            ("n", "ne", Number(b"1.5"), Dropped),
            ("n", "<", Number(b"2"), Unchanged),
            ("n", "gt", Number(b"15e-1"), Dropped),
            ("n", "eq", Text(b"1.50"), Dropped),
            ("n", "contains", Number(b"1"), Dropped),
            ("s", "contains", Text("\u{e9} \"x".as_bytes()), Unchanged),
            ("s", "contains", Text(b""), Unchanged),
            ("s", "contains", Text(b"X"), Dropped),
            ("s", "eq", Text("caf\u{e9} \"x\"".as_bytes()), Unchanged),
            ("s", "lt", Text(b"cag"), Unchanged),
            ("s", "ne", Number(b"3"), Dropped),
            ("t", "eq", Truth(true), Unchanged),
            ("t", "gt", Truth(false), Unchanged),
            ("t", "eq", Text(b"true"), Dropped),
            ("z", "ne", Number(b"3"), Dropped),
            ("missing", "ne", Number(b"3"), Dropped),
        ] {
            assert_eq!(check(line, field, operator, operand), verdict, "{field} {operator} {operand:?}");
        }
        assert_eq!(check("{\"n\":1", "n", "eq", Number(b"1")), Malformed);
        assert_eq!(check("{\"n\":1} x", "n", "eq", Number(b"1")), Malformed);
    }

    proptest! {
        #[test]
        fn contains_is_contains(text in "[ab\"\n]{0,12}", needle in "[ab\"\n]{0,3}") {
            let line = format!("{{\"k\":{}}}", serde_json::to_string(&text).unwrap());
            let found = check(&line, "k", "contains", Operand::Text(needle.as_bytes())) == Verdict::Unchanged;
            prop_assert_eq!(found, text.contains(&needle));
        }
    }
}
