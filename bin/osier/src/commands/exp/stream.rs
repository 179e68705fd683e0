//! STREAM (McCalpin) in a window across the boundary of its cache, as in Figure 15 of WIO.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use osier_report::{Axis, LineChart, Series, Stroke, Table, Unit};
use serde::Serialize;

use super::live::{Device, Kept, LiveArgs, Setup, Shown, go_on, hundredths};
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::signals::StopFlag;

/// Bytes of the three arrays together by cache, in hundredths.
pub const WORKING_SETS: [u64; 5] = [25, 50, 100, 150, 200];
const KERNELS: [&str; 4] = ["copy", "scale", "add", "triad"];
/// Bytes that each kernel moves for an element, as STREAM counts them.
const BYTES: [u64; 4] = [16, 16, 24, 24];
const SCALAR: f64 = 3.0;
/// Before the first round.
const BEGIN: [f64; 3] = [1.0, 2.0, 0.0];
const CACHE_BYTES: u64 = 8 << 20;

/// `osier exp stream`
#[derive(Debug, Args)]
pub struct StreamArgs {
    /// Times that each kernel runs; the first is not counted
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-stream", value_name = "DIR")]
    pub out: PathBuf,
    #[command(flatten)]
    device: LiveArgs,
}

/// The arrays at one size.
#[derive(Debug, Clone, Serialize)]
struct Size {
    /// Of the three arrays by cache, in hundredths.
    x_e2: u64,
    elements: u64,
    /// Best rate of each kernel in the window and in ordinary memory.
    window_bytes_per_second: [u64; 4],
    memory_bytes_per_second: [u64; 4],
    /// Faults of the rounds that count.
    faults: u64,
    evicted_dirty: u64,
    kept: Kept,
}

/// All that ran.
#[derive(Debug, Serialize)]
pub struct Streamed {
    experiment: &'static str,
    device: Setup,
    rounds: u32,
    kernels: [&'static str; 4],
    assumed: [&'static str; 3],
    sizes: Vec<Size>,
}

const ASSUMED: [&str; 3] = [
    "One thread; each element is loaded and stored by itself, as by a compiler without vectors, in the window and in memory \
     alike.",
    "The cache is scaled down, 28 GB of DRAM in Figure 15 to the size above; the times of the device are not.",
    "Nothing is fitted. Inside the cache the window is this machine's memory; beyond it the rate follows from the profile.",
];

/// Runs every size.
///
/// # Errors
/// A device that cannot be, a value that is wrong.
pub fn run(args: &StreamArgs, stop: &StopFlag) -> Result<Streamed> {
    let setup = args.device.or("cylon", CACHE_BYTES);
    let most = setup.cache * WORKING_SETS[WORKING_SETS.len() - 1] / 100;
    if most > setup.capacity {
        let text = format!("the arrays need {most} bytes, the window has {}; give --capacity more", setup.capacity);
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    let mut sizes = Vec::new();
    for x in WORKING_SETS {
        go_on(stop)?;
        sizes.push(run_size(&setup, x, args.rounds)?);
        tell!("osier: arrays of {} of the cache", hundredths(x));
    }
    let rounds = args.rounds;
    Ok(Streamed { experiment: "stream", device: setup, rounds, kernels: KERNELS, assumed: ASSUMED, sizes })
}

fn run_size(setup: &Setup, x: u64, rounds: u32) -> Result<Size> {
    let elements = setup.cache / 24 * x / 100;
    let memory: Vec<AtomicU64> = (0..3 * elements).map(|_| AtomicU64::new(0)).collect();
    let memory_bytes_per_second = Arrays::new(&memory, elements).run(rounds)?.0;
    drop(memory);
    let device = Device::start(setup)?;
    let window = device.open()?;
    let before = window.timing().latency.count();
    let (window_bytes_per_second, _) = Arrays::new(window.words(), elements).run(rounds)?;
    let faults = window.timing().latency.count() - before;
    let kept = Kept::of(&window);
    drop(window);
    let report = device.stop()?;
    let evicted_dirty = report["evicted_dirty"].as_u64().unwrap_or(0);
    Ok(Size { x_e2: x, elements, window_bytes_per_second, memory_bytes_per_second, faults, evicted_dirty, kept })
}

/// Three arrays of numbers, in whatever memory.
struct Arrays<'a> {
    a: &'a [AtomicU64],
    b: &'a [AtomicU64],
    c: &'a [AtomicU64],
}

fn load(word: &AtomicU64) -> f64 {
    f64::from_bits(word.load(Ordering::Relaxed))
}

fn store(word: &AtomicU64, value: f64) {
    word.store(value.to_bits(), Ordering::Relaxed);
}

impl<'a> Arrays<'a> {
    fn new(memory: &'a [AtomicU64], elements: u64) -> Arrays<'a> {
        let (a, rest) = memory.split_at(elements as usize);
        let (b, rest) = rest.split_at(elements as usize);
        Arrays { a, b, c: &rest[..elements as usize] }
    }

    /// The best rate of each kernel, and the values at the end, of which each element has been looked at.
    fn run(&self, rounds: u32) -> Result<([u64; 4], [f64; 3])> {
        for (array, value) in [self.a, self.b, self.c].into_iter().zip(BEGIN) {
            array.iter().for_each(|word| store(word, value));
        }
        let mut best = [f64::MAX; 4];
        for round in 0..rounds {
            for (kernel, best) in best.iter_mut().enumerate() {
                let began = Instant::now();
                self.kernel(kernel);
                let seconds = began.elapsed().as_secs_f64();
                if round > 0 {
                    *best = best.min(seconds);
                }
            }
        }
        let expected = expected(rounds);
        for (name, array, value) in [("a", self.a, expected[0]), ("b", self.b, expected[1]), ("c", self.c, expected[2])]
        {
            if let Some(place) = array.iter().position(|word| word.load(Ordering::Relaxed) != value.to_bits()) {
                let text = format!("{name}[{place}] is {} and not {value}", load(&array[place]));
                return Err(Failure::new(Exit::VerificationFailed, text).into());
            }
        }
        let rate = |kernel: usize| (BYTES[kernel] * self.a.len() as u64) as f64 / best[kernel].max(1e-9);
        Ok((std::array::from_fn(|kernel| rate(kernel) as u64), expected))
    }

    fn kernel(&self, kernel: usize) {
        let Arrays { a, b, c } = self;
        match KERNELS[kernel] {
            "copy" => c.iter().zip(*a).for_each(|(c, a)| store(c, load(a))),
            "scale" => b.iter().zip(*c).for_each(|(b, c)| store(b, SCALAR * load(c))),
            "add" => c.iter().zip(a.iter().zip(*b)).for_each(|(c, (a, b))| store(c, load(a) + load(b))),
            _ => a.iter().zip(b.iter().zip(*c)).for_each(|(a, (b, c))| store(a, load(b) + SCALAR * load(c))),
        }
    }
}

/// What every element of each array is after so many rounds.
fn expected(rounds: u32) -> [f64; 3] {
    let [mut a, mut b, mut c] = BEGIN;
    for _ in 0..rounds {
        c = a;
        b = SCALAR * c;
        c = a + b;
        a = b + SCALAR * c;
    }
    [a, b, c]
}

impl Streamed {
    /// What people see of it.
    pub fn shown(&self) -> Shown<'_> {
        Shown {
            name: self.experiment,
            title: "STREAM across the boundary of the cache",
            device: &self.device,
            options: format!("{} rounds", self.rounds),
            figure_caption: "Best rates, and how late pages were.",
            chart: self.chart(),
            kept: self.sizes.iter().map(|size| (hundredths(size.x_e2), &size.kept)).collect(),
            table_caption: "Rates as STREAM counts bytes".to_owned(),
            table: self.table(),
            csv: self.to_csv(),
            assumed: self.assumed,
        }
    }

    /// Rates by size.
    fn table(&self) -> Table {
        let mut table = Table::new().left("Arrays, of the cache");
        for kernel in KERNELS {
            table = table.right(format!("{kernel}, MB/s")).right("in memory");
        }
        table = table.right("Faults").right("Late").right("Late, p50 ns").right("p99 ns");
        for size in &self.sizes {
            let mut cells = vec![hundredths(size.x_e2)];
            for kernel in 0..KERNELS.len() {
                let rates = [size.window_bytes_per_second[kernel], size.memory_bytes_per_second[kernel]];
                cells.extend(rates.map(|rate| (rate / 1_000_000).to_string()));
            }
            let lateness = &size.kept.lateness;
            cells.extend(
                [size.faults, size.kept.late, lateness.p50_ns, lateness.p99_ns].map(|number| number.to_string()),
            );
            table.row(cells);
        }
        table
    }

    /// A row for each kernel at each size.
    fn to_csv(&self) -> String {
        let mut csv = "kernel,arrays by cache,window MB/s,memory MB/s,faults,late\n".to_owned();
        for size in &self.sizes {
            for (kernel, name) in KERNELS.into_iter().enumerate() {
                let [window, memory] = [size.window_bytes_per_second[kernel], size.memory_bytes_per_second[kernel]]
                    .map(|rate| rate / 1_000_000);
                let by_cache = hundredths(size.x_e2);
                csv.push_str(&format!("{name},{by_cache},{window},{memory},{},{}\n", size.faults, size.kept.late));
            }
        }
        csv
    }

    fn chart(&self) -> LineChart {
        let mut chart = LineChart::new(
            "STREAM across the cache",
            Axis::new("Arrays, of the cache", Unit::Number),
            Axis::new("Rate", Unit::BytesPerSecond).log(),
        );
        let line = |rate: &dyn Fn(&Size) -> u64| -> Vec<(f64, f64)> {
            self.sizes.iter().map(|size| (size.x_e2 as f64 / 100.0, rate(size) as f64)).collect()
        };
        for (kernel, name) in KERNELS.into_iter().enumerate() {
            chart.series.push(Series::new(name, line(&|size| size.window_bytes_per_second[kernel])));
        }
        let memory = line(&|size| size.memory_bytes_per_second[3]);
        chart.series.push(Series::new("triad in memory", memory).stroke(Stroke::Dotted));
        chart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand: after a round c = a, b = 3a, c = a + b = 4a, a = b + 3c = 15a.
    #[test]
    fn values_grow_fifteenfold_in_a_round() {
        assert_eq!(expected(1), [15.0, 3.0, 4.0]);
        assert_eq!(expected(3), [3375.0, 675.0, 900.0]);
    }

    #[test]
    fn a_value_that_is_wrong_is_found() {
        let memory: Vec<AtomicU64> = (0..300).map(|_| AtomicU64::new(0)).collect();
        let arrays = Arrays::new(&memory, 100);
        let (rates, values) = arrays.run(2).unwrap();
        assert!(values == [225.0, 45.0, 60.0] && rates.iter().all(|rate| *rate > 0));
        // A word of the second array that two elements share: the kernels write it twice a round.
        let torn = Arrays { a: &memory[..100], b: &memory[50..150], c: &memory[200..] };
        assert!(torn.run(2).unwrap_err().to_string().contains("is"));
    }
}
