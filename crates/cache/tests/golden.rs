//! Miss counts that were confirmed by libCacheSim 0.3.5 (`tests/oracle.rs` asks it again where it can be had), so that
//! a change is seen on every machine. A changed number is accepted by hand.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use osier_cache::{CacheConfig, Op, SetIndex, WriteMode, replay};
use support::{SHARED, TRACES, trace};

/// A line for each trace and size: its misses by policy, in the order of [`SHARED`].
const GOLDEN: &str = include_str!("golden.txt");

#[test]
fn misses_are_those_that_were_confirmed() {
    let mut found = "# trace, pages of the cache, misses of".to_owned();
    SHARED.iter().for_each(|(name, _)| found += &format!(" {name}"));
    for name in TRACES {
        let pages = trace(name, 5000, 100_000, 1);
        for size in [157, 1000] {
            found += &format!("\n{name} {size}");
            for (eviction, _) in SHARED {
                let config = CacheConfig {
                    frames: size,
                    ways: size,
                    set_index: SetIndex::Modulo,
                    write: WriteMode::Back,
                    reserve_frames: 0,
                    pinned_pages_max: 0,
                    eviction: eviction.to_owned(),
                    eviction_parameters: Default::default(),
                    prefetch: "none".to_owned(),
                    prefetch_parameters: Default::default(),
                    write_log: None,
                };
                let stats = replay(&config, 0, pages.iter().map(|page| (*page, Op::READ))).unwrap();
                found += &format!(" {}", stats.misses);
            }
        }
    }
    assert!(found.trim() == GOLDEN.trim(), "the counts are now\n{found}\n");
}
