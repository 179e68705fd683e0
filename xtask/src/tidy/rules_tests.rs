//! Planted violations: each rule finds its own, at its line, and leaves what is right alone.

use super::*;

const PURE_FILE: &str = "crates/flash/src/ftl.rs";

/// The offences of a file, as text.
fn offences(path: &str, text: &str) -> Vec<String> {
    check_file(path, text).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn assert_found(path: &str, text: &str, expected: &[&str]) {
    let found = offences(path, text);
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.contains(expected), "{found} lacks {expected}");
    }
}

#[test]
fn a_function_of_71_lines_is_too_long_and_one_of_70_is_not() {
    let function = |lines: usize| format!("fn f(a: [u8; 2]) -> u8 {{\n{}}}\n", "    // }\n".repeat(lines - 2));
    assert_found("xtask/src/a.rs", &function(70), &[]);
    assert_found("xtask/src/a.rs", &format!("\n{}", function(71)), &["a.rs:2: function `f` has 71 lines"]);
    assert_found("xtask/src/a.rs", "type F = fn(u8) -> u8;\ntrait T { fn g(&self); }\n", &[]);
}

#[test]
fn a_long_file_says_why() {
    let long = "// x\n".repeat(1501);
    assert_found("xtask/src/a.rs", &long, &["1501 lines"]);
    assert_found("xtask/src/a.rs", &format!("//! This file is long because it is one machine.\n{long}"), &[]);
}

#[test]
fn a_line_of_121_columns_is_too_long() {
    assert_found("xtask/src/a.rs", &format!("// {}\n", "é".repeat(117)), &[]);
    assert_found("xtask/src/a.rs", &format!("\n// {}\n", "é".repeat(118)), &["a.rs:2: 121 columns"]);
    assert_found("xtask/src/a.rs", &format!("f(\"{}\");\n", "é".repeat(300)), &[]);
    assert_found("xtask/src/a.rs", &format!("/// | {} |\n", "é".repeat(300)), &[]);
    assert_found("xtask/src/a.rs", &format!("{}(\"é\");\n", "f".repeat(120)), &["columns"]);
}

#[test]
fn unfinished_work_is_found_in_words_and_macros() {
    let word = UNFINISHED_WORDS[0];
    assert_found("docs/a.md", &format!("first\n{word}: later\n"), &["a.md:2: "]);
    assert_found("docs/a.md", &format!("{word}S are not a mark\n"), &[]);
    assert_found("bin/osier/src/a.rs", "fn f() {\n    todo!()\n}\n", &["a.rs:2: `todo!`"]);
    assert_found("bin/osier/src/a.rs", "#[allow(dead_code)]\nfn f() {}\n", &["a.rs:1: dead code"]);
    assert_found("bin/osier/src/a.rs", "#[cfg_attr(not(test), allow(dead_code))]\nfn f() {}\n", &[]);
    assert_found("bin/osier/tests/common/mod.rs", "#![allow(dead_code)]\n", &[]);
    assert_found("bin/osier/src/a.rs", "fn todo() { dbg(); }\n", &[]);
}

#[test]
fn a_path_of_one_machine_is_found() {
    for path in MACHINE_PATHS {
        assert_found("docs/a.md", &format!("see {path}x\n"), &["exists on one machine only"]);
    }
}

#[test]
fn unsafe_is_found_where_it_may_not_be_and_without_a_reason_where_it_may() {
    assert_found("crates/image/src/a.rs", "fn f() {\n    unsafe { g() }\n}\n", &["a.rs:2: `unsafe` is only for"]);
    assert_found("crates/pmr/src/a.rs", "fn f() {\n    unsafe { g() }\n}\n", &["a.rs:2: an unsafe block"]);
    let reasoned = "fn f() {\n    // SAFETY: g asks for nothing.\n    unsafe { g() }\n}\nunsafe fn g() {}\n";
    assert_found("crates/pmr/src/a.rs", reasoned, &[]);
    assert_found("crates/pmr/src/a.rs", "unsafe impl Send for X {}\n", &["a.rs:1: an unsafe block"]);
    assert_found("crates/image/src/a.rs", "#![forbid(unsafe_code)]\n// unsafe\nconst A: &str = \"unsafe\";\n", &[]);
}

#[test]
fn a_pure_crate_forbids_unsafe() {
    assert_found("crates/flash/src/lib.rs", "//! Flash.\n", &["forbid(unsafe_code)"]);
    assert_found("crates/flash/src/lib.rs", "#![forbid(unsafe_code)]\n", &[]);
    assert_found("crates/pmr/src/lib.rs", "//! Not pure.\n", &[]);
}

#[test]
fn every_impure_name_is_found_in_a_pure_crate() {
    for name in IMPURE_WORDS {
        let text = format!("fn f() {{\n    {name}::x();\n}}\n");
        assert_found(PURE_FILE, &text, &[&format!("ftl.rs:2: `{name}`")]);
        assert_found("crates/image/src/a.rs", &text, &[]);
    }
    for module in IMPURE_MODULES {
        let named = format!("use std::{module}::x;\n");
        assert_found(PURE_FILE, &named, &[&format!("`std::{module}`")]);
        let braced = format!("use std::{{collections::BTreeMap,\n    {module}}};\n");
        assert_found(PURE_FILE, &braced, &[&format!("ftl.rs:2: `std::{module}`")]);
    }
    assert_found(PURE_FILE, "fn f(env: u8) {\n    let net = env;\n    self.process(net);\n}\n", &[]);
}

#[test]
fn tests_of_a_pure_crate_may_measure_and_write() {
    let text = "fn f() {}\n#[cfg(test)]\nmod tests {\n    use std::time::Instant;\n    fn g() { println!(); }\n}\n";
    assert_found(PURE_FILE, text, &[]);
    assert_found(PURE_FILE, &format!("{text}use std::time::Instant;\n"), &["ftl.rs:7: `Instant`"]);
    assert_found("crates/flash/src/ftl_tests.rs", "use std::fs;\n", &[]);
    assert_found("crates/flash/tests/power.rs", "use std::fs;\n", &[]);
    assert_found(PURE_FILE, "#[cfg(test)]\nuse std::fs;\nuse std::net;\n", &["ftl.rs:3: `std::net`"]);
}

#[test]
fn floating_point_is_found_where_numbers_decide() {
    assert_found(PURE_FILE, "const A: f64 = 1.0;\n", &["ftl.rs:1: `f64`"]);
    assert_found("crates/report/src/a.rs", "const A: f64 = 1.0;\n", &[]);
    assert_found(PURE_FILE, "#[cfg(test)]\nmod tests {\n    const A: f64 = 1.0;\n}\n", &[]);
}
