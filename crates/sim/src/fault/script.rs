//! Which of a seed's operations are done, and what is told of them.
//!
//! Each operation draws from a generator of its own, made from the seed and the operation's number. So leaving
//! one out changes none of the others, and a failing run can be made smaller by leaving operations out.

use std::collections::{BTreeSet, VecDeque};

use crate::Rng;

/// Lines that are told of a failure.
const TOLD_MAX: usize = 24;

/// A run's operations, and its log.
#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    seed: u64,
    /// Operations that are left out.
    skipped: BTreeSet<u64>,
    /// Operations from this one on are left out, too.
    end: u64,
    /// Number of the next operation.
    pub next: u64,
    /// The last lines, if any are kept.
    log: Option<VecDeque<String>>,
}

impl Script {
    pub(super) fn new(seed: u64) -> Script {
        Script { seed, end: u64::MAX, ..Script::default() }
    }

    /// The same, with some operations left out.
    pub(super) fn without(seed: u64, skipped: &BTreeSet<u64>) -> Script {
        Script { skipped: skipped.clone(), ..Script::new(seed) }
    }

    /// The same, without what a smaller run would reach beyond the end of the whole one.
    pub(super) fn until(self, end: u64) -> Script {
        Script { end, ..self }
    }

    pub(super) fn told(mut self) -> Script {
        self.log = Some(VecDeque::new());
        self
    }

    /// The generator of the next operation; none when that is left out.
    pub(super) fn next_operation(&mut self) -> Option<Rng> {
        let number = self.next;
        self.next += 1;
        (number < self.end && !self.skipped.contains(&number))
            .then(|| Rng::new(self.seed.rotate_left(32) ^ number).fork())
    }

    /// Notes what is done, if anybody wants to know.
    pub(super) fn tell(&mut self, line: impl FnOnce() -> String) {
        let number = self.next.saturating_sub(1);
        if let Some(log) = &mut self.log {
            if log.len() == TOLD_MAX {
                log.pop_front();
            }
            log.push_back(format!("operation {number}: {}", line()));
        }
    }

    pub(super) fn lines(&mut self) -> Vec<String> {
        self.log.take().map(Vec::from).unwrap_or_default()
    }
}

/// Leaves out as many of `count` operations as possible while `fails` holds: halves first, then smaller parts
/// (Zeller and Hildebrandt, 2002), in at most `runs_max` runs.
pub(super) fn shrink(count: u64, runs_max: u32, mut fails: impl FnMut(&BTreeSet<u64>) -> bool) -> BTreeSet<u64> {
    let mut skipped = BTreeSet::new();
    let mut runs = 0;
    let mut part = count.div_ceil(2).max(1);
    loop {
        let kept: Vec<u64> = (0..count).filter(|number| !skipped.contains(number)).collect();
        for chunk in kept.chunks(part as usize) {
            if runs == runs_max {
                return skipped;
            }
            runs += 1;
            let mut fewer: BTreeSet<u64> = skipped.clone();
            fewer.extend(chunk);
            if fails(&fewer) {
                skipped = fewer;
            }
        }
        if part == 1 {
            return skipped;
        }
        part = part.div_ceil(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_that_needs_three_operations_is_shrunk_to_them() {
        let needed = [3, 50, 51];
        let skipped = shrink(64, 1_000, |skipped| needed.iter().all(|number| !skipped.contains(number)));
        let kept: Vec<u64> = (0..64).filter(|number| !skipped.contains(number)).collect();
        assert_eq!(kept, needed);
    }

    #[test]
    fn leaving_an_operation_out_changes_no_other() {
        let draws = |skipped: &[u64]| {
            let mut script = Script::without(7, &skipped.iter().copied().collect());
            (0..5).map(|_| script.next_operation().map(|mut rng| rng.next())).collect::<Vec<_>>()
        };
        let (all, fewer) = (draws(&[]), draws(&[2]));
        assert_eq!(fewer[2], None);
        assert!((0..5).filter(|&index| index != 2).all(|index| all[index] == fewer[index]));
    }
}
