//! A file's blocks: which of them lie where.
//!
//! Invariant: a file's extents do not overlap, and none is empty. Two that touch, in the file and on the device, and
//! are alike, are one where they were made one after the other.

use rustix::io::Errno;

use crate::record::{Extent, key2, last_number};
use crate::space::Run;
use crate::state::State;

/// Extents looked at in one step of a walk.
const STEP: usize = 256;

/// A part of a file: an extent's, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Segment {
    pub file_block: u64,
    pub blocks: u64,
    /// Where it lies, and whether it is written; nothing of a hole.
    pub place: Option<(u64, bool)>,
}

impl Segment {
    /// Its first block on the device when it holds what was written.
    pub fn written(&self) -> Option<u64> {
        self.place.and_then(|(block, is_written)| is_written.then_some(block))
    }
}

impl State {
    /// The extent that has a block, or the last one before it.
    pub(crate) fn extent_at_or_before(&self, inode: u64, file_block: u64) -> Result<Option<Extent>, Errno> {
        let found = self.store.last(&key2(b'E', inode, 0), &key2(b'E', inode, file_block))?;
        found.map(|(key, value)| Extent::decode(last_number(&key)?, &value)).transpose()
    }

    /// Extents that have blocks of `from..to`, at most `limit`.
    pub(crate) fn extents(&self, inode: u64, from: u64, to: u64, limit: usize) -> Result<Vec<Extent>, Errno> {
        let mut extents = Vec::new();
        if from >= to {
            return Ok(extents);
        }
        let mut next = from;
        if let Some(extent) = self.extent_at_or_before(inode, from)?.filter(|extent| extent.end() > from) {
            next = extent.end();
            extents.push(extent);
        }
        if next < to && extents.len() < limit {
            for (key, value) in
                self.store.range(&key2(b'E', inode, next), &key2(b'E', inode, to), limit - extents.len())?
            {
                extents.push(Extent::decode(last_number(&key)?, &value)?);
            }
        }
        Ok(extents)
    }

    /// `from..to` as segments, holes and all.
    pub(crate) fn map(&self, inode: u64, from: u64, to: u64) -> Result<Vec<Segment>, Errno> {
        let (mut segments, mut at) = (Vec::new(), from);
        while at < to {
            let extents = self.extents(inode, at, to, STEP)?;
            let is_all = extents.len() < STEP;
            for extent in extents {
                let start = extent.file_block.max(at);
                if start > at {
                    segments.push(Segment { file_block: at, blocks: start - at, place: None });
                }
                let end = extent.end().min(to);
                let place = Some((extent.block + (start - extent.file_block), extent.is_written));
                segments.push(Segment { file_block: start, blocks: end - start, place });
                at = end;
            }
            if is_all {
                break;
            }
        }
        if at < to {
            segments.push(Segment { file_block: at, blocks: to - at, place: None });
        }
        Ok(segments)
    }

    fn put_extent(&mut self, inode: u64, extent: &Extent) -> Result<(), Errno> {
        self.store.put(key2(b'E', inode, extent.file_block), extent.encode())
    }

    /// Cuts `from..to` out of whatever extents have it; what was cut out.
    fn cut(&mut self, inode: u64, from: u64, to: u64) -> Result<Vec<Extent>, Errno> {
        let mut cut = Vec::new();
        for extent in self.extents(inode, from, to, usize::MAX)? {
            self.store.delete(&key2(b'E', inode, extent.file_block))?;
            let (start, end) = (extent.file_block.max(from), extent.end().min(to));
            if extent.file_block < start {
                self.put_extent(inode, &Extent { blocks: start - extent.file_block, ..extent })?;
            }
            let part = |start: u64, end: u64| Extent {
                file_block: start,
                block: extent.block + (start - extent.file_block),
                blocks: end - start,
                ..extent
            };
            if extent.end() > end {
                self.put_extent(inode, &part(end, extent.end()))?;
            }
            cut.push(part(start, end));
        }
        Ok(cut)
    }

    /// Makes a hole of `from..to`; how many blocks the file has then, which had so many.
    pub(crate) fn punch(&mut self, inode: u64, from: u64, to: u64, blocks: u64) -> Result<u64, Errno> {
        let mut left = blocks;
        for extent in self.cut(inode, from, to)? {
            let run = Run { block: extent.block, blocks: extent.blocks };
            // Of a damaged file system: they are nobody's, or another's who has given them back.
            if !self.space.is_used(run) {
                tracing::error!(inode, block = run.block, "a file has blocks that are free; `osier fsck` says more");
                return Err(Errno::IO);
            }
            self.space.release(run);
            left = left.checked_sub(extent.blocks).ok_or(Errno::IO)?;
        }
        Ok(left)
    }

    /// Says of `from..to` whether it is written, wherever there are extents.
    pub(crate) fn set_written(&mut self, inode: u64, from: u64, to: u64, is_written: bool) -> Result<(), Errno> {
        let differs = |extent: &Extent| extent.is_written != is_written;
        if !self.extents(inode, from, to, usize::MAX)?.iter().any(differs) {
            return Ok(());
        }
        for extent in self.cut(inode, from, to)? {
            self.join(inode, Extent { is_written, ..extent })?;
        }
        Ok(())
    }

    /// Gives a hole reserved blocks.
    pub(crate) fn fill(&mut self, inode: u64, extent: Extent) -> Result<(), Errno> {
        self.space.claim(Run { block: extent.block, blocks: extent.blocks });
        self.join(inode, extent)
    }

    /// Puts an extent where there is none, as one with the one before it and the one behind it if they are alike.
    fn join(&mut self, inode: u64, extent: Extent) -> Result<(), Errno> {
        let mut whole = extent;
        if let Some(before) = extent.file_block.checked_sub(1) {
            let before = self.extent_at_or_before(inode, before)?;
            if let Some(before) = before.filter(|before| follows(before, &extent)) {
                whole = Extent { blocks: before.blocks + whole.blocks, ..before };
            }
        }
        let key = key2(b'E', inode, extent.end());
        if let Some(value) = self.store.get(&key)? {
            let behind = Extent::decode(extent.end(), &value)?;
            if follows(&extent, &behind) {
                self.store.delete(&key)?;
                whole.blocks += behind.blocks;
            }
        }
        self.put_extent(inode, &whole)
    }
}

/// Whether two extents can be one.
fn follows(first: &Extent, second: &Extent) -> bool {
    first.end() == second.file_block
        && first.block + first.blocks == second.block
        && first.is_written == second.is_written
}
