//! The specification and the tree agree: every promise is numbered once, and names tests or, for what is timed,
//! benchmarks that exist, or says that it is pending.

use std::collections::{BTreeMap, BTreeSet};

use super::Offence;
use super::lexer::{is_word, words};

/// The file that holds the promises.
pub const SPECIFICATION: &str = "SPECIFICATION.md";
/// What stands in place of a test.
const PENDING: &str = "*pending*";
/// What stands before the name of a benchmark.
const BENCH: &str = "make bench FILTER=";
/// A row of the tables: identifier, promise, tests.
const CELLS: usize = 3;

/// The names of all functions of a Rust source, code only.
pub fn functions(code: &str, names: &mut BTreeSet<String>) {
    for at in words(code, "fn") {
        let rest = code[at + 2..].trim_start();
        let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
        if length > 0 {
            names.insert(rest[..length].to_owned());
        }
    }
}

/// Everything that is wrong with the specification, given the names of all functions and of all benchmarks.
pub fn check(specification: &str, functions: &BTreeSet<String>, benches: &BTreeSet<String>) -> Vec<Offence> {
    let mut offences = Vec::new();
    let mut seen = BTreeMap::new();
    for (index, line) in specification.lines().enumerate() {
        let mut offend = |text: String| offences.push(Offence::new(SPECIFICATION, index + 1, text));
        let Some((id, tests)) = promise(line) else { continue };
        if let Some(first) = seen.insert(id.to_owned(), index + 1) {
            offend(format!("promise {id} is there twice; the first is on line {first}"));
        }
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        if named.is_empty() && tests != PENDING {
            offend(format!("promise {id} names no test, and does not say {PENDING}"));
        }
        for name in named {
            let exists = name.strip_prefix(BENCH).map_or_else(|| functions.contains(name), |b| benches.contains(b));
            if !exists {
                offend(format!("promise {id} names the test `{name}`, which does not exist"));
            }
        }
    }
    offences
}

/// The identifier and the tests of a row that is a promise: its first cell is letters and a number.
fn promise(line: &str) -> Option<(&str, &str)> {
    let cells: Vec<&str> = line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
    let id = *cells.first()?;
    let letters = id.bytes().take_while(u8::is_ascii_uppercase).count();
    let number = &id[letters..];
    let is_id = letters > 0 && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    (is_id && cells.len() == CELLS).then(|| (id, cells[CELLS - 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offences(rows: &str) -> Vec<String> {
        let mut names = BTreeSet::new();
        functions("fn it_holds() {} type F = fn(u8);", &mut names);
        let benches = BTreeSet::from(["ring".to_owned()]);
        check(&format!("| id | promise | tests |\n| --- | --- | --- |\n{rows}"), &names, &benches)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn a_promise_with_its_test_or_pending_is_right() {
        assert!(offences("| A1 | x | `it_holds` |\n| A2 | y `z` | *pending* |\n").is_empty());
        assert!(offences("| A1 | x | `make bench FILTER=ring` |\n").is_empty());
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        let found = offences("| A1 | x | `it_holds`, `it_does_not` |\n| A2 | x | `make bench FILTER=it` |\n");
        assert_eq!(found.len(), 2);
        assert!(found[0].contains("SPECIFICATION.md:3:") && found[0].contains("`it_does_not`"), "{found:?}");
    }

    #[test]
    fn a_promise_without_a_test_and_one_made_twice_are_found() {
        assert!(offences("| A1 | x | soon |\n")[0].contains("names no test"));
        assert!(offences("| A1 | x | *pending* |\n| A1 | y | *pending* |\n")[0].contains("there twice"));
    }
}
