//! The experiments of the memory window as benchmarks: what was measured on hardware and published of an emulator,
//! beside the model in virtual time and the window in real time.

use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

/// How far from the hardware a bandwidth may be.
const OFF_MAX_PERMILLE: i64 = 150;
/// How late half of the pages may be.
const LATE_P50_MAX_NS: u64 = 1000;
/// Working sets beyond the cache, in hundred-thousandths of it.
const BEYOND: [u64; 2] = [133_000, 267_000];

/// Runs the experiment and prints its figures.
///
/// # Errors
/// When it cannot be run, or fails.
pub fn run() -> Result<ExitCode> {
    std::fs::create_dir_all("target/bench").context("make target/bench")?;
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--package", "osier", "--", "--json", "exp", "cylon-latency", "--real-time"])
        .args(["--out", "target/bench/cylon-latency"])
        .stderr(Stdio::inherit())
        .output()
        .context("run the experiment")?;
    ensure!(output.status.success(), "the experiment ended with {}", output.status);
    let found: Value = serde_json::from_slice(&output.stdout).context("read the experiment's result")?;
    for figure in figures(&found)? {
        println!("{figure}");
    }
    Ok(ExitCode::SUCCESS)
}

fn figures(found: &Value) -> Result<Vec<Value>> {
    let mut figures = Vec::new();
    for row in found["bandwidth"].as_array().context("the result has no bandwidths")? {
        figures.push(modelled(row)?);
    }
    for live in found["real_time"]["runs"].as_array().context("the result has no runs in real time")? {
        let x = number(live, "x_e5")?;
        let row = found["bandwidth"].as_array().and_then(|rows| rows.iter().find(|row| row["x_e5"] == x));
        let row = row.with_context(|| format!("nothing was measured at {x}"))?;
        figures.extend(in_real_time(live, row, x)?);
    }
    Ok(figures)
}

fn modelled(row: &Value) -> Result<Value> {
    let (x, measured, off) =
        (number(row, "x_e5")?, number(row, "measured_tenths")?, signed(row, "difference_permille")?);
    let modelled = number(row, "modelled_tenths")?;
    let role = row["role"].as_str().context("a point has no role")?;
    Ok(json!({
        "name": format!("exp: cmm-h, bandwidth at {} of the cache, modelled ({role})", share(x)),
        "value": modelled as f64 / 10.0, "unit": "MB/s", "peer": "CMM-H as measured", "peer_value": measured as f64 / 10.0,
        "ratio": modelled as f64 / measured as f64, "bar": format!("within {}%", OFF_MAX_PERMILLE / 10),
        "pass": off.abs() <= OFF_MAX_PERMILLE,
        "note": format!("the published emulator is off by {}%", signed(row, "cylon_difference_permille")? / 10),
    }))
}

fn in_real_time(live: &Value, row: &Value, x: u64) -> Result<Vec<Value>> {
    let measured = number(row, "measured_tenths")? as f64 / 10.0;
    let scan = number(live, "scan_bytes_per_second")? as f64 / 1e6;
    let late = number(&live["kept"]["lateness"], "p50_ns")?;
    let role = row["role"].as_str().context("a point has no role")?;
    let share = share(x);
    let mut figures = Vec::new();
    if BEYOND.contains(&x) {
        let off = (scan / measured - 1.0).abs() * 1000.0;
        figures.push(json!({
            "name": format!("exp: cmm-h, scan at {share} of the cache in real time ({role} in the model)"), "value": scan, "unit": "MB/s",
            "peer": "CMM-H as measured", "peer_value": measured, "ratio": scan / measured,
            "bar": format!("within {}%", OFF_MAX_PERMILLE / 10), "pass": off <= OFF_MAX_PERMILLE as f64,
            "note": format!("the published emulator has {} MB/s", number(row, "cylon_tenths")? as f64 / 10.0),
        }));
        figures.push(json!({
            "name": format!("exp: pages late at {share} of the cache, p50"), "value": late, "unit": "ns",
            "bar": format!("<= {LATE_P50_MAX_NS}"), "pass": late <= LATE_P50_MAX_NS,
        }));
    }
    Ok(figures)
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().with_context(|| format!("the result has no {key}"))
}

fn signed(value: &Value, key: &str) -> Result<i64> {
    value[key].as_i64().with_context(|| format!("the result has no {key}"))
}

fn share(x: u64) -> String {
    format!("{}.{:02}", x / 100_000, x / 1000 % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(off: i64, scan: u64, late: u64) -> Value {
        json!({
            "bandwidth": [{
                "x_e5": 133_000, "measured_tenths": 11_126, "modelled_tenths": 11_000, "difference_permille": off,
                "role": "calibrated", "cylon_tenths": 780, "cylon_difference_permille": -929,
            }],
            "real_time": { "runs": [{
                "x_e5": 133_000, "scan_bytes_per_second": scan, "kept": { "lateness": { "p50_ns": late } },
            }] },
        })
    }

    #[test]
    fn figures_pass_and_fail_by_their_bars() {
        let passes = |off, scan, late| -> Vec<bool> {
            figures(&found(off, scan, late)).unwrap().iter().map(|figure| figure["pass"].as_bool().unwrap()).collect()
        };
        assert_eq!(passes(-11, 1_100_000_000, 900), [true, true, true]);
        assert_eq!(passes(151, 900_000_000, 1_001), [false, false, false]);
        assert!(figures(&json!({})).is_err());
    }
}
