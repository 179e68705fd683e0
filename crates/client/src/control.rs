//! Commands and figures without a window: over the device's control socket, from programs that cannot map its memory.

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use osier_cache::parse_policy;
use osier_device::window::request::{Answer, Request};
use osier_device::window::{Command, Report};

use crate::error::WindowError;

/// Bytes of an answer, at most: figures of as many programs as there may be are a fraction of it.
const ANSWER_MAX: u64 = 4 << 20;

/// The control socket of the device that serves at a socket.
#[must_use]
pub fn control_of(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".control");
    name.into()
}

/// A connection to a device's control socket. What is pinned over it stays pinned when it is closed, and belongs to all
/// who use the socket; the pins of programs are their own.
#[derive(Debug)]
pub struct Control {
    stream: BufReader<UnixStream>,
    socket: PathBuf,
}

impl Control {
    /// Connects to the device that serves at `socket`.
    ///
    /// # Errors
    /// Nobody serves there.
    pub fn open(socket: &Path) -> Result<Control, WindowError> {
        let connect = |source| WindowError::Connect { socket: socket.to_owned(), source };
        let stream = UnixStream::connect(control_of(socket)).map_err(connect)?;
        Ok(Control { stream: BufReader::new(stream), socket: socket.to_owned() })
    }

    /// As [`crate::Window::prefetch`].
    ///
    /// # Errors
    /// Why it was not done.
    pub fn prefetch(&mut self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Prefetch(pages))
    }

    /// As [`crate::Window::pin`].
    ///
    /// # Errors
    /// Why it was not done.
    pub fn pin(&mut self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Pin(pages))
    }

    /// Takes pins off that were made over control sockets.
    ///
    /// # Errors
    /// Why it was not done.
    pub fn unpin(&mut self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Unpin(pages))
    }

    /// As [`crate::Window::evict`].
    ///
    /// # Errors
    /// Why it was not done.
    pub fn evict(&mut self, pages: Range<u64>) -> Result<Report, WindowError> {
        self.command(Command::Evict(pages))
    }

    /// As [`crate::Window::set_policy`].
    ///
    /// # Errors
    /// Why it was not done.
    pub fn set_policy(&mut self, policy: &str) -> Result<Report, WindowError> {
        let (name, parameters) = parse_policy(policy)?;
        self.command(Command::Policy { name: name.to_owned(), parameters })
    }

    /// The device's figures, as JSON.
    ///
    /// # Errors
    /// The device has died.
    pub fn stats(&mut self) -> Result<String, WindowError> {
        match self.ask(&Request::Stats)? {
            Answer::Stats(json) => Ok(json),
            Answer::Error(why) => Err(WindowError::Control(why)),
            Answer::Ended(_) => Err(self.stranger()),
        }
    }

    fn command(&mut self, command: Command) -> Result<Report, WindowError> {
        match self.ask(&Request::Command(command))? {
            Answer::Ended(report) => Ok(report),
            Answer::Error(why) => Err(WindowError::Control(why)),
            Answer::Stats(_) => Err(self.stranger()),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Answer, WindowError> {
        let died = |source| WindowError::Connect { socket: self.socket.clone(), source };
        let mut line = Vec::new();
        let stream = &mut self.stream;
        stream.get_mut().write_all(format!("{request}\n").as_bytes()).map_err(died)?;
        stream.by_ref().take(ANSWER_MAX).read_until(b'\n', &mut line).map_err(died)?;
        let text = String::from_utf8_lossy(&line);
        let Some(text) = text.strip_suffix('\n') else {
            return Err(WindowError::DeviceDied { device: self.socket.display().to_string() });
        };
        Answer::parse(text).ok_or_else(|| self.stranger())
    }

    fn stranger(&self) -> WindowError {
        WindowError::Stranger { socket: self.socket.clone() }
    }
}
