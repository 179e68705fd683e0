//! Best-offset prefetching (Michaud, "Best-offset hardware prefetching", HPCA 2016, section 4, and its table of
//! default parameters), with pages in the place of cache lines.
//!
//! One offset D is in use: a request for X brings in X + D. Meanwhile every offset of a list is tried: d scores when
//! X - d was requested recently enough that a prefetch of X, begun then, would be here now. What "recently" means is
//! learnt from the fills: a page Y that arrives puts Y - D into the table of recent requests.

use super::{Named, Prefetch, Seen};
use crate::eviction::{Parameter, Parameters};

/// The tag of an entry that holds nothing; tags have 12 bits.
const NO_TAG: u16 = u16::MAX;

/// Brings in the page at the offset that scored best of late.
#[derive(Debug)]
pub struct BestOffset {
    /// Partial tags of base addresses of pages that have arrived.
    recent: Box<[u16]>,
    index_bits: u32,
    offsets: Box<[u64]>,
    scores: Box<[u32]>,
    /// The offset that is tried next.
    next: usize,
    round: u32,
    /// The offset in use; none while prefetching is off.
    offset: Option<u64>,
    score_max: u32,
    rounds_max: u32,
    bad_score: u32,
}

impl Named for BestOffset {
    const NAME: &'static str = "best-offset";
    const SUMMARY: &'static str = "the page at the offset that would have been in time most often";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "offset_max",
            default: 256,
            min: 1,
            max: 4096,
            about: "greatest offset in pages; the list has those without a prime factor above 5 (Michaud: 52 up to 256)",
        },
        Parameter {
            name: "recent_entries_log2",
            default: 8,
            min: 2,
            max: 16,
            about: "entries of the table of recent requests, as a power of two (Michaud: 256)",
        },
        Parameter {
            name: "score_max",
            default: 31,
            min: 1,
            max: 1_000_000,
            about: "score that ends a learning phase (Michaud: SCOREMAX 31)",
        },
        Parameter {
            name: "rounds_max",
            default: 100,
            min: 1,
            max: 1_000_000,
            about: "rounds after which a learning phase ends anyhow (Michaud: ROUNDMAX 100)",
        },
        Parameter {
            name: "bad_score",
            default: 1,
            min: 0,
            max: 1_000_000,
            about: "a best score up to this turns prefetching off (Michaud: BADSCORE 1)",
        },
    ];

    fn new(parameters: &Parameters) -> Self {
        let offsets: Box<[u64]> = (1..=parameters.get("offset_max")).filter(|offset| is_smooth(*offset)).collect();
        let index_bits = parameters.get("recent_entries_log2") as u32;
        Self {
            recent: vec![NO_TAG; 1 << index_bits].into(),
            index_bits,
            scores: vec![0; offsets.len()].into(),
            offsets,
            next: 0,
            round: 0,
            offset: Some(1),
            score_max: parameters.get("score_max") as u32,
            rounds_max: parameters.get("rounds_max") as u32,
            bad_score: parameters.get("bad_score") as u32,
        }
    }
}

/// Whether a number has no prime factor above 5.
fn is_smooth(number: u64) -> bool {
    let rest = [2, 3, 5].into_iter().fold(number, |mut rest, prime| {
        while rest.is_multiple_of(prime) {
            rest /= prime;
        }
        rest
    });
    rest == 1
}

impl BestOffset {
    /// Index and tag of a page: the low bits folded with the next ones, and the twelve above the low ones.
    fn place(&self, page: u64) -> (usize, u16) {
        let mask = (1 << self.index_bits) - 1;
        let above = page >> self.index_bits;
        (((page ^ above) & mask) as usize, (above & 0xfff) as u16)
    }

    /// Tries the next offset of the list on a request for `page`.
    fn learn(&mut self, page: u64) {
        if let Some(base) = page.checked_sub(self.offsets[self.next]) {
            let (index, tag) = self.place(base);
            self.scores[self.next] += u32::from(self.recent[index] == tag);
        }
        self.next += 1;
        if self.next < self.offsets.len() {
            return;
        }
        self.next = 0;
        self.round += 1;
        let best = self.scores.iter().copied().max().unwrap_or(0);
        if best >= self.score_max || self.round == self.rounds_max {
            // Of equal scores the smallest offset: it wastes least at the end of a stream.
            let place = self.scores.iter().position(|score| *score == best).unwrap_or(0);
            self.offset = (best > self.bad_score).then(|| self.offsets[place]);
            self.scores.fill(0);
            self.round = 0;
        }
    }
}

impl Prefetch for BestOffset {
    fn requested(&mut self, page: u64, seen: Seen, wanted: &mut Vec<u64>) {
        if seen == Seen::Hit {
            return;
        }
        self.learn(page);
        wanted.extend(self.offset.and_then(|offset| page.checked_add(offset)));
    }

    fn filled(&mut self, page: u64, prefetched: bool) {
        // While prefetching is off every page that arrives counts, with an offset of 0.
        let base = match self.offset {
            Some(offset) if prefetched => page.checked_sub(offset),
            Some(_) => None,
            None => Some(page),
        };
        if let Some(base) = base {
            let (index, tag) = self.place(base);
            self.recent[index] = tag;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_the_52_published_offsets() {
        let offsets: Vec<u64> = (1..=256).filter(|offset| is_smooth(*offset)).collect();
        assert_eq!(offsets.len(), 52);
        assert_eq!(offsets[..12], [1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16]);
        assert_eq!(offsets[47..], [225, 240, 243, 250, 256]);
    }
}
