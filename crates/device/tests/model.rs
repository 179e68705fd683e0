//! The composed model, from outside: against closed forms, against what its parts count, and with planted bugs.
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "model/digest.rs"]
mod digest;
#[path = "model/run.rs"]
mod run;

use osier_device::model::{
    Bug, Causes, Command, Completed, DataTransfer, Met, Model, ModelConfig, Op, Outcome, Refused,
};
use osier_device::{Nanos, Profile, parse_override};
use osier_flash::array::RberPoint;
use osier_flash::page::FillPattern;
use osier_link::{Direction, Kind, Link, Transaction, nvme};
use run::{Run, check_run, finish, profile};

const PAGE: u64 = 4096;

/// A small cylon: 8 dies on 2 channels, with so many bytes.
fn small(sets: &[&str], capacity: u64) -> ModelConfig {
    profile(sets).model(Some(capacity)).unwrap()
}

/// One command alone on an idle device.
fn alone(model: &mut Model, now: u64, op: Op, address: u64, bytes: u32) -> Completed {
    model.submit(Nanos(now), Command { id: 1, op, address, bytes, tenant: 0 }).unwrap();
    let mut ended = Vec::new();
    finish(model, &mut ended);
    assert_eq!(ended.len(), 1);
    ended[0]
}

/// So many sets of 4 frames, and loads of 4 + `more` pages in each: 4 are filled, and as each ends one of the others
/// goes on. Of these the first time all are asked in vain, and after the i-th end those that are left.
fn asked_in_vain(sets: u32, more: u64) -> (u64, u64) {
    let mut config = small(&["cache.set_index=modulo", "cache.fills_max=4096"], 64 << 20);
    let cache = &mut config.cache.as_mut().unwrap().cache;
    (cache.frames, cache.ways) = (sets * 4, 4);
    let mut model = Model::new(&config, 1).unwrap();
    model.precondition(1000, FillPattern::Sequential, 1).unwrap();
    let pages = (0..u64::from(sets) * (4 + more)).map(|number| number * PAGE);
    for (id, address) in (1..).zip(pages) {
        model.submit(Nanos(0), Command { id, op: Op::Load, address, bytes: 64, tenant: 0 }).unwrap();
    }
    let mut ended = Vec::new();
    finish(&mut model, &mut ended);
    assert_eq!(ended.len() as u64, u64::from(sets) * (4 + more));
    (model.stats().counts.blocked, model.stats().cache.unwrap().waits)
}

#[test]
fn what_waits_for_a_set_is_not_tried_for_others() {
    for (sets, more) in [(2, 3), (8, 5), (32, 3), (64, 9)] {
        let expected = u64::from(sets) * (more + more * (more - 1) / 2);
        assert_eq!(asked_in_vain(sets, more), (u64::from(sets) * more, expected), "{sets} sets, {more} more pages");
    }
}

#[test]
fn a_load_takes_the_way_the_dram_and_on_a_miss_the_flash() {
    let config = small(&[], 64 << 20);
    let mut model = Model::new(&config, 1).unwrap();
    model.precondition(1000, FillPattern::Sequential, 1).unwrap();
    let miss = alone(&mut model, 1_000, Op::Load, 8 * PAGE + 640, 64);
    let link = Profile::built_in("cylon").unwrap().link_path();
    // 64 ns of link, 10 of which are the device's, and each way rounded up; 90 ns and a line at 25.6 GB/s; 40 us, and
    // 4 KiB at 10^12 bytes/s.
    assert_eq!(link.round_trip_ns, 64);
    assert_eq!(miss.met, Met::Miss);
    let expected = Causes { link: 55, controller: 10, dram: 93, sense: 40_000, transfer: 5, ..Causes::default() };
    assert_eq!(miss.causes, expected);
    let hit = alone(&mut model, 1_000_000, Op::Load, 8 * PAGE, 64);
    assert_eq!((hit.met, hit.causes), (Met::Hit, Causes { link: 55, controller: 10, dram: 93, ..Causes::default() }));
    assert_eq!(hit.at.0 - hit.arrived.0, 158, "Cylon's 0.16 us");
    let beyond = alone(&mut model, 2_000_000, Op::Load, 64 << 20, 64);
    assert_eq!((beyond.outcome, beyond.met), (Outcome::OutOfRange, Met::Nothing));
}

#[test]
fn refusals_name_what_is_wrong() {
    let mut model = Model::new(&small(&["controller.queue_entries=2"], 64 << 20), 1).unwrap();
    let command = Command { id: 1, op: Op::Read, address: 0, bytes: 4096, tenant: 0 };
    assert_eq!(model.submit(Nanos(0), Command { bytes: 0, ..command }), Err(Refused::NoBytes { op: Op::Read }));
    let long = Command { bytes: (64 << 20) + 1, ..command };
    assert!(matches!(model.submit(Nanos(0), long), Err(Refused::TooLong { .. })));
    model.submit(Nanos(0), command).unwrap();
    model.submit(Nanos(0), command).unwrap();
    assert_eq!(model.submit(Nanos(0), command), Err(Refused::Full { max: 2 }));
}

/// Every byte on the link is one that the formulas of its transactions give, block commands and lines alike.
#[test]
fn each_command_takes_the_bytes_of_its_transactions() {
    let config = small(&["controller.queue_entries=8"], 64 << 20);
    let queue = nvme::QueuePair { submissions: 1 << 33, completions: 1 << 34, doorbells: 1 << 44, entries: 8 };
    let mut model = Model::new(&config, 1).unwrap();
    let mut expected = Vec::new();
    for slot in 0..20_u32 {
        let bytes = [512, 4096, 20_000][slot as usize % 3];
        let op = if slot % 2 == 0 { Op::Read } else { Op::Write };
        alone(&mut model, u64::from(slot) * 1_000_000, op, u64::from(slot) * 65_536, bytes);
        let transfer = if op == Op::Read { nvme::Transfer::ControllerToHost } else { nvme::Transfer::HostToController };
        expected.extend(queue.command(slot));
        expected.extend(nvme::prp(transfer, nvme::PrpUnit::Exact, 1 << 40, bytes, 1 << 41));
        alone(&mut model, u64::from(slot) * 1_000_000 + 500_000, Op::Load, u64::from(slot) * 65_536 + 32, 64);
        alone(&mut model, u64::from(slot) * 1_000_000 + 700_000, Op::Store, u64::from(slot) * 65_536, 64);
        // 64 bytes at an odd place touch two lines.
        expected.extend([Transaction::cxl_read(), Transaction::cxl_read(), Transaction::cxl_write()].concat());
    }
    let sum = Link::pipelined(&config.link, expected).unwrap();
    let seen = model.stats().link;
    for direction in Direction::ALL {
        for kind in Kind::ALL.into_iter().filter(|kind| !matches!(kind, Kind::Flit | Kind::Dllp)) {
            let (seen, sum) = (seen.count(direction, kind), sum.count(direction, kind));
            assert_eq!((seen.packets, seen.payload_bytes), (sum.packets, sum.payload_bytes), "{direction:?} {kind:?}");
        }
    }
    assert_eq!(config.controller.data_transfer, DataTransfer::Prp);
}

/// Random reads with every die at work: as many as the dies can sense and hand over.
#[test]
fn random_reads_come_within_a_hundredth_of_what_the_dies_can_do() {
    for sets in [&["cache.block_commands=around"][..], &["cache.size.permille=50", "cache.fills_max=1024"][..]] {
        let more = ["controller.read_bytes_per_second=100000000000", "controller.command_ns=10"];
        let sets: Vec<&str> = sets.iter().copied().chain(more).collect();
        let config = small(&sets, 256 << 20);
        let dies = u64::from(config.flash.shape.dies());
        let mut model = Model::new(&config, 3).unwrap();
        model.precondition(1000, FillPattern::Sequential, 1).unwrap();
        let mut run = Run::new(4);
        // No page comes twice, so that none is met in the cache.
        let mut pages: Vec<u64> = (0..config.capacity_bytes() / PAGE).collect();
        for index in (1..pages.len()).rev() {
            pages.swap(index, run.random.below(index as u64 + 1) as usize);
        }
        let ended = run.closed_loop(&mut model, 1000, 60_000, |_| (Op::Read, pages.pop().unwrap() * PAGE, 4096));
        let (from, to) = (ended[10_000].at.0, ended[50_000].at.0);
        // A die is taken for sensing and the transfer after it.
        let bound = 40_000 * (40_000 + 5) / dies;
        let apart = (to - from).abs_diff(bound);
        assert!(apart * 100 <= bound, "{} ns instead of {bound}", to - from);
    }
}

#[test]
fn collection_is_seen_in_amplification_in_latency_and_in_throughput() {
    let more = ["controller.write_bytes_per_second=100000000000", "cache.block_commands=around"];
    let config = small(&more, 128 << 20);
    let rate = |fill: bool| {
        let mut model = Model::new(&config, 3).unwrap();
        if fill {
            model.precondition(1000, FillPattern::UniformRandom, 9).unwrap();
        }
        let mut run = Run::new(5);
        let pages = config.capacity_bytes() / PAGE;
        let ended = run.closed_loop(&mut model, 64, 20_000, |random| (Op::Write, random.below(pages) * PAGE, 4096));
        let behind_collection: u64 = ended.iter().map(|ended| ended.causes.collection).sum();
        (ended[19_999].at.0 - ended[5_000].at.0, model.stats().flash.waf_ppm(), behind_collection)
    };
    let ((fresh_ns, fresh_waf, _), (full_ns, full_waf, behind_collection)) = (rate(false), rate(true));
    assert!(full_waf > 1_500_000 && fresh_waf < 1_100_000, "{fresh_waf} {full_waf}");
    assert!(full_ns * 10 > fresh_ns * 15, "{fresh_ns} {full_ns}");
    assert!(behind_collection > 0);
}

/// Stores alone make the flash collect: what the cache evicts dirty is programmed.
#[test]
fn stores_reach_the_flash_and_amplify() {
    let config = small(&[], 128 << 20);
    let mut model = Model::new(&config, 3).unwrap();
    model.precondition(1000, FillPattern::UniformRandom, 9).unwrap();
    let mut run = Run::new(5);
    let lines = config.capacity_bytes() / 64;
    run.closed_loop(&mut model, 32, 40_000, |random| (Op::Store, random.below(lines) * 64, 64));
    let stats = model.stats();
    assert!(stats.counts.pages_drained > 30_000, "{:?}", stats.counts);
    assert_eq!(stats.flash.units_written, stats.counts.pages_drained);
    assert!(stats.flash.waf_ppm() > 1_500_000, "{}", stats.flash.waf_ppm());
}

/// Whatever is configured and asked: the checks of `run.rs` hold.
#[test]
fn drawn_configurations_and_workloads_hold_every_check() {
    for seed in 0..150 {
        check_run(seed, None).unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

#[test]
fn every_planted_bug_is_found() {
    // What an assertion of the cache or of the model finds is found as well.
    std::panic::set_hook(Box::new(|_| {}));
    let finds = |bug, seed| !matches!(std::panic::catch_unwind(|| check_run(seed, Some(bug))), Ok(Ok(_)));
    let is_missed = |bug: &Bug| check_coherence(Some(*bug)).is_ok() && !(0..2_000).any(|seed| finds(*bug, seed));
    let missed: Vec<Bug> = Bug::ALL.into_iter().filter(is_missed).collect();
    drop(std::panic::take_hook());
    assert!(missed.is_empty(), "{missed:?} were not found");
}

#[test]
fn equal_inputs_give_equal_outputs() {
    for seed in 0..20 {
        let digest = |seed| format!("{:?}", check_run(seed, None));
        assert_eq!(digest(seed), digest(seed));
    }
}

/// A store that was answered, and then a block read around the cache: the page comes from DRAM, and is written once.
fn check_coherence(bug: Option<Bug>) -> Result<(), String> {
    let mut model = Model::new(&small(&["cache.block_commands=around"], 64 << 20), 1).unwrap();
    model.precondition(1000, FillPattern::Sequential, 1).unwrap();
    if let Some(bug) = bug {
        model.plant(bug);
    }
    let same = |what: &str, seen: (u64, u64), expected: (u64, u64)| {
        if seen == expected { Ok(()) } else { Err(format!("{what}: {seen:?} instead of {expected:?}")) }
    };
    alone(&mut model, 0, Op::Store, 4096, 64);
    let read = alone(&mut model, 1_000_000, Op::Read, 4096, 4096);
    same("met, sensed", ((read.met == Met::Hit).into(), read.causes.sense), (1, 0))?;
    // A write makes the page clean, so that its eviction programs nothing.
    alone(&mut model, 2_000_000, Op::Write, 4096, 4096);
    model.evict(Nanos(3_000_000), 1).unwrap();
    let counts = model.stats().counts;
    same("written, drained", (counts.pages_written, counts.pages_drained), (1, 0))?;
    // A trim drops a dirty page.
    alone(&mut model, 4_000_000, Op::Store, 8192, 64);
    alone(&mut model, 5_000_000, Op::Trim, 0, 65_536);
    let stats = model.stats();
    same("dropped, drained", (stats.counts.pages_dropped, stats.counts.pages_drained), (1, 0))?;
    same("trimmed, written", (stats.flash.units_trimmed, stats.flash.units_written), (16, 1))
}

#[test]
fn block_commands_around_the_cache_keep_it_right() {
    check_coherence(None).unwrap();
}

#[test]
fn the_running_cache_takes_commands() {
    let mut model = Model::new(&small(&[], 64 << 20), 1).unwrap();
    model.precondition(1000, FillPattern::Sequential, 1).unwrap();
    assert!(model.pin(Nanos(0), 7).unwrap_err().to_string().contains("prefetch it first"));
    assert!(model.prefetch(Nanos(0), 7).unwrap());
    assert!(model.prefetch(Nanos(0), 1 << 40).unwrap_err().to_string().contains("beyond the end"));
    let hit = alone(&mut model, 100_000, Op::Load, 7 * PAGE, 64);
    assert_eq!(hit.met, Met::Hit);
    model.pin(Nanos(200_000), 7).unwrap();
    assert!(model.evict(Nanos(200_000), 7).unwrap_err().to_string().contains("pin"));
    model.unpin(Nanos(200_000), 7).unwrap();
    let shape = model.config().cache.as_ref().unwrap().cache.shape().unwrap();
    model.set_policy(Nanos(200_000), osier_cache::policy("lru", shape, &Default::default(), 1).unwrap()).unwrap();
    model.evict(Nanos(200_000), 7).unwrap();
    assert_eq!(alone(&mut model, 300_000, Op::Load, 7 * PAGE, 64).met, Met::Miss);
    let (key, value) = parse_override("cache.eviction=\"sieve\"").unwrap();
    assert_eq!((key.as_str(), value.as_str()), ("cache.eviction", Some("sieve")));
}

/// Flash of which a tenth of the bits is wrong: what has to be sensed fails, and nothing else does.
#[test]
fn what_the_flash_cannot_correct_is_uncorrectable_to_the_client_and_stays_out_of_the_cache() {
    let mut config = small(&["cache.block_commands=through"], 64 << 20);
    config.flash.errors.rber = vec![RberPoint { erases: 0, errors_e12: 100_000_000_000 }];
    let mut model = Model::new(&config, 1).unwrap();
    model.precondition(1000, FillPattern::Sequential, 1).unwrap();
    let steps = [
        (Op::Load, 3 * PAGE, 64, Outcome::Uncorrectable, Met::Miss),
        // The page was not kept.
        (Op::Load, 3 * PAGE, 64, Outcome::Uncorrectable, Met::Miss),
        (Op::Read, 8 * PAGE, 4 * 4096, Outcome::Uncorrectable, Met::Miss),
        // A line cannot be put into a page that cannot be read; a whole page needs none.
        (Op::Store, 5 * PAGE, 64, Outcome::Uncorrectable, Met::Miss),
        (Op::Write, 5 * PAGE, 4096, Outcome::Ok, Met::Miss),
        (Op::Load, 5 * PAGE, 64, Outcome::Ok, Met::Hit),
        // What was trimmed is not sensed.
        (Op::Trim, 6 * PAGE, 4096, Outcome::Ok, Met::Nothing),
        (Op::Load, 6 * PAGE, 64, Outcome::Ok, Met::Miss),
    ];
    for (number, (op, address, bytes, outcome, met)) in (1..).zip(steps) {
        let ended = alone(&mut model, number * 10_000_000, op, address, bytes);
        assert_eq!((ended.outcome, ended.met), (outcome, met), "step {number}");
    }
    // Two loads, four pages, and the page of the store.
    assert_eq!(model.stats().flash.reads_uncorrectable, 2 + 4 + 1);
}

/// Blocks fail as they are erased. The device ends when as many superblocks are gone as it can do without: one with so
/// many blocks less from the start would be refused.
#[test]
fn a_device_that_wears_out_takes_no_more_writes_and_reads_on() {
    let sets = ["cache.block_commands=around", "geometry.blocks_per_plane=96"];
    let mut config = small(&sets, 64 << 20);
    // Of a superblock with 8 dies one in seven fails.
    config.flash.errors.erase_fail_ppm = 20_000;
    let too_few = |lost: &u32| {
        let mut fewer = config.flash.clone();
        fewer.shape.blocks_per_plane -= lost;
        fewer.validate().is_err()
    };
    let spared = (1..96).find(too_few).unwrap();
    let mut model = Model::new(&config, 1).unwrap();
    let mut random = run::Random::new(7);
    let (mut now, mut written) = (0, 0);
    let refused = loop {
        let place = random.below(config.capacity_bytes() / (16 * PAGE)) * 16 * PAGE;
        let ended = alone(&mut model, now, Op::Write, place, 16 * 4096);
        now = ended.at.0;
        if ended.outcome != Outcome::Ok {
            break ended.outcome;
        }
        assert!(!model.stats().flash.is_read_only, "the write that found it so was told");
        written += 16;
    };
    let stats = model.stats().flash;
    assert_eq!((refused, stats.is_read_only), (Outcome::ReadOnly, true));
    assert_eq!((stats.superblocks_retired, stats.blocks_gone_bad), (spared, stats.erase_failures));
    assert!(stats.units_written >= written && stats.erase_failures >= u64::from(spared));
    for (op, bytes, outcome) in [
        (Op::Write, 4096, Outcome::ReadOnly),
        (Op::Trim, 4096, Outcome::ReadOnly),
        (Op::Read, 4096, Outcome::Ok),
        (Op::Load, 64, Outcome::Ok),
        (Op::Flush, 0, Outcome::Ok),
    ] {
        now += 10_000_000;
        assert_eq!(alone(&mut model, now, op, 0, bytes).outcome, outcome, "{op:?}");
    }
}
