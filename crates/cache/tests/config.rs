//! The section of a profile: what is understood, and what is refused with key and reason.
#![allow(clippy::unwrap_used, reason = "a test")]

use osier_cache::{Cache, CacheConfig, ConfigError, Op, POLICIES, PREFETCHERS, replay};

const SECTION: &str = r#"
frames = 4096
ways = 16
set_index = "modulo"
write = "back"
reserve_frames = 1
pinned_pages_max = 64
eviction = "s3-fifo"
prefetch = "next-n"

[eviction_parameters]
small_permille = 200

[prefetch_parameters]
degree = 4

[write_log]
lines_per_page = 64
lines_per_half = 1024
"#;

fn build(text: &str) -> Result<(), String> {
    let config: CacheConfig = toml::from_str(text).map_err(|error| error.to_string())?;
    Cache::build(&config, 0).map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_section_is_understood() {
    build(SECTION).unwrap();
    for info in POLICIES {
        build(&SECTION.replace("s3-fifo", info.name).replace("small_permille = 200", "")).unwrap();
    }
    for info in PREFETCHERS {
        build(&SECTION.replace("next-n", info.name).replace("degree = 4", "")).unwrap();
    }
    build(&SECTION.replace("next-n", "none").replace("degree = 4", "")).unwrap();
}

#[test]
fn every_missing_key_is_refused_by_name() {
    let optional = ["small_permille", "degree"];
    let keys = SECTION.lines().filter(|line| line.contains('='));
    for line in keys.filter(|line| !optional.iter().any(|key| line.starts_with(key))) {
        let key = line.split(' ').next().unwrap();
        let error = build(&SECTION.replace(line, "")).unwrap_err();
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn impossible_values_are_refused_with_key_and_reason() {
    for (from, to, expected) in [
        ("frames = 4096", "frames = 0", "`frames` is 0; a cache has 1 to"),
        ("frames = 4096", "frames = 4294967295", "`frames` is 4294967295"),
        ("ways = 16", "ways = 0", "`ways` is 0"),
        ("ways = 16", "ways = 5", "`ways` is 5; a set has a number of frames that divides 4096"),
        ("reserve_frames = 1", "reserve_frames = 16", "at least one has to hold a page"),
        ("lines_per_page = 64", "lines_per_page = 65", "`write_log.lines_per_page` is 65"),
        ("lines_per_half = 1024", "lines_per_half = 63", "`write_log.lines_per_half` is 63"),
        ("write = \"back\"", "write = \"through\"", "`write` is `through`, which leaves a `write_log` nothing"),
        ("s3-fifo", "s4-fifo", "no eviction policy \"s4-fifo\": choose one of fifo, lifo, lru, mru, clock, s3-fifo"),
        ("next-n", "markov", "no prefetcher \"markov\": choose one of none, next-n, stride, best-offset"),
        ("small_permille = 200", "small = 2", "`s3-fifo` has no parameter `small`; it has small_permille"),
        ("small_permille = 200", "small_permille = 0", "parameter `small_permille` of `s3-fifo` is 0"),
        ("degree = 4", "degree = 65", "parameter `degree` of `next-n` is 65, which is outside 1..=64"),
        ("degree = 4", "degree = -1", "-1"),
        ("set_index = \"modulo\"", "set_index = \"middle\"", "middle"),
        ("ways = 16", "ways = 16\nspeed = 3", "unknown field `speed`"),
    ] {
        let error = build(&SECTION.replace(from, to)).unwrap_err();
        assert!(error.contains(expected), "{to}: {error}");
    }
}

#[test]
fn the_optimum_is_only_for_traces_and_says_so() {
    let mut config: CacheConfig = toml::from_str(SECTION).unwrap();
    config.eviction = "belady".to_owned();
    assert_eq!(Cache::build(&config, 0).err(), Some(ConfigError::NoFuture));
    let run = |config: &CacheConfig| replay(config, 0, (0..10).map(|page| (page, Op::READ)));
    assert_eq!(run(&config), Err(ConfigError::BeladyBeside("prefetch").into()));
    config.prefetch = "none".to_owned();
    config.prefetch_parameters.clear();
    assert_eq!(run(&config), Err(ConfigError::BeladyBeside("write_log").into()));
    config.write_log = None;
    assert_eq!(run(&config), Err(ConfigError::BeladyBeside("eviction_parameters").into()));
    config.eviction_parameters.clear();
    assert_eq!(run(&config).map(|stats| stats.misses), Ok(10));
}
