//! `osier nbd`: a device that is up, as a network block device.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use osier_front::nbd::{Config, ServeError, Server};
use osier_front::volume::Export;
use osier_front::{DeviceExport, ListenError};
use osier_runtime::clients;

use super::Context;
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::signals::StopFlag;

/// Between two looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Serve a running device over NBD until SIGINT or SIGTERM
///
/// `osier serve` has the device up; this is a process of its own, and may be ended and started again. When the device
/// dies and comes back, clients wait and see no error.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("where").required(true).multiple(true).args(["listen", "unix"])))]
pub struct NbdArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// Listen at this address, such as 127.0.0.1:10809; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Listen at a Unix socket
    #[arg(long, value_name = "PATH")]
    pub unix: Option<PathBuf>,
    /// The export's name; clients that name none get it too [default: the device's]
    #[arg(long)]
    pub name: Option<String>,
    /// Listen at an address that other machines reach; there is neither encryption nor a password
    #[arg(long)]
    pub allow_remote: bool,
}

/// Serves until it is told to stop.
///
/// # Errors
/// Where it cannot listen, and that the device is not up.
pub fn run(args: &NbdArgs, context: &Context) -> Result<Exit> {
    let image = context.image_path(&args.device)?;
    let name = args.name.clone().unwrap_or_else(|| name_of(&image));
    let export = DeviceExport::new(name, clients::socket(&image));
    // A device that is not up is said now, and not to the first client.
    drop(export.open().map_err(|why| Failure::new(Exit::Missing, why))?);
    let stop = crate::signals::stop_flag()?;
    let config =
        Config { tcp: args.listen, unix: args.unix.clone(), allow_remote: args.allow_remote, ..Config::default() };
    let server = Server::start(vec![Arc::new(export)], config)
        .map_err(|error| Failure::new(code_of(&error), error.to_string()))?;
    if let Some(address) = server.tcp() {
        tell!("osier: {} is served at nbd://{address}", args.device);
    }
    if let Some(path) = &args.unix {
        tell!("osier: {} is served at nbd+unix:///?socket={}", args.device, path.display());
    }
    await_stop(&stop);
    server.stop();
    Ok(Exit::Ok)
}

/// Waits until it is told to stop.
pub fn await_stop(stop: &StopFlag) {
    while !stop.is_set() {
        std::thread::sleep(LOOK);
    }
}

fn code_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Name { .. } => Exit::BadInput,
        ServeError::Listen(error) => code_of_listening(error),
    }
}

/// The exit code of a server that cannot listen.
pub fn code_of_listening(error: &ListenError) -> Exit {
    match error {
        ListenError::Remote(_) | ListenError::Nowhere | ListenError::NoSocket(_) => Exit::BadInput,
        ListenError::PortTaken(_) | ListenError::SocketTaken(_) | ListenError::System { .. } => Exit::Failure,
    }
}

fn name_of(image: &Path) -> String {
    image.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
