//! The machine: domains, rings, device core and media in one virtual time, and their deaths.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use osier_device::{
    CommandId, Completion, Crossing, Device, DeviceParams, Geometry, Lba, Profile, ReadContent, ReadPiece, Status,
    UnitMeta, WriteMeta,
};
use osier_domain::arena::{Buffer, Unit};
use osier_domain::message::{FLAG_FUA, Request};
use osier_domain::migrate::GLOBALS_MAX;
use osier_domain::{ActorId, Domain, Kind, Message, Opcode, STREAMS_MAX, Side, Step};
use osier_flash::MediaOpKind;

use super::actors::{ACTORS, BLOCK, Killed, Sandbox, Shared, plan};
use super::client::{BLOCKS, Client, STREAMS, fill, is_write, submitted};
use super::media::Media;
use super::{Broken, Flaw, Story, TortureParams};
use crate::{Nanos, Rng};

/// Turns that a run may take for each request: far more than any needs.
const TURNS_PER_REQUEST: u64 = 4_000;
/// Turns in which the core is let finish what it has, after the host died.
const DRAIN_TURNS_MAX: u32 = 1_000_000;

/// The steps at which the host may be made to die, and those for the device.
const STEPS_OF_BOTH: [Step; 10] = [
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
];
const STEPS_OF_HOST: [Step; 2] = [Step::SlotFilled, Step::CompletionHeard];
const STEPS_OF_DEVICE: [Step; 4] = [Step::StoreBegins, Step::StoreEnds, Step::ProgramBegins, Step::ProgramEnds];

/// What dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Host,
    Device,
    Both,
    Power,
}

/// A message in a ring, and when the other side can see it.
struct InRing {
    words: [u64; 8],
    visible: Nanos,
}

pub(super) struct World {
    seed: u64,
    params: TortureParams,
    rng: Rng,
    now: Nanos,
    domains: [Domain; 2],
    globals: [[[u64; GLOBALS_MAX]; ACTORS]; 2],
    shared: Shared,
    rings: [VecDeque<InRing>; 2],
    profile: Profile,
    device_params: DeviceParams,
    /// `None` only while it dies.
    device: Option<Device<Vec<u8>>>,
    media: Media,
    /// What the firmware has given to the core.
    commands: BTreeMap<u64, Request>,
    next_command: u64,
    /// Of a planted defect: writes that were answered and not stored.
    answered: VecDeque<Request>,
    client: Client,
    story: Story,
}

impl World {
    pub(super) fn new(seed: u64, params: &TortureParams) -> World {
        let mut rng = Rng::new(seed);
        let owners: Vec<Side> = (0..ACTORS).map(|_| if rng.one_in(2) { Side::Host } else { Side::Device }).collect();
        let domain = |side| Domain::new(side, plan(), &owners, &[0; STREAMS_MAX]);
        let profile = Profile::built_in("wio").expect("a built-in profile");
        let geometry = Geometry {
            channels: 2,
            dies_per_channel: 2,
            planes_per_die: 1,
            blocks_per_plane: [40, 64, 96][rng.below(3) as usize],
            pages_per_block: 8,
            page_bytes: 4096,
        };
        let device_params =
            DeviceParams { geometry, verify: true, streams: STREAMS, salt: 1, ..DeviceParams::new(&profile, BLOCKS) };
        let buffer = vec![0; [264 << 10, 320 << 10, 1 << 20][rng.below(3) as usize]];
        let device = Device::create(&profile, device_params, buffer).expect("a small device");
        let mut media = Media::new(geometry.media_bytes(), rng.fork());
        media.lies = params.flaw == Some(Flaw::LieAboutSync);
        World {
            seed,
            params: *params,
            now: Nanos(0),
            domains: [domain(Side::Host), domain(Side::Device)],
            globals: [[[0; GLOBALS_MAX]; ACTORS]; 2],
            shared: Shared::new(&owners, rng.fork(), params.flaw),
            rings: [VecDeque::new(), VecDeque::new()],
            profile,
            device_params,
            device: Some(device),
            media,
            commands: BTreeMap::new(),
            next_command: 1,
            answered: VecDeque::new(),
            client: Client::new(params.requests, rng.fork()),
            story: Story::default(),
            rng,
        }
    }

    pub(super) fn run(&mut self) -> Result<Story, Broken> {
        self.until_idle(self.params.deaths)?;
        // What was completed must be there after one more death, whatever died before.
        let last = if self.params.power_cuts { Death::Power } else { Death::Both };
        self.die(last);
        self.client.begin_last_reads();
        self.until_idle(false)?;
        let tallies = self.client.check_tallies().map_err(|what| self.broken(what))?;
        if tallies == 0 {
            return Err(self.broken("no output of the stateful actor was ever seen".to_owned()));
        }
        self.story.requests = self.client.completed();
        self.story.failed = self.client.failed;
        self.story.refused = self.client.refused;
        self.story.blocks_compared = self.client.blocks_compared;
        self.story.moves_mid_request = self.shared.moved_mid_request;
        Ok(self.story.clone())
    }

    pub(super) fn broken(&self, what: String) -> Broken {
        Broken { seed: self.seed, at_ns: self.now.0, what }
    }

    fn until_idle(&mut self, deaths: bool) -> Result<(), Broken> {
        let turns_max = TURNS_PER_REQUEST * self.params.requests.max(10);
        for _ in 0..turns_max {
            if self.client.is_idle() {
                return Ok(());
            }
            self.pass_time();
            if deaths {
                self.plan_deaths();
            }
            if self.rng.one_in(12) {
                self.move_some_actor();
            }
            let side = if self.rng.one_in(2) { Side::Host } else { Side::Device };
            self.take_turn(side)?;
            if let Some(what) = self.shared.broken.take() {
                return Err(self.broken(what));
            }
        }
        Err(self.broken(format!("no progress: {} requests completed, the rest never will", self.client.completed())))
    }

    /// Mostly a little, sometimes to where something is known to happen.
    fn pass_time(&mut self) {
        self.now.0 += self.rng.below(3_000);
        if self.rng.one_in(8) {
            let device = self.device.as_ref().and_then(Device::next_event);
            let next = [device, self.media.next_ready()].into_iter().flatten().min();
            self.now = self.now.max(next.unwrap_or(self.now));
        }
    }

    fn plan_deaths(&mut self) {
        if self.rng.one_in(1_500) {
            let side = if self.rng.one_in(2) { Side::Host } else { Side::Device };
            let own: &[Step] = if side == Side::Host { &STEPS_OF_HOST } else { &STEPS_OF_DEVICE };
            let steps: Vec<Step> = STEPS_OF_BOTH.iter().chain(own).copied().collect();
            let step = steps[self.rng.below(steps.len() as u64) as usize];
            self.shared.doom = Some((side, step));
        }
        if self.rng.one_in(5_000) {
            let death = match self.rng.below(4) {
                0 => Death::Host,
                1 => Death::Device,
                2 => Death::Both,
                _ if self.params.power_cuts => Death::Power,
                _ => Death::Both,
            };
            self.die(death);
        }
    }

    fn move_some_actor(&mut self) {
        let actor = ActorId(u16::try_from(self.rng.below(ACTORS as u64)).expect("few"));
        if self.rng.one_in(3) {
            // The request to move may come over the ring, and too late.
            let to = if self.rng.one_in(2) { Side::Host } else { Side::Device };
            let words = Message { kind: Kind::MoveRequest { actor, to } }.encode();
            self.send(to, words);
            return;
        }
        for side in [Side::Host, Side::Device] {
            let moved = self.alive(side, |world| {
                let (domain, mut sandbox) = world.split(side);
                domain.begin_move(actor, &mut sandbox).is_ok()
            });
            if moved == Some(true) {
                self.story.moves += 1;
                return;
            }
        }
    }

    /// Runs code of a domain, which may die of it.
    fn alive<T>(&mut self, side: Side, code: impl FnOnce(&mut World) -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(|| code(self))) {
            Ok(value) => Some(value),
            Err(cause) if cause.is::<Killed>() => {
                let step = self.shared.doomed.take().expect("a death has its step");
                *self.story.deaths_at.entry(step).or_default() += 1;
                self.die(if side == Side::Host { Death::Host } else { Death::Device });
                None
            }
            Err(cause) => resume_unwind(cause),
        }
    }

    fn split(&mut self, side: Side) -> (&mut Domain, Sandbox<'_>) {
        let device = if side == Side::Device { self.device.as_mut() } else { None };
        let globals = &mut self.globals[side as usize];
        let sandbox = Sandbox { side, shared: &mut self.shared, globals, device, now: self.now };
        (&mut self.domains[side as usize], sandbox)
    }

    fn take_turn(&mut self, side: Side) -> Result<(), Broken> {
        let outcome = self.alive(side, |world| {
            world.hear(side);
            world.poll(side);
            let outcome = match side {
                Side::Host => world.serve_clients(),
                Side::Device => {
                    world.firmware();
                    Ok(())
                }
            };
            world.speak(side);
            outcome
        });
        outcome.unwrap_or(Ok(())).map_err(|what| self.broken(what))
    }

    fn hear(&mut self, side: Side) {
        for _ in 0..self.rng.below(6) {
            let ring = &mut self.rings[side as usize];
            if ring.front().is_none_or(|first| first.visible > self.now) {
                return;
            }
            let first = ring.pop_front().expect("just seen");
            let message = Message::decode(&first.words).expect("messages survive their encoding");
            let (domain, mut sandbox) = self.split(side);
            domain.receive(message, &mut sandbox);
        }
    }

    fn poll(&mut self, side: Side) {
        let now = self.now;
        let (domain, mut sandbox) = self.split(side);
        domain.poll(now, &mut sandbox);
    }

    fn speak(&mut self, side: Side) {
        while let Some(message) = self.domains[side as usize].take_outgoing() {
            if self.params.flaw == Some(Flaw::LoseMessage) && self.rng.one_in(200) {
                continue;
            }
            self.send(side.other(), message.encode());
        }
    }

    fn send(&mut self, to: Side, words: [u64; 8]) {
        let ring = &mut self.rings[to as usize];
        // First in, first out: a message is never seen before one that was sent earlier.
        let delay_ns = if self.rng.one_in(20) { self.rng.below(60_000) } else { self.rng.below(900) };
        let earlier = ring.back().map_or(Nanos(0), |last| last.visible);
        ring.push_back(InRing { words, visible: earlier.max(Nanos(self.now.0 + delay_ns)) });
    }

    fn serve_clients(&mut self) -> Result<(), String> {
        while let Some(request) = self.domains[0].take_completion() {
            self.shared.pass(Side::Host, Step::CompletionHeard);
            self.client.complete(&request, &mut self.shared)?;
        }
        if self.rng.one_in(2)
            && let Some(request) = self.client.draw(&mut self.shared)
        {
            self.shared.pass(Side::Host, Step::SlotFilled);
            let request = fill(&mut self.shared, &request);
            let (domain, mut sandbox) = self.split(Side::Host);
            domain.submit(request, &mut sandbox);
        }
        Ok(())
    }

    /// The device's side of the store: commands to the core, operations to the media, answers back.
    fn firmware(&mut self) {
        while let Some(request) = self.answered.pop_front() {
            self.give_to_core(request, false);
        }
        while let Some(request) = self.domains[1].take_store() {
            self.shared.pass(Side::Device, Step::StoreBegins);
            if self.params.flaw == Some(Flaw::AnswerBeforeStore) && is_write(&request) && self.rng.one_in(4) {
                self.answered.push_back(request);
                self.stored(request);
            } else {
                self.give_to_core(request, true);
            }
        }
        for completion in self.drive_core() {
            if let Some(request) = self.commands.remove(&completion.id.0) {
                self.answer(request, &completion);
            }
        }
    }

    fn give_to_core(&mut self, request: Request, wanted: bool) {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        if wanted {
            self.commands.insert(id.0, request);
        }
        let descriptor = &request.descriptor;
        let slba = Lba(descriptor.slba);
        let meta = WriteMeta {
            stream: request.stream.0,
            stream_sequence: request.sequence,
            fua: descriptor.flags & FLAG_FUA != 0,
            crossing: Crossing::Stored,
        };
        let device = self.device.as_mut().expect("the device lives");
        match descriptor.opcode {
            Opcode::Read => device.submit_read(self.now, id, slba, descriptor.blocks, Crossing::Stored),
            Opcode::Trim => device.submit_trim(self.now, id, meta, slba, descriptor.blocks),
            Opcode::Flush => device.submit_flush(self.now, id),
            Opcode::Allocation => unreachable!("no client here asks which blocks take space"),
            Opcode::Write | Opcode::Passthrough => {
                let slot = descriptor.slot.0;
                let shared = &self.shared;
                let rows: Vec<Unit> = (0..descriptor.units).map(|index| shared.unit(slot, index)).collect();
                let payloads: Vec<&[u8]> = (0..descriptor.units).map(|index| shared.content(slot, index)).collect();
                let units: Vec<UnitMeta> = rows.iter().map(|row| unit_meta(row, descriptor.stored_tag().0)).collect();
                device.submit_write(self.now, id, meta, &units, &payloads);
            }
        }
    }

    /// Lets the core and the media do what they can now; returns what completed.
    fn drive_core(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let now = self.now;
        self.device.as_mut().expect("the device lives").poll(now, &mut completions);
        while let Some(op) = self.device.as_mut().and_then(Device::next_op) {
            self.media.begin(now, op);
        }
        while let Some(mut op) = self.media.take_ready(now) {
            let program = matches!(op.kind, MediaOpKind::Program { .. });
            if program {
                self.shared.pass(Side::Device, Step::ProgramBegins);
            }
            let result = self.media.carry_out(&mut op);
            if program {
                self.shared.pass(Side::Device, Step::ProgramEnds);
            }
            self.device.as_mut().expect("the device lives").media_done(now, op.id, result);
        }
        completions
    }

    fn answer(&mut self, mut request: Request, completion: &Completion) {
        request.status = completion.status;
        if !completion.status.is_success() {
            self.shared.failed.insert(request.descriptor.slot.0, completion.status);
        }
        match request.descriptor.opcode {
            Opcode::Read if completion.status.is_success() => self.fetched(&mut request, &completion.pieces),
            Opcode::Write | Opcode::Passthrough => self.shared.pass(Side::Device, Step::StoreEnds),
            _ => {}
        }
        self.stored(request);
    }

    fn stored(&mut self, request: Request) {
        let (domain, mut sandbox) = self.split(Side::Device);
        domain.stored(request, &mut sandbox);
    }

    /// Puts what was read into the request's slot: zeroes to their place, extents to be decoded.
    fn fetched(&mut self, request: &mut Request, pieces: &[ReadPiece]) {
        let slot = request.descriptor.slot.0;
        request.descriptor.units = 0;
        for piece in pieces {
            let len = piece.blocks as usize * BLOCK;
            match &piece.content {
                ReadContent::Unmapped => {
                    let offset = self.shared.layout.unit_offset(Buffer::Raw, 0, piece.block_offset);
                    self.shared.slot_mut(slot, offset, len).fill(0);
                }
                ReadContent::Stored { extent, first, data } => {
                    let index = request.descriptor.units;
                    request.descriptor.units += 1;
                    let unit = Unit {
                        slba: extent.slba.0,
                        version: extent.sequence,
                        bytes: u32::try_from(data.len()).expect("a unit"),
                        raw_bytes: extent.raw_bytes,
                        tag: extent.tag,
                        request_block: piece.block_offset,
                        skip_blocks: *first,
                        blocks: u16::try_from(piece.blocks).expect("few"),
                        buffer: Buffer::A,
                    };
                    self.shared.set_unit(slot, index, &unit);
                    let offset = self.shared.layout.unit_offset(Buffer::A, index, piece.block_offset);
                    self.shared.slot_mut(slot, offset, data.len()).copy_from_slice(data);
                }
            }
        }
    }

    /// A death, and the recovery from it.
    fn die(&mut self, death: Death) {
        self.story.deaths[death as usize] += 1;
        self.shared.doom = None;
        self.rings = [VecDeque::new(), VecDeque::new()];
        let alive = match death {
            Death::Host => [false, true],
            Death::Device => [true, false],
            Death::Both | Death::Power => [false, false],
        };
        if alive[Side::Device as usize] {
            self.drain_core();
        } else {
            self.lose_device(death == Death::Power);
        }
        self.commands.clear();
        self.answered.clear();
        let gates = self.gates();
        // The supervisor restarts what died; whoever comes first takes the decision, the other finds it.
        let mut order = [Side::Host, Side::Device];
        order.sort_by_key(|side| alive[*side as usize]);
        for side in order {
            self.recover(side, alive, &gates);
        }
        self.replay(&gates);
    }

    /// With the host gone nobody waits for answers, but what the core has begun it ends: a write that
    /// waits for room must not come after its replay.
    fn drain_core(&mut self) {
        for _ in 0..DRAIN_TURNS_MAX {
            self.drive_core();
            let device = self.device.as_ref().expect("the device lives");
            if device.commands_in_flight() == 0 {
                return;
            }
            let next = [device.next_event(), self.media.next_ready()].into_iter().flatten().min();
            self.now = self.now.max(next.expect("commands in flight end some time"));
        }
        panic!("the core never ends what it has begun");
    }

    fn lose_device(&mut self, power: bool) {
        let buffer = self.device.take().expect("the device lived").into_buffer();
        self.media.device_dies();
        if power {
            self.media.power_goes();
        }
        let media = &self.media;
        let mut read = |address: u64, into: &mut [u8]| {
            media.read(address, into);
            Ok(())
        };
        let recovered = Device::recover(&self.profile, self.device_params, buffer, &mut read);
        let (device, _) = recovered.unwrap_or_else(|error| panic!("recovery failed: {error}"));
        self.device = Some(device);
    }

    /// For each stream the sequence before the first that will be replayed.
    fn gates(&self) -> [u64; STREAMS_MAX] {
        let device = self.device.as_ref().expect("the device lives");
        let mut gates = [0; STREAMS_MAX];
        for (stream, gate) in (0..STREAMS).zip(&mut gates) {
            *gate = device.stream_cursor(stream).max(self.client.delivered(stream));
        }
        gates
    }

    fn recover(&mut self, side: Side, alive: [bool; 2], gates: &[u64; STREAMS_MAX]) {
        // By default actors are on the host; the records say otherwise for almost all.
        let defaults = [Side::Host; ACTORS];
        if alive[side as usize] {
            if self.params.flaw == Some(Flaw::StaleOwner) {
                return;
            }
        } else {
            self.globals[side as usize] = [[0; GLOBALS_MAX]; ACTORS];
            self.domains[side as usize] = Domain::new(side, plan(), &defaults, gates);
            for stream in 0..STREAMS {
                let delivered = self.client.delivered(stream);
                self.domains[side as usize].set_delivered(osier_domain::StreamId(stream), delivered);
            }
        }
        let (domain, mut sandbox) = self.split(side);
        for resolution in domain.recover(alive, &defaults, gates, &mut sandbox) {
            self.story.count(resolution);
        }
    }

    /// Every request that lies in a slot: answered if it was committed, else given again.
    fn replay(&mut self, gates: &[u64; STREAMS_MAX]) {
        for request in submitted(&self.shared) {
            let slot = request.descriptor.slot.0;
            if self.is_over(&request, gates) {
                let status = self.fate(&request);
                let message = Message { kind: Kind::Complete(Request { status, ..request }) };
                let (domain, mut sandbox) = self.split(Side::Host);
                domain.receive(message, &mut sandbox);
            } else if self.params.flaw != Some(Flaw::ForgetReplay) {
                self.story.replayed += 1;
                self.shared.failed.remove(&slot);
                let request = fill(&mut self.shared, &request);
                let (domain, mut sandbox) = self.split(Side::Host);
                domain.submit(request, &mut sandbox);
            }
        }
    }

    /// How a request went that the cursor of its stream has passed. That it was passed does not say
    /// that it was stored: it may have failed, and later ones not.
    fn fate(&self, request: &Request) -> Status {
        let device = self.device.as_ref().expect("the device lives");
        let failed = self.shared.failed.get(&request.descriptor.slot.0).copied();
        match device.is_committed(request.stream.0, request.sequence) {
            true => Status::SUCCESS,
            false => failed.unwrap_or(Status::INTERNAL_ERROR),
        }
    }

    fn is_over(&self, request: &Request, gates: &[u64; STREAMS_MAX]) -> bool {
        let device = self.device.as_ref().expect("the device lives");
        match request.descriptor.opcode {
            Opcode::Write | Opcode::Passthrough => request.sequence <= gates[usize::from(request.stream.0)],
            Opcode::Trim => device.is_committed(request.stream.0, request.sequence),
            Opcode::Read | Opcode::Flush | Opcode::Allocation => false,
        }
    }
}

fn unit_meta(row: &Unit, tag: u32) -> UnitMeta {
    UnitMeta { slba: Lba(row.slba), blocks: row.blocks, raw_bytes: row.raw_bytes, stored_bytes: row.bytes, tag }
}
