//! Tests of the sync worker: what an answer covers, its order, its bound, and the end.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::media::NoneMedia;

/// Media whose sync waits at a gate, and which remember how much was programmed when a sync began.
#[derive(Debug, Default)]
struct Gated {
    open: Mutex<bool>,
    opened: Condvar,
    programmed: AtomicU64,
    covered: AtomicU64,
    fail: AtomicBool,
}

impl Gated {
    fn set_gate(&self, open: bool) {
        *self.open.lock().unwrap() = open;
        self.opened.notify_all();
    }
}

impl Media for Gated {
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), MediaError> {
        Ok(())
    }
    fn program(&self, _: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.programmed.fetch_add(bytes.len() as u64, Ordering::SeqCst);
        Ok(())
    }
    fn erase(&self, _: u64, _: u64) -> Result<(), MediaError> {
        Ok(())
    }
    fn sync(&self) -> Result<(), MediaError> {
        let covered = self.programmed.load(Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
        self.covered.store(covered, Ordering::SeqCst);
        if self.fail.load(Ordering::SeqCst) {
            return NoneMedia::new(0).program(0, &[0]);
        }
        Ok(())
    }
    fn bytes(&self) -> u64 {
        0
    }
    fn describe(&self) -> String {
        "gated".to_owned()
    }
}

const SOON: Duration = Duration::from_secs(10);

#[test]
fn the_caller_does_not_wait_and_late_tickets_share_the_next_sync() {
    let media = Arc::new(Gated::default());
    let worker = SyncWorker::spawn(media.clone(), || {}).unwrap();
    worker.submit(SyncTicket(1)).unwrap();
    // Until the first sync is at the gate, a further ticket could still be covered by it.
    while !worker.shared.lock().asked.is_empty() {
        std::thread::yield_now();
    }
    media.program(0, &[0; 8]).unwrap();
    for ticket in 2..=5 {
        worker.submit(SyncTicket(ticket)).unwrap();
    }
    assert!(worker.poll().is_none());
    assert!(worker.wait(Duration::from_millis(5)).is_none());
    media.set_gate(true);
    let answered: Vec<u64> = (0..5).map(|_| worker.wait(SOON).unwrap().ticket.0).collect();
    assert_eq!(answered, [1, 2, 3, 4, 5]);
    assert_eq!(media.covered.load(Ordering::SeqCst), 8);
    assert_eq!(worker.syncs(), 2);
}

#[test]
fn whoever_asked_is_told_when_the_answer_can_be_collected() {
    let media = Arc::new(Gated::default());
    let (told, tells) = std::sync::mpsc::channel();
    let worker = SyncWorker::spawn(media.clone(), move || told.send(()).unwrap()).unwrap();
    worker.submit(SyncTicket(1)).unwrap();
    assert!(!worker.has_done());
    assert!(tells.try_recv().is_err());
    media.set_gate(true);
    tells.recv_timeout(SOON).unwrap();
    assert!(worker.has_done());
    assert_eq!(worker.poll().unwrap().ticket, SyncTicket(1));
    assert!(!worker.has_done());
}

#[test]
fn a_failed_sync_is_told_to_every_ticket_it_was_to_answer() {
    let media = Arc::new(Gated::default());
    media.fail.store(true, Ordering::SeqCst);
    let worker = SyncWorker::spawn(media.clone(), || {}).unwrap();
    (1..=3).for_each(|ticket| worker.submit(SyncTicket(ticket)).unwrap());
    media.set_gate(true);
    assert!((0..3).all(|_| worker.wait(SOON).unwrap().result.is_err()));
}

#[test]
fn the_queue_is_bounded_and_collecting_makes_room() {
    let media = Arc::new(Gated::default());
    let worker = SyncWorker::spawn(media.clone(), || {}).unwrap();
    for ticket in 0..TICKETS_MAX as u64 {
        worker.submit(SyncTicket(ticket)).unwrap();
    }
    assert_eq!(worker.submit(SyncTicket(0)), Err(SyncQueueFull));
    media.set_gate(true);
    worker.wait(SOON).unwrap();
    worker.submit(SyncTicket(0)).unwrap();
}

#[test]
fn dropping_the_worker_finishes_what_was_asked() {
    let media = Arc::new(Gated::default());
    let worker = SyncWorker::spawn(media.clone(), || {}).unwrap();
    media.program(0, &[0; 3]).unwrap();
    worker.submit(SyncTicket(1)).unwrap();
    media.set_gate(true);
    drop(worker);
    assert_eq!(media.covered.load(Ordering::SeqCst), 3);
}
