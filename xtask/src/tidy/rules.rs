//! The rules over one file.

use super::Offence;
use super::crates::{PURE, UNSAFE};
use super::lexer::{Source, closing, is_word, line_of, words};

/// The longest function, in lines from its `fn` to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// The longest file that need not explain itself, in lines.
const FILE_LINES_MAX: usize = 1500;
/// What a longer file says in one of its first lines.
const LONG_FILE_EXCUSE: &str = "This file is long because";
/// How many first lines are searched for it.
const EXCUSE_LINES: usize = 20;
/// The longest line of a source, in characters.
const COLUMNS_MAX: usize = 120;
/// How far above an unsafe block its reason may begin, in lines.
const SAFETY_LINES: usize = 12;

/// The pure crates whose numbers decide something: the same on every machine, so no floating point.
const WITHOUT_FLOATS: [&str; 6] =
    ["osier-flash", "osier-cache", "osier-link", "osier-device", "osier-domain", "osier-sched"];
/// What a pure crate may not name. Modules of `std` are also found inside a braced `use`.
const IMPURE_WORDS: [&str; 11] = [
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "thread_rng",
    "getrandom",
    "RandomState",
    "println",
    "eprintln",
    "print",
    "eprint",
];
const IMPURE_MODULES: [&str; 6] = ["thread", "net", "fs", "env", "process", "os"];
/// Macros that nobody may leave behind.
const UNFINISHED_MACROS: [&str; 3] = ["dbg", "todo", "unimplemented"];
/// Words that mark unfinished work. Put together here, so that this file does not offend.
const UNFINISHED_WORDS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
/// Paths of the machines that this was written on.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/tmp", "/wt"), concat!("/ro", "ot/")];

/// Everything that is wrong with a file.
pub fn check_file(path: &str, text: &str) -> Vec<Offence> {
    let mut offences = Vec::new();
    check_text(path, text, &mut offences);
    if path.ends_with(".rs") {
        check_rust(path, text, &mut offences);
    }
    offences
}

fn check_text(path: &str, text: &str, offences: &mut Vec<Offence>) {
    let generated = path.ends_with(".lock") || path.starts_with(crate::machine::EVIDENCE_DIRECTORY);
    if generated {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        let mut offend = |text: String| offences.push(Offence::new(path, index + 1, text));
        for word in UNFINISHED_WORDS {
            if words(line, word).next().is_some() {
                offend(format!("`{word}` marks unfinished work; finish it, or say in prose what is not done"));
            }
        }
        if let Some(machine) = MACHINE_PATHS.iter().find(|machine| line.contains(**machine)) {
            offend(format!("the path `{machine}` exists on one machine only"));
        }
    }
}

fn check_rust(path: &str, text: &str, offences: &mut Vec<Offence>) {
    let source = Source::new(text);
    check_length(path, text, offences);
    check_columns(path, text, &source, offences);
    check_functions(path, &source.code, offences);
    check_unfinished(path, &source.code, offences);
    let owner = crate_of(path);
    check_unsafe(path, &source, owner.as_deref(), offences);
    if let Some(name) = owner.as_deref().filter(|name| PURE.contains(name)) {
        check_pure(path, &source.code, offences);
        if WITHOUT_FLOATS.contains(&name) && !is_test_file(path) {
            check_floats(path, &source.code, offences);
        }
    }
}

/// The package that a source belongs to, if it is the product's.
fn crate_of(path: &str) -> Option<String> {
    let mut parts = path.split('/');
    match (parts.next()?, parts.next()?) {
        ("crates", folder) => Some(format!("osier-{folder}")),
        ("bin", "osier") => Some("osier".to_owned()),
        _ => None,
    }
}

/// Whether a whole file is for tests, benchmarks or examples.
fn is_test_file(path: &str) -> bool {
    path.ends_with("tests.rs") || ["/tests/", "/benches/", "/examples/"].iter().any(|part| path.contains(part))
}

fn check_length(path: &str, text: &str, offences: &mut Vec<Offence>) {
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX && !text.lines().take(EXCUSE_LINES).any(|line| line.contains(LONG_FILE_EXCUSE)) {
        let text =
            format!("{lines} lines are more than {FILE_LINES_MAX}; split it, or begin with `{LONG_FILE_EXCUSE} ...`");
        offences.push(Offence::new(path, 0, text));
    }
}

/// A line may be longer than the limit only where it cannot be broken: by the text of a literal, or as the
/// row of a table in a doc comment.
fn check_columns(path: &str, text: &str, source: &Source, offences: &mut Vec<Offence>) {
    let parts = source.code.lines().zip(source.comments.lines());
    for (index, (line, (code, comment))) in text.lines().zip(parts).enumerate() {
        let columns = line.chars().count();
        let blank = |text: &str, at: usize| text.as_bytes().get(at).is_none_or(u8::is_ascii_whitespace);
        let literal = |(at, c): &(usize, char)| !c.is_whitespace() && blank(code, *at) && blank(comment, *at);
        let literals = line.char_indices().filter(literal).count();
        let table = ["//! |", "/// |"].iter().any(|start| line.trim_start().starts_with(start));
        if columns > COLUMNS_MAX && columns - literals > COLUMNS_MAX && !table {
            let text = format!("{columns} columns are more than {COLUMNS_MAX}");
            offences.push(Offence::new(path, index + 1, text));
        }
    }
}

fn check_functions(path: &str, code: &str, offences: &mut Vec<Offence>) {
    for at in words(code, "fn") {
        let Some(name) = name_after(code, at + 2) else { continue };
        let Some(end) = body_end(code, at) else { continue };
        let lines = line_of(code, end) - line_of(code, at) + 1;
        if lines > FUNCTION_LINES_MAX {
            let text = format!("function `{name}` has {lines} lines, more than {FUNCTION_LINES_MAX}; split it");
            offences.push(Offence::new(path, line_of(code, at), text));
        }
    }
}

/// The name that begins after blanks at `at`; nothing for a function type, which has none.
fn name_after(code: &str, at: usize) -> Option<&str> {
    let rest = code[at..].trim_start();
    let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
    (length > 0).then(|| &rest[..length])
}

/// The closing brace of the function that begins at `at`; nothing for a declaration without a body.
fn body_end(code: &str, at: usize) -> Option<usize> {
    let bytes = code.as_bytes();
    let mut place = at;
    while place < bytes.len() {
        match bytes[place] {
            b'(' | b'[' => place = closing(code, place)? + 1,
            b'{' => return closing(code, place),
            b';' => return None,
            _ => place += 1,
        }
    }
    None
}

fn check_unfinished(path: &str, code: &str, offences: &mut Vec<Offence>) {
    for name in UNFINISHED_MACROS {
        for at in words(code, name).filter(|at| code[at + name.len()..].starts_with('!')) {
            offences.push(Offence::new(path, line_of(code, at), format!("`{name}!` is for unfinished work")));
        }
    }
    for at in words(code, "dead_code").filter(|at| code[..*at].trim_end().ends_with("allow(")) {
        // Under a condition it is not dead in every build; and what several tests share, each uses in part.
        let conditional = code[..at].lines().last().is_some_and(|line| line.contains("cfg_attr("));
        if conditional || path.contains("/tests/") {
            continue;
        }
        let text = "dead code is removed, not allowed";
        offences.push(Offence::new(path, line_of(code, at), text));
    }
}

fn check_unsafe(path: &str, source: &Source, owner: Option<&str>, offences: &mut Vec<Offence>) {
    let permitted = match owner {
        Some(name) => UNSAFE.contains(&name),
        // Guests speak a binary interface; its every call is one.
        None => path.starts_with("actors/"),
    };
    let reasons: Vec<&str> = source.comments.lines().collect();
    for at in words(&source.code, "unsafe") {
        let line = line_of(&source.code, at);
        if !permitted {
            let text = format!("`unsafe` is only for {} and guests", UNSAFE.join(", "));
            offences.push(Offence::new(path, line, text));
            continue;
        }
        let next = source.code[at + "unsafe".len()..].trim_start();
        let asks_reason = next.starts_with('{') || next.starts_with("impl");
        let above = line.saturating_sub(SAFETY_LINES + 1);
        if asks_reason && !reasons[above..line].iter().any(|comment| comment.contains("SAFETY:")) {
            offences.push(Offence::new(path, line, "an unsafe block begins with `// SAFETY:` and the reason"));
        }
    }
}

fn check_pure(path: &str, code: &str, offences: &mut Vec<Offence>) {
    if path.ends_with("/src/lib.rs") && !code.contains("#![forbid(unsafe_code)]") {
        offences.push(Offence::new(path, 0, "a pure crate begins with `#![forbid(unsafe_code)]`"));
    }
    if is_test_file(path) {
        return;
    }
    let shipped = without_tests(code);
    let mut offend = |at: usize, name: &str| {
        let text = format!("`{name}` has no place in a pure crate");
        offences.push(Offence::new(path, line_of(code, at), text));
    };
    for name in IMPURE_WORDS {
        words(&shipped, name).for_each(|at| offend(at, name));
    }
    for module in IMPURE_MODULES {
        let of_std = |at: &usize| names_std_module(&shipped, *at);
        words(&shipped, module).filter(of_std).for_each(|at| offend(at, &format!("std::{module}")));
    }
}

fn check_floats(path: &str, code: &str, offences: &mut Vec<Offence>) {
    let shipped = without_tests(code);
    for name in ["f32", "f64"] {
        for at in words(&shipped, name) {
            let text = format!("`{name}` differs between machines; use an integer or fixed point");
            offences.push(Offence::new(path, line_of(code, at), text));
        }
    }
}

/// Whether the word at `at` is a module of `std`: after `std::`, or within the braces of a `use std::{...}`.
fn names_std_module(code: &str, at: usize) -> bool {
    let before = code[..at].trim_end();
    if before.ends_with("std::") {
        return true;
    }
    let Some(open) = before.rfind("std::{") else { return false };
    let brace = open + "std::".len();
    let inside = closing(code, brace).is_some_and(|end| at < end);
    inside && (before.ends_with('{') || before.ends_with(','))
}

/// The code with every item under `#[cfg(test)]` blanked.
fn without_tests(code: &str) -> String {
    let mut shipped = code.to_owned();
    for marker in ["#[cfg(test)]", "#[cfg(all(test"] {
        for (at, _) in code.match_indices(marker) {
            let end = item_end(code, at);
            let blank: String = code[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            // Blanks are one byte each; in blanked code so is everything but names in other scripts.
            if blank.len() == end - at {
                shipped.replace_range(at..end, &blank);
            }
        }
    }
    shipped
}

/// The end of the item whose first attribute begins at `at`.
fn item_end(code: &str, at: usize) -> usize {
    let bytes = code.as_bytes();
    let mut place = at;
    while place < bytes.len() {
        match bytes[place] {
            b'(' | b'[' => match closing(code, place) {
                Some(end) => place = end + 1,
                None => return code.len(),
            },
            b'{' => return closing(code, place).map_or(code.len(), |end| end + 1),
            b';' => return place + 1,
            _ => place += 1,
        }
    }
    code.len()
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
