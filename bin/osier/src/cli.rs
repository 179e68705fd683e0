//! What can be said on the command line. A new command group is a variant here and a file under
//! `commands/`, which holds its arguments and its work.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::{commands, exit};

/// A software-defined, programmable CXL SSD
///
/// Osier turns memory, files and ordinary drives into one device whose computation on the I/O path can
/// move between the host and the device while requests are in flight.
#[derive(Debug, Parser)]
#[command(name = "osier", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_long_help = exit::help(), after_help = "`osier --help` lists the exit codes.")]
#[command(disable_help_subcommand = true)]
pub struct Cli {
    /// What every command understands.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options of every command.
#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Where devices named without a path are kept
    ///
    /// By default $XDG_DATA_HOME/osier, or ~/.local/share/osier.
    #[arg(long, global = true, value_name = "DIR", env = "OSIER_HOME")]
    pub home: Option<PathBuf>,
    /// The configuration file
    ///
    /// By default $XDG_CONFIG_HOME/osier/config.toml, or ~/.config/osier/config.toml, if it exists.
    #[arg(long, global = true, value_name = "FILE", env = "OSIER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print JSON, for programs
    ///
    /// Results go to standard output, an error as one object to standard error. Sizes are in bytes, times
    /// in seconds since 1970.
    #[arg(long, global = true)]
    pub json: bool,
}

/// The command groups.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make, list, examine, check and remove device images
    #[command(subcommand)]
    Device(commands::device::DeviceCommand),
    /// Show the main job: real files, moving actors, every byte proven
    Demo(commands::demo::DemoArgs),
    /// Bring a device up and keep it up
    Serve(commands::serve::ServeArgs),
    /// Serve a running device over NBD
    Nbd(commands::nbd::NbdArgs),
    /// Serve a running device over NVMe/TCP
    NvmeTcp(commands::nvme_tcp::NvmeTcpArgs),
    /// Make a running device a disk of virtual machines
    VhostUserBlk(commands::vhost_user_blk::VhostUserBlkArgs),
    /// Show a device to a browser and to Prometheus
    Dashboard(commands::dashboard::DashboardArgs),
    /// Mount a running device as a file system
    Mount(commands::mount::MountArgs),
    /// Check a device's file system
    Fsck(commands::mount::FsckArgs),
    /// Serve a device's memory to programs
    #[command(subcommand)]
    Window(commands::window::WindowCommand),
    /// Run a program with its heap in a device's memory
    Run(commands::run::RunArgs),
    /// Run a machine with part of its memory in a device's memory
    Vm(commands::vm::VmArgs),
    /// Watch a device that is up
    Top(commands::top::TopArgs),
    /// List and move the actors of a running device
    #[command(subcommand)]
    Actor(commands::actor::ActorCommand),
    /// List policies, record the samples of a run, evaluate a policy on them
    #[command(subcommand)]
    Sched(commands::sched::SchedCommand),
    /// Replay a recorded device core in virtual time and compare every output
    Replay(commands::replay::ReplayArgs),
    /// Reproduce a published figure
    #[command(subcommand)]
    Exp(commands::exp::ExpCommand),
    /// Simulate the flash under power cuts, rot and dead dies
    #[command(subcommand)]
    Fault(commands::fault::FaultCommand),
    /// Simulate a grid of parameters on all processors
    Sweep(commands::sweep::SweepArgs),
    /// Examine, convert and make traces of requests
    #[command(subcommand)]
    Trace(commands::trace::TraceCommand),
    /// Simulate a device under a workload or a trace
    Sim(commands::sim::SimArgs),
    /// Try eviction policies of the DRAM cache on traces
    #[command(subcommand)]
    Cache(commands::cache::CacheCommand),
    /// Check a device under random traffic, forced migrations and planned deaths
    Soak(commands::soak::SoakArgs),
    /// Run one domain; started by the supervisor
    #[command(hide = true)]
    Domain,
    /// Compile one module from outside; started by the supervisor
    #[command(hide = true)]
    CompileModule {
        /// What the supervisor says.
        arguments: Vec<std::ffi::OsString>,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    const MANUAL: &str = include_str!("../../../docs/cli.md");

    /// Every command and option that help shows is in the manual, so that neither goes without the other.
    fn check_manual(command: &clap::Command, path: &str) {
        for option in command.get_arguments().filter(|option| !option.is_hide_set() && !option.is_global_set()) {
            let Some(long) = option.get_long().filter(|long| !matches!(*long, "help" | "version")) else { continue };
            assert!(MANUAL.contains(&format!("--{long}")), "docs/cli.md lacks `{path} --{long}`");
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            let path = format!("{path} {}", inner.get_name());
            assert!(MANUAL.contains(&path), "docs/cli.md lacks `{path}`");
            check_manual(inner, &path);
        }
    }

    #[test]
    fn the_manual_names_every_command_and_option() {
        let command = Cli::command();
        command.clone().debug_assert();
        check_manual(&command, "osier");
    }
}
