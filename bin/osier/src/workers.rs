//! Pieces of work that know nothing of each other, on as many threads as there are processors.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use anyhow::Result;

use crate::signals::StopFlag;

/// Most threads of one command.
pub const JOBS_MAX: usize = 1024;

/// How many threads to use when nobody says.
pub fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZeroUsize::get).min(JOBS_MAX)
}

/// Whether every piece was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was.
    Whole,
    /// Somebody asked to stop. What had begun was finished.
    Stopped,
}

/// Does every piece on up to `jobs` threads, and calls `done` on this one with each result as it comes, with the
/// piece's place in the list. When `done` fails, or somebody asks to stop, no further piece is begun.
///
/// # Errors
/// What `done` says.
pub fn run<W: Sync, T: Send>(
    jobs: usize,
    stop: &StopFlag,
    pieces: &[W],
    work: impl Fn(&W) -> T + Sync,
    mut done: impl FnMut(usize, T) -> Result<()>,
) -> Result<Ended> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let (sender, results) = mpsc::channel();
    let worker = |sender: mpsc::Sender<(usize, T)>| {
        while !stop.is_set() && !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(index) else { return };
            if sender.send((index, work(piece))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, JOBS_MAX).min(pieces.len()) {
            let sender = sender.clone();
            scope.spawn(|| worker(sender));
        }
        drop(sender);
        let mut received = 0;
        for (index, result) in results {
            done(index, result).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
            received += 1;
        }
        Ok(if received == pieces.len() { Ended::Whole } else { Ended::Stopped })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_done_once_on_any_number_of_threads() {
        let pieces: Vec<usize> = (0..100).collect();
        for jobs in [0, 1, 3, 200] {
            let mut seen = vec![0; pieces.len()];
            let ended = run(
                jobs,
                &StopFlag::default(),
                &pieces,
                |piece| piece * piece,
                |index, square| {
                    assert_eq!(square, index * index);
                    seen[index] += 1;
                    Ok(())
                },
            );
            assert_eq!(ended.unwrap(), Ended::Whole);
            assert!(seen.iter().all(|times| *times == 1), "{jobs}: {seen:?}");
        }
    }

    #[test]
    fn an_error_or_a_stop_begins_nothing_more() {
        let pieces: Vec<usize> = (0..10_000).collect();
        let begun = AtomicUsize::new(0);
        let work = |_: &usize| begun.fetch_add(1, Ordering::Relaxed);
        let slowly = |piece: &usize| {
            thread::sleep(std::time::Duration::from_millis(1));
            work(piece)
        };
        let error = run(2, &StopFlag::default(), &pieces, slowly, |_, _| anyhow::bail!("full")).unwrap_err();
        assert_eq!(error.to_string(), "full");
        assert!(begun.load(Ordering::Relaxed) < pieces.len() / 2);
        let stop = StopFlag::default();
        let mut count = 0;
        let ended = run(2, &stop, &pieces, slowly, |_, _| {
            count += 1;
            stop.set();
            Ok(())
        });
        assert_eq!(ended.unwrap(), Ended::Stopped);
        assert!(count < pieces.len() / 2);
    }
}
