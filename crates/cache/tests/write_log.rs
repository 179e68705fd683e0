//! The write log beside a plain list of writes, and what it saves.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;

use osier_cache::{
    ALL_LINES, Cache, CacheConfig, LogSlot, Op, ParameterValues, SetIndex, SplitMix64, WriteLog, WriteLogConfig,
    WriteMode,
};

const LINES: u32 = 8;
const HALF: u32 = 40;

#[test]
fn the_log_is_what_a_list_of_writes_is() {
    for seed in 0..100 {
        let mut random = SplitMix64::new(seed);
        let mut log = WriteLog::new(&WriteLogConfig { lines_per_page: LINES, lines_per_half: HALF }).unwrap();
        // The bytes in each slot, and for each half the lines that it has, newest write last.
        let mut slots: BTreeMap<(u8, u32), u64> = BTreeMap::new();
        let mut halves: [Vec<(u64, u32, u64)>; 2] = Default::default();
        let mut active = 0;
        for write in 0..3000_u64 {
            let page = random.below(12);
            let lines = random.below(1 << LINES);
            let room = log.room();
            let fits = halves[active].len() + lines.count_ones() as usize <= HALF as usize;
            let may_switch = halves[1 - active].is_empty();
            assert_eq!(log.append(page, lines), fits || may_switch, "seed {seed}, write {write}");
            if fits || may_switch {
                active = if fits { active } else { 1 - active };
                for line in (0..LINES).filter(|line| lines >> line & 1 == 1) {
                    let LogSlot { half, slot } = log.slot(page, line).unwrap();
                    assert_eq!(usize::from(half), active, "seed {seed}, write {write}");
                    assert!(slots.insert((half, slot), write).is_none(), "seed {seed}: a slot was used twice");
                    halves[active].push((page, line, write));
                }
            } else {
                assert!(room < HALF, "seed {seed}");
            }
            if random.below(3) == 0 {
                compact(&mut log, &mut halves[1 - active], &mut slots, seed);
            }
            let page = random.below(12);
            for line in 0..LINES {
                let newest = [active, 1 - active].into_iter().find_map(|half| {
                    halves[half].iter().rev().find(|(of, at, _)| (*of, *at) == (page, line)).map(|found| found.2)
                });
                let found = log.slot(page, line).map(|slot| slots[&(slot.half, slot.slot)]);
                assert_eq!(found, newest, "seed {seed}, write {write}, page {page}, line {line}");
                assert_eq!(log.lines(page) >> line & 1 == 1, newest.is_some());
                assert_eq!(log.has(page, 1 << line), newest.is_some());
            }
        }
    }
}

/// Compacts a page, if there is one to compact, here and in the list: the one whose first line is the oldest.
fn compact(log: &mut WriteLog, half: &mut Vec<(u64, u32, u64)>, slots: &mut BTreeMap<(u8, u32), u64>, seed: u64) {
    let Some(next) = log.next_compaction() else {
        assert!(half.is_empty(), "seed {seed}: a half is never compacted");
        return;
    };
    assert_eq!(next.page, half[0].0, "seed {seed}: the page with the oldest line comes first");
    for line in 0..LINES {
        let newest = half.iter().rev().find(|(of, at, _)| (*of, *at) == (next.page, line));
        assert_eq!(next.lines >> line & 1 == 1, newest.is_some(), "seed {seed}");
        if let Some((_, _, write)) = newest {
            let slot = log.slot_of(&next, line).unwrap();
            assert_eq!(slots[&(slot.half, slot.slot)], *write, "seed {seed}");
        }
    }
    log.compacted();
    half.retain(|(page, ..)| *page != next.page);
    if half.is_empty() {
        slots.retain(|(of, _), _| *of != next.half);
    }
}

/// Small writes to many pages: without the log each costs a page read and a page written; with it, pages are written
/// once for many lines.
#[test]
fn small_writes_cost_fewer_page_reads_and_writes_with_the_log() {
    let run = |write_log| {
        let config = CacheConfig {
            frames: 64,
            ways: 64,
            set_index: SetIndex::Modulo,
            write: WriteMode::Back,
            reserve_frames: 0,
            pinned_pages_max: 0,
            eviction: "lru".to_owned(),
            eviction_parameters: ParameterValues::new(),
            prefetch: "none".to_owned(),
            prefetch_parameters: ParameterValues::new(),
            write_log,
        };
        let mut cache = Cache::build(&config, 0).unwrap();
        let mut random = SplitMix64::new(1);
        for _ in 0..50_000 {
            let (page, line) = (random.below(256), random.below(64));
            cache.at_once(page, Op { is_write: true, lines: 1 << line });
        }
        let written = cache.stats().evicted_dirty + cache.log().map_or(0, |log| log.stats().pages_compacted);
        assert_eq!(cache.stats().requests(), 50_000);
        (cache.stats().misses, written)
    };
    let (reads, writes) = run(None);
    let (logged_reads, logged_writes) = run(Some(WriteLogConfig { lines_per_page: 64, lines_per_half: 4096 }));
    // Each half holds 16 lines of each page on average.
    assert_eq!(logged_reads, 0);
    assert!(logged_writes * 10 < writes, "{logged_writes} pages written with the log, {writes} without; {reads} read");
}

#[test]
fn reads_of_lines_that_the_log_has_need_no_page() {
    let config = CacheConfig {
        frames: 2,
        ways: 2,
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: 0,
        eviction: "lru".to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: "none".to_owned(),
        prefetch_parameters: ParameterValues::new(),
        write_log: Some(WriteLogConfig { lines_per_page: LINES, lines_per_half: HALF }),
    };
    let mut cache = Cache::build(&config, 0).unwrap();
    cache.at_once(5, Op { is_write: true, lines: 0b0110 });
    cache.at_once(5, Op { is_write: false, lines: 0b0010 });
    cache.at_once(5, Op { is_write: false, lines: 0b0011 });
    cache.at_once(5, Op { is_write: false, lines: ALL_LINES });
    let stats = cache.stats();
    assert_eq!((stats.logged, stats.log_hits, stats.misses, stats.hits), (1, 1, 1, 1));
}
