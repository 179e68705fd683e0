//! `osier sweep`: a grid of parameters on all processors, resumable.
//!
//! Each finished point is a line of a journal beside the results ([`journal`]) before another is begun. With the last
//! point the results are written, sorted, whole or not at all, and the journal goes. So a sweep that is stopped or
//! killed goes on where it was, and its results are the same bytes as of one that was not.

mod journal;
mod point;
mod progress;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use osier_sim::sweep::{self, Point, Row, Sweep};

use self::journal::Journal;
use self::progress::Progress;
use super::Context;
use crate::exit::{Exit, Failure};
use crate::whole_file::WholeFile;
use crate::workers::{self, Ended};
use crate::{output, signals};

/// `osier sweep`
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// What to run: a TOML file with a profile, workloads, seeds, axes and columns
    #[arg(value_name = "FILE")]
    sweep: PathBuf,
    /// Where the results go, as CSV; a page with charts goes beside it [default: the sweep's name, here, with .csv]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Threads [default: one a processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=workers::JOBS_MAX as i64))]
    jobs: Option<u16>,
    /// Stop at the first point that cannot be run
    #[arg(long)]
    strict: bool,
    /// Replace results that are there
    #[arg(long)]
    overwrite: bool,
}

/// Where the files of a sweep are.
struct Files {
    csv: PathBuf,
    page: PathBuf,
    journal: PathBuf,
}

impl SweepArgs {
    fn files(&self) -> Result<Files> {
        let refuse = |text: String| anyhow::Error::from(Failure::new(Exit::BadInput, text));
        let csv = match (&self.out, self.sweep.file_stem()) {
            (Some(out), _) => out.clone(),
            (None, Some(stem)) => PathBuf::from(stem).with_extension("csv"),
            (None, None) => return Err(refuse(format!("{} is no file; name a sweep", self.sweep.display()))),
        };
        if csv.extension().is_none_or(|extension| extension != "csv") {
            return Err(refuse(format!("{} must end in .csv", csv.display())));
        }
        let files = Files { page: csv.with_extension("html"), journal: csv.with_extension("csv.journal"), csv };
        let is_there = files.csv.exists() && !files.journal.exists();
        if is_there && !self.overwrite {
            let text = format!("{} exists already; name another file, or give --overwrite", files.csv.display());
            return Err(refuse(text));
        }
        Ok(files)
    }
}

/// Runs the sweep, or what is left of it.
///
/// # Errors
/// A sweep, profile or workload that is refused; a journal of another sweep; an interrupt; in strict mode a point that
/// cannot be run.
pub fn run(args: &SweepArgs, context: &Context) -> Result<Exit> {
    let name = args.sweep.display().to_string();
    let text = std::fs::read_to_string(&args.sweep).map_err(|cause| {
        Failure::new(Exit::BadInput, format!("reading the sweep {name} failed: {cause}; name another file"))
    })?;
    let sweep = Sweep::parse(&name, &text, &sweep::figure_names())
        .map_err(|error| Failure::new(Exit::BadInput, error.to_string()))?;
    let inputs = point::Inputs::find(&name, &sweep, args.sweep.parent().unwrap_or(Path::new("")))?;
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    let digest = sweep::digest([version, text.as_bytes()].into_iter().chain(inputs.texts()));
    let files = args.files()?;
    let (journal, mut rows) = Journal::open(&files.journal, &sweep, &digest)?;
    let todo: Vec<Point> =
        (0..sweep.points()).filter(|number| !rows.contains_key(number)).map(|number| sweep.point(number)).collect();
    let mut run = Running { sweep: &sweep, journal, progress: Progress::new(rows.len(), sweep.points()), args };
    let jobs = args.jobs.map_or_else(workers::processors, usize::from);
    let work = |point: &Point| Row { point: point.number, figures: inputs.figures(point) };
    let ended = workers::run(jobs, &signals::stop_flag()?, &todo, work, |_, row| {
        run.keep(&row)?;
        rows.insert(row.point, row);
        Ok(())
    });
    run.progress.end();
    if ended? == Ended::Stopped {
        let (done, all) = (rows.len(), sweep.points());
        let text = format!("stopped after {done} of {all} points, which are kept; the same command goes on from there");
        return Err(Failure::new(Exit::Failure, text).into());
    }
    let rows: Vec<Row> = rows.into_values().collect();
    if let Some(error) = nothing_ran(&rows) {
        run.journal.remove()?;
        return Err(error.into());
    }
    write_whole(&files.csv, "results", &sweep::to_csv(&sweep, &digest, &rows))?;
    write_whole(&files.page, "page", &sweep::to_report(&sweep, &digest, &rows).to_html())?;
    run.journal.remove()?;
    report(&rows, &digest, &files, context)
}

/// Reasons that are shown where no point could be run.
const REASONS_MAX: usize = 3;

/// A table without a figure is no result: what to say instead.
fn nothing_ran(rows: &[Row]) -> Option<Failure> {
    let mut reasons = Vec::new();
    for row in rows {
        let Err(reason) = &row.figures else { return None };
        if reasons.len() < REASONS_MAX && !reasons.contains(reason) {
            reasons.push(reason.clone());
        }
    }
    let text = format!("none of the {} points can be run, and nothing was written: {}", rows.len(), reasons.join("; "));
    Some(Failure::new(Exit::BadInput, text))
}

/// A sweep under way.
struct Running<'a> {
    sweep: &'a Sweep,
    journal: Journal,
    progress: Progress,
    args: &'a SweepArgs,
}

impl Running<'_> {
    fn keep(&mut self, row: &Row) -> Result<()> {
        if let (true, Err(reason)) = (self.args.strict, &row.figures) {
            let point = self.sweep.point(row.point);
            let set: Vec<String> = point.set.iter().map(|(key, value)| format!("{key} = {value}")).collect();
            let text = format!("point {} ({}) cannot be run: {reason}", row.point, set.join(", "));
            return Err(Failure::new(Exit::BadInput, text).into());
        }
        self.journal.keep(row)?;
        self.progress.show(row.figures.is_err());
        Ok(())
    }
}

fn report(rows: &[Row], digest: &str, files: &Files, context: &Context) -> Result<Exit> {
    let failed = rows.iter().filter(|row| row.figures.is_err()).count();
    let (csv, page) = (files.csv.display(), files.page.display());
    if context.json {
        output::print_json(&serde_json::json!({
            "sweep": digest, "points": rows.len(), "failed": failed,
            "csv": csv.to_string(), "page": page.to_string(),
        }))?;
    } else {
        let failed =
            if failed > 0 { format!(", {failed} without a result: see the column `error`") } else { String::new() };
        output::print(&format!("{} points{failed}\nwritten to {csv} and {page}\n", rows.len()))?;
    }
    Ok(Exit::Ok)
}

/// Writes a file whole or not at all; when this returns, it is on disk.
fn write_whole(path: &Path, what: &'static str, text: &str) -> Result<()> {
    // A file that must not be replaced was refused before the first point.
    let mut file = WholeFile::create(path, what, true)?;
    file.write_all(text.as_bytes()).map_err(|cause| file.failure(cause))?;
    file.keep()?;
    sync_directory(path)
}

/// Makes a new name in a directory last.
fn sync_directory(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.with_context(|| format!("syncing the directory {}", directory.display()))
}
