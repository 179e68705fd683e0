//! Cache policies as modules: those of `actors/policies` decide as their twins do, and one that misbehaves ends its run
//! with an error that names it.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../cache/tests/support/mod.rs"]
mod support;

use osier_actor::policy::{PolicyModule, Source, WasmPolicy};
use osier_actor::{CodeCache, Compiler};
use osier_cache::{
    Cache, CacheConfig, Eviction, Frames, Op, Outcome, ParameterValues, Prefetched, Recall, ReplayError, SetIndex,
    Shape, SplitMix64, Stats, WriteMode, policy, replay, replay_with,
};
use support::{TRACES, trace};

const FIFO: &[u8] = include_bytes!("../../../actors/prebuilt/policies/fifo.wasm");
const SIEVE: &[u8] = include_bytes!("../../../actors/prebuilt/policies/sieve.wasm");
const CLEAN_FIRST: &[u8] = include_bytes!("../../../actors/prebuilt/policies/clean-first.wasm");

fn load(name: &str, wasm: &[u8]) -> Result<PolicyModule, String> {
    let directory = tempfile::tempdir().unwrap();
    let cache = CodeCache::open(directory.path().join("code")).unwrap();
    PolicyModule::new(name, wasm, &cache, &Compiler::InProcess).map_err(|error| error.to_string())
}

fn config(frames: u32, ways: u32, eviction: &str) -> CacheConfig {
    CacheConfig {
        frames,
        ways,
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: ways / 2,
        eviction: eviction.to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: "none".to_owned(),
        prefetch_parameters: ParameterValues::new(),
        write_log: None,
    }
}

fn reads(pages: &[u64]) -> impl Iterator<Item = (u64, Op)> + Clone {
    pages.iter().map(|page| (*page, Op::READ))
}

fn made(module: &PolicyModule, config: &CacheConfig) -> WasmPolicy {
    module.policy(config.shape().unwrap(), &ParameterValues::new(), 0).unwrap()
}

fn misses(result: Result<Stats, ReplayError>) -> u64 {
    result.unwrap().misses
}

#[test]
fn the_modules_of_fifo_and_sieve_miss_as_often_as_those_built_in() {
    let modules = [("fifo", load("fifo", FIFO).unwrap()), ("sieve", load("sieve", SIEVE).unwrap())];
    let mut differ = 0;
    for (seed, name) in TRACES.into_iter().enumerate() {
        let pages = trace(name, 2000, 30_000, seed as u64);
        for (frames, ways) in [(97, 97), (600, 600), (512, 8), (64, 1)] {
            let counted = modules.each_ref().map(|(eviction, module)| {
                let config = config(frames, ways, eviction);
                let built_in = misses(replay(&config, 0, reads(&pages)));
                let found = misses(replay_with(&config, made(module, &config), reads(&pages)));
                assert_eq!(found, built_in, "{eviction} of {frames} frames in sets of {ways} on {name}");
                found
            });
            differ += u32::from(counted[0] != counted[1]);
        }
    }
    assert!(differ > 10, "a module of the other policy would be taken for right");
}

/// One thing that happens to a cache, and what came of it, as text.
fn step(cache: &mut Cache<Box<dyn Eviction>>, what: u64, page: u64) -> String {
    match what {
        0 => format!("{:?}", cache.pin(page)),
        1 => format!("{:?}", cache.unpin(page)),
        2 => match cache.evict(page) {
            Ok(evicted) => {
                if evicted.is_dirty {
                    cache.drained(page);
                }
                format!("{evicted:?}")
            }
            Err(error) => format!("{error:?}"),
        },
        3 => match cache.prefetch(page) {
            Prefetched::Started(fill) => {
                if let Some(evicted) = fill.evicted.filter(|evicted| evicted.is_dirty) {
                    cache.drained(evicted.page);
                }
                cache.fill_done(fill.frame);
                format!("{fill:?}")
            }
            other => format!("{other:?}"),
        },
        4 => format!("{:?}", cache.touch(page)),
        _ => match cache.request(page, if what.is_multiple_of(3) { Op::WRITE } else { Op::READ }) {
            Outcome::Miss(fill) => {
                if let Some(evicted) = fill.evicted.filter(|evicted| evicted.is_dirty) {
                    cache.drained(evicted.page);
                }
                cache.fill_done(fill.frame);
                format!("{fill:?}")
            }
            other => format!("{other:?}"),
        },
    }
}

/// Runs two policies through the same random things, and says where they first differ.
fn compare(seed: u64, twin: impl Fn(Shape) -> Box<dyn Eviction>, module: &PolicyModule) -> Option<String> {
    let mut random = SplitMix64::new(seed);
    let ways = [1, 2, 5, 16, 40][random.below(5) as usize];
    let config = config(ways * (1 + random.below(3) as u32), ways, "fifo");
    let pages = 1 + random.below(3 * u64::from(config.frames));
    let shape = config.shape().unwrap();
    let mut left = Cache::new(&config, twin(shape)).unwrap();
    let right: Box<dyn Eviction> = Box::new(made(module, &config));
    let mut right = Cache::new(&config, right).unwrap();
    for number in 0..4000 {
        let (what, page) = (random.below(12), random.below(pages));
        let (a, b) = (step(&mut left, what, page), step(&mut right, what, page));
        if a != b {
            return Some(format!("seed {seed}, step {number}: {a} and {b}"));
        }
    }
    assert_eq!(right.policy_failure(), None, "seed {seed}");
    None
}

/// What `actors/policies/clean-first` says of itself, as plain lists.
struct CleanFirst {
    sets: Vec<Vec<u32>>,
    window: usize,
}

impl Eviction for CleanFirst {
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.sets[set as usize].push(frame);
    }
    fn touched(&mut self, _: u32, _: u32) {}
    fn victim(&mut self, set: u32, _: Recall, frames: &Frames<'_>) -> Option<u32> {
        let set = &mut self.sets[set as usize];
        let place = (0..self.window.min(set.len())).find(|place| !frames.is_dirty(set[*place])).unwrap_or(0);
        (!set.is_empty()).then(|| set.remove(place))
    }
    fn removed(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].retain(|known| *known != frame);
    }
}

#[test]
fn a_module_decides_as_its_twin_whatever_is_done_to_the_cache() {
    let (fifo, sieve) = (load("fifo", FIFO).unwrap(), load("sieve", SIEVE).unwrap());
    let clean_first = load("clean-first", CLEAN_FIRST).unwrap();
    let built_in = |name: &'static str| move |shape| policy(name, shape, &ParameterValues::new(), 0).unwrap();
    let plain = |shape: Shape| -> Box<dyn Eviction> {
        let sets = vec![Vec::new(); shape.sets as usize];
        Box::new(CleanFirst { sets, window: shape.pages_per_set as usize / 4 })
    };
    let mut differ = [0; 2];
    for seed in 0..60 {
        assert_eq!(compare(seed, built_in("fifo"), &fifo), None);
        assert_eq!(compare(seed, built_in("sieve"), &sieve), None);
        assert_eq!(compare(seed, plain, &clean_first), None);
        differ[0] += u32::from(compare(seed, built_in("sieve"), &fifo).is_some());
        differ[1] += u32::from(compare(seed, plain, &fifo).is_some());
    }
    assert!(differ.iter().all(|found| *found > 15), "a wrong policy was found only {differ:?} times");
}

/// A module of the ABI whose functions have these bodies. Its events lie at 1024.
fn module(parts: &str, new: &str, events: &str, victim: &str) -> String {
    format!(
        r#"(module
             (import "osier" "log" (func $log (param i32 i32)))
             (import "osier" "parameter" (func $parameter (param i32 i32 i64 i64 i64) (result i64)))
             (import "osier" "is_dirty" (func $is_dirty (param i32) (result i32)))
             (memory (export "memory") 1)
             (data (i32.const 16) "skip")
             {parts}
             (func (export "osier_policy_abi") (result i32) (i32.const 1))
             (func (export "osier_policy_new") (param i32 i32 i32 i64) (result i32) {new})
             (func $events (export "osier_policy_events") (param i32) {events})
             (func (export "osier_policy_victim") (param i32 i32 i32) (result i32) {victim}))"#
    )
}

const NEW: &str = "(i32.const 1024)";
/// The frame of the first event, which is right where every miss is followed by one.
const FIRST: &str = "(i32.load (i32.const 1024))";

fn refused(wat: &str) -> String {
    match load("./bad.wasm", &wat::parse_str(wat).unwrap()) {
        Err(text) => text,
        Ok(module) => {
            let policy = module.policy(config(4, 4, "").shape().unwrap(), &[("skip".to_owned(), 7)].into(), 0);
            policy.expect_err(wat).to_string()
        }
    }
}

#[test]
fn a_module_that_is_none_is_refused_with_its_name_and_the_reason() {
    let whole = || {
        module(
            "",
            "(drop (call $parameter (i32.const 16) (i32.const 4) (i64.const 0) (i64.const 0) (i64.const 9))) (i32.const 1024)",
            "",
            FIRST,
        )
    };
    let without = |what: &str| whole().replace(&format!("(export \"{what}\")"), "");
    let other_type = whole().replace("(param i32 i32 i32) (result i32)", "(param i32 i32) (result i32)");
    let cases = [
        (without("memory"), "does not export `memory`"),
        (without("osier_policy_abi"), "does not export `osier_policy_abi`"),
        (without("osier_policy_new"), "does not export `osier_policy_new`"),
        (without("osier_policy_events"), "does not export `osier_policy_events`"),
        (without("osier_policy_victim"), "does not export `osier_policy_victim`"),
        (other_type, "`osier_policy_victim` has the type (i32, i32) -> (i32), the ABI says (i32, i32, i32) -> (i32)"),
        (whole().replace("\"is_dirty\"", "\"is_clean\""), "imports `osier.is_clean`"),
        (whole().replace("\"osier\" \"log\"", "\"env\" \"log\""), "imports `env.log`"),
        (whole().replace("(param i32 i32))", "(param i32))"), "`log` has the type (i32) -> ()"),
        (whole().replace("(result i32) (i32.const 1))", "(result i32) (i32.const 2))"), "`osier_policy_abi` answers 2"),
        (module("", "(i32.const 0)", "", FIRST), "answered 0, which is no place"),
        (module("", "(i32.const 1028)", "", FIRST), "answered 1028, which is no place"),
        (module("", "(i32.const 65528)", "", FIRST), "answered 65528, which is no place"),
        (module("", "(i32.const -8)", "", FIRST), "answered 4294967288, which is no place"),
        (module("", "(call $log (i32.const 16) (i32.const 4)) (i32.const -1)", "", FIRST), "refuses: skip"),
        (module("", "(loop (br 0)) (i32.const 8)", "", FIRST), "`osier_policy_new` failed: it did not end within"),
        (
            module("", "unreachable", "", FIRST),
            "`osier_policy_new` failed: wasm trap: wasm `unreachable` instruction executed",
        ),
        (
            module("(func $start unreachable) (start $start)", NEW, "", FIRST),
            "`start` failed: wasm trap: wasm `unreachable`",
        ),
        (module("", NEW, "", FIRST), "has no parameter `skip`; it has none"),
        (whole().replace("(i64.const 9)", "(i64.const 5)"), "parameter `skip` is 7, which is outside 0..=5"),
        (
            whole().replace("(memory (export \"memory\") 1)", "(memory (export \"memory\") 300)"),
            "it asks for 19660800 bytes",
        ),
        (whole().replace("(data", "(table 5000 funcref) (data"), "it asks for a table of 5000 entries"),
        (module("", "(memory.grow (i32.const 40000))", "", FIRST), "`osier_policy_new` failed: it asks for"),
        (
            module("", "(drop (call $is_dirty (i32.const 0))) (i32.const 8)", "", FIRST),
            "outside of `osier_policy_victim`",
        ),
        (
            module("", "(call $log (i32.const 65530) (i32.const 9)) (i32.const 8)", "", FIRST),
            "9 bytes at 65530, outside",
        ),
        (whole().replace("(data", "(memory $other 1) (data"), "compiling module ./bad.wasm"),
    ];
    for (wat, says) in cases {
        let text = refused(&wat);
        assert!(text.starts_with("cache policy ./bad.wasm: "), "{text}");
        assert!(text.contains(says) && text.lines().count() == 1, "{says}: {text}");
    }
}

#[test]
fn bytes_that_are_no_module_are_refused() {
    let whole = wat::parse_str(module("", NEW, "", FIRST)).unwrap();
    assert!(load("m", &whole).is_ok());
    for (wasm, says) in [
        (&b"#!/bin/sh\n"[..], "is not a WebAssembly module"),
        (b"", "is not a WebAssembly module"),
        (b"\0asm\x0d\0\x01\0", "is a WebAssembly component"),
        (&whole[..whole.len() - 3], "compiling module m"),
        (&vec![0; (1 << 20) + 1], "more than 1048576 bytes"),
    ] {
        let text = load("m", wasm).unwrap_err();
        assert!(text.contains(says), "{says}: {text}");
    }
}

/// Two pages that push each other out of two sets of one frame, with hits between.
fn run(wat: &str) -> Result<Stats, ReplayError> {
    let config = config(2, 1, "");
    let policy = made(&load("./bad.wasm", &wat::parse_str(wat).unwrap()).unwrap(), &config);
    replay_with(&config, policy, reads(&[0, 0, 1, 1, 2, 2, 3, 3].repeat(1000)))
}

#[test]
fn a_module_that_misbehaves_ends_the_run_with_its_name_the_function_and_the_reason() {
    let victim = |body: &str| module("", NEW, "", body);
    let set = "(local.get 1)";
    assert_eq!(
        run(&victim(set)).unwrap().misses,
        4000,
        "what is right passes: the frame of a set of one is its number"
    );
    let cases = [
        (victim("unreachable"), "`osier_policy_victim` failed: wasm trap: wasm `unreachable` instruction executed"),
        (victim("(loop (br 0)) (i32.const 0)"), "`osier_policy_victim` failed: it did not end within"),
        (victim("(i32.const 999)"), "`osier_policy_victim` failed: it named frame 999 as the victim of set 0"),
        (victim("(i32.const 1)"), "it named frame 1 as the victim of set 0, where it has no such frame"),
        (victim("(i32.const -1)"), "`osier_policy_victim` failed: it named no victim of set 0, where it has frames"),
        (
            victim("(i32.load (i32.const 65536))"),
            "`osier_policy_victim` failed: wasm trap: out of bounds memory access",
        ),
        (victim("(drop (memory.grow (i32.const 9999))) (i32.const 0)"), "`osier_policy_victim` failed: it asks for"),
        (victim("(call $is_dirty (i32.const 2))"), "`is_dirty` was asked for frame 2 of 2"),
        (module("(func $deep (call $deep))", NEW, "", "(call $deep) (i32.const 0)"), "call stack exhausted"),
        (victim("(call $log (i32.const 16) (i32.const 4)) unreachable"), "executed; it said: skip"),
        (
            module("", NEW, "unreachable", &format!("(call $events (local.get 0)) {set}")),
            "`osier_policy_victim` failed",
        ),
        (
            victim(
                "(i32.wrap_i64 (call $parameter (i32.const 16) (i32.const 4) (i64.const 0) (i64.const 0) (i64.const 9)))",
            ),
            "asked for only in `osier_policy_new`",
        ),
        (
            module(
                "(func (export \"osier_policy_incoming\") (param i32 i32 i64 i32) (result i32) (i32.const 4))",
                NEW,
                "",
                set,
            ),
            "`osier_policy_incoming` failed: it answered 4, a recall is 0 to 3",
        ),
    ];
    for (wat, says) in cases {
        let Err(ReplayError::Policy { reason, .. }) = run(&wat) else { panic!("it passed: {wat}") };
        assert!(reason.starts_with("cache policy ./bad.wasm: `osier_policy_"), "{reason}");
        assert!(reason.contains(says) && reason.lines().count() == 1, "{says}: {reason}");
        let Err(ReplayError::Policy { reason: again, .. }) = run(&wat) else { panic!("it passed: {wat}") };
        assert_eq!(again, reason, "the same run fails the same way");
    }
}

#[test]
fn events_come_in_order_with_what_was_remembered_and_as_many_as_there_is_room_for() {
    // Each page is remembered as its number modulo 4. The module counts touches at 8, and traps on an insertion whose
    // recall is another or when more events come than there is room for.
    let incoming = r#"(func (export "osier_policy_incoming") (param i32 i32 i64 i32) (result i32)
        (call $events (local.get 0)) (i32.wrap_i64 (i64.and (local.get 2) (i64.const 3))))"#;
    let events = r#"(local $at i32)
        (if (i32.gt_u (local.get 0) (i32.const 1024)) (then unreachable))
        (local.set $at (i32.const 1024))
        (block $end (loop $next
          (br_if $end (i32.eqz (local.get 0)))
          (if (i32.eq (i32.load8_u offset=4 (local.get $at)) (i32.const 1))
            (then (i32.store (i32.const 8) (i32.add (i32.load (i32.const 8)) (i32.const 1))))
            (else (if (i32.ne (i32.load8_u offset=5 (local.get $at)) (i32.and (i32.load offset=8 (local.get $at)) (i32.const 3)))
              (then unreachable))))
          (local.set $at (i32.add (local.get $at) (i32.const 16)))
          (local.set 0 (i32.sub (local.get 0) (i32.const 1)))
          (br $next)))"#;
    // With so many touches it names a frame that there is not, which shows that it has seen them all.
    let victim = |touches: u32| {
        format!(
            "(call $events (local.get 0)) (select (i32.const 77) (i32.const 0) (i32.eq (i32.load (i32.const 8)) (i32.const {touches})))"
        )
    };
    let config = config(1, 1, "");
    let pages: Vec<u64> = (0..40).flat_map(|page: u64| vec![page; if page == 20 { 5001 } else { 3 }]).collect();
    let touches = 39 * 2 + 5000;
    for (at, fails) in [(touches - 2, true), (touches + 1, false), (touches - 3, false)] {
        let module = load("m", &wat::parse_str(module(incoming, NEW, events, &victim(at))).unwrap()).unwrap();
        let result = replay_with(&config, made(&module, &config), reads(&pages));
        assert_eq!(result.is_err(), fails, "{at}: {result:?}");
        if let Err(error) = result {
            assert!(error.to_string().contains("frame 77"), "{error}");
        }
    }
}

#[test]
fn a_word_is_a_name_or_a_path() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CodeCache::open(directory.path().join("code")).unwrap();
    let path = directory.path().join("my.wasm");
    std::fs::write(&path, SIEVE).unwrap();
    let shape = config(8, 8, "").shape().unwrap();
    let find = |word: &str| Source::find(word, &cache, &Compiler::InProcess);
    let made = |word: &str| find(word).unwrap().policy(shape, &ParameterValues::new(), 0).map(drop);
    made("sieve").unwrap();
    made(path.to_str().unwrap()).unwrap();
    let text = made("seive").unwrap_err().to_string();
    assert!(text.contains("choose one of fifo") && text.contains("`.wasm`"), "{text}");
    let text = find("./absent").unwrap_err().to_string();
    assert!(text.starts_with("cache policy ./absent: reading it failed"), "{text}");
}
