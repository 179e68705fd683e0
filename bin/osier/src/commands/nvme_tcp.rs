//! `osier nvme-tcp`: a device that is up, as an NVMe subsystem over TCP.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use osier_front::DeviceExport;
use osier_front::nvme_tcp::{Config, ServeError, Server};
use osier_runtime::clients;

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::tell;

/// Serve a running device over NVMe/TCP until SIGINT or SIGTERM
///
/// `osier serve` has the device up; this is a process of its own, and may be ended and started again: hosts reconnect.
/// When the device dies and comes back, hosts wait and see no error.
#[derive(Debug, Args)]
pub struct NvmeTcpArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// Listen at this address, such as 127.0.0.1:4420; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// The subsystem's NVMe Qualified Name [default: made of the device's UUID]
    #[arg(long)]
    pub nqn: Option<String>,
    /// Queues for I/O that a host may have, each of which is a connection
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub queues: u16,
    /// Listen at an address that other machines reach; there is neither encryption nor a password
    #[arg(long)]
    pub allow_remote: bool,
}

/// Serves until it is told to stop.
///
/// # Errors
/// Where it cannot listen, and that the device is not up.
pub fn run(args: &NvmeTcpArgs, context: &Context) -> Result<Exit> {
    fronts::tie_to_supervisor()?;
    let image = context.image_path(&args.device)?;
    let name = home::name_of(&image);
    let export = DeviceExport::new("nvme-tcp", name.clone(), clients::socket(&image));
    let stop = crate::signals::stop_flag()?;
    let config = Config {
        allow_remote: args.allow_remote,
        nqn: args.nqn.clone(),
        io_queues_max: args.queues,
        ..Config::at(args.listen)
    };
    let server =
        Server::start(Arc::new(export), config).map_err(|error| Failure::new(code_of(&error), error.to_string()))?;
    if let Some(address) = server.tcp() {
        tell!("osier: {name} is served at {address} as {}", server.nqn());
    }
    fronts::await_stop(&stop);
    server.stop();
    Ok(Exit::Ok)
}

fn code_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Name(_) => Exit::BadInput,
        ServeError::Volume(_) => Exit::Missing,
        ServeError::Listen(error) => fronts::code_of_listening(error),
    }
}
