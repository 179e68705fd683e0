//! Which blocks are free.
//!
//! Two bitmaps. A block is *used* when a file's extent has it: that is what the store is told. It is *held* when it
//! must not be given out: it is used, or promised to a write that is under way, or freed by a transaction that is not
//! committed. A block is never used without being held.

use std::collections::BTreeSet;

/// Blocks of a chunk: what one value of the store says.
pub(crate) const CHUNK_BLOCKS: u64 = 4096;
const CHUNK_BYTES: usize = (CHUNK_BLOCKS / 8) as usize;
const WORD_BLOCKS: u64 = 64;

/// Consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Run {
    pub block: u64,
    pub blocks: u64,
}

/// A change of what is used, so that it can be taken back.
#[derive(Debug, Clone, Copy)]
enum Step {
    Claimed(Run),
    Freed(Run),
}

#[derive(Debug)]
pub(crate) struct Space {
    /// The first block of data.
    start: u64,
    end: u64,
    used: Vec<u64>,
    held: Vec<u64>,
    /// Held blocks of each chunk, so that full ones are skipped.
    held_of_chunk: Vec<u32>,
    /// Chunks that the store is to be told of.
    dirty: BTreeSet<u64>,
    free: u64,
    /// Freed since the last freeze; held until that is committed.
    freed: Vec<Run>,
    undo: Vec<Step>,
}

impl Space {
    /// All of `start..end` is free.
    pub fn new(start: u64, end: u64) -> Space {
        let chunks = end.div_ceil(CHUNK_BLOCKS);
        let words = (chunks * CHUNK_BLOCKS / WORD_BLOCKS) as usize;
        let mut space = Space {
            start,
            end,
            used: vec![0; words],
            held: vec![0; words],
            held_of_chunk: vec![0; chunks as usize],
            dirty: BTreeSet::new(),
            free: end,
            freed: Vec::new(),
            undo: Vec::new(),
        };
        // What is no block of data is never given out.
        space.hold(Run { block: 0, blocks: start });
        let last = chunks * CHUNK_BLOCKS;
        space.free += last - end;
        space.hold(Run { block: end, blocks: last - end });
        space
    }

    /// Takes over what the store says of a chunk; false when it cannot be.
    pub fn load(&mut self, chunk: u64, bytes: &[u8]) -> bool {
        if bytes.len() != CHUNK_BYTES || chunk >= self.held_of_chunk.len() as u64 {
            return false;
        }
        for (index, byte) in bytes.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte >> bit & 1 == 1) {
                let block = chunk * CHUNK_BLOCKS + index as u64 * 8 + bit;
                if !(self.start..self.end).contains(&block) {
                    return false;
                }
                set(&mut self.used, block, true);
                self.hold(Run { block, blocks: 1 });
            }
        }
        true
    }

    /// What the store is to be told of the chunks that have changed.
    pub fn take_dirty(&mut self) -> Vec<(u64, Vec<u8>)> {
        let chunks = std::mem::take(&mut self.dirty);
        chunks.into_iter().map(|chunk| (chunk, self.chunk(chunk))).collect()
    }

    /// A chunk's bytes.
    pub fn chunk(&self, chunk: u64) -> Vec<u8> {
        let words = (CHUNK_BLOCKS / WORD_BLOCKS) as usize;
        let first = chunk as usize * words;
        self.used[first..first + words].iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Chunks that there are.
    pub fn chunks(&self) -> u64 {
        self.held_of_chunk.len() as u64
    }

    /// Blocks of data.
    pub fn blocks(&self) -> u64 {
        self.end - self.start
    }

    /// Blocks that can be given out now.
    pub fn free(&self) -> u64 {
        self.free
    }

    /// Whether all of them exist and belong to files.
    pub fn is_used(&self, run: Run) -> bool {
        let end = run.block.saturating_add(run.blocks);
        run.block >= self.start && end <= self.end && (run.block..end).all(|block| get(&self.used, block))
    }

    /// Whether there are blocks that a commit makes free.
    pub fn has_freed(&self) -> bool {
        !self.freed.is_empty()
    }

    /// Holds up to `wanted` consecutive blocks, at `goal` or at the next free place behind it.
    pub fn reserve(&mut self, goal: u64, wanted: u64) -> Option<Run> {
        let goal = if (self.start..self.end).contains(&goal) { goal } else { self.start };
        let block = self.next_free(goal, self.end).or_else(|| self.next_free(self.start, goal))?;
        let mut blocks = 1;
        while blocks < wanted && block + blocks < self.end && !get(&self.held, block + blocks) {
            blocks += 1;
        }
        let run = Run { block, blocks };
        self.hold(run);
        Some(run)
    }

    /// Gives back what was reserved and not claimed.
    pub fn unreserve(&mut self, run: Run) {
        for block in run.block..run.block + run.blocks {
            assert!(get(&self.held, block) && !get(&self.used, block), "block {block} is reserved");
        }
        self.let_go(run);
    }

    /// What is reserved belongs to a file from now on.
    pub fn claim(&mut self, run: Run) {
        self.mark(run, true);
        self.undo.push(Step::Claimed(run));
    }

    /// No file has it any more; it is free once that is committed.
    pub fn release(&mut self, run: Run) {
        self.mark(run, false);
        self.undo.push(Step::Freed(run));
        self.freed.push(run);
    }

    /// From here on changes can be taken back.
    pub fn begin(&mut self) {
        self.undo.clear();
    }

    /// Takes back what was claimed and released since [`Space::begin`]; what was claimed is reserved again.
    pub fn roll_back(&mut self) {
        while let Some(step) = self.undo.pop() {
            match step {
                Step::Claimed(run) => self.mark(run, false),
                Step::Freed(run) => {
                    self.mark(run, true);
                    self.freed.pop();
                }
            }
        }
    }

    /// What was freed so far; [`Space::free_now`] is told when that is committed.
    pub fn take_freed(&mut self) -> Vec<Run> {
        std::mem::take(&mut self.freed)
    }

    /// What was freed can be given out.
    pub fn free_now(&mut self, runs: &[Run]) {
        for run in runs {
            self.let_go(*run);
        }
    }

    fn next_free(&self, from: u64, to: u64) -> Option<u64> {
        let mut block = from;
        while block < to {
            let chunk = block / CHUNK_BLOCKS;
            if u64::from(self.held_of_chunk[chunk as usize]) == CHUNK_BLOCKS {
                block = (chunk + 1) * CHUNK_BLOCKS;
                continue;
            }
            let word = !self.held[(block / WORD_BLOCKS) as usize] >> (block % WORD_BLOCKS);
            if word != 0 {
                let found = block + u64::from(word.trailing_zeros());
                return (found < to).then_some(found);
            }
            block = (block / WORD_BLOCKS + 1) * WORD_BLOCKS;
        }
        None
    }

    fn mark(&mut self, run: Run, is_used: bool) {
        for block in run.block..run.block + run.blocks {
            assert!(get(&self.held, block) && get(&self.used, block) != is_used, "block {block} has one owner");
            set(&mut self.used, block, is_used);
        }
        self.dirty.extend(run.block / CHUNK_BLOCKS..=(run.block + run.blocks - 1) / CHUNK_BLOCKS);
    }

    fn hold(&mut self, run: Run) {
        for block in run.block..run.block + run.blocks {
            assert!(!get(&self.held, block), "block {block} is not given out twice");
            set(&mut self.held, block, true);
            self.held_of_chunk[(block / CHUNK_BLOCKS) as usize] += 1;
        }
        self.free -= run.blocks;
    }

    fn let_go(&mut self, run: Run) {
        for block in run.block..run.block + run.blocks {
            assert!(get(&self.held, block) && !get(&self.used, block), "block {block} is nobody's");
            set(&mut self.held, block, false);
            self.held_of_chunk[(block / CHUNK_BLOCKS) as usize] -= 1;
        }
        self.free += run.blocks;
    }
}

fn get(bits: &[u64], block: u64) -> bool {
    bits[(block / WORD_BLOCKS) as usize] >> (block % WORD_BLOCKS) & 1 == 1
}

fn set(bits: &mut [u64], block: u64, value: bool) {
    let word = &mut bits[(block / WORD_BLOCKS) as usize];
    let bit = 1 << (block % WORD_BLOCKS);
    if value { *word |= bit } else { *word &= !bit }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_given_out_once_and_again_only_after_a_commit() {
        let (start, end) = (100, 9_001);
        let mut space = Space::new(start, end);
        assert_eq!((space.free(), space.blocks()), (end - start, end - start));
        let mut given = BTreeSet::new();
        let mut runs = Vec::new();
        while let Some(run) = space.reserve(5_000, 37) {
            assert!((start..end).contains(&run.block) && run.block + run.blocks <= end && run.blocks <= 37);
            assert!((run.block..run.block + run.blocks).all(|block| given.insert(block)));
            space.claim(run);
            runs.push(run);
        }
        assert_eq!((given.len() as u64, space.free()), (end - start, 0));
        space.release(runs[3]);
        assert!(space.reserve(start, 1).is_none() && space.has_freed());
        let freed = space.take_freed();
        space.free_now(&freed);
        assert_eq!(space.reserve(start, 1).unwrap().block, runs[3].block);
    }

    #[test]
    fn what_is_taken_back_leaves_no_trace_and_chunks_are_read_as_they_were_written() {
        let mut space = Space::new(10, 10_000);
        let kept = space.reserve(4_000, 200).unwrap();
        space.claim(kept);
        space.take_dirty();
        let before: Vec<_> = (0..space.chunks()).map(|chunk| space.chunk(chunk)).collect();
        space.begin();
        let run = space.reserve(0, 5).unwrap();
        space.claim(run);
        space.release(kept);
        space.roll_back();
        space.unreserve(run);
        assert!(!space.has_freed());
        let after: Vec<_> = (0..space.chunks()).map(|chunk| space.chunk(chunk)).collect();
        assert!(before == after);
        let mut again = Space::new(10, 10_000);
        for (chunk, bytes) in after.iter().enumerate() {
            assert!(again.load(chunk as u64, bytes));
        }
        assert_eq!(again.free(), space.free());
        assert!(!again.load(2, &[0xff; CHUNK_BYTES]), "a block that does not exist");
        assert!(!again.load(3, &[0; CHUNK_BYTES]) && !again.load(0, &[0; 5]));
    }
}
