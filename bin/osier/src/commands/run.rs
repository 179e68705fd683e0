//! `osier run`: an unmodified program whose heap lies in a device's window.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use osier_client::heap::{HEAP_MIN_BYTES, Settings, THRESHOLD_BYTES};

use super::Context;
use crate::exit::{Exit, Failure};
use crate::preloaded::{self, ModeArg};
use crate::units::parse_bytes;

/// Run a program with its heap in a device's memory
///
/// What it allocates, and its large anonymous mappings, are pages of the window; what is in the device's cache costs
/// what memory costs. Nothing is changed in the program. Start a device with `osier window serve`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The socket of the device
    #[arg(long, value_name = "SOCKET")]
    device: PathBuf,
    /// Who resolves faults
    #[arg(long, value_enum, default_value = "auto")]
    mode: ModeArg,
    /// Bytes of the window for the program's heap, a multiple of 32 MiB, 64 MiB at least [default: all]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    heap: Option<u64>,
    /// Anonymous mappings of so many bytes and more lie in the window
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value_t = THRESHOLD_BYTES)]
    threshold: u64,
    /// Allocations of fewer bytes stay in ordinary memory
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value_t = 0)]
    from_size: u64,
    /// Programs that the program starts have heaps in the window too
    ///
    /// Each has an eighth of it, unless `--heap` says otherwise.
    #[arg(long)]
    children: bool,
    /// Add the figures to this file at the end, instead of standard error
    #[arg(long, value_name = "FILE")]
    stats: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Becomes the program.
///
/// # Errors
/// What is missing: the device, a permission, the library, the program.
pub fn run(args: &RunArgs, context: &Context) -> Result<Exit> {
    let socket = fs::canonicalize(&args.device).unwrap_or_else(|_| args.device.clone());
    let mode = args.mode.mode();
    preloaded::check_window(&socket, mode, "a heap", HEAP_MIN_BYTES, args.heap)?;
    let name = &args.program[0];
    let program = preloaded::find(name).ok_or_else(|| {
        Failure::new(Exit::BadInput, format!("there is no program {} on the PATH", Path::new(name).display()))
    })?;
    let settings = Settings {
        socket,
        heap_bytes: args.heap,
        threshold_bytes: args.threshold,
        small_bytes: args.from_size,
        mode,
        stats: args.stats.as_deref().map(std::path::absolute).transpose()?,
        json: context.json,
        children: args.children,
        stand_in: None,
    };
    preloaded::become_program(&program, name, &args.program[1..], &settings)
}
