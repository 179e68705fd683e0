//! The chase against arithmetic.

use super::*;
use crate::cmm_h::LINE_BYTES;
use crate::rng::Rng;

const QUICK: CmmHParams = CmmHParams { scale: 1024, seed: 1 };

/// Pages thrown into sets by a generator of its own, and counted.
#[test]
fn the_closed_form_is_what_throwing_pages_gives() {
    let mut rng = Rng::new(9);
    for (sets, pages_per_set, pages) in [(385, 30, 8200), (385, 30, 16_400), (64, 4, 300), (7, 30, 150), (1, 50, 80)] {
        let mut held_of_many = 0;
        for _ in 0..50 {
            let mut set = vec![0_u64; sets as usize];
            (0..pages).for_each(|_| set[rng.below(sets) as usize] += 1);
            held_of_many += set.iter().map(|count| count.min(&pages_per_set)).sum::<u64>();
        }
        let counted = held_of_many * 1_000_000 / (50 * pages);
        let expected = hit_ppm_expected(Shape { sets, pages_per_set, frames: sets * pages_per_set }, pages);
        assert!(counted.abs_diff(expected) <= 8_000, "{sets} sets, {pages} pages: {counted} and {expected}");
    }
}

/// Far beyond the cache no set has room: what hits is the cache by the working set. Far below all hits.
#[test]
fn at_both_ends_the_closed_form_is_plain() {
    let shape = Shape { sets: 100, pages_per_set: 30, frames: 6400 };
    assert!(hit_ppm_expected(shape, 30_000).abs_diff(100_000) <= 10);
    assert!(hit_ppm_expected(shape, 500) >= 999_990);
}

/// The model, which knows of sets, policies and merges, has the hits that the arithmetic has; a miss takes at least the
/// quickest sense, and a load that hits what the profile was fitted to.
#[test]
fn a_chase_hits_as_often_as_the_cache_is_large() {
    for (index, size) in WORKING_SETS.iter().enumerate() {
        let chase = chase(&QUICK, index).unwrap();
        let off = chase.hit_ppm.abs_diff(chase.hit_ppm_expected);
        assert!(off <= 12_000, "{size}: {} hits, {} expected", chase.hit_ppm, chase.hit_ppm_expected);
        assert_eq!(chase.loads, LOADS);
        // A little below the share of hits is a hit, a little above a miss.
        let hits = chase.hit_ppm as u32;
        assert!(chase.latency.percentile(hits.saturating_sub(20_000).max(1)) < 1_000, "{chase:?}");
        if hits < 970_000 {
            assert!(chase.latency.percentile(hits + 20_000) > 11_800, "{chase:?}");
        }
        // Four loads at a time, none of them waiting for another thread: Little's law.
        let expected = THREADS * LINE_BYTES * 1_000_000_000 / chase.latency.mean();
        assert!(chase.bytes_per_second.abs_diff(expected) * 50 <= expected, "{chase:?}");
    }
}

#[test]
fn a_chase_is_the_same_twice_and_another_seed_is_another() {
    let run = |seed| chase(&CmmHParams { seed, ..QUICK }, 2).unwrap();
    assert_eq!(run(1), run(1));
    assert_ne!(run(1).latency, run(2).latency);
}

#[test]
fn the_published_emulator_has_a_bandwidth_for_each_measured_point() {
    let (cylon, measured) = (cylon_bandwidths(), cmm_h::bandwidths());
    assert!(cylon.iter().map(|point| point.x).eq(measured.iter().map(|point| point.x)));
    assert_eq!((cylon[3].value, cylon[5].value), (337_616, 780));
}
