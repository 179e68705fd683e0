//! `osier nbd`: a device that is up, as a network block device.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use osier_front::DeviceExport;
use osier_front::nbd::{Config, ServeError, Server};
use osier_front::tls::{Clients, Tls};
use osier_front::volume::Export;
use osier_runtime::clients;

use super::{Context, fronts};
use crate::exit::{Exit, Failure};
use crate::home;
use crate::output::tell;

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
    /// Speak TLS alone, with the ca-cert.pem, server-cert.pem and server-key.pem of this directory, to clients that
    /// show a certificate of that authority
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Serve clients over TLS that show no certificate, too
    #[arg(long, requires = "tls_certificates")]
    pub tls_any_client: bool,
    /// Listen at an address that other machines reach though clients show no certificate
    #[arg(long)]
    pub allow_remote: bool,
}

/// Serves until it is told to stop.
///
/// # Errors
/// Where it cannot listen, and that the device is not up.
pub fn run(args: &NbdArgs, context: &Context) -> Result<Exit> {
    fronts::tie_to_supervisor()?;
    let image = context.image_path(&args.device)?;
    let name = args.name.clone().unwrap_or_else(|| home::name_of(&image));
    let export = DeviceExport::new("nbd", name.clone(), clients::socket(&image));
    // A device that is not up is said now, and not to the first client.
    drop(export.open().map_err(|why| Failure::new(Exit::Missing, why))?);
    let stop = crate::signals::stop_flag()?;
    let clients = if args.tls_any_client { Clients::Any } else { Clients::Verified };
    let tls = args.tls_certificates.as_ref().map(|directory| Tls::of_directory(directory, clients));
    let config = Config {
        tcp: args.listen,
        unix: args.unix.clone(),
        allow_remote: args.allow_remote,
        tls: tls.transpose().map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?,
        ..Config::default()
    };
    let scheme = if config.tls.is_some() { "nbds" } else { "nbd" };
    let server = Server::start(vec![Arc::new(export)], config)
        .map_err(|error| Failure::new(code_of(&error), error.to_string()))?;
    if let Some(address) = server.tcp() {
        tell!("osier: {name} is served at {scheme}://{address}");
    }
    if let Some(path) = &args.unix {
        tell!("osier: {name} is served at {scheme}+unix:///?socket={}", path.display());
    }
    fronts::await_stop(&stop);
    server.stop();
    Ok(Exit::Ok)
}

fn code_of(error: &ServeError) -> Exit {
    match error {
        ServeError::Name { .. } => Exit::BadInput,
        ServeError::Listen(error) => fronts::code_of_listening(error),
    }
}
