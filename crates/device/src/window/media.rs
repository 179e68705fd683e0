//! The flash with the bytes of its pages: what the page-mapped FTL programs and erases.
//!
//! The bytes are in a [`CopyStore`]: in memory, or wherever whoever drives the window keeps them. A unit of the FTL
//! names its bytes by a *copy*, the number that [`ByteMedia::save`] gave out. A relocated unit names the copy of its
//! original, so collection moves no bytes; a copy is free again when no slot names it any more.
//!
//! Invariants:
//! - a copy is counted once for each programmed unit that names it, and once from [`ByteMedia::save`] until it is first
//!   programmed;
//! - copy 0 is of nothing: units name it whose bytes were lost, and pages of the map;
//! - a copy has the checksum of its bytes as they were saved, so that damage is found by whoever reads it.

use osier_flash::page::{PageFtlConfig, PageMedia, Record, SlotState, Unit};

use super::PAGE_BYTES;

/// The bytes of a page.
pub type PageBytes = [u8; PAGE_BYTES];

/// Pages that are taken from the system's memory at a time: enough for pages of 2 MiB, where the system has them.
const CHUNK_PAGES: usize = 1024;
/// Slots whose states are made together.
const CHUNK_SLOTS: usize = 256;

/// Why bytes were not kept: the text says what was attempted, on what, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct StoreError(pub String);

/// Where the bytes of copies are kept, by number.
pub trait CopyStore: std::fmt::Debug + Send {
    /// Keeps what `fill` puts into a page, and gives it back to be summed.
    ///
    /// # Errors
    /// When there is no room; what was kept under other numbers is as it was.
    fn put(&mut self, number: u32, fill: &mut dyn FnMut(&mut PageBytes)) -> Result<&PageBytes, StoreError>;

    /// The bytes that were kept under a number, in `room` if they are not at hand; nothing if they cannot be read.
    fn get<'a>(&'a self, number: u32, room: &'a mut PageBytes) -> Option<&'a PageBytes>;

    /// The bytes, if they are at hand.
    fn at_hand(&self, _number: u32) -> Option<&PageBytes> {
        None
    }
}

/// Copies in memory.
#[derive(Debug, Default)]
struct MemoryStore {
    chunks: Vec<Box<[PageBytes]>>,
}

impl CopyStore for MemoryStore {
    fn put(&mut self, number: u32, fill: &mut dyn FnMut(&mut PageBytes)) -> Result<&PageBytes, StoreError> {
        let (chunk, index) = (number as usize / CHUNK_PAGES, number as usize % CHUNK_PAGES);
        while self.chunks.len() <= chunk {
            self.chunks.push(vec![[0; PAGE_BYTES]; CHUNK_PAGES].into_boxed_slice());
        }
        let bytes = &mut self.chunks[chunk][index];
        fill(bytes);
        Ok(bytes)
    }

    fn get<'a>(&'a self, number: u32, _: &'a mut PageBytes) -> Option<&'a PageBytes> {
        self.at_hand(number)
    }

    fn at_hand(&self, number: u32) -> Option<&PageBytes> {
        self.chunks.get(number as usize / CHUNK_PAGES)?.get(number as usize % CHUNK_PAGES)
    }
}

/// What is kept of a copy beside its bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Copy {
    /// Units that name it.
    count: u32,
    /// It was saved and never programmed.
    is_fresh: bool,
    checksum: u32,
}

/// What each slot holds. Most of a large device was never programmed, and takes no memory.
#[derive(Debug)]
struct Slots {
    chunks: Vec<Option<Box<[SlotState]>>>,
    count: usize,
}

impl Slots {
    fn get(&self, slot: usize) -> &SlotState {
        match &self.chunks[slot / CHUNK_SLOTS] {
            Some(states) => &states[slot % CHUNK_SLOTS],
            None => &SlotState::Erased,
        }
    }

    /// Puts something else in a slot; what it held.
    fn replace(&mut self, slot: usize, state: SlotState) -> SlotState {
        let chunk = &mut self.chunks[slot / CHUNK_SLOTS];
        if chunk.is_none() && state == SlotState::Erased {
            return state;
        }
        let states = chunk.get_or_insert_with(|| vec![SlotState::Erased; CHUNK_SLOTS].into_boxed_slice());
        std::mem::replace(&mut states[slot % CHUNK_SLOTS], state)
    }

    fn programmed(&self) -> impl Iterator<Item = &SlotState> {
        self.chunks.iter().flatten().flat_map(|states| states.iter())
    }
}

/// See the module.
#[derive(Debug)]
pub struct ByteMedia {
    slots: Slots,
    stripes: usize,
    store: Box<dyn CopyStore>,
    copies: Vec<Copy>,
    free: Vec<u32>,
    factory_bad: Vec<u32>,
}

impl ByteMedia {
    /// Erased flash of this shape, in memory.
    #[must_use]
    pub fn new(config: &PageFtlConfig) -> ByteMedia {
        ByteMedia::with_store(config, Box::new(MemoryStore::default()))
    }

    /// Erased flash of this shape, whose bytes are kept elsewhere.
    #[must_use]
    pub fn with_store(config: &PageFtlConfig, store: Box<dyn CopyStore>) -> ByteMedia {
        let planes = if config.timing.multi_plane { config.shape.planes_per_die } else { 1 };
        let slots = config.shape.units() / u64::from(config.shape.units_per_page() * planes);
        ByteMedia {
            slots: Slots { chunks: vec![None; (slots as usize).div_ceil(CHUNK_SLOTS)], count: slots as usize },
            stripes: (config.shape.planes() / planes) as usize,
            store,
            copies: Vec::new(),
            free: Vec::new(),
            factory_bad: Vec::new(),
        }
    }

    /// Copies that hold bytes now.
    #[must_use]
    pub fn copies(&self) -> u64 {
        (self.copies.len().saturating_sub(self.free.len() + 1)) as u64
    }

    /// Takes the bytes of a page that is about to be written; the number is the payload of the write.
    ///
    /// # Errors
    /// When the store has no room; nothing has changed then.
    pub fn save(&mut self, mut fill: impl FnMut(&mut PageBytes)) -> Result<u64, StoreError> {
        if self.free.is_empty() {
            let first = self.copies.len() as u32;
            self.copies.resize(self.copies.len() + CHUNK_PAGES, Copy::default());
            self.free.extend((first.max(1)..first + CHUNK_PAGES as u32).rev());
            self.copies[0].count = self.copies[0].count.max(1);
        }
        let Some(number) = self.free.last().copied() else { unreachable!("copies were just added") };
        let checksum = crc32c::crc32c(self.store.put(number, &mut fill)?);
        self.free.pop();
        self.copies[number as usize] = Copy { count: 1, is_fresh: true, checksum };
        Ok(u64::from(number))
    }

    /// The bytes of a copy, in `room` if they are not at hand, and whether they are what was saved; nothing if they
    /// cannot be read.
    #[must_use]
    pub fn read<'a>(&'a self, copy: u64, room: &'a mut PageBytes) -> Option<(&'a PageBytes, bool)> {
        let bytes = self.store.get(copy as u32, room).filter(|_| copy > 0)?;
        Some((bytes, crc32c::crc32c(bytes) == self.copies[copy as usize].checksum))
    }

    /// The CRC-32C of a copy as it was saved.
    #[must_use]
    pub fn checksum(&self, copy: u64) -> u32 {
        self.copies[copy as usize].checksum
    }

    /// The bytes of a copy as they are now, if they are at hand.
    #[must_use]
    pub fn at_hand(&self, copy: u64) -> Option<&PageBytes> {
        self.store.at_hand(copy as u32)
    }

    /// A copy that was saved is not going to be programmed.
    pub fn forget(&mut self, copy: u64) {
        assert!(self.copies[copy as usize].is_fresh, "copy {copy} was programmed, or never saved");
        self.copies[copy as usize] = Copy::default();
        self.free.push(copy as u32);
    }

    /// Flips a bit of a copy, as flash that rots; whether it could.
    pub fn flip_bit(&mut self, copy: u64, byte: usize, bit: u32) -> bool {
        let mut room = [0; PAGE_BYTES];
        let Some(mut bytes) = self.store.get(copy as u32, &mut room).copied() else { return false };
        bytes[byte] ^= 1 << bit;
        self.store.put(copy as u32, &mut |room| *room = bytes).is_ok()
    }

    /// Frees copies that no slot names: those that were saved and not programmed when power was lost.
    pub fn sweep(&mut self) {
        if self.copies.is_empty() {
            return;
        }
        let mut counts = vec![0_u32; self.copies.len()];
        counts[0] = 1;
        for slot in self.slots.programmed() {
            for unit in units_of(slot) {
                counts[unit.payload as usize] += 1;
            }
        }
        self.free.clear();
        for (number, count) in counts.into_iter().enumerate().rev() {
            self.copies[number].count = count;
            self.copies[number].is_fresh = false;
            if count == 0 {
                self.free.push(number as u32);
            }
        }
    }

    fn hold(&mut self, units: &[Unit]) {
        for unit in units {
            let copy = &mut self.copies[unit.payload as usize];
            if copy.is_fresh {
                copy.is_fresh = false;
            } else {
                copy.count += 1;
            }
        }
    }

    /// A slot holds something else from now on.
    fn replace(&mut self, slot: usize, state: SlotState) {
        let was = self.slots.replace(slot, state);
        for unit in units_of(&was) {
            let copy = &mut self.copies[unit.payload as usize];
            copy.count -= 1;
            if copy.count == 0 {
                self.free.push(unit.payload as u32);
            }
        }
    }
}

fn units_of(slot: &SlotState) -> &[Unit] {
    match slot {
        SlotState::Whole { record: Record::Data { units, .. }, .. } => units,
        _ => &[],
    }
}

impl PageMedia for ByteMedia {
    const KEEPS: bool = true;

    fn program(&mut self, slot: u32, life: u64, record: Record) {
        let state = SlotState::Whole { life, record };
        if *self.slots.get(slot as usize) == SlotState::Dead {
            return;
        }
        self.hold(units_of(&state));
        let was = self.slots.replace(slot as usize, state);
        assert_eq!(was, SlotState::Erased, "slot {slot} is programmed without an erase");
    }

    fn erase(&mut self, first: u32, stripes: u32, count: u32) {
        for slot in (0..count).map(|row| (first + row * stripes) as usize) {
            if *self.slots.get(slot) != SlotState::Dead {
                self.replace(slot, SlotState::Erased);
            }
        }
    }

    fn slot(&self, slot: u32) -> SlotState {
        self.slots.get(slot as usize).clone()
    }

    fn unit(&self, slot: u32, index: usize) -> Option<Unit> {
        units_of(self.slots.get(slot as usize)).get(index).copied()
    }

    fn cut_program(&mut self, slot: u32, _life: u64, _record: Option<Record>) {
        if *self.slots.get(slot as usize) != SlotState::Dead {
            self.replace(slot as usize, SlotState::Torn);
        }
    }

    fn cut_erase(&mut self, first: u32, stripes: u32, count: u32) {
        for slot in (0..count).map(|row| (first + row * stripes) as usize) {
            if *self.slots.get(slot) != SlotState::Dead {
                self.replace(slot, SlotState::Torn);
            }
        }
    }

    fn lose_stripe(&mut self, stripe: u32) {
        for slot in (stripe as usize..self.slots.count).step_by(self.stripes) {
            self.replace(slot, SlotState::Dead);
        }
    }

    fn set_factory_bad(&mut self, by_plane: Vec<u32>) {
        self.factory_bad = by_plane;
    }

    fn factory_bad(&self) -> &[u32] {
        &self.factory_bad
    }
}
