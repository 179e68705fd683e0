//! Listening, for every front end over sockets: at a TCP address, at a Unix socket, or both; a thread for each client.
//!
//! Invariants:
//! - an address that other machines reach is listened at only where clients prove who they are, or when that was asked
//!   for by name;
//! - clients are bounded: those over the limit are told so, and those over a second limit are let go unheard;
//! - at the end no client is taken any more, and the end waits until each that is here has gone.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::sys::{self, Wait, Waker};

/// Clients over the limit that are told so; those beyond are not even listened to.
const REFUSED_MAX: usize = 8;
/// Pause after the system had no descriptor or thread for a client.
const EXHAUSTED: Duration = Duration::from_millis(100);

/// Where to listen, and for how many.
#[derive(Debug, Clone)]
pub struct Places {
    /// An address for TCP, if so; port 0 is any free one.
    pub tcp: Option<SocketAddr>,
    /// Where to make a Unix socket, if so.
    pub unix: Option<PathBuf>,
    /// Whether `tcp` may be an address that other machines reach.
    pub remote: Remote,
    /// Clients at a time.
    pub clients_max: usize,
}

/// What is done about an address that other machines reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remote {
    /// It is listened at.
    Allowed,
    /// It is not, and this is what would make it safe.
    Refused(&'static str),
}

/// Why nothing is listened at.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Other machines would reach it.
    #[error(
        "{address} is an address that other machines reach, and whoever does could do everything: give a loopback \
         address (127.0.0.1), {remedy}, or say that any remote client is wanted (allow_remote, --allow-remote)"
    )]
    Remote {
        /// The address.
        address: SocketAddr,
        /// What would make it safe.
        remedy: &'static str,
    },
    /// Nowhere to listen.
    #[error("no address to listen at: give a TCP address or the path of a Unix socket")]
    Nowhere,
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

/// A client, as whoever serves it sees it.
pub struct Visitor<'a> {
    /// Its number; no two have the same.
    pub number: u64,
    /// Its connection.
    pub socket: &'a OwnedFd,
    /// There are as many clients as may be: this one is to be told so.
    pub is_too_many: bool,
    /// Set when the server ends.
    pub stops: &'a Arc<AtomicBool>,
    clients: &'a Mutex<Clients>,
}

impl Visitor<'_> {
    /// Ends the connections of other clients; their threads find them closed.
    pub fn hang_up(&self, numbers: &[u64]) {
        let clients = locked(self.clients);
        for socket in numbers.iter().filter_map(|number| clients.sockets.get(number)) {
            sys::shut_down(socket.as_fd(), Shutdown::Both);
        }
    }

    /// Whether one of these other clients has closed its connection, and is still here.
    pub fn has_hung_up(&self, numbers: &[u64]) -> bool {
        let clients = locked(self.clients);
        numbers.iter().filter_map(|number| clients.sockets.get(number)).any(|socket| sys::has_hung_up(socket.as_fd()))
    }
}

fn locked(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What serves clients, each in a thread of its own.
pub trait Service: Send + Sync + 'static {
    /// What its threads are called, in a few letters.
    const NAME: &'static str;
    /// Serves a client until it or the server ends.
    fn serve(&self, visitor: Visitor<'_>);
}

/// Clients that are served, by number.
#[derive(Default)]
struct Clients {
    sockets: BTreeMap<u64, Arc<OwnedFd>>,
    next: u64,
}

struct Shared<S> {
    service: S,
    places: Places,
    clients: Mutex<Clients>,
    /// Notified when a client has gone.
    gone: Condvar,
    stops: Arc<AtomicBool>,
    waker: Waker,
}

impl<S> Shared<S> {
    fn clients(&self) -> MutexGuard<'_, Clients> {
        locked(&self.clients)
    }
}

/// Clients are served as long as this lives.
pub struct Listening<S: Service> {
    shared: Arc<Shared<S>>,
    tcp: Option<SocketAddr>,
    thread: Option<JoinHandle<()>>,
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

impl<S: Service> Listening<S> {
    /// Begins to listen.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn start(service: S, places: Places) -> Result<Listening<S>, ListenError> {
        let mut listeners = Vec::new();
        let mut tcp = None;
        if let Some(address) = places.tcp {
            let (listener, bound) = listen_tcp(address, places.remote)?;
            tcp = Some(bound);
            listeners.push(Listener::Tcp(listener));
        }
        if let Some(path) = &places.unix {
            listeners.push(Listener::Unix(listen_unix(path)?));
        }
        if listeners.is_empty() {
            return Err(ListenError::Nowhere);
        }
        let shared = Arc::new(Shared {
            service,
            places,
            clients: Mutex::default(),
            gone: Condvar::new(),
            stops: Arc::new(AtomicBool::new(false)),
            waker: Waker::new().map_err(system("make an eventfd"))?,
        });
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("{}-listen", S::NAME))
            .spawn(move || listen(&for_thread, &listeners))
            .map_err(system("start the thread that listens"))?;
        Ok(Listening { shared, tcp, thread: Some(thread) })
    }

    /// Where it listens for TCP.
    pub fn tcp(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Where it listens for Unix sockets.
    pub fn unix(&self) -> Option<&Path> {
        self.shared.places.unix.as_deref()
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.shared.clients().sockets.len()
    }

    /// Takes no more clients, ends what they send, and waits until they have gone.
    pub fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stops.store(true, Ordering::Release);
        self.shared.waker.wake();
        if thread.join().is_err() {
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

impl<S: Service> Drop for Listening<S> {
    fn drop(&mut self) {
        self.end();
    }
}

fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> ListenError {
    let what = what.into();
    move |source| ListenError::System { what, source }
}

fn listen_tcp(address: SocketAddr, remote: Remote) -> Result<(TcpListener, SocketAddr), ListenError> {
    if let Remote::Refused(remedy) = remote
        && !address.ip().is_loopback()
    {
        return Err(ListenError::Remote { address, remedy });
    }
    let what = format!("listen at {address}");
    let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::PortTaken(address),
        _ => ListenError::System { what: what.clone(), source },
    })?;
    let bound = listener.local_addr().map_err(system(&what))?;
    listener.set_nonblocking(true).map_err(system(&what))?;
    Ok((listener, bound))
}

fn listen_unix(path: &Path) -> Result<UnixListener, ListenError> {
    use std::os::unix::fs::FileTypeExt;
    let what = format!("listen at {}", path.display());
    if let Ok(metadata) = std::fs::symlink_metadata(path) {
        if !metadata.file_type().is_socket() {
            return Err(ListenError::NoSocket(path.to_owned()));
        }
        // What a server that was killed left behind refuses connections; a living one accepts, and is left alone.
        match UnixStream::connect(path) {
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)
                .map_err(system(format!("remove the socket {}, which nobody listens at", path.display())))?,
            _ => return Err(ListenError::SocketTaken(path.to_owned())),
        }
    }
    let listener = UnixListener::bind(path).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::SocketTaken(path.to_owned()),
        _ => ListenError::System { what: what.clone(), source },
    })?;
    listener.set_nonblocking(true).map_err(system(&what))?;
    Ok(listener)
}

/// Accepts clients until the server stops.
fn listen<S: Service>(shared: &Arc<Shared<S>>, listeners: &[Listener]) {
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
    if let Some(path) = &shared.places.unix {
        let _ = std::fs::remove_file(path);
    }
}

/// Starts a thread for a client.
fn admit<S: Service>(shared: &Arc<Shared<S>>, socket: OwnedFd) -> io::Result<()> {
    let socket = Arc::new(socket);
    let most = shared.places.clients_max;
    let (number, is_too_many) = {
        let mut clients = shared.clients();
        let count = clients.sockets.len();
        if count >= most + REFUSED_MAX {
            tracing::warn!(clients = count, "too many clients; one is not answered");
            return Ok(());
        }
        let number = clients.next;
        clients.next += 1;
        clients.sockets.insert(number, Arc::clone(&socket));
        (number, count >= most)
    };
    let present = Present { shared: Arc::clone(shared), number };
    std::thread::Builder::new().name(format!("{}-{number}", S::NAME)).spawn(move || {
        tracing::debug!(client = number, "a client has connected");
        let Shared { service, stops, clients, .. } = &*present.shared;
        service.serve(Visitor { number, socket: &socket, is_too_many, stops, clients });
    })?;
    Ok(())
}

/// A client is counted as long as this lives, also when its thread panics.
struct Present<S: Service> {
    shared: Arc<Shared<S>>,
    number: u64,
}

impl<S: Service> Drop for Present<S> {
    fn drop(&mut self) {
        self.shared.clients().sockets.remove(&self.number);
        self.shared.gone.notify_all();
    }
}
