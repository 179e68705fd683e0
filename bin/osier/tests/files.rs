//! A device as a file system for real programs: they find what they expect, and what they synced outlives any death.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;
mod served;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::skipped;
use served::{LIMIT, Served, osier, signal};

/// Operations of one run of fsx; there are four at once.
const FSX_OPERATIONS: &str = "50000";

/// A device that is served, and a place to mount it at.
struct Mounted {
    served: Served,
    mount: Option<Child>,
}

impl Mounted {
    /// Nothing where file systems cannot be mounted, and that is said.
    fn new(capacity: &str) -> Option<Mounted> {
        if !rustix::process::geteuid().is_root() || File::open("/dev/fuse").is_err() {
            skipped("file systems are mounted only as root, with /dev/fuse");
            return None;
        }
        let served = Served::sized(capacity, &[]);
        let mounted = Mounted { served, mount: None };
        fs::create_dir(mounted.place()).unwrap();
        mounted.await_text("log", "is up");
        Some(mounted)
    }

    fn home(&self) -> &Path {
        self.served.home.path()
    }

    fn place(&self) -> PathBuf {
        self.home().join("m")
    }

    fn text(&self, log: &str) -> String {
        fs::read_to_string(self.home().join(log)).unwrap_or_default()
    }

    fn await_text(&self, log: &str, text: &str) {
        let until = Instant::now() + LIMIT;
        while !self.text(log).contains(text) {
            assert!(Instant::now() < until, "{}", self.text(log));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn mount(&mut self) {
        let log = File::create(self.home().join("mount")).unwrap();
        let place = self.place();
        let mut command = osier(&self.served.home, &["mount", "d", place.to_str().unwrap(), "--foreground"]);
        self.mount = Some(command.stderr(log).spawn().unwrap());
        self.await_text("mount", "osier: mounted");
    }

    /// Ends the mount as an operator does.
    fn unmount(&mut self) {
        succeeds(Command::new("umount").arg(self.place()));
        let status = self.mount.take().unwrap().wait().unwrap();
        assert!(status.success(), "{}", self.text("mount"));
    }

    fn fsck(&self) {
        let said = succeeds(&mut osier(&self.served.home, &["fsck", "d"]));
        assert!(String::from_utf8_lossy(&said.stderr).contains("all is well"));
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.place()).stderr(Stdio::null()).status();
        if let Some(mut mount) = self.mount.take() {
            let _ = mount.kill();
            let _ = mount.wait();
        }
    }
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {said}{errors}");
    output
}

fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|directory| directory.join(program).is_file());
    if !found {
        skipped(format_args!("{program} is not here"));
    }
    found
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) as u8
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn programs_find_a_file_system_as_they_know_it_and_again_after_it_was_unmounted() {
    let Some(mut mounted) = Mounted::new("256MiB") else { return };
    mounted.mount();
    let place = mounted.place();
    if has("git") {
        let git = |dir: &Path, arguments: &[&str]| {
            let name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"];
            succeeds(Command::new("git").args(name).args(arguments).current_dir(dir).env("HOME", "/nonexistent"));
        };
        let project = place.join("project");
        fs::create_dir(&project).unwrap();
        git(&project, &["init", "-q"]);
        for round in 0..5_u64 {
            for file in 0..40_u64 {
                fs::write(project.join(format!("file-{file}")), pattern(round * 100 + file, 3000)).unwrap();
            }
            git(&project, &["add", "."]);
            git(&project, &["commit", "-q", "-m", "a round"]);
        }
        git(&place, &["clone", "-q", "project", "copy"]);
        git(&place.join("copy"), &["fsck", "--strict"]);
        git(&place.join("copy"), &["gc", "-q"]);
    }
    if has("sqlite3") {
        let script = "pragma journal_mode=wal; create table t(a); with recursive c(x) as (select 1 union all select x+1 \
                      from c where x<5000) insert into t select hex(randomblob(99)) from c; delete from t where rowid % 3 = 0; vacuum;";
        succeeds(Command::new("sqlite3").arg(place.join("data.db")).arg(script));
    }
    // What was just written, before anybody syncs it, is data and no hole.
    let sparse = File::create_new(place.join("sparse")).unwrap();
    sparse.set_len(1 << 30).unwrap();
    sparse.write_all_at(&pattern(1, 5000), 300_000_000).unwrap();
    succeeds(Command::new("cp").arg("--sparse=always").arg(place.join("sparse")).arg(place.join("second")));
    succeeds(Command::new("cmp").arg(place.join("sparse")).arg(place.join("second")));
    drop(sparse);
    mounted.unmount();
    mounted.fsck();
    mounted.mount();
    if has("git") {
        succeeds(
            Command::new("git")
                .args(["-C", "copy", "fsck", "--strict"])
                .current_dir(&place)
                .env("HOME", "/nonexistent"),
        );
    }
    if has("sqlite3") {
        let said = succeeds(Command::new("sqlite3").arg(place.join("data.db")).arg("pragma integrity_check;"));
        assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "ok");
    }
    succeeds(Command::new("cmp").arg(place.join("sparse")).arg(place.join("second")));
    // SIGTERM is as good as `umount`.
    let mut mount = mounted.mount.take().unwrap();
    signal(mount.id(), "TERM");
    assert!(mount.wait().unwrap().success(), "{}", mounted.text("mount"));
    mounted.fsck();
}

#[test]
fn a_device_with_something_else_is_refused_and_in_the_background_the_answer_comes_when_it_is_mounted() {
    let Some(mounted) = Mounted::new("64MiB") else { return };
    let place = mounted.place();
    let mount = |options: &[&str]| {
        let mut command = osier(&mounted.served.home, &["mount", "d", place.to_str().unwrap()]);
        command.args(options).stdin(Stdio::null()).output().unwrap()
    };
    assert!(mount(&[]).status.success());
    fs::write(place.join("file"), "bytes").unwrap();
    // Two at a time would destroy it.
    assert_eq!(mount(&[]).status.code(), Some(4));
    let fsck = osier(&mounted.served.home, &["fsck", "d"]).output().unwrap();
    assert_eq!(fsck.status.code(), Some(4));
    succeeds(Command::new("umount").arg(&place));
    // The process in the background may still have something to make persistent: that is waited for.
    mounted.fsck();
    assert!(mount(&[]).status.success());
    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "bytes");
    succeeds(Command::new("umount").arg(&place));
    // Anything else in the first block is no file system.
    let mut queue = mounted.served.queue(1, 4096);
    let slot = queue.take().unwrap();
    queue.buffer(slot).write(0, &[0x55; 4096]);
    queue.submit(slot, &osier_client::Ask::Write { block: 0, blocks: 1, fua: true });
    queue.ring();
    assert!(queue.wait(LIMIT).unwrap().1.is_success());
    drop(queue);
    let refused = mount(&[]);
    assert_eq!(refused.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--format"), "{refused:?}");
    assert!(mount(&["--format"]).status.success());
    assert!(fs::read_dir(&place).unwrap().next().is_none());
    succeeds(Command::new("umount").arg(&place));
}

/// Writes and syncs files until it fails; which ones were synced.
fn write_and_sync(place: &Path, writer: u64, synced: &Mutex<Vec<(PathBuf, u64, usize)>>, is_over: &AtomicBool) {
    for index in 0.. {
        let (seed, length) = (writer << 32 | index, 1 + (index * 7919 % 60_000) as usize);
        let path = place.join(format!("{writer}-{index}"));
        let written = File::create_new(&path).and_then(|mut file| {
            file.write_all(&pattern(seed, length))?;
            file.sync_all()
        });
        // Once it is killed nothing is answered any more.
        if written.is_err() {
            return;
        }
        synced.lock().unwrap().push((path, seed, length));
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        // Others are removed again, so that blocks change hands.
        if index % 4 == 3 {
            let gone = place.join(format!("{writer}-{}", index - 1));
            synced.lock().unwrap().retain(|(path, ..)| *path != gone);
            let _ = fs::remove_file(gone);
        }
    }
}

#[test]
fn what_was_synced_is_there_after_the_mounts_process_was_killed_under_load() {
    let Some(mut mounted) = Mounted::new("256MiB") else { return };
    let (synced, place) = (Mutex::new(Vec::new()), mounted.place());
    for round in 0..4_u64 {
        mounted.mount();
        let is_over = AtomicBool::new(false);
        let pid = mounted.mount.as_ref().unwrap().id();
        std::thread::scope(|scope| {
            for writer in 0..3 {
                let (synced, place, is_over) = (&synced, &place, &is_over);
                scope.spawn(move || write_and_sync(place, round * 10 + writer, synced, is_over));
            }
            std::thread::sleep(Duration::from_millis(700 + 300 * round));
            signal(pid, "KILL");
            is_over.store(true, Ordering::Relaxed);
        });
        mounted.mount.take().unwrap().wait().unwrap();
        succeeds(Command::new("umount").arg("-l").arg(&place));
        mounted.fsck();
        mounted.mount();
        let synced = synced.lock().unwrap();
        assert!(synced.len() as u64 > 3 * round, "round {round}: only {} files", synced.len());
        for (path, seed, length) in synced.iter() {
            let mut bytes = Vec::new();
            File::open(path)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
                .read_to_end(&mut bytes)
                .unwrap();
            assert!(bytes == pattern(*seed, *length), "round {round}: {}", path.display());
        }
        drop(synced);
        mounted.unmount();
        mounted.fsck();
    }
}

/// A file of so many bytes that a seed says, synced.
fn write_synced(path: &Path, seed: u64, length: usize) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&pattern(seed, length))?;
    file.sync_all()
}

#[test]
fn a_full_file_system_says_so_loses_nothing_and_goes_on_when_there_is_room_again() {
    const BYTES: usize = 700_000;
    let Some(mut mounted) = Mounted::new("64MiB") else { return };
    mounted.mount();
    let place = mounted.place();
    let file = |index: u64| place.join(format!("file-{index}"));
    let mut whole = Vec::new();
    for round in 0..2_u64 {
        let error = loop {
            let index = round * 1000 + whole.len() as u64;
            match write_synced(&file(index), index, BYTES) {
                Ok(()) => whole.push(index),
                Err(error) => break (index, error),
            }
        };
        assert_eq!(error.1.kind(), std::io::ErrorKind::StorageFull, "round {round}: {}", error.1);
        assert!(whole.len() > 20, "round {round}: only {} files", whole.len());
        // What did not fit is no more than that; others can be read, overwritten and removed.
        fs::remove_file(file(error.0)).unwrap();
        for index in &whole {
            assert!(fs::read(file(*index)).unwrap() == pattern(*index, BYTES), "round {round}: file {index}");
        }
        let kept = whole[0];
        let overwritten = File::options().write(true).open(file(kept)).unwrap();
        overwritten.write_all_at(&pattern(kept, BYTES), 0).unwrap();
        overwritten.sync_all().unwrap();
        for index in whole.split_off(10) {
            fs::remove_file(file(index)).unwrap();
        }
    }
    mounted.unmount();
    mounted.fsck();
    mounted.mount();
    for index in whole {
        assert!(fs::read(file(index)).unwrap() == pattern(index, BYTES), "file {index}");
    }
    mounted.unmount();
}

#[test]
fn a_directory_in_use_is_taken_out_of_the_tree_and_served_until_its_last_file_is_closed() {
    let Some(mut mounted) = Mounted::new("64MiB") else { return };
    mounted.mount();
    let path = mounted.place().join("file");
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    // An operator's `umount` is refused, and changes nothing.
    assert!(!Command::new("umount").arg(mounted.place()).stderr(Stdio::null()).status().unwrap().success());
    assert_eq!(fs::read(&path).unwrap(), b"before");
    let mut mount = mounted.mount.take().unwrap();
    signal(mount.id(), "TERM");
    mounted.await_text("mount", "is in use");
    let until = Instant::now() + LIMIT;
    while path.exists() {
        assert!(Instant::now() < until, "it is still in the tree");
        std::thread::sleep(Duration::from_millis(10));
    }
    file.write_all_at(b"behind", 6).unwrap();
    let mut bytes = [0; 12];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"beforebehind");
    assert!(mount.try_wait().unwrap().is_none(), "somebody still has a file open");
    drop(file);
    assert!(mount.wait().unwrap().success(), "{}", mounted.text("mount"));
    mounted.fsck();
    mounted.mount();
    assert_eq!(fs::read(&path).unwrap(), b"beforebehind");
    mounted.unmount();
}

#[test]
fn a_user_without_privileges_mounts_a_device_of_their_own_by_fusermount3() {
    /// `nobody`.
    const NUMBER: u32 = 65_534;
    let Some(mut mounted) = Mounted::new("64MiB") else { return };
    if !has("fusermount3") {
        return;
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        return skipped("/dev/fuse is root's alone here, so nobody else mounts");
    }
    let program = mounted.home().join("osier");
    fs::copy(env!("CARGO_BIN_EXE_osier"), &program).unwrap();
    mounted.served.stop();
    succeeds(Command::new("chown").arg("-R").arg(NUMBER.to_string()).arg(mounted.home()));
    let user = |command: &Path| {
        let mut command = Command::new(command);
        command.env("OSIER_HOME", mounted.home()).env_remove("OSIER_CONFIG").uid(NUMBER).gid(NUMBER);
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null());
        command
    };
    let place = mounted.place();
    let log = File::create(mounted.home().join("log")).unwrap();
    let mut serve = user(&program);
    serve.args(["serve", "d", "--no-model-timing", "--mount"]).arg(&place).stderr(log);
    let mut process = serve.spawn().unwrap();
    mounted.await_text("log", "osier: mounted");
    let script = "umask 077 && echo bytes >file && mkdir directory && sync file && cat file && stat -c %u:%a file";
    let said = succeeds(user(Path::new("sh")).args(["-c", script]).current_dir(&place).stdout(Stdio::piped()));
    assert_eq!(String::from_utf8_lossy(&said.stdout), "bytes\n65534:600\n");
    // It is theirs alone: the system's administrator has no business there, unless the system says so.
    assert!(fs::read_dir(&place).is_err());
    signal(process.id(), "INT");
    assert!(process.wait().unwrap().success(), "{}", mounted.text("log"));
    assert!(fs::read_dir(&place).unwrap().next().is_none(), "it is out of the tree");
}

/// A program that `scripts/file-peers` gets.
fn peer(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/file-peers")).output().unwrap();
    if !output.status.success() {
        skipped(String::from_utf8_lossy(&output.stderr).trim_end());
        return None;
    }
    Some(root.join("target/file-peers/bin").join(name))
}

#[test]
fn fsx_finds_every_byte_where_it_put_it() {
    let Some(fsx) = peer("fsx") else { return };
    let Some(mut mounted) = Mounted::new("256MiB") else { return };
    mounted.mount();
    // Every operation that it knows.
    let configuration = "[weights]\nclose_open = 1\ninvalidate = 1\nmapread = 10\nmapwrite = 10\nread = 10\nwrite = 10\n\
                         truncate = 10\nfsync = 1\nfdatasync = 1\nposix_fallocate = 5\npunch_hole = 10\nsendfile = 5\n\
                         posix_fadvise = 1\ncopy_file_range = 5\n";
    let path = mounted.home().join("fsx.toml");
    fs::write(&path, configuration).unwrap();
    // A file each, at once: what one writes is not to be found in another's.
    std::thread::scope(|scope| {
        for seed in ["1", "2", "3", "4"] {
            let (fsx, configuration, mounted) = (&fsx, &path, &mounted);
            scope.spawn(move || {
                let artifacts = mounted.home().join(seed);
                fs::create_dir(&artifacts).unwrap();
                let mut command = Command::new(fsx);
                // Its artifacts belong beside the file system, not into it.
                command.arg("-f").arg(configuration).arg("-P").arg(&artifacts).args(["-N", FSX_OPERATIONS, "-S", seed]);
                succeeds(command.arg(mounted.place().join(format!("fsx-{seed}"))).current_dir(&artifacts));
            });
        }
    });
    mounted.unmount();
    mounted.fsck();
}

#[test]
fn pjdfstest_finds_what_posix_says() {
    let Some(pjdfstest) = peer("pjdfstest") else { return };
    let Some(mut mounted) = Mounted::new("256MiB") else { return };
    mounted.mount();
    let configuration = "[features]\nposix_fallocate = {}\nrename_ctime = {}\nutime_now = {}\nutimensat = {}\n\
                         [settings]\nnaptime = 0.01\n[dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"games\", \"games\"]]\n";
    let path = mounted.home().join("pjdfstest.toml");
    fs::write(&path, configuration).unwrap();
    // Users without privileges have to reach it.
    succeeds(Command::new("chmod").arg("755").arg(mounted.home()));
    let output = Command::new(pjdfstest).arg("-c").arg(&path).arg("-p").arg(mounted.place()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("Summary: 0 failed"), "{said}");
    let passed = said.rsplit_once(" skipped, ").and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    assert!(passed.is_some_and(|passed: u32| passed > 350), "{said}");
    mounted.unmount();
    mounted.fsck();
}
