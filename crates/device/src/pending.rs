//! Which record of the write buffer holds each logical block: the first place where a read looks.
//!
//! Runs of blocks by their first block, none overlapping, none empty. A later record takes its blocks
//! from the runs under it, so the newest one always shows. A record's runs lie within its own range,
//! which is what makes removal cheap.

use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    blocks: u64,
    sequence: u64,
}

/// One answer of [`Pending::lookup`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub slba: u64,
    pub blocks: u64,
    /// The record that holds these blocks; none of the buffer's does if `None`.
    pub sequence: Option<u64>,
}

/// The index.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    runs: BTreeMap<u64, Run>,
}

impl Pending {
    /// Enters a record: its blocks read from it now.
    pub(crate) fn insert(&mut self, slba: u64, blocks: u64, sequence: u64) {
        self.cut(slba, slba + blocks);
        self.runs.insert(slba, Run { blocks, sequence });
    }

    /// Forgets a record that the flash has now.
    pub(crate) fn remove(&mut self, slba: u64, blocks: u64, sequence: u64) {
        let (mut at, end) = (slba, slba + blocks);
        // The last run found may be a newer record's, and reach beyond the range.
        while at < end
            && let Some((&start, &run)) = self.runs.range(at..end).next()
        {
            if run.sequence == sequence {
                self.runs.remove(&start);
            }
            at = start + run.blocks;
        }
    }

    /// Calls `found` for each run of the range in order, gaps included.
    pub(crate) fn lookup(&self, slba: u64, blocks: u64, mut found: impl FnMut(Found)) {
        let end = slba + blocks;
        let mut at = slba;
        let before = self.runs.range(..=slba).next_back().filter(|(start, run)| *start + run.blocks > slba);
        let first = before.map_or(slba, |(start, _)| *start);
        for (&start, run) in self.runs.range(first..end) {
            if start > at {
                found(Found { slba: at, blocks: start - at, sequence: None });
                at = start;
            }
            let stop = end.min(start + run.blocks);
            found(Found { slba: at, blocks: stop - at, sequence: Some(run.sequence) });
            at = stop;
        }
        if at < end {
            found(Found { slba: at, blocks: end - at, sequence: None });
        }
    }

    /// True if no block is in the buffer.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Takes `start..end` out of every run.
    fn cut(&mut self, start: u64, end: u64) {
        let before = self.runs.range(..start).next_back().map(|(&at, &run)| (at, run));
        if let Some((at, run)) = before.filter(|(at, run)| at + run.blocks > start) {
            self.runs.insert(at, Run { blocks: start - at, ..run });
            if at + run.blocks > end {
                self.runs.insert(end, Run { blocks: at + run.blocks - end, ..run });
            }
        }
        while let Some((&at, &run)) = self.runs.range(start..end).next() {
            self.runs.remove(&at);
            if at + run.blocks > end {
                self.runs.insert(end, Run { blocks: at + run.blocks - end, ..run });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_array() {
        for seed in 1..=200u64 {
            let mut state = seed;
            let mut draw = |bound: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % bound
            };
            let mut plain = [None::<u64>; 64];
            let mut pending = Pending::default();
            let mut records = Vec::new();
            for sequence in 1..=120 {
                if draw(3) == 0 && !records.is_empty() {
                    let (slba, blocks, sequence) = records.remove(0);
                    pending.remove(slba, blocks, sequence);
                    plain.iter_mut().filter(|held| **held == Some(sequence)).for_each(|held| *held = None);
                    continue;
                }
                let slba = draw(64);
                let blocks = 1 + draw(64 - slba);
                pending.insert(slba, blocks, sequence);
                plain[slba as usize..(slba + blocks) as usize].fill(Some(sequence));
                records.push((slba, blocks, sequence));
                let (from, mut seen) = (draw(64), Vec::new());
                pending.lookup(from, 64 - from, |found| {
                    assert_eq!(found.slba, from + seen.len() as u64, "seed {seed}");
                    seen.extend((0..found.blocks).map(|_| found.sequence));
                });
                assert_eq!(seen, plain[from as usize..], "seed {seed}");
            }
            for (slba, blocks, sequence) in records {
                pending.remove(slba, blocks, sequence);
            }
            assert!(pending.is_empty(), "seed {seed}");
        }
    }
}
