//! Least recently used, with the choice of where a page enters; and most recently used.

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};
use crate::list::{Links, NONE, Queue};

/// Evicts the page whose last use is longest ago. 8 bytes a frame.
#[derive(Debug)]
pub struct Lru {
    links: Links,
    sets: Box<[Queue]>,
    enter_oldest: bool,
}

impl Named for Lru {
    const NAME: &'static str = "lru";
    const SUMMARY: &'static str = "the page whose last use is longest ago";
    const PARAMETERS: &'static [Parameter] = &[Parameter {
        name: "enter_oldest",
        default: 0,
        min: 0,
        max: 1,
        about: "0: a page enters as the most recently used (MRU insertion); 1: as the least, and has to be used \
                once to stay (LIP; Qureshi and others, ISCA 2007)",
    }];

    fn new(shape: Shape, parameters: &Parameters, _: u64) -> Self {
        Self {
            links: Links::new(shape.frames()),
            sets: vec![Queue::EMPTY; shape.sets as usize].into(),
            enter_oldest: parameters.get("enter_oldest") == 1,
        }
    }
}

impl Eviction for Lru {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        let queue = &mut self.sets[set as usize];
        if self.enter_oldest {
            queue.push_oldest(&mut self.links, frame);
        } else {
            queue.push_newest(&mut self.links, frame);
        }
    }

    #[inline]
    fn touched(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].move_to_newest(&mut self.links, frame);
    }

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        self.sets[set as usize].pop_oldest(&mut self.links)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].remove(&mut self.links, frame);
    }
}

/// Evicts the page that was used last. 8 bytes a frame.
#[derive(Debug)]
pub struct Mru {
    links: Links,
    sets: Box<[Queue]>,
}

impl Named for Mru {
    const NAME: &'static str = "mru";
    const SUMMARY: &'static str = "the page that was used last";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, _: &Parameters, _: u64) -> Self {
        Self { links: Links::new(shape.frames()), sets: vec![Queue::EMPTY; shape.sets as usize].into() }
    }
}

impl Eviction for Mru {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.sets[set as usize].push_newest(&mut self.links, frame);
    }

    #[inline]
    fn touched(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].move_to_newest(&mut self.links, frame);
    }

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let newest = self.sets[set as usize].newest();
        if newest == NONE {
            return None;
        }
        self.removed(set, newest);
        Some(newest)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].remove(&mut self.links, frame);
    }
}
