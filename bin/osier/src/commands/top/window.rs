//! A device that serves its window.

use anyhow::Result;
use osier_client::Control;
use osier_front::window::{Live, Program};

use super::{SHADES, View};
use crate::commands::window::{durations, live};
use crate::output::Table;
use crate::units::format_bytes;

/// The window behind a control socket.
pub struct Window(pub Control);

impl View for Window {
    type Seen = Live;

    fn look(&mut self) -> Result<Live> {
        live(&mut self.0)
    }

    fn page(now: &Live, before: Option<&Live>) -> String {
        page(now, before)
    }

    fn line(now: &Live, before: Option<&Live>, with_heading: bool) -> String {
        line(now, before, with_heading)
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
    super::row(&cells, with_heading)
}

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
