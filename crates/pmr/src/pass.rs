//! Descriptors passed to another process over a Unix socket, with a message beside them.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Most descriptors of a message.
pub const PASSED_MAX: usize = 8;
/// Room for that many in a control message, aligned as its header has to be.
const CONTROL_WORDS: usize = 8;

const _: () = {
    // SAFETY: a computation of sizes.
    let needed = unsafe { libc::CMSG_SPACE((PASSED_MAX * size_of::<RawFd>()) as u32) };
    assert!(needed as usize <= CONTROL_WORDS * 8);
};

/// Longest path that a socket's address holds (`sun_path` of unix(7), with its zero).
const PATH_BYTES_MAX: usize = 107;

/// A way to a socket that fits its address: the path, or by a descriptor of its directory where that is too long.
fn way_to(path: &Path) -> io::Result<(Option<File>, PathBuf)> {
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return Ok((None, path.to_owned()));
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let directory = File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(directory)?;
    let way = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok((Some(directory), way))
}

/// Listens at a path of any length.
///
/// # Errors
/// What the system refused.
pub fn listen(path: &Path) -> io::Result<UnixListener> {
    let (_directory, way) = way_to(path)?;
    UnixListener::bind(way)
}

/// Connects to who listens at a path of any length.
///
/// # Errors
/// What the system refused.
pub fn connect(path: &Path) -> io::Result<UnixStream> {
    let (_directory, way) = way_to(path)?;
    UnixStream::connect(way)
}

/// Sends a message, at least one byte long, with descriptors.
///
/// # Errors
/// What the system refused, or that the message went in part.
///
/// # Panics
/// With no byte or too many descriptors.
pub fn send(socket: &UnixStream, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(
        !message.is_empty() && fds.len() <= PASSED_MAX,
        "a message has a byte and at most {PASSED_MAX} descriptors"
    );
    let mut part = libc::iovec { iov_base: message.as_ptr().cast_mut().cast(), iov_len: message.len() };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: an all-zero msghdr is a valid value of that plain struct.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: a computation of sizes.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(bytes) } as _;
        // SAFETY: the control buffer has room for one header and these descriptors, as asserted above.
        unsafe {
            let first = libc::CMSG_FIRSTHDR(&raw const header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let data = libc::CMSG_DATA(first).cast::<RawFd>();
            for (index, fd) in fds.iter().enumerate() {
                data.add(index).write_unaligned(fd.as_raw_fd());
            }
        }
    }
    // SAFETY: everything that the header points to lives until the call ends.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
    match usize::try_from(sent) {
        Ok(sent) if sent == message.len() => Ok(()),
        Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives a message of at most `message.len()` bytes and its descriptors; zero bytes mean that the other side closed.
///
/// # Errors
/// What the system refused.
pub fn receive(socket: &UnixStream, message: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut part = libc::iovec { iov_base: message.as_mut_ptr().cast(), iov_len: message.len() };
    let mut control = [0_u64; CONTROL_WORDS];
    // SAFETY: an all-zero msghdr is a valid value of that plain struct.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: everything that the header points to lives until the call ends, and is writable.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let mut fds = Vec::new();
    // SAFETY: the kernel filled header and control buffer in; the macros stay within its length. Each descriptor is new
    // and this process's own.
    unsafe {
        let mut next = libc::CMSG_FIRSTHDR(&raw const header);
        while !next.is_null() {
            if ((*next).cmsg_level, (*next).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let count = ((*next).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(next).cast::<RawFd>();
                fds.extend((0..count).map(|index| OwnedFd::from_raw_fd(data.add(index).read_unaligned())));
            }
            next = libc::CMSG_NXTHDR(&raw const header, next);
        }
    }
    Ok((got, fds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_is_reached_however_long_its_path_is() {
        let home = tempfile::tempdir().unwrap();
        for length in [1, 90, 250] {
            let directory = home.path().join("x".repeat(length));
            std::fs::create_dir(&directory).unwrap();
            let path = directory.join("socket");
            let listener = listen(&path).unwrap();
            assert!(path.exists() && connect(&path).is_ok() && listener.accept().is_ok());
            assert!(connect(&directory.join("none")).is_err());
        }
    }

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, mut writer) = io::pipe().unwrap();
        send(&here, b"two", &[reader.as_fd(), writer.as_fd()]).unwrap();
        send(&here, b"none", &[]).unwrap();
        let mut message = [0; 3];
        let (got, mut fds) = receive(&there, &mut message).unwrap();
        assert_eq!((got, &message, fds.len()), (3, b"two", 2));
        let mut passed = File::from(fds.pop().unwrap());
        passed.write_all(b"x").unwrap();
        drop((passed, &mut writer));
        let mut byte = [0];
        reader.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        let mut message = [0; 8];
        assert_eq!(receive(&there, &mut message).unwrap().0, 4);
        drop(here);
        assert_eq!(receive(&there, &mut message).unwrap().0, 0);
    }
}
