//! Runs the long jobs whose counts the specification names, and writes down what they found.
//!
//! A job of `xtask/evidence.toml` is a command over a range of seeds, cut into batches. Each finished batch is
//! noted under `target/evidence/`, so a run that was stopped goes on where it was. A job that is done for
//! these sources is passed over. The result, with commit, seeds, machine and time, goes to `docs/evidence/`.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Options;
use crate::machine::{EVIDENCE_DIRECTORY, Machine, Sources};

/// Which jobs there are.
const LIST: &str = "xtask/evidence.toml";
/// Where finished batches are noted.
const PROGRESS_DIRECTORY: &str = "target/evidence";
/// What stands for a batch's seeds in a command.
const FIRST: &str = "{first}";
const LAST: &str = "{last}";
const COUNT: &str = "{count}";
/// The same, for programs that read the environment.
const FIRST_VARIABLE: &str = "OSIER_SEED_FIRST";
const LAST_VARIABLE: &str = "OSIER_SEED_LAST";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    job: Vec<Job>,
}

/// One job, as the list states it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Job {
    /// Its name, and that of its file.
    name: String,
    /// The promise of the specification that it bears out.
    promise: String,
    /// The command, with `{first}`, `{last}` and `{count}` for the seeds of a batch.
    command: Vec<String>,
    /// The first seed.
    first: u64,
    /// The last seed.
    last: u64,
    /// How many seeds a batch has at most.
    batch: u64,
}

/// One batch that ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Batch {
    first: u64,
    last: u64,
    seconds: f64,
    passed: bool,
    /// The last line of the output, when it is JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

/// What is written to `docs/evidence/`.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Evidence {
    job: Job,
    #[serde(flatten)]
    sources: Sources,
    machine: Machine,
    /// The time that the batches took, in seconds.
    wall_seconds: f64,
    passed: bool,
    batches: Vec<Batch>,
}

/// Runs, or lists, the jobs whose name contains the filter.
///
/// # Errors
/// When the list cannot be read, no job fits, or results cannot be written.
pub fn run(root: &Path, options: &Options) -> Result<ExitCode> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("reading {LIST}"))?;
    let list: List = toml::from_str(&text).with_context(|| format!("understanding {LIST}"))?;
    let sources = Sources::of(root)?;
    let jobs: Vec<&Job> = list.job.iter().filter(|job| job.name.contains(&options.filter)).collect();
    if jobs.is_empty() && !options.filter.is_empty() {
        bail!("no job has `{}` in its name", options.filter);
    }
    if sources.dirty && !options.switch {
        eprintln!("evidence: there are changes that no commit has; results will say so, and will not be kept as done");
    }
    let mut failed = 0;
    for job in jobs {
        job.check()?;
        let done = is_done(root, job, &sources);
        if options.switch || done {
            let state = if done { "done" } else { "to do" };
            println!("{}: seeds {} to {}, {state} ({})", job.name, job.first, job.last, job.promise);
            continue;
        }
        if !run_job(root, job, &sources)? {
            failed += 1;
        }
    }
    println!("evidence: {failed} jobs failed; results in {EVIDENCE_DIRECTORY}/");
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Job {
    fn check(&self) -> Result<()> {
        if self.command.is_empty() || self.batch == 0 || self.first > self.last {
            bail!("job `{}` of {LIST} needs a command, a batch of at least one, and first <= last", self.name);
        }
        Ok(())
    }

    /// The batches, as first and last seed.
    fn batches(&self) -> impl Iterator<Item = (u64, u64)> {
        let (last, batch) = (self.last, self.batch);
        let next = move |(_, end): &(u64, u64)| {
            let first = end.checked_add(1).filter(|first| *first <= last)?;
            Some((first, first.saturating_add(batch - 1).min(last)))
        };
        let start = (self.first, self.first.saturating_add(batch - 1).min(last));
        std::iter::successors(Some(start), next)
    }

    fn command_for(&self, (first, last): (u64, u64)) -> Vec<String> {
        let count = last - first + 1;
        let fill = |word: &String| {
            let word = word.replace(FIRST, &first.to_string()).replace(LAST, &last.to_string());
            word.replace(COUNT, &count.to_string())
        };
        self.command.iter().map(fill).collect()
    }
}

/// Whether the evidence in the tree is of this very job and these very sources.
fn is_done(root: &Path, job: &Job, sources: &Sources) -> bool {
    let read =
        || -> Option<Evidence> { serde_json::from_str(&fs::read_to_string(evidence_path(root, job)).ok()?).ok() };
    !sources.dirty && read().is_some_and(|old| old.passed && old.job == *job && old.sources == *sources)
}

fn evidence_path(root: &Path, job: &Job) -> PathBuf {
    root.join(EVIDENCE_DIRECTORY).join(format!("{}.json", job.name))
}

/// Runs what is left of a job; stops at the first batch that fails.
fn run_job(root: &Path, job: &Job, sources: &Sources) -> Result<bool> {
    let progress = Progress::open(root, job, sources)?;
    let mut batches = progress.finished(job);
    for range in job.batches() {
        if batches.iter().any(|batch| (batch.first, batch.last) == range) {
            continue;
        }
        eprintln!("evidence {}: seeds {} to {} of {}", job.name, range.0, range.1, job.last);
        let batch = run_batch(root, job, range)?;
        if !batch.passed {
            eprintln!("evidence {} failed; to repeat: {}", job.name, job.command_for(range).join(" "));
        }
        let passed = batch.passed;
        batches.push(batch);
        if !passed {
            break;
        }
        progress.note(job, &batches)?;
    }
    batches.sort_by_key(|batch| batch.first);
    let passed = batches.iter().all(|batch| batch.passed) && batches.len() == job.batches().count();
    let evidence = Evidence {
        job: job.clone(),
        sources: sources.clone(),
        machine: Machine::here(),
        wall_seconds: batches.iter().map(|batch| batch.seconds).sum(),
        passed,
        batches,
    };
    let path = evidence_path(root, job);
    replace(&path, &(serde_json::to_string_pretty(&evidence)? + "\n"))?;
    Ok(passed)
}

fn run_batch(root: &Path, job: &Job, range: (u64, u64)) -> Result<Batch> {
    let command = job.command_for(range);
    let (program, arguments) = command.split_first().context("the command is empty")?;
    let start = Instant::now();
    let output = Command::new(program)
        .args(arguments)
        .env(FIRST_VARIABLE, range.0.to_string())
        .env(LAST_VARIABLE, range.1.to_string())
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("starting {program}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        eprint!("{text}");
    }
    let last_line = text.lines().rev().find(|line| !line.trim().is_empty());
    Ok(Batch {
        first: range.0,
        last: range.1,
        seconds: start.elapsed().as_secs_f64(),
        passed: output.status.success(),
        result: last_line.and_then(|line| serde_json::from_str(line).ok()),
    })
}

/// The finished batches of one job for one commit.
struct Progress {
    path: Option<PathBuf>,
}

/// The content of a progress file. The job is in it, because a changed job must not take over batches.
#[derive(Serialize, Deserialize)]
struct Noted {
    job: Job,
    batches: Vec<Batch>,
}

impl Progress {
    /// Sources that no commit has cannot be told apart, so nothing is kept for them.
    fn open(root: &Path, job: &Job, sources: &Sources) -> Result<Self> {
        let directory = root.join(PROGRESS_DIRECTORY);
        fs::create_dir_all(&directory).with_context(|| format!("making {PROGRESS_DIRECTORY}"))?;
        let path = (!sources.dirty).then(|| directory.join(format!("{}-{}.json", job.name, sources.commit)));
        Ok(Self { path })
    }

    fn finished(&self, job: &Job) -> Vec<Batch> {
        let read = || -> Option<Noted> { serde_json::from_str(&fs::read_to_string(self.path.as_ref()?).ok()?).ok() };
        read().filter(|noted| noted.job == *job).map(|noted| noted.batches).unwrap_or_default()
    }

    fn note(&self, job: &Job, batches: &[Batch]) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let noted = Noted { job: job.clone(), batches: batches.to_vec() };
        replace(path, &serde_json::to_string(&noted)?)
    }
}

/// Writes a file whole or not at all, so that a stop in the middle costs at most the last batch.
fn replace(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().context("the file lies in a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new).with_context(|| format!("writing {}", new.display()))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all())?;
    fs::rename(&new, path).with_context(|| format!("naming {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root of its own, in the system's directory for such things.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("osier-evidence-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn job(script: &str) -> Job {
        Job {
            name: "cuts".to_owned(),
            promise: "R1".to_owned(),
            command: ["sh", "-c", script].map(String::from).to_vec(),
            first: 1,
            last: 10,
            batch: 4,
        }
    }

    fn sources(dirty: bool) -> Sources {
        Sources { commit: "abc".to_owned(), dirty }
    }

    fn evidence(root: &Root, job: &Job) -> Evidence {
        serde_json::from_str(&fs::read_to_string(evidence_path(&root.0, job)).unwrap()).unwrap()
    }

    #[test]
    fn batches_cover_every_seed_once() {
        let job = |first, last, batch| Job { first, last, batch, ..job("") };
        assert_eq!(job(1, 10, 4).batches().collect::<Vec<_>>(), [(1, 4), (5, 8), (9, 10)]);
        assert_eq!(job(7, 7, 4).batches().collect::<Vec<_>>(), [(7, 7)]);
        let end = u64::MAX;
        assert_eq!(job(end - 1, end, 1).batches().collect::<Vec<_>>(), [(end - 1, end - 1), (end, end)]);
        assert!(job(2, 1, 1).check().is_err() && job(1, 2, 0).check().is_err());
    }

    #[test]
    fn a_job_that_was_stopped_goes_on_where_it_was_and_is_then_done() {
        let root = Root::new("resume");
        // It fails at the second batch, until the file is there.
        let script = "echo $OSIER_SEED_FIRST >> ran; echo '{\"cuts\": {count}}'; [ {first} != 5 ] || [ -f go ]";
        let job = job(script);
        assert!(!run_job(&root.0, &job, &sources(false)).unwrap());
        let first = evidence(&root, &job);
        assert_eq!((first.passed, first.batches.len()), (false, 2));
        assert!(!is_done(&root.0, &job, &sources(false)));
        fs::write(root.0.join("go"), "").unwrap();
        assert!(run_job(&root.0, &job, &sources(false)).unwrap());
        assert_eq!(fs::read_to_string(root.0.join("ran")).unwrap(), "1\n5\n5\n9\n");
        let second = evidence(&root, &job);
        assert_eq!(second.batches.iter().filter_map(|b| b.result.as_ref()?["cuts"].as_u64()).sum::<u64>(), 10);
        assert!(is_done(&root.0, &job, &sources(false)));
        let other = Sources { commit: "def".to_owned(), dirty: false };
        assert!(!is_done(&root.0, &job, &other), "other sources have to be tried anew");
        assert!(!is_done(&root.0, &Job { last: 11, ..job.clone() }, &sources(false)));
    }

    #[test]
    fn sources_that_no_commit_has_are_never_done() {
        let root = Root::new("dirty");
        let job = job("echo $OSIER_SEED_FIRST >> ran");
        assert!(run_job(&root.0, &job, &sources(true)).unwrap());
        assert!(run_job(&root.0, &job, &sources(true)).unwrap());
        assert_eq!(fs::read_to_string(root.0.join("ran")).unwrap().lines().count(), 6);
        assert!(!is_done(&root.0, &job, &sources(true)));
    }

    #[test]
    fn the_list_in_the_tree_is_understood() {
        let text = fs::read_to_string(crate::root().unwrap().join(LIST)).unwrap();
        let list: List = toml::from_str(&text).unwrap();
        let promises = fs::read_to_string(crate::root().unwrap().join("SPECIFICATION.md")).unwrap();
        for job in &list.job {
            job.check().unwrap();
            assert!(promises.contains(&format!("| {} |", job.promise)), "promise {} is not there", job.promise);
        }
    }
}
