//! The thermal experiment at full scale, its page on standard output: for looking at, and for timing.
//!
//! `cargo run -p osier-sim --example thermal > /tmp/thermal.html`

use osier_sim::thermal::{CASES, ThermalParams, run};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let report = run(&ThermalParams::default(), CASES, &mut |case| eprintln!("{} …", case.label))?;
    eprint!("\n{}\n{}\n{}", report.table().to_text(), report.ratio_table().to_text(), report.provenance_text());
    println!("{}", report.to_report().to_html());
    Ok(())
}
