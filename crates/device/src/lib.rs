//! The device core: flash, write buffer, thermal model and persistence, sans-IO. Pure.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod compute;
pub mod predict;
pub mod profile;
pub mod status;
pub mod thermal;

pub use buffer::{BufferError, BufferReport, Bytes, NoBytes, WriteBuffer};
pub use compute::Compute;
pub use predict::{Crossing, Placement, SteadyState, Workload};
pub use profile::{Engine, Profile, ProfileError, SchedulerParams};
pub use status::Status;
pub use thermal::{Thermal, Transition};
