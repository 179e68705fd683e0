//! What the sandbox costs: calls in and out, each stage beside native code, instances, moves, memory.
//!
//! Prints one JSON object a line for each figure. Times are the least over many rounds in which the module
//! and the native code take turns, so that a neighbour on the machine disturbs both alike.
#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use common::{Pair, Random};
use osier_actor::compile::Flavour;
use osier_actor::install;
use osier_actor::intrinsics::{Binding, NonceParts};
use osier_actor::native::{Native, NativeUnit};
use osier_actor::sandbox::{Buffers, Sandbox, Setting};
use osier_actor::{Arena, Compiler, Engines, Segment};
use osier_domain::arena::{Buffer, Layout, Unit};
use osier_domain::{ActorId, Call, Direction, Outcome, OwnerState, STREAMS_MAX, Side, SlotId, StreamId};
use serde_json::{Value, json};

/// Rounds in which two things take turns.
const ROUNDS: usize = 60;
/// The variable in which `xtask bench` says which figures are wanted.
const FILTER_VARIABLE: &str = "OSIER_BENCH_FILTER";

fn main() {
    if std::env::args().nth(1).as_deref() == Some("resident") {
        return resident();
    }
    let filter = std::env::var(FILTER_VARIABLE).or_else(|_| std::env::args().nth(1).ok_or(())).unwrap_or_default();
    type Group = (&'static str, fn(&str));
    let groups: [Group; 4] =
        [("call", calls), ("stage", stages), ("instance", instances), ("resident", print_resident)];
    let any = groups.iter().any(|(name, _)| name.contains(&filter));
    for (name, group) in groups {
        if !any || name.contains(&filter) {
            group(if any { "" } else { &filter });
        }
    }
}

/// A figure, with its bar if it has one: the value, or the ratio to the peer, is to be at most that.
fn print(filter: &str, name: &str, value: f64, unit: &str, peer: Option<(&str, f64)>, bar: Option<f64>) {
    if !name.contains(filter) {
        return;
    }
    let ratio = peer.map(|(_, peer_value)| value / peer_value);
    let judged = ratio.unwrap_or(value);
    let rounded = |v: f64| (v * 100.0).round() / 100.0;
    println!(
        "{}",
        json!({
            "name": name,
            "value": rounded(value),
            "unit": unit,
            "peer": peer.map(|p| p.0),
            "peer_value": peer.map(|p| rounded(p.1)),
            "ratio": ratio.map(rounded),
            "bar": bar.map_or(Value::Null, |b| if peer.is_some() { json!(format!("<= {b}x")) } else { json!(format!("<= {b}")) }),
            "pass": bar.map(|b| judged <= b),
        })
    );
}

/// Nanoseconds of one of `count` runs, the least of the rounds, for things that take turns.
fn measure<const N: usize>(count: u32, mut things: [&mut dyn FnMut(); N]) -> [f64; N] {
    let mut best = [f64::MAX; N];
    for _ in 0..ROUNDS {
        for (best, thing) in best.iter_mut().zip(&mut things) {
            let begin = Instant::now();
            for _ in 0..count {
                thing();
            }
            *best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(count));
        }
    }
    best
}

const SMALL: Layout = Layout { slots: 1, request_blocks_max: 1, unit_blocks: 1 };

/// Answers at once; or calls an import `budget` times first.
const CALLER: &str = r#"(module
    (import "osier" "unit_info" (func $info (param i32) (result i64)))
    (import "osier" "crc32c" (func $crc (param i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "osier_abi") (result i32) (i32.const 1))
    (func (export "osier_forward") (param i32 i32 i32 i32 i32) (result i64) (i64.const 1))
    (func (export "osier_inverse") (param i32 i32 i32 i32 i32) (result i64)
      (loop $l
        (drop (call $info (i32.const 2)))
        (br_if $l (local.tee 4 (i32.sub (local.get 4) (i32.const 1)))))
      (i64.const 1))
    (func (export "osier_resume") (param i32) (result i64)
      (loop $l
        (drop (call $crc (i32.const 0) (i32.const 0) (i32.const 4096)))
        (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
      (i64.const 1)))"#;

fn call(direction: Direction) -> Call {
    Call {
        actor: ActorId(0),
        direction,
        slot: SlotId(0),
        unit: 0,
        units: 1,
        resume: false,
        budget_bytes: u32::MAX,
        tag: osier_domain::Tag(1),
        stream: StreamId(0),
        sequence: 1,
    }
}

fn calls(filter: &str) {
    let engines = Engines::new().unwrap();
    let wasm = wat::parse_str(CALLER).unwrap();
    let facts = install::check("caller", &wasm, 1024).unwrap();
    let segment = Segment::anonymous(c"arena", Arena::object_bytes(&SMALL)).unwrap();
    let arena = Arc::new(Arena::new(&segment, SMALL).unwrap());
    for (flavour, label) in [(Flavour::Trusted, "trusted"), (Flavour::Untrusted, "untrusted")] {
        let code = common::cache().load(&engines, "caller", &wasm, flavour, &Compiler::InProcess).unwrap();
        let (arena, keys) = (arena.clone(), common::keys());
        let setting =
            Setting { label: "caller".to_owned(), params: String::new(), key: None, keys, incarnation: 1, arena };
        let mut sandbox = Sandbox::new(&engines, &code, &facts, setting).unwrap();
        let unit = Unit {
            slba: 0,
            version: 0,
            bytes: 4096,
            raw_bytes: 4096,
            tag: 1,
            request_block: 0,
            skip_blocks: 0,
            blocks: 1,
            buffer: Buffer::Raw,
        };
        let buffers = Buffers { input: 0, input_bytes: 4096, output: 8192, output_capacity: 8192 };
        let forward = call(Direction::Forward);
        let [into] = measure(
            20_000,
            [&mut || {
                black_box(sandbox.call(&forward, &unit, &buffers, 4096).unwrap());
            }],
        );
        let bar = (flavour == Flavour::Trusted).then_some(40.0);
        print(filter, &format!("actor/call/host-to-actor-{label}"), into, "ns", None, bar);
        const OUT: u32 = 50_000;
        let mut inverse = Call { budget_bytes: OUT, ..call(Direction::Inverse) };
        let [out] = measure(
            1,
            [&mut || {
                black_box(sandbox.call(&inverse, &unit, &buffers, 1 << 20).unwrap());
            }],
        );
        const CRCS: u32 = 500;
        (inverse.resume, inverse.budget_bytes) = (true, CRCS);
        let [crc] = measure(
            1,
            [&mut || {
                black_box(sandbox.call(&inverse, &unit, &buffers, 1 << 20).unwrap());
            }],
        );
        let bar = (flavour == Flavour::Trusted).then_some(10.0);
        print(filter, &format!("actor/call/actor-to-host-{label}"), out / f64::from(OUT), "ns", None, bar);
        let bytes = [7u8; 4096];
        let [native] = measure(
            5_000,
            [&mut || {
                black_box(osier_actor::intrinsics::crc32c(0, black_box(&bytes)));
            }],
        );
        let name = format!("actor/call/crc32c-of-4096-bytes-{label}");
        print(filter, &name, crc / f64::from(CRCS), "ns", Some(("native", native)), Some(1.5));
    }
}

/// Actor, what follows in its stage, figure's name, bar of the ratio to native time at 4 KiB, of LZ4 at 16 KiB too.
const STAGES: [(&str, &str, &str, Option<f64>); 9] = [
    ("lz4", "", "lz4", Some(1.6)),
    ("lz4", "params = { engine = \"intrinsic\" }", "lz4-intrinsic", None),
    ("aes256-gcm-siv", "key = 1", "aes256-gcm-siv", Some(1.5)),
    ("crc32c", "", "crc32c", None),
    ("running-hash", "", "running-hash", None),
    ("jsonl-project", "params = { fields = [\"time\", \"code\"], when = \"write\" }", "jsonl-project", None),
    ("filter", "params = { field = \"code\", op = \"lt\", value = 99, when = \"write\" }", "filter", None),
    ("logfmt", "params = { template = \"{time} {level} {text}\", when = \"write\" }", "logfmt", None),
    ("example", "params = { word = \"mask\" }", "example", None),
];

/// What the stages work on: the project's own text, which is what a demonstration pushes through, and
/// generated log records, which compress further and in shorter matches.
const CORPORA: [&str; 2] = ["text", "records"];

fn corpus(name: &str, bytes: usize) -> Vec<u8> {
    let text = concat!(
        include_str!("../../../docs/abi.md"),
        include_str!("../src/sandbox.rs"),
        include_str!("../src/pipeline.rs"),
        include_str!("../../domain/src/domain.rs"),
    );
    match name {
        "text" => text.as_bytes().iter().copied().cycle().take(bytes).collect(),
        _ => Random(1).data((bytes / 4096) as u32, false),
    }
}

/// Units of a corpus that are gone through in turn, so that no branch predictor learns one by heart.
const UNITS: u32 = 8;

fn stages(filter: &str) {
    for (actor, rest, name, bar) in STAGES {
        for corpus in CORPORA {
            // Lines of records are what they are for; and to the others, bytes are bytes.
            let lines = rest.contains("when");
            if (corpus == "text") == lines && actor != "lz4" {
                continue;
            }
            for kib in [4u32, 16, 64] {
                let bar = bar.filter(|_| corpus == "text" && (kib == 4 || kib == 16 && actor == "lz4"));
                let name = if name.starts_with("lz4") { format!("{name}-{corpus}") } else { name.to_owned() };
                stage(filter, actor, rest, corpus, (&format!("actor/stage/{name}-{kib}k"), kib), bar);
            }
        }
    }
}

fn stage(filter: &str, actor: &str, rest: &str, corpus_name: &str, (name, kib): (&str, u32), bar: Option<f64>) {
    if !["write", "read"].iter().any(|way| format!("{name}-{way}").contains(filter)) {
        return;
    }
    let text = format!(
        "[[pipeline]]\nname = \"one\"\nunit_kib = {kib}\nrequest_kib_max = {kib}\nslots = {UNITS}\n\
         [[pipeline.stage]]\nactor = \"{actor}\"\n{rest}\n"
    );
    let mut pair = Pair::new(&text, &[]);
    let data = corpus(corpus_name, (UNITS * kib * 1024) as usize);
    let definition = pair.device.pipelines.actors()[0].stage.clone();
    let mut native = Native::new(actor, &definition.params).unwrap();
    let keys = pair.device.keys.clone();
    let mut out = vec![0u8; 80_000];
    let (mut rows, mut native_inputs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    let nonce = NonceParts { incarnation: 1, stream: 0, sequence: 1, unit: 0 };
    for (slot, raw) in data.chunks((kib * 1024) as usize).enumerate() {
        // Slots are taken in the order of sequences, from 1.
        let extent = pair.write("one", 0, (0, 1 + slot as u64), 0, raw).unwrap().remove(0);
        let binding = Binding { slba: 0, blocks: kib / 4, raw_bytes: extent.raw_bytes, tag: extent.tag };
        let native_unit = NativeUnit { binding, nonce, keys: (&keys, definition.key) };
        let stored = native.run(Direction::Forward, &native_unit, raw, &mut out).unwrap();
        native_inputs[0].push((raw.to_vec(), binding));
        native_inputs[1].push((out[..stored].to_vec(), binding));
        let unit = Unit {
            slba: 0,
            version: 0,
            bytes: extent.raw_bytes,
            raw_bytes: extent.raw_bytes,
            tag: extent.tag,
            request_block: 0,
            skip_blocks: 0,
            blocks: (kib / 4) as u16,
            buffer: Buffer::Raw,
        };
        rows[0].push(unit);
        // What was written lies in buffer A, and a read puts its output into B.
        rows[1].push(Unit { bytes: extent.bytes.len() as u32, buffer: Buffer::A, ..unit });
    }
    let (arena, word) = (pair.runners[1].arena().clone(), OwnerState::first(Side::Device).encode());
    let runner = &mut pair.runners[1];
    let mut sequence = u64::from(UNITS);
    // Reads first: a write puts its output where their input lies.
    for (way, direction) in [("read", Direction::Inverse), ("write", Direction::Forward)] {
        let (rows, inputs) = (&rows[direction as usize], &native_inputs[direction as usize]);
        let mut module = || {
            for (index, row) in rows.iter().enumerate() {
                sequence += 1;
                let slot = SlotId(((index as u32 + 1) % UNITS) as u16);
                arena.set_unit(slot, 0, row);
                let call = Call { tag: osier_domain::Tag(row.tag), sequence, slot, ..call(direction) };
                let outcome = runner.run(&call, word);
                assert!(matches!(outcome, Outcome::Done { .. }), "{actor}: {outcome:?}");
            }
        };
        let mut beside = || {
            for (input, binding) in inputs {
                let unit = NativeUnit { binding: *binding, nonce, keys: (&keys, definition.key) };
                black_box(native.run(direction, &unit, input, &mut out).unwrap());
            }
        };
        let [module, beside] =
            measure(1 + 32 / kib, [&mut module, &mut beside]).map(|ns| ns / f64::from(UNITS) / 1000.0);
        print(filter, &format!("{name}-{way}"), module, "us", Some(("native", beside)), bar);
    }
}

fn instances(filter: &str) {
    let mut pair = Pair::new(common::FULL, &[]);
    let engines = pair.device.engines.clone();
    let segment = Segment::anonymous(c"arena", Arena::object_bytes(&SMALL)).unwrap();
    let arena = Arc::new(Arena::new(&segment, SMALL).unwrap());
    let prepared = pair.device.prepared[1].clone();
    let keys = common::keys();
    let [instantiate] = measure(
        20,
        [&mut || {
            let (arena, keys) = (arena.clone(), keys.clone());
            let setting =
                Setting { label: "lz4".to_owned(), params: String::new(), key: None, keys, incarnation: 1, arena };
            black_box(Sandbox::new(&engines, &prepared.code, &prepared.facts, setting).unwrap());
        }],
    );
    print(filter, "actor/instance/instantiate-lz4", instantiate / 1000.0, "us", None, None);
    let [reset] = measure(50, [&mut || pair.runners[1].reset(ActorId(1), &[0; STREAMS_MAX])]);
    print(filter, "actor/instance/reset-lz4", reset / 1000.0, "us", None, None);
    let [first, second] = &mut pair.runners;
    let [globals] = measure(
        5_000,
        [&mut || {
            let globals = first.export(ActorId(0));
            second.import(ActorId(0), black_box(&globals));
        }],
    );
    print(filter, "actor/instance/export-and-import-globals", globals, "ns", None, None);
}

/// Starts over, so that no compiler was ever in the process that is measured.
fn print_resident(filter: &str) {
    let _warm = Pair::new(&every_stage(), &[]);
    let out = std::process::Command::new(std::env::current_exe().unwrap()).arg("resident").output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let figures: Value = serde_json::from_slice(&out.stdout).unwrap();
    for (name, key, bar) in [
        ("actor/resident/engines-and-every-built-in", "all", Some(32.0)),
        ("actor/resident/before-the-engines", "before", None),
    ] {
        print(filter, name, figures[key].as_f64().unwrap() / 1024.0, "MiB", None, bar);
    }
}

fn every_stage() -> String {
    let mut text = String::new();
    for (index, (actor, rest, ..)) in STAGES.iter().enumerate() {
        text.push_str(&format!(
            "[[pipeline]]\nname = \"p{index}\"\nunit_kib = 64\nrequest_kib_max = 256\nslots = 4\n\
             [[pipeline.stage]]\nactor = \"{actor}\"\n{rest}\n"
        ));
    }
    text
}

fn resident() {
    let before = resident_kib();
    let device = common::Device::new(&every_stage(), &[]).unwrap_or_else(|e| panic!("{e}"));
    let mut runner = device.runner(Side::Device);
    for actor in 0..STAGES.len() {
        runner.reset(ActorId(actor as u16), &[0; STREAMS_MAX]);
    }
    println!("{}", json!({ "before": before, "all": resident_kib() }));
}

/// Resident memory of this process without shared objects, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    field("RssAnon:") + field("RssFile:")
}
