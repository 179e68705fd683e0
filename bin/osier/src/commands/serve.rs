//! `osier serve`: brings a device up and keeps it up.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use osier_runtime::bootstrap::{Event, Job, Options, STOP_PATIENCE_S};
use osier_runtime::clients::{self, ClientsSpec};
use osier_runtime::create::DEFAULT_PIPELINE;
use osier_runtime::{RecordCore, Session, Watch};

use super::fronts::{Fronts, FrontsArgs};
use super::{Context, PlacementArg};
use crate::exit::Exit;
use crate::output::tell;
use crate::{home, notify};

/// Bring a device up and keep it up until SIGINT or SIGTERM
///
/// The host's and the device's domain are started as two processes, watched, and recovered if one dies. Other
/// commands (`osier actor`, `osier device show`) speak to the running device. Front ends are processes too, started
/// again when they are killed. What the configuration file says of this device is added: `[serve.NAME]`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// The device: a name in the home, or a path
    pub device: String,
    /// The pipeline that clients' writes go through; `none` for none [default: main, if the device has it]
    #[arg(long)]
    pub pipeline: Option<String>,
    /// Let clients read only
    #[arg(long)]
    pub read_only: bool,
    #[command(flatten)]
    pub fronts: FrontsArgs,
    #[command(flatten)]
    pub run: RunArgs,
}

/// How a session runs.
#[derive(Debug, Args)]
#[command(next_help_heading = "How it runs")]
pub struct RunArgs {
    /// Where the actors are
    #[arg(long, value_enum, default_value_t = PlacementArg::Adaptive)]
    pub placement: PlacementArg,
    /// The policy of adaptive placement
    #[arg(long, default_value = osier_sched::DEFAULT_POLICY)]
    pub policy: String,
    /// Let everything take as long as it takes, not as long as the model says
    #[arg(long)]
    pub no_model_timing: bool,
    /// How the host waits when idle: poll, umwait, futex, hybrid or hybrid:NANOSECONDS
    #[arg(long, default_value = "hybrid")]
    pub host_wait: String,
    /// How the device waits when idle
    #[arg(long, default_value = "hybrid")]
    pub device_wait: String,
    /// Bind host and device to these processors
    #[arg(long, value_name = "HOST,DEVICE", value_parser = parse_cpus)]
    pub cpus: Option<[usize; 2]>,
    /// Divide the profile's rates by this, and multiply its energies
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub rate_divisor: u32,
    /// Let the temperature change so many times faster
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub thermal_time_scale: u32,
    /// Write the scheduler's samples to this file, for `osier sched replay`
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Write every input of the device core to this file, for `osier replay`
    #[arg(long, value_name = "FILE")]
    pub record_core: Option<PathBuf>,
    /// Let the device wait where the disk takes less than that, instead of ending the recording
    #[arg(long, requires = "record_core")]
    pub record_core_wait: bool,
    /// How long each side may take to stop before it is killed, which ends with an error
    #[arg(long, value_name = "SECONDS", default_value_t = STOP_PATIENCE_S)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub stop_patience: u64,
}

fn parse_cpus(text: &str) -> Result<[usize; 2], String> {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = |word: &str| word.trim().parse().ok().filter(|cpu| *cpu < count);
    let cpus = text.split_once(',').and_then(|(host, device)| Some([cpu(host)?, cpu(device)?]));
    cpus.ok_or_else(|| format!("write two processors of this machine's {count}, such as 0,{}", count - 1))
}

impl RunArgs {
    /// As the runtime takes them.
    pub fn options(&self) -> Options {
        Options {
            placement: self.placement.into(),
            policy: self.policy.clone(),
            model_timing: !self.no_model_timing,
            host_wait: self.host_wait.clone(),
            device_wait: self.device_wait.clone(),
            cpus: self.cpus,
            rate_divisor: self.rate_divisor,
            thermal_time_scale: self.thermal_time_scale,
            record: self.record.clone(),
            record_core: self.record_core.clone().map(|path| RecordCore { path, wait: self.record_core_wait }),
            stop_patience_s: self.stop_patience,
            ..Options::default()
        }
    }
}

/// The tag of a pipeline by its name; 0 is none.
fn tag(image: &Path, name: Option<&str>) -> Result<u32> {
    match name {
        Some("none") => Ok(0),
        Some(name) => Ok(osier_runtime::create::current_tag(image, name)?.0),
        None => Ok(osier_runtime::create::current_tag(image, DEFAULT_PIPELINE).map_or(0, |tag| tag.0)),
    }
}

/// Serves until it is told to stop.
///
/// # Errors
/// What the session says.
pub fn run(args: &ServeArgs, context: &Context) -> Result<Exit> {
    let image = context.image_path(&args.device)?;
    let configured = context.config.serve.get(&home::name_of(&image)).cloned().unwrap_or_default();
    let wanted = args.fronts.clone().or(&configured.fronts);
    wanted.check()?;
    let pipeline = args.pipeline.as_deref().or(configured.pipeline.as_deref());
    let clients = ClientsSpec {
        socket: clients::socket(&image),
        tag: tag(&image, pipeline)?,
        is_read_only: args.read_only || configured.read_only,
    };
    let spec = super::domain::session(image.clone(), args.run.options(), Job::Clients(clients))?;
    let stop = crate::signals::stop_flag()?;
    let mut session = Session::start(spec)?;
    tell!("osier: {} is up; completed data {}", args.device, session.setup().survival()?);
    let mut fronts = Fronts::start(&wanted, &image)?;
    notify::ready();
    let mut refused = None;
    session.watch(|_, event| {
        if let Some(Event::Notice { text }) = event {
            tell!("osier: {text}");
        }
        refused = fronts.watch().err();
        if refused.is_some() || stop.is_set() { Watch::End } else { Watch::On }
    })?;
    notify::stopping();
    // Before the device: what their clients have under way is finished.
    fronts.stop();
    for death in session.deaths() {
        tell!("osier: the {} domain died ({}) and was recovered in {:?}", death.side, death.how, death.recovery);
    }
    session.stop()?;
    refused.map_or(Ok(Exit::Ok), Err)
}
