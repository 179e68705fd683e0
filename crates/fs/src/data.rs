//! The bytes of files.
//!
//! A block that a file does not have yet is reserved, then written, and only then the file's: so no committed extent
//! ever shows what somebody else had left there. A block that it has is overwritten in place.
//!
//! What is behind a file's end in its last block is of no meaning; it is made zeroes when the file grows, not when it
//! shrinks, because a crash must not take bytes from a file whose shrinking is not committed.

use std::borrow::Cow;
use std::sync::PoisonError;

use rustix::io::Errno;

use crate::attributes::without_privileges;
use crate::blocks::BLOCK_BYTES;
use crate::extents::Segment;
use crate::record::{Extent, Inode, Time};
use crate::space::Run;
use crate::state::State;
use crate::system::{FileSystem, device_errno};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most bytes of a file.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// How often an operation that finds no room waits for a commit to free some.
const TRIES: usize = 3;
/// Extents that a search looks at in one step.
const SEARCH: usize = 256;

/// What [`FileSystem::allocate`] does to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Gives it blocks where it has none.
    Reserve,
    /// Makes it zeroes, with blocks.
    Zero,
    /// Makes it zeroes, without blocks.
    Punch,
}

/// What [`FileSystem::seek`] looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// What was written.
    Data,
    /// What reads as zeroes because it was not, or the end.
    Hole,
}

/// What a write changes beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteEffects {
    /// The times that it sets; nothing when somebody else does.
    pub now: Option<Time>,
    /// Whether the file loses what its mode gives those who execute it.
    pub is_unprivileged: bool,
}

/// The blocks that a range of bytes touches.
fn blocks_of(offset: u64, end: u64) -> (u64, u64) {
    (offset / BLOCK, end.div_ceil(BLOCK))
}

fn end_of(offset: u64, length: u64) -> Result<u64, Errno> {
    offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX).ok_or(Errno::FBIG)
}

/// Part of a buffer of blocks whose first is `base`.
fn part(base: u64, first: u64, blocks: u64) -> std::ops::Range<usize> {
    let from = (first - base) as usize * BLOCK_BYTES;
    from..from + blocks as usize * BLOCK_BYTES
}

/// Blocks that are to be a file's, held until they are or until this is given back.
struct Reserved(Vec<Extent>);

impl FileSystem {
    /// Up to `size` bytes from `offset` on; less at the end.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL`, `ENOENT`, `EIO`.
    pub fn read(&self, number: u64, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let _shared = self.stripe(number).read().unwrap_or_else(PoisonError::into_inner);
        let (end, base, segments) = {
            let state = self.state();
            let inode = state.file(number)?;
            let end = offset.saturating_add(size as u64).min(inode.size);
            if offset >= end {
                return Ok(Vec::new());
            }
            let (from, to) = blocks_of(offset, end);
            (end, from, state.map(number, from, to)?)
        };
        let mut bytes = vec![0; (end.div_ceil(BLOCK) - base) as usize * BLOCK_BYTES];
        for segment in segments {
            if let Some(block) = segment.written() {
                let range = part(base, segment.file_block, segment.blocks);
                self.behind.read(block, &mut bytes[range]).map_err(device_errno)?;
            }
        }
        bytes.truncate((end - base * BLOCK) as usize);
        if !offset.is_multiple_of(BLOCK) {
            bytes.drain(..(offset % BLOCK) as usize);
        }
        Ok(bytes)
    }

    /// Writes bytes; all of them or, with an error, some.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC`, `EISDIR`, `EINVAL`, `ENOENT`, `EIO`.
    pub fn write(&self, number: u64, offset: u64, data: &[u8], effects: WriteEffects) -> Result<(), Errno> {
        let end = end_of(offset, data.len() as u64)?;
        if data.is_empty() {
            return self.state().file(number).map(drop);
        }
        if !self.overwrite(number, offset, data)? {
            return self.write_new(number, offset, end, data, effects);
        }
        self.change(|state| {
            let before = state.inode(number)?;
            let mut inode = before;
            effects.apply(&mut inode);
            state.drop_capabilities(number)?;
            if inode != before { state.put_inode(number, &inode) } else { Ok(()) }
        })
    }

    /// Writes whole blocks that the file has already, beside others who do; false when that is not what is asked for.
    fn overwrite(&self, number: u64, offset: u64, data: &[u8]) -> Result<bool, Errno> {
        let end = offset + data.len() as u64;
        if !offset.is_multiple_of(BLOCK) || !end.is_multiple_of(BLOCK) {
            return Ok(false);
        }
        let _shared = self.stripe(number).read().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = blocks_of(offset, end);
        let segments = {
            let state = self.state();
            if end > state.file(number)?.size {
                return Ok(false);
            }
            state.map(number, from, to)?
        };
        if !segments.iter().all(|segment| segment.written().is_some()) {
            return Ok(false);
        }
        self.put_blocks(&segments, from, data)?;
        Ok(true)
    }

    /// Gives the device the bytes of segments that have a place.
    fn put_blocks(&self, segments: &[Segment], base: u64, bytes: &[u8]) -> Result<(), Errno> {
        let ranges: Vec<(u64, &[u8])> = segments
            .iter()
            .filter_map(|segment| {
                let (block, _) = segment.place?;
                Some((block, &bytes[part(base, segment.file_block, segment.blocks)]))
            })
            .collect();
        self.behind.write_all(&ranges).map_err(device_errno)
    }

    fn write_new(&self, number: u64, offset: u64, end: u64, data: &[u8], effects: WriteEffects) -> Result<(), Errno> {
        let _alone = self.stripe(number).write().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = blocks_of(offset, end);
        let (inode, segments) = {
            let state = self.state();
            (state.file(number)?, state.map(number, from, to)?)
        };
        if offset > inode.size && inode.size / BLOCK != from {
            self.clear_tail(number, &inode)?;
        }
        let bytes = self.whole_blocks(&inode, &segments, offset, data)?;
        let mut reserved = self.reserve(number, &segments, true)?;
        let places: Vec<Segment> = reserved
            .0
            .iter()
            .map(|extent| Segment {
                file_block: extent.file_block,
                blocks: extent.blocks,
                place: Some((extent.block, true)),
            })
            .chain(segments.iter().copied().filter(|segment| segment.place.is_some()))
            .collect();
        let result = self.put_blocks(&places, from, &bytes).and_then(|()| {
            self.change(|state| {
                let mut inode = state.inode(number)?;
                state.need_room(places.len() * 64)?;
                inode.blocks += fill_all(state, number, &reserved)?;
                state.set_written(number, from, to, true)?;
                inode.size = inode.size.max(end);
                effects.apply(&mut inode);
                state.drop_capabilities(number)?;
                state.is_essential(number);
                state.put_inode(number, &inode)
            })
        });
        self.settle(&mut reserved, result)
    }

    /// What was reserved is the file's, or given back.
    fn settle(&self, reserved: &mut Reserved, result: Result<(), Errno>) -> Result<(), Errno> {
        if result.is_err() {
            let mut state = self.state_mut();
            for extent in reserved.0.drain(..) {
                state.space.unreserve(Run { block: extent.block, blocks: extent.blocks });
            }
        }
        result
    }

    /// The bytes of all blocks that a write touches: what is written, and what the first and the last have beside it.
    fn whole_blocks<'a>(
        &self,
        inode: &Inode,
        segments: &[Segment],
        offset: u64,
        data: &'a [u8],
    ) -> Result<Cow<'a, [u8]>, Errno> {
        let end = offset + data.len() as u64;
        if offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK) {
            return Ok(Cow::Borrowed(data));
        }
        let (from, to) = blocks_of(offset, end);
        let mut bytes = vec![0; (to - from) as usize * BLOCK_BYTES];
        let mut edges = vec![from];
        if to - 1 != from {
            edges.push(to - 1);
        }
        for edge in edges {
            let covers = offset <= edge * BLOCK && end >= (edge + 1) * BLOCK;
            if !covers {
                let range = part(from, edge, 1);
                self.read_valid(inode, segments, edge, &mut bytes[range])?;
            }
        }
        let start = (offset - from * BLOCK) as usize;
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(Cow::Owned(bytes))
    }

    /// A block's bytes, with zeroes behind the file's end.
    fn read_valid(&self, inode: &Inode, segments: &[Segment], block: u64, bytes: &mut [u8]) -> Result<(), Errno> {
        let has = |segment: &&Segment| (segment.file_block..segment.file_block + segment.blocks).contains(&block);
        let segment = segments.iter().find(has);
        match segment.and_then(|segment| Some(segment.written()? + (block - segment.file_block))) {
            Some(place) => self.behind.read(place, bytes).map_err(device_errno)?,
            None => bytes.fill(0),
        }
        let valid = inode.size.saturating_sub(block * BLOCK).min(BLOCK) as usize;
        bytes[valid..].fill(0);
        Ok(())
    }

    /// Makes zeroes of what is behind the file's end in its last block, before the file grows.
    fn clear_tail(&self, number: u64, inode: &Inode) -> Result<(), Errno> {
        self.clear_within(number, inode, inode.size, inode.size.next_multiple_of(BLOCK))
    }

    /// Makes zeroes of bytes of one block, in place.
    fn clear_within(&self, number: u64, inode: &Inode, from: u64, to: u64) -> Result<(), Errno> {
        if from >= to {
            return Ok(());
        }
        let block = from / BLOCK;
        let segments = self.state().map(number, block, block + 1)?;
        let Some(place) = segments[0].written() else { return Ok(()) };
        let mut bytes = vec![0; BLOCK_BYTES];
        self.read_valid(inode, &segments, block, &mut bytes)?;
        bytes[(from - block * BLOCK) as usize..(to - block * BLOCK) as usize].fill(0);
        self.behind.write_all(&[(place, &bytes)]).map_err(device_errno)
    }

    /// Holds blocks for every hole among the segments.
    fn reserve(&self, number: u64, segments: &[Segment], is_written: bool) -> Result<Reserved, Errno> {
        let holes: Vec<Segment> = segments.iter().copied().filter(|segment| segment.place.is_none()).collect();
        if holes.is_empty() {
            return Ok(Reserved(Vec::new()));
        }
        for _ in 0..TRIES {
            let has_more = {
                let mut state = self.state_mut();
                match reserve_all(&mut state, number, &holes, is_written)? {
                    Some(reserved) => return Ok(reserved),
                    None => state.space.has_freed() || state.sequence > state.committed,
                }
            };
            if !has_more {
                break;
            }
            // Blocks that were freed can be had once that is committed.
            self.commit()?;
        }
        Err(Errno::NOSPC)
    }

    /// Sets a file's size.
    pub(crate) fn resize(&self, number: u64, size: u64, now: Time) -> Result<(), Errno> {
        if size > FILE_BYTES_MAX {
            return Err(Errno::FBIG);
        }
        let _alone = self.stripe(number).write().unwrap_or_else(PoisonError::into_inner);
        let before = self.state().file(number)?;
        if size > before.size {
            self.clear_tail(number, &before)?;
        }
        self.change(|state| {
            let mut inode = state.file(number)?;
            if size < inode.size {
                inode.blocks = state.punch(number, size.div_ceil(BLOCK), u64::MAX, inode.blocks)?;
            }
            inode.size = size;
            (inode.mtime, inode.ctime) = (now, now);
            state.is_essential(number);
            state.put_inode(number, &inode)
        })
    }

    /// Changes which blocks a range has. The file grows to the range's end if `grows` and if it is not a punch.
    ///
    /// # Errors
    /// `EFBIG`, `ENOSPC`, `EISDIR`, `EINVAL`, `ENOENT`, `EIO`.
    pub fn allocate(
        &self,
        number: u64,
        (offset, length): (u64, u64),
        allocation: Allocation,
        grows: bool,
        effects: WriteEffects,
    ) -> Result<(), Errno> {
        let end = end_of(offset, length)?;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let _alone = self.stripe(number).write().unwrap_or_else(PoisonError::into_inner);
        let before = self.state().file(number)?;
        let grows = grows && allocation != Allocation::Punch && end > before.size;
        if grows {
            self.clear_tail(number, &before)?;
        }
        let (inner_from, inner_to) = (offset.div_ceil(BLOCK), end / BLOCK);
        if allocation != Allocation::Reserve {
            self.clear_edges(number, &before, offset, end)?;
        }
        let (from, to) = blocks_of(offset, end);
        let mut reserved = match allocation {
            Allocation::Punch => Reserved(Vec::new()),
            Allocation::Reserve | Allocation::Zero => {
                let segments = self.state().map(number, from, to)?;
                self.reserve(number, &segments, false)?
            }
        };
        let result = self.change(|state| {
            let mut inode = state.inode(number)?;
            state.need_room(reserved.0.len() * 64)?;
            if inner_from < inner_to {
                match allocation {
                    Allocation::Punch => inode.blocks = state.punch(number, inner_from, inner_to, inode.blocks)?,
                    Allocation::Zero => state.set_written(number, inner_from, inner_to, false)?,
                    Allocation::Reserve => {}
                }
            }
            inode.blocks += fill_all(state, number, &reserved)?;
            if grows {
                inode.size = end;
            }
            effects.apply(&mut inode);
            state.drop_capabilities(number)?;
            state.is_essential(number);
            state.put_inode(number, &inode)
        });
        self.settle(&mut reserved, result)
    }

    /// Makes zeroes of the parts of blocks at both ends of a range.
    fn clear_edges(&self, number: u64, inode: &Inode, offset: u64, end: u64) -> Result<(), Errno> {
        let head = offset.next_multiple_of(BLOCK).min(end);
        self.clear_within(number, inode, offset, head)?;
        let tail = (end / BLOCK * BLOCK).max(head);
        self.clear_within(number, inode, tail, end)
    }

    /// The next data or hole at or behind an offset.
    ///
    /// # Errors
    /// `ENXIO` at the end, or when there is no more data; `EISDIR`, `EINVAL`, `ENOENT`, `EIO`.
    pub fn seek(&self, number: u64, offset: u64, seek: Seek) -> Result<u64, Errno> {
        let state = self.state();
        let size = state.file(number)?.size;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        let (from, end) = blocks_of(offset, size);
        // Behind what was looked at, and behind what is written from `from` on without a hole.
        let (mut at, mut written_to) = (from, from);
        loop {
            let extents = state.extents(number, at, end, SEARCH)?;
            for extent in extents.iter().filter(|extent| extent.is_written) {
                match seek {
                    Seek::Data => return Ok(offset.max(extent.file_block * BLOCK)),
                    Seek::Hole if extent.file_block > written_to => return Ok(offset.max(written_to * BLOCK)),
                    Seek::Hole => written_to = extent.end(),
                }
            }
            match (extents.last(), seek) {
                (Some(last), _) if extents.len() == SEARCH => at = last.end(),
                (_, Seek::Data) => return Err(Errno::NXIO),
                (_, Seek::Hole) => return Ok(offset.max(written_to * BLOCK).min(size)),
            }
        }
    }
}

/// Holds blocks for holes, or for none of them when there are not enough.
fn reserve_all(state: &mut State, number: u64, holes: &[Segment], is_written: bool) -> Result<Option<Reserved>, Errno> {
    let wanted: u64 = holes.iter().map(|hole| hole.blocks).sum();
    if wanted > state.space.free() {
        return Ok(None);
    }
    let mut reserved = Vec::new();
    for hole in holes {
        let (mut at, end) = (hole.file_block, hole.file_block + hole.blocks);
        // Behind what comes before it in the file, so that both are read in one piece.
        let before = state.extent_at_or_before(number, at)?;
        let mut goal = before.map_or(0, |extent| extent.block + (at - extent.file_block).min(extent.blocks));
        while at < end {
            let run = state.space.reserve(goal, end - at);
            let run = run.expect("there are as many free blocks as were counted");
            reserved.push(Extent { file_block: at, block: run.block, blocks: run.blocks, is_written });
            (at, goal) = (at + run.blocks, run.block + run.blocks);
        }
    }
    Ok(Some(Reserved(reserved)))
}

/// Gives a file what is reserved for it; how many blocks that are.
fn fill_all(state: &mut State, number: u64, reserved: &Reserved) -> Result<u64, Errno> {
    for extent in &reserved.0 {
        state.fill(number, *extent)?;
    }
    Ok(reserved.0.iter().map(|extent| extent.blocks).sum())
}

impl WriteEffects {
    fn apply(&self, inode: &mut Inode) {
        if let Some(now) = self.now {
            (inode.mtime, inode.ctime) = (now, now);
        }
        if self.is_unprivileged {
            inode.mode = without_privileges(inode);
        }
    }
}
