//! One promise of the device at a time.

use super::super::*;
use super::bench::{Bench, Draw, Media, Remains, params, small_profile};

const BUFFER_BYTES: usize = 300 << 10;

fn bench(protected: bool) -> Bench {
    let profile = small_profile(protected);
    Bench::create(&profile, params(&profile, 200), BUFFER_BYTES)
}

/// A unit whose tag tells it apart, and bytes that do too.
fn unit(slba: u64, blocks: u16, stored_bytes: u32, tag: u32) -> (UnitMeta, Vec<u8>) {
    let raw_bytes = u32::from(blocks) * 4096;
    let meta = UnitMeta { slba: Lba(slba), blocks, raw_bytes, stored_bytes, tag };
    (meta, (0..stored_bytes).map(|at| (at * 31 + tag * 7) as u8).collect())
}

fn submit(bench: &mut Bench, id: u64, meta: WriteMeta, unit: &(UnitMeta, Vec<u8>)) {
    bench.device.submit_write(bench.now, CommandId(id), meta, &[unit.0], &[&unit.1]);
    bench.take();
}

/// Runs until everything has ended; the status of each command in the order of ending.
fn settled(bench: &mut Bench) -> Vec<(u64, Status)> {
    bench.settle();
    bench.ended.drain(..).map(|completion| (completion.id.0, completion.status)).collect()
}

fn read(bench: &mut Bench, slba: u64, blocks: u32) -> Completion {
    bench.device.submit_read(bench.now, CommandId(9_999), Lba(slba), blocks, Crossing::Stored);
    bench.take();
    bench.settle();
    let position = bench.ended.iter().position(|completion| completion.id == CommandId(9_999));
    bench.ended.remove(position.expect("the read ends"))
}

/// Offset, blocks, and tag and first block in the extent.
type Shape = (u32, u32, Option<(u32, u16)>);

fn shape(completion: &Completion) -> Vec<Shape> {
    let piece = |piece: &ReadPiece| {
        let source = match &piece.content {
            ReadContent::Unmapped => None,
            ReadContent::Stored { extent, first, .. } => Some((extent.tag, *first)),
        };
        (piece.block_offset, piece.blocks, source)
    };
    completion.pieces.iter().map(piece).collect()
}

#[test]
fn partly_overwritten_extents_read_in_pieces_from_buffer_and_flash() {
    for settle_between in [false, true] {
        let mut bench = bench(false);
        let old = unit(10, 8, 9_000, 1);
        submit(&mut bench, 1, WriteMeta::default(), &old);
        if settle_between {
            assert_eq!(settled(&mut bench), [(1, Status::SUCCESS)]);
        }
        submit(&mut bench, 2, WriteMeta::default(), &unit(12, 2, 100, 2));
        bench.device.submit_trim(bench.now, CommandId(3), WriteMeta::default(), Lba(17), 4);
        let completion = read(&mut bench, 9, 10);
        let expected = [(0, 1, None), (1, 2, Some((1, 0))), (3, 2, Some((2, 0))), (5, 3, Some((1, 4))), (8, 2, None)];
        assert_eq!(shape(&completion), expected, "settled between: {settle_between}");
        for piece in &completion.pieces {
            if let ReadContent::Stored { extent, data, .. } = &piece.content
                && extent.tag == 1
            {
                assert_eq!(**data, *old.1, "each piece has the whole extent");
            }
        }
    }
}

#[test]
fn what_takes_space_is_what_a_read_finds_in_the_buffer_and_on_the_flash() {
    let run = |(blocks, is_allocated)| Run { blocks, is_allocated };
    for settle_between in [false, true] {
        let mut bench = bench(false);
        submit(&mut bench, 1, WriteMeta::default(), &unit(10, 8, 9_000, 1));
        if settle_between {
            bench.device.submit_flush(bench.now, CommandId(9));
            settled(&mut bench);
        }
        submit(&mut bench, 2, WriteMeta::default(), &unit(18, 2, 100, 2));
        bench.device.submit_trim(bench.now, CommandId(3), WriteMeta::default(), Lba(12), 3);
        submit(&mut bench, 4, WriteMeta::default(), &unit(13, 1, 100, 4));
        let expected = [(1, false), (2, true), (1, false), (1, true), (1, false), (5, true), (4, false)].map(run);
        let ask = |bench: &Bench, most| bench.device.allocation(Lba(9), 15, most);
        assert_eq!(ask(&bench, 100), Ok(expected.to_vec()), "settled between: {settle_between}");
        assert_eq!(ask(&bench, 3), Ok(expected[..3].to_vec()), "as many as there is room for");
        settled(&mut bench);
        assert_eq!(ask(&bench, 100), Ok(expected.to_vec()));
    }
    let bench = bench(false);
    assert_eq!(bench.device.allocation(Lba(0), 200, 10), Ok(vec![run((200, false))]));
    assert_eq!(bench.device.allocation(Lba(199), 2, 10), Err(Status::LBA_OUT_OF_RANGE));
    assert_eq!(bench.device.allocation(Lba(0), 0, 10), Err(Status::INVALID_FIELD));
    for run in [run((7, true)), run((Run::BLOCKS_MAX, false)), run((Run::BLOCKS_MAX, true))] {
        assert_eq!(Run::from_word(run.to_word()), run);
    }
}

#[test]
fn commands_that_cannot_be_are_refused_and_change_nothing() {
    let mut bench = bench(false);
    let most = bench.device.stored_bytes_max();
    let cases = [
        (unit(200, 1, 10, 0).0, Status::LBA_OUT_OF_RANGE),
        (unit(199, 2, 10, 0).0, Status::LBA_OUT_OF_RANGE),
        (unit(u64::MAX, 2, 10, 0).0, Status::LBA_OUT_OF_RANGE),
        (unit(0, 0, 10, 0).0, Status::INVALID_FIELD),
        (UnitMeta { raw_bytes: 4097, ..unit(0, 1, 10, 0).0 }, Status::INVALID_FIELD),
        (UnitMeta { raw_bytes: 0, ..unit(0, 1, 10, 0).0 }, Status::INVALID_FIELD),
        (unit(0, 1, most + 1, 0).0, Status::INVALID_FIELD),
    ];
    for (index, (meta, status)) in cases.into_iter().enumerate() {
        let payload = vec![0; meta.stored_bytes as usize];
        let id = CommandId(index as u64);
        bench.device.submit_write(bench.now, id, WriteMeta::default(), &[meta], &[&payload]);
        assert_eq!(settled(&mut bench), [(id.0, status)], "case {index}");
    }
    let strange = WriteMeta { stream: 4, ..WriteMeta::default() };
    submit(&mut bench, 20, strange, &unit(0, 1, 10, 0));
    bench.device.submit_write(bench.now, CommandId(21), WriteMeta::default(), &[], &[]);
    bench.device.submit_trim(bench.now, CommandId(22), WriteMeta::default(), Lba(0), 0);
    bench.device.submit_trim(bench.now, CommandId(23), WriteMeta::default(), Lba(100), 101);
    bench.device.submit_read(bench.now, CommandId(24), Lba(0), 0, Crossing::Raw);
    bench.device.submit_read(bench.now, CommandId(25), Lba(0), READ_BLOCKS_MAX + 1, Crossing::Raw);
    // A request of more than half the ring could wait for room for ever.
    let large = unit(0, 8, 30_000, 0);
    let (metas, payloads) = (vec![large.0; 6], vec![&large.1[..]; 6]);
    bench.device.submit_write(bench.now, CommandId(26), WriteMeta::default(), &metas, &payloads);
    let invalid = Status::INVALID_FIELD;
    let mut ended = settled(&mut bench);
    ended.sort_unstable();
    let outside = Status::LBA_OUT_OF_RANGE;
    let expected =
        [(20, invalid), (21, invalid), (22, invalid), (23, outside), (24, invalid), (25, outside), (26, invalid)];
    assert_eq!(ended, expected);
    assert_eq!(bench.device.stats().visible_through, 0);
    assert_eq!(bench.device.stats().commands_failed, 14);
}

#[test]
fn a_full_device_refuses_writes_and_goes_on_reading_and_trimming() {
    let profile = small_profile(false);
    let mut bench = Bench::create(&profile, params(&profile, 1_000), BUFFER_BYTES);
    let mut written = 0;
    loop {
        submit(&mut bench, written, WriteMeta::default(), &unit(written, 1, 4_096, written as u32));
        let [(_, status)] = settled(&mut bench)[..] else { panic!("one command") };
        if status == Status::CAPACITY_EXCEEDED {
            break;
        }
        assert_eq!(status, Status::SUCCESS);
        written += 1;
    }
    assert!(written > 200 && written < 500, "{written} blocks on two MiB");
    for slba in 0..written {
        assert_eq!(shape(&read(&mut bench, slba, 1)), [(0, 1, Some((slba as u32, 0)))]);
    }
    // Overwriting in place makes it no fuller; nor does trimming.
    for round in 0..3 * written {
        submit(&mut bench, 1, WriteMeta::default(), &unit(round % written, 1, 4_096, round as u32));
        assert_eq!(settled(&mut bench), [(1, Status::SUCCESS)], "overwrite {round}");
    }
    bench.device.submit_trim(bench.now, CommandId(2), WriteMeta::default(), Lba(0), 20);
    assert_eq!(settled(&mut bench), [(2, Status::SUCCESS)]);
    submit(&mut bench, 3, WriteMeta::default(), &unit(900, 1, 4_096, 0));
    assert_eq!(settled(&mut bench), [(3, Status::SUCCESS)], "a trim makes room");
    assert!(bench.device.stats().flash.superblocks_erased > 0);
}

#[test]
fn a_full_buffer_makes_writes_wait_and_keeps_their_order() {
    let mut bench = bench(false);
    for id in 0..60 {
        submit(&mut bench, id, WriteMeta::default(), &unit(5, 4, 16_000, id as u32));
    }
    let stats = bench.device.stats();
    assert!(stats.waits > 30 && stats.buffer_bytes <= stats.buffer_bytes_max, "{stats:?}");
    bench.now = Nanos(1_000_000_000);
    bench.poll();
    let early = bench.ended.len();
    assert!(early < 30, "{early} ended although the media has answered nothing");
    let ended = settled(&mut bench);
    assert_eq!(ended, (0..60).map(|id| (id, Status::SUCCESS)).collect::<Vec<_>>());
    assert_eq!(shape(&read(&mut bench, 5, 1)), [(0, 1, Some((59, 0)))]);
    let stats = bench.device.stats();
    assert_eq!((stats.buffer_bytes, stats.undrained_bytes), (0, 0), "an idle device drains");
}

/// Reads a block after its bytes on the media were changed.
fn read_of_rotten_media(bug: Option<Planted>) -> Completion {
    let mut bench = bench(false);
    submit(&mut bench, 1, WriteMeta::default(), &unit(3, 1, 2_000, 1));
    assert_eq!(settled(&mut bench), [(1, Status::SUCCESS)]);
    // A page with the superblock's header, the header's copy, the extent's header, then the payload.
    bench.media.bytes[4096 + 64 + 64 + 1_000] ^= 0x10;
    bench.device.planted = bug;
    read(&mut bench, 3, 1)
}

#[test]
fn bytes_that_do_not_fit_their_checksum_are_never_answered() {
    let completion = read_of_rotten_media(None);
    assert_eq!((completion.status, completion.pieces.len()), (Status::UNRECOVERED_READ_ERROR, 0));
    // The check can fail: without the comparison the wrong bytes come through.
    assert_eq!(read_of_rotten_media(Some(Planted::UncheckedRead)).status, Status::SUCCESS);
}

#[test]
fn a_flush_waits_for_the_media_unless_the_buffer_is_protected() {
    for protected in [false, true] {
        for fua in [false, true] {
            let mut bench = bench(protected);
            submit(&mut bench, 1, WriteMeta { fua, ..WriteMeta::default() }, &unit(3, 1, 2_000, 1));
            bench.device.submit_flush(bench.now, CommandId(2));
            bench.take();
            bench.now = Nanos(1_000_000);
            bench.poll();
            let ended: Vec<u64> = bench.ended.iter().map(|completion| completion.id.0).collect();
            let expected: &[u64] = match (protected, fua) {
                (true, _) => &[1, 2],
                (false, true) => &[],
                (false, false) => &[1],
            };
            assert_eq!(ended, expected, "protected {protected}, FUA {fua}, media silent");
            let stats = bench.device.stats();
            assert_eq!(stats.visible_through, 1);
            assert_eq!(stats.completed_through, u64::from(protected || !fua));
            assert_eq!(stats.persistent_through, u64::from(protected));
            bench.settle();
            assert_eq!(bench.ended.len(), 2);
            let stats = bench.device.stats();
            assert_eq!((stats.completed_through, stats.persistent_through), (1, 1));
        }
    }
}

#[test]
fn a_committed_request_is_not_carried_out_again() {
    let mut bench = bench(false);
    let meta = WriteMeta { stream: 2, stream_sequence: 5, ..WriteMeta::default() };
    submit(&mut bench, 1, meta, &unit(3, 1, 2_000, 1));
    submit(&mut bench, 2, WriteMeta::default(), &unit(3, 1, 2_000, 2));
    submit(&mut bench, 3, WriteMeta { fua: true, ..meta }, &unit(3, 1, 2_000, 1));
    bench.device.submit_trim(bench.now, CommandId(4), meta, Lba(3), 1);
    let mut ended = settled(&mut bench);
    ended.sort_unstable();
    assert_eq!(ended, (1..=4).map(|id| (id, Status::SUCCESS)).collect::<Vec<_>>());
    assert_eq!(shape(&read(&mut bench, 3, 1)), [(0, 1, Some((2, 0)))]);
    assert_eq!(bench.device.stats().replays, 2);
    assert!(bench.device.stats().persistent_through >= 1, "a replay with FUA still waits for the media");
    assert_eq!((bench.device.stream_cursor(2), bench.device.stream_cursor(3)), (5, 0));
    assert!(bench.device.is_committed(2, 5) && !bench.device.is_committed(2, 6) && !bench.device.is_committed(2, 0));
}

#[test]
fn a_media_that_fails_stops_writes_and_not_reads() {
    for (error, status) in [(MediaError::Io, Status::WRITE_FAULT), (MediaError::NoSpace, Status::CAPACITY_EXCEEDED)] {
        let mut bench = bench(false);
        submit(&mut bench, 1, WriteMeta::default(), &unit(3, 1, 2_000, 1));
        bench.device.submit_flush(bench.now, CommandId(2));
        let op = bench.device.next_op().expect("the flush programs the page");
        bench.device.media_done(bench.now, op.id, MediaResult::Failed(error));
        assert_eq!(settled(&mut bench), [(1, Status::SUCCESS), (2, status)]);
        submit(&mut bench, 3, WriteMeta::default(), &unit(4, 1, 2_000, 3));
        bench.device.submit_trim(bench.now, CommandId(4), WriteMeta::default(), Lba(3), 1);
        assert_eq!(settled(&mut bench), [(3, status), (4, status)]);
        assert_eq!(shape(&read(&mut bench, 3, 1)), [(0, 1, Some((1, 0)))], "still read from the buffer");
        bench.device.submit_flush(bench.now, CommandId(5));
        assert_eq!(settled(&mut bench), [(5, status)], "a flush that cannot be must not hang");
    }
}

#[test]
fn a_flush_behind_records_that_the_flash_will_never_take_does_not_hang() {
    let mut bench = bench(false);
    submit(&mut bench, 1, WriteMeta::default(), &unit(3, 1, 2_000, 1));
    bench.device.submit_flush(bench.now, CommandId(2));
    let op = bench.device.next_op().expect("the flush programs the page");
    submit(&mut bench, 3, WriteMeta::default(), &unit(4, 1, 2_000, 3));
    bench.device.media_done(bench.now, op.id, MediaResult::Failed(MediaError::Io));
    assert_eq!(settled(&mut bench), [(1, Status::SUCCESS), (3, Status::SUCCESS), (2, Status::WRITE_FAULT)]);
    bench.device.submit_flush(bench.now, CommandId(4));
    assert_eq!(settled(&mut bench), [(4, Status::WRITE_FAULT)]);
    assert_eq!(shape(&read(&mut bench, 4, 1)), [(0, 1, Some((3, 0)))]);
}

#[test]
fn media_that_fail_with_much_unsynced_in_the_buffer_come_to_rest() {
    let mut bench = bench(true);
    // More than the part of the buffer that may wait for a sync, all of it handed over and programmed.
    for id in 0..8 {
        submit(&mut bench, id, WriteMeta::default(), &unit(4 * id, 2, 8_000, id as u32));
    }
    let mut failed = 0;
    for _ in 0..100 {
        bench.now = bench.now.saturating_add(100_000_000);
        bench.poll();
        failed += u32::from(bench.fail_first(MediaError::NoSpace, |kind| matches!(kind, MediaOpKind::Sync)));
        while bench.carry_out(&mut Draw::new(1)) {}
    }
    assert_eq!(failed, 1, "a sync is asked for, and not again");
    assert_eq!(settled(&mut bench).len(), 8);
    for id in 0..8 {
        assert_eq!(shape(&read(&mut bench, 4 * id, 2)), [(0, 2, Some((id as u32, 0)))]);
    }
}

#[test]
fn a_shut_down_device_answers_everything_and_wakes_when_cool() {
    let profile = small_profile(false);
    let mut bench = Bench::create(&profile, params(&profile, 200), BUFFER_BYTES);
    submit(&mut bench, 1, WriteMeta::default(), &unit(3, 1, 2_000, 1));
    assert_eq!(settled(&mut bench), [(1, Status::SUCCESS)]);
    for id in 10..60 {
        submit(&mut bench, id, WriteMeta::default(), &unit(5, 4, 16_000, 7));
    }
    bench.device.submit_flush(bench.now, CommandId(60));
    bench.device.set_temperature_millicelsius(100_500);
    bench.device.submit_flush(bench.now, CommandId(61));
    submit(&mut bench, 62, WriteMeta::default(), &unit(3, 1, 2_000, 2));
    bench.device.submit_read(bench.now, CommandId(63), Lba(3), 1, Crossing::Raw);
    bench.device.submit_trim(bench.now, CommandId(64), WriteMeta::default(), Lba(3), 1);
    bench.now = bench.now.saturating_add(1_000_000);
    bench.poll();
    let mut ended: Vec<(u64, Status)> =
        bench.ended.drain(..).map(|completion| (completion.id.0, completion.status)).collect();
    ended.sort_unstable();
    assert_eq!(ended.len(), 55, "nothing is left hanging: {ended:?}");
    let failed = ended.iter().filter(|(_, status)| *status == Status::THERMAL_SHUTDOWN).count();
    assert!((35..55).contains(&failed), "those that waited, and all that came later: {failed}");
    assert!(ended[50..].iter().all(|(_, status)| *status == Status::THERMAL_SHUTDOWN), "{ended:?}");
    assert_eq!(bench.device.compute(bench.now).run(bench.now, None, crate::Engine::Lz4, 100), None);
    // It cools below the exit of the step, drains what it holds, and works again.
    bench.settle();
    let stats = bench.device.stats();
    assert!(stats.speed_permille > 0 && stats.temperature_millicelsius <= 85_000, "{stats:?}");
    assert_eq!(stats.undrained_bytes, 0);
    assert_eq!(shape(&read(&mut bench, 3, 1)), [(0, 1, Some((1, 0)))]);
    assert!(bench.device.throttle_transitions().any(|transition| transition.speed_permille == 0));
}

#[test]
fn a_buffer_that_does_not_fit_the_media_is_refused() {
    let profile = small_profile(true);
    let params = params(&profile, 200);
    let mut bench = Bench::create(&profile, params, BUFFER_BYTES);
    let young = bench.device.log.bytes().bytes.clone();
    for id in 0..20 {
        submit(&mut bench, id, WriteMeta::default(), &unit(id, 1, 3_000, 1));
    }
    bench.settle();
    let mut remains = bench.kill(&mut Draw::new(1));
    let buffer = std::mem::replace(&mut remains.buffer, young);
    // An empty log may belong to any media: it just goes on behind it.
    let (bench, _) = Bench::recover(&profile, params, remains).expect("an empty log fits");
    assert!(bench.device.log.next_sequence() > 20);
    let mut remains = bench.kill(&mut Draw::new(1));
    remains.buffer = buffer;
    let smaller = DeviceParams { logical_blocks: 15, ..params };
    let error = Bench::recover(&profile, smaller, remains).map(|_| ()).expect_err("too few blocks");
    assert!(error.to_string().contains("nothing was changed"), "{error}");
}

#[test]
fn a_device_that_was_never_used_starts_empty_and_a_used_one_without_its_buffer_does_not() {
    for protected in [false, true] {
        let profile = small_profile(protected);
        let params = params(&profile, 200);
        let fresh = Remains { buffer: vec![0; BUFFER_BYTES], media: Media::new(profile.geometry().media_bytes()) };
        let (mut bench, report) = Bench::recover(&profile, params, fresh).expect("starts");
        assert_eq!(report.buffer, BufferState::New);
        submit(&mut bench, 1, WriteMeta::default(), &unit(7, 1, 3_000, 5));
        bench.settle();
        let mut remains = bench.kill(&mut Draw::new(1));
        remains.buffer.fill(0);
        match Bench::recover(&profile, params, remains) {
            Ok((mut bench, report)) => {
                assert!(!protected);
                assert_eq!(report.buffer, BufferState::Lost);
                assert_eq!(shape(&read(&mut bench, 7, 1)), [(0, 1, Some((5, 0)))], "what was drained is there");
            }
            Err(error) => {
                assert!(protected, "{error}");
                assert_eq!(error, DeviceError::Buffer(BufferError::NotALog));
            }
        }
    }
}

#[test]
fn damage_to_a_completed_write_is_an_error_and_not_older_bytes() {
    let profile = small_profile(true);
    let params = params(&profile, 200);
    let mut bench = Bench::create(&profile, params, BUFFER_BYTES);
    for tag in [1, 2] {
        submit(&mut bench, 1, WriteMeta::default(), &unit(7, 1, 3_000, tag));
    }
    let mut remains = bench.kill(&mut Draw::new(1));
    // The second record's payload, found by its own bytes.
    let needle = unit(7, 1, 3_000, 2).1;
    let at = remains.buffer.windows(3_000).position(|window| window == needle).expect("in the buffer");
    remains.buffer[at + 5] ^= 1;
    let (mut bench, report) = Bench::recover(&profile, params, remains).expect("recovers");
    let BufferState::Kept(found) = report.buffer else { panic!("kept") };
    assert_eq!((found.damage_count, found.damages[0].lost), (1, 0));
    assert_eq!(read(&mut bench, 7, 1).status, Status::UNRECOVERED_READ_ERROR);
    bench.settle();
    assert_eq!(read(&mut bench, 7, 1).status, Status::UNRECOVERED_READ_ERROR, "also from the flash");
    submit(&mut bench, 2, WriteMeta::default(), &unit(7, 1, 3_000, 3));
    assert_eq!(shape(&read(&mut bench, 7, 1)), [(0, 1, Some((3, 0)))], "a new write heals it");
}
