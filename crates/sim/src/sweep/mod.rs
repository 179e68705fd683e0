//! A grid of parameters: which points it has, what is kept of each, and how the results are shown.
//!
//! Pure: a sweep is parsed from TOML (`docs/sweep.md` explains each key), and whoever runs it calls a function for each
//! [`Point`] on as many threads as it likes and keeps a [`Row`] of each. Rows are sorted by point before anything is
//! made of them, so the results are the same bytes in whatever order they came.
//!
//! Invariants:
//! - the points and their numbers follow from the text alone: the first axis turns slowest, then the others in their
//!   order, then workloads, then seeds;
//! - a digest names everything that the results depend on, so that results of two sweeps are never mixed.

mod figures;
mod present;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io::Read;

use osier_device::profile::{line_at, table_at};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use toml::Spanned;

use crate::trace::{Remap, Speed};

pub use figures::{FIGURES, Figure, figure_names, figures};
pub use present::{to_csv, to_report};

/// Most axes of a sweep.
pub const AXES_MAX: usize = 16;
/// Most values of an axis.
pub const VALUES_MAX: usize = 10_000;
/// Most requests of a trace that are under way.
const DEPTH_MAX: u32 = 65_536;
/// Most points of a sweep.
pub const POINTS_MAX: u64 = 1_000_000;

/// A grid of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// One line for people.
    pub description: String,
    /// The profile that the axes change: the name of a built-in one, or a path.
    pub profile: String,
    /// What is changed in it for every point, as keys and TOML values.
    pub set: Vec<(String, Value)>,
    /// Workloads: names of built-in ones, or paths of descriptions and of traces.
    pub workloads: Vec<String>,
    /// Seeds of what is random.
    pub seeds: Vec<u64>,
    /// How each point is run.
    pub run: RunOptions,
    /// Figures that become columns.
    pub columns: Vec<String>,
    /// What is changed from point to point.
    pub axes: Vec<Axis>,
}

/// `[run]`: how each point is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunOptions {
    /// Bytes that the host can address, if fewer than the profile has.
    pub capacity_bytes: Option<u64>,
    /// How much of the device is filled before the first request, in thousandths; it is new if not given.
    pub fill_permille: Option<u32>,
    /// In which way: `sequential` or `random`.
    pub fill_pattern: Option<Fill>,
    /// Requests before the first counted one.
    pub warm_up_requests: Option<u64>,
    /// Most requests that are counted.
    pub requests_max: Option<u64>,
    /// Addresses beyond the capacity: `refuse`, `modulo` or `compact`; refused if not given.
    #[serde(default, deserialize_with = "remap")]
    pub addresses: Option<Remap>,
    /// How traces are replayed; at the speed of their times if not given.
    pub traces: Option<Replay>,
}

/// `run.traces`: how traces are replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replay {
    /// Times are forgotten, and so many requests are under way.
    Depth(u32),
    /// Times are multiplied by so many thousandths.
    TimePermille(u32),
}

impl Replay {
    /// The same for a reader of traces.
    #[must_use]
    pub fn speed(self) -> Speed {
        match self {
            Replay::Depth(depth) => Speed::Closed { depth },
            Replay::TimePermille(numerator) => Speed::Scaled { numerator, denominator: 1000 },
        }
    }
}

fn remap<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Remap>, D::Error> {
    let word = String::deserialize(deserializer)?;
    let known = Remap::ALL.map(Remap::name);
    let found = Remap::ALL.into_iter().find(|remap| remap.name() == word);
    let refused = || serde::de::Error::custom(format!("addresses is `{word}`; choose of {}", known.join(", ")));
    found.map(Some).ok_or_else(refused)
}

/// Whether a workload's word is the path of a trace.
#[must_use]
pub fn is_trace(word: &str) -> bool {
    word.contains('/') && !word.ends_with(".toml")
}

/// How a device is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fill {
    /// Each page once, in order.
    Sequential,
    /// As it is after many writes at random.
    Random,
}

/// What is changed from point to point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// The key of the profile, with its tables: `cache.eviction`.
    pub key: String,
    /// Its values, at least one, none twice.
    pub values: Vec<Value>,
    /// The line of its key.
    pub line: usize,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "expected a word, a whole number, true or false")]
pub enum Value {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A word.
    Text(String),
}

impl Value {
    /// The same for a profile.
    #[must_use]
    pub fn to_toml(&self) -> toml::Value {
        match self {
            Value::Bool(value) => (*value).into(),
            Value::Integer(value) => (*value).into(),
            Value::Text(value) => value.as_str().into(),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Bool(value) => value.fmt(f),
            Value::Integer(value) => value.fmt(f),
            Value::Text(value) => value.fmt(f),
        }
    }
}

/// One point of the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Its number, from 0.
    pub number: u64,
    /// What is changed in the profile: what is changed for every point, then a value of each axis.
    pub set: Vec<(String, Value)>,
    /// The workload.
    pub workload: String,
    /// The seed.
    pub seed: u64,
}

/// What is kept of a point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its number.
    pub point: u64,
    /// The figures, in the order of [`Sweep::columns`], or why there are none. A figure that a run does not have,
    /// such as the hit ratio of a device without a cache, is none.
    pub figures: Result<Vec<Option<u64>>, String>,
}

/// Why a sweep was refused. Lines count from 1.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SweepError {
    /// The text is not TOML, or a key is unknown, missing or of the wrong type.
    #[error("sweep {sweep}, line {line}: {message}; correct the file, docs/sweep.md lists every key")]
    Syntax {
        /// Name given to [`Sweep::parse`].
        sweep: String,
        /// Line of the key, or of the table that lacks it.
        line: usize,
        /// What is wrong with which key.
        message: String,
    },
    /// A value is of the right type but cannot be.
    #[error("sweep {sweep}, line {line}: {key} {reason}")]
    Impossible {
        /// Name given to [`Sweep::parse`].
        sweep: String,
        /// Line of the key or value.
        line: usize,
        /// The key with its table.
        key: String,
        /// Why it is not possible, and what is.
        reason: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    description: String,
    profile: String,
    #[serde(default)]
    set: toml::Table,
    workloads: Spanned<Vec<Spanned<String>>>,
    seeds: Spanned<Vec<Spanned<u64>>>,
    columns: Spanned<Vec<Spanned<String>>>,
    run: Option<Spanned<RunOptions>>,
    #[serde(default)]
    axis: Vec<AxisText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AxisText {
    key: Spanned<String>,
    values: Option<Spanned<Vec<Spanned<Value>>>>,
    from: Option<Spanned<i64>>,
    to: Option<Spanned<i64>>,
    step: Option<Spanned<i64>>,
    factor: Option<Spanned<i64>>,
}

/// A value that cannot be, and where.
struct Fault {
    at: usize,
    key: String,
    reason: String,
}

fn fault<T>(at: usize, key: impl Into<String>, reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault { at, key: key.into(), reason: reason.into() })
}

impl Sweep {
    /// Parses and checks a sweep. `name` stands for it in errors; `known` are the figures that a column can be.
    ///
    /// # Errors
    /// [`SweepError::Syntax`] for text that is not TOML, a missing or unknown key or a wrong type;
    /// [`SweepError::Impossible`] for a value that cannot be.
    pub fn parse(name: &str, text: &str, known: &[&str]) -> Result<Sweep, SweepError> {
        let file: File = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let message = match table_at(text, offset) {
                Some(table) => format!("in [{table}], {}", error.message()),
                None => error.message().to_owned(),
            };
            SweepError::Syntax { sweep: name.to_owned(), line: line_at(text, offset), message }
        })?;
        Sweep::check(file, text, known).map_err(|Fault { at, key, reason }| SweepError::Impossible {
            sweep: name.to_owned(),
            line: line_at(text, at),
            key,
            reason,
        })
    }

    fn check(file: File, text: &str, known: &[&str]) -> Result<Sweep, Fault> {
        let columns = distinct("columns", file.columns, |column| {
            let is_known = known.contains(&column.as_str());
            if is_known { Ok(()) } else { Err(format!("is no figure; choose of {}", known.join(", "))) }
        })?;
        let run_at = file.run.as_ref().map_or(0, |run| run.span().start);
        let sweep = Sweep {
            description: file.description,
            profile: file.profile,
            set: flat(&file.set).map_err(|(key, reason)| Fault { at: text.find("[set").unwrap_or(0), key, reason })?,
            workloads: distinct("workloads", file.workloads, |_| Ok(()))?,
            seeds: distinct("seeds", file.seeds, |_| Ok(()))?,
            run: run_options(file.run)?,
            columns,
            axes: axes(file.axis, text)?,
        };
        if sweep.run.traces.is_some() && !sweep.workloads.iter().any(|word| is_trace(word)) {
            return fault(run_at, "run.traces", "says how traces are replayed, and no workload is the path of one");
        }
        let places = sweep.axes.iter().map(|axis| axis.values.len()).chain([sweep.workloads.len(), sweep.seeds.len()]);
        let points = places.map(|count| count as u64).fold(1, u64::saturating_mul);
        if points > POINTS_MAX {
            return fault(
                0,
                "axis",
                format!("gives {points} points with workloads and seeds; at most {POINTS_MAX} are run"),
            );
        }
        Ok(sweep)
    }

    /// How many points there are.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.places().iter().map(|count| *count as u64).product()
    }

    /// How many values each axis has, then how many workloads and seeds there are.
    fn places(&self) -> Vec<usize> {
        let axes = self.axes.iter().map(|axis| axis.values.len());
        axes.chain([self.workloads.len(), self.seeds.len()]).collect()
    }

    /// Which value of each axis, which workload and which seed a point has.
    fn digits(&self, number: u64) -> Vec<usize> {
        let places = self.places();
        let mut rest = number;
        let mut digits = vec![0; places.len()];
        for (digit, count) in digits.iter_mut().zip(&places).rev() {
            *digit = (rest % *count as u64) as usize;
            rest /= *count as u64;
        }
        digits
    }

    /// A point by its number.
    ///
    /// # Panics
    /// If there is none, which is a bug of the caller.
    #[must_use]
    pub fn point(&self, number: u64) -> Point {
        assert!(number < self.points(), "point {number} of {}", self.points());
        let digits = self.digits(number);
        let of_axes =
            self.axes.iter().zip(&digits).map(|(axis, digit)| (axis.key.clone(), axis.values[*digit].clone()));
        Point {
            number,
            set: self.set.iter().cloned().chain(of_axes).collect(),
            workload: self.workloads[digits[self.axes.len()]].clone(),
            seed: self.seeds[digits[self.axes.len() + 1]],
        }
    }
}

/// Names everything that the results depend on: the sweep's text, the profile, the workloads and the program.
#[must_use]
pub fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // With its length, so that no two lists of parts run into the same bytes.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(hash)
}

/// The same of one part that is too long to be held.
///
/// # Errors
/// What the reader says.
pub fn digest_of(mut part: impl Read) -> std::io::Result<String> {
    let mut hash = Sha256::new();
    std::io::copy(&mut part, &mut hash)?;
    Ok(hex(hash))
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn distinct<T: PartialEq + fmt::Display>(
    key: &str,
    list: Spanned<Vec<Spanned<T>>>,
    check: impl Fn(&T) -> Result<(), String>,
) -> Result<Vec<T>, Fault> {
    let at = list.span().start;
    let items = list.into_inner();
    if items.is_empty() || items.len() > VALUES_MAX {
        return fault(at, key, format!("has {} items; it must have 1 to {VALUES_MAX}", items.len()));
    }
    let mut kept: Vec<T> = Vec::with_capacity(items.len());
    for item in items {
        let at = item.span().start;
        let item = item.into_inner();
        if let Err(reason) = check(&item) {
            return fault(at, format!("`{item}` of {key}"), reason);
        }
        if kept.contains(&item) {
            return fault(at, format!("`{item}` of {key}"), "is there twice");
        }
        kept.push(item);
    }
    Ok(kept)
}

fn run_options(run: Option<Spanned<RunOptions>>) -> Result<RunOptions, Fault> {
    let Some(run) = run else { return Ok(RunOptions::default()) };
    let at = run.span().start;
    let run = run.into_inner();
    if run.fill_permille.is_some_and(|fill| fill > 1000) {
        return fault(at, "run.fill_permille", "is more than 1000, which is all of the device");
    }
    if run.fill_permille.is_some() != run.fill_pattern.is_some() {
        return fault(at, "run.fill_permille", "and run.fill_pattern belong together; give both, or neither");
    }
    match run.traces {
        Some(Replay::Depth(depth)) if !(1..=DEPTH_MAX).contains(&depth) => {
            fault(at, "run.traces.depth", format!("is {depth}; it must be 1 to {DEPTH_MAX}"))
        }
        Some(Replay::TimePermille(0)) => fault(at, "run.traces.time_permille", "is 0; it must be at least 1"),
        _ => Ok(run),
    }
}

/// The values of nested tables under dotted keys, in the order of the keys.
fn flat(table: &toml::Table) -> Result<Vec<(String, Value)>, (String, String)> {
    let mut found = Vec::new();
    let mut open: Vec<(String, &toml::Table)> = vec![("".to_owned(), table)];
    while let Some((prefix, table)) = open.pop() {
        for (name, value) in table {
            let key = format!("{prefix}{name}");
            match value {
                toml::Value::Table(inner) => open.push((key + ".", inner)),
                toml::Value::Boolean(value) => found.push((key, Value::Bool(*value))),
                toml::Value::Integer(value) => found.push((key, Value::Integer(*value))),
                toml::Value::String(value) => found.push((key, Value::Text(value.clone()))),
                _ => return Err((format!("set.{key}"), "must be a word, a whole number, true or false".to_owned())),
            }
        }
    }
    found.sort_by(|left, right| left.0.cmp(&right.0));
    Ok(found)
}

fn axes(texts: Vec<AxisText>, source: &str) -> Result<Vec<Axis>, Fault> {
    if texts.len() > AXES_MAX {
        return fault(texts[AXES_MAX].key.span().start, "axis", format!("is there more than {AXES_MAX} times"));
    }
    let mut axes: Vec<Axis> = Vec::with_capacity(texts.len());
    for text in texts {
        let at = text.key.span().start;
        let key = text.key.get_ref().clone();
        if axes.iter().any(|axis| axis.key == key) {
            return fault(at, format!("the axis {key}"), "is there twice");
        }
        let values = values_of(at, &key, text)?;
        axes.push(Axis { key, values, line: line_at(source, at) });
    }
    Ok(axes)
}

fn values_of(at: usize, key: &str, text: AxisText) -> Result<Vec<Value>, Fault> {
    let name = format!("the axis {key}");
    match (text.values, text.from, text.to) {
        (Some(values), None, None) if text.step.is_none() && text.factor.is_none() => {
            distinct(&name, values, |_| Ok(()))
        }
        (None, Some(from), Some(to)) => range(&name, from, to, text.step, text.factor),
        _ => fault(at, name, "must have either values, or from and to with a step or a factor"),
    }
}

/// The whole numbers from `from` to `to`, each a step or a factor beyond the last.
fn range(
    name: &str,
    from: Spanned<i64>,
    to: Spanned<i64>,
    step: Option<Spanned<i64>>,
    factor: Option<Spanned<i64>>,
) -> Result<Vec<Value>, Fault> {
    let at = from.span().start;
    let (from, to) = (from.into_inner(), to.into_inner());
    if from > to {
        return fault(at, name, format!("goes from {from} to {to}, which is none"));
    }
    let next: Box<dyn Fn(i64) -> Option<i64>> = match (step, factor) {
        (Some(step), None) if *step.get_ref() > 0 => Box::new(move |value| value.checked_add(*step.get_ref())),
        (None, Some(factor)) if *factor.get_ref() > 1 && from > 0 => {
            Box::new(move |value| value.checked_mul(*factor.get_ref()))
        }
        _ => return fault(at, name, "must have a step of 1 or more, or a factor of 2 or more and begin above 0"),
    };
    let values: Vec<i64> = std::iter::successors(Some(from), |value| next(*value))
        .take_while(|value| *value <= to)
        .take(VALUES_MAX + 1)
        .collect();
    if values.len() > VALUES_MAX {
        return fault(at, name, format!("has more than {VALUES_MAX} values"));
    }
    Ok(values.into_iter().map(Value::Integer).collect())
}
