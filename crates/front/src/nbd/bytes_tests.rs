use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::memory::{Disk, MemoryExport};
use crate::volume::Export;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn open(disk: Disk) -> (Bytes, Pool) {
    let export = MemoryExport { transfer_blocks_max: 2, ..MemoryExport::new("disk", &Arc::new(disk)) };
    (Bytes::new(export.open().unwrap(), &Arc::new(RangeLock::default())).unwrap(), Pool::default())
}

fn answer(bytes: &mut Bytes, pool: &mut Pool, command: Command) -> Answer {
    let mut answers = Vec::new();
    bytes.begin(Request { token: 7, command }, pool);
    bytes.advance(pool, &mut answers);
    assert!(answers.len() == 1 && answers[0].0 == 7 && !bytes.is_busy());
    answers.remove(0).1
}

/// The error is that of the document, and it says where: at the piece that failed, or where the request begins in it.
#[test]
fn an_error_of_the_media_is_told_with_its_place_and_holds_up_nobody() {
    let mut disk = Disk::new(8);
    disk.broken = Some(5);
    let (mut bytes, mut pool) = open(disk);
    let failed = |answer| match answer {
        Answer::Failed(Failure { error, offset, .. }) => (error, offset),
        other => panic!("{other:?}"),
    };
    let read = failed(answer(&mut bytes, &mut pool, Command::Read(Span::new(100, 6 * BLOCK))));
    assert_eq!(read, (Errno::Io, Some(4 * BLOCK)));
    let read = failed(answer(&mut bytes, &mut pool, Command::Read(Span::new(5 * BLOCK + 9, 10))));
    assert_eq!(read, (Errno::Io, Some(5 * BLOCK + 9)));
    for span in [Span::new(5 * BLOCK, BLOCK), Span::new(5 * BLOCK + 1, 2), Span::new(0, 8 * BLOCK)] {
        let payload = Payload::new(span, 2, &mut pool);
        let write = failed(answer(&mut bytes, &mut pool, Command::Write { payload, fua: false }));
        assert_eq!(write.0, Errno::Io);
        let command = Command::WriteZeroes { span, may_deallocate: true, fua: false };
        assert_eq!(failed(answer(&mut bytes, &mut pool, command)).0, Errno::Io);
    }
    // What failed holds no range any more.
    let payload = Payload::new(Span::new(3, 4 * BLOCK), 2, &mut pool);
    assert_eq!(answer(&mut bytes, &mut pool, Command::Write { payload, fua: false }), Answer::Done);
}

/// A trim that is to be persistent ends with a flush; a write carries the flag itself, in each of its pieces.
#[test]
fn force_unit_access_reaches_the_volume() {
    let disk = Arc::new(Disk::new(8));
    let export = MemoryExport { transfer_blocks_max: 2, ..MemoryExport::new("disk", &disk) };
    let mut bytes = Bytes::new(export.open().unwrap(), &Arc::new(RangeLock::default())).unwrap();
    let mut pool = Pool::default();
    let span = Span::new(0, 5 * BLOCK);
    for fua in [false, true] {
        answer(&mut bytes, &mut pool, Command::Trim { span, fua });
        let payload = Payload::new(span, 2, &mut pool);
        answer(&mut bytes, &mut pool, Command::Write { payload, fua });
        answer(
            &mut bytes,
            &mut pool,
            Command::WriteZeroes { span: Span::new(1, 5 * BLOCK), may_deallocate: true, fua },
        );
        let of_fua = if fua { (1, 3 + 3) } else { (0, 0) };
        assert_eq!((disk.flushes.load(Ordering::Relaxed), disk.fua_writes.load(Ordering::Relaxed)), of_fua);
    }
}

#[test]
fn extents_are_those_of_the_bytes_asked_for() {
    let extent = |blocks, is_hole| Extent { blocks, is_hole };
    let span = Span::new(BLOCK + 10, 3 * BLOCK);
    let found = extents_within(span, &[extent(1, false), extent(1, false), extent(9, true)]);
    assert_eq!(found, [(2 * BLOCK - 10, false), (BLOCK + 10, true)]);
    assert_eq!(extents_within(Span::new(5, 1), &[extent(1, true)]), [(1, true)]);
}

/// Threads that count up in turn: whole blocks by some, parts of the same blocks by others. No two hold what overlaps.
#[test]
fn a_patch_is_alone_on_its_blocks_among_threads() {
    const ROUNDS: u64 = 20_000;
    let lock = Arc::new(RangeLock::default());
    // Writers now on a block, and a patch now on it (as a high number).
    let owners: [AtomicU64; 2] = Default::default();
    let hold = |lane: &Lane, hold: Hold| {
        while !lane.is_granted(&hold) {
            crate::sys::wait(&[crate::sys::Wait { fd: lane.event(), to_read: true, to_write: false }], Some(20_000))
                .unwrap();
            lane.clear();
        }
        hold
    };
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (lock, owners) = (&lock, &owners);
            scope.spawn(move || {
                let lane = Lane::new(lock).unwrap();
                for round in 0..ROUNDS {
                    let block = (round / 3 + thread) % 2;
                    let owner = &owners[block as usize];
                    if thread < 2 && round % 8 == 0 {
                        let granted = hold(&lane, lane.patch(block..block + 1));
                        assert_eq!(owner.fetch_add(1 << 32, Ordering::SeqCst), 0, "a patch is not alone");
                        owner.fetch_sub(1 << 32, Ordering::SeqCst);
                        lane.end(granted);
                    } else {
                        let granted = hold(&lane, lane.write(block..block + 1));
                        assert!(owner.fetch_add(1, Ordering::SeqCst) < 1 << 32, "a write is within a patch");
                        owner.fetch_sub(1, Ordering::SeqCst);
                        lane.end(granted);
                    }
                }
            });
        }
    });
}

/// A connection that ends in the middle holds up nobody.
#[test]
fn what_a_connection_held_is_free_when_it_has_gone() {
    let lock = Arc::new(RangeLock::default());
    let (one, other) = (Lane::new(&lock).unwrap(), Lane::new(&lock).unwrap());
    let _lost = (one.write(0..1), one.patch(0..4));
    let wanted = (other.patch(2..3), other.write(3..4));
    assert!(!other.is_granted(&wanted.0) && !other.is_granted(&wanted.1));
    drop(one);
    assert!(other.is_granted(&wanted.0) && other.is_granted(&wanted.1));
    other.end(wanted.0);
    other.end(wanted.1);
    assert_eq!(other.write(0..9), Hold::Counted);
}
