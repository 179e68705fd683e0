//! The server: what it serves, and each client in a thread of its own.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::connection::{Connection, Outcome, Served, Terms};
use super::lock::RangeLock;
use super::session::{End, Limits, Refusal};
use super::wire::STRING_BYTES_MAX;
use crate::listen::{ListenError, Listening, Places, Remote, Service, Visitor};
use crate::tls::Tls;
use crate::volume::Export;

/// How exports are served.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen for TCP, if so; port 0 is any free one.
    pub tcp: Option<SocketAddr>,
    /// Where to make a Unix socket, if so.
    pub unix: Option<PathBuf>,
    /// Whether `tcp` may be an address that other machines reach though clients prove nothing.
    pub allow_remote: bool,
    /// How everything is encrypted, if it has to be. Where it verifies clients, other machines may reach `tcp`.
    pub tls: Option<Tls>,
    /// Clients at a time.
    pub connections_max: usize,
    /// How long a client may negotiate.
    pub negotiation: Duration,
    /// What is kept for each client.
    pub limits: Limits,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            tcp: None,
            unix: None,
            allow_remote: false,
            tls: None,
            connections_max: 64,
            negotiation: Duration::from_secs(30),
            limits: Limits::default(),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nothing to serve, or names that clients cannot tell apart or say.
    #[error("export {name:?} cannot be served: {why}")]
    Name {
        /// Of the export.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// Exports that are served, until it is stopped or dropped.
pub struct Server(Listening<Exports>);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tcp", &self.0.tcp()).field("unix", &self.0.unix()).finish()
    }
}

impl Server {
    /// Begins to serve. The first of `exports` is what a client gets that names none.
    ///
    /// # Errors
    /// When an address cannot be listened at, or a name cannot be served.
    pub fn start(exports: Vec<Arc<dyn Export>>, config: Config) -> Result<Server, ServeError> {
        check_names(&exports)?;
        let serve = |export| Served { export, lock: Arc::new(RangeLock::default()) };
        let places = Places {
            tcp: config.tcp,
            unix: config.unix.clone(),
            remote: match &config.tls {
                Some(tls) if tls.verifies_clients() => Remote::Allowed,
                _ if config.allow_remote => Remote::Allowed,
                _ => Remote::Refused("have clients show certificates (--tls-certificates)"),
            },
            clients_max: config.connections_max,
        };
        let exports = Exports { served: exports.into_iter().map(serve).collect(), config };
        Ok(Server(Listening::start(exports, places)?))
    }

    /// Where it listens for TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.0.tcp()
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.0.clients()
    }

    /// Takes no more clients and no more requests, finishes what is under way, and ends.
    pub fn stop(mut self) {
        self.0.end();
    }
}

fn check_names(exports: &[Arc<dyn Export>]) -> Result<(), ServeError> {
    let refuse = |name: &str, why| Err(ServeError::Name { name: name.to_owned(), why });
    if exports.is_empty() {
        return refuse("", "there is none");
    }
    for (at, export) in exports.iter().enumerate() {
        let name = export.name();
        if name.is_empty() || name.contains('\0') || name.len() > STRING_BYTES_MAX {
            return refuse(name, "a name has 1 to 4096 bytes, and no NUL");
        }
        if exports[..at].iter().any(|other| other.name() == name) {
            return refuse(name, "another one has that name");
        }
    }
    Ok(())
}

/// What clients are served.
struct Exports {
    served: Vec<Served>,
    config: Config,
}

impl Service for Exports {
    const NAME: &'static str = "nbd";

    fn serve(&self, visitor: Visitor<'_>) {
        let (client, most) = (visitor.number, self.config.connections_max);
        let text = || format!("this server serves {most} clients at a time, and has as many; try again later");
        let terms = Terms {
            limits: self.config.limits,
            negotiation: self.config.negotiation,
            tls: self.config.tls.clone(),
            stops: Arc::clone(visitor.stops),
            refusal: visitor.is_too_many.then(|| Refusal::Policy(text())),
        };
        match Connection::new(visitor.socket, &self.served, terms).serve() {
            Ok(Outcome::Ended(End::Violation(what))) => tracing::warn!(client, what, "a client broke the protocol"),
            Ok(Outcome::Overdue) => tracing::warn!(client, "a client negotiated for too long"),
            Ok(Outcome::Ended(end)) => tracing::debug!(client, ?end, "a client has gone"),
            Err(error) => tracing::warn!(client, %error, "the connection to a client failed"),
        }
    }
}
