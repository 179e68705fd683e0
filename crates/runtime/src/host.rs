//! The host's domain process: clients, the host's stages, and the scheduler.

use std::time::Duration;

use osier_domain::message::Request;
use osier_domain::{
    ActorId, Domain, Kind, Message, Nanos, Opcode, STREAMS_MAX, Side, SlotId, Status, Step, StreamId, Whereabouts,
};
use osier_flash::BLOCK_BYTES;
use osier_pmr::{Doorbell, WaitPolicy, Waiter};
use osier_sched::{Policy, policy};

use crate::bootstrap::{Bootstrap, Event, Job, JobReport, Placement, Progress};
use crate::client::{Ask, Client, Left};
use crate::clients::Clients;
use crate::clock;
use crate::control::{Command, Gauge};
use crate::corpus::Corpus;
use crate::error::RuntimeError;
use crate::link::Link;
use crate::machine::{Machine, Turn};
use crate::pacer::Pacer;
use crate::sampler::Sampler;
use crate::setup::Setup;
use crate::vigil::{Look, PATIENCE_NS, Vigil};
use crate::waits::{Gaps, Meter, Reason};
use crate::workload::{FIRST_MAX, Files, Port, Soak, TallyReport, Witness, Workload};

/// Between two lines of progress.
const PROGRESS_NS: u64 = 100_000_000;
/// How long an idle host sleeps at most before it looks at the control words.
const IDLE_MAX: Duration = Duration::from_millis(2);
/// How long a move waits for its destination to wake up, and how long a destination waits for an actor, awake.
const WAKE_MAX_NS: u64 = 200_000;
const EXPECT_NS: u64 = 300_000;
/// The epoch of a session's start.
pub(crate) const FIRST_EPOCH: u64 = 1;
/// How long a move asked for by hand may take before it is reported as not done.
const COMMAND_NS: u64 = 2_000_000_000;

/// Runs the host's domain until it is told to stop.
pub fn run(bootstrap: &Bootstrap, emit: &mut dyn FnMut(&Event)) -> Result<(), RuntimeError> {
    let mut host = Host::open(bootstrap)?;
    host.control().set_ready(Side::Host, bootstrap.epoch);
    host.recover(bootstrap.epoch)?;
    emit(&Event::Serving { at_ns: clock::now().0 });
    if let Some(text) = host.workload.notice() {
        emit(&Event::Notice { text });
    }
    while !host.control().stopping() {
        host.turn(emit);
    }
    Ok(())
}

struct Host {
    setup: Setup,
    machine: Machine,
    domain: Domain,
    link: Link,
    client: Client,
    workload: Box<dyn Workload>,
    waiter: Waiter,
    epoch: u64,
    sampler: Sampler,
    policy: Box<dyn Policy>,
    placement: Placement,
    next_tick: Nanos,
    next_progress: Nanos,
    forced: Option<Mover>,
    command: Option<(Command, Nanos)>,
    /// Actors that go to the device when it has woken up, and by when at the latest.
    waking: Vec<(ActorId, Nanos)>,
    pacer: Pacer,
    span: Span,
    reported: bool,
    vigil: Vigil,
    meter: Meter,
    gaps: Gaps,
    /// Requests that ended.
    ended: u64,
    /// This process has not taken over yet what the slots hold.
    fresh: bool,
}

/// What progress lines are made of.
struct Span {
    latency: hdrhistogram::Histogram<u64>,
    write_began: Option<Nanos>,
    write_ended: Option<Nanos>,
    moves_at_start: u64,
}

/// Moves made for their own sake.
struct Mover {
    spec: crate::bootstrap::Forced,
    made: u64,
    next: Nanos,
    random: u64,
}

/// The port that a workload sees: client, domain and machine together.
struct HostPort<'a> {
    now: Nanos,
    client: &'a mut Client,
    domain: &'a mut Domain,
    machine: &'a mut Machine,
    pacer: &'a mut Pacer,
    moves_at_start: u64,
}

impl Port for HostPort<'_> {
    fn has_room(&mut self) -> bool {
        self.client.has_room() && self.pacer.is_open(self.now)
    }

    fn submit(&mut self, stream: StreamId, ask: Ask<'_>) -> Option<SlotId> {
        if !self.has_room() {
            return None;
        }
        let machine = &mut *self.machine;
        let request = self.client.prepare(self.now, stream, ask, || machine.passed(Step::SlotFilled, None))?;
        self.pacer.admitted(self.now, moved_bytes(&request));
        self.domain.submit(request, &mut Turn { machine: self.machine, compute: None });
        Some(request.descriptor.slot)
    }

    fn moves(&self) -> u64 {
        self.machine.control.moves() - self.moves_at_start
    }
}

impl Host {
    fn open(bootstrap: &Bootstrap) -> Result<Host, RuntimeError> {
        let setup = Setup::open(bootstrap)?;
        let machine = setup.machine(Side::Host)?;
        let mut client = Client::new(machine.arena.clone(), setup.units_of_pipelines());
        let delivered = client.resume(&setup.control);
        let options = &bootstrap.options;
        let wait: WaitPolicy = options.host_wait.parse().map_err(|e| RuntimeError::Option(format!("{e}")))?;
        let waiter = Waiter::new(wait).map_err(|e| RuntimeError::Option(format!("{e}")))?;
        let policy =
            policy(&options.policy, &setup.profile.scheduler).map_err(|e| RuntimeError::Option(format!("{e}")))?;
        let now = clock::now();
        let latency = hdrhistogram::Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants");
        Ok(Host {
            domain: setup.domain(Side::Host),
            link: setup.link(Side::Host, bootstrap.epoch)?,
            workload: workload(&setup, &bootstrap.job, &delivered)?,
            sampler: Sampler::new(&setup, options.record.as_deref(), &options.policy, bootstrap.epoch > FIRST_EPOCH)?,
            epoch: bootstrap.epoch,
            placement: options.placement,
            next_tick: now,
            next_progress: now,
            forced: options.forced.map(|spec| Mover { spec, made: 0, next: now, random: spec.seed }),
            command: None,
            waking: Vec::new(),
            pacer: Pacer::new(now),
            span: Span { latency, write_began: None, write_ended: None, moves_at_start: setup.control.moves() },
            reported: false,
            vigil: Vigil::default(),
            meter: Meter::new(now.0, None),
            gaps: Gaps::default(),
            ended: 0,
            fresh: true,
            setup,
            machine,
            client,
            waiter,
            policy,
        })
    }

    fn control(&self) -> &crate::control::Control {
        &self.setup.control
    }

    fn turn(&mut self, emit: &mut dyn FnMut(&Event)) {
        if self.control().epoch() != self.epoch {
            self.park();
            return;
        }
        let now = clock::now();
        self.meter.turn(now.0);
        // An actor that arrives has to wait for the longest of what is done between two looks at the ring.
        let mut busy = self.run_domain(now);
        busy |= self.complete(now);
        busy |= self.run_domain(now);
        busy |= self.offer(now);
        self.force(now);
        busy |= self.send_off(now);
        busy |= self.link.dispatch(&mut self.domain);
        self.keep_house(now, emit);
        self.sampler.turn(now, busy);
        if !busy {
            self.wait(now);
        }
    }

    /// What is done once in a while and takes longer than a switch. An actor that is on its way here does not wait for
    /// it; it comes, or is given up, within the time that it is expected.
    fn keep_house(&mut self, now: Nanos, emit: &mut dyn FnMut(&Event)) {
        let by = |due: Nanos| if self.machine.rest.expects(now) { Nanos(due.0 + EXPECT_NS) } else { due };
        let (ticks, tells) = (now >= by(self.next_tick), now >= by(self.next_progress));
        if ticks {
            self.tick(now);
        } else if tells {
            self.next_progress = Nanos(now.0 + PROGRESS_NS);
            self.progress(now, emit);
        }
    }

    fn run_domain(&mut self, now: Nanos) -> bool {
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        self.link.exchange(now, &mut self.domain, turn)
    }

    fn complete(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(request) = self.domain.take_completion() {
            any = true;
            self.ended += 1;
            let done = self.client.end(now, request);
            self.span.latency.saturating_record(done.latency.0);
            self.pacer.completed(now, moved_bytes(&request));
            self.workload.completed(now, &done, self.client.arena());
            self.setup.control.set_delivered(usize::from(request.stream.0), request.sequence);
            self.client.release(request.descriptor.slot);
        }
        if any || self.gaps.is_open() {
            self.account(any);
        }
        any
    }

    /// Keeps the account of the longest gap: at each completion, and until the device has told of its part.
    fn account(&mut self, completed: bool) {
        let workload = &self.workload;
        let device = self.setup.control.account();
        if completed {
            self.meter.look();
            let about = || (workload.phase().to_owned(), self.setup.control.gauge(Gauge::Speed));
            self.gaps.completed(workload.tally().longest_gap_ns, self.meter.account(), device, about);
        } else if let Some(device) = device {
            self.gaps.hear(device);
        }
    }

    fn offer(&mut self, now: Nanos) -> bool {
        let mut port = HostPort {
            now,
            client: &mut self.client,
            domain: &mut self.domain,
            machine: &mut self.machine,
            pacer: &mut self.pacer,
            moves_at_start: self.span.moves_at_start,
        };
        self.workload.offer(now, &mut port)
    }

    fn wait(&mut self, now: Nanos) {
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        let events = [self.domain.next_event(now, turn), self.pacer.next_event()];
        let reason = if events.iter().any(Option::is_some) { Reason::Due } else { Reason::Idle };
        let until = events.into_iter().flatten().fold(self.next_tick, Nanos::min);
        let left = Duration::from_nanos(until.0.saturating_sub(now.0)).min(IDLE_MAX);
        if !left.is_zero() {
            let Host { machine, waiter, link, workload, .. } = self;
            let clients = workload.bell();
            let bells: &[&Doorbell] = match &clients {
                Some(clients) => &[link.bell(), clients],
                None => &[link.bell()],
            };
            let look = || link.has_message() || workload.has_offer();
            let (since, slept) = machine.rest.wait(waiter, bells, left, look);
            self.meter.waited(reason, since, left.as_nanos() as u64, slept);
        }
    }

    /// One epoch of the scheduler.
    fn tick(&mut self, now: Nanos) {
        self.next_tick = Nanos(now.0 + self.setup.profile.scheduler.epoch_ms * 1_000_000);
        let sample = self.sampler.sample(now, &self.setup, &self.machine, &mut self.link);
        self.command(now);
        if self.placement != Placement::Adaptive || self.forced.is_some() || self.control().policy_off() {
            self.sampler.note(&sample, None);
            // What the policy held back before it was switched off, nobody would ever let in again.
            self.pacer.set_rate(now, osier_sched::RATE_UNLIMITED_PERMILLE);
            return;
        }
        let decision = self.policy.decide(&sample);
        self.sampler.note(&sample, Some(&decision));
        if let Err(error) = decision.check(self.policy.name(), &sample) {
            tracing::warn!(%error, "the decision is not carried out");
            return;
        }
        self.pacer.set_rate(now, decision.rate_permille);
        for each in &decision.moves {
            self.move_actor(each.actor, each.to);
        }
    }

    /// Gives an actor to `to`, or asks the device to. A destination that would have to be woken up is awake before the
    /// actor is on its way: to wake up takes longer than all the rest.
    fn move_actor(&mut self, actor: ActorId, to: Side) {
        let now = clock::now();
        self.control().decide(actor, now.0);
        match to {
            Side::Device if !self.domain.owns(actor) || self.waking.iter().any(|(waits, _)| *waits == actor) => {}
            Side::Device => {
                self.waking.push((actor, Nanos(now.0 + WAKE_MAX_NS)));
                if self.link.other_sleeps() {
                    self.control().expect(Side::Device, now.0 + EXPECT_NS);
                    self.link.ring();
                }
                self.send_off(now);
            }
            Side::Host => {
                self.control().expect(Side::Host, now.0 + EXPECT_NS);
                self.link.offer(&Message { kind: Kind::MoveRequest { actor, to } });
                self.link.ring();
            }
        }
    }

    /// Sends off the actors whose destination is awake, or did not wake up in time; whether there are any.
    fn send_off(&mut self, now: Nanos) -> bool {
        let Some((_, by)) = self.waking.first() else { return false };
        if !self.link.other_sleeps() || now >= *by {
            for (actor, _) in std::mem::take(&mut self.waking) {
                // One that is on its way already is where it should be, or will be asked again.
                let _ = self.domain.begin_move(actor, &mut Turn { machine: &mut self.machine, compute: None });
                // At once: an actor whose messages wait here is nobody's.
                self.link.dispatch(&mut self.domain);
            }
        }
        true
    }

    /// What the command line asked for.
    fn command(&mut self, now: Nanos) {
        if self.command.is_none() {
            let Some(command) = self.control().command() else { return };
            self.control().set_policy_off(command.to.is_some());
            self.command = Some((command, Nanos(now.0 + COMMAND_NS)));
        }
        let Some((command, deadline)) = self.command else { return };
        let actors = (0..self.machine.records.len() as u16).map(ActorId);
        let wanted: Vec<ActorId> = actors
            .filter(|a| command.actor.is_none_or(|wanted| wanted == *a))
            .filter(|a| command.to.is_some_and(|to| self.setup.owner(*a) != Some(to)) && self.setup.movable(*a))
            .collect();
        if wanted.is_empty() || now >= deadline {
            self.control().answer(command.sequence, wanted.len() as u64);
            self.command = None;
            return;
        }
        for actor in wanted {
            self.move_actor(actor, command.to.unwrap_or(Side::Host));
        }
    }

    fn force(&mut self, now: Nanos) {
        let Some(mover) = &mut self.forced else { return };
        if mover.made >= mover.spec.moves || now < mover.next || self.reported {
            return;
        }
        mover.random = mover.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let random = mover.random >> 33;
        let every = mover.spec.every_ns;
        mover.next = Nanos(now.0 + every / 2 + random % every.max(1));
        let count = self.machine.records.len() as u64;
        let first = ActorId((random / 7 % count.max(1)) as u16);
        let actors = if mover.spec.whole_pipeline { (0..count as u16).map(ActorId).collect() } else { vec![first] };
        mover.made = self.setup.control.moves() - self.span.moves_at_start;
        for actor in actors {
            if let Some(side) = self.setup.owner(actor).filter(|_| self.setup.movable(actor)) {
                self.move_actor(actor, side.other());
            }
        }
    }

    fn progress(&mut self, now: Nanos, emit: &mut dyn FnMut(&Event)) {
        let workload = &self.workload;
        let tally = workload.tally();
        let phase = workload.phase();
        if matches!(phase, "write" | "traffic") {
            self.span.write_began.get_or_insert(now);
        } else {
            self.span.write_ended.get_or_insert(now);
        }
        let control = &self.setup.control;
        let count = self.machine.records.len() as u16;
        emit(&Event::Progress(Progress {
            at_ns: now.0,
            phase: phase.to_owned(),
            progress_permille: workload.progress_permille(),
            bytes: tally.written_bytes + tally.read_bytes,
            latency_ns: crate::workload::percentiles(&self.span.latency),
            millicelsius: control.temperature_millicelsius(),
            speed_permille: control.gauge(Gauge::Speed),
            device_permille: control.gauge(Gauge::Utilisation),
            host_permille: control.gauge(Gauge::HostBusy),
            on_device: (0..count).map(|a| self.setup.owner(ActorId(a)) == Some(Side::Device)).collect(),
            moves: control.moves() - self.span.moves_at_start,
            rate_permille: u64::from(self.pacer.rate_permille()),
        }));
        self.span.latency.reset();
        if self.reported {
            return;
        }
        if workload.finished() {
            self.reported = true;
            emit(&Event::Finished(Box::new(self.report(now))));
        } else if self.has_lost(now) {
            self.reported = true;
            let mut report = self.report(now);
            self.tell_of_lost(&mut report.tally);
            emit(&Event::Finished(Box::new(report)));
        }
    }

    /// Whether what is in flight will not end.
    fn has_lost(&mut self, now: Nanos) -> bool {
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        let waits = self.domain.next_event(now, turn).is_some() || self.pacer.next_event().is_some_and(|at| at > now);
        let look = Look {
            inflight: self.client.inflight(),
            ended: self.ended,
            host_is_idle: !waits && !self.link.has_message(),
            device_idle_at: Nanos(self.setup.control.gauge(Gauge::IdleAt)),
        };
        self.vigil.look(now, &look)
    }

    /// Which requests do not end, and where each was last.
    fn tell_of_lost(&self, tally: &mut TallyReport) {
        let here: Vec<(Request, Whereabouts)> = self.domain.requests().collect();
        for left in self.client.left() {
            let request = left.request();
            let slot = request.descriptor.slot;
            let place = match here.iter().find(|(each, _)| each.descriptor.slot == slot) {
                Some((_, Whereabouts::At(actor))) => {
                    format!("it waits on the host for {}", self.setup.pipelines.actor(*actor).label())
                }
                Some((_, Whereabouts::Ended)) => "it has ended, and waits for an earlier one of its stream".to_owned(),
                Some((_, Whereabouts::Outbox | Whereabouts::Store)) => "the host has not sent it on".to_owned(),
                None if self.setup.control.holds(slot) => "it waits in the device's domain".to_owned(),
                None => "neither domain has it: it was lost between them".to_owned(),
            };
            tally.lost += 1;
            if tally.first_lost.len() < FIRST_MAX {
                tally.first_lost.push(format!(
                    "request {} of stream {} ({:?} of block {}, slot {}) does not end: {place}; both domains have been idle for {} s",
                    request.sequence,
                    request.stream.0,
                    request.descriptor.opcode,
                    request.descriptor.slba,
                    slot.0,
                    PATIENCE_NS / 1_000_000_000
                ));
            }
        }
    }

    fn report(&mut self, now: Nanos) -> JobReport {
        let workload = &self.workload;
        let tally = workload.tally();
        let moves = self.setup.control.move_log(self.span.moves_at_start);
        let times = tally.completions.as_deref().unwrap_or(&[]);
        let ended = self.span.write_ended.unwrap_or(now);
        let count = self.machine.records.len() as u16;
        let bytes = |a| [Side::Host, Side::Device].map(|side| self.setup.control.actor_stats(ActorId(a), side).bytes);
        JobReport {
            tally: TallyReport { repeated: tally.repeated + self.domain.repeats(), ..TallyReport::from(tally) },
            write_ns: ended.0 - self.span.write_began.map_or(ended.0, |b| b.0),
            files: workload.files().into(),
            input_bytes: workload.input_bytes(),
            pauses_ns: moves.iter().filter_map(|m| pause_around(times, m.routed, m.first_served)).collect(),
            host_cpu_ns: clock::cpu(),
            gap: self.gaps.longest().clone(),
            actor_bytes: (0..count).map(bytes).collect(),
            ring_depth_max: self.link.depth_max(),
        }
    }

    /// Another domain has died: stop where we are, and wait for the supervisor.
    fn park(&mut self) {
        let since = clock::now().0;
        let epoch = self.control().epoch();
        self.waking.clear();
        self.control().set_parked(Side::Host, epoch);
        self.control().set_ready(Side::Host, epoch);
        if self.recover(epoch).is_err() {
            // The rings could not be opened, which only happens when the epoch moved on; the next turn parks again.
            tracing::warn!(epoch, "the host could not take its rings; waiting for the next epoch");
        }
        self.epoch = epoch;
        self.meter.waited(Reason::Idle, since, u64::MAX, true);
    }

    /// Waits until the supervisor lets this epoch begin, then replays what was not committed.
    fn recover(&mut self, epoch: u64) -> Result<(), RuntimeError> {
        if !self.control().await_epoch(epoch, |c| c.go() == epoch, || {}) {
            return Ok(());
        }
        self.link = self.setup.link(Side::Host, epoch)?;
        let now = clock::now();
        let cursors = self.control().cursors();
        let delivered = self.control().delivered();
        let gates: [u64; STREAMS_MAX] = std::array::from_fn(|s| cursors[s].max(delivered[s]));
        let alive = self.control().alive();
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        self.domain.recover(alive, &self.setup.defaults, &gates, turn);
        for (stream, sequence) in delivered.iter().enumerate() {
            self.domain.set_delivered(StreamId(stream as u16), *sequence);
        }
        self.control().set_recovered(Side::Host, epoch);
        if !self.control().await_epoch(epoch, |c| c.recovered(Side::Device, epoch), || {}) {
            return Ok(());
        }
        let left = self.client.left();
        if self.fresh {
            self.fresh = false;
            self.client.adopt(now, &left);
            for each in &left {
                self.workload.inherited(each.request());
            }
        }
        for each in left {
            self.replay(each);
        }
        Ok(())
    }

    fn replay(&mut self, left: Left) {
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        let mut request: Request = *left.request();
        let stream = usize::from(request.stream.0);
        let control = &self.setup.control;
        // A look leaves no trace and a flush has to be done again: only what changes blocks is known as committed.
        let changes = !matches!(request.descriptor.opcode, Opcode::Read | Opcode::Flush | Opcode::Allocation);
        let committed = changes && control.is_committed(stream, request.sequence);
        let refused = changes && !committed && request.sequence <= control.cursors()[stream];
        match left {
            Left::Failed(_) => self.domain.receive(Message { kind: Kind::Complete(request) }, turn),
            Left::Submitted(_) if committed => self.domain.receive(Message { kind: Kind::Complete(request) }, turn),
            Left::Submitted(_) if refused => {
                // The core refused it and died before it could say why.
                request.status = Status::INTERNAL_ERROR;
                self.domain.receive(Message { kind: Kind::Complete(request) }, turn);
            }
            Left::Submitted(_) => {
                self.client.rearm(&request);
                self.domain.submit(request, turn);
            }
        }
    }
}

/// Bytes that a request moves, which are what a rate is of: a trim of a gigabyte moves none.
fn moved_bytes(request: &Request) -> u64 {
    match request.descriptor.opcode {
        Opcode::Write | Opcode::Passthrough | Opcode::Read => {
            u64::from(request.descriptor.blocks) * u64::from(BLOCK_BYTES)
        }
        Opcode::Trim | Opcode::Flush | Opcode::Allocation => 0,
    }
}

/// The longest time between two completions that touches the span from `begin` to `end`.
fn pause_around(times: &[u64], begin: u64, end: u64) -> Option<u64> {
    let first = times.partition_point(|t| *t < begin).checked_sub(1)?;
    let last = times.partition_point(|t| *t < end).min(times.len() - 1);
    (first < last).then(|| times[first..=last].windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0))
}

fn workload(setup: &Setup, job: &Job, delivered: &[u64; STREAMS_MAX]) -> Result<Box<dyn Workload>, RuntimeError> {
    Ok(match job {
        Job::Clients(spec) => Box::new(Clients::new(setup, spec, delivered)?),
        Job::Files(spec) => {
            let corpus = Corpus::load(&spec.inputs, spec.input_bytes_max)?;
            Box::new(Files::new(spec.clone(), corpus, delivered))
        }
        Job::Soak(spec) => {
            let witness = Witness::new(setup.object("witness")?);
            Box::new(Soak::new(spec.clone(), witness, delivered))
        }
    })
}
