//! A recorded window in virtual time: over a shared memory of nothing, and flash whose bytes are stood in for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use osier_flash::Nanos;

use super::input::{Digest, Input};
use super::replay::Fault as Found;
use super::stand_in::stand_in;
use super::window::WindowOrigin;
use crate::model::ModelConfig;
use crate::window::message::LANES;
use crate::window::{
    ByteMedia, Command, CopyStore, Effect, Fault, MAPPERS_MAX, MapperId, Output, PAGE_BYTES, PageBytes, Resident,
    StoreError, Window, WindowStats,
};

/// Bytes of memory for each page of the flash: in the maps both ways, what the slot holds, its copy and its checksum.
const BYTES_PER_UNIT: u64 = 192;
/// Bytes of memory for each frame of the cache.
const BYTES_PER_FRAME: u64 = 256;
/// Bytes of memory for each plane of the flash.
const BYTES_PER_PLANE: u64 = 4096;
/// Latest time that is given: far beyond any clock's, and sums of it and of durations are still numbers.
const TIME_MAX: Nanos = Nanos(1 << 62);
/// Answers and ends of commands that wait to be handed out: more than a device lets come between two polls.
const OUTPUTS_MAX: u64 = 1 << 16;

/// A shared memory without bytes: the window decides nothing by them.
struct Nowhere;

impl Resident for Nowhere {
    fn load(&mut self, _page: u64, _copy: Option<u64>, _bytes: Option<&PageBytes>) {}
    fn save(&mut self, _page: u64, _bytes: &mut PageBytes) {}
    fn left(&mut self, _page: u64, _copy: Option<u64>) {}
}

/// What the media answer to the next input.
#[derive(Debug, Default)]
struct Script {
    /// The checksums of pages that are saved; nothing where there is no room.
    saves: VecDeque<Option<u32>>,
    /// Reads that do not find what was saved, by number, and whether they find anything.
    unread: VecDeque<(u32, bool)>,
    /// Reads of this input so far.
    reads: u32,
    /// More was asked for than was recorded.
    is_short: bool,
}

#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<Script>>);

impl Shared {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Flash that has the checksums of pages, and gives bytes that fit them.
#[derive(Debug)]
struct ScriptedStore {
    script: Shared,
    checksums: Vec<u32>,
    room: Box<PageBytes>,
}

impl CopyStore for ScriptedStore {
    fn put(&mut self, number: u32, fill: &mut dyn FnMut(&mut PageBytes)) -> Result<&PageBytes, StoreError> {
        fill(&mut self.room);
        let mut script = self.script.script();
        let answer = script.saves.pop_front();
        script.is_short |= answer.is_none();
        let Some(checksum) = answer.unwrap_or_default() else {
            return Err(StoreError("there was no room when it was recorded".to_owned()));
        };
        let number = number as usize;
        if self.checksums.len() <= number {
            self.checksums.resize(number + 1, 0);
        }
        self.checksums[number] = checksum;
        self.room.copy_from_slice(&stand_in(PAGE_BYTES as u32, checksum));
        Ok(&self.room)
    }

    fn get<'a>(&'a self, number: u32, room: &'a mut PageBytes) -> Option<&'a PageBytes> {
        let mut script = self.script.script();
        let read = script.reads;
        script.reads += 1;
        let unread = script.unread.pop_front_if(|(number, _)| *number == read);
        let checksum = *self.checksums.get(number as usize)?;
        match unread {
            Some((_, false)) => return None,
            Some((_, true)) => room.copy_from_slice(&stand_in(PAGE_BYTES as u32, !checksum)),
            None => room.copy_from_slice(&stand_in(PAGE_BYTES as u32, checksum)),
        }
        Some(room)
    }
}

/// See the module.
pub(super) struct WindowReplay {
    window: Window<Nowhere>,
    script: Shared,
    /// Faults of each mapper that are not answered.
    asked: [u32; MAPPERS_MAX],
    frames: u64,
    outputs: Vec<Output>,
    effects: Vec<Effect>,
}

impl WindowReplay {
    /// Makes the window that a recording is of.
    pub fn new(origin: &WindowOrigin, bytes_max: u64, digest: &mut Digest) -> Result<WindowReplay, Found> {
        let refused = |error: &dyn std::error::Error| Found::Differs(format!("it is not made any more: {error}"));
        let profile = origin.profile().map_err(|error| refused(&error))?;
        let config = profile.model(Some(origin.capacity_bytes)).map_err(|error| refused(&error))?;
        let bytes = bytes_of(&config);
        if bytes > bytes_max {
            return Err(Found::Memory(bytes));
        }
        let script = Shared::default();
        let store = ScriptedStore { script: script.clone(), checksums: Vec::new(), room: Box::new([0; PAGE_BYTES]) };
        let media = ByteMedia::with_store(&config.flash, Box::new(store));
        let mut window = Window::with_media(&config, origin.reserve, origin.seed, Nowhere, media)
            .map_err(|error| refused(&error))?;
        window.keep_effects(true);
        digest.window_statistics(&window.stats());
        Ok(WindowReplay {
            frames: window.stats().frames,
            window,
            script,
            asked: [0; MAPPERS_MAX],
            outputs: Vec::new(),
            effects: Vec::new(),
        })
    }

    pub fn stats(&self) -> WindowStats {
        self.window.stats()
    }

    /// Gives the window one input, or its media an answer.
    pub fn feed(&mut self, now: Nanos, input: Input, digest: &mut Digest) -> Result<(), Found> {
        if now > TIME_MAX {
            return Err(Found::Damaged(format!("an input comes at {} ns", now.0)));
        }
        let is_taken = match input {
            Input::Saved { checksum } => return self.answer(|script| script.saves.push_back(Some(checksum))),
            Input::NotSaved {} => return self.answer(|script| script.saves.push_back(None)),
            Input::Unread { read, is_damaged } => {
                return self.answer(|script| script.unread.push_back((read, is_damaged)));
            }
            Input::Attach {} => {
                // It has no time of its own: polls that were left out had moved the window's.
                self.window.advance(now);
                self.window.attach().is_ok()
            }
            Input::Detach { mapper } => {
                *self.asked_by(mapper)? = 0;
                self.window.detach(now, MapperId(mapper));
                true
            }
            Input::Fault { mapper, lane, page, is_store, more_max } => {
                let asked = self.asked_by(mapper)?;
                *asked += 1;
                if *asked > LANES as u32 {
                    return Err(Found::Damaged(format!("mapper {mapper} has more faults than lanes")));
                }
                let fault = Fault { mapper: MapperId(mapper), lane, page, is_store, more_max };
                self.window.fault(now, fault).is_ok()
            }
            Input::Zapped { mapper, dirty } => {
                self.asked_by(mapper)?;
                self.window.zapped(now, MapperId(mapper), dirty).is_ok()
            }
            Input::Prepare {} => self.poll(now, 0, digest)?,
            Input::HandOut { outputs } => self.poll(now, outputs, digest)?,
            other => self.command(now, other)?,
        };
        self.look(is_taken, digest)
    }

    fn answer(&mut self, put: impl FnOnce(&mut Script)) -> Result<(), Found> {
        put(&mut self.script.script());
        Ok(())
    }

    fn asked_by(&mut self, mapper: u8) -> Result<&mut u32, Found> {
        let asked = self.asked.get_mut(usize::from(mapper));
        asked.ok_or_else(|| Found::Damaged(format!("there is no mapper {mapper}")))
    }

    fn poll(&mut self, now: Nanos, recorded: u64, digest: &mut Digest) -> Result<bool, Found> {
        self.outputs.clear();
        self.window.poll(now, &mut self.outputs);
        digest.outputs(&self.outputs);
        for output in &self.outputs {
            if let Output::Answer { mapper, .. } = output {
                self.asked[usize::from(mapper.0)] = self.asked[usize::from(mapper.0)].saturating_sub(1);
            }
        }
        let found = self.outputs.len() as u64;
        if found != recorded {
            return Err(Found::Differs(format!(
                "it handed {recorded} things out when it was recorded, and {found} now"
            )));
        }
        Ok(true)
    }

    fn command(&mut self, now: Nanos, input: Input) -> Result<bool, Found> {
        let (mapper, tag, command) = match input {
            Input::Prefetch { mapper, tag, first, end } => (mapper, tag, Command::Prefetch(first..end)),
            Input::Pin { mapper, tag, first, end } => (mapper, tag, Command::Pin(first..end)),
            Input::Unpin { mapper, tag, first, end } => (mapper, tag, Command::Unpin(first..end)),
            Input::Evict { mapper, tag, first, end } => (mapper, tag, Command::Evict(first..end)),
            Input::Policy { mapper, tag, name, parameters } => {
                let parameters = parameters.into_iter().map(|each| (each.name, each.value)).collect();
                (mapper, tag, Command::Policy { name, parameters })
            }
            other => {
                let name = other.kind().name;
                return Err(Found::Damaged(format!("a record {name} stands in the recording of a window")));
            }
        };
        self.asked_by(mapper)?;
        Ok(self.window.command(now, MapperId(mapper), tag, command).is_ok())
    }

    /// Folds in what the window did and what it says of itself; it has asked the media for what was recorded.
    fn look(&mut self, is_taken: bool, digest: &mut Digest) -> Result<(), Found> {
        self.window.take_effects(&mut self.effects);
        digest.effects(&self.effects);
        digest.window(&self.window, is_taken);
        self.effects.clear();
        let mut script = self.script.script();
        let is_left = !script.saves.is_empty() || !script.unread.is_empty();
        if is_left || script.is_short {
            let what = if is_left { "fewer" } else { "more" };
            return Err(Found::Differs(format!("it takes {what} pages to the flash or from it than it did")));
        }
        *script = Script::default();
        let waiting_max = OUTPUTS_MAX + self.frames * MAPPERS_MAX as u64;
        if self.window.outputs_waiting() as u64 > waiting_max {
            return Err(Found::Damaged(format!("more than {waiting_max} outputs wait for a poll")));
        }
        Ok(())
    }
}

/// Bytes of memory of a window that is replayed, at most.
fn bytes_of(config: &ModelConfig) -> u64 {
    let shape = &config.flash.shape;
    let frames = config.cache.as_ref().map_or(0, |cache| u64::from(cache.cache.frames));
    let units = shape.units().saturating_add(config.flash.ftl.logical_units);
    let parts = [(units, BYTES_PER_UNIT), (frames, BYTES_PER_FRAME), (shape.planes().into(), BYTES_PER_PLANE)];
    parts.into_iter().fold(0, |sum: u64, (count, bytes)| sum.saturating_add(count.saturating_mul(bytes)))
}
