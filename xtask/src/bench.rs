//! Runs the benchmarks and joins what they print into one list and one table.
//!
//! A benchmark is any program listed in `xtask/benches.toml`. It prints one JSON object a line for each
//! figure; other lines are passed on. A figure has `name`, `value`, `unit`, and where there is one a `peer`
//! with `peer_value` and `ratio`, and a `bar` with `pass`. The word `{filter}` in a command stands for the filter,
//! and is left out when there is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Options;
use crate::machine::{Machine, Sources};

/// Which programs are benchmarks.
const LIST: &str = "xtask/benches.toml";
/// Where the results go.
const RESULTS: &str = "target/bench/results.json";
/// The commit and machine of the results.
const CIRCUMSTANCES: &str = "target/bench/circumstances.json";
/// What stands for the filter in a command.
const FILTER_WORD: &str = "{filter}";
/// The variable that tells a program which of its figures are wanted.
const FILTER_VARIABLE: &str = "OSIER_BENCH_FILTER";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    bench: Vec<Bench>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bench {
    name: String,
    command: Vec<String>,
}

/// One figure, as a benchmark prints it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figure {
    name: String,
    /// Nothing where it cannot be measured; the note says why.
    value: Option<f64>,
    unit: String,
    peer: Option<String>,
    peer_value: Option<f64>,
    ratio: Option<f64>,
    /// A number or a text such as `<= 25`.
    bar: Option<Value>,
    pass: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    durability: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu_seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer_cpu_seconds: Option<f64>,
    /// How the figure was taken, or why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

#[derive(Serialize)]
struct Circumstances {
    #[serde(flatten)]
    sources: Sources,
    machine: Machine,
}

/// Runs the benchmarks whose name contains the filter; or else, those that know a figure by it.
///
/// # Errors
/// When the list cannot be read, or no benchmark fits.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let list = read(root)?;
    let (chosen, inner) = choose(&list.bench, &options.filter);
    let mut figures = BTreeMap::new();
    let mut broken = 0;
    for bench in chosen {
        eprintln!("bench {}: {}", bench.name, bench.command.join(" "));
        match run_one(root, bench, inner) {
            Ok(found) => figures.extend(found.into_iter().map(|figure| (figure.name.clone(), figure))),
            Err(error) => {
                broken += 1;
                eprintln!("bench {} failed: {error:#}", bench.name);
            }
        }
    }
    if figures.is_empty() && broken == 0 {
        bail!("no benchmark or figure has `{}` in its name", options.filter);
    }
    let figures: Vec<Figure> = figures.into_values().collect();
    write(root, &figures)?;
    print!("{}", table(&figures));
    let missed = figures.iter().filter(|figure| figure.pass == Some(false)).count();
    let bars = figures.iter().filter(|figure| figure.pass.is_some()).count();
    println!("bench: {} figures, {bars} bars, {missed} missed, {broken} programs failed; {RESULTS}", figures.len());
    let failed = broken > 0 || (options.switch && missed > 0);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(root: &Path) -> Result<List> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    toml::from_str(&text).with_context(|| format!("understanding {LIST}"))
}

/// The names of all benchmarks.
///
/// # Errors
/// When the list cannot be read.
pub fn names(root: &Path) -> Result<BTreeSet<String>> {
    Ok(read(root)?.bench.into_iter().map(|bench| bench.name).collect())
}

/// The benchmarks to run, and the filter to hand on to them: a filter that names a benchmark wants all of it.
fn choose<'a>(all: &'a [Bench], filter: &'a str) -> (Vec<&'a Bench>, &'a str) {
    let named: Vec<&Bench> = all.iter().filter(|bench| bench.name.contains(filter)).collect();
    if named.is_empty() { (all.iter().collect(), filter) } else { (named, "") }
}

fn run_one(root: &Path, bench: &Bench, filter: &str) -> Result<Vec<Figure>> {
    let (program, arguments) = bench.command.split_first().context("the command is empty")?;
    let arguments = arguments.iter().map(|word| if word == FILTER_WORD { filter } else { word });
    let mut child = Command::new(program)
        .args(arguments.filter(|word| !word.is_empty()))
        .env(FILTER_VARIABLE, filter)
        .current_dir(root)
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    let output = child.stdout.take().context("the output is a pipe")?;
    let mut figures = Vec::new();
    for line in BufReader::new(output).lines() {
        match parse(&line.context("reading the output")?)? {
            Line::Figure(figure) if figure.name.contains(filter) => figures.push(*figure),
            Line::Figure(_) => {}
            Line::Other(text) => eprintln!("  {text}"),
        }
    }
    let status = child.wait().context("waiting for the program")?;
    if !status.success() {
        bail!("it ended with {status}");
    }
    Ok(figures)
}

enum Line {
    Figure(Box<Figure>),
    Other(String),
}

fn parse(line: &str) -> Result<Line> {
    if !line.trim_start().starts_with('{') {
        return Ok(Line::Other(line.to_owned()));
    }
    let figure = serde_json::from_str(line).with_context(|| format!("`{line}` is not a figure"))?;
    Ok(Line::Figure(Box::new(figure)))
}

fn write(root: &Path, figures: &[Figure]) -> Result<()> {
    let path = root.join(RESULTS);
    fs::create_dir_all(path.parent().context("the results lie in a directory")?)?;
    fs::write(&path, serde_json::to_string_pretty(figures)? + "\n").with_context(|| format!("writing {RESULTS}"))?;
    let circumstances = Circumstances { sources: Sources::of(root)?, machine: Machine::here() };
    let text = serde_json::to_string_pretty(&circumstances)? + "\n";
    fs::write(root.join(CIRCUMSTANCES), text).with_context(|| format!("writing {CIRCUMSTANCES}"))
}

fn table(figures: &[Figure]) -> String {
    let mut rows =
        vec![["FIGURE", "VALUE", "UNIT", "PEER", "PEER VALUE", "RATIO", "BAR", "", "NOTE"].map(String::from)];
    for figure in figures {
        let number = |value: Option<f64>| value.map_or(String::new(), short);
        let bar = match &figure.bar {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        };
        let verdict = match figure.pass {
            None => "",
            Some(true) => "met",
            Some(false) => "MISSED",
        };
        rows.push([
            figure.name.clone(),
            number(figure.value),
            figure.unit.clone(),
            figure.peer.clone().unwrap_or_default(),
            number(figure.peer_value),
            number(figure.ratio),
            bar,
            verdict.to_owned(),
            figure.note.clone().unwrap_or_default(),
        ]);
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// A number with as many digits as a reader can use.
fn short(value: f64) -> String {
    let decimals = if value == value.trunc() || value.abs() >= 1000.0 {
        0
    } else if value.abs() >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"name":"ring","value":21.25,"unit":"ns","peer":"rtrb","peer_value":30.5,"ratio":0.697,
        "bar":"<= 25","pass":true}"#;

    #[test]
    fn a_figure_is_read_and_shown_and_other_lines_are_passed_on() {
        let Line::Figure(figure) = parse(&LINE.replace('\n', "")).unwrap() else { panic!("a figure") };
        let text = table(&[*figure]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells, ["ring", "21.2", "ns", "rtrb", "30.5", "0.697", "<=", "25", "met"]);
        assert!(matches!(parse("warming up").unwrap(), Line::Other(_)));
    }

    #[test]
    fn a_figure_that_is_not_one_fails_the_program() {
        for bad in [r#"{"name":"x"}"#, r#"{"name":"x","value":1,"unit":"ns","speed":2}"#, "{"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_chooses_programs_or_else_figures() {
        let bench = |name: &str| Bench { name: name.to_owned(), command: vec!["true".to_owned()] };
        let all = [bench("rings"), bench("calls")];
        assert_eq!((choose(&all, "ring").0.len(), choose(&all, "ring").1), (1, ""));
        assert_eq!((choose(&all, "lz4").0.len(), choose(&all, "lz4").1), (2, "lz4"));
        assert_eq!(choose(&all, "").0.len(), 2);
    }

    #[test]
    fn a_program_that_fails_is_an_error_and_its_figures_are_not_taken() {
        let root = crate::root().unwrap();
        let bench =
            |script: &str| Bench { name: "x".to_owned(), command: ["sh", "-c", script].map(String::from).to_vec() };
        let print = format!("echo '{}'", LINE.replace('\n', ""));
        assert_eq!(run_one(&root, &bench(&print), "").unwrap().len(), 1);
        assert_eq!(run_one(&root, &bench(&print), "other").unwrap().len(), 0);
        assert!(run_one(&root, &bench(&format!("{print}; exit 3")), "").is_err());
    }

    #[test]
    fn the_filter_goes_where_the_command_wants_it() {
        let root = crate::root().unwrap();
        let print = r#"echo '{"name":"'$#$1'","value":null,"unit":"","note":"none"}'"#;
        let command = ["sh", "-c", print, "sh", FILTER_WORD].map(String::from).to_vec();
        let bench = Bench { name: "x".to_owned(), command };
        assert_eq!(run_one(&root, &bench, "").unwrap()[0].name, "0");
        let figures = run_one(&root, &bench, "ring").unwrap();
        assert_eq!((figures[0].name.as_str(), figures[0].value), ("1ring", None));
    }

    #[test]
    fn the_list_in_the_tree_is_understood() {
        let text = fs::read_to_string(crate::root().unwrap().join(LIST)).unwrap();
        let list: List = toml::from_str(&text).unwrap();
        assert!(list.bench.iter().all(|bench| !bench.command.is_empty()));
    }
}
