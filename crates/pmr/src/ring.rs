//! A ring in shared memory, from one producer to one consumer, with the phase bit in the slot.
//!
//! An entry is one cache line of eight words. Bit 63 of word 0 is the phase, as the P bit of an NVMe
//! completion (NVMe Base Specification 2.0, section 4.6): it flips at each lap, so the entry itself says
//! whether it is new. A ring with a shared head index instead costs the consumer two cache misses an entry,
//! and about ten times the time.
//!
//! Invariants:
//! 1. Words 1 to 7 of a slot are written before word 0, whose store releases the entry. A producer killed
//!    half-way leaves the slot as it was for the consumer.
//! 2. The producer writes a slot only when the published tail says that the consumer copied the entry that
//!    was there a lap ago. The tail is published late (every quarter lap, and when the consumer runs dry),
//!    so it may lag the consumer and never leads it.
//! 3. Positions count entries since the ring was formatted and never wrap (63 bits); slot and phase follow
//!    from the position alone. So a position is all there is to carry over when another process takes over
//!    an end: it is part of the checkpoint ([`Cursor`]).
//! 4. An entry is copied once; who checks it checks the copy.

use crate::words::{LINE_WORDS, Lines, Word};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// One entry: a cache line. Bit 63 of word 0 belongs to the ring and must be zero.
pub type RingEntry = [u64; LINE_WORDS];

/// The bit of word 0 that the ring keeps for itself.
pub const PHASE_BIT: u64 = 1 << 63;
/// Smallest number of entries.
pub const CAPACITY_MIN: usize = 2;
/// Largest number of entries: a million, 64 MiB.
pub const CAPACITY_MAX: usize = 1 << 20;

/// Lines before the first slot. Geometry and tail lie two lines apart, because processors fetch lines in
/// pairs: the producer's reads of one must not take the other from the consumer.
const HEADER_LINES: usize = 4;
const GEOMETRY_LINE: usize = 0;
const TAIL_LINE: usize = 2;
const MAGIC_WORD: usize = 0;
const CAPACITY_WORD: usize = 1;
const GENERATION_WORD: usize = 2;
/// "OSIRRNG1", read as a little-endian word.
const RING_MAGIC: u64 = u64::from_le_bytes(*b"OSIRRNG1");

/// Bytes that a ring of `capacity` entries takes in an object. Allocate it with an alignment of at least 128.
pub const fn ring_bytes(capacity: usize) -> u64 {
    (HEADER_LINES + capacity) as u64 * 64
}

/// The ring had no room for an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full; try again when the consumer has made room")]
pub struct Full;

/// Why a ring or a position in it was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// The number of lines leaves no allowed number of slots.
    #[error("cannot make a ring of {slots} slots: it must be a power of two from 2 to 1048576")]
    BadCapacity {
        /// Slots that the lines would hold.
        slots: usize,
    },
    /// The memory was never formatted as a ring, or formatting it was cut short.
    #[error("cannot open the ring: it is not formatted; format it anew")]
    NotFormatted,
    /// The header states another capacity than the memory has.
    #[error("cannot open the ring: its header says {stated} slots, its memory holds {slots}; it is damaged")]
    Damaged {
        /// Slots by the header.
        stated: u64,
        /// Slots by the memory's size.
        slots: usize,
    },
    /// The ring belongs to another incarnation.
    #[error("cannot open the ring: it is of generation {found}, not {wanted}; this process is out of date")]
    WrongGeneration {
        /// Generation in the ring.
        found: u64,
        /// Generation that was asked for.
        wanted: u64,
    },
    /// The position is not one that the ring's state allows.
    #[error("cannot take over the ring at entry {cursor}: its state does not allow that position; use recovery")]
    BadCursor {
        /// The position that was given.
        cursor: u64,
    },
}

/// A position in a ring: how many entries went by since it was formatted. Part of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cursor(pub u64);

/// A formatted ring, from which its two ends are made.
#[derive(Debug, Clone)]
pub struct Ring<L> {
    lines: L,
    capacity: usize,
    generation: u64,
}

impl<L: Lines> Ring<L> {
    /// Makes an empty ring of all the lines, for a new incarnation. No end may be in use.
    ///
    /// A kill half-way leaves a ring that [`Ring::open`] refuses as not formatted.
    ///
    /// # Errors
    /// `BadCapacity`.
    pub fn format(lines: L, generation: u64) -> Result<Self, RingError> {
        let capacity = capacity_of(&lines)?;
        let geometry = lines.line(GEOMETRY_LINE);
        geometry[MAGIC_WORD].store(0, Release);
        // Release orders the stores before it only; the fence keeps those that follow from overtaking.
        L::Word::fence(std::sync::atomic::Ordering::SeqCst);
        for line in (0..HEADER_LINES + capacity).filter(|line| *line != GEOMETRY_LINE) {
            lines.line(line).iter().for_each(|word| word.store(0, Relaxed));
        }
        geometry[CAPACITY_WORD].store(capacity as u64, Relaxed);
        geometry[GENERATION_WORD].store(generation, Relaxed);
        geometry[MAGIC_WORD].store(RING_MAGIC, Release);
        Ok(Self { lines, capacity, generation })
    }

    /// Opens a ring that was formatted, whatever its generation.
    ///
    /// # Errors
    /// `BadCapacity`, `NotFormatted`, `Damaged`.
    pub fn open(lines: L) -> Result<Self, RingError> {
        let capacity = capacity_of(&lines)?;
        let geometry = lines.line(GEOMETRY_LINE);
        if geometry[MAGIC_WORD].load(Acquire) != RING_MAGIC {
            return Err(RingError::NotFormatted);
        }
        let stated = geometry[CAPACITY_WORD].load(Relaxed);
        if stated != capacity as u64 {
            return Err(RingError::Damaged { stated, slots: capacity });
        }
        let generation = geometry[GENERATION_WORD].load(Relaxed);
        Ok(Self { lines, capacity, generation })
    }

    /// Opens a ring of one incarnation.
    ///
    /// # Errors
    /// As [`Ring::open`], and `WrongGeneration`.
    pub fn open_generation(lines: L, wanted: u64) -> Result<Self, RingError> {
        let ring = Self::open(lines)?;
        match ring.generation {
            found if found == wanted => Ok(ring),
            found => Err(RingError::WrongGeneration { found, wanted }),
        }
    }

    /// Empties the ring for a new incarnation. No end may be in use.
    pub fn reset(&mut self, generation: u64) {
        let formatted = Self::format(self.lines.clone(), generation);
        *self = formatted.expect("the capacity was accepted before");
    }

    /// Entries that it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// The incarnation that it was formatted for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The producing end of a freshly formatted ring. The caller sees to it that there is one.
    pub fn producer(&self) -> Producer<L> {
        Producer::at(self, 0)
    }

    /// The consuming end of a freshly formatted ring. The caller sees to it that there is one.
    pub fn consumer(&self) -> Consumer<L> {
        Consumer::at(self, 0)
    }

    /// The producing end at the position where the former producer handed over.
    ///
    /// # Errors
    /// `BadCursor` when the ring does not end there.
    pub fn producer_at(&self, cursor: Cursor) -> Result<Producer<L>, RingError> {
        match self.end() {
            end if end == cursor.0 => Ok(Producer::at(self, end)),
            _ => Err(RingError::BadCursor { cursor: cursor.0 }),
        }
    }

    /// The consuming end at the position where the former consumer handed over.
    ///
    /// # Errors
    /// `BadCursor` when that entry's place is before the published tail or after the last entry.
    pub fn consumer_at(&self, cursor: Cursor) -> Result<Consumer<L>, RingError> {
        match (self.published_tail()..=self.end()).contains(&cursor.0) {
            true => Ok(Consumer::at(self, cursor.0)),
            false => Err(RingError::BadCursor { cursor: cursor.0 }),
        }
    }

    /// The producing end after its process died: right behind the last whole entry. What the dead producer
    /// had written of a batch behind it is taken back.
    pub fn recover_producer(&self) -> Producer<L> {
        let producer = Producer::at(self, self.end());
        for position in producer.position..producer.limit {
            let other_phase = phase_of(self.capacity, position) ^ PHASE_BIT;
            self.lines.line(line_of(self.capacity, position))[0].store(other_phase, Release);
        }
        producer
    }

    /// The consuming end after its process died without a checkpoint: at the published tail. Entries that
    /// the dead consumer took since are seen again, up to a quarter of the capacity.
    pub fn recover_consumer(&self) -> Consumer<L> {
        Consumer::at(self, self.published_tail())
    }

    /// Copies the entries from the published tail to the end, without consuming: for tools and recovery.
    pub fn snapshot(&self) -> Vec<(Cursor, RingEntry)> {
        let positions = self.published_tail()..self.end();
        let entry = |at| {
            let mut entry = [0; LINE_WORDS];
            read(&self.lines, self.capacity, at, &mut entry).then_some((Cursor(at), entry))
        };
        positions.filter_map(entry).collect()
    }

    fn published_tail(&self) -> u64 {
        self.lines.line(TAIL_LINE)[0].load(Acquire)
    }

    /// Position behind the last whole entry. From the published tail on, slots carry their lap's phase as
    /// far as they were written, whether or not they were consumed since.
    fn end(&self) -> u64 {
        let tail = self.published_tail();
        let written = (0..self.capacity as u64).take_while(|ahead| {
            let at = tail.wrapping_add(*ahead);
            let word = self.lines.line(line_of(self.capacity, at))[0].load(Acquire);
            word & PHASE_BIT == phase_of(self.capacity, at)
        });
        tail.wrapping_add(written.count() as u64)
    }
}

/// The end that puts entries in.
#[derive(Debug)]
pub struct Producer<L> {
    lines: L,
    capacity: usize,
    /// Entries put in so far.
    position: u64,
    /// First position that may not be written yet, by the tail last read.
    limit: u64,
}

impl<L: Lines> Producer<L> {
    fn at(ring: &Ring<L>, position: u64) -> Self {
        let limit = ring.published_tail().wrapping_add(ring.capacity as u64);
        Self { lines: ring.lines.clone(), capacity: ring.capacity, position, limit }
    }

    /// Puts one entry in.
    ///
    /// # Errors
    /// `Full` when the consumer has not published room.
    ///
    /// # Panics
    /// If bit 63 of word 0 is set.
    #[inline]
    pub fn push(&mut self, entry: RingEntry) -> Result<(), Full> {
        if self.position == self.limit && !self.refresh() {
            return Err(Full);
        }
        self.put_at(self.position, &entry);
        self.position += 1;
        Ok(())
    }

    /// Puts in as many entries as there is room for, in order, and returns how many.
    ///
    /// The first of them is written last: the consumer, which watches that slot, then takes the whole batch
    /// from lines that are no longer written to. A producer killed in between leaves entries behind a slot
    /// without one; [`Ring::recover_producer`] takes them back.
    ///
    /// # Panics
    /// If bit 63 of word 0 of an entry is set.
    #[inline]
    pub fn push_batch(&mut self, entries: &[RingEntry]) -> usize {
        let mut room = self.limit.wrapping_sub(self.position);
        if room < entries.len() as u64 {
            self.refresh();
            room = self.limit.wrapping_sub(self.position);
        }
        let count = entries.len().min(room as usize);
        let Some((first, rest)) = entries[..count].split_first() else {
            return 0;
        };
        for (ahead, entry) in rest.iter().enumerate() {
            self.put_at(self.position.wrapping_add(1 + ahead as u64), entry);
        }
        self.put_at(self.position, first);
        self.position += count as u64;
        count
    }

    /// How many entries fit now.
    pub fn free(&mut self) -> usize {
        self.refresh();
        self.limit.wrapping_sub(self.position) as usize
    }

    /// Whether the consumer has published that it took everything: the ring can change hands.
    pub fn is_drained(&self) -> bool {
        self.lines.line(TAIL_LINE)[0].load(Acquire) == self.position
    }

    /// Entries put in so far; what the next producer starts from.
    pub fn cursor(&self) -> Cursor {
        Cursor(self.position)
    }

    /// Entries that the ring holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline(always)]
    fn put_at(&self, position: u64, entry: &RingEntry) {
        assert!(entry[0] & PHASE_BIT == 0, "bit 63 of an entry's word 0 belongs to the ring");
        let line = line_of(self.capacity, position);
        self.lines.store_rest(line, entry);
        let slot = self.lines.line(line);
        slot[0].store(entry[0] | phase_of(self.capacity, position), Release);
    }

    /// Reads the tail anew; whether there is room.
    #[cold]
    fn refresh(&mut self) -> bool {
        // The consumer's copies of the entries come before its store of the tail, hence before our stores.
        let tail = self.lines.line(TAIL_LINE)[0].load(Acquire);
        let limit = tail.wrapping_add(self.capacity as u64);
        // A tail ahead of us or behind what we saw is damage by the other side: ignored, the ring stays full.
        if tail <= self.position && limit >= self.limit {
            self.limit = limit;
        }
        self.position != self.limit
    }
}

/// The end that takes entries out.
#[derive(Debug)]
pub struct Consumer<L> {
    lines: L,
    capacity: usize,
    /// Entries taken out so far.
    position: u64,
    /// The tail that the producer was told.
    published: u64,
}

impl<L: Lines> Consumer<L> {
    fn at(ring: &Ring<L>, position: u64) -> Self {
        // Another process may move the tail at any time; beyond our position it would be damage.
        let published = ring.published_tail().min(position);
        Self { lines: ring.lines.clone(), capacity: ring.capacity, position, published }
    }

    /// Takes one entry out, if there is one. When there is none, all room made so far is published.
    #[inline]
    pub fn pop(&mut self) -> Option<RingEntry> {
        let mut entry = [0; LINE_WORDS];
        self.pop_into(&mut entry).then_some(entry)
    }

    /// Takes entries out into `out` as far as there are any, and returns how many.
    #[inline]
    pub fn pop_batch(&mut self, out: &mut [RingEntry]) -> usize {
        for (count, place) in out.iter_mut().enumerate() {
            if !self.pop_into(place) {
                return count;
            }
        }
        out.len()
    }

    /// Copies straight into its place: a copy of the copy would cost as much as the first.
    #[inline(always)]
    fn pop_into(&mut self, place: &mut RingEntry) -> bool {
        if !read(&self.lines, self.capacity, self.position, place) {
            self.publish();
            return false;
        }
        self.position = self.position.wrapping_add(1);
        if self.position.wrapping_sub(self.published) >= (self.capacity as u64).div_ceil(4) {
            self.publish();
        }
        true
    }

    /// Whether an entry waits. Cheap while nothing changes: it reads one line that stays in this cache.
    #[inline]
    pub fn has_entry(&self) -> bool {
        let word = self.lines.line(line_of(self.capacity, self.position))[0].load(Acquire);
        word & PHASE_BIT == phase_of(self.capacity, self.position)
    }

    /// Tells the producer of all room made so far; whether there was any to tell of.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let news = self.published != self.position;
        if news {
            self.lines.line(TAIL_LINE)[0].store(self.position, Release);
            self.published = self.position;
        }
        news
    }

    /// Entries taken out so far; what the next consumer starts from. Publishes, so that the tail agrees.
    pub fn cursor(&mut self) -> Cursor {
        self.publish();
        Cursor(self.position)
    }

    /// Entries that the ring holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }
}

/// Copies the entry at a position, without its phase bit, to `place`; whether it was written.
#[inline(always)]
fn read<L: Lines>(lines: &L, capacity: usize, position: u64, place: &mut RingEntry) -> bool {
    let line = line_of(capacity, position);
    let first = lines.line(line)[0].load(Acquire);
    if first & PHASE_BIT != phase_of(capacity, position) {
        return false;
    }
    place[0] = first & !PHASE_BIT;
    lines.load_rest(line, place);
    true
}

#[inline(always)]
fn line_of(capacity: usize, position: u64) -> usize {
    // Wrapping, because the capacity was checked once and these are on the path of every entry.
    HEADER_LINES.wrapping_add(position as usize & capacity.wrapping_sub(1))
}

/// The phase bit of entries at a position: set in even laps, so that a zeroed ring holds none.
#[inline(always)]
fn phase_of(capacity: usize, position: u64) -> u64 {
    if position & capacity as u64 == 0 { PHASE_BIT } else { 0 }
}

fn capacity_of<L: Lines>(lines: &L) -> Result<usize, RingError> {
    let slots = lines.count().saturating_sub(HEADER_LINES);
    let allowed = (CAPACITY_MIN..=CAPACITY_MAX).contains(&slots) && slots.is_power_of_two();
    if allowed { Ok(slots) } else { Err(RingError::BadCapacity { slots }) }
}

const _: () = {
    assert!(size_of::<RingEntry>() == 64);
    assert!(HEADER_LINES.is_multiple_of(2) && TAIL_LINE.is_multiple_of(2) && TAIL_LINE > GEOMETRY_LINE);
    assert!(CAPACITY_MIN.is_power_of_two() && CAPACITY_MAX.is_power_of_two());
};

#[cfg(test)]
mod tests;
