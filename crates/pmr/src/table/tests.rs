//! The table against a plain model, and cut off after each single store.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

const REGION_BYTES: u64 = 128 * 1024;

/// Memory as words, with the log of its stores.
#[derive(Default, Clone)]
struct Recorder {
    words: RefCell<Vec<u64>>,
    log: RefCell<Vec<(u64, u64)>>,
}

impl Recorder {
    fn new() -> Self {
        let recorder = Self::default();
        recorder.words.borrow_mut().resize((REGION_BYTES / 8) as usize, 0);
        recorder.store(WATERMARK_OFFSET, watermark_encode(DATA_OFFSET));
        recorder.log.borrow_mut().clear();
        recorder
    }
}

impl Words for &Recorder {
    fn load(&self, offset: u64) -> u64 {
        self.words.borrow()[(offset / 8) as usize]
    }
}

impl Medium for &Recorder {
    fn store(&self, offset: u64, value: u64) {
        self.words.borrow_mut()[(offset / 8) as usize] = value;
        self.log.borrow_mut().push((offset, value));
    }
    fn zero(&self, offset: u64, bytes: u64) {
        for at in (offset..offset + bytes).step_by(8) {
            self.store(at, 0);
        }
    }
}

impl Words for Recorder {
    fn load(&self, offset: u64) -> u64 {
        (&self).load(offset)
    }
}

impl Medium for Recorder {
    fn store(&self, offset: u64, value: u64) {
        (&self).store(offset, value);
    }
    fn zero(&self, offset: u64, bytes: u64) {
        (&self).zero(offset, bytes);
    }
}

fn table(medium: &Recorder) -> Table<&Recorder> {
    Table { medium, region_bytes: REGION_BYTES }
}

fn name(id: u8) -> ObjectName {
    ObjectName::parse(&format!("object-{id}")).unwrap()
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { id: u8, bytes: u64, align: u64 },
    Free { id: u8 },
    SetOwner { id: u8, side: u8 },
    Scribble { id: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    let id = 0u8..24;
    let request = (id.clone(), 1u64..20_000, 0u32..14);
    prop_oneof![
        4 => request.prop_map(|(id, bytes, shift)| Step::Allocate { id, bytes, align: 1 << shift }),
        3 => id.clone().prop_map(|id| Step::Free { id }),
        1 => (id.clone(), any::<u8>()).prop_map(|(id, side)| Step::SetOwner { id, side }),
        2 => id.prop_map(|id| Step::Scribble { id }),
    ]
}

/// What the model knows of an object: offset, bytes, owner.
type Model = BTreeMap<u8, (u64, u64, u8)>;

/// First fit written as plainly as can be: try every line of the region.
fn model_fit(model: &Model, bytes: u64, align: u64) -> Option<u64> {
    let align = align.max(LINE_BYTES);
    let mut at = DATA_OFFSET;
    while at + bytes <= REGION_BYTES {
        let clear = model
            .values()
            .all(|(offset, length, _)| at + bytes <= *offset || at >= (offset + length).next_multiple_of(LINE_BYTES));
        if at.is_multiple_of(align) && clear {
            return Some(at);
        }
        at += LINE_BYTES;
    }
    None
}

fn apply(table: &Table<&Recorder>, model: &mut Model, step: &Step) {
    match *step {
        Step::Allocate { id, bytes, align } => {
            let taken = model.contains_key(&id);
            match table.allocate(name(id), ObjectKind(u16::from(id)), bytes, align) {
                Ok((_, entry)) => {
                    assert!(!taken);
                    assert_eq!(Some(entry.offset), model_fit(model, bytes, align));
                    for at in (entry.offset..entry.end()).step_by(8) {
                        assert_eq!(table.medium.load(at), 0, "old bytes at {at} of {entry:?}");
                    }
                    model.insert(id, (entry.offset, bytes, 0));
                }
                Err(Refusal::NameTaken) => assert!(taken),
                Err(Refusal::NoRoom { .. }) => assert_eq!(None, model_fit(model, bytes, align)),
                Err(other) => panic!("{other:?}"),
            }
        }
        Step::Free { id } => {
            let found = table.find(name(id));
            assert_eq!(found.is_some(), model.remove(&id).is_some());
            if let Some((slot, _)) = found {
                table.free(slot);
            }
        }
        Step::SetOwner { id, side } => {
            if let Some((slot, entry)) = table.find(name(id)) {
                table.set_owner(slot, &entry, Side(side));
                model.get_mut(&id).unwrap().2 = side;
            }
        }
        Step::Scribble { id } => {
            if let Some((_, entry)) = table.find(name(id)) {
                for at in (entry.offset..entry.end()).step_by(8) {
                    table.medium.store(at, u64::MAX);
                }
            }
        }
    }
}

fn contents(table: &Table<&Recorder>) -> BTreeMap<String, (u64, u64, u8)> {
    let view = |entry: Entry| (entry.name.to_string(), (entry.offset, entry.bytes, entry.owner.0));
    table.entries().map(|(_, entry)| view(entry)).collect()
}

fn assert_same(table: &Table<&Recorder>, model: &Model) {
    let wanted: BTreeMap<_, _> = model.iter().map(|(id, seen)| (name(*id).to_string(), *seen)).collect();
    assert_eq!(contents(table), wanted);
    assert_eq!(table.check(), []);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_model(steps in prop::collection::vec(step(), 1..80)) {
        let medium = Recorder::new();
        let table = table(&medium);
        let mut model = Model::new();
        for step in &steps {
            apply(&table, &mut model, step);
            assert_same(&table, &model);
        }
    }

    #[test]
    fn a_kill_after_any_store_leaves_the_old_or_the_new_table(
        steps in prop::collection::vec(step(), 1..24),
        last in step(),
    ) {
        prop_assert_eq!(mixed_tables_after_kills(&steps, &last), 0);
    }
}

/// Runs `steps`, then cuts `last` off after every one of its stores; counts results that are neither the
/// table before nor the table after, or that the allocator cannot go on from.
fn mixed_tables_after_kills(steps: &[Step], last: &Step) -> usize {
    let medium = Recorder::new();
    let mut model = Model::new();
    for step in steps {
        apply(&table(&medium), &mut model, step);
    }
    let before = medium.clone();
    let old = contents(&table(&medium));
    medium.log.borrow_mut().clear();
    apply(&table(&medium), &mut model.clone(), last);
    let new = contents(&table(&medium));
    let log = medium.log.borrow().clone();
    let cuts = (0..=log.len()).filter(|cut| {
        let crashed = before.clone();
        for (offset, value) in &log[..*cut] {
            crashed.store(*offset, *value);
        }
        let crashed = table(&crashed);
        let seen = contents(&crashed);
        !(crashed.check().is_empty() && (seen == old || seen == new))
    });
    cuts.count()
}

#[test]
fn the_crash_test_finds_a_commit_before_the_body() {
    let last = Step::Allocate { id: 1, bytes: 100, align: 1 };
    assert_eq!(mixed_tables_after_kills(&[], &last), 0);
    planted::COMMIT_FIRST.set(true);
    let found = mixed_tables_after_kills(&[], &last);
    planted::COMMIT_FIRST.set(false);
    assert!(found > 0, "the planted bug went unnoticed");
}

#[test]
fn a_damaged_entry_is_reported_and_blocks_changes_until_dropped() {
    let medium = Recorder::new();
    let table = table(&medium);
    let (slot, entry) = table.allocate(name(1), ObjectKind::RING, 64, 64).unwrap();
    table.allocate(name(2), ObjectKind::RING, 64, 64).unwrap();
    let at = word_offset(slot, 4);
    table.medium.store(at, entry.offset ^ 64);
    assert_eq!(table.check(), [Finding::DamagedEntry { slot }]);
    assert_eq!(table.allocate(name(3), ObjectKind::RING, 64, 64), Err(Refusal::Damaged { count: 1 }));
    assert!(table.find(name(2)).is_some(), "healthy objects stay readable");
    assert_eq!(table.drop_damaged(), 1);
    assert_eq!(table.check(), []);
    table.allocate(name(3), ObjectKind::RING, 64, 64).unwrap();
}

#[test]
fn checks_name_overlaps_ranges_duplicates_and_the_watermark() {
    let medium = Recorder::new();
    let table = table(&medium);
    let base =
        Entry { name: name(1), kind: ObjectKind::RING, owner: Side::HOST, offset: DATA_OFFSET, bytes: 4096, serial: 1 };
    table.write(0, &base);
    table.write(1, &Entry { name: name(2), offset: DATA_OFFSET + 64, bytes: 64, ..base });
    table.write(2, &Entry { name: name(2), offset: DATA_OFFSET + 128, bytes: 64, ..base });
    table.write(3, &Entry { name: name(3), offset: REGION_BYTES, bytes: 64, ..base });
    table.medium.store(WATERMARK_OFFSET, 5);
    let (first, second) = (name(1), name(2));
    let wanted = [
        Finding::OutOfRange { name: name(3), offset: REGION_BYTES, bytes: 64 },
        Finding::Overlap { first, second },
        Finding::Overlap { first, second },
        Finding::DuplicateName { name: name(2) },
        Finding::DamagedWatermark,
    ];
    assert_eq!(table.check(), wanted);
}

#[test]
fn the_table_and_the_space_run_full_with_a_reason() {
    let medium = Recorder::new();
    let table = table(&medium);
    for id in 0..TABLE_ENTRIES {
        let name = ObjectName::parse(&format!("o{id}")).unwrap();
        table.allocate(name, ObjectKind::RECORD, 64, 1).unwrap();
    }
    assert_eq!(table.allocate(name(1), ObjectKind::RECORD, 1, 1), Err(Refusal::TableFull));
    let (slot, _) = table.find(ObjectName::parse("o7").unwrap()).unwrap();
    table.free(slot);
    let left = REGION_BYTES - DATA_OFFSET - u64::from(TABLE_ENTRIES) * 64;
    let refusal = Refusal::NoRoom { largest_gap_bytes: left };
    assert_eq!(table.allocate(name(1), ObjectKind::RECORD, left + 1, 1), Err(refusal));
    table.allocate(name(1), ObjectKind::RECORD, left, 1).unwrap();
}

#[test]
fn impossible_requests_are_refused() {
    let medium = Recorder::new();
    let table = table(&medium);
    for (bytes, align) in [(0, 1), (REGION_BYTES + 1, 1), (64, 3), (64, 0), (64, ALIGN_MAX * 2)] {
        let refused = table.allocate(name(1), ObjectKind::RING, bytes, align);
        assert!(matches!(refused, Err(Refusal::BadRequest(_))), "{bytes} {align}");
    }
}
