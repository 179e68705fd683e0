//! The recording side: a device whose every input goes to a tape.
//!
//! What is elided, because it changes nothing: bringing the processor to the time to which the input before has brought
//! it already, with no call in between.

use std::ops::Deref;

use osier_flash::{LOOKED_BYTES_MIN, Lba, Looked, MediaOp, MediaResult, Nanos, OpId};

use super::block::{BLOCK_HEADER_BYTES, BlockHeader};
use super::input::{self, Digest, Input, Unit};
use super::stand_in::STAND_IN_BYTES_MIN;
use super::wire::Blob;
use crate::buffer::{Bytes, deciding_lines};
use crate::compute::{Compute, ComputeCall};
use crate::core::{
    CommandId, Compared, Completion, Device, DeviceError, DeviceParams, DeviceSample, ReadMedia, RecoveryReport,
    UnitMeta, WriteMeta,
};
use crate::predict::Crossing;
use crate::profile::Profile;

/// Bytes of records after which a block is handed on.
const BLOCK_BYTES: usize = 64 << 10;
/// Most bytes of one record of what recovery read.
const PART_BYTES: usize = 16 << 10;
/// Payloads that recovery shows by their checksums can be stood in for.
const _: () = assert!(LOOKED_BYTES_MIN >= STAND_IN_BYTES_MIN);
/// Zeroes that are left out of what recovery read.
const ZEROES: usize = 64;

/// How a block is handed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// The device does not serve yet: whoever takes the block may take its time.
    MayWait,
    /// The device serves.
    Now,
    /// No other block follows. This one is always taken.
    Last,
}

/// Where blocks go: a file, through whatever keeps the disk from holding up the device.
pub trait Sink {
    /// Takes a block, or refuses it with the reason; then the recording ends.
    ///
    /// # Errors
    /// Why no more can be recorded.
    fn block(&mut self, block: Vec<u8>, urgency: Urgency) -> Result<(), String>;
}

/// What a recording says about the device that it is of, beside what follows from it.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The profile's name.
    pub profile_name: String,
    /// The profile's text, as it was before it was scaled.
    pub profile_text: String,
    /// What its rates were divided by.
    pub rate_divisor: u32,
    /// How much faster temperatures change.
    pub thermal_time_scale: u32,
    /// Which life of the core this is, from 0.
    pub life: u32,
}

/// A block in the place of another one, which could not be written: the recording ends there, and says why. Nothing if
/// that is no block.
#[must_use]
pub fn stopped_block(instead_of: &[u8], why: &str) -> Option<Vec<u8>> {
    let header = instead_of.first_chunk::<BLOCK_HEADER_BYTES>()?;
    BlockHeader::decode(header).ok().map(|(header, _)| stopped(&header, why))
}

fn stopped(place: &BlockHeader, why: &str) -> Vec<u8> {
    let mut records = Vec::new();
    input::put(&mut records, Nanos(0), Nanos(0), &Input::Stopped { why: why.to_owned() }, &Digest::new());
    let header = BlockHeader { bytes: records.len() as u32, ..*place };
    [&header.encode(&records)[..], &records].concat()
}

/// A recording that is being made.
pub struct Tape {
    sink: Box<dyn Sink>,
    header: BlockHeader,
    /// The block under way, behind room for its header.
    pub(super) block: Vec<u8>,
    inputs: u64,
    pub(super) now: Nanos,
    pub(super) digest: Digest,
    pub(super) urgency: Urgency,
    /// The last input brought the processor to this time.
    computed: Option<Nanos>,
    calls: Vec<ComputeCall>,
    /// Why it took no more.
    pub(super) refused: Option<String>,
}

impl Tape {
    /// An empty one.
    #[must_use]
    pub fn new(life: u32, sink: Box<dyn Sink>) -> Tape {
        let mut tape = Tape {
            sink,
            header: BlockHeader { life, number: 0, first_input: 0, bytes: 0 },
            block: Vec::new(),
            inputs: 0,
            now: Nanos(0),
            digest: Digest::new(),
            urgency: Urgency::MayWait,
            computed: None,
            calls: Vec::new(),
            refused: None,
        };
        tape.begin_block();
        tape
    }

    fn begin_block(&mut self) {
        self.block = Vec::with_capacity(BLOCK_BYTES + PART_BYTES);
        self.block.resize(BLOCK_HEADER_BYTES, 0);
    }

    pub(super) fn put(&mut self, now: Nanos, input: &Input) {
        input::put(&mut self.block, self.now, now, input, &self.digest);
        self.now = now;
        self.inputs += 1;
        self.computed = None;
    }

    pub(super) fn is_full(&self) -> bool {
        self.block.len() >= BLOCK_HEADER_BYTES + BLOCK_BYTES
    }

    /// Hands the block on, if there is anything in it.
    pub(super) fn close_block(&mut self, urgency: Urgency) {
        let records = self.block.len() - BLOCK_HEADER_BYTES;
        if records == 0 || self.refused.is_some() {
            return;
        }
        self.header.bytes = u32::try_from(records).expect("a block is handed on before it is that long");
        let header = self.header.encode(&self.block[BLOCK_HEADER_BYTES..]);
        self.block[..BLOCK_HEADER_BYTES].copy_from_slice(&header);
        match self.sink.block(std::mem::take(&mut self.block), urgency) {
            Ok(()) => {
                self.header.number += 1;
                self.header.first_input = self.inputs;
                self.begin_block();
            }
            Err(why) => self.stop(why),
        }
    }

    /// A block was refused: the recording ends before it, and says why.
    fn stop(&mut self, why: String) {
        // Who refused it has said so: should it refuse this too, there is nobody left to tell.
        let _ = self.sink.block(stopped(&self.header, &why), Urgency::Last);
        self.refused = Some(why);
    }

    /// What recovery looked at on the media.
    fn looked(&mut self, looked: Looked<'_>) {
        match looked {
            Looked::Bytes { address, bytes } => {
                self.bytes(bytes, address, |address, bytes| Input::MediaBytes { address, bytes });
            }
            Looked::Payload { address, bytes, checksum } => {
                self.put(Nanos(0), &Input::MediaPayload { address, bytes, checksum });
            }
        }
    }

    /// Bytes in parts, those left out that are zeroes.
    fn bytes(&mut self, bytes: &[u8], first: u64, input: impl Fn(u64, Blob) -> Input) {
        let is_kept = |line: &[u8]| line.iter().any(|byte| *byte != 0);
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let skipped = rest.chunks(ZEROES).take_while(|line| !is_kept(line)).map(<[u8]>::len).sum::<usize>();
            let rest = &rest[skipped..];
            let kept = rest.chunks(ZEROES).take_while(|line| is_kept(line)).map(<[u8]>::len).sum::<usize>();
            let kept = kept.min(PART_BYTES);
            if kept > 0 {
                self.put(Nanos(0), &input(first + (at + skipped) as u64, Blob(rest[..kept].to_vec())));
            }
            at += skipped + kept;
            if self.is_full() {
                self.close_block(Urgency::MayWait);
            }
        }
    }

    /// What a recovery will look at in the write buffer.
    fn buffer_lines(&mut self, buffer: &impl Bytes, streams: u16) {
        deciding_lines(buffer, streams, &mut |offset, line| {
            self.put(Nanos(0), &Input::BufferBytes { offset, bytes: Blob(line.to_vec()) });
            if self.is_full() {
                self.close_block(Urgency::MayWait);
            }
        });
    }

    /// The payloads in the write buffer: by their checksums where they fit them.
    fn buffer_payloads<B: Bytes>(&mut self, device: &Device<B>) {
        for (offset, record) in device.buffer().payloads() {
            let (bytes, checksum) = (record.stored_bytes, record.checksum);
            let mut payload = vec![0; bytes as usize];
            device.buffer().read_payload(record.sequence, &mut payload);
            if bytes >= STAND_IN_BYTES_MIN && crc32c::crc32c(&payload) == checksum {
                self.put(Nanos(0), &Input::BufferPayload { offset, bytes, checksum });
            } else {
                self.bytes(&payload, offset, |offset, bytes| Input::BufferBytes { offset, bytes });
            }
        }
    }
}

/// A device that is recorded, or not. What changes the device has a method here; everything else is the device's.
pub struct Recorded<B> {
    device: Device<B>,
    tape: Option<Box<Tape>>,
}

impl<B> Deref for Recorded<B> {
    type Target = Device<B>;

    fn deref(&self) -> &Device<B> {
        &self.device
    }
}

impl<B: Bytes> From<Device<B>> for Recorded<B> {
    /// Without a recording.
    fn from(device: Device<B>) -> Recorded<B> {
        Recorded { device, tape: None }
    }
}

/// Making one.
impl<B: Bytes> Recorded<B> {
    /// As [`Device::create`], recorded. `profile` is the one of `origin`, scaled.
    ///
    /// # Errors
    /// As [`Device::create`].
    pub fn create(
        profile: &Profile,
        params: DeviceParams,
        buffer: B,
        origin: &Origin,
        mut tape: Tape,
    ) -> Result<Recorded<B>, DeviceError> {
        tape.put(Nanos(0), &configure(origin, params, buffer.len(), false));
        let device = Device::create(profile, params, buffer)?;
        Ok(Recorded::begin(device, tape))
    }

    /// As [`Device::recover`], recorded. `profile` is the one of `origin`, scaled.
    ///
    /// # Errors
    /// As [`Device::recover`].
    pub fn recover(
        profile: &Profile,
        params: DeviceParams,
        buffer: B,
        read: &mut ReadMedia<'_>,
        origin: &Origin,
        mut tape: Tape,
    ) -> Result<(Recorded<B>, RecoveryReport), DeviceError> {
        tape.put(Nanos(0), &configure(origin, params, buffer.len(), true));
        tape.buffer_lines(&buffer, params.streams);
        let mut watch = |looked: Looked<'_>| tape.looked(looked);
        let (device, report) = Device::recover_watched(profile, params, buffer, read, &mut watch)?;
        tape.buffer_payloads(&device);
        Ok((Recorded::begin(device, tape), report))
    }

    fn begin(mut device: Device<B>, mut tape: Tape) -> Recorded<B> {
        device.processor().keep_calls(true);
        tape.digest.statistics(&device);
        tape.put(Nanos(0), &Input::Begin {});
        tape.close_block(Urgency::MayWait);
        tape.urgency = Urgency::Now;
        Recorded { device, tape: Some(Box::new(tape)) }
    }
}

fn configure(origin: &Origin, params: DeviceParams, buffer_bytes: u64, recovered: bool) -> Input {
    Input::Configure {
        program: env!("CARGO_PKG_VERSION").to_owned(),
        profile_name: origin.profile_name.clone(),
        profile_text: origin.profile_text.clone(),
        rate_divisor: origin.rate_divisor,
        thermal_time_scale: origin.thermal_time_scale,
        params,
        buffer_bytes,
        recovered,
    }
}

/// The device's inputs, with the names that they have there.
impl<B: Bytes> Recorded<B> {
    /// As [`Device::submit_write`].
    pub fn submit_write(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, units: &[UnitMeta], payloads: &[&[u8]]) {
        self.catch_up();
        self.device.submit_write(now, id, meta, units, payloads);
        self.note(now, || {
            let units = units.iter().zip(payloads).map(|(unit, payload)| recorded_unit(unit, payload)).collect();
            Input::Write { id: id.0, meta: meta.into(), units }
        });
    }

    /// As [`Device::submit_trim`].
    pub fn submit_trim(&mut self, now: Nanos, id: CommandId, meta: WriteMeta, slba: Lba, blocks: u32) {
        self.catch_up();
        self.device.submit_trim(now, id, meta, slba, blocks);
        self.note(now, || Input::Trim { id: id.0, meta: meta.into(), slba: slba.0, blocks });
    }

    /// As [`Device::submit_read`].
    pub fn submit_read(&mut self, now: Nanos, id: CommandId, slba: Lba, blocks: u32, crossing: Crossing) {
        self.catch_up();
        self.device.submit_read(now, id, slba, blocks, crossing);
        self.note(now, || Input::Read { id: id.0, slba: slba.0, blocks, crossing });
    }

    /// As [`Device::submit_flush`].
    pub fn submit_flush(&mut self, now: Nanos, id: CommandId) {
        self.catch_up();
        self.device.submit_flush(now, id);
        self.note(now, || Input::Flush { id: id.0 });
    }

    /// As [`Device::poll`].
    pub fn poll(&mut self, now: Nanos, out: &mut Vec<Completion>) {
        self.catch_up();
        let before = out.len();
        self.device.poll(now, out);
        let ended = &out[before..];
        if let Some(tape) = &mut self.tape {
            tape.digest.completions(ended);
        }
        let ended = ended.len() as u64;
        self.note(now, || if ended == 0 { Input::Poll {} } else { Input::PollEnded { ended } });
    }

    /// As [`Device::next_op`].
    pub fn next_op(&mut self) -> Option<MediaOp> {
        let op = self.device.next_op()?;
        self.catch_up();
        if let Some(tape) = &mut self.tape {
            tape.digest.operation(&op);
            tape.put(tape.now, &Input::NextOp {});
        }
        Some(op)
    }

    /// As [`Device::media_done`].
    pub fn media_done(&mut self, now: Nanos, id: OpId, result: MediaResult) {
        self.catch_up();
        let input = self.tape.is_some().then(|| self.media_input(id, &result));
        self.device.media_done(now, id, result);
        if let Some(input) = input {
            self.note(now, || input);
        }
    }

    /// As [`Device::compute`].
    pub fn compute(&mut self, now: Nanos) -> &mut Compute {
        self.catch_up();
        if self.tape.as_ref().is_some_and(|tape| tape.computed != Some(now)) {
            self.device.compute(now);
            self.note(now, || Input::Compute {});
            if let Some(tape) = &mut self.tape {
                tape.computed = Some(now);
            }
        }
        self.device.compute(now)
    }

    /// As [`Device::sample`].
    pub fn sample(&mut self, now: Nanos) -> DeviceSample {
        self.catch_up();
        let sample = self.device.sample(now);
        if let Some(tape) = &mut self.tape {
            tape.digest.sample(&sample);
        }
        self.note(now, || Input::Sample {});
        sample
    }

    /// As [`Device::set_temperature_millicelsius`].
    pub fn set_temperature_millicelsius(&mut self, millicelsius: i32) {
        self.catch_up();
        self.device.set_temperature_millicelsius(millicelsius);
        let now = self.tape.as_ref().map_or(Nanos(0), |tape| tape.now);
        self.note(now, || Input::Temperature { millicelsius });
    }

    /// Hands on what was recorded so far, so that a death of the process costs no more than what follows.
    pub fn flush_recording(&mut self) {
        self.catch_up();
        if self.tape.as_ref().is_some_and(|tape| tape.block.len() > BLOCK_HEADER_BYTES) {
            self.close_block();
        }
    }

    /// Ends the recording in order.
    pub fn end_recording(&mut self) {
        self.catch_up();
        if let Some(mut tape) = self.tape.take() {
            let statistics = self.device.stats().to_json();
            tape.digest.statistics(&self.device);
            tape.put(tape.now, &Input::End { statistics });
            tape.close_block(Urgency::Last);
        }
        self.device.processor().keep_calls(false);
    }

    /// Whether a recording is being made.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.tape.is_some()
    }

    /// Gives the buffer's bytes back, as [`Device::into_buffer`]; a recording ends where it is.
    pub fn into_buffer(mut self) -> B {
        self.flush_recording();
        self.device.into_buffer()
    }

    /// Plants a known bug.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: crate::core::Planted) {
        self.device.plant(bug);
    }

    /// Writes an input down that the device has had.
    fn note(&mut self, now: Nanos, input: impl FnOnce() -> Input) {
        let Some(tape) = &mut self.tape else { return };
        tape.digest.state(&self.device);
        tape.put(now, &input());
        if tape.is_full() {
            self.close_block();
        }
    }

    /// Every figure is checked at the end of a block: what a poll does not show comes out there.
    fn close_block(&mut self) {
        let Some(tape) = &mut self.tape else { return };
        tape.digest.statistics(&self.device);
        tape.put(tape.now, &Input::Statistics {});
        tape.close_block(tape.urgency);
        if tape.refused.is_some() {
            self.tape = None;
            self.device.processor().keep_calls(false);
        }
    }

    /// Writes down what the processor was given since the last input.
    fn catch_up(&mut self) {
        let Some(tape) = &mut self.tape else { return };
        let mut calls = std::mem::take(&mut tape.calls);
        self.device.processor().take_calls(&mut calls);
        for ComputeCall { now, core_hint, engine, bytes, due, goes_on } in calls.drain(..) {
            tape.digest.due(due);
            let run = Input::Run { core_hint, engine, bytes };
            tape.put(now, &if goes_on { Input::GoOn { core_hint, engine, bytes } } else { run });
        }
        tape.calls = calls;
    }

    fn media_input(&self, id: OpId, result: &MediaResult) -> Input {
        let op = id.into();
        match result {
            MediaResult::Read(bytes) if self.fits(id, bytes) => Input::MediaRead { op },
            MediaResult::Read(bytes) => Input::MediaReadBytes { op, bytes: Blob(bytes.to_vec()) },
            MediaResult::Programmed(_) => Input::MediaProgrammed { op },
            MediaResult::Erased => Input::MediaErased { op },
            MediaResult::Synced => Input::MediaSynced { op },
            MediaResult::Failed(error) => Input::MediaFailed { op, error: *error },
        }
    }

    /// Whether stand-ins for the payloads among these bytes do the same to the core.
    fn fits(&self, id: OpId, bytes: &[u8]) -> bool {
        let holds = |part: &Compared<'_>| {
            let found = bytes.get(part.at..part.at + part.bytes as usize);
            part.bytes as usize + part.tail.len() >= STAND_IN_BYTES_MIN as usize
                && found.is_some_and(|found| crc32c::crc32c_append(crc32c::crc32c(found), part.tail) == part.checksum)
        };
        !self.device.params().with_data || self.device.compared(id).iter().all(holds)
    }
}

fn recorded_unit(unit: &UnitMeta, payload: &[u8]) -> Unit {
    let is_short = payload.len() < STAND_IN_BYTES_MIN as usize;
    Unit {
        slba: unit.slba.0,
        blocks: unit.blocks,
        raw_bytes: unit.raw_bytes,
        stored_bytes: unit.stored_bytes,
        tag: unit.tag,
        checksum: crc32c::crc32c(payload),
        bytes: Blob(if is_short { payload.to_vec() } else { Vec::new() }),
    }
}
