//! Commands about pages: prefetch, pin, unpin, evict; and another policy.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use osier_cache::{CommandError as CacheError, ParameterValues, PolicyError, Prefetched, Presence, policy};
use osier_flash::Nanos;

use super::{MapperId, Misuse, Output, Resident, Window};

/// What a program may ask of the cache. Pages are counted from the window's first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Brings pages in. Ends when they are there.
    Prefetch(Range<u64>),
    /// Brings pages in and keeps them until as many unpins have come: all of them or none. Ends when they are there.
    Pin(Range<u64>),
    /// Takes one pin off each page that has one.
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
    #[error("{COMMANDS_MAX} commands wait, the most that may; try again when one has ended")]
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

/// Most commands that wait at a time.
pub const COMMANDS_MAX: usize = 1024;

/// A prefetch or a pin that goes on.
#[derive(Clone, Debug)]
struct Bringing {
    mapper: MapperId,
    tag: u32,
    pins: bool,
    pages: Range<u64>,
    /// The first page that was not begun.
    next: u64,
    /// The first page that has not been seen to be there.
    there: u64,
    report: Report,
}

/// An eviction whose pages have not all left.
#[derive(Clone, Copy, Debug)]
struct Evicting {
    mapper: MapperId,
    tag: u32,
    left: u64,
    report: Report,
}

/// Commands under way.
#[derive(Debug, Default)]
pub(super) struct Commands {
    bringing: VecDeque<Bringing>,
    evicting: BTreeMap<u32, Evicting>,
    next: u32,
}

impl Commands {
    pub(super) fn are_waiting(&self) -> bool {
        !self.bringing.is_empty() || !self.evicting.is_empty()
    }

    /// Nobody waits for the commands of this mapper any more. What they pinned stays pinned: pins belong to the window.
    pub(super) fn forget(&mut self, mapper: MapperId) {
        self.bringing.retain(|bringing| bringing.mapper != mapper);
        self.evicting.retain(|_, evicting| evicting.mapper != mapper);
    }
}

/// How far a step of a command came.
enum Step {
    Ended(Result<Report, CommandError>),
    Waits,
}

impl<R: Resident> Window<R> {
    /// A program asks for something; the end comes as [`Output::Done`] with its `tag`.
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
        self.go_on_with_commands();
        Ok(())
    }

    fn begin_command(&mut self, mapper: MapperId, tag: u32, command: Command) -> Result<(), CommandError> {
        match command {
            Command::Prefetch(pages) => self.bring(mapper, tag, false, pages)?,
            Command::Pin(pages) => self.bring(mapper, tag, true, pages)?,
            Command::Unpin(pages) => {
                let report = self.unpin(&self.checked(pages)?);
                self.end_command(mapper, tag, Ok(report));
            }
            Command::Evict(pages) => {
                let pages = self.checked(pages)?;
                self.evict(mapper, tag, pages);
            }
            Command::Policy { name, parameters } => {
                let policy = policy(&name, self.cache.shape(), &parameters, 0)?;
                self.cache.set_policy(policy);
                self.end_command(mapper, tag, Ok(Report { done: 1, ..Report::default() }));
            }
        }
        Ok(())
    }

    fn checked(&self, pages: Range<u64>) -> Result<Range<u64>, CommandError> {
        if pages.start <= pages.end && pages.end <= self.pages {
            return Ok(pages);
        }
        Err(CommandError::OutOfRange { first: pages.start, end: pages.end, pages: self.pages })
    }

    fn end_command(&mut self, mapper: MapperId, tag: u32, result: Result<Report, CommandError>) {
        self.outputs.push_back(Output::Done { mapper, tag, at: self.now, result });
    }

    fn bring(&mut self, mapper: MapperId, tag: u32, pins: bool, pages: Range<u64>) -> Result<(), CommandError> {
        let pages = self.checked(pages)?;
        if self.commands.bringing.len() >= COMMANDS_MAX {
            return Err(CommandError::TooMany);
        }
        let (next, there) = (pages.start, pages.start);
        let report = Report::default();
        self.commands.bringing.push_back(Bringing { mapper, tag, pins, pages, next, there, report });
        Ok(())
    }

    fn unpin(&mut self, pages: &Range<u64>) -> Report {
        let mut report = Report::default();
        for page in pages.clone() {
            match self.cache.unpin(page) {
                Ok(()) => report.done += 1,
                Err(_) => report.idle += 1,
            }
        }
        self.retry = true;
        report
    }

    fn evict(&mut self, mapper: MapperId, tag: u32, pages: Range<u64>) {
        let id = self.commands.next;
        self.commands.next = id.wrapping_add(1);
        // One more, so that the command does not end while its pages are begun.
        self.commands.evicting.insert(id, Evicting { mapper, tag, left: 1, report: Report::default() });
        for page in pages {
            let evicted = self.cache.evict(page);
            let Some(evicting) = self.commands.evicting.get_mut(&id) else { return };
            match evicted {
                Ok(evicted) => {
                    evicting.left += 1;
                    evicting.report.done += 1;
                    let was = std::mem::take(&mut self.mapped[evicted.frame as usize]);
                    self.leave(page, was, None, Some(id));
                }
                Err(CacheError::NotResident { .. }) => evicting.report.idle += 1,
                Err(_) => evicting.report.refused += 1,
            }
        }
        self.send_all_zaps();
        self.command_page_left(id);
    }

    /// A page that a command evicted has left.
    pub(super) fn command_page_left(&mut self, id: u32) {
        // It is gone with its mapper.
        let Some(evicting) = self.commands.evicting.get_mut(&id) else { return };
        evicting.left -= 1;
        if evicting.left == 0 {
            let Evicting { mapper, tag, report, .. } = *evicting;
            self.commands.evicting.remove(&id);
            self.end_command(mapper, tag, Ok(report));
        }
    }

    /// Commands that bring pages in go on, one after the other.
    pub(super) fn go_on_with_commands(&mut self) {
        while let Some(mut bringing) = self.commands.bringing.pop_front() {
            match self.step(&mut bringing) {
                Step::Ended(result) => self.end_command(bringing.mapper, bringing.tag, result),
                Step::Waits => {
                    self.commands.bringing.push_front(bringing);
                    break;
                }
            }
        }
    }

    fn step(&mut self, bringing: &mut Bringing) -> Step {
        while bringing.next < bringing.pages.end {
            let page = bringing.next;
            match if bringing.pins { self.pin_page(page) } else { self.prefetch_page(page) } {
                Ok(Some(begun)) if begun || bringing.pins => bringing.report.done += 1,
                Ok(Some(_)) => bringing.report.idle += 1,
                Ok(None) => return Step::Waits,
                Err(CommandError::NoFrame { .. }) if !bringing.pins => bringing.report.refused += 1,
                Err(error) => {
                    self.unpin(&(bringing.pages.start..page));
                    return Step::Ended(Err(error));
                }
            }
            bringing.next += 1;
        }
        while bringing.there < bringing.pages.end {
            match self.cache.presence(bringing.there) {
                Presence::Filling { .. } => return Step::Waits,
                Presence::Absent if bringing.pins => {
                    self.unpin(&bringing.pages.clone());
                    return Step::Ended(Err(CommandError::Lost { page: bringing.there }));
                }
                _ => bringing.there += 1,
            }
        }
        Step::Ended(Ok(bringing.report))
    }

    /// Begins to bring a page in: whether it had to; nothing if it has to be tried again.
    fn prefetch_page(&mut self, page: u64) -> Result<Option<bool>, CommandError> {
        match self.cache.prefetch(page) {
            Prefetched::Started(fill) => {
                self.brings_ahead = true;
                self.begin(fill, None);
            }
            Prefetched::Present => return Ok(Some(false)),
            Prefetched::Refused if self.leaving.is_empty() && self.fills.is_empty() => {
                return Err(CommandError::NoFrame { page });
            }
            Prefetched::Refused => {
                self.send_all_zaps();
                return Ok(None);
            }
        }
        Ok(Some(true))
    }

    fn pin_page(&mut self, page: u64) -> Result<Option<bool>, CommandError> {
        match self.cache.pin(page) {
            Ok(()) => Ok(Some(false)),
            Err(CacheError::NotResident { .. }) => match self.prefetch_page(page)? {
                Some(begun) => {
                    self.cache.pin(page)?;
                    Ok(Some(begun))
                }
                None => Ok(None),
            },
            Err(error) => Err(error.into()),
        }
    }
}
