//! S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023, Algorithm 1), in the
//! variant of libCacheSim 0.3.5, which differs from the paper's and from the one that libCacheSim itself had before:
//!
//! - While the cache fills for the first time, pages that the small queue has no room for go to the main queue.
//!   The paper's cache would fill the small queue alone.
//! - The small queue is a tenth of the cache, rounded down, the ghosts are nine tenths; both are published, and
//!   in the sizes that libCacheSim's floating point gives (they agree for every size below 2^32).
//! - A page that leaves the main queue is not remembered; one that a ghost brings back is forgotten as ghost.
//! - A page used twice in the small queue moves to the main queue when it gets old; it starts there as unused.
//!
//! libCacheSim crashes where the small queue would hold fewer than two pages; here it holds at least one.

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};
use crate::ghost::Ghosts;
use crate::list::{Links, NONE, Queue};

/// The highest count that matters in the main queue: two bits, as published.
const COUNT_MAX: u8 = 3;
/// The bit of a frame that is in the main queue, beside its count.
const IN_MAIN: u8 = 0x80;
/// A page that was among the ghosts.
const WAS_GHOST: Recall = Recall::new(1);

/// A small queue that new pages pass through, a main queue for those used there, and ghosts. 9 bytes a frame, and
/// 29 for each ghost: 36 bytes a frame with the published nine tenths.
#[derive(Debug)]
pub struct S3Fifo {
    links: Links,
    counts: Box<[u8]>,
    ghosts: Ghosts,
    sets: Box<[Set]>,
    small_pages: u32,
    main_pages: u32,
    ghost_pages: u32,
    promote_uses: u8,
}

#[derive(Clone, Copy, Debug)]
struct Set {
    small: Queue,
    main: Queue,
    ghosts: Queue,
    has_evicted: bool,
}

impl Named for S3Fifo {
    const NAME: &'static str = "s3-fifo";
    const SUMMARY: &'static str = "three queues: most new pages leave early, those used or remembered stay";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter {
            name: "small_permille",
            default: 100,
            min: 1,
            max: 999,
            about: "size of the small queue in thousandths of the cache (SOSP 2023: a tenth)",
        },
        Parameter {
            name: "ghost_permille",
            default: 900,
            min: 0,
            max: 2000,
            about: "pages remembered, in thousandths of the cache (libCacheSim 0.3.5: nine tenths)",
        },
        Parameter {
            name: "promote_uses",
            default: 2,
            min: 1,
            max: COUNT_MAX as u64,
            about: "uses in the small queue after which a page moves to the main one (libCacheSim 0.3.5: 2)",
        },
    ];

    fn new(shape: Shape, parameters: &Parameters, _: u64) -> Self {
        let part = |name| (u64::from(shape.pages_per_set) * parameters.get(name) / 1000) as u32;
        let small_pages = part("small_permille").max(1);
        let ghost_pages = part("ghost_permille");
        let set = Set { small: Queue::EMPTY, main: Queue::EMPTY, ghosts: Queue::EMPTY, has_evicted: false };
        Self {
            links: Links::new(shape.frames()),
            counts: vec![0; shape.frames() as usize].into(),
            ghosts: Ghosts::new(ghost_pages * shape.sets),
            sets: vec![set; shape.sets as usize].into(),
            small_pages,
            main_pages: shape.pages_per_set.saturating_sub(small_pages),
            ghost_pages,
            promote_uses: parameters.get("promote_uses") as u8,
        }
    }
}

impl S3Fifo {
    /// Lets the oldest pages of the small queue go to the main one until one leaves.
    fn evict_small(&mut self, set: u32, frames: &Frames<'_>) -> Option<u32> {
        let set = &mut self.sets[set as usize];
        while let Some(frame) = set.small.pop_oldest(&mut self.links) {
            if self.counts[frame as usize] < self.promote_uses {
                let page = frames.page(frame);
                // A page that a prefetch brought may still be a ghost; it stays where it is in the order.
                if self.ghost_pages > 0 && self.ghosts.find(page).is_none() {
                    if set.ghosts.len() >= self.ghost_pages {
                        self.ghosts.drop_oldest(&mut set.ghosts);
                    }
                    self.ghosts.push(&mut set.ghosts, 0, page);
                }
                return Some(frame);
            }
            self.counts[frame as usize] = IN_MAIN;
            set.main.push_newest(&mut self.links, frame);
        }
        None
    }

    /// Lets used pages of the main queue go round until an unused one leaves.
    fn evict_main(&mut self, set: u32) -> Option<u32> {
        let queue = &mut self.sets[set as usize].main;
        loop {
            let frame = queue.oldest();
            if frame == NONE {
                return None;
            }
            if self.counts[frame as usize] == IN_MAIN {
                queue.remove(&mut self.links, frame);
                return Some(frame);
            }
            self.counts[frame as usize] -= 1;
            queue.move_to_newest(&mut self.links, frame);
        }
    }
}

impl Eviction for S3Fifo {
    #[inline]
    fn incoming(&mut self, set: u32, page: u64, demanded: bool) -> Recall {
        let Some((entry, _)) = self.ghosts.find(page) else { return Recall::NOTHING };
        self.ghosts.remove(&mut self.sets[set as usize].ghosts, entry);
        if demanded { WAS_GHOST } else { Recall::NOTHING }
    }

    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, recall: Recall) {
        let set = &mut self.sets[set as usize];
        let small_is_full = !set.has_evicted && set.small.len() >= self.small_pages;
        if recall == WAS_GHOST || small_is_full {
            self.counts[frame as usize] = IN_MAIN;
            set.main.push_newest(&mut self.links, frame);
        } else {
            self.counts[frame as usize] = 0;
            set.small.push_newest(&mut self.links, frame);
        }
    }

    #[inline]
    fn touched(&mut self, _: u32, frame: u32) {
        let count = &mut self.counts[frame as usize];
        if *count & !IN_MAIN < COUNT_MAX {
            *count += 1;
        }
    }

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, frames: &Frames<'_>) -> Option<u32> {
        let state = &mut self.sets[set as usize];
        state.has_evicted = true;
        if state.main.len() > self.main_pages {
            return self.evict_main(set);
        }
        // An empty small queue, or one whose pages were all used, leaves it to the main queue.
        self.evict_small(set, frames).or_else(|| self.evict_main(set))
    }

    fn removed(&mut self, set: u32, frame: u32) {
        let set = &mut self.sets[set as usize];
        let in_main = self.counts[frame as usize] & IN_MAIN != 0;
        let queue = if in_main { &mut set.main } else { &mut set.small };
        queue.remove(&mut self.links, frame);
    }
}
