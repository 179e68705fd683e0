//! Recovery from media that has rotted, was written by something else, or fails.

use super::bench::*;
use crate::codec::{SUPERBLOCK_HEADER_BYTES, StreamKind, header_offsets};
use crate::ftl::SuperblockState;
use crate::*;

const BLOCKS: u64 = 240;

fn recover(array: &NandArray) -> Result<(Ftl, RecoveryReport), FtlError> {
    recover_as(array, GEOMETRY, BLOCKS)
}

fn recover_as(array: &NandArray, geometry: Geometry, blocks: u64) -> Result<(Ftl, RecoveryReport), FtlError> {
    let mut read = |address, out: &mut [u8]| array.read_into(address, out);
    Ftl::recover(geometry, TIMING, PARAMS, blocks, &mut read)
}

/// A device with some versions of each of the first blocks, flushed; `model[block]` is the sequence.
fn written(seed: u64, versions: u64) -> (Bench, Vec<u64>) {
    let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
    let mut rng = Rng::new(seed);
    let mut model = vec![0; BLOCKS as usize];
    for sequence in 1..=versions {
        let blocks = rng.within(1..=8);
        let slba = rng.below(BLOCKS - blocks + 1);
        let (one, payload) = extent(slba, blocks as u16, rng.below(12_000) as u32, sequence);
        bench.append(&one, &payload).unwrap();
        model[slba as usize..(slba + blocks) as usize].fill(sequence);
        if rng.one_in(20) {
            bench.flush().unwrap();
        }
    }
    bench.flush().unwrap();
    // What was synced is known to have been once a later record says so.
    let (last, payload) = extent(BLOCKS - 1, 1, 100, versions + 1);
    bench.append(&last, &payload).unwrap();
    model[BLOCKS as usize - 1] = versions + 1;
    bench.flush().unwrap();
    bench.settle();
    (bench, model)
}

/// Restarts the bench's device from its media.
fn restart(bench: &mut Bench) -> RecoveryReport {
    let (ftl, report) = recover(&bench.array).unwrap();
    bench.ftl = ftl;
    bench.ftl.audit().unwrap();
    report
}

/// Reads a block: the sequence, and whether the bytes fit the checksum that the directory names.
fn observe(bench: &mut Bench, block: u64) -> (u64, bool) {
    match bench.read_block(block) {
        None => (0, true),
        Some((extent, _, bytes)) => (extent.sequence, crc32c::crc32c(&bytes.unwrap()) == extent.checksum),
    }
}

#[test]
fn a_clean_stop_is_found_clean_and_whole() {
    for seed in 0..10 {
        let (mut bench, model) = written(seed, 300);
        let live = bench.ftl.stats();
        let report = restart(&mut bench);
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.sequence_max, report.extents_live), (301, live.live_extents));
        assert_eq!(report.trusted_sequence, 300);
        assert!(report.superblocks_trusted > 0, "what was synced before is not read again");
        assert_eq!(bench.ftl.stats().live_bytes, live.live_bytes);
        for (block, &sequence) in model.iter().enumerate() {
            assert_eq!(observe(&mut bench, block as u64), (sequence, true), "seed {seed} block {block}");
        }
    }
}

#[test]
fn one_flipped_bit_is_repaired_or_read_as_an_error_but_never_as_old_data() {
    let (mut rotten, mut repaired) = (0, 0);
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let (mut bench, model) = written(seed % 7, 150);
        let address = rng.below(GEOMETRY.superblock_bytes() * 6);
        bench.array.flip_bit(address, rng.below(8) as u32);
        let report = restart(&mut bench);
        let mut wrong = 0;
        for (block, &sequence) in model[..BLOCKS as usize - 1].iter().enumerate() {
            let (seen, is_sound) = observe(&mut bench, block as u64);
            assert_eq!(seen, sequence, "seed {seed}: block {block} came back from the dead: {report:?}");
            wrong += u64::from(!is_sound);
        }
        assert!(wrong <= 8, "one bit lies in one extent");
        rotten += wrong;
        repaired += report.headers_repaired;
        // Collection carries the damage along, and another recovery does not bring old data back.
        for sequence in 1_000..1_300 {
            let (one, payload) = extent(BLOCKS - 1, 1, 4_000, sequence);
            bench.append(&one, &payload).unwrap();
        }
        bench.flush().unwrap();
        bench.settle();
        restart(&mut bench);
        for (block, &sequence) in model[..BLOCKS as usize - 1].iter().enumerate() {
            assert_eq!(observe(&mut bench, block as u64).0, sequence, "seed {seed}: after collection, block {block}");
        }
    }
    assert!(rotten > 50 && repaired > 2, "{rotten} {repaired}");
}

#[test]
fn either_header_of_a_superblock_can_be_lost_with_its_page() {
    for offset in header_offsets(&GEOMETRY) {
        let (mut bench, model) = written(3, 200);
        bench.array.corrupt(offset, u64::from(SUPERBLOCK_HEADER_BYTES));
        let report = restart(&mut bench);
        assert_eq!((report.headers_lost, report.superblocks_suspect), (1, 1));
        assert!(!report.is_clean());
        for (block, &sequence) in model.iter().enumerate() {
            assert_eq!(observe(&mut bench, block as u64), (sequence, true));
        }
    }
}

#[test]
fn what_is_left_out_for_want_of_a_header_stays_out() {
    let (mut bench, _) = written(3, 200);
    let open = bench.ftl.streams[StreamKind::Host.index()].open.unwrap().superblock;
    let start = u64::from(open) * GEOMETRY.superblock_bytes();
    bench.array.overwrite(start, &[0xff; 8192]);
    let first = restart(&mut bench);
    assert_eq!((first.superblocks_headless, first.superblocks_blank > 0), (0, true), "{first:?}");
    // An erase that was begun leaves noise where the pages were blank.
    bench.array.corrupt(start, 100);
    let second = restart(&mut bench);
    assert_eq!((second.superblocks_headless, second.extents_seen), (1, first.extents_seen));
}

#[test]
fn a_destroyed_stretch_is_reported_and_what_follows_it_is_found() {
    let (mut bench, model) = written(4, 200);
    let address = GEOMETRY.superblock_bytes() + 20_000;
    bench.array.corrupt(address, 20_000);
    let report = restart(&mut bench);
    assert!(report.gaps == 1 && report.gap_bytes <= 20_000 + 12_100, "{report:?}");
    let finding = report.findings.iter().find(|f| matches!(f.damage, Damage::Gap { .. })).unwrap();
    assert_eq!(finding.superblock, 1);
    let right =
        model.iter().enumerate().filter(|&(block, &sequence)| observe(&mut bench, block as u64) == (sequence, true));
    assert!(right.count() > BLOCKS as usize - 60, "at most a few extents are hit");
}

#[test]
fn foreign_media_is_refused_and_nothing_is_written() {
    let mut array = NandArray::new(GEOMETRY, 0, 1);
    array.corrupt(0, GEOMETRY.media_bytes());
    assert_eq!(recover(&array).unwrap_err(), FtlError::Foreign { superblocks: 16 });
    let (bench, _) = written(1, 100);
    let other = Geometry { channels: 4, planes_per_die: 1, ..GEOMETRY };
    assert!(matches!(recover_as(&bench.array, other, BLOCKS), Err(FtlError::OtherGeometry { .. })));
    let half = recover_as(&bench.array, GEOMETRY, BLOCKS / 2).unwrap_err();
    assert!(matches!(half, FtlError::LogicalCapacity { .. }), "{half}");
    let error = Ftl::recover(GEOMETRY, TIMING, PARAMS, BLOCKS, &mut |_, _| Err(MediaError::Io)).unwrap_err();
    assert!(error.to_string().contains("address 0"), "{error}");
    let timing_only = FtlParams { with_data: false, ..PARAMS };
    let error = Ftl::recover(GEOMETRY, TIMING, timing_only, BLOCKS, &mut |_, _| Ok(())).unwrap_err();
    assert_eq!(error, FtlError::NoData);
}

#[test]
fn blank_media_recovers_to_an_empty_device_that_erases_before_it_writes() {
    for blank in [0, 0xff] {
        let array = NandArray::new(GEOMETRY, blank, 1);
        let (ftl, report) = recover(&array).unwrap();
        assert_eq!((report.superblocks_blank, report.is_clean()), (16, true));
        let mut bench = Bench::over(ftl, array);
        let (one, payload) = extent(0, 1, 4_000, 1);
        bench.append(&one, &payload).unwrap();
        bench.flush().unwrap();
        bench.settle();
        let stats = bench.ftl.stats();
        assert_eq!(stats.superblocks_free, PARAMS.gc_free_superblocks_low + 1, "no more is erased than is wanted");
        assert_eq!(restart(&mut bench).extents_live, 1);
    }
}

#[test]
fn erase_counts_survive_a_restart_also_those_of_erased_superblocks() {
    let (mut bench, _) = written(5, 100);
    let mut rng = Rng::new(5);
    for sequence in 1_000..9_000 {
        let (one, payload) = extent(rng.below(BLOCKS), 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    bench.flush().unwrap();
    bench.settle();
    let before: Vec<u32> = bench.ftl.superblocks.iter().map(|s| s.erase_count).collect();
    assert!(before.iter().all(|&count| count > 5));
    let report = restart(&mut bench);
    let after: Vec<u32> = bench.ftl.superblocks.iter().map(|s| s.erase_count).collect();
    for (before, after) in before.iter().zip(&after) {
        assert!(before.abs_diff(*after) <= 1, "{before} became {after}");
    }
    assert!(report.erase_counts_estimated < report.superblocks_blank, "some are known from notes: {report:?}");
    let spread = bench.ftl.stats().erase_count_max - bench.ftl.stats().erase_count_min;
    assert!(spread <= 3, "wear is level where all superblocks change hands");
}

#[test]
fn a_failed_erase_retires_the_superblock_and_shrinks_what_is_usable() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 64);
    let usable = bench.ftl.usable_bytes();
    let mut retired = 0;
    bench.fails = Box::new(move |kind| {
        let fails = matches!(kind, MediaOpKind::Erase { .. }) && retired < 2;
        retired += u32::from(fails);
        fails
    });
    for sequence in 1..4_000 {
        let (one, payload) = extent(sequence % 60, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    bench.settle();
    let stats = bench.ftl.stats();
    assert_eq!((stats.superblocks_retired, bench.ftl.read_only()), (2, None));
    assert!(bench.ftl.usable_bytes() < usable && stats.superblocks_erased > 20);
    bench.ftl.audit().unwrap();
    assert_eq!(bench.events.iter().filter(|e| matches!(e, FtlEvent::SuperblockRetired { .. })).count(), 2);
}

#[test]
fn when_the_spare_space_is_used_up_the_device_is_read_only_and_reads_on() {
    let blocks = Ftl::logical_blocks_max(&GEOMETRY, &PARAMS).unwrap();
    let mut bench = new_bench(GEOMETRY, PARAMS, blocks);
    let mut rng = Rng::new(2);
    let mut model = vec![0; blocks as usize];
    let mut sequence = 0;
    bench.fails = Box::new(|kind| matches!(kind, MediaOpKind::Erase { .. }));
    while bench.ftl.read_only().is_none() {
        sequence += 1;
        let block = if sequence <= blocks { sequence - 1 } else { rng.below(blocks) };
        let (one, payload) = extent(block, 1, 4096, sequence);
        let appended = bench.append(&one, &payload);
        if appended.is_ok() {
            model[block as usize] = sequence;
        }
    }
    bench.settle();
    for (block, &sequence) in model.iter().enumerate() {
        assert_eq!(observe(&mut bench, block as u64), (sequence, true));
    }
}

#[test]
fn an_extent_that_collection_cannot_read_fails_its_reads_and_brings_nothing_older_back() {
    let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
    let mut rng = Rng::new(1);
    let mut model = vec![0; BLOCKS as usize];
    let mut write = |bench: &mut Bench, sequence: u64| {
        let block = rng.below(BLOCKS);
        let (one, payload) = extent(block, 1, 4_000, sequence);
        bench.append(&one, &payload).unwrap();
        model[block as usize] = sequence;
    };
    for sequence in 1..1_000 {
        write(&mut bench, sequence);
    }
    // No host read is under way: the next read is collection's. The first page that it wants cannot be read.
    let mut bad_page = None;
    bench.fails = Box::new(move |kind| {
        let MediaOpKind::Read { address, bytes } = *kind else { return false };
        let page_bytes = u64::from(GEOMETRY.page_bytes);
        let pages = address / page_bytes..=(address + u64::from(bytes) - 1) / page_bytes;
        pages.contains(bad_page.get_or_insert(*pages.start()))
    });
    let mut sequence = 1_000;
    while bench.ftl.stats().damaged_relocated == 0 {
        write(&mut bench, sequence);
        sequence += 1;
    }
    bench.fails = Box::new(|_| false);
    for again in [false, true] {
        bench.flush().unwrap();
        bench.settle();
        if again {
            restart(&mut bench);
        }
        let mut unsound = 0;
        for (block, &sequence) in model.iter().enumerate() {
            let (seen, is_sound) = observe(&mut bench, block as u64);
            assert_eq!(seen, sequence);
            unsound += usize::from(!is_sound);
        }
        // Extents of 4,064 bytes: two touch a page, and no other is lost with them.
        assert!((1..=2).contains(&unsound), "{unsound}");
    }
}

/// Extents that collection was moving when the media failed are read where they were: the copies may not be there.
#[test]
fn media_that_fail_in_mid_collection_cost_no_block_that_was_stored() {
    let mut in_collection = 0;
    for seed in 0..60 {
        let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
        let mut rng = Rng::new(seed);
        let mut model = vec![(0, AppendId(0)); BLOCKS as usize];
        let mut programs = rng.within(500..=3_000);
        bench.fails = Box::new(move |kind| {
            programs = programs.saturating_sub(u64::from(matches!(kind, MediaOpKind::Program { .. })));
            // As on a full disk: from then on every program fails.
            programs == 0 && matches!(kind, MediaOpKind::Program { .. })
        });
        let mut sequence = 0;
        while bench.ftl.read_only().is_none() {
            sequence += 1;
            let block = rng.below(BLOCKS);
            let (one, payload) = extent(block, 1, 4_000, sequence);
            if let Ok(append) = bench.append(&one, &payload) {
                model[block as usize] = (sequence, append);
            }
            if rng.one_in(10) {
                bench.ftl.close_page(bench.now);
                bench.ftl.sync(bench.now);
            }
        }
        in_collection += u64::from(bench.ftl.superblocks.iter().any(|s| s.state == SuperblockState::Victim));
        bench.settle();
        bench.ftl.audit().unwrap();
        let through = bench.ftl.durable_through();
        for (block, &(sequence, append)) in model.iter().enumerate() {
            if append <= through {
                assert_eq!(observe(&mut bench, block as u64), (sequence, true), "seed {seed} block {block}");
            }
        }
    }
    assert!(in_collection > 10, "{in_collection}");
}

/// A page that was lost between two that stayed must not make a later recovery, which trusts the
/// superblock, stop at the hole.
#[test]
fn a_hole_in_a_superblock_keeps_it_from_being_trusted() {
    let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
    for sequence in 1..=4 {
        let (one, payload) = extent(sequence, 1, 3_000, sequence);
        bench.append(&one, &payload).unwrap();
        bench.ftl.close_page(bench.now);
    }
    // The third page, the second with extents, is never carried out.
    let ops: Vec<MediaOp> = std::iter::from_fn(|| bench.ftl.next_op()).collect();
    for (index, op) in ops.into_iter().enumerate().filter(|(index, _)| *index != 2) {
        assert!(matches!(op.kind, MediaOpKind::Program { .. }), "{index}");
        bench.array.issue(op);
    }
    while bench.array.carry_out(false).is_some() {}
    let report = restart(&mut bench);
    assert_eq!((report.holes, report.superblocks_suspect, report.extents_live), (1, 1, 3));
    let (one, payload) = extent(50, 1, 3_000, 5);
    bench.append(&one, &payload).unwrap();
    bench.flush().unwrap();
    restart(&mut bench);
    for block in [1, 3, 4] {
        assert_eq!(observe(&mut bench, block), (block, true));
    }
    bench.settle();
    assert_eq!(bench.ftl.stats().superblocks_suspect, 0, "suspect superblocks are collected without being asked");
}

/// What an interrupted erase left of an earlier life is not read as part of the present one.
#[test]
fn extents_of_an_earlier_life_are_not_taken_for_present_ones() {
    let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
    let fill = |bench: &mut Bench, from: u64| {
        for sequence in from..from + 4 {
            let (one, payload) = extent(sequence % 4, 1, 4096 - 64 - 64, sequence);
            bench.append(&one, &payload).unwrap();
        }
        bench.flush().unwrap();
    };
    fill(&mut bench, 4);
    let mut old = vec![0; 4096];
    bench.array.read_into(2 * 4096, &mut old).unwrap();
    // Superblock 0 comes round again; then a page of its earlier life reappears.
    let mut sequence = 8;
    while bench.ftl.superblocks[0].sequence == 1 || bench.ftl.superblocks[0].next_page < 4 {
        fill(&mut bench, sequence);
        sequence += 4;
    }
    bench.settle();
    bench.array.overwrite(2 * 4096, &old);
    let before = sequence;
    let report = restart(&mut bench);
    assert!(report.gaps >= 1, "{report:?}");
    assert!(report.sequence_max < before);
    for block in 0..4 {
        let (seen, _) = observe(&mut bench, block);
        assert!(seen >= before - 16, "block {block} reads as {seen} of an earlier life");
    }
}

#[test]
fn trust_is_not_claimed_before_a_sync_nor_beside_suspects() {
    let (bench, _) = written(6, 60);
    let trust = bench.ftl.trust;
    assert_eq!(trust.sequence, 61);
    let open = bench.ftl.streams[StreamKind::Host.index()].open.unwrap();
    assert_eq!(trust.superblocks[StreamKind::Host.index()], open.sequence, "the open superblock is not whole yet");
}

/// Small extents fill a superblock that is wholly synced; then each of its pages but the last reads as erased. (The
/// last one leaves no trace: a superblock may end anywhere.)
#[test]
fn a_page_that_was_dropped_from_a_synced_superblock_is_reported_and_what_follows_it_is_found() {
    let mut bench = new_bench(GEOMETRY, PARAMS, BLOCKS);
    for sequence in 1..=BLOCKS {
        // Whole pages, a third of them, and less.
        let stored_bytes = [4096 - 64, 1_000, 300][sequence as usize % 3];
        let (one, payload) = extent(sequence - 1, 1, stored_bytes, sequence);
        bench.append(&one, &payload).unwrap();
        if sequence % 7 == 0 {
            bench.ftl.close_page(bench.now);
        }
    }
    bench.flush().unwrap();
    // Later headers say that what came before was synced.
    for sequence in BLOCKS + 1..=2 * BLOCKS {
        let (one, payload) = extent(BLOCKS - 1, 1, 3_000, sequence);
        bench.append(&one, &payload).unwrap();
    }
    bench.flush().unwrap();
    let report = restart(&mut bench);
    assert!(report.is_clean() && report.superblocks_trusted > 0, "{report:?}");
    let page_bytes = u64::from(GEOMETRY.page_bytes);
    let mut live = vec![0; GEOMETRY.pages_per_superblock() as usize];
    for one in bench.ftl.live_extents().filter(|one| one.address < GEOMETRY.superblock_bytes()) {
        let first = (one.address - 64) / page_bytes;
        let last = (one.address + u64::from(one.extent.stored_bytes) - 1) / page_bytes;
        (first..=last).for_each(|page| live[page as usize] += 1);
    }
    assert!(live[2..].iter().all(|&count| count > 0), "{live:?}");
    for (page, &touched) in (0..).zip(&live[..live.len() - 1]).skip(2) {
        for blank in [0, 0xff] {
            let mut array = bench.array.clone();
            array.overwrite(page * page_bytes, &[blank; 4096]);
            let (ftl, report) = recover(&array).unwrap();
            assert!(report.findings.iter().any(|one| one.was_synced), "page {page}, {blank}: {report:?}");
            let mut bench = Bench::over(ftl, array);
            let wrong = (0..BLOCKS - 1).filter(|&block| observe(&mut bench, block) != (block + 1, true)).count();
            assert!(wrong <= touched, "page {page}, {blank}: {wrong} blocks are lost, {touched} lay there");
        }
    }
}
