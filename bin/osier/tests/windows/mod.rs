//! What the tests of `osier window` and of what stands on it share: a device that serves, and programs that end.

#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Output, Stdio};
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::common::skipped;

use serde_json::Value;

/// Nothing here takes that long; what does hangs.
pub const PATIENCE: Duration = Duration::from_secs(240);

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The directory of this program's builds, with the two libraries in it.
pub fn builds() -> PathBuf {
    static LIBRARIES: Once = Once::new();
    LIBRARIES.call_once(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--offline", "--package", "osier-preload", "--package", "osier-capi"]);
        assert!(cargo.current_dir(root()).status().unwrap().success(), "the libraries can be built");
    });
    Path::new(env!("CARGO_BIN_EXE_osier")).parent().unwrap().to_owned()
}

/// A device that serves its window.
pub struct Device {
    pub process: Child,
    pub directory: tempfile::TempDir,
}

impl Device {
    /// With so many MiB of window and of cache, and other options. What it says goes where the test's own words do.
    pub fn start(window: u32, cache: u32, options: &[&str]) -> Device {
        let directory = tempfile::tempdir().unwrap();
        let mut command = serve(&directory.path().join("s"), window, cache);
        command.args(options);
        let (device, mut words) = Device::listen(command, directory);
        std::thread::spawn(move || {
            let mut line = String::new();
            while words.read_line(&mut line).is_ok_and(|length| length > 0) {
                eprint!("{line}");
                line.clear();
            }
        });
        device
    }

    /// By a command that serves at `s` in the directory; with it, what the device says from now on.
    pub fn listen(mut command: Command, directory: tempfile::TempDir) -> (Device, BufReader<ChildStderr>) {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut words = BufReader::new(process.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("osier: a window of") {
            line.clear();
            assert!(words.read_line(&mut line).unwrap() > 0, "it does not begin to serve");
        }
        (Device { process, directory }, words)
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("s")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// `osier run` with options, and a program.
    pub fn run(&self, options: &[&str], program: &[&str]) -> Command {
        builds();
        let mut command = osier();
        command.args(["--json", "run", "--device"]).arg(self.socket()).args(options).arg("--").args(program);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program to its end, and insists on its being well; its output and its figures.
    pub fn expect(&self, options: &[&str], program: &[&str]) -> (String, Value) {
        let stats = self.path("stats");
        let mut all = vec!["--stats", stats.to_str().unwrap()];
        all.extend(options);
        let (status, out, err) = finish(self.run(&all, program));
        assert!(status.success(), "{program:?}: {status}\n{out}\n{err}");
        let text = fs::read_to_string(&stats).unwrap();
        fs::remove_file(&stats).unwrap();
        (out, serde_json::from_str(text.lines().next().unwrap()).unwrap())
    }

    /// Does something with the device, and ends it; its report.
    pub fn stop_keeping(self, f: impl FnOnce(&Device)) -> Value {
        f(&self);
        self.stop()
    }

    /// Ends the device in order; its report.
    pub fn stop(mut self) -> Value {
        let pid = self.process.id().to_string();
        assert!(Command::new("kill").arg(&pid).status().unwrap().success());
        let mut report = String::new();
        self.process.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        assert!(await_end(&mut self.process).success());
        serde_json::from_str(&report).unwrap()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A user to whom the system gives no userfaultfd, and who may go where a device serves.
pub struct Nobody<'a> {
    device: &'a Device,
}

impl Nobody<'_> {
    pub fn new(device: &Device) -> Option<Nobody<'_>> {
        let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
        let is_root = fs::File::open("/proc/1/environ").is_ok();
        if setting.trim() != "0" || !is_root {
            skipped("it needs root, and a system that gives others no userfaultfd");
            return None;
        }
        let all = || fs::Permissions::from_mode(0o777);
        fs::set_permissions(device.directory.path(), all()).unwrap();
        fs::set_permissions(device.socket(), all()).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_osier"), device.path("osier")).unwrap();
        Some(Nobody { device })
    }

    /// `osier`, as this user runs it.
    pub fn osier(&self) -> Command {
        const NUMBER: u32 = 65_534;
        let mut command = Command::new(self.device.path("osier"));
        command.uid(NUMBER).gid(NUMBER).env("HOME", self.device.directory.path());
        command
    }
}

pub fn osier() -> Command {
    Command::new(env!("CARGO_BIN_EXE_osier"))
}

pub fn serve(socket: &Path, window: u32, cache: u32) -> Command {
    let mut command = osier();
    command.args(["--json", "window", "serve", "--socket"]).arg(socket);
    command.args(["--capacity", &format!("{window}MiB"), "--cache", &format!("{cache}MiB")]);
    command
}

pub fn await_end(process: &mut Child) -> ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = process.try_wait().unwrap() {
            return status;
        }
        if began.elapsed() > PATIENCE {
            let _ = process.kill();
            panic!("it hangs");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub fn finish(mut command: Command) -> (ExitStatus, String, String) {
    let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut err = process.stderr.take().unwrap();
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let mut out = String::new();
    process.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    (await_end(&mut process), out, errors.join().unwrap())
}

/// Runs a command that is refused; what it said.
pub fn refused(command: Command, code: i32) -> String {
    let (status, out, err) = finish(command);
    assert_eq!(status.code(), Some(code), "{out}\n{err}");
    serde_json::from_str::<Value>(err.lines().last().unwrap()).unwrap()["error"].as_str().unwrap().to_owned()
}

/// Whether this machine gives this user what handlers need.
pub fn may_handle_faults() -> bool {
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let may = setting.trim() == "1" || fs::File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    if !may {
        skipped("this user may not use userfaultfd");
    }
    may
}

/// The path of a program, unless it is not there.
pub fn installed(name: &str) -> Option<String> {
    let path = Path::new("/usr/bin").join(name);
    if !path.exists() {
        skipped(format_args!("{name} is not installed"));
        return None;
    }
    Some(path.to_str().unwrap().to_owned())
}

/// A program in C, compiled.
pub fn compile(source: &str, out: &Path, more: &[&str]) -> Option<String> {
    installed("cc")?;
    let source = root().join(source);
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(out).arg(source).args(more);
    let Output { status, stderr, .. } = cc.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    Some(out.to_str().unwrap().to_owned())
}
