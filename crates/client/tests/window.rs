//! A window between two processes: loads and stores, deaths on either side, commands, bad manners, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::Device;
use osier_client::{
    Control, FaultMode, Refusal, Report, SHARDS_MAX, StoreTracking, Window, WindowError, WindowOptions, WindowStats,
    control_of,
};
use osier_device::window::Command as WindowCommand;
use osier_device::window::message::{RING_ENTRIES, ToDevice, ToMapper, WELCOME_BYTES};
use osier_pmr::{Doorbell, Region, Ring, SharedLines, pass, ring_bytes};

const PAGE: usize = 4096;
/// Nothing here takes that long; what does hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const MODES: [FaultMode; 3] = [FaultMode::InThread, FaultMode::Spinning, FaultMode::Sleeping];
/// What a child process of a test is to do, and with which device.
const CHILD: &str = "OSIER_TEST_CHILD";
const CHILD_SOCKET: &str = "OSIER_TEST_CHILD_SOCKET";

#[test]
fn serve_the_device() {
    common::serve();
}

fn open(device: &Device, mode: FaultMode) -> Window {
    Window::open(&device.socket(), &WindowOptions { mode, ..WindowOptions::default() }).unwrap()
}

/// Each way in which stores are tracked that this kernel has.
fn ways(device: &Device) -> Vec<StoreTracking> {
    let all = [StoreTracking::Asynchronous, StoreTracking::Faults, StoreTracking::FaultsLate, StoreTracking::Nothing];
    let has = |stores: &StoreTracking| {
        let options = WindowOptions { stores: Some(*stores), ..WindowOptions::default() };
        match Window::open(&device.socket(), &options) {
            Ok(window) => window.stores() == *stores,
            Err(error) => {
                assert!(matches!(error, WindowError::NoFeature { .. }), "{error}");
                let _ = writeln!(std::io::stderr(), "SKIPPED: {error}");
                false
            }
        }
    };
    all.into_iter().filter(has).collect()
}

/// Opens a window, and waits until the device has its page tables, and the window its figures.
fn open_tracking(device: &Device, mode: FaultMode, stores: StoreTracking) -> Window {
    let options = WindowOptions { mode, stores: Some(stores), ..WindowOptions::default() };
    let window = Window::open(&device.socket(), &options).unwrap();
    let leaves_clean = || {
        let before = window.stats().left_dirty;
        load(&window, 0);
        window.evict(0..1).unwrap();
        window.stats().left_dirty == before
    };
    leaves_clean();
    let began = Instant::now();
    while stores != StoreTracking::Nothing && !leaves_clean() {
        assert!(began.elapsed() < PATIENCE, "{mode:?}, {stores:?}: a page that is only loaded leaves dirty");
    }
    window
}

/// A word of the window, to be loaded and stored.
fn word(window: &Window, index: usize) -> *mut u64 {
    assert!((index + 1) * 8 <= window.len());
    // SAFETY: the word lies in the window, as was just asserted.
    unsafe { window.as_ptr().cast::<u64>().add(index) }
}

fn load(window: &Window, index: usize) -> u64 {
    // SAFETY: a word of the window.
    unsafe { word(window, index).read_volatile() }
}

fn store(window: &Window, index: usize, value: u64) {
    // SAFETY: a word of the window, of which this thread is the only user.
    unsafe { word(window, index).write_volatile(value) };
}

fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[test]
fn what_was_stored_is_loaded_in_each_mode() {
    for mode in MODES {
        let device = Device::start(512, 64, None);
        load_and_store(&open(&device, mode), mode, 6_000);
    }
}

#[test]
fn what_was_stored_is_loaded_however_stores_are_tracked() {
    let device = Device::start(512, 64, None);
    for stores in ways(&device).into_iter().filter(|stores| *stores != StoreTracking::Asynchronous) {
        for mode in MODES {
            let device = Device::start(512, 64, None);
            let window = open_tracking(&device, mode, stores);
            load_and_store(&window, mode, 1_500);
            let WindowStats { left, left_dirty, .. } = window.stats();
            assert_eq!(left == left_dirty, stores == StoreTracking::Nothing, "{mode:?}, {stores:?}");
        }
    }
}

/// Loads and stores at random, for so many steps, in a device of 512 pages, of which 64 are resident.
fn load_and_store(window: &Window, mode: FaultMode, steps: u64) {
    let words = window.len() / 8;
    let mut reference = vec![0_u64; words];
    let mut state = 1;
    for step in 0..steps {
        let index = random(&mut state) as usize % words;
        assert_eq!(load(window, index), reference[index], "{mode:?}, step {step}, word {index}");
        if random(&mut state).is_multiple_of(3) {
            reference[index] = step;
            store(window, index, step);
        }
    }
    for (index, expected) in reference.iter().enumerate().filter(|(index, value)| index % 509 == 0 || **value > 0) {
        assert_eq!(load(window, index), *expected, "{mode:?}, word {index}");
    }
    let stats = window.stats();
    let is_all_dirty = window.stores() == StoreTracking::Nothing;
    assert!(stats.left_dirty > steps / 12 && (is_all_dirty || stats.left > stats.left_dirty), "{mode:?}: {stats:?}");
    assert!(stats.resident <= 64 && stats.flash_written > steps / 12, "{mode:?}: {stats:?}");
}

/// Of pages that are all loaded some are stored to, some twice, some without a load before, and some by the kernel;
/// all leave.
#[test]
fn what_was_stored_to_leaves_dirty_and_nothing_else() {
    const PAGES: u64 = 32;
    let device = Device::start(512, 64, None);
    for stores in ways(&device) {
        for mode in MODES {
            let window = open_tracking(&device, mode, stores);
            let before = window.stats();
            (0..PAGES).filter(|page| page % 8 != 5).for_each(|page| _ = load(&window, page as usize * 512));
            let mut dirty = 0;
            for page in (0..PAGES).filter(|page| [1, 4, 5].contains(&(page % 8))) {
                store(&window, page as usize * 512 + 7, load(&window, page as usize * 512 + 7) + 1);
                store(&window, page as usize * 512 + 9, page);
                dirty += 1;
            }
            if mode != FaultMode::InThread {
                let mut zeroes = std::fs::File::open("/dev/zero").unwrap();
                // SAFETY: bytes of the window that nobody else uses.
                let bytes = unsafe { std::slice::from_raw_parts_mut(window.as_ptr().add(2 * PAGE), PAGE) };
                zeroes.read_exact(bytes).unwrap();
                dirty += 1;
            }
            assert_eq!(window.evict(0..PAGES).unwrap().done, PAGES, "{mode:?}, {stores:?}");
            let after = window.stats();
            let expected = if stores == StoreTracking::Nothing { PAGES } else { dirty };
            let (left, left_dirty) = (after.left - before.left, after.left_dirty - before.left_dirty);
            assert_eq!((left, left_dirty), (PAGES, expected), "{mode:?}, {stores:?}");
        }
    }
    let mut control = Control::open(&device.socket()).unwrap();
    let began = Instant::now();
    // In each mode, and once to see whether it can be.
    while !control.stats().unwrap().contains("\"programs_untracked\":4") {
        assert!(began.elapsed() < PATIENCE, "{}", control.stats().unwrap());
    }
}

/// A freeze unmaps what the device does not know to be unmapped; what was stored before is dirty all the same.
#[test]
fn a_freeze_hides_no_store() {
    const PAGES: u64 = 32;
    let device = Device::start(512, 64, None);
    for stores in ways(&device).into_iter().filter(|stores| *stores != StoreTracking::Nothing) {
        for mode in [FaultMode::Spinning, FaultMode::Sleeping] {
            let window = open_tracking(&device, mode, stores);
            let load_all = || (0..PAGES).for_each(|page| _ = load(&window, page as usize * 512));
            load_all();
            let before = window.stats();
            (0..PAGES / 2).for_each(|page| store(&window, page as usize * 512, 7));
            drop(window.freeze().unwrap());
            load_all();
            assert_eq!(window.evict(0..PAGES).unwrap().done, PAGES, "{mode:?}, {stores:?}");
            let left_dirty = window.stats().left_dirty - before.left_dirty;
            assert!((PAGES / 2..=PAGES).contains(&left_dirty), "{left_dirty}: {mode:?}, {stores:?}");
        }
    }
}

/// What another thread stores before a page is protected leaves the mark, and its bytes tell: here it is stored behind
/// the page tables' back.
#[test]
fn a_store_that_leaves_the_mark_is_found_by_the_bytes() {
    let device = Device::start(512, 64, None);
    let stores = StoreTracking::FaultsLate;
    if !ways(&device).contains(&stores) {
        return;
    }
    for mode in MODES {
        let window = open_tracking(&device, mode, stores);
        // One page that was never written, and one that was.
        store(&window, 512, 1);
        window.evict(0..2).unwrap();
        let before = window.stats().left_dirty;
        (0..2).for_each(|page| _ = load(&window, page * 512 + 3));
        for page in 0..2 {
            memory_of(&window).write_all_at(&[7], (page * PAGE + 24) as u64).unwrap();
        }
        window.evict(0..2).unwrap();
        assert_eq!(window.stats().left_dirty, before + 2, "{mode:?}");
        assert_eq!([3, 512 + 3].map(|index| load(&window, index)), [7; 2], "{mode:?}");
        [3, 512 + 3].into_iter().for_each(|index| store(&window, index, 0));
        window.evict(0..2).unwrap();
    }
}

/// The shared memory of a window, which other tests of this process have others of.
fn memory_of(window: &Window) -> std::fs::File {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let start = format!("{:x}-", window.as_ptr() as usize);
    let line = maps.lines().find(|line| line.starts_with(&start)).unwrap();
    // Addresses, permissions, offset, device, inode, name.
    let inode: u64 = line.split_whitespace().nth(4).unwrap().parse().unwrap();
    let paths = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let is_memory = |path: &std::path::PathBuf| {
        let is_named = std::fs::read_link(path).is_ok_and(|file| file.to_string_lossy().contains("memfd:osier-window"));
        is_named && std::fs::metadata(path).is_ok_and(|file| file.ino() == inode)
    };
    std::fs::File::options().write(true).open(paths.into_iter().find(is_memory).unwrap()).unwrap()
}

/// Two threads store to resident pages, which are drawn and unmapped all the while; then all leave, and come back.
#[test]
fn stores_to_pages_that_are_drawn_for_samples_are_kept() {
    let ways = ways(&Device::start(64, 48, None));
    for (mode, stores) in MODES.into_iter().flat_map(|mode| ways.iter().map(move |stores| (mode, *stores))) {
        let device = Device::start_sampling(64, 48, 16, 200);
        let window =
            Window::open(&device.socket(), &WindowOptions { mode, stores: Some(stores), ..WindowOptions::default() })
                .unwrap();
        let began = Instant::now();
        let mut rounds = 0;
        while window.stats().samples_used < 500 {
            assert!(began.elapsed() < PATIENCE, "{mode:?}: {:?}", window.stats());
            rounds += 1;
            std::thread::scope(|scope| {
                for user in 0..2 {
                    let window = &window;
                    scope.spawn(move || (0..32).for_each(|page| store(window, page * 512 + user, rounds)));
                }
            });
        }
        assert!(window.timing().sampling.count() > 100 && window.stats().left == 0, "{mode:?}: {:?}", window.stats());
        window.evict(0..64).unwrap();
        for page in 0..32 {
            let found = [0, 1].map(|user| load(&window, page * 512 + user));
            assert_eq!(found, [rounds; 2], "{mode:?}, page {page}");
        }
    }
}

#[test]
fn threads_and_processes_share_a_window() {
    let device = Device::start(256, 32, None);
    let window = open(&device, FaultMode::InThread);
    let mut children: Vec<_> = (0..2).map(|index| child(&format!("count {index}"), &device)).collect();
    // Each thread, and each child, counts in words of its own; all of them lie in all pages.
    std::thread::scope(|scope| {
        for thread in 2..4 {
            let window = &window;
            scope.spawn(move || count(window, thread));
        }
    });
    for child in &mut children {
        assert!(child.wait().unwrap().success());
    }
    for page in 0..256 {
        for user in 0..4 {
            assert_eq!(load(&window, page * 512 + user), 20, "page {page}, user {user}");
        }
    }
}

/// So many bytes of addresses that are this program's and that nobody uses.
fn reserve(bytes: usize) -> usize {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: no address is asked for, so no existing mapping is touched.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

#[test]
fn a_part_of_a_window_lies_where_it_is_wanted() {
    const FIRST: usize = 200;
    const PAGES: usize = 128;
    for mode in MODES {
        let device = Device::start(512, 64, None);
        let whole = open(&device, mode);
        let options = WindowOptions { bytes: Some((PAGES * PAGE) as u64), mode, ..WindowOptions::default() };
        // Between two pages that stay nobody's.
        let at = reserve((PAGES + 2) * PAGE) + PAGE;
        // SAFETY: they were just reserved.
        let part = unsafe { Window::open_at(&device.socket(), &options, (FIRST * PAGE) as u64, at) }.unwrap();
        assert_eq!((part.as_ptr() as usize, part.len()), (at, PAGES * PAGE));
        let mut reference = vec![0_u64; 512 * 512];
        let mut state = 2;
        for step in 1..6_000 {
            let (page, word) = (random(&mut state) as usize % 512, random(&mut state) as usize % 512);
            let index = page * 512 + word;
            let own = (FIRST..FIRST + PAGES).contains(&page).then(|| index - FIRST * 512);
            // Each is seen through the other.
            match own {
                Some(own) if step % 2 == 0 => store(&part, own, step),
                _ => store(&whole, index, step),
            }
            reference[index] = step;
            if let Some(own) = own {
                assert_eq!(load(&part, own), load(&whole, index), "{mode:?}, step {step}");
            }
        }
        for (index, expected) in reference.iter().enumerate().step_by(61) {
            assert_eq!(load(&whole, index), *expected, "{mode:?}, word {index}");
        }
        for own in (0..PAGES * 512).step_by(61) {
            assert_eq!(load(&part, own), reference[FIRST * 512 + own], "{mode:?}, word {own} of the part");
        }
        assert!(part.stats().left_dirty > 500, "{mode:?}: {:?}", part.stats());
        if mode != FaultMode::InThread {
            let frozen = part.freeze().unwrap();
            let mut seen = 0;
            let pages = FIRST as u64..(FIRST + PAGES) as u64;
            let each = |page: u64, bytes: &[u8; PAGE]| {
                let words = &reference[page as usize * 512..][..512];
                assert!(bytes.chunks(8).zip(words).all(|(bytes, word)| *bytes == word.to_le_bytes()), "page {page}");
                seen += 1;
            };
            frozen.copy(pages, each).unwrap();
            assert_eq!(seen, PAGES);
        }
        // SAFETY: what is refused maps nothing.
        let beyond = unsafe { Window::open_at(&device.socket(), &options, 500 * PAGE as u64, at) };
        assert!(matches!(beyond, Err(WindowError::TooLarge { .. })), "{mode:?}");
    }
}

/// Threads that fault on both sides of the borders between parts, pages mapped ahead over them, and what else is done
/// to a window.
#[test]
fn a_window_in_parts_is_one_window() {
    const PAGES: usize = 509;
    // A prime: the last part is shorter.
    let sleeping = FaultMode::Sleeping;
    for (mode, shards) in [(FaultMode::InThread, 3), (FaultMode::Spinning, 2), (sleeping, 3), (sleeping, 16)] {
        let device = Device::start_ahead(512, 64);
        let bytes = Some((PAGES * PAGE) as u64);
        let options = WindowOptions { mode, shards, bytes, ..WindowOptions::default() };
        let window = Window::open(&device.socket(), &options).unwrap();
        std::thread::scope(|scope| {
            for user in 0..3 {
                let window = &window;
                scope.spawn(move || count(window, user));
            }
            // All pages in a row, again and again.
            scope.spawn(|| (0..8 * PAGES).for_each(|page| assert_eq!(load(&window, page % PAGES * 512 + 9), 0)));
        });
        let handlers = if mode == FaultMode::InThread { 0 } else { shards };
        assert_eq!(window.threads(), 2 + handlers, "{mode:?}, {shards} parts");
        assert!(window.stats().left_dirty > 1000, "{mode:?}, {shards} parts: {:?}", window.stats());
        if mode != FaultMode::InThread {
            freezes_whole(&window, PAGES);
        }
        // SAFETY: the child does nothing but to touch the window.
        let child = unsafe { libc::fork() };
        if child == 0 {
            load(&window, (PAGES - 1) * 512);
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: the child is this process's own, and the value lives.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV, "{mode:?}, {shards} parts");
        // A page that is on its way in, ahead, is refused.
        let began = Instant::now();
        while window.evict(0..PAGES as u64).unwrap().refused > 0 {
            assert!(began.elapsed() < PATIENCE, "{mode:?}, {shards} parts");
        }
        drop(window);
        let whole = open(&device, FaultMode::InThread);
        (0..PAGES * 3).for_each(|at| assert_eq!(load(&whole, at / 3 * 512 + at % 3), 20, "{mode:?}, {shards} parts"));
    }
    let device = Device::start(64, 16, None);
    let options = WindowOptions { shards: SHARDS_MAX + 1, ..WindowOptions::default() };
    let refused = Window::open(&device.socket(), &options).unwrap_err().to_string();
    assert!(refused.contains("at most 16 parts") && refused.contains("not 17"), "{refused}");
}

/// A thread that stores to every part all the time stores nothing while the window is frozen.
fn freezes_whole(window: &Window, pages: usize) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Each round stores to all pages: at any instant they have this round's number or that of before.
            let mut round = 1;
            while !is_over.load(Ordering::Relaxed) {
                (0..pages).for_each(|page| store(window, page * 512 + 100, round));
                round += 1;
            }
        });
        for _ in 0..5 {
            let frozen = window.freeze().unwrap();
            let mut words = vec![0; pages];
            let word = |bytes: &[u8; PAGE]| u64::from_le_bytes(bytes[800..808].try_into().unwrap());
            frozen.copy(0..pages as u64, |page, bytes| words[page as usize] = word(bytes)).unwrap();
            let first = words[0];
            let turn = words.iter().position(|word| *word != first).unwrap_or(pages);
            let is_one_instant = words[turn..].iter().all(|word| *word + 1 == first);
            assert!(is_one_instant, "page {turn} and on: {:?}", &words[turn..]);
            drop(frozen);
            std::thread::sleep(Duration::from_millis(3));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Counts to 20 in a word of each page.
fn count(window: &Window, user: usize) {
    let mut state = user as u64;
    let pages = window.len() / PAGE;
    let mut left: Vec<(usize, u64)> = (0..pages).map(|page| (page, 0)).collect();
    while !left.is_empty() {
        let pick = random(&mut state) as usize % left.len();
        let (page, done) = left[pick];
        let index = page * 512 + user;
        assert_eq!(load(window, index), done, "page {page} of user {user}");
        store(window, index, done + 1);
        left[pick].1 += 1;
        if done + 1 == 20 {
            left.swap_remove(pick);
        }
    }
}

/// Starts this test program again, to do something else.
fn child(what: &str, device: &Device) -> std::process::Child {
    child_command(what, device).spawn().unwrap()
}

fn child_command(what: &str, device: &Device) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["the_child", "--exact", "--nocapture"]).env(CHILD, what).env(CHILD_SOCKET, device.socket());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

#[test]
fn the_child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let socket = std::env::var_os(CHILD_SOCKET).unwrap();
    let words: Vec<&str> = what.split(' ').collect();
    let mode = match words.get(2) {
        Some(&"Spinning") => FaultMode::Spinning,
        Some(&"Sleeping") => FaultMode::Sleeping,
        _ => FaultMode::InThread,
    };
    if words[0] == "scribbles" {
        let first: u64 = words[1].parse().unwrap();
        return (first..first + 5).for_each(|seed| scribble(socket.as_ref(), seed));
    }
    let shards = words.get(3).map_or(1, |word| word.parse().unwrap());
    let window = Window::open(socket.as_ref(), &WindowOptions { mode, shards, ..WindowOptions::default() });
    let window = window.unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(9);
    });
    match words[0] {
        "count" => count(&window, words[1].parse().unwrap()),
        "opens" => {}
        "holds" => hold_and_stop(&window),
        "pins" => {
            let pinned = window.pin(0..12).unwrap();
            eprintln!("{} pages are pinned", pinned.done);
            std::thread::park();
        }
        "policies" => {
            eprintln!("it begins");
            loop {
                window.set_policy("sieve").unwrap();
                window.set_policy("s3-fifo").unwrap();
            }
        }
        "alarms" => touch_in_alarms(&window),
        "load" => _ = load(&window, words[1].parse::<usize>().unwrap() * 512),
        // Until it is killed, or the device is.
        "churn" => {
            eprintln!("it begins");
            let mut state = 5;
            loop {
                let index = random(&mut state) as usize % (window.len() / 8);
                store(&window, index, index as u64 + 1);
                assert_eq!(load(&window, index), index as u64 + 1);
            }
        }
        other => panic!("{other}"),
    }
}

/// Stores to pages at random, loads all of them, and others. What the device then has of memory and page tables.
fn large(device: &Device, stores: u64, seed: u64) -> (u64, u64) {
    let window = open(device, FaultMode::InThread);
    let pages = window.len() as u64 / PAGE as u64;
    let value = |page: u64| page * 3 + 1;
    let place = |page: u64| (page * 512 + page % 512) as usize;
    let mut state = seed;
    for _ in 0..stores {
        let page = random(&mut state) % pages;
        store(&window, place(page), value(page));
    }
    let memory = device.memory();
    let mut state = seed;
    for _ in 0..stores {
        let page = random(&mut state) % pages;
        assert_eq!(load(&window, place(page)), value(page), "page {page}");
        let other = random(&mut state.clone()) * 7 % pages;
        let found = load(&window, place(other));
        assert!(found == 0 || found == value(other), "page {other} has {found}");
    }
    let stats = window.stats();
    assert!(stats.left_dirty + stats.frames >= stores * 9 / 10, "{stats:?}");
    (memory.0.max(device.memory().0), memory.1.max(device.memory().1))
}

/// What the map of the translation layer has for each page that was written, beside what it has from the beginning: the
/// state of a slot (72 bytes), the record of its unit (48 with the allocator's), the checksum and its growth (24).
const MAP_BYTES_PER_PAGE: u64 = 144;

#[test]
fn a_window_on_a_file_reads_back_right_in_bounded_memory() {
    let media = tempfile::tempdir().unwrap();
    let (pages, cache, stores) = ((2 << 30) / 4096, (16 << 20) / 4096, 30_000);
    let device = Device::start_in_file(pages, cache, media.path());
    let (map, _) = device.memory();
    let (resident, tables) = large(&device, stores, 11);
    let limit = (16 << 20) + map + stores * MAP_BYTES_PER_PAGE + (64 << 20);
    eprintln!("map {} KiB, resident {} KiB, page tables {} KiB", map >> 10, resident >> 10, tables >> 10);
    assert!(resident <= limit, "{resident} bytes are resident, of {limit}");
}

/// As the one above, in full: at release.
#[test]
#[ignore = "minutes, and gigabytes of disk"]
fn a_window_of_64_gib_on_a_file_reads_back_right_in_bounded_memory() {
    let seed = std::env::var("OSIER_SEED_FIRST").map_or(11, |text| text.parse().unwrap());
    let media = tempfile::tempdir_in(std::env::var_os("OSIER_MEDIA_DIRECTORY").unwrap_or("/var/tmp".into())).unwrap();
    let (pages, cache, stores) = ((64 << 30) / 4096, (512 << 20) / 4096, 400_000);
    let device = Device::start_in_file(pages, cache, media.path());
    let (map, _) = device.memory();
    let (resident, tables) = large(&device, stores, seed);
    let limit = (512 << 20) + map + stores * MAP_BYTES_PER_PAGE + (64 << 20);
    println!(
        "map {} MiB, resident {} MiB of {}, page tables {} MiB",
        map >> 20,
        resident >> 20,
        limit >> 20,
        tables >> 20
    );
    assert!(resident <= limit, "{resident} bytes are resident, of {limit}");
}

/// A process that loads and stores for ever, once it has begun.
fn churning(mode: FaultMode, shards: usize, device: &Device) -> std::process::Child {
    let mut program = child(&format!("churn 0 {mode:?} {shards}"), device);
    let mut byte = [0];
    std::io::Read::read_exact(program.stderr.as_mut().unwrap(), &mut byte).unwrap();
    program
}

fn await_end(child: &mut std::process::Child) -> std::process::ExitStatus {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "it hangs");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_program_whose_device_dies_gets_sigbus_and_a_message() {
    for (mode, shards) in MODES.into_iter().flat_map(|mode| [1, 3].map(|shards| (mode, shards))) {
        let mut device = Device::start(512, 64, None);
        let mut program = churning(mode, shards, &device);
        await_figures(&device, |stats| stats.left_dirty > 100);
        assert!(program.try_wait().unwrap().is_none(), "{mode:?}: it runs");
        device.kill();
        let status = await_end(&mut program);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{mode:?}: {status}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("the device has died") && said.contains("test-device"), "{mode:?}: {said}");
    }
}

#[test]
fn a_program_that_is_killed_in_a_fault_leaves_the_device_whole() {
    let device = Device::start(512, 64, None);
    for round in 0..10 {
        let mut program = churning(FaultMode::InThread, 1, &device);
        std::thread::sleep(Duration::from_millis(20 + round * 7));
        program.kill().unwrap();
        program.wait().unwrap();
    }
    // Whatever it stored is there, in whole words.
    let window = open(&device, FaultMode::InThread);
    let mut stored = 0;
    for index in 0..window.len() / 8 {
        let value = load(&window, index);
        assert!(value == 0 || value == index as u64 + 1, "word {index} is {value}");
        stored += u64::from(value != 0);
    }
    assert!(stored > 100, "{stored}");
}

#[test]
fn a_page_that_the_flash_has_lost_is_reported() {
    for mode in MODES {
        let mut device = Device::start(512, 64, Some(9));
        let window = open(&device, FaultMode::InThread);
        store(&window, 9 * 512, 1);
        window.evict(9..10).unwrap();
        device.await_rot();
        drop(window);
        let mut program = child(&format!("load 9 {mode:?}"), &device);
        let status = await_end(&mut program);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{mode:?}: {status}");
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.stderr.take().unwrap(), &mut said).unwrap();
        assert!(said.contains("cannot read a page") && said.contains("test-device"), "{mode:?}: {said}");
        assert!(await_end(&mut child(&format!("load 8 {mode:?}"), &device)).success(), "{mode:?}: the others are well");
    }
}

/// Waits until the device's figures are as they should be.
fn await_figures(device: &Device, are_right: impl Fn(&WindowStats) -> bool) {
    let window = open(device, FaultMode::InThread);
    let began = Instant::now();
    while !are_right(&window.stats()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", window.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

const HELD: usize = 24;

/// Stores to some pages, stops, and finds them as they were when it goes on.
fn hold_and_stop(window: &Window) {
    (0..HELD).for_each(|page| store(window, page * 512, page as u64 + 1));
    // SAFETY: a plain call.
    unsafe { libc::raise(libc::SIGSTOP) };
    for page in 0..HELD {
        assert_eq!(load(window, page * 512), page as u64 + 1, "page {page}");
    }
}

#[test]
fn a_program_that_is_stopped_holds_up_nobody_who_has_other_pages() {
    let device = Device::start(512, 64, None);
    let mut program = child("holds 0", &device);
    let (pid, mut status) = (program.id() as libc::pid_t, 0);
    // SAFETY: the child is ours and the pointer is to a live value.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) }, pid);
    assert!(libc::WIFSTOPPED(status), "{status:#x}");
    let (is_done, was_held_up) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let began = Instant::now();
            while !is_done.load(Ordering::Relaxed) && began.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(10));
            }
            was_held_up.store(!is_done.load(Ordering::Relaxed), Ordering::Relaxed);
            // SAFETY: a plain call; the child has not been waited for.
            unsafe { libc::kill(pid, libc::SIGCONT) };
        });
        let window = open(&device, FaultMode::InThread);
        for round in 0..3 {
            for page in 100..300 {
                assert_eq!(load(&window, page * 512), if round == 0 { 0 } else { page as u64 });
                store(&window, page * 512, page as u64);
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert!(!was_held_up.load(Ordering::Relaxed), "the stopped program held it up");
    assert!(await_end(&mut program).success(), "it goes on");
    let window = open(&device, FaultMode::InThread);
    (0..HELD).for_each(|page| assert_eq!(load(&window, page * 512), page as u64 + 1));
}

#[test]
fn what_a_program_had_pinned_is_free_when_it_has_ended() {
    let device = Device::start(512, 64, None);
    let one = open(&device, FaultMode::InThread);
    let other = open(&device, FaultMode::InThread);
    assert_eq!(one.pin(0..16).unwrap().done, 16);
    assert!(matches!(other.pin(20..21), Err(WindowError::Command { refusal: Refusal::PinLimit { .. }, .. })));
    assert_eq!(other.unpin(0..16).unwrap().done, 0, "they are not its own");
    drop(one);
    let began = Instant::now();
    while let Err(error) = other.pin(20..36) {
        assert!(began.elapsed() < PATIENCE, "{error}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_a_killed_program_had_pinned_is_free_and_what_others_pinned_is_not() {
    let device = Device::start(512, 64, None);
    let mut control = Control::open(&device.socket()).unwrap();
    let other = open(&device, FaultMode::InThread);
    // 16 pages may be pinned: 4 for whoever uses the control socket, 12 for the program.
    assert_eq!(control.pin(100..104).unwrap().done, 4);
    for mode in ["InThread", "Sleeping"] {
        let mut program = child(&format!("pins 0 {mode}"), &device);
        let mut line = String::new();
        BufReader::new(program.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "12 pages are pinned\n", "{mode}");
        assert!(matches!(other.pin(20..21), Err(WindowError::Command { refusal: Refusal::PinLimit { .. }, .. })));
        program.kill().unwrap();
        program.wait().unwrap();
        let began = Instant::now();
        while let Err(error) = other.pin(20..32) {
            assert!(began.elapsed() < PATIENCE, "{mode}: {error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The pages that were pinned leave; those of the control socket stay.
        assert_eq!(other.evict(0..12).unwrap().refused, 0, "{mode}");
        assert_eq!(other.evict(100..104).unwrap().refused, 4, "{mode}");
        assert!(control.stats().unwrap().contains("\"pinned_by_control\":4"), "{mode}");
        assert_eq!(other.unpin(20..32).unwrap().done, 12, "{mode}");
    }
}

/// A program that gives a command and detaches without waiting for its end; what it was answered.
fn command_and_detach(device: &Device, tag: u32, command: WindowCommand) -> ToMapper {
    let socket = UnixStream::connect(device.socket()).unwrap();
    let mut welcome = [0; WELCOME_BYTES];
    let (_, fds) = pass::receive(&socket, &mut welcome).unwrap();
    let [_memory, segment, bell, _device] = <[_; 4]>::try_from(fds).unwrap();
    let segment = Region::from_fd(segment).unwrap();
    let bell = Doorbell::new(&Region::from_fd(bell).unwrap().find("bell").unwrap(), 0);
    let ring = |name| {
        let object = segment.find(name).unwrap();
        Ring::open(SharedLines::new(&object, 0, (ring_bytes(RING_ENTRIES) / 64) as usize)).unwrap()
    };
    let (mut to_device, mut from_device) = (ring("to-device").producer(), ring("to-mapper").consumer());
    for message in [ToDevice::Command(tag, command), ToDevice::Detach] {
        to_device.push(message.encode().unwrap()).unwrap();
    }
    bell.ring();
    let began = Instant::now();
    loop {
        if let Some(words) = from_device.pop() {
            return ToMapper::decode(&words).unwrap();
        }
        assert!(began.elapsed() < PATIENCE, "the answer is lost");
        std::thread::yield_now();
    }
}

#[test]
fn a_policy_is_changed_and_answered_though_who_asked_goes_at_once() {
    let device = Device::start(512, 64, None);
    let window = open(&device, FaultMode::InThread);
    let expected = Report { done: 1, ..Report::default() };
    for tag in 0..40 {
        let name = ["sieve", "s3-fifo", "lru"][tag as usize % 3].to_owned();
        let command = WindowCommand::Policy { name: name.clone(), parameters: Default::default() };
        let answer = command_and_detach(&device, tag, command);
        assert_eq!(answer, ToMapper::Done { tag, result: Ok(expected) }, "{name}");
        // In order, by the library.
        assert_eq!(open(&device, FaultMode::InThread).set_policy("sieve").unwrap(), expected);
        // Over the control socket, by one who says no more, and by one who does not listen.
        for shut in [Shutdown::Write, Shutdown::Both] {
            let mut socket = UnixStream::connect(control_of(&device.socket())).unwrap();
            socket.write_all(format!("policy {name}\n").as_bytes()).unwrap();
            socket.shutdown(shut).unwrap();
            let mut answer = String::new();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, if shut == Shutdown::Write { "ok 1 0 0\n" } else { "" }, "{name}");
        }
        (0..512).for_each(|page| store(&window, page * 512, page as u64));
    }
    // Killed somewhere in the middle of it, and others have their answers.
    for _ in 0..5 {
        let mut program = child("policies", &device);
        BufReader::new(program.stderr.take().unwrap()).read_line(&mut String::new()).unwrap();
        assert_eq!(window.set_policy("lru").unwrap(), expected);
        program.kill().unwrap();
        program.wait().unwrap();
        (0..512).for_each(|page| assert_eq!(load(&window, page * 512), page as u64));
    }
    assert_eq!(Control::open(&device.socket()).unwrap().set_policy("clock").unwrap(), expected);
}

#[test]
fn commands_without_a_window_do_what_they_say() {
    let device = Device::start(512, 64, None);
    let window = open(&device, FaultMode::InThread);
    let mut control = Control::open(&device.socket()).unwrap();
    assert_eq!(control.prefetch(0..8).unwrap().done, 8);
    assert_eq!(control.pin(4..12).unwrap().done, 8);
    (0..512).for_each(|page| _ = load(&window, page * 512));
    let report = window.evict(0..512).unwrap();
    assert_eq!(report.refused, 8, "what is pinned");
    drop(control);
    // Its pins are the control socket's, not the connection's.
    let mut control = Control::open(&device.socket()).unwrap();
    assert!(control.stats().unwrap().contains("\"pinned_by_control\":8"));
    assert_eq!(window.unpin(0..512).unwrap().done, 0);
    assert_eq!(control.unpin(0..512).unwrap().done, 8);
    assert_eq!(control.evict(0..512).unwrap().refused, 0);
    assert_eq!(control.set_policy("s3-fifo:small_permille=200").unwrap().done, 1);
    for (said, why) in [
        (control.set_policy("sieve:size=1"), "`sieve` has no parameter `size`"),
        (control.set_policy("nonsense"), "there is no eviction policy"),
        (control.pin(0..17), "cannot be pinned"),
        (control.evict(500..513), "pages 500 to 513 are not all in the window"),
    ] {
        let error = said.unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
    let nowhere = Control::open("/nonexistent/window.sock".as_ref()).unwrap_err();
    assert!(nowhere.to_string().contains("is it running?"));
}

/// A program that attaches in order and then writes whatever into the memory that it shares with the device.
fn scribble(socket: &Path, seed: u64) {
    let mut state = seed;
    let socket = UnixStream::connect(socket).unwrap();
    let mut welcome = [0; WELCOME_BYTES];
    let (_, fds) = pass::receive(&socket, &mut welcome).unwrap();
    let [_memory, segment, bell, _device] = <[_; 4]>::try_from(fds).unwrap();
    let segment = Region::from_fd(segment).unwrap();
    let bell = Doorbell::new(&Region::from_fd(bell).unwrap().find("bell").unwrap(), 0);
    let objects =
        ["lanes", "words", "timing", "bell", "to-device", "to-mapper"].map(|name| segment.find(name).unwrap());
    let lines = SharedLines::new(&objects[4], 0, (ring_bytes(RING_ENTRIES) / 64) as usize);
    let mut ring = Ring::open(lines).unwrap().producer();
    for _ in 0..200 {
        // What has the form of a message, of pages that there are and that there are not.
        let pages = random(&mut state) % 600..random(&mut state) % 600;
        let command = [WindowCommand::Prefetch, WindowCommand::Pin, WindowCommand::Unpin, WindowCommand::Evict];
        let command = command[random(&mut state) as usize % 4](pages);
        let mut words = ToDevice::Command(random(&mut state) as u32, command).encode().unwrap();
        if random(&mut state).is_multiple_of(4) {
            words[0] = random(&mut state) << 33 & !(1 << 63) | random(&mut state);
        }
        let _ = ring.push(words);
        bell.ring();
        // And what has not.
        let object = &objects[random(&mut state) as usize % 4];
        for _ in 0..random(&mut state) % 16 {
            let at = random(&mut state) % (object.len() / 8) * 8;
            object.word64(at).store(random(&mut state) << 31 ^ random(&mut state), Ordering::Relaxed);
        }
        if random(&mut state).is_multiple_of(8) {
            std::thread::yield_now();
        }
    }
    for object in &objects[4..] {
        (0..object.len() / 8)
            .for_each(|word| object.word64(word * 8).store(random(&mut state) << 32, Ordering::Relaxed));
    }
    bell.ring();
    let _ = (&socket).write_all(&random(&mut state).to_le_bytes());
}

/// Sends whatever over the control socket, and does not listen.
fn babble(device: &Device, seed: u64) {
    let mut state = seed;
    let mut socket = UnixStream::connect(control_of(&device.socket())).unwrap();
    socket.set_nonblocking(true).unwrap();
    let words: [&[u8]; 9] = [
        b"stats\n",
        b"stats",
        b"evict 0 ",
        b"pin 3 9\n",
        b"\n",
        b"policy sieve\n",
        b"\xff\xfe",
        b" ",
        b"unpin 0 512\n",
    ];
    for _ in 0..2_000 {
        // A full socket, or one that was closed.
        if socket.write(words[random(&mut state) as usize % words.len()]).is_err() {
            return;
        }
    }
}

#[test]
fn whatever_a_program_sends_harms_no_other() {
    let device = Device::start(512, 64, None);
    let window = open(&device, FaultMode::InThread);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..8 {
                let mut program = child(&format!("scribbles {}", round * 5), &device);
                (0..5).for_each(|seed| babble(&device, round * 5 + seed));
                assert!(await_end(&mut program).success());
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let mut reference = [0; 512];
        let mut state = 7;
        while !is_done.load(Ordering::Relaxed) {
            let page = random(&mut state) as usize % 512;
            assert_eq!(load(&window, page * 512), reference[page], "page {page}");
            reference[page] = random(&mut state);
            store(&window, page * 512, reference[page]);
        }
        (0..512).for_each(|page| assert_eq!(load(&window, page * 512), reference[page], "page {page}"));
    });
    // A line that does not end is refused, and everybody is answered as before.
    let mut long = UnixStream::connect(control_of(&device.socket())).unwrap();
    long.write_all(&[b'x'; 1025]).unwrap();
    let mut said = String::new();
    long.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("error a request is a line"), "{said}");
    let mut control = Control::open(&device.socket()).unwrap();
    assert!(control.stats().unwrap().starts_with('{'));
    // What was pinned can be unpinned, and what programs pinned went with them.
    while control.unpin(0..512).unwrap().done > 0 {}
    let began = Instant::now();
    while window.evict(0..512).unwrap().refused > 0 {
        assert!(began.elapsed() < PATIENCE, "somebody who has gone has pages pinned");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn commands_do_what_they_say() {
    let device = Device::start(512, 64, None);
    let window = open(&device, FaultMode::InThread);
    let report = window.prefetch(0..8).unwrap();
    assert_eq!((report.done, report.idle, report.refused), (8, 0, 0));
    let report = window.prefetch(4..12).unwrap();
    assert_eq!((report.done, report.idle), (4, 4));
    assert_eq!(window.stats().resident, 12);
    assert_eq!(window.pin(0..4).unwrap().done, 4);
    store(&window, 0, 77);
    // A scan of the whole window leaves what is pinned.
    (0..512).for_each(|page| _ = load(&window, page * 512));
    assert_eq!(window.prefetch(0..4).unwrap().idle, 4, "what is pinned is there");
    // The end of a command comes with the figures up to it.
    let misses = window.stats().misses;
    assert_eq!(load(&window, 0), 77);
    let report = window.evict(0..12).unwrap();
    assert_eq!((report.done, report.idle, report.refused), (0, 8, 4));
    assert_eq!(window.unpin(0..12).unwrap().done, 4);
    assert_eq!(window.evict(0..4).unwrap().done, 4);
    assert_eq!(load(&window, 0), 77);
    // The figures come after the answer.
    let began = Instant::now();
    while window.stats().misses == misses && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(window.stats().misses, misses + 1);
    assert_eq!(window.set_policy("s3-fifo:small_permille=300,promote_uses=1").unwrap().done, 1);
    assert_eq!(window.set_policy("sieve").unwrap().done, 1);
    assert_eq!(load(&window, 0), 77);
}

#[test]
fn what_cannot_be_done_is_refused() {
    let device = Device::start(512, 64, None);
    let open =
        |bytes| Window::open(&device.socket(), &WindowOptions { bytes: Some(bytes), ..WindowOptions::default() });
    assert!(matches!(open(513 * 4096).err(), Some(WindowError::TooLarge { bytes: 2_097_152, .. })));
    let window = open(10 * 4096).unwrap();
    assert_eq!(window.len(), 10 * 4096);
    let refusal = |result| match result {
        Err(WindowError::Command { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    };
    // 16 pages may be pinned; the 17th undoes the others.
    assert_eq!(refusal(window.pin(0..17)), Refusal::PinLimit { page: 16, max: 16 });
    assert_eq!(window.unpin(0..17).unwrap().done, 0);
    assert_eq!(window.pin(0..16).unwrap().done, 16);
    assert_eq!(refusal(window.prefetch(510..513)), Refusal::OutOfRange { first: 510, end: 513 });
    let backwards = std::ops::Range { start: 3, end: 2 };
    assert_eq!(refusal(window.evict(backwards)), Refusal::OutOfRange { first: 3, end: 2 });
    for (policy, said) in [
        ("nonsense", "there is no eviction policy \"nonsense\""),
        ("s3-fifo:small_permille=0", "which is outside 1..=999"),
        ("s3-fifo:size=3", "has no parameter `size`"),
        ("s3-fifo:small_permille=x", "is not KEY=NUMBER"),
    ] {
        let error = window.set_policy(policy).unwrap_err();
        assert!(matches!(&error, WindowError::Policy(why) if why.to_string().contains(said)), "{policy}: {error}");
    }
    let nowhere = Window::open("/nonexistent/window.sock".as_ref(), &WindowOptions::default());
    assert!(nowhere.err().unwrap().to_string().contains("is it running?"));
}

static BASE: AtomicUsize = AtomicUsize::new(0);
static ALARMS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_alarm(_: libc::c_int) {
    let alarm = ALARMS.fetch_add(1, Ordering::Relaxed);
    let page = alarm.wrapping_mul(0x9e37_79b1) % 512;
    // SAFETY: a word of the window, which nobody else uses.
    unsafe { (BASE.load(Ordering::Relaxed) as *mut u64).add(page * 512 + 1).write_volatile(1) };
}

/// Loads and stores at random and gives commands, and in the handler of a timer loads and stores, too: also while the
/// thread holds what it needs for a command.
fn touch_in_alarms(window: &Window) {
    BASE.store(window.as_ptr() as usize, Ordering::Relaxed);
    let every = libc::timeval { tv_sec: 0, tv_usec: 300 };
    let timer = libc::itimerval { it_interval: every, it_value: every };
    // SAFETY: plain calls with live values; the handler does what a handler may.
    unsafe {
        libc::signal(libc::SIGALRM, on_alarm as *const () as usize);
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
    let mut state = 3;
    while ALARMS.load(Ordering::Relaxed) < 1_000 {
        let index = random(&mut state) as usize % 512 * 512;
        store(window, index, load(window, index) + 1);
        let page = index as u64 / 512;
        if page.is_multiple_of(8) {
            window.prefetch(page..(page + 4).min(512)).unwrap();
        }
    }
    // At once, with everything as it is: an alarm may be under way in another thread.
    // SAFETY: nothing has to be cleaned up.
    unsafe { libc::_exit(0) };
}

#[test]
fn a_signals_handler_may_touch_the_window_while_a_fault_waits() {
    let device = Device::start(512, 32, None);
    for mode in MODES {
        let mut program = child(&format!("alarms 0 {mode:?}"), &device);
        let status = await_end(&mut program);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.stderr.take().unwrap(), &mut said).unwrap();
        assert!(status.success(), "{mode:?}: {status}, {said}");
    }
}

#[test]
fn a_forked_child_does_not_have_the_window() {
    let device = Device::start(512, 64, None);
    for mode in [FaultMode::InThread, FaultMode::Sleeping] {
        let window = open(&device, mode);
        store(&window, 0, 5);
        // SAFETY: the child asks for one command and ends; a command that is refused takes no lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let is_refused = matches!(window.evict(0..8), Err(WindowError::Forked { .. }));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if is_refused { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: the child is ours and the pointer is to a live value.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "{mode:?}: the child has no commands");
        assert_eq!(window.evict(0..1).unwrap().done, 1, "{mode:?}: the parent's are answered");
        // SAFETY: the child touches one word and ends; it allocates nothing and takes no lock.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            // SAFETY: the access ends the child: what it would see is not its own.
            unsafe {
                window.as_ptr().read_volatile();
                libc::_exit(0);
            }
        }
        let mut status = 0;
        // SAFETY: the child is ours and the pointer is to a live value.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{mode:?}: {status:#x}");
        assert_eq!(load(&window, 0), 5, "{mode:?}: the parent still has it");
        assert_eq!(load(&window, 100 * 512), 0, "{mode:?}");
    }
}

#[test]
fn without_permission_the_remedy_is_said_and_faults_in_the_thread_work() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65_534;
    let setting = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap();
    // SAFETY: a plain call.
    if setting.trim() != "0" || unsafe { libc::geteuid() } != 0 {
        eprintln!("not tested: it needs root, and a system that gives others no userfaultfd");
        return;
    }
    let device = Device::start(512, 64, None);
    let open_to_all = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(device.socket(), open_to_all.clone()).unwrap();
    std::fs::set_permissions(device.socket().parent().unwrap(), open_to_all).unwrap();
    for (what, opens) in [("opens 0 Spinning", false), ("load 3 InThread", true)] {
        // SAFETY: plain calls that may be made between fork and exec.
        let become_nobody = || unsafe {
            let done =
                libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(NOBODY) == 0 && libc::setuid(NOBODY) == 0;
            if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        };
        let mut command = child_command(what, &device);
        // SAFETY: as above.
        let mut program = unsafe { command.pre_exec(become_nobody) }.spawn().unwrap();
        let status = await_end(&mut program);
        let mut said = String::new();
        std::io::Read::read_to_string(&mut program.stderr.take().unwrap(), &mut said).unwrap();
        assert_eq!(status.success(), opens, "{what}: {status}, {said}");
        assert!(opens || said.contains("vm.unprivileged_userfaultfd=1"), "{said}");
    }
}
