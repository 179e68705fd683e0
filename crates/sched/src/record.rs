//! `samples.jsonl`: the samples of a run, one a line, and what was decided.
//!
//! # Format, version 1
//!
//! UTF-8 text, one JSON object a line, each line ended by a line feed. Lines that are empty are
//! skipped. Keys that are not listed here are refused, so that a misspelt key cannot pass for a
//! missing one. Times are nanoseconds since an arbitrary start; shares are permille.
//!
//! The first line is the header:
//!
//! ```json
//! {"format":"osier-samples","version":1,"profile":"smartssd","policy":"wio","epoch_ms":10,"thermal_time_scale":1}
//! ```
//!
//! Every other line is one epoch. `frequency_khz`, `frequency_nominal_khz`, `power_milliwatts` and
//! `decision` may be missing; everything else is required:
//!
//! ```json
//! {"at_ns":10000000,
//!  "host":{"cpu_permille":412,"frequency_khz":3100000,"frequency_nominal_khz":3000000,
//!          "power_milliwatts":18250,"ring_depth":3},
//!  "device":{"temperature_millicelsius":70125,"utilisation_permille":640,"speed_permille":500,"ring_depth":8},
//!  "actors":[{"id":1,"side":"device","class":"best-effort","movable":true,"since_ns":0,
//!             "busy_permille":310,"bytes":4194304}],
//!  "decision":{"moves":[{"actor":1,"to":"host"}],"rate_permille":1000,"reason":"device-hot"}}
//! ```
//!
//! (One line in the file.) A reader accepts its own version and older ones, and refuses newer ones.
//! A line that cannot be read is reported with its number and skipped: a daemon that is killed
//! leaves a torn last line, and that must not cost the rest of the recording.

use serde::{Deserialize, Serialize};

use crate::wire::SideWord;
use crate::{ActorId, ActorView, Class, Decision, DeviceSample, HostSample, Move, Moves, Nanos, Reason, Sample, Side};

/// What the header's `format` says.
pub const RECORD_FORMAT: &str = "osier-samples";

/// The newest version of the format that is read, and the one that is written.
pub const RECORD_VERSION: u32 = 1;

/// So many malformed lines are kept with their reasons; the rest are only counted.
pub const MALFORMED_MAX: usize = 100;

/// The first line of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    /// [`RECORD_FORMAT`].
    pub format: String,
    /// The version of the format.
    pub version: u32,
    /// The profile that the device ran with.
    pub profile: String,
    /// The policy that decided.
    pub policy: String,
    /// Milliseconds between two samples.
    pub epoch_ms: u32,
    /// How many times faster than in nature the model's temperature moved.
    pub thermal_time_scale: u32,
}

impl Header {
    /// The header of a recording that is written now.
    #[must_use]
    pub fn new(profile: &str, policy: &str, epoch_ms: u32, thermal_time_scale: u32) -> Header {
        Header {
            format: RECORD_FORMAT.to_owned(),
            version: RECORD_VERSION,
            profile: profile.to_owned(),
            policy: policy.to_owned(),
            epoch_ms,
            thermal_time_scale,
        }
    }
}

/// One epoch of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// What the policy saw.
    pub sample: Sample,
    /// What it decided, where that was recorded.
    pub decision: Option<Decision>,
}

/// A line that could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct LineError {
    /// Its number in the file, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub message: String,
}

/// Why a text is not a recording.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordingError {
    /// No line at all.
    #[error("the recording is empty: its first line must be the header")]
    Empty,
    /// The first line is no header.
    #[error(
        "line {line} is not the header of a sample recording ({message}): was the file made by `osier sched record`?"
    )]
    Header {
        /// Its number in the file, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// Another format.
    #[error("the recording's format is {found:?}, not {RECORD_FORMAT:?}: give a sample recording")]
    Format {
        /// What the header says.
        found: String,
    },
    /// A version that is not known here.
    #[error(
        "the recording has version {found}, this program reads versions 1 to {RECORD_VERSION}: use a newer program"
    )]
    Version {
        /// What the header says.
        found: u32,
    },
}

/// A recording, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The first line.
    pub header: Header,
    /// The epochs, in order of time.
    pub entries: Vec<Recorded>,
    /// The first [`MALFORMED_MAX`] lines that could not be read.
    pub malformed: Vec<LineError>,
    /// How many lines could not be read.
    pub malformed_count: usize,
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// Only a missing, foreign or newer header is an error; other lines that cannot be read are
    /// listed in [`Recording::malformed`].
    pub fn parse(text: &str) -> Result<Recording, RecordingError> {
        let mut lines =
            text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())).filter(|(_, line)| !line.is_empty());
        let (line, first) = lines.next().ok_or(RecordingError::Empty)?;
        let header = parse_header(line, first)?;
        let mut recording = Recording { header, entries: Vec::new(), malformed: Vec::new(), malformed_count: 0 };
        for (line, text) in lines {
            match parse_entry(text, recording.entries.last()) {
                Ok(entry) => recording.entries.push(entry),
                Err(message) => recording.report(LineError { line, message }),
            }
        }
        Ok(recording)
    }

    fn report(&mut self, error: LineError) {
        self.malformed_count += 1;
        if self.malformed.len() < MALFORMED_MAX {
            self.malformed.push(error);
        }
    }
}

/// The header as a line, line feed included.
#[must_use]
pub fn encode_header(header: &Header) -> String {
    line_of(header)
}

/// One epoch as a line, line feed included.
#[must_use]
pub fn encode_sample(sample: &Sample, decision: Option<&Decision>) -> String {
    line_of(&SampleLine::of(sample, decision))
}

fn line_of(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).expect("plain values always serialize");
    assert!(!line.contains('\n'), "JSON escapes line feeds");
    line.push('\n');
    line
}

fn parse_header(line: usize, text: &str) -> Result<Header, RecordingError> {
    /// The two keys by which a version is told, before any other key is looked at: another version
    /// may have other keys.
    #[derive(Deserialize)]
    struct Kind {
        format: String,
        version: u32,
    }
    let refused = |error: serde_json::Error| RecordingError::Header { line, message: why(&error) };
    let kind: Kind = serde_json::from_str(text).map_err(refused)?;
    if kind.format != RECORD_FORMAT {
        return Err(RecordingError::Format { found: kind.format });
    }
    if kind.version == 0 || kind.version > RECORD_VERSION {
        return Err(RecordingError::Version { found: kind.version });
    }
    serde_json::from_str(text).map_err(refused)
}

fn parse_entry(text: &str, last: Option<&Recorded>) -> Result<Recorded, String> {
    let line: SampleLine = serde_json::from_str(text).map_err(|error| why(&error))?;
    let entry = line.recorded()?;
    entry.sample.check().map_err(|error| error.to_string())?;
    let at = entry.sample.at;
    match last {
        Some(last) if last.sample.at > at => Err(format!(
            "the sample is from {} ns, before the one above it ({} ns): samples must be in order of time",
            at.0, last.sample.at.0
        )),
        _ => Ok(entry),
    }
}

/// The text of a JSON error, with the column alone: the line it knows of is always the first.
fn why(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&position) {
        Some(message) => format!("{message}, at column {}", error.column()),
        None => text,
    }
}

/// A sample as it stands in a line. Apart from [`Sample`], so that the format stays as it is
/// written above when the types of this crate change.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SampleLine {
    at_ns: u64,
    host: HostLine,
    device: DeviceLine,
    actors: Vec<ActorLine>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    decision: Option<DecisionLine>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostLine {
    cpu_permille: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frequency_khz: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    frequency_nominal_khz: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    power_milliwatts: Option<u32>,
    ring_depth: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceLine {
    temperature_millicelsius: i32,
    utilisation_permille: u32,
    speed_permille: u32,
    ring_depth: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ActorLine {
    id: u16,
    #[serde(with = "SideWord")]
    side: Side,
    class: Class,
    movable: bool,
    since_ns: u64,
    busy_permille: u32,
    bytes: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DecisionLine {
    moves: Vec<MoveLine>,
    rate_permille: u32,
    reason: Reason,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveLine {
    actor: u16,
    #[serde(with = "SideWord")]
    to: Side,
}

impl SampleLine {
    fn of(sample: &Sample, decision: Option<&Decision>) -> SampleLine {
        let Sample { at, host, device, actors } = sample;
        SampleLine {
            at_ns: at.0,
            host: HostLine {
                cpu_permille: host.cpu_permille,
                frequency_khz: host.frequency_khz,
                frequency_nominal_khz: host.frequency_nominal_khz,
                power_milliwatts: host.power_milliwatts,
                ring_depth: host.ring_depth,
            },
            device: DeviceLine {
                temperature_millicelsius: device.temperature_millicelsius,
                utilisation_permille: device.utilisation_permille,
                speed_permille: device.speed_permille,
                ring_depth: device.ring_depth,
            },
            actors: actors.iter().map(ActorLine::of).collect(),
            decision: decision.map(|decision| DecisionLine {
                moves: (&decision.moves).into_iter().map(MoveLine::of).collect(),
                rate_permille: decision.rate_permille,
                reason: decision.reason,
            }),
        }
    }

    fn recorded(self) -> Result<Recorded, String> {
        let SampleLine { at_ns, host, device, actors, decision } = self;
        let sample = Sample {
            at: Nanos(at_ns),
            host: HostSample {
                cpu_permille: host.cpu_permille,
                frequency_khz: host.frequency_khz,
                frequency_nominal_khz: host.frequency_nominal_khz,
                power_milliwatts: host.power_milliwatts,
                ring_depth: host.ring_depth,
            },
            device: DeviceSample {
                temperature_millicelsius: device.temperature_millicelsius,
                utilisation_permille: device.utilisation_permille,
                speed_permille: device.speed_permille,
                ring_depth: device.ring_depth,
            },
            actors: actors.iter().map(ActorLine::view).collect(),
        };
        let decision = decision.map(DecisionLine::decision).transpose()?;
        Ok(Recorded { sample, decision })
    }
}

impl ActorLine {
    fn of(view: &ActorView) -> ActorLine {
        ActorLine {
            id: view.id.0,
            side: view.side,
            class: view.class,
            movable: view.movable,
            since_ns: view.since.0,
            busy_permille: view.busy_permille,
            bytes: view.bytes,
        }
    }

    fn view(&self) -> ActorView {
        ActorView {
            id: ActorId(self.id),
            side: self.side,
            class: self.class,
            movable: self.movable,
            since: Nanos(self.since_ns),
            busy_permille: self.busy_permille,
            bytes: self.bytes,
        }
    }
}

impl MoveLine {
    fn of(one: &Move) -> MoveLine {
        MoveLine { actor: one.actor.0, to: one.to }
    }
}

impl DecisionLine {
    fn decision(self) -> Result<Decision, String> {
        let mut moves = Moves::none();
        for one in &self.moves {
            if !moves.push(Move { actor: ActorId(one.actor), to: one.to }) {
                return Err(format!(
                    "the decision has {} moves, more than {}: no policy may decide so many",
                    self.moves.len(),
                    Moves::CAPACITY
                ));
            }
        }
        Ok(Decision { moves, rate_permille: self.rate_permille, reason: self.reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Plant, params};
    use crate::{Policy, Wio};

    fn header() -> Header {
        Header::new("smartssd", "wio", 10, 1)
    }

    fn a_run(epochs: usize) -> (String, Vec<Recorded>) {
        let mut plant = Plant::new(2);
        let mut policy = Wio::new(&params());
        let mut text = encode_header(&Header::new("smartssd", policy.name(), 10, 1));
        let mut entries = Vec::new();
        for _ in 0..epochs {
            let (sample, decision) = plant.epoch(&mut policy);
            text.push_str(&encode_sample(&sample, Some(&decision)));
            entries.push(Recorded { sample, decision: Some(decision) });
        }
        (text, entries)
    }

    #[test]
    fn what_was_written_is_read_back() {
        let (text, entries) = a_run(2_000);
        let recording = Recording::parse(&text).unwrap();
        assert_eq!(recording.header, header());
        assert_eq!(recording.entries, entries);
        assert_eq!(recording.malformed_count, 0);
        assert!(entries.iter().any(|entry| !entry.decision.as_ref().unwrap().moves.as_slice().is_empty()));
    }

    #[test]
    fn the_documented_lines_are_the_format() {
        let text = concat!(
            r#"{"format":"osier-samples","version":1,"profile":"smartssd","policy":"wio","epoch_ms":10,"thermal_time_scale":1}"#,
            "\n",
            r#"{"at_ns":10000000,"host":{"cpu_permille":412,"frequency_khz":3100000,"frequency_nominal_khz":3000000,"power_milliwatts":18250,"ring_depth":3},"device":{"temperature_millicelsius":70125,"utilisation_permille":640,"speed_permille":500,"ring_depth":8},"actors":[{"id":1,"side":"device","class":"best-effort","movable":true,"since_ns":0,"busy_permille":310,"bytes":4194304}],"decision":{"moves":[{"actor":1,"to":"host"}],"rate_permille":1000,"reason":"device-hot"}}"#,
            "\n",
        );
        let recording = Recording::parse(text).unwrap();
        let entry = &recording.entries[0];
        let again = encode_header(&recording.header) + &encode_sample(&entry.sample, entry.decision.as_ref());
        assert_eq!(again, text);
    }

    #[test]
    fn malformed_lines_are_reported_by_number_and_the_rest_is_kept() {
        let (text, entries) = a_run(6);
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines[1] = "{".to_owned();
        lines[2] = lines[2].replace("\"cpu_permille\"", "\"cpu_permile\"");
        lines[3] = lines[3].replace("\"id\":1", "\"id\":0");
        lines[4] = lines[4].replace("\"at_ns\":4", "\"at_ns\":9").replace("\"device\",", "\"moon\",");
        let torn = lines[6].len() / 2;
        lines[6].truncate(torn);
        let recording = Recording::parse(&lines.join("\n")).unwrap();
        assert_eq!(recording.entries, entries[4..5]);
        let reports: Vec<(usize, &str)> =
            recording.malformed.iter().map(|error| (error.line, error.message.as_str())).collect();
        let expected = [(2, "EOF"), (3, "cpu_permile"), (4, "rising order"), (5, "moon"), (7, "EOF")];
        assert_eq!(reports.len(), expected.len(), "{reports:?}");
        for ((line, message), (line_expected, part)) in reports.iter().zip(expected) {
            assert_eq!(*line, line_expected);
            assert!(message.contains(part), "line {line}: {message}");
        }
    }

    #[test]
    fn time_that_goes_back_is_reported() {
        let (text, _) = a_run(3);
        let mut lines: Vec<&str> = text.lines().collect();
        lines.swap(1, 3);
        let recording = Recording::parse(&lines.join("\n")).unwrap();
        assert_eq!(recording.malformed_count, 2);
        assert!(recording.malformed[0].message.contains("order of time"));
    }

    #[test]
    fn many_malformed_lines_are_counted_and_the_list_is_bounded() {
        let text = encode_header(&header()) + &"nonsense\n".repeat(500);
        let recording = Recording::parse(&text).unwrap();
        assert_eq!(recording.malformed_count, 500);
        assert_eq!(recording.malformed.len(), MALFORMED_MAX);
    }

    #[test]
    fn foreign_and_newer_headers_are_refused() {
        assert_eq!(Recording::parse(" \n\n"), Err(RecordingError::Empty));
        let refused = Recording::parse("\n{\"format\":1}").unwrap_err().to_string();
        assert!(refused.starts_with("line 2 is not the header"), "{refused}");
        let newer = r#"{"format":"osier-samples","version":2,"colour":"red"}"#;
        assert_eq!(Recording::parse(newer), Err(RecordingError::Version { found: 2 }));
        let other = r#"{"format":"trace","version":1}"#;
        assert_eq!(Recording::parse(other), Err(RecordingError::Format { found: "trace".to_owned() }));
        let unknown = encode_header(&header()).replace("epoch_ms", "epoch");
        assert!(matches!(Recording::parse(&unknown), Err(RecordingError::Header { line: 1, .. })));
    }
}
