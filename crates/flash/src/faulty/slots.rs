//! Slots of units that keep the rules of NAND, and everything that may become of them.
//!
//! Fault model. A slot is programmed or not; there is no volatile cache.
//!
//! - *power cut*: a program that had begun left nothing, a slot that cannot be read, or the whole slot, though
//!   nobody was told; of an erase that had begun each slot is erased, unreadable, or as it was. What only waited
//!   leaves no trace, what was reported done stays.
//! - *faint slots*: what an erase that was cut left in its block is not to be relied on. None of it may be programmed
//!   before another erase, though it reads as erased; and what still reads ([`SlotArray::fade`]) ceases to.
//! - *rotten unit*: a unit has more wrong bits than its code corrects. Its bytes read as others, and marked as
//!   lost; its metadata, which have a code of their own, are right.
//! - *rotten slot*: nothing of a slot can be read, metadata included. It hits superblocks that the newest
//!   checkpoint names and that were full when it began: what is younger was verified when it was programmed.
//! - *dead stripe*: a die, or a plane of one, no longer answers: what it holds is gone, programs and erases have no
//!   effect.
//!
//! The areas of checkpoints rot only with their dies.

use std::collections::BTreeSet;

use crate::page::{PageMedia, Record, Root, SlotState, Unit};
use crate::rng::Rng;

/// What a power cut leaves of the operations that had begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tear {
    /// Each is drawn.
    Drawn,
    /// Nothing was changed by any.
    Dropped,
    /// All are torn.
    Torn,
    /// All are done.
    Whole,
}

/// The array.
#[derive(Debug, Clone)]
pub struct SlotArray {
    slots: Vec<SlotState>,
    slots_per_superblock: usize,
    is_dead: Vec<bool>,
    /// Slots of erases that were cut.
    faint: BTreeSet<u32>,
    /// Payloads of which some copy is lost.
    damaged: BTreeSet<u64>,
    operations: u64,
    /// What the next power cut leaves.
    pub tear: Tear,
    rng: Rng,
}

impl SlotArray {
    /// An erased array for a device of this configuration.
    #[must_use]
    pub fn new(config: &crate::page::PageFtlConfig, seed: u64) -> SlotArray {
        let planes = if config.timing.multi_plane { config.shape.planes_per_die } else { 1 };
        let slots = config.shape.units() / u64::from(config.shape.units_per_page() * planes);
        let stripes = config.shape.planes() / planes;
        SlotArray {
            slots_per_superblock: (stripes * config.shape.pages_per_block) as usize,
            slots: vec![SlotState::Erased; slots as usize],
            is_dead: vec![false; stripes as usize],
            faint: BTreeSet::new(),
            damaged: BTreeSet::new(),
            operations: 0,
            tear: Tear::Drawn,
            rng: Rng::new(seed),
        }
    }

    /// Programs and erases that were carried out.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.operations
    }

    /// Whether a copy of this payload was ever lost, so that its unit may read as uncorrectable.
    #[must_use]
    pub fn is_damaged(&self, payload: u64) -> bool {
        self.damaged.contains(&payload)
    }

    fn is_dead(&self, slot: u32) -> bool {
        self.is_dead[slot as usize % self.is_dead.len()]
    }

    fn lose(&mut self, units: &[Unit]) {
        self.damaged.extend(units.iter().map(|unit| unit.payload));
    }

    /// A unit rots, drawn among all slots by `draw`. Returns whose it was.
    pub fn rot_unit(&mut self, draw: u64) -> Option<Unit> {
        let index = (draw % self.slots.len() as u64) as usize;
        let SlotState::Whole { record: Record::Data { units, .. }, .. } = &mut self.slots[index] else { return None };
        let count = units.len() as u64;
        let unit = &mut units[(draw / 7 % count) as usize];
        let was = *unit;
        (unit.payload, unit.lost) = (unit.payload ^ 0x5a5a, true);
        self.damaged.insert(was.payload);
        Some(was)
    }

    /// A slot rots, drawn among all by `draw`, if it may. Returns its units.
    pub fn rot_slot(&mut self, draw: u64) -> Option<Vec<Unit>> {
        let index = (draw % self.slots.len() as u64) as usize;
        let root = self.newest_root()?.clone();
        let SlotState::Whole { life, record: Record::Data { units, .. } } = &self.slots[index] else { return None };
        let superblock = (index / self.slots_per_superblock) as u32;
        if *life >= root.life || root.open.iter().any(|&(open, ..)| open == superblock) {
            return None;
        }
        let units = units.clone();
        self.slots[index] = SlotState::Torn;
        self.lose(&units);
        Some(units)
    }

    /// What erases that were cut left whole can be read no more. Nobody may miss it.
    pub fn fade(&mut self) {
        for &slot in &self.faint {
            if matches!(self.slots[slot as usize], SlotState::Whole { .. }) {
                self.slots[slot as usize] = SlotState::Torn;
            }
        }
    }

    /// The rules of NAND: a slot is programmed after an erase that ended, and the slots of a block in their order.
    fn check_program(&self, slot: u32) {
        assert_eq!(self.slots[slot as usize], SlotState::Erased, "slot {slot} is programmed without an erase");
        assert!(!self.faint.contains(&slot), "slot {slot} is programmed after an erase that was cut");
        let end = (slot as usize / self.slots_per_superblock + 1) * self.slots_per_superblock;
        let mut behind = (slot as usize..end).step_by(self.is_dead.len()).skip(1);
        assert!(behind.all(|slot| self.slots[slot] == SlotState::Erased), "slot {slot} is programmed out of order");
    }

    fn newest_root(&self) -> Option<&Root> {
        let roots = self.slots.iter().filter_map(|slot| match slot {
            SlotState::Whole { record: Record::Root { checkpoint, root }, .. } => Some((*checkpoint, root)),
            _ => None,
        });
        roots.max_by_key(|&(checkpoint, _)| checkpoint).map(|(_, root)| root)
    }
}

impl PageMedia for SlotArray {
    const KEEPS: bool = true;

    fn program(&mut self, slot: u32, life: u64, record: Record) {
        self.operations += 1;
        if let Record::Data { units, .. } = &record {
            let lost: Vec<Unit> = units.iter().filter(|unit| unit.lost || self.is_dead(slot)).copied().collect();
            self.lose(&lost);
        }
        if self.is_dead(slot) {
            return;
        }
        self.check_program(slot);
        self.slots[slot as usize] = SlotState::Whole { life, record };
    }

    fn erase(&mut self, first: u32, stripes: u32, count: u32) {
        self.operations += 1;
        for slot in (0..count).map(|row| first + row * stripes) {
            self.slots[slot as usize] = SlotState::Erased;
            self.faint.remove(&slot);
        }
    }

    fn slot(&self, slot: u32) -> SlotState {
        if self.is_dead(slot) { SlotState::Dead } else { self.slots[slot as usize].clone() }
    }

    fn cut_program(&mut self, slot: u32, life: u64, record: Option<Record>) {
        let left = match self.tear {
            Tear::Drawn => [Tear::Dropped, Tear::Whole, Tear::Torn, Tear::Torn][self.rng.below(4) as usize],
            tear => tear,
        };
        match (left, record) {
            (Tear::Whole, Some(record)) => self.program(slot, life, record),
            (Tear::Dropped, _) => {}
            _ if self.is_dead(slot) => {}
            _ => {
                self.check_program(slot);
                self.slots[slot as usize] = SlotState::Torn;
            }
        }
    }

    fn cut_erase(&mut self, first: u32, stripes: u32, count: u32) {
        for slot in (0..count).map(|row| first + row * stripes) {
            self.faint.insert(slot);
            let slot = slot as usize;
            let left = match self.tear {
                Tear::Drawn => [Tear::Dropped, Tear::Whole, Tear::Torn][self.rng.below(3) as usize],
                tear => tear,
            };
            match left {
                Tear::Dropped | Tear::Drawn => {}
                Tear::Whole => self.slots[slot] = SlotState::Erased,
                Tear::Torn => self.slots[slot] = SlotState::Torn,
            }
        }
    }

    fn lose_stripe(&mut self, stripe: u32) {
        self.is_dead[stripe as usize] = true;
        let mut gone = Vec::new();
        for slot in self.slots.iter().skip(stripe as usize).step_by(self.is_dead.len()) {
            if let SlotState::Whole { record: Record::Data { units, .. }, .. } = slot {
                gone.extend_from_slice(units);
            }
        }
        self.lose(&gone);
    }
}
