//! Tests of whole images: making, opening, starting, checking and removing them, on sound, damaged,
//! owned and full ground.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

use crate::superblock::{COPY_BYTES, SUPERBLOCK_BYTES};
use crate::*;

fn options() -> CreateOptions {
    CreateOptions {
        profile: ProfileText { name: "test".to_owned(), text: "speed = 1\n".to_owned() },
        media: MediaSpec::File,
        media_bytes: 1 << 20,
        pmr_bytes: 128 * 1024,
        logical_blocks: 200,
    }
}

/// A profile is right when it states a speed.
fn check_profile(_: &str, text: &str) -> Result<(), String> {
    if text.contains("speed") { Ok(()) } else { Err("`speed` is missing".to_owned()) }
}

const CHECK: ProfileCheck<'static> = &check_profile;

struct Home {
    dir: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn with_image(name: &str) -> (Self, PathBuf) {
        let home = Self::new();
        let path = home.path(name);
        Image::create(&path, &options(), CHECK).unwrap();
        (home, path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// Every byte of every file below a directory, to see that nothing was changed.
fn snapshot(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut files = Vec::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(snapshot(&path));
        } else {
            files.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    files.sort();
    files
}

fn damage(path: &Path, at: usize) {
    let file = path.join("superblock");
    let mut bytes = fs::read(&file).unwrap();
    bytes[at] ^= 0x40;
    fs::write(&file, bytes).unwrap();
}

#[test]
fn a_new_image_is_sound_and_opens() {
    let (home, path) = Home::with_image("a");
    let image = Image::open(&path, CHECK).unwrap();
    assert_eq!(image.profile_text(), "speed = 1\n");
    assert_eq!((image.superblock().media_bytes, image.superblock().logical_blocks), (1 << 20, 200));
    assert!(image.damaged_copy().is_none() && image.lock().previous().is_none());
    let media = image.open_media().unwrap();
    media.program(0, b"x").unwrap();
    assert_eq!(fs::metadata(path.join("keys")).unwrap().permissions().mode() & 0o777, 0o700);
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
    drop(image);
    let report = check(&path, CHECK).unwrap();
    assert!(report.findings.iter().all(|finding| finding.severity == Severity::Good), "{report:?}");
    assert_eq!(home.names(), ["a"]);
}

#[test]
fn a_taken_name_is_refused_and_what_has_it_is_left_alone() {
    let (home, path) = Home::with_image("a");
    fs::write(home.path("file"), "mine").unwrap();
    for taken in [path, home.path("file")] {
        let error = Image::create(&taken, &options(), CHECK).unwrap_err();
        assert!(matches!(error, ImageError::Exists { .. }), "{error}");
    }
    assert_eq!(fs::read(home.path("file")).unwrap(), b"mine");
    assert_eq!(home.names().len(), 2);
}

#[test]
fn impossible_options_are_refused_before_anything_is_written() {
    let home = Home::new();
    let bad = [
        CreateOptions { media_bytes: 5000, ..options() },
        CreateOptions { media_bytes: !4095, ..options() },
        CreateOptions { pmr_bytes: 4096, ..options() },
        CreateOptions { logical_blocks: 0, ..options() },
        CreateOptions { profile: ProfileText { name: String::new(), text: "speed".into() }, ..options() },
        CreateOptions { profile: ProfileText { name: "slow".into(), text: String::new() }, ..options() },
        CreateOptions { media: MediaSpec::Block { path: "/dev/null".into(), overwrite: true }, ..options() },
    ];
    for options in bad {
        let error = Image::create(&home.path("a"), &options, CHECK).unwrap_err();
        assert!(matches!(error, ImageError::Options { .. } | ImageError::Profile { .. }), "{error}");
        assert!(home.names().is_empty(), "{options:?} left something behind");
    }
}

#[test]
fn what_a_killed_creation_left_is_swept_and_one_under_way_is_not() {
    let home = Home::new();
    let make = |name: &str, files: &[&str]| {
        let path = home.path(name);
        fs::create_dir(&path).unwrap();
        files.iter().for_each(|file| fs::write(path.join(file), "").unwrap());
        path
    };
    let dead = [
        make(".osier-creating-4294967295-1-a", &[]),
        make(".osier-creating-4294967295-1-b", &["lock"]),
        make(".osier-creating-4294967295-1-c", &["lock", "media"]),
        make(".osier-removing-4294967295-1-d", &["media"]),
    ];
    let held = make(".osier-creating-4294967295-1-e", &[]);
    let _lock = OwnerLock::acquire(&held, &held.join("lock")).unwrap();
    let young = crate::leftover::creating(home.dir.path(), "f");
    fs::create_dir(&young).unwrap();
    let foreign = [make(".osier-creating-mine", &["thesis"]), make(".osierx", &[])];
    assert!(list(home.dir.path()).unwrap().is_empty(), "what is under way is not listed");
    Image::create(&home.path("a"), &options(), CHECK).unwrap();
    assert!(dead.iter().all(|path| !path.exists()), "{:?}", home.names());
    assert!([held, young].iter().chain(&foreign).all(|path| path.exists()), "{:?}", home.names());
}

#[test]
fn a_second_owner_is_refused_while_looking_is_allowed() {
    let (home, path) = Home::with_image("a");
    let image = Image::open(&path, CHECK).unwrap();
    let text = Image::open(&path, CHECK).unwrap_err().to_string();
    assert!(text.contains(&format!("pid {}", std::process::id())), "{text}");
    assert!(matches!(remove(&path).unwrap_err(), ImageError::Busy { .. }));
    assert!(matches!(inspect(&path).unwrap().lock, LockState::Held(_)));
    assert!(check(&path, CHECK).unwrap().is_sound());
    let listed = list(home.dir.path()).unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].inspection.is_ok()), (1, "a", true));
    drop(image);
    Image::open(&path, CHECK).unwrap();
}

#[test]
fn each_start_has_a_higher_incarnation_in_the_other_copy() {
    let (_home, path) = Home::with_image("a");
    for expected in 1..=5u64 {
        let mut image = Image::open(&path, CHECK).unwrap();
        assert_eq!(image.begin_incarnation().unwrap(), Incarnation(expected));
        let bytes = fs::read(path.join("superblock")).unwrap();
        let copy = (expected % 2) as usize;
        let written = Superblock::decode(&bytes[copy * COPY_BYTES..][..COPY_BYTES], copy).unwrap();
        let other = Superblock::decode(&bytes[(1 - copy) * COPY_BYTES..][..COPY_BYTES], 1 - copy).unwrap();
        assert_eq!((written.incarnation.0, other.incarnation.0), (expected, expected - 1));
    }
}

/// A cut while a copy is written leaves any mixture of its old and new sectors; the other copy serves.
#[test]
fn a_torn_write_of_the_superblock_gives_the_old_or_the_new_incarnation() {
    let (_home, path) = Home::with_image("a");
    let mut image = Image::open(&path, CHECK).unwrap();
    let before = fs::read(path.join("superblock")).unwrap();
    image.begin_incarnation().unwrap();
    let after = fs::read(path.join("superblock")).unwrap();
    drop(image);
    for sectors in 0..1u32 << 8 {
        let mut torn = before.clone();
        for sector in (0..8).filter(|sector| sectors & 1 << sector != 0) {
            let range = COPY_BYTES + sector * 512..COPY_BYTES + (sector + 1) * 512;
            torn[range.clone()].copy_from_slice(&after[range]);
        }
        fs::write(path.join("superblock"), &torn).unwrap();
        let incarnation = inspect(&path).unwrap().superblock.incarnation.0;
        assert!(incarnation <= 1, "sectors {sectors:08b}");
        assert_eq!(incarnation == 1, torn == after, "sectors {sectors:08b}");
    }
}

#[test]
fn one_damaged_copy_is_told_of_kept_and_started_from() {
    for copy in 0..2 {
        let (_home, path) = Home::with_image("a");
        damage(&path, copy * COPY_BYTES + 50);
        let damaged = fs::read(path.join("superblock")).unwrap()[copy * COPY_BYTES..][..COPY_BYTES].to_vec();
        for expected in 1..=3 {
            let mut image = Image::open(&path, CHECK).unwrap();
            assert_eq!(image.damaged_copy().unwrap().0, copy);
            assert_eq!(image.begin_incarnation().unwrap(), Incarnation(expected));
            let now = fs::read(path.join("superblock")).unwrap();
            assert_eq!(now[copy * COPY_BYTES..][..COPY_BYTES], damaged, "damage is never written over");
        }
        let report = check(&path, CHECK).unwrap();
        assert!(!report.is_sound());
        let mut image = Image::open(&path, CHECK).unwrap();
        assert!(image.restore_copy().unwrap());
        assert!(!image.restore_copy().unwrap());
        drop(image);
        assert!(check(&path, CHECK).unwrap().is_sound());
        let kept = fs::read(path.join("superblock.damaged")).unwrap();
        assert_eq!(kept[copy * COPY_BYTES..][..COPY_BYTES], damaged);
        assert_eq!(inspect(&path).unwrap().superblock.incarnation, Incarnation(3));
        remove(&path).unwrap();
    }
}

#[test]
fn two_damaged_copies_are_reported_and_nothing_is_changed() {
    let (home, path) = Home::with_image("a");
    damage(&path, 50);
    damage(&path, COPY_BYTES + 60);
    let before = snapshot(&path);
    let error = Image::open(&path, CHECK).unwrap_err();
    assert!(matches!(error, ImageError::Damaged { .. }) && error.to_string().contains("both copies"), "{error}");
    assert!(!check(&path, CHECK).unwrap().is_sound());
    assert!(list(home.dir.path()).unwrap()[0].inspection.is_err());
    assert_eq!(snapshot(&path), before);
}

#[test]
fn a_newer_format_is_refused_by_its_version_and_not_changed() {
    let (_home, path) = Home::with_image("a");
    let file = path.join("superblock");
    let mut bytes = fs::read(&file).unwrap();
    bytes[8] = 9;
    let crc = crc32c::crc32c(&bytes[..4092]);
    bytes[4092..4096].copy_from_slice(&crc.to_le_bytes());
    fs::write(&file, &bytes).unwrap();
    let before = snapshot(&path);
    let error = Image::open(&path, CHECK).unwrap_err();
    assert!(matches!(error, ImageError::NewerFormat { found: 9, .. }), "{error}");
    assert!(error.to_string().contains("version 9"));
    assert!(matches!(check(&path, CHECK), Err(ImageError::NewerFormat { .. })));
    assert_eq!(snapshot(&path), before);
}

#[test]
fn what_is_not_an_image_is_neither_opened_nor_removed_nor_touched() {
    let home = Home::new();
    let (plain, fifo, text) = (home.path("plain"), home.path("fifo"), home.path("text"));
    for dir in [&plain, &fifo, &text] {
        fs::create_dir(dir).unwrap();
    }
    fs::write(plain.join("thesis"), "years of work").unwrap();
    fs::write(text.join("superblock"), "a file of that name").unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        fifo.join("superblock"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    fs::write(home.path("file"), "").unwrap();
    for path in [plain.clone(), fifo, text, home.path("file")] {
        for error in [Image::open(&path, CHECK).unwrap_err(), remove(&path).unwrap_err()] {
            assert!(matches!(error, ImageError::NotAnImage { .. }), "{error}");
        }
        assert!(!path.join("lock").exists(), "no lock file is made in what is not an image");
    }
    assert!(plain.join("thesis").exists());
    assert!(list(home.dir.path()).unwrap().is_empty());
    for error in [Image::open(&home.path("b"), CHECK).unwrap_err(), remove(&home.path("b")).unwrap_err()] {
        assert!(matches!(error, ImageError::Missing { .. }), "{error}");
    }
    assert!(list(&home.path("absent")).unwrap().is_empty());
}

#[test]
fn an_image_is_removed_whole_but_not_with_what_others_put_there() {
    let (home, path) = Home::with_image("a");
    fs::write(path.join("keys/one"), [1; 32]).unwrap();
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let error = remove(&path).unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    let report = check(&path, CHECK).unwrap();
    assert!(report.findings.iter().any(|f| f.area == Area::Directory && f.text.contains("notes.txt")));
    fs::remove_file(path.join("notes.txt")).unwrap();
    let link = home.path("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    remove(&link).unwrap();
    assert!(!path.exists());
    assert_eq!(home.names(), ["link"]);
}

#[test]
fn more_files_are_part_of_being_whole_or_not_at_all() {
    let home = Home::new();
    let path = home.path("a");
    let fill = |layout: &Layout| {
        assert!(!path.exists(), "the image has no name yet");
        fs::write(layout.pipelines(), "x").unwrap();
        fs::write(layout.root().join(".registry.toml.17"), "x").unwrap();
        fs::create_dir(layout.modules()).unwrap();
        Ok::<(), ImageError>(())
    };
    Image::create_with(&path, &options(), CHECK, fill).unwrap();
    assert_eq!(fs::read(path.join("pipelines.toml")).unwrap(), b"x");
    assert!(check(&path, CHECK).unwrap().findings.iter().all(|f| f.area != Area::Directory));
    remove(&path).unwrap();
    let fail = |_: &Layout| Err(ImageError::Missing { path: "x".into() });
    assert!(Image::create_with(&path, &options(), CHECK, fail).is_err());
    assert!(home.names().is_empty());
}

#[test]
fn a_changed_profile_is_damage() {
    let (_home, path) = Home::with_image("a");
    fs::write(path.join("profile.toml"), "speed = 2\n").unwrap();
    let error = Image::open(&path, CHECK).unwrap_err();
    assert!(error.to_string().contains("profile.toml"), "{error}");
    fs::remove_file(path.join("profile.toml")).unwrap();
    assert!(Image::open(&path, CHECK).is_err());
    assert!(!check(&path, CHECK).unwrap().is_sound());
}

/// Each kind of damage to each part is found, in its area, and no check changes a byte.
#[test]
fn a_check_finds_each_kind_of_damage_and_changes_nothing() {
    type Spoil = fn(&Path);
    let cases: [(Area, Spoil); 11] = [
        (Area::Superblock, |p| damage(p, 4000)),
        (Area::Superblock, |p| File::options().write(true).open(p.join("superblock")).unwrap().set_len(4096).unwrap()),
        (Area::Profile, |p| fs::write(p.join("profile.toml"), "speed = 3\n").unwrap()),
        (Area::Media, |p| fs::remove_file(p.join("media")).unwrap()),
        (Area::Media, |p| File::options().write(true).open(p.join("media")).unwrap().set_len(7).unwrap()),
        (Area::Pmr, |p| fs::remove_file(p.join("pmr")).unwrap()),
        (Area::Pmr, |p| fs::write(p.join("pmr"), vec![0; 128 * 1024]).unwrap()),
        (Area::Pmr, |p| File::options().write(true).open(p.join("pmr")).unwrap().set_len(4096).unwrap()),
        (Area::Pmr, |p| {
            fs::remove_file(p.join("pmr")).unwrap();
            let other = osier_pmr::Backing::File(p.join("pmr"));
            osier_pmr::Region::create(&other, 128 * 1024, [1; 16]).unwrap();
        }),
        (Area::Pmr, |p| {
            let file = File::options().write(true).open(p.join("pmr")).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&file, &[0xff], 100).unwrap();
        }),
        (Area::Keys, |p| fs::set_permissions(p.join("keys"), fs::Permissions::from_mode(0o755)).unwrap()),
    ];
    for (number, (area, spoil)) in cases.into_iter().enumerate() {
        let (_home, path) = Home::with_image("a");
        spoil(&path);
        let before = snapshot(&path);
        let report = check(&path, CHECK).unwrap();
        let found: Vec<Area> =
            report.findings.iter().filter(|f| f.severity == Severity::Damage).map(|f| f.area).collect();
        assert_eq!(found, [area], "case {number}: {report:?}");
        assert_eq!(snapshot(&path), before, "case {number}");
    }
}

#[test]
fn a_callers_findings_are_part_of_the_report() {
    let (_home, path) = Home::with_image("a");
    let mut deeper = |seen: &Inspection| {
        vec![Finding::new(Area::Map, Severity::Damage, format!("{} blocks lost", seen.superblock.logical_blocks))]
    };
    let report = check_with(&path, CHECK, &mut deeper).unwrap();
    assert!(!report.is_sound());
    assert_eq!(report.findings.last().unwrap().text, "200 blocks lost");
}

/// A file system of one mebibyte, unmounted at the end; nothing where this user may not mount.
struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(dir.path()).output();
        if made.is_ok_and(|output| output.status.success()) {
            return Some(Self { dir });
        }
        // Past the test's captured output, so that it is seen.
        let _ =
            writeln!(std::io::stderr(), "SKIPPED: a small tmpfs cannot be mounted here, so a full disk is not tested");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.dir.path()).status();
    }
}

#[test]
fn on_a_full_disk_nothing_is_left_behind_and_the_error_says_what_to_do() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let large = CreateOptions { pmr_bytes: 4 << 20, ..options() };
    let error = Image::create(&disk.dir.path().join("a"), &large, CHECK).unwrap_err();
    assert!(matches!(error, ImageError::NoSpace { .. }), "{error}");
    assert!(error.to_string().contains("free some space"), "{error}");
    assert_eq!(fs::read_dir(disk.dir.path()).unwrap().count(), 0);
    Image::create(&disk.dir.path().join("a"), &options(), CHECK).unwrap();
}

#[test]
fn a_full_disk_under_the_media_fails_the_program_and_keeps_what_was_there() {
    let Some(disk) = SmallDisk::mount() else {
        return;
    };
    let path = disk.dir.path().join("a");
    let options = CreateOptions { media_bytes: 8 << 20, ..options() };
    Image::create(&path, &options, CHECK).unwrap();
    let mut image = Image::open(&path, CHECK).unwrap();
    let media = image.open_media().unwrap();
    let block = vec![0x5a; 64 * 1024];
    let blocks = options.media_bytes / block.len() as u64;
    let stored = (0..blocks).take_while(|i| media.program(i * block.len() as u64, &block).is_ok()).count() as u64;
    assert!(stored > 0 && stored < blocks);
    let error = media.program(stored * block.len() as u64, &block).unwrap_err();
    assert!(error.is_no_space() && error.to_string().contains("intact"), "{error}");
    let mut found = vec![0; block.len()];
    for i in 0..stored {
        media.read(i * block.len() as u64, &mut found).unwrap();
        assert!(found == block, "block {i}");
    }
    media.erase(0, 8 * block.len() as u64).unwrap();
    media.program(stored * block.len() as u64, &block).unwrap();
    image.begin_incarnation().unwrap();
}

/// Whatever happens to the superblock's bytes, an image opens as itself or not at all, and opening and
/// checking change nothing in it.
#[test]
fn damage_anywhere_in_the_superblock_never_opens_as_something_else() {
    let (_home, path) = Home::with_image("a");
    let truth = inspect(&path).unwrap().superblock;
    let file = path.join("superblock");
    let sound = fs::read(&file).unwrap();
    let hits = prop::collection::vec((0..SUPERBLOCK_BYTES, any::<u8>()), 1..12);
    let length = prop_oneof![4 => Just(SUPERBLOCK_BYTES), 1 => 0..2 * SUPERBLOCK_BYTES];
    proptest!(|(hits in hits, length in length)| {
        let mut bytes = sound.clone();
        for (at, value) in hits {
            bytes[at] = value;
        }
        bytes.resize(length, 0xa5);
        fs::write(&file, &bytes).unwrap();
        if let Ok(image) = Image::open(&path, CHECK) {
            prop_assert_eq!(image.superblock(), &truth);
        }
        let _ = check(&path, CHECK);
        prop_assert_eq!(fs::read(&file).unwrap(), bytes);
    });
}
