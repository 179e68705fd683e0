//! Which requests of a queue are under way, in memory that the front end keeps when this process is killed, and gives
//! to the next one (vhost-user, "Inflight I/O tracking", split virtqueue).
//!
//! A request is marked before anything of it is begun, and until the driver has been told that it has ended. Between
//! the used ring's index and the mark there may be a death; `used_idx` and the list of the last batch say then which
//! marks are late. A batch is one request here.
//!
//! The memory is the front end's: each word is read once and checked.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Bytes before the descriptors' states (`QueueRegionSplit`): features, version, desc_num, last_batch_head, used_idx.
const HEADER_BYTES: usize = 16;
/// Bytes of a descriptor's state (`DescStateSplit`): inflight, padding, next, counter.
const STATE_BYTES: usize = 16;
/// Where things are in the header.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
/// Where things are in a state.
const INFLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;
/// The only version there is.
const ONE: u16 = 1;
/// Each queue's region begins on a line of its own.
const ALIGN: usize = 64;

/// Bytes that a queue of so many descriptors needs.
fn region_bytes(size: u16) -> usize {
    (HEADER_BYTES + STATE_BYTES * usize::from(size)).next_multiple_of(ALIGN)
}

/// The memory of all queues.
pub struct Area {
    memory: Arc<MmapRegion<()>>,
    queues: u16,
    size: u16,
}

impl Area {
    /// Bytes of an area.
    pub fn bytes(queues: u16, size: u16) -> usize {
        region_bytes(size) * usize::from(queues)
    }

    /// The area in a file that has room for it, from an offset on.
    ///
    /// # Errors
    /// What the system says.
    pub fn map(file: File, offset: u64, queues: u16, size: u16) -> io::Result<Area> {
        let bytes = Area::bytes(queues, size);
        let memory = MmapRegion::from_file(FileOffset::new(file, offset), bytes).map_err(io::Error::other)?;
        Ok(Area { memory: Arc::new(memory), queues, size })
    }

    /// The part of a queue of so many descriptors, if there is one.
    pub fn queue(&self, index: u16, size: u16) -> Option<Inflight> {
        let base = region_bytes(self.size) * usize::from(index);
        (index < self.queues && size <= self.size).then(|| Inflight {
            memory: Arc::clone(&self.memory),
            base,
            size,
            counter: 0,
        })
    }
}

/// What is under way of one queue. One thread has it.
pub struct Inflight {
    memory: Arc<MmapRegion<()>>,
    base: usize,
    size: u16,
    /// Of the next request: they are begun again in the order in which they were begun.
    counter: u64,
}

impl Inflight {
    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        // The area was mapped whole, so a place in it is there.
        self.memory.as_volatile_slice().load(self.base + at, Ordering::Acquire).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let stored = self.memory.as_volatile_slice().store(value, self.base + at, Ordering::Release);
        assert!(stored.is_ok(), "a place of the inflight area that is not mapped");
    }

    fn state(&self, head: u16) -> usize {
        assert!(head < self.size);
        HEADER_BYTES + STATE_BYTES * usize::from(head)
    }

    /// What was under way when the used ring's index was this; the requests' first descriptors, in their order.
    pub fn recover(&mut self, used_idx: u16) -> Vec<u16> {
        if self.load::<u16>(VERSION) != ONE {
            self.store(VERSION, ONE);
            self.store(DESC_NUM, self.size);
            self.store(USED_IDX, used_idx);
        }
        // The batch had reached the used ring: its marks are late. It was at most as long as the queue.
        let late = used_idx.wrapping_sub(self.load(USED_IDX));
        let mut head: u16 = self.load(LAST_BATCH_HEAD);
        for _ in 0..late.min(self.size) {
            if head >= self.size {
                break;
            }
            self.store(self.state(head) + INFLIGHT, 0_u8);
            head = self.load(self.state(head) + NEXT);
        }
        self.store(USED_IDX, used_idx);
        let is_marked = |head: &u16| self.load::<u8>(self.state(*head) + INFLIGHT) == 1;
        let mut marked: Vec<(u64, u16)> =
            (0..self.size).filter(is_marked).map(|head| (self.load(self.state(head) + COUNTER), head)).collect();
        marked.sort_unstable();
        self.counter = marked.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        marked.into_iter().map(|(_, head)| head).collect()
    }

    /// A request is taken from the available ring.
    pub fn begin(&mut self, head: u16) {
        self.store(self.state(head) + COUNTER, self.counter);
        self.counter = self.counter.wrapping_add(1);
        self.store(self.state(head) + INFLIGHT, 1_u8);
    }

    /// It is about to be put into the used ring.
    pub fn ending(&self, head: u16) {
        self.store(self.state(head) + NEXT, self.load::<u16>(LAST_BATCH_HEAD));
        self.store(LAST_BATCH_HEAD, head);
    }

    /// It is there, and the ring's index is this now.
    pub fn ended(&self, head: u16, used_idx: u16) {
        self.store(self.state(head) + INFLIGHT, 0_u8);
        self.store(USED_IDX, used_idx);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(queues: u16, size: u16) -> Area {
        let file = tempfile::tempfile().unwrap();
        file.set_len(Area::bytes(queues, size) as u64).unwrap();
        Area::map(file, 0, queues, size).unwrap()
    }

    /// A death after each step of random requests: what was taken and is not in the used ring is found, in its order.
    #[test]
    fn a_death_at_any_step_loses_no_request_and_repeats_none() {
        const SIZE: u16 = 8;
        let mut draws = 1_u64;
        let mut draw = |below: usize| {
            draws = draws.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (draws >> 33) as usize % below
        };
        for _ in 0..200 {
            let area = area(2, SIZE);
            let (mut used, mut model) = (draw(1 << 16) as u16, Vec::new());
            let mut queue = area.queue(1, SIZE).unwrap();
            assert!(queue.recover(used).is_empty());
            for _ in 0..200 {
                let free: Vec<u16> = (0..SIZE).filter(|head| !model.contains(head)).collect();
                match draw(5) {
                    0 | 1 if !free.is_empty() => {
                        let head = free[draw(free.len())];
                        queue.begin(head);
                        model.push(head);
                    }
                    2 | 3 if !model.is_empty() => {
                        let head = model[draw(model.len())];
                        let steps = draw(4);
                        if steps > 0 {
                            queue.ending(head);
                        }
                        if steps > 1 {
                            used = used.wrapping_add(1);
                            model.retain(|other| *other != head);
                        }
                        if steps > 2 {
                            queue.ended(head, used);
                        } else {
                            queue = area.queue(1, SIZE).unwrap();
                            assert_eq!(queue.recover(used), model);
                        }
                    }
                    _ => {
                        queue = area.queue(1, SIZE).unwrap();
                        assert_eq!(queue.recover(used), model);
                    }
                }
            }
            assert!(area.queue(0, SIZE).unwrap().recover(0).is_empty(), "another queue's");
        }
    }

    #[test]
    fn memory_that_says_anything_is_read_within_its_bounds() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(Area::bytes(1, 16) as u64).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0xff; 256], 0).unwrap();
        let area = Area::map(file, 0, 1, 16).unwrap();
        let mut queue = area.queue(0, 16).unwrap();
        assert!(queue.recover(7).is_empty(), "nothing but 1 is a mark");
        assert!(area.queue(1, 16).is_none());
        assert!(area.queue(0, 17).is_none());
    }
}
