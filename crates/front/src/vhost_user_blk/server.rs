//! Where front ends connect: a Unix socket, with one front end at a time.

use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use vhost::vhost_user::{BackendReqHandler, Error};

use super::backend::Backend;
use super::config::Shape;
use super::ring::End;
use crate::listen::{ListenError, Listening, Places, Remote, Service, Visitor};
use crate::volume::Export;

/// Virtqueues of a disk.
pub const QUEUES_MAX: u16 = 64;
/// How long what is under way may take at the end of the server. A front end that comes back has it done again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How a disk is served.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where to make the socket.
    pub socket: PathBuf,
    /// Virtqueues that a driver may use, at most [`QUEUES_MAX`].
    pub queues: u16,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The disk's own fault.
    #[error("{0} cannot be a disk of virtual machines: {1}")]
    Disk(String, String),
    /// As many queues as no disk has.
    #[error("a disk has 1 to {QUEUES_MAX} virtqueues, not {0}")]
    Queues(u16),
    /// It cannot listen.
    #[error(transparent)]
    Listen(#[from] ListenError),
}

/// A disk that is served, until it is stopped or dropped.
pub struct Server(Listening<Disk>);

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("unix", &self.0.unix()).finish()
    }
}

impl Server {
    /// Begins to serve.
    ///
    /// # Errors
    /// When the disk cannot be opened, or the socket cannot be made.
    pub fn start(export: Arc<dyn Export>, config: Config) -> Result<Server, ServeError> {
        if !(1..=QUEUES_MAX).contains(&config.queues) {
            return Err(ServeError::Queues(config.queues));
        }
        let volume = export.open().map_err(|why| ServeError::Disk(export.name().to_owned(), why))?;
        let shape = Arc::new(Shape::of(&*volume, export.name(), config.queues));
        drop(volume);
        // No other machine reaches a socket.
        let places = Places { tcp: None, unix: Some(config.socket), remote: Remote::Allowed, clients_max: 1 };
        Ok(Server(Listening::start(Disk { export, shape }, places)?))
    }

    /// Takes no more front ends and no more requests, finishes what is under way, and ends.
    pub fn stop(mut self) {
        self.0.end();
    }
}

struct Disk {
    export: Arc<dyn Export>,
    shape: Arc<Shape>,
}

impl Service for Disk {
    const NAME: &'static str = "vhost";

    fn serve(&self, visitor: Visitor<'_>) {
        if visitor.is_too_many {
            tracing::warn!("a second front end is not answered: a disk has one at a time");
            return;
        }
        let stream = match visitor.socket.try_clone() {
            Ok(socket) => UnixStream::from(socket),
            Err(error) => {
                tracing::warn!(%error, "a front end cannot be served");
                return;
            }
        };
        tracing::info!("a front end has connected");
        let backend = Arc::new(Mutex::new(Backend::new(Arc::clone(&self.export), Arc::clone(&self.shape))));
        let mut handler = BackendReqHandler::from_stream(stream, Arc::clone(&backend));
        let why = loop {
            if let Err(why) = handler.handle_request() {
                break why;
            }
        };
        let stops = visitor.stops.load(Ordering::Acquire);
        let end = if stops { End::Finish(Instant::now() + PATIENCE) } else { End::Leave };
        backend.lock().unwrap_or_else(PoisonError::into_inner).end(end);
        match why {
            _ if stops => {}
            Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_) => {
                tracing::info!("the front end has gone");
            }
            why => tracing::warn!(%why, "a front end's message cannot be followed; its connection is closed"),
        }
    }
}
