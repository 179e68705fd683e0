//! What takes more than one process: compiling away from this one, and the two domains as they are in
//! reality, sharing nothing but the objects, one of them killed again and again.
//!
//! The program is its own compiler and its own other domain: see `main`.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::ffi::OsString;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use common::{DIED, Device, FULL, Pair, Random, Remote};
use osier_actor::compile::{CompileError, Flavour, compile};
use osier_actor::segment::Mapping;
use osier_actor::{CodeCache, Compiler, Engines, Limits, Parts, Runner, Segment, compile_main};
use osier_domain::migrate::GLOBALS_MAX;
use osier_domain::{ActorId, Call, Direction, Outcome, STREAMS_MAX, Side, SlotId, Status, StreamId, Tag};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    match arguments.first().and_then(|a| a.to_str()) {
        Some("compile") => return compile_main(&arguments[1..]),
        Some("other-domain") => other_domain(&arguments[1..]),
        _ => {}
    }
    let tests: [(&str, fn()); 4] = [
        ("a_module_is_compiled_in_a_process_of_its_own", a_module_is_compiled_in_a_process_of_its_own),
        ("the_cache_trusts_nobody_else", the_cache_trusts_nobody_else),
        ("two_processes_do_what_one_does", two_processes_do_what_one_does),
        ("a_killed_domain_loses_nothing", a_killed_domain_loses_nothing),
    ];
    // A name that is given, as cargo does for its own harness, picks the tests that contain it.
    let wanted = arguments.iter().filter_map(|a| a.to_str()).find(|a| !a.starts_with('-')).unwrap_or("");
    for (name, test) in tests.into_iter().filter(|(name, _)| name.contains(wanted)) {
        let begin = Instant::now();
        test();
        println!("test {name} ... ok ({:?})", begin.elapsed());
    }
    ExitCode::SUCCESS
}

const COPY: &str = r#"(module (memory (export "memory") 1)
    (func (export "osier_abi") (result i32) (i32.const 1))
    (func (export "osier_forward") (param i32 i32 i32 i32 i32) (result i64)
      (memory.copy (local.get 2) (local.get 0) (local.get 1)) (i64.extend_i32_u (local.get 1))))"#;

fn child_of<'a>(program: &'a Path, arguments: &'a [OsString], limits: Limits) -> Compiler<'a> {
    Compiler::Child { program, arguments, limits }
}

fn a_module_is_compiled_in_a_process_of_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let cache = CodeCache::open(directory.path().join("code")).unwrap();
    let engines = Engines::new().unwrap();
    let program = std::env::current_exe().unwrap();
    let own = [OsString::from("compile")];
    let wasm = wat::parse_str(COPY).unwrap();
    let limits = Limits::default();
    let missing = cache.load(&engines, "m", &wasm, Flavour::Untrusted, &Compiler::CacheOnly);
    assert!(matches!(missing, Err(CompileError::Missing { .. })));
    for compiler in [child_of(&program, &own, limits), Compiler::CacheOnly] {
        cache.load(&engines, "m", &wasm, Flavour::Untrusted, &compiler).unwrap();
    }
    let left: Vec<_> = std::fs::read_dir(directory.path().join("code")).unwrap().collect();
    assert_eq!(left.len(), 2, "the artefact and its checksum: {left:?}");
    // The other flavour is another artefact.
    assert!(cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::CacheOnly).is_err());

    let refused =
        cache.load(&engines, "m", b"\0asm\x01\0\0\0\x01", Flavour::Untrusted, &child_of(&program, &own, limits));
    assert!(matches!(&refused, Err(CompileError::Refused { module, message }) if module == "m" && !message.is_empty()));
    // Too little memory to compile anything in; a compiler that does not end; none at all.
    let small = Limits { bytes: 24 << 20, ..limits };
    let huge = wat::parse_str(huge_module()).unwrap();
    let begin = Instant::now();
    let found = cache.load(&engines, "m", &huge, Flavour::Untrusted, &child_of(&program, &own, small));
    assert!(
        matches!(found, Err(CompileError::Limit { mebibytes: 24, .. }) | Err(CompileError::Refused { .. })),
        "{found:?}"
    );
    let sleeper = [OsString::from("-c"), OsString::from("sleep 60")];
    let one = Limits { seconds: 1, ..limits };
    let found = cache.load(&engines, "m", &huge, Flavour::Untrusted, &child_of(Path::new("/bin/sh"), &sleeper, one));
    assert!(matches!(found, Err(CompileError::Limit { seconds: 1, .. })), "{found:?}");
    let found = cache.load(&engines, "m", &huge, Flavour::Untrusted, &child_of(Path::new("/nowhere"), &own, one));
    assert!(matches!(found, Err(CompileError::Child { .. })), "{found:?}");
    assert!(begin.elapsed() < Duration::from_secs(30));
    let left: Vec<_> = std::fs::read_dir(directory.path().join("code")).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing is left of what failed: {left:?}");
}

/// One function of half a megabyte.
fn huge_module() -> String {
    let body = "(local.set 1 (i32.add (local.get 1) (i32.load (i32.mul (local.get 1) (local.get 0)))))".repeat(40_000);
    format!("(module (memory 1) (func (param i32) (local i32) {body}))")
}

fn the_cache_trusts_nobody_else() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("code");
    let cache = CodeCache::open(&path).unwrap();
    let engines = Engines::new().unwrap();
    let wasm = wat::parse_str(COPY).unwrap();
    cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::InProcess).unwrap();
    // A damaged artefact is never loaded: it is made anew, or missed.
    let artefact =
        std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()).find(|p| p.extension() == Some("cwasm".as_ref()));
    let artefact = artefact.unwrap();
    let mut bytes = std::fs::read(&artefact).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&artefact, &bytes).unwrap();
    assert!(cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::CacheOnly).is_err());
    cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::InProcess).unwrap();
    cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::CacheOnly).unwrap();
    // One of another setting, under the right name and checksum: Wasmtime refuses it, and it is made anew.
    let other = compile("m", &wasm, Flavour::Untrusted, false).unwrap();
    std::fs::write(&artefact, &other).unwrap();
    let sum = osier_actor::module::Digest::of(&other).to_string();
    std::fs::write(artefact.with_extension("sum"), sum).unwrap();
    assert!(cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::CacheOnly).is_err());
    cache.load(&engines, "m", &wasm, Flavour::Trusted, &Compiler::InProcess).unwrap();
    for mode in [0o755, 0o720, 0o701] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = CodeCache::open(&path).unwrap_err().to_string();
        assert!(refused.contains("it has to be yours with mode 700"), "{refused}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(CodeCache::open(&path).is_ok());
    assert!(CodeCache::open(&artefact).is_err());
    assert!(CodeCache::open(directory.path().join("no/such")).is_err());
}

/// Where the two processes of a test talk: a command, its arguments, its answer.
struct Line(Mapping);

const COMMAND: u64 = 0;
const ARGUMENTS: u64 = 64;
const IDLE: u64 = 0;
const RUN: u64 = 1;
const EXPORT: u64 = 2;
const IMPORT: u64 = 3;
const READY: u64 = 9;
const WORDS: usize = 16;

impl Line {
    fn words(&self) -> [u64; WORDS] {
        std::array::from_fn(|i| self.0.word64(ARGUMENTS + 8 * i as u64).load(Relaxed))
    }

    fn set(&self, words: &[u64]) {
        for (index, word) in words.iter().enumerate() {
            self.0.word64(ARGUMENTS + 8 * index as u64).store(*word, Relaxed);
        }
    }

    fn command(&self) -> u64 {
        self.0.word64(COMMAND).load(Acquire)
    }

    fn say(&self, command: u64) {
        self.0.word64(COMMAND).store(command, Release);
    }
}

fn encode(call: &Call, owner_word: u64) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    words[..11].copy_from_slice(&[
        u64::from(call.actor.0),
        call.direction as u64,
        u64::from(call.slot.0),
        u64::from(call.unit),
        u64::from(call.units),
        u64::from(call.resume),
        u64::from(call.budget_bytes),
        u64::from(call.tag.0),
        u64::from(call.stream.0),
        call.sequence,
        owner_word,
    ]);
    words
}

fn decode(words: &[u64; WORDS]) -> (Call, u64) {
    let call = Call {
        actor: ActorId(words[0] as u16),
        direction: if words[1] == 0 { Direction::Forward } else { Direction::Inverse },
        slot: SlotId(words[2] as u16),
        unit: words[3] as u16,
        units: words[4] as u16,
        resume: words[5] == 1,
        budget_bytes: words[6] as u32,
        tag: Tag(words[7] as u32),
        stream: StreamId(words[8] as u16),
        sequence: words[9],
    };
    (call, words[10])
}

/// The process that is the device: arguments are the directory of the modules and the descriptors.
fn other_domain(arguments: &[OsString]) -> ! {
    let text = |index: usize| arguments[index].to_str().unwrap();
    let segment = |fd: &str| {
        // SAFETY: the parent left this descriptor open for us and nobody else here knows its number.
        let fd = unsafe { OwnedFd::from_raw_fd(fd.parse().unwrap()) };
        let bytes = std::fs::File::from(fd.try_clone().unwrap()).metadata().unwrap().len();
        Segment::new(Arc::new(fd), 0, bytes)
    };
    let (pipelines, prepared, engines) = common::load(FULL, Path::new(text(0))).unwrap_or_else(|e| panic!("{e}"));
    let line = Line(Mapping::new(&segment(text(1))).unwrap());
    let arena = segment(text(2));
    let count = pipelines.actors().len();
    let memories = (0..count).map(|i| segment(text(3 + 2 * i))).collect();
    let states = (0..count).map(|i| Some(text(4 + 2 * i)).filter(|t| *t != "-").map(segment)).collect();
    let mut runner = Runner::new(Parts {
        side: Side::Device,
        pipelines: &pipelines,
        prepared: &prepared,
        engines: &engines,
        arena,
        memories,
        states,
        keys: common::keys(),
        incarnation: 1,
        populate: true,
    })
    .unwrap();
    line.say(READY);
    loop {
        let words = line.words();
        match line.command() {
            RUN => {
                let (call, owner_word) = decode(&line.words());
                line.set(&match runner.run(&call, owner_word) {
                    Outcome::Done { bytes } => [0, u64::from(bytes)],
                    Outcome::Yielded { bytes } => [1, u64::from(bytes)],
                    Outcome::Failed(status) => [2, u64::from(status.0)],
                });
                line.say(IDLE);
            }
            EXPORT => {
                line.set(&runner.export(ActorId(line.words()[0] as u16)));
                line.say(IDLE);
            }
            IMPORT => {
                let words = line.words();
                let globals = std::array::from_fn(|i| words[i + 1]);
                runner.import(ActorId(words[0] as u16), &globals);
                line.say(IDLE);
            }
            _ => {
                let _ = words;
                std::thread::yield_now();
            }
        }
    }
}

/// The other process as its parent sees it.
struct Other {
    child: Child,
    line: Line,
    /// Kills the child while it runs this call, counted down.
    kill_in: Option<u64>,
    random: Random,
    spawn: Box<dyn Fn() -> Child>,
}

impl Other {
    fn over(device: &Device, seed: u64) -> Other {
        let line = Segment::anonymous(c"line", 4096).unwrap();
        let mut descriptors = vec![line.fd().clone(), device.arena.fd().clone()];
        let mut arguments: Vec<String> = Vec::new();
        let mut number = |fd: &Arc<OwnedFd>| {
            // SAFETY: the descriptor is open; without CLOEXEC the child keeps it under the same number.
            let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) };
            assert_eq!(done, 0);
            fd.as_raw_fd().to_string()
        };
        arguments.extend(descriptors.iter().map(&mut number));
        for (memory, state) in device.memories.iter().zip(&device.states) {
            arguments.push(number(memory.fd()));
            arguments.push(state.as_ref().map_or("-".to_owned(), |s| number(s.fd())));
            descriptors.push(memory.fd().clone());
            descriptors.extend(state.as_ref().map(|s| s.fd().clone()));
        }
        let directory = device.directory.path().to_owned();
        let spawn = Box::new(move || {
            let _open = &descriptors;
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("other-domain").arg(&directory).args(&arguments);
            command.stdin(Stdio::null()).spawn().unwrap()
        });
        let line = Line(Mapping::new(&line).unwrap());
        let child = spawn();
        let mut other = Other { child, line, kill_in: None, random: Random(seed), spawn };
        other.await_ready();
        other
    }

    fn await_ready(&mut self) {
        let begin = Instant::now();
        while self.line.command() != READY {
            assert!(self.child.try_wait().unwrap().is_none(), "the other domain did not come up");
            assert!(begin.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_micros(200));
        }
        self.line.say(IDLE);
    }

    /// Sends a command; false if the child was killed before it answered.
    fn ask(&mut self, command: u64, words: &[u64]) -> bool {
        self.line.set(words);
        self.line.say(command);
        match &mut self.kill_in {
            Some(0) if command == RUN => {
                for _ in 0..self.random.below(30_000) {
                    std::hint::spin_loop();
                }
                self.child.kill().unwrap();
                self.child.wait().unwrap();
                return false;
            }
            Some(left) if command == RUN => *left -= 1,
            _ => {}
        }
        let begin = Instant::now();
        while self.line.command() != IDLE {
            assert!(begin.elapsed() < Duration::from_secs(30), "the other domain does not answer");
            std::thread::yield_now();
        }
        true
    }

    fn restart(&mut self) {
        self.line.say(IDLE);
        self.kill_in = None;
        self.child = (self.spawn)();
        self.await_ready();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pair owns its remote by trait; tests reach it through this.
struct Shared(std::rc::Rc<std::cell::RefCell<Other>>);

impl Remote for Shared {
    fn run(&mut self, call: &Call, owner_word: u64) -> Option<Outcome> {
        let mut other = self.0.borrow_mut();
        if !other.ask(RUN, &encode(call, owner_word)) {
            return None;
        }
        let words = other.line.words();
        Some(match words[0] {
            0 => Outcome::Done { bytes: words[1] as u32 },
            1 => Outcome::Yielded { bytes: words[1] as u32 },
            _ => Outcome::Failed(Status(words[1] as u16)),
        })
    }

    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX] {
        let mut other = self.0.borrow_mut();
        assert!(other.ask(EXPORT, &[u64::from(actor.0)]));
        let words = other.line.words();
        std::array::from_fn(|i| words[i])
    }

    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]) {
        let mut words = vec![u64::from(actor.0)];
        words.extend(globals);
        assert!(self.0.borrow_mut().ask(IMPORT, &words));
    }
}

fn two_processes(seed: u64) -> (Pair, std::rc::Rc<std::cell::RefCell<Other>>) {
    let mut pair = Pair::new(FULL, &[]);
    let other = std::rc::Rc::new(std::cell::RefCell::new(Other::over(&pair.device, seed)));
    pair.remote = Some(Box::new(Shared(other.clone())));
    let mut decide = Random(seed);
    pair.moves = Box::new(move |_| decide.below(3) == 0);
    (pair, other)
}

fn data(random: &mut Random) -> Vec<u8> {
    let (blocks, noise) = (1 + random.below(32) as u32, random.below(4) == 0);
    random.data(blocks, noise)
}

fn two_processes_do_what_one_does() {
    let (mut pair, _other) = two_processes(5);
    let mut quiet = Pair::new(FULL, &[]);
    let mut random = Random(77);
    for sequence in 1..=60 {
        pair.budget = [512, 2048, 8192][random.below(3) as usize];
        let data = data(&mut random);
        let expected = quiet.write("full", 0, (0, sequence), sequence, &data).unwrap();
        let found = pair.write("full", 0, (0, sequence), sequence, &data).unwrap();
        assert!(found == expected, "sequence {sequence}: the extents differ");
        assert_eq!(pair.read(0, &found).unwrap(), data);
    }
    assert!(pair.moved > 1000, "{} moves", pair.moved);
    println!("     {} moves between two processes", pair.moved);
}

/// The device's process is killed while it runs a chunk, at a random one of a request and a random moment
/// of it; the host takes over, resets every actor to the last request that got through, and replays. Then
/// a new process comes up beside it, and the actors go on moving.
fn a_killed_domain_loses_nothing() {
    let (mut pair, other) = two_processes(6);
    let mut quiet = Pair::new(FULL, &[]);
    let mut random = Random(78);
    let mut deaths = 0;
    for sequence in 1..=60 {
        pair.budget = [512, 2048, 8192][random.below(3) as usize];
        let data = data(&mut random);
        let expected = quiet.write("full", 0, (0, sequence), sequence, &data).unwrap();
        other.borrow_mut().kill_in = (sequence % 2 == 0).then(|| random.below(30));
        let mut found = pair.write("full", 0, (0, sequence), sequence, &data);
        if found == Err(DIED) {
            deaths += 1;
            for (index, owner) in pair.owners.iter_mut().enumerate() {
                *owner = Side::Host;
                let mut gates = [0; STREAMS_MAX];
                gates[0] = sequence - 1;
                pair.runners[0].reset(ActorId(index as u16), &gates);
            }
            other.borrow_mut().restart();
            found = pair.write("full", 0, (0, sequence), sequence, &data);
        }
        other.borrow_mut().kill_in = None;
        assert!(found.unwrap() == expected, "sequence {sequence}: the replay made other extents");
        assert_eq!(pair.read(0, &expected).unwrap(), data, "sequence {sequence}");
    }
    assert!(deaths >= 15, "{deaths} deaths");
    println!("     {deaths} deaths, {} moves", pair.moved);
}
