//! The readers of traces beside parsers that are slow and plain; bad input of every kind; round trips.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use osier_sim::trace::{
    BAD_PERMILLE_MAX, Compression, Counts, Fault, Format, LINE_BYTES, PAGE_BYTES, Paced, ReadOptions, Remap, Remapped,
    SORT_WINDOW, Speed, Target, TraceError, TraceReader, TraceWriter, WriteError, unpack,
};
use osier_sim::{Nanos, Op, Pace, Request, Rng, Source};
use support::{SlowParser, TEXTS, golden};

const LENIENT: ReadOptions = ReadOptions {
    strict: false,
    event: osier_sim::trace::BlkEvent::Issue,
    instructions: false,
    object_bytes: PAGE_BYTES,
    hashed_objects: false,
};
const STRICT: ReadOptions = ReadOptions { strict: true, ..LENIENT };

type Outcome = (Vec<Request>, Option<Counts>, Option<TraceError>);

/// Reads to the end; requests, counts, and what ended it.
fn read(bytes: &[u8], format: Option<Format>, options: ReadOptions) -> Outcome {
    let mut reader = match TraceReader::new(bytes, format, options) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), None, Some(error)),
    };
    let (requests, error) = drain(&mut reader);
    (requests, Some(reader.counts().clone()), error)
}

fn drain(source: &mut impl Source) -> (Vec<Request>, Option<TraceError>) {
    let mut requests = Vec::new();
    let mut error = None;
    while let Some(next) = source.next(Nanos::ZERO) {
        match next {
            Ok(request) => requests.push(request),
            Err(cause) => error = Some(cause),
        }
    }
    assert!(source.next(Nanos::ZERO).is_none(), "after the end there is nothing");
    (requests, error)
}

fn whole(bytes: &[u8], format: Option<Format>) -> Vec<Request> {
    let (requests, _, error) = read(bytes, format, LENIENT);
    assert!(error.is_none(), "{}", error.unwrap());
    requests
}

fn message(bytes: &[u8], format: Option<Format>, options: ReadOptions) -> String {
    read(bytes, format, options).2.expect("an error").to_string()
}

/// The records of an `oracle-general` trace, one field after the other.
fn slow_oracle_general(bytes: &[u8]) -> Vec<(u32, u64, u32, i64)> {
    let record = |r: &[u8]| {
        (
            u32::from_le_bytes(r[..4].try_into().unwrap()),
            u64::from_le_bytes(r[4..12].try_into().unwrap()),
            u32::from_le_bytes(r[12..16].try_into().unwrap()),
            i64::from_le_bytes(r[16..].try_into().unwrap()),
        )
    };
    bytes.chunks(24).map(record).collect()
}

#[test]
fn golden_traces_are_recognized_and_read_as_a_plain_parser_reads_them() {
    for (format, name) in TEXTS {
        let bytes = golden(name);
        let (requests, bad) = SlowParser::default().file(format, std::str::from_utf8(&bytes).unwrap());
        assert_eq!(bad, 0, "{name}");
        let reader = TraceReader::new(&bytes[..], None, LENIENT).unwrap();
        assert_eq!(reader.format(), format);
        assert_eq!(whole(&bytes, None), requests, "{name}");
        assert!(requests.len() >= 30, "{name} has {}", requests.len());
    }
    let bytes = golden("oracle-general.bin");
    let page = u64::from(PAGE_BYTES);
    let expected: Vec<Request> = slow_oracle_general(&bytes)
        .iter()
        .map(|(seconds, object, bytes, _)| {
            let at = Nanos(u64::from(*seconds) * 1_000_000_000);
            Request { at, address: object * page, bytes: *bytes, tenant: 0, op: Op::Read }
        })
        .collect();
    assert_eq!(whole(&bytes, None), expected);
}

#[test]
fn each_event_of_a_blkparse_trace_can_be_the_request() {
    use osier_sim::trace::BlkEvent;
    let bytes = golden("blkparse.txt");
    let [queued, issued, completed] = BlkEvent::ALL.map(|event| {
        let (requests, counts, error) = read(&bytes, None, ReadOptions { event, ..LENIENT });
        assert!(error.is_none() && counts.unwrap().bad() == 0);
        requests
    });
    assert_eq!((queued.len(), completed.len()), (30, 30));
    assert_eq!(issued.len(), 31, "with the flush that has no place");
    assert_eq!(issued[30], Request { address: 0, bytes: 0, op: Op::Flush, ..issued[30] });
    assert!(issued.iter().any(|request| request.op == Op::Trim));
    assert!(queued.iter().zip(&completed).all(|(q, c)| (q.address, q.bytes, q.op) == (c.address, c.bytes, c.op)));
}

#[test]
fn instructions_of_a_lackey_trace_are_loads_if_asked_for() {
    let bytes = golden("lackey.txt");
    let plain = whole(&bytes, None);
    let (all, _, _) = read(&bytes, None, ReadOptions { instructions: true, ..LENIENT });
    let instructions = bytes.split(|b| *b == b'\n').filter(|line| line.starts_with(b"I ")).count();
    assert_eq!(all.len(), plain.len() + instructions);
    let both = whole(b" M 10,4\n", Some(Format::Lackey));
    assert_eq!(
        both.iter().map(|r| (r.op, r.address, r.bytes)).collect::<Vec<_>>(),
        [(Op::Load, 16, 4), (Op::Store, 16, 4)]
    );
}

#[test]
fn addresses_alone_are_loads_of_lines() {
    let bytes: Vec<u8> = [7_u64, 1 << 40].iter().flat_map(|address| address.to_le_bytes()).collect();
    let requests = whole(&bytes, Some(Format::MemBinary));
    assert_eq!(
        requests.iter().map(|r| (r.address, r.bytes, r.op)).collect::<Vec<_>>(),
        [(7, LINE_BYTES, Op::Load), (1 << 40, LINE_BYTES, Op::Load)]
    );
    let reader = TraceReader::new(&bytes[..], Some(Format::MemBinary), LENIENT).unwrap();
    assert_eq!(reader.pace(), Pace::Closed { depth: 1 });
}

/// Changes a line at random: characters that formats are sensitive to, put in, put over others, or taken out.
fn mutate(line: &mut Vec<u8>, rng: &mut Rng) {
    const CHARACTERS: &[u8] = b"0123456789,, \t.+-xRWLSMIDFQCN[#=a";
    let at = rng.below(line.len() as u64 + 1) as usize;
    let character = CHARACTERS[rng.below(CHARACTERS.len() as u64) as usize];
    match rng.below(5) {
        0 => line.insert(at, character),
        1 if at < line.len() => line[at] = character,
        2 if at < line.len() => drop(line.remove(at)),
        3 => line.truncate(at),
        _ => {
            let copy = line[at..].to_vec();
            line.extend(copy);
        }
    }
}

#[test]
fn valid_and_mutated_lines_are_what_a_plain_parser_says() {
    const ROUNDS: u64 = 4000;
    for (format, name) in TEXTS {
        let text = golden(name);
        let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| line.len() > 5).collect();
        let mut rng = Rng::new(11);
        let (mut good, mut bad) = (0, 0);
        for round in 0..ROUNDS {
            let mut line = lines[rng.below(lines.len() as u64) as usize].to_vec();
            for _ in 0..rng.below(4) {
                mutate(&mut line, &mut rng);
            }
            let text = String::from_utf8(line.clone()).unwrap();
            let slow = SlowParser::default().line(format, text.strip_suffix('\r').unwrap_or(&text));
            let (requests, counts, error) = read(&line, Some(format), LENIENT);
            let case = || format!("{name}, round {round}: {text:?}: {error:?}");
            match slow {
                None => {
                    assert!(matches!(error, Some(TraceError::MixedUp { bad: 1, .. })), "{}", case());
                    bad += 1;
                }
                Some(slow) if slow.is_empty() => {
                    assert!(matches!(error, Some(TraceError::NoRequests { .. } | TraceError::Empty)), "{}", case());
                }
                Some(slow) => {
                    assert!(error.is_none(), "{}", case());
                    let at_zero = |request: &Request| Request { at: Nanos::ZERO, ..*request };
                    assert_eq!(requests, slow.iter().map(at_zero).collect::<Vec<_>>(), "{}", case());
                    assert_eq!(counts.unwrap().requests, slow.len() as u64);
                    good += 1;
                }
            }
        }
        assert!(good > ROUNDS / 20 && bad > ROUNDS / 20, "{name}: {good} good and {bad} bad are no test");
    }
}

/// What holds of whatever was read.
fn check_sound(requests: &[Request], counts: &Counts, error: Option<&TraceError>, strict: bool) {
    assert!(requests.windows(2).all(|pair| pair[0].at <= pair[1].at), "times go back");
    assert!(requests.iter().all(|request| request.address.checked_add(request.bytes.into()).is_some()));
    assert!(requests.iter().all(|request| request.bytes > 0 || request.op == Op::Flush));
    if error.is_none() {
        assert_eq!(counts.requests, requests.len() as u64);
        assert!(counts.bad() * 1000 <= (counts.requests + counts.bad()) * BAD_PERMILLE_MAX);
        assert!(!strict || counts.bad() + counts.unsorted == 0);
        assert_eq!(counts.shown.is_empty(), counts.bad() == 0);
    }
}

#[test]
fn damaged_files_never_panic_and_never_pass_as_whole() {
    let mut names: Vec<&str> = TEXTS.iter().map(|(_, name)| *name).collect();
    names.extend(["oracle-general.bin", "msr.csv.gz", "oracle-general.bin.zst"]);
    let mut rng = Rng::new(3);
    let (mut results, mut errors) = (0, 0);
    for round in 0..3000 {
        let name = names[rng.below(names.len() as u64) as usize];
        let mut bytes = golden(name);
        for _ in 0..rng.between(1, 12) {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            match rng.below(6) {
                0 => bytes.truncate(at),
                1 => bytes.insert(at, rng.next() as u8),
                2 => drop(bytes.splice(at.., golden(names[rng.below(names.len() as u64) as usize]))),
                3 => drop(bytes.drain(at..(at + 30).min(bytes.len()))),
                _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
                _ => {}
            }
        }
        let Ok((_, unpacked)) = unpack(&bytes[..]) else {
            errors += 1;
            continue;
        };
        let format = if rng.one_in(3) { Some(Format::ALL[rng.below(7) as usize]) } else { None };
        let strict = rng.one_in(2);
        let options = ReadOptions { strict, hashed_objects: rng.one_in(2), instructions: rng.one_in(2), ..LENIENT };
        let Ok(mut reader) = TraceReader::new(unpacked, format, options) else {
            errors += 1;
            continue;
        };
        let (requests, error) = drain(&mut reader);
        check_sound(&requests, reader.counts(), error.as_ref(), strict);
        match error {
            None => results += 1,
            Some(error) => {
                assert!(!error.to_string().contains('\n'), "round {round}: {error}");
                errors += 1;
            }
        }
    }
    assert!(results > 300 && errors > 300, "{results} results and {errors} errors are no test");
}

#[test]
fn compressed_traces_read_as_the_plain_ones_and_cut_off_ones_are_an_error() {
    for (packed, plain, compression) in [
        ("msr.csv.gz", "msr.csv", Compression::Gzip),
        ("oracle-general.bin.zst", "oracle-general.bin", Compression::Zstd),
    ] {
        let bytes = golden(packed);
        let unpacked = |bytes: &[u8]| {
            let (found, unpacked) = unpack(bytes).map_err(|error| error.to_string())?;
            assert_eq!(found, compression);
            let reader = TraceReader::new(unpacked, None, LENIENT).map_err(|error| error.to_string());
            let (requests, error) = drain(&mut reader?);
            error.map_or(Ok(requests), |error| Err(error.to_string()))
        };
        let expected = whole(&golden(plain), None);
        assert_eq!(unpacked(&bytes).unwrap(), expected);
        let twice = [&bytes[..], &bytes].concat();
        assert_eq!(unpacked(&twice).unwrap().len(), 2 * expected.len(), "members and frames follow each other");
        for length in 5..bytes.len() {
            assert!(unpacked(&bytes[..length]).is_err(), "{packed} cut off at {length} passes as whole");
        }
        for at in 30..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            // Both have a checksum; what it does not cover says nothing about the requests.
            let harmless = unpacked(&damaged).is_ok_and(|requests| requests == expected);
            assert!(harmless || unpacked(&damaged).is_err(), "{packed} damaged at {at} passes as sound");
        }
    }
    let (found, _) = unpack(&b"x"[..]).unwrap();
    assert_eq!(found, Compression::None);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &golden("oracle-general.bin.zst")].concat();
    // A skippable frame has a magic of its own; behind an ordinary frame it is skipped.
    let behind = [&golden("oracle-general.bin.zst")[..], &skippable].concat();
    let (_, unpacked) = unpack(&behind[..]).unwrap();
    assert_eq!(drain(&mut TraceReader::new(unpacked, None, LENIENT).unwrap()).0.len(), 400);
}

#[test]
fn bad_lines_are_counted_by_kind_shown_by_number_and_end_strict_reading() {
    let mut lines: Vec<String> = (0..100).map(|i| format!("{} 0 {} 8 1", 1000 + i * 10, i * 8)).collect();
    lines[10] = "1100 0 80 0 1".to_owned();
    lines[20] = "half a li".to_owned();
    lines[30] = "1300 0 99999999999999999999 8 1".to_owned();
    lines[40] = "x".repeat(5000);
    lines[50] = "1495 0 400 8 1\r".to_owned();
    let text = lines.join("\n");
    let (requests, counts, error) = read(text.as_bytes(), None, LENIENT);
    let counts = counts.unwrap();
    assert!(error.is_none() && requests.len() == 96);
    assert_eq!((counts.faults, counts.unsorted, counts.lines), ([2, 1, 1, 0, 0], 0, 100));
    let shown: Vec<(u64, Fault)> = counts.shown.iter().map(|bad| (bad.number, bad.fault)).collect();
    assert_eq!(
        shown,
        [
            (11, Fault::ZeroLength),
            (21, Fault::Number("arrival")),
            (31, Fault::TooLarge("first sector")),
            (41, Fault::LongLine)
        ]
    );
    let text = message(text.as_bytes(), None, STRICT);
    assert!(text.contains("line 11") && text.contains("no bytes") && text.contains("1100 0 80 0 1"), "{text}");
}

#[test]
fn a_record_that_is_cut_off_is_reported() {
    let bytes = golden("oracle-general.bin");
    let (requests, counts, error) = read(&bytes[..bytes.len() - 5], None, LENIENT);
    let counts = counts.unwrap();
    assert!(error.is_none() && requests.len() == 199);
    assert_eq!((counts.bad(), counts.shown[0].number, counts.shown[0].fault), (1, 200, Fault::Truncated));
    let text = message(&bytes[..bytes.len() - 5], None, STRICT);
    assert!(text.contains("record 200") && text.contains("cut off"), "{text}");
}

#[test]
fn what_is_no_trace_or_two_is_an_error_that_says_which() {
    let msr = String::from_utf8(golden("msr.csv")).unwrap();
    let mqsim = String::from_utf8(golden("mqsim.txt")).unwrap();
    assert_eq!(message(b"", None, LENIENT), "the trace is empty");
    assert_eq!(message(b"", Some(Format::Msr), LENIENT), "the trace is empty");
    let text = message(b"\n\n\n", Some(Format::Msr), LENIENT);
    assert!(text.contains("3 lines and no request"), "{text}");
    let text = message(b"\x7fELF\0\0\0\0 ...", None, LENIENT);
    assert!(text.contains("not recognized") && text.contains("oracle-general"), "{text}");
    let text = message(format!("{msr}{mqsim}").as_bytes(), None, LENIENT);
    assert!(text.contains("`msr`, and look like `mqsim`") && text.contains("line 61 "), "{text}");
    let text = message(mqsim.as_bytes(), Some(Format::Msr), LENIENT);
    assert!(text.contains("look like `mqsim`"), "{text}");
    let one_in_ten = |i| if i % 10 == 9 { "?" } else { "R 64" };
    let good: Vec<&str> = (0..2000).map(one_in_ten).collect();
    assert_eq!(whole(good.join("\n").as_bytes(), None).len(), 1800, "exactly the share that is let pass");
    let (requests, counts, error) = read((good.join("\n") + "\n?").as_bytes(), None, LENIENT);
    assert!(matches!(error, Some(TraceError::MixedUp { bad: 201, .. })), "{error:?}");
    assert!(requests.len() == 1800 && counts.unwrap().shown.len() == 8);
}

/// The model: all requests, sorted by time, those of one time in the order of the file.
#[test]
fn a_trace_that_is_a_little_out_of_order_is_sorted_and_more_is_counted() {
    let mut rng = Rng::new(9);
    for round in 0..20 {
        let distance = rng.between(1, SORT_WINDOW as u64);
        let mut times: Vec<u64> = (0..5000).map(|i| i / rng.between(1, 3) * 100).collect();
        times.sort_unstable();
        // Each is moved by no more than the window.
        let mut keyed: Vec<(u64, u64)> =
            times.iter().enumerate().map(|(i, time)| (i as u64 + rng.below(distance), *time)).collect();
        keyed.sort_by_key(|(key, _)| *key);
        let text: String = keyed.iter().enumerate().map(|(i, (_, time))| format!("{time} 0 {i} 1 1\n")).collect();
        let mut expected: Vec<(u64, u64)> =
            keyed.iter().enumerate().map(|(i, (_, time))| (*time, i as u64 * 512)).collect();
        expected.sort_by_key(|(time, _)| *time);
        let first = expected[0].0;
        let (requests, counts, error) = read(text.as_bytes(), None, LENIENT);
        assert!(error.is_none() && counts.unwrap().bad() == 0, "round {round}");
        let found: Vec<(u64, u64)> = requests.iter().map(|r| (r.at.0 + first, r.address)).collect();
        assert_eq!(found, expected, "round {round}");
    }
    let mut lines: Vec<String> = (1..=3000).map(|i| format!("{i}00 0 {i} 1 1")).collect();
    lines.push("5 0 9 1 1".to_owned());
    let text = lines.join("\n");
    let (requests, counts, error) = read(text.as_bytes(), None, LENIENT);
    assert!(error.is_none() && requests.len() == 3000);
    assert_eq!(counts.unwrap().shown[0].fault, Fault::Late);
    let strict = message(b"200 0 1 1 1\n100 0 1 1 1\n", None, STRICT);
    assert!(strict.contains("line 2 is earlier"), "{strict}");
}

#[test]
fn objects_that_are_hashes_get_pages_of_their_own() {
    let record = |object: u64| [&[0; 4][..], &object.to_le_bytes(), &1_u32.to_le_bytes(), &[0xff; 8]].concat();
    let bytes: Vec<u8> = [u64::MAX, 5, u64::MAX, 1 << 60].into_iter().flat_map(record).collect();
    let (_, _, error) = read(&bytes, Some(Format::OracleGeneral), LENIENT);
    assert!(error.unwrap().to_string().contains("hashes"));
    let options = ReadOptions { hashed_objects: true, ..LENIENT };
    let (requests, _, error) = read(&bytes, Some(Format::OracleGeneral), options);
    assert!(error.is_none());
    assert_eq!(requests.iter().map(|r| r.address).collect::<Vec<_>>(), [0, 4096, 0, 8192]);
}

/// A source of given requests.
struct Given(std::vec::IntoIter<Request>);

impl Source for Given {
    fn pace(&self) -> Pace {
        Pace::Open
    }

    fn next(&mut self, _: Nanos) -> Option<Result<Request, TraceError>> {
        self.0.next().map(Ok)
    }
}

fn random_requests(rng: &mut Rng, count: u64, address_max: u64) -> Vec<Request> {
    let mut at = 0;
    (0..count)
        .map(|_| {
            at += rng.below(10_000) * 100;
            let op = if rng.one_in(3) { Op::Write } else { Op::Read };
            let bytes = rng.between(1, 40_000) as u32;
            Request { at: Nanos(at), address: rng.below(address_max), bytes, tenant: rng.below(4) as u16, op }
        })
        .collect()
}

fn write(requests: &[Request], target: Target) -> Result<Vec<u8>, WriteError> {
    let mut writer = TraceWriter::new(Vec::new(), target);
    requests.iter().try_for_each(|request| writer.write(request))?;
    writer.finish()
}

#[test]
fn a_trace_that_is_written_reads_as_what_the_format_can_hold() {
    let mut rng = Rng::new(21);
    for _ in 0..20 {
        let requests = random_requests(&mut rng, 300, 1 << 40);
        let first = requests[0].at.0;
        let from_zero = |r: &Request| Request { at: Nanos(r.at.0 - first), ..*r };
        let expected: Vec<Request> = requests.iter().map(from_zero).collect();
        // Disks are numbered by first appearance, so tenants may be renamed.
        let rename = |requests: &[Request]| {
            let mut seen = Vec::new();
            let mut number = |tenant: u16| {
                seen.iter().position(|known| *known == tenant).unwrap_or_else(|| {
                    seen.push(tenant);
                    seen.len() - 1
                }) as u16
            };
            requests.iter().map(|r| Request { tenant: number(r.tenant), ..*r }).collect::<Vec<_>>()
        };
        assert_eq!(whole(&write(&requests, Target::Msr).unwrap(), None), rename(&expected));
        let sectors = |r: &Request| {
            let start = r.address / 512 * 512;
            let end = (r.address + u64::from(r.bytes)).next_multiple_of(512);
            Request { address: start, bytes: (end - start) as u32, ..*r }
        };
        let mqsim = write(&requests, Target::MqSim).unwrap();
        assert_eq!(whole(&mqsim, None), expected.iter().map(sectors).collect::<Vec<_>>());
        let memory = |r: &Request| {
            let op = if r.op == Op::Read { Op::Load } else { Op::Store };
            Request { at: Nanos::ZERO, tenant: 0, op, ..*r }
        };
        let mem = write(&requests, Target::Mem).unwrap();
        assert_eq!(whole(&mem, None), requests.iter().map(memory).collect::<Vec<_>>());
        let again = write(&whole(&mqsim, None), Target::MqSim).unwrap();
        assert_eq!(whole(&again, None), whole(&mqsim, None), "what a format holds, it holds again");
    }
}

#[test]
fn next_uses_are_those_that_a_search_finds() {
    let mut rng = Rng::new(4);
    let requests = random_requests(&mut rng, 400, 200_000);
    let bytes = write(&requests, Target::OracleGeneral).unwrap();
    let records = slow_oracle_general(&bytes);
    let pages: Vec<u64> =
        requests.iter().flat_map(|r| r.address / 4096..=(r.address + u64::from(r.bytes) - 1) / 4096).collect();
    assert_eq!(records.iter().map(|record| record.1).collect::<Vec<_>>(), pages);
    for (index, (_, object, bytes, next)) in records.iter().enumerate() {
        let later = pages[index + 1..].iter().position(|page| page == object);
        assert_eq!(*next, later.map_or(-1, |distance| (index + 1 + distance + 1) as i64));
        assert_eq!(*bytes, PAGE_BYTES);
    }
    assert!(whole(&bytes, None).iter().map(|r| r.address / 4096).eq(pages));
}

#[test]
fn what_a_format_does_not_have_is_refused() {
    let trim = Request { at: Nanos(0), address: 0, bytes: 512, tenant: 0, op: Op::Trim };
    for target in Target::ALL {
        let error = write(&[Request { op: Op::Read, ..trim }, trim], target).unwrap_err().to_string();
        assert!(error.contains("request 2 is a trim") && error.contains(target.name()), "{error}");
    }
    let late = Request { at: Nanos(u64::MAX), op: Op::Read, ..trim };
    assert!(write(&[late], Target::OracleGeneral).unwrap_err().to_string().contains("scale the time"));
    assert!(write(&[late], Target::Msr).is_ok());
}

#[test]
fn remapped_addresses_stay_within_the_capacity_and_no_byte_is_lost() {
    const CAPACITY: u64 = 1 << 20;
    let mut rng = Rng::new(8);
    for round in 0..50 {
        let requests = random_requests(&mut rng, 60, if round % 2 == 0 { 1 << 50 } else { 1 << 19 });
        for remap in [Remap::Modulo, Remap::Compact] {
            let source = Given(requests.clone().into_iter());
            let mut remapped = Remapped::new(source, remap, CAPACITY, PAGE_BYTES).unwrap();
            let (pieces, error) = drain(&mut remapped);
            if let Some(error) = error {
                assert!(remap == Remap::Compact && error.to_string().contains("256 pages"), "{error}");
                continue;
            }
            assert!(pieces.iter().all(|piece| piece.address + u64::from(piece.bytes) <= CAPACITY));
            check_pieces(&requests, &pieces, remap, CAPACITY);
        }
    }
}

/// Every byte of every request is in a piece, in order, at the place that a plain rule gives it.
fn check_pieces(requests: &[Request], pieces: &[Request], remap: Remap, capacity: u64) {
    let page = u64::from(PAGE_BYTES);
    let mut numbers: Vec<u64> = Vec::new();
    let mut places = pieces.iter().flat_map(|p| (p.address..p.address + u64::from(p.bytes)).map(|at| (at, p.at, p.op)));
    for request in requests {
        for address in request.address..request.address + u64::from(request.bytes) {
            let place = if remap == Remap::Modulo {
                address % capacity
            } else {
                let known = numbers.iter().position(|known| *known == address / page);
                let number = known.unwrap_or_else(|| {
                    numbers.push(address / page);
                    numbers.len() - 1
                });
                number as u64 * page + address % page
            };
            assert_eq!(places.next(), Some((place, request.at, request.op)));
        }
    }
    assert_eq!(places.next(), None);
}

#[test]
fn addresses_beyond_the_capacity_are_refused_by_number() {
    let requests: Vec<Request> =
        (0..5).map(|i| Request { at: Nanos(i), address: i * 4096, bytes: 4096, tenant: 0, op: Op::Write }).collect();
    let mut remapped = Remapped::new(Given(requests.into_iter()), Remap::Refuse, 4 * 4096, PAGE_BYTES).unwrap();
    let (fitting, error) = drain(&mut remapped);
    assert_eq!(fitting.len(), 4);
    let text = error.unwrap().to_string();
    assert!(text.contains("request 5 ") && text.contains("16384") && text.contains("modulo"), "{text}");
    for capacity in [0, 4095, 4097] {
        assert!(Remapped::new(Given(Vec::new().into_iter()), Remap::Modulo, capacity, PAGE_BYTES).is_err());
    }
}

#[test]
fn time_is_scaled_forgotten_or_given() {
    let requests: Vec<Request> = [0, 7, 1_000_000_000_000]
        .map(|at| Request { at: Nanos(at), address: 0, bytes: 1, tenant: 0, op: Op::Read })
        .to_vec();
    let times = |speed| {
        let mut paced = Paced::new(Given(requests.clone().into_iter()), speed);
        let pace = paced.pace();
        let times: Vec<u64> =
            std::iter::from_fn(|| paced.next(Nanos(55))).map(|request| request.unwrap().at.0).collect();
        (pace, times)
    };
    let scaled = |numerator, denominator| times(Speed::Scaled { numerator, denominator });
    assert_eq!(scaled(3, 2), (Pace::Open, vec![0, 10, 1_500_000_000_000]));
    assert_eq!(scaled(u32::MAX, 1).1[2], u64::MAX, "it stays at the last time that there is");
    assert_eq!(times(Speed::Closed { depth: 4 }), (Pace::Closed { depth: 4 }, vec![55; 3]));
    assert_eq!(times(Speed::Every { interval_ns: 9 }), (Pace::Open, vec![0, 9, 18]));
}
