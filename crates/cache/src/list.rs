//! Orders of frames: doubly linked lists through one array of links, so that moving a frame allocates nothing.
//!
//! All queues of a policy share the links of its frames; a frame is in one queue at a time.

/// No frame.
pub(crate) const NONE: u32 = u32::MAX;

/// The neighbours of one frame in its queue.
#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

/// The links of all frames: 8 bytes for each.
#[derive(Clone, Debug)]
pub(crate) struct Links(Box<[Link]>);

impl Links {
    pub fn new(frames: u32) -> Self {
        Self(vec![Link { newer: NONE, older: NONE }; frames as usize].into_boxed_slice())
    }

    /// The frame that came after this one, or [`NONE`].
    #[inline]
    pub fn newer(&self, frame: u32) -> u32 {
        self.0[frame as usize].newer
    }
}

/// One queue: frames from newest to oldest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Queue {
    newest: u32,
    oldest: u32,
    len: u32,
}

impl Queue {
    pub const EMPTY: Queue = Queue { newest: NONE, oldest: NONE, len: 0 };

    pub fn len(&self) -> u32 {
        self.len
    }

    /// The oldest frame, or [`NONE`].
    #[inline]
    pub fn oldest(&self) -> u32 {
        self.oldest
    }

    /// The newest frame, or [`NONE`].
    #[inline]
    pub fn newest(&self) -> u32 {
        self.newest
    }

    #[inline]
    pub fn push_newest(&mut self, links: &mut Links, frame: u32) {
        links.0[frame as usize] = Link { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = frame,
            newest => links.0[newest as usize].newer = frame,
        }
        self.newest = frame;
        self.len += 1;
    }

    #[inline]
    pub fn push_oldest(&mut self, links: &mut Links, frame: u32) {
        links.0[frame as usize] = Link { newer: self.oldest, older: NONE };
        match self.oldest {
            NONE => self.newest = frame,
            oldest => links.0[oldest as usize].older = frame,
        }
        self.oldest = frame;
        self.len += 1;
    }

    /// Takes out a frame of this queue.
    #[inline]
    pub fn remove(&mut self, links: &mut Links, frame: u32) {
        let Link { newer, older } = links.0[frame as usize];
        match newer {
            NONE => self.newest = older,
            newer => links.0[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => links.0[older as usize].newer = newer,
        }
        self.len -= 1;
    }

    /// Takes out the oldest frame.
    #[inline]
    pub fn pop_oldest(&mut self, links: &mut Links) -> Option<u32> {
        let oldest = self.oldest;
        if oldest == NONE {
            return None;
        }
        let newer = links.0[oldest as usize].newer;
        match newer {
            NONE => self.newest = NONE,
            newer => links.0[newer as usize].older = NONE,
        }
        self.oldest = newer;
        self.len -= 1;
        Some(oldest)
    }

    #[inline]
    pub fn move_to_newest(&mut self, links: &mut Links, frame: u32) {
        if self.newest != frame {
            self.remove(links, frame);
            self.push_newest(links, frame);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SplitMix64;

    #[test]
    fn queues_are_what_plain_lists_are() {
        for seed in 0..20 {
            let mut random = SplitMix64::new(seed);
            let mut links = Links::new(8);
            let (mut queue, mut model) = (Queue::EMPTY, Vec::new());
            for _ in 0..2000 {
                let frame = random.below(8) as u32;
                let at = model.iter().position(|known| *known == frame);
                match (at, random.below(3)) {
                    (None, 0) => {
                        queue.push_oldest(&mut links, frame);
                        model.insert(0, frame);
                    }
                    (None, _) => {
                        queue.push_newest(&mut links, frame);
                        model.push(frame);
                    }
                    (Some(at), 0) => {
                        queue.remove(&mut links, frame);
                        model.remove(at);
                    }
                    (Some(at), 1) => {
                        queue.move_to_newest(&mut links, frame);
                        model.remove(at);
                        model.push(frame);
                    }
                    (Some(_), _) => {
                        assert_eq!(queue.pop_oldest(&mut links), Some(model.remove(0)));
                    }
                }
                let mut found = Vec::new();
                let mut frame = queue.oldest();
                while frame != NONE {
                    found.push(frame);
                    frame = links.newer(frame);
                }
                assert_eq!(found, model, "seed {seed}");
                assert_eq!(queue.newest(), model.last().copied().unwrap_or(NONE), "seed {seed}");
                assert_eq!(queue.len() as usize, model.len(), "seed {seed}");
            }
        }
    }
}
