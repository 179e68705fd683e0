//! Who may write which blocks of an export, over all of its connections.
//!
//! A write of whole blocks needs nobody's leave but that of a *patch*: a read-modify-write of blocks that a client
//! writes in part. A patch has its blocks for itself from before it reads them until it has written them.
//!
//! While nobody patches, a write costs one addition when it begins and one when it ends, on a counter of its own
//! connection. Whoever wants to patch says so first (`patches`), and then waits until each counter was zero; from then
//! on every write goes through the table, where ranges that overlap take turns. Either a write sees that somebody wants
//! to patch, or the one who patches sees that write: both look after they have spoken (sequentially consistent).

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::planted::{self, Bug};
use crate::sys::Waker;

/// The lock of one export.
#[derive(Default)]
pub struct RangeLock {
    /// Patches that are wanted or under way.
    patches: AtomicUsize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    connections: Vec<Arc<Connection>>,
    /// In the order in which they came.
    claims: Vec<Claim>,
    next_id: u64,
}

/// Blocks that somebody writes, or wants to.
struct Claim {
    id: u64,
    blocks: Range<u64>,
    is_patch: bool,
    is_granted: bool,
    of: Arc<Connection>,
}

/// Apart, so that two connections do not share a line of the processor's cache.
#[repr(align(128))]
struct Connection {
    /// Writes under way that are not in the table.
    writes: AtomicUsize,
    waker: Waker,
}

/// The leave to write, or the wait for it. To be given back with [`Lane::end`].
#[derive(Debug, PartialEq, Eq)]
pub enum Hold {
    /// A write that only counts itself.
    Counted,
    /// A claim in the table.
    Claimed(u64),
}

/// A connection's access to the lock.
pub struct Lane {
    lock: Arc<RangeLock>,
    own: Arc<Connection>,
}

impl RangeLock {
    fn table(&self) -> MutexGuard<'_, Table> {
        // No invariant of the table spans a call that can panic.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_waiting(table: &Table) {
        for claim in table.claims.iter().filter(|claim| !claim.is_granted) {
            claim.of.waker.wake();
        }
    }
}

impl Table {
    fn may_begin(&self, at: usize) -> bool {
        let claim = &self.claims[at];
        let conflicts = |other: &Claim| {
            (other.is_patch || claim.is_patch)
                && other.blocks.start < claim.blocks.end
                && claim.blocks.start < other.blocks.end
        };
        let is_first = !self.claims[..at].iter().any(conflicts);
        let ignores = planted::has(Bug::IgnoreCounted);
        is_first && (!claim.is_patch || ignores || self.connections.iter().all(|other| other.writes.load(SeqCst) == 0))
    }
}

impl Lane {
    /// # Errors
    /// When the system has no more descriptors.
    pub fn new(lock: &Arc<RangeLock>) -> std::io::Result<Lane> {
        let own = Arc::new(Connection { writes: AtomicUsize::new(0), waker: Waker::new()? });
        lock.table().connections.push(Arc::clone(&own));
        Ok(Lane { lock: Arc::clone(lock), own })
    }

    /// Wants to write whole blocks.
    pub fn write(&self, blocks: Range<u64>) -> Hold {
        if self.lock.patches.load(SeqCst) == 0 {
            self.own.writes.fetch_add(1, SeqCst);
            if self.lock.patches.load(SeqCst) == 0 {
                return Hold::Counted;
            }
            self.end(Hold::Counted);
        }
        self.claim(blocks, false)
    }

    /// Wants to patch blocks.
    pub fn patch(&self, blocks: Range<u64>) -> Hold {
        self.lock.patches.fetch_add(1, SeqCst);
        self.claim(blocks, true)
    }

    fn claim(&self, blocks: Range<u64>, is_patch: bool) -> Hold {
        let mut table = self.lock.table();
        let id = table.next_id;
        table.next_id += 1;
        table.claims.push(Claim { id, blocks, is_patch, is_granted: false, of: Arc::clone(&self.own) });
        Hold::Claimed(id)
    }

    /// Whether it may begin. Where it may not, [`Lane::event`] says when to ask again.
    pub fn is_granted(&self, hold: &Hold) -> bool {
        let Hold::Claimed(id) = hold else { return true };
        let mut table = self.lock.table();
        let Some(at) = table.claims.iter().position(|claim| claim.id == *id) else { return false };
        let is_granted = table.claims[at].is_granted || table.may_begin(at);
        table.claims[at].is_granted = is_granted;
        is_granted
    }

    /// It was written, or is wanted no longer.
    pub fn end(&self, hold: Hold) {
        match hold {
            Hold::Counted => {
                let left = self.own.writes.fetch_sub(1, SeqCst) - 1;
                if left == 0 && self.lock.patches.load(SeqCst) > 0 {
                    RangeLock::wake_waiting(&self.lock.table());
                }
            }
            Hold::Claimed(id) => self.remove(|claim| claim.id == id),
        }
    }

    fn remove(&self, is_meant: impl Fn(&Claim) -> bool) {
        let mut table = self.lock.table();
        let patches = table.claims.iter().filter(|claim| is_meant(claim) && claim.is_patch).count();
        table.claims.retain(|claim| !is_meant(claim));
        self.lock.patches.fetch_sub(patches, SeqCst);
        RangeLock::wake_waiting(&table);
    }

    /// Readable when a hold that is not granted should be asked for again. To be cleared before that.
    pub fn event(&self) -> BorrowedFd<'_> {
        self.own.waker.as_fd()
    }

    /// Clears [`Lane::event`].
    pub fn clear(&self) {
        self.own.waker.clear();
    }
}

/// A connection that ends, however it does, holds up nobody.
impl Drop for Lane {
    fn drop(&mut self) {
        self.lock.table().connections.retain(|connection| !Arc::ptr_eq(connection, &self.own));
        self.remove(|claim| Arc::ptr_eq(&claim.of, &self.own));
    }
}
