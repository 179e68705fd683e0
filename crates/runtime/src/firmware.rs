//! The device's domain process: the firmware loop that drives the device core with the monotonic clock,
//! moves bytes between the arena, the core and the media, and runs the device's stages.
//!
//! Invariants:
//! 1. The core alone decides when a command is complete; this loop only tells it the time and what the media
//!    did.
//! 2. A request taken from the domain is in `begun` until the core has answered; parking waits for that, so
//!    that the cursors published then are final.
//! 3. Between two looks at the ring lies at most one request given to the core, if there is something in the ring,
//!    one operation that goes to the media or comes from them, or what the core has concluded: what waits there may
//!    be an actor that arrives, and its stream waits too.

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use osier_device::record::Recorded;
use osier_device::{CommandId, Completion, Crossing, ReadContent, UnitMeta, WriteMeta};
use osier_domain::arena::{Buffer, Unit};
use osier_domain::message::{FLAG_FUA, Request};
use osier_domain::{Direction, Domain, Nanos, Opcode, STREAMS_MAX, Side, Status, Step, Tag};
use osier_flash::{BLOCK_BYTES, Lba, MediaOp, MediaOpKind, MediaResult, OpId};
use osier_image::{Media, SyncTicket, SyncWorker};
use osier_pmr::{WaitPolicy, Waiter};

use crate::board::Board;
use crate::bootstrap::Bootstrap;
use crate::client::note_failure;
use crate::clock;
use crate::control::Gauge;
use crate::error::RuntimeError;
use crate::host::FIRST_EPOCH;
use crate::link::Link;
use crate::machine::{Machine, Turn};
use crate::media::{Answer, MediaWork};
use crate::setup::{BufferBytes, Setup};
use crate::waits::{Meter, Reason};

/// Between two publications of the gauges.
const GAUGES_NS: u64 = 1_000_000;
/// Between two looks at this process's processor time, and at whether it has anything to do.
const USAGE_NS: u64 = 50_000_000;
/// Between two tellings of the board.
const BOARD_NS: u64 = 250_000_000;
/// A refusal of the media is told of, and then the one after so many doublings of their number.
const TOLD_EVERY_DOUBLINGS: u32 = 4;
/// Runs of blocks in one answer to which of them take space: they fit a block, and every request has room for one.
const ALLOCATION_RUNS_MAX: usize = BLOCK_BYTES as usize / size_of::<u32>();
/// How long an idle device sleeps at most.
const IDLE_MAX: Duration = Duration::from_millis(1);
/// How long it sleeps while it has nothing but the media to wait for, and nobody to talk to.
const PAUSE: Duration = Duration::from_micros(50);

/// Runs the device's domain until it is told to stop.
pub fn run(bootstrap: &Bootstrap) -> Result<(), RuntimeError> {
    let mut firmware = Firmware::open(bootstrap)?;
    firmware.publish_cursors();
    // Before anyone samples: a temperature that was never published would be read as absolute cold.
    firmware.publish_gauges(clock::now());
    firmware.setup.control.set_ready(Side::Device, bootstrap.epoch);
    firmware.rejoin(bootstrap.epoch)?;
    while !firmware.setup.control.stopping() {
        firmware.turn()?;
    }
    firmware.shut_down()
}

struct Firmware {
    setup: Setup,
    machine: Machine,
    domain: Domain,
    link: Link,
    device: Recorded<BufferBytes>,
    media: Arc<dyn Media>,
    work: MediaWork,
    sync: SyncWorker,
    syncs: Vec<(SyncTicket, OpId)>,
    next_sync: u64,
    /// Operations that the media refused.
    refusals: u64,
    waiter: Waiter,
    epoch: u64,
    model_timing: bool,
    /// False without media: what was written is nowhere.
    with_data: bool,
    digest: Option<[u32; STREAMS_MAX]>,
    /// Requests that the core works on, by their slots.
    begun: Vec<Option<Request>>,
    next_command: u64,
    next_gauges: Nanos,
    next_usage: Nanos,
    board: Board,
    next_board: Nanos,
    meter: Meter,
    completions: Vec<Completion>,
    payload: Vec<u8>,
}

impl Firmware {
    fn open(bootstrap: &Bootstrap) -> Result<Firmware, RuntimeError> {
        let setup = Setup::open(bootstrap)?;
        let machine = setup.machine(Side::Device)?;
        let media = setup.media()?;
        let device = setup.device(media.as_ref(), bootstrap.epoch > FIRST_EPOCH)?;
        let wait: WaitPolicy =
            bootstrap.options.device_wait.parse().map_err(|e| RuntimeError::Option(format!("{e}")))?;
        let waiter = Waiter::new(wait).map_err(|e| RuntimeError::Option(format!("{e}")))?;
        let link = setup.link(Side::Device, bootstrap.epoch)?;
        let ring = || {
            let bell = link.bell().clone();
            move || _ = bell.ring()
        };
        let sync = SyncWorker::spawn(media.clone(), ring())
            .map_err(|source| RuntimeError::System { what: "start the media's sync thread", source })?;
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let work = MediaWork::new(media.clone(), setup.media_may_wait() && processors > 1, ring())
            .map_err(|source| RuntimeError::System { what: "start the media's thread", source })?;
        Ok(Firmware {
            domain: setup.domain(Side::Device),
            link,
            begun: vec![None; usize::from(machine.arena.layout().slots)],
            meter: Meter::new(clock::now().0, setup.control.account()),
            with_data: setup.keeps_bytes(),
            board: setup.board()?,
            setup,
            machine,
            device,
            media,
            work,
            sync,
            syncs: Vec::new(),
            next_sync: 0,
            refusals: 0,
            waiter,
            epoch: bootstrap.epoch,
            model_timing: bootstrap.options.model_timing,
            digest: bootstrap.options.digest.then_some([0; STREAMS_MAX]),
            next_command: 0,
            next_gauges: Nanos(0),
            next_usage: Nanos(0),
            next_board: Nanos(0),
            completions: Vec::new(),
            payload: Vec::new(),
        })
    }

    fn turn(&mut self) -> Result<(), RuntimeError> {
        if self.setup.control.epoch() != self.epoch {
            return self.park();
        }
        let now = clock::now();
        self.meter.turn(now.0);
        let mut busy = self.run_domain(now);
        busy |= self.begin_requests(now);
        busy |= self.run_domain(now);
        busy |= self.conclude(now);
        busy |= self.run_domain(now);
        // What the core asks of the media, it has asked for by now.
        busy |= self.work(now);
        busy |= self.link.dispatch(&mut self.domain);
        // What has come meanwhile, perhaps an actor, does not wait for the gauges, which may be late by one interval.
        if now >= self.next_gauges && (!self.link.has_message() || now.0 >= self.next_gauges.0 + GAUGES_NS) {
            self.publish_gauges(now);
        }
        if !busy {
            self.wait(now);
        }
        Ok(())
    }

    /// Messages in, at most one chunk of each actor, messages out.
    fn run_domain(&mut self, now: Nanos) -> bool {
        let compute = self.model_timing.then(|| self.device.compute(now));
        let turn = &mut Turn { machine: &mut self.machine, compute };
        self.link.exchange(now, &mut self.domain, turn)
    }

    fn begin_requests(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(request) = self.domain.take_store() {
            any = true;
            if let Err(status) = self.begin(now, &request) {
                note_failure(&self.machine.arena, request.descriptor.slot, status);
                self.answer(now, Request { status, ..request });
            }
            if self.link.has_message() {
                break;
            }
        }
        any
    }

    /// What crosses the link for a write: its raw bytes if the first stage runs here, else what the host's stages
    /// made of them.
    fn crossing(&self, tag: Tag) -> Crossing {
        match self.domain.plan().stage(tag, Direction::Forward, 0) {
            Some(first) if self.domain.owns(first) => Crossing::Raw,
            _ => Crossing::Stored,
        }
    }

    /// What crosses the link for a read: which pipelines its extents went through is not known before they are
    /// found, so this goes by whether the device has every actor.
    fn read_crossing(&self) -> Crossing {
        let all = self.domain.plan().pipelines().iter().flat_map(|p| &p.stages).all(|a| self.domain.owns(*a));
        if all { Crossing::Raw } else { Crossing::Stored }
    }

    /// Hands a request to the core; `Err` when it is not one that the core can be asked.
    fn begin(&mut self, now: Nanos, request: &Request) -> Result<(), Status> {
        let descriptor = &request.descriptor;
        // Numbered by slot, because a request may wait for long while others come and go.
        let place = usize::from(descriptor.slot.0);
        let id = CommandId(self.next_command << 16 | place as u64);
        assert!(self.begun[place].is_none(), "two requests in slot {place}");
        let meta = WriteMeta {
            stream: request.stream.0,
            stream_sequence: request.sequence,
            fua: descriptor.flags & FLAG_FUA != 0,
            crossing: self.crossing(descriptor.tag),
        };
        match descriptor.opcode {
            Opcode::Write | Opcode::Passthrough => {
                self.machine.passed(Step::StoreBegins, None);
                self.begin_write(now, id, meta, request)?;
                self.machine.passed(Step::StoreEnds, None);
            }
            Opcode::Read => {
                let crossing = self.read_crossing();
                self.device.submit_read(now, id, Lba(descriptor.slba), descriptor.blocks, crossing);
            }
            Opcode::Trim => {
                self.device.submit_trim(now, id, meta, Lba(descriptor.slba), descriptor.blocks);
            }
            Opcode::Flush => self.device.submit_flush(now, id),
            Opcode::Allocation => return self.say_allocation(now, *request),
        }
        self.begun[place] = Some(*request);
        self.next_command += 1;
        Ok(())
    }

    /// Which blocks take space. That is in the map, so that neither the core nor the media have anything to do.
    fn say_allocation(&mut self, now: Nanos, mut request: Request) -> Result<(), Status> {
        let descriptor = &mut request.descriptor;
        let runs = self.device.allocation(Lba(descriptor.slba), descriptor.blocks, ALLOCATION_RUNS_MAX)?;
        let words: Vec<u8> = runs.iter().flat_map(|run| run.to_word().to_le_bytes()).collect();
        self.machine.arena.write_raw(descriptor.slot, 0, &words);
        descriptor.units = runs.len() as u16;
        self.answer(now, request);
        Ok(())
    }

    fn begin_write(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, request: &Request) -> Result<(), Status> {
        let slot = request.descriptor.slot;
        let mut metas = Vec::with_capacity(usize::from(request.descriptor.units));
        let mut ends = Vec::with_capacity(usize::from(request.descriptor.units));
        self.payload.clear();
        for index in 0..request.descriptor.units {
            let unit = self.machine.arena.unit(slot, index).ok_or(Status::INTERNAL_ERROR)?;
            let start = self.payload.len();
            self.payload.resize(start + unit.bytes as usize, 0);
            self.machine.arena.read_unit(slot, index, &unit, 0, &mut self.payload[start..]);
            ends.push(start..self.payload.len());
            metas.push(UnitMeta {
                slba: Lba(unit.slba),
                blocks: unit.blocks,
                raw_bytes: unit.raw_bytes,
                stored_bytes: unit.bytes,
                tag: request.descriptor.stored_tag().0,
            });
        }
        if let Some(digests) = &mut self.digest {
            let digest = &mut digests[usize::from(meta.stream)];
            *digest = crc32c::crc32c_append(*digest, &self.payload);
        }
        // The core checks no bytes that it does not keep, nor does a replay of its recording have them.
        let kept = |range: Range<usize>| if self.with_data { &self.payload[range] } else { &[] };
        let payloads: Vec<&[u8]> = ends.into_iter().map(kept).collect();
        self.device.submit_write(now, id, meta, &metas, &payloads);
        Ok(())
    }

    /// What the media did since, and one operation for them.
    fn work(&mut self, now: Nanos) -> bool {
        let mut any = self.finish_syncs(now);
        if self.work.has_room()
            && let Some(op) = self.device.next_op()
        {
            any = true;
            self.hand(now, op);
        }
        if let Some(answer) = self.work.answer() {
            any = true;
            self.answered(now, answer);
        }
        any || self.work.has_answer()
    }

    fn hand(&mut self, now: Nanos, op: MediaOp) {
        match op.kind {
            MediaOpKind::Sync => return self.begin_sync(now, op.id),
            // Nothing is there to read, and the core looks at nothing.
            MediaOpKind::Read { .. } if !self.with_data => {
                return self.device.media_done(now, op.id, MediaResult::Read(Box::default()));
            }
            MediaOpKind::Program { data: Some(_), .. } => self.machine.passed(Step::ProgramBegins, None),
            _ => {}
        }
        self.work.hand(op);
    }

    fn answered(&mut self, now: Nanos, answer: Answer) {
        if let Ok(MediaResult::Programmed(Some(_))) = answer.result {
            self.machine.passed(Step::ProgramEnds, None);
        }
        let result = answer.result.unwrap_or_else(|error| self.refused(&error));
        self.device.media_done(now, answer.id, result);
    }

    /// The core's completions.
    fn conclude(&mut self, now: Nanos) -> bool {
        let mut completions = std::mem::take(&mut self.completions);
        self.device.poll(now, &mut completions);
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            self.completed(now, completion);
        }
        self.completions = completions;
        any
    }

    /// The core and its media, while there is nobody to talk to.
    fn drive(&mut self, now: Nanos) {
        let busy = self.work(now);
        if !self.conclude(now) && !busy {
            std::thread::sleep(PAUSE);
        }
    }

    /// A full disk refuses every page: it is told of less and less often.
    fn refused(&mut self, error: &osier_image::MediaError) -> MediaResult {
        self.refusals += 1;
        if self.refusals.is_power_of_two() && self.refusals.ilog2().is_multiple_of(TOLD_EVERY_DOUBLINGS) {
            tracing::error!(%error, refusals = self.refusals, "the media refused to {}", error.operation);
        }
        MediaResult::Failed(crate::setup::media_error(error))
    }

    fn begin_sync(&mut self, now: Nanos, op: OpId) {
        let ticket = SyncTicket(self.next_sync);
        self.next_sync += 1;
        match self.sync.submit(ticket) {
            Ok(()) => self.syncs.push((ticket, op)),
            // The worker's queue is longer than the barriers that a core has under way; should it be full all
            // the same, this thread waits for the media itself.
            Err(_) => {
                let result = self.media.sync().map_or_else(|e| self.refused(&e), |()| MediaResult::Synced);
                self.device.media_done(now, op, result);
            }
        }
    }

    fn finish_syncs(&mut self, now: Nanos) -> bool {
        let mut any = false;
        while let Some(done) = self.sync.poll() {
            any = true;
            let Some(index) = self.syncs.iter().position(|(ticket, _)| *ticket == done.ticket) else { continue };
            let (_, op) = self.syncs.swap_remove(index);
            let result = done.result.map_or_else(|e| self.refused(&e), |()| MediaResult::Synced);
            self.device.media_done(now, op, result);
        }
        any
    }

    fn completed(&mut self, now: Nanos, completion: Completion) {
        let place = (completion.id.0 & 0xffff) as usize;
        let Some(request) = self.begun[place].take() else {
            panic!("the core completed command {:?}, which it was not asked", completion.id)
        };
        let mut request = Request { status: completion.status, ..request };
        if request.descriptor.opcode == Opcode::Read && completion.status.is_success() {
            match self.fill(&request, completion) {
                Ok(units) => request.descriptor.units = units,
                Err(status) => request.status = status,
            }
        } else if !completion.status.is_success() {
            note_failure(&self.machine.arena, request.descriptor.slot, completion.status);
        }
        self.answer(now, request);
    }

    /// Puts what the core read into the request's slot; the number of units.
    fn fill(&mut self, request: &Request, completion: Completion) -> Result<u16, Status> {
        let mut units = 0;
        let arena = &self.machine.arena;
        let slot = request.descriptor.slot;
        for (index, piece) in completion.pieces.into_iter().enumerate() {
            let hole = Unit {
                slba: request.descriptor.slba + u64::from(piece.block_offset),
                version: 0,
                bytes: 0,
                raw_bytes: piece.blocks * BLOCK_BYTES,
                tag: Tag::NONE.0,
                request_block: piece.block_offset,
                skip_blocks: 0,
                blocks: piece.blocks as u16,
                buffer: Buffer::A,
            };
            let (unit, data) = match piece.content {
                // Nothing was ever written there: no bytes, which are delivered as zeroes.
                ReadContent::Unmapped => (hole, Box::default()),
                // It took its time. Zeroes would pass for what was written.
                ReadContent::Stored { .. } if !self.with_data => return Err(Status::UNRECOVERED_READ_ERROR),
                ReadContent::Stored { extent, first, data } => {
                    let unit = Unit {
                        slba: extent.slba.0,
                        version: extent.sequence,
                        bytes: data.len() as u32,
                        raw_bytes: extent.raw_bytes,
                        tag: extent.tag,
                        skip_blocks: first,
                        ..hole
                    };
                    (unit, data)
                }
            };
            if unit.bytes > arena.layout().unit_capacity() || index as u32 >= arena.layout().units_max() {
                // Written by a pipeline with larger units than any that this device has now.
                return Err(Status::ACTOR_FAILED);
            }
            arena.write_unit(slot, index as u16, Buffer::A, piece.block_offset, &data);
            arena.set_unit(slot, index as u16, &unit);
            units = index as u16 + 1;
        }
        Ok(units)
    }

    fn answer(&mut self, now: Nanos, request: Request) {
        let compute = self.model_timing.then(|| self.device.compute(now));
        self.domain.stored(request, &mut Turn { machine: &mut self.machine, compute });
    }

    fn wait(&mut self, now: Nanos) {
        let compute = self.model_timing.then(|| self.device.compute(now));
        let turn = &mut Turn { machine: &mut self.machine, compute };
        let events = [self.domain.next_event(now, turn), self.device.next_event()];
        let until = events.into_iter().flatten().fold(self.next_gauges, Nanos::min);
        let reason = self.waits_for(now, events.iter().any(Option::is_some));
        let left = Duration::from_nanos(until.0.saturating_sub(now.0)).min(IDLE_MAX);
        if !left.is_zero() {
            let Firmware { machine, waiter, link, work, sync, syncs, .. } = self;
            // The media's threads ring the bell too.
            let look = || link.has_message() || work.has_answer() || !syncs.is_empty() && sync.has_done();
            let (since, slept) = machine.rest.wait(waiter, &[link.bell()], left, look);
            self.meter.waited(reason, since, left.as_nanos() as u64, slept);
        }
    }

    /// What the requests that are here wait for, when nothing can be done; `due` says that a time will come.
    fn waits_for(&self, now: Nanos, due: bool) -> Reason {
        match self.domain.pending() > 0 || self.begun.iter().any(Option::is_some) {
            true if self.work.is_late(now) => Reason::Media,
            true if due => Reason::Due,
            true if !self.syncs.is_empty() => Reason::Sync,
            _ => Reason::Idle,
        }
    }

    fn publish_gauges(&mut self, now: Nanos) {
        self.next_gauges = Nanos(now.0 + GAUGES_NS);
        self.meter.look();
        self.setup.control.set_account(&self.meter.account());
        if let Some(digests) = &self.digest {
            self.setup.control.set_digest([u64::from(digests[0]), u64::from(digests[1])]);
        }
        if now >= self.next_usage {
            self.next_usage = Nanos(now.0 + USAGE_NS);
            self.setup.control.set_gauge(Gauge::DeviceCpu, clock::cpu());
            self.publish_idleness(now);
            self.device.flush_recording();
        } else if now >= self.next_board {
            self.next_board = Nanos(now.0 + BOARD_NS);
            self.board.tell(now, &self.device.stats().to_json(), self.device.die_busy_ns());
        }
        self.setup.publish(now, &mut self.device, &self.domain, &self.machine.runner);
    }

    /// Says that there is nothing to do and nothing is waited for, and what is here all the same.
    fn publish_idleness(&mut self, now: Nanos) {
        let compute = self.model_timing.then(|| self.device.compute(now));
        let turn = &mut Turn { machine: &mut self.machine, compute };
        let core_is_idle = self.begun.iter().all(Option::is_none);
        let idle = core_is_idle && !self.link.has_message() && self.domain.next_event(now, turn).is_none();
        if idle {
            self.setup.control.set_holds(self.domain.requests().map(|(request, _)| request.descriptor.slot));
        }
        self.setup.control.set_gauge(Gauge::IdleAt, if idle { now.0 } else { 0 });
    }

    fn publish_cursors(&self) {
        for stream in 0..STREAMS_MAX {
            let cursor = self.device.stream_cursor(stream as u16);
            let committed = |behind: &u64| {
                cursor.checked_sub(*behind).is_some_and(|s| s > 0 && self.device.is_committed(stream as u16, s))
            };
            let window = (0..64u64).filter(committed).fold(0, |bits, behind| bits | 1 << behind);
            self.setup.control.set_cursor(stream, cursor, window);
        }
    }

    /// The host has died: let the core end what it has begun, publish the cursors, and wait.
    fn park(&mut self) -> Result<(), RuntimeError> {
        let since = clock::now().0;
        let epoch = self.setup.control.epoch();
        while self.begun.iter().any(Option::is_some) {
            self.drive(clock::now());
            // Answers are for a host that is gone; its successor learns of them by the cursors.
            while self.domain.take_outgoing().is_some() {}
        }
        self.publish_cursors();
        self.setup.control.set_parked(Side::Device, epoch);
        self.setup.control.set_ready(Side::Device, epoch);
        let rejoined = self.rejoin(epoch);
        self.meter.waited(Reason::Idle, since, u64::MAX, true);
        rejoined
    }

    /// Waits until the supervisor lets the epoch begin.
    fn rejoin(&mut self, epoch: u64) -> Result<(), RuntimeError> {
        let control = self.setup.control.clone();
        let began = control.await_epoch(epoch, |c| c.go() == epoch, || self.drive(clock::now()));
        if !began {
            return Ok(());
        }
        self.epoch = epoch;
        self.link = self.setup.link(Side::Device, epoch)?;
        let (cursors, delivered) = (control.cursors(), control.delivered());
        let gates: [u64; STREAMS_MAX] = std::array::from_fn(|s| cursors[s].max(delivered[s]));
        let turn = &mut Turn { machine: &mut self.machine, compute: None };
        self.domain.recover(control.alive(), &self.setup.defaults, &gates, turn);
        control.set_recovered(Side::Device, epoch);
        control.await_epoch(epoch, |c| c.recovered(Side::Host, epoch), || {});
        Ok(())
    }

    /// Drains the write buffer to the media, so that a clean stop leaves nothing to recover.
    fn shut_down(&mut self) -> Result<(), RuntimeError> {
        let id = CommandId(self.next_command << 16);
        let mut done = false;
        self.device.submit_flush(clock::now(), id);
        // Beyond the flush, what it made free in the buffer is freed.
        while !done || self.device.next_event().is_some_and(|at| at <= clock::now()) {
            let now = clock::now();
            self.work(now);
            let mut completions = Vec::new();
            self.device.poll(now, &mut completions);
            done |= completions.iter().any(|c| c.id == id);
        }
        self.device.end_recording();
        Ok(())
    }
}
