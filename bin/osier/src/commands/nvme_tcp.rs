//! `osier nvme-tcp`: a device that is up, as an NVMe subsystem over TCP.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use osier_front::DeviceExport;
use osier_front::nvme_tcp::Hosts;
use osier_front::nvme_tcp::{Config, ServeError, Server};
use osier_runtime::clients;
use zeroize::Zeroizing;

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::tell;

/// Most bytes of a file of host keys.
const HOSTS_BYTES_MAX: u64 = 4 << 20;

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
    /// Let in the hosts in this file alone, once they have proved by their secrets who they are: lines of HOSTNQN
    /// SECRET or HOSTNQN SECRET CONTROLLER-SECRET
    #[arg(long, value_name = "FILE")]
    pub host_keys: Option<PathBuf>,
    /// Listen at an address that other machines reach though hosts prove nothing
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
        hosts: args.host_keys.as_deref().map(read_hosts).transpose()?,
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

/// Reads the secrets of hosts, of a file that is its owner's alone.
fn read_hosts(path: &Path) -> Result<Hosts> {
    let fail =
        |why: &str| Failure::new(Exit::BadInput, format!("cannot take host keys from {}: {why}", path.display()));
    let mut file = File::open(path).map_err(|error| fail(&error.to_string()))?;
    let metadata = file.metadata().map_err(|error| fail(&error.to_string()))?;
    if metadata.permissions().mode() & 0o077 != 0 {
        return Err(fail("others may read it; make it its owner's alone (chmod 600)").into());
    }
    let mut text = Zeroizing::new(String::new());
    if file.by_ref().take(HOSTS_BYTES_MAX + 1).read_to_string(&mut text).is_err() {
        return Err(fail("it is no text").into());
    }
    if text.len() as u64 > HOSTS_BYTES_MAX {
        return Err(fail("it is too long").into());
    }
    Hosts::parse(&text).map_err(|error| fail(&error.to_string()).into())
}

fn code_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Name(_) => Exit::BadInput,
        ServeError::Volume(_) => Exit::Missing,
        ServeError::Listen(error) => fronts::code_of_listening(error),
    }
}
