//! The server: listens, and serves each client in a thread of its own.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::connection::{Connection, Outcome, Served, Terms};
use super::lock::RangeLock;
use super::session::{End, Limits, Refusal};
use super::sys::{self, Wait, Waker};
use super::volume::Export;
use super::wire::STRING_BYTES_MAX;

/// Clients over the limit that are told so; those beyond are not even listened to.
const REFUSED_MAX: usize = 8;
/// Pause after the system had no descriptor or thread for a client.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// How exports are served.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to listen for TCP, if so; port 0 is any free one.
    pub tcp: Option<SocketAddr>,
    /// Where to make a Unix socket, if so.
    pub unix: Option<PathBuf>,
    /// Whether `tcp` may be an address that other machines reach. There is neither encryption nor a password.
    pub allow_remote: bool,
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
            connections_max: 64,
            negotiation: Duration::from_secs(30),
            limits: Limits::default(),
        }
    }
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Other machines would reach it.
    #[error(
        "{0} is an address that other machines reach, and NBD has no password: give a loopback address \
         (127.0.0.1), or say that remote clients are wanted (allow_remote, --allow-remote)"
    )]
    Remote(SocketAddr),
    /// Nowhere to listen.
    #[error("no address to listen at: give a TCP address or the path of a Unix socket")]
    Nowhere,
    /// Nothing to serve, or names that clients cannot tell apart or say.
    #[error("export {name:?} cannot be served: {why}")]
    Name {
        /// Of the export.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The port is taken.
    #[error("cannot listen at {0}: another program does; end it, or choose another port (0 for any free one)")]
    PortTaken(SocketAddr),
    /// The socket's path is taken.
    #[error("cannot listen at {}: another server does; end it, or choose another path", .0.display())]
    SocketTaken(PathBuf),
    /// Something else is there.
    #[error("cannot listen at {}: it exists and is no socket; remove it, or choose another path", .0.display())]
    NoSocket(PathBuf),
    /// The system refused something else.
    #[error("cannot {what}: {source}")]
    System {
        /// What was attempted, on what.
        what: String,
        /// Why.
        source: io::Error,
    },
}

/// Clients that are served, by number.
#[derive(Default)]
struct Clients {
    sockets: BTreeMap<u64, Arc<OwnedFd>>,
    next: u64,
}

struct Shared {
    exports: Vec<Served>,
    config: Config,
    clients: Mutex<Clients>,
    /// Notified when a client has gone.
    gone: Condvar,
    stops: Arc<AtomicBool>,
    waker: Waker,
}

impl Shared {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exports that are served, until it is stopped or dropped.
pub struct Server {
    shared: Arc<Shared>,
    tcp: Option<SocketAddr>,
    listener: Option<JoinHandle<()>>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("tcp", &self.tcp).field("unix", &self.shared.config.unix).finish()
    }
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// The next client, if one is there.
    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                stream.set_nodelay(true)?;
                Ok(stream.into())
            }
            Listener::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Ok(stream.into())
            }
        }
    }

    fn wait(&self) -> Wait<'_> {
        let fd = match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        };
        Wait { fd, to_read: true, to_write: false }
    }
}

impl Server {
    /// Begins to serve. The first of `exports` is what a client gets that names none.
    ///
    /// # Errors
    /// When an address cannot be listened at, or a name cannot be served.
    pub fn start(exports: Vec<Arc<dyn Export>>, config: Config) -> Result<Server, ServeError> {
        check_names(&exports)?;
        let mut listeners = Vec::new();
        let mut tcp = None;
        if let Some(address) = config.tcp {
            let (listener, bound) = listen_tcp(address, config.allow_remote)?;
            tcp = Some(bound);
            listeners.push(Listener::Tcp(listener));
        }
        if let Some(path) = &config.unix {
            listeners.push(Listener::Unix(listen_unix(path)?));
        }
        if listeners.is_empty() {
            return Err(ServeError::Nowhere);
        }
        let serve = |export| Served { export, lock: Arc::new(RangeLock::default()) };
        let shared = Arc::new(Shared {
            exports: exports.into_iter().map(serve).collect(),
            config,
            clients: Mutex::default(),
            gone: Condvar::new(),
            stops: Arc::new(AtomicBool::new(false)),
            waker: Waker::new().map_err(system("make an eventfd"))?,
        });
        let for_listener = Arc::clone(&shared);
        let listener = std::thread::Builder::new()
            .name("nbd-listen".to_owned())
            .spawn(move || listen(&for_listener, &listeners))
            .map_err(system("start the thread that listens"))?;
        Ok(Server { shared, tcp, listener: Some(listener) })
    }

    /// Where it listens for TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.clients().sockets.len()
    }

    /// Takes no more clients and no more requests, finishes what is under way, and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(listener) = self.listener.take() else { return };
        self.shared.stops.store(true, Ordering::Release);
        self.shared.waker.wake();
        if listener.join().is_err() {
            tracing::error!("the thread that listens for clients had panicked");
        }
        let mut clients = self.shared.clients();
        for socket in clients.sockets.values() {
            // What the client has sent is still read, and answered.
            sys::shut_down(socket.as_fd(), Shutdown::Read);
        }
        while !clients.sockets.is_empty() {
            clients = self.shared.gone.wait(clients).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> ServeError {
    let what = what.into();
    move |source| ServeError::System { what, source }
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

fn listen_tcp(address: SocketAddr, allow_remote: bool) -> Result<(TcpListener, SocketAddr), ServeError> {
    if !address.ip().is_loopback() && !allow_remote {
        return Err(ServeError::Remote(address));
    }
    let what = format!("listen at {address}");
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::PortTaken(address),
        _ => ServeError::System { what: what.clone(), source },
    })?;
    let bound = listener.local_addr().map_err(system(&what))?;
    listener.set_nonblocking(true).map_err(system(&what))?;
    Ok((listener, bound))
}

fn listen_unix(path: &Path) -> Result<UnixListener, ServeError> {
    use std::os::unix::fs::FileTypeExt;
    let what = format!("listen at {}", path.display());
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(ServeError::NoSocket(path.to_owned()));
        }
        // What a server that was killed left behind refuses connections; a living one accepts, and is left alone.
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
                .map_err(system(format!("remove the socket {}, which nobody listens at", path.display())))?,
            _ => return Err(ServeError::SocketTaken(path.to_owned())),
        }
    }
    let listener = UnixListener::bind(path).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::SocketTaken(path.to_owned()),
        _ => ServeError::System { what: what.clone(), source },
    })?;
    listener.set_nonblocking(true).map_err(system(&what))?;
    Ok(listener)
}

/// Accepts clients until the server stops.
fn listen(shared: &Arc<Shared>, listeners: &[Listener]) {
    while !shared.stops.load(Ordering::Acquire) {
        let mut waits = vec![Wait { fd: shared.waker.as_fd(), to_read: true, to_write: false }];
        waits.extend(listeners.iter().map(Listener::wait));
        if let Err(error) = sys::wait(&waits, None) {
            tracing::error!(%error, "cannot wait for clients; trying again");
            std::thread::sleep(EXHAUSTED);
        }
        for listener in listeners {
            match listener.accept().and_then(|socket| admit(shared, socket)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot take a client; trying again");
                    std::thread::sleep(EXHAUSTED);
                }
            }
        }
    }
    if let Some(path) = &shared.config.unix {
        let _ = std::fs::remove_file(path);
    }
}

/// Starts a thread for a client.
fn admit(shared: &Arc<Shared>, socket: OwnedFd) -> io::Result<()> {
    let socket = Arc::new(socket);
    let most = shared.config.connections_max;
    let (number, refusal) = {
        let mut clients = shared.clients();
        let count = clients.sockets.len();
        if count >= most + REFUSED_MAX {
            tracing::warn!(clients = count, "too many clients; one is not answered");
            return Ok(());
        }
        let number = clients.next;
        clients.next += 1;
        clients.sockets.insert(number, Arc::clone(&socket));
        let text = format!("this server serves {most} clients at a time, and has as many; try again later");
        (number, (count >= most).then_some(Refusal::Policy(text)))
    };
    let present = Present { shared: Arc::clone(shared), number };
    std::thread::Builder::new().name(format!("nbd-{number}")).spawn(move || serve(&present, &socket, refusal))?;
    Ok(())
}

/// A client is counted as long as this lives, also when its thread panics.
struct Present {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Present {
    fn drop(&mut self) {
        self.shared.clients().sockets.remove(&self.number);
        self.shared.gone.notify_all();
    }
}

fn serve(present: &Present, socket: &OwnedFd, refusal: Option<Refusal>) {
    let shared = &present.shared;
    let client = present.number;
    let terms = Terms {
        limits: shared.config.limits,
        negotiation: shared.config.negotiation,
        stops: Arc::clone(&shared.stops),
        refusal,
    };
    tracing::debug!(client, "a client has connected");
    match Connection::new(socket, &shared.exports, terms).serve() {
        Ok(Outcome::Ended(End::Violation(what))) => tracing::warn!(client, what, "a client broke the protocol"),
        Ok(Outcome::Overdue) => tracing::warn!(client, "a client negotiated for too long"),
        Ok(Outcome::Ended(end)) => tracing::debug!(client, ?end, "a client has gone"),
        Err(error) => tracing::warn!(client, %error, "the connection to a client failed"),
    }
}
