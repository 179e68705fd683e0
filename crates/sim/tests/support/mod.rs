//! Parsers that are slow and plain, to hold the fast ones against: written from the formats' descriptions, with the
//! standard library's means.
#![allow(dead_code, clippy::unwrap_used, reason = "each test uses a part")]

use std::collections::BTreeMap;

use osier_sim::trace::{BlkEvent, Format};
use osier_sim::{Nanos, Op, Request};

/// What a line is: some requests, or wrong. Times are the trace's own.
pub type Slow = Option<Vec<Request>>;

pub fn golden(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name);
    std::fs::read(&path).unwrap()
}

/// The text formats with their golden files.
pub const TEXTS: [(Format, &str); 5] = [
    (Format::Msr, "msr.csv"),
    (Format::MqSim, "mqsim.txt"),
    (Format::BlkParse, "blkparse.txt"),
    (Format::Mem, "mem.txt"),
    (Format::Lackey, "lackey.txt"),
];

#[derive(Default)]
pub struct SlowParser {
    tenants: BTreeMap<String, u16>,
}

impl SlowParser {
    /// Parses a line without its end.
    pub fn line(&mut self, format: Format, line: &str) -> Slow {
        if line.chars().all(|c| c.is_ascii_whitespace()) {
            return Some(Vec::new());
        }
        let parsed = match format {
            Format::Msr => self.msr(line),
            Format::MqSim => mqsim(line),
            Format::BlkParse => self.blkparse(line, BlkEvent::Issue),
            Format::Mem => mem(line),
            Format::Lackey => lackey(line),
            Format::OracleGeneral | Format::MemBinary => panic!("no text"),
        };
        parsed.filter(|requests| {
            let sound = |r: &Request| {
                u128::from(r.address) + u128::from(r.bytes) <= u128::from(u64::MAX)
                    && (r.bytes > 0 || r.op == Op::Flush)
            };
            requests.iter().all(sound)
        })
    }

    /// Parses a file; the requests in the order of their times, from zero, and the number of bad lines.
    pub fn file(&mut self, format: Format, text: &str) -> (Vec<Request>, u64) {
        let mut bad = 0;
        let mut requests = Vec::new();
        for line in text.split('\n') {
            match self.line(format, line.strip_suffix('\r').unwrap_or(line)) {
                Some(parsed) => requests.extend(parsed),
                None => bad += 1,
            }
        }
        requests.sort_by_key(|request| request.at);
        let first = requests.first().map_or(0, |request| request.at.0);
        requests.iter_mut().for_each(|request| request.at.0 -= first);
        (requests, bad)
    }

    fn tenant(&mut self, name: String) -> u16 {
        let next = u16::try_from(self.tenants.len()).unwrap();
        *self.tenants.entry(name).or_insert(next)
    }

    fn msr(&mut self, line: &str) -> Slow {
        let fields: Vec<&str> = line.split(',').collect();
        let [ticks, host, disk, kind, offset, size, response] = fields[..] else { return None };
        number(disk, 10)?;
        number(response, 10)?;
        let op = match kind.to_ascii_lowercase().as_str() {
            "read" => Op::Read,
            "write" => Op::Write,
            _ => return None,
        };
        let at = number(ticks, 10)?.checked_mul(100)?;
        let (address, bytes) = (number(offset, 10)?, u32::try_from(number(size, 10)?).ok()?);
        if bytes == 0 {
            return None;
        }
        let tenant = self.tenant(format!("{host},{disk}"));
        Some(vec![Request { at: Nanos(at), address, bytes, tenant, op }])
    }

    fn blkparse(&mut self, line: &str, event: BlkEvent) -> Slow {
        const SUMS: &str = "CPU|Total (|Reads |Writes |Read |Write |IO unplugs|PC |Throughput|Events|Skips";
        if SUMS.split('|').any(|start| line.trim_start().starts_with(start)) {
            return Some(Vec::new());
        }
        let words = words(line);
        let [device, cpu, sequence, time, pid, action, rest @ ..] = &words[..] else { return None };
        let numbers: Vec<&str> = device.split(',').collect();
        let [major, minor] = numbers[..] else { return None };
        for text in [major, minor, cpu, sequence, pid] {
            number(text, 10)?;
        }
        let (seconds, fraction) = time.split_once('.')?;
        if fraction.len() != 9 {
            return None;
        }
        let at = number(seconds, 10)?.checked_mul(1_000_000_000)?.checked_add(number(fraction, 10)?)?;
        if action.len() > 2 || !"ABCDFGIMPQRSTUXm".contains(action.chars().next()?) {
            return None;
        }
        if *action != event.letter() {
            return Some(Vec::new());
        }
        let (rwbs, rest) = rest.split_first()?;
        let (flush, flags) = rwbs.strip_prefix('F').map_or((false, *rwbs), |rest| (true, rest));
        let op = match flags.chars().next() {
            Some('R') => Op::Read,
            Some('W') => Op::Write,
            Some('D' | 'E') => Op::Trim,
            Some('F' | 'N' | 'S') | None if flush => Op::Flush,
            Some('N' | 'Z') => return Some(Vec::new()),
            _ => return None,
        };
        let placeless = op == Op::Flush && rest.first().is_none_or(|word| word.starts_with('['));
        let (address, bytes) = if placeless {
            (0, 0)
        } else {
            let [sector, "+", sectors, ..] = rest else { return None };
            let bytes = u32::try_from(number(sectors, 10)?.checked_mul(512)?).ok()?;
            (number(sector, 10)?.checked_mul(512)?, bytes)
        };
        let op = if bytes == 0 && op == Op::Write { Op::Flush } else { op };
        let tenant = self.tenant((*device).to_owned());
        Some(vec![Request { at: Nanos(at), address, bytes, tenant, op }])
    }
}

fn words(line: &str) -> Vec<&str> {
    line.split([' ', '\t']).filter(|word| !word.is_empty()).collect()
}

/// A number of digits alone, which `parse` is not strict about.
fn number(text: &str, radix: u32) -> Option<u64> {
    let digits = !text.is_empty() && text.chars().all(|c| c.is_digit(radix));
    digits.then(|| u64::from_str_radix(text, radix).ok()).flatten()
}

fn mqsim(line: &str) -> Slow {
    let words = words(line);
    let [at, device, sector, sectors, kind] = words[..] else { return None };
    let op = match kind {
        "0" => Op::Write,
        "1" => Op::Read,
        _ => return None,
    };
    let bytes = u32::try_from(number(sectors, 10)?.checked_mul(512)?).ok()?;
    let tenant = u16::try_from(number(device, 10)?).ok()?;
    let (at, address) = (Nanos(number(at, 10)?), number(sector, 10)?.checked_mul(512)?);
    Some(vec![Request { at, address, bytes, tenant, op }])
}

fn mem(line: &str) -> Slow {
    if line.trim_start().starts_with('#') {
        return Some(Vec::new());
    }
    let words = words(line);
    let (kind, address, size) = match words[..] {
        [kind, address] => (kind, address, "64"),
        [kind, address, size] => (kind, address, size),
        _ => return None,
    };
    let op = match kind {
        "R" | "r" => Op::Load,
        "W" | "w" => Op::Store,
        _ => return None,
    };
    let hexadecimal = address.strip_prefix("0x").or_else(|| address.strip_prefix("0X"));
    let address = hexadecimal.map_or_else(|| number(address, 10), |digits| number(digits, 16))?;
    let bytes = u32::try_from(number(size, 10)?).ok()?;
    Some(vec![Request { at: Nanos(0), address, bytes, tenant: 0, op }])
}

fn lackey(line: &str) -> Slow {
    if line.starts_with("==") || line.starts_with("--") {
        return Some(Vec::new());
    }
    let ops: &[Op] = match line.get(..3)? {
        " L " => &[Op::Load],
        " S " => &[Op::Store],
        " M " => &[Op::Load, Op::Store],
        "I  " => &[],
        _ => return None,
    };
    let (address, size) = line[3..].split_once(',')?;
    let address = number(address.trim_ascii_start(), 16)?;
    let bytes = u32::try_from(number(size, 10)?).ok()?;
    let request = |op: &Op| Request { at: Nanos(0), address, bytes, tenant: 0, op: *op };
    Some(ops.iter().map(request).collect())
}
