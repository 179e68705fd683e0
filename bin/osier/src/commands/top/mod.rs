//! `osier top`: what a device does that is up.

mod served;
mod window;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use serde::Serialize;

use super::Context;
use super::window::{DeviceArg, connect};
use crate::exit::Exit;
use crate::output;
use crate::signals::{self, StopFlag};
use crate::units::parse_duration_ns;

/// From nothing to everything of a part of the window.
const SHADES: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Clears a terminal and begins at its top.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";
/// How often it is looked whether somebody wants it to end.
const LOOK: Duration = Duration::from_millis(50);

/// Watch a device that is up
///
/// On a terminal the figures are drawn anew each time; elsewhere each time is a line, or with `--json` an object in
/// a line. Ends with SIGINT, SIGTERM or the device.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// A device that `osier serve` has up: a name in the home, or a path
    #[arg(value_name = "NAME", required_unless_present = "device", conflicts_with = "device")]
    name: Option<String>,
    /// The socket of a device that serves its window
    #[arg(long, value_name = "SOCKET")]
    device: Option<PathBuf>,
    /// Between two looks
    #[arg(long, value_name = "TIME", value_parser = parse_duration_ns, default_value = "1s")]
    every: u64,
    /// Look once, and print everything
    #[arg(long)]
    once: bool,
}

/// What can be watched.
trait View {
    /// One look at it.
    type Seen: Serialize;
    /// Looks.
    fn look(&mut self) -> Result<Self::Seen>;
    /// One look as a page, beside the look before it.
    fn page(now: &Self::Seen, before: Option<&Self::Seen>) -> String;
    /// One look as a line, perhaps with what its columns are before it.
    fn line(now: &Self::Seen, before: Option<&Self::Seen>, with_heading: bool) -> String;
}

/// Shows what the device does.
///
/// # Errors
/// No such device, or it has gone.
pub fn run(args: &TopArgs, context: &Context) -> Result<Exit> {
    match (&args.name, &args.device) {
        (Some(name), _) => watch(served::Served::open(context.image_path(name)?), args, context),
        (None, Some(socket)) => {
            let device = DeviceArg { device: socket.clone() };
            watch(window::Window(connect(&device)?), args, context)
        }
        (None, None) => unreachable!("one of them is required"),
    }
}

fn watch<V: View>(mut view: V, args: &TopArgs, context: &Context) -> Result<Exit> {
    let mut now = view.look()?;
    if args.once {
        if context.json {
            output::print_json(&now)?
        } else {
            output::print(&V::page(&now, None))?
        }
        return Ok(Exit::Ok);
    }
    let stop = signals::stop_flag()?;
    let mut before: Option<V::Seen> = None;
    loop {
        let is_first = before.is_none();
        let text = match (context.json, std::io::stdout().is_terminal()) {
            (true, _) => serde_json::to_string(&now)? + "\n",
            (false, true) => CLEAR.to_owned() + &V::page(&now, before.as_ref()),
            (false, false) => V::line(&now, before.as_ref(), is_first),
        };
        output::print(&text)?;
        sleep(Duration::from_nanos(args.every), &stop);
        if stop.is_set() {
            return Ok(Exit::Ok);
        }
        before = Some(std::mem::replace(&mut now, view.look()?));
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

/// Named cells as a line, and perhaps a line of their names before it.
fn row(cells: &[(&str, String)], with_heading: bool) -> String {
    let row = |cells: Vec<&str>| cells.iter().map(|cell| format!("{cell:>10} ")).collect::<String>() + "\n";
    let heading = if with_heading { row(cells.iter().map(|(name, _)| *name).collect()) } else { String::new() };
    heading + &row(cells.iter().map(|(_, cell)| cell.as_str()).collect())
}
