//! The supervisor: owns the image, starts the two domains, watches them by pidfd, and brings back the one
//! that dies.
//!
//! A recovery, by its steps, each of which may itself be cut short by another death and begins again then:
//!
//! 1. The kernel says that a domain is dead (its pidfd became readable; never a time-out).
//! 2. The epoch rises. The domain that lives parks: the device finishes what its core has begun and
//!    publishes the committed cursors; the host stops. Neither touches a ring.
//! 3. The owner records are resolved by the rules of `osier_domain::migrate`, and both rings are emptied.
//! 4. The dead domain is started again; it takes the epoch and says that it is ready.
//! 5. `go` is set to the epoch. Both rebuild their actors; the host replays what was not committed.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use osier_domain::migrate::{self, Resolution};
use osier_domain::{ActorId, Side};
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags};
use zeroize::Zeroizing;

use crate::bootstrap::{Bootstrap, Event, Job, Options};
use crate::error::RuntimeError;
use crate::setup::{Prepared, Setup};

/// Deaths within one minute after which the supervisor gives up: something kills domains faster than they recover.
const DEATHS_PER_MINUTE_MAX: usize = 20;
/// How long a domain may take to park or to become ready before it is killed.
const PATIENCE: Duration = Duration::from_secs(30);
/// Both domains.
const BOTH: [Side; 2] = [Side::Host, Side::Device];
/// Between two looks at words that no descriptor announces.
const LOOK: Duration = Duration::from_millis(1);

/// What a session is made of.
pub struct SessionSpec {
    /// The image's directory.
    pub image: PathBuf,
    /// How to run.
    pub options: Options,
    /// What the host's client does.
    pub job: Job,
    /// The program to start as a domain, and its first arguments.
    pub program: (PathBuf, Vec<String>),
    /// The program to start for compiling modules from outside, and its first arguments.
    pub compiler: (PathBuf, Vec<OsString>),
}

/// A death and what came of it.
#[derive(Debug, Clone)]
pub struct Death {
    /// Who died.
    pub side: Side,
    /// How, in the system's words.
    pub how: String,
    /// What happened to each actor.
    pub resolutions: Vec<Resolution>,
    /// From the death to the first moment both serve again.
    pub recovery: Duration,
}

struct Domain {
    child: Child,
    pidfd: OwnedFd,
}

/// A device that is up.
pub struct Session {
    spec: SessionSpec,
    prepared: Prepared,
    domains: [Option<Domain>; 2],
    events: Receiver<Event>,
    sender: std::sync::mpsc::Sender<Event>,
    deaths: Vec<Death>,
    death_times: Vec<Instant>,
    crash_done: bool,
}

impl Session {
    /// Brings the device up: takes the image's lock, prepares the shared region, starts both domains.
    pub fn start(spec: SessionSpec) -> Result<Session, RuntimeError> {
        let prepared = Prepared::open(&spec.image, &spec.options, &spec.job, &spec.compiler)?;
        let (sender, events) = channel();
        let mut session = Session {
            spec,
            prepared,
            domains: [None, None],
            events,
            sender,
            deaths: Vec::new(),
            death_times: Vec::new(),
            crash_done: false,
        };
        // The first epoch is 1: a fresh control object says 0 everywhere, which must not look like readiness.
        session.setup().control.raise_epoch();
        session.bring_up([false, false])?;
        Ok(session)
    }

    /// The shared region and control words.
    pub fn setup(&self) -> &Setup {
        &self.prepared.setup
    }

    /// What died so far.
    pub fn deaths(&self) -> &[Death] {
        &self.deaths
    }

    /// Watches until the caller says that it is enough: it is handed every event, and `None` some fifty times
    /// a second.
    pub fn watch(&mut self, mut on_event: impl FnMut(&Session, Option<&Event>) -> Watch) -> Result<(), RuntimeError> {
        loop {
            while let Ok(event) = self.events.try_recv() {
                if on_event(self, Some(&event)) == Watch::End {
                    return Ok(());
                }
            }
            if on_event(self, None) == Watch::End {
                return Ok(());
            }
            if let Some(side) = self.dead(&BOTH, Duration::from_millis(20))? {
                self.recover(side)?;
            }
        }
    }

    /// Stops both domains in order: the host first, then the device, which drains its write buffer.
    ///
    /// # Errors
    /// [`RuntimeError::NotStopped`] if one had to be killed, or ended in another way than by itself.
    pub fn stop(mut self) -> Result<Vec<Death>, RuntimeError> {
        self.setup().check_region()?;
        self.setup().control.stop();
        let patience = Duration::from_secs(self.spec.options.stop_patience_s);
        let mut unfinished = None;
        for side in [Side::Host, Side::Device] {
            let Some(mut domain) = self.domains[side as usize].take() else { continue };
            let (status, killed) = wait_or_kill(&mut domain, patience)?;
            // Before it is said how it ended: this may be what it died of.
            self.setup().check_region()?;
            if !status.success() {
                let how = if killed { format!("not within {patience:?}, and was killed") } else { status.to_string() };
                let undone = self.undone(side);
                let error = RuntimeError::NotStopped { side, how, undone };
                tracing::warn!(%error, "the device is stopped all the same");
                unfinished.get_or_insert(error);
            }
        }
        self.prepared.close()?;
        unfinished.map_or(Ok(std::mem::take(&mut self.deaths)), Err)
    }

    /// What a domain that did not stop in order has left undone.
    fn undone(&self, side: Side) -> &'static str {
        match side {
            Side::Host => "requests in flight were not completed; the next start takes them up",
            Side::Device if self.setup().media_outlive_their_process() => {
                "completed data that had not reached the media lie in the memory region; the next start takes them up"
            }
            Side::Device => "the media were in its memory or none, as always when it stops",
        }
    }

    /// Which of these domains has died, if one does within `patience`.
    fn dead(&mut self, of: &[Side], patience: Duration) -> Result<Option<Side>, RuntimeError> {
        let alive: Vec<Side> = of.iter().copied().filter(|s| self.domains[*s as usize].is_some()).collect();
        let mut fds: Vec<PollFd<'_>> = alive
            .iter()
            .filter_map(|side| self.domains[*side as usize].as_ref())
            .map(|domain| PollFd::from_borrowed_fd(domain.pidfd.as_fd(), PollFlags::IN))
            .collect();
        let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
        match rustix::event::poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(RuntimeError::System { what: "watch the domains", source: error.into() }),
        }
        let found = fds.iter().position(|fd| !fd.revents().is_empty());
        // Before anything in the region is touched because of a death: this may be what it died of.
        self.setup().check_region()?;
        Ok(found.map(|index| alive[index]))
    }

    fn recover(&mut self, dead: Side) -> Result<(), RuntimeError> {
        let begin = Instant::now();
        let (mut side, (mut how, _)) = (dead, self.bury(dead)?);
        loop {
            self.note_death(side, &how)?;
            let mut alive = [Side::Host, Side::Device].map(|side| self.domains[side as usize].is_some());
            let resolutions = self.settle(&mut alive)?;
            match self.bring_up(alive) {
                Ok(()) => {
                    self.deaths.push(Death { side, how, resolutions, recovery: begin.elapsed() });
                    return Ok(());
                }
                // Killed while it started: a death as any other, and recovery begins again. One that ended by
                // itself has said why, and would again.
                Err(RuntimeError::DoesNotStart { side: next, how: next_how, code: None }) => {
                    self.deaths.push(Death { side, how, resolutions, recovery: begin.elapsed() });
                    (side, how) = (next, next_how);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Refuses to go on when domains die too often, or with what cannot be recovered.
    fn note_death(&mut self, side: Side, how: &str) -> Result<(), RuntimeError> {
        self.death_times.retain(|t| t.elapsed() < Duration::from_secs(60));
        self.death_times.push(Instant::now());
        if self.death_times.len() > DEATHS_PER_MINUTE_MAX {
            return Err(RuntimeError::DiesTooOften { side, how: how.to_owned() });
        }
        tracing::warn!(%side, %how, "a domain died; recovering");
        if side == Side::Device && !self.setup().media_outlive_their_process() {
            return Err(RuntimeError::MediaLost { how: how.to_owned() });
        }
        Ok(())
    }

    /// Collects a dead domain; how it died, and with which exit code if it ended by itself.
    fn bury(&mut self, side: Side) -> Result<(String, Option<i32>), RuntimeError> {
        let Some(mut domain) = self.domains[side as usize].take() else { return Ok(("not running".into(), None)) };
        let status =
            domain.child.wait().map_err(|source| RuntimeError::System { what: "collect a dead domain", source })?;
        self.crash_done |= self.spec.options.crash.is_some_and(|c| c.device == (side == Side::Device));
        Ok((status.to_string(), status.code()))
    }

    /// Raises the epoch, waits for the living to park (or to die too), and resolves all owner records.
    fn settle(&mut self, alive: &mut [bool; 2]) -> Result<Vec<Resolution>, RuntimeError> {
        let control = self.setup().control.clone();
        let epoch = control.raise_epoch();
        for side in [Side::Host, Side::Device] {
            let began = Instant::now();
            while alive[side as usize] && control.parked(side) != epoch {
                if self.dead(&[side], LOOK)?.is_some() || began.elapsed() > PATIENCE {
                    self.kill(side);
                    self.bury(side)?;
                    alive[side as usize] = false;
                }
            }
        }
        control.set_alive(*alive);
        let setup = self.setup();
        let resolve = |actor| migrate::resolve(&setup.record(actor), *alive, setup.defaults[usize::from(actor.0)]);
        let resolutions = (0..setup.defaults.len() as u16).map(|a| resolve(ActorId(a))).collect();
        Ok(resolutions)
    }

    /// Empties the rings, starts whoever is not alive, and lets both serve.
    fn bring_up(&mut self, alive: [bool; 2]) -> Result<(), RuntimeError> {
        let control = self.setup().control.clone();
        control.set_alive(alive);
        let epoch = control.epoch();
        self.setup().format_links(epoch)?;
        // The device first: it publishes the cursors that the host's replay begins from.
        for side in [Side::Device, Side::Host] {
            if !alive[side as usize] {
                self.spawn(side, epoch)?;
            }
            let began = Instant::now();
            while control.ready(side) != epoch {
                // Either: one that was alive may die while the other one starts.
                if let Some(side) = self.dead(&BOTH, LOOK)? {
                    let (how, code) = self.bury(side)?;
                    return Err(RuntimeError::DoesNotStart { side, how, code });
                }
                if began.elapsed() > PATIENCE {
                    self.kill(side);
                    self.bury(side)?;
                    return Err(RuntimeError::DoesNotStart {
                        side,
                        how: "it was not ready in time".into(),
                        code: None,
                    });
                }
            }
        }
        control.set_go(epoch);
        Ok(())
    }

    fn spawn(&mut self, side: Side, epoch: u64) -> Result<(), RuntimeError> {
        let mut options = self.spec.options.clone();
        if self.crash_done {
            options.crash = None;
        }
        let bootstrap = Bootstrap {
            device: side == Side::Device,
            image: self.spec.image.clone(),
            epoch,
            incarnation: self.prepared.next_incarnation()?,
            options,
            key_ring: self.prepared.keys().iter().map(|b| format!("{b:02x}")).collect(),
            job: self.spec.job.clone(),
        };
        let spawn = |source| RuntimeError::System { what: "start a domain process", source };
        let (program, arguments) = &self.spec.program;
        let mut child = Command::new(program)
            .args(arguments)
            // A terminal's Ctrl-C is for the supervisor, which stops its domains in order.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(if side == Side::Host { Stdio::piped() } else { Stdio::null() })
            .spawn()
            .map_err(spawn)?;
        let pid = child.id();
        let pidfd = Pid::from_raw(pid as i32)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|error| spawn(error.into()))?;
        let mut text = Zeroizing::new(serde_json::to_vec(&bootstrap).map_err(|e| spawn(e.into()))?);
        text.push(b'\n');
        if let Some(mut stdin) = child.stdin.take() {
            // A domain that died at once is found by its pidfd.
            let _ = stdin.write_all(&text);
        }
        if let Some(stdout) = child.stdout.take() {
            self.listen(stdout);
        }
        self.setup().control.set_pid(side, pid);
        self.domains[side as usize] = Some(Domain { child, pidfd });
        Ok(())
    }

    /// Hands a host's events on until it ends.
    fn listen(&self, stdout: std::process::ChildStdout) {
        let sender = self.sender.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                match serde_json::from_str(&line) {
                    Ok(event) => {
                        if sender.send(event).is_err() {
                            return;
                        }
                    }
                    // A line cut short by a death.
                    Err(error) => tracing::debug!(%error, "the host said something that is no event"),
                }
            }
        });
    }

    fn kill(&mut self, side: Side) {
        if let Some(domain) = &mut self.domains[side as usize] {
            // It may have ended meanwhile, which is what is wanted.
            let _ = domain.child.kill();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for side in [Side::Host, Side::Device] {
            self.kill(side);
            if let Some(mut domain) = self.domains[side as usize].take() {
                let _ = domain.child.wait();
            }
        }
    }
}

/// Whether to go on watching.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// Go on.
    On,
    /// It is enough.
    End,
}

/// How it ended, and whether that took a kill.
fn wait_or_kill(domain: &mut Domain, patience: Duration) -> Result<(std::process::ExitStatus, bool), RuntimeError> {
    let collect = |source| RuntimeError::System { what: "wait for a domain to end", source };
    let began = Instant::now();
    while began.elapsed() < patience {
        if let Some(status) = domain.child.try_wait().map_err(collect)? {
            return Ok((status, false));
        }
        std::thread::sleep(LOOK);
    }
    domain.child.kill().map_err(collect)?;
    Ok((domain.child.wait().map_err(collect)?, true))
}

/// Reads the bootstrap from standard input, ties this process's life to its parent's, and runs the domain.
///
/// The caller is the program that [`SessionSpec::program`] names, started with those arguments.
pub fn domain_main(input: &mut dyn BufRead, output: &mut dyn Write) -> Result<(), RuntimeError> {
    let parent = rustix::process::getppid();
    // An orphan would go on owning rings that a new supervisor formats.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| RuntimeError::System { what: "tie a domain to its supervisor", source: error.into() })?;
    if rustix::process::getppid() != parent {
        return Ok(());
    }
    let mut text = Zeroizing::new(String::new());
    input
        .read_line(&mut text)
        .map_err(|source| RuntimeError::System { what: "read what the supervisor says", source })?;
    let bootstrap: Bootstrap = serde_json::from_str(&text)
        .map_err(|e| RuntimeError::System { what: "read what the supervisor says", source: e.into() })?;
    bind(&bootstrap);
    // Timed sleeps otherwise end up to 50 microseconds late, which is as long as a chunk.
    if let Err(error) = osier_pmr::set_timer_slack(1) {
        tracing::debug!(%error, "sleeps may end late");
    }
    match bootstrap.side() {
        Side::Device => crate::firmware::run(&bootstrap),
        Side::Host => crate::host::run(&bootstrap, &mut |event| {
            if let Ok(line) = serde_json::to_string(event) {
                // Nobody listens any more: the supervisor is ending, and will say so by the control words.
                let _ = writeln!(output, "{line}").and_then(|()| output.flush());
            }
        }),
    }
}

fn bind(bootstrap: &Bootstrap) {
    let Some(cpus) = bootstrap.options.cpus else { return };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpus[bootstrap.side() as usize]);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::warn!(%error, "cannot bind the {} domain to its processor", bootstrap.side());
    }
}
