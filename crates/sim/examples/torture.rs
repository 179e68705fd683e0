//! Runs the torture for a range of seeds, both ends included, and prints one line of JSON:
//! `cargo run -p osier-sim --example torture -- 1 1000`.

use osier_sim::torture::{Story, TortureParams, run};
use serde_json::{Map, Value, json};

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
    let [first, last] = numbers[..] else {
        eprintln!("give the first seed and the last");
        std::process::exit(2);
    };
    let mut all = Story::default();
    for seed in first..=last {
        match run(seed, &TortureParams::default()) {
            Ok(story) => all.add(&story),
            Err(broken) => {
                eprintln!("{broken}");
                std::process::exit(1);
            }
        }
    }
    println!("{}", figures(&all));
}

fn figures(all: &Story) -> Value {
    let [host, device, both, power] = all.deaths;
    let [kept, back, forward] = all.resolutions;
    let steps: Map<String, Value> =
        all.deaths_at.iter().map(|(step, count)| (format!("{step:?}"), json!(count))).collect();
    json!({
        "requests": all.requests,
        "failed_on_purpose": all.failed,
        "refused": all.refused,
        "blocks_compared": all.blocks_compared,
        "moves": all.moves,
        "moves_mid_request": all.moves_mid_request,
        "deaths": { "host": host, "device": device, "both": both, "power": power },
        "deaths_at_step": steps,
        "actors": { "kept": kept, "rolled_back": back, "rolled_forward": forward },
        "replayed": all.replayed,
    })
}
