//! Where clients arrive: a socket, and a thread that waits at it so that the domain's thread never has to.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use osier_nvme::local::{
    HELLO_BYTES, Hello, MEMORY, MEMORY_BYTES_MAX, REGISTERS, REGISTERS_BYTES, VECTORS_MAX, Welcome,
};
use osier_pmr::{Doorbell, Object, Region, pass};
use rustix::event::{PollFd, PollFlags};

use crate::error::RuntimeError;
use crate::traffic;

/// Most clients at a time.
pub const CLIENTS_MAX: usize = traffic::CLIENTS_MAX;
/// How long a client may take for its first word.
const HELLO_MAX: Duration = Duration::from_secs(2);

/// A client that is to be welcomed.
pub struct Arrival {
    /// Its number; no other has it.
    pub id: u64,
    /// What it calls itself.
    pub name: String,
    /// To answer by.
    pub socket: UnixStream,
    /// The controller's registers.
    pub registers: Object,
    /// What stands in for the client's memory.
    pub memory: Object,
    /// Its interrupts.
    pub events: Vec<OwnedFd>,
}

/// What the domain's thread is told.
pub enum News {
    /// A client wants in.
    Arrived(Arrival),
    /// A client has gone, by its number.
    Left(u64),
}

/// The thread's other end. The thread ends with the process.
pub struct Listener {
    news: Receiver<News>,
}

impl Listener {
    /// Listens at a path, where nobody else listens: the device's image is locked.
    pub fn start(path: &Path, bell: Doorbell) -> Result<Listener, RuntimeError> {
        let failed = |source| RuntimeError::Listen { path: path.to_owned(), source };
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = pass::listen(path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let (sender, news) = channel();
        let waiting = Waiting { listener, path: path.to_owned(), clients: Vec::new(), next: 0, sender, bell };
        std::thread::Builder::new().name("clients".to_owned()).spawn(move || waiting.run()).map_err(failed)?;
        Ok(Listener { news })
    }

    /// What is new, if anything is.
    pub fn news(&self) -> Option<News> {
        // The thread ends only with an error that it has told of; those who are here go on.
        self.news.try_recv().ok()
    }
}

struct Waiting {
    listener: UnixListener,
    path: PathBuf,
    clients: Vec<(u64, UnixStream)>,
    next: u64,
    sender: Sender<News>,
    bell: Doorbell,
}

impl Waiting {
    fn run(mut self) {
        loop {
            let ready = match self.wait() {
                Ok(ready) => ready,
                Err(error) => {
                    tracing::error!(path = %self.path.display(), %error, "no more clients are let in");
                    return;
                }
            };
            // From the last on, so that the places of those before stay.
            for index in ready.iter().rev() {
                match index.checked_sub(1) {
                    Some(client) => self.leave(client),
                    None => self.accept(),
                }
            }
        }
    }

    /// Which descriptors have something: the listener is the first.
    fn wait(&self) -> io::Result<Vec<usize>> {
        let sockets = self.clients.iter().map(|(_, socket)| socket.as_fd());
        let all = std::iter::once(self.listener.as_fd()).chain(sockets);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(index, _)| index).collect())
    }

    /// A client has nothing more to say by its socket, so one that can be read has closed, or is none.
    fn leave(&mut self, index: usize) {
        let (id, _) = self.clients.remove(index);
        self.tell(News::Left(id));
    }

    fn tell(&self, news: News) {
        // Nobody listens any more when the domain ends, and then the process does.
        let _ = self.sender.send(news);
        self.bell.ring();
    }

    fn accept(&mut self) {
        let socket = match self.listener.accept() {
            Ok((socket, _)) => socket,
            Err(error) => {
                if error.kind() != io::ErrorKind::WouldBlock {
                    tracing::warn!(%error, "a client could not be let in");
                    // Out of descriptors, most probably: they come back when clients go.
                    std::thread::sleep(Duration::from_millis(50));
                }
                return;
            }
        };
        let arrived = if self.clients.len() < CLIENTS_MAX {
            self.meet(&socket)
        } else {
            Err(format!(
                "this device has {CLIENTS_MAX} clients, which are as many as it takes; try again when one is gone"
            ))
        };
        match arrived {
            Ok((arrival, watched)) => {
                self.clients.push((arrival.id, watched));
                self.tell(News::Arrived(arrival));
            }
            Err(why) => {
                tracing::warn!(%why, "a client was refused");
                // It hears why if it still listens.
                let _ = pass::send(&socket, &Welcome(Err(why)).encode(), &[]);
            }
        }
    }

    /// Reads a client's first word, and looks at what came with it.
    fn meet(&mut self, socket: &UnixStream) -> Result<(Arrival, UnixStream), String> {
        let system = |error: io::Error| format!("its socket: {error}");
        socket.set_nonblocking(false).map_err(system)?;
        socket.set_read_timeout(Some(HELLO_MAX)).map_err(system)?;
        socket.set_write_timeout(Some(HELLO_MAX)).map_err(system)?;
        let mut hello = [0; HELLO_BYTES];
        let (bytes, fds) = pass::receive(socket, &mut hello).map_err(system)?;
        let Some(hello) = Hello::decode(&hello).filter(|_| bytes == HELLO_BYTES) else {
            return Err("it does not speak this version of the protocol; use the client library of this release".into());
        };
        let mut fds = fds.into_iter();
        let segment = fds.next().ok_or("it sent no segment")?;
        let events: Vec<OwnedFd> = fds.collect();
        if events.len() > usize::from(VECTORS_MAX) {
            return Err(format!("it sent {} events, and {VECTORS_MAX} are the most", events.len()));
        }
        let region = Region::from_fd(segment).map_err(|error| format!("its segment: {error}"))?;
        let object = |name: &str, least: u64, most: u64| {
            let object = region.find(name).map_err(|error| format!("its segment: {error}"))?;
            let fits = (least..=most).contains(&object.len()) && object.offset().is_multiple_of(4096);
            if fits { Ok(object) } else { Err(format!("its segment: {name} has {} bytes", object.len())) }
        };
        let registers = object(REGISTERS, REGISTERS_BYTES, REGISTERS_BYTES)?;
        let memory = object(MEMORY, 4096, MEMORY_BYTES_MAX)?;
        if registers.offset() < memory.offset() + memory.len() && memory.offset() < registers.offset() + registers.len()
        {
            return Err("its segment: registers and memory overlap".into());
        }
        self.next += 1;
        let watched = socket.try_clone().map_err(system)?;
        let socket = socket.try_clone().map_err(system)?;
        Ok((Arrival { id: self.next, name: hello.name().to_owned(), socket, registers, memory, events }, watched))
    }
}
