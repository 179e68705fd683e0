//! Operations in flight: their identities, their answers, and the moment at which each is over.
//!
//! An operation is over at the later of its due time and the media's answer. Answers that come early
//! wait here, ordered by due time and, at equal times, by the order in which they were given.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::codec::StreamKind;
use crate::media::{MediaOp, MediaOpKind, MediaResult};
use crate::{Nanos, OpId, ReadId};

/// Most operations in flight; each queue that issues them has a smaller bound of its own.
const IN_FLIGHT_MAX: usize = 1 << 20;

/// Why an operation was issued.
#[derive(Debug)]
pub(crate) enum Purpose {
    Program { stream: StreamKind, serial: u64 },
    Read { read: ReadId, superblock: u32, tail: Box<[u8]> },
    Relocate { batch: usize },
    Erase { superblock: u32 },
    Sync,
}

#[derive(Debug)]
enum Slot {
    Vacant { next: u32 },
    Issued { due: Nanos, purpose: Purpose },
    Answered { purpose: Purpose, result: MediaResult },
}

/// The table of operations and the two queues around it.
#[derive(Debug, Default)]
pub(crate) struct Ops {
    /// Slot and the number of times it was used before, which makes identities unique.
    slots: Vec<(u32, Slot)>,
    /// 1 + index of a vacant slot, or 0.
    free: u32,
    queue: VecDeque<MediaOp>,
    answered: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    answers: u64,
}

impl Ops {
    /// Reserves an identity for an operation whose turn has not come.
    pub(crate) fn prepare(&mut self, due: Nanos, purpose: Purpose) -> OpId {
        let slot = Slot::Issued { due, purpose };
        if self.free == 0 {
            assert!(self.slots.len() < IN_FLIGHT_MAX, "operations in flight are bounded by those who issue them");
            self.slots.push((0, slot));
            return op_id(0, self.slots.len() as u32 - 1);
        }
        let index = self.free - 1;
        let (uses, entry) = &mut self.slots[index as usize];
        let Slot::Vacant { next } = *entry else { panic!("the free list named a slot in use") };
        self.free = next;
        *uses = uses.wrapping_add(1);
        *entry = slot;
        op_id(*uses, index)
    }

    /// Gives a prepared operation to the media.
    pub(crate) fn enqueue(&mut self, id: OpId, kind: MediaOpKind) {
        let (_, Slot::Issued { due, .. }) = &self.slots[index_of(id)] else { panic!("{id:?} was not prepared") };
        self.queue.push_back(MediaOp { id, due: *due, kind });
    }

    pub(crate) fn issue(&mut self, due: Nanos, purpose: Purpose, kind: MediaOpKind) {
        let id = self.prepare(due, purpose);
        self.enqueue(id, kind);
    }

    pub(crate) fn next(&mut self) -> Option<MediaOp> {
        self.queue.pop_front()
    }

    /// Takes the media's answer.
    pub(crate) fn answer(&mut self, now: Nanos, id: OpId, result: MediaResult) {
        let index = index_of(id);
        let (uses, entry) = self.slots.get_mut(index).expect("the media answered an operation that was never issued");
        assert_eq!(op_id(*uses, index as u32), id, "the media answered an operation twice");
        let Slot::Issued { due, purpose } = core::mem::replace(entry, Slot::Vacant { next: 0 }) else {
            panic!("the media answered {id:?} twice")
        };
        *entry = Slot::Answered { purpose, result };
        self.answers += 1;
        self.answered.push(Reverse((due.max(now), self.answers, index as u32)));
    }

    /// Why an operation was issued that was not answered yet.
    pub(crate) fn purpose(&self, id: OpId) -> Option<&Purpose> {
        let index = index_of(id);
        match self.slots.get(index) {
            Some((uses, Slot::Issued { purpose, .. })) if op_id(*uses, index as u32) == id => Some(purpose),
            _ => None,
        }
    }

    /// The next operation that is over at `now`.
    pub(crate) fn over(&mut self, now: Nanos) -> Option<(Purpose, MediaResult)> {
        let &Reverse((due, _, index)) = self.answered.peek()?;
        if due > now {
            return None;
        }
        self.answered.pop();
        let (_, entry) = &mut self.slots[index as usize];
        let Slot::Answered { purpose, result } = core::mem::replace(entry, Slot::Vacant { next: self.free }) else {
            panic!("only answered operations wait for their due time")
        };
        self.free = index + 1;
        Some((purpose, result))
    }

    /// When the next answered operation will be over.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.answered.peek().map(|Reverse((due, _, _))| *due)
    }
}

fn op_id(uses: u32, index: u32) -> OpId {
    OpId(u64::from(uses) << 32 | u64::from(index))
}

fn index_of(id: OpId) -> usize {
    (id.0 & u64::from(u32::MAX)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_wait_for_their_due_time_and_keep_their_order() {
        let mut ops = Ops::default();
        for due in [30, 10, 10] {
            ops.issue(Nanos(due), Purpose::Sync, MediaOpKind::Sync);
        }
        let ids: Vec<OpId> = std::iter::from_fn(|| ops.next()).map(|op| op.id).collect();
        ops.answer(Nanos(5), ids[0], MediaResult::Synced);
        ops.answer(Nanos(6), ids[2], MediaResult::Erased);
        ops.answer(Nanos(20), ids[1], MediaResult::Synced);
        assert_eq!(ops.next_event(), Some(Nanos(10)));
        assert!(ops.over(Nanos(9)).is_none());
        assert!(matches!(ops.over(Nanos(10)), Some((_, MediaResult::Erased))));
        assert!(ops.over(Nanos(19)).is_none(), "an answer later than due decides");
        assert!(ops.over(Nanos(20)).is_some());
        assert!(ops.over(Nanos(30)).is_some());
        assert!(ops.over(Nanos::MAX).is_none());
    }

    #[test]
    #[should_panic(expected = "twice")]
    fn a_second_answer_is_a_bug() {
        let mut ops = Ops::default();
        ops.issue(Nanos(0), Purpose::Sync, MediaOpKind::Sync);
        let id = ops.next().unwrap().id;
        ops.answer(Nanos(0), id, MediaResult::Synced);
        ops.over(Nanos(0)).unwrap();
        ops.issue(Nanos(0), Purpose::Sync, MediaOpKind::Sync);
        ops.answer(Nanos(0), id, MediaResult::Synced);
    }
}
