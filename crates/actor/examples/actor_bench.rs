//! What the sandbox costs: calls in and out, each stage beside native code, instances, moves, memory.
//!
//! Prints one JSON object a line for each figure. The module and the native code take short turns, so that a neighbour
//! on the machine disturbs both alike: times are medians over the rounds, a ratio is the median of each round's ratio.
//! Bars are on medians. The note of a figure gives the least of the rounds beside it.
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
use osier_actor::{Arena, Compiler, Engines, KeyRing, Runner, Segment};
use osier_domain::arena::{Buffer, Layout, Unit};
use osier_domain::{
    ActorId, BLOCK_BYTES, Call, Direction, Outcome, OwnerState, STREAMS_MAX, Side, SlotId, StreamId, Tag,
};
use serde_json::{Value, json};

/// Rounds in which two things take turns; odd, so that there is one in the middle.
const ROUNDS: usize = 1001;
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

/// What was measured of one thing, and of its peer.
struct Figure {
    value: f64,
    /// The least of the rounds, where there were rounds.
    least: Option<f64>,
    /// Name, value, and the ratio of the two.
    peer: Option<(&'static str, f64, f64)>,
}

impl Figure {
    fn of(value: f64) -> Figure {
        Figure { value, least: None, peer: None }
    }

    /// What the rounds say: their median, and their least.
    fn of_rounds(rounds: &[f64]) -> Figure {
        let least = rounds.iter().copied().reduce(f64::min);
        Figure { value: median(rounds.to_vec()), least, peer: None }
    }

    fn times(self, factor: f64) -> Figure {
        Figure {
            value: self.value * factor,
            least: self.least.map(|least| least * factor),
            peer: self.peer.map(|(name, value, ratio)| (name, value * factor, ratio)),
        }
    }
}

/// Prints a figure, with its bar if it has one: the value, or the ratio to the peer, is to be at most that.
fn print(filter: &str, name: &str, unit: &str, figure: &Figure, bar: Option<f64>) {
    if !name.contains(filter) {
        return;
    }
    let judged = figure.peer.map_or(figure.value, |(.., ratio)| ratio);
    let rounded = |v: f64| (v * 100.0).round() / 100.0;
    let times = if figure.peer.is_some() { "x" } else { "" };
    println!(
        "{}",
        json!({
            "name": name,
            "value": rounded(figure.value),
            "unit": unit,
            "peer": figure.peer.map(|p| p.0),
            "peer_value": figure.peer.map(|p| rounded(p.1)),
            "ratio": figure.peer.map(|p| rounded(p.2)),
            "bar": bar.map(|b| format!("<= {b}{times}")),
            "pass": bar.map(|b| judged <= b),
            "note": figure.least.map(|least| format!("median of {ROUNDS} rounds; least {}", rounded(least))),
        })
    );
}

/// Nanoseconds of one of `count` runs.
fn time(count: u32, thing: &mut dyn FnMut()) -> f64 {
    let begin = Instant::now();
    for _ in 0..count {
        thing();
    }
    begin.elapsed().as_nanos() as f64 / f64::from(count)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds of one of `count` runs.
fn measure(count: u32, mut thing: impl FnMut()) -> Figure {
    Figure::of_rounds(&(0..ROUNDS).map(|_| time(count, &mut thing)).collect::<Vec<f64>>())
}

/// Several things, round after round each in its turn: what disturbs one round of all is in none of them alone.
fn in_turns<T>(things: &mut [T], mut turn: impl FnMut(&mut T) -> f64) -> Vec<Figure> {
    let mut rounds = vec![Vec::with_capacity(ROUNDS); things.len()];
    for _ in 0..ROUNDS {
        for (thing, rounds) in things.iter_mut().zip(&mut rounds) {
            rounds.push(turn(thing));
        }
    }
    rounds.iter().map(|rounds| Figure::of_rounds(rounds)).collect()
}

/// A thing and its peer, `round` after round.
fn compare(peer: &'static str, round: impl FnMut() -> [f64; 2]) -> Figure {
    let rounds: Vec<[f64; 2]> = std::iter::repeat_with(round).take(ROUNDS).collect();
    let of = |figure: &dyn Fn(&[f64; 2]) -> f64| median(rounds.iter().map(figure).collect());
    let own = Figure::of_rounds(&rounds.iter().map(|r| r[0]).collect::<Vec<f64>>());
    Figure { peer: Some((peer, of(&|r| r[1]), of(&|r| r[0] / r[1]))), ..own }
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
        tag: Tag(1),
        stream: StreamId(0),
        sequence: 1,
    }
}

/// The module of [`CALLER`], of each flavour.
fn callers() -> [(&'static str, Sandbox); 2] {
    let engines = Engines::new().unwrap();
    let wasm = wat::parse_str(CALLER).unwrap();
    let facts = install::check("caller", &wasm, 1024).unwrap();
    let segment = Segment::anonymous(c"arena", Arena::object_bytes(&SMALL)).unwrap();
    let arena = Arc::new(Arena::new(&segment, SMALL).unwrap());
    [(Flavour::Trusted, "trusted"), (Flavour::Untrusted, "untrusted")].map(|(flavour, label)| {
        let code = common::cache().load(&engines, "caller", &wasm, flavour, &Compiler::InProcess).unwrap();
        let (arena, keys) = (arena.clone(), common::keys());
        let setting =
            Setting { label: "caller".to_owned(), params: String::new(), key: None, keys, incarnation: 1, arena };
        (label, Sandbox::new(&engines, &code, &facts, setting).unwrap())
    })
}

fn calls(filter: &str) {
    let mut callers = callers();
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
    let into = in_turns(&mut callers, |(_, sandbox)| {
        time(20_000, &mut || {
            black_box(sandbox.call(&forward, &unit, &buffers, 4096).unwrap());
        })
    });
    const OUT: u32 = 50_000;
    let inverse = Call { budget_bytes: OUT, ..call(Direction::Inverse) };
    let out = in_turns(&mut callers, |(_, sandbox)| {
        time(1, &mut || {
            black_box(sandbox.call(&inverse, &unit, &buffers, 1 << 20).unwrap());
        }) / f64::from(OUT)
    });
    for (((label, sandbox), into), out) in callers.iter_mut().zip(&into).zip(&out) {
        print(filter, &format!("actor/call/host-to-actor-{label}"), "ns", into, Some(40.0));
        print(filter, &format!("actor/call/actor-to-host-{label}"), "ns", out, Some(10.0));
        const CRCS: u32 = 500;
        let resume = Call { resume: true, budget_bytes: CRCS, ..inverse };
        let bytes = [7u8; 4096];
        let crc = compare("crc32c 0.6", || {
            let module = time(1, &mut || {
                black_box(sandbox.call(&resume, &unit, &buffers, 1 << 20).unwrap());
            });
            let native = time(CRCS, &mut || {
                black_box(osier_actor::intrinsics::crc32c(0, black_box(&bytes)));
            });
            [module / f64::from(CRCS), native]
        });
        let name = format!("actor/call/crc32c-of-4096-bytes-{label}");
        print(filter, &name, "ns", &crc, Some(1.5));
    }
}

/// A stage that is measured.
struct Stage {
    actor: &'static str,
    /// What follows in its stage.
    rest: &'static str,
    name: &'static str,
    /// The native code beside it: all of the stage's work without the sandbox and the unit table.
    peer: &'static str,
    /// The most that its time may be of native time, in both directions, and the units that this holds for, in KiB.
    bar: Option<(f64, &'static [u32])>,
}

const STAGES: [Stage; 9] = [
    stage_of("lz4", "", "lz4", "lz4_flex 0.14, safe").held(1.6, &SIZES_KIB),
    stage_of("lz4", "params = { engine = \"intrinsic\" }", "lz4-intrinsic", "lz4_flex 0.14, safe"),
    stage_of("aes256-gcm-siv", "key = 1", "aes256-gcm-siv", "aes-gcm-siv 0.11").held(1.5, &[4]),
    stage_of("crc32c", "", "crc32c", "crc32c 0.6, and a copy").held(1.5, &[4]),
    stage_of("running-hash", "", "running-hash", SAME),
    stage_of("jsonl-project", "params = { fields = [\"time\", \"code\"], when = \"write\" }", "jsonl-project", SAME),
    stage_of("filter", "params = { field = \"code\", op = \"lt\", value = 99, when = \"write\" }", "filter", SAME),
    stage_of("logfmt", "params = { template = \"{time} {level} {text}\", when = \"write\" }", "logfmt", SAME),
    stage_of("example", "params = { word = \"mask\" }", "example", SAME),
];

/// The peer of a stage that a test holds to put out the same bytes.
const SAME: &str = "the same code, native";

/// Sizes of units that are measured, in KiB.
const SIZES_KIB: [u32; 3] = [4, 16, 64];

const fn stage_of(actor: &'static str, rest: &'static str, name: &'static str, peer: &'static str) -> Stage {
    Stage { actor, rest, name, peer, bar: None }
}

impl Stage {
    const fn held(self, most: f64, sizes_kib: &'static [u32]) -> Stage {
        Stage { bar: Some((most, sizes_kib)), ..self }
    }
}

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
    for stage in &STAGES {
        for corpus in CORPORA {
            // Lines of records are what they are for; and to the others, bytes are bytes.
            let lines = stage.rest.contains("when");
            if (corpus == "text") == lines && stage.actor != "lz4" {
                continue;
            }
            for kib in SIZES_KIB {
                let corpus_in_name = if stage.actor == "lz4" { format!("-{corpus}") } else { String::new() };
                let name = format!("actor/stage/{}{corpus_in_name}-{kib}k", stage.name);
                if ["write", "read"].iter().any(|way| format!("{name}-{way}").contains(filter)) {
                    measure_stage(filter, stage, corpus, (&name, kib));
                }
            }
        }
    }
}

fn measure_stage(filter: &str, stage: &Stage, corpus_name: &str, (name, kib): (&str, u32)) {
    let text = format!(
        "[[pipeline]]\nname = \"one\"\nunit_kib = {kib}\nrequest_kib_max = {kib}\nslots = {UNITS}\n\
         [[pipeline.stage]]\nactor = \"{}\"\n{}\n",
        stage.actor, stage.rest
    );
    let mut pair = Pair::new(&text, &[]);
    let data = corpus(corpus_name, (UNITS * kib * 1024) as usize);
    let definition = pair.device.pipelines.actors()[0].stage.clone();
    // For each direction what both find: a row of the unit table, and the bytes that it names.
    let mut work = [Vec::new(), Vec::new()];
    for (raw, sequence) in data.chunks((kib * 1024) as usize).zip(1..) {
        // Slots are taken in the order of sequences, from 1.
        let extent = pair.write("one", 0, (0, sequence), 0, raw).unwrap().remove(0);
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
        // What was written lies in buffer A, and a read puts its output into B.
        let written = Unit { bytes: extent.bytes.len() as u32, buffer: Buffer::A, ..unit };
        let slot = SlotId((sequence % u64::from(UNITS)) as u16);
        work[Direction::Inverse as usize].push((slot, written, extent.bytes));
        work[Direction::Forward as usize].push((slot, unit, raw.to_vec()));
    }
    let mut native = Native::new(stage.actor, &definition.params).unwrap();
    let key = (&*pair.device.keys, definition.key);
    let runner = &mut pair.runners[1];
    // Reads first: a write puts its output where their input lies.
    for (way, direction) in [("read", Direction::Inverse), ("write", Direction::Forward)] {
        let work = &work[direction as usize];
        let figure = compare_way(stage.peer, direction, work, runner, (&mut native, key));
        let bar = stage.bar.and_then(|(most, sizes)| sizes.contains(&kib).then_some(most));
        print(filter, &format!("{name}-{way}"), "us", &figure, bar);
    }
}

/// Input and output of a unit for native code: each at the beginning of a page, and each unit's its own, as in the
/// arena. Where an allocator put them, one could lie a little above the other's place in a page, and a copy take twice
/// as long.
struct Pages {
    bytes: Vec<u8>,
    begin: usize,
    input: usize,
}

/// Bytes of each of the two, whole pages.
const ROOM: usize = 20 * PAGE;
const PAGE: usize = 4096;

impl Pages {
    fn new(input: &[u8]) -> Pages {
        let mut bytes = vec![0; 2 * ROOM + PAGE];
        let begin = bytes.as_ptr().align_offset(PAGE);
        bytes[begin..begin + input.len()].copy_from_slice(input);
        Pages { bytes, begin, input: input.len() }
    }

    fn both(&mut self) -> (&[u8], &mut [u8]) {
        let (input, out) = self.bytes[self.begin..].split_at_mut(ROOM);
        (&input[..self.input], out)
    }
}

/// Microseconds of a unit, through the runner and natively.
fn compare_way(
    peer: &'static str,
    direction: Direction,
    work: &[(SlotId, Unit, Vec<u8>)],
    runner: &mut Runner,
    (native, keys): (&mut Native, (&KeyRing, Option<u16>)),
) -> Figure {
    let (arena, word) = (runner.arena().clone(), OwnerState::first(Side::Device).encode());
    let nonce = NonceParts { incarnation: 1, stream: 0, sequence: 1, unit: 0 };
    let mut places: Vec<Pages> = work.iter().map(|(_, _, input)| Pages::new(input)).collect();
    let mut calls: Vec<Call> =
        work.iter().map(|(slot, row, _)| Call { tag: Tag(row.tag), slot: *slot, ..call(direction) }).collect();
    // Turns of a few units: about as many bytes in each, as far as units can be that small.
    let turn = (8 * BLOCK_BYTES / work[0].1.raw_bytes).clamp(1, UNITS) as usize;
    let (mut sequence, mut begin) = (u64::from(UNITS), 0);
    let figure = compare(peer, || {
        let units = begin..begin + turn;
        begin = units.end % work.len();
        // What a stage finds is not its work.
        for (call, (slot, row, _)) in calls[units.clone()].iter_mut().zip(&work[units.clone()]) {
            sequence += 1;
            call.sequence = sequence;
            arena.set_unit(*slot, 0, row);
        }
        let module = time(1, &mut || {
            for call in &calls[units.clone()] {
                let outcome = runner.run(call, word);
                assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
            }
        });
        let native = time(1, &mut || {
            for ((_, row, _), pages) in work[units.clone()].iter().zip(&mut places[units.clone()]) {
                let (input, out) = pages.both();
                let blocks = row.raw_bytes / BLOCK_BYTES;
                let binding = Binding { slba: 0, blocks, raw_bytes: row.raw_bytes, tag: row.tag };
                let unit = NativeUnit { binding, nonce, keys };
                black_box(native.run(direction, &unit, black_box(input), out).unwrap());
            }
        });
        [module, native]
    });
    figure.times(1e-3 / turn as f64)
}

fn instances(filter: &str) {
    let mut pair = Pair::new(common::FULL, &[]);
    let engines = pair.device.engines.clone();
    let segment = Segment::anonymous(c"arena", Arena::object_bytes(&SMALL)).unwrap();
    let arena = Arc::new(Arena::new(&segment, SMALL).unwrap());
    let prepared = pair.device.prepared[1].clone();
    let keys = common::keys();
    let instantiate = measure(1, || {
        let (arena, keys) = (arena.clone(), keys.clone());
        let setting =
            Setting { label: "lz4".to_owned(), params: String::new(), key: None, keys, incarnation: 1, arena };
        black_box(Sandbox::new(&engines, &prepared.code, &prepared.facts, setting).unwrap());
    });
    print(filter, "actor/instance/instantiate-lz4", "us", &instantiate.times(1e-3), None);
    let reset = measure(50, || pair.runners[1].reset(ActorId(1), &[0; STREAMS_MAX]));
    print(filter, "actor/instance/reset-lz4", "us", &reset.times(1e-3), None);
    let [first, second] = &mut pair.runners;
    let globals = measure(5_000, || {
        let globals = first.export(ActorId(0));
        second.import(ActorId(0), black_box(&globals));
    });
    print(filter, "actor/instance/export-and-import-globals", "ns", &globals, None);
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
        print(filter, name, "MiB", &Figure::of(figures[key].as_f64().unwrap() / 1024.0), bar);
    }
}

fn every_stage() -> String {
    let mut text = String::new();
    for (index, Stage { actor, rest, .. }) in STAGES.iter().enumerate() {
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
