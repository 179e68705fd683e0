//! Syncs: when what was programmed survives a loss of power.
//!
//! A request waits until every program that was issued before it is done; then one `Sync` goes to the
//! media, for all requests that are ready. A request that comes while a `Sync` is on its way is not
//! covered by it and waits for the next. One `Sync` is in flight at a time.

use std::collections::VecDeque;

use crate::codec::StreamKind;
use crate::ftl::{Ftl, FtlEvent, Trust};
use crate::media::{MediaError, MediaOpKind};
use crate::ops::Purpose;
use crate::planted::Bug;
use crate::{Nanos, SyncId};

/// Most syncs that wait.
const SYNCS_MAX: usize = 65_536;

/// Who asks for a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asker {
    Host(SyncId),
    /// Garbage collection, before an erase.
    Collection,
    /// An append that waits for space to be free for good.
    Space,
}

/// A sync that was asked for.
#[derive(Debug)]
struct Request {
    asker: Asker,
    /// Programs before these serial numbers are covered, for each stream.
    programs: [u64; 2],
}

/// What will be known once the `Sync` in flight is done.
#[derive(Debug)]
struct SyncInFlight {
    /// Requests that it covers, at the front of the queue.
    requests: usize,
    trust: Option<Trust>,
}

/// All syncs of an FTL.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    requests: VecDeque<Request>,
    in_flight: Option<SyncInFlight>,
    next: u64,
}

impl Ftl {
    /// Asks for everything that is programmed, or on its way to be, to survive a loss of power; over
    /// with an [`FtlEvent::SyncDone`]. The open page is not touched: [`Ftl::close_page`] comes first.
    ///
    /// # Panics
    /// When 65,536 syncs are waiting.
    pub fn sync(&mut self, now: Nanos) -> SyncId {
        self.syncs.next += 1;
        let id = SyncId(self.syncs.next);
        if let Some(error) = self.failed {
            self.events.push_back(FtlEvent::SyncDone { id, result: Err(error) });
        } else {
            self.request_sync(now, Asker::Host(id));
        }
        id
    }

    /// Asks for a sync that drives the shadows away, unless one is on its way.
    pub(crate) fn sync_for_space(&mut self, now: Nanos) {
        if self.syncs.requests.iter().all(|request| request.asker != Asker::Space) {
            self.request_sync(now, Asker::Space);
        }
    }

    /// Asks for a sync.
    pub(crate) fn request_sync(&mut self, now: Nanos, asker: Asker) {
        assert!(self.syncs.requests.len() < SYNCS_MAX, "syncs that wait are bounded");
        let programs = StreamKind::ALL.map(|kind| self.streams[kind.index()].next_serial());
        self.syncs.requests.push_back(Request { asker, programs });
        self.issue_sync(now);
    }

    /// Issues a `Sync` if one is wanted, can be, and none is in flight.
    pub(crate) fn issue_sync(&mut self, now: Nanos) {
        if self.syncs.in_flight.is_some() || self.failed.is_some() {
            return;
        }
        let is_ready = |request: &&Request| {
            StreamKind::ALL
                .iter()
                .all(|kind| self.streams[kind.index()].all_done_before(request.programs[kind.index()]))
        };
        let requests = self.syncs.requests.iter().take_while(is_ready).count();
        if requests == 0 {
            return;
        }
        let next = self.next_superblock_sequence;
        let host = &self.streams[StreamKind::Host.index()];
        // A torn record of an earlier life must not be taken for one that was synced and has rotted:
        // while a superblock may hold one, or its erase is not synced, nothing new is trusted.
        let may_trust = self.suspects == 0 || self.has_bug(Bug::TrustBesideSuspects);
        let trust = may_trust.then(|| Trust {
            sequence: host.durable_sequence.max(self.trust.sequence),
            superblocks: StreamKind::ALL.map(|kind| self.streams[kind.index()].settled_before(next)),
        });
        self.syncs.in_flight = Some(SyncInFlight { requests, trust });
        self.counters.syncs += 1;
        self.shadows.sync_issued();
        self.ops.issue(now, Purpose::Sync, MediaOpKind::Sync);
    }

    /// The media has synced.
    pub(crate) fn sync_done(&mut self, now: Nanos) {
        // Whoever waited for it was told already, when a program failed meanwhile.
        let Some(done) = self.syncs.in_flight.take() else {
            assert!(self.failed.is_some(), "a sync was in flight");
            return;
        };
        self.trust = done.trust.unwrap_or(self.trust);
        self.shadows.sync_done();
        for _ in 0..done.requests {
            match self.syncs.requests.pop_front().expect("covered requests wait").asker {
                Asker::Host(id) => self.events.push_back(FtlEvent::SyncDone { id, result: Ok(()) }),
                Asker::Collection => self.collection_synced(now),
                Asker::Space => {}
            }
        }
    }

    /// Fails every sync that waits.
    pub(crate) fn fail_syncs(&mut self, error: MediaError) {
        self.syncs.in_flight = None;
        for request in self.syncs.requests.drain(..) {
            if let Asker::Host(id) = request.asker {
                self.events.push_back(FtlEvent::SyncDone { id, result: Err(error) });
            }
        }
    }
}
