//! Commands about pages: prefetch, pin, unpin, evict; and another policy.
//!
//! A range may have millions of pages, and faults do not wait for it: each command goes on by a *piece* whenever
//! [`Window::poll`] has nothing else to hand out, one command after the other. What a command has under way at a time
//! is bounded too, so that a fault finds the flash and the free frames as a few faults more would have left them.
//!
//! A pin belongs to the mapper that made it: nobody else takes it off, and it is given back when that one ends.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use osier_cache::{CommandError as CacheError, ParameterValues, PolicyError, Prefetched, Presence, policy};
use osier_flash::Nanos;

use super::planted::Bug;
use super::{MAPPERS_MAX, MapperId, Misuse, Output, Resident, Window};

/// What a program may ask of the cache. Pages are counted from the window's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Brings pages in. Ends when they are there.
    Prefetch(Range<u64>),
    /// Brings pages in and keeps them until as many unpins have come: all of them or none. Ends when they are there.
    Pin(Range<u64>),
    /// Takes one of the mapper's own pins off each page that has one.
    Unpin(Range<u64>),
    /// Lets pages leave. Ends when they have left.
    Evict(Range<u64>),
    /// Changes the eviction policy; the pages stay.
    Policy {
        /// Its name.
        name: String,
        /// Its parameters; those that are not given have their published values.
        parameters: ParameterValues,
    },
}

/// What a command did, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Brought in, pinned, unpinned, evicted.
    pub done: u64,
    /// There was nothing to do: resident already, not pinned, not resident.
    pub idle: u64,
    /// It could not be done: no frame for a prefetch, pinned or on its way for an eviction.
    pub refused: u64,
}

/// Why a command was not done; a pin is then undone.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Beyond the end.
    #[error("pages {first} to {end} are not all in the window, which has {pages} pages of 4 KiB")]
    OutOfRange {
        /// First page.
        first: u64,
        /// One past the last.
        end: u64,
        /// Pages of the window.
        pages: u64,
    },
    /// More commands than may wait.
    #[error("{COMMANDS_MAX} commands of this program wait, the most that may; try again when one has ended")]
    TooMany,
    /// The cache says why.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// There is no such policy, or it cannot have these parameters.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// No frame can become free.
    #[error("page {page} finds no frame: all of its set are pinned; unpin one")]
    NoFrame {
        /// The page.
        page: u64,
    },
    /// The flash has lost a page that was to be pinned.
    #[error(
        "page {page} cannot be read: the flash has lost its bytes; store to none of it, and restore it from a copy"
    )]
    Lost {
        /// The page.
        page: u64,
    },
}

/// Most commands of a mapper that wait at a time.
pub const COMMANDS_MAX: u32 = 64;
/// Pages that a command goes through before faults are looked for.
pub const PIECE_PAGES: u32 = 64;
/// Pages of one command that are leaving at a time.
const LEAVING_MAX: u64 = 256;

/// What a command does to its pages.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Work {
    Prefetch,
    Pin,
    /// Takes the pins of one that cannot be done off again, and says why it cannot.
    Undo(CommandError),
    Unpin,
    Evict,
}

/// A command that goes on.
#[derive(Clone, Debug)]
struct Running {
    mapper: MapperId,
    tag: u32,
    work: Work,
    pages: Range<u64>,
    /// The first page that was not begun.
    next: u64,
    /// Of one that brings pages in: the first page that has not been seen to be there.
    there: u64,
    /// Of an eviction: pages that have not left.
    leaving: u64,
    /// The change at which it could not go on: before the next it need not be asked.
    waits_since: u64,
    report: Report,
}

/// Commands under way, and the pins that they made.
#[derive(Debug)]
pub(super) struct Commands {
    /// By a number that is given once.
    running: BTreeMap<u64, Running>,
    next: u64,
    /// Whose turn it is: this one, or the first after it.
    turn: u64,
    /// By mapper.
    counts: [u32; MAPPERS_MAX],
    /// Changes so far that a command may have waited for.
    changes: u64,
    /// Whether some command may go on.
    is_ready: bool,
    /// Fills under way that commands began.
    fills: u64,
    /// By mapper: its pins of each page.
    pins: Vec<BTreeMap<u64, u32>>,
    /// Pins of mappers that have gone, to be taken off.
    abandoned: VecDeque<BTreeMap<u64, u32>>,
}

impl Default for Commands {
    fn default() -> Commands {
        Commands {
            running: BTreeMap::new(),
            next: 1,
            turn: 0,
            counts: [0; MAPPERS_MAX],
            changes: 1,
            is_ready: false,
            fills: 0,
            pins: vec![BTreeMap::new(); MAPPERS_MAX],
            abandoned: VecDeque::new(),
        }
    }
}

impl Commands {
    pub(super) fn are_waiting(&self) -> bool {
        !self.running.is_empty()
    }

    /// Whether there is something to go on with now.
    pub(super) fn are_ready(&self) -> bool {
        self.is_ready || !self.abandoned.is_empty()
    }

    /// Something happened that a command may have waited for.
    pub(super) fn changed(&mut self) {
        self.changes += 1;
        self.is_ready = !self.running.is_empty();
    }

    pub(super) fn fill_ended(&mut self) {
        self.fills -= 1;
    }

    /// The flash has lost a page that was on its way in: the cache has no pins of it any more.
    pub(super) fn page_lost(&mut self, page: u64) {
        for pins in &mut self.pins {
            pins.remove(&page);
        }
    }

    /// Nobody waits for the commands of this mapper any more, and its pins are nobody's.
    pub(super) fn forget(&mut self, mapper: MapperId, keeps_pins: bool) {
        self.running.retain(|_, running| running.mapper != mapper);
        self.counts[usize::from(mapper.0)] = 0;
        let pins = std::mem::take(&mut self.pins[usize::from(mapper.0)]);
        if !pins.is_empty() && !keeps_pins {
            self.abandoned.push_back(pins);
        }
    }

    /// The next command in turn that can go on.
    fn take_turn(&mut self) -> Option<u64> {
        if !self.is_ready {
            return None;
        }
        let order = self.running.range(self.turn..).chain(self.running.range(..self.turn));
        let found = order.into_iter().find(|(_, running)| running.waits_since != self.changes).map(|(id, _)| *id);
        match found {
            Some(id) => self.turn = id + 1,
            None => self.is_ready = false,
        }
        found
    }

    fn pins_of(&mut self, mapper: MapperId) -> &mut BTreeMap<u64, u32> {
        &mut self.pins[usize::from(mapper.0)]
    }

    /// Takes a pin of a mapper off a page in the books; whether it had one.
    fn take_pin(&mut self, mapper: MapperId, page: u64) -> bool {
        let pins = self.pins_of(mapper);
        let Some(count) = pins.get_mut(&page) else { return false };
        *count -= 1;
        if *count == 0 {
            pins.remove(&page);
        }
        true
    }

    /// Pages that mappers have pinned.
    pub(super) fn pinned_by(&self, mapper: MapperId) -> u64 {
        self.pins[usize::from(mapper.0)].len() as u64
    }
}

/// How far a piece of a command came.
enum Piece {
    Ended(Result<Report, CommandError>),
    GoesOn,
    Waits,
}

/// What came of bringing one page in.
enum Brought {
    Begun,
    Present,
    /// It has to be tried again.
    Waits,
}

impl<R: Resident> Window<R> {
    /// A program asks for something; the end comes as [`Output::Done`] with its `tag`, out of [`Window::poll`], which
    /// does it piece by piece.
    ///
    /// # Errors
    /// When the mapper is not attached.
    pub fn command(&mut self, now: Nanos, mapper: MapperId, tag: u32, command: Command) -> Result<(), Misuse> {
        self.advance(now);
        if self.attached & mapper.bit() == 0 {
            return Err(Misuse::NotAttached(mapper));
        }
        if let Err(error) = self.begin_command(mapper, tag, command) {
            self.end_command(mapper, tag, Err(error));
        }
        Ok(())
    }

    fn begin_command(&mut self, mapper: MapperId, tag: u32, command: Command) -> Result<(), CommandError> {
        let (work, pages) = match command {
            Command::Prefetch(pages) => (Work::Prefetch, pages),
            Command::Pin(pages) => (Work::Pin, pages),
            Command::Unpin(pages) => (Work::Unpin, pages),
            Command::Evict(pages) => (Work::Evict, pages),
            Command::Policy { name, parameters } => {
                let policy = policy(&name, self.cache.shape(), &parameters, 0)?;
                self.cache.set_policy(policy);
                self.end_command(mapper, tag, Ok(Report { done: 1, ..Report::default() }));
                return Ok(());
            }
        };
        if pages.start > pages.end || pages.end > self.pages {
            return Err(CommandError::OutOfRange { first: pages.start, end: pages.end, pages: self.pages });
        }
        // Otherwise it would bring in as many as may be pinned before it fails.
        let max = self.pinned_pages_max;
        if work == Work::Pin && pages.end - pages.start > u64::from(max) {
            return Err(CacheError::PinLimit { page: pages.start + u64::from(max), max }.into());
        }
        let commands = &mut self.commands;
        let count = &mut commands.counts[usize::from(mapper.0)];
        if *count >= COMMANDS_MAX {
            return Err(CommandError::TooMany);
        }
        *count += 1;
        let (next, there) = (pages.start, pages.start);
        let report = Report::default();
        let running = Running { mapper, tag, work, pages, next, there, leaving: 0, waits_since: 0, report };
        commands.running.insert(commands.next, running);
        commands.next += 1;
        commands.is_ready = true;
        Ok(())
    }

    fn end_command(&mut self, mapper: MapperId, tag: u32, result: Result<Report, CommandError>) {
        self.outputs.push_back(Output::Done { mapper, tag, at: self.now, result });
    }

    /// A piece of a command, if one can go on, or of what somebody who has gone had pinned.
    pub(super) fn go_on_with_commands(&mut self) {
        self.give_pins_back();
        let Some(id) = self.commands.take_turn() else { return };
        let pieces = if self.has_bug(Bug::RangeInOneGo) { u32::MAX } else { 1 };
        for _ in 0..pieces {
            match self.piece(id) {
                Piece::GoesOn => {}
                Piece::Waits => {
                    let changes = self.commands.changes;
                    if let Some(running) = self.commands.running.get_mut(&id) {
                        running.waits_since = changes;
                    }
                    return;
                }
                Piece::Ended(result) => {
                    let Some(Running { mapper, tag, .. }) = self.commands.running.remove(&id) else { return };
                    self.commands.counts[usize::from(mapper.0)] -= 1;
                    return self.end_command(mapper, tag, result);
                }
            }
        }
    }

    fn piece(&mut self, id: u64) -> Piece {
        let Some(running) = self.commands.running.get(&id) else { unreachable!("the command is under way") };
        match running.work {
            Work::Evict => self.evict_piece(id),
            Work::Unpin => self.with_running(id, Self::unpin_piece),
            Work::Undo(_) => self.with_running(id, Self::undo_piece),
            Work::Prefetch | Work::Pin => self.with_running(id, Self::bring_piece),
        }
    }

    /// Does something with a command that nothing else changes meanwhile.
    fn with_running(&mut self, id: u64, work: fn(&mut Self, &mut Running) -> Piece) -> Piece {
        let Some(mut running) = self.commands.running.get(&id).cloned() else { unreachable!("it is under way") };
        let piece = work(self, &mut running);
        self.commands.running.insert(id, running);
        piece
    }

    /// Takes pins off: only of pages that have one, so that a range of others is no work.
    fn unpin_piece(&mut self, running: &mut Running) -> Piece {
        for _ in 0..PIECE_PAGES {
            let pins = self.commands.pins_of(running.mapper);
            let Some(page) = pins.range(running.next..running.pages.end).next().map(|(page, _)| *page) else {
                let pages = running.pages.end - running.pages.start;
                running.report.idle = pages - running.report.done;
                return Piece::Ended(Ok(running.report));
            };
            self.unpin(running.mapper, page);
            self.counts.commanded += 1;
            running.report.done += 1;
            running.next = page + 1;
        }
        Piece::GoesOn
    }

    fn unpin(&mut self, mapper: MapperId, page: u64) {
        if self.commands.take_pin(mapper, page) {
            // One of a page that the flash has lost has gone with it.
            let _ = self.cache.unpin(page);
            self.retry = true;
        }
    }

    /// Takes off what a pin that failed has pinned: one of each page that it had come to.
    fn undo_piece(&mut self, running: &mut Running) -> Piece {
        for _ in 0..PIECE_PAGES {
            if running.next == running.pages.start {
                let Work::Undo(error) = &running.work else { unreachable!("only a pin is undone") };
                return Piece::Ended(Err(error.clone()));
            }
            running.next -= 1;
            self.unpin(running.mapper, running.next);
        }
        Piece::GoesOn
    }

    fn give_pins_back(&mut self) {
        for _ in 0..PIECE_PAGES {
            let Some(pins) = self.commands.abandoned.front_mut() else { return };
            let Some((page, count)) = pins.pop_first() else {
                self.commands.abandoned.pop_front();
                continue;
            };
            for _ in 0..count {
                let _ = self.cache.unpin(page);
            }
            self.retry = true;
        }
    }

    fn evict_piece(&mut self, id: u64) -> Piece {
        let leaving_max = if self.has_bug(Bug::RangeInOneGo) { u64::MAX } else { LEAVING_MAX };
        for _ in 0..PIECE_PAGES {
            let Some(running) = self.commands.running.get_mut(&id) else { unreachable!("it is under way") };
            let page = running.next;
            if page >= running.pages.end || running.leaving >= leaving_max {
                break;
            }
            running.next += 1;
            self.counts.commanded += 1;
            match self.cache.evict(page) {
                Ok(evicted) => {
                    running.leaving += 1;
                    running.report.done += 1;
                    let was = std::mem::take(&mut self.mapped[evicted.frame as usize]);
                    self.leave(page, was, None, Some(id));
                }
                Err(CacheError::NotResident { .. }) => running.report.idle += 1,
                Err(_) => running.report.refused += 1,
            }
        }
        self.send_all_zaps();
        let Some(running) = self.commands.running.get(&id) else { unreachable!("it is under way") };
        match running {
            Running { leaving: 0, next, pages, report, .. } if *next == pages.end => Piece::Ended(Ok(*report)),
            Running { leaving, next, pages, .. } if *next < pages.end && *leaving < leaving_max => Piece::GoesOn,
            _ => Piece::Waits,
        }
    }

    /// A page that a command evicted has left.
    pub(super) fn command_page_left(&mut self, id: u64) {
        // It is gone with its mapper.
        let Some(running) = self.commands.running.get_mut(&id) else { return };
        running.leaving -= 1;
        self.commands.changed();
    }

    fn bring_piece(&mut self, running: &mut Running) -> Piece {
        let pins = running.work == Work::Pin;
        for _ in 0..PIECE_PAGES {
            if running.next < running.pages.end {
                let page = running.next;
                match if pins { self.pin_page(running.mapper, page) } else { self.prefetch_page(page) } {
                    Ok(Brought::Begun) => running.report.done += 1,
                    Ok(Brought::Present) if pins => running.report.done += 1,
                    Ok(Brought::Present) => running.report.idle += 1,
                    Ok(Brought::Waits) => return Piece::Waits,
                    Err(CommandError::NoFrame { .. }) if !pins => running.report.refused += 1,
                    Err(error) => {
                        running.work = Work::Undo(error);
                        return Piece::GoesOn;
                    }
                }
                running.next += 1;
                self.counts.commanded += 1;
                continue;
            }
            if running.there == running.pages.end {
                return Piece::Ended(Ok(running.report));
            }
            match self.cache.presence(running.there) {
                Presence::Filling { .. } => return Piece::Waits,
                Presence::Absent if pins => {
                    running.work = Work::Undo(CommandError::Lost { page: running.there });
                    return Piece::GoesOn;
                }
                _ => running.there += 1,
            }
        }
        Piece::GoesOn
    }

    /// Begins to bring a page in.
    fn prefetch_page(&mut self, page: u64) -> Result<Brought, CommandError> {
        // Half of the flash's turns are left to faults.
        let fills_max = if self.has_bug(Bug::RangeInOneGo) { u64::MAX } else { u64::from(self.fills_max / 2).max(1) };
        if self.commands.fills >= fills_max {
            return Ok(Brought::Waits);
        }
        for _ in 0..PIECE_PAGES {
            match self.cache.prefetch(page) {
                Prefetched::Started(fill) if self.begin(fill, None) => {
                    if let Some(filling) = self.fills.get_mut(&fill.frame) {
                        filling.is_of_command = true;
                        self.commands.fills += 1;
                    }
                    self.brings_ahead = true;
                    return Ok(Brought::Begun);
                }
                // Its frame is held by a program that does not answer: another one.
                Prefetched::Started(_) => {}
                Prefetched::Present => return Ok(Brought::Present),
                Prefetched::Refused if self.leaving.is_empty() && self.fills.is_empty() => {
                    return Err(CommandError::NoFrame { page });
                }
                Prefetched::Refused => {
                    self.send_all_zaps();
                    return Ok(Brought::Waits);
                }
            }
        }
        self.retry = true;
        Ok(Brought::Waits)
    }

    fn pin_page(&mut self, mapper: MapperId, page: u64) -> Result<Brought, CommandError> {
        let brought = match self.cache.pin(page) {
            Ok(()) => Brought::Present,
            Err(CacheError::NotResident { .. }) => match self.prefetch_page(page)? {
                Brought::Waits => return Ok(Brought::Waits),
                brought => {
                    self.cache.pin(page)?;
                    brought
                }
            },
            Err(error) => return Err(error.into()),
        };
        if let Presence::Filling { frame } = self.cache.presence(page)
            && let Some(filling) = self.fills.get_mut(&frame)
        {
            filling.is_pinned = true;
        }
        *self.commands.pins_of(mapper).entry(page).or_default() += 1;
        Ok(brought)
    }
}
