//! What can go wrong with a window.

use std::io;
use std::path::PathBuf;

use osier_cache::PolicyError;
use osier_device::window::message::Refusal;

use crate::hits::HitError;

/// Why there is no window, or why a command was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// Nobody serves there.
    #[error("cannot attach to the device at {}: {source}; is it running?", .socket.display())]
    Connect {
        /// Where.
        socket: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It serves something else.
    #[error("what serves at {} is no window of this version; use the same build on both sides", .socket.display())]
    Stranger {
        /// Where.
        socket: PathBuf,
    },
    /// The device does not let this program in.
    #[error("the device refuses: {0}")]
    Refused(String),
    /// More was asked for than there is.
    #[error("a window of {wanted} bytes is larger than the device {device}, which has {bytes}; ask for at most that")]
    TooLarge {
        /// What was asked for.
        wanted: u64,
        /// The device.
        device: String,
        /// What it has.
        bytes: u64,
    },
    /// No permission to have faults handled by another thread.
    #[error(
        "this process may not use userfaultfd for faults in the kernel ({source}): as root, either set \
         `sysctl vm.unprivileged_userfaultfd=1` or give the user access to /dev/userfaultfd; without either, \
         FaultMode::InThread works, where system calls that are given pages outside the cache fail with EFAULT"
    )]
    NoPermission {
        /// What the system said.
        source: io::Error,
    },
    /// The kernel is too old.
    #[error("this kernel's userfaultfd lacks {feature}, which a window needs; it came with Linux {since}")]
    NoFeature {
        /// What.
        feature: &'static str,
        /// When it came.
        since: &'static str,
    },
    /// The system refused something else.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// What the device passed on is no segment.
    #[error("what the device passed on cannot be used: {0}")]
    Segment(String),
    /// Too many windows.
    #[error("this process has {max} windows, the most that it may; close one")]
    TooMany {
        /// How many.
        max: usize,
    },
    /// More parts than a window may have.
    #[error("a window has at most {} parts with a descriptor each, and not {wanted}", crate::SHARDS_MAX)]
    TooManyShards {
        /// What was asked for.
        wanted: usize,
    },
    /// There is no such policy, or it cannot have these parameters.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The device's control socket does not do it.
    #[error("{0}")]
    Control(String),
    /// The device did not do it.
    #[error("the device {device} did not do it: {refusal}")]
    Command {
        /// The device.
        device: String,
        /// Why.
        refusal: Refusal,
    },
    /// This process was forked from the one that has the window.
    #[error(
        "the window of the device {device} belongs to process {owner}, from which this one was forked; open another \
         here"
    )]
    Forked {
        /// The device.
        device: String,
        /// Whose it is.
        owner: i32,
    },
    /// The bytes of a page cannot be had.
    #[error("the flash of the device {device} has lost page {page} of its window")]
    PageLost {
        /// The device.
        device: String,
        /// Which.
        page: u64,
    },
    /// Faults are resolved in the threads that fault.
    #[error("a window whose faults are resolved in the threads that fault cannot be frozen; open it in another mode")]
    NoHandler,
    /// Hits cannot have a latency.
    #[error(transparent)]
    HitLatency(#[from] HitError),
    /// It is gone.
    #[error("the device {device} has died; its window is gone, and what was not flushed may be")]
    DeviceDied {
        /// The device.
        device: String,
    },
}

impl WindowError {
    /// The latest error of the system, as the reason that `what` did not work.
    pub(crate) fn last_os(what: &'static str) -> WindowError {
        WindowError::System { what, source: io::Error::last_os_error() }
    }
}
