//! Creating, opening, refusing and sharing regions.

use super::*;
use crate::{MapOptions, PAGE_BYTES};
use std::os::fd::AsRawFd;

const UUID: [u8; 16] = *b"a region's uuid!";
const BYTES: u64 = 1 << 20;

fn in_file() -> (tempfile::TempDir, PathBuf, Region) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pmr");
    let region = Region::create(&Backing::File(path.clone()), BYTES, UUID).unwrap();
    (folder, path, region)
}

fn in_memory() -> Region {
    Region::create(&Backing::Memfd, BYTES, UUID).unwrap()
}

#[test]
fn what_one_mapping_writes_the_other_reads() {
    let (_folder, path, first) = in_file();
    let second = Region::open(&path).unwrap();
    assert_eq!((second.uuid(), second.region_bytes()), (UUID, BYTES));
    let made = first.allocate("state", ObjectKind::RECORD, 10_000, PAGE_BYTES).unwrap();
    let found = second.find("state").unwrap();
    assert_eq!(found.entry(), made.entry());
    made.bytes().write(5, b"hello");
    let mut seen = [0; 5];
    found.bytes().read(5, &mut seen);
    assert_eq!(&seen, b"hello");
    made.word64(16).store(77, Ordering::Release);
    assert_eq!(found.word64(16).load(Ordering::Acquire), 77);
    assert_eq!(found.word32(16).load(Ordering::Acquire), 77);
}

#[test]
fn objects_outlive_every_process_in_a_file_and_its_holders_in_memory() {
    let (_folder, path, region) = in_file();
    region.allocate("kept", ObjectKind::RECORD, 100, 64).unwrap().bytes().write(0, b"kept");
    region.sync().unwrap();
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600, "users' data lie in it in the clear");
    drop(region);
    let again = Region::open(&path).unwrap();
    assert_eq!(again.find("kept").unwrap().bytes().get(0, 4).unwrap().to_vec(), b"kept");
    assert_ne!(again.survival().unwrap(), Survival::Holders);

    let memory = in_memory();
    let passed = Region::from_fd(memory.as_fd().try_clone_to_owned().unwrap()).unwrap();
    memory.allocate("o", ObjectKind::RECORD, 64, 64).unwrap().bytes().write(0, b"x");
    drop(memory);
    assert_eq!(passed.find("o").unwrap().bytes().to_vec()[0], b'x');
    assert_eq!(passed.survival().unwrap(), Survival::Holders);
}

#[test]
fn freed_space_is_zero_when_it_is_used_again() {
    let region = in_memory();
    let old = region.allocate("old", ObjectKind::ARENA, 8192, 4096).unwrap();
    old.bytes().fill(0, 8192, 0xAA);
    region.free("old").unwrap();
    assert!(!old.is_current());
    let new = region.allocate("new", ObjectKind::ARENA, 8192, 4096).unwrap();
    assert_eq!(new.offset(), old.offset());
    assert!(new.is_current() && !old.is_current());
    assert!(new.bytes().to_vec().iter().all(|byte| *byte == 0));
}

#[test]
fn a_change_of_owner_is_seen_by_later_finders() {
    let region = in_memory();
    let made = region.allocate("ring", ObjectKind::RING, 64, 64).unwrap();
    assert_eq!(made.owner(), Side::NOBODY);
    assert_eq!(region.set_owner("ring", Side::DEVICE).unwrap().owner(), Side::DEVICE);
    assert_eq!(region.find("ring").unwrap().owner(), Side::DEVICE);
    assert!(made.is_current(), "an older handle still means the same object");
    assert_eq!(region.check(), []);
}

#[test]
fn one_process_changes_the_table_until_it_lets_go() {
    let (_folder, path, first) = in_file();
    let second = Region::open(&path).unwrap();
    first.allocate("a", ObjectKind::RING, 64, 64).unwrap();
    let busy = second.allocate("b", ObjectKind::RING, 64, 64).unwrap_err();
    assert!(matches!(busy, PmrError::WriterBusy { .. }), "{busy}");
    assert!(matches!(second.free("a"), Err(PmrError::WriterBusy { .. })));
    second.find("a").unwrap();
    drop(first);
    second.allocate("b", ObjectKind::RING, 64, 64).unwrap();
}

#[test]
fn passing_the_descriptor_on_does_not_pass_the_writers_lock_on() {
    let first = in_memory();
    first.allocate("a", ObjectKind::RING, 64, 64).unwrap();
    let second = Region::from_fd(first.as_fd().try_clone_to_owned().unwrap()).unwrap();
    assert!(matches!(second.free("a"), Err(PmrError::WriterBusy { .. })));
}

#[test]
fn refusals_name_what_was_asked() {
    let region = in_memory();
    region.allocate("a", ObjectKind::RING, 64, 64).unwrap();
    let text = |result: Result<Object>| result.unwrap_err().to_string();
    let kind = ObjectKind::RING;
    assert!(text(region.allocate("a", kind, 64, 64)).contains("name is in use"));
    assert!(text(region.allocate("a b", kind, 64, 64)).contains("\"a b\""));
    assert!(text(region.allocate("b", kind, 0, 64)).contains("object b"));
    assert!(text(region.allocate("b", kind, 64, 48)).contains("power of two"));
    assert!(text(region.allocate("b", kind, BYTES, 64)).contains("largest gap has"));
    assert!(text(region.find("b")).contains("no object named b"));
}

#[test]
fn nothing_is_created_over_what_exists_or_left_behind_by_a_failure() {
    let (_folder, path, _region) = in_file();
    let again = Region::create(&Backing::File(path), BYTES, UUID).unwrap_err();
    assert!(matches!(again, PmrError::Exists { .. }));
    for bytes in [0, 4096, 65537, REGION_BYTES_MAX + 4096] {
        let refused = Region::create(&Backing::Memfd, bytes, UUID);
        assert!(matches!(refused, Err(PmrError::BadSize { .. })), "{bytes}");
    }
}

#[test]
fn more_than_there_is_is_refused_before_anything_is_taken() {
    let refused = Region::create(&Backing::Memfd, REGION_BYTES_MAX, UUID).unwrap_err();
    assert!(matches!(refused, PmrError::NoSpace { .. }), "{refused}");
    // Only where the file system knows its limit beforehand: others would fill the machine's disk first.
    let memory_disk = Path::new("/dev/shm");
    if !File::open(memory_disk).is_ok_and(|folder| map::is_in_memory(folder.as_fd(), "").unwrap()) {
        eprintln!("skipped: there is no memory file system at /dev/shm");
        return;
    }
    let folder = tempfile::tempdir_in(memory_disk).unwrap();
    let huge = folder.path().join("huge");
    let refused = Region::create(&Backing::File(huge.clone()), REGION_BYTES_MAX, UUID).unwrap_err();
    assert!(matches!(refused, PmrError::NoSpace { .. }), "{refused}");
    assert!(!huge.exists());
}

#[test]
fn a_full_file_system_is_an_error_at_creation() {
    // A memory file system of one mebibyte needs a mount, which tests may not be allowed to make.
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().to_str().unwrap();
    let mount = |arguments: &[&str]| std::process::Command::new(arguments[0]).args(&arguments[1..]).output();
    let mounted = mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "none", target]);
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    }
    let path = folder.path().join("pmr");
    let refused = Region::create(&Backing::File(path.clone()), 4 << 20, UUID);
    let left = path.exists();
    let fits = Region::create(&Backing::File(path), 512 * 1024, UUID).map(|region| region.survival());
    mount(&["umount", "-l", target]).unwrap();
    assert!(matches!(refused, Err(PmrError::NoSpace { bytes: 4_194_304, .. })));
    assert!(!left);
    assert_eq!(fits.unwrap().unwrap(), Survival::Processes);
}

/// Damages a region's file with `damage`, checks that opening it fails, and that opening changed nothing.
fn refused_after(damage: impl FnOnce(&File)) -> PmrError {
    let (_folder, path, region) = in_file();
    drop(region);
    damage(&File::options().write(true).open(&path).unwrap());
    let before = std::fs::read(&path).unwrap();
    let refused = Region::open(&path).unwrap_err();
    assert_eq!(std::fs::read(&path).unwrap(), before, "opening wrote to a damaged region");
    refused
}

#[test]
fn damage_is_told_apart_and_never_overwritten() {
    let other = refused_after(|file| file.write_all_at(b"SQLite format 3\0", 0).unwrap());
    assert!(matches!(other, PmrError::NotARegion { .. }), "{other}");
    let flipped = refused_after(|file| file.write_all_at(&[0xFF], 30).unwrap());
    assert!(matches!(flipped, PmrError::DamagedHeader { .. }), "{flipped}");
    let short = refused_after(|file| file.set_len(BYTES - 4096).unwrap());
    assert!(matches!(short, PmrError::Truncated { stated: BYTES, .. }), "{short}");
    let empty = refused_after(|file| file.set_len(0).unwrap());
    assert!(matches!(empty, PmrError::NotARegion { .. }), "{empty}");
    let cut_creation = refused_after(|file| file.write_all_at(&[0; HEADER_BYTES], 0).unwrap());
    assert!(matches!(cut_creation, PmrError::NotARegion { .. }), "{cut_creation}");
    let newer = refused_after(|file| {
        let mut prefix = *b"OSIERPMR\x09\0\0\0";
        prefix[8] = 9;
        file.write_all_at(&prefix, 0).unwrap();
        file.write_all_at(&crc32c::crc32c(&prefix).to_le_bytes(), 12).unwrap();
    });
    assert!(matches!(newer, PmrError::NewerVersion { found: 9, known: FORMAT_VERSION, .. }), "{newer}");
}

#[test]
fn a_damaged_record_is_reported_while_the_others_stay_usable() {
    let (_folder, path, region) = in_file();
    for name in ["a", "b"] {
        region.allocate(name, ObjectKind::RECORD, 64, 64).unwrap();
    }
    drop(region);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(b"z", crate::TABLE_OFFSET).unwrap();
    let region = Region::open(&path).unwrap();
    assert_eq!(region.check(), [Finding::DamagedEntry { slot: 0 }]);
    region.find("b").unwrap();
    let blocked = region.allocate("c", ObjectKind::RECORD, 64, 64).unwrap_err();
    assert!(matches!(blocked, PmrError::DamagedTable { count: 1, .. }), "{blocked}");
    assert_eq!(region.drop_damaged().unwrap(), 1);
    region.allocate("c", ObjectKind::RECORD, 64, 64).unwrap();
}

#[test]
fn a_sparse_copy_gets_its_space_back_when_opened() {
    let (folder, path, region) = in_file();
    drop(region);
    let copy = folder.path().join("copy");
    let sparse = File::create(&copy).unwrap();
    sparse.write_all_at(&std::fs::read(&path).unwrap()[..8192], 0).unwrap();
    sparse.set_len(BYTES).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&copy).unwrap()) * 512;
    assert!(blocks() < BYTES);
    Region::open(&copy).unwrap();
    assert!(blocks() >= BYTES);
}

#[test]
fn a_memory_region_cannot_be_cut_short() {
    let region = in_memory();
    let file = File::from(region.as_fd().try_clone_to_owned().unwrap());
    assert!(file.set_len(4096).is_err());
    assert!(file.set_len(BYTES * 2).is_err());
}

#[test]
fn an_object_is_mapped_where_it_is_asked_for_and_released_again() {
    let region = in_memory();
    let object = region.allocate("memory", ObjectKind::ACTOR_MEMORY, 65536, PAGE_BYTES).unwrap();
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh reservation of inaccessible address space; nothing existing is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), 65536, libc::PROT_NONE, flags, -1, 0) }.cast::<u8>();
    for populate in [false, true] {
        // SAFETY: the range was reserved above and nothing refers into it.
        unsafe { object.map_fixed(4096..12288, at, MapOptions { populate, writable: true }) }.unwrap();
        // SAFETY: just mapped writable, and only this thread uses it.
        unsafe { at.add(1).write_volatile(42) };
        assert_eq!(object.bytes().get(4097, 1).unwrap().to_vec(), [42]);
        // SAFETY: the range is ours and nothing refers into it.
        unsafe { crate::unmap_fixed(at, 8192) }.unwrap();
    }
    for range in [0..0, 1..4096, 0..4095, 0..65536 + 4096] {
        // SAFETY: the range was reserved above and nothing refers into it.
        let refused = unsafe { object.map_fixed(range, at, MapOptions::default()) };
        assert!(matches!(refused, Err(PmrError::BadRange { .. })));
    }
    // SAFETY: the reservation is ours.
    assert_eq!(unsafe { libc::munmap(at.cast(), 65536) }, 0);
}

#[test]
fn shared_bytes_are_cut_and_copied_within_their_borders() {
    let region = in_memory();
    let object = region.allocate("bytes", ObjectKind::ARENA, 1000, 1).unwrap();
    let bytes = object.bytes();
    assert_eq!(bytes.len(), 1000);
    bytes.write(990, &[7; 10]);
    assert_eq!(bytes.get(995, 5).unwrap().to_vec(), [7; 5]);
    assert!(bytes.get(996, 5).is_none() && bytes.get(u64::MAX, 2).is_none());
    assert!(bytes.get(1000, 0).unwrap().is_empty());
    let out_of_range = std::panic::catch_unwind(|| object.bytes().write(991, &[0; 10]));
    assert!(out_of_range.is_err());
    object.prefault().unwrap();
    object.sync().unwrap();
    // SAFETY: no one else touches the object in this test.
    let slice = unsafe { object.slice_mut() };
    slice[0] = 3;
    // SAFETY: as above, and the mutable slice is not used again.
    assert_eq!(unsafe { object.slice() }[..2], [3, 0]);
}

#[test]
fn a_killed_child_leaves_what_it_stored_and_frees_the_writers_lock() {
    let region = in_memory();
    let bell = region.allocate("word", ObjectKind::RECORD, 64, 64).unwrap();
    region.shared.writer.lock().unwrap().take();
    // SAFETY: the child only stores, locks and stops; it allocates no memory and takes no lock that a
    // thread of this test process could have held at the fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let locked = map::lock_writer(region.as_fd(), "child");
        bell.word64(0).store(if matches!(locked, Ok(Some(_))) { 1 } else { 2 }, Ordering::Release);
        loop {
            std::thread::park();
        }
    }
    while bell.word64(0).load(Ordering::Acquire) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(bell.word64(0).load(Ordering::Acquire), 1);
    assert!(matches!(region.free("word"), Err(PmrError::WriterBusy { .. })));
    // SAFETY: plain calls on our own child.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    region.free("word").unwrap();
    assert!(region.as_fd().as_raw_fd() >= 0);
}
