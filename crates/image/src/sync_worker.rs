//! A thread that syncs the media, so that the one who asks does not wait.
//!
//! Syncs that are asked for while one is running are answered together by the next: each ticket's answer
//! comes from a sync that *began* after the ticket was handed in, so everything programmed before that is
//! covered. Answers come in the order of the tickets.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::media::{Media, MediaError};

/// How many syncs may be asked for and not yet collected. A device keeps at most one open per flush
/// command, and a queue holds fewer of those.
pub const TICKETS_MAX: usize = 1024;

/// The caller's number for a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SyncTicket(pub u64);

/// How a sync ended. One failed sync answers several tickets, so the error is shared.
#[derive(Clone, Debug)]
pub struct SyncDone {
    /// The ticket that was handed in.
    pub ticket: SyncTicket,
    /// Whether everything programmed before the ticket is durable.
    pub result: Result<(), Arc<MediaError>>,
}

/// Too many syncs are open: collect some with [`SyncWorker::poll`] first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot queue a sync of the media: {TICKETS_MAX} are open already; collect their results first")]
pub struct SyncQueueFull;

/// The thread and its queue. Dropping it finishes the syncs that were asked for.
#[derive(Debug)]
pub struct SyncWorker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    asked: Condvar,
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    asked: Vec<SyncTicket>,
    done: VecDeque<SyncDone>,
    open: usize,
    stop: bool,
    syncs: u64,
}

impl SyncWorker {
    /// Starts the thread for these media; it calls `notify` whenever syncs have been answered.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn spawn(media: Arc<dyn Media>, notify: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let shared =
            Arc::new(Shared { state: Mutex::new(State::default()), asked: Condvar::new(), done: Condvar::new() });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("osier-sync".to_owned())
            .spawn(move || for_thread.run(&*media, &notify))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Asks for a sync of everything programmed so far, and returns at once.
    ///
    /// # Errors
    /// [`SyncQueueFull`] when [`TICKETS_MAX`] are open.
    pub fn submit(&self, ticket: SyncTicket) -> Result<(), SyncQueueFull> {
        let mut state = self.shared.lock();
        if state.open == TICKETS_MAX {
            return Err(SyncQueueFull);
        }
        state.open += 1;
        state.asked.push(ticket);
        self.shared.asked.notify_one();
        Ok(())
    }

    /// The next finished sync, if there is one. Does not wait.
    pub fn poll(&self) -> Option<SyncDone> {
        self.shared.lock().take_done()
    }

    /// Whether a sync is finished and not collected.
    pub fn has_done(&self) -> bool {
        !self.shared.lock().done.is_empty()
    }

    /// The next finished sync, waited for at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<SyncDone> {
        let end = Instant::now() + timeout;
        let mut state = self.shared.lock();
        loop {
            if let Some(done) = state.take_done() {
                return Some(done);
            }
            let left = end.checked_duration_since(Instant::now())?;
            let waited = self.shared.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many syncs of the media were made; fewer than the tickets when some shared one.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.shared.lock().syncs
    }
}

impl Drop for SyncWorker {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.asked.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it; a second panic here would abort.
            let _ = thread.join();
        }
    }
}

impl State {
    fn take_done(&mut self) -> Option<SyncDone> {
        let done = self.done.pop_front()?;
        self.open -= 1;
        Some(done)
    }
}

impl Shared {
    /// The state is whole at each unlock, so a panic elsewhere does not make it untrue.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, media: &dyn Media, notify: &dyn Fn()) {
        while let Some(batch) = self.next_batch() {
            let result = media.sync().map_err(Arc::new);
            let mut state = self.lock();
            state.syncs += 1;
            state.done.extend(batch.into_iter().map(|ticket| SyncDone { ticket, result: result.clone() }));
            self.done.notify_all();
            drop(state);
            notify();
        }
    }

    fn next_batch(&self) -> Option<Vec<SyncTicket>> {
        let mut state = self.lock();
        while state.asked.is_empty() {
            if state.stop {
                return None;
            }
            state = self.asked.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Some(std::mem::take(&mut state.asked))
    }
}

#[cfg(test)]
#[path = "sync_worker_tests.rs"]
mod tests;
