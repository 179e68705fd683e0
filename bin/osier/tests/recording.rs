//! Recordings of the device core: real processes are recorded, also ones that are killed and ones whose disk is full,
//! and the replay in virtual time comes to the same outputs.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use osier_device::record::{BlockHeader, Next, read_block};
use serde_json::Value;

struct Home(tempfile::TempDir);

impl Home {
    /// A home with a device.
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        let out = home.osier(&["device", "create", "d", "--capacity", "256MiB"]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        home
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn osier(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("timeout");
        command.arg("120").arg(env!("CARGO_BIN_EXE_osier")).args(arguments);
        command.env("OSIER_HOME", self.0.path()).env_remove("OSIER_CONFIG").output().unwrap()
    }

    /// A soak that finds nothing wrong, with what it said.
    fn soak(&self, to: &Path, more: &[&str]) -> (Value, String) {
        let arguments = [&["--json", "soak", "d", "--record-core", to.to_str().unwrap()], more].concat();
        let out = self.osier(&arguments);
        assert!(out.status.success(), "{more:?}: {}{}", text(&out.stdout), text(&out.stderr));
        (serde_json::from_slice(&out.stdout).unwrap(), text(&out.stderr))
    }

    /// What the replay of a file says, and with which code it ends.
    fn replay(&self, file: &Path) -> (Value, i32, String) {
        let out = self.osier(&["--json", "replay", file.to_str().unwrap()]);
        let found = serde_json::from_slice(&out.stdout).unwrap_or(Value::Null);
        (found, out.status.code().unwrap(), text(&out.stderr))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn count(life: &Value, kind: &str) -> u64 {
    life["kinds"][kind].as_u64().unwrap_or(0)
}

#[test]
fn a_soak_with_moves_and_barriers_replays_bit_for_bit() {
    let home = Home::new();
    let file = home.file("core");
    for timing in [&[][..], &["--no-model-timing"]] {
        let (found, _) = home.soak(&file, &[&["--requests", "1500", "--moves", "60"], timing].concat());
        assert!(found["migrations"].as_u64().unwrap() >= 60, "{found}");
        let (replayed, code, said) = home.replay(&file);
        assert_eq!((code, &replayed["same"]), (0, &Value::Bool(true)), "{said}");
        let life = &replayed["lives"][0];
        assert_eq!(life["ending"], "in-order");
        for kind in ["Write", "Read", "Flush", "PollEnded", "NextOp", "MediaProgrammed", "MediaSynced", "Sample"] {
            assert!(count(life, kind) > 0, "no {kind} in {life}");
        }
        assert_eq!(count(life, "Run") > 0, timing.is_empty(), "the processor is modelled with model timing only");
        assert!(life["statistics"]["raw_bytes_written"].as_u64().unwrap() > 1_000_000);
        // As often as one likes, to the byte.
        assert_eq!(home.replay(&file).0, replayed);
    }
    // The next session begins a recording of its own, with what the one before left on the media.
    home.soak(&file, &["--read-back"]);
    let (replayed, code, said) = home.replay(&file);
    assert_eq!(code, 0, "{said}");
    assert_eq!(replayed["lives"].as_array().unwrap().len(), 1);
    assert!(count(&replayed["lives"][0], "MediaPayload") > 0, "what was stored is known by its checksum");
    assert!(count(&replayed["lives"][0], "MediaRead") > 0);
}

#[test]
fn each_life_of_a_device_that_is_killed_is_replayed() {
    let home = Home::new();
    let file = home.file("core");
    for step in ["StoreEnds:200", "ProgramBegins:3"] {
        let crash = format!("device:{step}");
        let (found, _) = home.soak(&file, &["--requests", "1500", "--no-model-timing", "--crash", &crash]);
        assert_eq!(found["deaths"].as_array().unwrap().len(), 1, "{found}");
        let (replayed, code, said) = home.replay(&file);
        assert_eq!(code, 0, "{step}: {said}");
        let lives = replayed["lives"].as_array().unwrap();
        let endings: Vec<&str> = lives.iter().map(|life| life["ending"].as_str().unwrap()).collect();
        assert_eq!(endings, ["open", "in-order"], "{step}");
        assert!(lives.iter().all(|life| life["recovered"] == true && count(life, "Begin") == 1));
        // What the first life left in the write buffer is what the second one begins with.
        assert!(count(&lives[1], "BufferPayload") > 0, "{}", lives[1]);
    }
    // A host that dies is no death of the core.
    home.soak(&file, &["--requests", "600", "--no-model-timing", "--crash", "host:SlotFilled:200"]);
    let (replayed, code, said) = home.replay(&file);
    assert_eq!((code, replayed["lives"].as_array().unwrap().len()), (0, 1), "{said}");
}

#[test]
fn damage_is_found_and_a_torn_end_is_cut() {
    let home = Home::new();
    let file = home.file("core");
    home.soak(&file, &["--requests", "400", "--no-model-timing"]);
    let whole = std::fs::read(&file).unwrap();
    for at in [20, whole.len() / 2, whole.len() - 3] {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        std::fs::write(&file, &bytes).unwrap();
        let (found, code, said) = home.replay(&file);
        assert_eq!((code, &found["same"]), (3, &Value::Bool(false)), "byte {at}: {said}");
        assert!(said.contains("damaged at byte") && said.contains("core"), "{said}");
    }
    std::fs::write(&file, &whole[..whole.len() - 30]).unwrap();
    let (found, code, said) = home.replay(&file);
    assert_eq!(code, 0, "{said}");
    assert!(found["torn_bytes"].as_u64().unwrap() > 0 && found["lives"][0]["ending"] == "open", "{found}");
    let said = text(&home.osier(&["replay", file.to_str().unwrap()]).stdout);
    assert!(said.contains("never finished and are cut off") && said.contains("was killed"), "{said}");
    std::fs::write(&file, "").unwrap();
    assert_eq!(home.replay(&file).1, 3);
    assert_eq!(home.replay(&home.file("none")).1, 3);
}

#[test]
fn a_file_that_is_something_else_is_kept_and_the_device_not_started() {
    let home = Home::new();
    let file = home.file("notes.txt");
    std::fs::write(&file, "notes").unwrap();
    let out = home.osier(&["soak", "d", "--requests", "10", "--record-core", file.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(text(&out.stderr).contains("--record-core"), "{}", text(&out.stderr));
    assert_eq!(std::fs::read(&file).unwrap(), b"notes");
}

/// A small file system, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn mount(at: PathBuf, size: &str) -> Option<Small> {
        std::fs::create_dir(&at).unwrap();
        let size = format!("size={size}");
        let out = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&at).output();
        out.is_ok_and(|out| out.status.success()).then(|| Small(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// Where no file system can be mounted, the sink's own test has `/dev/full`.
#[test]
fn a_full_disk_ends_the_recording_and_not_the_run() {
    let home = Home::new();
    let Some(small) = Small::mount(home.file("small"), "64k") else { return };
    let file = small.0.join("core");
    let (found, said) = home.soak(&file, &["--requests", "4000", "--no-model-timing"]);
    assert_eq!(found["tally"]["completed"].as_u64().map(|completed| completed >= 4000), Some(true), "{found}");
    assert!(said.contains("the recording of the core ends here") && said.contains("No space left"), "{said}");
    let (replayed, code, said) = home.replay(&file);
    assert_eq!(code, 0, "{said}");
    let ending = replayed["lives"][0]["ending"].as_str().unwrap();
    assert!(["stopped", "open"].contains(&ending), "{replayed}");
    assert!(replayed["lives"][0]["inputs"].as_u64().unwrap() > 100);
}

/// A number as recordings have it.
fn number(mut rest: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// Of some kilobytes that name 33 gigabytes, replay makes none.
#[test]
fn a_recording_that_names_much_memory_takes_little() {
    let home = Home::new();
    let file = home.file("core");
    home.soak(&file, &["--requests", "1500", "--no-model-timing"]);
    let whole = std::fs::read(&file).unwrap();
    let mut rest = whole.as_slice();
    let Next::Block(..) = read_block(&mut rest, 0).unwrap() else { panic!("no block") };
    let first = whole.len() - rest.len();
    let Next::Block(second, _) = read_block(&mut rest, 0).unwrap() else { panic!("one block only") };
    // A write of 2000 units of 16 MiB each.
    let unit = [&[0, 1][..], &number(4096), &number(16 << 20), &[0, 0, 0]].concat();
    let write = [&[16, 0, 0, 0][..], &number(1 << 40), &[0, 0], &number(2000), &unit.repeat(2000)].concat();
    let header = BlockHeader { bytes: write.len() as u32, ..second };
    std::fs::write(&file, [&whole[..first], &header.encode(&write), &write].concat()).unwrap();
    let replay = format!("ulimit -v 3000000; exec {} --json replay {}", env!("CARGO_BIN_EXE_osier"), file.display());
    let out = Command::new("sh").args(["-c", &replay]).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(count(&found["lives"][0], "Write") > 0, "{found}");

    std::fs::write(&file, &whole).unwrap();
    let out = home.osier(&["replay", "--memory", "1MiB", file.to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stderr).contains("--memory"), "{}", text(&out.stderr));
    // What cannot be read is said once, and nothing else is.
    let out = home.osier(&["replay", home.0.path().to_str().unwrap()]);
    assert_eq!((out.status.code(), text(&out.stderr).matches("directory").count(), out.stdout.len()), (Some(3), 1, 0));
}
