//! First in, first out; and last in, first out.

use crate::eviction::{Eviction, Frames, Named, Parameter, Parameters, Recall, Shape};
use crate::list::{Links, NONE, Queue};

/// Evicts the page that came in first. 8 bytes a frame.
#[derive(Debug)]
pub struct Fifo {
    links: Links,
    sets: Box<[Queue]>,
}

impl Named for Fifo {
    const NAME: &'static str = "fifo";
    const SUMMARY: &'static str = "the page that came in first";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, _: &Parameters, _: u64) -> Self {
        Self { links: Links::new(shape.frames()), sets: vec![Queue::EMPTY; shape.sets as usize].into() }
    }
}

impl Eviction for Fifo {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, _: u64, _: Recall) {
        self.sets[set as usize].push_newest(&mut self.links, frame);
    }

    #[inline]
    fn touched(&mut self, _: u32, _: u32) {}

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        self.sets[set as usize].pop_oldest(&mut self.links)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.sets[set as usize].remove(&mut self.links, frame);
    }
}

/// Evicts the page that came in last: what Cylon's artifact calls LIFO, and good for loops larger than the cache.
/// 8 bytes a frame.
#[derive(Debug)]
pub struct Lifo(Fifo);

impl Named for Lifo {
    const NAME: &'static str = "lifo";
    const SUMMARY: &'static str = "the page that came in last";
    const PARAMETERS: &'static [Parameter] = &[];

    fn new(shape: Shape, parameters: &Parameters, seed: u64) -> Self {
        Self(Fifo::new(shape, parameters, seed))
    }
}

impl Eviction for Lifo {
    #[inline]
    fn inserted(&mut self, set: u32, frame: u32, page: u64, recall: Recall) {
        self.0.inserted(set, frame, page, recall);
    }

    #[inline]
    fn touched(&mut self, _: u32, _: u32) {}

    #[inline]
    fn victim(&mut self, set: u32, _: Recall, _: &Frames<'_>) -> Option<u32> {
        let newest = self.0.sets[set as usize].newest();
        if newest == NONE {
            return None;
        }
        self.0.removed(set, newest);
        Some(newest)
    }

    fn removed(&mut self, set: u32, frame: u32) {
        self.0.removed(set, frame);
    }
}
