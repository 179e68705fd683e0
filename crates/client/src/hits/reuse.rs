//! Whether what was sampled had missed the processor's caches, by what becomes of its line.
//!
//! The access that was sampled has brought its line into the caches itself, so a look at the line says nothing. But the
//! line is *flushed*, and looked at a while later: if it is there again, the program has used it again meanwhile. If
//! not, it is flushed once more and looked at after as long again. So the time after which the line is used again is
//! known within a factor of two. What was used before that long ago missed the caches if lines do not stay so long in
//! them. How long they stay is measured with lines of the sampler's own, which nobody else uses: each is loaded once
//! and looked at once after such a time. Other programs and machines that share the caches are in that measurement.

/// Times after which a line is looked at.
pub const RUNGS: usize = 9;
/// How long these are since the line was sampled. The first is what two samples of a thread are apart.
const AFTER_NS: [u64; RUNGS] = {
    let mut after = [2_000_000; RUNGS];
    let mut rung = 1;
    while rung < RUNGS {
        after[rung] = after[rung - 1] * 2;
        rung += 1;
    }
    after
};
/// How long a line of the window stays untouched before each look, since it was flushed.
pub const FLUSHED_NS: [u64; RUNGS] = {
    let mut whiles = AFTER_NS;
    let mut rung = 1;
    while rung < RUNGS {
        whiles[rung] = AFTER_NS[rung] - AFTER_NS[rung - 1];
        rung += 1;
    }
    whiles
};
/// The same of a line that nobody uses, since it was loaded: it is looked at once.
pub const LOADED_NS: [u64; RUNGS] = AFTER_NS;
/// Lines that wait for a look, for each of the times.
const WATCHED_MAX: usize = 256;
/// How often a line has to be used again in time before its sample counts as a hit. A thread waits for a miss several
/// times as long as for a hit, so of a line that is found in the caches now and then it was rather a miss that was
/// sampled; one that is used all the time is there each time. More would count more of the looks at such lines that
/// go wrong.
const TRIALS: u32 = 2;
/// The newest look counts so much against what was known, once there were more: 1 in 16.
const NEWEST_MAX: f64 = 16.0;
/// Where fewer lines than that stay so long, what was not used within that time had missed.
const STAY_MIN: f64 = 0.25;

/// How many of the lines that nobody uses are still in the caches after each time.
#[derive(Clone, Copy, Debug)]
pub struct Survival {
    shares: [f64; RUNGS],
    looks: [f64; RUNGS],
}

impl Survival {
    /// Until something is known, lines stay: nothing is decided too early.
    pub fn new() -> Survival {
        Survival { shares: [1.0; RUNGS], looks: [0.0; RUNGS] }
    }

    /// A line that nobody used was looked at.
    pub fn note(&mut self, rung: usize, was_cached: bool) {
        let (share, looks) = (&mut self.shares[rung], &mut self.looks[rung]);
        *looks = (*looks + 1.0).min(NEWEST_MAX);
        *share += (f64::from(u8::from(was_cached)) - *share) / *looks;
    }

    /// What a look at a line says.
    pub fn judge(&self, rung: usize, was_cached: bool, watched: Watched) -> Verdict {
        let missed = if was_cached {
            // Used again between the look before and this one. Before the first look nothing is known of when: but
            // lines that are used all the time are there whenever one looks, however soon others leave.
            rung.checked_sub(1).map_or(0.0, |before| 1.0 - f64::midpoint(self.shares[before], self.shares[rung]))
        } else if rung + 1 == RUNGS || self.shares[rung] < STAY_MIN {
            1.0
        } else {
            return Verdict::Again(rung + 1, watched);
        };
        let (hit_share, trials) = (watched.hit_share * (1.0 - missed), watched.trials + 1);
        if trials == TRIALS || hit_share <= 0.0 {
            return Verdict::Missed(1.0 - hit_share);
        }
        Verdict::Again(0, Watched { hit_share, trials, ..watched })
    }
}

/// What is known of a sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The share of such samples that missed.
    Missed(f64),
    /// The line has to be flushed, and looked at again after the time of a rung.
    Again(usize, Watched),
}

/// A line that is to be looked at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Watched {
    /// Its address.
    pub line: usize,
    /// When it was sampled.
    pub sampled_ns: u64,
    /// When it was flushed, or loaded if it is nobody's.
    pub since_ns: u64,
    /// The latency that a hit is to have there.
    pub hit_ns: u64,
    /// The share of such samples that hit, by the trials that there were.
    pub hit_share: f64,
    /// How many there were.
    pub trials: u32,
}

impl Watched {
    /// A line that was flushed or loaded just now.
    pub fn new(line: usize, now_ns: u64, hit_ns: u64) -> Watched {
        Watched { line, sampled_ns: now_ns, since_ns: now_ns, hit_ns, hit_share: 1.0, trials: 0 }
    }
}

/// The lines that are to be looked at, each at its time. No memory is asked for once it is made.
pub struct Watch {
    whiles_ns: [u64; RUNGS],
    rings: [Ring; RUNGS],
}

struct Ring {
    places: Vec<Watched>,
    first: usize,
    count: usize,
}

impl Watch {
    /// None, with the time from a line's `since_ns` to each look.
    pub fn new(whiles_ns: [u64; RUNGS]) -> Watch {
        let ring = |_| Ring { places: vec![Watched::new(0, 0, 0); WATCHED_MAX], first: 0, count: 0 };
        Watch { whiles_ns, rings: std::array::from_fn(ring) }
    }

    /// Watches a line; false if there is no room for it.
    pub fn push(&mut self, rung: usize, watched: Watched) -> bool {
        let ring = &mut self.rings[rung];
        if ring.count == WATCHED_MAX {
            return false;
        }
        ring.places[(ring.first + ring.count) % WATCHED_MAX] = watched;
        ring.count += 1;
        true
    }

    /// A line whose time has come, with its rung.
    pub fn due(&mut self, now_ns: u64) -> Option<(usize, Watched)> {
        let rung = (0..RUNGS).find(|rung| {
            let ring = &self.rings[*rung];
            ring.count > 0 && now_ns >= ring.places[ring.first].since_ns + self.whiles_ns[*rung]
        })?;
        self.take(rung)
    }

    /// Any line, at the end.
    pub fn any(&mut self) -> Option<(usize, Watched)> {
        (0..RUNGS).find_map(|rung| self.take(rung))
    }

    fn take(&mut self, rung: usize) -> Option<(usize, Watched)> {
        let ring = &mut self.rings[rung];
        ring.count = ring.count.checked_sub(1)?;
        let watched = ring.places[ring.first];
        ring.first = (ring.first + 1) % WATCHED_MAX;
        Some((rung, watched))
    }
}

#[cfg(test)]
#[path = "reuse_tests.rs"]
mod tests;
