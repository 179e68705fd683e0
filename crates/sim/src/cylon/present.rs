//! The experiment's results as CSV, JSON, charts, tables and sentences.

use osier_report::{Axis, BarChart, BarGroup, Cell as TableCell, Chart, Fact, Report, Table, Tone, Unit, stack};
use serde::Serialize;

use super::{
    Case, Cell, CylonParams, CylonReport, DEGREES, FLASH_READ_NS, FRAMES, HIT_NS, PATTERNS, POLICIES, PREFETCH_POLICY,
    cases,
};

/// How far a hit ratio of FIFO, LIFO or CLOCK may be from the published one.
pub const TOLERANCE_POINTS: u32 = 2;

/// The policies that are held to [`TOLERANCE_POINTS`]. What Cylon's S3-FIFO does, its paper does not say.
const COMPARED: [&str; 3] = ["fifo", "lifo", "clock"];

/// What the paper does not say, and was assumed.
pub const ASSUMED: [&str; 6] = [
    "The cache holds 4915 MiB in pages of 4 KiB and is fully associative, in front of 98,304 MiB of flash: run-cxlssd.sh of \
     Cylon's artifact, which section 5.1 rounds to 4.8 and 96 GB.",
    "A hit ratio counts accesses, not pages, of the steady state: the first round through the working set fills the cache \
     and is not counted. Of Rand it is 1.6 million accesses, and half a million after them are counted.",
    "The policy sees every access. (In Cylon a hit goes past the device, so that its CLOCK and S3-FIFO see few.)",
    "CLOCK has one reference bit, which is clear when a page comes in.",
    "S3-FIFO is the variant of libCacheSim 0.3.5: a small queue of a tenth, ghosts of nine tenths, promotion after two \
     uses, and while the cache fills for the first time the main queue takes what the small one has no room for. The paper \
     does not say what Cylon's is, so its column is shown and not compared.",
    "Next-N fetches the N pages behind a missed one. They lie on other dies and the only thread waits for its miss, so they \
     arrive with it.",
];

/// What was fitted to Table 3. A cell that something was fitted to is no prediction.
pub const CALIBRATED: [&str; 3] = [
    "The working set of Seq and the strides, 8 GiB (Figure 3 has 8 GB too): from LIFO's 60% at Stride-4096, the share that \
     the cache holds.",
    "The step of Seq, 128 bytes: from FIFO's 97%, one miss in 32 accesses.",
    "The working set of Rand, 21,844 MiB: from its row. With uniform accesses each policy hits the same share, and the row \
     has 24, 21 and 24%; this is the middle, 22.5%. (For 24.3%, which section 5.6 names, it would be 20,226 MiB, and LIFO \
     3.3 points off.)",
];

/// Cells of [`COMPARED`] that [`CALIBRATED`] uses: Seq under FIFO, Stride-4096 under LIFO, three of Rand.
const CELLS_CALIBRATED: usize = 5;

const CSV_HEAD: &str = "pattern,eviction,prefetch_degree,accesses,misses,hit_percent,published_percent,prefetched,\
                        prefetched_useful,polluting,mean_access_ns\n";

/// The report for programs.
#[derive(Serialize)]
struct Json {
    experiment: &'static str,
    scale: u32,
    seed: u64,
    tolerance_points: u32,
    assumed: [&'static str; 6],
    calibrated: [&'static str; 3],
    cells: Vec<JsonCell>,
}

#[derive(Serialize)]
struct JsonCell {
    pattern: &'static str,
    eviction: &'static str,
    prefetch_degree: u64,
    accesses: u64,
    hits: u64,
    hit_permyriad: u64,
    published_percent: Option<u32>,
    /// Whether it is within the tolerance; nothing if it is not compared.
    is_within: Option<bool>,
    prefetched: u64,
    prefetched_useful: u64,
    polluting: u64,
    mean_access_ns: u64,
}

impl CylonReport {
    /// The report of all cells, in whatever order they were made.
    ///
    /// # Panics
    /// If a case is missing, which is a bug of the caller.
    #[must_use]
    pub fn new(params: CylonParams, cells: &[Cell]) -> CylonReport {
        let of = |case: Case| *cells.iter().find(|cell| cell.case == case).expect("every case was run");
        CylonReport { params, cells: cases().into_iter().map(of).collect() }
    }

    /// The cells, in the order of [`cases`].
    #[must_use]
    pub fn cells(&self) -> &[Cell] {
        &self.cells
    }

    fn cell(&self, pattern: usize, eviction: &str, degree: u64) -> &Cell {
        let is_it = |cell: &&Cell| {
            let case = cell.case;
            case.pattern == pattern && case.eviction == eviction && case.prefetch_degree == degree
        };
        self.cells.iter().find(is_it).expect("every case was run")
    }

    /// Compared cells that are within the tolerance, and how many are compared.
    #[must_use]
    pub fn within(&self) -> (usize, usize) {
        let compared: Vec<bool> = self.cells.iter().filter_map(Cell::is_within).collect();
        (compared.iter().filter(|within| **within).count(), compared.len())
    }

    /// Every cell. Integers and fixed decimals throughout, so that the same run gives the same bytes.
    #[must_use]
    pub fn to_csv(&self) -> String {
        let mut csv = CSV_HEAD.to_owned();
        for cell in &self.cells {
            let case = cell.case;
            let published = case.published_percent().map_or_else(String::new, |percent| percent.to_string());
            csv.push_str(&format!(
                "{},{},{},{},{},{},{published},{},{},{},{}\n",
                PATTERNS[case.pattern].label,
                case.eviction,
                case.prefetch_degree,
                cell.accesses,
                cell.misses(),
                decimal(cell.hit_permyriad(), 100),
                cell.prefetched,
                cell.prefetched_useful,
                cell.polluting,
                cell.mean_access_ns(),
            ));
        }
        csv
    }

    /// The report for programs: every figure an integer.
    #[must_use]
    pub fn to_json(&self) -> impl Serialize {
        Json {
            experiment: "cylon-eviction",
            scale: self.params.scale,
            seed: self.params.seed,
            tolerance_points: TOLERANCE_POINTS,
            assumed: ASSUMED,
            calibrated: CALIBRATED,
            cells: self.cells.iter().copied().map(Cell::to_json).collect(),
        }
    }

    /// Hit ratios in percent beside Table 3.
    #[must_use]
    pub fn eviction_table(&self) -> Table {
        let heads = ["FIFO", "LIFO", "CLOCK", "S3-FIFO"];
        let mut table = Table::new().left("Hits, %");
        for head in heads {
            table = table.right(head).right("paper");
        }
        for (index, pattern) in PATTERNS.iter().enumerate() {
            let mut row = vec![TableCell::from(pattern.label)];
            for (policy, published) in POLICIES.iter().zip(pattern.published_percent) {
                let cell = self.cell(index, policy, 0);
                let text = decimal(cell.hit_permyriad(), 100);
                row.push(
                    cell.is_within().map_or_else(|| text.clone().into(), |is| TableCell::verdict(is, text.clone())),
                );
                row.push(published.to_string().into());
            }
            table.row(row);
        }
        table
    }

    /// The prefetch study: a row for each pattern and degree.
    #[must_use]
    pub fn prefetch_table(&self) -> Table {
        let mut table = Table::new()
            .left("Pattern")
            .right("Next-N")
            .right("Hits, %")
            .right("Accuracy, %")
            .right("Pollution, % of misses")
            .right("Mean access, ns");
        for (index, pattern) in PATTERNS.iter().enumerate() {
            for degree in DEGREES {
                let cell = self.cell(index, PREFETCH_POLICY, degree);
                table.row([
                    pattern.label.to_owned(),
                    degree.to_string(),
                    decimal(cell.hit_permyriad(), 100),
                    cell.accuracy_permille().map_or_else(|| "-".to_owned(), |accuracy| decimal(accuracy, 10)),
                    decimal(cell.polluting * 1000 / cell.misses().max(1), 10),
                    cell.mean_access_ns().to_string(),
                ]);
            }
        }
        table
    }

    /// Hit ratios: by policy, as published, and by degree of prefetching.
    #[must_use]
    pub fn figure(&self) -> Vec<Chart> {
        let policies = || POLICIES.iter().map(|policy| policy.to_uppercase()).collect();
        let axis = || Axis::new("Hit ratio", Unit::Share).to(1.0);
        let mut simulated = BarChart::new("Hit ratio by eviction policy, simulated", axis(), policies());
        let mut published = BarChart::new("The same in Cylon, Table 3", axis(), policies());
        let degrees = DEGREES.iter().map(|degree| format!("next-{degree}")).collect();
        let mut prefetch = BarChart::new("Hit ratio of S3-FIFO with next-N prefetching, simulated", axis(), degrees);
        for (index, pattern) in PATTERNS.iter().enumerate() {
            let share = |eviction, degree| self.cell(index, eviction, degree).hit_permyriad() as f64 / 10_000.0;
            let group = |values| BarGroup::new(pattern.label, values);
            simulated.groups.push(group(POLICIES.iter().map(|policy| share(policy, 0)).collect()));
            let percents = pattern.published_percent.iter();
            published.groups.push(group(percents.map(|percent| f64::from(*percent) / 100.0).collect()));
            prefetch.groups.push(group(DEGREES.iter().map(|degree| share(PREFETCH_POLICY, *degree)).collect()));
        }
        vec![simulated.into(), published.into(), prefetch.into()]
    }

    /// The figure as an SVG file.
    #[must_use]
    pub fn to_svg(&self) -> String {
        stack(&self.figure())
    }

    /// What was assumed, what was fitted, what follows, and what the paper says of prefetching; a line each.
    #[must_use]
    pub fn provenance(&self) -> Vec<(&'static str, String)> {
        let (within, compared) = self.within();
        let follows = format!(
            "{within} of {compared} cells of FIFO, LIFO and CLOCK are within {TOLERANCE_POINTS} points of Table 3. \
             {CELLS_CALIBRATED} of them were used above and predict nothing; the others follow."
        );
        let assumed = ASSUMED.map(|line| ("assumed", line.to_owned()));
        let calibrated = CALIBRATED.map(|line| ("calibrated", line.to_owned()));
        let published = "Of next-N with S3-FIFO the paper gives figures in its Table 2, which are not carried here, and \
                         says: prefetching strongly influences effectiveness, which depends on locality; with Redis and a \
                         working set beyond the cache a higher degree improves latency, within the cache it does not matter.";
        let rest = [("follows", follows), ("published", published.to_owned())];
        assumed.into_iter().chain(calibrated).chain(rest).collect()
    }

    /// The same as lines to print.
    #[must_use]
    pub fn provenance_text(&self) -> String {
        self.provenance().into_iter().map(|(kind, line)| format!("{kind:<11} {line}\n")).collect()
    }

    /// Everything on one page.
    #[must_use]
    pub fn to_report(&self) -> Report {
        let mut report = Report::new("Eviction and prefetching in a CXL SSD's cache", self.subtitle());
        let (within, compared) = self.within();
        let note = format!("FIFO, LIFO and CLOCK, within {TOLERANCE_POINTS} points of Cylon, Table 3");
        let fact = Fact::new("Cells as published", format!("{within} of {compared}"), note);
        report.facts(vec![fact.verdict(within == compared)]);
        report.heading("Eviction");
        report.figure("Pointer chasing by one thread, steady state.", self.figure());
        report.table("Hit ratios beside Table 3 of Cylon (FAST 2026)", self.eviction_table());
        report.heading("Prefetching");
        report.text(
            "Accuracy: prefetched pages that were then asked for. Pollution: misses of pages that a prefetch had pushed \
             out. Sequential patterns reach each page that is prefetched, random ones hardly any.",
        );
        report.table(
            format!("S3-FIFO with next-N; a hit takes {HIT_NS} ns, a read of flash {FLASH_READ_NS} ns"),
            self.prefetch_table(),
        );
        report.heading("What was assumed, what was calibrated, what follows");
        report.list(self.provenance().into_iter().map(|(kind, line)| format!("{kind}: {line}")));
        if within < compared {
            report.note(Tone::Bad, "Some cells are further from the published ones than they may be.");
        }
        report
    }

    fn subtitle(&self) -> String {
        let CylonParams { scale, seed } = self.params;
        let frames = FRAMES / scale;
        let full = if scale == 1 { "full scale".to_owned() } else { format!("1/{scale} of full scale") };
        format!("{full}: a cache of {frames} pages, one thread, steady state, seed {seed}")
    }
}

impl Cell {
    fn to_json(self) -> JsonCell {
        JsonCell {
            pattern: PATTERNS[self.case.pattern].label,
            eviction: self.case.eviction,
            prefetch_degree: self.case.prefetch_degree,
            accesses: self.accesses,
            hits: self.hits,
            hit_permyriad: self.hit_permyriad(),
            published_percent: self.case.published_percent(),
            is_within: self.is_within(),
            prefetched: self.prefetched,
            prefetched_useful: self.prefetched_useful,
            polluting: self.polluting,
            mean_access_ns: self.mean_access_ns(),
        }
    }

    /// Whether it is as near to the published figure as it has to be; nothing if it is not compared.
    fn is_within(&self) -> Option<bool> {
        let published = self.case.published_percent().filter(|_| COMPARED.contains(&self.case.eviction))?;
        let apart = self.hit_permyriad().abs_diff(u64::from(published) * 100);
        Some(apart <= u64::from(TOLERANCE_POINTS) * 100)
    }
}

/// A fixed-point number as text: `parts` of a whole that has `per_one` of them, 10 or 100.
fn decimal(parts: u64, per_one: u64) -> String {
    let digits = if per_one == 100 { 2 } else { 1 };
    format!("{}.{:0digits$}", parts / per_one, parts % per_one)
}
