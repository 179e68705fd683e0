//! The device's half of the CXL.mem window: one thread that owns the core, a socket to attach at, and a segment of
//! shared memory for each program.
//!
//! Invariants:
//! - the core runs in this process alone; a program that is killed, at whatever store, leaves it whole;
//! - what comes from a program is copied once and then checked; one that says what nobody says in order is detached;
//! - a program is dead when the kernel says so (pidfd), never by a time-out;
//! - what comes over the control socket is done for the *operator*, a mapper that maps nothing and never ends: it
//!   attaches before anybody else, so that its pins last as long as the device.

mod control;
mod live;
mod mapper;
mod memory;
mod pagemap;
mod store;

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use osier_device::Nanos;
use osier_device::model::{ModelConfig, ModelError};
use osier_device::record::{RecordedWindow, Tape, WindowOrigin};
use osier_device::window::histogram::{Histogram, Measure};
use osier_device::window::message::{Ask, Figures, Refusal, Reply, ToDevice, ToMapper, WELCOME_BYTES, Welcome};
use osier_device::window::request::{Answer, Request};
use osier_device::window::{ByteMedia, CommandError, Fault, MapperId, Misuse, Output, Reserve, Window};
use osier_pmr::{Backing, Doorbell, ObjectKind, PmrError, Region, WaitPolicy, Waiter, pass};

use control::Controls;
pub use live::{Durations, FlashState, Live, Program};
use mapper::{AttachError, Mapper};
pub use memory::{Memory, MemoryError};
pub use store::FileStore;

/// Between two looks at sockets and processes.
const LOOK_NS: u64 = 1_000_000;
/// After how long what was recorded is handed on, at most.
const RECORDING_NS: u64 = 50_000_000;
/// Programs let in at one look: faults do not wait for more.
const ACCEPTS_PER_LOOK: usize = 8;
/// Entries taken from one mapper's ring before faults are looked for, and the others get their turn.
const ENTRIES_PER_TURN: usize = 8;
/// Bytes of a region for a mapper, and for the device's bell.
const SEGMENT_BYTES: u64 = 1 << 20;
const BELL_BYTES: u64 = 64 << 10;

/// How a window is served.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Where programs attach. The control socket is beside it, with `.control` after its name.
    pub socket: PathBuf,
    /// The device's name, for messages.
    pub name: String,
    /// How frames are kept free.
    pub reserve: Reserve,
    /// How the device waits when nothing is to be done.
    pub wait: WaitPolicy,
    /// Bytes of pages that have left and whose memory is kept for the next page: more is given back to the system.
    pub idle_bytes_max: u64,
    /// Draws what the models draw.
    pub seed: u64,
}

/// Why a window is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The device cannot have a window.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The window lets nobody attach.
    #[error("the control socket cannot be served: {0}")]
    Operator(String),
    /// No shared memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// No segment.
    #[error(transparent)]
    Segment(#[from] PmrError),
    /// The system refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: String,
        /// Why.
        source: io::Error,
    },
    /// This processor cannot wait so.
    #[error(transparent)]
    Wait(#[from] osier_pmr::NoWaitpkg),
}

/// Nanoseconds of the monotonic clock, the same in all processes.
#[must_use]
pub fn clock() -> Nanos {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live, writable value.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// What sampling has cost programs, as they say: the time from where they take a fault of a page that was drawn to
/// where it is mapped again, and that of unmapping. The trap itself, of which they cannot know, is not in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SamplingCost {
    /// Nanoseconds.
    pub ns: u64,
    /// How long programs mapped the window, each for itself.
    pub program_ns: u64,
}

impl SamplingCost {
    fn add(&mut self, other: SamplingCost) {
        self.ns = self.ns.saturating_add(other.ns);
        self.program_ns = self.program_ns.saturating_add(other.program_ns);
    }
}

/// A device that serves its window.
pub struct Server {
    window: RecordedWindow<Memory>,
    name: String,
    frames: u64,
    listener: UnixListener,
    socket: PathBuf,
    controls: Controls,
    /// For whom it is done what comes over the control socket.
    operator: MapperId,
    /// Of programs that have gone.
    latency: Histogram,
    lateness: Histogram,
    bell_region: Region,
    bell: Doorbell,
    own_pidfd: OwnedFd,
    waiter: Waiter,
    mappers: Vec<Mapper>,
    /// Of programs that have gone.
    sampling: SamplingCost,
    programs_untracked: u64,
    outputs: Vec<Output>,
    next_look: Nanos,
    next_flush: Nanos,
    /// The latest program could not be let in, and that was said.
    is_closed: bool,
    /// The media take no pages, and that was said.
    is_stalled: bool,
}

impl Server {
    /// Makes the device and begins to listen.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub fn new(config: &ModelConfig, options: &ServeOptions) -> Result<Server, ServeError> {
        Server::with_media(config, options, ByteMedia::new(&config.flash))
    }

    /// Makes the device over flash whose bytes are kept as `media` says, and begins to listen.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub fn with_media(config: &ModelConfig, options: &ServeOptions, media: ByteMedia) -> Result<Server, ServeError> {
        Server::make(config, options, media, RecordedWindow::from)
    }

    /// The same, and every input of the device's core goes to a tape. `config` is that of the origin's profile, reserve
    /// and seed are those of the options.
    ///
    /// # Errors
    /// What could not be made, and why.
    pub fn recorded(
        config: &ModelConfig,
        options: &ServeOptions,
        media: ByteMedia,
        origin: &WindowOrigin,
        tape: Tape,
    ) -> Result<Server, ServeError> {
        Server::make(config, options, media, |window| RecordedWindow::begin(window, origin, tape))
    }

    fn make(
        config: &ModelConfig,
        options: &ServeOptions,
        media: ByteMedia,
        record: impl FnOnce(Window<Memory>) -> RecordedWindow<Memory>,
    ) -> Result<Server, ServeError> {
        let pages = config.flash.ftl.logical_units;
        let memory = Memory::new(pages, options.idle_bytes_max)?;
        let mut window = record(Window::with_media(config, options.reserve, options.seed, memory, media)?);
        let operator = window.attach().map_err(|misuse| ServeError::Operator(misuse.to_string()))?;
        let bell_region = Region::create(&Backing::Memfd, BELL_BYTES, [0; 16])?;
        let bell = bell_region.allocate("bell", ObjectKind::DOORBELL, osier_pmr::DOORBELL_BYTES, 128)?;
        let listener = listen(&options.socket)?;
        let mut control = options.socket.clone().into_os_string();
        control.push(".control");
        let controls = Controls::new(listen(control.as_ref())?, control.into());
        Ok(Server {
            controls,
            operator,
            latency: Histogram::default(),
            lateness: Histogram::default(),
            frames: window.stats().frames,
            window,
            name: options.name.clone(),
            listener,
            socket: options.socket.clone(),
            bell: Doorbell::new(&bell, 0),
            bell_region,
            own_pidfd: own_pidfd().map_err(system("open this process's pidfd"))?,
            waiter: Waiter::new(options.wait)?,
            mappers: Vec::new(),
            sampling: SamplingCost::default(),
            programs_untracked: 0,
            outputs: Vec::new(),
            next_look: Nanos::ZERO,
            next_flush: Nanos::ZERO,
            is_closed: false,
            is_stalled: false,
        })
    }

    /// The device's core, to look at.
    #[must_use]
    pub fn window(&self) -> &Window<Memory> {
        &self.window
    }

    /// The device's core, for whoever damages it on purpose.
    pub fn window_mut(&mut self) -> &mut RecordedWindow<Memory> {
        &mut self.window
    }

    /// What sampling has cost all programs so far.
    #[must_use]
    pub fn sampling(&self) -> SamplingCost {
        let (mut all, now) = (self.sampling, clock());
        self.mappers.iter().for_each(|mapper| all.add(mapper.sampling(now)));
        all
    }

    /// Programs that there ever were whose stores were not tracked: each page of theirs that left counts as dirty.
    #[must_use]
    pub fn programs_untracked(&self) -> u64 {
        self.programs_untracked
    }

    /// How long faults took and how late they were, of all programs that there ever were.
    #[must_use]
    pub fn timing(&self) -> [Histogram; 2] {
        let (mut latency, mut lateness) = (self.latency.clone(), self.lateness.clone());
        for mapper in &self.mappers {
            latency.merge(&mapper.timing(Measure::Latency));
            lateness.merge(&mapper.timing(Measure::Lateness));
        }
        [latency, lateness]
    }

    /// What it does now.
    #[must_use]
    pub fn live(&self) -> Live {
        let [latency, lateness] = self.timing();
        let durations = |mapper: &Mapper, measure| {
            let buckets = Vec::new();
            Durations { buckets, ..Durations::from(&mapper.timing(measure)) }
        };
        let program = |mapper: &Mapper| Program {
            pid: mapper.pid,
            pinned_pages: self.window.pinned_by(mapper.id),
            is_silent: self.window.is_silent(mapper.id),
            is_untracked: mapper.is_untracked,
            latency: durations(mapper, Measure::Latency),
            lateness: durations(mapper, Measure::Lateness),
        };
        Live {
            device: self.name.clone(),
            at_ns: clock().0,
            pinned_by_control: self.window.pinned_by(self.operator),
            latency: Durations::from(&latency),
            lateness: Durations::from(&lateness),
            programs: self.mappers.iter().map(program).collect(),
            programs_untracked: self.programs_untracked,
            ..Live::of(&self.window.stats(), self.window.pages(), self.window.residency())
        }
    }

    /// Serves until `stop` is set.
    pub fn run(&mut self, stop: &Arc<AtomicBool>) {
        while !stop.load(Ordering::Relaxed) {
            self.turn();
        }
    }

    /// Ends the recording in order, if one is being made.
    pub fn end_recording(&mut self) {
        self.window.end_recording();
    }

    /// Does what is at hand, or waits for a millisecond at most.
    pub fn turn(&mut self) {
        let now = clock();
        let mut is_busy = false;
        // Faults are answered before anything else is looked at: somebody waits.
        for index in 0..self.mappers.len() {
            is_busy |= self.take_faults(now, index);
        }
        is_busy |= self.hand_out(now);
        for index in 0..self.mappers.len() {
            is_busy |= self.take_entries(now, index);
            is_busy |= self.look_at_pages(now, index);
        }
        is_busy |= self.hand_out(now);
        if now >= self.next_look {
            self.look_around(now);
        }
        if !is_busy && !self.window.resident_mut().give_back() {
            self.wait(now);
        }
    }

    fn wait(&mut self, now: Nanos) {
        let until = self.window.next_event().map_or(u64::MAX, |at| at.0).min(self.next_look.0);
        let timeout = Duration::from_nanos(until.saturating_sub(now.0));
        let mappers = &self.mappers;
        self.waiter.wait_for(&self.bell, timeout, || mappers.iter().any(Mapper::has_message).then_some(()));
    }

    /// Takes a mapper's faults; whether there were any.
    fn take_faults(&mut self, now: Nanos, index: usize) -> bool {
        let mut is_busy = false;
        let mapper = &mut self.mappers[index];
        while let Some((lane, ask)) = mapper.next_fault(now) {
            is_busy = true;
            // A time in the future would be believed.
            let at = Nanos(ask.at_ns.min(now.0));
            let Ask { page, is_store, more_max, .. } = ask;
            let fault = Fault { mapper: mapper.id, lane, page, is_store, more_max };
            if let Err(misuse) = self.window.fault(at, fault) {
                mapper.fail(&misuse.to_string());
            }
        }
        is_busy
    }

    /// Takes what else a mapper says; whether it said anything.
    fn take_entries(&mut self, now: Nanos, index: usize) -> bool {
        let mut is_busy = false;
        let mapper = &mut self.mappers[index];
        let id = mapper.id;
        for _ in 0..ENTRIES_PER_TURN {
            let Some(words) = mapper.next_entry() else { break };
            is_busy = true;
            let taken = match ToDevice::decode(&words) {
                Ok(ToDevice::Acknowledge) if mapper.acknowledge() => Ok(()),
                Ok(ToDevice::Acknowledge) => Err(Misuse::NothingToZap(id)),
                Ok(ToDevice::Command(tag, command)) => self.window.command(now, id, tag, command),
                Ok(ToDevice::Detach) => {
                    mapper.has_left = true;
                    Ok(())
                }
                Err(tag) => {
                    mapper.send(&ToMapper::Done { tag, result: Err(Refusal::Unknown) });
                    Ok(())
                }
            };
            if let Err(misuse) = taken {
                mapper.fail(&misuse.to_string());
            }
        }
        is_busy
    }

    /// Looks at one page that a mapper has unmapped: the next fault may come at any moment. Whether there was one.
    fn look_at_pages(&mut self, now: Nanos, index: usize) -> bool {
        let (mapper, window) = (&mut self.mappers[index], &self.window);
        let had_some = mapper.has_unlooked();
        if let Some(dirty) = mapper.look(|page| !window.is_as_it_came(page, &window.resident().read(page)))
            && let Err(misuse) = self.window.zapped(now, mapper.id, dirty)
        {
            mapper.fail(&misuse.to_string());
        }
        had_some
    }

    /// Does what the core says; whether it said anything.
    fn hand_out(&mut self, now: Nanos) -> bool {
        self.window.poll(now, &mut self.outputs);
        if self.outputs.is_empty() {
            return false;
        }
        let answered = clock();
        let mut has_done = false;
        for output in self.outputs.drain(..) {
            has_done |= matches!(output, Output::Done { .. });
            let (Output::Answer { mapper: id, .. } | Output::Zap { mapper: id, .. } | Output::Done { mapper: id, .. }) =
                output;
            if let Output::Done { mapper, tag, result, .. } = &output
                && *mapper == self.operator
            {
                let error = |error: &CommandError| Answer::Error(error.to_string());
                self.controls.answer(*tag, &result.as_ref().map_or_else(error, |report| Answer::Ended(*report)));
                continue;
            }
            // It may just have gone.
            let Some(mapper) = self.mappers.iter_mut().find(|mapper| mapper.id == id) else { continue };
            match output {
                Output::Answer { lane, due, grant, more, is_sample, .. } => {
                    let (taken_ns, answered_ns) = (mapper.taken_ns(lane), answered.0);
                    mapper.answer(lane, &Reply { due_ns: due.0, grant, taken_ns, answered_ns, more, is_sample });
                }
                Output::Zap { pages, known, is_sample, .. } => mapper.zap(&pages, known, is_sample),
                Output::Done { tag, result, .. } => {
                    mapper.publish(&Figures::from(&self.window.stats()));
                    mapper.send(&ToMapper::Done { tag, result: result.as_ref().copied().map_err(Refusal::from) });
                }
            }
        }
        let is_urgent = has_done || self.window.is_waited_for();
        for mapper in &mut self.mappers {
            mapper.flush(is_urgent);
        }
        true
    }

    /// Who came, and who has gone.
    fn look_around(&mut self, now: Nanos) {
        self.next_look = Nanos(now.0 + LOOK_NS);
        if now >= self.next_flush {
            self.next_flush = Nanos(now.0 + RECORDING_NS);
            self.window.flush_recording();
        }
        for _ in 0..ACCEPTS_PER_LOOK {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    self.is_closed = false;
                    self.welcome(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Descriptors may have run out, for a while: those who are in are served on.
                Err(error) => {
                    if !std::mem::replace(&mut self.is_closed, true) {
                        tracing::warn!(%error, socket = %self.socket.display(), "programs cannot be let in");
                    }
                    break;
                }
            }
        }
        let stalled = self.window.stalled();
        if let Some(error) = stalled.filter(|_| !self.is_stalled) {
            tracing::error!(%error, "pages wait that have to be written; programs that need their frames wait too");
        }
        self.is_stalled = stalled.is_some();
        self.take_requests(now);
        let figures = Figures::from(&self.window.stats());
        for mapper in &mut self.mappers {
            mapper.publish(&figures);
            let is_silent = self.window.is_silent(mapper.id);
            if is_silent && !mapper.is_silent {
                tracing::warn!(
                    pid = mapper.pid,
                    "a program does not give pages back; is it stopped? others do without"
                );
            }
            mapper.is_silent = is_silent;
            if mapper.take_page_map() {
                self.programs_untracked += 1;
                tracing::warn!(
                    pid = mapper.pid,
                    "the stores of a program are not tracked: every page of its that leaves counts as dirty; its kernel \
                     has no write protection of shared memory (Linux 5.19)"
                );
            }
            let is_unmapping = std::mem::take(&mut mapper.is_unmapping);
            mapper.flush(!is_unmapping);
            mapper.has_left |= mapper.is_dead();
        }
        let gone = self.mappers.iter().filter(|mapper| mapper.has_left);
        let gone: Vec<(MapperId, SamplingCost)> = gone.map(|mapper| (mapper.id, mapper.sampling(now))).collect();
        for (id, sampling) in gone {
            self.sampling.add(sampling);
            tracing::debug!(mapper = id.0, "a mapper has gone");
            self.window.detach(now, id);
        }
        for mapper in self.mappers.iter().filter(|mapper| mapper.has_left) {
            self.latency.merge(&mapper.timing(Measure::Latency));
            self.lateness.merge(&mapper.timing(Measure::Lateness));
        }
        self.mappers.retain(|mapper| !mapper.has_left);
    }

    /// Takes what is asked over the control socket.
    fn take_requests(&mut self, now: Nanos) {
        for (tag, request) in self.controls.look() {
            match request {
                Request::Stats => {
                    let json = serde_json::to_string(&self.live());
                    let error = |error: serde_json::Error| Answer::Error(error.to_string());
                    self.controls.answer(tag, &json.map_or_else(error, Answer::Stats));
                }
                Request::Command(command) => {
                    if let Err(misuse) = self.window.command(now, self.operator, tag, command) {
                        self.controls.answer(tag, &Answer::Error(misuse.to_string()));
                    }
                }
            }
        }
    }

    /// Lets a program in, or says why not. What it does wrong is no error of the device.
    fn welcome(&mut self, socket: UnixStream) {
        let id = match self.window.attach() {
            Ok(id) => id,
            Err(misuse @ (Misuse::TooMany | Misuse::NotAttached(_) | Misuse::NothingToZap(_))) => {
                let _ = pass::send(&socket, &self.welcome_of(Err(misuse.to_string())), &[]);
                return;
            }
        };
        let region = Region::create(&Backing::Memfd, SEGMENT_BYTES, [0; 16]);
        let made = region.map_err(AttachError::from).and_then(|region| Ok((Mapper::new(id, &region, socket)?, region)));
        let (mapper, region) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, "a program could not attach");
                return self.window.detach(clock(), id);
            }
        };
        let name = self.name.clone();
        let fds = [self.window.resident().as_fd(), region.as_fd(), self.bell_region.as_fd(), self.own_pidfd.as_fd()];
        // What it passes on is looked for now and then; nobody waits for it.
        let sent = pass::send(mapper.socket(), &self.welcome_of(Ok(name)), &fds);
        if sent.and_then(|()| mapper.socket().set_nonblocking(true)).is_err() {
            return self.window.detach(clock(), id);
        }
        self.mappers.push(mapper);
    }

    fn welcome_of(&self, text: Result<String, String>) -> [u8; WELCOME_BYTES] {
        let (pages, hit_ns) = (self.window.pages(), self.window.hit_ns());
        Welcome { pages, frames: self.frames, hit_ns, text }.encode()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nobody can attach any more; a failure leaves a socket that refuses.
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn system(what: &str) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.to_owned();
    move |source| ServeError::System { what, source }
}

fn listen(path: &Path) -> Result<UnixListener, ServeError> {
    let what = format!("listen at {}", path.display());
    // What a device that was killed left behind refuses connections; a living one accepts, and is left alone.
    if path.exists() && UnixStream::connect(path).is_err() {
        std::fs::remove_file(path).map_err(system(&format!("remove the stale socket {}", path.display())))?;
    }
    let listener = UnixListener::bind(path).map_err(system(&what))?;
    listener.set_nonblocking(true).map_err(system(&what))?;
    Ok(listener)
}

fn own_pidfd() -> io::Result<OwnedFd> {
    // SAFETY: a plain call.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the process behind a pidfd has ended, or what a socket is connected to has closed.
fn has_ended(fd: &impl AsRawFd) -> bool {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one live entry.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}
