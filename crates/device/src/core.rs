//! The device: write buffer, flash, heat and cost behind one set of commands. Sans-IO.
//!
//! ```text
//! submit_* ──> link and controller (when is it due?) ──> write buffer ── drain ──> FTL ──> media
//!                                                            │                      │
//! poll <── completions, each at max(due, media done) <───────┴──────── reads <──────┘
//! ```
//!
//! A write is in one of three states:
//! - *visible*: its records are committed in the write buffer; reads see it;
//! - *completed*: it was answered; it survives the death of the process;
//! - *persistent*: it survives a loss of power. That is when the media has synced it, or at once if
//!   the profile says that the buffer is power-fail protected.
//!
//! Invariants:
//! 1. Nothing is answered before it is in the buffer; a flush is not answered before everything
//!    completed ahead of it is persistent.
//! 2. A record leaves the buffer only when its pages are programmed, and, if the buffer is what
//!    persistence rests on, synced.
//! 3. Records go to the flash in the order of their sequence. Reads look in the buffer first, so the
//!    newest shows.
//! 4. A payload is never answered unless its checksum holds.
//! 5. What was admitted can be stored: admission counts every record that the flash does not have
//!    yet. A full buffer makes writes wait; a full flash refuses them.
//! 6. While the throttle says shut down, every command is answered with
//!    [`Status::THERMAL_SHUTDOWN`], those that wait included; what was completed stays so.
//!
//! The modules follow a command: here what comes in and goes out, `drain` the way to the flash and
//! the barriers, `reading` the way back; `recovery` is what comes before all of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use osier_flash::{
    AppendId, Extent, ExtentKind, Ftl, FtlError, FtlEvent, Geometry, Lba, MediaError, MediaOp, MediaOpKind,
    MediaResult, Nanos, OpId, ReadId, SyncId, extent_footprint,
};

use crate::buffer::{BufferError, Bytes, Record, RecordKind, WriteBuffer, record_bytes};
use crate::compute::{Compute, stretch};
use crate::pending::Pending;
use crate::predict::Crossing;
use crate::profile::{LinkPath, Profile, transfer_ns};
use crate::status::Status;
use crate::thermal::{Thermal, Transition};

mod allocation;
mod drain;
mod reading;
mod recovery;
mod stats;

pub use allocation::Run;
pub(crate) use reading::Compared;
pub(crate) use recovery::ReadMedia;
pub use recovery::{BufferState, RecoveryReport};
pub use stats::{DeviceSample, DeviceStats};

/// Most logical blocks of one read.
pub const READ_BLOCKS_MAX: u32 = 8192;
/// Most units of one write.
pub const UNITS_MAX: usize = 4096;
/// Logical blocks that one trim record covers at most; a longer trim is cut.
const TRIM_RECORD_BLOCKS_MAX: u32 = 1 << 20;
/// Most commands in flight; the queues above are far shorter.
pub(crate) const COMMANDS_MAX: usize = 1 << 20;

/// The caller's name for a command; it comes back in the completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// What a write or a trim says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMeta {
    /// Stream that it belongs to.
    pub stream: u16,
    /// Its number in the stream, rising; 0 for none. A number that was committed before is answered
    /// with success and not written again.
    pub stream_sequence: u64,
    /// Force Unit Access: answered only when it is persistent.
    pub fua: bool,
    /// What crossed the link for it.
    pub crossing: Crossing,
}

impl Default for WriteMeta {
    fn default() -> WriteMeta {
        WriteMeta { stream: 0, stream_sequence: 0, fua: false, crossing: Crossing::Stored }
    }
}

/// One unit of a write, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnitMeta {
    /// First logical block.
    pub slba: Lba,
    /// Logical blocks that it covers, at least 1.
    pub blocks: u16,
    /// Bytes before the pipeline: at least 1, at most those of its blocks.
    pub raw_bytes: u32,
    /// Bytes after the pipeline: the length of the payload.
    pub stored_bytes: u32,
    /// The pipeline that made them.
    pub tag: u32,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's name for the command.
    pub id: CommandId,
    /// How it ended.
    pub status: Status,
    /// When the model says it ended; `poll` reports it at or after this time.
    pub due: Nanos,
    /// What a read found, in address order and without gaps; empty otherwise.
    pub pieces: Vec<ReadPiece>,
}

/// A run of blocks of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPiece {
    /// First block, counted from the request's first.
    pub block_offset: u32,
    /// Length in blocks.
    pub blocks: u32,
    /// Where its bytes come from.
    pub content: ReadContent,
}

/// What a [`ReadPiece`] reads from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadContent {
    /// Never written or trimmed: zeroes.
    Unmapped,
    /// Part of an extent.
    Stored {
        /// The extent, as it was written.
        extent: Extent,
        /// Index within the extent of the run's first block.
        first: u16,
        /// All stored bytes of the extent, checked; empty without data.
        data: Box<[u8]>,
    },
}

/// What a device is made with, beside its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceParams {
    /// The flash array, usually [`Profile::geometry_for`].
    pub geometry: Geometry,
    /// Logical blocks that it shows.
    pub logical_blocks: u64,
    /// Whether bytes are kept. Without, only time, space and heat are modelled.
    pub with_data: bool,
    /// Whether it may show more logical blocks than fit if nothing compresses.
    pub thin: bool,
    /// Whether costly audits run now and then: for tests and simulations.
    pub verify: bool,
    /// Streams that it keeps cursors for.
    pub streams: u16,
    /// Any number that differs from one device to the next: marks its log.
    pub salt: u32,
}

impl DeviceParams {
    /// A device with data, not thin, on the smallest array that holds it.
    #[must_use]
    pub fn new(profile: &Profile, logical_blocks: u64) -> DeviceParams {
        DeviceParams {
            geometry: profile.geometry_for(logical_blocks),
            logical_blocks,
            with_data: true,
            thin: false,
            verify: false,
            streams: 256,
            salt: 0,
        }
    }
}

/// A device that cannot be made or recovered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The flash layer refused.
    #[error(transparent)]
    Flash(#[from] FtlError),
    /// The write buffer refused.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The log ends before what the flash has: it is not this device's, or an old copy.
    #[error(
        "device: the write buffer ends before record {buffer} and the flash has record {flash}; the buffer is an \
         old copy or another device's; nothing was changed; restore the matching pair"
    )]
    BufferBehindMedia {
        /// Next sequence number of the log.
        buffer: u64,
        /// Newest sequence number on the flash.
        flash: u64,
    },
    /// A record of the log covers blocks that the device does not have.
    #[error(
        "device: record {sequence} of the write buffer covers blocks {slba}+{blocks}, beyond the device's \
         {logical_blocks}; the buffer belongs to a larger device; nothing was changed"
    )]
    RecordOutOfRange {
        /// The record.
        sequence: u64,
        /// Its first block.
        slba: u64,
        /// Its length.
        blocks: u32,
        /// Blocks of the device.
        logical_blocks: u64,
    },
}

/// Known bugs that a test plants, to prove that its checks would find them.
#[cfg(any(test, feature = "planted"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// A flush is answered without waiting for the media.
    SkippedFlush,
    /// A write that waits for room is answered before it is in the buffer.
    EarlyAcknowledgement,
    /// A trim hides its blocks from reads but never reaches the flash.
    LostTrim,
    /// A record is freed as soon as it was handed to the flash, not when it is programmed.
    EarlyRelease,
    /// Reads do not look into the buffer for what is still on its way.
    BufferBypassed,
    /// Read payloads are not compared with their checksum.
    UncheckedRead,
    /// When a command is due depends on what other devices of the process have done.
    SharedState,
}

/// A server: works on one thing at a time, first come first served.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    busy_until: Nanos,
    busy_ns: u64,
}

impl Server {
    fn serve(&mut self, now: Nanos, nanos: u64) -> Nanos {
        self.busy_ns += nanos;
        self.busy_until = self.busy_until.max(now).saturating_add(nanos);
        self.busy_until
    }
}

/// A write or trim that waits for room in the buffer.
#[derive(Debug)]
struct Waiting {
    id: CommandId,
    meta: WriteMeta,
    records: Vec<Record>,
    /// Payloads of all records, one after the other.
    payload: Vec<u8>,
    due: Nanos,
    /// A planted bug has answered it already.
    answered: bool,
}

/// A flush or FUA write that waits until a sequence number is persistent.
#[derive(Debug)]
struct Barrier {
    id: CommandId,
    due: Nanos,
    /// Everything up to this record.
    through: u64,
}

/// Where records are on their way to the flash.
#[derive(Debug, Default)]
struct Drained {
    /// The newest record handed to the flash.
    through: u64,
    /// Records handed over whose pages are not programmed: number and append, oldest first.
    unprogrammed: VecDeque<(u64, AppendId)>,
    /// Ring bytes not handed over yet.
    undrained_bytes: u64,
    /// Flash bytes that admitted records will take, those that wait for room included.
    reserved_bytes: u64,
    /// The newest record that may be freed.
    free_through: u64,
    /// There is something to hand over or to free, and a poll is due.
    again_at: Option<Nanos>,
    /// The newest record known to be in programmed pages.
    programmed: u64,
    /// The newest record known to be synced.
    synced: u64,
    /// Syncs under way, and the newest record that each covers; oldest first.
    syncs: VecDeque<(SyncId, u64)>,
    last_write: Nanos,
    /// The idle timer runs.
    idle_armed: bool,
    /// The idle timer went off: everything is to be drained and the open page closed.
    idle: bool,
}

/// The device.
#[derive(Debug)]
pub struct Device<B> {
    profile: Profile,
    /// What follows from the profile's link.
    link: LinkPath,
    params: DeviceParams,
    log: WriteBuffer<B>,
    pending: Pending,
    ftl: Ftl,
    thermal: Thermal,
    compute: Compute,
    speed_permille: u32,
    /// Heat of operations since the thermal model was last advanced.
    energy_picojoules: u128,
    link_in: Server,
    link_out: Server,
    controller_write: Server,
    controller_read: Server,
    waiting: VecDeque<Waiting>,
    barriers: VecDeque<Barrier>,
    drained: Drained,
    reads: reading::Reads,
    flash_reads: BTreeMap<ReadId, reading::FlashRead>,
    finished: Finished,
    flash_events: Vec<FtlEvent>,
    scratch: Vec<u8>,
    counters: stats::Counters,
    #[cfg(any(test, feature = "planted"))]
    planted: Option<Planted>,
}

/// Completions that wait for their time.
#[derive(Debug, Default)]
struct Finished {
    order: u64,
    due: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    slots: Vec<Option<(Completion, u64)>>,
    free: Vec<usize>,
}

impl Finished {
    /// `through`: the record that is completed with it, 0 for none.
    fn push(&mut self, completion: Completion, through: u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            assert!(self.slots.len() < COMMANDS_MAX, "commands in flight are bounded by the queues above");
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.order += 1;
        self.due.push(Reverse((completion.due, self.order, slot)));
        self.slots[slot] = Some((completion, through));
    }

    fn next_due(&self) -> Option<Nanos> {
        self.due.peek().map(|Reverse((due, ..))| *due)
    }

    fn pop(&mut self, now: Nanos) -> Option<(Completion, u64)> {
        let Reverse((due, _, slot)) = *self.due.peek()?;
        if due > now {
            return None;
        }
        self.due.pop();
        self.free.push(slot);
        self.slots[slot].take()
    }
}

impl<B: Bytes> Device<B> {
    /// A new device over erased media. `buffer` is formatted.
    ///
    /// # Errors
    /// What the flash layer or the buffer cannot work with, by name.
    pub fn create(profile: &Profile, params: DeviceParams, buffer: B) -> Result<Device<B>, DeviceError> {
        let ftl_params = profile.ftl_params(params.with_data, params.thin);
        let ftl = Ftl::new(params.geometry, profile.timing(), ftl_params, params.logical_blocks)?;
        let log = WriteBuffer::format(buffer, params.streams, 1, params.salt, params.with_data)?;
        Ok(Device::assemble(profile, params, log, ftl))
    }

    fn assemble(profile: &Profile, params: DeviceParams, log: WriteBuffer<B>, ftl: Ftl) -> Device<B> {
        Device {
            profile: profile.clone(),
            link: profile.link_path(),
            params,
            log,
            pending: Pending::default(),
            ftl,
            thermal: Thermal::new(&profile.thermal, profile.power.idle_milliwatts, &profile.throttle),
            compute: Compute::new(&profile.compute, profile.power.compute_milliwatts_per_core),
            speed_permille: 1000,
            energy_picojoules: 0,
            link_in: Server::default(),
            link_out: Server::default(),
            controller_write: Server::default(),
            controller_read: Server::default(),
            waiting: VecDeque::new(),
            barriers: VecDeque::new(),
            drained: Drained::default(),
            reads: reading::Reads::default(),
            flash_reads: BTreeMap::new(),
            finished: Finished::default(),
            flash_events: Vec::new(),
            scratch: Vec::new(),
            counters: stats::Counters::default(),
            #[cfg(any(test, feature = "planted"))]
            planted: None,
        }
    }

    /// A write of one or more units, all or nothing. `payloads[i]` belongs to `units[i]`; without
    /// data they are empty.
    ///
    /// # Panics
    /// If there is not one payload for each unit, or a payload has another length than its unit says:
    /// bugs of the caller, who made both.
    pub fn submit_write(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, units: &[UnitMeta], payloads: &[&[u8]]) {
        assert_eq!(units.len(), payloads.len(), "one payload for each unit");
        self.begin(now);
        if let Err(status) = self.check_write(meta, units) {
            return self.answer(now, id, status, 0);
        }
        if self.is_replay(meta) {
            return self.answer_replay(now, id, meta);
        }
        if let Err(status) = self.check_capacity(units) {
            return self.answer(now, id, status, 0);
        }
        let (mut raw, mut stored, mut blocks) = (0, 0, 0);
        for unit in units {
            raw += u64::from(unit.raw_bytes);
            stored += u64::from(unit.stored_bytes);
            blocks += u64::from(unit.blocks);
            self.drained.reserved_bytes += u64::from(extent_footprint(unit.stored_bytes));
        }
        self.counters.raw_bytes_written += raw;
        self.counters.stored_bytes_written += stored;
        let crossing = if meta.crossing == Crossing::Raw { raw } else { stored };
        let due = self.write_due(now, crossing, blocks);
        let sizes = units.iter().map(|unit| unit.stored_bytes);
        if self.waiting.is_empty() && self.log.fits(sizes) {
            for (index, (unit, payload)) in units.iter().zip(payloads).enumerate() {
                self.commit(record_of(unit, payload, meta, index + 1 == units.len()), payload);
            }
            self.committed(now, id, meta, due);
        } else {
            let last = units.len() - 1;
            let records = units.iter().zip(payloads).enumerate();
            let records = records.map(|(index, (unit, payload))| record_of(unit, payload, meta, index == last));
            let records = records.collect();
            self.wait(Waiting { id, meta, records, payload: payloads.concat(), due, answered: false });
        }
        self.ask_for_poll(now);
    }

    /// Takes blocks back: they read as zeroes from now on.
    pub fn submit_trim(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, slba: Lba, blocks: u32) {
        self.begin(now);
        let records = u64::from(blocks.div_ceil(TRIM_RECORD_BLOCKS_MAX));
        let checked = self.check_range(slba, u64::from(blocks)).and_then(|()| {
            let fits = records * record_bytes(0) <= self.log.request_bytes_max();
            self.check_meta(meta).and(if fits { Ok(()) } else { Err(Status::INVALID_FIELD) })
        });
        if let Err(status) = checked {
            return self.answer(now, id, status, 0);
        }
        if self.is_replay(meta) {
            return self.answer_replay(now, id, meta);
        }
        let reserve = records * u64::from(extent_footprint(0));
        if !self.ftl.can_trim(self.drained.reserved_bytes + reserve) {
            return self.answer(now, id, Status::CAPACITY_EXCEEDED, 0);
        }
        self.drained.reserved_bytes += reserve;
        self.counters.blocks_trimmed += u64::from(blocks);
        let due = self.write_due(now, 0, 0);
        let records = trim_records(slba, blocks, meta);
        if self.waiting.is_empty() && self.log.fits(records.iter().map(|_| 0)) {
            for record in records {
                self.commit(record, &[]);
            }
            self.committed(now, id, meta, due);
        } else {
            self.wait(Waiting { id, meta, records, payload: Vec::new(), due, answered: false });
        }
        self.ask_for_poll(now);
    }

    /// Global Persistent Flush: answered when everything completed before it is persistent.
    pub fn submit_flush(&mut self, now: Nanos, id: CommandId) {
        self.begin(now);
        if self.is_shut_down() {
            return self.answer(now, id, Status::THERMAL_SHUTDOWN, 0);
        }
        self.counters.flushes += 1;
        let due = self.write_due(now, 0, 0);
        self.barrier(id, due);
        self.work(now);
    }

    /// Lets everything that is over at `now` take effect, and reports the commands that ended.
    pub fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.begin(now);
        self.poll_flash(now);
        self.work(now);
        while let Some((completion, through)) = self.finished.pop(now) {
            self.counters.complete(&completion, through);
            out.push(completion);
        }
        if self.params.verify {
            self.verify();
        }
    }

    /// The next operation for the media. The owner carries it out and answers through
    /// [`Device::media_done`]; until then nothing that depends on it goes on.
    pub fn next_op(&mut self) -> Option<MediaOp> {
        let op = self.ftl.next_op()?;
        self.energy_picojoules += self.operation_picojoules(&op.kind);
        Some(op)
    }

    /// The media's answer to an operation. Takes effect in the first [`Device::poll`] at or after the
    /// operation's due time.
    ///
    /// # Panics
    /// When the operation was not issued, or was answered before.
    pub fn media_done(&mut self, now: Nanos, id: OpId, result: MediaResult) {
        self.ftl.media_done(now, id, result);
    }

    /// When the next [`Device::poll`] has something to do, as far as the media's answers are in.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        let events = [self.ftl.next_event(), self.finished.next_due(), self.timer_due(), self.drained.again_at];
        events.into_iter().flatten().min()
    }

    /// The device's processor, at the speed of `now`; the energy it uses heats the device.
    pub fn compute(&mut self, now: Nanos) -> &mut Compute {
        self.begin(now);
        &mut self.compute
    }

    /// The processor as it is, not brought to any time: for calls that a recording has in between.
    pub(crate) fn processor(&mut self) -> &mut Compute {
        &mut self.compute
    }

    /// Newest committed request of a stream; 0 if there is none.
    #[must_use]
    pub fn stream_cursor(&self, stream: u16) -> u64 {
        self.log.stream_cursor(stream)
    }

    /// Whether that request of the stream is committed: exact within the last 64 of the stream.
    #[must_use]
    pub fn is_committed(&self, stream: u16, stream_sequence: u64) -> bool {
        self.log.is_committed(stream, stream_sequence)
    }

    /// Temperature at the last input, in thousandths of a degree Celsius.
    #[must_use]
    pub fn temperature_millicelsius(&self) -> i32 {
        self.thermal.millicelsius()
    }

    /// Sets the temperature, for a device that starts again before it has cooled.
    pub fn set_temperature_millicelsius(&mut self, millicelsius: i32) {
        self.thermal.set_millicelsius(millicelsius);
    }

    /// The latest changes of the throttle level, oldest first.
    pub fn throttle_transitions(&self) -> impl Iterator<Item = &Transition> {
        self.thermal.transitions()
    }

    /// The profile that the device was made with, scaled as it is.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// What the device was made with.
    #[must_use]
    pub fn params(&self) -> &DeviceParams {
        &self.params
    }

    /// Most bytes that one unit may store.
    #[must_use]
    pub fn stored_bytes_max(&self) -> u32 {
        self.ftl.stored_bytes_max()
    }

    /// Commands that were submitted and not reported as ended.
    #[must_use]
    pub fn commands_in_flight(&self) -> usize {
        self.waiting.len() + self.barriers.len() + self.reads.len() + self.finished.due.len()
    }

    /// The flash layer, to look at.
    #[must_use]
    pub fn flash(&self) -> &Ftl {
        &self.ftl
    }

    /// The write buffer, to look at.
    #[must_use]
    pub fn buffer(&self) -> &WriteBuffer<B> {
        &self.log
    }

    /// Gives the buffer's bytes back. What was completed is in them or on the media.
    pub fn into_buffer(self) -> B {
        self.log.into_bytes()
    }

    /// Plants a known bug.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: Planted) {
        self.planted = Some(bug);
    }
}

/// What every command goes through.
impl<B: Bytes> Device<B> {
    /// Brings heat and speed to `now`.
    fn begin(&mut self, now: Nanos) {
        let energy = std::mem::take(&mut self.energy_picojoules) + self.compute.take_energy_picojoules();
        if energy > 0 {
            self.thermal.add_picojoules(energy);
        }
        self.thermal.advance(now);
        let speed = self.thermal.speed_permille();
        if speed != self.speed_permille {
            self.speed_permille = speed;
            self.compute.set_speed_permille(speed);
            if speed == 0 {
                self.shut_down(now);
            }
        }
    }

    fn is_shut_down(&self) -> bool {
        self.speed_permille == 0
    }

    /// Answers everything that would need the data path.
    fn shut_down(&mut self, now: Nanos) {
        while let Some(waiting) = self.waiting.pop_front() {
            self.unreserve(&waiting.records);
            if !waiting.answered {
                self.answer(now, waiting.id, Status::THERMAL_SHUTDOWN, 0);
            }
        }
        while let Some(barrier) = self.barriers.pop_front() {
            self.answer(now, barrier.id, Status::THERMAL_SHUTDOWN, 0);
        }
    }

    fn unreserve(&mut self, records: &[Record]) {
        for record in records {
            self.drained.reserved_bytes -= u64::from(extent_footprint(record.stored_bytes));
        }
    }

    fn answer(&mut self, due: Nanos, id: CommandId, status: Status, through: u64) {
        self.finished.push(Completion { id, status, due, pieces: Vec::new() }, through);
    }

    /// When the data path is through with a command from the host: link and controller work at the
    /// same time, the slower decides.
    fn write_due(&mut self, now: Nanos, crossing_bytes: u64, blocks: u64) -> Nanos {
        let (link, controller) = (self.link, &self.profile.controller);
        let crossed = self.link_in.serve(now, transfer_ns(crossing_bytes, link.bytes_per_second));
        let logical_bytes = blocks * u64::from(osier_flash::BLOCK_BYTES);
        let nominal = controller.command_ns + transfer_ns(logical_bytes, controller.write_bytes_per_second);
        // A shut down device does not get here.
        let handled = self.controller_write.serve(now, stretch(nominal, self.speed_permille).unwrap_or(u64::MAX));
        let power = &self.profile.power;
        self.energy_picojoules += u128::from(crossing_bytes) * u128::from(power.link_picojoules_per_byte)
            + u128::from(logical_bytes) * u128::from(power.controller_picojoules_per_byte);
        let due = crossed.max(handled).saturating_add(link.round_trip_ns);
        if self.has_bug_shared_state() { due.saturating_add(planted_shared_state()) } else { due }
    }

    fn operation_picojoules(&self, kind: &MediaOpKind) -> u128 {
        let power = &self.profile.power;
        let page_bytes = u64::from(self.params.geometry.page_bytes);
        let block_bytes = page_bytes * u64::from(self.params.geometry.pages_per_block);
        let (count, nanojoules) = match *kind {
            MediaOpKind::Read { address, bytes } => {
                let pages = (address % page_bytes + u64::from(bytes)).div_ceil(page_bytes);
                (pages, power.read_nanojoules_per_page)
            }
            MediaOpKind::Program { .. } => (1, power.program_nanojoules_per_page),
            MediaOpKind::Erase { bytes, .. } => (bytes / block_bytes, power.erase_nanojoules_per_block),
            MediaOpKind::Sync => (0, 0),
        };
        u128::from(count) * u128::from(nanojoules) * 1000
    }

    fn check_range(&self, slba: Lba, blocks: u64) -> Result<(), Status> {
        if self.is_shut_down() {
            return Err(Status::THERMAL_SHUTDOWN);
        }
        if blocks == 0 {
            return Err(Status::INVALID_FIELD);
        }
        match slba.0.checked_add(blocks) {
            Some(end) if end <= self.params.logical_blocks => Ok(()),
            _ => Err(Status::LBA_OUT_OF_RANGE),
        }
    }

    fn check_meta(&self, meta: WriteMeta) -> Result<(), Status> {
        if meta.stream >= self.log.streams() {
            return Err(Status::INVALID_FIELD);
        }
        match self.ftl.read_only() {
            Some(error) => Err(refusal(error)),
            None => Ok(()),
        }
    }

    fn check_write(&self, meta: WriteMeta, units: &[UnitMeta]) -> Result<(), Status> {
        if units.is_empty() || units.len() > UNITS_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let mut ring_bytes = 0;
        for unit in units {
            self.check_range(unit.slba, u64::from(unit.blocks))?;
            let raw_bytes_max = u32::from(unit.blocks) * osier_flash::BLOCK_BYTES;
            let possible =
                (1..=raw_bytes_max).contains(&unit.raw_bytes) && unit.stored_bytes <= self.ftl.stored_bytes_max();
            if !possible {
                return Err(Status::INVALID_FIELD);
            }
            ring_bytes += record_bytes(unit.stored_bytes);
        }
        if ring_bytes > self.log.request_bytes_max() {
            return Err(Status::INVALID_FIELD);
        }
        self.check_meta(meta)
    }

    /// Whether the flash will have room, counting all that is on its way.
    fn check_capacity(&self, units: &[UnitMeta]) -> Result<(), Status> {
        let wanted: u64 = units.iter().map(|unit| u64::from(extent_footprint(unit.stored_bytes))).sum();
        let wanted = wanted + self.drained.reserved_bytes;
        if self.ftl.can_accept(wanted) {
            return Ok(());
        }
        // Full, but what is overwritten in place sets its own space free.
        let first = units[0].slba;
        let mut next = first.0;
        let contiguous = units.iter().all(|unit| {
            let follows = unit.slba.0 == next;
            next += u64::from(unit.blocks);
            follows
        });
        let blocks = u32::try_from(next - first.0).unwrap_or(u32::MAX);
        let fits = contiguous && self.ftl.can_accept_over(first, blocks, wanted);
        if fits { Ok(()) } else { Err(Status::CAPACITY_EXCEEDED) }
    }

    fn is_replay(&self, meta: WriteMeta) -> bool {
        self.log.is_committed(meta.stream, meta.stream_sequence)
    }

    /// A request that was committed before: the promise of its first answer is given again.
    fn answer_replay(&mut self, now: Nanos, id: CommandId, meta: WriteMeta) {
        self.counters.replays += 1;
        let due = self.write_due(now, 0, 0);
        if meta.fua {
            self.barrier(id, due);
            self.work(now);
        } else {
            self.answer(due, id, Status::SUCCESS, 0);
        }
    }

    /// Puts one record into the buffer, for which there is room.
    fn commit(&mut self, record: Record, payload: &[u8]) {
        let before = self.log.live_bytes();
        let sequence = self.log.push(&record, payload);
        // A pad may have come before it.
        self.drained.undrained_bytes += self.log.live_bytes() - before;
        if !self.has_bug_buffer_bypassed() {
            self.pending.insert(record.slba.0, u64::from(record.blocks), sequence);
        }
        self.counters.visible = sequence;
    }

    /// All records of a request are in the buffer: it is visible, and completed when due.
    fn committed(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, due: Nanos) {
        self.drained.last_write = now;
        self.drained.idle_armed = true;
        self.drained.idle = false;
        let through = self.counters.visible;
        if meta.fua && !self.profile.persistence.pmr_persistent {
            self.barrier(id, due);
        } else {
            self.answer(due.max(now), id, Status::SUCCESS, through);
        }
    }

    fn wait(&mut self, mut waiting: Waiting) {
        assert!(self.waiting.len() < COMMANDS_MAX, "commands in flight are bounded by the queues above");
        self.counters.waits += 1;
        if self.has_bug_early_acknowledgement() {
            waiting.answered = true;
            self.answer(waiting.due, waiting.id, Status::SUCCESS, 0);
        }
        self.waiting.push_back(waiting);
    }

    /// Recounts what must agree.
    ///
    /// # Panics
    /// If it does not: a bug.
    fn verify(&mut self) {
        self.counters.polls += 1;
        if self.counters.polls.is_multiple_of(64) {
            if let Err(fault) = self.ftl.audit() {
                panic!("the flash layer's books do not agree: {fault}");
            }
            let undrained = self.log.records().filter(|record| record.sequence > self.drained.through);
            let bytes: u64 = undrained.map(Record::ring_bytes).sum();
            assert_eq!(bytes, self.drained.undrained_bytes, "ring bytes not handed to the flash");
            let indexed = self.log.records().next().is_some() || self.pending.is_empty();
            assert!(indexed, "an empty buffer holds no block");
            let (added, stored, lost) = self.thermal.energy_picojoules();
            assert_eq!(added, stored + lost, "heat is conserved");
        }
    }
}

/// Planted bugs; without the feature each question is a constant.
impl<B> Device<B> {
    #[cfg(any(test, feature = "planted"))]
    fn has_bug(&self, bug: Planted) -> bool {
        self.planted == Some(bug)
    }
}

/// Another number each time: state that is not the device's, as the core must have none.
fn planted_shared_state() -> u64 {
    static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

macro_rules! planted_bugs {
    ($($question:ident => $bug:ident),* $(,)?) => {
        impl<B> Device<B> {$(
            #[inline]
            fn $question(&self) -> bool {
                #[cfg(any(test, feature = "planted"))]
                return self.has_bug(Planted::$bug);
                #[cfg(not(any(test, feature = "planted")))]
                return false;
            }
        )*}
    };
}

planted_bugs! {
    has_bug_skipped_flush => SkippedFlush,
    has_bug_early_acknowledgement => EarlyAcknowledgement,
    has_bug_lost_trim => LostTrim,
    has_bug_early_release => EarlyRelease,
    has_bug_buffer_bypassed => BufferBypassed,
    has_bug_unchecked_read => UncheckedRead,
    has_bug_shared_state => SharedState,
}

/// What a write ends with when the media takes nothing any more.
fn refusal(error: MediaError) -> Status {
    match error {
        // A full disk under the media is to the host what a full device is.
        MediaError::NoSpace => Status::CAPACITY_EXCEEDED,
        MediaError::Io | MediaError::OutOfRange => Status::WRITE_FAULT,
    }
}

fn record_of(unit: &UnitMeta, payload: &[u8], meta: WriteMeta, last: bool) -> Record {
    Record {
        sequence: 0,
        kind: RecordKind::Data,
        slba: unit.slba,
        blocks: u32::from(unit.blocks),
        raw_bytes: unit.raw_bytes,
        stored_bytes: unit.stored_bytes,
        tag: unit.tag,
        checksum: crc32c::crc32c(payload),
        stream: meta.stream,
        stream_sequence: meta.stream_sequence,
        last,
    }
}

fn trim_records(slba: Lba, blocks: u32, meta: WriteMeta) -> Vec<Record> {
    let mut records = Vec::new();
    let mut at = 0;
    while at < blocks {
        let length = (blocks - at).min(TRIM_RECORD_BLOCKS_MAX);
        records.push(Record {
            sequence: 0,
            kind: RecordKind::Trim,
            slba: Lba(slba.0 + u64::from(at)),
            blocks: length,
            raw_bytes: 0,
            stored_bytes: 0,
            tag: 0,
            checksum: 0,
            stream: meta.stream,
            stream_sequence: meta.stream_sequence,
            last: at + length == blocks,
        });
        at += length;
    }
    records
}

/// An extent as the flash knows it, of a data record.
fn extent_of(record: &Record) -> Extent {
    Extent {
        slba: record.slba,
        // Data records come from units, where the count is a u16.
        blocks: u16::try_from(record.blocks).unwrap_or(u16::MAX),
        raw_bytes: record.raw_bytes,
        stored_bytes: record.stored_bytes,
        tag: record.tag,
        checksum: record.checksum,
        sequence: record.sequence,
        kind: match record.kind {
            RecordKind::Trim => ExtentKind::Trim,
            RecordKind::Data | RecordKind::Pad => ExtentKind::Data,
        },
    }
}

#[cfg(test)]
pub(crate) mod tests;
