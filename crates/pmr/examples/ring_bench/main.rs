//! Measures the region's rings and waits between two processes, and prints one JSON object a line.
//!
//! `cargo run -p osier-pmr --example ring_bench -- [--quick] [FILTER]`
//!
//! Each process is pinned to a processor of its own. A value is the median over several series; a machine
//! that runs something else meanwhile shows in it.

mod copies;
mod harness;
mod passing;
mod waiting;

use harness::{Effort, Line};

/// Measures one group of figures.
type Run = fn(Effort) -> anyhow::Result<Vec<Line>>;

fn main() -> anyhow::Result<()> {
    let mut effort = Effort::Full;
    let mut filter = String::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => effort = Effort::Quick,
            other if other.starts_with('-') => anyhow::bail!("unknown option {other}; use [--quick] [FILTER]"),
            other => filter = other.to_owned(),
        }
    }
    let groups: [(&str, Run); 5] = [
        ("pmr.ring.one_way", passing::one_way),
        ("pmr.ring.round_trip", passing::round_trip),
        ("pmr.copy", copies::copies),
        ("pmr.owner", copies::owner),
        ("pmr.wait", waiting::policies),
    ];
    for (_, run) in groups.iter().filter(|(name, _)| name.contains(&filter) || filter.starts_with(name)) {
        run(effort)?.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}
