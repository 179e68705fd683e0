//! What a mapper and the device say to each other: entries of a ring, and the two lines of a lane.
//!
//! A *lane* carries one fault at a time. The mapper writes page and time into its line and then the fault's number;
//! the device writes the answer into the other line and then the same number. Everything else goes over two rings of
//! entries of eight words, whose first word has the kind in bits 56 to 62. Before all that the device says who it is,
//! or why it lets nobody in: a [`Welcome`].

use std::ops::Range;

use osier_cache::{CommandError as CacheError, POLICIES, ParameterValues, PolicyError, check_policy};

use super::control::{CommandError, Report};
use super::leave::ZAP_PAGES_MAX;
use super::{Command, Grant, WindowStats};

/// An entry of a ring, or a line of a lane.
pub type Words = [u64; 8];

/// Version of what follows; both sides must have the same.
pub const VERSION: u64 = 6;
/// Lanes of a mapper: faults that it may have under way.
pub const LANES: usize = 64;
/// Bytes of a lane: the mapper's line and the device's.
pub const LANE_BYTES: u64 = 128;
/// Entries of each ring.
pub const RING_ENTRIES: usize = 1024;

/// Offset of the word in which a program says how many lanes it ever used.
pub const LANES_USED_AT: u64 = 0;
/// Offset of the device's figures.
pub const FIGURES_AT: u64 = 8;
/// Offset of the word in which a program says that whoever faults unmaps, so that the thread for that need not be woken
/// at once.
pub const HELPS_AT: u64 = 128;
/// Offset of the word in which a program sums up, in nanoseconds, what samples have cost it.
pub const SAMPLING_AT: u64 = 136;
/// Offset of the word that says on which processor the device runs, counted from 1.
pub const PROCESSOR_AT: u64 = 192;
/// Parameters of a policy that an entry has room for.
const PARAMETERS_MAX: usize = 5;

/// Bytes of a [`Welcome`].
pub const WELCOME_BYTES: usize = 128;
/// Its first word.
const GREETING: u64 = u64::from_le_bytes(*b"OSIRWIN1");
/// Where its text begins.
const TEXT_AT: usize = 56;

const KIND_SHIFT: u32 = 56;
/// Of a zap, beside the count of its pages.
const SAMPLE_SHIFT: u32 = 8;
const MORE_MASK: u64 = u8::MAX as u64;
const TAG_MASK: u64 = u32::MAX as u64;
const ZAP: u64 = 1;
const DONE: u64 = 2;
const ACKNOWLEDGE: u64 = 3;
const DETACH: u64 = 4;
const PREFETCH: u64 = 5;
const PIN: u64 = 6;
const UNPIN: u64 = 7;
const EVICT: u64 = 8;
const POLICY: u64 = 9;

/// What the device says to who attaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// Pages of the window.
    pub pages: u64,
    /// Frames of the cache.
    pub frames: u64,
    /// Nanoseconds of a load that hits the device's cache, over an idle link.
    pub hit_ns: u64,
    /// The device's name, or why it does not let the program in; cut to what there is room for.
    pub text: Result<String, String>,
}

impl Welcome {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; WELCOME_BYTES] {
        let (status, text) = match &self.text {
            Ok(name) => (0, name),
            Err(why) => (1, why),
        };
        let room = text.len().min(WELCOME_BYTES - TEXT_AT);
        let length = (0..=room).rev().find(|length| text.is_char_boundary(*length)).unwrap_or(0);
        let mut bytes = [0; WELCOME_BYTES];
        let words = [GREETING, VERSION, status, self.pages, self.frames, length as u64, self.hit_ns];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[TEXT_AT..TEXT_AT + length].copy_from_slice(&text.as_bytes()[..length]);
        bytes
    }

    /// From bytes; nothing if they are of something else, or of another version.
    #[must_use]
    pub fn decode(bytes: &[u8; WELCOME_BYTES]) -> Option<Welcome> {
        let word =
            |index: usize| bytes[index * 8..][..8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        if word(0) != GREETING || word(1) != VERSION {
            return None;
        }
        let length = usize::try_from(word(5)).ok()?;
        let text = bytes[TEXT_AT..].get(..length)?;
        let text = String::from_utf8_lossy(text).into_owned();
        let text = if word(2) == 0 { Ok(text) } else { Err(text) };
        Some(Welcome { pages: word(3), frames: word(4), hit_ns: word(6), text })
    }
}

/// How it is known which pages a program stored to, of those that it had mapped for loads: by its page tables, which
/// keep a mark where one was unmapped that was not stored to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marks {
    /// There are none: each may have been stored to.
    None,
    /// They are found by `PAGEMAP_SCAN`.
    Scanned,
    /// They are read from its `/proc/self/pagemap`: the kernel is older.
    Read,
    /// The same, but stores of the moment in which a page was mapped leave the mark: its bytes tell.
    ReadAndCompared,
}

/// Bytes of a [`PageTables`].
pub const PAGE_TABLES_BYTES: usize = 16;

/// What a program says once, beside a descriptor of its `/proc/self/pagemap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageTables {
    /// Where the window's first page is in its memory, or would be.
    pub origin: u64,
    /// What is in them.
    pub marks: Marks,
}

impl PageTables {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PAGE_TABLES_BYTES] {
        let marks: u128 = match self.marks {
            Marks::None => 0,
            Marks::Scanned => 1,
            Marks::Read => 2,
            Marks::ReadAndCompared => 3,
        };
        (marks << 64 | u128::from(self.origin)).to_le_bytes()
    }

    /// From bytes; nothing if they say nothing that there is.
    #[must_use]
    pub fn decode(bytes: [u8; PAGE_TABLES_BYTES]) -> Option<PageTables> {
        let words = u128::from_le_bytes(bytes);
        let marks = match words >> 64 {
            0 => Marks::None,
            1 => Marks::Scanned,
            2 => Marks::Read,
            3 => Marks::ReadAndCompared,
            _ => return None,
        };
        Some(PageTables { origin: words as u64, marks })
    }
}

/// Figures of the device that every program can read, about a millisecond old. Pages, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Faults of all programs.
    pub faults: u64,
    /// Of these, those that brought a page in from the flash.
    pub misses: u64,
    /// Pages that left the cache.
    pub left: u64,
    /// Of these, those that were dirty and were programmed.
    pub left_dirty: u64,
    /// Pages in the cache.
    pub resident: u64,
    /// Frames of the cache.
    pub frames: u64,
    /// Faults that found a page whose bytes the flash has lost.
    pub lost: u64,
    /// Pages that the host side programmed.
    pub flash_written: u64,
    /// Pages that collection moved.
    pub flash_moved: u64,
    /// Superblocks that were erased.
    pub superblocks_erased: u64,
    /// Faults that had to wait for a frame.
    pub blocked: u64,
    /// Dirty pages that the flash refused because it is worn out: lost.
    pub dropped: u64,
    /// Of the pages that were drawn and unmapped for a sample, those that were used within a period.
    pub samples_used: u64,
    /// All of these that were used or not.
    pub samples: u64,
}

/// Words of the figures.
pub const FIGURES: usize = 14;

impl Figures {
    /// As the words that programs read.
    #[must_use]
    pub fn encode(&self) -> [u64; FIGURES] {
        let Figures { faults, misses, left, left_dirty, resident, frames, .. } = *self;
        let Figures { lost, flash_written, flash_moved, superblocks_erased, blocked, dropped, .. } = *self;
        let Figures { samples_used, samples, .. } = *self;
        [
            faults,
            misses,
            left,
            left_dirty,
            resident,
            frames,
            lost,
            flash_written,
            flash_moved,
            superblocks_erased,
            blocked,
            dropped,
            samples_used,
            samples,
        ]
    }

    /// From those words.
    #[must_use]
    pub fn decode(words: [u64; FIGURES]) -> Figures {
        let [faults, misses, left, left_dirty, resident, frames, more @ ..] = words;
        let [lost, flash_written, flash_moved, superblocks_erased, blocked, dropped, samples_used, samples] = more;
        let own =
            Figures { faults, misses, left, left_dirty, resident, frames, samples_used, samples, ..Figures::default() };
        Figures { lost, flash_written, flash_moved, superblocks_erased, blocked, dropped, ..own }
    }
}

impl From<&WindowStats> for Figures {
    fn from(stats: &WindowStats) -> Figures {
        let WindowStats { counts, samples, flash, resident, frames, .. } = stats;
        Figures {
            faults: counts.faults,
            misses: counts.misses,
            left: counts.left,
            left_dirty: counts.left_dirty,
            resident: *resident,
            frames: *frames,
            lost: counts.lost,
            flash_written: flash.units_written,
            flash_moved: flash.units_moved,
            superblocks_erased: flash.superblocks_erased,
            blocked: counts.blocked,
            dropped: counts.dropped,
            samples_used: samples.used,
            samples: samples.samples(),
        }
    }
}

/// The mapper's line of a lane, beside the number in word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The page.
    pub page: u64,
    /// Whether the access stores.
    pub is_store: bool,
    /// When it faulted, by the monotonic clock.
    pub at_ns: u64,
    /// How many of the pages that follow may be mapped with it, at most.
    pub more_max: u8,
}

impl Ask {
    /// The line, without its number.
    #[must_use]
    pub fn encode(&self) -> Words {
        [0, self.page, u64::from(self.is_store), self.at_ns, self.more_max.into(), 0, 0, 0]
    }

    /// What a line says.
    #[must_use]
    pub fn decode(words: &Words) -> Ask {
        Ask { page: words[1], is_store: words[2] & 1 == 1, at_ns: words[3], more_max: (words[4] & MORE_MASK) as u8 }
    }
}

/// The device's line of a lane, beside the number in word 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// When the page may be mapped, by the monotonic clock.
    pub due_ns: u64,
    /// As what.
    pub grant: Grant,
    /// When the device took the fault, and when it had answered: what is lost on the way, and what in the device.
    pub taken_ns: u64,
    /// See above.
    pub answered_ns: u64,
    /// How many of the pages that follow may be mapped with it, so that a store leaves a trace.
    pub more: u8,
    /// It faulted because it was drawn for a sample.
    pub is_sample: bool,
}

impl Reply {
    /// The line, without its number.
    #[must_use]
    pub fn encode(&self) -> Words {
        let grant = match self.grant {
            Grant::Writable => 1,
            Grant::Armed => 2,
            Grant::Lost => 3,
            Grant::NoSuchPage => 4,
        };
        [0, self.due_ns, grant, self.taken_ns, self.answered_ns, self.more.into(), self.is_sample.into(), 0]
    }

    /// What a line says; nothing if it says nothing that there is.
    #[must_use]
    pub fn decode(words: &Words) -> Option<Reply> {
        let grant = match words[2] {
            1 => Grant::Writable,
            2 => Grant::Armed,
            3 => Grant::Lost,
            4 => Grant::NoSuchPage,
            _ => return None,
        };
        let more = (words[5] & MORE_MASK) as u8;
        let is_sample = words[6] & 1 == 1;
        Some(Reply { due_ns: words[1], grant, taken_ns: words[3], answered_ns: words[4], more, is_sample })
    }
}

/// What the device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToMapper {
    /// Unmap these pages, and acknowledge.
    Zap {
        /// How many of `pages`.
        count: usize,
        /// The pages.
        pages: [u64; ZAP_PAGES_MAX],
        /// They stay in the cache: a sample.
        is_sample: bool,
    },
    /// A command has ended.
    Done {
        /// Which.
        tag: u32,
        /// What came of it.
        result: Result<Report, Refusal>,
    },
}

/// Why a command was not done, as far as a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Beyond the end.
    #[error("pages {first} to {end} are not all in the window")]
    OutOfRange {
        /// First page.
        first: u64,
        /// One past the last.
        end: u64,
    },
    /// Too many commands wait.
    #[error("as many commands wait as may; try again when one has ended")]
    TooMany,
    /// As many pages are pinned as may be; this command has pinned none.
    #[error("page {page} cannot be pinned: {max} pages are, which is the most; unpin some, or pin fewer")]
    PinLimit {
        /// The page.
        page: u64,
        /// The limit.
        max: u64,
    },
    /// Too few frames are left for other pages; this command has pinned none.
    #[error("page {page} cannot be pinned: no frame would be left for other pages; unpin some, or pin fewer")]
    NoFrame {
        /// The page.
        page: u64,
    },
    /// The flash has lost a page.
    #[error("page {page} cannot be pinned: the flash has lost its bytes; restore them from a copy")]
    Lost {
        /// The page.
        page: u64,
    },
    /// The device does not know the command, or what it names.
    #[error("the device does not know the command or the policy; is it of the same version?")]
    Unknown,
}

impl From<&CommandError> for Refusal {
    fn from(error: &CommandError) -> Refusal {
        match *error {
            CommandError::OutOfRange { first, end, .. } => Refusal::OutOfRange { first, end },
            CommandError::TooMany => Refusal::TooMany,
            CommandError::Cache(CacheError::PinLimit { page, max }) => Refusal::PinLimit { page, max: max.into() },
            CommandError::Cache(CacheError::SetPinned { page } | CacheError::PinCount { page, .. })
            | CommandError::NoFrame { page } => Refusal::NoFrame { page },
            CommandError::Lost { page } => Refusal::Lost { page },
            CommandError::Cache(_) | CommandError::Policy(_) => Refusal::Unknown,
        }
    }
}

impl ToMapper {
    /// The entry.
    ///
    /// # Panics
    /// When a zap names more pages than an entry has room for.
    #[must_use]
    pub fn encode(&self) -> Words {
        let mut words = [0; 8];
        match self {
            ToMapper::Zap { count, pages, is_sample } => {
                words[0] = ZAP << KIND_SHIFT | u64::from(*is_sample) << SAMPLE_SHIFT | *count as u64;
                words[1..].copy_from_slice(pages);
            }
            ToMapper::Done { tag, result } => {
                words[0] = DONE << KIND_SHIFT | u64::from(*tag);
                let (code, a, b) = match *result {
                    Ok(Report { done, idle, refused }) => {
                        words[4] = refused;
                        (0, done, idle)
                    }
                    Err(Refusal::OutOfRange { first, end }) => (1, first, end),
                    Err(Refusal::TooMany) => (2, 0, 0),
                    Err(Refusal::PinLimit { page, max }) => (3, page, max),
                    Err(Refusal::NoFrame { page }) => (4, page, 0),
                    Err(Refusal::Lost { page }) => (5, page, 0),
                    Err(Refusal::Unknown) => (6, 0, 0),
                };
                (words[1], words[2], words[3]) = (code, a, b);
            }
        }
        words
    }

    /// What an entry says; nothing if it says nothing that there is.
    #[must_use]
    pub fn decode(words: &Words) -> Option<ToMapper> {
        match words[0] >> KIND_SHIFT {
            ZAP => {
                let count = (words[0] & 0xff) as usize;
                let is_sample = words[0] >> SAMPLE_SHIFT & 1 == 1;
                let pages = words[1..].try_into().ok()?;
                (count <= ZAP_PAGES_MAX).then_some(ToMapper::Zap { count, pages, is_sample })
            }
            DONE => {
                let (a, b) = (words[2], words[3]);
                let result = match words[1] {
                    0 => Ok(Report { done: a, idle: b, refused: words[4] }),
                    1 => Err(Refusal::OutOfRange { first: a, end: b }),
                    2 => Err(Refusal::TooMany),
                    3 => Err(Refusal::PinLimit { page: a, max: b }),
                    4 => Err(Refusal::NoFrame { page: a }),
                    5 => Err(Refusal::Lost { page: a }),
                    _ => Err(Refusal::Unknown),
                };
                Some(ToMapper::Done { tag: (words[0] & TAG_MASK) as u32, result })
            }
            _ => None,
        }
    }
}

/// What a mapper says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToDevice {
    /// The pages of the oldest zap are not mapped any more.
    Acknowledge,
    /// Nothing is mapped any more, and nothing will be.
    Detach,
    /// A command, and the mapper's name for it.
    Command(u32, Command),
}

impl ToDevice {
    /// The entry.
    ///
    /// # Errors
    /// A policy that there is not, or that cannot have these parameters.
    pub fn encode(&self) -> Result<Words, PolicyError> {
        let mut words = [0; 8];
        let (kind, low) = match self {
            ToDevice::Acknowledge => (ACKNOWLEDGE, 0),
            ToDevice::Detach => (DETACH, 0),
            ToDevice::Command(tag, command) => {
                let kind = match command {
                    Command::Prefetch(_) => PREFETCH,
                    Command::Pin(_) => PIN,
                    Command::Unpin(_) => UNPIN,
                    Command::Evict(_) => EVICT,
                    Command::Policy { .. } => POLICY,
                };
                match command {
                    Command::Prefetch(pages) | Command::Pin(pages) | Command::Unpin(pages) | Command::Evict(pages) => {
                        (words[1], words[2]) = (pages.start, pages.end);
                    }
                    Command::Policy { name, parameters } => encode_policy(&mut words, name, parameters)?,
                }
                (kind, u64::from(*tag))
            }
        };
        words[0] = kind << KIND_SHIFT | low;
        Ok(words)
    }

    /// What an entry says; the tag of a command that is none, if it has one.
    ///
    /// # Errors
    /// The tag, to be answered with [`Refusal::Unknown`].
    pub fn decode(words: &Words) -> Result<ToDevice, u32> {
        let tag = (words[0] & TAG_MASK) as u32;
        let pages: Range<u64> = words[1]..words[2];
        let command = match words[0] >> KIND_SHIFT {
            ACKNOWLEDGE => return Ok(ToDevice::Acknowledge),
            DETACH => return Ok(ToDevice::Detach),
            PREFETCH => Command::Prefetch(pages),
            PIN => Command::Pin(pages),
            UNPIN => Command::Unpin(pages),
            EVICT => Command::Evict(pages),
            POLICY => decode_policy(words).ok_or(tag)?,
            _ => return Err(tag),
        };
        Ok(ToDevice::Command(tag, command))
    }
}

/// A policy by its number, a bit for each parameter that is given, and their values, in the policy's order.
fn encode_policy(words: &mut Words, name: &str, parameters: &ParameterValues) -> Result<(), PolicyError> {
    let policy = check_policy(name, parameters)?;
    words[1] = POLICIES.iter().take_while(|other| other.name != policy.name).count() as u64;
    for (index, parameter) in policy.parameters.iter().enumerate() {
        if let Some(value) = parameters.get(parameter.name) {
            words[2] |= 1 << index;
            words[3 + index] = *value;
        }
    }
    Ok(())
}

fn decode_policy(words: &Words) -> Option<Command> {
    let policy = POLICIES.get(usize::try_from(words[1]).ok()?)?;
    if words[2] >> policy.parameters.len() != 0 {
        return None;
    }
    let given =
        policy.parameters.iter().take(PARAMETERS_MAX).enumerate().filter(|(index, _)| words[2] >> index & 1 == 1);
    let parameters = given.map(|(index, parameter)| (parameter.name.to_owned(), words[3 + index])).collect();
    Some(Command::Policy { name: policy.name.to_owned(), parameters })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_they_were() {
        let report = Report { done: 7, idle: 8, refused: 9 };
        let refusals = [
            Refusal::OutOfRange { first: 1, end: 2 },
            Refusal::TooMany,
            Refusal::PinLimit { page: 3, max: 4 },
            Refusal::NoFrame { page: 5 },
            Refusal::Lost { page: 6 },
            Refusal::Unknown,
        ];
        let results = refusals.into_iter().map(Err).chain([Ok(report)]);
        let dones = results.map(|result| ToMapper::Done { tag: u32::MAX, result });
        for message in dones.chain([false, true].map(|is_sample| ToMapper::Zap {
            count: 7,
            pages: [1, 2, 3, 4, 5, 6, u64::MAX],
            is_sample,
        })) {
            assert_eq!(ToMapper::decode(&message.encode()), Some(message));
        }
        let policy = |word: &str| {
            let (name, parameters) = osier_cache::parse_policy(word).unwrap();
            Command::Policy { name: name.to_owned(), parameters }
        };
        let commands = [
            Command::Prefetch(1..2),
            Command::Pin(3..4),
            Command::Unpin(5..6),
            Command::Evict(7..8),
            policy("sieve"),
            policy("s3-fifo:ghost_permille=7"),
            policy("s3-fifo:small_permille=1,ghost_permille=2,promote_uses=3"),
        ];
        let commands = commands.into_iter().map(|command| ToDevice::Command(u32::MAX, command));
        for message in commands.chain([ToDevice::Detach, ToDevice::Acknowledge]) {
            let words = message.encode().unwrap();
            assert_eq!(words[0] >> 63, 0, "the bit belongs to the ring");
            assert_eq!(ToDevice::decode(&words), Ok(message));
        }
        for grant in [Grant::Writable, Grant::Armed, Grant::Lost, Grant::NoSuchPage] {
            let is_sample = grant == Grant::Armed;
            let reply = Reply { due_ns: u64::MAX, grant, taken_ns: 3, answered_ns: 4, more: 255, is_sample };
            assert_eq!(Reply::decode(&reply.encode()), Some(reply));
        }
        let ask = Ask { page: 5, is_store: true, at_ns: 6, more_max: 15 };
        assert_eq!(Ask::decode(&ask.encode()), ask);
    }

    #[test]
    fn a_welcome_is_what_it_was_and_nothing_else_is_one() {
        let long = "é".repeat(100);
        for (text, kept) in [(Ok("cylon".to_owned()), 5), (Err("no room".to_owned()), 7), (Ok(long), 72)] {
            let welcome = Welcome { pages: 3, frames: 2, hit_ns: 4, text };
            let found = Welcome::decode(&welcome.encode()).unwrap();
            assert_eq!((found.pages, found.frames, found.hit_ns), (3, 2, 4));
            assert_eq!(found.text.is_ok(), welcome.text.is_ok());
            let (was, is) = (welcome.text.unwrap_or_else(|why| why), found.text.unwrap_or_else(|why| why));
            assert!(was.starts_with(&is) && is.len() == kept, "{is}");
        }
        let mut bytes = Welcome { pages: 1, frames: 1, hit_ns: 1, text: Ok(String::new()) }.encode();
        bytes[40..48].fill(255);
        assert_eq!(Welcome::decode(&bytes), None, "its text would reach beyond it");
        bytes[8] ^= 1;
        assert_eq!(Welcome::decode(&bytes), None, "another version");
        assert_eq!(Welcome::decode(&[0; WELCOME_BYTES]), None);
    }

    #[test]
    fn page_tables_are_what_they_were() {
        for marks in [Marks::None, Marks::Scanned, Marks::Read, Marks::ReadAndCompared] {
            let tables = PageTables { origin: u64::MAX - 4095, marks };
            assert_eq!(PageTables::decode(tables.encode()), Some(tables));
        }
        assert_eq!(PageTables::decode([4; PAGE_TABLES_BYTES]), None);
    }

    #[test]
    fn figures_are_what_they_were_and_policies_fit_into_an_entry() {
        let words = std::array::from_fn(|index| index as u64 + 1);
        assert_eq!(Figures::decode(words).encode(), words);
        assert!(POLICIES.iter().all(|policy| policy.parameters.len() <= PARAMETERS_MAX));
        for word in ["nonsense", "sieve:small_permille=3", "s3-fifo:small_permille=0"] {
            let (name, parameters) = osier_cache::parse_policy(word).unwrap();
            let expected = check_policy(name, &parameters).unwrap_err();
            let command = Command::Policy { name: name.to_owned(), parameters };
            assert_eq!(ToDevice::Command(1, command).encode(), Err(expected));
        }
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        assert_eq!(ToDevice::decode(&[POLICY << KIND_SHIFT | 3, 0, 1 << 5, 0, 0, 0, 0, 0]), Err(3));
        assert_eq!(ToDevice::decode(&[0; 8]), Err(0));
        assert_eq!(ToDevice::decode(&[POLICY << KIND_SHIFT | 3, 1 << 40, 0, 0, 0, 0, 0, 0]), Err(3));
        assert_eq!(ToMapper::decode(&[ZAP << KIND_SHIFT | 8, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(ToMapper::decode(&[0x7f << KIND_SHIFT, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Reply::decode(&[0; 8]), None);
    }
}
