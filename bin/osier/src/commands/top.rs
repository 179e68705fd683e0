//! `osier top`: what a device does that serves its window.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use osier_front::window::{Live, Program};

use super::Context;
use super::window::{DeviceArg, connect, durations, live};
use crate::exit::Exit;
use crate::output::{self, Table};
use crate::signals::{self, StopFlag};
use crate::units::{format_bytes, parse_duration_ns};

/// From nothing to everything of a part of the window.
const SHADES: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Clears a terminal and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
/// How often it is looked whether somebody wants it to end.
const LOOK: Duration = Duration::from_millis(50);

/// Watch a device that serves its window
///
/// On a terminal the figures are drawn anew each time; elsewhere each time is a line, or with `--json` an object in
/// a line. Ends with SIGINT, SIGTERM or the device.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    device: DeviceArg,
    /// Between two looks
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ns, default_value = "1s")]
    every: u64,
    /// Look once, and print everything
    #[arg(long)]
    once: bool,
}

/// Shows what the device does.
///
/// # Errors
/// No such device, or it has died.
pub fn run(args: &TopArgs, context: &Context) -> Result<Exit> {
    let mut control = connect(&args.device)?;
    let now = live(&mut control)?;
    if args.once {
        if context.json {
            output::print_json(&now)?
        } else {
            output::print(&page(&now, None))?
        }
        return Ok(Exit::Ok);
    }
    let stop = signals::stop_flag()?;
    let mut before: Option<Live> = None;
    let mut now = now;
    loop {
        let is_first = before.is_none();
        let text = match (context.json, std::io::stdout().is_terminal()) {
            (true, _) => serde_json::to_string(&now)? + "\n",
            (false, true) => CLEAR.to_owned() + &page(&now, before.as_ref()),
            (false, false) => line(&now, before.as_ref(), is_first),
        };
        output::print(&text)?;
        sleep(Duration::from_nanos(args.every), &stop);
        if stop.is_set() {
            return Ok(Exit::Ok);
        }
        before = Some(std::mem::replace(&mut now, live(&mut control)?));
    }
}

/// Sleeps, unless somebody wants an end.
fn sleep(time: Duration, stop: &StopFlag) {
    let until = Instant::now() + time;
    while !stop.is_set() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// How often a second something happened since the last look.
fn rate(now: &Live, before: Option<&Live>, count: fn(&Live) -> u64) -> String {
    let Some(before) = before else { return "-".to_owned() };
    let ns = u128::from(now.at_ns.saturating_sub(before.at_ns).max(1));
    let more = count(now).saturating_sub(count(before));
    (u128::from(more) * 1_000_000_000 / ns).to_string()
}

fn waf(now: &Live) -> String {
    if now.flash.pages_written == 0 {
        return "-".to_owned();
    }
    format!("{}.{:03}", now.flash.waf_ppm / 1_000_000, now.flash.waf_ppm / 1000 % 1000)
}

/// Of a hundred faults, those that found their page in the cache. The hits of mapped pages nobody sees.
fn found(now: &Live) -> String {
    if now.faults == 0 {
        return "-".to_owned();
    }
    format!("{}%", u128::from(now.faults.saturating_sub(now.misses)) * 100 / u128::from(now.faults))
}

/// One look as a line; before the first, what its columns are.
fn line(now: &Live, before: Option<&Live>, with_heading: bool) -> String {
    let cells = [
        ("faults/s", rate(now, before, |live| live.faults)),
        ("misses/s", rate(now, before, |live| live.misses)),
        ("found", found(now)),
        ("p50_us", (now.latency.p50_ns / 1000).to_string()),
        ("p99_us", (now.latency.p99_ns / 1000).to_string()),
        ("late_us", (now.lateness.p99_ns / 1000).to_string()),
        ("res_MiB", ((now.resident_pages * now.page_bytes) >> 20).to_string()),
        ("evicted/s", rate(now, before, |live| live.evicted)),
        ("moved/s", rate(now, before, |live| live.flash.pages_moved)),
        ("WAF", waf(now)),
        ("free_sb", now.flash.superblocks_free.to_string()),
        ("programs", now.programs.len().to_string()),
    ];
    let row = |cells: Vec<&str>| cells.iter().map(|cell| format!("{cell:>10} ")).collect::<String>() + "\n";
    let heading = if with_heading { row(cells.iter().map(|(name, _)| *name).collect()) } else { String::new() };
    heading + &row(cells.iter().map(|(_, cell)| cell.as_str()).collect())
}

/// One look as a page.
fn page(now: &Live, before: Option<&Live>) -> String {
    let per_second = |count| rate(now, before, count);
    let mut text = format!(
        "{}: a window of {} with a cache of {}, {} resident\n\n\
         faults     {} ({}/s), of which {} missed ({}/s), {} waited for a frame; {} found their page in the cache\n\
         hits       of mapped pages are not seen\n\
         latency    {}\n\
         lateness   {}\n\
         evictions  {} ({}/s), of which {} dirty\n\
         flash      {} pages written, {} moved by collection ({}/s), WAF {}; {} superblocks free, {} collected\n",
        now.device,
        format_bytes(now.window_bytes),
        format_bytes(now.cache_bytes),
        format_bytes(now.resident_pages * now.page_bytes),
        now.faults,
        per_second(|live| live.faults),
        now.misses,
        per_second(|live| live.misses),
        now.blocked,
        found(now),
        durations(&now.latency),
        durations(&now.lateness),
        now.evicted,
        per_second(|live| live.evicted),
        now.evicted_dirty,
        now.flash.pages_written,
        now.flash.pages_moved,
        per_second(|live| live.flash.pages_moved),
        waf(now),
        now.flash.superblocks_free,
        now.flash.collections,
    );
    if now.lost + now.dropped > 0 {
        text += &format!("lost       {} faults found lost pages; {} pages were refused\n", now.lost, now.dropped);
    }
    if now.pinned_by_control > 0 {
        text += &format!("pinned     {} pages by `osier window pin`\n", now.pinned_by_control);
    }
    text += &format!("\nresident   |{}|\n\n", map(now));
    text + &programs(&now.programs)
}

/// The window from its first byte to its last, darker where more of it is resident.
fn map(now: &Live) -> String {
    let shade = |pages: &u64| {
        let steps = SHADES.len() as u64 - 1;
        // A part with a single page is not shown as empty.
        let step = (pages * steps).div_ceil(now.residency_pages.max(1)).min(steps);
        SHADES[step as usize]
    };
    now.residency.iter().map(shade).collect()
}

fn programs(programs: &[Program]) -> String {
    let mut table = Table::new(&["PID", "FAULTS", "P50 US", "P99 US", "LATE P99 US", "PINNED", "STATE"]);
    for program in programs {
        let state = match (program.is_silent, program.is_untracked) {
            (true, _) => "does not answer",
            (false, true) => "runs, all it maps is dirty",
            (false, false) => "runs",
        };
        table.row(vec![
            program.pid.to_string(),
            program.latency.count.to_string(),
            (program.latency.p50_ns / 1000).to_string(),
            (program.latency.p99_ns / 1000).to_string(),
            (program.lateness.p99_ns / 1000).to_string(),
            program.pinned_pages.to_string(),
            state.to_owned(),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let before = Live { at_ns: 1_000_000_000, misses: 10, ..Live::default() };
        let now = Live { at_ns: 3_000_000_000, misses: 510, faults: 1000, ..before.clone() };
        assert_eq!(rate(&now, Some(&before), |live| live.misses), "250");
        assert_eq!(rate(&now, None, |live| live.misses), "-");
        assert_eq!((found(&now), found(&before), waf(&now)), ("49%".to_owned(), "-".to_owned(), "-".to_owned()));
        let text = line(&now, Some(&before), true);
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.split_whitespace().count() == 12), "{text}");
    }

    #[test]
    fn the_map_is_of_the_whole_window() {
        let now = Live { residency: vec![0, 1, 50, 100], residency_pages: 100, ..Live::default() };
        assert_eq!(map(&now), " ▁▄█");
        assert_eq!(map(&Live::default()), "");
    }
}
