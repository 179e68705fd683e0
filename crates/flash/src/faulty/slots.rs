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
//! - *rotten area slot*: nothing of a slot of a checkpoint area can be read. It hits what another slot still holds.
//! - *bad block*: one that the FTL called bad. Where the area in use says so when power is lost, it must not be
//!   programmed or erased ever after.

use std::collections::{BTreeMap, BTreeSet};

use crate::page::{BadBlock, PageMedia, Record, Root, Sizes, SlotState, Unit};
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

/// Superblock and plane of a block's place.
type Place = (u32, u32);

/// A block: one of a superblock, or a spare one, in a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Block {
    Of { superblock: u32, plane: u32 },
    Spare { number: u32, plane: u32 },
}

impl Block {
    fn at((superblock, plane): Place, stand_in: Option<u32>) -> Block {
        match stand_in {
            Some(number) => Block::Spare { number, plane },
            None => Block::Of { superblock, plane },
        }
    }
}

fn bad_blocks_of(slot: &SlotState) -> &[BadBlock] {
    match slot {
        SlotState::Whole { record: Record::Journal { bad, .. }, .. } => bad,
        _ => &[],
    }
}

/// The array.
#[derive(Debug, Clone)]
pub struct SlotArray {
    slots: Vec<SlotState>,
    slots_per_superblock: usize,
    is_dead: Vec<bool>,
    /// Planes of each stripe.
    planes: Vec<Vec<u32>>,
    planes_per_die: u32,
    /// Slots of both areas of checkpoints.
    area_slots: u32,
    factory_bad: Vec<u32>,
    /// Spare blocks that stand in where the FTL says so. Forgotten with the power.
    stand_ins: BTreeMap<Place, u32>,
    /// Spare blocks that hold the pages. Not forgotten.
    holders: BTreeMap<Place, u32>,
    /// Places whose pages are still in the block that stood there before.
    moving: BTreeSet<Place>,
    /// Blocks that went bad, as records said, in their order.
    announced: Vec<BadBlock>,
    /// Of these, those that were on record when power was lost.
    recorded: Vec<BadBlock>,
    /// The blocks that `recorded` calls bad.
    is_barred: BTreeSet<Block>,
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
        let places = config.shape.stripes(config.order, config.timing.multi_plane);
        let of_stripe = |&(die, plane): &(u32, u32)| {
            let first = die * config.shape.planes_per_die;
            if planes > 1 { (first..first + planes).collect() } else { vec![first + plane] }
        };
        let slots_per_superblock = stripes * config.shape.pages_per_block;
        SlotArray {
            planes_per_die: config.shape.planes_per_die,
            planes: places.iter().map(of_stripe).collect(),
            area_slots: Sizes::new(config).area_superblocks * slots_per_superblock,
            factory_bad: Vec::new(),
            stand_ins: BTreeMap::new(),
            holders: BTreeMap::new(),
            moving: BTreeSet::new(),
            announced: Vec::new(),
            recorded: Vec::new(),
            is_barred: BTreeSet::new(),
            slots_per_superblock: slots_per_superblock as usize,
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
        let root = self.newest_root()?.1.clone();
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

    /// A slot of a checkpoint area rots, drawn among all by `draw`, if another one holds the same. Whether it did.
    pub fn rot_area_slot(&mut self, draw: u64) -> bool {
        let slot = (draw % u64::from(2 * self.area_slots)) as u32;
        let area = slot / self.area_slots * self.area_slots;
        let held @ SlotState::Whole { .. } = self.slot(slot) else { return false };
        let holds = |other: u32| !self.faint.contains(&other) && self.slot(other) == held;
        if !(area..area + self.area_slots).any(|other| other != slot && holds(other)) {
            return false;
        }
        self.slots[slot as usize] = SlotState::Torn;
        true
    }

    /// Whether there are two whole slots of each record in the checkpoint area in use.
    #[must_use]
    pub fn has_copies(&self) -> bool {
        let area = self.area_in_use();
        let whole = |slot: &&SlotState| matches!(slot, SlotState::Whole { .. });
        area.iter().filter(whole).all(|slot| area.iter().filter(|other| *other == slot).count() > 1)
    }

    /// A die stops answering, or one plane of it, while the power is off.
    pub fn lose_die(&mut self, die: u32, plane: Option<u32>) {
        let of = self.planes_per_die;
        let is_hit = |&hit: &u32| hit / of == die && plane.is_none_or(|plane| hit % of == plane);
        for stripe in 0..self.planes.len() {
            if self.planes[stripe].iter().any(is_hit) {
                self.lose_stripe(stripe as u32);
            }
        }
    }

    /// What erases that were cut left whole can be read no more. Nobody may miss it.
    pub fn fade(&mut self) {
        for &slot in &self.faint {
            if matches!(self.slots[slot as usize], SlotState::Whole { .. }) {
                self.slots[slot as usize] = SlotState::Torn;
            }
        }
    }

    /// Superblock and planes of a slot.
    fn places(&self, slot: u32) -> Vec<Place> {
        let superblock = slot / self.slots_per_superblock as u32;
        self.planes[slot as usize % self.planes.len()].iter().map(|&plane| (superblock, plane)).collect()
    }

    /// Whether the FTL looks for a slot's pages in the blocks that hold them.
    fn is_at_place(&self, slot: u32) -> bool {
        let is_right = |place| self.stand_ins.get(place) == self.holders.get(place) || self.moving.contains(place);
        (self.holders.is_empty() && self.stand_ins.is_empty()) || self.places(slot).iter().all(is_right)
    }

    /// The blocks of a slot are written to: those that the FTL takes hold its pages now, and none of them is bad.
    fn write_to(&mut self, slot: u32) {
        if self.holders.is_empty() && self.stand_ins.is_empty() && self.is_barred.is_empty() {
            return;
        }
        for place in self.places(slot) {
            let stand_in = self.stand_ins.get(&place).copied();
            let block = Block::at(place, stand_in);
            assert!(!self.is_barred.contains(&block), "{block:?} is on record as bad, and is used for slot {slot}");
            self.moving.remove(&place);
            match stand_in {
                Some(spare) => self.holders.insert(place, spare),
                None => self.holders.remove(&place),
            };
        }
    }

    /// A record says which blocks are bad.
    fn note_bad(&mut self, record: &Record) {
        let Record::Journal { bad, .. } = record else { return };
        for block in bad {
            if !self.announced.contains(block) {
                self.announced.push(*block);
            }
        }
    }

    /// What the area in use says of bad blocks holds from now on.
    fn bar(&mut self) {
        let on_record: Vec<BadBlock> = self.area_in_use().iter().flat_map(bad_blocks_of).copied().collect();
        for block in self.announced.clone() {
            if self.recorded.contains(&block) || !on_record.contains(&block) {
                continue;
            }
            let place = (block.superblock, block.plane);
            let before = self.recorded.iter().rfind(|one| (one.superblock, one.plane) == place);
            self.is_barred.insert(Block::at(place, before.and_then(|one| one.spare)));
            self.recorded.push(block);
        }
    }

    fn area_in_use(&self) -> &[SlotState] {
        let first = self.newest_root().map_or(0, |(slot, _)| slot as u32 / self.area_slots.max(1) * self.area_slots);
        &self.slots[first as usize..(first + self.area_slots) as usize]
    }

    /// The rules of NAND: a slot is programmed after an erase that ended, and the slots of a block in their order.
    fn check_program(&self, slot: u32) {
        assert_eq!(self.slots[slot as usize], SlotState::Erased, "slot {slot} is programmed without an erase");
        assert!(!self.faint.contains(&slot), "slot {slot} is programmed after an erase that was cut");
        let end = (slot as usize / self.slots_per_superblock + 1) * self.slots_per_superblock;
        let mut behind = (slot as usize..end).step_by(self.is_dead.len()).skip(1);
        assert!(behind.all(|slot| self.slots[slot] == SlotState::Erased), "slot {slot} is programmed out of order");
    }

    /// The newest checkpoint's root, and its slot.
    fn newest_root(&self) -> Option<(usize, &Root)> {
        let roots = self.slots.iter().enumerate().filter_map(|(slot, state)| match state {
            SlotState::Whole { record: Record::Root { checkpoint, root }, .. } => Some((*checkpoint, slot, root)),
            _ => None,
        });
        roots.max_by_key(|&(checkpoint, ..)| checkpoint).map(|(_, slot, root)| (slot, root))
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
        self.write_to(slot);
        self.note_bad(&record);
        self.slots[slot as usize] = SlotState::Whole { life, record };
    }

    fn erase(&mut self, first: u32, stripes: u32, count: u32) {
        self.operations += 1;
        self.write_to(first);
        for slot in (0..count).map(|row| first + row * stripes) {
            self.slots[slot as usize] = SlotState::Erased;
            self.faint.remove(&slot);
        }
    }

    fn slot(&self, slot: u32) -> SlotState {
        match () {
            () if self.is_dead(slot) => SlotState::Dead,
            () if !self.is_at_place(slot) => SlotState::Torn,
            () => self.slots[slot as usize].clone(),
        }
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

    fn stand_in(&mut self, bad: BadBlock) {
        if let Some(spare) = bad.spare {
            self.stand_ins.insert((bad.superblock, bad.plane), spare);
        }
    }

    fn replace(&mut self, bad: BadBlock) {
        let place = (bad.superblock, bad.plane);
        if self.stand_ins.get(&place) == self.holders.get(&place) {
            self.moving.insert(place);
        }
        self.stand_in(bad);
    }

    fn stands_in(&self, plane: u32, spare: u32) -> Option<u32> {
        let stripe = self.planes.iter().position(|planes| planes.contains(&plane))?;
        let has_pages = |superblock: u32| {
            let first = superblock as usize * self.slots_per_superblock;
            let slots = &self.slots[first..first + self.slots_per_superblock];
            slots.iter().skip(stripe).step_by(self.planes.len()).any(|slot| *slot != SlotState::Erased)
        };
        let held = self.holders.iter().filter(|&(&(_, of), &by)| (of, by) == (plane, spare));
        let found = held.map(|(&(superblock, _), _)| superblock).find(|&superblock| has_pages(superblock));
        found.filter(|_| !self.is_dead[stripe])
    }

    fn set_factory_bad(&mut self, by_plane: Vec<u32>) {
        self.factory_bad = by_plane;
    }

    fn factory_bad(&self) -> &[u32] {
        &self.factory_bad
    }

    fn power_lost(&mut self) {
        self.stand_ins.clear();
        self.moving.clear();
        self.bar();
    }
}
