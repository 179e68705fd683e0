//! The log of written lines in front of the page cache (SkyByte, Zhang and others, HPCA 2025, arXiv 2501.10682: the
//! write log and its compaction). The index is this crate's own: SkyByte's has two levels of tables.
//!
//! A store of a cacheline to a page that is not resident would cost a page read from flash, and later a page
//! written, for 64 bytes. The log takes the line instead. An index finds it again; a page that comes in later is
//! merged with its lines; and once half of the log is full, it is compacted: all lines of one page are written
//! together.
//!
//! There are two halves, as in SkyByte: one takes lines while the other is compacted, page by page in the order of
//! each page's first line. With the log, pages in the cache are never dirty: what they have more than flash is in
//! the log.
//!
//! The log holds no bytes: line `n` of half `h` is where the caller's memory has it. An entry of the index costs 24
//! bytes for each line that the log has room for, and 32 for each of as many pages: 56 bytes a line.

use crate::config::{LINES_PER_PAGE_MAX, WriteLogConfig};
use crate::error::ConfigError;
use crate::table::Table;

/// Every line of a page of whatever size.
pub const ALL_LINES: u64 = u64::MAX;

/// Where the newest bytes of a line are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSlot {
    /// Which half, 0 or 1.
    pub half: u8,
    /// Which of its lines.
    pub slot: u32,
}

/// A page to be written: the lines that one half of the log has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The page.
    pub page: u64,
    /// Which half is being compacted.
    pub half: u8,
    /// One bit for each line that this half has; the others come from the cache or from flash.
    pub lines: u64,
}

/// What a log counts since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Lines appended.
    pub lines: u64,
    /// Of these, lines that the same half had before: their write is saved.
    pub overwritten: u64,
    /// Pages whose compaction is done.
    pub pages_compacted: u64,
    /// Lines that went with them.
    pub lines_compacted: u64,
    /// Appends refused because both halves were full.
    pub refused: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct WriteLog {
    halves: [Half; 2],
    /// The half that takes lines.
    active: usize,
    lines_per_page: u32,
    /// The lines that a page has.
    page_mask: u64,
    stats: LogStats,
}

#[derive(Clone, Debug)]
struct Half {
    /// From line to slot; a line is numbered `page * 64 + line`.
    slots: Table,
    /// The line in each slot that was filled.
    lines: Vec<u64>,
    /// From page to entry of `pages`.
    index: Table,
    /// Pages by their first line.
    pages: Vec<LoggedPage>,
    /// The entry that is compacted next.
    next: usize,
    capacity: usize,
}

#[derive(Clone, Copy, Debug)]
struct LoggedPage {
    page: u64,
    lines: u64,
}

impl Half {
    fn new(capacity: u32) -> Self {
        let entries = capacity as usize;
        Self {
            slots: Table::new(capacity),
            lines: Vec::with_capacity(entries),
            index: Table::new(capacity),
            pages: Vec::with_capacity(entries),
            next: 0,
            capacity: entries,
        }
    }

    fn entry(&self, page: u64) -> Option<u32> {
        self.index.get(page, |entry| self.pages[entry as usize].page == page)
    }

    fn slot(&self, line: u64) -> Option<u32> {
        self.slots.get(line, |slot| self.lines[slot as usize] == line)
    }

    /// The lines that it has of a page and that were not yet compacted.
    fn lines_of(&self, page: u64) -> u64 {
        let entry = self.entry(page).filter(|entry| *entry as usize >= self.next);
        entry.map_or(0, |entry| self.pages[entry as usize].lines)
    }

    /// Appends lines that there is room for; says how many were there before.
    fn append(&mut self, page: u64, lines: u64) -> u32 {
        let entry = self.entry(page).unwrap_or_else(|| {
            let entry = self.pages.len() as u32;
            self.pages.push(LoggedPage { page, lines: 0 });
            self.index.insert(page, entry);
            entry
        });
        let known = &mut self.pages[entry as usize].lines;
        let overwritten = (*known & lines).count_ones();
        *known |= lines;
        for bit in bits(lines) {
            let (line, slot) = (line_number(page, bit), self.lines.len() as u32);
            if let Some(old) = self.slot(line) {
                self.slots.remove(line, old);
            }
            self.lines.push(line);
            self.slots.insert(line, slot);
        }
        overwritten
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.lines.clear();
        self.index.clear();
        self.pages.clear();
        self.next = 0;
    }
}

fn line_number(page: u64, line: u32) -> u64 {
    page.wrapping_mul(u64::from(LINES_PER_PAGE_MAX)).wrapping_add(u64::from(line))
}

/// The numbers of the set bits, from the lowest.
fn bits(mask: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| mask >> bit & 1 == 1)
}

impl WriteLog {
    /// An empty log.
    ///
    /// # Errors
    /// Names the key that cannot work, and why.
    pub fn new(config: &WriteLogConfig) -> Result<Self, ConfigError> {
        config.check()?;
        let half = Half::new(config.lines_per_half);
        Ok(Self {
            halves: [half.clone(), half],
            active: 0,
            lines_per_page: config.lines_per_page,
            page_mask: ALL_LINES >> (u64::BITS - config.lines_per_page),
            stats: LogStats::default(),
        })
    }

    /// The counts.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        self.stats
    }

    /// Pages above this cannot be told apart from others by their lines.
    #[must_use]
    pub fn page_max(&self) -> u64 {
        u64::MAX / u64::from(LINES_PER_PAGE_MAX)
    }

    /// Appends the lines of a page whose bits are set; all or none. `false` means that both halves are full: compact
    /// first.
    ///
    /// # Panics
    /// When the page is above [`WriteLog::page_max`].
    pub fn append(&mut self, page: u64, lines: u64) -> bool {
        assert!(page <= self.page_max(), "page {page} is beyond the largest device");
        let lines = lines & self.page_mask;
        let count = lines.count_ones() as usize;
        if self.halves[self.active].lines.len() + count > self.halves[self.active].capacity && !self.seal() {
            self.stats.refused += 1;
            return false;
        }
        if count > 0 {
            self.stats.overwritten += u64::from(self.halves[self.active].append(page, lines));
            self.stats.lines += count as u64;
        }
        true
    }

    /// Lets the half that takes lines be compacted, and the other take lines. `false` means that the other is still
    /// being compacted.
    pub fn seal(&mut self) -> bool {
        let other = 1 - self.active;
        let is_empty = self.halves[other].lines.is_empty();
        if is_empty {
            self.active = other;
        }
        is_empty
    }

    /// Forgets the lines of a page. Their slots are taken until their half is compacted.
    pub fn forget(&mut self, page: u64) {
        for half in &mut self.halves {
            if let Some(entry) = half.entry(page) {
                half.pages[entry as usize].lines = 0;
            }
        }
    }

    /// The lines that the log has of a page.
    #[must_use]
    pub fn lines(&self, page: u64) -> u64 {
        self.halves[0].lines_of(page) | self.halves[1].lines_of(page)
    }

    /// Whether it has all these lines of a page.
    #[must_use]
    pub fn has(&self, page: u64, lines: u64) -> bool {
        let lines = lines & self.page_mask;
        self.lines(page) & lines == lines
    }

    /// Where the newest bytes of a line are, if the log has them.
    #[must_use]
    pub fn slot(&self, page: u64, line: u32) -> Option<LogSlot> {
        // What the active half has is newer.
        [self.active, 1 - self.active].into_iter().find_map(|half| {
            let of = &self.halves[half];
            let slot = of.slot(line_number(page, line)).filter(|_| of.lines_of(page) >> line & 1 == 1);
            slot.map(|slot| LogSlot { half: half as u8, slot })
        })
    }

    /// Where the bytes of a line are that a [`Compaction`] names.
    #[must_use]
    pub fn slot_of(&self, compaction: &Compaction, line: u32) -> Option<LogSlot> {
        let half = &self.halves[usize::from(compaction.half)];
        let slot = half.slot(line_number(compaction.page, line))?;
        Some(LogSlot { half: compaction.half, slot })
    }

    /// The page that is to be written next; the same until [`WriteLog::compacted`].
    #[must_use]
    pub fn next_compaction(&self) -> Option<Compaction> {
        let half = 1 - self.active;
        let of = &self.halves[half];
        of.pages.get(of.next).map(|logged| Compaction { page: logged.page, half: half as u8, lines: logged.lines })
    }

    /// The page of [`WriteLog::next_compaction`] is written.
    ///
    /// # Panics
    /// When there is none.
    pub fn compacted(&mut self) {
        let half = &mut self.halves[1 - self.active];
        let logged = half.pages.get(half.next).expect("a page is being compacted");
        self.stats.pages_compacted += 1;
        self.stats.lines_compacted += u64::from(logged.lines.count_ones());
        half.next += 1;
        if half.next == half.pages.len() {
            half.clear();
        }
    }

    /// Lines that could be appended now, in both halves.
    #[must_use]
    pub fn room(&self) -> u32 {
        let active = &self.halves[self.active];
        let other = &self.halves[1 - self.active];
        let other_room = if other.lines.is_empty() { other.capacity } else { 0 };
        (active.capacity - active.lines.len() + other_room) as u32
    }

    /// Lines of a page.
    #[must_use]
    pub fn lines_per_page(&self) -> u32 {
        self.lines_per_page
    }

    /// Whether these lines are the whole page.
    pub(crate) fn is_whole(&self, lines: u64) -> bool {
        lines & self.page_mask == self.page_mask
    }
}
