//! The cache: which page is in which frame, and what happens to it.
//!
//! It holds no bytes and keeps no time. Whoever drives it moves the bytes and says when they have arrived:
//!
//! 1. [`Cache::request`] answers at once what a request meets. On a miss it hands out a [`Fill`]: a frame that is
//!    now the page's, and the page that had to leave for it.
//! 2. The driver saves the page that left, if it is dirty, and says so with [`Cache::drained`]; brings the new bytes
//!    in; and ends with [`Cache::fill_done`] or [`Cache::fill_failed`]. Until then further requests for the page
//!    are merged, as a miss status holding register does.
//!
//! A victim is chosen when a fill begins, not when it ends: the bytes need a place to arrive at, and a second copy
//! of each page under way would cost more memory than a victim that leaves early costs hits. So that this is off a
//! miss's way, [`Cache::reclaim`] keeps frames free beforehand, as many as the configuration says.
//!
//! [`Cache::at_once`] does all steps for one request where fills take no time: the replay of a trace.
//!
//! Invariants, which [`Cache::audit`] checks:
//! - a page is in at most one frame, and in the table exactly if its frame is filling or resident;
//! - the policy has exactly the frames that are resident and not pinned;
//! - a set has always a frame whose page can leave, or one that is filling, draining or free;
//! - a page that left dirty cannot come in again before it is drained.
//!
//! Memory: 29 bytes and a bit a frame (12 of the table, 8 of the page's number, 8 of the order of arrival, 1 of flags,
//! the bit for what drains) and 20 a set, besides the policy's, which each policy states; 29 bytes a frame more once
//! something is prefetched, and at most 64 for each of the most pages that ever drained together.

mod audit;
mod commands;

use std::collections::BTreeMap;
use std::fmt;

use crate::config::{CacheConfig, SetIndex, WriteMode};
use crate::error::ConfigError;
use crate::eviction::{Eviction, Frames, Recall, Shape, policy};
use crate::flags::{Flags, State};
use crate::ghost::Ghosts;
use crate::list::{NONE, Queue};
use crate::page_map::PageMap;
use crate::planted::Bug;
use crate::policies::OPTIMUM;
use crate::prefetch::{Prefetch, Seen, prefetcher};
use crate::stats::Stats;
use crate::table::{Table, tag};
use crate::write_log::{ALL_LINES, WriteLog};

/// What a request does to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// Whether it writes.
    pub is_write: bool,
    /// The lines that it touches, one bit each; a write of [`ALL_LINES`] needs none of the page's old bytes.
    pub lines: u64,
}

impl Op {
    /// Reads a page.
    pub const READ: Op = Op { is_write: false, lines: ALL_LINES };
    /// Writes a whole page.
    pub const WRITE: Op = Op { is_write: true, lines: ALL_LINES };
}

/// What a request met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page is in this frame.
    Hit {
        /// The frame.
        frame: u32,
    },
    /// The page is on its way into this frame: the request goes on when that fill is done.
    Merged {
        /// The frame.
        frame: u32,
    },
    /// The page is to be brought in; the request goes on when that is done.
    Miss(Fill),
    /// The write log has all the lines that the read wants.
    LogHit,
    /// The write log took the lines; the page is not resident.
    Logged,
    /// Nothing was done or counted: ask again when what is named has happened.
    Wait(Wait),
}

/// What a request has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// All frames of the set are filling, draining or pinned: a fill or drain has to end.
    Frame,
    /// The page has just left, and its newest bytes are not below the cache yet: it has to be drained.
    Drain,
    /// Both halves of the write log are full: a page has to be compacted.
    Log,
    /// The page is being compacted: that has to end.
    Compaction,
}

/// A page that comes into a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The page.
    pub page: u64,
    /// Its frame.
    pub frame: u32,
    /// Whether the bytes come from below; if not, the request brings the whole page.
    pub reads_media: bool,
    /// What was in the frame before. If it is dirty, it has to be drained before new bytes come in.
    pub evicted: Option<Evicted>,
}

/// A page that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// The page.
    pub page: u64,
    /// The frame that still has its bytes.
    pub frame: u32,
    /// Whether the bytes have to be written below; then [`Cache::drained`] is owed.
    pub is_dirty: bool,
}

/// Where the newest bytes of a page are, as far as the cache knows; the write log aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Below the cache.
    Absent,
    /// In this frame.
    Resident {
        /// The frame.
        frame: u32,
        /// Whether they are newer than those below.
        is_dirty: bool,
    },
    /// On their way into this frame.
    Filling {
        /// The frame.
        frame: u32,
    },
    /// They left dirty, and are still in the frame that they left.
    Draining,
}

/// What came of a prefetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetched {
    /// It begins: a fill as any other.
    Started(Fill),
    /// The page is there or on its way.
    Present,
    /// There is no frame for it, or the page is just leaving. Prefetches do not wait.
    Refused,
}

/// A victim that a policy named wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyFault {
    /// The set that needed a frame.
    pub set: u32,
    /// What it named; nothing if it named none although it has frames.
    pub named: Option<u32>,
}

impl fmt::Display for PolicyFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyFault { set, named } = self;
        match named {
            Some(frame) => write!(f, "it named frame {frame} as the victim of set {set}, where it has no such frame"),
            None => write!(f, "it named no victim of set {set}, where it has frames"),
        }
    }
}

/// What is kept of a set.
#[derive(Clone, Copy, Debug)]
struct Set {
    /// The stack of free frames, through `pages`.
    free: u32,
    free_count: u32,
    /// Frames that the policy has.
    ruled: u32,
    /// Frames whose page is pinned.
    pinned: u32,
    /// Frames in state draining.
    draining: u32,
}

/// Pages that prefetches pushed out.
#[derive(Clone, Debug)]
struct PushedOut {
    pages: Ghosts,
    order: Queue,
}

/// See the module.
pub struct Cache<P> {
    shape: Shape,
    set_index: SetIndex,
    write: WriteMode,
    reserve_frames: u32,
    pinned_pages_max: u32,
    table: Table,
    /// The page of each frame; of a free frame, the next free one.
    pages: Box<[u64]>,
    flags: Box<[Flags]>,
    /// Number of the fill that brought each frame's page.
    arrived: Box<[u64]>,
    sets: Box<[Set]>,
    policy: P,
    prefetcher: Option<Box<dyn Prefetch>>,
    /// What the prefetcher wants after the latest request.
    wanted: Vec<u64>,
    pushed_out: Option<Box<PushedOut>>,
    log: Option<WriteLog>,
    /// The page that is being compacted.
    compacting: Option<u64>,
    /// Pages that left dirty and are not drained, with the frame that has their bytes.
    draining: PageMap,
    /// The frames of these, a bit each: a frame takes no new bytes before it is drained.
    undrained: Box<[u64]>,
    /// Pins by frame.
    pins: BTreeMap<u32, u32>,
    fills: u64,
    /// Where the search for a victim goes on when the policy names none.
    fallback: u32,
    last_fault: Option<PolicyFault>,
    stats: Stats,
    bug: Option<Bug>,
}

impl Cache<Box<dyn Eviction>> {
    /// A cache whose policy is made from the configuration, and can be changed while it runs.
    ///
    /// # Errors
    /// Names the key that cannot work, and why.
    pub fn build(config: &CacheConfig, seed: u64) -> Result<Self, ConfigError> {
        let shape = config.shape()?;
        if config.eviction == OPTIMUM {
            return Err(ConfigError::NoFuture);
        }
        Cache::new(config, policy(&config.eviction, shape, &config.eviction_parameters, seed)?)
    }
}

impl<P: Eviction> Cache<P> {
    /// An empty cache with a policy that was made for [`CacheConfig::shape`]; the configuration's own is not looked at.
    ///
    /// # Errors
    /// Names the key that cannot work, and why.
    pub fn new(config: &CacheConfig, policy: P) -> Result<Self, ConfigError> {
        let shape = config.shape()?;
        let frames = shape.frames() as usize;
        // The first frame of each set is taken first.
        let is_last = |frame: u32| (frame + 1).is_multiple_of(shape.ways);
        let next_free = |frame: u32| if is_last(frame) { NONE } else { frame + 1 };
        let set = |set: u32| Set { free: set * shape.ways, free_count: shape.ways, ruled: 0, pinned: 0, draining: 0 };
        Ok(Self {
            shape,
            set_index: config.set_index,
            write: config.write,
            reserve_frames: config.reserve_frames,
            pinned_pages_max: config.pinned_pages_max,
            table: Table::new(shape.frames()),
            pages: (0..shape.frames()).map(|frame| next_free(frame).into()).collect(),
            flags: vec![Flags::FREE; frames].into(),
            arrived: vec![0; frames].into(),
            sets: (0..shape.sets).map(set).collect(),
            policy,
            prefetcher: prefetcher(&config.prefetch, &config.prefetch_parameters)?,
            wanted: Vec::new(),
            pushed_out: None,
            log: config.write_log.as_ref().map(WriteLog::new).transpose()?,
            compacting: None,
            draining: PageMap::default(),
            undrained: vec![0; frames.div_ceil(64)].into(),
            pins: BTreeMap::new(),
            fills: 0,
            fallback: 0,
            last_fault: None,
            stats: Stats::default(),
            bug: None,
        })
    }

    /// The counts.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// The frames.
    #[must_use]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a write has to go below at once as well.
    #[must_use]
    pub fn writes_through(&self) -> bool {
        self.write == WriteMode::Through
    }

    /// The write log.
    #[must_use]
    pub fn log(&self) -> Option<&WriteLog> {
        self.log.as_ref()
    }

    /// The latest victim that the policy named wrongly; [`Stats::policy_faults`] counts them.
    #[must_use]
    pub fn last_fault(&self) -> Option<PolicyFault> {
        self.last_fault
    }

    /// Why results are no longer those of the policy: it failed, or named a wrong victim. Whoever drives the cache
    /// ends the run with this, for what comes out of it is not what was asked for.
    #[must_use]
    pub fn policy_failure(&self) -> Option<String> {
        let failure = self.policy.failure().map(str::to_owned);
        failure.or_else(|| self.last_fault.map(|fault| fault.to_string()))
    }

    /// What the prefetcher wants after the latest request, soonest first. Nothing is brought in until
    /// [`Cache::prefetch`] is called; the caller leaves out pages beyond the device's end.
    #[must_use]
    pub fn wanted(&self) -> &[u64] {
        &self.wanted
    }

    /// The frame of a page that is resident.
    #[must_use]
    pub fn resident(&self, page: u64) -> Option<u32> {
        self.find(page).filter(|frame| self.flags[*frame as usize].state() == State::Resident)
    }

    /// The page that is resident in a frame and may leave it; nothing if there is none, or it is pinned.
    #[must_use]
    pub fn page_in(&self, frame: u32) -> Option<u64> {
        let flags = self.flags[frame as usize];
        let may_leave = flags.state() == State::Resident && !flags.has(Flags::PINNED);
        may_leave.then(|| self.pages[frame as usize])
    }

    /// Where a page's newest bytes are, for whoever goes around the cache; no request.
    #[must_use]
    pub fn presence(&self, page: u64) -> Presence {
        match self.find(page).map(|frame| (frame, self.flags[frame as usize])) {
            Some((frame, flags)) if flags.state() == State::Resident => {
                Presence::Resident { frame, is_dirty: flags.has(Flags::DIRTY) }
            }
            Some((frame, _)) => Presence::Filling { frame },
            None if self.draining.get(page).is_some() => Presence::Draining,
            None => Presence::Absent,
        }
    }

    /// Resident pages whose bytes are newer than those below, with their frames: what a flush has to write.
    pub fn dirty_pages(&self) -> impl Iterator<Item = Evicted> + '_ {
        let frames = (0..self.shape.frames()).zip(&self.flags);
        let dirty = frames.filter(|(_, flags)| flags.state() == State::Resident && flags.has(Flags::DIRTY));
        dirty.map(|(frame, _)| Evicted { page: self.pages[frame as usize], frame, is_dirty: true })
    }

    #[inline]
    fn find(&self, page: u64) -> Option<u32> {
        self.table.get(page, |frame| self.pages[frame as usize] == page)
    }

    /// The set that a page belongs to.
    #[inline]
    #[must_use]
    pub fn set_of(&self, page: u64) -> u32 {
        if self.shape.sets == 1 {
            return 0;
        }
        match self.set_index {
            SetIndex::Modulo => (page % u64::from(self.shape.sets)) as u32,
            SetIndex::Hash => ((u64::from(tag(page)) * u64::from(self.shape.sets)) >> 32) as u32,
        }
    }

    /// Says that a page will be asked for; changes nothing. Of a large cache, its place in the table comes near while
    /// the caller does other things, and the request does not wait for it.
    #[inline]
    pub fn expect(&self, page: u64) {
        self.table.prefetch(page);
    }

    /// A request for a page.
    #[inline]
    pub fn request(&mut self, page: u64, op: Op) -> Outcome {
        self.wanted.clear();
        if self.log.is_some()
            && let Some(outcome) = self.ask_log(page, op)
        {
            return outcome;
        }
        let outcome = match self.find(page) {
            Some(frame) => self.meet(page, frame, op),
            None => self.miss(page, op),
        };
        if !matches!(outcome, Outcome::Wait(_)) {
            self.count(op);
        }
        outcome
    }

    #[inline]
    fn count(&mut self, op: Op) {
        if op.is_write {
            self.stats.writes += 1;
        } else {
            self.stats.reads += 1;
        }
    }

    /// The request's page has a frame.
    #[inline]
    fn meet(&mut self, page: u64, frame: u32, op: Op) -> Outcome {
        let forgets_merged = self.has_bug(Bug::ForgetMergedWrite);
        let flags = &mut self.flags[frame as usize];
        let is_resident = flags.state() == State::Resident;
        let was_unused = flags.has(Flags::UNUSED);
        // With a log, the log has what the page has more than what is below.
        let is_behind = op.is_write && self.write == WriteMode::Back && self.log.is_none();
        if is_behind && (is_resident || !forgets_merged) {
            flags.set(Flags::DIRTY);
        }
        if was_unused {
            flags.clear(Flags::UNUSED);
            self.stats.prefetch_useful += 1;
            self.stats.prefetch_late += u64::from(!is_resident);
        }
        if is_resident {
            self.stats.hits += 1;
            if flags.has(Flags::RULED) {
                self.policy.touched(self.set_of(page), frame);
            }
        } else {
            self.stats.merged += 1;
        }
        if self.prefetcher.is_some() {
            let seen = match (is_resident, was_unused) {
                (false, _) => Seen::Miss,
                (true, true) => Seen::FirstHit,
                (true, false) => Seen::Hit,
            };
            self.ask_prefetcher(page, seen);
        }
        if is_resident { Outcome::Hit { frame } } else { Outcome::Merged { frame } }
    }

    /// The request's page has no frame.
    #[inline]
    fn miss(&mut self, page: u64, op: Op) -> Outcome {
        let set = self.set_of(page);
        if let Some(wait) = self.obstacle(page, set) {
            self.stats.waits += 1;
            return Outcome::Wait(wait);
        }
        self.stats.misses += 1;
        if self.forget_pushed_out(page) {
            self.stats.prefetch_pollution += 1;
        }
        let recall = self.policy.incoming(set, page, true);
        let (frame, evicted) = self.take(set, recall);
        self.assign(frame, page, recall, evicted);
        let is_whole = op.is_write && self.log.as_ref().map_or(op.lines == ALL_LINES, |log| log.is_whole(op.lines));
        if op.is_write && self.write == WriteMode::Back && self.log.is_none() {
            self.flags[frame as usize].set(Flags::DIRTY);
        }
        if self.prefetcher.is_some() {
            self.ask_prefetcher(page, Seen::Miss);
        }
        Outcome::Miss(Fill { page, frame, reads_media: !is_whole, evicted })
    }

    /// What keeps a page from coming in.
    #[inline]
    fn obstacle(&self, page: u64, set: u32) -> Option<Wait> {
        let Set { free_count, ruled, .. } = self.sets[set as usize];
        if free_count == 0 && ruled == 0 {
            return Some(Wait::Frame);
        }
        if self.draining.get(page).is_some() && !self.has_bug(Bug::ReadWhileDraining) {
            return Some(Wait::Drain);
        }
        // A fill that began now could read old bytes from below and find the log's lines gone when it ends.
        (self.compacting == Some(page) && !self.has_bug(Bug::FillWhileCompacting)).then_some(Wait::Compaction)
    }

    /// What the log makes of a request; nothing if the pages have to answer.
    fn ask_log(&mut self, page: u64, op: Op) -> Option<Outcome> {
        let frame = self.find(page);
        let log = self.log.as_mut()?;
        let is_resident = frame.is_some_and(|frame| self.flags[frame as usize].state() == State::Resident);
        if op.is_write {
            if !log.append(page, op.lines) {
                self.stats.waits += 1;
                return Some(Outcome::Wait(Wait::Log));
            }
            if is_resident {
                return None;
            }
            self.stats.logged += 1;
            self.count(op);
            return Some(Outcome::Logged);
        }
        if is_resident || !log.has(page, op.lines) {
            return None;
        }
        self.stats.log_hits += 1;
        self.count(op);
        Some(Outcome::LogHit)
    }

    #[cold]
    fn ask_prefetcher(&mut self, page: u64, seen: Seen) {
        if let Some(prefetcher) = &mut self.prefetcher {
            prefetcher.requested(page, seen, &mut self.wanted);
        }
    }

    /// Begins to bring in a page that no request has asked for yet, wanted by the prefetcher or by the host.
    pub fn prefetch(&mut self, page: u64) -> Prefetched {
        if self.find(page).is_some() {
            self.stats.prefetch_redundant += 1;
            return Prefetched::Present;
        }
        let set = self.set_of(page);
        if self.obstacle(page, set).is_some() {
            self.stats.prefetch_refused += 1;
            return Prefetched::Refused;
        }
        self.stats.prefetch_issued += 1;
        self.forget_pushed_out(page);
        let recall = self.policy.incoming(set, page, false);
        let (frame, evicted) = self.take(set, recall);
        self.assign(frame, page, recall, evicted);
        self.flags[frame as usize].set(Flags::UNUSED);
        if let Some(evicted) = evicted {
            self.remember_pushed_out(evicted.page);
        }
        Prefetched::Started(Fill { page, frame, reads_media: true, evicted })
    }

    /// Takes a page from those that prefetches pushed out; says whether it was one.
    #[inline]
    fn forget_pushed_out(&mut self, page: u64) -> bool {
        let Some(pushed_out) = &mut self.pushed_out else { return false };
        let found = pushed_out.pages.find(page);
        if let Some((entry, _)) = found {
            pushed_out.pages.remove(&mut pushed_out.order, entry);
        }
        found.is_some()
    }

    fn remember_pushed_out(&mut self, page: u64) {
        let frames = self.shape.frames();
        let new = || Box::new(PushedOut { pages: Ghosts::new(frames), order: Queue::EMPTY });
        let pushed_out = self.pushed_out.get_or_insert_with(new);
        if pushed_out.order.len() == frames {
            pushed_out.pages.drop_oldest(&mut pushed_out.order);
        }
        pushed_out.pages.push(&mut pushed_out.order, 0, page);
    }

    /// A frame of a set that has a free one or one to evict.
    #[inline]
    fn take(&mut self, set: u32, recall: Recall) -> (u32, Option<Evicted>) {
        let of = &mut self.sets[set as usize];
        if of.free != NONE {
            let frame = of.free;
            of.free = self.pages[frame as usize] as u32;
            of.free_count -= 1;
            return (frame, None);
        }
        let frame = self.victim(set, recall);
        (frame, Some(self.leave(frame)))
    }

    /// The victim that the policy names, if it is one.
    #[inline]
    fn victim(&mut self, set: u32, recall: Recall) -> u32 {
        let frames = Frames { pages: &self.pages, flags: &self.flags };
        let named = self.policy.victim(set, recall, &frames);
        let is_right = |frame: u32| {
            let flags = self.flags.get(frame as usize);
            flags.is_some_and(|flags| flags.has(Flags::RULED))
                && (self.shape.sets == 1 || frame / self.shape.ways == set)
        };
        let frame = match named {
            Some(frame) if is_right(frame) => frame,
            _ => self.overrule(set, named),
        };
        self.flags[frame as usize].clear(Flags::RULED);
        self.sets[set as usize].ruled -= 1;
        frame
    }

    /// Chooses a victim where the policy named none that can leave: the next one of the set, going round.
    #[cold]
    fn overrule(&mut self, set: u32, named: Option<u32>) -> u32 {
        self.stats.policy_faults += 1;
        let fault = PolicyFault { set, named };
        self.last_fault = Some(fault);
        let Shape { ways, .. } = self.shape;
        let first = set * ways;
        let mut round = (0..ways).map(|step| first + (self.fallback + step) % ways);
        let ruled = round.find(|frame| self.flags[*frame as usize].has(Flags::RULED));
        let frame = ruled.expect("the set has a frame that can leave");
        self.fallback = (frame - first + 1) % ways;
        self.policy.removed(set, frame);
        self.policy.overruled(&fault);
        frame
    }

    /// The page of a resident frame, which the policy no longer has, leaves; the table is the caller's.
    #[inline]
    fn leave(&mut self, frame: u32) -> Evicted {
        let page = self.pages[frame as usize];
        let flags = self.flags[frame as usize];
        let is_dirty = flags.has(Flags::DIRTY) && !self.has_bug(Bug::LoseDirty);
        if is_dirty {
            self.stats.evicted_dirty += 1;
            self.draining.insert(page, frame);
            self.undrained[frame as usize / 64] |= 1 << (frame % 64);
        } else {
            self.stats.evicted_clean += 1;
        }
        if flags.has(Flags::UNUSED) {
            self.stats.prefetch_unused += 1;
        }
        Evicted { page, frame, is_dirty }
    }

    /// Gives a frame to a page that is about to come in, from one that left.
    #[inline]
    fn assign(&mut self, frame: u32, page: u64, recall: Recall, evicted: Option<Evicted>) {
        if let Some(evicted) = evicted {
            self.table.remove(evicted.page, frame);
        }
        self.table.insert(page, frame);
        self.pages[frame as usize] = page;
        self.flags[frame as usize] = Flags::filling(recall);
    }

    /// The bytes of a fill are in its frame: the page is resident. Before anyone sees it, the lines in the answer
    /// have to be taken from the write log; none without a log.
    ///
    /// # Panics
    /// When the frame is not being filled, or has bytes that are not drained: the driver is wrong.
    #[inline]
    pub fn fill_done(&mut self, frame: u32) -> u64 {
        let flags = &mut self.flags[frame as usize];
        assert!(flags.state() == State::Filling, "frame {frame} is not being filled");
        let (recall, is_pinned, is_unused) = (flags.recall(), flags.has(Flags::PINNED), flags.has(Flags::UNUSED));
        flags.make_resident();
        assert!(!self.is_undrained(frame), "frame {frame} was filled over bytes that are not drained");
        let page = self.pages[frame as usize];
        self.fills += 1;
        self.arrived[frame as usize] = self.fills;
        if !is_pinned {
            self.rule(self.set_of(page), frame, page, recall);
        }
        if let Some(prefetcher) = &mut self.prefetcher {
            prefetcher.filled(page, is_unused);
        }
        match &self.log {
            Some(log) if !self.has_bug(Bug::SkipLogMerge) => log.lines(page),
            _ => 0,
        }
    }

    /// A fill came to nothing: the page is not there, its pins are gone, and requests that were merged have to be
    /// answered with the reason. A write that began the fill or was merged is the driver's to save.
    ///
    /// # Panics
    /// When the frame is not being filled: the driver is wrong.
    pub fn fill_failed(&mut self, frame: u32) {
        let flags = self.flags[frame as usize];
        assert!(flags.state() == State::Filling, "frame {frame} is not being filled");
        let page = self.pages[frame as usize];
        let set = self.set_of(page);
        self.stats.fills_failed += 1;
        self.table.remove(page, frame);
        if self.pins.remove(&frame).is_some() {
            self.sets[set as usize].pinned -= 1;
        }
        // What left for this fill may still be in the frame.
        if self.is_undrained(frame) {
            self.flags[frame as usize] = Flags::draining();
            self.sets[set as usize].draining += 1;
        } else {
            self.free(set, frame);
        }
    }

    /// Puts a resident frame that is not pinned into the policy's hands.
    #[inline]
    fn rule(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        self.flags[frame as usize].set(Flags::RULED);
        self.sets[set as usize].ruled += 1;
        self.policy.inserted(set, frame, page, recall);
    }

    /// Takes a frame out of the policy's hands.
    fn unrule(&mut self, set: u32, frame: u32) {
        self.flags[frame as usize].clear(Flags::RULED);
        self.sets[set as usize].ruled -= 1;
        self.policy.removed(set, frame);
    }

    fn free(&mut self, set: u32, frame: u32) {
        let of = &mut self.sets[set as usize];
        self.flags[frame as usize] = Flags::FREE;
        self.pages[frame as usize] = of.free.into();
        of.free = frame;
        of.free_count += 1;
    }

    /// Frees a frame whose page just left for no other one, as soon as its bytes are safe.
    fn release(&mut self, set: u32, evicted: Evicted) {
        self.table.remove(evicted.page, evicted.frame);
        if evicted.is_dirty {
            self.flags[evicted.frame as usize] = Flags::draining();
            self.sets[set as usize].draining += 1;
        } else {
            self.free(set, evicted.frame);
        }
    }

    #[inline]
    fn is_undrained(&self, frame: u32) -> bool {
        self.undrained[frame as usize / 64] >> (frame % 64) & 1 == 1
    }

    /// The bytes of a page that left dirty are safe below; they are what a fill will read from now on.
    ///
    /// # Panics
    /// When nothing of this page is draining: the driver is wrong.
    pub fn drained(&mut self, page: u64) {
        let frame = self.draining.remove(page);
        let frame = frame.expect("a page that is drained has left dirty");
        self.undrained[frame as usize / 64] &= !(1 << (frame % 64));
        if self.flags[frame as usize].state() == State::Draining {
            let set = self.set_of(page);
            self.sets[set as usize].draining -= 1;
            self.free(set, frame);
        }
    }

    /// A request where everything takes no time: fills end, dirty pages are drained and the log is compacted before
    /// it returns, and so is what the prefetcher wants. The answer is what the request met.
    ///
    /// # Panics
    /// When fills that [`Cache::request`] began are under way: a driver uses one or the other.
    #[inline]
    pub fn at_once(&mut self, page: u64, op: Op) -> Outcome {
        let outcome = loop {
            match self.request(page, op) {
                Outcome::Wait(Wait::Log) => self.compact_at_once(),
                outcome => break outcome,
            }
        };
        match outcome {
            Outcome::Miss(fill) => self.fill_at_once(fill),
            Outcome::Wait(_) | Outcome::Merged { .. } => panic!("page {page} waits for a fill that is under way"),
            Outcome::Hit { .. } | Outcome::LogHit | Outcome::Logged => {}
        }
        if !self.wanted.is_empty() {
            self.prefetch_at_once();
        }
        outcome
    }

    #[inline]
    fn fill_at_once(&mut self, fill: Fill) {
        if let Some(Evicted { page, is_dirty: true, .. }) = fill.evicted {
            self.drained(page);
        }
        self.fill_done(fill.frame);
    }

    #[cold]
    fn prefetch_at_once(&mut self) {
        let wanted = std::mem::take(&mut self.wanted);
        for page in &wanted {
            if let Prefetched::Started(fill) = self.prefetch(*page) {
                self.fill_at_once(fill);
            }
        }
        self.wanted = wanted;
        self.wanted.clear();
    }

    #[cold]
    fn compact_at_once(&mut self) {
        assert!(self.next_compaction().is_some(), "the log is full, and its next page is being filled");
        self.compacted();
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
