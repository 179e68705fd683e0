//! Whole pipelines of the built-in actors: what is written is read back, whatever is moved, and whenever.
#![allow(clippy::unwrap_used, reason = "a test")]

mod common;

use common::{FULL, Pair, Random};

#[test]
fn what_is_written_is_read_back() {
    let mut pair = Pair::new(FULL, &[]);
    let mut random = Random(1);
    for sequence in 1..=40 {
        let blocks = 1 + random.below(32) as u32;
        let data = random.data(blocks, sequence % 3 == 0);
        let extents = pair.write("full", 0, (0, sequence), sequence * 100, &data).unwrap();
        assert_eq!(pair.read(0, &extents).unwrap(), data, "sequence {sequence}");
    }
}

/// The same requests, once undisturbed and once with every actor moved between the two runners at random,
/// most of the time in the middle of a unit: the extents are the same byte for byte.
#[test]
fn moves_at_every_border_change_no_byte() {
    for seed in 0..6 {
        let mut quiet = Pair::new(FULL, &[]);
        let mut moved = Pair::new(FULL, &[]);
        let mut random = Random(seed);
        let mut decide = Random(seed + 1000);
        moved.moves = Box::new(move |_| decide.below(2) == 0);
        for sequence in 1..=30 {
            moved.budget = [256, 1024, 4096, 8192][random.below(4) as usize];
            let stream = random.below(1) as u16;
            let (blocks, noise) = (1 + random.below(32) as u32, random.below(4) == 0);
            let data = random.data(blocks, noise);
            let slba = random.below(1 << 40);
            let flags = random.below(2) as u16 * 2;
            let expected = quiet.write("full", flags, (stream, sequence), slba, &data).unwrap();
            let found = moved.write("full", flags, (stream, sequence), slba, &data).unwrap();
            assert_eq!(found, expected, "seed {seed} sequence {sequence}");
            assert_eq!(moved.read(0, &found).unwrap(), data, "seed {seed} sequence {sequence}");
        }
        assert!(moved.moved > 500, "only {} moves", moved.moved);
    }
}

/// A pipeline of one stage.
fn stage(actor: &str, rest: &str) -> String {
    format!(
        "[[pipeline]]\nname = \"one\"\nunit_kib = 16\nrequest_kib_max = 64\nslots = 4\n\
         [[pipeline.stage]]\nactor = \"{actor}\"\n{rest}\n"
    )
}

const EVERY_STAGE: [(&str, &str); 14] = [
    ("lz4", ""),
    ("lz4", "params = { engine = \"intrinsic\" }"),
    ("aes256-gcm-siv", "key = 2"),
    ("crc32c", ""),
    ("running-hash", ""),
    ("example", "params = { word = \"mask\" }"),
    ("jsonl-project", "params = { fields = [\"level\", \"code\"] }"),
    ("jsonl-project", "params = { fields = [\"time\"], when = \"write\", malformed = \"drop\" }"),
    ("jsonl-project", "params = { fields = [], pad = \"zero\" }"),
    ("filter", "params = { field = \"code\", op = \"lt\", value = 99 }"),
    ("filter", "params = { field = \"level\", op = \"eq\", value = \"warn\", when = \"write\" }"),
    ("filter", "params = { field = \"text\", op = \"contains\", value = \"7 took\", malformed = \"drop\" }"),
    ("logfmt", "params = { template = \"{level:>8}|{code}|{none}\" }"),
    ("logfmt", "params = { template = \"{text}\", when = \"write\", pad = \"newline\" }"),
];

/// Every built-in as a module, trusted and not, in steps and moved about, puts out what its native form does.
#[test]
fn modules_put_out_what_native_code_does() {
    use osier_actor::intrinsics::{Binding, NonceParts};
    use osier_actor::native::{Native, NativeUnit};
    use osier_domain::Direction;

    for (actor, rest) in EVERY_STAGE {
        for trusted in [true, false] {
            let mut pair = Pair::new(&format!("{}trusted = {trusted}\n", stage(actor, rest)), &[]);
            let mut random = Random(3);
            let mut decide = Random(4);
            pair.moves = Box::new(move |_| decide.below(2) == 0);
            let definition = pair.device.pipelines.actors()[0].stage.clone();
            let mut native = Native::new(actor, &definition.params).unwrap();
            let keys = pair.device.keys.clone();
            for sequence in 1..=8 {
                pair.budget = [300, 5_000, u32::MAX][random.below(3) as usize];
                let data = random.data(1 + sequence as u32 % 8, sequence % 4 == 3);
                let written = pair.write("one", 0, (5, sequence), 40, &data).unwrap();
                for (index, (extent, raw)) in written.iter().zip(data.chunks(16_384)).enumerate() {
                    let blocks = extent.raw_bytes / 4096;
                    let unit = NativeUnit {
                        binding: Binding { slba: extent.slba, blocks, raw_bytes: extent.raw_bytes, tag: extent.tag },
                        nonce: NonceParts { incarnation: 1, stream: 5, sequence, unit: index as u16 },
                        keys: (&keys, definition.key),
                    };
                    let mut out = vec![0u8; 20_000];
                    let length = native.run(Direction::Forward, &unit, raw, &mut out).unwrap();
                    let mut back = vec![0u8; 20_000];
                    if actor == "lz4" {
                        // Two encoders: each reads what the other wrote.
                        let length = native.run(Direction::Inverse, &unit, &extent.bytes, &mut back).unwrap();
                        assert_eq!(&back[..length], raw);
                    } else {
                        assert_eq!(extent.bytes, &out[..length], "{actor} {rest} {sequence}");
                    }
                    let length = native.run(Direction::Inverse, &unit, &out[..length], &mut back).unwrap();
                    back.truncate(length);
                    back.resize(extent.raw_bytes as usize, 0);
                    let read = pair.read(0, std::slice::from_ref(extent)).unwrap();
                    assert!(read == back, "{actor} {rest} {sequence}: another inverse");
                }
            }
            assert!(pair.moved > 5, "{actor} {rest}: {} moves", pair.moved);
        }
    }
}

#[test]
fn what_was_left_out_of_a_write_is_left_out_of_its_read() {
    let mut pair = Pair::new(FULL, &[]);
    let data = Random(1).data(8, false);
    let with = pair.write("full", 0, (0, 1), 0, &data).unwrap();
    let without = pair.write("full", 0b10, (0, 2), 0, &data).unwrap();
    assert!(with[0].bytes.len() < 8_000, "compressed");
    assert_eq!(without[0].bytes.len(), 16_384 + 16 + 32 + 4, "not compressed");
    assert_ne!(with[0].tag, without[0].tag);
    assert_eq!(pair.read(0, &without).unwrap(), data);
    assert_eq!(pair.read(0, &with).unwrap(), data);
    // Both in one request, each decoded its own way.
    let mixed = pair.read_pieces(0, &[(&with[0], 1, 2), (&without[1], 0, 4), (&with[1], 3, 1)]).unwrap();
    assert_eq!(mixed, [&data[4096..12_288], &data[16_384..], &data[28_672..]].concat());
}

/// A read that meets extents of several pipelines, in parts, and blocks that nothing wrote.
#[test]
fn one_read_decodes_the_extents_of_many_pipelines() {
    let text = format!(
        "{FULL}\n[[pipeline]]\nname = \"other\"\nunit_kib = 4\nrequest_kib_max = 64\nslots = 3\n\
         [[pipeline.stage]]\nactor = \"crc32c\"\n[[pipeline.stage]]\nactor = \"example\"\nparams = {{ word = \"x\" }}\n\
         [[pipeline.stage]]\nactor = \"aes256-gcm-siv\"\nkey = 2\ntrusted = false\n"
    );
    let mut pair = Pair::new(&text, &[]);
    let data = Random(1).data(12, false);
    let full = pair.write("full", 0, (0, 1), 0, &data).unwrap();
    let other = pair.write("other", 0, (1, 1), 0, &data).unwrap();
    assert_eq!((full.len(), other.len()), (3, 12));
    let nothing = common::Extent { slba: 0, raw_bytes: 8192, tag: 0, bytes: Vec::new() };
    let plain = common::Extent { slba: 0, raw_bytes: 4096, tag: 0, bytes: data[..4096].to_vec() };
    let pieces = [(&other[2], 0, 1), (&full[1], 1, 2), (&nothing, 0, 2), (&other[11], 0, 1), (&plain, 0, 1)];
    let found = pair.read_pieces(0, &pieces).unwrap();
    let expected = [&data[8192..12_288], &data[20_480..28_672], &[0; 8192], &data[45_056..], &data[..4096]].concat();
    assert_eq!(found, expected);
}

#[test]
fn queries_give_what_is_asked_and_reads_what_was_written() {
    let text = r#"
[[pipeline]]
name = "logs"
unit_kib = 16
request_kib_max = 64
slots = 4
[[pipeline.stage]]
actor = "filter"
params = { field = "level", op = "eq", value = "error", pad = "none", malformed = "drop" }
query = true
[[pipeline.stage]]
actor = "lz4"
"#;
    let mut pair = Pair::new(text, &[]);
    let data = Random(1).data(12, false);
    let extents = pair.write("logs", 0, (0, 1), 0, &data).unwrap();
    assert_eq!(pair.read(0, &extents).unwrap(), data);
    let found = pair.read(osier_domain::message::FLAG_QUERY, &extents).unwrap();
    let found = String::from_utf8(found).unwrap();
    assert!(found.lines().count() > 20 && found.lines().all(|line| line.contains("\"level\":\"error\"")));
    assert!(found.len() < data.len() / 2);
}

/// Every bit of every sealed extent matters, and nothing but the right bytes under the right address comes back.
#[test]
fn damage_is_reported_and_never_read() {
    let mut pair = Pair::new(FULL, &[]);
    let mut random = Random(2);
    let data = random.data(4, false);
    let extents = pair.write("full", 0, (0, 1), 0, &data).unwrap();
    for _ in 0..200 {
        let mut bad = extents.clone();
        let at = random.below(bad[0].bytes.len() as u64) as usize;
        bad[0].bytes[at] ^= 1 << random.below(8);
        assert_eq!(pair.read(0, &bad), Err(osier_domain::Status::INTEGRITY), "byte {at}");
    }
    let changes: [fn(&mut common::Extent); 3] = [|e| e.slba += 1, |e| e.bytes.truncate(20), |e| e.bytes.truncate(3)];
    for change in changes {
        let mut bad = extents.clone();
        change(&mut bad[0]);
        assert_eq!(pair.read(0, &bad), Err(osier_domain::Status::INTEGRITY));
    }
    assert_eq!(pair.read(0, &extents).unwrap(), data);
}

/// Plants the faults that the other tests are there to find.
#[test]
fn the_checks_can_fail() {
    use osier_domain::{ActorId, STREAMS_MAX, Status};
    // A move that forgets the globals or a memory that is not shared would show as other bytes; a replay
    // without a reset shows as an integrity error of the stateful actor.
    let mut pair = Pair::new(FULL, &[]);
    let data = Random(1).data(4, false);
    for sequence in 1..=3 {
        pair.write("full", 0, (0, sequence), 0, &data).unwrap();
    }
    let mut gates = [0; STREAMS_MAX];
    gates[0] = 1;
    for actor in 0..4 {
        pair.owner(ActorId(actor)).reset(ActorId(actor), &gates);
    }
    let replayed = pair.write("full", 0, (0, 2), 0, &data).unwrap();
    let fresh = |sequences: &[u64]| {
        let mut pair = Pair::new(FULL, &[]);
        let mut last = Vec::new();
        for sequence in sequences {
            last = pair.write("full", 0, (0, *sequence), 0, &data).unwrap();
        }
        last
    };
    assert_eq!(replayed, fresh(&[1, 2]));
    // Lost: sequence 2 never ran. Repeated: it ran twice. Both make other extents.
    assert_ne!(fresh(&[1, 3]), fresh(&[1, 2, 3]));
    assert_ne!(fresh(&[1, 2, 2, 3]), fresh(&[1, 2, 3]));
    // The memory of a later time under the state of an earlier one.
    let mut pair = Pair::new(FULL, &[]);
    pair.write("full", 0, (0, 1), 0, &data).unwrap();
    let memory = osier_actor::segment::Mapping::new(&pair.device.memories[0]).unwrap();
    let mut image = vec![0; memory.len()];
    memory.read(0, &mut image);
    pair.write("full", 0, (0, 2), 0, &data).unwrap();
    memory.write(0, &image);
    assert_eq!(pair.write("full", 0, (0, 3), 0, &data), Err(Status::INTEGRITY), "memory left behind");
}

#[test]
fn an_actor_is_run_by_its_owner_alone() {
    use osier_domain::{ActorId, Call, Direction, OwnerState, Side, SlotId, StreamId, Tag};
    let pair = Pair::new(FULL, &[]);
    let call = Call {
        actor: ActorId(0),
        direction: Direction::Forward,
        slot: SlotId(0),
        unit: 0,
        units: 1,
        resume: false,
        budget_bytes: 1,
        tag: Tag(1),
        stream: StreamId(0),
        sequence: 1,
    };
    let mut runner = pair.device.runner(Side::Host);
    let mut run =
        move |word| std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runner.run(&call, word))).is_ok();
    assert!(!run(OwnerState::first(Side::Device).encode()));
    assert!(!run(0));
    let phase = osier_domain::Phase::Ready { to: Side::Device };
    let ready = OwnerState { generation: 2, owner: Side::Host, phase };
    assert!(!run(ready.encode()));
    assert!(run(OwnerState::first(Side::Host).encode()));
}

/// What another process may have left in the unit table: nothing in it makes a runner reach elsewhere.
#[test]
fn damaged_unit_tables_are_found() {
    use osier_domain::{ActorId, Call, Direction, Outcome, OwnerState, Side, SlotId, Status, StreamId};
    let mut pair = Pair::new(FULL, &[]);
    let data = Random(1).data(4, false);
    let tag = pair.device.tag("full");
    pair.write("full", 0, (0, 8), 0, &data).unwrap();
    let mapping = osier_actor::segment::Mapping::new(&pair.device.arena).unwrap();
    let word = OwnerState::first(Side::Device).encode();
    let mut random = Random(5);
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for sequence in 1..2000 {
        for at in (128..168).step_by(4) {
            if random.below(3) == 0 {
                mapping.write(at, &(random.next() as u32 >> random.below(32)).to_le_bytes());
            }
        }
        mapping.write(152, &tag.0.to_le_bytes());
        let call = Call {
            actor: ActorId(random.below(4) as u16),
            direction: if random.below(2) == 0 { Direction::Forward } else { Direction::Inverse },
            slot: SlotId(0),
            unit: 0,
            units: 1,
            resume: false,
            budget_bytes: 4096,
            tag,
            stream: StreamId(0),
            sequence,
        };
        let outcome = pair.runners[1].run(&call, word);
        assert!(!matches!(outcome, Outcome::Failed(Status::ACTOR_TRAPPED)), "{call:?}");
        *outcomes.entry(format!("{outcome:?}").chars().take(12).collect()).or_default() += 1;
    }
    assert!(outcomes.len() >= 2, "{outcomes:?}");
}
