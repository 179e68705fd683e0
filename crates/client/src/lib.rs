//! What programs link to: the CXL.mem window of a device in their own address space.
//!
//! [`Window::open`] attaches to a device that serves at a socket (`osier-front`) and maps it. Loads and stores go to
//! ordinary memory while their page is in the device's cache; any other access faults, waits for as long as the device
//! says, and goes on. What each mode needs of the system: `docs/window.md`.
//!
//! ```no_run
//! use osier_client::{Window, WindowOptions};
//!
//! let window = Window::open("/run/osier/window.sock".as_ref(), &WindowOptions::default())?;
//! // SAFETY: the window is as long as it says, and nobody else uses these bytes.
//! unsafe { window.as_ptr().write(7) };
//! println!("{:?}", window.stats());
//! # Ok::<(), osier_client::WindowError>(())
//! ```

#[cfg(not(target_os = "linux"))]
compile_error!("the window needs userfaultfd, which only Linux has");

mod attach;
mod control;
mod error;
mod evict;
pub mod extent;
mod fault;
mod forked;
mod handler;
pub mod heap;
mod histogram;
pub mod hits;
mod place;
pub mod placement;
mod queue;
mod shared;
mod signal;
mod snapshot;
mod stores;
mod uffd;
mod watch;
mod window;

pub use control::{Control, control_of};
pub use error::WindowError;
pub use histogram::{Histogram, Timing};
pub use hits::{HitError, HitFigures, HitLatency};
pub use osier_device::window::Report;
pub use osier_device::window::message::Refusal;
pub use queue::{
    ALLOCATION_BLOCKS_MAX, Ask, DEALLOCATE_BLOCKS_MAX, NamespaceInfo, Queue, QueueError, Slot, ZEROES_BLOCKS_MAX,
};
pub use shared::SHARDS_MAX;
pub use snapshot::Frozen;
pub use stores::StoreTracking;
pub use window::{FaultMode, Window, WindowOptions, WindowStats};
