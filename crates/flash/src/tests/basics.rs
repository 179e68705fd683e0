//! Each promise of the interface, one at a time.

use super::bench::*;
use crate::*;

fn check(bench: &mut Bench, block: u64, slba: u64, sequence: u64) {
    let (found, first, bytes) = bench.read_block(block).expect("the block is mapped");
    let (expected, payload) = extent(slba, found.blocks, found.stored_bytes, sequence);
    assert_eq!(found, expected);
    assert_eq!(u64::from(first), block - slba);
    assert_eq!(bytes.unwrap()[..], payload[..]);
}

#[test]
fn bytes_are_read_back_from_the_open_page_in_flight_and_programmed() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (small, payload) = extent(10, 1, 700, 1);
    bench.append(&small, &payload).unwrap();
    check(&mut bench, 10, 10, 1);
    assert_eq!(bench.ftl.stats().pages_read, 0, "the open page is in memory");
    // Spans three pages: the first two are in flight, the rest is open.
    let (large, payload) = extent(20, 4, 9_000, 2);
    bench.ftl.append(bench.now, &large, Some(&payload)).unwrap();
    check(&mut bench, 21, 20, 2);
    assert_eq!(bench.ftl.stats().pages_read, 2);
    bench.ftl.close_page(bench.now);
    bench.settle();
    check(&mut bench, 23, 20, 2);
    check(&mut bench, 10, 10, 1);
    assert!(bench.read_block(11).is_none());
    bench.ftl.audit().unwrap();
}

#[test]
fn a_part_of_the_payload_can_be_read() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (large, payload) = extent(0, 4, 10_000, 1);
    bench.append(&large, &payload).unwrap();
    let mut pieces = Vec::new();
    bench.ftl.pieces(Lba(0), 4, &mut pieces);
    let PieceKind::Mapped { location, .. } = pieces[0].kind else { panic!("mapped") };
    for range in [0..1, 4_000..9_999, 9_999..10_000, 5..5] {
        let id = bench.ftl.read(bench.now, location, range.clone()).unwrap();
        bench.settle();
        let bytes = bench.reads.remove(&id).unwrap().unwrap();
        assert_eq!(bytes[..], payload[range.start as usize..range.end as usize]);
    }
}

#[test]
fn pieces_are_cut_at_extents_and_holes() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (a, payload_a) = extent(4, 8, 5_000, 1);
    let (b, payload_b) = extent(6, 2, 300, 2);
    bench.append(&a, &payload_a).unwrap();
    bench.append(&b, &payload_b).unwrap();
    bench.trim(Lba(10), 1, 3).unwrap();
    let mut pieces = Vec::new();
    bench.ftl.pieces(Lba(2), 12, &mut pieces);
    let seen: Vec<_> = pieces
        .iter()
        .map(|piece| match piece.kind {
            PieceKind::Unmapped => (piece.slba.0, piece.blocks, 0, 0),
            PieceKind::Mapped { extent, first, .. } => (piece.slba.0, piece.blocks, extent.sequence, first),
        })
        .collect();
    assert_eq!(
        seen,
        [(2, 2, 0, 0), (4, 2, 1, 0), (6, 2, 2, 0), (8, 2, 1, 4), (10, 1, 0, 0), (11, 1, 1, 7), (12, 2, 0, 0)]
    );
    assert_eq!(bench.ftl.stats().mapped_blocks, 7);
    bench.ftl.audit().unwrap();
}

#[test]
fn durable_means_programmed_and_comes_in_order() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (first, payload) = extent(0, 1, 4_000, 1);
    let first = bench.append(&first, &payload).unwrap();
    let (second, payload) = extent(1, 1, 4_500, 2);
    let second = bench.append(&second, &payload).unwrap();
    assert_eq!(bench.ftl.durable_through(), AppendId(0));
    bench.settle();
    assert_eq!(bench.ftl.durable_through(), first, "the second is not whole on the media");
    bench.ftl.close_page(bench.now);
    bench.ftl.close_page(bench.now);
    bench.settle();
    assert_eq!(bench.ftl.durable_through(), second);
    assert_eq!(bench.ftl.stats().pages_programmed, 1 + 2 + 1, "an empty page is not programmed");
    assert!(matches!(bench.events[..], [FtlEvent::Durable { .. }, FtlEvent::Durable { through }] if through == second));
}

#[test]
fn a_program_takes_its_time() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (one, payload) = extent(0, 1, 100, 1);
    bench.append(&one, &payload).unwrap();
    bench.ftl.close_page(bench.now);
    bench.settle();
    assert_eq!(bench.now, Nanos(TIMING.program_ns + TIMING.transfer_ns(4096)));
}

#[test]
fn an_old_or_repeated_append_changes_nothing() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (new, payload) = extent(0, 4, 1_000, 9);
    let id = bench.append(&new, &payload).unwrap();
    let (old, old_payload) = extent(1, 2, 1_000, 5);
    assert_eq!(bench.append(&old, &old_payload).unwrap(), id);
    assert_eq!(bench.append(&new, &payload).unwrap(), id);
    assert_eq!(bench.trim(Lba(0), 4, 8).unwrap(), id);
    assert_eq!(bench.ftl.stats().live_extents, 1);
    check(&mut bench, 2, 0, 9);
}

#[test]
fn trims_cost_nothing_where_there_is_nothing() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    assert_eq!(bench.trim(Lba(0), 240, 1).unwrap(), AppendId(0));
    let (one, payload) = extent(100, 2, 50, 2);
    bench.append(&one, &payload).unwrap();
    bench.trim(Lba(0), 240, 3).unwrap();
    assert_eq!(bench.ftl.stats().trims, 1);
    assert_eq!(bench.ftl.stats().mapped_blocks, 0);
    assert_eq!(bench.ftl.stats().live_bytes, 64, "the record covers the two blocks and nothing else");
    bench.trim(Lba(0), 240, 4).unwrap();
    assert_eq!(bench.ftl.stats().trims, 1);
    let (one, payload) = extent(100, 2, 50, 5);
    bench.append(&one, &payload).unwrap();
    assert_eq!(bench.ftl.stats().live_bytes, u64::from(extent_footprint(50)), "the trim record is dead");
    bench.ftl.audit().unwrap();
}

#[test]
fn capacity_is_refused_when_it_cannot_be_kept_unless_thin() {
    let most = Ftl::logical_blocks_max(&GEOMETRY, &PARAMS).unwrap();
    Ftl::new(GEOMETRY, TIMING, PARAMS, most).unwrap();
    let error = Ftl::new(GEOMETRY, TIMING, PARAMS, most + 1).unwrap_err();
    assert!(matches!(error, FtlError::Capacity { .. }), "{error}");
    Ftl::new(GEOMETRY, TIMING, FtlParams { thin: true, ..PARAMS }, most + 1).unwrap();
    for (params, name) in [
        (FtlParams { over_provisioning_permille: 9, ..PARAMS }, "over_provisioning_permille"),
        (FtlParams { gc_free_superblocks_min: 0, ..PARAMS }, "gc_free_superblocks_min"),
        (FtlParams { gc_free_superblocks_low: 0, ..PARAMS }, "gc_free_superblocks_low"),
        (FtlParams { gc_free_superblocks_low: 9, ..PARAMS }, "gc_free_superblocks_low"),
    ] {
        let error = Ftl::new(GEOMETRY, TIMING, params, 16).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_thin_device_says_full_keeps_reading_and_takes_overwrites_and_trims() {
    let mut bench = new_bench(GEOMETRY, FtlParams { thin: true, ..PARAMS }, 4_096);
    let mut sequence = 0;
    let mut written = 0;
    while bench.ftl.can_accept(4096) {
        sequence += 1;
        let (one, payload) = extent(written, 1, 4096, sequence);
        bench.append(&one, &payload).unwrap();
        written += 1;
    }
    let (more, payload) = extent(written, 1, 4096, sequence + 1);
    assert_eq!(bench.append(&more, &payload), Err(Backpressure::Full));
    check(&mut bench, 0, 0, 1);
    assert!(bench.ftl.can_accept_over(Lba(5), 1, 4096));
    for _ in 0..1_000 {
        sequence += 1;
        let (over, payload) = extent(5, 1, 4096, sequence);
        bench.append(&over, &payload).unwrap();
    }
    for block in 0..10 {
        sequence += 1;
        bench.trim(Lba(block), 1, sequence).unwrap();
    }
    assert!(bench.ftl.can_accept(4096));
    bench.ftl.audit().unwrap();
    assert!(bench.ftl.stats().superblocks_erased > 0);
}

#[test]
fn collection_keeps_every_byte_under_random_overwrites_of_a_full_device() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let blocks = Ftl::logical_blocks_max(&GEOMETRY, &PARAMS).unwrap();
        let mut bench = new_bench(GEOMETRY, PARAMS, blocks);
        bench.array = NandArray::new(GEOMETRY, 0xff, seed);
        bench.in_any_order = true;
        let mut model = vec![0; blocks as usize];
        for sequence in 1..=3 * blocks {
            let block = if sequence <= blocks { sequence - 1 } else { rng.below(blocks) };
            let (one, payload) = extent(block, 1, 4096, sequence);
            assert!(bench.ftl.can_accept(4096), "seed {seed}");
            bench.append(&one, &payload).unwrap();
            model[block as usize] = sequence;
            if rng.one_in(50) {
                bench.ftl.close_page(bench.now);
            }
        }
        for (block, &sequence) in model.iter().enumerate() {
            check(&mut bench, block as u64, block as u64, sequence);
        }
        bench.ftl.audit().unwrap();
        let stats = bench.ftl.stats();
        assert!(stats.waf_permille() > 1_100 && stats.superblocks_erased > 20, "seed {seed}: {stats:?}");
    }
}

#[test]
fn a_failed_program_stops_writing_and_fails_syncs_but_not_reads() {
    let mut bench = new_bench(GEOMETRY, PARAMS, 240);
    let (one, payload) = extent(0, 1, 1_000, 1);
    bench.append(&one, &payload).unwrap();
    bench.flush().unwrap();
    let (two, payload_two) = extent(1, 1, 1_000, 2);
    let id = bench.append(&two, &payload_two).unwrap();
    bench.ftl.close_page(bench.now);
    let program = bench.ftl.next_op().unwrap();
    let sync = bench.ftl.sync(bench.now);
    bench.ftl.media_done(bench.now, program.id, MediaResult::Failed(MediaError::NoSpace));
    bench.settle();
    assert_eq!(bench.syncs.remove(&sync), Some(Err(MediaError::NoSpace)));
    assert!(bench.events.iter().any(|e| matches!(e, FtlEvent::ReadOnly { error: MediaError::NoSpace })));
    assert!(bench.ftl.durable_through() < id);
    let (three, payload) = extent(2, 1, 1_000, 3);
    assert_eq!(bench.append(&three, &payload), Err(Backpressure::ReadOnly(MediaError::NoSpace)));
    assert!(!bench.ftl.can_accept(1));
    let sync = bench.ftl.sync(bench.now);
    bench.settle();
    assert_eq!(bench.syncs.remove(&sync), Some(Err(MediaError::NoSpace)));
    check(&mut bench, 0, 0, 1);
}

#[test]
fn timing_only_gives_the_same_figures_as_with_data() {
    let run = |with_data: bool| {
        let params = FtlParams { with_data, ..PARAMS };
        let blocks = Ftl::logical_blocks_max(&GEOMETRY, &params).unwrap();
        let mut ftl = Ftl::new(GEOMETRY, TIMING, params, blocks).unwrap();
        let (mut rng, mut now, mut events) = (Rng::new(5), Nanos::ZERO, Vec::new());
        for sequence in 1..=2_000 {
            let stored = rng.within(1..=5_000) as u32;
            let (one, payload) = extent(rng.below(blocks), 1, stored, sequence);
            while ftl.append(now, &one, with_data.then_some(&payload)) == Err(Backpressure::Busy) {
                while let Some(op) = ftl.next_op() {
                    let result = match op.kind {
                        MediaOpKind::Read { bytes, .. } if with_data => {
                            MediaResult::Read(vec![0; bytes as usize].into())
                        }
                        MediaOpKind::Read { .. } => MediaResult::Read(Box::default()),
                        MediaOpKind::Program { data, .. } => MediaResult::Programmed(data),
                        MediaOpKind::Erase { .. } => MediaResult::Erased,
                        MediaOpKind::Sync => MediaResult::Synced,
                    };
                    ftl.media_done(now, op.id, result);
                }
                now = now.max(ftl.next_event().unwrap());
                ftl.poll(now, &mut events);
            }
        }
        (now, FtlStats { damaged_relocated: 0, ..ftl.stats() })
    };
    let (end, stats) = run(true);
    assert_eq!((end, stats), run(false));
    assert!(stats.relocated_extents > 100);
}
