use super::*;

const SALT: u32 = 0x5eed;
const STREAMS: u16 = 4;
const BYTES: usize = 384 << 10;

/// A small generator (xorshift64*): a failure names the seed, and the seed is the whole test.
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Bytes whose process dies after so many more bytes are stored: the store under way is cut short.
struct Dying {
    bytes: Vec<u8>,
    left: u64,
}

impl Bytes for Dying {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
    fn read(&self, offset: u64, into: &mut [u8]) {
        Bytes::read(&self.bytes, offset, into);
    }
    fn write(&mut self, offset: u64, from: &[u8]) {
        let length = self.left.min(from.len() as u64);
        self.left -= length;
        Bytes::write(&mut self.bytes, offset, &from[..length as usize]);
    }
}

fn log() -> WriteBuffer<Vec<u8>> {
    WriteBuffer::format(vec![0xA5; BYTES], STREAMS, 100, SALT, true).expect("formats")
}

fn recover(bytes: Vec<u8>) -> (WriteBuffer<Vec<u8>>, BufferReport) {
    WriteBuffer::recover(bytes).map_err(|(error, _)| error).expect("recovers")
}

fn data(slba: u64, payload: &[u8], stream_sequence: u64, last: bool) -> Record {
    Record {
        sequence: 0,
        kind: RecordKind::Data,
        slba: Lba(slba),
        blocks: 1,
        raw_bytes: 4096,
        stored_bytes: payload.len() as u32,
        tag: 7,
        checksum: crc32c::crc32c(payload),
        stream: (slba % u64::from(STREAMS)) as u16,
        stream_sequence,
        last,
    }
}

fn push(log: &mut WriteBuffer<Vec<u8>>, slba: u64, payload: &[u8], last: bool) -> u64 {
    assert!(log.fits([payload.len() as u32].into_iter()));
    log.push(&data(slba, payload, 0, last), payload)
}

fn contents<B: Bytes>(log: &WriteBuffer<B>) -> Vec<(u64, u64, Vec<u8>)> {
    let records = log.records().filter(|record| record.kind == RecordKind::Data);
    records
        .map(|record| {
            let mut payload = vec![0; record.stored_bytes as usize];
            log.read_payload(record.sequence, &mut payload);
            (record.sequence, record.slba.0, payload)
        })
        .collect()
}

#[test]
fn records_come_back_in_order() {
    let mut log = log();
    let first = push(&mut log, 1, b"one", true);
    push(&mut log, 2, b"", false);
    push(&mut log, 3, &[9; 5000], true);
    let before = contents(&log);
    assert_eq!((first, before.len()), (100, 3));
    let (log, report) = recover(log.into_bytes());
    assert_eq!(contents(&log), before);
    assert_eq!((report.records, report.payload_bytes, report.uncommitted), (3, 5003, 0));
    assert!(report.is_clean());
    assert_eq!(log.next_sequence(), 103);
}

#[test]
fn a_request_without_its_last_record_is_dropped_for_good() {
    let mut log = log();
    push(&mut log, 1, b"kept", true);
    push(&mut log, 2, b"open", false);
    push(&mut log, 3, b"open too", false);
    let (mut log, report) = recover(log.into_bytes());
    assert_eq!((report.records, report.uncommitted), (1, 2));
    // The next request takes the place of the first dropped record and is as long, so that the
    // second, if it were still there, would follow it.
    push(&mut log, 5, b"next", true);
    let (log, report) = recover(log.into_bytes());
    assert_eq!(contents(&log).iter().map(|(_, slba, _)| *slba).collect::<Vec<_>>(), [1, 5]);
    assert!(report.is_clean() && report.uncommitted == 0);
}

#[test]
fn a_full_ring_refuses_and_takes_again_after_a_release() {
    let mut log = log();
    let payload = vec![1; 60_000];
    let mut pushed = Vec::new();
    while log.fits([60_000].into_iter()) {
        pushed.push(push(&mut log, pushed.len() as u64, &payload, true));
    }
    assert!(pushed.len() >= 5, "{}", pushed.len());
    log.release_through(pushed[0]);
    assert!(log.fits([60_000].into_iter()));
    assert!(!log.fits([60_000, 60_000].into_iter()));
    let (log, _) = recover(log.into_bytes());
    assert_eq!(contents(&log).len(), pushed.len() - 1);
}

#[test]
fn a_damaged_header_in_the_middle_is_reported_and_hides_nothing() {
    let mut log = log();
    for slba in 0..5 {
        push(&mut log, slba, &[slba as u8; 1000], true);
    }
    let (offset, _) = *log.entry(102);
    let at = log.layout.ring_at + offset;
    let mut bytes = log.into_bytes();
    bytes[at as usize + 20] ^= 4;
    let (log, report) = recover(bytes);
    let kept: Vec<u64> = contents(&log).iter().map(|(sequence, ..)| *sequence).collect();
    assert_eq!(kept, [100, 101, 103, 104]);
    assert_eq!(report.damages, [Damage { sequence: 102, lost: 1, ring_offset: offset }]);
    // Several in a row, and then twice recovered: the same is found.
    let mut bytes = log.into_bytes();
    let at = at - record_bytes(1000);
    bytes[at as usize] ^= 1;
    let (log, _) = recover(bytes);
    let (log, report) = recover(log.into_bytes());
    assert_eq!(report.damages.iter().map(|damage| damage.lost).collect::<Vec<_>>(), [2]);
    assert_eq!(contents(&log).len(), 3);
}

#[test]
fn a_damaged_payload_keeps_its_record_so_that_reads_fail() {
    let mut log = log();
    push(&mut log, 1, &[1; 1000], true);
    push(&mut log, 2, &[2; 1000], true);
    for sequence in [100, 101] {
        let at = log.layout.ring_at + log.entry(sequence).0 + RECORD_HEADER_BYTES + 500;
        let mut bytes = log.into_bytes();
        bytes[at as usize] ^= 0x80;
        let (recovered, report) = recover(bytes);
        log = recovered;
        assert_eq!(report.damage_count, sequence - 99);
        assert_eq!(report.records, 2);
        let record = log.record(sequence).copied().expect("kept");
        let mut payload = vec![0; 1000];
        log.read_payload(sequence, &mut payload);
        assert_ne!(crc32c::crc32c(&payload), record.checksum);
    }
}

#[test]
fn a_payload_that_looks_like_a_record_is_not_one() {
    let mut log = log();
    push(&mut log, 1, b"old", true);
    // A whole image of the ring's next record, as a user's payload: valid anywhere but there.
    let forged = Record { sequence: 102, ..data(9, b"", 0, true) };
    let mut payload = vec![0; 640];
    for place in (0..640).step_by(64) {
        payload[place..place + 64].copy_from_slice(&encode(&forged, 0, SALT));
    }
    push(&mut log, 2, &payload, true);
    let at = log.layout.ring_at + log.entry(101).0;
    let mut bytes = log.into_bytes();
    bytes[at as usize + 9] ^= 1;
    let (log, _) = recover(bytes);
    assert_eq!(contents(&log).len(), 1);
}

#[test]
fn cursors_survive_the_records_they_came_from() {
    let mut log = log();
    for round in 1..=200u64 {
        let record = data(round, &[3; 20_000], round, true);
        assert!(log.fits([20_000].into_iter()));
        let sequence = log.push(&record, &[3; 20_000]);
        log.release_through(sequence);
    }
    for stream in 0..STREAMS {
        assert!(log.stream_cursor(stream) > 190);
    }
    let cursors: Vec<u64> = (0..STREAMS).map(|stream| log.stream_cursor(stream)).collect();
    let at = log.layout.cursor_at(2, 0) as usize;
    let mut bytes = log.into_bytes();
    let (log, report) = recover(bytes.clone());
    assert_eq!((0..STREAMS).map(|stream| log.stream_cursor(stream)).collect::<Vec<_>>(), cursors);
    assert!(report.is_clean());
    // One damaged copy of a cursor and one of the tail lose nothing, and say so.
    bytes[at] ^= 1;
    bytes[TAIL_AT as usize + 20] ^= 1;
    let (log, report) = recover(bytes.clone());
    assert_eq!(log.stream_cursor(2), cursors[2]);
    assert!(report.tail_copy_damaged && report.cursor_copies_damaged == 1 && report.cursors_lost.is_empty());
    bytes[log.layout.cursor_at(2, 1) as usize] ^= 1;
    let (_, report) = recover(bytes);
    assert_eq!(report.cursors_lost, [2]);
}

#[test]
fn a_cursor_knows_what_failed_within_its_window() {
    let mut cursor = Cursor::default();
    for done in [1, 2, 5, 4, 70] {
        cursor.commit(done);
    }
    let known: Vec<u64> = (1..=71).filter(|sequence| cursor.has(*sequence)).collect();
    // 70 pushed everything up to 6 out of the window: old requests count as answered.
    assert_eq!(known, [1, 2, 3, 4, 5, 6, 70]);
    let mut other = Cursor::default();
    other.commit(69);
    other.join(cursor);
    assert!(other.has(69) && other.has(70) && !other.has(68) && !other.has(71));
}

#[test]
fn what_is_no_log_is_refused_untouched() {
    let error = |bytes: Vec<u8>| match WriteBuffer::recover(bytes.clone()) {
        Ok(_) => panic!("must be refused"),
        Err((error, same)) => {
            assert_eq!(same, bytes, "the bytes must not change");
            error
        }
    };
    assert_eq!(error(vec![]), BufferError::NotALog);
    assert_eq!(error(vec![0; BYTES]), BufferError::NotALog);
    let good = log().into_bytes();
    let mut newer = good.clone();
    newer[8] = 2;
    let crc = crc32c::crc32c(&newer[..60]);
    newer[60..64].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(error(newer), BufferError::Version { found: 2 });
    let mut tails = good.clone();
    tails[TAIL_AT as usize + 8] ^= 1;
    tails[(TAIL_AT + LINE) as usize + 8] ^= 1;
    assert_eq!(error(tails), BufferError::TailLost);
    let expected = BYTES as u64;
    assert_eq!(error([good, vec![0; 64]].concat()), BufferError::Size { bytes: expected + 64, expected });
    let small = WriteBuffer::format(vec![0; 4096], STREAMS, 1, SALT, true).map(|_| ());
    assert!(matches!(small, Err(BufferError::TooSmall { bytes: 4096, .. })));
    let none = WriteBuffer::format(vec![0; BYTES], 0, 1, SALT, true).map(|_| ());
    assert_eq!(none, Err(BufferError::Streams { streams: 0 }));
}

/// The layout is a promise to regions already written: these bytes change with the version only.
#[test]
fn the_bytes_are_the_documented_ones() {
    let record = Record {
        sequence: 0x0102,
        kind: RecordKind::Trim,
        slba: Lba(0x0304),
        blocks: 0x0506,
        raw_bytes: 0x0708,
        stored_bytes: 0x090A,
        tag: 0x0B0C,
        checksum: 0x0D0E,
        stream: 0x0F10,
        stream_sequence: 0x1112,
        last: true,
    };
    let bytes = encode(&record, 640, SALT);
    assert_eq!(&bytes[..8], b"OWBR\x01\x02\x01\x00");
    let words: Vec<u32> = bytes[8..60].chunks(4).map(|word| read_u32(word, 0)).collect();
    assert_eq!(words, [0x102, 0, 0x304, 0, 0x1112, 0, 0x506, 0x708, 0x90A, 0xB0C, 0xD0E, 0xF10, 0]);
    assert_eq!(decode(&bytes, 640, SALT), Some(record));
    assert_eq!(decode(&bytes, 704, SALT), None, "another place");
    assert_eq!(decode(&bytes, 640, SALT + 1), None, "another log");
    let log = log();
    let header = &log.bytes()[..64];
    assert_eq!(&header[..8], b"OSIERWB\x1a");
    let words: Vec<u32> = header[8..60].chunks(4).map(|word| read_u32(word, 0)).collect();
    let ring_at = 256 + 64 * 4;
    let ring = BYTES as u32 - ring_at;
    assert_eq!(words, [1, 4, BYTES as u32, 0, ring_at, 0, ring, 0, SALT, 0, 0, 0, 0]);
}

/// What a log should hold: requests in order, each with its records.
#[derive(Default)]
struct Model {
    /// (stream, stream sequence, units as (slba, payload), number of the last record)
    requests: VecDeque<Request>,
    cursors: [u64; STREAMS as usize],
}

struct Request {
    stream: u16,
    stream_sequence: u64,
    units: Vec<(u64, Vec<u8>)>,
    last: u64,
}

/// One life of a log: random requests and releases until the bytes die, then recovery. Returns the
/// bytes to go on with. `pending` is the request under way at the death, which may be there or not.
fn one_life(draw: &mut Draw, model: &mut Model, bytes: Vec<u8>, seed: u64) -> Vec<u8> {
    let left = 1 + draw.below(600_000);
    let (mut log, report) = match WriteBuffer::recover(Dying { bytes, left: u64::MAX }) {
        Ok(recovered) => recovered,
        Err((error, _)) => panic!("seed {seed}: {error}"),
    };
    assert!(report.is_clean(), "seed {seed}: {report:?}");
    check(&log, model, seed);
    log.bytes.left = left;
    while log.bytes.left > 0 {
        if draw.below(3) == 0 && !model.requests.is_empty() {
            let count = 1 + draw.below(model.requests.len() as u64);
            let freed = model.requests.drain(..count as usize).next_back().expect("some").last;
            log.release_through(freed);
            continue;
        }
        let units: Vec<(u64, Vec<u8>)> = (0..1 + draw.below(4))
            .map(|_| (draw.below(1000), vec![draw.next() as u8; draw.below(20_000) as usize]))
            .collect();
        if !log.fits(units.iter().map(|(_, payload)| payload.len() as u32)) {
            continue;
        }
        let stream = draw.below(u64::from(STREAMS)) as u16;
        let stream_sequence = model.cursors[usize::from(stream)] + 1 + draw.below(3);
        let mut last = 0;
        for (index, (slba, payload)) in units.iter().enumerate() {
            let record = data(*slba, payload, stream_sequence, index + 1 == units.len());
            last = log.push(&Record { stream, ..record }, payload);
        }
        // Dead before or after the last store: if before, recovery decides which it was.
        let committed = log.bytes.left > 0 || survives(&log.bytes.bytes, last, seed);
        if committed {
            model.cursors[usize::from(stream)] = stream_sequence;
            model.requests.push_back(Request { stream, stream_sequence, units, last });
        }
    }
    log.into_bytes().bytes
}

fn survives(bytes: &[u8], last: u64, seed: u64) -> bool {
    let (log, report) = recover(bytes.to_vec());
    assert!(report.is_clean(), "seed {seed}: {report:?}");
    log.record(last).is_some_and(|record| record.last)
}

fn check<B: Bytes>(log: &WriteBuffer<B>, model: &Model, seed: u64) {
    let expected: Vec<(u64, Vec<u8>)> = model.requests.iter().flat_map(|request| request.units.clone()).collect();
    let seen: Vec<(u64, Vec<u8>)> = contents(log).into_iter().map(|(_, slba, payload)| (slba, payload)).collect();
    // Freed records may come back when the tail was not written yet; nothing else may be there.
    assert!(seen.ends_with(&expected), "seed {seed}: {} of {} records", seen.len(), expected.len());
    for (stream, cursor) in model.cursors.iter().enumerate() {
        assert_eq!(log.stream_cursor(stream as u16), *cursor, "seed {seed}: stream {stream}");
    }
    for request in &model.requests {
        assert!(log.is_committed(request.stream, request.stream_sequence), "seed {seed}");
    }
}

#[test]
fn no_death_at_any_store_loses_tears_or_revives_a_request() {
    for seed in 0..150 {
        let mut draw = Draw::new(seed);
        let mut model = Model::default();
        let mut bytes = log().into_bytes();
        for _ in 0..4 {
            bytes = one_life(&mut draw, &mut model, bytes, seed);
        }
        check(&recover(bytes).0, &model, seed);
    }
}

/// Every byte of a small write path as the place of death, one after the other.
#[test]
fn every_cut_point_of_one_request_gives_all_or_nothing() {
    let mut base = log();
    push(&mut base, 1, b"before", true);
    let base = base.into_bytes();
    let mut outcomes = [0, 0];
    for left in 0..=(3 * 64 + 300) {
        let dying = Dying { bytes: base.clone(), left: u64::MAX };
        let (mut log, _) = WriteBuffer::recover(dying).map_err(|(error, _)| error).expect("recovers");
        log.bytes.left = left;
        for (slba, last) in [(10, false), (11, false), (12, true)] {
            log.push(&data(slba, &[slba as u8; 100], 1, last), &[slba as u8; 100]);
        }
        let (log, report) = recover(log.into_bytes().bytes);
        let found: Vec<u64> = contents(&log).iter().map(|(_, slba, _)| *slba).collect();
        assert!(report.is_clean());
        assert!(found == [1] || found == [1, 10, 11, 12], "cut at {left}: {found:?}");
        outcomes[usize::from(found.len() > 1)] += 1;
    }
    assert!(outcomes[0] > 400 && outcomes[1] >= 1, "{outcomes:?}");
}

#[test]
fn a_flipped_bit_anywhere_never_gives_wrong_bytes_as_right_ones() {
    let mut log = log();
    for slba in 0..6 {
        push(&mut log, slba, &[slba as u8; 700], true);
    }
    let ring_at = log.layout.ring_at;
    let good = contents(&log);
    let base = log.into_bytes();
    let mut draw = Draw::new(77);
    for _ in 0..3_000 {
        let mut bytes = base.clone();
        let at = ring_at + draw.below(6 * record_bytes(700));
        bytes[at as usize] ^= 1 << draw.below(8);
        let (log, report) = recover(bytes);
        let sound = contents(&log).into_iter().filter(|(sequence, _, payload)| {
            log.record(*sequence).is_some_and(|record| record.checksum == crc32c::crc32c(payload))
        });
        let sound: Vec<_> = sound.collect();
        assert!(sound.iter().all(|record| good.contains(record)), "flip at {at}");
        assert!(sound.len() >= 5, "flip at {at}: one record at most is lost");
        // Padding between records belongs to no one; the last header cannot be told from unfinished.
        let in_last = at >= ring_at + 5 * record_bytes(700);
        assert!(sound.len() == 6 || report.damage_count == 1 || in_last, "flip at {at}");
    }
}
