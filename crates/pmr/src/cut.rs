//! What becomes of a process that touches a page which somebody cut off the region's file.
//!
//! The kernel sends it SIGBUS, which kills it without a word. To look at the file's length before each touch
//! would not help: it can be cut in between. So a process that has something to say leaves its last words here, and the
//! handler says them. It calls nothing but what POSIX allows in a handler: `fstat`, `write`, `_exit`.

use crate::error::{PmrError, Result};
use crate::region::Region;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Digits of the longest length.
const DIGITS_MAX: usize = 20;

/// A region, and what to say when it was cut.
struct LastWords {
    base: usize,
    bytes: usize,
    fd: OwnedFd,
    before: String,
    after: String,
    code: libc::c_int,
}

/// The newest; none is ever freed, because the handler may be reading it.
static LAST_WORDS: AtomicPtr<LastWords> = AtomicPtr::new(std::ptr::null_mut());

impl Region {
    /// From now on, should this process touch a page that was cut off this region's file, it prints `before`, the
    /// file's length, `after` and a newline to standard error, and ends at once with `code`. It holds for the region
    /// that this was called for last; a program calls it a few times, for what each call takes stays taken.
    ///
    /// # Errors
    /// What the system refused.
    pub fn end_if_cut(&self, before: &str, after: &str, code: i32) -> Result<()> {
        let failed = |source| PmrError::Io { what: "prepare for a cut", on: self.shared.on.clone(), source };
        let words = LastWords {
            base: self.shared.mapping.range(0, 0).as_ptr().addr(),
            bytes: self.shared.mapping.bytes(),
            fd: self.as_fd().try_clone_to_owned().map_err(failed)?,
            before: before.to_owned(),
            after: after.to_owned() + "\n",
            code,
        };
        LAST_WORDS.store(Box::into_raw(Box::new(words)), Ordering::Release);
        // SAFETY: all zeroes is a valid `sigaction`: no flags, an empty mask, the default handler.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_flags = libc::SA_SIGINFO;
        action.sa_sigaction = on_bus_error as extern "C" fn(_, _, _) as libc::sighandler_t;
        // SAFETY: the handler is async-signal-safe, and the structure outlives the call.
        match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(failed(std::io::Error::last_os_error())),
        }
    }
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: what is stored there is never freed.
    let words = unsafe { LAST_WORDS.load(Ordering::Acquire).as_ref() };
    // SAFETY: the kernel hands a valid structure over, and a SIGBUS of its own making has an address.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    if code == libc::BUS_ADRERR
        && let Some(words) = words.filter(|words| address.wrapping_sub(words.base) < words.bytes)
    {
        words.say_and_end_if_cut();
    }
    // Nothing was cut: it kills as it would have. An access is made again by itself; what a process sent (no code of
    // the kernel's is 0 or less) comes once, so it is sent again, and waits until this handler returns.
    // SAFETY: both are async-signal-safe, and the default is always a valid handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        if code <= 0 {
            libc::raise(signal);
        }
    }
}

impl LastWords {
    /// Returns where the file is whole: then its disk could not give the page.
    fn say_and_end_if_cut(&self) {
        // SAFETY: all zeroes is a valid `stat`, which the call fills.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: async-signal-safe; should it fail, the length reads as 0.
        unsafe { libc::fstat(self.fd.as_fd().as_raw_fd(), &raw mut found) };
        if found.st_size.unsigned_abs() >= self.bytes as u64 {
            return;
        }
        let mut digits = [0; DIGITS_MAX];
        for text in [self.before.as_bytes(), decimal(found.st_size.unsigned_abs(), &mut digits), self.after.as_bytes()]
        {
            // SAFETY: async-signal-safe, over bytes that are borrowed; nobody is left to hear of a failure.
            unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        }
        // SAFETY: async-signal-safe; no destructor has to run: what a killed process leaves is taken up.
        unsafe { libc::_exit(self.code) }
    }
}

/// A number's digits. Formatting may allocate, which a handler must not.
fn decimal(mut number: u64, digits: &mut [u8; DIGITS_MAX]) -> &[u8] {
    let mut first = DIGITS_MAX;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[first..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, ObjectKind};
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Output};

    const BYTES: u64 = 1 << 20;
    const CODE: i32 = 5;
    const HERE: &str = "cut::tests::a_process_that_touches_what_was_cut_off_says_so";
    /// Names the file to the process that is to die, and whether it has last words.
    const VICTIM: &str = "OSIER_TEST_CUT";

    /// Opens the region, and either cuts it and touches what is gone, or is sent the signal.
    fn die(file: &str, how: &str) {
        let region = Region::open(file.as_ref()).unwrap();
        let word = region.find("word").unwrap();
        if how != "-" {
            region.end_if_cut("it has ", " bytes left", CODE).unwrap();
        }
        if how == "!" {
            // SAFETY: a plain call, which ends this process.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        std::fs::File::options().write(true).open(file).unwrap().set_len(4096).unwrap();
        word.word64(0).store(1, Ordering::Release);
    }

    fn victim(file: &std::path::Path, how: &str) -> Output {
        let program = std::env::current_exe().unwrap();
        let named = format!("{how}{}", file.display());
        Command::new(program).args(["--exact", HERE, "--nocapture"]).env(VICTIM, named).output().unwrap()
    }

    #[test]
    fn a_process_that_touches_what_was_cut_off_says_so() {
        if let Ok(named) = std::env::var(VICTIM) {
            let (how, file) = named.split_at(1);
            return die(file, how);
        }
        let home = tempfile::tempdir().unwrap();
        for (how, name) in [("+", "a"), ("-", "b"), ("!", "c")] {
            let path = home.path().join(name);
            let region = Region::create(&Backing::File(path.clone()), BYTES, [0; 16]).unwrap();
            region.allocate("word", ObjectKind::STATISTICS, BYTES / 4, 4096).unwrap();
            let ended = victim(&path, how);
            let said = String::from_utf8_lossy(&ended.stderr).into_owned();
            let expected = if how == "+" { (Some(CODE), None) } else { (None, Some(libc::SIGBUS)) };
            assert_eq!((ended.status.code(), ended.status.signal()), expected, "{said}");
            assert_eq!(said.contains("it has 4096 bytes left\n"), how == "+", "{said}");
        }
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 10, 4096, u64::MAX] {
            assert_eq!(decimal(number, &mut [0; DIGITS_MAX]), number.to_string().as_bytes());
        }
    }
}
