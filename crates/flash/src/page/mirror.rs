//! Where the records of a checkpoint area lie: each twice, on two dies where there are two.
//!
//! The slots of an area on stripes that live are counted row by row. Groups of twice `distance` of them follow each
//! other; the second half of a group repeats the first. So the slots of each block are taken in their order, and none
//! is left out. Where dead stripes leave no room for that, each record lies there once.

use super::config::Sizes;

/// How records are laid out in one area.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Mirror {
    /// Stripes that live, in order.
    live: Vec<u32>,
    /// Stripes of a row.
    stripes: u32,
    /// Slots from a record to its copy; 0 without copies.
    distance: u32,
}

impl Mirror {
    /// For stripes on these dies, of which some live.
    pub(crate) fn new(dies: &[(u32, u32)], lives: impl Fn(u32) -> bool) -> Mirror {
        let stripes = dies.len() as u32;
        let live: Vec<u32> = (0..stripes).filter(|&stripe| lives(stripe)).collect();
        let count = live.len();
        let die = |index: usize| dies[live[index % count] as usize].0;
        // Up to half of a row, so that no block is programmed out of order. Where nothing leads to another die, the
        // next stripe, or the next row of the only one, still helps against what hits a slot.
        let leads_away = |&distance: &usize| (0..count).all(|index| die(index) != die(index + distance));
        let distance = (1..=count / 2).find(leads_away).unwrap_or(1) as u32;
        Mirror { live, stripes, distance }
    }

    /// Each record once, where there is no room for two.
    pub(crate) fn or_once(mut self, sizes: &Sizes) -> Mirror {
        if self.records(sizes) < sizes.area_records {
            self.distance = 0;
        }
        self
    }

    /// Both copies on the same stripe: what a planted bug does, where that much fits.
    pub(crate) fn on_one_die(mut self, sizes: &Sizes) -> Mirror {
        let right = self.distance;
        self.distance = self.live.len() as u32;
        if self.records(sizes) < sizes.area_records {
            self.distance = right;
        }
        self
    }

    /// Records that fit into an area.
    pub(crate) fn records(&self, sizes: &Sizes) -> u32 {
        let rows = sizes.area_superblocks * sizes.slots_per_superblock / self.stripes;
        let slots = rows * self.live.len() as u32;
        if self.distance == 0 {
            return slots;
        }
        let (groups, rest) = (slots / (2 * self.distance), slots % (2 * self.distance));
        groups * self.distance + rest.saturating_sub(self.distance)
    }

    /// The slots, in their area, of a record and its copy; the same without one.
    pub(crate) fn slots(&self, record: u32) -> [u32; 2] {
        let group = record.checked_div(self.distance).unwrap_or(0);
        let first = record + group * self.distance;
        [first, first + self.distance].map(|index| {
            let count = self.live.len() as u32;
            index / count * self.stripes + self.live[(index % count) as usize]
        })
    }

    /// The record of a slot. All stripes live.
    pub(crate) fn record_of(&self, slot: u32) -> u32 {
        slot / (2 * self.distance) * self.distance + slot % self.distance
    }

    /// The first record all of whose slots, and of those that follow, lie at or behind this slot. All stripes live.
    pub(crate) fn first_record_from(&self, slot: u32) -> u32 {
        slot / (2 * self.distance) * self.distance + (slot % (2 * self.distance)).min(self.distance)
    }

    /// Whether a slot holds a copy, and not the record itself. All stripes live.
    pub(crate) fn is_copy(&self, slot: u32) -> bool {
        slot / self.distance % 2 == 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::array::{Order, Shape};
    use crate::page::tests::common;

    /// Of two dies or more one dies: what is left takes a whole checkpoint, each record in a slot of its own.
    #[test]
    fn after_the_death_of_a_die_an_area_still_takes_a_checkpoint() {
        for (channels, planes) in [(2, 1), (2, 2), (3, 1), (4, 2)] {
            let shape = Shape { channels, planes_per_die: planes, ..common::ONE_DIE };
            let mut config = common::config(shape, common::params(1));
            (config.timing.multi_plane, config.ftl.checkpoint_superblocks) = (false, 1);
            let sizes = Sizes::new(&config);
            let places = shape.stripes("PCWD".parse().unwrap(), false);
            let lives = |stripe: u32| places[stripe as usize].0 != 0;
            let mirror = Mirror::new(&places, lives).or_once(&sizes);
            let mut taken = BTreeSet::new();
            for record in 0..mirror.records(&sizes) {
                for slot in BTreeSet::from(mirror.slots(record)) {
                    assert!(lives(slot % sizes.stripes) && slot < sizes.area_superblocks * sizes.slots_per_superblock);
                    assert!(taken.insert(slot), "{shape:?}: slot {slot} is taken twice");
                }
            }
            assert!(mirror.records(&sizes) >= sizes.area_records, "{shape:?}");
        }
    }

    /// Every order of every small shape: each record has two slots of its own on two dies, blocks are filled in order,
    /// and what is said to fit does.
    #[test]
    fn each_record_lies_on_two_dies_and_blocks_are_programmed_in_order() {
        let orders = ["PCWD", "CWDP", "DPCW", "WDPC", "CPWD", "WPDC"];
        for (channels, dies, planes) in [(1, 1, 1), (1, 1, 4), (2, 1, 1), (3, 1, 2), (2, 3, 2), (5, 1, 1), (4, 2, 4)] {
            for order in orders.map(|order| order.parse::<Order>().unwrap()) {
                let shape = Shape { channels, dies_per_chip: dies, planes_per_die: planes, ..common::ONE_DIE };
                let mut config = common::config(shape, common::params(1));
                (config.timing.multi_plane, config.ftl.checkpoint_superblocks) = (false, 1);
                let sizes = Sizes::new(&config);
                let places = shape.stripes(order, false);
                let mirror = Mirror::new(&places, |_| true);
                assert!(mirror.records(&sizes) >= sizes.area_records);
                let mut last_row = vec![None; places.len()];
                for record in 0..mirror.records(&sizes) {
                    let [one, other] = mirror.slots(record);
                    assert!(other < sizes.area_superblocks * sizes.slots_per_superblock);
                    assert_eq!([mirror.is_copy(one), mirror.is_copy(other)], [false, true]);
                    assert_eq!([one, other].map(|slot| mirror.record_of(slot)), [record; 2]);
                    assert!(mirror.first_record_from(one) <= record && mirror.first_record_from(other + 1) > record);
                    let die = |slot: u32| places[slot as usize % places.len()].0;
                    assert!(channels * dies == 1 || die(one) != die(other), "{shape:?} {order}: {one}, {other}");
                    for slot in [one, other] {
                        let (row, stripe) = (slot as usize / places.len(), slot as usize % places.len());
                        assert!(last_row[stripe] < Some(row), "{shape:?} {order}: slot {slot}");
                        last_row[stripe] = Some(row);
                    }
                }
            }
        }
    }
}
