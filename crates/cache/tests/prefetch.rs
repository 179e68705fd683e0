//! Prefetchers beside what their definitions say, and the counts of what prefetching did.
#![allow(clippy::unwrap_used, reason = "a test")]

use osier_cache::{
    Cache, CacheConfig, Eviction, Op, Outcome, ParameterValues, Prefetched, Seen, SetIndex, SplitMix64, WriteMode,
    prefetcher,
};

fn parameters(given: &[(&str, u64)]) -> ParameterValues {
    given.iter().map(|(key, value)| ((*key).to_owned(), *value)).collect()
}

fn cache(frames: u32, prefetch: &str, given: &[(&str, u64)]) -> Cache<Box<dyn Eviction>> {
    let config = CacheConfig {
        frames,
        ways: frames,
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: 0,
        eviction: "fifo".to_owned(),
        eviction_parameters: ParameterValues::new(),
        prefetch: prefetch.to_owned(),
        prefetch_parameters: parameters(given),
        write_log: None,
    };
    Cache::build(&config, 0).unwrap()
}

/// What a prefetcher wants after each of some requests that all miss and arrive at once.
fn wanted(name: &str, given: &[(&str, u64)], pages: impl IntoIterator<Item = u64>) -> Vec<Vec<u64>> {
    let mut prefetcher = prefetcher(name, &parameters(given)).unwrap().unwrap();
    let one = |page| {
        let mut wanted = Vec::new();
        prefetcher.requested(page, Seen::Miss, &mut wanted);
        prefetcher.filled(page, false);
        wanted.iter().for_each(|page| prefetcher.filled(*page, true));
        wanted
    };
    pages.into_iter().map(one).collect()
}

#[test]
fn next_n_wants_the_pages_that_follow_and_none_beyond_the_last_number() {
    assert_eq!(wanted("next-n", &[("degree", 3)], [7]), [[8, 9, 10]]);
    assert_eq!(wanted("next-n", &[("degree", 3)], [u64::MAX - 1]), [[u64::MAX]]);
    let mut plain = prefetcher("next-n", &parameters(&[("degree", 1)])).unwrap().unwrap();
    let mut tagged = prefetcher("next-n", &parameters(&[("degree", 1), ("tagged", 1)])).unwrap().unwrap();
    for (seen, plainly, with_tags) in [(Seen::Miss, 1, 1), (Seen::FirstHit, 0, 1), (Seen::Hit, 0, 0)] {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        plain.requested(1, seen, &mut a);
        tagged.requested(1, seen, &mut b);
        assert_eq!((a.len(), b.len()), (plainly, with_tags), "{seen:?}");
    }
}

#[test]
fn a_stride_is_believed_after_it_was_repeated_and_no_longer_when_it_breaks() {
    let given = [("degree", 2), ("confidence_min", 2)];
    let empty = Vec::new();
    let found = wanted("stride", &given, [10, 13, 16, 19, 22, 500, 503, 506]);
    // 3 is learnt at 13 and repeated at 16 and 19; 500 breaks it, and its confidence falls by one.
    let e = || empty.clone();
    assert_eq!(found, [e(), e(), e(), vec![22, 25], vec![25, 28], e(), vec![506, 509], vec![509, 512]]);
    let down = wanted("stride", &given, [9, 7, 5, 3, 1]);
    assert_eq!(down, [e(), e(), e(), vec![1], e()]);
    // Two streams in regions of their own do not disturb each other.
    let both = (0..6).flat_map(|step| [step * 2, 1_000_000 + step * 5]);
    let found = wanted("stride", &given, both);
    assert_eq!(found[10..], [vec![12, 14], vec![1_000_030, 1_000_035]]);
}

#[test]
fn best_offset_learns_the_offset_of_a_stream_and_turns_off_without_one() {
    // A stream by 5s: every multiple of 5 scores the same, and the smallest is taken.
    let stream = wanted("best-offset", &[], (0..20_000).map(|step| step * 5));
    assert_eq!(stream[0], [1], "the first offset is 1");
    assert_eq!(stream[19_999], [19_999 * 5 + 5]);
    // Pages at random have no offset: after 100 rounds of 52 requests at the latest it stops.
    let mut random = SplitMix64::new(3);
    let none = wanted("best-offset", &[], (0..20_000).map(|_| random.below(1 << 40)));
    assert!(none[100 * 52..].iter().all(Vec::is_empty));
    // And it begins again.
    let mut random = SplitMix64::new(3);
    let pages = (0..6000).map(|_| random.below(1 << 40)).chain((0..6000).map(|step| step * 8));
    assert_eq!(wanted("best-offset", &[], pages)[11_999], [5999 * 8 + 8]);
}

/// When prefetches arrive late, the offset that is learnt is one that is large enough.
#[test]
fn best_offset_learns_to_be_in_time() {
    const DELAY: usize = 12;
    let mut prefetcher = prefetcher("best-offset", &ParameterValues::new()).unwrap().unwrap();
    let mut arriving = std::collections::VecDeque::new();
    let mut last = 0;
    for page in 0..20_000 {
        let mut wanted = Vec::new();
        prefetcher.requested(page, Seen::Miss, &mut wanted);
        arriving.push_back(wanted.clone());
        if arriving.len() > DELAY {
            for page in arriving.pop_front().unwrap() {
                prefetcher.filled(page, true);
            }
        }
        last = wanted.first().map_or(0, |wanted| wanted - page);
    }
    assert!((DELAY as u64..=DELAY as u64 * 4).contains(&last), "an offset of {last} was learnt");
}

#[test]
fn a_scan_with_next_n_is_counted_to_the_page() {
    let mut cache = cache(64, "next-n", &[("degree", 3)]);
    for page in 0..1000 {
        cache.at_once(page, Op::READ);
    }
    let stats = cache.stats();
    // Each miss brings three more pages, which are then hits.
    assert_eq!((stats.misses, stats.hits), (250, 750));
    assert_eq!((stats.prefetch_issued, stats.prefetch_useful, stats.prefetch_unused), (750, 750, 0));
    assert_eq!((stats.prefetch_late, stats.prefetch_pollution), (0, 0));
    assert_eq!(
        (stats.accuracy_permille(), stats.coverage_permille(), stats.timeliness_permille()),
        (Some(1000), Some(750), Some(1000))
    );
}

#[test]
fn useless_prefetches_and_what_they_push_out_are_counted() {
    let mut cache = cache(4, "next-n", &[("degree", 1)]);
    cache.at_once(0, Op::READ);
    cache.at_once(100, Op::READ);
    // 0, 1, 100 and 101 are there: 200 pushes out 0, and its prefetch pushes out 1, which nobody had asked for.
    cache.at_once(200, Op::READ);
    let stats = cache.stats();
    assert_eq!((stats.prefetch_issued, stats.prefetch_useful, stats.prefetch_unused), (3, 0, 1));
    // 0 was pushed out by a request, 1 by a prefetch.
    cache.at_once(0, Op::READ);
    assert_eq!(cache.stats().prefetch_pollution, 0);
    cache.at_once(1, Op::READ);
    assert_eq!(cache.stats().hits, 1, "1 came back with 0");
    let mut cache = self::cache(2, "next-n", &[("degree", 1)]);
    for page in [0, 50, 51, 0] {
        cache.at_once(page, Op::READ);
    }
    // 0 brought 1; 50 pushed out 0, and 51 pushed out 1; 0 missed, but no prefetch is to blame.
    assert_eq!(cache.stats().prefetch_pollution, 0);
    let mut cache = self::cache(3, "next-n", &[("degree", 1)]);
    for page in [0, 50, 1, 0] {
        cache.at_once(page, Op::READ);
    }
    // 0, 1 and 50 are there; the prefetch of 51 pushed out 0, and 0 misses.
    assert_eq!(cache.stats().prefetch_pollution, 1);
}

#[test]
fn a_prefetch_that_is_asked_for_on_its_way_is_late_and_merged() {
    let mut cache = cache(4, "none", &[]);
    let Prefetched::Started(fill) = cache.prefetch(7) else { panic!("page 7 is not there") };
    assert_eq!(cache.prefetch(7), Prefetched::Present);
    assert_eq!(cache.request(7, Op::READ), Outcome::Merged { frame: fill.frame });
    cache.fill_done(fill.frame);
    assert_eq!(cache.request(7, Op::READ), Outcome::Hit { frame: fill.frame });
    let stats = cache.stats();
    assert_eq!((stats.prefetch_issued, stats.prefetch_redundant, stats.misses, stats.merged), (1, 1, 0, 1));
    assert_eq!((stats.prefetch_useful, stats.prefetch_late, stats.timeliness_permille()), (1, 1, Some(0)));
}
