//! The device's greeting, and the segments that come with it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use osier_device::window::message::{WELCOME_BYTES, Welcome};
use osier_pmr::{Region, pass};

use crate::error::WindowError;

/// What the device passed on.
pub struct Attached {
    pub device: String,
    pub pages: u64,
    /// Nanoseconds of a load that hits the device's cache.
    pub hit_ns: u64,
    pub memory: OwnedFd,
    pub segment: Region,
    pub bell: Region,
    pub pidfd: OwnedFd,
    /// Open as long as the window is.
    pub socket: UnixStream,
}

/// Attaches to the device that serves at a socket.
pub fn attach(path: &Path) -> Result<Attached, WindowError> {
    let connect = |source| WindowError::Connect { socket: path.to_owned(), source };
    let stranger = || WindowError::Stranger { socket: path.to_owned() };
    let socket = UnixStream::connect(path).map_err(connect)?;
    let mut welcome = [0; WELCOME_BYTES];
    let (got, fds) = pass::receive(&socket, &mut welcome).map_err(connect)?;
    let welcome = Welcome::decode(&welcome).filter(|_| got == WELCOME_BYTES).ok_or_else(stranger)?;
    let device = welcome.text.map_err(WindowError::Refused)?;
    let (pages, hit_ns) = (welcome.pages, welcome.hit_ns);
    let [memory, segment, bell, pidfd]: [OwnedFd; 4] = fds.try_into().map_err(|_| stranger())?;
    let region = |fd| Region::from_fd(fd).map_err(|error| WindowError::Segment(error.to_string()));
    Ok(Attached { device, pages, hit_ns, memory, segment: region(segment)?, bell: region(bell)?, pidfd, socket })
}
