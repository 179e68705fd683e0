//! Exit codes that mean something, and the report of an error.

use std::fmt;
use std::process::ExitCode;

use osier_actor::pipeline::RegistryError;
use osier_image::{ImageError, MediaError};
use osier_pmr::PmrError;
use osier_runtime::RuntimeError;

use crate::config::ConfigError;
use crate::output::tell;

/// How the program ends. The numbers are a promise to scripts: a meaning may be added, never changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Something failed that has no code of its own.
    Failure = 1,
    /// The command line was not understood (clap's own code).
    Usage = 2,
    /// A file, value or name that was given is wrong.
    BadInput = 3,
    /// Another process owns the device.
    Busy = 4,
    /// A part of the device image is damaged.
    Damaged = 5,
    /// Data read back were not what was written.
    VerificationFailed = 6,
    /// No room: on the disk, or in the device.
    NoSpace = 7,
    /// There is no such device, or it is not up.
    Missing = 8,
}

/// Every code, in order, with what it means.
const MEANINGS: [(Exit, &str); 9] = [
    (Exit::Ok, "done"),
    (Exit::Failure, "failed for another reason than those below"),
    (Exit::Usage, "the command line was not understood"),
    (Exit::BadInput, "a file, value or name that was given is wrong, or of a newer format"),
    (Exit::Busy, "another process owns the device"),
    (Exit::Damaged, "a part of the device image is damaged"),
    (Exit::VerificationFailed, "data read back were not what was written"),
    (Exit::NoSpace, "no room on the disk or in the device"),
    (Exit::Missing, "there is no such device, or it is not up"),
];

impl Exit {
    /// The meaning of a code that this program ended with.
    pub fn of_code(code: i32) -> Option<Self> {
        MEANINGS.iter().map(|(exit, _)| *exit).find(|exit| *exit as i32 == code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// The list of exit codes for `--help`.
pub fn help() -> String {
    let lines = MEANINGS.iter().map(|(exit, meaning)| format!("  {}  {meaning}\n", *exit as u8));
    format!("Exit codes:\n{}", lines.collect::<String>())
}

/// An error to which its command gives a code, where the error's type does not imply one.
#[derive(Debug)]
pub struct Failure {
    /// The code.
    pub exit: Exit,
    /// What went wrong, and what to do.
    pub text: String,
}

impl Failure {
    /// A failure with a code.
    pub fn new(exit: Exit, text: impl Into<String>) -> Self {
        Self { exit, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// The code that an error stands for: that of the outermost cause that has one.
pub fn code_of(error: &anyhow::Error) -> Exit {
    error.chain().find_map(code_of_cause).unwrap_or(Exit::Failure)
}

fn code_of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    let known = [
        cause.downcast_ref::<Failure>().map(|failure| failure.exit),
        cause.downcast_ref::<ConfigError>().map(|_| Exit::BadInput),
        cause.downcast_ref().map(of_media),
        cause.downcast_ref().map(of_image),
        cause.downcast_ref().map(of_region),
        cause.downcast_ref().map(of_runtime),
        // A plain error of the system says nothing but that a disk is full: a command that knows more says so.
        cause.downcast_ref().map(of_io).filter(|exit| *exit == Exit::NoSpace),
    ];
    known.into_iter().flatten().next()
}

fn of_io(error: &std::io::Error) -> Exit {
    if osier_image::is_no_space(error) { Exit::NoSpace } else { Exit::Failure }
}

fn of_media(error: &MediaError) -> Exit {
    match (error.is_no_space(), error.is_damage()) {
        (true, _) => Exit::NoSpace,
        (_, true) => Exit::Damaged,
        _ => Exit::Failure,
    }
}

fn of_image(error: &ImageError) -> Exit {
    match error {
        ImageError::Options { .. }
        | ImageError::Exists { .. }
        | ImageError::NotAnImage { .. }
        | ImageError::NewerFormat { .. }
        | ImageError::Profile { .. }
        | ImageError::Foreign { .. } => Exit::BadInput,
        ImageError::Missing { .. } => Exit::Missing,
        ImageError::Busy { .. } => Exit::Busy,
        ImageError::Damaged { .. } => Exit::Damaged,
        ImageError::NoSpace { .. } => Exit::NoSpace,
        ImageError::Io { cause, .. } if cause.kind() == std::io::ErrorKind::NotADirectory => Exit::BadInput,
        ImageError::Io { .. } => Exit::Failure,
    }
}

fn of_region(error: &PmrError) -> Exit {
    match error {
        PmrError::NoSpace { .. } => Exit::NoSpace,
        PmrError::NewerVersion { .. } | PmrError::BadSize { .. } | PmrError::Exists { .. } => Exit::BadInput,
        PmrError::Missing { .. }
        | PmrError::NotARegion { .. }
        | PmrError::DamagedHeader { .. }
        | PmrError::Truncated { .. }
        | PmrError::DamagedTable { .. } => Exit::Damaged,
        PmrError::Io { source, .. } => of_io(source),
        _ => Exit::Failure,
    }
}

/// An error that the runtime passes on as it is does not show in the chain of causes, so it is asked here.
fn of_runtime(error: &RuntimeError) -> Exit {
    match error {
        RuntimeError::Image(inner) => of_image(inner),
        RuntimeError::Media(inner) => of_media(inner),
        RuntimeError::Pmr(inner) => of_region(inner),
        RuntimeError::File { source, .. } if source.kind() == std::io::ErrorKind::NotFound => Exit::Damaged,
        RuntimeError::System { source, .. }
        | RuntimeError::File { source, .. }
        | RuntimeError::Listen { source, .. } => of_io(source),
        RuntimeError::Record { source, .. } | RuntimeError::Recording { source, .. }
            if osier_image::is_no_space(source) =>
        {
            Exit::NoSpace
        }
        RuntimeError::Record { .. } | RuntimeError::Recording { .. } => Exit::BadInput,
        // A domain is this very program, and its codes are these.
        RuntimeError::DoesNotStart { code: Some(code), .. } => Exit::of_code(*code).unwrap_or(Exit::Failure),
        RuntimeError::Profile(_)
        | RuntimeError::Config(_)
        | RuntimeError::Module(_)
        | RuntimeError::Prepare(_)
        | RuntimeError::Compile(_)
        | RuntimeError::Corpus(_)
        | RuntimeError::BufferSize { .. }
        | RuntimeError::NoWitness { .. }
        | RuntimeError::Option(_) => Exit::BadInput,
        RuntimeError::Registry { source: RegistryError::Damaged(_), .. }
        | RuntimeError::RegionCut { .. }
        | RuntimeError::Device(_)
        | RuntimeError::LostKey { .. }
        | RuntimeError::BadKey { .. } => Exit::Damaged,
        RuntimeError::Registry { .. } => Exit::BadInput,
        RuntimeError::NotRunning { .. } => Exit::Missing,
        RuntimeError::Ring(_)
        | RuntimeError::Runner(_)
        | RuntimeError::DoesNotStart { .. }
        | RuntimeError::MediaLost { .. }
        | RuntimeError::NotStopped { .. }
        | RuntimeError::DiesTooOften { .. } => Exit::Failure,
    }
}

/// Prints an error to standard error, and says with which code to end.
pub fn report(error: &anyhow::Error, json: bool) -> Exit {
    let exit = code_of(error);
    tell!("{}", line(&text_of(error), exit, json));
    exit
}

/// What [`report`] would print, and the code, for a program that ends where it can do no more than print.
pub fn last_words(error: &RuntimeError, json: bool) -> (String, i32) {
    let exit = of_runtime(error);
    (line(&error.to_string(), exit, json), exit as i32)
}

fn line(text: &str, exit: Exit, json: bool) -> String {
    if json {
        return serde_json::json!({ "error": text, "exit": exit as u8 }).to_string();
    }
    format!("osier: {text}")
}

/// The chain of causes in one line. A cause whose text an outer one already contains is not repeated.
fn text_of(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(|cause| one_line(&cause.to_string())) {
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
    }
    text
}

/// Some libraries draw pictures of what they did not understand.
fn one_line(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn the_codes_are_numbered_without_a_gap() {
        for (number, (exit, meaning)) in MEANINGS.iter().enumerate() {
            assert_eq!(*exit as usize, number);
            assert!(help().contains(&format!("{number}  {meaning}")));
        }
    }

    #[test]
    fn the_manual_lists_the_same_codes() {
        let manual = include_str!("../../../docs/cli.md");
        for (exit, meaning) in MEANINGS {
            assert!(manual.contains(&format!("| {} | {meaning} |", exit as u8)), "{exit:?}");
        }
    }

    #[test]
    fn a_code_is_found_through_the_context_around_it() {
        let busy = ImageError::Busy { path: "x".into(), holder: osier_image::Holder::Unknown };
        let error = Err::<(), _>(RuntimeError::from(busy)).context("starting the device").unwrap_err();
        assert_eq!(code_of(&error), Exit::Busy);
        let full = PmrError::NoSpace { on: "x".to_owned(), bytes: 1 };
        assert_eq!(code_of(&RuntimeError::from(full).into()), Exit::NoSpace);
        assert_eq!(code_of(&anyhow::anyhow!("something")), Exit::Failure);
        assert_eq!(code_of(&Failure::new(Exit::VerificationFailed, "x").into()), Exit::VerificationFailed);
    }

    #[test]
    fn a_cause_is_not_said_twice() {
        let inner = std::io::Error::other("no such thing");
        let error = anyhow::Error::new(inner).context("reading a file failed: no such thing").context("start");
        let drawn = anyhow::anyhow!("expected [\n    0x61,\n]\n");
        assert_eq!(text_of(&drawn), "expected [ 0x61, ]");
        assert_eq!(text_of(&error), "start: reading a file failed: no such thing");
    }
}
