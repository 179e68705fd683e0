//! The demonstration as a benchmark: adaptive placement beside the same input with placement fixed on the device.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// Times the throughput of a device that throttles with its actors on it.
const RATIO_MIN: f64 = 1.8;
/// How far the measured ratio may be from the one that the profile predicts.
const DEVIATION_MAX: f64 = 0.15;

/// Runs the demonstration and prints its figures.
///
/// # Errors
/// When it cannot be run, or fails.
pub fn run() -> Result<ExitCode> {
    std::fs::create_dir_all("target/bench").context("make target/bench")?;
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--package", "osier", "--", "--json", "demo", "--report", "target/bench/demo.html"])
        .stderr(Stdio::inherit())
        .output()
        .context("run the demonstration")?;
    ensure!(output.status.success(), "the demonstration ended with {}", output.status);
    let found: Value = serde_json::from_slice(&output.stdout).context("read the demonstration's result")?;
    for figure in figures(&found)? {
        println!("{figure}");
    }
    Ok(ExitCode::SUCCESS)
}

fn figures(found: &Value) -> Result<[Value; 2]> {
    let number = |key: &str| {
        found["comparison"][key].as_f64().with_context(|| format!("the demonstration's result has no comparison.{key}"))
    };
    let (adaptive, fixed) = (number("adaptive_bytes_per_second")?, number("fixed_bytes_per_second")?);
    let (measured, predicted) = (number("measured")?, number("predicted")?);
    let deviation = (measured / predicted - 1.0).abs();
    let cpu = |run: usize| found["runs"][run]["report"]["host_cpu_ns"].as_f64().map(|ns| ns / 1e9);
    Ok([
        json!({
            "name": "demo: throughput once throttled, adaptive beside device-fixed", "value": adaptive, "unit": "B/s",
            "peer": "device-fixed", "peer_value": fixed, "ratio": measured,
            "bar": format!(">= {RATIO_MIN} x"), "pass": measured >= RATIO_MIN,
            "durability": "completed in the region, both",
            "cpu_seconds": cpu(0), "peer_cpu_seconds": cpu(1), "note": "processor time of the host's process",
        }),
        json!({
            "name": "demo: that ratio beside the profile's prediction", "value": measured, "unit": "x",
            "peer": "prediction", "peer_value": predicted, "ratio": measured / predicted,
            "bar": format!("within {DEVIATION_MAX}"), "pass": deviation <= DEVIATION_MAX,
        }),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_pass_and_fail_by_their_bars() {
        let found = |measured: f64| {
            json!({ "comparison": {
                "adaptive_bytes_per_second": measured, "fixed_bytes_per_second": 1.0,
                "measured": measured, "predicted": 2.0,
            }, "runs": [] })
        };
        let passes = |measured| figures(&found(measured)).unwrap().map(|f| f["pass"].as_bool().unwrap());
        assert_eq!(passes(2.1), [true, true]);
        assert_eq!(passes(1.75), [false, true]);
        assert_eq!(passes(2.4), [true, false]);
        assert!(figures(&json!({})).is_err());
    }
}
