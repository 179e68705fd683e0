//! Space that a crash would bring back to life.
//!
//! What an append kills is dead in the map at once, but on the media it lives until the append does: after a crash it
//! is back, beside whichever later appends reached the media. Until the append is synced, the extent that it killed
//! is its *shadow*. Live extents and shadows together never take more than collection can work with, so that
//! whatever a crash leaves, each write that was taken can be appended anew.

use std::collections::VecDeque;

use crate::AppendId;

/// The shadows of an FTL, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// Of appends that are not programmed, in their order: no more of them than fit into the pages in flight.
    unprogrammed: VecDeque<(AppendId, u64)>,
    /// Of appends that are programmed.
    unsynced_bytes: u64,
    /// Of appends that the sync in flight covers.
    syncing_bytes: u64,
    bytes: u64,
}

impl Shadows {
    /// After a recovery, which cannot tell what was synced: all that is dead and still on the media.
    pub(crate) fn recovered(bytes: u64) -> Shadows {
        Shadows { unsynced_bytes: bytes, bytes, ..Shadows::default() }
    }

    /// What all of them take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An append killed extents of so many bytes.
    pub(crate) fn add(&mut self, append: AppendId, bytes: u64) {
        if bytes > 0 {
            self.unprogrammed.push_back((append, bytes));
            self.bytes += bytes;
        }
    }

    /// All appends up to this one are programmed.
    pub(crate) fn programmed(&mut self, through: AppendId) {
        while let Some((_, bytes)) = self.unprogrammed.pop_front_if(|(append, _)| *append <= through) {
            self.unsynced_bytes += bytes;
        }
    }

    /// A sync is issued, which covers what is programmed now.
    pub(crate) fn sync_issued(&mut self) {
        self.syncing_bytes += std::mem::take(&mut self.unsynced_bytes);
    }

    /// That sync is done.
    pub(crate) fn sync_done(&mut self) {
        self.bytes -= std::mem::take(&mut self.syncing_bytes);
    }
}
