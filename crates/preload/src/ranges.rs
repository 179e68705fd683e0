//! A set of pages, as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module. Ranges that touch are one.
#[derive(Debug, Default)]
pub struct Ranges {
    /// By first page, one past the last.
    ends: BTreeMap<u64, u64>,
}

impl Ranges {
    pub const fn new() -> Ranges {
        Ranges { ends: BTreeMap::new() }
    }

    /// Adds pages, whether they are there or not.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&first, &last)) = self.ends.range(..=end).next_back() {
            if last < start {
                break;
            }
            self.ends.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.ends.insert(start, end);
    }

    /// Takes pages out; says which of them were there.
    pub fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let found = self.within(range);
        for piece in &found {
            let Some((&first, &last)) = self.ends.range(..=piece.start).next_back() else {
                unreachable!("a piece lies in a range")
            };
            self.ends.remove(&first);
            if first < piece.start {
                self.ends.insert(first, piece.start);
            }
            if piece.end < last {
                self.ends.insert(piece.end, last);
            }
        }
        found
    }

    /// Which pages of a range are there.
    pub fn within(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.is_empty() {
            return Vec::new();
        }
        let before = self.ends.range(..=range.start).next_back().map_or(range.start, |(&first, _)| first);
        let touching = self.ends.range(before..range.end).filter(|(_, last)| **last > range.start);
        touching.map(|(&first, &last)| first.max(range.start)..last.min(range.end)).collect()
    }

    /// Whether all pages of a range are there.
    pub fn contains(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.within(range.clone()) == [range]
    }

    /// Takes the first so many pages in a row whose first is a multiple of `alignment`.
    pub fn take(&mut self, pages: u64, alignment: u64) -> Option<Range<u64>> {
        let fits = |(&first, &last): (&u64, &u64)| {
            let start = first.next_multiple_of(alignment);
            (start + pages <= last).then_some(start..start + pages)
        };
        let found = self.ends.iter().find_map(fits)?;
        self.remove(found.clone());
        Some(found)
    }

    /// How many pages there are.
    pub fn pages(&self) -> u64 {
        self.ends.iter().map(|(first, last)| last - first).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 64;

    fn check(ranges: &Ranges, reference: &[bool; PAGES]) {
        let mut last_end = None;
        for (&first, &last) in &ranges.ends {
            assert!(first < last && last_end.is_none_or(|end| end < first), "{:?}", ranges.ends);
            last_end = Some(last);
        }
        for (page, is_there) in (0..).zip(reference) {
            assert_eq!(ranges.contains(page..page + 1), *is_there, "page {page} of {:?}", ranges.ends);
        }
        assert_eq!(ranges.pages(), reference.iter().map(|there| u64::from(*there)).sum::<u64>());
    }

    #[test]
    fn a_set_of_ranges_is_a_set_of_pages() {
        let mut state = 7_u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut ranges, mut reference) = (Ranges::new(), [false; PAGES]);
        for _ in 0..20_000 {
            let start = random(PAGES as u64);
            let range = start..start + random(PAGES as u64 - start + 1);
            let places = range.start as usize..range.end as usize;
            match random(3) {
                0 => {
                    ranges.insert(range);
                    reference[places].fill(true);
                }
                1 => {
                    let were: u64 = ranges.remove(range).iter().map(|piece| piece.end - piece.start).sum();
                    assert_eq!(were, reference[places.clone()].iter().map(|there| u64::from(*there)).sum::<u64>());
                    reference[places].fill(false);
                }
                _ => {
                    let (pages, alignment) = (random(6) + 1, 1 << random(4));
                    let fits = |start: &usize| {
                        start.is_multiple_of(alignment as usize)
                            && reference.get(*start..start + pages as usize).is_some_and(|part| part.iter().all(|t| *t))
                    };
                    let expected = (0..PAGES).find(fits);
                    let taken = ranges.take(pages, alignment);
                    assert_eq!(taken.as_ref().map(|range| range.start as usize), expected);
                    if let Some(start) = expected {
                        reference[start..start + pages as usize].fill(false);
                    }
                }
            }
            check(&ranges, &reference);
        }
    }
}
