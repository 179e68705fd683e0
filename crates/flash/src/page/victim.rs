//! Which superblock is collected next.
//!
//! Candidates are the closed superblocks. Greedy keeps them in lists by their valid units, so that the
//! emptiest is found in constant time; the other policies need less.

use std::collections::{BTreeSet, VecDeque};

use super::config::{CANDIDATES_MAX, Sizes, VictimPolicy};
use super::ftl::NONE;
use super::space::Superblock;
use crate::rng::Rng;

/// The closed superblocks.
#[derive(Debug, Clone)]
pub(crate) struct Candidates {
    policy: VictimPolicy,
    superblock_units: u32,
    /// All of them, in no order.
    members: Vec<u32>,
    /// Where each is in `members`, or [`NONE`].
    position: Vec<u32>,
    /// In the order of closing; who left and came back is there more than once, the last counts.
    closed: VecDeque<(u32, u32)>,
    /// How often each was closed.
    closings: Vec<u32>,
    lists: Option<Lists>,
    /// By erases, with static wear levelling.
    by_erases: Option<BTreeSet<(u32, u32)>>,
}

/// Doubly linked lists of superblocks by valid units.
#[derive(Debug, Clone)]
struct Lists {
    heads: Vec<u32>,
    next: Vec<u32>,
    last: Vec<u32>,
    /// No list before this one has a member.
    lowest: usize,
}

impl Lists {
    #[inline]
    fn link(&mut self, superblock: u32, valid: u32) {
        let head = std::mem::replace(&mut self.heads[valid as usize], superblock);
        self.next[superblock as usize] = head;
        self.last[superblock as usize] = NONE;
        if head != NONE {
            self.last[head as usize] = superblock;
        }
        self.lowest = self.lowest.min(valid as usize);
    }

    #[inline]
    fn unlink(&mut self, superblock: u32, valid: u32) {
        let (next, last) = (self.next[superblock as usize], self.last[superblock as usize]);
        match last {
            NONE => self.heads[valid as usize] = next,
            last => self.next[last as usize] = next,
        }
        if next != NONE {
            self.last[next as usize] = last;
        }
    }
}

impl Candidates {
    pub(crate) fn new(policy: VictimPolicy, levels_wear: bool, sizes: &Sizes) -> Candidates {
        let count = sizes.superblocks as usize;
        let lists = (policy == VictimPolicy::Greedy).then(|| Lists {
            heads: vec![NONE; sizes.superblock_units as usize + 1],
            next: vec![NONE; count],
            last: vec![NONE; count],
            lowest: 0,
        });
        Candidates {
            policy,
            superblock_units: sizes.superblock_units,
            members: Vec::new(),
            position: vec![NONE; count],
            closed: VecDeque::new(),
            closings: vec![0; count],
            lists,
            by_erases: levels_wear.then(BTreeSet::new),
        }
    }

    pub(crate) fn insert(&mut self, superblock: u32, valid: u32, erases: u32) {
        self.position[superblock as usize] = self.members.len() as u32;
        self.members.push(superblock);
        if let Some(lists) = &mut self.lists {
            lists.link(superblock, valid);
        }
        if self.policy == VictimPolicy::Fifo {
            self.closings[superblock as usize] += 1;
            self.closed.push_back((superblock, self.closings[superblock as usize]));
        }
        if let Some(by_erases) = &mut self.by_erases {
            by_erases.insert((erases, superblock));
        }
    }

    pub(crate) fn remove(&mut self, superblock: u32, valid: u32, erases: u32) {
        let position = self.position[superblock as usize];
        self.members.swap_remove(position as usize);
        if let Some(&moved) = self.members.get(position as usize) {
            self.position[moved as usize] = position;
        }
        self.position[superblock as usize] = NONE;
        if let Some(lists) = &mut self.lists {
            lists.unlink(superblock, valid);
        }
        if let Some(by_erases) = &mut self.by_erases {
            by_erases.remove(&(erases, superblock));
        }
    }

    /// A unit of a candidate died; `valid` are left.
    #[inline]
    pub(crate) fn lost_one(&mut self, superblock: u32, valid: u32) {
        if let Some(lists) = &mut self.lists {
            lists.unlink(superblock, valid + 1);
            lists.link(superblock, valid);
        }
    }

    /// The candidate that the policy takes.
    pub(crate) fn choose(&mut self, superblocks: &[Superblock], rng: &mut Rng, next_life: u64) -> Option<u32> {
        match self.policy {
            VictimPolicy::Greedy => self.emptiest(superblocks),
            VictimPolicy::Fifo => self.oldest(),
            VictimPolicy::CostBenefit => self.best(superblocks, rng, next_life),
            VictimPolicy::Choices(count) => {
                let drawn = (0..count.min(self.members.len() as u32)).map(|_| rng.below(self.members.len() as u64));
                let drawn = drawn.map(|index| self.members[index as usize]);
                drawn.min_by_key(|&superblock| superblocks[superblock as usize].valid)
            }
        }
    }

    /// The candidate with the fewest valid units.
    pub(crate) fn emptiest(&mut self, superblocks: &[Superblock]) -> Option<u32> {
        let Some(lists) = &mut self.lists else {
            return self.members.iter().copied().min_by_key(|&number| (superblocks[number as usize].valid, number));
        };
        if self.members.is_empty() {
            return None;
        }
        while lists.heads[lists.lowest] == NONE {
            lists.lowest += 1;
        }
        Some(lists.heads[lists.lowest])
    }

    /// The candidate with the fewest erases, and how many.
    pub(crate) fn least_worn(&self) -> Option<(u32, u32)> {
        self.by_erases.as_ref().and_then(|by_erases| by_erases.first().copied())
    }

    fn oldest(&mut self) -> Option<u32> {
        while let Some(&(superblock, closing)) = self.closed.front() {
            let is_current = self.closings[superblock as usize] == closing;
            if is_current && self.position[superblock as usize] != NONE {
                return Some(superblock);
            }
            self.closed.pop_front();
        }
        None
    }

    /// The largest `age * (1 - u) / 2u`: compared crosswise, so without division.
    fn best(&self, superblocks: &[Superblock], rng: &mut Rng, next_life: u64) -> Option<u32> {
        let count = self.members.len() as u64;
        let mut best: Option<(u128, u128, u32)> = None;
        for index in 0..count.min(u64::from(CANDIDATES_MAX)) {
            let index = if count > u64::from(CANDIDATES_MAX) { rng.below(count) } else { index };
            let number = self.members[index as usize];
            let superblock = &superblocks[number as usize];
            let units = self.superblock_units;
            let gain = u128::from(next_life - superblock.life) * u128::from(units - superblock.valid);
            let cost = 2 * u128::from(superblock.valid);
            if best.is_none_or(|(other_gain, other_cost, _)| gain * other_cost > other_gain * cost || cost == 0) {
                best = Some((gain, cost, number));
            }
            if cost == 0 {
                break;
            }
        }
        best.map(|(_, _, number)| number)
    }
}
