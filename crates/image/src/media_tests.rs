//! Tests of the media back ends: one model for all that keep bytes, and their errors.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use super::file::Range;
use super::*;

const BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
enum Step {
    Program(u64, Vec<u8>),
    Erase(u64, u64),
    Sync,
}

fn any_step() -> impl Strategy<Value = Step> {
    let at = 0..BYTES;
    prop_oneof![
        4 => (at.clone(), prop::collection::vec(any::<u8>(), 0..9000)).prop_map(|(at, b)| Step::Program(at, b)),
        3 => (at, 0..200_000u64).prop_map(|(at, bytes)| Step::Erase(at, bytes)),
        1 => Just(Step::Sync),
    ]
}

/// Runs the steps on the media and on a plain vector, and compares.
fn compare_with_model(media: &dyn Media, steps: &[Step]) {
    let mut model = vec![0u8; BYTES as usize];
    for step in steps {
        match step {
            Step::Program(at, bytes) => {
                let fits = at + bytes.len() as u64 <= BYTES;
                assert_eq!(media.program(*at, bytes).is_ok(), fits);
                if fits {
                    model[*at as usize..][..bytes.len()].copy_from_slice(bytes);
                }
            }
            Step::Erase(at, bytes) => {
                let fits = at + bytes <= BYTES;
                assert_eq!(media.erase(*at, *bytes).is_ok(), fits);
                if fits {
                    model[*at as usize..][..*bytes as usize].fill(0);
                }
            }
            Step::Sync => media.sync().unwrap(),
        }
    }
    let mut found = vec![0xee; BYTES as usize];
    media.read(0, &mut found).unwrap();
    assert!(found == model, "the media differ from the model after {steps:?}");
}

fn sparse_file(path: &Path) {
    File::create(path).unwrap().set_len(BYTES).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn file_and_memory_are_what_a_vector_is(steps in prop::collection::vec(any_step(), 1..24)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("media");
        sparse_file(&path);
        compare_with_model(&FileMedia::open(&path, BYTES).unwrap(), &steps);
        compare_with_model(&MemoryMedia::create(BYTES).unwrap(), &steps);
    }
}

#[test]
fn an_erased_range_gives_its_room_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("media");
    sparse_file(&path);
    let media = FileMedia::open(&path, BYTES).unwrap();
    let room = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert_eq!(room(), 0, "a new file takes no room");
    media.program(0, &vec![1; BYTES as usize]).unwrap();
    media.sync().unwrap();
    assert!(room() >= BYTES);
    media.erase(0, BYTES).unwrap();
    assert_eq!(room(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), BYTES);
}

#[test]
fn where_holes_cannot_be_punched_zeroes_are_written() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(BYTES).unwrap();
    let range = Range::new(file, BYTES, "test".to_owned());
    range.program(0, &vec![7; BYTES as usize]).unwrap();
    range.write_zeroes(3, BYTES - 5).unwrap();
    let mut found = vec![0; BYTES as usize];
    range.read(0, &mut found).unwrap();
    assert_eq!(found.iter().filter(|b| **b != 0).count(), 5);
    assert_eq!((found[2], found[3], found[BYTES as usize - 3], found[BYTES as usize - 2]), (7, 0, 0, 7));
}

#[test]
fn an_error_names_operation_address_and_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("media");
    sparse_file(&path);
    let media = FileMedia::open(&path, BYTES).unwrap();
    let text = media.read(BYTES - 1, &mut [0; 2]).unwrap_err().to_string();
    for part in ["read", "2 bytes", "1048575", &path.display().to_string(), "end at byte 1048576"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(media.program(u64::MAX, &[0; 2]).is_err(), "an address at the end of the numbers must not wrap");
}

#[test]
fn a_file_of_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("media");
    sparse_file(&path);
    let text = FileMedia::open(&path, BYTES * 2).unwrap_err().to_string();
    assert!(text.contains("1048576 bytes") && text.contains("put the whole"), "{text}");
    let absent = FileMedia::open(&dir.path().join("absent"), 1).unwrap_err();
    assert!(absent.is_damage() && absent.to_string().contains("missing"), "{absent}");
}

#[test]
fn a_view_reads_what_is_there_and_refuses_what_is_short() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("media");
    sparse_file(&path);
    FileMedia::open(&path, BYTES).unwrap().program(4096, b"seen").unwrap();
    let view = MediaView::open(&path, BYTES).unwrap();
    let mut bytes = [0; 4];
    view.read(4096, &mut bytes).unwrap();
    assert_eq!(&bytes, b"seen");
    assert!(view.read(BYTES - 3, &mut bytes).is_err());
    assert!(MediaView::open(&path, BYTES + 1).unwrap_err().is_damage());
    assert!(MediaView::open(&dir.path().join("absent"), 1).unwrap_err().is_damage());
}

#[test]
fn a_truncated_file_reads_as_an_error_and_never_as_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("media");
    sparse_file(&path);
    let media = FileMedia::open(&path, BYTES).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(BYTES / 2).unwrap();
    assert!(media.read(BYTES / 2, &mut [0; 16]).is_err());
}

#[test]
fn after_a_failed_sync_no_later_one_succeeds() {
    let range = Range::new(tempfile::tempfile().unwrap(), BYTES, "test".to_owned());
    range.sync().unwrap();
    let broken = range.sync_by(|_| Err(io::Error::other("the disk is gone"))).unwrap_err();
    assert!(broken.to_string().contains("the disk is gone"));
    let later = range.sync().unwrap_err();
    assert!(matches!(later.fault, MediaFault::EarlierSyncFailed), "{later}");
}

#[test]
fn memory_outlives_its_maker_through_the_descriptor() {
    let media = MemoryMedia::create(BYTES).unwrap();
    media.program(5, b"kept").unwrap();
    let fd = media.as_fd().try_clone_to_owned().unwrap();
    drop(media);
    let mut found = [0; 4];
    MemoryMedia::from_fd(fd.try_clone().unwrap(), BYTES).unwrap().read(5, &mut found).unwrap();
    assert_eq!(&found, b"kept");
    assert!(MemoryMedia::from_fd(fd, BYTES + 1).is_err());
}

#[test]
fn media_that_keep_nothing_say_so_when_read() {
    let media = NoneMedia::new(BYTES);
    media.program(0, &[1; 64]).unwrap();
    media.erase(0, BYTES).unwrap();
    media.sync().unwrap();
    media.read(0, &mut []).unwrap();
    assert!(matches!(media.read(0, &mut [0]).unwrap_err().fault, MediaFault::NoBytes));
    assert!(media.program(BYTES, &[1]).is_err());
}

/// A loop device over a file, released at the end; nothing where this user may not make one.
struct Loop {
    device: PathBuf,
    _dir: tempfile::TempDir,
}

impl Loop {
    fn attach() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("backing");
        sparse_file(&path);
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&path).output();
        match made {
            Ok(output) if output.status.success() => {
                let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
                Some(Self { device, _dir: dir })
            }
            _ => {
                // Past the test's captured output, so that it is seen.
                let _ = writeln!(
                    io::stderr(),
                    "SKIPPED: no loop device can be attached here, so block devices are not tested"
                );
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.device).status();
    }
}

#[test]
fn a_block_device_is_what_a_vector_is_and_has_one_owner() {
    let Some(device) = Loop::attach() else { return };
    let media = BlockMedia::open(&device.device, BYTES).unwrap();
    assert!(media.begins_blank(BYTES).unwrap());
    let steps = [
        Step::Program(4096, vec![3; 8192]),
        Step::Erase(8192, 4096),
        Step::Program(100, vec![9; 50]),
        Step::Erase(110, 7),
        Step::Sync,
        Step::Program(BYTES - 1, vec![1, 1]),
    ];
    compare_with_model(&media, &steps);
    assert!(!media.begins_blank(BYTES).unwrap());
    let text = BlockMedia::open(&device.device, BYTES).unwrap_err().to_string();
    assert!(text.contains("in use"), "{text}");
    drop(media);
    assert!(BlockMedia::open(&device.device, BYTES + 1).is_err(), "too small a device is refused");
    assert!(BlockMedia::open(Path::new("/dev/null"), 1).unwrap_err().to_string().contains("not a block device"));
}
