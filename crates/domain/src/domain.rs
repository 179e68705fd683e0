//! The state machine of one domain.
//!
//! An actor here is in one of five places:
//!
//! ```text
//!           begin_move            border reached            Prepare arrives
//!   Owner ------------> Leaving ----------------> Left -----------------------> Coming
//!     ^                                            |  Refuse arrives: back to Owner  |
//!     |<-------------------------------------------+                                 |
//!     |<------------------------------- Adopt arrives, record says Active -----------+
//!   Away --Prepare arrives--> Coming
//! ```
//!
//! Invariants:
//! 1. A stage runs only for an actor in `Owner` or, to the end of the chunk that runs, in `Leaving`.
//! 2. On a write, an actor takes the requests of a stream in the order of their sequence, each once:
//!    `gates[stream]` is the last one that went through, and the next one is the only one it takes.
//!    A failed request and a skipped stage pass the gate without being run. It follows that all writes of a
//!    stream go through one pipeline, and that what goes through none (trim, flush) has a stream of its own.
//! 3. What waits here and belongs to an actor that is elsewhere is sent on, in order. The queues are bounded
//!    by the requests in flight, which the arena's slots bound.

use std::collections::{BTreeMap, VecDeque};

use crate::message::{FLAG_QUERY, Kind, Message, Opcode, Request};
use crate::migrate::{self, Checkpoint, CheckpointError, GLOBALS_MAX, OwnerRecord, Partial, Resolution};
use crate::plan::{ActorId, Direction, Plan, Side, SlotId, StreamId, Tag};
use crate::{Nanos, STREAMS_MAX, Status};

/// One bounded piece of a stage's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Whose stage.
    pub actor: ActorId,
    /// Which way.
    pub direction: Direction,
    /// The request's buffers.
    pub slot: SlotId,
    /// Which unit.
    pub unit: u16,
    /// How many units the request has.
    pub units: u16,
    /// Go on where the actor yielded, rather than begin.
    pub resume: bool,
    /// Yield after about this many bytes of input.
    pub budget_bytes: u32,
    /// The pipeline whose stage this is; units of another one are left alone.
    pub tag: Tag,
    /// The stream, for actors that keep state by stream.
    pub stream: StreamId,
    /// The request's place in it.
    pub sequence: u64,
}

/// Where in a domain a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whereabouts {
    /// At an actor: it waits for its turn or for an earlier request of its stream, or is worked on.
    At(ActorId),
    /// It is to be sent to the other domain.
    Outbox,
    /// It is to be handed to the device core.
    Store,
    /// It has ended, and waits for an earlier one of its stream to end.
    Ended,
}

/// How a chunk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The unit is through; `bytes` of input were worked on in this chunk.
    Done {
        /// Input bytes of this chunk, for the cost model.
        bytes: u32,
    },
    /// The budget is used up; there is more of the unit to do.
    Yielded {
        /// Input bytes of this chunk, for the cost model.
        bytes: u32,
    },
    /// The request fails with this status.
    Failed(Status),
}

/// The named points at which a test may kill a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Step {
    /// Source: the decision is made, new requests go to the destination.
    Routed = 0,
    /// Source: the running chunk has ended.
    Drained = 1,
    /// Source: the checkpoint is written, `Ready` is not.
    CheckpointWritten = 2,
    /// Source: `Ready` is set, the doorbell has not rung.
    Ready = 3,
    /// Destination: the doorbell has been heard.
    DoorbellHeard = 4,
    /// Destination: the actor is rebuilt, `Active` is not set.
    Rebuilt = 5,
    /// Destination: `Active` is set, nothing has been served.
    Active = 6,
    /// Destination: the first chunk after the adoption has run.
    FirstServed = 7,
    /// Write path: a stage is about to run.
    StageBegins = 8,
    /// Write path: a stage has run, its output is not passed on.
    StageEnds = 9,
    /// Write path, host: the request is in its slot, not yet submitted.
    SlotFilled = 10,
    /// Write path, device: all stages are through, the write buffer has nothing yet.
    StoreBegins = 11,
    /// Write path, device: the write buffer has the request, its completion is not sent.
    StoreEnds = 12,
    /// Write path, host: the completion is here, the client does not know.
    CompletionHeard = 13,
    /// Device: a page is about to be programmed.
    ProgramBegins = 14,
    /// Device: a page has been programmed, the model does not know.
    ProgramEnds = 15,
}

impl Step {
    /// Every step.
    pub const ALL: [Step; 16] = [
        Step::Routed,
        Step::Drained,
        Step::CheckpointWritten,
        Step::Ready,
        Step::DoorbellHeard,
        Step::Rebuilt,
        Step::Active,
        Step::FirstServed,
        Step::StageBegins,
        Step::StageEnds,
        Step::SlotFilled,
        Step::StoreBegins,
        Step::StoreEnds,
        Step::CompletionHeard,
        Step::ProgramBegins,
        Step::ProgramEnds,
    ];

    /// The step of a name, as `Debug` prints it.
    pub fn from_name(name: &str) -> Option<Step> {
        Step::ALL.into_iter().find(|step| format!("{step:?}") == name)
    }
}

/// What a domain works on and with.
pub trait Env {
    /// Where ownership lies.
    type Record: OwnerRecord;

    /// The owner record of an actor.
    fn record(&self, actor: ActorId) -> &Self::Record;
    /// Runs one chunk. The runner keeps the unit table: it finds the unit's input and notes its output.
    fn run(&mut self, call: &Call) -> Outcome;
    /// The bytes of input that one chunk of this actor may have.
    fn chunk_bytes(&mut self, actor: ActorId, direction: Direction) -> u32;
    /// When a chunk of `bytes` that starts now is over: now on the host, what the model says on the device.
    fn charge(&mut self, now: Nanos, actor: ActorId, direction: Direction, bytes: u32) -> Nanos;
    /// How many requests one actor may have under way by the model at once: the lanes of the side's cores. At
    /// least 1. They are computed one after the other and handed on in order.
    fn lanes(&self) -> usize {
        1
    }
    /// How long an actor that is to leave waits for the model. What the model still keeps then has been computed;
    /// it is handed on, and the rest of its modelled time, at most one request's a lane, is forgiven.
    fn drain_max_ns(&self) -> u64 {
        u64::MAX
    }
    /// The earliest time at which the actor's tenant has CPU share left.
    fn allowed_at(&mut self, now: Nanos, actor: ActorId) -> Nanos;
    /// The mutable globals of an actor that leaves.
    fn export(&mut self, actor: ActorId) -> [u64; GLOBALS_MAX];
    /// Sets the globals of an actor that arrives; its memory is already here.
    fn import(&mut self, actor: ActorId, globals: &[u64; GLOBALS_MAX]);
    /// Makes the actor afresh with the state committed at `gates` (the last committed sequence a stream).
    fn reset(&mut self, actor: ActorId, gates: &[u64; STREAMS_MAX]);
    /// Of a read: the pipeline of the first unit that is not decoded yet.
    fn next_tag(&mut self, request: &Request) -> Option<Tag>;
    /// Of a read that is decoded: puts the wanted bytes where the client looks for them; their number.
    fn deliver(&mut self, request: &Request) -> Result<u32, Status>;
    /// Notes in the request's slot that it failed, so that a recovery does not take it for committed.
    fn note_failure(&mut self, request: &Request);
    /// An actor has arrived, in the middle of a request or between two; `awaited` says whether it has something to
    /// do at once.
    fn adopted(&mut self, _actor: ActorId, _mid_request: bool, _awaited: bool) {}
    /// The first chunk of an actor that arrived is about to run.
    fn first_begins(&mut self, _actor: ActorId) {}
    /// A checkpoint could not be used, and goes back to where it came from.
    fn refused(&mut self, _actor: ActorId, _error: CheckpointError) {}
    /// A named point was passed.
    fn at(&mut self, _step: Step, _actor: Option<ActorId>) {}
}

/// Why a move was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// The actor is not here, or already on its way.
    #[error("actor {0:?} cannot be moved from here now: it is elsewhere or already moving")]
    NotHere(ActorId),
    /// No such actor.
    #[error("there is no actor {0:?} on this device; `osier actor ls` lists them")]
    Unknown(ActorId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Owner,
    Leaving,
    Left { generation: u64 },
    Coming { generation: u64 },
    Away,
}

#[derive(Debug, Clone, Copy)]
struct Current {
    partial: Partial,
    direction: Direction,
    /// When the request began and how far the model is with its present unit and with all before it.
    began: Nanos,
    unit_due: Nanos,
    due: Nanos,
}

/// One actor as this domain sees it.
#[derive(Debug, Clone)]
struct Actor {
    place: Place,
    queue: VecDeque<Request>,
    current: Option<Current>,
    /// Requests that have been run and are not over by the model, in order.
    releasing: VecDeque<(Nanos, Request)>,
    gates: [u64; STREAMS_MAX],
    globals_sent: [u64; GLOBALS_MAX],
    /// When it was first seen to be leaving.
    leaving_since: Option<Nanos>,
    fresh: bool,
    stats: Stats,
}

/// What an actor did here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Units that went through.
    pub units: u64,
    /// Input bytes.
    pub bytes: u64,
    /// Time by the model (device) or zero (host, where the runner measures).
    pub busy: u64,
    /// Times that it left.
    pub departures: u64,
    /// Times that it came.
    pub arrivals: u64,
    /// Requests that failed in it.
    pub failures: u64,
    /// Largest number of requests that waited for it.
    pub queue_max: u64,
}

/// One domain. See the module's text.
#[derive(Debug)]
pub struct Domain {
    side: Side,
    plan: Plan,
    actors: Vec<Actor>,
    outbox: VecDeque<Message>,
    store: VecDeque<Request>,
    done: VecDeque<Request>,
    held: BTreeMap<(StreamId, u64), Request>,
    delivered: [u64; STREAMS_MAX],
    /// Completions that came again.
    repeats: u64,
    /// The time of the last poll, for actors that arrive between two.
    now: Nanos,
}

impl Domain {
    /// A domain whose actors are where `owners` says. `gates` is the last committed sequence of each stream.
    pub fn new(side: Side, plan: Plan, owners: &[Side], gates: &[u64; STREAMS_MAX]) -> Domain {
        assert_eq!(owners.len(), plan.actors());
        let actors = owners.iter().map(|owner| Actor::new(*owner == side, gates)).collect();
        Domain {
            side,
            plan,
            actors,
            outbox: VecDeque::new(),
            store: VecDeque::new(),
            done: VecDeque::new(),
            held: BTreeMap::new(),
            delivered: *gates,
            repeats: 0,
            now: Nanos(0),
        }
    }

    /// Which domain this is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// The pipelines.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Whether this domain serves the actor now.
    pub fn owns(&self, actor: ActorId) -> bool {
        matches!(self.actors[usize::from(actor.0)].place, Place::Owner | Place::Leaving)
    }

    /// What the actor did here so far.
    pub fn stats(&self, actor: ActorId) -> Stats {
        self.actors[usize::from(actor.0)].stats
    }

    /// Requests that wait here or run.
    pub fn pending(&self) -> usize {
        let queued = self.actors.iter().map(|a| a.queue.len() + a.releasing.len() + usize::from(a.current.is_some()));
        queued.sum::<usize>() + self.outbox.len() + self.store.len()
    }

    /// Every request that is here, and where; for a report of one that does not end.
    pub fn requests(&self) -> impl Iterator<Item = (Request, Whereabouts)> {
        let at_actors = self.actors.iter().enumerate().flat_map(|(index, actor)| {
            let current = actor.current.iter().map(|current| &current.partial.request);
            let releasing = actor.releasing.iter().map(|(_, request)| request);
            let all = actor.queue.iter().chain(current).chain(releasing);
            all.map(move |request| (*request, Whereabouts::At(ActorId(index as u16))))
        });
        let sent = self.outbox.iter().filter_map(|message| match message.kind {
            Kind::Request(request) | Kind::Complete(request) => Some((request, Whereabouts::Outbox)),
            _ => None,
        });
        let stored = self.store.iter().map(|r| (*r, Whereabouts::Store));
        let held = self.held.values().chain(&self.done).map(|r| (*r, Whereabouts::Ended));
        at_actors.chain(sent).chain(stored).chain(held)
    }

    /// A client's request, on the host: puts it on its way.
    pub fn submit(&mut self, request: Request, env: &mut impl Env) {
        assert_eq!(self.side, Side::Host, "clients are on the host");
        self.route(request, env);
    }

    /// Says up to which sequence the completions of a stream have been delivered before this domain began.
    pub fn set_delivered(&mut self, stream: StreamId, sequence: u64) {
        self.delivered[usize::from(stream.0)] = sequence;
    }

    /// A message of the other domain.
    pub fn receive(&mut self, message: Message, env: &mut impl Env) {
        match message.kind {
            Kind::Request(request) => self.route(request, env),
            Kind::Complete(request) => self.completed(request),
            Kind::Prepare { actor, generation } => self.prepare(actor, generation),
            Kind::Adopt { actor, generation } => self.adopt(actor, generation, env),
            Kind::Refuse { actor, generation } => self.refused(actor, generation, env),
            Kind::MoveRequest { actor, to } => {
                if to != self.side {
                    // One that came too late finds the actor gone, which is what it asked for.
                    let _ = self.begin_move(actor, env);
                }
            }
        }
    }

    /// Gives an actor to the other domain: from now on new requests go there, those that wait here are
    /// sent after them, and when the running chunk ends the checkpoint goes too.
    pub fn begin_move(&mut self, actor: ActorId, env: &mut impl Env) -> Result<(), DomainError> {
        let state = self.actors.get_mut(usize::from(actor.0)).ok_or(DomainError::Unknown(actor))?;
        if state.place != Place::Owner {
            return Err(DomainError::NotHere(actor));
        }
        state.place = Place::Leaving;
        state.leaving_since = None;
        let generation = migrate::state(env.record(actor)).map_or(0, |s| s.generation + 1);
        self.outbox.push_back(Message { kind: Kind::Prepare { actor, generation } });
        for request in state.queue.drain(..) {
            self.outbox.push_back(Message { kind: Kind::Request(request) });
        }
        env.at(Step::Routed, Some(actor));
        if self.actors[usize::from(actor.0)].releasing.is_empty() {
            self.leave_at_border(Nanos(0), actor, env);
        }
        Ok(())
    }

    /// Does what can be done now: ends chunks that are due, runs the next one of each actor, at most one
    /// an actor, up to an actor that leaves. Says whether anything was done.
    pub fn poll(&mut self, now: Nanos, env: &mut impl Env) -> bool {
        let mut progress = false;
        self.now = now;
        for index in 0..self.actors.len() {
            let departures = self.actors[index].stats.departures;
            progress |= self.advance(now, ActorId(index as u16), env);
            if self.actors[index].stats.departures > departures {
                // Nobody serves it until its checkpoint is sent: the others' chunks come behind that.
                return true;
            }
        }
        progress
    }

    /// The next time at which [`Domain::poll`] has something to do, if it is known now.
    pub fn next_event(&mut self, now: Nanos, env: &mut impl Env) -> Option<Nanos> {
        let mut next: Option<Nanos> = None;
        for index in 0..self.actors.len() {
            let actor = &self.actors[index];
            let released = actor.releasing.front().map(|(due, _)| *due);
            let waits = actor.place == Place::Owner && (actor.current.is_some() || actor.has_next());
            let room = actor.releasing.len() < env.lanes();
            let runs = (waits && room).then(|| env.allowed_at(now, ActorId(index as u16)));
            let drained = (actor.place == Place::Leaving)
                .then(|| actor.leaving_since.map_or(now, |since| Nanos(since.0.saturating_add(env.drain_max_ns()))));
            let Some(at) = [released, runs, drained].into_iter().flatten().min() else { continue };
            next = Some(next.map_or(at, |n| n.min(at)));
        }
        next
    }

    /// The next message for the other domain.
    pub fn take_outgoing(&mut self) -> Option<Message> {
        self.outbox.pop_front()
    }

    /// On the device: the next request for the device core: a write that is through its stages, a read that
    /// has to be fetched, or what has no stages.
    pub fn take_store(&mut self) -> Option<Request> {
        self.store.pop_front()
    }

    /// On the device: the core has done with a request. A read that was fetched goes to its inverse stages,
    /// everything else to the host.
    pub fn stored(&mut self, request: Request, env: &mut impl Env) {
        assert_eq!(self.side, Side::Device, "the store is on the device");
        if request.descriptor.opcode == Opcode::Read && request.status.is_success() {
            self.next_group(Request { fetched: true, ..request }, env);
        } else {
            self.complete(request);
        }
    }

    /// On the host: the next request that ended, in the order of its stream.
    pub fn take_completion(&mut self) -> Option<Request> {
        self.done.pop_front()
    }

    /// Completions that came a second time. They are not passed on, and there should be none.
    pub fn repeats(&self) -> u64 {
        self.repeats
    }

    /// Throws away all that is in flight and takes the owners that the records hold after a death. The
    /// caller replays what was not committed. Answers what happened to each actor.
    ///
    /// `gates` holds for each stream the sequence before the first that will be replayed: the later of the
    /// device's committed cursor and the last completion that the client was given (a request that failed is
    /// completed and never committed).
    pub fn recover(
        &mut self,
        alive: [bool; 2],
        defaults: &[Side],
        gates: &[u64; STREAMS_MAX],
        env: &mut impl Env,
    ) -> Vec<Resolution> {
        self.outbox.clear();
        self.store.clear();
        self.held.clear();
        assert_eq!(defaults.len(), self.actors.len());
        let mut resolutions = Vec::with_capacity(self.actors.len());
        for (index, (state, default)) in self.actors.iter_mut().zip(defaults).enumerate() {
            let actor = ActorId(index as u16);
            let resolution = migrate::resolve(env.record(actor), alive, *default);
            let owned = resolution.owner() == self.side;
            *state = Actor { stats: state.stats, ..Actor::new(owned, gates) };
            if owned {
                env.reset(actor, gates);
            }
            resolutions.push(resolution);
        }
        resolutions
    }

    fn route(&mut self, mut request: Request, env: &mut impl Env) {
        if request.descriptor.opcode == Opcode::Read && !request.fetched {
            return self.store_or_send(request);
        }
        let direction = request.descriptor.direction();
        // Bounded by the stages of one pipeline.
        loop {
            let Some(actor) = self.stage(&request) else { return self.through(request, env) };
            let pass = self.passes(&request, actor);
            if direction == Direction::Inverse && pass {
                request.visited += 1;
                continue;
            }
            let state = &mut self.actors[usize::from(actor.0)];
            match state.place {
                Place::Owner | Place::Coming { .. } => {
                    state.queue.push_back(request);
                    state.stats.queue_max = state.stats.queue_max.max(state.queue.len() as u64);
                }
                Place::Leaving | Place::Left { .. } | Place::Away => {
                    self.outbox.push_back(Message { kind: Kind::Request(request) });
                }
            }
            return;
        }
    }

    /// Whether the request goes past the actor without being run: it failed, leaves the stage out, has nothing
    /// to run on, or is no query and the stage is one.
    fn passes(&self, request: &Request, actor: ActorId) -> bool {
        let descriptor = &request.descriptor;
        let Some(position) = self.plan.position(descriptor.tag, actor) else { return true };
        let query_only = self.plan.pipeline(descriptor.tag).is_some_and(|p| p.query & 1 << position != 0);
        let query = descriptor.opcode == Opcode::Read && descriptor.flags & FLAG_QUERY != 0;
        !request.status.is_success() || descriptor.skips(position) || descriptor.units == 0 || query_only && !query
    }

    fn stage(&self, request: &Request) -> Option<ActorId> {
        match request.descriptor.opcode {
            Opcode::Write | Opcode::Read => {
                self.plan.stage(request.descriptor.tag, request.descriptor.direction(), request.visited)
            }
            Opcode::Passthrough | Opcode::Trim | Opcode::Flush | Opcode::Allocation => None,
        }
    }

    /// Behind the last stage of a pipeline.
    fn through(&mut self, request: Request, env: &mut impl Env) {
        if !request.status.is_success() {
            return self.complete(request);
        }
        match request.descriptor.direction() {
            Direction::Forward => self.store_or_send(request),
            Direction::Inverse => self.next_group(request, env),
        }
    }

    fn next_group(&mut self, mut request: Request, env: &mut impl Env) {
        match env.next_tag(&request) {
            Some(tag) if self.plan.pipeline(tag).is_some() => {
                request.descriptor.tag = tag;
                request.visited = 0;
                self.route(request, env);
            }
            Some(_) => {
                request.status = Status::ACTOR_FAILED;
                self.complete(request);
            }
            None => {
                match env.deliver(&request) {
                    Ok(bytes) => request.output = bytes,
                    Err(status) => request.status = status,
                }
                self.complete(request);
            }
        }
    }

    fn store_or_send(&mut self, request: Request) {
        match self.side {
            Side::Device => self.store.push_back(request),
            Side::Host => self.outbox.push_back(Message { kind: Kind::Request(request) }),
        }
    }

    fn complete(&mut self, request: Request) {
        match self.side {
            Side::Device => self.outbox.push_back(Message { kind: Kind::Complete(request) }),
            Side::Host => self.completed(request),
        }
    }

    fn completed(&mut self, request: Request) {
        let stream = usize::from(request.stream.0);
        if request.sequence <= self.delivered[stream] {
            self.repeats += 1;
            return;
        }
        self.repeats += u64::from(self.held.insert((request.stream, request.sequence), request).is_some());
        while let Some(next) = self.held.remove(&(request.stream, self.delivered[stream] + 1)) {
            self.delivered[stream] += 1;
            self.done.push_back(next);
        }
    }

    fn prepare(&mut self, actor: ActorId, generation: u64) {
        let Some(state) = self.actors.get_mut(usize::from(actor.0)) else { return };
        if !matches!(state.place, Place::Owner | Place::Leaving) {
            state.place = Place::Coming { generation };
        }
    }

    fn adopt(&mut self, actor: ActorId, generation: u64, env: &mut impl Env) {
        let Some(state) = self.actors.get_mut(usize::from(actor.0)) else { return };
        if state.place != (Place::Coming { generation }) {
            return;
        }
        env.at(Step::DoorbellHeard, Some(actor));
        match migrate::read_ready(env.record(actor), self.side, actor, generation) {
            Ok(Some((word, checkpoint))) => {
                env.import(actor, &checkpoint.globals);
                env.at(Step::Rebuilt, Some(actor));
                if migrate::set_active(env.record(actor), word, self.side) {
                    env.at(Step::Active, Some(actor));
                    state.arrive(&checkpoint, self.now);
                    env.adopted(actor, state.current.is_some(), state.current.is_some() || state.has_next());
                }
            }
            Ok(None) => {}
            Err(error) => {
                env.refused(actor, error);
                self.refuse(actor, generation, env);
            }
        }
    }

    /// A checkpoint that cannot be used goes back with everything that waited for it.
    fn refuse(&mut self, actor: ActorId, generation: u64, env: &mut impl Env) {
        if !migrate::roll_back(env.record(actor), generation) {
            return;
        }
        self.outbox.push_back(Message { kind: Kind::Refuse { actor, generation } });
        let state = &mut self.actors[usize::from(actor.0)];
        state.place = Place::Away;
        for request in state.queue.drain(..) {
            self.outbox.push_back(Message { kind: Kind::Request(request) });
        }
    }

    fn refused(&mut self, actor: ActorId, generation: u64, env: &mut impl Env) {
        let Some(state) = self.actors.get_mut(usize::from(actor.0)) else { return };
        if state.place == (Place::Left { generation }) {
            state.place = Place::Owner;
            let globals = state.globals_sent;
            env.import(actor, &globals);
        }
    }

    /// One actor: hands on what is over by the model, and runs the next chunk.
    fn advance(&mut self, now: Nanos, actor: ActorId, env: &mut impl Env) -> bool {
        let mut progress = self.release(now, actor, env);
        if self.actors[usize::from(actor.0)].place == Place::Leaving {
            self.leave_at_border(now, actor, env);
            return progress;
        }
        progress |= self.take_next(now, actor, env);
        let state = &self.actors[usize::from(actor.0)];
        if state.place != Place::Owner || state.current.is_none() || env.allowed_at(now, actor) > now {
            return progress;
        }
        self.run_chunk(now, actor, env);
        true
    }

    /// Hands on the requests that are over by the model, in order.
    fn release(&mut self, now: Nanos, actor: ActorId, env: &mut impl Env) -> bool {
        let index = usize::from(actor.0);
        let mut any = false;
        while let Some((_, request)) = self.actors[index].releasing.pop_front_if(|(due, _)| *due <= now) {
            self.route(request, env);
            any = true;
        }
        any
    }

    /// Sees to it that the actor has a request to work on, if one may begin.
    fn take_next(&mut self, now: Nanos, actor: ActorId, env: &mut impl Env) -> bool {
        let index = usize::from(actor.0);
        let mut any = false;
        // Requests that pass without being run leave the queue here; the queue is finite.
        while self.actors[index].place == Place::Owner
            && self.actors[index].current.is_none()
            && self.actors[index].releasing.len() < env.lanes()
        {
            let Some(request) = self.actors[index].pop_next() else { return any };
            any = true;
            if self.passes(&request, actor) {
                self.leave_stage(now, actor, request);
            } else {
                let partial = Partial { request, unit: 0, resume: false };
                self.actors[index].current = Some(Current::new(partial, now));
            }
        }
        any
    }

    /// Runs one chunk. The stage is computed now; when it is over is the model's matter: a unit's chunks come
    /// one after the other, a request's units each on a lane of its own as far as the model has them.
    fn run_chunk(&mut self, now: Nanos, actor: ActorId, env: &mut impl Env) {
        let state = &mut self.actors[usize::from(actor.0)];
        let Some(current) = &mut state.current else { return };
        let request = &current.partial.request;
        let call = Call {
            actor,
            direction: current.direction,
            slot: request.descriptor.slot,
            unit: current.partial.unit,
            units: request.descriptor.units,
            resume: current.partial.resume,
            budget_bytes: env.chunk_bytes(actor, current.direction),
            tag: request.descriptor.tag,
            stream: request.stream,
            sequence: request.sequence,
        };
        if state.fresh {
            env.first_begins(actor);
        }
        env.at(Step::StageBegins, Some(actor));
        let outcome = env.run(&call);
        env.at(Step::StageEnds, Some(actor));
        if std::mem::take(&mut state.fresh) {
            env.at(Step::FirstServed, Some(actor));
        }
        let bytes = match outcome {
            Outcome::Done { bytes } | Outcome::Yielded { bytes } => bytes,
            Outcome::Failed(_) => 0,
        };
        let start = current.unit_due;
        current.unit_due = env.charge(start, actor, current.direction, bytes);
        current.due = current.due.max(current.unit_due);
        state.stats.bytes += u64::from(bytes);
        state.stats.busy += current.unit_due.0.saturating_sub(start.0);
        self.end_chunk(now, actor, outcome, env);
    }

    fn end_chunk(&mut self, now: Nanos, actor: ActorId, outcome: Outcome, env: &mut impl Env) {
        let state = &mut self.actors[usize::from(actor.0)];
        let Some(current) = &mut state.current else { return };
        match outcome {
            Outcome::Yielded { .. } => {
                current.partial.resume = true;
                return;
            }
            Outcome::Done { .. } => {
                state.stats.units += 1;
                current.partial.unit += 1;
                current.partial.resume = false;
                current.unit_due = current.began;
                if current.partial.unit < current.partial.request.descriptor.units {
                    return;
                }
            }
            Outcome::Failed(status) => {
                state.stats.failures += 1;
                current.partial.request.status = status;
                env.note_failure(&current.partial.request);
            }
        }
        let (request, due) = (current.partial.request, current.due.max(now));
        state.current = None;
        self.leave_stage(due, actor, request);
        self.release(now, actor, env);
    }

    /// A request is through a stage; it goes on when the model says, and never before one that was before it.
    fn leave_stage(&mut self, due: Nanos, actor: ActorId, mut request: Request) {
        let state = &mut self.actors[usize::from(actor.0)];
        if request.descriptor.direction() == Direction::Forward {
            state.gates[usize::from(request.stream.0)] = request.sequence;
        }
        request.visited += 1;
        let due = state.releasing.back().map_or(due, |(before, _)| due.max(*before));
        state.releasing.push_back((due, request));
    }

    /// If the actor is to leave and all that it did is handed on: the checkpoint, `Ready`, the doorbell. What
    /// the model still keeps after `drain_max_ns` is handed on all the same.
    fn leave_at_border(&mut self, now: Nanos, actor: ActorId, env: &mut impl Env) {
        let state = &mut self.actors[usize::from(actor.0)];
        if state.place != Place::Leaving {
            return;
        }
        let since = *state.leaving_since.get_or_insert(now);
        if !state.releasing.is_empty() {
            if now.0.saturating_sub(since.0) < env.drain_max_ns() {
                return;
            }
            self.release(Nanos(u64::MAX), actor, env);
        }
        let state = &mut self.actors[usize::from(actor.0)];
        env.at(Step::Drained, Some(actor));
        let globals = env.export(actor);
        let mut checkpoint =
            Checkpoint { actor, generation: 0, globals, gates: state.gates, current: state.current.map(|c| c.partial) };
        // Only a recovery changes the word of an actor that is here, and a recovery is run by this domain itself.
        let word = migrate::write_checkpoint(env.record(actor), self.side, &mut checkpoint);
        env.at(Step::CheckpointWritten, Some(actor));
        let Some(generation) = word.and_then(|word| migrate::set_ready(env.record(actor), word, self.side)) else {
            panic!("{actor:?}: its owner word changed while the {} domain held it", self.side)
        };
        env.at(Step::Ready, Some(actor));
        state.place = Place::Left { generation };
        state.globals_sent = globals;
        state.stats.departures += 1;
        self.outbox.push_back(Message { kind: Kind::Adopt { actor, generation } });
    }
}

impl Current {
    fn new(partial: Partial, now: Nanos) -> Current {
        let direction = partial.request.descriptor.direction();
        Current { partial, direction, began: now, unit_due: now, due: now }
    }
}

impl Actor {
    fn new(owned: bool, gates: &[u64; STREAMS_MAX]) -> Actor {
        Actor {
            place: if owned { Place::Owner } else { Place::Away },
            queue: VecDeque::new(),
            current: None,
            releasing: VecDeque::new(),
            gates: *gates,
            globals_sent: [0; GLOBALS_MAX],
            leaving_since: None,
            fresh: false,
            stats: Stats::default(),
        }
    }

    fn arrive(&mut self, checkpoint: &Checkpoint, now: Nanos) {
        self.place = Place::Owner;
        self.gates = checkpoint.gates;
        self.fresh = true;
        self.stats.arrivals += 1;
        // The model begins anew with what is left of the request: what was charged was charged at the source.
        self.current = checkpoint.current.map(|partial| Current::new(partial, now));
    }

    fn takes(&self, request: &Request) -> bool {
        request.descriptor.direction() == Direction::Inverse
            || request.sequence == self.gates[usize::from(request.stream.0)] + 1
    }

    fn has_next(&self) -> bool {
        self.queue.iter().any(|request| self.takes(request))
    }

    fn pop_next(&mut self) -> Option<Request> {
        let index = self.queue.iter().position(|request| self.takes(request))?;
        self.queue.remove(index)
    }
}
