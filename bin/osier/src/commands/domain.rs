//! `osier domain`: what the supervisor starts twice. Not for people.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use osier_runtime::SessionSpec;
use osier_runtime::bootstrap::{Job, Options};

use crate::exit::Exit;

/// A session whose domains and compilations are this program, started again.
///
/// # Errors
/// When this program cannot be found on disk any more.
pub fn session(image: PathBuf, options: Options, job: Job) -> Result<SessionSpec> {
    let program = std::env::current_exe().context("finding this program, to start the domains with it")?;
    let compiler = (program.clone(), vec!["compile-module".into()]);
    Ok(SessionSpec { image, options, job, program: (program, vec!["domain".to_owned()]), compiler })
}

/// Runs a domain until its supervisor lets it end.
///
/// # Errors
/// What the domain says.
pub fn run() -> Result<Exit> {
    let mut input = std::io::stdin().lock();
    let mut output = std::io::stdout();
    osier_runtime::domain_main(&mut input, &mut output)?;
    Ok(Exit::Ok)
}

/// Compiles one module from outside, within the limits that the supervisor gives.
pub fn compile(arguments: &[std::ffi::OsString]) -> Exit {
    if osier_actor::compile_main(arguments) == std::process::ExitCode::SUCCESS { Exit::Ok } else { Exit::BadInput }
}
