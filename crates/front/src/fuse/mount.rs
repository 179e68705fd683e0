//! A file system at its place in the tree: its threads, its clock, its end.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use osier_fs::FileSystem;

use super::adapter::{Adapter, Search};

/// Between two looks whether the kernel has let go.
const LOOK: Duration = Duration::from_millis(10);

/// How a file system is mounted.
#[derive(Debug, Clone)]
pub struct MountConfig {
    /// What the list of mounts calls it.
    pub name: String,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// How long a change may wait to be persistent when nobody asks for it.
    pub commit_interval: Duration,
}

/// A mounted file system. Dropped, it is unmounted.
pub struct Mount {
    session: Option<BackgroundSession>,
    committer: Option<(Sender<()>, JoinHandle<()>)>,
    system: Arc<FileSystem>,
    place: PathBuf,
}

impl Mount {
    /// Mounts at a directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(system: Arc<FileSystem>, place: &Path, config: &MountConfig) -> io::Result<Mount> {
        let place = place.canonicalize()?;
        let is_root = rustix::process::geteuid().is_root();
        let mut options = vec![
            MountOption::FSName(config.name.clone()),
            MountOption::Subtype("osier".to_owned()),
            MountOption::DefaultPermissions,
        ];
        if is_root {
            options.extend([MountOption::Dev, MountOption::Suid]);
        }
        let mut fuse = Config::default();
        fuse.mount_options = options;
        // Without root the system's configuration has to allow others first (user_allow_other).
        fuse.acl = if is_root { SessionACL::All } else { SessionACL::Owner };
        fuse.n_threads = Some(config.threads);
        fuse.clone_fd = true;
        let (seeks, searches) = channel();
        let adapter = Adapter { system: Arc::clone(&system), seeks };
        let session = fuser::spawn_mount(adapter, &place, &fuse)?;
        let (searched, notifier) = (Arc::clone(&system), session.notifier());
        // It ends with the adapter.
        let search = move || searches.into_iter().for_each(|search: Search| search.run(&searched, &notifier));
        std::thread::Builder::new().name("search".to_owned()).spawn(search)?;
        let committer = commit_now_and_then(Arc::clone(&system), config.commit_interval)?;
        Ok(Mount { session: Some(session), committer: Some(committer), system, place })
    }

    /// Whether somebody has unmounted it.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.guard.is_finished())
    }

    /// Unmounts, and makes everything persistent. What is open stays usable; this waits until it is closed, and says so
    /// through `busy` first.
    ///
    /// # Errors
    /// What the system says, or that the last changes could not be made persistent.
    pub fn end(mut self, busy: impl FnOnce()) -> io::Result<()> {
        // Whatever happens from here on, this much is safe.
        self.system.commit()?;
        if let Some(session) = self.session.take() {
            match unmount(&self.place, libc::UMOUNT_NOFOLLOW) {
                _ if session.guard.is_finished() => std::mem::forget(session),
                Err(error) if error.raw_os_error() == Some(libc::EPERM) => session.umount_and_join()?,
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    busy();
                    unmount(&self.place, libc::MNT_DETACH)?;
                    wait_for(session);
                }
                // Where there is nothing to unmount somebody else has done it.
                _ => wait_for(session),
            }
        }
        self.stop_committer();
        // The next mount has nothing to do then.
        self.system.checkpoint()?;
        Ok(())
    }

    fn stop_committer(&mut self) {
        if let Some((stop, thread)) = self.committer.take() {
            drop(stop);
            // It has said what went wrong.
            let _ = thread.join();
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        match self.session.take() {
            Some(session) if session.guard.is_finished() => std::mem::forget(session),
            // Unmounts.
            session => drop(session),
        }
        self.stop_committer();
        if let Err(error) = self.system.commit() {
            tracing::error!(%error, "the last changes are lost");
        }
    }
}

/// Waits until the kernel asks for nothing any more.
fn wait_for(session: BackgroundSession) {
    while !session.guard.is_finished() {
        std::thread::sleep(LOOK);
    }
    // Dropped, it would unmount whatever is at the place by then.
    std::mem::forget(session);
}

/// Takes out of the tree what a process that died had mounted.
///
/// # Errors
/// What the system says; without root that is what `fusermount3` says.
pub fn take_out(place: &Path) -> io::Result<()> {
    match unmount(place, libc::MNT_DETACH) {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            let status = Command::new("fusermount3").args(["-u", "-z"]).arg(place).status()?;
            if status.success() { Ok(()) } else { Err(io::Error::other(format!("fusermount3 ended with {status}"))) }
        }
        done => done,
    }
}

fn unmount(place: &Path, flags: libc::c_int) -> io::Result<()> {
    let path = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: the path is a string that lives as long as the call.
    let done = unsafe { libc::umount2(path.as_ptr(), flags) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn commit_now_and_then(system: Arc<FileSystem>, interval: Duration) -> io::Result<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = channel::<()>();
    let work = move || {
        while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
            if system.is_dirty()
                && let Err(error) = system.commit()
            {
                tracing::error!(%error, "changes cannot be made persistent");
            }
        }
    };
    let thread = std::thread::Builder::new().name("commit".to_owned()).spawn(work)?;
    Ok((stop, thread))
}
