//! The modules that are kept built are what their sources build, and an actor written in C runs as one in Rust.
//! Where the tools are not there, the test says so and holds nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Pair, Random};
use osier_actor::policy::PolicyModule;
use osier_actor::{CodeCache, Compiler};
use osier_cache::{CacheConfig, Op, ParameterValues, SetIndex, WriteMode, replay, replay_with};

fn actors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../actors").canonicalize().unwrap()
}

/// What the build scripts end with when a tool is missing.
const TOOL_MISSING: i32 = 3;

/// Runs a build script; false if a tool that it needs is not there.
fn build(script: &Path, arguments: &[&Path]) -> bool {
    let mut command = Command::new("sh");
    command.arg(script).args(arguments);
    // The cargo that runs this test has set these for itself.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO") && text != "CARGO_HOME" || text == "RUSTUP_TOOLCHAIN" || text.starts_with("RUST") {
            command.env_remove(&name);
        }
    }
    command.env("CARGO_TARGET_DIR", target().join("guests"));
    let out = command.output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    match out.status.code() {
        Some(0) => true,
        Some(TOOL_MISSING) => {
            let _ = writeln!(std::io::stderr(), "SKIPPED: {}", said.trim());
            false
        }
        _ => panic!("{}: {said}", script.display()),
    }
}

/// As [`build`], of an actor in C.
fn build_c(source: &str, module: &Path) -> bool {
    // Where it cannot get a compiler, the build says what is missing.
    let _ = Command::new(actors().join("../scripts/clang")).output();
    build(&actors().join("c/build.sh"), &[&actors().join("c").join(source), module])
}

/// The directory that this build puts everything in.
fn target() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.ancestors().nth(3).unwrap().to_owned()
}

/// The modules in a directory, by name.
fn modules(directory: &Path) -> Vec<String> {
    let names = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter_map(|name| name.strip_suffix(".wasm").map(str::to_owned)).collect();
    names.sort();
    names
}

#[test]
fn the_modules_kept_are_what_their_sources_build() {
    let directory = tempfile::tempdir().unwrap();
    if !build(&actors().join("build.sh"), &[directory.path()]) {
        return;
    }
    let mut names: Vec<String> = osier_actor::builtin::names().map(str::to_owned).collect();
    names.sort();
    assert_eq!(modules(directory.path()), names, "every module is built in, and every built-in has its source");
    for builtin in &osier_actor::builtin::BUILTINS {
        let fresh = std::fs::read(directory.path().join(format!("{}.wasm", builtin.name))).unwrap();
        assert!(
            fresh == builtin.wasm,
            "actors/prebuilt/{}.wasm is not what its source builds; run actors/build.sh",
            builtin.name
        );
    }
    let (built, kept) = (directory.path().join("policies"), actors().join("prebuilt/policies"));
    assert_eq!(modules(&built), modules(&kept), "every cache policy is kept built, and has its source");
    for name in modules(&kept) {
        let [fresh, kept] = [&built, &kept].map(|place| std::fs::read(place.join(format!("{name}.wasm"))).unwrap());
        assert!(fresh == kept, "prebuilt/policies/{name}.wasm is not what its source builds; run actors/build.sh");
    }
}

#[test]
fn an_actor_in_c_does_what_its_rust_twin_does() {
    let directory = tempfile::tempdir().unwrap();
    let module = directory.path().join("xor.wasm");
    if !build_c("xor.c", &module) {
        return;
    }
    let text = |actor: &str| {
        format!(
            "[[pipeline]]\nname = \"one\"\nunit_kib = 16\nrequest_kib_max = 64\nslots = 4\n\
             [[pipeline.stage]]\nactor = \"{actor}\"\nparams = {{ word = \"mask\" }}\n"
        )
    };
    let mut rust = Pair::new(&text("example"), &[]);
    let mut c = Pair::new(&text("xor.wasm"), &[("xor.wasm", &std::fs::read(&module).unwrap())]);
    let mut decide = Random(1);
    c.moves = Box::new(move |_| decide.below(2) == 0);
    c.budget = 700;
    let mut random = Random(2);
    for sequence in 1..=10 {
        let data = random.data(1 + sequence as u32, false);
        let found = c.write("one", 0, (0, sequence), 0, &data).unwrap();
        let expected = rust.write("one", 0, (0, sequence), 0, &data).unwrap();
        assert!(found.iter().map(|e| &e.bytes).eq(expected.iter().map(|e| &e.bytes)));
        assert_eq!(c.read(0, &found).unwrap(), data);
    }
    assert!(c.moved > 100);
}

#[test]
fn a_cache_policy_in_c_misses_as_often_as_its_built_in_twin() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("clock.wasm");
    if !build_c("clock.c", &path) {
        return;
    }
    let cache = CodeCache::open(directory.path().join("code")).unwrap();
    let module = PolicyModule::load(&path, &cache, &Compiler::InProcess).unwrap();
    for (seed, frames) in [(1, 10), (2, 100), (3, 300)] {
        let config = CacheConfig {
            frames,
            ways: frames,
            set_index: SetIndex::Modulo,
            write: WriteMode::Back,
            reserve_frames: 0,
            pinned_pages_max: 0,
            eviction: "clock".to_owned(),
            eviction_parameters: ParameterValues::new(),
            prefetch: "none".to_owned(),
            prefetch_parameters: ParameterValues::new(),
            write_log: None,
        };
        let mut random = Random(seed);
        // The product of two numbers: small ones come more often.
        let pages: Vec<u64> = (0..20_000).map(|_| random.below(40) * random.below(40)).collect();
        let requests = || pages.iter().map(|page| (*page, Op::READ));
        let policy = module.policy(config.shape().unwrap(), &ParameterValues::new(), 0).unwrap();
        let found = replay_with(&config, policy, requests()).unwrap().misses;
        assert_eq!(found, replay(&config, 0, requests()).unwrap().misses, "{frames} frames");
        let fifo = CacheConfig { eviction: "fifo".to_owned(), ..config };
        assert_ne!(found, replay(&fifo, 0, requests()).unwrap().misses, "another policy would be seen");
    }
}
