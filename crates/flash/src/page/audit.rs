//! Recounts what the FTL keeps incrementally, and compares. Costly: for tests and for `verify`.

use super::PageMedia;
use super::ftl::{NONE, PageFtl};
use super::space::SuperblockState;

impl<M: PageMedia> PageFtl<M> {
    /// Checks that map, reverse map, valid counts and superblock states agree.
    ///
    /// # Errors
    /// Says what does not agree. Any error is a bug of this crate.
    pub fn audit(&self) -> Result<(), String> {
        let mut valid = vec![0; self.superblocks.len()];
        for lpn in 0..self.map.len() {
            let unit = self.map.get(lpn);
            if unit == NONE {
                continue;
            }
            let other = self.reverse.get(unit);
            if other != lpn {
                return Err(format!("unit {lpn} is mapped to {unit}, which belongs to {other}"));
            }
            valid[self.split.superblock_units.quotient(unit) as usize] += 1;
        }
        for (number, superblock) in self.superblocks.iter().enumerate() {
            if superblock.valid != valid[number] {
                return Err(format!("superblock {number} counts {}, holds {}", superblock.valid, valid[number]));
            }
            let is_empty =
                matches!(superblock.state, SuperblockState::Free | SuperblockState::Erasing | SuperblockState::Retired);
            if is_empty && superblock.valid > 0 {
                return Err(format!("superblock {number} is {:?} and has valid units", superblock.state));
            }
            let is_free = self.free.iter().any(|entry| entry.0.1 == number as u32);
            let should = superblock.state == SuperblockState::Free && number as u32 >= 2 * self.sizes.area_superblocks;
            if is_free != should {
                return Err(format!("superblock {number} is {:?}, free: {is_free}", superblock.state));
            }
        }
        Ok(())
    }
}
