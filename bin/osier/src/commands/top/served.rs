//! A device that `osier serve` has up.

use std::path::PathBuf;

use anyhow::Result;
use osier_front::dashboard::{Live, Status, Traffic};

use super::{SHADES, View};
use crate::commands::dashboard::Observer;
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::Table;
use crate::units::format_bytes;

/// The device in an image.
pub struct Served(Observer);

impl Served {
    /// Nobody has looked at it yet.
    pub fn open(image: PathBuf) -> Served {
        Served(Observer::new(home::name_of(&image), image))
    }
}

impl View for Served {
    type Seen = Status;

    fn look(&mut self) -> Result<Status> {
        let status = self.0.see()?;
        if status.live.is_none() {
            let text = format!("{} is not up; bring it up with `osier serve {}`", status.device, status.device);
            return Err(Failure::new(Exit::Missing, text).into());
        }
        Ok(status)
    }

    fn page(now: &Status, before: Option<&Status>) -> String {
        let Some(live) = &now.live else { return String::new() };
        page(now, &Span { now: live, before: before.and_then(|before| before.live.as_ref()) })
    }

    fn line(now: &Status, before: Option<&Status>, with_heading: bool) -> String {
        let Some(live) = &now.live else { return String::new() };
        line(&Span { now: live, before: before.and_then(|before| before.live.as_ref()) }, with_heading)
    }
}

/// From one look to the next.
struct Span<'a> {
    now: &'a Live,
    before: Option<&'a Live>,
}

impl Span<'_> {
    /// How much a count has grown in a second; nothing at the first look, and when the device began anew.
    fn rate(&self, count: impl Fn(&Live) -> u64) -> Option<f64> {
        let before = self.before?;
        let seconds = self.now.at_ns.checked_sub(before.at_ns).filter(|ns| *ns > 0)? as f64 / 1e9;
        Some(count(self.now).checked_sub(count(before))? as f64 / seconds)
    }

    fn rate_of(&self, kind: &str, count: impl Fn(&Traffic) -> u64) -> Option<f64> {
        self.rate(|live| live.traffic.iter().filter(|each| each.kind == kind).map(&count).sum())
    }

    /// Below how many microseconds a share of the commands of a kind ended; of all until now at the first look.
    fn quantile(&self, kind: &str, share: f64) -> Option<u64> {
        let of = |live: &Live| {
            live.traffic.iter().find(|each| each.kind == kind).map_or_else(Vec::new, |each| each.classes.clone())
        };
        let mut classes = of(self.now);
        for (class, before) in classes.iter_mut().zip(self.before.map_or_else(Vec::new, of)) {
            *class = class.saturating_sub(before);
        }
        let all: u64 = classes.iter().sum();
        let mut left = (all as f64 * share).ceil() as u64;
        let at = classes.iter().position(|class| {
            left = left.saturating_sub(*class);
            left == 0
        })?;
        let bounds = &self.now.latency_bounds_ns;
        // What is beyond the last bound is said to be at it.
        (all > 0).then(|| bounds.get(at).or(bounds.last()).map_or(0, |bound| bound / 1000))
    }

    /// The share of its time that each die was at work.
    fn dies(&self) -> Vec<f64> {
        let busy = &self.now.dies;
        let Some(before) = self.before.map(|before| &before.dies).filter(|before| before.at_ns < busy.at_ns) else {
            return vec![0.0; busy.busy_ns.len()];
        };
        let span = (busy.at_ns - before.at_ns) as f64;
        let share = |(now, before): (&u64, &u64)| (now.saturating_sub(*before) as f64 / span).min(1.0);
        busy.busy_ns.iter().zip(&before.busy_ns).map(share).collect()
    }
}

fn whole(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.0}"))
}

fn megabytes(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{:.1}", value / 1e6))
}

fn microseconds(value: Option<u64>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn percent(permille: u64) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

fn line(span: &Span<'_>, with_heading: bool) -> String {
    let live = span.now;
    let on_device = live.actors.iter().filter(|actor| actor.place == "device").count();
    let cells = [
        ("reads/s", whole(span.rate_of("read", |each| each.commands))),
        ("read_MB/s", megabytes(span.rate_of("read", |each| each.bytes))),
        ("p99_us", microseconds(span.quantile("read", 0.99))),
        ("writes/s", whole(span.rate_of("write", |each| each.commands))),
        ("writ_MB/s", megabytes(span.rate_of("write", |each| each.bytes))),
        ("p99_us", microseconds(span.quantile("write", 0.99))),
        ("failed/s", whole(span.rate(|live| live.traffic.iter().map(|each| each.failed).sum()))),
        ("celsius", format!("{:.1}", live.temperature_celsius)),
        ("speed", percent(live.speed_permille)),
        ("on_device", format!("{on_device}/{}", live.actors.len())),
        ("moves", live.moves.to_string()),
        ("clients", live.clients.len().to_string()),
    ];
    super::row(&cells, with_heading)
}

fn page(status: &Status, span: &Span<'_>) -> String {
    let live = span.now;
    let state = if live.serves { "up" } else { "recovering from a death" };
    let mut text = format!(
        "{}: {}, {}; {state}, {} recovered deaths\n\n\
         heat       {:.1} C, speed {}\n\
         busy       host {}, device's cores {}; {} requests in the device\n",
        status.device,
        status.profile,
        format_bytes(status.capacity_bytes),
        live.deaths,
        live.temperature_celsius,
        percent(live.speed_permille),
        percent(live.busy_permille[0]),
        percent(live.busy_permille[1]),
        live.pending,
    );
    if let Some(flash) = live.figures.get("flash") {
        let figure = |name: &str| flash.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        let waf = figure("programmed_bytes") as f64 / figure("host_bytes").max(1) as f64;
        text += &format!(
            "flash      {} live, {} relocated, WAF {waf:.2}; {} superblocks free, erased {} to {} times\n",
            format_bytes(figure("live_bytes")),
            format_bytes(figure("relocated_bytes")),
            figure("superblocks_free"),
            figure("erase_count_min"),
            figure("erase_count_max"),
        );
    }
    let steps = (SHADES.len() - 1) as f64;
    let shades: String = span.dies().iter().map(|share| SHADES[(share * steps).ceil() as usize]).collect();
    text += &format!("dies       |{shades}|\n\n");
    text + &traffic(span) + "\n" + &actors(span) + "\n" + &clients(live)
}

fn traffic(span: &Span<'_>) -> String {
    let mut table = Table::new(&["COMMAND", "PER S", "MB/S", "P50 US", "P99 US", "ENDED", "FAILED"]);
    for each in &span.now.traffic {
        table.row(vec![
            each.kind.to_owned(),
            whole(span.rate_of(each.kind, |each| each.commands)),
            megabytes(span.rate_of(each.kind, |each| each.bytes)),
            microseconds(span.quantile(each.kind, 0.5)),
            microseconds(span.quantile(each.kind, 0.99)),
            each.commands.to_string(),
            each.failed.to_string(),
        ]);
    }
    table.text()
}

fn actors(span: &Span<'_>) -> String {
    let mut table = Table::new(&["ACTOR", "WHERE", "MB/S", "FAILED"]);
    for (at, actor) in span.now.actors.iter().enumerate() {
        let moved = span.rate(|live| live.actors.get(at).map_or(0, |actor| actor.bytes.iter().sum()));
        table.row(vec![actor.name.clone(), actor.place.clone(), megabytes(moved), actor.failed.to_string()]);
    }
    table.text()
}

fn clients(live: &Live) -> String {
    let mut table = Table::new(&["CLIENT", "COMMANDS", "BYTES"]);
    for client in &live.clients {
        table.row(vec![client.name.clone(), client.commands.to_string(), format_bytes(client.bytes)]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use osier_front::dashboard::{Dies, DomainProcess};

    use super::*;

    fn live(at_ns: u64, commands: u64, classes: Vec<u64>, busy: u64) -> Live {
        let process = DomainProcess { pid: 1, resident_bytes: None };
        Live {
            at_ns,
            serves: true,
            temperature_celsius: 30.0,
            speed_permille: 1000,
            busy_permille: [0, 0],
            pending: 0,
            deaths: 0,
            domains: [process, process],
            traffic: vec![Traffic { kind: "read", commands, failed: 0, bytes: 0, time_ns: 0, classes }],
            latency_bounds_ns: vec![1_000, 10_000],
            actors: Vec::new(),
            moves: 0,
            recent_moves: Vec::new(),
            clients: Vec::new(),
            dies: Dies { per_channel: 1, at_ns, busy_ns: vec![busy] },
            figures: serde_json::Map::new(),
        }
    }

    #[test]
    fn rates_and_quantiles_are_of_the_time_between_two_looks() {
        let before = live(1_000_000_000, 100, vec![90, 10, 0], 0);
        let now = live(3_000_000_000, 300, vec![100, 199, 1], 1_000_000_000);
        let span = Span { now: &now, before: Some(&before) };
        assert_eq!(span.rate_of("read", |each| each.commands), Some(100.0));
        assert_eq!((span.quantile("read", 0.05), span.quantile("read", 0.5)), (Some(1), Some(10)));
        assert_eq!(span.quantile("read", 1.0), Some(10), "beyond the last bound");
        assert_eq!(span.quantile("write", 0.5), None);
        assert_eq!(span.dies(), [0.5]);
        let first = Span { now: &before, before: None };
        assert_eq!((first.rate_of("read", |each| each.commands), first.quantile("read", 0.5)), (None, Some(1)));
        let anew = Span { now: &before, before: Some(&now) };
        assert_eq!(anew.rate_of("read", |each| each.commands), None);
        let text = line(&span, true);
        assert!(text.lines().count() == 2 && text.lines().all(|line| line.split_whitespace().count() == 12), "{text}");
    }
}
