//! The front ends that `osier serve` brings up beside a device: processes of their own, this program started again,
//! watched and restarted.
//!
//! A front end may be killed at any time: what it had acknowledged is the device's, and its clients come back to the
//! next one. One that ends in order was told to by somebody, and stays ended.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use osier_front::ListenError;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use crate::exit::{Exit, Failure};
use crate::output::tell;
use crate::signals::StopFlag;

/// Says to a front end whose it is: the process to die with.
const OF: &str = "OSIER_FRONT_OF";
/// One that ends by itself within that time of its first start could not do what it was asked to.
const FIRST: Duration = Duration::from_secs(2);
/// Before a restart: at first, and after many.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];
/// One that was up for so long is restarted as if for the first time.
const LONG: Duration = Duration::from_secs(60);
/// Between two looks of a front end whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);
/// How long they may take to stop together before they are killed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which front ends to bring up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Front ends")]
pub struct FrontsArgs {
    /// Serve NBD at this address, such as 127.0.0.1:10809, or at a Unix socket of this path; may be repeated
    #[arg(long, value_name = "ADDRESS:PORT|PATH")]
    pub nbd: Vec<String>,
    /// Speak TLS alone at NBD's addresses, with the certificates in this directory, to clients that show one of the
    /// same authority
    #[arg(long, value_name = "DIR")]
    pub nbd_tls_certificates: Option<PathBuf>,
    /// Serve NVMe/TCP at this address, such as 127.0.0.1:4420
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub nvme_tcp: Option<SocketAddr>,
    /// Be a disk of virtual machines (vhost-user-blk) at a Unix socket of this path
    #[arg(long, value_name = "PATH")]
    pub vhost_user_blk: Option<PathBuf>,
    /// Mount the device's file system at this directory
    #[arg(long, value_name = "DIR")]
    pub mount: Option<PathBuf>,
    /// Show the dashboard and metrics at this address, such as 127.0.0.1:9630
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub dashboard: Option<SocketAddr>,
    /// Let front ends listen at addresses that other machines reach though clients prove nothing
    #[arg(long)]
    pub allow_remote: bool,
}

impl FrontsArgs {
    /// What is said on the command line goes before the configuration, kind by kind.
    pub fn or(self, configured: &FrontsArgs) -> FrontsArgs {
        FrontsArgs {
            nbd: if self.nbd.is_empty() { configured.nbd.clone() } else { self.nbd },
            nbd_tls_certificates: self.nbd_tls_certificates.or_else(|| configured.nbd_tls_certificates.clone()),
            nvme_tcp: self.nvme_tcp.or(configured.nvme_tcp),
            vhost_user_blk: self.vhost_user_blk.or_else(|| configured.vhost_user_blk.clone()),
            mount: self.mount.or_else(|| configured.mount.clone()),
            dashboard: self.dashboard.or(configured.dashboard),
            allow_remote: self.allow_remote || configured.allow_remote,
        }
    }

    /// Each as this program's arguments.
    fn commands(&self, image: &Path) -> Vec<Vec<OsString>> {
        let mut commands: Vec<Vec<OsString>> = Vec::new();
        let mut add = |command: &str, option: &str, place: &str, proof: Option<(&str, &PathBuf)>| {
            let mut words: Vec<OsString> = vec![command.into(), image.into(), option.into(), place.into()];
            if let Some((option, path)) = proof {
                words.extend([option.into(), path.into()]);
            }
            if self.allow_remote {
                words.push("--allow-remote".into());
            }
            commands.push(words);
        };
        for place in &self.nbd {
            let is_address = place.parse::<SocketAddr>().is_ok();
            // A Unix socket's directory says who reaches it.
            let certificates = self.nbd_tls_certificates.as_ref().filter(|_| is_address);
            let option = if is_address { "--listen" } else { "--unix" };
            add("nbd", option, place, certificates.map(|directory| ("--tls-certificates", directory)));
        }
        for (command, address) in [("nvme-tcp", self.nvme_tcp), ("dashboard", self.dashboard)] {
            if let Some(address) = address {
                add(command, "--listen", &address.to_string(), None);
            }
        }
        if let Some(socket) = &self.vhost_user_blk {
            commands.push(vec!["vhost-user-blk".into(), image.into(), "--socket".into(), socket.into()]);
        }
        if let Some(directory) = &self.mount {
            commands.push(vec!["mount".into(), image.into(), directory.into(), "--foreground".into()]);
        }
        commands
    }

    /// Refuses what can only be a mistake: a place that is neither an address nor a path.
    ///
    /// # Errors
    /// Which, and what to write instead.
    pub fn check(&self) -> Result<()> {
        for place in &self.nbd {
            let is_address = place.parse::<SocketAddr>().is_ok();
            if !is_address && !place.contains('/') {
                let text = format!(
                    "cannot serve NBD at {place:?}: write an address with a port (127.0.0.1:10809), or a path with a \
                     slash (./{place})"
                );
                return Err(Failure::new(Exit::BadInput, text).into());
            }
        }
        Ok(())
    }
}

/// One front end.
struct Front {
    /// What people call it.
    name: String,
    arguments: Vec<OsString>,
    /// It runs, or it has ended in order.
    child: Option<Child>,
    started: Instant,
    starts: u32,
    pause: Duration,
    /// When it is started again.
    again: Option<Instant>,
}

/// The front ends of a device.
pub struct Fronts {
    program: PathBuf,
    fronts: Vec<Front>,
}

impl Fronts {
    /// Starts each.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(wanted: &FrontsArgs, image: &Path) -> Result<Fronts> {
        let program = std::env::current_exe().context("finding this program, to start front ends")?;
        let image = std::path::absolute(image).context("finding the image, to start front ends")?;
        // A mount's directory is its second word, the place of others the word behind their option.
        let place = |arguments: &[OsString]| if arguments[0] == "mount" { 2 } else { 3 };
        let front = |arguments: Vec<OsString>| Front {
            name: format!("{} {}", arguments[0].display(), arguments[place(&arguments)].display()),
            arguments,
            child: None,
            started: Instant::now(),
            starts: 0,
            pause: PAUSE[0],
            again: None,
        };
        let mut fronts = Fronts { program, fronts: wanted.commands(&image).into_iter().map(front).collect() };
        for at in 0..fronts.fronts.len() {
            fronts.spawn(at)?;
        }
        Ok(fronts)
    }

    fn spawn(&mut self, at: usize) -> Result<()> {
        let front = &mut self.fronts[at];
        let mut command = Command::new(&self.program);
        command
            .args(&front.arguments)
            .env(OF, std::process::id().to_string())
            // A terminal's Ctrl-C is for the supervisor, which stops them in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("starting the front end {}", front.name))?;
        front.child = Some(child);
        front.started = Instant::now();
        front.starts += 1;
        front.again = None;
        Ok(())
    }

    /// Looks whether one has ended, and starts it again when it is time to.
    ///
    /// # Errors
    /// One could not do what it was asked to at its first start: it has said why.
    pub fn watch(&mut self) -> Result<()> {
        for at in 0..self.fronts.len() {
            let front = &mut self.fronts[at];
            if let Some(child) = &mut front.child {
                let looked = child.try_wait().with_context(|| format!("watching the front end {}", front.name))?;
                if let Some(status) = looked {
                    front.child = None;
                    front.ended(status)?;
                }
            } else if front.again.is_some_and(|again| Instant::now() >= again) {
                self.spawn(at)?;
            }
        }
        Ok(())
    }

    /// Ends them all in order, and kills what does not end.
    pub fn stop(&mut self) {
        for front in &self.fronts {
            front.signal(Signal::TERM);
        }
        let until = Instant::now() + PATIENCE;
        for front in &mut self.fronts {
            let Some(mut child) = front.child.take() else { continue };
            while child.try_wait().is_ok_and(|ended| ended.is_none()) {
                if Instant::now() >= until {
                    tracing::warn!(front = %front.name, "a front end did not stop in time, and is killed");
                    // It may have ended meanwhile, which is what is wanted.
                    let _ = child.kill();
                    let _ = child.wait();
                    break;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Fronts {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Front {
    fn signal(&self, signal: Signal) {
        let pid = self.child.as_ref().and_then(|child| Pid::from_raw(child.id() as i32));
        if let Some(pid) = pid {
            // One that has ended is found by whoever waits for it.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    fn ended(&mut self, status: ExitStatus) -> Result<()> {
        let lived = self.started.elapsed();
        if status.success() {
            tell!("osier: the front end {} was ended, and stays so", self.name);
            return Ok(());
        }
        if self.starts == 1
            && lived < FIRST
            && let Some(code) = status.code()
        {
            let text = format!("the front end {} does not start; it has said why", self.name);
            return Err(Failure::new(Exit::of_code(code).unwrap_or(Exit::Failure), text).into());
        }
        if lived >= LONG {
            self.pause = PAUSE[0];
        }
        tell!("osier: the front end {} died ({status}), and is started again", self.name);
        self.again = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE[1]);
        Ok(())
    }
}

/// Of a front end's process: it ends when its supervisor does, whose successor brings up another one.
///
/// # Errors
/// What the system says.
pub fn tie_to_supervisor() -> Result<()> {
    let Ok(supervisor) = std::env::var(OF) else { return Ok(()) };
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .context("tying a front end to its supervisor")?;
    let parent = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().to_string());
    if parent.as_deref() != Some(supervisor.as_str()) {
        return Err(Failure::new(Exit::Failure, "the supervisor of this front end has gone").into());
    }
    Ok(())
}

/// Waits until it is told to stop.
pub fn await_stop(stop: &StopFlag) {
    await_stop_or(stop, || false);
}

/// Waits until it is told to stop, or has ended by itself.
pub fn await_stop_or(stop: &StopFlag, has_ended: impl Fn() -> bool) {
    while !stop.is_set() && !has_ended() {
        std::thread::sleep(LOOK);
    }
}

/// The exit code of a server that cannot listen.
pub fn code_of_listening(error: &ListenError) -> Exit {
    match error {
        ListenError::Remote { .. } | ListenError::Nowhere | ListenError::NoSocket(_) => Exit::BadInput,
        ListenError::PortTaken(_) | ListenError::SocketTaken(_) | ListenError::System { .. } => Exit::Failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_command_line_says_goes_before_the_configuration() {
        let configured = FrontsArgs {
            nbd: vec!["/run/d.nbd".into()],
            vhost_user_blk: Some("/run/d.vhost".into()),
            mount: Some("/mnt/e".into()),
            dashboard: Some(([127, 0, 0, 1], 1).into()),
            ..FrontsArgs::default()
        };
        let said = FrontsArgs { nbd: vec!["127.0.0.1:2".into()], ..FrontsArgs::default() };
        let both = said.or(&configured);
        assert_eq!((both.nbd, both.dashboard), (vec!["127.0.0.1:2".into()], configured.dashboard));
        assert_eq!((both.mount, both.vhost_user_blk), (configured.mount.clone(), configured.vhost_user_blk.clone()));
        assert_eq!(FrontsArgs::default().or(&configured), configured);
    }

    #[test]
    fn each_front_end_is_a_command_of_this_program() {
        let fronts = FrontsArgs {
            nbd: vec!["127.0.0.1:10809".into(), "/run/d.nbd".into()],
            nbd_tls_certificates: Some("/etc/pki/osier".into()),
            nvme_tcp: Some(([127, 0, 0, 1], 4420).into()),
            vhost_user_blk: Some("/run/d.vhost".into()),
            mount: Some("/mnt/d".into()),
            dashboard: Some(([127, 0, 0, 1], 9630).into()),
            allow_remote: true,
        };
        let commands = fronts.commands(Path::new("/d"));
        let text: Vec<String> =
            commands.iter().map(|words| words.join(std::ffi::OsStr::new(" ")).into_string().unwrap()).collect();
        let expected = [
            "nbd /d --listen 127.0.0.1:10809 --tls-certificates /etc/pki/osier --allow-remote",
            "nbd /d --unix /run/d.nbd --allow-remote",
            "nvme-tcp /d --listen 127.0.0.1:4420 --allow-remote",
            "dashboard /d --listen 127.0.0.1:9630 --allow-remote",
            "vhost-user-blk /d --socket /run/d.vhost",
            "mount /d /mnt/d --foreground",
        ];
        assert_eq!(text, expected);
        assert!(fronts.check().is_ok());
        assert!(FrontsArgs { nbd: vec!["10809".into()], ..FrontsArgs::default() }.check().is_err());
    }
}
