//! Runs actors for one domain: what `osier_domain::Env` asks for and has to do with actors.
//!
//! Each domain has a runner with a warm twin of every actor. The twins' memories, shared state and the
//! arena are the same bytes; a runner touches an actor's bytes only while its side owns the actor, which is
//! checked on every entry.
//!
//! The runner keeps the unit table. What it finds there was written by another process and is checked first.
//! Whatever a guest does ends as an [`Outcome`]: a trap or a time-out fails the request, restores the
//! instance and leaves every other actor alone.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use osier_domain::arena::{Buffer, Layout, Unit};
use osier_domain::message::{FLAG_QUERY, Request};
use osier_domain::migrate::GLOBALS_MAX;
use osier_domain::{
    ActorId, BLOCK_BYTES, Call, Direction, Nanos, Outcome, OwnerState, Phase, STREAMS_MAX, Side, Status, Tag,
};

use crate::abi::{Answer, code_name, code_status};
use crate::account::{Share, Usage};
use crate::arena::Arena;
use crate::compile::{Engines, Flavour};
use crate::install::Facts;
use crate::intrinsics::KeyRing;
use crate::pipeline::Pipelines;
use crate::prepare::{Prepared, setting};
use crate::sandbox::{Buffers, Fault, Sandbox, SandboxError};
use crate::segment::Segment;
use crate::state::StateRing;
use crate::stopwatch::Stopwatch;

/// What a runner is made of. The segments are the same in both domains.
#[derive(Debug)]
pub struct Parts<'a> {
    /// Whose runner it is.
    pub side: Side,
    /// The pipelines.
    pub pipelines: &'a Pipelines,
    /// Their actors' code, in the order of their numbers.
    pub prepared: &'a [Prepared],
    /// Where the code was loaded.
    pub engines: &'a Engines,
    /// [`Arena::object_bytes`] of the pipelines' layout.
    pub arena: Segment,
    /// For each actor [`Prepared::memory_bytes`].
    pub memories: Vec<Segment>,
    /// For each actor that keeps state [`Prepared::state_bytes`].
    pub states: Vec<Option<Segment>>,
    /// The keys.
    pub keys: Arc<KeyRing>,
    /// The device's incarnation: counted up, in the image, at each start.
    pub incarnation: u32,
    /// Map every page now rather than at the first touch.
    pub populate: bool,
}

/// Why there is no runner.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// An actor does not come up.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The shared region cannot be mapped.
    #[error("mapping {what} of the shared region: {error}")]
    Map {
        /// What.
        what: String,
        /// What the system says.
        error: io::Error,
    },
}

struct Actor {
    sandbox: Sandbox,
    label: String,
    trusted: bool,
    /// Room for output that the guest is told of, in bytes; no more than there is.
    capacity: u32,
    /// Offsets of the private buffers of an untrusted actor.
    bounce: [u32; 2],
    usage: Usage,
    tenant: usize,
    /// What its tenant was charged for the last chunk, in nanoseconds, until the model says otherwise.
    measured_ns: u64,
}

/// One domain's actors.
pub struct Runner {
    side: Side,
    arena: Arc<Arena>,
    actors: Vec<Actor>,
    shares: Vec<Share>,
    /// Pipelines without stages of this tag have nothing to undo.
    known: Vec<Tag>,
    stopwatch: Stopwatch,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner({}, {} actors)", self.side, self.actors.len())
    }
}

impl Runner {
    /// Instantiates every actor and places its memory. The shared objects keep what they hold; after the
    /// first start and after a death whoever owns an actor calls [`Runner::reset`].
    ///
    /// # Errors
    /// [`RunnerError`], naming the actor.
    ///
    /// # Panics
    /// If the parts do not belong together.
    pub fn new(parts: Parts<'_>) -> Result<Runner, RunnerError> {
        let count = parts.pipelines.actors().len();
        assert!(parts.prepared.len() == count && parts.memories.len() == count && parts.states.len() == count);
        let layout = parts.pipelines.layout();
        let map = |what: &str| {
            let what = what.to_owned();
            move |error| RunnerError::Map { what, error }
        };
        let arena = Arc::new(Arena::new(&parts.arena, layout).map_err(map("the arena"))?);
        let mut by_tenant: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut actors, mut shares) = (Vec::new(), Vec::new());
        for (index, definition) in parts.pipelines.actors().iter().enumerate() {
            let tenant = *by_tenant.entry(&definition.tenant).or_insert_with(|| {
                shares.push(Share::new(definition.limits.cpu_permille));
                shares.len() - 1
            });
            let prepared = &parts.prepared[index];
            let setting = setting(definition, &parts.keys, parts.incarnation, &arena);
            let mut sandbox = Sandbox::new(parts.engines, &prepared.code, &prepared.facts, setting)?;
            let trusted = prepared.code.flavour == Flavour::Trusted;
            let memory = parts.memories[index].clone();
            assert_eq!(memory.bytes(), prepared.memory_bytes(&layout), "bytes of an actor's memory");
            let mut pieces = vec![memory];
            pieces.extend(trusted.then(|| parts.arena.clone()));
            let state = match &parts.states[index] {
                Some(segment) => Some(StateRing::new(segment, &layout).map_err(map("an actor's state"))?),
                None => None,
            };
            assert_eq!(state.is_some(), prepared.facts.uses_state, "a state for those that keep one");
            sandbox.attach(parts.engines, &pieces, state, parts.populate)?;
            let own = sandbox.own_bytes();
            actors.push(Actor {
                sandbox,
                label: definition.label(),
                trusted,
                capacity: capacity(definition.unit_bytes).min(layout.unit_capacity()),
                bounce: [own, own + Facts::bounce_bytes(&layout) as u32],
                usage: Usage::default(),
                tenant,
                measured_ns: 0,
            });
        }
        let known = parts.pipelines.plan().pipelines().iter().map(|p| p.tag).collect();
        Ok(Runner { side: parts.side, arena, actors, shares, known, stopwatch: Stopwatch::new() })
    }

    /// The arena.
    pub fn arena(&self) -> &Arc<Arena> {
        &self.arena
    }

    /// Runs one chunk. `owner_word` is the actor's owner word as its record holds it now.
    ///
    /// # Panics
    /// If the word does not give the actor to this side: the state machine may not run it then.
    pub fn run(&mut self, call: &Call, owner_word: u64) -> Outcome {
        self.check_owner(call.actor, owner_word);
        let arena = &*self.arena;
        let actor = &mut self.actors[usize::from(call.actor.0)];
        actor.measured_ns = 0;
        let Some(unit) = arena.unit(call.slot, call.unit) else {
            actor.usage.failures += 1;
            actor.sandbox.note(format!("unit {} of slot {} has a damaged row", call.unit, call.slot.0));
            return Outcome::Failed(Status::INTEGRITY);
        };
        if !concerns(call, &unit) || !actor.sandbox.has(call.direction) || unit.bytes == 0 {
            return Outcome::Done { bytes: 0 };
        }
        let before = if call.resume { arena.progress(call.slot) } else { 0 };
        let (buffers, output) = actor.buffers(arena, call, &unit);
        if !actor.trusted && !call.resume {
            let fill = |bytes: &mut [u8]| arena.read_unit(call.slot, call.unit, &unit, 0, bytes);
            actor.sandbox.write_memory(buffers.input, fill, unit.bytes);
        }
        let begin = self.stopwatch.begin();
        let result = if call.resume && !actor.sandbox.resumes() {
            Ok(i64::MIN)
        } else {
            actor.sandbox.call(call, &unit, &buffers, unit.bytes)
        };
        actor.measured_ns = self.stopwatch.since(begin);
        actor.usage.calls += 1;
        actor.usage.busy_ns += actor.measured_ns;
        actor.usage.fuel += actor.sandbox.fuel_used(unit.bytes);
        self.shares[actor.tenant].charge(actor.measured_ns);
        actor.conclude(arena, call, unit, before, output, result)
    }

    /// The earliest time at which the actor's tenant has CPU share left.
    pub fn allowed_at(&mut self, now: Nanos, actor: ActorId) -> Nanos {
        let tenant = self.actors[usize::from(actor.0)].tenant;
        self.shares[tenant].allowed_at(now)
    }

    /// Charges the last chunk of an actor to its tenant as the time that the model says it took, in place of the
    /// time that was measured: on a device with a model, a share is one of the modelled processor. Untrusted code
    /// may take any time whatever the model says, at the cost of everybody here, and is charged the longer of the two.
    pub fn charge_modelled(&mut self, actor: ActorId, modelled_ns: u64) {
        let actor = &mut self.actors[usize::from(actor.0)];
        // Taken: a chunk that is charged twice must not give the measured time back twice.
        let measured_ns = std::mem::take(&mut actor.measured_ns);
        let used_ns = if actor.trusted { modelled_ns } else { modelled_ns.max(measured_ns) };
        self.shares[actor.tenant].charge_instead(measured_ns, used_ns);
    }

    /// The mutable globals of an actor that leaves.
    pub fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX] {
        self.actors[usize::from(actor.0)].sandbox.export()
    }

    /// Sets the globals of an actor that arrives.
    pub fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]) {
        self.actors[usize::from(actor.0)].sandbox.import(globals);
    }

    /// Makes an actor afresh, with the shared state committed at `gates`. For its owner alone.
    pub fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]) {
        let actor = &mut self.actors[usize::from(actor.0)];
        actor.sandbox.restore();
        actor.usage.resets += 1;
        if let Some(state) = actor.sandbox.state() {
            state.roll_back(gates);
        }
    }

    /// Of a read: how the first unit was written that is not decoded yet. A request that has been through
    /// stages (`visited`) has the units of its present tag decoded, which is noted in the unit table.
    pub fn next_tag(&mut self, request: &Request) -> Option<Tag> {
        let descriptor = &request.descriptor;
        let mut next = None;
        for index in 0..descriptor.units {
            // A damaged row is found by `deliver`.
            let Some(mut unit) = self.arena.unit(descriptor.slot, index) else { continue };
            let decoded = request.visited > 0 && unit.tag == descriptor.tag.0;
            if decoded {
                unit.tag = Tag::NONE.0;
                self.arena.set_unit(descriptor.slot, index, &unit);
            } else if next.is_none() && unit.tag != Tag::NONE.0 {
                next = Some(Tag(unit.tag));
            }
        }
        next
    }

    /// Of a read that is decoded: puts the wanted bytes where the client looks for them, zeros where a stage
    /// left less than was written; their number. Of a query: all that the stages put out, unit after unit.
    ///
    /// # Errors
    /// A status: [`Status::INTEGRITY`] for a damaged unit table, [`Status::ACTOR_FAILED`] if the stages put
    /// out more than there is room for.
    pub fn deliver(&mut self, request: &Request) -> Result<u32, Status> {
        let descriptor = &request.descriptor;
        let query = descriptor.flags & FLAG_QUERY != 0;
        let room = descriptor.output_bytes.min(self.arena.layout().raw_bytes());
        let (mut covered, mut total) = (0u32, 0u32);
        for index in 0..descriptor.units {
            let unit = self.arena.unit(descriptor.slot, index).ok_or(Status::INTEGRITY)?;
            if query {
                if unit.bytes > room - total {
                    return Err(Status::ACTOR_FAILED);
                }
                self.arena.place_all(descriptor.slot, index, &unit, total);
                total += unit.bytes;
                continue;
            }
            let blocks = u32::from(unit.blocks);
            if unit.request_block != covered || blocks > descriptor.blocks - covered {
                return Err(Status::INTEGRITY);
            }
            if unit.bytes > unit.raw_bytes || (u32::from(unit.skip_blocks) + blocks) * BLOCK_BYTES > unit.raw_bytes {
                return Err(Status::ACTOR_FAILED);
            }
            self.arena.place_blocks(descriptor.slot, index, &unit);
            covered += blocks;
        }
        if query {
            return Ok(total);
        }
        if covered != descriptor.blocks || covered * BLOCK_BYTES > room {
            return Err(Status::INTEGRITY);
        }
        Ok(covered * BLOCK_BYTES)
    }

    /// What an actor used here so far.
    pub fn usage(&self, actor: ActorId) -> Usage {
        self.actors[usize::from(actor.0)].usage
    }

    /// Takes the latest messages of an actor, level and text, which went to the log as they came, and how many were
    /// left out so far.
    pub fn take_logs(&mut self, actor: ActorId) -> (Vec<(u32, String)>, u64) {
        self.actors[usize::from(actor.0)].sandbox.take_logs()
    }

    /// Whether extents of this tag can be decoded here.
    pub fn knows(&self, tag: Tag) -> bool {
        tag == Tag::NONE || self.known.contains(&tag.pipeline())
    }

    fn check_owner(&self, actor: ActorId, word: u64) {
        let state = OwnerState::decode(word);
        assert!(
            state.is_some_and(|s| s.owner == self.side && s.phase == Phase::Active),
            "{actor:?} is run by the {} domain, its owner word says {state:?}",
            self.side
        );
    }
}

/// Room for output that guests of a pipeline are told of: `docs/abi.md` section 2.1.
fn capacity(unit_bytes: u32) -> u32 {
    let layout = Layout { slots: 1, request_blocks_max: 1, unit_blocks: (unit_bytes / BLOCK_BYTES) as u8 };
    layout.unit_capacity()
}

/// Whether the unit goes through the stage: on a write it is tagged with the pipeline, on a read with the
/// pipeline and the stages that were left out; others are decoded by another group or need no decoding.
fn concerns(call: &Call, unit: &Unit) -> bool {
    match call.direction {
        Direction::Forward => Tag(unit.tag).pipeline() == call.tag.pipeline(),
        Direction::Inverse => unit.tag == call.tag.0,
    }
}

impl Actor {
    /// Where the guest finds its input and puts its output, and the buffer of the arena that the output is for.
    fn buffers(&self, arena: &Arena, call: &Call, unit: &Unit) -> (Buffers, Buffer) {
        let output = unit.buffer.next();
        let (input_at, output_at) = if self.trusted {
            let place = |buffer| {
                let at = arena.unit_at(call.slot, call.unit, buffer, unit.request_block);
                self.sandbox.own_bytes() + at as u32
            };
            (place(unit.buffer), place(output))
        } else {
            (self.bounce[0], self.bounce[1])
        };
        let buffers =
            Buffers { input: input_at, input_bytes: unit.bytes, output: output_at, output_capacity: self.capacity };
        (buffers, output)
    }

    fn conclude(
        &mut self,
        arena: &Arena,
        call: &Call,
        unit: Unit,
        before: u32,
        output: Buffer,
        result: Result<i64, Fault>,
    ) -> Outcome {
        let result = match result {
            Ok(result) => result,
            Err(fault) => return self.fault(arena, call, fault),
        };
        match Answer::read(result, unit.bytes, self.capacity, before, call.direction) {
            Answer::Done(length) => {
                if !self.trusted {
                    let bytes = self.sandbox.memory(self.bounce[1], length);
                    arena.write_unit(call.slot, call.unit, output, unit.request_block, bytes);
                }
                let worked = unit.bytes - before.min(unit.bytes);
                arena.set_output(call.slot, call.unit, output, length);
                if call.resume {
                    arena.set_progress(call.slot, 0);
                }
                self.usage.bytes_in += u64::from(worked);
                self.usage.bytes_out += u64::from(length);
                Outcome::Done { bytes: worked }
            }
            Answer::Yielded(consumed) if self.sandbox.resumes() => {
                arena.set_progress(call.slot, consumed);
                self.usage.bytes_in += u64::from(consumed - before);
                Outcome::Yielded { bytes: consumed - before }
            }
            Answer::Yielded(_) => {
                self.fail(arena, call, Status::ACTOR_FAILED, "it yielded and exports no osier_resume")
            }
            Answer::Failed(code) => {
                let status = code_status(code, call.direction);
                self.fail(arena, call, status, code_name(code))
            }
            Answer::Malformed => {
                let text = format!("it answered {result}, which is out of range or no answer of the ABI");
                self.fail(arena, call, Status::ACTOR_FAILED, &text)
            }
        }
    }

    fn fail(&mut self, arena: &Arena, call: &Call, status: Status, why: &str) -> Outcome {
        self.usage.failures += 1;
        arena.set_progress(call.slot, 0);
        self.sandbox.note(format!(
            "request {} of stream {}, unit {}, failed in {}: {why}",
            call.sequence, call.stream.0, call.unit, self.label
        ));
        self.discard(call);
        Outcome::Failed(status)
    }

    /// A trap leaves the memory in any state: it is restored, and this request's shared state dropped.
    fn fault(&mut self, arena: &Arena, call: &Call, fault: Fault) -> Outcome {
        let (status, count) = match fault {
            Fault::Timeout => (Status::ACTOR_TIMEOUT, &mut self.usage.timeouts),
            Fault::Trapped => (Status::ACTOR_TRAPPED, &mut self.usage.traps),
        };
        *count += 1;
        self.usage.resets += 1;
        arena.set_progress(call.slot, 0);
        let message = format!(
            "request {} of stream {}, unit {}, failed in {}: {}; the actor is made afresh",
            call.sequence,
            call.stream.0,
            call.unit,
            self.label,
            self.sandbox.fault_message()
        );
        self.sandbox.note(message);
        self.sandbox.restore();
        self.discard(call);
        Outcome::Failed(status)
    }

    fn discard(&mut self, call: &Call) {
        if let (Direction::Forward, Some(state)) = (call.direction, self.sandbox.state()) {
            state.discard(call.stream.0, call.sequence);
        }
    }
}
