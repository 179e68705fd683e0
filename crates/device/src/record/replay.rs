//! The replaying side: the core is given again what it was given, in virtual time, and every output is compared.

use std::collections::BTreeMap;

use osier_flash::{MediaError, MediaOpKind, MediaResult, Nanos, OpId};

use super::block::{BlockHeader, RecordingError};
use super::bounds::{Refusal, UnderWay, core_bytes};
use super::input::{self, Digest, Input, KINDS, Op};
use super::stand_in::{STAND_IN_BYTES_MIN, stand_in};
use super::window::WindowOrigin;
use super::window_replay::WindowReplay;
use super::wire::Reader;
use crate::core::{CommandId, Completion, Device, DeviceParams, DeviceStats};
use crate::profile::Profile;
use crate::window::WindowStats;

/// Where a replay is not what was recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("life {life}, input {input} ({kind}) at {at_ns} ns: {what}")]
pub struct Difference {
    /// Which life of the core.
    pub life: u32,
    /// Which input of it, from 0.
    pub input: u64,
    /// What kind of input.
    pub kind: &'static str,
    /// When it was given.
    pub at_ns: u64,
    /// What differs.
    pub what: String,
}

/// Why a replay ended early.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording is not sound.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The core does otherwise than it did.
    #[error("the replay differs from the recording: {0}")]
    Differs(Difference),
    /// It is of a larger device than may be made here.
    #[error(
        "the recorded device needs {bytes} bytes of memory for its map, its write buffer and what is under way, and the \
         replay may take {bytes_max}; allow more by `--memory SIZE`"
    )]
    Memory {
        /// Bytes that are needed.
        bytes: u64,
        /// Bytes that may be taken.
        bytes_max: u64,
    },
}

/// How the recording of a life ends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// It does not: the process died, or still runs.
    #[default]
    Open,
    /// In order.
    InOrder,
    /// Before the life did, for this reason.
    Stopped(String),
}

/// Every figure of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(untagged)]
#[allow(clippy::large_enum_variant, reason = "a replay has one of them")]
pub enum Figures {
    /// Of a device.
    Device(DeviceStats),
    /// Of a window.
    Window(WindowStats),
}

impl Figures {
    /// The figures as one JSON object, on one line.
    #[must_use]
    pub fn to_json(&self) -> String {
        match self {
            Figures::Device(statistics) => statistics.to_json(),
            Figures::Window(statistics) => statistics.to_json(),
        }
    }
}

/// What happened in one life of the core.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Its number in the recording.
    pub number: u32,
    /// The profile's name.
    pub profile: String,
    /// The version of the program that recorded it.
    pub program: String,
    /// Whether it was recovered, rather than new.
    pub recovered: bool,
    /// Records so far.
    pub inputs: u64,
    /// Checks that held.
    pub checks: u64,
    /// When the first and the last input came.
    pub span: Option<(Nanos, Nanos)>,
    /// How many inputs there were of each kind, by name.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Commands that ended, by status.
    pub ended: BTreeMap<u16, u64>,
    /// How it ends.
    pub ending: Ending,
    /// The figures at its end.
    pub statistics: Option<Figures>,
}

/// What a core is made from.
#[derive(Default)]
struct Making {
    profile: Option<(Profile, DeviceParams)>,
    buffer: Vec<u8>,
    media: Parts,
    payloads: Parts,
}

/// What is known of the media's bytes, by address. Parts that overlap say the same.
#[derive(Default)]
struct Parts {
    by_address: BTreeMap<u64, Part>,
    longest: u64,
}

/// Bytes that were recorded, or what stands in for a payload: that is made when it is read, so that a recording asks
/// for no more memory than it has bytes.
enum Part {
    Bytes(Vec<u8>),
    Payload { bytes: u32, checksum: u32 },
}

/// A replay under way.
pub struct Replay {
    device: Option<Device<Vec<u8>>>,
    /// In its place, if the recording is of one.
    window: Option<Box<WindowReplay>>,
    making: Making,
    /// Operations that the media have not answered.
    asked: BTreeMap<OpId, Asked>,
    under_way: UnderWay,
    memory_bytes_max: u64,
    digest: Digest,
    now: Nanos,
    next_block: Option<BlockHeader>,
    /// Bytes of the file before the next block.
    at: u64,
    lives: Vec<Life>,
    completions: Vec<Completion>,
    /// Tests plant a bug in every core that is made.
    #[cfg(any(test, feature = "planted"))]
    planted: Option<crate::core::Planted>,
}

impl Replay {
    /// A replay that has been given nothing yet. A core that would need more memory than that is not made.
    #[must_use]
    pub fn new(memory_bytes_max: u64) -> Replay {
        Replay {
            device: None,
            window: None,
            making: Making::default(),
            asked: BTreeMap::new(),
            under_way: UnderWay::default(),
            memory_bytes_max,
            digest: Digest::new(),
            now: Nanos(0),
            next_block: None,
            at: 0,
            lives: Vec::new(),
            completions: Vec::new(),
            #[cfg(any(test, feature = "planted"))]
            planted: None,
        }
    }

    /// Plants a known bug in every core that is made.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: crate::core::Planted) {
        self.planted = Some(bug);
    }

    /// What happened so far.
    #[must_use]
    pub fn lives(&self) -> &[Life] {
        &self.lives
    }

    /// Replays the next block of a file, which begins at byte `at`.
    ///
    /// # Errors
    /// A block that is not the next one or has records that are none; the first difference.
    pub fn block(&mut self, at: u64, header: &BlockHeader, records: &[u8]) -> Result<(), ReplayError> {
        self.at = at;
        let expected = match self.next_block.filter(|_| header.number > 0) {
            Some(next) => (next.life, next.number, next.first_input),
            None => (self.lives.len() as u32, 0, 0),
        };
        let found = (header.life, header.number, header.first_input);
        // A life whose process died before it had written a block has no place in the file.
        let is_next = found == expected || (header.number == 0 && header.first_input == 0 && header.life > expected.0);
        if !is_next {
            let text = format!(
                "life {}, block {}, input {} follows where life {}, block {}, input {} should",
                found.0, found.1, found.2, expected.0, expected.1, expected.2
            );
            return Err(self.damaged(text));
        }
        if header.number == 0 {
            self.begin_life(header.life);
        }
        let mut reader = Reader::new(records);
        while !reader.is_empty() {
            let Some((now, input, check)) = input::take(&mut reader, self.now) else {
                return Err(
                    self.damaged("a record in a sound block cannot be read; it is of another program".to_owned())
                );
            };
            self.record(now, input, check)?;
        }
        let inputs = self.lives.last().map_or(0, |life| life.inputs);
        self.next_block =
            Some(BlockHeader { number: header.number + 1, first_input: inputs, bytes: 0, life: header.life });
        Ok(())
    }

    /// The recording ends here.
    pub fn finish(&mut self) {
        self.end_life();
    }

    fn begin_life(&mut self, number: u32) {
        self.end_life();
        self.making = Making::default();
        self.digest = Digest::new();
        self.now = Nanos(0);
        self.lives.push(Life { number, ..Life::default() });
    }

    fn end_life(&mut self) {
        let figures = self.figures();
        (self.device, self.window) = (None, None);
        if let Some(life) = self.lives.last_mut() {
            life.statistics = life.statistics.or(figures);
        }
    }

    fn figures(&self) -> Option<Figures> {
        let window = self.window.as_ref().map(|window| Figures::Window(window.stats()));
        window.or_else(|| self.device.as_ref().map(|device| Figures::Device(device.stats())))
    }

    fn damaged(&self, what: String) -> ReplayError {
        RecordingError::Damaged { at: self.at, what }.into()
    }

    fn record(&mut self, now: Nanos, input: Input, check: Option<u32>) -> Result<(), ReplayError> {
        let kind = input.kind();
        self.now = now;
        let number = self.lives.last().map_or(0, |life| life.inputs);
        let fed = self.feed(now, input).map_err(|fault| match fault {
            Fault::Damaged(what) => self.damaged(what),
            Fault::Differs(what) => self.differs(number, kind.name, what),
            Fault::Memory(bytes) => ReplayError::Memory { bytes, bytes_max: self.memory_bytes_max },
        });
        fed?;
        if check.is_some_and(|check| check != self.digest.check()) {
            let what = self.what_differs(kind.name);
            return Err(self.differs(number, kind.name, what));
        }
        let Some(life) = self.lives.last_mut() else { return Ok(()) };
        life.inputs += 1;
        life.checks += u64::from(check.is_some());
        *life.kinds.entry(kind.name).or_default() += 1;
        if now.0 > 0 && kind.code >= INPUT_CODE_MIN {
            let first = life.span.map_or(now, |(first, _)| first);
            life.span = Some((first, now));
        }
        Ok(())
    }

    fn differs(&self, input: u64, kind: &'static str, what: String) -> ReplayError {
        let life = self.lives.last().map_or(0, |life| life.number);
        ReplayError::Differs(Difference { life, input, kind, at_ns: self.now.0, what })
    }

    /// In words, what a failed check means: the outputs before it agreed up to the check before.
    fn what_differs(&self, kind: &str) -> String {
        let said = match kind {
            "PollEnded" => {
                let ended =
                    self.completions.iter().map(|c| format!("command {} ({}) due {}", c.id.0, c.status, c.due.0));
                format!(
                    "what ended, its status, time or pieces; the replay has {}",
                    ended.collect::<Vec<_>>().join(", ")
                )
            }
            "NextOp" => "the operation for the media: its number, address, length or due time".to_owned(),
            "Sample" => "the sample of the scheduler".to_owned(),
            "Statistics" | "End" => "the statistics".to_owned(),
            "Begin" => "the core that recovery made".to_owned(),
            "Window" => "the window that was made".to_owned(),
            "HandOut" => "the answers, the pages to unmap or the ends of commands".to_owned(),
            other => format!("the outputs up to this {other}"),
        };
        format!("{said}, or what the core said of itself since the check before")
    }

    /// Gives the core one input.
    fn feed(&mut self, now: Nanos, input: Input) -> Result<(), Fault> {
        let input = match self.make(input)? {
            Some(input) => input,
            None => return Ok(()),
        };
        let input = match input {
            Input::Statistics {} => return self.statistics(),
            Input::End { statistics } => return self.end(&statistics),
            Input::Stopped { why } => {
                self.set_ending(Ending::Stopped(why));
                return Ok(());
            }
            other => other,
        };
        if let Some(window) = &mut self.window {
            return window.feed(now, input, &mut self.digest);
        }
        let Some(device) = &mut self.device else { return Err(not_made()) };
        self.completions.clear();
        match input {
            Input::Write { id, meta, units } => {
                let payloads = self.under_way.payloads(device, id, &units)?;
                let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
                let metas: Vec<_> = units.iter().map(input::Unit::meta).collect();
                device.submit_write(now, CommandId(id), meta.into(), &metas, &payloads);
            }
            Input::Trim { id, meta, slba, blocks } => {
                self.under_way.has_room(device)?;
                device.submit_trim(now, CommandId(id), meta.into(), osier_flash::Lba(slba), blocks);
            }
            Input::Read { id, slba, blocks, crossing } => {
                self.under_way.read(device, id, slba, blocks)?;
                device.submit_read(now, CommandId(id), osier_flash::Lba(slba), blocks, crossing);
            }
            Input::Flush { id } => {
                self.under_way.has_room(device)?;
                device.submit_flush(now, CommandId(id));
            }
            Input::Poll {} => return self.poll(now, 0),
            Input::PollEnded { ended } => return self.poll(now, ended),
            Input::NextOp {} => {
                let Some(op) = device.next_op() else {
                    return Err(Fault::Differs(
                        "an operation for the media was recorded, and there is none".to_owned(),
                    ));
                };
                self.digest.operation(&op);
                self.asked.insert(op.id, Asked::of(&op.kind));
                return Ok(());
            }
            Input::Compute {} => drop(device.compute(now)),
            Input::Run { core_hint, engine, bytes } => {
                self.digest.due(device.processor().run(now, core_hint, engine, bytes));
                return Ok(());
            }
            Input::GoOn { core_hint, engine, bytes } => {
                self.digest.due(device.processor().go_on(now, core_hint, engine, bytes));
                return Ok(());
            }
            Input::Sample {} => {
                let sample = device.sample(now);
                self.digest.sample(&sample);
            }
            Input::Temperature { millicelsius } => device.set_temperature_millicelsius(millicelsius),
            other => return self.media(now, other),
        }
        self.look();
        Ok(())
    }

    /// Folds in what the core says of itself.
    fn look(&mut self) {
        if let Some(device) = &self.device {
            self.digest.state(device);
        }
    }

    fn poll(&mut self, now: Nanos, recorded: u64) -> Result<(), Fault> {
        let Some(device) = &mut self.device else { return Ok(()) };
        device.poll(now, &mut self.completions);
        self.digest.completions(&self.completions);
        if let Some(life) = self.lives.last_mut() {
            for completion in &self.completions {
                self.under_way.ended(completion.id);
                *life.ended.entry(completion.status.0).or_default() += 1;
            }
        }
        let found = self.completions.len() as u64;
        if found != recorded {
            return Err(Fault::Differs(format!("{recorded} commands ended when it was recorded, and {found} now")));
        }
        self.look();
        Ok(())
    }

    /// Folds in every figure.
    fn statistics(&mut self) -> Result<(), Fault> {
        match (&self.window, &self.device) {
            (Some(window), _) => self.digest.window_statistics(&window.stats()),
            (None, Some(device)) => self.digest.statistics(device),
            (None, None) => return Err(not_made()),
        }
        Ok(())
    }

    fn end(&mut self, recorded: &str) -> Result<(), Fault> {
        self.statistics()?;
        let found = self.figures().map(|figures| figures.to_json()).unwrap_or_default();
        if found != recorded {
            return Err(Fault::Differs(format!("the statistics: recorded {recorded}, replayed {found}")));
        }
        self.set_ending(Ending::InOrder);
        Ok(())
    }

    fn set_ending(&mut self, ending: Ending) {
        if let Some(life) = self.lives.last_mut() {
            life.ending = ending;
        }
    }

    /// The media's answers.
    fn media(&mut self, now: Nanos, input: Input) -> Result<(), Fault> {
        let Some(device) = &mut self.device else { return Ok(()) };
        if let Some(op) = answered(&input) {
            // The core takes the media's answers unseen, and another one than it asked for would be its end.
            let asked = self.asked.remove(&op.into());
            if !asked.is_some_and(|asked| asked.is_answered_by(&input, device.params().with_data)) {
                let what = format!("{} of {op:?} answers {asked:?}", input.kind().name);
                return Err(Fault::Damaged(what));
            }
        }
        let (op, result) = match input {
            Input::MediaRead { op } if !device.params().with_data => (op, MediaResult::Read(Box::default())),
            Input::MediaRead { op } => {
                let compared = device.compared(op.into());
                let length = compared.iter().map(|part| part.at + part.bytes as usize).max().unwrap_or(0);
                let mut bytes = vec![0; length];
                for part in &compared {
                    let stored_bytes = part.bytes + part.tail.len() as u32;
                    if stored_bytes < STAND_IN_BYTES_MIN {
                        return Err(Fault::Differs(format!("{op:?} reads a payload of {stored_bytes} bytes")));
                    }
                    let whole = stand_in(stored_bytes, part.checksum);
                    bytes[part.at..part.at + part.bytes as usize].copy_from_slice(&whole[..part.bytes as usize]);
                }
                (op, MediaResult::Read(bytes.into()))
            }
            Input::MediaReadBytes { op, bytes } => (op, MediaResult::Read(bytes.0.into())),
            Input::MediaProgrammed { op } => (op, MediaResult::Programmed(None)),
            Input::MediaErased { op } => (op, MediaResult::Erased),
            Input::MediaSynced { op } => (op, MediaResult::Synced),
            Input::MediaFailed { op, error } => (op, MediaResult::Failed(error)),
            other => return Err(Fault::Damaged(format!("a record {} stands where none can", other.kind().name))),
        };
        device.media_done(now, op.into(), result);
        self.look();
        Ok(())
    }
}

/// Making a core.
impl Replay {
    /// Takes what a core is made from; any other input is handed back.
    fn make(&mut self, input: Input) -> Result<Option<Input>, Fault> {
        match input {
            Input::Configure {
                program,
                profile_name,
                profile_text,
                rate_divisor,
                thermal_time_scale,
                params,
                buffer_bytes,
                recovered,
            } => {
                let profile = Profile::parse(&profile_name, &profile_text)
                    .map_err(|error| Fault::Differs(format!("its profile is not taken any more: {error}")))?
                    .scaled(rate_divisor, thermal_time_scale);
                let memory_bytes = core_bytes(&profile, &params, buffer_bytes)?;
                let left = self.memory_bytes_max.checked_sub(memory_bytes).ok_or(Fault::Memory(memory_bytes))?;
                self.under_way = UnderWay::new(left);
                // The one before goes first: there is room for one of each.
                self.making = Making::default();
                (self.device, self.window) = (None, None);
                let buffer = vec![0; buffer_bytes as usize];
                self.making = Making { profile: Some((profile, params)), buffer, ..Making::default() };
                if let Some(life) = self.lives.last_mut() {
                    (life.profile, life.program, life.recovered) = (profile_name, program, recovered);
                }
            }
            Input::MediaBytes { address, bytes } => self.making.media.insert(address, Part::Bytes(bytes.0)),
            Input::MediaPayload { address, bytes, checksum } => {
                check_payload(bytes)?;
                self.making.payloads.insert(address, Part::Payload { bytes, checksum });
            }
            Input::BufferBytes { offset, bytes } => self.making.put_in_buffer(offset, &bytes.0)?,
            Input::BufferPayload { offset, bytes, checksum } => {
                check_payload(bytes)?;
                self.making.put_in_buffer(offset, &stand_in(bytes, checksum))?;
            }
            Input::Begin {} => self.begin()?,
            Input::Window { program, made } => {
                if let Some(life) = self.lives.last_mut() {
                    (life.profile, life.program) = (made.profile_name.clone(), program);
                }
                self.making = Making::default();
                (self.device, self.window) = (None, None);
                let origin = WindowOrigin::try_from(made).map_err(|error| Fault::Damaged(error.to_string()))?;
                self.window = Some(Box::new(WindowReplay::new(&origin, self.memory_bytes_max, &mut self.digest)?));
            }
            other => return Ok(Some(other)),
        }
        Ok(None)
    }

    fn begin(&mut self) -> Result<(), Fault> {
        let making = std::mem::take(&mut self.making);
        let Some((profile, params)) = making.profile else {
            return Err(Fault::Damaged("a core is made without its configuration".to_owned()));
        };
        let recovered = self.lives.last().is_some_and(|life| life.recovered);
        let device = if recovered {
            let mut read = |address: u64, into: &mut [u8]| {
                into.fill(0);
                // A sound payload is whole, whatever part of it another read has brought.
                making.media.put_over(address, into);
                making.payloads.put_over(address, into);
                Ok::<(), MediaError>(())
            };
            Device::recover(&profile, params, making.buffer, &mut read).map(|(device, _)| device)
        } else {
            Device::create(&profile, params, making.buffer)
        };
        let device = device.map_err(|error| Fault::Differs(format!("the core is not made: {error}")))?;
        #[cfg(any(test, feature = "planted"))]
        let device = self.with_bug(device);
        self.digest.statistics(&device);
        self.device = Some(device);
        self.asked.clear();
        self.making.profile = Some((profile, params));
        Ok(())
    }

    #[cfg(any(test, feature = "planted"))]
    fn with_bug(&self, mut device: Device<Vec<u8>>) -> Device<Vec<u8>> {
        if let Some(bug) = self.planted {
            device.plant(bug);
        }
        device
    }
}

/// The kinds below are what a core is made from.
const INPUT_CODE_MIN: u8 = 16;

/// Why an input cannot be given.
pub(super) enum Fault {
    /// The file does not make sense.
    Damaged(String),
    /// The core does otherwise.
    Differs(String),
    /// So many bytes of memory would be needed.
    Memory(u64),
}

fn not_made() -> Fault {
    Fault::Damaged("an input comes before the core is made".to_owned())
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        match refusal {
            Refusal::Damaged(what) => Fault::Damaged(what),
            Refusal::Memory(bytes) => Fault::Memory(bytes),
        }
    }
}

/// What the media were asked for, as far as an answer has to fit it.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Read { bytes: u32 },
    Program,
    Erase,
    Sync,
}

impl Asked {
    fn of(kind: &MediaOpKind) -> Asked {
        match kind {
            MediaOpKind::Read { bytes, .. } => Asked::Read { bytes: *bytes },
            MediaOpKind::Program { .. } => Asked::Program,
            MediaOpKind::Erase { .. } => Asked::Erase,
            MediaOpKind::Sync => Asked::Sync,
        }
    }

    fn is_answered_by(self, answer: &Input, with_data: bool) -> bool {
        match (self, answer) {
            (Asked::Read { bytes: asked }, Input::MediaReadBytes { bytes, .. }) => {
                bytes.0.len() == if with_data { asked as usize } else { 0 }
            }
            (Asked::Read { .. }, Input::MediaRead { .. })
            | (Asked::Program, Input::MediaProgrammed { .. })
            | (Asked::Erase, Input::MediaErased { .. })
            | (Asked::Sync, Input::MediaSynced { .. })
            | (_, Input::MediaFailed { .. }) => true,
            _ => false,
        }
    }
}

/// The operation that an answer of the media is for.
fn answered(input: &Input) -> Option<Op> {
    match input {
        Input::MediaRead { op }
        | Input::MediaReadBytes { op, .. }
        | Input::MediaProgrammed { op }
        | Input::MediaErased { op }
        | Input::MediaSynced { op }
        | Input::MediaFailed { op, .. } => Some(*op),
        _ => None,
    }
}

impl Making {
    fn put_in_buffer(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        let range = usize::try_from(offset).ok().and_then(|start| Some(start..start.checked_add(bytes.len())?));
        match range.and_then(|range| self.buffer.get_mut(range)) {
            Some(target) => target.copy_from_slice(bytes),
            None => return Err(Fault::Damaged(format!("byte {offset} of the write buffer is beyond its end"))),
        }
        Ok(())
    }
}

/// No payload is longer than the largest extent, nor so short that nothing stands in for it.
fn check_payload(bytes: u32) -> Result<(), Fault> {
    if (STAND_IN_BYTES_MIN..=osier_flash::geometry::STORED_BYTES_MAX).contains(&bytes) {
        return Ok(());
    }
    Err(Fault::Damaged(format!("a payload of {bytes} bytes")))
}

impl Part {
    fn length(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Payload { bytes, .. } => u64::from(*bytes),
        }
    }
}

impl Parts {
    fn insert(&mut self, address: u64, part: Part) {
        self.longest = self.longest.max(part.length());
        if self.by_address.get(&address).is_none_or(|known| known.length() < part.length()) {
            self.by_address.insert(address, part);
        }
    }

    /// Puts what is known of a range over it.
    fn put_over(&self, address: u64, into: &mut [u8]) {
        let end = address + into.len() as u64;
        for (start, part) in self.by_address.range(address.saturating_sub(self.longest)..end) {
            let from = (*start).max(address);
            let to = start.saturating_add(part.length()).min(end);
            if from < to {
                let target = &mut into[(from - address) as usize..(to - address) as usize];
                let range = (from - start) as usize..(to - start) as usize;
                match part {
                    Part::Bytes(bytes) => target.copy_from_slice(&bytes[range]),
                    Part::Payload { bytes, checksum } => target.copy_from_slice(&stand_in(*bytes, *checksum)[range]),
                }
            }
        }
    }
}

/// In words, what a kind of input is.
#[must_use]
pub fn meaning(kind: &str) -> &'static str {
    KINDS.iter().find(|known| known.name == kind).map_or("", |known| known.what)
}
