//! The verdicts against a model of a cache that knows which accesses missed: last used, first kept, in lines. Times are
//! forty times those of a machine with 32 MiB, so that there are a fortieth of the accesses.

use std::collections::{HashMap, VecDeque};

use super::*;

const LINES: usize = 13_000;
const HIT_NS: u64 = 400;
const MISS_NS: u64 = 6_000;
const PERIOD_NS: u64 = 2_000_000;
/// Lines that nobody uses have numbers from here on.
const OWN: usize = 1 << 40;

#[derive(Default)]
struct Cache {
    by_line: HashMap<usize, u64>,
    /// Uses, the oldest first; those that are not their line's latest do not count.
    uses: VecDeque<(usize, u64)>,
    clock: u64,
    lines: usize,
}

impl Cache {
    /// Whether the line was there.
    fn load(&mut self, line: usize) -> bool {
        self.clock += 1;
        self.uses.push_back((line, self.clock));
        let was_cached = self.by_line.insert(line, self.clock).is_some();
        while self.by_line.len() > self.lines {
            let Some((oldest, stamp)) = self.uses.pop_front() else { break };
            if self.by_line.get(&oldest) == Some(&stamp) {
                self.by_line.remove(&oldest);
            }
        }
        was_cached
    }

    fn flush(&mut self, line: usize) {
        self.by_line.remove(&line);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Runs a program for so long; the share of its time in which it waited for misses, by the samples and in truth.
/// `next` says which line is used next, and what the program does before, in nanoseconds.
fn run(cache_lines: usize, all_ns: u64, mut next: impl FnMut(&mut Random) -> (usize, u64)) -> (f64, f64) {
    let mut cache = Cache { lines: cache_lines, ..Cache::default() };
    let (mut survival, mut watch, mut own) = (Survival::new(), Watch::new(FLUSHED_NS), Watch::new(LOADED_NS));
    let mut random = Random(7);
    let (mut now, mut sample_ns, mut missed_ns, mut own_line) = (0, PERIOD_NS, 0, 0);
    let (mut decided, mut missed) = (0.0, 0.0);
    while now < all_ns {
        let (line, work_ns) = next(&mut random);
        now += work_ns;
        let was_cached = cache.load(line);
        let ns = if was_cached { HIT_NS } else { MISS_NS };
        now += ns;
        if !was_cached {
            missed_ns += ns;
        }
        if now < sample_ns {
            continue;
        }
        // The sample is in this access, or in the work before it: then nothing is watched.
        let in_access = now - sample_ns < ns;
        sample_ns += PERIOD_NS;
        if in_access {
            cache.flush(line);
            assert!(watch.push(0, Watched::new(line, now, 0)));
            own_line += 1;
            cache.load(OWN + own_line);
            own.push(own_line % RUNGS, Watched::new(OWN + own_line, now, 0));
        } else {
            decided += 1.0;
        }
        while let Some((rung, watched)) = own.due(now) {
            survival.note(rung, cache.load(watched.line));
        }
        while let Some((rung, watched)) = watch.due(now) {
            match survival.judge(rung, cache.load(watched.line), watched) {
                Verdict::Missed(share) => {
                    decided += 1.0;
                    missed += share;
                }
                Verdict::Again(rung, watched) => {
                    cache.flush(watched.line);
                    watch.push(rung, Watched { since_ns: now, ..watched });
                }
            }
        }
    }
    (missed / decided, missed_ns as f64 / now as f64)
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn what_is_small_hits_and_what_is_large_misses() {
    // A cycle over so many lines, by what the cache has.
    for (lines, expected, bar) in
        [(50, 0.0, 0.02), (LINES / 4, 0.0, 0.05), (LINES * 2, 1.0, 0.05), (LINES * 8, 1.0, 0.02)]
    {
        let mut at = 0;
        let (found, truth) = run(LINES, 8 * SECOND, |_| {
            at = (at + 1) % lines;
            (at, 0)
        });
        assert!((truth - expected).abs() < 0.05, "{lines}: the model itself: {truth}");
        assert!((found - expected).abs() < bar, "{lines}: {found} of {truth}");
    }
}

#[test]
fn a_mixture_is_what_it_is() {
    // Half of the uses are of few lines, the others of very many: misses take nearly all of the time.
    let (found, truth) = run(LINES, 8 * SECOND, |random| {
        let is_hot = random.below(2) == 0;
        (if is_hot { random.below(100) } else { random.below(LINES * 10) }, 0)
    });
    assert!((found - truth).abs() < 0.1, "{found} of {truth}");
    // Mostly work, and a miss now and then: lines stay longer than a program that only misses would let them.
    let mut at = 0;
    let (found, truth) = run(LINES, 20 * SECOND, |random| {
        at = (at + 1) % (LINES * 10);
        (at, random.below(48_000) as u64)
    });
    assert!((found - truth).abs() < 0.05, "{found} of {truth}");
}

#[test]
fn a_cache_that_others_share_is_measured_as_small_as_it_is() {
    // What would fit in all of the cache does not fit in what others leave of it.
    let mut at = 0;
    let (found, truth) = run(LINES / 8, 8 * SECOND, |_| {
        at = (at + 1) % (LINES / 2);
        (at, 0)
    });
    assert!(truth > 0.95 && (found - truth).abs() < 0.1, "{found} of {truth}");
}

#[test]
fn random_uses_of_more_than_the_cache_are_not_overestimated() {
    // Half of the uses miss, and take fifteen sixteenths of the time. With two trials of each line three quarters are
    // found.
    let (found, truth) = run(LINES, 8 * SECOND, |random| (random.below(LINES * 2), 0));
    assert!((0.9..0.97).contains(&truth) && (0.65..truth).contains(&found), "{found} of {truth}");
}

#[test]
fn what_is_watched_comes_back_in_its_turn_and_no_more_is_than_there_is_room_for() {
    let mut watch = Watch::new(FLUSHED_NS);
    for line in 0..WATCHED_MAX {
        assert!(watch.push(1, Watched::new(line, line as u64, 0)));
    }
    assert!(!watch.push(1, Watched::new(0, 0, 0)));
    assert_eq!(watch.due(FLUSHED_NS[1] - 1), None);
    for line in 0..10 {
        assert_eq!(watch.due(FLUSHED_NS[1] + 9).map(|(rung, watched)| (rung, watched.line)), Some((1, line)));
    }
    assert_eq!(watch.due(FLUSHED_NS[1] + 9), None);
    assert_eq!(std::iter::from_fn(|| watch.any()).count(), WATCHED_MAX - 10);
}

#[test]
fn what_is_used_again_after_lines_have_left_had_missed() {
    let mut survival = Survival::new();
    for rung in 0..RUNGS {
        (0..20).for_each(|_| survival.note(rung, rung < 3));
    }
    let watched = Watched::new(64, 0, 0);
    // Found there, but after so long that it had been brought in anew; in between it is not known.
    assert_eq!(survival.judge(5, true, watched), Verdict::Missed(1.0));
    assert_eq!(survival.judge(3, true, watched), Verdict::Again(0, Watched { hit_share: 0.5, trials: 1, ..watched }));
    // Found there in time, twice.
    let Verdict::Again(0, once) = survival.judge(2, true, watched) else { panic!("it is looked at twice") };
    assert_eq!(survival.judge(0, true, once), Verdict::Missed(0.0));
    // Not found: looked at again as long as lines stay.
    assert_eq!(survival.judge(2, false, watched), Verdict::Again(3, watched));
    assert_eq!(survival.judge(3, false, watched), Verdict::Missed(1.0));
}
