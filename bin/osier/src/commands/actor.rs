//! `osier actor`: where the actors of a running device are, and moving them.

use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Subcommand;
use osier_domain::{ActorId, Side};
use osier_report::{Table, Unit, format_value};
use osier_runtime::Attached;
use osier_runtime::bootstrap::Placement;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::tell;

/// List and move the actors of a running device
#[derive(Debug, Subcommand)]
pub enum ActorCommand {
    /// Where each actor is, and what it did
    Ls {
        /// The device
        device: String,
    },
    /// What each tenant may use, and what its actors used since they were started
    Tenants {
        /// The device
        device: String,
    },
    /// Move an actor, or a whole pipeline; from then on the policy rests
    ///
    /// It goes before `--placement` of the session, but not before `placement` in a pipeline: such an actor stays.
    Move {
        /// The device
        device: String,
        /// PIPELINE/STAGE, a pipeline's name for all of its stages, or `all`
        actor: String,
        /// Where to; `auto` gives placement back to the policy
        #[arg(value_enum)]
        to: Destination,
    },
}

/// Where an actor is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Destination {
    /// The host's domain.
    Host,
    /// The device's domain.
    Device,
    /// Wherever the policy wants it.
    Auto,
}

/// How long the host may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Does what was asked.
///
/// # Errors
/// When the device does not run, or there is no such actor.
pub fn run(command: &ActorCommand, context: &Context) -> Result<Exit> {
    match command {
        ActorCommand::Ls { device } => list(&Attached::open(&context.image_path(device)?)?, context),
        ActorCommand::Tenants { device } => tenants(&Attached::open(&context.image_path(device)?)?, context),
        ActorCommand::Move { device, actor, to } => {
            move_actors(&Attached::open(&context.image_path(device)?)?, actor, *to)
        }
    }
}

fn list(device: &Attached, context: &Context) -> Result<Exit> {
    let mut table = Table::new().left("actor").left("where").right("bytes on host").right("bytes on device");
    let mut rows = Vec::new();
    for actor in device.setup.pipelines.actors() {
        let place = device.setup.owner(actor.id).map_or("moving".to_owned(), |side| side.to_string());
        let bytes = [Side::Host, Side::Device].map(|side| device.setup.control.actor_stats(actor.id, side).bytes);
        rows.push(serde_json::json!({
            "actor": actor.label(), "where": place, "bytes_host": bytes[0], "bytes_device": bytes[1],
            "current": actor.current,
        }));
        table.row([actor.label(), place, bytes[0].to_string(), bytes[1].to_string()]);
    }
    if context.json {
        println!("{}", serde_json::Value::Array(rows));
    } else {
        print!("{}", table.to_text());
    }
    Ok(Exit::Ok)
}

fn tenants(device: &Attached, context: &Context) -> Result<Exit> {
    let tenants = device.setup.tenants();
    if context.json {
        println!("{}", serde_json::to_string(&tenants)?);
        return Ok(Exit::Ok);
    }
    let mut table = Table::new().left("tenant").right("share").right("memory").right("time on host");
    table =
        table.right("time on device").right("bytes on host").right("bytes on device").right("calls").right("failed");
    let seconds = |ns: u64| format_value(ns as f64 / 1e9, Unit::Seconds);
    for tenant in tenants {
        let share = tenant.cpu_permille.map_or("-".to_owned(), |permille| format!("{}%", f64::from(permille) / 10.0));
        table.row([
            tenant.tenant,
            share,
            format_value(tenant.memory_bytes as f64, Unit::Bytes),
            seconds(tenant.busy_ns[0]),
            seconds(tenant.busy_ns[1]),
            tenant.bytes[0].to_string(),
            tenant.bytes[1].to_string(),
            tenant.calls.to_string(),
            tenant.failed.to_string(),
        ]);
    }
    print!("{}", table.to_text());
    Ok(Exit::Ok)
}

fn move_actors(device: &Attached, wanted: &str, to: Destination) -> Result<Exit> {
    let to = match to {
        Destination::Host => Some(Side::Host),
        Destination::Device => Some(Side::Device),
        Destination::Auto => None,
    };
    refuse_fixed(device, wanted, to)?;
    for actor in select(device, wanted)? {
        let control = &device.setup.control;
        let began = Instant::now();
        let mut ticket = None;
        let left = loop {
            // Somebody else's command may be under way.
            ticket = ticket.or_else(|| control.ask(actor, to));
            if let Some(left) = ticket.and_then(|ticket| control.answered(ticket)) {
                break left;
            }
            if began.elapsed() > PATIENCE {
                return Err(
                    Failure::new(Exit::Failure, "the host's domain does not answer; is the device still up?").into()
                );
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        if left > 0 {
            let text =
                format!("{left} actor(s) of {wanted} did not arrive in time; `osier actor ls` shows where they are");
            return Err(Failure::new(Exit::Failure, text).into());
        }
    }
    if let Some(note) = note(device, wanted, to)? {
        tell!("osier: {note}");
    }
    Ok(Exit::Ok)
}

/// Refuses what cannot be done: an actor that its pipeline fixes elsewhere, and a policy where there is none.
fn refuse_fixed(device: &Attached, wanted: &str, to: Option<Side>) -> Result<(), Failure> {
    let placement = device.setup.control.placement();
    let text = match (to, fixed_elsewhere(device, wanted, to)?.as_slice()) {
        (None, _) if placement != Placement::Adaptive => format!(
            "the device runs with --placement {}, so there is no policy to give placement back to; name host or device, \
             or start it with --placement adaptive",
            word(placement)
        ),
        (Some(_), [label]) if device.setup.pipelines.find_actor(wanted).is_some() => format!(
            "{label} stays where it is: `placement` of its stage fixes it there; set it to \"any\" in pipelines.toml and \
             start the device again"
        ),
        _ => return Ok(()),
    };
    Err(Failure::new(Exit::BadInput, text))
}

/// What somebody who moved actors should know.
fn note(device: &Attached, wanted: &str, to: Option<Side>) -> Result<Option<String>, Failure> {
    let fixed = fixed_elsewhere(device, wanted, to)?;
    let placement = device.setup.control.placement();
    Ok(match to {
        Some(_) if !fixed.is_empty() => {
            Some(format!("{} stayed: `placement` of their stages in pipelines.toml fixes them", fixed.join(", ")))
        }
        Some(_) if placement != Placement::Adaptive => Some(format!(
            "this goes before --placement {} until the actors are moved again or the device is started again",
            word(placement)
        )),
        _ => None,
    })
}

fn word(placement: Placement) -> &'static str {
    match placement {
        Placement::Host => "host",
        Placement::Device => "device",
        Placement::Adaptive => "adaptive",
    }
}

/// The labels of those that are meant, are elsewhere, and may not be moved.
fn fixed_elsewhere(device: &Attached, wanted: &str, to: Option<Side>) -> Result<Vec<String>, Failure> {
    let chosen = select(device, wanted)?;
    let meant = |id: ActorId| chosen.iter().any(|each| each.is_none_or(|chosen| chosen == id));
    let actors = device.setup.pipelines.actors().iter().filter(|a| meant(a.id) && !device.setup.movable(a.id));
    let elsewhere = actors.filter(|a| to.is_some() && device.setup.owner(a.id) != to);
    Ok(elsewhere.map(|a| a.label()).collect())
}

/// The actors that a word means; `None` stands for all of them.
fn select(device: &Attached, wanted: &str) -> Result<Vec<Option<ActorId>>, Failure> {
    if wanted == "all" {
        return Ok(vec![None]);
    }
    let pipelines = &device.setup.pipelines;
    if let Some(actor) = pipelines.find_actor(wanted) {
        return Ok(vec![Some(actor)]);
    }
    let of: Vec<Option<ActorId>> =
        pipelines.actors().iter().filter(|a| a.current && a.pipeline == wanted).map(|a| Some(a.id)).collect();
    if of.is_empty() {
        let known: Vec<String> = pipelines.actors().iter().filter(|a| a.current).map(|a| a.label()).collect();
        let text = format!("this device has no actor or pipeline `{wanted}`; it has {}", known.join(", "));
        return Err(Failure::new(Exit::BadInput, text));
    }
    Ok(of)
}
