//! Recounts what the FTL keeps incrementally, and compares. Costly: for tests and for `verify`.

use crate::Ftl;
use crate::codec::StreamKind;
use crate::ftl::SuperblockState;

impl Ftl {
    /// Checks that map, directory, live counts, superblock states and streams agree.
    ///
    /// # Errors
    /// Says what does not agree. Any error is a bug of this crate.
    pub fn audit(&self) -> Result<(), String> {
        self.directory.audit()?;
        let count = |state| self.superblocks.iter().filter(|s| s.state == state).count() as u32;
        let free = count(SuperblockState::Free);
        if free != self.superblocks_free {
            return Err(format!("{free} superblocks are free, {} were counted", self.superblocks_free));
        }
        let retired = count(SuperblockState::Retired);
        if retired != self.superblocks_retired {
            return Err(format!("{retired} superblocks are retired, {} were counted", self.superblocks_retired));
        }
        let suspects = self.superblocks.iter().filter(|s| s.suspect).count() as u32;
        if suspects != self.suspects {
            return Err(format!("{suspects} superblocks are suspect, {} were counted", self.suspects));
        }
        let readers: u32 = self.superblocks.iter().map(|s| s.readers).sum();
        if readers != self.reads_in_flight {
            return Err(format!("{readers} reads hold superblocks, {} are in flight", self.reads_in_flight));
        }
        self.audit_superblocks()
    }

    fn audit_superblocks(&self) -> Result<(), String> {
        for (index, superblock) in self.superblocks.iter().enumerate() {
            let live = self.directory.residents(index as u32).live_bytes;
            let state = superblock.state;
            if live > 0 && !state.is_readable() {
                return Err(format!("superblock {index} is {state:?} and has {live} live bytes"));
            }
            if live > self.limits.superblock_bytes {
                return Err(format!("superblock {index} has {live} live bytes, more than it can hold"));
            }
            if state == SuperblockState::Free && superblock.next_page != 0 {
                return Err(format!("superblock {index} is free with {} pages programmed", superblock.next_page));
            }
            let is_open = |kind: &StreamKind| {
                self.streams[kind.index()].open.is_some_and(|open| open.superblock as usize == index)
            };
            let writers = StreamKind::ALL.iter().filter(|kind| is_open(kind)).count();
            if writers != usize::from(state == SuperblockState::Open) {
                return Err(format!("superblock {index} is {state:?} and is written by {writers} streams"));
            }
        }
        Ok(())
    }
}
