//! What a domain process works with: its actors, the owner records, the stamps of migrations, the planned
//! death of a test. It is the domain's environment; the device's adds the model's idea of time.

use std::sync::Arc;

use osier_actor::{Arena, Runner};
use osier_device::{Compute, Engine};
use osier_domain::message::Request;
use osier_domain::migrate::{CheckpointError, GLOBALS_MAX};
use osier_domain::{ActorId, Call, Direction, Env, Nanos, Outcome, OwnerRecord, STREAMS_MAX, Side, Status, Step, Tag};

use crate::bootstrap::Crash;
use crate::client::note_failure;
use crate::clock;
use crate::control::{Control, FOUND_ASLEEP, FOUND_AWAITED, FOUND_MID_REQUEST, Stamp};
use crate::record::Record;
use crate::rest::Rest;

/// How often a stage that waits for a device in thermal shutdown looks again.
const SHUTDOWN_LOOK_NS: u64 = 1_000_000;
/// Bytes of a chunk where no model says how many: some ten microseconds of this processor at the 200 MB/s of plain
/// WebAssembly, and one to five with an intrinsic. An actor that moves waits for one at its source, and is not seen to
/// serve before one has run at its destination.
const WASM_CHUNK_BYTES: u32 = 2048;
const INTRINSIC_CHUNK_BYTES: u32 = 8192;

/// The smallest piece of a chunk.
const PIECE_BYTES_MIN: u32 = 256;
/// The last piece counts for one in so many in an actor's pace.
const PACE_PIECES: u64 = 8;

/// How the chunks of one actor are cut. A chunk of the model is one call of its engine; this machine may take longer
/// for it than the model, and an actor that is to leave would wait for that. So it is computed in pieces that take at
/// most `chunk_ns_max` here, and charged as one call.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    /// Bytes of the present chunk that earlier pieces did.
    done: u32,
    /// The last piece did not end its unit.
    yielded: bool,
    /// Nanoseconds that this machine takes for a kibibyte, forward and inverse; 0 while they are not known.
    pace: [u64; 2],
}

impl Chunk {
    /// Bytes of the present chunk that are done, where the model's chunks have `chunk` bytes: they get shorter when it
    /// throttles, and what was begun before is then over.
    fn begun(&self, chunk: u32) -> u32 {
        if self.done < chunk { self.done } else { 0 }
    }

    /// The next piece of a chunk of `chunk` bytes: what takes at most `limit_ns` here.
    fn piece(&self, chunk: u32, direction: Direction, limit_ns: u64, unknown: u32) -> u32 {
        let fits = match self.pace[direction as usize] {
            0 => u64::from(unknown),
            pace => limit_ns * 1024 / pace,
        };
        u32::try_from(fits).unwrap_or(u32::MAX).max(PIECE_BYTES_MIN).min(chunk - self.begun(chunk))
    }

    /// A piece was computed.
    fn computed(&mut self, direction: Direction, outcome: &Outcome, ns: u64) {
        self.yielded = matches!(outcome, Outcome::Yielded { .. });
        let (Outcome::Done { bytes } | Outcome::Yielded { bytes }) = *outcome else { return };
        if bytes < PIECE_BYTES_MIN {
            return;
        }
        let pace = &mut self.pace[direction as usize];
        let found = (ns * 1024 / u64::from(bytes)).max(1);
        // A processor that was taken away in the middle says little about the next piece.
        *pace =
            if *pace == 0 { found } else { ((PACE_PIECES - 1) * *pace + found.min(2 * *pace)).div_ceil(PACE_PIECES) };
    }

    /// A piece of so many bytes was charged, of a chunk of `chunk` bytes.
    fn charged(&mut self, bytes: u32, chunk: u32) {
        let done = self.begun(chunk) + bytes;
        self.done = if self.yielded && done < chunk { done } else { 0 };
    }
}

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
    /// How each actor's chunks are cut where a model says how long they are.
    chunks: Vec<Chunk>,
    /// How its thread waits.
    pub rest: Rest,
    crash: Option<Crash>,
    passed: u64,
}

impl Machine {
    /// Everything together.
    pub fn new(side: Side, runner: Runner, records: Vec<Record>, control: Control) -> Machine {
        let arena = runner.arena().clone();
        let records_count = records.len();
        let rest = Rest::new(side, control.clone());
        let engines = vec![Engine::Wasm; records_count];
        Machine {
            side,
            runner,
            records,
            control,
            arena,
            engines,
            drain_max_ns: u64::MAX,
            chunks: vec![Chunk::default(); records_count],
            rest,
            crash: None,
            passed: 0,
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
        if self.compute.is_none() {
            return self.machine.runner.run(call, word);
        }
        let runner = &mut self.machine.runner;
        let before_ns = runner.usage(call.actor).busy_ns;
        let outcome = runner.run(call, word);
        let ns = runner.usage(call.actor).busy_ns - before_ns;
        self.machine.chunks[usize::from(call.actor.0)].computed(call.direction, &outcome, ns);
        outcome
    }

    fn chunk_bytes(&mut self, actor: ActorId, direction: Direction) -> u32 {
        let index = usize::from(actor.0);
        let engine = self.machine.engines[index];
        let unmodelled = match engine {
            Engine::Lz4 | Engine::Wasm => WASM_CHUNK_BYTES,
            Engine::Aes | Engine::Crc32c => INTRINSIC_CHUNK_BYTES,
        };
        let Some(compute) = &self.compute else { return unmodelled };
        let limit_ns = self.machine.drain_max_ns;
        self.machine.chunks[index].piece(compute.chunk_bytes(engine), direction, limit_ns, unmodelled)
    }

    fn charge(&mut self, start: Nanos, actor: ActorId, _: Direction, bytes: u32) -> Nanos {
        let engine = self.machine.engines[usize::from(actor.0)];
        match &mut self.compute {
            Some(compute) if bytes > 0 => {
                let core = Some(u32::from(actor.0) % compute.cores().max(1));
                let chunk = &mut self.machine.chunks[usize::from(actor.0)];
                let chunk_bytes = compute.chunk_bytes(engine);
                let (due, modelled_ns) = match chunk.begun(chunk_bytes) {
                    0 => (compute.run(start, core, engine, bytes), compute.duration_ns(engine, bytes)),
                    _ => (compute.go_on(start, core, engine, bytes), compute.piece_ns(engine, bytes)),
                };
                chunk.charged(bytes, chunk_bytes);
                // A chunk that failed has no bytes: it stays charged with the time that it took here.
                if let Some(modelled_ns) = modelled_ns {
                    self.machine.runner.charge_modelled(actor, modelled_ns);
                }
                // `allowed_at` keeps stages from beginning while the device is shut down.
                due.unwrap_or(start)
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
        self.machine.chunks[usize::from(actor.0)].done = 0;
        self.machine.runner.import(actor, globals);
    }

    fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]) {
        self.machine.chunks[usize::from(actor.0)].done = 0;
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
        let asleep = machine.rest.slept_at(machine.control.stamped(actor, Stamp::Decided));
        let bits = [(mid_request, FOUND_MID_REQUEST), (awaited, FOUND_AWAITED), (asleep, FOUND_ASLEEP)];
        let found = bits.iter().filter(|(holds, _)| *holds).fold(0, |found, (_, bit)| found | bit);
        machine.control.stamp(actor, Stamp::Found, found);
        machine.rest.arrived();
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

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT_NS: u64 = 50_000;

    /// Computes a unit of `unit` bytes in a model whose chunks have `chunk`, on a machine that takes `pace` for a
    /// kibibyte: the pieces' bytes, and which of them are charged as calls.
    fn pieces(chunk: &mut Chunk, unit: u32, modelled: u32, pace: u64) -> Vec<(u32, bool)> {
        let (mut left, mut found) = (unit, Vec::new());
        while left > 0 {
            let bytes = chunk.piece(modelled, Direction::Forward, LIMIT_NS, WASM_CHUNK_BYTES).min(left);
            left -= bytes;
            let outcome = if left == 0 { Outcome::Done { bytes } } else { Outcome::Yielded { bytes } };
            chunk.computed(Direction::Forward, &outcome, u64::from(bytes) * pace / 1024);
            found.push((bytes, chunk.done == 0));
            chunk.charged(bytes, modelled);
        }
        found
    }

    #[test]
    fn a_piece_takes_no_longer_than_a_chunk_may_on_this_machine_either() {
        // 200 MB/s here, 1 GB/s in the model; and the other way round.
        for (pace, modelled) in [(5_120, 50_000), (1_024, 10_000), (5_120, 300), (400_000, 50_000)] {
            let mut chunk = Chunk::default();
            pieces(&mut chunk, 65_536, modelled, pace);
            for (bytes, _) in pieces(&mut chunk, 65_536, modelled, pace) {
                let ns = u64::from(bytes) * pace / 1024;
                assert!(ns <= LIMIT_NS || bytes <= PIECE_BYTES_MIN, "{bytes} bytes take {ns} ns");
                assert!(bytes <= modelled, "{bytes} bytes are more than a chunk of the model");
            }
        }
    }

    #[test]
    fn the_model_has_as_many_calls_however_many_pieces_there_are() {
        for (unit, modelled) in [(65_536u32, 50_000u32), (65_536, 16_384), (16_384, 50_000), (4_096, 300)] {
            for pace in [100, 5_120, 100_000] {
                let mut chunk = Chunk::default();
                pieces(&mut chunk, unit, modelled, pace);
                let found = pieces(&mut chunk, unit, modelled, pace);
                let calls = found.iter().filter(|(_, is_call)| *is_call).count();
                assert_eq!(calls as u32, unit.div_ceil(modelled), "{unit} bytes, {modelled} a chunk, pace {pace}");
                assert_eq!(found.iter().map(|(bytes, _)| bytes).sum::<u32>(), unit);
            }
        }
    }

    #[test]
    fn a_model_that_throttles_in_the_middle_of_a_chunk_begins_another() {
        let mut chunk = Chunk::default();
        let first = chunk.piece(50_000, Direction::Forward, LIMIT_NS, WASM_CHUNK_BYTES);
        chunk.computed(Direction::Forward, &Outcome::Yielded { bytes: first }, 1_000);
        chunk.charged(first, 50_000);
        assert_eq!((chunk.begun(50_000), chunk.begun(1_000)), (first, 0));
        assert_eq!(chunk.piece(1_000, Direction::Forward, LIMIT_NS, WASM_CHUNK_BYTES), 1_000);
    }

    #[test]
    fn one_piece_in_which_the_processor_was_away_does_not_shrink_the_next_ones_much() {
        let mut chunk = Chunk::default();
        pieces(&mut chunk, 65_536, 50_000, 5_120);
        let before = chunk.piece(50_000, Direction::Forward, LIMIT_NS, 0);
        chunk.computed(Direction::Forward, &Outcome::Yielded { bytes: 10_000 }, 20_000_000);
        let after = chunk.piece(50_000, Direction::Forward, LIMIT_NS, 0);
        assert!(after < before && after > before * 3 / 4, "{before} and then {after}");
    }
}
