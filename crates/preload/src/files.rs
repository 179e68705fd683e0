//! The calls that have to do with files, where they are of a path of `dax`. All others go to the C library.
//!
//! What is not here goes to the file that stands in, which has the path's size, and a place and locks of its own:
//! `lseek`, `ftruncate` (to its size alone), `flock`, `fcntl`, `dup` and `close` do what they do with a file.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libc::{iovec, mode_t, off_t, size_t, ssize_t};

use crate::dax::{self, Errno, Named};
use crate::own::{self, Next};
use crate::{mapping, streams};

/// A function of some names, with what each of them is elsewhere. A thread may be cancelled there.
macro_rules! exports {
    ([$($name:ident),+] $arguments:tt -> $result:ty, |$next:ident| $body:expr) => {
        $(export!($name $arguments -> $result, |$next| $body);)+
    };
}

macro_rules! export {
    ($name:ident ($($argument:ident: $type:ty),*) -> $result:ty, |$next:ident| $body:expr) => {
        #[unsafe(no_mangle)]
        extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            static NEXT: Next = Next::new(match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            });
            let $next = || {
                // SAFETY: the function of that name has this type.
                let next = unsafe {
                    std::mem::transmute::<*mut c_void, extern "C-unwind" fn($($type),*) -> $result>(NEXT.get())
                };
                next($($argument),*)
            };
            $body
        }
    };
}

/// A file's name, as callers give it.
type Text = *const c_char;
type Parts = *const iovec;

exports!([open, open64] (path: Text, flags: c_int, mode: mode_t) -> c_int,
    |next| opened(libc::AT_FDCWD, path, flags).unwrap_or_else(next));
exports!([openat, openat64] (directory: c_int, path: Text, flags: c_int, mode: mode_t) -> c_int,
    |next| opened(directory, path, flags).unwrap_or_else(next));
exports!([creat, creat64] (path: Text, mode: mode_t) -> c_int,
    |next| opened(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC).unwrap_or_else(next));
// What programs call that are built with checks of their buffers.
exports!([__open_2, __open64_2] (path: Text, flags: c_int) -> c_int,
    |next| opened(libc::AT_FDCWD, path, flags).unwrap_or_else(next));
exports!([__openat_2, __openat64_2] (directory: c_int, path: Text, flags: c_int) -> c_int,
    |next| opened(directory, path, flags).unwrap_or_else(next));

exports!([stat, stat64] (path: Text, to: *mut libc::stat) -> c_int,
    |next| looked_at(libc::AT_FDCWD, path, to).unwrap_or_else(next));
exports!([lstat, lstat64] (path: Text, to: *mut libc::stat) -> c_int,
    |next| looked_at(libc::AT_FDCWD, path, to).unwrap_or_else(next));
exports!([fstatat, fstatat64] (directory: c_int, path: Text, to: *mut libc::stat, flags: c_int) -> c_int,
    |next| looked_at(directory, path, to).unwrap_or_else(next));
// What programs call that were linked to a C library before 2.33.
exports!([__xstat, __xstat64, __lxstat, __lxstat64] (version: c_int, path: Text, to: *mut libc::stat) -> c_int,
    |next| looked_at(libc::AT_FDCWD, path, to).unwrap_or_else(next));
exports!([statx] (directory: c_int, path: Text, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int,
|next| match by_path(directory, path) {
    // SAFETY: the caller's buffer; the name is empty, which is said.
    Some(named) => unsafe {
        libc::syscall(libc::SYS_statx, named.fd, c"".as_ptr(), libc::AT_EMPTY_PATH, mask, to) as c_int
    },
    None => next(),
});
exports!([access] (path: Text, mode: c_int) -> c_int,
    |next| accessed(libc::AT_FDCWD, path, mode).unwrap_or_else(next));
exports!([faccessat] (directory: c_int, path: Text, mode: c_int, flags: c_int) -> c_int,
    |next| accessed(directory, path, mode).unwrap_or_else(next));

exports!([read] (fd: c_int, to: *mut c_void, bytes: size_t) -> ssize_t,
    |next| moved(fd, &[part(to, bytes)], None, Way::Read).unwrap_or_else(next));
exports!([pread, pread64] (fd: c_int, to: *mut c_void, bytes: size_t, offset: off_t) -> ssize_t,
    |next| moved(fd, &[part(to, bytes)], Some(offset), Way::Read).unwrap_or_else(next));
exports!([__read_chk] (fd: c_int, to: *mut c_void, bytes: size_t, room: size_t) -> ssize_t,
    |next| moved(fd, &[part(to, bytes.min(room))], None, Way::Read).unwrap_or_else(next));
exports!([__pread_chk, __pread64_chk]
    (fd: c_int, to: *mut c_void, bytes: size_t, offset: off_t, room: size_t) -> ssize_t,
    |next| moved(fd, &[part(to, bytes.min(room))], Some(offset), Way::Read).unwrap_or_else(next));
exports!([readv] (fd: c_int, parts: Parts, count: c_int) -> ssize_t,
    |next| moved_parts(fd, parts, count, None, Way::Read).unwrap_or_else(next));
exports!([preadv, preadv64] (fd: c_int, parts: Parts, count: c_int, offset: off_t) -> ssize_t,
    |next| moved_parts(fd, parts, count, Some(offset), Way::Read).unwrap_or_else(next));
exports!([preadv2, preadv64v2] (fd: c_int, parts: Parts, count: c_int, offset: off_t, flags: c_int) -> ssize_t,
    |next| moved_parts(fd, parts, count, placed(offset), Way::Read).unwrap_or_else(next));
exports!([write] (fd: c_int, from: *const c_void, bytes: size_t) -> ssize_t,
    |next| moved(fd, &[part(from.cast_mut(), bytes)], None, Way::Write).unwrap_or_else(next));
exports!([pwrite, pwrite64] (fd: c_int, from: *const c_void, bytes: size_t, offset: off_t) -> ssize_t,
    |next| moved(fd, &[part(from.cast_mut(), bytes)], Some(offset), Way::Write).unwrap_or_else(next));
exports!([writev] (fd: c_int, parts: Parts, count: c_int) -> ssize_t,
    |next| moved_parts(fd, parts, count, None, Way::Write).unwrap_or_else(next));
exports!([pwritev, pwritev64] (fd: c_int, parts: Parts, count: c_int, offset: off_t) -> ssize_t,
    |next| moved_parts(fd, parts, count, Some(offset), Way::Write).unwrap_or_else(next));
exports!([pwritev2, pwritev64v2] (fd: c_int, parts: Parts, count: c_int, offset: off_t, flags: c_int) -> ssize_t,
    |next| moved_parts(fd, parts, count, placed(offset), Way::Write).unwrap_or_else(next));

exports!([msync] (at: *mut c_void, bytes: size_t, flags: c_int) -> c_int,
    |next| mapping::msync(at as usize, bytes, flags).unwrap_or_else(next));
exports!([fsync, fdatasync] (fd: c_int) -> c_int,
|next| match dax::by_fd(fd) {
    Some(named) => code(dax::sync(named, 0..named.extent.bytes)),
    None => next(),
});
exports!([fallocate, fallocate64] (fd: c_int, mode: c_int, offset: off_t, bytes: off_t) -> c_int,
|next| match dax::by_fd(fd) {
    Some(named) => code(allocated(named, mode, offset, bytes)),
    None => next(),
});
exports!([posix_fallocate, posix_fallocate64] (fd: c_int, offset: off_t, bytes: off_t) -> c_int,
|next| match dax::by_fd(fd) {
    Some(named) => allocated(named, 0, offset, bytes).err().unwrap_or(0),
    None => next(),
});
// The kernel would take the bytes of the file that stands in; programs then read and write.
exports!([copy_file_range]
    (from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint) -> ssize_t,
    |next| refused(from, to).unwrap_or_else(next));
exports!([sendfile, sendfile64] (to: c_int, from: c_int, at: *mut off_t, bytes: size_t) -> ssize_t,
    |next| refused(from, to).unwrap_or_else(next));
exports!([splice]
    (from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, bytes: size_t, flags: c_uint) -> ssize_t,
    |next| refused(from, to).unwrap_or_else(next));
// The C library would read and write there by itself.
exports!([fdopen] (fd: c_int, mode: Text) -> *mut c_void,
    |next| streamed_fd(fd, mode).unwrap_or_else(next));
exports!([fopen, fopen64] (path: Text, mode: Text) -> *mut c_void,
    |next| streamed(path, mode).unwrap_or_else(next));
exports!([freopen, freopen64] (path: Text, mode: Text, stream: *mut c_void) -> *mut c_void,
|next| match by_path(libc::AT_FDCWD, path) {
    Some(named) => {
        let path = named.extent.path.display();
        say!("osier run: {path} is in a device's window, where no stream can be opened anew: use fopen or open");
        own::set_errno(libc::EINVAL);
        std::ptr::null_mut()
    }
    None => next(),
});

// The file that stands in has what a file of its kind has, and nothing that outlives it.
exports!([getxattr, lgetxattr] (path: Text, name: Text, to: *mut c_void, bytes: size_t) -> ssize_t,
|next| match by_path(libc::AT_FDCWD, path) {
    // SAFETY: the caller's name and buffer.
    Some(named) => unsafe { libc::fgetxattr(named.fd, name, to, bytes) },
    None => next(),
});
exports!([listxattr, llistxattr] (path: Text, to: *mut c_char, bytes: size_t) -> ssize_t,
|next| match by_path(libc::AT_FDCWD, path) {
    // SAFETY: the caller's buffer.
    Some(named) => unsafe { libc::flistxattr(named.fd, to, bytes) },
    None => next(),
});
exports!([setxattr, lsetxattr] (path: Text, name: Text, from: *const c_void, bytes: size_t, flags: c_int) -> c_int,
    |next| by_path(libc::AT_FDCWD, path).map_or_else(next, |_| fail(libc::EOPNOTSUPP)));
exports!([fsetxattr] (fd: c_int, name: Text, from: *const c_void, bytes: size_t, flags: c_int) -> c_int,
    |next| dax::by_fd(fd).map_or_else(next, |_| fail(libc::EOPNOTSUPP)));
exports!([removexattr, lremovexattr] (path: Text, name: Text) -> c_int,
    |next| by_path(libc::AT_FDCWD, path).map_or_else(next, |_| fail(libc::EOPNOTSUPP)));
exports!([fremovexattr] (fd: c_int, name: Text) -> c_int,
    |next| dax::by_fd(fd).map_or_else(next, |_| fail(libc::EOPNOTSUPP)));

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Read,
    Write,
}

fn fail(code: Errno) -> c_int {
    own::set_errno(code);
    -1
}

fn code(result: Result<(), Errno>) -> c_int {
    result.map_or_else(fail, |()| 0)
}

fn by_path(directory: c_int, path: Text) -> Option<&'static Named> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's promise: a name that ends in zero.
    let path = unsafe { CStr::from_ptr(path) };
    dax::by_path(directory, Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Opens a path: the file that stands in for it, anew. The size is what it is.
fn opened(directory: c_int, path: Text, flags: c_int) -> Option<c_int> {
    const NOT_PASSED: c_int = libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECT;
    let named = by_path(directory, path)?;
    let has = |wanted: c_int| flags & wanted == wanted;
    Some(if has(libc::O_CREAT | libc::O_EXCL) {
        fail(libc::EEXIST)
    } else if has(libc::O_DIRECTORY) {
        fail(libc::ENOTDIR)
    } else if has(libc::O_TRUNC) {
        fail(libc::EINVAL)
    } else if !dax::is_open(named) {
        fail(libc::ENXIO)
    } else {
        let path = format!("/proc/self/fd/{}\0", named.fd);
        // SAFETY: the name ends in zero.
        unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags & !NOT_PASSED, 0) as c_int }
    })
}

/// A stream on a path; none where the C library's own is wanted.
fn streamed(path: Text, mode: Text) -> Option<*mut c_void> {
    by_path(libc::AT_FDCWD, path)?;
    // SAFETY: the caller's promise: a mode that ends in zero.
    let mode = unsafe { CStr::from_ptr(mode) };
    let none = std::ptr::null_mut();
    let Some(flags) = streams::flags_of(mode) else {
        own::set_errno(libc::EINVAL);
        return Some(none);
    };
    let Some(fd) = opened(libc::AT_FDCWD, path, flags).filter(|fd| *fd >= 0) else { return Some(none) };
    let stream = streams::open(fd, mode);
    if stream.is_null() {
        // SAFETY: the descriptor is this call's own.
        unsafe { libc::close(fd) };
    }
    Some(stream)
}

/// The same on a descriptor, which has to be open for what is wanted.
fn streamed_fd(fd: c_int, mode: Text) -> Option<*mut c_void> {
    dax::by_fd(fd)?;
    // SAFETY: as above.
    let mode = unsafe { CStr::from_ptr(mode) };
    let has = dax::mode_of(fd) & libc::O_ACCMODE;
    let wanted = streams::flags_of(mode).map(|flags| flags & libc::O_ACCMODE);
    if wanted.is_none_or(|wanted| has != libc::O_RDWR && has != wanted) {
        own::set_errno(libc::EINVAL);
        return Some(std::ptr::null_mut());
    }
    Some(streams::open(fd, mode))
}

fn looked_at(directory: c_int, path: Text, to: *mut libc::stat) -> Option<c_int> {
    let named = by_path(directory, path)?;
    let Some(stat) = own::stat(named.fd) else { return Some(-1) };
    // SAFETY: the caller's buffer.
    unsafe { to.write(stat) };
    Some(0)
}

fn accessed(directory: c_int, path: Text, mode: c_int) -> Option<c_int> {
    by_path(directory, path)?;
    Some(if mode & libc::X_OK != 0 { fail(libc::EACCES) } else { 0 })
}

fn part(at: *mut c_void, bytes: size_t) -> iovec {
    iovec { iov_base: at, iov_len: bytes }
}

/// With these calls the descriptor's own place is said by a number.
fn placed(offset: off_t) -> Option<off_t> {
    (offset != -1).then_some(offset)
}

fn moved_parts(fd: c_int, parts: Parts, count: c_int, offset: Option<off_t>, way: Way) -> Option<ssize_t> {
    dax::by_fd(fd)?;
    let Some(count) = usize::try_from(count).ok().filter(|count| *count <= libc::UIO_MAXIOV as usize) else {
        return Some(fail(libc::EINVAL) as ssize_t);
    };
    // SAFETY: the caller's promise of so many parts.
    let parts = if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(parts, count) } };
    moved(fd, parts, offset, way)
}

/// Moves bytes at a descriptor's place; one that stands for no path any more is none.
pub fn moved_at(fd: c_int, at: *mut c_void, bytes: size_t, way: Way) -> ssize_t {
    moved(fd, &[part(at, bytes)], None, way).unwrap_or_else(|| fail(libc::EBADF) as ssize_t)
}

/// Moves bytes between the program's memory and a path, at an offset or at the descriptor's place.
fn moved(fd: c_int, parts: &[iovec], offset: Option<off_t>, way: Way) -> Option<ssize_t> {
    let named = dax::by_fd(fd)?;
    Some(move_all(named, fd, parts, offset, way).map_or_else(|code| fail(code) as ssize_t, |moved| moved as ssize_t))
}

fn move_all(named: &'static Named, fd: c_int, parts: &[iovec], offset: Option<off_t>, way: Way) -> Result<u64, Errno> {
    let mode = dax::mode_of(fd);
    let refused = if way == Way::Read { libc::O_WRONLY } else { libc::O_RDONLY };
    if mode & libc::O_ACCMODE == refused {
        return Err(libc::EBADF);
    }
    let is_appended = way == Way::Write && mode & libc::O_APPEND != 0;
    // SAFETY: a plain call.
    let own_place = || unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) };
    let start = if is_appended { named.extent.bytes as off_t } else { offset.unwrap_or_else(own_place) };
    let mut at = start;
    for part in parts {
        let moved = match way {
            Way::Read => dax::read(named, part.iov_base.cast(), part.iov_len, at),
            Way::Write => dax::write(named, part.iov_base.cast(), part.iov_len, at),
        };
        match moved {
            Err(code) if at == start => return Err(code),
            Err(_) => break,
            Ok(moved) => at += moved as off_t,
        }
        if moved != Ok(part.iov_len) {
            break;
        }
    }
    if way == Way::Write && mode & libc::O_DSYNC != 0 && at > start {
        dax::sync(named, start as u64..at as u64)?;
    }
    if offset.is_none() {
        // SAFETY: a plain call.
        unsafe { libc::lseek(fd, at, libc::SEEK_SET) };
    }
    Ok((at - start) as u64)
}

/// All bytes of a path are there; nothing else can be.
fn allocated(named: &Named, mode: c_int, offset: off_t, bytes: off_t) -> Result<(), Errno> {
    let end = offset.checked_add(bytes).filter(|_| offset >= 0 && bytes > 0).ok_or(libc::EINVAL)?;
    if mode & !libc::FALLOC_FL_KEEP_SIZE != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    if end as u64 > named.extent.bytes { Err(libc::ENOSPC) } else { Ok(()) }
}

/// What a call has of a path's descriptor that it cannot have.
fn refused(a: c_int, b: c_int) -> Option<ssize_t> {
    dax::by_fd(a).or_else(|| dax::by_fd(b))?;
    Some(fail(libc::EINVAL) as ssize_t)
}
