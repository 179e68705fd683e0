//! Recounts what the cache keeps incrementally, and compares. Costly: for tests and for `verify`.

use super::Cache;
use crate::eviction::Eviction;
use crate::flags::{Flags, State};

impl<P: Eviction> Cache<P> {
    /// Checks that table, frames, sets and pins agree.
    ///
    /// # Errors
    /// Says what does not agree. Any error is a bug of this crate.
    pub fn audit(&self) -> Result<(), String> {
        for set in 0..self.shape.sets {
            self.audit_set(set)?;
        }
        let known = self.flags.iter().filter(|flags| matches!(flags.state(), State::Filling | State::Resident)).count();
        if known != self.table.len() as usize {
            return Err(format!("{known} frames have a page, the table has {}", self.table.len()));
        }
        let draining = self.flags.iter().filter(|flags| flags.state() == State::Draining).count();
        if draining > self.draining.len() {
            return Err(format!("{draining} frames are draining, but only {} pages", self.draining.len()));
        }
        let unpinned = self.pins.keys().find(|frame| !self.flags[**frame as usize].has(Flags::PINNED));
        if let Some(frame) = unpinned {
            return Err(format!("frame {frame} has pins and is not pinned"));
        }
        Ok(())
    }

    fn audit_set(&self, set: u32) -> Result<(), String> {
        let of = &self.sets[set as usize];
        let (mut free, mut ruled, mut pinned, mut draining) = (0, 0, 0, 0);
        for frame in set * self.shape.ways..(set + 1) * self.shape.ways {
            let flags = self.flags[frame as usize];
            let page = self.pages[frame as usize];
            free += u32::from(flags.state() == State::Free);
            ruled += u32::from(flags.has(Flags::RULED));
            pinned += u32::from(flags.has(Flags::PINNED));
            draining += u32::from(flags.state() == State::Draining);
            let should_rule = flags.state() == State::Resident && !flags.has(Flags::PINNED);
            if should_rule != flags.has(Flags::RULED) {
                return Err(format!("frame {frame} should be the policy's: {should_rule}; it is the other way round"));
            }
            if flags.has(Flags::PINNED) != self.pins.contains_key(&frame) {
                return Err(format!("frame {frame} is pinned by its flag or by its count, but not by both"));
            }
            let has_page = matches!(flags.state(), State::Filling | State::Resident);
            if has_page && (self.find(page) != Some(frame) || self.set_of(page) != set) {
                return Err(format!("frame {frame} has page {page}, which the table or the set does not say"));
            }
        }
        let counted = (of.free_count, of.ruled, of.pinned, of.draining);
        if counted != (free, ruled, pinned, draining) {
            let found = (free, ruled, pinned, draining);
            return Err(format!("set {set}: free, ruled, pinned, draining are {found:?}, counted {counted:?}"));
        }
        Ok(())
    }
}
