//! `osier domain`: what the supervisor starts twice. Not for people.

use std::ffi::OsString;
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
    let compiler = compiler()?;
    let program = (compiler.0.clone(), vec!["domain".to_owned()]);
    Ok(SessionSpec { image, options, job, program, compiler })
}

/// What compiles a module: this program, started again.
///
/// # Errors
/// When this program cannot be found on disk any more.
pub fn compiler() -> Result<(PathBuf, Vec<OsString>)> {
    let program = std::env::current_exe().context("finding this program, to start it again")?;
    Ok((program, vec!["compile-module".into()]))
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
pub fn compile(arguments: &[OsString]) -> Exit {
    if osier_actor::compile_main(arguments) == std::process::ExitCode::SUCCESS { Exit::Ok } else { Exit::BadInput }
}
