//! Three paths that random crashes seldom meet; the others are in the fault simulation of `osier-sim`.

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

/// A thin device is as full as it may be; what was taken and did not surely survive the death of the process, or the
/// loss of power, is appended anew, as from a write buffer, beside whatever of it reached the media.
fn replay_on_a_full_device(bug: Option<Bug>) -> Check {
    for seed in 0..40 {
        replay_seed(seed, bug).map_err(|what| format!("seed {seed}: {what}"))?;
    }
    Ok(())
}

fn replay_seed(seed: u64, bug: Option<Bug>) -> Check {
    let mut rng = Rng::new(seed);
    // The more is spare, the more is written before collection syncs.
    let over_provisioning_permille = 10 + rng.below(400) as u32;
    let params = FtlParams { thin: true, over_provisioning_permille, gc_free_superblocks_low: 1, ..PARAMS };
    let blocks = 3 * Ftl::logical_blocks_max(&GEOMETRY, &params).unwrap() / 8 * 8;
    let mut bench = new_bench(GEOMETRY, params, blocks);
    bench.array = NandArray::new(GEOMETRY, 0xff, seed);
    bench.in_any_order = true;
    bench.ftl.bug = bug;
    let mut sequence = 0;
    for round in 0..6 {
        let mut taken = Vec::new();
        for _ in 0..200 {
            // What is set free by one is taken at once by others.
            let (slba, count) = (rng.below(blocks / 8) * 8, 1 + rng.below(8));
            let stored_bytes = rng.below(4096 * count).min(u64::from(bench.ftl.stored_bytes_max()));
            if bench.ftl.can_accept_over(Lba(slba), count as u32, stored_bytes) {
                sequence += 1;
                let write = Some(extent(slba, count as u16, stored_bytes as u32, sequence));
                taken.push((append(&mut bench, sequence, write.as_ref())?, sequence, write));
            } else if round > 0 && rng.one_in(60) {
                sequence += 1;
                taken.push((append(&mut bench, sequence, None)?, sequence, None));
            }
            if rng.one_in(4) {
                bench.step();
            }
        }
        let mut durable = bench.ftl.durable_through();
        bench.issue();
        if rng.one_in(2) {
            bench.array.kill();
        } else {
            // The buffer keeps what is not synced.
            bench.array.cut_power();
            durable = AppendId(0);
        }
        let mut read = |address, out: &mut [u8]| bench.array.read_into(address, out);
        let recovered = Ftl::recover_planted(GEOMETRY, TIMING, params, blocks, &mut read, bug);
        bench.ftl = recovered.map_err(|error| error.to_string())?.0;
        for (_, sequence, write) in taken.into_iter().filter(|(append, ..)| *append > durable) {
            append(&mut bench, sequence, write.as_ref()).map_err(|error| format!("it came again: {error}"))?;
        }
        bench.flush().map_err(|error| error.to_string())?;
        bench.ftl.audit()?;
    }
    Ok(())
}

/// A full device is trimmed and filled again elsewhere, and neither is synced when power is lost: what was trimmed may
/// be back beside what took its place. The extents are small, so that a lost page takes few with it.
fn power_lost_after_a_trim_of_a_full_device(bug: Option<Bug>) -> Check {
    for seed in 0..10 {
        let params = FtlParams { thin: true, over_provisioning_permille: 400, gc_free_superblocks_low: 1, ..PARAMS };
        let blocks = 25 * Ftl::logical_blocks_max(&GEOMETRY, &params).unwrap();
        let mut bench = new_bench(GEOMETRY, params, blocks);
        bench.array = NandArray::new(GEOMETRY, 0xff, seed);
        bench.in_any_order = true;
        bench.ftl.bug = bug;
        let mut sequence = 0;
        // From a block on, until so many bytes are free.
        let mut fill = |bench: &mut Bench, mut slba: u64, free: u64, taken: &mut Vec<_>| -> Check {
            while bench.ftl.can_accept(400 + free) {
                sequence += 1;
                let write = Some(extent(slba, 1, 400, sequence));
                append(bench, sequence, write.as_ref())?;
                taken.push((sequence, write));
                slba += 1;
            }
            sequence += 1;
            Ok(())
        };
        fill(&mut bench, 0, 0, &mut Vec::new())?;
        bench.flush().map_err(|error| error.to_string())?;
        let trim = bench.ftl.stats().live_extents + 1;
        let mut taken = vec![(trim, None)];
        append(&mut bench, trim, None)?;
        let free = bench.ftl.usable_bytes() / 4;
        fill(&mut bench, blocks / 2, free, &mut taken)?;
        bench.issue();
        bench.array.cut_power();
        let mut read = |address, out: &mut [u8]| bench.array.read_into(address, out);
        let recovered = Ftl::recover_planted(GEOMETRY, TIMING, params, blocks, &mut read, bug);
        bench.ftl = recovered.map_err(|error| error.to_string())?.0;
        for (sequence, write) in taken {
            append(&mut bench, sequence, write.as_ref()).map_err(|error| format!("it came again: {error}"))?;
        }
    }
    Ok(())
}

/// Appends an extent, or trims half of all blocks.
fn append(bench: &mut Bench, sequence: u64, write: Option<&(Extent, Vec<u8>)>) -> Result<AppendId, String> {
    let half = bench.ftl.logical_blocks() as u32 / 2;
    let appended = match write {
        Some((extent, payload)) => bench.append(extent, payload),
        None => bench.trim(Lba(0), half, sequence),
    };
    appended.map_err(|error| format!("sequence {sequence}: {error}"))
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
fn a_write_that_was_taken_is_taken_again_after_a_crash_of_a_full_device() {
    replay_on_a_full_device(None).unwrap();
    power_lost_after_a_trim_of_a_full_device(None).unwrap();
}

#[test]
fn each_of_these_finds_its_planted_bug() {
    let fails = |check: fn(Option<Bug>) -> Check, bug| {
        let check = std::panic::AssertUnwindSafe(|| check(Some(bug)));
        std::panic::catch_unwind(check).map_or(true, |check| check.is_err())
    };
    assert!(fails(cut_in_every_collection, Bug::CopyStands));
    assert!(fails(read_during_collection, Bug::EraseUnderReader));
    assert!(fails(replay_on_a_full_device, Bug::ReplayCountsAsNew));
    assert!(fails(power_lost_after_a_trim_of_a_full_device, Bug::ForgetShadows));
}
