//! What a domain process works with: its actors, the owner records, the stamps of migrations, the planned
//! death of a test. It is the domain's environment; the device's adds the model's idea of time.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use osier_actor::{Arena, Runner};
use osier_device::{Compute, Engine};
use osier_domain::message::Request;
use osier_domain::migrate::{CheckpointError, GLOBALS_MAX};
use osier_domain::{ActorId, Call, Direction, Env, Nanos, Outcome, OwnerRecord, STREAMS_MAX, Side, Status, Step, Tag};

use osier_pmr::{Doorbell, Waiter};

use crate::bootstrap::Crash;
use crate::client::note_failure;
use crate::clock;
use crate::control::{Control, FOUND_ASLEEP, FOUND_AWAITED, FOUND_MID_REQUEST, Stamp};
use crate::record::Record;

/// How often a stage that waits for a device in thermal shutdown looks again.
const SHUTDOWN_LOOK_NS: u64 = 1_000_000;
/// Bytes of a chunk where no model says how many: some ten microseconds of this processor at the 200 MB/s of plain
/// WebAssembly, and one to five with an intrinsic. An actor that moves waits for one at its source, and is not seen to
/// serve before one has run at its destination.
const WASM_CHUNK_BYTES: u32 = 2048;
const INTRINSIC_CHUNK_BYTES: u32 = 8192;

/// What both domains have.
pub struct Machine {
    /// Which domain.
    pub side: Side,
    /// The actors.
    pub runner: Runner,
    /// Who owns them.
    pub records: Vec<Record>,
    /// The shared words.
    pub control: Control,
    /// The requests' buffers.
    pub arena: Arc<Arena>,
    /// The cost-model engine of each actor.
    pub engines: Vec<Engine>,
    /// How long the model may keep an actor that is to leave.
    pub drain_max_ns: u64,
    /// From when to when, in nanoseconds, its thread last slept in the kernel.
    slept: Range<u64>,
    crash: Option<Crash>,
    passed: u64,
}

impl Machine {
    /// Everything together.
    pub fn new(side: Side, runner: Runner, records: Vec<Record>, control: Control) -> Machine {
        let arena = runner.arena().clone();
        let engines = vec![Engine::Wasm; records.len()];
        Machine {
            side,
            runner,
            records,
            control,
            arena,
            engines,
            drain_max_ns: u64::MAX,
            slept: 0..0,
            crash: None,
            passed: 0,
        }
    }

    /// Waits for the bell, `look` or the time limit, and notes whether that was a sleep.
    pub fn wait(&mut self, waiter: &mut Waiter, bell: &Doorbell, limit: Duration, look: impl Fn() -> bool) {
        let (since, sleeps) = (clock::now().0, waiter.counts().sleeps);
        waiter.wait_for(bell, limit, || look().then_some(()));
        if waiter.counts().sleeps > sleeps {
            self.slept = since..clock::now().0;
        }
    }

    /// Plans a death, if it is this domain's.
    pub fn plan_crash(&mut self, crash: Option<Crash>) {
        self.crash = crash.filter(|c| c.device == (self.side == Side::Device));
    }

    /// A named point was passed.
    pub fn passed(&mut self, step: Step, actor: Option<ActorId>) {
        if let Some(actor) = actor {
            self.stamp(step, actor);
        }
        if let Some(crash) = self.crash.filter(|c| c.at() == Some(step)) {
            self.passed += 1;
            if self.passed == crash.nth {
                // The death that recovery has to survive: no unwinding, no destructors, no flushed buffers.
                let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
            }
        }
    }

    fn stamp(&self, step: Step, actor: ActorId) {
        let stamp = match step {
            Step::Routed => Stamp::Routed,
            Step::Ready => Stamp::Ready,
            Step::DoorbellHeard => Stamp::Heard,
            Step::Active => Stamp::Active,
            Step::FirstServed => Stamp::FirstServed,
            _ => return,
        };
        self.control.stamp(actor, stamp, clock::now().0);
        if stamp == Stamp::FirstServed {
            self.control.log_move(actor, self.side);
        }
    }
}

/// The environment of one turn: the machine and, on the device, the model that says how long a stage takes.
pub struct Turn<'a> {
    /// The machine.
    pub machine: &'a mut Machine,
    /// The model of the device's cores; `None` on the host and with model timing off.
    pub compute: Option<&'a mut Compute>,
}

impl Env for Turn<'_> {
    type Record = Record;

    fn record(&self, actor: ActorId) -> &Record {
        &self.machine.records[usize::from(actor.0)]
    }

    fn run(&mut self, call: &Call) -> Outcome {
        let word = self.record(call.actor).load();
        self.machine.runner.run(call, word)
    }

    fn chunk_bytes(&mut self, actor: ActorId, _: Direction) -> u32 {
        let engine = self.machine.engines[usize::from(actor.0)];
        match (&self.compute, engine) {
            (Some(compute), _) => compute.chunk_bytes(engine),
            (None, Engine::Lz4 | Engine::Wasm) => WASM_CHUNK_BYTES,
            (None, Engine::Aes | Engine::Crc32c) => INTRINSIC_CHUNK_BYTES,
        }
    }

    fn charge(&mut self, start: Nanos, actor: ActorId, _: Direction, bytes: u32) -> Nanos {
        let engine = self.machine.engines[usize::from(actor.0)];
        match &mut self.compute {
            Some(compute) if bytes > 0 => {
                // A chunk that failed has no bytes: it stays charged with the time that it took here.
                if let Some(modelled_ns) = compute.duration_ns(engine, bytes) {
                    self.machine.runner.charge_modelled(actor, modelled_ns);
                }
                let cores = compute.cores().max(1);
                // `allowed_at` keeps stages from beginning while the device is shut down.
                compute.run(start, Some(u32::from(actor.0) % cores), engine, bytes).unwrap_or(start)
            }
            _ => start,
        }
    }

    fn lanes(&self) -> usize {
        self.compute.as_ref().map_or(1, |compute| compute.cores().max(1) as usize)
    }

    fn drain_max_ns(&self) -> u64 {
        self.machine.drain_max_ns
    }

    fn allowed_at(&mut self, now: Nanos, actor: ActorId) -> Nanos {
        match &self.compute {
            Some(compute) if compute.speed_permille() == 0 => Nanos(now.0 + SHUTDOWN_LOOK_NS),
            _ => self.machine.runner.allowed_at(now, actor),
        }
    }

    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX] {
        self.machine.runner.export(actor)
    }

    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]) {
        self.machine.runner.import(actor, globals);
    }

    fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]) {
        self.machine.runner.reset(actor, gates);
    }

    fn next_tag(&mut self, request: &Request) -> Option<Tag> {
        self.machine.runner.next_tag(request)
    }

    fn deliver(&mut self, request: &Request) -> Result<u32, Status> {
        self.machine.runner.deliver(request)
    }

    fn note_failure(&mut self, request: &Request) {
        note_failure(&self.machine.arena, request.descriptor.slot, request.status);
    }

    fn adopted(&mut self, actor: ActorId, mid_request: bool, awaited: bool) {
        let machine = &*self.machine;
        let asleep = machine.slept.contains(&machine.control.stamped(actor, Stamp::Ready));
        let bits = [(mid_request, FOUND_MID_REQUEST), (awaited, FOUND_AWAITED), (asleep, FOUND_ASLEEP)];
        let found = bits.iter().filter(|(holds, _)| *holds).fold(0, |found, (_, bit)| found | bit);
        machine.control.stamp(actor, Stamp::Found, found);
    }

    fn first_begins(&mut self, actor: ActorId) {
        self.machine.control.stamp(actor, Stamp::FirstBegun, clock::now().0);
    }

    fn refused(&mut self, actor: ActorId, error: CheckpointError) {
        tracing::error!(actor = actor.0, %error, "an actor could not be taken over; stop the device and check it");
    }

    fn at(&mut self, step: Step, actor: Option<ActorId>) {
        self.machine.passed(step, actor);
    }
}
