//! The command line and the daemon: it assembles the libraries, and keeps to itself what only a program
//! has: arguments, the configuration file, logging and exit codes.
//!
//! Standard output carries results, for people or with `--json` for programs; standard error carries logs
//! and errors. A command group is one file under `commands/`.

mod cli;
mod commands;
mod config;
mod exit;
mod home;
mod logging;
mod notify;
mod output;
mod policies;
mod preloaded;
mod profiles;
mod signals;
mod units;
mod whole_file;
mod workers;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let json = cli.global.json;
    match start(cli) {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error, json).into(),
    }
}

fn start(cli: cli::Cli) -> anyhow::Result<exit::Exit> {
    // It runs without the user's environment, and needs none.
    if let cli::Command::CompileModule { arguments } = &cli.command {
        return Ok(commands::domain::compile(arguments));
    }
    let config = config::load(cli.global.config.as_deref())?;
    logging::start(config.log.as_deref())?;
    if !matches!(cli.command, cli::Command::Domain) {
        let json = cli.global.json;
        osier_runtime::on_cut_region(move |error| exit::last_words(error, json));
    }
    let context = commands::Context::new(&cli.global, config)?;
    commands::run(cli.command, &context)
}
