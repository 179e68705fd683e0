//! The device's greeting, and the segments that come with it.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

use osier_device::window::message::VERSION;
use osier_pmr::{Region, pass};

use crate::error::WindowError;

/// The first word of a greeting.
const GREETING: u64 = u64::from_le_bytes(*b"OSIRWIN1");
const WELCOME_BYTES: usize = 128;
const NAME_AT: usize = 48;

/// What the device passed on.
pub struct Attached {
    pub device: String,
    pub pages: u64,
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
    let word = |index: usize| -> u64 {
        let bytes = &welcome[index * 8..index * 8 + 8];
        bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
    };
    if got != WELCOME_BYTES || word(0) != GREETING || word(1) != VERSION {
        return Err(stranger());
    }
    let length = (word(5) as usize).min(WELCOME_BYTES - NAME_AT);
    let text = String::from_utf8_lossy(&welcome[NAME_AT..NAME_AT + length]).into_owned();
    if word(2) != 0 {
        return Err(WindowError::Refused(text));
    }
    let [memory, segment, bell, pidfd]: [OwnedFd; 4] = fds.try_into().map_err(|_| stranger())?;
    let region = |fd| Region::from_fd(fd).map_err(|error| WindowError::Segment(error.to_string()));
    Ok(Attached { device: text, pages: word(3), memory, segment: region(segment)?, bell: region(bell)?, pidfd, socket })
}
