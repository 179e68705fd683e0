//! Reads, programs and erases of the media: on a thread of its own where they may wait for a disk, else on the thread
//! of the firmware. A device that is bound to one processor has them on its own thread too: another one would take that
//! processor away for longer than a piece of the work does.
//!
//! A write to a file takes microseconds, and once in a while the tens of milliseconds that the file system's journal
//! takes. The firmware hands an operation over and goes on; the core is told when the bytes are down. What depends on
//! what is the core's affair: it asks for nothing before that was answered on which it depends.
//!
//! Invariants:
//! 1. Operations are carried out, and answered, one after the other in the order in which they were handed over.
//! 2. At most [`HANDED_MAX`] are handed over and not answered.
//! 3. Whatever was handed over is carried out before the thread ends, unless the process is killed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::JoinHandle;

use osier_flash::{MediaOp, MediaOpKind, MediaResult, Nanos, OpId};
use osier_image::{Media, MediaError};

/// Operations handed over and not answered: enough that the thread never waits for the firmware's next turn.
pub const HANDED_MAX: usize = 64;
/// Bytes that the firmware's thread programs in one piece: a whole page would hold up an actor that arrives.
const PROGRAM_BYTES: u64 = 4 << 10;
/// A piece of a hole is so many times as long: as much is erased about as fast.
const ERASED_PER_PROGRAMMED: u64 = 8;

/// How an operation ended.
#[derive(Debug)]
pub struct Answer {
    /// Which.
    pub id: OpId,
    /// What the media said.
    pub result: Result<MediaResult, MediaError>,
}

/// An operation and the bytes of it that are done.
#[derive(Debug)]
struct Job {
    op: MediaOp,
    done: u64,
}

impl Job {
    /// One piece, of at most so many bytes that are programmed; the result, with the last.
    fn piece(&mut self, media: &dyn Media, program_bytes: u64) -> Option<Result<MediaResult, MediaError>> {
        match &mut self.op.kind {
            MediaOpKind::Read { address, bytes } => {
                let mut data = vec![0u8; *bytes as usize].into_boxed_slice();
                Some(media.read(*address, &mut data).map(|()| MediaResult::Read(data)))
            }
            MediaOpKind::Program { data: None, .. } => Some(Ok(MediaResult::Programmed(None))),
            MediaOpKind::Program { address, data: data @ Some(_), .. } => {
                let bytes = data.as_deref().unwrap_or_default();
                let whole = bytes.len() as u64;
                let through = whole.min(self.done.saturating_add(program_bytes));
                let programmed = media.program(*address + self.done, &bytes[self.done as usize..through as usize]);
                self.done = through;
                ended(programmed, through < whole, || MediaResult::Programmed(data.take()))
            }
            MediaOpKind::Erase { address, bytes } => {
                let piece = (*bytes - self.done).min(program_bytes.saturating_mul(ERASED_PER_PROGRAMMED));
                let erased = media.erase(*address + self.done, piece);
                self.done += piece;
                ended(erased, self.done < *bytes, || MediaResult::Erased)
            }
            MediaOpKind::Sync => Some(media.sync().map(|()| MediaResult::Synced)),
        }
    }
}

fn ended(
    piece: Result<(), MediaError>,
    more: bool,
    whole: impl FnOnce() -> MediaResult,
) -> Option<Result<MediaResult, MediaError>> {
    match piece {
        Ok(()) if more => None,
        Ok(()) => Some(Ok(whole())),
        Err(error) => Some(Err(error)),
    }
}

/// Who does the media's work.
pub enum MediaWork {
    /// The firmware's thread, one piece a turn.
    Here(Here),
    /// A thread of its own.
    Thread(MediaThread),
}

impl MediaWork {
    /// A thread, if they are to have one: for media that may wait for a disk. It calls `notify` whenever there is an
    /// answer.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new(
        media: Arc<dyn Media>,
        threaded: bool,
        notify: impl Fn() + Send + 'static,
    ) -> std::io::Result<MediaWork> {
        if threaded {
            return MediaThread::spawn(media, notify).map(MediaWork::Thread);
        }
        Ok(MediaWork::Here(Here { media, job: None }))
    }

    /// Whether another operation may be handed over.
    pub fn has_room(&self) -> bool {
        match self {
            MediaWork::Here(here) => here.job.is_none(),
            MediaWork::Thread(thread) => thread.dues.len() < HANDED_MAX,
        }
    }

    /// Hands an operation over; there is room.
    pub fn hand(&mut self, op: MediaOp) {
        assert!(self.has_room(), "more of the media's operations than were to be under way");
        let job = Job { op, done: 0 };
        match self {
            MediaWork::Here(here) => here.job = Some(job),
            MediaWork::Thread(thread) => thread.hand(job),
        }
    }

    /// The next answer, if there is one. On the firmware's own thread this does a piece of the work.
    pub fn answer(&mut self) -> Option<Answer> {
        match self {
            MediaWork::Here(here) => here.answer(),
            MediaWork::Thread(thread) => thread.answer(),
        }
    }

    /// Whether to ask for an answer is worth while.
    pub fn has_answer(&self) -> bool {
        match self {
            MediaWork::Here(here) => here.job.is_some(),
            MediaWork::Thread(thread) => thread.has_answer(),
        }
    }

    /// Whether an operation takes longer than the model says.
    pub fn is_late(&self, now: Nanos) -> bool {
        match self {
            MediaWork::Here(_) => false,
            MediaWork::Thread(thread) => thread.dues.front().is_some_and(|due| *due < now),
        }
    }
}

/// The work of media that wait for nothing.
pub struct Here {
    media: Arc<dyn Media>,
    job: Option<Job>,
}

impl Here {
    fn answer(&mut self) -> Option<Answer> {
        let job = self.job.as_mut()?;
        let result = job.piece(&*self.media, PROGRAM_BYTES)?;
        let id = job.op.id;
        self.job = None;
        Some(Answer { id, result })
    }
}

/// The thread, and the queues to it and back.
pub struct MediaThread {
    /// Nothing once the thread is to end.
    jobs: Option<SyncSender<Job>>,
    answers: Receiver<Answer>,
    /// Answers that the thread gave, and those that were taken.
    given: Arc<AtomicU64>,
    taken: u64,
    /// When the model says that each operation ends that was not answered, in their order.
    dues: VecDeque<Nanos>,
    thread: Option<JoinHandle<()>>,
}

impl MediaThread {
    fn spawn(media: Arc<dyn Media>, notify: impl Fn() + Send + 'static) -> std::io::Result<MediaThread> {
        let (jobs, to_do) = sync_channel::<Job>(HANDED_MAX);
        let (done, answers) = sync_channel(HANDED_MAX);
        let given = Arc::new(AtomicU64::new(0));
        let counted = given.clone();
        let work = move || {
            for mut job in to_do {
                let Some(result) = job.piece(&*media, u64::MAX) else { unreachable!("a piece has no bound") };
                if done.send(Answer { id: job.op.id, result }).is_err() {
                    return;
                }
                counted.fetch_add(1, Ordering::Release);
                notify();
            }
        };
        let thread = std::thread::Builder::new().name("osier-media".to_owned()).spawn(work)?;
        let dues = VecDeque::with_capacity(HANDED_MAX);
        Ok(MediaThread { jobs: Some(jobs), answers, given, taken: 0, dues, thread: Some(thread) })
    }

    fn hand(&mut self, job: Job) {
        self.dues.push_back(job.op.due);
        let sent = self.jobs.as_ref().map(|jobs| jobs.try_send(job));
        assert!(matches!(sent, Some(Ok(()))), "the media's thread has ended, or its queue has no room");
    }

    fn has_answer(&self) -> bool {
        self.given.load(Ordering::Acquire) != self.taken
    }

    fn answer(&mut self) -> Option<Answer> {
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => panic!("the media's thread has ended"),
        };
        self.taken += 1;
        self.dues.pop_front();
        Some(answer)
    }
}

impl Drop for MediaThread {
    fn drop(&mut self) {
        self.jobs = None;
        // Its answers have room: no more were handed over than fit.
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed by it; a second panic here would abort.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
