//! Blocks that went bad, and the spare ones that stand in for them.
//!
//! The table is on record in the areas of checkpoints (`checkpoint`): each block that fails is noted there, with a
//! program of its own, and each checkpoint carries all of it. A block that fails in the middle of its life is noted
//! once its pages are copied. Until the note is on the media the pages themselves say whose place their block takes;
//! an empty block that nobody noted may be used again, and fails again.

use super::PageMedia;
use super::ftl::PageFtl;
use super::media::BadBlock;
use super::planted::PageBug;
use super::space::SuperblockState;

/// The blocks that went bad since the device was made.
#[derive(Debug, Clone, Default)]
pub(crate) struct BadBlocks {
    /// In the order in which they failed.
    pub table: Vec<BadBlock>,
    /// Of the table, those that are on record.
    pub saved: usize,
    /// Slots that are programmed again, and the block that failed under each.
    pub copying: Vec<(u32, BadBlock)>,
}

impl BadBlocks {
    pub(crate) fn unsaved(&self) -> &[BadBlock] {
        &self.table[self.saved..]
    }

    fn is_taken(&self, plane: u32, spare: u32) -> bool {
        let copying = self.copying.iter().map(|(_, bad)| bad);
        self.table.iter().chain(copying).any(|bad| bad.plane == plane && bad.spare == Some(spare))
    }
}

impl<M: PageMedia> PageFtl<M> {
    /// A block failed: a spare one of its plane takes its place. Without one the superblock is retired before its next
    /// erase; the areas of checkpoints have no substitute, and a block of theirs is used on.
    pub(crate) fn replace_block(&mut self, superblock: u32, stripe: u32) -> Option<BadBlock> {
        let (die, plane) = self.stripes[stripe as usize];
        // With multi-plane operations the failing plane is any of the die's.
        let plane =
            if self.sizes.slot_planes > 1 { self.rng.below(u64::from(self.sizes.slot_planes)) as u32 } else { plane };
        let plane = die * self.config.shape.planes_per_die + plane;
        self.counters.blocks_gone_bad += 1;
        let spares = &mut self.spares[plane as usize];
        if *spares > 0 {
            *spares -= 1;
            let mut all = 0..self.config.ftl.spare_blocks_per_plane;
            let spare = all.find(|&spare| !self.bad.is_taken(plane, spare)).expect("a spare block is left");
            let bad = BadBlock { superblock, plane, spare: Some(spare) };
            self.media.replace(bad);
            return Some(bad);
        }
        let is_area = superblock < 2 * self.sizes.area_superblocks;
        let state = &mut self.superblocks[superblock as usize];
        let was_failing = std::mem::replace(&mut state.is_failing, !is_area);
        (!is_area && !was_failing).then_some(BadBlock { superblock, plane, spare: None })
    }

    /// A slot that failed is programmed, and what its block held before is copied.
    pub(crate) fn note_copied(&mut self, slot: u32) {
        let copied = self.bad.copying.extract_if(.., |(of, _)| *of == slot).map(|(_, bad)| bad);
        self.bad.table.extend(copied);
    }

    /// Draws the blocks that are bad from the start.
    pub(crate) fn find_bad_blocks(&mut self) {
        let ppm = self.config.errors.factory_bad_ppm;
        if ppm == 0 {
            return;
        }
        let blocks = self.config.shape.blocks_per_plane;
        let bad: Vec<u32> =
            self.spares.iter().map(|_| (0..blocks).filter(|_| self.rng.chance(ppm)).count() as u32).collect();
        self.leave_out(&bad);
        self.media.set_factory_bad(bad);
    }

    /// Leaves out so many blocks of each plane, bad from the start. In a plane with more of them than spare blocks the
    /// last superblocks go without.
    pub(crate) fn leave_out(&mut self, bad: &[u32]) {
        let first = 2 * self.sizes.area_superblocks;
        for (plane, &bad) in bad.iter().enumerate() {
            self.counters.blocks_bad_from_factory += u64::from(bad);
            let short = bad.saturating_sub(self.spares[plane]);
            self.spares[plane] = self.spares[plane].saturating_sub(bad);
            for superblock in (first..self.sizes.superblocks).rev().take(short as usize) {
                let state = &mut self.superblocks[superblock as usize].state;
                self.retired += u32::from(*state != SuperblockState::Retired);
                *state = SuperblockState::Retired;
            }
        }
    }

    /// Superblocks whose spare blocks hold pages say so, whether or not that is on record.
    pub(crate) fn find_stand_ins(&self) -> Vec<BadBlock> {
        if self.has_bug(PageBug::ForgetStandIns) {
            return Vec::new();
        }
        let spares = 0..self.config.ftl.spare_blocks_per_plane;
        let blocks = (0..self.spares.len() as u32).flat_map(|plane| spares.clone().map(move |spare| (plane, spare)));
        let found = blocks.filter_map(|(plane, spare)| {
            let superblock = self.media.stands_in(plane, spare)?;
            Some(BadBlock { superblock, plane, spare: Some(spare) })
        });
        found.collect()
    }

    /// Takes up what is known of bad blocks after a loss of power: what is on record, and what spare blocks say that
    /// is not.
    pub(crate) fn restore_bad_blocks(&mut self, mut table: Vec<BadBlock>, stand_ins: &[BadBlock]) {
        if self.has_bug(PageBug::ForgetBadBlocks) {
            table.clear();
        }
        self.bad.saved = table.len();
        for bad in stand_ins {
            if !table.contains(bad) {
                table.push(*bad);
            }
        }
        for &bad in &table {
            match bad.spare {
                Some(_) => {
                    let spares = &mut self.spares[bad.plane as usize];
                    *spares = spares.saturating_sub(1);
                    self.media.stand_in(bad);
                }
                None => self.superblocks[bad.superblock as usize].is_failing = true,
            }
        }
        self.bad.table = table;
    }

    /// A superblock with a bad block is used no more.
    pub(crate) fn retire(&mut self, superblock: u32) {
        self.superblocks[superblock as usize].state = SuperblockState::Retired;
        self.retired += 1;
        self.check_capacity();
    }
}
