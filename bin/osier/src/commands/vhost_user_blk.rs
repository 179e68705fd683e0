//! `osier vhost-user-blk`: a device that is up, as a disk of virtual machines.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use osier_front::DeviceExport;
use osier_front::vhost_user_blk::{Config, QUEUES_MAX, ServeError, Server};
use osier_runtime::clients;

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::tell;

/// Be a disk of virtual machines (QEMU, cloud-hypervisor) until SIGINT or SIGTERM
///
/// `osier serve` has the device up; this is a process of its own, and may be ended and started again. When the device
/// dies and comes back, guests wait and see no error; when this process does, so do those of QEMU with `reconnect=1`.
#[derive(Debug, Args)]
pub struct VhostUserBlkArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// Make the Unix socket here that a machine connects to, one at a time
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Virtqueues that a machine may ask for
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=i64::from(QUEUES_MAX)))]
    pub queues: u16,
}

/// Serves until it is told to stop.
///
/// # Errors
/// Where it cannot listen, and that the device is not up.
pub fn run(args: &VhostUserBlkArgs, context: &Context) -> Result<Exit> {
    fronts::tie_to_supervisor()?;
    let image = context.image_path(&args.device)?;
    let name = home::name_of(&image);
    let export = DeviceExport::new("vhost-user-blk", name.clone(), clients::socket(&image));
    let stop = crate::signals::stop_flag()?;
    let config = Config { socket: args.socket.clone(), queues: args.queues };
    let server =
        Server::start(Arc::new(export), config).map_err(|error| Failure::new(code_of(&error), error.to_string()))?;
    tell!("osier: {name} is a disk of virtual machines at {}", args.socket.display());
    fronts::await_stop(&stop);
    server.stop();
    Ok(Exit::Ok)
}

fn code_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Queues(_) => Exit::BadInput,
        ServeError::Disk(..) => Exit::Missing,
        ServeError::Listen(error) => fronts::code_of_listening(error),
    }
}
