//! The server: one subsystem, which has one namespace.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use osier_nvme::fabrics::auth::Hosts;
use osier_nvme::fabrics::{DISCOVERY_NQN, NQN_BYTES_MAX, Subsystem, Target};
use osier_nvme::tcp::{End, Limits};
use osier_nvme::{Health, Identity, Namespace, Reach};

use super::blocks::PIECE_BLOCKS;
use super::connection::{Connection, Outcome};
use crate::listen::{ListenError, Listening, Places, Remote, Service, Visitor};
use crate::volume::{About, Export, Volume};

/// How a namespace is served.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen; port 0 is any free one.
    pub listen: SocketAddr,
    /// Whether that may be an address that other machines reach though hosts prove nothing.
    pub allow_remote: bool,
    /// The hosts that may connect, and what each has to prove, if not all may. Then other machines may reach it.
    pub hosts: Option<Hosts>,
    /// The subsystem's name; without one it is made of the namespace's identifier.
    pub nqn: Option<String>,
    /// Connections at a time, each of which is a queue.
    pub connections_max: usize,
    /// Controllers at a time.
    pub controllers_max: usize,
    /// Queues for I/O that a controller may have, 1 to 64.
    pub io_queues_max: u16,
    /// How long a host may take to connect a queue.
    pub negotiation: Duration,
    /// What is kept for each connection. The size of buffers is the server's affair.
    pub limits: Limits,
}

impl Config {
    /// What `osier nvme-tcp` has, at an address.
    #[must_use]
    pub fn at(listen: SocketAddr) -> Config {
        Config {
            listen,
            allow_remote: false,
            hosts: None,
            nqn: None,
            connections_max: 128,
            controllers_max: 32,
            io_queues_max: 8,
            negotiation: Duration::from_secs(30),
            limits: Limits::default(),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The name is none of a subsystem.
    #[error(
        "{0:?} cannot be the subsystem's name: it has 1 to {NQN_BYTES_MAX} bytes of printable ASCII, begins with `nqn.`, \
         and is not that of discovery; leave it out to have one made"
    )]
    Name(String),
    /// The namespace cannot be opened.
    #[error("{0}")]
    Volume(String),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// A subsystem that is served, until it is stopped or dropped.
pub struct Server {
    listening: Listening<Shared>,
    nqn: String,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tcp", &self.listening.tcp()).field("nqn", &self.nqn).finish()
    }
}

impl Server {
    /// Begins to serve a namespace.
    ///
    /// # Errors
    /// When the namespace cannot be opened, the address not be listened at, or the name not be had.
    pub fn start(export: Arc<dyn Export>, config: Config) -> Result<Server, ServeError> {
        let volume = export.open().map_err(ServeError::Volume)?;
        let subsystem = subsystem(&*volume, &config)?;
        drop(volume);
        let nqn = subsystem.identity.subsystem.clone();
        let places = Places {
            tcp: Some(config.listen),
            unix: None,
            remote: if config.allow_remote || config.hosts.is_some() {
                Remote::Allowed
            } else {
                Remote::Refused("have hosts prove who they are (--host-keys)")
            },
            clients_max: config.connections_max,
        };
        let namespace = subsystem.namespaces[0].clone();
        let health = Health { is_read_only: namespace.is_read_only, ..Health::default() };
        let shared = Shared {
            export,
            config,
            namespace,
            state: Mutex::new(State { target: Target::new(subsystem), health }),
            left: Condvar::new(),
            began: Instant::now(),
        };
        Ok(Server { listening: Listening::start(shared, places)?, nqn })
    }

    /// Where it listens.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.listening.tcp()
    }

    /// The subsystem's name.
    #[must_use]
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// Connections that there are.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.listening.clients()
    }

    /// Closes all connections, and ends. What is not answered then is for the hosts to send again.
    pub fn stop(mut self) {
        self.listening.end();
    }
}

/// What hosts see.
fn subsystem(volume: &dyn Volume, config: &Config) -> Result<Subsystem, ServeError> {
    let About { model, nguid, has_volatile_cache } = volume.about();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let uuid = [&nguid[..4], &nguid[4..6], &nguid[6..8], &nguid[8..10], &nguid[10..]].map(hex).join("-");
    let nqn = config.nqn.clone().unwrap_or_else(|| format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}"));
    let is_name = nqn.starts_with("nqn.")
        && nqn.len() <= NQN_BYTES_MAX
        && nqn != DISCOVERY_NQN
        && nqn.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_name {
        return Err(ServeError::Name(nqn));
    }
    let namespace = Namespace {
        nsid: 1,
        blocks: volume.blocks(),
        used_blocks: volume.blocks(),
        is_thin: false,
        is_read_only: volume.is_read_only(),
        nguid,
    };
    let identity = Identity {
        serial: hex(&nguid[..10]),
        model,
        firmware: env!("CARGO_PKG_VERSION").to_owned(),
        subsystem: nqn,
        controller: 0,
        volatile_cache: has_volatile_cache,
        // The device's own controllers watch its temperature; zero says that this one does not.
        warning_kelvin: 0,
        critical_kelvin: 0,
        reach: Reach::Fabric,
        io_queues_max: config.io_queues_max,
    };
    let (namespaces, controllers_max) = (vec![namespace], config.controllers_max);
    Ok(Subsystem { identity, namespaces, controllers_max, hosts: config.hosts.clone() })
}

/// What connections share and change.
pub struct State {
    pub target: Target,
    pub health: Health,
}

/// What connections share.
pub struct Shared {
    export: Arc<dyn Export>,
    pub config: Config,
    namespace: Namespace,
    state: Mutex<State>,
    /// Notified when a connection has left.
    left: Condvar,
    began: Instant,
}

impl Shared {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the server began.
    pub fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    /// Says that a connection has left.
    pub fn has_left(&self) {
        self.left.notify_all();
    }

    /// Waits until a connection has left, or for so long.
    pub fn await_leaving<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.left.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// A volume for a queue.
    ///
    /// # Errors
    /// Why there is none.
    pub fn open(&self) -> Result<Box<dyn Volume>, String> {
        let volume = self.export.open_for_client()?;
        let is_same = volume.blocks() == self.namespace.blocks
            && volume.about().nguid == self.namespace.nguid
            && volume.is_read_only() == self.namespace.is_read_only;
        if !is_same {
            return Err("it is another device than before, or has changed; start `osier nvme-tcp` anew".to_owned());
        }
        if u64::from(volume.transfer_blocks_max()) < PIECE_BLOCKS {
            return Err(format!("it takes fewer than {PIECE_BLOCKS} blocks at a time"));
        }
        Ok(volume)
    }
}

impl Service for Shared {
    const NAME: &'static str = "nvme";

    fn serve(&self, visitor: Visitor<'_>) {
        let client = visitor.number;
        match Connection::new(self, &visitor).serve() {
            Ok(Outcome::Ended(End::Violation(fatal))) => tracing::warn!(client, ?fatal, "a host broke the protocol"),
            Ok(Outcome::Ended(End::ByHost(fes))) => tracing::warn!(client, fes, "a host ended the connection"),
            Ok(Outcome::Overdue) => {
                tracing::warn!(client, "a host took too long to connect a queue or to prove who it is")
            }
            Ok(Outcome::Unproved) => tracing::warn!(client, "a host did not prove that it is who it says"),
            Ok(Outcome::Lost) => tracing::warn!(client, "the device is gone; a host's connection ends"),
            Ok(Outcome::Ended(end)) => tracing::debug!(client, ?end, "a host's connection has ended"),
            Err(error) => tracing::warn!(client, %error, "a host's connection failed"),
        }
    }
}
