//! PageRank over a Kronecker graph that lies in a window, as in the graph experiment of Cylon (Figure 9), and the same
//! in ordinary memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use osier_report::{Axis, LineChart, Series, Stroke, Table, Unit};
use osier_sim::Rng;
use serde::Serialize;

use super::live::{Device, Kept, LiveArgs, Setup, Shown, go_on, hundredths};
use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::signals::StopFlag;

/// Undirected edges for each vertex, before those that are the same are dropped (GAP).
const EDGE_FACTOR: u64 = 16;
/// Quarters of the adjacency matrix, in thousandths of the edges (Graph500, GAP: A, B and C).
const QUARTERS: [u64; 3] = [570, 190, 190];
const DAMPING: f64 = 0.85;
const CACHE_BYTES: u64 = 8 << 20;
/// Largest scale: 2^20 vertices are built in this process's memory.
const SCALE_MAX: i64 = 20;

/// `osier exp cylon-graph`
#[derive(Debug, Args)]
pub struct GraphArgs {
    /// The smallest graph has two to the power of this many vertices
    #[arg(long, default_value_t = 14, value_parser = clap::value_parser!(u32).range(4..=SCALE_MAX))]
    scale_min: u32,
    /// And the largest
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(4..=SCALE_MAX))]
    scale_max: u32,
    /// Iterations of PageRank
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    iterations: u32,
    /// Draws the edges
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the CSV, the SVG and the HTML page go
    #[arg(long, default_value = "osier-cylon-graph", value_name = "DIR")]
    pub out: PathBuf,
    #[command(flatten)]
    device: LiveArgs,
}

/// Neighbours of each vertex, sorted, each once.
struct Graph {
    /// Where the neighbours of each vertex begin, and the end.
    offsets: Vec<u64>,
    neighbours: Vec<u64>,
}

impl Graph {
    /// A Kronecker graph, undirected and without loops.
    fn kronecker(scale: u32, seed: u64) -> Graph {
        let (vertices, mut rng) = (1_u64 << scale, Rng::new(seed));
        // Vertices are renamed, so that those with many neighbours do not lie together.
        let mut names: Vec<u64> = (0..vertices).collect();
        for last in (1..names.len()).rev() {
            names.swap(last, rng.below(last as u64 + 1) as usize);
        }
        let mut edges = Vec::with_capacity(2 * (EDGE_FACTOR * vertices) as usize);
        for _ in 0..EDGE_FACTOR * vertices {
            let (from, to) = edge(scale, &mut rng);
            let (from, to) = (names[from as usize], names[to as usize]);
            if from != to {
                edges.extend([(from, to), (to, from)]);
            }
        }
        edges.sort_unstable();
        edges.dedup();
        let mut offsets = vec![0; vertices as usize + 1];
        edges.iter().for_each(|(from, _)| offsets[*from as usize + 1] += 1);
        for vertex in 1..offsets.len() {
            offsets[vertex] += offsets[vertex - 1];
        }
        Graph { offsets, neighbours: edges.into_iter().map(|(_, to)| to).collect() }
    }

    fn vertices(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Words of the graph and of what PageRank computes.
    fn words(&self) -> usize {
        self.offsets.len() + self.neighbours.len() + 2 * self.vertices()
    }
}

/// One edge: a quarter of the matrix at each level.
fn edge(scale: u32, rng: &mut Rng) -> (u64, u64) {
    let [a, b, c] = QUARTERS;
    (0..scale).fold((0, 0), |(from, to), _| {
        let drawn = rng.below(1000);
        let (row, column) = match drawn {
            _ if drawn < a => (0, 0),
            _ if drawn < a + b => (0, 1),
            _ if drawn < a + b + c => (1, 0),
            _ => (1, 1),
        };
        (from << 1 | row, to << 1 | column)
    })
}

/// PageRank by pulling, over a graph that is copied to `memory` with all that it computes. The order of the sums is
/// fixed, so that two memories give the same bits.
struct PageRank<'a> {
    offsets: &'a [AtomicU64],
    neighbours: &'a [AtomicU64],
    scores: &'a [AtomicU64],
    shares: &'a [AtomicU64],
}

fn word(memory: &[AtomicU64], place: usize) -> u64 {
    memory[place].load(Ordering::Relaxed)
}

impl<'a> PageRank<'a> {
    fn new(graph: &Graph, memory: &'a [AtomicU64]) -> PageRank<'a> {
        let (offsets, rest) = memory.split_at(graph.offsets.len());
        let (neighbours, rest) = rest.split_at(graph.neighbours.len());
        let (scores, rest) = rest.split_at(graph.vertices());
        let shares = &rest[..graph.vertices()];
        let copy = |from: &[u64], to: &[AtomicU64]| {
            from.iter().zip(to).for_each(|(value, word)| word.store(*value, Ordering::Relaxed));
        };
        copy(&graph.offsets, offsets);
        copy(&graph.neighbours, neighbours);
        PageRank { offsets, neighbours, scores, shares }
    }

    /// The score of each vertex after so many iterations.
    fn run(&self, iterations: u32) -> Vec<f64> {
        let vertices = self.scores.len();
        let put = |to: &AtomicU64, value: f64| to.store(value.to_bits(), Ordering::Relaxed);
        self.scores.iter().for_each(|score| put(score, 1.0 / vertices as f64));
        let base = (1.0 - DAMPING) / vertices as f64;
        for _ in 0..iterations {
            for vertex in 0..vertices {
                let degree = word(self.offsets, vertex + 1) - word(self.offsets, vertex);
                put(&self.shares[vertex], f64::from_bits(word(self.scores, vertex)) / degree.max(1) as f64);
            }
            for vertex in 0..vertices {
                let (from, to) = (word(self.offsets, vertex) as usize, word(self.offsets, vertex + 1) as usize);
                let share = |place| f64::from_bits(word(self.shares, word(self.neighbours, place) as usize));
                let sum: f64 = (from..to).map(share).sum();
                put(&self.scores[vertex], base + DAMPING * sum);
            }
        }
        self.scores.iter().map(|score| f64::from_bits(score.load(Ordering::Relaxed))).collect()
    }
}

/// One graph.
#[derive(Debug, Serialize)]
struct Size {
    scale: u32,
    vertices: usize,
    /// Directed ones: each undirected edge counts twice.
    edges: usize,
    bytes: u64,
    /// By the cache, in hundredths.
    x_e2: u64,
    window_ns: u64,
    memory_ns: u64,
    /// Sum of the scores, in millionths.
    score_ppm: u64,
    faults: u64,
    device: serde_json::Value,
    kept: Kept,
}

/// All that ran.
#[derive(Debug, Serialize)]
pub struct Graphs {
    experiment: &'static str,
    device: Setup,
    seed: u64,
    iterations: u32,
    assumed: [&'static str; 3],
    sizes: Vec<Size>,
}

const ASSUMED: [&str; 3] = [
    "One thread; PageRank in place of the paper's betweenness centrality, over the same kind of graph (Kronecker, 16 edges a \
     vertex, as GAP makes them).",
    "The cache and the graphs are scaled down; the times of the device are not.",
    "Nothing is fitted. The scores in the window are the same to the bit as those in memory, or the run fails.",
];

/// Runs every graph.
///
/// # Errors
/// Sizes that cannot be, a score that differs.
pub fn run(args: &GraphArgs, stop: &StopFlag) -> Result<Graphs> {
    if args.scale_min > args.scale_max {
        let text = format!("--scale-min {} is more than --scale-max {}", args.scale_min, args.scale_max);
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    let setup = args.device.or("cylon", CACHE_BYTES);
    let mut sizes = Vec::new();
    for scale in args.scale_min..=args.scale_max {
        go_on(stop)?;
        sizes.push(run_size(&setup, scale, args)?);
        tell!("osier: a graph of 2^{scale} vertices");
    }
    let (seed, iterations) = (args.seed, args.iterations);
    Ok(Graphs { experiment: "cylon-graph", device: setup, seed, iterations, assumed: ASSUMED, sizes })
}

fn run_size(setup: &Setup, scale: u32, args: &GraphArgs) -> Result<Size> {
    let graph = Graph::kronecker(scale, args.seed);
    let bytes = graph.words() as u64 * 8;
    if bytes > setup.capacity {
        let text = format!("the graph needs {bytes} bytes, the window has {}; give --capacity more", setup.capacity);
        return Err(Failure::new(Exit::BadInput, text).into());
    }
    let timed = |memory: &[AtomicU64]| {
        let ranks = PageRank::new(&graph, memory);
        let began = Instant::now();
        let scores = ranks.run(args.iterations);
        (u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), scores)
    };
    let memory: Vec<AtomicU64> = (0..graph.words()).map(|_| AtomicU64::new(0)).collect();
    let (memory_ns, expected) = timed(&memory);
    drop(memory);
    let device = Device::start(setup)?;
    let window = device.open()?;
    let (window_ns, scores) = timed(window.words());
    let differs = expected.iter().zip(&scores).position(|(memory, window)| memory.to_bits() != window.to_bits());
    if let Some(vertex) = differs {
        let text = format!("vertex {vertex} has {} in memory and {} in the window", expected[vertex], scores[vertex]);
        return Err(Failure::new(Exit::VerificationFailed, text).into());
    }
    let kept = Kept::of(&window);
    drop(window);
    Ok(Size {
        scale,
        vertices: graph.vertices(),
        edges: graph.neighbours.len(),
        bytes,
        x_e2: bytes * 100 / setup.cache.max(1),
        window_ns,
        memory_ns,
        score_ppm: (scores.iter().sum::<f64>() * 1e6) as u64,
        faults: kept.latency.count,
        device: device.stop()?,
        kept,
    })
}

impl Graphs {
    /// What people see of it.
    pub fn shown(&self) -> Shown<'_> {
        Shown {
            name: self.experiment,
            title: "PageRank behind a cache",
            device: &self.device,
            options: format!("seed {}", self.seed),
            figure_caption: "Times, and how late pages were.",
            chart: self.chart(),
            kept: self.sizes.iter().map(|size| (format!("2^{} vertices", size.scale), &size.kept)).collect(),
            table_caption: format!("{} iterations", self.iterations),
            table: self.table(),
            csv: self.to_csv(),
            assumed: self.assumed,
        }
    }

    /// Times by size.
    fn table(&self) -> Table {
        let mut table = Table::new()
            .left("Vertices")
            .right("Edges")
            .right("Of the cache")
            .right("In the window, ms")
            .right("In memory, ms")
            .right("Ratio")
            .right("Faults")
            .right("Late")
            .right("Late, p50 ns")
            .right("p99 ns");
        for size in &self.sizes {
            let ms = |ns: u64| format!("{}.{}", ns / 1_000_000, ns / 100_000 % 10);
            table.row([
                format!("2^{}", size.scale),
                size.edges.to_string(),
                hundredths(size.x_e2),
                ms(size.window_ns),
                ms(size.memory_ns),
                format!("{:.2}", size.window_ns as f64 / size.memory_ns.max(1) as f64),
                size.faults.to_string(),
                size.kept.late.to_string(),
                size.kept.lateness.p50_ns.to_string(),
                size.kept.lateness.p99_ns.to_string(),
            ]);
        }
        table
    }

    /// A row for each graph.
    fn to_csv(&self) -> String {
        let mut csv = "scale,vertices,edges,bytes,by cache,window ns,memory ns,faults,late\n".to_owned();
        for size in &self.sizes {
            let Size { scale, vertices, edges, bytes, x_e2, window_ns, memory_ns, faults, kept, .. } = size;
            let (by_cache, late) = (hundredths(*x_e2), kept.late);
            csv.push_str(&format!(
                "{scale},{vertices},{edges},{bytes},{by_cache},{window_ns},{memory_ns},{faults},{late}\n"
            ));
        }
        csv
    }

    fn chart(&self) -> LineChart {
        let mut chart = LineChart::new(
            "PageRank across the cache",
            Axis::new("Graph, of the cache", Unit::Number).log(),
            Axis::new("Time", Unit::Seconds).log(),
        );
        let line = |time: fn(&Size) -> u64| -> Vec<(f64, f64)> {
            self.sizes.iter().map(|size| (size.x_e2 as f64 / 100.0, time(size) as f64 * 1e-9)).collect()
        };
        chart.series.push(Series::new("in the window", line(|size| size.window_ns)));
        chart.series.push(Series::new("in memory", line(|size| size.memory_ns)).stroke(Stroke::Dotted));
        chart
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(graph: &Graph, iterations: u32) -> Vec<f64> {
        let memory: Vec<AtomicU64> = (0..graph.words()).map(|_| AtomicU64::new(0)).collect();
        PageRank::new(graph, &memory).run(iterations)
    }

    /// Where each vertex has as many neighbours as every other, all scores stay the same.
    #[test]
    fn in_a_ring_all_vertices_rank_alike() {
        let vertices = 100_u64;
        let neighbours = (0..vertices).flat_map(|v| [(v + vertices - 1) % vertices, (v + 1) % vertices]).collect();
        let ring = Graph { offsets: (0..=vertices).map(|v| 2 * v).collect(), neighbours };
        for score in ranks(&ring, 20) {
            assert!((score - 0.01).abs() < 1e-15, "{score}");
        }
    }

    /// In a star the centre's score solves two equations: c = b + d n l, l = b + d c / n, with b = (1 - d) / (n + 1).
    #[test]
    fn a_star_has_the_scores_of_its_equations() {
        let leaves = 10_u64;
        let neighbours = (1..=leaves).chain((0..leaves).map(|_| 0)).collect();
        let offsets = std::iter::once(0).chain((0..=leaves).map(|v| leaves + v)).collect();
        let scores = ranks(&Graph { offsets, neighbours }, 300);
        let (n, d) = (leaves as f64, DAMPING);
        let b = (1.0 - d) / (n + 1.0);
        let centre = (b + d * n * b) / (1.0 - d * d);
        assert!((scores[0] - centre).abs() < 1e-12, "{} and {centre}", scores[0]);
        assert!((scores[1] - (b + d * centre / n)).abs() < 1e-12);
    }

    #[test]
    fn a_kronecker_graph_is_undirected_and_skewed_and_the_seeds() {
        let graph = Graph::kronecker(10, 7);
        let of = |v: u64| &graph.neighbours[graph.offsets[v as usize] as usize..graph.offsets[v as usize + 1] as usize];
        for vertex in 0..1024 {
            assert!(of(vertex).is_sorted_by(|a, b| a < b), "each neighbour once, in order");
            assert!(of(vertex).iter().all(|to| *to != vertex && of(*to).binary_search(&vertex).is_ok()));
        }
        let mut degrees: Vec<usize> = (0..1024).map(|v| of(v).len()).collect();
        degrees.sort_unstable();
        let top: usize = degrees[921..].iter().sum();
        assert!(top * 100 > graph.neighbours.len() * 35, "a tenth has {top} of {}", graph.neighbours.len());
        assert_eq!(graph.neighbours, Graph::kronecker(10, 7).neighbours);
        assert_ne!(graph.neighbours, Graph::kronecker(10, 8).neighbours);
    }
}
