//! A range of bytes, and the blocks it touches.

use crate::volume::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Bytes of an export. The end is within the export, so nothing here overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub offset: u64,
    pub length: u64,
}

impl Span {
    pub fn new(offset: u64, length: u64) -> Span {
        Span { offset, length }
    }

    pub fn end(self) -> u64 {
        self.offset + self.length
    }

    /// Bytes of the first block before the span.
    pub fn lead(self) -> usize {
        (self.offset % BLOCK) as usize
    }

    pub fn is_aligned(self) -> bool {
        self.offset.is_multiple_of(BLOCK) && self.length.is_multiple_of(BLOCK)
    }

    /// The first block that the span touches.
    pub fn block(self) -> u64 {
        self.offset / BLOCK
    }

    /// The block after the last one that it touches.
    pub fn end_block(self) -> u64 {
        self.end().div_ceil(BLOCK)
    }

    pub fn blocks(self) -> u64 {
        self.end_block() - self.block()
    }

    /// The blocks that lie in it whole, first and end; none when they are equal.
    pub fn whole_blocks(self) -> (u64, u64) {
        let first = self.offset.div_ceil(BLOCK);
        (first, (self.end() / BLOCK).max(first))
    }

    /// Into how many pieces of at most `most` blocks it is cut.
    pub fn pieces(self, most: u64) -> u64 {
        self.blocks().div_ceil(most)
    }

    /// The blocks of one of those pieces, first and count.
    pub fn piece(self, most: u64, index: u64) -> (u64, u64) {
        let first = self.block() + index * most;
        (first, most.min(self.end_block() - first))
    }

    /// The blocks that it touches in part: at most the first and the last one.
    pub fn edges(self) -> impl Iterator<Item = u64> {
        let (first, last) = (self.block(), self.end_block().saturating_sub(1));
        let starts_inside = self.lead() != 0;
        let ends_inside = !self.end().is_multiple_of(BLOCK);
        let head = (starts_inside || (ends_inside && first == last)).then_some(first);
        let tail = (ends_inside && first != last).then_some(last);
        head.into_iter().chain(tail)
    }

    /// Which bytes of a block lie in it.
    pub fn within(self, block: u64) -> std::ops::Range<usize> {
        let from = self.offset.max(block * BLOCK) - block * BLOCK;
        let to = self.end().min((block + 1) * BLOCK) - block * BLOCK;
        from as usize..to as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every span of a few blocks, byte by byte.
    #[test]
    fn blocks_edges_and_pieces_are_those_that_counting_bytes_gives() {
        let interesting = [0, 1, 511, 4095, 4096, 4097, 8191, 8192, 8193, 12287, 12288];
        for &offset in &interesting {
            for &length in &interesting[1..] {
                let span = Span::new(offset, length);
                let touched = |block: u64| {
                    (block * BLOCK..(block + 1) * BLOCK).filter(|at| (offset..offset + length).contains(at)).count()
                        as u64
                };
                let blocks: Vec<u64> = (0..8).filter(|&block| touched(block) > 0).collect();
                assert_eq!((span.block(), span.end_block()), (blocks[0], blocks[blocks.len() - 1] + 1));
                let edges: Vec<u64> = blocks.iter().copied().filter(|&block| touched(block) < BLOCK).collect();
                assert_eq!(span.edges().collect::<Vec<_>>(), edges, "{span:?}");
                assert_eq!(span.is_aligned(), edges.is_empty());
                let (first, end) = span.whole_blocks();
                let whole: Vec<u64> = blocks.iter().copied().filter(|&block| touched(block) == BLOCK).collect();
                assert_eq!((first..end).collect::<Vec<_>>(), whole, "{span:?}");
                for &block in &blocks {
                    assert_eq!(span.within(block).len() as u64, touched(block));
                }
                let pieces: Vec<u64> = (0..span.pieces(2))
                    .flat_map(|index| {
                        let (first, count) = span.piece(2, index);
                        assert!((1..=2).contains(&count));
                        first..first + count
                    })
                    .collect();
                assert_eq!(pieces, blocks);
            }
        }
    }
}
