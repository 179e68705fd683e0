//! The CXL.mem window: which pages the programs that map the device may touch directly, and what happens when they
//! touch another. Sans-IO, with the bytes under it.
//!
//! Programs map the device's memory. A resident page is mapped and costs what the machine's DRAM costs; the window
//! never hears of it. Any other access is a *fault* that a mapper reports with [`Window::fault`], and that ends with an
//! [`Output::Answer`]: from `due` on the page may be mapped. A page leaves by an [`Output::Zap`] to everyone who maps
//! it, which each acknowledges with [`Window::zapped`], saying what was stored to meanwhile. In prose:
//! `docs/window.md`.
//!
//! - [`fault`]: faults become fills from the flash, and are answered;
//! - [`leave`]: victims are unmapped everywhere, and written to the flash if they are dirty;
//! - [`sample`]: hits, of which nobody hears, are sampled;
//! - [`control`]: prefetch, pin, unpin, evict, policy;
//! - [`media`]: the flash with the bytes of its pages;
//! - [`message`]: what a mapper and the device say to each other;
//! - [`request`]: what is said over the control socket;
//! - [`histogram`]: how long faults took.
//!
//! Invariants:
//! - a page is mapped by somebody only from the answer that grants it to the acknowledgement of its zap;
//! - a frame takes another page only when every mapper has acknowledged and what was dirty is with the flash;
//! - what is dirty is known only after the zap: a mapper acknowledges what it found *after* it had unmapped, and the
//!   pages of one that died count as dirty;
//! - the bytes of a fill are those of the flash unit that the FTL names, or the fill fails;
//! - a page whose newest bytes the flash refused, because it is worn out, is lost: its older bytes are not handed out.
//!
//! Hits cross no modelled link, because nobody sees them; so a miss crosses an idle one.

pub mod control;
pub mod histogram;
pub mod media;
pub mod message;
pub mod request;

mod fault;
mod leave;
mod planted;
mod sample;
#[cfg(test)]
mod sample_tests;
mod stats;
#[cfg(test)]
pub(crate) mod tests;
mod trace;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use osier_cache::{Cache, Eviction};
use osier_flash::Nanos;
use osier_flash::page::{Completed, PageFtl, PageRecovery, RequestId};
use osier_link::{CxlFlit, CxlMessage, Link, Time, Transaction};

use crate::model::{ModelConfig, ModelError};
use control::Commands;
use fault::{Blocked, Filling, Queue};
use leave::{Leaving, Zaps, mappers};
use sample::Sampler;
use trace::Trace;

pub use control::{Command, CommandError, Report};
pub use fault::{Fault, Grant};
pub use leave::ZAP_PAGES_MAX;
pub use media::{ByteMedia, CopyStore, PageBytes, StoreError};
#[cfg(any(test, feature = "planted"))]
pub use planted::Bug;
#[cfg(not(any(test, feature = "planted")))]
use planted::Bug;
pub use sample::{SampleCounts, Sampling};
pub use stats::{WindowCounts, WindowStats};
pub(crate) use trace::{Effect, Found};

/// Bytes of a page of the window.
pub const PAGE_BYTES: usize = osier_flash::BLOCK_BYTES as usize;
/// Most mappers at a time, one bit each in a word.
pub const MAPPERS_MAX: usize = 64;
/// Parts of the window in which resident pages are counted.
pub const MAP_CELLS: usize = 64;

/// A process that maps the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapperId(pub u8);

impl MapperId {
    fn bit(self) -> u64 {
        1 << self.0
    }
}

/// The memory that the mappers share, where resident pages have their bytes.
///
/// A page that has left may keep its bytes there: [`Resident::left`] says which copy of the flash they are, and a load
/// of the same copy has nothing to do. So what is resident begins with no copy of any page.
pub trait Resident {
    /// The copy whose bytes a page that has left still has, if it is known.
    fn held(&self, _page: u64) -> Option<u64> {
        None
    }

    /// These bytes of the flash are about to be read: the processor may fetch them.
    fn expect(&self, _bytes: &PageBytes) {}

    /// Puts the bytes of a copy in a page's place, before anyone may map it; zeroes for a page that was never written,
    /// which has no copy.
    fn load(&mut self, page: u64, copy: Option<u64>, bytes: Option<&PageBytes>);

    /// Copies the bytes of a page that nobody maps any more.
    fn save(&mut self, page: u64, bytes: &mut PageBytes);

    /// The page has left, and has the bytes of this copy: they are not needed there any more.
    fn left(&mut self, page: u64, copy: Option<u64>);
}

/// How the window keeps frames free, so that a miss seldom waits for a victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Frames of each set that are free or becoming free.
    pub frames: u32,
    /// Pages that are unmapped together, unless somebody waits.
    pub batch: u32,
}

/// What the window asks of whoever drives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// A fault is answered.
    Answer {
        /// Who faulted.
        mapper: MapperId,
        /// Its name for the fault.
        lane: u16,
        /// The page.
        page: u64,
        /// When it may be mapped.
        due: Nanos,
        /// As what.
        grant: Grant,
        /// How many of the pages that follow may be mapped with it, so that a store leaves a trace.
        more: u8,
        /// It faulted because it was drawn for a sample.
        is_sample: bool,
    },
    /// The mapper unmaps these pages, then looks what was stored to, and acknowledges. In the order of these outputs.
    Zap {
        /// Who.
        mapper: MapperId,
        /// At most [`ZAP_PAGES_MAX`].
        pages: Vec<u64>,
        /// Pages that are known to be dirty, a bit each, the first page's lowest: nobody needs to look.
        known: u64,
        /// They stay in the cache: a sample.
        is_sample: bool,
    },
    /// A command has ended.
    Done {
        /// Whose.
        mapper: MapperId,
        /// Its name for the command.
        tag: u32,
        /// When.
        at: Nanos,
        /// What came of it.
        result: Result<Report, CommandError>,
    },
}

/// Why a mapper's message was not taken. It is not one that a mapper sends in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// Not attached.
    #[error("mapper {} is not attached", .0.0)]
    NotAttached(MapperId),
    /// Nothing was to be unmapped.
    #[error("mapper {} acknowledged what it was not asked to unmap", .0.0)]
    NothingToZap(MapperId),
    /// More mappers than there may be.
    #[error("the window has {MAPPERS_MAX} mappers, the most that there may be; close one")]
    TooMany,
}

/// What happens by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The page of a frame is resident.
    Arrived(u32),
    /// A page that was drawn was not used within a period.
    Unused { page: u64, serial: u64 },
}

/// Who maps the page of a frame, who does not because it was drawn for a sample, whether it is known to be dirty, and
/// from which copy of the flash it came.
#[derive(Clone, Copy, Debug, Default)]
struct Mapped {
    by: u64,
    drawn: u64,
    is_dirty: bool,
    copy: Option<u64>,
}

/// Times that each miss has beside the flash's.
#[derive(Clone, Copy, Debug)]
struct Overhead {
    load_ns: u64,
    store_ns: u64,
}

/// See the module.
pub struct Window<R> {
    reserve: Reserve,
    now: Nanos,
    cache: Cache<Box<dyn Eviction>>,
    ftl: PageFtl<ByteMedia>,
    resident: R,
    overhead: Overhead,
    pages: u64,
    fills_max: u32,
    pinned_pages_max: u32,
    attached: u64,
    /// Those that have not acknowledged for so long that nobody counts on their frames; see [`leave`].
    silent: u64,
    /// Resident pages in each of [`MAP_CELLS`] equal parts of the window.
    map: [u64; MAP_CELLS],
    /// By frame.
    mapped: Vec<Mapped>,
    /// Pages on their way in, by frame.
    fills: BTreeMap<u32, Filling>,
    /// Fills whose page is being read.
    reading: u32,
    /// Fills that wait until fewer are read.
    queue: Queue,
    /// Reads that wait in the flash, with their frame.
    reads: BTreeMap<RequestId, u32>,
    leaving: BTreeMap<u64, Leaving>,
    zaps: Vec<Zaps>,
    /// Dirty pages that nobody maps any more, and that the flash has not got.
    unsaved: VecDeque<u64>,
    /// Why the latest of these was not taken, and when it is tried again.
    stalled: Option<(Nanos, StoreError)>,
    /// Room for a page of the flash whose bytes are not at hand.
    room: Box<PageBytes>,
    /// Writes that wait in the flash, with their page.
    writes: BTreeMap<RequestId, u64>,
    /// Writes that the flash had no room for: page and copy.
    unwritten: VecDeque<(u64, u64)>,
    /// Pages whose newest bytes the flash refused: what it has of them is older, and nobody may see it.
    dropped: BTreeSet<u64>,
    blocked: VecDeque<Blocked>,
    /// Pages in whose sets the reserve has to be restored.
    short: Vec<u64>,
    /// Whether pages were ever brought in before somebody touched them.
    brings_ahead: bool,
    /// Whether something happened that what is blocked may have waited for.
    retry: bool,
    commands: Commands,
    sampler: Sampler,
    agenda: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    completed: Vec<Completed>,
    outputs: VecDeque<Output>,
    counts: WindowCounts,
    trace: Trace,
    bug: Option<Bug>,
}

impl<R: Resident> Window<R> {
    /// A window over an erased device, with nothing resident.
    ///
    /// # Errors
    /// Names the first value of the configuration that cannot be.
    pub fn new(config: &ModelConfig, reserve: Reserve, seed: u64, resident: R) -> Result<Window<R>, ModelError> {
        Window::with_media(config, reserve, seed, resident, ByteMedia::new(&config.flash))
    }

    /// A window over erased flash whose bytes are kept elsewhere.
    ///
    /// # Errors
    /// As [`Window::new`].
    pub fn with_media(
        config: &ModelConfig,
        reserve: Reserve,
        seed: u64,
        resident: R,
        media: ByteMedia,
    ) -> Result<Window<R>, ModelError> {
        let ftl = PageFtl::with_media(&config.flash, seed, media)?;
        Window::over(config, reserve, seed, resident, ftl)
    }

    /// A window over what a loss of power left on the flash.
    ///
    /// # Errors
    /// As [`Window::new`].
    pub fn recover(
        config: &ModelConfig,
        reserve: Reserve,
        seed: u64,
        resident: R,
        media: ByteMedia,
    ) -> Result<(Window<R>, PageRecovery), ModelError> {
        let (mut ftl, report) = PageFtl::recover(&config.flash, seed, media)?;
        ftl.media_mut().sweep();
        Ok((Window::over(config, reserve, seed, resident, ftl)?, report))
    }

    fn over(
        config: &ModelConfig,
        reserve: Reserve,
        seed: u64,
        resident: R,
        ftl: PageFtl<ByteMedia>,
    ) -> Result<Window<R>, ModelError> {
        config.validate()?;
        let refuse = |key, value: u64, reason: &str| Err(ModelError::Value { key, value, reason: reason.to_owned() });
        let Some(cache) = &config.cache else {
            return refuse("cache.size", 0, "a window needs a DRAM cache; give the profile a section [cache]");
        };
        if cache.cache.write_log.is_some() {
            let reason = "a write log has to see every store, and stores to resident pages are not seen; leave it out";
            return refuse("cache.write_log", 1, reason);
        }
        if cache.cache.write == osier_cache::WriteMode::Through {
            let reason = "stores to resident pages are not seen, and cannot go through at once; set it to \"back\"";
            return refuse("cache.write", 1, reason);
        }
        if reserve.batch == 0 || reserve.batch > reserve.frames {
            let reason = "pages are unmapped together out of the reserve; choose from 1 to its frames";
            return refuse("reserve.batch", reserve.batch.into(), reason);
        }
        let own = osier_cache::CacheConfig { reserve_frames: reserve.frames, ..cache.cache.clone() };
        let frames = own.frames as usize;
        Ok(Window {
            now: Nanos::ZERO,
            cache: Cache::build(&own, seed)?,
            ftl,
            resident,
            overhead: Overhead::of(config)?,
            pages: config.flash.ftl.logical_units,
            fills_max: cache.fills_max,
            pinned_pages_max: cache.cache.pinned_pages_max,
            attached: 0,
            silent: 0,
            map: [0; MAP_CELLS],
            mapped: vec![Mapped::default(); frames],
            fills: BTreeMap::new(),
            reading: 0,
            queue: Queue::default(),
            reads: BTreeMap::new(),
            leaving: BTreeMap::new(),
            zaps: (0..MAPPERS_MAX).map(|_| Zaps::default()).collect(),
            unsaved: VecDeque::new(),
            stalled: None,
            room: Box::new([0; PAGE_BYTES]),
            writes: BTreeMap::new(),
            unwritten: VecDeque::new(),
            dropped: BTreeSet::new(),
            blocked: VecDeque::new(),
            short: Vec::new(),
            brings_ahead: false,
            retry: false,
            commands: Commands::default(),
            sampler: Sampler::new(config.sampling, seed),
            agenda: BinaryHeap::new(),
            serial: 0,
            completed: Vec::new(),
            outputs: VecDeque::new(),
            counts: WindowCounts::default(),
            trace: Trace::default(),
            bug: None,
            reserve,
        })
    }

    /// Pages of the device.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Nanoseconds of a load that hits the cache: over an idle link, and through the device's DRAM.
    #[must_use]
    pub fn hit_ns(&self) -> u64 {
        self.overhead.load_ns
    }

    /// How hits are sampled.
    #[must_use]
    pub fn sampling(&self) -> Sampling {
        self.sampler.sampling()
    }

    /// The shared memory.
    #[must_use]
    pub fn resident(&self) -> &R {
        &self.resident
    }

    /// The shared memory, to drive it.
    pub fn resident_mut(&mut self) -> &mut R {
        &mut self.resident
    }

    /// A process begins to map the window; none of its pages is mapped.
    ///
    /// # Errors
    /// When there are too many.
    pub fn attach(&mut self) -> Result<MapperId, Misuse> {
        let free = self.attached.trailing_ones();
        if free as usize >= MAPPERS_MAX {
            return Err(Misuse::TooMany);
        }
        let mapper = MapperId(free as u8);
        self.attached |= mapper.bit();
        self.begin_sampling();
        Ok(mapper)
    }

    /// A process maps the window no more: it has unmapped it, or it died. What it stored is in the shared memory.
    pub fn detach(&mut self, now: Nanos, mapper: MapperId) {
        self.advance(now);
        if self.attached & mapper.bit() == 0 {
            return;
        }
        self.attached &= !mapper.bit();
        self.blocked.retain(|blocked| blocked.fault.mapper != mapper);
        for filling in self.fills.values_mut() {
            filling.forget(mapper);
        }
        let is_dirty = !self.has_bug(Bug::DeadMappersPagesAreClean);
        for mapped in &mut self.mapped {
            mapped.is_dirty |= is_dirty && mapped.by & mapper.bit() != 0;
            mapped.by &= !mapper.bit();
            mapped.drawn &= !mapper.bit();
        }
        self.forget_waiters(mapper);
        let keeps_pins = self.has_bug(Bug::KeepPinsOfTheGone);
        self.commands.forget(mapper, keeps_pins);
        self.outputs.retain(|output| output.mapper() != mapper);
        self.abandon_zaps(mapper);
        self.retry_blocked();
    }

    /// Moves time on to `now`, and hands out what is to be done. Where nothing is, it prepares for the next fault, a
    /// page at a time, because that may come at any moment: to be called again when what it gave has been done.
    pub fn poll(&mut self, now: Nanos, outputs: &mut Vec<Output>) {
        self.advance(now);
        self.look_for_silence();
        if self.retry {
            self.retry_blocked();
        }
        if self.outputs.is_empty() {
            self.go_on_with_commands();
        }
        if self.outputs.is_empty() && !self.save_next() {
            self.reclaim();
        }
        self.extend_answers();
        outputs.extend(self.outputs.drain(..));
    }

    /// Whether [`Window::poll`] has something at hand.
    #[must_use]
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty()
    }

    /// Whether a fault or a command waits until pages have left.
    #[must_use]
    pub fn is_waited_for(&self) -> bool {
        !self.blocked.is_empty() || self.commands.are_waiting() || self.fills.values().any(Filling::waits_for_frame)
    }

    /// When something happens by itself, if anything does that somebody waits for.
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        let own = self.agenda.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
        let save = match &self.stalled {
            Some((at, _)) => at.0,
            None if self.unsaved.is_empty() => u64::MAX,
            None => self.now.0,
        };
        let is_waited_for = !self.blocked.is_empty() || self.commands.are_waiting();
        let is_ready = self.commands.are_ready() || (self.retry && is_waited_for);
        let own = if is_ready { self.now.0 } else { own };
        let at = own.min(self.next_below()).min(save).min(self.next_silence()).min(self.sampler.next());
        (at < u64::MAX).then_some(Nanos(at))
    }

    /// Whether a [`Window::poll`] would do nothing but move the time.
    pub(crate) fn is_idle_at(&self, now: Nanos) -> bool {
        let now = now.max(self.now);
        let is_settled = self.outputs.is_empty() && self.short.is_empty() && !self.retry;
        is_settled && !self.finds_silence(now) && self.next_event().is_none_or(|at| at > now)
    }

    /// The time up to which everything has happened.
    pub(crate) fn now(&self) -> Nanos {
        self.now
    }

    /// Outputs that the next [`Window::poll`] hands out.
    pub(crate) fn outputs_waiting(&self) -> usize {
        self.outputs.len()
    }

    /// Begins to keep what happens to the shared memory and on the media, or ends it.
    pub(crate) fn keep_effects(&mut self, is_kept: bool) {
        self.trace.keep(is_kept);
    }

    /// What happened since the last call.
    pub(crate) fn take_effects(&mut self, effects: &mut Vec<Effect>) {
        self.trace.take(effects);
    }

    fn next_below(&self) -> u64 {
        if self.reads.is_empty() && self.writes.is_empty() && self.unwritten.is_empty() {
            return u64::MAX;
        }
        self.ftl.next_event().map_or(u64::MAX, |at| at.0)
    }

    /// Pages that are resident, on their way, or leaving: never more than there are frames.
    #[must_use]
    pub fn frames_used(&self) -> u64 {
        let resident = self.mapped.len() as u64;
        resident.min(self.counts.fills - self.counts.fills_failed - self.counts.fills_given_up - self.counts.left)
    }

    /// Pages of a mapper that are pinned.
    #[must_use]
    pub fn pinned_by(&self, mapper: MapperId) -> u64 {
        self.commands.pinned_by(mapper)
    }

    /// Whether a mapper has not unmapped what it was asked to for so long that nobody counts on those frames.
    #[must_use]
    pub fn is_silent(&self, mapper: MapperId) -> bool {
        self.silent & mapper.bit() != 0
    }

    /// Resident pages in each of [`MAP_CELLS`] equal parts of the window.
    #[must_use]
    pub fn residency(&self) -> &[u64; MAP_CELLS] {
        &self.map
    }

    /// The part of the window that a page lies in.
    fn cell(&self, page: u64) -> usize {
        (u128::from(page) * MAP_CELLS as u128 / u128::from(self.pages)) as usize
    }

    /// Power is lost: what was resident and what only waited is gone.
    #[must_use]
    pub fn lose_power(self) -> ByteMedia {
        self.ftl.lose_power()
    }

    /// Lets the copy rot from which the next fill of a page comes; whether it has one.
    pub fn rot(&mut self, page: u64, byte: usize, bit: u32) -> bool {
        let Ok(Some(copy)) = self.ftl.payload(page) else { return false };
        self.ftl.media_mut().flip_bit(copy, byte, bit)
    }

    /// Why dirty pages that have been unmapped are not taken to the flash now, if they are not. They are kept, and
    /// their frames too, until there is room.
    #[must_use]
    pub fn stalled(&self) -> Option<&StoreError> {
        self.stalled.as_ref().map(|(_, error)| error)
    }

    /// Lets happen what happens up to `now`.
    fn advance(&mut self, now: Nanos) {
        loop {
            let own = self.agenda.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let below = self.next_below();
            if own.min(below) > now.0 {
                break;
            }
            self.now = self.now.max(Nanos(own.min(below)));
            if below <= own {
                self.take_from_flash();
            } else if let Some(Reverse((.., event))) = self.agenda.pop() {
                match event {
                    Event::Arrived(frame) => self.arrived(frame),
                    Event::Unused { page, serial } => self.watched_in_vain(page, serial),
                }
            }
            if self.retry {
                self.retry_blocked();
            }
        }
        self.now = self.now.max(now);
        if self.sampler.next() <= self.now.0 {
            self.sample();
        }
    }

    fn take_from_flash(&mut self) {
        let mut completed = std::mem::take(&mut self.completed);
        self.ftl.poll(self.now, &mut completed);
        for Completed { id, done } in completed.drain(..) {
            if let Some(frame) = self.reads.remove(&id) {
                self.read_ended(frame, done);
            } else if let Some(page) = self.writes.remove(&id) {
                self.written(page, done.status);
            }
        }
        self.completed = completed;
        self.write_queue();
    }

    fn push(&mut self, at: u64, event: Event) {
        self.serial += 1;
        self.agenda.push(Reverse((at, self.serial, event)));
    }

    /// Plants a bug, to prove that a test would find it.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: Bug) {
        self.bug = Some(bug);
    }

    #[inline]
    fn has_bug(&self, bug: Bug) -> bool {
        cfg!(any(test, feature = "planted")) && self.bug == Some(bug)
    }
}

impl Output {
    fn mapper(&self) -> MapperId {
        match self {
            Output::Answer { mapper, .. } | Output::Zap { mapper, .. } | Output::Done { mapper, .. } => *mapper,
        }
    }
}

impl Overhead {
    /// The way of one line over an idle link and through the device's DRAM.
    fn of(config: &ModelConfig) -> Result<Overhead, ModelError> {
        let has_cxl = config.link.cxl_flit != CxlFlit::None;
        if !has_cxl {
            let reason = "loads and stores cross the link as CXL.mem; give the profile's link a cxl_flit".to_owned();
            return Err(ModelError::Value { key: "link.cxl_flit", value: 0, reason });
        }
        let dram = config.cache.as_ref().map(|cache| cache.dram);
        let (read_ns, write_ns) = dram.map_or((0, 0), |dram| (dram.read_ns, dram.write_ns));
        let way = |there, back| -> Result<u64, ModelError> {
            let mut link = Link::new(&config.link)?;
            let at = link.transfer(Time::ZERO, Transaction::cxl(there)).at;
            Ok(link.transfer(at, Transaction::cxl(back)).at.nanos_ceil())
        };
        Ok(Overhead {
            load_ns: way(CxlMessage::Request, CxlMessage::ReadData)? + config.link.device_read_ns + read_ns,
            store_ns: way(CxlMessage::WriteData, CxlMessage::WriteDone)? + write_ns,
        })
    }
}
