//! The command groups, one file each: its arguments as clap reads them, and its work.

pub mod actor;
pub mod cache;
pub mod dashboard;
pub mod demo;
pub mod device;
pub mod domain;
pub mod exp;
pub mod fault;
pub mod fronts;
pub mod mount;
pub mod nbd;
pub mod nvme_tcp;
pub mod replay;
pub mod run;
pub mod sched;
pub mod serve;
pub mod sim;
pub mod soak;
pub mod sweep;
pub mod top;
pub mod trace;
pub mod vhost_user_blk;
pub mod vm;
pub mod window;

use std::path::PathBuf;

use osier_runtime::bootstrap::Placement;

use crate::cli::{Command, Global};
use crate::config::Config;
use crate::exit::{Exit, Failure};
use crate::home;

/// Where actors are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PlacementArg {
    /// All on the host; only `osier actor move` moves them
    Host,
    /// All on the device; only `osier actor move` moves them
    Device,
    /// On the device at the start, then where the policy wants them
    Adaptive,
}

impl From<PlacementArg> for Placement {
    fn from(arg: PlacementArg) -> Self {
        match arg {
            PlacementArg::Host => Self::Host,
            PlacementArg::Device => Self::Device,
            PlacementArg::Adaptive => Self::Adaptive,
        }
    }
}

/// What every command is given beside its own arguments.
#[derive(Debug)]
pub struct Context {
    /// The home of devices that are named without a path.
    pub home: PathBuf,
    /// Whether to print JSON.
    pub json: bool,
    /// The configuration file's content.
    pub config: Config,
}

impl Context {
    /// Joins command line, environment, configuration and defaults, in this order.
    ///
    /// # Errors
    /// When no home is named and the environment has none.
    pub fn new(global: &Global, config: Config) -> Result<Self, Failure> {
        let named = global.home.clone().or_else(|| config.home.clone());
        let home = named.or_else(home::default_home).ok_or_else(|| {
            let text = "there is no place for devices: HOME is not set; name one with --home or OSIER_HOME";
            Failure::new(Exit::BadInput, text)
        })?;
        Ok(Self { home, json: global.json, config })
    }

    /// The image that a word on the command line means.
    ///
    /// # Errors
    /// When it cannot be the name of one.
    pub fn image_path(&self, device: &str) -> Result<PathBuf, Failure> {
        home::image_path(&self.home, device)
    }
}

/// A key of a profile and what it is set to.
fn parse_setting(text: &str) -> Result<(String, toml::Value), String> {
    osier_device::profile::parse_override(text).map_err(|error| error.to_string())
}

/// Does what was asked.
///
/// # Errors
/// What the command says; [`crate::exit::code_of`] knows the exit code.
pub fn run(command: Command, context: &Context) -> anyhow::Result<Exit> {
    match command {
        Command::Device(command) => device::run(command, context),
        Command::Demo(args) => demo::run(&args, context),
        Command::Serve(args) => serve::run(&args, context),
        Command::Nbd(args) => nbd::run(&args, context),
        Command::NvmeTcp(args) => nvme_tcp::run(&args, context),
        Command::VhostUserBlk(args) => vhost_user_blk::run(&args, context),
        Command::Dashboard(args) => dashboard::run(&args, context),
        Command::Mount(args) => mount::run(&args, context),
        Command::Fsck(args) => mount::fsck(&args, context),
        Command::Window(command) => window::run(&command, context),
        Command::Run(args) => run::run(&args, context),
        Command::Vm(args) => vm::run(&args, context),
        Command::Top(args) => top::run(&args, context),
        Command::Actor(command) => actor::run(&command, context),
        Command::Sched(command) => sched::run(command, context),
        Command::Replay(args) => replay::run(&args, context),
        Command::Exp(command) => exp::run(&command, context),
        Command::Fault(command) => fault::run(&command, context),
        Command::Sweep(args) => sweep::run(&args, context),
        Command::Trace(command) => trace::run(&command, context),
        Command::Sim(args) => sim::run(&args, context),
        Command::Cache(command) => cache::run(&command, context),
        Command::Soak(args) => soak::run(&args, context),
        Command::Domain => domain::run(),
        // Done before there is a context; see `main`.
        Command::CompileModule { arguments } => Ok(domain::compile(&arguments)),
    }
}
