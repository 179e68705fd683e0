//! Which logical blocks take space: what a read would find there, without its bytes.

use super::{Bytes, Device, Lba, RecordKind, Status};
use osier_flash::PieceKind;

/// Consecutive blocks of which all or none take space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// How many; at most [`Run::BLOCKS_MAX`].
    pub blocks: u32,
    /// They hold what was written; else they read as zeroes.
    pub is_allocated: bool,
}

impl Run {
    /// Most blocks of a run.
    pub const BLOCKS_MAX: u32 = u32::MAX >> 1;

    /// As it goes between the domains: the blocks, and bit 31 when they take space.
    #[must_use]
    pub fn to_word(self) -> u32 {
        self.blocks | u32::from(self.is_allocated) << 31
    }

    /// What a word says.
    #[must_use]
    pub fn from_word(word: u32) -> Run {
        Run { blocks: word & Run::BLOCKS_MAX, is_allocated: word >> 31 != 0 }
    }
}

/// What is known so far.
struct Runs {
    list: Vec<Run>,
    most: usize,
    /// What comes after it is not known.
    is_full: bool,
}

impl Runs {
    /// Adds blocks behind those that are known, if there is room.
    fn add(&mut self, blocks: u32, is_allocated: bool) {
        let is_more = self.list.last().is_none_or(|run| run.is_allocated != is_allocated);
        self.is_full |= is_more && self.list.len() == self.most;
        if self.is_full {
            return;
        }
        match self.list.last_mut() {
            Some(run) if !is_more => run.blocks += blocks,
            _ => self.list.push(Run { blocks, is_allocated }),
        }
    }
}

impl<B: Bytes> Device<B> {
    /// Which of the blocks take space, as a read that began now would find: at most `runs_max` runs from the first
    /// block on, no two alike in a row. They need not reach the last block.
    ///
    /// # Errors
    /// Blocks that are none of the device's or more than a run can have, or that it is shut down.
    pub fn allocation(&self, slba: Lba, blocks: u32, runs_max: usize) -> Result<Vec<Run>, Status> {
        self.check_range(slba, u64::from(blocks))?;
        if blocks > Run::BLOCKS_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let mut runs = Runs { list: Vec::new(), most: runs_max, is_full: false };
        let mut pieces = Vec::new();
        self.pending.lookup(slba.0, u64::from(blocks), |found| {
            // Lengths are within the question's u32.
            let length = found.blocks as u32;
            match found.sequence {
                Some(sequence) => {
                    runs.add(length, self.log.record(sequence).is_some_and(|record| record.kind == RecordKind::Data));
                }
                None => {
                    pieces.clear();
                    self.ftl.pieces(Lba(found.slba), length, &mut pieces);
                    pieces.iter().for_each(|piece| runs.add(piece.blocks, !matches!(piece.kind, PieceKind::Unmapped)));
                }
            }
        });
        Ok(runs.list)
    }
}
