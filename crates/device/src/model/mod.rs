//! The whole device in virtual time: link, controller, DRAM cache and page-mapped flash in one state machine, sans-IO.
//!
//! [`command`] is what comes in and goes out, with every nanosecond of a latency put to its cause; [`config`] is what a
//! model is made of. [`Model::submit`] begins a command, [`Model::next_event`] says when something happens by itself,
//! [`Model::poll`] moves time on and gives what has ended. In prose: `docs/model.md`.
//!
//! The way of a command, and where its steps are:
//!
//! 1. `front`: over the link, through the controller, and back over the link when all of its pages are done;
//! 2. `pages`: each page meets the cache, or goes around it; misses become fills;
//! 3. `fill`: a page comes from the flash into a frame, once what was in the frame is safe;
//! 4. `blocked`: what the cache or the flash could not take is tried again;
//! 5. `below`: reads and programs of the flash, the write log's compaction, flushes and trims.
//!
//! Invariants:
//! - a page that leaves the cache dirty is handed to the flash as a program, and its frame takes no new bytes before
//!   the flash has it;
//! - programs are handed to the flash in the order in which they were asked for;
//! - time never runs backwards, and what is due at an instant is done before what arrives at it;
//! - the causes of a command's latency add up to it exactly, which `tests/model.rs` checks of every command.

pub mod command;
pub mod config;

mod agenda;
mod below;
mod blocked;
mod fill;
mod front;
mod pages;
mod planted;
mod slab;
mod stats;

use std::ops::ControlFlow;

use osier_cache::{Cache, CommandError, Evicted, Eviction, Prefetched};
use osier_flash::Nanos;
use osier_flash::page::{FillPattern, PageFtl};
use osier_link::Link;

use agenda::{Agenda, Event};
use below::Below;
use blocked::BlockedQueue;
use fill::Fills;
use front::{Front, Job};
use slab::Slab;

pub use command::{Causes, Command, Completed, Met, Op, Outcome};
pub use config::{BlockCommands, ControllerConfig, DataTransfer, Dram, ModelCache, ModelConfig, ModelError};
#[cfg(any(test, feature = "planted"))]
pub use planted::Bug;
#[cfg(not(any(test, feature = "planted")))]
use planted::Bug;
pub use stats::{Counts, ModelStats};

/// Most bytes of one command; longer ones are to be cut by who asks.
pub const COMMAND_BYTES_MAX: u32 = 64 << 20;

/// Most things that the model does before it looks whether it should go on.
const EVENTS_MAX: u32 = 1 << 16;

/// Bytes of a page of the cache and of a unit of the flash.
const PAGE_BYTES: u64 = osier_flash::BLOCK_BYTES as u64;

/// Why a command was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// As many commands are under way as the device has entries in its queues.
    #[error("{max} commands are under way, as many as controller.queue_entries allows; try again after the next event")]
    Full {
        /// Commands under way.
        max: u32,
    },
    /// A command of no bytes that is no flush.
    #[error("{} of no bytes: give at least one", .op.name())]
    NoBytes {
        /// What it asked for.
        op: Op,
    },
    /// It is too long.
    #[error("{} of {bytes} bytes: a command has at most {COMMAND_BYTES_MAX}; cut it into several", .op.name())]
    TooLong {
        /// What it asked for.
        op: Op,
        /// Its bytes.
        bytes: u32,
    },
}

/// Why a command to the cache was not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheRefused {
    /// There is no cache.
    #[error("the device has no cache: its profile has no section [cache]")]
    NoCache,
    /// The page is beyond the end.
    #[error("page {page} is beyond the end: the device has {pages} pages of 4 KiB")]
    OutOfRange {
        /// The page.
        page: u64,
        /// Pages of the device.
        pages: u64,
    },
    /// The cache says why.
    #[error(transparent)]
    Command(#[from] CommandError),
}

/// See the module.
pub struct Model {
    config: ModelConfig,
    now: Nanos,
    ftl: PageFtl,
    link: Link,
    cache: Option<Cache<Box<dyn Eviction>>>,
    jobs: Slab<Job>,
    agenda: Agenda,
    front: Front,
    fills: Fills,
    below: Below,
    /// What waits for a frame, for a page that is leaving, or for the log.
    blocked: BlockedQueue,
    /// Whether something happened that what is blocked may have waited for.
    retry: bool,
    completed: Vec<Completed>,
    counts: Counts,
    bug: Option<Bug>,
}

impl Model {
    /// An erased device with an empty cache.
    ///
    /// # Errors
    /// Names the first value of the configuration that cannot be.
    pub fn new(config: &ModelConfig, seed: u64) -> Result<Model, ModelError> {
        let cache = config.cache.as_ref().map(|cache| Cache::build(&cache.cache, seed)).transpose()?;
        Model::put_together(config, cache, seed)
    }

    /// The same with an eviction policy of the caller's, made for the shape of the configured cache.
    ///
    /// # Errors
    /// As [`Model::new`], and when no cache is configured.
    pub fn with_policy(config: &ModelConfig, policy: Box<dyn Eviction>, seed: u64) -> Result<Model, ModelError> {
        let Some(cache) = &config.cache else {
            let reason = "a policy needs a cache; give the profile a section [cache]".to_owned();
            return Err(ModelError::Value { key: "cache.size", value: 0, reason });
        };
        let cache = Cache::new(&cache.cache, policy)?;
        Model::put_together(config, Some(cache), seed)
    }

    fn put_together(
        config: &ModelConfig,
        cache: Option<Cache<Box<dyn Eviction>>>,
        seed: u64,
    ) -> Result<Model, ModelError> {
        config.validate()?;
        let frames = cache.as_ref().map_or(0, |cache| cache.shape().frames());
        let link = Link::new(&config.link)?;
        Ok(Model {
            now: Nanos::ZERO,
            ftl: PageFtl::new(&config.flash, seed)?,
            cache,
            jobs: Slab::new(config.controller.queue_entries),
            agenda: Agenda::new(),
            front: Front::new(config, &link),
            link,
            fills: Fills::new(config, frames),
            below: Below::new(),
            blocked: BlockedQueue::default(),
            retry: false,
            completed: Vec::new(),
            counts: Counts::default(),
            bug: None,
            config: config.clone(),
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Logical bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> u64 {
        self.config.capacity_bytes()
    }

    /// Fills the flash as it would be after long use, without simulating it: the first `fill_permille` thousandths of
    /// the capacity, before the first command.
    ///
    /// # Errors
    /// When the flash was written before, or the share is above 1,000.
    pub fn precondition(&mut self, fill_permille: u32, pattern: FillPattern, seed: u64) -> Result<(), ModelError> {
        Ok(self.ftl.precondition(fill_permille, pattern, seed)?)
    }

    /// The same by simulating the writes, past link and cache. The clock is where they end, which it gives; `look`
    /// hears how many of how many pages are written, and may end it.
    ///
    /// # Errors
    /// As [`Model::precondition`], and when the flash fails for good under the writes.
    pub fn precondition_by_writing(
        &mut self,
        fill_permille: u32,
        pattern: FillPattern,
        seed: u64,
        look: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<ControlFlow<(), Nanos>, ModelError> {
        let ended = self.ftl.precondition_by_writing(fill_permille, pattern, seed, look)?;
        if let ControlFlow::Continue(now) = ended {
            self.now = self.now.max(now);
        }
        Ok(ended)
    }

    /// Begins a command. `now` must not fall from call to call; an earlier one is taken for the latest there was.
    ///
    /// # Errors
    /// When too many are under way, or its length cannot be.
    #[inline]
    pub fn submit(&mut self, now: Nanos, command: Command) -> Result<(), Refused> {
        if command.bytes == 0 && command.op != Op::Flush {
            return Err(Refused::NoBytes { op: command.op });
        }
        if command.bytes > COMMAND_BYTES_MAX {
            return Err(Refused::TooLong { op: command.op, bytes: command.bytes });
        }
        self.advance(now);
        if self.jobs.is_full() {
            return Err(Refused::Full { max: self.config.controller.queue_entries });
        }
        self.send(command);
        Ok(())
    }

    /// Moves time on to `now`, and adds what has ended by then to `completed`, in the order of its end.
    #[inline]
    pub fn poll(&mut self, now: Nanos, completed: &mut Vec<Completed>) {
        self.advance(now);
        if completed.is_empty() {
            std::mem::swap(&mut self.completed, completed);
        } else {
            completed.append(&mut self.completed);
        }
    }

    /// Moves time on to the next end of a command, but not beyond `until`, and adds what has ended to `completed`, as
    /// polling at every event up to there would. Says what time it is then: `until` where nothing ended, or less after
    /// many events, so that a caller can look after other things.
    pub fn poll_next(&mut self, until: Nanos, completed: &mut Vec<Completed>) -> Nanos {
        if self.completed.is_empty() {
            self.run(until.0);
        }
        let is_over = self.completed.is_empty() && self.next_at() > until.0;
        self.poll(if is_over { until } else { self.now }, completed);
        self.now
    }

    /// When something may end by itself; `None` when nothing is under way. Work of the flash that no command waits for
    /// goes on behind the scenes.
    #[inline]
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        if let Some(ended) = self.completed.first() {
            return Some(ended.at);
        }
        let at = self.next_at();
        (at < u64::MAX).then_some(Nanos(at))
    }

    /// Commands under way.
    #[inline]
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.jobs.len()
    }

    #[inline]
    fn advance(&mut self, now: Nanos) {
        while self.next_at() <= now.0 {
            self.run(now.0);
        }
        self.now = self.now.max(now);
    }

    /// When something happens that a command may wait for; `u64::MAX` if nothing does.
    #[inline]
    fn next_at(&self) -> u64 {
        self.agenda.next_at().min(self.next_below())
    }

    /// Does one thing after the other that is due at `until`, up to the end of a command or [`EVENTS_MAX`] things.
    fn run(&mut self, until: u64) {
        let ended = self.completed.len();
        for _ in 0..EVENTS_MAX {
            let (own, below) = (self.agenda.next_at(), self.next_below());
            let at = own.min(below);
            if at > until {
                break;
            }
            self.now = self.now.max(Nanos(at));
            if below <= own {
                self.take_from_flash();
            } else if let Some(event) = self.agenda.pop() {
                self.happen(event);
            }
            if self.retry {
                self.retry_blocked();
            }
            if self.completed.len() > ended {
                break;
            }
        }
    }

    // Each step is a function of its own, so that the loop is small.
    #[inline]
    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrived(job) => self.arrived(job),
            Event::Handled(job) => self.handled(job),
            Event::Fetched(job) => self.begin_pages(job),
            Event::Ready(job) => self.answer(job),
            Event::Delivered(job) => self.delivered(job),
            Event::FillRead(fill) => self.fill_read(fill),
            Event::Merge(merge) => self.merge(merge),
            Event::CompactRead => self.compact_program(),
        }
    }

    /// Pins a page: it stays in the cache until as many unpins have come.
    ///
    /// # Errors
    /// When it is not there, or a limit is reached.
    pub fn pin(&mut self, now: Nanos, page: u64) -> Result<(), CacheRefused> {
        Ok(self.cache_at(now, page)?.pin(page)?)
    }

    /// Takes one pin off a page.
    ///
    /// # Errors
    /// When it is not there or not pinned.
    pub fn unpin(&mut self, now: Nanos, page: u64) -> Result<(), CacheRefused> {
        self.cache_at(now, page)?.unpin(page)?;
        self.freed(page);
        self.retry_blocked();
        Ok(())
    }

    /// Evicts a page; if it is dirty, it is programmed.
    ///
    /// # Errors
    /// When it is not there, on its way, or pinned.
    pub fn evict(&mut self, now: Nanos, page: u64) -> Result<(), CacheRefused> {
        let evicted = self.cache_at(now, page)?.evict(page)?;
        self.left(evicted);
        self.retry_blocked();
        Ok(())
    }

    /// Begins to bring a page into the cache; says whether it did, or is there already.
    ///
    /// # Errors
    /// When there is no cache or no such page.
    pub fn prefetch(&mut self, now: Nanos, page: u64) -> Result<bool, CacheRefused> {
        let what = self.cache_at(now, page)?.prefetch(page);
        if let Prefetched::Started(fill) = what {
            let _ = self.begin_fill(fill);
            self.start_reads();
        }
        Ok(what != Prefetched::Refused)
    }

    /// Changes the eviction policy; the pages stay.
    ///
    /// # Errors
    /// When there is no cache.
    pub fn set_policy(&mut self, now: Nanos, policy: Box<dyn Eviction>) -> Result<(), CacheRefused> {
        self.cache_at(now, 0)?.set_policy(policy);
        Ok(())
    }

    /// Why results are no longer those of the eviction policy, if it failed: see [`Cache::policy_failure`].
    #[must_use]
    pub fn policy_failure(&self) -> Option<String> {
        self.cache.as_ref().and_then(Cache::policy_failure)
    }

    fn cache_at(&mut self, now: Nanos, page: u64) -> Result<&mut Cache<Box<dyn Eviction>>, CacheRefused> {
        self.advance(now);
        let pages = self.config.flash.ftl.logical_units;
        if page >= pages {
            return Err(CacheRefused::OutOfRange { page, pages });
        }
        self.cache.as_mut().ok_or(CacheRefused::NoCache)
    }

    /// A page left for no other.
    fn left(&mut self, evicted: Evicted) {
        if evicted.is_dirty {
            self.drain(evicted.page, slab::NONE);
        } else {
            self.freed(evicted.page);
            self.retry = true;
        }
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
