//! The owner records of all actors, in one object of the shared region.

use std::sync::atomic::Ordering;

use osier_domain::migrate::CHECKPOINT_BYTES;
use osier_domain::{ActorId, OwnerRecord};
use osier_pmr::Object;

/// Bytes of one record: the owner word in a cache line of its own, then the checkpoint.
pub(crate) const RECORD_BYTES: u64 = 512;
/// Offset of the checkpoint in a record.
pub(crate) const CHECKPOINT_AT: u64 = 64;
const _: () = assert!(CHECKPOINT_AT + CHECKPOINT_BYTES as u64 <= RECORD_BYTES);

/// Bytes of the object.
pub fn owners_bytes(actors: usize) -> u64 {
    (actors.max(1) as u64 * RECORD_BYTES).next_multiple_of(4096)
}

/// One actor's record.
#[derive(Clone)]
pub struct Record {
    object: Object,
    at: u64,
}

impl Record {
    /// The record of an actor.
    pub fn new(object: &Object, actor: ActorId) -> Record {
        Record { object: object.clone(), at: u64::from(actor.0) * RECORD_BYTES }
    }
}

impl OwnerRecord for Record {
    fn load(&self) -> u64 {
        self.object.word64(self.at).load(Ordering::Acquire)
    }

    fn compare_exchange(&self, current: u64, new: u64) -> bool {
        let word = self.object.word64(self.at);
        word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn write_checkpoint(&self, bytes: &[u8; CHECKPOINT_BYTES]) {
        self.object.bytes().write(self.at + CHECKPOINT_AT, bytes);
    }

    fn read_checkpoint(&self) -> [u8; CHECKPOINT_BYTES] {
        let mut bytes = [0; CHECKPOINT_BYTES];
        self.object.bytes().read(self.at + CHECKPOINT_AT, &mut bytes);
        bytes
    }
}
