//! The live view: a few lines that are drawn anew in a terminal, one plain line a second elsewhere.

use std::io::{IsTerminal, Write};

use osier_report::{Unit, format_value};
use osier_runtime::bootstrap::Progress;

use crate::output::tell;

/// Progress events in a second.
const PER_SECOND: u64 = 10;
const BAR: usize = 32;
const LINES: usize = 5;

/// What shows the run while it runs.
pub struct View {
    label: &'static str,
    actors: Vec<String>,
    terminal: bool,
    quiet: bool,
    drawn: bool,
    seen: u64,
    last: Option<Progress>,
    moves: u64,
}

impl View {
    /// A view for one run. A quiet one shows nothing, so that standard output stays JSON.
    pub fn new(label: &'static str, actors: Vec<String>, quiet: bool) -> View {
        let terminal = std::io::stdout().is_terminal();
        View { label, actors, terminal, quiet, drawn: false, seen: 0, last: None, moves: 0 }
    }

    /// Shows how it goes.
    pub fn show(&mut self, now: &Progress) {
        self.seen += 1;
        if !self.quiet && self.terminal {
            self.draw(now);
        } else if !self.quiet && (self.seen % PER_SECOND == 1 || self.moves != now.moves) {
            println!("{}", self.line(now));
        }
        self.moves = now.moves;
        self.last = Some(now.clone());
    }

    /// Something that a person should see.
    pub fn notice(&mut self, text: &str) {
        tell!("{}: {text}", self.label);
        self.drawn = false;
    }

    /// The run has ended.
    pub fn end(&mut self) {
        self.drawn = false;
    }

    fn rate(&self, now: &Progress) -> f64 {
        let Some(last) = &self.last else { return 0.0 };
        let seconds = now.at_ns.saturating_sub(last.at_ns) as f64 / 1e9;
        if seconds > 0.0 { now.bytes.saturating_sub(last.bytes) as f64 / seconds } else { 0.0 }
    }

    fn places(&self, now: &Progress) -> String {
        let place = |(name, device): (&String, &bool)| format!("{name}:{}", if *device { "device" } else { "host" });
        self.actors.iter().zip(&now.on_device).map(place).collect::<Vec<_>>().join(" ")
    }

    fn line(&self, now: &Progress) -> String {
        let [p50, p99, p999] = now.latency_ns.map(|ns| format_value(ns as f64 / 1e9, Unit::Seconds));
        format!(
            "{} {:>9} {:>3}%  {:>10}  {:>7}  speed {:>3}%  {}  moves {}  p50 {p50} p99 {p99} p99.9 {p999}",
            self.label,
            now.phase,
            now.progress_permille / 10,
            format_value(self.rate(now), Unit::BytesPerSecond),
            celsius(now),
            now.speed_permille / 10,
            self.places(now),
            now.moves,
        )
    }

    fn draw(&mut self, now: &Progress) {
        let mut out = std::io::stdout().lock();
        let up = if self.drawn { format!("\x1b[{LINES}A") } else { String::new() };
        let filled = (now.progress_permille as usize * BAR / 1000).min(BAR);
        let bar = format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled));
        let [p50, p99, p999] = now.latency_ns.map(|ns| format_value(ns as f64 / 1e9, Unit::Seconds));
        let heat = if now.millicelsius >= 70_000 { "\x1b[31m" } else { "\x1b[32m" };
        let lines = [
            format!("{:<13} {:<10} {bar} {:>3}%", self.label, now.phase, now.progress_permille / 10),
            format!(
                "  device      {heat}{}\x1b[0m   speed {}%   cores busy {}%   host busy {}%",
                celsius(now),
                now.speed_permille / 10,
                now.device_permille / 10,
                now.host_permille / 10
            ),
            format!("  actors      {}   moves {}", self.places(now), now.moves),
            format!(
                "  throughput  {}   admitted {}%",
                format_value(self.rate(now), Unit::BytesPerSecond),
                now.rate_permille / 10
            ),
            format!("  latency     p50 {p50}   p99 {p99}   p99.9 {p999}"),
        ];
        let text: String = lines.iter().map(|line| format!("\x1b[2K{line}\n")).collect();
        // A terminal that went away is no reason to stop the run.
        let _ = out.write_all(format!("{up}{text}").as_bytes()).and_then(|()| out.flush());
        self.drawn = true;
    }
}

fn celsius(now: &Progress) -> String {
    format!("{}.{} °C", now.millicelsius / 1000, now.millicelsius.rem_euclid(1000) / 100)
}
