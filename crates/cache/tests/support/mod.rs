//! Traces, made with integers alone so that they are the same on every machine; and the way to libCacheSim.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use osier_cache::{SplitMix64, next_uses};

/// Draws page numbers by Zipf's law: page `i` of `pages`, from 1, has the weight `i^-(exponent/2)`.
pub struct Zipf {
    /// Sums of the weights.
    sums: Vec<u64>,
    /// Which page has which rank.
    places: Vec<u64>,
}

impl Zipf {
    pub fn new(pages: u64, exponent_halves: u32, random: &mut SplitMix64) -> Self {
        let weight = |rank: u64| (1_u64 << 40) / (u128::from(rank).pow(exponent_halves) << 20).isqrt() as u64;
        let mut sum = 0;
        let sums = (1..=pages)
            .map(|rank| {
                sum += weight(rank);
                sum
            })
            .collect();
        let mut places: Vec<u64> = (0..pages).collect();
        for last in (1..places.len()).rev() {
            places.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self { sums, places }
    }

    pub fn draw(&self, random: &mut SplitMix64) -> u64 {
        let at = random.below(*self.sums.last().unwrap());
        self.places[self.sums.partition_point(|sum| *sum <= at)]
    }
}

/// The traces, by name. Each has `requests` requests to about `pages` pages.
pub const TRACES: [&str; 9] =
    ["zipf-0.5", "zipf-1", "zipf-1.5", "uniform", "loop", "scan-and-zipf", "shifting", "strided", "two-pools"];

/// Makes a trace of [`TRACES`].
pub fn trace(name: &str, pages: u64, requests: usize, seed: u64) -> Vec<u64> {
    let mut random = SplitMix64::new(seed);
    let zipf = Zipf::new(
        pages,
        if name == "zipf-0.5" {
            1
        } else if name == "zipf-1.5" {
            3
        } else {
            2
        },
        &mut random,
    );
    let page = |request: u64| match name {
        "zipf-0.5" | "zipf-1" | "zipf-1.5" => zipf.draw(&mut random),
        "uniform" => random.below(pages),
        "loop" => request % (pages / 3),
        // Every tenth thousand of requests is a piece of a scan over pages that nothing else asks for.
        "scan-and-zipf" => {
            if request / 1000 % 10 == 9 {
                pages + request
            } else {
                zipf.draw(&mut random)
            }
        }
        // The hot pages move by a tenth of all every twentieth of the trace.
        "shifting" => (zipf.draw(&mut random) + request * 20 / requests as u64 * (pages / 10)) % pages,
        "strided" => {
            let stride = [1, 7, 64, 9][(request / 5000 % 4) as usize];
            (request % 5000 * stride + random.below(3)) % pages
        }
        // Half of the requests go to a hundredth of the pages (the case of the LRU-2 paper).
        "two-pools" => {
            if request.is_multiple_of(2) {
                random.below(pages / 100)
            } else {
                pages + random.below(pages)
            }
        }
        _ => panic!("there is no trace {name}"),
    };
    (0..requests as u64).map(page).collect()
}

/// Writes a trace in libCacheSim's format oracleGeneral: time, page, size, next use, little-endian, 24 bytes.
pub fn write_oracle_general(path: &Path, pages: &[u64]) {
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).unwrap());
    file.write_all(&oracle_general(pages)).unwrap();
    file.flush().unwrap();
}

/// The bytes of such a file. The size of a page is 1, and pages begin at 1: libCacheSim takes 0 for no page.
pub fn oracle_general(pages: &[u64]) -> Vec<u8> {
    let next = next_uses(pages.iter().copied());
    let mut bytes = Vec::with_capacity(pages.len() * 24);
    for (request, (page, next)) in pages.iter().zip(&next).enumerate() {
        // libCacheSim counts requests from 1, and takes -1 for never.
        let next = if *next == u64::MAX { -1 } else { *next as i64 + 1 };
        bytes.extend((request as u32).to_le_bytes());
        bytes.extend((page + 1).to_le_bytes());
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(next.to_le_bytes());
    }
    bytes
}

/// The top directory of the sources.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A directory for what libCacheSim is to read.
pub fn oracle_directory() -> PathBuf {
    let directory = root().join("target/oracle");
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

/// The Python that has libCacheSim, or why there is none.
pub fn oracle_python() -> Result<PathBuf, String> {
    let output = Command::new(root().join("scripts/oracle-libcachesim")).output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// What libCacheSim says of one policy, in one size, on one trace.
#[derive(Debug)]
pub struct Answer {
    pub misses: u64,
    pub cpu_seconds: f64,
}

/// One replay to ask libCacheSim for.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The policy, as libCacheSim calls it.
    pub policy: &'a str,
    pub pages: u32,
    /// Binary logarithm of the buckets of its hash table.
    pub hash_power: u32,
}

/// Replays a trace in libCacheSim, for each question the best of `runs`.
pub fn ask_oracle(python: &Path, trace: &Path, questions: &[Question<'_>], runs: u32) -> Vec<Answer> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracle.py");
    let cases = questions.iter().map(|asked| format!("{}:{}:{}", asked.policy, asked.pages, asked.hash_power));
    let output = Command::new(python).arg(script).arg(trace).arg(runs.to_string()).args(cases).output().unwrap();
    assert!(output.status.success(), "libCacheSim failed: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let answer = |line: &str| {
        let (misses, seconds) = line.split_once(' ').unwrap();
        Answer { misses: misses.parse().unwrap(), cpu_seconds: seconds.parse().unwrap() }
    };
    text.lines().map(answer).collect()
}

/// Our policies that libCacheSim has too, and its names for them.
pub const SHARED: [(&str, &str); 7] = [
    ("fifo", "FIFO"),
    ("lru", "LRU"),
    ("clock", "Clock"),
    ("s3-fifo", "S3FIFO"),
    ("sieve", "Sieve"),
    ("arc", "ARC"),
    ("belady", "Belady"),
];
