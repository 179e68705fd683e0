//! Devices that meet damage and a full disk, tried with the real program: what is said, with which code it ends,
//! and that nothing is lost that was not lost already.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use osier_device::{Device, DeviceParams, MediaError, Profile};
use osier_domain::{OwnerState, Phase};
use osier_flash::LiveExtent;
use osier_image::{Incarnation, inspect};
use osier_pmr::Snapshot;
use serde_json::Value;

/// What every soak here writes over.
const GROUPS: [&str; 2] = ["--groups", "300"];
/// Bytes of an actor's owner record, and where the checkpoint lies in it (docs/formats-pmr.md).
const RECORD_BYTES: u64 = 512;
const CHECKPOINT_AT: u64 = 64;

/// The directory, and what removes it.
struct Home(PathBuf, #[expect(dead_code, reason = "its end removes the directory")] Option<tempfile::TempDir>);

impl Home {
    fn new() -> Home {
        let dir = tempfile::tempdir().unwrap();
        Home(dir.path().to_owned(), Some(dir))
    }

    fn image(&self) -> PathBuf {
        self.0.join("d")
    }

    fn file(&self, name: &str) -> PathBuf {
        self.image().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        // A run that hangs is a failure, not a reason to wait for ever.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "120", env!("CARGO_BIN_EXE_osier")]).args(arguments);
        command.env("OSIER_HOME", &self.0).env_remove("OSIER_CONFIG").env_remove("OSIER_LOG");
        command
    }

    fn osier(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs, insists on the exit code, and gives back what was printed and what was said.
    fn expect(&self, code: i32, arguments: &[&str]) -> (String, String) {
        let out = self.osier(arguments);
        let (printed, said) = (text(&out.stdout), text(&out.stderr));
        assert_eq!(out.status.code(), Some(code), "{arguments:?}\n{printed}\n{said}");
        (printed, said)
    }

    fn soak(&self, code: i32, more: &[&str]) -> (Value, String) {
        let arguments = [&["--json", "soak", "d", "--no-model-timing"], &GROUPS[..], more].concat();
        let (printed, said) = self.expect(code, &arguments);
        (serde_json::from_str(&printed).unwrap(), said)
    }

    /// Everything that the soak before completed is there.
    fn reads_back(&self) -> String {
        let (found, said) = self.soak(0, &["--read-back"]);
        assert!(found["tally"]["verified_blocks"].as_u64().unwrap() >= 300, "{found}");
        said
    }

    /// A device that was used, whose actors were moved, and that was stopped in order.
    fn used() -> Home {
        let home = Home::new();
        // A write buffer that is soon full, so that most of what is stored is on the media alone.
        let (profile, _) = home.expect(0, &["device", "profiles", "wio"]);
        let small = profile.replace("bytes = 67108864", "bytes = 1048576");
        assert_ne!(small, profile);
        let path = home.0.join("small.toml");
        fs::write(&path, small).unwrap();
        let profile = ["--profile", path.to_str().unwrap()];
        home.expect(0, &[&["device", "create", "d", "--capacity", "64MiB"], &profile[..]].concat());
        home.soak(0, &["--requests", "1500", "--moves", "6"]);
        home
    }

    /// What a check finds: findings as `area severity text`.
    fn check(&self, code: i32) -> Vec<String> {
        let (printed, _) = self.expect(code, &["--json", "device", "check", "d", "--deep"]);
        let found: Value = serde_json::from_str(&printed).unwrap();
        assert_eq!(found["sound"], code == 0, "{found}");
        let word = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
        let line = |f: &Value| format!("{} {} {}", word(f, "area"), word(f, "severity"), word(f, "text"));
        found["findings"].as_array().unwrap().iter().map(line).collect()
    }

    fn region(&self) -> Snapshot {
        Snapshot::open(&self.file("pmr")).unwrap()
    }

    /// Where an object lies in the region's file.
    fn object(&self, name: &str) -> u64 {
        self.region().find(name).unwrap().offset
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Flips a bit of a file; once more puts it right.
fn flip(path: &Path, at: u64, bit: u32) {
    let file = open(path);
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1 << bit], at).unwrap();
}

/// The checksum, length and time of change of every file.
fn fingerprint(directory: &Path) -> BTreeMap<PathBuf, (u32, u64, std::time::SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(fingerprint(&path));
        } else {
            let mut crc = 0;
            // The media is a large file of few bytes.
            let (file, length) = (File::open(&path).unwrap(), fs::metadata(&path).unwrap().len());
            let mut part = vec![0; 1 << 20];
            for at in (0..length).step_by(part.len()) {
                let read = file.read_at(&mut part, at).unwrap();
                crc = crc32c::crc32c_append(crc, &part[..read]);
            }
            let meta = fs::metadata(&path).unwrap();
            found.insert(path, (crc, meta.len(), meta.modified().unwrap()));
        }
    }
    found
}

/// The extents that blocks read from, by the map that a device would recover.
fn extents(home: &Home) -> Vec<LiveExtent> {
    let seen = inspect(&home.image()).unwrap();
    let profile = Profile::parse(&seen.superblock.profile_name, &seen.profile_text().unwrap()).unwrap();
    let params = DeviceParams { streams: 16, ..DeviceParams::new(&profile, seen.superblock.logical_blocks) };
    let view = seen.view_media().unwrap().unwrap();
    let (region, mut buffer) = (home.region(), Vec::new());
    let object = region.find("buffer").unwrap();
    buffer.resize(object.bytes as usize, 0);
    region.read(&object, 0, &mut buffer).unwrap();
    let mut read = |at: u64, out: &mut [u8]| view.read(at, out).map_err(|_| MediaError::Io);
    let (device, _) = Device::recover(&profile, params, buffer, &mut read).unwrap();
    device.flash().live_extents().collect()
}

#[test]
fn one_flipped_bit_anywhere_is_found_and_named_and_nothing_is_changed() {
    let home = Home::used();
    let sound = home.check(0);
    assert!(sound.iter().any(|line| line.starts_with("map good") && line.contains("fit their checksums")), "{sound:?}");
    // The oldest: the write buffer has it no more.
    let extent = extents(&home).into_iter().min_by_key(|extent| extent.extent.sequence).unwrap();
    let (header, payload) = (extent.address - 64, extent.address + u64::from(extent.extent.stored_bytes) / 2);
    let owners = home.object("owners");
    let cases: [(&str, &str, u64, u32, &str); 13] = [
        ("the superblock's copy 1", "superblock", 4096 + 40, 3, "superblock damage copy 1 is damaged"),
        ("the profile", "profile.toml", 30, 0, "profile damage profile.toml has"),
        ("the registry", "registry.toml", 60, 0, "pipelines damage"),
        ("the region's magic", "pmr", 3, 0, "pmr damage"),
        ("the region's header", "pmr", 18, 4, "pmr damage"),
        ("the table of objects", "pmr", 4096 + 33, 2, "pmr damage table of objects: table entry 0"),
        ("an owner word", "pmr", owners, 5, "owners damage actor main/0:lz4"),
        ("a checkpoint", "pmr", owners + RECORD_BYTES + CHECKPOINT_AT + 20, 1, "owners damage actor main/1:aes256"),
        ("a slot's state", "pmr", home.object("arena"), 7, "arena damage slot 0"),
        ("the write buffer's tail", "pmr", home.object("buffer") + 64 + 9, 0, "buffer damage one of two copies"),
        ("a superblock's header on the flash", "media", 20, 6, "media damage superblock 0, byte 0: a flipped bit"),
        ("an extent's header", "media", header + 17, 1, "a flipped bit in a header was put right"),
        ("an extent's bytes", "media", payload, 0, "does not fit its checksum"),
    ];
    for (what, file, at, bit, expected) in cases {
        let path = home.file(file);
        flip(&path, at, bit);
        let before = fingerprint(&home.image());
        let found = home.check(5);
        assert!(found.iter().any(|line| line.contains(expected)), "{what}: {found:#?}");
        let elsewhere = found.iter().filter(|line| line.contains(" damage ") && !line.contains(expected)).count();
        assert!(elsewhere <= 1, "{what}: {found:#?}");
        assert!(before == fingerprint(&home.image()), "{what}: the check has changed something");
        flip(&path, at, bit);
    }
    assert_eq!(home.check(0), sound);
    home.reads_back();
}

#[test]
fn a_device_that_was_killed_is_sound_and_one_in_use_is_checked_as_far_as_is_safe() {
    let home = Home::used();
    let arguments = ["soak", "d", "--no-model-timing", "--requests", "10000000", "--moves", "1000000", "--depth", "16"];
    for round in 0..3 {
        let starts = inspect(&home.image()).unwrap().superblock.incarnation;
        let mut command = home.command(&[&arguments[..], &GROUPS[..]].concat());
        let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        home.await_traffic(starts);
        let found = home.check(0);
        assert!(found.iter().any(|line| line.contains("in use")), "{found:#?}");
        std::thread::sleep(Duration::from_millis(50 * round));
        running.kill();
        let before = fingerprint(&home.image());
        let found = home.check(0);
        assert!(found.iter().any(|line| line.starts_with("lock note")), "{found:#?}");
        assert!(before == fingerprint(&home.image()), "the check has changed something");
        home.reads_back();
        home.check(0);
    }
}

/// A program in the background; a test that fails leaves none behind.
struct Running(Child);

impl Running {
    /// The host's process, which is started last.
    fn await_host(&self) -> String {
        let children = |pid: &str| fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let begun = Instant::now();
        loop {
            let supervisor = children(&self.0.id().to_string()).trim().to_owned();
            let domains: Vec<String> = children(&supervisor).split_whitespace().map(str::to_owned).collect();
            if let [_, host] = domains.as_slice() {
                return host.clone();
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "no domains were started");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Kills `osier`, which `timeout` runs: its domains go with it.
    fn kill(&mut self) {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0.id())).unwrap_or_default();
        for pid in children.split_whitespace() {
            let _ = Command::new("kill").args(["-KILL", pid]).status();
        }
        let _ = self.0.wait();
    }
}

/// Of the process of one domain: the supervisor, and the process of the other domain.
fn parent(pid: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap().trim().to_owned()
}

fn sibling(pid: &str) -> String {
    let supervisor = parent(pid);
    let domains = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
    domains.split_whitespace().find(|domain| *domain != pid).unwrap().to_owned()
}

fn signal(name: &str, pid: &str) {
    assert!(Command::new("kill").args([&format!("-{name}"), pid]).status().unwrap().success(), "SIG{name} to {pid}");
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Home {
    /// Waits until a soak is under way that was begun after so many starts.
    fn await_traffic(&self, starts: Incarnation) {
        let begun = Instant::now();
        while inspect(&self.image()).unwrap().superblock.incarnation <= starts || self.offered() < 100 {
            assert!(begun.elapsed() < Duration::from_secs(60), "no traffic was seen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Requests that the soak under way, or the last one, has offered.
    fn offered(&self) -> u64 {
        let (region, mut offered) = (self.region(), [0; 8]);
        region.read(&region.find("witness").unwrap(), 0, &mut offered).unwrap();
        u64::from_le_bytes(offered)
    }
}

/// The demonstration begins again with its input; what the host that died had under way is not counted.
#[test]
fn the_demonstration_survives_the_death_of_its_host() {
    let home = Home::new();
    let (input, report) = (home.0.join("input"), home.0.join("report.html"));
    fs::write(&input, "to be compressed, encrypted and checked\n".repeat(50_000)).unwrap();
    let paths = ["--input", input.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let mut command = home.command(&[&["--json", "demo", "--seconds", "3", "--skip-fixed"], &paths[..]].concat());
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let host = running.await_host();
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(Command::new("kill").args(["-KILL", &host]).status().unwrap().success());
    let said = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
    let printed = std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap();
    assert!(running.0.wait().unwrap().success(), "{said}");
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&found["runs"][0]["right"], &found["runs"][0]["deaths"]), (&true.into(), &1.into()), "{found}");
}

/// The bytes of checkpoints are spoiled again and again while actors move: those that are read so are refused.
#[test]
fn a_damaged_checkpoint_is_refused_while_the_device_runs_and_nothing_is_lost() {
    let home = Home::used();
    let (pmr, owners) = (open(&home.file("pmr")), home.object("owners"));
    let arguments = ["--json", "soak", "d", "--no-model-timing", "--requests", "20000", "--moves", "300"];
    let mut command = home.command(&[&arguments[..], &GROUPS[..]].concat());
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = running.0.stderr.take().unwrap();
    let said = std::thread::spawn(move || std::io::read_to_string(&mut said).unwrap());
    let begun = Instant::now();
    while running.0.try_wait().unwrap().is_none() {
        // Half of the time the checkpoints are left in peace, so that actors do move.
        if (begun.elapsed().as_millis() / 20).is_multiple_of(2) {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let rubbish = begun.elapsed().as_nanos() as u64;
        for actor in 0..3 {
            pmr.write_all_at(&rubbish.to_le_bytes(), owners + actor * RECORD_BYTES + CHECKPOINT_AT + 40).unwrap();
        }
    }
    let printed = std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap();
    let (found, said) = (serde_json::from_str::<Value>(&printed).unwrap(), said.join().unwrap());
    for fault in ["failed", "lost", "repeated", "out_of_order", "wrong_blocks"] {
        assert_eq!(found["tally"][fault], 0, "{found}\n{said}");
    }
    assert!(said.contains("checkpoint of an actor in the shared region is damaged"), "no refusal was seen: {said}");
    home.reads_back();
}

/// As if both domains had been killed between `Ready` and `Active`, and the checkpoint spoiled afterwards.
#[test]
fn a_migration_that_was_cut_off_is_taken_back_also_with_a_damaged_checkpoint() {
    let home = Home::used();
    let (pmr, owners) = (open(&home.file("pmr")), home.object("owners"));
    for actor in 0..3 {
        let at = owners + actor * RECORD_BYTES;
        let mut word = [0; 8];
        pmr.read_exact_at(&mut word, at).unwrap();
        let now = OwnerState::decode(u64::from_le_bytes(word)).unwrap();
        let phase = Phase::Ready { to: now.owner.other() };
        let ready = OwnerState { generation: now.generation + 1, phase, ..now };
        pmr.write_all_at(&ready.encode().to_le_bytes(), at).unwrap();
        pmr.write_all_at(&[0xa5; 64], at + CHECKPOINT_AT + 100).unwrap();
    }
    // An owner word that is none at all.
    pmr.write_all_at(&[0xff; 8], owners + 2 * RECORD_BYTES).unwrap();
    let found = home.check(5);
    assert!(found.iter().any(|line| line.contains("owners damage actor main/0:lz4: the checkpoint")), "{found:#?}");
    assert!(found.iter().any(|line| line.contains("is no owner word")), "{found:#?}");
    let said = home.reads_back();
    assert!(said.contains("main/0:lz4") && said.contains("is taken back"), "{said}");
    assert!(said.contains("main/2:crc32c") && said.contains("its owner word was damaged"), "{said}");
    let (found, _) = home.soak(0, &["--requests", "500", "--moves", "5", "--move-all"]);
    assert!(found["migrations"].as_u64().unwrap() >= 5);
    home.check(0);
}

/// A file, what is done to it, the code that every command ends with, and words of what is said.
type Spoilt<'a> = (&'a str, &'a dyn Fn(&Path), i32, &'a [&'a str]);

#[test]
fn a_part_of_an_image_that_is_missing_or_damaged_is_named_and_the_rest_is_kept() {
    let home = Home::used();
    let spoil: [Spoilt<'_>; 14] = [
        ("pmr", &|path| fs::remove_file(path).unwrap(), 5, &["is missing", "put it back"]),
        ("pmr", &|path| open(path).set_len(1 << 20).unwrap(), 5, &["bytes"]),
        ("pmr", &|path| open(path).set_len(100).unwrap(), 5, &["not a region"]),
        ("pmr", &newer_region, 3, &["format version 7", "newer program"]),
        ("media", &|path| fs::remove_file(path).unwrap(), 5, &["missing", "put it back"]),
        ("media", &|path| open(path).set_len(1 << 20).unwrap(), 5, &["it has 1048576 bytes"]),
        ("media", &|path| foreign(path), 5, &["none of them has a sound header"]),
        ("registry.toml", &|path| fs::write(path, "rubbish").unwrap(), 5, &["checksum"]),
        ("registry.toml", &|path| fs::remove_file(path).unwrap(), 5, &["device check"]),
        (
            "pipelines.toml",
            &|path| fs::write(path, "[[pipeline]]\nname = 7\n").unwrap(),
            3,
            &["pipelines.toml: line 2"],
        ),
        ("pipelines.toml", &|path| fs::remove_file(path).unwrap(), 5, &["device check"]),
        ("keys/0.key", &|path| fs::remove_file(path).unwrap(), 5, &["put it back"]),
        ("keys/0.key", &|path| fs::write(path, "short").unwrap(), 5, &["64 hexadecimal digits"]),
        ("profile.toml", &|path| fs::write(path, "[device]").unwrap(), 5, &["profile.toml has 8 bytes"]),
    ];
    for (file, spoil, code, expected) in spoil {
        let path = home.file(file);
        let kept = home.0.join("kept");
        assert!(Command::new("cp").args(["--sparse=always", "-p"]).arg(&path).arg(&kept).status().unwrap().success());
        spoil(&path);
        let before = fingerprint(&home.image());
        for arguments in [&["serve", "d"][..], &[&["soak", "d", "--read-back"], &GROUPS[..]].concat()] {
            let (_, said) = home.expect(code, arguments);
            assert!(said.contains(file), "{file}: {said}");
            for words in expected {
                assert!(said.contains(words), "{file}: {said}");
            }
        }
        let after = fingerprint(&home.image());
        assert_eq!(before.get(&path), after.get(&path), "{file}: what is damaged is not written to");
        assert!(home.check(5).iter().any(|line| line.contains(" damage ")));
        fs::rename(&kept, &path).unwrap();
        home.reads_back();
    }
    home.check(0);
}

/// What the registry once has stays in it: so nothing gets in that does not come up.
#[test]
fn a_change_of_the_pipelines_that_is_refused_can_be_taken_back() {
    let home = Home::used();
    let (path, registry) = (home.file("pipelines.toml"), fs::read(home.file("registry.toml")).unwrap());
    let right = fs::read_to_string(&path).unwrap();
    fs::create_dir_all(home.file("modules")).unwrap();
    fs::write(home.file("modules").join("bad.wasm"), "this is not WebAssembly").unwrap();
    for (wrong, word) in [("filter", "main/0:filter refuses its configuration"), ("bad.wasm", "bad.wasm is refused")] {
        fs::write(&path, right.replace("\"lz4\"", &format!("\"{wrong}\""))).unwrap();
        let (_, said) = home.expect(3, &["serve", "d"]);
        assert!(said.contains(word), "{said}");
        assert_eq!(fs::read(home.file("registry.toml")).unwrap(), registry);
    }
    fs::write(&path, right).unwrap();
    home.reads_back();
}

/// The header of a region of version 7, as docs/formats-pmr.md says that every version begins.
fn newer_region(path: &Path) {
    let file = open(path);
    let mut head = [0; 16];
    file.read_exact_at(&mut head, 0).unwrap();
    head[8..12].copy_from_slice(&7u32.to_le_bytes());
    let crc = crc32c::crc32c(&head[..12]);
    head[12..].copy_from_slice(&crc.to_le_bytes());
    file.write_all_at(&head, 0).unwrap();
}

/// Bytes of something else where superblocks begin.
fn foreign(path: &Path) {
    let (file, length) = (open(path), fs::metadata(path).unwrap().len());
    for at in (0..length).step_by(1 << 20) {
        file.write_all_at(&[0x5a; 65_536], at).unwrap();
    }
}

/// A small file system, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(home: &Path, size: &str) -> Option<Small> {
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(home).output();
        mount.is_ok_and(|out| out.status.success()).then(|| Small(home.to_owned()))
    }

    fn grow(&self, size: &str) {
        let remount = ["-o", &format!("remount,size={size}")];
        assert!(Command::new("mount").args(remount).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_disk_that_fills_under_a_running_device_ends_writes_with_their_status_and_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home(dir.path().join("small"), None);
    fs::create_dir(&home.0).unwrap();
    let Some(small) = Small::mount(&home.0, "128m") else {
        return common::skipped(
            "a small tmpfs cannot be mounted here, so a disk that fills under a device is not tested",
        );
    };
    home.expect(0, &["device", "create", "d", "--capacity", "256MiB"]);
    let soak = |code: i32, more: &[&str]| {
        let basics = ["--json", "soak", "d", "--no-model-timing", "--groups", "2000", "--request-blocks", "16"];
        let (printed, said) = home.expect(code, &[&basics[..], more].concat());
        let found: Value = serde_json::from_str(&printed).unwrap();
        for fault in ["lost", "repeated", "out_of_order", "wrong_blocks"] {
            assert_eq!(found["tally"][fault], 0, "{found}\n{said}");
        }
        assert!(found["deaths"].as_array().unwrap().is_empty(), "{found}\n{said}");
        (found, said)
    };
    // Reads go on among the writes that are refused, and everything is read at the end.
    let (found, said) = soak(7, &["--requests", "6000", "--reads-permille", "300", "--depth", "16"]);
    let tally = &found["tally"];
    assert!(tally["failed"].as_u64().unwrap() > 100 && tally["verified_blocks"].as_u64().unwrap() >= 32_000, "{tally}");
    for failure in tally["first_failures"].as_array().unwrap() {
        assert!(failure.as_str().unwrap().ends_with("capacity exceeded (SCT 0h, SC 81h)"), "{failure}");
    }
    assert!(said.contains("No space left on device") && said.contains("free some space"), "{said}");
    assert!(home.check(0).iter().any(|line| line.starts_with("map good")));
    // Still full: a start reads everything back.
    soak(0, &["--read-back"]);
    small.grow("600m");
    soak(0, &["--read-back"]);
    soak(0, &["--requests", "3000"]);
    home.check(0);
}

/// A ring's header takes as many lines before its entries.
const RING_HEADER_BYTES: u64 = 4 * 64;
/// No kind of message has this number.
const NO_MESSAGE: u8 = 0xee;

#[test]
fn a_request_that_is_lost_between_the_domains_is_named_and_ends_the_run() {
    let home = Home::used();
    let ring = home.region().find("ring.h2d").unwrap();
    let soak = ["soak", "d", "--requests", "100000000", "--no-model-timing"];
    let mut child = home.command(&[&soak[..], &GROUPS].concat()).stderr(Stdio::piped()).spawn().unwrap();
    let file = File::options().write(true).open(home.file("pmr")).unwrap();
    let begun = Instant::now();
    // What is overwritten in the moment between its sending and its taking is no message any more.
    while child.try_wait().unwrap().is_none() && begun.elapsed() < Duration::from_secs(3) {
        for line in 0..(ring.bytes - RING_HEADER_BYTES) / 64 {
            file.write_all_at(&[NO_MESSAGE], ring.offset + RING_HEADER_BYTES + line * 64).unwrap();
        }
    }
    let out = child.wait_with_output().unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(6), "{}: {said}", out.status);
    assert!(said.contains("neither domain has it") && said.contains("does not end"), "{said}");
    assert!(said.contains("request ") && said.contains(" of stream "), "{said}");
    // The next start takes them up, also if it is to write over less. A write that never came to the core, and that
    // later ones of its stream overtook, cannot be done any more: it fails, and says so; nothing else is amiss.
    let after = home.osier(&["--json", "soak", "d", "--requests", "100", "--groups", "20"]);
    let (found, said): (Value, String) = (serde_json::from_slice(&after.stdout).unwrap(), text(&after.stderr));
    let tally = &found["tally"];
    for fault in ["lost", "repeated", "out_of_order", "wrong_blocks"] {
        assert_eq!(tally[fault], 0, "{fault}: {tally}\n{said}");
    }
    let failed = tally["failed"].as_u64().unwrap();
    assert_eq!(said.matches("internal error (SCT 0h, SC 06h)").count() as u64, failed, "{said}");
    assert_eq!(after.status.code(), Some(i32::from(failed > 0)), "{said}");
}

#[test]
fn a_region_that_is_cut_under_a_running_device_is_named_and_a_copy_loses_nothing() {
    for length in [0, 4096, 1 << 20] {
        let home = Home::used();
        let mut server = home.command(&["serve", "d"]).stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while !home.osier(&["actor", "move", "d", "main", "host"]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        let copy = home.0.join("copy");
        fs::copy(home.file("pmr"), &copy).unwrap();
        File::options().write(true).open(home.file("pmr")).unwrap().set_len(length).unwrap();
        let code = server.wait().unwrap().code();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut server.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("pmr was cut from") && said.contains(&format!("to {length} bytes")), "{said}");
        let (_, said) = home.expect(5, &["serve", "d"]);
        assert!(said.contains("pmr"), "{said}");
        fs::copy(&copy, home.file("pmr")).unwrap();
        home.reads_back();
    }
}

/// The supervisor waits for a device that is stopped, and touches the region again when it is dead.
#[test]
fn a_region_that_is_cut_while_the_device_stops_is_named_too() {
    let home = Home::used();
    let mut server = Running(home.command(&["serve", "d"]).stderr(Stdio::piped()).spawn().unwrap());
    let host = server.await_host();
    let device = sibling(&host);
    let begun = Instant::now();
    while !home.osier(&["actor", "ls", "d"]).status.success() {
        assert!(begun.elapsed() < Duration::from_secs(60));
    }
    signal("STOP", &device);
    let supervisor = parent(&host);
    signal("TERM", &supervisor);
    while Path::new("/proc").join(&host).join("exe").read_link().is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(60), "the host stops before the device");
    }
    // By then the supervisor has looked at the region's length and waits for the device.
    std::thread::sleep(Duration::from_millis(300));
    File::options().write(true).open(home.file("pmr")).unwrap().set_len(4096).unwrap();
    signal("CONT", &device);
    let said = std::io::read_to_string(server.0.stderr.take().unwrap()).unwrap();
    assert_eq!(server.0.wait().unwrap().code(), Some(5), "{said}");
    assert!(said.contains("pmr was cut from") && said.contains("to 4096 bytes"), "{said}");
}

/// A command waits for the host's answer in the region, with nothing between two looks that would find the cut.
#[test]
fn a_region_that_is_cut_under_a_command_ends_it_with_the_reason() {
    for json in [false, true] {
        let home = Home::used();
        let mut server = Running(home.command(&["serve", "d"]).stderr(Stdio::null()).spawn().unwrap());
        let host = server.await_host();
        let begun = Instant::now();
        while !home.osier(&["actor", "move", "d", "main", "host"]).status.success() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        signal("STOP", &host);
        let moving = ["--json", "actor", "move", "d", "main", "device"];
        let mut command = home.command(&moving[usize::from(!json)..]);
        let command = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // It has asked, and looks for the answer every millisecond.
        std::thread::sleep(Duration::from_millis(500));
        // The supervisor would find the cut and end, and with it the device that the command waits for.
        signal("STOP", &parent(&host));
        File::options().write(true).open(home.file("pmr")).unwrap().set_len(4096).unwrap();
        let out = command.wait_with_output().unwrap();
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(5), "{said}");
        assert!(said.contains("pmr was cut from") && said.contains("to 4096 bytes"), "{said}");
        if json {
            assert_eq!(serde_json::from_str::<Value>(&said).unwrap()["exit"], 5, "{said}");
        }
        signal("CONT", &parent(&host));
        assert_eq!(server.0.wait().unwrap().code(), Some(5));
    }
}

/// What each process did in the longest gap adds up to it, and a device that was stopped is named as its cause.
#[test]
fn the_longest_gap_is_accounted_for_and_its_cause_is_named() {
    const STOPPED_NS: u64 = 600_000_000;
    let home = Home::new();
    let (input, report) = (home.0.join("input"), home.0.join("report.html"));
    fs::write(&input, "to be compressed, encrypted and checked\n".repeat(50_000)).unwrap();
    let paths = ["--input", input.to_str().unwrap(), "--report", report.to_str().unwrap()];
    let mut command = home.command(&[&["--json", "demo", "--seconds", "4", "--skip-fixed"], &paths[..]].concat());
    let mut running = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let host = running.await_host();
    let device = sibling(&host);
    std::thread::sleep(Duration::from_millis(1_500));
    signal("STOP", &device);
    std::thread::sleep(Duration::from_nanos(STOPPED_NS));
    signal("CONT", &device);
    let printed = std::io::read_to_string(running.0.stdout.take().unwrap()).unwrap();
    assert!(running.0.wait().unwrap().success(), "{printed}");
    let found: Value = serde_json::from_str(&printed).unwrap();
    let run = &found["runs"][0];
    let (gap, longest) = (&run["report"]["gap"], run["report"]["tally"]["longest_gap_ns"].as_u64().unwrap());
    let part = |who: &str, what: &str| gap[who][what].as_u64().unwrap();
    let parts = ["work_ns", "media_ns", "due_ns", "sync_ns", "idle_ns", "late_ns"];
    let total = |who: &str| parts.iter().map(|what| part(who, what)).sum::<u64>();
    assert!(longest >= STOPPED_NS, "{gap}");
    assert_eq!((gap["ns"].as_u64().unwrap(), total("host")), (longest, longest), "{gap}");
    assert!(total("device") >= longest, "{gap}");
    assert!(part("device", "absent_ns") >= STOPPED_NS - STOPPED_NS / 10, "{gap}");
    assert!(run["gap_cause"]["what"].as_str().unwrap().starts_with("the device's process was held"), "{run}");
}
