//! Single keys of a workload set to other values, for a sweep.
//!
//! A key is a path. One that begins with `job.N.phase.M` names one phase; any other one is a key of a phase, and is set
//! in every phase of every job. `queue_depth` stands for `arrivals.closed.depth`.

use osier_device::profile::line_of_key;
use serde::Deserialize as _;
use toml::{Table, Value};

use super::{Workload, WorkloadError};

/// Another name for the requests under way of a closed loop, which is what others call them.
const QUEUE_DEPTH: &str = "queue_depth";
const DEPTH: &str = "arrivals.closed.depth";
/// Tables of which exactly one key is given: setting one takes the place of the other.
const ONE_OF: [&str; 2] = ["pattern", "arrivals"];
/// Keys of a phase of which exactly one is given.
const EITHER: [[&str; 2]; 2] = [["requests", "duration_ns"], ["block_bytes", "blocks"]];

impl Workload {
    /// As [`Workload::parse`], with some keys set to other values.
    ///
    /// # Errors
    /// As [`Workload::parse`]; [`WorkloadError::Override`] for a key that the workload does not have, or not with such
    /// a value; [`WorkloadError::Impossible`] for values that do not go together.
    pub fn parse_with(name: &str, text: &str, set: &[(String, Value)]) -> Result<Workload, WorkloadError> {
        let plain = Workload::parse(name, text)?;
        let Some((last, _)) = set.last() else { return Ok(plain) };
        let refuse = |key: &str, reason: String| WorkloadError::Override {
            workload: name.to_owned(),
            key: key.to_owned(),
            reason,
        };
        let mut document: Table = text.parse().map_err(|error: toml::de::Error| refuse(last, error.to_string()))?;
        let mut changed = plain;
        for (key, value) in set {
            apply(&mut document, key, value).map_err(|reason| refuse(key, reason))?;
            changed = Workload::deserialize(Value::Table(document.clone()))
                .map_err(|error| refuse(key, error.message().to_owned()))?;
        }
        // What stands is not changed by setting it once more.
        let stands = |(key, value): &&(String, Value)| {
            let mut again = document.clone();
            apply(&mut again, key, value).is_ok() && again == document
        };
        if let Some((key, _)) = set.iter().find(|key| !stands(key)) {
            return Err(refuse(key, "another key that is set takes its place; leave one of them out".to_owned()));
        }
        // Whether values go together is known when all are set.
        changed.check().map_err(|fault| WorkloadError::Impossible {
            workload: name.to_owned(),
            line: line_of_key(text, &fault.key),
            key: fault.key,
            reason: fault.reason,
        })?;
        Ok(changed)
    }
}

fn apply(document: &mut Table, key: &str, value: &Value) -> Result<(), String> {
    if key == "seed" {
        return Err("is what `seeds` of the sweep are".to_owned());
    }
    let Some(jobs) = document.get_mut("job").and_then(Value::as_array_mut) else {
        return Err("the workload has no jobs".to_owned());
    };
    let (job, rest) = numbered(key, "job", jobs.len())?;
    let mut is_set = false;
    for (index, job_table) in jobs.iter_mut().enumerate().filter(|(index, _)| job.is_none_or(|job| job == *index)) {
        let Some(phases) = job_table.get_mut("phase").and_then(Value::as_array_mut) else { continue };
        let (phase, rest) = numbered(rest, "phase", phases.len())?;
        if job.is_some() && phase.is_none() {
            return Err("names a job and no phase; give job.N.phase.M and a key, or a phase's key alone".to_owned());
        }
        for (at, table) in phases.iter_mut().enumerate().filter(|(at, _)| phase.is_none_or(|phase| phase == *at)) {
            let Some(table) = table.as_table_mut() else { continue };
            set(table, rest, value).map_err(|reason| format!("in phase {} of job {}: {reason}", at + 1, index + 1))?;
            is_set = true;
        }
    }
    if is_set { Ok(()) } else { Err("the workload has no phase".to_owned()) }
}

/// Takes `name.N.` off the front of a path: which one, from 0, and what is left.
fn numbered<'a>(path: &'a str, name: &str, count: usize) -> Result<(Option<usize>, &'a str), String> {
    let Some(rest) = path.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else { return Ok((None, path)) };
    let (number, rest) = rest.split_once('.').unwrap_or((rest, ""));
    let number = number.parse::<usize>().ok().filter(|number| (1..=count).contains(number));
    match number {
        Some(number) => Ok((Some(number - 1), rest)),
        None => Err(format!("names a {name} that is not there: there are {count}, counted from 1")),
    }
}

/// Sets a key of a phase.
fn set(phase: &mut Table, path: &str, value: &Value) -> Result<(), String> {
    let path = if path == QUEUE_DEPTH {
        let is_closed = phase.get("arrivals").is_some_and(|arrivals| arrivals.get("closed").is_some());
        if !is_closed {
            return Err("it is no closed loop, so no number of requests is under way".to_owned());
        }
        DEPTH
    } else {
        path
    };
    for other in EITHER.iter().filter(|either| either.contains(&path)).flatten().filter(|other| **other != path) {
        phase.remove(*other);
    }
    let mut parts = path.split('.').peekable();
    let mut table = phase;
    while let Some(part) = parts.next() {
        let Some(next) = parts.peek() else {
            table.insert(part.to_owned(), value.clone());
            return Ok(());
        };
        let inner = table.entry(part).or_insert_with(|| Value::Table(Table::new()));
        let is_other = |inner: &Value| inner.as_table().is_none_or(|inner| !inner.contains_key(*next));
        if ONE_OF.contains(&part) && is_other(inner) {
            *inner = Value::Table(Table::new());
        }
        table = inner.as_table_mut().ok_or_else(|| format!("`{part}` is a value, not a table of keys"))?;
    }
    Err("the key is empty".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Arrivals, Pattern};

    const TEXT: &str = r#"seed = 1
[[job]]
name = "a"
[[job.phase]]
requests = 10
pattern = "uniform"
mix = { read_permille = 700, write_permille = 300 }
range_bytes = 1_048_576
block_bytes = 4096
arrivals = { closed = { depth = 4, think_ns = 7 } }
[[job.phase]]
requests = 20
pattern = { zipf = { theta_permille = 900 } }
mix = { read_permille = 1000 }
range_bytes = 1_048_576
block_bytes = 4096
arrivals = { closed = { depth = 8 } }
[[job]]
name = "b"
[[job.phase]]
duration_ns = 1000
pattern = "sequential"
mix = { write_permille = 1000 }
range_bytes = 1_048_576
block_bytes = 4096
arrivals = { closed = { depth = 1 } }
"#;

    fn with(set: &[(&str, Value)]) -> Result<Workload, String> {
        let set: Vec<(String, Value)> = set.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        Workload::parse_with("w", TEXT, &set).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_is_set_in_every_phase_or_in_the_one_that_is_named() {
        // The same file with the text changed by hand is what must come out.
        let by_hand = |text: String| Workload::parse("w", &text).unwrap();
        assert_eq!(with(&[]).unwrap(), by_hand(TEXT.to_owned()));
        let everywhere = TEXT.replace("depth = 4", "depth = 32").replace("depth = 8", "depth = 32");
        let everywhere = by_hand(everywhere.replace("depth = 1 ", "depth = 32 "));
        for key in ["queue_depth", "arrivals.closed.depth"] {
            assert_eq!(with(&[(key, 32.into())]).unwrap(), everywhere);
        }
        let one = by_hand(TEXT.replace("depth = 8", "depth = 32"));
        assert_eq!(with(&[("job.1.phase.2.queue_depth", 32.into())]).unwrap(), one);
        let sizes = by_hand(TEXT.replace("block_bytes = 4096", "block_bytes = 8192"));
        assert_eq!(with(&[("block_bytes", 8192.into())]).unwrap(), sizes);
    }

    #[test]
    fn what_excludes_something_else_takes_its_place() {
        let phase = |workload: &Workload| workload.jobs[1].phases[0].clone();
        let found = with(&[("job.2.phase.1.requests", 5.into())]).unwrap();
        assert_eq!((phase(&found).requests, phase(&found).duration_ns), (Some(5), None));
        let found = with(&[("pattern.zipf.theta_permille", 990.into())]).unwrap();
        assert!(
            found
                .jobs
                .iter()
                .flat_map(|job| &job.phases)
                .all(|phase| { phase.pattern == Pattern::Zipf { theta_permille: 990, scatter: true } })
        );
        let found = with(&[("pattern", "chase".into())]).unwrap();
        assert_eq!(phase(&found).pattern, Pattern::Chase);
        let found = with(&[("arrivals.fixed.requests_per_second", 100.into())]).unwrap();
        assert_eq!(phase(&found).arrivals, Arrivals::Fixed { requests_per_second: 100 });
        // Two that go together only, in either order.
        let mix = [("job.2.phase.1.mix.read_permille", 400.into()), ("job.2.phase.1.mix.write_permille", 600.into())];
        assert_eq!(phase(&with(&mix).unwrap()).mix.read_permille, 400);
    }

    #[test]
    fn keys_that_are_not_there_are_refused_by_name() {
        for (key, value, word) in [
            ("colour", Value::from(1), "colour"),
            ("job.3.phase.1.block_bytes", 4096.into(), "there are 2"),
            ("job.1.phase.3.block_bytes", 4096.into(), "there are 2"),
            ("job.1.block_bytes", 4096.into(), "no phase"),
            ("block_bytes", "large".into(), "invalid type"),
            ("block_bytes.huge", 1.into(), "not a table"),
            ("block_bytes", 0.into(), "must be 1"),
            ("mix.read_permille", 1.into(), "must be 1000"),
            ("seed", 4.into(), "seeds"),
            ("", 4.into(), "unknown field"),
        ] {
            let error = with(&[(key, value)]).unwrap_err();
            assert!(error.contains(word), "{key}: {error}");
        }
        for other in ["arrivals.closed.depth", "job.1.phase.2.queue_depth"] {
            let error = with(&[("queue_depth", 4.into()), (other, 2.into())]).unwrap_err();
            assert!(error.contains("takes its place"), "{other}: {error}");
            with(&[("queue_depth", 4.into()), (other, 4.into())]).unwrap();
        }
        let error = with(&[("requests", 9.into()), ("duration_ns", 9.into())]).unwrap_err();
        assert!(error.contains("requests") && error.contains("takes its place"), "{error}");
        let error = with(&[("arrivals.fixed.requests_per_second", 9.into()), ("queue_depth", 2.into())]).unwrap_err();
        assert!(error.contains("phase 1 of job 1: it is no closed loop"), "{error}");
    }
}
