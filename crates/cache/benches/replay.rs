//! How fast a trace is replayed, beside libCacheSim 0.3.5: the same trace from the same bytes, the same policy and
//! sizes, in the same run, in CPU seconds of one core.
//!
//! libCacheSim's own loop in C reads the file; ours reads the same 24 bytes a request from memory. libCacheSim's hash
//! table has 2^24 buckets unless told otherwise; it is measured with that and with a table that fits the cache, and the
//! faster one is the peer. One JSON object a line for each figure.

#[path = "../tests/support/mod.rs"]
mod support;

use osier_cache::{CacheConfig, Op, SetIndex, SplitMix64, WriteMode, replay};
use rustix::time::{ClockId, clock_gettime};
use support::{Answer, Question, SHARED, Zipf, ask_oracle, oracle_directory, oracle_general, oracle_python};

const PAGES: u64 = 1_000_000;
const REQUESTS: usize = 5_000_000;
const SIZES: [u32; 2] = [10_000, 100_000];
/// Runs of which the fastest counts, for both.
const RUNS: u32 = 3;
/// Policies with a bar.
const BARRED: [&str; 4] = ["fifo", "clock", "s3-fifo", "sieve"];
const BAR: f64 = 1.5;

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

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

/// Our replay: misses, and the CPU seconds of the fastest run.
fn ours(config: &CacheConfig, bytes: &[u8]) -> Answer {
    let page = |record: &[u8]| u64::from_le_bytes(record[4..12].try_into().expect("eight bytes"));
    let mut best = Answer { misses: 0, cpu_seconds: f64::INFINITY };
    for _ in 0..RUNS {
        let requests = bytes.chunks_exact(24).map(|record| (page(record), Op::READ));
        let start = cpu_seconds();
        let stats = replay(config, 0, requests).expect("the configuration is sound");
        let seconds = cpu_seconds() - start;
        if seconds < best.cpu_seconds {
            best = Answer { misses: stats.misses, cpu_seconds: seconds };
        }
    }
    best
}

fn name(policy: &str, size: u32) -> String {
    format!("cache/replay-{policy}-{}k", size / 1000)
}

fn figure(policy: &str, size: u32, ours: &Answer, peer: Result<&Answer, &str>) {
    let rate = |answer: &Answer| REQUESTS as f64 / answer.cpu_seconds / 1e6;
    let mut figure = serde_json::json!({
        "name": name(policy, size),
        "value": rate(ours),
        "unit": "million requests/CPU s",
        "cpu_seconds": ours.cpu_seconds,
        "note": format!("{REQUESTS} requests by Zipf's law to {PAGES} pages, {} misses", ours.misses),
    });
    match peer {
        Ok(peer) => {
            assert_eq!(ours.misses, peer.misses, "{policy} with {size} pages is another algorithm than the peer's");
            let ratio = rate(ours) / rate(peer);
            figure["peer"] = "libCacheSim 0.3.5".into();
            figure["peer_value"] = rate(peer).into();
            figure["peer_cpu_seconds"] = peer.cpu_seconds.into();
            figure["ratio"] = ratio.into();
            if BARRED.contains(&policy) {
                figure["bar"] = format!(">= {BAR} x peer").into();
                figure["pass"] = (ratio >= BAR).into();
            }
        }
        Err(reason) => figure["note"] = format!("SKIPPED the peer: {reason}").into(),
    }
    println!("{figure}");
}

fn main() {
    // The figures that `make bench FILTER=...` wants; all without it.
    let filter = std::env::var("OSIER_BENCH_FILTER").unwrap_or_default();
    let mut random = SplitMix64::new(42);
    let zipf = Zipf::new(PAGES, 2, &mut random);
    let pages: Vec<u64> = (0..REQUESTS).map(|_| zipf.draw(&mut random)).collect();
    let bytes = oracle_general(&pages);
    let path = oracle_directory().join(format!("bench-{}.oracleGeneral", std::process::id()));
    let python = oracle_python();
    if python.is_ok() {
        std::fs::write(&path, &bytes).expect("the trace is written");
    }
    for (policy, theirs) in SHARED.iter().filter(|(policy, _)| *policy != "belady") {
        for size in SIZES.into_iter().filter(|size| name(policy, *size).contains(&filter)) {
            let ours = ours(&config(policy, size), &bytes);
            let fitting = size.ilog2() + 1;
            let ask = |hash_power| Question { policy: theirs, pages: size, hash_power };
            let peer = python.as_ref().map(|python| {
                let answers = ask_oracle(python, &path, &[ask(24), ask(fitting)], RUNS);
                answers.into_iter().min_by(|a, b| a.cpu_seconds.total_cmp(&b.cpu_seconds)).expect("two answers")
            });
            figure(policy, size, &ours, peer.as_ref().map_err(|reason| reason.as_str()));
        }
    }
    // It is there only if libCacheSim is.
    let _ = std::fs::remove_file(&path);
}
