//! One actor's instance: its linear memory placed in the shared region, its calls, and the functions it imports.
//!
//! Invariants:
//! 1. Every pointer that a guest gives is checked against the length of its memory before it is used, and an
//!    input that overlaps an output traps.
//! 2. After [`Sandbox::attach`] the memory has its final length and place; the base pointer kept for the
//!    imports is right until the instance is dropped.
//! 3. The bytes of the memory are touched only while this side owns the actor (the runner checks the owner
//!    word) or, before `attach`, while they are private.

use std::collections::VecDeque;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use osier_domain::arena::Unit;
use osier_domain::migrate::GLOBALS_MAX;
use osier_domain::{Call, Direction};
use wasmtime::{Caller, Global, Instance, Linker, Memory, ResourceLimiter, Store, Trap, TypedFunc, Val};

use crate::abi::{ABI_VERSION, IMPORT_MODULE, LOG_BYTES_MAX, STATE_BYTES_MAX, code};
use crate::arena::Arena;
use crate::compile::{Code, Engines, Flavour};
use crate::install::Facts;
use crate::intrinsics::{self, Binding, KeyRing, NonceParts};
use crate::memory::PlaceError;
use crate::segment::Segment;
use crate::state::StateRing;

/// Fuel of instantiation and `osier_init`, some ten milliseconds.
const FUEL_INIT: u64 = 20_000_000;
/// Fuel of a call besides what its bytes bring, some half a millisecond.
const FUEL_BASE: u64 = 1_000_000;
/// Fuel for each byte of input of a call: about as many instructions.
const FUEL_PER_BYTE: u64 = 256;
/// Fuel of imports that may be owed, a thousandth of what a call is given at least.
const OWED_MAX: u64 = 1_000;
/// Fuel of the imports, in instructions that take about as long: a fixed part, and shares of a byte in quarters.
mod cost {
    pub(super) const UNIT_INFO: u64 = 10;
    pub(super) const SMALL: u64 = 50;
    pub(super) const STATE: u64 = 1_000;
    pub(super) const LOG: u64 = 5_000;
    pub(super) const QUARTERS_SCAN: u64 = 1;
    pub(super) const QUARTERS_AEAD: u64 = 12;
    pub(super) const QUARTERS_COMPRESS: u64 = 24;
    pub(super) const QUARTERS_DECOMPRESS: u64 = 8;
}

/// Messages that one actor may log in a second.
const LOGS_A_SECOND: u32 = 64;
/// The latest messages that are kept for refusals and listings.
const LOGS_KEPT: usize = 64;

type Transform = TypedFunc<(i32, i32, i32, i32, i32), i64>;

/// Why an instance could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// Wasmtime refuses.
    #[error("instantiating actor {actor}: {message}")]
    Instantiate {
        /// Which.
        actor: String,
        /// What Wasmtime says.
        message: String,
    },
    /// It was built for another ABI.
    #[error("actor {actor} answers ABI version {found}, this program has {ABI_VERSION}; build it with a matching SDK")]
    Abi {
        /// Which.
        actor: String,
        /// What it answers.
        found: i32,
    },
    /// Its `osier_init` refuses.
    #[error("actor {actor} refuses its configuration: {message}")]
    Init {
        /// Which.
        actor: String,
        /// Its last message at level error, or the code.
        message: String,
    },
    /// Its memory could not be placed.
    #[error("placing the memory of actor {actor}: {error}")]
    Place {
        /// Which.
        actor: String,
        /// What happened.
        #[source]
        error: PlaceError,
    },
}

/// How a call ended that did not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It used up its fuel.
    Timeout,
    /// It trapped.
    Trapped,
}

/// What an actor is made with, besides its code.
#[derive(Debug, Clone)]
pub struct Setting {
    /// What logs call it.
    pub label: String,
    /// Its parameters in normal form.
    pub params: String,
    /// The key that it seals with.
    pub key: Option<u16>,
    /// All keys, for opening.
    pub keys: Arc<KeyRing>,
    /// The device's incarnation.
    pub incarnation: u32,
    /// The arena, for the request's blob.
    pub arena: Arc<Arena>,
}

/// What the imports work with.
struct Context {
    base: NonNull<u8>,
    bytes: usize,
    setting: Setting,
    state: Option<StateRing>,
    unit: Option<(Call, Unit)>,
    scratch: Vec<u8>,
    logs: Logs,
    /// Imports cost fuel.
    metered: bool,
    /// Fuel of imports that is not taken yet.
    owed: u64,
    /// The host itself grows the memory.
    growing: bool,
}

/// Whatever a guest asks for, its memory does not grow; only the host adds to it, once.
impl ResourceLimiter for Context {
    fn memory_growing(&mut self, current: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let made = current == 0 && self.bytes == 0;
        Ok(made || self.growing)
    }

    fn table_growing(&mut self, current: usize, _: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        // The install check bounds the tables that a module begins with.
        Ok(current == 0)
    }
}

// SAFETY: the base is the address of a memory that the same store owns, so they move between threads together.
unsafe impl Send for Context {}

/// The latest messages of an actor.
#[derive(Debug, Default)]
struct Logs {
    lines: VecDeque<(u32, String)>,
    /// Begin of the present second and messages in it: the guest's own, and the host's about it, so that a guest
    /// that floods its log does not hide what is said about it.
    windows: [(Option<Instant>, u32); 2],
    dropped: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaker {
    Guest = 0,
    Host = 1,
}

/// One instance.
pub struct Sandbox {
    store: Store<Context>,
    memory: Memory,
    forward: Option<Transform>,
    inverse: Option<Transform>,
    resume: Option<TypedFunc<i32, i64>>,
    globals: Vec<Global>,
    flavour: Flavour,
    own_bytes: usize,
    /// The memory after `osier_init`, without the zeros at its end, and the globals: what a reset restores.
    image: Vec<u8>,
    first_globals: [u64; GLOBALS_MAX],
    fault_message: String,
}

impl std::fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sandbox({})", self.store.data().setting.label)
    }
}

impl Sandbox {
    /// Instantiates on private pages and runs `osier_init`. The memory is not shared yet.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn new(engines: &Engines, code: &Code, facts: &Facts, setting: Setting) -> Result<Sandbox, SandboxError> {
        let actor = setting.label.clone();
        let failed = |e: wasmtime::Error| SandboxError::Instantiate { actor: actor.clone(), message: describe(&e) };
        let engine = engines.engine(code.flavour);
        let context = Context {
            base: NonNull::dangling(),
            bytes: 0,
            setting,
            state: None,
            unit: None,
            scratch: Vec::new(),
            logs: Logs::default(),
            metered: code.flavour == Flavour::Untrusted,
            owed: 0,
            growing: false,
        };
        let mut store = Store::new(engine, context);
        store.limiter(|context| context);
        if code.flavour == Flavour::Untrusted {
            store.set_fuel(FUEL_INIT).map_err(failed)?;
        }
        let instance = linker(engine).and_then(|l| l.instantiate(&mut store, &code.module)).map_err(failed)?;
        let missing = || failed(wasmtime::Error::msg("an export that was checked is not there"));
        let memory = instance.get_memory(&mut store, "memory").ok_or_else(missing)?;
        let mut sandbox = Sandbox {
            forward: function(&instance, &mut store, facts.forward, "osier_forward").map_err(failed)?,
            inverse: function(&instance, &mut store, facts.inverse, "osier_inverse").map_err(failed)?,
            resume: function(&instance, &mut store, facts.resume, "osier_resume").map_err(failed)?,
            globals: facts.globals.iter().filter_map(|name| instance.get_global(&mut store, name)).collect(),
            flavour: code.flavour,
            own_bytes: memory.data_size(&store),
            image: Vec::new(),
            first_globals: [0; GLOBALS_MAX],
            fault_message: String::new(),
            store,
            memory,
        };
        sandbox.note_memory();
        sandbox.initialise(&instance, facts)?;
        let data = sandbox.memory.data(&sandbox.store);
        let used = data.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        sandbox.image = data[..used].to_vec();
        sandbox.first_globals = sandbox.export();
        Ok(sandbox)
    }

    fn initialise(&mut self, instance: &Instance, facts: &Facts) -> Result<(), SandboxError> {
        let actor = self.store.data().setting.label.clone();
        let failed = |e: wasmtime::Error| SandboxError::Instantiate { actor: actor.clone(), message: describe(&e) };
        let abi = instance.get_typed_func::<(), i32>(&mut self.store, "osier_abi").map_err(failed)?;
        let found = abi.call(&mut self.store, ()).map_err(failed)?;
        if found != ABI_VERSION {
            return Err(SandboxError::Abi { actor, found });
        }
        if facts.init {
            let init = instance.get_typed_func::<(), i32>(&mut self.store, "osier_init").map_err(failed)?;
            let answer = init.call(&mut self.store, ()).map_err(failed)?;
            if answer != 0 {
                let logs = &self.store.data().logs.lines;
                let said = logs.iter().rev().find(|(level, _)| *level == 0).map(|(_, text)| text.clone());
                let name = crate::abi::code_name(answer.unsigned_abs());
                return Err(SandboxError::Init {
                    actor,
                    message: said.unwrap_or_else(|| format!("code {answer}, {name}")),
                });
            }
        }
        Ok(())
    }

    /// Places the memory: `pieces` over all of it, the actor's own object first, and its shared state beside
    /// it. What the pieces hold is what the actor has from now on; a new object is filled by [`Sandbox::reset`].
    ///
    /// # Errors
    /// [`SandboxError::Place`].
    pub fn attach(
        &mut self,
        engines: &Engines,
        pieces: &[Segment],
        state: Option<StateRing>,
        populate: bool,
    ) -> Result<(), SandboxError> {
        self.store.data_mut().growing = true;
        let placed = engines.creator(self.flavour).attach(&mut self.store, &self.memory, pieces, populate);
        self.store.data_mut().growing = false;
        let actor = self.store.data().setting.label.clone();
        placed.map_err(|error| SandboxError::Place { actor, error })?;
        self.store.data_mut().state = state;
        self.note_memory();
        Ok(())
    }

    fn note_memory(&mut self) {
        let (base, bytes) = (self.memory.data_ptr(&self.store), self.memory.data_size(&self.store));
        let context = self.store.data_mut();
        context.base = NonNull::new(base).unwrap_or(NonNull::dangling());
        context.bytes = bytes;
    }

    #[inline]
    fn refuel(&mut self, bytes: u32) {
        if self.flavour == Flavour::Untrusted
            && let Err(error) = self.store.set_fuel(fuel(bytes))
        {
            panic!("the untrusted engine counts fuel: {error}");
        }
    }

    /// Fuel that the last call, which was given fuel for `bytes`, used; 0 for a trusted actor.
    #[inline]
    pub fn fuel_used(&self, bytes: u32) -> u64 {
        match self.flavour {
            Flavour::Trusted => 0,
            Flavour::Untrusted => {
                let left = self.store.get_fuel().unwrap_or(0).saturating_sub(self.store.data().owed);
                fuel(bytes).saturating_sub(left)
            }
        }
    }

    /// Whether it has a function for this direction.
    #[inline]
    pub fn has(&self, direction: Direction) -> bool {
        match direction {
            Direction::Forward => self.forward.is_some(),
            Direction::Inverse => self.inverse.is_some(),
        }
    }

    /// Whether it may yield.
    #[inline]
    pub fn resumes(&self) -> bool {
        self.resume.is_some()
    }

    /// One call: of `osier_resume` if the call says so, else of its direction's function, with pointers into
    /// the actor's memory and `fuel_bytes` of input that fuel is given for.
    ///
    /// # Errors
    /// [`Fault`]; [`Sandbox::fault_message`] then says more, and the instance needs a [`Sandbox::restore`].
    ///
    /// # Panics
    /// If it has no such function, or the pointers do not lie in its memory: the runner checked both.
    #[inline]
    pub fn call(&mut self, call: &Call, unit: &Unit, buffers: &Buffers, fuel_bytes: u32) -> Result<i64, Fault> {
        self.refuel(fuel_bytes);
        let context = self.store.data_mut();
        let end = u64::from(buffers.output) + u64::from(buffers.output_capacity);
        assert!(end.max(u64::from(buffers.input) + u64::from(buffers.input_bytes)) <= context.bytes as u64);
        (context.owed, context.unit) = (0, Some((*call, *unit)));
        let budget = call.budget_bytes.max(1).cast_signed();
        let result = if call.resume {
            let Some(resume) = &self.resume else { panic!("resumed an actor that never yields") };
            resume.call(&mut self.store, budget)
        } else {
            let function = if call.direction == Direction::Forward { &self.forward } else { &self.inverse };
            let Some(function) = function else { panic!("called a direction that the actor does not have") };
            let Buffers { input, input_bytes, output, output_capacity } = *buffers;
            let [input, length, output, room] = [input, input_bytes, output, output_capacity].map(u32::cast_signed);
            function.call(&mut self.store, (input, length, output, room, budget))
        };
        self.store.data_mut().unit = None;
        result.map_err(|error| self.fault(&error))
    }

    #[cold]
    #[inline(never)]
    fn fault(&mut self, error: &wasmtime::Error) -> Fault {
        self.fault_message = describe(error);
        match error.downcast_ref::<Trap>() {
            Some(Trap::OutOfFuel) => Fault::Timeout,
            _ => Fault::Trapped,
        }
    }

    /// What the last fault was.
    pub fn fault_message(&self) -> &str {
        &self.fault_message
    }

    /// Copies into the actor's memory.
    ///
    /// # Panics
    /// If the range does not lie within.
    pub fn write_memory(&mut self, offset: u32, write: impl FnOnce(&mut [u8]), bytes: u32) {
        let begin = offset as usize;
        write(&mut self.memory.data_mut(&mut self.store)[begin..begin + bytes as usize]);
    }

    /// The bytes of a range of the actor's memory.
    ///
    /// # Panics
    /// If the range does not lie within.
    pub fn memory(&self, offset: u32, bytes: u32) -> &[u8] {
        &self.memory.data(&self.store)[offset as usize..][..bytes as usize]
    }

    /// Length of the memory that the module itself asked for, in bytes.
    #[inline]
    pub fn own_bytes(&self) -> u32 {
        self.own_bytes as u32
    }

    /// The mutable globals, as a checkpoint carries them.
    pub fn export(&mut self) -> [u64; GLOBALS_MAX] {
        let mut out = [0u64; GLOBALS_MAX];
        for (word, global) in out.iter_mut().zip(&self.globals) {
            *word = match global.get(&mut self.store) {
                Val::I32(v) => u64::from(v.cast_unsigned()),
                Val::I64(v) => v.cast_unsigned(),
                Val::F32(bits) => u64::from(bits),
                Val::F64(bits) => bits,
                other => unreachable!("a global of type {:?} was refused at install", other.ty(&self.store)),
            };
        }
        out
    }

    /// Sets the mutable globals from a checkpoint.
    pub fn import(&mut self, words: &[u64; GLOBALS_MAX]) {
        for (word, global) in words.iter().zip(&self.globals) {
            let value = match global.get(&mut self.store) {
                Val::I32(_) => Val::I32((*word as u32).cast_signed()),
                Val::I64(_) => Val::I64(word.cast_signed()),
                Val::F32(_) => Val::F32(*word as u32),
                Val::F64(_) => Val::F64(*word),
                other => unreachable!("a global of type {:?} was refused at install", other.ty(&self.store)),
            };
            let set = global.set(&mut self.store, value);
            assert!(set.is_ok(), "a mutable global takes a value of its type");
        }
    }

    /// Makes memory and globals as they were after `osier_init`. Tables and segments cannot have changed, so
    /// this is a fresh instance.
    pub fn restore(&mut self) {
        let own = &mut self.memory.data_mut(&mut self.store)[..self.own_bytes];
        own[..self.image.len()].copy_from_slice(&self.image);
        own[self.image.len()..].fill(0);
        let globals = self.first_globals;
        self.import(&globals);
    }

    /// The shared state, if it has one.
    pub fn state(&self) -> Option<&StateRing> {
        self.store.data().state.as_ref()
    }

    /// Takes the latest messages, which went to the log as they came, and how many were left out so far.
    pub fn take_logs(&mut self) -> (Vec<(u32, String)>, u64) {
        let logs = &mut self.store.data_mut().logs;
        (logs.lines.drain(..).collect(), logs.dropped)
    }

    /// Notes a message about the actor among its own.
    pub fn note(&mut self, text: String) {
        self.store.data_mut().log(Speaker::Host, 0, text);
    }
}

#[inline]
fn fuel(bytes: u32) -> u64 {
    FUEL_BASE + u64::from(bytes) * FUEL_PER_BYTE
}

/// Where a call's input and output lie in the actor's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Offset of the input.
    pub input: u32,
    /// Its length in bytes.
    pub input_bytes: u32,
    /// Offset of the output.
    pub output: u32,
    /// Its room in bytes.
    pub output_capacity: u32,
}

fn function<P, R>(
    instance: &Instance,
    store: &mut Store<Context>,
    present: bool,
    name: &str,
) -> wasmtime::Result<Option<TypedFunc<P, R>>>
where
    P: wasmtime::WasmParams,
    R: wasmtime::WasmResults,
{
    if !present {
        return Ok(None);
    }
    instance.get_typed_func(store, name).map(Some)
}

/// An error of Wasmtime on one line: the trap, or what an import said.
pub(crate) fn describe(error: &wasmtime::Error) -> String {
    match error.downcast_ref::<Trap>() {
        Some(trap) => trap.to_string(),
        None => error.root_cause().to_string(),
    }
}

impl Context {
    fn check(&self, pointer: i32, length: i32) -> Result<std::ops::Range<usize>, wasmtime::Error> {
        let begin = pointer.cast_unsigned() as usize;
        let end = begin + length.cast_unsigned() as usize;
        if end > self.bytes {
            return Err(wasmtime::Error::msg(format!(
                "an import was given {} bytes at {begin}, outside of the memory",
                end - begin
            )));
        }
        Ok(begin..end)
    }

    fn input(&self, pointer: i32, length: i32) -> Result<&[u8], wasmtime::Error> {
        let range = self.check(pointer, length)?;
        // SAFETY: the range lies within the memory, whose base this context notes whenever it changes. The
        // guest is suspended in this call and the other domain does not touch the memory of an actor that it
        // does not own, so nobody writes while the reference lives.
        Ok(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(range.start), range.len()) })
    }

    fn output(&mut self, pointer: i32, length: i32) -> Result<&mut [u8], wasmtime::Error> {
        let range = self.check(pointer, length)?;
        // SAFETY: as in `input`; `&mut self` keeps this context from handing out another one.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(range.start), range.len()) })
    }

    /// Input and output of one import at once, and the rest of what it needs.
    fn both(&mut self, [from, length, to, room]: [i32; 4]) -> Result<Both<'_>, wasmtime::Error> {
        let (input, output) = (self.check(from, length)?, self.check(to, room)?);
        if input.start < output.end && output.start < input.end {
            return Err(wasmtime::Error::msg("an import was given an input that overlaps its output"));
        }
        // SAFETY: as in `input`; the ranges do not overlap, and the other fields are not the guest's memory.
        let (input, output) = unsafe {
            (
                std::slice::from_raw_parts(self.base.as_ptr().add(input.start), input.len()),
                std::slice::from_raw_parts_mut(self.base.as_ptr().add(output.start), output.len()),
            )
        };
        Ok(Both { input, output, scratch: &mut self.scratch })
    }

    fn log(&mut self, speaker: Speaker, level: u32, text: String) {
        let now = Instant::now();
        let (window, count) = &mut self.logs.windows[speaker as usize];
        if window.is_none_or(|begin| now.duration_since(begin) >= Duration::from_secs(1)) {
            let left_out = count.saturating_sub(LOGS_A_SECOND);
            if left_out > 0 {
                tracing::warn!(actor = self.setting.label, left_out, "it said more within a second than is passed on");
            }
            (*window, *count) = (Some(now), 0);
        }
        *count += 1;
        if *count > LOGS_A_SECOND {
            self.logs.dropped += 1;
            return;
        }
        let actor = &self.setting.label;
        match level {
            0 => tracing::error!(actor, "{text}"),
            1 => tracing::warn!(actor, "{text}"),
            2 => tracing::info!(actor, "{text}"),
            _ => tracing::debug!(actor, "{text}"),
        }
        if self.logs.lines.len() == LOGS_KEPT {
            self.logs.lines.pop_front();
        }
        self.logs.lines.push_back((level, text));
    }

    fn unit_info(&self, field: u32) -> i64 {
        let Some((call, unit)) = &self.unit else { return -1 };
        let write = call.direction == Direction::Forward;
        let blocks = unit.raw_bytes / osier_domain::BLOCK_BYTES;
        let value = match field {
            0 => unit.slba,
            1 => u64::from(blocks),
            2 => u64::from(unit.raw_bytes),
            3 => unit.version,
            4 => u64::from(call.stream.0),
            5 => call.sequence,
            6 => u64::from(call.unit),
            7 => u64::from(call.units),
            8 => call.direction as u64,
            9 => u64::from(unit.tag),
            10 => u64::from(call.unit == 0),
            11 => u64::from(call.unit + 1 == call.units),
            12 => u64::from(unit.skip_blocks),
            13 if write => u64::from(blocks),
            13 => u64::from(unit.blocks),
            _ => return -1,
        };
        value.cast_signed()
    }

    fn state_get(&mut self, pointer: i32, room: i32) -> Result<i32, wasmtime::Error> {
        self.check(pointer, room)?;
        let Some((call, _)) = &self.unit else { return Ok(-code::CONFIGURATION) };
        let (Direction::Forward, Some(state)) = (call.direction, &self.state) else { return Ok(-code::CONFIGURATION) };
        let mut bytes = [0u8; STATE_BYTES_MAX];
        let length = state.get(call.stream.0, call.sequence, &mut bytes).unwrap_or(0);
        if length > room.cast_unsigned() as usize {
            return Ok(-code::NO_ROOM);
        }
        self.output(pointer, length as i32)?.copy_from_slice(&bytes[..length]);
        Ok(length as i32)
    }

    fn state_put(&self, pointer: i32, length: i32) -> Result<i32, wasmtime::Error> {
        let bytes = self.input(pointer, length)?;
        let Some((call, _)) = &self.unit else { return Ok(-code::CONFIGURATION) };
        let (Direction::Forward, Some(state)) = (call.direction, &self.state) else { return Ok(-code::CONFIGURATION) };
        if bytes.len() > STATE_BYTES_MAX {
            return Ok(-code::NO_ROOM);
        }
        state.put(call.stream.0, call.sequence, bytes);
        Ok(0)
    }

    fn blob_get(&mut self, offset: i32, pointer: i32, length: i32) -> Result<i32, wasmtime::Error> {
        let arena = self.setting.arena.clone();
        let Some(slot) = self.unit.as_ref().map(|(call, _)| call.slot) else { return Ok(-code::CONFIGURATION) };
        let fits = arena.read_blob(slot, offset.cast_unsigned(), self.output(pointer, length)?);
        Ok(if fits { length } else { -code::NO_ROOM })
    }

    fn blob_put(&self, offset: i32, pointer: i32, length: i32) -> Result<i32, wasmtime::Error> {
        let bytes = self.input(pointer, length)?;
        let Some(slot) = self.unit.as_ref().map(|(call, _)| call.slot) else { return Ok(-code::CONFIGURATION) };
        let fits = self.setting.arena.write_blob(slot, offset.cast_unsigned(), bytes);
        Ok(if fits { length } else { -code::NO_ROOM })
    }

    fn seal(&mut self, ranges: [i32; 4]) -> Result<i32, wasmtime::Error> {
        let (unit, key, incarnation) = (self.unit, self.setting.key, self.setting.incarnation);
        let keys = self.setting.keys.clone();
        let both = self.both(ranges)?;
        let Some((call, unit)) = unit.filter(|(call, _)| call.direction == Direction::Forward) else {
            return Ok(-code::CONFIGURATION);
        };
        let Some(key) = key else { return Ok(-code::CONFIGURATION) };
        let nonce = NonceParts { incarnation, stream: call.stream.0, sequence: call.sequence, unit: call.unit };
        Ok(answer(intrinsics::seal(&keys, key, &binding(&unit), &nonce, both.input, both.output)))
    }

    fn open(&mut self, ranges: [i32; 4]) -> Result<i32, wasmtime::Error> {
        let (unit, keys) = (self.unit, self.setting.keys.clone());
        let both = self.both(ranges)?;
        let Some((_, unit)) = unit else { return Ok(-code::CONFIGURATION) };
        Ok(answer(intrinsics::open(&keys, &binding(&unit), both.input, both.output)))
    }
}

struct Both<'a> {
    input: &'a [u8],
    output: &'a mut [u8],
    scratch: &'a mut Vec<u8>,
}

fn binding(unit: &Unit) -> Binding {
    let blocks = unit.raw_bytes / osier_domain::BLOCK_BYTES;
    Binding { slba: unit.slba, blocks, raw_bytes: unit.raw_bytes, tag: unit.tag }
}

fn answer(result: Result<usize, i32>) -> i32 {
    match result {
        Ok(length) => length as i32,
        Err(code) => -code,
    }
}

/// Takes the fuel of an import's work from an untrusted actor, so that cheap calls of dear imports are bounded
/// as everything else is. Small sums are taken together: taking one costs half as much as the way here.
#[inline(always)]
fn spend(caller: &mut Caller<'_, Context>, fixed: u64, bytes: i32, quarters: u64) -> wasmtime::Result<()> {
    let context = caller.data_mut();
    if !context.metered {
        return Ok(());
    }
    // A longer range traps for being out of range.
    let bytes = (bytes.cast_unsigned() as usize).min(context.bytes);
    context.owed += fixed + bytes as u64 * quarters / 4;
    if context.owed < OWED_MAX { Ok(()) } else { settle(caller) }
}

#[inline(never)]
fn settle(caller: &mut Caller<'_, Context>) -> wasmtime::Result<()> {
    let owed = std::mem::take(&mut caller.data_mut().owed);
    let left = caller.get_fuel()?;
    caller.set_fuel(left.saturating_sub(owed))?;
    if left < owed { Err(Trap::OutOfFuel.into()) } else { Ok(()) }
}

/// The imports of `docs/abi.md` section 4.
fn linker(engine: &wasmtime::Engine) -> wasmtime::Result<Linker<Context>> {
    let mut linker = Linker::new(engine);
    link_facts(&mut linker)?;
    link_state(&mut linker)?;
    link_engines(&mut linker)?;
    Ok(linker)
}

type C<'a> = Caller<'a, Context>;

fn link_facts(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    let m = IMPORT_MODULE;
    linker.func_wrap(m, "log", |mut c: C<'_>, level: i32, pointer: i32, length: i32| {
        let shown = length.cast_unsigned().min(LOG_BYTES_MAX as u32).cast_signed();
        spend(&mut c, cost::LOG, 0, 0)?;
        c.data().check(pointer, length)?;
        let text = String::from_utf8_lossy(c.data().input(pointer, shown)?).into_owned();
        c.data_mut().log(Speaker::Guest, level.cast_unsigned(), text);
        wasmtime::Result::Ok(())
    })?;
    linker.func_wrap(m, "unit_info", |mut c: C<'_>, field: i32| {
        spend(&mut c, cost::UNIT_INFO, 0, 0)?;
        wasmtime::Result::Ok(c.data().unit_info(field.cast_unsigned()))
    })?;
    linker.func_wrap(m, "param", |mut c: C<'_>, pointer: i32, room: i32| {
        let params = c.data().setting.params.clone();
        spend(&mut c, cost::STATE, 0, 0)?;
        let shown = params.len().min(room.cast_unsigned() as usize);
        c.data_mut().output(pointer, room)?[..shown].copy_from_slice(&params.as_bytes()[..shown]);
        wasmtime::Result::Ok(params.len() as i32)
    })?;
    linker.func_wrap(m, "record_next", |mut c: C<'_>, pointer: i32, length: i32, from: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_SCAN)?;
        wasmtime::Result::Ok(intrinsics::record_next(c.data().input(pointer, length)?, from.cast_unsigned()))
    })?;
    Ok(())
}

fn link_state(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    let m = IMPORT_MODULE;
    linker.func_wrap(m, "state_get", |mut c: C<'_>, pointer: i32, room: i32| {
        spend(&mut c, cost::STATE, 0, 0)?;
        c.data_mut().state_get(pointer, room)
    })?;
    linker.func_wrap(m, "state_put", |mut c: C<'_>, pointer: i32, length: i32| {
        spend(&mut c, cost::STATE, 0, 0)?;
        c.data().state_put(pointer, length)
    })?;
    linker.func_wrap(m, "blob_get", |mut c: C<'_>, offset: i32, pointer: i32, length: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_SCAN)?;
        c.data_mut().blob_get(offset, pointer, length)
    })?;
    linker.func_wrap(m, "blob_put", |mut c: C<'_>, offset: i32, pointer: i32, length: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_SCAN)?;
        c.data().blob_put(offset, pointer, length)
    })?;
    Ok(())
}

fn link_engines(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    let m = IMPORT_MODULE;
    linker.func_wrap(m, "crc32c", |mut c: C<'_>, seed: i32, pointer: i32, length: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_SCAN)?;
        let crc = intrinsics::crc32c(seed.cast_unsigned(), c.data().input(pointer, length)?);
        wasmtime::Result::Ok(crc.cast_signed())
    })?;
    linker.func_wrap(m, "aead_seal", |mut c: C<'_>, from: i32, length: i32, to: i32, room: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_AEAD)?;
        c.data_mut().seal([from, length, to, room])
    })?;
    linker.func_wrap(m, "aead_open", |mut c: C<'_>, from: i32, length: i32, to: i32, room: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_AEAD)?;
        c.data_mut().open([from, length, to, room])
    })?;
    linker.func_wrap(m, "lz4_compress", |mut c: C<'_>, from: i32, length: i32, to: i32, room: i32| {
        spend(&mut c, cost::SMALL, length, cost::QUARTERS_COMPRESS)?;
        let both = c.data_mut().both([from, length, to, room])?;
        wasmtime::Result::Ok(answer(intrinsics::lz4_compress(both.input, both.output, both.scratch)))
    })?;
    linker.func_wrap(m, "lz4_decompress", |mut c: C<'_>, from: i32, length: i32, to: i32, room: i32| {
        // A few bytes of input can make any length of output.
        spend(&mut c, cost::SMALL, room, cost::QUARTERS_DECOMPRESS)?;
        let both = c.data_mut().both([from, length, to, room])?;
        wasmtime::Result::Ok(answer(intrinsics::lz4_decompress(both.input, both.output)))
    })?;
    Ok(())
}
