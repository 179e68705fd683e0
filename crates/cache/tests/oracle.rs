//! Miss counts beside those of libCacheSim 0.3.5, where it is installed or can be.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::io::Write;

use osier_cache::{CacheConfig, Op, SetIndex, WriteMode, replay};
use support::{Question, SHARED, TRACES, ask_oracle, oracle_directory, oracle_python, trace, write_oracle_general};

const PAGES: u64 = 5000;
const REQUESTS: usize = 100_000;
/// Sizes of the cache in pages. Odd ones, so that tenths are not whole.
const SIZES: [u32; 4] = [23, 157, 1000, 2999];

fn config(eviction: &str, frames: u32) -> CacheConfig {
    CacheConfig {
        frames,
        ways: frames,
        set_index: SetIndex::Modulo,
        write: WriteMode::Back,
        reserve_frames: 0,
        pinned_pages_max: 0,
        eviction: eviction.to_owned(),
        eviction_parameters: Default::default(),
        prefetch: "none".to_owned(),
        prefetch_parameters: Default::default(),
        write_log: None,
    }
}

#[test]
fn misses_are_those_of_libcachesim_to_the_request() {
    let python = match oracle_python() {
        Ok(python) => python,
        Err(reason) => {
            // Past the test's own capture, so that it is seen.
            let mut stderr = std::io::stderr();
            writeln!(stderr, "SKIPPED: no comparison with libCacheSim 0.3.5: {reason}").unwrap();
            return;
        }
    };
    let mut differences = Vec::new();
    for name in TRACES {
        let pages = trace(name, PAGES, REQUESTS, 1);
        let path = oracle_directory().join(format!("{name}-{}.oracleGeneral", std::process::id()));
        write_oracle_general(&path, &pages);
        let cases: Vec<(&str, &str, u32)> =
            SHARED.iter().flat_map(|(ours, theirs)| SIZES.map(|size| (*ours, *theirs, size))).collect();
        let ask = |(_, policy, pages): &(_, &'static str, u32)| Question { policy, pages: *pages, hash_power: 12 };
        let asked: Vec<Question<'_>> = cases.iter().map(ask).collect();
        let answers = ask_oracle(&python, &path, &asked, 1);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(answers.len(), cases.len());
        for ((ours, _, size), answer) in cases.iter().zip(answers) {
            let stats = replay(&config(ours, *size), 0, pages.iter().map(|page| (*page, Op::READ))).unwrap();
            if stats.misses != answer.misses {
                let misses = (stats.misses, answer.misses);
                differences.push(format!("{name}, {ours}, {size} pages: (ours, libCacheSim's) {misses:?}"));
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
