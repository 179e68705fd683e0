//! Redis with its heap in a window, under a load of YCSB-C: reads alone, zipfian, as in Figure 7 of Cylon.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use osier_front::window::Durations;
use osier_report::{Axis, LineChart, Series, Stroke, Table, Unit};
use osier_sim::Rng;
use osier_sim::run::Histogram;
use serde::Serialize;
use serde_json::Value;

use super::live::{Device, Kept, LiveArgs, Setup, Shown, go_on, hundredths};
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::signals::StopFlag;

/// Values by cache, in hundredths (Figure 7).
pub const WORKING_SETS: [u64; 3] = [33, 106, 210];
const SERVER: &str = "redis-server";
/// Bytes of a value (section 5.1.2).
const VALUE_BYTES: usize = 1024;
/// What Redis has for a key beside its value, about: the key, an entry of the table, a string's header.
const KEY_BYTES: u64 = 128;
/// The exponent of YCSB's zipfian draws, in thousandths.
const THETA: f64 = 0.99;
const CACHE_BYTES: u64 = 16 << 20;
/// Commands sent before the replies are read, while values are stored.
const PIPELINE: u64 = 64;
/// How long Redis may take to listen or to end.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(5);
/// Quantiles that are shown, in millionths.
const QUANTILES: [u32; 6] = [250_000, 500_000, 750_000, 900_000, 990_000, 999_000];

/// `osier exp cylon-redis`
#[derive(Debug, Args)]
pub struct RedisArgs {
    /// Reads at each size
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    requests: u64,
    /// Draws the keys
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-cylon-redis", value_name = "DIR")]
    pub out: PathBuf,
    #[command(flatten)]
    device: LiveArgs,
}

/// One size.
#[derive(Debug, Serialize)]
struct Size {
    /// Of the values with their keys, by cache, in hundredths.
    x_e2: u64,
    records: u64,
    /// Most of the heap that was in use.
    heap_bytes_max: u64,
    /// Reads, each of whose values was compared with what was stored.
    requests: u64,
    requests_per_second: u64,
    /// Quantile in millionths, and nanoseconds, in the window and with an ordinary heap.
    window: Vec<(u32, u64)>,
    memory: Vec<(u32, u64)>,
    /// Faults of Redis, those of storing the values included.
    faults: u64,
    misses: u64,
    kept: Kept,
    #[serde(skip)]
    latencies: [Histogram; 2],
}

/// All that ran.
#[derive(Debug, Serialize)]
pub struct Served {
    experiment: &'static str,
    device: Setup,
    seed: u64,
    assumed: [&'static str; 3],
    sizes: Vec<Size>,
}

const ASSUMED: [&str; 3] = [
    "One client, which waits for each reply; values of 1 KiB; keys drawn with an exponent of 0.99 and scattered. What it sees \
     is the round trip over a Unix socket, not the memory alone.",
    "The cache and the number of records are scaled down; the times of the device are not.",
    "Nothing is fitted. How the latencies lie beside those with an ordinary heap follows from the profile.",
];

/// Runs every size.
///
/// # Errors
/// Redis is not installed, a device that cannot be, a value that is not what was stored.
pub fn run(args: &RedisArgs, stop: &StopFlag) -> Result<Served> {
    let server = installed().ok_or_else(|| {
        let text = format!("there is no {SERVER} on the PATH; install it (Debian: apt install {SERVER})");
        Failure::new(Exit::Missing, text)
    })?;
    let setup = args.device.or("cylon", CACHE_BYTES);
    let mut sizes = Vec::new();
    for x in WORKING_SETS {
        go_on(stop)?;
        sizes.push(run_size(&server, &setup, x, args)?);
        tell!("osier: values of {} of the cache", hundredths(x));
    }
    Ok(Served { experiment: "cylon-redis", device: setup, seed: args.seed, assumed: ASSUMED, sizes })
}

fn installed() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(SERVER)).find(|path| path.is_file())
}

fn run_size(server: &Path, setup: &Setup, x: u64, args: &RedisArgs) -> Result<Size> {
    let records = (setup.cache * x / 100 / (VALUE_BYTES as u64 + KEY_BYTES)).max(1);
    let device = Device::start(setup)?;
    let plain = Redis::start(Command::new(server), &device.path("plain"))?;
    let (memory, _) = plain.serve(records, args)?;
    let own = std::env::current_exe().context("finding this program, to run Redis with it")?;
    let mut command = Command::new(own);
    let stats = device.path("stats");
    command.args(["--json", "run", "--device"]).arg(device.socket()).arg("--stats").arg(&stats).arg("--").arg(server);
    let (window, requests_per_second) = Redis::start(command, &device.path("redis"))?.serve(records, args)?;
    let figures = figures(&stats)?;
    device.stop()?;
    let durations = |name: &str| -> Result<Durations> {
        serde_json::from_value(figures[name].clone()).with_context(|| format!("reading {name} of the run's figures"))
    };
    let quantiles = |latency: &Histogram| QUANTILES.map(|quantile| (quantile, latency.percentile(quantile))).into();
    let number = |value: &Value| value.as_u64().unwrap_or(0);
    Ok(Size {
        x_e2: x,
        records,
        heap_bytes_max: number(&figures["used_bytes_max"]),
        requests: window.count(),
        requests_per_second,
        window: quantiles(&window),
        memory: quantiles(&memory),
        faults: number(&figures["device"]["faults"]),
        misses: number(&figures["device"]["misses"]),
        kept: Kept::new(durations("latency")?, durations("lateness")?),
        latencies: [window, memory],
    })
}

/// What the run said at its end, a line.
fn figures(path: &Path) -> Result<Value> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("reading the run's figures in {}", path.display()))?;
    serde_json::from_str(text.lines().next().unwrap_or_default()).context("reading the run's figures")
}

/// A server with a client.
struct Redis {
    process: Child,
    stream: BufReader<UnixStream>,
}

impl Redis {
    fn start(mut command: Command, socket: &Path) -> Result<Redis> {
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--loglevel", "warning", "--unixsocket"]);
        command.arg(socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        if let Some(directory) = socket.parent() {
            command.current_dir(directory);
        }
        let mut process = command.spawn().with_context(|| format!("starting {SERVER}"))?;
        let began = Instant::now();
        loop {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(PATIENCE)).context("setting how long Redis is waited for")?;
                return Ok(Redis { process, stream: BufReader::new(stream) });
            }
            if process.try_wait().context("looking after Redis")?.is_some() {
                let mut said = String::new();
                if let Some(err) = process.stderr.as_mut() {
                    err.read_to_string(&mut said).context("reading what Redis said")?;
                }
                let text = format!("{SERVER} ended before it listened: {}", said.trim());
                return Err(Failure::new(Exit::BadInput, text).into());
            }
            if began.elapsed() > PATIENCE {
                let _ = process.kill();
                let _ = process.wait();
                return Err(anyhow!("{SERVER} does not listen after {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Stores the records, reads as many as were asked for, and ends; the latencies, and reads a second.
    fn serve(mut self, records: u64, args: &RedisArgs) -> Result<(Histogram, u64)> {
        for first in (0..records).step_by(PIPELINE as usize) {
            let keys = first..records.min(first + PIPELINE);
            for key in keys.clone() {
                self.send(&[b"SET", key.to_string().as_bytes(), &value(key)])?;
            }
            for key in keys {
                let reply = self.reply()?;
                if reply != b"+OK" {
                    return Err(anyhow!("{SERVER} did not store key {key}: {}", String::from_utf8_lossy(&reply)));
                }
            }
        }
        let (zipf, mut rng) = (Zipf::new(records), Rng::new(args.seed));
        let mut latency = Histogram::default();
        let began = Instant::now();
        for _ in 0..args.requests {
            let key = zipf.draw(&mut rng);
            let asked = Instant::now();
            self.send(&[b"GET", key.to_string().as_bytes()])?;
            let found = self.reply()?;
            latency.add(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
            if found != value(key) {
                let text = format!("key {key} has another value than the one that was stored");
                return Err(Failure::new(Exit::VerificationFailed, text).into());
            }
        }
        let rate = args.requests as f64 / began.elapsed().as_secs_f64().max(1e-9);
        self.end()?;
        Ok((latency, rate as u64))
    }

    fn end(&mut self) -> Result<()> {
        self.send(&[b"SHUTDOWN", b"NOSAVE"])?;
        let began = Instant::now();
        while self.process.try_wait().context("waiting for Redis")?.is_none() {
            if began.elapsed() > PATIENCE {
                return Err(anyhow!("{SERVER} did not end in {} s after it was asked", PATIENCE.as_secs()));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// A command, as arrays of bulk strings.
    fn send(&mut self, words: &[&[u8]]) -> Result<()> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend(format!("${}\r\n", word.len()).into_bytes());
            text.extend(*word);
            text.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&text).with_context(|| format!("asking {SERVER}"))
    }

    /// A status or an error as its line, or the bytes of a value.
    fn reply(&mut self) -> Result<Vec<u8>> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).with_context(|| format!("waiting for {SERVER}"))?;
        if read == 0 {
            return Err(anyhow!("{SERVER} has ended"));
        }
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$').and_then(|length| length.parse::<usize>().ok()) else {
            return Ok(line.as_bytes().to_vec());
        };
        // No reply is longer than what was stored.
        let mut bytes = vec![0; length.min(VALUE_BYTES) + 2];
        self.stream.read_exact(&mut bytes).with_context(|| format!("waiting for {SERVER}"))?;
        bytes.truncate(bytes.len() - 2);
        Ok(bytes)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A value that no other key has.
fn value(key: u64) -> Vec<u8> {
    let mut rng = Rng::new(key);
    (0..VALUE_BYTES / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
}

/// Keys drawn as YCSB's scrambled zipfian ones.
struct Zipf {
    /// Weights of the ranks so far, the sum of all last.
    sums: Vec<f64>,
    /// The key of each rank.
    keys: Vec<u64>,
}

impl Zipf {
    fn new(records: u64) -> Zipf {
        let mut sum = 0.0;
        let weight = |rank: u64| {
            sum += (rank as f64).powf(-THETA);
            sum
        };
        let sums = (1..=records).map(weight).collect();
        let (mut keys, mut rng): (Vec<u64>, Rng) = ((0..records).collect(), Rng::new(records));
        for last in (1..keys.len()).rev() {
            keys.swap(last, rng.below(last as u64 + 1) as usize);
        }
        Zipf { sums, keys }
    }

    fn draw(&self, rng: &mut Rng) -> u64 {
        let all = self.sums.last().copied().unwrap_or(1.0);
        let drawn = (rng.next() >> 11) as f64 / (1_u64 << 53) as f64 * all;
        let rank = self.sums.partition_point(|sum| *sum <= drawn);
        self.keys[rank.min(self.keys.len() - 1)]
    }
}

impl Served {
    /// What people see of it.
    pub fn shown(&self) -> Shown<'_> {
        Shown {
            name: self.experiment,
            title: "Redis behind a cache",
            device: &self.device,
            options: format!("YCSB-C, seed {}", self.seed),
            figure_caption: "Latencies, and how late pages were.",
            chart: self.chart(),
            kept: self.sizes.iter().map(|size| (hundredths(size.x_e2), &size.kept)).collect(),
            table_caption: "Reads by one client".to_owned(),
            table: self.table(),
            csv: self.to_csv(),
            assumed: self.assumed,
        }
    }

    /// Latencies by size.
    fn table(&self) -> Table {
        let mut table = Table::new().left("Values, of the cache").right("Records").right("Reads/s");
        for quantile in QUANTILES {
            table = table.right(format!("p{}, us", f64::from(quantile) / 10_000.0));
        }
        table = table
            .right("p50 in memory")
            .right("p99")
            .right("Faults")
            .right("Late")
            .right("Late, p50 ns")
            .right("p99 ns");
        for size in &self.sizes {
            let us = |ns: u64| format!("{}.{}", ns / 1000, ns / 100 % 10);
            let mut cells = vec![hundredths(size.x_e2), size.records.to_string(), size.requests_per_second.to_string()];
            cells.extend(size.window.iter().map(|(_, ns)| us(*ns)));
            cells.extend([us(size.memory[1].1), us(size.memory[4].1)]);
            let lateness = &size.kept.lateness;
            cells.extend(
                [size.faults, size.kept.late, lateness.p50_ns, lateness.p99_ns].map(|number| number.to_string()),
            );
            table.row(cells);
        }
        table
    }

    /// A row for each quantile at each size.
    fn to_csv(&self) -> String {
        let mut csv = "by cache,records,quantile,window ns,memory ns,faults,late\n".to_owned();
        for size in &self.sizes {
            for ((quantile, window), (_, memory)) in size.window.iter().zip(&size.memory) {
                let Size { x_e2, records, faults, kept, .. } = size;
                let (by_cache, late) = (hundredths(*x_e2), kept.late);
                let share = f64::from(*quantile) / 1e6;
                csv.push_str(&format!("{by_cache},{records},{share},{window},{memory},{faults},{late}\n"));
            }
        }
        csv
    }

    fn chart(&self) -> LineChart {
        let mut chart = LineChart::new(
            "Latency of a read from Redis",
            Axis::new("Latency", Unit::Seconds).log(),
            Axis::new("Share of the reads", Unit::Share),
        );
        for size in &self.sizes {
            let line = |latency: &Histogram| -> Vec<(f64, f64)> {
                let of = |permille: u32| (latency.percentile(permille * 1000) as f64 * 1e-9, f64::from(permille) / 1e3);
                (1..1000).map(of).collect()
            };
            let name = format!("{} of the cache", hundredths(size.x_e2));
            chart.series.push(Series::new(name.clone(), line(&size.latencies[0])));
            chart.series.push(Series::new(name + ", in memory", line(&size.latencies[1])).stroke(Stroke::Dotted));
        }
        chart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first ranks have the shares of the harmonic sum, and every key is drawn of few.
    #[test]
    fn keys_are_drawn_as_often_as_their_ranks_say() {
        const DRAWS: u64 = 200_000;
        let (zipf, mut rng) = (Zipf::new(1000), Rng::new(5));
        let mut counts = vec![0_u64; 1000];
        (0..DRAWS).for_each(|_| counts[zipf.draw(&mut rng) as usize] += 1);
        let all: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-0.99)).sum();
        for rank in [1_u32, 2, 10] {
            let expected = DRAWS as f64 * f64::from(rank).powf(-0.99) / all;
            let found = counts[zipf.keys[rank as usize - 1] as usize] as f64;
            assert!((found - expected).abs() < 5.0 * expected.sqrt(), "rank {rank}: {found} of {expected}");
        }
        let few = Zipf::new(3);
        let drawn: std::collections::BTreeSet<u64> = (0..1000).map(|_| few.draw(&mut rng)).collect();
        assert_eq!(drawn.len(), 3);
    }

    #[test]
    fn no_two_keys_have_one_value() {
        assert_ne!(value(1), value(2));
        assert_eq!((value(7).len(), value(7)), (VALUE_BYTES, value(7)));
    }
}
