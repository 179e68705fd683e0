//! The system calls of a connection that the standard library has no safe form of.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Whether a call may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    Wait,
    DoNotWait,
}

/// Reads what is there, into `slices` one after the other. `None`: nothing is there, and it was not to wait.
pub fn receive(socket: BorrowedFd<'_>, slices: &mut [IoSliceMut<'_>], patience: Patience) -> io::Result<Option<usize>> {
    let flags = if patience == Patience::Wait { 0 } else { libc::MSG_DONTWAIT };
    // SAFETY: all zeroes is a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_mut_ptr().cast();
    message.msg_iovlen = slices.len() as _;
    // SAFETY: `IoSliceMut` has the layout of `iovec`, and the slices live and are writable until the call returns.
    answer(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })
}

/// Sends as much of `slices` as there is room for. `None`: there is none.
pub fn send(socket: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    // SAFETY: all zeroes is a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = slices.as_ptr().cast_mut().cast();
    message.msg_iovlen = slices.len() as _;
    // SAFETY: `IoSlice` has the layout of `iovec`, and the slices live until the call returns, which only reads them.
    answer(unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) })
}

fn answer(result: isize) -> io::Result<Option<usize>> {
    if result >= 0 {
        return Ok(Some(result as usize));
    }
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
        _ => Err(error),
    }
}

/// Ends one or both directions of a connection; whoever waits for it, wakes.
pub fn shut_down(socket: BorrowedFd<'_>, how: std::net::Shutdown) {
    let how = match how {
        std::net::Shutdown::Read => libc::SHUT_RD,
        std::net::Shutdown::Write => libc::SHUT_WR,
        std::net::Shutdown::Both => libc::SHUT_RDWR,
    };
    // SAFETY: a plain call. An error means that the other end has gone, which is as well.
    unsafe { libc::shutdown(socket.as_raw_fd(), how) };
}

/// Whether the other end has closed a connection, or its direction, whatever of what it sent is not read yet.
pub fn has_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut entry = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one live entry, and it does not wait.
    unsafe { libc::poll(&raw mut entry, 1, 0) > 0 }
}

/// What is waited for.
pub struct Wait<'a> {
    pub fd: BorrowedFd<'a>,
    pub to_read: bool,
    pub to_write: bool,
}

/// Waits until something of it is ready, or for `milliseconds` at most.
pub fn wait(waits: &[Wait<'_>], milliseconds: Option<u32>) -> io::Result<()> {
    const ENTRIES_MAX: usize = 8;
    assert!(waits.len() <= ENTRIES_MAX);
    let mut entries = [libc::pollfd { fd: -1, events: 0, revents: 0 }; ENTRIES_MAX];
    for (entry, wait) in entries.iter_mut().zip(waits) {
        entry.fd = wait.fd.as_raw_fd();
        entry.events = if wait.to_read { libc::POLLIN } else { 0 } | if wait.to_write { libc::POLLOUT } else { 0 };
    }
    let timeout = milliseconds.map_or(-1, |milliseconds| milliseconds.min(i32::MAX as u32) as i32);
    // SAFETY: as many live entries as are named.
    let result = unsafe { libc::poll(entries.as_mut_ptr(), waits.len() as libc::nfds_t, timeout) };
    if result >= 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

/// Lets another thread wake one that polls.
pub struct Waker(OwnedFd);

impl Waker {
    pub fn new() -> io::Result<Waker> {
        // SAFETY: a plain call.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and owned by nobody else.
        Ok(Waker(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Readable from now on.
    pub fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the eight bytes live. It fails only when the count is full, and then it is readable.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// No longer readable.
    pub fn clear(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: the eight bytes live and are writable. It fails only when the count is zero.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
