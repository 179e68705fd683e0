//! Chores of the project that are more than a line of shell: `cargo xtask tidy|bench|evidence`.

mod bench;
mod demo;
mod evidence;
mod experiments;
mod files;
mod machine;
mod nbd;
mod tidy;
mod turns;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  tidy               check the sources against the rules that no compiler checks
  bench [FILTER]     run the benchmarks whose name contains FILTER; results in target/bench/
    --strict         end with an error when a bar is missed
  bench-demo         the demonstration as one of these benchmarks
  bench-exp          the experiments of the memory window as one of them
  bench-files        a mounted device beside libfuse's passthrough_hp and the disk, as one of them
  bench-nbd          a device behind NBD beside nbdkit and qemu-nbd, as one of them
  evidence [FILTER]  run the long jobs whose name contains FILTER; results in docs/evidence/
    --list           only say which there are, and which are done
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<ExitCode> {
    let root = root()?;
    let Some((command, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    match command.as_str() {
        "tidy" => tidy::run(&root),
        "bench" => bench::run(&root, &Options::parse(rest, "--strict")?),
        "bench-demo" => demo::run(),
        "bench-exp" => experiments::run(),
        "bench-files" => files::run(),
        "bench-nbd" => nbd::run(),
        "evidence" => evidence::run(&root, &Options::parse(rest, "--list")?),
        other => bail!("`{other}` is no command\n{USAGE}"),
    }
}

/// What `bench` and `evidence` understand: at most one filter and one switch.
#[derive(Debug, Default)]
struct Options {
    /// Only what has this in its name; everything when empty.
    filter: String,
    /// Whether the command's switch was given.
    switch: bool,
}

impl Options {
    fn parse(arguments: &[String], switch: &str) -> Result<Self> {
        let mut options = Self::default();
        for argument in arguments {
            if argument == switch {
                options.switch = true;
            } else if argument.starts_with('-') || !options.filter.is_empty() {
                bail!("`{argument}` was not expected\n{USAGE}");
            } else {
                options.filter.clone_from(argument);
            }
        }
        Ok(options)
    }
}

/// The workspace's directory: this crate's parent, so that the working directory does not matter.
fn root() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(here.parent().context("the xtask crate lies in the workspace")?.to_owned())
}
