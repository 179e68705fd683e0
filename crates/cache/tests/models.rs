//! Each policy beside a model written from its definition, with plain lists: every hit and every page that leaves.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::collections::{HashMap, VecDeque};

use osier_cache::{
    Belady, Cache, CacheConfig, Eviction, Frames, Op, Outcome, ParameterValues, Recall, SetIndex, Shape, SplitMix64,
    WriteMode, next_uses, policy,
};
use support::{TRACES, trace};

/// One set of a cache, by the definition of its policy. Says whether the page was there, and which one left.
trait Model {
    fn request(&mut self, page: u64) -> (bool, Option<u64>);
}

/// FIFO, LIFO, LRU, LIP and MRU: a list from old to new, and rules for each of the three things that happen.
struct List {
    pages: Vec<u64>,
    size: usize,
    use_moves: bool,
    enters_old: bool,
    newest_leaves: bool,
}

impl Model for List {
    fn request(&mut self, page: u64) -> (bool, Option<u64>) {
        if let Some(at) = self.pages.iter().position(|known| *known == page) {
            if self.use_moves {
                self.pages.remove(at);
                self.pages.push(page);
            }
            return (true, None);
        }
        let full = self.pages.len() == self.size;
        let leaves = if self.newest_leaves { self.pages.len().wrapping_sub(1) } else { 0 };
        let left = full.then(|| self.pages.remove(leaves));
        self.pages.insert(if self.enters_old { 0 } else { self.pages.len() }, page);
        (false, left)
    }
}

/// CLOCK as a FIFO whose used pages go round again.
struct SecondChance {
    queue: VecDeque<(u64, u64)>,
    size: usize,
    max: u64,
    first: u64,
}

impl Model for SecondChance {
    fn request(&mut self, page: u64) -> (bool, Option<u64>) {
        if let Some((_, count)) = self.queue.iter_mut().find(|(known, _)| *known == page) {
            *count = (*count + 1).min(self.max);
            return (true, None);
        }
        let mut left = None;
        while self.queue.len() == self.size {
            let (oldest, count) = self.queue.pop_front().unwrap();
            if count == 0 {
                left = Some(oldest);
            } else {
                self.queue.push_back((oldest, count - 1));
            }
        }
        self.queue.push_back((page, self.first));
        (false, left)
    }
}

/// SIEVE, Algorithm 1 of the paper; the list is from old to new.
struct SievePaper {
    pages: Vec<(u64, bool)>,
    size: usize,
    hand: usize,
}

impl Model for SievePaper {
    fn request(&mut self, page: u64) -> (bool, Option<u64>) {
        if let Some((_, visited)) = self.pages.iter_mut().find(|(known, _)| *known == page) {
            *visited = true;
            return (true, None);
        }
        let mut left = None;
        if self.pages.len() == self.size {
            // Behind the newest comes the oldest.
            self.hand %= self.pages.len();
            while self.pages[self.hand].1 {
                self.pages[self.hand].1 = false;
                self.hand = (self.hand + 1) % self.pages.len();
            }
            left = Some(self.pages.remove(self.hand).0);
            // The hand is now at the next newer page; at the end of the list it starts from the oldest.
            if self.hand == self.pages.len() {
                self.hand = 0;
            }
        }
        self.pages.push((page, false));
        (false, left)
    }
}

/// S3-FIFO in the variant that the policy's file describes.
struct ThreeQueues {
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    ghosts: VecDeque<u64>,
    uses: HashMap<u64, u32>,
    size: usize,
    has_evicted: bool,
}

impl ThreeQueues {
    fn small_size(&self) -> usize {
        (self.size / 10).max(1)
    }

    fn evict(&mut self) -> u64 {
        self.has_evicted = true;
        if self.main.len() <= self.size - self.small_size() {
            while let Some(page) = self.small.pop_front() {
                if self.uses[&page] >= 2 {
                    self.uses.insert(page, 0);
                    self.main.push_back(page);
                    continue;
                }
                self.ghosts.push_back(page);
                if self.ghosts.len() > self.size * 9 / 10 {
                    self.ghosts.pop_front();
                }
                return page;
            }
        }
        loop {
            let page = self.main.pop_front().unwrap();
            match self.uses[&page].min(3) {
                0 => return page,
                uses => {
                    self.uses.insert(page, uses - 1);
                    self.main.push_back(page);
                }
            }
        }
    }
}

impl Model for ThreeQueues {
    fn request(&mut self, page: u64) -> (bool, Option<u64>) {
        if self.small.contains(&page) || self.main.contains(&page) {
            *self.uses.get_mut(&page).unwrap() += 1;
            return (true, None);
        }
        let was_ghost = self.ghosts.contains(&page);
        self.ghosts.retain(|ghost| *ghost != page);
        let left = (self.small.len() + self.main.len() == self.size).then(|| self.evict());
        self.uses.insert(page, 0);
        let small_is_full = !self.has_evicted && self.small.len() >= self.small_size();
        if was_ghost || small_is_full {
            self.main.push_back(page)
        } else {
            self.small.push_back(page)
        }
        (false, left)
    }
}

/// ARC, Figure 4 of the paper, with a real number for `p`; lists from least to most recently used.
#[derive(Default)]
struct ArcPaper {
    t1: Vec<u64>,
    t2: Vec<u64>,
    b1: Vec<u64>,
    b2: Vec<u64>,
    p: f64,
    c: usize,
}

impl ArcPaper {
    fn replace(&mut self, in_b2: bool) -> u64 {
        let t1 = self.t1.len() as f64;
        if (!self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p))) || self.t2.is_empty() {
            let page = self.t1.remove(0);
            self.b1.push(page);
            page
        } else {
            let page = self.t2.remove(0);
            self.b2.push(page);
            page
        }
    }
}

impl Model for ArcPaper {
    fn request(&mut self, page: u64) -> (bool, Option<u64>) {
        if self.t1.contains(&page) || self.t2.contains(&page) {
            self.t1.retain(|known| *known != page);
            self.t2.retain(|known| *known != page);
            self.t2.push(page);
            return (true, None);
        }
        let full = self.t1.len() + self.t2.len() == self.c;
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if let Some(at) = self.b1.iter().position(|known| *known == page) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            self.b1.remove(at);
            let left = full.then(|| self.replace(false));
            self.t2.push(page);
            return (false, left);
        }
        if let Some(at) = self.b2.iter().position(|known| *known == page) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            self.b2.remove(at);
            let left = full.then(|| self.replace(true));
            self.t2.push(page);
            return (false, left);
        }
        let mut left = None;
        if full && self.t1.len() + self.b1.len() == self.c {
            if self.t1.len() < self.c {
                self.b1.remove(0);
                left = Some(self.replace(false));
            } else {
                left = Some(self.t1.remove(0));
            }
        } else if full {
            if self.t1.len() + self.t2.len() + self.b1.len() + self.b2.len() == 2 * self.c {
                self.b2.remove(0);
            }
            left = Some(self.replace(false));
        }
        self.t1.push(page);
        (false, left)
    }
}

fn list(size: usize, use_moves: bool, enters_old: bool, newest_leaves: bool) -> Box<dyn Model> {
    Box::new(List { pages: Vec::new(), size, use_moves, enters_old, newest_leaves })
}

/// The policies that have a model: name, parameters, and the model of a set.
type Case = (&'static str, &'static [(&'static str, u64)], fn(usize) -> Box<dyn Model>);

const CASES: [Case; 11] = [
    ("fifo", &[], |size| list(size, false, false, false)),
    ("lifo", &[], |size| list(size, false, false, true)),
    ("lru", &[], |size| list(size, true, false, false)),
    ("lru", &[("enter_oldest", 1)], |size| list(size, true, true, false)),
    ("mru", &[], |size| list(size, true, false, true)),
    ("clock", &[], |size| Box::new(SecondChance { queue: VecDeque::new(), size, max: 1, first: 0 })),
    ("clock", &[("bits", 2), ("first_count", 1)], |size| {
        Box::new(SecondChance { queue: VecDeque::new(), size, max: 3, first: 1 })
    }),
    ("sieve", &[], |size| Box::new(SievePaper { pages: Vec::new(), size, hand: 0 })),
    ("s3-fifo", &[], |size| {
        let (small, main, ghosts, uses) = Default::default();
        Box::new(ThreeQueues { small, main, ghosts, uses, size, has_evicted: false })
    }),
    ("arc", &[], |size| Box::new(ArcPaper { c: size, ..Default::default() })),
    // With one frame a set every policy has no choice.
    ("random", &[], |_| list(1, false, false, false)),
];

fn config(frames: u32, ways: u32, set_index: SetIndex) -> CacheConfig {
    CacheConfig {
        frames,
        ways,
        set_index,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: 0,
        eviction: "fifo".to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: "none".to_owned(),
        prefetch_parameters: ParameterValues::new(),
        write_log: None,
    }
}

/// Runs a policy beside the models of its sets; the first difference is the error.
fn compare<P: Eviction>(
    config: &CacheConfig,
    policy: P,
    pages: &[u64],
    model: fn(usize) -> Box<dyn Model>,
) -> Result<(), String> {
    let mut cache = Cache::new(config, policy).unwrap();
    let Shape { sets, ways, .. } = cache.shape();
    let mut models: Vec<Box<dyn Model>> = (0..sets).map(|_| model(ways as usize)).collect();
    let mut set_of = HashMap::new();
    for (request, page) in pages.iter().enumerate() {
        let outcome = cache.at_once(*page, Op::READ);
        let (frame, found) = match outcome {
            Outcome::Hit { frame } => (frame, (true, None)),
            Outcome::Miss(fill) => (fill.frame, (false, fill.evicted.map(|evicted| evicted.page))),
            _ => return Err(format!("request {request}: {outcome:?}")),
        };
        let set = frame / ways;
        if config.set_index == SetIndex::Modulo && u64::from(set) != page % u64::from(sets) {
            return Err(format!("request {request}: page {page} is in set {set}"));
        }
        if *set_of.entry(*page).or_insert(set) != set {
            return Err(format!("request {request}: page {page} has changed its set"));
        }
        let expected = models[set as usize].request(*page);
        if found != expected {
            return Err(format!("request {request}, page {page}: {found:?}, the model says {expected:?}"));
        }
        if cache.stats().policy_faults > 0 {
            return Err(format!("request {request}: the policy named {:?}", cache.last_fault()));
        }
    }
    cache.audit()
}

/// Configurations and traces drawn from a seed.
fn drawn(seed: u64) -> (CacheConfig, Vec<u64>, String) {
    let mut random = SplitMix64::new(seed);
    let ways_max = [2, 8, 64, 300][random.below(4) as usize];
    let ways = 1 + random.below(ways_max) as u32;
    let sets = [1, 1, 1 + random.below(9) as u32][random.below(3) as usize];
    let index = if random.below(2) == 0 { SetIndex::Modulo } else { SetIndex::Hash };
    let name = TRACES[random.below(TRACES.len() as u64) as usize];
    let pages = 100 + random.below(900);
    let text = format!("seed {seed}: {sets} sets of {ways} by {index:?}, {name} over {pages} pages");
    (config(sets * ways, ways, index), trace(name, pages, 3000, seed), text)
}

#[test]
fn every_policy_is_what_its_definition_says() {
    for seed in 0..400 {
        let (config, pages, text) = drawn(seed);
        for (name, parameters, model) in CASES {
            let mut config = config.clone();
            if name == "random" {
                config.ways = 1;
            }
            let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
            let policy = policy(name, config.shape().unwrap(), &parameters, seed).unwrap();
            compare(&config, policy, &pages, model).unwrap_or_else(|error| panic!("{name}, {text}: {error}"));
        }
    }
}

#[test]
fn nothing_misses_less_than_the_optimum_and_a_search_agrees_with_it() {
    for seed in 0..200 {
        let (config, pages, text) = drawn(seed);
        let shape = config.shape().unwrap();
        let next = next_uses(pages.iter().copied());
        let mut optimum = Cache::new(&config, Belady::new(shape, next.clone())).unwrap();
        // The definition: a list of each set's pages with their next uses; the farthest leaves.
        let mut sets: HashMap<u32, Vec<(u64, u64)>> = HashMap::new();
        let mut misses = 0;
        for (page, next) in pages.iter().zip(&next) {
            let frame = match optimum.at_once(*page, Op::READ) {
                Outcome::Hit { frame } | Outcome::Miss(osier_cache::Fill { frame, .. }) => frame,
                other => panic!("{other:?}"),
            };
            let set = sets.entry(frame / shape.ways).or_default();
            match set.iter_mut().find(|(known, _)| known == page) {
                Some((_, use_at)) => *use_at = *next,
                None => {
                    misses += 1;
                    if set.len() == shape.ways as usize {
                        let farthest = (0..set.len()).max_by_key(|at| set[*at].1).unwrap();
                        set.swap_remove(farthest);
                    }
                    set.push((*page, *next));
                }
            }
        }
        assert_eq!(optimum.stats().misses, misses, "{text}");
        for (name, ..) in CASES {
            let policy = policy(name, shape, &ParameterValues::new(), seed).unwrap();
            let mut cache = Cache::new(&config, policy).unwrap();
            for page in &pages {
                cache.at_once(*page, Op::READ);
            }
            assert!(cache.stats().misses >= misses, "{name} misses less than the optimum, {text}");
        }
    }
}

#[test]
fn random_eviction_is_even_and_follows_its_seed() {
    let config = config(8, 8, SetIndex::Modulo);
    let run = |seed| {
        let policy = policy("random", config.shape().unwrap(), &ParameterValues::new(), seed).unwrap();
        let mut cache = Cache::new(&config, policy).unwrap();
        let mut counts = [0_u32; 8];
        for page in 0..80_008 {
            if let Outcome::Miss(fill) = cache.at_once(page, Op::READ)
                && fill.evicted.is_some()
            {
                counts[fill.frame as usize] += 1;
            }
        }
        counts
    };
    // 80,000 draws among 8: the standard deviation of each count is 94.
    assert!(run(1).iter().all(|count| count.abs_diff(10_000) < 500), "{:?}", run(1));
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// A policy with one mistake, around a right one.
struct Wrong {
    right: Box<dyn Eviction>,
    mistake: Mistake,
    calls: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mistake {
    /// One use of a thousand is not seen.
    ForgetsATouch,
    /// Ghosts are not looked for.
    ForgetsGhosts,
    /// One page of a thousand comes in twice as far as the policy knows.
    ForgetsWhatItRecalled,
    /// A page is touched as it comes in.
    CountsArrivalAsUse,
}

impl Eviction for Wrong {
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        let recall = self.right.incoming(set, page, demanded);
        if self.mistake == Mistake::ForgetsGhosts { Recall::NOTHING } else { recall }
    }
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        let forgets = self.mistake == Mistake::ForgetsWhatItRecalled;
        self.right.inserted(set, frame, page, if forgets { Recall::NOTHING } else { recall });
        if self.mistake == Mistake::CountsArrivalAsUse {
            self.right.touched(set, frame);
        }
    }
    fn touched(&mut self, set: u32, frame: u32) {
        self.calls += 1;
        if self.mistake != Mistake::ForgetsATouch || !self.calls.is_multiple_of(1000) {
            self.right.touched(set, frame);
        }
    }
    fn victim(&mut self, set: u32, recall: Recall, frames: &Frames<'_>) -> Option<u32> {
        self.right.victim(set, recall, frames)
    }
    fn removed(&mut self, set: u32, frame: u32) {
        self.right.removed(set, frame);
    }
}

#[test]
fn every_planted_mistake_of_a_policy_is_found() {
    let matter = |mistake, name: &str| match mistake {
        Mistake::ForgetsATouch | Mistake::CountsArrivalAsUse => matches!(name, "clock" | "sieve" | "s3-fifo" | "arc"),
        Mistake::ForgetsGhosts | Mistake::ForgetsWhatItRecalled => matches!(name, "s3-fifo" | "arc"),
    };
    let mistakes =
        [Mistake::ForgetsATouch, Mistake::ForgetsGhosts, Mistake::ForgetsWhatItRecalled, Mistake::CountsArrivalAsUse];
    for mistake in mistakes {
        for (name, parameters, model) in CASES.into_iter().filter(|(name, ..)| matter(mistake, name)) {
            let is_found = (0..200).any(|seed| {
                let (config, pages, _) = drawn(seed);
                let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect();
                let right = policy(name, config.shape().unwrap(), &parameters, seed).unwrap();
                compare(&config, Wrong { right, mistake, calls: 0 }, &pages, model).is_err()
            });
            assert!(is_found, "{mistake:?} in {name} was not found");
        }
    }
}
