//! Timing, space and wear of the whole model.

use super::common::*;
use crate::Nanos;
use crate::array::*;
use crate::page::*;
use crate::rng::Rng;

const ARRAY: Shape = Shape {
    channels: 4,
    chips_per_channel: 2,
    dies_per_chip: 1,
    planes_per_die: 2,
    blocks_per_plane: 64,
    pages_per_block: 32,
    page_bytes: 16_384,
};

fn full(config: &mut PageFtlConfig) -> u64 {
    // Busy or idle, as many superblocks are free.
    let free = &mut config.ftl.collection;
    (free.free_min, free.free_foreground, free.free_background) = (2, 2, 2);
    config.ftl.logical_units = 1;
    config.ftl.logical_units = config.logical_units_max() * 80 / 100;
    config.ftl.logical_units
}

fn overwrite<M: PageMedia>(ftl: &mut PageFtl<M>, now: &mut Nanos, rng: &mut Rng, span: u64, count: u64) {
    for _ in 0..count {
        write(ftl, now, rng.below(span), 0);
    }
}

#[test]
fn random_reads_reach_the_occupancy_bound_of_dies_and_of_channels() {
    for (channel_rate, cache_read) in [(1_200_000_000, false), (1_200_000_000, true), (100_000_000, true)] {
        let mut config = config(ARRAY, params(1));
        config.timing.channel_bytes_per_second = channel_rate;
        config.timing.cache_read = cache_read;
        config.timing.read_ns = vec![40_000];
        config.timing.program_ns = vec![200_000];
        config.errors = ErrorParams::none(1);
        let units = full(&mut config);
        let transfer_ns = config.timing.transfer_ns(4096);
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        ftl.precondition(1000, FillPattern::Sequential, 1).unwrap();
        let (mut rng, mut last) = (Rng::new(3), Nanos::ZERO);
        let (mut by_die, mut by_channel) = (vec![0_u64; 8], vec![0_u64; 4]);
        for _ in 0..40_000 {
            let lpn = rng.below(units);
            let place = ftl.place(ftl.map.get(lpn as u32));
            let die = ftl.stripes[place.stripe as usize].0;
            by_die[die as usize] += if cache_read { 40_000 } else { 40_000 + transfer_ns };
            by_channel[die as usize / 2] += transfer_ns;
            let Ok(Outcome::Done(done)) = ftl.read(Nanos::ZERO, lpn, 1) else { panic!("reads do not wait") };
            last = last.max(done.due);
        }
        let bound = by_die.into_iter().chain(by_channel).max().unwrap();
        assert!(last.0 >= bound, "{last} is below {bound}");
        assert!(last.0 <= bound + bound / 100, "{last} is more than 1 % over {bound}");
    }
}

#[test]
fn a_requests_parts_add_up_to_its_latency() {
    let mut config = config(ARRAY, params(1));
    let units = full(&mut config);
    config.ftl.map_cache_pages = 2;
    config.ftl.logical_units -= 100;
    config.errors.rber = vec![RberPoint { erases: 0, errors_e12: 4_000_000_000 }];
    config.errors.retries = vec![RetryStep { ns: 80_000, rber_permille: 200 }];
    let mut ftl = PageFtl::new(&config, 1).unwrap();
    let (mut now, mut rng, mut completed) = (Nanos::ZERO, Rng::new(1), Vec::new());
    let units = units - 100;
    for lpn in 0..units {
        write(&mut ftl, &mut now, lpn, 0);
    }
    let (mut retries, mut collection, mut misses) = (0, 0, 0);
    let sum = |done: &Done| {
        done.wait_host_ns
            + done.wait_collection_ns
            + done.wait_channel_ns
            + done.array_ns
            + done.transfer_ns
            + done.map_ns
            + done.retry_ns
            + done.wait_space_ns
    };
    for _ in 0..20_000 {
        write(&mut ftl, &mut now, rng.below(units), 0);
        let arrived = now;
        let count = 1 + rng.below(3) as u32;
        let outcome = ftl.read(now, rng.below(units - 3), count).unwrap();
        let done = match outcome {
            Outcome::Done(done) => done,
            Outcome::Waiting(id) => loop {
                now = ftl.next_event().unwrap().max(now);
                ftl.poll(now, &mut completed);
                if let Some(found) = completed.drain(..).find(|completed| completed.id == id) {
                    break found.done;
                }
            },
        };
        assert_eq!(done.due.saturating_since(arrived), sum(&done), "{done:?}");
        retries += u64::from(done.retry_ns > 0);
        collection += u64::from(done.wait_collection_ns > 0);
        misses += u64::from(done.map_ns > 0);
    }
    assert!(retries > 100 && collection > 100 && misses > 100, "{retries} {collection} {misses}");
    ftl.audit().unwrap();
}

#[test]
fn every_small_geometry_runs_with_collection_or_is_refused_by_key() {
    let (mut ran, mut refused) = (0, 0);
    let mut rng = Rng::new(5);
    for index in 0..400_u64 {
        let shape = Shape {
            channels: 1 + rng.below(3) as u32,
            chips_per_channel: 1 + rng.below(2) as u32,
            dies_per_chip: 1 + rng.below(2) as u32,
            planes_per_die: 1 + rng.below(3) as u32,
            blocks_per_plane: 6 + rng.below(16) as u32,
            pages_per_block: 3 + rng.below(8) as u32,
            page_bytes: [4096, 8192, 12_288, 16_384][rng.below(4) as usize],
        };
        let shape = if index == 0 { ONE_DIE } else { shape };
        let mut config = config(shape, params(1));
        config.ftl.streams = [Streams::Shared, Streams::Separate, Streams::HotCold][rng.below(3) as usize];
        config.ftl.checkpoint_superblocks = rng.below(3) as u32;
        config.timing.multi_plane = rng.below(2) == 0;
        let most = config.logical_units_max();
        if most == 0 {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains("shape.") || error.contains("ftl."), "{error}");
            refused += 1;
            continue;
        }
        config.ftl.logical_units = most;
        let mut ftl = PageFtl::new(&config, index).unwrap_or_else(|error| panic!("{shape:?}: {error}"));
        let mut now = Nanos::ZERO;
        overwrite(&mut ftl, &mut now, &mut rng, most, 30 * most.min(300));
        ftl.audit().unwrap();
        let stats = ftl.stats();
        assert!(most > 300 || stats.superblocks_erased > 0, "{shape:?}: {stats:?}");
        config.ftl.logical_units = most + 1;
        assert!(config.validate().unwrap_err().to_string().contains("ftl.logical_units"), "{shape:?}");
        ran += 1;
    }
    assert!(ran > 100 && refused > 100, "{ran} ran, {refused} were refused");
}

#[test]
fn collection_is_seen_by_default_and_policies_rank_as_known() {
    let mut found = Vec::new();
    let policies = [
        VictimPolicy::Greedy,
        VictimPolicy::CostBenefit,
        VictimPolicy::Choices(8),
        VictimPolicy::Fifo,
        VictimPolicy::Choices(1),
    ];
    for policy in policies {
        let mut config = config(ARRAY, params(1));
        let units = full(&mut config);
        config.ftl.collection.policy = policy;
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        ftl.precondition(1000, FillPattern::UniformRandom, 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        overwrite(&mut ftl, &mut now, &mut rng, units, 3 * units);
        ftl.audit().unwrap();
        let stats = ftl.stats();
        assert!(stats.waf_ppm() > 1_000_000 && stats.units_moved > 0, "{policy:?}: {stats:?}");
        found.push(stats.waf_ppm());
    }
    let (greedy, random) = (found[0], found[4]);
    assert!(found.iter().all(|&waf| greedy <= waf + waf / 100), "{found:?}");
    assert!(found[..4].iter().all(|&waf| waf < random), "{found:?}");
}

#[test]
fn apart_hot_and_cold_data_cost_less_than_together() {
    let waf = |streams| {
        let mut config = config(ARRAY, params(1));
        let units = full(&mut config);
        config.ftl.streams = streams;
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        ftl.precondition(1000, FillPattern::UniformRandom, 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        for _ in 0..4 * units {
            // Nine writes of ten go to a tenth of the units.
            let span = if rng.below(10) > 0 { units / 10 } else { units };
            write(&mut ftl, &mut now, rng.below(span), 0);
        }
        ftl.stats().waf_ppm()
    };
    let (shared, separate, hot_cold) = (waf(Streams::Shared), waf(Streams::Separate), waf(Streams::HotCold));
    assert!(separate < shared && hot_cold < shared, "{shared} {separate} {hot_cold}");
}

#[test]
fn a_preconditioned_device_is_as_one_that_was_written_for_long() {
    let mut config = config(ARRAY, params(1));
    let units = full(&mut config);
    let mut simulated = PageFtl::new(&config, 1).unwrap();
    let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
    for lpn in 0..units {
        write(&mut simulated, &mut now, lpn, 0);
    }
    overwrite(&mut simulated, &mut now, &mut rng, units, 8 * units);
    let mut filled = PageFtl::new(&config, 1).unwrap();
    filled.precondition(1000, FillPattern::UniformRandom, 1).unwrap();
    filled.audit().unwrap();
    let sorted = |ftl: &PageFtl| {
        let mut valid: Vec<u32> = ftl.valid_units_of_closed().collect();
        valid.sort_unstable();
        valid
    };
    let (one, other) = (sorted(&simulated), sorted(&filled));
    let superblock_units = filled.superblock_units();
    for decile in 1..10 {
        let at = |valid: &[u32]| valid[valid.len() * decile / 10];
        let difference = at(&one).abs_diff(at(&other));
        assert!(difference * 20 <= superblock_units, "decile {decile}: {one:?} {other:?}");
    }
    let mut waf = |ftl: &mut PageFtl, mut now: Nanos| {
        let before = ftl.stats();
        overwrite(ftl, &mut now, &mut rng, units, 2 * units);
        let after = ftl.stats();
        (after.bytes_programmed - before.bytes_programmed) * 10_000 / (after.bytes_written - before.bytes_written)
    };
    let (long, fresh) = (waf(&mut simulated, now), waf(&mut filled, Nanos::ZERO));
    assert!(long.abs_diff(fresh) * 50 <= long, "{fresh} after preconditioning, {long} after long use");
}

#[test]
fn blocks_go_bad_spares_run_out_and_nothing_is_lost_before_the_device_is_read_only() {
    let mut config = config(Shape { blocks_per_plane: 24, pages_per_block: 8, ..ARRAY }, params(1));
    config.ftl.spare_blocks_per_plane = 4;
    let units = full(&mut config);
    config.errors.factory_bad_ppm = 20_000;
    config.errors.program_fail_ppm = 200;
    config.errors.erase_fail_ppm = 20_000;
    let media = crate::faulty::SlotArray::new(&config, 1);
    let mut ftl = PageFtl::with_media(&config, 1, media).unwrap();
    let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
    let mut newest = vec![None; units as usize];
    let mut writes = 0;
    while !ftl.stats().is_read_only {
        let lpn = rng.below(units);
        writes += 1;
        assert!(writes < 10_000_000, "{:?}", ftl.stats());
        match ftl.write(now, lpn, 1, writes) {
            Ok(outcome) => match wait(&mut ftl, &mut now, outcome).status {
                Status::ReadOnly => {}
                _ => newest[lpn as usize] = Some(writes),
            },
            Err(refused) => assert_eq!(refused, Refused::ReadOnly),
        }
    }
    let stats = ftl.stats();
    assert!(stats.program_failures > 0 && stats.erase_failures > 0 && stats.superblocks_retired > 0, "{stats:?}");
    assert!(stats.blocks_bad_from_factory > 0, "{stats:?}");
    assert_eq!(ftl.write(now, 0, 1, 0), Err(Refused::ReadOnly));
    for (lpn, payload) in newest.iter().enumerate() {
        assert_eq!(ftl.payload(lpn as u64), Ok(*payload));
    }
    ftl.audit().unwrap();
}

/// Blocks fail so often that collection loses the superblocks that it copies to, or was about to win.
#[test]
fn no_write_waits_for_superblocks_that_were_retired() {
    let mut rng = Rng::new(9);
    for seed in 0..1000 {
        let shape = Shape { blocks_per_plane: 12 + rng.below(50) as u32, ..ONE_DIE };
        let mut config = config(shape, params(1));
        config.ftl.spare_blocks_per_plane = rng.below(3) as u32;
        config.ftl.streams = [Streams::Shared, Streams::Separate, Streams::HotCold][rng.below(3) as usize];
        config.ftl.checkpoint_superblocks = rng.below(2) as u32;
        config.errors.program_fail_ppm = 100_000;
        config.errors.erase_fail_ppm = 10_000 + rng.below(90_001) as u32;
        config.ftl.logical_units = (config.logical_units_max() * (20 + rng.below(81))).div_ceil(100);
        let mut ftl = PageFtl::new(&config, seed).unwrap();
        let mut now = Nanos::ZERO;
        while !ftl.stats().is_read_only {
            match ftl.write(now, rng.below(config.ftl.logical_units), 1, 0) {
                // Panics when nothing is under way that the write could wait for.
                Ok(outcome) => _ = wait(&mut ftl, &mut now, outcome),
                Err(refused) => assert_eq!(refused, Refused::ReadOnly),
            }
        }
    }
}

#[test]
fn flushes_are_answered_whenever_all_dies_die() {
    let mut answers = [0; 2];
    for seed in 0..500 {
        let mut rng = Rng::new(seed);
        let shape = Shape { channels: 1 + rng.below(3) as u32, ..ONE_DIE };
        let mut config = config(shape, params(1));
        config.ftl.checkpoint_superblocks = 1 + rng.below(2) as u32;
        config.ftl.logical_units = config.logical_units_max();
        let mut ftl = PageFtl::new(&config, seed).unwrap();
        let (mut now, mut dead) = (Nanos::ZERO, 0);
        while dead < shape.channels || rng.below(4) > 0 {
            let lpn = rng.below(config.ftl.logical_units);
            match rng.below(12) {
                0 if dead < shape.channels => {
                    ftl.lose_die(now, dead, None);
                    dead += 1;
                }
                1 | 2 => _ = ftl.trim(now, lpn, 1),
                3 | 4 => _ = ftl.flush(now),
                5 => now = ftl.next_event().map_or(now, |at| at.max(now)),
                _ => _ = ftl.write(now, lpn, 1, 0),
            }
        }
        let flush = ftl.flush(now).unwrap();
        // Panics when nothing is under way that the flush could wait for.
        match wait(&mut ftl, &mut now, flush).status {
            Status::Ok => answers[0] += 1,
            Status::ReadOnly => answers[1] += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(answers.iter().all(|&count| count > 20), "{answers:?}");
}

#[test]
fn static_wear_levelling_keeps_cold_superblocks_in_turn() {
    let spread = |spread_max| {
        let mut config = config(Shape { pages_per_block: 8, ..ARRAY }, params(1));
        let units = full(&mut config);
        config.ftl.wear.spread_max = spread_max;
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        ftl.precondition(1000, FillPattern::Sequential, 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        // Half of the device is never written again.
        overwrite(&mut ftl, &mut now, &mut rng, units / 2, 40 * units);
        ftl.audit().unwrap();
        let stats = ftl.stats();
        (stats.erases_max - stats.erases_min, stats.victims_for_wear)
    };
    let (apart, none) = spread(0);
    let (levelled, some) = spread(8);
    assert_eq!(none, 0);
    assert!(some > 0 && levelled <= 10 && apart > 4 * levelled, "{apart} without, {levelled} with");
}

#[test]
fn a_cached_map_costs_reads_and_programs_that_a_large_one_does_not() {
    let run = |pages: u32| {
        let mut config = config(ARRAY, params(1));
        full(&mut config);
        config.ftl.logical_units -= config.ftl.logical_units.div_ceil(1024);
        let units = config.ftl.logical_units;
        config.ftl.map_cache_pages = pages.min(units.div_ceil(1024) as u32);
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        for lpn in 0..units {
            write(&mut ftl, &mut now, lpn, 0);
        }
        overwrite(&mut ftl, &mut now, &mut rng, units, units);
        for _ in 0..2000 {
            let outcome = ftl.read(now, rng.below(units), 1).unwrap();
            wait(&mut ftl, &mut now, outcome);
        }
        ftl.audit().unwrap();
        ftl.stats()
    };
    let (small, large) = (run(8), run(u32::MAX));
    assert!(small.map_misses > 10 * large.map_misses, "{} {}", small.map_misses, large.map_misses);
    assert!(small.map_units_read > 0 && small.map_units_written > 0);
    assert_eq!((large.map_units_read, large.map_units_written), (0, 0));
    assert!(small.waf_ppm() > large.waf_ppm());
    assert_eq!(small.map_hits + small.map_misses, large.map_hits + large.map_misses);
}

#[test]
fn reads_suspend_programs_and_preempt_collection_where_the_profile_says_so() {
    let worst = |suspends: bool, preemptible: bool| {
        let mut config = config(ARRAY, params(1));
        let units = full(&mut config);
        (config.timing.suspend.program, config.timing.suspend.erase) = (suspends, suspends);
        config.ftl.collection.preemptible = preemptible;
        let mut ftl = PageFtl::new(&config, 1).unwrap();
        ftl.precondition(1000, FillPattern::UniformRandom, 1).unwrap();
        let (mut now, mut rng, mut total) = (Nanos::ZERO, Rng::new(1), 0);
        for _ in 0..3_000 {
            overwrite(&mut ftl, &mut now, &mut rng, units, 16);
            let Ok(Outcome::Done(done)) = ftl.read(now, rng.below(units), 1) else { panic!("reads do not wait") };
            total += done.due.saturating_since(now);
        }
        total / 3_000
    };
    let (with, without) = (worst(true, true), worst(false, true));
    assert!(with * 2 < without, "mean read latency {with} ns with suspension, {without} ns without");
}

#[test]
fn a_configuration_survives_its_file_and_unknown_keys_are_refused() {
    let mut config = config(ARRAY, params(1));
    full(&mut config);
    let text = toml::to_string(&config).unwrap();
    assert_eq!(toml::from_str::<PageFtlConfig>(&text).unwrap(), config);
    let error = toml::from_str::<PageFtlConfig>(&text.replace("moves_max", "moves_most")).unwrap_err().to_string();
    assert!(error.contains("moves_most"), "{error}");
    config.ftl.collection.free_min = 0;
    assert!(config.validate().unwrap_err().to_string().contains("ftl.collection.free_min is 0"));
}

#[test]
fn the_same_seed_gives_the_same_figures_to_the_nanosecond() {
    let run = || {
        let mut config = config(ARRAY, params(1));
        let units = full(&mut config);
        config.ftl.collection.policy = VictimPolicy::Choices(4);
        let mut ftl = PageFtl::new(&config, 9).unwrap();
        ftl.precondition(900, FillPattern::UniformRandom, 1).unwrap();
        let (mut now, mut rng) = (Nanos::ZERO, Rng::new(1));
        overwrite(&mut ftl, &mut now, &mut rng, units, 50_000);
        (now, ftl.stats(), ftl.die_busy_ns().collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

/// A device of two dies with data on both, and which units lie on the first die.
fn two_dies(seed: u64) -> (PageFtl<crate::faulty::SlotArray>, Nanos, Vec<bool>) {
    let shape = Shape { channels: 2, ..ONE_DIE };
    let mut config = config(shape, params(1));
    config.ftl.checkpoint_superblocks = 2;
    config.ftl.logical_units = config.logical_units_max() / 2;
    let units = config.ftl.logical_units;
    let media = crate::faulty::SlotArray::new(&config, seed);
    let mut ftl = PageFtl::with_media(&config, seed, media).unwrap();
    let (mut now, mut rng) = (Nanos::ZERO, Rng::new(seed));
    for lpn in 0..units {
        write(&mut ftl, &mut now, lpn, lpn);
    }
    overwrite_with_own_number(&mut ftl, &mut now, &mut rng, units);
    let on_first = |lpn| ftl.stripes[ftl.place(ftl.map.get(lpn as u32)).stripe as usize].0 == 0;
    let lies_on_first = (0..units).map(on_first).collect();
    (ftl, now, lies_on_first)
}

fn overwrite_with_own_number<M: PageMedia>(ftl: &mut PageFtl<M>, now: &mut Nanos, rng: &mut Rng, units: u64) {
    for _ in 0..units {
        let lpn = rng.below(units);
        write(ftl, now, lpn, lpn);
    }
}

#[test]
fn what_lies_on_a_dead_die_is_uncorrectable_and_all_else_is_right_also_after_a_loss_of_power() {
    for seed in 0..20 {
        let (mut ftl, now, lies_on_first) = two_dies(seed);
        ftl.lose_die(now, 0, None);
        assert_eq!(ftl.write(now, 0, 1, 0), Err(Refused::ReadOnly));
        let check = |ftl: &PageFtl<crate::faulty::SlotArray>| {
            ftl.audit().unwrap();
            for (lpn, &is_lost) in (0..).zip(&lies_on_first) {
                let expected = if is_lost { Err(Status::Uncorrectable) } else { Ok(Some(lpn)) };
                assert_eq!(ftl.payload(lpn), expected, "seed {seed}, unit {lpn}");
            }
        };
        ftl.settle();
        assert!(ftl.vouches());
        check(&ftl);
        let config = ftl.config().clone();
        let (ftl, report) = PageFtl::recover(&config, seed, ftl.lose_power()).unwrap();
        assert_eq!((report.dead_stripes, report.unvouched), (1, false));
        check(&ftl);
    }
}

/// Whether a trim comes back that was flushed after a die died, once power is lost.
fn revives_a_trim(mut ftl: PageFtl<crate::faulty::SlotArray>, die: u32) -> bool {
    let mut now = ftl.now;
    ftl.trim(now, 0, 1).unwrap();
    ftl.lose_die(now, die, None);
    let outcome = ftl.flush(now).unwrap();
    let is_flushed = wait(&mut ftl, &mut now, outcome).status == Status::Ok;
    let config = ftl.config().clone();
    let (ftl, _) = PageFtl::recover(&config, 1, ftl.lose_power()).unwrap();
    is_flushed && ftl.payload(0) != Ok(None)
}

#[test]
fn a_trim_that_is_flushed_after_a_die_died_in_a_checkpoint_stays() {
    for bug in [None, Some(PageBug::UnsealedRoot)] {
        let (mut ftl, ..) = two_dies(1);
        ftl.settle();
        (ftl.bug, ftl.media_mut().tear) = (bug, crate::faulty::Tear::Dropped);
        ftl.checkpoints.start_early();
        ftl.checkpoint();
        assert!(ftl.is_checkpointing());
        let mut revived = 0;
        while let Some(at) = ftl.next_event() {
            revived += (0..2).filter(|&die| revives_a_trim(ftl.clone(), die)).count();
            ftl.advance(at);
        }
        assert_eq!(revived > 0, bug.is_some(), "{bug:?}: {revived}");
    }
}

/// A note that fails is programmed again, behind an erase that was issued meanwhile.
#[test]
fn a_checkpoint_area_is_not_erased_while_a_note_for_it_is_in_flight() {
    for bug in [None, Some(PageBug::EraseUnderNotes)] {
        let (mut ftl, now, _) = two_dies(1);
        ftl.settle();
        ftl.trim(now.max(ftl.now), 0, 1).unwrap();
        ftl.save_notes();
        // As if a checkpoint had been sealed, and the next one were due.
        ftl.checkpoints.current = 1 - ftl.checkpoints.current;
        ftl.checkpoints.start_early();
        ftl.bug = bug;
        ftl.checkpoint();
        assert_eq!(ftl.is_checkpointing(), bug.is_some());
        if bug.is_none() {
            let number = ftl.checkpoints.number;
            ftl.settle();
            assert!(ftl.checkpoints.number > number, "the checkpoint that was due was written");
        }
    }
}

#[test]
fn a_recovery_that_meets_a_die_whose_death_is_on_no_checkpoint_says_so_each_time() {
    let (mut ftl, now, _) = two_dies(1);
    ftl.lose_die(now, 1, None);
    let config = ftl.config().clone();
    let (mut ftl, report) = PageFtl::recover(&config, 1, ftl.lose_power()).unwrap();
    assert!(report.unvouched && !ftl.vouches());
    ftl.settle();
    let (_, report) = PageFtl::recover(&config, 1, ftl.lose_power()).unwrap();
    assert!(report.unvouched);
}
