//! How fast a cache policy is as a WebAssembly module, beside the one that is built in: the same trace by Zipf's law,
//! the same misses, CPU seconds of one core. One JSON object a line for each figure.

use osier_actor::policy::PolicyModule;
use osier_actor::{CodeCache, Compiler};
use osier_cache::{CacheConfig, Op, ParameterValues, SetIndex, SplitMix64, WriteMode, replay, replay_with};
use rustix::time::{ClockId, clock_gettime};

#[path = "../../cache/tests/support/mod.rs"]
mod support;

const PAGES: u64 = 1_000_000;
const REQUESTS: usize = 5_000_000;
const FRAMES: [u32; 2] = [10_000, 100_000];
/// Runs of which the fastest counts, for both.
const RUNS: u32 = 3;
const POLICIES: [(&str, &[u8]); 2] = [
    ("fifo", include_bytes!("../../../actors/prebuilt/policies/fifo.wasm")),
    ("sieve", include_bytes!("../../../actors/prebuilt/policies/sieve.wasm")),
];

fn cpu_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// Misses, and the CPU seconds of the fastest run.
fn fastest(mut run: impl FnMut() -> u64) -> (u64, f64) {
    let timed = (0..RUNS).map(|_| {
        let begin = cpu_seconds();
        let misses = run();
        (misses, cpu_seconds() - begin)
    });
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there is a run")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let filter = std::env::var("OSIER_BENCH_FILTER").unwrap_or_default();
    let mut random = SplitMix64::new(42);
    let zipf = support::Zipf::new(PAGES, 2, &mut random);
    let pages: Vec<u64> = (0..REQUESTS).map(|_| zipf.draw(&mut random)).collect();
    let requests = || pages.iter().map(|page| (*page, Op::READ));
    let directory = tempfile::tempdir()?;
    let cache = CodeCache::open(directory.path().join("code"))?;
    for (eviction, wasm) in POLICIES {
        let module = PolicyModule::new(eviction, wasm, &cache, &Compiler::InProcess)?;
        for frames in FRAMES {
            let name = format!("cache-policy/wasm-{eviction}-{}k", frames / 1000);
            if !name.contains(&filter) {
                continue;
            }
            let config = CacheConfig {
                frames,
                ways: frames,
                set_index: SetIndex::Modulo,
                write: WriteMode::Back,
                reserve_frames: 0,
                pinned_pages_max: 0,
                eviction: eviction.to_owned(),
                eviction_parameters: ParameterValues::new(),
                prefetch: "none".to_owned(),
                prefetch_parameters: ParameterValues::new(),
                write_log: None,
            };
            let shape = config.shape()?;
            let (misses, seconds) = fastest(|| {
                let policy = module.policy(shape, &config.eviction_parameters, 0).expect("it was made before");
                replay_with(&config, policy, requests()).expect("the policy is sound").misses
            });
            let (theirs, peer_seconds) =
                fastest(|| replay(&config, 0, requests()).expect("the policy is sound").misses);
            assert_eq!(misses, theirs, "{name} is another algorithm than the one that is built in");
            let rate = |seconds: f64| REQUESTS as f64 / seconds / 1e6;
            let figure = serde_json::json!({
                "name": name,
                "value": rate(seconds),
                "unit": "million requests/CPU s",
                "cpu_seconds": seconds,
                "peer": "built in",
                "peer_value": rate(peer_seconds),
                "peer_cpu_seconds": peer_seconds,
                "ratio": rate(seconds) / rate(peer_seconds),
                "note": format!("{REQUESTS} requests by Zipf's law to {PAGES} pages, {misses} misses"),
            });
            println!("{figure}");
        }
    }
    Ok(())
}
