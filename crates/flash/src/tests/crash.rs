//! Two paths that random crashes seldom meet; the others are in the fault simulation of `osier-sim`.

use super::bench::*;
use crate::codec::StreamKind;
use crate::ftl::SuperblockState;
use crate::planted::Bug;
use crate::*;

type Check = Result<(), String>;

/// A full device is cut off each time that collection has taken the last free superblock and has copied
/// only some of its victim there; it must still take writes in the end.
fn cut_in_every_collection(bug: Option<Bug>) -> Check {
    let params = FtlParams { gc_free_superblocks_low: 1, over_provisioning_permille: 10, ..PARAMS };
    let blocks = Ftl::logical_blocks_max(&GEOMETRY, &params).unwrap();
    let mut rng = Rng::new(1);
    let mut bench = new_bench(GEOMETRY, params, blocks);
    bench.ftl.bug = bug;
    let mut sequence = 0;
    let mut cuts = 0;
    while cuts < 40 {
        sequence += 1;
        let block = if sequence <= blocks { sequence - 1 } else { rng.below(blocks) };
        let (one, payload) = extent(block, 1, 4096, sequence);
        let mut steps = 0;
        while bench.ftl.append(bench.now, &one, Some(&payload)) == Err(Backpressure::Busy) {
            if is_at_its_worst(&bench.ftl) {
                cuts += 1;
                bench.issue();
                while bench.array.carry_out(false).is_some() {}
                let mut read = |address, out: &mut [u8]| bench.array.read_into(address, out);
                let recovered = Ftl::recover_planted(GEOMETRY, TIMING, params, blocks, &mut read, bug);
                bench.ftl = recovered.map_err(|error| error.to_string())?.0;
                bench.reads.clear();
                break;
            }
            steps += 1;
            if !bench.step() || steps > 100_000 {
                return Err(format!("cut {cuts}: waits for ever: {:?}", bench.ftl.stats()));
            }
        }
    }
    bench.ftl.audit()
}

/// Nothing is free, and pages with copies are programmed while the victim still holds extents.
fn is_at_its_worst(ftl: &Ftl) -> bool {
    let is_half_copied = |(index, superblock): (usize, &crate::ftl::Superblock)| {
        superblock.state == SuperblockState::Victim && ftl.directory.residents(index as u32).live_bytes > 0
    };
    let open = ftl.streams[StreamKind::Relocation.index()].open;
    ftl.superblocks_free == 0
        && open.is_some_and(|open| ftl.superblocks[open.superblock as usize].next_page > 2)
        && ftl.superblocks.iter().enumerate().any(is_half_copied)
}

/// A read is late, and its superblock is wanted meanwhile.
fn read_during_collection(bug: Option<Bug>) -> Check {
    let mut bench = new_bench(GEOMETRY, FtlParams { gc_free_superblocks_low: 8, ..PARAMS }, 240);
    bench.ftl.bug = bug;
    let (one, payload) = extent(0, 1, 4_000, 1);
    bench.append(&one, &payload).unwrap();
    bench.flush().unwrap();
    let mut pieces = Vec::new();
    bench.ftl.pieces(Lba(0), 1, &mut pieces);
    let PieceKind::Mapped { location, .. } = pieces[0].kind else { panic!("mapped") };
    let id = bench.ftl.read(bench.now, location, 0..4_000).unwrap();
    // The read's operation is withheld from the array while the device is overwritten many times.
    let read = bench.ftl.next_op().unwrap();
    for sequence in 2..400 {
        let (one, payload) = extent(sequence % 7, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    bench.array.issue(read);
    bench.settle();
    if bench.reads.remove(&id).unwrap().as_deref() != Ok(&payload[..]) {
        return Err("the read brought other bytes".into());
    }
    for sequence in 400..1_000 {
        let (one, payload) = extent(sequence % 7, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    match bench.ftl.read(bench.now, location, 0..4_000) {
        Err(ReadRefused::Moved) => Ok(()),
        other => Err(format!("a stale location was not refused: {other:?}")),
    }
}

#[test]
fn a_device_that_is_cut_off_in_every_collection_still_takes_writes() {
    cut_in_every_collection(None).unwrap();
}

#[test]
fn a_read_under_way_keeps_its_superblock_and_a_stale_location_is_refused() {
    read_during_collection(None).unwrap();
}

#[test]
fn each_of_these_finds_its_planted_bug() {
    let fails = |check: fn(Option<Bug>) -> Check, bug| {
        let check = std::panic::AssertUnwindSafe(|| check(Some(bug)));
        std::panic::catch_unwind(check).map_or(true, |check| check.is_err())
    };
    assert!(fails(cut_in_every_collection, Bug::CopyStands));
    assert!(fails(read_during_collection, Bug::EraseUnderReader));
}
