//! Modules that misbehave: each is refused, or fails its request with a status and a message that names it,
//! and the neighbours on the same device go on.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{Device, Pair, Random, Refused};
use osier_actor::prepare::PrepareError;
use osier_actor::sandbox::SandboxError;
use osier_domain::{ActorId, Status};

const COPY: &str = "(memory.copy (local.get 2) (local.get 0) (local.get 1)) (i64.extend_i32_u (local.get 1))";

/// A module whose forward function has this body: parameters 0 to 4 are in, in_len, out, out_cap, budget.
fn module(parts: &str, forward: &str) -> String {
    format!(
        r#"(module {parts}
             (memory (export "memory") 1)
             (func (export "osier_abi") (result i32) (i32.const 1))
             (func (export "osier_forward") (param i32 i32 i32 i32 i32) (result i64) {forward}))"#
    )
}

fn pipelines(extra: &str) -> String {
    format!(
        r#"
[[pipeline]]
name = "bad"
unit_kib = 4
request_kib_max = 16
slots = 4
[[pipeline.stage]]
actor = "bad.wasm"
{extra}
[[pipeline]]
name = "good"
unit_kib = 4
request_kib_max = 16
slots = 4
[[pipeline.stage]]
actor = "lz4"
[[pipeline.stage]]
actor = "copy.wasm"
"#
    )
}

fn pair(wat: &str) -> Pair {
    let copy = module("", COPY);
    Pair::new(&pipelines(""), &[("bad.wasm", wat.as_bytes()), ("copy.wasm", copy.as_bytes())])
}

fn refused(wat: &[u8], extra: &str) -> PrepareError {
    let copy = module("", COPY);
    match Device::new(&pipelines(extra), &[("bad.wasm", wat), ("copy.wasm", copy.as_bytes())]) {
        Err(Refused::Prepare(error)) => error,
        Err(Refused::Config(error)) => panic!("the file is fine: {error}"),
        Ok(_) => panic!("accepted: {}", String::from_utf8_lossy(wat)),
    }
}

/// Fails a request in the bad pipeline, says with which status and what is in the log, and shows that the
/// other pipeline works before and after, and that the bad one fails the same way again.
fn fails(wat: &str) -> (Status, String) {
    let mut pair = pair(wat);
    let mut random = Random(9);
    let mut seen = None;
    for sequence in 1..=3 {
        let data = random.data(3, false);
        let good = pair.write("good", 0, (1, sequence), 8, &data).unwrap();
        let status = pair.write("bad", 0, (0, sequence), 8, &data).expect_err(wat);
        assert_eq!(pair.read(0, &good).unwrap_err_or(&data), None, "{wat}");
        let (logs, _) = pair.owner(ActorId(0)).take_logs(ActorId(0));
        let message = logs.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("\n");
        assert!(message.contains("bad/0:bad.wasm"), "{message}");
        assert!(message.contains(&format!("request {sequence} of stream 0")), "{message}");
        if let Some((before, _)) = &seen {
            assert_eq!(*before, status);
        }
        seen = Some((status, message));
    }
    let usage = pair.owner(ActorId(0)).usage(ActorId(0));
    assert_eq!(usage.calls, 3);
    assert_eq!(usage.traps + usage.timeouts + usage.failures, 3);
    seen.unwrap()
}

/// `None` if the bytes read are those expected.
trait Expect {
    fn unwrap_err_or(self, expected: &[u8]) -> Option<String>;
}

impl Expect for Result<Vec<u8>, Status> {
    fn unwrap_err_or(self, expected: &[u8]) -> Option<String> {
        match self {
            // The neighbour's second stage has no inverse, and copies on the way in: nothing to undo.
            Ok(found) if found == expected => None,
            Ok(_) => Some("other bytes".to_owned()),
            Err(status) => Some(format!("{status}")),
        }
    }
}

#[test]
fn a_module_that_is_none_is_refused_by_name() {
    for (wat, said) in [
        (&b"not wasm at all"[..], "not a core WebAssembly module"),
        (b"(module)", "exports one"),
        (b"(module (memory (export \"memory\") 1))", "does not export `osier_abi`"),
        (module("(import \"osier\" \"fork\" (func))", COPY).as_bytes(), "imports `osier.fork`"),
        (module("(func $s) (start $s)", COPY).as_bytes(), "start function"),
    ] {
        let error = refused(wat, "").to_string();
        assert!(error.starts_with("actor bad/0:bad.wasm: module bad.wasm is refused: "), "{error}");
        assert!(error.contains(said), "{error}");
    }
    let bomb = module("", COPY).replace("\"memory\") 1", "\"memory\") 1000");
    assert!(refused(bomb.as_bytes(), "").to_string().contains("memory_kib_max is 1024"));
    let full = module("", COPY).replace("\"memory\") 1", "\"memory\") 1 2");
    assert!(refused(full.as_bytes(), "").to_string().contains("--max-memory"));
    let seal = module("(import \"osier\" \"aead_seal\" (func (param i32 i32 i32 i32) (result i32)))", COPY);
    assert!(refused(seal.as_bytes(), "").to_string().contains("add `key = N`"));
    let gone = refused(seal.as_bytes(), "key = 77").to_string();
    assert!(gone.contains("seals with key 77, which the device does not have"), "{gone}");
}

#[test]
fn another_abi_and_a_refusing_init_are_refused() {
    let two = module("", COPY).replace("(i32.const 1))", "(i32.const 2))");
    let error = refused(two.as_bytes(), "");
    assert!(matches!(error, PrepareError::Sandbox(SandboxError::Abi { found: 2, .. })), "{error}");
    let init = |body: &str| {
        let parts = format!(
            "(import \"osier\" \"log\" (func $log (param i32 i32 i32))) (data (i32.const 8) \"no such mode\")
             (func (export \"osier_init\") (result i32) {body})"
        );
        refused(module(&parts, COPY).as_bytes(), "").to_string()
    };
    let said = init("(call $log (i32.const 0) (i32.const 8) (i32.const 12)) (i32.const -4)");
    assert_eq!(said, "actor bad/0:bad.wasm refuses its configuration: no such mode");
    assert!(init("(i32.const -4)").contains("code -4, configuration"));
    assert!(init("unreachable").contains("unreachable"));
    assert!(init("(loop $l (br $l)) (i32.const 0)").contains("all fuel consumed"));
    assert!(init("(drop (i32.load (i32.const 65536))) (i32.const 0)").contains("out of bounds memory access"));
}

#[test]
fn traps_fail_the_request_and_no_more() {
    for (body, said) in [
        ("unreachable", "unreachable"),
        ("(i64.extend_i32_u (i32.div_u (i32.const 1) (i32.const 0)))", "divide by zero"),
        ("(i64.load (i32.const -8))", "out of bounds memory access"),
        ("(i64.load (i32.const 1048576))", "out of bounds memory access"),
        ("(memory.fill (i32.const 0) (i32.const 1) (i32.const 200000)) (i64.const 1)", "out of bounds memory access"),
        ("(call $deep (i64.const 0))", "call stack exhausted"),
        ("(call_indirect (result i64) (i32.const 9))", "table"),
    ] {
        let parts = "(table 1 funcref) (func $deep (param i64) (result i64)
                       (i64.add (call $deep (i64.add (local.get 0) (i64.const 1))) (i64.const 1)))";
        let (status, message) = fails(&module(parts, body));
        assert_eq!(status, Status::ACTOR_TRAPPED, "{body}");
        assert!(message.contains(said), "{body}: {message}");
        assert!(message.contains("made afresh"), "{message}");
    }
}

#[test]
fn endless_work_times_out() {
    for body in [
        "(loop $l (br $l)) (i64.const 1)",
        "(loop $l (memory.fill (i32.const 0) (i32.const 1) (i32.const 65536)) (br $l)) (i64.const 1)",
        "(loop $l (memory.copy (i32.const 0) (i32.const 1) (i32.const 60000)) (br $l)) (i64.const 1)",
        "(loop $l (drop (call $crc (i32.const 0) (i32.const 0) (i32.const 8))) (br $l)) (i64.const 1)",
        "(loop $l (drop (call $crc (i32.const 0) (i32.const 0) (i32.const 65536))) (br $l)) (i64.const 1)",
        "(loop $l (drop (call $lz4 (i32.const 0) (i32.const 65536) (i32.const 65536) (i32.const 65536))) (br $l))
         (i64.const 1)",
        "(loop $l (call $log (i32.const 3) (i32.const 0) (i32.const 256)) (br $l)) (i64.const 1)",
        "(loop $l (drop (memory.grow (i32.const 1))) (br $l)) (i64.const 1)",
    ] {
        let parts = "(import \"osier\" \"crc32c\" (func $crc (param i32 i32 i32) (result i32)))
                     (import \"osier\" \"log\" (func $log (param i32 i32 i32)))
                     (import \"osier\" \"lz4_compress\" (func $lz4 (param i32 i32 i32 i32) (result i32)))";
        let begin = std::time::Instant::now();
        let (status, message) = fails(&module(parts, body));
        assert_eq!(status, Status::ACTOR_TIMEOUT, "{body}");
        assert!(message.contains("all fuel consumed"), "{message}");
        assert!(begin.elapsed().as_secs() < 5, "{body}: {:?}", begin.elapsed());
    }
}

#[test]
fn wrong_answers_fail() {
    for (body, said) in [
        ("(i64.add (i64.extend_i32_u (local.get 3)) (i64.const 1))", "out of range"),
        ("(i64.const 0x7fffffffffffffff)", "out of range"),
        ("(i64.const 0)", "out of range"),
        ("(i64.const -3)", "no answer of the ABI"),
        ("(i64.const -9223372036854775808)", "no answer of the ABI"),
        ("(i64.const -257)", "exports no osier_resume"),
        ("(i64.const -258)", "malformed input"),
        ("(i64.const -514)", "no room"),
        ("(i64.const -1282)", "other"),
    ] {
        let (status, message) = fails(&module("", body));
        assert_eq!(status, Status::ACTOR_FAILED, "{body}");
        assert!(message.contains(said), "{body}: {message}");
    }
    assert_eq!(fails(&module("", "(i64.const -770)")).0, Status::INTEGRITY);
}

#[test]
fn yields_without_progress_or_end_fail() {
    let resume = |first: &str, then: &str| {
        module(
            &format!("(func (export \"osier_resume\") (param i32) (result i64) (i64.const {then}))"),
            &format!("(i64.const {first})"),
        )
    };
    // Yield after 0 bytes; after 1 and again after 1; after more than there is.
    for (first, then) in [("-1", "1"), ("-257", "-257"), ("-1048833", "1"), ("-257", "-3")] {
        let mut pair = pair(&resume(first, then));
        let data = Random(1).data(1, false);
        assert_eq!(pair.write("bad", 0, (0, 1), 0, &data), Err(Status::ACTOR_FAILED), "{first} {then}");
    }
    let mut pair = pair(&resume("-257", "1"));
    let data = Random(1).data(1, false);
    assert_eq!(pair.write("bad", 0, (0, 1), 0, &data).unwrap()[0].bytes.len(), 1);
}

#[test]
fn memory_does_not_grow() {
    let body = "(if (i32.ne (memory.grow (i32.const 1)) (i32.const -1)) (then unreachable))
                (if (i32.ne (memory.grow (i32.const 0)) (memory.size)) (then unreachable))
                (if (i32.ne (memory.grow (i32.const 65535)) (i32.const -1)) (then unreachable))"
        .to_owned()
        + COPY;
    let init = "(func (export \"osier_init\") (result i32)
                  (if (result i32) (i32.eq (memory.grow (i32.const 1)) (i32.const -1))
                    (then (i32.const 0)) (else (i32.const -5))))";
    let mut pair = pair(&module(init, &body));
    let data = Random(1).data(2, false);
    assert_eq!(pair.write("bad", 0, (0, 1), 0, &data).unwrap()[1].bytes, data[4096..]);
}

/// Every import with every pointer it takes out of range in every way: traps, and nothing else.
#[test]
fn pointers_out_of_range_trap() {
    // Name, number of parameters, the pairs of parameters that are pointer and length.
    type Import = (&'static str, &'static [(usize, usize)], usize);
    let imports: [Import; 11] = [
        ("log", &[(1, 2)], 3),
        ("param", &[(0, 1)], 2),
        ("state_get", &[(0, 1)], 2),
        ("state_put", &[(0, 1)], 2),
        ("blob_get", &[(1, 2)], 3),
        ("blob_put", &[(1, 2)], 3),
        ("record_next", &[(0, 1)], 3),
        ("crc32c", &[(1, 2)], 3),
        ("aead_open", &[(0, 1), (2, 3)], 4),
        ("lz4_compress", &[(0, 1), (2, 3)], 4),
        ("lz4_decompress", &[(0, 1), (2, 3)], 4),
    ];
    // With its two private buffers of 64 KiB the memory has 196,608 bytes.
    let ranges = [(196_608, 1), (196_600, 9), (0, 196_609), (-1, 1), (-1, -1), (1, -1), (0, i32::MIN), (i32::MIN, 4)];
    for (name, pointers, count) in imports {
        for (pointer, length) in pointers {
            for (at, bytes) in ranges {
                let mut arguments = vec![0i32; count];
                (arguments[*pointer], arguments[*length]) = (at, bytes);
                let (status, message) = fails(&import_call(name, &arguments));
                assert_eq!(status, Status::ACTOR_TRAPPED, "{name} {arguments:?}");
                assert!(message.contains("outside of the memory"), "{name}: {message}");
            }
        }
        // Nothing at the very end of the memory is within it.
        let mut arguments = vec![0i32; count];
        arguments[pointers[0].0] = 196_608;
        let mut pair = pair(&import_call(name, &arguments));
        assert!(pair.write("bad", 0, (0, 1), 0, &Random(1).data(1, false)).is_ok(), "{name}");
    }
    for name in ["aead_open", "lz4_compress", "lz4_decompress"] {
        let (status, message) = fails(&import_call(name, &[100, 50, 149, 1]));
        assert_eq!(status, Status::ACTOR_TRAPPED);
        assert!(message.contains("overlaps"), "{name}: {message}");
    }
}

fn import_call(name: &str, arguments: &[i32]) -> String {
    let result = match name {
        "log" => "",
        "record_next" => "(result i64)",
        _ => "(result i32)",
    };
    let drop = if result.is_empty() { "" } else { "(drop " };
    let close = if result.is_empty() { "" } else { ")" };
    let parameters = "i32 ".repeat(arguments.len());
    let values: String = arguments.iter().map(|a| format!("(i32.const {a}) ")).collect();
    let parts = format!("(import \"osier\" \"{name}\" (func $f (param {parameters}) {result}))");
    module(&parts, &format!("{drop}(call $f {values}){close} {COPY}"))
}

#[test]
fn logging_is_bounded() {
    let parts = "(import \"osier\" \"log\" (func $log (param i32 i32 i32)))";
    let body = "(local $i i32) (loop $l (call $log (i32.const 9) (i32.const 0) (i32.const 60000))
                  (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 300))))"
        .to_owned()
        + COPY;
    let mut pair = pair(&module(parts, &body));
    pair.write("bad", 0, (0, 1), 0, &Random(1).data(1, false)).unwrap();
    let (logs, dropped) = pair.owner(ActorId(0)).take_logs(ActorId(0));
    assert!(logs.len() <= 64 && logs.iter().all(|(_, text)| text.len() <= 256));
    assert!(dropped >= 200, "{dropped}");
}

/// An untrusted stage behind a sealing one looks through all of its memory: it finds its own unit, and
/// neither what the stage before it was given nor another request.
#[test]
fn an_untrusted_stage_sees_its_own_unit_alone() {
    let search = "(local $at i32) (local $found i64)
        (loop $l
          (if (i64.eq (i64.load (local.get $at)) (i64.const 0x5345435245545321))
            (then (local.set $found (i64.add (local.get $found) (i64.const 1)))))
          (br_if $l (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 196600))))
        (memory.copy (local.get 2) (local.get 0) (local.get 1))
        (i64.store (local.get 2) (local.get $found))
        (i64.const 4096)";
    let text = r#"
[[pipeline]]
name = "spied"
unit_kib = 4
request_kib_max = 16
slots = 4
[[pipeline.stage]]
actor = "aes256-gcm-siv"
key = 1
[[pipeline.stage]]
actor = "spy.wasm"
"#;
    let mut pair = Pair::new(text, &[("spy.wasm", module("", search).as_bytes())]);
    let data = 0x5345_4352_4554_5321u64.to_le_bytes().repeat(1024);
    for sequence in 1..=5 {
        let extents = pair.write("spied", 0, (0, sequence), 0, &data).unwrap();
        for extent in &extents {
            assert_eq!(extent.bytes[..8], [0; 8], "plain text was in reach");
        }
    }
    // The check can fail: in the clear the spy does see its input.
    let open = text.replace("[[pipeline.stage]]\nactor = \"aes256-gcm-siv\"\nkey = 1\n", "");
    let mut pair = Pair::new(&open, &[("spy.wasm", module("", search).as_bytes())]);
    assert_ne!(pair.write("spied", 0, (0, 1), 0, &data).unwrap()[0].bytes[..8], [0; 8]);
}

/// Valid modules with bytes changed at random: each is refused with a message, or runs and ends somehow, and
/// the good pipeline beside it works.
#[test]
fn damaged_modules_are_refused_or_fail() {
    let copy = wat::parse_str(module("", COPY)).unwrap();
    let bases: Vec<Vec<u8>> = ["lz4", "jsonl-project", "running-hash"]
        .iter()
        .map(|name| osier_actor::builtin::find(name).unwrap().wasm.to_vec())
        .chain([copy.clone()])
        .collect();
    let (mut accepted, mut refusals) = (0, 0);
    for seed in 0..300u64 {
        let mut random = Random(seed);
        let mut wasm = bases[random.below(4) as usize].clone();
        for _ in 0..=random.below(2) {
            let at = random.below(wasm.len() as u64) as usize;
            match random.below(16) {
                0 => drop(wasm.remove(at)),
                1 => wasm.insert(at, random.next() as u8),
                2 => wasm[at] = random.next() as u8,
                _ => wasm[at] ^= 1 << random.below(8),
            }
        }
        let found = Device::new(&pipelines(""), &[("bad.wasm", &wasm), ("copy.wasm", &copy)]);
        let device = match found {
            Err(Refused::Prepare(error)) => {
                assert!(error.to_string().contains("bad/0:bad.wasm"), "seed {seed}: {error}");
                refusals += 1;
                continue;
            }
            Err(Refused::Config(error)) => panic!("seed {seed}: {error}"),
            Ok(device) => device,
        };
        accepted += 1;
        let mut pair = Pair::over(device);
        pair.budget = 512;
        let data = random.data(3, false);
        for sequence in 1..=2 {
            let written = pair.write("bad", 0, (0, sequence), 0, &data);
            if let Ok(extents) = written {
                let _ = pair.read(0, &extents);
            }
            let good = pair.write("good", 0, (1, sequence), 0, &data).unwrap();
            assert_eq!(pair.read(0, &good).unwrap_err_or(&data), None, "seed {seed}");
        }
    }
    assert!(accepted > 20 && refusals > 100, "{accepted} accepted, {refusals} refused: the changes are too coarse");
}

/// A tenant that has used up its share waits, for as long as its debt takes to flow back; others do not.
#[test]
fn a_tenant_is_held_to_its_share() {
    let spin = module(
        "",
        &format!(
            "(local $i i32) (loop $l (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100000)))) {COPY}"
        ),
    );
    let copy = module("", COPY);
    let text = pipelines("").replacen("name = \"bad\"", "name = \"bad\"\ntenant = \"slow\"", 1)
        + "\n[tenant.slow]\ncpu_permille = 10\n";
    let mut pair = Pair::new(&text, &[("bad.wasm", spin.as_bytes()), ("copy.wasm", copy.as_bytes())]);
    let data = Random(1).data(4, false);
    let now = osier_domain::Nanos(1_000_000_000);
    assert_eq!(pair.owner(ActorId(0)).allowed_at(now, ActorId(0)), now);
    for sequence in 1..=400 {
        assert_eq!(pair.write("bad", 0, (0, sequence), 0, &data).unwrap()[3].bytes, data[12_288..]);
        pair.write("good", 0, (1, sequence), 0, &data).unwrap();
    }
    let runner = pair.owner(ActorId(0));
    let used = runner.usage(ActorId(0)).busy_ns;
    assert!(used > 20_000_000, "{used} ns: the loop is too short for this test");
    let at = runner.allowed_at(now, ActorId(0));
    // 10 ms were saved up; the rest comes back at a hundredth of time.
    assert_eq!(at.0, now.0 + (used - 10_000_000) * 100);
    assert_eq!(runner.allowed_at(osier_domain::Nanos(at.0 - 1), ActorId(0)), at);
    assert_eq!(runner.allowed_at(at, ActorId(0)), at);
    assert_eq!(runner.allowed_at(now, ActorId(1)), now);
    assert_eq!(runner.usage(ActorId(0)).calls, 1600);
    assert_eq!(runner.usage(ActorId(0)).bytes_in, 1600 * 4096);
}

/// On a device with a model, a share is one of modelled time: the model's word replaces what was measured, once; but
/// an untrusted actor that takes longer than the model says pays for that.
#[test]
fn a_share_is_charged_as_the_model_says() {
    let copy = module("", COPY);
    let text = pipelines("").replace("name = \"bad\"", "name = \"bad\"\ntenant = \"slow\"")
        + "\n[[pipeline]]\nname = \"built-in\"\ntenant = \"quick\"\nunit_kib = 4\nrequest_kib_max = 4\nslots = 4\n\
           [[pipeline.stage]]\nactor = \"lz4\"\n[tenant.slow]\ncpu_permille = 10\n[tenant.quick]\ncpu_permille = 10\n";
    let mut pair = Pair::new(&text, &[("bad.wasm", copy.as_bytes()), ("copy.wasm", copy.as_bytes())]);
    let (data, now) = (Random(1).data(1, false), osier_domain::Nanos(1_000_000_000));
    for (pipeline, trusted) in [("bad", false), ("built-in", true)] {
        let actor = pair.device.pipelines.actors().iter().find(|a| a.pipeline == pipeline).unwrap().id;
        let debt = |pair: &mut Pair| (pair.owner(actor).allowed_at(now, actor).0 - now.0) / 100;
        assert_eq!(debt(&mut pair), 0);
        // What was saved up is used first.
        pair.owner(actor).charge_modelled(actor, 15_000_000);
        assert_eq!(debt(&mut pair), 5_000_000);
        pair.write(pipeline, 0, (0, 1), 0, &data).unwrap();
        let measured = pair.owner(actor).usage(actor).busy_ns;
        assert_eq!(debt(&mut pair), 5_000_000 + measured);
        pair.owner(actor).charge_modelled(actor, 1);
        let first = if trusted { 1 } else { measured };
        assert_eq!(debt(&mut pair), 5_000_000 + first, "{pipeline}");
        pair.owner(actor).charge_modelled(actor, 1_000);
        assert_eq!(debt(&mut pair), 5_001_000 + first, "what it says once more comes on top");
        pair.write(pipeline, 0, (0, 2), 0, &data).unwrap();
        let modelled = pair.owner(actor).usage(actor).busy_ns + 7;
        pair.owner(actor).charge_modelled(actor, modelled);
        assert_eq!(debt(&mut pair), 5_001_000 + first + modelled, "{pipeline}");
    }
}
