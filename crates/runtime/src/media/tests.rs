//! Tests of who does the media's work: against a plain list of bytes, on media that hang, and on media that refuse.

use std::collections::VecDeque;
use std::sync::mpsc::channel;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

use osier_image::{MemoryMedia, NoneMedia};

use super::*;

const PAGE: usize = 16 << 10;
const SUPERBLOCK: usize = 64 * PAGE;
const SUPERBLOCKS: usize = 4;

/// Memory whose operations wait at a gate; those beyond `refused_from` are refused.
#[derive(Debug)]
struct Gated {
    memory: MemoryMedia,
    open: Mutex<bool>,
    opened: Condvar,
    refused_from: u64,
}

impl Gated {
    fn new(open: bool, refused_from: u64) -> Arc<Gated> {
        let memory = MemoryMedia::create((SUPERBLOCKS * SUPERBLOCK) as u64).unwrap();
        Arc::new(Gated { memory, open: Mutex::new(open), opened: Condvar::new(), refused_from })
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn pass(&self, address: u64) -> Result<(), MediaError> {
        drop(self.opened.wait_while(self.open.lock().unwrap(), |open| !*open).unwrap());
        if address < self.refused_from { Ok(()) } else { NoneMedia::new(0).program(address, &[0]) }
    }
}

impl Media for Gated {
    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), MediaError> {
        self.pass(address)?;
        self.memory.read(address, into)
    }
    fn program(&self, address: u64, bytes: &[u8]) -> Result<(), MediaError> {
        self.pass(address)?;
        self.memory.program(address, bytes)
    }
    fn erase(&self, address: u64, bytes: u64) -> Result<(), MediaError> {
        self.pass(address)?;
        self.memory.erase(address, bytes)
    }
    fn sync(&self) -> Result<(), MediaError> {
        self.memory.sync()
    }
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }
    fn describe(&self) -> String {
        "gated".to_owned()
    }
}

fn op(id: u64, kind: MediaOpKind) -> MediaOp {
    MediaOp { id: OpId(id), due: Nanos(id), kind }
}

fn program(id: u64, page: usize, byte: u8) -> MediaOp {
    let data = Some(vec![byte; PAGE].into_boxed_slice());
    op(id, MediaOpKind::Program { address: (page * PAGE) as u64, bytes: PAGE as u32, data })
}

/// The next answer, waited for.
fn answer(work: &mut MediaWork) -> Answer {
    loop {
        match work.answer() {
            Some(answer) => return answer,
            None => std::thread::yield_now(),
        }
    }
}

fn number(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    (*seed >> 33) as usize % below
}

/// Programs, erases and reads at random places, many of them at the same ones, beside a plain list of bytes that does
/// the same in the order in which they were handed over.
#[test]
fn the_media_do_what_a_plain_list_of_bytes_does() {
    for threaded in [false, true] {
        let media = Gated::new(true, u64::MAX);
        let mut work = MediaWork::new(media.clone(), threaded, || {}).unwrap();
        let mut plain = vec![0u8; SUPERBLOCKS * SUPERBLOCK];
        let mut expected: VecDeque<(u64, Option<Vec<u8>>)> = VecDeque::new();
        let mut seed = 7;
        let check = |answer: Answer, expected: &mut VecDeque<(u64, Option<Vec<u8>>)>| {
            let (id, bytes) = expected.pop_front().unwrap();
            assert_eq!(answer.id, OpId(id), "answers come in the order of the operations");
            match (answer.result.unwrap(), bytes) {
                (MediaResult::Read(found), Some(bytes)) => assert!(*found == *bytes, "read {id} of other bytes"),
                (MediaResult::Programmed(Some(buffer)), None) => assert_eq!(buffer.len(), PAGE),
                (MediaResult::Erased, None) => {}
                (other, _) => panic!("operation {id} was answered {other:?}"),
            }
        };
        for id in 0..4_000u64 {
            while !work.has_room() {
                let answered = answer(&mut work);
                check(answered, &mut expected);
            }
            let (page, byte) = (number(&mut seed, 8) * 32, number(&mut seed, 255) as u8 + 1);
            match number(&mut seed, 8) {
                0 => {
                    let at = page * PAGE / SUPERBLOCK * SUPERBLOCK;
                    work.hand(op(id, MediaOpKind::Erase { address: at as u64, bytes: SUPERBLOCK as u64 }));
                    plain[at..at + SUPERBLOCK].fill(0);
                    expected.push_back((id, None));
                }
                1..=3 => {
                    let (from, bytes) = (page * PAGE + number(&mut seed, PAGE), 1 + number(&mut seed, PAGE));
                    work.hand(op(id, MediaOpKind::Read { address: from as u64, bytes: bytes as u32 }));
                    expected.push_back((id, Some(plain[from..from + bytes].to_vec())));
                }
                _ => {
                    work.hand(program(id, page, byte));
                    plain[page * PAGE..(page + 1) * PAGE].fill(byte);
                    expected.push_back((id, None));
                }
            }
        }
        while !expected.is_empty() {
            let answered = answer(&mut work);
            check(answered, &mut expected);
        }
        let mut found = vec![0u8; plain.len()];
        media.memory.read(0, &mut found).unwrap();
        assert!(found == plain, "the media hold other bytes, with a thread: {threaded}");
    }
}

#[test]
fn media_that_hang_hold_up_nobody_and_are_seen_to_be_late() {
    let media = Gated::new(false, u64::MAX);
    let (told, tells) = channel();
    let mut work = MediaWork::new(media.clone(), true, move || told.send(()).unwrap()).unwrap();
    assert!(!work.is_late(Nanos::MAX), "nothing was asked for");
    for id in 0..HANDED_MAX as u64 {
        assert!(work.has_room());
        work.hand(program(id, id as usize, id as u8));
    }
    assert!(!work.has_room() && !work.has_answer() && work.answer().is_none());
    assert!(!work.is_late(Nanos(0)) && work.is_late(Nanos(1)), "the first is due at 0");
    media.open();
    for id in 0..HANDED_MAX as u64 {
        tells.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(work.has_answer());
        assert_eq!(work.answer().unwrap().id, OpId(id));
        assert!(work.has_room());
    }
    assert!(!work.has_answer() && !work.is_late(Nanos::MAX));
}

#[test]
fn a_refusal_is_the_answer_of_its_operation_and_of_no_other() {
    for threaded in [false, true] {
        let media = Gated::new(true, 2 * PAGE as u64);
        let mut work = MediaWork::new(media, threaded, || {}).unwrap();
        for page in [0, 3, 1] {
            work.hand(program(page, page as usize, 1));
            let answered = answer(&mut work);
            assert_eq!((answered.id, answered.result.is_err()), (OpId(page), page == 3));
        }
    }
}

#[test]
fn what_was_handed_over_is_done_before_the_thread_ends() {
    let media = Gated::new(false, u64::MAX);
    let mut work = MediaWork::new(media.clone(), true, || {}).unwrap();
    (0..HANDED_MAX).for_each(|page| work.hand(program(page as u64, page, 9)));
    media.open();
    drop(work);
    let mut found = vec![0u8; HANDED_MAX * PAGE];
    media.memory.read(0, &mut found).unwrap();
    assert!(found.iter().all(|byte| *byte == 9));
}
