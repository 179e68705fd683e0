//! `osier dashboard`: what a device does, as a page, as JSON and as metrics.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use osier_domain::Side;
use osier_front::dashboard::{self, Actor, Client, Dies, DomainProcess, Live, Move, Source, Status, Traffic};
use osier_runtime::control::Gauge;
use osier_runtime::traffic::{Kind, LATENCY_BOUNDS_NS};
use osier_runtime::{Attached, RuntimeError};

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::tell;

/// Readers within that time see the same.
const FRESH: Duration = Duration::from_millis(100);
/// Moves that are shown.
const MOVES_SHOWN: usize = 8;

/// Show a device to a browser and to Prometheus, until SIGINT or SIGTERM
///
/// The page is at /, the figures are at /api/status and /metrics, and /healthz says whether the device serves. It goes
/// on while the device is down.
#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// Listen at this address; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9630")]
    pub listen: SocketAddr,
    /// Listen at an address that other machines reach; there is neither encryption nor a password
    #[arg(long)]
    pub allow_remote: bool,
}

/// Serves until it is told to stop.
///
/// # Errors
/// No such device, and where it cannot listen.
pub fn run(args: &DashboardArgs, context: &Context) -> Result<Exit> {
    fronts::tie_to_supervisor()?;
    let image = context.image_path(&args.device)?;
    let name = home::name_of(&image);
    let observer = Observer::new(name.clone(), image);
    // A device that does not exist is said now, and not to the first reader.
    observer.see()?;
    let stop = crate::signals::stop_flag()?;
    let server = dashboard::serve(Arc::new(observer), args.listen, args.allow_remote)
        .map_err(|error| Failure::new(fronts::code_of_listening(&error), error.to_string()))?;
    if let Some(address) = server.tcp() {
        tell!("osier: {name} is shown at http://{address}");
    }
    fronts::await_stop(&stop);
    Ok(Exit::Ok)
}

/// Looks at a device again and again.
pub struct Observer {
    device: String,
    image: PathBuf,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// The device, and which of its lives that is.
    attached: Option<(u64, Attached)>,
    last: Option<(Instant, Status)>,
}

impl Observer {
    /// Of the device in an image, by the name that people know it by.
    pub fn new(device: String, image: PathBuf) -> Observer {
        Observer { device, image, seen: Mutex::default() }
    }

    /// What there is to see now, or was a moment ago.
    ///
    /// # Errors
    /// No such device, or it cannot be looked at.
    pub fn see(&self) -> Result<Status, RuntimeError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, status)) = &seen.last
            && at.elapsed() < FRESH
        {
            return Ok(status.clone());
        }
        let status = self.look_anew(&mut seen)?;
        seen.last = Some((Instant::now(), status.clone()));
        Ok(status)
    }

    fn look_anew(&self, seen: &mut Seen) -> Result<Status, RuntimeError> {
        let found = osier_image::inspect(&self.image)?;
        let mut status = Status {
            device: self.device.clone(),
            profile: found.superblock.profile_name.clone(),
            capacity_bytes: found.superblock.logical_blocks * u64::from(osier_flash::BLOCK_BYTES),
            live: None,
        };
        if !found.is_owned() {
            seen.attached = None;
            return Ok(status);
        }
        let life = found.superblock.incarnation.0;
        if seen.attached.as_ref().is_none_or(|(of, _)| *of != life) {
            seen.attached = Some((life, Attached::open(&self.image)?));
        }
        if let Some((_, attached)) = &seen.attached {
            status.live = Some(live(attached)?);
        }
        Ok(status)
    }
}

impl Source for Observer {
    fn look(&self) -> Result<Status, String> {
        self.see().map_err(|error| error.to_string())
    }
}

fn live(attached: &Attached) -> Result<Live, RuntimeError> {
    let setup = &attached.setup;
    let control = &setup.control;
    let told = setup.board()?.read();
    let figures = told.as_ref().and_then(|told| serde_json::from_str(&told.figures).ok());
    let process = |side| DomainProcess { pid: control.pid(side), resident_bytes: setup.resident_bytes(side) };
    let traffic = setup.traffic()?;
    Ok(Live {
        at_ns: osier_runtime::clock::now().0,
        serves: control.go() == control.epoch(),
        temperature_celsius: control.temperature_millicelsius() as f64 / 1000.0,
        speed_permille: control.gauge(Gauge::Speed),
        busy_permille: [control.gauge(Gauge::HostBusy), control.gauge(Gauge::Utilisation)],
        pending: control.gauge(Gauge::Pending),
        // The first epoch is 1, and each death begins another.
        deaths: control.epoch().saturating_sub(1),
        domains: [process(Side::Host), process(Side::Device)],
        traffic: Kind::ALL.map(|kind| traffic_of(&traffic, kind)).into(),
        latency_bounds_ns: LATENCY_BOUNDS_NS.to_vec(),
        actors: actors(attached),
        moves: control.moves(),
        recent_moves: recent_moves(attached),
        clients: traffic
            .clients()
            .into_iter()
            .map(|c| Client { name: c.name, commands: c.commands, bytes: c.bytes })
            .collect(),
        dies: Dies {
            per_channel: u64::from(setup.profile.geometry().dies_per_channel),
            at_ns: told.as_ref().map_or(0, |told| told.at_ns),
            busy_ns: told.map_or_else(Vec::new, |told| told.die_busy_ns),
        },
        figures: figures.unwrap_or_default(),
    })
}

fn traffic_of(traffic: &osier_runtime::traffic::Traffic, kind: Kind) -> Traffic {
    let counts = traffic.counts(kind);
    Traffic {
        kind: kind.name(),
        commands: counts.commands,
        failed: counts.failed,
        bytes: counts.bytes,
        time_ns: counts.time_ns,
        classes: counts.classes.to_vec(),
    }
}

fn actors(attached: &Attached) -> Vec<Actor> {
    let setup = &attached.setup;
    let of = |actor: &osier_actor::pipeline::ActorDef| {
        let [host, device] = [Side::Host, Side::Device].map(|side| setup.control.actor_stats(actor.id, side));
        Actor {
            name: actor.label(),
            place: setup.owner(actor.id).map_or("moving".to_owned(), |side| side.to_string()),
            bytes: [host.bytes, device.bytes],
            busy_ns: [host.busy_ns, device.busy_ns],
            failed: host.failed + device.failed,
        }
    };
    setup.pipelines.actors().iter().map(of).collect()
}

fn recent_moves(attached: &Attached) -> Vec<Move> {
    let setup = &attached.setup;
    let first = setup.control.moves().saturating_sub(MOVES_SHOWN as u64);
    let log = setup.control.move_log(first);
    let of = |each: &osier_runtime::control::MoveTimes| Move {
        actor: setup.pipelines.actor(osier_domain::ActorId(each.actor)).label(),
        to: if each.to_device { "device" } else { "host" },
        at_ns: each.active,
        took_ns: each.active.saturating_sub(each.routed),
        mid_request: each.mid_request,
    };
    log.iter().rev().map(of).collect()
}
