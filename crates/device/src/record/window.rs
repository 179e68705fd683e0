//! The recording of a memory window: a [`Window`] whose every input goes to a [`Tape`].
//!
//! The window only copies the bytes of pages, and looks at one thing of them: whether those of the flash are the ones
//! that were saved. So a page that is saved is recorded by its checksum, and a read only if it found something else.
//!
//! What is elided, because it changes nothing: polls that only move the time. One of them is recorded after all where
//! the next input has an earlier time, or none: what is to happen between the two then waits.

use std::ops::Deref;

use osier_flash::Nanos;

use super::block::BLOCK_HEADER_BYTES;
use super::input::{Digest, Input, Made, Parameter, Setting};
use super::tape::{Tape, Urgency};
use crate::profile::{Profile, ProfileError, parse_override};
use crate::window::{
    Command, Effect, Fault, Found, Grant, MapperId, Misuse, Output, Reserve, Resident, Window, WindowStats,
};

/// What a window is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct WindowOrigin {
    /// The profile's name.
    pub profile_name: String,
    /// The profile's text.
    pub profile_text: String,
    /// Keys of it that are set otherwise.
    pub settings: Vec<(String, toml::Value)>,
    /// Bytes of the window.
    pub capacity_bytes: u64,
    /// How frames are kept free.
    pub reserve: Reserve,
    /// Draws what the models draw.
    pub seed: u64,
}

impl WindowOrigin {
    /// The profile, with what is set otherwise.
    ///
    /// # Errors
    /// As [`Profile::parse_with`].
    pub fn profile(&self) -> Result<Profile, ProfileError> {
        Profile::parse_with(&self.profile_name, &self.profile_text, &self.settings)
    }
}

impl From<&WindowOrigin> for Made {
    fn from(origin: &WindowOrigin) -> Made {
        let settings = origin.settings.iter();
        Made {
            profile_name: origin.profile_name.clone(),
            profile_text: origin.profile_text.clone(),
            settings: settings.map(|(key, value)| Setting { key: key.clone(), value: value.to_string() }).collect(),
            capacity_bytes: origin.capacity_bytes,
            reserve_frames: origin.reserve.frames,
            reserve_batch: origin.reserve.batch,
            seed: origin.seed,
        }
    }
}

impl TryFrom<Made> for WindowOrigin {
    type Error = ProfileError;

    fn try_from(made: Made) -> Result<WindowOrigin, ProfileError> {
        let settings = made.settings.iter().map(|Setting { key, value }| parse_override(&format!("{key}={value}")));
        Ok(WindowOrigin {
            profile_name: made.profile_name,
            profile_text: made.profile_text,
            settings: settings.collect::<Result<_, _>>()?,
            capacity_bytes: made.capacity_bytes,
            reserve: Reserve { frames: made.reserve_frames, batch: made.reserve_batch },
            seed: made.seed,
        })
    }
}

/// A window that is recorded, or not. What changes the window has a method here; everything else is the window's.
pub struct RecordedWindow<R> {
    window: Window<R>,
    tape: Option<Box<Tape>>,
    effects: Vec<Effect>,
    /// The time of the latest poll that was elided, if nothing was recorded since.
    elided: Option<Nanos>,
}

impl<R> Deref for RecordedWindow<R> {
    type Target = Window<R>;

    fn deref(&self) -> &Window<R> {
        &self.window
    }
}

impl<R: Resident> From<Window<R>> for RecordedWindow<R> {
    /// Without a recording.
    fn from(window: Window<R>) -> RecordedWindow<R> {
        RecordedWindow { window, tape: None, effects: Vec::new(), elided: None }
    }
}

impl<R: Resident> RecordedWindow<R> {
    /// Records what follows. The window is one that was just made from `origin`, over erased flash.
    #[must_use]
    pub fn begin(mut window: Window<R>, origin: &WindowOrigin, mut tape: Tape) -> RecordedWindow<R> {
        window.keep_effects(true);
        tape.digest.window_statistics(&window.stats());
        let program = env!("CARGO_PKG_VERSION").to_owned();
        tape.put(Nanos(0), &Input::Window { program, made: origin.into() });
        tape.close_block(Urgency::MayWait);
        tape.urgency = Urgency::Now;
        RecordedWindow { window, tape: Some(Box::new(tape)), effects: Vec::new(), elided: None }
    }

    /// As [`Window::resident_mut`]: the window decides nothing by what is there.
    pub fn resident_mut(&mut self) -> &mut R {
        self.window.resident_mut()
    }

    /// As [`Window::rot`]: the recording has what the next read finds.
    pub fn rot(&mut self, page: u64, byte: usize, bit: u32) -> bool {
        self.window.rot(page, byte, bit)
    }

    /// As [`Window::attach`].
    ///
    /// # Errors
    /// As there.
    pub fn attach(&mut self) -> Result<MapperId, Misuse> {
        self.catch_up(Nanos::ZERO);
        let attached = self.window.attach();
        let now = self.window.now();
        self.note(now, attached.is_ok(), || Input::Attach {});
        attached
    }

    /// As [`Window::detach`].
    pub fn detach(&mut self, now: Nanos, mapper: MapperId) {
        self.catch_up(now);
        self.window.detach(now, mapper);
        self.note(now, true, || Input::Detach { mapper: mapper.0 });
    }

    /// As [`Window::fault`].
    ///
    /// # Errors
    /// As there.
    pub fn fault(&mut self, now: Nanos, fault: Fault) -> Result<(), Misuse> {
        self.catch_up(now);
        let taken = self.window.fault(now, fault);
        let Fault { mapper, lane, page, is_store, more_max } = fault;
        self.note(now, taken.is_ok(), || Input::Fault { mapper: mapper.0, lane, page, is_store, more_max });
        taken
    }

    /// As [`Window::zapped`].
    ///
    /// # Errors
    /// As there.
    pub fn zapped(&mut self, now: Nanos, mapper: MapperId, dirty: u64) -> Result<(), Misuse> {
        self.catch_up(now);
        let taken = self.window.zapped(now, mapper, dirty);
        self.note(now, taken.is_ok(), || Input::Zapped { mapper: mapper.0, dirty });
        taken
    }

    /// As [`Window::command`].
    ///
    /// # Errors
    /// As there.
    pub fn command(&mut self, now: Nanos, mapper: MapperId, tag: u32, command: Command) -> Result<(), Misuse> {
        let input = self.tape.is_some().then(|| recorded_command(mapper.0, tag, &command));
        self.catch_up(now);
        let taken = self.window.command(now, mapper, tag, command);
        if let Some(input) = input {
            self.note(now, taken.is_ok(), || input);
        }
        taken
    }

    /// As [`Window::poll`].
    pub fn poll(&mut self, now: Nanos, outputs: &mut Vec<Output>) {
        let is_idle = self.tape.is_some() && self.window.is_idle_at(now);
        if !is_idle {
            self.catch_up(now);
        }
        let before = outputs.len();
        self.window.poll(now, outputs);
        let given = &outputs[before..];
        if is_idle {
            debug_assert!(given.is_empty(), "an idle window has nothing to hand out");
            self.elided = Some(self.window.now());
            return;
        }
        if let Some(tape) = &mut self.tape {
            tape.digest.outputs(given);
        }
        let outputs = given.len() as u64;
        self.note(now, true, || if outputs == 0 { Input::Prepare {} } else { Input::HandOut { outputs } });
    }

    /// Hands on what was recorded so far, so that a death of the process costs no more than what follows.
    pub fn flush_recording(&mut self) {
        if self.tape.as_ref().is_some_and(|tape| tape.block.len() > BLOCK_HEADER_BYTES) {
            self.close_block();
        }
    }

    /// Ends the recording in order.
    pub fn end_recording(&mut self) {
        if let Some(mut tape) = self.tape.take() {
            let statistics = self.window.stats();
            tape.digest.window_statistics(&statistics);
            tape.put(tape.now, &Input::End { statistics: statistics.to_json() });
            tape.close_block(Urgency::Last);
        }
        self.window.keep_effects(false);
    }

    /// The window itself, for what no recording knows of.
    #[cfg(test)]
    pub(crate) fn window_mut(&mut self) -> &mut Window<R> {
        &mut self.window
    }

    /// The window itself.
    #[cfg(test)]
    pub(crate) fn into_window(self) -> Window<R> {
        self.window
    }

    /// Whether a recording is being made.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.tape.is_some()
    }

    /// An input comes with an earlier time than a poll that was elided.
    fn catch_up(&mut self, now: Nanos) {
        let Some(at) = self.elided.take().filter(|at| *at > now) else { return };
        self.note(at, true, || Input::Prepare {});
    }

    /// Writes an input down that the window has had, behind what the media answered to it.
    fn note(&mut self, now: Nanos, is_taken: bool, input: impl FnOnce() -> Input) {
        let Some(tape) = &mut self.tape else { return };
        self.window.take_effects(&mut self.effects);
        answers(&self.effects, |answer| tape.put(now, &answer));
        tape.digest.effects(&self.effects);
        tape.digest.window(&self.window, is_taken);
        self.effects.clear();
        tape.put(now, &input());
        if tape.is_full() {
            self.close_block();
        }
    }

    /// Every figure is checked at the end of a block.
    fn close_block(&mut self) {
        let Some(tape) = &mut self.tape else { return };
        tape.digest.window_statistics(&self.window.stats());
        tape.put(tape.now, &Input::Statistics {});
        tape.close_block(tape.urgency);
        if tape.refused.is_some() {
            self.tape = None;
            self.window.keep_effects(false);
        }
    }
}

/// What the media answered, as far as it does not follow from what was recorded before.
fn answers(effects: &[Effect], mut put: impl FnMut(Input)) {
    let mut reads = 0;
    for effect in effects {
        match *effect {
            Effect::Saved { checksum, .. } => put(Input::Saved { checksum }),
            Effect::NotSaved { .. } => put(Input::NotSaved {}),
            Effect::Read(found) => {
                if found != Found::Whole {
                    put(Input::Unread { read: reads, is_damaged: found == Found::Damaged });
                }
                reads += 1;
            }
            Effect::Loaded { .. } | Effect::Left { .. } => {}
        }
    }
}

fn recorded_command(mapper: u8, tag: u32, command: &Command) -> Input {
    match command {
        Command::Prefetch(pages) => Input::Prefetch { mapper, tag, first: pages.start, end: pages.end },
        Command::Pin(pages) => Input::Pin { mapper, tag, first: pages.start, end: pages.end },
        Command::Unpin(pages) => Input::Unpin { mapper, tag, first: pages.start, end: pages.end },
        Command::Evict(pages) => Input::Evict { mapper, tag, first: pages.start, end: pages.end },
        Command::Policy { name, parameters } => {
            let parameters = parameters.iter().map(|(name, value)| Parameter { name: name.clone(), value: *value });
            Input::Policy { mapper, tag, name: name.clone(), parameters: parameters.collect() }
        }
    }
}

/// What a window puts out.
impl Digest {
    pub(super) fn outputs(&mut self, outputs: &[Output]) {
        for output in outputs {
            match output {
                Output::Answer { mapper, lane, page, due, grant, more, is_sample } => {
                    let grant = match grant {
                        Grant::Writable => 1,
                        Grant::Armed => 2,
                        Grant::Lost => 3,
                        Grant::NoSuchPage => 4,
                    };
                    self.words([1, mapper.0.into(), (*lane).into(), *page, due.0, grant, (*more).into()]);
                    self.word((*is_sample).into());
                }
                Output::Zap { mapper, pages, known, is_sample } => {
                    self.words([2, mapper.0.into(), *known, (*is_sample).into(), pages.len() as u64]);
                    self.words(pages.iter().copied());
                }
                Output::Done { mapper, tag, at, result } => {
                    self.words([3, mapper.0.into(), (*tag).into(), at.0]);
                    self.text(&format!("{result:?}"));
                }
            }
        }
    }

    /// What became of the shared memory, and which bytes went where.
    pub(super) fn effects(&mut self, effects: &[Effect]) {
        for effect in effects {
            match *effect {
                Effect::Read(found) => self.words([1, found as u64]),
                Effect::Loaded { page, copy } => self.words([2, page, copy.map_or(u64::MAX, |copy| copy)]),
                Effect::Saved { page, copy, checksum } => self.words([3, page, copy, checksum.into()]),
                Effect::NotSaved { page } => self.words([4, page]),
                Effect::Left { page, copy } => self.words([5, page, copy.map_or(u64::MAX, |copy| copy)]),
            }
        }
    }

    /// What a window says of itself after an input: whether it took it, when it wants to be polled, how full it is.
    pub(super) fn window<R: Resident>(&mut self, window: &Window<R>, is_taken: bool) {
        let next = window.next_event().map_or(u64::MAX, |at| at.0);
        self.words([is_taken.into(), next, window.frames_used(), window.outputs_waiting() as u64]);
    }

    pub(super) fn window_statistics(&mut self, statistics: &WindowStats) {
        self.text(&format!("{statistics:?}"));
    }
}
