//! `osier device` as a user meets it: output, exit codes, errors.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers too")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A home of its own, and no trace of the user's environment.
struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_osier"));
        command.args(args).env_clear().env("OSIER_HOME", self.home()).env("HOME", self.dir.path());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs, and insists on the exit code; gives back what was printed.
    fn expect(&self, code: i32, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let (out, err) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(code), "{args:?}\n{out}\n{err}");
        (out, err)
    }

    fn with_device() -> Self {
        let home = Self::new();
        home.expect(0, &["device", "create", "a", "--capacity", "64MiB", "--pmr", "1MiB"]);
        home
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

fn spoil(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_device_is_made_listed_shown_checked_and_removed() {
    let home = Home::new();
    let (out, _) = home.expect(0, &["device", "ls"]);
    assert!(out.contains("no devices") && out.contains("create"), "{out}");
    let create = ["device", "create", "a", "--profile", "smartssd", "--capacity", "64MiB", "--pmr", "1MiB"];
    let (out, _) = home.expect(0, &create);
    assert!(out.contains("made device a (smartssd, 64 MiB)"), "{out}");
    let (out, _) = home.expect(0, &["device", "ls"]);
    let row: Vec<&str> = out.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..5], ["a", "stopped", "smartssd", "64", "MiB"]);
    let (out, _) = home.expect(0, &["device", "show", "a"]);
    assert!(out.contains("16384 blocks of 4096 bytes") && out.contains("lock           free"), "{out}");
    let (out, _) = home.expect(0, &["device", "check", "a"]);
    assert!(out.ends_with("device a is sound\n"), "{out}");
    let (out, _) = home.expect(0, &["device", "rm", "a"]);
    assert_eq!(out, "removed device a\n");
    assert_eq!(fs::read_dir(home.home()).unwrap().count(), 0);
}

#[test]
fn programs_get_json() {
    let home = Home::with_device();
    let (out, _) = home.expect(0, &["device", "show", "a", "--json"]);
    let shown = json(&out);
    assert_eq!(shown["capacity_bytes"], 64 << 20);
    assert_eq!((&shown["state"], &shown["media"]), (&"stopped".into(), &"file".into()));
    let (out, _) = home.expect(0, &["--json", "device", "ls"]);
    assert_eq!(json(&out)[0], shown);
    let (out, _) = home.expect(0, &["device", "check", "a", "--json"]);
    assert_eq!(json(&out)["sound"], true);
    let (_, err) = home.expect(8, &["device", "show", "b", "--json"]);
    assert_eq!(json(&err)["exit"], 8);
}

#[test]
fn a_path_is_taken_as_it_is() {
    let home = Home::new();
    let path = home.dir.path().join("elsewhere");
    let path = path.to_str().unwrap();
    home.expect(0, &["device", "create", path, "--capacity", "64MiB", "--pmr", "1MiB", "--media", "none"]);
    home.expect(0, &["device", "check", path]);
    assert!(!home.home().exists(), "a path needs no home");
}

#[test]
fn wrong_input_is_refused_by_name_and_leaves_nothing() {
    let home = Home::new();
    let file = |name: &str, text: &str| {
        let path = home.dir.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let no_profile = file("p.toml", "[device]\nname = \"x\"\nspeed = 1\n");
    let plain_file = file("plain", "");
    let cases: [(&[&str], &str); 11] = [
        (&["--capacity", "lots"], "`lots` is not a size"),
        (&["--capacity", "5000"], "multiple of 4096"),
        (&["--capacity", "0"], "multiple of 4096"),
        (&["--capacity", "8192TiB"], "holds at most"),
        (&["--pmr", "4096"], "persistent memory region"),
        (&["--profile", "toaster"], "wio"),
        (&["--profile", &no_profile], "line 3"),
        (&["--profile", "./absent.toml"], "absent.toml"),
        (&["--media", "tape"], "`tape` is no kind of media"),
        (&["--media", &plain_file], "not a block device"),
        (&["--media", "/dev/absent"], "/dev/absent"),
    ];
    for (args, expected) in cases {
        let create = [&["device", "create", "a"], args].concat();
        let (_, err) = home.expect(3, &create);
        assert!(err.contains(expected), "{args:?}: {err}");
        assert!(err.starts_with("osier: ") && err.lines().count() == 1, "{err}");
    }
    for name in ["..", ".a", "-", "a b"] {
        let (_, err) = home.expect(3, &["device", "create", "--", name]);
        assert!(err.contains("cannot name a device"), "{err}");
    }
    assert_eq!(fs::read_dir(home.home()).unwrap().count(), 0);
}

#[test]
fn a_name_that_is_taken_or_missing_is_told_so() {
    let home = Home::with_device();
    let (_, err) = home.expect(3, &["device", "create", "a"]);
    assert!(err.contains("exists already"), "{err}");
    for command in ["show", "check", "rm"] {
        let (_, err) = home.expect(8, &["device", command, "b"]);
        assert!(err.contains("no device image"), "{err}");
    }
    home.expect(8, &["device", "rm", "a", "b"]);
    home.expect(0, &["device", "show", "a"]);
}

#[test]
fn an_owner_is_named_and_protects_its_device() {
    let home = Home::with_device();
    let image = osier_image::Image::open(&home.home().join("a"), &|_, _| Ok(())).unwrap();
    let (_, err) = home.expect(4, &["device", "rm", "a"]);
    assert!(err.contains(&format!("pid {}", std::process::id())) && err.contains("since 2"), "{err}");
    let (out, _) = home.expect(0, &["device", "ls"]);
    assert!(out.contains("in use"), "{out}");
    home.expect(0, &["device", "check", "a"]);
    home.expect(0, &["device", "check", "a", "--restore-copy"]);
    drop(image);
    home.expect(0, &["device", "rm", "a"]);
}

#[test]
fn damage_is_reported_never_repaired_unasked_and_restored_on_request() {
    let home = Home::with_device();
    let file = home.home().join("a/superblock");
    spoil(&file, 100);
    let damaged = fs::read(&file).unwrap();
    let (out, _) = home.expect(5, &["device", "check", "a"]);
    assert!(out.contains("copy 0 is damaged") && out.contains("damaged in one place"), "{out}");
    let (out, _) = home.expect(0, &["device", "ls"]);
    assert!(out.contains("damaged"), "{out}");
    let (out, _) = home.expect(0, &["device", "show", "a"]);
    assert!(out.contains("superblock copy 0"), "{out}");
    assert_eq!(fs::read(&file).unwrap(), damaged);
    home.expect(0, &["device", "check", "a", "--restore-copy"]);
    let (out, _) = home.expect(0, &["device", "check", "a"]);
    assert!(out.contains("superblock.damaged"), "{out}");
    spoil(&file, 100);
    spoil(&file, 5000);
    let (_, err) = home.expect(5, &["device", "show", "a"]);
    assert!(err.contains("both copies"), "{err}");
    home.expect(5, &["device", "check", "a"]);
    home.expect(0, &["device", "rm", "a"]);
}

#[test]
fn what_is_not_an_image_is_never_removed() {
    let home = Home::with_device();
    let dir = home.home().join("mine");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("thesis"), "years").unwrap();
    let (_, err) = home.expect(3, &["device", "rm", "mine"]);
    assert!(err.contains("not a device image"), "{err}");
    fs::write(home.home().join("a/notes"), "mine").unwrap();
    let (_, err) = home.expect(3, &["device", "rm", "a"]);
    assert!(err.contains("notes"), "{err}");
    assert!(dir.join("thesis").exists() && home.home().join("a/media").exists());
}

#[test]
fn the_configuration_is_read_and_refused_by_key_and_line() {
    let home = Home::new();
    let config = home.dir.path().join(".config/osier/config.toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    fs::write(&config, "[device]\nprofile = \"scaleflux\"\ncapacity = \"96MiB\"\npmr = \"1MiB\"\nmedia = \"none\"\n")
        .unwrap();
    home.expect(0, &["device", "create", "a"]);
    let (out, _) = home.expect(0, &["device", "show", "a", "--json"]);
    let shown = json(&out);
    assert_eq!((&shown["profile"], &shown["capacity_bytes"]), (&"scaleflux".into(), &(96 << 20).into()));
    home.expect(0, &["device", "create", "b", "--capacity", "64MiB"]);
    assert_eq!(json(&home.expect(0, &["device", "show", "b", "--json"]).0)["capacity_bytes"], 64 << 20);
    fs::write(&config, "\n\n[device]\ncapcity = \"1GiB\"\n").unwrap();
    let (_, err) = home.expect(3, &["device", "ls"]);
    assert!(err.contains("config.toml:4: ") && err.contains("`capcity`"), "{err}");
    home.expect(3, &["device", "ls", "--config", "/absent/config.toml"]);
}

#[test]
fn help_lists_exit_codes_and_a_wrong_command_line_is_code_2() {
    let home = Home::new();
    let (out, _) = home.expect(0, &["--help"]);
    assert!(out.contains("Exit codes:") && out.contains("4  another process owns the device"), "{out}");
    for args in [&["device", "create"][..], &["devices"], &["device", "ls", "--nonsense"], &[]] {
        home.expect(2, args);
    }
    let bad = home.command(&["device", "ls"]).env("OSIER_LOG", "=,=").output().unwrap();
    assert_eq!(bad.status.code(), Some(3));
}

#[test]
fn every_built_in_profile_makes_a_sound_device_and_prints_itself() {
    let home = Home::new();
    let (out, _) = home.expect(0, &["device", "profiles", "--json"]);
    let names: Vec<String> =
        json(&out).as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names.len(), 10);
    for name in names {
        home.expect(0, &["device", "create", &name, "--profile", &name, "--capacity", "64MiB", "--pmr", "1MiB"]);
        home.expect(0, &["device", "check", &name]);
        let (text, _) = home.expect(0, &["device", "profiles", &name]);
        assert_eq!(fs::read_to_string(home.home().join(&name).join("profile.toml")).unwrap(), text);
    }
}

#[test]
fn a_reader_that_closes_early_is_no_error() {
    let home = Home::with_device();
    let script = format!("{} device profiles wio | true", env!("CARGO_BIN_EXE_osier"));
    let mut shell = Command::new("/bin/sh");
    let script = format!("set -e; {script}; exit 0");
    let output = shell.arg("-c").arg(script).env("OSIER_HOME", home.home()).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_full_disk_is_code_7_and_leaves_nothing() {
    let home = Home::new();
    fs::create_dir(home.home()).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(home.home()).output();
    if !mount.is_ok_and(|output| output.status.success()) {
        common::skipped("a small tmpfs cannot be mounted here, so exit code 7 is not tested");
        return;
    }
    let output = home.run(&["device", "create", "a", "--capacity", "64MiB", "--pmr", "16MiB"]);
    let left = fs::read_dir(home.home()).unwrap().count();
    Command::new("umount").arg(home.home()).status().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(left, 0);
}

/// Needs no privilege, unlike a small file system. The shell ignores the signal that goes with the limit, and
/// so does what it starts.
#[test]
fn a_file_size_limit_is_code_7_and_leaves_nothing() {
    let home = Home::new();
    fs::create_dir(home.home()).unwrap();
    let script = "trap '' XFSZ; ulimit -f 2048; exec \"$0\" \"$@\"";
    let args = ["-c", script, env!("CARGO_BIN_EXE_osier"), "device", "create", "a"];
    let sizes = ["--capacity", "64MiB", "--pmr", "16MiB", "--media", "none"];
    let output = Command::new("/bin/sh").args(args).args(sizes).env("OSIER_HOME", home.home()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{text}");
    assert!(text.contains("free some space"), "{text}");
    assert_eq!(fs::read_dir(home.home()).unwrap().count(), 0);
}

#[test]
fn a_creation_killed_anywhere_leaves_a_sound_device_or_none() {
    const KILLS: u64 = 24;
    let (home, scratch) = (Home::new(), tempfile::tempdir().unwrap());
    let args = ["device", "create", "a", "--capacity", "64MiB", "--pmr", "4MiB"];
    let start = std::time::Instant::now();
    home.expect(0, &args);
    home.expect(0, &["device", "rm", "a"]);
    let whole = start.elapsed();
    let mut made = 0;
    for kill in 0..KILLS {
        let mut command = home.command(&args);
        // What a killed one leaves in the system's directory for that goes with the test.
        let mut child = command.env("TMPDIR", scratch.path()).stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * u32::try_from(kill).unwrap() / u32::try_from(KILLS).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        if home.home().join("a").exists() {
            made += 1;
            assert!(home.home().join("a/pipelines.toml").exists() && home.home().join("a/registry.toml").exists());
            home.expect(0, &["device", "check", "a"]);
            home.expect(0, &["device", "rm", "a"]);
        } else {
            home.expect(8, &["device", "show", "a"]);
        }
    }
    // The next creation sweeps what the killed ones left.
    home.expect(0, &args);
    home.expect(0, &["device", "check", "a"]);
    let names: Vec<_> = fs::read_dir(home.home()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
    assert!(made < KILLS, "no kill came early enough to test anything");
}
