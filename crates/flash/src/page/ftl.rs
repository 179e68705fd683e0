//! The FTL's state, and what happens when an operation of the array ends.
//!
//! Sans-IO: time comes in as an argument; whatever waits is answered by [`PageFtl::poll`] at or after
//! [`PageFtl::next_event`]. Time never runs backwards between calls.
//!
//! Invariants, and who holds them:
//! 1. A slot is programmed once between two erases, those of a die in order (`place`).
//! 2. A unit is valid when the map names it: `map[reverse[unit]] == unit`. A superblock counts its own.
//! 3. Before a victim is erased, its copies are programmed, and what killed its units is: later writes are
//!    programmed, trims are on record (`collect::may_erase`). So the media holds the newest version that was
//!    ever persistent, and nothing that a trim on record killed comes back.
//! 4. Collection always finds space: the host leaves it `free_min` superblocks, a victim is begun when its
//!    units fit into what is free, and some victim has a slot of garbage (`config::Sizes`).
//! 5. A checkpoint is sealed after every slot that was begun before it is programmed (`checkpoint`).
//! 6. Once a die or a plane is dead nothing is erased but a checkpoint area (`death`).

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use super::bad::BadBlocks;
use super::checkpoint::Checkpoints;
use super::collect::Collector;
use super::config::{PageFtlConfig, Sizes, Streams};
use super::mapcache::MapCache;
use super::media::{NoMedia, PageMedia, Record, Unit};
use super::place::{Stream, Writing};
use super::planted::PageBug;
use super::serve::{Completed, DoneLater, Flush, Request, RequestId};
use super::space::{Superblock, SuperblockState};
use super::stats::Counters;
use super::units::UnitTable;
use super::victim::Candidates;
use crate::Nanos;
use crate::array::{Array, Class, ConfigError, Divisor, Job, JobKind};
use crate::rng::Rng;

/// No physical or logical unit.
pub(crate) const NONE: u32 = u32::MAX;
/// Victims that are under way: one is read, the others wait for their copies or their erase.
pub(crate) const VICTIMS_MAX: usize = 4;

/// A slot that is being programmed.
#[derive(Debug, Clone)]
pub(crate) struct SlotTask {
    /// Slot of the whole array.
    pub slot: u32,
    pub stream: u32,
    /// Serial among the slots of the stream that hold host writes.
    pub serial: Option<u64>,
    /// Units of each victim that were moved here.
    pub moved: [u16; VICTIMS_MAX],
    /// Parity of the checkpoint during which it was begun.
    pub era: usize,
    pub stream_class: Class,
    /// What it holds; empty when nothing is kept.
    pub units: Vec<Unit>,
}

/// What an operation of the array is for.
#[derive(Debug, Clone)]
pub(crate) enum Task {
    Slot(SlotTask),
    /// A read of a victim's slot.
    Move {
        victim: usize,
        slot: u32,
        /// Units whose bytes could not be corrected, by bit.
        lost: u128,
    },
    Erase {
        superblock: u32,
        stripe: u32,
    },
    /// A slot of a checkpoint area.
    Area {
        slot: u32,
        record: Option<Record>,
        kind: AreaKind,
    },
}

/// What a slot of a checkpoint area holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AreaKind {
    Map,
    /// Trims, all with a sequence up to this, and the table of bad blocks up to this entry.
    Journal {
        through: u64,
        bad: usize,
    },
    /// Trims since the checkpoint began, and all bad blocks, written with it.
    Carried,
    Root,
}

/// The page-mapped FTL over its array.
#[derive(Debug, Clone)]
pub struct PageFtl<M: PageMedia = NoMedia> {
    pub(crate) config: PageFtlConfig,
    pub(crate) sizes: Sizes,
    pub(crate) array: Array,
    pub(crate) media: M,
    pub(crate) now: Nanos,
    /// Physical unit by logical unit; pages of the map follow, if the map is cached.
    pub(crate) map: UnitTable,
    /// Logical unit by physical unit; stays when the unit dies.
    pub(crate) reverse: UnitTable,
    pub(crate) superblocks: Vec<Superblock>,
    /// Free superblocks, the next one first.
    pub(crate) free: BinaryHeap<Reverse<(u64, u32)>>,
    pub(crate) free_order: u64,
    pub(crate) candidates: Candidates,
    pub(crate) streams: Vec<Stream>,
    pub(crate) writing: Vec<Writing>,
    /// Slots with host writes in flight, by die.
    pub(crate) host_slots: Vec<u32>,
    pub(crate) tasks: Vec<Option<Task>>,
    pub(crate) vacant: Vec<u32>,
    pub(crate) collector: Collector,
    pub(crate) checkpoints: Checkpoints,
    pub(crate) map_cache: Option<MapCache>,
    /// Sequence of the last write or trim.
    pub(crate) sequence: u64,
    /// Life of the superblock that is opened next.
    pub(crate) next_life: u64,
    pub(crate) waiting: VecDeque<Request>,
    pub(crate) flushes: VecDeque<Flush>,
    /// Reads that wait for a page of the map.
    pub(crate) later: BinaryHeap<Reverse<DoneLater>>,
    pub(crate) completed: VecDeque<Completed>,
    pub(crate) next_request: RequestId,
    /// Good spare blocks by plane.
    pub(crate) spares: Vec<u32>,
    pub(crate) bad: BadBlocks,
    pub(crate) retired: u32,
    pub(crate) read_only: bool,
    /// Stripes whose dies or planes do not answer.
    pub(crate) dead: BTreeSet<u32>,
    /// Units whose bytes were lost when they were moved.
    pub(crate) lost: BTreeSet<u32>,
    pub(crate) rng: Rng,
    pub(crate) counters: Counters,
    pub(crate) split: Splits,
    /// Die and plane of each stripe.
    pub(crate) stripes: Vec<(u32, u32)>,
    /// Whether a read of the array can go wrong.
    pub(crate) has_read_errors: bool,
    /// Times by row of a block.
    pub(crate) row_read_ns: Vec<u64>,
    pub(crate) row_program_ns: Vec<u64>,
    pub(crate) bug: Option<PageBug>,
}

/// Divisors that take a unit's number apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Splits {
    pub superblock_units: Divisor,
    pub slot_units: Divisor,
    pub stripes: Divisor,
    pub page_units: Divisor,
}

/// Where a unit lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub superblock: u32,
    pub row: u32,
    pub stripe: u32,
}

impl PageFtl<NoMedia> {
    /// An erased device that models time and space and keeps no data.
    ///
    /// # Errors
    /// The first value of the configuration that cannot work.
    pub fn new(config: &PageFtlConfig, seed: u64) -> Result<PageFtl, ConfigError> {
        PageFtl::with_media(config, seed, NoMedia)
    }
}

impl<M: PageMedia> PageFtl<M> {
    /// An erased device over erased media.
    ///
    /// # Errors
    /// The first value of the configuration that cannot work.
    pub fn with_media(config: &PageFtlConfig, seed: u64, media: M) -> Result<PageFtl<M>, ConfigError> {
        config.validate()?;
        let mut ftl = PageFtl::build(config, seed, media);
        ftl.find_bad_blocks();
        for superblock in 2 * ftl.sizes.area_superblocks..ftl.sizes.superblocks {
            if ftl.superblocks[superblock as usize].state == SuperblockState::Free {
                ftl.give_back(superblock);
            }
        }
        ftl.check_capacity();
        Ok(ftl)
    }

    pub(crate) fn build(config: &PageFtlConfig, seed: u64, media: M) -> PageFtl<M> {
        let sizes = Sizes::new(config);
        let (shape, ftl) = (&config.shape, &config.ftl);
        let units = sizes.superblocks as usize * sizes.superblock_units as usize;
        let entries = ftl.logical_units as usize + sizes.map_pages as usize;
        let types = config.timing.page_types() as usize;
        let by_row = |ns: &[u64]| (0..shape.pages_per_block as usize).map(|row| ns[row % types]).collect();
        let streams = (0..sizes.streams).map(|_| Stream::new()).collect();
        let stripes = shape.stripes(config.order, config.timing.multi_plane);
        PageFtl {
            config: config.clone(),
            sizes,
            array: Array::new(shape, &config.timing),
            media,
            now: Nanos::ZERO,
            map: UnitTable::new(entries),
            reverse: UnitTable::new(units),
            superblocks: vec![Superblock::default(); sizes.superblocks as usize],
            free: BinaryHeap::new(),
            free_order: 0,
            candidates: Candidates::new(ftl.collection.policy, ftl.wear.spread_max > 0, &sizes),
            streams,
            writing: Vec::new(),
            host_slots: vec![0; shape.dies() as usize],
            tasks: Vec::new(),
            vacant: Vec::new(),
            collector: Collector::default(),
            checkpoints: Checkpoints::new(&stripes),
            map_cache: (ftl.map_cache_pages > 0).then(|| MapCache::new(sizes.map_pages, ftl.map_cache_pages)),
            sequence: 0,
            next_life: 1,
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            later: BinaryHeap::new(),
            completed: VecDeque::new(),
            next_request: RequestId(1),
            spares: vec![ftl.spare_blocks_per_plane; shape.planes() as usize],
            bad: BadBlocks::default(),
            retired: 0,
            read_only: false,
            dead: BTreeSet::new(),
            lost: BTreeSet::new(),
            rng: Rng::new(seed),
            counters: Counters::default(),
            split: Splits {
                superblock_units: Divisor::new(sizes.superblock_units),
                slot_units: Divisor::new(sizes.slot_units),
                stripes: Divisor::new(sizes.stripes),
                page_units: Divisor::new(shape.units_per_page()),
            },
            stripes,
            has_read_errors: config.errors.has_read_errors(),
            row_read_ns: by_row(&config.timing.read_ns),
            row_program_ns: by_row(&config.timing.program_ns),
            bug: None,
        }
    }

    /// The configuration that the device was made with.
    #[must_use]
    pub fn config(&self) -> &PageFtlConfig {
        &self.config
    }

    /// Plants a bug, to prove that the checks of whoever does so can fail.
    #[cfg(any(test, feature = "planted"))]
    pub fn plant(&mut self, bug: PageBug) {
        self.bug = Some(bug);
    }

    /// The media.
    #[must_use]
    pub fn media(&self) -> &M {
        &self.media
    }

    /// The media, for whoever lets it rot.
    pub fn media_mut(&mut self) -> &mut M {
        &mut self.media
    }

    pub(crate) fn has_bug(&self, bug: PageBug) -> bool {
        cfg!(any(test, feature = "planted")) && self.bug == Some(bug)
    }

    /// Moves time on to `now`, and does all that is due.
    #[inline]
    pub fn advance(&mut self, now: Nanos) {
        let is_due = |at: Option<Nanos>| at.is_some_and(|at| at <= now);
        if is_due(self.array.next_event()) || is_due(self.later.peek().map(|Reverse(later)| later.at)) {
            self.do_what_is_due(now);
        } else {
            self.array.pass(now);
        }
        self.now = self.now.max(now);
    }

    fn do_what_is_due(&mut self, now: Nanos) {
        loop {
            let later = self.later.peek().map_or(Nanos::MAX, |Reverse(later)| later.at);
            match self.array.advance(now.min(later)) {
                Some(finished) => {
                    self.now = finished.at;
                    self.finish(finished.token);
                }
                None if later <= now => {
                    self.now = later;
                    self.read_now(later);
                }
                None => break,
            }
        }
    }

    /// When something happens by itself, if anything does.
    #[inline]
    #[must_use]
    pub fn next_event(&self) -> Option<Nanos> {
        if !self.completed.is_empty() {
            return Some(self.now);
        }
        let array = self.array.next_event();
        let Some(Reverse(later)) = self.later.peek() else { return array };
        Some(array.map_or(later.at, |array| array.min(later.at)))
    }

    /// Power is lost: operations that have begun are torn, those that only waited leave no trace, and what
    /// was programmed stays.
    pub fn lose_power(mut self) -> M {
        let begun: Vec<u32> = self.array.begun().collect();
        for token in begun {
            match self.tasks[token as usize].take() {
                Some(Task::Slot(task)) => {
                    let (slot, life, record) = self.data_record(task);
                    self.media.cut_program(slot, life, Some(record));
                }
                Some(Task::Area { slot, record, .. }) => self.media.cut_program(slot, 0, record),
                Some(Task::Erase { superblock, stripe }) => {
                    let (first, stripes, count) = self.slots_of(superblock, stripe);
                    self.media.cut_erase(first, stripes, count);
                }
                Some(Task::Move { .. }) | None => {}
            }
        }
        self.media.power_lost();
        self.media
    }

    #[inline]
    pub(crate) fn place(&self, unit: u32) -> Place {
        let (superblock, offset) = self.split.superblock_units.split(unit);
        let (row, stripe) = self.split.stripes.split(self.split.slot_units.quotient(offset));
        Place { superblock, row, stripe }
    }

    /// First slot, distance and number of the slots of one stripe of a superblock.
    pub(crate) fn slots_of(&self, superblock: u32, stripe: u32) -> (u32, u32, u32) {
        let off_by = u32::from(self.has_bug(PageBug::EraseNextStripe) && stripe + 1 < self.sizes.stripes);
        let first = superblock * self.sizes.slots_per_superblock + stripe + off_by;
        (first, self.sizes.stripes, self.config.shape.pages_per_block)
    }

    /// Queues an operation on the die of a slot.
    pub(crate) fn issue(&mut self, slot: u32, kind: JobKind, class: Class, bytes: u32, task: Task) {
        let slot_in_superblock = slot % self.sizes.slots_per_superblock;
        let (row, stripe) = self.split.stripes.split(slot_in_superblock);
        let array_ns = match kind {
            JobKind::Read => self.row_read_ns[row as usize],
            JobKind::Program => self.row_program_ns[row as usize],
            JobKind::Erase => self.config.timing.erase_ns,
        };
        self.issue_job(stripe, Job { kind, class, array_ns, bytes, token: 0 }, task);
    }

    pub(crate) fn issue_job(&mut self, stripe: u32, job: Job, task: Task) {
        let token = match self.vacant.pop() {
            Some(token) => {
                self.tasks[token as usize] = Some(task);
                token
            }
            None => {
                self.tasks.push(Some(task));
                (self.tasks.len() - 1) as u32
            }
        };
        self.array.queue(self.now, self.stripes[stripe as usize].0, Job { token, ..job });
    }

    /// The class of an operation of collection: it gives way to the host unless it is urgent.
    pub(crate) fn collection_class(&self) -> Class {
        if self.config.ftl.collection.preemptible { Class::Collection } else { Class::Host }
    }

    fn finish(&mut self, token: u32) {
        let task = self.tasks[token as usize].take().expect("an operation ends once");
        self.vacant.push(token);
        match task {
            Task::Slot(task) => self.slot_programmed(task),
            Task::Move { victim, slot, lost } => self.slot_read(victim, slot, lost),
            Task::Erase { superblock, stripe } => self.stripe_erased(superblock, stripe),
            Task::Area { slot, record, kind } => self.area_programmed(slot, record, kind),
        }
        self.go_on();
    }

    /// Whatever may have become possible.
    pub(crate) fn go_on(&mut self) {
        self.collect();
        self.checkpoint();
        if !self.flushes.is_empty() {
            self.answer_flushes();
        }
        if !self.waiting.is_empty() {
            self.serve_waiting();
        }
        if self.checkpoints.kick {
            self.checkpoint();
        }
        self.give_up_if_stuck();
    }

    /// Whether the host's and collection's data share superblocks.
    pub(crate) fn is_shared(&self) -> bool {
        self.config.ftl.streams == Streams::Shared
    }

    /// The stream of relocated units.
    pub(crate) fn collection_stream(&self) -> usize {
        self.streams.len() - 1
    }

    /// The stream of a host write, by the version that it replaces.
    pub(crate) fn host_stream(&self, replaced: u32) -> usize {
        if self.config.ftl.streams != Streams::HotCold || replaced == NONE {
            return 0;
        }
        let superblock = self.split.superblock_units.quotient(replaced) as usize;
        let age = self.next_life - self.superblocks[superblock].life;
        // Stream 1 is hot.
        usize::from(age <= u64::from(self.sizes.data_superblocks() / 4))
    }
}
