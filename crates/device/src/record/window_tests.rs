//! Random runs of a window are recorded and replayed: nothing may differ. What was changed in a recording is found, and
//! what somebody wrote into one is refused.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use osier_flash::Nanos;

use super::input::{self, Digest, Input};
use super::tests::{Shelf, file_of, records_of, replay, replay_mutants};
use super::*;
use crate::core::tests::bench::Draw;
use crate::profile::parse_override;
use crate::window::tests::{Disk, Memory, World, config_of, origin};
use crate::window::{ByteMedia, Fault, Output, Window, WindowStats};

/// Recordings in which records are changed.
const HOSTILE: u64 = 2_000;

/// A random run of several programs with everything that they do, recorded; the figures at its end.
fn recorded(seed: u64, steps: u32) -> (Vec<u8>, WindowStats) {
    let shelf = Shelf::new(usize::MAX);
    let mut world = World::with_tape(seed, None, Some(Tape::new(0, Box::new(shelf.clone()))));
    world.run(steps).unwrap_or_else(|wrong| panic!("seed {seed}: {}", wrong.0));
    world.window.end_recording();
    (shelf.bytes.take(), world.window.stats())
}

#[test]
fn a_replay_of_a_window_has_the_same_outputs_and_figures() {
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut bytes, mut misses) = (0, 0);
    for seed in 0..12 {
        let (recording, stats) = recorded(seed, 4_000);
        let lives = replay(&recording, None).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let life = &lives[0];
        assert_eq!((life.statistics, &life.ending), (Some(Figures::Window(stats)), &Ending::InOrder), "seed {seed}");
        for (kind, count) in &life.kinds {
            *kinds.entry(kind).or_default() += count;
        }
        (bytes, misses) = (bytes + recording.len() as u64, misses + stats.counts.misses);
    }
    for kind in [
        "Window", "Saved", "Attach", "Detach", "Fault", "Zapped", "Prefetch", "Pin", "Unpin", "Evict", "Policy",
        "Prepare", "HandOut", "End",
    ] {
        assert!(kinds.get(kind).is_some_and(|count| *count > 10), "{kind}: {kinds:?}");
    }
    // The bytes of pages are not in it.
    assert!(bytes < 200 * misses, "{bytes} bytes for {misses} misses");
}

/// Stores to pages of a device whose disk is full now and then and whose flash rots; what the loads brought.
fn with_bad_media(window: &mut RecordedWindow<Memory>, is_full: &Arc<std::sync::atomic::AtomicBool>) -> WindowStats {
    let (mut now, mapper) = (Nanos(0), window.attach().unwrap());
    let mut draw = Draw::new(7);
    for step in 0..2_000_u64 {
        if step % 64 == 63 {
            is_full.store(!is_full.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if draw.one_in(20) {
            window.rot(draw.below(40), 100, 3);
        }
        let (page, is_store) = (draw.below(40), draw.one_in(2));
        window.fault(now, Fault { mapper, lane: 0, page, is_store, more_max: 0 }).unwrap();
        let (mut outputs, mut is_answered, until) = (Vec::new(), false, now.0 + 200_000_000);
        while !is_answered {
            window.poll(now, &mut outputs);
            for output in outputs.drain(..) {
                match output {
                    Output::Answer { due, .. } => (now, is_answered) = (now.max(due), true),
                    Output::Zap { .. } => window.zapped(now, mapper, draw.next()).unwrap(),
                    Output::Done { .. } => {}
                }
            }
            now = window.next_event().unwrap_or(now).max(now);
            if now.0 > until {
                is_full.store(false, Ordering::Relaxed);
            }
        }
    }
    window.stats()
}

#[test]
fn media_that_refuse_and_lose_pages_do_so_again() {
    let shelf = Shelf::new(usize::MAX);
    let origin = origin(40, 12, "clock");
    let config = config_of(&origin);
    let disk = Disk::default();
    let is_full = Arc::clone(&disk.is_full);
    let media = ByteMedia::with_store(&config.flash, Box::new(disk));
    let window = Window::with_media(&config, origin.reserve, origin.seed, Memory::new(40), media).unwrap();
    let mut window = RecordedWindow::begin(window, &origin, Tape::new(0, Box::new(shelf.clone())));
    let stats = with_bad_media(&mut window, &is_full);
    window.end_recording();
    let lives = replay(&shelf.bytes.borrow(), None).unwrap();
    assert_eq!(lives[0].statistics, Some(Figures::Window(stats)));
    let kinds = &lives[0].kinds;
    assert!(kinds["NotSaved"] > 10 && kinds["Unread"] > 10 && stats.counts.lost > 10, "{kinds:?}");
}

/// The recording with one record put in the place of another one.
fn changed(records: &[(Nanos, Input, Vec<u8>)], at: usize, input: &Input) -> Vec<u8> {
    let before = if at == 0 { Nanos(0) } else { records[at - 1].0 };
    let (now, _, was) = &records[at];
    let mut record = Vec::new();
    input::put(&mut record, before, *now, input, &Digest::new());
    if input.kind().checked {
        let (fields, check) = (record.len() - 4, was.len() - 4);
        record[fields..].copy_from_slice(&was[check..]);
    }
    let mut all: Vec<Vec<u8>> = records.iter().map(|(_, _, bytes)| bytes.clone()).collect();
    all[at] = record;
    file_of(&all)
}

#[test]
fn a_changed_record_is_found() {
    let (recording, _) = recorded(3, 3_000);
    let records = records_of(&recording);
    let unchanged = changed(&records, 0, &records[0].1);
    assert!(replay(&unchanged, None).is_ok());
    let (mut draw, mut count) = (Draw::new(1), 0);
    while count < 150 {
        let at = draw.below(records.len() as u64) as usize;
        let mut input = records[at].1.clone();
        match &mut input {
            Input::Fault { page, .. } => *page ^= 1,
            Input::Saved { checksum } => *checksum ^= 1 << draw.below(32),
            Input::HandOut { outputs } => *outputs += 1,
            _ => continue,
        }
        let error = replay(&changed(&records, at, &input), None).expect_err("it was changed");
        assert!(matches!(error, ReplayError::Differs(_) | ReplayError::Recording(_)), "{input:?}: {error}");
        count += 1;
    }
}

#[test]
fn another_seed_is_found() {
    let shelf = Shelf::new(usize::MAX);
    let mut origin = origin(40, 12, "random");
    let setting = parse_override("errors.program_fail_ppm=20000").unwrap();
    origin.settings.push(setting);
    let window = Window::new(&config_of(&origin), origin.reserve, origin.seed, Memory::new(40)).unwrap();
    let mut window = RecordedWindow::begin(window, &origin, Tape::new(0, Box::new(shelf.clone())));
    with_bad_media(&mut window, &Arc::default());
    window.end_recording();
    let records = records_of(&shelf.bytes.borrow());
    assert!(replay(&changed(&records, 0, &records[0].1), None).is_ok());
    let mut input = records[0].1.clone();
    let Input::Window { made, .. } = &mut input else { panic!("{input:?}") };
    made.seed += 1;
    let error = replay(&changed(&records, 0, &input), None).unwrap_err();
    assert!(matches!(error, ReplayError::Differs(_)), "{error}");
}

/// Whatever is in blocks that fit their checksums, a replay ends in order, and the window is not its end.
#[test]
fn changed_records_of_a_window_are_refused_or_replayed() {
    let sources: Vec<Vec<Vec<u8>>> = (0..4)
        .map(|seed| records_of(&recorded(seed, 400).0).into_iter().map(|(_, _, bytes)| bytes).collect())
        .collect();
    let (refused, differing) = replay_mutants(&sources, HOSTILE);
    assert!(refused > 300 && differing > 500, "{refused} {differing}");
}

#[test]
fn a_window_that_asks_for_too_much_is_refused_by_name() {
    let (recording, _) = recorded(3, 50);
    let records = records_of(&recording);
    let with = |change: &dyn Fn(&mut input::Made)| {
        let mut input = records[0].1.clone();
        let Input::Window { made, .. } = &mut input else { panic!("{input:?}") };
        change(made);
        replay(&changed(&records, 0, &input), None).unwrap_err().to_string()
    };
    // The whole device of the built-in profile.
    let large = with(&|made| {
        made.settings.clear();
        made.capacity_bytes = 80 << 30;
    });
    assert!(large.contains("bytes of memory") && large.contains("--memory"), "{large}");
    assert!(with(&|made| made.capacity_bytes = 1 << 60).contains("capacity"));
    assert!(with(&|made| made.reserve_batch = 0).contains("reserve.batch"));
    assert!(with(&|made| made.profile_text.clear()).contains("profile"));
    assert!(with(&|made| made.settings[0].key = "geometry.chanels".to_owned()).contains("chanels"));

    // More faults than a program has lanes for, and a time that no clock shows.
    let attach = records.iter().position(|(_, input, _)| matches!(input, Input::Attach {})).unwrap();
    let then = |now: Nanos, inputs: Vec<Input>| {
        let mut all: Vec<Vec<u8>> = records[..=attach].iter().map(|(_, _, bytes)| bytes.clone()).collect();
        for (index, input) in inputs.iter().enumerate() {
            let mut record = Vec::new();
            input::put(&mut record, if index == 0 { Nanos(0) } else { now }, now, input, &Digest::new());
            all.push(record);
        }
        replay(&file_of(&all), None).unwrap_err().to_string()
    };
    let fault = |page| Input::Fault { mapper: 0, lane: 0, page, is_store: true, more_max: 0 };
    assert!(then(Nanos(5), (0..65).map(fault).collect()).contains("more faults than lanes"));
    assert!(then(Nanos(1 << 63), vec![fault(1)]).contains("an input comes at"));
    assert!(then(Nanos(5), vec![Input::Zapped { mapper: 64, dirty: 0 }]).contains("no mapper 64"));
}
