//! Streams of the C library on a path of `dax`: their bytes go by the calls of `files`, and not by the C library's own.
//!
//! Such a stream has no number: `fileno` fails with `EBADF`.

use std::ffi::{CStr, c_char, c_int, c_void};

use libc::{off64_t, size_t, ssize_t};

use crate::files::{self, Way};

/// How a stream is read, written, sought and closed: `cookie_io_functions_t` of glibc's `stdio.h`.
#[repr(C)]
struct Functions {
    read: extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut c_void;
}

/// The flags of `open` that a mode stands for.
pub fn flags_of(mode: &CStr) -> Option<c_int> {
    let (first, rest) = mode.to_bytes().split_first()?;
    let made = match first {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    // What follows a comma is of the text's encoding.
    let rest = rest.split(|letter| *letter == b',').next().unwrap_or_default();
    let has = |letter: u8, flag: c_int| if rest.contains(&letter) { flag } else { 0 };
    let access = match (rest.contains(&b'+'), first) {
        (true, _) => libc::O_RDWR,
        (false, b'r') => libc::O_RDONLY,
        (false, _) => libc::O_WRONLY,
    };
    Some(made | access | has(b'x', libc::O_EXCL) | has(b'e', libc::O_CLOEXEC))
}

/// A stream on a path's descriptor, which is closed with it.
pub fn open(fd: c_int, mode: &CStr) -> *mut c_void {
    // A number is as good as a pointer: nobody follows it.
    let cookie = fd as usize as *mut c_void;
    // SAFETY: the mode ends in zero, and the functions take such a number.
    unsafe { fopencookie(cookie, mode.as_ptr(), Functions { read, write, seek, close }) }
}

fn fd_of(cookie: *mut c_void) -> c_int {
    cookie as usize as c_int
}

extern "C" fn read(cookie: *mut c_void, to: *mut c_char, bytes: size_t) -> ssize_t {
    files::moved_at(fd_of(cookie), to.cast(), bytes, Way::Read)
}

extern "C" fn write(cookie: *mut c_void, from: *const c_char, bytes: size_t) -> ssize_t {
    // A failure is 0 here.
    files::moved_at(fd_of(cookie), from.cast_mut().cast(), bytes, Way::Write).max(0)
}

extern "C" fn seek(cookie: *mut c_void, place: *mut off64_t, whence: c_int) -> c_int {
    // SAFETY: the C library's variable, and a plain call.
    unsafe {
        let sought = libc::lseek64(fd_of(cookie), *place, whence);
        if sought < 0 {
            return -1;
        }
        *place = sought;
    }
    0
}

extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the descriptor is the stream's.
    unsafe { libc::close(fd_of(cookie)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_what_the_manual_page_says() {
        use libc::{O_APPEND, O_CLOEXEC, O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY};
        for (mode, flags) in [
            (c"r", O_RDONLY),
            (c"rb", O_RDONLY),
            (c"r+", O_RDWR),
            (c"rb+e", O_RDWR | O_CLOEXEC),
            (c"w", O_WRONLY | O_CREAT | O_TRUNC),
            (c"w+x", O_RDWR | O_CREAT | O_TRUNC | O_EXCL),
            (c"a", O_WRONLY | O_CREAT | O_APPEND),
            (c"a+,ccs=x+e", O_RDWR | O_CREAT | O_APPEND),
        ] {
            assert_eq!(flags_of(mode), Some(flags), "{mode:?}");
        }
        assert_eq!((flags_of(c""), flags_of(c"q")), (None, None));
    }
}
