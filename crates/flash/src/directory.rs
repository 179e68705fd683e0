//! Which extent holds each logical block, and which extents live in each superblock.
//!
//! One level of mapping: an array of one `u32` a logical block names the slot of the extent that the
//! block reads from (0: never written). A slot exists only while at least one block names it, so there
//! are never more slots than logical blocks, however much garbage the media holds. The slot keeps the
//! whole header in memory: a read needs one media access and no look at the header, its checksum
//! cannot be fooled by bytes that were written to the wrong place, and relocation changes one slot
//! instead of every block of the extent.
//!
//! Invariants (checked by [`Directory::audit`]):
//! 1. `slot.live` is the number of blocks that name the slot, and is never 0.
//! 2. Every slot is in the list of exactly one superblock, the one that it lies in.
//! 3. `live_bytes` of a superblock is the sum of the footprints of its slots; the total is their sum.
//! 4. The newest sequence wins each block; a trim is a slot without payload and wins as data does, so
//!    it stays for as long as a block is unmapped by it and nothing older can come back.

use crate::codec::{EXTENT_ALIGN, EXTENT_HEADER_BYTES, extent_footprint};
use crate::{AppendId, ExtentKind, Lba};

/// No slot. Slot 0 is never used, so that a zeroed map means "never written".
pub(crate) const NO_SLOT: u32 = 0;

/// An extent that is alive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    pub sequence: u64,
    pub slba: u32,
    pub blocks: u32,
    /// Blocks that read from this extent.
    pub live: u32,
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    pub tag: u32,
    pub checksum: u32,
    pub superblock: u32,
    /// Offset of the header in the superblock, in units of 16 bytes.
    pub offset16: u32,
    next: u32,
    previous: u32,
    pub kind: ExtentKind,
    /// The payload was already wrong when recovery or relocation met it.
    pub damaged: bool,
}

const _: () = assert!(size_of::<Slot>() <= 56);

/// Most bytes of memory that the map and the slots take for each logical block.
pub(crate) const BYTES_PER_BLOCK: u64 = (size_of::<u32>() + size_of::<Slot>()) as u64;

impl Slot {
    pub(crate) fn footprint(&self) -> u32 {
        extent_footprint(self.stored_bytes)
    }

    /// Offset of the stored bytes in the superblock.
    pub(crate) fn payload_offset(&self) -> u64 {
        u64::from(self.offset16) * u64::from(EXTENT_ALIGN) + u64::from(EXTENT_HEADER_BYTES)
    }
}

/// What is about to be entered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub kind: ExtentKind,
    pub damaged: bool,
    pub slba: Lba,
    pub blocks: u32,
    pub raw_bytes: u32,
    pub stored_bytes: u32,
    pub tag: u32,
    pub checksum: u32,
    pub sequence: u64,
    pub superblock: u32,
    pub offset16: u32,
}

/// The live extents of one superblock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Residents {
    pub first: u32,
    last: u32,
    pub live_bytes: u64,
    /// The last append that killed an extent here. Until it is durable, the dead extent may still be
    /// the newest one that a loss of power would leave, and must not be erased.
    pub killed_by: AppendId,
}

/// The map and the slots.
#[derive(Debug)]
pub(crate) struct Directory {
    map: Vec<u32>,
    slots: Vec<Slot>,
    free: u32,
    residents: Vec<Residents>,
    /// Next slot that a walk over one superblock will visit; kept right when that slot goes away.
    walk: u32,
    pub live_bytes: u64,
    pub live_extents: u64,
    /// Blocks that hold data (trimmed ones do not count).
    pub mapped_blocks: u64,
}

impl Directory {
    pub(crate) fn new(logical_blocks: u32, superblocks: u32) -> Directory {
        // Two spare slots: number 0, and the extent that is entered while all others are alive.
        let mut slots = Vec::with_capacity(logical_blocks as usize + 2);
        slots.push(VACANT);
        Directory {
            map: vec![NO_SLOT; logical_blocks as usize],
            slots,
            free: NO_SLOT,
            residents: vec![Residents::default(); superblocks as usize],
            walk: NO_SLOT,
            live_bytes: 0,
            live_extents: 0,
            mapped_blocks: 0,
        }
    }

    pub(crate) fn logical_blocks(&self) -> u32 {
        self.map.len() as u32
    }

    pub(crate) fn residents(&self, superblock: u32) -> &Residents {
        &self.residents[superblock as usize]
    }

    /// The slot that a block reads from, if it was ever written or trimmed.
    pub(crate) fn slot_of(&self, block: u32) -> Option<(u32, &Slot)> {
        match self.map[block as usize] {
            NO_SLOT => None,
            slot => Some((slot, &self.slots[slot as usize])),
        }
    }

    /// The slot of the data that a block reads from; none when it reads as zeroes.
    pub(crate) fn data_slot(&self, block: u32) -> Option<u32> {
        let (slot, entry) = self.slot_of(block)?;
        (entry.kind == ExtentKind::Data).then_some(slot)
    }

    /// Every extent that is alive, trims included.
    pub(crate) fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().filter(|slot| slot.live > 0)
    }

    /// A slot by number.
    pub(crate) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// Whether a record would win any of its blocks.
    pub(crate) fn any_older(&self, slba: u32, blocks: u32, sequence: u64) -> bool {
        self.range(slba, blocks).iter().any(|&slot| self.loses(slot, sequence))
    }

    /// The smallest range around the blocks that hold data older than `sequence`: what a trim record
    /// must cover. Blocks that were never written or are trimmed already need none.
    pub(crate) fn data_older(&self, slba: u32, blocks: u32, sequence: u64) -> Option<(u32, u32)> {
        let holds = |&slot: &u32| {
            slot != NO_SLOT && self.slots[slot as usize].kind == ExtentKind::Data && self.loses(slot, sequence)
        };
        let range = self.range(slba, blocks);
        let first = range.iter().position(holds)? as u32;
        let last = range.iter().rposition(holds)? as u32;
        Some((slba + first, last - first + 1))
    }

    /// Bytes that would die if a record of this sequence covered these blocks.
    pub(crate) fn bytes_replaced(&self, slba: u32, blocks: u32, sequence: u64) -> u64 {
        let mut bytes = 0;
        let mut at = slba;
        while at < slba + blocks {
            let slot = self.map[at as usize];
            let mut run = 1;
            while at + run < slba + blocks && self.map[(at + run) as usize] == slot {
                run += 1;
            }
            // A slot whose blocks are not contiguous here is counted only if one run holds them all:
            // an underestimate, which is the safe side.
            if slot != NO_SLOT && self.loses(slot, sequence) && self.slots[slot as usize].live == run {
                bytes += u64::from(self.slots[slot as usize].footprint());
            }
            at += run;
        }
        bytes
    }

    /// Enters a record: it takes every block of its range whose extent is older. Returns its slot, or
    /// `NO_SLOT` when it won nothing and is dead on arrival.
    pub(crate) fn insert(&mut self, record: &Record, append: AppendId) -> u32 {
        let slot = self.allocate(record);
        let is_data = record.kind == ExtentKind::Data;
        let mut live = 0;
        let start = record.slba.0 as usize;
        for block in start..start + record.blocks as usize {
            let old = self.map[block];
            if !self.loses(old, record.sequence) {
                continue;
            }
            let was_data = old != NO_SLOT && self.slots[old as usize].kind == ExtentKind::Data;
            self.mapped_blocks = self.mapped_blocks + u64::from(is_data) - u64::from(was_data);
            self.map[block] = slot;
            live += 1;
            if old != NO_SLOT {
                self.release(old, append);
            }
        }
        if live == 0 {
            self.vacate(slot);
            return NO_SLOT;
        }
        self.slots[slot as usize].live = live;
        self.link(slot);
        slot
    }

    /// Moves a slot to where its extent was copied to.
    pub(crate) fn relocate(&mut self, slot: u32, superblock: u32, offset16: u32, damaged: bool) {
        self.unlink(slot);
        let entry = &mut self.slots[slot as usize];
        entry.superblock = superblock;
        entry.offset16 = offset16;
        entry.damaged |= damaged;
        self.link(slot);
    }

    /// The slot of the same extent, if a copy of it is alive.
    pub(crate) fn twin(&self, record: &Record) -> Option<u32> {
        let (slba, blocks) = (record.slba.0 as u32, record.blocks);
        let is_twin = |slot: &u32| {
            let entry = self.slot(*slot);
            *slot != NO_SLOT && entry.sequence == record.sequence && entry.slba == slba && entry.blocks == blocks
        };
        self.range(slba, blocks).iter().copied().find(is_twin)
    }

    /// Lets another copy of the same extent stand for it.
    pub(crate) fn use_copy(&mut self, slot: u32, superblock: u32, offset16: u32, damaged: bool) {
        self.slots[slot as usize].damaged = damaged;
        self.relocate(slot, superblock, offset16, damaged);
    }

    /// The slot, if the extent that was at this place still lies there and is alive.
    pub(crate) fn resident(&self, slot: u32, superblock: u32, offset16: u32) -> Option<&Slot> {
        let entry = &self.slots[slot as usize];
        (entry.live > 0 && entry.superblock == superblock && entry.offset16 == offset16).then_some(entry)
    }

    /// Starts a walk over the live extents of a superblock. One walk at a time.
    pub(crate) fn walk_from(&mut self, superblock: u32) {
        self.walk = self.residents[superblock as usize].first;
    }

    /// The next extent of the walk, without stepping over it.
    pub(crate) fn walk_peek(&self) -> Option<(u32, &Slot)> {
        (self.walk != NO_SLOT).then(|| (self.walk, &self.slots[self.walk as usize]))
    }

    /// Steps over the extent that [`Directory::walk_peek`] showed.
    pub(crate) fn walk_step(&mut self) {
        self.walk = self.slots[self.walk as usize].next;
    }

    /// Forgets who killed what in a superblock that is being erased.
    pub(crate) fn erased(&mut self, superblock: u32) {
        let residents = &mut self.residents[superblock as usize];
        assert_eq!(residents.first, NO_SLOT, "a superblock with live extents must not be erased");
        assert_eq!(residents.live_bytes, 0, "live bytes must be gone with the extents");
        *residents = Residents::default();
    }

    fn range(&self, slba: u32, blocks: u32) -> &[u32] {
        &self.map[slba as usize..(slba + blocks) as usize]
    }

    /// Whether the extent in `slot` gives way to a record of `sequence`. A damaged one also gives way
    /// to a sound copy of itself.
    fn loses(&self, slot: u32, sequence: u64) -> bool {
        let entry = &self.slots[slot as usize];
        slot == NO_SLOT || entry.sequence < sequence || (entry.damaged && entry.sequence == sequence)
    }

    fn allocate(&mut self, record: &Record) -> u32 {
        let entry = Slot {
            sequence: record.sequence,
            slba: record.slba.0 as u32,
            blocks: record.blocks,
            live: 0,
            raw_bytes: record.raw_bytes,
            stored_bytes: record.stored_bytes,
            tag: record.tag,
            checksum: record.checksum,
            superblock: record.superblock,
            offset16: record.offset16,
            next: NO_SLOT,
            previous: NO_SLOT,
            kind: record.kind,
            damaged: record.damaged,
        };
        if self.free == NO_SLOT {
            assert!(self.slots.len() < self.map.len() + 2, "more live extents than logical blocks");
            self.slots.push(entry);
            return self.slots.len() as u32 - 1;
        }
        let slot = self.free;
        self.free = self.slots[slot as usize].next;
        self.slots[slot as usize] = entry;
        slot
    }

    fn vacate(&mut self, slot: u32) {
        self.slots[slot as usize] = Slot { next: self.free, ..VACANT };
        self.free = slot;
    }

    fn release(&mut self, slot: u32, append: AppendId) {
        let entry = &mut self.slots[slot as usize];
        assert!(entry.live > 0, "a block named a slot that was free");
        entry.live -= 1;
        if entry.live == 0 {
            let residents = &mut self.residents[entry.superblock as usize];
            residents.killed_by = residents.killed_by.max(append);
            self.unlink(slot);
            self.vacate(slot);
        }
    }

    fn link(&mut self, slot: u32) {
        let entry = self.slots[slot as usize];
        let footprint = u64::from(entry.footprint());
        let residents = &mut self.residents[entry.superblock as usize];
        let last = core::mem::replace(&mut residents.last, slot);
        residents.live_bytes += footprint;
        if last == NO_SLOT {
            residents.first = slot;
        } else {
            self.slots[last as usize].next = slot;
        }
        self.slots[slot as usize].previous = last;
        self.slots[slot as usize].next = NO_SLOT;
        self.live_bytes += footprint;
        self.live_extents += 1;
    }

    fn unlink(&mut self, slot: u32) {
        let entry = self.slots[slot as usize];
        let footprint = u64::from(entry.footprint());
        if self.walk == slot {
            self.walk = entry.next;
        }
        let residents = &mut self.residents[entry.superblock as usize];
        residents.live_bytes -= footprint;
        if entry.previous == NO_SLOT {
            residents.first = entry.next;
        }
        if entry.next == NO_SLOT {
            residents.last = entry.previous;
        }
        if entry.previous != NO_SLOT {
            self.slots[entry.previous as usize].next = entry.next;
        }
        if entry.next != NO_SLOT {
            self.slots[entry.next as usize].previous = entry.previous;
        }
        self.live_bytes -= footprint;
        self.live_extents -= 1;
    }

    /// Recounts everything and compares.
    ///
    /// # Errors
    /// Says which count is wrong.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut live = vec![0_u32; self.slots.len()];
        let mut mapped = 0;
        for (block, &slot) in self.map.iter().enumerate() {
            if slot == NO_SLOT {
                continue;
            }
            let entry =
                self.slots.get(slot as usize).ok_or(format!("block {block} names slot {slot}, which is none"))?;
            let first = entry.slba as usize;
            if block < first || block >= first + entry.blocks as usize {
                return Err(format!("block {block} names slot {slot}, which covers {first}+{}", entry.blocks));
            }
            live[slot as usize] += 1;
            mapped += u64::from(entry.kind == ExtentKind::Data);
        }
        for (slot, (entry, &count)) in self.slots.iter().zip(&live).enumerate() {
            if entry.live != count {
                return Err(format!("slot {slot} says {} live blocks, {count} name it", entry.live));
            }
        }
        if mapped != self.mapped_blocks {
            return Err(format!("{mapped} blocks hold data, {} were counted", self.mapped_blocks));
        }
        self.audit_lists(&live)
    }

    fn audit_lists(&self, live: &[u32]) -> Result<(), String> {
        let (mut bytes, mut extents) = (0, 0);
        for (superblock, residents) in self.residents.iter().enumerate() {
            let (mut sum, mut previous, mut slot) = (0, NO_SLOT, residents.first);
            while slot != NO_SLOT {
                let entry = &self.slots[slot as usize];
                if live[slot as usize] == 0 || entry.superblock as usize != superblock || entry.previous != previous {
                    return Err(format!("slot {slot} does not belong into the list of superblock {superblock}"));
                }
                sum += u64::from(entry.footprint());
                extents += 1;
                previous = slot;
                slot = entry.next;
            }
            if residents.last != previous || residents.live_bytes != sum {
                let counted = residents.live_bytes;
                return Err(format!("superblock {superblock} counts {counted} live bytes, its list holds {sum}"));
            }
            bytes += sum;
        }
        let alive = live.iter().filter(|&&count| count > 0).count() as u64;
        if (bytes, extents) != (self.live_bytes, self.live_extents) || extents != alive {
            return Err(format!(
                "lists hold {extents} extents of {bytes} bytes, counted {} of {}, {alive} are named",
                self.live_extents, self.live_bytes
            ));
        }
        Ok(())
    }
}

const VACANT: Slot = Slot {
    sequence: 0,
    slba: 0,
    blocks: 0,
    live: 0,
    raw_bytes: 0,
    stored_bytes: 0,
    tag: 0,
    checksum: 0,
    superblock: 0,
    offset16: 0,
    next: NO_SLOT,
    previous: NO_SLOT,
    kind: ExtentKind::Data,
    damaged: false,
};
