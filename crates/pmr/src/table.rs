//! The table of named objects: allocation over bytes that may stop being written at any store.
//!
//! Invariants:
//! 1. An entry whose last word is zero is free, whatever its other words hold.
//! 2. An entry becomes used, changes its owner, and becomes free by one store of that last word, which
//!    holds the state and the checksum. So a writer killed between two stores leaves the old table or the
//!    new one, and there is nothing to roll back: what a killed allocation wrote is a free entry's body.
//! 3. Space is whatever no used entry covers. Nothing else records it, so nothing can disagree.
//! 4. The bytes of a new object are zero before the entry is used: nothing of an earlier owner is seen.
//!
//! There is one writer; readers in other processes copy an entry, check it, and try again when it moved.

use crate::layout::{
    DATA_OFFSET, ENTRY_BYTES, ENTRY_WORDS, Entry, LINE_BYTES, ObjectKind, ObjectName, SERIAL_OFFSET, Side,
    TABLE_ENTRIES, TABLE_OFFSET, WATERMARK_OFFSET, watermark_decode, watermark_encode,
};

/// Times that a reader copies an entry that changes under it before it calls the entry damaged.
const READ_TRIES: u32 = 64;
/// Largest alignment of an object: a huge page of x86-64's second size.
pub(crate) const ALIGN_MAX: u64 = 1 << 30;

/// Words of a region, by offset from its start.
pub(crate) trait Words {
    fn load(&self, offset: u64) -> u64;
}

/// Words and bytes of a region that can be changed. Stores become visible in order.
pub(crate) trait Medium: Words {
    fn store(&self, offset: u64, value: u64);
    fn zero(&self, offset: u64, bytes: u64);
}

/// What a table entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slot {
    Free,
    Used(Entry),
    Damaged,
}

/// Something wrong that a check found. It changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    /// An entry with a wrong checksum or an impossible value.
    #[error("table entry {slot} is damaged: its checksum or a value in it is wrong")]
    DamagedEntry {
        /// Index in the table.
        slot: u32,
    },
    /// An object that lies outside the region or on its header.
    #[error("object {name} lies outside the region: {bytes} bytes at {offset}")]
    OutOfRange {
        /// The object.
        name: ObjectName,
        /// First byte.
        offset: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// Two objects that share bytes.
    #[error("objects {first} and {second} overlap")]
    Overlap {
        /// The object with the lower offset.
        first: ObjectName,
        /// The other one.
        second: ObjectName,
    },
    /// Two objects of one name.
    #[error("two objects are named {name}")]
    DuplicateName {
        /// The name.
        name: ObjectName,
    },
    /// The word that bounds old bytes is damaged; the allocator then wipes all that it hands out.
    #[error("the watermark word is damaged; new objects are wiped in full")]
    DamagedWatermark,
}

/// Why an allocation was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    Damaged { count: usize },
    NameTaken,
    TableFull,
    NoRoom { largest_gap_bytes: u64 },
    BadRequest(&'static str),
}

/// The table of a region of `region_bytes` over some medium.
pub(crate) struct Table<M> {
    pub(crate) medium: M,
    pub(crate) region_bytes: u64,
}

impl<M: Words> Table<M> {
    /// Reads one entry.
    pub(crate) fn read(&self, slot: u32) -> Slot {
        for _ in 0..READ_TRIES {
            let mut words = [0; ENTRY_WORDS];
            words[ENTRY_WORDS - 1] = self.medium.load(word_offset(slot, ENTRY_WORDS - 1));
            if words[ENTRY_WORDS - 1] == 0 {
                return Slot::Free;
            }
            for (index, word) in words.iter_mut().enumerate().take(ENTRY_WORDS - 1) {
                *word = self.medium.load(word_offset(slot, index));
            }
            // The checksum covers all words, so a mixture of two entries does not pass as one.
            if let Some(entry) = Entry::decode(&words) {
                return Slot::Used(entry);
            }
            std::hint::spin_loop();
        }
        Slot::Damaged
    }

    /// The used entries in the order of the table, with their slots.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, Entry)> {
        (0..TABLE_ENTRIES).filter_map(|slot| match self.read(slot) {
            Slot::Used(entry) => Some((slot, entry)),
            Slot::Free | Slot::Damaged => None,
        })
    }

    /// Finds an object by name.
    pub(crate) fn find(&self, name: ObjectName) -> Option<(u32, Entry)> {
        self.entries().find(|(_, entry)| entry.name == name)
    }

    /// Verifies the whole table; empty when all is well.
    pub(crate) fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut used = Vec::new();
        for slot in 0..TABLE_ENTRIES {
            match self.read(slot) {
                Slot::Free => {}
                Slot::Damaged => findings.push(Finding::DamagedEntry { slot }),
                Slot::Used(entry) => used.push(entry),
            }
        }
        used.sort_by_key(|entry| (entry.offset, entry.serial));
        for entry in used.iter().filter(|entry| !self.in_range(entry)) {
            findings.push(Finding::OutOfRange { name: entry.name, offset: entry.offset, bytes: entry.bytes });
        }
        let mut reach: Option<Entry> = None;
        for entry in &used {
            if let Some(previous) = reach.filter(|previous| previous.end() > entry.offset) {
                findings.push(Finding::Overlap { first: previous.name, second: entry.name });
            }
            reach = Some(reach.filter(|previous| previous.end() > entry.end()).unwrap_or(*entry));
        }
        used.sort_by_key(|entry| entry.name);
        for pair in used.windows(2).filter(|pair| pair[0].name == pair[1].name) {
            findings.push(Finding::DuplicateName { name: pair[0].name });
        }
        if watermark_decode(self.medium.load(WATERMARK_OFFSET)).is_none() {
            findings.push(Finding::DamagedWatermark);
        }
        findings
    }

    /// Whether an object lies in the data part of the region.
    pub(crate) fn in_range(&self, entry: &Entry) -> bool {
        entry.offset >= DATA_OFFSET && entry.offset.is_multiple_of(LINE_BYTES) && entry.end() <= self.region_bytes
    }

    /// The first free slot and the used entries by offset; refused while an entry is damaged, because free
    /// space is then unknown.
    fn survey(&self) -> Result<(Option<u32>, Vec<Entry>), Refusal> {
        let mut free_slot = None;
        let mut used = Vec::new();
        let mut count = 0;
        for slot in 0..TABLE_ENTRIES {
            match self.read(slot) {
                Slot::Free => free_slot = free_slot.or(Some(slot)),
                Slot::Used(entry) if self.in_range(&entry) => used.push(entry),
                Slot::Used(_) | Slot::Damaged => count += 1,
            }
        }
        if count > 0 {
            return Err(Refusal::Damaged { count });
        }
        used.sort_by_key(|entry| entry.offset);
        Ok((free_slot, used))
    }
}

impl<M: Medium> Table<M> {
    /// Makes an object of zeros in the first gap that fits.
    pub(crate) fn allocate(
        &self,
        name: ObjectName,
        kind: ObjectKind,
        bytes: u64,
        align: u64,
    ) -> Result<(u32, Entry), Refusal> {
        if bytes == 0 || bytes > self.region_bytes {
            return Err(Refusal::BadRequest("its length must be from 1 byte to the region's size"));
        }
        if !align.is_power_of_two() || align > ALIGN_MAX {
            return Err(Refusal::BadRequest("its alignment must be a power of two up to 1 GiB"));
        }
        let (free_slot, used) = self.survey()?;
        if used.iter().any(|entry| entry.name == name) {
            return Err(Refusal::NameTaken);
        }
        let slot = free_slot.ok_or(Refusal::TableFull)?;
        let offset = first_fit(&used, self.region_bytes, bytes, align.max(LINE_BYTES))
            .map_err(|largest_gap_bytes| Refusal::NoRoom { largest_gap_bytes })?;
        let serial = self.next_serial();
        let owner = Side::NOBODY;
        let entry = Entry { name, kind, owner, offset, bytes, serial };
        self.wipe(entry.offset, entry.end());
        self.write(slot, &entry);
        Ok((slot, entry))
    }

    /// Frees an object: one store.
    pub(crate) fn free(&self, slot: u32) {
        self.medium.store(word_offset(slot, ENTRY_WORDS - 1), 0);
    }

    /// Assigns an object to a side: one store, since owner and checksum share a word.
    pub(crate) fn set_owner(&self, slot: u32, entry: &Entry, owner: Side) -> Entry {
        let entry = Entry { owner, ..*entry };
        let commit = entry.encode()[ENTRY_WORDS - 1];
        self.medium.store(word_offset(slot, ENTRY_WORDS - 1), commit);
        entry
    }

    /// Frees every damaged entry, and says how many there were. What they described is lost to the table.
    pub(crate) fn drop_damaged(&self) -> usize {
        let mut count = 0;
        for slot in 0..TABLE_ENTRIES {
            if self.read(slot) == Slot::Damaged {
                self.free(slot);
                count += 1;
            }
        }
        if count > 0 {
            // The space of a dropped entry is unknown, so all of it counts as holding old bytes.
            self.medium.store(WATERMARK_OFFSET, watermark_encode(self.region_bytes));
        }
        count
    }

    /// Zeroes what may hold old bytes of a new object's space, and raises the watermark over it.
    ///
    /// A fresh region is zero above the watermark; skipping it there keeps untouched pages untouched.
    fn wipe(&self, start: u64, end: u64) {
        let watermark = watermark_decode(self.medium.load(WATERMARK_OFFSET)).unwrap_or(self.region_bytes);
        let dirty_end = end.min(watermark);
        if start < dirty_end {
            self.medium.zero(start, dirty_end - start);
        }
        if end > watermark {
            self.medium.store(WATERMARK_OFFSET, watermark_encode(end));
        }
    }

    fn write(&self, slot: u32, entry: &Entry) {
        let words = entry.encode();
        let (commit, body) = (words[ENTRY_WORDS - 1], &words[..ENTRY_WORDS - 1]);
        if planted::commit_first() {
            self.medium.store(word_offset(slot, ENTRY_WORDS - 1), commit);
        }
        for (index, word) in body.iter().enumerate() {
            self.medium.store(word_offset(slot, index), *word);
        }
        self.medium.store(word_offset(slot, ENTRY_WORDS - 1), commit);
    }

    fn next_serial(&self) -> u32 {
        let serial = (self.medium.load(SERIAL_OFFSET) as u32).wrapping_add(1);
        self.medium.store(SERIAL_OFFSET, u64::from(serial));
        serial
    }
}

/// Where a word of an entry lies in the region.
fn word_offset(slot: u32, word: usize) -> u64 {
    debug_assert!(slot < TABLE_ENTRIES && word < ENTRY_WORDS);
    TABLE_OFFSET + u64::from(slot) * ENTRY_BYTES + word as u64 * 8
}

/// The lowest aligned offset in a gap between `used` (sorted by offset) that holds `bytes`; otherwise the
/// largest gap.
fn first_fit(used: &[Entry], region_bytes: u64, bytes: u64, align: u64) -> Result<u64, u64> {
    let mut gap_start = DATA_OFFSET;
    let mut largest = 0;
    let ends = used.iter().map(|entry| (entry.offset, entry.end()));
    for (gap_end, next_start) in ends.chain([(region_bytes, region_bytes)]) {
        let start = gap_start.next_multiple_of(align);
        if start.checked_add(bytes).is_some_and(|end| end <= gap_end) {
            return Ok(start);
        }
        largest = largest.max(gap_end.saturating_sub(gap_start));
        gap_start = gap_start.max(next_start);
    }
    Err(largest)
}

/// A bug that the crash test turns on to prove that it would be found.
mod planted {
    #[cfg(test)]
    thread_local! {
        pub(super) static COMMIT_FIRST: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }

    #[cfg(test)]
    pub(super) fn commit_first() -> bool {
        COMMIT_FIRST.get()
    }

    #[cfg(not(test))]
    pub(super) const fn commit_first() -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
