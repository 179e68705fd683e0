//! Every reason for a refusal, each with a module that has just this fault.

use super::*;

/// A module with the parts given and, unless they are given, the rest of what an actor needs.
fn module(parts: &str) -> Vec<u8> {
    let mut text = format!("(module {parts}");
    if !parts.contains("(memory") && !parts.contains("(import \"env\"") {
        text.push_str("(memory (export \"memory\") 1)");
    }
    if !parts.contains("osier_abi") {
        text.push_str("(func (export \"osier_abi\") (result i32) i32.const 1)");
    }
    if !parts.contains("osier_forward") && !parts.contains("osier_inverse") {
        text.push_str(
            "(func (export \"osier_forward\") (param i32 i32 i32 i32 i32) (result i64) local.get 1 i64.extend_i32_u)",
        );
    }
    text.push(')');
    wat::parse_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn reason(parts: &str) -> Reason {
    let refusal = check("m", &module(parts), 1024).expect_err(parts);
    let text = refusal.to_string();
    assert!(text.starts_with("module m is refused: "), "{text}");
    refusal.reason
}

#[test]
fn a_plain_module_passes_and_is_described() {
    let facts = check("m", &module(""), 1024).unwrap();
    let expected = Facts { initial_pages: 1, forward: true, ..Facts::default() };
    assert_eq!(facts, expected);
    let all = module(
        r#"(import "osier" "state_get" (func (param i32 i32) (result i32)))
           (import "osier" "aead_seal" (func (param i32 i32 i32 i32) (result i32)))
           (import "osier" "aead_open" (func (param i32 i32 i32 i32) (result i32)))
           (memory (export "memory") 2 100)
           (global (export "__stack_pointer") (mut i32) (i32.const 9))
           (global i32 (i32.const 9))
           (global (export "other") (mut f64) (f64.const 9))
           (func (export "osier_inverse") (param i32 i32 i32 i32 i32) (result i64) i64.const 1)
           (func (export "osier_resume") (param i32) (result i64) i64.const 1)
           (func (export "osier_init") (result i32) i32.const 0)
           (func (export "something_else") (param v128))"#,
    );
    let expected = Facts {
        initial_pages: 2,
        maximum_pages: Some(100),
        globals: vec!["__stack_pointer".to_owned(), "other".to_owned()],
        forward: false,
        inverse: true,
        resume: true,
        init: true,
        uses_state: true,
        uses_seal: true,
        uses_open: true,
    };
    assert_eq!(check("m", &all, 1024), Ok(expected));
}

#[test]
fn what_is_no_module_is_refused() {
    for garbage in [&b""[..], b"#!/bin/sh\n", b"\0as", b"\x7fELF0000000000000000"] {
        assert!(matches!(check("m", garbage, 64).unwrap_err().reason, Reason::NotWasm(_)), "{garbage:?}");
    }
    assert!(matches!(check("m", b"\0asm\x0d\0\x01\0", 64).unwrap_err().reason, Reason::NotWasm(_)), "a component");
    assert!(matches!(check("m", b"\0asm\x01\0\0\0\xff\xff", 64).unwrap_err().reason, Reason::Invalid { .. }));
    assert_eq!(
        check("m", &vec![0; MODULE_BYTES_MAX + 1], 64).unwrap_err().reason,
        Reason::TooLarge(MODULE_BYTES_MAX + 1)
    );
    let mut cut = module("");
    cut.pop();
    assert!(matches!(check("m", &cut, 64).unwrap_err().reason, Reason::Invalid { .. }));
}

#[test]
fn features_that_the_page_leaves_out_do_not_validate() {
    for part in [
        "(func $r (result i32) return_call $r)",
        "(tag $t) (func throw $t)",
        "(func (param i32) local.get 0 v128.load local.get 0 v128.load local.get 0 v128.load \
         f32x4.relaxed_madd drop)"
            .replace("local.get 0 v128.load", "(v128.load (local.get 0))")
            .as_str(),
        "(memory (export \"memory\") i64 1)",
        "(memory (export \"memory\") 1 1 shared)",
        "(memory (export \"memory\") 1) (memory 1)",
        "(type (struct))",
    ] {
        let found = reason(part);
        assert!(matches!(found, Reason::Invalid { .. } | Reason::Memory(_)), "{part}: {found}");
    }
}

#[test]
fn imports_are_those_of_the_abi() {
    let unknown = |module: &str, name: &str| Reason::UnknownImport { module: module.into(), name: name.into() };
    assert_eq!(
        reason(r#"(import "wasi_snapshot_preview1" "fd_write" (func (param i32 i32 i32 i32) (result i32)))"#),
        unknown("wasi_snapshot_preview1", "fd_write")
    );
    assert_eq!(reason(r#"(import "osier" "clock" (func))"#), unknown("osier", "clock"));
    assert_eq!(reason(r#"(import "other" "log" (func (param i32 i32 i32)))"#), unknown("other", "log"));
    assert_eq!(reason(r#"(import "osier" "log" (global i32))"#), unknown("osier", "log"));
    assert_eq!(reason(r#"(import "osier" "t" (table 1 funcref))"#), unknown("osier", "t"));
    let found = reason(r#"(import "osier" "crc32c" (func (param i32 i32) (result i32)))"#);
    assert_eq!(
        found.to_string(),
        "its `crc32c` has the type (i32, i32) -> (i32), the ABI says (i32, i32, i32) -> (i32)"
    );
}

#[test]
fn exports_are_there_and_of_the_right_type() {
    let no_abi = wat::parse_str("(module (memory (export \"memory\") 1))").unwrap();
    assert!(matches!(check("m", &no_abi, 64).unwrap_err().reason, Reason::MissingExport { name: "osier_abi", .. }));
    let none = wat::parse_str(
        "(module (memory (export \"memory\") 1) (func (export \"osier_abi\") (result i32) i32.const 1))",
    );
    let none = check("m", &none.unwrap(), 64).unwrap_err().reason;
    assert!(matches!(none, Reason::MissingExport { name: "osier_forward", .. }));
    assert!(matches!(
        reason(r#"(func (export "osier_abi") (result i64) i64.const 1)"#),
        Reason::WrongType { name, .. } if name == "osier_abi"
    ));
    assert!(matches!(
        reason(r#"(func (export "osier_forward") (param i32) (result i64) i64.const 1)"#),
        Reason::WrongType { name, .. } if name == "osier_forward"
    ));
    assert!(matches!(
        reason(r#"(global (export "osier_forward") i32 (i32.const 1))"#),
        Reason::WrongType { name, .. } if name == "osier_forward"
    ));
    assert!(matches!(reason(r#"(memory 1)"#), Reason::MissingExport { name: "memory", .. }));
}

#[test]
fn the_memory_is_its_own_and_within_the_limit() {
    assert!(matches!(reason(r#"(import "env" "memory" (memory 1))"#), Reason::Memory(_)));
    assert!(matches!(reason(r#"(memory (export "memory") 0)"#), Reason::Memory(_)));
    let none = wat::parse_str("(module (func (export \"osier_abi\") (result i32) i32.const 1))").unwrap();
    assert!(matches!(check("m", &none, 64).unwrap_err().reason, Reason::Memory(_)));
    assert_eq!(reason(r#"(memory (export "memory") 17)"#), Reason::MemoryLimit { wanted_kib: 1088, limit_kib: 1024 });
    assert_eq!(
        reason(r#"(memory (export "memory") 65536)"#),
        Reason::MemoryLimit { wanted_kib: 4 << 20, limit_kib: 1024 },
        "a memory bomb"
    );
}

#[test]
fn tables_are_small() {
    assert_eq!(reason("(table 4000 funcref) (table 97 funcref)"), Reason::Tables(4097));
    assert_eq!(reason("(table 4294967295 funcref)"), Reason::Tables(4_294_967_295));
    assert!(check("m", &module("(table 4096 funcref)"), 64).is_ok());
}

#[test]
fn a_maximum_has_to_leave_room_for_the_buffers() {
    let layout = Layout { slots: 4, request_blocks_max: 4, unit_blocks: 1 };
    let facts = |maximum| Facts { initial_pages: 1, maximum_pages: maximum, ..Facts::default() };
    assert_eq!(facts(None).check_room(&layout, true), Ok(()));
    assert_eq!(facts(Some(3)).check_room(&layout, false), Ok(()));
    assert_eq!(
        facts(Some(2)).check_room(&layout, false),
        Err(Reason::MemoryMaximum { maximum_kib: 128, needed_kib: 192 })
    );
    assert!(facts(Some(3)).check_room(&layout, true).is_err(), "the arena is larger");
    let huge = Layout { slots: 1000, request_blocks_max: 64, unit_blocks: 16 };
    assert!(facts(None).check_room(&huge, true).is_err(), "an arena beyond 4 GiB");
}

#[test]
fn what_does_not_move_is_refused() {
    assert_eq!(reason("(global (mut i32) (i32.const 0))"), Reason::HiddenGlobal(0));
    let many: String = (0..5).map(|i| format!("(global (export \"g{i}\") (mut i32) (i32.const 0))")).collect();
    assert_eq!(reason(&many), Reason::TooManyGlobals(5));
    assert_eq!(reason("(global (export \"g\") (mut funcref) (ref.null func))"), Reason::GlobalType("g".to_owned()));
    assert_eq!(reason("(global (export \"g\") (mut v128) (v128.const i64x2 0 0))"), Reason::GlobalType("g".to_owned()));
    assert_eq!(reason("(func $s) (start $s)"), Reason::Start);
    for (name, body) in [
        ("table.set", "i32.const 0 ref.null func table.set 0"),
        ("table.grow", "ref.null func i32.const 1 table.grow 0 drop"),
        ("table.init", "i32.const 0 i32.const 0 i32.const 0 table.init 0 0"),
        ("table.copy", "i32.const 0 i32.const 0 i32.const 0 table.copy 0 0"),
        ("table.fill", "i32.const 0 ref.null func i32.const 0 table.fill 0"),
        ("elem.drop", "elem.drop 0"),
        ("data.drop", "data.drop 0"),
    ] {
        let parts = format!("(table 1 funcref) (elem funcref) (data \"x\") (func {body})");
        assert_eq!(reason(&parts), Reason::Instruction(name));
    }
}

#[test]
fn every_built_in_module_passes() {
    for builtin in &crate::builtin::BUILTINS {
        let facts = check(builtin.name, builtin.wasm, 1024).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(facts.globals, ["__stack_pointer"], "{}", builtin.name);
        let layout = Layout { slots: 64, request_blocks_max: 64, unit_blocks: 16 };
        facts.check_room(&layout, true).unwrap_or_else(|e| panic!("{}: {e}", builtin.name));
    }
}
